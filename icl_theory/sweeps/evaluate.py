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

# The largest array, in bytes, whose memory glibc can be told to keep when it is freed.
KEPT = 2**25 - 2**16
# The largest numbers of chunks, and of points in them, that an executor has at a time.
MOST_CHUNKS = 1024
MOST_POINTS = 2**24
# Tells this process from workers on other machines that have the same process number.
_HOME = uuid.uuid4().hex
Progress = Callable[[int, int], None]


class Model(Protocol):
    """A model that sweeps evaluate. Other processes can evaluate a picklable one."""

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
        The columns, (size,) each; none if they were not to be held.
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
    # This array is never touched. Freeing it tells glibc to keep freed memory for the
    # next tile.
    np.empty(min(KEPT, 64 * grid.size), dtype=np.uint8)
    stored = model.columns if storage is None else storage.columns
    match = ColumnMatch(stored, model.columns)
    filled = Filled(match.every, grid) if hold else None
    done = np.zeros(grid.chunks, dtype=bool) if storage is None else storage.done.copy()
    finished = int(grid.sizes[done].sum())
    interrupted = False
    show: Progress = progress or (lambda done, total: None)
    try:
        if filled is not None and storage is not None:
            storage.fill(filled)
        show(finished, grid.size)
        task = partial(_evaluate_chunk, model, grid, (_HOME, os.getpid()))
        missing = np.flatnonzero(~done)
        chunks = _finished_chunks(grid, model, missing, executor, task)
        # The order in which BLAS adds depends on the number of its threads. So it has
        # one thread here, as it has in workers.
        with threadpool_limits(limits=1), contextlib.closing(chunks):
            for chunk, computed, keep in chunks:
                # The result has the columns that the storage will give when it is read.
                values = match.conform(computed)
                if filled is not None:
                    filled.place(chunk, values)
                if storage is not None and keep:
                    storage.write(chunk, values)
                finished += int(grid.sizes[chunk])
                show(finished, grid.size)
    except KeyboardInterrupt:
        interrupted = True
    return Evaluated({} if filled is None else filled.values(), interrupted)


class Finished(NamedTuple):
    """A chunk that was evaluated.

    Parameters
    ----------
    chunk : int
        Its number.
    values : dict
        Its columns.
    keep : bool
        Whether it belongs into a store. False if the executor failed: another try may
        succeed.
    """

    chunk: int
    values: Values
    keep: bool


def _finished_chunks(
    grid: Grid,
    model: Model,
    chunks: NDArray[np.intp],
    executor: Executor | None,
    task: Callable[[int], Values],
) -> Generator[Finished, None, None]:
    """Evaluate chunks, and yield them as they are finished."""
    if executor is None:
        for chunk in chunks.tolist():
            yield Finished(chunk, task(chunk), keep=True)
        return
    running = _Running(executor, task, chunks.tolist(), math.prod(grid.tile))
    try:
        while running.submit():
            for chunk, future in running.completed():
                try:
                    finished = Finished(chunk, future.result(), keep=True)
                except (BrokenExecutor, CancelledError):
                    raise
                except Exception as error:
                    # An error of the executor: the errors of a model are caught by
                    # `attempt`, and kept as messages of its points.
                    size = int(grid.sizes[chunk])
                    values = failed(model.columns, size, error)
                    finished = Finished(chunk, values, keep=False)
                yield finished
    except (BrokenExecutor, CancelledError) as error:
        raise ChildProcessError(f"the workers are gone: {one_line(error)}") from None
    finally:
        running.cancel()


class _Running:
    """Chunks at an executor: a limited number at a time, so that no results pile up."""

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
        self._most = min(MOST_CHUNKS, -(-MOST_POINTS // tile_size))
        self._chunk_of: dict[Future[Values], int] = {}

    def submit(self) -> bool:
        """Submit as many chunks as may run; return False if nothing runs any more."""
        free = self._most - len(self._chunk_of)
        for chunk in itertools.islice(self._waiting, free):
            self._chunk_of[self._executor.submit(self._task, chunk)] = chunk
        return bool(self._chunk_of)

    def completed(self) -> Iterator[tuple[int, Future[Values]]]:
        """Yield the chunks that are finished, after a second at the latest."""
        # Some systems do not notice Ctrl-C during a wait without an end.
        done = wait(self._chunk_of, timeout=1.0, return_when=FIRST_COMPLETED).done
        for future in done:
            yield self._chunk_of.pop(future), future

    def cancel(self) -> None:
        """Cancel the chunks that have not started."""
        for future in self._chunk_of:
            future.cancel()


def _evaluate_chunk(
    model: Model, grid: Grid, home: tuple[str, int], chunk: int
) -> Values:
    """Return the columns of a tile as `once` gives them, to send, place and write."""
    if home != (_HOME, os.getpid()):
        _prepare(os.getpid())
    columns = attempt(model, grid.points_of(chunk))
    values = {name: once(column) for name, column in columns.items()}
    values[MESSAGE.name] = _plain_texts(values[MESSAGE.name])
    return values


def attempt(model: Model, points: Mapping[str, NDArray[Any]]) -> Values:
    """Evaluate points; if the model fails, halve them to find the ones at fault."""
    size = len(next(iter(points.values())))
    try:
        return model.evaluate(points)
    except Exception as error:
        if size == 1:
            return failed(model.columns, 1, error)
    middle = size // 2
    first = attempt(model, {name: x[:middle] for name, x in points.items()})
    second = attempt(model, {name: x[middle:] for name, x in points.items()})
    return {name: np.concatenate([first[name], second[name]]) for name in first}


def failed(columns: tuple[Column, ...], size: int, error: Exception) -> Values:
    """Return the columns of points that failed with an error."""
    return uniform(columns, size, {STATUS.name: FAILED, MESSAGE.name: one_line(error)})


def _plain_texts(texts: NDArray[Any]) -> NDArray[Any]:
    """Return messages of limited length that can be encoded as UTF-8."""
    messages = texts.ravel().tolist()
    if all(len(text) <= LONGEST and text.isascii() for text in messages):
        return texts
    plain = [_encodable(text[:LONGEST])[:LONGEST] for text in messages]
    return np.array(plain, dtype=object).reshape(texts.shape)


def _encodable(text: str) -> str:
    """Return a text in which escapes stand for lone surrogates, which UTF-8 has not."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def one_line(error: BaseException) -> str:
    """Return the text of an error in one line, with its type unless a ValueError."""
    text = " ".join(str(error).split())
    if not (isinstance(error, ValueError) and text):
        text = f"{type(error).__name__}: {text}".rstrip(": ")
    return _encodable(text)[:500]


@cache
def _prepare(pid: int) -> None:
    """Let a worker use one BLAS thread and keep freed memory for its next tile.

    Dask tells its workers to give freed memory back to the system.
    """
    threadpool_limits(limits=1)
    # Only glibc has these options.
    with contextlib.suppress(AttributeError, OSError, TypeError):
        trim_threshold = -1
        mmap_threshold = -3
        ctypes.CDLL(None).mallopt(mmap_threshold, KEPT)
        ctypes.CDLL(None).mallopt(trim_threshold, 2 * KEPT)
