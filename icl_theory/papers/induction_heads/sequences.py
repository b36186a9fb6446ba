r"""Sequences of random Markov chains, and the law of each next symbol.

Each row of a chain over k symbols has the Dirichlet law with the parameter α for each
symbol, and the first symbol is uniform. Let :math:`n_{sy}` be the number of times that
y followed s so far. Averaged over the chains, the next symbol has the law

.. math:: P(x_{t+1} = y \mid x_1, \dots, x_t)
    = \frac{\alpha + n_{x_t y}}{k\alpha + \sum_u n_{x_t u}} .

This law of Pólya's urn is the Bayes-optimal prediction. Sequences can be drawn symbol
by symbol from this law, without drawing a chain.

In a *circulant* chain all rows are shifts of one Dirichlet row: the differences of
successive symbols, modulo k, are independent and have the same law. All symbols are
equally frequent in the long run, so that their frequencies say nothing about the next
one. For such chains :math:`n_{sy}` is the number of differences so far that equal y - s
modulo k. `Sequences.every` needs a law of the sequences that does not change when
symbols are renamed. Circulant chains have such a law if they have two or three symbols.

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
        Probabilities of the sequences, which sum to 1.
    following : ndarray, (T, M, k)
        Row t - 1 has the law of the symbol that follows the first t symbols.
    """

    symbols: Symbols
    probability: Array
    following: Array

    @classmethod
    def every(
        cls, k: int, T: int, concentration: float, circulant: bool = False
    ) -> Sequences:
        """Return all sequences that differ by more than the names of their symbols.

        Symbols have the names 0, 1, ... in the order in which they first occur. Each
        sequence stands for all sequences that have the same symbols with other names,
        and has the sum of their probabilities.

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
        check_enumerable(k, T)
        symbols = _named_by_occurrence(k, T)
        counts_class = _counts_class(circulant)
        counts = counts_class(k, concentration, first=symbols[0])
        # The first symbol has the probability 1/k, and may have any of k names, so it
        # contributes the factor 1.
        log_probability = np.zeros(symbols.shape[1])
        laws = [counts.law]
        for symbol in symbols[1:]:
            log_probability += np.log(counts.law[counts.sequence_indices, symbol])
            counts.add(symbol)
            laws.append(counts.law)
        # The number of ways to name all distinct symbols of a sequence but the first. A
        # symbol that first occurs after ``used`` others has one of k - used names.
        namings = np.ones(symbols.shape[1])
        distinct_counts = symbols.max(axis=0) + 1
        for used in range(1, k):
            namings *= np.where(distinct_counts > used, k - used, 1)
        probability = namings * np.exp(log_probability)
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
        """Draw ``count`` sequences, each from a chain of its own.

        Each symbol is drawn from its law given the symbols before it, so that no chain
        is drawn. ``rng`` is the source of randomness, and the other arguments are as
        for `Sequences.every`.
        """
        first = rng.integers(0, k, count)
        counts_class = _counts_class(circulant)
        counts = counts_class(k, concentration, first)
        symbols = [first]
        laws = [counts.law]
        for draws in rng.random((T - 1, count)):
            # `chosen` finds the interval of the cumulative law that a draw falls in.
            symbol = chosen(draws, np.cumsum(counts.law, axis=1))
            counts.add(symbol)
            symbols.append(symbol)
            laws.append(counts.law)
        probability = np.full(count, 1.0 / count)
        return cls(np.stack(symbols), probability, np.stack(laws))


class _Counts:
    """Counts of the pairs of successive symbols in each sequence so far.

    The sequences begin with the symbols ``first``, (M,), and so far end with the
    symbols ``last``, (M,). ``posterior`` has the counts plus the Dirichlet parameter
    ``concentration``, (M, k, k): for each sequence, row s has the Dirichlet parameters
    of row s of the chain, given the sequence.
    """

    def __init__(self, k: int, concentration: float, first: Symbols) -> None:
        self.k = k
        self.sequence_indices = np.arange(len(first))
        self.last = first
        self.posterior = np.full((len(first), k, k), concentration)

    @property
    def law(self) -> Array:
        """Law of the next symbol of each sequence, (M, k)."""
        row = self.posterior[self.sequence_indices, self.last]
        return np.asarray(row / row.sum(axis=1, keepdims=True))

    def add(self, symbol: Symbols) -> None:
        """Count the next symbol of each sequence."""
        self.posterior[self.sequence_indices, self.last, symbol] += 1.0
        self.last = symbol


class _Differences(_Counts):
    """Counts of the differences of successive symbols, for circulant chains.

    All rows of ``posterior`` have the same counts, shifted.
    """

    def add(self, symbol: Symbols) -> None:
        """Count the difference of the next symbol and the last one, in each row.

        All pairs with this difference, (last + shift, symbol + shift), are counted.
        """
        for shift in range(self.k):
            shifted_last = (self.last + shift) % self.k
            shifted_symbol = (symbol + shift) % self.k
            self.posterior[self.sequence_indices, shifted_last, shifted_symbol] += 1.0
        self.last = symbol


def _counts_class(circulant: bool) -> type[_Counts]:
    """Return the class of the counts from which the next symbol's law follows."""
    return _Differences if circulant else _Counts


def _named_by_occurrence(k: int, T: int) -> Symbols:
    """Return the sequences, (T, M), in which new symbols come in the order 0, 1, ..."""
    # Begin with a single sequence of one symbol. The array is (M, length so far).
    sequences = np.zeros((1, 1), dtype=np.intp)
    for _ in range(T - 1):
        # The symbols 0, ..., max that have occurred may follow, or the new one max + 1,
        # unless all k have occurred.
        choice_counts = np.minimum(sequences.max(axis=1) + 2, k)
        symbol = np.concatenate([np.arange(count) for count in choice_counts])
        continued = np.repeat(sequences, choice_counts, axis=0)
        sequences = np.column_stack([continued, symbol])
    # The result is used row by row: a row has the symbols at one position.
    return np.ascontiguousarray(sequences.T)


def check_enumerable(k: int, T: int) -> None:
    """Raise an error if the sequences of T symbols do not all fit in memory.

    The message states how much memory the sequences would take.
    """
    # There are about k^T / k! sequences. The logarithm is taken because k^T overflows
    # for large T.
    log_count = T * math.log(k) - math.lgamma(k + 1.0)
    # A generous estimate: at each position a pass through both layers of the model has
    # products of all pairs of symbols, k² numbers of 8 bytes, and a few vectors of k
    # numbers.
    bytes_of_sequence = 8.0 * T * (k + 2.0) * (k + 2.0)
    log_bytes = log_count + math.log(bytes_of_sequence)
    # Arrays of up to `SMALL` bytes are taken to fit in any case. This saves a call of
    # `free`, which has to ask the system.
    if log_bytes <= math.log(SMALL):
        return
    available = free()
    # If no byte is free, the logarithm of ``available`` would raise an error.
    if log_bytes > math.log(max(available, 1.0)):
        log_gigabytes = log_bytes - math.log(1e9)
        exponent = log_gigabytes / math.log(10.0)
        raise argument_error(
            "T",
            T,
            f"smaller unless sequences is given: all sequences of {T} symbols would"
            f" take about 10^{exponent:.0f} GB of memory, and {available / 1e9:.3g} GB"
            " are free",
        )


def running_totals(symbols: Symbols, k: int) -> Iterator[Array]:
    """Yield how often each symbol occurs among the first t, for t = 1, ..., T.

    ``symbols`` are M sequences, (T, M). Each item is an array (M, k).
    """
    totals = np.zeros((symbols.shape[1], k))
    for symbol in symbols:
        totals[np.arange(len(symbol)), symbol] += 1.0
        yield totals.copy()
