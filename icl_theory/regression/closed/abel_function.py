r"""The Abel function of the exchangeable map u ← u + c g(u), g = a s², and its inverse.

.. math:: A(u) = \frac{F(a)}{c} + \tfrac12\ln g + \sum_{j\ge1} c^j P_j

Here a is the attention on the target at u, s = 1 - a, F the time of gradient flow with
c = 1, and the P_j are polynomials. `leading` is the difference of the first two terms
between two values of u, `slope` its derivative, and `series` the sum over j. `invert`
solves A(u) - A(u₁) = n for u. The expansion is used if c g is small: in the *head* of a
run, where a is small (form "a"), and in its *tail*, where s is small (form "s"). See
docs/theory/phases.md, "Steps in closed form".

All operations are elementwise on whole arrays: a point has the same results, to the
bit, alone and among a million others. A pass over an array costs more than its
arithmetic, so arrays are changed in place. The order of the operations decides the last
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

ROUNDING = sys.float_info.epsilon
# `leading` is inverted to this relative accuracy. Newton's method for all of A does the
# rest.
NEARLY = 1e-6
# Largest number of iterations of the first inversion. About ten are enough.
ITERATIONS = 200
# Number of Newton's steps for all of A, enough for all digits.
NEWTON_STEPS = 3

# Indices of some points, or a slice of all, which makes views instead of copies.
Selection = NDArray[np.intp] | slice


def leading(c: Array, begin: Place, end: Place) -> Array:
    """``A(u2) - A(u1)`` without the polynomials: flow time over c, and ½ ln(g2/g1)."""
    back = begin.u - end.u
    # ½ ln(g2/g1) = u1 - u2 - 3/2 ln((1 + w2)/(1 + w1)), because g = a s² = w²/(1 + w)³.
    total = np.log1p((end.w - begin.w) / (1.0 + begin.w))
    total *= -1.5
    total += back
    total -= flow_back(begin, end, back) / c
    return total


def slope(c: Array, end: Place) -> Array:
    """Derivative of `leading` with respect to u2: ``1/(c g) + ½ (s - 2a)``."""
    return 1.0 / end.step(c) + 0.5 * (end.s - 2.0 * end.a)  # type: ignore[no-any-return]


def series(c: Array, x: Array, form: str) -> Array:
    """``Σ_j c^j P_j(x)`` at x = a or x = s.

    With P_j = x^(power j) Q_j it is a polynomial in c x^power, in which nothing
    overflows.
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


def invert(K: Any, c: Any, begin: Place, before: Any, steps: Any, form: str) -> Array:
    """Solve ``A(u) - A(u1) = steps`` by Newton's method.

    A first solution leaves out the polynomials, which are small.

    Parameters
    ----------
    K, c, steps : ndarray, (n,)
        Numbers of features, step constants, and numbers of steps.
    begin, before : Place, ndarray (n,)
        u1, and `series` there.
    form : {"a", "s"}
        Whether the points are in the head or in the tail.

    Returns
    -------
    ndarray, (n,)
        u, at least u1.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        if c.size == 1:
            # Scalars are faster, and give the same bits.
            K = K[0]
            c = c[0]
            before = before[0]
            steps = steps[0]
            begin = Place(begin.u[0], begin.w[0], begin.a[0], begin.s[0])
            u = _invert_leading_of_one(K, c, begin, steps)
        else:
            u = _LeadingInversion(K, c, begin, steps).solve()
        wanted = steps + before
        for _ in range(NEWTON_STEPS):
            place = Place.of(u, K)
            change = wanted - series(c, place.small(form), form)
            change -= leading(c, begin, place)
            change /= slope(c, place)
            u = np.maximum(u + change, begin.u)
        return np.atleast_1d(u)


class _LeadingInversion:
    """Solves ``leading(u1, u) = steps`` for many points, each between its own bounds.

    The arrays hold all points that are not solved yet, and some points that are. Solved
    points are dropped once they are a fifth of all.
    """

    def __init__(self, K: Array, c: Array, begin: Place, steps: Array) -> None:
        self.K = K
        self.c = c
        self.begin = begin
        self.steps = steps
        self.u = _flow_estimate(K, c, begin, steps)
        self.low = begin.u
        self.high = self.u + 1.0
        self.index = np.arange(self.u.size)
        self.is_active = np.ones(self.u.size, dtype=bool)
        self.result = self.u.copy()

    def solve(self) -> Array:
        """Return u of all points, to `NEARLY`."""
        for _ in range(ITERATIONS):
            goes_on = self._step()
            self._keep_results(self.is_active & ~goes_on)
            self.is_active &= goes_on
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
        is_above = count > self.steps
        self.low = np.where(is_above, self.low, u)
        self.high = np.where(is_above, u, self.high)
        change = self._change(place, count)
        moved = u + change
        is_inside = (moved >= self.low) & (moved <= self.high)
        if not is_inside.all():
            bisected = 0.5 * (self.low + self.high)
            moved = np.where(is_inside, moved, bisected)
        self.u = moved
        is_solved = is_inside & (np.abs(change) <= NEARLY * moved)
        is_wide = self.high - self.low > ROUNDING * self.high
        return ~is_solved & is_wide

    def _change(self, place: Place, count: Array) -> Array:
        """Changes of u by Newton's method, in variables in which counts are linear."""
        steps = self.steps
        rise = slope(self.c, place)
        change = (steps - count) / rise
        is_early = ~(place.a > 1.0 / 3.0)
        is_far = (np.abs(change * rise) > 0.5 * steps) & ~is_early
        # At small a the count is nearly linear in 1/a. The cut at 0.9 keeps the
        # logarithm of a step that is too long finite.
        if is_early.any():
            chosen = selection(is_early)
            change[chosen] = -np.log1p(-np.minimum(change[chosen], 0.9))
        # In the tail it is nearly exponential in u.
        if is_far.any():
            chosen = selection(is_far)
            ratio = steps[chosen] / count[chosen]
            change[chosen] = count[chosen] / rise[chosen] * np.log(ratio)
        return change

    def _keep_results(self, is_solved: NDArray[np.bool_]) -> None:
        """Write the positions of solved points to the result."""
        if is_solved.any():
            chosen = selection(is_solved)
            self.result[self.index[chosen]] = self.u[chosen]

    def _drop_solved(self) -> None:
        """Keep only the active points, so that later iterations take less time."""
        rest = np.flatnonzero(self.is_active)
        self.begin = self.begin.at(rest)
        self.is_active = self.is_active[rest]
        self.index = self.index.take(rest)
        self.K = self.K.take(rest)
        self.c = self.c.take(rest)
        self.steps = self.steps.take(rest)
        self.u = self.u.take(rest)
        self.low = self.low.take(rest)
        self.high = self.high.take(rest)


def _invert_leading_of_one(K: Any, c: Any, begin: Place, steps: Any) -> Any:
    """`_LeadingInversion` for one point, to the same bits."""
    estimate = _flow_estimate(K, c, begin, steps)
    u = estimate
    low = begin.u
    high = u + 1.0
    for _ in range(ITERATIONS):
        place = Place.of(u, K)
        count = leading(c, begin, place)
        rise = slope(c, place)
        if count > steps:
            high = u
        else:
            low = u
        change = (steps - count) / rise
        if not place.a > 1.0 / 3.0:
            change = -np.log1p(-np.minimum(change, 0.9))
        elif abs(change * rise) > 0.5 * steps:
            change = count / rise * np.log(steps / count)
        is_inside = low <= u + change <= high
        u = u + change if is_inside else 0.5 * (low + high)
        is_solved = is_inside and abs(change) <= NEARLY * u
        if is_solved or not high - low > ROUNDING * high:
            return u
    return estimate


def _flow_estimate(K: Array, c: Array, begin: Place, steps: Array) -> Array:
    """Return the least of three upper bounds on u, which come from gradient flow."""
    u1, _, a, s = begin
    time = c * steps
    # F rises by more than ½/s² does.
    missed = 1.0 / np.sqrt(2.0 * time + 1.0 / (s * s))
    bound = np.log(K - 1.0) + np.log1p(-missed) - np.log(missed)
    # F rises by more than -1/a does, and u - u1 = -ln(w/w1) with w = 1/a - 1.
    ratio = time * a / s
    early_bound = u1 - np.log1p(-np.minimum(ratio, 1.0 - 1e-9))
    bound = np.where(ratio < 1.0, np.minimum(bound, early_bound), bound)
    # Beyond the peak of g steps become shorter, so that none is longer than the first.
    late_bound = u1 + time * a * s * s
    bound = np.where(a > 1.0 / 3.0, np.minimum(bound, late_bound), bound)
    return np.maximum(bound, u1)


def selection(mask: NDArray[np.bool_]) -> Selection:
    """Indices at which a mask is true; a slice if it is true everywhere."""
    return slice(None) if mask.all() else np.flatnonzero(mask)


def is_few(active: int, size: int, share: float = 0.8) -> bool:
    """Whether to drop finished points: copying pays once a fifth are finished."""
    return active < share * size
