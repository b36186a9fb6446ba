r"""Strides over many iterates: Radau's collocation of a difference equation, or of its flow.

The iterates :math:`\theta(t+1) - \theta(t) = h(\theta(t))` are approximated by
polynomials in x = ln(1 + t) that solve this equation at Radau's nodes; for a flow they
solve :math:`\theta' = h(\theta)`. Many independent blocks of parameters are solved at
once, each with its own time and stride. The blocks are the first axis of all arrays.
See docs/theory.md, "Skipping ahead".
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
Moves = Callable[[Array, Index], Array]
Precondition = Callable[[Array, Index], Array]


# The error that the last iterate leaves may be larger than extrapolated, by this
# factor. Of 1,774 strides the error
# was up to 240 times what was extrapolated, 20 to 95 times in one of a hundred, but 1.6
# times the residual at most.
UNSURE = 30.0


class Scheme(NamedTuple):
    """Radau's scheme; the last two map the values of a polynomial at 0 and at the nodes."""

    nodes: Array  # in (0, 1], the last is 1
    weights: Array  # of the slopes at the nodes
    coefficients: Array  # to its Legendre coefficients
    # to those of orders 1 to s at the nodes, in units of half of the step, (s, s, s +
    # 1)
    derivatives: Array


@cache
def radau(stages: int) -> Scheme:
    """Radau's scheme of order 2 stages - 1: the right-hand nodes are the zeros of P_s - P_(s-1).

    This is (x - 1) times the polynomial of degree s - 1 that is orthogonal with the
    weight 1 - x. Its zeros are the eigenvalues of the symmetric matrix of its
    recurrence; one Newton step corrects their last digits.
    """
    j = np.arange(stages - 1.0)
    beside = np.sqrt(j[1:] * (j[1:] + 1.0)) / (2.0 * j[1:] + 1.0)
    zeros = np.linalg.eigvalsh(
        np.diag(-1.0 / ((2.0 * j + 1.0) * (2.0 * j + 3.0))) + np.diag(beside, -1)
    )
    series = np.append(np.zeros(stages - 1), [-1.0, 1.0])
    off = legval(zeros, series) / legval(zeros, legder(series))
    nodes = np.append(zeros - off, 1.0).astype(float)
    # of each polynomial from -1 to the nodes
    integrals = legval(nodes, legint(np.eye(stages), lbnd=-1))
    weights = np.linalg.solve(legvander(nodes, stages - 1).T, integrals).T / 2.0
    coefficients = np.linalg.inv(legvander(np.append(-1.0, nodes), stages))
    orders = [np.asarray(legder(coefficients, k)) for k in range(1, stages + 1)]
    derivatives = np.array(
        [legval(nodes, order) for order in orders], dtype=float
    ).transpose(2, 0, 1)
    return Scheme(
        (nodes + 1.0) / 2.0, np.asarray(weights, dtype=float), coefficients, derivatives
    )


def stepped(
    scheme: Scheme, places: Array, h: float | Array, tiny: float = 20.0
) -> Array:
    """Matrix from the moves at the nodes to the values of the polynomial that makes them in one step, (..., s, s).

    ``places``, (..., s), are the nodes in x, and ``h`` broadcasts against them. The
    change of a polynomial of degree s is the sum of its s derivatives, which loses no
    digits in long strides. In strides far shorter than a step of the map all digits are
    lost: if a step is longer than ``tiny`` halves of the stride, the weights are NaN.
    """
    stages = len(scheme.nodes)
    lengths = 2.0 * np.log1p(np.exp(-places)) / h  # of a step, in units of half of h
    lost = lengths.max(axis=-1) > tiny
    powers = (
        np.minimum(lengths, tiny)[..., None] / np.arange(1.0, stages + 1.0)
    ).cumprod(axis=-1)
    change = powers.reshape(-1, stages, stages).swapaxes(0, 1) @ scheme.derivatives
    change = change.swapaxes(0, 1).reshape(*places.shape, stages + 1)
    return inverse_or_nan(np.where(lost[..., None, None], np.nan, change[..., 1:]))


def inverse_or_nan(matrices: Array) -> Array:
    """Inverse of each matrix, (..., s, s), or NaN where it is singular.

    Rounding decides whether a matrix near a singular one is singular, and NumPy then
    refuses the whole stack.
    """
    finite = np.isfinite(matrices).all(axis=(-2, -1), keepdims=True)
    invertible = np.where(finite, matrices, np.eye(matrices.shape[-1]))
    try:
        inverse = np.linalg.inv(invertible)
    except np.linalg.LinAlgError:
        inverse = np.full(invertible.shape, np.nan)
        for index in np.ndindex(*invertible.shape[:-2]):
            with contextlib.suppress(np.linalg.LinAlgError):
                inverse[index] = np.linalg.inv(invertible[index])
    return np.where(finite, inverse, np.nan)


def legendre(x: Array, degree: int) -> Array:
    """Legendre's polynomials, (..., degree + 1)."""
    values = np.empty((*x.shape, degree + 1))
    values[..., 0], values[..., 1] = 1.0, x
    for j in range(1, degree):
        values[..., j + 1] = (
            (2 * j + 1) * x * values[..., j] - j * values[..., j - 1]
        ) / (j + 1)
    return values


def valued(terms: Array, places: Array, begin: Array, length: Array) -> Array:
    """Values of polynomials with coefficients (n, s + 1, m) at places x, (n, q): (n, q, m)."""
    scaled = 2.0 * (places - begin[:, None]) / length[:, None] - 1.0
    return np.asarray(legendre(scaled, terms.shape[1] - 1) @ terms)


def weights_of(stages: int, x: Array, h: Array, flow: bool) -> Array:
    """Weights of the moves at the nodes of strides, (n, s, s)."""
    scheme = radau(stages)
    places = x[:, None] + scheme.nodes * h[:, None]
    if flow:
        return np.asarray(
            h[:, None, None] * scheme.weights * np.exp(places)[:, None, :]
        )
    return stepped(scheme, places, h[:, None])


class Solved(NamedTuple):
    """Polynomials of n strides."""

    terms: Array  # Legendre coefficients on [-1, 1], (n, s + 1, m)
    # estimated error of the solution of the equations, (n,); infinite if they are not
    # solved
    left: Array
    iterations: NDArray[np.int64]  # (n,)

    def of(self, some: NDArray[np.bool_]) -> Solved:
        """Select strides."""
        return Solved(self.terms[some], self.left[some], self.iterations[some])

    @property
    def arrival(self) -> Array:
        """Ends of the strides, (n, m)."""
        return np.asarray(self.terms.sum(axis=1))

    @property
    def error(self) -> Array:
        """Estimated error of the largest entry, (n,), from the last coefficients; infinite if unsolved.

        Coefficients are compared in pairs, as a single one may be small by chance.
        """
        sizes = np.abs(self.terms[:, -4:]).max(axis=2)
        pairs = sizes.reshape(-1, 2, 2).max(axis=2)
        return np.where(
            np.isfinite(self.left),
            _beyond(sizes, _ratio(pairs[:, 1], pairs[:, 0])),
            np.inf,
        )

    @property
    def last(self) -> Array:
        """Size of the last coefficient, (n,), which the same stride with a node less lacks."""
        return np.asarray(np.abs(self.terms[:, -1]).max(axis=1))

    @property
    def ratio(self) -> Array:
        """Estimated error over that of the same stride with a node less, (n,), which is the last coefficient.

        The decay is that of the odd or of the even coefficients, whichever is slower.
        """
        sizes = np.abs(self.terms[:, -4:]).max(axis=2)
        return _ratio(
            _beyond(sizes, _ratio(sizes[:, 2:], sizes[:, :2]).max(axis=1)), sizes[:, 3]
        )


def _beyond(sizes: Array, fallen: Array) -> Array:
    """Size of the first coefficient that a polynomial lacks, from the last ones and their decay in two orders."""
    decay = np.sqrt(fallen)
    return np.asarray(np.maximum(sizes[:, 3], sizes[:, 2] * decay) * decay)


def _ratio(part: Array, whole: Array) -> Array:
    """Ratio of sizes, 1 at most."""
    return np.minimum(
        1.0, np.divide(part, whole, out=np.ones_like(part), where=whole > 0.0)
    )


def collocate(
    moves: Moves,
    which: Index,
    weights: Array,
    y: Array,
    guess: Array,
    tolerance: Array,
    noise: Array,
    precondition: Precondition | None = None,
    least: int = 1,
    most: int = 14,
    easy: int = 7,
) -> Solved:
    """Solve the equations of a stride for n blocks by fixed-point iteration with Anderson's mixing.

    ``moves`` takes rows, (r, m), and their blocks, (r,), to the moves in one step, (r,
    m). The strides of the blocks ``which``, (n,), start at ``y``, (n, m), with the
    ``weights`` of `weights_of` and from a ``guess`` of the values at the nodes, (n, s,
    m), which is overwritten. Iteration ends at a residual below ``tolerance`` or the
    rounding errors ``noise``, (n,), after at least ``least`` and at most ``most``
    iterations; after ``easy`` it also ends if the rate of convergence is too slow.
    ``precondition`` takes residuals, (k, s, m), and the positions of their blocks among
    the n to Newton's changes.
    """
    n, stages, m = guess.shape
    left = np.full(n, np.inf)
    iterations = np.zeros(n, dtype=np.int64)
    active = np.flatnonzero(np.isfinite(weights).all(axis=(1, 2)))
    now = guess[active]
    mixed = Mixed(len(active), stages * m)
    before = np.full(len(active), np.inf)
    for iteration in range(1, most + 1):
        if not active.size:
            break
        move = moves(now.reshape(-1, m), np.repeat(which[active], stages)).reshape(
            now.shape
        )
        residual = weights[active] @ move
        residual += y[active, None]
        residual -= now
        if precondition is not None:
            residual = precondition(residual, active)
        size = np.abs(residual).reshape(len(now), -1).max(axis=1)
        rate = np.minimum(size / np.where(before > 0.0, before, 1.0), 1.0)
        # after this iteration, extrapolated
        remains = np.where(np.isfinite(before), size * rate, size)
        done = (remains <= np.maximum(tolerance, noise)[active]) & (iteration >= least)
        # after a first guess that is good by chance the next residual may be larger
        lost = ~np.isfinite(size) | (size > 10.0 * before)
        if iteration > easy:
            lost |= remains * rate ** (most - iteration) > tolerance[active]
        now = mixed.next(now, residual)
        before = size
        iterations[active] = iteration
        left[active[done]] = np.minimum(size, UNSURE * remains)[done]
        guess[active] = now
        if (out := done | lost).any():
            mixed.keep(~out)
            active = active[~out]
            now = now[~out]
            before = before[~out]
    terms = radau(stages).coefficients @ np.concatenate([y[:, None], guess], axis=1)
    left[~np.isfinite(terms).all(axis=(1, 2))] = np.inf
    return Solved(terms, left, iterations)


class Mixed:
    """Anderson's mixing for each block: iterates y ← y + g(y) are combined so that g is least."""

    def __init__(self, blocks: int, size: int, depth: int = 5) -> None:
        self._changed, self._sums = np.empty((2, blocks, depth, size))
        # between the rows of the changes
        self._products = np.zeros((blocks, depth, depth))
        self._last: tuple[Array, Array] | None = None
        self._count, self._depth = 0, depth

    def next(self, values: Array, change: Array) -> Array:
        """Next iterates, (n, s, m), from the last ones and their changes."""
        changed = change.reshape(len(change), -1)
        summed = (values + change).reshape(changed.shape)
        if self._last is not None:
            place = self._count % self._depth
            self._count = self._count + 1
            np.subtract(summed, self._last[0], out=self._sums[:, place])
            new = np.subtract(changed, self._last[1], out=self._changed[:, place])
            known = min(self._count, self._depth)
            products = (self._changed[:, :known] @ new[:, :, None])[:, :, 0]
            self._products[:, place, :known] = self._products[:, :known, place] = (
                products
            )
        self._last = summed, changed
        depth = min(self._count, self._depth)
        if not depth:
            return summed.reshape(values.shape)
        rows = self._changed[:, :depth]
        each = np.arange(depth)
        products = self._products[:, :depth, :depth]
        scale = np.sqrt(products[:, each, each]) + 1e-300
        products = products / (scale[:, :, None] * scale[:, None])
        # stays regular if changes are multiples of one another
        products[:, each, each] = 1.0 + 1e-13
        products[~np.isfinite(products).all(axis=(1, 2))] = np.eye(depth)
        mixing = (
            np.linalg.solve(products, rows @ changed[:, :, None] / scale[:, :, None])
            / scale[:, :, None]
        )
        return (
            summed - (mixing.transpose(0, 2, 1) @ self._sums[:, :depth])[:, 0]
        ).reshape(values.shape)

    def keep(self, on: NDArray[np.bool_]) -> None:
        """Keep only some of the blocks."""
        if self._last is not None:
            self._last = self._last[0][on], self._last[1][on]
        self._changed = self._changed[on]
        self._sums = self._sums[on]
        self._products = self._products[on]
