"""
Softmax attention adapts its window
===================================

Above: the best inverse temperature κ on the sphere against the length of the prompt,
and its prediction from the balance of bias and variance (dashed). Below: the least loss
of softmax attention, and the least loss of linear attention (dashed), which learns
linear tasks alone.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.papers.sphere.statements import linear_attention
from icl_theory.results.plots import CYCLE, Curve, Panel, draw_panels

# Arguments of `figure` for a quick drawing.
QUICK = {"points": 4, "longest": 10**5}


def figure(
    *, d: int = 5, noise: float = 1.0, points: int = 13, longest: int = 10**7
) -> Figure:
    """Draw the best κ and the least losses against the length of the prompt.

    Inputs have ``d`` dimensions, and labels have noise of the deviation ``noise``.
    There are at most ``points`` lengths, and ``longest`` is the largest one.
    """
    lengths = np.unique(np.geomspace(10, longest, points).astype(int))
    kappa_curves: list[Curve] = []
    loss_curves: list[Curve] = []
    names = {"linear": "linear tasks", "relu": "ReLU tasks", "cosine": "cosine tasks"}
    # CYCLE has more colours than there are tasks.
    for colour, (task, name) in zip(CYCLE, names.items(), strict=False):
        problems = [icl.Sphere(task=task, d=d, N=int(N), noise=noise) for N in lengths]
        kappas = [problem.risk().best for problem in problems]
        # Without label noise there is no prediction, and no dashed curve is drawn.
        predicted_kappas = [problem.predicted() or np.nan for problem in problems]
        kappa_curves.append(Curve(name, lengths, kappas, colour=colour))
        kappa_curves.append(
            Curve("", lengths, predicted_kappas, style="--", colour=colour)
        )
        softmax_losses = [problem.risk().floor() for problem in problems]
        linear_losses = [linear_attention(problem) for problem in problems]
        loss_curves.append(Curve(name, lengths, softmax_losses, colour=colour))
        loss_curves.append(Curve("", lengths, linear_losses, style="--", colour=colour))
    title = f"$d={d}$, $\\sigma={noise:g}$"
    panels = [
        Panel(kappa_curves, "tokens of a prompt", "best κ", title, legend=True),
        Panel(loss_curves, "tokens of a prompt", "loss", legend=True),
    ]
    return draw_panels(panels, size=(4.4, 2.2))


if __name__ == "__main__":
    script(__file__)
