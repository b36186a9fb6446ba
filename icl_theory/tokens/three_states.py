r"""Counts of the windows of two symbols in a Markov chain of three states.

The rows of the chain have Dirichlet laws with one concentration α for all entries, and
the first symbol is uniform. Let :math:`n_{sy}` be the number of windows (s, y),
:math:`r_s = \sum_y n_{sy}`, u the first symbol and v the last one. The probability that
a sequence of T symbols has these counts follows from Whittle's formula,

.. math:: P(u, v, n) = \frac{C}{3} \prod_s \frac{\prod_y g_\alpha(n_{sy})}
    {g_{3\alpha}(r_s)}, \qquad
    g_a(n) = \frac{\Gamma(a + n)}{\Gamma(a)\, n!} .

Here C is the cofactor of the entry (v, u) in the matrix
:math:`\delta_{sy} - n_{sy}/r_s`. The column sums of the counts, the numbers of windows
that end in y, are :math:`\sum_s n_{sy} = r_y - [y = u] + [y = v]`. (A bracket is 1 if
its equation holds, and otherwise 0.) The rows of the matrix sum to zero, so C does not
depend on u. For v = 0 it is a sum of positive terms,

.. math:: C = a_0 (b_0 + b_1) + a_2 b_0, \qquad
    a_y = \frac{n_{1y}}{r_1}, \qquad b_y = \frac{n_{2y}}{r_2} .

By symmetry the last symbol may be called 0. If a model depends only on row 0 of the
counts and on the column sums, the probability is summed over the other two rows. For
given row sums r, this sum consists of convolutions of functions of two counts, one
function for each of the two rows. See docs/theory.md, "Three states".

In the shapes below, A is the number of rows of a table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import (
    EXACT,
    LARGEST,
    Array,
    flag,
    integer,
    number,
    set_fields,
)
from icl_theory.engine.sampling import prompts_to_draw
from icl_theory.memory import check_fits
from icl_theory.tokens.counts import CountLaw, Drawn, Table, log_rising
from icl_theory.tokens.sampled import chosen


@dataclass(frozen=True, eq=False)
class ThreeStateCounts(CountLaw):
    r"""Counts of T symbols of a three-state Markov chain, with the symbols renamed.

    The rows of the chain have the Dirichlet law with the parameter α for each symbol,
    and the first symbol is uniform. The right label is the next symbol. Symbols are
    renamed in each sequence: 0 is the last symbol, 1 is the more frequent one of the
    two other symbols, and 2 is the less frequent one; two equally frequent symbols keep
    their order. A token stands for its symbol. There are six kinds of tokens: the
    tokens 0, 1, 2 whose predecessor equals the last symbol, and the tokens 0, 1, 2 with
    another predecessor.

    Parameters
    ----------
    T : int
        Number of symbols, at least 2. The table has about T⁴/150 rows, and about T⁴/50
        rows with ``first``.
    concentration : float
        The Dirichlet parameter α. The default is 1, the uniform prior.
    first : bool
        Whether the first symbol is a token of one of three more kinds, 0, 1 and 2. By
        default it counts as a token with another predecessor.

    Raises
    ------
    ValueError
        An argument is out of range, or there are more counts than fit in memory; the
        message names it.

    References
    ----------
    Whittle (1955), Some distribution and moment formulae for the Markov chain.
    docs/theory.md, "Three states".

    Examples
    --------
    Log losses in nats of three predictions after 100 symbols:

    >>> from icl_theory.tokens import ThreeStateCounts
    >>> for name, loss in ThreeStateCounts(100).predictors().items():
    ...     print(f"{name} {loss:.6f}")
    uniform 1.098612
    unigram 0.988206
    bigram 0.845184
    """

    T: int
    concentration: float = 1.0
    first: bool = False

    queries = 1

    def __post_init__(self) -> None:
        set_fields(
            self,
            T=integer("T", self.T, minimum=2, maximum=EXACT),
            concentration=number("concentration", self.concentration, maximum=LARGEST),
            first=flag("first", self.first),
        )
        # `_RowLaws` has three spectra of T²/2 complex numbers of 16 bytes for each of T
        # row sums, 24 T³ bytes, and the probabilities, 8 T³ bytes. Temporary arrays may
        # take twice as much again: 100 T³ bytes are enough.
        check_fits("T", self.T, 100.0 * float(self.T) ** 3)
        # The kinds 0, 1, 2 stand for the symbols 0, 1, 2, and so do the next three and,
        # with ``first``, the last three.
        triples = 3 if self.first else 2
        set_fields(self, values=np.tile(np.eye(3), (triples, 1)))

    @cached_property
    def table(self) -> Table:
        """All counts of positive probability."""
        # Estimates of the number of rows, measured at T = 40.
        rows = float(self.T) ** 4 / (50.0 if self.first else 150.0)
        # Four times the size of the table: it exists once in parts and once as a whole,
        # and `CountRisk` takes as much memory again.
        numbers_of_row = len(self.values) + 5  # counts, truth, query, probability
        check_fits("T", self.T, 8.0 * rows * 4.0 * numbers_of_row)
        # Each field of the table is joined from the fields of the parts.
        return Table(*map(np.concatenate, zip(*self.parts(), strict=True)))

    def parts(self) -> Iterator[Table]:
        """Yield the table in parts, one for each number of times that 1 occurs."""
        T = self.T
        row_laws = _RowLaws.of(T, self.concentration)
        for r1 in range(T):
            # Symbol 2 is not more frequent than symbol 1. Of the T - 1 windows, r0, r1
            # and r2 begin with the symbols 0, 1 and 2.
            all_r2 = np.arange(min(r1, T - 1 - r1) + 1)
            mean_cofactors = row_laws.mean_cofactors(r1, all_r2)
            blocks = []
            for r2, mean_cofactor in zip(all_r2.tolist(), mean_cofactors, strict=True):
                row_sums = _RowSums(T - 1 - r1 - r2, r1, r2)
                blocks.append(
                    self._block(row_sums, row_laws.probability, mean_cofactor)
                )
            # Each array is joined from the arrays of the blocks.
            part = _Block(*map(np.concatenate, zip(*blocks, strict=True)))
            is_possible = part.probability > 0.0
            yield Table(
                counts=part.counts[is_possible],
                query=np.zeros(is_possible.sum(), dtype=np.intp),
                probability=part.probability[is_possible],
                truth=part.truth[is_possible],
            )

    def _block(
        self, row_sums: _RowSums, probability: Array, mean_cofactor: Array
    ) -> _Block:
        """Return the rows of the table for given row sums r of the matrix n.

        ``probability[r, n_1, n_2]`` is the probability of (n_1, n_2) in a row with the
        sum r. ``mean_cofactor[d_1, d_2]`` is the sum, over all rows 1 and 2 with
        n_11 + n_21 = d_1 and n_12 + n_22 = d_2, of probability times cofactor (see
        `_RowLaws.mean_cofactors`).
        """
        r0, r1, r2 = row_sums
        # Row 0 of the matrix: all n_01 and n_02 with a sum of at most r0; n_00 is the
        # rest.
        n1, n2 = np.nonzero(np.add.outer(np.arange(r0 + 1), np.arange(r0 + 1)) <= r0)
        row_0 = np.column_stack([r0 - n1 - n2, n1, n2]).astype(float)
        probability_of_row = probability[r0, n1, n2]
        if r1 > r2:
            # A sequence in which 1 and 2 are exchanged has the same counts once its
            # symbols are renamed. (If both are equally frequent, they keep their
            # names.)
            probability_of_row = probability_of_row * 2.0
        # How often each symbol occurs: once for each window that it begins. The last
        # symbol, which is 0, begins no window and counts once more.
        totals = np.array([r0 + 1.0, r1, r2])
        # The next symbol is drawn from the row of the last symbol 0. Its law given the
        # counts is the posterior mean of this row.
        truth = (self.concentration + row_0) / (3.0 * self.concentration + r0)
        # The factor 1/3 of the formula, for a given last symbol, is left out: each of
        # the three symbols may be the last one, and is then called 0.
        per_start = [
            probability_of_row * _mean_C(u, row_sums, n1, n2, mean_cofactor)
            for u in range(3)  # the first symbol
        ]
        # Row 0 counts the tokens whose predecessor equals the last symbol 0. All other
        # tokens have another predecessor.
        if not self.first:
            counts_of_six_kinds = np.hstack([row_0, totals - row_0])
            return _Block(counts_of_six_kinds, np.sum(per_start, axis=0), truth)
        # The first symbol is a token of its own kind, so each start has its own rows.
        counts = []
        for start in np.eye(3):
            starts = np.broadcast_to(start, row_0.shape)
            counts.append(np.hstack([row_0, totals - row_0 - start, starts]))
        return _Block(
            np.vstack(counts), np.concatenate(per_start), np.tile(truth, (3, 1))
        )

    def predictors(self) -> dict[str, float]:
        """Return the log losses of three predictions, in nats.

        The uniform prediction gives each symbol the probability 1/3. The unigram
        predicts the shares of the symbols in the sequence. The bigram predicts their
        shares among the symbols that followed the last symbol earlier in the sequence.
        Unigram and bigram add α to the count of each symbol. The bigram is the
        Bayes-optimal prediction.
        """
        alpha = self.concentration
        unigram = 0.0
        bigram = 0.0
        for part in self.parts():
            # Kinds 0, 3 and 6 are the symbol 0, and so on: sum over every third kind.
            totals = part.counts.reshape(len(part.counts), -1, 3).sum(axis=1)
            shares = (alpha + totals) / (3.0 * alpha + self.T)
            truth = part.truth
            unigram -= float(part.probability @ (truth * np.log(shares)).sum(axis=1))
            bigram -= float(part.probability @ (truth * np.log(truth)).sum(axis=1))
        return {"uniform": math.log(3.0), "unigram": unigram, "bigram": bigram}

    def draw(self, rng: np.random.Generator, size: int) -> Drawn:
        """Draw ``size`` sequences, each from a chain of its own.

        The symbols are renamed so that the last one, the query, is 0. The label is the
        symbol that follows.
        """
        # `prompts_to_draw` checks both arguments. A sequence takes about 6 numbers for
        # each symbol.
        size = prompts_to_draw(rng, size, numbers=6.0 * self.T)
        chains = rng.dirichlet(np.full(3, self.concentration), (size, 3))
        cumulated = np.cumsum(chains, axis=2)
        index = np.arange(size)  # of each sequence
        symbols = np.empty((size, self.T + 1), dtype=np.intp)
        symbols[:, 0] = rng.integers(0, 3, size)
        for t, draws in enumerate(rng.random((self.T, size))):
            # Each uniform number falls into the interval of one symbol.
            symbols[:, t + 1] = chosen(draws, cumulated[index, symbols[:, t]])
        symbols = self._renamed(symbols)
        tokens = symbols[:, : self.T]
        follows_query = tokens[:, :-1] == 0
        # A token with the symbol x has the kind x if its predecessor equals the query,
        # and x + 3 if not. The first token has the kind x + 6 if it has its own score.
        kind = tokens.copy()
        kind[:, 1:] += np.where(follows_query, 0, 3)
        kind[:, 0] += 6 if self.first else 3
        return Drawn(kind, np.zeros(size, dtype=np.intp), symbols[:, self.T])

    def _renamed(self, symbols: NDArray[np.intp]) -> NDArray[np.intp]:
        """Call the last symbol 0, and the more frequent one of the others 1."""
        last = symbols[:, self.T - 1]
        counts = (symbols[:, : self.T, None] == np.arange(3)).sum(axis=1)
        # A count above all others puts the last symbol first in the order of falling
        # counts, so that it gets the name 0.
        counts[np.arange(len(last)), last] = self.T + 1
        symbol_of_name = np.argsort(-counts, axis=1, kind="stable")
        # argsort inverts a permutation, here the one from names to symbols.
        name_of_symbol = np.argsort(symbol_of_name, axis=1)
        return np.take_along_axis(name_of_symbol, symbols, axis=1)


class _Block(NamedTuple):
    """Rows of a table, without the query."""

    counts: Array  # number of tokens of each kind, (A, 6), or (A, 9) with ``first``
    probability: Array  # (A,); zero for counts that no sequence has
    truth: Array  # probabilities of the next symbol, given the counts, (A, 3)


class _RowSums(NamedTuple):
    """Row sums r of the matrix n: how many windows begin with each symbol."""

    r0: int
    r1: int
    r2: int


def _mean_C(
    u: int,
    row_sums: _RowSums,
    n1: NDArray[np.intp],
    n2: NDArray[np.intp],
    mean_cofactor: Array,
) -> Array:
    """Return the part of the mean of C for each row (n_01, n_02), if u comes first.

    Row 0 and the first symbol u determine the sums of rows 1 and 2 in each column. The
    array ``mean_cofactor``, (T, T), has the part of the mean of C for each pair of sums
    in the columns 1 and 2, see `_RowLaws.mean_cofactors`. The part is zero if no
    sequence with this first symbol has these counts.
    """
    _, r1, r2 = row_sums
    # d_y is the sum of rows 1 and 2 in column y. The head of the module has the sum of
    # all rows, r_y - [y = u] + [y = v] with v = 0.
    d1 = r1 - (u == 1) - n1
    d2 = r2 - (u == 2) - n2
    d0 = r1 + r2 - d1 - d2
    # The sequence ends in 0, so at least one window leads from 1 or 2 to 0 if these
    # symbols occur at all.
    least_d0 = 1 if r1 + r2 > 0 else 0
    is_possible = (d1 >= 0) & (d2 >= 0) & (d0 >= least_d0)
    mean_C = np.zeros(len(n1))
    mean_C[is_possible] = mean_cofactor[d1[is_possible], d2[is_possible]]
    return mean_C


class _RowLaws(NamedTuple):
    """Laws of the counts of a row, for all row sums r up to T - 1.

    For y = 0, 1 and 2, a spectrum is the Fourier transform over (n₁, n₂) of the
    probability times n_y/r. A product of two spectra is the spectrum of a convolution.
    """

    probability: Array  # of (n₁, n₂), which determine n₀ = r - n₁ - n₂, (r, T, T)
    spectra: NDArray[np.complex128]  # (y, r, T, T // 2 + 1)

    @classmethod
    def of(cls, T: int, alpha: float) -> _RowLaws:
        """Return the laws for sequences of T symbols and the Dirichlet parameter α."""
        # ln g_α(n) and ln g_3α(n) for n = 0 ... T - 1, as at the head of the module.
        log_g = log_rising(alpha, T - 1)
        log_g_of_sum = log_rising(3.0 * alpha, T - 1)
        probability = np.zeros((T, T, T))
        spectra = np.zeros((3, T, T, T // 2 + 1), dtype=complex)
        n1, n2 = np.indices((T, T))
        for r in range(T):
            n0 = r - n1 - n2
            occurs = n0 >= 0
            counts = np.stack([n0, n1, n2])[:, occurs]
            log = log_g[counts].sum(axis=0) - log_g_of_sum[r]
            probability[r, occurs] = np.exp(log)
            if r == 0:
                # A symbol that begins no window has no shares n_y/r. With the shares 1,
                # 0 and 0 the symbol drops out of the formula of C. The share 1 of y = 0
                # is all at n₁ = n₂ = 0, so its spectrum is 1 at all frequencies.
                spectra[0, 0] = 1.0
                continue
            for y in range(3):
                share = np.zeros((T, T))
                share[occurs] = probability[r, occurs] * counts[y] / r
                spectra[y, r] = np.fft.rfft2(share)
        return cls(probability, spectra)

    def mean_cofactors(self, r1: int, r2: NDArray[np.intp]) -> Array:
        """Return the mean of C over rows 1 and 2, split by the sums of the two rows.

        The mean is a sum over all rows 1 and 2 of their probability times C. The
        result, (r2, T, T), has for each row sum ``r2`` the part of this sum for each
        pair of sums of the two rows in the columns 1 and 2.
        """
        to_0, to_1, to_2 = self.spectra  # a spectrum for each row sum
        # C = a_0 (b_0 + b_1) + a_2 b_0, as at the head of the module, with a in row 1
        # and b in row 2. Counts of both rows sum to less than T, so the T points of the
        # transform are enough for the convolution.
        spectrum_of_C = to_0[r1] * (to_0[r2] + to_1[r2]) + to_2[r1] * to_0[r2]
        T = self.probability.shape[1]
        # The mean of C is not negative, but rounding may leave small negative numbers.
        return np.maximum(np.fft.irfft2(spectrum_of_C, s=(T, T)), 0.0)
