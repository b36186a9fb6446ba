"""Softmax attention over random tokens: exact losses, laws of counts and chains, and trainers on samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import icl_theory as icl
from icl_theory._validate import Array
from icl_theory.tokens import (
    ChainRisk,
    Chains,
    CountRisk,
    IndependentCounts,
    TwoLayerTransformer,
    TwoStateCounts,
    fair_labels,
    mean_log_loss,
    mean_loss,
)
from icl_theory.tokens.counted import excess_loss
from icl_theory.tokens.cross import product
from icl_theory.tokens.gaussian import gaussian_queries, normal, reach_of
from icl_theory.tokens.generating import TokenCount
from icl_theory.tokens.heads import GaussianHeadsRisk, HeadsRisk, least_output
from icl_theory.tokens.labels import log_poisson
from icl_theory.tokens.quadrature import capped, rule_error, trapezoid
from icl_theory.tokens.risk import Kind, TokenRisk
from icl_theory.tokens.sampled import Sampled, chosen, softmax
from icl_theory.tokens.sphere import SphereRisk, sphere_tokens
from icl_theory.tokens.tilted import balanced
from tests.answers import Call
from tests.answers._told import bent, of_risk

Asked = Iterator[tuple[str, Call | Any]]
TWO = np.array([[[0.9, 0.1], [0.3, 0.7]], [[0.2, 0.8], [0.6, 0.4]]])
THREE = np.array([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.4, 0.15, 0.45]])


def _at(risk: icl.Risk, seed: int = 6, size: float = 0.8) -> Array:
    return size * np.random.default_rng(seed).normal(size=np.shape(risk.initial))


def _extremes(risk: icl.Risk, *sizes: float) -> Any:
    return [
        [risk.loss(size * _at(risk, 2, 1.0)), risk.gradient(size * _at(risk, 2, 1.0))]
        for size in sizes
    ]


def _sample(trainer: Any, params: Array) -> Any:
    """What a trainer on samples says at two of its steps, and of its seed."""
    found = {
        name: getattr(trainer, name, None)
        for name in ("batch", "seed", "stochastic", "initial")
    }
    steps = [
        [trainer.evaluate(params, step), trainer.observe(params, step)]
        for step in (0, 5)
    ]
    losses = (
        {"losses": trainer.losses(params, 2)} if isinstance(trainer, Sampled) else {}
    )
    return found | {"steps": steps} | losses


# ---- tokens of a known law


def _kinds() -> dict[str, TokenRisk]:
    one = Kind(7, [0.2, 0.5, 0.3], [-1.0, 0.4, 2.0], 0.3)
    pair = Kind(4, [0.6, 0.4], [[0.3, -1.0], [1.2, 0.5]], [0.1, 0.7])
    again = Kind(1, [1.0], [[0.7, 0.2]])
    queries = Kind(
        5,
        [0.6, 0.4],
        np.array([[[0.3, 0.1], [1.0, -1.0]], [[0.5, 0.2], [-0.4, 0.9]]]),
        [[0.1, 0.2], [0.0, 0.4]],
    )
    second = np.array([[1.3, 0.4, 0.1], [0.4, 0.8, -0.2], [0.1, -0.2, 0.5]])
    return {
        "one kind": TokenRisk(one, 0.5),
        "each length": TokenRisk(
            Kind(11, [0.2, 0.5, 0.3], [-1.0, 0.4, 2.0], 0.3, each=True), 0.5
        ),
        "two kinds": TokenRisk([pair, again], [0.4, -0.3]),
        "two kinds, each": TokenRisk(
            [Kind(6, [0.6, 0.4], [[0.3, -1.0], [1.2, 0.5]], each=True), again],
            [0.4, -0.3],
        ),
        "queries": TokenRisk(
            [queries, again], np.array([[0.4, 1.0], [-0.3, 0.2]]), [0.7, 0.3]
        ),
        "second moments": TokenRisk(
            Kind(9, [0.2, 0.5, 0.3], np.zeros(3), 0.2), second=second
        ),
        "second moments of queries": TokenRisk(
            Kind(9, [0.2, 0.5, 0.3], np.zeros(3)),
            queries=[0.4, 0.6],
            second=np.stack([second, 2.0 * second], 2),
        ),
        "one token": TokenRisk(Kind(1, [0.2, 0.8], [1.0, -1.0]), 0.1),
        "many tokens": TokenRisk(
            Kind(10**6, [0.2, 0.5, 0.3], [-1.0, 0.4, 2.0], 0.3), 0.5
        ),
        "most tokens": TokenRisk(
            Kind(10**15, [1e-9, 1.0 - 1e-9], [-1.0, 0.4], 0.3), 0.5
        ),
        "rare nodes": TokenRisk(Kind(200, [1e-12, 1.0 - 1e-12], [5.0, 0.4], 0.3), 0.5),
    }


def kinds() -> Asked:
    for name, risk in _kinds().items():
        at = _at(risk)
        yield name, partial(of_risk, risk, at)
        yield f"{name}, bent", Call(partial(bent, risk, at), 1e-7, 1e-14)
        yield f"{name}, attention", partial(risk.attention, at)
        yield (
            f"{name}, error",
            lambda risk=risk, at=at: [
                risk.error(at),
                risk.error(at, 0.5),
                risk.error(9.0 * at),
            ],
        )
        yield (
            f"{name}, extremes",
            Call(partial(_extremes, risk, 0.0, 20.0, 400.0, 3000.0), atol=1e-14),
        )
        yield (
            f"{name}, fields",
            lambda risk=risk: [
                risk.errors,
                risk.own,
                risk.probs,
                [[*c] for c in map(_count, risk.counts)],
            ],
        )
        yield f"{name}, coarse", lambda risk=risk, at=at: risk.moments(at, step=0.6)
    for name in (
        "one kind",
        "each length",
        "two kinds, each",
        "queries",
        "second moments of queries",
    ):
        risk = _kinds()[name]
        yield f"{name}, sampled", partial(_sample, risk.sampled(6, 3), _at(risk))
    for name, made in _wrong_kinds().items():
        yield f"wrong: {name}", made
    risk = _kinds()["one kind"]
    for step in (0.0, 0.7, "fine"):
        yield f"error at step {step}", partial(risk.error, [0.0, 0.0, 0.0], step)
    for batch, seed in ((0, 0), (1.5, 0), (1, -1), (10**12, 0)):
        yield f"sampled {batch} {seed}", partial(risk.sampled, batch, seed)
    yield "a step of samples", lambda: risk.sampled(2, 0).evaluate(np.zeros(3), -1)


def _count(count: TokenCount) -> tuple[Any, ...]:
    return count.number, count.rows.start, count.rows.stop, count.each


def _wrong_kinds() -> dict[str, Callable[[], Any]]:
    half = [0.5, 0.5]
    good = Kind(3, half, [0.0, 1.0])
    return {
        "number": partial(Kind, 0, half, half),
        "number half": partial(Kind, 2.5, half, half),
        "number large": partial(Kind, 10**15 + 1, half, half),
        "probs": partial(Kind, 3, [0.5, 0.6], half),
        "probs 0": partial(Kind, 3, [1.0, 0.0], half),
        "probs nan": partial(Kind, 3, [math.nan, 1.0], half),
        "probs of two axes": partial(Kind, 3, [half], half),
        "values": partial(Kind, 3, half, [1.0, 2.0, 3.0]),
        "values nan": partial(Kind, 3, half, [math.nan, 1.0]),
        "values large": partial(Kind, 3, half, [1e41, 1.0]),
        "values deep": partial(Kind, 3, half, np.ones((2, 1, 1, 1))),
        "values empty": partial(Kind, 3, half, np.ones((2, 0))),
        "spread": partial(Kind, 3, half, half, -0.5),
        "spread of one": partial(Kind, 3, half, half, [0.1]),
        "spread deep": partial(Kind, 3, half, half, np.ones((2, 1, 1))),
        "each": partial(Kind, 3, half, half, each=1),
        "no kinds": partial(TokenRisk, []),
        "kinds": partial(TokenRisk, [3]),
        "kind": partial(TokenRisk, 3),
        "two each": partial(
            TokenRisk, [Kind(3, half, half, each=True), Kind(2, half, half, each=True)]
        ),
        "queries": partial(TokenRisk, good, 0.0, [0.5, 0.6]),
        "target and second": partial(TokenRisk, good, 1.0, second=np.eye(2)),
        "dimensions": partial(TokenRisk, [good, Kind(3, half, np.ones((2, 2)))]),
        "target": partial(TokenRisk, good, [1.0, 2.0]),
        "target of queries": partial(TokenRisk, good, [[1.0, 2.0]]),
        "values of queries": partial(
            TokenRisk, Kind(3, half, np.ones((2, 1, 3))), 0.0, half
        ),
        "spread of queries": partial(
            TokenRisk, Kind(3, half, half, np.ones((2, 3))), 0.0, half
        ),
        "second": partial(TokenRisk, good, second=np.eye(3)),
        "second nan": partial(TokenRisk, good, second=[[math.nan, 0], [0, 1]]),
        "second skew": partial(TokenRisk, good, second=[[1.0, 0.5], [0.4, 1.0]]),
        "second negative": partial(TokenRisk, good, second=[[1.0, 2.0], [2.0, 1.0]]),
        "params": partial(TokenRisk(good).loss, [1.0]),
        "attention": partial(TokenRisk(good).attention, [math.nan, 0.0]),
    }


def rules() -> Asked:
    """Quadrature over the values of s, softmax and draws."""
    for step in (0.1, 0.2, 0.4, 0.6):
        yield f"error of the rule {step}", partial(rule_error, step)
    log_w = np.array([[0.0, -900.0, -np.inf], [-2.0, 0.0, -1.0], [-1000.0, -30.0, 0.0]])
    yield "capped", partial(capped, log_w)
    yield "capped at 20", partial(capped, log_w, 20.0)
    for counts in (
        [TokenCount(5)],
        [TokenCount(5, slice(0, 2)), TokenCount(9, slice(2, 3), True)],
        [TokenCount(1e12)],
    ):
        yield (
            f"trapezoid {[int(count.number) for count in counts]}",
            lambda counts=counts: trapezoid(capped(log_w), counts, 0.3),
        )
    mean = np.array([0.01, 0.5, 0.999999])
    for count in (
        TokenCount(1),
        TokenCount(2),
        TokenCount(5),
        TokenCount(13, each=True),
        TokenCount(1, each=True),
        TokenCount(10**6),
    ):
        yield (
            f"weights {int(count.number)} {count.each}",
            partial(count.derivatives, mean, np.log(mean), 3, 0.7),
        )
    yield (
        "balanced",
        lambda: balanced(np.array([[0.3, -0.1, 0.5]]), np.array([[-0.2, 0.1, -0.4]])),
    )
    yield (
        "softmax",
        partial(softmax, np.array([[1.0, 2.0, -np.inf], [800.0, 799.0, -900.0]])),
    )
    yield (
        "chosen",
        partial(chosen, np.array([0.0, 0.2, 0.5, 0.99]), np.cumsum([0.2, 0.3, 0.5])),
    )
    yield (
        "poisson",
        lambda: [
            log_poisson([0, 1, 7, 15, 16, 400], m) for m in (0.0, 1e-3, 2.5, 390.0)
        ],
    )
    for size in (0.0, 0.1, 0.125, 0.13, 1.0, 5.0):
        yield f"reach of {size}", partial(reach_of, size)
    yield "normal", partial(normal, 0.5, 4.0)
    for d, N, largest in ((1, 5, 0.5), (3, 1, 2.0), (6, 1000, 1.0)):
        yield (
            f"lengths {d} {N} {largest}",
            lambda d=d, N=N, largest=largest: [
                [weight, r, X[[0, -1]], len(X), probs[[0, len(X) // 2]]]
                for weight, r, X, probs in gaussian_queries(d, N, largest, 0.4)
            ],
        )
    q = np.array([[0.2, 0.0, 1.0], [0.8, 1.0, 0.0]])
    truth = np.array([[0.25, 0.0, 0.9], [0.75, 1.0, 0.1]])
    for loss in ("log", "square"):
        with np.errstate(divide="ignore"):
            yield f"excess of {loss}", partial(excess_loss, loss, np.log(q), q, truth)


# ---- heads


def heads() -> Asked:
    found = _kinds()
    risks = {
        "two heads": HeadsRisk(found["one kind"], 2),
        "three heads, queries": HeadsRisk(found["queries"], 3),
        "two kinds": HeadsRisk(found["two kinds, each"], 2),
        "one head": HeadsRisk(found["one kind"], 1),
    }
    for name, risk in risks.items():
        at = _at(risk)
        yield name, partial(of_risk, risk, at)
        yield f"{name}, bent", Call(partial(bent, risk, at), 1e-6, 1e-12)
        yield f"{name}, moments", partial(risk.quadratic, at[:, 1:])
        yield f"{name}, best", Call(partial(risk.best_output, at[:, 1:]), 1e-6)
        yield f"{name}, alike", Call(partial(risk.best_output, 0.0 * at[:, 1:]), 1e-6)
    yield "second moments", lambda: HeadsRisk(found["second moments"], 2)
    for tokens, number in (
        (3, 2),
        (found["one kind"], 0),
        (found["one kind"], 65),
        (found["one kind"], 1.5),
    ):
        yield (
            f"wrong: {type(tokens).__name__} {number}",
            lambda tokens=tokens, number=number: HeadsRisk(tokens, number).heads,
        )
    yield (
        "least output",
        partial(
            least_output, np.array([[2.0, 0.5], [0.5, 1.0]]), np.array([0.3, -0.4])
        ),
    )
    yield (
        "least output, singular",
        partial(least_output, np.ones((2, 2)), np.array([0.3, 0.3])),
    )
    tokens = found["one kind"]
    pair = np.array([0.5, -0.2, 1.0]), np.array([-0.4, 0.1, 0.3])
    for step in (0.22, 0.5):
        yield (
            f"product, {step}",
            lambda step=step: product(
                *pair,
                tokens.probs,
                tokens.errors[0],
                tokens.own[:, 0],
                tokens.counts,
                step,
            ),
        )
    two = GaussianHeadsRisk(2, 4, 0.3, np.array([0.4, -0.5, 0.1, -0.08]))
    yield (
        "gaussian, two",
        Call(lambda: [two.evaluate(two.start), two.observe(two.start)], 1e-7),
    )
    one = GaussianHeadsRisk(3, 5, 0.1, np.array([0.4, 0.1]))
    yield (
        "gaussian, one",
        Call(
            lambda: [one.evaluate(np.array([0.5, -0.12])), one.observe(one.start)], 1e-7
        ),
    )
    yield "gaussian, best", Call(lambda: [one.best, one.floor()], 1e-3)
    yield "gaussian, eliminated", Call(partial(one.eliminated, np.array([0.2])), 1e-6)
    for name, risk in (("one", one), ("two", two)):
        yield (
            f"gaussian, {name}, sampled",
            partial(_sample, risk.sampled(5, 3), _at(risk, 3, 0.4)),
        )
    three = GaussianHeadsRisk(2, 6, 0.3, np.array([0.4, -0.5, 0.1, 0.6, -0.2, 0.3]))
    yield (
        "gaussian, three",
        lambda: [three.best, three.floor(), three.observe(three.start)],
    )


# ---- spheres


def spheres() -> Asked:
    kernels: dict[str, Callable[[Array], Array]] = {
        "linear": lambda c: 1.7 * c,
        "cosine": lambda c: np.exp(1.4 * (c - 1.0)),
        "arccosine": lambda c: (
            np.sqrt(1.0 - np.minimum(c * c, 1.0))
            + (math.pi - np.arccos(np.clip(c, -1, 1))) * c
        ),
    }
    for name, kernel in kernels.items():
        for d, N, noise, nodes in ((3, 7, 0.4, 20), (5, 100, 0.0, 31)):
            c, risk = sphere_tokens(kernel, d, N, noise, nodes)
            yield (
                f"{name} {d} {N} {noise} {nodes}",
                lambda c=c, risk=risk: [
                    c,
                    risk.probs,
                    risk.own,
                    risk.evaluate(0.7 * c),
                ],
            )
        risk = SphereRisk.of_kernel(kernel, 4, 12, 0.6, 0.3)
        yield f"{name}, risk", Call(partial(of_risk, risk, [1.3]), 1e-7)
        yield (
            f"{name}, best",
            Call(lambda risk=risk: [risk.best, risk.least, risk.floor()], 1e-7),
        )
        yield f"{name}, error", Call(lambda risk=risk: risk.error, 0.5, 1e-13)
    yield (
        "one token",
        Call(
            lambda: of_risk(SphereRisk.of_kernel(kernels["linear"], 3, 1, 0.2), [0.4]),
            atol=1e-14,
        ),
    )
    yield (
        "beyond the nodes",
        lambda: SphereRisk.of_kernel(kernels["linear"], 2, 10**14, 0.0),
    )


# ---- counts


def counts() -> Asked:
    independent = IndependentCounts(
        5,
        [[0.2, 0.5, 0.3], [0.6, 0.3, 0.1]],
        [[0.9, 0.1], [0.3, 0.7], [0.5, 0.5]],
        [[0.7, 0.3], [0.2, 0.8]],
        [0.35, 0.65],
    )
    laws: dict[str, Any] = {
        "independent": independent,
        "one task": IndependentCounts(3, [0.2, 0.8], np.eye(2), [0.4, 0.6]),
        "rare": IndependentCounts(60, [0.2, 0.8], np.eye(2), [0.4, 0.6], rare=1e-4),
        "fair labels": fair_labels(5, 4),
        "fair labels, two": fair_labels(2, 3, rare=1e-6),
        "fair labels, many": fair_labels(4001, 2, 1e-9),
        "two states": TwoStateCounts(6),
        "prior": TwoStateCounts(5, [[0.5, 2.0], [3.0, 0.7]], start=0.3),
        "number": TwoStateCounts(4, 2.5, first=True),
        "chain": TwoStateCounts(5, transitions=TWO[0], start="stationary"),
        "chains": TwoStateCounts(
            5, transitions=TWO, probs=[0.3, 0.7], start=0.8, first=True
        ),
        "chains, stationary": TwoStateCounts(4, transitions=TWO, start="stationary"),
        "sure start": TwoStateCounts(
            4, transitions=[[1.0, 0.0], [0.4, 0.6]], start=0.0
        ),
        "shortest": TwoStateCounts(2),
        "large prior": TwoStateCounts(5, 1e9),
    }
    for name, law in laws.items():
        yield (
            name,
            lambda law=law: [
                law.table._asdict(),
                law.table.probability.sum(),
                law.values,
                law.queries,
            ],
        )
        yield (
            f"{name}, mean",
            lambda law=law: [
                law.table.mean(law.table.counts),
                law.table.mean(law.table.counts[:, 0] ** 2),
            ],
        )
        yield f"{name}, drawn", lambda law=law: law.draw(np.random.default_rng(3), 6)
        for loss in ("log", "square"):
            yield (
                f"{name}, {loss}",
                lambda law=law, loss=loss: mean_loss(
                    law.table, 0.3 * law.table.truth + 0.35, loss
                ),
            )
    yield (
        "certain",
        lambda: mean_loss(laws["one task"].table, np.tile([1.0, 0.0], (4, 1)), "log"),
    )
    yield "Bayes", lambda: mean_loss(laws["prior"].table, laws["prior"].table.truth)
    for name, made in _wrong_counts(laws).items():
        yield f"wrong: {name}", made


def _wrong_counts(laws: dict[str, Any]) -> dict[str, Callable[[], Any]]:
    half, eye, table = [0.5, 0.5], np.eye(2), laws["shortest"].table
    return {
        "N": partial(IndependentCounts, 0, half, eye, half),
        "probs": partial(IndependentCounts, 3, [0.5, 0.6], eye, half),
        "probs negative": partial(IndependentCounts, 3, [1.5, -0.5], eye, half),
        "values": partial(IndependentCounts, 3, half, np.eye(3), half),
        "values flat": partial(IndependentCounts, 3, half, half, half),
        "targets": partial(IndependentCounts, 3, half, eye, [half] * 3),
        "labels": partial(IndependentCounts, 3, half, eye, [1.0]),
        "weights": partial(IndependentCounts, 3, [half, half], eye, half, [1.0]),
        "rare": partial(IndependentCounts, 3, half, eye, half, rare=1.0),
        "weights sum": partial(
            IndependentCounts, 3, [half, half], eye, half, [0.5, 0.6]
        ),
        "large": lambda: (
            IndependentCounts(10**9, [0.1] * 10, np.eye(10), [0.1] * 10).table
        ),
        "features": partial(fair_labels, 1, 3),
        "features half": partial(fair_labels, 2.5, 3),
        "fair rare": partial(fair_labels, 4, 3, 0.0),
        "fair N": partial(fair_labels, 4, 0),
        "T": partial(TwoStateCounts, 1),
        "T large": partial(TwoStateCounts, 10**9),
        "concentration": partial(TwoStateCounts, 3, 0.0),
        "concentrations": partial(TwoStateCounts, 3, [1.0, 2.0]),
        "both": partial(TwoStateCounts, 3, 1.0, transitions=eye),
        "probs alone": partial(TwoStateCounts, 3, probs=half),
        "transitions": partial(TwoStateCounts, 3, transitions=np.eye(3)),
        "rows": partial(TwoStateCounts, 3, transitions=[[0.5, 0.6], half]),
        "chains probs": partial(TwoStateCounts, 3, transitions=TWO, probs=[1.0]),
        "start": partial(TwoStateCounts, 3, start=1.5),
        "start word": partial(TwoStateCounts, 3, start="stationary"),
        "start other": partial(TwoStateCounts, 3, transitions=TWO, start="uniform"),
        "still": partial(TwoStateCounts, 3, transitions=eye, start="stationary"),
        "first": partial(TwoStateCounts, 3, first=1),
        "loss": partial(mean_loss, table, table.truth, "logistic"),
        "table": partial(mean_loss, 3, table.truth),
        "predicted": partial(mean_loss, table, half),
        "predicted sum": partial(mean_loss, table, 0.9 * table.truth),
        "law": partial(CountRisk, 3),
        "objective": partial(CountRisk, laws["shortest"], "hinge"),
        "sink": partial(CountRisk, laws["shortest"], "log", [0.5, 0.6]),
        "sink of three": partial(CountRisk, laws["shortest"], "log", [0.2, 0.3, 0.5]),
        "no sink": partial(CountRisk, laws["two states"], "log"),
        "scale": partial(CountRisk, laws["shortest"], "square", scale=0.0),
        "half a sink": partial(CountRisk, laws["two states"], "log", [1.0, 0.0]),
    }


def counted() -> Asked:
    independent = IndependentCounts(
        5,
        [[0.2, 0.5, 0.3], [0.6, 0.3, 0.1]],
        [[0.9, 0.1], [0.3, 0.7], [0.5, 0.5]],
        [[0.7, 0.3], [0.2, 0.8]],
        [0.35, 0.65],
    )
    chains = TwoStateCounts(6, transitions=TWO, probs=[0.3, 0.7], start=0.8, first=True)
    for name, law in (
        ("independent", independent),
        ("chains", chains),
        ("prior", TwoStateCounts(5, [[0.5, 2.0], [3.0, 0.7]])),
    ):
        for objective in ("log", "square", "logistic"):
            for sink in (None, [0.3, 0.7]):
                if name == "independent" or sink is not None or objective != "log":
                    risk, word = (
                        CountRisk(law, objective, sink, 1.7),
                        f"{name}, {objective}, {'no ' if sink is None else ''}sink",
                    )
                    at = _at(risk)
                    yield word, partial(of_risk, risk, at)
                    yield (
                        f"{word}, extremes",
                        Call(partial(_extremes, risk, 0.0, 30.0, 900.0), atol=1e-14),
                    )
                    yield f"{word}, sampled", partial(_sample, risk.sampled(5, 3), at)
    risk = CountRisk(chains, "log", [0.3, 0.7])
    yield "bent", Call(partial(bent, risk, _at(risk)), 1e-6)
    yield (
        "many rows",
        lambda: CountRisk(TwoStateCounts(80), "square").loss(
            np.array([[0.3, 0.1], [0.5, -0.2], [0.0, 1.0], [0.2, 0.4]])
        ),
    )
    for batch, seed in ((0, 0), (1, -1), (10**13, 0)):
        yield f"sampled {batch} {seed}", partial(risk.sampled, batch, seed)


# ---- many labels


def labels() -> Asked:
    for top, beta, rest, tokens, P, S, density in (
        ([1.0, -0.5], 0.7, 0.5, [2, 5], 3, 0, None),
        ([1.0, 2.0, 0.3], -0.4, -math.inf, [0, 4, 4], 2, 3, None),
        ([30.0], 2.0, 0.0, [6], 1, 0, None),
        ([0.0, 1.0], 0.9, 1.0, [3, 6], 4, 2, 0.8),
        ([2.0], 0.5, 0.3, [0], 0, 0, None),
        ([-400.0, 300.0], 1.0, 5.0, [3, 3], 5, 1, None),
        ([0.7], 0.3, -2.0, [7], 0, 4, None),
        ([5.0], 0.02, 3.0, [400], 1000, 0, None),
    ):
        name = f"{top} {beta} {rest} {tokens} {P} {S} {density}"
        yield (
            name,
            lambda a=(top, beta, rest, tokens, P, S), density=density: mean_log_loss(
                *a, density=density
            ),
        )
    for name, given in {
        "top": ([math.nan], 1.0, 0.0, [1], 2),
        "top large": ([1e14], 1.0, 0.0, [1], 2),
        "top empty": ([], 1.0, 0.0, [], 2),
        "tokens": ([1.0], 1.0, 0.0, [1.5], 2),
        "tokens negative": ([1.0], 1.0, 0.0, [-1], 2),
        "tokens of two": ([1.0], 1.0, 0.0, [1, 2], 2),
        "beta": ([1.0], 1e13, 0.0, [2], 2),
        "beta nan": ([1.0], math.nan, 0.0, [2], 2),
        "rest": ([1.0], 1.0, math.inf, [2], 2),
        "rest large": ([1.0], 1.0, 1e14, [2], 2),
        "labels": ([1.0], 1.0, 0.0, [2], -1),
        "silent": ([1.0], 1.0, 0.0, [2], 1, -1),
        "no labels": ([1.0], 1.0, 0.0, [2], 0),
        "many tokens": ([1.0], 1.0, 0.0, [10**12], 2),
    }.items():
        yield f"wrong: {name}", partial(mean_log_loss, *given)
    for density in (0.0, -1.0, "some"):
        yield (
            f"wrong: density {density}",
            partial(mean_log_loss, [1.0], 1.0, 0.0, [2], 2, density=density),
        )


# ---- chains


def chains() -> Asked:
    laws = {
        "one": Chains(TWO[0]),
        "two": Chains(TWO, 2, probs=[0.3, 0.7]),
        "window of three": Chains(TWO, 3),
        "three symbols": Chains(THREE, 2),
        "start": Chains(TWO, 2, start=[0.2, 0.8]),
        "starts": Chains(TWO, 1, start=[[0.2, 0.8], [0.5, 0.5]]),
        "start of windows": Chains(TWO[1], 2, start=[0.1, 0.2, 0.3, 0.4]),
        "periodic": Chains([[0.0, 1.0], [1.0, 0.0]]),
        "reducible": Chains([[1.0, 0.0], [0.5, 0.5]], start=[0.5, 0.5]),
        "steep": Chains([[1.0 - 1e-12, 1e-12], [0.5, 0.5]]),
    }
    for name, law in laws.items():
        yield (
            name,
            lambda law=law: [
                law.transitions,
                law.symbols,
                law.window,
                law.probs,
                law.newest,
                law.start,
            ],
        )
        yield (
            f"{name}, ends",
            lambda law=law: [
                [law.last(T), law.irreducible(T)] for T in (law.window, 7)
            ],
        )
        yield f"{name}, drawn", lambda law=law: law.draw(np.random.default_rng(3), 5, 4)
    for name, made in {
        "empty": partial(Chains, np.zeros((0, 2, 2))),
        "one symbol": partial(Chains, [[1.0]]),
        "not square": partial(Chains, [[0.5, 0.5]]),
        "rows": partial(Chains, [[0.5, 0.6], [0.5, 0.5]]),
        "negative": partial(Chains, [[1.5, -0.5], [0.5, 0.5]]),
        "flat": partial(Chains, [0.5, 0.5]),
        "window": partial(Chains, TWO, 0),
        "windows": partial(Chains, TWO, 60),
        "probs": partial(Chains, TWO, probs=[1.0]),
        "probs 0": partial(Chains, TWO, probs=[1.0, 0.0]),
        "start": partial(Chains, TWO, 2, start=[0.2, 0.3, 0.5]),
        "start sum": partial(Chains, TWO, start=[0.2, 0.7]),
        "reducible": partial(Chains, [[1.0, 0.0], [0.5, 0.5]]),
        "apart": partial(Chains, np.eye(3)),
        "odds": partial(Chains, [[0.0, 1.0], [1e-320, 1.0]]),
        "other order": partial(
            Chains, [[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]
        ),
    }.items():
        yield f"wrong: {name}", made
    yield from _of_chains(laws)


def _of_chains(laws: dict[str, Chains]) -> Asked:
    rng = np.random.default_rng(9)
    risks = {
        "one": ChainRisk(laws["one"], 5),
        "two": ChainRisk(laws["two"], 6),
        "three symbols": ChainRisk(laws["three symbols"], 4),
        "places": ChainRisk(laws["two"], 6, rng.normal(size=(3, 4, 2))),
        "start": ChainRisk(laws["start of windows"], 5, rng.normal(size=(4, 2))),
        "sink": ChainRisk(laws["two"], 6, sink=[0.3, 0.7]),
        "sink and places": ChainRisk(
            laws["three symbols"], 3, rng.normal(size=(4, 9, 3)), sink=[0.2, 0.3, 0.5]
        ),
        "shortest": ChainRisk(laws["window of three"], 3),
        "coarse": ChainRisk(laws["two"], 6, step=0.6),
        "reducible": ChainRisk(laws["reducible"], 4),
    }
    for name, risk in risks.items():
        at = _at(risk)
        yield f"risk {name}", partial(_risk_of_chains, risk, at)
        yield f"risk {name}, attention", partial(risk.attention, at)
        yield (
            f"risk {name}, error",
            Call(
                lambda risk=risk, at=at: [risk.error(at), risk.error(30.0 * at)], 1e-3
            ),
        )
        yield (
            f"risk {name}, extremes",
            Call(partial(_extremes, risk, 0.0, 20.0, 1000.0), atol=1e-14),
        )
        yield f"risk {name}, sampled", partial(_sample, risk.sampled(5, 3), at)
    yield "bent", Call(partial(bent, risks["places"], _at(risks["places"])), 1e-6)
    two, three = laws["two"], np.zeros((3, 4, 2))
    for name, made in {
        "chains": partial(ChainRisk, 3, 5),
        "length": partial(ChainRisk, two, 1),
        "long": partial(ChainRisk, two, 10**12),
        "step": partial(ChainRisk, two, 5, step=0.7),
        "step 0": partial(ChainRisk, two, 5, step=0.0),
        "sink": partial(ChainRisk, two, 5, sink=[0.5, 0.6]),
        "sink of three": partial(ChainRisk, two, 5, sink=[0.2, 0.3, 0.5]),
        "scores": partial(ChainRisk, two, 5, np.zeros((2, 2))),
        "places": partial(ChainRisk, two, 2, three),
        "scores with a sink": partial(
            ChainRisk, two, 5, np.zeros((4, 2)), sink=[0.5, 0.5]
        ),
        "one place with a sink": partial(ChainRisk, two, 5, three[:1], sink=[0.5, 0.5]),
        "scores nan": partial(ChainRisk, two, 5, three * math.nan),
        "params": partial(ChainRisk(two, 5).loss, np.zeros((4, 3))),
        "batch": partial(ChainRisk(two, 5).sampled, 0, 0),
        "seed": partial(ChainRisk(two, 5).sampled, 1, -1),
    }.items():
        yield f"wrong risk: {name}", made


def _risk_of_chains(risk: ChainRisk, at: Array) -> Any:
    found = of_risk(risk, at) if at.ndim == 2 else of_risk(_Whole(risk), at)
    return found | {"length": risk.length, "step": risk.step, "sink": risk.sink}


class _Whole(icl.Risk):
    """A risk whose columns are not asked for."""

    def __init__(self, risk: icl.Risk) -> None:
        self._risk = risk

    column_gradients = None

    def __getattribute__(self, name: str) -> Any:
        own = ("_risk", "column_gradients", "__class__")
        return (
            object.__getattribute__(self, name)
            if name in own
            else getattr(object.__getattribute__(self, "_risk"), name)
        )

    initial = np.zeros(1)

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        return self._risk.evaluate(params, step)


# ---- whole transformers


def transformers() -> Asked:
    two, three = Chains(TWO, 2, probs=[0.3, 0.7]), Chains(THREE, 2)
    risks = {
        "reduction": TwoLayerTransformer(two, 6, 5, 3, [0.3, -0.2, 0.7]),
        "all": TwoLayerTransformer(two, 6, 5, 3, [0.3, -0.2, 0.7], "all"),
        "log": TwoLayerTransformer(two, 6, 5, 3, [0.3, -0.2, 0.7], "all", "log", 0.4),
        "sink": TwoLayerTransformer(
            three, 5, 4, 3, [0.3, -0.2, 0.7], "reduction", "square", -0.4
        ),
        "log, reduction": TwoLayerTransformer(
            three, 5, 4, 3, [0.3, -0.2, 0.7], "reduction", "log", 0.4
        ),
    }
    for name, risk in risks.items():
        at = risk.initial + 0.3 * np.random.default_rng(2).normal(
            size=risk.initial.shape
        )
        if name == "log":  # which keeps the values
            at[-(2**3) :] = risk.initial[-(2**3) :]
        yield name, partial(_sample, risk, at)
        yield (
            f"{name}, matrices",
            lambda risk=risk, at=at: [
                risk.matrices(at)._asdict(),
                risk.outside(at),
                risk.outside(risk.initial),
            ],
        )
    for name, changes in {
        "chains": {"chains": 3},
        "length": {"length": 0},
        "batch": {"batch": 0},
        "seed": {"seed": -1},
        "start": {"start": [0.1, 0.2]},
        "start nan": {"start": [math.nan, 0.0, 0.0]},
        "trained": {"trained": "some"},
        "objective": {"objective": "hinge"},
        "log": {"objective": "log"},
        "sink": {"sink": math.inf},
        "large": {"batch": 10**12},
    }.items():
        given: dict[str, Any] = {
            "chains": two,
            "length": 6,
            "batch": 5,
            "seed": 3,
            "start": [0.3, -0.2, 0.7],
        }
        yield (
            f"wrong: {name}",
            lambda given=given | changes: TwoLayerTransformer(**given).batch,
        )
    yield "a step", lambda: risks["all"].evaluate(risks["all"].initial, -1)
