"""Parameters as independent rows, and the modes of each row: eigenvectors of the Hessian and their decay rates."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from icl_theory._validate import Array
from icl_theory.engine.collocation import Index
from icl_theory.engine.progress import counted
from icl_theory.engine.risk import Risk
from icl_theory.engine.rules import GradientDescent
from icl_theory.engine.steps import Descent


class Blocks:
    """One row for each column of the parameters if the columns of a risk are independent, else one row for all.

    To find the modes counts as ``price`` gradients: one or two for each column of the Hessian, and as many as
    ``eigenvectors`` more where columns are so cheap that the eigenvectors take longer.
    """

    def __init__(self, descent: Descent, eigenvectors: int = 3) -> None:
        risk = descent.risk
        self.descent, self.shape = descent, np.shape(risk.initial)
        self._plain = isinstance(descent.rule, GradientDescent)
        self.gradients = risk.column_gradients if self._plain and np.ndim(risk.metric) == 0 else None
        self._size = self.shape[0] if self.gradients is not None else risk.initial.size
        products = 2 if type(risk).hessian_product is Risk.hessian_product else 1
        self.price = self._size * (products if self.gradients is None else products + eigenvectors)

    @property
    def solvable(self) -> bool:
        """Whether modes can be found: for gradient descent, and rows that are not too long."""
        return self._plain and self._size <= 1024

    def rows(self, params: Array) -> Array:
        """Copy parameters into rows, (n, m)."""
        return np.array(params.T) if self.gradients is not None else np.reshape(params, (1, -1)).copy()

    def params(self, rows: Array) -> Array:
        """Parameters from rows."""
        return np.ascontiguousarray(rows.T) if self.gradients is not None else rows.reshape(self.shape)

    def moves(self, rows: Array, which: Index) -> Array:
        """Moves in one step of rows, (r, m), that belong to the blocks ``which``, (r,)."""
        if self.gradients is None:
            return self.descent.moves(rows.reshape(-1, *self.shape)).reshape(rows.shape)
        return np.ascontiguousarray(self.descent.change(rows.T, self.gradients(rows.T, which)).T)

    def modes(self, rows: Array, x: Array) -> Modes | None:
        """Find the modes at rows, (n, m), and times ln(1 + t), (n,); None if a product is not finite."""
        risk, params, unit = self.descent.risk, self.params(rows), np.zeros_like(rows)
        self.descent.evaluations += self.price
        products = []
        for j in counted(range(self._size), "columns of the Hessian"):
            unit[:] = 0.0
            unit[:, j] = 1.0  # of every block at once
            products.append(self.rows(risk.hessian_product(params, self.params(unit))))
        root = self.rows(np.sqrt(np.broadcast_to(np.asarray(risk.metric, dtype=float), self.shape)))
        hessian = np.stack(products, axis=1) / (root[:, :, None] * root[:, None])
        if not np.isfinite(hessian).all():
            return None
        values, vectors = np.linalg.eigh(0.5 * (hessian + hessian.swapaxes(1, 2)))
        return Modes(x.copy(), vectors, self.descent.eta * values, root)


class Modes(NamedTuple):
    """Modes of n blocks: eigenvectors and eigenvalues of M^{-1/2} H M^{-1/2}."""

    x: Array  # times ln(1 + t), (n,)
    vectors: Array  # one in each column, (n, m, m)
    rates: Array  # η times the eigenvalues, (n, m)
    root: Array  # of M, (n, m)

    def growth(self, places: Array, some: Index, resting: float = 10.0) -> Array:
        """Eigenvalues of the derivative of the move for each mode, at times x, (n, s): (n, m, s).

        A mode that decays more than ``resting`` times while t grows by a factor e is at rest, and its rate is
        constant. The rates of the others fall like 1/t, as in a tail.
        """
        rates, x = self.rates[some, :, None], self.x[some, None]
        falls = np.abs(rates) * np.exp(x)[:, :, None] < resting
        return np.asarray(-rates * np.where(falls, np.exp(x - places)[:, None], 1.0))

    def into(self, rows: Array, some: Index) -> Array:
        """Components of rows, (n, s, m)."""
        return np.asarray((rows * self.root[some, None]) @ self.vectors[some])

    def out_of(self, components: Array, some: Index) -> Array:
        """Rows with these components."""
        return np.asarray((components @ self.vectors[some].swapaxes(1, 2)) / self.root[some, None])
