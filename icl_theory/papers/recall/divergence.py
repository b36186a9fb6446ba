"""Cross-entropies without cancellation: of noise, and of all words.

The word after a sentence, its answer, is noise with the probability α. B is the number
of sentences, and V the number of words.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.polynomial.legendre import leggauss

from icl_theory._validate import Array
from icl_theory.papers.recall.task import Words, entropy

# Gauss-Legendre nodes and weights on (-1, 1). Fewer would do: the integrand of
# `divergence` has its poles at a distance of π or more from an interval of length 1 or
# less, so that the rule with n nodes has an error like 12^(-2n).
NODES, WEIGHTS = leggauss(20)


def divergence(alpha: float, logit: Array) -> Array:
    r"""Return the excess loss ln(1 + e^N) - αN - H(α) at the logit N of noise.

    H(α) is the entropy of the noise. The result is the Kullback-Leibler divergence
    D(p‖p_N) of the law p of noise with the probability α and the predicted law p_N
    with the probability 1/(1 + e^-N). It is zero at the best logit N* = ln(α/(1 - α)).
    Near N* the three terms above cancel and lose their digits. If u = N - N* is at most
    1 in size, the result is computed instead as the integral of its derivative with
    respect to N, which at N* + s is the integrand:

        ∫_0^u α(1 - α)(e^s - 1)/(1 - α + αe^s) ds .

    The formula with three terms also holds at α = 0 and 1, with the entropy H(α) = 0.
    """
    # At α = 0 and 1 the best logit N* is infinite, and nothing cancels.
    if alpha == 0.0:
        return np.asarray(np.logaddexp(0.0, logit))
    if alpha >= 1.0:
        # ln(1 + e^N) - N = ln(1 + e^-N)
        return np.asarray(np.logaddexp(0.0, -logit))
    u = logit - (math.log(alpha) - math.log1p(-alpha))
    # The nodes of (-1, 1), moved to (0, u). If u is beyond 1 in size, the integral is
    # not used, and the clip keeps exp() from overflowing.
    end = np.clip(u, -1.0, 1.0)
    s = 0.5 * end[..., None] * (NODES + 1.0)  # (..., nodes)
    slope = alpha * (1.0 - alpha) * np.expm1(s) / (1.0 - alpha + alpha * np.exp(s))
    integral = 0.5 * end * (slope @ WEIGHTS)
    three_terms = np.logaddexp(0.0, logit) - alpha * logit - entropy(alpha)
    return np.where(np.abs(u) <= 1.0, integral, three_terms)


def cross_entropy(logits: Array, answer: Words) -> tuple[Array, Array]:
    """Return the losses, (B,), and the probabilities of all words, (B, V).

    ``logits`` is (B, V), and ``answer`` has the right words, (B,). Let D be the logit
    of the answer, and R the log-sum-exp of the logits of all other words. The loss is
    ln(1 + e^(R - D)). In this form it keeps its digits, however small it is.
    """
    sentence = np.arange(len(answer))
    wrong_logits = logits.copy()
    wrong_logits[sentence, answer] = -np.inf
    # R = largest + ln(total). The largest wrong logit is subtracted, so that exp()
    # cannot overflow.
    largest = wrong_logits.max(axis=1)
    wrong = np.exp(wrong_logits - largest[:, None])
    total = wrong.sum(axis=1)
    losses = np.logaddexp(0.0, (largest - logits[sentence, answer]) + np.log(total))
    # The wrong words together have the probability 1 - e^(-loss). It is shared in
    # proportion to the e^logit.
    probs = wrong * (-np.expm1(-losses) / total)[:, None]
    probs[sentence, answer] = np.exp(-losses)
    return losses, probs
