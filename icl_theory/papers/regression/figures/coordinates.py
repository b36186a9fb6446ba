"""
Class, embedding and factored coordinates
=========================================

The same loss is trained in three ways: over the class scores S, which are one number
for each pair of features, over the matrix Q in S = XQXᵀ, and over the factors of
Q = W_KᵀW_Q, which start small and random. On a simplex with gap Δ a step on Q is worth
Δ⁴/4 steps on S. In these units (right) the first two curves coincide. The factors start
near a saddle and leave it late, but then they reach the loss ε before the other two.
"""

from __future__ import annotations

from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.results.plots import Curve, Panel, draw_panels

QUICK = {"K": 4, "epsilon": 1e-2}
EXPLORER = "regression?L=2&delta=1&eta=0.25&K=10&epsilon=0.001&t=100"


def figure(
    *,
    L: float = 2.0,
    delta: float = 1.0,
    eta: float = 0.25,
    K: int = 10,
    epsilon: float = 1e-3,
) -> Figure:
    """Draw the losses against steps, and against steps rescaled to class scores."""
    runs = icl.regression.compare_coordinates(L, delta, eta, K=K, epsilon=epsilon)
    # For each kind of coordinates: how many steps on class scores one step is worth.
    # For the factors of Q = W_KᵀW_Q there is no such number, and the number for Q is
    # used.
    worth = {"class": 1.0, "embedding": delta**4 / 4.0, "factored": delta**4 / 4.0}
    style = {"class": "-", "embedding": "--", "factored": "-"}
    losses = [
        Curve(name, run.t, run.loss, style=style[name]) for name, run in runs.items()
    ]
    scaled = [
        Curve(name, run.t * worth[name], run.loss, style=style[name])
        for name, run in runs.items()
    ]
    return draw_panels(
        [
            Panel(losses, "step", "loss", levels={r"$\epsilon$": epsilon}, legend=True),
            Panel(
                scaled,
                r"step × ($\Delta^4/4$ on $Q$)",
                "loss",
                levels={r"$\epsilon$": epsilon},
                legend=True,
            ),
        ],
        columns=2,
    )


if __name__ == "__main__":
    script(__file__)
