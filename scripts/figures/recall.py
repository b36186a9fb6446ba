"""
In-context recall, in and out of distribution
=============================================

Normalised gradient descent on the same sentences, with one strength per trigger (reparameterised)
and with full matrices. Outputs never seen in training are recalled by the first at exactly the loss
of the seen ones (one curve), and not by the second. On the left the exact population loss and the law
(V−1) exp(−ηt/√|Q|) that it follows in the end; on the right the training runs.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.results.plots import BLACK, BLUE, RED, Curve, Panel, draw_panels

QUICK = {"steps": 30}
EXPLORER = "recall?V=24&triggers=3&alpha=0&eta=0.05&counts=1&t=100"


def figure(
    *,
    V: int = 24,
    triggers: int = 3,
    outputs: int = 6,
    H: int = 17,
    eta: float = 0.05,
    steps: int = 400,
    batch: int = 64,
    seed: int = 0,
) -> Figure:
    """Draw the loss on seen and unseen outputs of both models, and the exact law."""
    task = icl.recall.RecallTask(V=V, triggers=triggers, outputs=outputs, counts=icl.recall.Counts.fixed(1), H=H)
    exact = icl.descend(icl.recall.RecallRisk(task), eta, rule="ngd", steps=steps)
    law = (V - 1) * np.exp(-eta * exact.t / np.sqrt(triggers))
    left = [
        Curve("population", exact.t, exact.loss, colour=BLUE),
        Curve("law", exact.t, law, style="--", colour=BLACK),
    ]
    full = icl.recall.TransformerRisk(task, batch=batch, seed=seed)
    right = []
    models = {"one strength a trigger": icl.recall.Reparameterised(full), "full matrices": full}
    for (name, model), colour in zip(models.items(), (BLUE, RED), strict=True):
        found = icl.descend(model, eta, rule="ngd", steps=steps)
        for kind, style in (("seen", "-"), ("unseen", "--")):
            right.append(
                Curve(f"{name}, {kind}", found.t, found.observed[f"{kind}_loss"], style=style, colour=colour)
            )
    scales = ("linear", "log")
    return draw_panels(
        [Panel(left, "step", "loss (nats)", "", scales), Panel(right, "step", "loss (nats)", "", scales)], columns=2
    )


if __name__ == "__main__":
    script(__file__, figure, QUICK)
