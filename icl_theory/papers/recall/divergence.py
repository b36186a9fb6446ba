"""Cross-entropies without cancellation: of noise, and of all words."""

from __future__ import annotations

import math

import numpy as np
from numpy.polynomial.legendre import leggauss

from icl_theory._validate import Array
from icl_theory.papers.recall.task import Words, entropy

NODES, WEIGHTS = leggauss(20)  # on (-1, 1)


def divergence(alpha: float, logit: Array) -> Array:
    r"""ln(1 + e^N) - αN - H(α), the excess of the logit N = ``logit`` of noise.

    It is the divergence of Bernoulli(sigmoid(N)) from Bernoulli(α). If N differs by at
    most 1 from the best logit, by u, it is integrated from its derivative

        α(1 - α)(e^s - 1)/(1 - α + αe^s),    0 <= s <= u,

    because the difference of the terms above loses its digits there.
    """
    if alpha == 0.0:
        return np.asarray(np.logaddexp(0.0, logit))
    if not 0.0 < alpha < 1.0:
        return np.asarray(np.logaddexp(0.0, -logit))
    u = logit - (math.log(alpha) - math.log1p(-alpha))
    end = np.clip(u, -1.0, 1.0)
    s = 0.5 * end[..., None] * (NODES + 1.0)
    slope = alpha * (1.0 - alpha) * np.expm1(s) / (1.0 - alpha + alpha * np.exp(s))
    near = 0.5 * end * (slope @ WEIGHTS)
    far = np.logaddexp(0.0, logit) - alpha * logit - entropy(alpha)
    return np.where(np.abs(u) <= 1.0, near, far)


def cross_entropy(logits: Array, answer: Words) -> tuple[Array, Array]:
    """Losses, (B,), and probabilities, (B, V).

    With R the log-sum of the logits of all words but the answer, whose logit is D, the
    loss is ln(1 + e^(R - D)). It keeps its digits however small it is.
    """
    rows = np.arange(len(answer))
    wrong_logits = logits.copy()
    wrong_logits[rows, answer] = -np.inf
    largest = wrong_logits.max(axis=1)
    wrong = np.exp(wrong_logits - largest[:, None])
    total = wrong.sum(axis=1)
    losses = np.logaddexp(0.0, (largest - logits[rows, answer]) + np.log(total))
    # 1 - e^(-loss) is the probability of all wrong words together
    probs = wrong * (-np.expm1(-losses) / total)[:, None]
    probs[rows, answer] = np.exp(-losses)
    return losses, probs
