"""
Does off-target attention oscillate?
====================================

Attention of one query on the other features, on long prompts, while the scores are
trained in three ways. Left: exact descent on long prompts. Middle: exact descent on
short prompts with label noise. At this learning rate some of these curves turn once or
a few times, and none continues to oscillate. Right: stochastic descent on a batch of
short prompts per step. Because the prompts are random, every curve turns at almost
every step, and moves around the exact curve (dotted).
"""

from __future__ import annotations

import itertools

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory._validate import Array
from icl_theory.cli.figures import script
from icl_theory.regression.sampled.counts import CountedRisk
from icl_theory.regression.sampled.phases import run_states
from icl_theory.results.plots import CYCLE, Curve, Panel, draw_panels

# Arguments of `figure` for a quick drawing.
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
    """Draw the attention of one query on other features, for three ways of training.

    The three ways are exact descent on long prompts, exact descent on prompts of N
    tokens with label noise, and stochastic descent with ``batch`` prompts a step.
    """
    features = icl.Features.random(K, d=3, delta=0.7, seed=seed)
    law = icl.tasks.RandomFourier(L)
    long_prompts = icl.PopulationRisk(features, law)
    short_prompts = icl.PopulationRisk(features, law, N)
    risks = {
        "exact, $N = \\infty$": long_prompts,
        f"exact, $N = {N}$, $\\sigma = {noise:g}$": icl.PopulationRisk(
            features, law, N, noise
        ),
        f"SGD, $N = {N}$, {batch} prompts a step": CountedRisk(
            features, law, N, batch, seed, every_query=False
        ),
    }
    query = query % K  # K may be smaller than the number of the query

    def attention_along(risk: icl.Risk) -> Array:
        """Attention of the query, on long prompts, at every step, (steps + 1, K)."""
        states = run_states(risk, eta, steps)
        return np.array([long_prompts.attention(scores)[:, query] for scores in states])

    panels = []
    for title, risk in risks.items():
        curves = _coloured(attention_along(risk), query)
        note = ""
        if isinstance(risk, CountedRisk):
            # The sampled run moves around exact descent on prompts of the same length.
            curves += _dotted(attention_along(short_prompts), query)
            note = "dotted: exact"
        ordinate = f"attention of query {query + 1}"
        panels.append(Panel(curves, "step", ordinate, title, note=note))
    return draw_panels(panels, columns=3, size=(2.9, 2.6))


def _coloured(attention: Array, query: int) -> list[Curve]:
    """Return a named curve for each feature but the query's."""
    count, K = attention.shape  # number of states, one for each step 0, 1, ...
    other_features = np.delete(np.arange(K), query)
    return [
        Curve(f"feature {m + 1}", np.arange(count), attention[:, m], colour=colour)
        # The colours repeat if there are more features.
        for m, colour in zip(other_features, itertools.cycle(CYCLE))
    ]


def _dotted(attention: Array, query: int) -> list[Curve]:
    """Return a dotted curve without a name for each feature but the query's."""
    count, K = attention.shape
    return [
        Curve("", np.arange(count), attention[:, m], style=":", colour="0.4")
        for m in np.delete(np.arange(K), query)
    ]


if __name__ == "__main__":
    script(__file__)
