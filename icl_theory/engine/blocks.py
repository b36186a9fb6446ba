"""Parameters as independent rows, and the modes of each row.

`Blocks` splits the parameters of a run into rows that do not affect each other, and
computes their moves in a step. `Modes` are the eigenvectors of the Hessian of each row
and their decay rates. With them Newton's method solves the equations of a stride mode
by mode.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from icl_theory._validate import Array
from icl_theory.engine.capabilities import column_gradients_of
from icl_theory.engine.collocation import Index, Precondition, inverse_or_nan
from icl_theory.engine.progress import counted
from icl_theory.engine.risk import Risk
from icl_theory.engine.steps import UpdateMap
from icl_theory.engine.whole_state import StateRisk


class Blocks:
    """Parameters as n independent rows of m numbers.

    There is a row for each column of the parameters if the columns of the risk are
    independent, and otherwise one row for all parameters. If the rule has a memory, it
    follows the parameters in each row.

    Parameters
    ----------
    update_map : UpdateMap
        One step of training.
    eigenvector_cost : int
        How many gradients for each column of the Hessian are as expensive as the
        eigenvectors of a block, if gradients of single columns are cheap.

    Attributes
    ----------
    column_gradients : callable or None
        Gradients of single columns if these are independent.
    modes_cost : int
        How many gradients are as expensive as `modes`: one or two for each column of
        the Hessian, and the eigenvectors.
    """

    def __init__(self, update_map: UpdateMap, eigenvector_cost: int = 3) -> None:
        self.update_map = update_map
        risk = update_map.risk
        rule = update_map.rule
        # Whether a step is known to be linear in each mode. That of normalised descent
        # is not.
        self._has_jacobian = rule.jacobian(np.zeros(1), update_map.eta) is not None
        self.column_gradients = None
        if self._has_jacobian and np.ndim(risk.metric) == 0:
            self.column_gradients = column_gradients_of(risk)
        self._shape = np.shape(risk.initial)
        # The risk of the parameters alone, if `risk` is one of the whole state.
        self._parameter_risk = risk
        if isinstance(risk, StateRisk):
            self._parameter_risk = risk.risk
        self._parameter_shape = np.shape(self._parameter_risk.initial)
        # The number of modes of a block.
        self._size = int(np.size(self._parameter_risk.initial))
        if self.column_gradients is not None:
            self._size = self._parameter_shape[0]
        # A product with the Hessian by differences takes two gradients.
        product = type(self._parameter_risk).hessian_product
        cost_of_column = 2 if product is Risk.hessian_product else 1
        if self.column_gradients is not None:
            cost_of_column += eigenvector_cost
        self.modes_cost = self._size * cost_of_column

    @cached_property
    def largest_stable_rate(self) -> float:
        """Largest stable rate of a mode.

        The rate is η times an eigenvalue of the Hessian. Beyond the largest stable one
        the step multiplies a part of the mode by a number below -1.
        """
        if not self._has_jacobian:
            return 2.0
        # The determinant of 2 + J vanishes if I + J has the eigenvalue -1. It is linear
        # in the rate, so two values give its zero.
        jacobians = self._jacobian(np.array([0.0, 1.0]))
        identity = np.eye(jacobians.shape[-1])
        at_zero, at_one = np.linalg.det(2.0 * identity + jacobians)
        return float(at_zero / (at_zero - at_one))

    @property
    def can_find_modes(self) -> bool:
        """Whether the derivative of a step is known, and rows are not too long."""
        return self._has_jacobian and self._size <= 1024

    @cached_property
    def has_memory(self) -> bool:
        """Whether each row holds a memory behind the parameters."""
        return isinstance(self.update_map.risk, StateRisk)

    def rows(self, params: Array) -> Array:
        """Copy parameters into rows, (n, m)."""
        if self.column_gradients is not None:
            return np.array(params.T)
        return np.reshape(params, (1, -1)).copy()

    def params(self, rows: Array) -> Array:
        """Parameters from rows, (n, m)."""
        return self._reshaped(rows, self._shape)

    def _reshaped(self, rows: Array, shape: tuple[int, ...]) -> Array:
        if self.column_gradients is not None:
            return np.ascontiguousarray(rows.T)
        return rows.reshape(shape)

    def moves(self, rows: Array, blocks: Index) -> Array:
        """Moves in one step of rows, (r, m), that belong to some blocks, (r,)."""
        if self.column_gradients is None:
            states = rows.reshape(-1, *self._shape)
            return self.update_map.moves(states).reshape(rows.shape)
        columns = rows.T
        gradients = self.column_gradients(columns, blocks)
        return np.ascontiguousarray(self.update_map.change(columns, gradients).T)

    def parameter_part(self, rows: Array) -> Array:
        """A view of the parameters in rows, (n, m) of (n, k m)."""
        return rows[..., : self._size]

    def memory_newton(self, weights: Array) -> Precondition:
        """Newton's changes, as of `Modes.newton`, for a Hessian that is zero.

        A memory forgets within a stride, so fixed-point iteration would not find it.
        How it forgets is the same for all modes and needs no Hessian.
        """
        jacobian = self._jacobian(np.zeros(()))
        n, s, _ = weights.shape
        k = len(jacobian)
        # The entry (a, i), (b, j) is W_ab J_ij for nodes a, b and numbers i, j of a
        # mode.
        coupled = weights[:, :, None, :, None] * jacobian[:, None, :]
        inverse = np.linalg.inv(np.eye(s * k) - coupled.reshape(n, s * k, s * k))

        def changes(residual: Array, active: Index) -> Array:
            stacked = residual.reshape(len(active), s * k, -1)
            return np.asarray((inverse[active] @ stacked).reshape(residual.shape))

        return changes

    def modes(self, rows: Array, x: Array) -> Modes | None:
        """Compute the modes at rows, (n, k m), and times x = ln(1 + t), (n,).

        Return None if the Hessian is not finite.
        """
        hessian = self._hessian(self.parameter_part(rows))
        metric = np.asarray(self._parameter_risk.metric, dtype=float)
        metric_root = self.rows(np.sqrt(np.broadcast_to(metric, self._parameter_shape)))
        hessian = hessian / (metric_root[:, :, None] * metric_root[:, None])
        if not np.isfinite(hessian).all():
            return None
        symmetric = 0.5 * (hessian + hessian.swapaxes(1, 2))
        eigenvalues, vectors = np.linalg.eigh(symmetric)
        rates = self.update_map.eta * eigenvalues
        return Modes(x.copy(), vectors, rates, metric_root, self._jacobian)

    def _hessian(self, rows: Array) -> Array:
        """The Hessian of each block, (n, m, m), column by column."""
        self.update_map.evaluations += self.modes_cost
        params = self._reshaped(rows, self._parameter_shape)
        columns = []
        for j in counted(range(self._size), "columns of the Hessian"):
            # One product serves a column of every block, because blocks are
            # independent.
            unit = np.zeros_like(rows)
            unit[:, j] = 1.0
            direction = self._reshaped(unit, self._parameter_shape)
            product = self._parameter_risk.hessian_product(params, direction)
            columns.append(self.rows(product))
        return np.stack(columns, axis=1)

    def _jacobian(self, rates: Array) -> Array:
        """Derivatives of a step of rows, in which the memory is scaled."""
        jacobian = self.update_map.rule.jacobian(rates, self.update_map.eta)
        assert jacobian is not None
        risk = self.update_map.risk
        if isinstance(risk, StateRisk):
            scales = np.array([1.0, risk.scale])
            jacobian = jacobian * scales[:, None] / scales
        return np.asarray(jacobian)


class Modes:
    r"""Modes of n blocks: eigenvectors and eigenvalues of :math:`M^{-1/2}HM^{-1/2}`.

    A row holds k numbers for each of the m modes: the component of the parameters, and
    that of the memory if the rule has one. A step mixes the k numbers of a mode, but no
    two modes.

    Parameters
    ----------
    x : ndarray of shape (n,)
        The times ln(1 + t) at which the modes were computed.
    vectors : ndarray of shape (n, m, m)
        The eigenvectors, one in each column.
    rates : ndarray of shape (n, m)
        η times the eigenvalues.
    metric_root : ndarray of shape (n, m)
        The square root of the diagonal metric M.
    jacobian : callable
        From rates, (...), to the derivatives of a step, (..., k, k).
    """

    def __init__(
        self,
        x: Array,
        vectors: Array,
        rates: Array,
        metric_root: Array,
        jacobian: Callable[[Array], Array],
    ) -> None:
        self.x = x
        self.vectors = vectors
        self.rates = rates
        self.metric_root = metric_root
        self._jacobian = jacobian

    def jacobians(
        self, rates: Array, places: Array, blocks: Index, resting: float = 10.0
    ) -> Array:
        """Derivatives of a step for each mode, (k, m, s, k, k), at times x, (k, s).

        A mode that decays more than ``resting`` times while t grows by a factor e is at
        rest, and its rate is constant. The rates of the other modes are taken to fall
        like 1/t, as in a power-law tail.
        """
        rates = rates[blocks, :, None]
        x = self.x[blocks, None]
        is_moving = np.abs(rates) * np.exp(x)[:, :, None] < resting
        decay = np.where(is_moving, np.exp(x - places)[:, None], 1.0)
        return self._jacobian(rates * decay)

    def newton(self, weights: Array, places: Array, blocks: Index) -> Precondition:
        """Return the function from residuals of strides to Newton's changes.

        The equations of a stride are Y = θ + W h(Y). They have the Jacobian I - W J, in
        which J is the derivative of h, a matrix for each mode and node.

        Parameters
        ----------
        weights : ndarray of shape (n, s, s)
            The weights W.
        places : ndarray of shape (n, s)
            The nodes in x.
        blocks : ndarray of shape (n,)
            The block of each stride.
        """
        jacobians = self.jacobians(self.rates, places, blocks)
        n, m, s, k, _ = jacobians.shape
        # The entry (a, i), (b, j) is W_ab J_b,ij for nodes a, b and numbers i, j of a
        # mode.
        with np.errstate(invalid="ignore"):
            coupled = (
                weights[:, None, :, None, :, None]
                * jacobians.transpose(0, 1, 3, 2, 4)[:, :, None]
            )
            equations = np.eye(s * k) - coupled.reshape(n, m, s * k, s * k)
        # The strides of such blocks have no finite weights and are not iterated.
        is_finite = np.isfinite(equations).all(axis=(1, 2, 3))
        equations[~is_finite] = np.eye(s * k)
        inverse = inverse_or_nan(equations)

        def changes(residual: Array, active: Index) -> Array:
            components = self.to_components(residual, blocks[active])
            by_mode = components.transpose(0, 3, 1, 2)
            stacked = by_mode.reshape(len(active), m, s * k, 1)
            solved = (inverse[active] @ stacked).reshape(len(active), m, s, k)
            return self.from_components(solved.transpose(0, 2, 3, 1), blocks[active])

        return changes

    def accumulated_changes(
        self, change: Array, x: Array, steps: Array, blocks: Index
    ) -> Array:
        """Change of rows that a constant change of their moves causes in some steps.

        Parameters
        ----------
        change : ndarray of shape (n, k m)
            The change of the moves.
        x, steps : ndarray of shape (n,)
            The times ln(1 + t) at which the steps begin, and their number.
        blocks : ndarray of shape (n,)
            The block of each row.

        Returns
        -------
        ndarray of shape (n, k m)
        """
        # A growing mode is treated like one that decays at the same rate.
        jacobians = self.jacobians(np.abs(self.rates), x[:, None], blocks)[:, :, 0]
        components = self.to_components(change[:, None], blocks)[:, 0].swapaxes(1, 2)
        # A resting mode turns a constant change c into -J^-1 c after many steps, and
        # any mode turns it into their number times c after few.
        identity = np.eye(jacobians.shape[-1])
        damping = identity / steps[:, None, None, None] - jacobians
        settled = np.asarray(np.linalg.solve(damping, components[..., None]))[..., 0]
        return self.from_components(settled.swapaxes(1, 2)[:, None], blocks)[:, 0]

    def to_components(self, rows: Array, blocks: Index) -> Array:
        """Components of rows, (n, s, k m), in the modes: (n, s, k, m)."""
        m = self.metric_root.shape[1]
        parts = rows.reshape(*rows.shape[:2], -1, m)
        scaled = parts * self.metric_root[blocks, None, None]
        return np.asarray(scaled @ self.vectors[blocks, None])

    def from_components(self, components: Array, blocks: Index) -> Array:
        """Rows, (n, s, k m), with these components, (n, s, k, m)."""
        vectors = self.vectors[blocks, None].swapaxes(2, 3)
        rows = (components @ vectors) / self.metric_root[blocks, None, None]
        return np.asarray(rows.reshape(*rows.shape[:2], -1))
