"""The map from matrices of the layers to steps, for matrices that are multiples of I.

There are L layers with the key-query matrices Q and value matrices P, (d, d) each.
Multiples of I are written as Q = qI and P = pI. A layer then changes the labels by a
step η, and the tokens by a step γ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from icl_theory._validate import Array, argument_error, integer, real_array, set_fields
from icl_theory.engine.pullback import Map
from icl_theory.engine.risk import WithStart


@dataclass(frozen=True, eq=False)
class UnitMatrices(WithStart, Map):
    r"""The steps as functions of the layers' matrices Q (key-query) and P (value).

    .. math:: \eta_\ell = -\tfrac1d \mathrm{tr}\,Q_\ell, \qquad
        \gamma_\ell = -\tfrac1{d^2}\,\mathrm{tr}\,Q_\ell\;\mathrm{tr}\,P_\ell

    A layer adds :math:`\tfrac1N Z_xQ Z_x^\top Z\,\mathrm{diag}(P, 1)` to its tokens
    :math:`Z = (Z_x, y)`, whose last column has the labels y. On isotropic data the loss
    does not change if all matrices are rotated together, so the population gradient at
    multiples of I consists of multiples of I. Matrices that start as multiples of I
    therefore stay multiples, under every rule that treats all entries alike. At these
    matrices the steps determine the loss of the layers. At other matrices the loss
    depends on more than the steps.

    Parameters
    ----------
    start : array_like, (2L - 1, d, d)
        First the L matrices Q, then the L - 1 matrices P; multiples of I. The last
        layer has no P, because no layer would use the tokens that this P changes.
    depth : int
        Number of layers L.

    Raises
    ------
    ValueError
        ``start`` has another shape, or a matrix is not a multiple of I.

    References
    ----------
    docs/theory/layers.md, "Matrices".
    """

    start: Array
    depth: int

    def __post_init__(self) -> None:
        set_fields(self, depth=integer("depth", self.depth, minimum=1))
        start = real_array("start", self.start, 3)
        count = 2 * self.depth - 1
        if start.shape[0] != count or start.shape[1] != start.shape[2]:
            raise argument_error("start", start.shape, f"of shape ({count}, d, d)")
        # The first entry of each matrix, times I.
        multiples = start[:, :1, :1] * np.eye(start.shape[1])
        if not np.array_equal(start, multiples):
            raise argument_error("start", start, "multiples of the unit matrix")
        set_fields(self, start=start)

    def _multiples(self, params: Array) -> Array:
        """Return the numbers q and p of the matrices qI and pI, (2L - 1,).

        The numbers are mean diagonal entries. So the method also takes a direction
        whose matrices are no multiples of I.
        """
        return np.trace(params, axis1=1, axis2=2) / params.shape[1]

    def _split(self, numbers: Array) -> tuple[Array, Array]:
        """Split the numbers of Q and P, or of η and γ, into (L,) and (L - 1,)."""
        # Slices are used, because np.split takes 15 µs, a tenth of the time of a step.
        return numbers[: self.depth], numbers[self.depth :]

    def inward(self, params: Array) -> Array:
        """Return the steps η = -q and γ = -qp, (2L - 1,)."""
        q, p = self._split(self._multiples(params))
        return np.concatenate([-q, -q[:-1] * p])

    def push(self, params: Array, direction: Array) -> Array:
        """Return the derivative of the steps along a direction, (2L - 1,)."""
        q, p = self._split(self._multiples(params))
        dq, dp = self._split(self._multiples(direction))
        return np.concatenate([-dq, -dq[:-1] * p - q[:-1] * dp])

    def outward(self, params: Array, gradient: Array) -> Array:
        """Return the gradient with respect to the matrices, (2L - 1, d, d).

        ``gradient`` is the gradient with respect to the steps η and γ, (2L - 1,).
        """
        q, p = self._split(self._multiples(params))
        eta_gradient, gamma_gradient = self._split(gradient)
        q_gradient = -eta_gradient
        q_gradient[:-1] -= gamma_gradient * p
        p_gradient = -gamma_gradient * q[:-1]
        return self._to_matrices(np.concatenate([q_gradient, p_gradient]))

    def bend(self, params: Array, direction: Array, gradient: Array) -> Array:
        """Return the derivative of `outward` along a direction, (2L - 1, d, d).

        ``gradient``, with respect to the steps, is held fixed.
        """
        dq, dp = self._split(self._multiples(direction))
        _, gamma_gradient = self._split(gradient)
        q_change = np.zeros(self.depth)
        q_change[:-1] = -gamma_gradient * dp
        p_change = -gamma_gradient * dq[:-1]
        return self._to_matrices(np.concatenate([q_change, p_change]))

    def _to_matrices(self, multiples_gradient: Array) -> Array:
        """Return the gradients with respect to the matrices, (2L - 1, d, d).

        The argument has the derivatives with respect to q and p, (2L - 1,). As q is
        tr(Q)/d, the derivative with respect to each diagonal entry of Q is 1/d of the
        derivative with respect to q. The same holds for P and p.
        """
        d = self.start.shape[1]
        return multiples_gradient[:, None, None] / d * np.eye(d)

    def stretch(self, params: Array) -> float:
        """Return an upper bound on the norm of the derivative of the steps.

        In one layer, the derivative of η with respect to q has the size 1, and the
        derivatives of γ with respect to q and p have the sizes of p and q. Layers share
        no matrix, so the norm of the whole derivative is at most the largest sum of
        these three sizes in a layer. A matrix of Frobenius norm 1 changes its multiple
        of I by at most 1/√d.
        """
        q, p = self._split(self._multiples(params))
        largest = max(np.abs(q).max(), np.abs(p).max(initial=0.0))
        return float((1.0 + 2.0 * largest) / math.sqrt(self.start.shape[1]))

    def blocks(self, array: Array) -> Sequence[Array]:
        """Return the 2L - 1 matrices, each as a block."""
        return tuple(array)
