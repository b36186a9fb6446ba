"""The tables of the audit as cards, which can be searched and filtered, and fit on a phone."""

from __future__ import annotations

import html
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

CELL = re.compile(r"(?<!\\)\|")
SIGNS = {"<=": "≤", ">=": "≥", "->": "→", " - ": " − "}
STATUSES = {
    "exact": "an identity up to rounding; a failure is a bug of the package",
    "certified": "an inequality with its constants, proved; a failure is a bug or an error of the proof",
    "order-wise": "an order of magnitude of a paper; a failure says that it does not hold there as reconstructed",
    "measured": "an observation, a limit or a rule of thumb",
}
VERDICTS = {
    "fails": "fails",
    "holds only": "holds only in part",
    "holds, loose": "holds, loosely",
    "holds": "holds",
}


def typeset(text: str) -> str:
    """Return a formula in plain text as HTML with indices, powers and signs."""
    for plain, sign in SIGNS.items():
        text = text.replace(plain, sign)
    text = html.escape(text)
    text = re.sub(
        r"\^\(([^()]*)\)|\^(-?[\w½√|/]+)",
        lambda found: f"<sup>{found[0][1:]}</sup>",
        text,
    )
    return re.sub(r"(?<=[\w)>])_(\w+)", r"<sub>\1</sub>", text)


def rows(table: str) -> list[list[str]]:
    """Return the cells of a Markdown table, the heading first."""
    lines = [line for line in table.strip().splitlines() if line.startswith("|")]
    cells = [
        [cell.strip().replace("\\|", "|") for cell in CELL.split(line)[1:-1]]
        for line in lines
    ]
    return cells[:1] + cells[2:]


def _claim(number: int, headings: list[str], cells: list[str]) -> str:
    claim = dict(zip(headings, cells, strict=True))
    words = claim["verdict"].removeprefix("as reconstructed: ")
    verdict = next(kind for kind in VERDICTS if words.startswith(kind))
    source = (
        "recall paper"
        if claim["source"].startswith("recall")
        else claim["source"].split(",")[0]
    )
    facts = "".join(
        f"<dt>{name}</dt><dd>{typeset(claim[name])}</dd>"
        for name in ("grid", "measured", "bound")
    )
    return (
        f'<article class="claim {claim["status"]} {verdict.replace(", ", "-").replace(" ", "-")}" '
        f'data-status="{claim["status"]}" data-verdict="{verdict}" data-source="{html.escape(source)}">'
        f"<header><b>{html.escape(claim['claim'])}</b>"
        f"<span>{claim['status']}</span></header>"
        f'<p class="statement">{typeset(claim["statement"])}</p>'
        f'<p class="source">{html.escape(claim["source"])}</p>'
        f'<p class="verdict">{typeset(claim["verdict"])}</p>'
        f"<details><summary>Evidence</summary><dl>{facts}</dl>"
        f"<p><code>icl-theory audit --claim {number}</code></p></details></article>"
    )


def _choices(name: str, values: dict[str, str], counts: Counter[str]) -> str:
    options = "".join(
        f'<option value="{html.escape(value)}">{html.escape(words)} ({counts[value]})</option>'
        for value, words in values.items()
        if counts[value]
    )
    return f'<select aria-label="{name}" data-of="{name}"><option value="">any {name}</option>{options}</select>'


def _claims(table: str) -> str:
    headings, *claims = rows(table)
    cards = [
        _claim(number, headings, cells) for number, cells in enumerate(claims, start=1)
    ]
    kinds = {
        name: Counter(re.findall(rf'data-{name}="([^"]*)"', "".join(cards)))
        for name in ("status", "verdict", "source")
    }
    selects = (
        _choices("status", {status: status for status in STATUSES}, kinds["status"])
        + _choices("verdict", VERDICTS, kinds["verdict"])
        + _choices(
            "source",
            {source: html.unescape(source) for source in kinds["source"]},
            kinds["source"],
        )
    )
    counted = ", ".join(
        f"{kinds['verdict'][kind]} with the verdict “{words}”"
        for kind, words in VERDICTS.items()
        if kinds["verdict"][kind]
    )
    meanings = "".join(
        f"<dt>{status}</dt><dd>{words}</dd>" for status, words in STATUSES.items()
    )
    page = (
        "<p>{number} claims of the papers and of this package, each compared with measurements: {counted}. The "
        "cards are the output of <code>icl-theory audit --out audit.md</code>, which measures all of them anew. "
        "The command at the foot of a card measures that claim alone. A source marked <i>reconstructed</i> is a "
        "statement whose formula is missing in the text we worked from: the "
        "formula is ours, and its verdict, <i>as reconstructed</i>, concerns our formula, not the published one. A "
        'comparison of the two would settle it, and is pending.</p><dl class="statuses">{meanings}</dl>'
        '<form class="filters" role="search">'
        '<input type="search" placeholder="Search the claims" aria-label="Search">{selects}<output></output></form>'
        '<div class="claims">{cards}</div><p class="more" hidden>'
        '<button type="button" data-more="24">Show 24 more</button> '
        '<button type="button" data-more="1000">Show all</button></p>'
    )
    return page.format(
        number=len(cards),
        counted=counted,
        meanings=meanings,
        selects=selects,
        cards="".join(cards),
    )


def _answers(table: str) -> str:
    _, *found = rows(table)
    return "".join(
        f'<details class="claim answer"><summary><b>{html.escape(question)}</b></summary><p>{typeset(answer)}</p>'
        f"<p><code>{html.escape(command.strip('`'))}</code></p></details>"
        for question, answer, command in found
    )


def _rewrite(app: Sphinx, page: str, source: list[str]) -> None:
    """Replace both tables of the audit, line by line HTML, so that Markdown leaves it alone."""
    if page != "audit" or app.builder.format != "html":
        return
    head, claims, answers = re.split(r"^## .*$", source[0], flags=re.MULTILINE)
    source[0] = (
        f"{head}How to read a card: [How to read the audit](guide/audit.md).\n\n## Claims\n\n"
        f"<div>{_claims(claims)}</div>\n\n## Open questions\n\n<div>{_answers(answers)}</div>\n"
    )


def setup(app: Sphinx) -> dict[str, Any]:
    """Rewrite the page before it is read."""
    app.connect("source-read", _rewrite)
    app.add_js_file("audit.js", loading_method="defer")
    return {"parallel_read_safe": True, "parallel_write_safe": True}
