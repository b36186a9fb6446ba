"""Whether a trainer on sampled data is one of the risk it belongs to: Student's t of its losses and gradients."""

from __future__ import annotations

import numpy as np

from icl_theory._validate import Array
from icl_theory.engine.comparison import Power, compare, detectable
from icl_theory.engine.risk import Risk
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families import Family
from icl_theory.testing.common import expect, expect_same, same
from icl_theory.testing.risks import check_risk, evaluated

FEW, BATCH, BATCHES = 64, 1024, 64
OFF = 0.5  # standard deviation of a point beside the initial one


def check_samples(problem: Family, run: Trajectory) -> Power | None:
    """Check the trainer of a problem, if it has one, at the first and last parameters of a run."""
    if type(problem).sampled is Family.sampled:
        return None
    try:
        few = problem.sampled(FEW, 0)
    except ValueError:  # this problem cannot be sampled, as infinite prompts cannot
        return None
    expect(isinstance(few, Risk), "sampled", "a Risk", few)
    check_risk(few)
    trainer, again, other = (problem.sampled(BATCH, seed) for seed in (0, 0, 1))
    start = trainer.initial
    beside = start + OFF * np.random.default_rng(0).normal(size=np.shape(start))
    places = {"the initial point": start, "a random point": beside}
    first = {where: evaluated(trainer, at, 0, where) for where, at in places.items()}
    for where, (loss, gradient) in first.items():
        expect_same(loss, again.evaluate(places[where])[0], f"loss at {where} of two trainers of one seed")
        expect_same(gradient, again.evaluate(places[where])[1], f"gradient at {where} of two trainers of one seed")
    if trainer.stochastic:
        seen = {where: other.evaluate(at) for where, at in places.items()}
        alike = all(
            same(mine, yours) for where in places for mine, yours in zip(first[where], seen[where], strict=True)
        )
        expect(not alike, "losses and gradients of trainers of two seeds", "different ones", "the same")
        _scatter(few, trainer, beside)
    points = {"the beginning": np.array(problem.risk().initial), "the end": run.states[-1]}
    checks = compare(problem.risk(), trainer, points, BATCHES)
    for check in checks:
        expected = f"{check.population:.6g} within {check.limit:.2f} standard errors of {check.standard_error:.2g}"
        expect(check.passed, f"sampled {check.name}", expected, f"{check.sampled:.6g}")
    least = [
        min(detectable(check, BATCHES - 1) for check in checks if word in check.name)
        for word in ("loss", "gradient")
    ]
    return Power(*least)


def _scatter(few: Risk, many: Risk, params: Array) -> None:
    """Check that losses of larger batches scatter less: by the root of their size, within a factor of two."""
    found = [float(np.std([risk.evaluate(params, step)[0] for step in range(BATCHES)])) for risk in (few, many)]
    wanted = (BATCH / FEW) ** 0.5
    if found[0] > 1e-12 * abs(many.evaluate(params)[0]):
        expected = f"about {found[0] / wanted:.2g}, as batches of {FEW} scatter by {found[0]:.2g}"
        expect(found[1] < 2.0 * found[0] / wanted, f"scatter of the loss of batches of {BATCH}", expected, found[1])
