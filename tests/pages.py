"""What tests of pages share: a strict reader of HTML, and prose for a paper's page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

from icl_theory.results.prose import FINDINGS, PARTS
from icl_theory.statements.paper import Paper

VOID = {"meta", "img", "br", "hr", "link", "input"}
ALLOWED = {
    "html",
    "head",
    "meta",
    "title",
    "style",
    "body",
    "main",
    "h1",
    "h2",
    "p",
    "b",
    "pre",
    "code",
    "div",
    "table",
    "caption",
    "thead",
    "tbody",
    "tr",
    "th",
    "td",
    "figure",
    "figcaption",
    "img",
    "footer",
    "details",
    "summary",
    "em",
    "strong",
    "ul",
    "ol",
    "li",
}


class Page(HTMLParser):
    """Reads a page, and fails where tags are not balanced or not ours.

    Attributes are ``images`` (alternative texts), ``tables`` (rows of cells) and
    ``text``.
    """

    def __init__(self, source: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.images: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.text = ""
        self.feed(source)
        self.close()
        assert not self.stack, f"never closed: {self.stack}"
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", source)
        # nothing is fetched: no references but those to data that are part of the page
        assert not re.search(
            r"@import|url\s*\(|href|<script|<link|<iframe|<object|javascript:",
            source,
            re.I,
        )
        assert all(
            part.startswith("data:image/svg+xml;base64,")
            for part in re.findall(r'src="([^"]*)', source)
        )
        assert len(re.findall(r"src\s*=", source)) == len(self.images)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ALLOWED, tag
        if tag == "img":
            self.images.append(dict(attrs)["alt"] or "")
        if tag not in VOID:
            self.stack.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.stack and self.stack.pop() == tag, f"</{tag}> closes nothing"  # noqa: PT018

    def handle_data(self, data: str) -> None:
        if "style" in self.stack:
            return
        self.text += data
        if self.stack and self.stack[-1] in ("td", "th"):
            self.tables[-1][-1][-1] += data

    def column(self, table: int, heading: str) -> list[str]:
        """Cells of a table below a heading."""
        head, *rows = self.tables[table]
        return [row[head.index(heading)] for row in rows]

    def about(self, heading: str) -> int:
        """Number of the first table that has a heading."""
        return next(i for i, rows in enumerate(self.tables) if heading in rows[0])


def write_prose(folder: Path, paper: Paper, verdicts: Sequence[str]) -> Paper:
    """Write short prose for a paper, and return the paper with its folder.

    Each statement has one finding, in the order of the verdicts. All of its figures are
    shown.
    """
    findings = [
        f"- {reading.name} ({verdict}): Found of {reading.name}."
        for reading, verdict in zip(paper.readings, verdicts, strict=True)
    ]
    names = []
    for reading in paper.readings:
        names += [reading.figure, reading.question.name if reading.question else ""]
    shown = [f"![See {name}.]({name}.png)" for name in names if name]
    parts = dict.fromkeys(PARTS, "Some words.")
    parts[FINDINGS] = "\n\n".join([*shown, "\n".join(findings)])
    text = "\n\n".join(f"## {heading}\n\n{part}" for heading, part in parts.items())
    folder.mkdir(exist_ok=True)
    (folder / f"{paper.name}.md").write_text(text, encoding="utf-8")
    return replace(paper, folder=folder)
