"""The concentration event of the prompts, Eq. 9 of the paper.

On this event every feature is about as frequent in the prompt as expected: its count
deviates from the expected one by at most δN. `concentration_probability` computes the
exact probability of the event for a given δ, and `smallest_imbalance` the smallest δ
for a given probability.

Letters: a prompt has N tokens, and n_m of them have feature m, whose probability is
p_m. There are K features.
"""

from __future__ import annotations

import math
import sys
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

# More tokens or features than this would take too long, and are refused.
MOST = 10**7
# Direct convolution does this many multiplications in about a tenth of a second, and
# the search for an imbalance computes dozens of probabilities. If a law takes more, the
# Fourier transform replaces direct convolution.
DIRECT_WORK = 2e8
# Probabilities below this share of the largest one are dropped from a law of counts.
# Such probabilities are far below the rounding of any result, and without them the laws
# of counts in long prompts are short arrays.
NEGLIGIBLE = 1e-100
EPSILON = sys.float_info.epsilon  # the rounding unit of float64


class Probability(NamedTuple):
    """A probability and a bound on its absolute error."""

    value: float
    error: float


def concentration_probability(
    N: int, probs: ArrayLike | int, imbalance: float
) -> Probability:
    r"""Probability that :math:`|n_m - p_m N| \le \delta N` for all features.

    The counts n are multinomial. Independent Poisson counts with means :math:`p_m N`,
    given that their sum is N, have the same law. So the probability is a quotient. Its
    numerator is the probability that the Poisson counts have the sum N, and that each
    is within :math:`\delta N` of its mean. Its denominator is the Poisson probability
    of the sum N.

    The numerator is the value at N of the convolution of K Poisson laws, each cut to
    its *box*, the counts within :math:`\delta N` of its mean. All terms of the
    convolution are non-negative, so direct convolution keeps relative accuracy. If it
    takes too long, the Fourier transform replaces it, and the rounding of the transform
    is the largest part of the error bound. See docs/theory.md, "The concentration
    event".

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
        ``value``, the probability, and ``error``, a bound on its absolute error.

    Examples
    --------
    >>> import icl_theory as icl
    >>> round(icl.papers.regression.concentration_probability(100, 4, 0.1).value, 6)
    0.945195
    """
    prompt = _prompt(N, probs)
    delta = fraction("imbalance", imbalance)  # refused unless it is between 0 and 1
    return _box_probability(prompt, delta * prompt.N)


def smallest_imbalance(N: int, probs: ArrayLike | int, confidence: float) -> float:
    """Smallest δ for which the concentration event has at least the given probability.

    The probability is a step function of δ. It can rise only where ``δN`` is
    ``|n - p_m N|`` for some count n. The right step is found by bisection.

    Parameters
    ----------
    N, probs
        As for `concentration_probability`.
    confidence : float
        Strictly between 0 and 1.

    Returns
    -------
    float
        δ, at most 1. The result is 0 if the prompts whose counts are exactly the
        expected ones are likely enough; any δ > 0 will do then.

    Examples
    --------
    >>> import icl_theory as icl
    >>> icl.papers.regression.smallest_imbalance(100, 4, 0.9)
    0.09
    """
    prompt = _prompt(N, probs)
    confidence = fraction("confidence", confidence)
    distinct = np.unique(prompt.p)  # equal probabilities have equal deviations
    # Three arrays of 8 bytes an entry: the differences, their absolute values, and the
    # sorted absolute values.
    check_fits("N", N, 24.0 * (prompt.N + 1) * len(distinct))
    # The probability changes only at these values of δN.
    counts = np.arange(prompt.N + 1.0)
    widths = np.unique(np.abs(counts - distinct[:, None] * prompt.N))

    def is_likely(index: int) -> bool:
        """Whether the event is likely enough.

        The event is that all counts are within ``widths[index]`` of their means.
        """
        probability = _box_probability(prompt, float(widths[index]))
        return probability.value >= confidence

    # A box has the counts that are within a width of their means. A box of a few
    # standard deviations is likely enough, and wide boxes take long. So find an upper
    # end of the search first. Start at the width √(Np) for the largest p, about the
    # largest standard deviation. Double the index until the box is likely, and add 1
    # each time, because the index may be 0.
    last = len(widths) - 1
    low = 0
    high = int(np.searchsorted(widths, math.sqrt(prompt.N * float(prompt.p.max()))))
    while high < last and not is_likely(high):
        low = high + 1
        high = 2 * high + 1
    high = min(high, last)
    # Bisect: boxes before `low` are not likely enough, and the box at `high` is. The
    # last box contains all counts, so that it is always likely.
    while low < high:
        middle = (low + high) // 2
        if is_likely(middle):
            high = middle
        else:
            low = middle + 1
    return float(widths[high]) / prompt.N


class _Prompt(NamedTuple):
    """Number of tokens, and probabilities of the features."""

    N: int
    p: Array  # (K,)


def _prompt(N: int, probs: ArrayLike | int) -> _Prompt:
    """Return a number of tokens, and the probabilities that ``probs`` stands for.

    Both are checked first.
    """
    N = integer("N", N, minimum=1, maximum=MOST)
    # A number stands for that many equal probabilities.
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
        Probabilities of the counts ``offset``, ``offset`` + 1, and so on. They do not
        sum to 1 if the law is cut to a box.
    offset : int
        The smallest count.
    error : float
        Bound on the absolute error of each probability.
    work : float
        Number of multiplications by which the law was computed.
    """

    probabilities: Array
    offset: int
    error: float = 0.0
    work: float = 0.0


def _box_probability(prompt: _Prompt, width: float) -> Probability:
    """Probability that all counts are within ``width`` of their expectations."""
    from scipy.special import gammaln  # slow to load

    N, p = prompt
    # The law of the sum of all counts. It starts as the law of the empty sum, 0.
    # The counts of features with equal probabilities are added in one step.
    total = CountLaw(np.ones(1), offset=0)
    distinct, multiplicities = np.unique(p, return_counts=True)
    for probability, copies in zip(distinct, multiplicities, strict=True):
        law = _box_law(float(probability) * N, width, N)
        # No whole number is that near to the mean: the event is impossible.
        if law is None:
            return Probability(0.0, 0.0)
        total = _add_copies(total, law, int(copies), N)

    # The probability that all counts are in their boxes and sum to N is divided by the
    # Poisson probability e^-N N^N/N! of the sum N. The quotient is the probability of
    # the boxes under the condition that the counts sum to N.
    log_poisson = N * math.log(N) - N - float(gammaln(N + 1.0))
    index = N - total.offset
    value = 0.0
    if 0 <= index < len(total.probabilities):
        value = float(total.probabilities[index]) * math.exp(-log_poisson)
    # A generous bound on the rounding of K products, of sums of N terms, and of
    # logarithms of the size N ln N. The constants 8 and 4 are several times the numbers
    # of operations for each feature and token. The law's own error includes the error
    # of the Fourier transform, if that was used.
    relative_rounding = EPSILON * (8.0 * len(p) + 4.0 * N * max(1.0, math.log(N)))
    error = value * relative_rounding + total.error * math.exp(-log_poisson)
    return Probability(min(1.0, value), error)  # rounding may exceed 1


def _box_law(mean: float, width: float, N: int) -> CountLaw | None:
    """Return the Poisson law of a count, cut to counts within ``width`` of its mean.

    The result is None if no count from 0 to N is that near.
    """
    from scipy.special import gammaln  # slow to load

    # A count exactly on the edge must be inside, in spite of rounding. The slack is far
    # above the rounding, and far below 1, the distance between counts.
    slack = 1e-9 * max(1.0, width)
    first = max(0, math.ceil(mean - width - slack))
    last = min(N, math.floor(mean + width + slack))
    if first > last:
        return None
    n = np.arange(first, last + 1.0)
    # P(n) = e^-mean mean^n/n!. The first probability is computed from logarithms, and
    # the others from the exact ratios P(n)/P(n - 1) = mean/n, which keeps relative
    # accuracy over a wide box.
    log_ratios = np.concatenate([[0.0], np.cumsum(np.log(mean / n[1:]))])
    log_first = -mean  # ln P(0)
    if first > 0:
        log_first = n[0] * math.log(mean) - mean - float(gammaln(n[0] + 1.0))
    count_probabilities = np.exp(log_ratios + log_first)
    least = float(count_probabilities.max()) * NEGLIGIBLE
    return _trimmed(CountLaw(count_probabilities, first), least)


def _add_copies(total: CountLaw, law: CountLaw, copies: int, most: int) -> CountLaw:
    """Return the law of a sum to which independent counts of one law are added.

    ``total`` is the law of the sum so far, and ``law`` the law of each of the
    ``copies`` counts. The laws of sums of 1, 2, 4, 8, … counts are formed by doubling,
    and the laws that make up the binary form of ``copies`` are added. Only sums up to
    ``most`` are needed.
    """
    doubled = law  # the law of the sum of 1, 2, 4, … counts
    while True:
        if copies % 2 == 1:
            total = add_laws(total, doubled, most)
        copies //= 2
        if copies == 0:
            return total
        doubled = add_laws(doubled, doubled, most)


def add_laws(first: CountLaw, second: CountLaw, most: int) -> CountLaw:
    """Return the law of the sum of two independent counts, up to the sum ``most``."""
    offset = first.offset + second.offset
    # The number of sums from ``offset`` to ``most``. At least one is kept, because a
    # law may not be empty.
    size = max(0, most - offset) + 1
    first_needed = first.probabilities[:size]
    second_needed = second.probabilities[:size]
    # The probabilities of each law sum to at most 1. So an error of one law is not
    # enlarged by the other, and the two errors at most add up.
    error = first.error + second.error
    products = float(len(first_needed)) * len(second_needed)
    work = first.work + second.work + products
    if work <= DIRECT_WORK:
        count_probabilities = np.convolve(first_needed, second_needed)
    else:
        from scipy.signal import fftconvolve  # slow to load

        # The rounding of a convolution by transforms of size n is of the order ε log₂ n
        # times the product of the norms of its arguments; 8 is generous.
        norms = float(np.linalg.norm(first_needed) * np.linalg.norm(second_needed))
        transform_size = len(first_needed) + len(second_needed)
        error += 8.0 * EPSILON * math.log2(transform_size) * norms
        # Rounding may leave probabilities below 0.
        count_probabilities = np.maximum(fftconvolve(first_needed, second_needed), 0.0)
    law = CountLaw(count_probabilities[:size], offset, error, work)
    # Trimming drops probabilities up to ``least``, which it adds to the error of the
    # law. A tenth of the error hardly adds to it.
    return _trimmed(law, least=0.1 * error)


def _trimmed(law: CountLaw, least: float) -> CountLaw:
    """Return a law without its ends where probabilities are at most ``least``.

    The error of each probability grows by ``least``.
    """
    likely = np.flatnonzero(law.probabilities > least)  # indices
    # If nothing is likely, the law stays as it is, because it may not be empty.
    has_nothing_to_keep = likely.size == 0
    has_nothing_to_drop = likely.size == len(law.probabilities)
    if has_nothing_to_keep or has_nothing_to_drop:
        return law
    first = int(likely[0])
    last = int(likely[-1])
    return CountLaw(
        law.probabilities[first : last + 1],
        law.offset + first,
        law.error + least,
        law.work,
    )
