"""
In-context recall: convergence against the number of triggers
=============================================================

The exact excess of normalised descent on λ alone (linear attention) and on λ and v
(softmax attention), one planted bigram, for three numbers of triggers. The dashed lines
have the three exponents that a public review of the paper names, and go through the
point at which the excess of the exact run is one nat.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.results.plots import BLACK, BLUE, GREEN, RED, Curve, Panel, draw_panels

QUICK = {"H": 24, "steps": 120}
EXPLORER = "recall?V=60&triggers=25&alpha=0&eta=0.2&counts=1&t=50"


def figure(
    *,
    V: int = 60,
    outputs: int = 4,
    H: int = 256,
    triggers: tuple[int, ...] = (1, 5, 25),
    eta: float = 0.2,
    steps: int = 400,
) -> Figure:
    """Draw the excess against the step, a column for each number of triggers."""
    panels = []
    for attention in ("linear", "softmax"):
        for Q in triggers:
            task = icl.recall.RecallTask(V, Q, outputs, H=H, law="planted")
            risk = icl.recall.RecallRisk(task, attention, weights="identity", tied=True)
            run = icl.descend(risk, eta, rule="ngd", steps=steps)
            excess = run.observed["excess"]
            t = np.linspace(0.0, run.t[-1], 50)
            start = float(np.interp(0.0, -np.log(excess), run.t))
            last = triggers[-1] == Q  # explained there
            curves = [Curve("exact" * last, run.t, excess, colour=BLACK)]
            for name, rate, colour in (
                ("ηt", eta, RED),
                ("ηt/√|Q|", eta / np.sqrt(Q), BLUE),
                ("ηt/|Q|", eta / Q, GREEN),
            ):
                line = np.exp(-rate * (t - start))
                curves.append(
                    Curve(
                        name * last,
                        t[t >= start],
                        line[t >= start],
                        style="--",
                        colour=colour,
                    )
                )
            title = f"{attention}, |Q| = {Q}"
            scales = ("linear", "log")
            panels.append(
                Panel(
                    curves,
                    "step",
                    "excess (nats)",
                    title,
                    scales,
                    (1e-8, 10.0),
                    legend=last,
                )
            )
    return draw_panels(panels, columns=len(triggers))


if __name__ == "__main__":
    script(__file__)
