"""
Class, embedding and factored coordinates
=========================================

The same loss is trained in three ways: over the scores S of all pairs of features
("class"), over the matrix Q in S = XQXᵀ, with the features as the rows of X
("embedding"), and over the factors of Q = W_KᵀW_Q, which start small and random
("factored"). If any two features have the distance Δ, a step on Q is worth Δ⁴/4 steps
on S. In these units (right) the first two curves coincide. The factors start near a
saddle and leave it late, but then they reach the loss ε before the other two.
"""

from __future__ import annotations

from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.results.plots import Curve, Panel, draw_panels

# Arguments of `figure` for a quick drawing.
QUICK = {"K": 4, "epsilon": 1e-2}
# The nearest setting in the explorer, to which the gallery of figures links.
EXPLORER = "regression?L=2&delta=1&eta=0.25&K=10&epsilon=0.001&t=100"


def figure(
    *,
    L: float = 2.0,
    delta: float = 1.0,
    eta: float = 0.25,
    K: int = 10,
    epsilon: float = 1e-3,
) -> Figure:
    """Draw the losses against steps, and against the steps on S that they are worth."""
    runs = icl.regression.compare_coordinates(L, delta, eta, K=K, epsilon=epsilon)
    # How many steps on the scores S a step on Q is worth. A step on the factors of
    # Q = W_KᵀW_Q is worth no fixed number of steps. Their curve gets the number for Q.
    step_on_q = delta**4 / 4.0
    worth_of_step = {"class": 1.0, "embedding": step_on_q, "factored": step_on_q}
    style = {"class": "-", "embedding": "--", "factored": "-"}
    losses = [
        Curve(name, run.t, run.loss, style=style[name]) for name, run in runs.items()
    ]
    scaled = [
        Curve(name, run.t * worth_of_step[name], run.loss, style=style[name])
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
