"""How much work a sweep is, from a few of its points that are timed."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from icl_theory.engine.progress import duration
from icl_theory.grids.grid import bytes_of, is_large
from icl_theory.grids.sweep import Plan
from icl_theory.memory import free, size


class _EnoughError(Exception):
    """A run has taken as long as it may."""


def estimate(made: Plan, workers: int = 1, *, budget: float = 1.0, asked: int = 2000) -> Iterator[str]:
    """Say how much work a sweep is: its points, and then, from a few of them, time and memory.

    Points of a kind are timed for ``budget`` seconds; ``asked`` random ones tell how many there are of each kind.
    """
    grid, rng = made.grid, np.random.default_rng(0)
    exact = grid.size <= asked
    index = rng.permutation(grid.size) if exact else rng.integers(grid.size, size=asked)
    arrays = _in_arrays(made, index)
    many = round(grid.size * float(arrays.mean()))
    points = f"{grid.size:,} point{'s' * (grid.size != 1)} in {grid.chunks:,} chunk{'s' * (grid.chunks != 1)}"
    ways = f"{many:,} in whole arrays and {grid.size - many:,} one by one"
    yield f"{points}, {'' if exact else 'about '}{ways}"
    alone, failed = _alone(made, index[~arrays], budget)
    each, errors = _alone(made, index[arrays][:3], budget)
    seconds = ((grid.size - many) * alone + many * _together(made, each, budget)) / workers
    by = f" on {workers} workers" if workers > 1 else ""
    yield f"about {duration(seconds) if seconds >= 10 else f'{seconds:.1g} s'}{by}"
    for error in (*errors, *failed)[:1]:
        yield f"points that were tried fail: {error}"
    large = ", more than is well held: with a store they stay in it" if is_large(made.model.columns, grid) else ""
    yield f"{size(bytes_of(made.model.columns, grid.size))} of memory for the results, {size(free())} free{large}"


def _in_arrays(made: Plan, index: NDArray[np.int64]) -> NDArray[np.bool_]:
    return ~np.isnan(made.model.batched(made.grid.points(index), max_steps=0)["loss"])


def _alone(made: Plan, index: NDArray[np.int64], budget: float) -> tuple[float, list[str]]:
    """Return the mean time of points simulated one by one, and why some fail."""
    times, failed, begun = [0.0], [], time.perf_counter()
    for place in (*index[:2, None], *index[:, None]):  # the first ones twice: they load what the others share
        seen: list[tuple[float, int]] = []
        start, left, expected = time.perf_counter(), 0.0, math.inf

        def watch(step: int, loss: float, seen: list[tuple[float, int]] = seen) -> None:
            seen.append((time.perf_counter(), step))
            if len(seen) > 2 and seen[-1][0] - seen[0][0] > budget:  # enough to tell how it goes on
                raise _EnoughError

        try:
            problem = made.model.problem({name: value[0] for name, value in made.grid.points(place).items()})
            expected = min(problem.expected_steps() or math.inf, made.model.common["max_steps"])
            problem.measured(problem.simulate(callback=watch))
        except _EnoughError:
            left = _left(seen, expected)
        except Exception as error:  # which is what the sweep records
            failed.append(str(error))
        times.append(time.perf_counter() - start + left)
        if time.perf_counter() - begun > budget:
            break
    return float(np.mean(times[3:] or times[-1:])), failed


def _left(seen: list[tuple[float, int]], expected: float) -> float:
    """Return how much longer a run takes to some step, by the power of time by which its steps have grown."""
    if len(seen) < 3 or expected <= seen[-1][1] or not math.isfinite(expected):
        return 0.0
    spent, taken = seen[-1][0] - seen[0][0], seen[-1][1]
    half = next(step for at, step in seen if at - seen[0][0] >= spent / 2)
    power = max(1.0, math.log2(taken / max(half, 1)))
    return float(spent * ((expected / taken) ** (1.0 / power) - 1.0))


def _together(made: Plan, alone: float, budget: float) -> float:
    """Return the time a point of larger and larger pieces of a chunk, as long as there is time for the next one."""
    where = made.grid.where(made.grid.chunks // 2)
    where = where[_in_arrays(made, where)]
    count, end, last = 1, time.perf_counter() + budget, alone
    while count < len(where) and time.perf_counter() + 2 * last < end:
        count, start = min(2 * count, len(where)), time.perf_counter()
        with contextlib.suppress(Exception):  # which is recorded by point
            made.model.evaluate(made.grid.points(where[:count]))
        last = time.perf_counter() - start
        alone = last / count
    return alone
