"""The JSON file of a store: it says which sweep the store holds and how it was filled.

`Manifest.written` makes the bytes of the file, `parsed` reads them again, and
`difference` says how two sweeps differ.

Axes, columns, arguments and commands determine every byte of the file. If one byte
differs, the file is damaged or another program has written it. The file may come from a
stranger, so all sizes in it are bounded before anything is built from it.
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

from icl_theory._version import __version__
from icl_theory.sweeps.grid import MESSAGE, STATUS, Axis, Column, Grid

# The number of this format of files; a change of the format needs another number.
FORMAT = 3
# The largest number of axes, so that NumPy can index the grid. (Before NumPy 2, arrays
# had at most 32 dimensions.)
MOST_AXES = 30
# The largest number of characters of all words of an axis, each counted with the length
# of the longest. NumPy takes four bytes for a character, so this is 128 MiB.
MOST_CHARACTERS = 2**25
# The word for the type of an axis in the file, by the kind of the NumPy dtype of its
# values; and the NumPy dtype by this word.
AXIS_TYPES = {"f": "float64", "i": "int64", "U": "str"}
AXIS_DTYPES: dict[str, Any] = {"float64": np.float64, "int64": np.int64, "str": np.str_}
# The dtypes that a column may have.
COLUMN_TYPES = {"f8", "i8", "i1", "O", *(f"U{length}" for length in range(1, 1000))}
# The attributes in a dataset that come from the fields of a column other than
# ``extra``, its further attributes.
ATTRIBUTES = {"units", "description", "symbol", "tex", "role"}
# The largest number of characters with which an error describes an argument or a
# column.
LONGEST_FACT = 60
# JSON has no infinite numbers, so the file has words for them.
INFINITE = {"Infinity": math.inf, "-Infinity": -math.inf}
INFINITE_NAMES = {value: name for name, value in INFINITE.items()}
# Errors that may occur while reading a file that no sweep has written.
UNREADABLE = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    RecursionError,
    OverflowError,
)


@dataclass(frozen=True)
class Manifest:
    """The sweep that a store holds.

    Parameters
    ----------
    grid : Grid
        The points of the sweep.
    columns : tuple of Column
        The columns that the store keeps, with status and message.
    arguments : mapping
        The arguments that all points share, as plain JSON.
    """

    grid: Grid
    columns: tuple[Column, ...]
    arguments: Mapping[str, Any]

    def __post_init__(self) -> None:
        axes = self.grid.axes
        names = [axis.name for axis in axes]
        names += [column.name for column in self.columns]
        are_unique = len(set(names)) == len(names)
        are_words = all(name.isidentifier() for name in names)
        if not (are_unique and are_words):
            raise ValueError(
                f"a store needs quantities whose names are different words: {names}"
            )
        if len(axes) > MOST_AXES:
            raise ValueError(
                f"a store needs at most {MOST_AXES} parameters, not {len(axes)}"
            )
        if not COLUMN_TYPES.issuperset(column.dtype for column in self.columns):
            raise ValueError(
                "a store needs columns of dtype f8, i8, i1, O or U1 to U999"
            )

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The plain JSON that distinguishes this sweep from any other."""
        return {
            "format": FORMAT,
            "arguments": plain(self.arguments),
            "axes": [_axis_facts(axis) for axis in self.grid.axes],
            "chunk": self.grid.chunk,
            "columns": [_column_facts(column) for column in self.columns],
        }

    @cached_property
    def digest(self) -> str:
        """The digest of `facts`.

        The names of the store's parts, the files of its chunks, depend on this digest.
        """
        return digest(_bytes(self.facts))

    def written(self, commands: Sequence[str]) -> bytes:
        """Return the content of the file: facts, commands, and their digest."""
        document = self.facts | {"commands": [*commands]}
        return _bytes(document | {"digest": digest(_bytes(document))})


def parsed(content: bytes) -> tuple[Manifest, list[str]]:
    """Return the manifest and the commands that the bytes of a file stand for.

    Bytes that `Manifest.written` has not made are refused.
    """
    problem = "it is damaged, or no sweep has written it"
    # Reading a file that is no manifest may raise many errors. They are suppressed, and
    # the ValueError below is raised instead.
    with contextlib.suppress(*UNREADABLE):
        document = json.loads(content.decode("utf-8"))
        if document["format"] == FORMAT:
            manifest, commands = _from_document(document)
            last_columns = _names_and_dtypes(manifest.columns[-2:])
            has_status = last_columns == _names_and_dtypes((STATUS, MESSAGE))
            # If the file is undamaged, writing the manifest again gives exactly its
            # bytes.
            if has_status and manifest.written(commands) == content:
                return manifest, commands
        else:
            problem = _other_format(document)
    raise ValueError(problem)


def _names_and_dtypes(columns: Sequence[Column]) -> list[tuple[str, str]]:
    """Return the names and dtypes, which all versions share, unlike descriptions."""
    return [(column.name, column.dtype) for column in columns]


def _from_document(document: dict[str, Any]) -> tuple[Manifest, list[str]]:
    """Return the manifest and the commands of a document, or refuse one too large."""
    # The first MOST_AXES + 1 axes are enough for Manifest to refuse too many.
    axes = tuple(_axis(**facts) for facts in document["axes"][: MOST_AXES + 1])
    columns = tuple(_column(**facts) for facts in document["columns"])
    grid = Grid(axes, document["chunk"])
    manifest = Manifest(grid, columns, plain(document["arguments"]))
    commands = [*document["commands"]]
    _check_texts(commands)
    return manifest, commands


def _other_format(document: dict[str, Any]) -> str:
    """Say which format a file has, and which version wrote it if the file says so."""
    arguments = document.get("arguments")
    writer = ""
    if isinstance(arguments, dict) and "version" in arguments:
        writer = f", written by version {_short(arguments['version'])}"
    return (
        f"it has format {_short(document['format'])}{writer}; "
        f"this version of the package, {__version__}, reads format {FORMAT}"
    )


def _short(value: Any) -> str:
    """Return the first few characters of a value, which may be long, on one line."""
    return " ".join(str(value)[:20].split())


def digest(*parts: bytes) -> str:
    """Return sixteen hexadecimal digits of the SHA-256 digest of the parts."""
    # With the length before each part, (b"ab", b"") and (b"a", b"b") differ.
    joined = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    return sha256(joined).hexdigest()[:16]


def plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments as they are after JSON has written and read them.

    Tuples become lists, so that new arguments can be compared with stored ones.
    """
    text = json.dumps(dict(arguments), allow_nan=False, sort_keys=True)
    return dict(json.loads(text))


def difference(stored: dict[str, Any], new: dict[str, Any], most: int = 4) -> str:
    """Return up to ``most`` differences of two sweeps, or "" if they are the same.

    The sweeps are given by `Manifest.facts`. A column that only one of them has does
    not count as a difference; see `icl_theory.sweeps.stored_columns`.
    """
    # Pairs of a stored and a new fact, by name.
    pairs = {"chunk": (stored["chunk"], new["chunk"])}
    pairs |= _pairs(stored["arguments"], new["arguments"])
    pairs |= _pairs(_by_name(stored["axes"]), _by_name(new["axes"]))
    stored_columns = _by_name(stored["columns"])
    new_columns = _by_name(new["columns"])
    for name in sorted(stored_columns.keys() & new_columns.keys()):
        pairs[name] = (stored_columns[name], new_columns[name])
    differences = [
        f"{name} = {_brief(stored_fact)} there, {_brief(new_fact)} here"
        for name, (stored_fact, new_fact) in pairs.items()
        if stored_fact != new_fact
    ]
    if differences:
        return "; ".join(differences[:most])
    # No axis differs, so the two lists of axes can differ only in their order.
    if stored["axes"] != new["axes"]:
        return "its parameters are in another order"
    return ""


def _by_name(quantities: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the facts of axes or columns by name."""
    return {quantity["name"]: quantity for quantity in quantities}


def _pairs(stored: dict[str, Any], new: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the stored and the new fact of each name, with None for a missing one."""
    names = sorted(stored.keys() | new.keys())
    return {name: (stored.get(name), new.get(name)) for name in names}


def _brief(fact: Any) -> str:
    """Describe an argument, an axis or a column in a few words."""
    is_axis = isinstance(fact, dict) and "values" in fact
    is_column = isinstance(fact, dict) and "dtype" in fact
    if is_axis:
        return _brief_axis(fact["values"], fact["swept"])
    text = repr(fact["description"] if is_column else fact)
    if len(text) > LONGEST_FACT:
        text = text[: LONGEST_FACT - len("...")] + "..."
    return text


def _brief_axis(values: list[Any], swept: bool) -> str:
    """Return the values of an axis, or their number and ends if they are many."""
    if not swept:
        return str(values[0])
    if len(values) <= 3:
        return str(values)
    return f"{len(values)} values from {values[0]} to {values[-1]}"


def _axis_facts(axis: Axis) -> dict[str, Any]:
    """Return an axis as plain JSON; ``_axis`` reads it."""
    values = [INFINITE_NAMES.get(value, value) for value in axis.values.tolist()]
    return axis._asdict() | {
        "values": values,
        "type": AXIS_TYPES[axis.values.dtype.kind],
    }


def _axis(values: list[Any], type: str, swept: bool, **words: str) -> Axis:
    """Return the axis that plain JSON describes, or refuse it.

    ``words`` are the other fields of the axis.
    """
    if not values:
        raise ValueError("an axis has at least one value")
    if len(values) > 1 and not swept:
        raise ValueError("an axis has several values only if it is swept")
    # NumPy gives all texts of an array the length of the longest.
    if type == "str" and len(values) * max(map(len, values)) > MOST_CHARACTERS:
        raise ValueError("the words of the axis take too much memory")
    _check_texts(words.values())
    if type == "float64":
        values = [INFINITE.get(value, value) for value in values]
    # ``values`` may contain lists if no sweep has written the file. reshape() raises an
    # error if these lists have more entries than ``values``.
    array = np.array(values, dtype=AXIS_DTYPES[type]).reshape(len(values))
    return Axis(values=array, swept=bool(swept), **words)


def _column_facts(column: Column) -> dict[str, Any]:
    """Return a column as plain JSON; ``_column`` reads it."""
    # Writing and reading JSON turns tuples into lists, as in a column read from a file.
    return dict(json.loads(json.dumps(column._asdict())))


def _column(extra: list[list[Any]], **words: str) -> Column:
    """Return the column that plain JSON describes, or refuse it.

    ``words`` are the other fields of the column.
    """
    _check_texts(words.values())
    attributes: list[tuple[str, Any]] = []
    for name, value in extra:
        _check_texts([name])
        # The present code may not know a stored column, so its further attributes enter
        # the dataset unchecked. They must not replace an attribute that comes from
        # another field.
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
    """Refuse values unless all are texts."""
    if not all(isinstance(value, str) for value in values):
        raise TypeError("a quantity is described by texts")


def _bytes(document: Any) -> bytes:
    """Return a document as JSON. Equal documents give the same bytes."""
    return json.dumps(document, sort_keys=True, allow_nan=False).encode()
