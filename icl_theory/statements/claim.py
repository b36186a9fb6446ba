"""Statements held against measurements: rows of the audit (`Claim`) and answered questions (`Answer`)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import argument_error, instance, text
from icl_theory.engine.display import Plottable
from icl_theory.engine.trajectory import Trajectory
from icl_theory.statements.numbers import decade, off
from icl_theory.statements.statement import OURS as OURS
from icl_theory.statements.statement import BoundCheck as BoundCheck
from icl_theory.statements.statement import BoundChecks as BoundChecks
from icl_theory.statements.statement import Statement as Statement
from icl_theory.statements.statement import Status as Status
from icl_theory.statements.statement import words

RECONSTRUCTED = "as reconstructed"
OURS_ALONE = "This concerns our formula, not the published one"
# at the end of a paper's source
REMARKS = (
    "(reconstructed)",
    "(exact form)",
    "(our constant)",
    "(our constants)",
)
HEADINGS = (
    "name",
    "source",
    "statement",
    "status",
    "grid",
    "measured",
    "bound",
    "verdict",
)


class Outcome(Enum):
    """Whether the measurements confirm a statement: how the sentence begins that says so."""

    LOOSE = "holds, loose"
    ONLY = "holds only"
    HOLDS = "holds"
    COUNTEREXAMPLE = "fails: counterexample"
    LIMIT = "fails for"  # a limit, which the verdict names
    FAILS = "fails"


@dataclass(frozen=True)
class Claim:
    """A statement compared with measurements on a grid of runs.

    Attributes
    ----------
    name, source, statement : str
        As in `BoundCheck`. A source ends in "(reconstructed)" if the text of the paper
        lacks the formula, so that it is ours, and in "(exact form)" or "(our
        constants)" if the text has an order of magnitude only.
    status : Status
        What is claimed.
    grid : str
        Where it was checked.
    measured, bound : str
        The figures, in words.
    verdict : str
        Whether it holds, in a sentence that begins with the value of an `Outcome`: of
        the first that fits.
    """

    name: str
    source: str
    statement: str
    status: Status
    grid: str
    measured: str
    bound: str
    verdict: str

    def __post_init__(self) -> None:
        if not str(self.verdict).startswith((Outcome.HOLDS.value, Outcome.FAILS.value)):
            raise argument_error(
                "verdict", self.verdict, "a sentence that begins with holds or fails"
            )

    @property
    def outcome(self) -> Outcome:
        """Whether the measurements confirm the statement."""
        return next(each for each in Outcome if self.verdict.startswith(each.value))

    @property
    def formula(self) -> str:
        """Whose formula was measured: "paper", "this package", or "as reconstructed" if ours stands for theirs."""
        if self.source == OURS:
            return OURS
        return RECONSTRUCTED if self.source.endswith(REMARKS) else "paper"

    @property
    def finding(self) -> str:
        """The verdict in words, which says whose formula it is about if that is ours and not the paper's."""
        if self.formula != RECONSTRUCTED:
            return self.verdict
        # A failure of our formula must not be read, or quoted, as one of the paper's.
        ours = f". {OURS_ALONE}" if self.violated else ""
        return f"{RECONSTRUCTED}: {self.verdict}{ours}"

    def cells(self) -> tuple[str, ...]:
        """Return all attributes as text."""
        return (*(str(getattr(self, name)) for name in HEADINGS[:-1]), self.finding)

    @property
    def violated(self) -> bool:
        """Whether the figures contradict the statement."""
        return self.outcome in (Outcome.FAILS, Outcome.LIMIT, Outcome.COUNTEREXAMPLE)


Row = Callable[[bool], Claim]


class Found(NamedTuple):
    """What the measurements of a row say.

    Attributes
    ----------
    holds : bool
        Whether they are as expected.
    grid, measured : str
        Where, and the figures in words.
    verdict : str
        The verdict if they are as expected; it begins with the value of an `Outcome`.
    bound : str
        With what the figures are to be compared, if the row itself does not say it.
    """

    holds: Any
    grid: str
    measured: str
    verdict: str = Outcome.HOLDS.value
    bound: str = ""


def row(
    name: str | Statement,
    source: str = OURS,
    status: Status = Status.MEASURED,
    bound: str = "",
) -> Callable[[Callable[[bool], Found]], Row]:
    """Make a function that measures, more quickly if asked to, a row of the audit.

    Parameters
    ----------
    name, source, status, bound
        As in `Claim`, with the docstring of the function for the statement; or a
        statement that runs are checked for, and the bound.

    Examples
    --------
    >>> from icl_theory.statements.claim import Found, row
    >>> @row("parity", "a paper, Thm 1", bound="even")
    ... def parity(quick):
    ...     '''n(n + 1) is even'''
    ...     top = 10 if quick else 100
    ...     return Found(all(n * (n + 1) % 2 == 0 for n in range(top)), f"n < {top}", "all even")
    >>> parity(True).statement, parity(True).verdict
    ('n(n + 1) is even', 'holds')
    """
    instance("name", name, (str, Statement), "a text or a statement")
    text("source", source)
    instance("status", status, Status, "a Status")
    text("bound", bound)

    def made(measure: Callable[[bool], Found]) -> Row:
        given = (
            name
            if isinstance(name, Statement)
            else Statement(name, source, words(measure), "", status)
        )

        @functools.wraps(measure)
        def measured(quick: bool) -> Claim:
            found = measure(quick)
            verdict = (
                found.verdict if found.holds else f"{Outcome.FAILS.value}: see measured"
            )
            stated = given.name, given.source, given.statement, given.status
            return Claim(
                *stated, found.grid, found.measured, found.bound or bound, verdict
            )

        return measured

    return made


Errors = Generator[Any, None, str]


def identity(
    name: str | Statement, source: str = OURS, allowed: float = 1e-10
) -> Callable[[Callable[[bool], Errors]], Row]:
    """Make a generator of errors a row of the audit: its largest one must be within what is allowed.

    The generator may also yield pairs of arrays, of which the largest relative
    difference counts. It returns the grid.
    """

    def made(errors: Callable[[bool], Errors]) -> Row:
        @row(name, source, Status.EXACT, f"{allowed:.0e}")
        @functools.wraps(errors)
        def measured(quick: bool) -> Found:
            found = []
            cases = errors(quick)
            while True:
                try:
                    found.append(
                        off(*case)
                        if isinstance(case := next(cases), tuple)
                        else float(case)
                    )
                except StopIteration as end:
                    largest = float(np.max(found))  # NaN if one is
                    return Found(
                        largest <= allowed,
                        str(end.value),
                        f"error below {decade(largest)}",
                    )

        return measured

    return made


class Series(NamedTuple):
    """A curve of a figure: label, abscissae, ordinates and whether it is drawn as points."""

    label: str
    x: NDArray[Any]
    y: NDArray[Any]
    points: bool = False


def curves(
    x: NDArray[Any], every: Mapping[str, NDArray[Any]], points: bool = False
) -> list[Series]:
    """Return curves over the same abscissae by their labels."""
    return [Series(label, x, y, points) for label, y in every.items()]


def along(
    label: str, run: Trajectory, values: NDArray[Any], points: bool = False
) -> Series:
    """Return a curve of values along a run from its first step on: axes of steps are logarithmic."""
    return Series(label, run.t[1:], values[1:], points)


def above(
    least: float, label: str, x: NDArray[Any], y: NDArray[Any], points: bool = False
) -> Series:
    """Return a curve where it is above a number: what is below is zero, or rounding, on a logarithmic axis."""
    return Series(label, x[y > least], y[y > least], points)


@dataclass(frozen=True)
class Answer(Plottable):
    """An open question about the theory, answered by measurement.

    Attributes
    ----------
    name : str
        What the command line calls it.
    question, answer : str
        In words; the answer with its figures.
    series : tuple of Series
        The curves that show it.
    x, y : str
        Labels of the axes.
    x_scale, y_scale : {"log", "linear"}
        Scales of the axes.
    """

    name: str
    question: str
    answer: str
    series: tuple[Series, ...]
    x: str
    y: str
    x_scale: str = "log"
    y_scale: str = "log"

    @property
    def command(self) -> str:
        """The command that prints the answer and draws its figure."""
        return f"icl-theory audit --question {self.name} --plot {self.name}.png"


class Question(NamedTuple):
    """An open question: what the command line calls it, and what answers it, more quickly if asked to."""

    name: str
    answer: Callable[[bool], Answer]


def question(
    name: str, x: str, y: str, x_scale: str = "log", y_scale: str = "log"
) -> Callable[[Callable[[bool], tuple[str, Iterable[Series]]]], Question]:
    """Make a function that returns an answer in words and its curves an open question.

    The docstring of the function is the question; the other arguments are as in
    `Answer`.
    """
    for argument, value in {
        "name": name,
        "x": x,
        "y": y,
        "x_scale": x_scale,
        "y_scale": y_scale,
    }.items():
        text(argument, value)

    def made(find: Callable[[bool], tuple[str, Iterable[Series]]]) -> Question:
        def answer(quick: bool) -> Answer:
            found, series = find(quick)
            return Answer(
                name, words(find), found, tuple(series), x, y, x_scale, y_scale
            )

        return Question(name, answer)

    return made
