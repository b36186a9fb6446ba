"""Loss, growth and attention by sums over all prompts and over functions.

These sums are an independent reference for checks: no formula of the risks is used.
A prompt is a vector of counts, a task law is a list of functions with the same second
moments, and the prediction is the mean of the labels under a softmax. `direct` returns
the sums for one risk and its scores.
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

# The step of `differences`: at this one sixth-order errors are near rounding.
STEP = 1e-3
# Beyond this dimension the d² entries of A make too many functions.
MOST_QUADRATIC_DIMENSIONS = 30


class Prompts(NamedTuple):
    """All prompts for one query.

    Attributes
    ----------
    probability : numpy.ndarray, (J,)
    attention, counts : numpy.ndarray, (J, K)
        Attention on the features, and how often they are in the prompt.
    """

    probability: Array
    attention: Array
    counts: Array


class Direct(NamedTuple):
    """Sums over all prompts and functions.

    Attributes
    ----------
    loss : numpy.ndarray, (K,)
        Loss of each query.
    slope : numpy.ndarray, (K, K)
        Derivatives of the losses of the queries (columns) by their scores.
    attention : numpy.ndarray, (K, K)
        Mean attention of the queries (columns).
    """

    loss: Array
    slope: Array
    attention: Array


@functools.cache
def count_vectors(N: int, K: int) -> Array:
    """All ways to distribute N tokens over K features, (J, K)."""
    # Stars and bars: K - 1 bars among N + K - 1 places separate the counts.
    bars = np.array([*itertools.combinations(range(N + K - 1), K - 1)], dtype=float)
    return np.asarray(np.diff(bars, prepend=-1.0, append=N + K - 1.0) - 1.0)


def enumerable(N: float, K: int, most: int = 2000) -> bool:
    """Whether there are few enough vectors of counts for a quick sum."""
    if math.isinf(N):
        return True
    return most >= N and math.comb(int(N) + K - 1, K - 1) <= most


def prompts(p: Array, N: float, scores: Array) -> Prompts:
    """Return all prompts of N tokens, and the attention of one query in each.

    ``p`` are the probabilities of the features, and ``scores`` those of the query, both
    (K,).
    """
    if math.isinf(N):
        counts = p[None, :]
        probability = np.ones(1)
    else:
        counts = count_vectors(int(N), len(p))
        probability = _multinomial(p, int(N), counts)
    # A feature that is not in the prompt has the exponent -inf and no attention.
    with np.errstate(divide="ignore"):
        exponents = np.log(counts) + scores
    weights = np.exp(exponents - exponents.max(axis=1, keepdims=True))
    attention = weights / weights.sum(axis=1, keepdims=True)
    return Prompts(probability, attention, counts)


def _multinomial(p: Array, N: int, counts: Array) -> Array:
    """``N! Π_m p_m^n_m/n_m!`` for every vector of counts."""
    log_factorials = np.array([math.lgamma(n + 1.0) for n in range(N + 1)])
    log_probability = (
        log_factorials[-1]
        + counts @ np.log(p)
        - log_factorials[counts.astype(int)].sum(axis=1)
    )
    return np.asarray(np.exp(log_probability))


def functions_of(task: tasks.Task, features: Features) -> Array:
    """Functions with the second moments of a law, by their values at the features.

    The rows f_i of the result, (M, K), have Σ_i f_im f_ij = E f_m f_j.
    """
    x = features.vectors
    if isinstance(task, tasks.Exchangeable):
        return task.L * _smallest_distance(x) / math.sqrt(2.0) * np.eye(len(x))
    if isinstance(task, tasks.Linear):
        return _linear_functions(task.L, features)
    if isinstance(task, tasks.RandomCosine):
        # Two phases that differ by a quarter turn represent all of them.
        angle = (x - x[0]) @ task.omega(features.d)
        scale = task.amplitude / math.sqrt(2.0)
        return scale * np.stack([np.cos(angle), np.sin(angle)])
    if isinstance(task, tasks.Quadratic) and features.d <= MOST_QUADRATIC_DIMENSIONS:
        # One function for each entry of A, and one for each entry of b.
        products = np.einsum("mi,mj->ijm", x, x).reshape(-1, len(x))
        quadratic = task.L / features.d * products
        return np.concatenate([quadratic, _linear_functions(task.L, features)])
    if isinstance(task, tasks.Halfspace):
        is_first_half = np.arange(len(x)) < len(x) / 2
        return task.L * np.where(is_first_half, 1.0, -1.0)[None, :]
    if isinstance(task, tasks.FiniteTask):
        return np.asarray(np.sqrt(task.weights)[:, None] * task.values)
    values, vectors = np.linalg.eigh(task.kernel(features))
    return np.asarray((vectors * np.sqrt(np.maximum(values, 0.0))).T)


def _smallest_distance(points: Array) -> float:
    """Return the smallest distance between two of the points."""
    distances = np.linalg.norm(points[:, None] - points, axis=-1)
    return float(distances[~np.eye(len(points), dtype=bool)].min())


def _linear_functions(L: float, features: Features) -> Array:
    """``L/√d x``, with w along each axis."""
    return np.asarray(L / math.sqrt(features.d) * features.vectors.T)


def direct(risk: PopulationRisk, scores: Array) -> Direct:
    """Sum the squared errors over all prompts and functions, and their derivatives.

    The derivatives with respect to the scores are those of the softmax.
    """
    p = risk.features.probs
    functions = functions_of(risk.task, risk.features)
    K = len(p)
    # Label noise averages out over infinitely many tokens.
    sigma = risk.noise if math.isfinite(risk.N) else 0.0
    loss = np.zeros(K)
    slope = np.zeros((K, K))
    attention = np.zeros((K, K))
    for k in range(K):
        probability, a, counts = prompts(p, risk.N, scores[:, k])
        difference = functions - functions[:, [k]]
        # Σ_m a_m (f_m - f_k), one row a prompt and one column a function
        error = a @ difference.T
        # The labels of the n_m tokens at feature m have the mean noise σ²/n_m.
        is_present = counts > 0
        noise = np.where(is_present, sigma**2 / np.where(is_present, counts, 1.0), 0.0)
        squares = (error**2).sum(axis=1) + (a * a * noise).sum(axis=1)
        loss[k] = 0.5 * probability @ squares
        # derivative with respect to a_m, and through the softmax to S_mk
        by_attention = error @ difference + a * noise
        mean = (a * by_attention).sum(axis=1, keepdims=True)
        slope[:, k] = probability @ (a * (by_attention - mean))
        attention[:, k] = probability @ a
    return Direct(loss, slope, attention)


def differences(function: Callable[[Array], Any], at: Array, toward: Array) -> Any:
    """Return the derivative in a direction, by a sixth-order central difference."""

    def symmetric(steps: int) -> Any:
        offset = steps * STEP * toward
        return function(at + offset) - function(at - offset)

    return (45.0 * symmetric(1) - 9.0 * symmetric(2) + symmetric(3)) / (60.0 * STEP)


def lipschitz_values(
    distances: Array, L: float, rng: np.random.Generator, size: int
) -> Array:
    """Draw L-Lipschitz functions at points with these distances, (size, K).

    The functions are the largest L-Lipschitz functions below random values.
    """
    height = L * float(distances.max()) * rng.uniform(-1.0, 1.0, (size, len(distances)))
    return np.asarray((height[:, :, None] + L * distances).min(axis=1))
