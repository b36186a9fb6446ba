"""Every option of what is public in regression reaches what it gives. One that has no row below is missed."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory import regression, tasks
from icl_theory.families import Family
from tests.test_arguments import assert_reached

PLANE = icl.Features([[0.0, 1.0], [1.0, 0.3], [-0.4, 0.2], [0.6, -1.0]])
P = [0.4, 0.3, 0.2, 0.1]
PAIR = icl.Features([[0.0], [1.0]], [0.6, 0.4])
LINEAR = tasks.Linear(1.4)
APART = icl.Features(
    [[-1.0, 1.6], [1.9, 0.0], [-0.9, -0.6]]
)  # one is held back by errors of negative correlation
HELD_BACK = icl.in_coordinates(
    icl.PopulationRisk(APART, tasks.FiniteTask([[0.0, -0.9, 2.2], [0.3, -0.6, 1.9]])),
    "embedding",
    APART.vectors,
)
LAW = regression.QuadraticLaw(2, 1.0, 0.5)
RUN = icl.simulate(2.0, 1.0, 2.0, K=3, epsilon=0.05)
UNEQUAL = icl.simulate(2.0, 1.0, 3.0, K=3, probs=[0.5, 0.3, 0.2], epsilon=1e-4)
FAR = 12345


def seen(make: Callable[..., Any]) -> Callable[..., Any]:
    """All that a risk shows away from its start, and its start, floor and metric."""

    def found(**options: Any) -> Any:
        risk = make(**options)
        params = risk.initial + 0.3 * np.random.default_rng(0).normal(
            size=np.shape(risk.initial)
        )
        held = risk.floor() if not risk.stochastic else 0.0
        return (
            risk.initial,
            risk.evaluate(params, 1),
            risk.observe(params, 1),
            held,
            risk.metric,
        )

    return found


def drawn(make: Callable[..., tasks.Task]) -> Callable[..., Any]:
    def found(**options: Any) -> Any:
        law, rng = make(**options), np.random.default_rng(0)
        return (
            law.kernel(PLANE),
            law.variogram(PLANE),
            law.factor(PLANE),
            law.sample(PLANE, rng, 5),
        )

    return found


def trained(**options: Any) -> Any:
    shown: list[tuple[int, float]] = []
    if options.pop("callback", None):
        options["callback"] = lambda *each: shown.append(each)
    run = icl.simulate(**options)
    columns = run.family.measured(run) if run.family is not None else {}
    words = [run.method, run.regime, *run.notes.values()]
    return (
        run.t,
        run.states,
        run.loss,
        columns,
        len(shown),
        [hash(word) % 10**9 for word in words],
    )


# What is called, with which arguments, and other values of them and of its options,
# alone or with those they need.
OPTIONS: dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, Any]]] = {
    "Features": (lambda **o: vars(icl.Features(PLANE.vectors, **o)), {}, {"probs": P}),
    "Features.simplex": (
        lambda **o: vars(icl.Features.simplex(4, **o)),
        {"delta": 1.0},
        {"delta": 2.0, "probs": P},
    ),
    "Features.orthonormal": (
        lambda **o: vars(icl.Features.orthonormal(4, **o)),
        {},
        {"scale": 2.0, "probs": P},
    ),
    "Features.random": (
        lambda **o: vars(icl.Features.random(**o)),
        {"K": 4, "d": 2, "delta": 1.0, "seed": 0},
        {"K": 5, "d": 3, "delta": 2.0, "seed": FAR, "probs": P},
    ),
    "FiniteTask": (
        drawn(lambda **o: tasks.FiniteTask(np.arange(12).reshape(3, 4) ** 2, **o)),
        {},
        {"weights": [0.5, 0.3, 0.2]},
    ),
    "RandomCosine": (
        drawn(lambda **o: tasks.RandomCosine(2.0, **o)),
        {},
        {"scale": "frequency", "direction": [0.0, 3.0]},
    ),
    "RandomFourier": (
        drawn(lambda **o: tasks.RandomFourier(2.0, **o)),
        {},
        {"length_scale": 0.5},
    ),
    "PopulationRisk": (
        seen(lambda **o: icl.PopulationRisk(PAIR, LINEAR, **o)),
        {"N": 9, "noise": 0.2},
        {"N": 5, "noise": 0.4},
    ),
    "ExchangeableRisk": (
        seen(icl.ExchangeableRisk),
        {"K": 4, "gamma": 2.0, "N": 9, "noise": 0.2},
        {"K": 5, "gamma": 3.0, "N": 5, "noise": 0.4, "speed": 2.0},
    ),
    "SymmetricRisk": (
        seen(lambda **o: icl.SymmetricRisk([1, 2], [0.4, 0.3], **o)),
        {"variogram": 2.0, "N": 9, "noise": 0.2},
        {"variogram": 1.0, "N": 5, "noise": 0.4},
    ),
    "SymmetricRisk.of": (
        seen(
            lambda **o: icl.SymmetricRisk.of(
                icl.Features.simplex(4, 1.0), tasks.Exchangeable(2.0), **o
            )
        ),
        {"N": 9, "noise": 0.2},
        {"N": 5, "noise": 0.4, "groups": [0, 0, 1, 1]},
    ),
    "FiniteGaussianRisk": (
        seen(lambda **o: regression.FiniteGaussianRisk(LAW, **o)),
        {"N": 3, "tolerance": 1e-2},
        {"N": 2, "noise": 0.4, "tolerance": 1e-10},
    ),
    "QuadraticLaw.lipschitz": (
        lambda **o: vars(regression.QuadraticLaw.lipschitz(**o)),
        {"d": 2, "L": 1.0},
        {"d": 3, "L": 2.0, "curved": 0.3},
    ),
    "SampledRisk": (
        seen(lambda **o: icl.SampledRisk(PLANE, LINEAR, **o)),
        {"N": 6, "batch": 8, "seed": 0},
        {
            "N": 5,
            "batch": 9,
            "seed": FAR,
            "dataset": 20,
            "noise": 0.4,
            "token_noise": 0.2,
        },
    ),
    "SampledGaussianRisk": (
        seen(lambda **o: regression.SampledGaussianRisk(LAW, **o)),
        {"N": 6, "batch": 8, "seed": 0},
        {"N": 5, "batch": 9, "seed": FAR, "dataset": 20, "noise": 0.4},
    ),
    "BlockRisk": (
        seen(
            lambda **o: regression.BlockRisk(
                icl.SampledRisk(PLANE, LINEAR, 6, 8, 0), **o
            )
        ),
        {"held_out": 4},
        {"hidden": 3, "seed": FAR, "held_out": 5},
    ),
    "crosscheck": (
        icl.crosscheck,
        {
            "run_or_risk": RUN,
            "batch": 64,
            "batches": 3,
            "runs": 3,
            "steps": 2,
            "precision": 9.0,
        },
        {
            "eta": 0.5,
            "N": 30,
            "precision": 0.05,
            "batch": 50,
            "batches": 4,
            "points": 2,
            "steps": 3,
            "runs": 4,
            "phases": 3,
            "seed": FAR,
        },
    ),
    "sampled_phases": (
        regression.sampled_phases,
        {"run": RUN, "runs": 3, "batch": 256},
        {"N": 30, "runs": 4, "batch": 200, "seed": FAR},
    ),
    "crossover": (
        regression.crossover,
        {"epsilon": 1e-3, "delta": 0.5},
        {"K": 9, "epsilon": 1e-4, "delta": 0.4, "leading_order": True},
    ),
    "half_way": (
        regression.half_way,
        {"epsilon": 1e-3, "delta": 0.5},
        {"K": 9, "epsilon": 1e-4, "delta": 0.4},
    ),
    "curvature_bound": (
        regression.curvature_bound,
        {"variogram": 2.0, "K": 5, "noise": 0.3, "N": 9},
        {"variogram": 3.0, "K": 6, "noise": 0.5, "N": math.inf},
    ),
    "stable_rate": (
        regression.stable_rate,
        {"variogram": 2.0, "K": 5, "noise": 0.3, "N": 9},
        {"variogram": 3.0, "K": 6, "noise": 0.5, "N": math.inf, "speed": 2.0},
    ),
    "tail_constant": (
        lambda **o: regression.tail_constant(HELD_BACK, **o) or 0.0,
        {},
        {"proved": False},
    ),
    "run_phases": (
        lambda **o: regression.run_phases(UNEQUAL, **o),
        {"tail": 0.1},
        {"tail": 0.2, "tail_deficit": 0.1},
    ),
    "simulate": (
        trained,
        {
            "L": 2.0,
            "delta": 1.0,
            "eta": 4.0,
            "K": 4,
            "N": 9,
            "noise": 0.2,
            "epsilon": 0.3,
        },
        {
            "L": 3.0,
            "delta": 1.1,
            "eta": 3.0,
            "K": 5,
            "N": 8,
            "noise": 0.4,
            "epsilon": 0.4,
            "above": {"above": 0.05, "epsilon": None},
            "probs": P,
            "task": "linear",
            "features": {"features": PLANE, "delta": PLANE.gap},
            "coordinates": "embedding",
            "method": "fast",
            "max_steps": 2,
            "imbalance": 0.2,
            "rule": "ngd",
            "start": np.eye(4),
            "loss": "mse",
            "callback": True,
        },
    ),
}


def with_options() -> Iterator[tuple[str, set[str]]]:
    """Names of what is public and no family, and its arguments that have defaults."""
    for module in (regression, tasks):
        for name in module.__all__:
            made = getattr(module, name)
            if not callable(made) or (
                inspect.isclass(made) and issubclass(made, Family)
            ):
                continue
            methods = {
                f"{name}.{key}": getattr(made, key)
                for key, method in vars(made).items()
                if isinstance(method, classmethod)
            }
            for key, each in {name: made, **methods}.items():
                found = inspect.signature(each).parameters.values()
                yield (
                    key,
                    {
                        one.name
                        for one in found
                        if one.default is not one.empty and one.name != "origin"
                    },
                )


def test_every_option_has_another_value_below() -> None:
    missing = {
        name: found - set(OPTIONS[name][2]) if name in OPTIONS else found
        for name, found in with_options()
    }
    assert not any(missing.values()), missing


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_changes_what_is_found(name: str) -> None:
    assert_reached(*OPTIONS[name])
