"""Questions on training with a fixed set of prompts, answered for linear attention.

Descent on a set of prompts has a closed form, so that training on hundreds of sets
takes seconds. A set has M prompts of N pairs each. The population loss is the mean loss
on new prompts, and its floor the least population loss.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from icl_theory._validate import Array
from icl_theory.papers.linear_attention.empirical import gap_constant
from icl_theory.papers.linear_attention.family import LinearAttention
from icl_theory.statements.claim import Series, question
from icl_theory.statements.numbers import power

# Dimension of the tokens. It is small, so that hundreds of runs take seconds.
D = 5
# Largest number of steps of a run. By then descent has come to rest along all
# directions of Γ, except the directions of least curvature in the smallest sets.
STEPS = 4000
# Learning rate η. At any stable rate descent ends at the same matrix, after a time ηt
# that depends on the prompts alone; ηt is 80 at the last step.
RATE = 0.02
# The mean excess of the population loss is compared with C/(2M), where C is the
# `gap_constant`, from this M on. C/(2M) is the leading order for M far above the
# D² = 25 trained entries of the matrix Γ.
LEAST_COMPARED = 1000
# A mean follows C/(2M) if it is off by less than this number of standard errors. The
# largest of several deviations that are due to chance is rarely above 4.
MOST_STANDARD_ERRORS = 4.0


class OnSets(NamedTuple):
    """Losses after training on S sets of M prompts, (S,) each."""

    excess: Array  # population loss above its floor, at the end
    best_excess: Array  # population loss above its floor, at the step where it is least
    # Population floor minus the loss of the set, at the end; positive if training has
    # taken the loss of the set below the floor.
    deficit: Array


def on_sets(N: int, M: int, sets: int) -> OnSets:
    """Train linear attention on ``sets`` sets of M prompts of N pairs each."""
    # A run ends at a loss 1e-12 above the floor of its set, or after the last step.
    base = LinearAttention(d=D, N=N, dataset=M, eta=RATE, above=1e-12, max_steps=STEPS)
    floor = base.law().floor
    excess_at_end = []
    best_excess = []
    deficit = []
    for seed in range(sets):
        run = base.changed(dataset_seed=seed).simulate()
        excess = run.observed["population_excess"]
        excess_at_end.append(excess[-1])
        best_excess.append(excess.min())
        deficit.append(floor - run.loss[-1])
    return OnSets(np.array(excess_at_end), np.array(best_excess), np.array(deficit))


class _Mean(NamedTuple):
    """A mean over sets, and its standard error."""

    mean: float
    error: float


def _mean_and_error(values: Array) -> _Mean:
    """Return the mean of values, one for each set, and its standard error."""
    error = values.std(ddof=1) / math.sqrt(len(values))
    return _Mean(float(values.mean()), float(error))


def _sentence(N: int, sizes: tuple[int, ...], excesses: list[_Mean], C: float) -> str:
    """Return the mean excess for each number of prompts M, in words.

    ``excesses`` has a mean over sets for each M in ``sizes``. The sentence also has the
    exponent of M that fits the means, and the constant C of C/(2M), with which they are
    compared.
    """
    phrases = []
    for M, excess in zip(sizes, excesses, strict=True):
        phrases.append(f"{excess.mean:.2g} ± {excess.error:.1g} (M = {M})")
    exponent = power(sizes, [excess.mean for excess in excesses])
    return f"N = {N}: {', '.join(phrases)}, fitted by M^{exponent:.2f}; C = {C:.3g}"


@question("fixed-set-gap", "number of prompts M", "excess population loss")
def gap(quick: bool) -> tuple[str, list[Series]]:
    """How much does training on M fixed prompts cost on new ones?"""
    sizes = (200, 1000, 2000) if quick else (200, 500, 1000, 2000, 5000, 10000)
    sets = 6 if quick else 50
    M_values = np.array(sizes, dtype=float)
    series = []
    sentences = []
    deviations = []  # of mean excesses from C/(2M), in standard errors
    for N in (10, 40):
        C = gap_constant(D, N)  # the mean excess is C/(2M) to leading order in 1/M
        excesses = [_mean_and_error(on_sets(N, M, sets).excess) for M in sizes]
        for M, excess in zip(sizes, excesses, strict=True):
            if M >= LEAST_COMPARED:
                deviations.append(abs(excess.mean - C / (2 * M)) / excess.error)
        means = [excess.mean for excess in excesses]
        sentences.append(_sentence(N, sizes, excesses, C))
        series.append(Series(f"N = {N}", M_values, np.array(means), points=True))
        series.append(Series(f"C/(2M), N = {N}", M_values, C / (2.0 * M_values)))
    worst = max(deviations)
    verdict = "follows" if worst < MOST_STANDARD_ERRORS else "does not follow"
    return (
        "At the end of training the population loss exceeds its floor by"
        f" {'; '.join(sentences)}. It {verdict} C/(2M) with the exact constant C:"
        f" from M = 1000 on the means are at most {worst:.1f} standard errors off."
        f" Linear attention, d = {D}, isotropic tokens; mean and standard error of"
        f" {sets} sets."
    ), series


@question("fixed-set-early-stopping", "number of prompts M", "excess population loss")
def early_stopping(quick: bool) -> tuple[str, list[Series]]:
    """What does early stopping give on a fixed set of prompts?"""
    N = 20
    sizes = (50, 200, 1000) if quick else (50, 100, 200, 500, 1000, 2000)
    sets = 10 if quick else 50
    mean_excess = []
    mean_best_excess = []
    shares_below_floor = []
    for M in sizes:
        results = on_sets(N, M, sets)
        mean_excess.append(results.excess.mean())
        mean_best_excess.append(results.best_excess.mean())
        shares_below_floor.append(np.mean(results.deficit > 0.0))
    excess = np.array(mean_excess)
    best_excess = np.array(mean_best_excess)
    # The share of the excess that a run saves if it stops at its best step.
    saved_shares = 1.0 - best_excess / excess
    phrases = []
    for share, M in zip(saved_shares, sizes, strict=True):
        phrases.append(f"{100 * share:.0f} % (M = {M})")
    trend = "not always less"
    if np.all(np.diff(saved_shares) < 0.0):
        trend = "the less, the larger the set"
    percentages = [f"{100 * share:.0f} %" for share in shares_below_floor]
    M_values = np.array(sizes, dtype=float)
    return (
        "Stopped at the best step, the excess of the population loss is smaller than"
        f" at the end by {', '.join(phrases)}: {trend}."
        " The loss of the set ends below the population floor on"
        f" {', '.join(percentages)}"
        f" of the sets. Linear attention, d = {D}, N = {N}, isotropic tokens; means of"
        f" {sets} sets."
    ), [
        Series("at the end", M_values, excess, points=True),
        Series("at the best step", M_values, best_excess, points=True),
    ]
