"""Sweeps on disk: a Zarr group that xarray opens, and that the same call goes on with after a run was killed.

Only a chunk whose mark fits counts, so that a run may end at any moment, by any signal or a full disk, and loses
the chunks in flight.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import refuse
from icl_theory.files import checked_path
from icl_theory.grids import codec
from icl_theory.grids.chunks import Chunks, Rows, Share, in_turn
from icl_theory.grids.disk import Folder, plain_errors
from icl_theory.grids.grid import MESSAGE, STATUS, Column, Grid, Values
from icl_theory.grids.held import Held
from icl_theory.grids.layout import (
    LARGEST,
    MARKS,
    METADATA,
    PRIVATE,
    Layout,
    OtherFormatError,
    difference,
    listed_commands,
    parsed,
)
from icl_theory.memory import check_fits

RECORD = f"{PRIVATE}/{METADATA}"


class Store:
    """The chunks of one sweep on disk; use `opened` to get one.

    Attributes
    ----------
    done : ndarray of bool, (chunks,)
        Which chunks it has.
    share : Share or None
        For workers that write what they compute themselves; None where nothing is to be written.
    """

    def __init__(self, folder: Folder, layout: Layout, run: str | None = None) -> None:
        check_fits("points", layout.grid.size, float(layout.grid.chunks))
        sweep = layout.grid, layout.columns, layout.digest
        self._chunks, self._layout = Chunks(folder, *sweep), layout
        self.share = None if run is None else Share(os.path.abspath(folder.path), run, *sweep)
        self.done: NDArray[np.bool_] = np.zeros(layout.grid.chunks, dtype=bool)
        whole, others = self._chunks.sealed()
        self.done[whole] = True
        for chunk in others if run is not None else ():
            self._chunks.unseal(chunk)

    def write(self, chunk: int, values: Values, rows: Rows | None = None) -> None:
        """Keep a chunk: its columns first, unless ``rows`` says that they are there, then what makes them count."""
        if rows is None:
            self._chunks.unseal(chunk)
            rows = self._chunks.put(chunk, values)
        self._chunks.seal(chunk, rows)
        self.done[chunk] = True

    def read(self, chunk: int) -> Values:
        """Return the columns of a chunk; refuse it if it is not what was written there."""
        return self._chunks.read(chunk, self._layout.columns)

    def read_column(self, chunk: int, column: Column) -> NDArray[Any]:
        """Return one column of a chunk."""
        return self._chunks.read(chunk, [column])[column.name]

    def chunk_at(self, place: tuple[int, ...]) -> int:
        """Return the chunk at a place along the swept dimensions."""
        swept, grid = iter(place), self._layout.grid
        every = tuple(next(swept) if axis.swept else 0 for axis in grid.axes)
        return int(np.ravel_multi_index(every, grid.tiles)) if every else 0

    def lengths(self, chunk: int) -> tuple[int, ...]:
        """Return how many values of each swept parameter a chunk has."""
        return self._chunks.lengths(chunk)


class Stored(NamedTuple):
    """What a store holds: the sweep, its columns as from `evaluate`, whether all are there, and its commands."""

    layout: Layout
    values: Values
    finished: bool
    commands: list[str]


@contextlib.contextmanager
def opened(
    path: str | os.PathLike[str],
    grid: Grid,
    columns: tuple[Column, ...],
    arguments: Mapping[str, Any],
    command: str | None = None,
) -> Iterator[Store]:
    """Open the store of a sweep, or make it, and keep others out while it is open.

    Parameters
    ----------
    path : path-like
        Its folder, which ends in ``.zarr``.
    grid : Grid
        The points.
    columns : tuple of Column
        What is kept per point.
    arguments : mapping
        Plain values that the results depend on, version and seed among them.
    command : str, optional
        The call or command line that opens it, kept for the record (see `read_commands`): another one may go on.

    Yields
    ------
    Store
        With the chunks of earlier runs.

    Raises
    ------
    ValueError
        A library is missing, the folder is something else, a file in it is damaged, it belongs to other
        arguments or another version (and the message names the difference), or another run has it open.
    OSError
        The path cannot be written, or the disk is full.
    """
    target = Path(path)
    if target.suffix != ".zarr":
        raise refuse("store", str(path), "a folder name ending in .zarr")
    codec.check_libraries()
    layout = Layout(grid, (*columns, STATUS, MESSAGE), arguments)
    if len(layout.root) > LARGEST:
        raise refuse("store", str(path), f"left out: its axes take more than {LARGEST} bytes")
    folder = Folder(target, MARKS)
    with contextlib.ExitStack() as stack:
        with plain_errors(target):
            _check_same(folder, layout)
            run = stack.enter_context(folder.locked())
            _check_same(folder, layout)  # another run may have made it just now
            _complete(folder, layout)
            _record(folder, layout, command)
        yield Store(folder, layout, run)


def read(path: str | os.PathLike[str]) -> Stored:
    """Return what a store holds, also while a run is adding to it.

    Raises
    ------
    ValueError
        It is no store of a sweep, a file in it is damaged, or there is not enough memory for its points.
    """
    layout, kept = read_layout(path), opened_to_read(path)
    held = Held(layout.columns[:-2], layout.grid)
    for chunk in in_turn(np.flatnonzero(kept.done).tolist()):
        held.place(chunk, kept.read(chunk))
    return Stored(layout, held.values(), bool(kept.done.all()), read_commands(path))


def opened_to_read(path: str | os.PathLike[str]) -> Store:
    """Return the store at a path, of which nothing is to be written."""
    return Store(Folder(Path(path), MARKS), read_layout(path))


def read_layout(path: str | os.PathLike[str]) -> Layout:
    """Return what a store was made for: grid, columns, arguments.

    Raises
    ------
    ValueError
        It is no store of a sweep, or its metadata are damaged.
    """
    codec.check_libraries()
    folder = Folder(checked_path(path, "store"), MARKS)
    with plain_errors(folder.path):
        content = folder.read(METADATA, LARGEST)
        if content is None:
            raise refuse("store", str(path), "a store made by a sweep")
        try:
            layout = parsed(content)
        except OtherFormatError as error:
            raise refuse("store", str(path), f"one that this version of the package can read: {error}") from None
        except ValueError as error:
            raise folder.damaged(METADATA, str(error)) from None
        for name, wanted in layout.files.items():
            _cut(folder, name, wanted)
        _check_names(folder, layout)
    return layout


def read_commands(path: str | os.PathLike[str]) -> list[str]:
    """Return the calls and command lines that a store was filled by, the first one first, each once."""
    folder = Folder(Path(path), MARKS)
    with plain_errors(folder.path):
        return _commands(folder, read_layout(path))


def _commands(folder: Folder, layout: Layout) -> list[str]:
    found = folder.read(RECORD, LARGEST)
    try:
        return listed_commands(found, layout) if found else []
    except ValueError as error:
        raise folder.damaged(RECORD, str(error)) from None


def _check_same(folder: Folder, wanted: Layout) -> None:
    """Refuse to go on with a sweep that is another one, and a folder of something else."""
    content = folder.read(METADATA, LARGEST) or b""
    if not content and folder.is_strange():
        raise refuse("store", str(folder.path), "a store made by a sweep, or an empty folder to make one in")
    if wanted.root.startswith(content):  # the same, or its making was ended
        return
    found = read_layout(folder.path)
    if found.manifest != wanted.manifest:
        named = difference(found.manifest, wanted.manifest)
        raise refuse("store", str(folder.path), f"one made by the same call: {named}")


def _check_names(folder: Folder, layout: Layout) -> None:
    """Refuse what Zarr might take for another part of the store."""
    known = {METADATA, PRIVATE, *(name.partition("/")[0] for name in layout.files)}
    for name in folder.names():
        if name not in known and (not name.startswith(".") or name.startswith(".z")):
            raise folder.damaged(name, "no sweep has written it")


def _complete(folder: Folder, layout: Layout) -> None:
    """Write what metadata there are not yet: the file that says all is the first."""
    if _cut(folder, METADATA, layout.root):
        folder.write(METADATA, layout.root, durable=True)
    _check_names(folder, layout)
    for name, wanted in layout.files.items():
        if _cut(folder, name, wanted):
            folder.write(name, wanted)


def _cut(folder: Folder, name: str, wanted: bytes) -> bool:
    """Whether a file is missing, or its end; refuse one that says something else."""
    found = folder.read(name, len(wanted)) or b""
    if not wanted.startswith(found):
        raise folder.damaged(name, "it is damaged; the same call writes it again if it is removed")
    return len(found) < len(wanted)


def _record(folder: Folder, layout: Layout, command: str | None) -> None:
    known = _commands(folder, layout)
    wanted = known if command is None or command in known else [*known, command]
    if wanted != known or not folder.size(RECORD):
        folder.write(RECORD, layout.commands(wanted), durable=True)
