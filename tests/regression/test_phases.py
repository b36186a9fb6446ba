from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import icl_theory as icl
from icl_theory import tasks
from icl_theory.regression import (
    crossover,
    flow_time,
    papers_regime,
    query_phases,
    tail_start,
)

EXPONENTS = st.floats(-3.0, 3.0).map(lambda x: 10.0**x)


def intervals(phases: icl.engine.Phases | None) -> list[tuple[int, int]]:
    assert phases is not None
    return [interval for interval in phases.values() if interval is not None]


@given(
    EXPONENTS,
    EXPONENTS,
    EXPONENTS,
    st.integers(2, 5000),
    st.floats(-9.0, 0.0).map(lambda x: 10.0**x),
)
def test_phases_are_ordered_and_cover_the_run(
    L: float, delta: float, eta: float, K: int, epsilon: float
) -> None:
    run = icl.simulate(L, delta, eta, K=K, epsilon=epsilon)
    spans = intervals(run.phases)
    assert spans[0][0] == 0
    assert spans[-1][1] == run.t[-1]
    for (begin, end), (following, _) in zip(
        spans, [*spans[1:], (spans[-1][1], 0)], strict=True
    ):
        assert begin <= end == following


@pytest.mark.parametrize("K", [2, 3, 20, 400])
def test_phases_end_where_the_attention_says(K: int) -> None:
    run = icl.simulate(3.0, 1.0, 2.0, K=K, epsilon=1e-7)
    assert run.phases is not None
    first, second = run.phases.I[1], intervals(run.phases)[1][1]
    assert run.at(first).attention >= 0.5 - 1e-12
    assert first == 0 or run.at(first - 1).attention < 0.5
    threshold = 1 - tail_start(K)
    assert run.at(second).attention >= threshold - 1e-12
    assert second == 0 or run.at(second - 1).attention < threshold


@pytest.mark.parametrize("method", ["exact", "flow"])
def test_methods_agree_on_the_phases(method: str) -> None:
    closed = icl.simulate(1.0, 1.0, 0.5, K=10, epsilon=2e-3)
    other = icl.simulate(1.0, 1.0, 0.5, K=10, epsilon=2e-3, method=method)
    slack = 0 if method == "exact" else 5
    for mine, theirs in zip(
        intervals(closed.phases), intervals(other.phases), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, atol=slack)


@pytest.mark.parametrize("K", [3, 20, 1000, 10**6])
def test_tail_begins_where_its_term_is_half_of_the_elapsed_time(K: int) -> None:
    s = tail_start(K)
    assert 0.5 * s**-2 == pytest.approx(0.5 * flow_time(1 - s, K), rel=1e-10)
    assert s * math.sqrt(2 * K) == pytest.approx(1.0, abs=3.0 / math.sqrt(K))


def test_tail_ratio_is_two_there_and_tends_to_one() -> None:
    K, eta = 50, 0.01
    run = icl.simulate(1.0, 1.0, eta, K=K, epsilon=1e-8)
    tail = (K - 1) / (4 * eta)
    assert run.phases is not None
    assert run.phases.III is not None
    state = run.at(run.phases.III[0])
    assert state.t * state.loss / tail == pytest.approx(2.0, rel=1e-3)
    assert run.t[-1] * run.loss[-1] / tail == pytest.approx(1.0, rel=0.05)


@given(
    EXPONENTS,
    st.integers(2, 3000),
    st.floats(-8.0, 0.0).map(lambda x: 10.0**x),
    EXPONENTS,
)
def test_regime_is_sharp_exactly_where_the_tail_is_reached(
    delta: float, K: int, epsilon: float, ratio: float
) -> None:
    boundary = crossover(epsilon, delta, K)
    if abs(ratio - 1) < 0.05:
        return
    run = icl.simulate(
        ratio * boundary,
        delta,
        1e-3 / (ratio * boundary * delta) ** 2,
        K=K,
        epsilon=epsilon,
    )
    assert run.regime == ("sharp" if ratio > 1 else "flat")
    assert run.phases is not None
    assert (run.phases.III is not None) == (ratio > 1)


@pytest.mark.parametrize("K", [20, 1000, 10**6])
def test_leading_order_crossover_is_the_exact_one_for_many_features(K: int) -> None:
    ratio = crossover(1e-3, 1.0, K) / crossover(1e-3, 1.0, K, leading_order=True)
    assert ratio == pytest.approx(1.0, abs=3 / math.sqrt(K))


def test_unequal_queries_are_in_phase_one_until_the_slowest_attends() -> None:
    run = icl.simulate(2.0, 1.0, 4.0, K=4, probs=[0.7, 0.1, 0.1, 0.1], epsilon=1e-3)
    assert run.phases is not None
    end = run.phases.I[1]
    assert run.at(end).attention.min() >= 0.5 > run.at(end - 1).attention.min()
    assert run.phases.III is not None
    state = run.at(run.phases.III[0])
    assert state.t * state.loss * 16 / 3 <= 2.0


def test_degenerate_tasks_never_leave_phase_one() -> None:
    run = icl.simulate(2.0, 1.0, 4.0, K=6, task=tasks.Halfspace, epsilon=1e-4)
    assert run.converged
    assert run.phases == icl.engine.Phases(I=(0, int(run.t[-1])), II=None, III=None)
    assert run.attention[-1].max() < 0.34


@pytest.mark.parametrize("arguments", [(0.0, 1.0), (1e-3, -1.0), (1e-3, 1.0, 1)])
def test_crossover_refuses_wrong_arguments(arguments: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="must be"):
        crossover(*arguments)  # type: ignore[arg-type]


def test_every_query_has_its_own_phases() -> None:
    p = [0.6, 0.25, 0.15]
    run = icl.simulate(2.0, 1.0, 1.0, K=3, probs=p, epsilon=1e-3)
    phases = query_phases(run)
    assert [one.I[1] for one in phases] == sorted(one.I[1] for one in phases)
    for k, one in enumerate(phases):
        end = one.I[1]
        assert run.at(end).attention[k] >= 0.5
        assert end == 0 or run.at(end - 1).attention[k] < 0.5
        assert one.III is not None
        state = run.at(one.III[0])
        assert state.t * p[k] * state.observed["loss_per_query"][k] * 4 * 3 / 2 <= 2.0
    assert run.phases is not None
    assert run.phases.I[1] == max(one.I[1] for one in phases)


def test_queries_of_finite_prompts_are_in_their_tail_by_the_excess_over_their_own_floor() -> (
    None
):
    run = icl.simulate(2.0, 1.0, 4.0, K=3, probs=[0.5, 0.3, 0.2], N=5, above=1e-3)
    assert isinstance(run.risk, icl.PopulationRisk)
    floors = run.risk.floor_per_query()
    for k, one in enumerate(query_phases(run)):
        assert one.III is not None
        state = run.at(one.III[0])
        excess = run.risk.features.probs[k] * (
            state.observed["loss_per_query"][k] - floors[k]
        )
        assert state.t * excess * 4 * 4 * 3 / 2 <= 2.0


@pytest.mark.parametrize("rule", ["gd", "ngd", "ngd-blocks"])
@pytest.mark.parametrize("N", [math.inf, 40])
def test_only_plain_descent_has_the_tail_of_its_law(rule: str, N: float) -> None:
    """That of other rules falls faster, and passes any multiple of 1/t at some step that says nothing."""
    problem = icl.regression.GroupedRegression(
        L=2.0,
        delta=1.0,
        sizes=(2, 3),
        shares=(0.6, 0.4),
        N=N,
        eta=0.5,
        rule=rule,
        above=3e-3,
        max_steps=10**4,
    )
    run = problem.simulate()
    risk = icl.PopulationRisk(
        icl.Features.simplex(3, 1.0, [0.5, 0.3, 0.2]), tasks.Linear(2.0), N
    )
    single = icl.descend(risk, 0.5, rule=rule, above=3e-3, steps=10**4)
    for each in (*query_phases(run), *query_phases(single)):
        assert (each.III is not None) == (rule == "gd"), each
    if math.isinf(N):
        assert run.phases is not None
        assert (run.phases.III is not None) == (rule == "gd")


def test_the_tail_begins_for_good_after_the_last_feature_is_learned() -> None:
    """Frequent features are long in their tail when the loss of a rare one begins to weigh as much as theirs."""
    problem = icl.regression.GroupedRegression(
        L=1.0,
        delta=1.0,
        sizes=(20, 1),
        shares=(1.0 - 1e-4, 1e-4),
        eta=1.0,
        above=3e-8,
        method="fast",
    )
    run = problem.simulate()
    ratio = run.t * run.loss * 4.0 / 20.0
    assert len(np.flatnonzero((ratio[1:] > 2.0) & (ratio[:-1] <= 2.0))) == 2
    assert run.phases is not None
    assert run.phases.III is not None
    begin = run.phases.III[0]
    assert (ratio[run.t >= begin] <= 2.0).all()
    before = run.at(begin - 1)
    assert before.t * before.loss * 4.0 / 20.0 > 2.0


def test_queries_that_are_alike_have_one_set_of_phases() -> None:
    with pytest.raises(ValueError, match=r"are in run\.phases"):
        query_phases(icl.simulate(2.0, 1.0, 4.0))


def test_papers_rule_stands_beside_the_exact_one() -> None:
    run = icl.simulate(2.0, 1.0, 4.0, imbalance=0.1)
    assert run.regime == "sharp"
    assert papers_regime(2.0, 1.0, 0.1) == "flat"
    assert papers_regime(8.0, 1.0, 0.125) == "flat"  # at the boundary itself
    assert run.notes["paper's rule"] == "flat (L against 1/(Δδ), δ = 0.1)"
    assert run.notes["paper's rule"] in run.summary()
    assert (
        icl.simulate(2.0, 8.0, 4.0, imbalance=0.1)
        .notes["paper's rule"]
        .startswith("sharp")
    )
    with pytest.raises(ValueError, match="imbalance = 1"):
        papers_regime(2.0, 1.0, 1)


def attention_where_present(u: float, K: int, N: int) -> float:
    """Mean target attention over the binomial counts of the query's feature from 1 on."""
    n = np.arange(1, N + 1)
    weight = np.array(
        [
            math.comb(N, int(c)) * (1 / K) ** c * (1 - 1 / K) ** (N - c)
            for c in n.tolist()
        ]
    )
    return float(weight @ (n / (n + (N - n) * math.exp(-u))) / weight.sum())


def test_short_prompts_leave_phase_one_though_few_contain_the_query() -> None:
    """Half of the prompts lack the query's feature, so that the attention over all of them stays below one half."""
    run = icl.simulate(2.0, 1.0, 4.0, K=20, N=13)
    assert run.attention[-1] < 0.5
    assert run.phases is not None
    end = run.phases.I[1]
    assert 0 < end < run.t[-1]
    assert attention_where_present(float(run.at(end).params), 20, 13) >= 0.5
    assert attention_where_present(float(run.at(end - 1).params), 20, 13) < 0.5


def test_phases_of_single_and_grouped_features_are_those_of_the_reduced_problem() -> (
    None
):
    reduced = icl.simulate(2.0, 1.0, 4.0, K=6, N=4, epsilon=1e-9, max_steps=300).phases
    assert reduced is not None
    features = icl.Features.simplex(6, 1.0)
    single = icl.PopulationRisk(features, tasks.Exchangeable(2.0), N=4)
    for risk in (
        single,
        icl.in_coordinates(single, "embedding", features.vectors),
        icl.SymmetricRisk([6], [1 / 6], 2.0, N=4),
    ):
        eta = 16.0 if isinstance(risk, icl.engine.Pullback) else 4.0
        run = icl.descend(risk, eta, steps=300)
        assert {phases.I for phases in query_phases(run)} == {reduced.I}


@pytest.mark.parametrize("probs", [None, [0.5, 0.3, 0.2]])
def test_phases_of_long_prompts_tend_to_those_of_infinite_ones(
    probs: list[float] | None,
) -> None:
    runs = [
        icl.simulate(2.0, 1.0, 0.02, K=3, N=N, probs=probs, epsilon=0.25)
        for N in (30, 1000, math.inf)
    ]
    ends = [run.phases.I[1] for run in runs if run.phases is not None]
    assert abs(ends[1] - ends[2]) < abs(ends[0] - ends[2])
    assert abs(ends[1] - ends[2]) < 0.01 * ends[2]


def test_one_token_prompts_attend_from_the_start_wherever_they_can() -> None:
    run = icl.simulate(2.0, 1.0, 4.0, K=5, N=1, max_steps=5)
    assert run.phases is not None
    assert run.phases.I == (0, 0)


def test_finite_prompts_need_their_risk_to_tell_the_phases(tmp_path: Path) -> None:
    features = icl.Features.simplex(3, 1.0, [0.5, 0.3, 0.2])
    run = icl.descend(
        icl.PopulationRisk(features, tasks.Exchangeable(2.0), 50), 4.0, epsilon=0.02
    )
    run.save(tmp_path / "run.npz")  # which has no words for a risk of no family
    with pytest.raises(ValueError, match="one with its risk"):
        query_phases(icl.load(tmp_path / "run.npz"))


def test_finite_prompts_have_the_same_phases_after_loading(tmp_path: Path) -> None:
    run = icl.simulate(2.0, 1.0, 4.0, K=3, probs=[0.5, 0.3, 0.2], N=50, epsilon=0.02)
    run.save(tmp_path / "run.npz")
    assert query_phases(icl.load(tmp_path / "run.npz")) == query_phases(run)


def test_infinite_prompts_need_no_risk_to_tell_when_queries_attend(
    tmp_path: Path,
) -> None:
    run = icl.simulate(
        2.0,
        1.0,
        4.0,
        K=3,
        probs=[0.5, 0.3, 0.2],
        epsilon=1e-4,
        task=lambda L: tasks.Linear(L),
    )
    run.save(tmp_path / "run.npz")  # which has no words for a function
    loaded = icl.load(tmp_path / "run.npz")
    assert loaded.risk is None
    assert [phases.I for phases in query_phases(loaded)] == [
        phases.I for phases in query_phases(run)
    ]
    assert all(phases.III is not None for phases in query_phases(run))
    assert all(phases.III is None for phases in query_phases(loaded))
