r"""Numbers of tokens, and the derivatives of their generating functions.

A kind :math:`\kappa` has :math:`N_\kappa` independent tokens, each at node u with
probability :math:`\pi_u`. In the integrals of `icl_theory.tokens.square`, each token
that a term does not single out contributes a factor :math:`G_\kappa`. If a term singles
out k tokens, the remaining factors make the k-th derivative of :math:`G^n`:

.. math:: G_\kappa = \sum_{u \in \kappa} \pi_u e^{-y_u}, \qquad
    \frac{d^k}{dG^k} E\,G^n = E[n (n - 1) \cdots (n - k + 1)\, G^{n - k}] .

`TokenCount` evaluates these derivatives. `generating_function` evaluates G and its
logarithm.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from icl_theory._validate import Array

# Highest order of the derivatives that a gradient needs.
HIGHEST = 3
# A number whose logarithm is below this one counts as zero: exp() would be slow,
# because its result is subnormal.
LOG_ZERO = -700.0
# Takes the place of zero where a logarithm or a quotient is taken.
SMALLEST = 1e-300


class TokenCount(NamedTuple):
    """The number of tokens of a kind, and the rows of their nodes."""

    number: float  # N
    rows: slice = slice(None)
    # Whether to average over prompts of 1, 2, ... N tokens, as training on all
    # positions of a sequence does.
    each: bool = False

    def derivatives(
        self, mean: Array, log: Array, order: int, scale: Array | float = 1.0
    ) -> list[Array]:
        r"""Return the derivatives of :math:`E\,G^n`, times ``scale``.

        .. math:: E[n (n-1) \cdots (n-k+1)\, G^{n-k}], \qquad k = 0, 1, \ldots

        They have the orders 0 to ``order``, at G = ``mean`` with the logarithm
        ``log``. If ``each`` is set, n is uniform on 1 ... N, and the sum of powers is
        built by doubling,
        :math:`\sum_{n \le 2M} G^n = (1 + G^M) \sum_{n \le M} G^n`. All derivatives are
        positive, so that nothing cancels.
        """
        if not self.each:
            return _power_derivatives(mean, log, self.number, order, scale)
        total = [np.zeros_like(log)] * (order + 1)
        M = 0
        for bit in f"{int(self.number):b}":
            power = _power_derivatives(mean, log, M, order)
            total = _added(_product_derivatives(total, power), total)
            M = 2 * M
            if bit == "1":
                M += 1
                total = _added(total, _power_derivatives(mean, log, M, order))
        return [derivative * (scale / self.number) for derivative in total]


def _power_derivatives(
    mean: Array, log: Array, n: float, order: int, scale: Array | float = 1.0
) -> list[Array]:
    """Return G^n and its derivatives by G, times ``scale``."""
    # Derivatives above the n-th are zero. Only the lowest power of G needs exp(); the
    # higher powers follow by multiplication.
    highest = int(min(n, order))
    log_power = log * (n - highest)
    is_normal = log_power > LOG_ZERO
    power = np.exp(np.maximum(log_power, LOG_ZERO, out=log_power), out=log_power)
    power *= is_normal
    power *= scale
    derivatives = [np.zeros_like(log)] * (order + 1)
    for k in range(highest, 0, -1):
        derivatives[k] = power * falling_factorial(n, k)
        power *= mean
    derivatives[0] = power
    return derivatives


def falling_factorial(n: float, k: int) -> float:
    """Return n (n - 1) ... (n - k + 1)."""
    product = 1.0
    for j in range(k):
        product *= n - j
    return product


def _product_derivatives(first: list[Array], second: list[Array]) -> list[Array]:
    """Return the derivatives of a product by Leibniz's rule."""
    derivatives = []
    for k in range(len(first)):
        total = np.zeros_like(first[0])
        for i in range(k + 1):
            total = total + math.comb(k, i) * first[i] * second[k - i]
        derivatives.append(total)
    return derivatives


def _added(first: list[Array], second: list[Array]) -> list[Array]:
    return [x + y for x, y in zip(first, second, strict=True)]


class GeneratingFunction(NamedTuple):
    """G of a kind at the nodes of the rule, and ln G."""

    mean: Array
    log: Array


def generating_function(
    probs: Array, decay: Array, minus_y: Array, rows: slice, absent: Array
) -> GeneratingFunction:
    """Return G(s) of a kind for q queries at J nodes s, (q, J), and ln G.

    The absolute error of ln G is far below 1/N, also if G is nearly 1.

    Parameters
    ----------
    probs : ndarray, (q, C)
        Probabilities π of the nodes.
    decay : ndarray, (q, C, J)
        e^(-y), with J values of s.
    minus_y : ndarray, (q, C, J)
        -y. The first columns are overwritten.
    rows : slice
        The nodes of the kind.
    absent : ndarray, (q, 1)
        Probability of the nodes of the kind that never occur, which are zero in
        ``probs``.
    """
    mean = weighted(probs, decay, rows)
    log: Array = np.log(np.maximum(mean, SMALLEST))
    # G falls along the nodes of the rule, so it is near 1 in the first columns only.
    early = np.count_nonzero((mean > 0.5).any(axis=0))
    early_minus_y = minus_y[:, rows, :early]
    mean_minus_1 = weighted(probs[:, rows], np.expm1(early_minus_y, out=early_minus_y))
    mean_minus_1 = mean_minus_1 - absent
    log[:, :early] = log_mean(mean[:, :early], mean_minus_1)
    return GeneratingFunction(mean, log)


def log_mean(mean: Array, mean_minus_1: Array) -> Array:
    """Return ln G from G and G - 1."""
    return np.where(
        mean_minus_1 > -0.5,
        np.log1p(np.maximum(mean_minus_1, -0.5)),
        np.log(np.maximum(mean, SMALLEST)),
    )


def weighted(weights: Array, array: Array, rows: slice = slice(None)) -> Array:
    """Sum over the nodes of a kind, (q, J)."""
    return np.asarray(np.matmul(weights[:, None, rows], array[:, rows])[:, 0])
