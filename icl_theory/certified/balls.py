"""Arrays and matrices of balls; inequalities proved on intervals by subdivision, and roots between signs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from flint import arb, arb_mat, ctx
from numpy.typing import NDArray

Balls = NDArray[Any]  # of arb


def balls(values: Any) -> Balls:
    """Return an array of balls; doubles and integers are taken as they are, exactly."""
    given = np.asarray(values)
    return given if given.dtype == object else np.asarray(np.frompyfunc(arb, 1, 1)(given), dtype=object)


def product(left: Balls, right: Balls) -> Balls:
    """Return the product of two matrices, some ten times as fast as NumPy makes it."""
    one, two = (arb_mat(len(each), each.shape[1], each.ravel().tolist()) for each in (left, right))
    found = np.empty((one.nrows(), two.ncols()), dtype=object)
    found.ravel()[:] = (one * two).entries()
    return found


def around(error: arb) -> arb:
    """Return the ball of all numbers up to ``error`` in size."""
    return arb(0, error.abs_upper())


def _between(low: arb, high: arb) -> arb:
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
        if holds(_between(low, high)):
            continue
        middle = ((low + high) / 2).mid()
        if done > most or not low < middle < high:
            return done, _between(low, high)
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
    return _between(low, high) + around((high - low) * 8 + abs(high) * arb(2) ** (12 - ctx.prec))
