"""Grids of parameters: axes, columns, and the tiles in which grids are evaluated.

A grid is cut into tiles of at most a given number of points, which does not depend on
the number of workers. A tile is a block of the grid, so that it is also a chunk of the
array in which a column is kept. The argument ``chunk`` of a method is the number of a
tile, counted from 0 in C order. Only the field ``chunk`` of `Grid` and the argument of
`Grid.cut` are a number of points, the largest in a tile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import (
    EXACT,
    INT64_MAX,
    Array,
    argument_error,
    dimensions,
    integer,
)
from icl_theory.engine.interrupts import load_whole
from icl_theory.memory import check_fits, free

if TYPE_CHECKING:
    import xarray

T = TypeVar("T")
# The statuses of a point: not evaluated yet; ended by an error; run until it reached
# its target; run until it ended for another reason.
PENDING, FAILED = "pending", "failed"
REACHED, NOT_REACHED = "reached", "not reached"
# The statuses of a point that was evaluated.
DONE = REACHED, NOT_REACHED, FAILED
# The missing value of a column, by the first letter of its dtype.
FILL: dict[str, Any] = {
    "f": math.nan,
    "i": -1,
    "U": "",
    "O": "",
}
# The largest number of points in a tile. With 8 bytes a value, each column of such a
# tile takes 8 MiB.
LARGEST_CHUNK = 2**20
# The largest number of characters of a message that is kept, so that long messages
# cannot fill a store.
LONGEST = 1000
# The columns of some points by name. A column has one value for each point, or a single
# value for all of them (see `once`).
Values = dict[str, NDArray[Any]]
# Modules that xarray loads for its first dataset. `load_whole` loads them beforehand,
# so that Ctrl-C cannot leave one of them half loaded.
LABELLED = (
    "numpy.ma",
    "pandas",
    "xarray",
    "dask.array",
)


class Column(NamedTuple):
    """A quantity that is measured at each point of a sweep.

    Parameters
    ----------
    name : str
        The name in datasets and stores.
    dtype : str
        The NumPy dtype: "f8", "i8", "i1", "U12" or the like, or "O" for text of any
        length. A missing value is NaN, -1 or the empty text.
    unit, description : str
        The unit and the description, which are attributes in a dataset.
    symbol, tex : str
        The symbol in tables and figures, as text and as TeX.
    role : str
        The use in tables and figures: "steps", "phase", "word", "verdict" (1 holds, 0
        fails, -1 does not apply), "predicted", "boundary", "set" (for training on a
        fixed set of prompts), "status" or "detail".
    extra : tuple of pairs
        Further attributes. ``("table", 1)`` puts a word into tables, and a detail if
        any point has a value.
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
    """A parameter of a grid.

    Parameters
    ----------
    name : str
        The name of the parameter.
    values : array
        The values: float64, int64 or words.
    unit, description : str
        The unit and the description, which are attributes in a dataset.
    swept : bool
        True for a dimension of the results, False for one fixed value.
    symbol, tex : str
        The symbol in tables and figures, as text and as TeX.
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
        """The values as words or, if they are numbers, as float64."""
        if self.values.dtype.kind == "U":
            return self.values
        return self.values.astype(np.float64)


STATUS = Column(
    "status",
    "U12",
    "",
    f'what became of the point; "{FAILED}" with a message, "{PENDING}" if not run',
    role="status",
)
MESSAGE = Column(
    "message",
    "O",
    "",
    "why the point failed, or why its run stopped before the target",
)


@dataclass(frozen=True)
class Grid:
    """The product of some axes, in C order, cut into tiles.

    Parameters
    ----------
    axes : tuple of Axis
        The axes; the last one varies fastest.
    chunk : int
        Largest number of points in a tile, up to 2**20. It must be large enough that
        there are at most 2**17 tiles, or fewer if more than four axes are swept.

    Examples
    --------
    >>> import numpy as np
    >>> from icl_theory.sweeps.grid import Axis, Grid
    >>> numbers = np.arange(3.0)
    >>> x = Axis("x", numbers, unit="", description="a number", swept=True)
    >>> y = Axis("y", numbers, unit="", description="a number", swept=True)
    >>> grid = Grid((x, y), chunk=7)
    >>> grid.tile, grid.chunks, grid.indices_of(1)
    ((2, 3), 2, array([6, 7, 8]))
    """

    axes: tuple[Axis, ...]
    chunk: int

    def __post_init__(self) -> None:
        integer("chunk", self.chunk, minimum=1, maximum=LARGEST_CHUNK)
        integer("points", self.size, minimum=1, maximum=INT64_MAX)
        most_tiles = _most_chunks(self.axes)
        if self.chunks > most_tiles:
            raise argument_error(
                "points",
                self.size,
                f"in at most {most_tiles:,} chunks, not in {self.chunks:,}",
            )

    @classmethod
    def cut(cls, axes: tuple[Axis, ...], chunk: int) -> Grid:
        """Cut a grid into tiles of at most ``chunk`` points.

        If these tiles might be too many for a grid, larger ones are allowed.
        """
        size = math.prod(len(axis.values) for axis in axes)
        # There are at most four times as many tiles as size / chunk. A factor of up to
        # 2 comes from tiles that have little more than half of ``chunk`` points, and
        # another factor of up to 2 from the last tile along an axis, which may have a
        # single point.
        large_enough = 4 * size // _most_chunks(axes)
        return cls(axes, min(max(chunk, large_enough), LARGEST_CHUNK))

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
        """Lengths of a tile along the axes.

        A tile is as long as possible along the last axis, then along the axis before
        it, and so on.
        """
        lengths = []
        available = self.chunk
        for axis_length in reversed(self.shape):
            length = min(axis_length, available)
            lengths.append(length)
            available //= length
        return tuple(reversed(lengths))

    @cached_property
    def tiles(self) -> tuple[int, ...]:
        """Number of tiles along each axis."""
        counts = []
        for axis_length, tile_length in zip(self.shape, self.tile, strict=True):
            # axis_length / tile_length, rounded up
            counts.append(-(-axis_length // tile_length))
        return tuple(counts)

    @property
    def chunks(self) -> int:
        """Number of tiles."""
        return math.prod(self.tiles)

    def of_swept(self, items: Iterable[T]) -> tuple[T, ...]:
        """Return the items of swept axes; ``items`` has one for each axis."""
        pairs = zip(items, self.axes, strict=True)
        return tuple(item for item, axis in pairs if axis.swept)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Numbers of points of the tiles, (chunks,)."""
        sizes = np.ones((), dtype=np.int64)
        for axis_length, tile_length, tile_count in zip(
            self.shape, self.tile, self.tiles, strict=True
        ):
            # The last tile along an axis may be shorter: it has the remaining points.
            remaining = axis_length - tile_length * np.arange(tile_count)
            lengths = np.minimum(tile_length, remaining)
            # The size of a tile is the product of its lengths along all axes.
            sizes = np.multiply.outer(sizes, lengths)
        return sizes.ravel()

    def region(self, chunk: int) -> tuple[slice, ...]:
        """Return the block of the grid that a tile covers, as a slice of each axis."""
        slices = []
        # The number of the tile along each axis, from 0.
        positions = np.unravel_index(chunk, self.tiles)
        for position, tile_length, axis_length in zip(
            positions, self.tile, self.shape, strict=True
        ):
            start = int(position) * tile_length
            slices.append(slice(start, min(start + tile_length, axis_length)))
        return tuple(slices)

    def indices_of(self, chunk: int) -> NDArray[np.int64]:
        """Return the flat indices of the points of a tile, (P,), in C order."""
        # The indices along each axis, in shapes that broadcast to the tile.
        indices_along_axes = np.ogrid[self.region(chunk)]
        return np.ravel_multi_index(indices_along_axes, self.shape).ravel()

    def points(self, index: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return the parameters of points by name, (P,) each; numbers are float64.

        ``index``, (P,), has the flat indices of the points.
        """
        parameters = {}
        indices_along_axes = np.unravel_index(index, self.shape)
        for axis, axis_index in zip(self.axes, indices_along_axes, strict=True):
            parameters[axis.name] = axis.plain[axis_index]
        return parameters

    def points_of(self, chunk: int, plain: bool = True) -> dict[str, NDArray[Any]]:
        """Return the parameters of the points of a tile by name, (P,) each, in C order.

        Numbers are float64. If ``plain`` is False, whole numbers are int64.
        """
        values_in_tile = []
        for axis, part in zip(self.axes, self.region(chunk), strict=True):
            values = axis.plain if plain else axis.values
            values_in_tile.append(values[part])
        # Every parameter in the shape of the tile.
        grids = np.meshgrid(*values_in_tile, indexing="ij", copy=False)
        return {
            axis.name: parameter.ravel()
            for axis, parameter in zip(self.axes, grids, strict=True)
        }


def _most_chunks(axes: tuple[Axis, ...], most: int = 2**17) -> int:
    """Return the largest number of tiles that a grid may have.

    Opening results that are larger than memory takes a time in proportion to the number
    of tiles times the number of dimensions (the swept axes). This time is short with
    ``most`` tiles and four dimensions. With more dimensions, fewer tiles are allowed,
    so that the product does not exceed four times ``most``.
    """
    swept_axes = sum(axis.swept for axis in axes)
    return 4 * most // max(4, swept_axes)


def blank(columns: tuple[Column, ...], size: int) -> Values:
    """Return writable columns of ``size`` missing values, with status and message.

    Columns that do not fit into memory are refused.
    """
    check_fits("points", size, bytes_of(columns, size))
    return {name: values.copy() for name, values in uniform(columns, size, {}).items()}


def empty(column: Column) -> Any:
    """Return the value of a column at a point that is not computed yet."""
    return PENDING if column.name == STATUS.name else FILL[column.dtype[0]]


def uniform(
    columns: tuple[Column, ...], size: int, values: Mapping[str, Any]
) -> Values:
    """Return read-only columns of ``size`` points, with status and message.

    ``values`` has, by the name of a column, one value for all points, or one for each
    point. A column that is not in ``values`` gets its missing value.
    """
    result = {}
    for column in (*columns, STATUS, MESSAGE):
        value = values.get(column.name, FILL[column.dtype[0]])
        array = np.asarray(value, dtype=column.dtype)
        result[column.name] = np.broadcast_to(array, size)
    return result


def as_block(values: NDArray[Any], lengths: tuple[int, ...]) -> NDArray[Any]:
    """Return a column of a tile in the shape of the tile, ``lengths``.

    A column of a single value, as from `once`, is returned as it is: NumPy broadcasts
    it when it is assigned to a block.
    """
    return values if values.size == 1 else values.reshape(lengths)


def once(values: NDArray[Any]) -> NDArray[Any]:
    """Return a column of a tile, (P,), or its only value, (1,), if it is constant."""
    # Floats are compared by their bits, so that NaN equals itself and 0 differs from
    # -0.
    bits = values.view(np.int64) if values.dtype.kind == "f" else values
    # In most columns that vary, the first and the last value differ, which is quick to
    # test.
    if bits[-1] != bits[0]:
        return values
    is_constant = (bits == bits[0]).all()
    return values[:1] if is_constant else values


def bytes_of(columns: Iterable[Column], size: int) -> float:
    """Return how many bytes ``size`` points take, without the texts of messages."""
    every_column = (*columns, STATUS, MESSAGE)
    per_point = sum(np.dtype(column.dtype).itemsize for column in every_column)
    return float(size) * per_point


def memory_limit(most: float, share: float = 0.25) -> float:
    """Return how many bytes results may take: ``most``, or less if memory is short.

    The number is at most ``share`` of the free memory, because tables and figures of
    the results need memory, too. The default of a quarter is a rough choice.
    """
    return min(most, share * free())


def is_large(columns: tuple[Column, ...], grid: Grid, most: float = 2**30) -> bool:
    """Whether results take so much memory that they are better left in a store.

    The limit is ``most`` bytes, by default 1 GiB, or a quarter of the free memory if
    that is less.
    """
    return bytes_of(columns, grid.size) > memory_limit(most)


class Filled:
    """Columns of a grid, filled tile by tile; at first every point is pending."""

    def __init__(self, columns: tuple[Column, ...], grid: Grid) -> None:
        check_fits("points", grid.size, bytes_of(columns, grid.size))
        self._grid = grid
        self._columns = (*columns, STATUS, MESSAGE)
        self._arrays = {
            column.name: np.full(grid.shape, empty(column), dtype=column.dtype)
            for column in self._columns
        }

    def place(
        self, chunk: int, values: Values | Iterable[tuple[str, NDArray[Any]]]
    ) -> None:
        """Put the columns of a tile into their places.

        A column is an array (P,), or its only value, (1,), if it is constant. If Ctrl-C
        interrupts the method, the tile becomes pending again: a point must not have
        only some of its columns.
        """
        region = self._grid.region(chunk)
        columns = values.items() if isinstance(values, dict) else values
        try:
            for name, column_values in columns:
                array = self._arrays[name]
                array[region] = as_block(column_values, array[region].shape)
        except KeyboardInterrupt:
            for column in self._columns:
                self._arrays[column.name][region] = empty(column)
            raise

    def values(self) -> Values:
        """Return every column by name, as an array of all points in C order."""
        return {name: array.ravel() for name, array in self._arrays.items()}


def assembled(
    grid: Grid,
    columns: tuple[Column, ...],
    values: Values,
    attributes: Mapping[str, Any],
) -> xarray.Dataset:
    """Return evaluated columns as a labelled dataset with ``attributes``.

    Swept axes are dimensions, and fixed axes are scalar coordinates. Each column is a
    variable; its unit and description are attributes. ``values`` has the columns by
    name: flat arrays, as `evaluate` returns them, or arrays in the shape of the swept
    axes.
    """
    load_whole(*LABELLED)
    import xarray

    swept = [axis for axis in grid.axes if axis.swept]
    shape = tuple(len(axis.values) for axis in swept)
    coordinates: dict[str, Any] = {}
    for axis in grid.axes:
        attrs = described(axis)
        if axis.swept:
            coordinates[axis.name] = (axis.name, axis.values, attrs)
        else:
            coordinates[axis.name] = ((), axis.values[0], attrs)
    dimension_names = [axis.name for axis in swept]
    variables = {}
    for column in (*columns, STATUS, MESSAGE):
        array = values[column.name].reshape(shape)
        # The fast path takes the array as it is. Otherwise xarray would search a
        # million messages for objects that it can convert.
        variables[column.name] = xarray.Variable(
            dimension_names, array, described(column), fastpath=True
        )
    return xarray.Dataset(variables, coords=coordinates, attrs=dict(attributes))


def described(quantity: Axis | Column) -> dict[str, Any]:
    """Return the attributes of a quantity in a dataset, without empty texts."""
    attributes: dict[str, Any] = {}
    if quantity.unit:
        attributes["units"] = quantity.unit
    attributes["description"] = quantity.description
    if quantity.symbol:
        attributes["symbol"] = quantity.symbol
    if quantity.tex:
        attributes["tex"] = quantity.tex
    if isinstance(quantity, Column):
        attributes["role"] = quantity.role
        attributes |= dict(quantity.extra)
    return attributes


def axis_values(
    name: str, argument: Any, check_all: Callable[[Iterable[Any]], Sequence[Any]]
) -> tuple[NDArray[Any], bool]:
    """Return the values of an axis, and whether it is swept.

    An axis is swept if the argument is a sequence, and not if it is a single value.
    Duplicates are refused. ``check_all`` returns the values if they are allowed numbers
    or words, and refuses them otherwise.
    """
    if isinstance(argument, str | bytes) or dimensions(argument) == 0:
        return _array(name, check_all([argument])), False
    if dimensions(argument) > 1:
        raise argument_error(
            name, argument, "one value or a one-dimensional sequence of them"
        )
    values = _array(name, check_all(argument))
    if not values.size:
        raise argument_error(name, argument, "a sequence of at least one value")
    unique, counts = np.unique(values, return_counts=True)
    if unique.size < values.size:
        duplicate = unique[counts > 1][0]
        is_word = values.dtype.kind == "U"
        shown = repr(str(duplicate)) if is_word else f"{duplicate:.15g}"
        raise argument_error(
            name, argument, f"a sequence without duplicates ({shown} occurs twice)"
        )
    return values, True


def _array(name: str, values: Sequence[Any]) -> NDArray[Any]:
    """Return the values of an axis as an array: of texts, or of float64 numbers.

    An integer that a float64 cannot represent is refused.
    """
    are_words = len(values) > 0 and isinstance(values[0], str)
    if are_words:
        return np.asarray(values, dtype=np.str_)
    numbers = np.asarray(values, dtype=np.float64)
    # Every integer up to EXACT is a float64. A larger one may be rounded to another
    # integer, and the sweep would compute another problem. As EXACT + 1 is rounded to
    # EXACT, the float64 numbers alone do not show which integers are too large.
    for value in np.asarray(values)[np.abs(numbers) >= EXACT].tolist():
        if isinstance(value, int) and abs(value) > EXACT:
            raise argument_error(
                name, value, f"at most {EXACT} in a sweep, whose numbers are float64"
            )
    return numbers


def whole_numbers(values: Array) -> NDArray[Any]:
    """Return the values of an integer parameter as int64 if all of them fit into it.

    Values fit if they are finite and less than 2^63 in size. If one value does not fit,
    all values are returned unchanged.
    """
    are_int64 = np.isfinite(values).all() and (np.abs(values) < 2.0**63).all()
    return values.astype(np.int64) if are_int64 else values
