"""
Figure 1: loss and attention, flat and sharp
============================================

Cosine tasks with a small and a large Lipschitz constant. Lines show gradient descent on
the exact population loss of prompts of N tokens. Dots with bands show a sampled trainer
on fresh prompts: the mean over independent runs, and two standard errors. The shaded
areas are the phases for long prompts (N = ∞), and the last phase ends at the loss ε. In
the white area after the phases, training goes on beyond ε.

The length of the features is chosen such that the angles ω·x_k are K equally spaced
points of a circle. By this symmetry all queries have the same loss and attention, and
the curves show their mean.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.engine import Phases
from icl_theory.results.plots import BLUE, ORANGE, RED, Curve, Panel, draw_panels

# Arguments of `figure` for a quick drawing.
QUICK = {"K": 6, "runs": 2, "batch": 32, "N": 20}
# The nearest setting in the explorer, to which the gallery of figures links. The
# explorer has exchangeable tasks. At this L they have the mean variogram of the cosines
# with the large Lipschitz constant.
EXPLORER = "regression?L=5.27&K=10&eta=1&epsilon=0.01&t=10"


def figure(
    *,
    flat: float = 1.0,
    sharp: float = 5.0,
    K: int = 10,
    N: int = 100,
    eta: float = 1.0,
    epsilon: float = 0.01,
    batch: int = 64,
    runs: int = 8,
) -> Figure:
    """Draw the loss above the attention, and the flat regime left of the sharp one.

    ``flat`` and ``sharp`` are the L of the regimes. Each has ``runs`` sampled trainers,
    with ``batch`` prompts of N tokens a step.
    """
    # RandomCosine has ω = (1, ..., K)/‖(1, ..., K)‖. Orthogonal features x_k of the
    # length 2π‖(1, ..., K)‖/K have ω·x_k = 2πk/K.
    feature_length = 2.0 * np.pi / K * np.linalg.norm(np.arange(1.0, K + 1.0))
    features = icl.Features.orthonormal(K, scale=float(feature_length))
    losses = []
    attentions = []
    for L in (flat, sharp):
        task = icl.tasks.RandomCosine(L)
        long_prompt_run = icl.simulate(
            L, features.gap, eta, task=task, features=features, epsilon=epsilon
        )
        # Training goes on beyond ε, for as many steps again.
        steps = 2 * int(long_prompt_run.t[-1])
        exact = icl.descend(icl.PopulationRisk(features, task, N=N), eta, steps=steps)
        sampled = [
            icl.descend(
                icl.SampledRisk(features, task, N, batch, seed=seed), eta, steps=steps
            )
            for seed in range(runs)
        ]
        title = f"{long_prompt_run.regime} regime, $L = {L:g}$"
        levels = {r"$\epsilon$": epsilon}
        phases = long_prompt_run.phases
        losses.append(_loss_panel(exact, sampled, title, phases, levels))
        attentions.append(_attention_panel(exact, sampled, K, phases))
    return draw_panels([*losses, *attentions], columns=2)


def _loss_panel(
    exact: icl.Trajectory,
    sampled: list[icl.Trajectory],
    title: str,
    phases: Phases | None,
    levels: dict[str, float],
) -> Panel:
    """Return the panel of the loss: of the exact run, and the mean of the sampled ones.

    ``phases`` are shaded, and ``levels`` are horizontal lines by name.
    """
    # All sampled runs are saved at the same steps.
    sampled_steps = sampled[0].t
    sampled_losses = [run.loss for run in sampled]
    curves = [
        Curve("exact", exact.t, exact.loss, colour=BLUE),
        Curve.mean("sampled", sampled_steps, sampled_losses, ":", ORANGE),
    ]
    return Panel(curves, "step", "loss", title, phases=phases, levels=levels)


def _attention_panel(
    exact: icl.Trajectory,
    sampled: list[icl.Trajectory],
    K: int,
    phases: Phases | None,
) -> Panel:
    """Return the panel of the attention on the target and on other features.

    ``phases`` are shaded.
    """
    sampled_steps = sampled[0].t
    # A sampled run has the mean attention of its queries on the target, (T,). The exact
    # run has the attention of each query, (T, K).
    sampled_attention = [run.attention for run in sampled]
    target = exact.attention.mean(axis=1)
    # The mean attention on another feature: attention sums to 1 over the K features.
    others = (1.0 - target) / (K - 1)
    curves = [
        Curve("target", exact.t, target, colour=BLUE),
        Curve.mean("", sampled_steps, sampled_attention, ":", ORANGE),
        Curve("others, mean", exact.t, others, colour=RED),
    ]
    return Panel(
        curves,
        "step",
        "attention",
        scales=("log", "linear"),
        limits=(0.0, 1.0),
        phases=phases,
    )


if __name__ == "__main__":
    script(__file__)
