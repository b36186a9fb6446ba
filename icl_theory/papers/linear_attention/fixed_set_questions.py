"""Questions on training with a fixed set of prompts, answered for linear attention.

Descent on a set has a closed form, so that hundreds of sets take seconds.
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

D = 5
STEPS = 4000


class OnSets(NamedTuple):
    """What training on several sets of M prompts gives, one number for each set."""

    excess: Array  # population loss above its floor, at the end
    best_excess: Array  # the same at the best step
    deficit: Array  # population floor minus the loss of the set, at the end


def on_sets(N: int, M: int, sets: int) -> OnSets:
    """Train linear attention on several sets, to the end."""
    base = LinearAttention(d=D, N=N, dataset=M, eta=0.02, above=1e-12, max_steps=STEPS)
    floor = base.law().floor
    rows = []
    for seed in range(sets):
        run = base.changed(dataset_seed=seed).simulate()
        excess = run.observed["population_excess"]
        rows.append((excess[-1], excess.min(), floor - run.loss[-1]))
    return OnSets(*np.transpose(rows))


def _mean_and_error(values: Array) -> tuple[float, float]:
    error = values.std(ddof=1) / math.sqrt(len(values))
    return float(values.mean()), float(error)


@question("fixed-set-gap", "number of prompts M", "excess population loss")
def gap(quick: bool) -> tuple[str, list[Series]]:
    """How much does training on M fixed prompts cost on new ones?"""
    sizes = (200, 1000, 5000) if quick else (200, 500, 1000, 2000, 5000, 10000)
    sets = 6 if quick else 50
    numbers = np.array(sizes, dtype=float)
    series = []
    sentences = []
    deviations = []
    for N in (10, 40):
        constant = gap_constant(D, N)
        means = []
        shown = []
        for M in sizes:
            mean, error = _mean_and_error(on_sets(N, M, sets).excess)
            means.append(mean)
            shown.append(f"{mean:.2g} ± {error:.1g} (M = {M})")
            # The leading order is compared where its corrections are small.
            if M >= 1000:
                deviations.append(abs(mean - constant / (2 * M)) / error)
        exponent = power(sizes, means)
        sentences.append(
            f"N = {N}: {', '.join(shown)}, fitted by M^{exponent:.2f};"
            f" C = {constant:.3g}"
        )
        series.append(Series(f"N = {N}", numbers, np.array(means), points=True))
        series.append(Series(f"C/(2M), N = {N}", numbers, constant / (2.0 * numbers)))
    worst = max(deviations)
    verdict = "follows" if worst < 4.0 else "does not follow"
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
    at_end = []
    at_best = []
    below = []
    for M in sizes:
        results = on_sets(N, M, sets)
        at_end.append(results.excess.mean())
        at_best.append(results.best_excess.mean())
        below.append(np.mean(results.deficit > 0.0))
    end = np.array(at_end)
    best = np.array(at_best)
    saved = 1.0 - best / end
    shown = [f"{100 * s:.0f} % (M = {M})" for s, M in zip(saved, sizes, strict=True)]
    is_falling = bool(np.all(np.diff(saved) < 0.0))
    shares = [f"{100 * b:.0f} %" for b in below]
    numbers = np.array(sizes, dtype=float)
    return (
        "Stopped at the best step, the excess of the population loss is smaller than"
        f" at the end by {', '.join(shown)}:"
        f" {'the less, the larger the set' if is_falling else 'not always less'}."
        f" The loss of the set ends below the population floor on {', '.join(shares)}"
        f" of the sets. Linear attention, d = {D}, N = {N}, isotropic tokens; means of"
        f" {sets} sets."
    ), [
        Series("at the end", numbers, end, points=True),
        Series("at the best step", numbers, best, points=True),
    ]
