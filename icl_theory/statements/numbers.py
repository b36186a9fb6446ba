"""Numbers that rows measure, such as errors and exponents, and how they are written."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import Array
from icl_theory.engine.comparison import z_score
from icl_theory.engine.risk import Risk

# `minimum` ends after so many steps, even if the gradient is still larger. Generous.
MOST_STEPS = 5000


def off(measured: Any, expected: Any) -> float:
    """Return the largest difference between two arrays, relative to the second one."""
    return float(np.max(np.abs(np.asarray(measured) / expected - 1.0)))


def apart(measured: Any, expected: Any) -> float:
    """Return the largest absolute difference between two arrays."""
    return float(np.max(np.abs(np.asarray(measured) - expected)))


def losses(trainer: Risk, params: Array, count: int, first: int = 0) -> Array:
    """Return the losses of a trainer on ``count`` of its batches, (count,).

    All losses are at the same parameters. ``first`` is the step of the first batch.
    """
    losses_of_batches = []
    for step in range(first, first + count):
        loss, _ = trainer.evaluate(params, step)
        losses_of_batches.append(loss)
    return np.array(losses_of_batches)


def deviations(samples: Any, expected: Any) -> Array:
    """Return the distances of sample means from expectations, in standard errors.

    The first axis of ``samples`` counts the samples. Distances have no sign.
    """
    mean = np.mean(samples, axis=0)
    standard_error = np.std(samples, axis=0, ddof=1) / math.sqrt(len(samples))
    return np.abs(z_score(mean - expected, standard_error, np.asarray(expected)))


def minimum(
    evaluate: Callable[[Array], tuple[float, Array]],
    start: ArrayLike,
    gtol: float = 1e-9,
) -> Array:
    """Return the parameters at which a quasi-Newton descent ends.

    ``evaluate`` returns loss and gradient, and ``gtol`` is the largest entry of the
    gradient at which the descent ends. It ends after ``MOST_STEPS`` steps in any case.
    The result has the shape of the start. Because the loss is stationary at its
    minimum, the error of the loss is of the order of the square of ``gtol``.
    """
    from scipy.optimize import minimize  # few rows need it, and it loads slowly

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
    """Return the exponent b of the law y ~ x^b, fitted in logarithms."""
    slope, _ = np.polyfit(np.log(x), np.log(y), 1)
    return float(slope)


def decade(error: float) -> str:
    """Return an error rounded up to a power of ten, at least 1e-16, as text.

    More digits would differ between machines.
    """
    if not math.isfinite(error):
        return str(error)
    # An error of zero has no logarithm. Like all errors below 1e-16 it counts as 1e-16.
    exponent = math.ceil(math.log10(max(error, 1e-300)))
    return f"1e{max(exponent, -16):d}"


def span(values: Iterable[float], digits: str) -> str:
    """Return "least..largest" of some numbers, formatted by the format ``digits``."""
    numbers = list(values)
    return f"{min(numbers):{digits}}..{max(numbers):{digits}}"


def listed(values: Iterable[Any], digits: str = "") -> str:
    """Return numbers with commas between them, formatted by the format ``digits``."""
    return ", ".join(f"{value:{digits}}" for value in values)


def named(values: Mapping[str, Any], digits: str = "") -> str:
    """Return names with their numbers, as in "a 1, b 2".

    The format of the numbers is ``digits``.
    """
    return ", ".join(f"{name} {value:{digits}}" for name, value in values.items())
