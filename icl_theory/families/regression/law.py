"""The law of runs that orders of magnitude are judged by, and their step counts in closed form."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import INT64_MAX, Array
from icl_theory.families.regression.abel import StepCounter
from icl_theory.families.regression.closed import closed_runs, step_constant

DRAWS, SEED, FITTING_SEED = 400, 0, 1
PARAMETERS = ("K", "δ", "ε/loss(0)", "c", "LΔδ")


class Runs(NamedTuple):
    """Runs of the exchangeable class by gradient descent with N = ∞, one entry a run."""

    size: Array
    """L Δ."""
    eta: Array
    K: Array
    epsilon: Array
    imbalance: Array
    counter: StepCounter
    attends: NDArray[np.int64]
    """T₁, the first step with Attn >= ½."""
    steps: NDArray[np.int64]
    """The first step with loss <= ε."""


class Law(NamedTuple):
    """Ranges from which runs are drawn, uniformly in logarithms.

    L Δ δ is below 1 in every other run and above it in the rest.
    """

    K: tuple[float, float]
    imbalance: tuple[float, float]
    target: tuple[float, float]
    """ε over the loss at the start."""
    step: tuple[float, float] = (1e-3, 1.0)
    """The step constant c = η γ K/(K-1)²."""
    product: tuple[float, float] = (1e-3, 1e2)
    """L Δ δ."""

    def __str__(self) -> str:
        named = zip(PARAMETERS, self, strict=True)
        return ", ".join(f"{name} = {low:g}..{high:g}" for name, (low, high) in named)


WHOLE = Law(K=(2, 1e4), imbalance=(1e-3, 0.3), target=(1e-9, 0.2))
INNER = Law(K=(2, 30), imbalance=(3e-2, 0.3), target=(1e-3, 0.2))


def draw(law: Law, seed: int) -> Runs:
    """Draw 400 runs of a law and find their step counts in closed form."""
    rng = np.random.default_rng(seed)

    def between(low: Array | float, high: Array | float) -> Array:
        return np.asarray(np.exp(rng.uniform(np.log(low), np.log(high), DRAWS)))

    K, imbalance = np.floor(between(law.K[0], law.K[1])), between(*law.imbalance)
    flat = np.arange(DRAWS) % 2 == 0
    product = between(np.where(flat, law.product[0], 1.0), np.where(flat, 1.0, law.product[1]))
    gamma = 0.5 * (product / imbalance) ** 2
    eta = between(*law.step) * (K - 1.0) ** 2 / (K * gamma)
    epsilon = between(*law.target) * 0.5 * gamma * (K - 1.0) / K
    return closed(product / imbalance, eta, K, epsilon, imbalance)


def closed(size: Array, eta: Array, K: Array, epsilon: Array, imbalance: Array) -> Runs:
    """Find the step counts of runs in closed form."""
    gamma = 0.5 * size**2
    counter = StepCounter(K, step_constant(eta, 1.0, gamma, K))
    found = closed_runs(counter, gamma, epsilon, INT64_MAX, np.full(K.size, 0.5))
    return Runs(size, eta, K, epsilon, imbalance, counter, found.attends, found.hit)


@cache
def law_runs() -> Runs:
    """The runs that the audit judges by: 400 draws of the whole law."""
    return draw(WHOLE, SEED)
