"""Steps counted by bisection, where the loss at any step is known and falls."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import INT64_MAX, Array
from icl_theory.engine.risk import Risk, Solution

ROUNDING = 2.0**-50  # relative, of a loss
Steps = NDArray[np.int64]


def first_steps(
    loss: Callable[[Steps], Array],
    epsilon: Array,
    last: int,
    blur: Callable[[Steps], Array] | None = None,
) -> tuple[Steps, Array]:
    """Return the first steps at which losses that fall are at their targets, at most ``last``, and their error.

    ``loss`` and ``blur`` take a step for each of P points: losses, and their errors by
    rounding of the parameters. Where the target is not reached the step is INT64_MAX.
    The error is by rounding of the loss, of its rate, which moves all steps by the same
    share, and by ``blur``; it is at least 1 where these decide between two steps.
    """
    low = np.full(len(epsilon), -1, dtype=np.int64)
    high = np.full(len(epsilon), last, dtype=np.int64)
    reached = loss(high) <= epsilon
    while (open_ := reached & (high - low > 1)).any():
        middle = np.maximum(low + (high - low) // 2, 0)
        below = loss(middle) <= epsilon
        high = np.where(open_ & below, middle, high)
        low = np.where(open_ & ~below, middle, low)
    earlier, before, after = (loss(np.maximum(high - back, 0)) for back in (2, 1, 0))
    doubt = ROUNDING * (epsilon + high * np.maximum(earlier - after, 0.0))
    if blur is not None:
        doubt = doubt + blur(high)
    fall = _fall(loss, high, before - after, after, epsilon)
    error = doubt / np.maximum(fall, doubt * 2.0**-53)
    close = np.minimum(np.abs(before - epsilon), np.abs(after - epsilon)) <= doubt
    error = np.where(close, np.ceil(error), error)
    return np.where(reached, high, INT64_MAX), np.where(
        reached & (high > 0), error, 0.0
    )


def _fall(
    loss: Callable[[Steps], Array],
    high: Steps,
    fall: Array,
    here: Array,
    epsilon: Array,
) -> Array:
    """Return the fall of losses in a step; its mean over more steps where rounding of the loss would hide it."""
    seen = 2.0**-46 * epsilon
    width = np.ones_like(high)
    hidden = (fall < seen) & (high > 0) & (high < 2**61)
    while hidden.any():
        width = np.where(hidden, 2 * width, width)
        gone = here - loss(np.where(hidden, high + width, high))
        fall = np.where(hidden, gone / width, fall)
        hidden &= (gone < seen) & (width < 2**60)
    return fall


class Counted(Solution):
    """Iterates known by their numbers, along which the loss of a risk falls: inherit and define ``states``."""

    def __init__(self, risk: Risk) -> None:
        self.risk = risk

    def blur(self, steps: Steps) -> Array:
        """Return errors of the loss by rounding of the parameters, (T,), beyond its own rounding."""
        return np.zeros(len(steps))

    def first_below(self, epsilon: float, last: int) -> tuple[int | None, float]:
        """Return the first step with loss <= epsilon, and its error by rounding."""

        def loss(steps: Steps) -> Array:
            return np.array(
                [self.risk.evaluate(state)[0] for state in self.states(steps)]
            )

        high = 1
        while (
            high < last and loss(np.array([high]))[0] > epsilon
        ):  # states far beyond may be out of range
            high = min(2 * high, last)
        hit, error = first_steps(loss, np.array([epsilon]), min(high, last), self.blur)
        return (int(hit[0]), float(error[0])) if hit[0] <= last else (None, 0.0)
