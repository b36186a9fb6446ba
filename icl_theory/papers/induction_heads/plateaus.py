"""Plateaus of the loss on its way from unigrams to bigrams."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from icl_theory.engine import Risk, descend
from icl_theory.papers.induction_heads.phases import Levels


class Slowest(NamedTuple):
    """The point between two half-way points at which the loss falls most slowly."""

    length: float  # ηt between the half-way points
    loss: float  # at the minimum of the speed
    # How much faster the loss falls on both sides, at least; 1 if there is no minimum.
    slowdown: float
    start: float  # speed at step 0 over the largest one

    def rests_at(self, level: float) -> bool:
        """Whether the minimum is a plateau at a level.

        There the loss falls a third more slowly than on both sides.
        """
        return self.slowdown > 1.5 and abs(self.loss - level) < 0.02


def slowest(risk: Risk, rate: float, levels: Levels, steps: int = 20000) -> Slowest:
    """Follow a run half of the way from unigram to bigram; find its slowest point.

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
    fastest_before = np.maximum.accumulate(speed_between)
    fastest_after = np.maximum.accumulate(speed_between[::-1])[::-1]
    slowdown = np.minimum(fastest_before, fastest_after) / speed_between
    minimum = int(slowdown.argmax())
    return Slowest(
        length=float(rate * (run.t[-1] - run.t[between[0]])),
        loss=float(run.loss[between][minimum]),
        slowdown=float(slowdown[minimum]),
        start=float(speed[0] / speed.max()),
    )
