"""
In-context recall: a fixed set of sentences
===========================================

Only the matrix W of ReLU attention is trained, by normalised descent on a fixed set of
2048 sentences in batches of 512. The left panels show the loss on test sentences whose
outputs occur in training, and the right panels the loss on test sentences with other
outputs. The upper panels are without noise. In the lower panels an answer is noise with
the probability α, and the log-odds of noise are estimated from the fixed set. Dotted
lines are the exact mean loss, over all possible sentences, of a model that trains only
one strength λ of attention, on this loss. This model recalls seen and unseen outputs
alike, and reaches the Bayes risk.
"""

from __future__ import annotations

from typing import NamedTuple

from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory.cli.figures import script
from icl_theory.papers.recall.training import Observed, observe
from icl_theory.results.plots import CYCLE, Curve, Panel, draw_panels

# Arguments of `figure` for a quick drawing.
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
    """Draw the losses on seen and unseen outputs against epochs, a curve for each α.

    ``V`` is the number of words in the vocabulary, ``outputs`` the number of outputs in
    training, and ``H`` the number of words in a sentence. The fixed set has ``M``
    sentences.
    """
    problems = [
        icl.recall.Training(
            model="attention",
            attention="relu",
            V=V,
            triggers=1,
            outputs=outputs,
            H=H,
            alpha=alpha,
            M=M,
            batch=batch,
            eta=eta,
            max_steps=epochs * (M // batch),
            seed=seed,
        )
        for alpha in alphas
    ]
    trainings = []
    # CYCLE has more colours than there are problems.
    for problem, run, colour in zip(problems, observe(problems), CYCLE, strict=False):
        trainings.append(_Training(problem, run, _population_run(problem), colour))
    panels = []
    # The first row is without noise, the second one with noise.
    for noisy in (False, True):
        for kind in ("seen", "unseen"):
            curves = []
            for training in trainings:
                has_noise = training.problem.alpha > 0
                if has_noise == noisy:
                    curves += _curves(training, kind)
            panels.append(_panel(curves, kind, noisy))
    return draw_panels(panels, columns=2, size=(2.4, 1.9))


class _Training(NamedTuple):
    """Training of W on M sentences and of λ on the population, with their colour."""

    problem: icl.recall.Training
    run: Observed
    population_run: icl.Trajectory
    colour: str


def _curves(training: _Training, kind: str) -> list[Curve]:
    """Return the loss on outputs of a kind and, dotted, the loss of the population run.

    ``kind`` is "seen" or "unseen".
    """
    problem, run, population_run, colour = training
    # The axis of epochs is logarithmic: leave out the start.
    epoch = run.t[1:] * problem.batch / problem.M
    loss = run.values[f"{kind}_loss"][1:]
    population_epoch = population_run.t[1:] * problem.batch / problem.M
    population_loss = population_run.loss[1:]
    return [
        Curve(f"α = {problem.alpha:g}", epoch, loss, colour=colour),
        Curve("", population_epoch, population_loss, style=":", colour=colour),
    ]


def _panel(curves: list[Curve], kind: str, noisy: bool) -> Panel:
    """Return the panel of a kind of outputs, without noise or for levels of noise."""
    scales = ("log", "linear") if noisy else ("log", "log")
    limits = (0.0, 5.0) if noisy else (1e-12, 20.0)
    return Panel(
        curves,
        x="epoch",
        y="loss (nats)",
        title=f"{kind} outputs",
        scales=scales,
        limits=limits,
    )


def _population_run(problem: icl.recall.Training) -> icl.Trajectory:
    """Train λ alone on the population, with γ at its optimum."""
    task = problem.task
    # Without noise the risk has no γ.
    gamma = task.best_gamma if task.alpha else None
    # The task has one trigger. Its λ is tied only because a tied λ has a closed form,
    # which the method "auto" uses.
    risk = icl.recall.RecallRisk(task, "relu", gamma, weights="identity", tied=True)
    return icl.descend(
        risk, float(problem.eta), rule="ngd", steps=problem.max_steps, method="auto"
    )


if __name__ == "__main__":
    script(__file__)
