"""
Two softmax heads and one
=========================

Above: the loss of one head and of a pair ω, -ω with the best output weights. Dashed:
linear attention. Below: the best pair and the best linear attention for N tokens on
prompts of other lengths. Linear attention that sums over the tokens, instead of
averaging, fails on longer prompts.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.results.plots import CYCLE, Curve, Panel, draw_panels

# Arguments of `figure` for a quick drawing.
QUICK = {"points": 5}


def figure(*, d: int = 5, N: int = 40, noise: float = 0.1, points: int = 20) -> Figure:
    """Draw the losses against ω, and on prompts of other lengths.

    ``points`` is the number of ω, and at most that of the lengths.
    """
    one_head = icl.SoftmaxHeads(d=d, N=N, noise=noise, heads=1)
    two_heads = icl.SoftmaxHeads(d=d, N=N, noise=noise, heads=2)
    law = icl.linear_attention.PromptLaw(np.ones(d), N=N, noise=noise)
    signs = np.array([1.0, -1.0])  # of ω in a pair
    omegas = np.geomspace(0.02, 1.0, points)
    one_head_losses = []
    pair_losses = []
    for omega in omegas:
        best_head = one_head.risk().with_best_output(np.array([omega]))
        best_pair = two_heads.risk().with_best_output(omega * signs)
        one_head_losses.append(best_head.loss)
        pair_losses.append(best_pair.loss)
    floor = np.full(points, law.floor)
    # Above: the losses against ω.
    over_omega = [
        Curve("one head", omegas, one_head_losses),
        Curve("two heads", omegas, pair_losses, colour=CYCLE[1]),
        Curve("linear attention", omegas, floor, style="--", colour=CYCLE[2]),
    ]

    # Below: the best pair and the best Γ for N tokens, on prompts of other lengths.
    best_omegas = omegas[np.argmin(pair_losses)] * signs
    output = two_heads.risk().with_best_output(best_omegas).output
    params = np.concatenate([output, best_omegas])
    lengths = np.unique(np.geomspace(0.25 * N, 64 * N, points).astype(int))
    two_heads_losses = []
    averaged = []
    summed = []
    for length in map(int, lengths):
        two_heads_losses.append(two_heads.changed(N=length).risk().loss(params))
        other_law = icl.linear_attention.PromptLaw(np.ones(d), N=length, noise=noise)
        averaged.append(other_law.loss(law.best))
        # `PromptLaw` averages over the tokens of a prompt. Their sum, divided by N at
        # all lengths, is length/N times the average.
        summed.append(other_law.loss(length / N * law.best))
    over_length = [
        Curve("two heads", lengths, two_heads_losses, colour=CYCLE[1]),
        Curve("linear, averaged", lengths, averaged, style="--", colour=CYCLE[2]),
        Curve("linear, summed", lengths, summed, style=":", colour=CYCLE[2]),
    ]

    title = f"$d={d}$, $N={N}$, $\\sigma={noise:g}$"
    scales = ("log", "linear")
    limits = (0.02, 10.0)
    panels = [
        Panel(over_omega, "ω", "loss", title, scales, legend=True),
        Panel(over_length, "tokens of a prompt", "loss", limits=limits, legend=True),
    ]
    return draw_panels(panels, size=(4.6, 2.0))


if __name__ == "__main__":
    script(__file__)
