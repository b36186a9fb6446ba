"""
Heads over a dictionary
=======================

Above: the excess of the loss over the loss of ridge regression, with one head and with
several. One head has weights of one sign, and therefore a higher floor. Below: the
excess with a softmax that runs only over tokens with labels. The weights of the labels
then have the same sum for all queries, so that no number of heads reaches ridge
regression.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.results.plots import Curve, Panel, draw_panels

# Arguments of `figure` for a quick drawing.
QUICK = {"steps": 300}


def figure(
    *,
    K: int = 12,
    m: int = 8,
    N: int = 4,
    noise: float = 0.3,
    eta: float = 1.0,
    steps: int = 5000,
) -> Figure:
    """Draw the excess of losses over the loss of ridge regression.

    One panel has softmax over all tokens, the other over tokens with labels alone.
    """
    titles = {"all": "softmax over all tokens", "labelled": "softmax over labels"}
    # Limits of the ordinate. With softmax over labels alone the excess stays above a
    # positive floor, and automatic limits would show less than a decade.
    limits: dict[str, tuple[float, float] | None]
    limits = {"all": None, "labelled": (1e-2, 1.0)}
    panels = list[Panel]()
    for sees in ("all", "labelled"):
        base = icl.Representation(K=K, m=m, N=N, noise=noise, eta=eta, sees=sees)
        # With softmax over all tokens, several heads, as in ``base``, have the loss of
        # ridge regression as their floor.
        ridge_loss = base.changed(sees="all").risk().floor()
        curves = []
        for heads in (1, 2, N, 2 * N):
            run = icl.descend(base.changed(heads=heads).risk(), eta, steps=steps)
            excess = run.loss - ridge_loss
            # Differences of two losses below 1e-10 are mostly rounding; leave them out.
            excess = np.where(excess > 1e-10, excess, np.nan)
            label = "1 head" if heads == 1 else f"{heads} heads"
            curves.append(Curve(label, run.t, excess))
        panels.append(
            Panel(
                curves,
                "step",
                "excess over ridge",
                title=titles[sees],
                scales=("linear", "log"),
                limits=limits[sees],
                legend=True,
            )
        )
    return draw_panels(panels, size=(4.4, 2.1))


if __name__ == "__main__":
    script(__file__)
