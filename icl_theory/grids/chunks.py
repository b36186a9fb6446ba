"""Chunks of a sweep as files: one for each column, and then a mark that makes them count.

The mark has the size of every file and a digest that is bound to the sweep and to the place of the chunk. Whoever
has computed a chunk may write its files; marks are written by the run that has the store.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory.engine.progress import counted
from icl_theory.grids import codec
from icl_theory.grids.disk import Folder, plain_errors
from icl_theory.grids.grid import FILL, LONGEST, Column, Grid, Values, as_block
from icl_theory.grids.layout import MARKS, digest, key

MARK = re.compile(r"c((?:\.\d{1,19})*)\.0\.0")
Rows = NDArray[np.uint64]  # size and digest of the file of each column


def in_turn(chunks: Sequence[int]) -> Iterator[int]:
    """Yield chunks of a store that are read one after another, and say how far it is where that takes long."""
    return counted(chunks, "chunks of the store")


class Chunks:
    """The files of the chunks of a sweep.

    Parameters
    ----------
    folder : Folder
        Where they are.
    grid : Grid
        The points.
    columns : tuple of Column
        What is kept per point, status and message among them.
    sweep : bytes
        What tells the sweep from others.
    """

    def __init__(self, folder: Folder, grid: Grid, columns: tuple[Column, ...], sweep: bytes) -> None:
        self._folder, self._grid, self._columns, self._sweep = folder, grid, columns, sweep
        self._tile = grid.of_swept(grid.tile)

    def put(self, chunk: int, values: Values) -> Rows:
        """Write the columns of a chunk, which do not count yet, and return what is to be its mark."""
        rows = []
        with plain_errors(self._folder.path):
            for column in self._columns:
                name, content = self._file(column, chunk), b""
                if not codec.is_blank(values[column.name]):
                    content = codec.encode(self._whole_tile(values[column.name], column, chunk))
                    self._folder.write(name, content)
                else:
                    self._folder.remove(name)
                rows.append((len(content), self._digest(column, chunk, content)))
        return np.array(rows, dtype=np.uint64)

    def seal(self, chunk: int, rows: Rows) -> None:
        """Write the mark of a chunk: its columns count from now on."""
        with plain_errors(self._folder.path):
            self._folder.write(self._mark(chunk), codec.encode(rows))

    def unseal(self, chunk: int) -> None:
        """Remove the mark of a chunk."""
        with plain_errors(self._folder.path):
            self._folder.remove(self._mark(chunk))

    def sealed(self) -> tuple[list[int], list[int]]:
        """Return the chunks with a whole mark and files that were written to their ends, and those with another."""
        with plain_errors(self._folder.path):
            every = [self._chunk(name) for name in self._folder.names(MARKS) if name.startswith("c")]
            there = {chunk for chunk in in_turn(every) if self._is_there(chunk)}
        return [*there], [chunk for chunk in every if chunk not in there]

    def read(self, chunk: int, columns: Sequence[Column]) -> Values:
        """Return some columns of a chunk."""
        with plain_errors(self._folder.path):
            mark = self._row(chunk)
            if mark is None:
                raise self._folder.damaged(self._mark(chunk), "it is gone")
            names = [column.name for column in self._columns]
            rows = mark.tolist()
            return {each.name: self._column(each, chunk, *rows[names.index(each.name)]) for each in columns}

    def _column(self, column: Column, chunk: int, size: int, wanted: int) -> NDArray[Any]:
        name, dtype, count = self._file(column, chunk), np.dtype(column.dtype), int(np.prod(self._tile))
        content = self._folder.read(name, codec.most_bytes(dtype, count, LONGEST)) or b""
        hint = f"; if {self._mark(chunk)} is removed, the same call computes these points again"
        if len(content) != size or self._digest(column, chunk, content) != wanted:
            damage = "it is damaged" if content and not codec.is_sealed(content) else "it is that of other points"
            raise self._folder.damaged(name, damage + hint)
        lengths = self.lengths(chunk)
        if not size:
            return np.full(int(np.prod(lengths)), FILL[column.dtype[0]], dtype=column.dtype)
        try:
            found = codec.decode(content, dtype, count).reshape(self._tile)
        except ValueError as error:
            raise self._folder.damaged(name, f"{error}{hint}") from None
        return found[tuple(slice(length) for length in lengths)].ravel()

    def _whole_tile(self, values: NDArray[Any], column: Column, chunk: int) -> NDArray[Any]:
        """Return a column of a chunk as large as all, also where the grid ends within."""
        lengths = self.lengths(chunk)
        every = tuple(part.stop - part.start for part in self._grid.region(chunk))
        whole = np.broadcast_to(as_block(values, every), every).reshape(lengths)
        if lengths == self._tile:
            return whole
        found = np.full(self._tile, FILL[column.dtype[0]], dtype=column.dtype)
        found[tuple(slice(length) for length in lengths)] = whole
        return found

    def lengths(self, chunk: int) -> tuple[int, ...]:
        """Return how many values of each swept parameter a chunk has."""
        return self._grid.of_swept(tuple(part.stop - part.start for part in self._grid.region(chunk)))

    def _is_there(self, chunk: int) -> bool:
        """Whether a mark is whole and its files have been written to their ends, or further."""
        mark = self._row(chunk)
        if mark is None:
            return False
        return all(
            self._folder.size(self._file(column, chunk)) >= size
            for column, (size, _) in zip(self._columns, mark.tolist(), strict=True)
        )

    def _row(self, chunk: int) -> NDArray[np.uint64] | None:
        """Return the mark of a chunk, sizes and digests; None if there is none, or half of one."""
        count, dtype = 2 * len(self._columns), np.dtype(np.uint64)
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
        found, tiles = MARK.fullmatch(name), self._grid.tiles
        if found is not None:
            swept = iter(int(i) for i in found[1].split(".")[1:])
            place = tuple(next(swept, -1) if axis.swept else 0 for axis in self._grid.axes)
            if next(swept, None) is None and all(0 <= i < n for i, n in zip(place, tiles, strict=True)):
                return int(np.ravel_multi_index(place, tiles)) if place else 0
        raise self._folder.damaged(f"{MARKS}/{name}", "the sweep has no such chunk")

    def _digest(self, column: Column, chunk: int, content: bytes) -> int:
        place = ",".join(map(str, self._place(chunk))).encode()
        seal = content[-codec.SEAL :]
        bound = digest(self._sweep, column.name.encode(), place, b"%d" % len(content), seal)
        return int.from_bytes(bound, "little")

    def _file(self, column: Column, chunk: int) -> str:
        return f"{column.name}/{key(self._place(chunk))}"

    def _mark(self, chunk: int) -> str:
        return f"{MARKS}/{key((*self._place(chunk), 0, 0))}"

    def _place(self, chunk: int) -> tuple[int, ...]:
        """Return the place of a chunk along the dimensions."""
        return self._grid.of_swept(tuple(int(i) for i in np.unravel_index(chunk, self._grid.tiles)))


class Share(NamedTuple):
    """What a worker needs to write the chunks it computes: the store as this machine names it, and the run.

    Examples
    --------
    >>> import numpy as np
    >>> from icl_theory.grids.chunks import Share
    >>> from icl_theory.grids.grid import Axis, Grid
    >>> grid = Grid((Axis("x", np.arange(4.0), "", "a number", True),), chunk=2)
    >>> Share("/no/such/folder", "the run", grid, (), b"").put(0, {}) is None
    True
    """

    path: str
    run: str
    grid: Grid
    columns: tuple[Column, ...]
    sweep: bytes

    def put(self, chunk: int, values: Values) -> Rows | None:
        """Write the columns of a chunk, see `Chunks.put`; None where that cannot be done from here."""
        folder = Folder(Path(self.path), MARKS, self.run)
        if not folder.is_of_run():
            return None
        try:
            return Chunks(folder, self.grid, self.columns, self.sweep).put(chunk, values)
        except (OSError, ValueError):  # the run that has the store tries itself, and says why
            return None
