r"""The loss of layers as a polynomial in traces, with its derivatives and rounding.

L layers share the matrix Γ. Prompts have N tokens of the covariance Σ, tasks of the
second moment Ω, and label noise of the standard deviation σ. Let :math:`A =
\Sigma^{1/2}\Gamma\Sigma^{1/2}/L` and :math:`\tilde\Omega =
\Sigma^{1/2}\Omega\Sigma^{1/2}`. The loss depends on :math:`p_n = \mathrm{tr}\,A^n` and
:math:`q_m = \mathrm{tr}\,\tilde\Omega A^m` alone:

.. math:: \mathcal L = \tfrac12\sum_u P_u \Bigl(\sum_m b_{um} q_m
    + \frac{\sigma^2}{N} c_u\Bigr), \qquad P_u = \prod_n p_n^{e_{un}} .

The coefficients b and c depend on L and N, and the exponents e on L alone. See
docs/theory/depth-covariance.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.papers.depth_covariance.words import counts

# Relative precision of float64.
ROUNDING = 2.0**-52


class Derivatives(NamedTuple):
    """A loss and its derivatives with respect to p_1 ... p_2L and q_0 ... q_2L."""

    loss: Any  # real or complex, like the traces
    p_gradient: Array  # (2L,)
    q_gradient: Array  # (2L + 1,)


@dataclass(frozen=True, eq=False)
class LossPolynomial:
    """The loss for one depth, prompt length and noise, with U products P_u of traces.

    The letters are those of the formula at the top of this file.
    """

    exponents: NDArray[np.int64]  # e, (U, 2L)
    bias: Array  # b, (U, 2L + 1)
    noise: Array  # c times σ²/N, (U,)

    def evaluate(self, p: Array, q: Array) -> Derivatives:
        """Return the loss and its derivatives, for real or complex traces."""
        powers = _powers(p, int(self.exponents.max(initial=0)))
        row_of_trace = np.arange(len(p))
        # The factors p_n^e_un of P_u, (U, 2L).
        factors = powers[row_of_trace, self.exponents]
        # ``before`` and ``after`` have the products of the factors before and after
        # each factor. Together they give the product of all other factors without a
        # division, which a factor of zero would spoil.
        before = np.ones_like(factors)
        before[:, 1:] = np.cumprod(factors[:, :-1], axis=1)
        after = np.ones_like(factors)
        # The products from the right run over the reversed columns, without the first.
        after[:, :-1] = np.cumprod(factors[:, :0:-1], axis=1)[:, ::-1]
        products = before[:, -1] * factors[:, -1]
        coefficients = self.bias @ q + self.noise
        # ∂P_u/∂p_n = e_un p_n^(e_un - 1) times all other factors. If e_un is 0, the
        # power does not matter, and 0 stands for the exponent -1.
        lowered = np.maximum(self.exponents - 1, 0)
        product_slopes = self.exponents * powers[row_of_trace, lowered] * before * after
        return Derivatives(
            loss=0.5 * np.sum(products * coefficients),
            p_gradient=0.5 * coefficients @ product_slopes,
            q_gradient=0.5 * products @ self.bias,
        )

    def magnitude(self, p: Array, q: Array) -> float:
        """Return an upper bound on the sum of the absolute values of all terms.

        The arguments are upper bounds on the absolute values of the traces p and q.
        """
        absolute = LossPolynomial(self.exponents, np.abs(self.bias), np.abs(self.noise))
        return float(absolute.evaluate(p, q).loss)

    def rounding(self, p: Array, q: Array, d: int) -> float:
        """Bound the rounding error of the loss to first order.

        Each term is a product of up to 2L traces, whose degrees in A add up to at most
        2L, and each trace is a sum of d numbers. The sums over terms add their own
        rounding. The arguments p and q are upper bounds on the absolute values of the
        traces.
        """
        degree = len(p)
        # A number goes through about log2(d) roundings in a sum of d numbers, because
        # NumPy adds in pairs; 16 more are generous.
        roundings_in_trace = math.log2(d) + 16.0
        # A factor also takes roundings of its powers and products; 3 is generous.
        roundings_in_term = degree * (3.0 + roundings_in_trace)
        # The sums run over the U products P_u, and over q_0 ... q_2L.
        roundings_in_sums = len(self.bias) + degree
        roundings = roundings_in_term + roundings_in_sums
        return ROUNDING * roundings * self.magnitude(p, q)


def _powers(bases: Array, highest: int) -> Array:
    """Return the powers 0 ... highest of each number, (len(bases), highest + 1)."""
    powers = np.ones((len(bases), highest + 1), dtype=bases.dtype)
    np.cumprod(np.repeat(bases[:, None], highest, axis=1), axis=1, out=powers[:, 1:])
    return powers


@lru_cache(maxsize=64)
def loss_polynomial(
    depth: int, N: float, noise: float = 0.0, leading: bool = False
) -> LossPolynomial:
    """Return the loss of ``depth`` layers as a polynomial in the traces.

    Parameters
    ----------
    depth, N, noise
        As for `DepthRisk`.
    leading : bool
        Keep only the terms that remain if d and N grow in proportion. In the bias these
        are the terms with as many powers of 1/N as traces p_n.
    """
    exponents, bias_counts, noise_counts = counts(depth)
    # Row u has the factors N^-r of the terms with the product P_u, (U, R).
    orders = np.arange(bias_counts.shape[1])
    bias_weights = np.tile(float(N) ** -orders, (len(exponents), 1))
    noise_weights = bias_weights.copy()
    if leading:
        trace_count = exponents.sum(axis=1, keepdims=True)
        bias_weights *= orders == trace_count
        # The noise is a trace of words. The mean of a word is a product of traces and
        # of a power of A. The trace of this power is one more p_n, which comes without
        # a factor 1/N.
        noise_weights *= orders == trace_count - 1
    # These are the sums over r in the formulas of `Counts`.
    return LossPolynomial(
        exponents,
        bias=np.einsum("ur,urm->um", bias_weights, bias_counts),
        noise=noise**2 / N * np.einsum("ur,ur->u", noise_weights, noise_counts),
    )


def traces(a: Array, task: Array, degree: int) -> tuple[Array, Array]:
    """Return p_1 ... p_degree and q_0 ... q_degree for the eigenvalues a of A, (d,).

    ``task`` is the diagonal of the matrix Ω̃ in the eigenbasis of A, (d,).
    """
    powers = eigenvalue_powers(a, degree)
    p = powers[1:].sum(axis=1)
    q = (task * powers).sum(axis=1)
    return p, q


def eigenvalue_powers(a: Array, degree: int) -> Array:
    """Return the powers 0 ... degree of eigenvalues, (degree + 1, d)."""
    return np.asarray(_powers(a, degree).T)
