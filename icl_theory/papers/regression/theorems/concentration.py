"""The concentration event of the prompts, Eq. 9 of the paper.

On this event every feature is about as frequent in the prompt as expected.
`concentration_probability` computes its exact probability for one δ, and
`smallest_imbalance` the δ for a probability.
"""

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

# More tokens or features than this take too long.
MOST = 10**7
# After this many multiplications direct convolution would take too long: the Fourier
# transform replaces it.
DIRECT_WORK = 2e8
# Probabilities below this share of the largest one are dropped from a law of counts.
NEGLIGIBLE = 1e-100


class Probability(NamedTuple):
    """A probability and a bound on its absolute error."""

    value: float
    error: float


def concentration_probability(
    N: int, probs: ArrayLike | int, imbalance: float
) -> Probability:
    r"""Probability that :math:`|n_m - p_m N| \le \delta N` for all features.

    The counts n are multinomial. Independent Poisson counts with means :math:`p_m N`
    are multinomial, too, given their sum N. So the probability is that the Poisson
    counts lie in their boxes and have the sum N, divided by the Poisson probability of
    N. The numerator is a convolution of K box-restricted Poisson laws, read at N. All
    its terms are non-negative, so direct convolution keeps relative accuracy. If that
    takes too long, the Fourier transform replaces it, and the absolute error bound is
    that of its rounding. See docs/theory.md, "The concentration event".

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
    prompt = _prompt(N, probs)
    delta = fraction("imbalance", imbalance)
    return _box_probability(prompt, delta * prompt.N)


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
    prompt = _prompt(N, probs)
    confidence = fraction("confidence", confidence)
    distinct = np.unique(prompt.p)
    check_fits("N", N, 24.0 * (prompt.N + 1) * len(distinct))
    # The probability changes only at these values of δN.
    counts = np.arange(prompt.N + 1.0)
    widths = np.unique(np.abs(counts - distinct[:, None] * prompt.N))

    def is_likely(index: int) -> bool:
        probability = _box_probability(prompt, float(widths[index]))
        return probability.value >= confidence

    # A box of a few standard deviations is enough, and wide boxes take long: double the
    # index from one standard deviation on, and then bisect.
    last = len(widths) - 1
    low = 0
    high = int(np.searchsorted(widths, math.sqrt(prompt.N * float(prompt.p.max()))))
    while high < last and not is_likely(high):
        low = high + 1
        high = 2 * high + 1
    high = min(high, last)
    smallest = bisect_left(range(high), True, lo=low, key=is_likely)
    return float(widths[smallest]) / prompt.N


class _Prompt(NamedTuple):
    """Number of tokens, and probabilities of the features."""

    N: int
    p: Array  # (K,)


def _prompt(N: int, probs: ArrayLike | int) -> _Prompt:
    """Check the number of tokens and the probabilities."""
    N = integer("N", N, minimum=1, maximum=MOST)
    if np.ndim(probs) == 0:
        K = integer("probs", probs, minimum=2, maximum=MOST)
        return _Prompt(N, np.full(K, 1.0 / K))
    size = len(real_array("probs", probs, 1))
    if size < 2:
        raise argument_error(
            "probs", probs, "at least two probabilities, or their number K >= 2"
        )
    return _Prompt(N, probabilities("probs", probs, size))


class CountLaw(NamedTuple):
    """The law of a count, or of a sum of counts.

    Attributes
    ----------
    probabilities : numpy.ndarray
        From the count ``offset`` on.
    offset : int
    error : float
        Absolute error of each probability.
    work : float
        Multiplications spent on it.
    """

    probabilities: Array
    offset: int
    error: float = 0.0
    work: float = 0.0


def _box_probability(prompt: _Prompt, width: float) -> Probability:
    """Probability that all counts are within ``width`` of their expectations."""
    from scipy.special import gammaln

    N, p = prompt
    total = CountLaw(np.ones(1), 0)
    for probability, features in zip(*np.unique(p, return_counts=True), strict=True):
        law = _box_law(float(probability) * N, width, N)
        if law is None:
            return Probability(0.0, 0.0)
        total = _add_copies(total, law, int(features), N)

    # Dividing by the Poisson probability of N conditions on the sum of the counts.
    log_poisson = N * math.log(N) - N - float(gammaln(N + 1.0))
    index = N - total.offset
    value = 0.0
    if 0 <= index < len(total.probabilities):
        value = float(total.probabilities[index]) * math.exp(-log_poisson)
    # Rounding of sums of N terms and of logarithms. The law's own error includes the
    # error of the transform, if it was used.
    rounding = sys.float_info.epsilon * (8.0 * len(p) + 4.0 * N * max(1.0, math.log(N)))
    error = value * rounding + total.error * math.exp(-log_poisson)
    return Probability(min(1.0, value), error)


def _box_law(mean: float, width: float, N: int) -> CountLaw | None:
    """The Poisson law of a count within ``width`` of its mean; None if none is."""
    from scipy.special import gammaln

    # A count exactly on the edge is inside, in spite of rounding.
    slack = 1e-9 * max(1.0, width)
    first = max(0, math.ceil(mean - width - slack))
    last = min(N, math.floor(mean + width + slack))
    if first > last:
        return None
    n = np.arange(first, last + 1.0)
    # Exact ratios of neighbouring terms keep relative accuracy over a wide box.
    log_ratios = np.concatenate([[0.0], np.cumsum(np.log(mean / n[1:]))])
    log_first = -mean
    if first > 0:
        log_first = n[0] * math.log(mean) - mean - float(gammaln(n[0] + 1.0))
    probabilities = np.exp(log_ratios + log_first)
    return _trimmed(
        CountLaw(probabilities, first), float(probabilities.max()) * NEGLIGIBLE
    )


def _add_copies(total: CountLaw, law: CountLaw, copies: int, most: int) -> CountLaw:
    """The law of a sum and ``copies`` independent counts of one law, by doubling."""
    power = law
    for bit in reversed(bin(copies)[2:]):
        if bit == "1":
            total = add_laws(total, power, most)
        # A power whose smallest sum is above ``most`` is not used again.
        if 2 * power.offset <= most:
            power = add_laws(power, power, most)
    return total


def add_laws(first: CountLaw, second: CountLaw, most: int) -> CountLaw:
    """Return the law of a sum of independent counts, up to the count ``most``."""
    offset = first.offset + second.offset
    size = max(0, most - offset) + 1
    a = first.probabilities[:size]
    b = second.probabilities[:size]
    error = first.error + second.error
    work = first.work + second.work + float(len(a)) * len(b)
    if work <= DIRECT_WORK:
        probabilities = np.convolve(a, b)
    else:
        from scipy.signal import fftconvolve

        norms = float(np.linalg.norm(a) * np.linalg.norm(b))
        error += 8.0 * sys.float_info.epsilon * math.log2(len(a) + len(b)) * norms
        probabilities = np.maximum(fftconvolve(a, b), 0.0)
    return _trimmed(CountLaw(probabilities[:size], offset, error, work), 0.1 * error)


def _trimmed(law: CountLaw, least: float) -> CountLaw:
    """Drop the ends of a law where probabilities are at most ``least``.

    The error grows by ``least``.
    """
    kept = np.flatnonzero(law.probabilities > least)
    if kept.size in (0, len(law.probabilities)):
        return law
    first = int(kept[0])
    last = int(kept[-1])
    return CountLaw(
        law.probabilities[first : last + 1],
        law.offset + first,
        law.error + least,
        law.work,
    )
