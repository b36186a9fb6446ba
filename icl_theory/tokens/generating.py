r"""Numbers of tokens, and the derivatives of their generating functions.

A kind :math:`\kappa` has n independent tokens, each at node u with probability
:math:`\pi_u`; the number n may be random. In the integrals of
`icl_theory.tokens.square`, each token that a term does not single out contributes a
factor :math:`G_\kappa`. If a term singles out k tokens, the mean of the term, summed
over all choices of these tokens, has the k-th derivative of :math:`E\,G^n` as a factor:

.. math:: G_\kappa = \sum_{u \in \kappa} \pi_u e^{-y_u}, \qquad
    \frac{d^k}{dG^k} E\,G^n = E[n (n - 1) \cdots (n - k + 1)\, G^{n - k}] .

Here :math:`y_u = s w_u`, with the weight :math:`w_u` of the node and the variable s of
the integrals. `TokenCount` evaluates these derivatives. `generating_function` evaluates
G and its logarithm.

In the shapes below, U is the number of nodes, q the number of queries and J the number
of values of s.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from icl_theory._validate import Array
from icl_theory.tokens.lengths import Lengths, power_derivatives

# Highest order of the derivatives that a gradient needs.
HIGHEST = 3
# Takes the place of zero in a logarithm or a divisor.
SMALLEST = 1e-300
# If G is above this, ln G is computed from G - 1. Near 1, the logarithm of G itself
# loses digits; a limit somewhat below or above ½ would do as well.
NEAR_1 = 0.5


class TokenCount(NamedTuple):
    """The number of tokens of a kind, and the rows of their nodes."""

    number: float  # N, the largest value of n
    rows: slice = slice(None)  # the rows of the kind's nodes in the list of all nodes
    law: Lengths | None = None  # law of n; None if n is always N

    @property
    def least(self) -> float:
        """The least number of tokens."""
        return self.number if self.law is None else self.law.least

    @property
    def places(self) -> int:
        """The largest number of tokens in a sampled prompt."""
        return int(self.number) if self.law is None else self.law.places

    def derivatives(
        self, mean: Array, log: Array, order: int, scale: Array | float = 1.0
    ) -> list[Array]:
        r"""Return the derivatives of :math:`E\,G^n`, times ``scale``.

        .. math:: E[n (n-1) \cdots (n-k+1)\, G^{n-k}], \qquad k = 0, 1, \ldots

        The orders are 0 to ``order``. The derivatives are taken at G = ``mean``, whose
        logarithm is ``log``.
        """
        if self.law is None:
            return power_derivatives(mean, log, self.number, order, scale)
        derivatives = self.law._derivatives(mean, log, order)
        return [derivative * scale for derivative in derivatives]


class GeneratingFunction(NamedTuple):
    """G and ln G of a kind, for q queries at J values of s."""

    mean: Array  # G, the mean of e^(-y) over the nodes, (q, J)
    log: Array  # ln G, (q, J)


def generating_function(
    probs: Array, decay: Array, minus_y: Array, rows: slice, absent: Array
) -> GeneratingFunction:
    """Return G and ln G of a kind, for q queries at J values of s.

    Callers multiply ln G by about N, the number of tokens. So the returned ln G has an
    absolute error far below 1/N, even if G is nearly 1.

    Parameters
    ----------
    probs : ndarray, (q, U)
        Probabilities π of the nodes.
    decay : ndarray, (q, U, J)
        e^(-y), with J values of s.
    minus_y : ndarray, (q, U, J)
        -y. The function overwrites a part of it.
    rows : slice
        The nodes of the kind.
    absent : ndarray, (q, 1)
        Total probability of the nodes of the kind that never occur. The array
        ``probs`` has zeros in place of their probabilities.
    """
    mean = weighted(probs, decay, rows)
    log: Array = np.log(np.maximum(mean, SMALLEST))
    # G falls from each value of s to the next, so only the first columns are near 1.
    number_near_1 = np.count_nonzero((mean > NEAR_1).any(axis=0))
    first_minus_y = minus_y[:, rows, :number_near_1]
    decay_minus_1 = np.expm1(first_minus_y, out=first_minus_y)
    # G - 1 = Σ_u π_u (e^(-y_u) - 1), in which e^(-y) = 0 at nodes that never occur.
    mean_minus_1 = weighted(probs[:, rows], decay_minus_1) - absent
    log[:, :number_near_1] = log_mean(mean[:, :number_near_1], mean_minus_1)
    return GeneratingFunction(mean, log)


def log_mean(mean: Array, mean_minus_1: Array) -> Array:
    """Return ln G, from G - 1 if G is above ½, and otherwise from G, the ``mean``."""
    # If G is near 1, only G - 1 has all digits of ln G. If G is far below 1, only G
    # itself has them. Both logs are computed everywhere, and `np.maximum` keeps their
    # arguments above 0 where they are not used.
    is_near_1 = mean_minus_1 > NEAR_1 - 1.0
    return np.where(
        is_near_1,
        np.log1p(np.maximum(mean_minus_1, NEAR_1 - 1.0)),
        np.log(np.maximum(mean, SMALLEST)),
    )


def weighted(weights: Array, array: Array, rows: slice = slice(None)) -> Array:
    """Return the sum of weights_u array_u over the nodes u of a kind, (q, J).

    The ``weights`` are (q, U), and the ``array`` is (q, U, J). The nodes of the kind
    are the ``rows`` of both.
    """
    return np.asarray(np.matmul(weights[:, None, rows], array[:, rows])[:, 0])
