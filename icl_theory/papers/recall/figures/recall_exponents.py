"""
In-context recall: convergence against the number of triggers
=============================================================

Black lines are the exact excess over the Bayes risk under normalised descent. Linear
attention trains the strength λ of each trigger, and softmax attention also the scale v
of the values. In each sentence the output follows its trigger once. The columns are for
three numbers of triggers. The dashed lines fall like e^-x. A public review of the paper
names the three exponents x in the legend, with the learning rate η, the step t and the
number :math:`|Q|` of triggers. These lines go through the point at which the exact
excess is one nat.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.results.plots import BLACK, BLUE, GREEN, RED, Curve, Panel, draw_panels

# Arguments of `figure` for a quick drawing.
QUICK = {"H": 24, "steps": 120}
# The setting in the explorer that is nearest to this figure. The page of the paper
# links to this setting.
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
    """Draw the excess against the step, with a column for each number of triggers.

    ``V``, ``outputs`` and ``H`` are the numbers of words, of outputs, and of words in a
    sentence.
    """
    panels = []
    for attention in ("linear", "softmax"):
        for Q in triggers:
            task = icl.recall.RecallTask(V, Q, outputs, H=H, law="planted")
            risk = icl.recall.RecallRisk(task, attention, weights="identity", tied=True)
            run = icl.descend(risk, eta, rule="ngd", steps=steps)
            # The panels of the last column have a legend for their rows.
            has_legend = triggers[-1] == Q
            curves = _curves(run, Q, eta, has_legend)
            title = f"{attention}, |Q| = {Q}"
            panels.append(_panel(curves, title, has_legend))
    return draw_panels(panels, columns=len(triggers))


def _curves(run: icl.Trajectory, Q: int, eta: float, has_labels: bool) -> list[Curve]:
    """Return the exact excess for Q triggers, and lines with the three exponents."""
    excess = run.observed["excess"]
    label = "exact" if has_labels else ""
    curves = [Curve(label, run.t, excess, colour=BLACK)]
    # The lines start at the step at which the exact excess is one nat, or
    # ln(excess) = 0. The excess falls, but `numpy.interp` needs increasing numbers.
    start = float(np.interp(0.0, -np.log(excess), run.t))
    t = np.linspace(0.0, run.t[-1], 50)
    is_drawn = t >= start
    for name, rate, colour in (
        ("ηt", eta, RED),
        ("ηt/√|Q|", eta / np.sqrt(Q), BLUE),
        ("ηt/|Q|", eta / Q, GREEN),
    ):
        line = np.exp(-rate * (t - start))
        label = name if has_labels else ""
        curves.append(
            Curve(label, t[is_drawn], line[is_drawn], style="--", colour=colour)
        )
    return curves


def _panel(curves: list[Curve], title: str, has_legend: bool) -> Panel:
    """Return a panel with the axes that all panels have."""
    return Panel(
        curves,
        x="step",
        y="excess (nats)",
        title=title,
        scales=("linear", "log"),
        limits=(1e-8, 10.0),
        legend=has_legend,
    )


if __name__ == "__main__":
    script(__file__)
