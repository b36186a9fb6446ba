r"""Exact means of words in a Wishart matrix and a fixed symmetric matrix.

The Wishart matrix is :math:`S = Z^\top Z/N` with N rows of standard normal numbers, and
A is a fixed symmetric matrix. A word :math:`S A^{g_1} S A^{g_2} \cdots A^{g_{k-1}} S`
has the mean

.. math:: E[\ldots] = \sum c\,N^{-r}\,\mathrm{tr}\,A^{n_1} \cdots
    \mathrm{tr}\,A^{n_s}\;A^m

with whole numbers c that depend on neither the dimension nor N. The sum is over the
(2k - 1)!! pairings of the 2k normal vectors of the word. Pairings that begin with the
same pair leave the same shorter word, so that a recursion with a memory is far cheaper
than the list of all pairings. See docs/theory/depth-covariance.md, "Words".
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array

# The exponents between the matrices S of a word, or around a trace of such a word.
Gaps = tuple[int, ...]


class Monomial(NamedTuple):
    """The matrix N^-order tr A^n_1 ... tr A^n_s A^power."""

    power: int
    traces: tuple[int, ...]  # n_1 <= ... <= n_s
    order: int


Terms = dict[Monomial, int]


def mean_of_word(gaps: Gaps) -> Terms:
    r"""Return the mean of :math:`S A^{g_1} S \cdots A^{g_{k-1}} S` as its terms.

    Parameters
    ----------
    gaps : tuple of int, (k - 1,)
        The exponents g, 1 or more each.

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
    """Mean of a word times traces of words, ``loops``, by the partners of a vector.

    The first S of the word is the mean over rows z of z zᵀ. Its first z has a partner:
    the other z of the same S, or a z of another S, of the word or of a trace.
    """
    total = _Sum()
    letters = len(gaps) + 1
    # Its own partner: this S becomes the unit matrix.
    if letters == 1:
        total.add_traces(0, loops, 0)
    else:
        total.add_word(gaps[0], gaps[1:], loops, 0)
    for other in range(1, letters):
        between = gaps[:other]
        after = gaps[other:]
        # The left z of another S: the part between the two is turned around.
        turned = between[:-1][::-1] + after
        total.add_word(between[-1], turned, loops, 1)
        # The right z of another S: the part between the two closes to a trace.
        closed = (*loops, between)
        if after:
            total.add_word(after[0], after[1:], closed, 1)
        else:
            total.add_traces(0, closed, 1)
    for index, loop in enumerate(loops):
        others = loops[:index] + loops[index + 1 :]
        # A z of a trace: the trace is cut open there, and read from either end.
        for cut in range(len(loop)):
            opened = loop[cut:] + loop[:cut]
            for strand in (opened, opened[::-1]):
                total.add_word(strand[0], strand[1:] + gaps, others, 1)
    return dict(total.terms)


@cache
def _mean_of_traces(loops: tuple[Gaps, ...]) -> Terms:
    """Mean of a product of traces of words; the power of its monomials is zero."""
    if not loops:
        return {Monomial(0, (), 0): 1}
    terms: defaultdict[Monomial, int] = defaultdict(int)
    first = loops[0]
    # The trace is the word without its last gap, times A to this gap, closed again.
    for monomial, count in _mean(first[:-1], loops[1:]).items():
        traces = (*monomial.traces, monomial.power + first[-1])
        terms[Monomial(0, tuple(sorted(traces)), monomial.order)] += count
    return dict(terms)


class _Sum:
    """A sum of terms of shorter words, each multiplied by A^left / N^order."""

    def __init__(self) -> None:
        self.terms: defaultdict[Monomial, int] = defaultdict(int)

    def add_word(
        self, left: int, gaps: Gaps, loops: tuple[Gaps, ...], order: int
    ) -> None:
        """Add the mean of a word times traces."""
        self._add(left, _mean(gaps, _in_order(loops)), order)

    def add_traces(self, left: int, loops: tuple[Gaps, ...], order: int) -> None:
        """Add the mean of a product of traces."""
        self._add(left, _mean_of_traces(_in_order(loops)), order)

    def _add(self, left: int, terms: Terms, order: int) -> None:
        for monomial, count in terms.items():
            moved = Monomial(
                monomial.power + left, monomial.traces, monomial.order + order
            )
            self.terms[moved] += count


def _in_order(loops: tuple[Gaps, ...]) -> tuple[Gaps, ...]:
    """Return the same traces in a standard order, each by its standard name."""
    return tuple(sorted(_standard_loop(loop) for loop in loops))


def _standard_loop(loop: Gaps) -> Gaps:
    """Return the one name of a loop that all its rotations and reversals share."""
    rotations = list[Gaps]()
    for strand in (loop, loop[::-1]):
        rotations += [strand[cut:] + strand[:cut] for cut in range(len(strand))]
    return min(rotations)


class Counts(NamedTuple):
    r"""The loss of L layers as a polynomial with integer coefficients.

    With the traces :math:`p_n = \mathrm{tr}\,A^n` and :math:`q_m =
    \mathrm{tr}(\tilde\Omega A^m)` of :math:`A = \Sigma^{1/2}\Gamma\Sigma^{1/2}/L` it is

    .. math:: E\,\mathrm{tr}\,\tilde\Omega(I - SA)^L(I - AS)^L
        = \sum_{u,m,r} \text{bias}_{urm}\,N^{-r}\,q_m \prod_n p_n^{e_{un}}

    and :math:`E\,\mathrm{tr}\,A\varphi(SA) = \sum_{u,r} \text{noise}_{ur}\,N^{-r}
    \prod_n p_n^{e_{un}}` with :math:`\varphi(z) = (1 - (1 - z)^L)^2/z`.
    """

    # e, (U, 2L): exponents of p_1 ... p_2L in each product of traces.
    exponents: NDArray[np.int64]
    bias: Array  # (U, R, 2L + 1)
    noise: Array  # (U, R)


@cache
def counts(depth: int) -> Counts:
    """Return the polynomial of the loss of some layers, from the means of words."""
    bias = _bias_terms(depth)
    noise = _noise_terms(depth)
    traces = sorted({term.traces for term in (*bias, *noise)})
    index = {product: row for row, product in enumerate(traces)}
    degree = 2 * depth
    exponents = np.zeros((len(traces), degree), dtype=np.int64)
    for product, row in index.items():
        for n in product:
            exponents[row, n - 1] += 1
    orders = 1 + max(term.order for term in (*bias, *noise))
    bias_counts = np.zeros((len(traces), orders, degree + 1))
    for term, count in bias.items():
        bias_counts[index[term.traces], term.order, term.power] = count
    noise_counts = np.zeros((len(traces), orders))
    for term, count in noise.items():
        noise_counts[index[term.traces], term.order] = count
    return Counts(exponents, bias_counts, noise_counts)


def _bias_terms(depth: int) -> Terms:
    """Terms of the mean of (I - SA)^L (I - AS)^L."""
    terms: defaultdict[Monomial, int] = defaultdict(int)
    terms[Monomial(0, (), 0)] += 1
    for i in range(1, depth + 1):
        # (SA)^i alone, from either of the two factors.
        sign = 2 * comb(depth, i) * (-1) ** i
        for monomial, count in mean_of_word((1,) * (i - 1)).items():
            moved = Monomial(monomial.power + 1, monomial.traces, monomial.order)
            terms[moved] += sign * count
        for j in range(1, depth + 1):
            # (SA)^i (AS)^j has A² at the place where the two meet.
            gaps = (1,) * (i - 1) + (2,) + (1,) * (j - 1)
            sign = comb(depth, i) * comb(depth, j) * (-1) ** (i + j)
            for monomial, count in mean_of_word(gaps).items():
                terms[monomial] += sign * count
    return dict(terms)


def _noise_terms(depth: int) -> Terms:
    """Terms of the mean of tr A φ(SA), which have no q_m, that is, the power zero.

    With f(z) = 1 - (1 - z)^L, φ(z) = f(z)²/z is a polynomial with the powers n = 1 ...
    2L - 1.
    """
    f = [0, *(-comb(depth, i) * (-1) ** i for i in range(1, depth + 1))]
    f_squared = np.convolve(f, f).tolist()
    terms: defaultdict[Monomial, int] = defaultdict(int)
    for n in range(1, 2 * depth):
        coefficient = f_squared[n + 1]
        # A (SA)^n has A at both ends, which the trace joins to A².
        for monomial, count in mean_of_word((1,) * (n - 1)).items():
            traces = tuple(sorted((*monomial.traces, monomial.power + 2)))
            terms[Monomial(0, traces, monomial.order)] += coefficient * count
    return dict(terms)
