"""Reading a loss curve from a file.

`read_curve` reads comma-separated values with a header, as spreadsheets, TensorBoard
and Weights & Biases write them, and files of numbers without a header, as
``numpy.savetxt`` writes them.
"""

from __future__ import annotations

import csv
import itertools
import os
import stat
from collections.abc import Iterator
from typing import Any, NamedTuple, TextIO

import numpy as np

from icl_theory._validate import argument_error
from icl_theory.files import checked_path

# The largest size of a file in bytes. A file of this size holds more than a million
# rows. A larger one would take long to read.
LARGEST_FILE = 64 * 10**6
# Messages show at most this many characters of a header, or of a list of titles. A list
# may be longer, because the user chooses a title from it.
SHOWN_HEADER = 60
SHOWN_TITLES = 200
# The titles that the header of a file may give to each column.
TITLES = {
    "step": ("step", "steps", "t", "_step", "global_step", "iteration"),
    "loss": ("loss", "value"),
    "error": ("error", "standard_error"),
}
# Weights & Biases writes this between the name of a run and the title of its column.
JOINT = " - "


class Columns(NamedTuple):
    """Steps, losses and standard errors of a curve, before they are checked.

    Steps and errors are None if they are missing.
    """

    steps: Any
    losses: Any
    errors: Any


class _Positions(NamedTuple):
    """Positions of the columns in a row; None for a missing column."""

    step: int | None
    loss: int
    error: int | None


def read_curve(path: str | os.PathLike[str], column: str | None = None) -> Columns:
    """Read the losses from a file, and the steps and standard errors if it has them.

    Parameters
    ----------
    path : path
        A file of at most 64 MB.
    column : str, optional
        Title of the column with the losses; in a file without a header its number,
        counted from 1. By default the title, or the position, shows which column it is.

    Returns
    -------
    Columns
        The numbers of each column, unchecked.

    Raises
    ------
    ValueError
        The file is not a regular file, is too large or is not text; its titles or its
        number of columns do not show which columns have the steps and the losses; or a
        cell of these columns is not a number.
    """
    target = checked_path(path, "losses")
    status = os.stat(target)
    # A device or a pipe may have no end.
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
        # utf-8-sig skips the byte order mark that spreadsheets write before the header.
        with open(target, newline="", encoding="utf-8-sig") as file:
            return _parsed(str(path), _rows(file), column)
    except (UnicodeDecodeError, csv.Error) as error:
        raise argument_error("losses", str(path), f"a CSV file ({error})") from None


def _rows(file: TextIO) -> Iterator[list[str]]:
    """Yield the cells of all lines that are not empty.

    The first line shows whether cells are separated by commas, tabs or spaces.
    """
    first = file.readline()
    file.seek(0)
    if "," in first:
        for row in csv.reader(file):
            if row:
                yield row
        return
    # numpy.savetxt puts spaces between columns by default, and users may choose tabs.
    for line in file:
        # A line without a word is empty, even if it has tabs.
        words = line.split()
        if words:
            yield line.split("\t") if "\t" in first else words


def _parsed(path: str, rows: Iterator[list[str]], column: str | None) -> Columns:
    """Return the columns of a file from its rows."""
    first_row = next(rows, [])
    is_all_numbers = all(_is_number(cell) for cell in first_row)
    # An empty file has no columns, and is refused like a file without the right titles.
    has_header = not first_row or not is_all_numbers
    if has_header:
        titles = [cell.strip() for cell in first_row]
        # numpy.savetxt begins a header with the sign "#". It may be a cell of its own,
        # which has no column below it. Every other cell has a column below it, even the
        # empty cell that pandas writes above its index.
        if titles[:1] == ["#"]:
            del titles[0]
        elif titles:
            titles[0] = titles[0].removeprefix("#").strip()
        positions = _named_positions(path, titles, column)
        # The header is row 1.
        return _numbers(path, rows, positions, first_number=2)
    positions = _numbered_positions(path, len(first_row), column)
    all_rows = itertools.chain([first_row], rows)
    numbers = _numbers(path, all_rows, positions, first_number=1)
    if positions.step is not None:
        _check_steps(path, numbers.steps)
    return numbers


def _is_number(cell: str) -> bool:
    """Whether the text of a cell is a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _numbers(
    path: str, rows: Iterator[list[str]], positions: _Positions, first_number: int
) -> Columns:
    """Return the numbers of the columns at given positions.

    The first of the ``rows`` has the number ``first_number`` in the file. A message
    about a row names its number.
    """
    position_by_name = {
        name: position
        for name, position in positions._asdict().items()
        if position is not None
    }
    values: dict[str, list[float]] = {name: [] for name in position_by_name}
    for row_number, row in enumerate(rows, first_number):
        for name, position in position_by_name.items():
            try:
                values[name].append(float(row[position]))
            except (ValueError, IndexError):
                raise argument_error(
                    "losses",
                    path,
                    f"a CSV file with a number as {name} in row {row_number}",
                ) from None
    errors = np.array(values["error"]) if "error" in values else None
    return Columns(values.get("step"), values["loss"], errors)


def _named_positions(path: str, titles: list[str], column: str | None) -> _Positions:
    """Return the positions of the columns that a header names.

    ``column``, if given, is the title of the column with the losses.
    """
    step = _position(path, titles, "step")
    error = _position(path, titles, "error")
    if column is None:
        loss = _position(path, titles, "loss")
    else:
        loss = _chosen_position(path, titles, column)
    if step is None or loss is None:
        header = ",".join(titles)[:SHOWN_HEADER]
        raise argument_error(
            "losses",
            path,
            f"a CSV file with the header step,loss (its first line is {header!r}); "
            "column names another one for the losses",
        )
    return _Positions(step, loss, error)


def _position(path: str, titles: list[str], name: str) -> int | None:
    """Return the position of the column with one of the `TITLES` of a name.

    The result is None if there is no such column. Several such columns are refused.
    """
    positions = []
    for index, title in enumerate(titles):
        # "run - loss" is a title of Weights & Biases. Only the last part of such a
        # title counts. A title without JOINT has only a last part.
        _run, _joint, last_part = title.lower().rpartition(JOINT)
        if last_part in TITLES[name]:
            positions.append(index)
    if len(positions) > 1:
        listed = ", ".join(titles[index] for index in positions)
        allowed = f"a CSV file with one column for the {name}, not {listed}"
        if name == "loss":
            allowed += "; choose one with the argument column"
        raise argument_error("losses", path, allowed)
    return positions[0] if positions else None


def _chosen_position(path: str, titles: list[str], column: str) -> int:
    """Return the position of the column whose title the user has chosen."""
    positions = [index for index, title in enumerate(titles) if title == column]
    if len(positions) != 1:
        listed = ", ".join(titles)[:SHOWN_TITLES]
        raise argument_error(
            "column", column, f"the title of one column of {path}; it has {listed}"
        )
    return positions[0]


def _numbered_positions(path: str, count: int, column: str | None) -> _Positions:
    """Return the positions of the columns of a file without a header.

    ``column``, if given, is the number of the column with the losses, counted from 1;
    only this column is then used. Otherwise a single column has the losses, and two or
    three columns have, in this order, the steps, the losses and the standard errors.
    """
    if column is not None:
        numbers = [str(number) for number in range(1, count + 1)]
        if column not in numbers:
            allowed = f"a number from 1 to {count}, because {path} has no header"
            raise argument_error("column", column, allowed)
        return _Positions(step=None, loss=int(column) - 1, error=None)
    if count == 1:
        return _Positions(step=None, loss=0, error=None)
    if count > 3:
        raise argument_error(
            "losses",
            path,
            f"a file with a header, or with step, loss and error: it has {count} "
            "columns; choose one with the argument column",
        )
    return _Positions(step=0, loss=1, error=2 if count == 3 else None)


def _check_steps(path: str, steps: list[float]) -> None:
    """Refuse a file without a header if its first column cannot be the steps.

    Without a header, the first of several columns is only assumed to be the steps.
    """
    are_finite = np.isfinite(steps).all()
    # int() would refuse a number that is not finite.
    are_whole = all(step == int(step) for step in steps if np.isfinite(step))
    are_increasing = (np.diff(steps) > 0.0).all()
    if are_finite and are_whole and are_increasing:
        return
    raise argument_error(
        "losses",
        path,
        "a file with increasing steps in its first column, or with a header; column "
        "chooses the losses",
    )
