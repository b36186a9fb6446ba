"""Parameters as rows that do not mix, and the modes of each: the Hessian's eigenvectors, and how fast they fall."""

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
    """A row for each column of the parameters where a risk says that columns do not mix, else one row for all.

    Parameters
    ----------
    descent : Descent
        The map.

    Attributes
    ----------
    price : int
        Gradients that finding the modes counts as.
    """

    def __init__(self, descent: Descent) -> None:
        risk = descent.risk
        self.descent, self.shape = descent, np.shape(risk.initial)
        self._plain = isinstance(descent.rule, GradientDescent)
        self.gradients = risk.column_gradients if self._plain and np.ndim(risk.metric) == 0 else None
        self._size = self.shape[0] if self.gradients is not None else risk.initial.size
        self.price = self._size * (2 if type(risk).hessian_product is Risk.hessian_product else 1)

    @property
    def solvable(self) -> bool:
        """Whether the modes can be found: the map descends along the gradient, and a row is not too long."""
        return self._plain and self._size <= 1024

    def rows(self, params: Array) -> Array:
        """Rows, (n, m), that share no memory with the parameters."""
        return np.array(params.T) if self.gradients is not None else np.reshape(params, (1, -1)).copy()

    def params(self, rows: Array) -> Array:
        """Parameters."""
        return np.ascontiguousarray(rows.T) if self.gradients is not None else rows.reshape(self.shape)

    def moves(self, rows: Array, which: Index) -> Array:
        """Moves of rows, (r, m), that stand for the blocks ``which``, (r,), in one step."""
        if self.gradients is None:
            return self.descent.moves(rows.reshape(-1, *self.shape)).reshape(rows.shape)
        return np.ascontiguousarray(self.descent.move(self.gradients(rows.T, which)).T)

    def modes(self, rows: Array, x: Array) -> Modes | None:
        """Find the modes at rows, (n, m), and times ln(1 + t), (n,); None where a product is not finite."""
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
    """Eigenvectors of M^{-1/2} H M^{-1/2} at times x, one a column, η times the eigenvalues, and the root of M.

    Blocks come first: (n,), (n, m, m), (n, m), (n, m).
    """

    x: Array
    vectors: Array
    rates: Array
    root: Array

    def growth(self, places: Array, some: Index, resting: float = 10.0) -> Array:
        """Eigenvalues of the derivative of the move that belong to the modes, at times x, (n, s): (n, m, s).

        A mode that turns more often than ``resting`` times while t grows by a factor e is at rest, and its rate
        stays. The rates of the others fall like 1/t, as in a tail.
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
