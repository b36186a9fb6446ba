"""
The minimal model of an induction head
======================================

The model is trained on sequences of 100 tokens and three symbols, with the authors'
rates. The left panel shows its mean loss over all positions. Dashed lines are the exact
losses of predictors that count symbols: uniform, unigram and bigram. Dotted lines are
the losses of the best predictions whose logits are multiples of counts. The right panel
shows the mean divergence of the model's predictions from the predictions of these three
predictors.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory._validate import Array
from icl_theory.cli.figures import script
from icl_theory.papers.induction_heads.sequences import running_totals
from icl_theory.results.plots import CYCLE, Curve, Panel, draw_panels

# The values that `--quick` gives parameters of `figure`.
QUICK = {"T": 12, "sequences": 40, "eta": 0.06, "ratio": 10.0, "steps": 400}


def strategies(problem: icl.MinimalHeads) -> dict[str, Array]:
    """Return the predictions of three strategies by name, (T, M, k) each.

    An array has T positions, M sequences and k symbols.
    """
    sequences = problem.data
    # How often each symbol has occurred before each prediction.
    totals = np.stack([*running_totals(sequences.symbols, problem.k)])
    weights = problem.concentration + totals
    return {
        "uniform": np.full_like(totals, 1.0 / problem.k),
        "unigram": weights / weights.sum(axis=2, keepdims=True),
        # The bigram predicts the law of the next symbol, given the sequence so far.
        "bigram": sequences.following,
    }


def divergence(strategy: Array, predicted: Array) -> float:
    """Return the mean divergence KL(strategy‖predicted) of two predictions, nats.

    Both are (T, M, k). The mean is over the T positions and the M sequences.
    """
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
    """Draw the loss and the divergences from three strategies against the steps.

    ``ratio`` is the learning rate of the first layer, divided by the rate ``eta`` of
    the second one, and ``steps`` the number of steps. The other parameters are those of
    `MinimalHeads`.
    """
    problem = icl.MinimalHeads(
        k=k, T=T, sequences=sequences, eta=eta, ratio=ratio, max_steps=steps
    )
    run = problem.simulate()
    # The axis of steps is logarithmic, so step 0 is drawn at 1.
    t = run.t + 1
    ends = np.array([t[0], t[-1]])
    # The first colour of CYCLE is black, which the model has. CYCLE has more colours
    # than there are strategies.
    colours = dict(zip(("uniform", "unigram", "bigram"), CYCLE[1:], strict=False))
    losses = [Curve("minimal model", t, run.loss, colour="black")]
    for name, colour in colours.items():
        level = np.full(2, problem.predictors[name])
        losses.append(Curve(name, ends, level, style="--", colour=colour))
    for name, best_multiple in problem.count_levels.items():
        level = np.full(2, best_multiple.loss)
        # The curve needs no label: it has the colour of the predictor that counts the
        # same symbols.
        losses.append(Curve("", ends, level, style=":", colour=colours[name]))
    risk = problem.risk()
    predictions = [risk.predictions(params) for params in run.states]
    # The styles tell the curves apart in a print without colours.
    styles = {"uniform": ":", "unigram": "-", "bigram": "--"}
    curves = []
    for name, strategy in strategies(problem).items():
        # One divergence for each saved state of the run.
        divergences = np.array(
            [divergence(strategy, predicted) for predicted in predictions]
        )
        curves.append(
            Curve(name, t, divergences, style=styles[name], colour=colours[name])
        )
    scales = ("log", "linear")
    panels = [
        Panel(losses, "step + 1", "loss, nats", title="", scales=scales, legend=True),
        Panel(
            curves,
            "step + 1",
            "divergence, nats",
            title="",
            scales=scales,
            legend=True,
        ),
    ]
    return draw_panels(panels, columns=2)


if __name__ == "__main__":
    script(__file__)
