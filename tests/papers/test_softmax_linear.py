"""Softmax attention over N Gaussian tokens: moments, outputs, errors and risks."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest

from icl_theory.papers.softmax_linear import statements
from icl_theory.papers.softmax_linear.attention import GaussianAttention, weight_moments
from icl_theory.papers.softmax_linear.regression import HeadRisk, _query_means
from icl_theory.statements.numbers import deviations


@pytest.mark.parametrize("variance", [1e-6, 0.3, 4.0, 40.0])
def test_two_tokens_have_one_integral(variance: float) -> None:
    """The weights of two tokens are a logistic function of one normal number."""

    def mean(of_weight: Any) -> float:
        width = mpmath.sqrt(2 * variance)

        def integrand(g: Any) -> Any:
            return of_weight(1 / (1 + mpmath.exp(-width * g))) * mpmath.npdf(g)

        return float(mpmath.quad(integrand, [-13, -6, -2, -0.5, 0, 0.5, 2, 6, 13]))

    moments = weight_moments(2, variance)
    squares = mean(lambda p: p**2 + (1 - p) ** 2)
    cubes = mean(lambda p: p**3 + (1 - p) ** 3)
    squares_twice = mean(lambda p: (p**2 + (1 - p) ** 2) ** 2)
    assert moments[:3] == pytest.approx((squares, cubes, squares_twice), rel=1e-12)
    assert moments.error < 1e-10


def test_the_extremes_are_known() -> None:
    assert weight_moments(1, 3.0)[:3] == (1.0, 1.0, 1.0)
    assert weight_moments(4, 0.0)[:3] == (0.25, 0.0625, 0.0625)
    small = weight_moments(5, 1e-12)
    assert small[:3] == pytest.approx((0.2, 0.04, 0.04), rel=1e-11)
    for N, variance in ((2, 300.0), (1000, 30.0), (10**15, 1.0)):
        moments = weight_moments(N, variance)
        assert 0.0 < moments.cubes <= moments.squares <= 1.0
        assert moments.squares**2 <= moments.squares_twice <= moments.squares
        assert moments.error < 1e-10
        assert moments.spread > 0.0


def test_long_prompts_have_the_leading_terms() -> None:
    for variance in (0.5, 1.5):
        N = 10**6
        growth = math.exp(variance)
        second = 1.0 - (2.0 * growth**2 - 3.0 * growth + 1.0) / N
        expected = growth / N * second
        assert weight_moments(N, variance).squares == pytest.approx(expected, rel=1e-8)


def test_attention_agrees_with_a_grid_of_all_tokens() -> None:
    claim = statements.error(quick=True)
    assert claim.verdict == "holds", claim.measured


@pytest.mark.slow
def test_two_hundred_problems_agree() -> None:
    for check in (statements.error, statements.regression):
        claim = check(quick=False)
        assert claim.verdict == "holds", claim.measured


@pytest.mark.slow
def test_a_million_prompts_have_this_error() -> None:
    rng = np.random.default_rng(8)
    attention, u = statements.random_attention(rng, 4)
    distances = statements.sampled_distances(attention, 2.0 * u, 16, 10**6, rng)
    assert deviations(distances, attention.error(2.0 * u, 16)) < 4.0


def test_one_token_is_its_own_output() -> None:
    covariance = np.array([[2.0, 0.5], [0.5, 1.0]])
    attention = GaussianAttention(covariance, [1.0, -1.0])
    u = np.array([0.3, 0.7])
    assert attention.mean_output(u, 1) == pytest.approx([1.0, -1.0])
    expected = 3.0 + float(np.sum((covariance @ u) ** 2))
    assert attention.error(u, 1) == pytest.approx(expected)


def test_tokens_may_lie_in_a_plane() -> None:
    attention = GaussianAttention([[1.0, 0.0], [0.0, 0.0]], value=[[0.0, 1.0]])
    assert attention.error([0.5, 9.0], 7) == 0.0
    assert attention.limit([0.5, 9.0]).tolist() == [0.0]


def test_the_risk_is_that_of_one_softmax_head() -> None:
    claim = statements.regression(quick=True)
    assert claim.verdict == "holds", claim.measured


def test_the_risk_of_other_covariances_is_sampled() -> None:
    """Whitened scores and labels of tokens with a full covariance."""
    rng = np.random.default_rng(4)
    sigma = np.array([[1.5, 0.6], [0.6, 0.8]])
    N, prompts, a, b, noise = 9, 20_000, 0.6, 1.1, 0.3
    factor = np.linalg.cholesky(sigma)
    x = rng.normal(size=(prompts, N, 2)) @ factor.T
    query = rng.normal(size=(prompts, 2)) @ factor.T
    w = rng.normal(size=(prompts, 2))
    y = np.einsum("pnd,pd->pn", x, w) + noise * rng.normal(size=(prompts, N))
    scores = a * np.einsum("pnd,de,pe->pn", x, np.linalg.inv(sigma), query)
    weights = np.exp(scores)
    weights /= weights.sum(axis=1, keepdims=True)
    errors = b * np.sum(weights * y, axis=1) - np.sum(query * w, axis=1)
    expected = HeadRisk(2, N, noise, trace=2.3).risk(a, b)
    assert deviations(0.5 * errors**2, expected) < 4.0


def test_the_rule_over_queries_has_converged() -> None:
    for d, a in ((1, 0.5), (3, 0.5), (40, 0.2)):
        coarse = _query_means(d, 50, a, 40)
        fine = _query_means(d, 50, a, 64)
        assert coarse == pytest.approx(fine, rel=1e-11)


def test_the_least_risk_is_a_minimum() -> None:
    risk = HeadRisk(100, 50, noise=0.2)
    best = risk.minimum()
    for a, b in ((1.01, 1.0), (0.99, 1.0), (1.0, 1.01), (1.0, 0.99)):
        assert risk.risk(a * best.a, b * best.b) > best.risk
    assert risk.risk(best.a, best.b) == pytest.approx(best.risk, rel=1e-12)
    assert risk.limit(2.0, 0.5) == 0.0


@pytest.mark.parametrize("d", [10**4, 10**6])
def test_the_best_scores_of_high_dimension_have_unit_variance(d: int) -> None:
    """For 1 ≪ d, N the risk is ½d κ/(1 + κ), κ = d exp(t²)/(N t²), t = a√d.

    The least κ is at t = 1. Corrections are of the orders 1/d and 1/N.
    """
    N = 10**9
    best = HeadRisk(d, N).minimum()
    kappa = math.e * d / N
    assert best.a * math.sqrt(d) == pytest.approx(1.0, rel=1e-3)
    assert best.risk == pytest.approx(0.5 * d * kappa / (1.0 + kappa), rel=1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"covariance": [[1.0, 2.0], [2.0, 1.0]]}, "covariance .*least is -1"),
        ({"covariance": [[1.0, 0.3], [0.0, 1.0]]}, "covariance .*symmetric"),
        ({"covariance": [1.0, 2.0]}, "covariance"),
        ({"mean": [1.0]}, r"mean = \(1,\): must be of shape \(2,\)"),
        ({"value": [[1.0]]}, r"value = \(1, 1\): must be of shape \(e, 2\)"),
    ],
)
def test_wrong_matrices_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GaussianAttention(**{"covariance": np.eye(2)} | change)


def test_wrong_numbers_are_named() -> None:
    with pytest.raises(ValueError, match="N = 0"):
        weight_moments(0, 1.0)
    with pytest.raises(ValueError, match="N = -2"):
        HeadRisk(2, -2)
    with pytest.raises(ValueError, match="variance = -1"):
        weight_moments(3, -1.0)
    with pytest.raises(ValueError, match="variance = 301"):
        weight_moments(3, 301.0)
    attention = GaussianAttention(np.eye(2))
    with pytest.raises(ValueError, match=r"u = .* score variance up to 300"):
        attention.error([100.0, 0.0], 3)
    with pytest.raises(ValueError, match="a = 9"):
        HeadRisk(2, 5).risk(9.0, 1.0)
    with pytest.raises(ValueError, match="trace = -1"):
        HeadRisk(2, 5, trace=-1.0)
