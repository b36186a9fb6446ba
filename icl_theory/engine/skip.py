"""Runs that skip most of their steps, with an estimate of the error.

A `Skipper` takes single steps at first, and again whenever skipping saves no gradients.
Otherwise it follows the run by strides: intervals of x = ln(1 + t), with the step
number t, on which a polynomial approximates the parameters
(`icl_theory.engine.strides`). Together with the run it computes the shadow of the run,
a less accurate second run. The distance between run and shadow estimates the error. The
shadow takes single steps whenever the run does, so that the distance grows as errors
grow.

Other terms of this module:

move
    The change of the parameters in one step.
block
    A part of the parameters that does not affect the other parts. `Blocks.rows` turns
    parameters into an array of shape (n, m), with one row of m numbers for each of the
    n blocks, and `Blocks.params` turns this array back into parameters.
scores
    The numbers to which the tolerance applies, usually attention scores. They are the
    parameters or functions of the parameters.
margin
    The error of the run divided by its distance from the shadow, for each block.
    `Strides` estimates it, and before the first stride it is MARGIN.
solver error
    The part of the error that comes from solving the equations of strides only
    approximately. The distance does not show this part.
gain
    The largest change of a score for a change of the parameters by 1.
count
    The number of steps after which the loss is at most the target loss, epsilon.

See docs/theory.md, "Skipping ahead".
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Iterator
from typing import NamedTuple

import numpy as np

from icl_theory._validate import Array
from icl_theory.engine.blocks import Blocks
from icl_theory.engine.capabilities import gain_at
from icl_theory.engine.rules import NO_MEMORY
from icl_theory.engine.steps import (
    Ended,
    Iterates,
    Point,
    Steps,
    TooFast,
    TrainingState,
    UpdateMap,
)
from icl_theory.engine.strides import MARGIN, ROUNDING, SLACK, Strides
from icl_theory.engine.trajectory import Stop
from icl_theory.engine.whole_state import skippable_map

# The largest length of a first stride in x = ln(1 + t). It is short because nothing is
# known yet about the error. Later strides may each be twice as long as the last one, so
# a shorter first stride would cost only a few more strides.
LONGEST_FIRST_STRIDE = 0.05
# A first stride takes this share of the time in which the move changes by 100 %. If it
# is too long, it is refused and tried again with a smaller length.
FIRST_SHARE_OF_CHANGE = 0.2
# A first stride skips at least this many steps. With fewer it could hardly save
# gradients.
FEWEST_FIRST_STEPS = 16.0
# The relative change of the move while 1 + t doubles is taken to be at least this. The
# bound avoids a division by zero. Any value below 1 would do, because
# LONGEST_FIRST_STRIDE then sets the length.
SMALLEST_MOVE_CHANGE = 1e-9
# If the distance between run and shadow, times MARGIN, exceeds this share of the
# largest parameter, the distance is too large to estimate the error of the scores to
# first order.
LARGEST_RELATIVE_DISTANCE = 0.05
# If the distance is too large in this sense, the run is lost: the error of a score is
# taken to be at least this many times the largest score so far, and the error of a
# count this many times the usual estimate. Any factor well above 1 says that nothing is
# known about the score.
LOST_FACTOR = 4.0
# The rounding error of the parameters of a point, relative to their size: a few times
# the spacing of float64 numbers.
PARAMS_ROUNDING = 4.0 * ROUNDING
# The rounding error of a loss, relative to its size: again a few times the spacing.
LOSS_ROUNDING = 4.0 * ROUNDING
# The relative change of the parameters with which the shadow begins, 256 times the
# spacing of float64 numbers.
NUDGE = 2.0**-44
# The error of a count about which nothing is known. It is also the limit of the errors
# that are computed as quotients. Beyond 2^53 not every whole number is a float64.
LARGEST_COUNT_ERROR = 2.0**53
# The last losses of the shadow are kept, up to this many. With fewer, the first step at
# which the shadow's loss is at most epsilon may have to be searched for in the strides.
# The memory for this many is negligible.
KEPT_LOSSES = 4096
# Strides may go one of the next three distances in x beyond the next scheduled step:
# the short one if there are more than MANY_PARAMETERS parameters, otherwise the long
# one if there are several blocks, or else DISTANCE_AHEAD. With a longer distance more
# work is lost if the run ends at the scheduled step. `Skipper._first_distance_ahead`
# says what a shorter distance costs.
SHORT_DISTANCE_AHEAD = 0.5
DISTANCE_AHEAD = 2.0
LONG_DISTANCE_AHEAD = 5.0
MANY_PARAMETERS = 2**18
# Newton's method locates a step within one or two iterations, unless rounding hides the
# decrease of the loss. So the limit is hardly ever reached.
MOST_NEWTON_ITERATIONS = 8


class Attempts:
    """Decides at which steps a run tries to skip.

    The run begins to try when the move changes by less than a factor e in ``smooth``
    steps. After each attempt it takes a number of single steps, the pause, before it
    tries again. The pause doubles after an attempt that saved no gradients. The
    defaults decide how many gradients a run takes, and not how accurate it is: attempts
    that come too early are wasted, and attempts that come late leave more single steps.

    Parameters
    ----------
    first_allowed : int
        The run does not try before this step, which may differ from run to run.
    earliest : int
        Another step before which the run does not try. The default serves all runs.
    smooth : float
        The run tries only if the move changes by less than a factor e in this number
        of steps.
    shortest_pause : int
        The pause after an attempt that saved gradients.
    """

    def __init__(
        self,
        first_allowed: int,
        earliest: int = 128,
        smooth: float = 64.0,
        shortest_pause: int = 64,
    ) -> None:
        self._smooth = smooth
        self._shortest_pause = shortest_pause
        self._pause = shortest_pause
        self._next_try = max(first_allowed, earliest)
        # The relative change of the move from one step to the next; infinite as long as
        # fewer than three iterates are known.
        self._move_change = math.inf
        # The parameters of the last three iterates, which give this change.
        self._recent: deque[Array] = deque(maxlen=3)

    def start(self, point: Point) -> None:
        """Begin with single steps at a point."""
        self._recent.clear()
        self._recent.append(point.params)

    def observe(self, point: Point) -> None:
        """Take the next iterate into account."""
        self._recent.append(point.params)
        self._move_change = math.inf
        if len(self._recent) == 3:
            self._move_change = relative_move_change(*self._recent)

    def is_due(self, step: int) -> bool:
        """Whether the run should try to skip at a step."""
        # If the relative change of the move in one step is c, the move changes by a
        # factor of about e^(c n) in n steps, and by at most e if c n <= 1.
        return step >= self._next_try and self._smooth * self._move_change <= 1.0

    def first_length(self, step: int) -> float:
        """Length in x = ln(1 + t) of the first stride.

        It is FIRST_SHARE_OF_CHANGE of the time in which the move changes by 100 % at
        its present pace, but at most LONGEST_FIRST_STRIDE, and at least
        FEWEST_FIRST_STEPS steps.
        """
        # At the present pace, the relative change of the move while 1 + t doubles. The
        # doubling takes `step` + 1 steps.
        change_in_doubling = max(self._move_change * (step + 1.0), SMALLEST_MOVE_CHANGE)
        # While 1 + t grows by the part p of itself, x grows by ln(1 + p), and the move
        # changes by p times `change_in_doubling`. So `length_by_change` is the length
        # for the p at which the move changes by FIRST_SHARE_OF_CHANGE.
        length_by_change = math.log1p(FIRST_SHARE_OF_CHANGE / change_in_doubling)
        shortest = math.log1p(FEWEST_FIRST_STEPS / (step + 1.0))
        return max(min(LONGEST_FIRST_STRIDE, length_by_change), shortest)

    def finish(self, start: int, end: int, gradients: int) -> None:
        """Set the step of the next attempt, after strides from ``start`` to ``end``.

        ``gradients`` is the number of gradients that these strides have taken.
        """
        skipped = end - start
        # A single step takes two gradients, one for the run and one for its shadow.
        if 2 * skipped > gradients:
            self._pause = self._shortest_pause
        else:
            self._pause *= 2
        self._next_try = end + self._pause


class RunAndShadow(NamedTuple):
    """Parameters of the run and of its shadow at the same step."""

    run: Array
    shadow: Array


class StrideError(NamedTuple):
    """Error estimates of all strides up to a step.

    Attributes
    ----------
    error : float
        The largest estimated error of the run.
    distance : float
        The largest distance between run and shadow.
    """

    error: float
    distance: float


class ShadowLosses:
    """The last KEPT_LOSSES computed losses of the shadow, with their steps."""

    def __init__(self) -> None:
        self._steps: deque[int] = deque(maxlen=KEPT_LOSSES)
        self._losses: deque[float] = deque(maxlen=KEPT_LOSSES)

    def append(self, point: Point) -> None:
        """Add an iterate of the shadow."""
        self._steps.append(point.step)
        self._losses.append(point.loss)

    def bracket(self, epsilon: float) -> tuple[int | None, int | None]:
        """Return the recorded steps before and after the shadow's loss reaches epsilon.

        The later one is the first recorded step with loss <= epsilon. The earlier one
        is the recorded step before it, or the last recorded step if no recorded loss is
        at most epsilon. Either is None if there is no such step.
        """
        last_above = None
        for step, loss in zip(self._steps, self._losses, strict=True):
            if loss <= epsilon:
                return last_above, step
            last_above = step
        return last_above, None


class Skipper(Iterates):
    """A run that skips steps, or a gradient flow.

    A run that skips steps is followed by its shadow, a less accurate second run that
    estimates the error. A flow has no shadow. A point is an iterate with its loss and
    gradient.

    Parameters
    ----------
    update_map : UpdateMap
        One step of the run.
    tolerance : float
        The absolute tolerance on the scores.
    known_states : dict of int to TrainingState, optional
        States of the run that are known already, by step.
    exact : int
        The run does not try to skip before this step.
    budget : int
        The largest number of gradients. A run that needs more ends with `Stop.WORK`.
        The default is far above the number that a run usually needs; it ends a run that
        would otherwise take very long.
    flow : bool
        Whether the points approximate the gradient flow instead of the iterates.
    """

    skips = True

    def __init__(
        self,
        update_map: UpdateMap,
        tolerance: float,
        known_states: dict[int, TrainingState] | None = None,
        *,
        exact: int = 0,
        budget: int = 200_000,
        flow: bool = False,
    ) -> None:
        super().__init__(update_map, known_states)
        # If the rule has a memory, this is a map of the whole state: the parameters and
        # the memory in one array. `params` then means the whole state in this class,
        # and `to_run_point` separates the two parts of a point again. Without a memory
        # the points of this map are the points of the run.
        self._map = skippable_map(update_map)
        self.tolerance = tolerance
        self.budget = budget
        self.flow = flow
        self._exact = exact
        self._has_shadow = not flow
        self._blocks = Blocks(self._map)
        self._strides: Strides | None = None
        # Parameters of the shadow, once it has begun.
        self._shadow: Array | None = None
        self._shadow_losses = ShadowLosses()
        # Run and shadow at the last two single steps, by step.
        self._single_steps: dict[int, RunAndShadow] = {}
        # The largest estimated error of a score so far, and an estimate of the largest
        # score so far.
        self._worst_error = 0.0
        self._largest_score = 0.0
        # Whether the distance between run and shadow has been too large to estimate
        # errors to first order.
        self._is_lost = False

    @property
    def error(self) -> float | None:  # type: ignore[override]
        """The largest estimated error of the scores so far.

        It is None for a flow, and for a run that has not skipped a step.
        """
        if self.flow or not self.skipped:
            return None
        return self._worst_error

    def _points(self, schedule: Steps) -> Generator[Point, None, None]:
        """Yield points of the run, which include all steps of the schedule."""
        start = self._map.point_at(self._map.start())
        yield self._map.to_run_point(start)
        for point in self._points_after(start, schedule):
            yield self._map.to_run_point(point)

    def _later(self, state: TrainingState, t: int) -> TrainingState:
        """Compute the state of the run at step t from an earlier one."""
        # A new `Skipper` starts at the state, so that this one keeps its strides and
        # its shadow. Its map is new, too, and counts gradients from zero.
        update_map = UpdateMap(
            self.update_map.risk, self.update_map.eta, self.update_map.rule
        )
        skipper = type(self)(
            update_map, self.tolerance, budget=self.budget, flow=self.flow
        )
        # Only the state is needed and not its error, so no shadow is computed.
        skipper._has_shadow = False
        start = skipper._map.point_at(skipper._map.from_run_state(state))
        for point in skipper._points_after(start, np.array([t])):
            if point.step == t:
                return skipper._map.to_run_point(point).state
        raise AssertionError("a scheduled step is reached")

    def _points_after(
        self, point: Point, schedule: Steps
    ) -> Generator[Point, None, None]:
        """Yield the points after ``point``, in turn by single steps and by strides.

        While the run takes single steps, these are all iterates. While it skips, they
        are the points at scheduled steps, and the point at which skipping ends.
        """
        if self.flow:
            # A flow has no single steps.
            yield from self._skip(point, schedule, LONGEST_FIRST_STRIDE)
            return
        attempts = Attempts(first_allowed=max(self._exact, point.step))
        iterates = self._take_single_steps(point)
        while point.step < schedule[-1]:
            attempts.start(point)
            for iterate in iterates:
                yield iterate
                point = iterate
                attempts.observe(point)
                if point.step >= schedule[-1] or attempts.is_due(point.step):
                    break
            # Try to skip.
            start = point.step
            shadow_before = self._shadow
            gradients_before = self._map.evaluations
            first_length = attempts.first_length(start)
            for scheduled in self._skip(point, schedule, first_length):
                yield scheduled
                point = scheduled
            if point.step > start:
                iterates = self._take_single_steps(point)
            else:
                # No step was skipped. The same iterator of single steps continues, so
                # that the carry of its compensated sum is not lost. The iterator does
                # not follow a shadow that began with this attempt, so such a shadow is
                # dropped.
                self._shadow = shadow_before
            gradients = self._map.evaluations - gradients_before
            attempts.finish(start, point.step, gradients)

    def _take_single_steps(self, start: Point) -> Iterator[Point]:
        """Yield the iterates after ``start``, while the shadow takes the same steps."""
        iterates = self._map.iterates(start.state)
        # Before the first attempt to skip there is no error to estimate, so there is no
        # shadow. A run that `_later` has made never has one.
        shadow_iterates = None
        if self._shadow is not None:
            # A memory of the rule is part of `params`, see `__init__`.
            shadow_start = TrainingState(
                start.step,
                params=self._shadow,
                memory=NO_MEMORY,
                carry=np.zeros_like(self._shadow),
            )
            shadow_iterates = self._map.iterates(shadow_start)
        # The first point is the start itself. It is compared with its shadow, too, but
        # not yielded again.
        for point in iterates:
            # The next step takes up to two gradients: one for the run and, if there is
            # a shadow, one for the shadow.
            if self._map.evaluations + 2 > self.budget:
                raise Ended(Stop.WORK, work=self.budget)
            if shadow_iterates is not None:
                shadow = next(shadow_iterates)
                self._shadow = shadow.params
                self._remember_single_step(point, shadow)
                self._compare(point.params, shadow)
            if point.step > start.step:
                yield point

    def _remember_single_step(self, run: Point, shadow: Point) -> None:
        """Keep the parameters of run and shadow at this step and the step before.

        Older ones are dropped.
        """
        previous = self._single_steps.get(run.step - 1)
        self._single_steps = {run.step: RunAndShadow(run.params, shadow.params)}
        if previous is not None:
            self._single_steps[run.step - 1] = previous

    def _skip(
        self, start: Point, schedule: Steps, first_length: float
    ) -> Iterator[Point]:
        """Yield the scheduled points after ``start``, as long as skipping saves work.

        When skipping saves no more work, the last point is at the last step that the
        strides have reached, even if this step is not scheduled. Single steps continue
        from there.
        """
        strides = self._begin_strides(start, first_length)
        distance_ahead = self._first_distance_ahead(strides)
        remaining = schedule[schedule > start.step]
        last_yielded_step = start.step
        is_too_fast = False
        while remaining.size and not is_too_fast:
            x = math.log1p(remaining[0])
            # Take strides if a block has not reached the next scheduled step yet.
            if strides.x.min() < x - SLACK:
                # Strides before the last point are not needed any more.
                strides.forget(last_yielded_step)
                try:
                    strides.reach(min(x + distance_ahead, math.log1p(schedule[-1])))
                except TooFast:
                    # Strides save no gradients any more, or might skip an oscillation.
                    is_too_fast = True
                else:
                    # Only the first strides may go a long distance ahead. The run may
                    # end at the next point, and strides far beyond this point would
                    # then be wasted.
                    distance_ahead = min(distance_ahead, DISTANCE_AHEAD)
            # The scheduled steps that all blocks have reached. They come first among
            # the remaining steps.
            is_reached = np.log1p(remaining) <= strides.x.min() + SLACK
            reached = remaining[is_reached]
            remaining = remaining[len(reached) :]
            yield from self._points_on(strides, reached)
            if reached.size:
                last_yielded_step = int(reached[-1])
        # Single steps continue from the last step that all blocks have reached.
        if is_too_fast and strides.last_step > last_yielded_step:
            yield from self._points_on(strides, np.array([strides.last_step]))
        # Strides also end when a mode begins to change its sign from step to step.
        if strides.oscillates and self._shadow is not None:
            self._shift_shadow_phase(strides, self._shadow)

    def _begin_strides(self, start: Point, first_length: float) -> Strides:
        """Return new strides, of the run and of its shadow, which begin at a point.

        They replace the strides so far, but continue their error estimates. If the run
        has no shadow yet, the shadow begins here.
        """
        blocks = self._blocks
        if self._shadow is None and self._has_shadow:
            self._shadow = nudged_by_rounding(start.params)
        shadow_rows = None
        if self._shadow is not None:
            shadow_rows = blocks.rows(self._shadow)
        self._strides = Strides(
            blocks,
            tolerance=self.tolerance,
            run_start=blocks.rows(start.params),
            shadow_start=shadow_rows,
            t=start.step,
            first_length=first_length,
            budget=self.budget,
            flow=self.flow,
            previous=self._strides,
        )
        return self._strides

    def _first_distance_ahead(self, strides: Strides) -> float:
        """Distance in x that the first strides may go beyond the next scheduled step.

        See DISTANCE_AHEAD.
        """
        block_count, numbers_in_block = strides.run_end.shape
        # With many parameters a stride takes long. With a short distance, points come
        # more often and show the user the progress.
        if block_count * numbers_in_block > MANY_PARAMETERS:
            return SHORT_DISTANCE_AHEAD
        # Blocks take their strides together, which saves calls. With a short distance
        # some blocks would have to wait at its end until the last block arrives.
        if block_count > 1:
            return LONG_DISTANCE_AHEAD
        return DISTANCE_AHEAD

    def _shift_shadow_phase(self, strides: Strides, shadow: Array) -> None:
        """Give the shadow the opposite phase of an oscillation of the run.

        A growing oscillation may have begun from rounding. Rounding then decides which
        of two phases the oscillation has. So the error of the run may be as large as
        the distance between the two phases. A shadow with the opposite phase shows this
        distance.
        """
        oscillation = self._blocks.rows(self._oscillation(strides))
        reversal = self._blocks.params(strides.phase_reversal(oscillation))
        self._shadow = shadow + reversal
        # The margins of the last strides hold only for the distance before this shift.
        strides.errors.margin[:] = MARGIN

    def _oscillation(self, strides: Strides) -> Array:
        """Twice the part of the parameters that changes its sign at each step.

        This is the difference between the two phases of an oscillation. It is computed
        at the last step of the strides, from the third difference of four moves, in
        which slow changes cancel.
        """
        t = strides.last_step
        params = self._run_at(strides, t)
        oscillation = np.zeros_like(params)
        # An oscillation a, -a, a, … has the moves -2a, 2a, -2a and 2a. Their third
        # difference, with these weights, is -16a. So minus an eighth of it is 2a.
        for weight in (1.0, -3.0, 3.0, -1.0):
            # The number t of the first step stands for all four: a step that can be
            # skipped does not depend on its number.
            move, _memory = self._map.point(params, t).update(self._map)
            params = params + move
            oscillation = oscillation - weight / 8.0 * move
        return oscillation

    def _run_at(self, strides: Strides, t: int) -> Array:
        """Parameters of the run at a step that the strides have reached."""
        # `Strides.states` returns rows of blocks, (1, n, m), of run and shadow.
        run, _shadow = strides.states(np.array([t]))
        return self._blocks.params(run[0])

    def _points_on(self, strides: Strides, steps: Steps) -> Iterator[Point]:
        """Yield the run's points at ``steps``, which strides have reached.

        Before each point, the error estimate is updated from the distance between run
        and shadow.
        """
        # For each of the T steps, the largest error and distance of the strides up to
        # it.
        errors, distances = strides.worst_until(np.log1p(steps))
        # The rows of all blocks at each step, (T, n, m).
        run, shadow = strides.states(steps)
        for i, t in enumerate(steps.tolist()):
            params = self._blocks.params(run[i])
            self.skipped = True
            if self._shadow is not None:
                # If single steps follow, the shadow takes them from here, too.
                self._shadow = self._blocks.params(shadow[i])
                stride_error = StrideError(
                    error=float(errors[i]), distance=float(distances[i])
                )
                shadow_point = self._map.point(self._shadow, t)
                self._compare(params, shadow_point, stride_error)
            yield self._map.point(params, t)

    def _compare(
        self, run: Array, shadow: Point, stride_error: StrideError | None = None
    ) -> None:
        """Update the estimated error from the parameters of run and shadow.

        ``stride_error`` holds the estimates of the strides up to this step; it is None
        after a single step. The loss of the shadow is kept for ``_shadow_count``.
        """
        self._shadow_losses.append(shadow)
        size = largest_entry(run)
        difference = self._blocks.rows(run - shadow.params)
        distance = largest_entry(difference)
        # `error` is the error of the parameters, without the rounding of this point. It
        # is the estimate of the strides; after a single step it follows from the
        # distance.
        if stride_error is not None:
            error = stride_error.error
            distance = max(distance, stride_error.distance)
        else:
            # A single step after strides, since there is no shadow before the first
            # ones. The margins of the last strides still hold.
            assert self._strides is not None
            margins = self._strides.errors.margin
            error = largest_entry(margins[:, None] * np.abs(difference))
            # The distance does not show the solver error.
            error += float(self._strides.errors.solver_error.max())
        # Parameters that are not finite, with which the run ends, may have no gain: a
        # matrix with NaN has no singular values.
        is_finite = np.isfinite(run).all()
        gain = gain_at(self._map.risk, run) if is_finite else math.inf
        # To first order, the scores are at most the gain times the parameters.
        self._largest_score = max(self._largest_score, gain * size)
        if MARGIN * distance > LARGEST_RELATIVE_DISTANCE * size:
            # The distance is this large if training is chaotic, or late in a drop of
            # the loss. The true iterates may then be far from both run and shadow.
            by_distance = MARGIN * gain * distance
            by_size = LOST_FACTOR * self._largest_score
            self._is_lost = True
            self._worst_error = max(self._worst_error, by_distance, by_size)
        score_error = gain * (error + PARAMS_ROUNDING * size)
        self._worst_error = max(self._worst_error, score_error)

    def _first_below(self, epsilon: float) -> tuple[int, float | None]:
        """Return the first step with loss <= epsilon, and its error in steps.

        The loss at ``last_point`` is at most epsilon. Afterwards ``last_point`` is the
        point at the returned step. The error is None for a flow, and if no step was
        skipped.
        """
        assert self.last_point is not None
        hit = self._locate(epsilon, self.last_point)
        # Skipping follows the whole state, so a located point is a point of the whole
        # state. The last point is already a point of the run.
        if hit is not self.last_point:
            self.last_point = self._map.to_run_point(hit)
        # No step was skipped, or a flow was followed, whose steps are times and are not
        # counted.
        if self.error is None:
            return hit.step, None
        return hit.step, self._count_error(hit.step, epsilon)

    def _locate(self, epsilon: float, upper: Point) -> Point:
        """The first point with loss <= epsilon, between the last two points of the run.

        ``upper`` is the last point, and its loss is at most epsilon. Bisection finds
        the step as accurately as the recorded strides give the loss. Strides that end
        at this step are more accurate, and then correct the step.
        """
        strides = self._strides
        # `_previous` is the point before the last one. If there is none, -1 stands for
        # a step before step 0.
        previous_step = -1 if self._previous is None else self._previous.step
        # Without strides, or if the points are neighbouring steps, there is no step
        # between them that was skipped.
        if strides is None or upper.step - previous_step == 1:
            return upper
        hit = self._bisect(strides, epsilon, previous_step, upper)
        if self.flow:
            # `_refine` takes steps of the rule, which a flow does not take.
            return hit
        return self._refine(
            strides, epsilon, hit, first=previous_step + 1, last=upper.step
        )

    def _bisect(
        self, strides: Strides, epsilon: float, lowest: int, upper: Point
    ) -> Point:
        """The first point with loss <= epsilon, by bisection on the strides.

        ``lowest`` is a step with a larger loss, or -1, and ``upper`` is a point with
        loss <= epsilon.
        """
        low = lowest
        hit = upper
        while hit.step - low > 1:
            middle = (low + hit.step) // 2
            point = self._map.point(self._run_at(strides, middle), middle)
            if point.loss <= epsilon:
                hit = point
            else:
                low = middle
        return hit

    def _refine(
        self, strides: Strides, epsilon: float, hit: Point, first: int, last: int
    ) -> Point:
        """Correct the first point with loss <= epsilon by Newton's method.

        The decrease of the loss in one step takes the place of the derivative in
        Newton's method, because it hardly changes from one step to the next. The step
        stays between ``first`` and ``last``. If the method fails, the uncorrected point
        ``hit`` is returned.
        """
        t = hit.step
        # Each iteration computes the losses at the steps t - 1 and t. It ends the
        # search if epsilon is between them.
        for _ in range(MOST_NEWTON_ITERATIONS):
            # `land` solves strides that end at t - 1. At their ends they are accurate.
            run, _shadow = strides.land(t - 1)
            before = self._map.point(self._blocks.params(run), t - 1)
            move, _memory = before.update(self._map)
            after = self._map.point(before.params + move, t)
            if before.loss > epsilon >= after.loss:
                return after
            decrease = before.loss - after.loss
            # Newton's method needs a positive decrease. NaN, from states beyond
            # float64, is not positive either, so the test is negated.
            if not decrease > 0.0:
                break
            # `steps_to_go` is negative if the loss was already below epsilon at the
            # step t - 1.
            steps_to_go = math.ceil((after.loss - epsilon) / decrease)
            t = min(max(t + steps_to_go, first), last)
        return hit

    def _count_error(self, hit: int, epsilon: float) -> float:
        """Estimated error of the step ``hit``, the first with loss <= epsilon.

        The error of a loss is the sum of the gradient's absolute values times the
        errors of the parameters. The count ``hit`` is right and the returned error is
        below 1 under three conditions: the losses at ``hit`` and at the step before
        both differ from epsilon by more than their errors, these errors are less than
        the decrease of the loss in one step, and the shadow reaches epsilon within a
        step of ``hit``. Otherwise the difference between the counts of run and shadow
        shows how far ``hit`` may be from the right count.
        """
        strides = self._strides
        # Step 0 is exact, and so is a run without strides.
        if hit == 0 or strides is None:
            return 0.0
        margins = strides.margins_at(math.log1p(hit))
        error_in_steps = 0.0
        is_clear = True
        for t in (hit - 1, hit):
            pair = self._run_and_shadow_at(strides, t)
            point = self._map.point(pair.run, t)
            loss_error = self._loss_error(strides, point, pair.shadow, margins)
            # The number of steps in which the loss falls by its error. The comparison
            # avoids a division by zero and a quotient above LARGEST_COUNT_ERROR.
            slope = oscillation_free_slope(self._map, point)
            error_at_t = LARGEST_COUNT_ERROR
            if slope > loss_error / LARGEST_COUNT_ERROR:
                error_at_t = loss_error / slope
            error_in_steps = max(error_in_steps, error_at_t)
            is_clear = is_clear and abs(point.loss - epsilon) > loss_error
        # The difference is infinite if the shadow has not reached epsilon.
        count_difference = abs(self._shadow_count(strides, epsilon) - hit)
        if is_clear and error_in_steps < 1.0 and count_difference <= 1.0:
            return error_in_steps
        # The error is the sum of two estimates: the whole number of steps in which the
        # loss falls by its error, and the error that the shadow shows. In a run whose
        # oscillation grows from rounding, each estimate alone has been too small.
        whole_steps = float(math.ceil(error_in_steps))
        error = whole_steps + count_difference * float(margins.max())
        return LOST_FACTOR * error if self._is_lost else error

    def _run_and_shadow_at(self, strides: Strides, t: int) -> RunAndShadow:
        """Parameters of run and shadow at a step, as accurate as possible."""
        if t in self._single_steps:
            return self._single_steps[t]
        # The step is inside strides; `land` solves them again so that they end there.
        run, shadow = strides.land(t)
        return RunAndShadow(self._blocks.params(run), self._blocks.params(shadow))

    def _loss_error(
        self, strides: Strides, point: Point, shadow: Array, margins: Array
    ) -> float:
        """Estimated error of the loss at a point of the run.

        It is the sum of the errors of the parameters times the absolute values of the
        gradient, plus rounding. ``shadow`` are the shadow's parameters at this step,
        and ``margins`` the factors from distances to errors, one for each block.
        """
        difference = self._blocks.rows(point.params - shadow)
        params_error = self._blocks.params(margins[:, None] * np.abs(difference))
        # The distance shows neither the solver error nor the rounding of this point.
        rounding = PARAMS_ROUNDING * np.abs(point.params)
        params_error += float(strides.errors.solver_error.max()) + rounding
        first_order = float(np.sum(params_error * np.abs(point.gradient)))
        return first_order + LOSS_ROUNDING * abs(point.loss)

    def _shadow_count(self, strides: Strides, epsilon: float) -> float:
        """First step at which the loss of the shadow is at most epsilon.

        It is infinite if the shadow has not reached epsilon yet.
        """
        low, high = self._shadow_losses.bracket(epsilon)
        if low is None:
            # No loss above epsilon is recorded from before the shadow reached epsilon.
            # The strides begin at a step at which the run, and the shadow next to it,
            # still have a loss above epsilon.
            low = round(math.expm1(strides.begin))
        if high is None:
            # No recorded loss is at most epsilon, but strides may reach beyond the last
            # recorded step. The second test is negated because the loss is NaN if
            # strides have been dropped.
            high = strides.last_step
            if high <= low or not self._shadow_loss(strides, high) <= epsilon:
                return math.inf
        # Bisection between a step with a loss above epsilon and one without.
        while high - low > 1:
            middle = (low + high) // 2
            loss = self._shadow_loss(strides, middle)
            if math.isnan(loss):
                # The strides at this step have been dropped. Run and shadow are then so
                # far from each other that the exact step does not matter.
                break
            if loss <= epsilon:
                high = middle
            else:
                low = middle
        return float(high)

    def _shadow_loss(self, strides: Strides, t: int) -> float:
        """Loss of the shadow at a step; NaN if its strides have been dropped."""
        _run, shadow = strides.states(np.array([t]))
        if not np.isfinite(shadow[0]).all():
            return math.nan
        return self._map.point(self._blocks.params(shadow[0]), t).loss


def nudged_by_rounding(params: Array) -> Array:
    """Parameters that are changed as much as rounding changes them in many steps.

    The shadow starts from these parameters. If training amplifies such a change, the
    distance between run and shadow shows it.
    """
    # The signs alternate: a common factor of all parameters would be a special
    # direction, in which changes may grow less than in others.
    is_odd = np.arange(params.size) % 2 == 1
    factors = 1.0 + np.where(is_odd, NUDGE, -NUDGE)
    return np.asarray(params * factors.reshape(params.shape))


def oscillation_free_slope(update_map: UpdateMap, point: Point) -> float:
    """Decrease of the loss in one step from a point, without the part that oscillates.

    If the scalar product of the next two moves is negative, the run oscillates, and the
    result is half of the decrease in two steps, at least 0. Otherwise the result is the
    decrease to first order, `UpdateMap.slope`.
    """
    move, _memory = point.update(update_map)
    after = update_map.point(point.params + move, point.step + 1)
    next_move, _memory = after.update(update_map)
    # If the scalar product is NaN, because moves leave float64, the run is treated like
    # one that oscillates: its decrease to first order would mean nothing.
    is_oscillating = not np.sum(move * next_move) >= 0.0
    if not is_oscillating:
        return update_map.slope(point)
    after_two = update_map.point(after.params + next_move, point.step + 2)
    # If a loss is NaN, max() returns 0.0. With this slope `_count_error` reports the
    # largest error.
    return max(0.0, 0.5 * (point.loss - after_two.loss))


def largest_entry(array: Array) -> float:
    """Largest absolute value of an array; 0 if it is empty."""
    return float(np.abs(array).max(initial=0.0))


def relative_move_change(first: Array, second: Array, third: Array) -> float:
    """Relative change of the move in one step, from three successive iterates.

    It is the largest entry of the second difference of the iterates, divided by the
    largest entry of the first move. It is 0 if the first move is zero: the run is then
    at rest.
    """
    first_move_size = largest_entry(second - first)
    if first_move_size == 0.0:
        return 0.0
    second_difference = third - 2.0 * second + first
    return largest_entry(second_difference) / first_move_size
