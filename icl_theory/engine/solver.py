"""Steps of Dormand and Prince's method of order eight, with SciPy's coefficients, errors in the largest entry.

SciPy's own solver measures the error of a step by its mean square over the entries: where one entry of many moves,
that hides its error.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from icl_theory._validate import Array

Field = Callable[[float, Array], Array]
SAFETY, LEAST_FACTOR, MOST_FACTOR, POWER = 0.9, 0.2, 10.0, -1.0 / 8.0
LAST = 0.4 * (4.0 / 7.0) ** 4 * (3.0 / 7.0) ** 3  # of the interpolation's last term c s⁴(1 - s)³ at its largest,
LAST_BUT_ONE = (
    0.005 * 0.5**6
)  # and of the one before, c s³(1 - s)³, for the last one may vanish: where error may lie


class Step:
    """One step of x' = f(x, y), from ``(x, y)`` with the slope ``f`` there over the stride ``h``.

    Attributes
    ----------
    begin, state, slope : float, ndarray, ndarray
        Where it begins, and the field there.
    end, arrival, leaving : float, ndarray, ndarray
        Where it ends, and the field there.
    error : float
        Estimated error of the largest entry; NaN where the field was not finite.
    left, noise : float
        What the solution of a step's equations leaves, and what rounding makes of it: 0, for the step is explicit.
    """

    left = noise = 0.0

    def __init__(self, field: Field, x: float, y: Array, slope: Array, h: float, end: float | None = None) -> None:
        from scipy.integrate import DOP853 as Table  # noqa: N811

        self.field, self.begin, self.state, self.slope, self._h = field, x, y, slope, h
        self.end = x + h if end is None else end
        stages = len(Table.B)
        self._slopes = np.empty((stages + 1 + len(Table.C_EXTRA), y.size))
        self._slopes[0] = slope
        place = y
        for i in range(1, stages):
            place = y + h * (Table.A[i, :i] @ self._slopes[:i])
            self._slopes[i] = field(x + Table.C[i] * h, place)
        self.arrival: Array = y + h * (Table.B @ self._slopes[:stages])
        self.leaving = field(self.end, self.arrival)
        self._slopes[stages] = self.leaving
        fifth, third = (np.abs(h * (E @ self._slopes[: stages + 1])).max() for E in (Table.E5, Table.E3))
        self.error = float(fifth**2 / np.hypot(fifth, 0.1 * third)) if fifth > 0.0 else 0.0 * float(fifth)
        self._terms: Array | None = None
        self._between = 0.0
        steeper, moved = self.leaving - self._slopes[stages - 1], self.arrival - place  # two states at the end
        self._stretch = float(np.linalg.norm(steeper)), float(np.linalg.norm(moved))

    @property
    def stiffness(self) -> float:
        """How often the fastest mode turns over within the step: the field's change from one state to another."""
        steeper, moved = self._stretch
        if not np.isfinite(steeper):
            return np.inf
        return self._h * steeper / moved if moved > 0.0 else 0.0

    def again(self, x: float, y: Array, slope: Array, h: float, end: float) -> Step:
        """Take a part of the step by itself."""
        return Step(self.field, x, y, slope, h, end)

    def next_stride(self, tolerance: float) -> float:
        """Length that the next step may have, or this one should have had."""
        if not np.isfinite(self.error):
            return LEAST_FACTOR * self._h
        ratio = max(self.error / tolerance, 1e-16)
        return self._h * min(MOST_FACTOR, max(LEAST_FACTOR, SAFETY * ratio**POWER))

    def between(self, x: float) -> tuple[Array, float]:
        """Interpolate within the step; also the error of that, estimated by its last terms."""
        if self._terms is None:
            self._terms = self._interpolation()
            before, last = np.abs(self._terms[-2:]).max(axis=1).tolist()
            self._between = LAST * last + LAST_BUT_ONE * before
        share = (x - self.begin) / self._h
        weights = np.cumprod([share if i % 2 == 0 else 1.0 - share for i in range(len(self._terms))])
        return self.state + weights @ self._terms, self._between

    def _interpolation(self) -> Array:
        from scipy.integrate import DOP853 as Table  # noqa: N811

        first = len(Table.B) + 1
        for i, (weights, place) in enumerate(zip(Table.A_EXTRA, Table.C_EXTRA, strict=True), start=first):
            y = self.state + self._h * (weights[:i] @ self._slopes[:i])
            self._slopes[i] = self.field(self.begin + place * self._h, y)
        change, h = self.arrival - self.state, self._h
        hermite = [change, h * self.slope - change, 2.0 * change - h * (self.slope + self.leaving)]
        return np.vstack([*hermite, h * (Table.D @ self._slopes)])
