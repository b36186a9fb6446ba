"""
In-context recall: five models, in and out of distribution
==========================================================

Five models are trained by normalised gradient descent on fresh sentences, in which the
output follows the trigger once. The models train one strength λ for each trigger
(linear attention), strengths and the scale v of the values (softmax attention), the
attention matrix W (linear), and all matrices (linear and softmax). The left panels are
without noise, and the right panels with noise. The rows show the loss on outputs that
occur in training, the loss on other outputs, and the probabilities of the output and,
dashed, of noise. On outputs that training has never shown, models that train the whole
matrix of values do worse than the uniform guess. With noise and sentences of 256 words,
v starts in the wrong direction in the model that trains strengths and v, and this model
does not learn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.papers.recall.training import Observed, observe
from icl_theory.results.plots import CYCLE, Curve, Panel, draw_panels

# The arguments of `Training` for each model.
MODELS: dict[str, dict[str, Any]] = {
    "λ, linear": {"model": "reparameterised"},
    "λ and v, softmax": {
        "model": "reparameterised",
        "attention": "softmax",
        "v": "trained",
    },
    "W, linear": {"model": "attention"},
    "all, linear": {"model": "full"},
    "all, softmax": {"model": "full", "attention": "softmax"},
}
# Arguments of `figure` for a quick drawing.
QUICK = {"V": 20, "H": 24, "batch": 64, "steps": 60, "eta": 0.1}


def figure(
    *,
    V: int = 60,
    triggers: int = 5,
    outputs: int = 4,
    H: int = 256,
    alpha: float = 0.2,
    eta: float = 0.05,
    batch: int = 512,
    steps: int = 2000,
    seed: int = 0,
) -> Figure:
    """Draw test losses of all models, and their probabilities of output and noise.

    ``V`` is the number of words in the vocabulary, ``outputs`` the number of outputs in
    training, and ``H`` the number of words in a sentence.
    """
    problems = []
    for noise_level in (0.0, alpha):
        # Planted sentences with noise have one trigger.
        number_of_triggers = 1 if noise_level else triggers
        for model in MODELS.values():
            problem = icl.recall.Training(
                V=V,
                triggers=number_of_triggers,
                outputs=outputs,
                H=H,
                alpha=noise_level,
                eta=eta,
                batch=batch,
                max_steps=steps,
                seed=seed,
                **model,
            )
            problems.append(problem)
    # The runs without noise come first.
    runs = observe(problems)
    clean = dict(zip(MODELS, runs[: len(MODELS)], strict=True))
    noisy = dict(zip(MODELS, runs[len(MODELS) :], strict=True))
    panels = []
    for kind in ("seen", "unseen"):
        panels.append(_losses(kind, clean, alpha=0.0, V=V))
        panels.append(_losses(kind, noisy, alpha=alpha, V=V))
    panels.append(_probabilities(clean, alpha=0.0))
    panels.append(_probabilities(noisy, alpha=alpha))
    return draw_panels(panels, columns=2, size=(2.9, 2.0))


def _losses(kind: str, runs: dict[str, Observed], alpha: float, V: int) -> Panel:
    """Return the panel of the losses on outputs of a kind, "seen" or "unseen"."""
    # One panel has the names of the models for all panels.
    has_names = kind == "unseen" and alpha > 0
    curves = []
    # CYCLE has more colours than there are models.
    for (name, run), colour in zip(runs.items(), CYCLE, strict=False):
        label = name if has_names else ""
        curves.append(Curve(label, run.t, run.values[f"{kind}_loss"], colour=colour))
    # The top row has the titles of the columns, and the left column the labels of the
    # rows.
    title = ""
    if kind == "seen":
        title = f"noise α = {alpha:g}" if alpha else "no noise"
    y = "" if alpha else f"loss, {kind} outputs (nats)"
    levels = {}
    note = ""
    if kind == "unseen":
        levels = {"": float(np.log(V))}
        note = "dotted: uniform guess"
    return Panel(
        curves,
        x="step",
        y=y,
        title=title,
        scales=("log", "log"),
        limits=(0.3, 20.0) if alpha else (1e-8, 200.0),
        levels=levels,
        legend=has_names,
        note=note,
    )


def _probabilities(runs: dict[str, Observed], alpha: float) -> Panel:
    """Return the panel of the probabilities of the output, and of noise if any."""
    curves = []
    # Each model has the same colour as in `_losses`.
    for run, colour in zip(runs.values(), CYCLE, strict=False):
        curves.append(Curve("", run.t, run.values["output"], colour=colour))
        if alpha:
            noise = run.values["noise"]
            curves.append(Curve("", run.t, noise, style="--", colour=colour))
    title = "(dashed: of noise)" if alpha else ""
    y = "" if alpha else "probability of the output"
    return Panel(
        curves,
        x="step",
        y=y,
        title=title,
        scales=("log", "linear"),
        limits=(0.0, 1.05),
    )


if __name__ == "__main__":
    script(__file__)
