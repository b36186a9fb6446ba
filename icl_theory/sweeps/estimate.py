"""Estimates of the time and memory of a sweep, from timing a few of its points."""

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
    planned: Plan, workers: int = 1, *, budget: float = 2.0, asked: int = 2000
) -> Iterator[str]:
    """Estimate the points of a sweep, its time and its memory, in a line each.

    Sample points of each kind are timed for about ``budget`` seconds; ``asked`` random
    points show how many points each kind has.
    """
    grid = planned.grid
    rng = np.random.default_rng(0)
    is_exact = grid.size <= asked
    if is_exact:
        index = rng.permutation(grid.size)
    else:
        index = rng.integers(grid.size, size=asked)
    is_batched = _is_batched(planned, index)
    batched = round(grid.size * float(is_batched.mean()))
    alone = grid.size - batched
    about = "" if is_exact else "about "
    yield (
        f"{_counted(grid.size, 'point')} in {_counted(grid.chunks, 'chunk')}, "
        f"{about}{batched:,} in batches and {alone:,} one by one"
    )
    single = _time_alone(planned, index[~is_batched], budget)
    # The points of a chunk share more work than random points do.
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
    return f"{count:,} {noun}{'s' * (count != 1)}"


def _memory(planned: Plan) -> str:
    columns = planned.model.columns
    needed = decimal(int(bytes_of(columns, planned.grid.size)))
    line = f"{needed} of memory for the results"
    if math.isfinite(free()):
        line += f", {decimal(int(free()))} free"
    if is_large(columns, planned.grid):
        line += ": too much; use --store, which keeps them on the disk"
    return line


class Timing(NamedTuple):
    """The time of sample points.

    Parameters
    ----------
    seconds : float
        The time of a point.
    errors : list of str
        Why some of the points failed.
    """

    seconds: float
    errors: list[str]


def _is_batched(planned: Plan, index: NDArray[np.int64]) -> NDArray[np.bool_]:
    values = planned.model.batched(planned.grid.points(index), max_steps=0)
    return ~np.isnan(values["loss"])


def _time_together(planned: Plan, index: NDArray[np.int64], budget: float) -> Timing:
    """Time larger and larger batches of points of a chunk, as long as time allows."""
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
    """Time points that are simulated one by one, and return their mean time."""
    times = list[float]()
    errors = list[str]()
    end = time.perf_counter() + budget
    # The first point comes twice: its first run loads the modules that all share.
    for place in (*index[:1, None], *index[:, None]):
        start = time.perf_counter()
        remaining = 0.0
        try:
            remaining = _run(planned, planned.grid.points(place), budget)
        except Exception as error:
            # The sweep, too, records any error of a point.
            errors.append(one_line(error))
        times.append(time.perf_counter() - start + remaining)
        if time.perf_counter() > end:
            break
    return Timing(float(np.mean(times[1:] or times or 0.0)), errors)


class Progressed(NamedTuple):
    """A moment of a run: the time on the clock, in seconds, and the step."""

    clock: float
    step: int


def _run(planned: Plan, point: Mapping[str, NDArray[Any]], budget: float) -> float:
    """Simulate a point; return how much longer it would take if it is cut short."""
    moments: list[Progressed] = []

    def watch(step: int, loss: float) -> None:
        moments.append(Progressed(time.perf_counter(), step))
        # Three moments are enough to tell how the run goes on.
        is_late = moments[-1].clock - moments[0].clock > budget
        if len(moments) > 2 and is_late:
            raise TimeoutError

    problem = planned.model.problem({name: value[0] for name, value in point.items()})
    try:
        problem.measured(problem.simulate(callback=watch))
    except TimeoutError:
        predicted = None
        if problem.theory.applies(problem.half):
            predicted = problem.half.expected_steps()
        last = min(predicted or math.inf, problem.max_steps)
        descent = UpdateMap(problem.trained_risk(), problem.rate(), problem.trained_by)
        takes_every_step = problem.method == "exact" or not descent.skippable
        return _remaining(moments, last, takes_every_step)
    return 0.0


def _remaining(moments: list[Progressed], last: float, takes_every_step: bool) -> float:
    """Return how much longer a run takes to step ``last``, by its second half so far.

    The steps grow in proportion to time if every one is taken, and exponentially if
    steps are skipped.
    """
    if len(moments) < 3 or last <= moments[-1].step or not math.isfinite(last):
        return 0.0
    start = moments[0].clock
    spent = moments[-1].clock - start
    taken = moments[-1].step
    if takes_every_step:
        return spent * (last / taken - 1.0)
    half = next(step for clock, step in moments if clock - start >= spent / 2)
    growth_in_half = max(taken / max(half, 1), 1.1)
    return 0.5 * spent * math.log(last / taken) / math.log(growth_in_half)
