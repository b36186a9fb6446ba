"""Grids evaluated tile by tile, in this process or on any executor.

Every tile is evaluated with one BLAS thread and put in its place, so that results have
the same bits however they were computed. A point that fails is recorded with its
message and the rest goes on.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import math
import os
import uuid
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    wait,
)
from functools import cache, partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from icl_theory.sweeps.grid import (
    FAILED,
    LONGEST,
    MESSAGE,
    STATUS,
    Column,
    Filled,
    Grid,
    Values,
    once,
    uniform,
)
from icl_theory.sweeps.store import Store
from icl_theory.sweeps.stored_columns import ColumnMatch

KEPT = 2**25 - 2**16  # bytes: the largest array that does so
# tells this process from workers on machines with the same process numbers
_HOME = uuid.uuid4().hex
Progress = Callable[[int, int], None]


class Model(Protocol):
    """What can be swept; it must be picklable to be evaluated by other processes."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """What it gives per point, besides ``STATUS`` and ``MESSAGE``."""

    def evaluate(self, points: Mapping[str, NDArray[Any]]) -> Values:
        """Return every column, status and message, from the parameters of some points, (P,) each."""


class Evaluated(NamedTuple):
    """What `evaluate` returns: the columns, flat or in the shape of the grid, and whether it was interrupted."""

    values: Values
    interrupted: bool


def evaluate(
    grid: Grid,
    model: Model,
    *,
    executor: Executor | None = None,
    storage: Store | None = None,
    progress: Progress | None = None,
    hold: bool = True,
) -> Evaluated:
    """Evaluate a model at every point of a grid.

    Parameters
    ----------
    grid, model : Grid, Model
        The points, and what to evaluate there.
    executor : concurrent.futures.Executor, optional
        Who evaluates the chunks; this process unless given.
    storage : Store, optional
        Chunks it has are not evaluated; new ones are added to it as they are finished.
        It keeps the columns that it was made with, and so does the result; columns that
        it lacks are without values.
    progress : callable, optional
        Called with the numbers of points done and in all, first for those of the
        storage, then after every chunk.
    hold : bool
        Return the values, and not only store them.

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
    >>> from icl_theory.sweeps.evaluate import evaluate
    >>> from icl_theory.sweeps.grid import Axis, Column, Grid, blank
    >>> class Square:
    ...     columns = (Column("square", "f8", "", "x²"),)
    ...     def evaluate(self, points):
    ...         values = blank(self.columns, len(points["x"]))
    ...         values["square"], values["status"][:] = points["x"] ** 2, "reached"
    ...         return values
    >>> grid = Grid((Axis("x", np.arange(4.0), "", "a number", True),), chunk=2)
    >>> evaluate(grid, Square()).values["square"]
    array([0., 1., 4., 9.])
    """
    # not touched; that it is freed tells glibc to keep freed memory for the next tile
    np.empty(min(KEPT, 64 * grid.size), dtype=np.uint8)
    stored = model.columns if storage is None else storage.columns
    match = ColumnMatch(stored, model.columns)
    filled = Filled(match.every, grid) if hold else None
    done = np.zeros(grid.chunks, dtype=bool) if storage is None else storage.done.copy()
    finished = int(grid.sizes[done].sum())
    interrupted = False
    beat: Progress = progress or (lambda done, total: None)
    try:
        if filled is not None and storage is not None:
            storage.fill(filled)
        beat(finished, grid.size)
        # the order in which BLAS adds depends on its threads: one in this process, and
        # in those of the workers
        task = partial(_evaluate_chunk, model, grid, (_HOME, os.getpid()))
        evaluated = _parts(grid, model, np.flatnonzero(~done), executor, task)
        with threadpool_limits(limits=1), contextlib.closing(evaluated) as found:
            for chunk, computed, keep in found:
                # so that the result is what the storage gives when it is read again
                values = match.conform(computed)
                if filled is not None:
                    filled.place(chunk, values)
                if storage is not None and keep:
                    storage.write(chunk, values)
                finished += int(grid.sizes[chunk])
                beat(finished, grid.size)
    except KeyboardInterrupt:
        interrupted = True
    return Evaluated({} if filled is None else filled.values(), interrupted)


def _parts(
    grid: Grid,
    model: Model,
    todo: NDArray[np.intp],
    executor: Executor | None,
    task: Callable[[int], Values],
    window: int = 1024,
    points: int = 2**24,
) -> Generator[tuple[int, Values, bool], None, None]:
    """Yield chunks as they are finished: number, columns, and whether they are worth keeping.

    An executor has at most ``window`` tiles and ``points`` in them at a time, so that
    no results pile up.
    """
    if executor is None:
        yield from ((chunk, task(chunk), True) for chunk in todo.tolist())
        return
    waiting = iter(todo.tolist())
    window = min(window, -(-points // math.prod(grid.tile)))
    running: dict[Future[Values], int] = {}
    try:
        while True:
            for chunk in itertools.islice(waiting, window - len(running)):
                running[executor.submit(task, chunk)] = chunk
            if not running:
                return
            # a wait without an end is deaf to Ctrl-C on some systems
            for future in wait(running, timeout=1.0, return_when=FIRST_COMPLETED).done:
                chunk = running.pop(future)
                try:
                    found = future.result()
                    keep = True
                except (BrokenExecutor, CancelledError):
                    raise
                except (
                    Exception
                ) as error:  # of the executor: the model's own are recorded by point
                    found = failed(model.columns, int(grid.sizes[chunk]), error)
                    keep = False
                yield chunk, found, keep
    except (BrokenExecutor, CancelledError) as error:
        raise ChildProcessError(f"the workers are gone: {one_line(error)}") from None
    finally:
        for future in running:
            future.cancel()


def _evaluate_chunk(
    model: Model, grid: Grid, home: tuple[str, int], chunk: int
) -> Values:
    """Return the columns of a tile, one value where all are the same: so they are sent, placed, and written."""
    if home != (_HOME, os.getpid()):
        _prepare(os.getpid())
    values = {
        name: once(column)
        for name, column in attempt(model, grid.points_of(chunk)).items()
    }
    values[MESSAGE.name] = _plain_texts(values[MESSAGE.name])
    return values


def attempt(model: Model, points: Mapping[str, NDArray[Any]]) -> Values:
    """Evaluate some points; where the model fails, halve them until those at fault are found."""
    size = len(next(iter(points.values())))
    try:
        return model.evaluate(points)
    except Exception as error:
        if size == 1:
            return failed(model.columns, 1, error)
    halves = [
        attempt(model, {name: value[part] for name, value in points.items()})
        for part in (slice(0, size // 2), slice(size // 2, size))
    ]
    return {name: np.concatenate([half[name] for half in halves]) for name in halves[0]}


def failed(columns: tuple[Column, ...], size: int, error: Exception) -> Values:
    """Return the columns of points that failed with an error."""
    return uniform(columns, size, {STATUS.name: FAILED, MESSAGE.name: one_line(error)})


def _plain_texts(texts: NDArray[Any]) -> NDArray[Any]:
    """Return messages that can be kept anywhere: no halves of characters, and none longer than it need be."""
    every = texts.ravel().tolist()
    if all(len(text) <= LONGEST and text.isascii() for text in every):
        return texts
    plain = (
        text[:LONGEST].encode("utf-8", "backslashreplace").decode("utf-8")[:LONGEST]
        for text in every
    )
    return np.array([*plain], dtype=object).reshape(texts.shape)


def one_line(error: BaseException) -> str:
    """Return what an error says, as a message of a point."""
    text = " ".join(str(error).split())
    plain = isinstance(error, ValueError) and text
    said = text if plain else f"{type(error).__name__}: {text}".rstrip(": ")
    return said.encode("utf-8", "backslashreplace").decode("utf-8")[:500]


@cache
def _prepare(pid: int) -> None:
    """Have a worker use one BLAS thread and keep freed arrays for its next tile, which Dask has it give back."""
    threadpool_limits(limits=1)
    with contextlib.suppress(
        AttributeError, OSError, TypeError
    ):  # glibc alone has these options
        trim_threshold = -1
        mmap_threshold = -3
        ctypes.CDLL(None).mallopt(mmap_threshold, KEPT)
        ctypes.CDLL(None).mallopt(trim_threshold, 2 * KEPT)
