"""
Prediction of a function never seen
===================================

Attention is trained on random cosines over features on a line, and then predicts a
zigzag, which is neither a cosine nor a sum of the cosines of training. The prediction
at each query is the mean of the function, weighted by the attention. Training sharpens
the attention, and the prediction approaches the function. The band is certified
(Proposition 1): the prediction of an L-Lipschitz function at the query v_k has at
most the error L Σ_m Attn_m ‖v_m − v_k‖, with the attention Attn_m on the feature v_m.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.results.plots import BLUE, RED, Curve, Panel, draw_panels

# Arguments of `figure` for a quick drawing.
QUICK = {"steps": (0, 10, 100, 1000)}
# The nearest setting in the explorer, to which the gallery of figures links.
EXPLORER = "regression?L=2&delta=0.5&eta=2&K=12&t=100"


def figure(
    *,
    K: int = 12,
    L: float = 2.0,
    delta: float = 0.5,
    eta: float = 2.0,
    period: float = 2.6,
    steps: tuple[int, ...] = (0, 100, 1000, 100_000),
) -> Figure:
    """Draw the zigzag, its prediction and the band, at the given steps of one run.

    K features are on a line, at distances ``delta``, and ``period`` is the period of
    the zigzag.
    """
    x = delta * np.arange(K)
    features = icl.Features(x[:, None])
    risk = icl.PopulationRisk(features, icl.tasks.RandomCosine(L))
    # The zigzag has the slope L or -L everywhere, and values up to a quarter of L times
    # the period. The zigzag is shifted by a tenth of the period, so that the first
    # feature is not at a corner.
    zigzag = L * (np.abs((x / period + 0.1) % 1.0 - 0.5) - 0.25) * period
    # About three times as high as the zigzag, which leaves room for most of the band.
    limits = (-1.6 * L * period / 2.0, 1.6 * L * period / 2.0)
    run = icl.descend(risk, eta, steps=max(steps), method="fast")
    panels: list[Panel] = []
    for step in steps:
        state = run.at(step)
        attention = risk.attention(state.params)
        # The certified bound L Σ_m Attn_m ‖v_m - v_k‖ for each query k, (K,)
        band = L * np.sum(attention * features.distances, axis=0)
        curves = [
            Curve("function", x, zigzag, zigzag - band, zigzag + band, colour=BLUE),
            Curve("prediction", x, zigzag @ attention, style="o", colour=RED),
        ]
        is_first = not panels
        panels.append(
            Panel(
                curves,
                "feature $v_k$",
                "value",
                f"step {step:,}, attention {state.attention.mean():.2f}",
                scales=("linear", "linear"),
                limits=limits,
                note="band: certified" if is_first else "",
            )
        )
    return draw_panels(panels, columns=2, size=(3.4, 2.2))


if __name__ == "__main__":
    script(__file__)
