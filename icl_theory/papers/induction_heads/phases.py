"""Phases of a run that goes from uniform predictions to unigrams and to bigrams."""

from __future__ import annotations

from typing import NamedTuple

from icl_theory.engine import Phases, Trajectory


class Levels(NamedTuple):
    """Losses between which the phases change."""

    uniform: float
    unigram: float
    bigram: float


def plateau_phases(run: Trajectory, levels: Levels) -> Phases:
    """Return the phases; one ends when the loss is halfway to the next level.

    Parameters
    ----------
    run : Trajectory
        The run.
    levels : Levels
        The losses of uniform, unigram and bigram predictions.
    """
    last = int(run.t[-1])
    # Unigrams may predict nothing if there are few chains.
    unigram_start: int | None = 0
    if levels.unigram < levels.uniform:
        unigram_start = _halfway(run, levels.uniform, levels.unigram)
    if unigram_start is None:
        return Phases(uniform=(0, last), unigram=None, bigram=None)
    uniform = (0, unigram_start) if unigram_start > 0 else None

    bigram_start = None
    if levels.bigram < levels.unigram:
        bigram_start = _halfway(run, levels.unigram, levels.bigram)
    if bigram_start is None:
        return Phases(uniform=uniform, unigram=(unigram_start, last), bigram=None)
    # A loss that jumps past the unigram's plateau has no such phase.
    unigram = None
    if bigram_start != unigram_start:
        unigram = (unigram_start, bigram_start)
    return Phases(uniform=uniform, unigram=unigram, bigram=(bigram_start, last))


def _halfway(run: Trajectory, high: float, low: float) -> int | None:
    """Return the first step with a loss halfway between two levels."""
    middle = 0.5 * (high + low)
    return run.first(lambda state: bool(state.loss <= middle))
