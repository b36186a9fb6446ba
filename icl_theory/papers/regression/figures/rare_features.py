"""
Four phases of a rare query
===========================

One feature is in half of all tokens, all others are rare. Above: the attention of a
query of a rare feature. Below: its scores over ln K. Dotted lines are the ends of its
first three phases. The first ends when the score of the dominant feature has fallen to
-0.49 ln K, the second when the own feature has as much attention as the dominant one,
and the third when it has half of the attention. In the fourth the loss converges.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.engine.trajectory import State
from icl_theory.results.plots import Curve, Panel, draw_panels

QUICK = {"K": 50}
# The groups of features are the dominant one and all rare ones; curves are those of a
# query of the second group.
RARE = 1
# Scores and attention of a query are in this order.
NAMES = ("own feature", "dominant feature", "all others")
OWN, DOMINANT = 0, 1


def figure(
    *, K: int = 200, dominant: float = 0.5, eta: float = 1.0, epsilon: float = 3e-4
) -> Figure:
    """Draw attention and scores."""
    problem = icl.regression.GroupedRegression(
        L=1.0,
        delta=math.sqrt(2.0),
        sizes=(1, K - 1),
        shares=(dominant, 1.0 - dominant),
        eta=eta,
        epsilon=epsilon,
    )
    run = problem.simulate()
    risk: Any = problem.risk()
    ends_of_phases = _ends_of_phases(run, risk, K)
    steps = np.linspace(0, int(run.t[-1]), 400).astype(np.int64)
    states = [run.at(step).params for step in steps.tolist()]
    # One row for each entry of NAMES; scores only of the first two.
    attention = np.transpose([risk.attention(params)[RARE] for params in states])
    scores = np.transpose([params[RARE, :2] / math.log(K) for params in states])
    panels = []
    for kind, title, values in (
        ("attention", f"a rare query, $K={K}$", attention),
        ("score / $\\ln K$", "", scores),
    ):
        curves = [
            Curve(name, steps * eta / K**2, curve)
            for name, curve in zip(NAMES, values, strict=False)
        ]
        limits = (float(values.min()) - 0.05, float(values.max()) + 0.05)
        for step in ends_of_phases:
            end = step * eta / K**2
            curves.append(Curve("", [end, end], limits, style=":", colour="0.6"))
        panels.append(
            Panel(
                curves,
                "steps $\\eta/K^2$",
                kind,
                title,
                scales=("linear", "linear"),
                limits=limits,
                legend=True,
            )
        )
    return draw_panels(panels, size=(4.6, 2.0))


def _ends_of_phases(run: icl.Trajectory, risk: Any, K: int) -> list[int]:
    """Return the steps at which the phases of a rare query end, if they do."""

    def dominant_has_fallen(state: State) -> bool:
        return bool(state.params[RARE, DOMINANT] <= -0.49 * math.log(K))

    def own_has_overtaken(state: State) -> bool:
        attention = risk.attention(state.params)[RARE]
        return bool(attention[OWN] >= attention[DOMINANT])

    def own_has_half(state: State) -> bool:
        return bool(state.attention[RARE] >= 0.5)

    conditions = (dominant_has_fallen, own_has_overtaken, own_has_half)
    ends = [run.first(condition) for condition in conditions]
    return [end for end in ends if end is not None]


if __name__ == "__main__":
    script(__file__)
