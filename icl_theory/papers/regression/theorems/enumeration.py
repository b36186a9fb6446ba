"""Loss, growth and attention by summing over prompts and functions: an independent reference for checks.

Nothing here uses a formula of the risks. A prompt is a vector of counts, a task law a
list of functions with the same second moments, and the prediction is the mean of the
labels under a softmax.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from icl_theory._validate import Array
from icl_theory.regression import tasks
from icl_theory.regression.features import Features
from icl_theory.regression.risks.population import PopulationRisk

STEP = 1e-3  # of differences: sixth-order errors are near rounding


class Prompts(NamedTuple):
    """All prompts for one query."""

    probability: Array  # (J,)
    attention: Array  # on the features, (J, K)
    counts: Array  # of the features, (J, K)


class Direct(NamedTuple):
    """Sums over all prompts and functions."""

    loss: Array  # of each query, (K,)
    slope: Array  # derivatives with respect to the scores, (K, K)
    attention: Array  # mean, (K, K)


@functools.cache
def count_vectors(N: int, K: int) -> Array:
    """All ways to distribute N tokens over K features, (J, K)."""
    bars = np.array([*itertools.combinations(range(N + K - 1), K - 1)], dtype=float)
    return np.asarray(np.diff(bars, prepend=-1.0, append=N + K - 1.0) - 1.0)


def enumerable(N: float, K: int, most: int = 2000) -> bool:
    """Whether there are few enough vectors of counts for a quick sum."""
    return math.isinf(N) or (most >= N and math.comb(int(N) + K - 1, K - 1) <= most)


def prompts(p: Array, N: float, scores: Array) -> Prompts:
    """Return all prompts of N tokens and the attention of a query with these scores,
    (K,), in each.
    """
    if math.isinf(N):
        counts = p[None, :]
        probability = np.ones(1)
    else:
        counts = count_vectors(int(N), len(p))
        factorials = np.array([math.lgamma(n + 1.0) for n in range(int(N) + 1)])
        logs = (
            factorials[-1]
            + counts @ np.log(p)
            - factorials[counts.astype(int)].sum(axis=1)
        )
        probability = np.exp(logs)
    with np.errstate(divide="ignore"):
        exponents = np.log(counts) + scores
    weights = np.exp(exponents - exponents.max(axis=1, keepdims=True))
    return Prompts(probability, weights / weights.sum(axis=1, keepdims=True), counts)


def functions_of(task: tasks.Task, features: Features) -> Array:
    """Functions at the features, (M, K), whose sum of products is the second moment E
    f_m f_j of the law.
    """
    x = features.vectors
    if isinstance(task, tasks.Exchangeable):
        apart = np.linalg.norm(x[:, None] - x, axis=-1)[
            ~np.eye(len(x), dtype=bool)
        ].min()
        return task.L * apart / math.sqrt(2.0) * np.eye(len(x))
    if isinstance(task, tasks.Linear):  # w along each axis
        return np.asarray(task.L / math.sqrt(features.d) * x.T)
    if isinstance(task, tasks.RandomCosine):  # two phases, a quarter turn apart
        angle = (x - x[0]) @ task.omega(features.d)
        return (
            task.amplitude / math.sqrt(2.0) * np.stack([np.cos(angle), np.sin(angle)])
        )
    if (
        isinstance(task, tasks.Quadratic) and features.d <= 30
    ):  # one entry of A, or of b
        products = np.einsum("mi,mj->ijm", x, x).reshape(-1, len(x))
        return np.concatenate(
            [task.L / features.d * products, task.L / math.sqrt(features.d) * x.T]
        )
    if isinstance(task, tasks.Halfspace):
        return task.L * np.where(np.arange(len(x)) < len(x) / 2, 1.0, -1.0)[None, :]
    if isinstance(task, tasks.FiniteTask):
        return np.asarray(np.sqrt(task.weights)[:, None] * task.values)
    values, vectors = np.linalg.eigh(task.kernel(features))
    return np.asarray((vectors * np.sqrt(np.maximum(values, 0.0))).T)


def direct(risk: PopulationRisk, scores: Array) -> Direct:
    """Sum the squared errors of all prompts and functions, and the softmax's
    derivatives of that sum.
    """
    p = risk.features.probs
    functions = functions_of(risk.task, risk.features)
    K = len(p)
    sigma = risk.noise if math.isfinite(risk.N) else 0.0
    loss = np.zeros(K)
    slope = np.zeros((K, K))
    attention = np.zeros((K, K))
    for k in range(K):
        probability, a, counts = prompts(p, risk.N, scores[:, k])
        off = functions - functions[:, [k]]
        error = a @ off.T  # Σ_m a_m (f_m - f_k), (prompts, functions)
        token = np.where(counts > 0, sigma**2 / np.where(counts > 0, counts, 1.0), 0.0)
        loss[k] = (
            0.5 * probability @ ((error**2).sum(axis=1) + (a * a * token).sum(axis=1))
        )
        pull = error @ off + a * token  # derivative with respect to a_m
        slope[:, k] = probability @ (a * (pull - (a * pull).sum(axis=1, keepdims=True)))
        attention[:, k] = probability @ a
    return Direct(loss, slope, attention)


def differences(function: Callable[[Array], Any], at: Array, toward: Array) -> Any:
    """Return the derivative in a direction, by a sixth-order difference."""
    ahead = [
        function(at + i * STEP * toward) - function(at - i * STEP * toward)
        for i in (1, 2, 3)
    ]
    return (45.0 * ahead[0] - 9.0 * ahead[1] + ahead[2]) / (60.0 * STEP)


def lipschitz_values(
    distances: Array, L: float, rng: np.random.Generator, size: int
) -> Array:
    """Draw L-Lipschitz functions at points with these distances, (size, K): largest
    extensions of random values.
    """
    height = L * float(distances.max()) * rng.uniform(-1.0, 1.0, (size, len(distances)))
    return np.asarray((height[:, :, None] + L * distances).min(axis=1))
