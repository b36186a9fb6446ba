r"""The loss of layers as a polynomial in traces, with its derivatives and rounding.

Let :math:`A = \Sigma^{1/2}\Gamma\Sigma^{1/2}/L` and :math:`\tilde\Omega =
\Sigma^{1/2}\Omega\Sigma^{1/2}`. The loss depends on :math:`p_n = \mathrm{tr}\,A^n` and
:math:`q_m = \mathrm{tr}\,\tilde\Omega A^m` alone:

.. math:: \mathcal L = \tfrac12\sum_u P_u \Bigl(\sum_m b_{um} q_m
    + \frac{\sigma^2}{N} c_u\Bigr), \qquad P_u = \prod_n p_n^{e_{un}} .

See docs/theory/depth-covariance.md.
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

ROUNDING = 2.0**-52


class Derivatives(NamedTuple):
    """A loss and its derivatives with respect to p_1 ... p_2L and q_0 ... q_2L."""

    loss: Any
    by_p: Array  # (2L,)
    by_q: Array  # (2L + 1,)


@dataclass(frozen=True, eq=False)
class LossPolynomial:
    """The polynomial of one depth, prompt length and noise."""

    exponents: NDArray[np.int64]  # e, (U, 2L)
    bias: Array  # b, (U, 2L + 1)
    noise: Array  # σ²/N times c, (U,)

    def evaluate(self, p: Array, q: Array) -> Derivatives:
        """Return the loss and its derivatives, for real or complex traces."""
        factors = _powers(p, int(self.exponents.max(initial=0)))
        n = np.arange(len(p))
        by_trace = factors[n, self.exponents]
        # The product of all factors but one, from the products before and after it.
        before = np.ones_like(by_trace)
        before[:, 1:] = np.cumprod(by_trace[:, :-1], axis=1)
        after = np.ones_like(by_trace)
        after[:, :-1] = np.cumprod(by_trace[:, :0:-1], axis=1)[:, ::-1]
        products = before[:, -1] * by_trace[:, -1]
        coefficients = self.bias @ q + self.noise
        lowered = np.maximum(self.exponents - 1, 0)
        slopes = self.exponents * factors[n, lowered] * before * after
        return Derivatives(
            0.5 * np.sum(products * coefficients),
            0.5 * coefficients @ slopes,
            0.5 * products @ self.bias,
        )

    def magnitude(self, p: Array, q: Array) -> float:
        """Return the sum of the sizes of all terms, for traces of sizes p and q."""
        sizes = LossPolynomial(self.exponents, np.abs(self.bias), np.abs(self.noise))
        return float(sizes.evaluate(p, q).loss)

    def rounding(self, p: Array, q: Array, d: int) -> float:
        """Bound the rounding of the loss to first order.

        Each term is a product of up to 2L traces, whose degrees add up to 2L, and each
        trace is a sum of d numbers. The sums over terms add their own rounding.
        """
        degree = len(p)
        of_trace = math.log2(d) + 16.0
        of_term = degree * (3.0 + of_trace)
        of_sums = len(self.bias) + degree
        return ROUNDING * (of_term + of_sums) * self.magnitude(p, q)


def _powers(p: Array, most: int) -> Array:
    """The powers 0 ... most of each trace, (2L, most + 1)."""
    powers = np.ones((len(p), most + 1), dtype=p.dtype)
    np.cumprod(np.repeat(p[:, None], most, axis=1), axis=1, out=powers[:, 1:])
    return powers


@lru_cache(maxsize=64)
def loss_polynomial(
    depth: int, N: float, noise: float = 0.0, leading: bool = False
) -> LossPolynomial:
    """Return the loss of some layers as a polynomial in the traces.

    Parameters
    ----------
    depth, N, noise
        As for `DepthRisk`.
    leading : bool
        Keep only the terms that remain if d and N grow in proportion: those with as
        many powers of 1/N as traces.
    """
    exponents, bias, noise_counts = counts(depth)
    orders = np.arange(bias.shape[1])
    weights = np.tile(float(N) ** -orders, (len(exponents), 1))
    if leading:
        weights *= orders == exponents.sum(axis=1, keepdims=True)
    # The trace that closes the word of the noise is of order d, too.
    noise_weights = np.tile(float(N) ** -orders, (len(exponents), 1))
    if leading:
        noise_weights *= orders == exponents.sum(axis=1, keepdims=True) - 1
    return LossPolynomial(
        exponents,
        np.einsum("ur,urm->um", weights, bias),
        noise**2 / N * np.einsum("ur,ur->u", noise_weights, noise_counts),
    )


def traces(a: Array, task: Array, degree: int) -> tuple[Array, Array]:
    """Return p_1 ... p_degree and q_0 ... q_degree of eigenvalues a, (d,).

    ``task`` is the diagonal of the matrix Ω̃ in the eigenbasis, (d,).
    """
    powers = eigenvalue_powers(a, degree)
    p = powers[1:].sum(axis=1)
    q = (task * powers).sum(axis=1)
    return p, q


def eigenvalue_powers(a: Array, degree: int) -> Array:
    """The powers 0 ... degree of eigenvalues, (degree + 1, d)."""
    return np.asarray(_powers(a, degree).T)
