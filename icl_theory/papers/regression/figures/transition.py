"""
The transition between the regimes
==================================

The number T of steps to the loss ε against L, with enough features to make both power
laws visible. Learning to attend takes K²/(ηγ) ~ 1/L² steps. The tail takes (K−1)/(4ηε)
steps, for every L. Two points mark the transition between the regimes. At the half-way
point L½ the exponent d ln T/d ln L of gradient flow is −1, half-way from −2 to 0. From
L* on the loss reaches ε only in the tail, which takes at least half of the T steps: T
is at most twice (K−1)/(4ηε). For few features the exponent never comes near −2, as the
red curve shows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.results.plots import BLACK, BLUE, GREEN, RED, Curve, Panel, draw_panels

# Arguments of `figure` for a quick drawing.
QUICK = {"points": 40}
# The nearest setting in the explorer, to which the gallery of figures links.
EXPLORER = "regression?L=0.02&delta=1&eta=0.01&K=1000&epsilon=0.000001&t=100000000"


def figure(
    *,
    K: int = 1000,
    few: int = 20,
    delta: float = 1.0,
    eta: float = 0.01,
    epsilon: float = 1e-6,
    points: int = 400,
) -> Figure:
    """Draw the number of steps, and below it the exponent d ln T/d ln L.

    The steps are for K features, and the exponents also for ``few`` features.
    """
    # At this L the loss at the start, ¼L²Δ²(K-1)/K, is ε. Begin just above it.
    lowest = np.sqrt(4.0 * epsilon * K / (K - 1)) / delta
    crossover = icl.regression.crossover(epsilon, delta, K)
    half_way = icl.regression.half_way(epsilon, delta, K)
    L = np.geomspace(1.05 * lowest, 100.0 * crossover, points)
    sweep = icl.sweep(
        L=L, delta=delta, eta=eta, K=[few, K], epsilon=epsilon, progress=False
    )
    steps = sweep.steps.sel(K=K).values
    exponents = {size: sweep.exponent_L.sel(K=size).values for size in (few, K)}
    # The two parts of the number of steps, with γ = ½L²Δ².
    attention_steps = K**2 / (eta * 0.5 * (L * delta) ** 2)
    tail_steps = np.full(points, (K - 1) / (4.0 * eta * epsilon))
    steps_panel = Panel(
        [
            Curve(f"$T_\\varepsilon$, exact, $K = {K}$", L, steps, colour=BLACK),
            Curve(
                r"$K^2/(\eta\gamma) \propto L^{-2}$",
                L,
                attention_steps,
                style="--",
                colour=BLUE,
            ),
            Curve(
                r"$(K-1)/(4\eta\varepsilon) \propto L^0$",
                L,
                tail_steps,
                style="--",
                colour=GREEN,
            ),
        ],
        "$L$",
        r"steps to $\varepsilon$",
        # Each part goes far below the number of steps where the other part dominates,
        # and is cut off where it does.
        limits=(0.5 * float(tail_steps[0]), 2.0 * float(steps.max())),
    )
    exponent_panel = Panel(
        [
            Curve(f"$K = {K}$", L, exponents[K], colour=BLACK),
            Curve(f"$K = {few}$", L, exponents[few], colour=RED),
        ],
        "$L$",
        r"$d\,\ln T_\varepsilon\,/\,d\,\ln L$",
        scales=("log", "linear"),
        limits=(-2.3, 0.3),
        # Horizontal lines at -2 and 0. The lines have no names, but need different
        # keys.
        levels={"": -2.0, " ": 0.0},
    )
    drawn = draw_panels([steps_panel, exponent_panel], size=(4.6, 2.6))
    upper, lower = drawn.axes
    _mark_transition(upper, lower, half_way, crossover)
    return drawn


def _mark_transition(upper: Any, lower: Any, half_way: float, crossover: float) -> None:
    """Draw vertical lines at L½ and L* through both axes, with names at the top.

    ``half_way`` is L½, and ``crossover`` L*.
    """
    for ax in (upper, lower):
        ax.axvline(half_way, color="0.3", linestyle=":", linewidth=1.0)
        ax.axvline(crossover, color="0.3", linestyle="-.", linewidth=1.0)
    # Heights are relative to the axes, whose top is at 1.
    transform = upper.get_xaxis_transform()
    half_way_name = "$L_{1/2}$: exponent $-1$ "
    upper.text(half_way, 1.02, half_way_name, transform=transform, ha="right")
    crossover_name = r" $L^*$: the tail begins at $\varepsilon$"
    upper.text(crossover, 1.02, crossover_name, transform=transform)
    lower.plot(half_way, -1.0, "o", color=BLACK, markersize=4)


if __name__ == "__main__":
    script(__file__)
