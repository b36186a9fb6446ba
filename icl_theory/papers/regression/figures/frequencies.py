"""
Features that are not equally frequent
======================================

Gradient descent on the exact population loss, where feature m = 1, ..., K appears with
a probability proportional to 1/m, both in the prompts and as the query. Each query goes
through the phases at its own time, and rare queries go through them late. The loss ends
on the same tail, (K−1)/(4ηt), as with equal frequencies.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.results.plots import BLACK, BLUE, RED, Curve, Panel, draw_panels

# Arguments of `figure` for a quick drawing.
QUICK = {"K": 5, "steps": 10**3}


def figure(
    *,
    L: float = 2.0,
    K: int = 10,
    delta: float = 1.0,
    eta: float = 1.0,
    power: float = 1.0,
    steps: int = 10**5,
) -> Figure:
    """Draw the losses with equal and unequal frequencies, and the attention of queries.

    Unequal frequencies are p_m ∝ m^-``power``. The attention is drawn for some of the
    queries with these frequencies. ``delta`` is the distance between any two features.
    """
    weights = np.arange(1.0, K + 1.0) ** -power
    equal = np.full(K, 1.0 / K)
    unequal = weights / weights.sum()
    vectors = icl.Features.simplex(K, delta).vectors
    runs = {}
    for name, probs in (("equal", equal), ("unequal", unequal)):
        risk = icl.PopulationRisk(
            icl.Features(vectors, probs), icl.tasks.Exchangeable(L)
        )
        runs[name] = icl.descend(risk, eta, steps=steps, method="fast")
    t = runs["unequal"].t
    # The tail law is drawn where it may hold, over the last two decades of steps.
    late_t = t[t > steps / 100]
    tail_law = (K - 1) / (4.0 * eta * late_t)
    losses = [
        Curve("unequal", t, runs["unequal"].loss, colour=BLUE),
        Curve("equal", runs["equal"].t, runs["equal"].loss, colour=RED),
        Curve("tail law", late_t, tail_law, style="--", colour=BLACK),
    ]
    # At most five queries, from the most frequent to the rarest, counted from 0.
    shown_queries = np.unique(np.geomspace(1, K, 5).astype(int)) - 1
    attention = [
        Curve(f"$p = {unequal[k]:.2f}$", t, runs["unequal"].attention[:, k])
        for k in shown_queries
    ]
    return draw_panels(
        [
            Panel(losses, "step", "loss", legend=True),
            Panel(
                attention,
                "step",
                "attention",
                scales=("log", "linear"),
                limits=(0.0, 1.0),
                legend=True,
            ),
        ],
        columns=2,
    )


if __name__ == "__main__":
    script(__file__)
