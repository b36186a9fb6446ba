"""Which K x K problems reduce to one number, and back."""

from __future__ import annotations

import math

import numpy as np

from icl_theory._validate import Array, refuse
from icl_theory.engine.pullback import Embedding, Pullback
from icl_theory.engine.risk import Risk
from icl_theory.families.regression.exchangeable import ExchangeableRisk
from icl_theory.families.regression.features import Features
from icl_theory.families.regression.population import PopulationRisk
from icl_theory.families.regression.tasks import Exchangeable, Task


def alike(features: Features, law: Task, N: float, noise: float, coordinates: str) -> ExchangeableRisk | None:
    """Return the reduction to one number where all queries are alike, to a relative 1e-12."""
    K, speed = features.K, 1.0
    if not features.uniform or coordinates == "factored":
        return None
    off = ~np.eye(K, dtype=bool)
    if coordinates == "embedding":
        gram = features.gram
        if not (_constant(gram[off], gram[0, 0]) and _constant(np.diagonal(gram), gram[0, 0])):
            return None
        speed = float(gram[0, 0] - gram[0, 1]) ** 2
    pairs = law.variogram(features)[off]
    if not (np.isfinite(pairs).all() and _constant(pairs, pairs[0])):
        return None
    return ExchangeableRisk(K, float(pairs[0]), N, noise, speed, origin=(features, law))


def embedding_speed(delta: float) -> float:
    """Factor Δ⁴/4 on the learning rate in embedding coordinates over a regular simplex."""
    if not 1e-60 < delta < 1e60:
        raise refuse("delta", delta, "between 1e-60 and 1e60 in embedding coordinates")
    return delta**4 / 4.0


def expanded(risk: ExchangeableRisk) -> Risk:
    """Return the K x K risk, in its coordinates, that a one-number risk stands for."""
    if risk.origin is None:
        gap = (4.0 * risk.speed) ** 0.25
        features: Features = Features.simplex(risk.K, gap)
        law: Task = Exchangeable(math.sqrt(2.0 * risk.gamma) / gap)
    else:
        features, law = risk.origin
    full = PopulationRisk(features, law, risk.N, risk.noise)
    return full if risk.speed == 1.0 else Pullback(full, Embedding(features.vectors))


def is_nondegenerate(risk: PopulationRisk) -> bool:
    """Whether all c_k are positive, as far as that can be told in reasonable time."""
    K = risk.features.K
    variogram = risk.task.variogram(risk.features)
    row = variogram.mean(axis=1)
    eigenvalues = np.linalg.eigvalsh(row[:, None] + row - variogram - row.mean())
    if eigenvalues[1] > 1e-10 * eigenvalues[-1]:  # definite on zero-sum vectors
        return True
    return K <= 200 and float(risk.task.nondegeneracy(risk.features).min()) > 0.0


def _constant(values: Array, scale: float) -> bool:
    return bool(np.ptp(values) <= 1e-12 * abs(scale))
