r"""Draw how many of N tokens are in each of K cells, much faster than token by token.

Let :math:`\pi_k` be the probability of cell k. Let :math:`n_k` be independent Poisson
numbers with the means :math:`\lambda\pi_k`, and M their sum. Given M, they are
multinomial with the probabilities :math:`\pi`. If λ is a little below N, M is nearly
always at most N, and the other N - M tokens are drawn one by one. A prompt with M > N
is drawn token by token. The counts are exactly multinomial, whatever λ is.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.tokens.sampled import Indices, choose

# The following limits only save time: the law of the counts does not depend on them.

# λ is below N by this many times √N, about the standard deviation of M. Then M > N in
# about two of a hundred prompts.
DEVIATIONS_BELOW_N = 2.0
# If λ is at most this many tokens for each cell, all tokens are drawn one by one,
# because drawing the Poisson numbers of the cells would take about as long.
FEWEST_TOKENS_OF_CELL = 2.0
# Poisson numbers are looked up in a table for each mean. Means above LARGEST_MEAN, or
# more than MOST_TABLES tables, would take too much memory. In that case the tokens are
# drawn one by one if there are at most MOST_TOKENS_OF_CELL for each cell, and otherwise
# NumPy draws the counts.
LARGEST_MEAN = 500.0
MOST_TABLES = 32
MOST_TOKENS_OF_CELL = 10


def multinomial(
    rng: np.random.Generator, N: int, probs: Array, size: int
) -> NDArray[np.int64]:
    """Return the counts of ``size`` prompts of N tokens, (size, K).

    The counts have the law of ``rng.multinomial(N, probs, size)``, but their values for
    a given state of the generator are different.

    Parameters
    ----------
    rng : numpy.random.Generator
        The source of randomness.
    N : int
        Number of tokens of a prompt.
    probs : ndarray, (K,)
        Probabilities of the cells. They sum to 1.
    size : int
        Number of prompts.
    """
    K = len(probs)
    mean_sum = N - DEVIATIONS_BELOW_N * math.sqrt(N)  # λ
    means = mean_sum * probs
    has_tables = means.max() <= LARGEST_MEAN and len(np.unique(means)) <= MOST_TABLES
    if has_tables and mean_sum > FEWEST_TOKENS_OF_CELL * K:
        counts = _poisson_counts(rng, means, size)
    elif N <= MOST_TOKENS_OF_CELL * K:
        # All N tokens are missing, and are drawn one by one below.
        counts = np.zeros((size, K), dtype=np.int64)
    else:
        # NumPy refuses probabilities whose sum exceeds 1 by rounding.
        return rng.multinomial(N, probs / probs.sum(), size)
    missing = N - counts.sum(axis=1)
    # Prompts that have too many tokens, M > N, are drawn again, token by token.
    has_too_many = missing < 0
    counts[has_too_many] = 0
    missing[has_too_many] = N
    # One bincount for all prompts: in ``cells``, each prompt has K numbers of its own.
    cells = np.repeat(K * np.arange(size), missing)
    cells += _indices(rng, probs, len(cells))
    counts += np.bincount(cells, minlength=size * K).reshape(size, K)
    return counts


def _poisson_counts(
    rng: np.random.Generator, means: Array, size: int
) -> NDArray[np.int64]:
    """Draw ``size`` rows of Poisson numbers with given means, (size, K)."""
    # All cells with the same mean are drawn at once, from the same table.
    distinct = np.unique(means)
    if len(distinct) == 1:
        return choose(rng, _poisson(float(distinct[0])), (size, len(means)))
    counts = np.empty((size, len(means)), dtype=np.int64)
    for mean in distinct:
        cells = np.flatnonzero(means == mean)
        counts[:, cells] = choose(rng, _poisson(float(mean)), (size, len(cells)))
    return counts


# The cache has room for the tables of two kinds of tokens.
@lru_cache(maxsize=2 * MOST_TABLES)
def _poisson(mean: float) -> Array:
    """Return the probabilities of 0, 1, ... under a Poisson law, up to a last number.

    All larger numbers together have a probability below 1e-17.
    """
    # Loaded here, because exact losses do not need it.
    from scipy.special import gammaln, xlogy

    # 12 standard deviations, and a constant for small means.
    last = math.ceil(mean + 12.0 * math.sqrt(mean) + 30.0)
    number = np.arange(last + 1.0)
    return np.exp(xlogy(number, mean) - mean - gammaln(number + 1.0))


def _indices(rng: np.random.Generator, probs: Array, size: int) -> Indices:
    """Draw the cells of ``size`` tokens, (size,)."""
    K = len(probs)
    are_equal = np.ptp(probs) == 0.0
    if are_equal and K < 2**15:
        # Integers of 16 bits are drawn faster, and they hold numbers below 2^15.
        return rng.integers(K, size=size, dtype=np.int16).astype(np.intp)
    return choose(rng, probs, (size,))
