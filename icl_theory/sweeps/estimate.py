"""How much work a sweep is, from a few of its points that are timed."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

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
    made: Plan, workers: int = 1, *, budget: float = 2.0, asked: int = 2000
) -> Iterator[str]:
    """Estimate the points of a sweep, its time and its memory, in a line each.

    Sample points of each kind are timed for about ``budget`` seconds; ``asked`` random
    points show how many points each kind has.
    """
    grid = made.grid
    columns = made.model.columns
    rng = np.random.default_rng(0)
    exact = grid.size <= asked
    index = rng.permutation(grid.size) if exact else rng.integers(grid.size, size=asked)
    arrays = _in_arrays(made, index)
    many = round(grid.size * float(arrays.mean()))
    points = f"{grid.size:,} point{'s' * (grid.size != 1)} in {grid.chunks:,} chunk{'s' * (grid.chunks != 1)}"
    ways = f"{many:,} in batches and {grid.size - many:,} one by one"
    yield f"{points}, {'' if exact else 'about '}{ways}"
    alone, failed = _alone(made, index[~arrays], budget)
    chunk = grid.where(grid.chunks // 2)
    # those of a chunk share more than random ones do
    beside = chunk[_in_arrays(made, chunk)]
    together, errors = _together(made, beside if beside.size else index[arrays], budget)
    seconds = ((grid.size - many) * alone + many * together) / workers
    by = f" on {workers} workers" if workers > 1 else ""
    yield f"about {duration(seconds) if seconds >= 10 else f'{seconds:.1g} s'}{by}"
    for error in (*errors, *failed)[:1]:
        yield f"some of the points that were timed fail: {error}"
    large = (
        ": too much; use --store, which keeps them on the disk"
        if is_large(columns, grid)
        else ""
    )
    there = f", {decimal(int(free()))} free" if math.isfinite(free()) else ""
    yield f"{decimal(int(bytes_of(columns, grid.size)))} of memory for the results{there}{large}"


def _in_arrays(made: Plan, index: NDArray[np.int64]) -> NDArray[np.bool_]:
    return ~np.isnan(made.model.batched(made.grid.points(index), max_steps=0)["loss"])


def _together(
    made: Plan, where: NDArray[np.int64], budget: float
) -> tuple[float, list[str]]:
    """Return the time a point of more and more points of a chunk, as long as there is time, and why some fail."""
    count = 0
    last = 0.0
    failed = list[str]()
    end = time.perf_counter() + 3.0 * budget
    while count < len(where) and time.perf_counter() + last < end:
        count = min(max(1, 4 * count), len(where))
        start = time.perf_counter()
        some = where[np.linspace(0, len(where) - 1, count).astype(int)]
        values = attempt(made.model, made.grid.points(some))
        failed += values[MESSAGE.name][values[STATUS.name] == FAILED].tolist()
        last = time.perf_counter() - start
    return last / max(count, 1), failed


def _alone(
    made: Plan, index: NDArray[np.int64], budget: float
) -> tuple[float, list[str]]:
    """Return the mean time of points simulated one by one, and why some fail."""
    times = list[float]()
    failed = list[str]()
    end = time.perf_counter() + budget
    for place in (
        *index[:1, None],
        *index[:, None],
    ):  # the first one twice: it loads what the others share
        start = time.perf_counter()
        left = 0.0
        try:
            left = _run(made, made.grid.points(place), budget)
        except Exception as error:  # which is what the sweep records
            failed.append(one_line(error))
        times.append(time.perf_counter() - start + left)
        if time.perf_counter() > end:
            break
    return float(np.mean(times[1:] or times or 0.0)), failed


def _run(made: Plan, point: Mapping[str, NDArray[Any]], budget: float) -> float:
    """Simulate a point; return how much longer it would take where it is cut after some time."""
    seen: list[tuple[float, int]] = []

    def watch(step: int, loss: float) -> None:
        seen.append((time.perf_counter(), step))
        if (
            len(seen) > 2 and seen[-1][0] - seen[0][0] > budget
        ):  # enough to tell how it goes on
            raise TimeoutError

    problem = made.model.problem({name: value[0] for name, value in point.items()})
    try:
        problem.measured(problem.simulate(callback=watch))
    except TimeoutError:
        predicted = (
            problem.expected_steps() if problem.theory.applies(problem) else None
        )
        expected = min(predicted or math.inf, problem.max_steps)
        skippable = UpdateMap(
            problem.risk(), problem.rate(), problem.trained_by
        ).skippable
        return _left(seen, expected, problem.method == "exact" or not skippable)
    return 0.0


def _left(seen: list[tuple[float, int]], expected: float, every: bool) -> float:
    """Return how much longer a run takes to some step, by its second half so far.

    Where ``every`` step is taken they grow like time, and where steps are skipped
    exponentially.
    """
    if len(seen) < 3 or expected <= seen[-1][1] or not math.isfinite(expected):
        return 0.0
    spent = seen[-1][0] - seen[0][0]
    taken = seen[-1][1]
    if every:
        return spent * (expected / taken - 1.0)
    half = next(step for at, step in seen if at - seen[0][0] >= spent / 2)
    return (
        0.5
        * spent
        * math.log(expected / taken)
        / math.log(max(taken / max(half, 1), 1.1))
    )
