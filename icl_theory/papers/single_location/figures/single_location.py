"""
Single-location regression: escape and signal
=============================================

Left: the product κν along descent from the manifold, where κ is the overlap of k with
the direction of the informative token, and ν the overlap of v with the direction of its
label. The time until it rises grows like ln d. Right: the least loss of three kinds of
attention against the signal. Softmax reaches the Bayes risk, which falls exponentially.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from icl_theory.cli.figures import script
from icl_theory.papers.single_location.family import SingleLocation
from icl_theory.papers.single_location.statements import (
    PUBLISHED,
    least_erf,
    least_linear,
    least_softmax,
)
from icl_theory.results.plots import Curve, Panel, draw_panels

# Arguments of `figure` for a quick drawing.
QUICK = {"dimensions": (100,), "points": 3}


def figure(
    *,
    dimensions: tuple[int, ...] = (10**2, 10**4, 10**6),
    steps: int = 120,
    strongest: float = 64.0,
    points: int = 8,
) -> Figure:
    """Draw κν along runs in each of the dimensions, and least losses by the signal.

    ``strongest`` is the largest signal snr, and ``points`` the number of signals.
    """
    escape_curves = []
    for d in dimensions:
        run = PUBLISHED.changed(d=d, max_steps=steps, method="exact").simulate()
        kappa, nu, *_ = run.observed["overlaps"].T
        exponent = f"{np.log10(d):.0f}"
        escape_curves.append(Curve(f"$d = 10^{exponent}$", run.t, kappa * nu))
    signals = np.geomspace(1.0, strongest, points)
    problems = [SingleLocation(snr=snr) for snr in signals]
    least_losses = {"softmax": least_softmax, "erf": least_erf, "linear": least_linear}
    loss_curves = []
    for name, least_loss in least_losses.items():
        loss_curves.append(
            Curve(name, signals, [least_loss(problem) for problem in problems])
        )
    panels = [
        Panel(escape_curves, "step", "κν", scales=("linear", "linear"), legend=True),
        Panel(loss_curves, "signal, snr", "least loss"),
    ]
    return draw_panels(panels, columns=2)


if __name__ == "__main__":
    script(__file__)
