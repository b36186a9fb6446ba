"""
Linear attention: one drop and a staircase
==========================================

Above: how far the loss of linear attention on linear regression is above its floor.
Below: the matrix Γ of the prediction, by its entries along the principal directions of
the tokens, as shares of the best entries. With keys and queries merged, all directions
are learnt in one drop. Heads with separate keys and queries of rank one learn them one
after the other. On its plateaus, at the dotted lines, the layer does principal
component regression in context.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.results.plots import Curve, Panel, draw_panels

# Arguments of `figure` for a quick drawing.
QUICK = {"start": 0.03, "steps": 4000, "d": 3}
# The nearest setting in the explorer, to which the gallery of figures links.
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

    Both take ``steps`` steps, from parameters of the size ``start``. The random heads
    are drawn with ``seed``.
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
    # the second moments of the query and of h = (1/N) Σ y_i x_i, and γ* is the entry of
    # the best Γ.
    _, _, query = law.moments
    drops = 0.5 * query * law.second * law.best**2
    # The excess with some directions learnt is the sum of the drops of all others.
    levels = {f"{learnt} learnt": float(drops[learnt:].sum()) for learnt in range(1, d)}
    excess_panels = []
    share_panels = []
    scales = ("log", "linear")  # of the x axis and of the y axis
    for name, problem in problems.items():
        run = icl.descend(problem.risk(), eta, steps=steps)
        shares = run.observed["gamma"] / law.best  # (number of saved states, d)
        excess = [Curve("", run.t, run.observed["excess"])]
        excess_panels.append(
            Panel(excess, "step", "excess of the loss", name, scales, levels=levels)
        )
        curves = [
            # Random heads begin with small shares of both signs. Negative shares are
            # drawn at 0.
            Curve(f"direction {j + 1}", run.t, np.clip(shares[:, j], 0.0, None))
            for j in range(d)
        ]
        share_panels.append(Panel(curves, "step", "share learnt", "", scales))
    return draw_panels([*excess_panels, *share_panels], columns=2)


if __name__ == "__main__":
    script(__file__)
