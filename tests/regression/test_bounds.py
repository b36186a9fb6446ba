from __future__ import annotations

import copy
import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory import tasks
from icl_theory.papers.regression.theorems.checks import (
    ENVELOPE,
    ON_RUNS,
    ON_SCORES,
    class_scores,
    missed_squared,
)
from icl_theory.regression import step_bounds, worst_prediction
from tests.problems import Bowl
from tests.references import iterate_gap

RUNS = {
    "default": {},
    "flat": {"L": 0.1},
    "no step": {"epsilon": 5.0},
    "two features": {"K": 2, "epsilon": 1e-6},
    "a million features": {"K": 10**6},
    "giant step": {"eta": 1e9},
    "long tail": {"epsilon": 1e-9, "imbalance": 0.1},
    "near target": {"epsilon": 0.02},
    "flow": {"method": "flow"},
    "embedding": {"coordinates": "embedding", "epsilon": 1e-2},
    "factored": {"coordinates": "factored", "K": 4, "epsilon": 1e-2},
    "finite": {"N": 30, "K": 4, "epsilon": 0.05},
    "finite, unequal": {"N": 30, "K": 3, "probs": [0.5, 0.3, 0.2], "epsilon": 0.05},
    "noise": {"N": 30, "K": 3, "probs": [0.5, 0.3, 0.2], "noise": 0.5, "epsilon": 0.05},
    "unequal": {"K": 3, "probs": [0.5, 0.3, 0.2], "epsilon": 1e-3},
    "degenerate": {"task": tasks.Halfspace, "K": 6},
    "cosine": {"task": tasks.RandomCosine, "K": 5, "epsilon": 1e-3},
    "one token": {"N": 1, "K": 3},
    "large steps, long tail": {"eta": 600.0, "epsilon": 1e-12, "max_steps": 10**4},
    "larger steps, long tail": {"L": 20.0, "epsilon": 1e-12, "max_steps": 10**4},
    "small gap": {"delta": 0.1, "epsilon": 1e-6},
    "large gap": {"delta": 10.0, "epsilon": 1e-6},
    "flow beyond float64's 1 - a": {
        "L": 1e4,
        "eta": 1e4,
        "method": "flow",
        "epsilon": 1e-30,
    },
    "vanishing growth": {
        "L": 10.0,
        "eta": 1e3,
        "K": 2,
        "epsilon": 1e-5,
        "imbalance": 0.6,
    },
    "kernel of its own size": {"task": tasks.KernelTask(1e6 * np.eye(6)), "K": 6},
    "one giant step, unequal": {
        "eta": 1000.0,
        "K": 2,
        "probs": [0.92, 0.08],
        "epsilon": 1e-30,
        "max_steps": 1,
    },
    "finite, many features": {"N": 100, "K": 50, "eta": 40.0, "max_steps": 30},
}


@cache
def run_of(name: str) -> icl.Trajectory:
    return icl.simulate(
        **{
            "L": 2.0,
            "delta": 1.0,
            "eta": 4.0,
            "imbalance": 0.1,
            "max_steps": 10**12,
            **RUNS[name],
        }
    )  # type: ignore[arg-type]


@cache
def checks_of(name: str) -> list[icl.engine.BoundCheck]:
    return icl.check_bounds(run_of(name))


@pytest.mark.parametrize("name", RUNS)
def test_no_exact_or_certified_statement_is_ever_violated(name: str) -> None:
    checks = checks_of(name)
    assert len(checks) == 24
    for check in checks:
        if check.kind != "order-wise":
            assert check.holds is not False, check


@pytest.mark.parametrize("name", RUNS)
def test_a_statement_outside_its_hypotheses_gives_a_reason_and_no_number(
    name: str,
) -> None:
    for check in checks_of(name):
        if check.holds is None:
            assert check.note
            assert check.measured is check.bound is check.slack is None
        else:
            numbers = [
                check.measured,
                *(check.bound if isinstance(check.bound, tuple) else (check.bound,)),
            ]
            assert all(
                number is not None and math.isfinite(number) for number in numbers
            )


@pytest.mark.parametrize("name", RUNS)
def test_verdict_and_slack_are_what_the_kind_of_a_statement_says(name: str) -> None:
    """Upper: bound/measured; lower: the inverse; two-sided: relative width; identity: relative difference."""
    for check in checks_of(name):
        if check.holds is None or check.measured is None or check.bound is None:
            continue
        low, high = (
            check.bound
            if isinstance(check.bound, tuple)
            else (check.bound, check.bound)
        )
        x, slack = check.measured, check.slack
        if check.kind == "upper":
            assert check.holds == (x <= high * (1.0 + 1e-9) + 1e-15), check
        elif check.kind == "lower":
            assert check.holds == (x >= low * (1.0 - 1e-9) - 1e-12), check
        elif check.kind == "two-sided":
            assert check.holds == (low * (1.0 - 1e-9) <= x <= high * (1.0 + 1e-9)), (
                check
            )
        if slack is None:
            continue
        if check.kind == "two-sided":
            assert slack == pytest.approx((high - low) / (x or 1.0), rel=1e-6), check
        elif check.kind == "identity":
            assert slack == pytest.approx(
                abs(x - low) / max(abs(low), 1e-300), rel=1e-3, abs=1e-11
            ), check
        elif x > 0.0 and low > 0.0:
            ratios = {"upper": [high / x], "lower": [x / low]}.get(
                check.kind, [high / x, x / low]
            )
            assert any(slack == pytest.approx(ratio, rel=1e-6) for ratio in ratios), (
                check
            )


def test_orders_say_the_ends_of_their_ratios_and_hold_within_twice_their_constants() -> (
    None
):
    """Of each two-sided order: what is measured is its worse end, and the slack is that of this end."""
    stated = 0
    for name in RUNS:
        for check in checks_of(name):
            if check.kind != "order-wise" or not isinstance(check.bound, tuple):
                continue
            (low, high), (least, most) = (
                map(float, pair)
                for pair in re.findall(r"(\S+) to ([^\s;]+)", check.note)
            )
            assert low <= high
            assert check.bound[1] / check.bound[0] == pytest.approx(
                most / least, rel=0.02
            )
            scale = check.bound[0] / least
            slacks = {most / high: high, low / least: low}
            assert check.slack == pytest.approx(min(slacks), rel=0.02)
            assert check.measured == pytest.approx(
                scale * slacks[min(slacks)], rel=0.02
            )
            assert check.holds == (min(slacks) >= 0.5)
            stated += 1
    assert stated > 10


def times(method: str, factor: float) -> dict[str, Any]:
    """A method of the risk that is off by a factor."""
    right = getattr(icl.PopulationRisk, method)
    return {method: lambda risk, scores: factor * right(risk, scores)}


def steps_of(run: icl.Trajectory) -> None:
    run.t = 100 * run.t


def rate_of(factor: float) -> Any:
    def change(run: icl.Trajectory) -> None:
        run.eta *= factor

    return change


FACTORS = {
    "default": {"step count", "Phase I, explicit"},
    "flow": {"gradient flow"},
    "long tail": {"tail law"},
}
TURNED: list[tuple[str, Any, set[str]]] = [
    *(
        (name, rate_of(factor), said)
        for factor in (0.5, 2.0)
        for name, said in FACTORS.items()
    ),
    ("long tail", rate_of(10.0), {"Theorem 2, explicit"}),
    ("near target", rate_of(100.0), {"Theorem 1, explicit"}),
    ("unequal", steps_of, {"tail steps, any task"}),
    ("unequal", times("gradient", 0.5), {"one step, any task"}),
    *(
        (name, wrong, said)
        for name in ("unequal", "finite, unequal")
        for wrong, said in (
            (times("loss", 1.0 + 1e-5), {"Lemma 1, identity", "Lemma 2, identity"}),
            (times("growth", 1.0 + 1e-4), {"Lemma 2, identity", "Lemma 2, sign"}),
            (times("growth", -1.0) | times("loss_per_query", -1.0), {"Lemma 2, sign"}),
            (times("loss_per_query", 1e-4), {"Prop. 1, attention"}),
            *(
                (times("attention", factor), {"Prop. 1, prediction"})
                for factor in (1.0 - 1e-6, 1.0 + 1e-6)
            ),
        )
    ),
    *(
        ("unequal", times("loss_per_query", factor), {"Lemma 1, envelope"})
        for factor in (1e-4, 1e4)
    ),
]


@pytest.mark.parametrize("at", range(len(TURNED)))
def test_a_statement_that_does_not_hold_of_a_run_is_said_not_to(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of runs whose learning rate or steps are said to be others, and of risks that are off by a factor."""
    name, change, said = TURNED[at]
    run = copy.copy(run_of(name))

    def verdicts() -> list[bool | None]:
        on_scores = [
            statement.check(*class_scores(run))
            for statement in ON_SCORES
            if statement.name in said
        ]
        on_run = [
            statement.check(run) for statement in ON_RUNS if statement.name in said
        ]
        return [check.holds for check in (*on_scores, *on_run)]

    assert verdicts() == [True] * len(said)
    if callable(change):
        change(run)
    else:
        for method, wrong in change.items():
            monkeypatch.setattr(icl.PopulationRisk, method, wrong)
    assert verdicts() == [False] * len(said)


@pytest.mark.parametrize("name", ["unequal", "cosine", "finite, unequal"])
def test_statements_on_several_queries_show_the_one_that_is_nearest_to_its_bound(
    name: str,
) -> None:
    risk, scores = class_scores(run_of(name))
    assert risk is not None
    c, loss, found = (
        risk.task.nondegeneracy(risk.features),
        risk.loss_per_query(scores),
        {},
    )
    missed = 1.0 - np.diagonal(risk.attention(scores))
    bound = np.sqrt(2.0 * loss / c)
    k = int(np.argmax(missed / bound))
    found["Prop. 1, attention"] = missed[k], bound[k]
    high, ratio = (
        2.0 * risk.task.variogram(risk.features).max(axis=0),
        2.0 * loss / missed_squared(risk, scores),
    )
    k = int(np.argmin(np.minimum(ratio / c, high / ratio)))
    found["Lemma 1, envelope"] = ratio[k], (c[k], high[k])
    for check in checks_of(name):
        if check.name in found:
            measured, limits = found[check.name]
            assert check.measured == pytest.approx(measured, rel=1e-6)
            assert check.bound == pytest.approx(limits, rel=1e-6)


@pytest.mark.parametrize(("K", "stated"), [(30, True), (31, False)])
def test_the_envelope_of_finite_prompts_is_checked_for_up_to_thirty_features(
    K: int, stated: bool
) -> None:
    risk = icl.PopulationRisk(icl.Features.simplex(K, 1.0), tasks.Exchangeable(1.0), 2)
    assert (ENVELOPE.check(risk, risk.initial).holds is True) is stated


def test_the_default_run_is_covered_by_every_kind_of_statement() -> None:
    held = {check.name for check in checks_of("long tail") if check.holds}
    assert {
        "Lemma 1, identity",
        "Lemma 2, identity",
        "Lemma 1, envelope",
        "step count",
        "tail law",
    } <= held
    assert {"Prop. 1, attention", "Prop. 1, prediction", "Phase I duration"} <= held


@pytest.mark.parametrize("delta", [0.1, 1.0, 10.0])
def test_the_worst_prediction_error_is_l_delta_times_the_deficit(delta: float) -> None:
    run = icl.simulate(2.0, delta, 4.0, epsilon=1e-3)
    check = next(
        check for check in icl.check_bounds(run) if check.name == "Prop. 1, prediction"
    )
    assert check.measured == pytest.approx(
        2.0 * delta * (1 - float(run.attention[-1])), rel=1e-6
    )


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("embedding", "class coordinates"),
        ("flow", "for gradient descent, and this is its flow"),
        ("finite", "exchangeable case with N = inf"),
        ("degenerate", "exchangeable case with N = inf"),
        ("no step", "ends within Phase I"),
    ],
)
def test_order_wise_statements_are_for_descent_on_the_scores_of_exchangeable_tasks(
    name: str, reason: str
) -> None:
    orders = [check for check in checks_of(name) if check.kind == "order-wise"]
    assert len(orders) == 10
    for check in orders:
        assert check.holds is None
        assert reason in check.note


def test_order_wise_statements_are_for_classes_that_saturate_l() -> None:
    for check in checks_of("kernel of its own size"):
        if check.kind == "order-wise":
            assert check.holds is None
            assert "saturates L" in check.note


def test_degenerate_tasks_say_what_fails() -> None:
    checks = {check.name: check for check in checks_of("degenerate")}
    assert checks["Prop. 1, attention"].holds is None
    assert "c_k = 0" in checks["Prop. 1, attention"].note
    assert checks["Lemma 1, envelope"].bound[0] == 0.0  # type: ignore[index]


@pytest.mark.parametrize("c", [1e-3, 0.3, 20.0])
@pytest.mark.parametrize("K", [2, 3, 4, 50])
def test_certified_bounds_enclose_plain_iteration(K: int, c: float) -> None:
    for n in (1, 2, 7, 100, 5000):
        _, u = iterate_gap(K, c, lambda count, _, n=n: count == n)  # type: ignore[misc]
        if u < 200:
            low, high = step_bounds(K, c, u)
            assert low <= n <= high


def test_certified_bounds_of_steps_beyond_float64_are_numbers() -> None:
    for u in (5e-324, 1e-3, 1.0, 300.0):
        low, high = step_bounds(2, 1e300, u)
        assert 0.0 <= low <= high < math.inf


def test_the_worst_function_is_lipschitz_and_worst() -> None:
    rng = np.random.default_rng(0)
    features = icl.Features(rng.normal(size=(4, 2)))
    attention = np.array([0.7, 0.1, 0.1, 0.1])
    error, values = worst_prediction(attention, features.distances, 3.0)
    assert abs(float(attention @ values) - values[0]) == pytest.approx(error, rel=1e-9)
    for _ in range(200):
        other = rng.normal(size=4)
        other *= 3.0 / np.max(
            np.abs(other[:, None] - other) / (features.distances + np.eye(4))
        )
        assert abs(float(attention @ other) - other[0]) <= error * (1 + 1e-9)


def test_refuses_runs_without_their_risk(tmp_path: Path) -> None:
    icl.descend(icl.ExchangeableRisk(20, 2.0), 4.0, epsilon=1e-3).save(
        tmp_path / "run.npz"
    )
    with pytest.raises(ValueError, match="not loaded from a file"):
        icl.check_bounds(icl.load(tmp_path / "run.npz"))


def test_a_loaded_run_of_a_family_is_checked_like_a_fresh_one(tmp_path: Path) -> None:
    run = icl.simulate(2.0, 1.0, 4.0, imbalance=0.1)
    run.save(tmp_path / "run.npz")
    assert icl.check_bounds(icl.load(tmp_path / "run.npz")) == icl.check_bounds(run)


def test_refuses_runs_on_other_risks() -> None:
    with pytest.raises(ValueError, match="population risk of in-context regression"):
        icl.check_bounds(icl.descend(Bowl(), 0.1, steps=5))


@pytest.mark.parametrize(
    "seed",
    [
        # Flows of 30 tokens in factored coordinates take a second each.
        pytest.param(seed, marks=[pytest.mark.slow] if seed in (13, 28) else [])
        for seed in range(40)
    ],
)
def test_checks_of_random_runs_hold_or_give_their_reason(seed: int) -> None:
    rng = np.random.default_rng(seed)
    K = int(rng.integers(2, 6))
    laws = [
        None,
        tasks.Linear,
        tasks.RandomCosine,
        tasks.RandomFourier,
        tasks.Quadratic,
        tasks.Halfspace,
    ]
    run = icl.simulate(
        10 ** rng.uniform(-1, 1.5),
        10 ** rng.uniform(-1, 1),
        10 ** rng.uniform(-2, 3),
        K=K,
        N=[math.inf, math.inf, 1, 2, 30][rng.integers(5)],
        noise=[0.0, 0.0, 0.5][rng.integers(3)],
        probs=None if seed % 2 else rng.dirichlet(np.ones(K)),
        task=laws[rng.integers(6)],
        coordinates=["class", "class", "embedding", "factored"][rng.integers(4)],
        epsilon=10 ** rng.uniform(-12, 0),
        max_steps=int(10 ** rng.uniform(0, 3)),
        method=["auto", "exact", "flow"][rng.integers(3)],
        imbalance=rng.uniform(0.01, 0.6),
    )
    for check in icl.check_bounds(run):
        assert check.holds is not False or check.kind == "order-wise", check
        assert check.holds is not None or check.note
