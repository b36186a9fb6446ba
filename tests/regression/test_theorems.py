"""The theorems as properties: each test asserts one statement over its whole range of parameters."""

from __future__ import annotations

import itertools
import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import icl_theory as icl
from icl_theory import tasks
from icl_theory.papers.regression import concentration_probability, smallest_imbalance
from icl_theory.papers.regression.theorems.checks import missed_squared
from icl_theory.regression import (
    StepCounter,
    crossover,
    flow_time,
    step_bounds,
    tail_start,
    worst_prediction,
)

SEEDS = st.integers(0, 2**32 - 1)
FEATURES = st.integers(2, 2000)
FEW = st.integers(2, 6)
PROMPTS = st.sampled_from([math.inf, 1, 2, 9, 60])
FINITE = st.sampled_from([1, 2, 9, 60])
FAMILIES = st.sampled_from(
    [
        tasks.Exchangeable,
        tasks.Linear,
        tasks.RandomCosine,
        tasks.RandomFourier,
        tasks.Quadratic,
    ]
)


def powers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high).map(lambda x: 10.0**x)


def run_of(
    K: int, c: float, drop: float, delta: float = 1.0, **more: object
) -> icl.Trajectory:
    """A closed run with step constant c, from its initial loss down by the factor ``drop``."""
    gamma = 2.0
    eta = c * (K - 1) ** 2 / (gamma * K)
    return icl.simulate(
        2.0 / delta, delta, eta, K=K, epsilon=drop * gamma * (K - 1) / (2 * K), **more
    )  # type: ignore[arg-type]


def problem(
    seed: int,
    K: int,
    N: float,
    noise: float = 0.0,
    family: type[tasks.Task] | None = None,
) -> icl.PopulationRisk:
    rng = np.random.default_rng(seed)
    features = icl.Features(
        rng.normal(size=(K, K + 1)), probs=rng.dirichlet(np.full(K, 3.0))
    )
    root = rng.normal(size=(K, K))
    law = tasks.KernelTask(root @ root.T) if family is None else family(1.5)  # type: ignore[call-arg]
    return icl.PopulationRisk(features, law, N, noise)


def scores_of(seed: int, K: int, size: float = 2.0) -> np.ndarray:
    return size * np.random.default_rng(seed + 1).normal(size=(K, K))


# Lemma 1


@given(SEEDS, FEW, PROMPTS, FAMILIES)
def test_lemma_1_loss_is_not_negative_and_at_most_the_largest_variogram(
    seed: int, K: int, N: float, family: type[tasks.Task]
) -> None:
    risk = problem(seed, K, N, family=family)
    loss = risk.loss_per_query(scores_of(seed, K))
    assert (loss >= 0).all()
    assert (loss <= risk.task.variogram(risk.features).max(axis=0) * (1 + 1e-12)).all()


@given(SEEDS, FEW, PROMPTS, FAMILIES, st.floats(0.0, 6.0))
def test_lemma_1_envelope_holds_with_certified_constants(
    seed: int, K: int, N: float, family: type[tasks.Task], size: float
) -> None:
    risk = problem(seed, K, N, family=family)
    scores = scores_of(seed, K, size)
    loss, missed = risk.loss_per_query(scores), missed_squared(risk, scores)
    high = risk.task.variogram(risk.features).max(axis=0)
    assert (loss <= high * missed * (1 + 1e-9)).all()
    assert (
        loss
        >= 0.5 * risk.task.nondegeneracy(risk.features) * missed * (1 - 1e-9)
        - 1e-15 * high
    ).all()


@given(SEEDS, FEW, FINITE)
def test_second_moment_of_the_deficit_lies_between_its_mean_squared_and_its_mean(
    seed: int, K: int, N: float
) -> None:
    risk, scores = problem(seed, K, N), scores_of(seed, K)
    mean = 1 - np.diagonal(risk.attention(scores))
    second = missed_squared(risk, scores)
    assert (mean**2 <= second * (1 + 1e-10)).all()
    assert (second <= mean * (1 + 1e-10)).all()


@given(SEEDS, FEW, FINITE, st.floats(0.0, 3.0), st.floats(0.0, 3.0))
def test_label_noise_never_lowers_the_loss(
    seed: int, K: int, N: float, small: float, more: float
) -> None:
    scores = scores_of(seed, K)
    quiet, loud = problem(seed, K, N, small), problem(seed, K, N, small + more)
    assert (
        loud.loss_per_query(scores) >= quiet.loss_per_query(scores) * (1 - 1e-13)
    ).all()


@given(SEEDS, FEW, FINITE, st.floats(0.0, 2.0))
def test_label_noise_adds_its_variance_times_one_function_of_the_scores(
    seed: int, K: int, N: float, noise: float
) -> None:
    scores = scores_of(seed, K)
    base = problem(seed, K, N).loss(scores)
    unit = problem(seed, K, N, 1.0).loss(scores) - base
    assert math.isclose(
        problem(seed, K, N, noise).loss(scores), base + noise**2 * unit, rel_tol=1e-11
    )
    assert 0.5 / N * (1 - 1e-9) <= unit <= 0.5 * (1 + 1e-9)


@given(SEEDS, FEW, st.floats(0.0, 2.0))
def test_label_noise_averages_out_for_infinite_prompts(
    seed: int, K: int, noise: float
) -> None:
    scores = scores_of(seed, K)
    assert problem(seed, K, math.inf, noise).loss(scores) == problem(
        seed, K, math.inf
    ).loss(scores)


@given(SEEDS, FEW, PROMPTS, powers(-3, 3))
def test_loss_scales_with_the_square_of_the_values(
    seed: int, K: int, N: float, factor: float
) -> None:
    risk, scores = problem(seed, K, N), scores_of(seed, K)
    kernel = risk.task.kernel(risk.features)
    larger = icl.PopulationRisk(risk.features, tasks.KernelTask(factor**2 * kernel), N)
    assert math.isclose(
        larger.loss(scores), factor**2 * risk.loss(scores), rel_tol=1e-10
    )


@given(SEEDS, FEW, PROMPTS, st.floats(-20.0, 20.0))
def test_adding_a_constant_to_a_column_of_scores_changes_nothing(
    seed: int, K: int, N: float, shift: float
) -> None:
    risk, scores = problem(seed, K, N), scores_of(seed, K)
    moved = scores + shift * np.random.default_rng(seed).normal(size=K)
    np.testing.assert_allclose(
        risk.loss_per_query(moved), risk.loss_per_query(scores), rtol=1e-11
    )


# Lemma 2


@given(SEEDS, FEW, PROMPTS, FAMILIES, st.floats(0.0, 30.0))
def test_lemma_2_target_growth_is_not_negative(
    seed: int, K: int, N: float, family: type[tasks.Task], size: float
) -> None:
    risk = problem(seed, K, N, family=family)
    growth = risk.growth(scores_of(seed, K, size))
    assert np.diagonal(growth).min() >= -1e-14 * risk.loss(np.zeros((K, K)))


@given(SEEDS, FEW, PROMPTS, st.sampled_from([0.0, 1.0]))
def test_lemma_2_columns_of_the_growth_sum_to_zero(
    seed: int, K: int, N: float, noise: float
) -> None:
    risk = problem(seed, K, N, noise)
    growth = risk.growth(scores_of(seed, K))
    scale = risk.loss(np.zeros((K, K)))
    assert np.abs(growth.sum(axis=0)).max() <= 1e-13 * scale


@given(st.integers(2, 60), powers(-6, 3), st.floats(0.0, 30.0))
def test_lemma_2_cross_terms_are_k_minus_one_times_smaller_in_the_exchangeable_case(
    K: int, gamma: float, u: float
) -> None:
    reduced = icl.ExchangeableRisk(K, gamma)
    risk = icl.PopulationRisk(
        icl.Features.simplex(K, 1.0), tasks.KernelTask(gamma * np.eye(K))
    )
    growth = risk.growth(reduced.scores(u))
    np.testing.assert_allclose(growth[1:, 0], -growth[0, 0] / (K - 1), rtol=1e-9)


@given(FEATURES, powers(-6, 3), st.floats(0.0, 300.0))
def test_lemma_2_growth_is_one_law_in_attention_and_deficit(
    K: int, gamma: float, u: float
) -> None:
    risk = icl.ExchangeableRisk(K, gamma)
    alpha = -float(risk.gradient(np.asarray(u))) / K
    w = (K - 1) * math.exp(-u)
    assert math.isclose(alpha, gamma * w**2 / (1 + w) ** 3 / (K - 1), rel_tol=1e-12)


# Proposition 1


@given(SEEDS, FEW, PROMPTS, FAMILIES, st.floats(0.0, 6.0))
def test_proposition_1_a_small_loss_forces_the_attention(
    seed: int, K: int, N: float, family: type[tasks.Task], size: float
) -> None:
    risk = problem(seed, K, N, family=family)
    scores = scores_of(seed, K, size)
    missed = 1 - np.diagonal(risk.attention(scores))
    constants = risk.task.nondegeneracy(risk.features)
    assert (
        constants * missed**2 <= 2 * risk.loss_per_query(scores) * (1 + 1e-9) + 1e-14
    ).all()


@given(SEEDS, st.integers(2, 7), powers(-3, 3))
def test_proposition_1_worst_lipschitz_function_errs_by_the_weighted_distances(
    seed: int, K: int, L: float
) -> None:
    rng = np.random.default_rng(seed)
    features = icl.Features(rng.normal(size=(K, 2)))
    attention = rng.dirichlet(np.ones(K))
    error, values = worst_prediction(attention, features.distances, L)
    assert math.isclose(
        error, L * float(attention @ features.distances[0]), rel_tol=1e-6
    )
    differences = np.abs(values[:, None] - values)
    assert (differences <= L * features.distances * (1 + 1e-6) + 1e-9 * L).all()


@given(SEEDS, st.integers(2, 7))
def test_proposition_1_every_sampled_lipschitz_function_errs_less(
    seed: int, K: int
) -> None:
    rng = np.random.default_rng(seed)
    features = icl.Features(rng.normal(size=(K, 3)))
    attention = rng.dirichlet(np.ones(K))
    values = tasks.RandomCosine(2.0, direction=rng.normal(size=3)).sample(
        features, rng, 50
    )
    errors = np.abs(values @ attention - values[:, 0])
    assert errors.max() <= 2.0 * float(attention @ features.distances[0]) * (1 + 1e-9)


# Steps, certified


@given(FEATURES, powers(-4, 4), powers(-9, -0.01))
def test_flow_time_bounds_the_steps_from_both_sides(
    K: int, c: float, drop: float
) -> None:
    run = run_of(K, c, drop)
    for n, u in zip(run.t.tolist()[1:], run.states[1:], strict=True):
        if u < 200.0:
            low, high = step_bounds(K, c, float(u))
            assert low <= n <= high


@given(st.integers(4, 2000), powers(-5, -2), powers(-6, -0.3))
def test_certified_bounds_are_a_few_steps_wide_for_small_steps(
    K: int, c: float, drop: float
) -> None:
    run = run_of(K, c, drop)
    low, high = step_bounds(K, c, float(run.params))
    assert high - low <= 2 + 2 * math.log(K) + 2 * math.log(1 / drop)


@given(FEATURES, powers(-4, 2), powers(-8, -0.01))
def test_hitting_step_is_the_first(K: int, c: float, drop: float) -> None:
    run = run_of(K, c, drop)
    assert run.steps is not None
    if 0 < run.steps < 10**8:
        assert run.at(run.steps).loss <= run.epsilon * (1 + 1e-12)
        assert run.at(run.steps - 1).loss > run.epsilon * (1 - 1e-12)


@given(FEATURES, powers(-4, 0), powers(-6, -0.05), st.floats(1.1, 10.0))
def test_a_larger_learning_rate_never_needs_more_steps(
    K: int, c: float, drop: float, factor: float
) -> None:
    slow, fast = run_of(K, c, drop), run_of(K, c * factor, drop)
    assert fast.steps is not None
    assert slow.steps is not None
    assert fast.steps <= slow.steps


@given(FEATURES, powers(-4, -1), st.floats(1.1, 10.0))
def test_a_larger_lipschitz_constant_shortens_phase_one_by_its_square(
    K: int, c: float, factor: float
) -> None:
    one, other = run_of(K, c, 1e-3), run_of(K, c * factor, 1e-3)
    assert one.phases is not None
    assert other.phases is not None
    assert abs(one.phases.I[1] - factor * other.phases.I[1]) <= (1 + factor) * (
        2 + math.log(K)
    )


@given(FEATURES, powers(-3, 3), powers(-8, -0.05), powers(-2, 2))
def test_delta_and_l_enter_through_their_product(
    K: int, c: float, drop: float, delta: float
) -> None:
    one, other = run_of(K, c, drop), run_of(K, c, drop, delta=delta)
    assert one.steps is not None
    assert other.steps is not None
    assert abs(one.steps - other.steps) <= 1 + 1e-9 * one.steps


@given(FEATURES, powers(-6, 6), powers(-9, 9), PROMPTS)
def test_no_learning_rate_is_too_large_for_exchangeable_tasks(
    K: int, gamma: float, eta: float, N: float
) -> None:
    run = icl.descend(icl.ExchangeableRisk(K, gamma, N), eta, steps=30)
    assert (np.diff(run.loss) <= 1e-13 * run.loss[0]).all()


# Flow and phases


@given(FEATURES, st.floats(0.01, 0.98), st.floats(0.01, 0.98))
def test_flow_time_increases_with_the_attention(
    K: int, low: float, high: float
) -> None:
    first, second = (1 / K + x * (1 - 1 / K) for x in sorted((low, high)))
    if second > first * (1.0 + 1e-12):  # neighbours among floats have the same time
        assert flow_time(first, K) < flow_time(second, K)


@given(FEATURES, powers(-4, -1))
def test_phase_one_ends_within_its_certified_bounds(K: int, c: float) -> None:
    run = run_of(K, c, 1e-4)
    assert run.phases is not None
    first = run.phases.I[1]
    if K > 2:
        exact = flow_time(0.5, K) / c
        logarithm = math.log((4 / 27) / ((1 / K) * (1 - 1 / K) ** 2)) if K > 3 else 0.0
        assert exact - 2 <= first <= exact + logarithm + 2


@given(FEATURES, powers(-5, 3), powers(-9, -0.01))
def test_phases_are_ordered_and_cover_the_run(K: int, c: float, drop: float) -> None:
    run = run_of(K, c, drop)
    assert run.phases is not None
    spans = list(run.phases.present().values())
    assert [spans[0][0], spans[-1][1]] == [0, run.t[-1]]
    assert all(left[1] == right[0] for left, right in itertools.pairwise(spans))


@given(
    FEATURES,
    powers(-9, -1),
    powers(-2, 2),
    st.sampled_from([0.2, 0.5, 0.9, 1.1, 2.0, 5.0]),
)
def test_regime_agrees_with_the_crossover(
    K: int, epsilon: float, delta: float, ratio: float
) -> None:
    lipschitz = ratio * crossover(epsilon, delta, K)
    run = icl.simulate(
        lipschitz, delta, 1e-2 * K / (lipschitz * delta) ** 2, K=K, epsilon=epsilon
    )
    assert run.regime == ("sharp" if ratio > 1 else "flat")


@given(FEATURES, powers(-9, 0), powers(-3, 3))
def test_crossover_scales_with_root_epsilon_over_delta(
    K: int, epsilon: float, delta: float
) -> None:
    for leading in (False, True):
        unit = crossover(1.0, 1.0, K, leading_order=leading)
        assert math.isclose(
            crossover(epsilon, delta, K, leading_order=leading),
            unit * math.sqrt(epsilon) / delta,
            rel_tol=1e-12,
        )


@given(st.integers(3, 10**6))
def test_tail_starts_earlier_in_attention_than_its_leading_order(K: int) -> None:
    assert 0 < tail_start(K) < 1 / math.sqrt(2 * K) * (1 + 3 / math.sqrt(K))


# Tail


@given(FEATURES, powers(-3, 1), powers(-9, -5))
def test_tail_law_holds_within_its_stated_error(K: int, c: float, drop: float) -> None:
    run = run_of(K, c, drop)
    a = float(run.attention[-1])
    s = math.sqrt(drop) * (1 - 1 / K)
    ratio = run.t[-1] * run.loss[-1] * 4 * run.eta / (K - 1)
    # t c = F(a) - F(1/K) + O(ln), and 2 s² F = 1 + 4 s + 6 s² ln(1/s) + ...
    error = 4 * s + s**2 * (
        6 * math.log(1 / s) + 2 * K + 8 + 2 * c * math.log(1 / s) + 4 * c
    )
    assert a > 0.9
    assert abs(ratio - 1) <= 1.01 * error


@given(st.integers(3, 30), powers(0, 3), st.sampled_from([3, 10, 50]))
@settings(max_examples=settings().max_examples // 2)  # a tenth of a second each
def test_tail_law_holds_for_exchangeable_finite_prompts(
    K: int, eta: float, N: int
) -> None:
    risk = icl.ExchangeableRisk(K, 1.0, N)
    run = icl.descend(risk, eta, steps=10**9, method="flow")
    assert (
        abs(run.t[-1] * (run.loss[-1] - run.floor) * 4 * eta / (K - 1) - 1)
        < 0.02 + 1e-12 * run.t[-1] * run.floor * eta
    )


# Orders of magnitude


@given(FEATURES, powers(-4, 3), powers(-6, -0.5), st.floats(0.01, 0.4), powers(-1, 1))
@settings(max_examples=settings().max_examples // 3)  # a third of a second each
def test_durations_that_the_audit_confirms_hold_on_every_run(
    K: int, c: float, drop: float, imbalance: float, delta: float
) -> None:
    run = run_of(K, c, drop, delta=delta, imbalance=imbalance)
    for check in icl.check_bounds(run):
        if check.name in ("Phase I duration", "Theorem 2") or "explicit" in check.name:
            assert check.holds is not False, check


def test_theorem_1_fails_for_small_targets_at_fixed_imbalance() -> None:
    """A bound that is logarithmic in 1/ε cannot hold against a tail like 1/t."""
    run = icl.simulate(1.0, 1.0, 0.1, imbalance=0.1, epsilon=1e-8)
    check = next(check for check in icl.check_bounds(run) if check.name == "Theorem 1")
    assert check.holds is False
    assert check.slack is not None
    assert check.slack < 1e-3


# Concentration


@given(st.integers(1, 400), st.integers(2, 12), st.floats(0.01, 0.6))
def test_concentration_is_at_least_the_union_bound(
    N: int, K: int, imbalance: float
) -> None:
    found = concentration_probability(N, K, imbalance)
    assert 0 <= found.value <= 1
    assert found.value + found.error >= 1 - 2 * K * math.exp(-2 * N * imbalance**2)


@given(
    st.integers(1, 300), st.integers(2, 8), st.floats(0.02, 0.5), st.floats(0.01, 0.4)
)
def test_concentration_grows_with_the_imbalance_allowed(
    N: int, K: int, imbalance: float, more: float
) -> None:
    narrow, wide = (
        concentration_probability(N, K, x).value for x in (imbalance, imbalance + more)
    )
    assert narrow <= wide + 1e-12


@given(st.integers(1, 200), st.integers(2, 6), st.floats(0.05, 0.95))
def test_smallest_imbalance_is_enough_and_smallest(
    N: int, K: int, confidence: float
) -> None:
    found = smallest_imbalance(N, K, confidence)
    if 0 < found < 1:
        assert concentration_probability(N, K, found).value >= confidence
        below = found - 0.5 / N / K
        if below > 0:
            assert concentration_probability(N, K, below).value < confidence


@given(FEATURES, powers(-4, 3), st.integers(1, 10**12))
def test_the_state_at_any_step_has_a_smaller_loss_than_before(
    K: int, c: float, n: int
) -> None:
    counter = StepCounter(K, c)
    before, after = (
        float(counter.position(np.asarray(m))) for m in (n, n + max(1, n // 100))
    )
    assert before <= after
