"""Whether a trainer on sampled data is one of the risk it belongs to: Student's t of its losses and gradients."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import stdtrit

from icl_theory._validate import Array
from icl_theory.engine.risk import Risk
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families import Family
from icl_theory.testing.common import attempt, expect, same
from icl_theory.testing.risks import check_risk, evaluated

BATCH, BATCHES = 64, 64
FALSE_ALARM = 1e-3  # of all comparisons together
COMPARISONS = 6


def check_samples(problem: Family, run: Trajectory) -> None:
    """Check the trainer of a problem, where it has one, at the first and last parameters of a run."""
    if type(problem).sampled is Family.sampled:
        return
    try:
        trainer = problem.sampled(BATCH, 0)
    except ValueError:  # this problem cannot be sampled, as infinite prompts cannot
        return
    expect(isinstance(trainer, Risk), "sampled", "a Risk", trainer)
    check_risk(trainer)
    start = trainer.initial
    first = evaluated(trainer, start, 0, "the initial point")[0]
    again = attempt("sampled", lambda: problem.sampled(BATCH, 0))
    expect(
        same(first, again.evaluate(start)[0]),
        "loss of two trainers of one seed",
        f"the same bits, {first!r}",
        "others",
    )
    if trainer.stochastic:
        other = attempt("sampled", lambda: problem.sampled(BATCH, 1))
        expect(first != other.evaluate(start)[0], "losses of trainers of two seeds", "different ones", first)
    risk = problem.risk()
    if np.shape(start) != np.shape(risk.initial):
        _reduced(risk, trainer)
        return
    rng = np.random.default_rng(0)
    for where, params in {"the beginning": np.array(risk.initial), "the end": run.states[-1]}.items():
        loss, gradient = risk.evaluate(params)
        losses, gradients = _batches(trainer, params)
        _student(f"sampled loss at {where}", loss, losses)
        drawn = rng.normal(size=params.shape)
        for name, direction in {"itself": gradient, "a random direction": drawn}.items():
            along = np.sum((gradients * direction).reshape(BATCHES, -1), axis=1)
            _student(f"sampled gradient along {name} at {where}", float(np.sum(gradient * direction)), along)


def _batches(trainer: Risk, params: Array) -> tuple[Array, Array]:
    found = [evaluated(trainer, params, step, f"step {step}") for step in range(BATCHES)]
    return np.array([loss for loss, _ in found]), np.stack([gradient for _, gradient in found])


def _reduced(risk: Risk, trainer: Risk) -> None:
    """Compare at the beginning what does not depend on the parameters: the loss, and how fast it falls."""
    loss, gradient = risk.evaluate(risk.initial)
    losses, gradients = _batches(trainer, trainer.initial)
    _student("sampled loss at the beginning", loss, losses)
    one, two = gradients[0::2], gradients[1::2]
    products = np.sum((one * two / trainer.metric).reshape(BATCHES // 2, -1), axis=1)
    fall = float(np.sum(gradient**2 / risk.metric))
    _student("squared norm of the sampled gradient at the beginning", fall, products)


def _student(what: str, exact: float, sampled: Array) -> None:
    """Compare a mean with its exact value."""
    count = len(sampled)
    mean, error = float(sampled.mean()), float(sampled.std(ddof=1)) / math.sqrt(count)
    limit = float(stdtrit(count - 1, 1.0 - 0.5 * FALSE_ALARM / COMPARISONS))
    rounding = 1e-12 * (abs(exact) + abs(mean))
    expected = f"{exact:.6g} within {limit:.2f} standard errors of {error:.2g}"
    expect(abs(mean - exact) <= limit * error + rounding, what, expected, f"{mean:.6g}")
