"""Sweeps part by part: one in a store may be larger than memory."""

from __future__ import annotations

import math
from collections.abc import Generator, Hashable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from icl_theory.engine.progress import Progress
from icl_theory.results.columns import dimensions, steps_of
from icl_theory.sweeps.exponents import exponent_along
from icl_theory.sweeps.grid import DONE, PENDING, room
from icl_theory.sweeps.store import tiles_done

if TYPE_CHECKING:
    import xarray

SLAB = 250_000  # points of a table that are put together at a time
BLOCK = (
    2**28
    # bytes that are read at a time; each chunk is read once for each block along the
    # first
    # parameter
)


def count(dataset: xarray.Dataset, status: str) -> int:
    """Return how many points have a status; those that a store has not are not looked at one by one."""
    statuses = dataset["status"]
    done = tiles_done(statuses.data)
    if done is None:
        return int((statuses == status).sum())
    if status == PENDING:  # no part has such a point
        return int(_sizes(statuses.data.chunks)[~done].sum())
    return int((computed(dataset)["status"] == status).sum())


def computed(dataset: xarray.Dataset) -> xarray.Dataset:
    """Return the smallest block of a dataset that has every computed point, which may be empty.

    A store may claim a billion points and have ten. All of the dataset is returned if
    it is a part of what was read lazily: which of its points are pending is then not
    known.
    """
    statuses = dataset["status"]
    lengths: Any = getattr(statuses.data, "chunks", None)
    done = tiles_done(statuses.data)
    if done is None and lengths is not None:
        return dataset
    if done is None:
        done = statuses.values != PENDING
        lengths = tuple(np.ones(size, dtype=np.int64) for size in statuses.shape)
    block = {}
    for axis, name in enumerate(statuses.dims):
        others = tuple(other for other in range(done.ndim) if other != axis)
        places = np.flatnonzero(done.any(axis=others))
        ends = np.concatenate([[0], np.cumsum(lengths[axis])])
        block[name] = (
            slice(ends[places[0]], ends[places[-1] + 1]) if places.size else slice(0)
        )
    if all(part == slice(0, dataset.sizes[name]) for name, part in block.items()):
        return dataset
    found = dataset.isel(block)
    if done.any():
        return (
            found
            if statuses.chunks is None
            else _with_own_exponents(found, dataset, block)
        )
    # Dask would look at all chunks of the store to find out that it needs none of them.
    nothing = {
        name: np.empty(values.shape, values.dtype)
        for name, values in found.data_vars.items()
    }
    return found.copy(data=nothing)


def _with_own_exponents(
    part: xarray.Dataset, dataset: xarray.Dataset, block: dict[Hashable, slice]
) -> xarray.Dataset:
    """Return a block of a dataset with exponents that are computed from it and from the points next to it.

    Those of the dataset are of whole lines, most of which may be pending.
    """
    steps = steps_of(dataset)
    for name, exponent in dataset.data_vars.items():
        along = str(exponent.attrs.get("of", ""))
        if (
            exponent.attrs.get("role") != "exponent"
            or along not in block
            or steps is None
        ):
            continue
        values = dataset[along].values
        rises = np.diff(values)
        if not (
            (rises > 0).all() or (rises < 0).all()
        ):  # its neighbours may be anywhere
            continue
        begin, end = block[along].start, block[along].stop
        around = slice(max(begin - 1, 0), min(end + 1, len(values)))
        near = dataset[steps].isel({**block, along: around})
        slopes = exponent_along(near, values[around], along)
        inner: list[Any] = [slice(None)] * near.ndim
        inner[near.dims.index(along)] = slice(begin - around.start, end - around.start)
        part[name] = part[name].copy(data=slopes[tuple(inner)])
    return part


def _sizes(lengths: tuple[tuple[int, ...], ...]) -> NDArray[np.int64]:
    """Return the numbers of points of tiles from their lengths along each axis."""
    sizes = np.ones((), dtype=np.int64)
    for along in lengths:
        sizes = np.multiply.outer(sizes, np.array(along, dtype=np.int64))
    return sizes


def places_of(condition: xarray.DataArray) -> Iterator[tuple[int, ...]]:
    """Yield the indices of the points at which a condition holds, in the order of the dataset."""
    if not condition.dims:
        yield from [()] if condition.values else []
        return
    each = max(1, SLAB * len(condition) // condition.size)
    for start in range(0, len(condition), each):
        found = np.argwhere(condition[start : start + each].values)
        yield from ((start + first, *others) for first, *others in found.tolist())


def slabs(
    dataset: xarray.Dataset, over: str, message: int = 256
) -> Generator[xarray.Dataset, None, None]:
    """Yield a dataset part by part, in memory each, in the order of tables; a text has ``message`` bytes."""
    most, total = SLAB, dataset["status"].size
    if not total:
        yield dataset.compute()
        return
    if dataset["status"].chunks is not None:
        kinds = (variable.dtype for variable in dataset.data_vars.values())
        each = sum(message if kind.hasobject else kind.itemsize for kind in kinds)
        most = max(SLAB, int(room(BLOCK)) // each)
    with Progress() as shown:
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
