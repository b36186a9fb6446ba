r"""Gradients of a loss between separated scores, as sums over pairs of nodes.

If one node has nearly all the attention, the terms of a gradient cancel. Because
attention sums to one, the derivative by the score of node u is also

.. math:: \partial_{\theta_u} \tfrac12 E|\bar e|^2
    = E \sum_v a_u a_v (e_u - e_v) \cdot \bar e, \qquad \bar e = \sum_v a_v e_v ,

where every pair is as small as the smaller of both shares. `gradient_by_pairs`
evaluates this sum, and `variance` and `is_separated` decide whether it is needed. See
docs/theory.md, "Tokens".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.tokens.generating import LOG_ZERO, SMALLEST, TokenCount
from icl_theory.tokens.quadrature import is_kept
from icl_theory.tokens.tilted import (
    ErrorForm,
    Tilted,
    integral,
    write_field,
    write_fields,
)

MOST_COMPARED = 64  # nodes with the largest attention that `is_separated` looks at


def variance(
    tokens: Tilted,
    loss: Array,
    attention: Array,
    D: Array,
    spread: Array | None,
    by: Array,
    counts: Sequence[TokenCount],
) -> Array:
    r"""Return :math:`E[\sum_u a_u |e_u|^2 - |\bar e|^2]` of each query, (q,).

    It is small if the tokens that share the attention of a prompt have the same error.
    """
    total = np.einsum("qc,qc->q", attention, D) - 2.0 * loss
    if spread is None:
        return np.asarray(total)
    # Without the spread around the nodes: its share in the first term is taken away,
    # and E Σ a_i² of it, which the loss contains, is added.
    for (first, _, _), count in zip(tokens.orders, counts, strict=True):
        rows = count.rows
        squares = integral(first.real, by[:, rows])
        total -= np.einsum("qc,qc->q", attention[:, rows] - squares, spread[:, rows])
    return np.asarray(total)


def is_separated(
    log_w: Array,
    attention: Array,
    D: Array,
    counts: Sequence[TokenCount],
    form: ErrorForm,
) -> bool:
    r"""Whether hardly two nodes with different errors share a prompt's attention.

    Attention on both of two nodes is at most the smaller mean of each, and at most N
    times the ratio of their weights. If it is not small, the gradient is small because
    prompts cancel, as near a minimum, and a sum over pairs would not be better. The
    arrays are those of one query, (C,).
    """
    largest = np.argsort(-attention, kind="stable")[:MOST_COMPARED]
    largest = largest[attention[largest] > 0.0]
    if len(largest) < 2:
        return False
    # nodes by falling weight, so that in a pair u < v node u is the heavier one
    nodes = largest[np.argsort(-log_w[largest], kind="stable")]
    C = _errors_between(nodes, len(attention), form)
    square = np.maximum(np.diagonal(C), 0.0)
    distance = np.sqrt(np.maximum(square[:, None] + square - 2.0 * C, 0.0))
    length = np.sqrt(square)
    spread = np.maximum(D[nodes] - square, 0.0)

    N = sum(count.number for count in counts)
    gap = np.minimum(np.abs(log_w[nodes, None] - log_w[nodes]), -LOG_ZERO)
    ratio = np.minimum(N * np.exp(-gap), 1.0)
    smaller = np.minimum(attention[nodes, None], attention[nodes])
    share = np.minimum(smaller, ratio)
    change = distance * (length[:, None] + ratio * length)
    change = change + spread[:, None] + ratio * spread
    for count in counts:
        if count.number == 1:  # one token is not at two nodes
            inside = np.isin(nodes, np.arange(len(attention))[count.rows])
            share[np.ix_(inside, inside)] = 0.0
    shared = np.sum(np.triu(share * change, 1))
    return bool(shared < 0.01 * (attention @ D))


def _errors_between(nodes: NDArray[np.intp], size: int, form: ErrorForm) -> Array:
    """Return the matrix C_uv between some of all ``size`` nodes."""
    unit = np.zeros((1, size, len(nodes)))
    unit[0, nodes, np.arange(len(nodes))] = 1.0
    product = np.empty_like(unit)
    form(slice(0, size), unit, product)
    return product[0, nodes]


class _Pairs(NamedTuple):
    """Integrals over pairs of different tokens at nodes u and v, (C, C) each."""

    field: Array  # ∫ P''' b_u b_v (C b)_u: a third token
    twice: Array  # ∫ P'' b_u b_v y_v: the token at v is the third


def gradient_by_pairs(
    tokens: Tilted, D: Array, counts: Sequence[TokenCount], form: ErrorForm
) -> Array:
    r"""Return the gradient of one query as a sum over pairs of nodes, (C,).

    A pair of different tokens at u and v contributes, with :math:`z = C b`,

    .. math:: \int P'''\, b_u b_v (z_u - z_v)
        + P''\, b_u b_v \bigl[y_u (D_u - C_{uv}) - y_v (D_v - C_{uv})\bigr]
        \,\frac{ds}{s}

    to the entry u, and the opposite to v. At each s, errors count from the error of the
    node with the largest b, so that no large terms cancel.
    """
    # What e^(-y) leaves at its end may be above the gradient.
    tokens = tokens._replace(b=tokens.b * is_kept(tokens.y.real))
    if len(counts) == 1:
        pairs = _pairs_of_one_kind(tokens, counts, form)
    else:
        pairs = _pairs_of_kinds(tokens, counts, form)

    C = _errors_between(np.arange(len(D)), len(D), form)
    square = np.diagonal(C)
    spread = D - square
    spread = np.where(spread > 1e-13 * D, spread, 0.0)  # the rest is rounding
    twice = pairs.twice * ((square - C) + spread)  # D_v - C_uv
    terms = 0.5 * ((pairs.field - pairs.field.T) + (twice.T - twice))
    gradient = terms.sum(axis=1)
    # The sum over u is zero but for rounding, as in `balance`.
    scale = np.abs(terms).sum(axis=1) + SMALLEST
    return np.asarray(gradient - scale * (gradient.sum() / scale.sum()))


def _pairs_of_one_kind(
    tokens: Tilted, counts: Sequence[TokenCount], form: ErrorForm
) -> _Pairs:
    y = tokens.y[0]
    b = tokens.b[0]
    first, second, third = (order[0] for order in tokens.orders[0])
    reference = np.argmax((first * b).real, axis=0)[None]
    fields = np.empty_like(tokens.b)
    write_fields(tokens, counts, form, fields, None, reference)
    return _Pairs((b * (third * fields[0])) @ b.T, (second * b) @ (b * y).T)


def _pairs_of_kinds(
    tokens: Tilted, counts: Sequence[TokenCount], form: ErrorForm
) -> _Pairs:
    y = tokens.y[0]
    b = tokens.b[0]
    # orders of a node's own kind, (C, J)
    first, second, third = np.empty((3, *b.shape), dtype=b.dtype)
    for count, orders in zip(counts, tokens.orders, strict=True):
        first[count.rows] = orders.first[0]
        second[count.rows] = orders.second[0]
        third[count.rows] = orders.third[0]
    reference = np.argmax((first * b).real, axis=0)[None]
    own_field = np.empty_like(tokens.b)
    other_field = np.zeros_like(tokens.b)
    write_fields(tokens, counts, form, own_field, other_field, reference)

    by_field, by_twice = np.empty((2, len(b), len(b)), dtype=b.dtype)
    all_fields = b * (first * other_field[0] + second * own_field[0])
    field_of_kind = np.empty_like(tokens.b)
    for k, count in enumerate(counts):
        rows = count.rows
        number, number_of_pairs = (moment[0] for moment in tokens.numbers[k])
        write_field(tokens.b, rows, form, field_of_kind, reference)
        # The token at v is of kind k. It is not in the field: of its kind only
        # E[n(n-1)]/E[n] tokens are left.
        further = np.divide(
            number_of_pairs, number, out=np.zeros_like(number), where=number != 0.0
        )
        fields = all_fields - (number - further) * (first * b * field_of_kind[0])
        drawn = number * b[rows]
        by_field[:, rows] = fields @ drawn.T
        by_twice[:, rows] = (first * b) @ (drawn * y[rows]).T
        # if u is of the same kind, the orders of that kind rise
        within = third[rows] * own_field[0, rows] + second[rows] * other_field[0, rows]
        by_field[rows, rows] = (b[rows] * within) @ b[rows].T
        by_twice[rows, rows] = (second[rows] * b[rows]) @ (b[rows] * y[rows]).T
    return _Pairs(by_field, by_twice)
