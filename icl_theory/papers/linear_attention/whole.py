r"""All matrices of a layer of linear attention with several heads.

A prompt has N tokens :math:`x_i` and a query x, in d dimensions. The labels are
:math:`y_i = w^\top x_i` plus noise of standard deviation σ, with a task w. The law of
the prompts has the second moments Λ of the tokens, W of the tasks, and
:math:`\Lambda_q` of the query.

The prompt is the matrix :math:`E` with columns :math:`(x_i, y_i)` and :math:`(x, 0)`.
Head h has a value matrix :math:`P_h` and a key-query matrix :math:`K_h`, and the
prediction is the last entry of :math:`\frac1N\sum_h P_hEE^\top K_h(x, 0)`. `WholeLayer`
maps these matrices to the tensor on which the prediction depends, and `TensorRisk` is
the risk over this tensor. `SeparateLayer` maps the weights of heads with separate keys
and queries to the same tensor.

`MergedHeads` is for heads in which only two parts are not zero: the last entry
:math:`v_h` of the last row of :math:`P_h`, and the upper left d × d block
:math:`A_h^\top` of :math:`K_h`. It maps them to the matrix :math:`\Gamma = \sum_h
v_hA_h` of the prediction :math:`x^\top\Gamma h`. In :math:`\Gamma h` the letter h
stands for the mean of :math:`y_ix_i`, not for a head. The best matrix Γ is
:math:`\Gamma^*`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import (
    LARGEST,
    Array,
    argument_error,
    integer,
    real_array,
    set_fields,
)
from icl_theory.engine.pullback import Map
from icl_theory.engine.risk import WithStart, largest_eigenvalue
from icl_theory.memory import check_fits
from icl_theory.papers.linear_attention.law import PromptLaw, prompt_law, shaped
from icl_theory.papers.linear_attention.layer import SampledTensor
from icl_theory.papers.linear_attention.risks import BestKnown, MergedRisk


class _EvenPart(NamedTuple):
    """The part of a prediction that is even in the labels.

    It stays the same if all labels change sign. For a query x it is the sum of the two
    terms below.
    """

    # T_m, symmetric: the coefficients in Σ_m x_m tr(T_m XXᵀ/N), where X has the tokens
    # and the query in its columns; (d, d, d), with m as the first axis.
    T: Array
    # c_m: the coefficients in Σ_m c_m x_m Σ_i y_i²/N; (d,)
    c: Array


class _EvenSquares(NamedTuple):
    """Twice the loss of the even terms, and products that its gradient shares.

    ``TensorRisk._even_squares`` defines the letters. "Weighted" means multiplied by Λ_q
    along each axis.
    """

    twice: float  # twice the loss
    # Weighted t + 3f/N + τ̄c, the coefficients of the part that is linear in x, (d,).
    weighted_linear: Array
    weighted_cubic: Array  # weighted F, (d, d, d)
    scatter: Array  # Σ_n (Λ_q)_mn Λ Y_n Λ, with m as the first axis, (d, d, d)
    # Half the derivative of the terms of ``twice`` in |c|², with respect to c, (d,).
    c_slope: Array


@dataclass(frozen=True, eq=False)
class TensorRisk(BestKnown):
    r"""The risk over the tensor B of a whole layer, for normal tasks and queries.

    .. math:: \hat y = \sum_{abm} B_{abm}\,G_{ab}\,x_m, \qquad G = \tfrac1N EE^\top

    The columns of E are :math:`(x_i, y_i)` and :math:`(x, 0)`, with the query x. The
    axes a and b have d + 1 entries, the last of which belongs to the label, and m has d
    entries. The loss is the loss of :math:`\Gamma_{mi} = B_{d+1,i,m} + B_{i,d+1,m}`,
    plus half the mean square of all other terms of the prediction. These are even: they
    stay the same if all labels change sign. See docs/linear-attention-theory.md, "The
    whole layer".

    Parameters
    ----------
    law : PromptLaw
        Law of the prompts. Tasks and queries are normal.
    start : array_like, (d + 1, d + 1, d)
        B at step 0, with entries up to 1e40.

    Examples
    --------
    >>> import icl_theory as icl, numpy as np
    >>> law = icl.linear_attention.PromptLaw([1.0, 0.5], N=10)
    >>> B = np.zeros((3, 3, 2))
    >>> B[2, :2] = np.diag(law.best)
    >>> risk = icl.linear_attention.TensorRisk(law, B)
    >>> round(risk.loss(B), 4), round(law.floor, 4)
    (0.1714, 0.1714)
    """

    law: PromptLaw
    start: Array

    def __post_init__(self) -> None:
        law = prompt_law(self.law).dense
        d = law.d
        # A generous bound, in bytes: twenty tensors.
        check_fits("d", d, 160.0 * float(d) ** 3)
        shape = (d + 1, d + 1, d)
        set_fields(self, law=law, start=shaped("start", self.start, shape))

    @cached_property
    def merged(self) -> MergedRisk:
        """The risk over Γ, the loss without the even terms."""
        # A `MergedRisk` needs a start, which is not used here.
        return MergedRisk(self.law, np.zeros((self.law.d, self.law.d)))

    @cached_property
    def best(self) -> Array:
        r"""A minimiser: :math:`B_{d+1,i,m} = \Gamma^*_{mi}`, and zeros elsewhere."""
        best = np.zeros(self.start.shape)
        best[-1, :-1] = self.law.best.T
        return best

    def sampled(self, batch: int, seed: int = 0) -> SampledTensor:
        """Return the trainer on sampled prompts, over B.

        Raises
        ------
        ValueError
            N is infinite, or an argument is out of range.
        """
        return SampledTensor(self.law, self.start, batch, seed)

    def gamma(self, params: ArrayLike) -> Array:
        """Return the matrix Γ of a tensor B, (d, d)."""
        return self._gamma(self._checked(params))

    def _gamma(self, B: Array) -> Array:
        """Return the matrix Γ of xᵀΓh, the part that changes sign with the labels."""
        return np.asarray(B[-1, :-1].T + B[:-1, -1].T)

    def floor(self) -> float:
        """Least loss, which is the loss of Γ*: the even terms can all be zero."""
        return self.law.floor

    def excess(self, params: ArrayLike) -> float:
        """Loss above the floor, a sum of squares."""
        return self._excess(self._checked(params))

    def _excess(self, B: Array) -> float:
        """Return the excess, which is infinite beyond the range of float64."""
        with np.errstate(over="ignore"):
            even, _ = self._even(B)
            return self.merged._excess(self._gamma(B)) + even

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient, (d + 1, d + 1, d)."""
        odd, gamma_gradient = self.merged.evaluate(self._gamma(params))
        even, gradient = self._even(params)
        # Γᵀ is the sum of these two blocks of B, which the even terms do not contain.
        # So each block has the gradient with respect to Γ, transposed.
        gradient[-1, :-1] = gamma_gradient.T
        gradient[:-1, -1] = gamma_gradient.T
        return odd + even, gradient

    def hessian_product(self, params: Array, direction: Array) -> Array:
        """Return the change of the gradient along a direction.

        The gradient is an affine function of B, so the change does not depend on B.
        """
        # The gradient of the even terms is linear in B.
        _, product = self._even(direction)
        # The Hessian of a `MergedRisk` is constant too, so any parameters will do.
        gamma_product = self.merged.hessian_product(params, self._gamma(direction))
        product[-1, :-1] = gamma_product.T
        product[:-1, -1] = gamma_product.T
        return product

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """The excess, the loss of the even terms, and `MergedRisk.components` of Γ."""
        even, _ = self._even(params)
        return {
            "excess": np.asarray(self._excess(params)),
            "even_loss": np.asarray(even),
            "gamma": self.merged._components(self._gamma(params)),
        }

    def largest_curvature(self) -> float:
        """Largest eigenvalue of the Hessian."""
        # The Hessian is constant, and any B will do.
        zeros = np.zeros(self.start.shape)

        def product(direction: Array) -> Array:
            """Return the product of the Hessian with a direction."""
            return self.hessian_product(zeros, direction)

        return largest_eigenvalue(product, zeros.shape, metric=1.0).value

    def _even_part(self, B: Array) -> _EvenPart:
        """Return T and c from the blocks of B that Γ does not contain."""
        # In B the axis m is the last one, and in T the first.
        inner = np.moveaxis(B[:-1, :-1], 2, 0)
        # EEᵀ is symmetric, so only the symmetric part of T matters.
        return _EvenPart(0.5 * (inner + np.swapaxes(inner, 1, 2)), B[-1, -1])

    def _even(self, B: Array) -> tuple[float, Array]:
        """Return half the mean square of the even terms, and its gradient.

        The gradient has the shape of B, with zeros in the blocks of Γ.
        """
        squares = self._even_squares(B)
        return 0.5 * squares.twice, self._even_gradient(B, squares)

    def _even_squares(self, B: Array) -> _EvenSquares:
        r"""Return twice the loss of the even terms, and products for its gradient.

        Twice the loss is the sum of squares below. Norms are weighted with Λ_q:
        :math:`|u|^2 = u^\top\Lambda_qu` for a vector u, and :math:`|F|^2` has a factor
        Λ_q for each of the three axes. F is the mean of T over all permutations of its
        axes. The other letters are :math:`t_m = \mathrm{tr}\,T_m\Lambda`,
        :math:`f_m = \sum_{ij} F_{ijm}(\Lambda_q)_{ij}`, :math:`Y_m = T_m + c_mW`,
        :math:`\bar\tau = \mathrm{tr}\,\Lambda W + \sigma^2` and
        :math:`\rho = \mathrm{tr}[(\Lambda W)^2]`; see docs/linear-attention-theory.md,
        "The whole layer".

        .. math:: |t + \tfrac3N f + \bar\tau c|^2 + \tfrac6{N^2}|F|^2 + 2\rho|c|^2
            + \tfrac2N\Bigl[\sum_{mn}(\Lambda_q)_{mn}\mathrm{tr}\,Y_m\Lambda Y_n\Lambda
            + (\bar\tau^2 + \rho)|c|^2\Bigr]
        """
        law = self.law
        covariance, prior, query_moment = law.moments  # Λ, W and Λ_q
        inverse_N = 1.0 / law.N
        T, c = self._even_part(B)
        tau = self._label_square
        covariance_prior = covariance @ prior
        rho = float(np.sum(covariance_prior * covariance_prior.T))  # tr (ΛW)²

        # The part of the even terms that is linear in x. It is the sum of two terms.
        # One is the mean of the even terms over tokens and labels, (t + τ̄c)ᵀx. The
        # other is 3fᵀx/N, the linear part of the cubic form in x that the query's own
        # column of E contributes.
        F = _symmetric(T)
        t = np.tensordot(T, covariance)
        f = np.tensordot(F, query_moment)
        linear = t + 3.0 * inverse_N * f + tau * c
        weighted_linear = query_moment @ linear
        weighted_c = query_moment @ c
        # The rest of the cubic form has the mean square 6 |F|²/N².
        weighted_F = _along_all_axes(F, query_moment)
        # The sum over m and n of (Λ_q)_mn tr Y_m Λ Y_n Λ is vdot(Y, scatter). This sum
        # is due to the scatter of tokens and labels about their means.
        Y = T + np.multiply.outer(c, prior)
        scatter = np.tensordot(query_moment, covariance @ Y @ covariance, axes=1)
        # The factor of |c|² comes from the variance of the average of y² in a prompt.
        # Given the task w, the mean of y² is wᵀΛw + σ², which has the variance 2ρ over
        # tasks. Around this mean, the average of N squares has the variance
        # 2(τ̄² + 2ρ)/N. Of this variance the part 2ρ/N is left out of the factor, since
        # the sum over m and n contains it, through cW in Y.
        c_factor = 2.0 * rho + 2.0 * inverse_N * (tau**2 + rho)

        c_square = float(c @ weighted_c)
        F_square = float(np.vdot(F, weighted_F))
        Y_square = float(np.vdot(Y, scatter))
        twice = float(linear @ weighted_linear) + 6.0 * inverse_N**2 * F_square
        twice += c_factor * c_square + 2.0 * inverse_N * Y_square
        return _EvenSquares(
            twice=twice,
            weighted_linear=weighted_linear,
            weighted_cubic=weighted_F,
            scatter=scatter,
            c_slope=c_factor * weighted_c,
        )

    def _even_gradient(self, B: Array, squares: _EvenSquares) -> Array:
        """Return the gradient of half of ``squares.twice`` with respect to B.

        The loss depends on T through F, t and Y, and on c through τ̄c, the terms in |c|²
        and Y.
        """
        covariance, prior, query_moment = self.law.moments  # Λ, W and Λ_q
        inverse_N = 1.0 / self.law.N
        F_gradient = 6.0 * inverse_N**2 * squares.weighted_cubic
        through_f = np.multiply.outer(squares.weighted_linear, query_moment)
        F_gradient = F_gradient + 3.0 * inverse_N * through_f
        # F is the mean of T over permutations, so the gradient with respect to T is the
        # mean of the gradient with respect to F over the same permutations.
        T_gradient = _symmetric(F_gradient)
        T_gradient = T_gradient + np.multiply.outer(squares.weighted_linear, covariance)
        T_gradient += 2.0 * inverse_N * squares.scatter
        c_gradient = self._label_square * squares.weighted_linear + squares.c_slope
        c_gradient += 2.0 * inverse_N * np.tensordot(squares.scatter, prior)
        gradient = np.zeros_like(B)
        # T has the symmetric parts of the matrices in this block of B. Its gradient is
        # symmetric, and is therefore also the gradient with respect to the block. In B
        # the axis m is the last one, and in T the first.
        gradient[:-1, :-1] = np.moveaxis(T_gradient, 0, 2)
        gradient[-1, -1] = c_gradient
        return gradient

    @property
    def _label_square(self) -> float:
        """The mean square τ̄ of a label, tr ΛW + σ²."""
        covariance, prior, _ = self.law.moments  # Λ and W
        return float(np.sum(covariance * prior)) + self.law.noise**2


def _symmetric(T: Array) -> Array:
    """Return the mean of T, (d, d, d), over all permutations of its axes.

    T itself is symmetric in its last two axes, so that three of the six permutations
    are enough.
    """
    return (T + np.moveaxis(T, 0, 1) + np.moveaxis(T, 0, 2)) / 3.0


def _along_all_axes(F: Array, matrix: Array) -> Array:
    """Multiply each of the three axes of a tensor by a symmetric matrix."""
    for _ in range(3):
        # Each product multiplies the first axis and puts it last. So three products
        # multiply each axis once, and leave the axes in their old order.
        F = np.tensordot(F, matrix, axes=(0, 0))
    return F


@dataclass(frozen=True, eq=False)
class WholeLayer(WithStart, Map):
    r"""The tensor of H heads with the matrices :math:`P_h` and :math:`K_h`.

    .. math:: B_{abm} = \sum_h (P_h)_{d+1,a}\,(K_h)_{bm}

    Only the last row of :math:`P_h` and the first d columns of :math:`K_h` matter. The
    gradients with respect to all other entries are zero, since only the last entry of
    the layer's output is read, and the query has the label 0.

    Parameters
    ----------
    start : ndarray, (2, H, d + 1, d + 1)
        The matrices :math:`P_h`, and then the matrices :math:`K_h`, at step 0.

    References
    ----------
    docs/linear-attention-theory.md, "The whole layer".
    """

    start: Array

    def __post_init__(self) -> None:
        start = real_array("start", self.start, 4, LARGEST)
        kinds, heads, rows, columns = start.shape  # the kinds are P and K
        if kinds != 2 or heads < 1 or rows != columns or rows < 2:
            raise argument_error(
                "start", start.shape, "of shape (2, H, d + 1, d + 1), with a head"
            )
        set_fields(self, start=start)

    def inward(self, params: Array) -> Array:
        """Return the tensor B, (d + 1, d + 1, d)."""
        P, K = params
        return np.tensordot(P[:, -1], K[:, :, :-1], axes=(0, 0))

    def outward(self, params: Array, gradient: Array) -> Array:
        r"""Return the gradients with respect to P and K.

        For the gradient G with respect to B they are :math:`\sum_{bm}G_{abm}(K_h)_{bm}`
        and :math:`\sum_a(P_h)_{d+1,a}G_{abm}`.
        """
        P, K = params
        P_gradient = np.tensordot(K[:, :, :-1], gradient, axes=((1, 2), (1, 2)))
        K_gradient = np.tensordot(P[:, -1], gradient, axes=1)
        # All other entries of P and K have the gradient zero.
        gradients = np.zeros_like(params)
        gradients[0, :, -1] = P_gradient
        gradients[1, :, :, :-1] = K_gradient
        return gradients

    def push(self, params: Array, direction: Array) -> Array:
        """Return the change of B for changes of P and K."""
        P, K = params
        P_change, K_change = direction
        # B is bilinear in P and K.
        from_P = self.inward(np.stack([P_change, K]))
        from_K = self.inward(np.stack([P, K_change]))
        return from_P + from_K

    def bend(self, params: Array, direction: Array, gradient: Array) -> Array:
        """Return the change of `outward` along a direction, at a fixed gradient.

        The gradient with respect to P is linear in K, and vice versa, so that the
        change is `outward` at the direction.
        """
        return self.outward(direction, gradient)

    def stretch(self, params: Array) -> float:
        """Upper bound on the norm of the change of B for a unit change of P and K.

        ‖Σ δP_h ⊗ K_h + P_h ⊗ δK_h‖ <= ‖δP‖ ‖K‖ + ‖P‖ ‖δK‖ <= √(‖P‖² + ‖K‖²), by Cauchy
        and Schwarz, as ‖δP‖² + ‖δK‖² = 1 for a unit change.
        """
        return float(np.linalg.norm(params))

    def blocks(self, array: Array) -> Sequence[Array]:
        """The matrices P_h and K_h, one after another."""
        return tuple(array.reshape(-1, *array.shape[2:]))


class _Weights(NamedTuple):
    """The weights of heads with separate keys and queries of R rows."""

    values: Array  # the last row of each value matrix, (H, d + 1)
    keys: Array  # (H, R, d + 1)
    queries: Array  # (H, R, d); the label of x is 0 and needs no column


@dataclass(frozen=True, eq=False)
class SeparateLayer(WithStart, Map):
    r"""The tensor of H heads with values, keys and queries of R rows.

    .. math:: B_{abm} = \sum_h (v_h)_a \sum_r (K_h)_{rb}\,(Q_h)_{rm}

    Parameters
    ----------
    start : ndarray, (H, (d + 1) + R(2d + 1))
        The weights of each head at step 0: d + 1 of the value, which sees a whole token
        (x, y); d + 1 for each of R keys, which also see a token; and d for each of R
        queries, which see x.
    d, rank : int
        Dimension of the tokens, and the number R.

    References
    ----------
    Zhang, Singh, Latham, Saxe 2025; docs/linear-attention-theory.md, "The whole layer".

    Examples
    --------
    A head that reads labels, with a key and a query along the first axis:

    >>> import icl_theory as icl
    >>> head = [0.0, 0.0, 2.0] + [1.0, 0.0, 0.0] + [3.0, 0.0]
    >>> layer = icl.linear_attention.SeparateLayer([head], d=2, rank=1)
    >>> layer.inward(layer.start)[2]
    array([[6., 0.],
           [0., 0.],
           [0., 0.]])
    """

    start: Array
    d: int
    rank: int

    def __post_init__(self) -> None:
        set_fields(self, d=integer("d", self.d, minimum=1))
        set_fields(self, rank=integer("rank", self.rank, minimum=1, maximum=self.d))
        start = real_array("start", self.start, 2, LARGEST)
        size = self.d + 1 + self.rank * (2 * self.d + 1)
        if start.shape[0] < 1 or start.shape[1] != size:
            raise argument_error(
                "start", start.shape, f"of shape (H, {size}), with one head or more"
            )
        set_fields(self, start=start)

    def _weights(self, params: Array) -> _Weights:
        """Return values, keys and queries of all heads."""
        d = self.d
        R = self.rank
        values, keys, queries = np.split(params, [d + 1, (R + 1) * (d + 1)], axis=1)
        return _Weights(values, keys.reshape(-1, R, d + 1), queries.reshape(-1, R, d))

    def inward(self, params: Array) -> Array:
        """Return the tensor B, (d + 1, d + 1, d)."""
        values, keys, queries = self._weights(params)
        return np.tensordot(values, keys.swapaxes(1, 2) @ queries, axes=(0, 0))

    def outward(self, params: Array, gradient: Array) -> Array:
        """Return the gradients with respect to values, keys and queries.

        ``gradient`` is the gradient with respect to B.
        """
        values, keys, queries = self._weights(params)
        # A score of tokens (x, y) and queries x is a bilinear form with this matrix.
        score_matrix = keys.swapaxes(1, 2) @ queries  # KᵀQ, (H, d + 1, d)
        values_gradient = np.tensordot(score_matrix, gradient, axes=((1, 2), (1, 2)))
        score_gradient = np.tensordot(values, gradient, axes=1)
        keys_gradient = queries @ score_gradient.swapaxes(1, 2)
        queries_gradient = keys @ score_gradient
        heads = len(params)
        return np.concatenate(
            [
                values_gradient,
                keys_gradient.reshape(heads, -1),
                queries_gradient.reshape(heads, -1),
            ],
            axis=1,
        )

    def push(self, params: Array, direction: Array) -> Array:
        """Return the derivative of B along a direction.

        B is linear in the values, in the keys and in the queries. So the derivative is
        a sum of three terms, and in each term one of the three is replaced by its
        change.
        """
        derivative = np.zeros((self.d + 1, self.d + 1, self.d))
        for is_in_factor in self._factors():
            one_replaced = np.where(is_in_factor, direction, params)
            derivative += self.inward(one_replaced)
        return derivative

    def bend(self, params: Array, direction: Array, gradient: Array) -> Array:
        """Return the change of `outward` along a direction, at a fixed gradient.

        The gradients are quadratic in the weights.
        """
        # For a quadratic function a central difference is exact at any distance.
        after = self.outward(params + direction, gradient)
        before = self.outward(params - direction, gradient)
        return 0.5 * (after - before)

    def _factors(self) -> Array:
        """Return masks of the entries of a head, (3, entries).

        The first mask selects the value, the second the keys, the third the queries.
        """
        sizes = [self.d + 1, self.rank * (self.d + 1), self.rank * self.d]
        return np.repeat(np.eye(3, dtype=bool), sizes, axis=1)

    def stretch(self, params: Array) -> float:
        """Upper bound on the norm of the change of B for a unit change of the weights.

        The change is at most ‖δV‖ ‖K‖ ‖Q‖ + ‖V‖ ‖δK‖ ‖Q‖ + ‖V‖ ‖K‖ ‖δQ‖ for the values
        V, keys K and queries Q of all heads. Cauchy and Schwarz give the bound.
        """
        values, keys, queries = self._weights(params)
        V = np.linalg.norm(values)
        K = np.linalg.norm(keys)
        Q = np.linalg.norm(queries)
        return float(np.linalg.norm([K * Q, V * Q, V * K]))

    def blocks(self, array: Array) -> Sequence[Array]:
        """The values, keys and queries of each head."""
        blocks = list[Array]()
        for head in array:
            values, keys, queries = self._weights(head[None])  # H = 1
            blocks += [values[0], keys[0], queries[0]]
        return blocks


@dataclass(frozen=True, eq=False)
class MergedHeads(WithStart, Map):
    r"""The matrix :math:`\Gamma = \sum_h v_hA_h` of heads with merged keys and queries.

    The gradients are :math:`\langle G, A_h\rangle` with respect to :math:`v_h` and
    :math:`v_hG` with respect to :math:`A_h`, with :math:`G = \nabla_\Gamma\mathcal L`.
    Every matrix Γ has this form, even with a single head.

    Parameters
    ----------
    start : ndarray, (H, 1 + d²)
        The value and the entries of the matrix of each head at step 0.
    d : int
        Dimension of the tokens.

    References
    ----------
    Zhang, Singh, Latham, Saxe 2025; docs/linear-attention-theory.md, "Merged heads".

    Examples
    --------
    >>> import icl_theory as icl, numpy as np
    >>> heads = icl.linear_attention.MergedHeads([[2, 1, 0, 0, 1], [1, 0, 1, 0, 0]], 2)
    >>> heads.inward(heads.start)
    array([[2., 1.],
           [0., 2.]])
    """

    start: Array
    d: int

    def __post_init__(self) -> None:
        set_fields(self, d=integer("d", self.d, minimum=1))
        start = real_array("start", self.start, 2, LARGEST)
        size = 1 + self.d**2
        if start.shape[0] < 1 or start.shape[1] != size:
            raise argument_error(
                "start", start.shape, f"of shape (H, {size}), with one head or more"
            )
        set_fields(self, start=start)

    def inward(self, params: Array) -> Array:
        """Return Γ, the sum over heads of v_h A_h."""
        return (params[:, 0] @ params[:, 1:]).reshape(self.d, self.d)

    def outward(self, params: Array, gradient: Array) -> Array:
        """Return ⟨G, A_h⟩ and v_h G for the gradient G with respect to Γ."""
        G = gradient.ravel()
        head_gradients = np.empty_like(params)
        head_gradients[:, 0] = params[:, 1:] @ G
        head_gradients[:, 1:] = np.multiply.outer(params[:, 0], G)
        return head_gradients

    def push(self, params: Array, direction: Array) -> Array:
        """Return the change of Γ, Σ δv_h A_h + v_h δA_h."""
        change = direction[:, 0] @ params[:, 1:] + params[:, 0] @ direction[:, 1:]
        return np.asarray(change.reshape(self.d, self.d))

    def bend(self, params: Array, direction: Array, gradient: Array) -> Array:
        """Return ⟨G, δA_h⟩ and δv_h G, the change of `outward` along a direction."""
        # `outward` is linear in the values and matrices.
        return self.outward(direction, gradient)

    def stretch(self, params: Array) -> float:
        """Upper bound √(‖v‖² + ‖A‖²) on the change of Γ for a unit change of v and A.

        The change Σ δv_h A_h + v_h δA_h has at most the norm ‖δv‖ ‖A‖ + ‖v‖ ‖δA‖.
        """
        return float(np.linalg.norm(params))

    def blocks(self, array: Array) -> Sequence[Array]:
        """The value and the matrix of each head."""
        blocks = list[Array]()
        for head in array:
            blocks += [head[:1], head[1:].reshape(self.d, self.d)]
        return blocks
