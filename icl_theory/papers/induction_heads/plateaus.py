"""Plateaus of the loss on its way from unigrams to bigrams."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from icl_theory.engine import Risk, descend
from icl_theory.papers.induction_heads.phases import Levels


class SpeedMinimum(NamedTuple):
    """The deepest minimum of the speed at which the loss falls, between two levels.

    The levels are halfway from uniform predictions to unigrams and halfway from
    unigrams to bigrams.
    """

    length: float  # ηt between the two levels
    loss: float  # loss at the minimum
    # The speed rises at least by this factor both before and after the minimum; 1 if
    # there is no minimum.
    slowdown: float
    start_speed: float  # speed at step 0, divided by the largest speed

    def rests_at(self, level: float) -> bool:
        """Whether the minimum is a plateau at a level.

        The loss there is within 0.02 of the level, and on both sides of the minimum the
        loss falls at least 1.5 times faster.
        """
        return self.slowdown > 1.5 and abs(self.loss - level) < 0.02


def deepest_minimum(
    risk: Risk, rate: float, levels: Levels, steps: int = 20000
) -> SpeedMinimum:
    """Follow a run halfway from unigram to bigram, and find where it slows down most.

    The speed of the loss along the flow is the squared norm of its gradient in the
    metric.
    """
    enters = 0.5 * (levels.uniform + levels.unigram)
    leaves = 0.5 * (levels.unigram + levels.bigram)
    run = descend(risk, rate, epsilon=leaves, steps=steps, progress=False)
    gradients = [risk.gradient(params) for params in run.states]
    speed = np.array([np.sum(gradient**2 / risk.metric) for gradient in gradients])
    between = np.flatnonzero(run.loss <= enters)
    speed_between = speed[between]
    # A point is in a dip of the speed if the speed is larger both before and after it.
    fastest_before = np.maximum.accumulate(speed_between)
    fastest_after = np.maximum.accumulate(speed_between[::-1])[::-1]
    slowdown = np.minimum(fastest_before, fastest_after) / speed_between
    minimum = int(slowdown.argmax())
    return SpeedMinimum(
        length=float(rate * (run.t[-1] - run.t[between[0]])),
        loss=float(run.loss[between][minimum]),
        slowdown=float(slowdown[minimum]),
        start_speed=float(speed[0] / speed.max()),
    )
