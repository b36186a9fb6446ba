r"""Collocation of strides: Radau's scheme for a difference equation, or for its flow.

The iterates :math:`\theta(t+1) - \theta(t) = h(\theta(t))` are approximated on a stride
by a polynomial P in x = ln(1 + t). At Radau's nodes :math:`x_i` it solves

.. math::
    P(x_i + \delta_i) - P(x_i) = h(P(x_i)), \qquad
    \delta_i = \ln\frac{t_i + 2}{t_i + 1},

and for a flow :math:`dP/dx = e^x h(P)`. With :math:`Y_i = P(x_i)` both read :math:`Y =
\theta + W h(Y)`. `stride_weights` returns W and `collocate` solves the equations, for
many independent blocks of parameters at once, each with a time and a stride of its own.
The blocks are the first axis of all arrays. See docs/theory.md, "Skipping ahead".
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.polynomial.legendre import legder, legint, legval, legvander
from numpy.typing import NDArray

from icl_theory._validate import Array

Index = NDArray[np.intp]
Mask = NDArray[np.bool_]
# From rows, (r, m), and the blocks to which they belong, (r,), to their moves, (r, m).
Moves = Callable[[Array, Index], Array]
# From residuals, (k, s, m), and the positions of their blocks, (k,), to changes of the
# values at the nodes, (k, s, m).
Precondition = Callable[[Array, Index], Array]

# The error that the last iterate leaves may be larger than extrapolated, by this
# factor. In 1,774 strides the error was up to 240 times the extrapolated one, and in
# one of a hundred strides 20 to 95 times. It was never more than 1.6 times the
# residual.
EXTRAPOLATION_FACTOR = 30.0


class RadauScheme(NamedTuple):
    """Radau's scheme with s stages."""

    # In (0, 1]; the last is 1.
    nodes: Array
    # From the slopes at the nodes to the values there, (s, s).
    weights: Array
    # From the values at 0 and at the nodes to Legendre coefficients, (s + 1, s + 1).
    coefficients: Array
    # From the same values to the derivatives of orders 1 to s at the nodes, in units of
    # half of the stride, (s, s, s + 1).
    derivatives: Array


@cache
def radau(stages: int) -> RadauScheme:
    """Radau's scheme of order 2 s - 1 with s stages.

    Its nodes are the zeros of P_s - P_(s-1), which is (x - 1) times the polynomial of
    degree s - 1 that is orthogonal with the weight 1 - x. The zeros of the latter are
    the eigenvalues of the symmetric matrix of its recurrence; one step of Newton's
    method corrects their last digits.
    """
    j = np.arange(stages - 1.0)
    diagonal = -1.0 / ((2.0 * j + 1.0) * (2.0 * j + 3.0))
    off_diagonal = np.sqrt(j[1:] * (j[1:] + 1.0)) / (2.0 * j[1:] + 1.0)
    zeros = np.linalg.eigvalsh(np.diag(diagonal) + np.diag(off_diagonal, -1))
    series = np.append(np.zeros(stages - 1), [-1.0, 1.0])
    newton_step = legval(zeros, series) / legval(zeros, legder(series))
    nodes = np.append(zeros - newton_step, 1.0).astype(float)
    # Integrals of each Legendre polynomial from -1 to the nodes.
    integrals = legval(nodes, legint(np.eye(stages), lbnd=-1))
    weights = np.linalg.solve(legvander(nodes, stages - 1).T, integrals).T / 2.0
    coefficients = np.linalg.inv(legvander(np.append(-1.0, nodes), stages))
    derivatives = []
    for order in range(1, stages + 1):
        series_of_derivative = np.asarray(legder(coefficients, order))
        derivatives.append(legval(nodes, series_of_derivative))
    return RadauScheme(
        nodes=(nodes + 1.0) / 2.0,
        weights=np.asarray(weights, dtype=float),
        coefficients=coefficients,
        derivatives=np.array(derivatives, dtype=float).transpose(2, 0, 1),
    )


def step_weights(
    scheme: RadauScheme,
    places: Array,
    length: float | Array,
    longest_step: float = 20.0,
) -> Array:
    r"""Weights W of the moves at the nodes of strides of the map.

    W is the inverse of the matrix of the differences

    .. math::
        P(x_i + \delta_i) - P(x_i) = \sum_{k=1}^{s} P^{(k)}(x_i)\, \delta_i^k / k!

    as functions of the values at the nodes. The sum of derivatives loses no digits in
    long strides.

    Parameters
    ----------
    scheme : RadauScheme
        A scheme with s stages.
    places : ndarray of shape (..., s)
        The nodes in x.
    length : float or ndarray
        Lengths of the strides in x; they broadcast against ``places``.
    longest_step : float
        In strides far shorter than a step of the map all digits are lost. If a step is
        longer than this many halves of the stride, the weights are NaN.

    Returns
    -------
    ndarray of shape (..., s, s)
    """
    stages = len(scheme.nodes)
    # δ_i in units of half of the stride.
    steps = 2.0 * np.log1p(np.exp(-places)) / length
    is_lost = steps.max(axis=-1) > longest_step
    orders = np.arange(1.0, stages + 1.0)
    # δ^k / k! for all orders k.
    powers = (np.minimum(steps, longest_step)[..., None] / orders).cumprod(axis=-1)
    by_node = powers.reshape(-1, stages, stages).swapaxes(0, 1)
    differences = (by_node @ scheme.derivatives).swapaxes(0, 1)
    differences = differences.reshape(*places.shape, stages + 1)
    # The first column belongs to the value at the beginning, which is given.
    matrices = differences[..., 1:]
    return inverse_or_nan(np.where(is_lost[..., None, None], np.nan, matrices))


def inverse_or_nan(matrices: Array) -> Array:
    """Inverse of each matrix, (..., s, s), or NaN if the matrix is singular."""
    is_finite = np.isfinite(matrices).all(axis=(-2, -1), keepdims=True)
    invertible = np.where(is_finite, matrices, np.eye(matrices.shape[-1]))
    try:
        inverse = np.linalg.inv(invertible)
    except np.linalg.LinAlgError:
        # NumPy refuses the whole stack if one matrix is singular. For a matrix near a
        # singular one rounding decides whether it is.
        inverse = np.full(invertible.shape, np.nan)
        for index in np.ndindex(*invertible.shape[:-2]):
            with contextlib.suppress(np.linalg.LinAlgError):
                inverse[index] = np.linalg.inv(invertible[index])
    return np.where(is_finite, inverse, np.nan)


def legendre(x: Array, degree: int) -> Array:
    """Legendre polynomials up to a degree at x, (..., degree + 1)."""
    values = np.empty((*x.shape, degree + 1))
    values[..., 0] = 1.0
    values[..., 1] = x
    for j in range(1, degree):
        upper = (2 * j + 1) * x * values[..., j]
        values[..., j + 1] = (upper - j * values[..., j - 1]) / (j + 1)
    return values


@cache
def legendre_at_nodes(stages: int, degree: int) -> Array:
    """Legendre polynomials up to a degree at Radau's nodes, (s, degree + 1)."""
    values = legendre(2.0 * radau(stages).nodes - 1.0, degree)
    values.flags.writeable = False
    return values


def polynomial_values(
    coefficients: Array, places: Array, begin: Array, length: Array
) -> Array:
    """Values of the polynomials of n strides.

    Parameters
    ----------
    coefficients : ndarray of shape (n, s + 1, m)
        Legendre coefficients on each stride.
    places : ndarray of shape (n, q)
        Where to evaluate each polynomial, in x.
    begin, length : ndarray of shape (n,)
        Where each stride begins in x, and its length.

    Returns
    -------
    ndarray of shape (n, q, m)
    """
    scaled = 2.0 * (places - begin[:, None]) / length[:, None] - 1.0
    degree = coefficients.shape[1] - 1
    return np.asarray(legendre(scaled, degree) @ coefficients)


def stride_weights(stages: int, begin: Array, length: Array, flow: bool) -> Array:
    """Weights W of the moves at the nodes of n strides, (n, s, s)."""
    scheme = radau(stages)
    places = begin[:, None] + scheme.nodes * length[:, None]
    if flow:
        # The slope in x is e^x times the move.
        return np.asarray(
            length[:, None, None] * scheme.weights * np.exp(places)[:, None, :]
        )
    return step_weights(scheme, places, length[:, None])


class Solved(NamedTuple):
    """The polynomials of n strides.

    Attributes
    ----------
    coefficients : ndarray of shape (n, s + 1, m)
        Legendre coefficients on [-1, 1].
    solver_error : ndarray of shape (n,)
        Estimated error of the solution of the equations; infinite if they are not
        solved.
    iterations : ndarray of shape (n,)
        Number of iterations.
    """

    coefficients: Array
    solver_error: Array
    iterations: NDArray[np.int64]

    def select(self, mask: Mask) -> Solved:
        """Select strides."""
        return Solved(
            self.coefficients[mask], self.solver_error[mask], self.iterations[mask]
        )

    @property
    def end(self) -> Array:
        """States at the ends of the strides, (n, m)."""
        # All Legendre polynomials are 1 at 1.
        return np.asarray(self.coefficients.sum(axis=1))

    @property
    def error(self) -> Array:
        """Estimated error of the largest entry, (n,); infinite if unsolved.

        It is extrapolated from the last coefficients. They are compared in pairs,
        because a single one may be small by chance.
        """
        sizes = self._last_sizes
        pairs = sizes.reshape(-1, 2, 2).max(axis=2)
        decay = _ratio(pairs[:, 1], pairs[:, 0])
        is_solved = np.isfinite(self.solver_error)
        return np.where(is_solved, _first_missing(sizes, decay), np.inf)

    @property
    def last_coefficient(self) -> Array:
        """Size of the last coefficient, (n,).

        The same stride with one node less has no such coefficient.
        """
        return np.asarray(np.abs(self.coefficients[:, -1]).max(axis=1))

    @property
    def error_ratio(self) -> Array:
        """Estimated error over that of the same stride with one node less, (n,).

        The latter is the last coefficient. The decay of the coefficients is that of the
        odd or of the even ones, whichever is slower.
        """
        sizes = self._last_sizes
        decay = _ratio(sizes[:, 2:], sizes[:, :2]).max(axis=1)
        return _ratio(_first_missing(sizes, decay), sizes[:, 3])

    @property
    def _last_sizes(self) -> Array:
        """Sizes of the last four coefficients, (n, 4)."""
        return np.asarray(np.abs(self.coefficients[:, -4:]).max(axis=2))


def _first_missing(sizes: Array, decay_in_two: Array) -> Array:
    """Size of the first coefficient that a polynomial lacks.

    It is extrapolated from the sizes of the last ones and their decay in two orders.
    """
    decay = np.sqrt(decay_in_two)
    return np.asarray(np.maximum(sizes[:, 3], sizes[:, 2] * decay) * decay)


def _ratio(part: Array, whole: Array) -> Array:
    """Ratio of sizes, at most 1, which is also the ratio of zeros."""
    ratio = np.divide(part, whole, out=np.ones_like(part), where=whole > 0.0)
    return np.minimum(1.0, ratio)


def collocate(
    moves: Moves,
    blocks: Index,
    weights: Array,
    start: Array,
    guess: Array,
    tolerance: Array,
    noise: Array,
    precondition: Precondition | None = None,
    min_iterations: int = 1,
    max_iterations: int = 14,
    patient_iterations: int = 7,
) -> Solved:
    r"""Solve the equations :math:`Y = \theta + W h(Y)` of n strides.

    The solution is found by fixed-point iteration with Anderson's mixing.

    Parameters
    ----------
    moves : callable
        The moves h in one step: it takes rows, (r, m), and their blocks, (r,).
    blocks : ndarray of shape (n,)
        The block of each stride.
    weights : ndarray of shape (n, s, s)
        The weights W from `stride_weights`.
    start : ndarray of shape (n, m)
        The states θ at which the strides begin.
    guess : ndarray of shape (n, s, m)
        A guess of the values Y at the nodes. It is overwritten.
    tolerance, noise : ndarray of shape (n,)
        Iteration ends when the residual is expected to be below the tolerance, or below
        the rounding errors ``noise``.
    precondition : callable, optional
        Takes residuals, (k, s, m), and the positions of their strides among the n,
        (k,), and returns the changes of Newton's method, (k, s, m).
    min_iterations, max_iterations : int
        The least and largest number of iterations.
    patient_iterations : int
        After this many, iteration also ends if it converges too slowly to succeed.

    Returns
    -------
    Solved
    """
    n, stages, m = guess.shape
    solver_error = np.full(n, np.inf)
    iterations = np.zeros(n, dtype=np.int64)
    # The strides that are still iterated; the arrays below have an entry for each.
    active = np.flatnonzero(np.isfinite(weights).all(axis=(1, 2)))
    values = guess[active]
    mixing = AndersonMixing(len(active), stages * m)
    last_size = np.full(len(active), np.inf)
    for iteration in range(1, max_iterations + 1):
        if not active.size:
            break
        block_of_row = np.repeat(blocks[active], stages)
        move = moves(values.reshape(-1, m), block_of_row).reshape(values.shape)
        residual = weights[active] @ move
        residual += start[active, None]
        residual -= values
        if precondition is not None:
            residual = precondition(residual, active)
        size = np.abs(residual).reshape(len(values), -1).max(axis=1)
        rate = np.minimum(size / np.where(last_size > 0.0, last_size, 1.0), 1.0)
        # The residual after this iteration, extrapolated.
        expected = np.where(np.isfinite(last_size), size * rate, size)
        is_small = expected <= np.maximum(tolerance, noise)[active]
        is_done = is_small & (iteration >= min_iterations)
        # The next residual may be larger if the first guess is good by chance, so only
        # a large growth counts as divergence.
        is_lost = ~np.isfinite(size) | (size > 10.0 * last_size)
        if iteration > patient_iterations:
            at_the_end = expected * rate ** (max_iterations - iteration)
            is_lost |= at_the_end > tolerance[active]
        values = mixing.next(values, residual)
        last_size = size
        iterations[active] = iteration
        bound = np.minimum(size, EXTRAPOLATION_FACTOR * expected)
        solver_error[active[is_done]] = bound[is_done]
        guess[active] = values
        is_over = is_done | is_lost
        if is_over.any():
            is_active = ~is_over
            mixing.select(is_active)
            active = active[is_active]
            values = values[is_active]
            last_size = last_size[is_active]
    values_at_all = np.concatenate([start[:, None], guess], axis=1)
    coefficients = radau(stages).coefficients @ values_at_all
    is_finite = np.isfinite(coefficients).all(axis=(1, 2))
    solver_error[~is_finite] = np.inf
    return Solved(coefficients, solver_error, iterations)


class AndersonMixing:
    r"""Anderson's mixing of the iteration :math:`y \leftarrow y + g(y)`, by blocks.

    The next iterate is the combination of up to ``depth`` + 1 sums y + g(y),

    .. math::
        y + g - \sum_j \mu_j\, \Delta_j(y + g), \qquad
        \mu = \arg\min_\mu \Bigl\lVert g - \sum_j \mu_j\, \Delta_j g \Bigr\rVert,

    in which :math:`\Delta_j` are the differences of successive iterations.
    """

    def __init__(self, blocks: int, size: int, depth: int = 5) -> None:
        # Rings of the last differences of g and of y + g.
        self._change_differences = np.empty((blocks, depth, size))
        self._sum_differences = np.empty((blocks, depth, size))
        # Scalar products of the differences of g.
        self._products = np.zeros((blocks, depth, depth))
        self._last: _Iteration | None = None
        self._count = 0
        self._depth = depth

    def next(self, values: Array, change: Array) -> Array:
        """Next iterates, (n, s, m), from the last ones and their changes."""
        flat_change = change.reshape(len(change), -1)
        sums = (values + change).reshape(flat_change.shape)
        if self._last is not None:
            self._append_differences(sums, flat_change, self._last)
        self._last = _Iteration(sums, flat_change)
        depth = min(self._count, self._depth)
        if depth == 0:
            return sums.reshape(values.shape)
        mu = self._coefficients(flat_change, depth)
        correction = (mu.transpose(0, 2, 1) @ self._sum_differences[:, :depth])[:, 0]
        return (sums - correction).reshape(values.shape)

    def _append_differences(self, sums: Array, change: Array, last: _Iteration) -> None:
        place = self._count % self._depth
        self._count += 1
        np.subtract(sums, last.sums, out=self._sum_differences[:, place])
        difference = self._change_differences[:, place]
        np.subtract(change, last.change, out=difference)
        filled = min(self._count, self._depth)
        rows = self._change_differences[:, :filled]
        products = (rows @ difference[:, :, None])[:, :, 0]
        self._products[:, place, :filled] = products
        self._products[:, :filled, place] = products

    def _coefficients(self, change: Array, depth: int) -> Array:
        """The coefficients μ from the normal equations, (n, depth, 1)."""
        rows = self._change_differences[:, :depth]
        products = self._products[:, :depth, :depth]
        diagonal = np.arange(depth)
        norms = np.sqrt(products[:, diagonal, diagonal]) + 1e-300
        products = products / (norms[:, :, None] * norms[:, None])
        # The matrix stays regular if differences are multiples of one another.
        products[:, diagonal, diagonal] = 1.0 + 1e-13
        products[~np.isfinite(products).all(axis=(1, 2))] = np.eye(depth)
        scaled = np.linalg.solve(
            products, rows @ change[:, :, None] / norms[:, :, None]
        )
        return np.asarray(scaled / norms[:, :, None])

    def select(self, mask: Mask) -> None:
        """Keep some of the blocks."""
        if self._last is not None:
            self._last = _Iteration(self._last.sums[mask], self._last.change[mask])
        self._change_differences = self._change_differences[mask]
        self._sum_differences = self._sum_differences[mask]
        self._products = self._products[mask]


class _Iteration(NamedTuple):
    """Sums y + g(y) and changes g(y) of n blocks, (n, s m) each."""

    sums: Array
    change: Array
