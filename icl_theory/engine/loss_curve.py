"""Reading and checking the loss curve that a user compares with a run.

`loss_curve` takes the arguments of `Trajectory.compare`: numbers, the path of a CSV
file, or a function of a state of the run. It returns a `LossCurve`: increasing steps,
the losses at these steps, and the standard errors of the losses if they are known.
"""

from __future__ import annotations

import csv
import math
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import (
    EXACT,
    LARGEST,
    Array,
    argument_error,
    dimensions,
    floats,
    is_masked,
    real_array,
)
from icl_theory.engine.progress import counted
from icl_theory.engine.rules import Rule
from icl_theory.files import checked_path

Steps = NDArray[np.int64]
# The largest size of a CSV file in bytes; it holds more than a million rows.
LARGEST_FILE = 64 * 10**6
# The titles that the header of a file may give to each column.
COLUMNS = {
    "step": ("step", "steps", "t"),
    "loss": ("loss", "value"),
    "error": ("error", "standard_error"),
}


class Run(Protocol):
    """The attributes of a `Trajectory` that comparing loss curves requires."""

    t: Steps
    loss: Array
    eta: float
    rule: str
    trained_by: Rule | None
    risk: Any
    family: Any

    def at(self, step: int) -> Any:
        """Return the state at a step."""


class LossCurve(NamedTuple):
    """Steps, losses, and the standard errors of the losses if they are known, (T,)."""

    t: Steps
    losses: Array
    errors: Array | None


class _Columns(NamedTuple):
    """A curve before its numbers are checked."""

    steps: Any
    losses: Any
    errors: Any


def loss_curve(run: Run, losses: Any, steps: Any, errors: Any) -> LossCurve:
    """Return a checked curve from the arguments of `Trajectory.compare`."""
    columns = _columns(run, losses, steps)
    values = _loss_values(columns.losses)
    steps = columns.steps
    t = increasing(np.arange(len(values)) if steps is None else steps)
    if values.shape != t.shape:
        raise ValueError(f"losses: {values.size} numbers for {t.size} steps")
    # Written so that NaN is refused, too.
    outside = np.flatnonzero(~(np.abs(values) <= LARGEST))
    if outside.size:
        index = outside[0]
        allowed = f"a number up to {LARGEST:g}; it is the loss at step {t[index]}"
        raise argument_error(f"losses[{index}]", values[index], allowed)
    return LossCurve(t, values, _standard_errors(columns.errors, errors, t))


def _columns(run: Run, losses: Any, steps: Any) -> _Columns:
    if isinstance(losses, str | os.PathLike):
        if steps is not None:
            raise argument_error(
                "steps", steps, "left out: they are a column of the file"
            )
        return _read(losses)
    if callable(losses) and not isinstance(losses, type):
        steps = run.t if steps is None else increasing(steps)
        return _evaluated(run, losses, steps)
    return _Columns(steps, losses, None)


def _loss_values(losses: Any) -> Array:
    numbers = None if losses is None else floats(losses)
    if numbers is None:
        raise argument_error(
            "losses",
            losses,
            "numbers without a mask, a CSV file or a function of a state",
        )
    values = np.atleast_1d(numbers)
    if values.ndim > 1 or not values.size:
        raise argument_error("losses", losses, "a row of at least one number")
    return values


def _standard_errors(own: Any, errors: Any, t: Steps) -> Array | None:
    """Return the standard errors of the losses at T steps, (T,); None if unknown.

    The argument ``errors`` overrules the curve's ``own`` errors.
    """
    if errors is not None:
        values = real_array("errors", errors, dimensions(errors), LARGEST)
    elif own is not None:
        values = own
    else:
        return None
    if values.shape not in ((), t.shape) or not (values > 0.0).all():
        value = values.tolist() if errors is None else errors
        raise argument_error(
            "errors", value, "positive, one number or one for each loss"
        )
    return np.broadcast_to(values, t.shape)


def _evaluated(run: Run, function: Callable[[Any], Any], steps: Steps) -> _Columns:
    """Evaluate a function that returns one loss, or one loss for each prompt.

    If there are several prompts at each step, their scatter gives the standard errors.
    """
    losses_at = []
    for step in counted(steps.tolist(), "steps"):
        losses = np.ravel(function(run.at(step)))
        if is_masked(losses) or not losses.size:
            raise argument_error(
                "losses", losses, f"a loss, or losses without a mask, at step {step}"
            )
        losses_at.append(losses)
    means = [losses.mean() for losses in losses_at]
    if any(losses.size == 1 for losses in losses_at):
        return _Columns(steps, means, None)
    errors = [losses.std(ddof=1) / math.sqrt(losses.size) for losses in losses_at]
    return _Columns(steps, means, np.array(errors))


def increasing(steps: Any) -> Steps:
    """Check that steps are increasing integers."""
    values = real_array("steps", steps, 1, EXACT)
    if not values.size:
        raise argument_error("steps", steps, "at least one")
    wrong = np.flatnonzero((values < 0.0) | (values != np.floor(values)))
    if wrong.size:
        index = wrong[0]
        raise argument_error(f"steps[{index}]", values[index], "an integer >= 0")
    not_later = np.flatnonzero(np.diff(values) <= 0.0)
    if not_later.size:
        index = not_later[0] + 1
        raise argument_error(
            f"steps[{index}]",
            values[index],
            f"more than {values[index - 1]:g}, the step before",
        )
    return values.astype(np.int64)


def _read(path: str | os.PathLike[str]) -> _Columns:
    """Read the columns of a CSV file that `COLUMNS` names, and skip the rest."""
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
            return _parsed(str(path), csv.reader(file))
    except (UnicodeDecodeError, csv.Error) as error:
        raise argument_error("losses", str(path), f"a CSV file ({error})") from None


def _parsed(path: str, lines: Iterable[list[str]]) -> _Columns:
    """Return the columns of a CSV file, the first line of which is the header."""
    rows: Iterator[list[str]] = (line for line in lines if line)
    position = _positions(path, next(rows, []))
    values: dict[str, list[float]] = {name: [] for name in position}
    for number, row in enumerate(rows, 2):
        for name, index in position.items():
            try:
                values[name].append(float(row[index]))
            except (ValueError, IndexError):
                raise argument_error(
                    "losses",
                    path,
                    f"a CSV file with a number as {name} in row {number}",
                ) from None
    errors = np.array(values["error"]) if "error" in values else None
    return _Columns(values["step"], values["loss"], errors)


def _positions(path: str, header: list[str]) -> dict[str, int]:
    """Return the position of each column of `COLUMNS` that the header names."""
    titles = [title.strip().lower() for title in header]
    position = {}
    for name, synonyms in COLUMNS.items():
        for synonym in synonyms:
            if synonym in titles:
                position[name] = titles.index(synonym)
    if not {"step", "loss"} <= position.keys():
        first = ",".join(header)[:60]
        raise argument_error(
            "losses",
            path,
            f"a CSV file with the header step,loss (its first line is {first!r})",
        )
    return position
