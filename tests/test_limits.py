"""Which numbers are allowed: the last one inside and the first one outside, of every family and many functions.

Results do not depend on these limits, but what a user may ask for does, and messages name them.
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

# Integers as least..most, .. alone for any from 1 on; floats as [a, b] or (a, b), with or without the ends.
FAMILIES = """
    regression L=(0,inf) delta=(0,inf) eta=(0,inf) K=2..1000000000 N=1..inf noise=[0,1e40] imbalance=(0,1)
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
    single-location d=4..1000000 seed=0..
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
PROMPTS = icl.linear_attention.PromptLaw([1.0, 0.5], N=10)
DIVERSITY = icl.LinearAttention(d=2)
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "eta=(0,inf)": lambda x: icl.descend(RISK, x, steps=1),
    "steps=1..": lambda x: icl.descend(RISK, 1.0, steps=x) if x < 9 else None,
    "epsilon=[0,inf)": lambda x: icl.descend(RISK, 1.0, epsilon=x, steps=2),
    "tolerance=(0,inf)": lambda x: icl.descend(RISK, 1.0, steps=2, tolerance=x),
    "t=0..": lambda x: RUN.at(x) if x < 9 else None,
    f"after=0..{RUN.t[-1]}": lambda x: RUN.first(lambda state: True, after=x),
    "runs=4..": lambda x: RUN.compare(RUN.loss, RUN.t, errors=1.0, runs=x),
    "seed=0..": lambda x: RUN.compare(RUN.loss, RUN.t, errors=1.0, seed=x),
    "K=2..1000000000": lambda x: icl.ExchangeableRisk(x, 1.0),
    "N=1..inf": lambda x: icl.ExchangeableRisk(4, 1.0, N=x),
    "noise=[0,1e40]": lambda x: icl.ExchangeableRisk(4, 1.0, noise=x),
    "batch=1..": lambda x: icl.SampledRisk(SIMPLEX, LINEAR, 5, x, 0) if x < 9 else None,
    "confidence=(0,1)": lambda x: icl.regression.imbalance(20, 100, x) if hasattr(icl.regression, "imbalance") else 0,
    "rank=1..3": lambda x: icl.engine.Factored.random(3, rank=x),
    "points=2..": lambda x: icl.engine.sharpness_along(RUN, points=x) if x < 9 else None,
    "alpha=[0,1)": lambda x: icl.recall.RecallTask(9, 2, 3, alpha=x),
    "density=(0,1)": lambda x: icl.recall.Counts.sentence(9, 2, density=x),
    "hidden=1..": lambda x: icl.regression.BlockRisk(icl.SampledRisk(SIMPLEX, LINEAR, 5, 4, 0), hidden=x)
    if x < 9 else None,
    "draws=1..": lambda x: icl.linear_attention.task_diversity(DIVERSITY, [1], draws=x) if x < 3 else None,
    "share=(0,1)": lambda x: icl.linear_attention.task_diversity(DIVERSITY, [1, 2], draws=2).band(x),
    "prompts=2..": lambda x: icl.linear_attention.ridge_loss(PROMPTS, prompts=x) if x < 9 else None,
    "depth=1..16": lambda x: icl.linear_attention.LoopedRisk(2, 9, x),
}  # fmt: skip


def ends(words: str) -> tuple[str, list[Any], list[Any]]:
    """The name, the outermost values inside, and those just outside."""
    name, limits = words.split("=")
    if ".." in limits:
        least, most = limits.split("..")
        inside, outside = [int(least), int(least) + 1], [int(least) - 1, int(least) + 0.5]
        if most == "inf":
            return name, [*inside, 2**53, math.inf], [*outside, 2**53 + 1, -math.inf, math.nan]
        last = int(most) if most else 2**63 - 1
        return name, [*inside, last], [*outside, last + 1, math.inf, math.nan]
    low, high = (float(each) for each in limits[1:-1].split(","))
    inside, outside = [], [math.nan, math.inf, -math.inf]
    for end, other, closed in ((low, high, limits[0] == "["), (high, low, limits[-1] == "]")):
        if math.isfinite(end):
            (inside if closed else outside).append(end)
            (outside if closed else inside).append(float(np.nextafter(end, -other if closed else other)))
    return name, inside or [-1e300, 0.0, 1e300], outside


def check(name: str, made: Callable[[Any], Any], words: str) -> None:
    _, inside, outside = ends(words)
    for value in inside:
        made(value)
    for value in outside:
        with pytest.raises(ValueError, match=rf"^{name} = {re.escape(repr(value))}: must be (a|an|one|between|in)\b"):
            made(value)


@pytest.mark.parametrize("row", [line.strip() for line in FAMILIES.strip().splitlines()])
def test_parameters_are_allowed_up_to_their_limits(row: str) -> None:
    family, *limits = row.split()
    found: Any = icl.recall.Training if family == "recall-train" else icl.families.find(family)
    for words in limits:
        name = words.split("=")[0]
        check(name, found.parameters()[name].check, words)


def test_every_number_of_every_family_is_in_the_table() -> None:
    listed = {(row.split()[0], each.split("=")[0]) for row in FAMILIES.split("\n") if row for each in row.split()[1:]}
    everywhere = {"epsilon", "above", "max_steps"}
    for name, family in icl.list_families().items():
        numbers = {key for key, declared in family.parameters().items() if isinstance(declared.kind, Number | Whole)}
        assert numbers - everywhere <= {key for each, key in listed if each == name}, name


@pytest.mark.parametrize("words", FUNCTIONS)
def test_arguments_of_functions_are_allowed_up_to_their_limits(words: str) -> None:
    check(words.split("=")[0], FUNCTIONS[words], words)
