"""
Figures 2 and 3: attention maps, flat and sharp
===============================================

Attention of each query (column) on each feature (row) at several steps of descent on
the exact population loss, N = ∞. Columns sum to one, and the diagonal fills. The tasks
are random cosines over random features. Some features are closer to each other than
others, so the queries learn at different times. For N = ∞ the square of L multiplies
the learning rate and changes nothing else, so both rows go through the same maps at
different times.
"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.results.plots import draw_maps

# Arguments of `figure` for a quick drawing.
QUICK = {"K": 6}
# The nearest setting in the explorer, to which the gallery of figures links.
EXPLORER = "regression?L=2&delta=1&K=12&eta=1&t=1000"


def figure(
    *,
    flat: float = 0.5,
    sharp: float = 2.0,
    K: int = 12,
    dimension: int = 3,
    delta: float = 1.0,
    eta: float = 1.0,
    seed: int = 0,
    steps: tuple[int, ...] = (0, 30, 100, 1000, 10000),
) -> Figure:
    """Draw attention maps at the steps, in one row for each Lipschitz constant.

    The K features are random points in ``dimension`` dimensions, with the smallest
    distance ``delta``.
    """
    rows = attention(flat, sharp, K, dimension, delta, eta, seed, steps)
    return draw_maps(rows, [f"step {step:,}" for step in steps])


def attention(
    flat: float,
    sharp: float,
    K: int,
    dimension: int,
    delta: float,
    eta: float,
    seed: int,
    steps: tuple[int, ...],
) -> dict[str, list[Any]]:
    """Return the maps at the steps, for each Lipschitz constant.

    The parameters are the same as for ``figure``. `icl_theory.figures.animate` calls
    this function, too, with many more steps.
    """
    features = icl.Features.random(K, dimension, delta, seed)
    rows = {}
    for L in (flat, sharp):
        risk = icl.PopulationRisk(features, icl.tasks.RandomFourier(L))
        run = icl.descend(risk, eta, steps=max(steps), method="fast")
        rows[f"$L = {L:g}$"] = [risk.attention(run.at(step).params) for step in steps]
    return rows


if __name__ == "__main__":
    script(__file__)
