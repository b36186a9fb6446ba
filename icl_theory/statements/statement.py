"""A statement of the theory, and what a check of it on one run returns."""

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
    """What is claimed: an identity, a proved inequality, an order of magnitude, or an observation."""

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
        The measured side; None where the hypotheses fail.
    bound : float or tuple of float or None
        The other side, or the lower and the upper one; for an order-wise statement with
        its fitted constants.
    holds : bool or None
        None where the hypotheses fail, and then ``note`` says which.
    slack : float or None
        Identity: relative difference. Upper and order-wise: bound / measured, for Θ the
        smaller one of the two sides'. Lower: measured / bound. Two-sided: width of the
        interval relative to what is measured.
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


class BoundChecks(Displayable, list[BoundCheck]):
    """A list of `BoundCheck` that notebooks show as a table."""


class Sides(NamedTuple):
    """Both sides of a statement on one run; the attributes are those of `BoundCheck`."""

    measured: float
    bound: float | tuple[float, float]
    holds: bool
    slack: float | None = None
    note: str = ""


class UnstatedError(Exception):
    """A statement says nothing of a run, for the reason given."""


def require(condition: bool, reason: str) -> None:
    """Raise `UnstatedError` where a hypothesis of a statement fails."""
    if not condition:
        raise UnstatedError(reason)


@dataclass(frozen=True)
class Statement:
    """A statement of the theory, written down once for checks of runs and rows of the audit.

    The first four are those of its `BoundCheck`. ``sides`` measures both sides on a
    run, or raises `UnstatedError` if a hypothesis of the statement fails. The ``scope``
    is the training of which it speaks, None if of any.
    """

    name: str
    source: str
    statement: str
    kind: str
    status: Status = Status.CERTIFIED
    sides: Callable[..., Sides] | None = field(default=None, kw_only=True)
    scope: Scope | None = field(default=None, kw_only=True)

    def applies(self, run: Training) -> bool:
        """Whether it speaks of the training of a run; its other hypotheses are asked by `check`."""
        return self.scope is None or self.scope.applies(run)

    def check(self, *arguments: Any) -> BoundCheck:
        """Return its evaluation on one run; without figures the note says why there are none."""
        assert self.sides is not None
        if self.scope is not None and (reason := self.scope.why_not(arguments[0])):
            return self.unstated(reason)
        try:
            found = self.sides(*arguments)
            finite = np.isfinite([found.measured, *np.atleast_1d(found.bound)]).all()
            require(bool(finite), "beyond the range of float64")
        except UnstatedError as reason:
            return self.unstated(str(reason))
        slack = (
            found.slack
            if found.slack is not None and np.isfinite(found.slack)
            else None
        )
        return self.found(found._replace(slack=slack))

    def found(self, sides: Sides) -> BoundCheck:
        """Return the evaluation that has these sides."""
        return BoundCheck(self.name, self.source, self.statement, self.kind, *sides)

    def unstated(self, reason: str) -> BoundCheck:
        """Return the evaluation on a run of which it says nothing."""
        return BoundCheck(
            self.name,
            self.source,
            self.statement,
            self.kind,
            None,
            None,
            None,
            None,
            reason,
        )


def stated(
    name: str,
    source: str,
    kind: str,
    status: Status = Status.CERTIFIED,
    scope: Scope | None = None,
) -> Callable[[Callable[..., Sides]], Statement]:
    """Make a function that measures both sides of a statement, its docstring, the `Statement`."""
    return lambda sides: Statement(
        name, source, words(sides), kind, status, sides=sides, scope=scope
    )


def words(function: Callable[..., Any]) -> str:
    """Return the docstring of a function on one line."""
    return " ".join((inspect.getdoc(function) or "").split())
