"""Theorems of regression on runs: bounds, identities, concentration, orders of magnitude, tails."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import icl_theory as icl
from icl_theory.engine.pullback import in_coordinates
from icl_theory.papers.regression.theorems import (
    checks,
    concentration,
    enumeration,
    orderwise,
)
from icl_theory.regression import bounds as certified
from icl_theory.regression import tails, tasks
from icl_theory.regression.family import Regression
from icl_theory.regression.features import Features
from icl_theory.regression.risks.exchangeable import ExchangeableRisk
from icl_theory.regression.risks.gaussian import GaussianRisk, QuadraticLaw
from icl_theory.regression.risks.population import PopulationRisk
from icl_theory.regression.risks.symmetric import SymmetricRisk
from icl_theory.regression.sampled.counts import CountedRisk
from icl_theory.regression.sampled.risk import SampledRisk
from tests.answers import Call
from tests.answers._runs import Asked, refused

UNEQUAL = [0.4, 0.3, 0.2, 0.1]
POINTS = [[0.3, -1.0], [2.0, 0.5], [-0.7, 0.4], [1.1, 1.9]]
LINE = [[0.0], [1.0], [2.2], [3.5]]
SCORES = 0.8 * np.sin(np.arange(16.0)).reshape(4, 4)


def uneven() -> Features:
    return Features(POINTS, UNEQUAL)


def bounds() -> Asked:
    K, c = np.array([2.0, 3.0, 20.0, 900.0]), np.array([0.1, 3.0, 0.02, 700.0])
    for u in (0.0, 0.5, 4.0, 12.0, 300.0):
        yield f"step bounds, u = {u:g}", partial(certified.step_bounds, K, c, u)
    yield "step bounds of one", partial(certified.step_bounds, 20, 0.3, 6.0)
    yield (
        "step bounds, long steps",
        partial(certified.step_bounds, 20, 1e4, np.array([1.0, 3.0, 299.0])),
    )
    yield (
        "step bounds, c at the edges",
        partial(certified.step_bounds, 5, np.array([1e-300, 1e300]), 2.0),
    )
    yield "phase one", partial(certified.phase_one_bounds, K, c)
    yield (
        "phase one of one",
        lambda: [certified.phase_one_bounds(K, 0.3) for K in (2, 3, 7)],
    )
    yield (
        "after phase one",
        partial(certified.after_phase_one, K, np.array([0.1, 3.0, 0.02, 7.0]), 1e-3),
    )
    yield "after phase one of one", partial(certified.after_phase_one, 7, 0.5, 2e-4)
    risk = PopulationRisk(uneven(), tasks.Linear(1.4))
    yield (
        "step rate",
        lambda: [certified.step_rate(risk, eta) for eta in (0.1, 3.0, 1e3)],
    )
    yield (
        "tail steps",
        lambda: [
            certified.tail_steps(*x)
            for x in (
                (0.5, 1e-3, 4.0, 0.08),
                (0.3, 0.3, 0.7, 2.0),
                (0.1, 1e-9, 0.7, 0.3),
            )
        ],
    )
    features = Features([[0.0, 0.0], [1.0, 0.0], [0.0, 3.0], [2.0, 2.0]])
    yield (
        "worst prediction",
        Call(
            lambda: certified.worst_prediction(
                [0.4, 0.3, 0.2, 0.1], features.distances, 1.5
            ),
            atol=1e-9,
        ),
    )
    yield (
        "worst prediction, one place",
        lambda: certified.worst_prediction([0.5, 0.5], np.zeros((2, 2)), 1.5),
    )
    yield from refused(
        {
            "step bounds, K": partial(certified.step_bounds, 1, 0.1, 1.0),
            "step bounds, c": partial(certified.step_bounds, 3, 0.0, 1.0),
            "step bounds, u": partial(certified.step_bounds, 3, 0.1, 300.1),
            "step bounds, u negative": partial(certified.step_bounds, 3, 0.1, -0.1),
            "phase one, K": partial(certified.phase_one_bounds, 2e9, 0.1),
            "phase one, c": partial(certified.phase_one_bounds, 3, 1e301),
            "after phase one, K": partial(certified.after_phase_one, 1, 0.1, 0.1),
            "after phase one, eta": partial(certified.after_phase_one, 3, 0.0, 0.1),
            "after phase one, epsilon": partial(certified.after_phase_one, 3, 0.1, 0.0),
            "step rate, risk": partial(
                certified.step_rate, ExchangeableRisk(3, 1.0), 0.1
            ),
            "step rate, eta": partial(certified.step_rate, risk, 1e41),
            "tail steps, order": partial(certified.tail_steps, 1e-3, 0.5, 4.0, 0.1),
            "tail steps, c": partial(certified.tail_steps, 2.0, 1e-3, 4.0, 0.1),
            "tail steps, rate": partial(certified.tail_steps, 0.5, 1e-3, 4.0, 0.0),
            "worst prediction, distances": partial(
                certified.worst_prediction, [0.5, 0.5], np.zeros((3, 3)), 1.0
            ),
            "worst prediction, L": partial(
                certified.worst_prediction, [0.5, 0.5], np.ones((2, 2)), 0.0
            ),
            "worst prediction, attention": partial(
                certified.worst_prediction, [[0.5]], np.ones((2, 2)), 1.0
            ),
        }
    )


def events() -> Asked:
    cases = (
        (100, 4, 0.1),
        (100, UNEQUAL, 0.05),
        (10, [0.35, 0.65], 0.02),
        (7, 3, 0.4),
        (1, 2, 0.5),
        (1, 2, 0.49),
        (400, 6, 0.9),
        (30, [0.5, 0.25, 0.25], 1e-9),
    )
    for N, probs, delta in cases:
        yield (
            f"probability {N} {probs} {delta}",
            Call(
                partial(concentration.concentration_probability, N, probs, delta),
                rtol=1e-7,
            ),
        )
    yield (
        "probability by transforms",
        Call(
            lambda: concentration.concentration_probability(60_000, 300, 0.005).value,
            rtol=1e-6,
            atol=1e-12,
        ),
    )
    for N, probs, confidence in (
        (100, 4, 0.9),
        (50, UNEQUAL, 0.99),
        (12, 3, 0.01),
        (12, 3, 0.999),
        (3, 7, 0.5),
    ):
        yield (
            f"imbalance {N} {probs} {confidence}",
            partial(concentration.smallest_imbalance, N, probs, confidence),
        )
    yield "probability", lambda: concentration.Probability(0.25, 1e-9)
    yield from refused(
        {
            "N": partial(concentration.concentration_probability, 0, 4, 0.1),
            "N large": partial(
                concentration.concentration_probability, 10**7 + 1, 4, 0.1
            ),
            "K": partial(concentration.concentration_probability, 10, 1, 0.1),
            "one probability": partial(
                concentration.concentration_probability, 10, [1.0], 0.1
            ),
            "sum": partial(
                concentration.concentration_probability, 10, [0.5, 0.4], 0.1
            ),
            "imbalance": partial(concentration.concentration_probability, 10, 2, 1.0),
            "confidence": partial(concentration.smallest_imbalance, 10, 2, 0.0),
            "confidence, N": partial(concentration.smallest_imbalance, 2.5, 2, 0.5),
        }
    )


LAWS: dict[str, tasks.Task] = {
    "exchangeable": tasks.Exchangeable(1.4),
    "linear": tasks.Linear(1.4),
    "cosine": tasks.RandomCosine(1.4),
    "quadratic": tasks.Quadratic(1.4),
    "halfspace": tasks.Halfspace(1.4),
    "finite": tasks.FiniteTask(
        [[1.0, -2.0, 0.5, 3.0], [0.0, 1.0, 1.5, -1.0]], [0.3, 0.7]
    ),
}


def sums() -> Asked:
    yield "counts", partial(enumeration.count_vectors, 3, 3)
    yield (
        "enumerable",
        lambda: [
            enumeration.enumerable(N, K)
            for N, K in (
                (math.inf, 900),
                (3, 4),
                (2000, 2),
                (1999, 2),
                (20, 6),
                (2001, 1),
            )
        ],
    )
    yield "prompts", partial(enumeration.prompts, np.array(UNEQUAL), 3, SCORES[:, 1])
    yield (
        "prompts, infinite",
        partial(enumeration.prompts, np.array(UNEQUAL), math.inf, SCORES[:, 1]),
    )
    for name, task in LAWS.items():
        yield (
            f"functions, {name}",
            lambda task=task: enumeration.functions_of(task, uneven()),
        )
        yield (
            f"direct, {name}",
            lambda task=task: enumeration.direct(
                PopulationRisk(uneven(), task, 3, 0.4), SCORES
            ),
        )
    other = tasks.RandomFourier(1.4)
    yield (
        "second moments, fourier",
        lambda: (f := enumeration.functions_of(other, uneven())).T @ f,
    )
    yield (
        "direct, infinite",
        lambda: enumeration.direct(PopulationRisk(uneven(), other, noise=0.4), SCORES),
    )
    yield (
        "differences",
        Call(
            lambda: enumeration.differences(
                lambda x: np.sin(x), np.array([0.3, 1.0]), np.array([2.0, -1.0])
            ),
            rtol=1e-7,
        ),
    )
    yield (
        "lipschitz values",
        lambda: enumeration.lipschitz_values(
            uneven().distances, 1.5, np.random.default_rng(3), 2
        ),
    )


def orders() -> Asked:
    yield (
        "statements",
        lambda: [
            (
                one.name,
                one.source,
                one.statement,
                one.kind,
                one.status,
                one.upper_only,
                one.flat,
            )
            for one in orderwise.STATEMENTS
        ],
    )
    yield "constants", orderwise.fitted_constants
    yield (
        "laws",
        lambda: [
            str(orderwise.WHOLE),
            str(orderwise.INNER),
            orderwise.BOUNDED,
            orderwise.PARAMETERS,
        ],
    )
    runs = orderwise.draw(
        orderwise.Law(K=(2, 50), imbalance=(0.01, 0.4), target=(1e-4, 0.3)), seed=5
    )
    yield (
        "draw",
        lambda: {
            name: getattr(runs, name) for name in runs._fields if name != "counter"
        },
    )
    yield "logarithm", partial(orderwise.logarithm, runs)
    for statement in orderwise.STATEMENTS:
        yield (
            f"{statement.name}: ratios",
            partial(orderwise.measured_ratios, statement, runs),
        )
        yield f"{statement.name}: scale", partial(statement.scale, runs)
        yield f"{statement.name}: survey", partial(orderwise.survey, statement)
        constants = orderwise.fitted_constants()[statement.name]
        yield (
            f"{statement.name}: sides",
            lambda statement=statement, constants=constants: [
                orderwise.bounded_sides(
                    statement, low * constants.lowest, high * constants.highest
                )
                for low, high in ((0.51, 1.99), (0.49, 2.01), (1.0, 2.01), (0.49, 1.0))
            ],
        )


RISKS: dict[str, Any] = {
    "exchangeable": partial(ExchangeableRisk, 7, 1.3),
    "exchangeable, speed": partial(ExchangeableRisk, 7, 1.3, 9, speed=0.3),
    "exchangeable, noise": partial(ExchangeableRisk, 7, 1.3, 9, 0.2),
    "exchangeable, noise, infinite": partial(ExchangeableRisk, 7, 1.3, noise=0.2),
    "exchangeable, one token": partial(ExchangeableRisk, 7, 1.3, 1),
    "linear": lambda: PopulationRisk(uneven(), tasks.Linear(1.4)),
    "fourier": lambda: PopulationRisk(uneven(), tasks.RandomFourier(1.4)),
    "line, three tokens": lambda: PopulationRisk(Features(LINE), tasks.Linear(1.0), 3),
    "line, noise": lambda: PopulationRisk(Features(LINE), tasks.Linear(1.0), 3, 0.3),
    "halfspace": lambda: PopulationRisk(uneven(), tasks.Halfspace(1.4)),
    "fourteen features": lambda: PopulationRisk(
        Features(np.arange(14.0)[:, None]), tasks.Linear(1.0), 3
    ),
    "groups": lambda: SymmetricRisk([2, 3], [0.2, 0.2], [[1.0, 2.0], [2.0, 0.9]]),
    "groups, finite": lambda: SymmetricRisk([2, 3], [0.2, 0.2], 1.0, 4),
    "embedded": lambda: in_coordinates(
        PopulationRisk(uneven(), tasks.RandomFourier(1.4)),
        "embedding",
        uneven().vectors,
    ),
    "embedded, linear": lambda: in_coordinates(
        PopulationRisk(uneven(), tasks.Linear(1.4)), "embedding", uneven().vectors
    ),
    "embedded, circle": lambda: in_coordinates(
        PopulationRisk(
            Features([[1.0, 0.0], [0.3, 1.0], [-1.0, 0.1], [0.2, -0.8]]),
            tasks.RandomCosine(1.4),
        ),
        "embedding",
        np.array([[1.0, 0.0], [0.3, 1.0], [-1.0, 0.1], [0.2, -0.8]]),
    ),
    "embedded, positive": lambda: in_coordinates(
        PopulationRisk(
            Features.simplex(3, 1.0, [0.5, 0.3, 0.2]), tasks.RandomFourier(1.4)
        ),
        "embedding",
        Features.simplex(3, 1.0).vectors,
    ),
    "embedded, finite": lambda: in_coordinates(
        PopulationRisk(
            Features.orthonormal(3, 1.0, [0.5, 0.3, 0.2]), tasks.RandomFourier(1.4), 3
        ),
        "embedding",
        Features.orthonormal(3).vectors,
    ),
    "embedded, line": lambda: in_coordinates(
        PopulationRisk(Features(LINE), tasks.Linear(1.0), 3),
        "embedding",
        np.array(LINE),
    ),
    "factored": lambda: in_coordinates(
        PopulationRisk(uneven(), tasks.Linear(1.4)), "factored", uneven().vectors
    ),
    "gaussian": lambda: GaussianRisk(QuadraticLaw(2, 1.0, 1.0)),
}


def tail_laws() -> Asked:
    for name, make in RISKS.items():
        yield (
            name,
            Call(
                lambda make=make: {
                    "proved": tails.tail_constant(make()),
                    "unproved": tails.tail_constant(make(), proved=False),
                    "queries": tails.query_constants(make()),
                    "limit": tails.tail_limit(make(), 0.3),
                    "rest": tails.resting_loss(make(), make().floor()),
                },
                rtol=1e-6,
            ),
        )
    for name in (
        "linear",
        "line, three tokens",
        "groups",
        "groups, finite",
        "line, noise",
    ):
        yield (
            f"{name}: of queries",
            Call(
                lambda name=name: [
                    tails.tail_limits(RISKS[name](), 0.3),
                    tails.infima_of(RISKS[name]()),
                ],
                rtol=1e-6,
            ),
        )
    yield "no risk", partial(tails.resting_loss, None, 0.25)
    rows = np.array([[1.0, 0.5, 0.0], [0.2, 1.0, -1.0], [0.3, 0.1, 2.0]])
    yield (
        "smallest above",
        partial(tails.smallest_above, rows, np.array([0.5, 0.5, 1.0])),
    )
    yield (
        "smallest above and zero",
        partial(
            tails.smallest_above,
            rows[:2],
            np.array([0.5, 0.5]),
            np.array([[1.0, -1.0, 0.3]]),
        ),
    )
    yield (
        "smallest above, contradictory",
        partial(tails.smallest_above, np.array([[1.0], [-1.0]]), np.array([0.5, 0.5])),
    )
    yield (
        "smallest above, none",
        partial(tails.smallest_above, np.zeros((0, 3)), np.zeros(0)),
    )
    yield from refused(
        {"proved": lambda: tails.tail_constant(RISKS["linear"](), proved=1)}
    )


BASE = {"L": 2.0, "delta": 1.0, "eta": 4.0}
RUNS: dict[str, dict[str, Any]] = {
    "flat": {"epsilon": 0.02, "imbalance": 0.2},
    "sharp": {"epsilon": 1e-6, "imbalance": 0.8, "K": 5},
    "no imbalance": {"epsilon": 1e-4},
    "ends in phase I": {"epsilon": 0.8, "imbalance": 0.2},
    "two features": {"K": 2, "epsilon": 1e-4, "imbalance": 0.3},
    "not reached": {"K": 5, "max_steps": 100, "epsilon": 1e-6, "imbalance": 0.2},
    "many features": {"K": 300, "epsilon": 1e-3},
    "embedding": {
        "coordinates": "embedding",
        "epsilon": 1e-3,
        "K": 5,
        "imbalance": 0.2,
    },
    "flow": {"method": "flow", "epsilon": 1e-2, "K": 5, "imbalance": 0.2},
    "finite": {"N": 5, "K": 3, "above": 1e-2, "imbalance": 0.2},
    "finite, noise": {"N": 5, "K": 3, "above": 1e-2, "noise": 0.3},
    "many prompts": {"N": 40, "K": 6, "above": 1e-1},
    "linear": {
        "task": "linear",
        "features": Features(POINTS, UNEQUAL),
        "delta": Features(POINTS).gap,
        "epsilon": 1e-4,
        "eta": 0.5,
    },
    "halfspace": {"task": "halfspace", "K": 4, "epsilon": 1e-3},
    "unequal": {"probs": UNEQUAL, "K": 4, "epsilon": 1e-4, "eta": 0.5},
    "unequal, long": {"probs": UNEQUAL, "K": 4, "epsilon": 1e-7, "eta": 20.0},
    "normalised": {"rule": "ngd", "eta": 0.1, "K": 4, "epsilon": 0.1},
    "embedded, unequal": {
        "coordinates": "embedding",
        "probs": UNEQUAL,
        "K": 4,
        "epsilon": 0.05,
    },
    "far": {"epsilon": 1e-15, "K": 5},
    "line, three tokens": {
        "features": Features(LINE),
        "task": "linear",
        "N": 3,
        "above": 1e-4,
    },
    "no step": {"epsilon": 10.0},
}


def made(name: str) -> Any:
    return Regression(**{**BASE, **RUNS[name]}).simulate()


def statements() -> Asked:
    for name in RUNS:
        # differences of losses lose digits, and of identities rounding is all that is shown
        yield (
            name,
            Call(
                lambda name=name: judged(checks.check_bounds(made(name))),
                rtol=1e-5,
                atol=1e-9,
            ),
        )
    yield (
        "table",
        Call(
            lambda: type(found := checks.check_bounds(made("flat")))(
                found[5:]
            )._repr_html_(),
            rtol=1e-5,
            atol=1e-9,
        ),
    )
    yield (
        "by the package",
        Call(lambda: judged(icl.check_bounds(made("sharp"))), rtol=1e-5, atol=1e-9),
    )
    for name, trainer in {
        "trainer": SampledRisk(uneven(), tasks.Linear(1.4), 4, 32, 3, noise=0.1),
        "counted": CountedRisk(uneven(), tasks.Linear(1.4), 4, 32, 3),
        "token noise": SampledRisk(
            uneven(), tasks.Linear(1.4), 4, 8, 3, token_noise=0.1
        ),
        "data set": SampledRisk(uneven(), tasks.Linear(1.4), 4, 8, 3, dataset=20),
    }.items():
        yield (
            f"{name}: run",
            Call(
                lambda trainer=trainer: judged(
                    checks.check_bounds(icl.descend(trainer, eta=0.2, steps=40))
                ),
                rtol=1e-5,
                atol=1e-9,
            ),
        )
        yield (
            f"{name}: population",
            lambda trainer=trainer: repr(checks.population_of(trainer)),
        )
    short = SampledRisk(uneven(), tasks.Linear(1.4), 4, 32, 3)
    yield (
        "few steps",
        lambda: judged(checks.check_bounds(icl.descend(short, eta=0.2, steps=5))[-2:]),
    )
    yield (
        "tail ratio",
        lambda: [
            checks.tail_ratio(made(name)) for name in ("unequal, long", "far", "sharp")
        ],
    )
    yield (
        "missed",
        lambda: [
            checks.missed_squared(PopulationRisk(uneven(), LAWS["linear"], N), SCORES)
            for N in (math.inf, 3)
        ],
    )
    yield (
        "words",
        lambda: [
            (one.name, one.source, one.statement, one.kind, one.status)
            for one in (*checks.ON_SCORES, *checks.ON_RUNS, *checks.SAMPLED)
        ],
    )

    def loaded() -> Any:
        made("flat").save("run.npz")
        return icl.load("run.npz")

    yield (
        "loaded",
        Call(lambda: judged(checks.check_bounds(loaded())), rtol=1e-5, atol=1e-9),
    )
    yield from refused(
        {
            "run": partial(checks.check_bounds, 3),
            "no risk": lambda: checks.check_bounds(replace(made("flat"), risk=None)),
            "another risk": lambda: checks.check_bounds(
                icl.descend(GaussianRisk(QuadraticLaw(2, 1.0, 1.0)), eta=0.1, steps=2)
            ),
            "groups": lambda: checks.check_bounds(
                icl.regression.GroupedRegression(L=2.0, delta=1.0).simulate()
            ),
        }
    )


def judged(found: Any) -> Any:
    """Figures by name; the slack of an identity is rounding, of which only the size is shown."""
    return {
        one.name: figures(one) if one.holds is not None else one.note for one in found
    }


def figures(one: Any) -> list[Any]:
    rounding = one.kind == "identity" and one.slack is not None and one.slack < 1e-6
    return [
        one.measured,
        one.bound,
        one.holds,
        "rounding" if rounding else one.slack,
        one.note,
    ]
