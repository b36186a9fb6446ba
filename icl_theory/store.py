"""Sweeps on disk: a zarr group that a killed run leaves whole, and that the same call goes on with.

A chunk is two or three files and then its mark, the checksum of what they hold. Only a chunk whose mark fits
counts, so that a run may end at any moment, by any signal or a full disk, and loses the chunks in flight.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import refuse
from icl_theory.files import replacing
from icl_theory.grid import MESSAGE, STATUS, Column, Grid, Values

FORMAT = 1
TABLES: dict[str, Any] = {"real": np.float64, "whole": np.int64, "text": str}
TABLE_OF = {"f": "real", "i": "whole", "U": "text", "O": "text"}  # by the kind of a column's dtype
LOCK = ".lock"
COMMANDS = ".commands.json"  # beside the manifest, which alone tells sweeps apart, and is never written again
_open_here: set[Path] = set()  # a process does not keep itself out by its locks
NEEDED = "a store needs zarr: pip install 'icl-theory[distributed]'"


class Store:
    """The chunks of one sweep on disk; use `opened` to get one.

    Attributes
    ----------
    done : ndarray of bool, (chunks,)
        Which chunks it has.
    """

    def __init__(self, path: Path, group: Any, grid: Grid, columns: tuple[Column, ...]) -> None:
        self.path, self._grid = path, grid
        self._names: dict[str, list[str]] = {}
        for column in (*columns, STATUS, MESSAGE):
            self._names.setdefault(TABLE_OF[column.dtype[0]], []).append(column.name)
        self._dtypes = {column.name: column.dtype for column in (*columns, STATUS, MESSAGE)}
        with _plain_errors(path):
            self._arrays = {name: group[name] for name in self._names}
            self._marks = group["done"]
            self.done: NDArray[np.bool_] = np.array([self._is_whole(chunk) for chunk in range(grid.chunks)])

    def write(self, chunk: int, values: Values) -> None:
        """Keep a chunk: its data first, then the mark that makes them count."""
        tables = {kind: self._table(kind, values) for kind in self._names}
        with _plain_errors(self.path):
            for kind, table in tables.items():
                self._arrays[kind][self._grid.span(chunk)] = table
            self._marks[chunk] = _checksum(tables)
        self.done[chunk] = True

    def read(self, chunk: int) -> Values:
        """Return the columns of a chunk."""
        with _plain_errors(self.path):
            tables = self._tables(chunk)
        return {
            name: table[:, i].astype(self._dtypes[name])
            for kind, table in tables.items()
            for i, name in enumerate(self._names[kind])
        }

    def _table(self, kind: str, values: Values) -> NDArray[Any]:
        dtype = object if kind == "text" else TABLES[kind]
        return np.stack([values[name].astype(dtype) for name in self._names[kind]], axis=1)

    def _tables(self, chunk: int) -> dict[str, NDArray[Any]]:
        span = self._grid.span(chunk)
        return {
            kind: np.asarray(array[span], dtype=object if kind == "text" else None)
            for kind, array in self._arrays.items()
        }

    def _is_whole(self, chunk: int) -> bool:
        try:
            mark = int(self._marks[chunk])
            return mark != 0 and mark == _checksum(self._tables(chunk))
        except OSError:
            raise
        except Exception:  # half a file, of which each codec complains in its own way
            return False


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
        zarr is missing, the folder is something else, it belongs to other arguments or another version (and
        the message names the difference), or another run has it open.
    OSError
        The path cannot be written, or the disk is full.
    """
    target = Path(path)
    zarr = _zarr()
    if target.suffix != ".zarr":
        raise refuse("store", str(path), "a folder name ending in .zarr")
    wanted = _manifest(grid, columns, arguments)
    with _plain_errors(target):
        target.mkdir(parents=True, exist_ok=True)
        lock = _lock(target)
    try:
        with _plain_errors(target):
            group = _group(zarr, target, wanted, columns)
            _record(target, command)
        yield Store(target, group, grid, columns)
    finally:
        _open_here.discard(target.resolve())
        os.close(lock)


def reader(path: str | os.PathLike[str], grid: Grid, columns: tuple[Column, ...]) -> Store:
    """Open a store to read what it has, also while a run is adding to it."""
    with _plain_errors(Path(path)):
        return Store(Path(path), _zarr().open_group(Path(path), mode="r"), grid, columns)


def read_manifest(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what a store was made for: axes, chunk size, arguments.

    Raises
    ------
    ValueError
        It is no store of a sweep.
    """
    zarr = _zarr()
    target = Path(path)
    known = None
    with _plain_errors(target):
        if (target / "zarr.json").is_file():
            with contextlib.suppress(ValueError, KeyError):
                known = zarr.open_group(target, mode="r").attrs.get("icl_theory")
    if known is None:
        raise refuse("store", str(path), "a store made by a sweep")
    return dict(known)


def read_commands(path: str | os.PathLike[str]) -> list[str]:
    """Return the calls and command lines that a store was filled by, the first one first, each once."""
    try:
        found = json.loads((Path(path) / COMMANDS).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # a record only: nothing that the store needs
        return []
    return [str(command) for command in found] if isinstance(found, list) else []


def _record(target: Path, command: str | None) -> None:
    known = read_commands(target)
    if command is not None and command not in known:
        with replacing(target / COMMANDS) as temporary:
            temporary.write_text(json.dumps([*known, command]), encoding="utf-8")


def _zarr() -> Any:
    try:
        import zarr
    except ImportError:
        raise ValueError(NEEDED) from None
    return zarr


def _manifest(grid: Grid, columns: tuple[Column, ...], arguments: Mapping[str, Any]) -> dict[str, Any]:
    axes = {axis.name: {"values": axis.values.tolist(), "swept": axis.swept} for axis in grid.axes}
    for axis in axes.values():
        axis["values"] = ["inf" if value == np.inf else value for value in axis["values"]]
    return {
        "format": FORMAT,
        "arguments": json.loads(json.dumps(dict(arguments), allow_nan=False)),
        "axes": axes,
        "chunk": grid.chunk,
        "columns": [column.name for column in columns],
    }


def _group(zarr: Any, target: Path, wanted: dict[str, Any], columns: tuple[Column, ...]) -> Any:
    """Open the group if it was made for the same, or make it."""
    if not any(entry.name != LOCK for entry in target.iterdir()):
        zarr.create_group(target, attributes={"icl_theory": wanted})
    found = read_manifest(target)
    if found != wanted:
        raise refuse("store", str(target), f"one made by the same call: {_difference(found, wanted)}")
    group = zarr.open_group(target, mode="r+")
    size = int(np.prod([len(axis["values"]) for axis in wanted["axes"].values()], dtype=np.int64))
    chunk = min(wanted["chunk"], size)
    kinds = [TABLE_OF[column.dtype[0]] for column in (*columns, STATUS, MESSAGE)]
    for kind, dtype in TABLES.items():
        width = kinds.count(kind)
        if width and kind not in group:
            group.create_array(kind, shape=(size, width), chunks=(chunk, width), dtype=dtype)
    if "done" not in group:
        group.create_array("done", shape=(-(-size // wanted["chunk"]),), chunks=(1,), dtype=np.uint64)
    return group


def _difference(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    """Name the first few things in which two manifests differ."""
    pairs = {name: (found.get(name), wanted[name]) for name in ("format", "chunk", "columns")}
    for part in ("arguments", "axes"):
        old, new = found.get(part, {}), wanted[part]
        pairs |= {name: (old.get(name), new.get(name)) for name in sorted({*old, *new})}
    differences = [
        f"{name} = {_brief(old)} there, {_brief(new)} here" for name, (old, new) in pairs.items() if old != new
    ]
    return "; ".join(differences[:4])


def _brief(value: Any) -> str:
    if isinstance(value, dict) and "values" in value:
        values = value["values"]
        text = f"{len(values)} values from {values[0]} to {values[-1]}" if len(values) > 3 else str(values)
        return text if value["swept"] else str(values[0])
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _lock(target: Path) -> int:
    """Lock the store for as long as this process lives: a run that was killed holds nothing, nor do its workers."""
    try:
        import fcntl
    except ImportError:
        raise refuse("store", str(target), "left out on this system: it has no file locks") from None
    busy = refuse("store", str(target), "used by one run at a time, and another has it open")
    if target.resolve() in _open_here:
        raise busy
    handle = os.open(target / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        os.close(handle)
        raise busy from None
    _open_here.add(target.resolve())
    return handle


@contextlib.contextmanager
def _plain_errors(path: Path) -> Iterator[None]:
    """Say what the system refused and where."""
    try:
        yield
    except OSError as error:
        if isinstance(error, ChildProcessError) or getattr(error, "icl_theory_said", False):
            raise
        reason = os.strerror(error.errno) if error.errno else str(error)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = "; what it had is safe, and the same call goes on from it" if full else ""
        said = OSError(f"store {str(path)!r} cannot be used: {reason}{hint}")
        said.errno, said.icl_theory_said = error.errno, True  # type: ignore[attr-defined]
        raise said from None


def _checksum(tables: Mapping[str, NDArray[Any]]) -> int:
    """CRC-32 of a chunk's data, plus one: never zero."""
    total = 0
    for kind in sorted(tables):
        table = tables[kind]
        raw = (
            json.dumps(table.tolist()).encode() if table.dtype == object else np.ascontiguousarray(table).tobytes()
        )
        total = zlib.crc32(raw, total)
    return total + 1
