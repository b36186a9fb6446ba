"""Cross-entropies without cancellation: of noise, and of all words."""

from __future__ import annotations

import math

import numpy as np
from numpy.polynomial.legendre import leggauss

from icl_theory._validate import Array
from icl_theory.papers.recall.task import Words, entropy

NODES, WEIGHTS = leggauss(20)  # on (-1, 1)


def divergence(alpha: float, logit: Array) -> Array:
    r"""ln(1 + e^N) - αN - H(α), the excess loss at the logit N = ``logit`` of noise.

    The result is the divergence of Bernoulli(sigmoid(N)) from Bernoulli(α), and zero at
    the best logit N* = ln(α/(1 - α)). Near N* the terms above cancel and lose their
    digits. Therefore, if u = N - N* is at most 1 in size, the result is the integral

        ∫_0^u α(1 - α)(e^s - 1)/(1 - α + αe^s) ds

    of its derivative with respect to N.
    """
    if alpha == 0.0:
        return np.asarray(np.logaddexp(0.0, logit))
    if alpha >= 1.0:
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
