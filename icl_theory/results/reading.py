"""Sweeps part by part: one in a store may be larger than memory."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import numpy as np

from icl_theory.engine.progress import Work
from icl_theory.grids.grid import DONE, room
from icl_theory.results.columns import dimensions

if TYPE_CHECKING:
    import xarray

SLAB = 250_000  # points of a table that are put together at a time
BLOCK = 2**28  # bytes that are read at a time; each chunk is read once for each block along the first parameter


def count(dataset: xarray.Dataset, status: str) -> int:
    """Return how many points have a status."""
    return int((dataset["status"] == status).sum())


def places_of(condition: xarray.DataArray) -> Iterator[tuple[int, ...]]:
    """Yield the indices of the points at which a condition holds, in the order of the dataset."""
    if not condition.dims:
        yield from [()] if condition.values else []
        return
    each = max(1, SLAB * len(condition) // condition.size)
    for start in range(0, len(condition), each):
        found = np.argwhere(condition[start : start + each].values)
        yield from ((start + first, *others) for first, *others in found.tolist())


def slabs(dataset: xarray.Dataset, over: str, message: int = 256) -> Generator[xarray.Dataset, None, None]:
    """Yield a dataset part by part, in memory each, in the order of tables; a text has ``message`` bytes."""
    most, total = SLAB, dataset["status"].size
    if dataset["status"].chunks is not None:
        kinds = (variable.dtype for variable in dataset.data_vars.values())
        each = sum(message if kind.hasobject else kind.itemsize for kind in kinds)
        most = max(SLAB, int(room(BLOCK)) // each)
    with Work() as shown:
        shown.update(0, total)
        for block in parts(dataset, over, most):
            yield from parts(block.compute(), over, SLAB)
            shown.add(block["status"].size)


def first_part(dataset: xarray.Dataset, over: str) -> xarray.Dataset:
    """Return the first part with a point that is computed; for its rows the others need not be read."""
    blocks = (part.compute() for part in parts(dataset, over, SLAB))
    return next(block for block in blocks if block["status"].isin(DONE).any())


def parts(dataset: xarray.Dataset, over: str, most: int) -> Iterator[xarray.Dataset]:
    """Yield a dataset in parts of at most so many points, in the order in which tables have them."""
    order = [*(name for name in dimensions(dataset) if name != over), over]
    lead = next((name for name in order if dataset.sizes[name] > 1), over)
    points = math.prod(dataset.sizes.values()) // dataset.sizes[lead]
    each = max(1, most // points)
    for start in range(0, dataset.sizes[lead], each):
        part = dataset.isel({lead: slice(start, start + each)})
        yield from [part] if points <= most else parts(part, over, most)
