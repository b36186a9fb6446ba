"""
Linear attention: depth against context
=======================================

The least loss of D layers of linear attention against the number of layers (left) and
the length of the prompt (right). Each layer is a step of gradient descent on the
prompt. Solid lines are for layers in a loop, which share one step length, and dashed
lines for layers with step lengths of their own. The losses are exact, from moments of
Wishart matrices.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.results.plots import Curve, Panel, draw_panels
from icl_theory.results.plots.style import CYCLE

# Arguments of `figure` for a quick drawing.
QUICK = {"depth": 4, "lengths": (8, 16, 64)}


def figure(
    *,
    d: int = 8,
    depth: int = 16,
    lengths: tuple[int, ...] = (8, 12, 16, 24, 32, 64, 128),
    shown: tuple[int, ...] = (16, 64),
) -> Figure:
    """Draw the loss against the number of layers, and against the length of prompts.

    ``d`` is the dimension of the tokens, and ``depth`` the largest number of layers D.
    The left panel has a curve for each of the lengths N of prompts in ``shown``, and
    the right panel is over the lengths in ``lengths``.
    """
    layers = np.arange(1, depth + 1)

    def least_losses(N: int, D: int) -> tuple[float, float]:
        """Return the least loss/d in a loop, and with a step length for each layer."""
        loop_loss = icl.linear_attention.LoopedRisk(d, N, D).floor()
        own_loss = icl.linear_attention.best_layers(d, N, D).loss
        return loop_loss / d, own_loss / d

    left = []
    right = []
    # CYCLE has more colours than there are lengths or depths.
    for N, colour in zip(shown, CYCLE, strict=False):
        loop, own = np.array([least_losses(N, D) for D in layers.tolist()]).T
        left.append(Curve(f"N = {N}, loop", layers, loop, colour=colour))
        left.append(Curve(f"N = {N}, own", layers, own, style="--", colour=colour))
    for D, colour in zip((1, 2, 4, 8), CYCLE, strict=False):
        loop, own = np.array([least_losses(N, D) for N in lengths]).T
        right.append(Curve(f"D = {D}", lengths, loop, colour=colour))
        # A single layer has the same loss in both cases, so its second curve has no
        # label.
        own_label = f"D = {D}, own" if D > 1 else ""
        right.append(Curve(own_label, lengths, own, style="--", colour=colour))
    left_scales = ("linear", "log")  # of the x axis and of the y axis
    return draw_panels(
        [
            Panel(left, "layers D", "least loss / d", "", left_scales),
            # Both axes keep their default scales, which are logarithmic. The label of
            # the y axis ends with a space, so that it differs from the label of the
            # left panel. With equal labels the two panels would share their y axis.
            Panel(right, "pairs in a prompt N", "least loss / d ", ""),
        ],
        columns=2,
    )


if __name__ == "__main__":
    script(__file__)
