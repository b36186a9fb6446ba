"""The iterates of gradient descent without visiting most of them, with an estimate of the error.

A run is followed by strides (see `icl_theory.engine.collocation`), and so is its shadow: by the same strides with a node
less. The shadow is less exact, and what parts the two is the estimate. Where iterates are taken one by one the
shadow takes them too, so that it grows as errors grow. See docs/theory.md, "Skipping ahead".
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.engine.collocation import Index, Solved, collocate, legendre, radau, valued, weights_of
from icl_theory.engine.modes import Layout, Modes, modes_of, price_of
from icl_theory.engine.steps import Descent, Ended, Point, TooFast
from icl_theory.engine.trajectory import Stop

Steps = NDArray[np.int64]
NODES = 9  # of a stride of the run; the shadow has one less
MARGIN = 2.0  # the shadow may be nearer to the run than the truth is, by this factor
ROUNDING = 2.0**-52
SLOPES = np.arange(NODES + 1.0) * np.arange(1.0, NODES + 2.0)  # twice the slopes of Legendre's polynomials at 1
SLACK = 1e-14  # in x: rounding parts the end of a stride from the beginning of the next one


class Record(NamedTuple):
    """Strides of some blocks: where each begins, its length in x, and the polynomials of run and shadow."""

    which: Index
    begin: Array
    length: Array
    run: Array
    shadow: Array

    def basis(self, rows: Index, places: Array) -> Array:
        """Legendre polynomials of some strides at places x, (n, q)."""
        return legendre(2.0 * (places - self.begin[rows, None]) / self.length[rows, None] - 1.0, NODES)


class Strides:
    """Blocks of parameters, each with a stride of its own, and their shadows.

    Parameters
    ----------
    layout : Layout
        Of the parameters.
    tolerance : float
        Absolute, in scores; of a flow relative to the parameters as well.
    y, z : ndarray, (n, m)
        Run and shadow at first.
    t : float
        Their time.
    budget : int
        Gradients that may be evaluated altogether.
    flow : bool
        Follow the flow of the moves, not the iterates.
    first : float
        Length of the first strides, in x.

    Attributes
    ----------
    x : ndarray, (n,)
        Times ln(1 + t) up to which the blocks are known.
    left : ndarray, (n,)
        What the solutions of the equations have left so far.
    apart : float
        Largest difference of run and shadow at the nodes of all strides.
    """

    share = 0.02  # of the tolerance for one stride

    def __init__(
        self, layout: Layout, tolerance: float, y: Array, z: Array | None, t: float, budget: int, flow: bool, first: float
    ) -> None:
        self._layout, self._tolerance, self._budget, self._flow = layout, tolerance, budget, flow
        n, m = y.shape
        self.y, self.z, self.x = y, z, np.full(n, math.log1p(t))
        self._gain = layout.descent.risk.gain(layout.params(y))
        self.left, self.apart = np.zeros(n), 0.0
        self._ideal, self._h, self._pace, self._debt = np.zeros(n), np.full(n, first), np.zeros(n), np.zeros(n)
        self._terms, self._begin = np.zeros((n, NODES + 1, m)), np.zeros(n)
        self._length, self._move = np.zeros(n), np.zeros((n, m))
        self._direction = np.random.default_rng(n).normal(size=(n, m))
        self._modes: Modes | None = None
        self._wasted, self._owed, self._price = 0.0, 0.0, price_of(layout)
        self.records: list[Record] = []

    def reach(self, x: float) -> None:
        """Move all blocks on to a time ln(1 + t), or beyond.

        Raises
        ------
        TooFast
            Where strides are too short to pay, or an oscillation might be passed over.
        """
        while (behind := np.flatnonzero(self.x < x - SLACK)).size:
            size = max(1, 2**20 // (NODES * self.y.shape[1]))  # blocks whose values fit into a cache of some MB
            for start in range(0, len(behind), size):
                self._stride(behind[start : start + size])

    def _moves(self, rows: Array, which: Index) -> Array:
        descent = self._layout.descent
        if self._layout.gradients is not None:
            self._owed += len(rows) / len(self.y)
            descent.evaluations, self._owed = descent.evaluations + int(self._owed), self._owed % 1.0
        if descent.evaluations > self._budget:
            raise Ended(Stop.WORK, work=self._budget)
        return self._layout.moves(rows, which)

    def _stride(self, which: Index) -> None:
        x, y, h = self.x[which], self.y[which], self._h[which]
        spent = self._layout.descent.evaluations + self._owed
        noise = self._probe(which, x, y, h)
        step = self._solve(NODES, which, x, h, y, self._guess(which, x, h, y), noise)
        arrival, error = step.arrival, step.error
        pace = np.where(np.isfinite(error), np.abs(SLOPES @ step.terms).max(axis=1) / h, np.inf)
        with np.errstate(invalid="ignore"):
            limit = np.maximum(self._limit(arrival, pace), noise)
        good = error <= limit
        if good.any():
            good[good] = self._accept(which[good], x[good], h[good], Solved(*(a[good] for a in step)), noise[good])
        with np.errstate(divide="ignore", over="ignore"):
            factor = np.clip(0.9 * (error / limit) ** (-1.0 / (NODES + 1)), 0.2, np.where(step.iterations > 7, 0.8, 2.0))
        factor = np.where(np.isfinite(error), np.where(good, factor, np.minimum(factor, 0.7)), 0.4)
        ideal, before = factor * h, self._ideal[which]
        trend = np.where(good & (before > 0.0), np.clip(ideal / np.where(before > 0.0, before, 1.0), 0.5, 1.0), 1.0)
        self._h[which], self._ideal[which] = ideal * trend, np.where(good, ideal, 0.0)  # towards a drop they shrink
        if not self._flow:
            passed = np.where(good, np.expm1(x + h) - np.expm1(x), 0.0)
            cost = (self._layout.descent.evaluations + self._owed - spent) * len(self.y) / len(which)
            self._debt[which] = np.maximum(0.0, self._debt[which] + cost - 2.0 * passed)
            if self._debt.mean() > 400.0 or (self._h * np.exp(self.x)).min() < 8.0:
                raise TooFast
        elif self._h.min() < 1e-13:
            raise Ended(Stop.FLOW)
        hard = np.maximum(step.iterations - 5, np.where(np.isfinite(step.left), 0, step.iterations))
        self._wasted += float(hard.sum()) * NODES / len(self.y)
        if self._layout.plain and self._wasted > self._price and self.y.shape[1] <= 1024:
            self._wasted, self._modes = 0.0, modes_of(self._layout, self.y, self.x)

    def _solve(
        self, stages: int, which: Index, x: Array, h: Array, y: Array, guess: Array, noise: Array, least: int = 1
    ) -> Solved:
        """Solve the equations of strides; with the modes, where these are known, by Newton's method."""
        weights, modes = weights_of(stages, x, h, self._flow), self._modes
        wanted = 0.1 * self._limit(y, self._pace[which])
        if modes is None:
            return collocate(self._moves, which, weights, y, guess, wanted, noise, None, least)
        growth = modes.growth(x[:, None] + radau(stages).nodes * h[:, None], which)
        with np.errstate(invalid="ignore"):
            equations = np.eye(stages) - weights[:, None] * growth[:, :, None, :]
        equations[~np.isfinite(equations).all(axis=(1, 2, 3))] = np.eye(stages)
        inverse = np.linalg.inv(equations)

        def newton(residual: Array, active: Index) -> Array:
            components = modes.into(residual, which[active])
            change = np.einsum("nmij,njm->nim", inverse[active], components)
            return modes.out_of(change, which[active])

        return collocate(self._moves, which, weights, y, guess, wanted, noise, newton, least)

    def _accept(self, which: Index, x: Array, h: Array, step: Solved, noise: Array) -> NDArray[np.bool_]:
        """Let the shadow follow; where it can, go on from where the strides end."""
        ok, shadow = np.ones(len(which), dtype=bool), step.terms[:, :NODES]
        if self.z is not None:
            z, nodes = self.z[which], 2.0 * radau(NODES - 1).nodes - 1.0
            guess = legendre(nodes, NODES) @ step.terms + (z - self.y[which])[:, None]
            # one iterate alone would leave much of what the run has left
            follower = self._solve(NODES - 1, which, x, h, z, guess, noise, least=2)
            ok, shadow = np.isfinite(follower.left), follower.terms
            self.z[which[ok]] = follower.arrival[ok]
            self.left[which[ok]] += follower.left[ok]
        if not ok.any():
            return ok
        some, terms, begin, length = which[ok], step.terms[ok], x[ok], h[ok]
        self.y[some], self.x[some] = step.arrival[ok], begin + length
        self._terms[some], self._begin[some], self._length[some] = terms, begin, length
        self.left[some] += step.left[ok]
        self.records.append(Record(some, begin, length, terms, shadow[ok]))
        if self.z is not None:
            parted = terms - np.pad(shadow[ok], ((0, 0), (0, 1), (0, 0)))
            parted = legendre(2.0 * radau(NODES).nodes - 1.0, NODES) @ parted
            self.apart = max(self.apart, float(np.abs(parted).max(initial=0.0)))
        return ok

    def _probe(self, which: Index, x: Array, y: Array, h: Array) -> Array:
        """What rounding leaves in strides, (n,), seen where last bits change; and a look at the fastest mode."""
        n, m = y.shape
        direction = self._direction[which]
        size = np.abs(y).max(axis=1)
        length = 1e-5 * np.maximum(1.0, size) / np.abs(direction).max(axis=1)
        nudge = length[:, None] * direction
        bits = y * (1.0 + np.where(np.arange(m) % 2, ROUNDING, -ROUNDING))
        here, ahead, other = np.split(self._moves(np.concatenate([y, y + nudge, bits]), np.tile(which, 3)), 3)
        change = ahead - here
        grown, before = np.linalg.norm(change, axis=1), np.linalg.norm(nudge, axis=1)
        if not self._flow and (grown / before).max(initial=0.0) > 1.9:
            raise TooFast  # a mode that hardly contracts, or grows, is not at rest
        seen = grown > 1e-200
        self._direction[which[seen]] = change[seen] / grown[seen, None]
        self._move[which], self._pace[which] = here, np.abs(here).max(axis=1) * np.exp(x)
        noise = 2.0**-47 * size + 1e-300
        if self._modes is not None:
            steps = (np.expm1(x + h) - np.expm1(x))[:, None, None]
            components = self._modes.into((other - here)[:, None], which)
            growth = np.abs(self._modes.growth(x[:, None], which)).swapaxes(1, 2)
            off = self._modes.out_of(components * steps / (1.0 + steps * growth), which)
            noise += 8.0 * np.abs(off).max(axis=(1, 2))
        return noise

    def _limit(self, y: Array, pace: Array) -> Array:
        """Tolerance for a stride of each block, (n,): a relative error of the time amounts to that times dθ/dx."""
        size, gain = np.abs(y).max(axis=1), self._gain
        if len(self.y) == 1 and np.isfinite(y).all():  # one block: the parameters themselves
            gain = self._layout.descent.risk.gain(self._layout.params(y))
        largest = np.maximum(self._tolerance / gain, self._tolerance * size if self._flow else 0.0)
        least = 2.3e-14 / self.share * size
        limit = np.minimum(largest, np.maximum(self._tolerance * pace, least))
        return self.share * np.maximum(np.where(np.isfinite(limit), limit, 0.0), 1e-200)

    def _guess(self, which: Index, x: Array, h: Array, y: Array) -> Array:
        """Values at the nodes: where the last stride leads, or the last move."""
        places = x[:, None] + radau(NODES).nodes * h[:, None]
        ahead = np.expm1(places) - np.expm1(x)[:, None]
        guess = y[:, None] + ahead[:, :, None] * self._move[which][:, None]
        known = self._length[which] > 0.0
        some = which[known]
        guess[known] = valued(self._terms[some], places[known], self._begin[some], self._length[some])
        return guess

    def forget(self, t: int) -> None:
        """Drop the strides that end before a time."""
        x = math.log1p(t) - SLACK
        self.records = [record for record in self.records if (record.begin + record.length >= x).any()]

    def states(self, times: Steps) -> tuple[Array, Array]:
        """Run and shadow at times up to which all blocks are known, (q, n, m) each."""
        x, found = np.log1p(times), np.full((2, len(times), *self.y.shape), np.nan)
        for record in self.records:
            first, last = record.begin - SLACK, record.begin + record.length + SLACK
            row, place = np.nonzero((first[:, None] <= x) & (x <= last[:, None]))
            if row.size:
                basis = record.basis(row, x[place, None])
                for values, terms in zip(found, (record.run, record.shadow), strict=True):
                    values[place, record.which[row]] = (basis[..., : terms.shape[1]] @ terms[row])[:, 0]
        return found[0], found[1]

    def land(self, t: int) -> tuple[Array, Array]:
        """The same by strides that end at the time: their ends are far better than what lies between."""
        run, shadow = (found[0] for found in self.states(np.array([t])))
        x = math.log1p(t)
        for record in self.records:
            on = (record.begin < x - SLACK) & (x <= record.begin + record.length)
            if not on.any():
                continue
            which, begin, h = record.which[on], record.begin[on], x - record.begin[on]
            for found, terms, stages in ((run, record.run, NODES), (shadow, record.shadow, NODES - 1)):
                places = begin[:, None] + radau(stages).nodes * h[:, None]
                start = ((-1.0) ** np.arange(terms.shape[1])) @ terms[on]
                guess = valued(terms[on], places, begin, record.length[on])
                step = self._solve(stages, which, begin, h, start, guess, 2.0**-47 * np.abs(start).max(axis=1))
                solved = np.isfinite(step.left)
                found[which[solved]] = step.arrival[solved]
        return run, shadow


class Skipper:
    """A run that skips iterates, and its shadow.

    Parameters
    ----------
    descent : Descent
        The map.
    tolerance : float
        Absolute, in scores.
    budget : int
        Gradients that may be evaluated altogether.
    flow : bool
        Follow the flow, not the iterates.

    Attributes
    ----------
    error : float
        Estimated error of the scores so far, at worst.
    skipped : bool
        Whether any step was skipped.
    """

    def __init__(self, descent: Descent, tolerance: float, budget: int, flow: bool = False) -> None:
        self.descent, self.tolerance, self.budget, self.flow = descent, tolerance, budget, flow
        self.error, self.skipped = 0.0, False
        self._layout = Layout(descent)
        self._other: Array | None = None  # the shadow, once there is one
        self._strides: Strides | None = None
        self._walked: dict[int, tuple[Array, Array]] = {}  # run and shadow at the last two single steps
        self.reach = 2.0 if descent.risk.initial.size <= 2**18 else 0.5  # in x: how far strides go before a look
        self._left = 0.0  # what the strides before these have left
        self._watched = not flow
        self._seen: deque[tuple[int, float]] = deque(maxlen=4096)  # losses of the shadow

    def points(
        self, schedule: Steps, exact: int, start: Point | None = None
    ) -> Generator[Point, None, None]:
        """Yield every iterate up to step ``exact`` and where skipping does not pay, else the scheduled ones."""
        begun = start is not None
        point = start or self.descent.point(self.descent.risk.initial, 0)
        pause, next_try = 64, max(exact, 128)
        if self.flow:
            yield point
            yield from self._skip(point, schedule, 0.05)
            return
        while point.step < schedule[-1]:
            recent: deque[Array] = deque(maxlen=3)
            for point in self._single(point, begun):
                yield point
                recent.append(point.params)
                changing = _changing(*recent) if len(recent) == 3 else math.inf
                if point.step >= next_try and 64.0 * changing <= 1.0:
                    break
                if point.step >= schedule[-1]:
                    return
            left, spent, begun = point.step, self.descent.evaluations, True
            with np.errstate(divide="ignore"):
                first = min(0.05, math.log1p(0.2 / max(changing * (left + 1.0), 1e-9)))
            for point in self._skip(point, schedule, max(first, math.log1p(16.0 / (left + 1.0)))):
                yield point
            paid = 2 * (point.step - left) > self.descent.evaluations - spent
            pause = 64 if paid else 2 * pause
            next_try = point.step + pause

    def _single(self, start: Point, begun: bool) -> Iterator[Point]:
        """Yield iterates; the shadow goes along."""
        iterates = self.descent.iterates(start.params, start.step)
        shadow = None if self._other is None else self.descent.iterates(self._other, start.step)
        for point in iterates:
            if self.descent.evaluations + 2 > self.budget:
                raise Ended(Stop.WORK, work=self.budget)
            if shadow is not None:
                other = next(shadow)
                self._other = other.params
                self._walked = {t: pair for t, pair in self._walked.items() if t == point.step - 1}
                self._walked[point.step] = point.params, self._other
                self._note(point.params, self._other)
                self._seen.append((point.step, other.loss))
            if begun:
                begun = False
                continue
            yield point

    def _skip(self, start: Point, schedule: Steps, first: float) -> Iterator[Point]:
        """Yield the points at the scheduled times after ``start``, as long as skipping works and pays."""
        y, layout = start.params, self._layout
        if self._other is None and self._watched:  # moved by what rounding does in many steps: an orbit may enlarge it
            self._other = y * (1.0 + np.where(np.arange(y.size) % 2, 2.0**-44, -(2.0**-44))).reshape(y.shape)
        gain = self.descent.risk.gain(y)
        strides = Strides(
            layout, self.tolerance, layout.rows(y), None if self._other is None else layout.rows(self._other),
            start.step, self.budget, self.flow, first,
        )  # fmt: skip
        self._strides, last = strides, start.step
        ahead, end, slow = schedule[schedule > last], math.log1p(schedule[-1]), False
        while ahead.size and not slow:
            x = math.log1p(ahead[0])
            if float(strides.x.min()) < x - SLACK:  # many blocks at a time cost less each
                strides.forget(last)
                try:
                    strides.reach(min(x + self.reach, end))
                except TooFast:
                    slow = True
            within = ahead[np.log1p(ahead) <= strides.x.min() + SLACK]
            ahead = ahead[len(within) :]
            yield from self._points(strides, within)
            last = int(within[-1]) if within.size else last
        t = int(math.floor(math.expm1(float(strides.x.min()) + SLACK)))
        if slow and t > last:
            yield from self._points(strides, np.array([t]))
        self._left += gain * float(strides.left.max())

    def _points(self, strides: Strides, times: Steps) -> Iterator[Point]:
        for t, *rows in zip(times.tolist(), *strides.states(times), strict=True):
            run, shadow = (self._layout.params(each) for each in rows)
            self.skipped, point = True, self.descent.point(run, t)
            if self._other is not None:
                self._other = shadow
                self._note(run, shadow, strides)
                self._seen.append((t, self.descent.point(shadow, t).loss))
            yield point

    def _note(self, run: Array, shadow: Array, strides: Strides | None = None) -> None:
        apart = float(np.abs(run - shadow).max(initial=0.0))
        left = 0.0
        if strides is not None:
            apart, left = max(apart, strides.apart), float(strides.left.max())
        size = float(np.abs(run).max(initial=0.0))
        if MARGIN * apart > 0.1 * size:  # too far for an estimate of first order: in chaos, or late at a drop
            apart = max(apart, size)
        off = MARGIN * apart + left + 2.0**-50 * size
        self.error = max(self.error, self.descent.risk.gain(run) * off + self._left)

    def first_below(self, epsilon: float, above: Point, below: Point) -> Point:
        """First step with loss <= epsilon between two points: by bisection, then by strides that end there.

        The times of the latter are those of Newton's iteration; the loss falls by hardly more in one step than in
        the one before it.
        """
        strides, layout = self._strides, self._layout
        if strides is None or below.step - above.step == 1:
            return below
        low, found = above.step, below
        while found.step - low > 1:
            middle = (low + found.step) // 2
            point = self.descent.point(layout.params(strides.states(np.array([middle]))[0][0]), middle)
            low, found = (low, point) if point.loss <= epsilon else (middle, found)
        if self.flow:
            return found
        t = found.step
        for _ in range(8):
            before = self.descent.point(layout.params(strides.land(t - 1)[0]), t - 1)
            after = self.descent.point(before.params + self.descent.move(before.gradient), t)
            if before.loss > epsilon >= after.loss:
                return after
            decrease = before.loss - after.loss
            if not decrease > 0.0:
                break
            t = min(max(t + math.ceil((after.loss - epsilon) / decrease), above.step + 1), below.step)
        return found

    def count_error(self, hit: Point, epsilon: float) -> float:
        """Error of the first step with loss <= epsilon, from what parts run and shadow there.

        The loss may be off by the sum of |gradient| times the distance. Where epsilon is further than that from the
        losses at the step and before it, the step is the right one, and the error is below 1. Where run and shadow
        are further apart than a step, it is their counts that tell how late the run may be.
        """
        if hit.step == 0 or self._strides is None or not self.skipped:
            return 0.0
        steps, clear = 0.0, True
        for t in (hit.step - 1, hit.step):
            run, shadow = self._pair(t)
            point = self.descent.point(run, t)
            size = MARGIN * np.abs(run - shadow) + float(self._strides.left.max()) + 2.0**-50 * np.abs(run)
            off = float(np.sum(size * np.abs(point.gradient))) + 2.0**-50 * abs(point.loss)
            slope = self.descent.slope(point.gradient)
            steps = max(steps, off / slope if slope > off * 2.0**-53 else 2.0**53)
            clear = clear and abs(point.loss - epsilon) > off
        late = MARGIN * abs(self._count_of_shadow(hit.step, epsilon) - hit.step)
        return steps if clear and steps < 1.0 and late <= MARGIN else max(float(math.ceil(steps)), late)

    def _count_of_shadow(self, hit: int, epsilon: float) -> float:
        """First step at which the loss of the shadow is at most epsilon, infinite where that is not known."""
        earlier = next((i for i, (_, loss) in enumerate(self._seen) if loss <= epsilon), None)
        if earlier is not None:
            high = self._seen[earlier][0]
            low = self._seen[earlier - 1][0] if earlier else 0
        else:
            assert self._strides is not None
            low = self._seen[-1][0] if self._seen else hit
            high = int(math.floor(math.expm1(float(self._strides.x.min()) + SLACK)))
            if high <= low or self._loss_of_shadow(high) > epsilon:
                return math.inf
        while high - low > 1:
            middle = (low + high) // 2
            loss = self._loss_of_shadow(middle)
            if math.isnan(loss):
                break
            low, high = (low, middle) if loss <= epsilon else (middle, high)
        return float(high)

    def _loss_of_shadow(self, t: int) -> float:
        """Not a number where the strides there are forgotten."""
        assert self._strides is not None
        shadow = self._strides.states(np.array([t]))[1][0]
        return self.descent.point(self._layout.params(shadow), t).loss if np.isfinite(shadow).all() else math.nan

    def _pair(self, t: int) -> tuple[Array, Array]:
        """Run and shadow at a step that was passed last."""
        if t in self._walked:
            return self._walked[t]
        assert self._strides is not None
        run, shadow = self._strides.land(t)
        return self._layout.params(run), self._layout.params(shadow)

    def state(self, params: Array, begin: int, end: int) -> Array:
        """State at a later step."""
        start = self.descent.point(params, begin)
        self._watched = False
        for point in self.points(np.array([end]), begin, start):
            if point.step == end:
                return point.params
        raise AssertionError


def _changing(first: Array, second: Array, third: Array) -> float:
    """By how much of itself the move changes from one step to the next."""
    move = second - first
    size = float(np.abs(move).max(initial=0.0))
    return float(np.abs(third - second - move).max(initial=0.0)) / size if size > 0.0 else 0.0
