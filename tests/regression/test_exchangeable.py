from __future__ import annotations

import math
import re

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import binom

import icl_theory as icl
from icl_theory import tasks
from icl_theory.regression import flow_time
from icl_theory.regression.risks.exchangeable import binomial_nodes
from tests import references


@given(
    st.integers(2, 12),
    st.sampled_from([math.inf, 1, 2, 9, 400]),
    st.floats(0.0, 60.0),
    st.sampled_from([0.0, 0.5]),
)
def test_one_number_gives_the_loss_of_the_whole_matrix(
    K: int, N: float, u: float, noise: float
) -> None:
    reduced = icl.ExchangeableRisk(K, 2.0, N, noise)
    full = icl.PopulationRisk(
        icl.Features.simplex(K, 1.0), tasks.Exchangeable(2.0), N, noise
    )
    S = reduced.scores(u)
    assert reduced.loss(np.asarray(u)) == pytest.approx(full.loss(S), rel=1e-12)
    assert reduced.attention(u) == pytest.approx(full.attention(S)[0, 0], rel=1e-12)
    slope = float(np.sum(full.gradient(S) * reduced.scores(1.0)))
    # for N = 1 the slope is zero, the difference of two integrals of the size of the
    # loss
    assert float(reduced.gradient(np.asarray(u))) == pytest.approx(
        slope, rel=1e-9, abs=1e-14 if N == 1 else 1e-15
    )


@given(st.integers(2, 12), st.sampled_from([math.inf, 6]), st.floats(0.01, 10.0))
def test_one_number_makes_the_steps_of_the_whole_matrix(
    K: int, N: float, eta: float
) -> None:
    reduced = icl.ExchangeableRisk(K, 2.0, N)
    full = icl.PopulationRisk(icl.Features.simplex(K, 1.0), tasks.Exchangeable(2.0), N)
    gap = icl.descend(reduced, eta, steps=20).states[-1]
    np.testing.assert_allclose(
        icl.descend(full, eta, steps=20).params,
        reduced.scores(float(gap)),
        rtol=1e-10,
        atol=1e-13,
    )


@given(
    st.integers(2, 10),
    st.sampled_from([math.inf, 5, 80]),
    st.floats(-30.0, 60.0),
    st.sampled_from([0.0, 2.0]),
)
def test_derivative_is_that_of_finite_differences(
    K: int, N: float, u: float, noise: float
) -> None:
    risk = icl.ExchangeableRisk(K, 0.7, N, noise)
    slope = references.slopes(lambda x: risk.loss(x), np.array(u), 1e-4)
    assert float(risk.gradient(np.asarray(u))) == pytest.approx(
        float(slope), rel=1e-6, abs=1e-9
    )


@given(
    st.integers(2, 1000),
    st.floats(1e-9, 1e9),
    st.floats(1e-9, 1e9),
    st.sampled_from([math.inf, 1, 3, 50]),
)
def test_loss_never_increases_whatever_the_learning_rate(
    K: int, gamma: float, eta: float, N: float
) -> None:
    run = icl.descend(icl.ExchangeableRisk(K, gamma, N), eta, steps=40)
    assert (np.diff(run.loss) <= 1e-12 * run.loss[0]).all()
    assert (np.diff(run.states) >= 0).all()


@pytest.mark.parametrize("u", [0.0, 5.0, 30.0, 60.0, 340.0])
@pytest.mark.parametrize("K", [2, 20, 10**6])
def test_infinite_prompts_against_fifty_digits(K: int, u: float) -> None:
    risk = icl.ExchangeableRisk(K, 3.0)
    with mpmath.workdps(50):
        w = (K - 1) * mpmath.exp(-u)
        s = w / (1 + w)
        loss = mpmath.mpf(3) / 2 * K / (K - 1) * s**2
        slope = -mpmath.mpf(3) * K / (K - 1) * s**2 / (1 + w)
    mine = risk.evaluate(np.asarray(u))
    assert mine[0] == pytest.approx(float(loss), rel=1e-14)
    assert float(mine[1]) == pytest.approx(float(slope), rel=1e-14)


@pytest.mark.parametrize(
    ("N", "K"),
    [(1, 2), (10, 3), (500, 20), (5000, 2), (30_000, 7), (10**6, 2), (10**9, 40)],
)
def test_binomial_sum_gives_the_moments(N: int, K: int) -> None:
    n, rest, weight = binomial_nodes(N, 1 / K)
    mean, variance = N / K, N / K * (1 - 1 / K)
    assert (n + rest == N).all()
    assert weight.sum() == pytest.approx(1.0, rel=1e-13)
    assert weight @ n == pytest.approx(mean, rel=1e-12)
    assert weight @ (n - mean) ** 2 == pytest.approx(variance, rel=1e-10)
    assert weight @ np.exp(-n / mean) == pytest.approx(
        math.exp(N * math.log1p(math.expm1(-1 / mean) / K)), rel=1e-10
    )
    stride = n[1] - n[0]
    expected = stride * binom.pmf(n, N, 1 / K)
    there = expected > 1e-290
    np.testing.assert_allclose(
        weight[there], expected[there], rtol=1e-9 if N <= 10**6 else 1e-6
    )


@given(st.integers(2, 10**6), st.floats(1e-3, 1.0))
def test_flow_time_is_the_integral_of_one_over_the_growth(
    K: int, fraction: float
) -> None:
    a = 1 / K + fraction * (0.99 - 1 / K)
    with mpmath.workdps(30):
        exact = mpmath.quad(
            lambda x: 1 / (x**2 * (1 - x) ** 3),
            mpmath.linspace(mpmath.mpf(1) / K, a, 9),
        )
    assert flow_time(a, K) == pytest.approx(float(exact), rel=1e-9)


def test_flow_time_is_known_from_the_start_to_the_end_of_training() -> None:
    assert flow_time(0.25, 4) == pytest.approx(0.0, abs=1e-14)
    for attention in (0.24, 1.0):
        with pytest.raises(ValueError, match=re.escape("in [1/K, 1) = [0.25, 1)")):
            flow_time(attention, 4)


def test_integrated_flow_follows_the_closed_solution() -> None:
    K, eta, gamma = 20, 4.0, 2.0
    run = icl.descend(icl.ExchangeableRisk(K, gamma), eta, steps=10**6, method="flow")
    c = eta * gamma * K / (K - 1) ** 2
    late = run.t > 10
    solved = [flow_time(float(a), K) / c for a in run.attention[late]]
    np.testing.assert_allclose(solved, run.t[late], rtol=1e-6)


@pytest.mark.parametrize("N", [1, 4, 60])
def test_floor_is_the_loss_of_prompts_without_the_feature(N: int) -> None:
    risk = icl.ExchangeableRisk(5, 2.0, N)
    assert risk.floor() == pytest.approx(risk.loss(np.asarray(300.0)), rel=1e-12)


@given(st.integers(2, 30), st.integers(1, 300), st.floats(1e-3, 1e3))
def test_floor_with_label_noise_is_a_minimum(K: int, N: int, noise: float) -> None:
    risk = icl.ExchangeableRisk(K, 1.0, N, noise)
    losses = [risk.loss(np.asarray(u)) for u in np.linspace(0.0, 30.0, 61)]
    assert risk.floor() <= min(losses) * (1 + 1e-12)
    assert risk.floor() >= icl.ExchangeableRisk(K, 1.0, N).floor()


def test_reference_quadrature_agrees_with_the_flow_time_near_one_half() -> None:
    value, _ = quad(lambda x: 1 / (x**2 * (1 - x) ** 3), 0.25, 0.5)
    assert flow_time(0.5, 4) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("a", [1.5, 1.0, 0.01, 0.0, math.nan])
def test_flow_time_refuses_attention_out_of_its_range(a: float) -> None:
    with pytest.raises(ValueError, match="a = "):
        flow_time(a, 20)


@pytest.mark.parametrize("params", [math.nan, math.inf, [1.0], "u"])
def test_loss_refuses_what_is_no_gap(params: object) -> None:
    with pytest.raises(ValueError, match="params = "):
        icl.ExchangeableRisk(5, 1.0).loss(params)  # type: ignore[arg-type]


@pytest.mark.parametrize("gamma", [0.0, 1e-9, 0.3, 5.0])
@pytest.mark.parametrize("N", [1, 2, 10, math.inf])
@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_no_loss_is_below_the_floor(gamma: float, N: float, noise: float) -> None:
    risk = icl.ExchangeableRisk(5, gamma, N, noise)
    losses = [risk.loss(u) for u in np.linspace(-3.0, 12.0, 61)]
    assert risk.floor() <= min(losses) * (1.0 + 1e-12)
