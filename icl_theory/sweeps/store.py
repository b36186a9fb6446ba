"""Sweeps on disk: a folder of Parquet files, one a chunk, and a JSON file that says which sweep it is.

A part is written under a passing name and renamed when it is whole. Its name has its
chunk, its size, and a digest of sweep, chunk and content: a part that was cut is
computed again, and one that was changed, renamed or brought from another sweep is
refused. So a run may end at any moment, and loses the chunks in flight. One run at a
time writes, which has the lock.

A store may come from a stranger: what is read is a plain file of bounded size, never
through a link.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
import stat
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from icl_theory._extras import install
from icl_theory._validate import argument_error
from icl_theory.engine.interrupts import load_whole
from icl_theory.engine.progress import counted
from icl_theory.files import checked_path
from icl_theory.sweeps.grid import (
    DONE,
    LONGEST,
    MESSAGE,
    REACHED,
    STATUS,
    Column,
    Filled,
    Grid,
    Values,
    empty,
    once,
)
from icl_theory.sweeps.manifest import Manifest, difference, digest, parsed

if TYPE_CHECKING:
    import pyarrow
    from pyarrow.parquet import ParquetFile

MANIFEST = (
    "_sweep.json"  # readers of tables leave out names that begin with a line or a dot
)
LARGEST = 2**25  # bytes of it, so that a stranger's takes little memory to parse
# loaded for the first table
TABLES = (
    "numpy.ma",
    "pandas",
    "pyarrow.parquet",
    "pyarrow.pandas_compat",
)
LOCK, PASSING = ".lock", ".passing-"
PART = re.compile(r"part-(\d{6})-([0-9a-f]{8})-[0-9a-f]{16}\.parquet")
AGAIN = "without this file the same call computes its points again"
_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
)


class Store:
    """The chunks of one sweep on disk, from `opened` or `existing`: ``done`` says which there are.

    ``commands`` are the calls and command lines that filled it, each once, in their
    order. ``names`` has the file of each chunk that is done. ``foreign`` are files in
    the folder that no sweep has written, and that are ignored.
    """

    def __init__(self, path: Path, manifest: Manifest, commands: list[str]) -> None:
        self.path = path
        self.manifest = manifest
        self.commands = commands
        self.done: NDArray[np.bool_] = np.zeros(manifest.grid.chunks, dtype=bool)
        self.names: dict[int, str] = {}
        self.foreign: list[str] = []
        with plain_errors(path), os.scandir(path) as entries:
            for entry in entries:
                if not entry.name.startswith((".", "_")):
                    self._find(entry)

    def _find(self, entry: os.DirEntry[str]) -> None:
        """Take up a part that was written to its end."""
        if not entry.name.lower().endswith(".parquet"):
            self.foreign.append(entry.name)
            return
        # Readers of tables would take any other Parquet file for a part of this one.
        found = PART.fullmatch(entry.name)
        chunk = int(found[1]) if found else len(self.done)
        if found is None or chunk >= len(self.done) or chunk in self.names:
            raise damaged(self.path, entry.name, "no sweep has written it there")
        if entry.stat(follow_symlinks=False).st_size >= int(found[2], 16):
            self.names[chunk], self.done[chunk] = entry.name, True

    @property
    def columns(self) -> tuple[Column, ...]:
        """Its columns, without status and message."""
        return self.manifest.columns[:-2]

    def note(self, most: int = 3) -> str:
        """Return a sentence on the files that are ignored, of which it names ``most``; or nothing."""
        if not self.foreign:
            return ""
        shown = ", ".join(map(repr, sorted(self.foreign)[:most]))
        more = (
            f" and {len(self.foreign) - most:,} more"
            if len(self.foreign) > most
            else ""
        )
        return f"store {str(self.path)!r}: ignored {shown}{more}, which no sweep has written"

    def write(self, chunk: int, values: Values) -> None:
        """Keep a chunk: columns as `once` gives them."""
        from pyarrow.parquet import write_table

        grid = self.manifest.grid
        columns = {
            name: once(each)
            for name, each in grid.points_of(chunk, plain=False).items()
        }
        columns |= {
            column.name: values[column.name] for column in self.manifest.columns
        }
        few = [
            name
            for name, column in columns.items()
            if column.size == 1 or column.dtype.kind in "UO"
        ]
        passing = self.path / f"{PASSING}{uuid.uuid4().hex}"
        with plain_errors(self.path):
            write_table(
                _table(columns, int(grid.sizes[chunk])),
                passing,
                compression="none",
                use_dictionary=few,
                write_statistics=False,
                store_schema=False,
                write_batch_size=grid.chunk,
            )
            with (
                open(passing, "rb") as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
            ):
                name = part_name(self.manifest, chunk, content)
            os.replace(passing, self.path / name)
        self.names[chunk], self.done[chunk] = name, True

    def read(self, chunk: int, columns: Sequence[Column] = ()) -> Values:
        """Return columns of a chunk, all of them unless given, (P,) each; refuse a part that is not as written."""
        return dict(_read(self.path, self.manifest, chunk, self.names[chunk], columns))

    def fill(self, columns: Filled) -> None:
        """Put the chunks that there are into columns, and say how far it is if that takes long."""
        for chunk in counted(np.flatnonzero(self.done).tolist(), "chunks of the store"):
            name = self.names[chunk]
            columns.place(chunk, _read(self.path, self.manifest, chunk, name))


def part_name(manifest: Manifest, chunk: int, content: bytes | mmap.mmap) -> str:
    """Return the name of the file that holds a chunk: its number, size and digest."""
    size = b"%08x" % len(content)
    checksum = b"%08x" % zlib.crc32(content)
    bound = digest(manifest.digest.encode(), b"%d" % chunk, size, checksum)
    return f"part-{chunk:06d}-{size.decode()}-{bound}.parquet"


def _read(
    folder: Path,
    manifest: Manifest,
    chunk: int,
    name: str,
    columns: Sequence[Column] = (),
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield columns of a chunk by name, all of them unless given, (P,) each.

    One at a time: a column may take many times as much memory as the file, in which it
    may be a single value.
    """
    from pyarrow import ArrowException, BufferReader
    from pyarrow.parquet import ParquetFile

    columns = columns or manifest.columns
    count = int(manifest.grid.sizes[chunk])
    widths = sum(np.dtype(column.dtype).itemsize for column in manifest.columns)
    most = 2**20 + count * (widths + 8 * len(manifest.grid.axes) + 4 * LONGEST)
    content = _content(folder, name, most)
    if content is None:
        raise damaged(
            folder, name, f"it was removed after the sweep was opened; {AGAIN}"
        )
    if part_name(manifest, chunk, content) != name:
        raise damaged(
            folder, name, f"it is damaged, or of another sweep or place; {AGAIN}"
        )
    texts = [column.name for column in manifest.columns if column.dtype[0] in "UO"]
    try:  # texts come as codes, so that nothing is larger than its file
        file = ParquetFile(BufferReader(content), read_dictionary=texts)
        rows = file.metadata.row_group(0)
        plain = all(
            rows.column(i).compression == "UNCOMPRESSED"
            for i in range(rows.num_columns)
        )
        if not (rows.num_rows == file.metadata.num_rows == count and plain):
            raise ValueError(f"it does not hold {count} points")
        part = _Part(file, count)
        for column in columns:
            values = part.values(column)
            part.check(column, values)
            yield column.name, values
    except (
        ArrowException,
        OSError,
        LookupError,
        ValueError,
        TypeError,
        AttributeError,
    ) as error:
        said = " ".join(str(error).split())[:100]
        raise damaged(
            folder, name, f"no sweep has written it ({said}); {AGAIN}"
        ) from None


class _Part:
    """The open file of a chunk, of which no value is believed before it is checked."""

    def __init__(self, file: ParquetFile, count: int) -> None:
        self._file, self._count = file, count

    def values(self, column: Column) -> NDArray[Any]:
        """Return a column, (P,)."""
        table = self._file.read([column.name], use_threads=False)
        return _values(table.column(column.name), column, self._count)

    def check(self, column: Column, values: NDArray[Any]) -> None:
        """Refuse values that no sweep gives: an unknown status, -5 steps, or no loss at a reached target."""
        if column.name == STATUS.name:
            is_known = np.zeros(values.shape, dtype=bool)
            for word in DONE:  # np.isin sorts, which takes many times as long
                is_known |= values == word
            unknown = values[~is_known]
            if unknown.size:
                allowed = ", ".join(DONE)
                raise ValueError(
                    f"status = {str(unknown[0])!r}: must be one of {allowed}"
                )
        if (
            column.role in ("steps", "phase", "verdict")
            and values.dtype.kind == "i"
            and values.min() < -1
        ):
            raise ValueError(
                f"{column.name} = {values.min()}: must be >= 0, or -1 if there is no value"
            )
        if column.role == "verdict" and values.max() > 1:
            raise ValueError(f"{column.name} = {values.max()}: must be 0, 1 or -1")
        if column.name in ("loss", "steps"):
            missing = np.isnan(values) if column.name == "loss" else values < 0
            if missing.any() and (self.values(STATUS)[missing] == REACHED).any():
                raise ValueError(
                    f"{column.name} has no value at a point that reached its target"
                )


def _table(columns: Values, count: int) -> pyarrow.Table:
    """Return columns as a table of ``count`` rows; no value is missing, which is quicker to write."""
    import pyarrow

    arrays = []
    fields = []
    for name, column in columns.items():
        text = column.dtype.kind in "UO"
        kind = pyarrow.string() if text else pyarrow.from_numpy_dtype(column.dtype)
        if column.size == 1:
            arrays.append(pyarrow.repeat(pyarrow.scalar(column.item(), kind), count))
        else:
            arrays.append(pyarrow.array(column.tolist() if text else column, kind))
        fields.append(pyarrow.field(name, kind, nullable=False))
    return pyarrow.Table.from_arrays(arrays, schema=pyarrow.schema(fields))


def _values(found: pyarrow.ChunkedArray, column: Column, count: int) -> NDArray[Any]:
    """Return a column of a table as an array; one text as a view."""
    dtype = np.dtype(column.dtype)
    array = found.combine_chunks()
    if array.null_count or len(array) != count:
        raise ValueError(f"{column.name} has no value for each point")
    if dtype.kind not in "UO":
        values: NDArray[Any] = array.to_numpy()
        if values.dtype != dtype:
            raise ValueError(f"{column.name} has another type")
        return values
    words = array.dictionary.to_pylist()
    if any(
        len(word) > (dtype.itemsize // 4 if dtype.kind == "U" else LONGEST)
        for word in words
    ):
        raise ValueError(f"{column.name} has texts that are too long")
    texts = np.array(words, dtype=dtype)
    return (
        np.broadcast_to(texts, count)
        if len(words) == 1
        else texts[array.indices.to_numpy()]
    )


@contextlib.contextmanager
def opened(
    path: str | os.PathLike[str],
    grid: Grid,
    columns: tuple[Column, ...],
    arguments: Mapping[str, Any],
    command: str | None = None,
) -> Iterator[Store]:
    """Open the store of a sweep, or make it, and keep other runs out while it is open.

    Columns are those besides status and message; ``command`` is kept for the record, as
    another one may go on. A store keeps the columns that it was made with, so that
    ``manifest`` of the store may have others than these. What is no store, belongs to
    other arguments or another version, is damaged, or is open elsewhere is a
    ValueError.
    """
    folder = checked_path(path, "store")
    check_installed("pyarrow", "filelock")
    load_whole("filelock", *TABLES)
    manifest = Manifest(grid, (*columns, STATUS, MESSAGE), arguments)
    with contextlib.ExitStack() as stack:
        with plain_errors(folder):
            _stored(folder, manifest)
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(_locked(folder))
            # another run may have made it just now
            stored = _stored(folder, manifest)
            commands = []
            if stored is not None:
                manifest, stored_commands = stored
                commands += stored_commands
            is_new_command = command is not None and command not in commands
            if command is not None and is_new_command:
                commands.append(command)
            if stored is None or is_new_command:
                _write(folder, manifest.written(commands))
        yield Store(folder, manifest, commands)


def existing(path: str | os.PathLike[str]) -> Store:
    """Return the store at a path, finished or not, to which another run may be adding."""
    folder = checked_path(path, "store")
    check_installed("pyarrow")
    load_whole(*TABLES)
    with plain_errors(folder):
        found = _manifest(folder)
    if found is None:
        raise _no_store(folder, "a store made by a sweep")
    return Store(folder, *found)


def check_installed(*libraries: str, extra: str = "parquet") -> None:
    """Ask for the libraries of a store if one is missing."""
    if not all(find_spec(name) for name in libraries):
        raise ValueError(
            f"this store needs {' and '.join(libraries)}: {install(extra)}"
        )


def damaged(folder: Path, name: str, why: str) -> ValueError:
    """Return the error for a file that is not what was written."""
    return ValueError(f"store {str(folder)!r}: its file {name} cannot be used: {why}")


@contextlib.contextmanager
def plain_errors(path: Path) -> Iterator[None]:
    """Say what the system refused and where."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = (
            "; what it had is safe, and the same call goes on from it" if full else ""
        )
        said = OSError(f"store {str(path)!r} cannot be used: {reason}{hint}")
        said.errno = error.errno
        raise said from None


def _manifest(folder: Path) -> tuple[Manifest, list[str]] | None:
    """Return what the JSON file of a store says, None if there is none."""
    content = _content(folder, MANIFEST, LARGEST)
    try:
        return None if content is None else parsed(content)
    except ValueError as error:
        raise damaged(folder, MANIFEST, str(error)) from None


def _stored(folder: Path, wanted: Manifest) -> tuple[Manifest, list[str]] | None:
    """Return manifest and commands of a store, None if it is to be made; refuse another sweep, or something else."""
    found = _manifest(folder)
    if found is None:
        if folder.is_dir() and not all(
            name.startswith((LOCK, PASSING)) for name in os.listdir(folder)
        ):
            raise _no_store(
                folder, "a store made by a sweep, or an empty folder to make one in"
            )
        return None
    manifest, _ = found
    named = difference(manifest.facts, wanted.facts)
    if named:
        raise argument_error(
            "store", str(folder), f"one made by the same call: {named}"
        )
    return found


def _no_store(folder: Path, wanted: str) -> ValueError:
    if (folder / "zarr.json").exists():
        return ValueError(
            f"store {str(folder)!r} was written by an earlier version of the package and cannot be read: "
            "run the sweep again, in another folder"
        )
    return argument_error("store", str(folder), wanted)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other runs out, and remove what one that was killed has left; that one keeps nobody out."""
    import filelock

    lock = filelock.FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise argument_error(
            "store", str(folder), "used by one run at a time, and another has it open"
        ) from None
    try:
        _clear(folder)
        yield
    finally:
        with contextlib.suppress(OSError):
            _clear(folder)
        lock.release()


def _clear(folder: Path) -> None:
    """Remove what was not written to its end."""
    for name in os.listdir(folder):
        if name.startswith(PASSING):
            (folder / name).unlink(missing_ok=True)


def _write(folder: Path, content: bytes) -> None:
    """Put the JSON file in its place whole, when the disk has it."""
    if len(content) > LARGEST:
        raise argument_error(
            "store",
            str(folder),
            f"left out: the values of the parameters take more than {LARGEST} bytes",
        )
    passing = folder / f"{PASSING}{uuid.uuid4().hex}"
    with open(passing, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(passing, folder / MANIFEST)


def _content(folder: Path, name: str, most: int) -> bytes | None:
    """Return the content of a plain file, None if there is none; refuse one of more than ``most`` bytes."""
    try:
        handle = os.open(folder / name, _FLAGS)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.EISDIR):
            raise damaged(folder, name, "it is no plain file") from None
        raise
    with open(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise damaged(folder, name, "it is no plain file")
        if found.st_size > most:
            raise damaged(
                folder,
                name,
                f"it has {found.st_size} bytes, and {most} at most are right",
            )
        return file.read(found.st_size)


@lru_cache(maxsize=4)
def _parsed_once(content: bytes) -> Manifest:
    return parsed(content)[0]


def _manifest_of(folder: Path, wanted: str) -> Manifest:
    """Return what the JSON file of a store says now; refuse a sweep other than the one with a digest."""
    with plain_errors(folder):
        content = _content(folder, MANIFEST, LARGEST)
    if content is None:
        raise argument_error(
            "store",
            str(folder),
            "the store that this dataset reads part by part; it was removed",
        )
    try:
        manifest = _parsed_once(content)
    except ValueError as error:
        raise damaged(folder, MANIFEST, str(error)) from None
    if manifest.digest != wanted:
        again = "it holds another sweep now. Read it again with icl_theory.load_sweep"
        raise argument_error(
            "store",
            str(folder),
            f"the store that this dataset reads part by part; {again}",
        )
    return manifest


def _block(
    name: NDArray[np.bytes_],
    path: str,
    column: Column,
    wanted: str,
    block_id: tuple[int, ...],
) -> NDArray[Any]:
    """Return a chunk of one column from the file of a name, or what stands for a chunk that is pending.

    The folder is looked at anew for each chunk, as anything may have happened to it:
    ``wanted`` is the digest of the sweep that it held when the dataset was made.
    """
    folder = Path(path)
    manifest = _manifest_of(folder, wanted)
    grid = manifest.grid
    swept = iter(block_id)
    place = [next(swept) if axis.swept else 0 for axis in grid.axes]
    chunk = int(np.ravel_multi_index(place, grid.tiles)) if place else 0
    lengths = tuple(
        part.stop - part.start for part in grid.of_swept(grid.region(chunk))
    )
    file = name.item().decode()
    if not file:
        # one value in memory, however many points a stranger's store claims
        return np.broadcast_to(np.asarray(empty(column), dtype=column.dtype), lengths)
    [(_, values)] = _read(folder, manifest, chunk, file, [column])
    return values.reshape(lengths)


_tiles_done: dict[
    str, NDArray[np.bool_]
] = {}  # by the name of the Dask array of a status
MOST_REMEMBERED = 64


def tiles_done(status: Any) -> NDArray[np.bool_] | None:
    """Return which chunks of a status that is read from a store are done, in their places.

    None if that is not known: where it is an array in memory, a part of what was read,
    or from another process.
    """
    return _tiles_done.get(getattr(status, "name", ""))


def lazy_values(store: Store, missing: Sequence[Column] = ()) -> Values:
    """Return every column of a store as a Dask array over the swept axes, which reads a chunk at a time.

    They have the chunks that are done now: those that another run adds stay pending.
    Columns ``missing`` in the store are arrays without values.
    """
    from dask.array import from_array, full, map_blocks

    reading: Any = map_blocks
    names_of: Any = from_array
    filling: Any = full
    grid, manifest = store.manifest.grid, store.manifest
    lengths = zip(grid.of_swept(grid.shape), grid.of_swept(grid.tile), strict=True)
    chunks = tuple(
        tuple(min(part, length - at) for at in range(0, length, part))
        for length, part in lengths
    )
    names = np.full(grid.chunks, b"", dtype="S64")
    for chunk, name in store.names.items():
        names[chunk] = name.encode()
    names = names.reshape(grid.of_swept(grid.tiles))
    # each task gets the name of its own file, so that a process elsewhere needs to list
    # no folder
    parts = names_of(names, chunks=1)
    path = os.path.abspath(store.path)
    found = {}
    for column in manifest.columns:
        meta = np.empty((0,) * len(chunks), dtype=column.dtype)
        block = partial(_block, path=path, column=column, wanted=manifest.digest)
        found[column.name] = reading(
            block, parts, chunks=chunks, dtype=meta.dtype, meta=meta
        )
    for column in missing:
        # Dask makes such a block of one value in memory, however large it is.
        found[column.name] = filling(
            grid.of_swept(grid.shape), empty(column), column.dtype, chunks=chunks
        )
    while len(_tiles_done) >= MOST_REMEMBERED:
        del _tiles_done[next(iter(_tiles_done))]
    _tiles_done[found[STATUS.name].name] = names != b""
    return found
