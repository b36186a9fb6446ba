"""Numbers that rows measure: errors, deviations and exponents, and how they are written."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize

from icl_theory._validate import Array
from icl_theory.engine.comparison import z_score
from icl_theory.engine.risk import Risk


def off(found: Any, expected: Any) -> float:
    """Return the largest relative difference."""
    return float(np.max(np.abs(np.asarray(found) / expected - 1.0)))


def apart(found: Any, expected: Any) -> float:
    """Return the largest difference."""
    return float(np.max(np.abs(np.asarray(found) - expected)))


def losses(trainer: Risk, params: Array, count: int, first: int = 0) -> Array:
    """Losses of a trainer's own prompts at some parameters."""
    return np.array(
        [trainer.evaluate(params, first + step)[0] for step in range(count)]
    )


def deviations(samples: Any, expected: Any) -> Array:
    """Distances of the means of samples from what is expected, in standard errors."""
    error = np.std(samples, axis=0, ddof=1) / math.sqrt(len(samples))
    return np.abs(
        z_score(np.mean(samples, axis=0) - expected, error, np.asarray(expected))
    )


def minimum(
    evaluate: Callable[[Array], tuple[float, Array]],
    start: ArrayLike,
    gtol: float = 1e-9,
) -> Array:
    """Return where a quasi-Newton descent ends, in the shape of its start, from losses and gradients."""
    shape = np.shape(start)

    def flat(params: Array) -> tuple[float, Array]:
        loss, gradient = evaluate(params.reshape(shape))
        return loss, gradient.ravel()

    options = {"gtol": gtol, "maxiter": 5000}
    return np.asarray(
        minimize(flat, np.ravel(start), jac=True, method="BFGS", options=options).x
    ).reshape(shape)


def power(x: Any, y: Any) -> float:
    """Return the exponent b of the law y ~ x^b, fitted in logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def decade(error: float) -> str:
    """Round an error up to a power of ten, 1e-16 at least: its digits differ between machines."""
    return (
        f"1e{max(math.ceil(math.log10(max(error, 1e-300))), -16):d}"
        if math.isfinite(error)
        else str(error)
    )


def span(values: Iterable[float], digits: str) -> str:
    """Return the least and the largest of some numbers, in a format."""
    found = [*values]
    return f"{min(found):{digits}}..{max(found):{digits}}"


def listed(values: Iterable[Any], digits: str = "") -> str:
    """Return numbers in a format, with commas between them."""
    return ", ".join(f"{value:{digits}}" for value in values)


def named(values: Mapping[str, Any], digits: str = "") -> str:
    """Return names, each with its number in a format."""
    return ", ".join(f"{name} {value:{digits}}" for name, value in values.items())
