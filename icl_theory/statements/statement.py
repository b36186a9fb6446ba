"""A statement of the theory (`Statement`), and its check on one run (`BoundCheck`).

The decorator `stated` turns a function into a `Statement`. The function measures both
sides of the statement on a run, and its docstring is the statement in words.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from icl_theory.engine.display import Displayable
from icl_theory.engine.scope import Scope, Training

# The source of a statement that is not from a paper.
OURS = "this package"


class Status(StrEnum):
    """The strength of a claim."""

    EXACT = "exact"  # an identity
    CERTIFIED = "certified"  # an inequality with all its constants
    ORDER = "order-wise"  # an order of magnitude, whose constants are fitted
    MEASURED = "measured"  # an observation


class BoundCheck(NamedTuple):
    """A statement evaluated on one run.

    Attributes
    ----------
    name, source, statement : str
        The statement's name, source (the paper and the number in it, or "this package")
        and words.
    kind : {"identity", "upper", "lower", "two-sided", "order-wise"}
        The relation between ``measured`` and ``bound`` that the statement asserts.
    measured : float or None
        The measured side; None if the hypotheses fail.
    bound : float or tuple of float or None
        The other side, or a lower and an upper bound; None if the hypotheses fail. The
        bounds of an order-wise statement contain its fitted constants.
    holds : bool or None
        Whether the relation holds; None if the hypotheses fail, and ``note`` then says
        which hypothesis.
    slack : float or None
        The distance from equality. For an identity it is the relative difference
        between the sides. For an upper bound, and for an order-wise statement, it is
        bound / measured. For a lower bound it is measured / bound. For an order-wise
        statement with two bounds it is the smaller of these two ratios. For a two-sided
        statement it is the width of the interval divided by the measured side. The
        slack is None if it is infinite or the hypotheses fail.
    note : str
        The hypothesis that fails, or a remark.
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

    @classmethod
    def of(
        cls,
        measured: float,
        bound: float | tuple[float, float],
        holds: bool,
        slack: float | None = None,
        note: str = "",
    ) -> BoundCheck:
        """Return both sides of a statement on a run.

        ``Statement.check`` adds the name, the source, the words and the kind.
        """
        return cls(
            name="",
            source="",
            statement="",
            kind="",
            measured=measured,
            bound=bound,
            holds=holds,
            slack=slack,
            note=note,
        )


class BoundChecks(Displayable, list[BoundCheck]):
    """A list of `BoundCheck`, which notebooks show as a table."""


class UnstatedError(Exception):
    """Raised if a statement says nothing about a run; the message is the reason."""


class NotCoveredError(ValueError):
    """Raised if no statement can be checked on a run.

    Either the family of the run has no statements, or they are about other risks.
    """


def require(condition: bool, reason: str) -> None:
    """Raise `UnstatedError` with a reason unless a hypothesis of a statement holds."""
    if not condition:
        raise UnstatedError(reason)


@dataclass(frozen=True)
class Statement:
    """A statement of the theory, for both checks of runs and rows of the audit.

    Attributes
    ----------
    name, source, statement, kind : str
        As in `BoundCheck`.
    status : Status
        The status of the claim that a row of the audit makes with this statement.
    sides : callable, optional
        A function of a run that measures both sides and returns them in a `BoundCheck`,
        or raises `UnstatedError` if a hypothesis of the statement fails. A statement
        without this function serves only rows of the audit.
    scope : Scope, optional
        The training to which the statement applies; None for any training.
    """

    name: str
    source: str
    statement: str
    kind: str
    status: Status = Status.CERTIFIED
    sides: Callable[..., BoundCheck] | None = field(default=None, kw_only=True)
    scope: Scope | None = field(default=None, kw_only=True)

    def applies(self, run: Training) -> bool:
        """Whether the statement covers the training of a run.

        `check` also tests the hypotheses of the statement; this method does not.
        """
        return self.scope is None or self.scope.applies(run)

    def check(self, *arguments: Any) -> BoundCheck:
        """Evaluate the statement on one run.

        The arguments are passed to ``sides``. The first of them is the run. If the
        statement says nothing about this run, the check has no numbers, and its note
        says why.
        """
        # Only statements that have the function ``sides`` are checked on runs.
        assert self.sides is not None
        # For training outside the scope of the statement, its sides may not even be
        # defined, so they are not measured.
        if self.scope is not None:
            reason = self.scope.why_not(arguments[0])
            if reason:
                return self.unstated(reason)
        try:
            check = self.sides(*arguments)
        except UnstatedError as error:
            return self.unstated(str(error))
        assert check.bound is not None
        # A side that is infinite or NaN comes from an overflow. A comparison with an
        # infinite side could confirm the statement for any value of the other side.
        numbers = [check.measured, *np.atleast_1d(check.bound)]
        if not np.isfinite(np.array(numbers, dtype=float)).all():
            return self.unstated("beyond the range of float64")
        # The slack is a ratio, which is infinite if its denominator is zero.
        if check.slack is not None and not np.isfinite(check.slack):
            check = check._replace(slack=None)
        return self.complete(check)

    def complete(self, check: BoundCheck) -> BoundCheck:
        """Return a check with the name, source, words and kind of this statement."""
        return check._replace(
            name=self.name,
            source=self.source,
            statement=self.statement,
            kind=self.kind,
        )

    def unstated(self, reason: str) -> BoundCheck:
        """Return the check of a run about which the statement says nothing."""
        return BoundCheck(
            name=self.name,
            source=self.source,
            statement=self.statement,
            kind=self.kind,
            measured=None,
            bound=None,
            holds=None,
            slack=None,
            note=reason,
        )


def stated(
    name: str,
    source: str,
    kind: str,
    status: Status = Status.CERTIFIED,
    scope: Scope | None = None,
) -> Callable[[Callable[..., BoundCheck]], Statement]:
    """Turn a function that measures both sides on a run into a `Statement`.

    The docstring of the function is the statement; the arguments of this decorator are
    as in `Statement`.
    """

    def decorate(sides: Callable[..., BoundCheck]) -> Statement:
        """Return the statement whose sides a function measures."""
        return Statement(
            name, source, words(sides), kind, status, sides=sides, scope=scope
        )

    return decorate


def words(function: Callable[..., Any]) -> str:
    """Return the docstring of a function on one line."""
    return " ".join((inspect.getdoc(function) or "").split())
