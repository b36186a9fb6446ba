"""
One tail for ten tasks
======================

The loss above its floor times 4ηt/(K−1), along runs on ten different tasks. All curves
end at 1, whatever the law of the functions, the features, their number and their
frequencies. One run has finite prompts; for these the law with the constant 1 needs
exchangeable features. Most steps are skipped in every run.
"""

from __future__ import annotations

import math

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.results.plots import CYCLE, Curve, Panel, draw_panels

QUICK = {"steps": 10**6}
EXPLORER = "regression?L=2&eta=1&epsilon=0.000000001&t=10000000000"


def figure(
    *, eta: float = 1.0, L: float = 2.0, steps: int = 10**10, seed: int = 0
) -> Figure:
    """Draw the scaled losses of all runs."""
    rng = np.random.default_rng(seed)
    simplex = icl.Features.simplex
    orthonormal = icl.Features.orthonormal
    population = icl.PopulationRisk
    root = rng.normal(size=(6, 6))
    values = rng.normal(size=(9, 4))
    harmonic = 1.0 / np.arange(1.0, 7.0)
    skewed = orthonormal(6, probs=harmonic / harmonic.sum())
    scattered = icl.Features.random(8, 3, 1.0, seed)
    risks: dict[str, tuple[int, icl.Risk]] = {
        "exchangeable, $K=20$": (20, icl.ExchangeableRisk(20, L**2 / 2.0)),
        "exchangeable, $K=100$": (100, icl.ExchangeableRisk(100, L**2 / 2.0)),
        "exchangeable, $N=200$": (10, icl.ExchangeableRisk(10, L**2 / 2.0, N=200)),
        "two features": (2, population(simplex(2, 1.0), icl.tasks.Linear(L))),
        "cosine": (5, population(orthonormal(5, 4.0), icl.tasks.RandomCosine(L))),
        "Fourier, random features": (
            8,
            population(scattered, icl.tasks.RandomFourier(L)),
        ),
        "quadratic": (7, population(orthonormal(7), icl.tasks.Quadratic(L))),
        r"linear, $p_m \propto 1/m$": (6, population(skewed, icl.tasks.Linear(L))),
        "random kernel": (
            6,
            population(orthonormal(6), icl.tasks.KernelTask(root @ root.T)),
        ),
        "nine functions": (
            4,
            population(
                orthonormal(4), icl.tasks.FiniteTask(values, np.full(9, 1.0 / 9.0))
            ),
        ),
    }
    curves = []
    for index, (name, (K, risk)) in enumerate(risks.items()):
        run = icl.descend(risk, eta, steps=steps, method="fast")
        scaled = run.t * (run.loss - run.floor) * 4.0 * eta / (K - 1)
        style = "-" if index < len(CYCLE) else "--"
        curves.append(
            Curve(name, run.t, np.where(scaled > 0, scaled, math.nan), style=style)
        )
    scaled_loss = r"$4\eta t\,(\mathcal{L} - \mathcal{L}_\infty)\,/\,(K-1)$"
    return draw_panels(
        [Panel(curves, "step $t$", scaled_loss, levels={"": 1.0}, legend=True)],
        size=(5.2, 3.0),
    )


if __name__ == "__main__":
    script(__file__)
