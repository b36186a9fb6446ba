"""Descent on a quadratic risk in closed form: every mode shrinks by its own factor in each step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from icl_theory._validate import Array, refuse
from icl_theory.engine.counting import Steps, first_steps
from icl_theory.engine.descent import VISIBLE
from icl_theory.grids.grid import MESSAGE, NOT_REACHED, REACHED, STATUS, Column, Values, blank

if TYPE_CHECKING:
    from icl_theory.families.linear_attention.risks import MergedRisk

PLATEAU = 0.9  # of the excess at the start: a plateau ends where less is left


def powers(shrink: Array, steps: Steps) -> Array:
    """Return ``(1 - shrink)^t`` for arrays that broadcast."""
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = np.where(shrink <= 0.5, np.log1p(-shrink), np.log(np.abs(1.0 - shrink)))
        size = np.where(steps == 0, 1.0, np.exp(steps * rate))
    return np.where((shrink > 1.0) & (steps % 2 == 1), -size, size)


class ModeSteps:
    """Descent on a `MergedRisk` at a rate below 2 over the largest curvature, as a `ClosedForm`."""

    def __init__(self, risk: MergedRisk, eta: float) -> None:
        self.risk, self.shrink = risk, eta * risk.curvature
        self.offset = risk.modes(risk.start - risk.best)

    def states(self, steps: Steps) -> Array:
        """Return Γ at some steps, (T, d, d) or (T, d)."""
        places = np.asarray(steps).reshape(-1, *(1,) * self.shrink.ndim)
        return np.asarray(self.risk.best + self.risk.back(self.offset * powers(self.shrink, places)))

    def first_below(self, epsilon: float, last: int) -> tuple[int | None, float]:
        """Return the first step with loss <= epsilon, and how far rounding of the loss may move it."""

        def loss(steps: Steps) -> Array:
            return np.array([self.risk.evaluate(state)[0] for state in self.states(steps)])

        hit, error = first_steps(loss, np.array([epsilon]), last)
        return (int(hit[0]), float(error[0])) if hit[0] <= last else (None, 0.0)


def closed_values(
    columns: tuple[Column, ...], risks: Sequence[MergedRisk], eta: Array, above: Array, last: int
) -> Values:
    """Measure runs of P diagonal risks of one dimension, as one simulation each would; ``eta`` is (P,)."""
    values = blank(columns, len(risks))
    curvature, best, start = (
        np.stack([getattr(risk, name) for risk in risks]) for name in ("curvature", "best", "start")
    )
    floor = np.array([risk.floor() for risk in risks])
    lost = np.flatnonzero(above < VISIBLE * floor)
    if lost.size:
        raise refuse("above", float(above[lost[0]]), f"at least {VISIBLE:g} of the floor")
    shrink, offset = eta[:, None] * curvature, start - best

    def states(steps: Steps) -> Array:
        return np.asarray(best + offset * powers(shrink, steps[:, None]))

    def excess(steps: Steps) -> Array:
        modes = states(steps) - best
        return 0.5 * np.sum(curvature * modes * modes, axis=1)

    hit, error = first_steps(lambda steps: floor + excess(steps), floor + above, last)
    reached = hit <= last
    end = np.where(reached, hit, last)
    over = np.minimum(first_steps(excess, PLATEAU * excess(np.zeros_like(end)), last)[0], end)
    left = excess(end)
    values |= {
        "eta_used": eta, "steps": np.where(reached, hit, -1), "T_plateau": over, "T_learning": end - over,
        "last": end, "error": np.where(reached, error, 0.0), "loss": floor + left, "floor": floor, "excess": left,
        "learnt": np.sum((states(end) >= 0.5 * best) & (best > 0.0), axis=1),
    }  # fmt: skip
    values["method"][:] = "closed"
    values[STATUS.name][:] = np.where(reached, REACHED, NOT_REACHED)
    for i in np.flatnonzero(~reached):
        target = floor[i] + above[i]
        values[MESSAGE.name][i] = f"took all {end[i]} steps without reaching epsilon = {target:g}"
    return values
