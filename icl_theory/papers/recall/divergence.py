"""Cross-entropies without cancellation: of noise, and of all words."""

from __future__ import annotations

import math

import numpy as np
from numpy.polynomial.legendre import leggauss

from icl_theory._validate import Array
from icl_theory.papers.recall.task import Words, entropy

NODES, WEIGHTS = leggauss(20)  # on (-1, 1)


def divergence(alpha: float, logit: Array) -> Array:
    """Divergence of Bernoulli(sigmoid(logit)) from Bernoulli(alpha), accurate also if they are close."""
    if not 0.0 < alpha < 1.0:
        return np.asarray(np.logaddexp(0.0, logit if alpha == 0 else -logit))
    u = logit - (math.log(alpha) - math.log1p(-alpha))
    s = 0.5 * np.clip(u, -1.0, 1.0)[..., None] * (NODES + 1.0)
    slope = alpha * (1.0 - alpha) * np.expm1(s) / (1.0 - alpha + alpha * np.exp(s))
    near = 0.5 * np.clip(u, -1.0, 1.0) * (slope @ WEIGHTS)
    far = np.logaddexp(0.0, logit) - alpha * logit - entropy(alpha)
    return np.where(np.abs(u) <= 1.0, near, far)


def cross_entropy(logits: Array, answer: Words) -> tuple[Array, Array]:
    """Losses, accurate however small, (B,), and probabilities, (B, V)."""
    rows = np.arange(len(answer))
    others = logits.copy()
    others[rows, answer] = -np.inf
    top = others.max(axis=1)
    shifted = np.exp(others - top[:, None])
    wrong = shifted.sum(axis=1)
    losses = np.logaddexp(0.0, (top - logits[rows, answer]) + np.log(wrong))
    probs = shifted * (-np.expm1(-losses) / wrong)[:, None]
    probs[rows, answer] = np.exp(-losses)
    return losses, probs
