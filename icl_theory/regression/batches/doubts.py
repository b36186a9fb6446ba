"""Reasons why a batch leaves a point to a simulation of its own.

A point is one problem of a sweep, and a batch computes many points at once. Every
number of steps of a batch must be the same as in a simulation of the point alone. If
rounding or the error of an approximation might change such a number, the batch notes
the reason as a `Doubt`, and returns NaN as the loss of the point. The sweep then
simulates the point by itself (see `icl_theory.families.Family.batched`).

A simulation looks for the tail of a run, its Phase III, which begins when t times
(loss - floor) falls below a limit for good, where t is the number of steps. It also
looks for the end of Phase I, at which the attention of a query on its own feature
reaches one half of its largest possible value.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
Index = NDArray[np.intp]


class Doubt(IntEnum):
    """Why a point is left to a simulation.

    The *goal* of a run is where its loss reaches the target or, if the target is below
    the floor (the least loss), comes near the floor. The *tables* of
    `icl_theory.regression.batches.tables` have the losses of exchangeable points up to
    a largest score gap. Points with K x K scores do not use them.
    """

    NONE = 0

    # the target

    # The minimum of the loss is beyond the range of the tables.
    MINIMUM_OUT_OF_RANGE = 1
    # A simulation refuses an excess that is lost in the rounding of the floor.
    INVISIBLE_EXCESS = 2
    # Rounding may decide whether the target is above the floor. For K x K scores, a
    # target that is clearly below the floor has this doubt, too.
    TARGET_AT_FLOOR = 3
    # The target is reached beyond the range of the tables, or not at all.
    GOAL_OUT_OF_RANGE = 4

    # the way to the target

    # At some step the loss equals the loss at the goal to rounding.
    GOAL_WITHIN_ROUNDING = 5
    # At some step the attention equals half of its largest value to rounding.
    HALF_WITHIN_ROUNDING = 6
    # At some step t (loss - floor) equals its limit to rounding.
    TAIL_WITHIN_ROUNDING = 7
    # A step leads beyond the range of the tables, as in a run that diverges.
    LEFT_RANGE = 8
    # A step leads past the minimum, to a loss above the target.
    OVERSHOT = 9
    # The loss rises at some step, or the attention falls below half of its largest
    # value again.
    NOT_MONOTONE = 10
    # The target is not reached within the steps that the batch takes or counts.
    UNFINISHED = 11

    # counted steps

    # The real number of steps to the goal, before it is rounded up, is an integer to
    # within its error, so that two integers are possible. A number, or an error, that
    # is too large to be trusted gives this doubt, too.
    COUNT_UNCERTAIN = 12
    # Two integers are possible for the first step at which the attention is at least
    # half of its largest value.
    HALF_UNCERTAIN = 13
    # Two integers are possible for the first step of the tail.
    TAIL_UNCERTAIN = 14
    # At the last step, the run differs too much from its shadow, the less accurate run
    # that estimates its error.
    SHADOW_APART = 15

    # a simulation might give a wrong answer

    # t (loss - floor) falls, or may fall, below its limit more than once.
    TAIL_TWICE = 16
    # A simulation looks for the tail after the last saved step with t (loss - floor)
    # above the limit. It might have saved no such step.
    TAIL_UNSAVED = 17
    # The steps are so short that a simulation may stop the run as settled.
    MAY_SETTLE = 18
    # The loss falls so slowly that a simulation may stop the run as stalled.
    MAY_STALL = 19


class Doubts:
    """The first `Doubt` about each of P points of a batch, ``reason``, (P,)."""

    def __init__(self, size: int) -> None:
        self.reason = np.zeros(size, dtype=np.int8)

    def add(self, doubt: Doubt, points: Mask | Index) -> None:
        """Note a doubt about ``points``, which is a mask, (P,), or an array of indices.

        A point with an earlier doubt keeps the earlier one.
        """
        # Without points there is nothing to note.
        if not points.size:
            return
        # A mask becomes an array of indices. Indices stay as they are.
        index = np.arange(self.reason.size)[points]
        self.reason[index[self.none_of(index)]] = doubt

    @property
    def none(self) -> Mask:
        """Points without any doubt, (P,)."""
        return self.reason == Doubt.NONE

    def none_of(self, points: Index) -> Mask:
        """Whether each of n points, given by their indices, has no doubt, (n,)."""
        return self.reason[points] == Doubt.NONE
