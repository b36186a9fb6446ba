"""One step of descent, which every method iterates or skips over; and runs whose iterates are found in order."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Generator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array, refuse
from icl_theory.engine.risk import Risk, Solution
from icl_theory.engine.rules import Rule
from icl_theory.engine.trajectory import Stop, saved_steps

NOTHING = np.zeros(0)
# What rounding in all steps before may do to a loss, relative to it. Sums of steps are compensated, so that the
# errors of the gradients are left: 10 units at most in 12 exchangeable runs of up to 10^4 steps against 113 bits.
RUN_ROUNDING = 256.0 * 2.0**-52
Steps = NDArray[np.int64]


class Ended(Exception):  # noqa: N818 - not an error of the caller's
    """A run cannot or may not go on."""

    def __init__(self, stop: Stop, **facts: float) -> None:
        super().__init__(stop.say(**facts))
        self.stop = stop


class TooFast(Exception):  # noqa: N818 - sends the run back to single steps
    """The flow through the iterates cannot be followed to the tolerance here."""


class Point(NamedTuple):
    """An iterate with its loss and gradient."""

    step: int
    params: Array
    loss: float
    gradient: Array


class Descent:
    """One step of an update rule."""

    def __init__(self, risk: Risk, eta: float, rule: Rule) -> None:
        self.risk, self.eta, self.rule = risk, eta, rule
        self.evaluations = 0  # of gradients, so far

    @property
    def alike(self) -> bool:
        """Whether every step is the same map, so that some of them say what later ones do."""
        return self.rule.autonomous and not self.risk.stochastic

    def point(self, params: Array, step: int) -> Point:
        """Loss and gradient at an iterate."""
        self.evaluations += 1
        loss, gradient = self.risk.evaluate(params, step)
        alike = getattr(gradient, "shape", ()) == getattr(params, "shape", ())  # np.shape of a number takes long
        if not alike and np.shape(gradient) != np.shape(params):  # one would be broadcast to the other
            raise refuse("gradient", np.shape(gradient), f"of the shape of the parameters, {np.shape(params)}")
        return Point(step, params, loss, gradient)

    def move(self, gradient: Array, step: int = 0) -> Array:
        """Change of the parameters in one step."""
        return self.rule.move(self.risk, gradient, self.eta, step)

    def moves(self, states: Array) -> Array:
        """Changes of some states, (n, ...), in one step."""
        self.evaluations += len(states)
        return np.stack([self.move(gradient) for gradient in self.risk.gradients(states)])

    def slope(self, gradient: Array) -> float:
        """Decrease of the loss in one step, to first order."""
        return -float(np.sum(gradient * self.move(gradient)))

    def pace(self, point: Point) -> float:
        """Largest change of a score in one step."""
        return self.risk.gain(point.params) * float(np.abs(self.move(point.gradient)).max(initial=0.0))

    def iterates(self, params: Array, step: int = 0) -> Generator[Point, None, None]:
        """Yield every iterate from ``params`` on; Kahan's compensated sum carries the rounding errors along."""
        carry = np.zeros_like(params)
        while True:
            point = self.point(params, step)
            yield point
            move = self.move(point.gradient, step)
            del point  # large parameters leave room for few arrays of their size
            carry = move - carry
            del move
            moved = params + carry
            params = np.subtract(moved, params) - carry
            params, carry = moved, params
            step += 1


class Followed(Solution):
    """Iterates that are found in order, each from those before it; ``known`` are states of the run by step."""

    flow = False  # whether the steps are times of the flow
    skips = False  # whether steps may be skipped,
    skipped = False  # and whether any was
    error: float | None = None  # of the scores so far, at worst; None where each step was taken, and of flows

    def __init__(self, descent: Descent, known: dict[int, Array] | None = None) -> None:
        self.descent = descent
        self._known = known or {}
        self.here: Point | None = None  # the last point of `points`, or the one that `first_below` has found
        self._before: tuple[int, float] | None = None  # step and loss of the point before that

    def points(self, schedule: Steps) -> Generator[Point, None, None]:
        """Yield points of the run from its beginning on, those of the schedule at least, until it has `Ended`."""
        for point in self._points(schedule):
            if not math.isfinite(point.loss):
                raise Ended(Stop.LOSS, step=point.step)
            if self.here is not None:
                self._before = self.here.step, self.here.loss
            # large gradients are not kept beside the next ones
            self.here = point if self.skips else Point(point.step, point.params, point.loss, NOTHING)
            yield point
            del point

    def states(self, steps: Steps) -> Array:
        """Return the parameters at some steps, each followed from the nearest one below it that is known."""
        return np.stack([self._state(t) for t in np.asarray(steps).tolist()])

    def first_below(self, epsilon: float, last: int) -> tuple[int | None, float | None]:
        """Return the first step with loss <= epsilon, which `here` is then; follow the run unless that is done."""
        here, before = self.here, self._before
        if here is None or here.loss > epsilon or (before is not None and before[1] <= epsilon):
            self.here = self._before = None
            with np.errstate(over="ignore", invalid="ignore"):
                for point in self.points(saved_steps(last, max(1, np.size(self.descent.risk.initial)))):
                    if point.loss <= epsilon or point.step >= last:
                        break
        assert self.here is not None
        if self.here.loss > epsilon:
            return None, None
        step, error = self._first_below(epsilon)
        if step > last:
            return None, None
        tie = self._tie_error(epsilon)
        return step, error if tie is None else max(tie, error or 0.0)

    def _tie_error(self, epsilon: float) -> float | None:
        """Steps by which the count may be off because a loss is epsilon to rounding; None if none is."""
        here, before, risk = self.here, self._before, self.descent.risk
        assert here is not None
        if self.flow or risk.stochastic or not np.isfinite(here.params).all():
            return None
        rounding = risk.loss_error(here.params) + RUN_ROUNDING * abs(here.loss)
        if before is None or before[0] != here.step - 1:  # the first step, or one after steps that were skipped
            return 1.0 if epsilon - here.loss <= rounding else None
        decrease = before[1] - here.loss
        # the loss before may be larger by far, and its rounding with it
        rounding_before = rounding * max(1.0, abs(before[1]) / max(abs(here.loss), 1e-300))
        if epsilon - here.loss <= rounding or before[1] - epsilon <= rounding_before:
            return 1.0 + rounding / decrease
        return None

    def _state(self, t: int) -> Array:
        known = self._known
        if 0 not in known:
            known[0] = self.descent.risk.initial
        start = max(step for step in known if step <= t)
        if start < t:
            try:
                with np.errstate(over="ignore", invalid="ignore"):
                    known[t] = self._later(known[start], start, t)
            except Ended as ended:
                allowed = f"a step that can be reached from step {start}: on the way the run {ended}"
                raise refuse("t", t, allowed) from None
        return known[t]

    @abstractmethod
    def _points(self, schedule: Steps) -> Generator[Point, None, None]:
        """Yield points of the run, those of the schedule at least."""

    @abstractmethod
    def _first_below(self, epsilon: float) -> tuple[int, float | None]:
        """Find the first step with loss <= epsilon up to `here`, where the loss is that small, and its error."""

    @abstractmethod
    def _later(self, params: Array, start: int, t: int) -> Array:
        """Find the state at a step from the parameters at an earlier one."""


class SingleSteps(Followed):
    """Every step is taken, at most ``beyond`` the last known one unless more led there: others take too long."""

    def __init__(self, descent: Descent, known: dict[int, Array] | None = None, beyond: int = 10_000) -> None:
        super().__init__(descent, known)
        last = max(self._known, default=0)
        self._most = last + max(last, beyond)

    def _points(self, schedule: Steps) -> Generator[Point, None, None]:
        return self.descent.iterates(self.descent.risk.initial)

    def _first_below(self, epsilon: float) -> tuple[int, float | None]:
        assert self.here is not None
        return self.here.step, None

    def _later(self, params: Array, start: int, t: int) -> Array:
        if t > self._most:
            allowed = f"at most {self._most} here: a run in which every step is taken does not continue beyond that"
            raise refuse("t", t, allowed)
        return next(point.params for point in self.descent.iterates(params, start) if point.step == t)
