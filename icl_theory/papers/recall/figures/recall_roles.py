"""
In-context recall: roles of attention and feed-forward layer
============================================================

The strength λ of linear attention is trained by normalised descent. The log-odds of
noise in the feed-forward layer are held at ln(α/(1−α)), with the probability α of
noise. The panels show mean probabilities of the output and of noise: in the whole
model, with attention alone (without the feed-forward layer), and with the feed-forward
layer alone (without attention). Attention finds the output, and the feed-forward layer
sets the odds of noise against it.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.results.plots import BLUE, RED, Curve, Panel, draw_panels

# Arguments of `figure` for a quick drawing.
QUICK = {"V": 20, "H": 24, "steps": 100, "tests": 64}
# The setting in the explorer that is nearest to this figure. The page of the paper
# links to this setting.
EXPLORER = "recall?V=60&triggers=1&alpha=0.5&eta=0.05&counts=1&t=60"
# The columns of panels: the parts of the model that a column leaves out, by its title.
PARTS = {
    "whole model": (),
    "attention alone": ("feed_forward",),
    "feed-forward alone": ("attention",),
}


def figure(
    *,
    V: int = 60,
    outputs: int = 4,
    H: int = 256,
    alphas: tuple[float, ...] = (0.2, 0.5, 0.8),
    eta: float = 0.05,
    steps: int = 400,
    tests: int = 512,
) -> Figure:
    """Draw the probabilities against the step, in a row for each α.

    ``V`` is the number of words in the vocabulary, ``outputs`` the number of outputs in
    training, and ``H`` the number of words in a sentence. The probabilities are means
    over ``tests`` sentences.
    """
    panels = []
    for alpha in alphas:
        task = icl.recall.RecallTask(
            V, triggers=1, outputs=outputs, alpha=alpha, H=H, law="planted"
        )
        full = icl.recall.TransformerRisk(task, weights="identity")
        reparameterised = icl.recall.reparameterised(full, gamma=task.best_gamma)
        risk = icl.recall.RecallRisk(
            task, gamma=task.best_gamma, weights="identity", tied=True
        )
        run = icl.descend(risk, eta, rule="ngd", steps=steps)
        sentences = task.sentences(np.random.default_rng(0), tests)
        # The matrices of the transformer, flat, for the λ of each saved step.
        matrices = [reparameterised.map.inward(state) for state in run.states]
        for column, without in PARTS.items():
            # Mean probabilities without these parts, for each saved step.
            measures = [full.measure(params, sentences, without) for params in matrices]
            output = [measure.output for measure in measures]
            noise = [measure.noise for measure in measures]
            curves = [
                Curve("output", run.t, output, colour=BLUE),
                Curve("noise", run.t, noise, style="--", colour=RED),
            ]
            is_first_row = alpha == alphas[0]
            is_last_panel = column == list(PARTS)[-1] and alpha == alphas[-1]
            panels.append(
                Panel(
                    curves,
                    x="step",
                    y=f"probability, α = {alpha:g}",
                    title=column if is_first_row else "",
                    scales=("linear", "linear"),
                    limits=(-0.02, 1.02),
                    legend=is_last_panel,
                )
            )
    return draw_panels(_named_once(panels), columns=len(PARTS), size=(2.1, 1.6))


def _named_once(panels: list[Panel]) -> list[Panel]:
    """Remove the labels of the curves in all panels without a legend.

    In these panels the labels would be written at the curves.
    """
    result = []
    for panel in panels:
        if panel.legend:
            result.append(panel)
        else:
            unnamed = [dataclasses.replace(curve, label="") for curve in panel.curves]
            result.append(dataclasses.replace(panel, curves=unnamed))
    return result


if __name__ == "__main__":
    script(__file__)
