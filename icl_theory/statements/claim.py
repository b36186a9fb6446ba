"""Claims that the audit measures (`Claim`) and answered open questions (`Answer`).

The audit measures statements of papers. The decorators `row` and `identity` turn a
function that measures a statement into a row of the audit, which is a function that
returns a `Claim`. The decorator `question` turns a function that returns an answer in
words, and the curves that show it, into a question.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import argument_error, instance, text
from icl_theory.engine.display import Plottable
from icl_theory.statements.numbers import decade, off
from icl_theory.statements.statement import OURS as OURS
from icl_theory.statements.statement import BoundCheck as BoundCheck
from icl_theory.statements.statement import BoundChecks as BoundChecks
from icl_theory.statements.statement import Statement as Statement
from icl_theory.statements.statement import Status as Status
from icl_theory.statements.statement import words

if TYPE_CHECKING:
    from icl_theory.engine.trajectory import Trajectory

# The value of `Claim.formula` if a formula of ours stands in for the paper's own.
RECONSTRUCTED = "as reconstructed"
# The remark of `Claim.finding` on a formula of ours that fails.
OURS_ALONE = "This concerns our formula, not the published one"
# The endings of a claim's source that mark a formula as ours and not the paper's own.
REMARKS = (
    "(reconstructed)",
    "(exact form)",
    "(our constant)",
    "(our constants)",
)
# The columns of the table of claims: each is an attribute of `Claim`.
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
    """Whether measurements confirm a statement.

    The verdict of a `Claim` begins with one of the values. The rest of the verdict may
    say in which way the statement is loose (LOOSE), and name the cases to which it is
    restricted (ONLY), the example for which it fails (COUNTEREXAMPLE), or the limit in
    which it fails (LIMIT).
    """

    # The order matters: `Claim.outcome` takes the first value with which the verdict
    # begins. So "holds" and "fails" come after the longer values that begin with them.
    LOOSE = "holds, loose"
    ONLY = "holds only"
    HOLDS = "holds"
    COUNTEREXAMPLE = "fails: counterexample"
    LIMIT = "fails for"
    FAILS = "fails"


@dataclass(frozen=True)
class Claim:
    """A statement compared with measurements on a grid of runs.

    Attributes
    ----------
    name, source, statement : str
        The name of the statement, its source (the paper and the number in it, or "this
        package"), and its words. A source ends in "(reconstructed)" if the text of the
        paper lacks the formula, so that the formula is ours. It ends in "(exact form)"
        or "(our constants)" if the paper gives only an order of magnitude.
    status : Status
        Whether the statement is an identity, an inequality, an order of magnitude or an
        observation.
    grid : str
        The cases that were measured.
    measured, bound : str
        The measured numbers, and the numbers with which they are compared, in words.
    verdict : str
        A sentence that says whether the statement holds. It begins with the value of an
        `Outcome`.
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

    @classmethod
    def of(
        cls,
        holds: Any,
        grid: str,
        measured: str,
        verdict: str = Outcome.HOLDS.value,
        bound: str = "",
    ) -> Claim:
        """Return a claim with the measurements of a row, still without a statement.

        `row` adds the name, the source and the statement, and sets the status.

        Parameters
        ----------
        holds : bool
            Whether the measurements are as expected. If they are not, the claim fails,
            and ``verdict`` is not used.
        grid, measured : str
            The cases that were measured, and the measured numbers in words.
        verdict : str
            The verdict if the measurements are as expected.
        bound : str
            The numbers with which the measured ones are compared, unless they are an
            argument of `row`.
        """
        # The words of the verdict are for success, and would be wrong after a failure.
        if not holds:
            verdict = f"{Outcome.FAILS.value}: see the column 'measured'"
        return cls(
            name="",
            source="",
            statement="",
            status=Status.MEASURED,
            grid=grid,
            measured=measured,
            bound=bound,
            verdict=verdict,
        )

    @property
    def outcome(self) -> Outcome:
        """Whether the measurements confirm the statement."""
        # One of the outcomes fits, because __post_init__ requires that the verdict
        # begins with "holds" or "fails".
        return next(kind for kind in Outcome if self.verdict.startswith(kind.value))

    @property
    def formula(self) -> str:
        """The origin of the formula that was measured.

        It is "paper" for a formula of a paper and "this package" for a statement of
        ours. It is "as reconstructed" if the source ends in one of ``REMARKS``: a
        formula of ours then stands in for the paper's.
        """
        if self.source == OURS:
            return OURS
        return RECONSTRUCTED if self.source.endswith(REMARKS) else "paper"

    @property
    def finding(self) -> str:
        """The verdict, with a remark if a formula of ours stands in for the paper's."""
        if self.formula != RECONSTRUCTED:
            return self.verdict
        # A failure of our formula must not be read or quoted as a failure of the paper.
        remark = f". {OURS_ALONE}" if self.violated else ""
        return f"{RECONSTRUCTED}: {self.verdict}{remark}"

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the table's row, in the order of ``HEADINGS``.

        The cell of the verdict shows the finding.
        """
        return tuple(
            self.finding if name == "verdict" else str(getattr(self, name))
            for name in HEADINGS
        )

    @property
    def violated(self) -> bool:
        """Whether the measurements contradict the statement."""
        return self.outcome in (Outcome.FAILS, Outcome.LIMIT, Outcome.COUNTEREXAMPLE)


# A row of the audit: a function of ``quick``, which is True to measure smaller grids.
Row = Callable[[bool], Claim]
# A generator that yields errors, or pairs (measured, expected) of arrays that should be
# equal. At its end it returns the grid of measured cases in words.
Errors = Generator[Any, None, str]


def row(
    name: str | Statement,
    source: str = OURS,
    status: Status = Status.MEASURED,
    bound: str = "",
) -> Callable[[Callable[[bool], Claim]], Row]:
    """Turn a function that measures a statement into a row of the audit.

    The function is called with ``quick``, a bool, and returns its measurements by
    `Claim.of`. Its docstring is the statement. The row adds name, source, statement
    and status to the measurements.

    Parameters
    ----------
    name, source, status, bound
        As in `Claim`. Instead of a name, a ``Statement`` may be given, so that the same
        statement serves rows and checks of runs. Its name, source, words and status are
        then used; the arguments ``source`` and ``status`` and the docstring are not.

    Returns
    -------
    callable
        A decorator, which turns the function into the row.

    Examples
    --------
    >>> from icl_theory.statements.claim import Claim, row
    >>> @row("parity", "a paper, Thm 1", bound="even")
    ... def parity(quick):
    ...     '''n(n + 1) is even'''
    ...     numbers = range(10 if quick else 100)
    ...     holds = all(n * (n + 1) % 2 == 0 for n in numbers)
    ...     return Claim.of(holds, f"n < {len(numbers)}", "all even")
    >>> parity(True).statement, parity(True).verdict
    ('n(n + 1) is even', 'holds')
    """
    instance("name", name, (str, Statement), "a text or a statement")
    text("source", source)
    instance("status", status, Status, "a Status")
    text("bound", bound)

    def decorate(measure: Callable[[bool], Claim]) -> Row:
        """Turn the function ``measure`` into a row."""
        if isinstance(name, Statement):
            statement = name
        else:
            # The kind says how a check of a run compares two numbers. A row has none.
            statement = Statement(
                name=name,
                source=source,
                statement=words(measure),
                kind="",
                status=status,
            )

        @functools.wraps(measure)
        def measured_row(quick: bool) -> Claim:
            claim = measure(quick)
            return replace(
                claim,
                name=statement.name,
                source=statement.source,
                statement=statement.statement,
                status=statement.status,
                bound=claim.bound or bound,
            )

        return measured_row

    return decorate


def identity(
    name: str | Statement, source: str = OURS, allowed: float = 1e-10
) -> Callable[[Callable[[bool], Errors]], Row]:
    """Turn a generator of errors into a row of the audit, for an exact identity.

    The generator yields errors, or pairs of arrays: measured, and expected. The error
    of a pair is the largest difference between entries of its arrays, relative to the
    expected entry. At its end the generator returns the grid of measured cases in
    words. The identity holds if the largest error is at most ``allowed``. The arguments
    ``name`` and ``source`` are as in `row`.
    """

    def decorate(cases: Callable[[bool], Errors]) -> Row:
        """Turn the function ``cases``, which returns a generator, into a row."""

        # `row` takes the statement from the docstring, which `wraps` copies from the
        # function ``cases``.
        @row(name, source, status=Status.EXACT, bound=f"{allowed:.0e}")
        @functools.wraps(cases)
        def largest_error(quick: bool) -> Claim:
            errors, grid = _errors_and_grid(cases(quick))
            largest = float(np.max(errors))  # NaN if any error is NaN
            return Claim.of(largest <= allowed, grid, f"error below {decade(largest)}")

        return largest_error

    return decorate


def _errors_and_grid(cases: Errors) -> tuple[list[float], str]:
    """Run a generator of errors to its end; return its errors and its return value."""
    errors: list[float] = []
    while True:
        # A for loop would lose the value that the generator returns at its end.
        try:
            case = next(cases)
        except StopIteration as end:
            return errors, str(end.value)
        # A case is a pair of arrays, measured and expected, or an error.
        errors.append(off(*case) if isinstance(case, tuple) else float(case))


class Series(NamedTuple):
    """A curve of a figure."""

    label: str
    x: NDArray[Any]
    y: NDArray[Any]
    points: bool = False  # whether it is drawn as points instead of a line


def curves(
    x: NDArray[Any], ordinates: Mapping[str, NDArray[Any]], points: bool = False
) -> list[Series]:
    """Return a curve for each label, all over the same abscissae x.

    ``ordinates`` has the values y of each curve by its label.
    """
    return [Series(label, x, y, points) for label, y in ordinates.items()]


def along(
    label: str, run: Trajectory, values: NDArray[Any], points: bool = False
) -> Series:
    """Return a curve of the values at the saved states of a run.

    The curve leaves out the initial state: axes of steps are logarithmic, and the step
    of this state is 0.
    """
    return Series(label, run.t[1:], values[1:], points)


def above(
    least: float, label: str, x: NDArray[Any], y: NDArray[Any], points: bool = False
) -> Series:
    """Return a curve without the points whose ordinate is at most ``least``.

    On a logarithmic axis zeros have no place, and rounding errors would take up most of
    the axis.
    """
    is_above = y > least
    return Series(label, x[is_above], y[is_above], points)


@dataclass(frozen=True)
class Answer(Plottable):
    """An open question about the theory, answered by measurement.

    Attributes
    ----------
    name : str
        Name of the question on the command line.
    question, answer : str
        The question, and the answer with its numbers, in words.
    series : tuple of Series
        The curves that show the answer.
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
    """An open question: its name on the command line, and the function that answers it.

    The function is called with ``quick``, a bool.
    """

    name: str
    answer: Callable[[bool], Answer]


def question(
    name: str, x: str, y: str, x_scale: str = "log", y_scale: str = "log"
) -> Callable[[Callable[[bool], tuple[str, Iterable[Series]]]], Question]:
    """Turn a function that returns an answer and its curves into a ``Question``.

    The function is called with ``quick``, a bool, and its docstring is the question.
    The arguments of this decorator are as in `Answer`.
    """
    text("name", name)
    text("x", x)
    text("y", y)
    text("x_scale", x_scale)
    text("y_scale", y_scale)

    def decorate(measure: Callable[[bool], tuple[str, Iterable[Series]]]) -> Question:
        """Turn the function ``measure`` into a question."""

        def answer(quick: bool) -> Answer:
            """Measure the answer, on smaller grids if ``quick`` is true."""
            sentence, series = measure(quick)
            return Answer(
                name=name,
                question=words(measure),
                answer=sentence,
                series=tuple(series),
                x=x,
                y=y,
                x_scale=x_scale,
                y_scale=y_scale,
            )

        return Question(name, answer)

    return decorate
