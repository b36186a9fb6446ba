"""The smaller families, what every family has, and how parameters are declared and checked."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import icl_theory as icl
from icl_theory import families
from icl_theory.engine.rules import NO_MEMORY
from icl_theory.engine.trajectory import Phases, Trajectory
from icl_theory.families import (
    LOSS,
    Column,
    Family,
    Fraction,
    LazySlot,
    Number,
    Object,
    Panel,
    ParameterKind,
    Probabilities,
    Whole,
    Wholes,
    Word,
    parameter,
)
from icl_theory.families.family import _is_plain
from icl_theory.families.parameters import LazyMethod, nearest, nested
from icl_theory.papers.fixed_chain.family import ChainLogitsRisk
from icl_theory.papers.induction_heads.family import Staged, TwoLayers, dirichlet_points
from icl_theory.papers.representation.family import DictionaryRisk
from icl_theory.papers.sphere.family import kernel
from icl_theory.papers.token_selection.family import (
    SelectionRisk,
    cosine,
    hard_margin,
    lead,
)
from tests.answers import Call
from tests.answers._told import Bowl, bent, every, of_risk, told
from tests.answers.tokens import _at, _sample

Asked = Iterator[tuple[str, Call | Any]]
THREE = (((0.5, 0.3, 0.2), (0.1, 0.6, 0.3), (0.4, 0.15, 0.45)),)
TWO = np.array([[[0.9, 0.1], [0.3, 0.7]], [[0.2, 0.8], [0.6, 0.4]]])


def _all(problem: Family, rtol: float = 1e-8) -> Asked:
    """All that a problem says of itself, of a run, and of its risk."""
    yield "problem", partial(_problem, problem)
    yield "run", Call(lambda: _run(problem), rtol)
    if isinstance(
        problem, icl.SoftmaxHeads
    ):  # whose risk takes a second, and has answers of its own
        return
    yield (
        "risk",
        Call(lambda: of_risk(problem.risk(), _beside(problem.risk())), rtol, 1e-14),
    )
    yield (
        "bent",
        Call(lambda: bent(problem.risk(), _beside(problem.risk())), 1e-6, 1e-9),
    )
    yield (
        "sampled",
        lambda: _sample(problem.sampled(4, 3), _beside(problem.sampled(4, 3))),
    )


def _beside(risk: icl.Risk) -> Any:
    start = np.asarray(risk.initial)
    return start + 0.2 * np.random.default_rng(4).normal(size=start.shape)


def _problem(problem: Family) -> Any:
    update, plain = problem.update(), problem.plain()
    return {
        "arguments": problem.arguments(),
        "plain": None if plain is None else [plain["name"], [*plain["parameters"]]],
        "update": update if isinstance(update, str) else update.name,
        "expected": problem.expected_steps(),
        "rate": problem.rate(),
        "stable": _stable(problem),
    }


def _class(family: type[Family]) -> Any:
    labels = {name: [*label] for name, label in family.labels().items()}
    columns = [[*column[:5], *map(str, column[5:])] for column in family.every_column()]
    return (
        labels,
        columns,
        family.limits({}),
        family.phase_names,
        {n: _kind(p.kind) for n, p in family.parameters().items()},
    )


def _kind(kind: ParameterKind) -> str:
    """The name of a kind, and what it allows."""
    given = {field.name: getattr(kind, field.name) for field in fields(kind)}
    own = (
        f"{name}={value}"
        for name, value in given.items()
        if value != getattr(type(kind), name) and name not in ("checker", "unfold")
    )
    return " ".join([type(kind).__name__, *own])


def _stable(problem: Family) -> Any:
    try:
        return problem.stable_rate()
    except ValueError as error:
        return str(error)


def _run(problem: Family) -> Any:
    run = problem.simulate()
    found = told(
        run,
        (
            "labels",
            "command",
            "method",
            "rule",
            "steps",
            "floor",
            "epsilon",
            "error",
            "converged",
            "interrupted",
        ),
    )
    del found["shown"]  # the columns and the summary say all this
    if isinstance(problem, icl.Sphere):  # an error that is rounding
        found["notes"] = {
            name: re.sub(r"within \S+", "within ...", note)
            for name, note in found["notes"].items()
        }
        del found["summary"]
    return (
        found
        | {"command": run.command}
        | {"measured": problem.measured(run), "levels": problem.levels()}
    )


PROBLEMS: dict[str, Callable[[], Family]] = {
    "fixed chain": lambda: icl.FixedChain(
        p=0.7, q=0.8, e=0.8, w=0.4, eta=0.7, above=1e-3
    ),
    "fixed chain, free": lambda: icl.FixedChain(
        p=0.7, q=0.8, e=0.8, w=0.4, readout=-0.6, bias="trained", eta=0.7, max_steps=60
    ),
    "fixed chain, readout": lambda: icl.FixedChain(
        p=0.2, q=0.3, e=0.8, w=-0.9, readout=0.6, eta=0.7, max_steps=60
    ),
    "fixed chain, trained": lambda: icl.FixedChain(
        p=0.2, q=0.3, w=0.0, bias="trained", eta=0.7, rule="ngd", max_steps=60
    ),
    "sphere": lambda: icl.Sphere(
        task="relu", d=3, N=12, L=1.4, noise=0.6, start=0.7, eta=0.9, above=1e-4
    ),
    "sphere, cosine": lambda: icl.Sphere(
        task="cosine", d=4, N=12, L=1.4, noise=0.6, above=1e-4
    ),
    "sphere, one pair": lambda: icl.Sphere(N=1, d=2, noise=0.3, max_steps=5),
    "representation": lambda: icl.Representation(
        K=4, m=3, N=2, heads=2, noise=0.5, start=0.7, seed=5, eta=0.5, above=0.05
    ),
    "representation, labelled": lambda: icl.Representation(
        K=4, m=3, N=2, heads=2, sees="labelled", noise=0.5, eta=0.5, above=0.05
    ),
    "representation, one head": lambda: icl.Representation(
        K=5, m=2, N=3, heads=1, noise=0.2, seed=1, eta=0.5, max_steps=40
    ),
    "single location": lambda: icl.SingleLocation(
        N=5,
        snr=3.0,
        spread=0.7,
        noise=0.2,
        scale=1.3,
        first=0.3,
        d=30,
        seed=5,
        eta=0.2,
        max_steps=12,
    ),
    "single location, Bayes": lambda: icl.SingleLocation(
        N=2, snr=2.0, noise=0.2, d=30, seed=1, eta=0.2, max_steps=5
    ),
    "single location, erf": lambda: icl.SingleLocation(
        attention="erf",
        N=5,
        snr=3.0,
        spread=0.7,
        noise=0.2,
        scale=1.3,
        start="sphere",
        d=30,
        seed=5,
        eta=0.2,
        max_steps=40,
    ),
    "single location, linear": lambda: icl.SingleLocation(
        attention="linear",
        N=4,
        snr=3.0,
        spread=0.7,
        scale=0.3,
        d=30,
        seed=5,
        eta=0.2,
        max_steps=40,
    ),
    "token selection": lambda: icl.TokenSelection(
        n=3, T=4, d=5, start=0.3, seed=5, above=0.02
    ),
    "token selection, W": lambda: icl.TokenSelection(
        trained="W", n=3, T=4, d=3, seed=5, above=0.05
    ),
    "token selection, KQ": lambda: icl.TokenSelection(
        trained="KQ",
        n=3,
        T=4,
        d=3,
        values="one",
        start=0.5,
        seed=5,
        eta=0.9,
        max_steps=60,
    ),
    "token selection, no margin": lambda: icl.TokenSelection(
        n=6, T=5, d=2, values="one", seed=2, max_steps=30
    ),
    "softmax heads": lambda: icl.SoftmaxHeads(
        d=2, N=4, noise=0.3, heads=1, start=0.1, seed=5, eta=0.05, max_steps=2
    ),
    "induction, log": lambda: icl.InductionHeads(
        k=2,
        T=6,
        objective="log",
        sink=0.3,
        second="matrix",
        match=0.2,
        stage=2,
        eta=0.8,
        max_steps=30,
    ),
    "induction, square": lambda: icl.InductionHeads(
        T=7,
        concentration=[[0.5, 2.0], [3.0, 0.7]],
        start=(0.3, 0.7),
        match=-0.4,
        ratio=3.0,
        eta=2.0,
        max_steps=40,
    ),
    "induction, few": lambda: icl.InductionHeads(
        T=6, chains=3, seed=4, edge="complete", rule="ngd-blocks", eta=0.1, max_steps=40
    ),
    "induction, given": lambda: icl.InductionHeads(
        T=6,
        transitions=TWO,
        start="stationary",
        scores=(0.2, 0.5),
        sink=1.0,
        eta=2.0,
        max_steps=40,
    ),
    "induction, stationary": lambda: icl.InductionHeads(
        T=5, start="stationary", points=9, sink=0.5, eta=2.0, max_steps=20
    ),
    "induction, three": lambda: icl.InductionHeads(
        k=3,
        T=6,
        lags=3,
        edge="complete",
        concentration=0.8,
        points=4,
        seed=5,
        start="stationary",
        match=0.2,
        scores=(0.1, 0.4, -0.2),
        sink=0.3,
        ratio=2.0,
        eta=0.8,
        max_steps=10,
    ),
    "induction, three, causal": lambda: icl.InductionHeads(
        k=3, T=5, points=4, seed=2, start=(0.2, 0.3, 0.5), eta=4.0, max_steps=10
    ),
    "induction, three given": lambda: icl.InductionHeads(
        k=3, T=5, transitions=THREE, second="matrix", eta=4.0, max_steps=10
    ),
    "induction, three lags": lambda: icl.InductionHeads(
        T=6, lags=3, points=16, eta=4.0, max_steps=10
    ),
}


def problems() -> Asked:
    for name, made in PROBLEMS.items():
        rtol = 1e-6 if name.startswith(("softmax", "sphere")) else 1e-8
        for part, call in _all(made(), rtol):
            yield f"{name}: {part}", call
    for family in sorted(
        {type(made()) for made in PROBLEMS.values()} | {Toy},
        key=lambda family: family.name,
    ):
        yield f"{family.name}: class", partial(_class, family)


# ---- what single families have


def chains() -> Asked:
    """The fixed chain."""
    for e, w, p, q in (
        (0.5, 0.1, 0.4, 0.3),
        (0.5, 0.1, 0.7, 0.8),
        (0.5, -0.3, 0.7, 0.8),
        (0.1, -1.5, 0.4, 0.3),
        (2.0, -0.3, 0.4, 0.3),
        (0.1, -0.2, 0.7, 0.8),
        (0.5, 0.0, 0.4, 0.3),
        (1.0, -0.7, 0.5, 0.5),
        (0.1, -0.8, 0.9, 0.9),
    ):
        problem = icl.FixedChain(e=e, w=w, p=p, q=q)
        yield (
            f"basin {e} {w} {p} {q}",
            lambda problem=problem: [
                problem.basin(),
                problem.energy,
                problem.risk().gap,
            ],
        )
    for p, q in ((0.4, 0.3), (0.3, 0.4), (0.5, 0.5), (1e-12, 0.9), (1.0 - 1e-9, 0.2)):
        risk = ChainLogitsRisk(p, q, np.array([0.5, 0.1]))
        yield (
            f"risk {p} {q}",
            lambda risk=risk: [risk.ones, risk.stationary, risk.floor(), risk.gap],
        )
        yield (
            f"best bias {p} {q}",
            lambda risk=risk: [
                risk.best_bias(s) for s in (-700.0, -3.0, 0.0, 0.4, 2.0, 900.0)
            ],
        )
        yield (
            f"predicted {p} {q}",
            lambda risk=risk: [
                [risk.strength(x), risk.predicted(x)]
                for x in np.array([[0.5, 0.1], [2.0, -3.0]])
            ],
        )


def induction() -> Asked:
    for prior, count, seed in (
        (np.array([[1.0, 2.0], [0.5, 3.0]]), 9, 0),
        (np.array([[1.0, 2.0], [0.5, 3.0]]), 10, 0),
        (np.full((3, 3), 0.7), 4, 1),
        (np.array([[1.0, 2.0, 0.5], [1.0, 1.0, 3.0], [0.3, 0.4, 0.5]]), 8, 3),
    ):
        yield (
            f"points {prior.tolist()} {count} {seed}",
            Call(partial(dirichlet_points, prior, count, seed), 1e-7),
        )
    for name in (
        "induction, log",
        "induction, few",
        "induction, given",
        "induction, stationary",
        "induction, three",
        "induction, three, causal",
    ):
        problem: Any = PROBLEMS[name]()
        yield (
            f"{name}: law",
            lambda problem=problem: [
                problem.law(),
                problem.few,
                problem.first,
                problem.prior,
            ],
        )
        yield (
            f"{name}: words",
            lambda problem=problem: [
                problem.counted,
                problem.approximate,
                problem.predictors,
            ],
        )
        yield (
            f"{name}: outcomes",
            lambda problem=problem: [
                problem.outcome(s * _beside(problem.risk())) for s in (1.0, -1.0, 5.0)
            ],
        )
        yield (
            f"{name}: error",
            Call(
                lambda problem=problem: problem.average_error(problem.risk().initial),
                1e-3,
                1e-13,
            ),
        )
        yield (
            f"{name}: parts",
            lambda problem=problem: _parts(problem.risk().map, problem.risk().initial),
        )
        yield (
            f"{name}: metric",
            lambda problem=problem: [
                problem.risk().metric,
                problem.risk().added,
                problem.risk().often,
            ],
        )
    gradient = np.array([0.5, -1.0, 2.0, 0.3, 0.1, -0.4, 0.2])
    risk = PROBLEMS["induction, log"]().risk()
    for rule in ("gd", "ngd"):
        for step in (0, 1, 2, 3):
            staged = Staged(icl.engine.rules.RULES[rule], 2)
            yield (
                f"staged, {rule}, {step}",
                lambda staged=staged, step=step: staged.step(
                    risk, 0.0 * gradient, gradient, 0.7, NO_MEMORY, step
                )[0],
            )


def _parts(layers: TwoLayers, params: Any) -> Any:
    a, B = layers.split(params)
    return [
        layers.seen.shape,
        a,
        B,
        layers.first(a),
        layers.stretch(params),
        [np.shape(x) for x in layers.blocks(params)],
    ]


def selection() -> Asked:
    values = np.array([[1.0, -0.5, 0.3], [-2.0, 0.1, 0.4]])
    risk = SelectionRisk(values)
    yield "risk", partial(of_risk, risk, _at(risk))
    yield (
        "risk, far",
        lambda: [
            [risk.evaluate(s * _at(risk)), risk.excess(s * _at(risk))]
            for s in (0.0, 40.0, 900.0)
        ],
    )
    for given in ([], [[]], [1.0], [[math.nan]], [[1e151]]):
        yield f"values {given}", lambda given=given: SelectionRisk(given)  # type: ignore[arg-type]
    tokens = np.random.default_rng(3).normal(size=(3, 4, 5))
    yield "lead", partial(lead, tokens, np.array([0, 3, 1]))
    for size in (2, 3, 5):
        rows = (
            lead(tokens[:size, :, :size], np.arange(size) % 3)
            if size < 4
            else lead(tokens, np.array([0, 3, 1]))
        )
        yield f"margin {size}", Call(partial(hard_margin, rows), 1e-7)
    yield (
        "margin of matrices",
        Call(
            partial(hard_margin, np.random.default_rng(1).normal(size=(3, 2, 2))), 1e-7
        ),
    )
    yield (
        "cosine",
        partial(cosine, np.array([1.0, 2.0]), np.array([[-1.0, 0.5]]).ravel()),
    )
    for name in (
        "token selection",
        "token selection, W",
        "token selection, KQ",
        "token selection, no margin",
    ):
        problem: Any = PROBLEMS[name]()
        yield f"{name}: drawn", lambda problem=problem: problem.drawn
        yield f"{name}: local", Call(lambda problem=problem: _local(problem), 1e-6)
    yield (
        "risk from elsewhere",
        lambda: PROBLEMS["token selection"]().risk(np.ones(5)).initial,
    )  # type: ignore[call-arg]


def _local(problem: Any) -> Any:
    some = [np.full(problem.n, t) for t in range(problem.T)] + [
        problem.drawn[1].argmax(axis=1)
    ]
    return [[problem.is_local(each), problem.margin(each)] for each in some]


def others() -> Asked:
    for task in ("linear", "relu", "cosine"):
        yield (
            f"kernel {task}",
            partial(kernel, task, 1.4, np.array([-1.0, -0.3, 0.0, 0.8, 1.0])),
        )
    for name in (
        "single location",
        "single location, Bayes",
        "single location, erf",
        "single location, linear",
    ):
        problem: Any = PROBLEMS[name]()
        yield (
            f"{name}: chance",
            lambda problem=problem: [problem.chance, problem.bayes()],
        )
        yield f"{name}: vectors", lambda problem=problem: _vectors(problem)
    for name in (
        "representation",
        "representation, labelled",
        "representation, one head",
    ):
        dictionary: Any = PROBLEMS[name]().risk()
        yield (
            f"{name}: ridge",
            lambda risk=dictionary: [
                risk.ridge,
                risk.floor(),
                risk.coefficients(_beside(risk)),
            ],
        )
    yield (
        "dictionary",
        lambda: of_risk(
            DictionaryRisk(np.eye(3), 2, 0.4, 2, np.ones((1, 7))),
            np.linspace(-1.0, 1.0, 7)[None],
        ),
    )
    for name in ("sphere", "sphere, cosine", "sphere, one pair"):
        sphere: Any = PROBLEMS[name]()
        yield (
            f"{name}: predicted",
            Call(
                lambda sphere=sphere: [sphere.predicted(), sphere.stable_rate()], 1e-6
            ),
        )


def _vectors(problem: Any) -> Any:
    core = icl.engine.pullback.core_risk(problem.risk())
    return core.vectors(_beside(core))


REFUSED: dict[str, tuple[Any, dict[str, dict[str, Any]]]] = {
    "chain": (
        icl.FixedChain,
        {
            "p": {"p": 1e-13},
            "q": {"q": 1.0 - 1e-13},
            "p 0": {"p": 0.0},
            "e": {"e": 0.0},
            "w": {"w": 1e4},
            "readout": {"readout": "free"},
            "bias": {"bias": "none"},
            "eta": {"eta": "auto"},
            "targets": {"epsilon": 0.1, "above": 0.1},
            "rule": {"rule": "sgd"},
            "method": {"method": "slow"},
            "steps": {"max_steps": 0},
            "eta word": {"eta": "fast"},
            "eta 0": {"eta": 0.0},
        },
    ),
    "sphere": (
        icl.Sphere,
        {
            "L": {"task": "cosine", "L": 21.0},
            "task": {"task": "cubic"},
            "d": {"d": 1},
            "N": {"N": 0},
            "noise": {"noise": -1.0},
            "start": {"start": -0.1},
            "beyond": {"d": 2, "N": 10**14, "noise": 0.0},
        },
    ),
    "representation": (
        icl.Representation,
        {
            "N": {"N": 13},
            "noise": {"noise": 0.0, "m": 3},
            "K": {"K": 1},
            "sees": {"sees": "some"},
            "heads": {"heads": 65},
            "start": {"start": 0.0},
            "noise fits": {"noise": 0.0, "m": 4, "K": 4, "N": 4, "max_steps": 1},
        },
    ),
    "location": (
        icl.SingleLocation,
        {
            "start": {"start": "sphere"},
            "first": {"attention": "erf", "first": 0.3},
            "fraction": {"first": 1.0},
            "N": {"N": 1},
            "snr": {"snr": -1.0},
            "spread": {"spread": 0.0},
            "scale": {"scale": 11.0},
            "d": {"d": 3},
            "attention": {"attention": "relu"},
            "seed": {"seed": -1},
        },
    ),
    "selection": (
        icl.TokenSelection,
        {
            "KQ": {"trained": "KQ", "eta": 0.1},
            "W": {"trained": "W", "start": 0.5},
            "auto": {"trained": "KQ", "start": 0.5},
            "T": {"T": 1},
            "large": {"trained": "W", "n": 100, "T": 100, "d": 100},
            "values": {"values": "two"},
            "n": {"n": 101},
        },
    ),
    "heads": (
        icl.SoftmaxHeads,
        {
            "heads": {"heads": 9},
            "d": {"d": 0},
            "N": {"N": 0.5},
            "start": {"start": 0.0},
        },
    ),
    "induction": (
        icl.InductionHeads,
        {
            "T": {"T": 4, "lags": 3},
            "lags": {"lags": 20, "k": 10, "T": 50},
            "concentration": {"concentration": [[1.0, 2.0, 3.0]] * 3},
            "concentration 0": {"concentration": 0.0},
            "concentrations": {"concentration": [[1.0, 0.0], [1.0, 1.0]]},
            "transitions": {"transitions": np.full((1, 3, 3), 1 / 3)},
            "transitions flat": {"transitions": [[0.5, 0.5], [0.5, 0.5]]},
            "rows": {"transitions": [[[0.5, 0.6], [0.5, 0.5]]]},
            "both": {"transitions": TWO, "chains": 2},
            "start": {"start": (0.2, 0.3, 0.5)},
            "start word": {"start": "uniformly"},
            "start sum": {"start": (0.5, 0.6)},
            "scores": {"scores": (1.0, 2.0, 3.0)},
            "scores large": {"scores": (1.0, 301.0)},
            "points": {"k": 3, "points": 6},
            "points 3": {"points": 3},
            "log": {"objective": "log"},
            "log of three": {"objective": "log", "sink": 0.3, "k": 3},
            "match": {"match": 301.0},
            "ratio": {"ratio": 0.0},
            "edge": {"edge": "open"},
            "second": {"second": "vector"},
            "stage": {"stage": -1},
            "long": {"T": 10**6, "k": 10, "lags": 4},
        },
    ),
}


EDGES: dict[
    str, tuple[Any, dict[str, Any], dict[str, Any]]
] = {  # what is just allowed, and just refused
    "p": (icl.FixedChain, {"p": 1e-12}, {"p": 0.99e-12}),
    "q": (icl.FixedChain, {"q": 1.0 - 1e-12}, {"q": 1.0 - 0.9e-12}),
    "e": (icl.FixedChain, {"e": 1e3}, {"e": 1001.0}),
    "readout": (icl.FixedChain, {"readout": -1e3}, {"readout": -1001.0}),
    "L": (icl.Sphere, {"task": "cosine", "L": 20.0}, {"task": "cosine", "L": 20.1}),
    "d": (icl.Sphere, {"d": 2, "N": 3}, {"d": 1, "N": 3}),
    "start": (icl.Sphere, {"start": 1e3, "N": 3}, {"start": 1001.0, "N": 3}),
    "labels": (icl.Representation, {"K": 5, "N": 5}, {"K": 5, "N": 6}),
    "ridge": (icl.Representation, {"m": 3, "noise": 1e-5}, {"m": 3, "noise": 0.99e-5}),
    "heads": (icl.Representation, {"heads": 64}, {"heads": 65}),
    "no ridge": (icl.Representation, {"m": 4, "noise": 0.0}, {"m": 3, "noise": 0.0}),
    "size": (icl.Representation, {"start": 10.0}, {"start": 10.1}),
    "snr": (icl.SingleLocation, {"snr": 1e4, "N": 2}, {"snr": 10001.0}),
    "spread": (icl.SingleLocation, {"spread": 100.0, "N": 2}, {"spread": 100.1}),
    "scale": (
        icl.SingleLocation,
        {"scale": 10.0, "attention": "erf"},
        {"scale": 10.1, "attention": "erf"},
    ),
    "tokens": (icl.SingleLocation, {"N": 2}, {"N": 1}),
    "matrix": (
        icl.TokenSelection,
        {"trained": "W", "n": 100, "T": 100, "d": 10},
        {"trained": "W", "n": 100, "T": 100, "d": 11},
    ),
    "T": (
        icl.InductionHeads,
        {"T": 5, "lags": 3, "points": 4},
        {"T": 4, "lags": 3, "points": 4},
    ),
    "match": (icl.InductionHeads, {"match": -300.0, "T": 4}, {"match": -300.1}),
    "scores": (
        icl.InductionHeads,
        {"scores": (300.0, -300.0), "T": 4},
        {"scores": (300.0, -300.1), "T": 4},
    ),
    "sink": (icl.InductionHeads, {"sink": 300.0, "T": 4}, {"sink": 300.1}),
    "points": (
        icl.InductionHeads,
        {"k": 3, "T": 3, "points": 8},
        {"k": 3, "T": 3, "points": 12},
    ),
    "few points": (icl.InductionHeads, {"points": 4, "T": 4}, {"points": 3, "T": 4}),
    "ratio": (icl.InductionHeads, {"ratio": 1e9, "T": 4}, {"ratio": 1.1e9, "T": 4}),
    "concentration": (
        icl.InductionHeads,
        {"concentration": 0.01, "T": 4},
        {"concentration": 0.009, "T": 4},
    ),
    "lags": (icl.InductionHeads, {"lags": 2, "T": 4}, {"lags": 1, "T": 4}),
    "softmax heads": (icl.SoftmaxHeads, {"heads": 8}, {"heads": 9}),
}


def refusals() -> Asked:
    for name, (family, cases) in REFUSED.items():
        for case, given in cases.items():
            yield (
                f"{name}: {case}",
                lambda family=family, given=given: family(**given).arguments(),
            )
    for name, (family, allowed, refused) in EDGES.items():
        yield (
            f"edge: {name}, allowed",
            lambda family=family, given=allowed: sorted(
                family(**given).changed().arguments()
            ),
        )
        yield (
            f"edge: {name}, refused",
            lambda family=family, given=refused: family(**given).arguments(),
        )
    yield (
        "changed",
        lambda: icl.FixedChain(p=0.2).changed(epsilon=0.3, q=0.6).arguments(),
    )
    yield (
        "changed twice",
        lambda: icl.FixedChain(epsilon=0.3).changed(above=0.2).arguments(),
    )
    yield "changed, unknown", lambda: icl.FixedChain().changed(probability=0.3)
    yield "changed, near", lambda: icl.FixedChain().changed(readouts=0.3)
    yield "sampled", lambda: icl.FixedChain().sampled(4)
    yield "too long, sampled", lambda: icl.SingleLocation(N=10**9).sampled(10**6)


# ---- how families are made


@dataclass(frozen=True, eq=False)
class Toy(Family):
    """A bowl times a scale."""

    name, title = "toy", "a toy"
    phase_names = ("one", "two")
    loss_unit = "joules"
    columns = (
        Column("size", "f8", "m", "norm at the end"),
        Column("kind", "U4", "", "a word", role="word"),
    )

    scale: float = parameter(
        kind=Number(), meaning="scale of the loss", symbol="s", unit="m"
    )
    share: float = parameter(0.5, kind=Fraction(), meaning="a share", tex=r"\varsigma")
    goals: Any = parameter(
        (1, 2), kind=Wholes(maximum=9), meaning="some numbers", unit=LOSS
    )
    chances: Any = parameter(
        (0.5, 0.5), kind=Probabilities(words=("even",)), meaning="chances", axis=False
    )
    bowl: Any = parameter(
        None,
        kind=Object(optional=True, checker=lambda name, value: value),
        meaning="anything",
    )
    steepness: float = parameter(
        math.inf, kind=Whole(infinite=True), meaning="a number"
    )

    def risk(self) -> icl.Risk:
        return Bowl()

    def describe(self, run: Trajectory) -> None:
        run.phases = Phases(one=(0, 2), two=None)

    def measure(self, run: Trajectory) -> dict[str, Any]:
        return {"size": float(np.linalg.norm(run.params)), "kind": "good"}


class Unnamed(Toy):
    name = "Toy 1"


class Untitled(Toy):
    title = ""


class Command(Toy):
    name = "sweep"


@dataclass(frozen=True, eq=False)
class Riskless(Family):
    name, title = "none", "no risk"


class Undecorated(Toy):
    more: float = parameter(1.0, kind=Number(), meaning="more")


@dataclass(frozen=True, eq=False)
class Undeclared(Toy):
    more: float = 1.0


@dataclass(frozen=True, eq=False)
class Taken(Toy):
    status: float = parameter(1.0, kind=Number(), meaning="more")


@dataclass(frozen=True, eq=False)
class OfColumn(Toy):
    size: float = parameter(1.0, kind=Number(), meaning="more")


class WrongGoal(Toy):
    goal = ("loss", 1.0)


class Endless(Toy):
    goal = None


class Loaded(Toy):
    figures: ClassVar[Any] = LazySlot("math:pi")
    power = LazyMethod("builtins:repr")


def made() -> Asked:
    toy = partial(Toy, eta=0.3, scale=2.0, above=1e-2)
    yield "toy", lambda: _problem(toy())
    yield "toy, run", lambda: _run(toy())
    yield "toy, ngd", lambda: _run(toy(rule="ngd", eta=0.05))
    yield "toy, flow", Call(lambda: _run(toy(method="flow", eta=1e-3)), 1e-5)
    yield (
        "toy, object",
        lambda: [toy(bowl=3.5j).plain(), toy(steepness=5).plain(), toy().plain()],
    )
    yield "toy, callback", lambda: _seen(toy(eta=0.02))
    yield "endless", lambda: _run(Endless(eta=0.3, scale=2.0, max_steps=4))
    yield "endless, epsilon", lambda: _run(Endless(eta=0.3, scale=2.0, epsilon=0.4))
    for name, declared in Toy.parameters().items():
        yield (
            f"parameter {name}",
            lambda declared=declared: [
                declared.required,
                declared.unit,
                declared.axis,
                declared.meaning,
                declared.label("joules"),
                declared.kind.text,
                declared.kind.allowed,
            ],
        )
    yield (
        "defaults",
        lambda: {name: _plain(each.default) for name, each in Toy.parameters().items()},
    )
    yield "required", lambda: Toy(eta=0.3)
    yield "no rate", lambda: Toy(eta="auto", scale=1.0)
    yield "unknown", lambda: Toy.refuse_unknown(["scale", "scal"])
    yield "unlike", lambda: Toy.refuse_unknown(["xyz"])
    yield "no risk", lambda: Riskless(eta=0.1).risk()
    for family in (
        Toy,
        Unnamed,
        Untitled,
        Command,
        Riskless,
        Undecorated,
        Undeclared,
        Taken,
        OfColumn,
        WrongGoal,
        Endless,
        3,
        int,
    ):
        yield (
            f"sound: {getattr(family, '__name__', family)}",
            lambda family=family: families.sound(family).name,
        )
    yield (
        "later",
        lambda: [
            Loaded.figures,
            Loaded(eta=0.1, scale=1.0).power()[:20],
            Loaded.power()[:20],
        ],
    )
    yield (
        "plain",
        lambda: [
            _is_plain(each)
            for each in (1, "a", (1, (2.0, "b")), [1], None, (1, None), True)
        ],
    )
    for name in (
        "regression",
        "sphere",
        "Sphere",
        "spher",
        "recall-training",
        "none",
        3,
        None,
    ):
        yield f"find {name}", lambda name=name: families.find(name).title
    yield "families", lambda: [*families.list_families()]
    yield (
        "titles",
        lambda: {
            name: [each.title, each.goal, each.loss_unit]
            for name, each in families.families_known().items()
        },
    )
    yield "default", lambda: families.default().name
    yield "broken", families.broken
    yield (
        "figures",
        lambda: {
            name: [*each] for name, each in families.filled_slots("figures")[0].items()
        },
    )
    yield (
        "commands",
        lambda: {
            name: [*each] for name, each in families.filled_slots("commands")[0].items()
        },
    )
    yield "left out", _left_out
    yield (
        "panel",
        lambda: [Panel(Path("folder")).scripts, Panel(Path("folder")).constants()],
    )
    yield "batched", lambda: Toy.batched({}, {})


def _plain(value: Any) -> Any:
    return value if _is_plain(value) or value is None else type(value).__name__


def _seen(problem: Family) -> Any:
    seen: list[Any] = []
    run = problem.simulate(callback=lambda step, loss: seen.append([step, loss]))
    return len(seen), seen[-1], int(run.t[-1])


def _left_out() -> Any:
    lines: list[str] = []
    for error in (ValueError("two\nlines"), SystemExit(3)):
        with families.left_out("something", lines):
            raise error
    return lines


VALUES: tuple[Any, ...] = (
    1,
    1.0,
    0,
    0.0,
    -1,
    2.5,
    0.5,
    1e300,
    math.inf,
    -math.inf,
    math.nan,
    True,
    None,
    "a",
    "auto",
    "Auto",
    "3",
    [1, 2],
    (0.5, 0.5),
    [[1.0, 2.0], [0.5, 3.0]],
    [[1.0, -2.0]],
    [],
    2**53,
    2**53 + 1,
    2**63,
    np.float64(0.25),
    np.int64(7),
    np.array(3.0),
    np.array([3.0]),
    np.ma.masked,
    1j,
    b"a",
    {"a": 1},
)
KINDS: dict[str, ParameterKind] = {
    "any": ParameterKind(),
    "words": Word(words=("a", "auto")),
    "no words": ParameterKind(words=("a",), optional=True),
    "number": Number(),
    "number or word": Number(words=("auto",)),
    "number from 0": Number(zero=True, maximum=2.5),
    "between": Number(minimum=0.5, maximum=1.0, optional=True),
    "signed": Number(signed=True, maximum=2.0),
    "matrix": Number(matrix=True, minimum=0.1),
    "fraction": Fraction(optional=True),
    "whole": Whole(),
    "whole from 0": Whole(minimum=0, maximum=7),
    "infinite": Whole(infinite=True),
    "infinite word": Whole(words=("auto",), infinite=True, minimum=3),
    "wholes": Wholes(maximum=5),
    "probabilities": Probabilities(words=("auto",)),
    "object": Object(words=("a",)),
    "checked": Object(checker=lambda name, value: len(value)),
}
TEXTS = (
    "1",
    "1.5",
    "1e3",
    "1,2",
    "0.5,0.5",
    "auto",
    "a",
    "",
    "inf",
    "nan",
    " 2 ",
    "x,1",
    "1e400",
)
MANY: tuple[Any, ...] = (
    [1, 2],
    np.array([1.0, 2.0]),
    np.array([1, 2]),
    np.array([0.5, 1.0]),
    np.array([1.0, math.nan]),
    np.array([-1.0, 2.0]),
    np.array([]),
    [1, "auto"],
    ["auto"],
    ["a", "b"],
    np.array([1.0, math.inf]),
    np.ma.masked_array([1.0, 2.0], [True, False]),
    np.array(["auto"]),
    [None],
    range(1, 4),
)


def values() -> Asked:
    """What the kinds of parameters do with values, texts and values of sweeps."""
    for name, kind in KINDS.items():
        yield (
            f"{name}: kind",
            lambda kind=kind: [
                kind.text,
                kind.numeric,
                kind.whole,
                kind.matrix,
                kind.allowed,
            ],
        )
        yield (
            f"{name}: check",
            partial(
                every,
                {str(each)[:40]: each for each in VALUES},
                partial(kind.check, "x"),
            ),
        )
        yield (
            f"{name}: parse",
            partial(
                every,
                {str(each)[:40]: each for each in TEXTS},
                partial(kind.parse, "x"),
            ),
        )
        yield (
            f"{name}: check all",
            partial(
                every,
                {str(each)[:40]: each for each in MANY},
                partial(kind.check_all, "x"),
            ),
        )
    for word in ("etta", "EPS", "nothing", ""):
        yield f"nearest to {word}", partial(nearest, word, ["eta", "Epsilon", "K"])
    yield "nested", lambda: nested(np.array([[1.0, 2.0], [3.0, 4.0]]))
