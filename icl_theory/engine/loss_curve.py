"""Read and check the loss curve that a user compares with a run.

`loss_curve` takes the arguments of `Trajectory.compare`. The losses may be numbers, the
path of a CSV file, or a function of a state of the run. The result is a `LossCurve`:
increasing steps, the losses at these steps, and the standard errors of the losses if
they are known.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
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
from icl_theory.engine.curve_files import Columns, read_curve
from icl_theory.engine.progress import counted
from icl_theory.engine.rules import Rule

Steps = NDArray[np.int64]
# Relative errors of losses that were computed in float32, were written with six digits,
# or are float64 numbers. Arithmetic in float32 has a rounding unit of 6e-8, and a loss
# takes many operations. Rounding to six digits changes a number by up to 5e-6 of
# itself: half a unit of the last digit. The exact losses of this package, to which
# losses in float64 are compared, have eleven digits.
FLOAT32 = 1e-6
SIX_DIGITS = 5e-6
FLOAT64 = 1e-10
FLOAT32_MAX = float(np.finfo(np.float32).max)
# This many losses are enough to tell how they were rounded: a loss of higher precision
# hardly ever has six digits by chance. All losses of a shorter curve are tested.
TESTED_LOSSES = 1024


class Run(Protocol):
    """The attributes of a `Trajectory` that a comparison of loss curves uses."""

    t: Steps
    loss: Array
    floor: float
    eta: float
    rule: str
    trained_by: Rule | None
    risk: Any
    family: Any

    def at(self, step: int) -> Any:
        """Return the state at a step."""


class LossCurve(NamedTuple):
    """A loss curve: steps, losses, and the standard errors of the losses, (T,) each.

    The standard errors are None if they are not known.
    """

    t: Steps
    losses: Array
    errors: Array | None


def loss_curve(
    run: Run, losses: Any, steps: Any, errors: Any, column: str | None = None
) -> LossCurve:
    """Return a checked curve from the arguments of `Trajectory.compare`.

    Raises
    ------
    ValueError
        The arguments are not a curve.
    """
    columns = _columns(run, losses, steps, column)
    values = _loss_values(columns.losses)
    # By default the losses belong to the steps 0, 1, 2, …
    default_steps = np.arange(len(values))
    t = increasing(default_steps if columns.steps is None else columns.steps)
    if values.shape != t.shape:
        raise ValueError(f"losses: {values.size} numbers for {t.size} steps")
    # This comparison is false for NaN, so that NaN is refused as well.
    outside = np.flatnonzero(~(np.abs(values) <= LARGEST))
    if outside.size:
        index = outside[0]
        allowed = f"a number up to {LARGEST:g}; it is the loss at step {t[index]}"
        raise argument_error(f"losses[{index}]", values[index], allowed)
    if len(values) < 2:
        raise argument_error("losses", values.tolist(), "at least two losses")
    return LossCurve(t, values, _standard_errors(columns.errors, errors, t))


def rounding_of(losses: Array) -> float:
    """Relative error that rounding may have caused in given losses.

    If all losses have at most six digits, they were rounded to six digits. If all are
    float32 numbers, they were computed in float32.
    """
    values = np.asarray(losses[:TESTED_LOSSES], dtype=float).tolist()
    if all(_has_six_digits(value) for value in values):
        return SIX_DIGITS
    if all(_is_float32(value) for value in values):
        return FLOAT32
    return FLOAT64


def _has_six_digits(value: float) -> bool:
    """Whether a number can be written exactly with six significant digits."""
    return float(f"{value:.5e}") == value


def _is_float32(value: float) -> bool:
    """Whether a number is float32, or the decimal that a program wrote for a float32.

    A program may write a float32 number exactly, or as the shortest decimal that
    becomes this number again, which str() returns.
    """
    # A larger number would be infinite in float32.
    if not abs(value) <= FLOAT32_MAX:
        return False
    single = np.float32(value)
    return value in (float(single), float(str(single)))


def _columns(run: Run, losses: Any, steps: Any, column: str | None) -> Columns:
    """Return the steps, losses and errors that the arguments stand for, unchecked."""
    is_file = isinstance(losses, str | os.PathLike)
    if column is not None and not is_file:
        raise argument_error("column", column, "left out unless losses is a file")
    if is_file:
        if steps is not None:
            raise argument_error(
                "steps", steps, "left out: they are a column of the file"
            )
        return read_curve(losses, column)
    # A class is callable, too, but not meant as a function of a state. `_loss_values`
    # refuses it.
    if callable(losses) and not isinstance(losses, type):
        steps = run.t if steps is None else increasing(steps)
        return _evaluated(run, losses, steps)
    return Columns(steps, losses, errors=None)


def _loss_values(losses: Any) -> Array:
    """Return losses as a row of numbers, (T,), or refuse them."""
    # `floats` returns None for an object that is not an array of real numbers.
    array = None if losses is None else floats(losses)
    if array is None:
        raise argument_error(
            "losses",
            losses,
            "numbers without a mask, a CSV file or a function of a state",
        )
    values = np.atleast_1d(array)
    if values.ndim > 1 or not values.size:
        raise argument_error("losses", losses, "a row of at least one number")
    return values


def _standard_errors(
    errors_of_curve: Array | None, errors: Any, t: Steps
) -> Array | None:
    """Return the standard errors of the losses at T steps, (T,); None if unknown.

    ``errors_of_curve`` come from the file of the curve, or from the losses of single
    prompts. They are ignored if the user has given ``errors``.
    """
    if errors is not None:
        # The number of axes is not checked here: the check of the shape below includes
        # it.
        values = real_array("errors", errors, ndim=dimensions(errors), most=LARGEST)
        shown = errors
    elif errors_of_curve is not None:
        values = errors_of_curve
        shown = errors_of_curve.tolist()
    else:
        return None
    is_one_or_each = values.shape in ((), t.shape)
    # This comparison is false for NaN, so that NaN is refused as well.
    if not is_one_or_each or not (values >= 0.0).all():
        raise argument_error("errors", shown, "one number >= 0 or one for each loss")
    return np.broadcast_to(values, t.shape)


def _evaluated(run: Run, function: Callable[[Any], Any], steps: Steps) -> Columns:
    """Return the mean losses that a function of a state has at given steps of a run.

    The function returns one loss, or one loss for each prompt. If there are several
    prompts at each step, their scatter gives the standard errors of the means.
    """
    losses_by_step = []
    for step in counted(steps.tolist(), "steps"):
        losses = np.ravel(function(run.at(step)))
        if is_masked(losses) or not losses.size:
            raise argument_error(
                "losses", losses, f"a loss, or losses without a mask, at step {step}"
            )
        losses_by_step.append(losses)
    means = [losses.mean() for losses in losses_by_step]
    # A single loss does not show how far losses scatter.
    if any(losses.size == 1 for losses in losses_by_step):
        return Columns(steps, means, errors=None)
    errors = [losses.std(ddof=1) / math.sqrt(losses.size) for losses in losses_by_step]
    return Columns(steps, means, np.array(errors))


def increasing(steps: Any) -> Steps:
    """Return steps as an array, or refuse them unless they are increasing integers."""
    values = real_array("steps", steps, ndim=1, most=EXACT)
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
