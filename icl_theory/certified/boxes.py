"""Inequalities proved on intervals by subdivision, and roots between changes of sign by bisection."""

from __future__ import annotations

from collections.abc import Callable

from flint import arb, ctx


def around(error: arb) -> arb:
    """Return the ball of all numbers up to ``error`` in size."""
    return arb(0, error.abs_upper())


def ball(low: arb, high: arb) -> arb:
    """Return a ball that holds an interval."""
    return (low + high) / 2 + around((high - low) / 2)


def everywhere(holds: Callable[[arb], bool], low: arb, high: arb, most: int = 10**6) -> tuple[int, arb | None]:
    """Prove an inequality on an interval, which is halved where balls do not decide.

    Returned are the number of pieces, and the first that is not proved and cannot be halved, or is one more than
    ``most``; None if the inequality is proved.
    """
    todo, done = [(low, high)], 0
    while todo:
        low, high = todo.pop()
        done += 1
        if holds(ball(low, high)):
            continue
        middle = ((low + high) / 2).mid()
        if done > most or not low < middle < high:
            return done, ball(low, high)
        todo += [(low, middle), (middle, high)]
    return done, None


def root(function: Callable[[arb], arb], low: arb, high: arb) -> arb:
    """Return a ball with a root of a continuous function, whose ends are far enough apart for signs to be seen."""
    rises = function(low) < 0 and function(high) > 0
    if not rises and not (function(low) > 0 and function(high) < 0):
        raise ArithmeticError("no change of sign is seen")
    while low < (middle := ((low + high) / 2).mid()) < high:
        value = function(middle)
        if not (value < 0 or value > 0):
            break  # too near to the root for this precision
        low, high = (middle, high) if (value < 0) == rises else (low, middle)
    return ball(low, high) + around((high - low) * 8 + abs(high) * arb(2) ** (12 - ctx.prec))
