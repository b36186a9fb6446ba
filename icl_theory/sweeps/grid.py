"""Grids of parameters: axes, columns, and the tiles in which a grid is evaluated and kept.

A grid is cut into tiles of at most a given number of points, whatever the number of
workers. A tile is a block of the grid, so that it is also a chunk of the array in which
a column is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import INT64_MAX, Array, argument_error, dimensions, integer
from icl_theory.engine.interrupts import load_whole
from icl_theory.memory import check_fits, free

if TYPE_CHECKING:
    import xarray

T = TypeVar("T")
PENDING, FAILED = "pending", "failed"
REACHED, NOT_REACHED = "reached", "not reached"
DONE = REACHED, NOT_REACHED, FAILED
# by the first letter of a dtype
FILL: dict[str, Any] = {
    "f": math.nan,
    "i": -1,
    "U": "",
    "O": "",
}
LARGEST_CHUNK = 2**20  # points of a tile
LONGEST = 1000  # characters of a text that is kept
Values = dict[str, NDArray[Any]]
# xarray loads all of them for its first dataset
LABELLED = (
    "numpy.ma",
    "pandas",
    "xarray",
    "dask.array",
)


class Column(NamedTuple):
    """A quantity per point: name, NumPy dtype ("f8", "i8", "i1", "U12" or "O" for text), unit and description.

    Where a point has no value it is NaN, -1 or the empty text. ``symbol`` and ``tex``
    are how it is written. Its role says what tables and figures make of it: "steps",
    "phase", "word", "verdict" (1 holds, 0 fails, -1 does not apply), "predicted",
    "boundary", "status" or "detail"; ``extra`` are further attributes: ("table", 1)
    puts a word or a detail into tables, where any point has a value.
    """

    name: str
    dtype: str
    unit: str
    description: str
    symbol: str = ""
    tex: str = ""
    role: str = "detail"
    extra: tuple[tuple[str, Any], ...] = ()


class Axis(NamedTuple):
    """A parameter: name, values, unit, description, and whether it is a dimension or one fixed value.

    The values are float64, int64 or words. ``symbol`` and ``tex`` are how the parameter
    is written.
    """

    name: str
    values: NDArray[Any]
    unit: str
    description: str
    swept: bool
    symbol: str = ""
    tex: str = ""

    @property
    def plain(self) -> NDArray[Any]:
        """Words, or numbers as float64."""
        return (
            self.values
            if self.values.dtype.kind == "U"
            else self.values.astype(np.float64)
        )


_WHAT = f'what became of the point; "{FAILED}" with a message, "{PENDING}" if not run'
STATUS = Column("status", "U12", "", _WHAT, role="status")
MESSAGE = Column(
    "message",
    "O",
    "",
    "why the point failed, or why its run stopped where that is not its target",
)


@dataclass(frozen=True)
class Grid:
    """The product of some axes, in C order, cut into tiles.

    Parameters
    ----------
    axes : tuple of Axis
        The last one varies fastest.
    chunk : int
        Largest number of points in a tile, up to 2**20. There are at most 2**17 tiles,
        and fewer if more than four axes are swept.

    Examples
    --------
    >>> import numpy as np
    >>> from icl_theory.sweeps.grid import Axis, Grid
    >>> axes = [Axis(name, np.arange(3.0), "", "a number", True) for name in "xy"]
    >>> grid = Grid(tuple(axes), chunk=7)
    >>> grid.tile, grid.chunks, grid.where(1)
    ((2, 3), 2, array([6, 7, 8]))
    """

    axes: tuple[Axis, ...]
    chunk: int

    def __post_init__(self) -> None:
        integer("chunk", self.chunk, minimum=1, maximum=LARGEST_CHUNK)
        integer("points", self.size, minimum=1, maximum=INT64_MAX)
        if self.chunks > (most := _most_chunks(self.axes)):
            raise argument_error(
                "points",
                self.size,
                f"in at most {most:,} chunks, not in {self.chunks:,}",
            )

    @classmethod
    def cut(cls, axes: tuple[Axis, ...], chunk: int) -> Grid:
        """Return a grid in tiles of ``chunk`` points, or of more if that makes too many tiles."""
        # a tile has more than half of ``chunk``,
        size = math.prod(len(axis.values) for axis in axes)
        # and the last along an axis may have one point
        enough = 4 * size // _most_chunks(axes)
        return cls(axes, min(max(chunk, enough), LARGEST_CHUNK))

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return tuple(len(axis.values) for axis in self.axes)

    @property
    def size(self) -> int:
        """Number of points."""
        return math.prod(self.shape)

    @cached_property
    def tile(self) -> tuple[int, ...]:
        """Lengths of a tile: as many points of the last axis as there may be, then of the one before."""
        lengths = []
        left = self.chunk
        for length in reversed(self.shape):
            lengths.append(min(length, left))
            left //= lengths[-1]
        return tuple(reversed(lengths))

    @cached_property
    def tiles(self) -> tuple[int, ...]:
        """Number of tiles along each axis."""
        return tuple(
            -(-length // part)
            for length, part in zip(self.shape, self.tile, strict=True)
        )

    @property
    def chunks(self) -> int:
        """Number of tiles."""
        return math.prod(self.tiles)

    def of_swept(self, each: Iterable[T]) -> tuple[T, ...]:
        """Return, of something for every axis, what belongs to the dimensions."""
        return tuple(
            value for value, axis in zip(each, self.axes, strict=True) if axis.swept
        )

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Numbers of points of the tiles, (chunks,)."""
        found = np.ones((), dtype=np.int64)
        for length, part, tiles in zip(self.shape, self.tile, self.tiles, strict=True):
            found = np.multiply.outer(
                found, np.minimum(part, length - part * np.arange(tiles))
            )
        return found.ravel()

    def region(self, chunk: int) -> tuple[slice, ...]:
        """Return the block of the grid that a tile is, a slice an axis."""
        places = np.unravel_index(chunk, self.tiles)
        each = zip(places, self.tile, self.shape, strict=True)
        return tuple(
            slice(int(i) * part, min((int(i) + 1) * part, length))
            for i, part, length in each
        )

    def where(self, chunk: int) -> NDArray[np.int64]:
        """Return the flat indices of the points of a tile, (P,), in C order within it."""
        return np.ravel_multi_index(np.ogrid[self.region(chunk)], self.shape).ravel()

    def points(self, index: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return the parameters of some points, by name: words, or numbers as float64."""
        places = np.unravel_index(index, self.shape)
        return {
            axis.name: axis.plain[i] for axis, i in zip(self.axes, places, strict=True)
        }

    def points_of(self, chunk: int, plain: bool = True) -> dict[str, NDArray[Any]]:
        """Return the parameters of the points of a tile, in C order; if not ``plain`` whole ones are int64."""
        each = zip(self.axes, self.region(chunk), strict=True)
        parts = [(axis.plain if plain else axis.values)[part] for axis, part in each]
        values = np.meshgrid(*parts, indexing="ij", copy=False)
        return {
            axis.name: value.ravel()
            for axis, value in zip(self.axes, values, strict=True)
        }


def _most_chunks(axes: tuple[Axis, ...], most: int = 2**17) -> int:
    """Return how many tiles a grid may have: what is larger than memory is cut anew along each dimension.

    Up to ``most`` no grid takes long to open.
    """
    return 4 * most // max(4, sum(axis.swept for axis in axes))


def blank(columns: tuple[Column, ...], size: int) -> Values:
    """Return columns without values, status and message among them."""
    check_fits("points", size, bytes_of(columns, size))
    return {name: values.copy() for name, values in uniform(columns, size, {}).items()}


def empty(column: Column) -> Any:
    """Return what a column has where nothing is computed yet."""
    return PENDING if column == STATUS else FILL[column.dtype[0]]


def uniform(
    columns: tuple[Column, ...], size: int, values: Mapping[str, Any]
) -> Values:
    """Return columns of values, one for all points or one each, or of none where none are given: read-only."""
    every = (*columns, STATUS, MESSAGE)
    each = (
        (column, values.get(column.name, FILL[column.dtype[0]])) for column in every
    )
    return {
        column.name: np.broadcast_to(np.asarray(value, dtype=column.dtype), size)
        for column, value in each
    }


def as_block(values: NDArray[Any], lengths: tuple[int, ...]) -> NDArray[Any]:
    """Return a column of a tile, or the one value that stands for it, in the shape of the tile."""
    return values if values.size == 1 else values.reshape(lengths)


def once(values: NDArray[Any]) -> NDArray[Any]:
    """Return a column of a tile, (P,), as one value, (1,), where it has the same bits at all points."""
    bits = values.view(np.int64) if values.dtype.kind == "f" else values
    # a column that varies mostly does so at its ends
    return values[:1] if bits[-1] == bits[0] and (bits == bits[0]).all() else values


def bytes_of(columns: Iterable[Column], size: int) -> float:
    """Return how much memory some points take, less their messages."""
    return float(size) * sum(
        np.dtype(column.dtype).itemsize for column in (*columns, STATUS, MESSAGE)
    )


def room(most: float, share: float = 0.25) -> float:
    """Return how many bytes results may take at once: a share of what is free, as tables and figures take more."""
    return min(most, share * free())


def is_large(columns: tuple[Column, ...], grid: Grid, most: float = 2**30) -> bool:
    """Whether results take more than ``most`` bytes, or than is free, so that they are better left in a store."""
    return bytes_of(columns, grid.size) > room(most)


class Filled:
    """Columns of a grid that are filled tile by tile."""

    def __init__(self, columns: tuple[Column, ...], grid: Grid) -> None:
        check_fits("points", grid.size, bytes_of(columns, grid.size))
        self._grid = grid
        self._columns = (*columns, STATUS, MESSAGE)
        self._held = {
            column.name: np.full(grid.shape, empty(column), dtype=column.dtype)
            for column in self._columns
        }

    def place(
        self, chunk: int, values: Values | Iterable[tuple[str, NDArray[Any]]]
    ) -> None:
        """Put the columns of a tile, (P,) each or as `once` gives them, into their places: all of them or none."""
        region = self._grid.region(chunk)
        columns = values.items() if isinstance(values, dict) else values
        try:
            for name, column_values in columns:
                held = self._held[name]
                held[region] = as_block(column_values, held[region].shape)
        except KeyboardInterrupt:
            for column in self._columns:
                self._held[column.name][region] = empty(column)
            raise

    def values(self) -> Values:
        """Return every column, (size,)."""
        return {name: held.ravel() for name, held in self._held.items()}


def assembled(
    grid: Grid,
    columns: tuple[Column, ...],
    values: Values,
    attributes: Mapping[str, Any],
) -> xarray.Dataset:
    """Return evaluated columns as a labelled dataset with ``attributes``.

    Swept axes are dimensions, fixed ones scalar coordinates. Each column is a variable;
    its unit and description are attributes. ``values`` are as from `evaluate`, or in
    the shape of the swept axes.
    """
    load_whole(*LABELLED)
    import xarray

    swept = [axis for axis in grid.axes if axis.swept]
    shape = tuple(len(axis.values) for axis in swept)
    coordinates: dict[str, Any] = {}
    for axis in grid.axes:
        meta = described(axis)
        coordinates[axis.name] = (
            (axis.name, axis.values, meta) if axis.swept else ((), axis.values[0], meta)
        )
    names = [axis.name for axis in swept]
    variables = {
        # as they are: xarray would look for types of its own among a million messages
        column.name: xarray.Variable(
            names, values[column.name].reshape(shape), described(column), fastpath=True
        )
        for column in (*columns, STATUS, MESSAGE)
    }
    return xarray.Dataset(variables, coords=coordinates, attrs=dict(attributes))


def described(quantity: Axis | Column) -> dict[str, Any]:
    """Return what a quantity says of itself as attributes of a labelled array; what it does not say is left out."""
    said = {"units": quantity.unit, "description": quantity.description}
    said |= {"symbol": quantity.symbol, "tex": quantity.tex}
    found = {name: text for name, text in said.items() if text or name == "description"}
    return (
        found | {"role": quantity.role} | dict(quantity.extra)
        if isinstance(quantity, Column)
        else found
    )


def axis_values(
    name: str, given: Any, check_all: Callable[[Iterable[Any]], Sequence[Any]]
) -> tuple[NDArray[Any], bool]:
    """Return the values of an axis, all different, and whether it is swept (False for a scalar).

    ``check_all`` returns the values if they are allowed numbers or words, and refuses
    them otherwise.
    """
    if isinstance(given, str | bytes) or dimensions(given) == 0:
        return _array(check_all([given])), False
    if dimensions(given) > 1:
        raise argument_error(
            name, given, "one value or a one-dimensional sequence of them"
        )
    values = _array(check_all(given))
    if not values.size:
        raise argument_error(name, given, "a sequence of at least one value")
    found, count = np.unique(values, return_counts=True)
    if found.size < values.size:
        twice = found[count > 1][0]
        shown = repr(str(twice)) if values.dtype.kind == "U" else f"{twice:.15g}"
        raise argument_error(
            name, given, f"a sequence without duplicates ({shown} occurs twice)"
        )
    return values, True


def _array(values: Sequence[Any]) -> NDArray[Any]:
    return np.asarray(
        values,
        dtype=np.str_ if len(values) and isinstance(values[0], str) else np.float64,
    )


def whole_numbers(values: Array) -> NDArray[Any]:
    """Return finite values of a parameter that counts something as int64, others as they are."""
    exact = np.isfinite(values).all() and (np.abs(values) < 2.0**63).all()
    return values.astype(np.int64) if exact else values
