"""Columns of parameters that do not mix, brought to a common time with a stride of their own each."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.engine.collocation import radau
from icl_theory.engine.columns import Index, Moves, Strides, collocate, valued
from icl_theory.engine.steps import TooFast

BLOCK, FIRST_BLOCK = 64, 2  # steps of a column that are taken one by one between two looks at it, or at first
SMOOTH = 64.0  # steps in which the move of a column changes by less than e where skipping is tried
FIRST, FIRST_STRIDE = 0.2, 0.05  # first stride: in times in which the move changes by itself, and at most in x
FEWEST = 8.0  # iterates that a stride must pass over
STRIDE, STEP = 1.5, 2.0  # gradients with the shadow's: for one of a stride, and of a single step
PATIENCE = 400.0  # gradients that strides may cost beyond those of the iterates that they pass over
FASTER, SHRINKS = 2.0, 0.5  # at most and at least: factor from one stride to the next
ROUNDING = 2.3e-14  # of the parameters: no stride is asked for more
WALKED = 1024.0  # steps that a column takes one by one at most, altogether,
MANY, PER_FACTOR = 100.0, 10.0  # and strides: so many, and so many more for each factor e in time
UNSTABLE = 1.0  # η times the curvature: beyond it an oscillation would be passed over
NUDGE = 1e-5  # of the parameters, to see the fastest mode

Steps = NDArray[np.int64]


class Walk(NamedTuple):
    """Columns that go on by single steps: which, the time, and the state there, (n,), (n,) and (n, m)."""

    which: Index
    t: Array
    y: Array

    def within(self, times: Steps) -> tuple[Index, NDArray[np.bool_]]:
        """Which of increasing times they are at, and which columns are at one of them."""
        place = np.minimum(np.searchsorted(times, self.t), len(times) - 1)
        here = times[place] == self.t
        return place[here], here


class Strider:
    """Moves columns on, by strides where they pay and by single steps elsewhere, and knows the states in between.

    Parameters
    ----------
    moves : callable
        Moves of columns, (n, m), see `icl_theory.engine.columns.collocate`.
    tolerance : float
        Absolute, in the parameters.
    share : float
        Part of it for one stride.
    stages : int
        Nodes of a stride.
    y : ndarray, (n, m)
        Columns at first.
    t : int
        Their time.

    Attributes
    ----------
    t, y : ndarray, (n,), (n, m)
        Times, and the columns there: those up to which all of them were moved.
    records : list of Walk and Strides
        How the columns were moved on to there from the time before; each column in order.
    left : ndarray, (n,)
        What the equations of the strides have left so far.
    doubt : float
        Largest error of a stride.
    strode : bool
        Whether any stride was taken.
    """

    def __init__(self, moves: Moves, tolerance: float, share: float, stages: int, y: Array, t: int) -> None:
        self.moves, self._tolerance, self._share, self._stages = moves, tolerance, share, stages
        n, m = y.shape
        self.y, self.t = y.copy(), np.full(n, float(t))
        self.left, self.doubt, self.strode = np.zeros(n), 0.0, False
        self._walked, self._taken, self._start = np.zeros(n), np.zeros(n), math.log1p(t)
        self._strides = np.zeros(n, dtype=bool)  # columns that stride
        self._stride, self._ideal, self._debt = np.zeros(n), np.zeros(n), np.zeros(n)
        self._pace, self._move = np.full(n, np.inf), np.zeros((n, m))
        self._pause, self._retry = np.full(n, float(BLOCK)), np.zeros(n)
        self._terms, self._begin, self._length = np.zeros((n, stages + 1, m)), np.zeros(n), np.zeros(n)
        self._direction = np.random.default_rng(n).normal(size=(n, m))
        self.records: list[Walk | Strides] = []

    def advance(self, until: int, stops: Steps) -> None:
        """Move all columns on to a time; single steps are held at ``stops``.

        Raises
        ------
        TooFast
            Where a column takes single steps for long, or many short strides.
        """
        walking = np.flatnonzero(~self._strides)
        self.records = [Walk(walking, self.t[walking], self.y[walking])]
        while (behind := self.t < until).any():
            self._leave(np.flatnonzero(behind & self._strides & (until - self.t < FEWEST)))
            striding = np.flatnonzero(behind & self._strides)
            if striding.size:
                self._take_strides(striding, float(until))
            walking = np.flatnonzero(behind & ~self._strides)
            if walking.size:
                self._walk(walking, float(until), stops)

    def _take_strides(self, which: Index, until: float) -> None:
        """Take a stride of each of these columns, plan the next ones, and look which of them pay."""
        t, y, planned = self.t[which], self.y[which], self._stride[which]
        x, bound = np.log1p(t), math.log1p(until)
        ahead = np.ceil((bound - x) / planned)  # strides that are left, of which the last one must not be tiny
        h = np.where(ahead <= 2.0, (bound - x) / ahead, planned)
        guess, wanted = self._guess(which, x, h, y), self.wanted(y, self._pace[which])
        step = collocate(self.moves, which, x, y, h, wanted, self._stages, guess)
        arrival, error = step.arrival, step.error
        pace = np.where(np.isfinite(step.left), step.leaving, self._pace[which])
        with np.errstate(invalid="ignore"):
            allowed = np.maximum(self.wanted(arrival, pace), step.noise)
            good = error <= allowed
        stable = np.ones(len(which), dtype=bool)
        if good.any():
            stable[good] = self._rates(which[good], arrival[good]) <= UNSTABLE
        good &= stable
        self._plan(which, np.minimum(step.next_stride(error, allowed), FASTER * h), good, ahead > 2.0)
        arrived = np.where(ahead <= 1.0, until, np.expm1(x + h))
        self._accept(step.of(good), error[good], arrival[good], arrived[good], pace[good])
        cost = STRIDE * step.iterations * self._stages - STEP * np.where(good, arrived - t, 0.0)
        self._debt[which] = np.maximum(0.0, self._debt[which] + cost)
        self._taken[which] += 1.0
        if (self._taken[which] - PER_FACTOR * (x - self._start)).max() > MANY:
            raise TooFast
        short = ~good & (self._stride[which] * (1.0 + t) < FEWEST)
        self._leave(which[short | ~stable | (self._debt[which] > PATIENCE)])

    def _plan(self, which: Index, stride: Array, good: NDArray[np.bool_], free: NDArray[np.bool_]) -> None:
        """Lengths of the next strides from what the errors of these allow; those that fall are taken to go on so.

        Strides that are not ``free`` were cut to end at a given time, and say little about the length.
        """
        planned, before = self._stride[which], self._ideal[which]
        trend = np.where(before > 0.0, stride / np.where(before > 0.0, before, 1.0), 1.0)
        next_one = np.where(free, stride * np.clip(trend, SHRINKS, 1.0), np.maximum(stride, planned))
        self._stride[which] = np.where(good, next_one, np.minimum(stride, planned))
        self._ideal[which] = np.where(good, np.where(free, stride, before), 0.0)

    def _accept(self, step: Strides, error: Array, arrival: Array, arrived: Array, pace: Array) -> None:
        """Go on from where strides have arrived."""
        done = step.which
        self.t[done], self.y[done], self._pace[done] = arrived, arrival, pace
        self._terms[done], self._begin[done], self._length[done] = step.terms, step.begin, step.stride
        self.left[done] += step.left
        self.strode |= bool(done.size)
        self.doubt = max(self.doubt, float(error.max(initial=0.0)))
        if done.size:
            self.records.append(step)

    def wanted(self, y: Array, pace: Array) -> Array:
        """Tolerance for a stride of each column, (n,): an error of the time amounts to that times dθ/dx."""
        size = np.abs(y).max(axis=1)
        least = ROUNDING / self._share * size
        limit = np.minimum(self._tolerance, np.maximum(self._tolerance * pace, least))
        return self._share * np.maximum(np.where(np.isfinite(limit), limit, 0.0), 1e-200)

    def _guess(self, which: Index, x: Array, h: Array, y: Array) -> Array:
        """Values at the nodes: where the last stride leads, or the last move."""
        places = self._places(x, h)
        ahead = np.expm1(places) - self.t[which][:, None]
        guess = y[:, None] + ahead[:, :, None] * self._move[which][:, None]
        known = np.flatnonzero(self._length[which] > 0.0)
        guess[known] = self._extended(which[known], places[known])
        return guess

    def _extended(self, which: Index, places: Array) -> Array:
        """Values of the polynomials of the last strides at places x, (n, q): (n, q, m)."""
        return valued(self._terms[which], places, self._begin[which], self._length[which])

    def _rates(self, which: Index, y: Array) -> Array:
        """η times the curvature of the fastest mode, from below: one step of the power method."""
        direction = self._direction[which]
        length = NUDGE * np.maximum(1.0, np.abs(y).max(axis=1)) / np.abs(direction).max(axis=1)
        nudge = length[:, None] * direction
        ahead, here = np.split(self.moves(np.concatenate([y + nudge, y]), np.concatenate([which, which])), 2)
        change = ahead - here
        size, before = np.linalg.norm(change, axis=1), np.linalg.norm(nudge, axis=1)
        grown = size > 1e-200
        self._direction[which[grown]] = change[grown] / size[grown, None]
        return np.asarray(size / before)

    def _leave(self, which: Index) -> None:
        """Let columns take single steps, from the last whole step of the map on."""
        if not which.size:
            return
        t = self.t[which]
        whole = np.floor(t)
        part = np.flatnonzero(whole < t)
        self.y[which[part]] = self._extended(which[part], np.log1p(whole[part])[:, None])[:, 0]
        paid = self._debt[which] == 0.0
        self._pause[which] = np.where(paid, BLOCK, 2.0 * self._pause[which])
        self.t[which], self._retry[which] = whole, whole + self._pause[which]
        self._strides[which], self._length[which], self._debt[which] = False, 0.0, 0.0
        self.records.append(Walk(which, whole, self.y[which]))

    def _walk(self, which: Index, until: float, stops: Steps) -> None:
        """Take single steps of each of these columns, and look which of them could stride."""
        t = self.t[which]
        stop = stops[np.minimum(np.searchsorted(stops, t, side="right"), len(stops) - 1)]
        block = np.where(self._walked[which] > 0.0, BLOCK, FIRST_BLOCK)
        end = np.minimum(np.where(stop > t, stop, until), np.minimum(t + block, until))
        y, move, before = walked(self.moves, which, self.y[which], end - t, self._move[which])
        self.y[which], self.t[which], self._move[which] = y, end, move
        self._walked[which] += end - t
        if self._walked.max() > WALKED:
            raise TooFast
        self.records.append(Walk(which, end, y))
        size, change = np.abs(before).max(axis=1), np.abs(move - before).max(axis=1)
        changing = np.divide(change, size, out=np.where(change > 0.0, np.inf, 0.0), where=size > 0.0)
        smooth = (changing * SMOOTH <= 1.0) & (end >= self._retry[which]) & (end + BLOCK < until)
        some, changing, end = which[smooth], changing[smooth], end[smooth]
        with np.errstate(divide="ignore"):
            self._stride[some] = np.minimum(FIRST_STRIDE, np.log1p(FIRST / (changing * (end + 1.0))))
        self._pace[some] = np.abs(self._move[some]).max(axis=1) * (end + 1.0)
        self._strides[some], self._ideal[some] = True, 0.0

    def states(self, times: Steps) -> Array:
        """Columns at increasing times covered by the last advance, (q, n, m)."""
        x, found = np.log1p(times), np.full((len(times), *self.y.shape), np.nan)
        known = np.zeros(found.shape[:2], dtype=bool)
        for record in self.records:
            if isinstance(record, Walk):
                place, here = record.within(times)
                which, values = record.which[here], record.y[here]
            else:
                place, which, values = record.within(x)
            found[place, which], known[place, which] = values, True
        for i in np.flatnonzero(~known.all(axis=1)):
            rest = np.flatnonzero(~known[i])
            found[i, rest] = self._walked_to(float(times[i]), rest)
        return found

    def _walked_to(self, t: float, which: Index) -> Array:
        """Columns that take single steps there at a time, (n, m)."""
        since, start = np.full(len(self.y), -np.inf), np.empty_like(self.y)
        for record in self.records:
            if isinstance(record, Walk):
                before = record.t <= t
                since[record.which[before]], start[record.which[before]] = record.t[before], record.y[before]
        return walked(self.moves, which, start[which], t - since[which], np.zeros_like(start[which]))[0]

    def land(self, t: int) -> Array:
        """Columns at a time covered by the last advance, (n, m), by strides that end there."""
        found, x = self.states(np.array([t]))[0], float(np.log1p(t))
        for whole in self.records:
            if isinstance(whole, Walk):
                continue
            record = whole.of((whole.begin < x) & (x <= whole.begin + whole.stride))
            if record.which.size:
                h = x - record.begin
                y, guess = record.departure, record.at(self._places(record.begin, h))
                tolerance = self.wanted(y, record.leaving)
                step = collocate(self.moves, record.which, record.begin, y, h, tolerance, self._stages, guess)
                solved = np.isfinite(step.left)
                found[record.which[solved]] = step.arrival[solved]
        return found

    def _places(self, x: Array, h: Array) -> Array:
        """Nodes of strides, (n, s)."""
        return x[:, None] + radau(self._stages).nodes * h[:, None]


def walked(moves: Moves, which: Index, y: Array, counts: Array, move: Array) -> tuple[Array, Array, Array]:
    """Columns after some steps of the map each, their last moves, and the moves before those."""
    y, move, before = y.copy(), move.copy(), np.zeros_like(move)
    carry = np.zeros_like(y)
    for number in range(int(counts.max(initial=0.0))):
        on = counts > number
        before[on] = move[on]
        move[on] = moves(y[on], which[on])
        part = move - carry  # Kahan's compensated sum
        moved = y + part
        carry[on], y[on] = ((moved - y) - part)[on], moved[on]
    return y, move, before
