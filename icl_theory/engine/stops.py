"""The end of a run, and the states that are saved on the way.

A `Goal` is the end that the user wants: a target loss or a number of steps. A
`Recorder` saves states at log-spaced steps, and judges from these states whether the
loss still changes. At every point of a run, `StopRules` applies the rules by which a
run may end, in a fixed order.
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

# A loss within this relative distance of the floor counts as having reached the floor,
# if the target is not above the floor.
FLOOR_RTOL = 1e-3
# A run is not judged to have stalled before this step.
STALL_AFTER = 10_000
# Over the last tenfold growth of the step number, a decrease of the least loss below
# this part of it is rounding.
STALL_ROUNDING = 1e-13
# A decrease below this part of the loss is small.
STALL_DECREASE = 1e-3
# The slope has fallen if it is below this part of its earlier value.
STALL_SLOPE = 0.5
# A decrease below this part of the decrease that the slopes predict shows a cycle.
STALL_PROMISE = 0.01
# Scores that move by less than this part of the tolerance are at rest.
SETTLED = 0.1
# Nor may scores at rest move by more than this many times their move during the last
# but one doubling of the step number.
SETTLED_GROWTH = 1.5
# A direction that grows by a tenth of an e-fold leaves a saddle, because growth near a
# degenerate saddle becomes faster and faster.
ENOUGH_GROWTH = 0.1
# Rates below this part of the largest curvature are rounding.
RATE_NOISE = 1e-11


class Aim(NamedTuple):
    """The loss at which a run ends, and the reason for which it then ends."""

    loss: float
    stop: Stop


class Goal(NamedTuple):
    """The end that the user wants.

    Attributes
    ----------
    epsilon : float
        The target loss.
    floor : float
        The irreducible loss of the risk.
    last : int
        The last step.
    give_up : bool
        Whether the run may end earlier if the target seems out of reach.
    """

    epsilon: float
    floor: float
    last: int
    give_up: bool

    @property
    def aim(self) -> Aim:
        """The target loss, or a loss near the floor if the target is out of reach.

        The target is out of reach if it is not above the floor.
        """
        if self.give_up and self.epsilon <= self.floor:
            return Aim(self.floor * (1.0 + FLOOR_RTOL), Stop.FLOOR)
        return Aim(self.epsilon, Stop.REACHED)

    def say(self, stop: Stop, step: int) -> str:
        """Return a sentence that says why the run ended at a step."""
        return stop.say(step=step, epsilon=self.epsilon, floor=self.floor)


class Saved(NamedTuple):
    """A saved iterate; ``slope`` is the decrease of the loss in the next step."""

    step: int
    loss: float
    slope: float
    params: Array  # of the shape of the risk's parameters
    observed: dict[str, Array]
    memory: Array = NO_MEMORY
    carry: Array | None = None


class Recorder:
    """Keeps the states at the saved steps.

    Each state is added in one operation, so that Ctrl-C never leaves an incomplete one.

    Attributes
    ----------
    schedule : ndarray of int64
        The steps that are to be saved.
    due : int
        The next of these steps.
    saved : list of Saved
        The states saved so far.
    """

    def __init__(self, risk: Risk, last: int) -> None:
        self._risk = risk
        self.schedule = saved_steps(last, max(1, np.size(risk.initial)))
        self.due = 0
        self._later_steps = iter(self.schedule.tolist())
        self.saved: list[Saved] = []

    def save(self, point: Point, slope: float = 0.0) -> None:
        """Add a point, unless it is already saved or not finite.

        The first point is always added, so that a run has at least one state.
        """
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
        """Return the next scheduled step, or INT64_MAX if there is none."""
        for later in self._later_steps:
            if later > step:
                return later
        return INT64_MAX

    def curves(self) -> dict[str, Any]:
        """Return the arrays of a `Trajectory`, by its field names.

        The states are moved out of the recorder, which must not be used afterwards.
        Each state is freed once it is copied, so that large parameters are never held
        twice.
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
        # Points that were reached by skipping have no carry, so it is zero.
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

        The judgement uses the decrease of the least loss since a tenth of the present
        step number. The loss settles in three cases. First, the decrease is rounding.
        Second, the decrease is small (less than 1e-3 of the loss, and less than the
        distance from ``epsilon``) and the slope has fallen by half; on a plateau before
        learning, the slope stays or rises. Third, the decrease is small and less than
        1 % of the decrease that the slopes predict; the steps then go round in a cycle.
        """
        last = self.saved[-1]
        if last.step < STALL_AFTER:
            return False
        earlier = [saved for saved in self.saved if saved.step <= last.step // 10]
        before = earlier[-1]
        least_before = min(saved.loss for saved in earlier)
        least = min(saved.loss for saved in self.saved)
        decrease = least_before - least
        if decrease <= STALL_ROUNDING * abs(least_before):
            return True
        if decrease >= min(STALL_DECREASE * abs(least), least - epsilon):
            return False
        slope_fell = last.slope < STALL_SLOPE * before.slope
        predicted = min(last.slope, before.slope) * (last.step - before.step)
        return slope_fell or decrease < STALL_PROMISE * predicted

    def has_settled(self, least: float, move: float, after: int = 256) -> bool:
        """Whether the scores have come to rest.

        There are three conditions. First, since half of the present step number the
        scores have moved by at most ``least``. Second, this is not much more than their
        move from a quarter to half of the step number: at a slow beginning of learning
        they move twice as far with every doubling. Third, they moved by at most
        ``least`` in the last step: scores that oscillate may return to their place
        within a doubling, but they move in each step.

        Parameters
        ----------
        least : float
            The largest change of a score at rest.
        move : float
            The change of the scores in the last step.
        after : int
            The step before which the scores are not judged.
        """
        last = self.saved[-1]
        if last.step < after or move > least:
            return False
        half = self._saved_by(last.step // 2)
        quarter = self._saved_by(last.step // 4)
        gain = gain_at(self._risk, last.params)
        move_before = gain * _distance(quarter, half)
        move_now = gain * _distance(half, last)
        return move_now <= min(least, SETTLED_GROWTH * move_before)

    def _saved_by(self, step: int) -> Saved:
        """Return the last state that was saved at ``step`` or before it."""
        return [saved for saved in self.saved if saved.step <= step][-1]


def _all_finite(observed: dict[str, Array]) -> bool:
    """Whether all observations are finite."""
    return all(np.isfinite(value).all() for value in observed.values())


def _distance(earlier: Saved, later: Saved) -> float:
    """Return the largest change of a parameter between two saved iterates."""
    return float(np.abs(later.params - earlier.params).max(initial=0.0))


class StopRules:
    """The rules by which a run may end, in the order in which they are applied.

    A run may also end for other reasons: the iterates leave the range of float64 or use
    up their budget, both of which raise `Ended`, or the user presses Ctrl-C.

    Parameters
    ----------
    goal : Goal
        The end that the user wants.
    run : Iterates
        The run.
    tolerance : float
        The tolerance on the scores if steps are skipped.
    patience : int
        The largest number of steps that anybody takes one by one. If a run would leave
        a saddle only after more steps, it counts as being at rest there.
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
        # The loss of a sampled batch may be zero by chance, so it does not end a run
        # without a target.
        has_target = goal.epsilon > 0 or not risk.stochastic
        self._target = goal.epsilon if has_target else -math.inf
        self._last = goal.last
        self._may_stagnate = run.update_map.may_stagnate
        self._longest = math.inf if run.skips else patience
        self._saddle = Saddle(run.update_map)

    def stop(self, point: Point) -> Stop | None:
        """Return why the run ends at a point, or None if it continues.

        The point is saved if its step is due.
        """
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
        """Return why a run makes no more progress at a saved point, or None."""
        if not np.isfinite(point.params).all():
            return Stop.PARAMETERS
        steps_left = self._last - point.step
        # Whether all remaining steps together change the loss only by rounding.
        is_unmoved = slope * steps_left <= 2.0**-52 * abs(point.loss)
        # A run that skips steps can wait for the end of any plateau.
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
        """Whether the scores have come to rest within the tolerance."""
        least = SETTLED * self._tolerance
        return self.recorder.has_settled(least, self._descent.pace(point))


class Saddle:
    """Distinguishes a saddle from a minimum by the eigenvalues of the Hessian."""

    def __init__(self, descent: UpdateMap) -> None:
        self._descent = descent
        self._computed_at = 0
        # The rate of the direction that grows fastest, in e-folds per step. A negative
        # number means that it is not computed yet.
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
        zero. The Hessian is computed again only once the step number has doubled.
        """
        # Imported here because few runs come to rest.
        from icl_theory.engine.blocks import Blocks

        blocks = Blocks(self._descent)
        # Parameters that are exactly zero stay at a saddle: no rounding moves them.
        if not blocks.can_find_modes or not point.params.any():
            return False
        if self._growth_rate < 0.0 or point.step >= 2 * self._computed_at:
            self._computed_at = point.step
            self._growth_rate = _growth_rate(blocks, point, noise)
        return self._growth_rate * steps > growth


def _growth_rate(blocks: Any, point: Point, noise: float) -> float:
    """Rate at which the least stable direction grows; 0 if no direction grows."""
    rows = blocks.rows(point.params)
    modes = blocks.modes(rows, np.zeros(len(rows)))
    if modes is None:
        return 0.0
    # `rates` are decay rates: a mode with a negative one grows.
    fastest_growth = -modes.rates.min()
    scale = abs(modes.rates.max())
    return float(fastest_growth) if fastest_growth > noise * scale else 0.0
