"""A page for a paper: its statements, commands, measurements and verdicts."""

from __future__ import annotations

import os
from collections import Counter
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
from icl_theory.statements.audit import BINDING, all_claims, answer, name_of
from icl_theory.statements.claim import RECONSTRUCTED, Answer, Claim, Outcome, Row
from icl_theory.statements.paper import Paper, Reading

WORST_FIRST = (
    Outcome.FAILS,
    Outcome.COUNTEREXAMPLE,
    Outcome.LIMIT,
    Outcome.ONLY,
    Outcome.LOOSE,
    Outcome.HOLDS,
)
# Outcomes whose value needs more words to stand alone.
NAMES = {Outcome.LIMIT: "fails in a limit"}
# columns of the table of claims: heading and attribute of Claim
COLUMNS = {
    "claim": "name",
    "statement": "statement",
    "grid": "grid",
    "measured": "measured",
    "bound": "bound",
    "verdict": "finding",
}
PENDING = (
    "A verdict “as reconstructed” concerns our formula, not the published one. "
    "A comparison of the two is pending."
)


class Drawn(NamedTuple):
    """A figure or its axes, with the name of its file, a caption and a command."""

    name: str
    caption: str
    command: str
    figure: Any


class Reproduced(NamedTuple):
    """A statement with its measurements: audit rows, an answer, and figures."""

    reading: Reading
    command: str
    claims: tuple[Claim, ...]
    answer: Answer | None
    drawn: tuple[Drawn, ...]

    @property
    def verdict(self) -> str:
        """Number of claims of each outcome, the worst first.

        Published and reconstructed formulas are counted separately.
        """
        # a dictionary, because the formulas keep the order of the claims
        counts_by_formula: dict[str, Counter[Outcome]] = {}
        for claim in self.claims:
            counts = counts_by_formula.setdefault(claim.formula, Counter())
            counts[claim.outcome] += 1
        parts = []
        for formula, counts in counts_by_formula.items():
            outcomes = []
            for outcome in WORST_FIRST:
                if counts[outcome]:
                    name = NAMES.get(outcome, outcome.value)
                    outcomes.append(f"{name} ({counts[outcome]})")
            parts.append(f"{formula}: {', '.join(outcomes)}")
        return "; ".join(parts) or "no number is claimed"

    @property
    def tests(self) -> list[str]:
        """Names of the rows and figures that test the statement."""
        rows = [claim.name for claim in self.claims]
        return rows + [f"figure {drawn.name}" for drawn in self.drawn]

    def to_markdown(self) -> list[str]:
        """Return the blocks of Markdown of the statement."""
        blocks = [f"## {self.reading.name}", self.reading.says]
        if self.reading.reconstructed:
            blocks.append(f"*Reconstructed:* {self.reading.reconstructed}")
        blocks.append(f"```\n{self.command}\n```")
        if self.claims:
            blocks.append(markdown(self.table))
        if self.answer:
            blocks.append(f"*{self.answer.question}* {self.answer.answer}")
        for drawn in self.drawn:
            blocks.append(f"![{drawn.caption}]({drawn.name}.png)")
            blocks.append(f"*{drawn.caption}:* `{drawn.command}`")
        return blocks

    def to_html(self) -> list[str]:
        """Return the blocks of HTML of the statement."""
        paragraphs = [notebook.paragraph(self.reading.says)]
        if self.reading.reconstructed:
            reconstructed = f"Reconstructed: {self.reading.reconstructed}"
            paragraphs.append(notebook.paragraph(reconstructed))
        blocks = [notebook.section(self.reading.name, *paragraphs)]
        blocks.append(f"<pre><code>{notebook.text(self.command)}</code></pre>")
        if self.claims:
            blocks.append(notebook.table(self.table))
        if self.answer:
            words = f"{self.answer.question} {self.answer.answer}"
            blocks.append(notebook.paragraph(words))
        for drawn in self.drawn:
            caption = f"{drawn.caption}: {drawn.command}"
            blocks.append(notebook.figure(picture(drawn.figure), caption))
        return blocks

    @property
    def table(self) -> dict[str, list[str]]:
        """The claims by columns."""
        columns = {}
        for heading, name in COLUMNS.items():
            columns[heading] = [str(getattr(claim, name)) for claim in self.claims]
        return columns


@dataclass(frozen=True)
class Reproduction:
    """What `reproduce` measured of a paper.

    Attributes
    ----------
    paper : Paper
        The paper.
    command : str
        The command that makes the page.
    parts : tuple of Reproduced
        One for each statement.
    failures : tuple of str
        A line for each row, question or figure that could not be measured or drawn;
        there should be none.
    """

    paper: Paper
    command: str
    parts: tuple[Reproduced, ...]
    failures: tuple[str, ...] = ()

    @property
    def violations(self) -> tuple[Claim, ...]:
        """Exact or certified claims that measurements contradict; normally none."""
        return tuple(
            claim
            for claim in self._claims
            if claim.violated and claim.status in BINDING
        )

    @property
    def _claims(self) -> list[Claim]:
        return [claim for part in self.parts for claim in part.claims]

    @property
    def notes(self) -> list[str]:
        """Remarks on all statements and on reconstructed formulas."""
        notes = []
        if self.paper.note:
            notes.append(self.paper.note)
        if any(claim.formula == RECONSTRUCTED for claim in self._claims):
            notes.append(PENDING)
        return notes

    @property
    def overview(self) -> dict[str, list[str]]:
        """Table of statements, commands, tests and verdicts."""
        return {
            "statement": [part.reading.name for part in self.parts],
            "command": [part.command for part in self.parts],
            "tested by": ["; ".join(part.tests) for part in self.parts],
            "verdict": [part.verdict for part in self.parts],
        }

    def to_markdown(self) -> str:
        """Return the page as Markdown; its pictures are files beside it."""
        overview = self.overview
        overview["command"] = [f"`{part.command}`" for part in self.parts]
        blocks = [f"# {self.paper.title}", self.paper.reference, *self.notes]
        blocks.append(f"This page is the output of `{self.command}`.")
        blocks.append(markdown(overview))
        for part in self.parts:
            blocks += part.to_markdown()
        if self.failures:
            blocks.append("## Left out")
            blocks.append("\n".join(f"- {line}" for line in self.failures))
        # An empty block, as of a paper without a reference, would leave blank lines.
        return "\n\n".join(filter(None, blocks)) + "\n"

    def to_html(self) -> str:
        """Return the page as one HTML file that needs nothing else."""
        body = [notebook.paragraph(self.paper.reference)]
        body += [notebook.paragraph(note) for note in self.notes]
        body.append(notebook.table(self.overview))
        for part in self.parts:
            body += part.to_html()
        return notebook.page(
            self.paper.title, body, [self.command], version=__version__
        )

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
        # Both pages are made before the first is written: an error leaves no file.
        pages = {
            Path(folder, f"{self.paper.name}.md"): self.to_markdown(),
            Path(folder, f"{self.paper.name}.html"): self.to_html(),
        }
        for path, page in pages.items():
            with replacing(path) as temporary:
                temporary.write_text(page, encoding="utf-8")
        # Several statements may share a figure, whose file is written once.
        pictures = {}
        for part in self.parts:
            for drawn in part.drawn:
                pictures[Path(folder, f"{drawn.name}.png")] = drawn.figure
        for path, figure in pictures.items():
            save(figure, path)
        return [*pages, *pictures]


def papers() -> dict[str, Paper]:
    """Return the papers of every family by name."""
    claims_by_family, _ = all_claims()
    papers_by_name = {}
    for claims in claims_by_family.values():
        for paper in claims.papers:
            papers_by_name[paper.name] = paper
    return papers_by_name


class _Measurements:
    """Measurements of a paper's statements.

    Whatever cannot be measured or drawn adds a line to ``failures``.
    """

    def __init__(self, paper: Paper, quick: bool) -> None:
        self.paper = paper
        self.quick = quick
        self.options = " --quick" if quick else ""
        self.failures: list[str] = []
        self._claims: dict[Row, tuple[Claim, ...]] = {}

    def measure(self, reading: Reading) -> Reproduced:
        """Measure the rows of a statement, answer its question and draw its figure."""
        claims: list[Claim] = []
        for row in reading.rows:
            claims += self._claims_of(row)
        answered = None
        drawings: list[Drawn] = []
        if reading.question:
            question = reading.question.name
            with self._left_out(f"the question {question}"):
                answered = answer(question, quick=self.quick)
                drawings.append(self._draw_answer(answered))
        if reading.figure:
            with self._left_out(f"the figure {reading.figure}"):
                drawings.append(self._draw_figure(reading.figure))
        # pyplot would keep all figures, and show them together in a notebook.
        for drawing in drawings:
            release(drawing.figure)
        command = f'icl-theory reproduce {self.paper.name} --only "{reading.name}"'
        return Reproduced(
            reading, command + self.options, tuple(claims), answered, tuple(drawings)
        )

    def _claims_of(self, row: Row) -> tuple[Claim, ...]:
        """Return the claim of a row, or nothing if it cannot be measured."""
        # Several statements may have the same row, which may take minutes.
        if row not in self._claims:
            self._claims[row] = ()
            with self._left_out(f"the row {name_of(row)}"):
                self._claims[row] = (row(self.quick),)
        return self._claims[row]

    def _draw_answer(self, answered: Answer) -> Drawn:
        caption = f"{answered.y} against {answered.x}"
        command = answered.command + self.options
        return Drawn(answered.name, caption, command, plot_answer(answered))

    def _draw_figure(self, name: str) -> Drawn:
        figure = figures.draw(name, quick=self.quick)
        caption = figures.available()[name]
        command = f"icl-theory figures {name}{self.options}"
        return Drawn(name, caption, command, figure)

    def _left_out(self, part: str) -> AbstractContextManager[None]:
        return left_out(f"{part} of the paper {self.paper.name}", self.failures)


def reproduce(
    name: str, *, only: str | None = None, quick: bool = False
) -> Reproduction:
    """Measure every statement of a paper.

    Parameters
    ----------
    name : str
        One of `papers`.
    only : str, optional
        Name of a statement, to measure no other.
    quick : bool
        Smaller grids and shorter runs.

    Returns
    -------
    Reproduction
        Deterministic: the same page at every call.

    Raises
    ------
    ValueError
        An unknown paper or statement.

    Examples
    --------
    >>> from icl_theory.results.reproduction import reproduce
    >>> page = reproduce("nonlinear-regression", only="Equation 9", quick=True)
    >>> page.overview["tested by"]
    ['Eq. 9, concentration; loss on the event']
    >>> page.overview["verdict"]
    ['as reconstructed: holds, loose (1), holds (1)']
    """
    flag("quick", quick)
    paper = papers()[choice("paper", name, papers())]
    readings = {reading.name: reading for reading in paper.readings}
    if only is not None:
        readings = {only: readings[choice("only", only, readings)]}
    measurements = _Measurements(paper, quick)
    parts = tuple(
        measurements.measure(reading)
        for reading in counted([*readings.values()], "statements")
    )
    command = f"icl-theory reproduce {name}"
    if only is not None:
        command += f' --only "{only}"'
    command += measurements.options
    return Reproduction(paper, command, parts, tuple(measurements.failures))
