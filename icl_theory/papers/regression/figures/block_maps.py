"""
Attention maps of the block and of the one-matrix model
=======================================================

Attention of each query (column) on each feature (row). The maps show a whole
transformer block at several steps, and the one-matrix model (last column) at the last
step; both are trained by gradient descent. If the cosines have a random frequency, the
diagonal fills in both models. If they have one frequency, the diagonal of the block
stays pale: the values at the two neighbours of a feature tell the block its own value,
up to a factor that the layers after the attention supply. The features are in the order
of their phases ω·x_k in cosines of one frequency ω.
"""

from __future__ import annotations

from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.engine.pullback import core_params
from icl_theory.results.plots import draw_maps

# Arguments of `figure` for a quick drawing.
QUICK = {"steps": (10, 100), "K": 4, "N": 20}


def figure(
    *,
    L: float = 3.0,
    K: int = 6,
    N: int = 40,
    delta: float = 2.0,
    eta: float = 0.1,
    batch: int = 64,
    steps: tuple[int, ...] = (10, 100, 1000, 10_000),
    seed: int = 0,
) -> Figure:
    """Draw a row of maps for each law of tasks.

    A row has the maps of the block at all ``steps``, and then the map of the one-matrix
    model. L is the Lipschitz constant of the laws, and ``delta`` the distance between
    any two of the K features. The block is trained on ``batch`` prompts of N tokens a
    step.
    """
    features = icl.Features.simplex(K, delta)
    rows = {}
    for name, task in (
        ("random", icl.tasks.RandomFourier(L)),
        ("one", icl.tasks.RandomCosine(L)),
    ):
        data = icl.SampledRisk(features, task, N, batch, seed)
        block_run = icl.descend(
            icl.regression.BlockRisk(data, seed=seed), eta, steps=max(steps)
        )
        # The one-matrix model trains the matrix Q of keys and queries. The scores are
        # XQXᵀ, with the features as the rows of X.
        score_risk = icl.PopulationRisk(features, task, N)
        matrix_risk = icl.in_coordinates(score_risk, "embedding", features.vectors)
        matrix_run = icl.descend(matrix_risk, eta, steps=max(steps), method="auto")
        # The scores of each feature (row) for each query (column), from the trained Q.
        scores = core_params(matrix_risk, matrix_run.params)
        block_maps = [block_run.at(step).observed["attention_map"] for step in steps]
        rows[f"{name} frequency"] = [*block_maps, score_risk.attention(scores)]
    titles = [f"step {step:,}" for step in steps]
    return draw_maps(rows, [*titles, "one matrix"])


if __name__ == "__main__":
    script(__file__)
