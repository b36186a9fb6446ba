"""The prose of a paper's page: its parts, findings, pictures, and quoted numbers.

A paper has a folder with a Markdown file of its name. The file has the parts `PARTS`,
all of them and in this order, each under a heading:

In short
    Three to five sentences: the claim, what exact computation shows, what is open.
The model
    The formula (a block of ``math``), a table with the columns *in the paper*, *here*
    and *meaning*, a block of ``python`` that begins with ``import icl_theory as icl``
    with its output in a block of ``text``, and a link to the derivation, such as
    ``[two heads](../theory/softmax-heads.md#two-heads)``.
What we find
    At least one picture, ``![caption](NAME.png)``, which is the figure or the question
    of a statement, and a finding for each statement.
Beyond the paper
    What the measurements say and the paper does not.
What we could not read
    Which texts of the paper we had, and what we reconstructed or took from elsewhere.

A finding is a list item. It has the name of a statement, a verdict in brackets, and
whole sentences:

    - Theorem 1 (holds): From a small start the loss falls to {{rate | off by ? %}} %.

The verdict, one of `VERDICTS`, is the one for which the sentences were written: the
page is refused if measurements give another one. A statement that no row of the audit
tests is "not tested", even if a question of the audit, which has no verdict, answers
it.

A colon and words may follow the verdict. The page then shows these words, with quotes
filled in, in place of a verdict that is composed of the verdicts of the rows:

    - Theorem 2 (holds only: holds for small steps only): Descent ends at the minimum.

Double braces quote a number from a row or a question of the audit. The name of the row
or question comes before the bar. Words of its measurement, verdict or grid come after
the bar, with a question mark in place of the number and ``…`` in place of words that
are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from icl_theory.statements.paper import Paper

IN_SHORT = "In short"
MODEL = "The model"
FINDINGS = "What we find"
BEYOND = "Beyond the paper"
UNREAD = "What we could not read"
PARTS = (IN_SHORT, MODEL, FINDINGS, BEYOND, UNREAD)
NOT_TESTED = "not tested"
VERDICTS = ("holds", "holds only", "fails", NOT_TESTED)
# "- STATEMENT (VERDICT): TEXT" or "- STATEMENT (VERDICT: WORDS): TEXT". The item goes
# on in lines that are indented by two spaces.
_FINDING = re.compile(
    rf"^- (?P<statement>.+?) \((?P<verdict>{'|'.join(VERDICTS)})"
    r"(?::\s(?P<words>(?:.|\n  )+?))?\):"
    r"(?P<text>.*(?:\n  .*)*)\n?",
    re.MULTILINE,
)
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
# "![CAPTION](NAME.png)" on a line of its own.
_PICTURE = re.compile(
    r"^!\[(?P<caption>[^\]]*)\]\((?P<name>[\w-]+)\.png\)$", re.MULTILINE
)
# "{{NAME | WORDS}}"
_QUOTE = re.compile(r"\{\{(?P<name>[^|{}]+)\|(?P<words>[^{}]+)\}\}")
# A number such as 12,345 or -0.5 or 2.78e+03; it ends before a comma that ends a
# clause.
_NUMBER = r"(?P<number>[-−+]?\d(?:[\d,]*\d)?(?:\.\d+)?(?:e[-+]?\d+)?)"
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


class Finding(NamedTuple):
    """A finding on a statement of a paper."""

    statement: str  # the name of the statement, such as "Theorem 1"
    verdict: str  # the verdict for which the text was written, one of `VERDICTS`
    text: str
    verdict_in_words: str = ""  # what the page shows in place of the rows' verdicts


class Picture(NamedTuple):
    """A figure in the prose: its name, and a caption that says what it shows."""

    name: str
    caption: str


@dataclass(frozen=True)
class Prose:
    """The parts of a paper's page that are written by hand.

    Attributes
    ----------
    parts : mapping of str to str
        The text under each heading of `PARTS`, without the findings.
    findings : mapping of str to Finding
        The finding on each statement, by its name, in the order of the file.
    flags : str
        A table in Markdown that translates the flags of the authors' code into the
        flags of this package; empty if the folder has no such table.
    """

    parts: Mapping[str, str]
    findings: Mapping[str, Finding]
    flags: str = ""

    @property
    def pictures(self) -> dict[str, Picture]:
        """The pictures of the findings by name."""
        pictures = {}
        for segment in segments(self.parts[FINDINGS]):
            if isinstance(segment, Picture):
                pictures[segment.name] = segment
        return pictures


def refusal(paper: Paper, reason: str) -> ValueError:
    """Return the error that says why a page is not written."""
    return ValueError(f"paper = {paper.name!r}: its page is not written: {reason}")


def read_prose(paper: Paper) -> Prose:
    """Read the prose of a paper from its folder, and check that nothing is missing.

    Raises
    ------
    ValueError
        There is no folder or file; a part is missing, empty, unknown or out of order; a
        statement has no finding, or a finding no statement; or there is no picture, or
        one without a caption or not among the figures of the statements.
    """
    if paper.folder is None:
        raise refusal(paper, "Paper(..., folder=) must be the folder of its prose")
    path = paper.folder / f"{paper.name}.md"
    try:
        parts = _split(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise refusal(paper, f"{path} cannot be read ({error.strerror})") from None
    # The comparison of two lists also checks the order.
    if [*parts] != [*PARTS]:
        headings = ", ".join(f"## {part}" for part in PARTS)
        present = ", ".join(f"## {part}" for part in parts) or "none"
        reason = f"{path.name} must have the parts {headings}, and has {present}"
        raise refusal(paper, reason)
    for heading, text in parts.items():
        if not text:
            raise refusal(paper, f"the part {heading} of {path.name} is empty")
    findings = {}
    for match in _FINDING.finditer(parts[FINDINGS]):
        finding = Finding(
            statement=_joined(match["statement"]),
            verdict=_joined(match["verdict"]),
            text=_joined(match["text"]),
            verdict_in_words=_joined(match["words"] or ""),
        )
        findings[finding.statement] = finding
    # The findings are shown in a table, and not where they stand in the text.
    parts[FINDINGS] = _FINDING.sub("", parts[FINDINGS]).strip()
    flags_path = paper.folder / "from_their_flags.md"
    flags = flags_path.read_text(encoding="utf-8") if flags_path.exists() else ""
    prose = Prose(parts, findings, _section(flags, paper.name))
    _check_findings(paper, prose)
    _check_pictures(paper, prose)
    return prose


def _split(text: str) -> dict[str, str]:
    """Return the text under each heading of the second level, by heading."""
    # The pieces are the text before the first heading, and then, in turn, a heading and
    # the text under it.
    _, *pieces = _HEADING.split(text)
    headings = pieces[::2]
    bodies = pieces[1::2]
    return {
        heading.strip(): body.strip()
        for heading, body in zip(headings, bodies, strict=True)
    }


def _section(text: str, name: str) -> str:
    """Return the part of a text under the name of a paper, or "" if there is none.

    A text without headings belongs to all papers of its folder, and is returned whole.
    """
    sections = _split(text)
    return sections.get(name, "") if sections else text.strip()


def _joined(text: str) -> str:
    """Return a text on one line, with single spaces."""
    return " ".join(text.split())


def _check_findings(paper: Paper, prose: Prose) -> None:
    """Refuse statements without a finding, and findings without a statement."""
    statements = {reading.name for reading in paper.readings}
    for statement in statements - {*prose.findings}:
        reason = (
            f"the statement {statement} has no finding, a line that begins with"
            f" '- {statement} ({VERDICTS[0]}):'; verdicts are {', '.join(VERDICTS)}"
        )
        raise refusal(paper, reason)
    for finding in prose.findings.values():
        # A statement that is not tested may have a finding without being a `Reading`.
        if finding.statement not in statements and finding.verdict != NOT_TESTED:
            reason = f"the finding of {finding.statement} belongs to no statement"
            raise refusal(paper, reason)


def _check_pictures(paper: Paper, prose: Prose) -> None:
    """Refuse prose without pictures, and pictures of no statement or no caption."""
    names = set()
    for reading in paper.readings:
        names.add(reading.figure)
        if reading.question:
            names.add(reading.question.name)
    if not prose.pictures:
        reason = f"the part {FINDINGS} shows no figure, a line ![caption](NAME.png)"
        raise refusal(paper, reason)
    for picture in prose.pictures.values():
        if picture.name not in names:
            reason = f"no statement has the figure {picture.name}"
            raise refusal(paper, reason)
        if not picture.caption:
            raise refusal(paper, f"the figure {picture.name} has no caption")


def segments(text: str) -> list[str | Picture]:
    """Return the pictures of a text and the pieces of text between them, in order."""
    pieces: list[str | Picture] = []
    start = 0
    for match in _PICTURE.finditer(text):
        pieces.append(text[start : match.start()].strip())
        pieces.append(Picture(match["name"], _joined(match["caption"])))
        start = match.end()
    pieces.append(text[start:].strip())
    return [piece for piece in pieces if piece]


def fill(
    paper: Paper,
    text: str,
    sources: Mapping[str, str],
    *,
    is_quick: bool = False,
) -> str:
    """Replace the quotes of a text, in double braces, by the quoted numbers.

    Parameters
    ----------
    paper : Paper
        The paper, whose name an error mentions.
    text : str
        The text with the quotes.
    sources : mapping of str to str
        The text that may be quoted from each row or question, by the name of the row or
        question.
    is_quick : bool
        Whether the texts are those of quick measurements. Their grids are smaller, and
        may lack a number; an ellipsis then stands in its place.

    Raises
    ------
    ValueError
        A quote names no row or question. Or it has words that are not in the text, and
        the measurements were not quick.
    """

    def quoted(match: re.Match[str]) -> str:
        """Return the number that a quote stands for, as it is printed."""
        name = _joined(match["name"])
        words = _joined(match["words"])
        before, mark, after = words.partition("?")
        if name not in sources:
            names = ", ".join(sources) or "none"
            reason = f"{match[0]} quotes no row or question; there are {names}"
            raise refusal(paper, reason)
        if not mark:
            raise refusal(paper, f"{match[0]} has no question mark for a number")
        # The number stands between the words before and after the question mark.
        pattern = _literal(before) + _NUMBER + _literal(after)
        source = _joined(sources[name])
        quotation = re.search(pattern, source)
        if quotation is None and is_quick:
            return "…"
        if quotation is None:
            reason = f"{match[0]} does not occur in the text of the row: {source!r}"
            raise refusal(paper, reason)
        return typeset(quotation["number"])

    return _QUOTE.sub(quoted, text)


def _literal(words: str) -> str:
    """Return the regular expression of words, in which … stands for any text."""
    return ".*?".join(re.escape(piece) for piece in words.split("…"))


def typeset(number: str) -> str:
    """Return a number as it is printed, with powers of ten and a minus sign.

    Examples
    --------
    >>> from icl_theory.results.prose import typeset
    >>> [typeset(number) for number in ("1e-10", "4.0e-04", "-0.5", "2.78e+03")]
    ['10⁻¹⁰', '4.0·10⁻⁴', '−0.5', '2,780']
    """
    mantissa, e, exponent = number.partition("e")
    if not e:
        return number.replace("-", "−")
    # Numbers of up to six digits are printed in full.
    if 0 <= int(exponent) <= 5:
        return f"{float(number):,.0f}"
    power_of_ten = "10" + str(int(exponent)).translate(_SUPERSCRIPTS)
    return power_of_ten if mantissa == "1" else f"{mantissa}·{power_of_ten}"
