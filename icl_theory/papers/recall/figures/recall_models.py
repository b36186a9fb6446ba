"""
In-context recall: five models, in and out of distribution
==========================================================

Normalised gradient descent on fresh sentences with one planted bigram: one strength per
trigger, the same with a value scale, all of W, and all matrices; without noise on the
left, with noise on the right. On outputs that training has never shown, models that
train the whole of 𝒱 do worse than the uniform guess. With noise and H = 256 words the
value scale of softmax attention starts in the wrong direction, and that model does not
learn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.papers.recall.training import observe
from icl_theory.results.plots import CYCLE, Curve, Panel, draw_panels

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
    """Draw losses on seen and unseen outputs and the probabilities of output and noise,
    of all models.
    """
    problems = [
        icl.recall.Training(
            V=V,
            triggers=1 if noise else triggers,
            outputs=outputs,
            H=H,
            alpha=noise,
            eta=eta,
            batch=batch,
            max_steps=steps,
            seed=seed,
            **model,
        )
        for noise in (0.0, alpha)
        for model in MODELS.values()
    ]
    runs = observe(problems)
    panels = []
    for kind in ("seen", "unseen", ""):
        for noise, row in ((0.0, runs[: len(MODELS)]), (alpha, runs[len(MODELS) :])):
            styles = (
                {f"{kind}_loss": "-"}
                if kind
                else {"output": "-"} | ({"noise": "--"} if noise else {})
            )
            named = kind == "unseen" and noise > 0
            top = f"noise α = {noise:g}" if noise else "no noise"
            title = {"seen": top, "": "(dashed: of noise)" * (noise > 0)}.get(kind, "")
            note = "dotted: uniform guess" * (kind == "unseen")
            curves = [
                Curve(name * named, run.t, run.values[word], style=style, colour=colour)
                for (name, run), colour in zip(
                    dict(zip(MODELS, row, strict=True)).items(), CYCLE, strict=False
                )
                for word, style in styles.items()
            ]
            y = (
                ""
                if noise
                else f"loss, {kind} outputs (nats)"
                if kind
                else "probability of the output"
            )
            limits = (
                (0.0, 1.05) if not kind else (0.3, 20.0) if noise else (1e-8, 200.0)
            )
            levels = {"": float(np.log(V))} if kind == "unseen" else {}
            scales = ("log", "log" if kind else "linear")
            panels.append(
                Panel(
                    curves, "step", y, title, scales, limits, None, levels, named, note
                )
            )
    return draw_panels(panels, columns=2, size=(2.9, 2.0))


if __name__ == "__main__":
    script(__file__)
