"""Arrays and matrices of balls; inequalities proved on intervals by subdivision, and zeros between signs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from flint import arb, arb_mat, arb_series
from numpy.typing import NDArray

Balls = NDArray[Any]  # of arb


def balls(values: Any) -> Balls:
    """Return an array of balls; doubles and integers are taken as they are, exactly."""
    given = np.asarray(values)
    return given if given.dtype == object else np.asarray(np.frompyfunc(arb, 1, 1)(given), dtype=object)


def product(left: Balls, right: Balls) -> Balls:
    """Return the product of two matrices, some ten times as fast as NumPy makes it, or of two diagonals."""
    if left.ndim == 1:
        return left * right
    one, two = (arb_mat(len(each), each.shape[1], each.ravel().tolist()) for each in (left, right))
    return np.reshape(np.array((one * two).entries(), dtype=object), (len(left), right.shape[1]))


def around(error: arb) -> arb:
    """Return the ball of all numbers up to ``error`` in size."""
    return arb(0, error.abs_upper())


def everywhere(holds: Callable[[arb], bool], low: arb, high: arb, most: int = 10**6) -> int:
    """Prove an inequality on an interval, which is halved where balls do not decide; return the number of pieces.

    `ArithmeticError` names a piece that is not proved and cannot be halved, or is one more than ``most``.
    """
    todo, done = [(low, high)], 0
    while todo:
        low, high = todo.pop()
        done += 1
        if not holds(low.union(high)):
            middle = ((low + high) / 2).mid()
            if done > most or not low < middle < high:
                raise ArithmeticError(f"not proved at {low.union(high).str(10)}")
            todo += [(low, middle), (middle, high)]
    return done


def only_zero(function: Callable[[Any], Any], low: arb, high: arb) -> arb:
    """Enclose the zero at which a function turns from positive to negative, and prove that there is no other.

    The function takes balls and power series of balls.
    """
    try:
        zeros = arb_series.find_roots(function, low, high)
    except ValueError:  # a sign is not known, or a zero is not simple
        zeros = []
    if len(zeros) != 1 or not function(low) > 0:
        raise ArithmeticError(f"not proved at {low.union(high).str(10)}: a single zero")
    found, before = zeros[0][0].union(zeros[0][1]), arb.pos_inf()
    while found.rad() < 0.9 * before:  # Newton's method on intervals, which halves one unless only rounding is left
        before, middle = found.rad(), found.mid()
        found = found.intersection(middle - function(middle) / function(arb_series([found, 1], prec=2))[1])
    return found
