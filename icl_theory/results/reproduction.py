"""A page for a paper: its statements, commands, measurements and verdicts."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from functools import cache
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
from icl_theory.statements.audit import BINDING, answer, known, name_of
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
NAMES = {Outcome.LIMIT: "fails in a limit"}  # of outcomes whose verdict goes on
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
        """Count the claims that hold and fail, the worst first.

        They are counted separately for published and reconstructed formulas.
        """
        counts = Counter((claim.formula, claim.outcome) for claim in self.claims)
        parts = []
        for formula in dict.fromkeys(claim.formula for claim in self.claims):
            outcomes = [
                f"{NAMES.get(outcome, outcome.value)} ({counts[formula, outcome]})"
                for outcome in WORST_FIRST
                if counts[formula, outcome]
            ]
            parts.append(f"{formula}: {', '.join(outcomes)}")
        return "; ".join(parts) or "no number is claimed"

    @property
    def table(self) -> dict[str, list[str]]:
        """Return the claims by columns."""
        return {
            heading: [str(getattr(claim, name)) for claim in self.claims]
            for heading, name in COLUMNS.items()
        }


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
        """Return remarks on all statements and on reconstructed formulas."""
        notes = [self.paper.note] if self.paper.note else []
        if any(claim.formula == RECONSTRUCTED for claim in self._claims):
            notes.append(PENDING)
        return notes

    @property
    def overview(self) -> dict[str, list[str]]:
        """Return the table of statements, commands, tests and verdicts."""
        tests = [
            [c.name for c in part.claims] + [f"figure {d.name}" for d in part.drawn]
            for part in self.parts
        ]
        return {
            "statement": [part.reading.name for part in self.parts],
            "command": [part.command for part in self.parts],
            "tested by": ["; ".join(each) for each in tests],
            "verdict": [part.verdict for part in self.parts],
        }

    def to_markdown(self) -> str:
        """Return the page as Markdown; its pictures are files beside it."""
        overview = self.overview | {
            "command": [f"`{part.command}`" for part in self.parts]
        }
        lines = [f"# {self.paper.title}", self.paper.reference, *self.notes]
        lines += [f"This page is the output of `{self.command}`.", markdown(overview)]
        for part in self.parts:
            lines += [f"## {part.reading.name}", part.reading.says]
            lines += (
                [f"*Reconstructed:* {part.reading.reconstructed}"]
                if part.reading.reconstructed
                else []
            )
            lines += [f"```\n{part.command}\n```"]
            lines += [markdown(part.table)] if part.claims else []
            lines += (
                [f"*{part.answer.question}* {part.answer.answer}"]
                if part.answer
                else []
            )
            for drawn in part.drawn:
                lines += [
                    f"![{drawn.caption}]({drawn.name}.png)",
                    f"*{drawn.caption}:* `{drawn.command}`",
                ]
        lines += (
            ["## Left out", "\n".join(f"- {line}" for line in self.failures)]
            if self.failures
            else []
        )
        return "\n\n".join(filter(None, lines)) + "\n"

    def to_html(self) -> str:
        """Return the page as one HTML file that needs nothing else."""
        body = [
            *map(notebook.paragraph, (self.paper.reference, *self.notes)),
            notebook.table(self.overview),
        ]
        for part in self.parts:
            ours = part.reading.reconstructed
            said = [part.reading.says, *([f"Reconstructed: {ours}"] if ours else [])]
            body.append(
                notebook.section(part.reading.name, *map(notebook.paragraph, said))
            )
            body.append(f"<pre><code>{notebook.text(part.command)}</code></pre>")
            body += [notebook.table(part.table)] if part.claims else []
            body += (
                [notebook.paragraph(f"{part.answer.question} {part.answer.answer}")]
                if part.answer
                else []
            )
            body += [
                notebook.figure(picture(x.figure), f"{x.caption}: {x.command}")
                for x in part.drawn
            ]
        return notebook.page(
            self.paper.title, body, [self.command], version=__version__
        )

    @Progress("writing the pages")
    def write(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write both pages and the pictures of the Markdown page into a folder.

        The folder is made if it does not exist.

        Returns
        -------
        list of Path
            The files, each written whole or not at all.
        """
        figures.check_folder(folder)
        pages = [
            Path(folder, f"{self.paper.name}{ending}") for ending in (".md", ".html")
        ]
        for path, page in zip(pages, (self.to_markdown(), self.to_html()), strict=True):
            with replacing(path) as temporary:
                temporary.write_text(page, encoding="utf-8")
        pictures = {
            Path(folder, f"{drawn.name}.png"): drawn.figure
            for part in self.parts
            for drawn in part.drawn
        }
        for path, figure in pictures.items():
            save(figure, path)
        return [*pages, *pictures]


def papers() -> dict[str, Paper]:
    """Return the papers of every family by name."""
    return {
        paper.name: paper for claims in known()[0].values() for paper in claims.papers
    }


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
    begin = f"icl-theory reproduce {name}"
    end = " --quick" if quick else ""
    failures: list[str] = []

    @cache
    def measured(row: Row) -> tuple[Claim, ...]:
        with left_out(f"the row {name_of(row)} of the paper {name}", failures):
            return (row(quick),)
        return ()

    parts = []
    for reading in counted([*readings.values()], "statements"):
        claims = tuple(claim for row in reading.rows for claim in measured(row))
        found = None
        drawn = list[Drawn]()
        if reading.question:
            with left_out(
                f"the question {reading.question.name} of the paper {name}", failures
            ):
                found = answer(reading.question.name, quick=quick)
                caption = f"{found.y} against {found.x}"
                drawn.append(
                    Drawn(found.name, caption, found.command + end, plot_answer(found))
                )
        if reading.figure:
            with left_out(f"the figure {reading.figure} of the paper {name}", failures):
                figure = figures.draw(reading.figure, quick=quick)
                caption = figures.available()[reading.figure]
                command = f"icl-theory figures {reading.figure}{end}"
                drawn.append(Drawn(reading.figure, caption, command, figure))
        for each in drawn:
            release(each.figure)
        parts.append(
            Reproduced(
                reading,
                f'{begin} --only "{reading.name}"{end}',
                claims,
                found,
                tuple(drawn),
            )
        )
    chosen = "" if only is None else f' --only "{only}"'
    return Reproduction(paper, begin + chosen + end, tuple(parts), tuple(failures))
