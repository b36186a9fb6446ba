"""
The block of Section 6 and the one-matrix model
===============================================

A whole transformer block (softmax attention, feed-forward layer, layer norms, linear read-out) is trained by plain
stochastic gradient descent, next to exact descent of the one-matrix model that the theorems are about, on the same
tasks with the same learning rate.

Left and middle: cosines of random frequency, a small and a large Lipschitz constant. The block first learns to
predict without attending, then attends to the query's feature like the one-matrix model, three to five times
later. Right: cosines of one frequency, whose value at a feature is a multiple of a mixture of the others'. The
layers after the attention supply the factor, and the loss falls without attention on the target. "Attention
alone" is the loss that the block's attention would have in the one-matrix model. Bands are the range over the
queries.
"""

from __future__ import annotations

from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.families.regression.tasks import RandomCosine, RandomFourier, Task
from icl_theory.results.plots import BLUE, ORANGE, RED, Curve, Panel, draw_panels

QUICK = {"steps": 100, "K": 4, "N": 20}


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
    """Draw the losses above the attention, a column for each task law."""
    features = icl.Features.simplex(K, delta)
    columns: dict[str, Task] = {
        f"random frequency, $L = {flat:g}$": RandomFourier(flat),
        f"random frequency, $L = {sharp:g}$": RandomFourier(sharp),
        f"one frequency, $L = {sharp:g}$": RandomCosine(sharp),
    }
    losses: list[Panel] = []
    attentions: list[Panel] = []
    for title, task in columns.items():
        data = icl.SampledRisk(features, task, N, batch, seed)
        block = icl.descend(icl.regression.BlockRisk(data, seed=seed), eta, steps=steps)
        exact = icl.in_coordinates(icl.PopulationRisk(features, task, N), "embedding", features.vectors)
        matrix = icl.descend(exact, eta, steps=steps, method="auto")
        last = len(losses) == len(columns) - 1  # where the curves of a row are labelled
        curves = [
            Curve("one matrix" * last, matrix.t, matrix.loss, colour=BLUE),
            Curve("block" * last, block.t, block.observed["test_loss"], colour=RED),
            Curve("attention alone" * last, block.t, block.observed["attention_loss"], style=":", colour=ORANGE),
        ]
        losses.append(Panel(curves, "step", "loss", title))
        curves = []
        for name, run, colour in (("one matrix", matrix, BLUE), ("block", block, RED)):
            target = run.attention
            others = (1.0 - target.mean(axis=1)) / (K - 1)
            curves.append(Curve(name * last, run.t, target.mean(1), target.min(1), target.max(1), colour=colour))
            curves.append(Curve(f"{name}, others" * last, run.t, others, style="--", colour=colour))
        attentions.append(Panel(curves, "step", "attention", "", ("log", "linear"), (0.0, 1.0)))
    return draw_panels([*losses, *attentions], columns=3, size=(2.5, 2.1))


if __name__ == "__main__":
    script(__file__, figure, QUICK)
