r"""The Abel function of the exchangeable map u ← u + c g(u), g = a s², and its inverse.

.. math:: A(u) = \frac{F(a)}{c} + \tfrac12\ln g + \sum_{j\ge1} c^j P_j

Here u is the gap between the score of the query's own feature and the other scores, a
the attention on this feature, s = 1 - a, F the time of gradient flow with c = 1, and
the P_j are polynomials. `leading` is the difference of the first two terms between two
values of u, `slope` its derivative, and `series` the sum over j. `invert` solves
A(u) - A(u₁) = n for u. The expansion is used if c g is small: in the *head* of a run,
where a is small (form "a"), and in its *tail*, where s is small (form "s"). See
docs/theory/phases.md, "Steps in closed form".

All operations are elementwise on whole arrays: a point has the same results, to the
bit, alone and among a million others. Arrays are changed in place, because writing a
new array costs more than the arithmetic. The order of the operations decides the last
bits of the results.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.regression.closed.flow import Place, flow_back
from icl_theory.regression.closed.polynomials import QUOTIENTS

# The relative spacing of float64 numbers, 2^-52.
ROUNDING = sys.float_info.epsilon
# `leading` is inverted to this relative accuracy. Newton's method for all of A then
# finds the other digits. From a coarser start it would need more steps.
ACCURACY_OF_START = 1e-6
# Largest number of iterations of the first inversion. About ten are enough. The limit
# is far higher, in case every iteration bisects.
ITERATIONS = 200
# Number of Newton's steps for all of A. They find all digits: each step roughly squares
# the relative error of the start.
NEWTON_STEPS = 3
# The attention at which the growth g = a s² is largest.
PEAK = 1.0 / 3.0
# The largest change by which Newton's method in w may lower w, as a share of w. A share
# of 1 or more would leave no positive w. Any value below 1 would do: the next iteration
# corrects a step that was cut.
LARGEST_SHARE = 0.9

# Indices of some points, or a slice of all, which makes views instead of copies.
Selection = NDArray[np.intp] | slice


def leading(c: Array, begin: Place, end: Place) -> Array:
    """``A(u2) - A(u1)`` without the polynomials: flow time over c, and ½ ln(g2/g1).

    Here u1 is the gap at ``begin``, and u2 the gap at ``end``.
    """
    u_difference = begin.u - end.u
    # ½ ln(g2/g1) = u1 - u2 - 3/2 ln((1 + w2)/(1 + w1)), because g = a s² = w²/(1 + w)³.
    # The flow takes the time F(a2) - F(a1), the negative of `flow_back`.
    total = np.log1p((end.w - begin.w) / (1.0 + begin.w))
    total *= -1.5
    total += u_difference
    total -= flow_back(begin, end, u_difference) / c
    return total


def slope(c: Array, end: Place) -> Array:
    """Derivative of `leading` with respect to u2, at ``end``: 1/(c g) + ½ (s - 2a)."""
    return 1.0 / end.step(c) + 0.5 * (end.s - 2.0 * end.a)  # type: ignore[no-any-return]


def series(c: Array, x: Array, form: str) -> Array:
    """``Σ_j c^j P_j(x)`` at x = a or x = s.

    With P_j = x^j Q_j for x = a, and P_j = x^(2j) Q_j for x = s, it is a polynomial in
    c x or c x², in which nothing overflows. The Q_j are `QUOTIENTS`.
    """
    small = c * x if form == "a" else c * x * x
    if small.size == 1:
        # Floats are faster than arrays of one number, and give the same bits.
        return np.full_like(small, _series_of_one(small.item(), x.item(), form))
    # Horner's rule in ``small``, with the coefficients Q_j(x) by Horner's rule in x.
    total: Array | None = None
    for first, second, *lower in reversed(QUOTIENTS[form]):
        value = x * first
        value += second
        for coefficient in lower:
            value *= x
            value += coefficient
        if total is not None:
            value += total
        total = np.multiply(value, small, out=value)
    assert total is not None
    return total


def _series_of_one(small: float, x: float, form: str) -> float:
    """Return `series` at one point, by the same operations on floats."""
    total = 0.0
    for first, *lower in reversed(QUOTIENTS[form]):
        value = first
        for coefficient in lower:
            value = value * x + coefficient
        total = (total + value) * small
    return total


def invert(
    K: Any, c: Any, begin: Place, begin_series: Any, steps: Any, form: str
) -> Array:
    """Solve ``A(u) - A(u1) = steps`` by Newton's method.

    A first solution leaves out the polynomials, which are small. The letters are those
    of the module.

    Parameters
    ----------
    K, c, steps : ndarray, (n,)
        Numbers of features, step constants, and numbers of steps.
    begin, begin_series : Place, ndarray (n,)
        u1, and `series` there.
    form : {"a", "s"}
        Whether the points are in the head or in the tail.

    Returns
    -------
    ndarray, (n,)
        u, at least u1.
    """
    # An iterate far from the solution may overflow. It is replaced by bisection.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        if c.size == 1:
            # Scalars are faster, and give the same bits.
            K = K[0]
            c = c[0]
            begin_series = begin_series[0]
            steps = steps[0]
            begin = Place(begin.u[0], begin.w[0], begin.a[0], begin.s[0])
            u = _invert_leading_of_one(K, c, begin, steps)
        else:
            u = _LeadingInversion(K, c, begin, steps).solve()
        # Newton's method for series(u) + leading(u1, u) = steps + series(u1). The slope
        # leaves out the series, which is nearly constant.
        right_side = steps + begin_series
        for _ in range(NEWTON_STEPS):
            place = Place.of(u, K)
            change = right_side - series(c, place.small(form), form)
            change -= leading(c, begin, place)
            change /= slope(c, place)
            # Rounding must not lead below the beginning.
            u = np.maximum(u + change, begin.u)
        return np.atleast_1d(u)


class _LeadingInversion:
    """Solves ``leading(u1, u) = steps`` for many points, each between its own bounds.

    The arrays hold all points that are not solved yet, and some points that are. Solved
    points are dropped once they are more than a fifth of all (`is_few`).
    """

    def __init__(self, K: Array, c: Array, begin: Place, steps: Array) -> None:
        self.K = K
        self.c = c
        self.begin = begin
        self.steps = steps
        self.u = _flow_estimate(K, c, begin, steps)
        self.low = begin.u
        # The estimate is an upper bound, apart from rounding and from the difference
        # between small steps and flow. 1 is far above both. A larger number would only
        # make the first bisection longer.
        self.high = self.u + 1.0
        self.index = np.arange(self.u.size)
        self.is_active = np.ones(self.u.size, dtype=bool)
        self.result = self.u.copy()

    def solve(self) -> Array:
        """Return u of all points, to `ACCURACY_OF_START`."""
        for _ in range(ITERATIONS):
            is_unsolved = self._step()
            self._keep_results(self.is_active & ~is_unsolved)
            self.is_active &= is_unsolved
            active = int(np.count_nonzero(self.is_active))
            if not active:
                break
            if is_few(active, self.is_active.size):
                self._drop_solved()
        return self.result

    def _step(self) -> NDArray[np.bool_]:
        """Move all points; return which of them are not solved yet."""
        u = self.u
        place = Place.of(u, self.K)
        count = leading(self.c, self.begin, place)
        # The count rises with u, so each iterate bounds the solution from one side.
        is_above = count > self.steps
        self.low = np.where(is_above, self.low, u)
        self.high = np.where(is_above, u, self.high)
        change = self._change(place, count)
        next_u = u + change
        # Newton's method may leave the bounds. The next u is then halfway between them.
        is_inside = (next_u >= self.low) & (next_u <= self.high)
        if not is_inside.all():
            bisected = 0.5 * (self.low + self.high)
            next_u = np.where(is_inside, next_u, bisected)
        self.u = next_u
        is_solved = is_inside & (np.abs(change) <= ACCURACY_OF_START * next_u)
        # Between bounds that differ only by rounding nothing is left to solve.
        is_wide = self.high - self.low > ROUNDING * self.high
        return ~is_solved & is_wide

    def _change(self, place: Place, count: Array) -> Array:
        """Changes of u by Newton's method, in variables that make counts nearly linear.

        ``count`` is `leading` at u, and ``place`` the place of u.
        """
        steps = self.steps
        count_slope = slope(self.c, place)
        change = (steps - count) / count_slope
        is_before_peak = place.a <= PEAK
        # In the tail, a count that is wrong by more than half of the steps is corrected
        # by the logarithm below. For a smaller error Newton's method in u is enough.
        # (The error of the count is the product of the change and the slope.)
        is_far_in_tail = np.abs(change * count_slope) > 0.5 * steps
        is_far_in_tail &= ~is_before_peak
        # At small a the count is nearly linear in 1/a = 1 + w, where w ~ e^-u. Newton's
        # method in w multiplies w by 1 - change, and so changes u by -ln(1 - change).
        if is_before_peak.any():
            chosen = selection(is_before_peak)
            share = np.minimum(change[chosen], LARGEST_SHARE)
            change[chosen] = -np.log1p(-share)
        # In the tail the count is nearly exponential in u, so its logarithm is nearly
        # linear. Newton's method then solves ln(count) = ln(steps).
        if is_far_in_tail.any():
            chosen = selection(is_far_in_tail)
            ratio = steps[chosen] / count[chosen]
            change[chosen] = count[chosen] / count_slope[chosen] * np.log(ratio)
        return change

    def _keep_results(self, is_solved: NDArray[np.bool_]) -> None:
        """Write u of the solved points to the result."""
        if is_solved.any():
            chosen = selection(is_solved)
            self.result[self.index[chosen]] = self.u[chosen]

    def _drop_solved(self) -> None:
        """Keep only the active points, so that later iterations take less time."""
        active = np.flatnonzero(self.is_active)
        self.begin = self.begin.at(active)
        self.is_active = self.is_active[active]
        self.index = self.index.take(active)
        self.K = self.K.take(active)
        self.c = self.c.take(active)
        self.steps = self.steps.take(active)
        self.u = self.u.take(active)
        self.low = self.low.take(active)
        self.high = self.high.take(active)


def _invert_leading_of_one(K: Any, c: Any, begin: Place, steps: Any) -> Any:
    """Solve ``leading(u1, u) = steps`` for one point, on numbers instead of arrays.

    The operations and their order are those of `_LeadingInversion`, whose comments give
    the reasons. So the results are the same to the bit.
    """
    estimate = _flow_estimate(K, c, begin, steps)
    u = estimate
    low = begin.u
    high = u + 1.0
    for _ in range(ITERATIONS):
        place = Place.of(u, K)
        count = leading(c, begin, place)
        count_slope = slope(c, place)
        if count > steps:
            high = u
        else:
            low = u
        change = (steps - count) / count_slope
        if place.a <= PEAK:
            change = -np.log1p(-np.minimum(change, LARGEST_SHARE))
        elif abs(change * count_slope) > 0.5 * steps:
            change = count / count_slope * np.log(steps / count)
        is_inside = low <= u + change <= high
        u = u + change if is_inside else 0.5 * (low + high)
        is_solved = is_inside and abs(change) <= ACCURACY_OF_START * u
        if is_solved or not high - low > ROUNDING * high:
            return u
    return estimate


def _flow_estimate(K: Array, c: Array, begin: Place, steps: Array) -> Array:
    """Return the least of three upper estimates of u.

    The first two are bounds for gradient flow, which raises F from u1 on by the time, c
    times the number of steps. Small steps lead farther than the flow by far less than
    1. The third estimate holds beyond the peak of g only.
    """
    u1, _w, a, s = begin
    time = c * steps
    # All terms of F = -1/a + 3 ln(a/s) + 2/s + ½/s² rise with u. So F rises by more
    # than ½/s² does, which bounds the deficit s from below.
    least_deficit = 1.0 / np.sqrt(2.0 * time + 1.0 / (s * s))
    bound = np.log(K - 1.0) + np.log1p(-least_deficit) - np.log(least_deficit)
    # F rises by more than -1/a does. So w = 1/a - 1 falls from its first value w1 = s/a
    # by less than the time. Let the ratio be the time divided by w1. Then u - u1 =
    # -ln(w/w1) is below -ln(1 - ratio), which bounds u only if the ratio is below 1.
    ratio = time * a / s
    # The limit, any number below 1, keeps the logarithm finite at ratios from 1 on, for
    # which this bound is not used.
    early_bound = u1 - np.log1p(-np.minimum(ratio, 1.0 - 1e-9))
    bound = np.where(ratio < 1.0, np.minimum(bound, early_bound), bound)
    # Beyond the peak of g steps become shorter, so that none is longer than the first.
    late_bound = u1 + time * a * s * s
    bound = np.where(a > PEAK, np.minimum(bound, late_bound), bound)
    return np.maximum(bound, u1)


def selection(mask: NDArray[np.bool_]) -> Selection:
    """Indices at which a mask is true; a slice if it is true everywhere."""
    return slice(None) if mask.all() else np.flatnonzero(mask)


def is_few(active: int, size: int, share: float = 0.8) -> bool:
    """Whether so few of ``size`` points are active that the others are to be dropped.

    They are few below the given ``share`` of all points. With a larger share the active
    points are copied more often, and with a smaller one the finished points are carried
    along for longer.
    """
    return active < share * size
