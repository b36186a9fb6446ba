"""The end of a run, and the states that are saved on the way.

A `Goal` is the end that was asked for. A `Recorder` saves states at log-spaced steps,
from which it judges whether the loss still moves. `StopRules` asks every rule by which
a run may end, in a fixed order, at every point.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from icl_theory._validate import INT64_MAX, Array
from icl_theory.engine.capabilities import gain_at
from icl_theory.engine.risk import Risk
from icl_theory.engine.rules import NO_MEMORY
from icl_theory.engine.steps import NOTHING, Iterates, Point, UpdateMap
from icl_theory.engine.trajectory import Stop, named, saved_steps

FLOOR_RTOL = 1e-3  # of the floor: a loss so near to it will not reach a target below it
STALL_AFTER = 10_000  # steps
SETTLED = 0.1  # in units of the tolerance
# A tenth of an e-fold is enough growth to leave a saddle, because growth near a
# degenerate saddle becomes faster and faster.
ENOUGH_GROWTH = 0.1
RATE_NOISE = 1e-11  # of the largest curvature: smaller rates are rounding


class Aim(NamedTuple):
    """The loss that ends a run, and why it does."""

    loss: float
    stop: Stop


class Goal(NamedTuple):
    """The end of a run that was asked for.

    It is a target loss ``epsilon`` or a ``last`` step. The run may ``give_up`` before.
    """

    epsilon: float
    floor: float
    last: int
    give_up: bool

    @property
    def aim(self) -> Aim:
        """The target, or a loss near the floor if the target is not above it."""
        if self.give_up and self.epsilon <= self.floor:
            return Aim(self.floor * (1.0 + FLOOR_RTOL), Stop.FLOOR)
        return Aim(self.epsilon, Stop.REACHED)

    def say(self, stop: Stop, step: int) -> str:
        """Return in words why the run ended at a step."""
        return stop.say(step=step, epsilon=self.epsilon, floor=self.floor)


class Saved(NamedTuple):
    """A saved iterate; ``slope`` is the decrease of the loss in the step from it."""

    step: int
    loss: float
    slope: float
    params: Array
    observed: dict[str, Array]
    memory: Array = NO_MEMORY
    carry: Array | None = None


class Recorder:
    """Keeps the states at the saved steps.

    Each is added whole, so that an interrupt never leaves a part of one.
    """

    def __init__(self, risk: Risk, last: int) -> None:
        self._risk = risk
        self.schedule = saved_steps(last, max(1, np.size(risk.initial)))
        self.due = 0
        self._later_steps = iter(self.schedule.tolist())
        self.saved: list[Saved] = []

    def save(self, point: Point, slope: float = 0.0) -> None:
        """Add a point, unless it is saved already or beyond the range of float64."""
        if self.saved:
            is_later = point.step > self.saved[-1].step
            if not (is_later and np.isfinite(point.params).all()):
                return
        with np.errstate(over="ignore", invalid="ignore"):
            observed = named(self._risk.observe(point.params, point.step))
        if self.saved and not _all_finite(observed):
            return
        self.saved.append(
            Saved(
                point.step,
                point.loss,
                slope,
                np.array(point.params),
                observed,
                np.array(point.memory),
                None if point.carry is None else np.array(point.carry),
            )
        )
        self.due = self._next_step(point.step)

    def _next_step(self, step: int) -> int:
        for later in self._later_steps:
            if later > step:
                return later
        return INT64_MAX

    def curves(self) -> dict[str, Any]:
        """Return all that is saved, by the names that runs have for it.

        The states are moved out of the recorder, which must not be used afterwards:
        large parameters are held once, as each array is made only when the one before
        it has been moved.
        """
        saved = self.saved
        t = np.array([point.step for point in saved], dtype=np.int64)
        loss = np.array([point.loss for point in saved])
        observed = {
            name: np.stack([point.observed[name] for point in saved])
            for name in saved[0].observed
        }
        shape = (len(saved), *np.shape(saved[0].params))
        states = np.empty(shape)
        for i in range(len(saved)):
            states[i] = saved[i].params
            saved[i] = saved[i]._replace(params=NOTHING)
        # points that were reached by skipping have nothing to carry
        carry = np.zeros(shape)
        for i in range(len(saved)):
            rounding = saved[i].carry
            if rounding is not None:
                carry[i] = rounding
                saved[i] = saved[i]._replace(carry=None)
        memory = np.stack([point.memory for point in saved])
        return {
            "t": t,
            "loss": loss,
            "observed": observed,
            "states": states,
            "memory": memory,
            "carry": carry,
        }

    def has_stalled(self, epsilon: float) -> bool:
        """Whether the loss settles above ``epsilon``.

        It is judged by the decrease of the least loss while the step number last grew
        tenfold. It settles if the decrease is rounding; if the decrease is less than
        1e-3 of the loss and less than is missing, while the slope went down (on a
        plateau before learning it stays or goes up); or if such a small decrease is
        less than 1 % of what the slopes promise: then the steps go round in a cycle.
        """
        last = self.saved[-1]
        if last.step < STALL_AFTER:
            return False
        earlier = [saved for saved in self.saved if saved.step <= last.step // 10]
        before = earlier[-1]
        least_before = min(saved.loss for saved in earlier)
        least = min(saved.loss for saved in self.saved)
        decrease = least_before - least
        if decrease <= 1e-13 * abs(least_before):
            return True
        if decrease >= min(1e-3 * abs(least), least - epsilon):
            return False
        slope_fell = last.slope < 0.5 * before.slope
        promised = min(last.slope, before.slope) * (last.step - before.step)
        return slope_fell or decrease < 0.01 * promised

    def has_settled(self, least: float, move: float, after: int = 256) -> bool:
        """Whether the scores have come to rest within ``least``.

        They moved by less than that while the step number doubled, and no faster than
        during the doubling before: a slow beginning moves twice as far with every
        doubling, and a logarithm as far as before. Nor may they ``move`` by more in one
        step, because an oscillation comes back to where it was. Up to step ``after``
        there is too little to judge from.
        """
        last = self.saved[-1]
        if last.step < after or move > least:
            return False
        half = self._saved_by(last.step // 2)
        quarter = self._saved_by(last.step // 4)
        gain = gain_at(self._risk, last.params)
        move_before = gain * _distance(quarter, half)
        move_now = gain * _distance(half, last)
        return move_now <= min(least, 1.5 * move_before)

    def _saved_by(self, step: int) -> Saved:
        """Return the last state saved at a step or before."""
        return [saved for saved in self.saved if saved.step <= step][-1]


def _all_finite(observed: dict[str, Array]) -> bool:
    return all(np.isfinite(value).all() for value in observed.values())


def _distance(earlier: Saved, later: Saved) -> float:
    return float(np.abs(later.params - earlier.params).max(initial=0.0))


class StopRules:
    """Every rule by which a run ends itself, in the order in which they are asked.

    A run may also end because the iterates leave the range of float64 or the budget
    (`Ended`), or by Ctrl-C; these are no rules. If steps are skipped, scores may be off
    by the ``tolerance``. At most ``patience`` steps can be taken one by one.
    """

    def __init__(
        self, goal: Goal, run: Iterates, tolerance: float, patience: int = 10**9
    ) -> None:
        self._goal = goal
        self._run = run
        self._descent = run.update_map
        self._tolerance = tolerance
        risk = run.update_map.risk
        self.recorder = Recorder(risk, goal.last)
        self._lowest = goal.aim.loss if goal.aim.stop is Stop.FLOOR else -math.inf
        # the loss of a sampled batch may be zero by chance
        has_target = goal.epsilon > 0 or not risk.stochastic
        self._target = goal.epsilon if has_target else -math.inf
        self._last = goal.last
        self._may_stagnate = run.update_map.may_stagnate
        self._longest = math.inf if run.skips else patience
        self._saddle = Saddle(run.update_map)

    def stop(self, point: Point) -> Stop | None:
        """Return why the run ends at a point, or None; save the point if it is due."""
        if point.loss <= self._target:
            return Stop.REACHED
        if point.loss <= self._lowest:
            return Stop.FLOOR
        if point.step >= self._last:
            return Stop.STEPS
        if point.step < self.recorder.due:
            return None
        slope = self._descent.slope(point)
        self.recorder.save(point, slope)
        return self._stop_at_rest(point, slope)

    def _stop_at_rest(self, point: Point, slope: float) -> Stop | None:
        """Return why a run that has just saved a point gets no further, or None."""
        if not np.isfinite(point.params).all():
            return Stop.PARAMETERS
        steps_left = self._last - point.step
        # the decrease of the loss would be lost in rounding
        is_unmoved = slope * steps_left <= 2.0**-52 * abs(point.loss)
        # When steps are skipped there is time for any plateau.
        judges_stall = (
            self._goal.give_up and self._may_stagnate and not self._run.skipped
        )
        if self._may_stagnate and is_unmoved:
            stop = Stop.UNMOVED
        elif judges_stall and self.recorder.has_stalled(self._goal.epsilon):
            return Stop.ABOVE
        elif self._run.skips and self._has_settled(point):
            stop = Stop.SETTLED
        else:
            return None
        # The run may rest at a saddle, which it leaves later.
        if self._saddle.is_left(point, min(steps_left, self._longest)):
            return None
        return stop

    def _has_settled(self, point: Point) -> bool:
        least = SETTLED * self._tolerance
        return self.recorder.has_settled(least, self._descent.pace(point))


class Saddle:
    """Tells a saddle from a minimum by the modes of the Hessian."""

    def __init__(self, descent: UpdateMap) -> None:
        self._descent = descent
        self._computed_at = 0
        # of the direction that grows fastest, in e-folds a step; negative: not computed
        self._growth_rate = -1.0

    def is_left(
        self,
        point: Point,
        steps: float,
        growth: float = ENOUGH_GROWTH,
        noise: float = RATE_NOISE,
    ) -> bool:
        """Whether some direction grows by ``growth`` e-folds within ``steps`` steps.

        Rates below ``noise`` times the largest curvature are rounding, and count as
        zero. The Hessian is computed again once the number of steps has doubled.
        """
        from icl_theory.engine.blocks import Blocks  # few runs stand still

        blocks = Blocks(self._descent)
        # parameters that rest at zero are moved by rounding alone
        if not blocks.can_find_modes or not point.params.any():
            return False
        if self._growth_rate < 0.0 or point.step >= 2 * self._computed_at:
            self._computed_at = point.step
            self._growth_rate = _growth_rate(blocks, point, noise)
        return self._growth_rate * steps > growth


def _growth_rate(blocks: Any, point: Point, noise: float) -> float:
    """Rate at which the least stable direction grows, or 0 if none does."""
    rows = blocks.rows(point.params)
    modes = blocks.modes(rows, np.zeros(len(rows)))
    if modes is None:
        return 0.0
    # a mode grows if its decay rate is negative
    fastest_growth = -modes.rates.min()
    scale = abs(modes.rates.max())
    return float(fastest_growth) if fastest_growth > noise * scale else 0.0
