"""Collocation for many columns of parameters that do not mix, each with a time and a stride of its own.

The equations are those of `icl_theory.engine.collocation` for a map: the polynomial of a column changes by the move
from each node to one step later. They are solved without modes, by Anderson's mixing of fixed-point iterates, which
serves where nothing rests beside a slow tail. All arrays have the columns first: (n, nodes, m).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.polynomial import legendre
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.engine.collocation import (
    HARD_FACTOR,
    LEAST_FACTOR,
    MOST_FACTOR,
    NOISE,
    SAFETY,
    UNSOLVED_FACTOR,
    radau,
    stepped,
)

Index = NDArray[np.intp]
Moves = Callable[[Array, Index], Array]

ITERATIONS, EASY = 14, 7  # of a step at most; more than so many, and the next step is shorter
SOLVED = 0.3  # of the tolerance: what an iterate may still change, all of which counts as left
DEPTH = 4  # iterates that are mixed
APART = 10.0  # factor by which a residual may grow from one iterate to the next: a guess may be good by chance
BATCH = 2**20  # numbers in an array of values, unless one column has more
SLACK = 1e-14  # in x: rounding parts the end of a step from the beginning of the next one
REGULAR = 1e-13  # of the diagonal of the equations for the mixing


class Strides(NamedTuple):
    """A step of some columns: which, where each begins, its length in x = ln(1 + t), and Legendre coefficients.

    Attributes
    ----------
    which : ndarray of int, (n,)
        The columns.
    begin, stride : ndarray, (n,)
        In x.
    terms : ndarray, (n, s + 1, m)
        Coefficients of the polynomials on [-1, 1].
    left : ndarray, (n,)
        What the solution of the equations leaves; infinite where they are not solved.
    iterations : ndarray of int, (n,)
        That it took.
    noise : ndarray, (n,)
        What rounding leaves.
    """

    which: Index
    begin: Array
    stride: Array
    terms: Array
    left: Array
    iterations: NDArray[np.int64]
    noise: Array

    def of(self, some: NDArray[np.bool_]) -> Strides:
        """Return some of the columns."""
        return Strides(
            self.which[some], self.begin[some], self.stride[some], self.terms[some], self.left[some],
            self.iterations[some], self.noise[some],
        )  # fmt: skip

    @property
    def arrival(self) -> Array:
        """Where the columns arrive, (n, m)."""
        return np.asarray(self.terms.sum(axis=1))

    @property
    def departure(self) -> Array:
        """Where the columns begin, (n, m)."""
        return np.asarray((-1.0) ** np.arange(self.terms.shape[1]) @ self.terms)

    @property
    def error(self) -> Array:
        """Estimated error of the largest entry, (n,), from the last coefficients; infinite where unsolved.

        They are looked at in pairs, as one of them may be small by chance.
        """
        sizes = np.abs(self.terms[:, -4:]).max(axis=2)
        before, last = sizes[:, :2].max(axis=1), sizes[:, 2:].max(axis=1)
        decay = np.sqrt(np.minimum(1.0, np.divide(last, before, out=np.ones(len(last)), where=before > 0.0)))
        error = np.maximum(sizes[:, 3], sizes[:, 2] * decay) * decay
        return np.where(np.isfinite(self.left), error, np.inf)

    @property
    def leaving(self) -> Array:
        """Largest entry of the slope dθ/dx where the step ends, (n,)."""
        j = np.arange(self.terms.shape[1])
        return np.asarray(np.abs((j * (j + 1.0)) @ self.terms).max(axis=1) / self.stride)

    def at(self, places: Array) -> Array:
        """Values at places x, (n, q), one row for each column: (n, q, m)."""
        return valued(self.terms, places, self.begin, self.stride)

    def within(self, x: Array) -> tuple[Index, Index, Array]:
        """Places x within strides: which of them, (p,), in which column, (p,), and the values there, (p, m)."""
        first, last = self.begin - SLACK, self.begin + self.stride + SLACK
        row, place = np.nonzero((first[:, None] <= x) & (x <= last[:, None]))
        values = valued(self.terms[row], x[place, None], self.begin[row], self.stride[row])
        return place, self.which[row], values[:, 0]

    def next_stride(self, error: Array, tolerance: Array) -> Array:
        """Lengths that the next steps may have, or these should have had, (n,)."""
        ratio = np.maximum(error / tolerance, 1e-16)
        most = np.where(self.iterations <= EASY, MOST_FACTOR, HARD_FACTOR)
        factor = np.clip(SAFETY * ratio ** (-1.0 / self.terms.shape[1]), LEAST_FACTOR, most)
        return self.stride * np.where(np.isfinite(error), factor, UNSOLVED_FACTOR)


def valued(terms: Array, places: Array, begin: Array, stride: Array) -> Array:
    """Values of polynomials, (n, s + 1, m), at places x, (n, q): (n, q, m)."""
    scaled = 2.0 * (places - begin[:, None]) / stride[:, None] - 1.0
    return np.asarray(legendre.legvander(scaled, terms.shape[1] - 1) @ terms)


def collocate(
    moves: Moves,
    which: Index,
    x: Array,
    y: Array,
    h: Array,
    tolerance: Array,
    stages: int,
    guess: Array,
    least: int = 1,
) -> Strides:
    """Take one step of each column: iterate until it is solved, or seen not to be.

    Parameters
    ----------
    moves : callable
        Takes columns, (n, m), and which ones they are, (n,); returns their moves in one step of the map, (n, m).
    which : ndarray of int, (n,)
        The columns.
    x, y, h : ndarray, (n,), (n, m), (n,)
        Where the steps begin, and their lengths.
    tolerance : ndarray, (n,)
        A part of it, `SOLVED`, need not be solved for.
    stages : int
        Number of nodes.
    guess : ndarray, (n, stages, m)
        Values at the nodes to begin with; overwritten.
    least : int
        Iterates that are taken at least.

    Returns
    -------
    Strides
        The steps.
    """
    size = max(1, BATCH // guess[0].size)
    if len(guess) > size:
        parts = (slice(start, start + size) for start in range(0, len(guess), size))
        steps = [
            collocate(moves, which[part], x[part], y[part], h[part], tolerance[part], stages, guess[part], least)
            for part in parts
        ]
        return Strides(*(np.concatenate(each) for each in zip(*steps, strict=True)))
    n, m = y.shape
    scheme = radau(stages)
    weights = stepped(scheme, x[:, None] + scheme.nodes * h[:, None], h[:, None])
    noise = NOISE * np.abs(y).max(axis=1) + 1e-300
    left, iterations = np.full(n, np.inf), np.zeros(n, dtype=np.int64)
    active, mixed, before = np.arange(n), _Mixed(n, stages * m), np.full(n, np.inf)
    now, start, wanted, limit = guess, y[:, None], np.maximum(SOLVED * tolerance, noise), tolerance
    for iteration in range(1, ITERATIONS + 1):
        move = moves(now.reshape(-1, m), np.repeat(which[active], stages)).reshape(now.shape)
        residual = weights @ move
        residual += start
        residual -= now
        size = np.abs(residual).reshape(len(now), -1).max(axis=1)
        done = (size <= wanted) & (iteration >= least)
        lost = ~np.isfinite(size) | (size > APART * before)
        if iteration > EASY:
            rate = size / np.where(before > 0.0, before, 1.0)
            lost |= size * rate ** (ITERATIONS - iteration) > limit
        now, before = mixed.next(now, residual), size
        iterations[active] = iteration
        left[active[done]] = size[done]
        if (out := done | lost).any() or iteration == ITERATIONS:
            guess[active] = now
            on = ~out
            if not on.any():
                break
            mixed.keep(on)
            active, now, before, start = active[on], now[on], before[on], start[on]
            weights, wanted, limit = weights[on], wanted[on], limit[on]
    terms = scheme.coefficients @ np.concatenate([y[:, None], guess], axis=1)
    left[~np.isfinite(terms).all(axis=(1, 2))] = np.inf
    return Strides(which, x, h, terms, left, iterations, noise)


class _Mixed:
    """Anderson's mixing, for each column by itself: iterates y ← y + g(y), combined so that g is least."""

    def __init__(self, columns: int, size: int) -> None:
        self._changed, self._sums = np.empty((2, columns, DEPTH, size))
        self._products = np.zeros((columns, DEPTH, DEPTH))  # of the rows of the changes
        self._last: tuple[Array, Array] | None = None
        self._count = 0

    def next(self, values: Array, change: Array) -> Array:
        """Return the next iterates, (n, s, m), from the last ones and their changes."""
        changed = change.reshape(len(change), -1)
        summed = (values + change).reshape(changed.shape)
        if self._last is not None:
            place, self._count = self._count % DEPTH, self._count + 1
            np.subtract(summed, self._last[0], out=self._sums[:, place])
            new, known = np.subtract(changed, self._last[1], out=self._changed[:, place]), min(self._count, DEPTH)
            products = (self._changed[:, :known] @ new[:, :, None])[:, :, 0]
            self._products[:, place, :known] = self._products[:, :known, place] = products
        self._last = summed, changed
        depth = min(self._count, DEPTH)
        if not depth:
            return summed.reshape(values.shape)
        rows, each = self._changed[:, :depth], np.arange(depth)
        products = self._products[:, :depth, :depth]
        scale = np.sqrt(products[:, each, each]) + 1e-300
        products = products / (scale[:, :, None] * scale[:, None])
        products[:, each, each] = 1.0 + REGULAR
        products[~np.isfinite(products).all(axis=(1, 2))] = np.eye(depth)
        mixing = np.linalg.solve(products, rows @ changed[:, :, None] / scale[:, :, None]) / scale[:, :, None]
        return (summed - (mixing.transpose(0, 2, 1) @ self._sums[:, :depth])[:, 0]).reshape(values.shape)

    def keep(self, on: NDArray[np.bool_]) -> None:
        """Go on with some of the columns."""
        if self._last is not None and not on.all():
            self._last = self._last[0][on], self._last[1][on]
            self._changed, self._sums, self._products = self._changed[on], self._sums[on], self._products[on]
