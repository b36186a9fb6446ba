"""
In-context recall: how many sentences are needed
================================================

The probability that training on M sentences leaves more than ε above the Bayes risk,
exactly (lines), and an upper bound in closed form (dashed): above without noise, where
triggers may be missing, below with noise, where its frequency is learnt, and M times it
is a whole number. Points: the share of data sets on which training failed.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.results.plots import CYCLE, Curve, Panel, draw_panels

QUICK = {"sets": 10, "points": 8}
LEAST = 1e-4


def figure(
    *,
    V: int = 60,
    triggers: int = 5,
    alpha: float = 0.2,
    missing: tuple[float, ...] = (0.03, 1.7),
    noisy: tuple[float, ...] = (0.003, 0.03),
    sets: int = 100,
    points: int = 24,
) -> Figure:
    """Draw the probability of failure against the number of sentences, for each ε
    without noise and with it.
    """
    panels = []
    for noise, Q, longest, epsilons in (
        (0.0, triggers, 100, missing),
        (alpha, 1, 3000, noisy),
    ):
        task = icl.recall.RecallTask(V, Q, 4, alpha=noise, H=256, law="planted")
        sizes = np.unique(np.geomspace(2, longest, points).astype(int))
        some = sizes[:: max(1, len(sizes) // 5)].tolist()
        left = {
            M: np.array([_excess(task, M, seed) for seed in range(sets)]) for M in some
        }
        curves = []
        for epsilon, colour in zip(epsilons, CYCLE, strict=False):
            exact, bound = (
                np.array([chance(task, M, epsilon) for M in sizes.tolist()])
                for chance in (icl.recall.failure_probability, icl.recall.failure_bound)
            )
            # at the curve further right
            names = ("", f"ε = {epsilon:g}") if noise else (f"ε = {epsilon:g}", "")
            curves.append(
                Curve(
                    names[0], sizes, np.where(exact < LEAST, 0.0, exact), colour=colour
                )
            )
            if (
                noise or epsilon == epsilons[0]
            ):  # without noise the bound is the same for all ε
                bound = np.where(bound < LEAST, 0.0, bound)
                curves.append(Curve(names[1], sizes, bound, style="--", colour=colour))
            share = [np.mean(left[M] > epsilon) for M in some]
            curves.append(Curve("", some, share, style="o", colour=colour))
        words = (
            f"noise α = {noise:g}, one trigger" if noise else f"no noise, {Q} triggers"
        )
        note = "lines: exact\ndashed: bound\npoints: runs" if noise else ""
        axes = (
            "sentences M",
            "probability of failure",
            words,
            ("log" if noise else "linear", "log"),
            (LEAST, 1.5),
        )
        panels.append(Panel(curves, *axes, note=note))
    return draw_panels(panels, columns=2, size=(3.2, 2.5))


def _excess(task: icl.recall.RecallTask, M: int, seed: int) -> float:
    run = icl.Recall(task=task, M=M, seed=seed, eta=2.0, above=1e-6).simulate()
    return float(run.notes["population"].split()[0])


if __name__ == "__main__":
    script(__file__)
