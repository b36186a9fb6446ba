"""
A degenerate task
=================

Consider functions with the value L on one of two fixed halves of the features and -L on
the other half, an example from a public review of the regression paper (ICLR 2026,
Reviewer 3). Each of them is 2L/Δ-Lipschitz and meets the paper's condition against
degenerate functions. But two features of the same half always have the same value, so
that the constant c_k in the lower bound of Lemma 1 is 0. The loss goes to zero like the
loss of two features. The attention on the target, the query's feature, stops at 2/K,
because the K/2 features of a half share the attention equally. The lower bound, and
Proposition 1 with it, therefore need c_k > 0.
"""

from __future__ import annotations

from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.results.plots import BLUE, RED, Curve, Panel, draw_panels

# Arguments of `figure` for a quick drawing.
QUICK = {"steps": 1000}


def figure(
    *,
    L: float = 2.0,
    delta: float = 1.0,
    K: int = 10,
    eta: float = 1.0,
    steps: int = 10**7,
) -> Figure:
    """Draw loss and attention of the degenerate task, and of an exchangeable task."""
    features = icl.Features.simplex(K, delta)
    losses = []
    attention = []  # on the query's own feature, the mean over the queries
    for name, task, colour in (
        ("exchangeable", icl.tasks.Exchangeable(L), BLUE),
        ("two halves", icl.tasks.Halfspace(L), RED),
    ):
        run = icl.descend(
            icl.PopulationRisk(features, task), eta, steps=steps, method="fast"
        )
        losses.append(Curve(name, run.t, run.loss, colour=colour))
        attention.append(Curve(name, run.t, run.attention.mean(axis=1), colour=colour))
    return draw_panels(
        [
            Panel(losses, "step", "loss"),
            Panel(
                attention,
                "step",
                "attention on the target",
                scales=("log", "linear"),
                limits=(0.0, 1.0),
                levels={"2/K": 2.0 / K},
            ),
        ],
        columns=2,
    )


if __name__ == "__main__":
    script(__file__)
