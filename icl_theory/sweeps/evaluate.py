"""Evaluate grids tile by tile, in this process or on any executor.

A tile is a block of points, and a chunk is a tile as a unit of work. Every tile is
evaluated with one BLAS thread and put in its place, so that the bits of the results do
not depend on the number or the order of the workers. A point that fails is recorded
with its message, and the evaluation continues.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import math
import os
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
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

# The largest array, in bytes, whose memory glibc can be told to keep when it is freed:
# the limit of glibc, 32 MiB, less a generous allowance for the bookkeeping of the
# allocator.
LARGEST_KEPT = 2**25 - 2**16
# An executor has at most this many chunks at a time, so that results which wait for
# this process do not fill the memory. Any number well above the number of workers would
# do.
MOST_CHUNKS = 1024
# The chunks that an executor has at a time have about this many points in all. With 8
# bytes a value, that is 128 MiB for each column.
MOST_POINTS = 2**24
# An error is shown, or kept as a message, with at most this many characters. The limit
# keeps arrays that are printed in an error from filling the screen and the store.
LONGEST_ERROR = 500
# `evaluate` lets the allocator keep arrays of up to this many bytes for each point of
# the grid, which is eight float64 numbers. A larger number would keep more memory; with
# a smaller one, the memory of larger arrays would be fetched again for every tile.
KEPT_BYTES_PER_POINT = 64
# This text distinguishes this process from a worker on another machine that has the
# same process number.
_HOME = uuid.uuid4().hex
# A function of the number of finished points and the number of all points.
Progress = Callable[[int, int], None]


class Model(Protocol):
    """A model for sweeps. Workers can evaluate it only if it is picklable."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """Columns measured at each point, besides ``STATUS`` and ``MESSAGE``."""

    def evaluate(self, points: Mapping[str, NDArray[Any]]) -> Values:
        """Return every column, with status and message, (P,) each.

        ``points`` has the parameters of the points by name, (P,) each.
        """


class Evaluated(NamedTuple):
    """The results of a sweep, from `evaluate`.

    Parameters
    ----------
    values : dict
        The columns by name, with a value for each point of the grid; empty if ``hold``
        was False.
    interrupted : bool
        Whether Ctrl-C ended the evaluation.
    """

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
        The points, and the model to evaluate at them.
    executor : concurrent.futures.Executor, optional
        The executor that evaluates the chunks; this process does so by default.
    storage : Store, optional
        The store of the sweep. Chunks in it are not evaluated again, and new chunks are
        added as they are finished. The store keeps the columns with which it was made.
        The result has the columns of the store and of the model. Columns of the model
        that the store lacks have no values, even in new chunks.
    progress : callable, optional
        Called with the number of finished points and the number of all points: first
        with the points in the store, then after every chunk.
    hold : bool
        Whether to return the values, and not only store them.

    Returns
    -------
    Evaluated
        The values. After Ctrl-C, points that were not evaluated have the status
        "pending".

    Raises
    ------
    ChildProcessError
        A worker of the executor died, and no other worker took over.

    Examples
    --------
    >>> import numpy as np
    >>> from icl_theory.sweeps.evaluate import evaluate
    >>> from icl_theory.sweeps.grid import Axis, Column, Grid, blank
    >>> class Square:
    ...     columns = (Column("square", "f8", "", "x²"),)
    ...     def evaluate(self, points):
    ...         values = blank(self.columns, len(points["x"]))
    ...         values["square"] = points["x"] ** 2
    ...         values["status"][:] = "reached"
    ...         return values
    >>> grid = Grid((Axis("x", np.arange(4.0), "", "a number", True),), chunk=2)
    >>> evaluate(grid, Square()).values["square"]
    array([0., 1., 4., 9.])
    """
    _keep_freed(KEPT_BYTES_PER_POINT * grid.size)
    if storage is None:
        # A new store would have the columns of the model.
        stored_columns = model.columns
        is_done = np.zeros(grid.chunks, dtype=bool)
    else:
        stored_columns = storage.columns
        is_done = storage.done.copy()
    match = ColumnMatch(stored_columns, model.columns)
    filled = Filled(match.every, grid) if hold else None
    finished_points = int(grid.sizes[is_done].sum())
    interrupted = False
    # Without a ``progress``, nothing is shown.
    show: Progress = progress or (lambda finished, total: None)
    try:
        if filled is not None and storage is not None:
            storage.fill(filled)
        show(finished_points, grid.size)
        home = (_HOME, os.getpid())
        task = partial(_evaluate_chunk, model, grid, home)
        not_done = np.flatnonzero(~is_done)
        chunks = _finished_chunks(grid, model, not_done, executor, task)
        # The order in which BLAS adds depends on the number of its threads. So BLAS has
        # one thread here, as in workers. Closing the generator, after an error or
        # Ctrl-C, cancels the chunks that have not started.
        with threadpool_limits(limits=1), contextlib.closing(chunks):
            for chunk, computed, may_be_stored in chunks:
                # `conform` gives the columns of the store, so that the result is the
                # same as if the store were read later.
                values = match.conform(computed)
                if filled is not None:
                    filled.place(chunk, values)
                if storage is not None and may_be_stored:
                    storage.write(chunk, values)
                finished_points += int(grid.sizes[chunk])
                show(finished_points, grid.size)
    except KeyboardInterrupt:
        interrupted = True
    return Evaluated({} if filled is None else filled.values(), interrupted)


def _keep_freed(size: int) -> None:
    """Let glibc keep freed memory for later arrays of up to ``size`` bytes.

    By default glibc returns the memory of each tile to the system, and must get it
    again for the next tile.
    """
    # glibc learns from the size of an array that is freed. The array in the next line
    # is freed at once, and takes no memory, because nothing is written to it.
    np.empty(min(LARGEST_KEPT, size), dtype=np.uint8)


class Finished(NamedTuple):
    """A chunk that was evaluated.

    Parameters
    ----------
    chunk : int
        The number of the chunk.
    values : dict
        The columns of its points, by name.
    may_be_stored : bool
        Whether a store may keep the chunk. It is False if the executor failed, because
        another attempt may succeed.
    """

    chunk: int
    values: Values
    may_be_stored: bool


def _finished_chunks(
    grid: Grid,
    model: Model,
    chunks: NDArray[np.intp],
    executor: Executor | None,
    task: Callable[[int], Values],
) -> Generator[Finished, None, None]:
    """Evaluate chunks, and yield each as soon as it is finished.

    ``chunks`` has their numbers, and ``task`` evaluates the chunk of a number.
    """
    if executor is None:
        for chunk in chunks.tolist():
            yield Finished(chunk, task(chunk), may_be_stored=True)
        return
    running = _Running(executor, task, chunks.tolist(), math.prod(grid.tile))
    try:
        while running.submit():
            for chunk, future in running.completed():
                try:
                    finished = Finished(chunk, future.result(), may_be_stored=True)
                except (BrokenExecutor, CancelledError):
                    # The executor can compute no further chunk. The outer handler turns
                    # its error into the error that the user sees.
                    raise
                except Exception as error:
                    # `attempt` catches the errors of the model and keeps them as
                    # messages of the points, so this is an error of the executor.
                    size = int(grid.sizes[chunk])
                    values = failed(model.columns, size, error)
                    finished = Finished(chunk, values, may_be_stored=False)
                yield finished
    except (BrokenExecutor, CancelledError) as error:
        raise ChildProcessError(f"the workers died: {one_line(error)}") from None
    finally:
        running.cancel()


class _Running:
    """The chunks that an executor is evaluating.

    Their number is limited, so that results do not pile up in memory.

    Parameters
    ----------
    executor : Executor
        The executor.
    task : callable
        Evaluates the chunk of a number.
    chunks : list of int
        The numbers of all chunks to evaluate.
    tile_size : int
        The largest number of points in a chunk.
    """

    def __init__(
        self,
        executor: Executor,
        task: Callable[[int], Values],
        chunks: list[int],
        tile_size: int,
    ) -> None:
        self._executor = executor
        self._task = task
        self._waiting = iter(chunks)
        # MOST_POINTS / tile_size, rounded up, so that at least one chunk may run.
        tiles_of_most_points = -(-MOST_POINTS // tile_size)
        self._most_running = min(MOST_CHUNKS, tiles_of_most_points)
        self._chunk_of: dict[Future[Values], int] = {}

    def submit(self) -> bool:
        """Submit as many waiting chunks as the limit allows.

        Return whether any chunk is running now. If not, all chunks are finished.
        """
        free_places = self._most_running - len(self._chunk_of)
        for chunk in itertools.islice(self._waiting, free_places):
            future = self._executor.submit(self._task, chunk)
            self._chunk_of[future] = chunk
        return bool(self._chunk_of)

    def completed(self) -> Iterator[tuple[int, Future[Values]]]:
        """Yield the chunks that have finished, with their futures.

        If none has finished, wait up to a second for one. Even then there may be none.
        """
        # Some systems notice Ctrl-C only after a wait, so the wait must end.
        waited = wait(self._chunk_of, timeout=1.0, return_when=FIRST_COMPLETED)
        for future in waited.done:
            yield self._chunk_of.pop(future), future

    def cancel(self) -> None:
        """Cancel the chunks that have not started."""
        for future in self._chunk_of:
            future.cancel()


def _evaluate_chunk(
    model: Model, grid: Grid, home: tuple[str, int], chunk: int
) -> Values:
    """Evaluate the points of a chunk, and return its columns as `once` gives them.

    `once` replaces a constant column by its only value, which is cheap to send and to
    store. ``home`` identifies the process that runs the sweep; any other process is a
    worker.
    """
    is_worker = home != (_HOME, os.getpid())
    if is_worker:
        _prepare(os.getpid())
    columns = attempt(model, grid.points_of(chunk))
    values = {name: once(column) for name, column in columns.items()}
    values[MESSAGE.name] = _plain_texts(values[MESSAGE.name])
    return values


def attempt(model: Model, points: Mapping[str, NDArray[Any]]) -> Values:
    """Evaluate points; if the model raises an error, try each half of them separately.

    The halves are halved again if needed, so that in the end only the points that cause
    an error have the status "failed".
    """
    size = len(next(iter(points.values())))
    try:
        return model.evaluate(points)
    except Exception as error:
        if size == 1:
            return failed(model.columns, 1, error)
    # The model has raised an error for several points.
    middle = size // 2
    first = attempt(model, {name: x[:middle] for name, x in points.items()})
    second = attempt(model, {name: x[middle:] for name, x in points.items()})
    return {name: np.concatenate([first[name], second[name]]) for name in first}


def failed(columns: tuple[Column, ...], size: int, error: Exception) -> Values:
    """Return the columns of points that failed with an error."""
    return uniform(columns, size, {STATUS.name: FAILED, MESSAGE.name: one_line(error)})


def _plain_texts(texts: NDArray[Any]) -> NDArray[Any]:
    """Return messages cut to LONGEST characters, such that UTF-8 can encode them."""
    messages = texts.ravel().tolist()
    if all(len(text) <= LONGEST and text.isascii() for text in messages):
        return texts
    # An escape is longer than the character that it replaces, so each text is cut
    # again.
    plain = [_encodable(text[:LONGEST])[:LONGEST] for text in messages]
    return np.array(plain, dtype=object).reshape(texts.shape)


def _encodable(text: str) -> str:
    """Return a text with escapes for lone surrogates, which UTF-8 cannot encode."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def one_line(error: BaseException) -> str:
    """Return the text of an error on one line.

    The type of the error stands before the text, unless the error is a ValueError,
    whose text says enough. If the text is empty, only the type is returned.
    """
    text = " ".join(str(error).split())
    if not text:
        text = type(error).__name__
    elif not isinstance(error, ValueError):
        text = f"{type(error).__name__}: {text}"
    return _encodable(text)[:LONGEST_ERROR]


@cache
def _prepare(pid: int) -> None:
    """Make a worker use one BLAS thread and keep freed memory for its next tile.

    Workers of Dask otherwise give freed memory back to the system. ``pid`` is the
    number of the process. As the key of the cache, it ensures that each process is
    prepared once.
    """
    threadpool_limits(limits=1)
    # Only glibc has mallopt with these options; elsewhere nothing is changed.
    with contextlib.suppress(AttributeError, OSError, TypeError):
        # The numbers of the options are from <malloc.h>.
        m_trim_threshold = -1
        m_mmap_threshold = -3
        ctypes.CDLL(None).mallopt(m_mmap_threshold, LARGEST_KEPT)
        # glibc also sets the trim threshold to twice the mmap threshold when it adjusts
        # both by itself.
        ctypes.CDLL(None).mallopt(m_trim_threshold, 2 * LARGEST_KEPT)
