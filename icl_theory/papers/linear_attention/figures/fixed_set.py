"""
Training on a fixed set of prompts
==================================

Above: linear attention is trained on a set of 100 prompts. The loss of the set (dashed)
falls below the least population loss (dotted), while the loss on new prompts (solid)
rises again. Training on the population (M = ∞) ends at the dotted line. Below: the mean
excess of the population loss at the end of training on M prompts, with two standard
errors, and its leading order C/(2M). Stopping at the best step helps if M is small.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.papers.linear_attention.empirical import gap_constant
from icl_theory.results.plots import Curve, Panel, draw_panels

QUICK = {"repeats": 4, "sizes": (50, 200, 800)}
BLUE = "#0072B2"


def figure(
    *,
    d: int = 5,
    N: int = 20,
    M: int = 100,
    sizes: Sequence[int] = (50, 100, 200, 500, 1000, 2000, 5000),
    repeats: int = 40,
    eta: float = 0.01,
    steps: int = 10**4,
    seed: int = 1,
) -> Figure:
    """Draw one run, and the excess at the end against the number of prompts.

    The run is on M prompts of N pairs, drawn with ``seed``. The excess is a mean over
    ``repeats`` sets of each of the ``sizes``.
    """
    base = icl.LinearAttention(d=d, N=N, eta=eta, above=1e-12, max_steps=steps)
    floor = base.law().floor
    on_set = base.changed(dataset=M, dataset_seed=seed).simulate()
    on_population = base.simulate()
    # The losses of training on the population, at the saved steps of ``on_set``.
    population_losses = [on_population.at(step).loss for step in on_set.t.tolist()]
    above = Panel(
        [
            Curve("M = ∞", on_set.t, population_losses),
            Curve("new prompts", on_set.t, on_set.observed["population_loss"]),
            Curve("the set", on_set.t, on_set.loss, style="--", colour=BLUE),
        ],
        "step",
        "loss",
        levels={"floor": floor},
    )
    at_end = []
    at_best = []
    for size in sizes:
        problems = [
            base.changed(dataset=size, dataset_seed=repeat) for repeat in range(repeats)
        ]
        end, best = np.transpose([_excess(problem) for problem in problems])
        at_end.append(end)
        at_best.append(best)
    # `Curve.mean` takes a curve for each repeat, over all sizes.
    abscissae = np.array(sizes, dtype=float)
    leading_order = gap_constant(d, N) / (2.0 * abscissae)  # C/(2M)
    below = Panel(
        [
            Curve.mean("at the end", abscissae, np.transpose(at_end).tolist()),
            Curve.mean("best step", abscissae, np.transpose(at_best).tolist(), "--"),
            Curve("C/(2M)", abscissae, leading_order, style=":"),
        ],
        "number of prompts M",
        "excess population loss",
    )
    return draw_panels([above, below], size=(3.39, 2.3))


def _excess(problem: icl.LinearAttention) -> tuple[float, float]:
    """Return the population loss above its floor at the end, and at the best step."""
    excess = problem.simulate().observed["population_excess"]
    return float(excess[-1]), float(excess.min())


if __name__ == "__main__":
    script(__file__)
