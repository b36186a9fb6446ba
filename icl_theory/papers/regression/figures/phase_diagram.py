"""
Phase diagram over L and ε
==========================

Steps to the loss ε in closed form on a grid of Lipschitz constants and targets. In the
flat regime the loss reaches ε before the tail, and the number T of steps falls like
1/L². In the sharp regime T does not depend on L. Red dots show, for some targets, where
the measured exponent d ln T/d ln L passes −1, half-way between −2 and 0. The white line
is where gradient flow predicts this point. The dashed line is the exact L*, from which
on the loss reaches ε in the tail. The dotted line, LΔ = √(8εK²/(K−1)), is the leading
order of the white and the dashed line: on it the two parts K²/(ηγ) and (K−1)/(4ηε) of T
are equal, with γ = L²Δ²/2. With K = 100 features the L of the dashed line is 1.23 times
the L of the dotted line; their ratio tends to 1 as K → ∞. Grey: the loss starts below
ε, and no step is taken.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.results.plots import whole_figure

# Arguments of `figure` for a quick drawing.
QUICK = {"points": 20}
# The nearest setting in the explorer, to which the gallery of figures links.
EXPLORER = "regression?L=0.03&delta=1&eta=0.01&K=100&epsilon=0.0001&t=100000"


def figure(
    *,
    K: int = 100,
    delta: float = 1.0,
    eta: float = 0.01,
    L: tuple[float, float] = (0.001, 10.0),
    epsilon: tuple[float, float] = (1e-7, 1e-2),
    points: int = 600,
) -> Figure:
    """Draw the steps to the loss ε as a map over L and ε.

    ``L`` and ``epsilon`` are the ends of both axes. The grid has ``points`` values of L
    and half as many of ε.
    """
    sweep = icl.sweep(
        L=np.geomspace(*L, points),
        delta=delta,
        eta=eta,
        K=K,
        epsilon=np.geomspace(*epsilon, points // 2),
        progress=False,
    )
    return whole_figure(icl.plot_sweep(sweep, over="L"))


if __name__ == "__main__":
    script(__file__)
