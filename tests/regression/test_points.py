"""Grids of points against `simulate`, one by one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import icl_theory as icl
from icl_theory.families.registry import find
from icl_theory.papers.regression.theorems.orderwise import BOUNDED
from icl_theory.regression.closed.abel import StepCounter
from icl_theory.regression.closed.runs import leading_order
from icl_theory.regression.risks import floors as levels
from icl_theory.sweeps.grid import Values
from icl_theory.sweeps.sweep import plan
from tests.references import iterate_gap

BLANK: dict[str, Any] = {"f": math.nan, "i": -1, "U": ""}
REGRESSION = find("regression")
COLUMNS = REGRESSION.every_column()
ONE = {
    "L": 1.0,
    "delta": 1.0,
    "eta": 1.0,
    "K": 2,
    "N": math.inf,
    "epsilon": 1.0,
    "noise": 0.0,
}


def test_columns_say_by_what_factor_a_theorem_may_be_exceeded() -> None:
    """They do not load what knows it."""
    said = [
        column.description
        for column in COLUMNS
        if column.name in ("theorem_1", "theorem_2")
    ]
    assert len(said) == 2
    assert all(f"up to a factor {BOUNDED:g}: " in text for text in said)


def random_points(size: int, seed: int) -> dict[str, Any]:
    """Points over many decades: heads, single steps and tails, runs that end at once and runs that never do."""
    rng = np.random.default_rng(seed)

    def powers(low: float, high: float) -> Any:
        return 10.0 ** rng.uniform(low, high, size)

    return {
        "L": powers(-3, 3),
        "delta": powers(-1.5, 1.5),
        "eta": powers(-4, 4),
        "K": np.floor(powers(0.302, 6)),
        "N": np.full(size, math.inf),
        "epsilon": powers(-12, 1),
        "noise": rng.choice([0.0, 0.1], size),
        "imbalance": powers(-3, -0.3),
    }


def same(a: Any, b: Any) -> bool:
    return bool(a == b or (a != a and b != b))


def measured(run: icl.Trajectory) -> dict[str, Any]:
    return dict(run.family.measured(run))


@pytest.mark.parametrize("coordinates", ["class", "embedding"])
def test_closed_points_are_those_of_simulate_to_the_last_bit(coordinates: str) -> None:
    points = random_points(150, seed=1)
    points["L"][:3] = 1e200  # refused by simulate
    points["eta"][3:6] = 1e306
    found = plan(REGRESSION, {**ONE, "coordinates": coordinates}).model.evaluate(points)
    for i in range(150):
        point = {name: float(values[i]) for name, values in points.items()}
        K, eta = int(point.pop("K")), point.pop("eta")
        try:
            one = measured(icl.simulate(eta=eta, K=K, coordinates=coordinates, **point))  # type: ignore[arg-type]
        except ValueError as error:
            one = {"status": "failed", "message": str(error)}
        for column in COLUMNS:
            value, expected = (
                found[column.name][i],
                one.get(column.name, BLANK[column.dtype[0]]),
            )
            if column.name in (
                "theorem_1_bound",
                "theorem_2_bound",
            ):  # powers, rounded in their own way
                assert value == pytest.approx(expected, rel=1e-14, nan_ok=True)
            else:
                assert same(value, expected), (column.name, i, value, expected)
        assert (found["status"][i], found["message"][i]) == (
            one["status"],
            one["message"],
        )
    assert set(found["status"]) == {"failed", "reached", "not reached"}
    assert (found["certified"][found["status"] != "failed"] != 0).all()


def test_a_point_has_the_same_bits_alone_and_among_others() -> None:
    points = random_points(300, seed=2)
    model = plan(REGRESSION, ONE).model
    together = model.evaluate(points)
    for part in (slice(0, 1), slice(17, 24), slice(100, 229)):
        few = model.evaluate({name: values[part] for name, values in points.items()})
        assert all(same_array(few[name], together[name][part]) for name in few)


def same_array(a: Any, b: Any) -> bool:
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))


@given(
    st.integers(2, 60),
    st.floats(-2.0, 1.5),
    st.floats(-3.0, 3.0),
    st.floats(-4.0, -0.01),
)
def test_closed_steps_are_those_of_plain_iteration(
    K: int, L: float, eta: float, drop: float
) -> None:
    gamma, rate = 0.5 * 10.0 ** (2 * L), 10.0**eta
    c = rate * gamma * K / (K - 1.0) ** 2
    target = 0.5 * gamma * (K - 1.0) / K * 10.0**drop
    assume((K - 1) ** 2 / c + 1.0 / (c * 10.0**drop) < 20_000)

    def reached(_: int, u: float) -> bool:
        s = (K - 1) * math.exp(-u) / (1 + (K - 1) * math.exp(-u))
        return 0.5 * gamma * K / (K - 1) * s * s <= target

    steps, _ = iterate_gap(K, c, reached)
    point = {**ONE, "L": 10.0**L, "eta": rate, "K": K, "epsilon": target}
    found = plan(REGRESSION, ONE).model.evaluate(
        {name: np.array([float(value)]) for name, value in point.items()}
    )
    assert abs(int(found["steps"][0]) - steps) <= (1 if 10.0**drop > 0.999 else 0)


def evaluated(**changes: Any) -> Values:
    made = plan(REGRESSION, {**ONE, **changes})
    return made.model.evaluate(made.grid.points(np.arange(made.grid.size)))


@pytest.mark.parametrize(
    "changes",
    [
        {"N": 20, "noise": 0.1, "epsilon": 0.02, "L": 2.0, "K": 5},
        {"task": icl.tasks.Linear, "epsilon": 0.05, "L": 3.0, "K": 6, "imbalance": 0.2},
        {"task": icl.tasks.RandomCosine, "epsilon": 0.1, "L": 2.0, "K": 4, "eta": 2.0},
        {
            "coordinates": "factored",
            "epsilon": 0.2,
            "L": 2.0,
            "K": 3,
            "eta": 1.0,
            "max_steps": 2000,
        },
        {"method": "exact", "epsilon": 0.01, "L": 2.0, "K": 8, "eta": 2.0},
        {"method": "flow", "epsilon": 0.01, "L": 2.0, "K": 8, "eta": 2.0},
    ],
    ids=["finite prompts", "linear", "cosine", "factored", "exact", "flow"],
)
def test_other_points_are_runs_of_simulate(changes: dict[str, Any]) -> None:
    found = evaluated(**changes)
    run = icl.simulate(**{**ONE, **changes})
    assert found["steps"][0] == (run.steps if run.steps is not None else -1)
    off = (
        1e-12 if "N" in changes else 0.0
    )  # such points are simulated together, by tables of the same functions
    assert found["loss"][0] == pytest.approx(run.loss[-1], rel=off)
    assert found["floor"][0] == pytest.approx(run.floor, rel=off)
    assert found["method"][0] == run.method
    assert found["attention"][0] == pytest.approx(np.mean(run.attention[-1]), rel=off)
    assert (
        found["T_I"][0] + found["T_II"][0] + found["T_III"][0]
        == found["last"][0]
        == run.t[-1]
    )


def test_exact_and_closed_runs_measure_the_same() -> None:
    closed, exact = (
        evaluated(L=2.0, eta=2.0, K=8, epsilon=1e-3, imbalance=0.2, method=m)
        for m in ("closed", "exact")
    )
    for name in (
        "steps",
        "T_I",
        "T_II",
        "T_III",
        "regime",
        "certified",
        "theorem_1",
        "theorem_2",
        "L_star",
    ):
        assert closed[name][0] == exact[name][0], name
    for name in (
        "loss",
        "attention",
        "tail_ratio",
        "steps_low",
        "predicted_steps",
        "theorem_1_bound",
    ):
        assert closed[name][0] == pytest.approx(exact[name][0], rel=1e-9), name


@pytest.mark.parametrize("K", [100, 10_000])
def test_leading_order_is_approached_on_both_sides_of_the_crossover(K: int) -> None:
    crossover = icl.regression.crossover(1e-4, 1.0, K)
    found = evaluated(L=crossover * np.array([0.1, 30.0]), eta=1e-3, K=K, epsilon=1e-4)
    assert found["regime"].tolist() == ["flat", "sharp"]
    assert found["predicted_steps"] / found["steps"] == pytest.approx(
        [1.0, 1.0], abs=4.0 / math.sqrt(K) + 0.03
    )


@pytest.mark.parametrize("deficit", [0.3, 1e-6])
def test_each_term_of_the_leading_order_is_the_limit_of_the_steps(
    deficit: float,
) -> None:
    """Of very many features: learning to attend takes K²/(ηγ), and a small target (K-1)/(4ηε)."""
    K, c = np.array([1e6]), 0.1
    eta, epsilon, start = (
        c * (K - 1) ** 2 / K,
        0.5 * K / (K - 1) * deficit**2,
        0.5 * (K - 1) / K,
    )  # γ = 1
    goal = np.log(K - 1) + math.log1p(-deficit) - math.log(deficit)
    steps = float(StepCounter(K, c).steps_to(goal).steps[0])
    assert leading_order(eta, 1.0, K, epsilon, start)[0] == pytest.approx(
        steps, rel=1e-4
    )


@pytest.mark.parametrize("part", [0.99, 1.0 + 1e-9, 1.5, 50.0])
def test_there_is_nothing_to_predict_where_the_start_is_good_enough(
    part: float,
) -> None:
    given = {
        **ONE,
        "K": 20,
        "L": 2.0,
        "epsilon": part * 0.95,
    }  # the loss of equal scores is γ(K - 1)/2K
    run = icl.simulate(**given)  # type: ignore[arg-type]
    for steps, predicted in (
        (run.steps, measured(run)["predicted_steps"]),
        (evaluated(**given)["steps"][0], evaluated(**given)["predicted_steps"][0]),
    ):
        assert (steps == 0) == (predicted == 0.0) == (part > 1.0)


def test_points_at_other_rates_share_the_search_for_the_lowest_loss() -> None:
    given: dict[str, Any] = {
        "L": 2.0,
        "delta": 1.0,
        "K": 3,
        "N": 3,
        "task": "cosine",
        "above": 1e-2,
    }
    levels._single_features.cache_clear()
    found = icl.sweep(eta=[0.5, 1.0, 2.0], progress=False, **given)
    assert levels._single_features.cache_info().misses == 1
    levels._single_features.cache_clear()
    run = icl.Regression(eta=1.0, **given).simulate()
    assert (run.steps, run.floor) == (found.steps.values[1], found.floor.values[1])


@pytest.mark.parametrize(("K", "there"), [(6, False), (7, True)])
def test_the_half_way_point_is_there_from_seven_features_on(
    K: int, there: bool
) -> None:
    given = {**ONE, "K": K, "epsilon": 1e-3, "delta": 0.5}
    for found in (
        evaluated(**given)["L_half"][0],
        measured(icl.simulate(**given)).get("L_half", math.nan),
    ):  # type: ignore[arg-type]
        assert math.isnan(found) is not there
        if there:
            assert found == pytest.approx(
                icl.regression.half_way(1e-3, 0.5, K), rel=1e-12
            )


LONG: dict[str, dict[str, Any]] = {
    "closed": {"K": 5, "epsilon": 1e-7, "coordinates": "embedding"},
    "finite": {"K": 5, "N": 20, "above": 1e-4},
    "scores": {"K": 3, "epsilon": 1e-4, "task": "linear"},
}


@pytest.mark.parametrize("name", LONG)
def test_no_error_is_below_what_rounding_of_the_target_does_to_the_steps(
    name: str,
) -> None:
    """In the tail the excess is C/t: a part of it is the same part of the steps."""
    given = {"L": 2.0, "delta": 1.0, "eta": 0.1, **LONG[name]}
    run = icl.simulate(**given)
    point = icl.sweep(**{**given, "eta": [0.1]}, progress=False)
    target = (
        run.floor + LONG[name].get("above", 0.0)
        if "above" in LONG[name]
        else LONG[name]["epsilon"]
    )
    least = 2.0**-54 * target / (target - run.floor) * run.steps  # type: ignore[operator]
    assert run.steps == int(point.steps[0])
    assert run.steps > 5000  # type: ignore[operator]
    for error in (run.error, float(point.error[0])):
        assert least <= error < 1.0


@pytest.mark.parametrize(("factor", "holds"), [(0.5, 0), (1.0, 1), (2.0, 0)])
def test_steps_are_certified_only_between_both_bounds(
    factor: float, holds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = "icl_theory.regression.batches.infinite_prompts.step_bounds"
    monkeypatch.setattr(
        place,
        lambda *given: tuple(
            factor * side for side in icl.regression.step_bounds(*given)
        ),
    )
    for method in ("closed", "exact"):
        given = {
            "L": 2.0,
            "delta": 1.0,
            "eta": 0.4,
            "K": [5, 20],
            "epsilon": 1e-2,
            "method": method,
        }
        assert (
            icl.sweep(**given, progress=False)["certified"].values.tolist()
            == [holds] * 2
        )


def test_times_of_flows_are_not_certified() -> None:
    flow = icl.sweep(
        2.0, 1.0, 0.4, K=[5, 20], epsilon=1e-2, method="flow", progress=False
    )
    assert flow["certified"].values.tolist() == [-1, -1]
    assert np.isnan([flow["steps_low"], flow["steps_high"]]).all()
    assert np.isfinite(flow["predicted_steps"]).all()
