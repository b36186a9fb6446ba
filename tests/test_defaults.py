"""What is meant where an argument is left out: results depend on it, and no other test would notice a change.

Arguments that are added need no entry here; one that is removed loses it.
"""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest

import icl_theory as icl
from icl_theory.families.registry import find

DEFAULTS = """
    in_coordinates scale=0.01 seed=0 rank=None
    descend rule=gd method=exact tolerance=1e-07
    simulate K=20 N=inf noise=0 coordinates=class method=auto max_steps=1000000000000000
    answer quick=False
    audit quick=False
    phase_table every=False
    Features.orthonormal scale=1
    ExchangeableRisk N=inf noise=0 speed=1
    PopulationRisk N=inf noise=0
    SampledRisk noise=0 token_noise=0
    SymmetricRisk N=inf noise=0
    SymmetricRisk.of N=inf noise=0
    Trajectory.first after=0
    engine.sharpness_along points=50
    engine.Factored.random scale=0.01 seed=0 rank=None
    regression.BlockRisk hidden=32 seed=0 held_out=256
    regression.QuadraticLaw.lipschitz curved=0.5
    regression.SampledGaussianRisk noise=0
    regression.crosscheck precision=0.01 batch=512 batches=48 points=3 steps=100 runs=12 phases=0 seed=0
    regression.crossover K=20 leading_order=False
    regression.half_way K=20
    regression.curvature_bound noise=0 N=inf
    regression.stable_rate noise=0 N=inf speed=1
    regression.sampled_phases runs=16 batch=512 seed=0
    regression.tail_constant proved=True
    recall.Counts.fixed c_tau=0
    recall.Counts.geometric most=None
    recall.Counts.sentence density=0.25 noise=0
    recall.RecallRisk attention=linear tied=False weights=projection kappa=1 gamma=None v=None data=None
    recall.RecallTask alpha=0 H=33 law=markov probs=None counts=None noise_word=None
    recall.TransformerRisk attention=linear seed=0 scale=0.5 weights=projection kappa=1 kink=0 tests=128
    recall.decay_rate attention=linear weights=projection v=None
    recall.plain_tail attention=linear
    recall.simulate eta=0.5 attention=linear seed=0 rule=ngd method=auto max_steps=1000000000000000
    linear_attention.Diversity.band share=0.8
    linear_attention.LoopedRisk noise=0 start=0
    linear_attention.PlusPlusRisk start=0,0,0
    linear_attention.PromptLaw N=inf noise=0
    linear_attention.SampledRisk seed=0
    linear_attention.SampledLoop seed=0 depth=1
    linear_attention.posterior_loss prompts=1000 seed=0 new=False
    linear_attention.pretrained seed=0
    linear_attention.ridge_loss prompts=1000 seed=0
    linear_attention.shift_table trained=minimiser
    linear_attention.task_diversity draws=10 seed=0
    tasks.RandomCosine scale=amplitude
    tasks.RandomFourier length_scale=1
"""

FAMILIES = """
    regression K=20 N=inf noise=0 task=exchangeable coordinates=class rule=gd method=auto max_steps=1000000000000000
    regression goal=epsilon:0.001 unit=squared~label~units phases=I,II,III imbalance=None probs=None features=None
    grouped-regression eta=auto sizes=1,19 shares=0.5,0.5 N=inf noise=0 goal=above:0.001 phases=I,II,III
    gaussian-regression eta=auto d=4 curved=0.5 goal=above:0.001 phases=
    recall eta=0.5 V=50 triggers=4 outputs=8 alpha=0 H=33 law=markov attention=linear weights=projection kappa=1
    recall probs=None counts=None gamma=best v=1 M=inf seed=0 rule=ngd goal=above:0.001 unit=nats phases=
    linear-attention eta=auto d=8 decay=0 N=20 noise=0 coordinates=merged heads=1 rank=1 start=0.01 tasks=None
    linear-attention seed=0 depth=1 rule=gd goal=above:0.001 unit=squared~label~units phases=plateau,learning
    sphere eta=auto task=linear d=5 N=100 L=1 noise=1 start=0 rule=gd goal=above:0.001 phases=
    fixed-chain eta=1 p=0.4 q=0.3 e=0.5 w=0.1 readout=tied bias=best rule=gd goal=above:1e-06 unit=nats phases=
    representation eta=1 K=12 m=8 N=4 heads=4 sees=all noise=0.3 start=0.5 seed=0 rule=gd goal=above:0.0001 phases=
    softmax-heads eta=0.02 d=5 N=40 noise=0.1 heads=1 start=0.1 seed=0 rule=gd goal=above:0.05 phases=
    single-location eta=0.5 attention=softmax N=10 snr=4 spread=1 noise=0 scale=1 first=None start=manifold
    single-location d=400 seed=0 goal= unit=squared~label~units phases=
    token-selection eta=auto trained=p n=4 T=5 d=20 values=linear start=0 seed=0 goal=above:0.001 unit=nats phases=
    induction-heads eta=1 k=2 T=50 lags=2 edge=causal concentration=1 chains=None transitions=None points=64 seed=0
    induction-heads start=uniform objective=square second=number match=0.01 scores=None sink=None ratio=1 stage=0
    induction-heads max_steps=100000 phases=uniform,unigram,bigram goal=
"""


def words(table: str) -> list[Any]:
    return [
        pytest.param(*line.split(maxsplit=1), id=line.strip())
        for line in table.strip().splitlines()
    ]


def said(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(said, value))
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return (
        repr(value).removesuffix(".0")
        if number and math.isfinite(value)
        else str(value)
    )


@pytest.mark.parametrize(("name", "given"), words(DEFAULTS))
def test_functions_mean_what_they_did_where_arguments_are_left_out(
    name: str, given: str
) -> None:
    found: Any = icl
    for part in name.split("."):
        found = getattr(found, part)
    parameters = inspect.signature(found).parameters
    for pair in given.split():
        argument, default = pair.split("=")
        assert said(parameters[argument].default) == default, argument


@pytest.mark.parametrize(("name", "given"), words(FAMILIES))
def test_families_mean_what_they_did_where_parameters_are_left_out(
    name: str, given: str
) -> None:
    family = find(name)
    general = {
        "goal": ":".join(map(str, family.goal or ())),
        "unit": family.loss_unit.replace(" ", "~"),
        "phases": ",".join(family.phase_names),
    }
    for pair in given.split():
        parameter, default = pair.split("=")
        found = (
            general[parameter]
            if parameter in general
            else said(family.parameters()[parameter].default)
        )
        assert found == default, parameter
