"""
What depth buys in short and long prompts
=========================================

Least mean squared error of L layers with shared weights, on isotropic data in d = 32
dimensions without noise, against the number N of pairs in a prompt. Solid: the exact
error. Dashed: its limit for d and N in proportion, the error of L steps of descent if
the spectrum of the tokens has the Marchenko–Pastur law.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from icl_theory.cli.figures import script
from icl_theory.papers.depth_covariance.statements import TRAINED_DIMENSION, least_error
from icl_theory.results.plots import CYCLE, Curve, Panel, draw_panels

# Arguments of `figure` for a quick drawing.
QUICK = {"d": 8, "depths": (1, 2), "points": 4}


def figure(
    *,
    d: int = TRAINED_DIMENSION,
    depths: tuple[int, ...] = (1, 2, 4, 6),
    points: int = 16,
) -> Figure:
    """Draw the least errors against N/d, two curves for each of the depths.

    There are at most ``points`` lengths N, because equal rounded lengths count once.
    """
    lengths = np.unique(np.geomspace(d / 4, 8 * d, points).round().astype(int))
    curves = []
    for depth, colour in zip(depths, CYCLE, strict=False):
        exact_errors = [least_error(d, N, depth) for N in lengths.tolist()]
        limit_errors = [
            least_error(d, N, depth, leading=True) for N in lengths.tolist()
        ]
        name = f"{depth} layer{'s' if depth > 1 else ''}"
        curves.append(Curve(name, lengths / d, exact_errors, colour=colour))
        curves.append(
            Curve(
                f"{name}, limit", lengths / d, limit_errors, style="--", colour=colour
            )
        )
    scales = ("log", "linear")
    panel = Panel(
        curves, "$N/d$", "least error per dimension", f"$d={d}$", scales, legend=True
    )
    return draw_panels([panel], size=(3.8, 2.6))


if __name__ == "__main__":
    script(__file__)
