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

from typing import NamedTuple

import numpy as np

from icl_theory._validate import Array
from icl_theory.tokens.lengths import Lengths, power_derivatives

# Highest order of the derivatives that a gradient needs.
HIGHEST = 3
# Takes the place of zero where a logarithm or a quotient is taken.
SMALLEST = 1e-300


class TokenCount(NamedTuple):
    """The number of tokens of a kind, and the rows of their nodes."""

    number: float  # N, the largest number
    rows: slice = slice(None)
    law: Lengths | None = None  # of the number; None if it is always N

    @property
    def least(self) -> float:
        """The least number of tokens."""
        return self.number if self.law is None else self.law.least

    @property
    def places(self) -> int:
        """The largest number of tokens that is drawn."""
        return int(self.number) if self.law is None else self.law.places

    def derivatives(
        self, mean: Array, log: Array, order: int, scale: Array | float = 1.0
    ) -> list[Array]:
        r"""Return the derivatives of :math:`E\,G^n`, times ``scale``.

        .. math:: E[n (n-1) \cdots (n-k+1)\, G^{n-k}], \qquad k = 0, 1, \ldots

        They have the orders 0 to ``order``, at G = ``mean`` with the logarithm
        ``log``.
        """
        if self.law is None:
            return power_derivatives(mean, log, self.number, order, scale)
        derivatives = self.law._derivatives(mean, log, order)
        return [derivative * scale for derivative in derivatives]


class GeneratingFunction(NamedTuple):
    """G of a kind for q queries at J values of s, and ln G; (q, J) each."""

    mean: Array
    log: Array


def generating_function(
    probs: Array, decay: Array, minus_y: Array, rows: slice, absent: Array
) -> GeneratingFunction:
    """Return G(s) of a kind for q queries at J nodes s, (q, J), and ln G.

    The absolute error of ln G is far below 1/N, also if G is nearly 1.

    Parameters
    ----------
    probs : ndarray, (q, U)
        Probabilities π of the nodes.
    decay : ndarray, (q, U, J)
        e^(-y), with J values of s.
    minus_y : ndarray, (q, U, J)
        -y. The first columns are overwritten.
    rows : slice
        The nodes of the kind.
    absent : ndarray, (q, 1)
        Probability of the nodes of the kind that never occur, which are zero in
        ``probs``.
    """
    mean = weighted(probs, decay, rows)
    log: Array = np.log(np.maximum(mean, SMALLEST))
    # G falls from each value of s to the next, so only the first columns are near 1.
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
