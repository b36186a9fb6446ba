r"""Gradients of a loss at scores far apart, as sums over pairs of nodes.

If one token has nearly all the attention, the terms of a gradient cancel. Let
:math:`a_u` be the attention on node u and :math:`e_u` the error there. Because
attention sums to one, the derivative with respect to the score of node u is also

.. math:: \partial_{\theta_u} \tfrac12 E|\bar e|^2
    = E \sum_v a_u a_v (e_u - e_v) \cdot \bar e, \qquad \bar e = \sum_v a_v e_v ,

in which the term of a pair is small if one of its two attentions is small.
`gradient_by_pairs` evaluates this sum, and `variance` and `is_separated` decide whether
it is needed. The letters are defined in `icl_theory.tokens.square`. See docs/theory.md,
"Tokens".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.tokens.generating import SMALLEST, TokenCount
from icl_theory.tokens.lengths import LOG_ZERO
from icl_theory.tokens.quadrature import is_kept
from icl_theory.tokens.tilted import (
    ErrorForm,
    Tilted,
    write_field,
    write_fields,
)

# In the shapes below, U is the number of nodes, q the number of queries and J the
# number of values of s.

# Largest number of nodes for which a gradient is summed over all pairs of nodes. The
# matrices of the pairs take 32 MB each at this limit.
MOST_PAIRED = 2000
# The sum over pairs is considered only if the variance of the errors is below this
# share of the loss. A larger limit would leave more queries to the slower test of
# `is_separated`. The value is a rough choice.
SMALL_VARIANCE = 0.06
# `is_separated` compares the nodes with the largest attention with each other, at most
# this many nodes. More nodes would make the test slower, and nodes with little
# attention contribute little.
MOST_COMPARED = 64
# Scores are separated if pairs of nodes contribute less than this share of
# Σ_u D_u E a_u, the mean square of the errors under the attention. The value is a rough
# choice: either way of computing the gradient is right, and the limit only selects the
# one that is likely to lose fewer digits.
SMALL_SHARE = 0.01
# A spread D_u - C_uu below this share of D_u is the rounding of the difference.
ROUNDING_OF_SPREAD = 1e-13


def variance(
    loss: Array,
    attention: Array,
    D: Array,
    spread: Array | None,
    squares: Array,
) -> Array:
    r"""Return :math:`E[\sum_u a_u |e_u|^2 - |\bar e|^2]` of each query, (q,).

    This variance of the errors is small if the tokens that share the attention of a
    prompt have the same error. All arrays but the ``loss``, (q,), are (q, U), with an
    entry for each node u: the mean ``attention`` E a_u, the mean square ``D`` of the
    error of a token, the ``spread``, which is the part of it by which tokens of a node
    differ, and ``squares``, E Σ a_i² over the tokens i of the node.
    """
    total = np.einsum("qu,qu->q", attention, D) - 2.0 * loss
    if spread is not None:
        # e_u is the error of the node, without the spread of its tokens. So the spread
        # is taken out of both terms: E Σ_u a_u D_u contains the spread times E Σ_i a_i,
        # and twice the loss contains the spread times E Σ_i a_i², with sums over the
        # tokens i.
        total -= np.einsum("qu,qu->q", attention - squares, spread)
    return np.asarray(total)


def is_separated(
    log_w: Array,
    attention: Array,
    D: Array,
    counts: Sequence[TokenCount],
    form: ErrorForm,
) -> bool:
    r"""Whether two nodes with different errors hardly ever share a prompt's attention.

    Two nodes share the attention of a prompt if neither has nearly all or nearly none
    of it; their shared attention is the mean product a_u a_v of their attentions. The
    result is true if a bound on the sum over pairs of a_u a_v |(e_u - e_v)·ē|, with the
    mean error ē, is below SMALL_SHARE of the sum of a_u D_u. Then a gradient as a sum
    over pairs of nodes has no large terms.

    That the gradient itself is small would not be enough. The gradients of different
    prompts may cancel each other, as they do near a minimum, and a sum over pairs then
    loses as many digits as the usual formula. All arrays are for one query, (U,).
    """
    most_attended = np.argsort(-attention, kind="stable")[:MOST_COMPARED]
    most_attended = most_attended[attention[most_attended] > 0.0]
    # A single node makes no pair.
    if len(most_attended) < 2:
        return False
    # Nodes are sorted by falling weight. In a pair u < v, node u is the heavier one.
    nodes = most_attended[np.argsort(-log_w[most_attended], kind="stable")]
    N = sum(count.number for count in counts)
    # Larger gaps are cut, because exp() is slow if its result is subnormal.
    gap = np.minimum(np.abs(log_w[nodes, None] - log_w[nodes]), -LOG_ZERO)
    # N w_v/w_u for each pair, at most 1.
    ratio = np.minimum(N * np.exp(-gap), 1.0)
    shared_attention = _shared_attention(nodes, attention, ratio, counts)
    C = _second_moments(nodes, len(attention), form)
    difference_bound = _difference_bounds(C, D[nodes], ratio)
    # The upper triangle has each pair once.
    contribution = np.sum(np.triu(shared_attention * difference_bound, 1))
    return bool(contribution < SMALL_SHARE * (attention @ D))


def _shared_attention(
    nodes: NDArray[np.intp],
    attention: Array,
    ratio: Array,
    counts: Sequence[TokenCount],
) -> Array:
    """Bound the mean attention that the nodes of each pair share, (nodes, nodes).

    The shared attention is at most the smaller of the two mean attentions, and at most
    the ``ratio`` N w_v/w_u, with the smaller weight w_v.
    """
    smaller = np.minimum(attention[nodes, None], attention[nodes])
    shared_attention = np.minimum(smaller, ratio)
    for count in counts:
        if count.number == 1:
            # A single token is at one node only.
            is_of_kind = np.isin(nodes, np.arange(len(attention))[count.rows])
            shared_attention[np.ix_(is_of_kind, is_of_kind)] = 0.0
    return shared_attention


def _difference_bounds(C: Array, D: Array, ratio: Array) -> Array:
    """Bound (e_u - e_v)·ē for each pair of nodes u and v.

    The size of the mean error ē is taken to be at most ‖e_u‖ + ``ratio`` ‖e_v‖, if u
    has the larger weight, because the attention is at most 1 on u and at most ``ratio``
    on v (see `_shared_attention`). The spread of the tokens around e_u and e_v,
    D_u - ‖e_u‖² and D_v - ‖e_v‖², enters with the same factors. The arrays are for the
    compared nodes only; the result is (nodes, nodes).
    """
    square = np.maximum(np.diagonal(C), 0.0)  # ‖e_u‖² = C_uu
    # ‖e_u - e_v‖² = ‖e_u‖² + ‖e_v‖² - 2 C_uv
    distance = np.sqrt(np.maximum(square[:, None] + square - 2.0 * C, 0.0))
    norm = np.sqrt(square)
    spread = np.maximum(D - square, 0.0)
    change = distance * (norm[:, None] + ratio * norm)
    return np.asarray(change + spread[:, None] + ratio * spread)


def _second_moments(nodes: NDArray[np.intp], size: int, form: ErrorForm) -> Array:
    """Return the moments C_uv = E e_u·e_v of errors at some ``nodes`` out of ``size``.

    The result is (nodes, nodes).
    """
    # The product of C with unit vectors gives its columns. `form(rows, z, out)` writes
    # C z to ``out``; here z has the rows of all nodes. The first axis of both counts
    # queries, and has the length 1.
    unit = np.zeros((1, size, len(nodes)))
    unit[0, nodes, np.arange(len(nodes))] = 1.0
    product = np.empty_like(unit)
    form(slice(0, size), unit, product)
    return product[0, nodes]


class _Pairs(NamedTuple):
    """Integrals over pairs of different tokens at nodes u and v, (U, U) each.

    The rows are for u, and the columns for v. The factor ē is a sum over a *third*
    token, which is another token or one of the pair.
    """

    field: Array  # ∫ P''' b_u b_v (C b)_u, if the third token is another one
    twice: Array  # ∫ P'' b_u b_v y_v, if the third token is the one at v


def gradient_by_pairs(
    tokens: Tilted, D: Array, counts: Sequence[TokenCount], form: ErrorForm
) -> Array:
    r"""Return the gradient of one query as a sum over pairs of nodes, (U,).

    A pair of different tokens at u and v contributes, with :math:`z = C b`,

    .. math:: \tfrac12 \int \Bigl\{P'''\, b_u b_v (z_u - z_v)
        + P''\, b_u b_v \bigl[y_u (D_u - C_{uv}) - y_v (D_v - C_{uv})\bigr]\Bigr\}
        \,\frac{ds}{s}

    to the entry u of the gradient, and minus this to the entry v. The factor ½ comes
    from three attentions, as :math:`S^{-3} = \tfrac12 \int s^3 e^{-sS} ds/s`. At each
    s, the entry of z at the node with the most attention, the largest :math:`P' b`, is
    subtracted from all entries of z, so that no large terms cancel.
    """
    # y was cut at 300, so a larger y has the factor e^(-300) in place of e^(-y). This
    # factor might exceed the gradient, so it is set to zero.
    tokens = tokens._replace(b=tokens.b * is_kept(tokens.y.real))
    if len(counts) == 1:
        pairs = _pairs_of_one_kind(tokens, counts, form)
    else:
        pairs = _pairs_of_kinds(tokens, counts, form)

    C = _second_moments(np.arange(len(D)), len(D), form)
    square = np.diagonal(C)  # C_uu
    spread = D - square
    spread = np.where(spread > ROUNDING_OF_SPREAD * D, spread, 0.0)
    twice = pairs.twice * ((square - C) + spread)  # the factor is D_v - C_uv
    terms = 0.5 * ((pairs.field - pairs.field.T) + (twice.T - twice))
    gradient = terms.sum(axis=1)
    # The exact sum over u is zero. As in `balance`, the sum that rounding leaves is
    # subtracted.
    scale = np.abs(terms).sum(axis=1) + SMALLEST
    return np.asarray(gradient - scale * (gradient.sum() / scale.sum()))


def _pairs_of_one_kind(
    tokens: Tilted, counts: Sequence[TokenCount], form: ErrorForm
) -> _Pairs:
    """Return the integrals over pairs if all tokens are of one kind."""
    y = tokens.y[0]
    b = tokens.b[0]
    # The derivatives of P with respect to the G of the only kind; order[0] is for the
    # only query.
    first, second, third = (order[0] for order in tokens.orders[0])
    # The node with the largest P' b at each s has the most attention there, (1, J). The
    # entry of C b at this node is subtracted from all entries.
    reference = np.argmax((first * b).real, axis=0)[None]
    fields = np.empty_like(tokens.b)
    # Write C b to ``fields``. There are no other kinds.
    write_fields(tokens, counts, form, fields, None, reference)
    return _Pairs(field=(b * (third * fields[0])) @ b.T, twice=(second * b) @ (b * y).T)


def _pairs_of_kinds(
    tokens: Tilted, counts: Sequence[TokenCount], form: ErrorForm
) -> _Pairs:
    """Return the integrals over pairs of tokens of the same kind or of two kinds."""
    y = tokens.y[0]
    b = tokens.b[0]
    # The derivatives of P with respect to the G of a node's own kind, (U, J). In all
    # arrays with an axis of queries, the index 0 selects the only query.
    first, second, third = np.empty((3, *b.shape), dtype=b.dtype)
    for count, orders in zip(counts, tokens.orders, strict=True):
        first[count.rows] = orders.first[0]
        second[count.rows] = orders.second[0]
        third[count.rows] = orders.third[0]
    # The node with the most attention at each s, (1, J). The entry of C b at this node
    # is subtracted from all entries.
    reference = np.argmax((first * b).real, axis=0)[None]
    own_field = np.empty_like(tokens.b)
    other_field = np.zeros_like(tokens.b)
    # At each node: the field C b of its own kind, and the sum of E[n] C b over all
    # other kinds.
    write_fields(tokens, counts, form, own_field, other_field, reference)

    pairs = _Pairs(*np.empty((2, len(b), len(b)), dtype=b.dtype))
    # The field of all other tokens at a token at u, from other kinds and from u's own
    # kind, with the factor b_u and the derivatives of P, (U, J).
    all_fields = b * (first * other_field[0] + second * own_field[0])
    field_of_kind = np.empty_like(tokens.b)
    for k, count in enumerate(counts):
        rows = count.rows
        # E[n] and E[n (n - 1)] of this kind at each s, for the only query.
        number, number_of_pairs = (moment[0] for moment in tokens.numbers[k])
        write_field(tokens.b, rows, form, field_of_kind, reference)
        # The token at v is of kind k, and does not act on itself. So for its kind the
        # field comes from E[n(n-1)]/E[n] tokens instead of E[n].
        further_tokens = np.divide(
            number_of_pairs, number, out=np.zeros_like(number), where=number != 0.0
        )
        excess = number - further_tokens
        fields = all_fields - excess * (first * b * field_of_kind[0])
        tokens_at_v = number * b[rows]
        pairs.field[:, rows] = fields @ tokens_at_v.T
        pairs.twice[:, rows] = (first * b) @ (tokens_at_v * y[rows]).T
        # If u is of the same kind k, the orders of the derivatives with respect to its
        # G rise by one.
        within = third[rows] * own_field[0, rows] + second[rows] * other_field[0, rows]
        pairs.field[rows, rows] = (b[rows] * within) @ b[rows].T
        pairs.twice[rows, rows] = (second[rows] * b[rows]) @ (b[rows] * y[rows]).T
    return pairs
