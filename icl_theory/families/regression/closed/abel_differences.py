"""Differences of the Abel function of the exchangeable map, and their inverse, elementwise in whole arrays.

A pass over an array costs more than its arithmetic, so arrays are changed in place. The order of the operations
decides the last bits of the results.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.families.regression.closed.flow import Place, flow_back
from icl_theory.families.regression.closed.polynomials import QUOTIENTS

ROUNDING = sys.float_info.epsilon
Some = NDArray[np.intp] | slice


def chosen(where: NDArray[np.bool_]) -> Some:
    """Return the places where a condition holds; if it holds everywhere, a slice, which makes views."""
    return slice(None) if where.all() else np.flatnonzero(where)


def few(active: int, size: int, share: float = 0.8) -> bool:
    """Whether to drop the points of an array that are finished: copying pays once a fifth of them are."""
    return active < share * size


def leading(c: Array, one: Place, two: Place) -> Array:
    """``A(u2) - A(u1)`` without the polynomials: flow time and ½ ln g."""
    back = one.u - two.u
    total = np.log1p((two.w - one.w) / (1.0 + one.w))
    total *= -1.5
    total += back
    total -= flow_back(one, two, back) / c
    return total


def slope(c: Array, here: Place) -> Array:
    """Derivative of `leading` with respect to u2."""
    return 1.0 / here.step(c) + 0.5 * (here.s - 2.0 * here.a)  # type: ignore[no-any-return]


def series(c: Array, x: Array, form: str) -> Array:
    """``Σ_j c^j P_j(x)``, with P_j = x^(power j) Q_j and as a polynomial in c x^power: nothing overflows."""
    small = c * x if form == "a" else c * x * x
    if small.size == 1:  # the same arithmetic with floats, which is faster
        factor, place, whole = small.item(), x.item(), 0.0
        for quotient in reversed(QUOTIENTS[form]):
            part = quotient[0]
            for coefficient in quotient[1:]:
                part = part * place + coefficient
            whole = (whole + part) * factor
        return np.full_like(small, whole)
    total: Array | None = None
    for first, second, *others in reversed(QUOTIENTS[form]):
        value = x * first
        value += second
        for coefficient in others:
            value *= x
            value += coefficient
        if total is not None:
            value += total
        total = np.multiply(value, small, out=value)
    assert total is not None
    return total


def invert(K: Any, c: Any, begin: Place, before: Any, steps: Any, form: str) -> Array:
    """Solve ``A(u) - A(u1) = steps`` by Newton's method, first without the polynomials, which are small."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        if c.size == 1:  # the same with floats, which is faster
            K, c, before, steps = (x[0] for x in (K, c, before, steps))
            begin = Place(*(x[0] for x in begin))
            u = _nearly_inverted_of_one(K, c, begin, steps)
        else:
            u = _nearly_inverted(K, c, begin, steps)
        missing = steps + before
        for _ in range(3):
            here = Place.of(u, K)
            change = missing - series(c, here.small(form), form)
            change -= leading(c, begin, here)
            change /= slope(c, here)
            u = np.maximum(u + change, begin.u)
        return np.atleast_1d(u)


def _nearly_inverted(K: Array, c: Array, begin: Place, steps: Array) -> Array:
    """Solve ``A(u) - A(u1) = steps`` to a millionth without the polynomials, each point between its own bounds."""
    u = _flow_estimate(K, c, begin, steps)
    result = u.copy()
    todo, active = np.arange(u.size), np.ones(u.size, dtype=bool)
    low, high = begin.u, u + 1.0
    for _ in range(200):  # some ten are enough
        here = Place.of(u, K)
        count, rise = leading(c, begin, here), slope(c, here)
        above = count > steps
        low, high = np.where(above, low, u), np.where(above, u, high)
        change = (steps - count) / rise
        early = ~(here.a > 1.0 / 3.0)
        # the count is nearly linear in 1/a at small a, and nearly exponential in u in the tail
        far = (np.abs(change * rise) > 0.5 * steps) & ~early
        if early.any():
            some = chosen(early)
            change[some] = -np.log1p(-np.minimum(change[some], 0.9))
        if far.any():
            some = chosen(far)
            change[some] = count[some] / rise[some] * np.log(steps[some] / count[some])
        new = u + change
        inside = (new >= low) & (new <= high)
        u = new if inside.all() else np.where(inside, new, 0.5 * (low + high))
        on = ~(inside & (np.abs(change) <= 1e-6 * u)) & (high - low > ROUNDING * high)
        stops = active & ~on
        if stops.any():
            some = chosen(stops)
            result[todo[some]] = u[some]
            active &= on
            if few(int(np.count_nonzero(active)), active.size):
                left = np.flatnonzero(active)
                if not left.size:
                    break
                begin, active, todo = begin.at(left), active[left], todo.take(left)
                K, c, steps, u, low, high = (x.take(left) for x in (K, c, steps, u, low, high))
    return result


def _nearly_inverted_of_one(K: Any, c: Any, begin: Place, steps: Any) -> Any:
    """`_nearly_inverted` for one point, to the same bits."""
    u = estimate = _flow_estimate(K, c, begin, steps)
    low, high = begin.u, u + 1.0
    for _ in range(200):
        here = Place.of(u, K)
        count, rise = leading(c, begin, here), slope(c, here)
        low, high = (low, u) if count > steps else (u, high)
        change = (steps - count) / rise
        if not here.a > 1.0 / 3.0:
            change = -np.log1p(-np.minimum(change, 0.9))
        elif abs(change * rise) > 0.5 * steps:
            change = count / rise * np.log(steps / count)
        inside = low <= u + change <= high
        u = u + change if inside else 0.5 * (low + high)
        if (inside and abs(change) <= 1e-6 * u) or not high - low > ROUNDING * high:
            return u
    return estimate


def _flow_estimate(K: Array, c: Array, begin: Place, steps: Array) -> Array:
    """The least of three upper bounds, from gradient flow, on u after some steps from u1."""
    u1, _, a, s = begin
    time = c * steps
    # F rises by more than ½/s² does, ...
    missed = 1.0 / np.sqrt(2.0 * time + 1.0 / (s * s))
    bound = np.log(K - 1.0) + np.log1p(-missed) - np.log(missed)
    # ... and by more than -1/a does, from which u - u1 = -ln(w/w1) with w = 1/a - 1;
    ratio = time * a / s
    bound = np.where(ratio < 1.0, np.minimum(bound, u1 - np.log1p(-np.minimum(ratio, 1.0 - 1e-9))), bound)
    # beyond the peak no step is longer than the first
    bound = np.where(a > 1.0 / 3.0, np.minimum(bound, u1 + time * a * s * s), bound)
    return np.maximum(bound, u1)
