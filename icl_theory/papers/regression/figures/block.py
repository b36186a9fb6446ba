"""
The block of Section 6 and the one-matrix model
===============================================

A whole transformer block has softmax attention, a feed-forward layer, layer norms and a
linear read-out. It is trained by plain stochastic gradient descent. Beside it is exact
descent of the one-matrix model that the theorems are about, on the same tasks and with
the same learning rate.

Top and middle: cosines of random frequency with a small and a large Lipschitz constant.
The block first learns to predict without attending. Then it attends to the query's
feature, the target. The one-matrix model attends to the target after a third to a fifth
of these steps.
Bottom: cosines of one frequency. The value of such a cosine at a feature is a multiple
of a weighted mean of its values at other features. Under gradient descent the layers
after the attention supply this factor, and the loss falls without attention on the
target; other optimisers, such as Adam, end with more attention on the target.
"Attention alone" is the loss that the block's attention would have in the one-matrix
model.
"""

from __future__ import annotations

from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.regression.tasks import RandomCosine, RandomFourier, Task
from icl_theory.results.plots import BLUE, ORANGE, RED, Curve, Panel, draw_panels

# Arguments of `figure` for a quick drawing.
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
    """Draw the loss beside the attention, with a row of panels for each law of tasks.

    ``flat`` and ``sharp`` are the Lipschitz constants of the laws, and ``delta`` is the
    distance between any two of the K features. The block is trained on ``batch``
    prompts of N tokens a step.
    """
    features = icl.Features.simplex(K, delta)
    laws: dict[str, Task] = {
        f"random frequency, $L = {flat:g}$": RandomFourier(flat),
        f"random frequency, $L = {sharp:g}$": RandomFourier(sharp),
        f"one frequency, $L = {sharp:g}$": RandomCosine(sharp),
    }
    panels: list[Panel] = []
    for title, task in laws.items():
        data = icl.SampledRisk(features, task, N, batch, seed)
        block_risk = icl.regression.BlockRisk(data, seed=seed)
        block_run = icl.descend(block_risk, eta, steps=steps)
        # The one-matrix model trains the matrix Q of keys and queries. The scores are
        # XQXᵀ, with the features as the rows of X.
        matrix_risk = icl.in_coordinates(
            icl.PopulationRisk(features, task, N), "embedding", features.vectors
        )
        matrix_run = icl.descend(matrix_risk, eta, steps=steps, method="auto")
        attention = [
            *_attention_curves("one matrix", matrix_run, K, BLUE),
            *_attention_curves("block", block_run, K, RED),
        ]
        is_first = not panels
        panels.append(Panel(_loss_curves(matrix_run, block_run), "step", "loss", title))
        panels.append(
            Panel(
                attention,
                "step",
                "attention",
                scales=("log", "linear"),
                limits=(0.0, 1.0),
                note="bands: all queries" if is_first else "",
            )
        )
    return draw_panels(panels, columns=2, size=(3.4, 2.1))


def _loss_curves(matrix_run: icl.Trajectory, block_run: icl.Trajectory) -> list[Curve]:
    """Return the losses of the one-matrix model, the block, and its attention alone."""
    observed = block_run.observed
    return [
        Curve("one matrix", matrix_run.t, matrix_run.loss, colour=BLUE),
        Curve("block", block_run.t, observed["test_loss"], colour=RED),
        Curve(
            "attention alone",
            block_run.t,
            observed["attention_loss"],
            style=":",
            colour=ORANGE,
        ),
    ]


def _attention_curves(
    name: str, run: icl.Trajectory, K: int, colour: str
) -> list[Curve]:
    """Return the attention on the target and on other features.

    The curves are means over the queries. The band around the first curve contains the
    curves of all queries.
    """
    # The attention of each query on its own feature at each saved step, (T, K)
    target = run.attention
    mean = target.mean(axis=1)
    # The mean attention on another feature: attention sums to 1 over the K features.
    others = (1.0 - mean) / (K - 1)
    return [
        Curve(name, run.t, mean, target.min(axis=1), target.max(axis=1), colour=colour),
        Curve(f"{name}, others", run.t, others, style="--", colour=colour),
    ]


if __name__ == "__main__":
    script(__file__)
