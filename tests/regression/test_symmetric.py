"""Grouped features against the K x K problem that they stand for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import icl_theory as icl
from icl_theory import tasks
from icl_theory.regression import exchangeable_groups, query_phases
from icl_theory.testing import check_risk
from tests import references


def problem(
    sizes: list[int], weights: list[float], gamma: np.ndarray
) -> tuple[icl.Features, tasks.KernelTask]:
    """Features in groups on a simplex, and the kernel task with the given variogram between the groups."""
    group = np.repeat(np.arange(len(sizes)), sizes)
    variogram = gamma[np.ix_(group, group)].copy()
    np.fill_diagonal(variogram, 0.0)
    row = variogram.mean(axis=0)
    probs = np.array(weights)[group]
    features = icl.Features.simplex(len(group), 1.0, probs / probs.sum())
    return features, tasks.KernelTask(row[:, None] + row - variogram - row.mean())


def variogram(count: int, seed: int) -> np.ndarray:
    """Groups as clusters: within each their own spread, between them the distance of the centres."""
    rng = np.random.default_rng(seed)
    centres, spread = rng.normal(size=(count, 3)), rng.uniform(0.2, 2.0, count)
    squares = np.sum((centres[:, None] - centres) ** 2, axis=2)
    gamma = 0.5 * (squares + spread[:, None] + spread)
    np.fill_diagonal(gamma, spread)
    return gamma


@settings(max_examples=settings.default.max_examples // 2)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3).filter(
        lambda sizes: sum(sizes) >= 2
    ),
    seed=st.integers(0, 10**6),
    N=st.sampled_from([math.inf, 1, 2, 3, 17]),
    noise=st.sampled_from([0.0, 0.5]),
    eta=st.floats(0.1, 5.0),
)
def test_groups_train_like_the_single_features_they_stand_for(
    sizes: list[int], seed: int, N: float, noise: float, eta: float
) -> None:
    weights = np.random.default_rng(seed).uniform(0.1, 1.0, len(sizes)).tolist()
    features, task = problem(sizes, weights, variogram(len(sizes), seed))
    full = icl.PopulationRisk(features, task, N, noise)
    group = np.repeat(np.arange(len(sizes)), sizes)
    reduced = icl.SymmetricRisk.of(features, task, group, N, noise)
    whole, grouped = (
        icl.descend(full, eta, steps=6),
        icl.descend(reduced, eta, steps=6),
    )
    np.testing.assert_allclose(
        reduced.scores(grouped.params), whole.params, rtol=0.0, atol=1e-9
    )
    np.testing.assert_allclose(grouped.loss, whole.loss, rtol=1e-9, atol=1e-300)
    first = np.cumsum([0, *sizes[:-1]])
    np.testing.assert_allclose(grouped.attention, whole.attention[:, first], rtol=1e-9)


@pytest.mark.parametrize(("N", "noise"), [(math.inf, 0.0), (9, 0.4)])
def test_hessian_and_floor_are_those_of_the_full_problem(
    N: float, noise: float
) -> None:
    features, task = problem([1, 2, 3], [0.5, 0.2, 0.1], variogram(3, 5))
    full, reduced = (
        icl.PopulationRisk(features, task, N, noise),
        icl.SymmetricRisk.of(features, task, None, N, noise),
    )
    theta, direction = np.random.default_rng(0).normal(size=(2, *reduced.initial.shape))
    theta[0, 1] = direction[0, 1] = 0.0  # the others of a group of one
    found = float(np.sum(direction * reduced.hessian_product(theta, direction)))
    there = reduced.scores(direction)
    assert found == pytest.approx(
        float(np.sum(there * full.hessian_product(reduced.scores(theta), there))),
        rel=1e-10,
    )
    # in the grouped coordinates the search ends in a valley at infinity, 1.5e-5 above
    # the minimum
    assert reduced.floor() == pytest.approx(
        full.floor(), rel=1e-12 if noise == 0.0 else 2e-5
    )
    np.testing.assert_allclose(reduced.attention(theta).sum(axis=1), 1.0, rtol=1e-12)


def test_one_group_is_the_exchangeable_case() -> None:
    one, grouped = icl.ExchangeableRisk(20, 2.0), icl.SymmetricRisk([20], [0.05], 2.0)
    assert (
        icl.descend(grouped, 4.0, epsilon=1e-3).steps
        == icl.descend(one, 4.0, epsilon=1e-3).steps
        == 1413
    )


def test_a_million_features_are_trained_like_the_thousand_that_tend_to_them() -> None:
    """With p_1 = 1/2 the steps of the dominant feature tend to a limit as the others become many."""
    first = []
    for K in (10**3, 10**4, 10**6):
        run = icl.descend(
            icl.SymmetricRisk([1, K - 1], [0.5, 0.5 / (K - 1)], 2.0),
            4.0,
            steps=10**6,
            method="fast",
        )
        first.append(
            [
                run.first(lambda state, a=a: bool(state.attention[0] >= a))
                for a in (0.9, 0.999)
            ]
        )
    np.testing.assert_allclose(first[1], first[2], rtol=1e-3)
    np.testing.assert_allclose(first[0], first[2], rtol=1e-2)


def test_the_dominant_feature_is_learned_first_and_the_rare_ones_by_stages() -> None:
    """Stage-wise convergence for imbalanced features, which the literature proves for linear tasks.

    For N = inf a rare query first moves its attention from the dominant feature to the
    other rare ones, then to its own.
    """
    K = 50
    rare = 0.5 / (K - 1)
    run = icl.descend(
        icl.SymmetricRisk([1, K - 1], [0.5, rare], 2.0),
        4.0,
        epsilon=1e-5,
        method="fast",
    )
    dominant, others = query_phases(run)
    assert dominant.III is not None
    assert others.III is not None
    assert dominant.I[1] == 0
    assert dominant.III[0] < others.I[1] < others.III[0]
    assert isinstance(run.risk, icl.SymmetricRisk)
    middle = run.risk.attention(run.at(others.I[1] // 2).params)[1]
    assert run.risk.attention(run.risk.initial)[1, 1] == pytest.approx(0.5)
    assert middle[1] < 0.15
    assert middle[0] < 0.1
    assert middle[2] > 0.8


@pytest.mark.parametrize("sizes", [[1, 3, 6], [1, 2] * 12])
@pytest.mark.parametrize("N", [math.inf, 4])
def test_gradients_of_many_states_are_those_of_each(sizes: list[int], N: float) -> None:
    """With few groups the states are evaluated together, with many one by one."""
    probs = np.full(len(sizes), 1.0 / sum(sizes))
    risk = icl.SymmetricRisk(sizes, probs, variogram(len(sizes), 4), N)
    states = np.random.default_rng(5).normal(size=(8, *risk.initial.shape))
    expected = [risk.evaluate(state)[1] for state in states]
    np.testing.assert_allclose(risk.gradients(states), expected, rtol=1e-12)
    check_risk(icl.SymmetricRisk([1, 3], [0.4, 0.2], variogram(2, 4), N))


def test_tail_of_the_groups_is_the_universal_one() -> None:
    risk = icl.SymmetricRisk([1, 3, 6], [0.4, 0.1, 0.05], variogram(3, 1))
    run = icl.descend(risk, 1.0, steps=10**9, method="fast")
    assert run.t[-1] * run.loss[-1] == pytest.approx((risk.K - 1) / 4.0, rel=5e-3)


def test_groups_are_found() -> None:
    features, task = problem([2, 3, 1], [0.1, 0.2, 0.2], variogram(3, 2))
    assert exchangeable_groups(features, task).tolist() == [0, 0, 1, 1, 1, 2]
    halves = icl.Features.simplex(6, 1.0)
    assert exchangeable_groups(halves, tasks.Halfspace(1.0)).tolist() == [
        0,
        0,
        0,
        1,
        1,
        1,
    ]
    assert exchangeable_groups(halves, tasks.Linear(1.0)).tolist() == [0] * 6


def test_the_degenerate_halves_reduce_and_have_no_tail_constant() -> None:
    features = icl.Features.simplex(6, 1.0)
    reduced = icl.SymmetricRisk.of(features, tasks.Halfspace(2.0))
    assert not reduced.nondegenerate
    full = icl.descend(
        icl.PopulationRisk(features, tasks.Halfspace(2.0)), 4.0, steps=500
    )
    np.testing.assert_allclose(
        icl.descend(reduced, 4.0, steps=500).loss, full.loss, rtol=1e-10
    )


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: icl.SymmetricRisk([1, 5], [0.5, 0.5], 1.0), "probs = "),
        (lambda: icl.SymmetricRisk([1, 5], [0.5], 1.0), "probs = "),
        (lambda: icl.SymmetricRisk([0, 5], [0.5, 0.2], 1.0), "sizes = 0.0"),
        (lambda: icl.SymmetricRisk([1.5, 5], [0.5, 0.2], 1.0), "sizes = 1.5"),
        (lambda: icl.SymmetricRisk([1], [1.0], 1.0), "two features or more"),
        (
            lambda: icl.SymmetricRisk([1, 5], [0.5, 0.1], [[1.0, 2.0], [3.0, 1.0]]),
            "variogram = ",
        ),
        (
            lambda: icl.SymmetricRisk([3, 5], [0.1, 0.14], [[9.0, 1.0], [1.0, 9.0]]),
            "variogram = ",
        ),
        (lambda: icl.SymmetricRisk([1, 5], [0.5, 0.1], -1.0), "variogram = -1.0"),
        (lambda: icl.SymmetricRisk([1, 5], [0.5, 0.1], 1.0, N=0), "N = 0"),
        (
            lambda: icl.SymmetricRisk([1, 5], [0.5, 0.1], 1.0, noise=-1.0),
            "noise = -1.0",
        ),
        (
            lambda: icl.SymmetricRisk([1, 10**6], [0.5, 0.5e-6], 1.0).scores(
                np.zeros((2, 3))
            ),
            "20000 features",
        ),
        (
            lambda: icl.SymmetricRisk.of(
                icl.Features.simplex(3, 1.0, [0.5, 0.3, 0.2]),
                tasks.Linear(1.0),
                [0, 1, 1],
            ),
            "groups = .*exchanged with each other",
        ),
        (
            lambda: icl.SymmetricRisk.of(
                icl.Features.simplex(4, 1.0), tasks.Halfspace(1.0), [0, 1, 1, 1]
            ),
            "groups = .*exchanged with each other",
        ),
        (
            lambda: icl.SymmetricRisk.of(
                icl.Features.simplex(3, 1.0), tasks.Linear(1.0), [0, 2, 2]
            ),
            "cover 0, 1",
        ),
        (
            lambda: icl.SymmetricRisk.of(
                icl.Features.simplex(3, 1.0), tasks.Linear(1.0), [0, 1]
            ),
            "groups = ",
        ),
    ],
)
def test_refuses_groups_that_do_not_belong_together(call: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()  # type: ignore[operator]


@pytest.mark.parametrize("sizes", [[1, 3], [2, 2], [1, 1, 3], [2, 1, 2]])
def test_gradient_keeps_its_digits_where_a_wrong_group_has_nearly_all_attention(
    sizes: list[int],
) -> None:
    G, rng = len(sizes), np.random.default_rng(len(sizes))
    probs = 10.0 ** rng.uniform(-15.0, 0.0, G)
    gamma = variogram(G, 7)
    risk = icl.SymmetricRisk(sizes, probs / (sizes @ probs), gamma)
    theta, direction = rng.normal(size=(2, G, G + 1))
    theta[np.arange(G), 1 + (np.arange(G) + 1) % G] += rng.uniform(40.0, 70.0, G)
    group = np.repeat(np.arange(G), sizes)
    single = gamma[np.ix_(group, group)].copy()
    np.fill_diagonal(single, 0.0)
    expected = references.mp_derivatives(
        risk.probs[group], single, risk.scores(theta), risk.scores(direction)
    )
    column = np.where(np.eye(len(group), dtype=bool), 0, 1 + group[:, None])
    for found, full in zip(
        (risk.gradient(theta), risk.hessian_product(theta, direction)),
        expected,
        strict=True,
    ):
        exact = np.zeros((G, G + 1))
        np.add.at(exact, (np.broadcast_to(group, column.shape), column), full)
        assert (
            np.linalg.norm(found - exact, axis=1)
            <= 1e-12 * np.linalg.norm(exact, axis=1)
        ).all()
