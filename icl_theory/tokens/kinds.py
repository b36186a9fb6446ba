r"""The mean square of a softmax average over tokens of several kinds.

The letters are defined in `icl_theory.tokens.square`. Here the error of a node is a
vector :math:`e_u`. A kind κ enters through :math:`G_\kappa` and two more sums over its
nodes,

.. math:: g_\kappa = \sum_{u \in \kappa} t_u e_u, \qquad
    d_\kappa = \sum_{u \in \kappa} t_u y_u D_u, \qquad
    t_u = \frac{b_u}{G_\kappa} = \frac{\pi_u y_u e^{-y_u}}{G_\kappa} .

If the numbers :math:`n_\kappa` of tokens are independent, let P be the mean of
:math:`\prod G_\kappa^{n_\kappa}`, and let E under the integral be the mean under their
laws weighted by this product. Then

.. math:: E\Bigl|\frac{\sum w e}{\sum w}\Bigr|^2 = \int_0^\infty P \sum_\kappa \Bigl\{
    E[n_\kappa (n_\kappa - 1)]\,|g_\kappa|^2
    + E[n_\kappa]\,\Bigl(g_\kappa \cdot \sum_{\lambda \ne \kappa} E[n_\lambda] g_\lambda
    + d_\kappa\Bigr)\Bigr\}\,\frac{ds}{s} .

If the kinds grow together, a prompt of length l has :math:`N_{l\kappa}` tokens of kind
κ, and the integrand is a mean over the lengths,

.. math:: \sum_l p_l \prod_\kappa G_\kappa^{N_{l\kappa}} \Bigl\{|H_l|^2
    + \sum_\kappa N_{l\kappa} (d_\kappa - |g_\kappa|^2)\Bigr\}, \qquad
    H_l = \sum_\kappa N_{l\kappa} g_\kappa .

Both integrals take a time in proportion to the number of kinds, and so do their
gradients. See docs/theory.md, "Tokens".

In the shapes below, U is the number of nodes, K the number of kinds, L the number of
lengths, M the number of coordinates of an error, q the number of queries of a block and
J the number of values of s in the rule. A name ``d_a`` stands for the derivative of the
integrand with respect to a.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.memory import check_fits
from icl_theory.tokens.generating import (
    HIGHEST,
    NEAR_1,
    SMALLEST,
    GeneratingFunction,
    TokenCount,
    log_mean,
)
from icl_theory.tokens.lengths import LOG_ZERO, Lengths
from icl_theory.tokens.quadrature import LARGEST_Y, LOG_LARGEST_Y, Nodes, is_kept
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
    LARGEST_LOG_S,
    SMALL_MEAN,
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

# Stands for ln G if G is zero in float64. It is finite, so that G^0 remains 1 and not
# NaN, as e^(0 * -inf) would be. Any value below -745 would do, because e^x is zero
# there in float64.
LOG_VANISHED = -1e6


class Together(NamedTuple):
    """Numbers of tokens of kinds that grow together."""

    probs: Array  # probabilities p of the lengths, (L,)
    numbers: Array  # N, (L, K)

    def total(self) -> TokenCount:
        """Return the range of the number of tokens of all kinds together.

        The returned law is uniform on the range, whatever the true law is: the nodes of
        the rule depend only on the least and the largest number.
        """
        totals = self.numbers.sum(axis=1)
        lengths = Lengths.uniform(int(totals.min()), int(totals.max()))
        return TokenCount(lengths.most, law=lengths)


class _Kinds(NamedTuple):
    """The kinds, and the rows of their nodes in the list of all nodes."""

    counts: Sequence[TokenCount]
    starts: NDArray[np.intp]  # the first row of each kind, (K,)
    sizes: NDArray[np.intp]  # how many rows each kind has, (K,)

    @classmethod
    def of(cls, counts: Sequence[TokenCount]) -> _Kinds:
        """Return the kinds with these numbers of tokens and rows."""
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
        # One product of matrices for each kind, or one sum for each coordinate,
        # whichever are fewer.
        if K <= M:
            for k, count in enumerate(self.counts):
                rows = count.rows
                result[:, k] = errors[:, rows].swapaxes(1, 2) @ t[:, rows]
        else:
            for m in range(M):
                result[:, :, m] = self.summed(errors[:, :, m, None] * t)
        return result

    def fields(self, errors: Array, vectors: Array) -> Array:
        """Return e_u·V_κ at the nodes u of each kind κ, (q, U, J).

        The ``vectors`` V are (q, K, M, J).
        """
        q, K, M, J = vectors.shape
        result = np.zeros((q, errors.shape[1], J), dtype=vectors.dtype)
        # One product of matrices for each kind, or one sum for each coordinate,
        # whichever are fewer.
        if K <= M:
            for k, count in enumerate(self.counts):
                rows = count.rows
                result[:, rows] = errors[:, rows] @ vectors[:, k]
        else:
            for m in range(M):
                result += errors[:, :, m, None] * self.at_nodes(vectors[:, :, m])
        return result


class _Tokens(NamedTuple):
    """Factors of the integrand for each token, at J values of s for q queries."""

    y: Array  # s w, (q, U, J)
    t: Array  # π y e^(-y)/G, (q, U, J)
    G: Array  # (q, K, J)
    log: Array  # ln G, (q, K, J)


class _Sums(NamedTuple):
    """Sums over the nodes of each kind."""

    g: Array  # (q, K, M, J)
    d: Array  # (q, K, J)
    squares: Array  # |g|², (q, K, J)


class _Integrand(NamedTuple):
    """The integrand of twice the loss, and its derivatives.

    The derivatives are with respect to the sums of each kind. All fields include the
    weights of the rule.
    """

    whole: Array  # the integrand, (q, J)
    G_d_G: Array  # the derivative with respect to G at constant b, times G, (q, K, J)
    half_d_g: Array  # half of the derivative with respect to g, (q, K, M, J)
    d_d: Array  # the derivative with respect to d, (q, K, J)


# A function of the kinds, the factors for each token, the sums over the nodes of each
# kind, and the weights of the rule.
IntegrandFunction = Callable[[_Kinds, _Tokens, _Sums, Array], _Integrand]


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
    log_w : ndarray, (U, Q)
        Scores of the nodes, -inf for a node that never occurs.
    probs : ndarray, (U, 1) or (U, Q)
        Probabilities of the nodes, which sum to one over the nodes of each kind.
    D : ndarray, (U, Q)
        Mean squares of the errors.
    counts : sequence of TokenCount
        For each kind, the number of tokens and the rows of its nodes.
    errors : ndarray, (Q, U, M)
        Errors e of the nodes.
    step : float
        Step of the rule for the integral over s. The default is exact to rounding.
    spread : ndarray, (U, Q), optional
        The part of D that is not the square of e, such as label noise.
    together : Together, optional
        Numbers of tokens of kinds that grow together. They replace the numbers of
        ``counts``, which are then the largest numbers of each kind.
    """
    integrate = partial(_integrate, _Kinds.of(counts), errors, together)
    # The numbers of tokens that decide which values of s the rule has.
    lengths = counts if together is None else [together.total()]
    return over_queries(log_w, probs, D, counts, lengths, step, spread, integrate)


def _integrate(
    kinds: _Kinds,
    errors: Array,
    together: Together | None,
    queries: Queries,
    rule: Nodes,
) -> Moments:
    """Integrate some queries. The arrays of the result have a row for each query.

    ``queries.number`` has the indices of these queries in ``errors``. The field
    ``queries.turn`` has the imaginary parts of the scores, or is None if they are real.
    """
    e = errors[queries.number]
    integrand_of: IntegrandFunction = _independent
    if together is not None:
        integrand_of = partial(_over_lengths, together)
    q, U = queries.log_w.shape
    dtype = float if queries.turn is None else complex
    loss = np.zeros(q, dtype)
    # The gradient has a term through each of the sums g, G and d. In the subscripts
    # below, u is a node and j a value of s.
    through_g, through_G, through_d = np.zeros((3, q, U), dtype)
    attention, squares = np.zeros((2, q, U), dtype)
    for nodes in _chunks(rule, q, U, kinds, e.shape[2], together):
        tokens = _tokens(queries, kinds, nodes)
        t = tokens.t
        ty = t * tokens.y
        sums = _sums(kinds, e, queries.D, t, ty)
        integrand = integrand_of(kinds, tokens, sums, nodes.weights)
        loss += 0.5 * integrand.whole.sum(axis=1)
        field = kinds.fields(e, integrand.half_d_g)  # (q, U, J), as the next two
        G_d_G = kinds.at_nodes(integrand.G_d_G)
        d_d = kinds.at_nodes(integrand.d_d)
        # A derivative with respect to a score is y ∂/∂y. At constant G, the derivative
        # of t is t (1 - y), and the derivative of t y is t y (2 - y). The derivative of
        # G is -b = -t G.
        slope_of_t = t - ty
        slope_of_ty = (2.0 - tokens.y) * ty
        through_g += np.einsum("quj,quj->qu", slope_of_t, field)
        through_G -= 0.5 * np.einsum("quj,quj->qu", t, G_d_G)
        through_d += 0.5 * np.einsum("quj,quj->qu", slope_of_ty, d_d)
        # d_d is P E[n]. The expected attention on a node is the integral of P E[n] t,
        # and E Σ a_i² over the tokens i of a node is the integral of P E[n] t y.
        attention += np.einsum("quj,quj->qu", t, d_d)
        squares += np.einsum("quj,quj->qu", ty, d_d)
    # `balance` adds the terms up so that the gradient of a query sums to zero, and
    # returns the sum of their sizes as its scale.
    gradient, scale = balance(through_g, through_G, queries.D * through_d)
    result = Moments(loss, gradient, attention)
    _mend_cancelled(result, scale, squares.real, queries, rule, kinds, e, together)
    return result


def _sums(kinds: _Kinds, e: Array, D: Array, t: Array, ty: Array) -> _Sums:
    """Return the sums g of t e, d of t y D, and |g|², over the nodes of each kind."""
    g = kinds.projected(e, t)
    d = kinds.summed(D[:, :, None] * ty)
    return _Sums(g, d, np.einsum("qkdj,qkdj->qkj", g, g))


def _chunks(
    rule: Nodes,
    q: int,
    U: int,
    kinds: _Kinds,
    M: int,
    together: Together | None,
) -> Iterator[Nodes]:
    """Yield parts of a rule, so short that the largest array stays in the cache."""
    K = len(kinds.sizes)
    # The largest array at one value of s has a number for each node, or M coordinates
    # for each kind and, if kinds grow together, for each length.
    vectors = K
    if together is not None:
        L = len(together.probs)
        vectors = L + K
    largest = q * max(U, vectors * M)
    # An upper estimate: 20 such arrays, of 8 bytes a number, exist at once.
    check_fits("kinds", f"{U} nodes of {M} coordinates", 8.0 * 20 * largest)
    # An array of `BLOCK` numbers stays in the processor's cache.
    nodes_at_a_time = max(1, BLOCK // largest)
    for start in range(0, len(rule.log_s), nodes_at_a_time):
        part = slice(start, start + nodes_at_a_time)
        yield Nodes(rule.log_s[part], rule.weights[part], rule.needed)


def _tokens(queries: Queries, kinds: _Kinds, nodes: Nodes) -> _Tokens:
    """Return y, t, G and ln G of some queries at the values of s of ``nodes``."""
    log_w = queries.log_w
    # One exponential for each score and for each s is faster than one for each pair,
    # but e^(ln s) must not overflow.
    if nodes.log_s[-1] < LARGEST_LOG_S:
        y = np.exp(log_w)[:, :, None] * np.exp(nodes.log_s)
        np.minimum(y, LARGEST_Y, out=y)
    else:
        y = np.exp(np.minimum(log_w[:, :, None] + nodes.log_s, LOG_LARGEST_Y))
    probs = queries.probs[:, :, None]
    decay = np.exp(-y)
    G = kinds.summed(probs * decay)
    G_at_largest_s = G[:, :, -1]
    # G falls with s, so it is least at the largest s.
    if G_at_largest_s.min() < SMALL_MEAN:
        # The factors e^(-y) whose y was cut become zero. If G is above the limit, these
        # factors do not change G in float64, and this pass over the arrays is saved.
        decay *= is_kept(y)
        G = kinds.summed(probs * decay)
    log_G: NDArray[Any] = _log_G(G, y, queries, kinds)
    if queries.turn is not None:
        # Expand to first order in the imaginary parts of the scores, the turn:
        # y -> y (1 + i turn), e^(-y) -> e^(-y) (1 - i turn y).
        imag_y = queries.turn * y
        decay = decay - 1j * imag_y * decay
        y = y + 1j * imag_y
        G = G + 1j * kinds.summed(probs * decay.imag)
        log_G = log_G + 1j * G.imag / np.maximum(G.real, SMALLEST)
    # `inverse` returns 0 for a G that is treated as zero, so that t is then 0.
    t = probs * y * decay * kinds.at_nodes(inverse(G))
    return _Tokens(y, t, G, log_G)


def _log_G(G: Array, y: Array, queries: Queries, kinds: _Kinds) -> Array:
    """Return ln G, (q, K, J), with `LOG_VANISHED` for a G below `SMALLEST`."""
    log_G: Array = np.log(np.maximum(G, SMALLEST))
    log_G[G < SMALLEST] = LOG_VANISHED
    # G falls along the nodes of the rule, so it is near 1 in the first columns only.
    number_near_1 = np.count_nonzero((G > NEAR_1).any(axis=(0, 1)))
    first_G = G[:, :, :number_near_1]
    first_log_G = log_G[:, :, :number_near_1]
    # G - 1 = Σ_u π_u (e^(-y_u) - 1), in which e^(-y) = 0 at nodes that never occur.
    probs = queries.probs[:, :, None]
    G_minus_1 = kinds.summed(probs * np.expm1(-y[:, :, :number_near_1]))
    # ``queries.probs`` is 0 at these nodes. Their total probability in each kind is in
    # ``queries.absent``, a list of arrays (q, 1).
    G_minus_1 -= np.stack(queries.absent, axis=1)
    log_G[:, :, :number_near_1] = np.where(
        first_G > NEAR_1, log_mean(first_G, G_minus_1), first_log_G
    )
    return log_G


def _exp(log_product: Array) -> Array:
    """Return the exponential, with zeros in place of numbers that are subnormal.

    Arithmetic with subnormal numbers is slow.
    """
    is_normal = log_product.real > LOG_ZERO
    return np.asarray(np.exp(np.where(is_normal, log_product, 0.0)) * is_normal)


def _independent(
    kinds: _Kinds, tokens: _Tokens, sums: _Sums, weights: Array
) -> _Integrand:
    """Return the integrand for kinds whose numbers of tokens are independent.

    The integrand belongs to the first integral at the head of the module, where P is
    the product of E G^n over the kinds.
    """
    log_P: Array = np.zeros((), dtype=tokens.log.dtype)
    # n1 = E[n], n2 = E[n (n - 1)] and n3 = E[n (n - 1) (n - 2)], (q, K, J) each
    n1, n2, n3 = np.empty((HIGHEST, *tokens.G.shape), dtype=tokens.G.dtype)
    for k, count in enumerate(kinds.counts):
        G = tokens.G[:, k]
        log_G = tokens.log[:, k]
        # ln E G^n, and the three moments of n under its law weighted by G^n.
        log_power, moments_of_kind = moments_of_number(count, G, log_G)
        n1[:, k], n2[:, k], n3[:, k] = moments_of_kind
        log_P = log_P + log_power
    P = (_exp(log_P) * weights)[:, None]  # (q, 1, J)
    # The sum in the formula at the head of the module: Σ_{λ ≠ κ} E[n_λ] g_λ.
    others = _sums_over_others(n1[:, :, None] * sums.g)
    crossed = np.einsum("qkdj,qkdj->qkj", sums.g, others)
    whole = P * (n2 * sums.squares + n1 * (crossed + sums.d)).sum(axis=1, keepdims=True)
    # At constant b, the g and d of a kind are in proportion to 1/G. So G ∂/∂G of the
    # kind turns the parts of the integrand, each with the factor P, into
    #     1 -> n1,  n1 g -> n2 g,  n1 d -> n2 d,  n2 |g|² -> n3 |g|².
    #
    # The product n1 ``whole`` gives all terms the factor n1. This is right for the
    # terms without g and d of the kind. In the other terms, n3 must take the place of
    # n1 n2, and n2 the place of n1 n1. ``whole`` has the product of the g of two kinds
    # twice, once for each of the kinds, hence the factor 2 of ``crossed``.
    G_d_G = n1 * whole + P * (
        (n3 - n1 * n2) * sums.squares + (n2 - n1 * n1) * (2.0 * crossed + sums.d)
    )
    half_d_g = P[:, :, None] * (n2[:, :, None] * sums.g + n1[:, :, None] * others)
    return _Integrand(whole[:, 0], G_d_G, half_d_g, d_d=P * n1)


def _sums_over_others(array: Array) -> Array:
    """Return for each kind the sum of the array over all other kinds, (q, K, M, J).

    The kinds before this kind and the kinds after it are summed separately. If this
    kind were subtracted from the sum over all kinds, the result would lose digits.
    """
    others = np.zeros_like(array)
    np.cumsum(array[:, :-1], axis=1, out=others[:, 1:])
    # The second sum runs from the last kind down to the second one.
    others[:, :-1] += np.cumsum(array[:, :0:-1], axis=1)[:, ::-1]
    return others


def _over_lengths(
    together: Together, kinds: _Kinds, tokens: _Tokens, sums: _Sums, weights: Array
) -> _Integrand:
    """Return the integrand for kinds whose numbers of tokens depend on one length.

    The integrand, the second formula at the head of the module, is a mean over the
    lengths.
    """
    N = together.numbers
    q, K, M, J = sums.g.shape
    # Π_κ G_κ^N_lκ, times the probability of the length and the weights of the rule.
    P = _exp(N @ tokens.log) * together.probs[:, None] * weights  # (q, L, J)
    H = (N @ sums.g.reshape(q, K, M * J)).reshape(q, len(N), M, J)  # Σ_κ N_lκ g_κ
    # The bracket of the formula, (q, L, J).
    bracket = np.einsum("qldj,qldj->qlj", H, H) + N @ (sums.d - sums.squares)
    terms = P * bracket
    PN = N.T @ P  # Σ_l P_l N_lκ, (q, K, J)
    PNH = N.T @ (P[:, :, None] * H).reshape(q, len(N), M * J)
    PNH = PNH.reshape(q, K, M, J)  # Σ_l P_l N_lκ H_l
    # G ∂/∂G multiplies P by N. At constant b, it takes g to -g, d to -d and |g|² to
    # -2 |g|², because these are in proportion to 1/G, 1/G and 1/G².
    G_d_G = N.T @ terms + PN * (2.0 * sums.squares - sums.d)
    G_d_G -= 2.0 * np.einsum("qkdj,qkdj->qkj", sums.g, PNH)
    half_d_g = PNH - PN[:, :, None] * sums.g
    return _Integrand(terms.sum(axis=1), G_d_G, half_d_g, d_d=PN)


def _mend_cancelled(
    result: Moments,
    scale: Array,
    squares: Array,
    queries: Queries,
    rule: Nodes,
    kinds: _Kinds,
    e: Array,
    together: Together | None,
) -> None:
    """Replace gradients in ``result`` that lost digits by sums over pairs.

    A gradient is replaced only if the tests of `icl_theory.tokens.separated` say that
    the sum over pairs is better. The array ``scale``, (q,), holds the sum of the sizes
    of each gradient's terms. The array ``squares``, (q, U), holds E Σ a_i² over the
    tokens i of each node, with their attentions a. With complex scores, the imaginary
    parts of the result are derivatives along a direction; the tests need the real parts
    only.
    """
    loss = result.loss.real
    # A gradient is compared with its terms and also with the loss, because a term may
    # itself be an integral in which large numbers cancel. The weight ½ of the loss is
    # not critical, because both ways to compute the gradient are right.
    size = np.abs(result.gradient.real).sum(axis=1)
    is_cancelled = size < CANCELLED * (scale + 0.5 * loss)
    if not is_cancelled.any():
        return
    lengths = _counts_of_lengths(kinds, together)
    U = e.shape[1]
    # A sum over pairs has U² terms for each length, and would take too long if it had
    # more terms than one length with `MOST_PAIRED` nodes.
    if U**2 * len(lengths.counts) > MOST_PAIRED**2:
        return
    # Pairs help only if nearly all attention of a prompt is on tokens with one error,
    # so that the errors hardly vary under the attention. This test is quick, and
    # excludes most queries late in a run.
    attention = result.attention.real
    variance_of_errors = variance(loss, attention, queries.D, queries.spread, squares)
    hardly_varies = variance_of_errors < SMALL_VARIANCE * loss
    for q in np.flatnonzero(is_cancelled & hardly_varies):
        single = queries.of(np.array([q]))
        form = _form(e[q])
        D = queries.D[q]
        if is_separated(single.log_w[0], attention[q], D, kinds.counts, form):
            result.gradient[q] = _sum_over_pairs(single, rule, kinds, form, lengths)


class _CountsOfLengths(NamedTuple):
    """The lengths of a prompt. Each field has an entry for each length."""

    probs: Array  # probabilities of the lengths
    counts: list[Sequence[TokenCount]]  # the numbers of tokens of all kinds


def _sum_over_pairs(
    single: Queries,
    rule: Nodes,
    kinds: _Kinds,
    form: Callable[[slice, Array, Array], object],
    lengths: _CountsOfLengths,
) -> Array:
    """Return the gradient of a single query as a mean over lengths, (U,).

    The gradient of each length is a sum over pairs of nodes. For ``form`` see `_form`.
    """
    tokens = _tokens(single, kinds, rule)
    b = tokens.t * kinds.at_nodes(tokens.G)  # t is b/G
    generating_functions = [
        GeneratingFunction(tokens.G[:, k], tokens.log[:, k])
        for k in range(len(kinds.sizes))
    ]
    gradient = np.zeros(b.shape[1], dtype=b.dtype)
    for p, counts in zip(lengths.probs, lengths.counts, strict=True):
        # `tilted` returns the factors of the integrand that belong to tokens: y and b,
        # and the derivatives of P with respect to the G of each kind. It overwrites
        # its argument b.
        factors = tilted(tokens.y, b.copy(), counts, generating_functions, rule.weights)
        gradient += p * gradient_by_pairs(factors, single.D[0], counts, form)
    return gradient


def _counts_of_lengths(kinds: _Kinds, together: Together | None) -> _CountsOfLengths:
    """Return the lengths of a prompt, with the numbers of tokens of all kinds.

    Kinds that do not grow together count as prompts of one length.
    """
    if together is None:
        return _CountsOfLengths(np.ones(1), [kinds.counts])
    counts: list[Sequence[TokenCount]] = [
        _fixed_counts(kinds, numbers) for numbers in together.numbers
    ]
    return _CountsOfLengths(together.probs, counts)


def _fixed_counts(kinds: _Kinds, numbers: Array) -> list[TokenCount]:
    """Return the kinds with fixed numbers of tokens, (K,)."""
    return [
        TokenCount(number, count.rows)
        for number, count in zip(numbers, kinds.counts, strict=True)
    ]


def _form(errors: Array) -> Callable[[slice, Array, Array], object]:
    """Return a function ``form(rows, z, out)`` that writes C z to ``out``.

    Here C = e eᵀ, with the ``errors`` e of one query, (U, M). The array z has only the
    ``rows`` of some nodes, and is zero at all others. The array ``out`` is (1, U, J).
    """

    def form(rows: slice, z: Array, out: Array) -> None:
        # C z = e (eᵀ z) takes fewer products than a product with C itself.
        np.matmul(errors, errors[rows].T @ z, out=out)

    return form
