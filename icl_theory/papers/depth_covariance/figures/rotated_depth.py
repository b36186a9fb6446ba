"""
Depth against rotated covariances
=================================

Least loss of layers that share the matrix Γ = γI, for infinitely long prompts whose
covariance is rotated at random, against the number of layers. The covariance has the
eigenvalues j^-ν, and its eigendirections contribute to the loss before training in
proportion to j^-(1 + βν). The dashed lines fall like the number of layers to the power
-β.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from icl_theory.cli.figures import script
from icl_theory.papers.depth_covariance.statements import least_of_rotated
from icl_theory.results.plots import CYCLE, Curve, Panel, draw_panels

# Arguments of `figure` for a quick drawing.
QUICK = {"d": 1000, "deepest": 16}


def figure(
    *,
    d: int = 10**5,
    deepest: int = 256,
    exponents: tuple[tuple[float, float], ...] = ((1.0, 1.0), (1.5, 0.5), (2.0, 1.5)),
) -> Figure:
    """Draw the least losses against the depth, for each pair of exponents (ν, β).

    The depths are the powers of two up to ``deepest``.
    """
    depths = 2 ** np.arange(int(np.log2(deepest)) + 1)
    curves = []
    for (decay, source), colour in zip(exponents, CYCLE, strict=False):
        least_losses = [
            least_of_rotated(d, decay, source, depth).loss for depth in depths.tolist()
        ]
        # The law L^-β of the depth L, through the last point.
        law = least_losses[-1] * (depths / depths[-1]) ** -source
        curves.append(
            Curve(f"ν = {decay}, β = {source}", depths, least_losses, colour=colour)
        )
        curves.append(Curve("", depths, law, style="--", colour=colour))
    scales = ("log", "log")
    panel = Panel(curves, "layers", "least loss", "$N=\\infty$", scales, legend=True)
    return draw_panels([panel], size=(3.8, 2.6))


if __name__ == "__main__":
    script(__file__)
