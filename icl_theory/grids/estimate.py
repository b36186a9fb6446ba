"""How much work a sweep is, from a few of its points that are timed."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from icl_theory.engine.progress import duration
from icl_theory.grids.grid import bytes_of
from icl_theory.grids.sweep import Plan, is_large
from icl_theory.memory import free
from icl_theory.memory import size as human


class _Enough(BaseException):
    """Something has taken as long as it may; an error would be recorded as one of the point."""


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """End a block after some time, where signals can do that."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        raise _Enough

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def estimate(made: Plan, workers: int = 1, *, budget: float = 1.0, asked: int = 2000) -> Iterator[str]:
    """Say how much work a sweep is: its points, and then, from a few of them, time and memory.

    Points of a kind are timed for ``budget`` seconds; ``asked`` random ones tell how many there are of each kind.

    Examples
    --------
    >>> from icl_theory.families import find
    >>> from icl_theory.grids.estimate import estimate
    >>> from icl_theory.grids.sweep import plan
    >>> made = plan(find("regression"), {"L": [1, 2], "delta": 1, "eta": 4, "epsilon": 1e-2})
    >>> next(estimate(made))
    '2 points in 1 chunk, 2 in whole arrays and 0 one by one'
    """
    grid, rng, seconds, failed = made.grid, np.random.default_rng(0), 0.0, []
    exact = grid.size <= asked
    index = rng.permutation(grid.size) if exact else rng.integers(grid.size, size=asked)
    arrays = _in_arrays(made, index)
    counts = [round(grid.size * float(np.mean(kind))) for kind in (arrays, ~arrays)]
    points = f"{grid.size:,} point{'s' * (grid.size != 1)} in {grid.chunks:,} chunk{'s' * (grid.chunks != 1)}"
    ways = "{:,} in whole arrays and {:,} one by one".format(*counts)
    yield f"{points}, {'' if exact else 'about '}{ways}"
    for kind, count in zip((arrays, ~arrays), counts, strict=True):
        if kind.any():
            alone, errors = _alone(made, index[kind][: 3 if kind is arrays else None], budget)
            seconds += count * (_together(made, alone, budget) if kind is arrays else alone)
            failed += errors
    by = f" on {workers} workers" if workers > 1 else ""
    seconds /= workers
    yield f"about {duration(seconds) if seconds >= 10 else f'{seconds:.1g} s'}{by}"
    if failed:
        yield f"points that were tried fail: {failed[0]}"
    needed, there = bytes_of(made.model.columns, grid.size), free()
    large = ", more than is well held: with a store they stay in it" if is_large(made.model.columns, grid) else ""
    yield f"{human(needed)} of memory for the results, {human(there)} free{large}"


def _in_arrays(made: Plan, index: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Say which points are computed in whole arrays."""
    found = made.model.batched(made.grid.points(index), max_steps=0)
    return ~np.isnan(found["loss"])


def _alone(made: Plan, index: NDArray[np.int64], budget: float) -> tuple[float, list[str]]:
    """Return the mean time of points simulated one by one, and why some fail."""
    times: list[float] = []
    failed: list[str] = []
    begun = time.perf_counter()
    for place in (*index[:2, None], *index[:, None]):  # the first ones twice: they load what the others share
        seen: list[tuple[float, int]] = []
        start, expected = time.perf_counter(), math.inf

        def watch(step: int, loss: float, seen: list[tuple[float, int]] = seen) -> None:
            seen.append((time.perf_counter(), step))

        with contextlib.suppress(_Enough), _limited(budget):
            try:
                problem = made.model.problem({name: value[0] for name, value in made.grid.points(place).items()})
                expected = min(problem.expected_steps() or math.inf, made.model.common["max_steps"])
                problem.measured(problem.simulate(callback=watch))
                expected = 0.0
            except Exception as error:  # which is what the sweep records
                failed.append(str(error))
                expected = 0.0
        times.append(time.perf_counter() - start + _left(seen, expected))
        if time.perf_counter() - begun > budget:
            break
    return float(np.mean(times[2:] or times[-1:])), failed


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
    count, end, last = 1, time.perf_counter() + budget, 0.0
    while count < len(where) and time.perf_counter() + 2 * last < end:
        count = min(2 * count, len(where))
        start = time.perf_counter()
        try:
            with _limited(end - start):
                made.model.evaluate(made.grid.points(where[:count]))
        except (_Enough, Exception):
            break
        last = time.perf_counter() - start
        alone = last / count
    return alone
