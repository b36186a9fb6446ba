"""
Phase diagram over L and ε
==========================

Steps to the loss ε in closed form on a grid of Lipschitz constants and targets. White: the exact
boundary between the flat regime, in which ε is reached before the tail and the steps fall like
1/L², and the sharp one, in which they do not depend on L. Dashed: its leading order, L*Δ =
√(8εK²/(K−1)), where the two parts K²/(ηγ) and (K−1)/(4ηε) of the step count are equal. Red: where the
measured exponent d ln T/d ln L passes −1, as that of the sum of two equal parts does. With K = 100
features the exact boundary is 1.23 times the dashed one; they agree as K → ∞. Grey: the loss starts
below ε.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.diagrams import plot_sweep
from icl_theory.plotting import whole_figure

QUICK = {"points": 20}


def figure(
    *,
    K: int = 100,
    delta: float = 1.0,
    eta: float = 0.01,
    L: tuple[float, float] = (0.001, 10.0),
    epsilon: tuple[float, float] = (1e-7, 1e-2),
    points: int = 120,
) -> Figure:
    """Draw the steps over both parameters."""
    found = icl.sweep(
        L=np.geomspace(*L, points),
        delta=delta,
        eta=eta,
        K=K,
        epsilon=np.geomspace(*epsilon, points // 2),
        progress=False,
    )
    return whole_figure(plot_sweep(found, over="L"))


if __name__ == "__main__":
    script(__file__, figure, QUICK)
