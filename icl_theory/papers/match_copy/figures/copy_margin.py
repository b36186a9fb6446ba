"""
Match-and-copy: fixed prompts and all prompts
=============================================

Gradient flow of the merged matrix W of attention, on twenty and on sixty fixed prompts
in eight dimensions with four keys each. The loss of the fixed prompts vanishes, as W
gives each match the largest score. The loss of fresh prompts falls, and rises again: in
some of them a wrong key has the largest score, and a larger W moves all attention to
it. The dotted line is the least loss over all prompts if W is a multiple of the
identity.
"""

from __future__ import annotations

import math

import numpy as np
from matplotlib.figure import Figure

from icl_theory._validate import argument_error
from icl_theory.cli.figures import script
from icl_theory.papers.match_copy.family import MatchCopy
from icl_theory.papers.match_copy.risk import draw_prompts, losses_of_scores, scores_of
from icl_theory.results.plots import BLACK, BLUE, ORANGE, Curve, Panel, draw_panels

# Width and height in inches. The width, 8.6 cm, is the width of a journal's column.
COLUMN = (3.39, 2.6)
# Arguments of `figure` for a quick drawing.
QUICK = {"d": 4, "prompts": (8, 16), "fresh": 2000}


def figure(
    *,
    d: int = 8,
    N: int = 4,
    correlation: float = 0.8,
    prompts: tuple[int, ...] = (20, 60),
    epsilon: float = 1e-6,
    fresh: int = 20_000,
) -> Figure:
    """Draw the losses of fixed and of fresh prompts against time.

    There is a run for each number of fixed ``prompts``, which ends at the loss
    ``epsilon``. At most two numbers are allowed, because there are two colours.
    ``fresh`` is the number of fresh prompts. The other arguments are parameters of
    `MatchCopy`.
    """
    colours = (ORANGE, BLACK)
    if len(prompts) > len(colours):
        raise argument_error("prompts", prompts, "one or two numbers of prompts")
    rng = np.random.default_rng(1)
    fresh_prompts = draw_prompts(rng, fresh, d, N, correlation)
    curves = []
    # The dotted line is drawn from the time 1 to the end of the longest run.
    last_time = 1.0
    # A single number of prompts leaves the second colour unused.
    for number, colour in zip(prompts, colours, strict=False):
        problem = MatchCopy(
            d=d,
            N=N,
            correlation=correlation,
            prompts=number,
            epsilon=epsilon,
            method="flow",
        )
        run = problem.simulate()
        last_time = max(last_time, float(run.t[-1]))
        fresh_losses = []
        for W in run.states:
            scores = scores_of(W, fresh_prompts)
            losses, _ = losses_of_scores(scores, fresh_prompts)
            fresh_losses.append(float(losses.mean()))
        name = f"{number} prompts"
        curves.append(Curve(f"{name}, fixed", run.t, run.loss, colour=colour))
        curves.append(
            Curve(f"{name}, fresh", run.t, fresh_losses, style="--", colour=colour)
        )
    population = MatchCopy(d=d, N=N, correlation=correlation, prompts=math.inf)
    time_range = np.array([1.0, last_time])
    least_loss = np.full(2, population.risk().floor())
    curves.append(Curve("least, ω$I$", time_range, least_loss, style=":", colour=BLUE))
    return draw_panels([Panel(curves, "time", "loss")], size=COLUMN)


if __name__ == "__main__":
    script(__file__)
