r"""Exact means of words in a Wishart matrix and a fixed symmetric matrix.

The Wishart matrix is :math:`S = Z^\top Z/N`, where Z has N rows of standard normal
numbers, and A is a fixed symmetric matrix. A word :math:`S A^{g_1} S A^{g_2} \cdots
A^{g_{k-1}} S` has the mean

.. math:: E[\ldots] = \sum c\,N^{-r}\,\mathrm{tr}\,A^{n_1} \cdots
    \mathrm{tr}\,A^{n_s}\;A^m

with whole numbers c that depend on neither the dimension nor N. By Wick's theorem the
mean is a sum over all (2k - 1)!! ways to pair the 2k normal vectors of the word.
Pairings that begin with the same pair leave the same shorter word. So a recursion that
remembers the means of words is far cheaper than a list of all pairings. See
docs/theory/depth-covariance.md, "Words".
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array

# The exponents g of A in a word or in the trace of a word. A word has them between its
# matrices S, and a trace, tr(S A^{g_1} ... S A^{g_k}), has one after each S.
Gaps = tuple[int, ...]


class Monomial(NamedTuple):
    """The matrix N^-order tr(A^n_1) ... tr(A^n_s) A^power."""

    power: int
    traces: tuple[int, ...]  # n_1 <= ... <= n_s
    order: int


# A sum of monomials, each with its coefficient.
Terms = dict[Monomial, int]


def mean_of_word(gaps: Gaps) -> Terms:
    r"""Return the mean of :math:`S A^{g_1} S \cdots A^{g_{k-1}} S` as its terms.

    Parameters
    ----------
    gaps : tuple of int, (k - 1,)
        The exponents g, each of which is 1 or more.

    Returns
    -------
    dict of Monomial to int
        The number of pairings that give each monomial.

    Examples
    --------
    The mean of SAS is A + A/N + tr(A)/N:

    >>> from icl_theory.papers.depth_covariance.words import mean_of_word
    >>> for monomial, count in mean_of_word((1,)).items():
    ...     print(tuple(monomial), count)
    (1, (), 0) 1
    (1, (), 1) 1
    (0, (1,), 1) 1
    """
    return _mean(gaps, ())


@cache
def _mean(gaps: Gaps, loops: tuple[Gaps, ...]) -> Terms:
    """Return the mean of a word times traces of words.

    The word has the exponents ``gaps``, and each of the ``loops`` has the exponents of
    a trace. Each S is (1/N) Σ_μ z_μ z_μᵀ, with a left and a right vector. By Wick's
    theorem the mean is a sum over the partners with which the left vector of the first
    S may be paired: the right vector of the same S, or a vector of another S, which is
    in the word or in a trace. Each case leaves a word, or only traces, with one S less.
    """
    total = _Sum()
    letters = len(gaps) + 1  # the number of matrices S in the word
    # Paired with the right vector of the same S: the sum over μ cancels the 1/N, and S
    # becomes I.
    if letters == 1:
        total.add_traces(loops, order=0)
    else:
        total.add_word(gaps[1:], loops, left_power=gaps[0], order=0)
    # Paired with a vector of another S of the word, number ``other``. The word is
    # S W_1 S W_2, where W_1 has the exponents ``between`` and W_2 those ``after``.
    for other in range(1, letters):
        between = gaps[:other]
        after = gaps[other:]
        # Paired with the left vector of this S: the word becomes W_1ᵀ S W_2 / N, with
        # W_1 reversed.
        remaining_gaps = between[:-1][::-1] + after
        total.add_word(remaining_gaps, loops, left_power=between[-1], order=1)
        # Paired with the right vector of this S: the word becomes tr(S W_1) W_2 / N.
        loops_with_W_1 = (*loops, between)
        if after:
            total.add_word(after[1:], loops_with_W_1, left_power=after[0], order=1)
        else:  # W_2 is I, so only traces remain
            total.add_traces(loops_with_W_1, order=1)
    for index, loop in enumerate(loops):
        other_loops = loops[:index] + loops[index + 1 :]
        # Paired with a vector of an S in this trace, which is tr(S W_3) if the trace is
        # read from this S on. The word W becomes W_3 W / N for one vector of this S,
        # and W_3ᵀ W / N for the other.
        for cut in range(len(loop)):
            opened = loop[cut:] + loop[:cut]  # the exponents of W_3
            for strand in (opened, opened[::-1]):
                remaining_gaps = strand[1:] + gaps
                total.add_word(
                    remaining_gaps, other_loops, left_power=strand[0], order=1
                )
    return dict(total.terms)


@cache
def _mean_of_traces(loops: tuple[Gaps, ...]) -> Terms:
    """Return the mean of a product of traces of words.

    The mean is a number, so the power of A in its monomials is zero.
    """
    if not loops:
        return {Monomial(power=0, traces=(), order=0): 1}  # the empty product, 1
    terms: defaultdict[Monomial, int] = defaultdict(int)
    first = loops[0]
    last_gap = first[-1]
    # The first trace is tr(W A^last_gap) with the word W of its other gaps. The mean of
    # W times the other traces is a sum of monomials, each with a power of A. The trace
    # of this power times A^last_gap is one trace more.
    for monomial, count in _mean(first[:-1], loops[1:]).items():
        traces = tuple(sorted((*monomial.traces, monomial.power + last_gap)))
        terms[Monomial(power=0, traces=traces, order=monomial.order)] += count
    return dict(terms)


class _Sum:
    """A sum of means of shorter words, each multiplied by A^left_power / N^order."""

    def __init__(self) -> None:
        self.terms: defaultdict[Monomial, int] = defaultdict(int)

    def add_word(
        self, gaps: Gaps, loops: tuple[Gaps, ...], *, left_power: int, order: int
    ) -> None:
        """Add A^left_power / N^order times the mean of a word times traces."""
        self._add(_mean(gaps, _in_order(loops)), left_power, order)

    def add_traces(self, loops: tuple[Gaps, ...], *, order: int) -> None:
        """Add I / N^order times the mean of a product of traces."""
        self._add(_mean_of_traces(_in_order(loops)), left_power=0, order=order)

    def _add(self, terms: Terms, left_power: int, order: int) -> None:
        """Add terms, each multiplied by A^left_power / N^order."""
        for monomial, count in terms.items():
            product = Monomial(
                power=monomial.power + left_power,
                traces=monomial.traces,
                order=monomial.order + order,
            )
            self.terms[product] += count


def _in_order(loops: tuple[Gaps, ...]) -> tuple[Gaps, ...]:
    """Return the traces in a standard order, so that the caches find them again."""
    return tuple(sorted(_standard_loop(loop) for loop in loops))


def _standard_loop(loop: Gaps) -> Gaps:
    """Return the least of the rotations and reversals of a loop.

    All rotations and reversals have the same trace, because S and A are symmetric.
    """
    equivalent_loops: list[Gaps] = []
    for strand in (loop, loop[::-1]):
        equivalent_loops += [strand[cut:] + strand[:cut] for cut in range(len(strand))]
    return min(equivalent_loops)


class Counts(NamedTuple):
    r"""The whole-number coefficients of the loss of L layers as a polynomial.

    With the traces :math:`p_n = \mathrm{tr}\,A^n` and :math:`q_m =
    \mathrm{tr}(\tilde\Omega A^m)` of :math:`A = \Sigma^{1/2}\Gamma\Sigma^{1/2}/L` the
    means in the loss are

    .. math:: E\,\mathrm{tr}\,\tilde\Omega(I - SA)^L(I - AS)^L
        = \sum_{u,m,r} \text{bias}_{urm}\,N^{-r}\,q_m \prod_n p_n^{e_{un}}

    and :math:`E\,\mathrm{tr}\,A\varphi(SA) = \sum_{u,r} \text{noise}_{ur}\,N^{-r}
    \prod_n p_n^{e_{un}}` with :math:`\varphi(z) = (1 - (1 - z)^L)^2/z`.
    """

    # e, (U, 2L): the exponents of p_1 ... p_2L in each of U products of traces.
    exponents: NDArray[np.int64]
    bias: Array  # by u, r and m, (U, R, 2L + 1)
    noise: Array  # by u and r, (U, R)


@cache
def counts(depth: int) -> Counts:
    """Return the coefficients of the loss of ``depth`` layers from means of words."""
    bias = _bias_terms(depth)
    noise = _noise_terms(depth)
    degree = 2 * depth
    # The numbers n_1 ... n_s of each product tr A^n_1 ... tr A^n_s, and its row.
    products = sorted({term.traces for term in (*bias, *noise)})
    row_of = {product: row for row, product in enumerate(products)}
    exponents = np.zeros((len(products), degree), dtype=np.int64)
    for product, row in row_of.items():
        for n in product:
            exponents[row, n - 1] += 1
    order_count = 1 + max(term.order for term in (*bias, *noise))
    bias_counts = np.zeros((len(products), order_count, degree + 1))
    for term, count in bias.items():
        bias_counts[row_of[term.traces], term.order, term.power] = count
    noise_counts = np.zeros((len(products), order_count))
    for term, count in noise.items():
        noise_counts[row_of[term.traces], term.order] = count
    return Counts(exponents, bias_counts, noise_counts)


def _bias_terms(depth: int) -> Terms:
    """Return the terms of the mean of (I - SA)^L (I - AS)^L, multiplied out."""
    terms: defaultdict[Monomial, int] = defaultdict(int)
    terms[Monomial(power=0, traces=(), order=0)] += 1  # the matrix I
    for i in range(1, depth + 1):
        # (SA)^i of the first factor, and (AS)^i of the second one. Their means are
        # transposes of each other, and equal, because powers of A are symmetric.
        coefficient = 2 * comb(depth, i) * (-1) ** i
        for monomial, count in mean_of_word((1,) * (i - 1)).items():
            # (SA)^i is the word of i matrices S, times A.
            times_A = monomial._replace(power=monomial.power + 1)
            terms[times_A] += coefficient * count
        for j in range(1, depth + 1):
            # (SA)^i (AS)^j has A² where the two factors meet.
            gaps = (1,) * (i - 1) + (2,) + (1,) * (j - 1)
            coefficient = comb(depth, i) * comb(depth, j) * (-1) ** (i + j)
            for monomial, count in mean_of_word(gaps).items():
                terms[monomial] += coefficient * count
    return dict(terms)


def _noise_terms(depth: int) -> Terms:
    """Return the terms of the mean of tr A φ(SA).

    φ(z) = f(z)²/z with f(z) = 1 - (1 - z)^L is a polynomial with the powers n = 1, ...,
    2L - 1. The terms are numbers, so the power of A in them is zero.
    """
    # Coefficients of z^0, ..., z^L in f(z).
    f = [0, *(-comb(depth, i) * (-1) ** i for i in range(1, depth + 1))]
    f_squared = np.convolve(f, f).tolist()
    terms: defaultdict[Monomial, int] = defaultdict(int)
    for n in range(1, 2 * depth):
        coefficient = f_squared[n + 1]  # of z^n in φ(z)
        # A (SA)^n has A at both ends, which the trace joins to A².
        for monomial, count in mean_of_word((1,) * (n - 1)).items():
            traces = tuple(sorted((*monomial.traces, monomial.power + 2)))
            term = Monomial(power=0, traces=traces, order=monomial.order)
            terms[term] += coefficient * count
    return dict(terms)
