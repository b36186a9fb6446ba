"""
In one picture: how long attention takes to learn
=================================================

Left, the loss of three runs that differ in the Lipschitz constant L alone. A black dot
marks the step at which the loss reaches ε. Right, the number of steps to ε for every L;
there the coloured dots are the three runs. Left of the threshold L* (flat) the loss
reaches ε while attention is still being learnt, which takes a time proportional to
1/L². Right of L* (sharp) attention is learnt early, and most steps go into a tail, in
which the loss falls like 1/t and which does not depend on L. Steps are counted in
closed form, and none of them is taken.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.results.plots import BLACK, BLUE, GREEN, RED, Curve, Panel, draw_panels

# Arguments of `figure` for a quick drawing.
QUICK = {"points": 40}
# The nearest setting in the explorer, to which the gallery of figures links.
EXPLORER = "regression?L=2&delta=1&eta=4&K=1000&epsilon=0.000001&t=100000"


def figure(
    *,
    L: tuple[float, ...] = (0.02, 0.1, 2.0),
    K: int = 1000,
    delta: float = 1.0,
    eta: float = 4.0,
    epsilon: float = 1e-6,
    points: int = 400,
) -> Figure:
    """Draw the losses of runs with the given L, and the number of steps against L."""
    runs = [
        icl.simulate(lipschitz, delta, eta, K=K, epsilon=epsilon) for lipschitz in L
    ]
    # The colours repeat if there are more than three runs.
    cycle = itertools.cycle((BLUE, GREEN, RED))
    colours = list(itertools.islice(cycle, len(L)))
    losses = [
        Curve(f"$L = {lipschitz:g}$", run.t, run.loss, colour=colour)
        for lipschitz, run, colour in zip(L, runs, colours, strict=True)
    ]
    # The range of L shows both regimes: a power law left of L*, and a constant right of
    # it.
    threshold = icl.regression.crossover(epsilon, delta, K)
    lowest = threshold / 30.0
    highest = 100.0 * threshold
    L_grid = np.geomspace(lowest, highest, points)
    sweep = icl.sweep(
        L=L_grid, delta=delta, eta=eta, K=K, epsilon=epsilon, progress=False
    )
    loss_panel = Panel(
        losses,
        "step",
        "loss",
        "loss during training",
        levels={r"$\varepsilon$": epsilon},
        legend=True,
    )
    steps_panel = Panel(
        [Curve("", L_grid, sweep.steps.values, colour=BLACK)],
        "Lipschitz constant $L$ of the functions",
        r"steps until the loss is $\varepsilon$",
        "training time against $L$",
    )
    drawn = draw_panels([loss_panel, steps_panel], columns=2, size=(4.2, 2.9))
    left, right, *_ = drawn.axes
    for lipschitz, run, colour in zip(L, runs, colours, strict=True):
        # The end of the run, at ε. Clipping would cut dots at the edge of the axes.
        left.plot(
            run.t[-1], run.loss[-1], "o", color=BLACK, markersize=4, clip_on=False
        )
        right.plot(lipschitz, float(run.t[-1]), "o", color=colour, markersize=6)
    _mark_regimes(right, lowest, threshold, highest)
    return drawn


def _mark_regimes(ax: Any, lowest: float, threshold: float, highest: float) -> None:
    """Shade and name both ranges of L, and mark the threshold between them."""
    ax.axvspan(lowest, threshold, color=BLUE, alpha=0.10, linewidth=0)
    ax.axvspan(threshold, highest, color=RED, alpha=0.10, linewidth=0)
    # Heights are relative to the axes. The names stand in the middle of their regime,
    # which is the geometric mean of its ends on a logarithmic axis.
    transform = ax.get_xaxis_transform()
    for name, first, last in (
        ("flat:\n$\\propto 1/L^2$", lowest, threshold),
        ("sharp:\nany $L$ alike", threshold, highest),
    ):
        middle = np.sqrt(first * last)
        ax.text(middle, 0.93, name, transform=transform, ha="center", va="top")
    ax.text(threshold, 0.04, "$L^*$ ", transform=transform, ha="right")


if __name__ == "__main__":
    script(__file__)
