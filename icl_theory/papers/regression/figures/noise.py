"""
Label noise: a finite optimum, and exponential convergence
==========================================================

Prompts of N tokens with noisy labels. Attention to the query's feature alone would
average too few labels. The best attention is therefore below one, and is reached at
finite scores. The Hessian is positive at these scores, and the loss above its floor
falls exponentially. Without noise the optimum is at infinity, and the loss falls like
1/t. Curves end where steps no longer change the loss. On the left they end already
where rounding hides the difference from the floor.
"""

from __future__ import annotations

import itertools

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.results.plots import Curve, Panel, draw_panels

# Arguments of `figure` for a quick drawing.
QUICK = {"steps": 3000}


def figure(
    *,
    noises: tuple[float, ...] = (0.0, 0.3, 1.0, 3.0),
    L: float = 2.0,
    delta: float = 1.0,
    K: int = 10,
    N: int = 100,
    eta: float = 1.0,
    steps: int = 10**5,
) -> Figure:
    """Draw the loss above the floor, and the attention, for each of ``noises``.

    The ``noises`` are standard deviations σ of the label noise. L is the Lipschitz
    constant, and ``delta`` the distance between any two of the K features.
    """
    losses = []
    attention = []
    # Every second curve is dashed, so that a curve beneath it can be seen.
    for noise, style in zip(noises, itertools.cycle(("-", "--"))):
        label = rf"$\sigma = {noise:g}$"
        gamma = L**2 * delta**2 / 2.0  # variogram of any two features
        risk = icl.ExchangeableRisk(K, gamma, N=N, noise=noise)
        run = icl.descend(risk, eta, steps=steps)
        excess = run.loss - run.floor
        # A difference of losses that is smaller than this is rounding. NaN is not
        # drawn.
        excess[excess < 1e-14 * run.loss[0]] = np.nan
        losses.append(Curve(label, run.t, excess, style=style))
        attention.append(Curve(label, run.t, run.attention, style=style))
    return draw_panels(
        [
            Panel(losses, "step", "loss above the floor"),
            Panel(
                attention,
                "step",
                "attention on the target",
                scales=("log", "linear"),
                limits=(0.0, 1.0),
            ),
        ],
        columns=2,
    )


if __name__ == "__main__":
    script(__file__)
