"""
Does off-target attention oscillate?
====================================

Attention of one query on the other features, on long prompts, while the scores are
trained in three ways. Left and middle: exact descent, on long prompts, and on short
prompts with label noise. At this learning rate some curves turn once or a few times,
and none continues to oscillate. Right: stochastic descent on a few prompts per step.
Every curve turns at almost every step because of the noise of its prompts, around the
exact curve (dotted).
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.regression.sampled.counts import CountedRisk
from icl_theory.regression.sampled.phases import run_states
from icl_theory.results.plots import CYCLE, Curve, Panel, draw_panels

QUICK = {"steps": 100, "N": 5}


def figure(
    *,
    K: int = 6,
    L: float = 2.0,
    N: int = 8,
    noise: float = 1.0,
    eta: float = 2.0,
    batch: int = 64,
    steps: int = 500,
    query: int = 3,
    seed: int = 1,
) -> Figure:
    """Draw the attention of one query on the others, for exact, noisy and sampled
    descent.
    """
    features = icl.Features.random(K, 3, 0.7, seed=seed)
    law = icl.tasks.RandomFourier(L)
    long_prompts = icl.PopulationRisk(features, law)
    short = icl.PopulationRisk(features, law, N)
    risks = {
        "exact, $N = \\infty$": long_prompts,
        f"exact, $N = {N}$, $\\sigma = {noise:g}$": icl.PopulationRisk(
            features, law, N, noise
        ),
        f"SGD, $N = {N}$, {batch} prompts a step": CountedRisk(
            features, law, N, batch, seed, every_query=False
        ),
    }
    t = np.arange(steps + 1)
    panels = []
    other_features = np.delete(np.arange(K), query % K)

    def attention(risk: icl.Risk) -> np.ndarray:  # type: ignore[type-arg]
        return np.array(
            [
                long_prompts.attention(scores)[:, query % K]
                for scores in run_states(risk, eta, steps)
            ]
        )

    for title, risk in risks.items():
        path = attention(risk)
        sampled = isinstance(risk, CountedRisk)
        curves = [
            Curve(f"feature {m + 1}", t, path[:, m], colour=colour)
            for m, colour in zip(
                other_features, CYCLE * (K // len(CYCLE) + 1), strict=False
            )
        ]
        if sampled:
            mean = attention(short)
            curves += [
                Curve("", t, mean[:, m], style=":", colour="0.4")
                for m in other_features
            ]
        note = "dotted: exact" if sampled else ""
        panels.append(
            Panel(
                curves, "step", f"attention of query {query % K + 1}", title, note=note
            )
        )
    return draw_panels(panels, columns=3, size=(2.9, 2.6))


if __name__ == "__main__":
    script(__file__)
