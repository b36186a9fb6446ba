r"""Sequences of random Markov chains, and the law of each next symbol.

Each row of a chain over k symbols has the Dirichlet law with the parameter α for each
symbol, and the first symbol is uniform. Let :math:`n_{sy}` be the number of times that
y followed s so far. Averaged over the chains, the next symbol is then

.. math:: P(x_{t+1} = y \mid x_1, \dots, x_t)
    = \frac{\alpha + n_{x_t y}}{k\alpha + \sum_u n_{x_t u}} ,

the law of Pólya's urn. It is the Bayes-optimal prediction, and sequences can be drawn
from it without drawing a chain.

The rows of a *circulant* chain are one Dirichlet row, shifted: the differences of
successive symbols, modulo k, are independent and have the same law. All symbols are
equally frequent in the long run, so that their frequencies say nothing about the next
one. Here n counts differences instead of pairs. For two and three symbols the law of
the sequences does not change when symbols are renamed.

In the shapes below, M is the number of sequences.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array, argument_error
from icl_theory.memory import SMALL, free
from icl_theory.tokens.sampled import chosen

Symbols = NDArray[np.intp]


class Sequences(NamedTuple):
    """Sequences of T symbols with their probabilities.

    Attributes
    ----------
    symbols : ndarray of int, (T, M)
        Symbols 0, ..., k - 1, one sequence in each column.
    probability : ndarray, (M,)
        Probabilities, which sum to 1.
    following : ndarray, (T, M, k)
        Law of the symbol that follows the first t symbols, t = 1, ..., T.
    """

    symbols: Symbols
    probability: Array
    following: Array

    @classmethod
    def every(
        cls, k: int, T: int, concentration: float, circulant: bool = False
    ) -> Sequences:
        """Return all sequences that differ by more than the names of their symbols.

        Symbols have the names 0, 1, ... in the order in which they first occur. A
        sequence stands for all sequences that renaming makes of it.

        Parameters
        ----------
        k, T : int
            Number of symbols, and length of the sequences.
        concentration : float
            The Dirichlet parameter α.
        circulant : bool
            Whether the chains are circulant, which requires k <= 3.

        Raises
        ------
        ValueError
            There are more sequences than fit in memory.
        """
        refuse_many(k, T)
        symbols = _named_by_occurrence(k, T)
        counts = _counts(circulant)(k, concentration, symbols[0])
        # The first symbol may have any of k names.
        log_probability = np.zeros(symbols.shape[1])
        names = np.ones(symbols.shape[1])
        laws = [counts.law]
        for symbol in symbols[1:]:
            log_probability += np.log(counts.law[counts.columns, symbol])
            counts.add(symbol)
            laws.append(counts.law)
        distinct = symbols.max(axis=0) + 1
        for used in range(1, k):
            # Each new symbol has as many names as are not yet used.
            names *= np.where(distinct > used, k - used, 1)
        probability = names * np.exp(log_probability)
        return cls(symbols, probability, np.stack(laws))

    @classmethod
    def drawn(
        cls,
        k: int,
        T: int,
        concentration: float,
        count: int,
        rng: np.random.Generator,
        circulant: bool = False,
    ) -> Sequences:
        """Draw ``count`` sequences, each from a chain of its own."""
        first = rng.integers(0, k, count)
        counts = _counts(circulant)(k, concentration, first)
        symbols = [first]
        laws = [counts.law]
        for draws in rng.random((T - 1, count)):
            symbols.append(chosen(draws, np.cumsum(counts.law, axis=1)))
            counts.add(symbols[-1])
            laws.append(counts.law)
        probability = np.full(count, 1.0 / count)
        return cls(np.stack(symbols), probability, np.stack(laws))


class _Counts:
    """Counts of the pairs of symbols in each sequence so far."""

    def __init__(self, k: int, concentration: float, first: Symbols) -> None:
        self.k = k
        self.columns = np.arange(len(first))
        self.last = first
        # Counts with the Dirichlet parameters, (M, k, k).
        self.shape = np.full((len(first), k, k), concentration)

    @property
    def law(self) -> Array:
        """Law of the next symbol, (M, k)."""
        row = self.shape[self.columns, self.last]
        return np.asarray(row / row.sum(axis=1, keepdims=True))

    def add(self, symbol: Symbols) -> None:
        """Count the next symbol of each sequence."""
        self.shape[self.columns, self.last, symbol] += 1.0
        self.last = symbol


class _Differences(_Counts):
    """Counts of the differences of successive symbols: all rows have the same."""

    def add(self, symbol: Symbols) -> None:
        """Count the next symbol, after the last one and shifted after the others."""
        for shift in range(self.k):
            before = (self.last + shift) % self.k
            self.shape[self.columns, before, (symbol + shift) % self.k] += 1.0
        self.last = symbol


def _counts(circulant: bool) -> type[_Counts]:
    """Return what is counted in the sequences of a law of chains."""
    return _Differences if circulant else _Counts


def _named_by_occurrence(k: int, T: int) -> Symbols:
    """Return the sequences in which new symbols come in the order 0, 1, ..., (T, M)."""
    sequences = np.zeros((1, 1), dtype=np.intp)
    for _ in range(T - 1):
        # Any symbol that has occurred may follow, or the first one that has not.
        choices = np.minimum(sequences.max(axis=1) + 2, k)
        symbol = np.concatenate([np.arange(count) for count in choices])
        sequences = np.column_stack([np.repeat(sequences, choices, axis=0), symbol])
    return np.ascontiguousarray(sequences.T)


def refuse_many(k: int, T: int) -> None:
    """Refuse to enumerate more sequences than fit in memory.

    The message states how much memory they would take.
    """
    # There are about k^T / k! of them. The logarithm is taken because k^T overflows.
    log_count = T * math.log(k) - math.lgamma(k + 1.0)
    log_bytes = log_count + math.log(8.0 * T * (k + 2.0) * (k + 2.0))
    if log_bytes <= math.log(SMALL):
        return
    available = free()
    if log_bytes > math.log(max(available, 1.0)):
        digits = (log_bytes - math.log(1e9)) / math.log(10.0)
        raise argument_error(
            "T",
            T,
            f"smaller unless sequences is given: all sequences of {T} symbols would"
            f" take about 10^{digits:.0f} GB of memory, and {available / 1e9:.3g} GB"
            " are free",
        )


def running_totals(symbols: Symbols, k: int) -> Iterator[Array]:
    """Yield how often each symbol occurs among the first t, (M, k), t = 1, ..., T."""
    totals = np.zeros((symbols.shape[1], k))
    for symbol in symbols:
        totals[np.arange(len(symbol)), symbol] += 1.0
        yield totals.copy()
