"""Normalised descent on one number in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.engine.risk import Risk


@dataclass(frozen=True, eq=False)
class StraightLine:
    """Normalised descent on one number, a closed form: it moves by ``step`` at every step.

    Parameters
    ----------
    risk : Risk
        Its loss falls with the one parameter.
    step : float
        How far each step goes.
    """

    risk: Risk
    step: float

    def states(self, steps: NDArray[np.int64]) -> Array:
        """Return λ at some steps, (T, 1)."""
        return self.step * np.asarray(steps, dtype=np.float64)[:, None]

    def first_below(self, epsilon: float, last: int) -> tuple[int | None, float]:
        """Return the first step with loss <= epsilon by bisection; it is exact."""

        def reached(t: int) -> bool:
            return self.risk.evaluate(np.array([self.step * t]))[0] <= epsilon

        if reached(0):
            return 0, 0.0
        if not reached(last):
            return None, 0.0
        low, high = 0, 1
        while not reached(high):
            low, high = high, min(2 * high, last)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if reached(middle) else (middle, high)
        return high, 0.0
