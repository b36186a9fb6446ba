"""
Token selection: fast choice, slow turn
=======================================

Left: the attention of each input on the token that it selects. Right: the angle between
p and the hard-margin solution of the selected tokens. The attention is near 1 after
some ten thousand steps, but the angle keeps falling like 1/ln t (dashed).
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from scipy.special import softmax

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.papers.token_selection.family import cosine
from icl_theory.results.plots import Curve, Panel, draw_panels

# Arguments of `figure` for a quick drawing.
QUICK = {"steps": 10**6}


def figure(
    *, n: int = 3, T: int = 3, d: int = 6, seed: int = 1, steps: int = 10**15
) -> Figure:
    """Draw attention and angle along one run of n inputs with T tokens in d dimensions.

    The angle is between p and the hard-margin solution of the tokens selected at the
    end of the run.
    """
    problem = icl.TokenSelection(n=n, T=T, d=d, seed=seed)
    risk = problem.risk()
    run = icl.descend(risk, problem.rate(), steps=steps, method="fast")
    selected = problem.selected(run.params)
    solution = np.asarray(problem.margin(selected))
    # At step 0 p is zero: it has no direction, and a logarithmic axis has no 0.
    t = run.t[1:]
    states = run.states[1:]
    scores = np.stack([problem.drawn.features @ p for p in states])
    attention = softmax(scores, axis=2)  # (saved steps, n, T)
    cosines = np.array([cosine(p, solution) for p in states])
    # Rounding may leave a cosine above 1.
    angle = np.arccos(np.minimum(cosines, 1.0))
    attention_curves = [
        Curve(f"input {i + 1}", t, attention[:, i, token])
        for i, token in enumerate(selected)
    ]
    # A curve c/ln t that ends at the last angle. The law holds for late steps, so it is
    # drawn over the last 60 % of the logarithmic axis.
    is_late = t > t[-1] ** 0.4
    trend = angle[-1] * np.log(t[-1]) / np.log(t[is_late])
    angle_curves = [
        Curve("angle", t, angle),
        Curve("1/ln t", t[is_late], trend, style="--"),
    ]
    panels = [
        Panel(attention_curves, "step", "attention", scales=("log", "linear")),
        Panel(angle_curves, "step", "angle to the hard margin"),
    ]
    return draw_panels(panels, columns=2)


if __name__ == "__main__":
    script(__file__)
