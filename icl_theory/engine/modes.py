"""Modes of one step of descent: the eigenvectors of the Hessian of each block, and how fast each contracts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from icl_theory._validate import Array
from icl_theory.engine.collocation import Index
from icl_theory.engine.progress import counted
from icl_theory.engine.risk import Risk
from icl_theory.engine.rules import GradientDescent
from icl_theory.engine.steps import Descent


class Layout:
    """Parameters as rows that do not mix: a row for each column where a risk says so, else one row for all.

    Parameters
    ----------
    descent : Descent
        The map.
    """

    def __init__(self, descent: Descent) -> None:
        risk = descent.risk
        self.descent, self.shape = descent, np.shape(risk.initial)
        self.plain = isinstance(descent.rule, GradientDescent)
        self.gradients = risk.column_gradients if self.plain and np.ndim(risk.metric) == 0 else None

    def rows(self, params: Array) -> Array:
        """Rows, (n, m)."""
        return np.ascontiguousarray(params.T) if self.gradients is not None else np.reshape(params, (1, -1)).copy()

    def params(self, rows: Array) -> Array:
        """Parameters."""
        return np.ascontiguousarray(rows.T) if self.gradients is not None else rows.reshape(self.shape)

    def moves(self, rows: Array, which: Index) -> Array:
        """Moves of rows, (r, m), that stand for the blocks ``which``, (r,), in one step."""
        if self.gradients is None:
            return self.descent.moves(rows.reshape(-1, *self.shape)).reshape(rows.shape)
        return np.ascontiguousarray(self.descent.move(self.gradients(rows.T, which)).T)


class Modes(NamedTuple):
    """Eigenvectors of M^{-1/2} H M^{-1/2} at times x, one a column, η times the eigenvalues, and the root of M.

    Blocks come first: (n,), (n, m, m), (n, m), (n, m).
    """

    x: Array
    vectors: Array
    rates: Array
    root: Array

    def growth(self, places: Array, some: Index, slow: float = 10.0) -> Array:
        """Eigenvalues of the derivative of the move that belong to the modes, at times x, (n, s): (n, m, s).

        Fast modes rest, and their rates stay. Rates of modes that turn ``slow`` times while t grows by a factor e,
        or less, fall like 1/t in a tail.
        """
        rates, x = self.rates[some], self.x[some]
        ahead = np.where(np.abs(rates) * np.exp(x)[:, None] < slow, 1.0, 0.0)[:, :, None]
        return np.asarray(-rates[:, :, None] * np.exp(ahead * (x[:, None] - places)[:, None, :]))

    def into(self, rows: Array, some: Index) -> Array:
        """Components of rows, (n, s, m)."""
        return np.asarray((rows * self.root[some, None]) @ self.vectors[some])

    def out_of(self, components: Array, some: Index) -> Array:
        """Rows with these components."""
        return np.asarray((components @ self.vectors[some].swapaxes(1, 2)) / self.root[some, None])


def price_of(layout: Layout) -> int:
    """Gradients that finding the modes counts as."""
    risk = layout.descent.risk
    central = type(risk).hessian_product is Risk.hessian_product
    size = layout.shape[0] if layout.gradients is not None else int(np.prod(layout.shape))
    return (2 if central else 1) * size


def modes_of(layout: Layout, rows: Array, x: Array) -> Modes | None:
    """Find the modes of blocks at rows, (n, m), and times x, (n,); None where a product is not finite."""
    risk, (_, m) = layout.descent.risk, rows.shape
    params = layout.params(rows)
    layout.descent.evaluations += price_of(layout)
    unit, products = np.zeros_like(rows), []
    for j in counted(range(m), "columns of the Hessian"):
        unit[:] = 0.0
        unit[:, j] = 1.0
        products.append(layout.rows(risk.hessian_product(params, layout.params(unit))))
    root = layout.rows(np.sqrt(np.broadcast_to(np.asarray(risk.metric, dtype=float), layout.shape)))
    hessian = np.stack(products, axis=1) / (root[:, :, None] * root[:, None])
    if not np.isfinite(hessian).all():
        return None
    values, vectors = np.linalg.eigh(0.5 * (hessian + hessian.swapaxes(1, 2)))
    return Modes(x.copy(), vectors, layout.descent.eta * values, root)
