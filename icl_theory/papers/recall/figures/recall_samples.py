"""
In-context recall: how many sentences are needed
================================================

Training fails if it leaves a loss of more than ε above the Bayes risk. Solid lines are
the exact probability that training on M sentences fails, and dashed lines are an upper
bound in closed form. Points are the share of data sets on which training failed. The
left panel is without noise: training fails if the sentences lack too many triggers. The
right panel is with noise: k of the M answers are noise, and training learns the
frequency k/M instead of the probability α. As k is a whole number, the lines do not
fall at every M.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.results.plots import CYCLE, Curve, Panel, draw_panels

# Arguments of `figure` for a quick drawing.
QUICK = {"sets": 10, "points": 8}
LEAST = 1e-4  # smallest probability that is drawn


def figure(
    *,
    V: int = 60,
    triggers: int = 5,
    alpha: float = 0.2,
    missing: tuple[float, ...] = (0.03, 1.7),  # ε without noise
    noisy: tuple[float, ...] = (0.003, 0.03),  # ε with noise
    sets: int = 100,
    points: int = 24,
) -> Figure:
    """Draw the probability of failure against the number of sentences.

    There are ``V`` words. The curves have at most ``points`` numbers of sentences. For
    some of these numbers, mostly five to nine, training is run on ``sets`` data sets.
    """
    clean = _panel(
        V,
        triggers,
        alpha=0.0,
        most=100,
        epsilons=missing,
        sets=sets,
        points=points,
    )
    # Planted sentences with noise have one trigger, as in the paper. The smaller ε of
    # this panel take more sentences.
    with_noise = _panel(
        V,
        triggers=1,
        alpha=alpha,
        most=3000,
        epsilons=noisy,
        sets=sets,
        points=points,
    )
    return draw_panels([clean, with_noise], columns=2, size=(3.2, 2.5))


def _panel(
    V: int,
    triggers: int,
    alpha: float,
    most: int,
    epsilons: tuple[float, ...],
    sets: int,
    points: int,
) -> Panel:
    """Return the panel for one α: probabilities of failure, with a colour for each ε.

    There are at most ``points`` numbers of sentences, from 2 to ``most``. For some of
    them, training is run on ``sets`` data sets.
    """
    task = icl.recall.RecallTask(
        V, triggers, outputs=4, alpha=alpha, H=256, law="planted"
    )
    sizes = np.unique(np.geomspace(2, most, points).astype(int))
    # To save time, training is run only at some of the sizes, mostly five to nine.
    trained_sizes = sizes[:: max(1, len(sizes) // 5)].tolist()
    excesses = {}  # by size: the excess after training on each set
    for M in trained_sizes:
        excesses[M] = np.array([_excess(task, M, seed) for seed in range(sets)])
    curves = []
    # CYCLE has more colours than there are ε.
    for epsilon, colour in zip(epsilons, CYCLE, strict=False):
        exact = _chances(icl.recall.failure_probability, task, sizes, epsilon)
        bound = _chances(icl.recall.failure_bound, task, sizes, epsilon)
        # The name is written at the curve that is further right: with noise this is the
        # bound.
        name = f"ε = {epsilon:g}"
        exact_label = "" if alpha else name
        bound_label = name if alpha else ""
        curves.append(Curve(exact_label, sizes, exact, colour=colour))
        # Without noise the bound does not depend on ε, so it is drawn once.
        if alpha or epsilon == epsilons[0]:
            curves.append(Curve(bound_label, sizes, bound, style="--", colour=colour))
        failed_share = [np.mean(excesses[M] > epsilon) for M in trained_sizes]
        curves.append(Curve("", trained_sizes, failed_share, style="o", colour=colour))
    axes = ("sentences M", "probability of failure")
    limits = (LEAST, 1.5)
    # The panel with noise has a logarithmic axis of M, and explains the line styles.
    if not alpha:
        title = f"no noise, {triggers} triggers"
        return Panel(curves, *axes, title, ("linear", "log"), limits)
    title = f"noise α = {alpha:g}, one trigger"
    note = "lines: exact\ndashed: bound\npoints: runs"
    return Panel(curves, *axes, title, ("log", "log"), limits, note=note)


def _chances(
    chance: Callable[[icl.recall.RecallTask, int, float], float],
    task: icl.recall.RecallTask,
    sizes: NDArray[np.intp],
    epsilon: float,
) -> NDArray[np.float64]:
    """Return the chances for these numbers of sentences, or 0 if below ``LEAST``.

    A logarithmic axis does not show 0. ``chance`` takes a task, M and ε, and returns
    the probability of failure, or a bound on it.
    """
    chances = np.array([chance(task, M, epsilon) for M in sizes.tolist()])
    return np.where(chances < LEAST, 0.0, chances)


def _excess(task: icl.recall.RecallTask, M: int, seed: int) -> float:
    """Train on M sentences, and return the population loss above the Bayes risk."""
    # Training stops at an excess of 1e-6 on the M sentences. This counts as training to
    # the end, because it is far below all ε.
    run = icl.Recall(task=task, M=M, seed=seed, eta=2.0, above=1e-6).simulate()
    return run.family.population_excess(run)


if __name__ == "__main__":
    script(__file__)
