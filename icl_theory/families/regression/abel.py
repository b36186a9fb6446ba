r"""Steps of the exchangeable map in closed form, at a cost that does not depend on their number.

The map u ← u + c g(u), g = a s², has an Abel function A(u + c g(u)) = A(u) + 1, so that the number of steps from
u₁ to u₂ is A(u₂) − A(u₁). Its expansion in powers of c g is used where c g is small; the few dozen steps where it
is not are taken one by one. Everything is elementwise in whole arrays: a point gives the same bits alone as among a
million others.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icl_theory._validate import INT64_MAX, MOST_FEATURES, Array, plain_numbers, refuse
from icl_theory.families.regression.flow import flow_difference
from icl_theory.families.regression.polynomials import TERMS, quotients

SMALL_STEP = 1.0 / 32.0
PEAK = 4.0 / 27.0  # of a s², at a = 1/3
ROUNDING = 2.0**-52


class Count(NamedTuple):
    """Numbers of steps, estimates of their absolute errors before rounding up, and what those leave possible."""

    steps: NDArray[np.int64]
    error: Array
    earliest: NDArray[np.int64]
    latest: NDArray[np.int64]


class StepCounter:
    r"""Iterates of ``u <- u + c a s²`` from u = 0, by number and by position.

    Parameters
    ----------
    K : int or array_like
        Number of features.
    c : float or array_like
        Step constant ``η γ K/(K-1)²``; K and c broadcast to the points of a grid.

    References
    ----------
    docs/theory.md, "Steps in closed form".

    Examples
    --------
    >>> from icl_theory.families.regression.abel import StepCounter
    >>> counter = StepCounter(20, c=0.443)
    >>> int(counter.steps_to(counter.position(10**12)).steps) - 10**12 in (0, 1)
    True
    >>> StepCounter([5, 20], c=0.1).steps_to(3.0).steps
    array([397, 307])
    """

    def __init__(self, K: ArrayLike, c: ArrayLike) -> None:
        numbers = plain_numbers("K", K, 2.0, MOST_FEATURES), plain_numbers("c", c)
        try:
            each, constant = np.broadcast_arrays(*numbers)
        except ValueError as reason:
            raise refuse("K", K, f"numbers of features that go with c ({reason})") from None
        self.shape = each.shape
        self.K, self.c = each.ravel(), constant.ravel()
        self._point = np.arange(self.K.size).reshape(self.shape)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            self._first = self._head()
            self._single, self._taken, error, self._blur = self._single_steps()
            self._start = self._single[-1]
            growth = self.c * self._growth(self._start)
            # what the rounding errors of the single steps amount to, in steps of the tail
            self._carried = np.where(growth > 0, error / growth, np.inf)
        # Beyond this the remaining 2^63 steps cannot move u in float64.
        self._frozen = growth * INT64_MAX <= ROUNDING * np.maximum(self._start, 1.0)

    def position(self, n: int | NDArray[np.int64]) -> Array:
        """The iterate u after ``n`` steps (integers that broadcast against the points)."""
        steps, point, shape = self._at_points("n", n)
        single = np.clip(steps - self._first[point], 0, self._taken[point]).astype(np.int64)
        result = self._single[single, point]
        last = self._first[point] + self._taken[point]
        head, tail = steps < self._first[point], (steps > last) & ~self._frozen[point]
        for where, form in ((head, "a"), (tail, "s")):
            if where.any():
                at = point[where]
                begin = np.zeros(at.size) if form == "a" else self._start[at]
                ahead = steps[where] if form == "a" else (steps - last)[where]
                result[where] = _invert(self.K[at], self.c[at], begin, ahead, form)
        return result.reshape(shape)

    def steps_to(self, u: ArrayLike) -> Count:
        """Numbers of steps until the iterate is at or above ``u``; INT64_MAX where it is not reached by then."""
        goal, point, shape = self._at_points("u", u)
        offset, early, late = (np.zeros(goal.size, dtype=np.int64) for _ in range(3))
        count, error = np.zeros(goal.size), np.zeros(goal.size)
        tail = goal > self._start[point]
        head = ~tail & (goal > 0) & (goal <= self._single[0, point]) & (self._first[point] > 0)
        single = ~tail & ~head & (goal > 0)
        if single.any():
            at, end = point[single], goal[single]
            below = np.sum(self._single[:, at] < end, axis=0)  # the first ones: iterates never fall
            offset[single] = self._first[at] + below
            # an iterate that is the goal to rounding may lie on either side of it
            blur = self._blur[at] + 4.0 * ROUNDING * (end + 1.0 / _attention(self.K[at], end)[0])
            before, after = (
                self._single[np.minimum(np.maximum(below - 1 + i, 0), len(self._single) - 1), at] for i in (0, 1)
            )
            early[single] = (before >= end - blur) & (before < end)
            late[single] = (after >= end) & (after < end + blur)
            error[single] = np.maximum(early, late)[single]
        for where, form in ((head, "a"), (tail, "s")):
            if not where.any():
                continue
            at, end = point[where], goal[where]
            K, c, begin = self.K[at], self.c[at], np.zeros(at.size)
            if form == "s":
                offset[where], begin = self._first[at] + self._taken[at], self._start[at]
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # beyond any number of steps
                steps = _abel(K, c, begin, end, form)
                a, s = _attention(K, end)
                # rounding of the sum, of u and of the loss that u was computed from, and the first term left out
                doubt = ROUNDING * (steps + (end + 1.0 / a) / (c * a * s * s)) + SMALL_STEP**TERMS
            if form == "s":
                steps[self._frozen[at]] = np.inf
                doubt += self._carried[at]  # and of the single steps
            count[where], error[where] = steps, np.minimum(doubt, 1e18)
        never = ~(count < (INT64_MAX - offset).astype(np.float64))
        count[never], error[never] = np.inf, 0.0
        bounds = (
            (count, offset),
            (np.where(single, 0.0, np.maximum(count - error, 0.0)), offset - early),
            (np.where(single, 0.0, count + error), offset + late),
        )
        rounded = [_rounded_up(*bound).reshape(shape) for bound in bounds]
        return Count(rounded[0], error.reshape(shape), rounded[1], rounded[2])

    def _at_points(self, name: str, values: ArrayLike) -> tuple[Array, NDArray[np.intp], tuple[int, ...]]:
        """Broadcast values against the points: both flat, and the shape of the result."""
        given = plain_numbers(name, values, 0.0 if name == "n" else -math.inf)
        try:
            shape = np.broadcast_shapes(given.shape, self.shape)
        except ValueError:
            raise refuse(name, values, f"of a shape that broadcasts against {self.shape}") from None
        return np.broadcast_to(given, shape).ravel(), np.broadcast_to(self._point, shape).ravel(), shape

    def _growth(self, u: Array) -> Array:
        a, s = _attention(self.K, u)
        return a * s * s

    def _head(self) -> NDArray[np.int64]:
        """Number of steps before the first single one: a head with small c·g is counted."""
        first = np.zeros(self.K.size, dtype=np.int64)
        slow_start = (self.c * PEAK > SMALL_STEP) & (self.K > 3)
        slow_start &= self.c * self._growth(np.zeros(1)) <= SMALL_STEP
        if slow_start.any():
            K, c = self.K[slow_start], self.c[slow_start]
            first[slow_start] = np.floor(_abel(K, c, np.zeros(K.size), _head_end(K, c), "a")).astype(np.int64)
        return first

    def _single_steps(self) -> tuple[Array, NDArray[np.int64], Array, Array]:
        """Iterates from the end of the head to the tail, (M + 1, P), their number, their last and largest error."""
        u = np.zeros(self.K.size)
        begun = self._first > 0
        if begun.any():
            K, c = self.K[begun], self.c[begun]
            u[begun] = _invert(K, c, np.zeros(K.size), self._first[begun].astype(np.float64), "a")
        if self.K.size == 1:
            return _one_point(self.K[0], self.c[0], u[0])
        rows, error = [u], ROUNDING * u
        largest = error.copy()
        taken = np.zeros(self.K.size, dtype=np.int64)
        moving = np.flatnonzero(self.c * PEAK > SMALL_STEP)
        K, c, u, doubt = self.K[moving], self.c[moving], u[moving], error[moving]
        while moving.size:
            step, goes_on, after = _step(K, c, u, doubt)
            if not goes_on.all():
                error[moving[~goes_on]] = doubt[~goes_on]
                moving, K, c, u, step, after = (x[goes_on] for x in (moving, K, c, u, step, after))
            if moving.size:
                u, doubt = u + step, after
                largest[moving] = np.maximum(largest[moving], doubt)
                taken[moving] += 1
                rows.append(rows[-1].copy())
                rows[-1][moving] = u
        return np.array(rows), taken, error, largest


def _one_point(K: float, c: float, u: float) -> tuple[Array, NDArray[np.int64], Array, Array]:
    """Take the single steps of one point, as `StepCounter` does those of many: arrays of one cost more."""
    path, doubt = [u], ROUNDING * u
    largest = doubt
    if c * PEAK > SMALL_STEP:
        step, goes_on, after = _step(K, c, u, doubt)
        while goes_on:
            u, doubt = u + step, after
            largest = max(largest, doubt)
            path.append(u)
            step, goes_on, after = _step(K, c, u, doubt)
    return np.array(path)[:, None], np.array([len(path) - 1]), np.array([doubt]), np.array([largest])


def _step(K: Any, c: Any, u: Any, doubt: Any) -> tuple[Any, Any, Any]:
    """``c g(u)``, whether it is taken singly, and the rounding error of u after it."""
    a, s = _attention(K, u)
    step = c * a * s * s
    goes_on = (step > SMALL_STEP) | (a < 1.0 / 3.0)
    return step, goes_on, doubt * abs(1.0 + step * (s - 2.0 * a)) + ROUNDING * (u + 5.0 * step)


def _attention(K: Any, u: Any) -> tuple[Any, Any]:
    """``(a, 1 - a)`` for u >= 0."""
    w = (K - 1.0) * np.exp(-u)
    return 1.0 / (1.0 + w), w / (1.0 + w)


def _rounded_up(count: Array, offset: NDArray[np.int64]) -> NDArray[np.int64]:
    """``offset + ceil(count)``, INT64_MAX where that is beyond it."""
    steps = np.ceil(count)
    fits = steps < (INT64_MAX - offset).astype(np.float64)
    return np.where(fits, offset + np.where(fits, steps, 0.0).astype(np.int64), INT64_MAX)


def _head_end(K: Array, c: Array) -> Array:
    """The u >= 0 at which c·g first equals SMALL_STEP, by fixed-point iteration on a = SMALL_STEP/(c s²)."""
    a = SMALL_STEP / c
    for _ in range(60):
        before, a = a, SMALL_STEP / (c * (1.0 - a) ** 2)
        if (a == before).all():
            break
    # the iteration ends a little below the root: where c·g is SMALL_STEP at u = 0 already, below zero
    return np.maximum(np.log(K - 1.0) + np.log(a) - np.log1p(-a), 0.0)


def _abel(K: Array, c: Array, u1: Array, u2: Array, form: str) -> Array:
    """``A(u2) - A(u1)``; polynomials in a for a head, in s for a tail, where each is small."""
    x1, x2 = (_attention(K, u)[form == "s"] for u in (u1, u2))
    return _leading(K, c, u1, u2) + (_series(c, x2, form) - _series(c, x1, form))


def _leading(K: Array, c: Array, u1: Array, u2: Array) -> Array:
    """``A(u2) - A(u1)`` without the polynomials: flow time and ½ ln g."""
    w1, w2 = (K - 1.0) * np.exp(-u1), (K - 1.0) * np.exp(-u2)
    logarithm = 2.0 * (u1 - u2) - 3.0 * np.log1p((w2 - w1) / (1.0 + w1))
    return 0.5 * logarithm + flow_difference(u1, u2, K) / c


def _series(c: Array, x: Array, form: str) -> Array:
    """``Σ_j c^j P_j(x)``, with P_j = x^(power j) Q_j and as a polynomial in c x^power: nothing overflows."""
    small = c * x if form == "a" else c * x * x
    if small.size == 1:  # the same arithmetic without arrays, of which each costs as much as all of it
        return np.full_like(small, _series_of_one(small.item(), x.item(), form))
    total = np.zeros_like(small)
    for quotient in reversed(quotients(form)):
        value = np.full_like(small, quotient[0])
        for coefficient in quotient[1:]:
            value *= x
            value += coefficient
        total += value
        total *= small
    return total


def _series_of_one(small: float, x: float, form: str) -> float:
    total = 0.0
    for quotient in reversed(quotients(form)):
        value = quotient[0]
        for coefficient in quotient[1:]:
            value = value * x + coefficient
        total = (total + value) * small
    return total


def _invert(K: Array, c: Array, u1: Array, steps: Array, form: str) -> Array:
    """Solve ``A(u) - A(u1) = steps`` by Newton's method, first without the polynomials, which change little."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        u = _nearly_inverted(K, c, u1, steps)
        missing = steps + _series(c, _attention(K, u1)[form == "s"], form)
        for _ in range(3):
            a, s = _attention(K, u)
            slope = 1.0 / (c * a * s * s) + 0.5 * (s - 2.0 * a)
            rest = missing - _series(c, s if form == "s" else a, form)
            u = np.maximum(u + (rest - _leading(K, c, u1, u)) / slope, u1)
        return u


def _nearly_inverted(K: Array, c: Array, u1: Array, steps: Array) -> Array:
    """Solve ``A(u) - A(u1) = steps`` to a millionth without the polynomials, each point between its own bounds."""
    u = _flow_estimate(K, c, u1, steps)
    result = u.copy()
    todo = np.arange(u.size)
    low, high = u1, u + 1.0
    for _ in range(200):  # some ten are enough
        count = _leading(K, c, u1, u)
        a, s = _attention(K, u)
        slope = 1.0 / (c * a * s * s) + 0.5 * (s - 2.0 * a)
        above = count > steps
        low, high = np.where(above, low, u), np.where(above, u, high)
        newton = (steps - count) / slope
        # the count is nearly linear in 1/a at small a, and nearly exponential in u in the tail
        in_tail = count / slope * np.log(steps / count)
        far = np.abs(newton * slope) > 0.5 * steps
        change = np.where(a > 1.0 / 3.0, np.where(far, in_tail, newton), -np.log1p(-np.minimum(newton, 0.9)))
        new = u + change
        inside = (new >= low) & (new <= high)
        u = np.where(inside, new, 0.5 * (low + high))
        on = ~(inside & (np.abs(change) <= 1e-6 * u)) & (high - low > ROUNDING * high)
        if not on.all():
            result[todo] = u
            todo = todo[on]
            if not todo.size:
                break
            K, c, u1, steps, u, low, high = (x[on] for x in (K, c, u1, steps, u, low, high))
    return result


def _flow_estimate(K: Array, c: Array, u1: Array, steps: Array) -> Array:
    """An upper bound, for gradient flow, on u after some steps from u1: the least of three."""
    a, s = _attention(K, u1)
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
