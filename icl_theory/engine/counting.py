"""First steps at which losses reach their targets, found by bisection.

Bisection needs a loss that falls and can be computed at any step. `first_steps` treats
many losses at once. `Counted` is a `Solution` whose states are known at any step. It
calls `first_steps` to find the first step at which its loss is at most a target.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import INT64_MAX, Array
from icl_theory.engine.risk import Risk, Solution

# The relative rounding error of a loss: four rounding units of 2^-52, because a loss
# takes several operations.
ROUNDING = 2.0**-50
# A decrease between two losses is visible if it is at least this many times the
# rounding error of the target. The two losses, which are near the target, have about
# this rounding error each, so rounding changes the decrease by at most 2/16 of itself.
VISIBLE_DECREASE = 16.0
# Step numbers.
Steps = NDArray[np.int64]
# A function of a step number for each of P losses, (P,). It returns the losses at these
# steps, or the errors of these losses, (P,).
AtSteps = Callable[[Steps], Array]


def first_steps(
    loss: AtSteps,
    epsilon: Array,
    last: int,
    blur: AtSteps | None = None,
) -> tuple[Steps, Array]:
    r"""Return the first step at which each of P falling losses reaches its target.

    Return also the error of each step number. It is the error of the loss, divided by
    the decrease of the loss in one step,

    .. math::
        \frac{\text{rounding} + \text{blur}}{\mathcal L(t - 1) - \mathcal L(t)}.

    A neighbouring step may be the right one if the loss at the step, or at the step
    before, differs from the target by less than the error of the loss. The error of the
    step number is then rounded up to a whole number.

    Parameters
    ----------
    loss : callable
        Takes a step number for each of P losses, (P,), and returns the losses at these
        steps, (P,).
    epsilon : ndarray of shape (P,)
        The target of each loss.
    last : int
        The last step at which a target may be reached.
    blur : callable, optional
        Takes step numbers as ``loss`` does, and returns the errors of the losses that
        rounding of the parameters causes.

    Returns
    -------
    steps : ndarray of shape (P,)
        The first step with a loss of at most epsilon; INT64_MAX if there is none up to
        ``last``.
    error : ndarray of shape (P,)
        The error of each step number. It has three causes: rounding of the loss;
        rounding of the rate at which the loss falls, which changes all step numbers by
        the same relative amount; and ``blur``.
    """
    last_steps = np.full(len(epsilon), last, dtype=np.int64)
    is_reached = loss(last_steps) <= epsilon
    # If a target is not reached, its `hit` is the last step.
    hit = _bisected(loss, epsilon, last_steps, is_reached)
    loss_two_before = loss(np.maximum(hit - 2, 0))
    loss_one_before = loss(np.maximum(hit - 1, 0))
    loss_at_hit = loss(hit)
    # The rate at which a loss falls has a relative error ρ from rounding. The computed
    # loss at step t is then the true loss at step t (1 + ρ), so it is wrong by ρ t
    # times its decrease in one step. The decrease in two steps, which is larger, takes
    # the place of this decrease, and ROUNDING takes the place of ρ.
    rate_effect = hit * np.maximum(loss_two_before - loss_at_hit, 0.0)
    loss_error = ROUNDING * (epsilon + rate_effect)
    if blur is not None:
        loss_error = loss_error + blur(hit)
    decrease = _visible_decrease(
        loss, hit, loss_one_before - loss_at_hit, loss_at_hit, epsilon
    )
    # The quotient is at most 2^53, even for a decrease of zero: an error so large says
    # that nothing is known about the step.
    error = loss_error / np.maximum(decrease, loss_error * 2.0**-53)
    # The distance of the nearer of the two losses from the target. If it is within the
    # error of the loss, a neighbouring step may be the right one.
    distance = np.minimum(
        np.abs(loss_one_before - epsilon), np.abs(loss_at_hit - epsilon)
    )
    error = np.where(distance <= loss_error, np.ceil(error), error)
    steps = np.where(is_reached, hit, INT64_MAX)
    # If the loss is small enough at step 0, the step number 0 has no error.
    return steps, np.where(is_reached & (hit > 0), error, 0.0)


def _bisected(
    loss: AtSteps, epsilon: Array, high: Steps, is_reached: NDArray[np.bool_]
) -> Steps:
    """Return the first step at which each loss is at most its target, by bisection.

    ``high`` has a step for each loss. The entry of ``is_reached`` tells whether the
    loss is at most its target at this step. If the entry is False, the result for this
    loss is the step in ``high``.
    """
    # The loss is above its target at `low`, or `low` is -1, before the first step.
    low = np.full(len(epsilon), -1, dtype=np.int64)
    is_open = is_reached & (high - low > 1)
    while is_open.any():
        # If the search for a loss is over, the middle may be -1. As this is no step, it
        # is replaced by 0.
        middle = np.maximum(low + (high - low) // 2, 0)
        is_below = loss(middle) <= epsilon
        high = np.where(is_open & is_below, middle, high)
        low = np.where(is_open & ~is_below, middle, low)
        is_open = is_reached & (high - low > 1)
    return high


def _visible_decrease(
    loss: AtSteps, steps: Steps, decrease: Array, loss_at_steps: Array, epsilon: Array
) -> Array:
    """Decrease of each loss in one step, (P,).

    ``loss_at_steps`` are the losses at ``steps``, and ``decrease`` their computed
    decreases in the step before. If rounding may hide a decrease, the result is the
    mean decrease over the next 2, 4, 8, ... steps, as many as make it visible.
    """
    visible = VISIBLE_DECREASE * ROUNDING * epsilon
    # The number of steps over which the decrease of each loss is computed.
    count = np.ones_like(steps)
    # The sum of steps and count must stay below 2^63, within int64. The count is
    # doubled only while it is below 2^60, so the sum is at most 2^61 + 2^60. The
    # decrease before step 0 is not used.
    is_hidden = (decrease < visible) & (steps > 0) & (steps < 2**61)
    while is_hidden.any():
        count = np.where(is_hidden, 2 * count, count)
        total = loss_at_steps - loss(np.where(is_hidden, steps + count, steps))
        decrease = np.where(is_hidden, total / count, decrease)
        is_hidden &= (total < visible) & (count < 2**60)
    return decrease


class Counted(Solution):
    """A solution whose states are known at any step, and whose loss falls.

    Inherit from this class and define ``states``.
    """

    def __init__(self, risk: Risk) -> None:
        self.risk = risk

    def blur(self, steps: Steps) -> Array:
        """Return the errors of the loss at T steps that rounding of parameters causes.

        By default these errors are taken to be zero.
        """
        return np.zeros(len(steps))

    def first_below(self, epsilon: float, last: int) -> tuple[int | None, float]:
        """Return the first step with loss <= epsilon, and its error from rounding.

        The step is None if it is beyond ``last``.
        """
        # Bisection could begin with the last step. But the states there may leave the
        # range of float64, so double the step until its loss is small enough.
        high = 1
        while high < last and self._loss(high) > epsilon:
            high = min(2 * high, last)
        steps, errors = first_steps(
            self._losses, np.array([epsilon]), min(high, last), self.blur
        )
        # There is one target, and so one step and one error.
        (step,) = steps
        (error,) = errors
        # The step is INT64_MAX if the target is not reached.
        if step > last:
            return None, 0.0
        return int(step), float(error)

    def _loss(self, step: int) -> float:
        """Return the loss at a step."""
        (loss,) = self._losses(np.array([step]))
        return float(loss)

    def _losses(self, steps: Steps) -> Array:
        """Return the losses at T steps, (T,)."""
        losses = []
        for state in self.states(steps):
            loss, _gradient = self.risk.evaluate(state)
            losses.append(loss)
        return np.array(losses)
