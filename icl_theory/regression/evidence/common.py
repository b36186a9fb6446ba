"""What the rows of the audit share: random problems."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from icl_theory._validate import Array
from icl_theory.claims import Claim
from icl_theory.regression import tasks
from icl_theory.regression.features import Features
from icl_theory.regression.population import PopulationRisk

PAPER, OURS = "paper, {} (reconstructed)", "this package"
Row = Callable[[bool], Claim]


def random_risk(seed: int, K: int, N: float = math.inf, noise: float = 0.0) -> PopulationRisk:
    """Return a risk with a random kernel and random feature probabilities."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(K, K))
    return PopulationRisk(
        Features.simplex(K, 1.0, rng.dirichlet(np.full(K, 4.0))), tasks.KernelTask(root @ root.T), N, noise
    )


def random_scores(seed: int, K: int, size: float) -> Array:
    """Return normal scores."""
    return size * np.random.default_rng(seed).normal(size=(K, K))
