"""Whole quantities of a sweep, part by part where they are not in memory; what takes long says how far it is."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from icl_theory.engine.progress import CountProgress, working
from icl_theory.grids.grid import DONE
from icl_theory.grids.large import room
from icl_theory.results.columns import dimensions

if TYPE_CHECKING:
    import xarray

SLAB = 250_000  # points of a table that are put together at a time
BLOCK = (
    2**28
)  # bytes that are read at a time; where a part has points of every chunk, fewer read each chunk less often


@contextlib.contextmanager
def reading(words: str) -> Iterator[None]:
    """Say what is being done, within or in a function, and how many parts of quantities were read for it.

    Nothing is said before two seconds are over, or while something else is shown.

    Examples
    --------
    >>> from icl_theory.results.reading import reading
    >>> @reading("adding numbers")
    ... def total(quantity):
    ...     return sum(quantity)
    >>> total([1, 2])
    3
    """
    with working(words) as work:

        def finish(*_: Any) -> None:
            work.parts += 1

        with _told(finish):
            yield


def count(dataset: xarray.Dataset, status: str) -> int:
    """Return how many points have a status."""
    with reading("counting points"):
        return int((dataset["status"] == status).sum())


def slabs(dataset: xarray.Dataset, over: str) -> Generator[xarray.Dataset, None, None]:
    """Return a dataset part by part, in memory each, in the order in which tables have its points."""
    done, total = 0, dataset["status"].size
    with CountProgress(None) as shown:
        shown.update(done, total)
        each = sum(variable.dtype.itemsize for variable in dataset.data_vars.values())
        for block in _parts(dataset, over, max(SLAB, int(room(BLOCK)) // each)):
            for part in _parts(block.compute(), over, SLAB):
                yield part
                done += part["status"].size
                shown.update(done, total)


def has_whole_lines(dataset: xarray.Dataset, over: str) -> bool:
    """Return whether no line along a parameter is cut in two by these parts."""
    return dataset.sizes[over] <= SLAB


def first_part(dataset: xarray.Dataset, over: str, states: Sequence[str] = DONE) -> xarray.Dataset:
    """Return the first of these parts with a point in one of some states; for its rows others need not be read."""
    with reading("reading the first points"):
        parts = (part.compute() for part in _parts(dataset, over, SLAB))
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


def _told(finish: Callable[..., None]) -> contextlib.AbstractContextManager[Any]:
    """Have Dask tell of every part of a quantity that it has computed, unless somebody is told already."""
    if "dask" not in sys.modules:
        return contextlib.nullcontext()
    from dask.callbacks import Callback

    callback: Any = Callback
    found: contextlib.AbstractContextManager[Any] = callback(posttask=finish)
    return contextlib.nullcontext() if callback.active else found
