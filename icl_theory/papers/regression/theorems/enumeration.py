"""Losses, their slopes and attention, by sums over all prompts and over functions.

These sums are an independent reference for checks: no formula of the risks is used.
All prompts are enumerated as vectors of counts. A law of tasks is replaced by a list of
functions with the same second moments, on which alone the loss depends. The prediction
is the mean of the labels under a softmax. `direct` returns the sums for one risk and
its scores.

Letters: there are K features v_m with the probabilities p_m, and a function has the
values f_m at them. A query has the feature k. A prompt has N tokens, of which n_m have
feature m. The score of feature m for the query is S_m, and a_m is the attention on all
tokens with this feature together. The label noise has the standard deviation σ, and the
loss of the query is ℓ.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import icl_theory as icl
from icl_theory._validate import Array
from icl_theory.regression import tasks

# The step of `differences`. With it the error of sixth order, about STEP⁶ = 1e-18, is
# far below the rounding of the difference quotient, about 1e-16/STEP = 1e-13.
STEP = 1e-3
# Random quadratic functions xᵀAx are represented by one function for each of the d²
# entries of A. Beyond this dimension these are too many, and K functions from the
# kernel take their place.
MOST_QUADRATIC_DIMENSIONS = 30


class Prompts(NamedTuple):
    """All J prompts that differ in their counts, and one query's attention in each.

    Attributes
    ----------
    probability : numpy.ndarray, (J,)
        The probability of each prompt.
    attention : numpy.ndarray, (J, K)
        Attention on each feature: on all tokens with this feature together.
    counts : numpy.ndarray, (J, K)
        How many tokens of the prompt have each feature. If prompts are infinitely long,
        the share of the tokens that have it.
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
        Column k has the derivatives of the loss of query k with respect to its scores.
    attention : numpy.ndarray, (K, K)
        Column k has the mean attention of query k on the features.
    """

    loss: Array
    slope: Array
    attention: Array


@functools.cache
def count_vectors(N: int, K: int) -> Array:
    """Return all ways to distribute N tokens over K features, (J, K).

    The array is cached, and must not be changed.
    """
    # Stars and bars: K - 1 bars in N + K - 1 places separate the counts. A count is the
    # number of places between two neighbouring bars. Two more bars, at -1 and
    # N + K - 1, enclose the first and the last count.
    bars = np.array([*itertools.combinations(range(N + K - 1), K - 1)], dtype=float)
    return np.asarray(np.diff(bars, prepend=-1.0, append=N + K - 1.0) - 1.0)


def enumerable(N: float, K: int, most: int = 2000) -> bool:
    """Whether there are at most ``most`` vectors of counts, so that a sum is quick.

    Infinitely long prompts count as a single vector.
    """
    if math.isinf(N):
        return True
    # There are at least N + 1 vectors. So the first test refuses long prompts before
    # their large binomial is computed.
    return most >= N and math.comb(int(N) + K - 1, K - 1) <= most


def prompts(p: Array, N: float, scores: Array) -> Prompts:
    """Return all prompts of N tokens, and the attention of one query in each.

    ``p`` has the probabilities of the features, and ``scores`` the scores of the query,
    both (K,).
    """
    if math.isinf(N):
        # A single prompt, whose tokens have the features in the proportions p.
        counts = p[None, :]
        probability = np.ones(1)
    else:
        counts = count_vectors(int(N), len(p))
        probability = _multinomial(p, int(N), counts)
    # The n_m tokens of feature m together have the weight n_m e^(S_m). A feature that
    # is not in the prompt has the exponent -inf and no attention.
    with np.errstate(divide="ignore"):
        exponents = np.log(counts) + scores
    # The largest exponent is subtracted, so that no weight overflows.
    weights = np.exp(exponents - exponents.max(axis=1, keepdims=True))
    attention = weights / weights.sum(axis=1, keepdims=True)
    return Prompts(probability, attention, counts)


def _multinomial(p: Array, N: int, counts: Array) -> Array:
    """Return ``N! Π_m p_m^n_m/n_m!`` for every vector of counts n, (J,)."""
    # Logarithms, because factorials overflow.
    log_factorials = np.array([math.lgamma(n + 1.0) for n in range(N + 1)])
    log_probability = (
        log_factorials[-1]
        + counts @ np.log(p)
        - log_factorials[counts.astype(int)].sum(axis=1)
    )
    return np.asarray(np.exp(log_probability))


def functions_of(task: tasks.Task, features: icl.Features) -> Array:
    """Return M functions with the second moments of a law of tasks, (M, K).

    A row f_i has the values f_im of a function at the features m. The sum
    Σ_i f_im f_ij over the rows is the mean E f_m f_j over the law.
    """
    x = features.vectors
    if isinstance(task, tasks.Exchangeable):
        # Multiples of the indicators of single features. With the factor LΔ/√2 every
        # value has the second moment L²Δ²/2, and products of two values are 0.
        return task.L * _smallest_distance(x) / math.sqrt(2.0) * np.eye(len(x))
    if isinstance(task, tasks.Linear):
        return _linear_functions(task.L, features)
    if isinstance(task, tasks.RandomCosine):
        # The functions are A cos(ωᵀx + φ) with random phases φ. The mean of
        # cos(a + φ) cos(b + φ) over φ is ½ cos(a - b) = ½ (cos a cos b + sin a sin b),
        # so two functions represent all phases. The angles count from the angle of the
        # first feature, because only differences matter.
        angle = (x - x[0]) @ task.omega(features.d)
        scale = task.amplitude / math.sqrt(2.0)
        return scale * np.stack([np.cos(angle), np.sin(angle)])
    if isinstance(task, tasks.Quadratic) and features.d <= MOST_QUADRATIC_DIMENSIONS:
        # The functions are xᵀAx + bᵀx with independent entries of A and b, whose
        # standard deviations are L/d and L/√d. One function stands for each entry A_ij:
        # the product x_i x_j times L/d. Another one stands for each entry of b.
        products = np.einsum("mi,mj->ijm", x, x).reshape(-1, len(x))
        quadratic = task.L / features.d * products
        return np.concatenate([quadratic, _linear_functions(task.L, features)])
    if isinstance(task, tasks.Halfspace):
        # The one function, up to its sign, is L on the first half of the features and
        # -L on the second.
        is_first_half = np.arange(len(x)) < len(x) / 2
        return task.L * np.where(is_first_half, 1.0, -1.0)[None, :]
    if isinstance(task, tasks.FiniteTask):
        # A factor √weight on a function is a factor ``weight`` on its products.
        return np.asarray(np.sqrt(task.weights)[:, None] * task.values)
    # Any other law has K functions from its kernel E f_m f_j: eigenvectors times the
    # roots of their eigenvalues. Rounding may leave some eigenvalues below 0.
    eigenvalues, eigenvectors = np.linalg.eigh(task.kernel(features))
    return np.asarray((eigenvectors * np.sqrt(np.maximum(eigenvalues, 0.0))).T)


def _smallest_distance(points: Array) -> float:
    """Return the smallest distance between two of the points."""
    distances = np.linalg.norm(points[:, None] - points, axis=-1)
    return float(distances[~np.eye(len(points), dtype=bool)].min())


def _linear_functions(L: float, features: icl.Features) -> Array:
    """Return the functions (L/√d) wᵀx for the unit vectors w along the axes, (d, K).

    They have the second moments of the random functions wᵀx with w ~ N(0, L²I/d).
    """
    return np.asarray(L / math.sqrt(features.d) * features.vectors.T)


def direct(risk: icl.PopulationRisk, scores: Array) -> Direct:
    """Return losses, slopes and attention, summed over all prompts and functions.

    The loss of query k is ½ E[(Σ_m a_m f_m - f_k)² + σ² Σ_m a_m²/n_m]. Slopes are the
    derivatives of this loss with respect to the scores, by the chain rule through the
    attention a.
    """
    p = risk.features.probs
    functions = functions_of(risk.task, risk.features)
    K = len(p)
    # Label noise averages out over infinitely many tokens.
    sigma = risk.noise if math.isfinite(risk.N) else 0.0
    loss = np.zeros(K)
    slope = np.zeros((K, K))
    mean_attention = np.zeros((K, K))
    for k in range(K):
        probability, a, counts = prompts(p, risk.N, scores[:, k])
        difference = functions - functions[:, [k]]  # f_m - f_k
        # Σ_m a_m (f_m - f_k), with a row for each prompt and a column for each function
        error = a @ difference.T
        # The mean label of the n_m tokens at feature m has a noise of variance σ²/n_m.
        # A feature without tokens has no attention, so its noise may be set to 0.
        is_present = counts > 0
        positive_counts = np.where(is_present, counts, 1.0)
        noise_variance = np.where(is_present, sigma**2 / positive_counts, 0.0)
        squares = (error**2).sum(axis=1) + (a * a * noise_variance).sum(axis=1)
        loss[k] = 0.5 * probability @ squares
        # ∂ℓ/∂S_m = a_m (g_m - Σ_j a_j g_j), where g_m = ∂ℓ/∂a_m
        attention_gradient = error @ difference + a * noise_variance
        mean_gradient = (a * attention_gradient).sum(axis=1, keepdims=True)
        slope[:, k] = probability @ (a * (attention_gradient - mean_gradient))
        mean_attention[:, k] = probability @ a
    return Direct(loss, slope, mean_attention)


def differences(function: Callable[[Array], Any], at: Array, toward: Array) -> Any:
    """Return the derivative at ``at`` in the direction ``toward``, by differences.

    The central difference quotient of sixth order is (45 d_1 - 9 d_2 + d_3)/(60 h). It
    has the step h, ``STEP``, and d_n is the difference of the function between the
    points n steps ahead and n steps back.
    """

    def difference_over(steps: int) -> Any:
        """Return d_n for n = ``steps``."""
        offset = steps * STEP * toward
        return function(at + offset) - function(at - offset)

    weighted = 45.0 * difference_over(1) - 9.0 * difference_over(2) + difference_over(3)
    return weighted / (60.0 * STEP)


def lipschitz_values(
    distances: Array, L: float, rng: np.random.Generator, size: int
) -> Array:
    """Draw values of L-Lipschitz functions at K points, (size, K).

    ``distances``, (K, K), are the distances ‖v_m - v_j‖ between the points. Each point
    m gets a random height h_m. A function is the largest L-Lipschitz function that is
    nowhere above the heights: f_j = min_m (h_m + L ‖v_m - v_j‖).
    """
    # If the heights differed more, most functions would grow like L times the distance
    # from their lowest point.
    largest_difference = L * float(distances.max())
    heights = largest_difference * rng.uniform(-1.0, 1.0, (size, len(distances)))
    # The axes of the sum are the functions, the points m and the points j.
    return np.asarray((heights[:, :, None] + L * distances).min(axis=1))
