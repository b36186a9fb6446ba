r"""The mean square of a softmax average over tokens of several kinds.

The letters are defined in `icl_theory.tokens.square`. Here the error of a node is a
vector :math:`e_u`, and a kind κ enters through three sums,

.. math:: g_\kappa = \sum_{u \in \kappa} t_u e_u, \qquad
    d_\kappa = \sum_{u \in \kappa} t_u y_u D_u, \qquad
    t_u = \frac{b_u}{G_\kappa} = \frac{\pi_u y_u e^{-y_u}}{G_\kappa} .

If the numbers :math:`n_\kappa` of tokens are independent, and if E is the mean under
their laws weighted by :math:`\prod G_\kappa^{n_\kappa}`, then

.. math:: E\Bigl|\frac{\sum w e}{\sum w}\Bigr|^2 = \int_0^\infty P \sum_\kappa \Bigl\{
    E[n_\kappa (n_\kappa - 1)]\,|g_\kappa|^2
    + E[n_\kappa]\,\Bigl(g_\kappa \cdot \sum_{\lambda \ne \kappa} E[n_\lambda] g_\lambda
    + d_\kappa\Bigr)\Bigr\}\,\frac{ds}{s} .

If the kinds grow together, a prompt of length l has :math:`N_{l\kappa}` tokens of kind
κ, and the integrand is a mean over the lengths,

.. math:: \sum_l p_l \prod_\kappa G_\kappa^{N_{l\kappa}} \Bigl\{|H_l|^2
    + \sum_\kappa N_{l\kappa} (d_\kappa - |g_\kappa|^2)\Bigr\}, \qquad
    H_l = \sum_\kappa N_{l\kappa} g_\kappa .

Both take a time in proportion to the number of kinds, and so do their gradients. See
docs/theory.md, "Tokens".

In the shapes below, U is the number of nodes, K the number of kinds, L the number of
lengths, M the number of coordinates of an error, q the number of queries of a block and
J the number of values of s in the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.memory import check_fits
from icl_theory.tokens.generating import (
    HIGHEST,
    SMALLEST,
    GeneratingFunction,
    TokenCount,
    log_mean,
)
from icl_theory.tokens.lengths import LOG_ZERO, Lengths
from icl_theory.tokens.quadrature import LATEST, LOG_LATEST, Nodes, is_kept
from icl_theory.tokens.separated import (
    MOST_PAIRED,
    SMALL_VARIANCE,
    gradient_by_pairs,
    is_separated,
    variance,
)
from icl_theory.tokens.square import (
    BLOCK,
    CANCELLED,
    Moments,
    Queries,
    over_queries,
)
from icl_theory.tokens.tilted import (
    balance,
    inverse,
    moments_of_number,
    tilted,
)

# The logarithm of a G that vanishes: its powers are zero in float64.
LOG_VANISHED = -1e6


class Together(NamedTuple):
    """Numbers of tokens of kinds that grow together."""

    probs: Array  # probabilities p of the lengths, (L,)
    numbers: Array  # N, (L, K)

    def total(self) -> TokenCount:
        """Return the range of the number of tokens of all kinds together.

        The nodes of the rule depend on this range, and not on probabilities in it.
        """
        totals = self.numbers.sum(axis=1)
        lengths = Lengths.uniform(int(totals.min()), int(totals.max()))
        return TokenCount(lengths.most, law=lengths)


class _Kinds(NamedTuple):
    """The kinds of all nodes: kind k has the rows from starts[k] on."""

    counts: Sequence[TokenCount]
    starts: NDArray[np.intp]  # (K,)
    sizes: NDArray[np.intp]  # (K,)

    @classmethod
    def of(cls, counts: Sequence[TokenCount]) -> _Kinds:
        starts = np.array([count.rows.start for count in counts])
        stops = np.array([count.rows.stop for count in counts])
        return cls(counts, starts, stops - starts)

    def summed(self, array: Array) -> Array:
        """Sum over the nodes of each kind, (q, U, J) -> (q, K, J)."""
        return np.asarray(np.add.reduceat(array, self.starts, axis=1))

    def at_nodes(self, array: Array) -> Array:
        """Repeat the entry of a kind at all of its nodes, (q, K, J) -> (q, U, J)."""
        return np.repeat(array, self.sizes, axis=1)

    def projected(self, errors: Array, t: Array) -> Array:
        """Return the sums g of t_u e_u over each kind, (q, K, M, J)."""
        q, _, J = t.shape
        M = errors.shape[2]
        K = len(self.sizes)
        result = np.empty((q, K, M, J), dtype=t.dtype)
        # One product of matrices for each kind, or one sum for each coordinate.
        if K <= M:
            for k, count in enumerate(self.counts):
                rows = count.rows
                result[:, k] = errors[:, rows].swapaxes(1, 2) @ t[:, rows]
        else:
            for d in range(M):
                result[:, :, d] = self.summed(errors[:, :, d, None] * t)
        return result

    def fields(self, errors: Array, vectors: Array) -> Array:
        """Return e_u·V_κ at the nodes u of each kind κ, (q, U, J)."""
        q, K, M, J = vectors.shape
        result = np.zeros((q, errors.shape[1], J), dtype=vectors.dtype)
        if K <= M:
            for k, count in enumerate(self.counts):
                rows = count.rows
                result[:, rows] = errors[:, rows] @ vectors[:, k]
        else:
            for d in range(M):
                result += errors[:, :, d, None] * self.at_nodes(vectors[:, :, d])
        return result


class _Tokens(NamedTuple):
    """Factors of the integrand for each token, at J values of s for q queries."""

    y: Array  # s w, (q, U, J)
    t: Array  # π y e^(-y)/G, (q, U, J)
    mean: Array  # G, (q, K, J)
    log: Array  # ln G, (q, K, J)


class _Sums(NamedTuple):
    """Sums over the nodes of each kind."""

    g: Array  # (q, K, M, J)
    d: Array  # (q, K, J)
    squares: Array  # |g|², (q, K, J)


class _Integrand(NamedTuple):
    """The integrand of twice the loss, and its derivatives by the sums of each kind.

    All of them include the weights of the rule.
    """

    whole: Array  # (q, J)
    by_mean: Array  # by G at constant b, times G, (q, K, J)
    by_g: Array  # half of the derivative with respect to g, (q, K, M, J)
    by_d: Array  # by d, (q, K, J)


Average = Callable[[_Kinds, _Tokens, _Sums, Array], _Integrand]


def moments(
    log_w: Array,
    probs: Array,
    D: Array,
    counts: Sequence[TokenCount],
    errors: Array,
    step: float = 0.2,
    spread: Array | None = None,
    together: Together | None = None,
) -> Moments:
    """Integrate losses, gradients and attention of all queries.

    Parameters
    ----------
    log_w, probs, D, counts, step, spread
        As in `icl_theory.tokens.square.moments`.
    errors : ndarray, (Q, U, M)
        Errors e of the nodes.
    together : Together, optional
        Numbers of tokens of kinds that grow together. They replace the numbers of
        ``counts``, which are the largest ones.
    """
    integrate = partial(_integrate, _Kinds.of(counts), errors, together)
    total = counts if together is None else [together.total()]
    return over_queries(log_w, probs, D, counts, total, step, spread, integrate)


def _integrate(
    kinds: _Kinds,
    errors: Array,
    together: Together | None,
    queries: Queries,
    rule: Nodes,
) -> Moments:
    """Integrate some queries. The arrays of the result have a row for each query."""
    e = errors[queries.number]
    average: Average = _independent
    if together is not None:
        average = partial(_over_lengths, together)
    q, U = queries.log_w.shape
    dtype = float if queries.turn is None else complex
    loss = np.zeros(q, dtype)
    along_t, along_mean, along_ty, attention, squares = np.zeros((5, q, U), dtype)
    for nodes in _chunks(rule, q, U, kinds, e.shape[2], together):
        tokens = _tokens(queries, kinds, nodes)
        t = tokens.t
        ty = t * tokens.y
        g = kinds.projected(e, t)
        d = kinds.summed(queries.D[:, :, None] * ty)
        sums = _Sums(g, d, np.einsum("qkdj,qkdj->qkj", g, g))
        integrand = average(kinds, tokens, sums, nodes.weights)
        loss += 0.5 * integrand.whole.sum(axis=1)
        field = kinds.fields(e, integrand.by_g)
        by_mean = kinds.at_nodes(integrand.by_mean)
        by_d = kinds.at_nodes(integrand.by_d)
        along_t += np.einsum("qcj,qcj->qc", t - ty, field)
        along_mean -= 0.5 * np.einsum("qcj,qcj->qc", t, by_mean)
        slope_of_ty = (2.0 - tokens.y) * ty
        along_ty += 0.5 * np.einsum("qcj,qcj->qc", slope_of_ty, by_d)
        attention += np.einsum("qcj,qcj->qc", t, by_d)
        squares += np.einsum("qcj,qcj->qc", ty, by_d)
    gradient, scale = balance(along_t, along_mean, queries.D * along_ty)
    result = Moments(loss, gradient, attention)
    size = np.abs(gradient.real).sum(axis=1)
    is_cancelled = size < CANCELLED * (scale + 0.5 * loss.real)
    if is_cancelled.any():
        _mend_cancelled(
            result, is_cancelled, squares.real, queries, rule, kinds, e, together
        )
    return result


def _chunks(
    rule: Nodes,
    q: int,
    U: int,
    kinds: _Kinds,
    M: int,
    together: Together | None,
) -> Iterator[Nodes]:
    """Split a rule so that the largest array of a chunk stays in the cache."""
    rows = len(kinds.sizes) if together is None else sum(together.numbers.shape)
    largest = q * max(U, rows * M)
    check_fits("kinds", f"{U} nodes of {M} coordinates", 8.0 * 20 * largest)
    length = max(1, BLOCK // largest)
    for start in range(0, len(rule.log_s), length):
        part = slice(start, start + length)
        yield Nodes(rule.log_s[part], rule.weights[part], rule.needed)


def _tokens(queries: Queries, kinds: _Kinds, nodes: Nodes) -> _Tokens:
    """Return y, t, G and ln G of some queries at the values of s of ``nodes``."""
    log_w = queries.log_w
    # One exponential for each score and for each s is faster than one for each pair,
    # but e^(ln s) must not overflow.
    if nodes.log_s[-1] < 600.0:
        y = np.exp(log_w)[:, :, None] * np.exp(nodes.log_s)
        np.minimum(y, LATEST, out=y)
    else:
        y = np.exp(np.minimum(log_w[:, :, None] + nodes.log_s, LOG_LATEST))
    probs = queries.probs[:, :, None]
    decay = np.exp(-y)
    mean = kinds.summed(probs * decay)
    if mean[:, :, -1].min() < 1e-60:
        # y was cut at 300: a G that should be zero is at least e^(-300).
        decay *= is_kept(y)
        mean = kinds.summed(probs * decay)
    log = np.log(np.maximum(mean, SMALLEST))
    log[mean < SMALLEST] = LOG_VANISHED
    # G falls along the nodes of the rule, so it is near 1 in the first columns only.
    early = np.count_nonzero((mean > 0.5).any(axis=(0, 1)))
    mean_minus_1 = kinds.summed(probs * np.expm1(-y[:, :, :early]))
    mean_minus_1 -= np.stack(queries.absent, axis=1)
    near_1 = mean[:, :, :early]
    log[:, :, :early] = np.where(
        near_1 > 0.5, log_mean(near_1, mean_minus_1), log[:, :, :early]
    )
    if queries.turn is not None:
        # Expand to first order in the imaginary parts of the scores.
        turned = queries.turn * y
        decay = decay - 1j * turned * decay
        y = y + 1j * turned
        mean = mean + 1j * kinds.summed(probs * decay.imag)
        log = log + 1j * mean.imag / np.maximum(mean.real, SMALLEST)
    t = probs * y * decay * kinds.at_nodes(inverse(mean))
    return _Tokens(y, t, mean, log)


def _exp(log_product: Array) -> Array:
    """Return the exponential, with zeros where it would be denormal."""
    is_normal = log_product.real > LOG_ZERO
    return np.asarray(np.exp(np.where(is_normal, log_product, 0.0)) * is_normal)


def _independent(
    kinds: _Kinds, tokens: _Tokens, sums: _Sums, weights: Array
) -> _Integrand:
    """Return the integrand for kinds whose numbers of tokens are independent."""
    log_product: Array = np.zeros((), dtype=tokens.log.dtype)
    one, two, three = np.empty((HIGHEST, *tokens.mean.shape), dtype=tokens.mean.dtype)
    for k, count in enumerate(kinds.counts):
        mean = tokens.mean[:, k]
        log = tokens.log[:, k]
        log_power, of_number = moments_of_number(count, mean, log)
        one[:, k], two[:, k], three[:, k] = of_number
        log_product = log_product + log_power
    P = (_exp(log_product) * weights)[:, None]
    # The field of all other kinds is a sum from both ends. To subtract a kind from the
    # sum of all kinds would lose the digits of the others.
    drawn = one[:, :, None] * sums.g
    others = np.zeros_like(drawn)
    np.cumsum(drawn[:, :-1], axis=1, out=others[:, 1:])
    others[:, :-1] += np.cumsum(drawn[:, :0:-1], axis=1)[:, ::-1]
    crossed = np.einsum("qkdj,qkdj->qkj", sums.g, others)
    whole = P * (two * sums.squares + one * (crossed + sums.d)).sum(
        axis=1, keepdims=True
    )
    # The derivative with respect to the G of a kind stands for one more token of this
    # kind. It multiplies the terms without the kind by E[n]. In the terms with the kind
    # it raises the order of the derivative of P.
    by_G = one * whole + P * (
        (three - one * two) * sums.squares
        + (two - one * one) * (2.0 * crossed + sums.d)
    )
    by_g = P[:, :, None] * (two[:, :, None] * sums.g + one[:, :, None] * others)
    return _Integrand(whole[:, 0], by_G, by_g, P * one)


def _over_lengths(
    together: Together, kinds: _Kinds, tokens: _Tokens, sums: _Sums, weights: Array
) -> _Integrand:
    """Return the integrand for kinds whose numbers of tokens depend on one length.

    The integrand is averaged over the lengths.
    """
    N = together.numbers
    q, K, M, J = sums.g.shape
    P = _exp(N @ tokens.log) * together.probs[:, None] * weights  # (q, L, J)
    H = (N @ sums.g.reshape(q, K, M * J)).reshape(q, len(N), M, J)
    squares = np.einsum("qldj,qldj->qlj", H, H) + N @ (sums.d - sums.squares)
    terms = P * squares
    drawn = N.T @ P  # (q, K, J)
    pull = N.T @ (P[:, :, None] * H).reshape(q, len(N), M * J)
    pull = pull.reshape(q, K, M, J)
    # t falls with G if b is constant
    by_G = N.T @ terms + drawn * (2.0 * sums.squares - sums.d)
    by_G -= 2.0 * np.einsum("qkdj,qkdj->qkj", sums.g, pull)
    by_g = pull - drawn[:, :, None] * sums.g
    return _Integrand(terms.sum(axis=1), by_G, by_g, drawn)


def _mend_cancelled(
    result: Moments,
    is_cancelled: NDArray[np.bool_],
    squares: Array,
    queries: Queries,
    rule: Nodes,
    kinds: _Kinds,
    e: Array,
    together: Together | None,
) -> None:
    """Replace gradients that lost digits by sums over pairs, if this is better."""
    lengths = [kinds.counts]
    probs = np.ones(1)
    if together is not None:
        probs = together.probs
        lengths = [
            [TokenCount(n, rows) for n, rows in zip(row, _rows(kinds), strict=True)]
            for row in together.numbers
        ]
    U = e.shape[1]
    if U**2 * len(lengths) > MOST_PAIRED**2:
        return
    # The variance is a quick test. It excludes most queries late in a run.
    loss = result.loss.real
    attention = result.attention.real
    spread_of_errors = variance(loss, attention, queries.D, queries.spread, squares)
    is_small = spread_of_errors < SMALL_VARIANCE * loss
    for q in np.flatnonzero(is_cancelled & is_small):
        single = queries.of(np.array([q]))
        form = _form(e[q])
        D = queries.D[q]
        if not is_separated(single.log_w[0], attention[q], D, kinds.counts, form):
            continue
        tokens = _tokens(single, kinds, rule)
        b = tokens.t * kinds.at_nodes(tokens.mean)
        means = [
            GeneratingFunction(tokens.mean[:, k], tokens.log[:, k])
            for k in range(len(kinds.sizes))
        ]
        gradient = np.zeros_like(result.gradient[q])
        for p, counts in zip(probs, lengths, strict=True):
            of_length = tilted(tokens.y, b.copy(), counts, means, rule.weights)
            gradient += p * gradient_by_pairs(of_length, D, counts, form)
        result.gradient[q] = gradient


def _rows(kinds: _Kinds) -> list[slice]:
    """Return the rows of the nodes of each kind."""
    return [count.rows for count in kinds.counts]


def _form(errors: Array) -> Callable[[slice, Array, Array], object]:
    """Return the product with C = e eᵀ of the errors of one query, (U, M)."""

    def form(rows: slice, z: Array, out: Array) -> None:
        np.matmul(errors, errors[rows].T @ z, out=out)

    return form
