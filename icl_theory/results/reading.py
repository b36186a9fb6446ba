"""Whole quantities of a sweep, part by part where they are not in memory; what takes long says what it is."""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from icl_theory.engine.progress import CountProgress, working
from icl_theory.grids.grid import DONE, room
from icl_theory.results.columns import dimensions

if TYPE_CHECKING:
    import xarray

SLAB = 250_000  # points of a table that are put together at a time
# Bytes that are read at a time. Rows along the first parameter have points of every chunk: the more of them are
# read at a time, the less often is each chunk read.
BLOCK = 2**28
MESSAGE = 256  # bytes of a message, where points failed


@contextlib.contextmanager
def reading(words: str) -> Iterator[None]:
    """Show what is being done, and how many parts Dask has computed for it, unless it tells somebody already."""
    if "dask" not in sys.modules:
        with working(words):
            yield
        return
    from dask.callbacks import Callback

    callback: Any = Callback
    if callback.active:
        yield
        return
    parts = itertools.count(1)
    with working(words) as work:

        def finish(*_: Any) -> None:
            work.words = f"{words}, {next(parts):,} parts computed"

        with callback(posttask=finish):
            yield


def count(dataset: xarray.Dataset, status: str) -> int:
    """Return how many points have a status."""
    with reading("counting points"):
        return int((dataset["status"] == status).sum())


def places_of(condition: xarray.DataArray) -> Iterator[tuple[int, ...]]:
    """Yield the indices of the points at which a condition holds, in the order of the dataset."""
    if not condition.dims:
        yield from [()] if condition.values else []
        return
    lead, *rest = map(str, condition.dims)
    each = max(1, SLAB // max(1, math.prod(condition.sizes[name] for name in rest)))
    for start in range(0, condition.sizes[lead], each):
        part = condition.isel({lead: slice(start, start + each)})
        yield from ((start + int(first), *map(int, others)) for first, *others in np.argwhere(part.values))


def slabs(dataset: xarray.Dataset, over: str) -> Generator[xarray.Dataset, None, None]:
    """Return a dataset part by part, in memory each, in the order in which tables have its points."""
    done, total = 0, dataset["status"].size
    with CountProgress(None) as shown:
        shown.update(done, total)
        for block in _parts(dataset, over, _most(dataset)):
            yield from _parts(block.compute(), over, SLAB)
            done += block["status"].size
            shown.update(done, total)


def _most(dataset: xarray.Dataset) -> int:
    """Return how many points are read at a time; of what is in memory already, as many as make a part."""
    if dataset["status"].chunks is None:
        return SLAB
    kinds = (variable.dtype for variable in dataset.data_vars.values())
    return max(SLAB, int(room(BLOCK)) // sum(MESSAGE if kind.hasobject else kind.itemsize for kind in kinds))


def has_whole_lines(dataset: xarray.Dataset, over: str) -> bool:
    """Return whether no line along a parameter is cut in two by these parts."""
    return dataset.sizes[over] <= SLAB


def first_part(dataset: xarray.Dataset, over: str, states: Sequence[str] = DONE) -> xarray.Dataset:
    """Return the first of these parts with a point in one of some states; for its rows others need not be read."""
    with reading("reading the first points"):
        first = itertools.islice(_parts(dataset, over, SLAB), 1)
        blocks = (block.compute() for block in itertools.chain(first, _parts(dataset, over, _most(dataset))))
        parts = (part for block in blocks for part in _parts(block, over, SLAB))
        return next(part for part in parts if part["status"].isin(states).any())


def _parts(dataset: xarray.Dataset, over: str, most: int) -> Iterator[xarray.Dataset]:
    """Return a dataset in parts of at most so many points, in the order in which tables have them."""
    return _cut(dataset, [*(name for name in dimensions(dataset) if name != over), over], most)


def _cut(dataset: xarray.Dataset, names: list[str], most: int) -> Iterator[xarray.Dataset]:
    """Return it part by part along its first dimension, and each part along the next one if it is too large."""
    lead, *rest = names
    points = math.prod(dataset.sizes[name] for name in rest)
    each = max(1, most // max(points, 1))
    for start in range(0, dataset.sizes[lead], each):
        part = dataset.isel({lead: slice(start, start + each)})
        yield from [part] if points <= most else _cut(part, rest, most)
