from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray

import icl_theory as icl
from icl_theory.families.registry import find
from icl_theory.regression.tasks import Task
from icl_theory.sweeps.estimate import Progressed, _remaining, estimate
from icl_theory.sweeps.exponents import local_exponent
from icl_theory.sweeps.grid import Grid
from icl_theory.sweeps.model import FamilyModel
from icl_theory.sweeps.sweep import plan
from tests.models import finite


@cache
def alone() -> xarray.Dataset:
    """Return the sweep of `finite` without workers."""
    return finite()


def test_every_quantity_is_there_with_its_description() -> None:
    found = icl.sweep(
        L=[0.5, 2.0], delta=1.0, eta=[1.0, 4.0], imbalance=0.1, progress=False
    )
    assert dict(found.sizes) == {"L": 2, "eta": 2}
    assert {"delta", "K", "N", "epsilon", "noise", "imbalance"} < set(found.coords)
    for name in (
        "steps",
        "T_I",
        "T_II",
        "T_III",
        "regime",
        "loss",
        "attention",
        "floor",
        "tail_constant",
        "exponent_L",
        "exponent_eta",
        "steps_low",
        "steps_high",
        "certified",
        "theorem_1",
        "theorem_2",
        "L_star",
        "method",
        "error",
        "status",
    ):
        assert found[name].dims == ("L", "eta")
        assert found[name].attrs["description"]
    assert found["loss"].attrs["units"] == "squared label units"
    assert found.attrs["version"] == icl.__version__
    assert found.attrs["family"] == "regression"
    assert json.loads(found.attrs["arguments"])["coordinates"] == "class"


def test_points_are_those_of_simulate() -> None:
    found = alone()
    assert (found["status"] == "reached").all()
    assert (found["steps"] > 0).all()
    for index in np.ndindex(3, 2, 2):
        point = found.isel(dict(zip(("L", "N", "epsilon"), index, strict=True)))
        run = icl.simulate(
            float(point.L),
            1.0,
            2.0,
            K=3,
            N=float(point.N),
            epsilon=float(point.epsilon),
            task=icl.tasks.RandomCosine,
        )
        assert int(point.steps) == run.steps
        assert float(point.loss) == pytest.approx(run.loss[-1], rel=1e-12)


def test_a_target_excess_where_the_floor_is_zero_is_a_target_loss() -> None:
    given: dict[str, Any] = {
        "L": [0.1, 1.0, 10.0],
        "delta": 1.0,
        "eta": [0.1, 4.0],
        "K": [2, 20],
        "imbalance": 0.1,
    }
    loss, excess = icl.sweep(**given, epsilon=1e-4), icl.sweep(**given, above=1e-4)
    assert set(excess.method.values.ravel()) == {"closed"}
    for name, column in loss.data_vars.items():
        np.testing.assert_array_equal(excess[name].values, column.values)
    for L in given["L"]:
        problem = icl.Regression(
            L=L, delta=1.0, eta=4.0, K=20, imbalance=0.1, above=1e-4
        )
        measured, point = (
            problem.measured(problem.simulate()),
            excess.sel(L=L, eta=4.0, K=20),
        )
        for name, value in measured.items():
            if isinstance(value, str):
                assert point[name] == value
            else:
                np.testing.assert_allclose(point[name], value, rtol=1e-13)
    mixed = icl.sweep(L=1.0, delta=1.0, eta=1.0, N=[math.inf, 50.0], above=1e-3)
    assert mixed.method.values.tolist() == ["closed", "fast"]


@pytest.mark.parametrize("count", [1, 3])
def test_results_have_the_same_bits_for_any_number_of_workers(count: int) -> None:
    assert finite(workers=count).identical(alone())


def test_results_have_the_same_bits_in_threads() -> None:
    with ThreadPoolExecutor(3) as threads:
        assert finite(threads).identical(alone())


def test_a_dataset_can_be_written_and_read(tmp_path: Path) -> None:
    found = icl.sweep(L=[0.5, 2.0], delta=1.0, eta=[1.0, 4.0], progress=False)
    found.to_zarr(tmp_path / "b.zarr", zarr_format=2, consolidated=False)
    assert int(
        xarray.open_zarr(tmp_path / "b.zarr", consolidated=False)["steps"][1, 1]
    ) == int(found["steps"][1, 1])


def test_seed_of_factored_coordinates_is_the_same_for_all_workers() -> None:
    arguments: dict[str, Any] = {
        "task": None,
        "coordinates": "factored",
        "K": 3,
        "N": math.inf,
        "L": [1.0, 2.0],
    }
    assert finite(**arguments, workers=2).identical(finite(**arguments))


def test_local_exponent_of_a_power_law_is_its_power_in_any_order() -> None:
    values = np.array([3.0, 1.0, 10.0, 5.0])
    steps = np.round(1e12 * values[:, None] ** np.array([-2.0, 0.5])).astype(np.int64)
    np.testing.assert_allclose(
        local_exponent(steps, values, 0), np.tile([-2.0, 0.5], (4, 1)), rtol=1e-9
    )


def test_local_exponents_belong_to_their_values_in_any_order() -> None:
    """Differences are exact inside a parabola: ln T = 30 + ln² x has the slope 2 ln x."""
    values = np.array([5.0, 1.0, 30.0, 2.0, 9.0])
    steps = np.round(np.exp(30.0 + np.log(values) ** 2))
    found = local_exponent(np.column_stack([steps, steps**2]), values, 0)
    inside = [0, 3, 4]
    expected = 2.0 * np.log(values[inside])[:, None] * [1.0, 2.0]
    np.testing.assert_allclose(found[inside], expected, rtol=1e-9)


def test_local_exponent_is_missing_where_steps_are() -> None:
    steps = np.array([100, 25, -1, 4, 4, 4])
    found = local_exponent(steps, np.arange(1.0, 7.0), 0)
    assert np.isnan(found).tolist() == [False, True, True, True, False, False]


@pytest.mark.parametrize("L", [0.003, 0.1, 3.0])
def test_exponents_are_those_of_gradient_flow(L: float) -> None:
    """T(s)·c is the flow time to the deficit s = √(2ε(K-1)/(γK)): differentiated by a finite difference."""
    K, epsilon, eta = 300, 1e-7, 1e-3

    def flow_steps(L: float, K: int, epsilon: float) -> float:
        gamma = 0.5 * L * L
        s = math.sqrt(2.0 * epsilon * (K - 1) / (gamma * K))
        return icl.regression.flow_time(1.0 - s, K) / (eta * gamma * K / (K - 1) ** 2)

    h = 1e-4
    found = icl.sweep(
        [L * (1 - h), L, L * (1 + h)],
        1.0,
        eta,
        K=[K - 1, K, K + 1],
        epsilon=[epsilon * (1 - h), epsilon, epsilon * (1 + h)],
        progress=False,
    ).isel(L=1, K=1, epsilon=1)
    up, down = (math.log(flow_steps(L * (1 + d), K, epsilon)) for d in (h, -h))
    assert float(found.exponent_L) == pytest.approx((up - down) / (2 * h), abs=1e-3)
    up, down = (math.log(flow_steps(L, K, epsilon * (1 + d))) for d in (h, -h))
    assert float(found.exponent_epsilon) == pytest.approx(
        (up - down) / (2 * h), abs=1e-3
    )
    up, down = (math.log(flow_steps(L, K + d, epsilon)) for d in (1, -1))
    assert float(found.exponent_K) == pytest.approx(
        (up - down) / math.log((K + 1) / (K - 1)), abs=1e-3
    )


def test_stable_rate_is_taken_point_by_point() -> None:
    found = icl.sweep(
        L=[1.0, 3.0], delta=2.0, eta="auto", K=[5, 20], epsilon=0.1, progress=False
    )
    kappa = 0.308117140242701  # the largest value of 4 t² (1 - t) (2 - 3t)
    expected = np.array([[5 / 2.0, 20 / 2.0], [5 / 18.0, 20 / 18.0]]) / kappa
    np.testing.assert_allclose(found.eta_used, expected, rtol=1e-14)
    assert "eta" not in found.coords
    run = icl.simulate(3.0, 2.0, float(found.eta_used[1, 1]), K=20, epsilon=0.1)
    assert int(found.steps[1, 1]) == run.steps
    linear = icl.sweep(
        1.0, 2.0, "auto", K=5, task=icl.tasks.Linear, epsilon=0.01, progress=False
    )
    variogram = icl.tasks.Linear(1.0).variogram(icl.Features.simplex(5, 2.0)).max()
    assert float(linear.eta_used) == pytest.approx(5 / kappa / variogram)
    embedded = icl.sweep(1.0, 2.0, "auto", coordinates="embedding", progress=False)
    assert float(embedded.eta_used) == pytest.approx(20 / 2.0 / kappa / 4.0)


def test_a_point_that_fails_does_not_stop_the_others() -> None:
    found = icl.sweep(L=[1.0, 1e200], delta=1.0, eta=[1.0, 4.0], progress=False)
    assert found.status.values.tolist() == [["reached"] * 2, ["failed"] * 2]
    assert found.message.values[1, 0].startswith("L = 1e+200: must be")
    assert np.isnan(found.loss.values[1]).all()
    assert np.isfinite(found.loss.values[0]).all()


def test_a_task_that_cannot_be_made_fails_its_points() -> None:
    def family(L: float) -> Task:
        if L > 1.5:
            raise ZeroDivisionError("no such task")
        return icl.tasks.RandomCosine(L)

    found = icl.sweep(
        [1.0, 2.0], 1.0, 2.0, K=3, epsilon=0.1, task=family, progress=False
    )
    assert found.status.values.tolist() == ["reached", "failed"]
    assert found.message.values[1] == "ZeroDivisionError: no such task"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"L": []}, "L = \\[\\]: must be a sequence of at least one value"),
        ({"L": [1.0, -1.0]}, "L = -1.0: must be a finite number > 0"),
        ({"L": "0.1:1"}, "L = '0.1:1': must be a finite number"),
        ({"delta": [1.0, 1.0]}, "without duplicates"),
        ({"eta": "fast"}, "eta = 'fast'"),
        (
            {"eta": "auto", "coordinates": "factored"},
            "eta = 'auto': must be a number: in factored",
        ),
        ({"K": [2.5]}, "K = 2.5"),
        ({"N": [0]}, "N = 0"),
        ({"epsilon": 0}, "epsilon = 0"),
        ({"noise": -1}, "noise = -1"),
        ({"imbalance": [0.5, 1.0]}, "imbalance = 1.0"),
        ({"method": "magic"}, "method = 'magic'"),
        ({"coordinates": "polar"}, "coordinates = 'polar'"),
        (
            {"task": "linaer"},
            r"task = 'linaer': must be one of .*\(did you mean linear\?\)",
        ),
        ({"max_steps": 0}, "max_steps = 0"),
        ({"workers": 0}, "workers = 0"),
        ({"workers": 2, "task": lambda L: icl.tasks.Linear(L)}, "named function"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(
    changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        icl.sweep(
            **{"L": [1.0, 2.0], "delta": 1.0, "eta": 1.0, "progress": False, **changes}
        )


def test_an_executor_and_workers_contradict_each_other() -> None:
    with (
        ThreadPoolExecutor(1) as threads,
        pytest.raises(ValueError, match="left out if an executor is given"),
    ):
        icl.sweep(1.0, 1.0, 1.0, executor=threads, workers=2)


def test_a_store_gives_back_what_was_computed_and_refuses_other_calls(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a"
    first = finite(store=path)
    assert finite(store=path).identical(first)
    assert icl.load_sweep(path).identical(first)
    for changes, words in (
        (
            {"L": [2.0, 3.0, 4.0]},
            r"L = \[2.0, 3.0, 2.5\] there, \[2.0, 3.0, 4.0\] here",
        ),
        ({"task": icl.tasks.Linear}, "task = 'cosine' there, 'linear' here"),
        ({"noise": 0.2}, "noise = 0.0 there, 0.2 here"),
        ({"max_steps": 10}, "max_steps = 1000000000000000 there, 10 here"),
    ):
        with pytest.raises(ValueError, match=words):
            finite(store=path, **changes)


def test_a_store_of_another_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finite(store=tmp_path / "a")
    monkeypatch.setattr(sys.modules["icl_theory.sweeps.sweep"], "__version__", "99")
    with pytest.raises(ValueError, match=r"version = '.*' there, '99' here"):
        finite(store=tmp_path / "a")


def test_tasks_with_other_values_are_other_tasks(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tasks = [
        icl.tasks.FiniteTask(rng.normal(size=(2, 3)), [0.5, 0.5]) for _ in range(2)
    ]
    arguments: dict[str, Any] = {"K": 3, "N": 5, "epsilon": 0.5, "noise": 0.0}
    finite(task=tasks[0], store=tmp_path / "a", **arguments)
    with pytest.raises(ValueError, match="task = "):
        finite(task=tasks[1], store=tmp_path / "a", **arguments)


def test_the_points_of_each_kind_are_counted_and_timed() -> None:
    made = plan(
        find("regression"),
        {"L": [1, 2], "delta": 1, "eta": 4, "N": [math.inf, 50], "epsilon": 0.02},
    )
    lines = [*estimate(made, workers=2)]
    assert lines[0] == "4 points in 1 chunk, 4 in batches and 0 one by one"
    assert re.fullmatch(r"about [\d.e-]+ s on 2 workers", lines[1])


class Clock:
    """Time passes only where a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(
            "icl_theory.sweeps.estimate.time.perf_counter", lambda: self.now
        )


def batched_where(
    count: int, rule: Callable[[np.ndarray], np.ndarray]
) -> Callable[..., Any]:
    """A family that says by this rule which points it computes in batches.

    The rule is given the numbers of the points in a grid of ``count`` L from 1 to 2.
    """
    right = FamilyModel.batched

    def batched(
        model: FamilyModel, points: dict[str, np.ndarray], **common: Any
    ) -> Any:
        if common.get("max_steps") != 0:  # the points are computed
            return right(model, points, **common)
        numbers = np.rint((points["L"] - 1.0) * (count - 1)).astype(int)
        return {"loss": np.where(rule(numbers), 0.0, np.nan)}

    return batched


def test_points_in_whole_arrays_are_estimated_by_the_time_that_they_take_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each takes 0.2 s alone, and any number of them 0.3 s together."""
    clock, simulate, evaluated = (
        Clock(monkeypatch),
        icl.Regression.simulate,
        FamilyModel.evaluate,
    )

    def alone(problem: icl.Regression, **given: Any) -> Any:
        clock.now += 0.2
        return simulate(problem, **given)

    def together(model: FamilyModel, points: Any) -> Any:
        clock.now += 0.3
        return evaluated(model, points)

    monkeypatch.setattr(icl.Regression, "simulate", alone)
    monkeypatch.setattr(FamilyModel, "evaluate", together)
    made = plan(
        find("regression"),
        {"L": np.linspace(1, 2, 16), "delta": 1, "eta": 4, "N": 5, "epsilon": 0.45},
    )
    assert [*estimate(made, budget=0.3)][
        1
    ] == "about 1 s"  # 16 times 0.3 s / 4: the last piece had four


@pytest.mark.parametrize(
    ("budget", "each"),
    [
        (1e4, 300.0 / 12),
        (260.0, 300.0 / 4),
    ],  # all points of the second kind together; no time for more than four
)
def test_both_kinds_of_points_add_up_and_workers_share_them(
    budget: float, each: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A point takes 200 s alone, the very first one 50 s more; any number together take 300 s. Four are alone."""
    clock = Clock(monkeypatch)
    clock.now, first = 5000.0, [50.0]
    simulate, evaluated = icl.Regression.simulate, FamilyModel.evaluate

    def alone(problem: icl.Regression, **given: Any) -> Any:
        clock.now += 200.0 + (first.pop() if first else 0.0)
        return simulate(problem, **given)

    def together(model: FamilyModel, points: Any) -> Any:
        clock.now += 300.0
        return evaluated(model, points)

    monkeypatch.setattr(icl.Regression, "simulate", alone)
    monkeypatch.setattr(FamilyModel, "evaluate", together)
    given = {"L": np.linspace(1, 2, 16), "delta": 1, "eta": 4, "N": 5, "epsilon": 0.45}
    made = plan(find("regression"), given)
    monkeypatch.setattr(FamilyModel, "batched", batched_where(16, lambda i: i % 4 > 0))
    for workers, said in ((1, ""), (3, " on 3 workers")):
        lines = [*estimate(made, workers, budget=budget)]
        assert lines[0] == "16 points in 1 chunk, 12 in batches and 4 one by one"
        seconds = int((4 * 200.0 + 12 * each) / workers)
        assert lines[1] == f"about 0:{seconds // 60:02}:{seconds % 60:02}{said}"
        first.append(50.0)


def test_points_in_whole_arrays_are_timed_also_where_the_chunk_in_the_middle_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of three chunks of eight points; any number of points take 300 s together, and one alone takes no time."""
    clock, evaluated = Clock(monkeypatch), FamilyModel.evaluate

    def together(model: FamilyModel, points: Any) -> Any:
        clock.now += 300.0
        return evaluated(model, points)

    monkeypatch.setattr(FamilyModel, "evaluate", together)
    made = plan(
        find("regression"),
        {"L": np.linspace(1, 2, 24), "delta": 1, "eta": 4, "N": 5, "epsilon": 0.45},
    )
    monkeypatch.setattr(
        FamilyModel, "batched", batched_where(24, lambda i: (i < 8) | (i >= 16))
    )
    lines = [*estimate(made._replace(grid=Grid(made.grid.axes, 8)), budget=1e4)]
    assert lines[:2] == [
        "24 points in 3 chunks, 16 in batches and 8 one by one",
        "about 0:05:00",
    ]


def test_kinds_of_many_points_are_told_from_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One in four is alone, which 400 random points tell to some 9 %; 1600 are few enough for all to be asked."""
    asked: list[int] = []
    one_in_four = batched_where(1600, lambda i: i % 4 > 0)

    def batched(model: FamilyModel, points: Any, **common: Any) -> Any:
        asked.append(len(points["L"]))
        return one_in_four(model, points, **common)

    made = plan(
        find("regression"),
        {"L": np.linspace(1, 2, 1600), "delta": 1, "eta": 4, "N": 50, "epsilon": 0.02},
    )
    monkeypatch.setattr(FamilyModel, "batched", batched)
    said = next(estimate(made, samples=1600))
    assert said == "1,600 points in 1 chunk, 1,200 in batches and 400 one by one"
    about = re.fullmatch(
        r".* chunk, about ([\d,]+) in batches and ([\d,]+) one by one",
        next(estimate(made, samples=400)),
    )
    assert about is not None
    many, alone = (int(word.replace(",", "")) for word in about.groups())
    assert many + alone == 1600
    assert alone == pytest.approx(400, abs=4 * 1600 * math.sqrt(0.25 * 0.75 / 400))
    assert asked == [1600, 400]


def test_a_run_that_is_cut_is_extrapolated_by_the_growth_of_its_steps() -> None:
    times = np.linspace(0.0, 1.0, 101).tolist()
    taken = [Progressed(t, round(1000 * t)) for t in times]
    assert _remaining(taken, 5000.0, takes_every_step=True) == pytest.approx(4.0)
    skipped = [Progressed(t, round(math.exp(7.0 * t))) for t in times]
    assert _remaining(skipped, math.exp(35.0), takes_every_step=False) == pytest.approx(
        4.0, rel=0.05
    )
    assert _remaining(taken[:2], 1e9, takes_every_step=True) == 0.0
    assert _remaining(taken, 10.0, takes_every_step=True) == 0.0
    assert _remaining(taken, math.inf, takes_every_step=False) == 0.0


def test_more_points_than_have_a_number_are_refused_before_the_values_are_looked_at() -> (
    None
):
    wrong = np.broadcast_to(np.float64(-1.0), 10**7)
    with pytest.raises(ValueError, match=r"^points = 10{28}: must be an integer in "):
        plan(find("regression"), dict.fromkeys(("L", "delta", "eta", "noise"), wrong))


def test_a_dry_run_says_why_points_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here for want of memory, of which each needs more than is free."""
    monkeypatch.setattr("icl_theory.memory.free", lambda: 1e6)
    monkeypatch.setattr("icl_theory.memory.SMALL", 0)
    given = {"L": [1, 2], "delta": 1, "eta": 1, "K": 400, "N": 50, "task": "linear"}
    said = [*estimate(plan(find("regression"), given))][2]
    assert said.startswith(
        "some of the points that were timed fail: K = 400: must be smaller: this takes "
    )
    assert said.endswith(" and 0.001 GB are free")


def test_a_dry_run_says_it_as_the_sweep_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of many lines in one, after its type."""

    def fails(problem: icl.Regression) -> Any:
        raise RuntimeError("there is\n  none")

    monkeypatch.setattr(icl.Regression, "risk", fails)
    given = {
        "L": [1.0, 2.0],
        "delta": 1.0,
        "eta": 1.0,
        "K": 4,
        "N": 5,
        "method": "exact",
    }
    assert [*estimate(plan(find("regression"), given))][
        2
    ] == "some of the points that were timed fail: RuntimeError: there is none"
    assert set(icl.sweep(**given, progress=False).message.values) == {
        "RuntimeError: there is none"
    }


def test_an_array_of_no_dimension_is_a_number() -> None:
    made = plan(
        find("regression"),
        {"L": np.array(2.0), "delta": np.float64(1.0), "eta": [1, 2]},
    )
    assert [axis.name for axis in made.grid.axes if axis.swept] == ["eta"]


def test_what_a_dry_run_tries_ends_after_seconds() -> None:
    given = {
        "L": [1, 2, 3],
        "delta": 1,
        "eta": 1e-6,
        "N": 50,
        "epsilon": 1e-12,
        "max_steps": 10**9,
        "method": "exact",
    }
    made = plan(find("regression"), given)
    assert re.match(
        r"about \d+:\d\d:\d\d|about \d+ days", [*estimate(made, budget=0.05)][1]
    )


def test_two_targets_are_refused_and_where_nothing_grows_there_is_no_exponent() -> None:
    base: dict[str, Any] = {
        "L": 2.0,
        "delta": 1.0,
        "eta": 1.0,
        "K": 4,
        "N": 20,
        "progress": False,
    }
    with pytest.raises(
        ValueError, match=r"above = 0\.1: must be left out if epsilon is given"
    ):
        icl.sweep(**base, epsilon=0.1, above=0.1)
    found = icl.sweep(**base, noise=[0.0, 0.1, 0.2], above=0.1)
    assert "exponent_noise" not in found
    long = icl.sweep(
        **{**base, "N": [20, 30, math.inf], "noise": [0.1, 0.2]}, epsilon=0.5
    )
    assert not [name for name in long.data_vars if str(name).startswith("exponent_N")]
    assert "exponent_noise" in long
    assert (long.attrs["title"], long.attrs["family"]) == (
        "in-context regression",
        "regression",
    )
    above = icl.sweep(**{**base, "max_steps": 2, "above": [1e-3, 2e-3]})
    for message, floor, each in zip(
        above.message.values, above.floor.values, above.above.values, strict=True
    ):
        assert f"without reaching epsilon = {floor + each:g}" in message
