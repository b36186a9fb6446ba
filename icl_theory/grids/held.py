"""Results of a sweep in memory: a quantity that is the same along a parameter is held once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from icl_theory.grids.grid import FILL, MESSAGE, PENDING, STATUS, Column, Grid, Values, bytes_of, is_same, once
from icl_theory.memory import SMALL, check_fits


class Held:
    """Columns of a grid, filled tile by tile.

    Parameters
    ----------
    columns : tuple of Column
        What there is per point, besides status and message.
    grid : Grid
        The points.

    Examples
    --------
    >>> import numpy as np
    >>> from icl_theory.grids.grid import Axis, Column, Grid, blank
    >>> from icl_theory.grids.held import Held
    >>> columns = (Column("x", "f8", "", "a number"),)
    >>> held = Held(columns, Grid((Axis("x", np.arange(3.0), "", "a number", True),), chunk=2))
    >>> held.place(0, blank(columns, 2) | {"x": np.array([0.5, 1.5])})
    >>> held.values()["x"], held.values()["status"].tolist()
    (array([0.5, 1.5, nan]), ['', '', 'pending'])
    """

    def __init__(self, columns: tuple[Column, ...], grid: Grid) -> None:
        needed = bytes_of(columns, grid.size)
        check_fits("points", grid.size, needed)
        self._grid, self._columns, self._small = grid, (*columns, STATUS, MESSAGE), needed <= SMALL
        self._held: Values = {}
        self._placed = np.zeros(grid.tiles, dtype=bool)

    def place(self, chunk: int, values: Values) -> None:
        """Put the columns of a tile, (P,) each or as blocks (see `once`), into their places."""
        region, tile = self._grid.region(chunk), np.unravel_index(chunk, self._grid.tiles)
        lengths = tuple(part.stop - part.start for part in region)
        for column in self._columns:
            part = once(values[column.name], lengths)
            held = self._held.get(column.name, np.empty((1,) * len(lengths), dtype=column.dtype))
            if held.shape != self._grid.shape:
                held = self._widened(held, part, region, tile)
            held[_within(held, region)] = part[_within(held, (slice(None),) * len(region))]
            self._held[column.name] = held
        self._placed[tile] = True

    def values(self) -> Values:
        """Return every column, (size,); where they are large in the grid's shape, and those held once read-only."""
        if not self._placed.all():
            self._fill()
        whole = {name: np.broadcast_to(held, self._grid.shape) for name, held in self._held.items()}
        return {name: np.array(held).ravel() for name, held in whole.items()} if self._small else whole

    def _fill(self) -> None:
        """Put what a point has that was not run wherever nothing was placed."""
        missing = ~self._placed
        for axis, (part, length) in enumerate(zip(self._grid.tile, self._grid.shape, strict=True)):
            missing = np.repeat(missing, part, axis).take(range(length), axis)
        for column in self._columns:
            fill = np.array(PENDING if column == STATUS else FILL[column.dtype[0]], dtype=column.dtype)
            held = self._held.get(column.name, fill.reshape((1,) * missing.ndim))
            if not is_same(held, fill):
                held = np.array(np.broadcast_to(held, missing.shape))
                held[missing] = fill
            self._held[column.name] = held

    def _widened(
        self, held: NDArray[Any], part: NDArray[Any], region: tuple[slice, ...], tile: tuple[Any, ...]
    ) -> NDArray[Any]:
        """Return a column with the axes that a tile needs: along one of length 1 all points are the same."""
        shape, begun = self._grid.shape, bool(self._placed.any())
        if begun and is_same(part, held[_within(held, region)]):
            return held
        short = [axis for axis, length in enumerate(shape) if held.shape[axis] < length]
        for axis in short:
            if part.shape[axis] > 1:
                held = _longer(held, axis, shape[axis], begun)
        for axis in short:
            others = tuple(i if n == m else slice(None) for i, n, m in zip(tile, held.shape, shape, strict=True))
            if not self._placed[others].any():
                break  # nothing that was placed is held here
            if held.shape[axis] < shape[axis]:
                held = _longer(held, axis, shape[axis], begun)
        return held


def _within(held: NDArray[Any], region: tuple[slice, ...]) -> tuple[slice, ...]:
    """The region of a tile in a column that may be held once along some axes."""
    return tuple(slice(1) if length == 1 else part for length, part in zip(held.shape, region, strict=True))


def _longer(held: NDArray[Any], axis: int, length: int, begun: bool) -> NDArray[Any]:
    """A column as long as the grid along an axis, with what it held: nothing before it was begun."""
    found = np.empty((*held.shape[:axis], length, *held.shape[axis + 1 :]), dtype=held.dtype)
    if begun or held.dtype == object:
        found[...] = held
    return found
