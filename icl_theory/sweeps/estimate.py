"""Estimates of the time and memory of a sweep, made by timing a few of its points."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.filesize import decimal

from icl_theory.engine.progress import duration
from icl_theory.engine.steps import UpdateMap
from icl_theory.families import Family
from icl_theory.memory import free
from icl_theory.sweeps.evaluate import attempt, one_line
from icl_theory.sweeps.grid import FAILED, MESSAGE, STATUS, bytes_of, is_large
from icl_theory.sweeps.sweep import Plan

# Batches may be timed for this many times as long as points that are simulated one by
# one. The time of a point falls as the batch grows, so a larger factor makes the
# estimate more accurate, but the user has to wait longer. The value is a compromise.
BATCH_BUDGET = 3.0
# A run is extrapolated as if its number of steps grew by at least this factor in the
# second half of the time spent. With a factor of 1 the logarithm in `_remaining` would
# be 0, and the estimate infinite. Any value a little above 1 would do; a larger one
# lowers the estimates of runs that hardly move.
LEAST_GROWTH = 1.1
# Each timed batch is this many times as large as the one before. A smaller factor costs
# more batches; a larger one leaves more of the time budget unused.
BATCH_GROWTH = 4
# `_remaining` needs at least this many moments of a run: the first one, the last one,
# and one between them.
LEAST_MOMENTS = 3


def estimate(
    planned: Plan, workers: int = 1, *, budget: float = 2.0, samples: int = 2000
) -> Iterator[str]:
    """Yield lines that estimate the points, the time and the memory of a sweep.

    Some points are computed in batches, and the others are simulated one by one. Both
    numbers of points are estimated from ``samples`` random points, or counted if the
    grid has at most ``samples`` points. Then some points are timed: for about
    ``budget`` seconds one by one, and for up to about three times as long in batches.
    """
    grid = planned.grid
    is_exact = grid.size <= samples
    random_points = _random_points(grid.size, samples)
    is_batched = _is_batched(planned, random_points)
    batched_count = round(grid.size * float(is_batched.mean()))
    alone_count = grid.size - batched_count
    about = "" if is_exact else "about "
    # The counts come before the timings, which take seconds, so that the user sees them
    # at once.
    yield (
        f"{_counted(grid.size, 'point')} in {_counted(grid.chunks, 'chunk')}, "
        f"{about}{batched_count:,} in batches and {alone_count:,} one by one"
    )
    timing_alone = _time_alone(planned, random_points[~is_batched], budget)
    batch_points = _points_of_a_batch(planned, random_points[is_batched])
    timing_in_batches = _time_together(planned, batch_points, budget)
    seconds_alone = alone_count * timing_alone.seconds
    seconds_in_batches = batched_count * timing_in_batches.seconds
    seconds = (seconds_alone + seconds_in_batches) / workers
    # `duration` writes whole seconds, which are too coarse for a short time.
    time_needed = duration(seconds) if seconds >= 10 else f"{seconds:.1g} s"
    by_workers = f" on {workers} workers" if workers > 1 else ""
    yield f"about {time_needed}{by_workers}"
    errors = (*timing_in_batches.errors, *timing_alone.errors)
    if errors:
        yield f"some of the points that were timed fail: {errors[0]}"
    yield _memory(planned)


def _random_points(size: int, samples: int) -> NDArray[np.int64]:
    """Return the flat indices of random points of a grid of ``size`` points.

    If the grid has at most ``samples`` points, all of them are returned, in a random
    order. Otherwise ``samples`` points are returned, some of which may be equal.
    """
    # With a fixed seed, two estimates of one sweep look at the same points.
    rng = np.random.default_rng(0)
    if size <= samples:
        return rng.permutation(size)
    return rng.integers(size, size=samples)


def _points_of_a_batch(
    planned: Plan, random_points: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the flat indices of the points on which batches are timed.

    They are points of the chunk in the middle of the grid, because the points of a
    chunk share more work than random points do. If no point of that chunk is computed
    in a batch, they are ``random_points``, all of which are computed in batches.
    """
    chunk = planned.grid.indices_of(planned.grid.chunks // 2)
    in_chunk = chunk[_is_batched(planned, chunk)]
    if in_chunk.size:
        return in_chunk
    return random_points


def _counted(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural unless the count is 1."""
    ending = "" if count == 1 else "s"
    return f"{count:,} {noun}{ending}"


def _memory(planned: Plan) -> str:
    """Return a line that says how much memory the results take and how much is free."""
    columns = planned.model.columns
    size = decimal(int(bytes_of(columns, planned.grid.size)))
    line = f"{size} of memory for the results"
    if math.isfinite(free()):
        line += f", {decimal(int(free()))} free"
    if is_large(columns, planned.grid):
        line += ": too much; use --store, which keeps them on the disk"
    return line


class Timing(NamedTuple):
    """The time that sample points take.

    Parameters
    ----------
    seconds : float
        The mean time of a point.
    errors : list of str
        The messages of the points that failed.
    """

    seconds: float
    errors: list[str]


def _is_batched(planned: Plan, index: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return an array (P,): whether each of P points is computed in a batch.

    ``index``, (P,), has the flat indices of the points in the grid.
    """
    # With no steps to take, the family only decides which points it can compute in a
    # batch. The loss of all other points is NaN.
    values = planned.model.batched(planned.grid.points(index), max_steps=0)
    return ~np.isnan(values["loss"])


def _time_together(planned: Plan, index: NDArray[np.int64], budget: float) -> Timing:
    """Time batches of points, each BATCH_GROWTH times as large as the one before.

    ``index``, (P,), has the flat indices of points that can be computed in batches. A
    new batch starts only if the time left would be enough to repeat the last one. How
    much longer the larger batch takes is not known beforehand, so the batches may
    exceed their time. The mean time of a point comes from the last batch, which is the
    largest.
    """
    count = 0
    batch_seconds = 0.0
    errors = list[str]()
    end = time.perf_counter() + BATCH_BUDGET * budget
    while count < len(index) and time.perf_counter() + batch_seconds < end:
        count = min(max(1, BATCH_GROWTH * count), len(index))
        start = time.perf_counter()
        # Take evenly spaced points, so that each batch spans the whole of ``index``.
        sample = index[np.linspace(0, len(index) - 1, count).astype(int)]
        values = attempt(planned.model, planned.grid.points(sample))
        has_failed = values[STATUS.name] == FAILED
        errors += values[MESSAGE.name][has_failed].tolist()
        batch_seconds = time.perf_counter() - start
    return Timing(batch_seconds / max(count, 1), errors)


def _time_alone(planned: Plan, index: NDArray[np.int64], budget: float) -> Timing:
    """Time points that are simulated one by one, for about ``budget`` seconds.

    ``index``, (P,), has the flat indices of the points, in the order in which they are
    simulated.
    """
    times = list[float]()
    errors = list[str]()
    end = time.perf_counter() + budget
    # The first point is simulated twice, and its first run is counted only if it takes
    # all the time: this run also loads modules, which all other runs find loaded.
    for flat_index in [*index[:1], *index]:
        start = time.perf_counter()
        remaining = 0.0
        try:
            point = planned.grid.points(np.array([flat_index]))
            remaining = _run(planned, point, budget)
        except Exception as error:
            # As in the sweep itself, a point that fails does not end the estimate.
            errors.append(one_line(error))
        times.append(time.perf_counter() - start + remaining)
        if time.perf_counter() > end:
            break
    if not times:
        # There were no points to time.
        return Timing(0.0, errors)
    if len(times) > 1:
        times = times[1:]
    return Timing(float(np.mean(times)), errors)


class Progressed(NamedTuple):
    """A moment of a run: the time on the clock, in seconds, and the step."""

    clock: float
    step: int


def _run(planned: Plan, point: Mapping[str, NDArray[Any]], budget: float) -> float:
    """Simulate a point for up to ``budget`` seconds.

    ``point`` has the parameters of the point by name, as arrays of one value. Return
    the seconds that its run would still take after that: 0 if the run ends in time, and
    an estimate otherwise.
    """
    moments: list[Progressed] = []

    def stop_when_late(step: int, loss: float) -> None:
        """Record the time of a step, and end the run if it has taken too long."""
        moments.append(Progressed(time.perf_counter(), step))
        is_late = moments[-1].clock - moments[0].clock > budget
        if len(moments) >= LEAST_MOMENTS and is_late:
            # An exception is the only way to end a run from its callback.
            raise TimeoutError

    problem = planned.model.problem({name: value[0] for name, value in point.items()})
    try:
        # `measured` computes the columns of the point, which a sweep also does.
        problem.measured(problem.simulate(callback=stop_when_late))
    except TimeoutError:
        # The run would have ended at the target, or at the last step allowed. It takes
        # every step with the method "exact", or if the trained risk and rule do not
        # allow skipping.
        last = min(_steps_to_target(problem), problem.max_steps)
        descent = UpdateMap(problem.trained_risk(), problem.rate(), problem.trained_by)
        takes_every_step = problem.method == "exact" or not descent.skippable
        return _remaining(moments, last, takes_every_step)
    return 0.0


def _steps_to_target(problem: Family) -> float:
    """Return the steps to the target that a theory predicts.

    The result is infinite if no theory applies, or if it does not predict the steps.
    """
    # The theory of a family is about half the squared error (see `Family.half`).
    half = problem.half
    if not problem.theory.applies(half):
        return math.inf
    return half.expected_steps() or math.inf


def _remaining(moments: list[Progressed], last: float, takes_every_step: bool) -> float:
    """Return how many more seconds a run needs to reach step ``last``.

    If the run takes every step, the step n grows in proportion to time. If it skips
    steps, n grows exponentially, at the rate of the second half of the time spent so
    far. The result is 0 if there are fewer than LEAST_MOMENTS moments, if the run is
    already past ``last``, or if ``last`` is infinite.
    """
    if (
        len(moments) < LEAST_MOMENTS
        or last <= moments[-1].step
        or not math.isfinite(last)
    ):
        return 0.0
    start = moments[0].clock
    spent = moments[-1].clock - start
    steps_taken = moments[-1].step
    if takes_every_step:
        return spent * (last / steps_taken - 1.0)
    # The first recorded step after half of the time.
    step_at_half = next(step for clock, step in moments if clock - start >= spent / 2)
    growth = max(steps_taken / max(step_at_half, 1), LEAST_GROWTH)
    # In each period of half the time spent, n grows by the factor ``growth``. So n
    # grows from steps_taken to last in log(last / steps_taken) / log(growth) periods.
    return 0.5 * spent * math.log(last / steps_taken) / math.log(growth)
