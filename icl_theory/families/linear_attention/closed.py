"""Descent on quadratic risks in closed form, many at once: every mode shrinks by its own factor in each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from icl_theory._validate import Array
from icl_theory.engine.counting import ROUNDING, Steps, first_steps
from icl_theory.engine.descent import VISIBLE
from icl_theory.families.linear_attention.risks import MergedRisk, after

PLATEAU = 0.9  # of the excess at the start: a plateau ends where less is left


def runs(risks: Sequence[MergedRisk], eta: Array, above: Array, last: int) -> Mapping[str, Any]:
    """Columns of diagonal risks of one dimension, without a loss where ``above`` is too small; ``eta`` is (P,)."""
    curvature, best, start = (
        np.stack([getattr(risk, name) for risk in risks]) for name in ("curvature", "best", "start")
    )
    q, s = (np.stack([getattr(risk.law.modes, name) for risk in risks]) for name in ("q", "s"))
    floor = np.array([risk.floor() for risk in risks])
    shrink = eta[:, None] * curvature

    def states(steps: Steps) -> Array:
        return after(start, best, shrink, steps[:, None])

    def excess(steps: Steps) -> Array:
        return 0.5 * np.sum(q * ((states(steps) - best) * s) ** 2, axis=1)

    def blur(steps: Steps) -> Array:
        here = states(steps)
        size = np.maximum(np.abs(here), np.abs(best)).max(axis=1)
        return np.asarray(ROUNDING * size * np.sum(np.abs(curvature * (here - best)), axis=1))

    hit, error = first_steps(lambda steps: floor + excess(steps), floor + above, last, blur)
    reached = hit <= last
    end = np.where(reached, hit, last)
    over = np.minimum(first_steps(excess, PLATEAU * excess(np.zeros_like(end)), last)[0], end)
    left = excess(end)
    return {
        "eta_used": eta, "steps": np.where(reached, hit, -1), "T_plateau": over, "T_learning": end - over,
        "last": end, "method": "closed", "error": np.where(reached, error, 0.0),
        "loss": np.where(above < VISIBLE * floor, np.nan, floor + left), "floor": floor, "excess": left,
        "learnt": np.sum((states(end) >= 0.5 * best) & (best > 0.0), axis=1),
    }  # fmt: skip
