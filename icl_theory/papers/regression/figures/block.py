"""
The block of Section 6 and the one-matrix model
===============================================

A whole transformer block (softmax attention, feed-forward layer, layer norms, linear
read-out) is trained by plain stochastic gradient descent, next to exact descent of the
one-matrix model that the theorems are about, on the same tasks with the same learning
rate.

Top and middle: cosines of random frequency, a small and a large Lipschitz constant. The
block first learns to predict without attending, then attends to the query's feature
like the one-matrix model, three to five times later. Bottom: cosines of one frequency,
whose value at a feature is a multiple of a mixture of the others'. Under gradient
descent the layers after the attention supply the factor, and the loss falls without
attention on the target; other optimisers, such as Adam, end with more of it. "Attention
alone" is the loss that the block's attention would have in the one-matrix model.
"""

from __future__ import annotations

from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.regression.tasks import RandomCosine, RandomFourier, Task
from icl_theory.results.plots import BLUE, ORANGE, RED, Curve, Panel, draw_panels

QUICK = {"steps": 40, "K": 4, "N": 20}


def figure(
    *,
    flat: float = 0.5,
    sharp: float = 3.0,
    K: int = 6,
    N: int = 40,
    delta: float = 2.0,
    eta: float = 0.1,
    batch: int = 64,
    steps: int = 10_000,
    seed: int = 0,
) -> Figure:
    """Draw the loss beside the attention, a row for each task law."""
    features = icl.Features.simplex(K, delta)
    laws: dict[str, Task] = {
        f"random frequency, $L = {flat:g}$": RandomFourier(flat),
        f"random frequency, $L = {sharp:g}$": RandomFourier(sharp),
        f"one frequency, $L = {sharp:g}$": RandomCosine(sharp),
    }
    panels: list[Panel] = []
    for title, task in laws.items():
        data = icl.SampledRisk(features, task, N, batch, seed)
        block = icl.descend(icl.regression.BlockRisk(data, seed=seed), eta, steps=steps)
        exact = icl.in_coordinates(
            icl.PopulationRisk(features, task, N), "embedding", features.vectors
        )
        matrix = icl.descend(exact, eta, steps=steps, method="auto")
        curves = [
            Curve("one matrix", matrix.t, matrix.loss, colour=BLUE),
            Curve("block", block.t, block.observed["test_loss"], colour=RED),
            Curve(
                "attention alone",
                block.t,
                block.observed["attention_loss"],
                style=":",
                colour=ORANGE,
            ),
        ]
        panels.append(Panel(curves, "step", "loss", title))
        curves = []
        for name, run, colour in (("one matrix", matrix, BLUE), ("block", block, RED)):
            target = run.attention
            other_attention = (1.0 - target.mean(axis=1)) / (K - 1)
            curves.append(
                Curve(
                    name,
                    run.t,
                    target.mean(1),
                    target.min(1),
                    target.max(1),
                    colour=colour,
                )
            )
            curves.append(
                Curve(
                    f"{name}, others", run.t, other_attention, style="--", colour=colour
                )
            )
        note = "" if len(panels) > 1 else "bands: all queries"
        panels.append(
            Panel(
                curves,
                "step",
                "attention",
                "",
                ("log", "linear"),
                (0.0, 1.0),
                note=note,
            )
        )
    return draw_panels(panels, columns=2, size=(3.4, 2.1))


if __name__ == "__main__":
    script(__file__)
