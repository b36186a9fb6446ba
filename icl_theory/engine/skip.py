"""The iterates of gradient descent without visiting most of them, with an estimate of the error.

A run is followed by strides (`icl_theory.engine.collocation`), and so is its shadow, by
the same strides with a node less. The shadow is less exact, and what parts the two is
the estimate. Where iterates are taken one by one, the shadow takes them too, so that
the estimate grows as errors grow. See docs/theory.md, "Skipping ahead".
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.engine.blocks import Blocks, Modes
from icl_theory.engine.capabilities import gain_at
from icl_theory.engine.collocation import (
    Index,
    Solved,
    collocate,
    legendre,
    radau,
    valued,
    weights_of,
)
from icl_theory.engine.rules import NO_MEMORY
from icl_theory.engine.steps import (
    Descent,
    Ended,
    Followed,
    Point,
    Steps,
    TooFast,
    TrainingState,
)
from icl_theory.engine.trajectory import Stop
from icl_theory.engine.whole_state import whole_state

Mask = NDArray[np.bool_]
NODES = 9  # of a stride of the run; the shadow has one less
# twice those of Legendre's polynomials at 1
SLOPES = np.arange(NODES + 1.0) * np.arange(1.0, NODES + 2.0)
UNSOLVED = (
    2.0  # what the equations leave may move the solution by this factor times as much
)
# times as much as equations of the run, those of the shadow may leave: of a run 3 % of
# a stride's error
LOOSE = 30.0
MARGIN = 2.0  # the shadow may be nearer to the run than the truth is, by this factor
# the error that a stride adds to the run may be larger than estimated, by this factor
CAUTION = 4.0
ROUNDING = 2.0**-52
SLACK = (
    1e-14  # in x: rounding parts the end of a stride from the beginning of the next one
)


class StrideErrors(NamedTuple):
    """Estimates for some strides, one entry for each."""

    error: Array  # of the run anywhere in the stride
    distance: Array  # largest between run and shadow in the stride
    margin: Array  # error of the run in units of its distance from the shadow


class Record(NamedTuple):
    """Strides of some blocks: where each begins, its length in x = ln(1 + t), and polynomials of run and shadow."""

    which: Index
    begin: Array
    length: Array
    run: Array
    shadow: Array
    errors: StrideErrors | None  # None without a shadow


class Strides:
    """Blocks of parameters, each with strides of its own, and their shadows.

    The run begins at ``y`` and its shadow, if there is one, at ``z``, (n, m) each, at
    time ``t``, with strides of length ``first`` in x. The ``tolerance`` is absolute, in
    scores; of a flow it is relative to the parameters as well. One stride uses a
    ``share`` of it, so that dozens of them keep to it, and aims at the part ``aim`` of
    the length that would: where blocks wait for each other, a shorter one is refused
    less often. With ``separate`` blocks, which belong to different runs, those that
    cannot be followed are left behind. The equations may leave the part ``solved`` of
    the error that a stride may have. Strides ``before``, of the same blocks, tell the
    error of the run in units of its distance from the shadow, and the direction of the
    fastest mode.
    """

    def __init__(
        self,
        blocks: Blocks,
        tolerance: float,
        y: Array,
        z: Array | None,
        t: float,
        first: float,
        budget: int,
        flow: bool,
        share: float = 0.01,
        aim: float = 0.9,
        separate: bool = False,
        solved: float = 0.001,
        before: Strides | None = None,
    ) -> None:
        self._blocks = blocks
        self._budget = budget
        self._flow = flow
        self._tolerance = tolerance
        self._share = share
        self._aim = aim
        self._solved = solved
        self._separate = separate
        n, m = y.shape
        # up to where each block is known
        self.y = y
        self.z = z
        self.x = np.full(n, math.log1p(t))
        # error of the run from what the solutions of the equations have left so far
        self.left: Array = np.zeros(n) if before is None else before.left.copy()
        self.margin: Array = np.full(n, MARGIN) if before is None else before.margin
        # of the run
        self._error = (
            np.zeros(n) if z is None else self.margin * np.abs(z - y).max(axis=1)
        )
        self.records = list[Record]()
        # whether a mode of the last strides oscillates
        self.lost = np.zeros(n, dtype=bool)
        self.swings = False
        self._gain = gain_at(blocks.descent.risk, blocks.params(y))
        self._h = np.full(n, first)
        self._ideal = np.zeros(n)
        self._pace = np.zeros(n)
        self._debt = np.zeros(n)
        self._terms = np.zeros((n, NODES + 1, m))
        self._move = np.zeros((n, m))
        self._begin = np.zeros(n)
        self._length = np.zeros(n)
        # near that of the fastest mode after some strides
        self._direction: Array = (
            np.random.default_rng(n).normal(size=(n, m))
            if before is None
            else before._direction
        )
        self._modes: Modes | None = None
        self._wasted = self._owed = 0.0

    def expect(self, taken: dict[int, Array]) -> None:
        """Guess that the first strides go on like these iterates by their steps, of which there are NODES + 1."""
        x = np.log1p([*taken])
        rows = np.stack([*taken.values()], axis=1)
        degree = len(x) - 1
        self._begin[:], self._length[:] = x[0], x[-1] - x[0]
        self._terms = (
            np.linalg.inv(legendre(2.0 * (x - x[0]) / (x[-1] - x[0]) - 1.0, degree))
            @ rows
        )

    def reach(self, x: Array | float, cached: int = 2**20) -> None:
        """Move all blocks to a time ln(1 + t) or beyond, in groups of ``cached`` numbers, which a cache holds.

        Each block may have a time of its own, (n,).

        Raises
        ------
        TooFast
            Where strides are too short to pay, or an oscillation might be passed over.
        """
        size = max(1, cached // (NODES * self.y.shape[1]))
        while (behind := np.flatnonzero((self.x < x - SLACK) & ~self.lost)).size:
            for start in range(0, len(behind), size):
                self._stride(behind[start : start + size])

    def _stride(self, which: Index) -> None:
        x = self.x[which]
        y = self.y[which]
        h = self._h[which]
        spent = self._spent
        noise = self._probe(which, x, y, h)
        step = self._solve(NODES, which, x, h, y, self._guess(which, x, h, y), noise)
        error = step.error
        pace = np.where(
            np.isfinite(error), np.abs(SLOPES @ step.terms).max(axis=1) / h, np.inf
        )
        with np.errstate(invalid="ignore"):
            allowed = np.maximum(self._allowed(step.arrival, pace), noise)
        good = error <= allowed
        if good.any():
            good[good] = self._accept(
                which[good], x[good], h[good], step.of(good), noise[good]
            )
        self._plan(which, h, error / allowed, step.iterations, good)
        if self._flow:
            if self._h.min() < 1e-13:
                raise Ended(Stop.FLOW)
        else:
            passed = np.where(good, np.expm1(x + h) - np.expm1(x), 0.0)
            self._charge(
                which, (self._spent - spent) * len(self.y) / len(which), passed
            )
        self._look_for_modes(step)

    def _plan(
        self,
        which: Index,
        h: Array,
        ratio: Array,
        iterations: NDArray[np.int64],
        good: Mask,
    ) -> None:
        """Lengths of the next strides from the errors of these, in units of what is allowed."""
        with np.errstate(divide="ignore", over="ignore"):
            factor = self._aim * ratio ** (-1.0 / (NODES + 1))
        factor = np.clip(
            factor, 0.2, np.where(good, np.where(iterations > 7, 0.8, 2.0), 0.7)
        )
        ideal = np.where(np.isfinite(ratio), factor, 0.4) * h
        before = self._ideal[which]
        trend = np.divide(
            ideal, before, out=np.ones(len(h)), where=good & (before > 0.0)
        )
        # towards a drop each stride is shorter than the last
        self._h[which] = ideal * np.clip(trend, 0.5, 1.0)
        self._ideal[which] = np.where(good, ideal, before)

    def _charge(
        self,
        which: Index,
        cost: float,
        passed: Array,
        patience: float = 400.0,
        fewest: float = 8.0,
    ) -> None:
        """Count gradients spent in excess of two for each skipped step; the run and its shadow need one each."""
        self._debt[which] = np.maximum(0.0, self._debt[which] + cost - 2.0 * passed)
        debt = self._debt if self._separate else self._debt.mean()
        self._give_up((debt > patience) | (self._h * np.exp(self.x) < fewest))

    def _give_up(self, blocks: Mask) -> None:
        """Follow some blocks no longer, or none."""
        if blocks.any() and not self._separate:
            raise TooFast
        self.lost |= blocks

    def _look_for_modes(
        self, step: Solved, easy: int = 5, fewest: float = 2500.0
    ) -> None:
        """Find the modes once the iterates that they would have saved cost more than they do.

        An iterate of few blocks takes as long as one of ``fewest`` numbers: the time is
        that of calls of NumPy.
        """
        hard = np.where(
            np.isfinite(step.left), step.iterations - easy, step.iterations
        ).clip(min=0)
        n, m = self.y.shape
        self._wasted += (
            max(float(hard.sum()) * NODES, float(hard.max()) * fewest / m) / n
        )
        if self._blocks.solvable and self._wasted > self._blocks.price:
            self._wasted, self._modes = 0.0, self._blocks.modes(self.y, self.x)

    @property
    def _spent(self) -> float:
        return self._blocks.descent.evaluations + self._owed

    def _moves(self, rows: Array, which: Index) -> Array:
        descent = self._blocks.descent
        if self._blocks.gradients is not None:  # a block costs its share of a gradient
            self._owed += len(rows) / len(self.y)
            descent.evaluations = descent.evaluations + int(self._owed)
            self._owed = self._owed % 1.0
        if descent.evaluations > self._budget:
            raise Ended(Stop.WORK, work=self._budget)
        return self._blocks.moves(rows, which)

    def _solve(
        self,
        stages: int,
        which: Index,
        x: Array,
        h: Array,
        y: Array,
        guess: Array,
        noise: Array,
        least: int = 1,
    ) -> Solved:
        """Solve the equations of strides: by fixed-point iterates, or Newton's method where modes are known."""
        weights = weights_of(stages, x, h, self._flow)
        modes = self._modes
        wanted = (
            self._solved
            * (1.0 if stages == NODES else LOOSE)
            * self._allowed(y, self._pace[which])
        )
        if modes is None:
            newton = (
                self._blocks.memory_newton(weights) if self._blocks.has_memory else None
            )
            return collocate(
                self._moves, which, weights, y, guess, wanted, noise, newton, least
            )
        newton = modes.newton(
            weights, x[:, None] + radau(stages).nodes * h[:, None], which
        )
        return collocate(
            self._moves, which, weights, y, guess, wanted, noise, newton, least
        )

    def _accept(
        self, which: Index, x: Array, h: Array, step: Solved, noise: Array
    ) -> Mask:
        """Let the shadow follow; if it can, go on from the ends of the strides."""
        if self.z is None:
            self.left[which] += UNSOLVED * step.left
            record = Record(which, x, h, step.terms, step.terms[:, :NODES], None)
            self._advance(record, step)
            return np.ones(len(which), dtype=bool)
        shadow_start = self.z[which]
        behind = shadow_start - self.y[which]
        nodes = 2.0 * radau(NODES - 1).nodes - 1.0
        guess = legendre(nodes, NODES) @ step.terms + behind[:, None]
        # one iterate alone would leave much of what the run has left
        follower = self._solve(
            NODES - 1, which, x, h, shadow_start, guess, noise, least=2
        )
        ok = np.isfinite(follower.left)
        if ok.any():
            blocks = which[ok]
            step = step.of(ok)
            follower = follower.of(ok)
            self.z[blocks] = follower.arrival
            errors = self._estimate(
                blocks, np.abs(behind[ok]).max(axis=1), step, follower
            )
            self._advance(
                Record(blocks, x[ok], h[ok], step.terms, follower.terms, errors), step
            )
        return ok

    def _advance(self, record: Record, step: Solved) -> None:
        """Go on from the ends of strides."""
        blocks = record.which
        self.y[blocks] = step.arrival
        self.x[blocks] = record.begin + record.length
        self._terms[blocks] = step.terms
        self._begin[blocks] = record.begin
        self._length[blocks] = record.length
        self.records.append(record)

    def _estimate(
        self, blocks: Index, before: Array, step: Solved, follower: Solved
    ) -> StrideErrors:
        """Estimate the errors of the run in strides at whose start its distance from the shadow is ``before``."""
        apart = step.terms.copy()
        apart[:, :NODES] -= follower.terms
        at_nodes = legendre(2.0 * radau(NODES).nodes - 1.0, NODES) @ apart
        distance = np.abs(at_nodes).max(axis=(1, 2))
        after = np.abs(follower.arrival - step.arrival).max(axis=1)
        # The coefficient that the shadow lacks may be small by chance; the distance
        # inside the stride is not.
        lacked = np.maximum(step.last, distance - np.maximum(before, after))
        own = CAUTION * (step.ratio * lacked + step.left)
        added = step.last + UNSOLVED * (step.left + follower.left)
        growth = _growth(before, after, added)
        inherited = self._error[blocks]
        grown = growth.cautious * inherited
        # Where the distance is far below the error, it does not tell how that grows: it
        # was all but rounding, say,
        # and the shadow's own error then passes for growth. Errors grow to twice the
        # distance at most.
        grown = np.where(
            growth.cautious > 1.0,
            np.maximum(inherited, np.minimum(grown, MARGIN * after)),
            grown,
        )
        error = np.maximum(inherited, grown) + own
        self._error[blocks] = grown + own
        unsolved = np.minimum(1.0, growth.nearest) * self.left[blocks]
        self.left[blocks] = unsolved + UNSOLVED * step.left
        # Single steps from the end of a stride enlarge the error there, and not the one
        # inside it.
        at_end = self._error[blocks] / np.maximum(after, 1e-300)
        margin = np.maximum(
            error / np.maximum(distance, 1e-300), np.minimum(MARGIN, at_end)
        )
        self.margin[blocks] = margin
        return StrideErrors(error, distance, margin)

    def _probe(self, which: Index, x: Array, y: Array, h: Array) -> Array:
        """What rounding leaves in strides, (n,), seen where last bits change; and a look at the fastest mode."""
        direction = np.zeros_like(y)
        size = np.abs(y).max(axis=1)
        # only parameters are moved: how that changes their move tells the curvature,
        # whatever the memory does
        own = self._blocks.own
        own(direction)[:] = own(self._direction[which])
        length = 1e-5 * np.maximum(1.0, size) / np.abs(direction).max(axis=1)
        nudge = length[:, None] * direction
        places = [y, y + nudge]
        if self._modes is not None:
            places.append(
                y * (1.0 + np.where(np.arange(y.shape[1]) % 2, ROUNDING, -ROUNDING))
            )
        count = len(places)
        here, ahead, *other = np.split(
            self._moves(np.concatenate(places), np.tile(which, count)), count
        )
        self._move[which], self._pace[which] = (
            here,
            np.abs(here).max(axis=1) * np.exp(x),
        )
        change = np.zeros_like(y)
        own(change)[:] = own(ahead - here)  # one step of the power method
        grown = np.linalg.norm(change, axis=1)
        before = np.linalg.norm(nudge, axis=1)
        # at 2 a mode oscillates for ever, and just below for so long that it is not at
        # rest
        if not self._flow:
            fast = np.zeros(len(self.y), dtype=bool)
            fast[which[grown > 0.95 * self._blocks.fastest * before]] = True
            self.swings = bool(fast.any())
            self._give_up(fast)
        seen = grown > 1e-200
        self._direction[which[seen]] = change[seen] / grown[seen, None]
        noise = 2.0**-47 * size + 1e-300
        if self._modes is not None:
            steps = np.expm1(x + h) - np.expm1(x)
            off = self._modes.accumulated(other[0] - here, x, steps, which)
            # other bits may change the moves by more
            noise += 8.0 * np.abs(off).max(axis=1)
        return noise

    def _allowed(self, y: Array, pace: Array) -> Array:
        """Error that a stride of each block may have, (n,): one of the time amounts to that times dθ/dx."""
        size = np.abs(y).max(axis=1)
        gain = self._gain
        if len(self.y) == 1 and np.isfinite(y).all():  # the parameters themselves
            gain = gain_at(self._blocks.descent.risk, self._blocks.params(y))
        largest = np.maximum(
            self._tolerance / gain, self._tolerance * size if self._flow else 0.0
        )
        # hundred times what rounding makes of the parameters
        least = 2.3e-14 / self._share * size
        limit = np.minimum(largest, np.maximum(self._tolerance * pace, least))
        return self._share * np.maximum(
            np.where(np.isfinite(limit), limit, 0.0), 1e-200
        )

    def _guess(self, which: Index, x: Array, h: Array, y: Array) -> Array:
        """Values at the nodes: where the last stride leads, or the last move."""
        places = x[:, None] + radau(NODES).nodes * h[:, None]
        ahead = np.expm1(places) - np.expm1(x)[:, None]
        guess = y[:, None] + ahead[:, :, None] * self._move[which][:, None]
        known = self._length[which] > 0.0
        some = which[known]
        guess[known] = valued(
            self._terms[some], places[known], self._begin[some], self._length[some]
        )
        return guess

    def reflected(self, swing: Array) -> Array:
        """What reverses the phase of the fastest mode, (n, m), given how the run swings from step to step."""
        unit = self._direction / np.linalg.norm(self._direction, axis=1, keepdims=True)
        size = np.sum(unit * swing, axis=1)
        return -(size + np.copysign(self.left, size))[:, None] * unit

    def forget(self, t: int) -> None:
        """Drop the strides that end before a time."""
        x = math.log1p(t) - SLACK
        self.records = [
            record
            for record in self.records
            if (record.begin + record.length >= x).any()
        ]

    def worst_until(self, x: Array) -> tuple[Array, Array]:
        """Largest error, and largest distance, in the strides that begin up to some times, (q,) each."""
        errors = [record.errors for record in self.records if record.errors is not None]
        if not errors:
            return np.zeros_like(x), np.zeros_like(x)
        begin = np.concatenate([record.begin for record in self.records])
        order = np.argsort(begin)
        # The first stride begins at any of the times, but for rounding.
        last_begun = np.maximum(np.searchsorted(begin[order], x, side="right") - 1, 0)
        error = np.concatenate([estimate.error for estimate in errors])[order]
        distance = np.concatenate([estimate.distance for estimate in errors])[order]
        return np.maximum.accumulate(error)[last_begun], np.maximum.accumulate(
            distance
        )[last_begun]

    def margins(self, x: float) -> Array:
        """Error of the run in units of its distance from the shadow, (n,), in the strides at a time."""
        margins = np.array(self.margin)
        for record in self.records:
            if record.errors is not None:
                on = (record.begin <= x + SLACK) & (
                    x <= record.begin + record.length + SLACK
                )
                margins[record.which[on]] = record.errors.margin[on]
        return margins

    def states(self, times: Steps) -> tuple[Array, Array]:
        """Run and shadow at times that all blocks have reached, (q, n, m) each; NaN where strides are dropped."""
        n = len(self.y)
        return self.at(
            np.broadcast_to(np.log1p(times)[:, None], (len(times), n)), np.arange(n)
        )

    def at(self, x: Array, which: Index) -> tuple[Array, Array]:
        """Run and shadow of k blocks at times x of each, (..., k): (..., k, m) each; NaN where none is known."""
        run, shadow = np.full((2, *x.shape, self.y.shape[1]), np.nan)
        if not self.records:
            # From t = 1e14 on, x does not tell a few steps from the start of the first
            # stride.
            at_start = np.abs(x - self.x[which]) <= SLACK
            run[at_start] = np.broadcast_to(self.y[which], run.shape)[at_start]
            if self.z is not None:
                shadow[at_start] = np.broadcast_to(self.z[which], run.shape)[at_start]
        place = np.full(len(self.y), -1)
        place[which] = np.arange(len(which))
        for record in self.records:
            on = np.flatnonzero(place[record.which] >= 0)
            along = x[..., place[record.which[on]]] - record.begin[on]
            *times, row = np.nonzero(
                (along >= -SLACK) & (along <= record.length[on] + SLACK)
            )
            if row.size:
                row = on[row]
                begin = record.begin[row]
                length = record.length[row]
                to = (*times, place[record.which[row]])
                for found, terms in ((run, record.run), (shadow, record.shadow)):
                    found[to] = valued(terms[row], x[to][:, None], begin, length)[:, 0]
        return run, shadow

    def land(self, t: int) -> tuple[Array, Array]:
        """Run and shadow at a time, by strides that end there: their ends are far better than what lies between."""
        x, (run, shadow) = (
            math.log1p(t),
            (found[0] for found in self.states(np.array([t]))),
        )
        for record in self.records:
            on = (record.begin < x - SLACK) & (
                x <= record.begin + record.length + SLACK
            )
            if not on.any():
                continue
            which = record.which[on]
            begin = record.begin[on]
            h = x - record.begin[on]
            for found, terms, stages in (
                (run, record.run, NODES),
                (shadow, record.shadow, NODES - 1),
            ):
                start = ((-1.0) ** np.arange(terms.shape[1])) @ terms[on]
                places = begin[:, None] + radau(stages).nodes * h[:, None]
                guess = valued(terms[on], places, begin, record.length[on])
                step = self._solve(
                    stages,
                    which,
                    begin,
                    h,
                    start,
                    guess,
                    2.0**-47 * np.abs(start).max(axis=1),
                )
                solved = np.isfinite(step.left)
                found[which[solved]] = step.arrival[solved]
        return run, shadow


class Attempts:
    """When strides are tried: from step ``earliest`` on, if the move changes by less than e in ``smooth`` steps.

    After each try that did not pay twice as many single steps are taken before the next
    one.
    """

    def __init__(
        self, exact: int, earliest: int = 128, smooth: float = 64.0, shortest: int = 64
    ) -> None:
        self._smooth, self._shortest = smooth, shortest
        self._pause = shortest  # single steps before the next try
        self._next_try = max(exact, earliest)
        self._change = math.inf  # of the move in a step, relative to the move
        self._recent: deque[Array] = deque(maxlen=3)  # iterates

    def forget_moves(self, start: Point) -> None:
        """Begin with single steps at a point."""
        self._recent.clear()
        self._recent.append(start.params)

    def see(self, point: Point) -> None:
        """Take note of the next iterate."""
        self._recent.append(point.params)
        self._change = _changing(*self._recent) if len(self._recent) == 3 else math.inf

    def due(self, step: int) -> bool:
        """Whether strides are to be tried at a step."""
        return step >= self._next_try and self._smooth * self._change <= 1.0

    def first_length(self, step: int) -> float:
        """Length in x of the first stride: a fifth of the time in which the move changes by itself.

        It is not shorter than sixteen steps.
        """
        fifth = math.log1p(0.2 / max(self._change * (step + 1.0), 1e-9))
        return max(min(0.05, fifth), math.log1p(16.0 / (step + 1.0)))

    def judge(self, start: int, end: int, gradients: int) -> None:
        """Set the next try after one that led from a step to another."""
        paid = 2 * (end - start) > gradients
        self._pause = self._shortest if paid else 2 * self._pause
        self._next_try = end + self._pause


class Skipper(Followed):
    """A run that skips iterates, or follows the flow, and its shadow, which a flow has not.

    The ``tolerance`` is absolute, in scores. The first ``exact`` steps are taken one by
    one. Beyond the ``budget`` of gradients single steps are as quick, or a run takes
    too long.
    """

    skips = True

    def __init__(
        self,
        descent: Descent,
        tolerance: float,
        known: dict[int, TrainingState] | None = None,
        *,
        exact: int = 0,
        budget: int = 200_000,
        flow: bool = False,
    ) -> None:
        super().__init__(descent, known)
        # of a rule with a memory, steps are skipped as a map of the whole state
        self._map = whole_state(descent)
        self.tolerance = tolerance
        self.budget = budget
        self.flow = flow
        self._exact = exact
        self._watched = not flow
        self._worst = 0.0  # estimated error of the scores so far
        self._blocks = Blocks(self._map)
        self._strides: Strides | None = None
        self._other: Array | None = None  # the shadow, once there is one,
        self._walked: dict[
            int, tuple[Array, Array]
        ] = {}  # run and shadow at the last two single steps,
        # and losses of the shadow
        self._seen: deque[tuple[int, float]] = deque(maxlen=4096)
        self._size = 0.0  # largest scores so far

    @property
    def error(self) -> float | None:  # type: ignore[override]
        """Estimated error of the scores so far, at worst; None if no step was skipped, and of flows."""
        return self._worst if self.skipped and not self.flow else None

    def _points(self, schedule: Steps) -> Generator[Point, None, None]:
        start = self._map.point_at(self._map.start())
        yield self._map.real(start)
        for point in self._after(start, schedule):
            yield self._map.real(point)

    def _later(self, state: TrainingState, t: int) -> TrainingState:
        """Find the state at a step without a shadow."""
        descent = Descent(self.descent.risk, self.descent.eta, self.descent.rule)
        again = type(self)(descent, self.tolerance, budget=self.budget, flow=self.flow)
        again._watched = False
        start = again._map.point_at(again._map.into(state))
        for point in again._after(start, np.array([t])):
            if point.step == t:
                return again._map.real(point).state
        raise AssertionError("a scheduled step is reached")

    def _after(self, point: Point, schedule: Steps) -> Generator[Point, None, None]:
        """Yield the points after one: iterates at first and where skipping does not pay, else scheduled."""
        if self.flow:
            yield from self._stride(point, schedule, 0.05)
            return
        attempts = Attempts(max(self._exact, point.step))
        iterates = self._single(point)
        while point.step < schedule[-1]:
            attempts.forget_moves(point)
            for iterate in iterates:
                yield iterate
                point = iterate
                attempts.see(point)
                if point.step >= schedule[-1] or attempts.due(point.step):
                    break
            start = point.step
            shadow = self._other
            gradients_before = self._map.evaluations
            for scheduled in self._stride(
                point, schedule, attempts.first_length(start)
            ):
                yield scheduled
                point = scheduled
            if point.step > start:
                iterates = self._single(point)
            else:
                # Go on as if nothing had been tried, with the carry of the compensated
                # sum.
                self._other = shadow
            attempts.judge(start, point.step, self._map.evaluations - gradients_before)

    def _single(self, start: Point) -> Iterator[Point]:
        """Yield the iterates after a point; the shadow goes along."""
        iterates = self._map.iterates(start.state)
        shadows = None
        if self._other is not None:
            shadow_start = TrainingState(
                start.step, self._other, NO_MEMORY, np.zeros_like(self._other)
            )
            shadows = self._map.iterates(shadow_start)
        for point in iterates:
            if self._map.evaluations + 2 > self.budget:
                raise Ended(Stop.WORK, work=self.budget)
            if shadows is not None:
                shadow = next(shadows)
                self._other = shadow.params
                self._walked = {
                    t: pair for t, pair in self._walked.items() if t == point.step - 1
                }
                self._walked[point.step] = point.params, shadow.params
                self._note(point.params, shadow)
            if point.step > start.step:
                yield point

    def _stride(self, start: Point, schedule: Steps, first: float) -> Iterator[Point]:
        """Yield the points at the scheduled times after ``start``, as long as skipping works and pays."""
        y, blocks = start.params, self._blocks
        if self._other is None and self._watched:
            # moved by what rounding does in many steps, which an orbit may enlarge
            self._other = y * (
                1.0 + np.where(np.arange(y.size) % 2, 2.0**-44, -(2.0**-44))
            ).reshape(y.shape)
        strides = Strides(
            blocks,
            self.tolerance,
            blocks.rows(y),
            None if self._other is None else blocks.rows(self._other),
            start.step,
            first,
            self.budget,
            self.flow,
            before=self._strides,
        )
        self._strides = strides
        # at first so far that many blocks move together; less far if they are large, so
        # that progress is shown
        far = 0.5 if y.size > 2**18 else 5.0 if len(strides.y) > 1 else 2.0
        ahead = schedule[schedule > start.step]
        last = start.step
        slow = False
        while ahead.size and not slow:
            x = math.log1p(ahead[0])
            if strides.x.min() < x - SLACK:
                strides.forget(last)
                try:
                    strides.reach(min(x + far, math.log1p(schedule[-1])))
                    # a run may end soon, and what lies beyond its end is for nothing
                    far = min(far, 2.0)
                except TooFast:
                    slow = True
            within = ahead[np.log1p(ahead) <= strides.x.min() + SLACK]
            ahead = ahead[len(within) :]
            yield from self._noted(strides, within)
            last = int(within[-1]) if within.size else last
        if slow and (t := _whole(strides)) > last:
            yield from self._noted(strides, np.array([t]))
        if strides.swings and self._other is not None:
            # a swing that grows has one of two phases, which rounding may pick: the
            # shadow takes the other
            self._other = self._other + blocks.params(
                strides.reflected(blocks.rows(self._swing(strides)))
            )
            strides.margin[:] = MARGIN

    def _swing(self, strides: Strides) -> Array:
        """How the run swings from one step to the next where strides end: third differences of its moves."""
        t = _whole(strides)
        params = self._blocks.params(strides.states(np.array([t]))[0][0])
        swing = np.zeros_like(params)
        for weight in (1.0, -3.0, 3.0, -1.0):
            move = self._map.point(params, t).update(self._map)[0]
            params = params + move
            swing = swing - weight / 8.0 * move
        return swing

    def _noted(self, strides: Strides, times: Steps) -> Iterator[Point]:
        """Yield points of strides, each compared with the shadow."""
        errors, distances = strides.worst_until(np.log1p(times))
        points = zip(
            times.tolist(), *strides.states(times), errors, distances, strict=True
        )
        for t, run_rows, shadow_rows, error, distance in points:
            run = self._blocks.params(run_rows)
            self.skipped = True
            if self._other is not None:
                self._other = self._blocks.params(shadow_rows)
                self._note(
                    run,
                    self._map.point(self._other, t),
                    (float(error), float(distance)),
                )
            yield self._map.point(run, t)

    def _note(
        self, run: Array, shadow: Point, worst: tuple[float, float] | None = None
    ) -> None:
        """Compare run and shadow; ``worst`` are error and distance in the strides up to here, if there are some."""
        self._seen.append((shadow.step, shadow.loss))
        rows = self._blocks.rows(run - shadow.params)
        size = _largest(run)
        distance = _largest(rows)
        if worst is None:
            error = _largest(self._errors(rows))
            if self._strides is not None:
                error += float(self._strides.left.max())
        else:
            error = worst[0]
            distance = max(distance, worst[1])
        gain = gain_at(self._map.risk, run)
        self._size = max(self._size, gain * size)
        if MARGIN * distance > 0.05 * size:
            # too far for an estimate of first order, in chaos or late at a drop: run
            # and truth may be anywhere
            self._worst = max(self._worst, MARGIN * gain * distance, 4.0 * self._size)
        self._worst = max(self._worst, gain * (error + 4.0 * ROUNDING * size))

    def _errors(self, rows: Array, margins: Array | None = None) -> Array:
        """Estimate errors of the run from its distance to the shadow, both (n, m)."""
        if margins is None:
            margins = (
                np.full(len(rows), MARGIN)
                if self._strides is None
                else self._strides.margin
            )
        return margins[:, None] * np.abs(rows)

    def _first_below(self, epsilon: float) -> tuple[int, float | None]:
        assert self.here is not None
        hit = self._found(epsilon, self.here)
        self.here = hit if hit is self.here else self._map.real(hit)
        return self.here.step, None if self.error is None else self._count_error(
            self.here, epsilon
        )

    def _found(self, epsilon: float, below: Point) -> Point:
        """First step with loss <= epsilon up to a point: by bisection, then by strides that end there.

        The times of the latter are those of Newton's iteration; the loss falls by
        hardly more in one step than in the one before it.
        """
        strides = self._strides
        blocks = self._blocks
        above = -1 if self._before is None else self._before[0]
        if strides is None or below.step - above == 1:
            return below
        low, found = above, below
        while found.step - low > 1:
            middle = (low + found.step) // 2
            point = self._map.point(
                blocks.params(strides.states(np.array([middle]))[0][0]), middle
            )
            low, found = (low, point) if point.loss <= epsilon else (middle, found)
        if self.flow:
            return found
        t = found.step
        for _ in range(8):  # one or two do, unless the loss is lost in rounding
            before = self._map.point(blocks.params(strides.land(t - 1)[0]), t - 1)
            after = self._map.point(before.params + before.update(self._map)[0], t)
            if before.loss > epsilon >= after.loss:
                return after
            decrease = before.loss - after.loss
            if not decrease > 0.0:
                break
            t = min(
                max(t + math.ceil((after.loss - epsilon) / decrease), above + 1),
                below.step,
            )
        return found

    def _count_error(self, hit: Point, epsilon: float) -> float:
        """Error of the first step with loss <= epsilon.

        The loss may be off by the sum of |gradient| times what parts run and shadow.
        Where epsilon is further than that from the losses at the step and before it,
        the step is the right one, and the error is below 1. Where run and shadow are
        more than a step apart, their counts say how late the run may be.
        """
        if hit.step == 0 or self._strides is None:
            return 0.0
        steps, clear = 0.0, True
        margins = self._strides.margins(math.log1p(hit.step))
        for t in (hit.step - 1, hit.step):
            run, shadow = (
                self._walked[t]
                if t in self._walked
                else map(self._blocks.params, self._strides.land(t))
            )
            point = self._map.point(run, t)
            size = self._blocks.params(
                self._errors(self._blocks.rows(run - shadow), margins)
            )
            size += float(self._strides.left.max()) + 4.0 * ROUNDING * np.abs(run)
            off = float(np.sum(size * np.abs(point.gradient))) + 4.0 * ROUNDING * abs(
                point.loss
            )
            slope = self._slope(point)
            steps = max(steps, off / slope if slope > off * 2.0**-53 else 2.0**53)
            clear = clear and abs(point.loss - epsilon) > off
        late = abs(self._count_of_shadow(hit.step, epsilon) - hit.step)
        if clear and steps < 1.0 and late <= 1.0:
            return steps
        return max(float(math.ceil(steps)), late * float(margins.max()))

    def _slope(self, point: Point) -> float:
        """How much the loss falls in a step, without what an oscillation takes and gives back."""
        descent = self._map
        move = point.update(self._map)[0]
        after = descent.point(point.params + move, point.step + 1)
        back = after.update(descent)[0]
        if np.sum(move * back) >= 0.0:
            return descent.slope(point)
        return max(
            0.0,
            0.5
            * (point.loss - descent.point(after.params + back, point.step + 2).loss),
        )

    def _count_of_shadow(self, hit: int, epsilon: float) -> float:
        """First step at which the loss of the shadow is at most epsilon, or infinity where that is not known."""
        assert self._strides is not None
        seen = [*self._seen]
        first = next(
            (i for i, (_, loss) in enumerate(seen) if loss <= epsilon), len(seen)
        )
        # where the shadow begins it is next to the run, whose loss is larger there
        begin = min(
            (float(record.begin.min()) for record in self._strides.records), default=0.0
        )
        low = seen[first - 1][0] if first else round(math.expm1(begin))
        high = seen[first][0] if first < len(seen) else _whole(self._strides)
        if first == len(seen) and (
            high <= low or not self._loss_of_shadow(high) <= epsilon
        ):
            return math.inf
        while high - low > 1:
            middle = (low + high) // 2
            loss = self._loss_of_shadow(middle)
            if math.isnan(
                loss
            ):  # the strides there are dropped: so late that it does not matter
                break
            low, high = (low, middle) if loss <= epsilon else (middle, high)
        return float(high)

    def _loss_of_shadow(self, t: int) -> float:
        assert self._strides is not None
        shadow = self._strides.states(np.array([t]))[1][0]
        return (
            self._map.point(self._blocks.params(shadow), t).loss
            if np.isfinite(shadow).all()
            else math.nan
        )


class Growth(NamedTuple):
    """Factors by which distances between run and shadow may grow in strides, (n,)."""

    nearest: Array  # the possible one that is nearest to 1
    cautious: Array  # between the least possible one and that


def _growth(
    before: Array, after: Array, added: Array, doubt: float = 1.0 / 3.0
) -> Growth:
    """Estimate by how much distances between run and shadow grow in strides that change them by ``added`` as well.

    A shadow's own error in a stride may add to its distance, and growth is then the
    least that is possible; or it cancels some of the distance, but of the run's error
    nothing. Growth is taken to be the least possible, and with the weight ``doubt`` the
    one nearest to none: at 0 an estimate hardly held, at 1/2 others are twice as large.
    """
    # If run and shadow were together, nothing is known of the growth of their distance.
    before = np.where(before > 0.0, before, after + added)
    low = np.maximum(after - added, 0.0)
    nearest = np.clip(before, low, after + added)
    cautious = low + doubt * (nearest - low)
    ones = np.ones_like(before)
    return Growth(
        np.divide(nearest, before, out=ones.copy(), where=before > 0.0),
        np.divide(cautious, before, out=ones, where=before > 0.0),
    )


def _whole(strides: Strides) -> int:
    """Last whole step at which all blocks are known."""
    return math.floor(math.expm1(float(strides.x.min()) + SLACK))


def _largest(array: Array) -> float:
    return float(np.abs(array).max(initial=0.0))


def _changing(first: Array, second: Array, third: Array) -> float:
    """By how much of itself the move changes from one step to the next."""
    size = _largest(second - first)
    return _largest(third - 2.0 * second + first) / size if size > 0.0 else 0.0
