"""Plain iteration, as a reference: of the exchangeable case, and of any scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from icl_theory._validate import Array
from icl_theory.families.regression.risks.population import PopulationRisk


def iterated_steps(K: float, c: float, deficits: Sequence[float]) -> list[int]:
    """Steps of u <- u + c a s² from 0 to the first with s <= each of these deficits, by plain iteration."""
    start, u, n, counts = math.log(K - 1.0), 0.0, 0, []
    for deficit in deficits:
        goal = start + math.log1p(-deficit) - math.log(deficit)
        while u < goal:
            s = 1.0 / (1.0 + math.exp(u - start))
            u, n = u + c * (1.0 - s) * s * s, n + 1
        counts.append(n)
    return counts


def iterated_gaps(K: float, c: float, steps: int) -> Array:
    """Iterates of u <- u + c a s² from 0, (steps + 1,)."""
    start, path = math.log(K - 1.0), [0.0]
    for _ in range(steps):
        s = 1.0 / (1.0 + math.exp(path[-1] - start))
        path.append(path[-1] + c * (1.0 - s) * s * s)
    return np.array(path)


def iterated_after_phase_one(K: float, c: float, deficit: float) -> int:
    """Steps from the attention ½ to a deficit."""
    first, last = iterated_steps(K, c, (0.5, deficit))
    return last - first


def plain_descent(risk: PopulationRisk, params: Array, eta: float, steps: int) -> Array:
    """Scores after plain steps."""
    for _ in range(steps):
        params = params - eta * risk.gradient(params)
    return params
