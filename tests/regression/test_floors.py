"""Floors of finite prompts against minimisation, from many starts, of a loss summed over all prompts."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize

import icl_theory as icl
from icl_theory.regression.phases import query_phases, run_phases
from icl_theory.regression.risks.floors import Levels
from icl_theory.regression.risks.level_loss import LevelLoss, Query
from icl_theory.regression.risks.prompts import infima
from icl_theory.regression.tails import (
    query_constants,
    resting_loss,
    tail_limit,
    tail_limits,
)
from tests.references import compositions

Array = NDArray[Any]

# floors above the infimum that a search from equal scores alone gives: by 0.027 % for
# query 5
FINE = {"ftol": 1e-16, "gtol": 1e-11}
SIX = icl.Features(
    [[1, 1.3], [-0.6, 0.6], [-1.1, -0.6], [-0.2, -0.3], [0.6, -1.2], [1, 1]],
    [0.29, 0.04, 0.26, 0.01, 0.01, 0.39],
)


def summed(
    x: Array, p: Array, N: int, noise: float, k: int
) -> Callable[[Array], tuple[float, Array]]:
    """Loss of query k for linear tasks, and its gradient, by a sum over all prompts."""
    n = np.array(list(compositions(N, len(p))), dtype=float)
    weight = np.array(
        [math.factorial(N) / math.prod(map(math.factorial, map(int, row))) for row in n]
    )
    weight *= np.prod(p**n, axis=1)
    form = (x - x[k]) @ (x - x[k]).T / x.shape[1]

    def loss(scores: Array) -> tuple[float, Array]:
        there = np.where(n > 0, scores, -np.inf)
        token = np.exp(there - there.max(axis=1, keepdims=True))
        token /= (n * token).sum(axis=1, keepdims=True)
        a = n * token
        errors, noisy = a @ form, noise**2 * token
        squared, extra = (a * errors).sum(axis=1), (a * noisy).sum(axis=1)
        gradient = a * (errors - squared[:, None] + noisy - extra[:, None])
        return 0.5 * float(weight @ (squared + extra)), weight @ gradient

    return loss


def least(
    x: Array,
    p: Array,
    N: int,
    noise: float,
    k: int,
    rng: np.random.Generator,
    starts: int,
) -> float:
    """Least loss of query k that descents from so many starts come to."""
    loss, best = summed(x, p, N, noise, k), math.inf
    scale = loss(np.zeros(len(p)))[0]
    for i in range(starts):
        start = rng.normal(size=len(p)) * (1.0, 3.0, 8.0)[i % 3]
        start[k] += 0.0 if noise else start.max() - start[k] + 8.0
        found = minimize(
            lambda s: tuple(v / scale for v in loss(s)),
            start,
            jac=True,
            method="L-BFGS-B",
            options=FINE,
        )
        best = min(best, *(loss(found.x * stretch)[0] for stretch in (1.0, 3.0, 10.0)))
    return best


def test_no_random_problem_has_a_loss_below_its_floor() -> None:
    """Twenty queries of six problems, a third of them with noise."""
    rng, close, queries = np.random.default_rng(11), 0, 0
    for i in range(6):
        K, N, noise = (
            3 + i % 2,
            2 + i // 4,
            float(i % 3 == 0) * 10.0 ** rng.uniform(-1, 0),
        )
        x, p = rng.normal(size=(K, 2)), rng.dirichlet(np.ones(K))
        floors = icl.PopulationRisk(
            icl.Features(x, p), icl.tasks.Linear(1.0), N, noise
        ).floor_per_query()
        for k, floor in enumerate(floors):
            lowest = least(x, p / p.sum(), N, noise, k, rng, 3)
            assert lowest >= floor * (1.0 - 1e-7)
            close += lowest <= floor * (1.0 + 1e-4)
            queries += 1
    assert queries > 20
    assert close >= queries - 2


@pytest.mark.parametrize("query", [0, 5])
def test_the_floor_of_six_features_is_the_least_loss_from_six_starts(
    query: int,
) -> None:
    floor = icl.PopulationRisk(SIX, icl.tasks.Linear(1.0), 2).floor_per_query()[query]
    lowest = least(SIX.vectors, SIX.probs, 2, 0.0, query, np.random.default_rng(1), 6)
    assert floor == pytest.approx(lowest, rel=1e-6)
    assert lowest >= floor * (1.0 - 1e-9)


def test_scores_that_are_set_by_hand_are_not_below_the_floor() -> None:
    risk = icl.PopulationRisk(SIX, icl.tasks.Linear(1.0), 2)
    scores = np.zeros((6, 6))
    scores[:, 5] = 8.0, 5.6, -31.0, 5.6, -30.0, 28.0
    assert risk.loss_per_query(scores)[5] >= risk.floor_per_query()[5]


@cache
def fine() -> icl.Trajectory:
    """Return a run that comes near to a loss above its floor."""
    return icl.descend(
        icl.PopulationRisk(SIX, icl.tasks.Linear(1.0), 2),
        1.0,
        steps=10**7,
        method="fast",
    )


def test_descent_approaches_the_loss_of_its_levels_where_the_floor_is_lower() -> None:
    run = fine()
    risk = run.risk
    assert isinstance(risk, icl.PopulationRisk)
    assert risk.levels is not None
    levels = risk.levels[5]
    assert levels.loss > 1.0002 * levels.lowest
    assert run.observed["loss_per_query"][-1][5] == pytest.approx(levels.loss, rel=1e-5)
    constants = query_constants(risk)
    assert constants is not None
    excess = float(run.observed["loss_per_query"][-1][5]) - levels.loss
    assert 1e7 * float(SIX.probs[5]) * excess == pytest.approx(constants[5], rel=0.02)
    rest = resting_loss(risk, run.floor)
    assert rest < run.loss[-1] < rest + 0.1 * (rest - run.floor)


def test_the_last_phase_is_that_of_the_loss_that_descent_approaches() -> None:
    run = fine()
    early, late = (run.at(t).loss for t in (10**6, 10**7))
    rest = (10.0 * late - early) / 9.0  # of a loss that falls like rest + C/t
    limit = tail_limit(run.risk, run.eta)  # type: ignore[arg-type]
    assert limit is not None
    assert (
        rest - run.floor > 5.0 * limit / 10**7
    )  # so that the phase has another beginning by the floor, or none
    phases = run_phases(run, limit)
    assert phases.III is not None
    begin, end = phases.III
    assert end == run.t[-1]
    assert (run.t * (run.loss - rest) <= 2.02 * limit)[run.t >= begin].all()
    assert begin == 0 or (begin - 1) * (run.at(begin - 1).loss - rest) > 1.98 * limit


def test_the_last_phase_of_a_query_is_that_of_the_loss_that_it_approaches() -> None:
    """Feature 5, whose floor is so much lower that by the floor it has no last phase."""
    run = fine()
    early, late = (
        float(run.at(t).observed["loss_per_query"][5]) for t in (10**6, 10**7)
    )
    rest = (10.0 * late - early) / 9.0  # of a loss that falls like rest + C/t
    limits = tail_limits(run.risk, run.eta)  # type: ignore[arg-type]
    assert limits is not None
    last = query_phases(run)[5].III
    assert last is not None
    assert last[1] == run.t[-1]
    excess = run.observed["loss_per_query"][:, 5] - rest
    assert (run.t * excess <= 2.02 * limits[5])[run.t >= last[0]].all()


def test_what_queries_miss_of_their_floors_is_weighed_with_the_probabilities_of_all_features() -> (
    None
):
    single = icl.PopulationRisk(SIX, icl.tasks.Linear(1.0), 2)
    groups = icl.SymmetricRisk(
        np.array([1.0, 3, 2]), np.array([0.4, 0.1, 0.15]), np.asarray(2.0), 3
    )
    for risk, weights in ((single, SIX.probs), (groups, np.array([0.4, 0.3, 0.3]))):
        missed = np.geomspace(1.0, 0.01, len(weights))
        risk.__dict__["levels"] = tuple(
            Levels(0.5 + off, (), (), (), 0.5) for off in missed
        )
        assert resting_loss(risk, 0.7) == pytest.approx(
            0.7 + float(weights @ missed), rel=1e-12
        )


def test_the_tail_ratio_of_runs_and_points_is_over_the_loss_that_descent_approaches() -> (
    None
):
    rates = [2.0, 1.8]
    problem = icl.Regression(
        L=1.0, delta=SIX.gap, features=SIX, task="linear", N=2, eta=1.0, above=0.15
    )
    swept = icl.sweep(**{**problem.arguments(), "eta": rates}, progress=False)
    for rate, ratio, attention in zip(
        rates, swept.tail_ratio.values, swept.attention.values, strict=True
    ):
        run = problem.changed(eta=rate).simulate()
        rest, limit = resting_loss(run.risk, run.floor), tail_limit(run.risk, rate)  # type: ignore[arg-type]
        assert limit is not None
        assert rest > run.floor + 1e-5
        wanted = float(run.t[-1]) * (float(run.loss[-1]) - rest) / limit
        assert problem.measured(run)["tail_ratio"] == pytest.approx(wanted, rel=1e-12)
        assert ratio == pytest.approx(wanted, rel=1e-6)
        for found in (attention, problem.measured(run)["attention"]):
            assert found == pytest.approx(float(run.attention[-1].mean()), rel=1e-7)


def test_a_search_for_many_features_starts_from_equal_scores_too_if_there_is_noise() -> (
    None
):
    """From the target alone it would end 0.16 % higher for query 1."""
    x = [[-0.7, -0.3], [-0.8, -2.4], [-1.2, 0.5], [1.6, 1.8], [0.1, 0.9]]
    features = icl.Features(x, [0.075, 0.248, 0.459, 0.044, 0.174])
    risk = icl.PopulationRisk(features, icl.tasks.Linear(1.0), 45, 0.2)
    found = infima(risk._moments, np.eye(5, dtype=bool), 45, 0.2)
    np.testing.assert_allclose(found, risk.floor_per_query(), rtol=1e-4)


@pytest.mark.parametrize(("N", "noise"), [(3, 0.5), (20, 0.5), (3, 0.0)])
def test_more_features_than_have_their_levels_searched_have_the_floor_of_one_number(
    N: int, noise: float
) -> None:
    """Thirteen alike, each by itself and as a group of its own."""
    expected = icl.ExchangeableRisk(13, 2.0, N, noise).floor()
    single = icl.PopulationRisk(
        icl.Features.simplex(13, 1.0), icl.tasks.Exchangeable(2.0), N, noise
    )
    groups = icl.SymmetricRisk([1] * 13, [1.0 / 13.0] * 13, 2.0, N, noise)
    assert single.levels is groups.levels is None
    for risk in (single, groups):
        assert risk.floor() == pytest.approx(expected, rel=1e-6)


def test_newtons_method_ends_at_a_minimum_nearby_or_nowhere() -> None:
    """From starts far out it is thrown further: what it meets there is no minimum of the search before it."""
    rng, every, ended = np.random.default_rng(5), np.ones(4, dtype=bool), []
    for far in (0.1, 1.0, 3.0, 6.0) * 12:
        x, p = rng.normal(size=(4, 2)), rng.dirichlet(np.full(4, 2.0))
        form = (x - x[0]) @ (x - x[0]).T / 2
        query = Query(form, np.diagonal(form) + 0.3**2, p, 6, 0.3, 0)
        whole = LevelLoss(query, level=every, above=~every)
        start = whole.minimise(np.zeros(4)) + rng.normal(size=4) * far
        minimum = whole.nearest_minimum(start)
        ended.append(minimum is not None)
        if minimum is not None:
            moments = whole.moments(minimum)
            assert np.abs(minimum - start).max() < 5.0
            assert np.abs(moments.gradient).max() < 1e-8 * moments.loss
    assert any(ended)
    assert not all(ended)
