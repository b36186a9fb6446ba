"""Many points over K x K scores at once, followed by the strides that single runs take.

`score_batches` sorts the points of a sweep into batches. The first steps of a batch are
taken one by one. From then on the runs are followed by strides, each with a shadow that
tells its error, and are observed at times on a grid (`_follow`). Between two times of
the grid, `_count` finds the first step at which a loss or attention passes its level.
A point is done if run, shadow and rounding leave only one integer for every count. All
others are left to simulations, each with a `Doubt`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from icl_theory._validate import Array
from icl_theory.engine.blocks import Blocks
from icl_theory.engine.counting import ROUNDING
from icl_theory.engine.descent import AUTO_STEPS, TOLERANCE, VISIBLE
from icl_theory.engine.progress import Progress
from icl_theory.engine.rules import GradientDescent
from icl_theory.engine.steps import UpdateMap
from icl_theory.engine.stops import SETTLED, STALL_AFTER
from icl_theory.engine.strides import NODES, Strides
from icl_theory.engine.trajectory import saved_steps
from icl_theory.regression.batches.doubts import Doubt, Doubts, Index, Mask
from icl_theory.regression.batches.finite_prompts import BLUR, MOST
from icl_theory.regression.batches.score_batch import (
    Observation,
    ScoreBatch,
    fit_together,
)
from icl_theory.regression.phases import TAIL_RATIO
from icl_theory.regression.risks.population import PopulationRisk
from icl_theory.regression.tails import resting_loss, tail_limit

# Steps that are taken one by one at first, and the steps among them to which the first
# stride is fitted.
SINGLE = 64
FITTED = np.round(np.geomspace(SINGLE / 4.0, SINGLE, NODES + 1)).astype(int)
# Distance in x = ln(1 + t) of the times at which runs are observed, and the length of
# the first stride.
GRID = 0.2
FIRST_STRIDE = 0.6
# Largest relative distance of the results of a run and its shadow.
APART = 3e-8
# Factor by which a run must keep clear of where a simulation gives up.
CAUTION = 2.0
# Part of the loss by which it must fall in a decade of steps, or a run has stalled.
STALL_FRACTION = 1e-3


class Summary(NamedTuple):
    """Results for n points, each (n,), or for all points at many times, each (T, P)."""

    loss: Array
    share: Array  # attention relative to its largest value, least of all queries
    move: Array  # largest change of a score in one step
    attention: Array  # mean over the queries

    @classmethod
    def of(cls, batch: ScoreBatch, observed: Observation, points: Index) -> Summary:
        """Summarise an observation of some points."""
        return cls(
            observed.loss,
            batch.shares(observed.attention, points).min(axis=1),
            np.abs(observed.move).max(axis=1),
            observed.attention.mean(axis=1),
        )


class Course(NamedTuple):
    """Runs observed at the times t, (T,)."""

    t: Array
    at: Summary  # NaN once a run is not followed any more, (T, P)
    strides: Strides


class _Observations:
    """Summaries of the runs of a batch, as they are made."""

    def __init__(self, batch: ScoreBatch) -> None:
        self._batch = batch
        self._times = list[float]()
        self._summaries = list[Summary]()

    @property
    def last_time(self) -> float:
        return self._times[-1]

    def add(self, t: float, points: Index, summary: Summary) -> Summary:
        """Add the summary of some points; that of the other ones is NaN."""
        rows = []
        for values in summary:
            row = np.full(self._batch.count, np.nan)
            row[points] = values
            rows.append(row)
        self._times.append(t)
        self._summaries.append(Summary(*rows))
        return self._summaries[-1]

    def table(self) -> tuple[Array, Summary]:
        """Times, (T,), and summaries, (T, P)."""
        columns = zip(*self._summaries, strict=True)
        return np.array(self._times), Summary(*(np.array(rows) for rows in columns))


def _follow(batch: ScoreBatch, target: Array, last: float) -> Course:
    """Follow all points until their losses are at their targets, (P,)."""
    observations = _Observations(batch)
    rows, fitted = _take_single_steps(batch, observations)
    _, at = observations.table()
    is_finite = np.isfinite(rows).reshape(batch.count, -1).all(axis=1)
    active: Mask = np.asarray((at.loss > target).all(axis=0) & is_finite)

    strides = _strides(batch, rows)
    strides.guess_from(fitted)
    x = math.log1p(SINGLE)
    while active.any() and observations.last_time < last:
        times = x + GRID * np.arange(1, 3)
        end = times[-1]
        strides.reach(np.where(active[batch.point], end, 0.0))
        # Blocks that cannot be followed are left behind.
        has_arrived = strides.x >= end - 1e-9
        active &= has_arrived.reshape(batch.count, -1).all(axis=1)
        for x in times.tolist():
            points = np.flatnonzero(active)
            summary = _summary_at(batch, strides, x, points)
            all_points = observations.add(math.expm1(x), points, summary)
            active &= ~(all_points.loss <= target)
    t, at = observations.table()
    return Course(t, at, strides)


def _take_single_steps(
    batch: ScoreBatch, observations: _Observations
) -> tuple[Array, dict[int, Array]]:
    """Take the first steps; return the last rows, (P K, K), and those to be fitted."""
    points = np.arange(batch.count)
    rows = np.ascontiguousarray(batch.initial.T)
    carry = np.zeros_like(rows)
    fitted = {}
    for t in range(SINGLE + 1):
        observed = batch.observation(rows, points)
        observations.add(t, points, Summary.of(batch, observed, points))
        if t in FITTED:
            fitted[t] = rows
        if t < SINGLE:
            # Kahan's compensated sum
            step = -observed.move.reshape(rows.shape) - carry
            moved = rows + step
            carry = (moved - rows) - step
            rows = moved
    return rows, fitted


def _strides(batch: ScoreBatch, rows: Array) -> Strides:
    """Strides from the last single step on."""
    # The shadow begins beside the run, by what rounding does in many steps. If the
    # orbit enlarges this distance, the estimated error grows with it.
    is_odd = np.arange(batch.K) % 2
    shadow = rows * (1.0 + np.where(is_odd, 2.0**-44, -(2.0**-44)))
    return Strides(
        Blocks(UpdateMap(batch, 1.0, GradientDescent())),
        TOLERANCE,
        rows,
        shadow,
        SINGLE,
        FIRST_STRIDE,
        10**9,
        False,
        share=0.03,
        aim=0.8,
        separate=True,
        solver_share=0.01,
    )


def _summary_at(
    batch: ScoreBatch, strides: Strides, x: float, points: Index
) -> Summary:
    if not points.size:
        return Summary(*np.empty((4, 0)))
    columns = batch.columns_of(points)
    run, _ = strides.at(np.full(len(columns), x), columns)
    return Summary.of(batch, batch.observation(run, points), points)


class _Quantity(NamedTuple):
    """A quantity that is negative until it passes zero at the step to be counted."""

    on_grid: Array  # at the times of a course, (T, P)
    # Maps times (n,), an observation and its points to values, (n,).
    value: Callable[[Array, Observation, Index], Array]
    blur: Array  # its error due to rounding, (P,)


class _Count(NamedTuple):
    """Counts of all points, (P,)."""

    steps: Array  # whole numbers, infinite if the quantity does not pass zero
    error: Array  # of the real number that was rounded up
    is_sure: Mask


def _count(
    batch: ScoreBatch,
    course: Course,
    quantity: _Quantity,
    after: Index | None = None,
    most_error: float = 0.1,
) -> _Count:
    """Count the steps until a quantity is not negative for the first time.

    Parameters
    ----------
    batch, course : ScoreBatch, Course
        Runs of P points.
    quantity : _Quantity
        What to follow.
    after : ndarray, optional, (P,)
        Times of the grid, by their rows, that must have passed before.
    most_error : float
        Counts that may be off by more are not sure.
    """
    values = quantity.on_grid
    is_passed = values >= 0.0
    if after is not None:
        is_passed &= np.arange(len(values))[:, None] > after
    row = is_passed.argmax(axis=0)
    ever_passes = is_passed.any(axis=0)

    steps = np.where(ever_passes, course.t[row], np.inf)
    error = np.zeros(batch.count)
    # Between two single steps there is nothing to refine.
    points = np.flatnonzero(ever_passes & (row > SINGLE))
    if points.size:
        time, time_error = _crossing_time(batch, course, quantity, row[points], points)
        steps[points] = time
        error[points] = time_error

    single = values[: SINGLE + 1]
    is_blurred = np.abs(single) <= BLUR / ROUNDING * quantity.blur
    is_one_integer = np.ceil(steps - error) == np.ceil(steps + error)
    is_clear = ~is_blurred.any(axis=0) & is_one_integer & (error < most_error)
    # A quantity that never passes must be clearly negative where the run ends.
    last_row = np.isfinite(values).sum(axis=0) - 1
    last_value = values[last_row, np.arange(batch.count)]
    is_sure = np.where(ever_passes, is_clear, last_value < -APART)
    return _Count(np.ceil(steps), error, is_sure)


def _crossing_time(
    batch: ScoreBatch, course: Course, quantity: _Quantity, row: Index, points: Index
) -> tuple[Array, Array]:
    """Times at which some points pass zero, before the rows, and their errors, (n,)."""
    columns = batch.columns_of(points)
    t_low = course.t[row - 1]
    t_high = course.t[row]
    below = quantity.on_grid[row - 1, points]
    above = quantity.on_grid[row, points]

    def states(x: Array) -> tuple[Array, Array]:
        return course.strides.at(np.repeat(x, batch.K), columns)

    def value(x: Array, rows: Array) -> Array:
        return quantity.value(np.expm1(x), batch.observation(rows, points), points)

    def value_of_run(x: Array) -> Array:
        run, _ = states(x)
        return value(x, run)

    x = crossing(value_of_run, np.log1p(t_low), np.log1p(t_high), below, above)
    time = np.expm1(x)
    # A curve that bends in one sense only is, at the crossing, as steep as one of its
    # two chords at least.
    slope = np.fmin(below / (t_low - time), above / (t_high - time))

    run, shadow = states(x)
    remainder = value(x, run)
    shadow_distance = np.abs(value(x, shadow) - remainder)
    margins = course.strides.errors.margin.reshape(batch.count, -1).max(axis=1)
    lateness = np.maximum(
        margins[points] * shadow_distance / slope,
        _lateness(batch, course.strides, run, shadow, points),
    )
    error = lateness + (quantity.blur[points] + np.abs(remainder)) / slope
    return time, error


def _lateness(
    batch: ScoreBatch, strides: Strides, run: Array, shadow: Array, points: Index
) -> Array:
    """By how many steps runs may be early or late, (n,).

    With an error δ in the scores and a move g, the loss is off by g·δ, and falls by g·g
    in one step.
    """
    move = batch.observation(run, points).move
    columns = batch.columns_of(points)
    distance = strides.errors.margin[columns, None] * np.abs(run - shadow)
    error = distance + strides.errors.solver_error[columns, None]
    error = error.reshape(len(points), -1)
    loss_error = np.sum(error * np.abs(move), axis=1)
    decrease = np.sum(move**2, axis=1)
    return np.asarray(loss_error / decrease)


def crossing(
    value: Callable[[Array], Array], low: Array, high: Array, below: Array, above: Array
) -> Array:
    """Zeros of n functions between two places, by the method of Pegasus.

    Parameters
    ----------
    value : callable
        Maps n places to the values there, each of its own function.
    low, high : ndarray, (n,)
        Places on either side of the zeros.
    below, above : ndarray, (n,)
        Values at ``low`` and ``high``, of opposite signs.
    """
    for _ in range(30):
        with np.errstate(divide="ignore", invalid="ignore"):
            secant = high - above * (high - low) / (above - below)
            middle = np.where(above == 0.0, high, secant)
            value_at_middle = value(middle)
            # If the zero is still on the side of ``low``, its value is reduced, so that
            # the next secant ends nearer to it.
            is_crossed = value_at_middle * above <= 0.0
            reduced = below * above / (above + value_at_middle)
            low = np.where(is_crossed, high, low)
            below = np.where(is_crossed, above, reduced)
        largest_move = np.abs(middle - high).max()
        high = middle
        above = value_at_middle
        # also true with NaN
        if not largest_move > 1e-13:
            break
    return high


def score_batches(
    posed: Mapping[int, tuple[Any, PopulationRisk]], max_steps: int
) -> Iterator[tuple[list[int], dict[str, Array]]]:
    """Compute points as one simulation of each would, batch by batch.

    Parameters
    ----------
    posed : mapping of int to (Family, PopulationRisk)
        Problems and their risks, by the numbers of the points.
    max_steps : int
        Largest number of steps.

    Yields
    ------
    points : list of int
        Numbers of the points of a batch.
    columns : dict of str to ndarray
        Columns of a sweep. Points in doubt have NaN as their loss.
    """
    groups = _groups(posed)
    with Progress("", "runs") as shown:
        for done, members in enumerate(groups):
            shown.update(done, len(groups))
            problems = [posed[i][0] for i in members]
            risks = [posed[i][1] for i in members]
            yield members, _columns(problems, risks, max_steps)


def _groups(posed: Mapping[int, tuple[Any, PopulationRisk]]) -> list[list[int]]:
    """Sort points into groups that fit together."""
    groups: list[list[int]] = []
    for i, (_, risk) in posed.items():
        for group in groups:
            _, first_risk = posed[group[0]]
            if fit_together(first_risk, risk):
                group.append(i)
                break
        else:
            groups.append([i])
    return groups


def _columns(
    problems: Sequence[Any], risks: Sequence[PopulationRisk], max_steps: int
) -> dict[str, Array]:
    """Columns of points that fit together."""
    eta = np.array([problem.rate() for problem in problems])
    floor = np.array([risk.floor() for risk in risks])
    doubts = Doubts(len(risks))
    target = _targets(problems, floor, doubts)
    batch = ScoreBatch(risks, eta)
    with np.errstate(all="ignore"):
        # A run with a doubtful target is at its end at once.
        followed = np.where(doubts.none, target, np.inf)
        course = _follow(batch, followed, min(max_steps + 1.0, MOST))
        hit = _count(batch, course, _target_loss(course, target))
        is_late = ~(hit.steps <= max_steps)
        doubts.add(Doubt.COUNT_UNCERTAIN, ~hit.is_sure)
        doubts.add(Doubt.UNFINISHED, hit.is_sure & is_late)
        last = np.where(hit.is_sure & ~is_late, hit.steps, 0.0)

        _doubt_early_stops(course, last, doubts)
        end_of_phase_1 = _end_of_phase_1(batch, course, last, doubts)
        loss, attention = _results_at(batch, course, last, doubts)
        tail = _tails(problems, risks, eta, floor)
        end_of_phase_2 = _end_of_phase_2(
            batch, course, tail, last, end_of_phase_1, loss, max_steps, doubts
        )
        tail_ratio = last * (loss - tail.rest) / tail.constant

    is_fast = last > AUTO_STEPS
    is_sharp = end_of_phase_2 < last
    regime = np.where(is_sharp, "sharp", "flat")
    return {
        "eta_used": eta,
        "steps": last,
        "T_I": end_of_phase_1,
        "T_II": end_of_phase_2 - end_of_phase_1,
        "T_III": last - end_of_phase_2,
        "last": last,
        "method": np.where(is_fast, "fast", "exact"),
        "error": np.where(is_fast, hit.error, 0.0),
        "loss": np.where(doubts.none, loss, np.nan),
        "floor": floor,
        "attention": attention,
        "tail_constant": tail.constant,
        "tail_ratio": tail_ratio,
        "regime": np.where(np.isnan(tail.constant), "", regime),
    }


def _targets(problems: Sequence[Any], floor: Array, doubts: Doubts) -> Array:
    """Target losses, (P,)."""
    epsilon = np.array([problem.epsilon or 0.0 for problem in problems])
    above = np.array([problem.above or 0.0 for problem in problems])
    is_excess = above > 0.0
    target = np.where(is_excess, floor + above, epsilon)
    is_above_floor = target > floor * (1.0 + BLUR)
    is_visible = above >= VISIBLE * floor
    doubts.add(Doubt.TARGET_AT_FLOOR, ~is_above_floor)
    doubts.add(Doubt.INVISIBLE_EXCESS, is_excess & ~is_visible)
    return target


def _target_loss(course: Course, target: Array) -> _Quantity:
    """How far the loss is below its target."""

    def value(t: Array, observed: Observation, points: Index) -> Array:
        return target[points] - observed.loss

    return _Quantity(target - course.at.loss, value, ROUNDING * target)


def _half_attention(batch: ScoreBatch, course: Course) -> _Quantity:
    """How far the least attended query is above half of its largest attention."""

    def value(t: Array, observed: Observation, points: Index) -> Array:
        return batch.shares(observed.attention, points).min(axis=1) - 0.5

    blur = np.full(batch.count, ROUNDING)
    return _Quantity(course.at.share - 0.5, value, blur)


def _doubt_early_stops(course: Course, last: Array, doubts: Doubts) -> None:
    """Doubt runs that a simulation might end before their targets, at the step last."""
    t = course.t[:, None]
    loss = course.at.loss
    is_before_end = np.asarray(t < last)

    rises = is_before_end[1:] & (np.diff(loss, axis=0) >= 0.0)
    doubts.add(Doubt.NOT_MONOTONE, _at_any_time(rises))

    # A simulation calls a run settled if the scores move by less than that part of the
    # tolerance while the number of steps doubles.
    remaining_move = course.at.move * (1.0 + t)
    is_short = remaining_move < CAUTION * SETTLED * TOLERANCE
    may_settle = is_before_end & (t > SINGLE) & is_short
    doubts.add(Doubt.MAY_SETTLE, _at_any_time(may_settle))

    # It calls a run stalled if the loss falls by less than `STALL_FRACTION` of itself
    # while the number of steps grows tenfold.
    decade = round(math.log(10.0) / GRID) - 1
    decrease = loss[:-decade] - loss[decade:]
    is_small = decrease < STALL_FRACTION * CAUTION * loss[decade:]
    is_watched = is_before_end[decade:] & (t[decade:] > STALL_AFTER / CAUTION)
    doubts.add(Doubt.MAY_STALL, _at_any_time(is_watched & is_small))


def _at_any_time(mask: Mask) -> Mask:
    return np.asarray(mask.any(axis=0))


def _end_of_phase_1(
    batch: ScoreBatch, course: Course, last: Array, doubts: Doubts
) -> Array:
    """First steps with half of the attention, at most the last step, (P,)."""
    attends = _count(batch, course, _half_attention(batch, course))
    share = course.at.share
    is_before_end = course.t[1:, None] < last
    falls = is_before_end & (share[:-1] >= 0.5) & (share[1:] < 0.5)
    # Nothing matters that happens after the end.
    earliest = attends.steps - np.nan_to_num(attends.error) - 1.0
    is_relevant = ~(earliest > last)
    doubts.add(Doubt.HALF_UNCERTAIN, is_relevant & ~attends.is_sure)
    doubts.add(Doubt.NOT_MONOTONE, is_relevant & _at_any_time(falls))
    return np.minimum(attends.steps, last)


def _results_at(
    batch: ScoreBatch, course: Course, last: Array, doubts: Doubts
) -> tuple[Array, Array]:
    """Loss and mean attention at the last steps, (P,) each."""
    row = np.minimum(last, SINGLE).astype(int)
    single = row, np.arange(batch.count)
    loss = course.at.loss[single]
    attention = course.at.attention[single]

    points = np.flatnonzero(last > SINGLE)
    if points.size:
        columns = batch.columns_of(points)
        x = np.log1p(last)[batch.point[columns]]
        run, shadow = course.strides.at(x, columns)
        of_run = Summary.of(batch, batch.observation(run, points), points)
        of_shadow = Summary.of(batch, batch.observation(shadow, points), points)
        is_close = _agree(of_run.loss, of_shadow.loss)
        is_close &= _agree(of_run.attention, of_shadow.attention)
        doubts.add(Doubt.SHADOW_APART, points[~is_close])
        loss[points] = of_run.loss
        attention[points] = of_run.attention
    return loss, attention


def _agree(run: Array, shadow: Array) -> Mask:
    return np.asarray(np.abs(run - shadow) <= APART * np.abs(run))


class _Tails(NamedTuple):
    """Tail laws: t (loss - rest) tends to a constant, NaN if unknown, (P,) each."""

    rest: Array
    constant: Array

    @property
    def limit(self) -> Array:
        """Phase III begins once t (loss - rest) is below it for good."""
        return TAIL_RATIO * self.constant


def _tails(
    problems: Sequence[Any], risks: Sequence[PopulationRisk], eta: Array, floor: Array
) -> _Tails:
    rests = []
    constants = []
    for risk, rate, lowest in zip(risks, eta, floor.tolist(), strict=True):
        rests.append(resting_loss(risk, lowest))
        constants.append(tail_limit(risk, rate) or math.nan)
    return _Tails(np.array(rests), np.array(constants))


def _end_of_phase_2(
    batch: ScoreBatch,
    course: Course,
    tail: _Tails,
    last: Array,
    end_of_phase_1: Array,
    loss_at_last: Array,
    max_steps: int,
    doubts: Doubts,
) -> Array:
    """Steps at which t (loss - rest) falls below its limit for good, (P,).

    They are at least the end of Phase I, and at most the last step.
    """
    t = course.t[:, None]
    limit = tail.limit

    def slack(t: Array, observed: Observation, points: Index) -> Array:
        return limit[points] - t * (observed.loss - tail.rest[points])

    slack_on_grid = limit - t * (course.at.loss - tail.rest)
    is_above = (slack_on_grid < 0.0) & (t <= last)
    last_rise = _last_rise(is_above)
    blur = ROUNDING * (limit + last * tail.rest)
    quantity = _Quantity(slack_on_grid, slack, blur)
    fall = _count(batch, course, quantity, after=last_rise)

    at_last = last * (loss_at_last - tail.rest)
    falls = is_above.any(axis=0) & (at_last <= limit)
    # A simulation looks for the fall after the last step above the limit that it saves.
    schedule = saved_steps(max_steps, batch.K**2)
    last_above = np.minimum(fall.steps - 1.0, last)
    saved_up_to_last = np.searchsorted(schedule, last_above, side="right")
    saved_before_rise = np.searchsorted(schedule, course.t[last_rise])
    is_saved = saved_up_to_last > saved_before_rise
    is_clear_at_last = np.abs(at_last - limit) > APART * limit
    may_touch = _may_touch_zero(slack_on_grid) & (t[1:-1] <= last)

    # If Phase I is all there is, the tail does not matter.
    has_law = ~np.isnan(limit)
    is_relevant = has_law & (end_of_phase_1 < last)
    doubts.add(Doubt.TAIL_UNCERTAIN, is_relevant & falls & ~fall.is_sure)
    doubts.add(Doubt.TAIL_UNSAVED, is_relevant & falls & ~is_saved)
    doubts.add(Doubt.TAIL_WITHIN_ROUNDING, is_relevant & ~is_clear_at_last)
    doubts.add(Doubt.TAIL_TWICE, is_relevant & _at_any_time(may_touch))

    end = np.where(falls, fall.steps, 0.0)
    end = np.where((at_last > limit) | ~has_law, np.inf, end)
    return np.maximum(end_of_phase_1, np.minimum(end, last))


def _last_rise(is_above: Mask) -> Index:
    """Row of the last change from below to above, (P,); of no meaning without one."""
    rises = is_above.copy()
    rises[1:] &= ~is_above[:-1]
    return len(rises) - 1 - rises[::-1].argmax(axis=0)


def _may_touch_zero(values: Array) -> Mask:
    """Whether a curve may pass zero near an extremum between its points, (T - 2, P).

    A parabola through three points passes the middle one by at most an eighth of their
    second difference.
    """
    middle = values[1:-1]
    rise = middle - values[:-2]
    fall = middle - values[2:]
    is_extremum = rise * fall >= 0.0
    return np.asarray(is_extremum & (np.abs(middle) <= np.abs(rise + fall)))
