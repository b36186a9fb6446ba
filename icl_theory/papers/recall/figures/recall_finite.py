"""
In-context recall: a fixed set of sentences
===========================================

Only the matrix W of ReLU attention is trained, by normalised descent on a fixed set of
2048 sentences in batches of 512. The upper panels are without noise. The lower panels
have several levels α of noise, and the log-odds of noise are estimated from these
sentences. Dotted lines are the loss of a model that trains only one strength λ of
attention, on the population. This model recalls seen and unseen outputs alike, and
reaches the Bayes risk.
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

    ``V``, ``outputs`` and ``H`` are the numbers of words, of outputs, and of words in a
    sentence. The fixed set has ``M`` sentences.
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
                if bool(training.problem.alpha) == noisy:
                    curves += _curves(training, kind)
            panels.append(_panel(curves, kind, noisy))
    return draw_panels(panels, columns=2, size=(2.4, 1.9))


class _Training(NamedTuple):
    """Training on M sentences, and on the population, with the colour of both."""

    problem: icl.recall.Training
    run: Observed
    population_run: icl.Trajectory
    colour: str


def _curves(training: _Training, kind: str) -> list[Curve]:
    """Return the loss on outputs of a kind, and, dotted, the loss on the population.

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
    return Panel(curves, "epoch", "loss (nats)", f"{kind} outputs", scales, limits)


def _population_run(problem: icl.recall.Training) -> icl.Trajectory:
    """Train λ alone on the population, with γ at its optimum."""
    task = problem.task
    # Without noise the risk has no γ.
    gamma = task.best_gamma if task.alpha else None
    risk = icl.recall.RecallRisk(task, "relu", gamma, weights="identity", tied=True)
    return icl.descend(
        risk, float(problem.eta), rule="ngd", steps=problem.max_steps, method="auto"
    )


if __name__ == "__main__":
    script(__file__)
