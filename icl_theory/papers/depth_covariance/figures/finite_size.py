"""
Where the asymptotic loss fails
===============================

Prompts with as many pairs as dimensions, on the spectrum 1, 1/2, 1/3, ... The layers
share a matrix Γ. Left: the relative excess of the exact loss over its limit, at the Γ
that is best in the limit. Right: losses in d = 10 dimensions. Long steps of many layers
amplify rare prompts, which the limit does not have.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from icl_theory.cli.figures import script
from icl_theory.papers.depth_covariance.family import DepthCovariance
from icl_theory.papers.depth_covariance.statements import departure
from icl_theory.results.plots import CYCLE, Curve, Panel, draw_panels

# A line style for each depth, so that the curves can be told apart in grey.
STYLES = ("-", "--", "-.", ":")
# Arguments of `figure` for a quick drawing.
QUICK = {"sizes": (10, 20), "depths": (1, 2), "deepest": 3}


def figure(
    *,
    sizes: tuple[int, ...] = (10, 14, 20, 30, 50, 70, 100, 140, 200),
    depths: tuple[int, ...] = (1, 2, 3, 6),
    deepest: int = 6,
    d: int = 10,
) -> Figure:
    """Draw the departures against the size d = N, and the losses against the depth.

    A departure is the exact loss divided by its limit, minus 1. The losses are drawn
    for the dimension ``d``, and 1 to ``deepest`` layers.
    """
    departure_curves = []
    for depth, colour, style in zip(depths, CYCLE, STYLES, strict=False):
        # The spectrum of each size is 1, 1/2, 1/3, ...
        departures = [
            departure(np.arange(1.0, size + 1.0) ** -1.0, depth) for size in sizes
        ]
        name = f"{depth} layer{'s' if depth > 1 else ''}"
        departure_curves.append(
            Curve(name, sizes, departures, style=style, colour=colour)
        )
    layers = np.arange(1, deepest + 1)
    limit_losses = []
    exact_losses = []  # at the Γ that is best in the limit
    least_losses = []  # the exact losses at their own best Γ
    for depth in layers.tolist():
        leading = DepthCovariance(d=d, N=d, depth=depth, terms="leading")
        exact = leading.changed(terms="all")
        best_in_limit = leading.best()
        limit_losses.append(leading.risk().loss(best_in_limit))
        exact_losses.append(exact.risk().loss(best_in_limit))
        least_losses.append(exact.risk().loss(exact.best()))
    loss_curves = [
        Curve(
            "limit, at its best Γ", layers, limit_losses, style="--", colour=CYCLE[0]
        ),
        Curve("exact, at this Γ", layers, exact_losses, colour=CYCLE[1]),
        Curve(
            "exact, at its best Γ", layers, least_losses, style="-.", colour=CYCLE[2]
        ),
    ]
    panels = [
        Panel(
            departure_curves,
            "$d = N$",
            "exact loss over limit, less 1",
            "",
            ("log", "log"),
            legend=True,
        ),
        Panel(
            loss_curves,
            "layers",
            "loss",
            f"$d = N = {d}$",
            ("linear", "log"),
            legend=True,
        ),
    ]
    return draw_panels(panels, columns=2, size=(3.6, 2.6))


if __name__ == "__main__":
    script(__file__)
