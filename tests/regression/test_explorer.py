"""The closed forms of the explorer's panel, run by a JavaScript engine, against Python's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory._validate import INT64_MAX
from icl_theory.engine.descent import MAX_STEPS
from icl_theory.regression.closed.abel import StepCounter
from icl_theory.regression.closed.flow import Place, loss_curve
from icl_theory.regression.closed.runs import closed_runs, step_constant
from icl_theory.regression.phases import crossover, half_way, tail_start
from icl_theory.regression.risks.stability import stable_rate
from tests.javascript import call

RUNS = """
const { Run } = require("regression/closed");
return given[0].map((values) => {
  const run = new Run(values);
  const { error, sure, attends, tails, last, regime, boundary, half, tail, stable, phases } = run;
  const at = [0, 0.1, 0.3, 0.5, 0.7, 0.9, 1].map((part) => run.at(Math.round(last ** part)));
  const steps = run.reached ? run.steps : -1;
  return { steps, error, sure, attends, tails, last, regime, boundary, half, tail, stable, phases, at };
});
"""


def settings(number: int, seed: int) -> list[dict[str, float]]:
    """Settings over the whole range of the sliders and beyond, on logarithmic scales."""
    rng = np.random.default_rng(seed)
    ranges = {
        "L": (-2, 3),
        "delta": (-1, 1),
        "eta": (-5, 6),
        "K": (math.log10(2), 6),
        "epsilon": (-12, 0),
    }
    drawn = {
        name: 10 ** rng.uniform(low, high, number)
        for name, (low, high) in ranges.items()
    }
    drawn["K"] = np.floor(drawn["K"])
    return [
        {name: float(values[i]) for name, values in drawn.items()}
        for i in range(number)
    ]


class Both:
    """Two thousand runs by the page and by Python."""

    def __init__(self) -> None:
        self.points = settings(2000, seed=0)
        self.page = call(RUNS, self.points)
        P = {
            name: np.array([point[name] for point in self.points])
            for name in self.points[0]
        }
        self.K, self.gamma = P["K"], 0.5 * (P["L"] * P["delta"]) ** 2
        self.counter = StepCounter(
            self.K, step_constant(P["eta"], 1.0, self.gamma, self.K)
        )
        tail = np.array([tail_start(int(K)) for K in self.K])
        self.python = closed_runs(
            self.counter, self.gamma, P["epsilon"], MAX_STEPS, tail
        )

    def of_page(self, name: str) -> Any:
        return np.array([run[name] for run in self.page])


@pytest.fixture(scope="module")
def both() -> Both:
    return Both()


def test_steps_are_the_same_integers(both: Both) -> None:
    hit = np.where(both.python.hit <= MAX_STEPS, both.python.hit, -1)
    found, error = both.of_page("steps"), both.python.error
    sure = both.of_page("sure")
    assert np.array_equal(found[sure], hit[sure])
    # elsewhere rounding leaves more than one integer: each is within the error that
    # both state
    assert np.all(np.abs(found - hit) <= 2.0 * np.ceil(error))
    assert np.mean(sure & (hit > 0)) > 0.7
    assert np.array_equal(found[hit < 10**13], hit[hit < 10**13])
    assert np.mean(found == hit) >= 0.999
    assert hit.max() > 10**14


def test_error_of_the_count_is_the_same_estimate(both: Both) -> None:
    reached = both.python.hit < INT64_MAX
    assert both.of_page("error")[reached] == pytest.approx(
        both.python.error[reached], rel=1e-9, abs=1e-12
    )


@pytest.mark.parametrize("name", ["attends", "tails", "last"])
def test_phases_end_at_the_same_steps(both: Both, name: str) -> None:
    found, expected = both.of_page(name), getattr(both.python, name)
    # the position of the end, ln(1/s), is rounded: that moves counts beyond 10^13 or so
    assert np.all(np.abs(found - expected) <= np.floor(2e-14 * expected))


def test_losses_and_attention_are_the_same_to_1e_12(both: Both) -> None:
    for i in range(len(both.page[0]["at"])):
        t = np.array([run["at"][i]["t"] for run in both.page], dtype=np.int64)
        u = both.counter.position(t)
        loss, attention = loss_curve(u, both.gamma, both.K)
        # the map itself multiplies the rounding errors of large steps, and the time is
        # rounded: by a step's 2^-52 t
        moved = 2.0**-52 * t * both.counter.c * Place.of(u, both.counter.K).growth()
        allowed = 1e-12 + 4.0 * (both.counter._single.blur + moved)
        seen = loss > 1e-300
        off = np.abs(_state(both, i, "loss") - loss)[seen] / loss[seen]
        assert np.all(off <= allowed[seen])
        assert np.all(
            np.abs(_state(both, i, "attention") - attention) <= allowed * attention
        )
        assert np.mean(off <= 1e-12) > 0.99


def _state(both: Both, i: int, name: str) -> Any:
    return np.array([run["at"][i][name] for run in both.page])


def test_boundaries_are_those_of_python(both: Both) -> None:
    for point, run in zip(both.points[:100], both.page, strict=False):
        K, epsilon, delta = int(point["K"]), point["epsilon"], point["delta"]
        assert run["tail"] == pytest.approx(tail_start(K), rel=1e-14)
        assert run["boundary"] == pytest.approx(crossover(epsilon, delta, K), rel=1e-13)
        if K >= 7:
            assert run["half"] == pytest.approx(half_way(epsilon, delta, K), rel=1e-13)
        else:
            assert run["half"] is None
        gamma = 0.5 * (point["L"] * delta) ** 2
        assert run["stable"] == pytest.approx(float(stable_rate(gamma, K)), rel=1e-14)


def test_runs_are_those_of_simulate(both: Both) -> None:
    for point, page in zip(both.points[:40], both.page, strict=False):
        run = icl.Regression(**(point | {"K": int(point["K"])})).simulate()
        assert page["regime"] == run.regime
        assert run.phases is not None
        if page["sure"]:
            assert page["steps"] == (-1 if run.steps is None else run.steps)
        ends = {
            name: part
            for name, part in run.phases.present().items()
            if part[1] > part[0]
        }
        assert {
            part["name"] for part in page["phases"] if part["to"] > part["from"]
        } == ends.keys()


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({"K": 2}, None),
        ({"epsilon": 10.0}, 0),
        ({"eta": 1e9}, None),
        ({"epsilon": 1e-300}, -1),
        ({"L": 1e-30}, 0),
    ],
)
def test_extremes_are_those_of_python(
    changes: dict[str, float], steps: int | None
) -> None:
    point = {"L": 2.0, "delta": 1.0, "eta": 1.0, "K": 20, "epsilon": 1e-3} | changes
    (page,) = call(RUNS, [point])
    run = icl.Regression(**point).simulate()
    assert page["steps"] == (-1 if run.steps is None else run.steps)
    assert steps is None or page["steps"] == steps
    assert page["at"][-1]["loss"] == pytest.approx(run.loss[-1], rel=1e-12)


def test_predictions_of_a_function_are_attention_times_values() -> None:
    values, K, deficit = [0.3, -0.5, 0.1, 0.4], 10, 0.25
    found = call(
        "return require('regression/closed').predicted(...given)", values, K, deficit
    )
    every = np.resize(values, K)
    attention = np.full((K, K), deficit / (K - 1))
    np.fill_diagonal(attention, 1.0 - deficit)
    assert found == pytest.approx((attention @ every)[:4], abs=1e-15)
    worst, _ = icl.regression.worst_prediction(
        attention[0], icl.Features.simplex(K, 1.0).distances, 1.0
    )
    assert max(abs(np.array(found) - values)) <= worst + 1e-12
    assert worst == pytest.approx(deficit)
