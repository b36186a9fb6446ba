"""Parameters as independent rows, and the modes of each row: eigenvectors of the Hessian and their decay rates."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from icl_theory._validate import Array
from icl_theory.engine.capabilities import column_gradients_of
from icl_theory.engine.collocation import Index, inverse_or_nan
from icl_theory.engine.progress import counted
from icl_theory.engine.risk import Risk
from icl_theory.engine.steps import Descent
from icl_theory.engine.whole_state import StateRisk


class Blocks:
    """One row for each column of the parameters if the columns of a risk are independent, else one row for all.

    To find the modes counts as ``price`` gradients: one or two for each column of the
    Hessian, and as many as ``eigenvectors`` more where columns are so cheap that the
    eigenvectors take longer.
    """

    def __init__(self, descent: Descent, eigenvectors: int = 3) -> None:
        risk = descent.risk
        self.descent = descent
        self.shape = np.shape(risk.initial)
        rule, eta = descent.rule, descent.eta
        # whether a step is known to be linear in each mode; normalised descent is not
        self._linear = rule.jacobian(np.zeros(1), eta) is not None
        self.gradients = (
            column_gradients_of(risk)
            if self._linear and np.ndim(risk.metric) == 0
            else None
        )
        inner = risk.risk if isinstance(risk, StateRisk) else risk
        self._inner = inner
        self._inner_shape = np.shape(inner.initial)
        size = np.size(inner.initial)
        # modes of a block
        self._size = self._inner_shape[0] if self.gradients is not None else size
        products = 2 if type(inner).hessian_product is Risk.hessian_product else 1
        self.price = self._size * (
            products if self.gradients is None else products + eigenvectors
        )

    @cached_property
    def fastest(self) -> float:
        """Largest stable rate of a mode: beyond it one of the mode's factors in a step is below -1."""
        if not self._linear:
            return 2.0
        # the determinant of 2 + J vanishes where I + J has the eigenvalue -1; it is
        # linear in the rate
        jacobians = self._jacobian(np.array([0.0, 1.0]))
        at_rest, at_one = np.linalg.det(2.0 * np.eye(jacobians.shape[-1]) + jacobians)
        return float(at_rest / (at_rest - at_one))

    @property
    def solvable(self) -> bool:
        """Whether modes can be found: for rules whose derivative is known, and rows that are not too long."""
        return self._linear and self._size <= 1024

    def rows(self, params: Array) -> Array:
        """Copy parameters into rows, (n, m)."""
        return (
            np.array(params.T)
            if self.gradients is not None
            else np.reshape(params, (1, -1)).copy()
        )

    def params(self, rows: Array) -> Array:
        """Parameters from rows."""
        return (
            np.ascontiguousarray(rows.T)
            if self.gradients is not None
            else rows.reshape(self.shape)
        )

    def moves(self, rows: Array, which: Index) -> Array:
        """Moves in one step of rows, (r, m), that belong to the blocks ``which``, (r,)."""
        if self.gradients is None:
            return self.descent.moves(rows.reshape(-1, *self.shape)).reshape(rows.shape)
        return np.ascontiguousarray(
            self.descent.change(rows.T, self.gradients(rows.T, which)).T
        )

    @cached_property
    def has_memory(self) -> bool:
        """Whether rows hold a memory behind the parameters."""
        return isinstance(self.descent.risk, StateRisk)

    def memory_newton(self, weights: Array) -> Callable[[Array, Index], Array]:
        """Return Newton's changes, see `Modes.newton`, if the Hessian is taken to be zero.

        A memory forgets within a stride, so that fixed-point iterates would not find
        it. How it forgets is the same for all modes and needs no Hessian.
        """
        jacobian = self._jacobian(np.zeros(()))
        n, s, _ = weights.shape
        k = len(jacobian)
        coupled = weights[:, :, None, :, None] * jacobian[:, None, :]
        inverse = np.linalg.inv(np.eye(s * k) - coupled.reshape(n, s * k, s * k))

        def change(residual: Array, active: Index) -> Array:
            stacked = residual.reshape(len(active), s * k, -1)
            return np.asarray((inverse[active] @ stacked).reshape(residual.shape))

        return change

    def own(self, rows: Array) -> Array:
        """The parameters in rows, which may hold a memory behind them: (n, m) of (n, k m)."""
        return rows[..., : self._size]

    def modes(self, rows: Array, x: Array) -> Modes | None:
        """Find the modes at rows, (n, k m), and times ln(1 + t), (n,); None if a product is not finite."""
        risk = self._inner
        own = self.own(rows)
        params = self._own_params(own)
        unit = np.zeros_like(own)
        self.descent.evaluations += self.price
        products = []
        for j in counted(range(self._size), "columns of the Hessian"):
            unit[:] = 0.0
            unit[:, j] = 1.0  # of every block at once
            products.append(
                self._own_rows(risk.hessian_product(params, self._own_params(unit)))
            )
        root = self._own_rows(
            np.sqrt(
                np.broadcast_to(np.asarray(risk.metric, dtype=float), self._inner_shape)
            )
        )
        hessian = np.stack(products, axis=1) / (root[:, :, None] * root[:, None])
        if not np.isfinite(hessian).all():
            return None
        values, vectors = np.linalg.eigh(0.5 * (hessian + hessian.swapaxes(1, 2)))
        return Modes(x.copy(), vectors, self.descent.eta * values, root, self._jacobian)

    def _own_rows(self, params: Array) -> Array:
        return (
            np.array(params.T)
            if self.gradients is not None
            else np.reshape(params, (1, -1)).copy()
        )

    def _own_params(self, rows: Array) -> Array:
        if self.gradients is not None:
            return np.ascontiguousarray(rows.T)
        return rows.reshape(self._inner_shape)

    def _jacobian(self, rates: Array) -> Array:
        """Derivatives of a step of rows, in which the memory is scaled."""
        jacobian: Any = self.descent.rule.jacobian(rates, self.descent.eta)
        risk = self.descent.risk
        if isinstance(risk, StateRisk):
            scales = np.array([1.0, risk.scale])
            jacobian = jacobian * scales[:, None] / scales
        return np.asarray(jacobian)


class Modes(NamedTuple):
    """Modes of n blocks: eigenvectors and eigenvalues of M^{-1/2} H M^{-1/2}.

    A row holds k numbers for each mode: the parameter, and the memory of a rule that
    has one. A step mixes the k numbers of a mode, and no modes.
    """

    x: Array  # times ln(1 + t), (n,)
    vectors: Array  # one in each column, (n, m, m)
    rates: Array  # η times the eigenvalues, (n, m)
    root: Array  # of M, (n, m)
    # from rates, (...), to derivatives of a step, (..., k, k)
    jacobian: Callable[[Array], Array]

    def jacobians(self, places: Array, some: Index, resting: float = 10.0) -> Array:
        """Derivatives of a step for each mode, at times x, (n, s): (n, m, s, k, k).

        A mode that decays more than ``resting`` times while t grows by a factor e is at
        rest, and its rate is constant. The rates of the others fall like 1/t, as in a
        tail.
        """
        rates = self.rates[some, :, None]
        x = self.x[some, None]
        falls = np.abs(rates) * np.exp(x)[:, :, None] < resting
        return self.jacobian(rates * np.where(falls, np.exp(x - places)[:, None], 1.0))

    def newton(
        self, weights: Array, places: Array, which: Index
    ) -> Callable[[Array, Index], Array]:
        """Return what maps residuals of strides, (a, s, k m), to Newton's changes of the values at their nodes.

        The equations of a stride are Y = y + W h(Y) with the ``weights`` W, (n, s, s),
        and nodes at ``places``.
        """
        jacobians = self.jacobians(places, which)
        n, m, s, k, _ = jacobians.shape
        # entry (a, i), (b, j) is W_ab J_b,ij for nodes a, b and numbers i, j of a mode
        with np.errstate(invalid="ignore"):
            coupled = (
                weights[:, None, :, None, :, None]
                * jacobians.transpose(0, 1, 3, 2, 4)[:, :, None]
            )
            equations = np.eye(s * k) - coupled.reshape(n, m, s * k, s * k)
        equations[~np.isfinite(equations).all(axis=(1, 2, 3))] = np.eye(s * k)
        inverse = inverse_or_nan(equations)

        def change(residual: Array, active: Index) -> Array:
            components = self.into(residual, which[active])  # (a, s, k, m)
            stacked = components.transpose(0, 3, 1, 2).reshape(len(active), m, s * k, 1)
            solved = (inverse[active] @ stacked).reshape(len(active), m, s, k)
            return self.out_of(solved.transpose(0, 2, 3, 1), which[active])

        return change

    def accumulated(self, moves: Array, x: Array, steps: Array, which: Index) -> Array:
        """What changes of moves, (n, k m), make of rows in some steps, (n,), that begin at times x: (n, k m)."""
        stable = self._replace(rates=np.abs(self.rates))
        jacobians = stable.jacobians(x[:, None], which)[:, :, 0]
        components = self.into(moves[:, None], which)[:, 0].swapaxes(1, 2)  # (n, m, k)
        # in many steps a resting mode makes -J^-1 of a constant change, and in few
        # steps their number
        fading = np.eye(jacobians.shape[-1]) / steps[:, None, None, None] - jacobians
        settled: Any = np.linalg.solve(fading, components[..., None])[..., 0]
        return self.out_of(settled.swapaxes(1, 2)[:, None], which)[:, 0]

    def into(self, rows: Array, some: Index) -> Array:
        """Components of rows, (n, s, k m): (n, s, k, m)."""
        m = self.root.shape[1]
        parted = rows.reshape(*rows.shape[:2], -1, m)
        return np.asarray(
            (parted * self.root[some, None, None]) @ self.vectors[some, None]
        )

    def out_of(self, components: Array, some: Index) -> Array:
        """Rows with these components."""
        vectors = self.vectors[some, None].swapaxes(2, 3)
        rows = (components @ vectors) / self.root[some, None, None]
        return np.asarray(rows.reshape(*rows.shape[:2], -1))
