"""
Two softmax heads and one
=========================

Above: the loss of one head and of a pair ω, -ω with the best output weights. Dashed:
linear attention. Below: the best pair and the best linear attention for N tokens on
prompts of other lengths. Where linear attention sums over tokens, and does not average,
it fails on longer ones.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.results.plots import CYCLE, Curve, Panel, draw_panels

QUICK = {"points": 5}


def figure(*, d: int = 5, N: int = 40, noise: float = 0.1, points: int = 20) -> Figure:
    """Draw the losses."""
    one, two = (
        icl.SoftmaxHeads(d=d, N=N, noise=noise, heads=heads) for heads in (1, 2)
    )
    pair = np.array([1.0, -1.0])
    omegas = np.geomspace(0.02, 1.0, points)
    single = [one.risk().eliminated(np.array([omega]))[1] for omega in omegas]
    double = [two.risk().eliminated(omega * pair)[1] for omega in omegas]
    law = icl.linear_attention.PromptLaw(np.ones(d), N=N, noise=noise)
    curves = [
        Curve("one head", omegas, single),
        Curve("two heads", omegas, double, colour=CYCLE[1]),
        Curve(
            "linear attention",
            omegas,
            np.full(points, law.floor),
            style="--",
            colour=CYCLE[2],
        ),
    ]

    omega = omegas[np.argmin(double)] * pair
    params = np.concatenate([two.risk().eliminated(omega)[0], omega])
    lengths = np.unique(np.geomspace(0.25 * N, 64 * N, points).astype(int))
    served = [two.changed(N=int(length)).risk().loss(params) for length in lengths]
    laws = [
        icl.linear_attention.PromptLaw(np.ones(d), N=int(length), noise=noise)
        for length in lengths
    ]
    summed = [each.loss(each.N / N * law.best) for each in laws]
    averaged = [each.loss(law.best) for each in laws]
    below = [
        Curve("two heads", lengths, served, colour=CYCLE[1]),
        Curve("linear, averaged", lengths, averaged, style="--", colour=CYCLE[2]),
        Curve("linear, summed", lengths, summed, style=":", colour=CYCLE[2]),
    ]
    return draw_panels(
        [
            Panel(
                curves,
                "ω",
                "loss",
                f"$d={d}$, $N={N}$, $\\sigma={noise:g}$",
                ("log", "linear"),
                legend=True,
            ),
            Panel(
                below,
                "tokens of a prompt",
                "loss",
                "",
                limits=(0.02, 10.0),
                legend=True,
            ),
        ],
        size=(4.6, 2.0),
    )


if __name__ == "__main__":
    script(__file__)
