"""Many orbits of a map at once, by an Adams method for sums, at times that all of them share.

Iterates with y(t + 1) - y(t) = f(t) lie on a smooth curve once f changes slowly. By Euler and Maclaurin's formula
y = ∫ f dt - f/2 + f'/12 - f'''/720 + ..., where f' is df/dt. The integral is taken by even strides in
x = ln(1 + t), of the polynomial through the last values of f dt/dx. The derivatives are those of the polynomial
through f.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.polynomial import legendre
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.engine.progress import CountProgress

SINGLE, KEPT = 64, 32  # steps that are taken one by one at first, and moves of the last of them that are kept
ORDER = 8  # values of f that a stride looks back on
LONGER = 1.5  # factor by which the strides of the shadow are longer
NEARBY, BEYOND = 10, 4  # places that are interpolated between, and strides that an orbit goes on after it is done
HALVINGS = 60
# factors of f and its odd derivatives in the sum; (1 + t)^k d^k/dt^k by derivatives in x
EULER_MACLAURIN = {1: 1.0 / 12.0, 3: -1.0 / 720.0, 5: 1.0 / 30240.0}
IN_X = {1: (1.0,), 3: (2.0, -3.0, 1.0), 5: (24.0, -50.0, 35.0, -10.0, 1.0)}

Index = NDArray[np.intp]
Mask = NDArray[np.bool_]
Moves = Callable[[Array, Index], tuple[Array, Array]]
Done = Callable[[Array, Index], Mask]
Beat = Callable[[int], None]


class Sights(NamedTuple):
    """What was seen of P orbits: at every step up to SINGLE, and from there on after every stride.

    Attributes
    ----------
    t : ndarray, (T,)
        Times; those after strides are no whole numbers.
    seen : ndarray, (T, P, s)
        Not a number where an orbit was no longer followed.
    stride : float
        Length of a stride, in x.
    """

    t: Array
    seen: Array
    stride: float

    def first(self, values: Array, level: Array, after: Index | int = -1) -> tuple[Array, Array]:
        """First times at which values, (T, P), have risen to a level, (P,), and by how much a step they rise there.

        A time is infinite where they have not, a whole number among single steps, and not a number where there are
        too few places to interpolate between. Rows up to ``after`` are passed over.
        """
        above = (values >= level) & (np.arange(len(values))[:, None] > after)
        index, never = above.argmax(axis=0), ~above.any(axis=0)
        low, high = index - 1.0, index.astype(float)
        for _ in range(HALVINGS):
            middle = 0.5 * (low + high)
            found = self._between(values, middle) >= level
            low, high = np.where(found, low, middle), np.where(found, middle, high)
        lost = np.isnan(self._between(values, high))
        t = np.where(index <= SINGLE, index, np.where(lost, np.nan, self._time(high)))
        here, each = np.maximum(index, 1), np.arange(values.shape[1])
        rise = (values[here, each] - values[here - 1, each]) / (self.t[here] - self.t[here - 1])
        return np.where(never, np.inf, t), rise

    def at(self, values: Array, t: Array) -> Array:
        """Return values, (T, P), at a time for each orbit, (P,); a whole one up to SINGLE."""
        place = SINGLE + (np.log1p(t) - math.log1p(SINGLE)) / self.stride
        early = np.clip(t, 0, SINGLE).astype(np.intp)
        return np.where(t <= SINGLE, values[early, np.arange(values.shape[1])], self._between(values, place))

    def every(self, t: Array) -> Array:
        """Return all that was seen at a time for each orbit, (s, P)."""
        return np.array([self.at(values, t) for values in np.moveaxis(self.seen, 2, 0)])

    def _time(self, place: Array) -> Array:
        """Time at a place, which counts strides from SINGLE on."""
        return np.expm1(math.log1p(SINGLE) + self.stride * (place - SINGLE))

    def _between(self, values: Array, place: Array) -> Array:
        """Interpolate values, (T, P), at a place after the single steps for each orbit, (P,)."""
        known = np.isfinite(values).sum(axis=0)
        enough = (known - NEARBY >= SINGLE) & (place >= SINGLE) & (place <= known - 1.0)
        begin = np.where(enough, np.clip(np.round(place) - NEARBY // 2, SINGLE, known - NEARBY), 0).astype(np.intp)
        rows = np.minimum(begin[:, None] + np.arange(NEARBY), len(values) - 1)
        near = values[rows, np.arange(len(place))[:, None]]
        return np.where(enough, np.einsum("pj,pj->p", _shares(place - begin, NEARBY), near), np.nan)


class _Begun(NamedTuple):
    """The single steps of all orbits: the last moves, what was seen at each, and the states at the last one."""

    moves: Array
    seen: Array
    y: Array


class _Weights(NamedTuple):
    """Weights of values of f, the newest first, for strides of length 1."""

    explicit: Array  # integral over the stride ahead
    implicit: Array  # integral over the stride that ends at the newest one
    ahead: Array  # value at the end of the stride ahead
    derivatives: Array  # five of them, at the newest one, (5, ORDER)


def follow(moves: Moves, start: Array, done: Done, last: float, stride: float) -> tuple[Sights, Sights]:
    """Follow orbits until they are done, twice: by strides of a length, and once more by longer ones.

    Parameters
    ----------
    moves : callable
        Takes states of some orbits, (n, ...), and which they are, (n,); returns their moves in one step of the map,
        and what is to be seen of them, (n, s).
    start : ndarray, (P, ...)
        States at first.
    done : callable
        Takes what is seen of some orbits and which they are; returns which of them need not go on for long.
    last : float
        Time beyond which none goes on.
    stride : float
        Length of the strides, in x = ln(1 + t); up to 0.06, as the last single steps are what they begin with.

    Returns
    -------
    tuple of Sights
        Of the run and of its shadow, which is less exact: what parts the two tells what parts the run and the
        orbits, beside rounding errors and what single steps make of those.
    """
    with CountProgress(None, "runs") as shown:
        shown.update(0, 2 * len(start))
        begun = _single(moves, start, shown.add)
        lengths = stride, LONGER * stride
        run, shadow = (_strided(moves, begun, done, last, length, shown.add) for length in lengths)
    return run, shadow


def _single(moves: Moves, start: Array, beat: Beat) -> _Begun:
    """Take the first steps one by one."""
    every, y, carry = np.arange(len(start)), start, np.zeros_like(start)
    move, sight = moves(y, every)
    taken, seen = deque([move], maxlen=KEPT), [sight]
    for _ in range(SINGLE):
        part = move - carry  # Kahan's compensated sum
        moved = y + part
        carry, y = (moved - y) - part, moved
        move, sight = moves(y, every)
        taken.append(move)
        seen.append(sight)
        beat(0)
    return _Begun(np.array(taken), np.array(seen), y)


def _strided(moves: Moves, begun: _Begun, done: Done, last: float, stride: float, beat: Beat) -> Sights:
    """Go on from the single steps by strides: predict, evaluate, correct, evaluate."""
    every = np.arange(len(begun.y))
    finished: Mask = np.asarray(np.array([done(seen, every) for seen in begun.seen]).any(axis=0))
    beyond = np.zeros(len(every), dtype=np.int64)
    weights, start = _weights(), math.log1p(SINGLE)
    times, seen = [*map(float, range(SINGLE + 1))], [*begun.seen]
    before = np.expm1(start - stride * np.arange(ORDER))  # times of the values of f
    past, which = _earlier(begun.moves, before), every
    integral = begun.y - _sum(_ends(SINGLE, stride), past)
    t = float(SINGLE)
    while True:
        beyond += finished
        on = (beyond[which] <= BEYOND) | (len(times) < SINGLE + NEARBY)
        on &= np.isfinite(seen[-1][which]).all(axis=1)
        beat(len(which) - int(on.sum()))
        which, past, integral = which[on], past[:, on], integral[on]
        if not which.size or t >= last:
            beat(len(which))
            return Sights(np.array(times), np.array(seen), stride)
        t = math.expm1(start + stride * (len(times) - SINGLE))
        ends, known = _ends(t, stride), past[:-1]
        carried = _sum(ends[1:], known)
        guess = integral + _sum(stride * weights.explicit * (1.0 + before), past)
        f, _ = moves(guess + ends[0] * _sum(weights.ahead, past) + carried, which)
        inner, before = _sum(stride * weights.implicit[1:] * (1.0 + before[:-1]), known), np.append(t, before[:-1])
        integral = integral + stride * weights.implicit[0] * (1.0 + t) * f + inner
        f, sight = moves(integral + ends[0] * f + carried, which)
        past = np.concatenate([f[None], known])
        row = np.full(begun.seen[0].shape, np.nan)
        row[which] = sight
        finished[which] |= done(sight, which)
        times.append(t)
        seen.append(row)


def _sum(weights: Array, values: Array) -> Array:
    return np.tensordot(weights, values, axes=1)


def _earlier(steps: Array, times: Array) -> Array:
    """Values between the last whole steps, (KEPT, ...), at some times, by polynomials through those nearby."""
    width, places = NEARBY + 3, times - (SINGLE + 1 - KEPT)
    begin = np.clip(np.round(places) - width // 2, 0, KEPT - width).astype(np.intp)
    shares = _shares(places - begin, width)
    return np.array([_sum(share, steps[i : i + width]) for share, i in zip(shares, begin.tolist(), strict=True)])


def _shares(place: Array, count: int) -> Array:
    """Weights of values at 0, 1, ..., count - 1 in those of their polynomial at some places, (n, count)."""
    whole = np.arange(count)
    apart = whole[:, None] - whole
    factors = (place[:, None, None] - whole) / np.where(apart == 0, 1, apart)
    return np.asarray(np.where(apart == 0, 1.0, factors).prod(axis=2))


@cache
def _weights() -> _Weights:
    """Those of the polynomial through ORDER values at even distances."""
    half, basis = 0.5 * (ORDER - 1), np.eye(ORDER)
    inverse = np.linalg.inv(legendre.legvander(1.0 - np.arange(ORDER) / half, ORDER - 1))

    def integral(end: float) -> Array:
        """Over a stride: they begin one before ``end``, and the newest value is at 0."""
        primitive = legendre.legint(basis)
        above, below = (legendre.legval(1.0 + place / half, primitive) for place in (end, end - 1.0))
        return np.asarray(half * (above - below) @ inverse)

    ahead = legendre.legval(1.0 + 1.0 / half, basis) @ inverse
    derivatives = [legendre.legval(1.0, legendre.legder(basis, k)) @ inverse / half**k for k in range(1, 6)]
    return _Weights(integral(1.0), integral(0.0), ahead, np.array(derivatives))


def _ends(t: float, stride: float) -> Array:
    """Weights of the newest values of f in y - ∫ f dt."""
    weights = np.zeros(ORDER)
    weights[0] = -0.5
    for order, factor in EULER_MACLAURIN.items():
        for k, share in enumerate(IN_X[order]):
            weights += factor * share / (stride ** (k + 1) * (1.0 + t) ** order) * _weights().derivatives[k]
    return weights
