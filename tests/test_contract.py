"""The contract of errors: what is wrong is refused in one line, by name, before it costs memory or time."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import math
import re
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import typer
from fuzz import (
    Target,
    command_line,
    commands,
    ended,
    fuzz,
    fuzz_commands,
    limited,
    targets,
)
from scipy.sparse import csc_array

import icl_theory as icl
from icl_theory import _validate, figures, memory
from icl_theory.cli import app, main
from icl_theory.engine import progress, pullback
from icl_theory.families.registry import find
from icl_theory.papers.recall.bounds import divergence
from icl_theory.results import plots, tables
from icl_theory.results.reproduction import reproduce
from icl_theory.testing import check_risk

SIMPLEX = icl.Features.simplex(3, 1.0)
LINEAR = icl.tasks.Linear(2.0)
PROMPTS = icl.linear_attention.PromptLaw([1.0, 1.0], N=10)
WORDS = icl.recall.RecallTask(8, 2, 3)
TABLE = pd.DataFrame({"L": [1.0]})
REFUSED = r"must be a file written by Trajectory\.save"


@pytest.fixture(autouse=True)
def heard_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lasts must speak, as it does outside of tests."""
    monkeypatch.setattr(
        progress, "DISPLAY", progress.Display()
    )  # one that waits for nothing yet


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 1500, 750))
def test_calls_with_extremes_and_wrong_types_keep_the_contract(first: int) -> None:
    """`python scripts/fuzz.py --calls 100000` makes more of them."""
    assert not [*fuzz(750, seed=0, first=first)]


@pytest.mark.slow
def test_commands_with_extremes_and_wrong_options_keep_the_contract(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Many get as far as a result; what is refused at once tests little."""
    statuses = []

    def watched(line: list[str]) -> None:
        # A command that is ended because it lasts too long got far enough.
        status: Any = "late"
        try:
            main(line)
        except SystemExit as end:
            status = end.code
            raise
        finally:
            statuses.append(status)

    monkeypatch.setattr("icl_theory.cli.main", watched)
    assert not [*fuzz_commands(60, seed=0)]
    # About a quarter of random commands is not refused: 15 of 60, with a standard
    # deviation of 3.4. A new command changes all draws.
    assert sum(status != 2 for status in statuses) >= 8


def test_every_command_is_run_with_its_own_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    every = dict(commands(typer.main.get_command(app)))
    assert {
        ("simulate",),
        ("audit",),
        ("recall", "train"),
        ("linear-attention", "sweep"),
    } <= every.keys()
    rng = np.random.default_rng(0)
    lines = [command_line(("sweep",), every["sweep",], rng) for _ in range(40)]
    given = {word.partition("=")[0] for line in lines for word in line}
    assert {
        "--L",
        "--json",
        "--dry-run",
        "--config",
        "--over",
        "--csv",
        "--imbalance",
    } <= given
    assert ended(["simulate", "--L", "x"]) is None
    assert ended(["table", "none"]) is None


def test_a_long_command_speaks_beside_json_and_is_then_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fuzz.ENOUGH", 0.2)
    endless = [
        "recall",
        "train",
        "--H=3",
        "--V=8",
        "--triggers=2",
        "--outputs=3",
        "--max-steps=1000000000",
        "--json",
    ]
    with limited():
        assert ended(endless) is None


def test_what_is_made_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A risk that takes anything and fails in its loss is found."""

    class Late(icl.ExchangeableRisk):
        def loss(self, params: Any) -> float:
            raise OverflowError("too late")

    late = Target("Late", lambda: Late, {})
    monkeypatch.setattr(Late, "__module__", "icl_theory.late")
    monkeypatch.setattr(
        Late, "__init__", lambda self: icl.ExchangeableRisk.__init__(self, 4, 1.0)
    )
    monkeypatch.setattr("fuzz.targets", lambda: (late,))
    assert any("too late" in breach.end for breach in fuzz(200, seed=0))


def test_every_public_callable_is_called() -> None:
    names = {target.name for target in targets()}
    assert len(names) > 450
    methods = {re.sub(r"\[\d+\]", "", name) for name in names}
    assert {
        "Regression.batched",
        "Recall.unfolded",
        "Recall.described",
        "MergedRisk.back",
        "MergedRisk.modes",
        "SampledRisk.parts",
        "PromptLaw.off",
        "Chains.draw",
        "TwoStateCounts.draw",
        "TokenSelection.margin",
        "HeadsRisk.best_output",
        "TwoLayerTransformer.outside",
        "Cosine.factor",
        "Scope.covers",
        "Linear.sample",
    } <= methods
    assert {
        "icl.simulate",
        "icl.recall.stall",
        "icl.tasks.Linear",
        "PopulationRisk[12].loss",
        "explorer.page",
        "icl.linear_attention.shift_table",
        "figures.draw",
        "testing.check_family",
    } <= names


class Lost(icl.engine.Map):
    """A map to one number from parameters that are none."""

    initial = np.array([math.nan])

    def inward(self, params: Any) -> Any:
        return params[0]

    def push(self, params: Any, direction: Any) -> Any:
        return direction[0]

    def outward(self, params: Any, gradient: Any) -> Any:
        return np.array([gradient])

    def stretch(self, params: Any) -> float:
        return 1.0


WRONG: dict[str, Callable[[], Any]] = {
    "risk = 5": lambda: icl.largest_stable_eta(5),
    "run = 1.0": lambda: icl.check_bounds(1.0),
    "dataset = 5": lambda: icl.phase_table(5),
    "executor = 5": lambda: icl.sweep(L=[1, 2], delta=1, eta=1, executor=5),
    "base = [nan]": lambda: icl.engine.Affine([math.nan], csc_array([[1.0]]), (1,)),
    "columns = [[1.0]]": lambda: icl.engine.Affine([1.0], [[1.0]], (1,)),
    "columns = (2, 1)": lambda: icl.engine.Affine(
        [1.0], csc_array([[1.0], [0.0]]), (1,)
    ),
    "columns = (1, 1)": lambda: icl.engine.Affine([1.0], csc_array([[1.0]]), (1, 1)),
    "sizes = 0": lambda: icl.engine.Affine([1.0], csc_array([[1.0]]), (1, 0)),
    "columns = array([nan])": lambda: icl.engine.Affine(
        [1.0], csc_array([[math.nan]]), (1,)
    ),
    "start = (2, 3, 2)": lambda: icl.engine.Factored(np.ones((2, 3, 2))),
    "start = (2, 2, 4)": lambda: icl.in_coordinates(
        icl.PopulationRisk(SIMPLEX, LINEAR),
        "factored",
        SIMPLEX.vectors,
        start=np.ones((2, 2, 4)),
    ),
    "queries = (3, 2)": lambda: icl.engine.Embedding(np.ones((3, 3)), np.ones((3, 2))),
    "initial = array([nan])": lambda: icl.descend(
        icl.engine.Pullback(icl.ExchangeableRisk(4, 1.0, 10), Lost()), 1.0, steps=9
    ),
    "size = 1000000000000": lambda: LINEAR.sample(
        SIMPLEX, np.random.default_rng(0), 10**12
    ),
    "size = 100000000000": lambda: LINEAR.sample(
        SIMPLEX, np.random.default_rng(0), size=10**11
    ),
    "gamma = 1e+295": lambda: icl.ExchangeableRisk(4, 1e295),
    "task = FiniteTask(M=3, K=3)": lambda: icl.PopulationRisk(
        SIMPLEX, icl.tasks.FiniteTask(1e130 * np.eye(3))
    ),
    "callback = 'x'": lambda: icl.descend(
        icl.ExchangeableRisk(4, 1.0, 10), 1.0, epsilon=0.1, callback="x"
    ),
    "callback = 7": lambda: icl.descend(
        icl.ExchangeableRisk(4, 1.0, 10), 1.0, steps=9, callback=7, progress=False
    ),
    "params = ": lambda: icl.PopulationRisk(SIMPLEX, LINEAR).loss([[10**400] * 3] * 3),
    "features = None": lambda: LINEAR.kernel(None),
    "task = 'x'": lambda: icl.regression.exchangeable_groups(SIMPLEX, "x"),
    "alpha = 0": lambda: icl.recall.noise_cost(10, 0),
    "alpha = 2": lambda: icl.recall.stall(2, 0.5),
    "M = -1": lambda: icl.recall.missing_loss(icl.recall.RecallTask(8, 2, 3), -1),
    "K = 0": lambda: icl.regression.stable_rate(1.0, 0),
    "variogram = nan": lambda: icl.regression.curvature_bound(math.nan, 5),
    "variogram = -0.5": lambda: icl.regression.curvature_bound(-0.5, 5),
    "c = 5e-324": lambda: icl.regression.step_bounds(20, 5e-324, 1.0),
    "path = 3": lambda: icl.load(3),
    "store = 3": lambda: icl.load_sweep(3),
    "coordinates = 'class'": lambda: icl.regression.compare_coordinates(
        1, 1, 1, coordinates="class"
    ),
    "t = 10000000": lambda: icl.descend(
        icl.SampledRisk(SIMPLEX, LINEAR, 5, 4, 0), 0.1, steps=3
    ).at(10**7),
    "quick = 3": lambda: icl.audit(quick=3),
    "law = 'x'": lambda: icl.linear_attention.MergedRisk("x", [0.0]),
    "law = 5": lambda: icl.linear_attention.SampledRisk(5, np.eye(2), 4),
    "law = None": lambda: icl.linear_attention.ridge_loss(None),
    "pair = (2,)": lambda: icl.linear_attention.LayerRisk.of(PROMPTS, [1.0, 1.0], 4),
    "step = 1e-320": lambda: icl.linear_attention.SampledRisk(
        PROMPTS, np.eye(2), 4
    ).prompts(1e-320),
    "gamma = (3,)": lambda: PROMPTS.loss([1.0, 1.0, 1.0]),
    "gamma = 'x'": lambda: PROMPTS.excess("x"),
    "params = [-1e+300]": lambda: icl.linear_attention.LoopedRisk(3, 10, 3).sharpness(
        [-1e300]
    ),
    "params = array(0.": lambda: icl.LinearAttention(d=2, coordinates="heads").gamma(
        np.array(0.0)
    ),
    "time = -1": lambda: icl.linear_attention.balanced_flow(PROMPTS, 1.0, -1),
    "start = 1e-300": lambda: icl.linear_attention.balanced_flow(PROMPTS, 1e-300, 1.0),
    "depth = 17": lambda: icl.linear_attention.best_layers(3, 10, 17),
    "most = 1000": lambda: icl.linear_attention.wishart_moments(3, 10, 1000),
    "problem = 'x'": lambda: icl.linear_attention.task_diversity("x", [1]),
    "problems = [1]": lambda: icl.linear_attention.shift_table([1]),
    "noise = 1e+300": lambda: icl.linear_attention.diversity_limit(
        20, math.inf, 1e300, 1.0
    ),
    "variogram = slice(": lambda: icl.SymmetricRisk([1.0, 1.0], [0.5, 0.5], slice(1)),
    "risk = ": lambda: icl.largest_stable_eta(
        icl.ExchangeableRisk(20, 2.0), start=700.0
    ),
    "eta = 1e+300": lambda: icl.regression.step_rate(
        icl.PopulationRisk(SIMPLEX, LINEAR), 1e300
    ),
    "width = 'x'": lambda: plots.new_figure("x", 1.0),
    "prior = [1000": lambda: icl.linear_attention.PromptLaw([1.0], prior=[10**400]),
    "points = array(5)": lambda: check_risk(
        icl.ExchangeableRisk(4, 1.0), points=np.array(5)
    ),
    "points = 5": lambda: check_risk(icl.ExchangeableRisk(4, 1.0), points=5),
    "runs = [nan]": lambda: plots.compare_runs([math.nan]),
    "panels = array(3.)": lambda: plots.draw_panels(np.array(3.0)),
    "data = ": lambda: icl.recall.TransformerRisk(
        icl.recall.RecallTask(8, 2, 3), batch=1, data=SIMPLEX
    ),
    "notes = array(3.)": lambda: tables.to_latex(TABLE, np.array(3.0)),
    "speed = 1e+300": lambda: icl.regression.stable_rate(
        0.001, 20, noise=1e12, N=50, speed=1e300
    ),
    "panels = []": lambda: plots.draw_panels([]),
    "rows = {}": lambda: plots.draw_maps({}, ["a"]),
    "drawn = {}": lambda: plots.save({}, "a.png"),
    "answer = 1": lambda: plots.plot_answer(1),
    "table = None": lambda: tables.to_latex(None),
    "notes = 1.0": lambda: tables.to_markdown(TABLE, 1.0),
    "path = 2.0": lambda: tables.write_table(None, 2.0),
    "out = -1": lambda: figures.write(None, -1, "a"),
    "form = [1.0]": lambda: icl.regression.abel_polynomials([1.0]),
    "form = 'x'": lambda: icl.regression.abel_polynomials("x"),
    "K = [1]": lambda: icl.regression.tail_start([1]),
    "family = []": lambda: find([]),
    "d = <class 'int'>": lambda: icl.engine.Factored.random(int, rank=3),
    "eta = ['auto']": lambda: icl.sweep(L=1.0, delta=1.0, eta=["auto"]),
    "eta = ['auto', 1.0]": lambda: icl.sweep(L=1.0, delta=1.0, eta=["auto", 1.0]),
}


@pytest.mark.parametrize("named", WRONG)
def test_what_is_wrong_is_refused_by_name(named: str) -> None:
    with pytest.raises(ValueError, match="must be") as refused:
        WRONG[named]()
    assert str(refused.value).startswith(named)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("eta", ["auto", 1e-40, 1e300])
@pytest.mark.parametrize("coordinates", ["class", "embedding"])
@pytest.mark.parametrize(
    "target", [{"epsilon": 5e-324}, {"epsilon": 1e-3}, {"above": 1e300}]
)
def test_guesses_at_extreme_problems_are_numbers_or_refused(
    eta: float | str, coordinates: str, target: dict[str, float]
) -> None:
    extremes = (5e-324, 1e-300, 1e-40, 1e-12, 1.0, 1e12, 1e40, 1e300)
    for L, delta, method in itertools.product(
        extremes, extremes, ("expected_steps", "stable_rate")
    ):
        with contextlib.suppress(ValueError):
            problem = icl.Regression(
                L=L, delta=delta, eta=eta, coordinates=coordinates, **target
            )
            assert getattr(problem, method)() >= 0.0


CHECKS: dict[str, Callable[[Any], Any]] = {
    "number": lambda value: _validate.number("x", value),
    "signed": lambda value: _validate.signed("x", value),
    "integer": lambda value: _validate.integer("x", value, minimum=1),
    "fraction": lambda value: _validate.fraction("x", value),
    "prompt_length": lambda value: _validate.prompt_length(value, "x"),
    "plain_numbers": lambda value: _validate.plain_numbers("x", value),
    "real_array": lambda value: _validate.real_array("x", value, 1),
    "probabilities": lambda value: _validate.probabilities("x", value, 2),
    "sequence": lambda value: _validate.sequence("x", value, str, "words"),
    "flag": lambda value: _validate.flag("x", value),
}


@pytest.mark.parametrize("check", CHECKS)
def test_classes_and_modules_are_no_numbers(check: str) -> None:
    """Some have attributes of the names that arrays have."""
    for value in (int, np.float64, np.ndarray, np, [np.float64]):
        with pytest.raises(ValueError, match=r"x = .*must be"):
            CHECKS[check](value)


GAUSSIAN = icl.regression.QuadraticLaw(2, 1.0, 1.0)
OF_PROMPT_LENGTH: dict[str, Callable[[int], Any]] = {
    "icl.ExchangeableRisk": lambda N: icl.ExchangeableRisk(50, 1.0, N=N),
    "icl.PopulationRisk": lambda N: icl.PopulationRisk(SIMPLEX, LINEAR, N),
    "icl.SymmetricRisk": lambda N: icl.SymmetricRisk([1.0, 1.0], [0.5, 0.5], 2.0, N),
    "SymmetricRisk.of": lambda N: icl.SymmetricRisk.of(SIMPLEX, LINEAR, N=N),
    "icl.SampledRisk": lambda N: icl.SampledRisk(SIMPLEX, LINEAR, N, 4, 0),
    "icl.Regression": lambda N: icl.Regression(L=1, delta=1, eta=1, N=N),
    "icl.simulate": lambda N: icl.simulate(1, 1, 1, N=N),
    "icl.sweep": lambda N: icl.sweep(L=1, delta=1, eta=1, N=[20, N]),
    "icl.sweep of an array": lambda N: icl.sweep(
        L=1, delta=1, eta=1, N=np.array([20, N])
    ),
    "icl.LinearAttention": lambda N: icl.LinearAttention(N=N),
    "icl.regression.GroupedRegression": lambda N: icl.regression.GroupedRegression(
        L=1, delta=1, N=N
    ),
    "icl.Sphere": lambda N: icl.Sphere(N=N),
    "icl.SingleLocation": lambda N: icl.SingleLocation(N=N),
    "icl.SoftmaxHeads": lambda N: icl.SoftmaxHeads(N=N),
    "icl.DescentLayers": lambda N: icl.DescentLayers(N=N),
    "icl.DepthCovariance": lambda N: icl.DepthCovariance(N=N),
    "icl.MatchCopy": lambda N: icl.MatchCopy(N=N),
    "icl.Representation": lambda N: icl.Representation(N=N),
    "icl.tokens.IndependentCounts": lambda N: icl.tokens.IndependentCounts(
        N, [1.0], [[1.0]], [1.0]
    ),
    "icl.tokens.fair_labels": lambda N: icl.tokens.fair_labels(4, N),
    "icl.regression.FiniteGaussianRisk": lambda N: icl.regression.FiniteGaussianRisk(
        GAUSSIAN, N
    ),
    "icl.regression.GaussianRegression": lambda N: icl.regression.GaussianRegression(
        L=1, N=N
    ),
    "icl.regression.SampledGaussianRisk": lambda N: icl.regression.SampledGaussianRisk(
        GAUSSIAN, N, 4, 0
    ),
    "icl.papers.regression.concentration_probability": lambda N: (
        icl.papers.regression.concentration_probability(N, 4, 0.1)
    ),
    "icl.papers.regression.smallest_imbalance": lambda N: (
        icl.papers.regression.smallest_imbalance(N, 4, 0.9)
    ),
    "icl.regression.crosscheck": lambda N: icl.crosscheck(run(), N=N),
    "icl.regression.sampled_phases": lambda N: icl.regression.sampled_phases(
        run(), N=N
    ),
    "icl.regression.curvature_bound": lambda N: icl.regression.curvature_bound(
        1.0, 4, N=N
    ),
    "icl.regression.stable_rate": lambda N: icl.regression.stable_rate(
        1.0, 4, N=np.array([20, N])
    ),
    "icl.linear_attention.LoopedRisk": lambda N: icl.linear_attention.LoopedRisk(
        3, N, 2
    ),
    "icl.linear_attention.PlusPlusRisk": lambda N: icl.linear_attention.PlusPlusRisk(
        3, N
    ),
    "icl.linear_attention.PromptLaw": lambda N: icl.linear_attention.PromptLaw(
        [1.0], N=N
    ),
    "icl.linear_attention.best_layers": lambda N: icl.linear_attention.best_layers(
        3, N, 2
    ),
    "icl.linear_attention.diversity_limit": lambda N: (
        icl.linear_attention.diversity_limit(3, N, 1.0, 0.5)
    ),
    "icl.linear_attention.quadrature": lambda N: icl.linear_attention.quadrature(
        3, N, 2
    ),
    "icl.linear_attention.wishart_moments": lambda N: (
        icl.linear_attention.wishart_moments(3, N, 2)
    ),
}


def test_everything_that_takes_a_prompt_length_is_asked_below() -> None:
    taking = {
        re.sub(r"\[\d+\]", "", each.name)
        for each in targets()
        if "N" in each.parameters
    }
    assert taking <= OF_PROMPT_LENGTH.keys()


@pytest.mark.parametrize("name", OF_PROMPT_LENGTH)
@pytest.mark.parametrize("N", [2**53 + 1, 2**63 - 1])
def test_a_prompt_length_that_is_no_float_is_refused_with_the_limit_where_it_enters(
    name: str, N: int
) -> None:
    with pytest.raises(
        ValueError, match=r"^N = .*must be (an integer|integers) in \[[12], \d+\]"
    ):
        OF_PROMPT_LENGTH[name](N)


@pytest.mark.parametrize(
    "risk",
    [
        lambda N: icl.ExchangeableRisk(50, 1.0, N=N),
        lambda N: icl.PopulationRisk(SIMPLEX, LINEAR, N),
        lambda N: icl.SymmetricRisk([1.0, 1.0], [0.5, 0.5], 2.0, N),
        lambda N: icl.linear_attention.LoopedRisk(3, N, 2),
        lambda N: icl.linear_attention.MergedRisk(
            icl.linear_attention.PromptLaw([1.0, 2.0], N=N), [0.0, 0.0]
        ),
    ],
)
def test_the_longest_prompt_has_the_loss_of_an_infinite_one(
    risk: Callable[[float], icl.Risk],
) -> None:
    longest, infinite = risk(2**53), risk(math.inf)
    params = np.full_like(longest.initial, 0.3)
    assert longest.loss(params) == pytest.approx(infinite.loss(params), rel=1e-7)


ODD = np.zeros((2, 3))
FLAGS: dict[str, Callable[[Any], Any]] = {
    "progress": lambda flag: icl.descend(
        icl.ExchangeableRisk(4, 1.0), 1.0, steps=3, progress=flag
    ),
    "progress of a sweep": lambda flag: icl.sweep(L=1, delta=1, eta=1, progress=flag),
    "give_up": lambda flag: icl.descend(
        icl.ExchangeableRisk(4, 1.0), 1.0, steps=3, give_up=flag
    ),
    "every": lambda flag: icl.phase_table(
        icl.sweep(L=[1, 2], delta=1, eta=1, progress=False), every=flag
    ),
    "leading_order": lambda flag: icl.regression.crossover(
        1e-3, 1.0, leading_order=flag
    ),
    "proved": lambda flag: icl.regression.tail_constant(
        icl.ExchangeableRisk(4, 1.0), proved=flag
    ),
    "returned": lambda flag: plots.new_figure(1.0, 1.0, returned=flag),
    "tied": lambda flag: icl.recall.RecallRisk(WORDS, tied=flag),
    "new": lambda flag: icl.linear_attention.posterior_loss(
        PROMPTS, [[1.0, 0.0]], new=flag
    ),
    "quick": lambda flag: icl.audit(quick=flag),
    "quick answer": lambda flag: icl.answer("transition", quick=flag),
    "quick figure": lambda flag: figures.draw("figure1", quick=flag),
    "quick parameters": lambda flag: figures.parameters("figure1", quick=flag),
    "quick film": lambda flag: figures.animate("none", quick=flag),
    "quick reproduction": lambda flag: reproduce("nonlinear-regression", quick=flag),
}


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("value", [ODD, "yes", np.ma.masked])
def test_a_flag_is_true_or_false(
    name: str, value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ValueError, match=rf"^{name.split()[0]} = .*: must be True or False"
    ):
        FLAGS[name](value)
    assert not [*tmp_path.iterdir()]  # what is refused leaves nothing behind


MASKED = np.ma.masked_array([1.0, 2.0], mask=[False, True])
OF_NUMBERS: dict[str, Callable[[], Any]] = {
    "number": lambda: icl.simulate(np.ma.masked, 1, 1),
    "integer": lambda: icl.simulate(1, 1, 1, K=np.ma.masked),
    "prompt length": lambda: icl.simulate(1, 1, 1, N=np.ma.masked),
    "parameters": lambda: icl.ExchangeableRisk(4, 1.0).loss(np.ma.masked),
    "array": lambda: icl.SymmetricRisk(MASKED, [0.5, 0.5], 2.0),
    "numbers of any shape": lambda: icl.regression.stable_rate(MASKED, 4),
    "moment": lambda: icl.linear_attention.PromptLaw(MASKED),
    "axis": lambda: icl.sweep(L=MASKED, delta=1, eta=1),
}


@pytest.mark.parametrize("kind", OF_NUMBERS)
def test_a_masked_number_is_refused_not_read(kind: str) -> None:
    with pytest.raises(ValueError, match=r"^\w+ = .*masked.*: must be"):
        OF_NUMBERS[kind]()


def test_numbers_are_read_while_another_thread_loads_masked_arrays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As threads of a worker do: the module is known by then, and most of it is missing."""
    monkeypatch.setitem(sys.modules, "numpy.ma", ModuleType("numpy.ma"))
    assert icl.simulate(2.0, 1.0, 4.0).steps == 1413


class From(icl.Risk):
    """Half the square of parameters that start where it is told."""

    initial = np.zeros(1)

    def __init__(self, start: Any) -> None:
        self.initial = start

    def evaluate(self, params: Any, step: int = 0) -> tuple[float, Any]:
        return 0.5 * float(np.sum(params * params)), params


@pytest.mark.parametrize(
    "start",
    [
        None,
        "x",
        object(),
        [1.0, 2.0],
        [1, [2]],
        [10**400],
        np.array([1j]),
        np.array([math.nan]),
        MASKED,
    ],
)
@pytest.mark.parametrize("method", ["auto", "exact", "fast", "flow"])
def test_a_start_that_is_no_array_of_numbers_is_refused_where_a_run_begins(
    start: Any, method: Any
) -> None:
    with pytest.raises(ValueError, match=r"^initial = .*: must be (an array|numbers)"):
        icl.descend(From(start), 0.1, steps=3, method=method)


DATA = icl.SampledRisk(SIMPLEX, LINEAR, 5, 4, 0)
BLOCK = icl.regression.BlockRisk(DATA, hidden=3, held_out=4)
FULL = icl.recall.TransformerRisk(WORDS, batch=4)
LONGER = icl.recall.TransformerRisk(icl.recall.RecallTask(50, 2, 3, H=9), batch=64)
ENTERED: dict[str, Callable[[], Any]] = {
    "params = (3,)": lambda: FULL.measure([1.0] * 3, FULL.prompts()),
    "sentences = 3": lambda: FULL.measure(FULL.initial, 3),
    "sentences = 49": lambda: FULL.measure(FULL.initial, LONGER.prompts()),
    "without = 3": lambda: FULL.measure(FULL.initial, FULL.prompts(), 3),
    "params = (1,)": lambda: BLOCK.predict([1.0], DATA.prompts(0)),
    "prompts = 3": lambda: BLOCK.predict(BLOCK.initial, 3),
    "prompts = 'prompts of other": lambda: BLOCK.predict(
        BLOCK.initial,
        icl.SampledRisk(icl.Features.simplex(30, 1.0), LINEAR, 5, 64, 0).prompts(0),
    ),
    "start = [1, [2]]": lambda: icl.LinearAttention(start=[1, [2]]),
    "tasks = [1, [2]]": lambda: icl.LinearAttention(tasks=[1, [2]]),
}


@pytest.mark.parametrize("named", ENTERED)
def test_parameters_and_prompts_are_refused_where_they_enter(named: str) -> None:
    with pytest.raises(ValueError, match=rf"^{re.escape(named)}.*: must be "):
        ENTERED[named]()


class Wide(icl.Risk):
    """Many parameters, of which a run keeps some sixty states."""

    initial = np.zeros((2500, 2500))

    def evaluate(self, params: Any, step: int = 0) -> tuple[float, Any]:
        raise AssertionError(
            "nothing is computed where there is no room for the states"
        )


def run() -> icl.Trajectory:
    return icl.simulate(2.0, 1.0, 2.0, K=4, epsilon=0.02)


TWO = icl.linear_attention
LARGE: dict[str, Callable[[], Any]] = {
    "states": lambda: icl.descend(Wide(), 1.0, epsilon=0.1),
    "d": lambda: icl.Features.random(10, 10**8, 1.0, 0),
    "d of factors": lambda: icl.engine.Factored.random(10**5),
    "values": lambda: icl.SampledRisk(
        icl.Features.simplex(300, 1.0), LINEAR, 1, 10**6, 0
    ),
    "points of tokens": lambda: icl.SampledRisk(
        icl.Features.simplex(40, 1.0), LINEAR, 999, 9999, 0, token_noise=1
    ),
    "held out": lambda: icl.SampledRisk(SIMPLEX, LINEAR, 5, 4, 0).held_out(10**9),
    "drawn": lambda: LINEAR.sample(SIMPLEX, np.random.default_rng(0), 10**9),
    "drawn by name": lambda: icl.tasks.RandomFourier(2.0).functions(
        SIMPLEX, rng=np.random.default_rng(0), size=10**9
    ),
    "polynomials": lambda: icl.tasks.Quadratic(1.0).functions(
        icl.Features.simplex(300, 1.0), np.random.default_rng(0), 10**5
    ),
    "by counts": lambda: icl.Regression(L=1, delta=1, eta=1, K=4, N=20).sampled(10**9),
    "of a law": lambda: icl.regression.SampledGaussianRisk(
        icl.regression.QuadraticLaw(999, 1.0, 1.0), 9, 999, 0
    ),
    "cross-checks": lambda: icl.crosscheck(run(), N=40, points=10**9),
    "batches": lambda: icl.crosscheck(run(), N=40, batches=10**9),
    "runs of SGD": lambda: icl.crosscheck(run(), N=40, runs=10**9),
    "sampled runs": lambda: icl.regression.sampled_phases(run(), N=40, runs=10**9),
    "batch of a transformer": lambda: icl.recall.TransformerRisk(WORDS, batch=10**9),
    "tests": lambda: icl.recall.TransformerRisk(WORDS, batch=4, tests=10**9),
    "batch of words": lambda: icl.recall.Training(
        V=12, triggers=2, outputs=3, H=12, batch=10**9
    ),
    "heads": lambda: icl.LinearAttention(d=20, coordinates="heads", heads=10**7),
    "tasks": lambda: icl.LinearAttention(d=20, tasks=10**9),
    "draws": lambda: TWO.task_diversity(icl.LinearAttention(d=2), [1, 2], draws=10**9),
    "prompts": lambda: TWO.ridge_loss(PROMPTS, prompts=10**9),
    "pretraining prompts": lambda: TWO.pretrained(
        icl.LinearAttention(d=2), prompts=10**9
    ),
    "prompts of a step": lambda: icl.LinearAttention(d=20).sampled(10**8),
    "tokens of a step": lambda: TWO.SampledRisk(
        TWO.PromptLaw([1.0, 1.0], N=10**9), np.eye(2), 4
    ),
    "N": lambda: icl.SampledRisk(SIMPLEX, LINEAR, 10**12, 10, 0),
    "sizes": lambda: icl.SymmetricRisk([1] * 3000, [1 / 3000] * 3000, 2.0),
    "size": lambda: icl.Recall(M=10**12).simulate(),
    "triggers": lambda: icl.Recall(V=10**9, triggers=10**8),
    "V": lambda: icl.recall.RecallTask(10**9, 2, 3).unseen,
    "K": lambda: icl.simulate(1, 1, 1, K=20_000, task="linear"),
    "u": lambda: icl.ExchangeableRisk(10**9, 1.0).scores(1.0),
    "points": lambda: icl.sweep(
        L=np.geomspace(1, 2, 10**4), delta=np.geomspace(1, 2, 10**5), eta=1
    ),
}


@pytest.mark.parametrize("name", LARGE)
def test_more_memory_than_is_free_is_refused_with_both_numbers(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free", lambda: 2e9)
    with pytest.raises(
        ValueError, match=r"takes .*B of memory, and 2 GB are free|an integer in"
    ):
        LARGE[name]()


def test_what_is_free_is_the_least_of_what_limits_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    whole = memory.free()
    (tmp_path / "memory.max").write_text("3000000\n")
    (tmp_path / "memory.current").write_text("1000000\n")
    assert memory.free() == 2e6 < whole
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.free() > 2e6


@pytest.mark.parametrize(
    ("M", "alpha"), [(2, 0.3), (50, 0.01), (50, 0.999), (40_000, 0.3), (250_000, 0.9)]
)
def test_the_cost_of_a_learnt_frequency_is_its_sum_over_all_counts(
    M: int, alpha: float
) -> None:
    """Also where a lattice of counts stands for them; probabilities by the recurrence of the binomial law."""
    k = np.arange(1, M)
    log = (
        np.cumsum(np.log((M - k + 1) / k))
        + k * math.log(alpha)
        + (M - k) * math.log1p(-alpha)
    )
    weight = np.exp(log - log.max())
    expected = weight @ divergence(alpha, np.log(k / (M - k))) / weight.sum()
    assert icl.recall.noise_cost(M, alpha) == pytest.approx(expected, rel=1e-9)


def test_the_cost_of_a_learnt_frequency_falls_like_1_over_2m_for_any_number_of_sentences() -> (
    None
):
    for M in (10**9, 10**12, 10**15):
        assert icl.recall.noise_cost(M, 0.1) * 2 * M == pytest.approx(1.0, abs=1e-6)


def test_losses_and_gradients_are_finite_where_no_token_is_the_query_s_and_scores_are_far_apart() -> (
    None
):
    risk = icl.ExchangeableRisk(4, 1e-80, N=10, noise=1e40)
    assert math.isfinite(risk.loss(700.0))
    assert abs(float(risk.gradient(700.0))) < 1e70
    assert math.isfinite(risk.sharpness(700.0))


def saved(tmp_path: Path, **changes: Any) -> Path:
    """A saved run of which some parts were changed."""
    icl.simulate(2.0, 1.0, 4.0, K=3, N=20, above=1e-2).save(tmp_path / "run.npz")
    with np.load(tmp_path / "run.npz") as file:
        arrays = {name: file[name] for name in file.files}
    meta = json.loads(str(arrays.pop("meta")[()])) | changes.pop("meta", {})
    changes = {
        name: change(arrays["loss"]) if callable(change) else change
        for name, change in changes.items()
    }
    path = tmp_path / "changed.npz"
    np.savez(path, **{**arrays, **changes}, meta=np.array(json.dumps(meta)))
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {"t": np.array([0, 1])},
        {"t": np.zeros(0, dtype=np.int64)},
        {"loss": np.array([math.nan])},
        {"loss": np.array("x")},
        {"states": np.zeros(3)},
        {"observed_attention": np.ones(2)},
        {"meta": {"resume": "x"}, "t": np.array([0.5])},
        {"meta": {"stop": "NOWHERE"}},
        {"meta": {"eta": "x"}},
        {"meta": {"eta": math.nan}},
        {"meta": {"steps": 10**9}},
        {"meta": {"rule": 3}},
        {"meta": {"notes": 3}},
        {"meta": {"phases": {"I": [1]}}},
        {"meta": {"phases": {"I": []}}},
        {"meta": {"phases": {"I": 0}}},
        {"meta": {"phases": {"I": False}}},
        {"meta": {"phases": {"I": [0, 1, 2]}}},
        {"meta": {"phases": 5}},
        {"meta": {"info": None}},
        {"meta": {"labels": [1]}},
        {"loss": np.negative},
        {"meta": {"phases": {"I": [5, 2]}}},
        {"meta": {"phases": {"I": [0, 10**9]}}},
        {"meta": {"floor": 1e300}},
        {"observed_other": np.ones_like},
        {"observed_steps": np.ones_like},
        {"meta": {"floor": None}},
        {"meta": {"version": 3}},
        {"meta": {"family": 3}},
        {"meta": {"error": "x"}},
    ],
)
def test_a_run_whose_parts_do_not_belong_together_is_refused(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=REFUSED):
        icl.load(saved(tmp_path, **changes))


def test_what_a_file_says_besides_is_not_believed(tmp_path: Path) -> None:
    run = icl.load(saved(tmp_path, meta={"resume": "x", "risk": "x"}))
    assert run.at(3).t == 3


def npz(path: Path, content: bytes, compression: int, **claims: Any) -> Path:
    """An archive whose array t has this content."""
    with zipfile.ZipFile(path, "w", compression) as file:
        file.writestr("t.npy", content)
    return path


def header(shape: tuple[int, ...]) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream, {"descr": "<f8", "fortran_order": False, "shape": shape}
    )
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "compression"),
    [
        (header((10**12,)), zipfile.ZIP_STORED),
        (header((2**22,)) + bytes(2**25), zipfile.ZIP_DEFLATED),
        (b"", 0),
    ],
)
def test_a_file_that_claims_more_than_it_holds_allocates_nothing(
    tmp_path: Path, content: bytes, compression: int
) -> None:
    path = npz(tmp_path / "bomb.npz", content, compression)
    with pytest.raises(ValueError, match=REFUSED):
        icl.load(path)


class Watched(icl.Risk):
    """A parabola with two observations."""

    initial = np.ones(2)

    def evaluate(self, params: Any, step: int = 0) -> tuple[float, Any]:
        return 0.5 * float(params @ params), params

    def observe(self, params: Any, step: int = 0) -> dict[str, Any]:
        return {"place": params, "size": np.abs(params).max()}


def test_a_saved_run_with_a_flipped_bit_is_refused_or_read_as_it_was(
    tmp_path: Path,
) -> None:
    path, other = tmp_path / "run.npz", tmp_path / "flipped.npz"
    icl.descend(Watched(), 0.5, steps=2).save(path)
    content, whole = path.read_bytes(), icl.load(path).to_dict()
    with zipfile.ZipFile(path) as archive:
        directory = archive.start_dir
    for bit in (
        *range(0, 8 * len(content), 61),
        *range(8 * directory, 8 * len(content), 11),
    ):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        other.write_bytes(flipped)
        try:
            read = icl.load(other)
        except ValueError as error:
            assert "must be a file written by" in str(error)  # noqa: PT017
        else:
            assert read.to_dict() == whole, bit


def test_load_of_the_store_of_a_sweep_names_what_reads_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"path = .*load_sweep"):
        icl.load(tmp_path)


def test_losses_may_be_negative_where_a_run_found_them_so(tmp_path: Path) -> None:
    class Below(Watched):
        def evaluate(self, params: Any, step: int = 0) -> tuple[float, Any]:
            loss, gradient = super().evaluate(params, step)
            return loss - 3.0, gradient

        def floor(self) -> float:
            return -3.0

    run = icl.descend(Below(), 0.5, above=0.1)
    run.save(tmp_path / "run.npz")
    assert icl.load(tmp_path / "run.npz").to_dict() == run.to_dict()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: icl.linear_attention.PlusPlusRisk(20, 1).sharpness([1e80] * 3),
            "params .*must be less extreme: the Hessian",
        ),
        (lambda: icl.Kind(3, [1.0], values=1j), "values"),
        (lambda: pullback.Linear(len, [0.0]), "matrix .*must be a finite real array"),
    ],
)
def test_what_no_float_holds_is_refused_by_its_name(
    build: Callable[[], object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_a_sharpness_near_the_largest_float_comes_without_a_warning() -> None:
    assert icl.linear_attention.PlusPlusRisk(20, 1).sharpness([1e40] * 3) > 1e250
