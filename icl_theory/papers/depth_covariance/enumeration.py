"""The mean loss of explicit layers over all prompts, by a Gauss rule in every entry.

It shares no formula with the moments of words, and takes any matrix Γ. Prompts must
have very few entries: the rule has (2L + 1)^(N d) nodes.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from numpy.polynomial.hermite_e import hermegauss

from icl_theory._validate import Array
from icl_theory.memory import check_fits


def explicit_losses(
    gamma: Array,
    tokens: Array,
    covariance: Array,
    prior: Array,
    depth: int,
    noise: float = 0.0,
) -> Array:
    """Return the loss of layers on some prompts, (B,), given their tokens (B, N, d).

    The layers run on the labels of each basis task, and on unit noise of each label.
    The means over tasks, noise and query are then quadratic forms.
    """
    B, N, d = tokens.shape
    labels = np.concatenate([tokens, np.broadcast_to(np.eye(N), (B, N, N))], axis=2)
    # Column j holds the vector b of the prediction bᵀx for the labels j.
    predictor = np.zeros((B, d, d + N))
    for _ in range(depth):
        change = gamma @ (np.swapaxes(tokens, 1, 2) @ labels) / (depth * N)
        predictor = predictor + change
        labels = labels - tokens @ change
    of_tasks = predictor[:, :, :d] - np.eye(d)
    of_noise = predictor[:, :, d:]
    bias = np.einsum("ij,bik,kl,bjl->b", covariance, of_tasks, prior, of_tasks)
    variance = np.einsum("ij,bik,bjk->b", covariance, of_noise, of_noise)
    return np.asarray(0.5 * (bias + noise**2 * variance))


def enumerated_loss(
    gamma: Array,
    covariance: Array,
    prior: Array,
    N: int,
    depth: int,
    noise: float = 0.0,
) -> float:
    """Return the mean loss over normal tokens; the loss has degree 4L in each entry."""
    d = len(covariance)
    nodes, weights = hermegauss(2 * depth + 1)
    weights = weights / math.sqrt(2.0 * math.pi)
    size = float(len(nodes)) ** (N * d)
    check_fits("N", N, 8.0 * size * 3.0 * (N + d) * (N + d))
    grid = np.array(list(itertools.product(range(len(nodes)), repeat=N * d)))
    root = np.linalg.cholesky(covariance)
    tokens = nodes[grid].reshape(-1, N, d) @ root.T
    losses = explicit_losses(gamma, tokens, covariance, prior, depth, noise)
    return float(np.prod(weights[grid], axis=1) @ losses)
