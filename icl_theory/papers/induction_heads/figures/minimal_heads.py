"""
The minimal model of an induction head
======================================

Three symbols, 100 tokens, the authors' rates. Left: the loss over all positions, with
the exact losses of counting predictors (dashed) and of the best multiples of counts as
logits (dotted). Right: mean divergence of the model's predictions from those of three
strategies.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory._validate import Array
from icl_theory.cli.figures import script
from icl_theory.papers.induction_heads.sequences import running_totals
from icl_theory.results.plots import CYCLE, Curve, Panel, draw_panels

QUICK = {"T": 12, "sequences": 40, "eta": 0.06, "ratio": 10.0, "steps": 400}


def strategies(problem: icl.MinimalHeads) -> dict[str, Array]:
    """Return the predictions of the strategies, (T, M, k) each."""
    sequences = problem.data
    totals = np.stack([*running_totals(sequences.symbols, problem.k)])
    weights = problem.concentration + totals
    return {
        "uniform": np.full_like(totals, 1.0 / problem.k),
        "unigram": weights / weights.sum(axis=2, keepdims=True),
        "bigram": sequences.following,
    }


def divergence(strategy: Array, predicted: Array) -> float:
    """Return the mean divergence KL(strategy‖predicted) of the next symbol, nats."""
    terms = strategy * (np.log(strategy) - np.log(predicted))
    return float(terms.sum(axis=2).mean())


def figure(
    *,
    k: int = 3,
    T: int = 100,
    sequences: int = 150,
    eta: float = 5e-4,
    ratio: float = 2000.0,
    steps: int = 2000,
) -> Figure:
    """Draw the loss and the divergences from three strategies against the steps."""
    problem = icl.MinimalHeads(
        k=k, T=T, sequences=sequences, eta=eta, ratio=ratio, max_steps=steps
    )
    run = problem.simulate()
    # A logarithmic axis begins at step 1.
    t = run.t + 1
    ends = np.array([t[0], t[-1]])
    colours = dict(zip(("uniform", "unigram", "bigram"), CYCLE[1:], strict=False))
    losses = [Curve("minimal model", t, run.loss, colour="black")]
    for name, colour in colours.items():
        level = np.full(2, problem.predictors[name])
        losses.append(Curve(name, ends, level, style="--", colour=colour))
    for name, count in problem.count_levels.items():
        level = np.full(2, count.loss)
        losses.append(Curve("", ends, level, style=":", colour=colours[name]))
    risk = problem.risk()
    predictions = [risk.predictions(params) for params in run.states]
    # Styles tell the curves apart in grey.
    styles = {"uniform": ":", "unigram": "-", "bigram": "--"}
    curves = []
    for name, strategy in strategies(problem).items():
        divergences = np.array(
            [divergence(strategy, predicted) for predicted in predictions]
        )
        curves.append(
            Curve(name, t, divergences, style=styles[name], colour=colours[name])
        )
    scales = ("log", "linear")
    panels = [
        Panel(losses, "step + 1", "loss, nats", "", scales, legend=True),
        Panel(curves, "step + 1", "divergence, nats", "", scales, legend=True),
    ]
    return draw_panels(panels, columns=2)


if __name__ == "__main__":
    script(__file__)
