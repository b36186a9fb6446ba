"""
Update rules: one loss, five optimisers
=======================================

The exact population loss of in-context regression along runs by gradient descent, the
heavy ball, Nesterov's momentum, Adam, and AdamW with weight decay. Momentum β moves the
curve of gradient descent to the left by the factor 1 - β and keeps its 1/t tail; the
curves of the heavy ball and of Nesterov's momentum coincide at this scale. Adam's tail
is exponential until the gradients are as small as Adam's ε. Weight decay ends the tail.
"""

from __future__ import annotations

from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.engine import Adam, AdamW, GradientDescent, HeavyBall, Nesterov, Rule
from icl_theory.results.plots import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    RED,
    Curve,
    Panel,
    draw_panels,
)

COLUMN = (3.39, 2.6)  # inches; a journal column is 8.6 cm wide
# Arguments of `figure` for a quick drawing.
QUICK = {"steps": 2000, "K": 5}
# The nearest setting in the explorer, to which the gallery of figures links.
EXPLORER = "regression?L=2&K=10&eta=0.1&epsilon=0.000001&t=100000"


def figure(
    *,
    L: float = 2.0,
    K: int = 10,
    eta: float = 0.1,
    eta_adam: float = 0.02,
    momentum: float = 0.9,
    beta2: float = 0.99,
    weight_decay: float = 0.01,
    steps: int = 20_000,
) -> Figure:
    """Draw the losses against steps, at the width of one column of a journal.

    Adam and AdamW have the learning rate ``eta_adam``, and all other rules ``eta``.
    """
    risk = icl.PopulationRisk(
        icl.Features.simplex(K, delta=1.0), icl.tasks.Exchangeable(L)
    )
    # By name: the rule, its learning rate, and the colour and style of its curve.
    rules: dict[str, tuple[Rule, float, str, str]] = {
        "gradient descent": (GradientDescent(), eta, BLACK, "-"),
        "heavy ball": (HeavyBall(momentum), eta, BLUE, "-"),
        "Nesterov": (Nesterov(momentum), eta, ORANGE, ":"),
        "Adam": (Adam(beta2=beta2), eta_adam, RED, "-"),
        "AdamW": (AdamW(beta2=beta2, weight_decay=weight_decay), eta_adam, GREEN, "--"),
    }
    curves = []
    for name, (rule, learning_rate, colour, style) in rules.items():
        # With `give_up=False` a run takes all steps, even if the loss no longer falls.
        run = icl.descend(risk, learning_rate, steps=steps, rule=rule, give_up=False)
        curves.append(Curve(name, run.t, run.loss, style=style, colour=colour))
    return draw_panels([Panel(curves, "step", "loss")], size=COLUMN)


if __name__ == "__main__":
    script(__file__)
