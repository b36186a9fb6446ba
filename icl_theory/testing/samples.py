"""Whether a trainer on sampled data is one of the risk it belongs to: Student's t of its losses and gradients."""

from __future__ import annotations

import numpy as np

from icl_theory.claims.comparison import compare
from icl_theory.engine.risk import Risk
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families import Family
from icl_theory.testing.common import attempt, expect, same
from icl_theory.testing.risks import check_risk, evaluated

BATCH, BATCHES = 64, 64


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
    points = {"the beginning": np.array(problem.risk().initial), "the end": run.states[-1]}
    for check in compare(problem.risk(), trainer, points, BATCHES):
        expected = f"{check.population:.6g} within {check.limit:.2f} standard errors of {check.standard_error:.2g}"
        expect(check.passed, f"sampled {check.name}", expected, f"{check.sampled:.6g}")
