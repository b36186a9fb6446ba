"""Finitely many pretraining prompts: fits by code of its own, and normal features drawn as they are assumed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.papers.linear_attention import (
    diversity,
    pretrained,
    pretraining_limit,
)
from icl_theory.papers.linear_attention import statements as papers

QUERY = (0.2, 1.0, 3.0)
TASKS = ((1.0, -0.5, 0.3), (0.2, 1.5, -1.0))


def fitted(problem: icl.LinearAttention, n: int, rng: np.random.Generator) -> Any:
    """Draw prompts one by one, and solve the least squares by a pseudo-inverse."""
    rows, targets, width = [], [], np.sqrt(np.arange(1.0, 4.0) ** -problem.decay)
    for _ in range(n):
        w = (
            rng.normal(size=3)
            if problem.tasks is None
            else np.array(problem.tasks)[rng.integers(2)]
        )
        X = width * rng.normal(size=(int(problem.N), 3))
        h = X.T @ (X @ w + problem.noise * rng.normal(size=len(X))) / problem.N
        x = np.sqrt(QUERY) * rng.normal(size=3)
        rows.append(np.outer(x, h).ravel())
        targets.append(x @ w + problem.noise * rng.normal())
    return (np.linalg.pinv(np.array(rows)) @ targets).reshape(3, 3)


@pytest.mark.parametrize(
    ("tasks", "n"),
    [(None, 40), (TASKS, 5), pytest.param(TASKS, 60, marks=pytest.mark.slow)],
)
def test_fits_have_the_losses_of_fits_by_other_code(tasks: Any, n: int) -> None:
    """Logarithms of both losses over 250 draws each; |z| < 4."""
    problem, rng = (
        icl.LinearAttention(d=3, N=5, decay=1.0, noise=1.0, tasks=tasks, query=QUERY),
        np.random.default_rng(7),
    )
    ours = [pretrained(problem, n, seed) for seed in range(250)]
    theirs = [fitted(problem, n, rng) for _ in range(250)]
    for law in (problem.law(), problem.new_tasks()):
        a, b = (np.log([law.loss(gamma) for gamma in each]) for each in (ours, theirs))
        assert abs(a.mean() - b.mean()) < 4.0 * np.hypot(a.std(), b.std()) / 250**0.5


def test_tasks_of_a_number_are_those_of_the_law() -> None:
    """With as many prompts as make no difference the fit is the best matrix of the drawn tasks."""
    problem = icl.LinearAttention(d=2, N=4, noise=2.0, tasks=3, seed=3)
    assert problem.law().excess(
        pretrained(problem, 50_000)
    ) < 2e-3 * problem.law().loss(np.zeros((2, 2)))


def test_fits_to_prompts_in_general_position_are_those_of_their_law() -> None:
    """Moments of tokens, tasks and queries that do not commute: with many prompts the fit is the best matrix."""
    problem = icl.LinearAttention(
        covariance=[[1.0, 0.6], [0.6, 0.5]],
        prior=[[0.5, -0.4], [-0.4, 2.0]],
        query=[[0.3, 0.2], [0.2, 2.0]],
        N=4,
        noise=0.5,
    )
    law = problem.law()
    assert law.excess(pretrained(problem, 30_000, seed=1)) < 3e-3 * law.loss(
        np.zeros((2, 2))
    )
    thin = problem.changed(query=[[1.0, 0.99], [0.99, 1.0]])
    limit = float(pretraining_limit(thin, 400).new) - thin.law().floor
    found = np.mean(
        [thin.law().excess(pretrained(thin, 400, seed)) for seed in range(40)]
    )
    # the limit of large d is a quarter here; with the queries' variances along the axes
    # it would be 185 times that
    assert limit < found < 10.0 * limit


@pytest.mark.parametrize("tasks", [6, pytest.param(None, marks=pytest.mark.slow)])
def test_the_limit_is_that_of_normal_features(tasks: int | None) -> None:
    """Features with the covariance Λ_q ⊗ M, noise independent of them, fits of least norm: means of 60 draws."""
    problem = icl.LinearAttention(d=12, N=24, decay=0.5, noise=0.5, tasks=tasks)
    law, rng = problem.law().dense, np.random.default_rng(0)
    root = np.linalg.cholesky(np.kron(law.moments[2], law.second))
    deviation = (2.0 * law.floor + 0.25) ** 0.5
    counts = [50, 100, 220, 500]
    limit = pretraining_limit(problem, counts)
    for at, n in enumerate(counts):
        found = []
        for _ in range(60):
            rows = rng.normal(size=(n, 144)) @ root.T
            target = rows @ law.best.ravel() + deviation * rng.normal(size=n)
            gamma = np.linalg.lstsq(rows, target)[0].reshape(12, 12)
            found.append((law.loss(gamma), problem.new_tasks().loss(gamma)))
        mean, error = np.mean(found, axis=0), np.std(found, axis=0) / 60**0.5
        for ours, drawn, spread in zip(
            (limit.pretraining[at], limit.new[at]), mean, error, strict=True
        ):
            assert abs(ours - drawn) < 4.0 * spread + 0.01 * drawn


def test_the_limit_of_alike_features_is_closed() -> None:
    """Λ = W = I: ½(1 - n/d²)|Γ*|²m and ½s²n/(d² - n) below the peak, ½s²d²/(n - d²) above it."""
    problem = icl.LinearAttention(d=5, N=11, noise=0.7)
    law = problem.law()
    missed, signal = (
        2.0 * law.floor + 0.49,
        float(np.sum(law.best**2 * law.second) * 5.0),
    )
    found = pretraining_limit(problem, [5, 20, 25, 30, 1000])
    below = [
        law.floor + 0.5 * ((1.0 - n / 25) * signal / 5.0 + missed * n / (25 - n))
        for n in (5, 20)
    ]
    above = [law.floor + 0.5 * missed * 25 / (n - 25) for n in (30, 1000)]
    np.testing.assert_allclose(found.new, [*below, np.inf, *above], rtol=1e-10)
    np.testing.assert_allclose(found.pretraining, found.new, rtol=1e-10)
    for prompts in (30, [30], [[5, 20], [25, 30]]):
        other = pretraining_limit(problem, prompts)
        assert other.new.shape == other.pretraining.shape == np.shape(prompts)
        assert other.new.flat[-1] == found.new[3]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pretrained("x", 5), "problem = 'x'"),
        (lambda: pretraining_limit("x", 5), "problem = 'x'"),  # type: ignore[arg-type]
        (lambda: pretrained(icl.LinearAttention(d=3), 0), "prompts = 0"),
        (lambda: pretraining_limit(icl.LinearAttention(d=3), [0.0]), "prompts = "),
        (lambda: pretrained(icl.LinearAttention(d=3, N=np.inf), 5), "N = inf"),
    ],
)
def test_bad_input(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.slow
def test_the_row_holds_on_its_small_grid() -> None:
    assert papers.double_descent(True).verdict.startswith("holds")


def test_iterated_least_squares_are_direct_ones() -> None:
    """Badly scaled vectors, and a direction that no query has."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 4)) @ np.diag([1.0, 0.1, 3.0, 0.0])
    h = rng.normal(size=(400, 4)) @ np.diag([1.0, 0.01, 2.0, 30.0])
    y = rng.normal(size=400)
    features = (x[:, :, None] * h[:, None]).reshape(400, -1)
    direct = np.linalg.lstsq(features, y)[0].reshape(4, 4)
    found = diversity._iterated_fit(x, h, y)
    scale = np.abs(direct).max()
    np.testing.assert_allclose(found, direct, rtol=1e-7, atol=1e-9 * scale)


def test_large_problems_have_the_errors_of_small_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prompts drawn without tokens against prompts drawn token by token."""
    problem = icl.LinearAttention(d=4, N=12, noise=0.3, tasks=3)
    new = problem.new_tasks()
    losses = []
    for largest in (diversity.LARGEST_DIRECT, 1):
        monkeypatch.setattr(diversity, "LARGEST_DIRECT", largest)
        fits = [pretrained(problem, 200, seed) for seed in range(60)]
        losses.append([new.loss(gamma) for gamma in fits])
    small, large = np.array(losses)
    error = np.sqrt((small.var(ddof=1) + large.var(ddof=1)) / 60)
    assert abs(small.mean() - large.mean()) < 4.0 * error
