"""Independent blocks of parameters, and the modes of each block.

A block is a part of the parameters that does not affect the other parts. `Blocks`
splits the parameters of a run into n blocks, the rows of an array, and computes the
moves of the blocks: their changes in one step. A mode of a block is an eigenvector of
its Hessian. The rate of the mode is the learning rate η times the eigenvalue. `Modes`
holds the eigenvectors and the rates.

A stride is an interval in x = ln(1 + t), with the step number t, on which a polynomial
approximates the states of a block. The polynomial satisfies the equations
Y = θ + W h(Y), with the state θ at the beginning of the stride, the states Y at s
points (the nodes), the moves h(Y) and a matrix W (`icl_theory.engine.collocation`). In
the basis of the eigenvectors, Newton's method solves these equations one mode at a
time.
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

# The largest number of parameters in a block whose modes are computed: the eigenvectors
# of a larger Hessian would take too long. For this size they take about 10^10
# operations, a few seconds.
MOST_MODES = 1024
# A mode that decays by more than this many e-folds while t grows by a factor e is taken
# to be at rest: only e^-10 = 5e-5 of it is left. Whether a mode is at rest decides only
# how its rate is extrapolated to later times. The rates are used to solve equations by
# iteration and to estimate errors, so another number would change the count of
# iterations and those estimates, but not the solution.
RESTING_E_FOLDS = 10.0


class Blocks:
    """Parameters as n independent blocks, the rows of an array of shape (n, k m).

    If the risk has independent columns, and the rule and the metric allow it, each
    column of m parameters is a block. Otherwise all parameters are one block. If the
    rule has a memory, a row holds the m parameters and, behind them, the m numbers of
    the memory, so that k = 2. Without a memory k = 1.

    Parameters
    ----------
    update_map : UpdateMap
        One step of training.
    eigenvector_cost : int
        The cost of the eigenvectors, in gradients for each column of the Hessian. This
        cost counts only if the columns of parameters are blocks: gradients are then so
        cheap that the eigenvectors take a large part of the time. The cost affects only
        the choice of the steps at which modes are computed, so a rough value is enough.

    Attributes
    ----------
    column_gradients : callable or None
        Returns gradients of single columns; None if the columns are not blocks.
    modes_cost : int
        The cost of `modes` in gradients. For each column of the Hessian it is one, or
        two if a product with the Hessian is a difference of two gradients, plus
        ``eigenvector_cost`` if the columns of parameters are blocks.
    """

    def __init__(self, update_map: UpdateMap, eigenvector_cost: int = 3) -> None:
        self.update_map = update_map
        risk = update_map.risk
        rule = update_map.rule
        # Whether the derivative of the move is known as a matrix for each mode. For
        # normalised descent, for example, it is not: `Rule.jacobian` returns None. It
        # does so at all rates or at none, so the single rate 0 is enough.
        self._has_jacobian = rule.jacobian(np.zeros(1), update_map.eta) is not None
        # The columns of a risk with independent columns become blocks on two more
        # conditions. First, the metric is a single number: an array for all columns
        # would not fit a few of them. Second, the step of a column does not depend on
        # other columns. Every rule with a known derivative meets the second condition.
        # Normalised descent does not, because it divides by the norm of the whole
        # gradient.
        self.column_gradients = None
        if self._has_jacobian and np.ndim(risk.metric) == 0:
            self.column_gradients = column_gradients_of(risk)
        # The shape of the parameters, with the memory if the rule has one.
        self._state_shape = np.shape(risk.initial)
        # The risk as a function of the parameters alone, without the rule's memory.
        self._parameter_risk = risk
        if isinstance(risk, StateRisk):
            self._parameter_risk = risk.risk
        self._parameter_shape = np.shape(self._parameter_risk.initial)
        # The number m of parameters of a block, and of its modes. If the columns are
        # blocks, the parameters are a matrix with m rows.
        self._size = int(np.size(self._parameter_risk.initial))
        if self.column_gradients is not None:
            self._size = self._parameter_shape[0]
        # By default a product with the Hessian is a difference of two gradients.
        hessian_product = type(self._parameter_risk).hessian_product
        cost_of_column = 2 if hessian_product is Risk.hessian_product else 1
        if self.column_gradients is not None:
            cost_of_column += eigenvector_cost
        self.modes_cost = self._size * cost_of_column

    @cached_property
    def largest_stable_rate(self) -> float:
        """Largest stable rate of a mode.

        The rate is η times an eigenvalue of the Hessian. At a larger rate, each step
        multiplies a part of the mode by a number below -1.
        """
        if not self._has_jacobian:
            # Without a known derivative the limit of gradient descent is used, which
            # multiplies a mode by 1 minus its rate.
            return 2.0
        # A step multiplies the numbers of a mode by the matrix I + J, with the
        # derivative J of the move. If the matrix has the eigenvalue -1, the determinant
        # of 2 I + J is zero. This determinant is linear in the rate, because only the
        # first column of J, the derivative with respect to the parameter, contains the
        # rate. So the values of the determinant at the rates 0 and 1 give the rate at
        # which it is zero.
        jacobians = self._jacobian(np.array([0.0, 1.0]))
        identity = np.eye(jacobians.shape[-1])
        at_zero, at_one = np.linalg.det(2.0 * identity + jacobians)
        return float(at_zero / (at_zero - at_one))

    @property
    def can_find_modes(self) -> bool:
        """Whether the derivative of the move is known, and no block is too large."""
        return self._has_jacobian and self._size <= MOST_MODES

    @cached_property
    def has_memory(self) -> bool:
        """Whether each row holds the rule's memory behind the parameters."""
        return isinstance(self.update_map.risk, StateRisk)

    def rows(self, params: Array) -> Array:
        """Return a copy of the parameters with one row for each block, (n, k m).

        Parameters without their memory give rows of m numbers.
        """
        if self.column_gradients is not None:
            return np.array(params.T)
        return np.reshape(params, (1, -1)).copy()

    def params(self, rows: Array) -> Array:
        """Return the parameters, in their own shape, from the rows of all blocks.

        If the rule has a memory, the result contains it, as the rows do.
        """
        return self._reshaped(rows, self._state_shape)

    def _reshaped(self, rows: Array, shape: tuple[int, ...]) -> Array:
        """Return the rows of all blocks as an array of this shape."""
        if self.column_gradients is not None:
            # Each row is a column of the result, which has the shape already.
            return np.ascontiguousarray(rows.T)
        return rows.reshape(shape)

    def moves(self, rows: Array, blocks: Index) -> Array:
        """Moves of r states, (r, k m): their changes in one step.

        Each row of ``rows``, (r, k m), is a state of one block, and ``blocks``, (r,),
        has the indices of these blocks.
        """
        if self.column_gradients is None:
            # The only block holds all parameters. `UpdateMap.moves` counts its
            # gradients.
            states = rows.reshape(-1, *self._state_shape)
            return self.update_map.moves(states).reshape(rows.shape)
        # These gradients are not counted here: each is only a part of a whole gradient.
        # The caller counts the parts.
        columns = rows.T
        gradients = self.column_gradients(columns, blocks)
        return np.ascontiguousarray(self.update_map.change(columns, gradients).T)

    def parameter_part(self, rows: Array) -> Array:
        """A view, (n, m), of the parameters in rows of the whole state, (n, k m)."""
        return rows[..., : self._size]

    def memory_newton(self, weights: Array) -> Precondition:
        """Return Newton's method for the memory alone, as if the Hessian were zero.

        This method takes the place of `Modes.newton` until the modes have been
        computed. Within a stride the memory decays too fast for fixed-point iteration.
        It decays at the same rate in all modes, so the Hessian is not needed.

        Parameters
        ----------
        weights : ndarray, (n, s, s)
            The collocation weights W of n strides with s nodes each.

        Returns
        -------
        callable
            Takes the residuals of some strides, (b, s, k m), and their positions among
            the n, (b,), and returns the corrections of the states, (b, s, k m).
        """
        # J, (k, k), is the derivative of the move for one mode of curvature zero: for
        # its parameter and its memory.
        jacobian = self._jacobian(np.zeros(()))
        n, s, _ = weights.shape
        k = len(jacobian)
        # The equations of a stride have the Jacobian I - W ⊗ J. The entry of W ⊗ J in
        # row (a, i) and column (b, j) is W_ab J_ij, for nodes a and b and for numbers i
        # and j of the mode. The axes of the product are (n, s, k, s, k).
        kronecker = weights[:, :, None, :, None] * jacobian[:, None, :]
        inverse = np.linalg.inv(np.eye(s * k) - kronecker.reshape(n, s * k, s * k))

        def corrections(residual: Array, active: Index) -> Array:
            # With a Hessian of zero, each of the m parameters is a mode by itself. So a
            # residual, (s, k m), becomes m columns of s k numbers, one for each mode.
            by_mode = residual.reshape(len(active), s * k, -1)
            return np.asarray((inverse[active] @ by_mode).reshape(residual.shape))

        return corrections

    def modes(self, rows: Array, x: Array) -> Modes | None:
        """Compute the modes of all blocks, each at one state of the block.

        Return None if the Hessian is not finite.

        Parameters
        ----------
        rows : ndarray of shape (n, k m)
            The states.
        x : ndarray of shape (n,)
            The times ln(1 + t) at which the blocks have these states.
        """
        hessian = self._hessian(self.parameter_part(rows))
        metric = np.asarray(self._parameter_risk.metric, dtype=float)
        # The square roots of the diagonal metric, (n, m). A metric that is a single
        # number stands for all entries.
        metric_root = self.rows(np.sqrt(np.broadcast_to(metric, self._parameter_shape)))
        # With the metric M and the Hessian H this is M^(-1/2) H M^(-1/2).
        hessian = hessian / (metric_root[:, :, None] * metric_root[:, None])
        if not np.isfinite(hessian).all():
            return None
        # Rounding and differences of gradients leave the Hessian not quite symmetric.
        symmetric = 0.5 * (hessian + hessian.swapaxes(1, 2))
        eigenvalues, vectors = np.linalg.eigh(symmetric)
        rates = self.update_map.eta * eigenvalues
        return Modes(
            x=x.copy(),
            vectors=vectors,
            rates=rates,
            metric_root=metric_root,
            jacobian=self._jacobian,
        )

    def _hessian(self, rows: Array) -> Array:
        """The Hessian of each block, (n, m, m), column by column.

        ``rows``, (n, m), are the parameters of the blocks, without a memory.

        The cost of `modes`, with the eigenvectors that `modes` computes from the
        Hessian, is added to the count of evaluations of the update map.
        """
        self.update_map.evaluations += self.modes_cost
        params = self._reshaped(rows, self._parameter_shape)
        columns = []
        # `counted` shows the user how many columns are done.
        for j in counted(range(self._size), "columns of the Hessian"):
            # One product yields column j of the Hessian of every block, because the
            # blocks do not affect each other.
            unit = np.zeros_like(rows)
            unit[:, j] = 1.0
            direction = self._reshaped(unit, self._parameter_shape)
            product = self._parameter_risk.hessian_product(params, direction)
            columns.append(self.rows(product))
        # Column j, (n, m), becomes row j of each Hessian, which is symmetric.
        return np.stack(columns, axis=1)

    def _jacobian(self, rates: Array) -> Array:
        """Derivatives of the move for modes with these rates, (..., k, k).

        Moves and states have the coordinates of the rows, which hold the memory times
        `StateRisk.scale`.
        """
        jacobian = self.update_map.rule.jacobian(rates, self.update_map.eta)
        # Callers have checked that the rule knows its derivative.
        assert jacobian is not None
        risk = self.update_map.risk
        if isinstance(risk, StateRisk):
            # The rule gives the derivative J for the unscaled memory. With the scales
            # D = diag(1, scale) of parameter and memory the derivative is D J D^-1.
            scales = np.array([1.0, risk.scale])
            jacobian = jacobian * scales[:, None] / scales
        return np.asarray(jacobian)


class Modes:
    r"""Modes of n blocks: eigenvectors and eigenvalues of :math:`M^{-1/2}HM^{-1/2}`.

    H is the Hessian and M the metric. A block has m modes, and each mode has k numbers:
    the component of the parameters along it and, if the rule has a memory, the
    component of the memory. A step mixes the k numbers of a mode, but does not mix two
    modes.

    Parameters
    ----------
    x : ndarray of shape (n,)
        The times ln(1 + t) at which the modes were computed.
    vectors : ndarray of shape (n, m, m)
        The eigenvectors, one in each column.
    rates : ndarray of shape (n, m)
        The rates of the modes: η times the eigenvalues.
    metric_root : ndarray of shape (n, m)
        The square root of the diagonal metric M.
    jacobian : callable
        Takes rates, (...), and returns the derivative of the move for the k numbers of
        a mode with each rate, (..., k, k).
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

    def jacobians(self, known_rates: Array, places: Array, blocks: Index) -> Array:
        """Derivatives of the move for each mode at s times of each of b blocks.

        The rates are known only at the times ``self.x``. The rate of a mode at rest
        (see RESTING_E_FOLDS) is assumed to be constant. The rates of all other modes
        are assumed to fall like 1/(1 + t), as in a power-law tail.

        Parameters
        ----------
        known_rates : ndarray of shape (n, m)
            The rates of the modes of all blocks at the times ``self.x``.
        places : ndarray of shape (b, s)
            The times ln(1 + t).
        blocks : ndarray of shape (b,)
            The index of each block.

        Returns
        -------
        ndarray of shape (b, m, s, k, k)
        """
        # The shapes are (b, m, 1) and (b, 1).
        rates = known_rates[blocks, :, None]
        x = self.x[blocks, None]
        # While t grows by a factor e, about e^x = 1 + t steps are taken, in each of
        # which a mode decays by about its rate in e-folds.
        is_moving = np.abs(rates) * np.exp(x)[:, :, None] < RESTING_E_FOLDS
        # From x to a place, a rate proportional to 1/(1 + t) = e^-x is multiplied by
        # e^(x - place).
        decay = np.where(is_moving, np.exp(x - places)[:, None], 1.0)
        return self._jacobian(rates * decay)

    def newton(self, weights: Array, places: Array, blocks: Index) -> Precondition:
        """Return Newton's method for the equations of n strides.

        The equations of a stride are Y = θ + W h(Y), with the state θ at its beginning,
        the states Y at its nodes and the moves h(Y). Their Jacobian is I - W J, with
        the derivative J of the move, a (k, k) matrix for each mode and node.

        Parameters
        ----------
        weights : ndarray of shape (n, s, s)
            The weights W.
        places : ndarray of shape (n, s)
            The values of x at the nodes.
        blocks : ndarray of shape (n,)
            The index of the block of each stride.

        Returns
        -------
        callable
            Takes the residuals of some strides and their positions among the n, and
            returns the changes of Y.
        """
        jacobians = self.jacobians(self.rates, places, blocks)
        n, m, s, k, _ = jacobians.shape
        # The axes (n, m, s, k, k) become (n, m, 1, k, s, k).
        node_jacobians = jacobians.transpose(0, 1, 3, 2, 4)[:, :, None]
        # W J has the entry W_ab J_b,ij in row (a, i) and column (b, j), for nodes a and
        # b and for the numbers i and j of a mode. Weights of a stride that is too short
        # are NaN.
        with np.errstate(invalid="ignore"):
            products = weights[:, None, :, None, :, None] * node_jacobians
            equations = np.eye(s * k) - products.reshape(n, m, s * k, s * k)
        # Strides without finite weights are not iterated, so any matrix will do.
        is_finite = np.isfinite(equations).all(axis=(1, 2, 3))
        equations[~is_finite] = np.eye(s * k)
        inverse = inverse_or_nan(equations)

        def corrections(residual: Array, active: Index) -> Array:
            # The axes (b, s, k, m) of the components become (b, m, s, k), so that the
            # s k numbers of a mode form a vector.
            components = self.to_components(residual, blocks[active])
            by_mode = components.transpose(0, 3, 1, 2)
            right_sides = by_mode.reshape(len(active), m, s * k, 1)
            solved = (inverse[active] @ right_sides).reshape(len(active), m, s, k)
            return self.from_components(solved.transpose(0, 2, 3, 1), blocks[active])

        return corrections

    def accumulated_changes(
        self, change: Array, x: Array, steps: Array, blocks: Index
    ) -> Array:
        """Changes of states in many steps, caused by constant changes of their moves.

        Parameters
        ----------
        change : ndarray of shape (n, k m)
            The change of the move of each state.
        x, steps : ndarray of shape (n,)
            The time ln(1 + t) at which the steps begin, and the number of steps.
        blocks : ndarray of shape (n,)
            The index of the block of each state.

        Returns
        -------
        ndarray of shape (n, k m)
        """
        # A growing mode is treated like one that decays at the same rate: below, the
        # matrix I/N - J could be singular for a negative rate.
        rates = np.abs(self.rates)
        # There is one time for each state, so the axis of times is dropped. The shapes
        # are (n, m, k, k) and (n, m, k).
        jacobians = self.jacobians(rates, x[:, None], blocks)[:, :, 0]
        components = self.to_components(change[:, None], blocks)[:, 0].swapaxes(1, 2)
        # With the derivative J of the move, a constant change c of the moves changes
        # the state by N c after N steps if N is small, and by -J^-1 c after many steps
        # of a mode at rest. The formula (I/N - J)^-1 c has both limits. N is `steps`.
        identity = np.eye(jacobians.shape[-1])
        matrices = identity / steps[:, None, None, None] - jacobians
        solved = np.asarray(np.linalg.solve(matrices, components[..., None]))[..., 0]
        # The components, (n, m, k), become (n, 1, k, m), with an axis for one time.
        return self.from_components(solved.swapaxes(1, 2)[:, None], blocks)[:, 0]

    def to_components(self, rows: Array, blocks: Index) -> Array:
        """Components along the modes, (n, s, k, m), of rows, (n, s, k m).

        Each of the n entries of ``blocks`` is the index of the block to which s rows
        belong. With the eigenvectors in the columns of V, the components of a vector θ
        are V^T M^(1/2) θ.
        """
        _block_count, m = self.metric_root.shape
        # Separate the parameters and the memory of each row: (n, s, k, m).
        numbers = rows.reshape(*rows.shape[:2], -1, m)
        # The shapes are (n, 1, 1, m) and (n, 1, m, m): the same for all s nodes.
        metric_root = self.metric_root[blocks, None, None]
        vectors = self.vectors[blocks, None]
        # With row vectors V^T M^(1/2) θ becomes (θ M^(1/2)) V.
        return np.asarray((numbers * metric_root) @ vectors)

    def from_components(self, components: Array, blocks: Index) -> Array:
        """Rows, (n, s, k m), from their components along the modes, (n, s, k, m).

        This is the inverse of `to_components`: a vector with the components c is
        M^(-1/2) V c, with the eigenvectors in the columns of V.
        """
        # The shapes are (n, 1, m, m) and (n, 1, 1, m): the same for all s nodes.
        transposed_vectors = self.vectors[blocks, None].swapaxes(2, 3)
        metric_root = self.metric_root[blocks, None, None]
        # With row vectors M^(-1/2) V c becomes (c V^T) M^(-1/2).
        numbers = (components @ transposed_vectors) / metric_root
        # Join the k parts of each row, the parameters and the memory.
        return np.asarray(numbers.reshape(*numbers.shape[:2], -1))
