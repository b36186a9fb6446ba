from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

import icl_theory as icl
from icl_theory import tasks

RNG = np.random.default_rng(3)
FEATURES = icl.Features.random(5, d=3, delta=0.5, seed=2)
VALUES = RNG.normal(size=(4, 5))
ROOT = RNG.normal(size=(5, 5))
FAMILIES: dict[str, tasks.Task] = {
    "exchangeable": tasks.Exchangeable(2.0),
    "cosine, amplitude": tasks.RandomCosine(2.0),
    "cosine, frequency": tasks.RandomCosine(
        2.0, scale="frequency", direction=[1.0, -2.0, 0.5]
    ),
    "fourier": tasks.RandomFourier(1.5, length_scale=2.0),
    "linear": tasks.Linear(1.5),
    "quadratic": tasks.Quadratic(1.5),
    "halfspace": tasks.Halfspace(1.5),
    "kernel": tasks.KernelTask(ROOT @ ROOT.T),
    "finite": tasks.FiniteTask(VALUES, weights=[0.1, 0.2, 0.3, 0.4]),
    "finite, more functions than features": tasks.FiniteTask(RNG.normal(size=(30, 5))),
}
every_family = pytest.mark.parametrize("task", FAMILIES.values(), ids=FAMILIES.keys())


@every_family
def test_variogram_and_factor_are_those_of_the_kernel(task: tasks.Task) -> None:
    kernel = task.kernel(FEATURES)
    by_kernel = 0.5 * (np.diagonal(kernel)[:, None] + np.diagonal(kernel)) - kernel
    np.testing.assert_allclose(
        task.variogram(FEATURES), by_kernel, atol=1e-13 * np.abs(kernel).max()
    )
    factor = task.factor(FEATURES)
    squares = np.sum((factor[:, None, :] - factor[None, :, :]) ** 2, axis=2)
    np.testing.assert_allclose(
        0.5 * squares, by_kernel, atol=1e-13 * np.abs(kernel).max()
    )
    assert factor.shape[1] <= FEATURES.K


@pytest.mark.parametrize("L", [0.3, 2.0])
def test_kernels_are_those_of_their_laws_at_small_and_large_l(L: float) -> None:
    x, direction, scale = FEATURES.vectors, np.array([1.0, -2.0, 0.5]), 0.7
    products, squares = x @ x.T, np.sum((x[:, None] - x) ** 2, axis=2)
    along = (x[:, None] - x) @ direction / np.linalg.norm(direction)
    second = np.einsum("mi,mj,ki,kj->mk", x, x, x, x)
    halves = np.where(np.arange(5) < 3, 1.0, -1.0)
    gap = np.sqrt(squares[squares > 0].min())
    for law, kernel in (
        (tasks.Exchangeable(L), L**2 * gap**2 / 2 * np.eye(5)),
        (tasks.RandomCosine(L, direction=direction), L**2 / 2 * np.cos(along)),
        (tasks.RandomCosine(L, "frequency", direction), 0.5 * np.cos(L * along)),
        (
            tasks.RandomFourier(L, scale),
            L**2 * scale**2 * np.exp(-squares / (2 * scale**2)),
        ),
        (tasks.Linear(L), L**2 / 3 * products),
        (tasks.Quadratic(L), L**2 / 9 * second + L**2 / 3 * products),
        (tasks.Halfspace(L), L**2 * np.outer(halves, halves)),
    ):
        np.testing.assert_allclose(law.kernel(FEATURES), kernel, rtol=1e-12, atol=1e-13)
        variogram = 0.5 * (np.diagonal(kernel)[:, None] + np.diagonal(kernel)) - kernel
        np.testing.assert_allclose(
            law.variogram(FEATURES), variogram, rtol=1e-11, atol=1e-13
        )


@every_family
def test_samples_have_the_kernel_as_second_moments(task: tasks.Task) -> None:
    size = 100_000
    values = task.sample(FEATURES, np.random.default_rng(11), size)
    assert values.shape == (size, FEATURES.K)
    products = values[:, :, None] * values[:, None, :]
    error = products.std(axis=0) / np.sqrt(size) + 1e-12
    assert np.abs((products.mean(axis=0) - task.kernel(FEATURES)) / error).max() < 4.5


@every_family
def test_functions_take_the_sampled_values_at_the_features(task: tasks.Task) -> None:
    points = np.broadcast_to(FEATURES.vectors, (7, *FEATURES.vectors.shape))
    at_features = task.functions(FEATURES, np.random.default_rng(5), 7)(points)
    np.testing.assert_allclose(
        at_features, task.sample(FEATURES, np.random.default_rng(5), 7), rtol=1e-12
    )


def test_functions_at_the_features_alone_have_the_value_of_the_nearest_one_everywhere() -> (
    None
):
    points = np.random.default_rng(1).normal(size=(6, 400, 3))
    nearest = np.argmin(
        ((points[:, :, None] - FEATURES.vectors) ** 2).sum(axis=-1), axis=-1
    )
    for law in (tasks.Exchangeable(2.0), FAMILIES["kernel"], FAMILIES["finite"]):
        values = law.sample(FEATURES, np.random.default_rng(5), 6)
        found = law.functions(FEATURES, np.random.default_rng(5), 6)(points)
        np.testing.assert_array_equal(
            found, np.take_along_axis(values, nearest, axis=1)
        )


@every_family
def test_nondegeneracy_is_the_minimum_over_the_simplex(task: tasks.Task) -> None:
    kernel = task.kernel(FEATURES)
    found = task.nondegeneracy(FEATURES)
    for k in range(FEATURES.K):
        form = kernel - kernel[:, [k]] - kernel[[k], :] + kernel[k, k]
        form = np.delete(np.delete(form, k, axis=0), k, axis=1)
        start = np.full(len(form), 1 / len(form))
        best = minimize(
            lambda x, form=form: x @ form @ x,
            start,
            jac=lambda x, form=form: 2 * form @ x,
            bounds=[(0, 1)] * len(form),
            constraints={"type": "eq", "fun": lambda x: x.sum() - 1},
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 500},
        )
        assert found[k] == pytest.approx(
            max(best.fun, 0.0), abs=1e-6 * np.abs(kernel).max()
        )


@pytest.mark.parametrize("L", [1e-6, 1.0, 1e6])
def test_exchangeable_class_has_variogram_half_L_squared_gap_squared(L: float) -> None:
    variogram = tasks.Exchangeable(L).variogram(icl.Features.simplex(4, delta=0.5))
    np.testing.assert_allclose(
        variogram[~np.eye(4, dtype=bool)], L**2 * 0.125, rtol=1e-12
    )


def test_surely_lipschitz_values_reach_half_of_the_exchangeable_variogram() -> None:
    """Values in [0, LΔ] have a mean squared difference, over all pairs, of at most K/(2(K-1)) (LΔ)², K even."""
    for K in (2, 4, 6):
        splits = np.array(
            [s for s in itertools.product([0.0, 1.0], repeat=K) if sum(s) == K // 2]
        )
        variogram = tasks.FiniteTask(splits).variogram(icl.Features.simplex(K, 1.0))
        np.testing.assert_allclose(
            variogram[~np.eye(K, dtype=bool)], 0.5 * K / (2 * (K - 1)), rtol=1e-12
        )
        pairs = [
            (x[:, None] - x) ** 2
            for x in np.array(list(itertools.product([0.0, 1.0], repeat=K)))
        ]
        assert max(p.sum() for p in pairs) / (K * (K - 1)) == pytest.approx(
            K / (2 * (K - 1))
        )


def test_frequency_reading_of_the_cosine_saturates() -> None:
    variograms = [
        tasks.RandomCosine(L, scale="frequency").variogram(FEATURES).max()
        for L in (0.01, 1e2, 1e4)
    ]
    assert variograms[0] < 0.1
    assert max(variograms) <= 1.0


def test_fourier_variogram_tends_to_the_exchangeable_one_for_close_features() -> None:
    close = icl.Features.simplex(3, delta=1e-6)
    np.testing.assert_allclose(
        tasks.RandomFourier(2.0).variogram(close),
        tasks.Exchangeable(2.0).variogram(close),
        rtol=1e-9,
        atol=1e-30,
    )


def test_halves_cannot_be_told_apart() -> None:
    features = icl.Features.simplex(6, 1.0)
    assert (tasks.Halfspace(1.0).nondegeneracy(features) == 0).all()
    assert tasks.Halfspace(1.0).nondegeneracy(
        icl.Features.simplex(2, 1.0)
    ) == pytest.approx(4.0)


@given(st.integers(2, 8), st.integers(0, 2**32 - 1))
def test_nondegeneracy_lies_below_every_diagonal_entry(K: int, seed: int) -> None:
    root = np.random.default_rng(seed).normal(size=(K, K))
    features = icl.Features.simplex(K, 1.0)
    task = tasks.KernelTask(root @ root.T)
    off = task.variogram(features) + np.diag(np.full(K, np.inf))
    constants = task.nondegeneracy(features)
    assert (constants >= 0).all()
    assert (constants <= 2 * off.min(axis=1) * (1 + 1e-9)).all()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: tasks.Exchangeable(0.0), "L = 0.0"),
        (lambda: tasks.Exchangeable(1e200).kernel(FEATURES), r"L = 1e\+200"),
        (lambda: tasks.RandomCosine(1.0, scale="phase"), "scale = 'phase'"),
        (lambda: tasks.RandomCosine(1.0, direction=[0.0, 0.0]), "direction"),
        (lambda: tasks.RandomCosine(1.0, direction=[1.0]).kernel(FEATURES), "length 3"),
        (lambda: tasks.RandomCosine(1.0).omega(0), "d = 0: must be an integer >= 1"),
        (lambda: tasks.RandomFourier(1.0, length_scale=-1.0), "length_scale = -1.0"),
        (lambda: tasks.Linear(float("inf")), "L = inf"),
        (lambda: tasks.Quadratic(-1.0), "L = -1.0"),
        (lambda: tasks.Halfspace(float("nan")), "L = nan"),
        (lambda: tasks.KernelTask([[1.0, 0.5], [0.4, 1.0]]), "symmetric"),
        (lambda: tasks.KernelTask([[1.0, 2.0], [2.0, 1.0]]), "positive semi-definite"),
        (lambda: tasks.KernelTask(np.eye(3)).kernel(FEATURES), r"shape \(5, 5\)"),
        (lambda: tasks.FiniteTask([[1.0, 2.0]], weights=[0.5]), "weights"),
        (lambda: tasks.FiniteTask([[1.0, 2.0]]).kernel(FEATURES), r"shape \(M, 5\)"),
        (lambda: tasks.FiniteTask([[1.0, np.nan]]), "values"),
    ],
)
def test_refuses_wrong_tasks(make: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()  # type: ignore[operator]
