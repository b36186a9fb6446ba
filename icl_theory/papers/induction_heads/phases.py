"""Phases of a run whose loss passes the losses of three predictors.

The predictors are uniform, unigram and bigram.
"""

from __future__ import annotations

from typing import NamedTuple

from icl_theory.engine import Phases, Trajectory


class Levels(NamedTuple):
    """Losses of three predictors; phases change halfway between them."""

    uniform: float
    unigram: float
    bigram: float


def plateau_phases(run: Trajectory, levels: Levels) -> Phases:
    """Return the phases of a run, as intervals of steps.

    A phase ends at the first step at which the loss is at least halfway down from the
    level of the phase to the next one. A phase that the run does not have is None.

    Parameters
    ----------
    run : Trajectory
        The run.
    levels : Levels
        The losses of uniform, unigram and bigram predictions.
    """
    last = int(run.t[-1])
    # If there are few chains, unigrams may be no better than uniform predictions. Such
    # a run has no uniform phase: its unigram phase begins at step 0.
    unigram_start: int | None = 0
    if levels.unigram < levels.uniform:
        unigram_start = _first_step(run, halfway(levels.uniform, levels.unigram))
    if unigram_start is None:
        return Phases(uniform=(0, last), unigram=None, bigram=None)
    uniform = (0, unigram_start) if unigram_start > 0 else None

    # Bigrams may be no better than unigrams, if the rows of the chains are equal. Such
    # a run has no bigram phase.
    bigram_start = None
    if levels.bigram < levels.unigram:
        bigram_start = _first_step(run, halfway(levels.unigram, levels.bigram))
    if bigram_start is None:
        return Phases(uniform=uniform, unigram=(unigram_start, last), bigram=None)
    # A run whose loss passes both halfway points at the same step has no unigram phase.
    unigram = None
    if bigram_start != unigram_start:
        unigram = (unigram_start, bigram_start)
    return Phases(uniform=uniform, unigram=unigram, bigram=(bigram_start, last))


def halfway(high: float, low: float) -> float:
    """Return the loss halfway between two levels."""
    return 0.5 * (high + low)


def _first_step(run: Trajectory, level: float) -> int | None:
    """Return the first step with a loss of at most ``level``; None without one."""
    return run.first(lambda state: bool(state.loss <= level))
