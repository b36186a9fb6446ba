"""Tasks of another covariance: the exact error, the fits and the limit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.papers.alignment import statements
from icl_theory.papers.alignment.kernel import error_kernel
from icl_theory.papers.alignment.limit import AlignmentLimit, mean_resolvent
from icl_theory.papers.alignment.pretraining import Pretraining
from icl_theory.papers.linear_attention.law import PromptLaw
from icl_theory.statements.numbers import deviations


@pytest.mark.parametrize(
    "quick", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["20", "200"]
)
def test_the_error_is_a_sum_over_all_numbers_of_a_prompt(quick: bool) -> None:
    claim = statements.kernel(quick)
    assert claim.verdict == "holds", claim.measured


@pytest.mark.slow
def test_a_million_prompts_have_this_mean_error() -> None:
    rng = np.random.default_rng(3)
    tasks = statements.random_covariance(rng, 4) / 4
    law = PromptLaw(
        statements.random_covariance(rng, 4),
        tasks,
        statements.random_covariance(rng, 4),
        N=7,
        noise=0.4,
    )
    gamma = np.column_stack([law.best, 0.2 * rng.normal(size=4)])
    expected = error_kernel(gamma, law).error(tasks)
    sampled = statements.sampled_errors(gamma, law, 10**6, rng)
    assert deviations(sampled, expected) < 4.0


def test_the_error_agrees_with_the_loss_of_linear_attention() -> None:
    """Without γ it is twice the loss of the package's family, and the label noise."""
    rng = np.random.default_rng(2)
    for d in (1, 2, 5, 9):
        for _ in range(5):
            tests = statements.random_covariance(rng, d)
            law = PromptLaw(
                statements.random_covariance(rng, d), tests, N=11, noise=0.5
            )
            gamma = rng.normal(size=(d, d))
            expected = 2.0 * law.loss(gamma) + 0.25
            kernel = error_kernel(gamma, law)
            assert kernel.error(tests) == pytest.approx(expected, rel=1e-12)
            assert np.linalg.eigvalsh(kernel.matrix)[0] >= -1e-12


def test_descent_on_the_prompts_ends_at_the_fit_of_least_norm() -> None:
    problem = Pretraining([2.0, 0.7, 0.3], N=6, tasks=2, prompts=5, noise=0.2)
    risk = problem.risk(seed=4)
    solution = risk.closed_form(1.0 / float(risk.curvature.max()), "gd")
    assert solution is not None
    end = solution.states([10**7])[-1]
    assert end == pytest.approx(problem.fit(seed=4), abs=1e-9)


@pytest.mark.parametrize("squares", [False, True])
@pytest.mark.parametrize("tasks", [2, math.inf])
def test_many_prompts_lead_to_the_fit_to_all_prompts(
    tasks: float, squares: bool
) -> None:
    some = Pretraining([1.5, 0.5], 3, tasks, 200_000, noise=0.3, squares=squares)
    every = Pretraining([1.5, 0.5], 3, tasks, noise=0.3, squares=squares)
    # Both draw the k tasks first, with one seed.
    assert some.fit(seed=1) == pytest.approx(every.fit(seed=1), abs=0.03)


def test_a_ridge_balances_the_gradient() -> None:
    problem = Pretraining([1.5, 0.5, 1.0], 5, 4, 20, noise=0.3, squares=True)
    gamma = problem.fit(seed=2, ridge=0.7)
    drawn = problem.draw_prompts(seed=2)
    residual = np.sum(drawn.query * (drawn.means @ gamma.T), axis=1) - drawn.answer
    gradient = np.einsum("p,pi,pj->ij", residual, drawn.query, drawn.means) / 20
    assert gradient == pytest.approx(-0.7 * gamma, abs=1e-12)


def test_the_resolvent_is_that_of_sampled_tasks() -> None:
    d, k, nu = 300, 150, 0.4
    spectrum = statements.power_law(d, 0.8)
    w = np.random.default_rng(0).normal(size=(k, d)) * np.sqrt(spectrum)
    sampled = np.linalg.inv(w.T @ w / k + nu * np.eye(d))
    resolvent = mean_resolvent(spectrum, k / d, nu)
    trace = resolvent.M
    assert trace == pytest.approx(np.trace(sampled) / d, rel=0.01)
    slope = -np.trace(sampled @ sampled) / d
    assert resolvent.M_slope == pytest.approx(slope, rel=0.03)
    step = 1e-5
    above = mean_resolvent(spectrum, k / d, nu + step).F
    below = mean_resolvent(spectrum, k / d, nu - step).F
    difference = (above - below) / (2.0 * step)
    assert resolvent.F_slope == pytest.approx(difference, rel=1e-7)


@pytest.mark.parametrize("prompts", [0.4, 3.0])
def test_the_limit_is_that_of_normal_features(prompts: float) -> None:
    """Another derivation, at finite d: the distance falls like 1/d."""
    gaps = []
    for d in (20, 80):
        # The largest eigenvalue of a power law grows with d, and slows the approach.
        spectrum = np.linspace(0.2, 1.8, d)
        problem = icl.LinearAttention(d=d, N=2 * d, prior=spectrum / d, noise=0.1)
        n = prompts * d**2
        losses = icl.linear_attention.pretraining_limit(problem, [n])
        limit = AlignmentLimit(spectrum, 2.0, prompts=prompts, noise=0.1)
        gaps.append(2.0 * losses.new[0] + 0.01 - limit.error(spectrum))
    assert abs(gaps[1]) < 0.3 * abs(gaps[0])
    assert abs(gaps[1]) < 0.02


def test_rotations_do_not_change_the_limit() -> None:
    rng = np.random.default_rng(5)
    rotation, _ = np.linalg.qr(rng.normal(size=(4, 4)))
    spectrum = np.array([2.0, 1.0, 0.7, 0.3])
    test = np.array([0.2, 1.8, 1.0, 1.0])
    plain = AlignmentLimit(spectrum, 2.0, 1.5, 3.0, 0.2)
    turned = AlignmentLimit(rotation * spectrum @ rotation.T, 2.0, 1.5, 3.0, 0.2)
    expected = plain.error(test)
    assert turned.error(rotation * test @ rotation.T) == pytest.approx(expected)
    assert plain.error(np.diag(test)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"covariance": [1.0, -0.5]}, "covariance .* >= 0 .*the least is -0.5"),
        ({"covariance": [[1.0, 2.0], [2.0, 1.0]]}, "its least eigenvalue is -1"),
        ({"N": -3}, "N = -3"),
        ({"tasks": 0}, "tasks = 0"),
        ({"prompts": -1}, "prompts = -1"),
        ({"prompts": 10**12}, "prompts"),
        ({"noise": -0.1}, "noise = -0.1"),
        ({"squares": 1}, "squares = 1: must be True or False"),
    ],
)
def test_a_wrong_setting_is_named(change: dict[str, Any], message: str) -> None:
    setting: dict[str, Any] = {"covariance": [1.0, 0.5], "N": 4, "prompts": 10}
    with pytest.raises((ValueError, MemoryError), match=message):
        Pretraining(**setting | change).fit()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"context": 0.0}, "context = 0.0"),
        ({"context": math.inf}, "context = inf"),
        ({"diversity": -1.0}, "diversity = -1.0"),
        ({"prompts": 1.0}, "prompts = 1.0: must be below or above 1"),
    ],
)
def test_a_wrong_ratio_is_named(change: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AlignmentLimit(**{"pretraining": [1.0, 0.5], "context": 2.0} | change)


def test_wrong_matrices_and_tests_are_named() -> None:
    problem = Pretraining([1.0, 0.5], 4)
    with pytest.raises(ValueError, match="gamma = "):
        problem.kernel(np.ones((3, 3)))
    with pytest.raises(ValueError, match="tasks = "):
        problem.kernel(np.ones((2, 2))).error([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="squares = True"):
        Pretraining([1.0], 4, 2, 3, squares=True).risk()
    with pytest.raises(ValueError, match="prompts = inf"):
        problem.risk()


def test_diagonals_and_matrices_of_tests_have_the_same_errors() -> None:
    problem = Pretraining([1.0, 0.5], 4, 3, noise=0.1, squares=True)
    tests = [[1.0, 0.0], [0.3, 0.9]]
    expected = problem.errors(tests, draws=3)
    matrices = [np.diag(test) for test in tests]
    assert problem.errors(matrices, draws=3) == pytest.approx(expected)
