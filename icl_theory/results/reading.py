"""Reading sweeps part by part: a sweep in a store may be larger than memory.

`computed` cuts out the block of a sweep that has been computed, and `slabs` yields a
sweep in parts that fit into memory. A store is a folder. The grid of the sweep is
divided into tiles, and the store has a file for each tile that is computed. A dataset
that is read from a store has arrays of Dask, whose chunks are the tiles; a dataset in
memory has none.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Hashable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from icl_theory.engine.progress import Progress
from icl_theory.results.columns import dimensions, steps_of
from icl_theory.sweeps.exponents import exponent_along
from icl_theory.sweeps.grid import DONE, PENDING, memory_limit
from icl_theory.sweeps.store import tiles_done

if TYPE_CHECKING:
    import xarray

# Points of a table that are in memory at a time. With some twenty columns of 8 bytes
# they take about 40 MB; fewer points would need more passes through pandas.
SLAB = 250_000
# The bytes that a text is taken to have when the size of points is estimated. Most
# texts are words, and a few are messages of up to 1000 characters.
TEXT_SIZE = 256
# Bytes that `slabs` reads at a time, as a range of values of the first parameter. Every
# chunk that overlaps the range is read as a whole. Small ranges would read the same
# chunk many times, and large ones need memory.
BLOCK = 2**28


def count(dataset: xarray.Dataset, status: str) -> int:
    """Return how many points have a status, without reading the pending ones.

    `tiles_done` returns whether each tile of a whole store is computed, and None for a
    dataset in memory or a part of a store.
    """
    statuses = dataset["status"]
    is_done = tiles_done(statuses.data)
    if is_done is None:
        return int((statuses == status).sum())
    if status == PENDING:
        # A file of a store never has a pending point, so the pending points are the
        # points of the tiles without a file.
        return int(_tile_sizes(statuses.data.chunks)[~is_done].sum())
    return int((computed(dataset)["status"] == status).sum())


def computed(dataset: xarray.Dataset) -> xarray.Dataset:
    """Return the smallest block that has every computed point; it may be empty.

    This block is a slice along each parameter. Tables and figures need no more than it,
    and the grid of a store may have a billion points of which ten are computed. If the
    dataset is a part of a store, it is unknown which points are pending, and the whole
    part is returned.
    """
    statuses = dataset["status"]
    tile_lengths: Any = getattr(statuses.data, "chunks", None)
    is_done = tiles_done(statuses.data)
    if is_done is None and tile_lengths is not None:
        return dataset
    if is_done is None:
        # In memory each point is a tile of its own.
        is_done = statuses.values != PENDING
        tile_lengths = tuple(np.ones(size, dtype=np.int64) for size in statuses.shape)
    block = {}
    for axis, name in enumerate(statuses.dims):
        block[name] = _span(is_done, axis, tile_lengths[axis])
    # The block may be the whole dataset.
    if all(span == slice(0, dataset.sizes[name]) for name, span in block.items()):
        return dataset
    part = dataset.isel(block)
    if not is_done.any():
        return _without_dask(part)
    if statuses.chunks is None:
        # In memory the exponents have been computed already.
        return part
    return _with_own_exponents(part, dataset, block)


def _span(is_done: NDArray[np.bool_], axis: int, lengths: Any) -> slice:
    """Return the points along an axis from the first to the last tile that is done.

    ``is_done`` says for each tile of the grid whether it is computed. ``lengths`` are
    the lengths of the tiles along the axis. If no tile is done, the slice is empty.
    """
    other_axes = tuple(other for other in range(is_done.ndim) if other != axis)
    done_tiles = np.flatnonzero(is_done.any(axis=other_axes))
    if not done_tiles.size:
        return slice(0)
    # Tile i begins at edges[i] and ends before edges[i + 1].
    edges = np.concatenate([[0], np.cumsum(lengths)])
    first_tile = done_tiles[0]
    last_tile = done_tiles[-1]
    return slice(edges[first_tile], edges[last_tile + 1])


def _without_dask(part: xarray.Dataset) -> xarray.Dataset:
    """Return an empty part with arrays in memory.

    Dask would look at all chunks of the store to find out that it needs none.
    """
    arrays = {
        name: np.empty(values.shape, values.dtype)
        for name, values in part.data_vars.items()
    }
    return part.copy(data=arrays)


def _with_own_exponents(
    part: xarray.Dataset, dataset: xarray.Dataset, block: dict[Hashable, slice]
) -> xarray.Dataset:
    """Return a block with exponents from its own points and the points next to it.

    The block ``part`` consists of the slices ``block`` of ``dataset``. An exponent is
    the slope d ln T/d ln x of the steps T along a parameter x, which its attribute
    ``of`` names. In the dataset, reading one exponent reads all points along the
    parameter, most of which may be pending.
    """
    steps = steps_of(dataset)
    if steps is None:
        return part
    for name, exponent in dataset.data_vars.items():
        along = str(exponent.attrs.get("of", ""))
        if exponent.attrs.get("role") != "exponent" or along not in block:
            continue
        values = dataset[along].values
        if not _is_monotonic(values):
            # The points with the next smaller and the next larger value may be anywhere
            # in the dataset, so the block keeps the exponent that reads all points.
            continue
        begin = block[along].start
        end = block[along].stop
        # A centred difference needs one more point at each end, if there is one.
        wider = slice(max(begin - 1, 0), min(end + 1, len(values)))
        wider_steps = dataset[steps].isel({**block, along: wider})
        slopes = exponent_along(wider_steps, values[wider], along)
        # Cut off the additional points.
        inner: list[Any] = [slice(None)] * wider_steps.ndim
        axis = wider_steps.dims.index(along)
        inner[axis] = slice(begin - wider.start, end - wider.start)
        part[name] = part[name].copy(data=slopes[tuple(inner)])
    return part


def _is_monotonic(values: NDArray[Any]) -> bool:
    """Whether values increase everywhere, or decrease everywhere."""
    differences = np.diff(values)
    return bool((differences > 0).all() or (differences < 0).all())


def _tile_sizes(lengths: tuple[tuple[int, ...], ...]) -> NDArray[np.int64]:
    """Return how many points each tile has.

    ``lengths`` has, for each axis, the lengths of the tiles along it.
    """
    sizes = np.ones((), dtype=np.int64)
    for axis_lengths in lengths:
        sizes = np.multiply.outer(sizes, np.array(axis_lengths, dtype=np.int64))
    return sizes


def places_of(condition: xarray.DataArray) -> Iterator[tuple[int, ...]]:
    """Yield the indices of the points at which a condition holds, in grid order."""
    if not condition.dims:
        if condition.values:
            yield ()
        return
    # About SLAB points are in memory at a time, in whole rows along the first axis.
    row_size = condition.size // len(condition)
    rows = max(1, SLAB // row_size)
    for start in range(0, len(condition), rows):
        points = np.argwhere(condition[start : start + rows].values)
        # The first index of a point counts from ``start``.
        for first_index, *other_indices in points.tolist():
            yield (start + first_index, *other_indices)


def slabs(dataset: xarray.Dataset, over: str) -> Generator[xarray.Dataset, None, None]:
    """Read a dataset part by part, and yield each part, in the order of tables.

    In a table the parameter ``over`` varies fastest. A part has at most SLAB points. If
    the dataset is empty, it is yielded as the only part, so that tables have headings.
    """
    total = dataset["status"].size
    if not total:
        yield dataset.compute()
        return
    points_at_a_time = SLAB
    if dataset["status"].chunks is not None:
        # The dataset is read from a store, in ranges of up to BLOCK bytes (fewer if
        # memory is short), or of SLAB points if these take more.
        point_size = 0
        for variable in dataset.data_vars.values():
            dtype = variable.dtype
            point_size += TEXT_SIZE if dtype.hasobject else dtype.itemsize
        points_at_a_time = max(SLAB, int(memory_limit(BLOCK)) // point_size)
    with Progress() as display:
        display.update(0, total)
        for part in parts(dataset, over, points_at_a_time):
            yield from parts(part.compute(), over, SLAB)
            display.add(part["status"].size)


def first_part(dataset: xarray.Dataset, over: str) -> xarray.Dataset:
    """Return the first part of `parts` that has a computed point, and read no further.

    Raises
    ------
    ValueError
        No point of the dataset is computed.
    """
    for part in parts(dataset, over, SLAB):
        in_memory = part.compute()
        if in_memory["status"].isin(DONE).any():
            return in_memory
    raise ValueError("the dataset has no computed point")


def parts(dataset: xarray.Dataset, over: str, most: int) -> Iterator[xarray.Dataset]:
    """Yield a dataset in parts of at most ``most`` points, in the order of tables.

    In a table the parameter ``over`` varies fastest. The parts are not read.
    """
    # The parameter that varies fastest is cut last.
    order = [*(name for name in dimensions(dataset) if name != over), over]
    cut_along = next((name for name in order if dataset.sizes[name] > 1), over)
    points_per_value = math.prod(dataset.sizes.values()) // dataset.sizes[cut_along]
    values_per_part = max(1, most // points_per_value)
    for start in range(0, dataset.sizes[cut_along], values_per_part):
        part = dataset.isel({cut_along: slice(start, start + values_per_part)})
        if points_per_value <= most:
            yield part
        else:
            # A part of a single value is still too large, so cut the next dimension.
            yield from parts(part, over, most)
