"""
Training on a fixed set of prompts
==================================

Above: linear attention is trained on a set of 100 prompts. The loss of the set (dashed)
falls below the floor (dotted), the least mean loss on new prompts, while the loss on
new prompts (solid) rises again. Descent on the mean loss over all prompts (M = ∞) ends
at the floor. Below: the excess of the loss on new prompts over the floor, at the end of
training on M prompts and at the best step; means over sets of prompts, with two
standard errors. For large M the excess at the end is C/(2M), with an exact constant C.
Stopping at the best step helps if M is small.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.papers.linear_attention.empirical import gap_constant
from icl_theory.results.plots import BLUE, Curve, Panel, draw_panels

# Arguments of `figure` for a quick drawing.
QUICK = {"repeats": 4, "sizes": (50, 200, 800)}


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
    ``repeats`` sets of prompts, for each number of prompts in ``sizes``. All runs have
    the learning rate ``eta`` and at most ``steps`` steps.
    """
    # A run ends at a loss 1e-12 above its floor, or after the last step.
    base = icl.LinearAttention(d=d, N=N, eta=eta, above=1e-12, max_steps=steps)
    floor = base.law().floor
    on_set = base.changed(dataset=M, dataset_seed=seed).simulate()
    on_population = base.simulate()
    # The losses of training on the population, at the saved steps of ``on_set``.
    population_losses = [on_population.at(step).loss for step in on_set.t.tolist()]
    upper = Panel(
        [
            Curve("M = ∞", on_set.t, population_losses),
            Curve(
                "new prompts", on_set.t, on_set.observed["population_loss"], colour=BLUE
            ),
            Curve("the set", on_set.t, on_set.loss, style="--", colour=BLUE),
        ],
        "step",
        "loss",
        levels={"floor": floor},
    )
    # Lists of excesses, one list for each size, with a number for each repeat.
    at_end = []
    at_best = []
    for size in sizes:
        problems = [
            base.changed(dataset=size, dataset_seed=repeat) for repeat in range(repeats)
        ]
        end, best = np.transpose([_excess(problem) for problem in problems])
        at_end.append(end)
        at_best.append(best)
    # The transposes have a curve over all sizes for each repeat, as `Curve.mean` needs.
    abscissae = np.array(sizes, dtype=float)
    leading_order = gap_constant(d, N) / (2.0 * abscissae)  # C/(2M)
    lower = Panel(
        [
            Curve.mean("at the end", abscissae, np.transpose(at_end).tolist()),
            Curve.mean("best step", abscissae, np.transpose(at_best).tolist(), "--"),
            Curve("C/(2M)", abscissae, leading_order, style=":"),
        ],
        "number of prompts M",
        "excess population loss",
    )
    return draw_panels([upper, lower], size=(3.39, 2.3))


def _excess(problem: icl.LinearAttention) -> tuple[float, float]:
    """Return the population loss above its floor at the end, and at the best step."""
    excess = problem.simulate().observed["population_excess"]
    return float(excess[-1]), float(excess.min())


if __name__ == "__main__":
    script(__file__)
