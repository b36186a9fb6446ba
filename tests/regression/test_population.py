from __future__ import annotations

import math
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import icl_theory as icl
from icl_theory import tasks
from tests import references

SEEDS = st.integers(0, 2**32 - 1)


def random_problem(
    seed: int, K: int, N: float, noise: float = 0.0
) -> tuple[icl.PopulationRisk, np.ndarray]:
    rng = np.random.default_rng(seed)
    features = icl.Features.simplex(K, 1.0, probs=rng.dirichlet(np.full(K, 3.0)))
    root = rng.normal(size=(K, K))
    return icl.PopulationRisk(
        features, tasks.KernelTask(root @ root.T), N=N, noise=noise
    ), root


@given(
    SEEDS,
    st.integers(2, 4),
    st.integers(1, 20),
    st.floats(0.0, 20.0),
    st.sampled_from([0.0, 0.7]),
)
def test_finite_prompts_equal_the_sum_over_all_counts(
    seed: int, K: int, N: int, size: float, noise: float
) -> None:
    risk, _ = random_problem(seed, K, N, noise)
    S = size * np.random.default_rng(seed + 1).normal(size=(K, K))
    loss, gradient, attention = references.enumerate_finite(
        risk.features.probs, risk.task.kernel(risk.features), S, N, noise
    )
    scale = np.abs(risk.task.kernel(risk.features)).max()
    np.testing.assert_allclose(
        risk.loss_per_query(S), loss, rtol=1e-11, atol=1e-14 * scale
    )
    np.testing.assert_allclose(
        risk.gradient(S), gradient * risk.features.probs, rtol=1e-10, atol=1e-13 * scale
    )
    np.testing.assert_allclose(risk.attention(S), attention, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("gap", [0.0, 5.0, 20.0, 40.0, 60.0])
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_finite_prompts_keep_ten_digits_at_extreme_scores(
    gap: float, noise: float
) -> None:
    K, N = 3, 12
    risk, root = random_problem(8, K, N, noise)
    S = gap * np.eye(K) + np.random.default_rng(4).normal(size=(K, K))
    mine = risk.loss_per_query(S)
    for k in range(K):
        reference = references.mp_finite(risk.features.probs, root, S, N, noise, k)
        assert abs(mine[k] / float(reference) - 1.0) < 1e-11


@pytest.mark.parametrize("gap", [0.0, 10.0, 35.0, 60.0, 300.0])
@pytest.mark.parametrize("K", [3, 8])
def test_infinite_prompts_keep_ten_digits_down_to_tiny_losses(
    gap: float, K: int
) -> None:
    risk, root = random_problem(9, K, math.inf)
    S = gap * np.eye(K) + np.random.default_rng(4).normal(size=(K, K))
    loss, gradient = risk.loss_per_query(S), risk.gradient(S) / risk.features.probs
    for k in range(K):
        expected, slope = references.mp_infinite(risk.features.probs, root, S, k)
        assert abs(loss[k] / float(expected) - 1.0) < 1e-11
        for m in range(K):
            assert gradient[m, k] == pytest.approx(float(slope[m]), rel=1e-10)


def test_a_large_mean_of_the_functions_costs_no_accuracy() -> None:
    """f and f + 10⁶ have the same loss; a formula in the kernel would lose twelve digits."""
    features = icl.Features.simplex(5, 1.0)
    values = np.random.default_rng(0).normal(size=(3, 5)).round(6)
    S = 15.0 * np.eye(5)
    plain = icl.PopulationRisk(features, tasks.FiniteTask(values))
    shifted = icl.PopulationRisk(features, tasks.FiniteTask(values + 2.0**20))
    assert shifted.loss(S) == pytest.approx(plain.loss(S), rel=1e-8)


@pytest.mark.parametrize("rare", [1e-2, 1e-3, 1e-4, 1e-6, 1e-12, 1e-30])
@pytest.mark.parametrize("N", [1, 2, 3, 10])
@pytest.mark.parametrize("gap", [0.0, 20.0, 60.0])
def test_finite_prompts_keep_ten_digits_for_rare_features(
    rare: float, N: int, gap: float
) -> None:
    """A rare feature with the largest weight moves the integrand by ln(1/p)."""
    root = np.array([[0.0, 0.0], [1.0, 0.5], [-0.3, 2.0]])
    features = icl.Features(root, probs=[rare, 0.4, 0.6 - rare])
    risk = icl.PopulationRisk(features, tasks.KernelTask(root @ root.T), N=N)
    S = gap * np.array([[0.0, 1.0, 1.0], [-1.0, 0.0, -0.6], [-0.7, -0.2, 0.0]])
    for k in range(3):
        reference = float(references.mp_finite(features.probs, root, S, N, 0.0, k))
        assert risk.loss_per_query(S)[k] == pytest.approx(reference, rel=1e-11)
    np.testing.assert_allclose(risk.attention(S).sum(axis=0), 1.0, rtol=1e-12)


@pytest.mark.parametrize("distance", [1e-2, 1e-4, 1e-6, 1e-8])
@pytest.mark.parametrize(
    "law",
    [
        tasks.RandomFourier(1.0),
        tasks.Quadratic(1.0),
        tasks.RandomCosine(1.0),
        tasks.Linear(1.0),
    ],
    ids=repr,
)
def test_nearly_equal_features_keep_their_digits(
    distance: float, law: tasks.Task
) -> None:
    """Attention on a feature and its twin only: the loss is Γ of the two times the squared deficit."""
    features = icl.Features([[0.0, 0.0], [distance, 0.0], [1.0, 0.3]])
    S = np.array([[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [-300.0, -300.0, 300.0]])
    risk = icl.PopulationRisk(features, law)
    x, y = features.vectors[:2]
    exact = {
        "RandomFourier": -math.expm1(-0.5 * distance**2),
        "Quadratic": 0.125 * distance**4 + 0.25 * distance**2,
        "RandomCosine": math.sin(0.5 * distance / math.sqrt(5.0)) ** 2,
        "Linear": 0.25 * distance**2,
    }[type(law).__name__]
    missed = float(risk.attention(S)[1, 0])
    assert risk.loss_per_query(S)[0] == pytest.approx(exact * missed**2, rel=1e-10)
    assert law.variogram(features)[0, 1] == pytest.approx(exact, rel=1e-10)
    assert x[0] != y[0]


@given(
    SEEDS,
    st.integers(2, 4),
    st.sampled_from([math.inf, 1, 2, 3, 30]),
    st.sampled_from([0.0, 0.5]),
)
def test_gradient_is_that_of_finite_differences(
    seed: int, K: int, N: float, noise: float
) -> None:
    risk, _ = random_problem(seed, K, N, noise)
    S = np.random.default_rng(seed + 1).normal(size=(K, K))
    np.testing.assert_allclose(
        risk.gradient(S), references.slopes(risk.loss, S), rtol=1e-6, atol=1e-9
    )


@given(
    SEEDS,
    st.integers(2, 6),
    st.sampled_from([math.inf, 1, 2, 7, 300]),
    st.floats(0.0, 50.0),
)
def test_columns_of_the_gradient_sum_to_zero(
    seed: int, K: int, N: float, size: float
) -> None:
    risk, _ = random_problem(seed, K, N, noise=0.3)
    gradient = risk.gradient(size * np.random.default_rng(seed).normal(size=(K, K)))
    variogram = risk.task.variogram(risk.features)
    assert np.abs(gradient.sum(axis=0)).max() < 1e-13 * (variogram.max() + 0.09)


@given(
    SEEDS,
    st.integers(2, 6),
    st.sampled_from([math.inf, 1, 2, 7, 300]),
    st.floats(0.0, 50.0),
)
def test_lemma_2_growth_of_the_target_score_is_not_negative(
    seed: int, K: int, N: float, size: float
) -> None:
    risk, _ = random_problem(seed, K, N)
    growth = risk.growth(size * np.random.default_rng(seed).normal(size=(K, K)))
    assert (
        np.diagonal(growth).min() >= -1e-14 * risk.task.variogram(risk.features).max()
    )


@given(SEEDS, st.integers(2, 5), st.sampled_from([math.inf, 3, 30]))
def test_lemma_1_envelope_holds_with_the_nondegeneracy_constants(
    seed: int, K: int, N: float
) -> None:
    risk, _ = random_problem(seed, K, N)
    S = 3.0 * np.random.default_rng(seed).normal(size=(K, K))
    loss, missed = (
        risk.loss_per_query(S),
        (risk.attention(S) * (1.0 - np.eye(K))).sum(axis=0),
    )
    lowest = risk.task.nondegeneracy(risk.features)
    # E(1 - a)² lies between (E(1 - a))² and E(1 - a)
    assert (loss >= 0.5 * lowest * missed**2 * (1 - 1e-10)).all()
    assert (
        loss <= risk.task.variogram(risk.features).max(axis=0) * missed * (1 + 1e-10)
    ).all()


@given(SEEDS, st.integers(3, 6), st.sampled_from([math.inf, 5]))
def test_relabelling_the_features_relabels_the_gradient(
    seed: int, K: int, N: float
) -> None:
    rng = np.random.default_rng(seed)
    p, root, S = (
        rng.dirichlet(np.ones(K)),
        rng.normal(size=(K, K)),
        rng.normal(size=(K, K)),
    )
    order = rng.permutation(K)
    vectors = rng.normal(size=(K, 3))
    kernel = root @ root.T
    risk = icl.PopulationRisk(icl.Features(vectors, p), tasks.KernelTask(kernel), N=N)
    moved = icl.PopulationRisk(
        icl.Features(vectors[order], p[order]),
        tasks.KernelTask(kernel[np.ix_(order, order)]),
        N=N,
    )
    shuffled = S[np.ix_(order, order)]
    assert moved.loss(shuffled) == pytest.approx(risk.loss(S), rel=1e-11)
    np.testing.assert_allclose(
        moved.gradient(shuffled),
        risk.gradient(S)[np.ix_(order, order)],
        rtol=1e-8,
        atol=1e-13,
    )


@given(SEEDS, st.integers(2, 5))
def test_finite_prompts_approach_infinite_ones_like_one_over_n(
    seed: int, K: int
) -> None:
    limit, _ = random_problem(seed, K, math.inf)
    S = np.random.default_rng(seed).normal(size=(K, K))
    excess = [
        random_problem(seed, K, N)[0].loss(S) - limit.loss(S) for N in (10**5, 10**6)
    ]
    assert excess[0] / excess[1] == pytest.approx(10.0, rel=2e-2)


@pytest.mark.parametrize("N", [1, 2, 50])
def test_floor_is_the_infimum_that_descent_approaches(N: int) -> None:
    risk, _ = random_problem(21, 3, N)
    run = icl.descend(risk, 20.0, steps=2000, method="fast")
    assert run.loss.min() >= risk.floor() * (1 - 1e-12)
    assert run.loss[-1] - risk.floor() < 2e-3 * (run.loss[0] - risk.floor()) + 1e-12


def test_floor_with_label_noise_is_the_minimum_that_descent_reaches() -> None:
    risk, _ = random_problem(22, 3, 20, noise=0.8)
    run = icl.descend(risk, 10.0, steps=5000, method="fast")
    assert run.loss[-1] == pytest.approx(risk.floor(), rel=1e-6)
    assert run.loss[-1] >= risk.floor() * (1 - 1e-9)


def test_a_single_token_leaves_nothing_to_learn() -> None:
    risk, _ = random_problem(3, 4, 1)
    S = np.random.default_rng(0).normal(size=(4, 4)) * 10
    assert np.abs(risk.gradient(S)).max() < 1e-13 * risk.loss(S)
    assert risk.loss(S) == pytest.approx(risk.floor(), rel=1e-13)


def test_long_prompts_keep_their_digits() -> None:
    """ln φ is multiplied by N: it must be exact where φ is nearly one."""
    features, task, S = (
        icl.Features.simplex(20, 1.0),
        tasks.Exchangeable(2.0),
        12.0 * np.eye(20),
    )
    for N in (10**4, 10**6, 10**9):
        risk = icl.PopulationRisk(features, task, N=N)
        assert risk.loss(S) == pytest.approx(
            icl.ExchangeableRisk(20, 2.0, N).loss(np.asarray(12.0)), rel=1e-12
        )


@pytest.mark.parametrize("N", [math.inf, 2, 40])
def test_scores_beyond_any_exponential_have_finite_answers(N: float) -> None:
    risk, _ = random_problem(5, 4, N)
    S = 1e30 * np.random.default_rng(1).normal(size=(4, 4))
    loss, gradient = risk.evaluate(S)
    assert np.isfinite(loss)
    assert np.isfinite(gradient).all()
    np.testing.assert_allclose(risk.attention(S).sum(axis=0), 1.0, rtol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"N": 0}, "N = 0"),
        ({"N": 2.5}, "N = 2.5"),
        ({"N": -math.inf}, "N = -inf"),
        ({"noise": -1.0}, "noise = -1.0"),
        ({"noise": math.nan}, "noise = nan"),
        ({"features": "simplex"}, "features = 'simplex'"),
        ({"task": "linear"}, "task = 'linear'"),
        ({"task": tasks.KernelTask(np.eye(4))}, "matrix"),
    ],
)
def test_refuses_wrong_arguments(arguments: dict[str, object], words: str) -> None:
    given: dict[str, object] = {
        "features": icl.Features.simplex(3, 1.0),
        "task": tasks.Linear(1.0),
        **arguments,
    }
    with pytest.raises(ValueError, match=words):
        icl.PopulationRisk(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize("S", [np.zeros((2, 2)), np.zeros(9), np.full((3, 3), np.nan)])
def test_refuses_wrong_scores(S: np.ndarray) -> None:
    risk = icl.PopulationRisk(icl.Features.simplex(3, 1.0), tasks.Linear(1.0))
    with pytest.raises(ValueError, match="params = "):
        risk.growth(S)


@pytest.mark.parametrize("gap", [1.0, 8.0, 25.0, 60.0])
def test_degenerate_tasks_keep_the_digits_of_their_loss(gap: float) -> None:
    """Attention on features of the same half costs nothing and must not drown what the other half costs."""
    risk = icl.PopulationRisk(icl.Features.simplex(5, 1.0), tasks.Halfspace(3.0))
    S = gap * np.where(np.arange(5)[:, None] < 3, 1.0, 0.0) @ np.ones((1, 5)) + np.eye(
        5
    )
    factor = np.where(np.arange(5) < 3, 3.0, -3.0)[:, None]
    for k in range(5):
        expected, _ = references.mp_infinite(risk.features.probs, factor, S, k)
        assert risk.loss_per_query(S)[k] == pytest.approx(float(expected), rel=1e-12)


def test_risks_can_be_pickled_and_shared_by_threads() -> None:
    risk, _ = random_problem(3, 40, math.inf)
    copied = pickle.loads(pickle.dumps(risk))
    scores = [np.random.default_rng(seed).normal(size=(40, 40)) for seed in range(32)]
    expected = [risk.evaluate(S) for S in scores]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(risk.evaluate, scores))
    for (loss, gradient), (same, also), S in zip(expected, found, scores, strict=True):
        assert loss == same == copied.loss(S)
        np.testing.assert_array_equal(gradient, also)


LAWS = {
    "full factor": lambda root: tasks.Exchangeable(2.0),
    "linear": lambda root: tasks.Linear(2.0),
    "rank two": lambda root: tasks.RandomCosine(2.0),
    "variogram": lambda root: tasks.RandomFourier(1.5),
    "kernel": lambda root: tasks.KernelTask(root @ root.T),
    "halves": lambda root: tasks.Halfspace(2.0),
}


@pytest.mark.parametrize("K", [2, 3, 5, 8])
@pytest.mark.parametrize("law", LAWS)
def test_gradient_keeps_its_digits_where_a_wrong_feature_has_nearly_all_attention(
    law: str, K: int
) -> None:
    """Probabilities are down to 1e-15, and the score of one wrong feature is 35 to 70 above the others."""
    rng = np.random.default_rng(K)
    for seed in range(3):
        probs = 10.0 ** rng.uniform(-15.0, 0.0, K)
        features = icl.Features.random(
            K, K - 1, 0.1, seed=seed, probs=probs / probs.sum()
        )
        risk = icl.PopulationRisk(features, LAWS[law](rng.normal(size=(K, K))))
        S, direction = rng.normal(size=(2, K, K))
        S[(np.arange(K) + rng.integers(1, K, K)) % K, np.arange(K)] += rng.uniform(
            35.0, 70.0, K
        )
        variogram = risk.task.variogram(features)
        expected = references.mp_derivatives(features.probs, variogram, S, direction)
        for found, exact in zip(
            (risk.gradient(S), risk.hessian_product(S, direction)),
            expected,
            strict=True,
        ):
            error = np.linalg.norm(found - exact, axis=0) / np.linalg.norm(
                exact, axis=0
            )
            assert error.max() <= 1e-12


@pytest.mark.parametrize("apart", [0.0, 1e-9, 1e-7])
def test_gradient_keeps_its_digits_where_features_alike_share_nearly_all_attention(
    apart: float,
) -> None:
    """Also where they differ by a little: then digits of the difference decide."""
    features = icl.Features.simplex(6, 1.0, probs=[0.4, 0.3, 0.1, 0.1, 0.05, 0.05])
    root = np.repeat(np.eye(3), 2, axis=0) + apart * np.random.default_rng(1).normal(
        size=(6, 3)
    )
    risk = icl.PopulationRisk(features, tasks.KernelTask(root @ root.T))
    S = np.zeros((6, 6))
    S[[2, 3, 4, 5, 0, 1], np.arange(6)] = S[[3, 2, 5, 4, 1, 0], np.arange(6)] = 33.0
    direction = np.random.default_rng(0).normal(size=(6, 6))
    expected = references.mp_derivatives(
        features.probs, risk.task.variogram(features), S, direction
    )
    found = risk.gradient(S), risk.hessian_product(S, direction)
    for each, exact, digits in zip(
        found, expected, (1e-12, 1e-9 if apart else 1e-12), strict=True
    ):
        assert (
            np.linalg.norm(each - exact, axis=0)
            <= digits * np.linalg.norm(exact, axis=0)
        ).all()
