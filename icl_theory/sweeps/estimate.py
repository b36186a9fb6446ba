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
from icl_theory.memory import free
from icl_theory.sweeps.evaluate import attempt, one_line
from icl_theory.sweeps.grid import FAILED, MESSAGE, STATUS, bytes_of, is_large
from icl_theory.sweeps.sweep import Plan


def estimate(
    planned: Plan, workers: int = 1, *, budget: float = 2.0, samples: int = 2000
) -> Iterator[str]:
    """Yield lines that estimate the points, the time and the memory of a sweep.

    There are two kinds of points: those computed in batches, and those simulated one by
    one. Up to ``samples`` random points show how many points are of each kind. Sample
    points of each kind are timed: for about ``budget`` seconds if they are simulated
    one by one, and for up to three times as long in batches.
    """
    grid = planned.grid
    rng = np.random.default_rng(0)
    is_exact = grid.size <= samples
    if is_exact:
        index = rng.permutation(grid.size)
    else:
        index = rng.integers(grid.size, size=samples)
    is_batched = _is_batched(planned, index)
    batched = round(grid.size * float(is_batched.mean()))
    alone = grid.size - batched
    about = "" if is_exact else "about "
    yield (
        f"{_counted(grid.size, 'point')} in {_counted(grid.chunks, 'chunk')}, "
        f"{about}{batched:,} in batches and {alone:,} one by one"
    )
    single = _time_alone(planned, index[~is_batched], budget)
    # A batch is timed on the points of a chunk, which share more work than random
    # points do.
    chunk = grid.where(grid.chunks // 2)
    beside = chunk[_is_batched(planned, chunk)]
    if not beside.size:
        beside = index[is_batched]
    batch = _time_together(planned, beside, budget)
    seconds = (alone * single.seconds + batched * batch.seconds) / workers
    time_needed = duration(seconds) if seconds >= 10 else f"{seconds:.1g} s"
    by_workers = f" on {workers} workers" if workers > 1 else ""
    yield f"about {time_needed}{by_workers}"
    errors = (*batch.errors, *single.errors)
    if errors:
        yield f"some of the points that were timed fail: {errors[0]}"
    yield _memory(planned)


def _counted(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural unless the count is 1."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def _memory(planned: Plan) -> str:
    """Return a line on the memory that the results take and that is free."""
    columns = planned.model.columns
    needed = decimal(int(bytes_of(columns, planned.grid.size)))
    line = f"{needed} of memory for the results"
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
    """Whether each of P points is computed in a batch, (P,).

    ``index``, (P,), has the flat indices of the points in the grid.
    """
    # With no steps to take, the family only decides which points it can compute.
    values = planned.model.batched(planned.grid.points(index), max_steps=0)
    return ~np.isnan(values["loss"])


def _time_together(planned: Plan, index: NDArray[np.int64], budget: float) -> Timing:
    """Time batches of points that grow fourfold, as long as the budget lasts.

    The mean time of a point comes from the largest batch.
    """
    count = 0
    last = 0.0
    errors = list[str]()
    end = time.perf_counter() + 3.0 * budget
    while count < len(index) and time.perf_counter() + last < end:
        count = min(max(1, 4 * count), len(index))
        start = time.perf_counter()
        sample = index[np.linspace(0, len(index) - 1, count).astype(int)]
        values = attempt(planned.model, planned.grid.points(sample))
        errors += values[MESSAGE.name][values[STATUS.name] == FAILED].tolist()
        last = time.perf_counter() - start
    return Timing(last / max(count, 1), errors)


def _time_alone(planned: Plan, index: NDArray[np.int64], budget: float) -> Timing:
    """Time points that are simulated one by one, as long as the budget lasts."""
    times = list[float]()
    errors = list[str]()
    end = time.perf_counter() + budget
    # The first point is simulated twice, and its first run is not counted: it also
    # loads modules, which the other runs need no longer load.
    for place in (*index[:1, None], *index[:, None]):
        start = time.perf_counter()
        remaining = 0.0
        try:
            remaining = _run(planned, planned.grid.points(place), budget)
        except Exception as error:
            # As in the sweep itself, a point that fails does not end the estimate.
            errors.append(one_line(error))
        times.append(time.perf_counter() - start + remaining)
        if time.perf_counter() > end:
            break
    # Without a point there is no time.
    return Timing(float(np.mean(times[1:] or times or 0.0)), errors)


class Progressed(NamedTuple):
    """A moment of a run: the time on the clock, in seconds, and the step."""

    clock: float
    step: int


def _run(planned: Plan, point: Mapping[str, NDArray[Any]], budget: float) -> float:
    """Simulate a point for up to ``budget`` seconds; return the seconds left after it.

    The result is 0 if the run ends in time. If not, it is an estimate.
    """
    moments: list[Progressed] = []

    def watch(step: int, loss: float) -> None:
        moments.append(Progressed(time.perf_counter(), step))
        # `_remaining` needs three moments to estimate the rest of the run.
        is_late = moments[-1].clock - moments[0].clock > budget
        if len(moments) > 2 and is_late:
            raise TimeoutError

    problem = planned.model.problem({name: value[0] for name, value in point.items()})
    try:
        problem.measured(problem.simulate(callback=watch))
    except TimeoutError:
        # The run would have ended at the target, or at the last step allowed.
        predicted = None
        if problem.theory.applies(problem.half):
            predicted = problem.half.expected_steps()
        last = min(predicted or math.inf, problem.max_steps)
        descent = UpdateMap(problem.trained_risk(), problem.rate(), problem.trained_by)
        takes_every_step = problem.method == "exact" or not descent.skippable
        return _remaining(moments, last, takes_every_step)
    return 0.0


def _remaining(moments: list[Progressed], last: float, takes_every_step: bool) -> float:
    """Return how many more seconds a run needs to reach step ``last``.

    If the run takes every step, the step grows in proportion to time. If it skips
    steps, the step grows exponentially, at the rate of the second half of the time
    spent so far. The result is 0 if there are too few moments to tell.
    """
    if len(moments) < 3 or last <= moments[-1].step or not math.isfinite(last):
        return 0.0
    start = moments[0].clock
    spent = moments[-1].clock - start
    taken = moments[-1].step
    if takes_every_step:
        return spent * (last / taken - 1.0)
    half = next(step for clock, step in moments if clock - start >= spent / 2)
    # A run that has hardly moved in this time would seem to take forever.
    growth_in_half = max(taken / max(half, 1), 1.1)
    return 0.5 * spent * math.log(last / taken) / math.log(growth_in_half)
