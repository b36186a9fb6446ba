"""Sweeps that do not fit into memory: datasets whose quantities are read from the store, a chunk at a time."""

from __future__ import annotations

import os
import threading
import uuid
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icl_theory.grids.grid import FILL, MESSAGE, PENDING, STATUS, Column, Grid, Values, bytes_of
from icl_theory.grids.store import Store, opened_to_read
from icl_theory.memory import free

SHARE = 0.25  # of the free memory that the points of a sweep may take; tables and figures take as much again
MOST = 2**30  # bytes that they may take in any case
_OPENING = threading.Lock()


def is_large(columns: tuple[Column, ...], grid: Grid) -> bool:
    """Whether the points of a sweep are better left in its store.

    Examples
    --------
    >>> import numpy as np
    >>> from icl_theory.grids.grid import Axis, Grid
    >>> from icl_theory.grids.large import is_large
    >>> is_large((), Grid((Axis("x", np.arange(4.0), "", "a number", True),), chunk=2))
    False
    """
    return bytes_of(columns, grid.size) > room(MOST)


def room(most: float) -> float:
    """Return how many bytes the points of a sweep may take at once, ``most`` at most.

    Examples
    --------
    >>> from icl_theory.grids.large import room
    >>> 0 <= room(1e6) <= 1e6
    True
    """
    return min(most, SHARE * free())


class _Reader:
    """Reads chunks of one column; it goes to other processes as the path of its store, which each of them opens."""

    def __init__(self, path: str, column: Column, store: Store, opening: str) -> None:
        self.path, self.column, self.opening = path, column, opening
        self._store: Store | None = store

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_store": None}

    def __call__(self, block_id: tuple[int, ...] | None = None) -> NDArray[Any]:
        store = self._store
        if store is None:
            with _OPENING:
                store = _opened(self.path, self.opening)
        chunk = store.chunk_at(block_id or ())
        shape = store.lengths(chunk)
        if store.done[chunk]:
            return store.read_column(chunk, self.column).reshape(shape)
        fill = PENDING if self.column == STATUS else FILL[self.column.dtype[0]]
        return np.full(shape, fill, dtype=self.column.dtype)


@lru_cache(maxsize=4)
def _opened(path: str, opening: str) -> Store:
    """Open a store in a process to which parts were sent, each with a reader of its own: once for all of them."""
    return opened_to_read(path)


def lazy_values(path: str | os.PathLike[str], store: Store, columns: tuple[Column, ...], grid: Grid) -> Values:
    """Return every column of a store as a Dask array, in the shape of the swept axes and the chunks of the store.

    Parameters
    ----------
    path, store : path-like, Store
        Where it is, and opened to be read.
    columns : tuple of Column
        What it has, besides status and message.
    grid : Grid
        Its points.

    Returns
    -------
    dict of str to dask.array.Array
        Read when they are computed, and their checksums are verified then.
    """
    from dask.array import map_blocks

    reading: Any = map_blocks
    lengths = zip(grid.axes, grid.tile, strict=True)
    chunks = tuple(
        (*[part] * (len(axis.values) // part), *([len(axis.values) % part] if len(axis.values) % part else []))
        for axis, part in lengths
        if axis.swept
    )
    found, opening = {}, uuid.uuid4().hex
    for column in (*columns, STATUS, MESSAGE):
        reader, dtype = _Reader(os.path.abspath(path), column, store, opening), np.dtype(column.dtype)
        found[column.name] = reading(
            reader, chunks=chunks, dtype=dtype, meta=np.empty((0,) * len(chunks), dtype=dtype)
        )
    return found
