"""The steps of the exchangeable map between head and tail, which are taken one by one.

A step is u ← u + c g(u) with g = a s² and a constant c. Here u is the gap between the
score of the query's own feature, one of K, and the other scores. The attention on this
feature is a = 1/(1 + w) with w = (K − 1)e^{−u}, and s = 1 − a. Head and tail are the
many small steps at the beginning and at the end. Between them, c g is too large for the
expansion of the Abel function (`icl_theory.regression.closed.abel`). A few dozen steps
lead from head to tail, and all iterates u are kept.

A *point* is one pair of K and c. In the shapes below, P is the number of points.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.regression.closed.abel_function import PEAK, ROUNDING, is_few
from icl_theory.regression.closed.flow import Place

# Longest step c g of head and tail. For steps up to this length, the expansion with six
# polynomials has an error below 1e-9 steps. With a smaller limit the error is smaller,
# but more steps are taken one by one.
SMALL_STEP = 1.0 / 32.0
# Largest value of g = a s², at the attention PEAK.
LARGEST_GROWTH = 4.0 / 27.0


class SingleSteps(NamedTuple):
    """Single steps of P points, and the iterates u on their way."""

    # Iterates u: a row for each number of steps from 0 on, and a column for each point
    # with long steps (see `has_long_steps`). After the last single step of a point its
    # column holds further values that are not smaller, or infinity, so that the values
    # of a column never decrease.
    iterates: Array
    # The column of each point, (P,). It is -1 for a point without long steps, except
    # that a single point always has the column 0.
    column: NDArray[np.intp]
    taken: NDArray[np.int64]  # numbers of single steps, (P,)
    error: Array  # rounding error of u at the last step, (P,)
    blur: Array  # largest rounding error of u at any step, (P,)

    @classmethod
    def of(cls, K: Array, c: Array, u: Array) -> SingleSteps:
        """Take the single steps of P points from u on; K, c and u are (P,)."""
        if K.size == 1:
            return _steps_of_one(K[0], c[0], u[0])
        return _steps_of_many(K, c, u)

    def at(self, row: NDArray[np.int64], column: NDArray[np.intp]) -> Array:
        """Iterates after ``row`` steps, for points with the given columns."""
        # Indices of the flattened array, whose rows follow each other
        index = row * self.iterates.shape[1] + column
        return np.asarray(self.iterates.take(index))

    def count_below(self, column: NDArray[np.intp], goal: Array) -> NDArray[np.int64]:
        """Count, for each goal, the iterates in its column that are below it.

        ``column`` and ``goal`` are (n,). Iterates do not fall along a column, and the
        last one is not below the goal.
        """
        # With one point there is one column, for which NumPy's bisection is faster.
        if self.column.size == 1:
            return np.searchsorted(self.iterates[:, 0], goal)
        # Bisection for all columns at once: it finds one binary digit of the count
        # after the other, the highest first.
        count = np.zeros(goal.size, dtype=np.int64)
        rows = len(self.iterates)
        for power in reversed(range(rows.bit_length())):
            # The digit is 1 if the first count + 2^power iterates are below the goal.
            # It is enough to test the last of them, in this row. If there are not so
            # many rows, the last row is tested, which is not below the goal.
            row = np.minimum(count + (2**power - 1), rows - 1)
            is_below = self.at(row, column) < goal
            count += is_below * 2**power
        return count


class _Step(NamedTuple):
    """One step of each of n points, (n,) each."""

    length: Array  # c g(u)
    is_single: NDArray[np.bool_]  # whether it is a single step, not one of the tail
    error: Array  # rounding error of u after the step


def has_long_steps(c: Any) -> Any:
    """Whether the step at the peak of g, the longest, is longer than SMALL_STEP.

    c is a number or an array.
    """
    return c * LARGEST_GROWTH > SMALL_STEP


def _step(w: Array, c: Array, u: Array, error: Array) -> _Step:
    """Return the step from u, with w = (K - 1) exp(-u) and the ``error`` of u."""
    place = Place.weighted(u, w)
    length = place.step(c)
    # The head ends a little before its steps become long. So a short step belongs to
    # the tail only if it is beyond the peak of g.
    is_single = (length > SMALL_STEP) | (place.a < PEAK)
    # The map multiplies errors by 1 + c g'(u), with g' = g (s - 2a). The sum u + length
    # is rounded, and so are the about five operations that give the length.
    propagated = error * abs(1.0 + length * (place.s - 2.0 * place.a))
    return _Step(length, is_single, propagated + ROUNDING * (u + 5.0 * length))


def _steps_of_one(K: float, c: float, u: float) -> SingleSteps:
    """Take the steps of one point with floats, faster than with arrays of one number.

    These are the operations of `_step`, in the same order and so with the same bits.
    They are written out because calls would take as long as the arithmetic. The
    exponential is NumPy's, because ``math.exp`` may differ in the last bit.
    """
    other_features = float(K) - 1.0
    c = float(c)
    u = float(u)
    path = [u]
    # u is rounded at the start, too.
    error = ROUNDING * u
    largest_error = error
    is_single = has_long_steps(c)
    while is_single:
        w = other_features * float(np.exp(-u))
        total = 1.0 + w
        a = 1.0 / total
        s = w / total
        length = c * a * s * s
        is_single = length > SMALL_STEP or a < PEAK
        if is_single:
            propagated = error * abs(1.0 + length * (s - 2.0 * a))
            error = propagated + ROUNDING * (u + 5.0 * length)
            largest_error = max(largest_error, error)
            u = u + length
            path.append(u)
    return SingleSteps(
        iterates=np.array(path)[:, None],
        column=np.zeros(1, dtype=np.intp),
        taken=np.array([len(path) - 1]),
        error=np.array([error]),
        blur=np.array([largest_error]),
    )


def _steps_of_many(K: Array, c: Array, u: Array) -> SingleSteps:
    """Take the steps of P points, all points in each operation."""
    # u is rounded at the start, too.
    error = ROUNDING * u
    steps = SingleSteps(
        iterates=np.empty((0, 0)),
        column=np.full(K.size, -1),
        taken=np.zeros(K.size, dtype=np.int64),
        error=error,
        blur=error.copy(),
    )
    # Without long steps the whole run of a point is a tail.
    points = np.flatnonzero(has_long_steps(c))
    if not points.size:
        return steps
    steps.column[points] = np.arange(points.size)
    walk = _Walk(steps, points, K[points], c[points], u[points])
    # The walk writes the ``taken``, ``error`` and ``blur`` of each point into ``steps``
    # when the point has taken its last single step.
    walk.to_the_end()
    return steps._replace(iterates=walk.iterates(points.size))


class _Walk:
    """Points that take single steps, all at the same time.

    The arrays hold all points that still move, and some points that have ended, whose
    further iterates do not matter. Points that have ended are dropped once they are
    more than a fifth of the points in the arrays (`is_few`). When a point ends, its
    number of steps and its errors are written to ``steps``.

    ``points`` are the indices of the points in ``steps``. ``K``, ``c`` and ``u`` have
    an entry for each of these points.
    """

    def __init__(
        self,
        steps: SingleSteps,
        points: NDArray[np.intp],
        K: Array,
        c: Array,
        u: Array,
    ) -> None:
        self.steps = steps
        self.points = points
        self.column = steps.column[points]
        self.other_features = K - 1.0
        self.c = c
        self.u = u
        self.error = steps.error[points]
        self.largest_error = self.error
        self.is_active = np.ones(points.size, dtype=bool)
        self.n_active = points.size
        # For each number of steps from 0 on, the columns of the points and their
        # iterates.
        self.rows = [(self.column, u)]

    def to_the_end(self) -> None:
        """Take steps until no point moves."""
        has_moved = True
        while has_moved:
            has_moved = self._take_step()

    def _take_step(self) -> bool:
        """Take one step; return False if no point has moved."""
        w = self.other_features * np.exp(-self.u)
        step = _step(w, self.c, self.u, self.error)
        goes_on = step.is_single & self.is_active
        n_active = int(np.count_nonzero(goes_on))
        # The step of a point that does not go on is not taken: it belongs to the tail.
        if n_active < self.n_active:
            self._end(np.flatnonzero(self.is_active & ~goes_on))
            self.is_active = goes_on
            self.n_active = n_active
        if not n_active:
            return False
        length = step.length
        error = step.error
        if is_few(n_active, self.is_active.size):
            active = np.flatnonzero(self.is_active)
            length = length.take(active)
            error = error.take(active)
            self._keep(active)
        self.u = self.u + length
        self.error = error
        self.largest_error = np.maximum(self.largest_error, error)
        self.rows.append((self.column, self.u))
        return True

    def _end(self, stopping: NDArray[np.intp]) -> None:
        """Record the number of steps and the errors of points that stop.

        ``stopping`` has their indices in the arrays of the walk.
        """
        points = self.points.take(stopping)
        self.steps.taken[points] = len(self.rows) - 1
        self.steps.error[points] = self.error.take(stopping)
        self.steps.blur[points] = self.largest_error.take(stopping)

    def _keep(self, active: NDArray[np.intp]) -> None:
        """Keep only the active points.

        The array ``error`` is left out, because `_take_step` replaces it.
        """
        self.points = self.points.take(active)
        self.column = self.column.take(active)
        self.other_features = self.other_features.take(active)
        self.c = self.c.take(active)
        self.u = self.u.take(active)
        self.largest_error = self.largest_error.take(active)
        self.is_active = np.ones(active.size, dtype=bool)

    def iterates(self, columns: int) -> Array:
        """Return all iterates, with a row for each entry of ``rows``.

        The result has ``columns`` columns.
        """
        iterates = np.empty((len(self.rows), columns))
        for row, (column, values) in zip(iterates, self.rows, strict=True):
            if values.size < columns:
                # Some points were dropped before this step. Their columns are infinite
                # from this step on.
                row.fill(np.inf)
            row[column] = values
        return iterates
