r"""Steps of the exchangeable map in closed form, at a cost that does not depend on their number.

The map u ← u + c g(u), g = a s², has an Abel function A(u + c g(u)) = A(u) + 1, so that
the number of steps from u₁ to u₂ is A(u₂) − A(u₁). While c g is small, in the *head*
and the *tail* of a run, A is expanded in its powers. The few dozen *single* steps
between head and tail are taken one by one. All operations are elementwise on whole
arrays: a point gives the same bits alone as among a million others. A pass over an
array costs more than its arithmetic, so arrays are changed in place; the order of the
operations decides the last bits of the results.
"""

from __future__ import annotations

import math
import sys
from itertools import starmap
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icl_theory._validate import (
    INT64_MAX,
    MOST_FEATURES,
    Array,
    argument_error,
    plain_numbers,
)
from icl_theory.regression.closed.flow import Place, flow_back
from icl_theory.regression.closed.polynomials import QUOTIENTS, TERMS

ROUNDING = sys.float_info.epsilon
# longest step c g of head and tail; six terms of the expansion leave 1e-9 steps
SMALL_STEP = 1.0 / 32.0
Some = NDArray[np.intp] | slice


class Count(NamedTuple):
    """Numbers of steps, their estimated absolute errors, and the least and largest number that rounding allows.

    An error is below 1 only if a single integer is possible.
    """

    steps: NDArray[np.int64]
    error: Array
    earliest: NDArray[np.int64]
    latest: NDArray[np.int64]


class StepCounter:
    r"""Iterates of ``u <- u + c a s²`` from u = 0, by number and by position.

    See docs/theory.md, "Steps in closed form".

    Parameters
    ----------
    K : int or array_like
        Number of features.
    c : float or array_like
        Step constant ``η γ K/(K-1)²``; K and c broadcast to the points of a grid.

    Examples
    --------
    >>> from icl_theory.regression.closed.abel import StepCounter
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
            raise argument_error(
                "K", K, f"numbers of features that go with c ({reason})"
            ) from None
        self.shape = each.shape
        self.K = each.ravel()
        self.c = constant.ravel()
        self._point = np.arange(self.K.size).reshape(self.shape)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            self._first = self._head()
            self._begun = np.zeros(self.K.size)
            some = np.flatnonzero(self._first)
            if some.size:
                begin, before = self._from(some, "a")
                ahead = self._first[some].astype(np.float64)
                self._begun[some] = invert(
                    self.K[some], self.c[some], begin, before, ahead, "a"
                )
            self._column, self._single, self._taken, error, self._blur = (
                self._single_steps()
            )
            start = self._begun.copy()
            if self._single.size:
                moved = chosen(self._column >= 0)
                start[moved] = self._iterates(self._taken[moved], self._column[moved])
            self._start = Place.of(start, self.K)
            self._before = series(self.c, self._start.s, "s")
            growth = self.c * self._start.growth()
            # the rounding errors of the single steps, in steps of the tail
            self._carried = np.where(growth > 0, error / growth, np.inf)
        # 2^63 more steps would not move u in float64
        self._frozen = growth * INT64_MAX <= ROUNDING * np.maximum(start, 1.0)

    def position(self, n: int | NDArray[np.int64]) -> Array:
        """The iterate u after ``n`` steps (integers that broadcast against the points)."""
        rows, shape = self._at_points("n", n)
        return np.concatenate([self._position(*row) for row in rows]).reshape(shape)

    def steps_to(self, u: ArrayLike) -> Count:
        """Numbers of steps until the iterate is at or above ``u``, at most INT64_MAX."""
        rows, shape = self._at_points("u", u)
        found = [*starmap(self._counted, rows)]
        return Count(
            *(np.concatenate(each).reshape(shape) for each in zip(*found, strict=True))
        )

    def _at_points(
        self, name: str, values: ArrayLike
    ) -> tuple[list[tuple[Array, Some]], tuple[int, ...]]:
        """Broadcast values against the points: pairs of a row of values and its points, and the shape."""
        given = plain_numbers(
            name,
            values,
            *((0.0, float(INT64_MAX)) if name == "n" else (-math.inf, math.inf)),
        )
        try:
            shape = np.broadcast_shapes(given.shape, self.shape)
        except ValueError:
            raise argument_error(
                name, values, f"of a shape that broadcasts against {self.shape}"
            ) from None
        each = np.broadcast_to(given, shape)
        if self.K.size > 1 and shape[len(shape) - len(self.shape) :] == self.shape:
            return [(row, slice(None)) for row in each.reshape(-1, self.K.size)], shape
        return [(each.ravel(), np.broadcast_to(self._point, shape).ravel())], shape

    def _position(self, steps: Array, point: Some) -> Array:
        first = self._first[point]
        taken = self._taken[point]
        last = first + taken
        result = np.array(self._begun[point])
        if self._single.size:
            moved = chosen(self._column[point] >= 0)
            single = np.minimum(
                np.maximum(steps[moved] - first[moved], 0.0), taken[moved]
            )
            result[moved] = self._iterates(
                single.astype(np.int64), self._column[_among(point, moved)]
            )
        head = steps < first
        tail = (steps > last) & ~self._frozen[point]
        for where, form in ((head, "a"), (tail, "s")):
            if where.any():
                some = chosen(where)
                at = _among(point, some)
                ahead = steps[some] if form == "a" else steps[some] - last[some]
                result[some] = invert(
                    self.K[at], self.c[at], *self._from(at, form), ahead, form
                )
        return result

    def _counted(self, goal: Array, point: Some = slice(None)) -> Count:
        """`steps_to` goals, unchecked, one for each of some points."""
        count, error, least = (np.zeros(goal.size) for _ in range(3))
        offset, early, late = (np.zeros(goal.size, dtype=np.int64) for _ in range(3))
        tail = goal > self._start.u[point]
        ahead = (goal > 0) & ~tail
        head = ahead & (goal <= self._begun[point]) & (self._first[point] > 0)
        single = chosen(ahead & ~head)
        at = _among(point, single)
        end = goal[single]
        column = self._column[at]
        if end.size:
            below = self._below(column, end)
            offset[single] = self._first[at] + below
            # iterates that equal the goal to rounding (many if steps are short) may lie
            # on either side of it
            blur = self._blur[at] + 4.0 * ROUNDING * (
                end + 1.0 / Place.of(end, self.K[at]).a
            )
            early[single] = below - self._below(column, end - blur)
            late[single] = self._below(column, end + blur) - below
            far = end + blur > self._start.u[at]
            if far.any():
                some = np.arange(goal.size)[single][far]
                late[some] = (
                    self._counted(end[far] + blur[far], _among(point, some)).latest
                    - offset[some]
                )
        for where, form in ((head, "a"), (tail, "s")):
            if not where.any():
                continue
            some = chosen(where)
            at = _among(point, some)
            c = self.c[at]
            to = Place.of(goal[some], self.K[at])
            begin, before = self._from(at, form)
            with np.errstate(
                over="ignore", invalid="ignore", divide="ignore"
            ):  # infinitely many steps
                steps = leading(c, begin, to)
                steps += series(c, to.small(form), form) - before
                # rounding of the sum, of u and of the loss it comes from, and the first
                # omitted term
                doubt = (
                    ROUNDING * (steps + (to.u + 1.0 / to.a) / to.step(c))
                    + SMALL_STEP**TERMS
                )
                if form == "s":
                    doubt += self._carried[at]
                error[some] = np.minimum(doubt, 1e18)
                least[some] = np.maximum(steps - error[some], 0.0)
            if form == "s":
                offset[some] = self._first[at] + self._taken[at]
                frozen = self._frozen[at]
                steps[frozen] = np.inf
                if frozen.any():  # unless the goal equals u to rounding
                    blur = self._blur[at] + 4.0 * ROUNDING * (to.u + 1.0 / to.a)
                    least[some] = np.where(
                        frozen,
                        np.where(to.u - begin.u <= blur, 0.0, np.inf),
                        least[some],
                    )
            count[some] = steps
        limit = (INT64_MAX - offset).astype(np.float64)
        never = ~(count < limit)
        count[never] = np.inf
        found = _rounded_up(count, offset)
        earliest = _rounded_up(least, offset - early)
        latest = _rounded_up(count + error, offset + late)
        error[single] = (early + late)[single]
        error = np.where(earliest < latest, np.ceil(error), np.where(never, 0.0, error))
        hidden = never & (earliest < latest)
        error[hidden] = (found - earliest)[hidden]
        return Count(found, error, earliest, latest)

    def _from(self, point: Some, form: str) -> tuple[Place, Array]:
        """Return where heads or tails begin, and the polynomials there."""
        if form == "s":
            return self._start.at(point), self._before[point]
        K = self.K[point]
        begin = Place.of(np.zeros(K.size), K)
        return begin, series(self.c[point], begin.a, form)

    def _iterates(self, row: NDArray[np.int64], column: NDArray[np.intp]) -> Array:
        return np.asarray(self._single.take(row * self._single.shape[1] + column))

    def _below(self, column: NDArray[np.intp], end: Array) -> NDArray[np.int64]:
        """Count the single iterates below goals by bisection: iterates do not fall, and the last is above."""
        if self.K.size == 1:
            return np.searchsorted(self._single[:, 0], end)
        count = np.zeros(end.size, dtype=np.int64)
        rows = len(self._single)
        for power in reversed(range(rows.bit_length())):
            below = (
                self._iterates(np.minimum(count + (2**power - 1), rows - 1), column)
                < end
            )
            count += below * 2**power
        return count

    def _head(self) -> NDArray[np.int64]:
        """Number of steps of the head, which has small c·g."""
        first = np.zeros(self.K.size, dtype=np.int64)
        slow_start = _long(self.c) & (self.K > 3)
        slow_start &= self.c * Place.of(np.zeros(1), self.K).growth() <= SMALL_STEP
        if slow_start.any():
            K = self.K[slow_start]
            c = self.c[slow_start]
            end = Place.of(_head_end(K, c), K)
            begin, before = self._from(np.flatnonzero(slow_start), "a")
            steps = leading(c, begin, end) + (series(c, end.a, "a") - before)
            first[slow_start] = np.floor(steps).astype(np.int64)
        return first

    def _single_steps(
        self,
    ) -> tuple[NDArray[np.intp], Array, NDArray[np.int64], Array, Array]:
        """Take the single steps of all points that have some.

        Returned are the columns of the points (-1 without steps), the iterates (rows,
        columns), their numbers, and their last and largest rounding errors.
        """
        u = self._begun
        if self.K.size == 1:
            return np.zeros(1, dtype=np.intp), *_one_point(self.K[0], self.c[0], u[0])
        error = ROUNDING * u
        taken = np.zeros(self.K.size, dtype=np.int64)
        largest = error.copy()
        column = np.full(self.K.size, -1)
        moving = np.flatnonzero(_long(self.c))
        if not moving.size:
            return column, np.empty((0, 0)), taken, error, largest
        column[moving] = np.arange(moving.size)
        u = u[moving]
        doubt = error[moving]
        others = self.K[moving] - 1.0
        c = self.c[moving]
        at = moving
        place = column[moving]
        active = np.ones(moving.size, dtype=bool)
        peak = doubt
        rows = [(place, u)]
        count = moving.size
        while True:
            step, goes_on, after = _step(others * np.exp(-u), c, u, doubt)
            goes_on &= active
            count, before = int(np.count_nonzero(goes_on)), count
            if count < before:
                some = np.flatnonzero(active > goes_on)
                stops = at.take(some)
                taken[stops], error[stops], largest[stops] = (
                    len(rows) - 1,
                    doubt.take(some),
                    peak.take(some),
                )
                active = goes_on
            if not count:
                break
            if few(count, active.size):
                some = np.flatnonzero(active)
                active = np.ones(count, dtype=bool)
                others, c, u, step, after, peak = (
                    x.take(some) for x in (others, c, u, step, after, peak)
                )
                at = at.take(some)
                place = place.take(some)
            u = u + step
            doubt = after
            peak = np.maximum(peak, doubt)
            rows.append((place, u))
        # rows beyond the last single step of a point hold further iterates or infinity
        single = np.empty((len(rows), moving.size))
        for row, (place, values) in zip(single, rows, strict=True):
            if values.size < row.size:
                row.fill(np.inf)
            row[place] = values
        return column, single, taken, error, largest


def _one_point(
    K: float, c: float, u: float
) -> tuple[Array, NDArray[np.int64], Array, Array]:
    """Take the single steps of one point with floats, which are faster than arrays of length one."""
    others = float(K) - 1.0
    c = float(c)
    u = float(u)
    path = [u]
    doubt = ROUNDING * u
    largest = doubt
    if _long(c):
        step, goes_on, after = _step(others * float(np.exp(-u)), c, u, doubt)
        while goes_on:
            u = u + step
            doubt = after
            largest = max(largest, doubt)
            path.append(u)
            step, goes_on, after = _step(others * float(np.exp(-u)), c, u, doubt)
    return (
        np.array(path)[:, None],
        np.array([len(path) - 1]),
        np.array([doubt]),
        np.array([largest]),
    )


def _long(c: Any) -> Any:
    """Whether the longest step is not small: a s² is at most 4/27, at a = 1/3."""
    return c * (4.0 / 27.0) > SMALL_STEP


def _step(w: Any, c: Any, u: Any, doubt: Any) -> tuple[Any, Any, Any]:
    """``c g(u)``, whether this is a single step, and the rounding error of u after it; w is (K - 1) exp(-u)."""
    here = Place.weighted(u, w)
    step = here.step(c)
    goes_on = (step > SMALL_STEP) | (here.a < 1.0 / 3.0)
    return (
        step,
        goes_on,
        doubt * abs(1.0 + step * (here.s - 2.0 * here.a)) + ROUNDING * (u + 5.0 * step),
    )


def _among(point: Some, some: Some) -> Some:
    """Compose two selections of points."""
    return some if isinstance(point, slice) else point[some]


def _rounded_up(count: Array, offset: NDArray[np.int64]) -> NDArray[np.int64]:
    """``offset + ceil(count)``, at most INT64_MAX."""
    steps = np.ceil(count)
    if steps.max(initial=0.0) < 2.0**62:  # False also with NaN
        return offset + steps.astype(np.int64)
    fits = steps < (INT64_MAX - offset).astype(np.float64)
    return np.where(
        fits, offset + np.where(fits, steps, 0.0).astype(np.int64), INT64_MAX
    )


def _head_end(K: Array, c: Array) -> Array:
    """The u >= 0 at which c·g first equals SMALL_STEP, by fixed-point iteration on a = SMALL_STEP/(c s²)."""
    a = SMALL_STEP / c
    for _ in range(60):
        before = a
        a = SMALL_STEP / (c * (1.0 - a) ** 2)
        if (a == before).all():
            break
    # the iteration ends slightly below the root, so below zero if c·g is SMALL_STEP at
    # u = 0
    return np.maximum(np.log(K - 1.0) + np.log(a) - np.log1p(-a), 0.0)


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
        factor = small.item()
        place = x.item()
        whole = 0.0
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
    todo = np.arange(u.size)
    active = np.ones(u.size, dtype=bool)
    low = begin.u
    high = u + 1.0
    for _ in range(200):  # some ten are enough
        here = Place.of(u, K)
        count = leading(c, begin, here)
        rise = slope(c, here)
        above = count > steps
        low = np.where(above, low, u)
        high = np.where(above, u, high)
        change = (steps - count) / rise
        early = ~(here.a > 1.0 / 3.0)
        # the count is nearly linear in 1/a at small a, and nearly exponential in u in
        # the tail
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
                begin = begin.at(left)
                active = active[left]
                todo = todo.take(left)
                K, c, steps, u, low, high = (
                    x.take(left) for x in (K, c, steps, u, low, high)
                )
    return result


def _nearly_inverted_of_one(K: Any, c: Any, begin: Place, steps: Any) -> Any:
    """`_nearly_inverted` for one point, to the same bits."""
    u = estimate = _flow_estimate(K, c, begin, steps)
    low = begin.u
    high = u + 1.0
    for _ in range(200):
        here = Place.of(u, K)
        count = leading(c, begin, here)
        rise = slope(c, here)
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
    bound = np.where(
        ratio < 1.0,
        np.minimum(bound, u1 - np.log1p(-np.minimum(ratio, 1.0 - 1e-9))),
        bound,
    )
    # beyond the peak no step is longer than the first
    bound = np.where(a > 1.0 / 3.0, np.minimum(bound, u1 + time * a * s * s), bound)
    return np.maximum(bound, u1)
