r"""The exact mean of the product of two softmax averages over the same tokens.

Two heads average the errors e of the same tokens, with the weights :math:`w` and
:math:`w'`. Let :math:`y_u = s w_u` and :math:`z_u = t w'_u` at node u. The tokens are
of several kinds κ, and :math:`P = \prod_\kappa E\,G_\kappa^{n_\kappa}` for a number
:math:`n_\kappa` of tokens of kind κ. All other letters have the meaning of
`icl_theory.tokens.square`. Then the mean product is a double integral,

.. math:: E\Bigl[\frac{\sum w e}{\sum w} \cdot \frac{\sum w' e}{\sum w'}\Bigr] =
    \int_0^\infty\!\!\int_0^\infty \Bigl[\sum_{\kappa\lambda}
    \partial_{G_\kappa}\partial_{G_\lambda} P\; b_\kappa^\top C c_\lambda
    + \sum_\kappa \partial_{G_\kappa} P \sum_{u \in \kappa} b_u z_u D_u\Bigr]
    \,\frac{ds}{s}\frac{dt}{t},

.. math:: G_\kappa = \sum_{u \in \kappa} \pi_u e^{-y_u} e^{-z_u}, \qquad
    b_u = \pi_u y_u e^{-y_u} e^{-z_u}, \qquad c_u = \pi_u e^{-y_u} z_u e^{-z_u} .

In every sum over the nodes u, the summand is a function of s times a function of t. So
a sum, evaluated for all s and t, is a product of two matrices.

In the shapes below, U is the number of nodes, R the number of nodes of one kind, and S
and T are the numbers of values of s and of t in the rule for the integral (J for either
of them). A name ``d_a`` stands for the derivative of the integrand with respect to a,
or for a term of the gradient with this derivative as a factor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from icl_theory._validate import Array
from icl_theory.tokens.generating import (
    HIGHEST,
    GeneratingFunction,
    TokenCount,
    log_mean,
)
from icl_theory.tokens.quadrature import LOG_LARGEST_Y, capped, is_kept, trapezoid
from icl_theory.tokens.tilted import balanced

# Step of the rule in ln s and in ln t, with which the rule is exact to rounding.
STEP = 0.22


def product(
    first: Array,
    second: Array,
    probs: Array,
    errors: Array,
    D: Array,
    counts: Sequence[TokenCount],
    step: float = STEP,
) -> tuple[float, Array, Array]:
    """Return the mean product of two averages, and its gradients.

    Parameters
    ----------
    first, second : ndarray, (U,)
        Scores of the nodes in the first and in the second head.
    probs : ndarray, (U,)
        Probabilities π of the nodes. They sum to one over the nodes of each kind.
    errors : ndarray, (U, dimensions)
        Errors e of the nodes. Their inner products are the matrix C of the formula.
    D : ndarray, (U,)
        Mean squares of the errors, including the spread of a token around its node.
    counts : sequence of TokenCount
        The kinds of tokens.
    step : float
        Step of the rule in ln s and ln t. The default is exact to rounding.

    Returns
    -------
    value : float
        The mean product.
    gradient_first, gradient_second : ndarray, (U,)
        Its gradients with respect to the scores ``first`` and to the scores ``second``.
    """
    nodes = _Nodes(probs, errors, D)
    of_s = head_functions(first, counts, step)
    of_t = head_functions(second, counts, step)
    P, sums, pairs, x, z = _parts(nodes, of_s, of_t, counts)
    slope_of_x = x.slope(of_s.y)
    slope_of_z = z.slope(of_t.y)
    terms_first = []
    terms_second = []
    for k, count in enumerate(counts):
        fields = _fields(P, sums, pairs, k)
        # Only x depends on the first scores, and only z on the second ones.
        terms_first.append(_terms(count.rows, nodes, fields, slope_of_x, z))
        terms_second.append(_terms(count.rows, nodes, fields, x, slope_of_z))
    value = float(_integrand(P, sums, pairs).sum())
    return value, _gradient(terms_first), _gradient(terms_second)


def mean_product(
    first: HeadFunctions,
    second: HeadFunctions,
    probs: Array,
    errors: Array,
    D: Array,
    counts: Sequence[TokenCount],
) -> float:
    """Return the value of `product` alone, without its gradients.

    Each head is given by its `head_functions` instead of its scores. For a head that is
    paired with several others, these functions are computed only once.
    """
    parts = _parts(_Nodes(probs, errors, D), first, second, counts)
    return float(_integrand(parts.P, parts.sums, parts.pairs).sum())


def _parts(
    nodes: _Nodes,
    of_s: HeadFunctions,
    of_t: HeadFunctions,
    counts: Sequence[TokenCount],
) -> _Parts:
    """Return the parts of the integrand at all values of s and t."""
    probs = nodes.probs
    # Every sum over nodes has one factor π_u, which is put into the functions of s.
    x = _Factors(probs[:, None] * of_s.decay, probs[:, None] * of_s.y * of_s.decay)
    z = _Factors(of_t.decay, of_t.y * of_t.decay)
    sums = []
    for count in counts:
        G = _generating_function(count.rows, probs, of_s, of_t, x, z)
        sums.append(_sums(count.rows, nodes, G, x, z))
    # The weights of the rule for both integrals, (S, T).
    weights = np.multiply.outer(of_s.weights, of_t.weights)
    P = _ProductDerivatives(counts, [sums_k.G for sums_k in sums], weights)
    # pairs[k][m] is b·C c, with the b of kind k and the c of kind m.
    pairs = [[_paired(sums_k.b, sums_m.c) for sums_m in sums] for sums_k in sums]
    return _Parts(P, sums, pairs, x, z)


class _Parts(NamedTuple):
    """The parts of the integrand at all values of s and t.

    They are derivatives of P, sums over nodes, and the functions of s and of t in these
    sums.
    """

    P: _ProductDerivatives
    sums: list[_Sums]
    pairs: list[list[Array]]  # b_κ·C c_λ for the kinds κ and λ, (S, T) each
    x: _Factors  # the functions of s, with the factor π
    z: _Factors  # the functions of t


class _Nodes(NamedTuple):
    """The nodes of the tokens, which are the same for both heads."""

    probs: Array  # π, (U,)
    errors: Array  # e, (U, dimensions)
    D: Array  # E|e|², (U,)


class HeadFunctions(NamedTuple):
    """One head's functions of the tokens at the J values of s, or of t, in its rule.

    In the head of t, ``y`` stands for the z of the formulas.
    """

    y: Array  # s w, (U, J)
    decay: Array  # e^(-y), (U, J)
    decay_minus_1: Array  # e^(-y) - 1, without cancellation, (U, J)
    weights: Array  # weights of the values of s in the rule, (J,)


def head_functions(
    scores: Array, counts: Sequence[TokenCount], step: float = STEP
) -> HeadFunctions:
    """Return the functions of one head, at as many values of s as its scores need.

    `capped` shifts the largest score to 0, and cuts gaps between neighbouring scores at
    which the square of the attention underflows.
    """
    log_w = capped(scores[:, None])
    rule = trapezoid(log_w, counts, step)
    y = np.exp(np.minimum(log_w + rule.log_s, LOG_LARGEST_Y))
    # y is cut at a largest value, at which e^(-y) is set to 0 (`is_kept`). There
    # e^(-y) - 1 is -1 in float64 anyway.
    decay = np.exp(-y) * is_kept(y)
    return HeadFunctions(y, decay, np.expm1(-y), rule.weights)


class _Factors(NamedTuple):
    """Functions of s, or of t, (U, J).

    Each summand of G, b and c is a function of s times a function of t. In the
    functions of t, y stands for z.
    """

    zeroth: Array  # e^(-y)
    first: Array  # y e^(-y)

    def slope(self, y: Array) -> _Factors:
        """Return y ∂/∂y of both functions: the derivatives with respect to ln w."""
        return _Factors(-self.first, self.first * (1.0 - y))


class _Sums(NamedTuple):
    """Sums over the nodes u of one kind, for all values of s and t."""

    G: GeneratingFunction  # G and ln G, (S, T)
    b: Array  # Σ b_u e_u, (dimensions, S, T)
    c: Array  # Σ c_u e_u, (dimensions, S, T)
    twice: Array  # Σ b_u z_u D_u, for one token that is in both averages, (S, T)


def _sums(
    rows: slice, nodes: _Nodes, G: GeneratingFunction, x: _Factors, z: _Factors
) -> _Sums:
    """Return the sums over the nodes ``rows`` of one kind, which has the given G.

    The functions ``x`` of s include the probabilities π.
    """
    e = nodes.errors[rows].T[:, :, None]  # (dimensions, R, 1)
    b = (e * x.first[rows]).swapaxes(1, 2) @ z.zeroth[rows]
    c = (e * x.zeroth[rows]).swapaxes(1, 2) @ z.first[rows]
    twice = (nodes.D[rows, None] * x.first[rows]).T @ z.first[rows]
    return _Sums(G, b, c, twice)


def _generating_function(
    rows: slice,
    probs: Array,
    of_s: HeadFunctions,
    of_t: HeadFunctions,
    x: _Factors,
    z: _Factors,
) -> GeneratingFunction:
    """Return G = E e^(-y-z) of one kind, and its log, for all s and t, (S, T)."""
    p = probs[rows, None]
    # With α = e^(-y) - 1 and β = e^(-z) - 1, e^(-y-z) - 1 is α + β + αβ, in which
    # nothing cancels if y and z are small.
    p_alpha = p * of_s.decay_minus_1[rows]
    beta = of_t.decay_minus_1[rows]
    mean_minus_1 = (
        p_alpha.sum(axis=0)[:, None] + (p * beta).sum(axis=0) + p_alpha.T @ beta
    )
    mean = x.zeroth[rows].T @ z.zeroth[rows]
    return GeneratingFunction(mean, log_mean(mean, mean_minus_1))


def _paired(b: Array, c: Array) -> Array:
    """Return b_κ·C c_λ, (S, T), as the inner product of Σ b_u e_u and Σ c_u e_u."""
    return np.einsum("dst,dst->st", b, c)


class _ProductDerivatives:
    """Derivatives of P = Π E G^n, times the ``weights`` of the rule, (S, T).

    The arguments of a call are indices of kinds: ``P(k, m)`` is the second derivative
    of P, with respect to the G of kind k and to the G of kind m. The object keeps the
    derivatives that it has returned, because several terms need the same ones.
    """

    def __init__(
        self,
        counts: Sequence[TokenCount],
        generating_functions: Sequence[GeneratingFunction],
        weights: Array,
    ) -> None:
        # For each kind, E G^n and its derivatives, up to the third one, which a
        # gradient needs.
        self._of_kinds: list[list[Array]] = []
        scale: Array | float = weights
        for count, (G, log_G) in zip(counts, generating_functions, strict=True):
            self._of_kinds.append(count.derivatives(G, log_G, HIGHEST, scale))
            scale = 1.0  # the weights of the rule enter with the first kind only
        # The derivatives that were returned. A key is a tuple of the orders of
        # differentiation, with respect to the G of each kind.
        self._products: dict[tuple[int, ...], Array] = {}

    def __call__(self, *kinds: int) -> Array:
        # How often each kind is among the arguments.
        orders = tuple(kinds.count(kind) for kind in range(len(self._of_kinds)))
        if orders not in self._products:
            product = self._of_kinds[0][orders[0]]
            for k, order in enumerate(orders[1:], 1):
                product = product * self._of_kinds[k][order]
            self._products[orders] = product
        return self._products[orders]


def _integrand(
    P: _ProductDerivatives,
    sums: Sequence[_Sums],
    pairs: Sequence[Sequence[Array]],
    *further: int,
) -> Array:
    """Return the integrand times the weights of the rule, (S, T).

    For each kind in ``further``, P is differentiated once more with respect to the G of
    this kind.
    """
    kinds = range(len(sums))
    total = P(0, *further) * sums[0].twice
    for k in kinds[1:]:
        total = total + P(k, *further) * sums[k].twice
    for k in kinds:
        for m in kinds:
            total = total + P(k, m, *further) * pairs[k][m]
    return total


class _Fields(NamedTuple):
    """Derivatives of the integrand with respect to the `_Sums` of one kind.

    They include the weights of the rule.
    """

    d_b: Array  # (dimensions, S, T)
    d_c: Array  # (dimensions, S, T)
    d_twice: Array  # (S, T)
    d_mean: Array  # with respect to G, the mean of e^(-y-z), (S, T)


def _fields(
    P: _ProductDerivatives,
    sums: Sequence[_Sums],
    pairs: Sequence[Sequence[Array]],
    k: int,
) -> _Fields:
    """Return the derivatives of the integrand with respect to the sums of kind k."""
    # The integrand has the terms P(k, m) b_k·c_m. So the derivative with respect to b_k
    # is a sum over m of P(k, m) c_m. In the derivative with respect to c_k, b_m takes
    # the place of c_m.
    d_b = P(k, 0) * sums[0].c
    d_c = P(k, 0) * sums[0].b
    for m in range(1, len(sums)):
        d_b = d_b + P(k, m) * sums[m].c
        d_c = d_c + P(k, m) * sums[m].b
    return _Fields(d_b, d_c, d_twice=P(k), d_mean=_integrand(P, sums, pairs, k))


class _GradientTerms(NamedTuple):
    """Terms of the gradient with respect to the scores of the R nodes of a kind.

    A term, (R,), is the change of the integral through one of the sums of the kind. The
    terms are not added up here because `balanced` needs their sizes to correct the
    gradient at nodes at which the terms cancel.
    """

    d_c: Array
    d_b: Array
    d_twice: Array
    d_mean: Array


def _terms(
    rows: slice, nodes: _Nodes, fields: _Fields, x: _Factors, z: _Factors
) -> _GradientTerms:
    """Return the terms of a gradient at the nodes of a kind.

    The gradient is with respect to the scores of one head. Only ``x`` depends on the
    scores of the first head, and only ``z`` on the scores of the second. So for the
    gradient of the first head, ``x`` holds derivatives in place of values. For the
    gradient of the second head, ``z`` holds them.
    """
    e = nodes.errors[rows]
    # c has the factors x0 z1, b has x1 z0, ``twice`` has x1 z1, and G has x0 z0.
    x0 = x.zeroth[rows]
    x1 = x.first[rows]
    z0 = z.zeroth[rows]
    z1 = z.first[rows]
    return _GradientTerms(
        d_c=np.einsum("ud,du->u", e, _contracted(x0, fields.d_c, z1)),
        d_b=np.einsum("ud,du->u", e, _contracted(x1, fields.d_b, z0)),
        d_twice=nodes.D[rows] * _contracted(x1, fields.d_twice, z1),
        d_mean=_contracted(x0, fields.d_mean, z0),
    )


def _contracted(x: Array, field: Array, z: Array) -> Array:
    """Return Σ_st x_us F_st z_ut for each node u, with F the ``field``, (..., R)."""
    return np.asarray(np.einsum("...ut,ut->...u", x @ field, z))


def _gradient(terms_of_kinds: Sequence[_GradientTerms]) -> Array:
    """Join each term over the kinds, and add the terms up, (U,)."""
    # The exact gradient sums to zero. `balanced` also subtracts the sum that rounding
    # leaves. Its arguments have a row for each query; here there is one query.
    joined = [
        np.concatenate(terms)[None] for terms in zip(*terms_of_kinds, strict=True)
    ]
    return balanced(*joined)[0]
