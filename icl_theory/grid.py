"""Grids of parameters evaluated in chunks, on any executor: what knows no model.

A grid is cut into chunks of a fixed size, whatever the number of workers, and every chunk is evaluated with one
BLAS thread and put in its place: results have the same bits however they were computed. A point that fails is
recorded with its message and the rest goes on.
"""

from __future__ import annotations

import contextlib
import math
import os
import uuid
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array, dimensions, refuse

if TYPE_CHECKING:
    import xarray

WINDOW = 1024  # chunks handed to an executor at a time
_HOME = uuid.uuid4().hex  # tells this process from workers on machines with the same process numbers
PENDING, FAILED = "pending", "failed"
REACHED, NOT_REACHED = "reached", "not reached"
Values = dict[str, NDArray[Any]]
Progress = Callable[[int, int], None]


class Column(NamedTuple):
    """A quantity per point: name, NumPy dtype ("f8", "i8", "U12" or "O" for text), unit and description.

    Where a point has no value it is NaN, -1 or the empty text. Its symbol is plain text or TeX, and its role says
    what tables and figures make of it: "steps", "phase", "word", "verdict" (1 holds, 0 fails, -1 does not apply),
    "predicted", "boundary" or "detail"; ``extra`` are further attributes.
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

    Values are numbers or words; ``limits`` are those of d ln T/d ln x at small and at large x, where known.
    """

    name: str
    values: NDArray[Any]
    unit: str
    description: str
    swept: bool
    symbol: str = ""
    tex: str = ""
    limits: tuple[float, float] | None = None


STATUS = Column(
    "status",
    "U12",
    "",
    f'what became of the point; "{FAILED}" with a message, "{PENDING}" if not run',
    role="status",
)
MESSAGE = Column("message", "O", "", "why the point failed, or why its run stopped where that is not its target")


class Model(Protocol):
    """What can be swept; it must be picklable to be evaluated by other processes."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """What it gives per point, besides ``STATUS`` and ``MESSAGE``."""

    def evaluate(self, points: Mapping[str, Array]) -> Values:
        """Return every column, status and message, from the parameters of some points, (P,) each."""


class Storage(Protocol):
    """Where chunks are kept between runs, see ``icl_theory.store``."""

    done: NDArray[np.bool_]

    def write(self, chunk: int, values: Values) -> None:
        """Keep a chunk, whole or not at all."""

    def read(self, chunk: int) -> Values:
        """Return a chunk that was kept."""


@dataclass(frozen=True)
class Grid:
    """The product of some axes, in C order, cut into chunks.

    Parameters
    ----------
    axes : tuple of Axis
        The last one varies fastest.
    chunk : int
        Points a chunk.
    """

    axes: tuple[Axis, ...]
    chunk: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return tuple(len(axis.values) for axis in self.axes)

    @property
    def size(self) -> int:
        """Number of points."""
        return math.prod(self.shape)

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return -(-self.size // self.chunk)

    def span(self, chunk: int) -> slice:
        """Return the flat indices of a chunk."""
        return slice(chunk * self.chunk, min((chunk + 1) * self.chunk, self.size))

    def points(self, span: slice) -> dict[str, Array]:
        """Return the parameters of some points, by name."""
        index = np.unravel_index(np.arange(span.start, span.stop), self.shape)
        return {axis.name: axis.values[i] for axis, i in zip(self.axes, index, strict=True)}


class Evaluated(NamedTuple):
    """What `evaluate` returns: the columns, flat, and whether it was interrupted."""

    values: Values
    interrupted: bool


def evaluate(
    grid: Grid,
    model: Model,
    *,
    executor: Executor | None = None,
    storage: Storage | None = None,
    progress: Progress | None = None,
) -> Evaluated:
    """Evaluate a model at every point of a grid.

    Parameters
    ----------
    grid : Grid
        The points.
    model : Model
        What to evaluate.
    executor : concurrent.futures.Executor, optional
        Who evaluates the chunks; this process does unless given.
    storage : Storage, optional
        Chunks it has are not evaluated; new ones are added to it as they are finished.
    progress : callable, optional
        Called with the numbers of points done and in all, first with those that the storage has.

    Returns
    -------
    Evaluated
        On Ctrl-C with what is done; the other points have the status "pending".

    Raises
    ------
    ChildProcessError
        A worker of the executor died, and no other took over.

    Examples
    --------
    >>> import numpy as np
    >>> from icl_theory.grid import Axis, Column, Grid, blank, evaluate
    >>> class Square:
    ...     columns = (Column("square", "f8", "", "x²"),)
    ...     def evaluate(self, points):
    ...         values = blank(self.columns, len(points["x"]))
    ...         values["square"], values["status"][:] = points["x"] ** 2, "done"
    ...         return values
    >>> grid = Grid((Axis("x", np.arange(4.0), "", "a number", True),), chunk=2)
    >>> evaluate(grid, Square()).values["square"]
    array([0., 1., 4., 9.])
    """
    values = blank(model.columns, grid.size)
    values[STATUS.name][:] = PENDING
    finished = 0
    todo = []

    def place(chunk: int, part: Values) -> None:
        nonlocal finished
        span = grid.span(chunk)
        for name, column in values.items():
            column[span] = part[name]
        finished += span.stop - span.start

    from threadpoolctl import threadpool_limits

    interrupted = False
    try:
        for chunk in range(grid.chunks):
            if storage is not None and storage.done[chunk]:
                place(chunk, storage.read(chunk))
            else:
                todo.append(chunk)
        if progress is not None:
            progress(finished, grid.size)
        # the order in which BLAS adds depends on its threads: one in this process, and in those of the workers
        with threadpool_limits(limits=1), contextlib.closing(_parts(grid, model, todo, executor)) as parts:
            for chunk, part, keep in parts:
                if storage is not None and keep:
                    storage.write(chunk, part)
                place(chunk, part)
                if progress is not None:
                    progress(finished, grid.size)
    except KeyboardInterrupt:
        interrupted = True
    return Evaluated(values, interrupted)


def _parts(
    grid: Grid, model: Model, todo: list[int], executor: Executor | None
) -> Generator[tuple[int, Values, bool], None, None]:
    """Chunks as they are finished, each with its number and whether it is worth keeping."""
    home = _HOME, os.getpid()
    if executor is None:
        for chunk in todo:
            yield chunk, _evaluate_chunk(model, grid, chunk, home), True
        return
    waiting = iter(todo)
    running: dict[Future[Values], int] = {}
    try:
        while True:
            while len(running) < WINDOW and (chunk := next(waiting, -1)) >= 0:
                running[executor.submit(_evaluate_chunk, model, grid, chunk, home)] = chunk
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                chunk = running.pop(future)
                try:
                    yield chunk, future.result(), True
                except (BrokenExecutor, CancelledError) as error:
                    raise ChildProcessError(f"the workers are gone: {_one_line(error)}") from None
                except Exception as error:  # of the executor: the model's own are recorded by point
                    span = grid.span(chunk)
                    yield chunk, failed(model.columns, span.stop - span.start, error), False
    except BrokenExecutor as error:  # on submission
        raise ChildProcessError(f"the workers are gone: {_one_line(error)}") from None
    finally:
        for future in running:
            future.cancel()


def _evaluate_chunk(model: Model, grid: Grid, chunk: int, home: tuple[str, int]) -> Values:
    if home != (_HOME, os.getpid()):
        _one_blas_thread_for_good(os.getpid())
    return _attempt(model, grid.points(grid.span(chunk)))


def _attempt(model: Model, points: Mapping[str, Array]) -> Values:
    """Evaluate some points; where the model fails, halve them until those at fault are found."""
    size = len(next(iter(points.values())))
    try:
        return model.evaluate(points)
    except Exception as error:
        if size == 1:
            return failed(model.columns, 1, error)
    halves = [
        _attempt(model, {name: value[part] for name, value in points.items()})
        for part in (slice(0, size // 2), slice(size // 2, size))
    ]
    return {name: np.concatenate([half[name] for half in halves]) for name in halves[0]}


def blank(columns: tuple[Column, ...], size: int) -> Values:
    """Return columns without values, status and message among them."""
    fill: dict[str, Any] = {"f": np.nan, "i": -1, "U": "", "O": ""}
    every = (*columns, STATUS, MESSAGE)
    return {column.name: np.full(size, fill[column.dtype[0]], dtype=column.dtype) for column in every}


def failed(columns: tuple[Column, ...], size: int, error: Exception) -> Values:
    """Return the columns of points that failed with an error."""
    values = blank(columns, size)
    values[STATUS.name][:] = FAILED
    values[MESSAGE.name][:] = _one_line(error)
    return values


def point_by_point(
    columns: tuple[Column, ...], points: Mapping[str, Array], measure: Callable[..., Mapping[str, Any]]
) -> Values:
    """Evaluate points one by one: ``measure(**point)`` gives the columns; where it fails the point does.

    Parameters
    ----------
    columns : tuple of Column
        What ``measure`` gives.
    points : mapping of str to ndarray, each (P,)
        Parameters by name.
    measure : callable
        Takes the parameters of one point by name, returns its columns.

    Returns
    -------
    dict of str to ndarray, each (P,)
        The columns, status and message among them.

    Examples
    --------
    >>> import numpy as np
    >>> from icl_theory.grid import Column, point_by_point
    >>> columns = (Column("inverse", "f8", "", "1/x"),)
    >>> found = point_by_point(columns, {"x": np.array([2.0, 0.0])}, lambda x: {"inverse": 1 / float(x)})
    >>> found["inverse"].tolist(), found["message"].tolist()
    ([0.5, nan], ['', 'ZeroDivisionError: float division by zero'])
    """
    size = len(next(iter(points.values())))
    values = blank(columns, size)
    for i in range(size):
        try:
            found = measure(**{name: value[i] for name, value in points.items()})
        except Exception as error:
            found = {STATUS.name: FAILED, MESSAGE.name: _one_line(error)}
        for name, value in found.items():
            values[name][i] = value
    return values


def assembled(
    grid: Grid, columns: tuple[Column, ...], values: Values, attributes: Mapping[str, Any]
) -> xarray.Dataset:
    """Return evaluated columns as a labelled dataset: swept axes are dimensions, fixed ones scalar coordinates.

    Parameters
    ----------
    grid : Grid
        Where they were evaluated.
    columns : tuple of Column
        What they are; units and descriptions become attributes.
    values : dict of str to ndarray, each (size,)
        As from `evaluate`.
    attributes : mapping
        Of the dataset.

    Returns
    -------
    xarray.Dataset
        A variable for each column.
    """
    import xarray

    swept = [axis for axis in grid.axes if axis.swept]
    shape = tuple(len(axis.values) for axis in swept)
    coordinates: dict[str, Any] = {}
    for axis in grid.axes:
        meta = _meta(axis.unit, axis.description, axis.symbol, axis.tex)
        if axis.limits is not None:
            meta["limits"] = list(axis.limits)
        coordinates[axis.name] = (axis.name, axis.values, meta) if axis.swept else ((), axis.values[0], meta)
    names = [axis.name for axis in swept]
    variables = {
        column.name: (
            names,
            values[column.name].reshape(shape),
            _meta(column.unit, column.description, column.symbol, column.tex)
            | {"role": column.role}
            | dict(column.extra),
        )
        for column in (*columns, STATUS, MESSAGE)
    }
    return xarray.Dataset(variables, coords=coordinates, attrs=dict(attributes))


def axis_values(name: str, given: Any, check: Callable[[Any], float]) -> tuple[Array, bool]:
    """Return the values of an axis and whether it is swept: a scalar is not. No value may occur twice.

    Examples
    --------
    >>> from icl_theory.grid import axis_values
    >>> axis_values("K", [5, 20], float)
    (array([ 5., 20.]), True)
    """
    if isinstance(given, str | bytes):
        raise refuse(name, given, "a number or a sequence of numbers")
    if dimensions(given) == 0:
        return np.array([check(given)]), False
    if dimensions(given) > 1:
        raise refuse(name, given, "a number or a one-dimensional sequence of numbers")
    values = np.array([check(value) for value in given], dtype=np.float64)
    if not values.size:
        raise refuse(name, given, "a sequence of at least one number")
    found, count = np.unique(values, return_counts=True)
    if found.size < values.size:
        raise refuse(name, given, f"a sequence without duplicates ({found[count > 1][0]:.15g} occurs twice)")
    return values, True


def _meta(unit: str, description: str, symbol: str, tex: str) -> dict[str, Any]:
    found = {"units": unit, "description": description, "symbol": symbol, "tex": tex}
    return {name: text for name, text in found.items() if text}


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    plain = isinstance(error, ValueError) and text
    return (text if plain else f"{type(error).__name__}: {text}".rstrip(": "))[:500]


@cache
def _one_blas_thread_for_good(pid: int) -> None:
    """Limit a worker process, once."""
    from threadpoolctl import threadpool_limits

    threadpool_limits(limits=1)
