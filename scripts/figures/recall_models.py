"""
In-context recall: five models, in and out of distribution
==========================================================

Normalised gradient descent on fresh sentences with one planted bigram: one strength per trigger, the same
with a value scale, all of W, and all matrices. Without noise above, with noise below. The population loss
falls for all; on outputs that training has never shown, the loss of the models that train the whole of 𝒱
rises above that of guessing.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.families.recall.experiments import MODELS, observe
from icl_theory.results.plots import CYCLE, Curve, Panel, draw_panels

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
    """Draw losses on seen and unseen outputs and the probabilities of output and noise, of all models."""
    problems = [
        icl.recall.Training(
            V=V, triggers=1 if noise else triggers, outputs=outputs, H=H, alpha=noise, eta=eta, batch=batch,
            max_steps=steps, seed=seed, **model,
        )
        for noise in (0.0, alpha)
        for model in MODELS.values()
    ]  # fmt: skip
    runs = observe(problems)
    panels = []
    for row, noise in enumerate((0.0, alpha)):
        found = dict(zip(MODELS, runs[row * len(MODELS) :], strict=False))
        colours = dict(zip(found, CYCLE, strict=False))
        for kind in ("seen", "unseen"):
            curves = [
                Curve("", run.t, np.maximum(run.values[f"{kind}_loss"], 1e-12), colour=colours[name])
                for name, run in found.items()
            ]
            title = f"{kind} outputs, α = {noise:g}"
            panels.append(Panel(curves, "step", "loss (nats)", title, ("log", "log")))
        curves = [
            Curve(name * (word == "output"), run.t, run.values[word], style=style, colour=colours[name])
            for name, run in found.items()
            for word, style in (("output", "-"), ("noise", "--"))
        ]
        title = f"output, noise (dashed), α = {noise:g}"
        panels.append(Panel(curves, "step", "mean probability", title, ("log", "linear"), (0.0, 1.02), legend=True))
    return draw_panels(panels, columns=3)


if __name__ == "__main__":
    script(__file__, figure, QUICK)
