"""The mean loss of explicit layers over all prompts, by a Gauss rule.

There is a rule for each of the N d entries of the tokens, so prompts must have very few
entries: the product of the rules has (2L + 1)^(N d) nodes for L layers. This
computation shares no formula with `DepthRisk`, which uses means of words in a Wishart
matrix. The matrix Γ need not be symmetric.
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
    """Return the mean loss of the layers for each of B prompts of given tokens, (B,).

    Tokens are (B, N, d). The matrix Γ of the layers, the covariance of the query and
    the second moment of the tasks are (d, d). The mean is over tasks, label noise and
    query. The layers are linear in the labels, so they run on the labels of the d unit
    tasks, and on unit noise of each of the N labels. The means are then quadratic
    forms.
    """
    B, N, d = tokens.shape
    labels_of_unit_tasks = tokens  # unit task j labels a token by its entry j
    unit_noise = np.broadcast_to(np.eye(N), (B, N, N))
    labels = np.concatenate([labels_of_unit_tasks, unit_noise], axis=2)
    # Column j holds the vector b of the prediction bᵀx for column j of the labels.
    predictor = np.zeros((B, d, d + N))
    # A layer adds ΓXᵀy/(LN) to the predictor, for tokens X and labels y, and subtracts
    # its predictions from the labels.
    for _ in range(depth):
        change = gamma @ (np.swapaxes(tokens, 1, 2) @ labels) / (depth * N)
        predictor = predictor + change
        labels = labels - tokens @ change
    # The right vector b for a unit task is the task itself, and for noise it is zero.
    task_errors = predictor[:, :, :d] - np.eye(d)
    noise_errors = predictor[:, :, d:]
    # The loss is ½(tr ΣDΩDᵀ + σ² tr ΣFFᵀ) with the errors D for tasks and F for noise.
    bias = np.einsum("ij,bik,kl,bjl->b", covariance, task_errors, prior, task_errors)
    variance = np.einsum("ij,bik,bjk->b", covariance, noise_errors, noise_errors)
    return np.asarray(0.5 * (bias + noise**2 * variance))


def enumerated_loss(
    gamma: Array,
    covariance: Array,
    prior: Array,
    N: int,
    depth: int,
    noise: float = 0.0,
) -> float:
    """Return the mean loss over prompts of N normal tokens of the given covariance.

    The loss has the degree 4L in each entry of the tokens, for which 2L + 1 nodes are
    exact.
    """
    d = len(covariance)
    nodes, weights = hermegauss(2 * depth + 1)
    weights = weights / math.sqrt(2.0 * math.pi)  # of the standard normal law
    prompt_count = float(len(nodes)) ** (N * d)
    # Each prompt has a few arrays of at most (N + d)² numbers of 8 bytes. Space for
    # three such arrays at once is generous.
    check_fits("N", N, 8.0 * prompt_count * 3.0 * (N + d) * (N + d))
    # Each row is a prompt: the index of the node of each of its N d entries.
    node_numbers = np.array(list(itertools.product(range(len(nodes)), repeat=N * d)))
    root = np.linalg.cholesky(covariance)
    tokens = nodes[node_numbers].reshape(-1, N, d) @ root.T
    losses = explicit_losses(gamma, tokens, covariance, prior, depth, noise)
    return float(np.prod(weights[node_numbers], axis=1) @ losses)
