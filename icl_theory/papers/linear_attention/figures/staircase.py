"""
Linear attention: one drop and a staircase
==========================================

Excess of the loss of linear attention on linear regression (above), and the entries of
Γ along the principal directions of the tokens as shares of the best ones (below). With
keys and queries merged all directions are learnt in one drop. Heads with separate keys
and queries of rank one learn them one after the other: on its plateaus the layer does
principal component regression in context, with the losses of the dotted lines.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.results.plots import Curve, Panel, draw_panels

QUICK = {"start": 0.03, "steps": 4000, "d": 3}
EXPLORER = (
    "linear-attention?d=4&decay=0.5&N=100&noise=0.1&eta=0.1&start=0.01"
    "&test_decay=0.5&test_N=100&test_noise=0.1"
)


def figure(
    *,
    d: int = 4,
    decay: float = 0.5,
    N: int = 100,
    noise: float = 0.1,
    eta: float = 0.1,
    start: float = 0.01,
    steps: int = 20000,
    seed: int = 1,
) -> Figure:
    """Draw a run with keys and queries merged, and one with separate ones.

    Both take ``steps`` steps, from parameters of the size ``start``.
    """
    base = icl.LinearAttention(
        d=d, decay=decay, N=N, noise=noise, eta=eta, start=start, seed=seed
    )
    problems = {
        "keys and queries merged": base.changed(coordinates="pair"),
        "separate, rank one": base.changed(coordinates="heads", heads=d),
    }
    law = base.law()
    # The loss falls by ½ λ_q m γ*² when a direction is learnt. Along it, λ_q and m are
    # the second moments of the query and of h = (1/N) Σ y_i x_i, and γ* is the best Γ.
    _, _, query = law.moments
    drops = 0.5 * query * law.second * law.best**2
    levels = {f"{learnt} learnt": float(drops[learnt:].sum()) for learnt in range(1, d)}
    above = []
    below = []
    scales = ("log", "linear")
    for name, problem in problems.items():
        run = icl.descend(problem.risk(), eta, steps=steps)
        shares = run.observed["gamma"] / law.best
        excess = [Curve("", run.t, run.observed["excess"])]
        above.append(
            Panel(excess, "step", "excess of the loss", name, scales, levels=levels)
        )
        curves = [
            # Random heads begin with small shares of both signs. Negative shares are
            # drawn at 0.
            Curve(f"direction {j + 1}", run.t, np.clip(shares[:, j], 0.0, None))
            for j in range(d)
        ]
        below.append(Panel(curves, "step", "share learnt", "", scales))
    return draw_panels([*above, *below], columns=2)


if __name__ == "__main__":
    script(__file__)
