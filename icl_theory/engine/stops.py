"""The end of a run, and the states that are saved on the way.

A `Goal` is the end that the user wants: a target loss or a number of steps. A
`Recorder` saves states at log-spaced steps, and judges from these states whether the
loss still changes. At every point of a run, `StopRules` applies the rules by which a
run may end, in a fixed order.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from icl_theory._validate import INT64_MAX, Array
from icl_theory.engine.capabilities import gain_at
from icl_theory.engine.risk import Risk
from icl_theory.engine.rules import NO_MEMORY
from icl_theory.engine.steps import NOTHING, Iterates, Point, UpdateMap
from icl_theory.engine.trajectory import Stop, named, saved_steps

if TYPE_CHECKING:
    from icl_theory.engine.blocks import Blocks

# If the target is not above the floor, a loss within this relative distance of the
# floor counts as having reached the floor. Descent comes arbitrarily near the floor but
# does not reach it in finite time. A smaller distance takes more steps.
FLOOR_RTOL = 1e-3
# The next five numbers judge whether a run has stalled, see `Recorder.has_stalled`. The
# run is compared with itself at a tenth of the present step number. The numbers are
# cautious choices and not derived: a run that is ended too late only costs time, but a
# run that is ended too early is wrong.
#
# A run is not judged before this step, because it may still be on the plateau that
# precedes learning.
STALL_AFTER = 10_000
# If the least loss fell by less than this part of itself, 450 rounding units of 2^-52,
# the decrease is rounding.
STALL_ROUNDING = 1e-13
# A decrease counts as small only if it is below this part of the least loss.
STALL_DECREASE = 1e-3
# The slope, the decrease in one step, has fallen if it is below this part of its
# earlier value.
STALL_SLOPE = 0.5
# The slopes predict a decrease from the earlier step to the present one. If the true
# decrease is below this part of the predicted one, the steps go round in a cycle.
STALL_PROMISE = 0.01
# The next three numbers judge whether the scores are at rest, see
# `Recorder.has_settled`. The scores are the parameters, or functions of the parameters
# such as attention scores.
#
# Scores are not judged before this step: the moves of earlier steps say little.
SETTLED_AFTER = 256
# Scores are at rest if they move by less than this part of the tolerance in a doubling
# of the step number. If their moves halve in each further doubling, all later moves
# together are then also less than this part of the tolerance.
SETTLED = 0.1
# But scores are not at rest if their move in the last doubling of the step number
# exceeds this many times the move in the doubling before. The number is between 1, for
# moves that do not grow, and 2, for a slow beginning of learning at constant speed.
SETTLED_GROWTH = 1.5
# A run is taken to leave a saddle if, at the present rate, a direction would grow by
# this many e-folds in the remaining steps. A tenth is enough, because growth near a
# degenerate saddle becomes faster and faster.
ENOUGH_GROWTH = 0.1
# Growth rates below this part of the largest decay rate count as rounding. Computed
# eigenvalues have errors of about 2^-52 times the largest one; this part is 45 000
# times as large, to allow for rounding in the entries of the Hessian.
RATE_NOISE = 1e-11
# The largest number of steps for which it is worth waiting if they are taken one by
# one: at 10^4 steps per second they take a day. If a run would leave a saddle only
# after more steps, it counts as being at rest there.
MOST_SINGLE_STEPS = 10**9


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
        The last step that the run may take.
    give_up : bool
        Whether the run may end earlier if the target seems out of reach.
    """

    epsilon: float
    floor: float
    last: int
    give_up: bool

    @property
    def aim(self) -> Aim:
        """The loss at which the run ends, with the reason for this end.

        The loss is the target. A loss near the floor takes its place if the target is
        not above the floor and the run may give up this target.
        """
        if self.give_up and self.epsilon <= self.floor:
            return Aim(self.floor * (1.0 + FLOOR_RTOL), Stop.FLOOR)
        return Aim(self.epsilon, Stop.REACHED)

    def say(self, stop: Stop, step: int) -> str:
        """Return a sentence that says why the run ended at a step."""
        return stop.say(step=step, epsilon=self.epsilon, floor=self.floor)


class Saved(NamedTuple):
    """A saved state of a run, with its loss and observations.

    Attributes
    ----------
    step : int
        The number of steps that led to this state.
    loss : float
        The loss of this state.
    slope : float
        The decrease of the loss in the next step, to first order; 0 if it is not
        needed.
    params : ndarray
        The parameters.
    observed : dict of ndarray
        The observations of the risk, by name.
    memory : ndarray
        The memory of the update rule.
    carry : ndarray or None
        The amount by which rounding has made the parameters too large. None stands for
        zero.
    """

    step: int
    loss: float
    slope: float
    params: Array
    observed: dict[str, Array]
    memory: Array = NO_MEMORY
    carry: Array | None = None


class Recorder:
    """Keeps the states at the saved steps.

    A state is added to the list ``saved`` in one operation, so that Ctrl-C never leaves
    an incomplete state in it.

    Attributes
    ----------
    schedule : ndarray of int64
        The scheduled steps, which are to be saved.
    due : int
        The next scheduled step that is not saved yet.
    saved : list of Saved
        The states saved so far.
    """

    def __init__(self, risk: Risk, last: int) -> None:
        self._risk = risk
        # A risk without parameters is treated as one with a single number.
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
        # `named` makes the observations arrays, and refuses names that runs use for
        # other entries. A point whose observations are not finite is not saved, and
        # needs no warning.
        with np.errstate(over="ignore", invalid="ignore"):
            observed = named(self._risk.observe(point.params, point.step))
        if self.saved and not _all_finite(observed):
            return
        # The arrays are copied, because an array of the point may be a view of a larger
        # array, which the view would keep in memory.
        state = Saved(
            step=point.step,
            loss=point.loss,
            slope=slope,
            params=np.array(point.params),
            observed=observed,
            memory=np.array(point.memory),
            carry=None if point.carry is None else np.array(point.carry),
        )
        self.saved.append(state)
        self.due = self._next_step(point.step)

    def _next_step(self, step: int) -> int:
        """Return the first scheduled step after ``step``; INT64_MAX if there is none.

        The iterator is used up to this step, so steps must increase from call to call.
        """
        for later in self._later_steps:
            if later > step:
                return later
        return INT64_MAX

    def curves(self) -> dict[str, Any]:
        """Return the arrays of a `Trajectory`, by its field names.

        The states are moved out of the recorder, which must not be used afterwards.
        Each state is freed as soon as it is copied. So there are never two copies of
        all states, which may be large.
        """
        saved = self.saved
        t = np.array([state.step for state in saved], dtype=np.int64)
        loss = np.array([state.loss for state in saved])
        observed = {
            name: np.stack([state.observed[name] for state in saved])
            for name in saved[0].observed
        }
        shape = (len(saved), *np.shape(saved[0].params))
        states = np.empty(shape)
        for i in range(len(saved)):
            states[i] = saved[i].params
            saved[i] = saved[i]._replace(params=NOTHING)
        # States that were reached by skipping have no carry. Zero takes its place.
        carry = np.zeros(shape)
        for i in range(len(saved)):
            saved_carry = saved[i].carry
            if saved_carry is not None:
                carry[i] = saved_carry
                saved[i] = saved[i]._replace(carry=None)
        memory = np.stack([state.memory for state in saved])
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
        at_tenth = self._saved_by(last.step // 10)
        least_loss_at_tenth = min(
            state.loss for state in self.saved if state.step <= at_tenth.step
        )
        least_loss = min(state.loss for state in self.saved)
        decrease = least_loss_at_tenth - least_loss
        if decrease <= STALL_ROUNDING * abs(least_loss_at_tenth):
            return True
        limit = min(STALL_DECREASE * abs(least_loss), least_loss - epsilon)
        is_small = decrease < limit
        if not is_small:
            return False
        has_slope_fallen = last.slope < STALL_SLOPE * at_tenth.slope
        # If each step goes downhill by at least the smaller slope, the loss falls by at
        # least `predicted`.
        smaller_slope = min(last.slope, at_tenth.slope)
        predicted = smaller_slope * (last.step - at_tenth.step)
        is_cycle = decrease < STALL_PROMISE * predicted
        return has_slope_fallen or is_cycle

    def has_settled(self, largest_move: float, next_move: float) -> bool:
        """Whether the scores have come to rest.

        There are three conditions. First, since half of the present step number the
        scores have moved by at most ``largest_move``. Second, this move is not much
        larger than their move from a quarter to half of the step number: at a slow
        beginning of learning they move twice as far with every doubling. Third, they
        move by at most ``largest_move`` in the next step: scores that oscillate may
        return to their place within a doubling, but they move in each step.

        Parameters
        ----------
        largest_move : float
            The largest change of a score at rest.
        next_move : float
            The largest change of a score in the next step.
        """
        last = self.saved[-1]
        if last.step < SETTLED_AFTER or next_move > largest_move:
            return False
        at_half = self._saved_by(last.step // 2)
        at_quarter = self._saved_by(last.step // 4)
        # The gain is the largest change of a score per change of the parameters.
        gain = gain_at(self._risk, last.params)
        move_before = gain * _distance(at_quarter, at_half)
        move_now = gain * _distance(at_half, last)
        return move_now <= min(largest_move, SETTLED_GROWTH * move_before)

    def _saved_by(self, step: int) -> Saved:
        """Return the last state that was saved at ``step`` or before it."""
        return [state for state in self.saved if state.step <= step][-1]


def _all_finite(observed: dict[str, Array]) -> bool:
    """Whether all observations are finite."""
    return all(np.isfinite(value).all() for value in observed.values())


def _distance(earlier: Saved, later: Saved) -> float:
    """Return the largest change of a parameter between two saved states."""
    return float(np.abs(later.params - earlier.params).max(initial=0.0))


class StopRules:
    """The rules by which a run may end, in the order in which they are applied.

    A run may also end for other reasons. If the iterates leave the range of float64 or
    use up their budget, `Ended` is raised. And the user may press Ctrl-C.

    Parameters
    ----------
    goal : Goal
        The end that the user wants.
    run : Iterates
        The run.
    tolerance : float
        The tolerance on the scores if steps are skipped.
    """

    def __init__(self, goal: Goal, run: Iterates, tolerance: float) -> None:
        self._goal = goal
        self._run = run
        self._update_map = run.update_map
        self._tolerance = tolerance
        risk = run.update_map.risk
        self.recorder = Recorder(risk, goal.last)
        # The losses at which the run ends at the floor and at the target. A loss of
        # -inf, which no run reaches, switches a rule off.
        self._floor = goal.aim.loss if goal.aim.stop is Stop.FLOOR else -math.inf
        # Without a target, epsilon is 0. The loss of a sampled batch may be zero by
        # chance, which must not end a run that has no target.
        has_target = goal.epsilon > 0 or not risk.stochastic
        self._target = goal.epsilon if has_target else -math.inf
        self._last = goal.last
        # Whether a run that makes no more progress may be stopped. It may not if later
        # steps can be larger, as during a warm-up or if each step draws a batch.
        self._may_stagnate = run.update_map.may_stagnate
        # The number of steps for which a run may wait at a saddle.
        self._longest_wait = math.inf if run.skips else MOST_SINGLE_STEPS
        self._saddle = Saddle(run.update_map)

    def stop(self, point: Point) -> Stop | None:
        """Return why the run ends at a point, or None if it continues.

        The first three rules apply to every point. If none of them ends the run and the
        step of the point is due, the point is saved, and further rules apply.
        """
        if point.loss <= self._target:
            return Stop.REACHED
        if point.loss <= self._floor:
            return Stop.FLOOR
        if point.step >= self._last:
            return Stop.STEPS
        if point.step < self.recorder.due:
            return None
        slope = self._update_map.slope(point)
        self.recorder.save(point, slope)
        return self._stop_at_rest(point, slope)

    def _stop_at_rest(self, point: Point, slope: float) -> Stop | None:
        """Return why a run ends at a point whose step is due, or None if it continues.

        The parameters may have left float64, or the run may make no more progress.
        ``slope`` is the decrease of the loss in the next step, to first order.
        """
        if not np.isfinite(point.params).all():
            return Stop.PARAMETERS
        steps_left = self._last - point.step
        # Whether, at this slope, all remaining steps together change the loss by at
        # most 2^-52 of itself, the relative spacing of float64 numbers.
        is_unmoved = slope * steps_left <= 2.0**-52 * abs(point.loss)
        # A run that has skipped steps can wait for the end of any plateau, so it is not
        # given up.
        may_give_up = (
            self._goal.give_up and self._may_stagnate and not self._run.skipped
        )
        if self._may_stagnate and is_unmoved:
            stop = Stop.UNMOVED
        elif may_give_up and self.recorder.has_stalled(self._goal.epsilon):
            # The goal allows a run to give up a target that only seems out of reach, so
            # it does not matter whether the run would later leave a saddle.
            return Stop.ABOVE
        elif self._run.skips and self._has_settled(point):
            # Moves below the tolerance do not matter to a run that skips steps.
            stop = Stop.SETTLED
        else:
            return None
        # The run may rest at a saddle, which it leaves later.
        if self._saddle.is_left(point, min(steps_left, self._longest_wait)):
            return None
        return stop

    def _has_settled(self, point: Point) -> bool:
        """Whether the scores have come to rest within the tolerance."""
        largest_move = SETTLED * self._tolerance
        # `pace` is the largest change of a score in the next step.
        next_move = self._update_map.pace(point)
        return self.recorder.has_settled(largest_move, next_move)


class Saddle:
    """Distinguishes a saddle from a minimum by the eigenvalues of the Hessian."""

    def __init__(self, descent: UpdateMap) -> None:
        self._update_map = descent
        # The growth rate of the direction that grows fastest, in e-folds per step, and
        # the step at which it was computed. None if it is not computed yet.
        self._growth_rate: float | None = None
        self._computed_at = 0

    def is_left(self, point: Point, steps: float) -> bool:
        """Whether a run leaves a saddle at a point within a number of steps.

        It does if, at the present rate, some direction grows by more than ENOUGH_GROWTH
        e-folds in these steps. The growth rate is kept from call to call, and the
        Hessian is computed again only once the step number has doubled. A run whose
        Hessian is too large, or whose rule has no known derivative, is taken to stay.
        """
        # Imported here because few runs come to rest.
        from icl_theory.engine.blocks import Blocks

        blocks = Blocks(self._update_map)
        # Parameters that are exactly zero stay at a saddle: no rounding moves them.
        if not blocks.can_find_modes or not point.params.any():
            return False
        if self._growth_rate is None or point.step >= 2 * self._computed_at:
            self._computed_at = point.step
            self._growth_rate = _growth_rate(blocks, point)
        return self._growth_rate * steps > ENOUGH_GROWTH


def _growth_rate(blocks: Blocks, point: Point) -> float:
    """Rate at which the least stable direction grows; 0 if no direction grows.

    It is in e-folds per step. Growth rates below RATE_NOISE times the largest decay
    rate count as zero.
    """
    rows = blocks.rows(point.params)
    # The times of the modes do not matter here, because only the rates are used.
    modes = blocks.modes(rows, x=np.zeros(len(rows)))
    # If the Hessian is not finite, its modes are not known.
    if modes is None:
        return 0.0
    # `rates` are decay rates, the learning rate times the eigenvalues of the Hessian. A
    # mode with a negative rate grows.
    fastest_growth = float(-modes.rates.min())
    scale = abs(modes.rates.max())
    if fastest_growth > RATE_NOISE * scale:
        return fastest_growth
    return 0.0
