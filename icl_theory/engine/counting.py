"""First steps at which losses reach their targets, found by bisection.

Bisection needs a loss that falls and can be computed at any step. `first_steps` treats
many losses at once. `Counted` is a `Solution` whose states are known at any step; it
finds its first step below a loss in the same way.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import INT64_MAX, Array
from icl_theory.engine.risk import Risk, Solution

# The relative rounding error of a loss.
ROUNDING = 2.0**-50
# Step numbers.
Steps = NDArray[np.int64]
# Takes one step for each of P losses, (P,). Returns the losses at these steps, or the
# errors of these losses, (P,).
AtSteps = Callable[[Steps], Array]


def first_steps(
    loss: AtSteps,
    epsilon: Array,
    last: int,
    blur: AtSteps | None = None,
) -> tuple[Steps, Array]:
    r"""For each target, the first step at which the falling loss reaches it.

    Return also the error of this step number: the error of the loss, divided by the
    decrease of the loss in one step,

    .. math::
        \frac{\text{rounding} + \text{blur}}{\mathcal L(t - 1) - \mathcal L(t)}.

    It is rounded up to a whole number if the error of the loss is so large that the
    neighbouring step may be the right one.

    Parameters
    ----------
    loss : callable
        Takes one step for each of P losses, (P,), and returns the losses at these
        steps, (P,).
    epsilon : ndarray of shape (P,)
        The target of each loss.
    last : int
        The last step at which a target may be reached.
    blur : callable, optional
        Takes steps as ``loss`` does, and returns the errors of the losses that rounding
        of the parameters causes.

    Returns
    -------
    steps : ndarray of shape (P,)
        The first step with a loss of at most epsilon; INT64_MAX if there is none up to
        ``last``.
    error : ndarray of shape (P,)
        The error of each step number. It comes from rounding of the loss, from rounding
        of its rate of decrease, which changes all step numbers by the same relative
        amount, and from ``blur``.
    """
    high = np.full(len(epsilon), last, dtype=np.int64)
    is_reached = loss(high) <= epsilon
    high = _bisected(loss, epsilon, high, is_reached)
    two_before = loss(np.maximum(high - 2, 0))
    one_before = loss(np.maximum(high - 1, 0))
    at_hit = loss(high)
    # A relative error of the rate acts like the same relative error of the time: it
    # changes the loss at step t by t times the decrease in one step.
    rate_effect = high * np.maximum(two_before - at_hit, 0.0)
    loss_error = ROUNDING * (epsilon + rate_effect)
    if blur is not None:
        loss_error = loss_error + blur(high)
    decrease = _visible_decrease(loss, high, one_before - at_hit, at_hit, epsilon)
    # The quotient is at most 2^53, even for a decrease of zero.
    error = loss_error / np.maximum(decrease, loss_error * 2.0**-53)
    distance = np.minimum(np.abs(one_before - epsilon), np.abs(at_hit - epsilon))
    error = np.where(distance <= loss_error, np.ceil(error), error)
    steps = np.where(is_reached, high, INT64_MAX)
    # If the loss is small enough at step 0, the step number 0 has no error.
    return steps, np.where(is_reached & (high > 0), error, 0.0)


def _bisected(
    loss: AtSteps, epsilon: Array, high: Steps, is_reached: NDArray[np.bool_]
) -> Steps:
    """Return the first step at which each loss is at most its target, by bisection.

    ``high`` has a step for each loss, at which it is at most its target if
    ``is_reached`` is True. Otherwise the result is ``high``.
    """
    low = np.full(len(epsilon), -1, dtype=np.int64)
    is_open = is_reached & (high - low > 1)
    while is_open.any():
        middle = np.maximum(low + (high - low) // 2, 0)
        is_below = loss(middle) <= epsilon
        high = np.where(is_open & is_below, middle, high)
        low = np.where(is_open & ~is_below, middle, low)
        is_open = is_reached & (high - low > 1)
    return high


def _visible_decrease(
    loss: AtSteps, steps: Steps, decrease: Array, at_steps: Array, epsilon: Array
) -> Array:
    """Decrease of each loss in one step, (P,).

    ``decrease`` is the computed decrease in the step before ``steps``. If rounding may
    hide it, the result is the mean decrease over the next 2, 4, 8, ... steps, as many
    as make it visible.
    """
    visible = 16.0 * ROUNDING * epsilon
    width = np.ones_like(steps)
    # With these limits, the sum of steps and width stays within int64.
    is_hidden = (decrease < visible) & (steps > 0) & (steps < 2**61)
    while is_hidden.any():
        width = np.where(is_hidden, 2 * width, width)
        total = at_steps - loss(np.where(is_hidden, steps + width, steps))
        decrease = np.where(is_hidden, total / width, decrease)
        is_hidden &= (total < visible) & (width < 2**60)
    return decrease


class Counted(Solution):
    """A solution whose states are known at any step, and whose loss falls.

    Inherit from this class and define ``states``.
    """

    def __init__(self, risk: Risk) -> None:
        self.risk = risk

    def blur(self, steps: Steps) -> Array:
        """Return the errors of the loss, (T,), from rounding of the parameters."""
        return np.zeros(len(steps))

    def first_below(self, epsilon: float, last: int) -> tuple[int | None, float]:
        """Return the first step with loss <= epsilon, and its error from rounding."""
        # Start with small steps: states far beyond the first step below epsilon may
        # leave the range of float64.
        high = 1
        while high < last and self._losses(np.array([high]))[0] > epsilon:
            high = min(2 * high, last)
        steps, errors = first_steps(
            self._losses, np.array([epsilon]), min(high, last), self.blur
        )
        if steps[0] > last:
            return None, 0.0
        return int(steps[0]), float(errors[0])

    def _losses(self, steps: Steps) -> Array:
        """Return the losses at T steps, (T,)."""
        losses = [self.risk.evaluate(state)[0] for state in self.states(steps)]
        return np.array(losses)
