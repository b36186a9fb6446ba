"""
One tail for ten tasks
======================

The loss above its floor times 4ηt/(K−1), along runs on ten different tasks. All curves
end at 1, whatever the law of the functions, the features, their number and their
frequencies. One run has finite prompts. Its limit is 1, too, because its features are
exchangeable; with finite prompts other features may have another limit. Most steps are
skipped in every run.
"""

from __future__ import annotations

import math

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.results.plots import CYCLE, Curve, Panel, draw_panels

# Arguments of `figure` for a quick drawing.
QUICK = {"steps": 10**6}
# The nearest setting in the explorer, to which the gallery of figures links.
EXPLORER = "regression?L=2&eta=1&epsilon=0.000000001&t=10000000000"


def figure(
    *, eta: float = 1.0, L: float = 2.0, steps: int = 10**10, seed: int = 0
) -> Figure:
    """Draw the scaled losses of all runs, which take ``steps`` steps."""
    curves = []
    for index, (name, risk) in enumerate(_risks(L, seed).items()):
        K = risk.K if isinstance(risk, icl.ExchangeableRisk) else risk.features.K
        run = icl.descend(risk, eta, steps=steps, method="fast")
        # By the tail law these numbers tend to 1.
        scaled = run.t * (run.loss - run.floor) * 4.0 * eta / (K - 1)
        # When all colours have been used, they repeat, and curves are dashed.
        style = "-" if index < len(CYCLE) else "--"
        # A logarithmic axis has no place for the 0 at step 0, nor for an excess that
        # rounding makes 0 or negative. NaN is not drawn.
        curves.append(
            Curve(name, run.t, np.where(scaled > 0, scaled, math.nan), style=style)
        )
    scaled_loss = r"$4\eta t\,(\mathcal{L} - \mathcal{L}_\infty)\,/\,(K-1)$"
    return draw_panels(
        [Panel(curves, "step $t$", scaled_loss, levels={"": 1.0}, legend=True)],
        size=(5.2, 3.0),
    )


def _risks(L: float, seed: int) -> dict[str, icl.ExchangeableRisk | icl.PopulationRisk]:
    """Return the risks of ten tasks, by name."""
    rng = np.random.default_rng(seed)
    simplex = icl.Features.simplex
    orthonormal = icl.Features.orthonormal
    root = rng.normal(size=(6, 6))
    values = rng.normal(size=(9, 4))
    harmonic = 1.0 / np.arange(1.0, 7.0)  # frequencies p_m ∝ 1/m
    unequal = orthonormal(6, probs=harmonic / harmonic.sum())
    random_features = icl.Features.random(8, d=3, delta=1.0, seed=seed)
    nine_functions = icl.tasks.FiniteTask(values, np.full(9, 1.0 / 9.0))
    gamma = L**2 / 2.0  # the variogram L²Δ²/2 for Δ = 1
    # An exchangeable risk is over one number, and all others over the scores of all
    # features.
    over_scores = icl.PopulationRisk
    return {
        "exchangeable, $K=20$": icl.ExchangeableRisk(20, gamma),
        "exchangeable, $K=100$": icl.ExchangeableRisk(100, gamma),
        "exchangeable, $N=200$": icl.ExchangeableRisk(10, gamma, N=200),
        "two features": over_scores(simplex(2, delta=1.0), icl.tasks.Linear(L)),
        "cosine": over_scores(orthonormal(5, scale=4.0), icl.tasks.RandomCosine(L)),
        "Fourier, random features": over_scores(
            random_features, icl.tasks.RandomFourier(L)
        ),
        "quadratic": over_scores(orthonormal(7), icl.tasks.Quadratic(L)),
        r"linear, $p_m \propto 1/m$": over_scores(unequal, icl.tasks.Linear(L)),
        "random kernel": over_scores(
            orthonormal(6), icl.tasks.KernelTask(root @ root.T)
        ),
        "nine functions": over_scores(orthonormal(4), nine_functions),
    }


if __name__ == "__main__":
    script(__file__)
