"""
In-context recall: a fixed set of sentences
===========================================

W alone with ReLU attention, trained by normalised descent on the same 2048 sentences in batches of 512, for several
levels of noise. γ is estimated from these sentences. Beside it λ alone, on the population, whose excess has no end.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.families.recall.experiments import observe
from icl_theory.results.plots import CYCLE, Curve, Panel, draw_panels

QUICK = {"V": 20, "H": 24, "M": 256, "batch": 64, "epochs": 15, "eta": 0.1}


def figure(
    *,
    V: int = 60,
    outputs: int = 4,
    H: int = 256,
    alphas: tuple[float, ...] = (0.0, 0.2, 0.5, 0.8),
    M: int = 2048,
    batch: int = 512,
    epochs: int = 250,
    eta: float = 0.05,
    seed: int = 0,
) -> Figure:
    """Draw the losses on seen and unseen outputs above the Bayes risk against epochs, a curve for each α."""
    problems = [
        icl.recall.Training(
            model="attention", attention="relu", V=V, triggers=1, outputs=outputs, H=H, alpha=alpha, M=M,
            batch=batch, eta=eta, max_steps=epochs * (M // batch), seed=seed,
        )
        for alpha in alphas
    ]  # fmt: skip
    runs = observe(problems)
    panels = []
    for kind in ("seen", "unseen"):
        curves = [
            Curve(f"α = {alpha:g}", run.t * batch / M, run.values[f"{kind}_loss"], colour=colour)
            for alpha, run, colour in zip(alphas, runs, CYCLE, strict=False)
        ]
        for problem, colour in zip(problems, CYCLE, strict=False):
            task = problem.task
            risk = icl.recall.RecallRisk(
                task, "relu", task.best_gamma if task.alpha else None, weights="identity", tied=True
            )
            exact = icl.descend(risk, eta, rule="ngd", steps=problem.max_steps, method="auto")
            curves.append(Curve("", exact.t * batch / M, np.maximum(exact.loss, 1e-12), style=":", colour=colour))
        title = f"{kind} outputs (λ alone: dotted)"
        panels.append(Panel(curves, "epoch", "loss (nats)", title, ("linear", "log"), legend=kind == "unseen"))
    return draw_panels(panels, columns=2)


if __name__ == "__main__":
    script(__file__, figure, QUICK)
