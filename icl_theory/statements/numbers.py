"""Numbers that rows of the audit measure, such as errors, and how they are written."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import Array
from icl_theory.engine.risk import Risk

# The number of steps after which `minimum` ends, even if the gradient still exceeds
# ``gtol``. The number is generous; it only ends a search that finds no minimum.
MOST_STEPS = 5000


def off(measured: Any, expected: Any) -> float:
    """Return the largest relative difference between entries of two arrays.

    Each difference is relative to the entry of ``expected``, which must not be 0.
    """
    return float(np.max(np.abs(np.asarray(measured) / expected - 1.0)))


def apart(measured: Any, expected: Any) -> float:
    """Return the largest absolute difference between entries of two arrays."""
    return float(np.max(np.abs(np.asarray(measured) - expected)))


def losses(trainer: Risk, params: Array, count: int, first: int = 0) -> Array:
    """Return the losses of a trainer on ``count`` of its batches, (count,).

    All losses are at the same parameters, ``params``. A trainer is a risk that draws a
    batch of prompts for each step, and ``first`` is the step of the first batch.
    """
    losses_of_batches = []
    for step in range(first, first + count):
        loss, _gradient = trainer.evaluate(params, step)
        losses_of_batches.append(loss)
    return np.array(losses_of_batches)


def deviations(samples: Any, expected: Any) -> Array:
    """Return the distances of sample means from expectations, in standard errors.

    The first axis of ``samples`` counts the samples. The distances are absolute values.
    If the samples are all equal, their standard error is zero, and `z_score` divides by
    the rounding error instead. The distance of a mean that differs by rounding is then
    about 1 at most, and a larger difference has a huge distance.
    """
    # Loaded here, because few rows draw samples.
    from icl_theory.engine.comparison import z_score

    mean = np.mean(samples, axis=0)
    standard_error = np.std(samples, axis=0, ddof=1) / math.sqrt(len(samples))
    return np.abs(z_score(mean - expected, standard_error, np.asarray(expected)))


def minimum(
    evaluate: Callable[[Array], tuple[float, Array]],
    start: ArrayLike,
    gtol: float = 1e-9,
) -> Array:
    """Return the parameters of a minimum, of the shape of the start.

    ``evaluate`` returns loss and gradient. A quasi-Newton method (BFGS) descends until
    no entry of the gradient exceeds ``gtol``, or for ``MOST_STEPS`` steps. At a minimum
    the gradient is zero, so the error of the loss is only of the order of ``gtol``
    squared.
    """
    # Imported here because it loads slowly, and few rows of the audit need it.
    from scipy.optimize import minimize

    shape = np.shape(start)

    def evaluate_flat(params: Array) -> tuple[float, Array]:
        loss, gradient = evaluate(params.reshape(shape))
        return loss, gradient.ravel()

    options = {"gtol": gtol, "maxiter": MOST_STEPS}
    result = minimize(
        evaluate_flat, np.ravel(start), jac=True, method="BFGS", options=options
    )
    return np.asarray(result.x).reshape(shape)


def power(x: Any, y: Any) -> float:
    """Return the exponent b of the law y ~ x^b.

    It is the slope of a line that is fitted to ln y against ln x by least squares.
    """
    slope, _intercept = np.polyfit(np.log(x), np.log(y), 1)
    return float(slope)


def decade(error: float) -> str:
    """Return an error rounded up to a power of ten, at least 1e-16, as text.

    More digits would differ between machines.
    """
    if not math.isfinite(error):
        return str(error)
    # An error of zero has no logarithm, so a tiny number replaces it. Like all errors
    # below 1e-16 it is then written as 1e-16, because float64 has no more digits.
    exponent = math.ceil(math.log10(max(error, 1e-300)))
    return f"1e{max(exponent, -16):d}"


def span(values: Iterable[float], digits: str) -> str:
    """Return the least and the largest of some numbers, as in "0.1..2.5".

    ``digits`` is the format of a number, such as ".2f".
    """
    numbers = list(values)
    return f"{min(numbers):{digits}}..{max(numbers):{digits}}"


def listed(values: Iterable[Any], digits: str = "") -> str:
    """Return numbers with commas between them, as in "1.0, 2.5".

    ``digits`` is the format of a number, such as ".1f".
    """
    return ", ".join(f"{value:{digits}}" for value in values)


def named(values: Mapping[str, Any], digits: str = "") -> str:
    """Return names with their numbers, as in "a 1, b 2".

    ``values`` has the numbers by name. ``digits`` is the format of a number, such as
    ".1f".
    """
    return ", ".join(f"{name} {value:{digits}}" for name, value in values.items())
