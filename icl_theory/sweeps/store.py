"""Sweeps on disk: a folder with a Parquet file for each chunk and a JSON manifest.

`opened` opens or makes the store of a sweep for writing, `existing` opens a store for
reading, and `lazy_values` reads the columns of a store a chunk at a time.

A chunk is a block of points that are computed together, and a part is the file of one
chunk. A part is written under a temporary name and renamed when it is complete. Its
name contains the number of the chunk, the size of the file, and a digest of the sweep,
the chunk and the content. Therefore the chunk of an incomplete part is computed
again, and a part that was changed, renamed or copied from another sweep is refused. A
run may end at any moment, and then loses only the chunks that it was computing. A lock
ensures that only one run writes at a time.

A store may come from a stranger. Therefore only plain files of bounded size are read,
and links are never followed.
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

# The name of the manifest. Programs that read the folder as a table ignore files whose
# names begin with an underscore or a dot.
MANIFEST = "_sweep.json"
# The largest size of a manifest in bytes. A larger one would list millions of values;
# parsing it would take much memory.
LARGEST = 2**25
# The modules that are loaded when the first table is read or written. `load_whole`
# loads them beforehand, so that Ctrl-C cannot leave one of them half loaded.
TABLES = (
    "numpy.ma",
    "pandas",
    "pyarrow.parquet",
    "pyarrow.pandas_compat",
)
# The name of the lock file.
LOCK = ".lock"
# The beginning of the names of incomplete files.
TEMPORARY = ".passing-"
# The name of a part: the number of its chunk, its size in bytes in hexadecimal digits,
# and its digest. The number has six digits, because a grid has at most 2^17 chunks.
PART = re.compile(r"part-(?P<chunk>\d{6})-(?P<size>[0-9a-f]{8})-[0-9a-f]{16}\.parquet")
# The last words of an error about a part that cannot be used: they say what to do.
AGAIN = "without this file the same call computes its points again"
# An error about a part shows at most this many characters of the reason, so that the
# error stays short.
SHOWN_CHARACTERS = 100
# The kinds of NumPy's dtypes in which columns hold texts: U for texts of a limited
# length, O for texts of any length.
TEXT_KINDS = "UO"
# Open a file for reading, but follow no link and do not wait at a pipe. On Windows,
# O_BINARY keeps line ends as they are. Each system lacks some of these flags.
_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
)


class Store:
    """The store of one sweep on disk; `opened` and `existing` return it.

    Attributes
    ----------
    path : Path
        The folder.
    manifest : Manifest
        The sweep.
    commands : list of str
        The calls and command lines that filled the store, each once, in the order of
        their first use.
    done : ndarray of bool, shape (chunks,)
        Whether each chunk is complete.
    names : dict of int to str
        The file name of each complete chunk, by the number of the chunk.
    foreign : list of str
        Files in the folder that are no Parquet files and that no sweep has written;
        they are ignored.
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
                # Skip the lock, incomplete files and the manifest.
                if not entry.name.startswith((".", "_")):
                    self._record(entry)

    def _record(self, entry: os.DirEntry[str]) -> None:
        """Record a file of the folder: as a part if it is complete, or as foreign.

        An incomplete part, which a power failure may leave, is not recorded, so that
        its chunk is computed again. A file that is too long is recorded; `read` refuses
        it.
        """
        if not entry.name.lower().endswith(".parquet"):
            self.foreign.append(entry.name)
            return
        # A Parquet file whose name is not the name of a part is refused, because
        # programs that read the folder as a table would take it for a part.
        match = PART.fullmatch(entry.name)
        if match is None:
            raise damaged(
                self.path,
                entry.name,
                "no sweep has written a file of this name in this folder",
            )
        chunk = int(match["chunk"])
        is_outside_grid = chunk >= len(self.done)
        has_another_file = chunk in self.names
        if is_outside_grid or has_another_file:
            raise damaged(
                self.path,
                entry.name,
                "no sweep has written a file of this name in this folder",
            )
        expected_size = int(match["size"], 16)
        if entry.stat(follow_symlinks=False).st_size >= expected_size:
            self._record_part(chunk, entry.name)

    def _record_part(self, chunk: int, name: str) -> None:
        """Record the file ``name`` as the part of a chunk."""
        self.names[chunk] = name
        self.done[chunk] = True

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the store, without status and message."""
        # The manifest has status and message as its last two columns.
        return self.manifest.columns[:-2]

    def note(self, most: int = 3) -> str:
        """Return a sentence that names up to ``most`` ignored files, or ""."""
        if not self.foreign:
            return ""
        names = ", ".join(map(repr, sorted(self.foreign)[:most]))
        if len(self.foreign) > most:
            names += f" and {len(self.foreign) - most:,} more"
        return f"store {str(self.path)!r}: ignored {names}, which no sweep has written"

    def write(self, chunk: int, values: Values) -> None:
        """Write the file of a chunk.

        ``values`` has a column of P points as an array (P,), or as its only value,
        (1,), if it is constant.
        """
        grid = self.manifest.grid
        columns = {}
        # A file also has the parameters of its points, with whole numbers as int64
        # (plain=False). `once` replaces a parameter that is constant in the chunk by
        # its only value.
        for name, parameter in grid.points_of(chunk, plain=False).items():
            columns[name] = once(parameter)
        for column in self.manifest.columns:
            columns[column.name] = values[column.name]
        temporary = self.path / f"{TEMPORARY}{uuid.uuid4().hex}"
        with plain_errors(self.path):
            _write_table(
                temporary, columns, count=int(grid.sizes[chunk]), largest=grid.chunk
            )
            # The file is mapped into memory, and not read, because it may be large.
            with (
                open(temporary, "rb") as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
            ):
                name = part_name(self.manifest, chunk, content)
            os.replace(temporary, self.path / name)
        self._record_part(chunk, name)

    def read(self, chunk: int, columns: Sequence[Column] = ()) -> Values:
        """Return columns of the P points of a chunk by name, (P,) each.

        If ``columns`` is empty, all columns of the store are read. A ValueError is
        raised if the file of the chunk was changed since it was written.
        """
        return dict(_read(self.path, self.manifest, chunk, self.names[chunk], columns))

    def fill(self, columns: Filled) -> None:
        """Read all complete chunks into ``columns``, with a progress display."""
        for chunk in counted(np.flatnonzero(self.done).tolist(), "chunks of the store"):
            name = self.names[chunk]
            columns.place(chunk, _read(self.path, self.manifest, chunk, name))


def _write_table(path: Path, columns: Values, count: int, largest: int) -> None:
    """Write columns of ``count`` points as a Parquet file.

    A column is an array (count,), or a single value for all points. ``largest`` is the
    largest number of points that a chunk of the sweep may have.
    """
    from pyarrow.parquet import write_table

    # These columns have few different values, so a dictionary saves space.
    few_valued = [
        name
        for name, array in columns.items()
        if array.size == 1 or array.dtype.kind in TEXT_KINDS
    ]
    write_table(
        _table(columns, count),
        path,
        # A reader refuses compressed files: a small one may take any amount of memory.
        compression="none",
        use_dictionary=few_valued,
        # `_read` needs neither statistics nor the schema of Arrow.
        write_statistics=False,
        store_schema=False,
        # Write all values of a column as one batch, which is faster than many batches.
        write_batch_size=largest,
    )


def part_name(manifest: Manifest, chunk: int, content: bytes | mmap.mmap) -> str:
    """Return the name of the file that holds a chunk.

    It contains the number of the chunk, the size of the file in bytes, and a digest of
    the sweep, the chunk and the content.
    """
    size = b"%08x" % len(content)
    checksum = b"%08x" % zlib.crc32(content)
    # The digest depends on the sweep and the chunk. So a file that is moved to another
    # store, or renamed as the part of another chunk, has a wrong name.
    file_digest = digest(manifest.digest.encode(), b"%d" % chunk, size, checksum)
    return f"part-{chunk:06d}-{size.decode()}-{file_digest}.parquet"


def _read(
    folder: Path,
    manifest: Manifest,
    chunk: int,
    name: str,
    columns: Sequence[Column] = (),
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the names and values of columns of a chunk of P points, (P,) each.

    ``name`` is the name of the file of the chunk. By default all columns of the store
    are read. They are read one at a time, because a column may take much more memory
    than the file, which may store a constant column as a single value.
    """
    from pyarrow import ArrowException, BufferReader
    from pyarrow.parquet import ParquetFile

    columns = columns or manifest.columns
    count = int(manifest.grid.sizes[chunk])
    content = _content(folder, name, _largest_part(manifest, count))
    if content is None:
        raise damaged(
            folder, name, f"it was removed after the sweep was opened; {AGAIN}"
        )
    if part_name(manifest, chunk, content) != name:
        raise damaged(
            folder,
            name,
            f"it is damaged, or belongs to another sweep or place; {AGAIN}",
        )
    texts = [
        column.name for column in manifest.columns if column.dtype[0] in TEXT_KINDS
    ]
    try:
        # Texts are read as codes of a dictionary. As texts, many copies of a long one
        # would take far more memory than the file.
        file = ParquetFile(BufferReader(content), read_dictionary=texts)
        _check_rows(file, count)
        part = _Part(file, count)
        for column in columns:
            values = part.values(column)
            part.check(column, values)
            yield column.name, values
    # The file has the right digest, so any of these errors means that no sweep has
    # written it. For example, its columns may have other types, whose PyArrow objects
    # lack attributes and methods that are used above. Using them raises a TypeError or
    # an AttributeError.
    except (
        ArrowException,
        OSError,
        LookupError,
        ValueError,
        TypeError,
        AttributeError,
    ) as error:
        reason = " ".join(str(error).split())[:SHOWN_CHARACTERS]
        raise damaged(
            folder, name, f"no sweep has written it ({reason}); {AGAIN}"
        ) from None


def _largest_part(manifest: Manifest, count: int) -> int:
    """Return an upper bound, in bytes, on the size of a part with ``count`` points."""
    column_bytes = sum(np.dtype(column.dtype).itemsize for column in manifest.columns)
    # A number takes eight bytes. Longer words are covered by the allowances below.
    parameter_bytes = 8 * len(manifest.grid.axes)
    # A message has up to LONGEST characters of up to four bytes each in UTF-8.
    message_bytes = 4 * LONGEST
    # The schema and the metadata of the file take less than this generous allowance.
    overhead = 2**20
    return overhead + count * (column_bytes + parameter_bytes + message_bytes)


def _check_rows(file: ParquetFile, count: int) -> None:
    """Refuse a file that does not have ``count`` rows, or that is compressed.

    A compressed file may be small and yet take any amount of memory. `_read` turns the
    ValueError into an error that names the file.
    """
    first_group = file.metadata.row_group(0)
    is_plain = all(
        first_group.column(i).compression == "UNCOMPRESSED"
        for i in range(first_group.num_columns)
    )
    # Sweeps write all rows as one group.
    has_count = first_group.num_rows == file.metadata.num_rows == count
    if not (has_count and is_plain):
        raise ValueError(f"it does not hold {count} points")


class _Part:
    """The open file of a chunk of ``count`` points.

    `values` reads a column, and `check` refuses values that no sweep computes.
    """

    def __init__(self, file: ParquetFile, count: int) -> None:
        self._file = file
        self._count = count

    def values(self, column: Column) -> NDArray[Any]:
        """Return the values of a column, (count,)."""
        # Threads could only read several columns at once.
        table = self._file.read([column.name], use_threads=False)
        return _values(table.column(column.name), column, self._count)

    def check(self, column: Column, values: NDArray[Any]) -> None:
        """Refuse values that no sweep computes.

        Examples are an unknown status, -5 steps, or a reached target without a loss.
        """
        name = column.name
        if name == STATUS.name:
            _check_status(values)
        # Numbers of steps and verdicts are not negative. In an integer column -1 stands
        # for a missing value. A family may also declare such a column with a float
        # type, whose missing value is NaN.
        is_integer = values.dtype.kind == "i"
        may_not_be_negative = column.role in ("steps", "phase", "verdict")
        if is_integer and may_not_be_negative and values.min() < -1:
            raise ValueError(
                f"{name} = {values.min()}: must be >= 0, or -1 if there is no value"
            )
        if column.role == "verdict" and values.max() > 1:
            raise ValueError(f"{name} = {values.max()}: must be 0, 1 or -1")
        if name == "loss":
            self._check_reached(name, np.isnan(values))
        if name == "steps":
            self._check_reached(name, values < 0)

    def _check_reached(self, name: str, is_missing: NDArray[np.bool_]) -> None:
        """Refuse a column that lacks a value at a point that reached its target."""
        if not is_missing.any():
            return
        if (self.values(STATUS)[is_missing] == REACHED).any():
            raise ValueError(f"{name} has no value at a point that reached its target")


def _check_status(values: NDArray[Any]) -> None:
    """Refuse statuses that no evaluated point has."""
    is_allowed = np.zeros(values.shape, dtype=bool)
    # np.isin would sort the values, which takes many times as long.
    for word in DONE:
        is_allowed |= values == word
    wrong = values[~is_allowed]
    if wrong.size:
        allowed = ", ".join(DONE)
        raise ValueError(f"status = {str(wrong[0])!r}: must be one of {allowed}")


def _table(columns: Values, count: int) -> pyarrow.Table:
    """Return columns as a table of ``count`` rows; a single value fills its column."""
    import pyarrow

    arrays = []
    fields = []
    for name, column in columns.items():
        is_text = column.dtype.kind in TEXT_KINDS
        if is_text:
            arrow_type = pyarrow.string()
        else:
            arrow_type = pyarrow.from_numpy_dtype(column.dtype)
        if column.size == 1:
            value = pyarrow.scalar(column.item(), arrow_type)
            arrays.append(pyarrow.repeat(value, count))
        elif is_text:
            arrays.append(pyarrow.array(column.tolist(), arrow_type))
        else:
            arrays.append(pyarrow.array(column, arrow_type))
        # Fields that cannot be null are quicker to write.
        fields.append(pyarrow.field(name, arrow_type, nullable=False))
    return pyarrow.Table.from_arrays(arrays, schema=pyarrow.schema(fields))


def _values(stored: pyarrow.ChunkedArray, column: Column, count: int) -> NDArray[Any]:
    """Return a column of a table as an array, (count,), or refuse it.

    Texts are stored as a dictionary of words and an index into it for each point. If
    all points have the same text, the array is a read-only view of a single value.
    """
    dtype = np.dtype(column.dtype)
    array = stored.combine_chunks()
    if array.null_count or len(array) != count:
        raise ValueError(f"{column.name} has no value for each point")
    if dtype.kind not in TEXT_KINDS:
        values: NDArray[Any] = array.to_numpy()
        if values.dtype != dtype:
            raise ValueError(f"{column.name} has another type")
        return values
    words = array.dictionary.to_pylist()
    # NumPy takes four bytes for each character of a text of fixed length.
    longest = dtype.itemsize // 4 if dtype.kind == "U" else LONGEST
    if any(len(word) > longest for word in words):
        raise ValueError(f"{column.name} has texts that are too long")
    texts = np.array(words, dtype=dtype)
    if len(words) == 1:
        return np.broadcast_to(texts, count)
    return texts[array.indices.to_numpy()]


@contextlib.contextmanager
def opened(
    path: str | os.PathLike[str],
    grid: Grid,
    columns: tuple[Column, ...],
    arguments: Mapping[str, Any],
    command: str | None = None,
) -> Iterator[Store]:
    """Open the store of a sweep, or make it, and keep other runs out while it is open.

    Parameters
    ----------
    path : path-like
        The folder of the store.
    grid, columns, arguments
        The sweep; the columns are without status and message. A store keeps the columns
        with which it was made, so that `Store.columns` may differ from these.
    command : str, optional
        The call or command line that opens the store, which is kept as a record.

    Raises
    ------
    ValueError
        The folder has other files, the store is damaged, it holds another sweep or a
        sweep of another version, or another run has it open.
    OSError
        The folder cannot be read or written.
    """
    folder = checked_path(path, "store")
    check_installed("pyarrow", "filelock")
    load_whole("filelock", *TABLES)
    manifest = Manifest(grid, (*columns, STATUS, MESSAGE), arguments)
    with contextlib.ExitStack() as stack:
        with plain_errors(folder):
            # Refuse a folder of other files or of another sweep before changing it.
            _stored(folder, manifest)
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(_locked(folder))
            # Another run may have made the store before this one had the lock.
            stored = _stored(folder, manifest)
            commands = []
            if stored is not None:
                # The store keeps the columns with which it was made.
                manifest, stored_commands = stored
                commands += stored_commands
            has_changed = stored is None
            if command is not None and command not in commands:
                commands.append(command)
                has_changed = True
            if has_changed:
                _write_manifest(folder, manifest.written(commands))
        yield Store(folder, manifest, commands)


def existing(path: str | os.PathLike[str]) -> Store:
    """Return the store at a path, finished or not; another run may be adding to it."""
    folder = checked_path(path, "store")
    check_installed("pyarrow")
    load_whole(*TABLES)
    with plain_errors(folder):
        stored = _manifest(folder)
    if stored is None:
        raise _no_store(folder, "a store made by a sweep")
    manifest, commands = stored
    return Store(folder, manifest, commands)


def check_installed(*libraries: str, extra: str = "parquet") -> None:
    """Raise an error unless all of the libraries are installed.

    The error says how to install them: ``extra`` is the extra of this package that
    contains them.
    """
    if not all(find_spec(name) for name in libraries):
        raise ValueError(
            f"this store needs {' and '.join(libraries)}: {install(extra)}"
        )


def damaged(folder: Path, name: str, why: str) -> ValueError:
    """Return the error for a file of a store that cannot be used.

    ``why`` says what is wrong with the file.
    """
    return ValueError(f"store {str(folder)!r}: its file {name} cannot be used: {why}")


@contextlib.contextmanager
def plain_errors(path: Path) -> Iterator[None]:
    """Turn an error of the operating system into one line that names the store."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        is_disk_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        if is_disk_full:
            reason += "; its chunks are safe, and the same call continues from them"
        one_line = OSError(f"store {str(path)!r} cannot be used: {reason}")
        # An OSError that is made from a text alone has no number.
        one_line.errno = error.errno
        raise one_line from None


def _manifest(folder: Path) -> tuple[Manifest, list[str]] | None:
    """Return the manifest and the commands of a store; None if it has no manifest.

    A file that cannot be read as a manifest is refused.
    """
    content = _content(folder, MANIFEST, LARGEST)
    try:
        return None if content is None else parsed(content)
    except ValueError as error:
        raise damaged(folder, MANIFEST, str(error)) from None


def _stored(folder: Path, expected: Manifest) -> tuple[Manifest, list[str]] | None:
    """Return the manifest and the commands of a store; None if it must still be made.

    A store of another sweep than the ``expected`` one is refused, and so is a folder of
    other files.
    """
    stored = _manifest(folder)
    if stored is None:
        if folder.is_dir() and not _is_unused(folder):
            raise _no_store(
                folder, "a store made by a sweep, or an empty folder to make one in"
            )
        return None
    manifest, _ = stored
    differences = difference(manifest.facts, expected.facts)
    if differences:
        raise argument_error(
            "store", str(folder), f"one made by the same call: {differences}"
        )
    return stored


def _is_unused(folder: Path) -> bool:
    """Whether a folder is empty, apart from files that an interrupted run left."""
    leftover_prefixes = (LOCK, TEMPORARY)
    return all(name.startswith(leftover_prefixes) for name in os.listdir(folder))


def _no_store(folder: Path, allowed: str) -> ValueError:
    """Return the error for a folder that is not a store.

    ``allowed`` says which folders are accepted.
    """
    # Earlier versions kept a store as a Zarr group.
    if (folder / "zarr.json").exists():
        return ValueError(
            f"store {str(folder)!r} was written by an earlier version of the package "
            "and cannot be read: run the sweep again, in another folder"
        )
    return argument_error("store", str(folder), allowed)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder against other runs, and remove the incomplete files in it.

    If a run is killed, the operating system releases its lock, but its incomplete files
    stay.
    """
    import filelock

    # With a timeout of 0, a lock of another run raises the error at once.
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
        # An error in removing files must not hide an error that was raised while the
        # folder was locked. The next run removes the files that stay.
        with contextlib.suppress(OSError):
            _clear(folder)
        lock.release()


def _clear(folder: Path) -> None:
    """Remove incomplete files, which still have their temporary names."""
    for name in os.listdir(folder):
        if name.startswith(TEMPORARY):
            (folder / name).unlink(missing_ok=True)


def _write_manifest(folder: Path, content: bytes) -> None:
    """Replace the manifest of a store by the bytes ``content``.

    A power failure leaves either the old file or the complete new one: the content is
    on the disk as a temporary file before that file gets the name of the manifest.
    """
    if len(content) > LARGEST:
        raise argument_error(
            "store",
            str(folder),
            f"left out: the values of the parameters take more than {LARGEST} bytes",
        )
    temporary = folder / f"{TEMPORARY}{uuid.uuid4().hex}"
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, folder / MANIFEST)


def _content(folder: Path, name: str, most: int) -> bytes | None:
    """Return the content of a plain file; None if there is no file of this name.

    Links, pipes and files of more than ``most`` bytes are refused.
    """
    try:
        handle = os.open(folder / name, _FLAGS)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        # O_NOFOLLOW gives ELOOP or, on FreeBSD, EMLINK for a link.
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.EISDIR):
            raise damaged(folder, name, "it is no plain file") from None
        raise
    with open(handle, "rb") as file:
        # The open file is checked, and not its name, which may have been given to
        # another file since.
        status = os.fstat(handle)
        size = status.st_size
        if not stat.S_ISREG(status.st_mode):
            raise damaged(folder, name, "it is no plain file")
        if size > most:
            raise damaged(
                folder, name, f"it has {size} bytes, and {most} at most are right"
            )
        return file.read(size)


# The cache is small, because a manifest may take many megabytes.
@lru_cache(maxsize=4)
def _parsed_once(content: bytes) -> Manifest:
    """Return the manifest of a file; the same bytes are parsed only once."""
    manifest, _commands = parsed(content)
    return manifest


def _current_manifest(folder: Path, expected_digest: str) -> Manifest:
    """Return the manifest that a store has now; refuse one with another digest."""
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
    if manifest.digest != expected_digest:
        raise argument_error(
            "store",
            str(folder),
            "the store that this dataset reads part by part; it holds another sweep "
            "now. Read it again with icl_theory.load_sweep",
        )
    return manifest


def _block(
    name: NDArray[np.bytes_],
    path: str,
    column: Column,
    expected_digest: str,
    block_id: tuple[int, ...],
) -> NDArray[Any]:
    """Return a chunk of one column, in the shape of its tile along swept axes.

    The tile of a chunk is the block of the grid that has its points. Dask calls this
    function with ``name``, an array of one file name, and ``block_id``, the indices of
    the tile along the swept axes. If the name is empty, the chunk is pending, and its
    values are missing.

    Anything may have happened to the folder since the dataset was made. So the manifest
    is read again for each chunk, and its digest is compared with ``expected_digest``,
    the digest at that time.
    """
    folder = Path(path)
    manifest = _current_manifest(folder, expected_digest)
    grid = manifest.grid
    chunk = _chunk_at(grid, block_id)
    # The lengths of the tile along the swept axes.
    intervals = grid.of_swept(grid.region(chunk))
    lengths = tuple(interval.stop - interval.start for interval in intervals)
    file = name.item().decode()
    if not file:
        # The view is one value in memory, however many points the store of a stranger
        # claims to have.
        return np.broadcast_to(np.asarray(empty(column), dtype=column.dtype), lengths)
    values = dict(_read(folder, manifest, chunk, file, [column]))
    return values[column.name].reshape(lengths)


def _chunk_at(grid: Grid, block_id: tuple[int, ...]) -> int:
    """Return the number of a tile from its indices ``block_id`` along swept axes."""
    if not grid.axes:
        # NumPy cannot ravel an index without axes. Such a grid has a single tile.
        return 0
    swept_indices = iter(block_id)
    tile_indices = []
    for axis in grid.axes:
        # A fixed axis is no dimension of the dataset. It has a single tile, number 0.
        index = next(swept_indices) if axis.swept else 0
        tile_indices.append(index)
    return int(np.ravel_multi_index(tile_indices, grid.tiles))


# Which tiles of each lazily read store are complete; tiles that are known to be pending
# need not be read. The key is the name of the Dask array that has the statuses of the
# points of the store.
_tiles_done: dict[str, NDArray[np.bool_]] = {}
# `_tiles_done` has at most this many stores; the oldest is forgotten first. A store
# without an entry is still read correctly, but more slowly. The number is a rough
# choice.
MOST_REMEMBERED = 64


def tiles_done(status: Any) -> NDArray[np.bool_] | None:
    """Return which tiles of a lazily read store are complete.

    ``status`` is the Dask array of the store's column of statuses. The result has an
    entry for each tile, and a dimension for each swept axis. It is None if the complete
    tiles are unknown: for an array in memory, for a selection of points, or for an
    array from another process.
    """
    return _tiles_done.get(getattr(status, "name", ""))


def lazy_values(store: Store, missing: Sequence[Column] = ()) -> Values:
    """Return every column of a store as a Dask array, which reads a chunk at a time.

    The arrays have the chunks that are complete now; chunks that another run adds later
    stay pending. The columns in ``missing`` are not in the store, and all their values
    are missing.
    """
    import dask.array

    # These functions of Dask have no type hints, so mypy lets typed code call them only
    # as attributes of a value of type Any.
    dask_array: Any = dask.array
    manifest = store.manifest
    grid = manifest.grid
    chunks = _dask_chunks(grid)
    # The name of a part is shorter than 64 characters. A pending chunk has the empty
    # name.
    file_names = np.full(grid.chunks, b"", dtype="S64")
    for chunk, name in store.names.items():
        file_names[chunk] = name.encode()
    # A fixed axis has a single tile, so it can be left out of the shape.
    file_names = file_names.reshape(grid.of_swept(grid.tiles))
    # Each task of Dask gets the name of the file that it reads, so that no other
    # process has to list the folder.
    parts = dask_array.from_array(file_names, chunks=1)
    path = os.path.abspath(store.path)
    values = {}
    for column in manifest.columns:
        # An empty array tells Dask the type and the number of dimensions of a block.
        meta = np.empty((0,) * len(chunks), dtype=column.dtype)
        block = partial(
            _block, path=path, column=column, expected_digest=manifest.digest
        )
        values[column.name] = dask_array.map_blocks(
            block, parts, chunks=chunks, dtype=meta.dtype, meta=meta
        )
    for column in missing:
        # Dask keeps one value in memory for such a block, however large the block is.
        values[column.name] = dask_array.full(
            grid.of_swept(grid.shape), empty(column), column.dtype, chunks=chunks
        )
    _remember_done(values[STATUS.name], file_names != b"")
    return values


def _remember_done(status: Any, is_done: NDArray[np.bool_]) -> None:
    """Remember which tiles of a store are complete, so that `tiles_done` knows them.

    ``status`` is the Dask array of the store's column of statuses.
    """
    while len(_tiles_done) >= MOST_REMEMBERED:
        # A dictionary keeps the order of insertion, so the first key is the oldest.
        oldest = next(iter(_tiles_done))
        del _tiles_done[oldest]
    _tiles_done[status.name] = is_done


def _dask_chunks(grid: Grid) -> tuple[tuple[int, ...], ...]:
    """Return the lengths of the tiles along each swept axis, as Dask expects them."""
    lengths_by_axis = []
    swept_lengths = grid.of_swept(grid.shape)
    swept_tile = grid.of_swept(grid.tile)
    for axis_length, tile_length in zip(swept_lengths, swept_tile, strict=True):
        starts = range(0, axis_length, tile_length)
        # The last tile along an axis has the remaining points.
        lengths = tuple(min(tile_length, axis_length - start) for start in starts)
        lengths_by_axis.append(lengths)
    return tuple(lengths_by_axis)
