"""Steps of Radau's collocation method for stiff problems, solved in the modes of the Hessian."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.polynomial import legendre

from icl_theory._validate import Array
from icl_theory.engine.curvature import Modes

Slopes = Callable[[Array, Array], Array]

STAGES, FEWER = 7, 5  # of a run, of its shadow
ITERATIONS = 12  # of Newton's method at most
SOLVED = 0.01  # of the tolerance: what Newton's method may leave, in the same directions for run and shadow
SAFETY, LEAST_FACTOR, MOST_FACTOR, UNSOLVED_FACTOR = 0.9, 0.2, 4.0, 0.4
EASY, HARD_FACTOR = 5, 0.8  # more iterations than that, and the next step is shorter
TINY = 20.0  # steps of the map in half of a stride: a stride of less than a tenth of a step is not taken
NOISE = 2.0**-47  # of the parameters: what rounding leaves of them at best
NOISY = 8.0  # rounding errors may be larger than those that were seen, by this factor


class Scheme(NamedTuple):
    """Nodes in (0, 1], the last of them 1; weights of the slopes there; Legendre coefficients of a polynomial.

    The coefficients are those of its values at 0 and at the nodes. So are the derivatives, (s, s, s + 1): at each
    node from the first to the last one, in units of half of the step.
    """

    nodes: Array
    weights: Array
    coefficients: Array
    derivatives: Array


@cache
def radau(stages: int) -> Scheme:
    """Radau's scheme of order 2 stages - 1: the right-hand nodes are the zeros of P_s - P_(s-1).

    That is (x - 1) times the polynomial of degree s - 1 that belongs to the weight 1 - x. Its zeros are the
    eigenvalues of the symmetric matrix of its recurrence; a step of Newton's method mends their last digits.
    """
    j = np.arange(stages - 1.0)
    beside = np.sqrt(j[1:] * (j[1:] + 1.0)) / (2.0 * j[1:] + 1.0)
    zeros = np.linalg.eigvalsh(np.diag(-1.0 / ((2.0 * j + 1.0) * (2.0 * j + 3.0))) + np.diag(beside, -1))
    series = np.append(np.zeros(stages - 1), [-1.0, 1.0])
    off = legendre.legval(zeros, series) / legendre.legval(zeros, legendre.legder(series))
    nodes = np.append(zeros - off, 1.0).astype(float)
    integrals = np.column_stack([_integral(j, nodes) for j in range(stages)])
    weights = np.linalg.solve(legendre.legvander(nodes, stages - 1).T, integrals.T).T / 2.0
    coefficients = np.linalg.inv(legendre.legvander(np.append(-1.0, nodes), stages))
    orders = [np.asarray(legendre.legder(coefficients, k)) for k in range(1, stages + 1)]
    derivatives = np.array([legendre.legval(nodes, order) for order in orders], dtype=float).transpose(2, 0, 1)
    return Scheme((nodes + 1.0) / 2.0, np.asarray(weights, dtype=float), coefficients, derivatives)


def stepped(scheme: Scheme, places: Array, h: float | Array) -> Array:
    """Weights of the moves in the values at the nodes for polynomials that change by them in one step, (..., s, s).

    ``places``, (..., s), are the nodes in x, and ``h`` broadcasts against them. The change of a polynomial of
    degree s is the sum of its s derivatives, which loses no digits in long strides. In one that is far shorter than
    a step of the map all of them are lost: the weights of those are not numbers.
    """
    stages = len(scheme.nodes)
    lengths = 2.0 * np.log1p(np.exp(-places)) / h  # of a step, in units of half of h
    tiny = lengths.max(axis=-1) > TINY
    powers = (np.minimum(lengths, TINY)[..., None] / np.arange(1.0, stages + 1.0)).cumprod(axis=-1)
    change = powers.reshape(-1, stages, stages).swapaxes(0, 1) @ scheme.derivatives
    change = change.swapaxes(0, 1).reshape(*places.shape, stages + 1)
    return np.where(tiny[..., None, None], np.nan, np.linalg.inv(change[..., 1:]))


def _integral(j: int, nodes: Array) -> Array:
    """∫ P_j from -1 to the nodes."""
    return np.asarray(legendre.legval(nodes, legendre.legint([0.0] * j + [1.0], lbnd=-1)))


class Mixed:
    """Anderson's mixing: iterates y ← y + g(y), each combined with those before it so that g is least."""

    def __init__(self) -> None:
        self._last: tuple[Array, Array] | None = None
        self._moved: list[Array] = []
        self._changed: list[Array] = []

    def next(self, values: Array, change: Array) -> Array:
        """Return the next iterate from the last one and its ``change`` g."""
        if self._last is not None:
            self._moved.append((values - self._last[0]).ravel())
            self._changed.append((change - self._last[1]).ravel())
        self._last = values, change
        if not self._changed or not np.isfinite(change).all():
            return values + change
        moved, changed = np.array(self._moved), np.array(self._changed)
        scale = np.abs(changed).max(axis=1, keepdims=True) + 1e-300
        weights = np.linalg.lstsq((changed / scale).T, change.ravel(), rcond=1e-10)[0]
        return values + change - (weights @ ((moved + changed) / scale)).reshape(values.shape)


class Collocation:
    """One step of x' = f(x, y), with the same attributes as `icl_theory.engine.solver.Step`.

    The polynomial through ``y`` and the values at the nodes solves the equation there. Its last coefficients say
    how far it is from the solution.

    Parameters
    ----------
    slopes : callable
        The field at some times, (n,), and states, (n, ...).
    modes : Modes
        Of the Hessian near ``y``.
    growth : callable
        Takes times x, (s,); returns the eigenvalues of the field's derivative that belong to the modes, (n, s).
    x, y, h : float, ndarray, float
        Where the step begins, and its length.
    end : float, optional
        Where it ends, ``x + h`` unless given.
    tolerance : float
        What Newton's method need not solve for.
    before : Collocation, optional
        The step before this one, from which the values at the nodes are guessed.
    stages : int
        Number of nodes.
    single : bool
        Whether the field is the move of one step of a map, times e^x, so that the polynomial is to pass through the
        iterates: from a node's time to one step later it changes by the move.
    """

    def __init__(
        self,
        slopes: Slopes,
        modes: Modes,
        growth: Callable[[Array], Array],
        x: float,
        y: Array,
        h: float,
        end: float | None = None,
        tolerance: float = 0.0,
        before: Collocation | None = None,
        stages: int = STAGES,
        single: bool = False,
    ) -> None:
        self._slopes, self.begin, self.state, self._h = slopes, x, y, h
        self.end = x + h if end is None else end
        self._modes, self._growth, self._tolerance = modes, growth, tolerance
        self._stages, self._single = stages, single
        scheme = radau(stages)
        places = x + scheme.nodes * h
        self._weights = stepped(scheme, places, h) * np.exp(-places) if single else h * scheme.weights
        values = np.tile(y, (stages, 1)) if before is None else before._at(places)
        self.iterations, self.left, self.noise = 0, math.inf, self._rounding(y)
        if np.isfinite(self._weights).all():
            with np.errstate(all="ignore"):
                values = self._solve(values, places)
        self.values = values
        self.arrival: Array = values[-1]
        self._terms = scheme.coefficients @ np.vstack([y, values])
        last, third = (float(np.abs(self._terms[-j]).max(initial=0.0)) for j in (1, 3))
        decay = math.sqrt(min(1.0, last / third)) if third > 0.0 else 1.0
        self.error = last * decay if self.left < math.inf else math.inf
        self.slope, self.leaving = (self._slope(end) for end in (-1.0, 1.0))

    def _solve(self, values: Array, places: Array) -> Array:
        """Newton's method with the modes as they are given."""
        y, modes = self.state, self._modes
        inverse = np.linalg.inv(np.eye(self._stages) - self._weights * self._growth(places)[:, None, :])
        before, mixed = math.inf, Mixed()
        for self.iterations in range(1, ITERATIONS + 1):
            residual = y + self._weights @ self._slopes(places, values) - values
            change = modes.out_of(np.einsum("nij,jn->in", inverse, modes.into(residual)))
            values = mixed.next(values, change)
            size = float(np.abs(change).max(initial=0.0))
            if not math.isfinite(size) or size > max(2.0 * before, self.noise):
                return values
            rate = size / before if before < math.inf else 1.0
            left = size * rate / (1.0 - rate) if rate < 1.0 else math.inf
            if size <= self.noise or left <= SOLVED * self._tolerance:
                self.left = min(size, left)
                return values
            if self.iterations > EASY and left * rate ** (ITERATIONS - self.iterations) > self._tolerance:
                return values
            before = size
        return values

    def _rounding(self, y: Array) -> float:
        """What rounding errors of the field amount to in the values, seen where the last bits of ``y`` change."""
        nudged = y * (1.0 + np.where(np.arange(y.size) % 2, 2.0**-52, -(2.0**-52)))
        there, here = self._slopes(np.full(2, self.begin), np.stack([nudged, y]))
        change = self._modes.into(there - here)
        growth = self._growth(np.array([self.begin]))[:, 0]
        damped = self._modes.out_of(self._h * change / (1.0 + self._h * np.abs(growth)))
        return NOISY * float(np.abs(damped).max(initial=0.0)) + NOISE * float(np.abs(y).max(initial=0.0))

    def next_stride(self, tolerance: float) -> float:
        """Length that the next step may have, or this one should have had."""
        if not math.isfinite(self.error):
            return UNSOLVED_FACTOR * self._h
        ratio = max(self.error / tolerance, 1e-16)
        most = MOST_FACTOR if self.iterations <= EASY else HARD_FACTOR
        return self._h * min(most, max(LEAST_FACTOR, SAFETY * ratio ** (-1.0 / (self._stages + 1))))

    def between(self, x: float) -> tuple[Array, float]:
        """Interpolate within the step; also the error of that."""
        return self._at(np.array([x]))[0], self.error

    def again(self, x: float, y: Array, slope: Array, h: float, end: float) -> Collocation:
        """Take a part of the step by itself."""
        return Collocation(
            self._slopes, self._modes, self._growth, x, y, h, end, self._tolerance, self, self._stages, self._single
        )

    def _at(self, places: Array) -> Array:
        """Values of the polynomial."""
        s = 2.0 * (places - self.begin) / self._h - 1.0
        return np.asarray(legendre.legvander(s, self._stages) @ self._terms)

    def _slope(self, side: float) -> Array:
        """Slope of the polynomial at an end: P_j' is j (j + 1)/2 at 1, and (-1)^(j+1) of that at -1."""
        j = np.arange(self._stages + 1.0)
        return np.asarray((side ** (j + 1.0) * j * (j + 1.0) / self._h) @ self._terms)
