"""What the files of a store say: a Zarr v3 group with an array for each axis and each column of a sweep.

Axes, columns and arguments determine every byte of every file but the chunks. A file that differs in one byte is
therefore not what was written, and none is handed to a library before that is known.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import refuse
from icl_theory.grids.codec import encode
from icl_theory.grids.grid import FILL, MESSAGE, STATUS, Axis, Column, Grid, described

FORMAT = 2
PRIVATE = "_sweep"  # group of what is not part of the dataset
MARKS = f"{PRIVATE}/mark"
METADATA = "zarr.json"
LARGEST = 2**26  # bytes of a file of metadata
AXIS_TYPES = {"f": "float64", "i": "int64", "U": "string"}
COLUMN_TYPES = {"f8": "float64", "i8": "int64", "i1": "int8"}
TEXT = re.compile("O|U[1-9][0-9]{0,2}")
MOST_AXES = 30  # so that marks have less than 32 dimensions, which every NumPy can count
INFINITE = {"Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True)
class Layout:
    """A sweep as a store describes it.

    Parameters
    ----------
    grid : Grid
        Its points.
    columns : tuple of Column
        What is kept per point, status and message at the end.
    arguments : mapping
        Plain values that the results depend on.

    Examples
    --------
    >>> import numpy as np
    >>> from icl_theory.grids.grid import MESSAGE, STATUS, Axis, Column, Grid
    >>> from icl_theory.grids.layout import Layout, parsed
    >>> grid = Grid((Axis("x", np.arange(4.0), "", "a number", True),), chunk=2)
    >>> layout = Layout(grid, (Column("square", "f8", "", "x²"), STATUS, MESSAGE), {"version": "1"})
    >>> sorted(layout.files)[:3], parsed(layout.root).manifest == layout.manifest
    (['_sweep/mark/zarr.json', 'message/zarr.json', 'square/zarr.json'], True)
    """

    grid: Grid
    columns: tuple[Column, ...]
    arguments: Mapping[str, Any]

    def __post_init__(self) -> None:
        names = [axis.name for axis in self.grid.axes] + [column.name for column in self.columns]
        if len({*names, PRIVATE}) <= len(names) or not all(name.isidentifier() for name in names):
            raise refuse("store", names, "made of quantities whose names are different words")
        for column in self.columns:
            if column.dtype not in COLUMN_TYPES and not TEXT.fullmatch(column.dtype):
                raise refuse("store", column.name, "made of columns of dtype f8, i8, i1, O or U1 to U999")
        if len(self.grid.axes) > MOST_AXES:
            raise refuse("store", f"{len(self.grid.axes)} axes", f"made of at most {MOST_AXES}")

    @property
    def swept(self) -> tuple[Axis, ...]:
        """Axes that are dimensions."""
        return self.grid.of_swept(self.grid.axes)

    @cached_property
    def tile(self) -> tuple[int, ...]:
        """Lengths of a chunk along the dimensions."""
        return self.grid.of_swept(self.grid.tile)

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """What tells sweeps apart."""
        return {
            "format": FORMAT,
            "arguments": plain(self.arguments),
            "axes": [
                axis._asdict() | {"values": _listed(axis.values), "type": _type(axis)} for axis in self.grid.axes
            ],
            "chunk": self.grid.chunk,
            "columns": json.loads(json.dumps([column._asdict() for column in self.columns])),
        }

    @cached_property
    def digest(self) -> bytes:
        """Of the manifest."""
        return digest(_written(self.manifest))

    @cached_property
    def root(self) -> bytes:
        """The file that says all, with the metadata of every array: what xarray opens a store by."""
        arguments = self.manifest["arguments"]
        attributes = {name: arguments[name] for name in ("version", "seed") if name in arguments}
        fixed = " ".join(axis.name for axis in self.grid.axes if not axis.swept)
        attributes |= {"coordinates": fixed} if fixed else {}
        attributes |= {
            "arguments": json.dumps(arguments, ensure_ascii=False),
            "icl_theory": self.manifest | {"digest": self.digest.hex()},
        }
        inline = {"kind": "inline", "must_understand": False, "metadata": self._arrays}
        return _written(_group(attributes) | {"consolidated_metadata": inline})

    @cached_property
    def files(self) -> dict[str, bytes]:
        """Every other file by its name: but the record of commands, the chunks and their marks."""
        found = {f"{name}/{METADATA}": _written(array) for name, array in self._arrays.items()}
        shape, part = (*self._tiles, len(self.columns), 2), (*(1 for _ in self._tiles), len(self.columns), 2)
        names = [*(f"tile_{axis.name}" for axis in self.swept), "column", "size_and_digest"]
        found[f"{MARKS}/{METADATA}"] = _written(_array("uint64", shape, part, 0, names, {}))
        for axis in self.grid.axes:
            found[f"{axis.name}/{key(() if not axis.swept else (0,))}"] = encode(axis.values)
        return found

    def commands(self, commands: list[str]) -> bytes:
        """Return the record of the commands that filled the store, bound to it."""
        bound = digest(self.digest, _written(commands)).hex()
        return _written(_group({"commands": commands, "digest": bound}))

    @property
    def _tiles(self) -> tuple[int, ...]:
        return self.grid.of_swept(self.grid.tiles)

    @cached_property
    def _arrays(self) -> dict[str, dict[str, Any]]:
        found = {}
        for axis in self.grid.axes:
            shape, names = ([len(axis.values)], [axis.name]) if axis.swept else ([], [])
            fill = "" if axis.values.dtype.kind == "U" else 0
            found[axis.name] = _array(_type(axis), shape, shape, fill, names, described(axis))
        shape, names = [len(axis.values) for axis in self.swept], [axis.name for axis in self.swept]
        for column in self.columns:
            kind = COLUMN_TYPES.get(column.dtype, "string")
            fill = "NaN" if kind == "float64" else FILL[column.dtype[0]]
            found[column.name] = _array(kind, shape, self.tile, fill, names, described(column))
        return found


def parsed(content: bytes) -> Layout:
    """Return what the main file of a store says.

    Raises
    ------
    ValueError
        Some of it is not what this package writes.
    """
    try:
        document = json.loads(content.decode("utf-8"))
        known = document["attributes"]["icl_theory"]
        if known["format"] != FORMAT:
            raise OtherFormatError(known["format"])
        axes = tuple(_axis(**axis) for axis in known["axes"])
        columns = tuple(
            Column(**column | {"extra": tuple(map(tuple, column["extra"]))}) for column in known["columns"]
        )
        layout = Layout(Grid(axes, known["chunk"]), columns, plain(known["arguments"]))
        same = columns[-2:] == (STATUS, MESSAGE) and layout.root == content
    except OtherFormatError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError, OverflowError):
        same = False
    if not same:
        raise ValueError("it is damaged, or no sweep has written it")
    return layout


class OtherFormatError(ValueError):
    """The format of a store that this version does not read."""

    def __init__(self, found: object) -> None:
        super().__init__(f"it has format {str(found)[:20]}, and this version of the package reads format {FORMAT}")


def listed_commands(content: bytes, layout: Layout) -> list[str]:
    """Return the commands of a record; raise ValueError if it is not that of the store."""
    try:
        commands = json.loads(content.decode("utf-8"))["attributes"]["commands"]
        same = all(isinstance(command, str) for command in commands) and layout.commands(commands) == content
    except (ValueError, TypeError, KeyError, RecursionError):
        same = False
    if not same:
        raise ValueError("it is damaged; without this file the commands are not known, and the sweep is as it was")
    return [*commands]


def key(place: tuple[int, ...]) -> str:
    """Return the name of the file of a chunk, as Zarr has it."""
    return ".".join(["c", *map(str, place)])


def digest(*parts: bytes) -> bytes:
    """Return eight bytes that other parts do not have."""
    return blake2b(b"".join(len(part).to_bytes(8, "little") + part for part in parts), digest_size=8).digest()


def plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments as a file can say them, in the order of their names."""
    return dict(json.loads(json.dumps(dict(arguments), allow_nan=False, sort_keys=True)))


def difference(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    """Name the first few things in which two manifests differ."""
    pairs: dict[str, tuple[Any, Any]] = {"chunk": (found["chunk"], wanted["chunk"])}
    for part in ("arguments", "axes", "columns"):
        old, new = (each[part] for each in (found, wanted))
        if part != "arguments":
            old, new = ({each["name"]: each for each in quantities} for quantities in (old, new))
        pairs |= {name: (old.get(name), new.get(name)) for name in sorted({*old, *new})}
    differences = [
        f"{name} = {_brief(old)} there, {_brief(new)} here" for name, (old, new) in pairs.items() if old != new
    ]
    return "; ".join(differences[:4]) or "its quantities have another order"


def _brief(value: Any) -> str:
    if isinstance(value, dict) and "values" in value:
        values = value["values"]
        text = f"{len(values)} values from {values[0]} to {values[-1]}" if len(values) > 3 else str(values)
        return text if value["swept"] else str(values[0])
    if isinstance(value, dict) and "dtype" in value:
        value = value["description"]
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _type(axis: Axis) -> str:
    return AXIS_TYPES[axis.values.dtype.kind]


def _listed(values: NDArray[Any]) -> list[Any]:
    names = {value: name for name, value in INFINITE.items()}
    return [names.get(value, value) for value in values.tolist()]


def _axis(values: list[Any], type: str, swept: bool, **words: str) -> Axis:
    """Return the axis that a manifest lists."""
    dtype: Any = {"float64": np.float64, "int64": np.int64, "string": np.str_}[type]
    if not values or not (swept or len(values) == 1):
        raise ValueError("an axis has a value, and several only if it is swept")
    listed = [INFINITE.get(value, value) for value in values] if type == "float64" else values
    return Axis(values=np.array(listed, dtype=dtype).reshape(len(values)), swept=bool(swept), **words)


def _group(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)}


def _array(
    kind: str,
    shape: Sequence[int],
    chunk: Sequence[int],
    fill: Any,
    names: list[str],
    attributes: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the metadata of an array."""
    plain_bytes = {"name": "bytes", "configuration": {"endian": "little"}}
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [*shape],
        "data_type": kind,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [*chunk]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "fill_value": fill,
        "codecs": [{"name": "vlen-utf8"} if kind == "string" else plain_bytes, {"name": "crc32c"}],
        "attributes": dict(attributes),
        "dimension_names": names,
    }


def _written(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True, allow_nan=False).encode()
