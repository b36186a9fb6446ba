"""
Two softmax heads and one
=========================

Above: the loss of one head with the inverse temperature ω, and of a pair of heads with
ω and -ω, each with the best output weights. Dashed: linear attention. Below: the pair
and the linear attention that are best for prompts of N tokens, on prompts of other
lengths. Linear attention that sums over the tokens (dotted), instead of averaging
(dashed), fails on longer prompts.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.results.plots import CYCLE, Curve, Panel, draw_panels

# Signs of ω in a pair of heads.
PAIR = np.array([1.0, -1.0])
# Arguments of `figure` for a quick drawing.
QUICK = {"points": 5}


def figure(*, d: int = 5, N: int = 40, noise: float = 0.1, points: int = 20) -> Figure:
    """Draw the losses against ω, and on prompts of other lengths.

    ``points`` is the number of values of ω. There are as many lengths of prompts, or
    fewer if some are rounded to the same number of tokens.
    """
    one_head = icl.SoftmaxHeads(d=d, N=N, noise=noise, heads=1)
    two_heads = one_head.changed(heads=2)
    # The tokens have the covariance I, which is given by its diagonal.
    law = icl.linear_attention.PromptLaw(np.ones(d), N=N, noise=noise)
    omegas = np.geomspace(0.02, 1.0, points)
    one_head_losses = []
    pair_losses = []
    for omega in omegas:
        best_head = one_head.risk().with_best_output(np.array([omega]))
        best_pair = two_heads.risk().with_best_output(omega * PAIR)
        one_head_losses.append(best_head.loss)
        pair_losses.append(best_pair.loss)
    over_omega = [
        Curve("one head", omegas, one_head_losses),
        Curve("two heads", omegas, pair_losses, colour=CYCLE[1]),
        Curve(
            "linear attention",
            omegas,
            np.full(points, law.floor),  # the loss with the best matrix Γ
            style="--",
            colour=CYCLE[2],
        ),
    ]
    best_omega = float(omegas[np.argmin(pair_losses)])
    over_length = _over_length(two_heads, best_omega, points)
    title = f"$d={d}$, $N={N}$, $\\sigma={noise:g}$"
    scales = ("log", "linear")
    # Limits of the axis of losses in the panel below. On long prompts the loss of
    # linear attention that sums is far above the upper limit.
    limits = (0.02, 10.0)
    panels = [
        Panel(over_omega, "ω", "loss", title, scales, legend=True),
        Panel(over_length, "tokens of a prompt", "loss", limits=limits, legend=True),
    ]
    return draw_panels(panels, size=(4.6, 2.0))


def _over_length(
    two_heads: icl.SoftmaxHeads, best_omega: float, points: int
) -> list[Curve]:
    """Return curves of losses on prompts of other lengths than the problem's N.

    The curves are for the pair with ±``best_omega``, which is best for N tokens, and
    for linear attention with the best Γ for N tokens. There are at most ``points``
    lengths.
    """
    d = two_heads.d
    N = two_heads.N
    noise = two_heads.noise
    isotropic = np.ones(d)  # the diagonal of the covariance I
    law = icl.linear_attention.PromptLaw(isotropic, N=N, noise=noise)
    omega = best_omega * PAIR
    output = two_heads.risk().with_best_output(omega).output
    params = np.concatenate([output, omega])
    lengths = np.unique(np.geomspace(0.25 * N, 64 * N, points).astype(int))
    two_heads_losses = []
    averaged_losses = []
    summed_losses = []
    for length in map(int, lengths):
        two_heads_losses.append(two_heads.changed(N=length).risk().loss(params))
        law_of_length = icl.linear_attention.PromptLaw(isotropic, N=length, noise=noise)
        averaged_losses.append(law_of_length.loss(law.best))
        # `PromptLaw` averages over the tokens of a prompt. Their sum, divided by N at
        # all lengths, is length/N times the average.
        summed_losses.append(law_of_length.loss(length / N * law.best))
    return [
        Curve("two heads", lengths, two_heads_losses, colour=CYCLE[1]),
        Curve(
            "linear, averaged", lengths, averaged_losses, style="--", colour=CYCLE[2]
        ),
        Curve("linear, summed", lengths, summed_losses, style=":", colour=CYCLE[2]),
    ]


if __name__ == "__main__":
    script(__file__)
