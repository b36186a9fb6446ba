"""
Linear attention: from memorising to learning in context
========================================================

The best layer of linear attention for k pretraining tasks in d dimensions: its losses
on these tasks and on new ones. The losses are exact for each draw of the tasks. A curve
is the mean over draws, and its band has four fifths of the draws. The dashed curves are
the limit of many dimensions, in closed form. Dotted lines are the losses of the layer
that is trained on all tasks, and of ridge regression, the Bayes-optimal prediction for
all tasks. Points are the losses on new tasks of the Bayes-optimal prediction for k
tasks. The losses of both Bayes-optimal predictions are sampled. With fewer tasks than
dimensions, the loss on new tasks tends to d(1 − k/d)/2 in long prompts.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.results.plots import BLUE, GREEN, RED, Curve, Panel, draw_panels

# Arguments of `figure` for a quick drawing.
QUICK = {"d": 16, "draws": 4, "prompts": 20}


def figure(
    *,
    d: int = 64,
    lengths: tuple[float, float] = (4, 32),
    noise: float = 0.5,
    ratios: tuple[float, ...] = (0.0625, 0.125, 0.25, 0.5, 1, 2, 4, 8, 16, 64),
    draws: int = 10,
    prompts: int = 50,
    seed: int = 0,
) -> Figure:
    """Draw a panel for each of ``lengths``, the ratios of prompt length to dimension.

    ``ratios`` are numbers of tasks over the dimension d. Bayes losses are means over
    ``prompts`` prompts, and the other losses over ``draws`` draws of the tasks.
    """
    panels = []
    for length in lengths:
        problem = icl.LinearAttention(d=d, N=round(length * d), noise=noise)
        task_counts = [max(1, round(ratio * d)) for ratio in ratios]
        diversity = icl.linear_attention.task_diversity(
            problem, task_counts, draws, seed
        )
        # The limit is in closed form, so it is drawn as a smooth curve.
        limit_counts = np.geomspace(task_counts[0], task_counts[-1], 200)
        limit = icl.linear_attention.diversity_limit(
            d, problem.N, noise, limit_counts / d
        )
        mean = diversity.mean()
        low, high = diversity.band()
        curves = []
        # The names are attributes of the losses: on new tasks, and on the k tasks.
        for name, colour in (("new", RED), ("pretraining", BLUE)):
            curves.append(
                Curve(
                    f"{name} tasks",
                    task_counts,
                    getattr(mean, name) / d,
                    getattr(low, name) / d,
                    getattr(high, name) / d,
                    colour=colour,
                )
            )
            limit_loss = getattr(limit, name) / d
            curves.append(
                Curve("", limit_counts, limit_loss, style="--", colour=colour)
            )
        law = problem.law()
        rng = np.random.default_rng(seed)
        bayes_losses = []
        for k in task_counts:
            pretraining_tasks = rng.normal(size=(k, d))
            estimate = icl.linear_attention.posterior_loss(
                law, pretraining_tasks, prompts, new=True
            )
            bayes_losses.append(estimate.value / d)
        curves.append(
            Curve("Bayes, new", task_counts, bayes_losses, style="o", colour=GREEN)
        )
        ridge = icl.linear_attention.ridge_loss(law, prompts, seed).value / d
        levels = {"all tasks": law.floor / d, "ridge": ridge}
        title = f"N = {length:g} d, d = {d}"
        panels.append(
            Panel(curves, "pretraining tasks", "loss / dimension", title, levels=levels)
        )
    return draw_panels(panels, columns=2)


if __name__ == "__main__":
    script(__file__)
