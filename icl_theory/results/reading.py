"""Whole quantities of a sweep, part by part where they are not in memory; what takes long says how far it is."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from icl_theory.engine.progress import CountProgress
from icl_theory.results.columns import dimensions

if TYPE_CHECKING:
    import xarray

SLAB = 250_000  # points of a table that are in memory at a time


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Say how many parts of quantities are computed, within or in a function, where it takes over two seconds.

    Examples
    --------
    >>> from icl_theory.results.reading import reading
    >>> @reading()
    ... def total(quantity):
    ...     return sum(quantity)
    >>> total([1, 2])
    3
    """
    done = total = 0
    with CountProgress(None, "parts") as shown:

        def begin(tasks: Mapping[Any, Any], _: Any) -> None:
            nonlocal total
            total += len(tasks)
            shown.update(done, total)

        def finish(*_: Any) -> None:
            nonlocal done
            done += 1
            shown.update(done, total)

        with contextlib.nullcontext() if _is_watched() else _watched(start_state=begin, posttask=finish):
            yield


def count(dataset: xarray.Dataset, status: str) -> int:
    """Return how many points have a status."""
    with reading():
        return int((dataset["status"] == status).sum())


def slabs(dataset: xarray.Dataset, over: str) -> Generator[xarray.Dataset, None, None]:
    """Return a dataset part by part, in memory each, in the order in which tables have its points."""
    others = [name for name in dimensions(dataset) if name != over]
    done, total = 0, dataset["status"].size
    watched = dataset["status"].chunks is not None and _is_watched()
    with CountProgress(None) as shown:

        def beat(*_: Any) -> None:
            if not watched:
                shown.update(done, total)

        beat()
        for part in _slabs(dataset, [*others, over]):
            with _watched(posttask=beat):
                found = part.compute()
            yield found
            done += found["status"].size
            beat()


def first_part(dataset: xarray.Dataset, over: str) -> xarray.Dataset:
    """Return the first of these parts that has points; for the first rows of a table others need not be read."""
    with reading():
        return next(part for part in slabs(dataset, over) if (part["status"] != "pending").any())


def _slabs(dataset: xarray.Dataset, names: list[str]) -> Iterator[xarray.Dataset]:
    """Return it part by part along its first dimension, and each part along the next one if it is too large."""
    lead, *rest = names
    points = math.prod(dataset.sizes[name] for name in rest)
    each = max(1, SLAB // max(points, 1))
    for start in range(0, dataset.sizes[lead], each):
        part = dataset.isel({lead: slice(start, start + each)})
        yield from [part] if points <= SLAB else _slabs(part, rest)


def _is_watched() -> bool:
    """Whether somebody is told already what Dask computes."""
    return "dask.callbacks" in sys.modules and bool(sys.modules["dask.callbacks"].Callback.active)


def _watched(**functions: Callable[..., None]) -> contextlib.AbstractContextManager[Any]:
    """Have Dask say what it computes, where a quantity may be its array."""
    if "dask" not in sys.modules:
        return contextlib.nullcontext()
    from dask.callbacks import Callback

    callback: Any = Callback
    found: contextlib.AbstractContextManager[Any] = callback(**functions)
    return found
