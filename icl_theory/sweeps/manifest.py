"""What the JSON file of a store says: which sweep it is of, and by which commands it was filled.

Axes, columns, arguments and commands determine every byte of the file. One that differs
in a byte is damaged, or something else has written it; and everything in it is bounded
before anything is built from it.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icl_theory._version import __version__
from icl_theory.sweeps.grid import MESSAGE, STATUS, Axis, Column, Grid

FORMAT = 3
MOST_AXES = 30  # so that NumPy can index the grid
MOST_CHARACTERS = 2**25  # of the words of an axis, each as long as the longest
AXIS_TYPES = {"f": "float64", "i": "int64", "U": "str"}
COLUMN_TYPES = {"f8", "i8", "i1", "O", *(f"U{length}" for length in range(1, 1000))}
# of every column in a dataset
ATTRIBUTES = {"units", "description", "symbol", "tex", "role"}
INFINITE = {"Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True)
class Manifest:
    """Which sweep a store is of: its points, the columns that are kept, and plain arguments."""

    grid: Grid
    columns: tuple[Column, ...]
    arguments: Mapping[str, Any]

    def __post_init__(self) -> None:
        names = [
            *(axis.name for axis in self.grid.axes),
            *(column.name for column in self.columns),
        ]
        if len(set(names)) < len(names) or not all(
            name.isidentifier() for name in names
        ):
            raise ValueError(
                f"a store needs quantities whose names are different words: {names}"
            )
        if len(self.grid.axes) > MOST_AXES:
            raise ValueError(
                f"a store needs at most {MOST_AXES} parameters, not {len(self.grid.axes)}"
            )
        if not COLUMN_TYPES.issuperset(column.dtype for column in self.columns):
            raise ValueError(
                "a store needs columns of dtype f8, i8, i1, O or U1 to U999"
            )

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What tells sweeps apart."""
        return {
            "format": FORMAT,
            "arguments": plain(self.arguments),
            "axes": [
                axis._asdict()
                | {
                    "values": _listed(axis.values),
                    "type": AXIS_TYPES[axis.values.dtype.kind],
                }
                for axis in self.grid.axes
            ],
            "chunk": self.grid.chunk,
            "columns": json.loads(
                json.dumps([column._asdict() for column in self.columns])
            ),
        }

    @cached_property
    def digest(self) -> str:
        """Of these facts."""
        return digest(_bytes(self.facts))

    def written(self, commands: Sequence[str]) -> bytes:
        """Return the content of the file: facts, commands, and their digest."""
        said = self.facts | {"commands": [*commands]}
        return _bytes(said | {"digest": digest(_bytes(said))})


def parsed(content: bytes) -> tuple[Manifest, list[str]]:
    """Return what the file says and the commands in it; refuse what this package does not write."""
    wrong = "it is damaged, or no sweep has written it"
    with contextlib.suppress(
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        RecursionError,
        OverflowError,
    ):
        said = json.loads(content.decode("utf-8"))
        if said["format"] == FORMAT:
            axes = tuple(_axis(**axis) for axis in said["axes"][: MOST_AXES + 1])
            columns = tuple(_column(**fields) for fields in said["columns"])
            found = Manifest(
                Grid(axes, said["chunk"]), columns, plain(said["arguments"])
            )
            commands = [command + "" for command in said["commands"]]
            if columns[-2:] == (STATUS, MESSAGE) and found.written(commands) == content:
                return found, commands
        else:
            wrong = _other_format(said)
    raise ValueError(wrong)


def _other_format(said: dict[str, Any]) -> str:
    """Say which format the file has, and which version of the package wrote it."""
    arguments = said.get("arguments")
    version = arguments.get("version") if isinstance(arguments, dict) else None
    writer = "" if version is None else f", written by version {_short(version)}"
    return (
        f"it has format {_short(said['format'])}{writer}; "
        f"this version of the package, {__version__}, reads format {FORMAT}"
    )


def _short(value: Any) -> str:
    return " ".join(str(value)[:20].split())


def digest(*parts: bytes) -> str:
    """Return sixteen hexadecimal digits that other parts do not have."""
    return sha256(
        b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    ).hexdigest()[:16]


def plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments as a file can say them, in the order of their names."""
    return dict(
        json.loads(json.dumps(dict(arguments), allow_nan=False, sort_keys=True))
    )


def difference(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    """Name the first few things in which the facts of two sweeps differ, "" if none.

    A column that only one of them has is no difference: see `stored_columns`.
    """
    pairs: dict[str, tuple[Any, Any]] = {"chunk": (found["chunk"], wanted["chunk"])}
    for part in ("arguments", "axes", "columns"):
        old, new = (each[part] for each in (found, wanted))
        if part != "arguments":
            old, new = (
                {each["name"]: each for each in quantities} for quantities in (old, new)
            )
        names = old.keys() & new.keys() if part == "columns" else {*old, *new}
        pairs |= {name: (old.get(name), new.get(name)) for name in sorted(names)}
    differences = [
        f"{name} = {_brief(old)} there, {_brief(new)} here"
        for name, (old, new) in pairs.items()
        if old != new
    ]
    if differences:
        return "; ".join(differences[:4])
    same_order = found["axes"] == wanted["axes"]
    return "" if same_order else "its quantities have another order"


def _brief(value: Any) -> str:
    if isinstance(value, dict) and "values" in value:
        values = value["values"]
        text = (
            f"{len(values)} values from {values[0]} to {values[-1]}"
            if len(values) > 3
            else str(values)
        )
        return text if value["swept"] else str(values[0])
    if isinstance(value, dict) and "dtype" in value:
        value = value["description"]
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _listed(values: NDArray[Any]) -> list[Any]:
    names = {value: name for name, value in INFINITE.items()}
    return [names.get(value, value) for value in values.tolist()]


def _axis(values: list[Any], type: str, swept: bool, **words: str) -> Axis:
    dtype: Any = {"float64": np.float64, "int64": np.int64, "str": np.str_}[type]
    if not values or not (swept or len(values) == 1):
        raise ValueError("an axis has a value, and several only if it is swept")
    if type == "str" and len(values) * max(map(len, values)) > MOST_CHARACTERS:
        raise ValueError("its words take too much memory")
    listed = (
        [INFINITE.get(value, value) for value in values]
        if type == "float64"
        else values
    )
    _check_texts(words.values())
    return Axis(
        values=np.array(listed, dtype=dtype).reshape(len(values)),
        swept=bool(swept),
        **words,
    )


def _column(extra: list[list[Any]], **words: str) -> Column:
    _check_texts(words.values())
    attributes: list[tuple[str, Any]] = []
    for name, value in extra:
        _check_texts([name])
        # A stored column may be one that no code knows. Its attributes become those of
        # a dataset, and must not replace the ones that every column has.
        if name in ATTRIBUTES:
            raise ValueError("a column has further attributes of other names")
        if isinstance(value, list):
            _check_texts(value)
            attributes.append((name, tuple(value)))
        elif isinstance(value, str | int | float):
            attributes.append((name, value))
        else:
            raise TypeError("an attribute is a text, a number, or several texts")
    return Column(extra=tuple(attributes), **words)


def _check_texts(values: Iterable[Any]) -> None:
    if not all(isinstance(value, str) for value in values):
        raise TypeError("a quantity is described by texts")


def _bytes(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True, allow_nan=False).encode()
