"""What a check of a theorem returns, for one run (`BoundCheck`) and for a grid of them (`Claim`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, NamedTuple

from numpy.typing import NDArray

from icl_theory.engine.trajectory import Drawn, Shown


class BoundCheck(NamedTuple):
    """A statement evaluated on one run.

    Attributes
    ----------
    name, source, statement : str
        What it is called, where it comes from (paper and number, or "this package"), and what it says.
    kind : {"identity", "upper", "lower", "two-sided", "order-wise"}
        How ``measured`` and ``bound`` should compare.
    measured : float or None
        The measured side; None where the hypotheses fail.
    bound : float or tuple of float or None
        The other side, or the lower and the upper one; for an order-wise statement with its fitted constants.
    holds : bool or None
        None where the hypotheses fail, and then ``note`` says which.
    slack : float or None
        Identity: relative difference. Upper and order-wise: bound / measured, for Θ the smaller one of the two
        sides'. Lower: measured / bound. Two-sided: width of the interval relative to what is measured.
    note : str
        Reason or remark.
    """

    name: str
    source: str
    statement: str
    kind: str
    measured: float | None
    bound: float | tuple[float, float] | None
    holds: bool | None
    slack: float | None
    note: str = ""


class UnstatedError(Exception):
    """A statement says nothing of a run, for the reason given."""


def require(condition: bool, reason: str) -> None:
    """Raise `UnstatedError` where a hypothesis of a statement fails."""
    if not condition:
        raise UnstatedError(reason)


class BoundChecks(Shown, list[BoundCheck]):
    """A list of `BoundCheck` that notebooks show as a table."""


OURS, RECONSTRUCTED = "this package", "as reconstructed"
REMARKS = ("(reconstructed)", "(exact form)", "(our constant)", "(our constants)")  # at the end of a paper's source
HEADINGS = ("name", "source", "statement", "status", "grid", "measured", "bound", "verdict")


class Status(StrEnum):
    """What is claimed: an identity, a proved inequality, an order of magnitude, or an observation."""

    EXACT = "exact"
    CERTIFIED = "certified"
    ORDER = "order-wise"
    MEASURED = "measured"


class Outcome(Enum):
    """Whether the measurements confirm a statement; the value begins the sentence that says so."""

    HOLDS = "holds"
    LOOSE = "holds, loose"
    ONLY = "holds only"
    COUNTEREXAMPLE = "fails: counterexample"
    FAILS = "fails"


class Verdict(NamedTuple):
    """An outcome, and the words that follow it."""

    outcome: Outcome
    words: str = ""

    def __str__(self) -> str:
        words = self.words.strip()
        return f"{self.outcome.value}{'' if words[:1] in ('', *':,;') else ' '}{words}"


def judged(holds: bool, outcome: Outcome = Outcome.HOLDS, words: str = "") -> Verdict:
    """Return a verdict if the measurements are as expected, and a failure if they are not."""
    return Verdict(outcome, words) if holds else Verdict(Outcome.FAILS, ": see measured")


@dataclass(frozen=True)
class Statement:
    """A statement of the theory, written down once for checks of runs and rows of the audit.

    Attributes
    ----------
    name, source, statement : str
        What it is called, where it comes from (paper and number, or "this package"), and what it says.
    kind : str
        As in `BoundCheck`.
    status : Status
        What is claimed; a proved inequality unless given.
    """

    name: str
    source: str
    statement: str
    kind: str
    status: Status = Status.CERTIFIED

    def check(
        self,
        measured: float | None = None,
        bound: float | tuple[float, float] | None = None,
        holds: bool | None = None,
        slack: float | None = None,
        note: str = "",
    ) -> BoundCheck:
        """Return its evaluation on one run; without figures ``note`` says why there are none."""
        return BoundCheck(self.name, self.source, self.statement, self.kind, measured, bound, holds, slack, note)

    def claim(self, grid: str, measured: str, bound: str, verdict: Verdict) -> Claim:
        """Return its row in the audit."""
        return Claim(self.name, self.source, self.statement, self.status, grid, measured, bound, verdict)


@dataclass(frozen=True)
class Claim:
    """A statement compared with measurements on a grid of runs.

    Attributes
    ----------
    name, source, statement : str
        As in `BoundCheck`. A source ends in "(reconstructed)" if the text of the paper lacks the formula, so that
        it is ours, and in "(exact form)" or "(our constants)" if the text has an order of magnitude only.
    status : Status
        What is claimed.
    grid : str
        Where it was checked.
    measured, bound : str
        The figures, in words.
    verdict : Verdict
        Whether it holds.
    """

    name: str
    source: str
    statement: str
    status: Status
    grid: str
    measured: str
    bound: str
    verdict: Verdict

    @property
    def formula(self) -> str:
        """Whose formula was measured: "paper", "this package", or "as reconstructed" if ours stands for theirs."""
        if self.source == OURS:
            return OURS
        return RECONSTRUCTED if self.source.endswith(REMARKS) else "paper"

    @property
    def finding(self) -> str:
        """The verdict in words; one on a reconstructed formula says so first, as it is none on the paper's own."""
        return f"{RECONSTRUCTED}: {self.verdict}" if self.formula == RECONSTRUCTED else str(self.verdict)

    def cells(self) -> tuple[str, ...]:
        """Return all attributes as text."""
        return (*(str(getattr(self, name)) for name in HEADINGS[:-1]), self.finding)

    @property
    def violated(self) -> bool:
        """Whether the figures contradict the statement."""
        return self.verdict.outcome in (Outcome.FAILS, Outcome.COUNTEREXAMPLE)


def exact_row(name: str, source: str, statement: str, grid: str, error: float, allowed: float) -> Claim:
    """Return the row of an identity whose largest relative error is given."""
    found = f"error below {decade(error)}"
    return Claim(name, source, statement, Status.EXACT, grid, found, f"{allowed:.0e}", judged(error <= allowed))


def decade(error: float) -> str:
    """Round an error up to a power of ten, 1e-16 at least: its digits differ between machines."""
    return f"1e{max(math.ceil(math.log10(max(error, 1e-300))), -16):d}"


class Series(NamedTuple):
    """A curve of a figure: label, abscissae, ordinates and whether it is drawn as points."""

    label: str
    x: NDArray[Any]
    y: NDArray[Any]
    points: bool = False


@dataclass(frozen=True)
class Answer(Drawn):
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
    x_scale : {"log", "linear"}
        Scale of the abscissa; the ordinate is logarithmic.
    """

    name: str
    question: str
    answer: str
    series: tuple[Series, ...]
    x: str
    y: str
    x_scale: str = "log"

    @property
    def command(self) -> str:
        """The command that prints the answer and draws its figure."""
        return f"icl-theory audit --question {self.name} --plot {self.name}.png"
