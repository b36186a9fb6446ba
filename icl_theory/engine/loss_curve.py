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
# Relative errors of losses, by the way they were computed or written.
#
# Arithmetic in float32 has a rounding unit of 6e-8, and a loss takes many operations.
FLOAT32 = 1e-6
# Rounding to six digits changes a number by up to 5e-6 of itself: half a unit of the
# last digit.
SIX_DIGITS = 5e-6
# Losses in float64 are compared to the exact losses of this package, which have eleven
# digits. One unit of the last of these digits is up to 1e-10 of the number.
FLOAT64 = 1e-10
# The largest number in float32, about 3.4e38.
FLOAT32_MAX = float(np.finfo(np.float32).max)
# This many losses are enough to tell how they were rounded: a loss of higher precision
# hardly ever has six digits by chance. All losses of a shorter curve are tested.
TESTED_LOSSES = 1024


class Run(Protocol):
    """The attributes of a `Trajectory` that a comparison of loss curves uses.

    `Trajectory` documents them. The ``risk`` is the risk that was trained.
    """

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
    """A loss curve: T steps, the losses at these steps, and their standard errors.

    Each array has the shape (T,). The standard errors are None if they are not known.
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
    steps_of_curve = columns.steps
    if steps_of_curve is None:
        # By default the losses belong to the steps 0, 1, 2, …
        steps_of_curve = np.arange(len(values))
    t = increasing(steps_of_curve)
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
    # The format has one digit before the point and five after it.
    return float(f"{value:.5e}") == value


def _is_float32(value: float) -> bool:
    """Whether a number is float32, or the decimal that a program wrote for a float32.

    A program may write a float32 number exactly, or as the shortest decimal that
    becomes this number again, which str() returns.
    """
    # A larger number would be infinite in float32. NaN fails the comparison, too.
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
            raise argument_error("steps", steps, "left out: the file gives the steps")
        return read_curve(losses, column)
    # A class is callable, too, but not meant as a function of a state. `_loss_values`
    # refuses it.
    if callable(losses) and not isinstance(losses, type):
        # By default the function is evaluated at the saved steps of the run.
        steps = run.t if steps is None else increasing(steps)
        return _evaluated(run, losses, steps)
    return Columns(steps, losses, errors=None)


def _loss_values(losses: Any) -> Array:
    """Return losses as a row of numbers, (T,), or refuse them."""
    # `floats` returns None for an object that is not an array of real numbers. It would
    # turn None into NaN.
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
    """Return the standard errors of the losses at the T steps ``t``, (T,).

    ``errors`` are the standard errors that the user has given. If there are none, the
    result is ``errors_of_curve``, which come from the file of the curve or from the
    losses of single prompts. It is None if both are None.
    """
    if errors is not None:
        # `real_array` requires a number of axes. The array's own number is passed, and
        # the shape is checked below.
        values = real_array("errors", errors, ndim=dimensions(errors), most=LARGEST)
        shown = errors
    elif errors_of_curve is not None:
        values = errors_of_curve
        shown = errors_of_curve.tolist()
    else:
        return None
    has_valid_shape = values.shape in ((), t.shape)
    # The comparison with 0 is false for NaN, so that NaN is refused as well.
    if not has_valid_shape or not (values >= 0.0).all():
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
    # Up to EXACT = 2^53 every integer is a float64 number.
    values = real_array("steps", steps, ndim=1, most=EXACT)
    if not values.size:
        raise argument_error("steps", steps, "at least one")
    not_counts = np.flatnonzero((values < 0.0) | (values != np.floor(values)))
    if not_counts.size:
        index = not_counts[0]
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
