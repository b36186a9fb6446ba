"""Modes of one step of descent near a state: the eigenvectors of the Hessian, and how fast each contracts."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from icl_theory._validate import Array
from icl_theory.engine.progress import counted
from icl_theory.engine.risk import Risk
from icl_theory.engine.rules import GradientDescent
from icl_theory.engine.steps import Descent

LARGEST = 1024  # parameters of which all modes are found
SLOW = 10.0  # turnovers of a mode while t grows by a factor e: with fewer the mode moves, with more it rests
ASTRAY = 1e-6  # of the Hessian's largest entry: what blocks may miss of a product


class Modes(NamedTuple):
    """The eigenvectors of M^{-1/2} H M^{-1/2} at a time x, one a column, η times the eigenvalues, the root of M."""

    x: float
    rates: Array
    vectors: Array
    root: Array

    def growth(self, order: int, x: Array) -> Array:
        """Eigenvalues of the derivative of e^x (Δ - Δ²/2 + ...), so many terms, for Δ = -rates, at times x; (n, s).

        Fast modes rest, their rates with them. Rates of slow ones fall like 1/t in a tail: what is slow where the
        modes were found is taken to do so.
        """
        powers = np.arange(1.0, order + 1.0)
        found: Array = -np.sum(self.rates[:, None] ** powers / powers, axis=1)
        turnovers = np.abs(found) * math.exp(self.x)
        return found[:, None] * np.exp(np.where(turnovers[:, None] < SLOW, self.x, x))

    def into(self, rows: Array) -> Array:
        """Components of flat arrays of parameters, (..., n)."""
        return (rows * self.root) @ self.vectors

    def out_of(self, components: Array) -> Array:
        """Flat arrays of parameters with these components."""
        return (components @ self.vectors.T) / self.root


class Curvature:
    """Finds the modes where they are asked for, and watches the fastest one.

    Parameters
    ----------
    descent : Descent
        The map.
    """

    def __init__(self, descent: Descent) -> None:
        self.descent = descent
        self.size = int(np.size(descent.risk.initial))
        self.modes: Modes | None = None
        self.found = -math.inf  # ln(1 + t) where the modes were found
        self.spent = 0  # gradients, on modes
        self.wasted = 0  # gradients that better modes would have saved since
        self._price = 2 if type(descent.risk).hessian_product is Risk.hessian_product else 1
        held = min(self.size, LARGEST)  # of more parameters no modes are looked for
        self._fastest = np.zeros(held)
        self._block, self._place = np.zeros(held, dtype=int), np.arange(held)

    @property
    def known(self) -> bool:
        """Whether modes can be found at all."""
        return isinstance(self.descent.rule, GradientDescent) and self.size <= LARGEST

    @property
    def cost(self) -> int:
        """Gradients that finding the modes counts as."""
        return self._price * (int(self._place.max()) + 2)

    def find(self, x: float, params: Array) -> Modes | None:
        """All modes at a state; None where a product of the Hessian is not finite."""
        self.found, self.wasted, self.modes = x, 0, None
        root = np.sqrt(np.broadcast_to(np.asarray(self.descent.risk.metric), np.shape(self.descent.risk.initial)))
        root = root.astype(float).ravel()
        hessian = self._hessian(params) / np.outer(root, root)
        if np.isfinite(hessian).all():
            values, vectors = np.linalg.eigh(0.5 * (hessian + hessian.T))
            self.modes = Modes(x, self.descent.eta * values, vectors, root)
            self._fastest = vectors[:, -1]
        return self.modes

    def fastest(self, params: Array) -> float:
        """Rate of the fastest mode, from below: one step of the power method from the last one's direction."""
        assert self.modes is not None
        root = self.modes.root
        image = self._product(params, self._fastest / root) / root
        size = float(np.linalg.norm(image))
        if size > 0.0 and math.isfinite(size):
            self._fastest = image / size
        return self.descent.eta * size

    def _product(self, params: Array, direction: Array) -> Array:
        """The Hessian times a direction, flat."""
        risk = self.descent.risk
        self.descent.evaluations += self._price
        self.spent += self._price
        shape = np.shape(risk.initial)
        return np.ravel(risk.hessian_product(params.reshape(shape), direction.reshape(shape)))

    def _hessian(self, params: Array) -> Array:
        """Find the Hessian; once its blocks are seen, a product serves a parameter of each of them."""
        places = counted(range(int(self._place.max()) + 1), "columns of the Hessian")
        products = np.stack([self._product(params, (self._place == place).astype(float)) for place in places])
        together = self._block[:, None] == self._block
        hessian = np.where(together, products[self._place], 0.0)
        if len(products) == self.size:
            self._split(hessian)
            return hessian
        probe = np.random.default_rng(len(products)).normal(size=self.size)
        missed = np.abs(self._product(params, probe) - hessian @ probe).max()
        if missed <= ASTRAY * np.abs(hessian).max(initial=0.0):
            return hessian
        self._block, self._place = np.zeros(self.size, dtype=int), np.arange(self.size)
        return self._hessian(params)

    def _split(self, hessian: Array) -> None:
        """Number the blocks of the Hessian, and the parameters in each."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import connected_components

        count, self._block = connected_components(csr_array(hessian != 0.0), directed=False)
        for block in range(count):
            mine = self._block == block
            self._place[mine] = np.arange(mine.sum())
