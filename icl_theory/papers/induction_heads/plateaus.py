"""Plateaus of the loss at the level of the unigram predictor."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from icl_theory.engine import Risk, descend
from icl_theory.papers.induction_heads.phases import Levels, halfway

# The speed of a run is the rate at which its loss falls along gradient flow. A minimum
# of the speed is a plateau if on both sides the loss falls at least
# `SLOWDOWN_OF_PLATEAU` times faster than at the minimum, and if the loss at the minimum
# is within `DISTANCE_FROM_LEVEL` of the unigram's level. Both limits are our choice.
SLOWDOWN_OF_PLATEAU = 1.5
DISTANCE_FROM_LEVEL = 0.02
# A run starts on a plateau if its speed at step 0 is at most this share of the largest
# one. This limit is also our choice.
LARGEST_SPEED_AT_REST = 0.1


class SpeedMinimum(NamedTuple):
    """The minimum of the speed of the loss on its way through the unigram's level.

    The way begins halfway from the loss of uniform predictions to the unigram's, and
    ends halfway from the unigram's to the bigram's. The minimum is the point at which
    the run slows down most.
    """

    length: float  # time ηt from the beginning of the way to its end
    loss: float  # loss at the minimum
    # The largest speeds before and after the minimum are at least this many times the
    # speed at the minimum. This factor is 1 if there is no minimum.
    slowdown: float
    start_speed: float  # speed at step 0, divided by the largest speed of the run

    def rests_at(self, level: float) -> bool:
        """Whether the minimum is a plateau at a level.

        On a plateau the loss at the minimum is within 0.02 of the level, and on both
        sides of the minimum the loss falls at least 1.5 times faster than at it.
        """
        distance = abs(self.loss - level)
        return self.slowdown > SLOWDOWN_OF_PLATEAU and distance < DISTANCE_FROM_LEVEL

    def starts_at_rest(self) -> bool:
        """Whether the run starts on a plateau."""
        return self.start_speed < LARGEST_SPEED_AT_REST


def deepest_minimum(
    risk: Risk, rate: float, levels: Levels, steps: int = 20000
) -> SpeedMinimum:
    """Train, and find where the loss falls slowest on its way past the unigram's loss.

    Training ends when the loss is halfway from the unigram's to the bigram's.

    Parameters
    ----------
    risk : Risk
        The model. Its ``metric`` is diagonal.
    rate : float
        The learning rate η.
    levels : Levels
        The losses of uniform, unigram and bigram predictions.
    steps : int
        Largest number of steps. In these steps the loss must come at least halfway from
        the level of uniform predictions to the unigram's.
    """
    loss_at_entry = halfway(levels.uniform, levels.unigram)
    loss_at_exit = halfway(levels.unigram, levels.bigram)
    run = descend(risk, rate, epsilon=loss_at_exit, steps=steps, progress=False)
    gradients = [risk.gradient(params) for params in run.states]
    # Along the flow θ' = -M⁻¹∇L, with the metric M, the loss falls with this speed.
    speed = np.array([np.sum(gradient**2 / risk.metric) for gradient in gradients])
    # Indices of the saved states on the way. The run ends at the end of the way.
    on_way = np.flatnonzero(run.loss <= loss_at_entry)
    speed_on_way = speed[on_way]
    # The largest speed up to each point, and the largest speed from this point on. A
    # point is in a dip of the speed if both are larger than the speed at this point.
    # Otherwise the slowdown at the point is 1.
    fastest_before = np.maximum.accumulate(speed_on_way)
    fastest_after = np.maximum.accumulate(speed_on_way[::-1])[::-1]
    slowdown = np.minimum(fastest_before, fastest_after) / speed_on_way
    at_minimum = int(slowdown.argmax())
    entry_step = run.t[on_way[0]]
    exit_step = run.t[-1]
    return SpeedMinimum(
        length=float(rate * (exit_step - entry_step)),
        loss=float(run.loss[on_way][at_minimum]),
        slowdown=float(slowdown[at_minimum]),
        start_speed=float(speed[0] / speed.max()),
    )
