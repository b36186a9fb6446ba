"""A page for a paper: the model, the findings, figures, and the evidence on them.

A `Paper` has a `Reading` for each of its statements. A reading names a question, a
figure, and the rows of the audit that measure the statement. A row is a function that
returns a `Claim`: a statement, its measurements, and a verdict that begins with one of
the `Outcome` values. `Prose` is the part of the page that is written by hand.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from icl_theory import figures
from icl_theory._validate import choice, flag
from icl_theory._version import __version__
from icl_theory.engine.progress import Progress, counted
from icl_theory.families.plug_ins import left_out
from icl_theory.files import replacing
from icl_theory.results import notebook
from icl_theory.results.notebook import picture
from icl_theory.results.numbers import markdown
from icl_theory.results.plots import plot_answer, release, save
from icl_theory.results.prose import (
    BEYOND,
    FINDINGS,
    IN_SHORT,
    MODEL,
    NOT_TESTED,
    UNREAD,
    Finding,
    Picture,
    Prose,
    fill,
    read_prose,
    refusal,
    segments,
)
from icl_theory.statements.audit import BINDING, all_claims, answer, name_of
from icl_theory.statements.claim import (
    OURS,
    RECONSTRUCTED,
    Answer,
    Claim,
    Outcome,
    Row,
)
from icl_theory.statements.paper import Paper, Reading

QUICK_NOTE = (
    "**This page is quick.** Its sentences were written for the full measurements, but"
    " its numbers are from smaller grids and shorter runs. So a size that a sentence"
    " names may not be that of its numbers. An ellipsis stands for a number that was"
    " not measured."
)
FLAGS = "From the authors' flags to ours"
FLAGS_SUMMARY = "for training with their code"
EVIDENCE = "Evidence"
# The verdict for which a finding is written, by the worst outcome of the rows of its
# statement. The outcomes go from the worst to the best.
WORST_FIRST = {
    Outcome.FAILS: "fails",
    Outcome.COUNTEREXAMPLE: "fails",
    Outcome.LIMIT: "fails",
    Outcome.ONLY: "holds only",
    Outcome.LOOSE: "holds",
    Outcome.HOLDS: "holds",
}
# The text of a cell that names the source of a formula, by `Claim.formula`.
WHOSE = {"paper": "the paper", RECONSTRUCTED: "reconstructed", OURS: "ours"}
# The columns of the table of claims: for each heading the attribute of `Claim`.
COLUMNS = {
    "claim": "name",
    "statement": "statement",
    "grid": "grid",
    "measured": "measured",
    "bound": "bound",
    "verdict": "finding",
}
# Sentences that explain words in the last two columns of the table of findings. A
# sentence stands below the table if its word occurs in these columns.
LEGEND = {
    "reconstructed": "*Reconstructed*: the verdict concerns our formula or model only.",
    "ours": "*Ours*: our own statement.",
    "loose": "*Loose*: constants can be far off.",
    "“": "Names in quotation marks are rows of the evidence, further below.",
}
# Beside a row that does not hold, a verdict names up to this many rows that hold. More
# names would make the cell of the table long, and hide the row that does not hold.
MOST_NAMED = 3


class Drawn(NamedTuple):
    """A drawn figure."""

    name: str  # the name of its file, without the ending
    title: str
    figure: Any  # a figure of matplotlib, or its axes


class Reproduced(NamedTuple):
    """A statement with its measurements: audit rows, an answer, and figures."""

    reading: Reading
    claims: tuple[Claim, ...]
    answer: Answer | None
    drawn: tuple[Drawn, ...]

    @property
    def outcome(self) -> str:
        """The worst outcome of the rows, in the words of a finding's verdict."""
        outcomes = {claim.outcome for claim in self.claims}
        for outcome, word in WORST_FIRST.items():
            if outcome in outcomes:
                return word
        return NOT_TESTED

    @property
    def verdict(self) -> str:
        """The verdict, with a clause for each row that does not simply hold.

        Examples are "holds, loose" and "“NAME”: fails for x; “NAME” and “NAME”: hold".
        """
        if not self.claims:
            return NOT_TESTED
        holding = []
        clauses: list[str] = []
        for claim in self.claims:
            if claim.outcome in (Outcome.HOLDS, Outcome.LOOSE):
                holding.append(claim)
            else:
                clauses.append(self._clause(claim))
        if not clauses:
            is_loose = any(claim.outcome is Outcome.LOOSE for claim in holding)
            return "holds, loose" if is_loose else "holds"
        if holding:
            clauses.append(_clause_on_holding(holding))
        return "; ".join(clauses)

    def _clause(self, claim: Claim) -> str:
        """Return the clause of the verdict on a row that does not simply hold."""
        clause = _first_clause(claim.verdict)
        # A failure of our formula must not be read as a failure of the paper's formula.
        if claim.violated and claim.formula == RECONSTRUCTED:
            clause = f"our formula {clause}"
        if len(self.claims) == 1:
            return clause
        return f"{_quoted_name(claim)}: {clause}"

    @property
    def source(self) -> str:
        """The sources of the formulas in the rows, such as "the paper, ours"."""
        # The keys of a dictionary are unique and keep the order of the claims.
        whose = dict.fromkeys(WHOSE[claim.formula] for claim in self.claims)
        return ", ".join(whose) or "–"

    @property
    def table(self) -> dict[str, list[str]]:
        """The columns of a table with a row for each claim."""
        columns = {}
        for heading, attribute in COLUMNS.items():
            columns[heading] = [str(getattr(claim, attribute)) for claim in self.claims]
        return columns


def _clause_on_holding(claims: list[Claim]) -> str:
    """Return the clause on the rows that hold, if other rows do not simply hold."""
    if len(claims) > MOST_NAMED:
        return "all other rows: hold"
    *first_names, last_name = [_quoted_name(claim) for claim in claims]
    if not first_names:
        return f"{last_name}: holds"
    return f"{', '.join(first_names)} and {last_name}: hold"


def _quoted_name(claim: Claim) -> str:
    """Return the name of a row in quotation marks.

    The part before a colon, which is the model, is left out.
    """
    name = claim.name.split(": ", maxsplit=1)[-1]
    return f"“{name}”"


def _first_clause(verdict: str) -> str:
    """Return a verdict up to its first punctuation mark, after which reasons stand.

    The colon of "fails: ..." does not count. A mark without a space after it does not
    count either, because it may be part of a number.

    Examples
    --------
    >>> from icl_theory.results.reproduction import _first_clause
    >>> _first_clause("fails: counterexample Halfspace, where c_k = 0")
    'fails: counterexample Halfspace'
    """
    prefix = "fails: " if verdict.startswith("fails: ") else ""
    clauses = re.split(r"[,;:.](?:\s|$)", verdict.removeprefix(prefix))
    return prefix + clauses[0]


# The page is a list of blocks of the following classes. Each block can write itself as
# Markdown and as HTML. Both methods get all figures of the page by name, because
# `_ShownFigure` needs them.


class _Heading(NamedTuple):
    """The heading of a part of the page."""

    text: str

    def to_markdown(self, _: Mapping[str, Drawn]) -> str:
        return f"## {self.text}"

    def to_html(self, _: Mapping[str, Drawn]) -> str:
        return f"<h2>{notebook.text(self.text)}</h2>"


class _Words(NamedTuple):
    """Text in Markdown."""

    text: str

    def to_markdown(self, _: Mapping[str, Drawn]) -> str:
        return self.text

    def to_html(self, _: Mapping[str, Drawn]) -> str:
        return notebook.prose(self.text)


class _ShownFigure(NamedTuple):
    """A figure with its caption.

    The caption is empty if the question that the figure answers stands above it.
    """

    name: str
    caption: str

    def to_markdown(self, drawings: Mapping[str, Drawn]) -> str:
        title = drawings[self.name].title
        image = f"![{title}]({self.name}.png)"
        return f"{image}\n\n*{self.caption}*" if self.caption else image

    def to_html(self, drawings: Mapping[str, Drawn]) -> str:
        drawn = drawings[self.name]
        return notebook.figure(picture(drawn.figure), self.caption or drawn.title)


class _Table(NamedTuple):
    """A table: the cells of each column by its heading."""

    columns: Mapping[str, list[str]]

    def to_markdown(self, _: Mapping[str, Drawn]) -> str:
        return markdown(self.columns)

    def to_html(self, _: Mapping[str, Drawn]) -> str:
        return notebook.table(self.columns)


class _Fold(NamedTuple):
    """Blocks that a reader unfolds by a click on their summary."""

    summary: str
    blocks: tuple[Any, ...]

    def to_markdown(self, drawings: Mapping[str, Drawn]) -> str:
        inner = [block.to_markdown(drawings) for block in self.blocks]
        summary = notebook.text(self.summary)
        lines = [f"<details><summary>{summary}</summary>", *inner, "</details>"]
        return "\n\n".join(lines)

    def to_html(self, drawings: Mapping[str, Drawn]) -> str:
        inner = "\n".join(block.to_html(drawings) for block in self.blocks)
        summary = notebook.text(self.summary)
        return f"<details><summary>{summary}</summary>\n{inner}\n</details>"


@dataclass(frozen=True)
class Reproduction:
    """The page of a paper: the measurements of `reproduce`, and the prose about them.

    A ValueError is raised if a finding of the prose is written for another verdict than
    the measured one, or if a quote in the prose does not match the measurements.

    Attributes
    ----------
    paper : Paper
        The paper.
    command : str
        The command that makes the page.
    parts : tuple of Reproduced
        A statement and its measurements, for each statement on the page.
    prose : Prose
        The text of the page that is written by hand.
    only : str, optional
        The name of the only statement that the page is about; by default it is about
        all of them.
    quick : bool
        Whether the measurements were made on smaller grids and in shorter runs.
    """

    paper: Paper
    command: str
    parts: tuple[Reproduced, ...]
    prose: Prose
    only: str | None = None
    quick: bool = False

    def __post_init__(self) -> None:
        # A finding is a sentence for one verdict, and would be wrong for another.
        for part in self.parts:
            finding = self.prose.findings[part.reading.name]
            if finding.verdict != part.outcome:
                reason = (
                    f"the finding of {finding.statement} is written for the verdict"
                    f" {finding.verdict!r}, and the measurements say {part.outcome!r}"
                )
                raise refusal(self.paper, reason)
        # The blocks are made here only to raise the error for a quote that cannot be
        # filled, before anything is written.
        self.blocks()

    @property
    def violations(self) -> tuple[Claim, ...]:
        """Claims that must not fail, but that measurements contradict; normally none.

        These are claims with the status exact or certified (`BINDING`). An order of
        magnitude or an observation may fail, and the page then says so.
        """
        return tuple(
            claim
            for claim in self._claims
            if claim.violated and claim.status in BINDING
        )

    @property
    def _claims(self) -> list[Claim]:
        """All claims of the statements."""
        claims: list[Claim] = []
        for part in self.parts:
            claims += part.claims
        return claims

    @property
    def drawings(self) -> dict[str, Drawn]:
        """The figures by name; several statements may share one."""
        by_name = {}
        for part in self.parts:
            for drawn in part.drawn:
                by_name[drawn.name] = drawn
        return by_name

    @property
    def overview(self) -> dict[str, list[str]]:
        """Table of statements, findings, verdicts, and sources of the formulas.

        A finding may be about a statement that no row of the audit tests.
        """
        parts = {part.reading.name: part for part in self.parts}
        rows: dict[str, list[str]] = {
            "statement": [],
            "finding": [],
            "verdict": [],
            "source": [],
        }
        for finding in self._findings:
            part = parts.get(finding.statement)
            rows["statement"].append(finding.statement)
            rows["finding"].append(self._filled(finding.text))
            measured = part.verdict if part else NOT_TESTED
            # The file of the prose may state the verdict in words of its own.
            in_words = self._filled(finding.verdict_in_words)
            rows["verdict"].append(in_words or measured)
            rows["source"].append(part.source if part else "–")
        return rows

    @property
    def _findings(self) -> list[Finding]:
        """The findings on the page."""
        if self.only is not None:
            return [self.prose.findings[self.only]]
        return [*self.prose.findings.values()]

    def _filled(self, text: str) -> str:
        """Return a text whose quotes are replaced by measured numbers.

        Answers and claims may be quoted by their names.
        """
        sources = {}
        for part in self.parts:
            if part.answer:
                sources[part.answer.name] = part.answer.answer
            for claim in part.claims:
                words = (claim.measured, claim.verdict, claim.grid)
                sources[claim.name] = "; ".join(words)
        return fill(self.paper, text, sources, is_quick=self.quick)

    def blocks(self) -> list[Any]:
        """Return the page as headings, text, figures and tables.

        A page about one statement has no other prose than its finding and captions.
        """
        blocks: list[Any] = [_Words(self.paper.source)]
        if self.quick:
            blocks.append(_Words(QUICK_NOTE))
        if self.only is not None:
            blocks.append(_Heading(FINDINGS))
            for name, drawn in self.drawings.items():
                # A figure that the prose does not show has its title as its caption.
                with_title = Picture(name, drawn.title)
                shown = self.prose.pictures.get(name, with_title)
                blocks.append(_ShownFigure(name, self._filled(shown.caption)))
            blocks += [*self._overview(), *self._evidence()]
        else:
            for heading in (IN_SHORT, MODEL, FINDINGS):
                blocks += [_Heading(heading), *self._prose(heading)]
            blocks += self._overview()
            blocks += [_Heading(BEYOND), *self._prose(BEYOND)]
            if self.prose.flags:
                # A table to look things up in. It is folded like the evidence, because
                # readers of the findings do not need it.
                table = _Fold(FLAGS_SUMMARY, (_Words(self.prose.flags),))
                blocks += [_Heading(FLAGS), table]
            blocks += self._evidence()
            blocks += [_Heading(UNREAD), *self._prose(UNREAD)]
        return [*blocks, _Words(f"`{self.command}` writes this page.")]

    def _overview(self) -> list[Any]:
        """Return the table of findings, and below it the meanings of some of its words.

        These are the words of LEGEND that occur in the columns "verdict" and "source".
        """
        overview = self.overview
        cells = " ".join(overview["verdict"] + overview["source"])
        meanings = [meaning for word, meaning in LEGEND.items() if word in cells]
        blocks: list[Any] = [_Table(overview)]
        if meanings:
            blocks.append(_Words(" ".join(meanings)))
        return blocks

    def _prose(self, heading: str) -> list[Any]:
        """Return the text and the pictures under a heading."""
        blocks: list[Any] = []
        for segment in segments(self.prose.parts[heading]):
            if isinstance(segment, Picture):
                caption = self._filled(segment.caption)
                blocks.append(_ShownFigure(segment.name, caption))
            else:
                blocks.append(_Words(self._filled(segment)))
        return blocks

    def _evidence(self) -> list[Any]:
        """Return a folded block for each statement, with its rows and figures.

        A figure that the page has already shown is left out.
        """
        # A page about one statement begins with all of its figures. Any other page has
        # shown the pictures of the prose.
        already_shown = set(self.drawings) if self.only else set(self.prose.pictures)
        blocks: list[Any] = [_Heading(EVIDENCE)]
        for part in self.parts:
            evidence = _evidence_of(part)
            for drawn in part.drawn:
                if drawn.name in already_shown:
                    continue
                already_shown.add(drawn.name)
                # The question stands above the figure of an answer.
                is_answer = part.answer is not None and drawn.name == part.answer.name
                caption = "" if is_answer else drawn.title
                evidence.append(_ShownFigure(drawn.name, caption))
            blocks.append(_Fold(part.reading.name, tuple(evidence)))
        return blocks

    def to_markdown(self) -> str:
        """Return the page as Markdown; its pictures are files beside it."""
        drawings = self.drawings
        blocks = [block.to_markdown(drawings) for block in self.blocks()]
        return "\n\n".join([f"# {self.paper.title}", *blocks]) + "\n"

    def to_html(self) -> str:
        """Return the page as one HTML file that needs nothing else."""
        drawings = self.drawings
        body = [block.to_html(drawings) for block in self.blocks()]
        # The commands are None, because the last block names the command.
        return notebook.page(self.paper.title, body, None, version=__version__)

    @Progress("writing the pages")
    def write(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write both pages and the pictures of the Markdown page into a folder.

        A missing folder is created.

        Returns
        -------
        list of Path
            The files, each written whole or not at all.
        """
        figures.check_folder(folder)
        # Both pages are made before the first is written, so that an error in making
        # them leaves no file.
        pages = {
            Path(folder, f"{self.paper.name}.md"): self.to_markdown(),
            Path(folder, f"{self.paper.name}.html"): self.to_html(),
        }
        for path, page in pages.items():
            with replacing(path) as temporary:
                temporary.write_text(page, encoding="utf-8")
        pictures = []
        for name, drawn in self.drawings.items():
            path = Path(folder, f"{name}.png")
            save(drawn.figure, path)
            pictures.append(path)
        return [*pages, *pictures]


def _evidence_of(part: Reproduced) -> list[Any]:
    """Return tables of a statement's words, of its claims, and of its answer."""
    words = {"the paper states": [part.reading.says]}
    if part.reading.reconstructed:
        words["we reconstructed"] = [part.reading.reconstructed]
    blocks: list[Any] = [_Table(words)]
    if part.claims:
        blocks.append(_Table(part.table))
    if part.answer:
        question_and_answer = {
            "question": [part.answer.question],
            "answer": [part.answer.answer],
        }
        blocks.append(_Table(question_and_answer))
    return blocks


def papers() -> dict[str, Paper]:
    """Return the papers of every family by name."""
    # The messages are about families that cannot be loaded, which have no papers here.
    claims_by_family, _messages = all_claims()
    papers_by_name = {}
    for claims in claims_by_family.values():
        for paper in claims.papers:
            papers_by_name[paper.name] = paper
    return papers_by_name


class _Measurements:
    """Measurements of a paper's statements.

    An error in a measurement or a figure becomes a message in ``failures``, so that
    `reproduce` can list all errors at once. The claims of rows and the figures are
    kept, because several statements may share them.
    """

    def __init__(self, paper: Paper, quick: bool) -> None:
        self.paper = paper
        self.quick = quick
        self.failures: list[str] = []
        self._claims: dict[Row, tuple[Claim, ...]] = {}
        self._drawings: dict[str, Drawn] = {}

    def measure(self, reading: Reading) -> Reproduced:
        """Measure the rows of a statement, answer its question and draw its figure."""
        claims: list[Claim] = []
        for row in reading.rows:
            claims += self._claims_of(row)
        measured_answer = None
        drawings: list[Drawn] = []
        if reading.question:
            question = reading.question.name
            with self._left_out(f"the question {question}"):
                measured_answer = answer(question, quick=self.quick)
                drawings.append(_draw_answer(measured_answer))
        if reading.figure:
            with self._left_out(f"the figure {reading.figure}"):
                drawings.append(self._draw_figure(reading.figure))
        # If the figures were not released, pyplot would keep all of them, and a
        # notebook would show them below the cell.
        for drawing in drawings:
            release(drawing.figure)
        return Reproduced(reading, tuple(claims), measured_answer, tuple(drawings))

    def _claims_of(self, row: Row) -> tuple[Claim, ...]:
        """Return the claim of a row, or an empty tuple if it cannot be measured."""
        # Several statements may have the same row, and a row may take minutes.
        if row not in self._claims:
            # If the measurement fails, this empty tuple stays, so that another
            # statement with this row does not measure it again.
            self._claims[row] = ()
            with self._left_out(f"the row {name_of(row)}"):
                self._claims[row] = (row(self.quick),)
        return self._claims[row]

    def _draw_figure(self, name: str) -> Drawn:
        """Return a figure, drawn once even if several statements have it."""
        if name not in self._drawings:
            figure = figures.draw(name, quick=self.quick)
            self._drawings[name] = Drawn(name, figures.available()[name], figure)
        return self._drawings[name]

    def _left_out(self, part: str) -> AbstractContextManager[None]:
        """Return a context that turns errors in it into messages about ``part``."""
        return left_out(f"{part} of the paper {self.paper.name}", self.failures)


def _draw_answer(result: Answer) -> Drawn:
    """Draw the figure of an answer; the title of the figure is the question."""
    return Drawn(result.name, result.question, plot_answer(result))


def reproduce(
    name: str, *, only: str | None = None, quick: bool = False
) -> Reproduction:
    """Measure every statement of a paper.

    Parameters
    ----------
    name : str
        One of `papers`.
    only : str, optional
        Name of the only statement to measure; by default all are measured.
    quick : bool
        Whether to measure on smaller grids and in shorter runs.

    Returns
    -------
    Reproduction
        The measurements and the prose. Every call gives the same page.

    Raises
    ------
    ValueError
        The paper or the statement is unknown, a part of the prose is missing or does
        not agree with the measurements, or a row or a figure raises an error.

    Examples
    --------
    >>> from icl_theory.results.reproduction import reproduce
    >>> page = reproduce("nonlinear-regression", only="Equation 9", quick=True)
    >>> page.overview["verdict"], page.overview["source"]
    (['holds, loose'], ['reconstructed'])
    """
    flag("quick", quick)
    paper = papers()[choice("paper", name, papers())]
    readings = {reading.name: reading for reading in paper.readings}
    if only is not None:
        readings = {only: readings[choice("only", only, readings)]}
    # Errors in the prose are raised before the measurements, which may take minutes.
    prose = read_prose(paper)
    measurements = _Measurements(paper, quick)
    parts = tuple(
        measurements.measure(reading)
        for reading in counted([*readings.values()], "statements")
    )
    if measurements.failures:
        raise refusal(paper, "; ".join(measurements.failures))
    command = f"icl-theory reproduce {name}"
    if only is not None:
        command += f' --only "{only}"'
    if quick:
        command += " --quick"
    return Reproduction(paper, command, parts, prose, only, quick)
