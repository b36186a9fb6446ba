r"""Steps of the exchangeable map in closed form, at a cost independent of their number.

A step of descent is the map u ← u + c g(u) with g = a s². Here u is the gap between the
score of the query's own feature and the other scores, a the attention on this feature,
s = 1 − a, and c a constant. An Abel function A of the map satisfies
A(u + c g(u)) = A(u) + 1, so that the number of steps from u₁ to u₂ is A(u₂) − A(u₁). In
the *head* and in the *tail* of a run c g is small, and A is expanded in powers of c g
(`abel_function`). The few dozen *single* steps between head and tail are taken one by
one (`single_steps`).

A *point* is one pair of K and c. All operations are elementwise on whole arrays: a
point has the same results, to the bit, alone and among a million others.
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

# Largest error that is reported for a number of steps. It is finite, so that a number
# of steps that overflows to infinity is still infinite after its error is subtracted.
# Any value below INT64_MAX, 9.2e18, and far above the step counts of usual runs would
# do.
LARGEST_ERROR = 1e18
# Largest number of iterations in the search for the end of the head. The iterates
# approach this end from below, which is slow only if the attention there is near 1/3.
# With too few iterations the head is a little shorter, and its last steps become single
# steps, with the same result.
HEAD_ITERATIONS = 60

Steps = NDArray[np.int64]


class Count(NamedTuple):
    """Numbers of steps, their errors, and the range that rounding allows."""

    steps: Steps
    # Estimated absolute error. It is below 1 only if rounding allows a single integer.
    error: Array
    earliest: Steps  # smallest number of steps that rounding allows
    latest: Steps  # largest number of steps that rounding allows


class StepCounter:
    r"""The iteration ``u <- u + c a s²`` from u = 0.

    `position` returns the iterate after a number of steps, and `steps_to` the number of
    steps to an iterate. The letters are defined at the head of the module.

    See docs/theory.md, "Steps in closed form".

    Parameters
    ----------
    K : int or array_like
        Number of features.
    c : float or array_like
        Step constant ``η γ K/(K-1)²``. K and c broadcast against each other, and each
        pair is a point.

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
        features, constants = _checked_points(K, c)
        self.shape = features.shape
        self.K = features.ravel()
        self.c = constants.ravel()
        # The index of each point, in the shape of the arguments.
        self._point = np.arange(self.K.size).reshape(self.shape)
        # Steps that no longer move u divide by zero, and long ones overflow. Infinite
        # and NaN results are replaced, or belong to steps that are never reached.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            # The number of steps of the head, and u at its end; both are 0 without a
            # head.
            self._head_steps = self._count_head()
            self._head_end = np.zeros(self.K.size)
            points = np.flatnonzero(self._head_steps)
            if points.size:
                steps = self._head_steps[points].astype(np.float64)
                begin, begin_series = self._begin(points, form="a")
                self._head_end[points] = invert(
                    self.K[points], self.c[points], begin, begin_series, steps, form="a"
                )
            self._single = SingleSteps.of(self.K, self.c, self._head_end)
            # The gap, attention and deficit where the tail begins, and the series of A
            # there.
            start_of_tail = self._start_of_tail()
            self._tail = Place.of(start_of_tail, self.K)
            self._tail_series = series(self.c, self._tail.s, form="s")
            # The rounding errors of u after the single steps, as numbers of steps: one
            # step moves u by c times the growth g there.
            first_step = self.c * self._tail.growth()
            error = self._single.error
            # If the tail does not move at all, any error of u is infinitely many steps.
            self._tail_error = np.where(first_step > 0, error / first_step, np.inf)
        # A tail is frozen if 2^63 more steps, none longer than the first, would not
        # move u in float64.
        moved_at_most = first_step * INT64_MAX
        self._frozen = moved_at_most <= ROUNDING * np.maximum(start_of_tail, 1.0)

    def position(self, n: int | Steps) -> Array:
        """The iterate u after ``n`` steps; n broadcasts against the points."""
        numbers = plain_numbers("n", n, least=0.0, most=float(INT64_MAX))
        rows, shape = self._rows("n", n, numbers)
        positions = []
        for steps, points in rows:
            positions.append(self._position(steps, points))
        return np.concatenate(positions).reshape(shape)

    def steps_to(self, u: ArrayLike) -> Count:
        """Numbers of steps until the iterate is ``u`` or more, at most INT64_MAX."""
        numbers = plain_numbers("u", u, least=-math.inf, most=math.inf)
        rows, shape = self._rows("u", u, numbers)
        counts = []
        for goals, points in rows:
            counts.append(self.count(goals, points))
        # Join the rows, field by field.
        rows_of_fields = zip(*counts, strict=True)
        fields = [np.concatenate(field).reshape(shape) for field in rows_of_fields]
        return Count(*fields)

    def _rows(
        self, name: str, values: ArrayLike, numbers: Array
    ) -> tuple[list[tuple[Array, Selection]], tuple[int, ...]]:
        """Broadcast ``numbers``, the checked ``values``, against the points.

        Return the numbers as flat rows, each with the selection of the points that its
        entries belong to, and the shape of the result.
        """
        try:
            shape = np.broadcast_shapes(numbers.shape, self.shape)
        except ValueError:
            raise argument_error(
                name, values, f"of a shape that broadcasts against {self.shape}"
            ) from None
        full = np.broadcast_to(numbers, shape)
        last_axes = shape[len(shape) - len(self.shape) :]
        if self.K.size > 1 and last_axes == self.shape:
            # Each row has one number for every point. A slice of all points makes views
            # instead of copies.
            rows = full.reshape(-1, self.K.size)
            return [(row, slice(None)) for row in rows], shape
        points = np.broadcast_to(self._point, shape).ravel()
        return [(full.ravel(), points)], shape

    def _count_head(self) -> Steps:
        """Numbers of steps of the heads, in which c g is small; 0 without a head."""
        count = np.zeros(self.K.size, dtype=np.int64)
        start = Place.of(np.zeros(1), self.K)
        # Without long steps the whole run is a tail. For K = 2 and 3 the run begins at
        # the peak of g, a = 1/3, or beyond, and has no head.
        has_head = has_long_steps(self.c) & (self.K > 3)
        has_head &= self.c * start.growth() <= SMALL_STEP
        if has_head.any():
            K = self.K[has_head]
            c = self.c[has_head]
            end = Place.of(_end_of_small_steps(K, c), K)
            begin, begin_series = self._begin(np.flatnonzero(has_head), form="a")
            # A at the end minus A at the beginning: the difference of the leading terms
            # plus the difference of the series
            steps = leading(c, begin, end) + (series(c, end.a, form="a") - begin_series)
            count[has_head] = np.floor(steps).astype(np.int64)
        return count

    def _start_of_tail(self) -> Array:
        """Return u after the last single step, where the tail begins."""
        single = self._single
        u = self._head_end.copy()
        # A point with the column -1 has no single steps.
        if single.iterates.size:
            chosen = selection(single.column >= 0)
            u[chosen] = single.at(single.taken[chosen], single.column[chosen])
        return u

    def _begin(self, points: Selection, form: str) -> tuple[Place, Array]:
        """Return the `Place` where a head or a tail begins, and the series of A there.

        The ``form`` is "a" for the head, where A is a series in a, and "s" for the
        tail.
        """
        if form == "s":
            return self._tail.at(points), self._tail_series[points]
        K = self.K[points]
        begin = Place.of(np.zeros(K.size), K)
        return begin, series(self.c[points], begin.a, form)

    def _position(self, steps: Array, points: Selection) -> Array:
        """Return the iterate of each selected point after its number of steps."""
        head_steps = self._head_steps[points]
        single_steps = self._single.taken[points]
        before_tail = head_steps + single_steps
        # Begin with the single steps. A point still in its head gets the end of the
        # head, and one in its tail the beginning of the tail. Both are replaced below,
        # but not in a frozen tail, where u does not move any more.
        u = np.array(self._head_end[points])
        if self._single.iterates.size:
            chosen = selection(self._single.column[points] >= 0)
            # The number of single steps taken, from none to all
            row = np.maximum(steps[chosen] - head_steps[chosen], 0.0)
            row = np.minimum(row, single_steps[chosen]).astype(np.int64)
            column = self._single.column[_compose(points, chosen)]
            u[chosen] = self._single.at(row, column)

        is_head = steps < head_steps
        is_tail = (steps > before_tail) & ~self._frozen[points]
        if is_head.any():
            chosen = selection(is_head)
            u[chosen] = self._inverted(
                _compose(points, chosen), steps[chosen], form="a"
            )
        if is_tail.any():
            chosen = selection(is_tail)
            tail_steps = steps[chosen] - before_tail[chosen]
            u[chosen] = self._inverted(_compose(points, chosen), tail_steps, form="s")
        return u

    def _inverted(self, points: Selection, steps: Array, form: str) -> Array:
        """Return u after ``steps`` steps from the beginning of a head or a tail."""
        begin, begin_series = self._begin(points, form)
        return invert(self.K[points], self.c[points], begin, begin_series, steps, form)

    def count(self, goal: Array, points: Selection = slice(None)) -> Count:
        """Count the steps of n points to their goals, without the checks of `steps_to`.

        ``goal`` is u at the goal of each point, (n,), and ``points`` selects the
        points, by default all.
        """
        # `_count_single` and `_count_form` write the counts of some points into this.
        counting = _Counting(goal.size)
        is_tail = goal > self._tail.u[points]
        # A goal of 0 or less is reached at the start, and its count stays 0.
        is_ahead = (goal > 0) & ~is_tail
        # A point without a head has 0 as the end of its head, and so no goal in it.
        is_head = is_ahead & (goal <= self._head_end[points])
        reached_by_single_steps = selection(is_ahead & ~is_head)
        self._count_single(counting, goal, points, reached_by_single_steps)
        if is_head.any():
            self._count_form(counting, goal, points, selection(is_head), form="a")
        if is_tail.any():
            self._count_form(counting, goal, points, selection(is_tail), form="s")
        return counting.result(reached_by_single_steps)

    def _count_single(
        self, counting: _Counting, goal: Array, points: Selection, chosen: Selection
    ) -> None:
        """Count steps to the goals that are reached by single steps.

        ``chosen`` selects these goals from all goals, and ``points`` selects the points
        that all goals belong to.
        """
        chosen_points = _compose(points, chosen)
        goal = goal[chosen]
        if not goal.size:
            return
        single = self._single
        column = single.column[chosen_points]
        # The first iterate is the start of the single steps. So the number of steps to
        # the goal is the number of iterates below it.
        n_below = single.count_below(column, goal)
        counting.offset[chosen] = self._head_steps[chosen_points] + n_below
        # An iterate that equals the goal up to rounding may lie on either side of it.
        # If steps are short, there are many such iterates.
        place = Place.of(goal, self.K[chosen_points])
        blur = single.blur[chosen_points] + _rounding_of_goal(place)
        counting.early[chosen] = n_below - single.count_below(column, goal - blur)
        counting.late[chosen] = single.count_below(column, goal + blur) - n_below
        may_be_tail = goal + blur > self._tail.u[chosen_points]
        if may_be_tail.any():
            # The latest possible step may belong to the tail. It is the latest step to
            # a goal that is higher by ``blur``, the possible rounding error.
            uncertain = np.arange(counting.offset.size)[chosen][may_be_tail]
            latest = self.count(
                goal[may_be_tail] + blur[may_be_tail], _compose(points, uncertain)
            ).latest
            counting.late[uncertain] = latest - counting.offset[uncertain]

    def _count_form(
        self,
        counting: _Counting,
        goal: Array,
        points: Selection,
        chosen: Selection,
        form: str,
    ) -> None:
        """Count steps to goals in the head (form "a") or the tail (form "s").

        ``chosen`` selects these goals from all goals, and ``points`` selects the points
        that all goals belong to.
        """
        chosen_points = _compose(points, chosen)
        c = self.c[chosen_points]
        end = Place.of(goal[chosen], self.K[chosen_points])
        begin, begin_series = self._begin(chosen_points, form)
        # The number of steps may be infinite. For u = ∞ it is ∞ - ∞ = NaN.
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            steps = leading(c, begin, end)
            steps += series(c, end.small(form), form) - begin_series
            error = _error_of_count(steps, c, end)
            if form == "s":
                error += self._tail_error[chosen_points]
            error = np.minimum(error, LARGEST_ERROR)
            least = np.maximum(steps - error, 0.0)
        if form == "s":
            counting.offset[chosen] = (
                self._head_steps[chosen_points] + self._single.taken[chosen_points]
            )
            # A frozen tail never reaches a goal beyond its beginning.
            is_frozen = self._frozen[chosen_points]
            steps[is_frozen] = np.inf
            if is_frozen.any():
                # No number of steps reaches the goal, unless u equals it to rounding.
                blur = self._single.blur[chosen_points] + _rounding_of_goal(end)
                is_at_goal = end.u - begin.u <= blur
                frozen_least = np.where(is_at_goal, 0.0, np.inf)
                least = np.where(is_frozen, frozen_least, least)
        counting.real[chosen] = steps
        counting.error[chosen] = error
        counting.least[chosen] = least


def _checked_points(K: ArrayLike, c: ArrayLike) -> tuple[Array, Array]:
    """Return K and c of each point as arrays of one shape, or refuse them."""
    features = plain_numbers("K", K, least=2.0, most=MOST_FEATURES)
    constants = plain_numbers("c", c)
    try:
        features, constants = np.broadcast_arrays(features, constants)
    except ValueError as reason:
        raise argument_error(
            "K", K, f"numbers of features that go with c ({reason})"
        ) from None
    return features, constants


class _Counting:
    """Counts of n points, each the sum of a whole number and a real number of steps.

    ``offset`` is the whole number, below 2^62. ``real`` is the real number. It has the
    error ``error``, is surely not below ``least``, and is rounded up in the end.
    """

    def __init__(self, size: int) -> None:
        self.offset = np.zeros(size, dtype=np.int64)
        self.real = np.zeros(size)
        self.error = np.zeros(size)
        self.least = np.zeros(size)
        # By how many steps the whole numbers may be smaller, and larger.
        self.early = np.zeros(size, dtype=np.int64)
        self.late = np.zeros(size, dtype=np.int64)

    def result(self, single: Selection) -> Count:
        """Return the counts; this changes ``real``.

        The points ``single`` reach their goals by single steps, so that their counts
        are whole numbers, and ``real`` is zero. Their error is the distance from the
        earliest to the latest possible step.
        """
        # A number of steps that int64 cannot hold counts as never, and is returned as
        # INT64_MAX. So is NaN, for which the negated comparison is true. The number of
        # steps to u = ∞ is NaN, because it is a difference of infinite terms.
        largest_real = (INT64_MAX - self.offset).astype(np.float64)
        is_never = ~(self.real < largest_real)
        self.real[is_never] = np.inf
        steps = _rounded_up(self.real, self.offset)
        earliest = _rounded_up(self.least, self.offset - self.early)
        latest = _rounded_up(self.real + self.error, self.offset + self.late)

        error = self.error.copy()
        error[single] = (self.early + self.late)[single]
        # An error that allows several integers is at least one whole step. A point that
        # surely never arrives has no error.
        is_unsure = earliest < latest
        sure_error = np.where(is_never, 0.0, error)
        error = np.where(is_unsure, np.ceil(error), sure_error)
        # The count of a point that may never arrive is INT64_MAX. This number is wrong
        # by at most its distance from the earliest possible step.
        may_be_reached = is_never & is_unsure
        error[may_be_reached] = (steps - earliest)[may_be_reached]
        return Count(steps, error, earliest, latest)


def _compose(points: Selection, chosen: Selection) -> Selection:
    """Return the part of the selection ``points`` that ``chosen`` selects from it."""
    # The only slice is the one of all points.
    return chosen if isinstance(points, slice) else points[chosen]


def _error_of_count(steps: Array, c: Array, end: Place) -> Array:
    """Return the estimated error of a number of steps in a head, or in a tail.

    It has four parts: rounding of the sum ``steps``, of u at the ``end``, and of the
    loss from which u was computed, and the first term that the series of A leaves out.
    That term is of the order (c g)^(TERMS + 1), and c g is at most SMALL_STEP. The
    estimate, SMALL_STEP^TERMS, is cautious.
    """
    # A relative error r of u moves u by r u. A relative error r of the loss, a multiple
    # of s², moves s by rs/2, and u by r/(2a); the estimate has twice this. A step moves
    # u by c a s².
    position_error = (end.u + 1.0 / end.a) / end.step(c)
    error = ROUNDING * (steps + position_error) + SMALL_STEP**TERMS
    return np.asarray(error)


def _rounding_of_goal(place: Place) -> Array:
    """How far u may be moved by rounding of the goal, or of its loss.

    A relative error r of u moves u by r u, and a relative error r of the loss moves u
    by r/(2a). The factor 4 is cautious.
    """
    return np.asarray(4.0 * ROUNDING * (place.u + 1.0 / place.a))


def _rounded_up(count: Array, offset: Steps) -> Steps:
    """``offset + ceil(count)``; INT64_MAX if this does not fit, or is NaN.

    The ``offset`` is below 2^62. INT64_MAX means that the step is never reached.
    """
    steps = np.ceil(count)
    # The usual case: the sum of two numbers below 2^62 fits. (The comparison is False
    # if a number is NaN, which is left to the slower case.)
    if steps.max(initial=0.0) < 2.0**62:
        return offset + steps.astype(np.int64)
    fits = steps < (INT64_MAX - offset).astype(np.float64)
    whole = np.where(fits, steps, 0.0).astype(np.int64)
    return np.where(fits, offset + whole, INT64_MAX)


def _end_of_small_steps(K: Array, c: Array) -> Array:
    """The u >= 0 at which c g, which is smaller at u = 0, first equals SMALL_STEP.

    The attention a there is found by fixed-point iteration on a = SMALL_STEP/(c s²).
    Then u is the logarithm of (K - 1) a/(1 - a).
    """
    a = SMALL_STEP / c
    for _ in range(HEAD_ITERATIONS):
        previous_a = a
        a = SMALL_STEP / (c * (1.0 - a) ** 2)
        if (a == previous_a).all():
            break
    # The iteration ends slightly below the root. If the root is u = 0, the result would
    # be negative.
    return np.maximum(np.log(K - 1.0) + np.log(a) - np.log1p(-a), 0.0)
