"""Which numbers are allowed: the last one inside and the first one outside, of every family and many functions.

Results do not depend on these limits, but what a user may ask for does, and messages
name them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.families import Number, Whole
from icl_theory.families.fixed_set import SET_PARAMETERS
from icl_theory.families.registry import find
from icl_theory.families.rule_parameters import RULE_PARAMETERS
from icl_theory.sweeps.grid import Grid

# Integers as least..most, with * where the largest would take too long; floats as
# intervals, open or closed.
FAMILIES = """
    regression L=(0,inf) delta=(0,inf) eta=(0,inf) K=2..1000000000 N=1..inf noise=[0,1e40] imbalance=(0,1)
    regression momentum=[0,1) beta1=[0,1) beta2=[0,1) weight_decay=[0,inf) clip=(0,inf)
    regression warmup=1.. decay_steps=1.. decay_factor=(0,inf)
    regression dataset=1..inf dataset_seed=0.. dataset_batch=1..
    recall eta=(0,inf) V=3..1000000000 triggers=1.. outputs=1.. alpha=[0,1) H=3.. kappa=0..1 counts=1..
    recall gamma=(-inf,inf) v=(-inf,inf) M=1..inf seed=0.. max_steps=1.. epsilon=[1e-300,inf) above=[1e-300,inf)
    grouped-regression L=(0,inf) delta=(0,inf) eta=(0,inf) N=1..inf noise=[0,1e40]
    gaussian-regression L=(0,inf) eta=(0,inf) d=1..10000 curved=[0,1] N=1..inf noise=[0,1e40]
    linear-attention eta=(0,inf) d=1..100000 decay=[0,40] N=1..inf noise=[0,1e40] heads=1.. rank=1..
    linear-attention start=[0,1e40] tasks=1.. seed=0.. depth=1..16
    sphere eta=(0,inf) d=2..1000 N=1..1000000000000000 L=(0,1e15] noise=[0,1e15] start=[0,1e3]
    softmax-heads eta=(0,inf) d=1..1000 N=1..1000000000 noise=[0,1e15] heads=1..8 start=(0,10] seed=0..
    fixed-chain eta=(0,inf) p=(0,1) q=(0,1) e=(0,1e3] w=[-1e3,1e3] readout=[-1e3,1e3]
    single-location eta=(0,inf) N=2..1000000000 snr=[0,1e4] spread=(0,100] noise=[0,1e15] scale=(0,10] first=(0,1)
    single-location d=4..1000000 seed=0.. scale_decay=[0,1]
    token-selection eta=(0,inf) n=1..100 T=2..100 d=1..100 start=[0,1e3] seed=0..
    induction-heads eta=(0,inf) k=2..100 T=2..1000000 lags=2..20 concentration=[0.01,1e6] chains=1..
    induction-heads points=4..1048576 match=[-300,300] sink=[-300,300] ratio=[1e-9,1e9] stage=0.. seed=0..
    representation eta=(0,inf) K=2..500 m=1..500 N=1..500 heads=1..64 noise=[0,1e6] start=(0,10] seed=0..
    recall-train V=3..1000000000 triggers=1.. outputs=1.. alpha=[0,1) H=3.. kappa=0..1 batch=1.. M=1..inf
    recall-train scale=[0,inf) tests=1.. seed=0..
"""
RISK = icl.ExchangeableRisk(4, 1.0, N=10)
RUN = icl.simulate(2.0, 1.0, 4.0, K=4, N=20, above=0.01)
SIMPLEX = icl.Features.simplex(4, 1.0)
LINEAR = icl.tasks.Linear(1.0)
WORDS = icl.recall.RecallTask(9, 2, 3, H=9)
PROMPTS = icl.linear_attention.PromptLaw(np.array([1.0, 0.5]), N=10)
NOISY = icl.linear_attention.PromptLaw(np.array([1.0, 0.5]), N=10, noise=0.5)
DIVERSITY = icl.LinearAttention(d=2)
SHORT: dict[str, Any] = {
    "batch": 4,
    "batches": 3,
    "runs": 3,
    "steps": 2,
    "points": 2,
    "precision": 1e3,
}
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "eta=(0,inf)": lambda x: icl.descend(RISK, x, steps=1),
    "steps=1..*": lambda x: icl.descend(RISK, 1.0, steps=x),
    "epsilon=[0,inf)": lambda x: icl.descend(RISK, 1.0, epsilon=x, steps=2),
    "tolerance=(0,inf)": lambda x: icl.descend(RISK, 1.0, steps=2, tolerance=x),
    "t=0..*": lambda x: RUN.at(x),
    f"after=0..{RUN.t[-1]}": lambda x: RUN.first(lambda state: True, after=x),
    "runs=4..*": lambda x: RUN.compare(RUN.loss, RUN.t, errors=1.0, runs=x),
    "seed=0..*": lambda x: RUN.compare(RUN.loss, RUN.t, errors=1.0, seed=x),
    "K=2..1000000000": lambda x: icl.ExchangeableRisk(x, 1.0),
    "N=1..inf": lambda x: icl.ExchangeableRisk(4, 1.0, N=x),
    "noise=[0,1e40]": lambda x: icl.ExchangeableRisk(4, 1.0, noise=x),
    "batch=1..*": lambda x: icl.SampledRisk(SIMPLEX, LINEAR, 5, x, 0),
    "rank=1..3": lambda x: icl.engine.Factored.random(3, rank=x),
    "points=2..*": lambda x: icl.engine.sharpness_along(RUN, points=x),
    "alpha=[0,1)": lambda x: icl.recall.RecallTask(9, 2, 3, alpha=x),
    "density=(0,1)": lambda x: icl.recall.Counts.sentence(9, x),
    "hidden=1..*": lambda x: icl.regression.BlockRisk(
        icl.SampledRisk(SIMPLEX, LINEAR, 5, 4, 0), hidden=x
    ),
    "draws=1..*": lambda x: icl.linear_attention.task_diversity(
        DIVERSITY, [1], draws=x
    ),
    "share=[0,1]": lambda x: icl.linear_attention.task_diversity(
        DIVERSITY, [1, 2], draws=2
    ).band(x),
    "prompts=2..*": lambda x: icl.linear_attention.ridge_loss(PROMPTS, prompts=x),
    "depth=1..16": lambda x: icl.linear_attention.LoopedRisk(2, 9, x),
    "seed=0.. of factors": lambda x: icl.engine.Factored.random(3, seed=x),
    "scale=(0,1e148]": lambda x: icl.engine.Factored.random(3, scale=x),
    "d=1..*": lambda x: icl.engine.Factored.random(x),
    "scale=(0,1e40]": lambda x: RUN.compare(RUN.loss, RUN.t, errors=1.0, scale=x),
    "gamma=[0,1e290]": lambda x: icl.ExchangeableRisk(4, x),
    "speed=(0,inf)": lambda x: icl.ExchangeableRisk(4, 1.0, speed=x),
    "u=(-inf,inf)": lambda x: RISK.scores(x),
    "N=1..* of samples": lambda x: icl.SampledRisk(SIMPLEX, LINEAR, x, 4, 0),
    "seed=0.. of samples": lambda x: icl.SampledRisk(SIMPLEX, LINEAR, 5, 4, x),
    "noise=[0,1e40] of samples": lambda x: icl.SampledRisk(
        SIMPLEX, LINEAR, 5, 4, 0, noise=x
    ),
    "size=1..* of held out": lambda x: icl.SampledRisk(
        SIMPLEX, LINEAR, 5, 4, 0
    ).held_out(x),
    "dataset=1..*": lambda x: icl.SampledRisk(SIMPLEX, LINEAR, 5, 4, 0, dataset=x),
    "held_out=1..*": lambda x: icl.regression.BlockRisk(
        icl.SampledRisk(SIMPLEX, LINEAR, 5, 4, 0), held_out=x
    ),
    "d=1..10000": lambda x: icl.regression.QuadraticLaw(x, 1.0, 1.0),
    "curved=[0,1]": lambda x: icl.regression.QuadraticLaw.lipschitz(2, 1.0, curved=x),
    "length_scale=[1e-40,1e40]": lambda x: icl.tasks.RandomFourier(1.0, x),
    "d=1..* of features": lambda x: icl.Features.random(4, x, 1.0, 0),
    "seed=0.. of features": lambda x: icl.Features.random(4, 2, 1.0, x),
    "batches=3..*": lambda x: icl.crosscheck(RUN, N=20, **SHORT | {"batches": x}),
    "runs=3..*": lambda x: icl.crosscheck(RUN, N=20, **SHORT | {"runs": x}),
    "batch=1..* of a check": lambda x: icl.crosscheck(
        RUN, N=20, **SHORT | {"batch": x}
    ),
    "steps=1..* of a check": lambda x: icl.crosscheck(
        RUN, N=20, **SHORT | {"steps": x}
    ),
    "seed=0.. of a check": lambda x: icl.crosscheck(RUN, N=20, **SHORT | {"seed": x}),
    "noise=[0,1e40] of prompts": lambda x: icl.linear_attention.PromptLaw(
        np.array([1.0, 0.5]), noise=x
    ),
    "V=3..1000000000": lambda x: icl.recall.RecallTask(x, 1, 1),
    "c=1..* of counts": icl.recall.Counts.fixed,
    "c_tau=0..* of counts": lambda x: icl.recall.Counts.fixed(1, x),
    "mean=[1,40] of counts": icl.recall.Counts.geometric,
    "most=1..* of counts": lambda x: icl.recall.Counts.geometric(2.0, most=x),
    "batch=1..* of sentences": lambda x: icl.recall.TransformerRisk(WORDS, batch=x),
    "tests=1..* of sentences": lambda x: icl.recall.TransformerRisk(
        WORDS, batch=4, tests=x
    ),
    "kink=[0,inf) of sentences": lambda x: icl.recall.TransformerRisk(
        WORDS, "relu", batch=4, kink=x
    ),
    "scale=[0,inf) of sentences": lambda x: icl.recall.TransformerRisk(
        WORDS, batch=4, scale=x
    ),
    "prompts=2..* of posteriors": lambda x: icl.linear_attention.posterior_loss(
        NOISY, [[1.0, 0.0]], prompts=x
    ),
    "seed=0.. of posteriors": lambda x: icl.linear_attention.posterior_loss(
        NOISY, [[1.0, 0.0]], prompts=2, seed=x
    ),
    "draws=1..* of diversity": lambda x: icl.linear_attention.task_diversity(
        DIVERSITY, [1], draws=x
    ),
    "seed=0..4611686018427387904": lambda x: icl.linear_attention.task_diversity(
        DIVERSITY, [1], draws=1, seed=x
    ),
    "imbalance=(0,1)": lambda x: icl.regression.papers_regime(1.0, 1.0, x),
    "imbalance=(0,1) of prompts": lambda x: (
        icl.papers.regression.concentration_probability(100, 20, x)
    ),
    "confidence=(0,1)": lambda x: icl.papers.regression.smallest_imbalance(100, 20, x),
    "N=1..* of prompts": lambda x: icl.papers.regression.concentration_probability(
        x, 20, 0.5
    ),
    "probs=2..* of prompts": lambda x: icl.papers.regression.concentration_probability(
        100, x, 0.5
    ),
    "K=2..1000000000 of the tail": icl.regression.tail_start,
    "K=7..1000000000 of phase I": lambda x: icl.regression.half_way(1e-3, 1.0, K=x),
    "epsilon=(0,inf) of the crossover": lambda x: icl.regression.crossover(x, 1.0),
    "M=1..* of failures": lambda x: icl.recall.failure_probability(WORDS, x, 0.1),
    "M=1..* of missing": lambda x: icl.recall.missing_probability(WORDS, x, 0.1),
    "mass=[0,inf)": lambda x: icl.recall.missing_probability(WORDS, 9, x),
    "epsilon=(0,inf) of failures": lambda x: icl.recall.failure_probability(
        WORDS, 9, x
    ),
    "M=1..* of bounds": lambda x: icl.recall.failure_bound(WORDS, x, 0.1),
    "alpha=(0,1) of stalls": lambda x: icl.recall.stall(x, 0.1),
    "eta=(0,1e150]": lambda x: icl.recall.stall(0.3, x),
    "M=1..* of costs": lambda x: icl.recall.noise_cost(x, 0.3),
    "alpha=(0,1)": lambda x: icl.recall.noise_cost(9, x),
    "delta=(0,1)": lambda x: icl.recall.sentences_needed(WORDS, 0.1, x),
    "epsilon=(0,inf) of sentences": lambda x: icl.recall.sentences_needed(
        WORDS, x, 0.1
    ),
    "d=1..* of moments": lambda x: icl.linear_attention.wishart_moments(x, 9, 2),
    "N=1..9007199254740992 of moments": lambda x: icl.linear_attention.wishart_moments(
        2, x, 2
    ),
    "most=0..200": lambda x: icl.linear_attention.wishart_moments(2, 9, x),
    "depth=1..16 of a rule": lambda x: icl.linear_attention.quadrature(2, 9, x),
    "batch=1..* of a layer": lambda x: icl.LinearAttention(d=2).sampled(x),
    "seed=0.. of a layer": lambda x: icl.LinearAttention(d=2).sampled(4, x),
    "chunk=1..* of a grid": lambda x: Grid((), x),
}


def ends(words: str) -> tuple[str, list[Any], list[Any]]:
    """The name, the outermost values inside, and those just outside."""
    name, limits = words.split(" of ")[0].split("=")
    if ".." in limits:
        least, most = limits.split("..")
        first = int(least)
        whole, wrong = [first, first + 1], [first - 1, first + 0.5]
        if most == "inf":
            return (
                name,
                [*whole, 2**53, math.inf],
                [*wrong, 2**53 + 1, -math.inf, math.nan],
            )
        if most == "*":
            return name, whole, [*wrong, math.inf, math.nan]
        last = int(most) if most else 2**63 - 1
        return name, [*whole, last], [*wrong, last + 1, math.inf, math.nan]
    low, high = (float(each) for each in limits[1:-1].split(","))
    inside, outside = list[Any](), [math.nan, math.inf, -math.inf]
    for end, closed, beyond in (
        (low, limits[0] == "[", -math.inf),
        (high, limits[-1] == "]", math.inf),
    ):
        if math.isfinite(end):
            (inside if closed else outside).append(end)
            next_to = float(np.nextafter(end, beyond if closed else -beyond))
            (outside if closed else inside).append(next_to)
    return name, inside or [-1e300, 0.0, 1e300], outside


def check(name: str, made: Callable[[Any], Any], words: str) -> None:
    _, inside, outside = ends(words)
    for value in inside:
        made(value)
    for value in outside:
        with pytest.raises(
            ValueError,
            match=rf"^{name} = {re.escape(repr(value))}: must be (a|an|one|between|in)\b",
        ):
            made(value)


@pytest.mark.parametrize(
    "row", [line.strip() for line in FAMILIES.strip().splitlines()]
)
def test_parameters_are_allowed_up_to_their_limits(row: str) -> None:
    family, *limits = row.split()
    found: Any = icl.recall.Training if family == "recall-train" else find(family)
    for words in limits:
        name = words.split("=")[0]
        check(name, found.parameters()[name].check, words)


def test_every_number_of_a_family_in_the_table_is_in_it() -> None:
    listed = {
        (row.split()[0], each.split("=")[0])
        for row in FAMILIES.split("\n")
        if row
        for each in row.split()[1:]
    }
    # every family inherits the settings of the rule and of a fixed set, which the first lists
    everywhere = {
        "epsilon",
        "above",
        "max_steps",
        *({*RULE_PARAMETERS, *SET_PARAMETERS} & {key for _, key in listed}),
    }
    in_table = {name for name, _ in listed}
    for name, family in icl.list_families().items():
        if name not in in_table:  # a paper's own tests have its limits
            continue
        numbers = {
            key
            for key, declared in family.parameters().items()
            if isinstance(declared.kind, Number | Whole)
        }
        assert numbers - everywhere <= {key for each, key in listed if each == name}, (
            name
        )


@pytest.mark.parametrize("words", FUNCTIONS)
def test_arguments_of_functions_are_allowed_up_to_their_limits(words: str) -> None:
    check(words.split("=")[0], FUNCTIONS[words], words)
