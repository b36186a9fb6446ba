"""Sampled against exact values: z-scores, limits and powers by the laws of Student, and shares of false alarms."""

from __future__ import annotations

import importlib
import math
import re
from typing import Any

import numpy as np
import pytest
from scipy import stats

import icl_theory as icl
from icl_theory.engine.comparison import (
    Check,
    compare,
    detectable,
    limit_of,
    mean_check,
)
from icl_theory.engine.risk import Risk

CROSSCHECK = importlib.import_module("icl_theory.regression.sampled.crosscheck")
ALL = 1e-3  # false alarms of all comparisons together


def probability(limit: float, freedom: int) -> float:
    """Share of samples of a right value beyond the limit."""
    return float(2 * stats.t.sf(limit, freedom))


@pytest.mark.parametrize("freedom", [2, 15, 63])
def test_a_limit_is_passed_by_its_share_of_the_false_alarms(freedom: int) -> None:
    for share in (1.0, 0.1, 1e-4):
        assert probability(limit_of(share, freedom), freedom) == pytest.approx(
            share * ALL, rel=1e-9
        )


def test_a_mean_is_compared_in_its_standard_errors() -> None:
    samples = np.random.default_rng(0).normal(3.0, 0.5, 17)
    check = mean_check("mean", 2.5, samples, 4.0)
    known = stats.ttest_1samp(samples, 2.5)
    assert check.z == pytest.approx(known.statistic, rel=1e-12)
    assert check.standard_error == pytest.approx(stats.sem(samples), rel=1e-12)
    assert check.sampled == pytest.approx(samples.mean(), rel=1e-14)
    assert (check.population, check.limit) == (2.5, 4.0)
    assert check.passed == (abs(known.statistic) <= 4.0)
    assert [check._replace(z=z).passed for z in (4.0, -4.0, 4.01, -4.01)] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("size", [1e-200, 0.3, 1e9])
def test_samples_that_do_not_scatter_may_be_off_by_rounding_and_no_further(
    size: float,
) -> None:
    for sign in (-1.0, 1.0):
        near = mean_check("near", size, np.full(9, size * (1.0 + sign * 4e-16)), 3.0)
        assert near.passed
        assert abs(near.z) < 0.1
        assert not mean_check(
            "far", size, np.full(9, size * (1.0 + sign * 1e-12)), 3.0
        ).passed
    assert mean_check("zero", 0.0, np.zeros(9), 3.0).z == 0.0
    assert not mean_check("zero", 0.0, np.full(9, size), 3.0).passed


@pytest.mark.parametrize("freedom", [5, 63])
def test_an_error_of_the_detectable_size_is_found_nine_times_in_ten(
    freedom: int,
) -> None:
    check = Check("loss", -4.0, -4.1, 0.05, 0.0, limit_of(0.1, freedom))
    shift = detectable(check, freedom) * 4.0 / 0.05  # in standard errors
    assert stats.nct.sf(check.limit, freedom, shift) == pytest.approx(0.9, abs=1e-6)
    assert detectable(check._replace(population=0.0), freedom) == math.inf
    assert detectable(check._replace(standard_error=0.0), freedom) == 0.0


SETTINGS: dict[str, Any] = {
    "precision": 0.1,
    "batch": 64,
    "batches": 9,
    "steps": 12,
    "points": 2,
    "runs": 5,
}


def test_all_comparisons_together_share_the_false_alarms() -> None:
    risk = icl.PopulationRisk(icl.Features.simplex(3, 1.0), icl.tasks.Linear(2.0), N=6)
    checked = icl.crosscheck(risk, eta=0.5, **(SETTINGS | {"batch": 512}))
    assert checked.passed
    total = 0.0
    for check in checked.checks:
        freedom = 8 if check.name.startswith("trainer") else 63
        many = re.search(r"worst of (\d+)", check.name)
        if "SGD" in check.name:
            freedom = 4
        if "step 12" in check.name:  # it is one of those of which the worst was taken
            continue
        total += (int(many[1]) if many else 1) * probability(check.limit, freedom)
    assert total == pytest.approx(ALL, rel=1e-6)
    entries = [check for check in checked.checks if "entries" in check.name]
    assert [re.findall(r"\d+", check.name) for check in entries] == [
        ["18"],
        ["18"],
    ]  # of two points
    by_name = {check.name: check for check in checked.checks}
    for check, power in zip(
        (by_name["loss"], by_name["gradient norm"]), checked.power, strict=True
    ):
        assert power == pytest.approx(detectable(check, 63))
        assert check.z == pytest.approx(
            (check.sampled - check.population) / check.standard_error, rel=1e-6
        )
    # the curves: steps 1 to 12, with a band of as many deviations as the limit
    assert checked.t.tolist() == list(range(1, 13))
    worst = by_name["SGD loss, worst of 12 steps"]
    z = (checked.sgd - checked.population) / (checked.band / worst.limit)
    assert worst.z == pytest.approx(z[np.argmax(np.abs(z))], rel=1e-6)
    assert by_name["SGD loss, step 12"].z == pytest.approx(z[-1], rel=1e-6)


def test_the_spread_of_sgd_is_that_of_the_other_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    risk = icl.PopulationRisk(icl.Features.simplex(3, 1.0), icl.tasks.Linear(2.0), N=6)
    runs: list[icl.Trajectory] = []

    def watched(risk: Risk, eta: float, **given: Any) -> icl.Trajectory:
        assert (eta, given["steps"]) == (1.0, 12)
        runs.append(icl.descend(risk, eta, **given))
        return runs[-1]

    monkeypatch.setattr(CROSSCHECK, "descend", watched)
    checked = icl.crosscheck(risk, **SETTINGS)
    # exact descent, and then a run for each trainer, of which the last one is judged
    population, *trainers = [run.risk for run in runs]
    expected = runs[0].loss[1:]
    losses = np.array(
        [[population.loss(state) for state in run.states[1:]] for run in runs[1:]]
    )
    assert len(trainers) == SETTINGS["runs"] + 1
    assert len({trainer.seed for trainer in trainers}) == len(trainers)
    np.testing.assert_array_equal(checked.sgd, losses[-1])
    spread = np.std(losses[:-1], axis=0, ddof=1)
    np.testing.assert_allclose(
        checked.band, stats.t.isf(0.5 * 0.3 * ALL / 12, 4) * spread, rtol=1e-9
    )
    # losses of exact descent, and of the population along the descent on a trainer's
    # own prompts
    exact, scores = [], np.zeros((3, 3))
    own = np.zeros((3, 3))
    for step in range(12):
        scores = scores - population.gradient(scores)
        own = own - trainers[0].evaluate(own, step)[1]
        exact.append(population.loss(scores))
        assert losses[0][step] == pytest.approx(population.loss(own), rel=1e-10)
    np.testing.assert_allclose(expected, exact, rtol=1e-10)
    assert checked.t.tolist() == list(range(1, 13))


def test_points_of_comparison_spread_as_far_as_they_may() -> None:
    """Normal scores, halved until those of a query differ by at most 8: not by much less."""
    risk = icl.PopulationRisk(icl.Features.simplex(4, 1.0), icl.tasks.Linear(2.0), N=6)
    for known in CROSSCHECK._population_values(risk, 6, np.random.default_rng(0)):
        assert 1.0 < np.ptp(known.scores, axis=0).max() <= 8.0
        loss, gradient = risk.evaluate(known.scores)
        assert (known.loss, known.norm) == pytest.approx(
            (loss, np.linalg.norm(gradient))
        )
    wide = icl.PopulationRisk(icl.Features.simplex(4, 60.0), icl.tasks.Linear(2.0), N=6)
    embedded = icl.in_coordinates(wide, "embedding", wide.features.vectors)
    for known in CROSSCHECK._population_values(embedded, 6, np.random.default_rng(0)):
        assert 4.0 - 1e-9 < np.ptp(known.scores, axis=0).max() <= 8.0


def test_prompts_that_are_needed_bring_the_precision_that_is_asked_for() -> None:
    risk = icl.PopulationRisk(icl.Features.simplex(3, 1.0), icl.tasks.Linear(2.0), N=6)
    powers = [
        max(
            icl.crosscheck(
                risk, **(SETTINGS | {"precision": precision, "steps": 1})
            ).power
        )
        for precision in (0.04, 0.01)
    ]
    assert 0.5 < powers[0] / 0.04 < 1.05
    assert 0.5 < powers[1] / 0.01 < 1.05


class Sampled(Risk):
    """A parabola, or one with its minimum elsewhere at every step."""

    def __init__(
        self, size: int, spread: float, metric: float = 1.0, bias: float = 0.0
    ) -> None:
        self.size, self.spread, self.bias, self._metric = size, spread, bias, metric

    @property
    def initial(self) -> Any:
        return np.zeros(self.size)

    @property
    def metric(self) -> float:
        return self._metric

    @property
    def stochastic(self) -> bool:
        return self.spread > 0

    def evaluate(self, params: Any, step: int = 0) -> Any:
        shift = (
            1.0
            + self.bias
            + self.spread * np.random.default_rng(step).normal(size=self.size)
        )
        off = params - shift
        return 0.5 * float(off @ off) - 0.5 * self.size * self.spread**2, off


def test_a_risk_and_its_trainer_are_compared_at_each_point_in_three_ways() -> None:
    exact, points = Sampled(4, 0.0), {"here": np.ones(4) * 3, "there": np.arange(4.0)}
    checks = compare(exact, Sampled(4, 0.3), points, 40)
    assert len(checks) == 6
    assert all(check.passed for check in checks)
    for check in checks:
        assert probability(check.limit, 39) == pytest.approx(ALL / 6, rel=1e-9)
    for name, point in points.items():
        loss, along, _ = (
            check for check in checks if check.name.endswith(f"at {name}")
        )
        gradient = exact.gradient(point)
        assert loss.population == pytest.approx(exact.loss(point))
        assert along.population == pytest.approx(gradient @ gradient)
        assert along.standard_error > 0
    assert not all(
        check.passed for check in compare(exact, Sampled(4, 0.3, bias=0.5), points, 40)
    )


def test_a_reduced_risk_is_compared_by_its_loss_and_the_square_of_its_gradient() -> (
    None
):
    """One number u stands for four that move alike: the loss 2(u - 1)², with the metric 4."""

    class Tied(Sampled):
        def evaluate(self, params: Any, step: int = 0) -> Any:
            return float(2.0 * (params[0] - 1.0) ** 2), 4.0 * (params - 1.0)

    checks = compare(Tied(1, 0.0, metric=4.0), Sampled(4, 0.2), {}, 400)
    assert [check.population for check in checks] == pytest.approx([2.0, 4.0])
    assert all(check.passed for check in checks)
    assert not all(
        check.passed
        for check in compare(Tied(1, 0.0, metric=3.0), Sampled(4, 0.2), {}, 400)
    )
    # squares of batches would be larger than the square of their mean: by 36 here
    assert all(
        check.passed
        for check in compare(Tied(1, 0.0, metric=4.0), Sampled(4, 3.0), {}, 401)
    )


@pytest.mark.parametrize("family", [icl.Sphere, icl.InductionHeads])
def test_samples_are_compared_along_a_whole_run(family: type[icl.Family]) -> None:
    """At the first, a middle and the last saved state, which all have losses of their own."""
    run = family(max_steps=200).simulate()
    found = icl.crosscheck(run, batch=16, batches=4)
    losses = [
        check.population for check in found.checks if check.name.startswith("loss at")
    ]
    assert [
        check.name for check in found.checks if check.name.startswith("loss at")
    ] == [f"loss at {where}" for where in ("the beginning", "the middle", "the end")]
    assert losses == pytest.approx(
        [run.loss[0], run.loss[len(run.t) // 2], run.loss[-1]]
    )
    assert losses[0] > losses[1] > losses[2]
