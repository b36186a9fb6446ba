"""Sweeps on disk: a Zarr group that xarray opens, and that the same call goes on with after a run was killed.

A chunk is a file for each column and then its mark, which has the size and a digest of each of them. Only a chunk
whose mark fits counts, so that a run may end at any moment, by any signal or a full disk, and loses the chunks in
flight. The digests are bound to the sweep and to the place of the chunk.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import refuse
from icl_theory.files import checked_path
from icl_theory.grids import codec
from icl_theory.grids.disk import Folder, plain_errors
from icl_theory.grids.evaluate import LONGEST
from icl_theory.grids.grid import FILL, MESSAGE, STATUS, Column, Grid, Values, as_block
from icl_theory.grids.held import Held
from icl_theory.grids.layout import (
    LARGEST,
    MARKS,
    METADATA,
    PRIVATE,
    Layout,
    OtherFormatError,
    difference,
    digest,
    key,
    listed_commands,
    parsed,
)
from icl_theory.memory import check_fits

RECORD = f"{PRIVATE}/{METADATA}"
MARK = re.compile(r"c((?:\.\d{1,19})*)\.0\.0")


class Store:
    """The chunks of one sweep on disk; use `opened` to get one.

    Attributes
    ----------
    done : ndarray of bool, (chunks,)
        Which chunks it has.
    """

    def __init__(self, folder: Folder, layout: Layout) -> None:
        check_fits("points", layout.grid.size, float(layout.grid.chunks))
        self._folder, self._layout = folder, layout
        self.done: NDArray[np.bool_] = np.zeros(layout.grid.chunks, dtype=bool)
        with plain_errors(folder.path):
            for name in folder.names(MARKS):
                if name.startswith("c"):
                    chunk = self._chunk(name)
                    self.done[chunk] = self._is_there(chunk)

    def write(self, chunk: int, values: Values) -> None:
        """Keep a chunk: its columns first, then the mark that makes them count."""
        mark = self._mark(chunk)
        rows = []
        with plain_errors(self._folder.path):
            self._folder.remove(mark)
            for column in self._layout.columns:
                name, content = self._file(column, chunk), b""
                if not codec.is_blank(values[column.name]):
                    content = codec.encode(self._whole_tile(values[column.name], column, chunk))
                    self._folder.write(name, content)
                else:
                    self._folder.remove(name)
                rows.append((len(content), self._digest(column, chunk, content)))
            self._folder.write(mark, codec.encode(np.array(rows, dtype=np.uint64)))
        self.done[chunk] = True

    def read(self, chunk: int) -> Values:
        """Return the columns of a chunk; refuse it if it is not what was written there."""
        return {column.name: self.read_column(chunk, column) for column in self._layout.columns}

    def read_column(self, chunk: int, column: Column) -> NDArray[Any]:
        """Return one column of a chunk."""
        with plain_errors(self._folder.path):
            mark = self._row(chunk)
            if mark is None:
                raise self._folder.damaged(self._mark(chunk), "it is gone")
            row = [each.name for each in self._layout.columns].index(column.name)
            return self._column(column, chunk, *mark[row].tolist())

    def _column(self, column: Column, chunk: int, size: int, wanted: int) -> NDArray[Any]:
        name, dtype, count = self._file(column, chunk), np.dtype(column.dtype), int(np.prod(self._layout.tile))
        content = self._folder.read(name, codec.most_bytes(dtype, count, LONGEST)) or b""
        hint = f"; if {self._mark(chunk)} is removed, the same call computes these points again"
        if len(content) != size or self._digest(column, chunk, content) != wanted:
            damage = "it is damaged" if content and not codec.is_sealed(content) else "it is that of other points"
            raise self._folder.damaged(name, damage + hint)
        lengths = self.lengths(chunk)
        if not size:
            return np.full(int(np.prod(lengths)), FILL[column.dtype[0]], dtype=column.dtype)
        try:
            found = codec.decode(content, dtype, count).reshape(self._layout.tile)
        except ValueError as error:
            raise self._folder.damaged(name, f"{error}{hint}") from None
        return found[tuple(slice(length) for length in lengths)].ravel()

    def _whole_tile(self, values: NDArray[Any], column: Column, chunk: int) -> NDArray[Any]:
        """Return a column of a chunk as large as all, also where the grid ends within."""
        lengths = self.lengths(chunk)
        every = tuple(part.stop - part.start for part in self._layout.grid.region(chunk))
        whole = np.broadcast_to(as_block(values, every), every).reshape(lengths)
        if lengths == self._layout.tile:
            return whole
        found = np.full(self._layout.tile, FILL[column.dtype[0]], dtype=column.dtype)
        found[tuple(slice(length) for length in lengths)] = whole
        return found

    def chunk_at(self, place: tuple[int, ...]) -> int:
        """Return the chunk at a place along the swept dimensions."""
        swept, grid = iter(place), self._layout.grid
        every = tuple(next(swept) if axis.swept else 0 for axis in grid.axes)
        return int(np.ravel_multi_index(every, grid.tiles)) if every else 0

    def lengths(self, chunk: int) -> tuple[int, ...]:
        """Return how many values of each swept parameter a chunk has."""
        each = zip(self._layout.grid.region(chunk), self._layout.grid.axes, strict=True)
        return tuple(part.stop - part.start for part, axis in each if axis.swept)

    def _is_there(self, chunk: int) -> bool:
        """Whether a mark is whole and its files have been written to their ends, or further."""
        mark = self._row(chunk)
        if mark is None:
            return False
        return all(
            self._folder.size(self._file(column, chunk)) >= size
            for column, (size, _) in zip(self._layout.columns, mark.tolist(), strict=True)
        )

    def _row(self, chunk: int) -> NDArray[np.uint64] | None:
        """Return the mark of a chunk, sizes and digests; None if there is none, or half of one."""
        count, dtype = 2 * len(self._layout.columns), np.dtype(np.uint64)
        whole = codec.most_bytes(dtype, count, 0)
        content = self._folder.read(self._mark(chunk), whole) or b""
        if len(content) < whole:
            return None
        try:
            return codec.decode(content, dtype, count).reshape(-1, 2)
        except ValueError as error:
            again = "if it is removed, the same call computes its points again"
            raise self._folder.damaged(self._mark(chunk), f"{error}; {again}") from None

    def _chunk(self, name: str) -> int:
        """Return the chunk whose mark has a name."""
        found, tiles = MARK.fullmatch(name), self._layout.grid.tiles
        if found is not None:
            swept = iter(int(i) for i in found[1].split(".")[1:])
            place = tuple(next(swept, -1) if axis.swept else 0 for axis in self._layout.grid.axes)
            if next(swept, None) is None and all(0 <= i < n for i, n in zip(place, tiles, strict=True)):
                return int(np.ravel_multi_index(place, tiles)) if place else 0
        raise self._folder.damaged(f"{MARKS}/{name}", "the sweep has no such chunk")

    def _digest(self, column: Column, chunk: int, content: bytes) -> int:
        place = ",".join(map(str, self._layout.place(chunk))).encode()
        seal = content[-codec.SEAL :]
        bound = digest(self._layout.digest, column.name.encode(), place, b"%d" % len(content), seal)
        return int.from_bytes(bound, "little")

    def _file(self, column: Column, chunk: int) -> str:
        return f"{column.name}/{key(self._layout.place(chunk))}"

    def _mark(self, chunk: int) -> str:
        return f"{MARKS}/{key((*self._layout.place(chunk), 0, 0))}"


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
            stack.enter_context(folder.locked())
            _check_same(folder, layout)  # another run may have made it just now
            _complete(folder, layout)
            _record(folder, layout, command)
        yield Store(folder, layout)


def read(path: str | os.PathLike[str]) -> Stored:
    """Return what a store holds, also while a run is adding to it.

    Raises
    ------
    ValueError
        It is no store of a sweep, a file in it is damaged, or there is not enough memory for its points.
    """
    layout, kept = read_layout(path), opened_to_read(path)
    held = Held(layout.columns[:-2], layout.grid)
    for chunk in np.flatnonzero(kept.done).tolist():
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
