"""A statement of the theory, and the result of a check of it on one run.

A function that measures both sides of a statement on a run becomes a `Statement` by
`stated`; its docstring is the statement.
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

OURS = "this package"


class Status(StrEnum):
    """What is claimed: an identity, an inequality, an order, or an observation."""

    EXACT = "exact"
    CERTIFIED = "certified"
    ORDER = "order-wise"
    MEASURED = "measured"


class BoundCheck(NamedTuple):
    """A statement evaluated on one run.

    Attributes
    ----------
    name, source, statement : str
        What it is called, where it comes from (paper and number, or "this package"),
        and what it says.
    kind : {"identity", "upper", "lower", "two-sided", "order-wise"}
        How ``measured`` and ``bound`` should compare.
    measured : float or None
        The measured side; None if the hypotheses fail.
    bound : float or tuple of float or None
        The other side, or the lower and the upper one; for an order-wise statement with
        its fitted constants.
    holds : bool or None
        None if the hypotheses fail; ``note`` then says which.
    slack : float or None
        Identity: relative difference. Upper and order-wise: bound / measured, for Θ the
        smaller of the ratios of the two sides. Lower: measured / bound. Two-sided:
        width of the interval relative to the measured side.
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

    @classmethod
    def of(
        cls,
        measured: float,
        bound: float | tuple[float, float],
        holds: bool,
        slack: float | None = None,
        note: str = "",
    ) -> BoundCheck:
        """Return both sides of a statement on a run; ``Statement.check`` names it."""
        return cls("", "", "", "", measured, bound, holds, slack, note)


class BoundChecks(Displayable, list[BoundCheck]):
    """A list of `BoundCheck` that notebooks show as a table."""


class UnstatedError(Exception):
    """A statement says nothing about a run, for the reason given."""


def require(condition: bool, reason: str) -> None:
    """Raise `UnstatedError` if a hypothesis of a statement fails."""
    if not condition:
        raise UnstatedError(reason)


@dataclass(frozen=True)
class Statement:
    """A statement of the theory, written once for checks of runs and rows of the audit.

    The first four attributes are those of its `BoundCheck`. ``sides`` measures both
    sides on a run, or raises `UnstatedError` if a hypothesis of the statement fails.
    The ``scope`` is the training about which it speaks, or None for any training.
    """

    name: str
    source: str
    statement: str
    kind: str
    status: Status = Status.CERTIFIED
    sides: Callable[..., BoundCheck] | None = field(default=None, kw_only=True)
    scope: Scope | None = field(default=None, kw_only=True)

    def applies(self, run: Training) -> bool:
        """Whether it speaks about the training of a run; `check` tests hypotheses."""
        return self.scope is None or self.scope.applies(run)

    def check(self, *arguments: Any) -> BoundCheck:
        """Evaluate the statement on one run.

        If it says nothing about the run, there are no figures, and the note says why.
        """
        assert self.sides is not None
        if self.scope is not None:
            reason = self.scope.why_not(arguments[0])
            if reason:
                return self.unstated(reason)
        try:
            check = self.sides(*arguments)
        except UnstatedError as error:
            return self.unstated(str(error))
        assert check.bound is not None
        figures = [check.measured, *np.atleast_1d(check.bound)]
        if not np.isfinite(np.array(figures, dtype=float)).all():
            return self.unstated("beyond the range of float64")
        # The slack alone may be infinite, if one of the sides is zero.
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
    """Make a function that measures both sides of a statement into the `Statement`.

    Its docstring is the statement.
    """

    def decorate(sides: Callable[..., BoundCheck]) -> Statement:
        return Statement(
            name, source, words(sides), kind, status, sides=sides, scope=scope
        )

    return decorate


def words(function: Callable[..., Any]) -> str:
    """Return the docstring of a function on one line."""
    return " ".join((inspect.getdoc(function) or "").split())
