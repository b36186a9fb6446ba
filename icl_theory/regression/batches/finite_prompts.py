"""Many exchangeable problems with finite prompts at once.

A *point* is one problem of a sweep. Its results are the same as those of a simulation
of this point alone. Descent moves one number u, the *position* of the point, from u = 0
to its *goal*. At the goal the loss reaches its target or, if the target is below the
floor (the least loss), comes near the floor. `Batch` takes the first steps of all
points one by one. Once each step of a point is nearly as long as the next,
`_CountedPath` counts the remaining steps by an integral. If rounding or the error of
the integral might change a result, the point gets a `Doubt`, and is left to a
simulation.

With K features, N tokens in a prompt, the variogram γ and the label noise σ², the loss
is γ A(u) + σ² B(u), with functions A and B of u that depend on K and N
(`TabulatedLosses`). The position u is the gap between the score of the query's own
feature and the other scores.

Phase I ends when a query pays half of its attention to its own feature. Phase III is
the tail: it begins when t (loss - floor) falls below a limit for good, where t is the
number of steps. Phase II lies between the two.

In the shapes below, P is the number of points of a batch, and n the number of some
selected points. An ``index``, (n,), holds the numbers of the selected points.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.engine.counting import ROUNDING
from icl_theory.engine.descent import AUTO_STEPS, TOLERANCE, VISIBLE
from icl_theory.engine.stops import FLOOR_RTOL, SETTLED
from icl_theory.engine.trajectory import saved_steps
from icl_theory.regression.batches.doubts import Doubt, Doubts, Index, Mask
from icl_theory.regression.batches.tables import (
    LAST,
    WIDTH,
    StepCount,
    TabulatedLosses,
    first_position,
)
from icl_theory.regression.phases import TAIL_RATIO

# The next three numbers decide which points are left to a simulation of their own. More
# cautious numbers leave more points to simulations, which takes longer but changes no
# result.
#
# Numbers that differ by less than this relative distance may differ by rounding alone.
BLUR = 1e-11
# A target whose relative distance from the floor is below this is in doubt.
AT_FLOOR = 1e-9
# Largest number of steps that is counted. A count is a single integer only if its error
# is below one step. A count of 1e9 steps therefore needs an integral with a relative
# error below 1e-9.
MOST_COUNTED = 1e9
# The distance of t (loss - floor) from its limit is a difference of two terms. Its
# rounding error is taken to be this many times the error of one term, which is
# cautious.
TAIL_BLUR_FACTOR = 10.0
# Number of passes of Newton's method for the time at which a run falls below the limit
# of its tail. The last move is part of the estimated error, so that fewer passes would
# leave more points in doubt.
FALL_PASSES = 5
# A real number of steps with a larger error is in doubt: the error is only an estimate,
# which is trusted only if it is small.
LARGEST_TRUSTED_ERROR = 1e-3
# Once successive steps of a run differ by at most this share, the remaining steps are
# counted instead of taken. The last of the nine terms of `TabulatedLosses.velocity` is
# then about (1/40)^8/9 = 2e-14 of the velocity.
SMALL_CHANGE = 1.0 / 40.0
# Number of passes of Newton's method for the position after the last step, which lies a
# part of a step beyond the goal. They find all digits.
POSITION_PASSES = 3

Steps = NDArray[np.int64]


class Points(NamedTuple):
    """Exchangeable problems, arrays of shape (P,). See `ExchangeableRisk`."""

    K: Array  # number of features
    N: Array  # prompt length
    gamma: Array  # variogram of every pair of features
    noise_variance: Array  # σ²
    eta: Array  # learning rate; may also be one number for all points
    speed: Array  # factor on eta if other coordinates than the scores are trained
    target: Array  # a loss, or an excess of the loss above the floor
    # Whether the targets are excesses above the floor, or losses.
    is_excess: bool

    @property
    def size(self) -> int:
        """P."""
        return len(self.K)

    @property
    def rate(self) -> Array:
        """Learning rate with which descent acts on the scores."""
        return self.eta * self.speed

    @property
    def presence(self) -> Array:
        """Probability ``1 - (1 - 1/K)^N`` that a prompt has the query's feature."""
        return -np.expm1(self.N * np.log1p(-1.0 / self.K))

    @property
    def has_tail_law(self) -> Mask:
        """Whether t (loss - floor) tends to a known constant.

        A limit of 0 does not count. With noise the limit is 0: all scores stay finite,
        and loss - floor falls faster than 1/t. With N = 1 the limit is 0, because the
        loss is constant.
        """
        return (self.noise_variance == 0) & (self.N > 1)


class _Goals(NamedTuple):
    """The positions at which runs and their phases end, arrays of shape (P,)."""

    floor: Array  # least loss
    # Whether the target is above the floor. If it is not, the run ends near the floor.
    is_attainable: Mask
    threshold: Array  # loss at the goal: the target, or a loss just above the floor
    position: Array  # position u of the goal
    blur: Array  # error of this position due to rounding of the loss
    half: Array  # position at which Phase I ends


def descend(points: Points, max_steps: int, small: float = SMALL_CHANGE) -> Batch:
    """Let each point descend to its goal, as a simulation of this point alone would.

    For every point without a doubt, numbers of steps are exact and losses are right to
    rounding.

    Parameters
    ----------
    points : Points
        P points, which descend to their targets or floors.
    max_steps : int
        Largest number of steps.
    small : float
        The steps of a run are counted, instead of taken, once a step and the next one
        differ in length by at most this share of the step.

    Returns
    -------
    Batch
        The state of each point at the end of its run, with ``doubts`` and ``columns``.
    """
    # A change of u by 1 changes the K x K scores by a matrix of squared length K - 1,
    # so that a step of descent on the scores moves u by -rate/(K - 1) times the
    # derivative of the loss.
    losses = TabulatedLosses(
        points.K,
        points.N,
        points.gamma,
        points.noise_variance,
        step_factor=points.rate / (points.K - 1.0),
    )
    doubts = Doubts(points.size)
    goals = _goals(points, losses, doubts)
    batch = Batch(points, losses, goals, doubts, max_steps, small)
    batch.take_steps()
    batch.count_steps()
    batch.compare_with_simulation()
    return batch


def _goals(points: Points, losses: TabulatedLosses, doubts: Doubts) -> _Goals:
    """Return where the runs and their phases end, and note doubts about these ends."""
    index = np.arange(points.size)
    minimum, floor = _minimum(points, losses, doubts)

    target = points.target
    if points.is_excess:
        target = floor + points.target
        # A simulation refuses an excess that is lost in the rounding of the floor.
        is_invisible = points.target < VISIBLE * floor
        doubts.add(Doubt.INVISIBLE_EXCESS, is_invisible)
    is_target_at_floor = np.abs(target - floor) <= AT_FLOOR * floor
    doubts.add(Doubt.TARGET_AT_FLOOR, is_target_at_floor)
    is_attainable = target > floor
    # A simulation with a target below the floor ends at a relative distance of
    # `FLOOR_RTOL` above the floor.
    threshold = np.where(is_attainable, target, floor * (1.0 + FLOOR_RTOL))

    # Bisection needs a condition that holds for all u beyond the first at which it
    # holds. The loss rises again beyond the minimum, so all positions from the minimum
    # on count as done.
    def is_done(u: Array) -> Mask:
        return (losses.loss(u, index) <= threshold) | (u >= minimum)

    # Bisection may end slightly beyond the minimum.
    goal = np.minimum(first_position(is_done, points.size), minimum)
    # The last panel of the tables is left free for positions beyond the goal, to which
    # the last step leads.
    doubts.add(Doubt.GOAL_OUT_OF_RANGE, goal >= LAST - WIDTH)
    # Bisection finds positions above zero, so the start is compared separately.
    start_loss = losses.loss(np.zeros(points.size), index)
    is_goal_at_start = np.abs(start_loss - threshold) <= BLUR * threshold
    doubts.add(Doubt.GOAL_WITHIN_ROUNDING, is_goal_at_start)
    goal = np.where(start_loss <= threshold, 0.0, goal)

    half = _half_position(points, losses, doubts)
    # The rounding of the loss, divided by the size of its slope, is a distance in u.
    # The slope is negative, because the loss falls.
    blur = ROUNDING * threshold / -losses.slope(goal, index)
    return _Goals(
        floor=floor,
        is_attainable=is_attainable,
        threshold=threshold,
        position=goal,
        blur=blur,
        half=half,
    )


def _half_position(points: Points, losses: TabulatedLosses, doubts: Doubts) -> Array:
    """Return the position at which Phase I ends, (P,), and note doubts about it.

    A query then pays half of its attention to its own feature, as a mean over the
    prompts that contain this feature. The mean over all prompts, which is tabulated, is
    this mean times the probability that a prompt contains the feature.
    """
    index = np.arange(points.size)
    half_attention = 0.5 * points.presence

    def is_half_reached(u: Array) -> Mask:
        return losses.attention(u, index) >= half_attention

    half = first_position(is_half_reached, points.size)
    # Bisection finds positions above zero, so the start is compared separately.
    start_attention = losses.attention(np.zeros(points.size), index)
    difference = np.abs(start_attention - half_attention)
    is_half_at_start = difference <= BLUR * half_attention
    doubts.add(Doubt.HALF_WITHIN_ROUNDING, is_half_at_start)
    return np.where(start_attention >= half_attention, 0.0, half)


def _minimum(
    points: Points, losses: TabulatedLosses, doubts: Doubts
) -> tuple[Array, Array]:
    """Positions of the minima of the losses, and their floors, (P,) each.

    A point with noise gets a doubt if its minimum is beyond the range of the tables.
    """
    index = np.arange(points.size)
    is_noisy = points.noise_variance > 0

    def loss_rises(u: Array) -> Mask:
        return losses.slope(u, index) >= 0

    # Without noise the loss falls for all u. The end of the tables, `LAST`, then stands
    # for infinity.
    minimum = np.where(is_noisy, first_position(loss_rises, points.size), LAST)
    is_inside = minimum < LAST
    doubts.add(Doubt.MINIMUM_OUT_OF_RANGE, is_noisy & ~is_inside)

    # Without noise the infimum is the loss of the prompts that lack the query's
    # feature, ½ γ (1 - 1/K)^N q_0, with q_0 of `ExchangeableRisk`. The ``absence`` is
    # the probability (1 - 1/K)^N of these prompts.
    absence = np.exp(points.N * np.log1p(-1.0 / points.K))
    inverse = 1.0 / (points.K - 1.0)
    q_0 = 1.0 + inverse + (1.0 - inverse) / points.N
    infimum = 0.5 * points.gamma * absence * q_0
    floor = np.where(is_noisy, losses.loss(minimum, index), infimum)
    return minimum, floor


class _TailWatch:
    """Watches for the start of Phase III of each point: arrays of shape (P,).

    It keeps the first and the last step t at which t (loss - floor) of a point is above
    its limit. Phase III begins after the last one.
    """

    def __init__(
        self, points: Points, losses: TabulatedLosses, floor: Array, doubts: Doubts
    ) -> None:
        # t (loss - floor) tends to (K - 1)/(4 rate). Phase III begins when it falls to
        # `TAIL_RATIO` times this constant. A point without such a law has no Phase III:
        # it gets an infinite limit, and is never above it.
        limit = TAIL_RATIO * (points.K - 1.0) / (4.0 * points.rate)
        self.limit = np.where(points.has_tail_law, limit, np.inf)
        # Steps, or -1 if the point has not been above its limit.
        self.first_above = np.full(points.size, -1)
        self.last_above = np.full(points.size, -1)
        # How often each point has passed its limit from below.
        self.rises = np.zeros(points.size, dtype=np.int64)
        self._losses = losses
        self._floor = floor
        self._doubts = doubts

    def observe(self, t: int, u: Array, index: Index) -> None:
        """Compare points at the positions u with their limits at step t."""
        limit = self.limit[index]
        # Without noise losses are below γ, so that t (loss - floor) < t γ. In the first
        # steps this bound saves the evaluation of the losses. (With noise the limit is
        # infinite.)
        if not (t * self._losses.gamma[index] > limit).any():
            return
        loss = self._losses.loss(u, index)
        over_limit = t * (loss - self._floor[index]) - limit
        is_close = np.abs(over_limit) <= TAIL_BLUR_FACTOR * BLUR * t * loss
        self._doubts.add(Doubt.TAIL_WITHIN_ROUNDING, index[is_close])

        above = index[over_limit > 0]
        # A point has risen if it was not above its limit one step ago. (A point that
        # was never above its limit has ``last_above`` = -1. This equals t - 1 only at t
        # = 0, when no point is above its limit.)
        self.rises[above] += self.last_above[above] != t - 1
        is_first = self.first_above[above] < 0
        self.first_above[above[is_first]] = t
        self.last_above[above] = t

    def add_counted(
        self, index: Index, fall: _Fall, last_above: Steps, counted_from: Steps
    ) -> None:
        """Take account of the counted steps of the points ``index``, (n,) each.

        Steps that are counted by an integral are not observed one by one; ``fall`` says
        what is known of them. They follow the step ``counted_from``, which was
        observed. If a point is above its limit at any counted step, ``last_above`` is
        the last such step: ``fall.last_above`` or, if the run ends above its limit, the
        last step of the run.
        """
        is_above = fall.is_above
        last_above_before = self.last_above[index]
        # A run may have been above its limit, then below it when the count began, and
        # then above it again. The first and the last step above the limit do not
        # describe such a run.
        is_twice = is_above & (last_above_before >= 0)
        is_twice &= last_above_before < counted_from
        self._doubts.add(Doubt.TAIL_TWICE, index[is_twice])
        is_first = is_above & (self.first_above[index] < 0)
        self.first_above[index[is_first]] = fall.first_above[is_first]
        self.last_above[index[is_above]] = last_above[is_above]


class Batch:
    """The runs of P points to their goals: arrays of shape (P,).

    `take_steps`, `count_steps` and `compare_with_simulation` are called once each, in
    this order. Then `columns` has the results.
    """

    def __init__(
        self,
        points: Points,
        losses: TabulatedLosses,
        goals: _Goals,
        doubts: Doubts,
        max_steps: int,
        small: float,
    ) -> None:
        self.points = points
        self.losses = losses
        self.goals = goals
        self.doubts = doubts
        self.max_steps = max_steps
        size = points.size
        # The position, and its rounding error for Kahan's compensated sum.
        self.u = np.zeros(size)
        self.carry = np.zeros(size)
        # The shortest step so far. It tells whether a simulation may call the run
        # settled.
        self.shortest_step = np.full(size, np.inf)
        # The last step, at the goal or at ``max_steps``, and the first step at which a
        # query pays half of its attention to its own feature. Each is -1 until then.
        self.last = np.full(size, -1)
        self.attends = np.full(size, -1)
        self.tail = _TailWatch(points, losses, goals.floor, doubts)
        # Numbers of the points that still take steps one by one.
        self.active: Index = np.flatnonzero(doubts.none)
        # The position from which the steps of a point are counted, whether the point
        # has reached it, and at which step.
        self.slow_from = _slow_from(losses, small)
        self.is_slow = np.zeros(size, dtype=bool)
        self.counted_from = np.zeros(size, dtype=np.int64)
        # Error of the real number of steps, before it was rounded up.
        self.count_error = np.zeros(size)

    def take_steps(self) -> None:
        """Step until each point is at its goal, in doubt, or slow enough to count.

        No more steps are taken than a simulation takes one by one. A point that would
        need more is left to a simulation.
        """
        for t in range(min(AUTO_STEPS, self.max_steps) + 1):
            self._observe(t)
            self._select_active(t)
            if not self.active.size:
                break
            self._step()

    def _observe(self, t: int) -> None:
        """Note what the active points have reached at step t, and doubts about it."""
        index = self.active
        u = self.u[index]
        goal = self.goals.position[index]
        half = self.goals.half[index]

        # The start u = 0 was compared in `_goals` and `_half_position`.
        has_moved = u > 0
        # The rounding error of u, absolute for a small u and relative for a large one
        blur = BLUR * (1.0 + u)
        is_at_goal = np.abs(u - goal) <= blur + self.goals.blur[index]
        is_at_half = np.abs(u - half) <= blur
        self.doubts.add(Doubt.GOAL_WITHIN_ROUNDING, index[is_at_goal & has_moved])
        self.doubts.add(Doubt.HALF_WITHIN_ROUNDING, index[is_at_half & has_moved])

        attends_now = (u >= half) & (self.attends[index] < 0)
        self.attends[index[attends_now]] = t
        self.tail.observe(t, u, index)

    def _select_active(self, t: int) -> None:
        """Select the points that take another step after step t.

        Points that are done stop, and slow points are left to `count_steps`.
        """
        index = self.active
        u = self.u[index]
        is_done = (u >= self.goals.position[index]) | (t >= self.max_steps)
        self.last[index[is_done]] = t

        is_slow = ~is_done & (u >= self.slow_from[index])
        self.is_slow[index[is_slow]] = True
        self.counted_from[index[is_slow]] = t

        self.active = index[~is_done & ~is_slow & self.doubts.none_of(index)]

    def _step(self) -> None:
        """Take one step of the active points, as Kahan's compensated sum."""
        index = self.active
        u = self.u[index]
        step = self.losses.step(u, index) - self.carry[index]
        next_u = u + step
        self.carry[index] = (next_u - u) - step
        self.u[index] = next_u
        self.shortest_step[index] = np.minimum(self.shortest_step[index], step)

        is_in_range = (next_u >= 0) & (next_u < LAST)
        out_of_range = index[~is_in_range]
        self.doubts.add(Doubt.LEFT_RANGE, out_of_range)
        # The results of these points are not used, but must not overflow.
        self.u[out_of_range] = 0.0
        self.active = index[is_in_range]

    def count_steps(self) -> None:
        """Count the remaining steps of slow points, and move the points to their ends.

        A slow point is one whose steps change slowly.
        """
        index = np.flatnonzero(self.is_slow & self.doubts.none)
        if not index.size:
            return
        counted_from = self.counted_from[index]
        path = _CountedPath(
            self.losses,
            self.goals,
            self.doubts,
            index,
            start=self.u[index],
            steps_before=counted_from,
        )
        # The next three methods may add doubts. ``attends`` is -1 for a point whose
        # Phase I does not end on the path.
        attends = path.first_attending()
        fall = path.fall_below(self.tail.limit[index])
        end = path.end()

        self.doubts.add(Doubt.UNFINISHED, index[end.last > self.max_steps])
        self.last[index] = end.last
        self.u[index] = end.u
        self.count_error[index] = end.error
        # Whether a point is still in Phase I when the count begins
        is_in_phase_1 = self.attends[index] < 0
        self.attends[index] = np.where(is_in_phase_1, attends, self.attends[index])
        # A run may settle only while its steps become shorter, and then the step at the
        # end of the path is the shortest. (A run whose steps become longer moves at
        # least about twice as far with each doubling of t, and does not settle: see
        # `SETTLED_GROWTH` in `icl_theory.engine.stops`.)
        self.shortest_step[index] = np.minimum(
            self.shortest_step[index], self.losses.step(end.u, index)
        )
        last_above = np.where(fall.is_above_at_goal, end.last, fall.last_above)
        self.tail.add_counted(index, fall, last_above, counted_from)

    def compare_with_simulation(self) -> None:
        """Doubt the points for which a simulation might have other results."""
        doubts = self.doubts
        tail = self.tail
        doubts.add(Doubt.UNFINISHED, self.last < 0)
        doubts.add(Doubt.TAIL_TWICE, tail.rises > 1)

        # A simulation does not call a run settled if it moves by more than `SETTLED`
        # times the tolerance in each step. The factor 1.01 allows for rounding. The
        # comparison is negated, so that NaN is doubted, too. A run of at most one step
        # is too short to be judged.
        may_settle = ~(self.shortest_step > 1.01 * SETTLED * TOLERANCE)
        doubts.add(Doubt.MAY_SETTLE, may_settle & (self.last > 1))

        # A run may be at its goal but, because a step led past the minimum, have a loss
        # above its threshold.
        is_at_goal = self.u >= self.goals.position
        loss = self.losses.loss(self.u, np.arange(self.points.size))
        is_below = loss <= self.goals.threshold
        doubts.add(Doubt.OVERSHOT, is_at_goal & ~is_below)
        # Only the largest number of steps may end a run before its goal.
        doubts.add(Doubt.UNFINISHED, ~is_at_goal & (self.last < self.max_steps))
        self._doubt_unsaved_tails()

    def _doubt_unsaved_tails(self) -> None:
        """Doubt the points whose Phase III a simulation might miss."""
        tail = self.tail
        # A simulation looks for Phase III after the last saved step at which
        # t (loss - floor) is above its limit. So it must save a step between the first
        # and the last step above the limit. Which steps it saves depends on the size of
        # a state, which is one number.
        schedule = saved_steps(self.max_steps, size=1)
        n_saved_until_last = np.searchsorted(
            schedule, np.minimum(tail.last_above, self.last), side="right"
        )
        n_saved_before_first = np.searchsorted(schedule, tail.first_above)
        is_unsaved = n_saved_until_last <= n_saved_before_first
        has_tail = (tail.first_above >= 0) & (tail.last_above != self.last)
        self.doubts.add(Doubt.TAIL_UNSAVED, has_tail & is_unsaved)

    def columns(self) -> dict[str, Any]:
        """Columns of a sweep, (P,) each. Points in doubt have NaN as their loss."""
        points = self.points
        last = self.last
        floor = self.goals.floor
        index = np.arange(points.size)
        loss = self.losses.loss(self.u, index)
        is_at_goal = self.u >= self.goals.position
        is_reached = self.goals.is_attainable & is_at_goal
        is_at_floor = is_at_goal & ~self.goals.is_attainable

        ends = self._phase_ends()
        tail_constant = self._tail_constant()
        # A run with a Phase III is sharp. A run without one is flat only if it reached
        # its target; otherwise its tail might still have come.
        is_sharp = ends.phase_2 < last
        has_regime = points.has_tail_law & (is_reached | is_sharp)
        regime = np.where(is_sharp, "sharp", "flat")

        # A simulation takes up to `AUTO_STEPS` steps one by one, and skips steps in
        # longer runs.
        is_exact = last <= AUTO_STEPS
        error = np.where(is_reached, self.count_error, np.nan)
        return {
            "eta_used": points.eta,
            "steps": np.where(is_reached, last, -1),
            "T_I": ends.phase_1,
            "T_II": ends.phase_2 - ends.phase_1,
            "T_III": last - ends.phase_2,
            "last": last,
            "method": np.where(is_exact, "exact", "fast"),
            "error": np.where(is_exact, 0.0, error),
            "loss": np.where(self.doubts.none, loss, np.nan),
            "floor": floor,
            "attention": self.losses.attention(self.u, index),
            "tail_constant": tail_constant,
            "tail_ratio": last * (loss - floor) / tail_constant,
            "regime": np.where(has_regime, regime, ""),
            # for runs that miss their targets
            "stop": np.where(is_at_floor, "FLOOR", "STEPS"),
        }

    def _phase_ends(self) -> _PhaseEnds:
        """Return the steps at which Phases I and II end, at most the last step."""
        last = self.last
        end_of_phase_1 = np.where(self.attends < 0, last, self.attends)
        is_above_at_end = self.tail.last_above == last
        has_no_phase_3 = np.isinf(self.tail.limit) | is_above_at_end
        # If a point was never above its limit, ``last_above`` + 1 is 0. Phase III then
        # begins at the end of Phase I.
        end_of_phase_2 = np.where(has_no_phase_3, last, self.tail.last_above + 1)
        return _PhaseEnds(end_of_phase_1, np.maximum(end_of_phase_1, end_of_phase_2))

    def _tail_constant(self) -> Array:
        """Return the limit of t (loss - floor), (P,); NaN if it is not known.

        It is (K - 1)/(4 rate), as in `_TailWatch`, but in the order of operations of
        `tail_limit`, so that the last digit is the same as in a simulation.
        """
        points = self.points
        constant = (points.K - 1.0) / (4.0 * points.speed) / points.eta
        return np.where(points.has_tail_law, constant, np.nan)


class _PhaseEnds(NamedTuple):
    """The steps at which Phases I and II end, (P,) each.

    They are equal if Phase II is empty.
    """

    phase_1: Steps
    phase_2: Steps


def _slow_from(losses: TabulatedLosses, small: float) -> Array:
    """The least edge u of a panel from which steps change slowly, (P,).

    The panels of `TabulatedLosses` are intervals of u of the length `WIDTH`. Steps
    change slowly if two successive ones differ by the share ``small`` at most.
    """
    is_slow = losses.relative_change_of_steps() <= small
    # The end of the last panel counts as slow, so that argmax finds an edge.
    is_slow = np.pad(is_slow, ((0, 0), (0, 1)), constant_values=True)
    return WIDTH * np.argmax(is_slow, axis=1)


class _Fall(NamedTuple):
    """How t (loss - floor) falls below its limit along a counted path, (n,) each."""

    is_above: Mask  # whether it is above the limit at any edge of the path
    is_above_at_goal: Mask
    # The first step above the limit, or a later one in the same part of the path;
    # meaningless for paths that are never above it.
    first_above: Steps
    last_above: Steps  # last step above the limit; meaningless without a fall


class _End(NamedTuple):
    """The ends of counted paths, (n,) each."""

    last: Steps  # the first step at or beyond the goal
    u: Array  # the position after this step
    error: Array  # error of the real number of steps that was rounded up


class _CountedPath:
    """The last steps of n points, counted by an integral along the path to their goals.

    The path from ``start`` to the goal is divided into equal parts of at most half a
    panel. ``edges`` are the ends of the parts, and ``times`` the numbers of steps until
    these ends, (n, parts + 1). They are real numbers, and begin with ``steps_before``,
    the number of the steps that were taken one by one.
    """

    def __init__(
        self,
        losses: TabulatedLosses,
        goals: _Goals,
        doubts: Doubts,
        index: Index,
        start: Array,
        steps_before: Steps,
    ) -> None:
        self.losses = losses
        self.doubts = doubts
        self.index = index
        self.start = start
        self.goal = goals.position[index]
        self.goal_blur = goals.blur[index]
        self.half = goals.half[index]
        self.floor = goals.floor[index]
        # Arrays such as ``edges`` have a row for each point. An index [rows, part] with
        # one part for each point selects one entry of each row.
        self.rows = np.arange(len(index))

        # The path is divided into so many parts that none is longer than half a panel:
        # `TabulatedLosses.steps_between` has enough nodes for such a part.
        longest = float((self.goal - start).max())
        self.parts = max(1, int(np.ceil(2.0 * longest / WIDTH)))
        self.edges = np.linspace(start, self.goal, self.parts + 1, axis=1)
        within_parts = losses.steps_between(
            self.edges[:, :-1], self.edges[:, 1:], index
        )
        elapsed = np.cumsum(within_parts.steps, axis=1)
        elapsed = np.concatenate([np.zeros((len(index), 1)), elapsed], axis=1)
        self.times = steps_before[:, None] + elapsed
        # The error of the number of steps along the whole path. np.sum would add in an
        # order that depends on the number of points, and a point must get the same bits
        # in every batch. cumsum adds from left to right.
        self.error = np.cumsum(within_parts.error, axis=1)[:, -1]

    def first_attending(self) -> Steps:
        """First step at which Phase I is over, or -1 if it is not on the path, (n,)."""
        # Positions that are not on the path are moved to its ends. Their results are
        # not used.
        half = np.clip(self.half, self.start, self.goal)
        # The number of the part of the path in which the position lies
        fraction = (half - self.start) / (self.goal - self.start)
        part = (fraction * self.parts).astype(np.intp)
        part = np.minimum(part, self.parts - 1)
        time = self._time_at(half, part)

        is_on_path = (self.half > self.start) & (self.half < self.goal)
        is_clear = _rounds_up_surely(time.steps, self.error + time.error)
        self.doubts.add(Doubt.HALF_UNCERTAIN, self.index[is_on_path & ~is_clear])
        return np.where(is_on_path, np.ceil(time.steps), -1).astype(np.int64)

    def fall_below(self, limit: Array) -> _Fall:
        """Find where t (loss - floor) falls below its limit for the last time."""
        over_limit_at_edges = []
        for time, u in zip(self.times.T, self.edges.T, strict=True):
            over_limit_at_edges.append(self._over_limit(time, u, limit))
        over_limit = np.stack(over_limit_at_edges, axis=1)
        is_above_at_edges = over_limit > 0
        is_above = np.asarray(is_above_at_edges.any(axis=1))
        is_above_at_goal = is_above_at_edges[:, -1]
        falls = is_above & ~is_above_at_goal

        # A change is -1 in a part in which a run falls below its limit.
        changes = np.diff(is_above_at_edges.astype(np.int8), axis=1)
        falls_twice = np.count_nonzero(changes < 0, axis=1) > 1
        self.doubts.add(Doubt.TAIL_TWICE, self.index[falls_twice])

        # A later step than the first one above the limit makes a doubt more likely, so
        # it is enough to know the first edge above it.
        first_edge_above = np.argmax(is_above_at_edges, axis=1)
        first_above = np.ceil(self.times[self.rows, first_edge_above])

        # argmax finds the first True of the reversed edges, which is the last edge
        # above the limit. The run falls to its limit in the part that begins at this
        # edge. (A run that is above its limit at the goal, or at no edge, does not
        # fall. The part that it gets is not used.)
        last_edge_above = self.parts - np.argmax(is_above_at_edges[:, ::-1], axis=1)
        part = np.minimum(last_edge_above, self.parts - 1)
        time = self._fall_time(part, over_limit, falls, limit)
        is_clear = _rounds_up_surely(time.steps, self.error + time.error)
        self.doubts.add(Doubt.TAIL_UNCERTAIN, self.index[falls & ~is_clear])
        # The first step at or below the limit is the time, rounded up.
        last_above = np.ceil(time.steps) - 1.0
        return _Fall(
            is_above,
            is_above_at_goal,
            first_above.astype(np.int64),
            last_above.astype(np.int64),
        )

    def end(self) -> _End:
        """Find the first step at or beyond the goal, and the position there."""
        # The velocity of a flow that moves u by one step in a unit of time
        velocity_at_goal = self.losses.velocity(self.goal, self.index).value
        error = self.error + self.goal_blur / velocity_at_goal
        time_of_goal = self.times[:, -1]
        last = np.ceil(time_of_goal)
        is_clear = _rounds_up_surely(time_of_goal, error) & (last < MOST_COUNTED)
        self.doubts.add(Doubt.COUNT_UNCERTAIN, self.index[~is_clear])

        # The last step goes beyond the goal. Follow the flow from the goal for the
        # remaining part of this step, and correct the position by Newton's method.
        # Points in doubt stay at their goals, because their remaining part may have any
        # length.
        is_sure = self.doubts.none_of(self.index)
        last = np.where(is_sure, last, 0.0)
        time_left = np.where(is_sure, last - time_of_goal, 0.0)
        u = self.goal + time_left * velocity_at_goal
        for _ in range(POSITION_PASSES):
            time_beyond_goal = self.losses.steps_between(self.goal, u, self.index).steps
            missing_time = np.where(is_sure, time_left - time_beyond_goal, 0.0)
            u = u + missing_time * self.losses.velocity(u, self.index).value
        return _End(last.astype(np.int64), u, error)

    def _time_at(self, u: Array, part: Index) -> StepCount:
        """Steps until the positions u, each in its ``part`` of the path.

        The error is the error within this part only.
        """
        begin = self.edges[self.rows, part]
        within_part = self.losses.steps_between(begin, u, self.index)
        steps = self.times[self.rows, part] + within_part.steps
        return StepCount(steps, within_part.error)

    def _over_limit(self, time: Array, u: Array, limit: Array) -> Array:
        """Return t (loss - floor) - limit, (n,), at the times t and the positions u."""
        excess = self.losses.loss(u, self.index) - self.floor
        return time * excess - limit

    def _fall_time(
        self,
        part: Index,
        over_limit: Array,
        falls: Mask,
        limit: Array,
    ) -> StepCount:
        """Real-valued step at which `_over_limit` is 0, in a ``part`` of each path.

        ``over_limit`` has its values at all edges, (n, parts + 1). For points that do
        not fall below their limits the result has no meaning.
        """
        low = self.edges[self.rows, part]
        high = self.edges[self.rows, part + 1]
        if not falls.any():
            # No point falls below its limit, so no result will be used.
            return StepCount(self.times[self.rows, part], self.error)

        # Newton's method starts from the zero of the chord. A run that does not fall
        # has no such zero. For this run a change of 1 avoids a division by zero.
        value_low = over_limit[self.rows, part]
        value_high = over_limit[self.rows, part + 1]
        change = np.where(falls, value_high - value_low, 1.0)
        zero_of_chord = (low * value_high - high * value_low) / change
        u = np.where(falls, zero_of_chord, low)
        for _ in range(FALL_PASSES):
            steps, error = self._time_at(u, part)
            velocity = self.losses.velocity(u, self.index).value
            loss = self.losses.loss(u, self.index)
            # The slope of t (loss - floor) is (loss - floor) dt/du + t d(loss)/du.
            slope = (loss - self.floor) / velocity
            slope = slope + steps * self.losses.slope(u, self.index)
            newton_u = u - self._over_limit(steps, u, limit) / slope
            # The zero lies within the part, so the search stays in it.
            move = np.clip(newton_u, low, high) - u
            # The rounding of t loss, divided by the slope of t (loss - floor) and by
            # the velocity, is an error in steps.
            rounding = ROUNDING * steps * loss / np.abs(slope * velocity)
            error = error + (np.abs(move / velocity) + rounding)
            u = u + move
            steps = steps + move / velocity
        return StepCount(steps, error)


def _rounds_up_surely(steps: Array, error: Array) -> Mask:
    """Whether all numbers within the errors round up to the same integer.

    Numbers round up differently if an integer lies between them. The factor 2 on the
    errors is cautious, because they are estimates.
    """
    distance_to_integer = np.abs(steps - np.round(steps))
    is_far = distance_to_integer > 2.0 * error
    return (error < LARGEST_TRUSTED_ERROR) & is_far
