r"""Draw how many of N tokens are in each of K cells, much faster than token by token.

Independent Poisson numbers :math:`n_k` with the means :math:`\lambda\pi_k` are
multinomial with the probabilities :math:`\pi` if their sum M is given. With λ a little
below N, M is nearly always at most N, and the other N - M tokens are drawn one by one.
A prompt with M > N is drawn token by token. The counts are exactly multinomial,
whatever λ is.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.tokens.sampled import Indices, choose

# Number of standard deviations of M by which λ is below N. Then M > N in about two of a
# hundred prompts.
BELOW = 2.0
# With fewer tokens for each cell all of them are drawn one by one.
FEWEST = 2.0
# Poisson numbers are looked up in a table for each mean. Larger means, or more tables,
# would take too much memory. Then the tokens are drawn one by one if there are at most
# MOST_TOKENS_OF_CELL for each cell, and otherwise NumPy draws the counts.
LARGEST_MEAN = 500.0
MOST_TABLES = 32
MOST_TOKENS_OF_CELL = 10


def multinomial(
    rng: np.random.Generator, N: int, probs: Array, size: int
) -> NDArray[np.int64]:
    """Return the counts of ``size`` prompts of N tokens, (size, K).

    The law is that of ``rng.multinomial(N, probs, size)``, but the numbers are others.

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
    mean = N - BELOW * math.sqrt(N)
    means = mean * probs
    has_tables = means.max() <= LARGEST_MEAN and len(np.unique(means)) <= MOST_TABLES
    if has_tables and mean > FEWEST * K:
        counts = _poisson_counts(rng, means, size)
    elif N <= MOST_TOKENS_OF_CELL * K:
        counts = np.zeros((size, K), dtype=np.int64)
    else:
        return rng.multinomial(N, probs / probs.sum(), size)
    missing = N - counts.sum(axis=1)
    is_beyond = missing < 0
    counts[is_beyond] = 0
    missing[is_beyond] = N
    # One bincount for all prompts: each has K cells of its own.
    cells = np.repeat(K * np.arange(size), missing)
    cells += _indices(rng, probs, len(cells))
    counts += np.bincount(cells, minlength=size * K).reshape(size, K)
    return counts


def _poisson_counts(
    rng: np.random.Generator, means: Array, size: int
) -> NDArray[np.int64]:
    """Draw Poisson numbers with given means, (size, K)."""
    distinct = np.unique(means)
    if len(distinct) == 1:
        return choose(rng, _poisson(float(distinct[0])), (size, len(means)))
    counts = np.empty((size, len(means)), dtype=np.int64)
    for mean in distinct:
        cells = np.flatnonzero(means == mean)
        counts[:, cells] = choose(rng, _poisson(float(mean)), (size, len(cells)))
    return counts


@lru_cache(maxsize=2 * MOST_TABLES)
def _poisson(mean: float) -> Array:
    """Return the probabilities of 0, 1, ... for a Poisson law.

    They end where all further ones together are below 1e-17.
    """
    # Loaded here, because exact losses do not need it.
    from scipy.special import gammaln, xlogy

    last = math.ceil(mean + 12.0 * math.sqrt(mean) + 30.0)
    number = np.arange(last + 1.0)
    return np.exp(xlogy(number, mean) - mean - gammaln(number + 1.0))


def _indices(rng: np.random.Generator, probs: Array, size: int) -> Indices:
    """Draw cells of tokens."""
    K = len(probs)
    if K < 2**15 and np.ptp(probs) == 0.0:
        # Small integers are drawn faster.
        return rng.integers(K, size=size, dtype=np.int16).astype(np.intp)
    return choose(rng, probs, (size,))
