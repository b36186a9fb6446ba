r"""Steps of the exchangeable map in closed form, at a cost independent of their number.

The map u ← u + c g(u), g = a s², has an Abel function A(u + c g(u)) = A(u) + 1, so that
the number of steps from u₁ to u₂ is A(u₂) − A(u₁). While c g is small, in the *head*
and the *tail* of a run, A is expanded in its powers (`abel_function`). The few dozen
*single* steps between head and tail are taken one by one (`single_steps`). All
operations are elementwise on whole arrays: a point gives the same bits alone as among a
million others.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icl_theory._validate import (
    INT64_MAX,
    MOST_FEATURES,
    Array,
    argument_error,
    plain_numbers,
)
from icl_theory.regression.closed.abel_function import (
    ROUNDING,
    Selection,
    invert,
    leading,
    selection,
    series,
)
from icl_theory.regression.closed.flow import Place
from icl_theory.regression.closed.polynomials import TERMS
from icl_theory.regression.closed.single_steps import (
    SMALL_STEP,
    SingleSteps,
    has_long_steps,
)

# Largest error that is reported of a number of steps.
LARGEST_ERROR = 1e18

Steps = NDArray[np.int64]


class Count(NamedTuple):
    """Numbers of steps, their errors, and the range that rounding allows.

    The estimated absolute error is below 1 only if a single integer is possible.
    """

    steps: Steps
    error: Array
    # The least and the largest number that rounding allows.
    earliest: Steps
    latest: Steps


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
        features = plain_numbers("K", K, 2.0, MOST_FEATURES)
        constants = plain_numbers("c", c)
        try:
            features, constants = np.broadcast_arrays(features, constants)
        except ValueError as reason:
            raise argument_error(
                "K", K, f"numbers of features that go with c ({reason})"
            ) from None
        self.shape = features.shape
        self.K = features.ravel()
        self.c = constants.ravel()
        self._point = np.arange(self.K.size).reshape(self.shape)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            # The number of steps of the head, and u after them.
            self._head_steps = self._count_head()
            self._head_end = self._end_of_head()
            self._single = SingleSteps.of(self.K, self.c, self._head_end)
            # Where the tail begins, and the polynomials there.
            start = self._start_of_tail()
            self._tail = Place.of(start, self.K)
            self._tail_series = series(self.c, self._tail.s, "s")
            # The rounding errors of the single steps, in steps of the tail.
            step = self.c * self._tail.growth()
            error = self._single.error
            self._tail_error = np.where(step > 0, error / step, np.inf)
        # 2^63 more steps would not move u in float64.
        self._frozen = step * INT64_MAX <= ROUNDING * np.maximum(start, 1.0)

    def position(self, n: int | Steps) -> Array:
        """The iterate u after ``n`` steps, which broadcast against the points."""
        numbers = plain_numbers("n", n, 0.0, float(INT64_MAX))
        rows, shape = self._rows("n", n, numbers)
        positions = []
        for steps, points in rows:
            positions.append(self._position(steps, points))
        return np.concatenate(positions).reshape(shape)

    def steps_to(self, u: ArrayLike) -> Count:
        """Numbers of steps until the iterate is ``u`` or more, at most INT64_MAX."""
        numbers = plain_numbers("u", u, -math.inf, math.inf)
        rows, shape = self._rows("u", u, numbers)
        counts = []
        for goals, points in rows:
            counts.append(self._count(goals, points))
        columns = zip(*counts, strict=True)
        fields = [np.concatenate(column).reshape(shape) for column in columns]
        return Count(*fields)

    def _rows(
        self, name: str, values: ArrayLike, numbers: Array
    ) -> tuple[list[tuple[Array, Selection]], tuple[int, ...]]:
        """Broadcast numbers: return rows with their points, and the shape of all."""
        try:
            shape = np.broadcast_shapes(numbers.shape, self.shape)
        except ValueError:
            raise argument_error(
                name, values, f"of a shape that broadcasts against {self.shape}"
            ) from None
        full = np.broadcast_to(numbers, shape)
        last_axes = shape[len(shape) - len(self.shape) :]
        if self.K.size > 1 and last_axes == self.shape:
            # Each row has one number for every point.
            rows = full.reshape(-1, self.K.size)
            return [(row, slice(None)) for row in rows], shape
        points = np.broadcast_to(self._point, shape).ravel()
        return [(full.ravel(), points)], shape

    def _count_head(self) -> Steps:
        """Numbers of steps of the heads, in which c g is small; 0 without a head."""
        count = np.zeros(self.K.size, dtype=np.int64)
        start = Place.of(np.zeros(1), self.K)
        # For K = 2 and 3 the run begins at the peak of g or beyond.
        has_head = has_long_steps(self.c) & (self.K > 3)
        has_head &= self.c * start.growth() <= SMALL_STEP
        if has_head.any():
            K = self.K[has_head]
            c = self.c[has_head]
            end = Place.of(_end_of_small_steps(K, c), K)
            begin, before = self._begin(np.flatnonzero(has_head), "a")
            steps = leading(c, begin, end) + (series(c, end.a, "a") - before)
            count[has_head] = np.floor(steps).astype(np.int64)
        return count

    def _end_of_head(self) -> Array:
        u = np.zeros(self.K.size)
        points = np.flatnonzero(self._head_steps)
        if points.size:
            begin, before = self._begin(points, "a")
            steps = self._head_steps[points].astype(np.float64)
            u[points] = invert(
                self.K[points], self.c[points], begin, before, steps, "a"
            )
        return u

    def _start_of_tail(self) -> Array:
        single = self._single
        u = self._head_end.copy()
        if single.iterates.size:
            moved = selection(single.column >= 0)
            u[moved] = single.at(single.taken[moved], single.column[moved])
        return u

    def _begin(self, points: Selection, form: str) -> tuple[Place, Array]:
        """Where heads (form "a") or tails ("s") begin, and the polynomials there."""
        if form == "s":
            return self._tail.at(points), self._tail_series[points]
        K = self.K[points]
        begin = Place.of(np.zeros(K.size), K)
        return begin, series(self.c[points], begin.a, form)

    def _position(self, steps: Array, points: Selection) -> Array:
        """`position` of some points after numbers of steps, one each."""
        head_steps = self._head_steps[points]
        single_steps = self._single.taken[points]
        before_tail = head_steps + single_steps
        u = np.array(self._head_end[points])
        if self._single.iterates.size:
            moved = selection(self._single.column[points] >= 0)
            row = np.maximum(steps[moved] - head_steps[moved], 0.0)
            row = np.minimum(row, single_steps[moved]).astype(np.int64)
            column = self._single.column[_compose(points, moved)]
            u[moved] = self._single.at(row, column)

        is_head = steps < head_steps
        is_tail = (steps > before_tail) & ~self._frozen[points]
        if is_head.any():
            chosen = selection(is_head)
            u[chosen] = self._inverted(_compose(points, chosen), steps[chosen], "a")
        if is_tail.any():
            chosen = selection(is_tail)
            beyond = steps[chosen] - before_tail[chosen]
            u[chosen] = self._inverted(_compose(points, chosen), beyond, "s")
        return u

    def _inverted(self, points: Selection, steps: Array, form: str) -> Array:
        begin, before = self._begin(points, form)
        return invert(self.K[points], self.c[points], begin, before, steps, form)

    def _count(self, goal: Array, points: Selection = slice(None)) -> Count:
        """`steps_to` without checks, for one goal of each of some points, (n,)."""
        counting = _Counting(goal.size)
        is_tail = goal > self._tail.u[points]
        is_ahead = (goal > 0) & ~is_tail
        is_head = is_ahead & (goal <= self._head_end[points])
        is_head &= self._head_steps[points] > 0
        single = selection(is_ahead & ~is_head)
        self._count_single(counting, goal, points, single)
        if is_head.any():
            self._count_form(counting, goal, points, selection(is_head), "a")
        if is_tail.any():
            self._count_form(counting, goal, points, selection(is_tail), "s")
        return counting.result(single)

    def _count_single(
        self, counting: _Counting, goal: Array, points: Selection, chosen: Selection
    ) -> None:
        """Count steps to goals that single steps pass."""
        which = _compose(points, chosen)
        goal = goal[chosen]
        if not goal.size:
            return
        single = self._single
        column = single.column[which]
        below = single.count_below(column, goal)
        counting.offset[chosen] = self._head_steps[which] + below
        # Iterates that equal the goal to rounding, many if steps are short, may lie on
        # either side of it.
        place = Place.of(goal, self.K[which])
        blur = single.blur[which] + _rounding_of_goal(place)
        counting.early[chosen] = below - single.count_below(column, goal - blur)
        counting.late[chosen] = single.count_below(column, goal + blur) - below
        is_beyond = goal + blur > self._tail.u[which]
        if is_beyond.any():
            # The latest step may belong to the tail.
            beyond = np.arange(counting.offset.size)[chosen][is_beyond]
            latest = self._count(
                goal[is_beyond] + blur[is_beyond], _compose(points, beyond)
            ).latest
            counting.late[beyond] = latest - counting.offset[beyond]

    def _count_form(
        self,
        counting: _Counting,
        goal: Array,
        points: Selection,
        chosen: Selection,
        form: str,
    ) -> None:
        """Count steps to goals in the head (form "a") or the tail (form "s")."""
        which = _compose(points, chosen)
        c = self.c[which]
        end = Place.of(goal[chosen], self.K[which])
        begin, before = self._begin(which, form)
        # There may be infinitely many steps.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            steps = leading(c, begin, end)
            steps += series(c, end.small(form), form) - before
            # Rounding of the sum, of u, and of the loss from which u comes; and the
            # first term that is left out.
            position_error = (end.u + 1.0 / end.a) / end.step(c)
            error = ROUNDING * (steps + position_error) + SMALL_STEP**TERMS
            if form == "s":
                error += self._tail_error[which]
            error = np.minimum(error, LARGEST_ERROR)
            least = np.maximum(steps - error, 0.0)
        if form == "s":
            counting.offset[chosen] = (
                self._head_steps[which] + self._single.taken[which]
            )
            frozen = self._frozen[which]
            steps[frozen] = np.inf
            if frozen.any():
                # No step reaches the goal, unless it equals u to rounding.
                blur = self._single.blur[which] + _rounding_of_goal(end)
                is_there = end.u - begin.u <= blur
                frozen_least = np.where(is_there, 0.0, np.inf)
                least = np.where(frozen, frozen_least, least)
        counting.real[chosen] = steps
        counting.error[chosen] = error
        counting.least[chosen] = least


class _Counting:
    """Counts of n points: whole numbers of steps, and real numbers to be rounded up."""

    def __init__(self, size: int) -> None:
        self.offset = np.zeros(size, dtype=np.int64)
        self.real = np.zeros(size)
        self.error = np.zeros(size)
        self.least = np.zeros(size)
        # By how many steps whole numbers may be smaller or larger.
        self.early = np.zeros(size, dtype=np.int64)
        self.late = np.zeros(size, dtype=np.int64)

    def result(self, single: Selection) -> Count:
        """The counts; those of ``single`` points have whole numbers of steps alone."""
        limit = (INT64_MAX - self.offset).astype(np.float64)
        # also true with NaN
        is_never = ~(self.real < limit)
        self.real[is_never] = np.inf
        steps = _rounded_up(self.real, self.offset)
        earliest = _rounded_up(self.least, self.offset - self.early)
        latest = _rounded_up(self.real + self.error, self.offset + self.late)

        error = self.error
        error[single] = (self.early + self.late)[single]
        is_unsure = earliest < latest
        sure_error = np.where(is_never, 0.0, error)
        error = np.where(is_unsure, np.ceil(error), sure_error)
        may_be_reached = is_never & is_unsure
        error[may_be_reached] = (steps - earliest)[may_be_reached]
        return Count(steps, error, earliest, latest)


def _compose(points: Selection, chosen: Selection) -> Selection:
    """Select some of some points."""
    return chosen if isinstance(points, slice) else points[chosen]


def _rounding_of_goal(place: Place) -> Array:
    """How far rounding may move a goal, and the loss from which it comes."""
    return np.asarray(4.0 * ROUNDING * (place.u + 1.0 / place.a))


def _rounded_up(count: Array, offset: Steps) -> Steps:
    """``offset + ceil(count)``, at most INT64_MAX."""
    steps = np.ceil(count)
    # False also with NaN
    if steps.max(initial=0.0) < 2.0**62:
        return offset + steps.astype(np.int64)
    fits = steps < (INT64_MAX - offset).astype(np.float64)
    whole = np.where(fits, steps, 0.0).astype(np.int64)
    return np.where(fits, offset + whole, INT64_MAX)


def _end_of_small_steps(K: Array, c: Array) -> Array:
    """The u >= 0 at which c g first equals SMALL_STEP.

    It is found by fixed-point iteration on a = SMALL_STEP/(c s²).
    """
    a = SMALL_STEP / c
    for _ in range(60):
        before = a
        a = SMALL_STEP / (c * (1.0 - a) ** 2)
        if (a == before).all():
            break
    # The iteration ends slightly below the root, so below zero if c g is SMALL_STEP at
    # u = 0.
    return np.maximum(np.log(K - 1.0) + np.log(a) - np.log1p(-a), 0.0)
