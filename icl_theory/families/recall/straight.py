"""Normalised descent on one number in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from icl_theory._validate import Array
from icl_theory.engine.counting import Steps, first_steps
from icl_theory.engine.risk import Risk


@dataclass(frozen=True, eq=False)
class StraightLine:
    """Normalised descent on one number λ that moves by ``step`` at every step, and with which the loss falls."""

    risk: Risk
    step: float

    def states(self, steps: Steps) -> Array:
        """Return λ at these steps, (T, 1)."""
        return self.step * np.asarray(steps, dtype=np.float64)[:, None]

    def first_below(self, epsilon: float, last: int) -> tuple[int | None, float]:
        """Return the first step with loss <= epsilon, and its error by rounding of λ and of the loss."""

        def loss(steps: Steps) -> Array:
            return np.array([self.risk.evaluate(state)[0] for state in self.states(steps)])

        high = 1
        while high < last and loss(np.array([high]))[0] > epsilon:
            high = min(2 * high, last)
        hit, error = first_steps(loss, np.array([epsilon]), high)
        return (int(hit[0]), float(error[0])) if hit[0] <= last else (None, 0.0)
