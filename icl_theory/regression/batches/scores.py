"""Descent on K x K scores for many points of a sweep at once, in strides of steps.

A *point* is one problem of a sweep, with one run of descent. Its scores have K columns,
one for each query, and no column affects another one. `score_batches` sorts the points
into batches. The first steps of a batch are taken one by one. From then on every column
advances by *strides* of many steps. In a stride the scores are polynomials in
x = ln(1 + t). Each run has a *shadow*, a second, less accurate run. The error of the
run is estimated as its distance from the shadow times a *margin*, the estimated ratio
of error and distance. All runs are observed at times on a grid (`_follow`). Between two
times of the grid, `_count` finds the first step at which a loss or an attention passes
its level. A point is done if run, shadow and rounding leave only one integer for every
count. Every other point gets a `Doubt`, and is left to a simulation of its own.

Phase I of a run ends when the query with the least attention pays half of its largest
possible attention to its own feature. Phase III begins when t (loss - rest), which
tends to a limit, falls to `TAIL_RATIO` times this limit for good. Here the rest is the
loss that the run tends to. Phase II lies between the two.

In the shapes below, P is the number of points of a batch, n the number of some selected
points, K the number of features and T the number of observed times. A time t is a real
number of steps.
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
from icl_theory.regression.batches.finite_prompts import BLUR, MOST_COUNTED
from icl_theory.regression.batches.score_batch import (
    Observation,
    ScoreBatch,
    fit_together,
)
from icl_theory.regression.phases import TAIL_RATIO
from icl_theory.regression.risks.population import PopulationRisk
from icl_theory.regression.tails import resting_loss, tail_limit

# How many steps are taken one by one at first. Each of them costs a gradient. But the
# first stride is guessed from them, and the guess is worse with fewer steps.
SINGLE = 64
# `Strides.guess_from` puts a polynomial through the scores at these NODES + 1 of the
# single steps, and guesses the first stride by it. The steps begin at a quarter of
# SINGLE, because earlier scores say less about the course after SINGLE.
FITTED = np.round(np.geomspace(SINGLE / 4.0, SINGLE, NODES + 1)).astype(int)
# Distance in x = ln(1 + t) between the times at which runs are observed. A smaller
# distance takes more observations. With a larger one more points are left to
# simulations, because a curve may touch its level unseen (`_may_touch_zero`).
GRID = 0.2
# Number of grid times that are observed after each call of `Strides.reach`. More times
# need fewer calls, but columns then run farther beyond the targets of their points.
TIMES_AT_ONCE = 2
# Times x that differ by less than this count as equal. The number is far below GRID,
# and far above the rounding of x. (The largest x is 21, after 10^9 steps.)
TIME_ROUNDING = 1e-9
# Length of the first stride in x. It may be longer than in a single run, because the
# first guess is extrapolated from the single steps. A stride that is too long is tried
# again with a smaller length.
FIRST_STRIDE = 0.6
# SHARE is the share of the tolerance that the error of one stride may take, and
# SOLVER_SHARE the share of this error that the solver of the stride may leave. In
# single runs they are 0.01 and 0.001. Larger shares save gradients, and they are safe
# because the error of every count is compared with the distance to the next integer.
SHARE = 0.03
SOLVER_SHARE = 0.01
# The planned length of a stride is this factor times the longest length whose error is
# allowed. In single runs the factor is 0.9. A smaller factor saves refused strides, for
# which all other columns have to wait.
AIM = 0.8
# The largest number of gradients. It is practically no limit, because a column whose
# strides cost too much is abandoned earlier.
BUDGET = 10**9
# Largest relative distance between the results of a run and of its shadow that leaves
# no doubt. A smaller limit would leave more points to simulations of their own.
APART = 3e-8
# A count with a larger error, in steps, is not sure: the estimate of the error is of
# first order, and is trusted only if it is small.
MOST_ERROR = 0.1
# The search for zeros ends after CROSSING_PASSES passes, or after a pass in which no
# x = ln(1 + t) moves by more than CROSSING_ROUNDING, some twenty roundings of the
# largest x, 21. Usually fewer passes are enough for all digits.
CROSSING_PASSES = 30
CROSSING_ROUNDING = 1e-13
# Factor by which a run must stay away from the limits at which a simulation gives up.
# The factor is not derived. A larger factor leaves more points to simulations. With a
# smaller factor a simulation might give up a run that is not doubted, because it judges
# the run at other steps than this module.
CAUTION = 2.0
# A run has stalled if its loss falls by less than this part while t grows tenfold, as
# in `icl_theory.engine.stops.STALL_DECREASE`.
STALL_FRACTION = 1e-3
# Relative distance of the shadow from the run at the start of the strides. It stands
# for the rounding of the 64 single steps: 2^8 rounding units of 2^-52, which is four
# units for each step.
SHADOW_START = 2.0**-44


class Summary(NamedTuple):
    """Results of n points at one time, (n,) each, or of P points at T times, (T, P)."""

    loss: Array
    # The least of the queries' shares. A share is the attention of a query on its own
    # feature, divided by the largest value that this attention can have.
    share: Array
    move: Array  # largest change of a score in one step
    attention: Array  # on the query's own feature, mean over the queries

    @classmethod
    def of(cls, batch: ScoreBatch, observed: Observation, points: Index) -> Summary:
        """Summarise an observation of some points."""
        return cls(
            loss=observed.loss,
            share=batch.shares(observed.attention, points).min(axis=1),
            move=np.abs(observed.move).max(axis=1),
            attention=observed.attention.mean(axis=1),
        )


class Course(NamedTuple):
    """Runs observed at the times t, (T,).

    The steps up to `SINGLE` are all observed: for these steps, row i is step i.
    """

    t: Array
    at: Summary  # fields (T, P); NaN at the times after a run has ended
    strides: Strides  # they give run and shadow of all columns between the rows


class _Observations:
    """A list of summaries of the runs of a batch, which grows with time."""

    def __init__(self, batch: ScoreBatch) -> None:
        self._batch = batch
        self._times = list[float]()
        self._summaries = list[Summary]()

    @property
    def last_time(self) -> float:
        """The latest time t that was observed."""
        return self._times[-1]

    def add(self, t: float, points: Index, summary: Summary) -> Summary:
        """Add the summary of some points. All other points get NaN.

        Return the summary of all points, (P,).
        """
        fields = []
        for values in summary:
            field = np.full(self._batch.count, np.nan)
            field[points] = values
            fields.append(field)
        self._times.append(t)
        self._summaries.append(Summary(*fields))
        return self._summaries[-1]

    def table(self) -> tuple[Array, Summary]:
        """Return the times, (T,), and the summaries as one, (T, P)."""
        fields = zip(*self._summaries, strict=True)
        return np.array(self._times), Summary(*(np.array(rows) for rows in fields))


def _follow(batch: ScoreBatch, target: Array, last: float) -> Course:
    """Follow all points to their targets, (P,), or past the time ``last``."""
    observations = _Observations(batch)
    rows, fitted = _take_single_steps(batch, observations)
    _times, at_single_steps = observations.table()
    # A point is done if its loss was at or below its target at any of the single steps.
    # A point whose scores are infinite or NaN has diverged, and is given up.
    is_finite = np.isfinite(rows).reshape(batch.count, -1).all(axis=1)
    active: Mask = np.asarray((at_single_steps.loss > target).all(axis=0) & is_finite)

    # The strides will write over ``rows``, which is also the last state in ``fitted``.
    # So the first guess must be made from ``fitted`` before the strides advance.
    strides = _strides(batch, rows)
    strides.guess_from(fitted)
    x = math.log1p(SINGLE)
    while active.any() and observations.last_time < last:
        next_x = x + GRID * np.arange(1, TIMES_AT_ONCE + 1)
        end = next_x[-1]
        # Columns of points that are not active are sent to x = 0, which they have
        # passed, so that they do not go on.
        strides.reach(np.where(active[batch.point], end, 0.0))
        # `reach` abandons a column for which strides cost too much. Such a column has
        # not arrived, and its point is given up.
        has_arrived = strides.x >= end - TIME_ROUNDING
        active &= has_arrived.reshape(batch.count, -1).all(axis=1)
        for x_of_grid in next_x.tolist():
            points = np.flatnonzero(active)
            summary = _summary_at(batch, strides, x_of_grid, points)
            t_of_grid = math.expm1(x_of_grid)
            summary_of_all = observations.add(t_of_grid, points, summary)
            # The loss of an inactive point is NaN, for which the comparison is false.
            active &= ~(summary_of_all.loss <= target)
        x = float(end)
    t, at = observations.table()
    return Course(t, at, strides)


def _take_single_steps(
    batch: ScoreBatch, observations: _Observations
) -> tuple[Array, dict[int, Array]]:
    """Take the first `SINGLE` steps, and add each of them to ``observations``.

    Return the scores after them, one column of scores in each row, (P K, K), and the
    scores at the steps `FITTED`, by step.
    """
    points = np.arange(batch.count)
    # The batch has columns of scores; strides need them as contiguous rows.
    rows = np.ascontiguousarray(batch.initial.T)
    carry = np.zeros_like(rows)
    fitted = {}
    for t in range(SINGLE + 1):
        observed = batch.observation(rows, points)
        observations.add(t, points, Summary.of(batch, observed, points))
        if t in FITTED:
            fitted[t] = rows
        if t < SINGLE:
            # Kahan's compensated sum: ``carry`` is the rounding error of the last sum.
            # Descent subtracts the move, the gradient times the learning rate.
            step = -observed.move.reshape(rows.shape) - carry
            next_rows = rows + step
            carry = (next_rows - rows) - step
            rows = next_rows
    return rows, fitted


def _strides(batch: ScoreBatch, rows: Array) -> Strides:
    """Return the strides, which go on from the last single step."""
    # The shadow begins at a small distance from the run. This distance stands for the
    # rounding of the single steps. If descent enlarges the distance, the estimated
    # error grows in proportion. The signs alternate, because equal changes of all
    # scores of a column would not change the attention.
    is_odd = np.arange(batch.K) % 2
    shadow = rows * (1.0 + np.where(is_odd, SHADOW_START, -SHADOW_START))
    # The gradients of a batch contain the learning rates of the points, so the learning
    # rate of the map is 1.
    update_map = UpdateMap(batch, eta=1.0, rule=GradientDescent())
    # With ``separate``, a column whose strides cost too much is abandoned. Otherwise it
    # would raise an error, and end the runs of all columns.
    return Strides(
        Blocks(update_map),
        tolerance=TOLERANCE,
        run_start=rows,
        shadow_start=shadow,
        t=SINGLE,
        first_length=FIRST_STRIDE,
        budget=BUDGET,
        flow=False,
        share=SHARE,
        aim=AIM,
        separate=True,
        solver_share=SOLVER_SHARE,
    )


def _summary_at(
    batch: ScoreBatch, strides: Strides, x: float, points: Index
) -> Summary:
    """Return the summary of some points at the time x = ln(1 + t)."""
    if not points.size:
        nothing = np.empty(0)
        return Summary(nothing, nothing, nothing, nothing)
    columns = batch.columns_of(points)
    run, _shadow = strides.at(np.full(len(columns), x), columns)
    return Summary.of(batch, batch.observation(run, points), points)


class _Quantity(NamedTuple):
    """A quantity that is negative until it passes zero at the step to be counted."""

    on_grid: Array  # at the times of a course, (T, P)
    # Maps times (n,), an observation of n points and their indices to values, (n,).
    value: Callable[[Array, Observation, Index], Array]
    # Rounding error of the quantity, (P,). The quantity is a difference of terms, and
    # its error is `ROUNDING` times their size.
    blur: Array


class _Count(NamedTuple):
    """Counts of all points, (P,)."""

    steps: Array  # whole numbers, infinite if the quantity does not pass zero
    error: Array  # error of the time of passing, before it was rounded up to a step
    # whether the errors leave one integer only, or leave no doubt that the quantity
    # does not pass zero
    is_sure: Mask


def _count(
    batch: ScoreBatch,
    course: Course,
    quantity: _Quantity,
    after: Index | None = None,
) -> _Count:
    """Count the steps until a quantity is not negative for the first time.

    Parameters
    ----------
    batch, course : ScoreBatch, Course
        Runs of P points.
    quantity : _Quantity
        The quantity that passes zero.
    after : ndarray, optional, (P,)
        Row of ``course.t`` for each point. Only later rows count.
    """
    values = quantity.on_grid
    is_passed = values >= 0.0
    if after is not None:
        is_passed &= np.arange(len(values))[:, None] > after
    # argmax finds the first row that passes zero; it is 0 if none does.
    row = is_passed.argmax(axis=0)
    ever_passes = is_passed.any(axis=0)

    steps = np.where(ever_passes, course.t[row], np.inf)
    error = np.zeros(batch.count)
    # Rows up to `SINGLE` are single steps, where the count is exact. Between two later
    # rows the count must be refined.
    points = np.flatnonzero(ever_passes & (row > SINGLE))
    if points.size:
        time, time_error = _crossing_time(batch, course, quantity, row[points], points)
        steps[points] = time
        error[points] = time_error

    # ``steps`` are still real numbers, which are rounded up at the end. An unknown time
    # is NaN. Its count is not sure, because NaN is not equal to itself.
    is_one_integer = np.ceil(steps - error) == np.ceil(steps + error)
    is_clear = is_one_integer & (error < MOST_ERROR) & ~_is_blurred(quantity)
    is_sure = np.where(ever_passes, is_clear, _ends_below_zero(values))
    return _Count(np.ceil(steps), error, is_sure)


def _is_blurred(quantity: _Quantity) -> Mask:
    """Whether the quantity is 0 up to rounding at any single step, (P,)."""
    at_single_steps = quantity.on_grid[: SINGLE + 1]
    # Between later rows, `_crossing_time` counts the blur as an error of the time. At
    # single steps a cautious blur is compared with the quantity itself. ``blur`` is
    # `ROUNDING` times the terms of the quantity, and is raised to `BLUR` times the
    # terms: numbers that differ by less may differ by rounding alone.
    cautious_blur = BLUR / ROUNDING * quantity.blur
    return _at_any_time(np.abs(at_single_steps) <= cautious_blur)


def _ends_below_zero(values: Array) -> Mask:
    """Whether a quantity, (T, P), is clearly negative where its run ends, (P,).

    If not, an error of the run may hide that the quantity passes zero.
    """
    # There are values up to this row, and NaN after it.
    last_row = np.isfinite(values).sum(axis=0) - 1
    last_value = values[last_row, np.arange(values.shape[1])]
    # Results of a run and of its shadow may differ by `APART`, so a value closer to
    # zero is not clearly negative. `APART` is a relative distance, which suits a share,
    # of order 1. (For a loss the comparison does not matter: a run that never passes
    # its target is doubted in any case.)
    return np.asarray(last_value < -APART)


def _crossing_time(
    batch: ScoreBatch, course: Course, quantity: _Quantity, row: Index, points: Index
) -> tuple[Array, Array]:
    """Times at which a quantity passes zero, and the errors of these times, (n,) each.

    For the point ``points[i]`` it passes zero between the rows ``row[i] - 1`` and
    ``row[i]`` of the course.
    """
    columns = batch.columns_of(points)
    t_low = course.t[row - 1]
    t_high = course.t[row]
    value_low = quantity.on_grid[row - 1, points]
    value_high = quantity.on_grid[row, points]

    def run_and_shadow_at(x: Array) -> tuple[Array, Array]:
        # The K columns of a point share its x = ln(1 + t), (n,).
        return course.strides.at(np.repeat(x, batch.K), columns)

    # The quantity at the scores ``rows``, (n K, K), of the runs or of their shadows
    def value(x: Array, rows: Array) -> Array:
        return quantity.value(np.expm1(x), batch.observation(rows, points), points)

    def value_of_run(x: Array) -> Array:
        run, _ = run_and_shadow_at(x)
        return value(x, run)

    x = crossing(value_of_run, np.log1p(t_low), np.log1p(t_high), value_low, value_high)
    time = np.expm1(x)
    # A convex or concave curve is at least as steep, at its zero, as the flatter one of
    # the two chords from the zero to the ends of the interval. If the zero is the end
    # of the interval, one chord is 0/0 = NaN, which fmin ignores.
    slope = np.fmin(value_low / (t_low - time), value_high / (t_high - time))

    # The search may have ended before the quantity was zero.
    run, shadow = run_and_shadow_at(x)
    remainder = value(x, run)
    shadow_distance = np.abs(value(x, shadow) - remainder)
    # The error of a run is its distance from the shadow times the margin. Of a point's
    # columns, the one with the largest margin counts.
    margins = course.strides.errors.margin.reshape(batch.count, -1).max(axis=1)
    # The quantities of run and shadow may be equal by chance although their scores
    # differ. So the larger one of two estimates counts.
    lateness = np.maximum(
        margins[points] * shadow_distance / slope,
        _lateness(batch, course.strides, run, shadow, points),
    )
    error = lateness + (quantity.blur[points] + np.abs(remainder)) / slope
    return time, error


def _lateness(
    batch: ScoreBatch, strides: Strides, run: Array, shadow: Array, points: Index
) -> Array:
    """Return by how many steps n runs may be early or late, (n,).

    A step moves the scores of a point by -g, where g is η times the gradient. To first
    order an error δ of the scores changes the loss by at most ``Σ abs(g) abs(δ) / η``,
    and a step lowers the loss by ``Σ g² / η``. Their ratio is a number of steps.

    ``run`` and ``shadow`` are (n K, K), with one column of scores in each row.
    """
    move = batch.observation(run, points).move
    columns = batch.columns_of(points)
    distance = strides.errors.margin[columns, None] * np.abs(run - shadow)
    # The distance does not show the errors that the solver of the strides has left.
    error = distance + strides.errors.solver_error[columns, None]
    error = error.reshape(len(points), -1)
    loss_error = np.sum(error * np.abs(move), axis=1)
    decrease = np.sum(move**2, axis=1)
    return np.asarray(loss_error / decrease)


def crossing(
    function: Callable[[Array], Array],
    low: Array,
    high: Array,
    value_at_low: Array,
    value_at_high: Array,
) -> Array:
    """Return the zeros of n functions, each in an interval, by the Pegasus method.

    This is the method of false position (repeated secants through two ends on either
    side of the zero), except that the value at an end that does not move is reduced.

    The search ends after `CROSSING_PASSES` passes at the latest. If a zero is not
    accurate by then, the function there has a value other than zero, which
    `_crossing_time` takes into account as an error.

    Parameters
    ----------
    function : callable
        Maps n arguments to n values: function i at argument i.
    low, high : ndarray, (n,)
        Ends of the intervals. A zero may be at ``high`` itself.
    value_at_low, value_at_high : ndarray, (n,)
        Values at these ends, of opposite signs unless ``value_at_high`` is 0.
    """
    for _ in range(CROSSING_PASSES):
        # Functions that have reached their zeros divide 0 by 0. np.where does not take
        # these results.
        with np.errstate(divide="ignore", invalid="ignore"):
            rise = value_at_high - value_at_low
            secant = high - value_at_high * (high - low) / rise
            # A function that has reached its zero stays there, because its secant is
            # 0/0.
            argument = np.where(value_at_high == 0.0, high, secant)
            value = function(argument)
            # The argument is the next ``high``. If the zero is between the old ``high``
            # and the argument, the old ``high`` is the next ``low``, although it is the
            # larger one. If the zero is still between ``low`` and the argument, the
            # value at ``low`` is reduced, so that the next secant ends nearer to
            # ``low``.
            is_crossed = value * value_at_high <= 0.0
            reduced = value_at_low * value_at_high / (value_at_high + value)
            low = np.where(is_crossed, high, low)
            value_at_low = np.where(is_crossed, value_at_high, reduced)
        largest_move = np.abs(argument - high).max()
        high = argument
        value_at_high = value
        # A NaN stays NaN in all further passes, so that its moves would never count as
        # small. The negated comparison ends the loop if the largest move is NaN.
        if not largest_move > CROSSING_ROUNDING:
            break
    return high


def score_batches(
    posed: Mapping[int, tuple[Any, PopulationRisk]], max_steps: int
) -> Iterator[tuple[list[int], dict[str, Array]]]:
    """Yield the results of the points of a sweep, batch by batch.

    They are the results that a simulation of each point alone would have.

    Parameters
    ----------
    posed : mapping of int to (Family, PopulationRisk)
        Problem and risk of each point. The keys are the numbers of the points.
    max_steps : int
        Largest number of steps.

    Yields
    ------
    points : list of int
        Numbers of the points of a batch.
    columns : dict of str to ndarray
        Columns of a sweep for these points. The loss of a point in doubt is NaN, by
        which the sweep knows that it must simulate the point.
    """
    groups = _groups(posed)
    with Progress(words="", unit="runs") as progress:
        for done, members in enumerate(groups):
            progress.update(done, len(groups))
            pairs = [posed[i] for i in members]
            problems, risks = zip(*pairs, strict=True)
            yield members, _columns(problems, risks, max_steps)


def _groups(posed: Mapping[int, tuple[Any, PopulationRisk]]) -> list[list[int]]:
    """Sort the numbers of points into groups whose risks `fit_together`.

    A group is a batch: a `ScoreBatch` takes only such risks.
    """
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
    """Return the columns of a sweep's table for the points of one batch.

    These are the columns that a simulation of each point alone would have. So
    ``method`` and ``error`` are those of the simulation.
    """
    eta = np.array([problem.rate() for problem in problems])
    floor = np.array([risk.floor() for risk in risks])
    doubts = Doubts(len(risks))
    target = _targets(problems, floor, doubts)
    batch = ScoreBatch(risks, eta)
    # Runs that diverge, and losses without a tail law, give infinities and NaN. A
    # comparison with NaN is false. A point with a NaN gets a doubt, or an empty entry
    # in the columns of the tail.
    with np.errstate(all="ignore"):
        tail = _tails(risks, eta, floor)
        runs = _runs(batch, target, tail, max_steps, doubts)
        last = runs.last
        tail_ratio = last * (runs.loss - tail.rest) / tail.constant

    # A simulation takes up to AUTO_STEPS steps one by one, and skips steps in longer
    # runs.
    is_fast = last > AUTO_STEPS
    # The regime is sharp if the target is reached in Phase III.
    is_sharp = runs.end_of_phase_2 < last
    regime = np.where(is_sharp, "sharp", "flat")
    return {
        "eta_used": eta,
        "steps": last,
        "T_I": runs.end_of_phase_1,
        "T_II": runs.end_of_phase_2 - runs.end_of_phase_1,
        "T_III": last - runs.end_of_phase_2,
        "last": last,  # every point without a doubt reaches its target
        "method": np.where(is_fast, "fast", "exact"),
        "error": np.where(is_fast, runs.error, 0.0),
        "loss": np.where(doubts.none, runs.loss, np.nan),
        "floor": floor,
        "attention": runs.attention,
        "tail_constant": tail.constant,
        "tail_ratio": tail_ratio,
        "regime": np.where(np.isnan(tail.constant), "", regime),
    }


class _Runs(NamedTuple):
    """The ends of runs and of their phases, (P,) each."""

    last: Array  # the first step at the target; 0 if it is not known
    error: Array  # error of the time of this step, before it was rounded up
    end_of_phase_1: Array
    end_of_phase_2: Array
    loss: Array  # at the last step
    attention: Array  # mean over the queries, at the last step


def _runs(
    batch: ScoreBatch, target: Array, tail: _Tails, max_steps: int, doubts: Doubts
) -> _Runs:
    """Follow the runs of P points to their targets, and note doubts about them."""
    # A run with a doubtful target is not followed. It gets the target ∞, and ends at
    # once because its loss is below this target.
    target_or_inf = np.where(doubts.none, target, np.inf)
    # One step more than allowed shows whether the target is reached too late.
    course = _follow(batch, target_or_inf, last=min(max_steps + 1.0, MOST_COUNTED))
    hit = _count(batch, course, _target_loss(course, target))
    # The comparison is negated, so that an unknown step, NaN, counts as late.
    is_late = ~(hit.steps <= max_steps)
    doubts.add(Doubt.COUNT_UNCERTAIN, ~hit.is_sure)
    doubts.add(Doubt.UNFINISHED, hit.is_sure & is_late)
    last = np.where(hit.is_sure & ~is_late, hit.steps, 0.0)

    _doubt_early_stops(course, last, doubts)
    end_of_phase_1 = _end_of_phase_1(batch, course, last, doubts)
    loss, attention = _results_at(batch, course, last, doubts)
    fall = _tail_fall(batch, course, tail, last, loss)
    # Without a tail law, and for a run that ends in Phase I, doubts about the tail do
    # not matter.
    is_relevant = ~np.isnan(tail.constant) & (end_of_phase_1 < last)
    _doubt_tail(batch, course, tail, last, fall, is_relevant, max_steps, doubts)
    return _Runs(
        last=last,
        error=hit.error,
        end_of_phase_1=end_of_phase_1,
        end_of_phase_2=_end_of_phase_2(tail, last, fall, end_of_phase_1),
        loss=loss,
        attention=attention,
    )


def _targets(problems: Sequence[Any], floor: Array, doubts: Doubts) -> Array:
    """Target losses, (P,); note doubts about targets too close to the floor.

    A target is a loss ``epsilon`` or an excess ``above`` over the floor.
    """
    # A parameter that is not given is None, and becomes 0 here.
    epsilon = np.array([problem.epsilon or 0.0 for problem in problems])
    above = np.array([problem.above or 0.0 for problem in problems])
    is_excess = above > 0.0
    target = np.where(is_excess, floor + above, epsilon)
    is_above_floor = target > floor * (1.0 + BLUR)
    # A simulation refuses an excess that is lost in the rounding of the floor.
    is_visible = above >= VISIBLE * floor
    doubts.add(Doubt.TARGET_AT_FLOOR, ~is_above_floor)
    doubts.add(Doubt.INVISIBLE_EXCESS, is_excess & ~is_visible)
    return target


def _target_loss(course: Course, target: Array) -> _Quantity:
    """Return the quantity ``target - loss``."""

    def value(t: Array, observed: Observation, points: Index) -> Array:
        return target[points] - observed.loss

    # Where the quantity is zero, both of its terms are as large as the target.
    return _Quantity(target - course.at.loss, value=value, blur=ROUNDING * target)


def _half_attention(batch: ScoreBatch, course: Course) -> _Quantity:
    """Return the quantity ``share - ½``, with the share of `Summary`."""

    def value(t: Array, observed: Observation, points: Index) -> Array:
        return batch.shares(observed.attention, points).min(axis=1) - 0.5

    # A share is at most 1, and so its rounding error is at most `ROUNDING`.
    blur = np.full(batch.count, ROUNDING)
    return _Quantity(course.at.share - 0.5, value=value, blur=blur)


def _doubt_early_stops(course: Course, last: Array, doubts: Doubts) -> None:
    """Doubt the runs that a simulation might stop before the step ``last``.

    A run whose loss rises is doubted, too: it may pass its target between two times.
    """
    t = course.t[:, None]
    loss = course.at.loss
    is_before_end = np.asarray(t < last)

    rises = is_before_end[1:] & (np.diff(loss, axis=0) >= 0.0)
    doubts.add(Doubt.NOT_MONOTONE, _at_any_time(rises))

    # A simulation stops a run as settled if the scores have moved by less than
    # `SETTLED` times the tolerance since half of the present number of steps, t. If
    # steps become shorter, the scores have since moved by at least t/2 times the
    # present move. This is enough if t times the move is `CAUTION`, which is 2, times
    # the limit. (1 + t is nearly t.) Single steps are too early to be judged.
    move_times_t = course.at.move * (1.0 + t)
    is_short = move_times_t < CAUTION * SETTLED * TOLERANCE
    may_settle = is_before_end & (t > SINGLE) & is_short
    doubts.add(Doubt.MAY_SETTLE, _at_any_time(may_settle))

    # A simulation stops a run as stalled if the loss falls by less than
    # `STALL_FRACTION` of itself while the number of steps grows tenfold, by ln 10 = 2.3
    # in x = ln(1 + t). The decrease is taken over 11 rows of the grid, 2.2 in x. It is
    # then smaller, and more runs are doubted, which is cautious. Runs are judged from
    # the step `STALL_AFTER` on, and even a decade before this step all rows are on the
    # grid.
    span = round(math.log(10.0) / GRID) - 1
    decrease = loss[:-span] - loss[span:]
    is_small = decrease < STALL_FRACTION * CAUTION * loss[span:]
    is_watched = is_before_end[span:] & (t[span:] > STALL_AFTER / CAUTION)
    doubts.add(Doubt.MAY_STALL, _at_any_time(is_watched & is_small))


def _at_any_time(mask: Mask) -> Mask:
    """Return for each point whether the mask, (T, P), holds at some time, (P,)."""
    return np.asarray(mask.any(axis=0))


def _end_of_phase_1(
    batch: ScoreBatch, course: Course, last: Array, doubts: Doubts
) -> Array:
    """First step at which `Summary.share` is ½ or more, but at most ``last``, (P,)."""
    attends = _count(batch, course, _half_attention(batch, course))
    share = course.at.share
    is_before_end = course.t[1:, None] < last
    falls = is_before_end & (share[:-1] >= 0.5) & (share[1:] < 0.5)
    # A doubt about a time after the end of the run does not matter. The time is at
    # most 1 below its number of steps, which was rounded up. An unknown error, NaN,
    # counts as 0. An unknown time is relevant: the comparison is false for NaN.
    earliest = attends.steps - np.nan_to_num(attends.error) - 1.0
    is_relevant = ~(earliest > last)
    doubts.add(Doubt.HALF_UNCERTAIN, is_relevant & ~attends.is_sure)
    doubts.add(Doubt.NOT_MONOTONE, is_relevant & _at_any_time(falls))
    return np.minimum(attends.steps, last)


def _results_at(
    batch: ScoreBatch, course: Course, last: Array, doubts: Doubts
) -> tuple[Array, Array]:
    """Loss and mean attention at the step ``last`` of each point, (P,) each.

    A point whose run and shadow differ too much at this step is doubted.
    """
    # The first rows of a course are the single steps. The results of runs that end
    # later are replaced below.
    row = np.minimum(last, SINGLE).astype(int)
    every_point = np.arange(batch.count)
    loss = course.at.loss[row, every_point]
    attention = course.at.attention[row, every_point]

    points = np.flatnonzero(last > SINGLE)
    if points.size:
        # The columns of the scores of these points. Each of them is evaluated at the
        # last step of the point that it belongs to.
        score_columns = batch.columns_of(points)
        x = np.log1p(last)[batch.point[score_columns]]
        run, shadow = course.strides.at(x, score_columns)
        run_summary = Summary.of(batch, batch.observation(run, points), points)
        shadow_summary = Summary.of(batch, batch.observation(shadow, points), points)
        is_close = _agree(run_summary.loss, shadow_summary.loss)
        is_close &= _agree(run_summary.attention, shadow_summary.attention)
        doubts.add(Doubt.SHADOW_APART, points[~is_close])
        loss[points] = run_summary.loss
        attention[points] = run_summary.attention
    return loss, attention


def _agree(run: Array, shadow: Array) -> Mask:
    """Whether the values of runs and of their shadows differ by `APART` or less."""
    return np.asarray(np.abs(run - shadow) <= APART * np.abs(run))


class _Tails(NamedTuple):
    """Tail laws of P points: t (loss - rest) tends to a constant, (P,) each."""

    rest: Array  # the loss that the run tends to
    constant: Array  # NaN if no constant is known

    @property
    def phase_3_threshold(self) -> Array:
        """Phase III begins when t (loss - rest) falls to this number for good."""
        return TAIL_RATIO * self.constant


def _tails(risks: Sequence[PopulationRisk], eta: Array, floor: Array) -> _Tails:
    """Return the tail law of each risk at its learning rate, and with its floor."""
    rests = []
    constants = []
    for risk, rate, risk_floor in zip(risks, eta, floor.tolist(), strict=True):
        constant = tail_limit(risk, rate)
        # None if no law is known, or if the loss falls faster than 1/t.
        if constant is None:
            constant = math.nan
        rests.append(resting_loss(risk, risk_floor))
        constants.append(constant)
    return _Tails(np.array(rests), np.array(constants))


class _TailFall(NamedTuple):
    """How t (loss - rest) of P runs falls below its threshold for the last time."""

    # The threshold minus t (loss - rest) at the times of a course, (T, P). It is
    # negative before the fall.
    slack_on_grid: Array
    # The last row of the course, (P,), at which t (loss - rest) is above its threshold
    # although it was not above it one row before.
    last_rise: Index
    counted: _Count  # steps until the fall
    at_last: Array  # t (loss - rest) at the last step, (P,)
    # Whether t (loss - rest) is above the threshold at some observed time, but not at
    # the last step, (P,)
    falls: Mask


def _tail_fall(
    batch: ScoreBatch, course: Course, tail: _Tails, last: Array, loss_at_last: Array
) -> _TailFall:
    """Find the last fall of t (loss - rest) below its threshold, up to ``last``."""
    t = course.t[:, None]
    threshold = tail.phase_3_threshold

    def slack(times: Array, observed: Observation, points: Index) -> Array:
        return threshold[points] - times * (observed.loss - tail.rest[points])

    slack_on_grid = threshold - t * (course.at.loss - tail.rest)
    is_above = (slack_on_grid < 0.0) & (t <= last)
    last_rise = _last_rise(is_above)
    # Where the quantity is zero, its term t loss equals the threshold plus t rest. The
    # largest t is ``last``.
    blur = ROUNDING * (threshold + last * tail.rest)
    quantity = _Quantity(slack_on_grid, value=slack, blur=blur)
    at_last = last * (loss_at_last - tail.rest)
    return _TailFall(
        slack_on_grid=slack_on_grid,
        last_rise=last_rise,
        counted=_count(batch, course, quantity, after=last_rise),
        at_last=at_last,
        falls=is_above.any(axis=0) & (at_last <= threshold),
    )


def _doubt_tail(
    batch: ScoreBatch,
    course: Course,
    tail: _Tails,
    last: Array,
    fall: _TailFall,
    is_relevant: Mask,
    max_steps: int,
    doubts: Doubts,
) -> None:
    """Doubt the relevant points whose Phase III might differ in a simulation."""
    # A simulation compares t (loss - rest) with the threshold only at the steps that it
    # saves. Which steps it saves depends on the size of a state, which is K² scores. A
    # simulation looks for the fall after the last saved step above the threshold, so it
    # must save a step between the last rise and the fall.
    schedule = saved_steps(max_steps, batch.K**2)
    # The last step above the threshold is the one before the fall.
    last_above = np.minimum(fall.counted.steps - 1.0, last)
    n_saved_until_fall = np.searchsorted(schedule, last_above, side="right")
    n_saved_before_rise = np.searchsorted(schedule, course.t[fall.last_rise])
    is_saved = n_saved_until_fall > n_saved_before_rise

    threshold = tail.phase_3_threshold
    is_clear_at_last = np.abs(fall.at_last - threshold) > APART * threshold
    is_in_run = course.t[1:-1, None] <= last
    # A curve that touches its threshold may cross it twice between observed times.
    may_touch = _may_touch_zero(fall.slack_on_grid) & is_in_run

    falls = is_relevant & fall.falls
    doubts.add(Doubt.TAIL_UNCERTAIN, falls & ~fall.counted.is_sure)
    doubts.add(Doubt.TAIL_UNSAVED, falls & ~is_saved)
    doubts.add(Doubt.TAIL_WITHIN_ROUNDING, is_relevant & ~is_clear_at_last)
    doubts.add(Doubt.TAIL_TWICE, is_relevant & _at_any_time(may_touch))


def _end_of_phase_2(
    tail: _Tails, last: Array, fall: _TailFall, end_of_phase_1: Array
) -> Array:
    """Step at which Phase II ends and Phase III begins, (P,).

    From this step on, t (loss - rest) is at most its threshold. The step is at least
    the end of Phase I, and at most the last step. Without a Phase III it is the last
    step.
    """
    # If a run is never above the threshold, Phase II is empty, and ends where Phase I
    # ends: the maximum below replaces the 0. A run that ends above the threshold, or
    # has no threshold (NaN), has no Phase III.
    threshold = tail.phase_3_threshold
    end = np.where(fall.falls, fall.counted.steps, 0.0)
    end = np.where((fall.at_last > threshold) | np.isnan(threshold), np.inf, end)
    return np.maximum(end_of_phase_1, np.minimum(end, last))


def _last_rise(is_above: Mask) -> Index:
    """Row of the last change from False to True in each column of a mask, (P,).

    The mask is (T, P). A column that begins with True changes in row 0. Without a
    change the row has no meaning.
    """
    rises = is_above.copy()
    rises[1:] &= ~is_above[:-1]
    # argmax finds the first True of the reversed rows, which is the last True.
    return len(rises) - 1 - rises[::-1].argmax(axis=0)


def _may_touch_zero(values: Array) -> Mask:
    """Whether curves, (T, P), may touch zero between the observed times, (T - 2, P).

    A curve may do so near an extremum. A parabola through three points goes beyond the
    middle point by at most an eighth of the second difference of the three. The whole
    second difference is used, a margin of 8, because the curves are not parabolas.
    """
    middle = values[1:-1]
    above_previous = middle - values[:-2]
    above_next = middle - values[2:]
    is_extremum = above_previous * above_next >= 0.0
    # The second difference is minus this sum.
    second_difference = np.abs(above_previous + above_next)
    return np.asarray(is_extremum & (np.abs(middle) <= second_difference))
