"""Bounds with constants, derived from F: Phase I, and Theorems 1 and 2 without their logarithm."""

from __future__ import annotations

import math

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

import icl_theory as icl
from icl_theory.regression import after_phase_one, phase_one_bounds
from tests.references import iterate_gap


def steps_to(K: int, c: float, deficit: float) -> int:
    goal = math.log(K - 1) + math.log1p(-deficit) - math.log(deficit)
    return iterate_gap(K, c, lambda _, u: u >= goal)[0]


@given(st.integers(3, 60), st.floats(-2, 6))
def test_phase_one_lies_between_its_bounds_for_every_learning_rate(
    K: int, log_c: float
) -> None:
    low, high = phase_one_bounds(K, 10**log_c)
    assert low <= steps_to(K, 10**log_c, 0.5) <= high


def test_two_features_have_no_phase_one() -> None:
    assert phase_one_bounds(2, 0.1) == (0.0, 0.0)
    assert steps_to(2, 0.1, 0.5) == 0


@given(st.integers(2, 60), st.floats(-1.5, 6), st.floats(0.03, 0.5))
def test_the_steps_after_phase_one_are_bounded_for_every_learning_rate(
    K: int, log_c: float, deficit: float
) -> None:
    c = 10**log_c
    eta, epsilon = c * (K - 1) ** 2 / K, 0.5 * K / (K - 1) * deficit**2  # γ = 1
    after = steps_to(K, c, deficit) - steps_to(K, c, 0.5)
    assert after <= after_phase_one(K, eta, epsilon) * (1 + 1e-12)


def F(a: mpmath.mpf) -> mpmath.mpf:
    return -1 / a + 3 * mpmath.log(a / (1 - a)) + 2 / (1 - a) + 1 / (2 * (1 - a) ** 2)


def test_the_constant_of_the_tail_bounds_s_squared_times_f() -> None:
    """s² [F(1 - s) - 4] <= 7/8 for 0 < s <= ½, and comes within 0.3 % of it."""
    with mpmath.workdps(30):
        values = [
            (mpmath.mpf(i) / 4000) ** 2 * (F(1 - mpmath.mpf(i) / 4000) - 4)
            for i in range(1, 2001)
        ]
    assert 0.997 * 7 / 8 < max(values) < 7 / 8


def test_the_constant_of_phase_one_is_enough_for_every_number_of_features() -> None:
    with mpmath.workdps(30):
        for K in (*range(3, 200), 1000, 10**6):
            time = (F(mpmath.mpf(1) / 2) - F(mpmath.mpf(1) / K)) * (K - 1) ** 2 / K
            assert time <= mpmath.mpf(3) / 2 * K**2, K


def test_check_bounds_certifies_all_three() -> None:
    run = icl.simulate(0.5, 1.0, 0.3, K=7, epsilon=1e-3, imbalance=0.1)
    checks = {check.name: check for check in icl.check_bounds(run)}
    for name in ("Phase I, explicit", "Theorem 1, explicit", "Theorem 2, explicit"):
        assert checks[name].holds
        assert checks[name].kind != "order-wise"
    beyond = icl.check_bounds(
        icl.simulate(0.5, 1.0, 0.3, K=7, epsilon=1e-6, imbalance=0.1)
    )
    note = next(check.note for check in beyond if check.name == "Theorem 1, explicit")
    assert note == "claimed for ε >= γδ²/2 = 0.000625"


@pytest.mark.parametrize("coordinates", ["class", "embedding"])
@pytest.mark.parametrize("delta", [0.5, 2.0])
def test_embedding_coordinates_count_in_the_learning_rate(
    coordinates: str, delta: float
) -> None:
    run = icl.simulate(2.0, delta, 0.7, epsilon=1e-4, coordinates=coordinates)
    checks = {check.name: check for check in icl.check_bounds(run)}
    assert checks["Phase I, explicit"].holds
    assert checks["Theorem 2, explicit"].holds
    assert 1.0 < (checks["Theorem 2, explicit"].slack or 0.0) < 1.8


@pytest.mark.parametrize("arguments", [(1, 0.1), (3, 0.0), (3, math.nan)])
def test_wrong_input_is_refused(arguments: tuple[int, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        phase_one_bounds(*arguments)
    with pytest.raises(ValueError, match="must be"):
        after_phase_one(*arguments, epsilon=1.0)
