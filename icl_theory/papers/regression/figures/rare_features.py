"""
Four phases of a rare query
===========================

One feature is in half of all tokens, the others are rare. Above: where a query of a
rare feature looks. Below: its scores over ln K. Phases end at the dotted lines: the
score of the dominant feature is -0.49 ln K; the own feature overtakes it; the own
feature has half of the attention. Then the loss converges.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.results.plots import Curve, Panel, draw_panels

QUICK = {"K": 50}


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
    conditions = (
        lambda state: bool(state.params[1, 1] <= -0.49 * math.log(K)),
        lambda state: bool(np.diff(risk.attention(state.params)[1, :2])[0] <= 0.0),
        lambda state: bool(state.attention[1] >= 0.5),
    )
    ends = (
        np.array([run.first(condition) or 0 for condition in conditions]) * eta / K**2
    )
    times = np.linspace(0, int(run.t[-1]), 400).astype(np.int64)
    states = [run.at(t).params for t in times.tolist()]
    shares = np.transpose([risk.attention(params)[1] for params in states])
    scores = np.transpose([params[1, :2] / math.log(K) for params in states])
    panels: list[Panel] = []
    for kind, values in (("attention", shares), ("score / $\\ln K$", scores)):
        names = ("own feature", "dominant feature", "all others")
        curves = [
            Curve(name, times * eta / K**2, curve)
            for name, curve in zip(names, values, strict=False)
        ]
        limits = (float(values.min()) - 0.05, float(values.max()) + 0.05)
        lines = [Curve("", [end, end], limits, style=":", colour="0.6") for end in ends]
        title = "" if panels else f"a rare query, $K={K}$"
        scales = ("linear", "linear")
        panels.append(
            Panel(
                [*curves, *lines],
                "steps $\\eta/K^2$",
                kind,
                title,
                scales,
                limits,
                legend=True,
            )
        )
    return draw_panels(panels, size=(4.6, 2.0))


if __name__ == "__main__":
    script(__file__)
