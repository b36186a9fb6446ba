"""The matrices of the layers as trained parameters, if they are multiples of I."""

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
    r"""Steps from the key-query matrices Q and the value matrices P of the layers.

    .. math:: \eta_\ell = -\tfrac1d \mathrm{tr}\,Q_\ell, \qquad
        \gamma_\ell = -\tfrac1{d^2}\,\mathrm{tr}\,Q_\ell\;\mathrm{tr}\,P_\ell

    A layer adds :math:`\tfrac1N ZQ Z_x^\top Z P` to its tokens. On isotropic data the
    population gradient at multiples of I consists of multiples of I, because the loss
    does not change if all tokens are rotated. Matrices that start as multiples of I
    therefore stay multiples, under every rule that treats all entries alike, and the
    map is the model on them. It is not the model at other matrices.

    Parameters
    ----------
    start : array_like, (2L - 1, d, d)
        First the L matrices Q, then the L - 1 matrices P; multiples of I.
    depth : int
        Number of layers L.

    Raises
    ------
    ValueError
        The shape is another one, or a matrix is not a multiple of I.

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
        multiples = start[:, :1, :1] * np.eye(start.shape[1])
        if not np.array_equal(start, multiples):
            raise argument_error("start", start, "multiples of the unit matrix")
        set_fields(self, start=start)

    def _multiples(self, params: Array) -> Array:
        """The numbers q and p of the matrices qI and pI, (2L - 1,)."""
        return np.trace(params, axis1=1, axis2=2) / params.shape[1]

    def _parts(self, numbers: Array) -> tuple[Array, Array]:
        """The numbers of the L layers, and of the first L - 1 layers."""
        # np.split takes 15 µs, which is a tenth of a step.
        return numbers[: self.depth], numbers[self.depth :]

    def inward(self, params: Array) -> Array:
        """Steps η and γ, (2L - 1,)."""
        q, p = self._parts(self._multiples(params))
        return np.concatenate([-q, -q[:-1] * p])

    def push(self, params: Array, direction: Array) -> Array:
        """Change of the steps along a direction."""
        q, p = self._parts(self._multiples(params))
        dq, dp = self._parts(self._multiples(direction))
        return np.concatenate([-dq, -dq[:-1] * p - q[:-1] * dp])

    def outward(self, params: Array, gradient: Array) -> Array:
        """Gradient by the matrices, (2L - 1, d, d)."""
        q, p = self._parts(self._multiples(params))
        by_eta, by_gamma = self._parts(gradient)
        by_q = -by_eta
        by_q[:-1] -= by_gamma * p
        return self._spread(np.concatenate([by_q, -by_gamma * q[:-1]]))

    def bend(self, params: Array, direction: Array, gradient: Array) -> Array:
        """Change of `outward` along a direction, at a fixed gradient."""
        dq, dp = self._parts(self._multiples(direction))
        by_gamma = gradient[self.depth :]
        by_q = np.zeros(self.depth)
        by_q[:-1] = -by_gamma * dp
        return self._spread(np.concatenate([by_q, -by_gamma * dq[:-1]]))

    def _spread(self, by_multiples: Array) -> Array:
        """Return gradients, (..., d, d), from the derivatives by multiples of I."""
        d = self.start.shape[1]
        return by_multiples[:, None, None] / d * np.eye(d)

    def stretch(self, params: Array) -> float:
        """Upper bound of the norm of the derivative."""
        q, p = self._parts(self._multiples(params))
        largest = max(np.abs(q).max(), np.abs(p).max(initial=0.0))
        return float((1.0 + 2.0 * largest) / math.sqrt(self.start.shape[1]))

    def blocks(self, array: Array) -> Sequence[Array]:
        """The matrices, one by one."""
        return tuple(array)
