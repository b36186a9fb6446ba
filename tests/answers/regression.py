"""Regression: risks, families, runs and their phases, batches of a sweep, and what they refuse."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import icl_theory as icl
from icl_theory.engine.capabilities import column_gradients_of, gradients_at, series_at
from icl_theory.engine.pullback import in_coordinates
from icl_theory.regression import tasks, variants
from icl_theory.regression.batches import finite_prompts, infinite_prompts
from icl_theory.regression.family import COLUMNS, LAWS, Regression
from icl_theory.regression.features import Features
from icl_theory.regression.phases import query_phases, run_phases
from icl_theory.regression.risks import (
    exchangeable,
    gaussian,
    prompts,
    stability,
    symmetric,
)
from icl_theory.regression.risks.error_form import ErrorForm
from icl_theory.regression.risks.exchangeable import ExchangeableRisk
from icl_theory.regression.risks.gaussian import (
    FiniteGaussianRisk,
    GaussianRisk,
    QuadraticLaw,
)
from icl_theory.regression.risks.population import PopulationRisk
from icl_theory.regression.risks.symmetric import SymmetricRisk
from icl_theory.regression.simulate import compare_coordinates, simulate
from tests.answers import Call
from tests.answers._runs import Asked, facts, measured, refused, run_calls

UNEQUAL = [0.4, 0.3, 0.2, 0.1]
POINTS = [[0.3, -1.0], [2.0, 0.5], [-0.7, 0.4], [1.1, 1.9]]
FINITE = [[1.0, -2.0, 0.5, 3.0], [0.0, 1.0, 1.5, -1.0]]


def uneven() -> Features:
    return Features(POINTS, UNEQUAL)


def seen(risk: Any, params: Any, toward: Any) -> dict[str, Any]:
    """Everything that a risk says at some parameters."""
    loss, gradient = risk.evaluate(params)
    return {
        "loss": [loss, risk.loss(params)],
        "gradient": gradient,
        "same": np.array_equal(gradient, risk.gradient(params)),
        "hessian": risk.hessian_product(params, toward),
        "observe": risk.observe(params),
        "initial": risk.initial,
        "metric": risk.metric,
        "floor": risk.floor(),
    }


def exchangeable_risk() -> Asked:
    cases: dict[str, Callable[[], ExchangeableRisk]] = {
        "infinite": partial(ExchangeableRisk, 7, 1.3),
        "infinite, embedded": partial(ExchangeableRisk, 7, 1.3, noise=0.5, speed=0.3),
        "finite": partial(ExchangeableRisk, 7, 1.3, 11),
        "finite, noise": partial(ExchangeableRisk, 7, 1.3, 11, 0.6, 0.3),
        "one token": partial(ExchangeableRisk, 3, 1.3, 1, 0.2),
        "two features": partial(ExchangeableRisk, 2, 0.7, 5, 0.4),
        "long prompts": partial(ExchangeableRisk, 4, 1.3, 10**4, 0.6),
        "very noisy": partial(ExchangeableRisk, 3, 1e-3, 4, 5.0),
    }
    for name, make in cases.items():
        yield (
            name,
            lambda make=make: (
                {
                    u: seen(make(), np.asarray(u), np.asarray(1.5))
                    for u in (-3.0, 0.0, 0.7, 4.0, 700.0)
                }
                | {
                    "itself": repr(make()),
                    "attention": make().attention(0.7),
                    "scores": make().scores(0.7),
                }
            ),
        )
        yield (
            f"{name}: series",
            lambda make=make: series_at(
                make(), np.array([0.0, 0.4, 2.0]), np.array([0, 1, 5])
            ),
        )
        yield (
            f"{name}: closed form",
            lambda make=make: [make().closed_form(0.3, rule) for rule in ("gd", "ngd")],
        )
    yield (
        "whole",
        lambda: ExchangeableRisk(3, 1.0, origin=(uneven(), tasks.Linear(1.0))),
    )
    yield "counts", partial(exchangeable.binomial_nodes, 6, 0.3)
    yield "counts, many", partial(exchangeable.binomial_nodes, 10**5, 0.05)
    yield "counts, lattice", partial(exchangeable.binomial_nodes, 10**6, 0.4)
    yield "counts, half", partial(exchangeable.binomial_nodes, 4100, 0.5)
    yield (
        "reductions",
        lambda: [
            exchangeable.reduce_to_one_number(features, law, N, 0.1, coordinates)
            for features, law, N, coordinates in (
                (Features.simplex(4, 0.5), tasks.Linear(2.0), math.inf, "class"),
                (Features.simplex(4, 0.5), tasks.Quadratic(2.0), 9, "embedding"),
                (
                    Features.orthonormal(4, 0.5),
                    tasks.RandomFourier(2.0),
                    9,
                    "embedding",
                ),
                (Features.simplex(4, 0.5), tasks.Linear(2.0), math.inf, "factored"),
                (
                    Features.simplex(4, 0.5, UNEQUAL),
                    tasks.Linear(2.0),
                    math.inf,
                    "class",
                ),
                (Features(POINTS), tasks.Exchangeable(2.0), 6, "class"),
                (Features(POINTS), tasks.Exchangeable(2.0), 6, "embedding"),
                (Features(POINTS), tasks.Linear(2.0), 6, "class"),
            )
        ],
    )
    yield (
        "expanded",
        lambda: [
            repr(exchangeable.expanded(risk))
            for risk in (
                ExchangeableRisk(4, 1.3, 9, 0.2),
                ExchangeableRisk(4, 1.3, speed=0.3),
                ExchangeableRisk(
                    4, 1.3, origin=(Features.simplex(4, 0.5), tasks.Linear(1.0))
                ),
                PopulationRisk(uneven(), tasks.Linear(1.0)),
            )
        ],
    )
    yield (
        "expanded loss",
        lambda: [
            exchangeable.expanded(risk).loss(risk.scores(0.7))
            for risk in (ExchangeableRisk(4, 1.3, 9, 0.2), ExchangeableRisk(3, 0.2))
        ],
    )
    yield "embedding speed", partial(exchangeable.embedding_speed, 0.3)
    yield from refused(
        {
            "K": partial(ExchangeableRisk, 1, 1.0),
            "K large": partial(ExchangeableRisk, 10**9 + 1, 1.0),
            "gamma": partial(ExchangeableRisk, 3, -1.0),
            "gamma large": partial(ExchangeableRisk, 3, 1e291),
            "gamma zero": lambda: ExchangeableRisk(3, 0.0).loss(0.0),
            "N": partial(ExchangeableRisk, 3, 1.0, 0),
            "N, fraction": partial(ExchangeableRisk, 3, 1.0, 2.5),
            "noise": partial(ExchangeableRisk, 3, 1.0, 5, -0.1),
            "noise large": partial(ExchangeableRisk, 3, 1.0, 5, 1.1e40),
            "speed": partial(ExchangeableRisk, 3, 1.0, 5, 0.1, 0.0),
            "origin": partial(ExchangeableRisk, 3, 1.0, origin=(1, 2)),
            "u": lambda: ExchangeableRisk(3, 1.0).attention(math.nan),
            "u of scores": lambda: ExchangeableRisk(3, 1.0).scores("x"),
            "scores, many": lambda: ExchangeableRisk(10**7, 1.0).scores(1.0),
            "eta": lambda: ExchangeableRisk(3, 1e200).closed_form(1e120, "gd"),
            "embedding speed, small": partial(exchangeable.embedding_speed, 1e-60),
            "embedding speed, large": partial(exchangeable.embedding_speed, 1e60),
        }
    )


SCORES = 0.8 * np.sin(np.arange(16.0)).reshape(4, 4)
TOWARD = np.cos(3.0 * np.arange(16.0)).reshape(4, 4)
SCORES_FAR = SCORES + np.array(
    [[0, 40, 0, 0], [0, 0, 0, 0], [60, 0, 0, 35], [0, 0, 0, 0]]
)  # wrong ones dominate


def signed_logs(values: Any) -> Any:
    """Signs and logarithms, in which small numbers count as much as large ones."""
    return [np.sign(values), np.log(np.maximum(np.abs(values), 1e-300))]


POPULATIONS: dict[str, Callable[[], PopulationRisk]] = {
    "linear": lambda: PopulationRisk(uneven(), tasks.Linear(1.4)),
    "quadratic, uniform": lambda: PopulationRisk(
        Features(POINTS), tasks.Quadratic(1.4)
    ),
    "cosine": lambda: PopulationRisk(uneven(), tasks.RandomCosine(1.4)),
    "fourier": lambda: PopulationRisk(uneven(), tasks.RandomFourier(1.4), noise=3.0),
    "halfspace": lambda: PopulationRisk(uneven(), tasks.Halfspace(1.4)),
    "finite, three tokens": lambda: PopulationRisk(
        uneven(), tasks.FiniteTask(FINITE), 3
    ),
    "linear, noise": lambda: PopulationRisk(uneven(), tasks.Linear(1.4), 6, 0.5),
    "fourier, one token": lambda: PopulationRisk(
        uneven(), tasks.RandomFourier(1.4), 1, 0.5
    ),
    "halfspace, four tokens": lambda: PopulationRisk(
        Features(POINTS), tasks.Halfspace(1.4), 4
    ),
    "exchangeable, many tokens": lambda: PopulationRisk(
        uneven(), tasks.Exchangeable(1.4), 5000, 0.1
    ),
}


def population_risk() -> Asked:
    for name, make in POPULATIONS.items():
        rounding = 1e-13 if "one token" in name else 0.0  # its gradient is zero
        yield name, Call(lambda make=make: seen(make(), SCORES, TOWARD), atol=rounding)
        yield (
            f"{name}: far",
            Call(lambda make=make: seen(make(), SCORES_FAR, TOWARD), atol=rounding),
        )
        if math.isinf(make().N):  # for finite N small entries are rounding
            yield (
                f"{name}: far, in logarithms",
                Call(
                    lambda make=make: signed_logs(make().gradient(SCORES_FAR)),
                    atol=1e-6,
                ),
            )
        yield (
            f"{name}: others",
            Call(
                lambda make=make: {
                    "repr": repr(make()),
                    "probs": make().probs,
                    "loss_per_query": make().loss_per_query(SCORES),
                    "growth": make().growth(SCORES),
                    "attention": make().attention(SCORES),
                    "floor_per_query": make().floor_per_query(),
                    "nondegenerate": make().nondegenerate,
                    "gradients": gradients_at(make(), np.stack([SCORES, TOWARD])),
                    "columns": column_gradients_of(make())
                    and column_gradients_of(make())(SCORES[:, 1:3], np.array([1, 2])),
                },
                atol=rounding,
            ),
        )
    for name in (
        "finite, three tokens",
        "linear, noise",
        "halfspace, four tokens",
        "fourier, one token",
    ):
        yield (
            f"{name}: levels",
            Call(lambda name=name: POPULATIONS[name]().levels, rtol=1e-6, atol=1e-9),
        )
    line = Features(np.arange(13.0)[:, None] ** 1.2)
    yield (
        "floor of many",
        Call(PopulationRisk(line, tasks.Linear(1.0), 4).floor_per_query, rtol=1e-5),
    )
    yield (
        "many: no levels",
        lambda: [
            PopulationRisk(line, tasks.Linear(1.0), 4).levels,
            PopulationRisk(line, tasks.Linear(1.0)).nondegenerate,
        ],
    )
    yield (
        "rank of a circle",
        lambda: PopulationRisk(line, tasks.RandomCosine(1.0)).loss(np.eye(13)),
    )
    yield (
        "form",
        lambda: [
            ErrorForm(task, Features.simplex(6, 1.0)).use_factor
            for task in (
                tasks.Linear(1.0),
                tasks.Halfspace(1.0),
                tasks.Exchangeable(1.0),
                tasks.RandomFourier(1.0),
            )
        ],
    )
    yield (
        "one query",
        partial(
            prompts.one_query,
            np.array([0.3, -1.0, -np.inf, 0.8]),
            np.array(UNEQUAL),
            np.array([0.5, 1.0, 2.0, 0.1]),
            5,
            np.eye(4) + 0.1,
            True,
        ),
    )
    yield (
        "one query, flat",
        partial(
            prompts.one_query,
            np.array([0.3, -1.0, 0.8]),
            np.array([0.5, 0.2, 0.3]),
            np.ones(3),
            2,
            np.eye(3),
        ),
    )
    yield (
        "presence",
        lambda: [
            prompts.presence(np.array([0.1, 0.5, 1.0]), N) for N in (1, 7, math.inf)
        ],
    )
    yield from refused(
        {
            "features": partial(PopulationRisk, POINTS, tasks.Linear(1.0)),
            "task": lambda: PopulationRisk(uneven(), "linear"),  # type: ignore[arg-type]
            "task, K": lambda: PopulationRisk(uneven(), tasks.FiniteTask([[1.0, 2.0]])),
            "N": lambda: PopulationRisk(uneven(), tasks.Linear(1.0), 0),
            "N not a number": lambda: PopulationRisk(
                uneven(), tasks.Linear(1.0), math.nan
            ),
            "noise": lambda: PopulationRisk(uneven(), tasks.Linear(1.0), 3, -1.0),
            "task too large": lambda: PopulationRisk(
                Features([[1e40], [-1e40]]), tasks.FiniteTask([[1e130, -1e130]])
            ),
            "scores": lambda: PopulationRisk(uneven(), tasks.Linear(1.0)).loss(
                np.zeros((3, 3))
            ),
            "scores of attention": lambda: PopulationRisk(
                uneven(), tasks.Linear(1.0)
            ).attention([[np.nan]]),
            "scores per query": lambda: PopulationRisk(
                uneven(), tasks.Linear(1.0), 3
            ).loss_per_query(np.zeros(4)),
        }
    )


GROUPS = np.array([[1.0, 2.0, 0.4], [2.0, 0.7, 1.5], [0.4, 1.5, 0.3]])
SYMMETRIC: dict[str, Callable[[], SymmetricRisk]] = {
    "infinite": partial(SymmetricRisk, [2, 3, 1], [0.2, 0.1, 0.3], 1.5),
    "infinite, matrix": partial(
        SymmetricRisk, [2, 3, 1], [0.2, 0.1, 0.3], GROUPS + 1.0
    ),
    "finite": partial(SymmetricRisk, [2, 3, 1], [0.2, 0.1, 0.3], 1.5, 4),
    "finite, noise": partial(
        SymmetricRisk, [2, 3], [0.2, 0.2], [[1.0, 2.0], [2.0, 0.9]], 7, 0.4
    ),
    "one token": partial(SymmetricRisk, [1, 4], [0.2, 0.2], 0.8, 1),
    "large": partial(SymmetricRisk, [1, 10**6], [0.5, 0.5e-6], 2.0, 50),
}


def symmetric_risk() -> Asked:
    for name, make in SYMMETRIC.items():
        G = 3 if "matrix" in name or name in ("infinite", "finite") else 2
        theta = np.sin(np.arange(G * (G + 1.0))).reshape(G, G + 1)
        far = theta.copy()
        far[0, -1] += 45.0
        rounding = 1e-13 if name == "one token" else 0.0  # its gradient is zero
        yield (
            name,
            Call(
                lambda make=make, theta=theta: seen(make(), theta, theta[::-1]),
                1e-7,
                rounding,
            ),
        )
        yield (
            f"{name}: far",
            Call(
                lambda make=make, far=far: seen(make(), far, far[::-1]), 1e-7, rounding
            ),
        )
        yield (
            f"{name}: others",
            lambda make=make, theta=theta: {
                "sizes": make().sizes,
                "probs": make().probs,
                "variogram": make().variogram,
                "K": make().K,
                "members": make().members,
                "attention": make().attention(theta),
                "nondegenerate": make().nondegenerate,
                "scores": make().scores(theta) if make().K < 100 else None,
            },
        )
        yield (
            f"{name}: levels",
            Call(lambda make=make: make().levels, rtol=1e-6, atol=1e-9),
        )
    features = Features.simplex(5, 1.0, [0.4, 0.15, 0.15, 0.15, 0.15])
    yield (
        "groups",
        lambda: [
            symmetric.exchangeable_groups(one, task)
            for one, task in (
                (features, tasks.Linear(1.0)),
                (features, tasks.Halfspace(1.0)),
                (uneven(), tasks.Linear(1.0)),
                (Features.simplex(5, 1.0), tasks.RandomFourier(1.0)),
                (Features.simplex(5, 1.0), tasks.Halfspace(1.0)),
            )
        ],
    )
    yield (
        "of",
        lambda: [
            SymmetricRisk.of(features, tasks.Linear(1.2)),
            repr(SymmetricRisk.of(features, tasks.Linear(1.2))),
        ],
    )
    yield (
        "of, halfspace",
        lambda: SymmetricRisk.of(
            Features.simplex(5, 1.0), tasks.Halfspace(1.0), None, 6, 0.2
        ),
    )
    yield (
        "of, given",
        lambda: SymmetricRisk.of(features, tasks.Linear(1.2), [1, 0, 0, 2, 2], 3),
    )
    make = partial(SymmetricRisk, [2, 3], [0.2, 0.2])
    yield from refused(
        {
            "sizes": partial(SymmetricRisk, [0, 3], [0.2, 0.2], 1.0),
            "sizes, fraction": partial(SymmetricRisk, [1.5, 3], [0.2, 0.2], 1.0),
            "sizes, one": partial(SymmetricRisk, [1], [1.0], 1.0),
            "sizes, word": partial(SymmetricRisk, "two", [1.0], 1.0),
            "probs, number": partial(SymmetricRisk, [2, 3], [0.2, 0.2, 0.1], 1.0),
            "probs, sum": partial(SymmetricRisk, [2, 3], [0.2, 0.3], 1.0),
            "probs, nearly": lambda: (
                SymmetricRisk([2, 3], [0.2, 0.2 + 3e-7], 1.0).probs
            ),
            "probs, zero": partial(SymmetricRisk, [2, 3], [0.5, 0.0], 1.0),
            "variogram, shape": lambda: make([[1.0, 2.0, 1.0]]),
            "variogram, not symmetric": lambda: make([[1.0, 2.0], [2.1, 1.0]]),
            "variogram, negative": lambda: make([[1.0, -2.0], [-2.0, 1.0]]),
            "variogram, one negative": lambda: make(-1.0),
            "variogram, large": lambda: make([[1e251, 1.0], [1.0, 1.0]]),
            "variogram, of no functions": lambda: make([[1.0, 0.1], [0.1, 1.0]]),
            "N": lambda: make(1.0, 0),
            "noise": lambda: make(1.0, 3, math.inf),
            "scores": lambda: make(1.0).attention(np.zeros((2, 2))),
            "scores, many": lambda: SymmetricRisk(
                [1, 20_000], [0.5, 0.5 / 20_000], 1.0
            ).scores(np.zeros((2, 3))),
            "groups, number": lambda: SymmetricRisk.of(
                features, tasks.Linear(1.0), [0, 1]
            ),
            "groups, gap": lambda: SymmetricRisk.of(
                features, tasks.Linear(1.0), [0, 2, 2, 2, 2]
            ),
            "groups, fraction": lambda: SymmetricRisk.of(
                features, tasks.Linear(1.0), [0, 0.5, 1, 1, 1]
            ),
            "groups, unlike": lambda: SymmetricRisk.of(
                features, tasks.Linear(1.0), [0, 0, 1, 1, 1]
            ),
            "groups, unlike tasks": lambda: SymmetricRisk.of(
                Features(POINTS), tasks.Linear(1.0), [0, 0, 1, 1]
            ),
            "groups of no task": lambda: symmetric.exchangeable_groups(
                features, "linear"
            ),  # type: ignore[arg-type]
        }
    )


def gaussian_risk() -> Asked:
    yield (
        "law",
        lambda: [
            QuadraticLaw(3, 0.4, 1.2),
            QuadraticLaw.lipschitz(3, 2.0),
            QuadraticLaw.lipschitz(5, 2.0, 0.2),
            QuadraticLaw.lipschitz(5, 2.0, 0.0),
            QuadraticLaw.lipschitz(5, 2.0, 1.0),
        ],
    )
    Q = np.array([[0.4, -0.2, 0.1], [0.3, 0.9, 0.0], [-0.5, 0.2, 0.7]])
    for name, law in {
        "both": QuadraticLaw(3, 0.4, 1.2),
        "curved": QuadraticLaw(3, 0.4, 0.0),
        "linear": QuadraticLaw(3, 0.0, 1.2),
        "small": QuadraticLaw(3, 1e-20, 3e-20),
    }.items():
        risk = GaussianRisk(law)
        for size in (1.0, 50.0):
            yield (
                f"{name}, {size:g}",
                lambda risk=risk, size=size: seen(risk, size * Q, Q.T),
            )
        yield (
            f"{name}: others",
            lambda risk=risk: [
                risk.best,
                risk.rate,
                risk.excess(Q),
                risk.excess(1.0001 * risk.best * np.eye(3)),
                repr(risk),
            ],
        )
        short = FiniteGaussianRisk(law, 5, noise=0.3, tolerance=1e-6)
        yield (
            f"{name}: finite",
            Call(
                lambda short=short: seen(short, np.array([0.6]), np.array([1.5])),
                rtol=1e-6,
            ),
        )
        yield (
            f"{name}: finite, others",
            Call(
                lambda short=short: [short.best, short.rate, repr(short)],
                rtol=1e-5,
                atol=1e-6,
            ),
        )
    yield (
        "one token",
        Call(
            lambda: [
                (
                    r := FiniteGaussianRisk(
                        QuadraticLaw(2, 0.5, 1.0), 1, tolerance=1e-6
                    )
                ).best,
                r.floor(),
            ],
            rtol=1e-6,
        ),
    )
    yield (
        "negative c",
        Call(
            lambda: FiniteGaussianRisk(
                QuadraticLaw(2, 0.5, 1.0), 4, tolerance=1e-6
            ).loss([-0.4]),
            rtol=1e-7,
        ),
    )
    law = QuadraticLaw(2, 0.5, 1.0)
    yield from refused(
        {
            "d": partial(QuadraticLaw, 0, 1.0, 1.0),
            "d large": partial(QuadraticLaw, 10_001, 1.0, 1.0),
            "sigma_a": partial(QuadraticLaw, 2, -1.0, 1.0),
            "sigma_a small": partial(QuadraticLaw, 2, 1e-41, 1.0),
            "sigma_b large": partial(QuadraticLaw, 2, 1.0, 1e41),
            "both zero": partial(QuadraticLaw, 2, 0.0, 0.0),
            "curved": partial(QuadraticLaw.lipschitz, 2, 1.0, 1.1),
            "L": partial(QuadraticLaw.lipschitz, 2, 0.0),
            "d of lipschitz": partial(QuadraticLaw.lipschitz, 2.5, 1.0),
            "no law": partial(GaussianRisk, 3),
            "Q": lambda: GaussianRisk(law).excess(np.zeros((3, 3))),
            "Q large": lambda: seen(GaussianRisk(law), 1e160 * np.eye(2), np.eye(2)),
            "loss large": lambda: GaussianRisk(law).evaluate(1e160 * np.eye(2)),
            "finite, law": partial(FiniteGaussianRisk, None, 3),
            "finite, d": partial(FiniteGaussianRisk, QuadraticLaw(101, 1.0, 1.0), 3),
            "finite, N": partial(FiniteGaussianRisk, law, math.inf),
            "finite, N zero": partial(FiniteGaussianRisk, law, 0),
            "finite, noise": partial(FiniteGaussianRisk, law, 3, -0.1),
            "finite, tolerance": partial(FiniteGaussianRisk, law, 3, tolerance=1e-13),
            "finite, tolerance large": partial(
                FiniteGaussianRisk, law, 3, tolerance=0.1
            ),
        }
    )
    yield (
        "limits",
        lambda: [gaussian.MOST_DIMENSIONS, gaussian.MOST_WITH_FINITE_PROMPTS],
    )


def curvature() -> Asked:
    yield "constant", lambda: stability.CURVATURE
    yield (
        "bound",
        lambda: [
            stability.curvature_bound(2.0, 7),
            stability.curvature_bound(2.0, 7, noise=3.0),
        ],
    )
    yield (
        "bound, finite",
        partial(
            stability.curvature_bound,
            np.array([2.0, 0.1]),
            np.array([7.0, 1.0]),
            noise=0.5,
            N=np.array([9, math.inf]),
        ),
    )
    yield "rate", partial(stability.stable_rate, 2.0, 7, noise=0.4, N=9, speed=0.25)
    yield (
        "rates",
        partial(
            stability.stable_rate, np.array([2.0, 0.1]), 7, speed=np.array([1.0, 3.0])
        ),
    )
    yield from refused(
        {
            "variogram": partial(stability.curvature_bound, -1.0, 7),
            "variogram large": partial(stability.curvature_bound, 1e291, 7),
            "K": partial(stability.curvature_bound, 1.0, 0.5),
            "noise": partial(stability.curvature_bound, 1.0, 2, noise=1e41),
            "N": partial(stability.curvature_bound, 1.0, 2, N=2.5),
            "N zero": partial(stability.stable_rate, 1.0, 2, N=0),
            "speed": partial(stability.stable_rate, 1.0, 2, speed=1e201),
            "no curvature": partial(stability.stable_rate, 0.0, 2),
            "beyond": partial(stability.stable_rate, 1e200, 2, speed=1e150),
        }
    )


def families() -> Asked:
    yield "columns", lambda: COLUMNS
    yield "grouped: columns", lambda: variants.GroupedRegression.columns
    yield "gaussian: columns", lambda: variants.GaussianRegression.columns
    yield "laws", lambda: LAWS
    base = {"L": 2.0, "delta": 0.5, "eta": 4.0}
    problems: dict[str, dict[str, Any]] = {
        "plain": {},
        "noise": {"N": 9, "noise": 0.3},
        "embedding": {"coordinates": "embedding", "N": 9},
        "unequal": {"K": 4, "probs": UNEQUAL},
        "linear": {"task": "linear", "K": 3},
        "features": {
            "features": Features.simplex(4, 0.5, UNEQUAL),
            "task": tasks.Quadratic,
            "N": 5,
        },
        "factored": {"coordinates": "factored", "K": 3},
        "callable": {"task": lambda L: tasks.Halfspace(L), "K": 5},
        "auto": {"eta": "auto"},
        "auto, noise": {"eta": "auto", "N": 9, "noise": 0.7, "K": 4, "probs": UNEQUAL},
        "auto, task": {"eta": "auto", "task": "fourier", "coordinates": "embedding"},
        "none": {"task": None},
        "a class": {"task": tasks.Linear},
        "above": {"above": 0.1, "N": 9, "imbalance": 0.2},
        "default K": {"features": Features.simplex(20, 0.5), "K": 20},
    }

    def shown(given: dict[str, Any]) -> dict[str, Any]:
        problem = Regression(**{**base, **given})
        return {
            "rate": problem.rate(),
            "risk": repr(problem.risk()),
            "K": problem.K,
            "task": problem.task,
            "law": repr(problem.law()),
            "expected": problem.expected_steps(),
            "epsilon": problem.epsilon,
            "above": problem.above,
            "limits": problem.limits({**base, **given}),
        }

    for name, given in problems.items():
        yield name, partial(shown, given)
    yield (
        "changed",
        lambda: [
            (
                p := Regression(**base).changed(
                    features=Features.simplex(4, 0.5, UNEQUAL)
                )
            ).K,
            p.changed(N=7, above=0.1).N,
            Regression(**base).changed(features=Features.simplex(4, 0.5), K=4).K,
        ],
    )
    yield (
        "sampled",
        lambda: [
            repr(Regression(**{**base, **given, "N": 6}).sampled(8, 3))
            for given in (
                {},
                {"coordinates": "embedding"},
                {"K": 4, "probs": UNEQUAL, "noise": 0.2},
            )
        ],
    )
    other = Features.simplex(4, 0.7)
    yield from refused(
        {
            name: partial(Regression, **{**base, **given})
            for name, given in {
                "features and probs": {
                    "features": Features.simplex(4, 0.5),
                    "probs": UNEQUAL,
                },
                "features and gap": {"features": other},
                "features and K": {"features": Features.simplex(4, 0.5), "K": 5},
                "probs and K": {"probs": UNEQUAL, "K": 5},
                "no features": {"features": POINTS},
                "task": {"task": "cubic"},
                "task, number": {"task": 3},
                "coordinates": {"coordinates": "scores"},
                "imbalance": {"imbalance": 1.0},
                "K": {"K": 1},
                "K large": {"K": 10**9 + 1},
                "L": {"L": -1.0},
                "delta": {"delta": 0.0},
                "N": {"N": 0},
                "noise": {"noise": -0.1},
                "both targets": {"epsilon": 0.1, "above": 0.1},
                "eta auto, factored": {"eta": "auto", "coordinates": "factored"},
                "eta word": {"eta": "large"},
                "rule": {"rule": "adam"},
                "method": {"method": "slow"},
                "max_steps": {"max_steps": -1},
                "another L": {"task": tasks.Linear(1.0)},
            }.items()
        }
    )
    yield "another L: law", lambda: Regression(**base, task=tasks.Linear(1.0)).law()
    yield "no law", lambda: Regression(**base, task=math.sqrt).law()
    yield "sampled of infinite", lambda: Regression(**base).sampled(4)
    yield (
        "embedding, delta",
        lambda: Regression(
            L=1e50, delta=1e-61, eta=1.0, coordinates="embedding"
        ).risk(),
    )
    yield (
        "limits",
        lambda: [
            Regression.limits(each)
            for each in (
                {"eta": "auto"},
                {"eta": 1.0, "coordinates": "embedding"},
                {"eta": 1.0, "coordinates": "class"},
                {},
            )
        ],
    )


def other_families() -> Asked:
    grouped = partial(variants.GroupedRegression, L=2.0, delta=0.5)
    for name, given in {
        "plain": {},
        "sizes": {"sizes": (2, 5, 1), "shares": (0.5, 0.3, 0.2), "eta": 3.0},
        "noise": {"sizes": (2, 5), "N": 8, "noise": 0.3, "above": 0.01},
    }.items():
        yield (
            f"grouped, {name}",
            lambda given=given: [
                (p := grouped(**given)).rate(),
                p.risk().probs,
                p.risk().variogram,
                p.risk().N,
                p.risk().noise,
                p.above,
            ],
        )
        yield from run_calls(
            f"grouped, {name}: run",
            lambda given=given: grouped(**{**given, "max_steps": 10**7}).simulate(),
            rtol=1e-6,
        )
        yield (
            f"grouped, {name}: measured",
            Call(
                lambda given=given: (p := grouped(**given)).measured(p.simulate()),
                rtol=1e-6,
            ),
        )
    yield (
        "grouped, sampled",
        lambda: repr(grouped(sizes=(2, 3), N=5, noise=0.2).sampled(4, 7)),
    )
    yield (
        "grouped, early end",
        Call(lambda: (p := grouped(max_steps=30)).measured(p.simulate()), rtol=1e-6),
    )
    yield (
        "grouped, flow",
        Call(lambda: grouped(method="flow").simulate().phases, rtol=1e-6),
    )
    gauss = partial(variants.GaussianRegression, L=2.0, d=3)
    for name, given in {
        "plain": {},
        "curved": {"curved": 0.9, "above": 1e-5},
        "finite": {"N": 5, "noise": 0.4, "d": 2},
        "epsilon": {"epsilon": 1.5},
        "below the floor": {"epsilon": 1e-3, "max_steps": 500},
    }.items():
        yield (
            f"gaussian, {name}",
            Call(
                lambda given=given: [
                    (p := gauss(**given)).rate(),
                    repr(p.risk()),
                    p.expected_steps(),
                    p.above,
                    p.epsilon,
                ],
                rtol=1e-5,
            ),
        )
        if name != "finite":
            yield from run_calls(
                f"gaussian, {name}: run",
                lambda given=given: gauss(**given).simulate(),
                rtol=1e-6,
            )
            yield (
                f"gaussian, {name}: measured",
                Call(
                    lambda given=given: (p := gauss(**given)).measured(p.simulate()),
                    rtol=1e-6,
                    atol=1e-9,
                ),
            )
    yield "gaussian, sampled", lambda: repr(gauss(N=5, noise=0.2).sampled(4, 7))
    yield from refused(
        {
            "grouped, shares": lambda: grouped(sizes=(2, 3, 4)),
            "grouped, sum": lambda: grouped(sizes=(2, 3), shares=(0.5, 0.4)),
            "grouped, sizes": lambda: grouped(sizes=(2, 0)),
            "grouped, sampled of infinite": lambda: grouped().sampled(4),
            "grouped, sampled of many": lambda: grouped(sizes=(1, 1000), N=4).sampled(
                4
            ),
            "gaussian, sampled of infinite": lambda: gauss().sampled(4),
            "gaussian, one token": lambda: gauss(N=1),
            "gaussian, one token, eta": lambda: repr(gauss(N=1, eta=0.1).risk()),
            "gaussian, curved": lambda: gauss(curved=-0.1),
            "gaussian, d": lambda: gauss(d=10_001),
        }
    )


RUNS: dict[str, dict[str, Any]] = {
    "plain": {"epsilon": 1e-9},
    "flat": {"epsilon": 0.02, "imbalance": 0.1},
    "sharp": {"imbalance": 0.8},
    "embedding": {"coordinates": "embedding", "epsilon": 1e-6},
    "two features": {"K": 2, "epsilon": 1e-7},
    "ended early": {"max_steps": 40},
    "ended in phase II": {"max_steps": 400, "epsilon": 1e-9},
    "no step": {"epsilon": 10.0},
    "no steps": {"max_steps": 0},
    "exact": {"method": "exact", "epsilon": 1e-2, "imbalance": 0.3},
    "finite": {"N": 60, "above": 1e-2, "K": 5},
    "finite, noise": {"N": 30, "above": 2e-2, "K": 4, "noise": 0.2},
    "floor": {"N": 9, "K": 4, "epsilon": 1e-4},
    "flow": {"method": "flow", "epsilon": 1e-2},
    "fast": {"method": "fast", "epsilon": 1e-5, "K": 5},
    "unequal": {"K": 3, "probs": [0.6, 0.3, 0.1], "epsilon": 1e-3},
    "linear": {"task": "linear", "K": 4, "epsilon": 1e-2},
    "halfspace": {"task": "halfspace", "K": 5, "epsilon": 1e-3},
    "ngd": {"eta": 0.1, "K": 4, "epsilon": 0.1, "rule": "ngd"},
    "features": {
        "features": Features([[0.0], [1.0], [2.2], [3.5]]),
        "task": "linear",
        "epsilon": 1e-2,
    },
    "features, three tokens": {
        "features": Features([[0.0], [1.0], [2.2], [3.5]]),
        "task": "linear",
        "N": 3,
        "above": 1e-2,
    },
    "factored": {"coordinates": "factored", "K": 3, "epsilon": 0.1},
    "auto rate": {"eta": "auto", "epsilon": 1e-3},
    "embedded, unequal": {
        "coordinates": "embedding",
        "K": 3,
        "probs": [0.5, 0.3, 0.2],
        "epsilon": 0.02,
    },
    "diverges": {"eta": 1e6, "epsilon": 1e-3, "N": 6, "K": 3},
    "cosine": {"task": "cosine", "K": 3, "epsilon": 0.03},
}


def made(given: dict[str, Any]) -> Any:
    given = {"L": 2.0, "delta": 1.0, "eta": 4.0, **given}
    return Regression(**given).simulate() if "rule" in given else simulate(**given)


def runs() -> Asked:
    for name, given in RUNS.items():
        slack = (
            1e-6
            if given.get("method") in ("flow", "fast")
            or given.get("coordinates") == "factored"
            else 1e-8
        )
        yield from run_calls(name, partial(made, given), rtol=slack, atol=1e-12)
        yield (
            f"{name}: measured",
            Call(lambda given=given: measured(made(given)), rtol=slack, atol=1e-9),
        )
        yield (
            f"{name}: in words",
            Call(
                lambda given=given: [
                    repr(made(given)),
                    made(given).family.expected_steps(),
                ],
                rtol=slack,
            ),
        )
    yield (
        "compare coordinates",
        Call(
            lambda: {
                n: [r.steps, r.loss[-1], r.phases]
                for n, r in compare_coordinates(
                    2.0, 1.0, 4.0, K=4, epsilon=1e-2, task="linear"
                ).items()
            },
            rtol=1e-6,
        ),
    )
    yield (
        "compare coordinates, given",
        partial(compare_coordinates, 2.0, 1.0, 4.0, coordinates="class"),
    )
    heard: list[Any] = []
    yield (
        "callback",
        lambda: [
            made(
                {
                    "N": 40,
                    "K": 3,
                    "above": 0.01,
                    "callback": lambda step, loss: heard.append((step, loss)),
                }
            ).steps,
            heard,
        ],
    )
    for name in ("unequal", "features, three tokens", "embedded, unequal", "halfspace"):
        yield f"{name}: query phases", lambda name=name: query_phases(made(RUNS[name]))
    unequal = partial(made, RUNS["unequal"])
    yield (
        "phases",
        lambda: (
            [run_phases(unequal(), tail) for tail in (None, 0.0, 0.01, 0.1, 0.125)]
            + [
                run_phases(unequal(), 0.1, tail_deficit=0.2),
                run_phases(unequal(), None, tail_deficit=0.001),
            ]
        ),
    )

    def loaded(given: dict[str, Any]) -> Any:
        made(given).save("run.npz")
        return icl.load("run.npz")

    yield "loaded: query phases", lambda: query_phases(loaded(RUNS["unequal"]))
    yield "loaded: finite", lambda: query_phases(loaded(RUNS["features, three tokens"]))
    yield "loaded: run phases", lambda: run_phases(loaded(RUNS["unequal"]), 0.1)
    yield "query phases of one number", lambda: query_phases(made({}))
    yield "query phases of no run", partial(query_phases, 3)
    yield "run phases of no run", partial(run_phases, 3, None)
    yield "run phases, tail", lambda: run_phases(made({}), -1.0)
    yield "run phases, deficit", lambda: run_phases(made({}), None, 1.0)
    yield (
        "no attention",
        lambda: run_phases(variants.GaussianRegression(L=2.0, d=2).simulate(), None),
    )
    yield "simulate, L", partial(simulate, 0.0, 1.0, 4.0)
    yield "simulate, closed", partial(simulate, 2.0, 1.0, 4.0, N=9, method="closed")
    yield "simulate, eta", partial(simulate, 1e60, 1e60, 1e200)
    yield "simulate, above", partial(simulate, 2.0, 1.0, 4.0, above=0.0)


def columns(given: dict[str, Any], **axes: Any) -> Any:
    """What a sweep of `batched` returns; axes are arrays of the same length."""
    points = {
        "L": 2.0,
        "delta": 1.0,
        "K": 20,
        "N": math.inf,
        "noise": 0.0,
        "epsilon": 1e-3,
        **axes,
    }
    size = max(np.size(value) for value in axes.values())
    if "above" in points:
        del points["epsilon"]
    arrays = {
        name: np.broadcast_to(np.asarray(value, dtype=float), size).copy()
        for name, value in points.items()
    }
    common = {
        "eta": 4.0,
        "coordinates": "class",
        "method": "auto",
        "rule": "gd",
        "task": "exchangeable",
        "imbalance": None,
        "probs": None,
        "features": None,
        "max_steps": 10**15,
        **given,
    }
    arrays["K"] = arrays["K"].astype(np.int64)
    with np.errstate(all="ignore"):  # as sweeps call it
        found = infinite_prompts.batched(Regression, arrays, common)
    return found and {name: np.asarray(value) for name, value in found.items()}


def batches() -> Asked:
    L = np.array([0.02, 0.3, 2.0, 40.0, 3e3])
    yield "closed", partial(columns, {}, L=L)
    yield "closed, imbalance", partial(columns, {"imbalance": 0.2}, L=L)
    yield (
        "closed, embedding",
        partial(
            columns,
            {"coordinates": "embedding"},
            L=L,
            delta=0.5,
            K=np.array([2, 3, 6, 7, 90]),
        ),
    )
    yield (
        "closed, auto rate",
        partial(columns, {"eta": "auto"}, L=L, K=np.array([2, 3, 6, 7, 90])),
    )
    yield "closed, few steps", partial(columns, {"max_steps": 300}, L=L)
    yield "closed, no steps", partial(columns, {"max_steps": 0}, L=L)
    yield (
        "closed, some out of range",
        partial(columns, {}, L=np.array([2.0, 1e-150, 1e160])),
    )
    yield "above", partial(columns, {}, L=L, above=1e-4)
    short = np.array([0.3, 1.0, 2.0, 3.0])
    for name, given in {
        "finite": {
            "epsilon": np.array([1e-2, 0.1, 1e-1, 0.4]),
            "N": np.array([40, 40, 25, 9]),
        },
        "finite, floor": {"epsilon": 1e-6, "N": 12},
        "finite, above": {"above": np.array([1e-2, 1e-3, 1e-2, 0.1]), "N": 30},
        "finite, noise": {"noise": 0.2, "above": 1e-2, "N": 30},
        "one token": {"above": 1e-2, "N": 1},
    }.items():
        yield (
            name,
            Call(
                partial(columns, {}, L=short, **{"K": np.array([3, 4, 5, 6]), **given}),
                rtol=1e-6,
            ),
        )
    yield (
        "finite, embedding",
        Call(
            partial(
                columns, {"coordinates": "embedding"}, L=short, K=4, N=20, above=1e-2
            ),
            rtol=1e-6,
        ),
    )
    yield (
        "finite, long",
        Call(partial(columns, {}, L=short, K=4, N=10**5 + 1, above=1e-2), rtol=1e-6),
    )
    yield (
        "finite, many steps",
        Call(
            partial(
                columns,
                {"eta": 0.05},
                L=short,
                K=4,
                N=20,
                above=np.array([1e-3, 1e-4, 1e-3, 1e-3]),
            ),
            rtol=1e-6,
        ),
    )
    yield (
        "mixed",
        Call(
            partial(
                columns,
                {},
                L=short,
                K=4,
                N=np.array([math.inf, 20, math.inf, 30]),
                above=1e-2,
            ),
            rtol=1e-6,
        ),
    )
    yield (
        "scores",
        Call(
            partial(columns, {"task": "linear", "eta": 1.0}, L=short, K=3, above=1e-2),
            rtol=1e-6,
            atol=1e-9,
        ),
    )
    yield (
        "scores, unequal",
        Call(
            partial(
                columns,
                {"probs": [0.5, 0.3, 0.2], "eta": 1.0},
                L=short,
                K=3,
                epsilon=1e-2,
            ),
            rtol=1e-6,
            atol=1e-9,
        ),
    )
    yield (
        "scores, finite",
        Call(
            partial(
                columns,
                {"probs": [0.5, 0.3, 0.2], "eta": 1.0},
                L=short,
                K=3,
                N=12,
                above=2e-2,
            ),
            rtol=1e-6,
            atol=1e-9,
        ),
    )
    yield (
        "scores, by object",
        Call(
            partial(
                columns,
                {"features": Features.simplex(3, 1.0), "eta": 1.0},
                L=short[:2],
                K=3,
                N=12,
                above=2e-2,
            ),
            rtol=1e-6,
            atol=1e-9,
        ),
    )
    yield from refused(
        {
            "flow": partial(columns, {"method": "flow"}, L=short),
            "exact": partial(columns, {"method": "exact"}, L=short),
            "normalised": partial(columns, {"rule": "ngd"}, L=short),
            "factored": partial(columns, {"coordinates": "factored"}, L=short, K=3),
            "imbalance, finite": partial(
                columns, {"imbalance": 0.2}, L=short, K=3, N=20
            ),
        }
    )
    yield (
        "each",
        lambda: infinite_prompts.each(lambda x: x * x, np.array([3.0, 1.0, 3.0, 2.0])),
    )
    yield (
        "clear",
        lambda: finite_prompts._clear(
            np.array([3.2, 3.0005, 2.5, 7.0]), np.array([1e-6, 1e-3, 2e-3, 0.0])
        ),
    )
    yield "table", lambda: finite_prompts.table(3, 5)


def pullbacks() -> Asked:
    risk = PopulationRisk(uneven(), tasks.Linear(1.4), 6, 0.5)
    Q = np.array([[0.3, -0.2], [0.5, 0.1]])
    yield (
        "embedding",
        lambda: seen(in_coordinates(risk, "embedding", uneven().vectors), Q, Q.T),
    )
    yield "class", lambda: in_coordinates(risk, "class", uneven().vectors) is risk
    factored = in_coordinates(risk, "factored", uneven().vectors)
    yield (
        "factored",
        Call(
            lambda: seen(
                factored, np.asarray(factored.initial), np.asarray(factored.initial)
            ),
            rtol=1e-7,
        ),
    )
    yield "facts", lambda: sorted(facts(made({"K": 3, "epsilon": 0.1})))
