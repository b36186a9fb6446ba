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
from icl_theory.families.regression.flow import Place, flow_between
from icl_theory.families.regression.polynomials import TERMS, quotients

SMALL_STEP = 1.0 / 32.0
PEAK = 4.0 / 27.0  # of a s², at a = 1/3
ROUNDING = 2.0**-52
CROWDED = 0.8  # the least share of points still iterated among those of an array


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
            self._begun = self._begin()
            self._column, self._single, self._taken, error, self._blur = self._single_steps()
            start = self._begun.copy()
            moved = np.flatnonzero(self._column >= 0)
            start[moved] = self._single[self._taken[moved], self._column[moved]]
            self._start = Place.of(start, self.K)
            self._before = _series(self.c, self._start.s, "s")
            growth = self.c * self._start.growth()
            # what the rounding errors of the single steps amount to, in steps of the tail
            self._carried = np.where(growth > 0, error / growth, np.inf)
        # Beyond this the remaining 2^63 steps cannot move u in float64.
        self._frozen = growth * INT64_MAX <= ROUNDING * np.maximum(start, 1.0)

    def position(self, n: int | NDArray[np.int64]) -> Array:
        """The iterate u after ``n`` steps (integers that broadcast against the points)."""
        steps, point, shape = self._at_points("n", n)
        result = self._begun[point]
        last = self._first[point] + self._taken[point]
        moved = np.flatnonzero(self._column[point] >= 0)
        at = point[moved]
        single = np.clip(steps[moved] - self._first[at], 0, self._taken[at]).astype(np.int64)
        result[moved] = self._single[single, self._column[at]]
        head, tail = steps < self._first[point], (steps > last) & ~self._frozen[point]
        for where, form in ((head, "a"), (tail, "s")):
            some = np.flatnonzero(where)
            if some.size:
                at = point[some]
                ahead = steps[some] if form == "a" else (steps[some] - last[some])
                begin, before = self._from(at, form)
                result[some] = _invert(self.K[at], self.c[at], begin, before, ahead, form)
        return result.reshape(shape)

    def steps_to(self, u: ArrayLike) -> Count:
        """Numbers of steps until the iterate is at or above ``u``; INT64_MAX where it is not reached by then."""
        goal, point, shape = self._at_points("u", u)
        offset, early, late = (np.zeros(goal.size, dtype=np.int64) for _ in range(3))
        count, error = np.zeros(goal.size), np.zeros(goal.size)
        tail = goal > self._start.u[point]
        ahead = ~tail & (goal > 0)
        head = ahead & (goal <= self._begun[point]) & (self._first[point] > 0)
        single = np.flatnonzero(ahead & ~head)
        if single.size:
            at, end = point[single], goal[single]
            column = self._column[at]
            most = self._taken[at]
            below = self._below(column, end, most)
            offset[single] = self._first[at] + below
            # an iterate that is the goal to rounding may lie on either side of it
            blur = self._blur[at] + 4.0 * ROUNDING * (end + 1.0 / Place.of(end, self.K[at]).a)
            before, after = (self._single[np.clip(below - 1 + i, 0, most), column] for i in (0, 1))
            early[single] = (before >= end - blur) & (before < end)
            late[single] = (after >= end) & (after < end + blur)
        for where, form in ((head, "a"), (tail, "s")):
            some = np.flatnonzero(where)
            if some.size:
                at = point[some]
                c, to = self.c[at], Place.of(goal[some], self.K[at])
                begin, before = self._from(at, form)
                if form == "s":
                    offset[some] = self._first[at] + self._taken[at]
                with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # beyond any number of steps
                    steps = _leading(c, begin, to) + (_series(c, to.small(form), form) - before)
                    # rounding of the sum, of u and of the loss that gave u, and the first term left out
                    doubt = ROUNDING * (steps + (to.u + 1.0 / to.a) / to.step(c)) + SMALL_STEP**TERMS
                if form == "s":
                    steps[self._frozen[at]] = np.inf
                    doubt += self._carried[at]  # and of the single steps
                count[some], error[some] = steps, np.minimum(doubt, 1e18)
        never = ~(count < (INT64_MAX - offset).astype(np.float64))
        count[never], error[never] = np.inf, 0.0
        bounds = (
            (count, offset),
            (np.maximum(count - error, 0.0), offset - early),
            (count + error, offset + late),
        )
        error[single] = np.maximum(early[single], late[single])
        rounded = [_rounded_up(*bound).reshape(shape) for bound in bounds]
        return Count(rounded[0], error.reshape(shape), rounded[1], rounded[2])

    def _at_points(self, name: str, values: ArrayLike) -> tuple[Array, NDArray[np.intp], tuple[int, ...]]:
        """Broadcast values against the points: both flat, and the shape of the result."""
        given = plain_numbers(name, values, *((0.0, float(INT64_MAX)) if name == "n" else (-math.inf, math.inf)))
        try:
            shape = np.broadcast_shapes(given.shape, self.shape)
        except ValueError:
            raise refuse(name, values, f"of a shape that broadcasts against {self.shape}") from None
        return np.broadcast_to(given, shape).ravel(), np.broadcast_to(self._point, shape).ravel(), shape

    def _from(self, point: NDArray[np.intp], form: str) -> tuple[Place, Array]:
        """Where a head or the tails begin, and the polynomials there."""
        if form == "s":
            return self._start.at(point), self._before[point]
        begin = Place.of(np.zeros(point.size), self.K[point])
        return begin, _series(self.c[point], begin.a, form)

    def _below(self, column: NDArray[np.intp], end: Array, most: NDArray[np.int64]) -> NDArray[np.int64]:
        """Numbers of single iterates below some goals, ``most`` at most, by halving: iterates never fall."""
        if self.K.size == 1:
            return np.searchsorted(self._single[:, 0], end)
        low, high = np.zeros_like(most), most
        for _ in range(len(self._single).bit_length()):
            middle = (low + high) >> 1
            below = self._single[middle, column] < end
            low, high = np.where(below, middle + 1, low), np.where(below, high, middle)
        return low

    def _head(self) -> NDArray[np.int64]:
        """Number of steps before the first single one: a head with small c·g is counted."""
        first = np.zeros(self.K.size, dtype=np.int64)
        slow_start = (self.c * PEAK > SMALL_STEP) & (self.K > 3)
        slow_start &= self.c * Place.of(np.zeros(1), self.K).growth() <= SMALL_STEP
        if slow_start.any():
            K, c = self.K[slow_start], self.c[slow_start]
            end = Place.of(_head_end(K, c), K)
            begin, before = self._from(np.flatnonzero(slow_start), "a")
            steps = _leading(c, begin, end) + (_series(c, end.a, "a") - before)
            first[slow_start] = np.floor(steps).astype(np.int64)
        return first

    def _begin(self) -> Array:
        """Iterates at the ends of the heads, zero where there is none."""
        u = np.zeros(self.K.size)
        some = np.flatnonzero(self._first)
        if some.size:
            begin, before = self._from(some, "a")
            u[some] = _invert(self.K[some], self.c[some], begin, before, self._first[some].astype(np.float64), "a")
        return u

    def _single_steps(self) -> tuple[NDArray[np.intp], Array, NDArray[np.int64], Array, Array]:
        """Take the steps from the ends of the heads to the tails, of points that move.

        Columns of the points (-1 without steps), iterates (M + 1, moved), their numbers, last and largest errors.
        """
        u = self._begun
        if self.K.size == 1:
            return np.zeros(1, dtype=np.intp), *_one_point(self.K[0], self.c[0], u[0])
        error, taken = ROUNDING * u, np.zeros(self.K.size, dtype=np.int64)
        largest, column = error.copy(), np.full(self.K.size, -1)
        moving = np.flatnonzero(self.c * PEAK > SMALL_STEP)
        column[moving] = np.arange(moving.size)
        K, c, u, doubt = self.K[moving], self.c[moving], u[moving], error[moving]
        active, peak, rows = np.ones(moving.size, dtype=bool), doubt, [(column[moving], u)]
        while active.any():
            step, goes_on, after = _step(K, c, u, doubt)
            stops = np.flatnonzero(active & ~goes_on)
            at = moving[stops]
            taken[at], error[at], largest[at] = len(rows) - 1, doubt[stops], peak[stops]
            active &= goes_on
            if np.count_nonzero(active) < CROWDED * active.size:  # what has stopped is dropped now and then
                left = np.flatnonzero(active)
                moving, active = moving[left], active[left]
                K, c, u, step, after, peak = (x[left] for x in (K, c, u, step, after, peak))
            u, doubt = u + step, after
            peak = np.maximum(peak, doubt)
            rows.append((column[moving], u))
        single = np.empty((len(rows), rows[0][0].size))
        for row, (place, values) in zip(single, rows, strict=True):
            row[place] = values  # of points that have stopped, no number or one that nobody reads
        return column, single, taken, error, largest


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
    here = Place.of(u, K)
    step = here.step(c)
    goes_on = (step > SMALL_STEP) | (here.a < 1.0 / 3.0)
    return step, goes_on, doubt * abs(1.0 + step * (here.s - 2.0 * here.a)) + ROUNDING * (u + 5.0 * step)


def _rounded_up(count: Array, offset: NDArray[np.int64]) -> NDArray[np.int64]:
    """``offset + ceil(count)``, INT64_MAX where that is beyond it."""
    steps = np.ceil(count)
    fits = steps < (INT64_MAX - offset).astype(np.float64)
    if fits.all():
        return offset + steps.astype(np.int64)
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


def _leading(c: Array, one: Place, two: Place) -> Array:
    """``A(u2) - A(u1)`` without the polynomials: flow time and ½ ln g."""
    logarithm = 2.0 * (one.u - two.u) - 3.0 * np.log1p((two.w - one.w) / (1.0 + one.w))
    return np.asarray(0.5 * logarithm + flow_between(one, two) / c)


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


def _invert(K: Array, c: Array, begin: Place, before: Array, steps: Array, form: str) -> Array:
    """Solve ``A(u) - A(u1) = steps`` by Newton's method, first without the polynomials, which change little."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        u = _nearly_inverted(K, c, begin, steps)
        missing = steps + before
        for _ in range(3):
            here = Place.of(u, K)
            rest = missing - _series(c, here.small(form), form)
            u = np.maximum(u + (rest - _leading(c, begin, here)) / _slope(c, here), begin.u)
        return u


def _slope(c: Array, here: Place) -> Array:
    """Derivative of `_leading` by the place where it ends."""
    return np.asarray(1.0 / here.step(c) + 0.5 * (here.s - 2.0 * here.a))


def _nearly_inverted(K: Array, c: Array, begin: Place, steps: Array) -> Array:
    """Solve ``A(u) - A(u1) = steps`` to a millionth without the polynomials, each point between its own bounds."""
    u = _flow_estimate(K, c, begin, steps)
    result = u.copy()
    todo, active = np.arange(u.size), np.ones(u.size, dtype=bool)
    low, high = begin.u, u + 1.0
    for _ in range(200):  # some ten are enough
        here = Place.of(u, K)
        count, slope = _leading(c, begin, here), _slope(c, here)
        above = count > steps
        low, high = np.where(above, low, u), np.where(above, u, high)
        newton = (steps - count) / slope
        # the count is nearly linear in 1/a at small a, and nearly exponential in u in the tail
        in_tail = count / slope * np.log(steps / count)
        far = np.abs(newton * slope) > 0.5 * steps
        late = np.where(far, in_tail, newton)
        change = np.where(here.a > 1.0 / 3.0, late, -np.log1p(-np.minimum(newton, 0.9)))
        new = u + change
        inside = (new >= low) & (new <= high)
        u = np.where(inside, new, 0.5 * (low + high))
        on = ~(inside & (np.abs(change) <= 1e-6 * u)) & (high - low > ROUNDING * high)
        stops = np.flatnonzero(active & ~on)
        result[todo[stops]] = u[stops]
        active &= on
        if np.count_nonzero(active) < CROWDED * active.size:
            left = np.flatnonzero(active)
            if not left.size:
                break
            begin, active, todo = begin.at(left), active[left], todo[left]
            K, c, steps, u, low, high = (x[left] for x in (K, c, steps, u, low, high))
    return result


def _flow_estimate(K: Array, c: Array, begin: Place, steps: Array) -> Array:
    """An upper bound, for gradient flow, on u after some steps from u1: the least of three."""
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
