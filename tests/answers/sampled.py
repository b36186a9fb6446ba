"""Trainers of regression on sampled prompts, and comparisons of the exact risks with them."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

import icl_theory as icl
from icl_theory.regression import tasks
from icl_theory.regression.features import Features
from icl_theory.regression.risks.exchangeable import ExchangeableRisk
from icl_theory.regression.risks.gaussian import (
    GaussianRisk,
    QuadraticLaw,
    SampledGaussianRisk,
)
from icl_theory.regression.risks.population import PopulationRisk
from icl_theory.regression.sampled import layer
from icl_theory.regression.sampled.block import BlockRisk
from icl_theory.regression.sampled.counts import CountedRisk
from icl_theory.regression.sampled.crosscheck import crosscheck
from icl_theory.regression.sampled.phases import run_states, sampled_phases
from icl_theory.regression.sampled.risk import SampledRisk
from icl_theory.regression.simulate import simulate
from tests.answers import Call
from tests.answers._runs import Asked, refused

POINTS = [[0.3, -1.0], [2.0, 0.5], [-0.7, 0.4], [1.1, 1.9]]
SCORES = 0.8 * np.sin(np.arange(16.0)).reshape(4, 4)
Q = np.array([[0.4, -0.2], [0.3, 0.9]])
LINEAR = tasks.Linear(1.4)


def uneven() -> Features:
    return Features(POINTS, [0.4, 0.3, 0.2, 0.1])


def stepped(risk: Any, params: Any) -> dict[str, Any]:
    """What a trainer says at some parameters, at two steps."""
    return {
        "repr": repr(risk),
        "steps": [risk.evaluate(params, step) for step in (0, 5)],
        "observe": [risk.observe(params, step) for step in (0, 5)],
        "initial": risk.initial,
        "stochastic": risk.stochastic,
        "metric": risk.metric,
    }


def trainers() -> Asked:
    cases: dict[str, dict[str, Any]] = {
        "plain": {},
        "noise": {"noise": 0.5},
        "token noise": {"token_noise": 0.2, "noise": 0.1},
        "data set": {"dataset": 9},
        "whole data set": {"dataset": 6},
        "small data set": {"dataset": 3, "seed": 8},
        "uniform": {"features": Features(POINTS)},
        "halfspace, token noise": {"task": tasks.Halfspace(1.4), "token_noise": 0.2},
        "one token": {"N": 1, "batch": 1},
    }
    base = {"features": uneven(), "task": LINEAR, "N": 5, "batch": 6, "seed": 3}
    for name, given in cases.items():
        risk = SampledRisk(**{**base, **given})
        yield name, partial(stepped, risk, Q if risk.token_noise else SCORES)
        yield (
            f"{name}: prompts",
            lambda risk=risk: [risk.prompts(), risk.prompts(4), risk.held_out(2)],
        )
    yield (
        "large Q",
        lambda: SampledRisk(**{**base, "token_noise": 0.1}).evaluate(1e200 * Q),
    )
    many = SampledRisk(uneven(), LINEAR, 2**18, 9, 1)
    yield "parts", lambda: [len(part.answer) for part in many.parts(many.prompts())]
    yield "long prompts", partial(stepped, many, SCORES)
    yield "some prompts", lambda: SampledRisk(**base).prompts().of(np.array([2, 0]))
    yield (
        "attend",
        lambda: layer.attend(
            np.array([[0.3, 700.0, -2.0], [1.0, 2.0, 3.0]]),
            np.arange(6.0).reshape(2, 3),
        ),
    )
    yield from refused(
        {
            name: partial(SampledRisk, **{**base, **given})
            for name, given in {
                "features": {"features": POINTS},
                "task": {"task": "linear"},
                "task, K": {"task": tasks.FiniteTask([[1.0, 2.0]])},
                "N": {"N": 0},
                "N infinite": {"N": math.inf},
                "batch": {"batch": 0},
                "seed": {"seed": -1},
                "dataset": {"dataset": 0},
                "dataset large": {"dataset": 10**13},
                "noise": {"noise": -0.1},
                "noise large": {"noise": 1.1e40},
                "token noise": {"token_noise": -0.1},
                "batch large": {"batch": 10**13},
            }.items()
        }
    )
    yield from refused(
        {
            "step": lambda: SampledRisk(**base).prompts(-1),
            "size": lambda: SampledRisk(**base).held_out(0),
            "size large": lambda: SampledRisk(**base).held_out(10**13),
            "scores": lambda: SampledRisk(**base).loss(np.zeros((2, 2))),
        }
    )


def counted() -> Asked:
    for name, given in {
        "every query": {},
        "one query": {"every_query": False},
        "noise": {"noise": 0.5},
        "one query, noise": {"noise": 0.5, "every_query": False},
        "uniform": {"features": Features(POINTS)},
        "uniform, one query": {"features": Features(POINTS), "every_query": False},
        "uniform, long prompts": {"features": Features(POINTS), "N": 41},
        "uniform, forty tokens": {"features": Features(POINTS), "N": 40},
        "one token": {"N": 1},
    }.items():
        risk = CountedRisk(
            **{
                "features": uneven(),
                "task": LINEAR,
                "N": 7,
                "batch": 5,
                "seed": 3,
                **given,
            }
        )
        # gradients of prompts of one token are zero
        yield (
            name,
            Call(partial(stepped, risk, SCORES), atol=1e-12 if risk.N == 1 else 0.0),
        )
    yield (
        "many prompts",
        lambda: CountedRisk(uneven(), LINEAR, 7, 2**17 + 3, 3).evaluate(SCORES),
    )
    base: dict[str, Any] = {
        "features": uneven(),
        "task": LINEAR,
        "N": 7,
        "batch": 5,
        "seed": 3,
    }
    yield from refused(
        {
            name: partial(CountedRisk, **{**base, **given})
            for name, given in {
                "N": {"N": 0},
                "batch": {"batch": 0},
                "seed": {"seed": 0.5},
                "noise": {"noise": -1.0},
                "batch large": {"batch": 10**13, "every_query": False},
            }.items()
        }
    )


def gaussian() -> Asked:
    law = QuadraticLaw(2, 0.5, 1.2)
    for name, given in {
        "plain": {},
        "noise": {"noise": 0.4},
        "data set": {"dataset": 9},
    }.items():
        risk = SampledGaussianRisk(
            **{"law": law, "N": 4, "batch": 3, "seed": 2, **given}
        )
        yield name, partial(stepped, risk, Q)
        yield f"{name}: prompts", lambda risk=risk: risk.prompts(4)
    yield from refused(
        {
            "law": partial(SampledGaussianRisk, None, 4, 3, 2),
            "N": partial(SampledGaussianRisk, law, 0, 3, 2),
            "noise": partial(SampledGaussianRisk, law, 4, 3, 2, noise=math.nan),
            "batch": partial(SampledGaussianRisk, law, 4, 10**14, 2),
        }
    )


def block() -> Asked:
    data = SampledRisk(uneven(), LINEAR, 5, 6, 3, noise=0.1)
    made = BlockRisk(data, hidden=4, seed=2, held_out=3)
    params = np.asarray(made.initial) + 0.1 * np.sin(np.arange(made.initial.size))
    yield "initial", lambda: made.unpack(made.initial)
    yield "unpacked", lambda: made.unpack(params)
    yield "steps", partial(stepped, made, params)
    yield "gradient by layer", lambda: made.unpack(made.gradient(params))
    yield "predictions", lambda: made.predict(params, data.prompts(2))
    yield (
        "token noise",
        lambda: stepped(
            BlockRisk(SampledRisk(uneven(), LINEAR, 5, 6, 3, token_noise=0.2), 4, 2, 3),
            params,
        ),
    )
    yield (
        "fixed",
        lambda: BlockRisk(SampledRisk(uneven(), LINEAR, 5, 6, 3, dataset=6)).stochastic,
    )
    yield "defaults", lambda: repr(BlockRisk(data))
    yield (
        "too large",
        lambda: [made.evaluate(1e200 * params), made.observe(1e200 * params)],
    )
    yield from refused(
        {
            "data": partial(BlockRisk, 3),
            "hidden": partial(BlockRisk, data, 0),
            "hidden large": partial(BlockRisk, data, 10**6 + 1),
            "seed": partial(BlockRisk, data, 4, -1),
            "held out": partial(BlockRisk, data, 4, 1, 0),
            "params": lambda: made.unpack(params[:-1]),
            "prompts": lambda: made.predict(params, None),
            "other prompts": lambda: made.predict(
                params,
                SampledRisk(Features.simplex(9, 1.0), LINEAR, 5, 40, 3).prompts(),
            ),
            "other vectors": lambda: made.predict(
                params,
                SampledRisk(
                    Features.simplex(3, 1.0), LINEAR, 5, 6, 3, token_noise=0.1
                ).prompts(),
            ),
            "params large": lambda: made.predict(1e200 * params, data.prompts()),
        }
    )


FEW: dict[str, Any] = {
    "batch": 32,
    "batches": 4,
    "points": 2,
    "steps": 6,
    "runs": 3,
    "precision": 0.5,
}


def shown(found: Any) -> dict[str, Any]:
    kept = {
        name: getattr(found, name)
        for name in ("power", "t", "population", "sgd", "band")
        if hasattr(found, name)
    }
    exact = (
        [found.exact.steps, found.exact.phases, found.exact.epsilon]
        if hasattr(found, "exact")
        else None
    )
    return kept | {
        "checks": found.checks,
        "passed": found.passed,
        "table": found.to_markdown(),
        "exact": exact,
    }


def _of_loss(found: Any) -> dict[str, Any]:
    """What a comparison says if gradients are zero, and all that is compared of them is rounding."""
    loss = found.checks[0].population
    return {
        "power": found.power.loss,
        "population": loss,
        "passed": found.passed,
        "note": found.note,
    }


def comparisons() -> Asked:
    risk = PopulationRisk(uneven(), LINEAR, 6, 0.3)
    # SGD is a path of many roundings
    yield "of a risk", Call(lambda: shown(crosscheck(risk, **FEW, seed=4)), rtol=1e-6)
    yield (
        "of a risk, rate",
        Call(lambda: shown(crosscheck(risk, **FEW, eta=0.2)), rtol=1e-6),
    )
    yield (
        "precise",
        Call(lambda: shown(crosscheck(risk, **{**FEW, "precision": 0.05})), rtol=1e-6),
    )
    yield (
        "infinite prompts",
        Call(
            lambda: shown(crosscheck(ExchangeableRisk(3, 1.0), **FEW, N=7)), rtol=1e-6
        ),
    )
    yield (
        "infinite prompts, by default",
        Call(
            lambda: shown(crosscheck(ExchangeableRisk(3, 1.0, speed=0.5), **FEW)),
            rtol=1e-6,
        ),
    )
    yield (
        "few prompts",
        Call(
            lambda: shown(crosscheck(risk, **{**FEW, "batch": 1, "batches": 3})),
            rtol=1e-6,
        ),
    )
    run = partial(simulate, 2.0, 1.0, 2.0, K=4, epsilon=0.05)
    yield "of a run", Call(lambda: shown(crosscheck(run(), **FEW, N=20)), rtol=1e-6)
    yield (
        "of a run, phases",
        Call(lambda: shown(crosscheck(run(), **FEW, N=40, phases=3)), rtol=1e-6),
    )
    constant, one_token = (
        tasks.FiniteTask([[1.0] * 4]),
        PopulationRisk(uneven(), LINEAR, 1),
    )
    for name, flat in (
        ("nothing to learn", PopulationRisk(uneven(), constant, 6)),
        ("one token", one_token),
    ):
        compared = partial(crosscheck, flat, **FEW)
        yield (
            name,
            Call(lambda compared=compared: _of_loss(compared()), rtol=1e-6, atol=1e-12),
        )
    yield from refused(
        {
            name: partial(crosscheck, risk, **given)
            for name, given in {
                "batch": {"batch": 0},
                "batches": {"batches": 2},
                "points": {"points": 0},
                "steps": {"steps": 0},
                "runs": {"runs": 2},
                "seed": {"seed": -1},
                "precision": {"precision": 1e-7},
                "eta": {"eta": 0.0},
                "phases": {"phases": 3},
                "N": {"N": 7},
                "points, many": {"points": 10**13},
                "runs, many": {"runs": 10**13},
            }.items()
        }
    )
    yield from refused(
        {
            "N infinite": partial(crosscheck, ExchangeableRisk(3, 1.0), N=math.inf),
            "many features": partial(crosscheck, ExchangeableRisk(1001, 1.0)),
            "another risk": partial(
                crosscheck, GaussianRisk(QuadraticLaw(2, 1.0, 1.0))
            ),
            "no risk": partial(crosscheck, 3),
        }
    )


def phases() -> Asked:
    run = partial(simulate, 2.0, 1.0, 2.0, K=4, epsilon=0.02)
    yield (
        "infinite",
        Call(
            lambda: shown(sampled_phases(run(), N=40, runs=3, batch=64, seed=5)),
            rtol=1e-6,
        ),
    )
    yield (
        "finite",
        Call(
            lambda: shown(
                sampled_phases(
                    run(N=30, noise=0.1, epsilon=None, above=0.03), runs=3, batch=64
                )
            ),
            rtol=1e-6,
        ),
    )
    yield (
        "embedding",
        Call(
            lambda: shown(
                sampled_phases(
                    run(coordinates="embedding", epsilon=0.1), N=40, runs=3, batch=64
                )
            ),
            rtol=1e-6,
        ),
    )
    yield (
        "unequal",
        Call(
            lambda: shown(
                sampled_phases(
                    run(probs=[0.4, 0.3, 0.2, 0.1], epsilon=0.1), N=40, runs=3, batch=64
                )
            ),
            rtol=1e-6,
        ),
    )
    yield (
        "ends in phase I",
        Call(
            lambda: shown(sampled_phases(run(epsilon=0.35), N=40, runs=3, batch=64)),
            rtol=1e-6,
        ),
    )
    yield "states", lambda: run_states(CountedRisk(uneven(), LINEAR, 7, 5, 3), 0.3, 3)

    def loaded() -> Any:
        run().save("run.npz")
        return icl.load("run.npz")

    yield (
        "loaded",
        Call(
            lambda: [
                c.cells()
                for c in sampled_phases(loaded(), N=40, runs=3, batch=64).checks
            ],
            rtol=1e-6,
        ),
    )
    yield from refused(
        {
            "run": partial(sampled_phases, 3),
            "runs": lambda: sampled_phases(run(), runs=2),
            "batch": lambda: sampled_phases(run(), batch=0),
            "seed": lambda: sampled_phases(run(), seed=-1),
            "N": lambda: sampled_phases(run(N=30, epsilon=0.1), N=31),
            "N zero": lambda: sampled_phases(run(), N=0),
            "flow of other rules": lambda: sampled_phases(
                icl.Regression(
                    L=2.0, delta=1.0, eta=0.1, K=4, epsilon=0.1, rule="ngd"
                ).simulate()
            ),
            "not reached": lambda: sampled_phases(run(epsilon=1e-3), N=5),
            "one step": lambda: sampled_phases(run(epsilon=0.7)),
            "small batch": lambda: sampled_phases(
                run(N=9, epsilon=None, above=1e-3), runs=3, batch=1
            ),
            "descent on a risk": lambda: sampled_phases(
                icl.descend(PopulationRisk(uneven(), LINEAR, 4), eta=1.0, steps=3)
            ),
        }
    )
