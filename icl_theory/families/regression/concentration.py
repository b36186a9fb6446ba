"""The concentration event of the prompts: every feature about as frequent as expected (Eq. 9 of the paper)."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import Array, fraction, integer, probabilities, real_array, refuse

ROUNDING = 2.0**-52
LONGEST = 10**7  # tokens
DIRECT = 2e8  # multiplications beyond which the convolutions go through the Fourier transform


class Probability(NamedTuple):
    """A probability and a bound on its absolute error."""

    value: float
    error: float


def concentration_probability(N: int, probs: ArrayLike | int, imbalance: float) -> Probability:
    r"""Probability that :math:`|n_m - p_m N| \le \delta N` for all features, n multinomial.

    Independent Poisson counts with means :math:`p_m N`, given their sum N, are multinomial. So the probability is
    that of the Poisson counts lying in their boxes and having the sum N, a convolution of K box-restricted
    Poisson laws read at N, divided by the Poisson probability of N. All terms are non-negative: direct
    convolution keeps relative accuracy; where it would take too long the Fourier transform is used and the
    absolute error bound is that of its rounding.

    Parameters
    ----------
    N : int
        Prompt length.
    probs : array_like, (K,), or int
        Probabilities of the features, or K for equal ones.
    imbalance : float
        δ, strictly between 0 and 1.

    Returns
    -------
    Probability
        ``value`` and a bound on its absolute ``error``.

    References
    ----------
    docs/theory.md, "The concentration event".

    Examples
    --------
    >>> import icl_theory as icl
    >>> round(icl.regression.concentration_probability(100, 4, 0.1).value, 6)
    0.945195
    """
    N, p, delta = integer("N", N, minimum=1, maximum=LONGEST), _probs(probs), fraction("imbalance", imbalance)
    return _box_probability(N, p, delta * N)


def smallest_imbalance(N: int, probs: ArrayLike | int, confidence: float) -> float:
    """Smallest δ for which the concentration event has at least the given probability.

    The probability is a step function of δ that rises where ``δN`` passes some ``|n - p_m N|``; the steps are
    searched by bisection.

    Parameters
    ----------
    N : int
        Prompt length.
    probs : array_like, (K,), or int
        Probabilities of the features, or K for equal ones.
    confidence : float
        Strictly between 0 and 1.

    Returns
    -------
    float
        δ; at most 1, and 0 where the expected counts themselves are likely enough (any δ > 0 will do).

    Examples
    --------
    >>> import icl_theory as icl
    >>> icl.regression.smallest_imbalance(100, 4, 0.9)
    0.09
    """
    N, p, confidence = (
        integer("N", N, minimum=1, maximum=LONGEST),
        _probs(probs),
        fraction("confidence", confidence),
    )
    counts = np.arange(N + 1.0)
    jumps = np.unique(np.abs(counts - np.unique(p)[:, None] * N))
    low, high = 0, len(jumps) - 1
    while low < high:
        middle = (low + high) // 2
        enough = _box_probability(N, p, float(jumps[middle])).value >= confidence
        low, high = (low, middle) if enough else (middle + 1, high)
    return float(jumps[low]) / N


def _probs(probs: ArrayLike | int) -> Array:
    if np.ndim(probs) == 0:
        K = integer("probs", probs, minimum=2)
        return np.full(K, 1.0 / K)
    size = len(real_array("probs", probs, 1))
    if size < 2:
        raise refuse("probs", probs, "at least two probabilities, or their number K >= 2")
    return probabilities("probs", probs, size)


def _box_probability(N: int, p: Array, width: float) -> Probability:
    from scipy.special import gammaln

    slack = 1e-9 * max(1.0, width)  # so that a count exactly on the edge is inside in spite of rounding
    total, offset, work = np.ones(1), 0, 0.0
    error = 0.0
    transformed = False
    for mean in p * N:
        first, last = max(0, math.ceil(mean - width - slack)), min(N, math.floor(mean + width + slack))
        if first > last:
            return Probability(0.0, 0.0)
        n = np.arange(first, last + 1.0)
        # relative to the largest term, by exact ratios: the law is normalised below
        log_law = np.concatenate([[0.0], np.cumsum(np.log(mean / n[1:]))])
        peak = n[0] * math.log(mean) - mean - float(gammaln(n[0] + 1.0)) if n[0] else -mean
        law = np.exp(log_law + peak)
        work += float(len(total)) * len(law)
        if work > DIRECT:
            from scipy.signal import fftconvolve

            transformed = True
            error += (
                8.0
                * ROUNDING
                * math.log2(len(total) + len(law))
                * float(np.linalg.norm(total) * np.linalg.norm(law))
            )
            total = np.maximum(fftconvolve(total, law), 0.0)
        else:
            total = np.convolve(total, law)
        offset += first
    log_poisson = N * math.log(N) - N - float(gammaln(N + 1.0))
    index = N - offset
    value = float(total[index]) * math.exp(-log_poisson) if 0 <= index < len(total) else 0.0
    # rounding of N-term sums and of the logarithms, and of the transform where it was used
    relative = ROUNDING * (8.0 * len(p) + 4.0 * N * max(1.0, math.log(N)))
    return Probability(min(1.0, value), value * relative + (error * math.exp(-log_poisson) if transformed else 0.0))
