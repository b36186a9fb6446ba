"""In-context recall: counts, tasks, risks, bounds, numbers of sentences, trainers, runs, and what they refuse."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

import icl_theory as icl
from icl_theory.papers.recall import (
    bounds,
    divergence,
    samples,
    softmax,
    training,
    weights,
)
from icl_theory.papers.recall.coordinates import reparameterised
from icl_theory.papers.recall.counts import Counts
from icl_theory.papers.recall.family import Recall
from icl_theory.papers.recall.population import RecallRisk
from icl_theory.papers.recall.sampled import TransformerRisk
from icl_theory.papers.recall.simulate import simulate
from icl_theory.papers.recall.task import (
    RecallTask,
    Sentences,
    check_sentences,
    entropy,
)
from icl_theory.papers.recall.training import Training
from tests.answers import Call
from tests.answers._runs import Asked, measured, refused, run_calls, seen

MIXED = [[0.0, 0.0, 0.0], [0.2, 0.1, 0.0], [0.3, 0.0, 0.4]]


def of_counts(law: Counts) -> dict[str, Any]:
    return {
        "pmf": law.pmf,
        "marginal": law.marginal,
        "minimum": law.minimum,
        "longest": law.longest,
        "mean": law.mean,
        "noise": law.noise_mean,
        "same": [law.same(Counts(law.pmf)), law.same(Counts.fixed(1))],
    }


def counts() -> Asked:
    for name, make in {
        "given": partial(Counts, MIXED),
        "one column": partial(Counts, [0.0, 0.25, 0.75]),
        "trailing zeros": partial(Counts, [[0, 0, 0], [0, 1, 0], [0, 0, 0]]),
        "nearly 1": partial(Counts, [0.0, 0.5, 0.5000009]),
        "fixed": partial(Counts.fixed, 3),
        "fixed, noise": partial(Counts.fixed, 2, 1),
        "geometric": partial(Counts.geometric, 2.5, 6),
        "geometric, whole": partial(Counts.geometric, 1.7),
        "geometric, one": partial(Counts.geometric, 1),
        "sentence": partial(Counts.sentence, 9),
        "sentence, noise": partial(Counts.sentence, 10, 0.4, 0.2),
        "sentence, least": partial(Counts.sentence, 3, 0.1),
        "sentence, long": partial(Counts.sentence, 300, 0.05, 0.1),
    }.items():
        yield name, lambda make=make: of_counts(make())
    yield from refused(
        {
            "words": partial(Counts, "ab"),
            "ragged": partial(Counts, [[0.0], [0.5, 0.5]]),
            "empty": partial(Counts, []),
            "negative": partial(Counts, [0.0, 1.5, -0.5]),
            "not finite": partial(Counts, [0.0, math.nan]),
            "sum": partial(Counts, [0.0, 0.5]),
            "sum, just": partial(Counts, [0.0, 1.0000011]),
            "zero": partial(Counts, [0.25, 0.75]),
            "fixed": partial(Counts.fixed, 0),
            "fixed, large": partial(Counts.fixed, 4002),
            "fixed, noise": partial(Counts.fixed, 1, -1),
            "geometric": partial(Counts.geometric, 0.9),
            "geometric, large": partial(Counts.geometric, 40.1),
            "geometric, most": partial(Counts.geometric, 2.0, 0),
            "sentence": partial(Counts.sentence, 2),
            "sentence, long": partial(Counts.sentence, 4002),
            "sentence, density": partial(Counts.sentence, 9, 1.0),
            "sentence, noise": partial(Counts.sentence, 9, 0.5, 1.0),
            "same": lambda: Counts.fixed(1).same(3),
        }
    )
    logits = np.array([-800.0, -3.0, -1.386, 0.0, 2.0, 700.0])
    for alpha in (0.0, 0.2, 0.75, 1.0):
        yield f"divergence {alpha}", partial(divergence.divergence, alpha, logits)
    some = np.array([[0.3, -1.0, 2.0], [800.0, -5.0, 1.0]])
    yield "cross entropy", partial(divergence.cross_entropy, some, np.array([2, 0]))
    yield "entropy", lambda: [entropy(alpha) for alpha in (0.0, 0.1, 0.5, 1.0)]


TASKS: dict[str, RecallTask] = {
    "plain": RecallTask(9, 2, 3, H=8),
    "noise": RecallTask(9, 2, 3, alpha=0.2, H=9),
    "unequal": RecallTask(
        9, 3, 2, alpha=0.1, probs=[0.5, 0.3, 0.2], H=11, counts=Counts(MIXED)
    ),
    "laws": RecallTask(
        8, 2, 3, H=12, counts=[Counts.fixed(2), Counts.geometric(2.0, 3)]
    ),
    "planted": RecallTask(9, 3, 2, H=10, law="planted"),
    "planted, noise": RecallTask(9, 1, 2, alpha=0.3, H=10, law="planted"),
    "words": RecallTask(9, [4, 1], [0, 7, 8], alpha=0.2, H=8, noise_word=5),
    "alike": RecallTask(10, 4, 3, H=7, counts=[0.0, 0.5, 0.5]),
    "no others": RecallTask(5, 2, 2, alpha=0.2, H=8),
}


def tasks() -> Asked:
    for name, task in TASKS.items():
        yield (
            name,
            lambda task=task: {
                "repr": repr(task),
                "triggers": task.triggers,
                "outputs": task.outputs,
                "probs": task.probs,
                "noise word": task.noise_word,
                "numbers": task.numbers,
                "uniform": task.uniform,
                "alike": task.alike,
                "bayes": task.bayes_risk,
                "gamma": task.best_gamma,
                "passing": task.passing,
                "unseen": task.unseen,
                "Q": task.Q,
                "means": [law.mean for law in task.counts],
            },
        )
        yield (
            f"{name}: parts",
            lambda task=task: (
                task.parts and {**task.parts, "counts": str(task.parts["counts"])[:6]}
            ),
        )
        yield (
            f"{name}: sentences",
            lambda task=task: task.sentences(np.random.default_rng(4), 5),
        )
        yield (
            f"{name}: predict",
            lambda task=task: task.predict(
                task.sentences(np.random.default_rng(5), 3).tokens
            ),
        )
        yield f"{name}: gates", lambda task=task: weights.gates(task, "projection", 0.7)
        yield (
            f"{name}: gates, identity",
            lambda task=task: weights.gates(task, "identity", 0.7),
        )
    yield (
        "other outputs",
        lambda: TASKS["plain"].sentences(np.random.default_rng(4), 4, [6, 7]),
    )
    draws = {
        name: TASKS[name].sentences(np.random.default_rng(6), 400) for name in TASKS
    }
    yield (
        "many",
        lambda: {
            name: [np.bincount(x, minlength=12) for x in some[1:]]
            for name, some in draws.items()
        },
    )
    yield (
        "estimated gamma",
        lambda: [
            weights.estimated_gamma(TASKS[name], data)
            for name, data in (
                ("plain", None),
                ("noise", None),
                ("noise", draws["noise"]),
                ("noise", TASKS["noise"].sentences(np.random.default_rng(1), 2)),
            )
        ],
    )
    base: dict[str, Any] = {"V": 9, "triggers": 2, "outputs": 3, "H": 8}
    yield from refused(
        {
            name: lambda given=given: RecallTask(**{**base, **given})
            for name, given in {
                "law": {"law": "random"},
                "V": {"V": 2},
                "V large": {"V": 10**9 + 1},
                "V small": {"V": 5},
                "noise word": {"noise_word": 9},
                "triggers": {"triggers": 0},
                "triggers, many": {"triggers": 9},
                "triggers, words": {"triggers": "ab"},
                "triggers twice": {"triggers": [1, 1]},
                "no triggers": {"triggers": []},
                "trigger beyond": {"triggers": [9]},
                "triggers, flag": {"triggers": True},
                "noise in triggers": {"triggers": [8, 1]},
                "noise in outputs": {"triggers": [1], "outputs": [8]},
                "outputs among triggers": {"triggers": [1, 2], "outputs": [2, 3]},
                "outputs": {"outputs": 7},
                "outputs just": {"outputs": 6},
                "alpha": {"alpha": 1.0},
                "alpha negative": {"alpha": -0.1},
                "probs": {"probs": [0.5, 0.4]},
                "H": {"H": 2},
                "H and counts": {"counts": Counts.fixed(4)},
                "H and counts, just": {"counts": Counts.fixed(3)},
                "planted, noise": {"law": "planted", "alpha": 0.1},
                "counts": {"counts": [0.5, 0.5]},
                "counts, laws": {"counts": [Counts.fixed(1)] * 3},
                "counts, mixed": {"counts": [Counts.fixed(1), 3]},
                "H long": {"H": 4003},
            }.items()
        }
    )
    plain, rng = TASKS["plain"], np.random.default_rng(0)
    good = plain.sentences(rng, 2)
    wrong = good.tokens.copy()
    wrong[1] = 3
    yield from refused(
        {
            "size": lambda: plain.sentences(rng, 0),
            "size large": lambda: plain.sentences(rng, 10**12),
            "rng": lambda: plain.sentences(3, 1),
            "drawn outputs": lambda: plain.sentences(rng, 1, [0]),
            "tokens": lambda: plain.predict(good.tokens[:, 1:]),
            "tokens, floats": lambda: plain.predict(good.tokens.astype(float)),
            "tokens beyond": lambda: plain.predict(good.tokens + 9),
            "no sentence": lambda: plain.predict(wrong),
            "data": lambda: check_sentences(good.tokens, plain),
            "data, words": lambda: check_sentences(
                good._replace(tokens=good.tokens + 5), plain
            ),
            "data, answers": lambda: check_sentences(
                good._replace(answer=good.answer - 9), plain
            ),
            "data, outputs": lambda: check_sentences(
                good._replace(output=good.output + 9), plain
            ),
            "data, triggers": lambda: check_sentences(
                good._replace(trigger=good.trigger + 2), plain
            ),
        }
    )


RISKS: dict[str, Any] = {
    "linear": ("plain", {}),
    "linear, noise": ("noise", {}),
    "linear, gamma": ("unequal", {"gamma": -1.0}),
    "linear, laws": ("laws", {}),
    "relu": ("laws", {"attention": "relu"}),
    "relu, noise": ("unequal", {"attention": "relu"}),
    "tied": ("alike", {"tied": True}),
    "limit": ("plain", {"attention": "softmax-limit"}),
    "limit, noise": ("unequal", {"attention": "softmax-limit"}),
    "limit, held": ("noise", {"attention": "softmax-limit", "v": 2.0, "gamma": -1.0}),
    "limit, no others": ("no others", {"attention": "softmax-limit"}),
    "limit, tied": ("alike", {"attention": "softmax-limit", "tied": True}),
    "softmax": ("plain", {"attention": "softmax"}),
    "softmax, noise": ("unequal", {"attention": "softmax"}),
    "softmax, held": ("noise", {"attention": "softmax", "v": 3.0, "gamma": -1.5}),
    "softmax, tied": ("alike", {"attention": "softmax", "tied": True}),
    "softmax, identity": ("planted", {"attention": "softmax", "weights": "identity"}),
    "softmax, identity, noise": (
        "planted, noise",
        {"attention": "softmax", "weights": "identity"},
    ),
    "softmax, identity, kappa": (
        "planted, noise",
        {"attention": "softmax", "weights": "identity", "kappa": 0, "v": 1.0},
    ),
    "identity": ("planted", {"weights": "identity"}),
    "identity, kappa": (
        "planted, noise",
        {"weights": "identity", "kappa": 0, "gamma": -0.5},
    ),
    "relu, kappa": (
        "planted, noise",
        {"attention": "relu", "weights": "identity", "kappa": 0, "gamma": -0.5},
    ),
    "high gamma": ("noise", {"attention": "softmax-limit", "gamma": 1.0}),
}


def risks() -> Asked:
    for name, (task, given) in RISKS.items():
        risk = RecallRisk(TASKS[task], **given)
        size = risk.initial.size
        for where, params in (
            ("near", 0.8 * np.sin(1.0 + np.arange(size))),
            ("far", 6.0 + np.arange(float(size))),
        ):
            # Hessians are differences; a floor is searched for
            yield (
                f"{name}, {where}",
                Call(
                    lambda risk=risk, params=params: seen(risk, params, np.cos(params)),
                    rtol=1e-6,
                    atol=1e-9,
                ),
            )
            yield (
                f"{name}, {where}: excess",
                Call(
                    lambda risk=risk, params=params: [
                        risk.excess(params),
                        risk.loss(params),
                        risk.gradient(params),
                    ],
                    rtol=1e-7,
                ),
            )
        yield (
            f"{name}: facts",
            lambda risk=risk: [
                risk.noisy,
                risk.scaled,
                risk.strengths,
                risk.noise_rate,
                risk.split(0.1 + np.arange(float(risk.initial.size))),
                repr(risk.closed_form(0.5, "ngd"))[:40].split(" object")[0],
                risk.closed_form(0.5, "gd"),
            ],
        )
    task = TASKS["noise"]
    data = task.sentences(np.random.default_rng(3), 20)
    for name, given in {
        "linear": {},
        "relu": {"attention": "relu"},
        "limit": {"attention": "softmax-limit"},
        "gamma": {"gamma": -1.0},
    }.items():
        some = RecallRisk(task, data=data, **given)
        yield (
            f"data, {name}",
            Call(
                lambda some=some: [
                    seen(
                        some,
                        0.3 + 0.2 * np.arange(float(some.initial.size)),
                        some.initial + 1.0,
                    ),
                    some.noise_rate,
                    some.excess(some.initial),
                ],
                rtol=1e-6,
                atol=1e-9,
            ),
        )
    yield (
        "line",
        lambda: (
            RecallRisk(TASKS["alike"], tied=True)
            .closed_form(0.5, "ngd")
            .states(np.array([0, 3, 10**9]))
        ),
    )
    yield (
        "too large",
        lambda: RecallRisk(TASKS["plain"], "softmax").evaluate(
            np.array([1.0, 1.0, 1e14])
        ),
    )
    yield "cells", lambda: softmax.cells(TASKS["noise"], "projection", 1)
    yield (
        "cells, identity",
        lambda: softmax.cells(TASKS["planted, noise"], "identity", 1),
    )
    yield (
        "fillers",
        lambda: [
            softmax.fillers(TASKS[t], w)
            for t, w in (
                ("plain", "projection"),
                ("noise", "projection"),
                ("plain", "identity"),
                ("planted", "identity"),
            )
        ],
    )
    sentences = TASKS["plain"].sentences(np.random.default_rng(0), 2)
    yield from refused(
        {
            name: partial(RecallRisk, TASKS[task], **given)
            for name, (task, given) in {
                "attention": ("plain", {"attention": "hard"}),
                "weights": ("plain", {"weights": "both"}),
                "kappa": ("plain", {"kappa": 2}),
                "kappa 0": ("plain", {"kappa": 0}),
                "identity, noise": ("noise", {"weights": "identity"}),
                "identity, counts": (
                    "plain",
                    {"weights": "identity", "attention": "softmax-limit"},
                ),
                "limit, planted": ("planted", {"attention": "softmax-limit"}),
                "data, softmax": ("plain", {"attention": "softmax", "data": sentences}),
                "data, others": ("planted, noise", {"data": sentences}),
                "v": ("plain", {"v": 2.0}),
                "v word": ("plain", {"attention": "softmax", "v": "x"}),
                "tied": ("unequal", {"tied": True}),
                "tied, data": ("alike", {"tied": True, "data": sentences}),
                "tied, flag": ("alike", {"tied": 1}),
                "gamma": ("plain", {"gamma": 1.0}),
                "gamma infinite": ("noise", {"gamma": math.inf}),
            }.items()
        }
    )
    noisy = RecallTask(9, 2, 3, H=8, counts=Counts.fixed(1, 1))
    yield from refused(
        {
            "task": partial(RecallRisk, 3),
            "identity, noise bigrams": partial(RecallRisk, noisy, weights="identity"),
            "params": lambda: RecallRisk(TASKS["plain"]).split([1.0]),
        }
    )


def theory() -> Asked:
    for name, task in TASKS.items():
        yield (
            f"rates, {name}",
            lambda task=task: {
                "linear": bounds.decay_rate(task, 0.5),
                "relu": bounds.decay_rate(task, 0.7, "relu"),
                "softmax": [
                    bounds.decay_rate(task, 0.5, "softmax", w)
                    for w in ("projection", "identity")
                ],
                "softmax, held": bounds.decay_rate(task, 0.5, "softmax", v=2.0),
                "limit": bounds.decay_rate(task, 0.5, "softmax-limit"),
                "tail": [
                    bounds.plain_tail(task, 0.5, a)
                    for a in ("linear", "relu", "softmax", "softmax-limit")
                ],
                "missing": bounds.missing_loss(task, [[0, 1], [5, 100]]),
            },
        )
    for name in ("linear", "relu", "linear, noise", "tied", "linear, laws"):
        task, given = RISKS[name]
        risk = RecallRisk(TASKS[task], **given)
        yield (
            f"bound, {name}",
            lambda risk=risk: bounds.loss_bound(
                risk, 0.5 + np.arange(float(risk.initial.size))
            ),
        )
    yield (
        "stall",
        lambda: [
            bounds.stall(0.2, 0.5),
            bounds.stall(0.7, 1e150),
            bounds.cycle_excess(0.2, 0.5),
            bounds.cycle_excess(0.3, 5.0),
        ],
    )
    yield (
        "noise cost",
        lambda: [bounds.noise_cost(M, 0.2) for M in (1, 2, 30, 10**4, 10**7)],
    )
    yield (
        "noise cost, rare",
        lambda: [bounds.noise_cost(5, 1e-12), bounds.noise_cost(10**6, 0.999)],
    )
    plain = TASKS["plain"]
    yield from refused(
        {
            "task": partial(bounds.decay_rate, 3, 0.5),
            "eta": partial(bounds.decay_rate, plain, 0.0),
            "attention": partial(bounds.decay_rate, plain, 0.5, "hard"),
            "tail, eta": partial(bounds.plain_tail, plain, 1e-201),
            "tail, task": partial(bounds.plain_tail, None, 0.5),
            "tail, attention": partial(bounds.plain_tail, plain, 0.5, "none"),
            "bound, risk": partial(bounds.loss_bound, plain, [1.0]),
            "bound, softmax": lambda: bounds.loss_bound(
                RecallRisk(plain, "softmax"), [1.0] * 3
            ),
            "bound, negative": lambda: bounds.loss_bound(
                RecallRisk(plain), [-0.1, 1.0]
            ),
            "stall, alpha": partial(bounds.stall, 0.0, 0.5),
            "stall, eta": partial(bounds.stall, 0.5, 1.1e150),
            "missing, M": partial(bounds.missing_loss, plain, -1),
            "noise cost, M": partial(bounds.noise_cost, 0, 0.1),
            "noise cost, alpha": partial(bounds.noise_cost, 5, 1.0),
        }
    )


def numbers_of_sentences() -> Asked:
    unequal = RecallTask(12, 4, 3, probs=[0.4, 0.3, 0.2, 0.1], H=8)
    noisy = RecallTask(12, 3, 3, alpha=0.2, probs=[0.5, 0.3, 0.2], H=9)
    one = RecallTask(9, 1, 3, alpha=0.2, H=8)
    for M in (1, 3, 20, 100, 1000):
        yield (
            f"missing, {M}",
            Call(
                lambda M=M: [
                    samples.missing_probability(unequal, M, mass)
                    for mass in (0.0, 0.1, 0.25, 0.3, 0.6, 1.0)
                ],
                rtol=1e-7,
                atol=1e-16,
            ),
        )
        yield (
            f"failure, {M}",
            Call(
                lambda M=M: [
                    samples.failure_probability(task, M, 0.3)
                    for task in (unequal, noisy, one)
                ],
                rtol=1e-7,
                atol=1e-16,
            ),
        )
        yield (
            f"bound, {M}",
            lambda M=M: [
                samples.failure_bound(task, M, eps)
                for task in (unequal, noisy, one)
                for eps in (0.05, 5.0)
            ],
        )
    yield (
        "missing, many",
        Call(lambda: samples.missing_probability(unequal, 10**9, 0.0), atol=1e-16),
    )
    yield (
        "needed",
        lambda: [
            samples.sentences_needed(task, *given)
            for task, *given in (
                (unequal, 0.1, 0.01),
                (unequal, 2.0, 0.3),
                (noisy, 0.2, 0.05),
                (one, 0.1, 0.1),
            )
        ],
    )
    many = RecallTask(
        60,
        40,
        3,
        probs=np.arange(1.0, 41.0) ** 1.1 / np.sum(np.arange(1.0, 41.0) ** 1.1),
        H=8,
    )
    yield from refused(
        {
            "missing, task": partial(samples.missing_probability, 3, 1, 0.1),
            "missing, M": partial(samples.missing_probability, unequal, 0, 0.1),
            "missing, M large": partial(
                samples.missing_probability, unequal, 10**9 + 1, 0.1
            ),
            "missing, mass": partial(samples.missing_probability, unequal, 1, -0.1),
            "missing, sums": partial(samples.missing_probability, many, 5, 0.5),
            "failure, task": partial(samples.failure_probability, 3, 1, 0.1),
            "failure, epsilon": partial(samples.failure_probability, unequal, 1, 0.0),
            "failure, M": partial(samples.failure_probability, noisy, 10**5 + 1, 0.1),
            "failure, sums": partial(samples.failure_probability, many, 5, 2.0),
            "bound, M": partial(samples.failure_bound, noisy, 0, 0.1),
            "bound, epsilon": partial(samples.failure_bound, noisy, 1, -0.1),
            "needed, delta": partial(samples.sentences_needed, unequal, 0.1, 1.0),
            "needed, many": partial(samples.sentences_needed, noisy, 1e-7, 0.01),
            "needed, task": partial(samples.sentences_needed, None, 0.1, 0.1),
        }
    )


TRAINERS: dict[str, Any] = {
    "linear": ("plain", {}),
    "relu": ("plain", {"attention": "relu", "kink": 1e-3}),
    "softmax": ("plain", {"attention": "softmax", "seed": 3}),
    "noise": ("noise", {"batch": 5}),
    "noise, softmax": ("noise", {"attention": "softmax", "scale": 1.5}),
    "attention alone": ("noise", {"trained": ("attention",), "gamma": -0.3}),
    "value and more": ("noise", {"trained": ["feed_forward", "value"]}),
    "identity": ("planted, noise", {"weights": "identity", "attention": "softmax"}),
    "identity, kappa": (
        "planted, noise",
        {"weights": "identity", "kappa": 0, "trained": ("attention", "value")},
    ),
    "zero": ("plain", {"scale": 0.0, "attention": "relu"}),
    "other words": ("words", {}),
}


def transformers() -> Asked:
    for name, (task, given) in TRAINERS.items():
        risk = TransformerRisk(TASKS[task], **{"batch": 6, "tests": 10, **given})
        params = risk.initial + 0.05 * np.sin(np.arange(risk.initial.size))
        yield (
            name,
            lambda risk=risk, params=params: {
                "steps": [risk.evaluate(params, step) for step in (0, 3)],
                "observe": risk.observe(params),
                "initial": risk.initial,
                "floor": risk.floor(),
                "stochastic": risk.stochastic,
                "trained": risk.trained,
                "gamma": risk.gamma,
                "batch": risk.batch,
                "blocks": [len(part) for part in risk.blocks(params)],
                "matrices": {
                    key: np.abs(value).sum()
                    for key, value in risk.matrices(params).items()
                },
            },
        )
        test = TASKS[task].sentences(np.random.default_rng(2), 8)
        yield (
            f"{name}: measure",
            lambda risk=risk, params=params, test=test: [
                risk.measure(params, test, without)
                for without in (
                    (),
                    ("attention",),
                    ("feed_forward",),
                    ("attention", "feed_forward"),
                )
            ],
        )
    task = TASKS["noise"]
    data = task.sentences(np.random.default_rng(3), 20)
    for batch in (None, 7, 20):
        fixed = TransformerRisk(task, data=data, batch=batch, tests=4)
        yield (
            f"data, {batch}",
            lambda fixed=fixed: [
                fixed.stochastic,
                fixed.floor(),
                fixed.gamma,
                fixed.sentences(2).answer,
                fixed.sentences(3).answer,
                fixed.evaluate(fixed.initial, 3)[0],
            ],
        )
    yield (
        "too large",
        lambda: (r := TransformerRisk(task, batch=3, tests=3)).evaluate(
            1e200 * r.initial
        ),
    )
    for name, (key, given) in {
        "linear": ("linear", {}),
        "noise": ("noise", {}),
        "noise, gamma": ("noise", {"gamma": 0.4}),
        "softmax": ("softmax", {}),
        "softmax, v": ("softmax", {"v": 2.0}),
        "identity": ("identity", {"gamma": None}),
        "identity, held": ("identity", {"gamma": -0.2, "v": 1.5}),
    }.items():
        which, options = TRAINERS[key]
        small = reparameterised(
            TransformerRisk(TASKS[which], **{"batch": 6, "tests": 10, **options}),
            **given,
        )
        yield (
            f"reparameterised, {name}",
            lambda small=small: {
                "initial": small.initial,
                "step": small.evaluate(
                    0.3 + 0.1 * np.arange(float(small.initial.size)), 2
                ),
                "inward": small.map.inward(
                    0.3 + 0.1 * np.arange(float(small.initial.size))
                ),
                "blocks": [np.size(part) for part in small.map.blocks(small.initial)],
            },
        )
    plain = TASKS["plain"]
    whole = TransformerRisk(plain, batch=2)
    yield from refused(
        {
            name: lambda given=given: TransformerRisk(**{"task": plain, **given})
            for name, given in {
                "task": {"task": 3},
                "attention": {"attention": "softmax-limit"},
                "weights": {"weights": "x"},
                "kink": {"kink": 0.1},
                "kink negative": {"kink": -0.1, "attention": "relu"},
                "trained": {"trained": ()},
                "trained, other": {"trained": ("W",)},
                "trained, number": {"trained": 3},
                "V": {"task": RecallTask(2000, 2, 3, H=8)},
                "batch": {"batch": 0},
                "batch large": {"batch": 10**13},
                "seed": {"seed": -1},
                "tests": {"tests": 0},
                "tests large": {"tests": 10**13},
                "scale": {"scale": -1.0},
                "gamma": {"gamma": math.nan},
                "data": {"data": 3},
                "batch of data": {
                    "data": plain.sentences(np.random.default_rng(0), 3),
                    "batch": 4,
                },
            }.items()
        }
    )
    test = plain.sentences(np.random.default_rng(2), 3)
    yield from refused(
        {
            "step": lambda: whole.sentences(-1),
            "without": lambda: whole.measure(whole.initial, test, ("value",)),
            "without, number": lambda: whole.measure(whole.initial, test, 3),
            "sentences": lambda: whole.measure(whole.initial, test.tokens),
            "sentences, words": lambda: whole.measure(
                whole.initial, test._replace(tokens=test.tokens + 5)
            ),
            "params": lambda: whole.measure(whole.initial[1:], test),
            "params large": lambda: whole.measure(1e200 * whole.initial, test),
            "full": partial(reparameterised, 3),
            "full, trained": lambda: reparameterised(
                TransformerRisk(plain, trained=("value",))
            ),
            "gamma without noise": lambda: reparameterised(whole, gamma=1.0),
            "v without softmax": lambda: reparameterised(whole, v=1.0),
            "gamma, infinite": lambda: reparameterised(
                TransformerRisk(TASKS["noise"]), gamma=math.inf
            ),
        }
    )


SMALL: dict[str, Any] = {"V": 9, "triggers": 2, "outputs": 3, "H": 8}
RUNS: dict[str, dict[str, Any]] = {
    "default": {},
    "fixed": {"counts": 1},
    "small": {**SMALL, "eta": 0.2},
    "unequal": {**SMALL, "probs": [0.7, 0.3], "eta": 0.3},
    "noise": {**SMALL, "alpha": 0.2, "eta": 0.3},
    "trained gamma": {
        **SMALL,
        "alpha": 0.2,
        "eta": 0.1,
        "gamma": "trained",
        "above": 0.01,
    },
    "large steps": {
        **SMALL,
        "alpha": 0.2,
        "eta": 2.5,
        "gamma": "trained",
        "above": 0.05,
        "max_steps": 50,
    },
    "held gamma": {**SMALL, "alpha": 0.2, "eta": 0.3, "gamma": -0.5},
    "softmax": {
        **SMALL,
        "attention": "softmax",
        "v": "trained",
        "eta": 0.3,
        "above": 0.05,
    },
    "softmax, held": {
        **SMALL,
        "attention": "softmax",
        "v": 4.0,
        "eta": 0.3,
        "above": 0.01,
    },
    "softmax, noise": {
        **SMALL,
        "attention": "softmax",
        "alpha": 0.2,
        "v": 3.0,
        "eta": 0.3,
        "above": 0.05,
        "max_steps": 60,
    },
    "limit": {
        **SMALL,
        "attention": "softmax-limit",
        "v": "trained",
        "eta": 0.3,
        "above": 0.05,
    },
    "relu": {**SMALL, "attention": "relu", "eta": 0.2},
    "plain": {**SMALL, "rule": "gd", "eta": 2.0, "above": 1e-2},
    "exact": {"counts": 2, "method": "exact"},
    "flow": {**SMALL, "method": "flow", "eta": 0.2, "above": 1e-2},
    "epsilon": {**SMALL, "epsilon": 0.5},
    "sentences": {**SMALL, "M": 6, "seed": 2, "eta": 0.2, "above": 1e-2},
    "sentences, noise": {
        **SMALL,
        "alpha": 0.2,
        "M": 30,
        "seed": 2,
        "eta": 0.2,
        "above": 1e-2,
    },
    "sentences, softmax": {
        **SMALL,
        "attention": "softmax",
        "M": 6,
        "seed": 2,
        "v": 5.0,
        "eta": 0.5,
        "above": 0.2,
        "max_steps": 60,
    },
    "planted": {
        "V": 9,
        "triggers": 2,
        "outputs": 3,
        "H": 8,
        "law": "planted",
        "weights": "identity",
        "eta": 0.2,
    },
    "kappa": {
        "V": 9,
        "triggers": 1,
        "outputs": 3,
        "H": 8,
        "law": "planted",
        "weights": "identity",
        "kappa": 0,
        "alpha": 0.2,
        "eta": 0.2,
        "max_steps": 60,
    },
    "overshoots": {**SMALL, "probs": [0.7, 0.3], "eta": 4.0, "max_steps": 60},
    "fast, alike": {"counts": 1, "eta": 5.0},
    "largest steps": {
        **SMALL,
        "alpha": 0.2,
        "eta": 14.0,
        "gamma": "trained",
        "above": 0.05,
        "max_steps": 20,
    },
    "few steps": {**SMALL, "max_steps": 3},
    "task": {
        "task": RecallTask(
            10,
            [4, 1],
            [0, 7, 8],
            H=8,
            noise_word=5,
            counts=[Counts.fixed(2), Counts.fixed(1)],
        )
    },
    "task, plain words": {"task": RecallTask(9, 2, 3, H=8)},
}


def families() -> Asked:
    yield (
        "columns",
        lambda: [Recall.columns, Training.columns, training.LAST, training.MODELS],
    )
    for name, given in RUNS.items():
        slack = (
            1e-6 if given.get("method") == "flow" or given.get("attention") else 1e-8
        )
        yield from run_calls(name, partial(simulate, **given), rtol=slack, atol=1e-9)
        yield (
            f"{name}: measured",
            Call(
                lambda given=given: measured(simulate(**given)), rtol=slack, atol=1e-9
            ),
        )
        if name in (
            "noise",
            "sentences, noise",
            "softmax",
            "softmax, held",
            "held gamma",
            "limit",
            "task",
        ):
            problem = (
                partial(Recall, **given)
                if "task" not in given
                else partial(Recall, task=given["task"])
            )
            yield (
                f"{name}: problem",
                lambda problem=problem: {
                    "held": (p := problem()).held,
                    "data": p.data and p.data.answer,
                    "task": repr(p.whole_task),
                    "risk": type(p.risk()).__name__,
                    "population": p.population().initial,
                    "expected": p.expected_steps(),
                },
            )
    heard: list[Any] = []
    yield (
        "callback",
        lambda: [
            simulate(
                **SMALL, method="exact", callback=lambda *x: heard.append(x)
            ).steps,
            heard,
        ],
    )
    yield (
        "unfolded",
        lambda: [
            Recall.unfolded({"eta": 0.5}),
            Recall.unfolded({"task": TASKS["plain"], "eta": 0.5}),
            {
                k: v
                for k, v in Recall.unfolded(
                    {"task": TASKS["words"], "eta": 0.5}
                ).items()
                if k != "task"
            },
        ],
    )
    yield from refused(
        {
            name: partial(simulate, **{**SMALL, **given})
            for name, given in {
                "V": {"V": 4},
                "triggers": {"triggers": 0},
                "alpha": {"alpha": 1.0},
                "H": {"H": 2},
                "law": {"law": "x"},
                "attention": {"attention": "x"},
                "weights": {"weights": "x"},
                "kappa": {"kappa": 2},
                "probs": {"probs": [0.5, 0.6]},
                "counts": {"counts": 0},
                "counts large": {"counts": 9},
                "gamma": {"gamma": "worst"},
                "gamma without noise": {"gamma": 1.0},
                "v": {"v": 2.0},
                "v word": {"v": "best"},
                "M": {"M": 0},
                "seed": {"seed": -1},
                "rule": {"rule": "x"},
                "task and V": {"task": TASKS["plain"]},
                "both targets": {"epsilon": 0.1, "above": 0.1},
                "method": {"method": "closed", "rule": "gd"},
                "eta": {"eta": 0.0},
                "eta auto": {"eta": "auto"},
            }.items()
        }
    )
    yield (
        "family of a task",
        lambda: [
            (one.V, one.H, one.alpha, one.counts)
            for one in (Recall(task=RecallTask(9, 2, 3, alpha=0.1, H=8)),)
        ],
    )
    yield from refused(
        {
            "task": partial(simulate, task=3),
            "family, task and V": lambda: Recall(task=TASKS["plain"], V=12),
        }
    )


TRAINED: dict[str, Any] = {
    "full": {},
    "attention": {"model": "attention", "attention": "relu"},
    "noise": {"alpha": 0.2, "attention": "softmax", "kappa": 0},
    "reparameterised": {
        "model": "reparameterised",
        "alpha": 0.2,
        "attention": "softmax",
        "v": "trained",
    },
    "reparameterised, held": {"model": "reparameterised", "alpha": 0.2, "gamma": -1.0},
    "sentences": {"M": 9, "batch": 4, "rule": "ngd-blocks", "scale": 0.3},
    "projection": {
        "weights": "projection",
        "law": "markov",
        "triggers": 3,
        "rule": "gd",
        "eta": 0.2,
        "epsilon": 1.0,
    },
}


def trainings() -> Asked:
    base = {
        "V": 12,
        "outputs": 3,
        "H": 9,
        "batch": 6,
        "max_steps": 8,
        "tests": 5,
        "seed": 3,
        "eta": 0.1,
    }
    for name, given in TRAINED.items():
        make = partial(Training, **{**base, **given})
        yield from run_calls(
            name, lambda make=make: make().simulate(), rtol=1e-6, atol=1e-9
        )
        yield (
            f"{name}: measured",
            Call(lambda make=make: measured(make().simulate()), rtol=1e-6),
        )
        yield (
            f"{name}: problem",
            lambda make=make: [
                repr((p := make()).task),
                p.transformer.scale,
                p.transformer.batch,
                p.transformer.kink,
                p.transformer.gamma,
                p.transformer.trained,
                p.data and p.data.answer,
            ],
        )
    yield (
        "observed",
        Call(
            lambda: training.observe([Training(**{**base, **TRAINED["attention"]})]),
            rtol=1e-6,
        ),
    )
    yield "commands", lambda: sorted(training.COMMANDS)
    yield from refused(
        {
            name: partial(Training, **{**base, **given})
            for name, given in {
                "zero": {"scale": 0.0},
                "gamma": {"gamma": "trained"},
                "v": {"v": "trained"},
                "model": {"model": "x"},
                "attention": {"attention": "softmax-limit"},
                "M large": {"M": 10**13},
                "batch": {"batch": 0},
                "noise, triggers": {"alpha": 0.1, "triggers": 2},
                "tests": {"tests": 0},
                "rule": {"rule": "x"},
            }.items()
        }
    )
    yield "package", lambda: [icl.recall.RecallTask is RecallTask, Sentences._fields]
