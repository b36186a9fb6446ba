"""How much work a sweep is, before it is done."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from icl_theory.engine.progress import duration
from icl_theory.grids.grid import bytes_of
from icl_theory.grids.sweep import Plan, is_large
from icl_theory.memory import free
from icl_theory.memory import size as human

SECONDS_PER_POINT = 6e-6  # of a closed form
TRIED = 3.0  # seconds after which no other point is tried
FEW = 8  # points that are tried
COUNTED = 100_000  # points that are asked for their method, or a sample of so many


def estimate(made: Plan, workers: int = 1) -> Iterator[str]:
    """Say how much work a sweep is: points and methods, and then, from a few of its points, time and memory.

    Examples
    --------
    >>> from icl_theory.families import find
    >>> from icl_theory.grids.estimate import estimate
    >>> from icl_theory.grids.sweep import plan
    >>> made = plan(find("regression"), {"L": [1, 2], "delta": 1, "eta": 4, "epsilon": 1e-2})
    >>> [*estimate(made)][:2]
    ['2 points in 1 chunk', '2 in closed form, 0 together where possible, 0 one by one']
    """
    grid, model = made.grid, made.model
    exact = grid.size <= COUNTED
    sample = np.arange(grid.size) if exact else np.random.default_rng(0).integers(grid.size, size=COUNTED)
    points = grid.points(sample)
    closed = model.closed(points)
    joint = ~closed & model.joint(points)
    numbers = [round(grid.size * float(kind.mean())) for kind in (closed, joint)]
    numbers.append(grid.size - sum(numbers))
    yield f"{grid.size:,} point{'s' * (grid.size != 1)} in {grid.chunks:,} chunk{'s' * (grid.chunks != 1)}"
    ways = ("in closed form", "together where possible", "one by one")
    some = "" if exact else "about "
    yield ", ".join(f"{some}{number:,} {way}" for number, way in zip(numbers, ways, strict=True))
    slow, some_joint = (np.random.default_rng(0).permutation(sample[kind])[:FEW] for kind in (~closed, joint))
    tried, failed = _tried(made, slow)
    alone = float(np.mean(tried or [0.0]))
    enough = some_joint[: int(2.0 * TRIED / max(alone, 1e-3))]  # no more than could be simulated alone in that time
    together = alone if failed or not enough.size else _together(made, enough)
    seconds = sum(np.multiply(numbers, (SECONDS_PER_POINT, together, alone)).tolist())
    by = f" on {workers} workers" if workers > 1 else ""
    yield f"{'at most about' if slow.size else 'about'} {duration(seconds / workers)}{by}"
    if failed:
        yield f"{len(failed)} of {len(tried)} points that were tried fail; the first: {failed[0]}"
    needed, there = bytes_of(model.columns, grid.size), free()
    large = ", more than is well held: with a store they stay in it" if is_large(model.columns, grid) else ""
    yield f"{human(needed)} of memory for the results, {human(there)} free{large}"


def _tried(made: Plan, points: NDArray[np.int64]) -> tuple[list[float], list[str]]:
    """Try as many points as a few seconds allow; return how long each is expected to take, and why some fail."""
    found: list[float] = []
    failed: list[str] = []
    start = time.perf_counter()
    for index in points[:, None]:
        try:
            found.append(made.model.seconds(made.grid.points(index)))
        except Exception as error:  # which it does at once
            found.append(0.0)
            failed.append(str(error))
        if time.perf_counter() - start > TRIED:
            break
    return found, failed


def _together(made: Plan, points: NDArray[np.int64]) -> float:
    """Return how long each of a few points takes where they are simulated together."""
    start = time.perf_counter()
    made.model.evaluate(made.grid.points(points))
    return (time.perf_counter() - start) / points.size
