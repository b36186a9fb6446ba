"""
In-context recall: what attention and feed-forward layer say
============================================================

All matrices are trained, by descent that divides the gradient of each matrix by the
norm of this gradient. Each row is for one probability α of noise. The left panels show
two of the logits that attention adds: the logit of the output, and the largest logit of
any other word. The right panels show two of the logits that the feed-forward layer
adds: the logit of noise, and the largest logit of any other word. All are means over
test sentences.
"""

from __future__ import annotations

from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.papers.recall.training import observe
from icl_theory.results.plots import BLUE, RED, Curve, Panel, draw_panels

# Arguments of `figure` for a quick drawing.
QUICK = {"V": 16, "H": 16, "batch": 64, "steps": 60}


def figure(
    *,
    V: int = 60,
    outputs: int = 4,
    H: int = 256,
    alphas: tuple[float, ...] = (0.2, 0.5, 0.8),
    eta: float = 0.1,
    batch: int = 512,
    steps: int = 1000,
    seed: int = 0,
) -> Figure:
    """Draw the logits of both layers against the step, with a row for each α.

    ``V`` is the number of words in the vocabulary, ``outputs`` the number of outputs in
    training, and ``H`` the number of words in a sentence.
    """
    problems = [
        icl.recall.Training(
            V=V,
            triggers=1,
            outputs=outputs,
            H=H,
            alpha=alpha,
            attention="softmax",
            rule="ngd-blocks",
            eta=eta,
            batch=batch,
            max_steps=steps,
            seed=seed,
        )
        for alpha in alphas
    ]
    runs = observe(problems)
    panels = []
    for alpha, run in zip(alphas, runs, strict=True):
        # The word that each layer is to predict: the output by attention, and noise by
        # the feed-forward layer. The values are named as in `TransformerRisk.observe`.
        for layer, word in (("attention", "output"), ("feed_forward", "noise")):
            curves = [
                Curve(word, run.t, run.values[f"{layer}_{word}"], colour=BLUE),
                Curve(
                    "others",
                    run.t,
                    run.values[f"{layer}_other"],
                    style="--",
                    colour=RED,
                ),
            ]
            panels.append(
                Panel(
                    curves,
                    x="step",
                    y=f"{layer.replace('_', '-')} logit",
                    title=f"α = {alpha:g}",
                    scales=("log", "linear"),
                )
            )
    return draw_panels(panels, columns=2, size=(2.4, 1.6))


if __name__ == "__main__":
    script(__file__)
