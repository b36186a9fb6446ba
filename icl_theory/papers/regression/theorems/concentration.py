"""The concentration event of the prompts: every feature about as frequent as expected (Eq. 9 of the paper)."""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import (
    Array,
    argument_error,
    fraction,
    integer,
    probabilities,
    real_array,
)
from icl_theory.memory import check_fits


class Probability(NamedTuple):
    """A probability and a bound on its absolute error."""

    value: float
    error: float


def concentration_probability(
    N: int, probs: ArrayLike | int, imbalance: float
) -> Probability:
    r"""Probability that :math:`|n_m - p_m N| \le \delta N` for all features, n multinomial.

    Independent Poisson counts with means :math:`p_m N`, given their sum N, are
    multinomial. So the probability is that of the Poisson counts lying in their boxes
    and having the sum N, a convolution of K box-restricted Poisson laws read at N,
    divided by the Poisson probability of N. All terms are non-negative, so direct
    convolution keeps relative accuracy. If it takes too long, the Fourier transform
    replaces it, and the absolute error bound is that of its rounding. See
    docs/theory.md, "The concentration event".

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

    Examples
    --------
    >>> import icl_theory as icl
    >>> round(icl.papers.regression.concentration_probability(100, 4, 0.1).value, 6)
    0.945195
    """
    (N, p), delta = _prompt(N, probs), fraction("imbalance", imbalance)
    return _box_probability(N, p, delta * N)


def smallest_imbalance(N: int, probs: ArrayLike | int, confidence: float) -> float:
    """Smallest δ for which the concentration event has at least the given probability.

    The probability is a step function of δ that rises where ``δN`` passes some ``|n -
    p_m N|``; the steps are searched by bisection.

    Parameters
    ----------
    N, probs
        As for `concentration_probability`.
    confidence : float
        Strictly between 0 and 1.

    Returns
    -------
    float
        δ; at most 1, and 0 if the expected counts themselves are likely enough (any δ >
        0 will do).

    Examples
    --------
    >>> import icl_theory as icl
    >>> icl.papers.regression.smallest_imbalance(100, 4, 0.9)
    0.09
    """
    (N, p), confidence = _prompt(N, probs), fraction("confidence", confidence)
    distinct = np.unique(p)
    check_fits("N", N, 24.0 * (N + 1) * len(distinct))
    jumps = np.unique(np.abs(np.arange(N + 1.0) - distinct[:, None] * N))

    def enough(index: int) -> bool:
        return _box_probability(N, p, float(jumps[index])).value >= confidence

    # boxes of a few standard deviations are enough, and wide ones take long
    low = 0
    high = int(np.searchsorted(jumps, math.sqrt(N * float(p.max()))))
    while high < len(jumps) - 1 and not enough(high):
        low = high + 1
        high = 2 * high + 1
    high = min(high, len(jumps) - 1)
    low = bisect_left(range(high), True, lo=low, key=enough)
    return float(jumps[low]) / N


def _prompt(N: int, probs: ArrayLike | int, most: int = 10**7) -> tuple[int, Array]:
    """Return the checked number of tokens and the probabilities; more than ``most`` of
    either take too long.
    """
    N = integer("N", N, minimum=1, maximum=most)
    if np.ndim(probs) == 0:
        K = integer("probs", probs, minimum=2, maximum=most)
        return N, np.full(K, 1.0 / K)
    size = len(real_array("probs", probs, 1))
    if size < 2:
        raise argument_error(
            "probs", probs, "at least two probabilities, or their number K >= 2"
        )
    return N, probabilities("probs", probs, size)


def _box_probability(N: int, p: Array, width: float) -> Probability:
    from scipy.special import gammaln

    # a count exactly on the edge is inside, in spite of rounding
    slack = 1e-9 * max(1.0, width)
    total = _Sum(np.ones(1), 0)
    for each, count in zip(*np.unique(p, return_counts=True), strict=True):
        mean = float(each) * N
        first = max(0, math.ceil(mean - width - slack))
        last = min(N, math.floor(mean + width + slack))
        if first > last:
            return Probability(0.0, 0.0)
        n = np.arange(first, last + 1.0)
        # relative to the largest term, by exact ratios: the law is normalised below
        log_law = np.concatenate([[0.0], np.cumsum(np.log(mean / n[1:]))])
        peak = (
            n[0] * math.log(mean) - mean - float(gammaln(n[0] + 1.0)) if n[0] else -mean
        )
        law = np.exp(log_law + peak)
        power = _trimmed(_Sum(law, first), float(law.max()) * 1e-100)
        for bit in reversed(bin(count)[2:]):
            total = _added(total, power, N) if bit == "1" else total
            power = _added(power, power, N) if 2 * power.offset <= N else power
    log_poisson = N * math.log(N) - N - float(gammaln(N + 1.0))
    index = N - total.offset
    value = (
        float(total.law[index]) * math.exp(-log_poisson)
        if 0 <= index < len(total.law)
        else 0.0
    )
    # rounding of N-term sums and of the logarithms, and of the transform if it was used
    relative = sys.float_info.epsilon * (8.0 * len(p) + 4.0 * N * max(1.0, math.log(N)))
    return Probability(
        min(1.0, value), value * relative + total.error * math.exp(-log_poisson)
    )


class _Sum(NamedTuple):
    """The law of a sum of counts."""

    law: Array  # probabilities from the count ``offset`` on
    offset: int
    error: float = 0.0  # of each probability, absolute
    work: float = 0.0  # multiplications spent on it


def _added(one: _Sum, other: _Sum, most: int, direct: float = 2e8) -> _Sum:
    """Return the law of a sum of independent counts, up to the count ``most``.

    After ``direct`` multiplications direct sums would take too long: the Fourier
    transform replaces them.
    """
    offset = one.offset + other.offset
    error = one.error + other.error
    a, b = (each.law[: max(0, most - offset) + 1] for each in (one, other))
    work = one.work + other.work + float(len(a)) * len(b)
    if work <= direct:
        law = np.convolve(a, b)
    else:
        from scipy.signal import fftconvolve

        error += (
            8.0
            * sys.float_info.epsilon
            * math.log2(len(a) + len(b))
            * float(np.linalg.norm(a) * np.linalg.norm(b))
        )
        law = np.maximum(fftconvolve(a, b), 0.0)
    return _trimmed(
        _Sum(law[: max(0, most - offset) + 1], offset, error, work), 0.1 * error
    )


def _trimmed(found: _Sum, least: float) -> _Sum:
    """Drop the ends of a law where probabilities are at most ``least``, and add
    ``least`` to the error.
    """
    there = np.flatnonzero(found.law > least)
    if there.size in (0, len(found.law)):
        return found
    first = int(there[0])
    last = int(there[-1])
    return _Sum(
        found.law[first : last + 1],
        found.offset + first,
        found.error + least,
        found.work,
    )
