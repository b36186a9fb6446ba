"""Reading a loss curve from a file.

`read_curve` reads comma-separated values with a header, as spreadsheets, TensorBoard
and Weights & Biases write them, and files of numbers without a header, as
``numpy.savetxt`` writes them.
"""

from __future__ import annotations

import csv
import os
import stat
from collections.abc import Iterator
from typing import Any, NamedTuple, TextIO

import numpy as np

from icl_theory._validate import argument_error
from icl_theory.files import checked_path

# The largest size of a file in bytes; it holds more than a million rows.
LARGEST_FILE = 64 * 10**6
# The titles that the header of a file may give to each column.
TITLES = {
    "step": ("step", "steps", "t", "_step", "global_step", "iteration"),
    "loss": ("loss", "value"),
    "error": ("error", "standard_error"),
}
# Weights & Biases joins the name of a run and that of its column so.
JOINT = " - "


class Columns(NamedTuple):
    """A curve before its numbers are checked; None for a column that is missing."""

    steps: Any
    losses: Any
    errors: Any


class _Positions(NamedTuple):
    """Positions of the columns in a row; None for a column that is missing."""

    step: int | None
    loss: int
    error: int | None


def read_curve(path: str | os.PathLike[str], column: str | None = None) -> Columns:
    """Read the losses of a file, and steps and standard errors if it has them.

    Parameters
    ----------
    path : path
        A file of at most 64 MB.
    column : str, optional
        Title of the column with the losses; in a file without a header its number,
        counted from 1.

    Returns
    -------
    Columns
        The numbers of each column, unchecked.

    Raises
    ------
    ValueError
        The file is not a plain one, is too large or is no text; or it has no column, or
        several columns, that may have the losses.
    """
    target = checked_path(path, "losses")
    status = os.stat(target)
    # a device or a pipe may have no end
    if not stat.S_ISREG(status.st_mode):
        raise argument_error("losses", str(path), "a plain CSV file")
    if status.st_size > LARGEST_FILE:
        size = f"this one has {status.st_size / 1e6:,.0f} MB"
        raise argument_error(
            "losses",
            str(path),
            f"a CSV file of at most {LARGEST_FILE / 1e6:,.0f} MB; {size}",
        )
    try:
        # utf-8-sig: spreadsheets write a byte order mark before the header
        with open(target, newline="", encoding="utf-8-sig") as file:
            return _parsed(str(path), _rows(file), column)
    except (UnicodeDecodeError, csv.Error) as error:
        raise argument_error("losses", str(path), f"a CSV file ({error})") from None


def _rows(file: TextIO) -> Iterator[list[str]]:
    """Yield the cells of all lines that are not empty."""
    first = file.readline()
    file.seek(0)
    if "," in first:
        yield from (row for row in csv.reader(file) if row)
        return
    # numpy.savetxt puts spaces between columns unless told otherwise
    for line in file:
        cells = line.split("\t") if "\t" in first else line.split()
        if cells:
            yield cells


def _parsed(path: str, rows: Iterator[list[str]], column: str | None) -> Columns:
    """Return the columns of a file from its rows."""
    first = next(rows, [])
    # numpy.savetxt begins a header with this sign
    titles = [cell.strip().removeprefix("#").strip() for cell in first]
    titles = [title for title in titles if title]
    # An empty file is treated like one without the right titles.
    has_header = not first or not all(_is_number(cell) for cell in first)
    if has_header:
        positions = _named_positions(path, titles, column)
        numbers = _numbers(path, rows, positions, 2)
    else:
        positions = _numbered_positions(path, len(first), column)
        numbers = _numbers(path, _after(first, rows), positions, 1)
    if not has_header and positions.step is not None:
        _check_steps(path, numbers.steps)
    return numbers


def _after(first: list[str], rows: Iterator[list[str]]) -> Iterator[list[str]]:
    """Yield the first row, which was read to look for a header, and then the rest."""
    yield first
    yield from rows


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _numbers(
    path: str, rows: Iterator[list[str]], positions: _Positions, first_row: int
) -> Columns:
    """Return the numbers of the columns at some positions.

    ``first_row`` is the number of the first of the rows in the file, for messages.
    """
    columns = positions._asdict().items()
    index_of = {name: index for name, index in columns if index is not None}
    values: dict[str, list[float]] = {name: [] for name in index_of}
    for number, row in enumerate(rows, first_row):
        for name, position in index_of.items():
            try:
                values[name].append(float(row[position]))
            except (ValueError, IndexError):
                raise argument_error(
                    "losses",
                    path,
                    f"a CSV file with a number as {name} in row {number}",
                ) from None
    errors = np.array(values["error"]) if "error" in values else None
    return Columns(values.get("step"), values["loss"], errors)


def _named_positions(path: str, titles: list[str], column: str | None) -> _Positions:
    """Return the positions of the columns that a header names."""
    step = _position(path, titles, "step")
    error = _position(path, titles, "error")
    loss = _position(path, titles, "loss") if column is None else None
    if column is not None:
        loss = _chosen(path, titles, column)
    if step is None or loss is None:
        first = ",".join(titles)[:60]
        raise argument_error(
            "losses",
            path,
            f"a CSV file with the header step,loss (its first line is {first!r}); "
            "column names another one for the losses",
        )
    return _Positions(step, loss, error)


def _position(path: str, titles: list[str], name: str) -> int | None:
    """Return the position of the column with one of the `TITLES` of a name."""
    positions = []
    for index, title in enumerate(titles):
        # "run - loss": the column of a run of Weights & Biases
        last = title.lower().rsplit(JOINT, 1)[-1]
        if last in TITLES[name]:
            positions.append(index)
    if len(positions) > 1:
        several = ", ".join(titles[index] for index in positions)
        allowed = f"a CSV file with one column for the {name}, not {several}"
        if name == "loss":
            allowed += "; column chooses one"
        raise argument_error("losses", path, allowed)
    return positions[0] if positions else None


def _chosen(path: str, titles: list[str], column: str) -> int:
    """Return the position of the column with a title."""
    positions = [index for index, title in enumerate(titles) if title == column]
    if len(positions) != 1:
        listed = ", ".join(titles)[:200]
        raise argument_error(
            "column", column, f"the title of one column of {path}; it has {listed}"
        )
    return positions[0]


def _numbered_positions(path: str, count: int, column: str | None) -> _Positions:
    """Return the positions of the columns of a file without a header.

    One column has the losses, two have the steps and the losses, and a third one the
    standard errors.
    """
    if column is not None:
        numbers = [str(number) for number in range(1, count + 1)]
        if column not in numbers:
            allowed = f"a number from 1 to {count}, because {path} has no header"
            raise argument_error("column", column, allowed)
        return _Positions(None, int(column) - 1, None)
    if count == 1:
        return _Positions(None, 0, None)
    if count > 3:
        raise argument_error(
            "losses",
            path,
            f"a file with a header, or with step, loss and error: it has {count} "
            "columns; column chooses one",
        )
    return _Positions(0, 1, 2 if count == 3 else None)


def _check_steps(path: str, steps: list[float]) -> None:
    """Refuse a file without a header whose first column cannot be the steps."""
    increase = np.diff(steps)
    are_whole = all(step == int(step) for step in steps if np.isfinite(step))
    if are_whole and np.isfinite(steps).all() and (increase > 0.0).all():
        return
    raise argument_error(
        "losses",
        path,
        "a file with increasing steps in its first column, or with a header; column "
        "chooses the losses",
    )
