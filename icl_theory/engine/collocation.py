r"""Collocation of strides: Radau's scheme for a difference equation, or for its flow.

A stride is an interval in x = ln(1 + t), with the step number t. On it, a polynomial P
in x approximates the solution of :math:`\theta(t+1) - \theta(t) = h(\theta(t))`. This
equation is called the map, and the function h the move. At Radau's nodes :math:`x_i` in
the stride, at which the step number is :math:`t_i`, the polynomial satisfies

.. math::
    P(x_i + \delta_i) - P(x_i) = h(P(x_i)), \qquad
    \delta_i = \ln\frac{t_i + 2}{t_i + 1}.

For the flow :math:`d\theta/dt = h(\theta)` it satisfies :math:`dP/dx = e^x h(P)` at the
nodes. With the values :math:`Y_i = P(x_i)` and the state θ at the beginning of the
stride, the equations of the map and of the flow both read :math:`Y = \theta + W h(Y)`.
`stride_weights` returns the matrix W, and `collocate` solves the equations.

The letters in the shapes of arrays are: n strides, each of an independent block of
parameters; m numbers in a block, which include the memory of an update rule; s nodes in
a stride, also called stages. See docs/theory.md, "Skipping ahead".
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

# Indices of blocks, or positions in an array.
Index = NDArray[np.intp]
# Whether each stride belongs to a selection.
Mask = NDArray[np.bool_]
# Takes r states of single blocks, (r, m), and the indices of these blocks, (r,).
# Returns the moves, (r, m).
Moves = Callable[[Array, Index], Array]
# Takes residuals of k strides, (k, s, m), and the positions of these strides in the
# arrays of `collocate`, (k,). Returns changes of the values at the nodes, (k, s, m).
Precondition = Callable[[Array, Index], Array]

# The error of the last iterate may be this many times the error that is extrapolated
# from the residuals. In 1,774 strides the ratio of the true error to the extrapolated
# one was at most 240, and above 20 in 1 % of the strides. The residual bounds the
# error, too: the true error was never more than 1.6 times the residual.
EXTRAPOLATION_FACTOR = 30.0
# If a residual grows by more than this factor in one iteration, the iteration counts as
# divergent, and the stride is given up. With a smaller number a stride would also be
# given up if a lucky guess made the first residual small. With a larger one, strides
# that are given up in the end take an iteration or two more.
DIVERGENCE_FACTOR = 10.0
# Added to the diagonal entries, all 1, of the matrix of Anderson's normal equations.
# This number is so small that the solution hardly changes, but above the rounding unit
# of 1e-16, so that it is not lost.
REGULARISATION = 1e-13
# Avoids 0/0, and is far below the norm of every difference that matters.
TINY = 1e-300


class RadauScheme(NamedTuple):
    """Radau's scheme with s nodes on the unit interval, for polynomials of degree s.

    Attributes
    ----------
    nodes : ndarray of shape (s,)
        The nodes, in (0, 1]; the last is 1.
    weights : ndarray of shape (s, s)
        The matrix that turns slopes at the nodes into the increases of the values from
        0 to the nodes.
    coefficients : ndarray of shape (s + 1, s + 1)
        The matrix that turns the values at 0 and at the nodes into the Legendre
        coefficients.
    derivatives : ndarray of shape (s, s, s + 1)
        For each node, the matrix that turns the values at 0 and at the nodes into the
        derivatives of orders 1 to s at this node. The unit of length for the
        derivatives is half of the interval.
    """

    nodes: Array
    weights: Array
    coefficients: Array
    derivatives: Array


@cache
def radau(stages: int) -> RadauScheme:
    """Radau's scheme of order 2 s - 1 with s ``stages``.

    The result is kept for later calls.
    """
    nodes = _radau_nodes(stages)
    # Entry (i, j) of the values is the Legendre polynomial P_j at node i, and entry
    # (j, i) of the integrals is the integral of P_j from -1 to node i. The weights W
    # turn values into integrals: sum_k W_ik P_j(node k) is the integral of P_j to node
    # i. The unit interval is half as long as [-1, 1], hence the factor 1/2.
    values = legvander(nodes, stages - 1)
    integrals = legval(nodes, legint(np.eye(stages), lbnd=-1))
    weights = np.linalg.solve(values.T, integrals).T / 2.0
    # The matrix of `legvander` turns coefficients into values at the beginning, -1, and
    # at the nodes. Its inverse turns values into coefficients.
    coefficients = np.linalg.inv(legvander(np.append(-1.0, nodes), stages))
    # Column j of the coefficients is the Legendre series of the polynomial that is 1 at
    # point j (the beginning or a node) and 0 at the other points. For each order, its
    # derivatives at all nodes are row j of an array (s + 1, s).
    derivatives = []
    for order in range(1, stages + 1):
        series_of_derivative = np.asarray(legder(coefficients, order))
        derivatives.append(legval(nodes, series_of_derivative))
    return RadauScheme(
        nodes=(nodes + 1.0) / 2.0,
        weights=np.asarray(weights, dtype=float),
        coefficients=coefficients,
        # The axes (order, point, node) become (node, order, point).
        derivatives=np.array(derivatives, dtype=float).transpose(2, 0, 1),
    )


def _radau_nodes(stages: int) -> Array:
    """Radau's s nodes on [-1, 1], increasing, (s,).

    They are the zeros of P_s - P_(s-1), with the Legendre polynomials P_j. This
    difference is x - 1 times a Jacobi polynomial: the one of degree s - 1 among the
    polynomials that are orthogonal with the weight 1 - x on [-1, 1]. The zeros of the
    Jacobi polynomial are the eigenvalues of the symmetric matrix of its recurrence; one
    step of Newton's method corrects their last digits. The last node is 1.
    """
    # The Jacobi polynomials p_j of norm 1 satisfy
    #   x p_j = b_(j+1) p_(j+1) + a_j p_j + b_j p_(j-1),
    #   a_j = -1 / ((2 j + 1) (2 j + 3)),   b_j = sqrt(j (j + 1)) / (2 j + 1).
    # The numbers a_j are the diagonal of the matrix, and b_1, b_2, … are next to it.
    # `eigvalsh` uses only the lower triangle.
    j = np.arange(stages - 1.0)
    diagonal = -1.0 / ((2.0 * j + 1.0) * (2.0 * j + 3.0))
    off_diagonal = np.sqrt(j[1:] * (j[1:] + 1.0)) / (2.0 * j[1:] + 1.0)
    zeros = np.linalg.eigvalsh(np.diag(diagonal) + np.diag(off_diagonal, -1))
    # The Legendre series of P_s - P_(s-1).
    series = np.append(np.zeros(stages - 1), [-1.0, 1.0])
    newton_step = legval(zeros, series) / legval(zeros, legder(series))
    return np.append(zeros - newton_step, 1.0).astype(float)


def step_weights(
    scheme: RadauScheme,
    places: Array,
    length: float | Array,
    longest_step: float = 20.0,
) -> Array:
    r"""Weights W of the moves at the nodes of strides of the map.

    The differences

    .. math::
        P(x_i + \delta_i) - P(x_i) = \sum_{k=1}^{s} P^{(k)}(x_i)\, \delta_i^k / k!

    are linear functions of the increases :math:`Y_j - \theta` from the beginning of the
    stride to the nodes, and W is the inverse of the matrix of these functions. The sum
    of derivatives is used because the difference of the two values would lose digits:
    they are close to each other in a long stride.

    Parameters
    ----------
    scheme : RadauScheme
        A scheme with s stages.
    places : ndarray of shape (..., s)
        The values of x at the nodes.
    length : float or ndarray
        The lengths of the strides in x; they broadcast against ``places``.
    longest_step : float
        If one step of the map is longer than this many halves of a stride, the weights
        of the stride are NaN, because nearly all digits would be lost: at 20 halves
        beyond the end of a stride, the Legendre polynomial of order 9 is about 10^14.

    Returns
    -------
    ndarray of shape (..., s, s)
    """
    stages = len(scheme.nodes)
    # δ_i = ln(1 + e^-x), in units of half of the stride.
    steps = 2.0 * np.log1p(np.exp(-places)) / length
    is_lost = steps.max(axis=-1) > longest_step
    orders = np.arange(1.0, stages + 1.0)
    # δ^k / k! for all orders k: the product of δ/1, δ/2, …, δ/k, (..., s, s). Steps
    # above the limit are cut, so that no power overflows. Their weights become NaN
    # below.
    powers = (np.minimum(steps, longest_step)[..., None] / orders).cumprod(axis=-1)
    # Each node has its own matrix of derivatives, so the nodes become the first axis.
    # With r strides the product is (s, r, s) @ (s, s, s + 1), which is (s, r, s + 1).
    by_node = powers.reshape(-1, stages, stages).swapaxes(0, 1)
    differences = (by_node @ scheme.derivatives).swapaxes(0, 1)
    differences = differences.reshape(*places.shape, stages + 1)
    # The first column belongs to the value θ at the beginning of the stride. It is
    # minus the sum of the other columns, because the differences of a constant
    # polynomial are zero. So the other columns turn Y - θ into the differences.
    matrices = differences[..., 1:]
    return inverse_or_nan(np.where(is_lost[..., None, None], np.nan, matrices))


def inverse_or_nan(matrices: Array) -> Array:
    """Inverse of each matrix, (..., s, s); NaN if it is singular or not finite."""
    is_finite = np.isfinite(matrices).all(axis=(-2, -1), keepdims=True)
    # The identity takes the place of matrices that are not finite, whose inverse could
    # raise an error.
    invertible = np.where(is_finite, matrices, np.eye(matrices.shape[-1]))
    try:
        inverse = np.linalg.inv(invertible)
    except np.linalg.LinAlgError:
        # If one matrix of the stack is singular, NumPy inverts none of them, so each is
        # inverted by itself. Rounding decides whether a nearly singular matrix counts
        # as singular.
        inverse = np.full(invertible.shape, np.nan)
        for index in np.ndindex(*invertible.shape[:-2]):
            with contextlib.suppress(np.linalg.LinAlgError):
                inverse[index] = np.linalg.inv(invertible[index])
    return np.where(is_finite, inverse, np.nan)


def legendre(x: Array, degree: int) -> Array:
    """Values at x of the Legendre polynomials 0 to degree, (..., degree + 1).

    They follow from (j + 1) P_(j+1) = (2 j + 1) x P_j - j P_(j-1).
    """
    values = np.empty((*x.shape, degree + 1))
    values[..., 0] = 1.0
    values[..., 1] = x
    for j in range(1, degree):
        first_term = (2 * j + 1) * x * values[..., j]
        values[..., j + 1] = (first_term - j * values[..., j - 1]) / (j + 1)
    return values


@cache
def legendre_at_nodes(stages: int, degree: int) -> Array:
    """Values of the Legendre polynomials 0 to degree at Radau's nodes.

    The shape is (stages, degree + 1).
    """
    # The nodes of the scheme are in [0, 1], and the polynomials belong to [-1, 1].
    values = legendre(2.0 * radau(stages).nodes - 1.0, degree)
    # All callers share this array, so none of them may change it.
    values.flags.writeable = False
    return values


def polynomial_values(
    coefficients: Array, places: Array, begin: Array, length: Array
) -> Array:
    """Values of the polynomials of n strides.

    Parameters
    ----------
    coefficients : ndarray of shape (n, s + 1, m)
        The Legendre coefficients of each polynomial, (s + 1) for each of m numbers.
    places : ndarray of shape (n, q)
        The q values of x at which each polynomial is evaluated.
    begin, length : ndarray of shape (n,)
        The value of x at the beginning of each stride, and the length of the stride.

    Returns
    -------
    ndarray of shape (n, q, m)
    """
    # The Legendre polynomials belong to [-1, 1]: the stride begins at -1 and ends at 1.
    scaled = 2.0 * (places - begin[:, None]) / length[:, None] - 1.0
    degree = coefficients.shape[1] - 1
    return np.asarray(legendre(scaled, degree) @ coefficients)


def stride_weights(stages: int, begin: Array, length: Array, flow: bool) -> Array:
    """Weights W of the moves at the nodes of n strides, (n, stages, stages).

    ``begin``, (n,), is the value of x at the beginning of each stride, and ``length``,
    (n,), the length of the stride. With ``flow`` these are the weights of the flow, and
    otherwise of the map.
    """
    scheme = radau(stages)
    # The values of x at the nodes, (n, stages).
    places = begin[:, None] + scheme.nodes * length[:, None]
    if flow:
        # The slope dP/dx is e^x times the move, because dt/dx = e^x. The scheme has the
        # weights w of slopes in a stride of length 1, so W_ik = length w_ik exp(x_k).
        return np.asarray(
            length[:, None, None] * scheme.weights * np.exp(places)[:, None, :]
        )
    return step_weights(scheme, places, length[:, None])


class Solved(NamedTuple):
    """The polynomials of n strides, which approximately solve their equations.

    Attributes
    ----------
    coefficients : ndarray of shape (n, s + 1, m)
        The Legendre coefficients of each polynomial on [-1, 1].
    solver_error : ndarray of shape (n,)
        The estimated error that the solver has left in the equations of each stride;
        infinite if it has not solved them.
    iterations : ndarray of shape (n,)
        The number of iterations that each stride took.
    """

    coefficients: Array
    solver_error: Array
    iterations: NDArray[np.int64]

    def select(self, mask: Mask) -> Solved:
        """Keep the strides whose entry in ``mask`` is True."""
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
        """Estimated error of each polynomial, (n,); infinite if its stride is unsolved.

        The error of a polynomial of degree s is taken to be the first coefficient that
        it lacks, the one of order s + 1. This missing coefficient is extrapolated from
        the last four coefficients.
        """
        sizes = self._last_sizes
        # The decay from the orders s - 3 and s - 2 to the orders s - 1 and s. A single
        # coefficient may be small by chance, so the larger of each pair is compared.
        first_pair = sizes[:, :2].max(axis=1)
        last_pair = sizes[:, 2:].max(axis=1)
        decay_in_two_orders = _ratio(last_pair, first_pair)
        error = _first_missing(sizes, decay_in_two_orders)
        is_solved = np.isfinite(self.solver_error)
        return np.where(is_solved, error, np.inf)

    @property
    def last_coefficient(self) -> Array:
        """Size of the last coefficient of each polynomial, (n,).

        It is taken to be the error of the same stride with one node less, whose
        polynomial lacks this coefficient.
        """
        return np.asarray(np.abs(self.coefficients[:, -1]).max(axis=1))

    @property
    def error_ratio(self) -> Array:
        """Ratio of the error to the error of the same stride with one node less, (n,).

        The error with one node less is the last coefficient. The error itself is
        extrapolated as in `error`, but from the slower of two decays: the decay between
        the last two coefficients of odd order, and between the last two of even order.
        """
        sizes = self._last_sizes
        # The size at order s - 1 over the size at order s - 3, and the size at order s
        # over the size at order s - 2.
        decays = _ratio(sizes[:, 2:], sizes[:, :2])
        error = _first_missing(sizes, decays.max(axis=1))
        return _ratio(error, sizes[:, 3])

    @property
    def _last_sizes(self) -> Array:
        """Sizes of the last four coefficients of each polynomial, (n, 4).

        They have the orders s - 3 to s. The size is the largest of the m entries.
        """
        return np.asarray(np.abs(self.coefficients[:, -4:]).max(axis=2))


def _first_missing(sizes: Array, decay_in_two_orders: Array) -> Array:
    """Size of the first coefficient that each of n polynomials lacks, (n,).

    It is extrapolated from the last coefficients and from their decay. ``sizes``,
    (n, 4), are the sizes of the last four coefficients, of which the last two are used.
    ``decay_in_two_orders``, (n,), is the factor by which they decay in two orders.
    """
    decay_in_one_order = np.sqrt(decay_in_two_orders)
    # The last coefficient may be small by chance, so the one before it counts, too.
    last_size = np.maximum(sizes[:, 3], sizes[:, 2] * decay_in_one_order)
    return np.asarray(last_size * decay_in_one_order)


def _ratio(size: Array, reference: Array) -> Array:
    """Ratio of two sizes, but at most 1; it is 1 if ``reference`` is zero.

    The limit 1 keeps extrapolated coefficients from being larger than known ones.
    """
    ratio = np.divide(size, reference, out=np.ones_like(size), where=reference > 0.0)
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

    The solution is found by fixed-point iteration with Anderson's mixing. The residual
    is θ + W h(Y) - Y. A stride is solved when its next residual is expected to be small
    enough. It is given up if its residual grows by more than the factor
    DIVERGENCE_FACTOR in one iteration or is not finite, or if it would not become small
    enough in ``max_iterations``. A stride that is given up has an infinite
    ``solver_error``.

    Parameters
    ----------
    moves : callable
        The function h: it takes r states of single blocks, (r, m), and the indices of
        these blocks, (r,), and returns the moves, (r, m).
    blocks : ndarray of shape (n,)
        The index of the block of each stride.
    weights : ndarray of shape (n, s, s)
        The weights W from `stride_weights`.
    start : ndarray of shape (n, m)
        The states θ at which the strides begin.
    guess : ndarray of shape (n, s, m)
        A guess of the values Y at the nodes. It is overwritten.
    tolerance, noise : ndarray of shape (n,)
        A stride is solved when its next residual is expected to be at most its
        tolerance, or at most its rounding error, the noise.
    precondition : callable, optional
        Newton's method: it takes residuals of k strides, (k, s, m), and the positions
        of these strides among the n, (k,), and returns the changes of Y, (k, s, m).
    min_iterations, max_iterations : int
        The smallest and the largest number of iterations. With a larger maximum,
        solutions do not change. A few more strides are solved, and the strides that are
        given up in the end cost more gradients.
    patient_iterations : int
        After this many iterations a stride is also given up if it converges too slowly
        to be solved in ``max_iterations``. In the first iterations the rate of
        convergence may still improve, because the mixing has few earlier iterations to
        combine.

    Returns
    -------
    Solved
    """
    n, stages, m = guess.shape
    limits = _Limits(min_iterations, max_iterations, patient_iterations)
    # Strides that are given up keep this error.
    solver_error = np.full(n, np.inf)
    iterations = np.zeros(n, dtype=np.int64)
    # The positions of the strides that are still iterated; a stride without finite
    # weights is given up at once. `values` and `last_size` have an entry for each
    # iterated stride. The size of a residual is its largest entry.
    active = np.flatnonzero(np.isfinite(weights).all(axis=(1, 2)))
    values = guess[active]
    mixing = AndersonMixing(len(active), stages * m)
    last_size = np.full(len(active), np.inf)
    for iteration in range(1, max_iterations + 1):
        if not active.size:
            break
        residual = _residuals(
            moves, blocks[active], weights[active], start[active], values
        )
        if precondition is not None:
            # Newton's change of Y takes the place of the residual, both as the change
            # in this iteration and as the measure of the error.
            residual = precondition(residual, active)
        size = np.abs(residual).reshape(len(values), -1).max(axis=1)
        progress = limits.judge(
            iteration, size, last_size, tolerance[active], noise[active]
        )
        # Strides that are done take the step, too, so that their solution is better
        # than the iterate whose residual was small.
        values = mixing.next(values, residual)
        last_size = size
        iterations[active] = iteration
        is_done = progress.is_done
        solver_error[active[is_done]] = progress.error[is_done]
        guess[active] = values
        is_over = is_done | progress.is_lost
        if is_over.any():
            is_active = ~is_over
            mixing.select(is_active)
            active = active[is_active]
            values = values[is_active]
            last_size = last_size[is_active]
    # `guess` now holds the solutions.
    return _polynomials_through(start, guess, solver_error, iterations)


class _Progress(NamedTuple):
    """The progress of k strides in one iteration.

    Attributes
    ----------
    is_done : ndarray of shape (k,)
        Whether the stride is solved.
    is_lost : ndarray of shape (k,)
        Whether the stride is given up.
    error : ndarray of shape (k,)
        The estimated error after this iteration.
    """

    is_done: Mask
    is_lost: Mask
    error: Array


class _Limits(NamedTuple):
    """The limits on the iterations of `collocate`, which explains them."""

    min_iterations: int
    max_iterations: int
    patient_iterations: int

    def judge(
        self,
        iteration: int,
        size: Array,
        last_size: Array,
        tolerance: Array,
        noise: Array,
    ) -> _Progress:
        """Judge the progress of k strides in an iteration.

        ``size`` and ``last_size``, (k,), are the sizes of the residuals in this
        iteration and in the one before; the latter are infinite in the first iteration.
        ``tolerance`` and ``noise``, (k,), are as in `collocate`.
        """
        # The factor by which residuals shrink in an iteration. After a residual of zero
        # there is no such factor, and the divisor 1 only avoids a division by zero.
        rate = np.minimum(size / np.where(last_size > 0.0, last_size, 1.0), 1.0)
        # The size of the next residual, extrapolated by this factor. In the first
        # iteration no factor is known, so the present size is used.
        expected = np.where(np.isfinite(last_size), size * rate, size)
        is_small = expected <= np.maximum(tolerance, noise)
        is_done = is_small & (iteration >= self.min_iterations)
        # If the guess is good by chance, the first residual is small, and the second
        # one is larger. So only a large growth counts as divergence.
        is_lost = ~np.isfinite(size) | (size > DIVERGENCE_FACTOR * last_size)
        if iteration > self.patient_iterations:
            # `expected` is the residual one iteration later. Extrapolated further by
            # the same rate, it becomes the residual after the last allowed iteration.
            at_the_end = expected * rate ** (self.max_iterations - iteration)
            is_lost |= at_the_end > tolerance
        # Two estimates of the error, of which the smaller one counts: the residual, and
        # the extrapolated residual with a margin.
        error = np.minimum(size, EXTRAPOLATION_FACTOR * expected)
        return _Progress(is_done, is_lost, error)


def _residuals(
    moves: Moves, blocks: Index, weights: Array, start: Array, values: Array
) -> Array:
    """Residuals θ + W h(Y) - Y of k strides, (k, s, m).

    The shapes are (k,) for the indices of the blocks, (k, s, s) for the weights W,
    (k, m) for the states θ at which the strides begin, and (k, s, m) for the values Y
    at the nodes.
    """
    _count, stages, m = values.shape
    # `moves` takes the states at all nodes as rows of one array.
    block_of_row = np.repeat(blocks, stages)
    move = moves(values.reshape(-1, m), block_of_row).reshape(values.shape)
    residual = weights @ move
    residual += start[:, None]
    residual -= values
    return np.asarray(residual)


def _polynomials_through(
    start: Array, values: Array, solver_error: Array, iterations: NDArray[np.int64]
) -> Solved:
    """The polynomials of n strides, from their values at the beginning and the nodes.

    ``start`` has the shape (n, m), and ``values``, at the nodes, (n, s, m). The entries
    of ``solver_error`` for polynomials that are not finite become infinite, in place.
    """
    stages = values.shape[1]
    point_values = np.concatenate([start[:, None], values], axis=1)
    coefficients = radau(stages).coefficients @ point_values
    is_finite = np.isfinite(coefficients).all(axis=(1, 2))
    solver_error[~is_finite] = np.inf
    return Solved(coefficients, solver_error, iterations)


class AndersonMixing:
    r"""Anderson's mixing of the iteration :math:`y \leftarrow y + g(y)`, by blocks.

    The next iterate is a combination of at most ``depth`` + 1 of the last sums
    y + g(y),

    .. math::
        y + g - \sum_j \mu_j\, \Delta_j(y + g), \qquad
        \mu = \arg\min_\mu \Bigl\lVert g - \sum_j \mu_j\, \Delta_j g \Bigr\rVert,

    in which :math:`\Delta_j` is the difference between two successive iterations. Each
    block has its own coefficients :math:`\mu_j`.

    Parameters
    ----------
    blocks : int
        The number of blocks.
    size : int
        The number of entries of y for each block.
    depth : int
        The largest number of differences that are used. More of them may save
        iterations, but each one takes as much memory as two iterates.
    """

    def __init__(self, blocks: int, size: int, depth: int = 5) -> None:
        # The last differences of g, and of y + g. A new one replaces the oldest.
        self._change_differences = np.empty((blocks, depth, size))
        self._sum_differences = np.empty((blocks, depth, size))
        # The scalar products of the differences of g, from which μ is computed.
        self._products = np.zeros((blocks, depth, depth))
        self._last: _Iteration | None = None
        # The number of differences so far, including those that have been replaced.
        self._count = 0
        self._depth = depth

    def next(self, values: Array, change: Array) -> Array:
        """Next iterates y, (n, s, m), from the last iterates and their changes g(y)."""
        flat_change = change.reshape(len(change), -1)
        sums = (values + change).reshape(flat_change.shape)
        if self._last is not None:
            self._append_differences(sums, flat_change, self._last)
        self._last = _Iteration(sums, flat_change)
        # The number of differences that are stored.
        stored = min(self._count, self._depth)
        if stored == 0:
            return sums.reshape(values.shape)
        mu = self._coefficients(flat_change, stored)
        # Sums of the differences with these coefficients: (n, 1, stored) times
        # (n, stored, s m).
        correction = (mu.transpose(0, 2, 1) @ self._sum_differences[:, :stored])[:, 0]
        return (sums - correction).reshape(values.shape)

    def _append_differences(self, sums: Array, change: Array, last: _Iteration) -> None:
        """Add the differences from the last iteration, and their scalar products.

        ``sums`` and ``change``, (n, s m), are y + g(y) and g(y) of this iteration.
        """
        # The position at which the new difference is written. Once all positions are
        # filled, it is the position of the oldest difference.
        position = self._count % self._depth
        self._count += 1
        np.subtract(sums, last.sums, out=self._sum_differences[:, position])
        new_difference = self._change_differences[:, position]
        np.subtract(change, last.change, out=new_difference)
        stored = min(self._count, self._depth)
        differences = self._change_differences[:, :stored]
        # The products of the new difference with all, (n, stored). The matrix of
        # products is symmetric, so they are one of its rows and one of its columns.
        products = (differences @ new_difference[:, :, None])[:, :, 0]
        self._products[:, position, :stored] = products
        self._products[:, :stored, position] = products

    def _coefficients(self, change: Array, stored: int) -> Array:
        """The coefficients μ of the ``stored`` differences, (n, stored, 1).

        With these differences of g as the rows of D, the normal equations are
        D D^T μ = D g. They are solved for differences of norm 1, whose matrix is better
        conditioned. ``change``, (n, s m), is g.
        """
        differences = self._change_differences[:, :stored]
        products = self._products[:, :stored, :stored]
        diagonal = np.arange(stored)
        norms = np.sqrt(products[:, diagonal, diagonal]) + TINY
        matrix = products / (norms[:, :, None] * norms[:, None])
        # Without the small addition, the matrix would be singular if one difference is
        # a multiple of another one.
        matrix[:, diagonal, diagonal] = 1.0 + REGULARISATION
        # A block that diverges must not keep NumPy from solving for the other blocks.
        matrix[~np.isfinite(matrix).all(axis=(1, 2))] = np.eye(stored)
        right_side = differences @ change[:, :, None] / norms[:, :, None]
        mu_for_unit_norm = np.linalg.solve(matrix, right_side)
        return np.asarray(mu_for_unit_norm / norms[:, :, None])

    def select(self, mask: Mask) -> None:
        """Keep the blocks whose entry in ``mask`` is True."""
        if self._last is not None:
            self._last = _Iteration(self._last.sums[mask], self._last.change[mask])
        self._change_differences = self._change_differences[mask]
        self._sum_differences = self._sum_differences[mask]
        self._products = self._products[mask]


class _Iteration(NamedTuple):
    """The last iteration.

    Attributes
    ----------
    sums, change : ndarray of shape (n, s m)
        The sums y + g(y) and the changes g(y), flattened over the s nodes and the m
        numbers of each of n blocks.
    """

    sums: Array
    change: Array
