"""
What each layer buys
====================

Least mean squared error of layers of linear attention, in d = 5 dimensions with prompts
of 20 pairs. If layers move the tokens (GD++), each layer gains more digits than the one
before it. If they leave the tokens alone, each layer gains about the same factor. The
dotted line is the least error of all polynomials in the prompt's covariance that have
the degree of the layers that move the tokens.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from icl_theory.cli.figures import script
from icl_theory.papers.descent_layers.family import DescentLayers
from icl_theory.results.plots import CYCLE, Curve, Panel, draw_panels

# Arguments of `figure` for a quick drawing.
QUICK = {"depth": 3, "starts": 10}


def figure(*, d: int = 5, N: int = 20, depth: int = 5, starts: int = 60) -> Figure:
    """Draw the least errors of 1 to ``depth`` layers.

    ``starts`` is the number of descents in each search for the least error.
    """
    depths = np.arange(1, depth + 1)
    # Mean squared errors, which are twice the losses.
    fixed_errors = []
    moved_errors = []
    bounds = []
    for layer_count in depths.tolist():
        moved = DescentLayers(d=d, N=N, depth=layer_count)
        fixed = moved.changed(tokens="fixed")
        # Without noise, layers that leave the tokens alone reach their bound.
        fixed_errors.append(2.0 * fixed.layers().floor())
        moved_errors.append(2.0 * moved.layers().loss(moved.best_steps(starts)))
        bounds.append(2.0 * moved.layers().floor())
    curves = [
        Curve("tokens fixed", depths, fixed_errors, style="-"),
        Curve("tokens moved", depths, moved_errors, style="--", colour=CYCLE[1]),
        Curve("any polynomial", depths, bounds, style=":", colour="black"),
    ]
    title = f"$d={d}$, $N={N}$"
    scales = ("linear", "log")
    panel = Panel(
        curves, "layers", "least mean squared error", title, scales, legend=True
    )
    return draw_panels([panel], size=(3.4, 2.4))


if __name__ == "__main__":
    script(__file__)
