r"""Factors of the integrand for each token, and the sums over tokens.

The letters are defined in `icl_theory.tokens.square`: the nodes u of a kind of tokens
have the probabilities π_u and the weights w_u, and G is the mean of :math:`e^{-y_u}`
over them, with :math:`y_u = s w_u`. If there is one kind of tokens, a term of the
integrand has the k-th derivative of :math:`P = E\,G^n` with respect to G, and k factors
:math:`b_u = \pi_u y_u e^{-y_u}`. If there are several kinds, each factor b is divided
by the G of its kind, and the derivative of P becomes P times a moment of the numbers n
of tokens, under their laws tilted (weighted) by :math:`G^n`:

.. math:: \partial_{G_\kappa} \partial_{G_\lambda} P\; b_\kappa^\top C b_\lambda
    = P\, E[n_\kappa]\, E[n_\lambda]\; t_\kappa^\top C t_\lambda, \qquad
    t_\kappa = b_\kappa/G_\kappa, \qquad \kappa \ne \lambda .

On the right, each kind has factors of its own, so the sum over the kinds λ is taken
first. The work then grows with the number of kinds, and not with the number of pairs.
See docs/theory.md, "Tokens".

In the shapes below, U is the number of nodes of all kinds, R the number of nodes of one
kind, q the number of queries and J the number of values of s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.tokens.generating import (
    HIGHEST,
    SMALLEST,
    GeneratingFunction,
    TokenCount,
)
from icl_theory.tokens.lengths import LOG_ZERO, falling_factorial

# form(rows, z, out) writes the product C z to out, (q, U, J). The argument z has only
# the rows of one kind, (q, R, J), and stands for an array with zeros in all other rows.
ErrorForm = Callable[[slice, Array, Array], object]


class Orders(NamedTuple):
    """Derivatives of P with respect to the G of one kind, (q, J) each.

    They include the weights of the rule. If there are several kinds, the derivative of
    order k also includes the factor G^k: the three are P E[n], P E[n(n-1)] and
    P E[n(n-1)(n-2)].
    """

    first: Array
    second: Array
    third: Array

    def of(self, queries: slice) -> Orders:
        """Return the derivatives for some of the queries."""
        return Orders(self.first[queries], self.second[queries], self.third[queries])


class Number(NamedTuple):
    """Moments of the number n of tokens of a kind, (q, J) each.

    The law of n is weighted by G^n, as in the integrand.
    """

    mean: Array  # E[n]
    pairs: Array  # E[n (n - 1)]

    def of(self, queries: slice) -> Number:
        """Return the moments for some of the queries."""
        return Number(self.mean[queries], self.pairs[queries])


class Tilted(NamedTuple):
    """Factors of the integrand that belong to tokens, at J values of s for q queries.

    If there are several kinds, b is divided by the G of its kind.
    """

    y: Array  # s w, (q, U, J)
    b: Array  # π y e^(-y), (q, U, J)
    orders: list[Orders]  # one for each kind
    numbers: list[Number]  # one for each kind; empty if there is only one kind

    def of(self, queries: slice) -> Tilted:
        """Return the factors for some of the queries."""
        orders = [orders.of(queries) for orders in self.orders]
        numbers = [number.of(queries) for number in self.numbers]
        return Tilted(self.y[queries], self.b[queries], orders, numbers)


def tilted(
    y: Array,
    b: Array,
    counts: Sequence[TokenCount],
    generating_functions: Sequence[GeneratingFunction],
    rule_weights: Array,
) -> Tilted:
    """Return the factors of the integrand that belong to tokens.

    The arrays ``y`` and ``b`` are (q, U, J), and ``generating_functions`` has G and
    ln G of each kind. The ``rule_weights``, (J,), are the weights of the quadrature
    rule over s. If there are several kinds, the array ``b`` is overwritten: it is
    divided by the G of each kind.
    """
    if len(counts) == 1:
        G, log_G = generating_functions[0]
        # The first entry, E G^n itself, is not needed.
        _, *derivatives = counts[0].derivatives(G, log_G, HIGHEST, rule_weights)
        return Tilted(y, b, [Orders(*derivatives)], [])
    log_P = np.zeros_like(generating_functions[0].log)
    moments: list[list[Array]] = []
    for count, (G, log_G) in zip(counts, generating_functions, strict=True):
        b[:, count.rows] *= inverse(G)[:, None]
        log_power, moments_of_kind = moments_of_number(count, G, log_G)
        log_P = log_P + log_power
        moments.append(moments_of_kind)

    # exp() is slow if its result is subnormal; such P are set to zero below.
    P: Array = np.exp(np.maximum(log_P.real, LOG_ZERO))
    # y is complex if a derivative is taken by a complex step.
    if np.iscomplexobj(y):
        P = P * np.exp(1j * log_P.imag)
    # P is treated as zero if it is not a normal number. It is also zero if the G of a
    # kind that is always present is zero. ``log_P`` does not show this, because it
    # contains ln `SMALLEST` in place of ln 0.
    is_normal = log_P.real > LOG_ZERO
    for count, (mean, _) in zip(counts, generating_functions, strict=True):
        if count.least > 0:
            is_normal &= mean.real >= SMALLEST
    P *= is_normal * rule_weights
    orders = []
    numbers = []
    for first, second, third in moments:
        orders.append(Orders(P * first, P * second, P * third))
        numbers.append(Number(first, second))
    return Tilted(y, b, orders, numbers)


def moments_of_number(
    count: TokenCount, mean: Array, log: Array
) -> tuple[Array, list[Array]]:
    """Return ln E G^n, and the moments E[n], E[n(n-1)] and E[n(n-1)(n-2)].

    In the moments, the law of n is weighted by G^n, with G = ``mean`` and its logarithm
    ``log``, (q, J).
    """
    if count.law is None:
        N = float(count.number)
        moments = [
            np.full(mean.shape, falling_factorial(N, order))
            for order in range(1, HIGHEST + 1)
        ]
        return N * log, moments
    # The k-th moment, E[n (n - 1) ... (n - k + 1) G^n]/E[G^n], is the k-th derivative
    # of E G^n times the ``scale`` G^k/E[G^n].
    mean_power, *derivatives = count.derivatives(mean, log, HIGHEST)
    scale = inverse(mean_power)
    moments = []
    for derivative in derivatives:
        scale = scale * mean
        moments.append(scale * derivative)
    is_nonzero = mean_power.real >= SMALLEST
    return np.log(np.where(is_nonzero, mean_power, SMALLEST)), moments


def inverse(array: Array) -> Array:
    """Return the inverses of numbers, with 0 for numbers below ``SMALLEST``."""
    is_nonzero = array.real >= SMALLEST
    return np.divide(1.0, array, out=np.zeros_like(array), where=is_nonzero)


def write_fields(
    tokens: Tilted,
    counts: Sequence[TokenCount],
    form: ErrorForm,
    own_kind: Array,
    other_kinds: Array | None,
    reference: NDArray[np.intp] | None = None,
) -> None:
    r"""Write the fields :math:`C b` at all nodes, (q, U, J).

    The entries of C are the mean products of the errors of two tokens, at two nodes.

    At a node of kind κ, ``own_kind`` gets the field :math:`C b_\kappa` of the tokens of
    this kind. The field of the tokens of all other kinds,
    :math:`\sum_{\lambda \ne \kappa} E[n_\lambda] C b_\lambda`, is added to the array
    ``other_kinds``, which has to hold zeros on entry. If there is only one kind,
    ``other_kinds`` is None.

    A ``reference``, (q, J), has a node for each query and value of s. If it is given,
    the field at this node is subtracted from the field at every node, which keeps the
    digits of small differences.
    """
    if other_kinds is None:
        write_field(tokens.b, counts[0].rows, form, own_kind, reference)
        return
    field = np.empty_like(own_kind)
    for k, count in enumerate(counts):
        rows = count.rows
        write_field(tokens.b, rows, form, field, reference)
        own_kind[:, rows] = field[:, rows]
        field *= tokens.numbers[k].mean[:, None]
        # The field is added at the nodes of all other kinds.
        other_kinds[:, : rows.start] += field[:, : rows.start]
        other_kinds[:, rows.stop :] += field[:, rows.stop :]


def write_field(
    b: Array,
    rows: slice,
    form: ErrorForm,
    out: Array,
    reference: NDArray[np.intp] | None = None,
) -> None:
    """Write to ``out``, (q, U, J), the field C b of the tokens at the nodes ``rows``.

    The ``reference`` is described in `write_fields`.
    """
    # C is a real matrix. So the real and the imaginary parts of b are multiplied as
    # separate real columns.
    b_of_rows = np.ascontiguousarray(b[:, rows])
    form(rows, b_of_rows.view(np.float64), out.view(np.float64))
    if reference is not None:
        out -= np.take_along_axis(out, reference[:, None], axis=1)


def integral(weight: Array, array: Array) -> Array:
    """Return the sum of ``weight`` times ``array`` over the values of s, (q, R).

    The ``weight`` is (q, J), and the ``array`` is (q, R, J).
    """
    return np.asarray(np.matmul(array, weight[:, :, None])[:, :, 0])


class Balanced(NamedTuple):
    """A gradient whose rows sum to zero, and the size of its terms."""

    gradient: Array  # (q, U)
    scale: Array  # sum of the absolute values of all terms of a row, (q,)


def balance(*terms: Array) -> Balanced:
    """Return the sum of a gradient's terms, corrected so that each row sums to zero.

    A shift of all scores does not change a loss, so that the exact gradient sums to
    zero. The sum that rounding leaves would shift the scores step by step in the tail
    of a run. This sum is subtracted from the entries in proportion to the sizes of
    their terms.
    """
    gradient: Array = terms[0]
    # Positive even if all terms are zero, because its sum is a divisor below.
    size: Array = np.abs(terms[0]) + SMALLEST
    for term in terms[1:]:
        gradient = gradient + term
        size = size + np.abs(term)
    scale: Array = size.sum(axis=1)
    excess_per_size = gradient.sum(axis=1) / scale
    return Balanced(gradient - size * excess_per_size[:, None], scale)


def balanced(*terms: Array) -> Array:
    """Return the sum of ``terms``, corrected as in `balance`."""
    return balance(*terms).gradient
