from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icl_theory.regression import StepCounter, abel_polynomials
from icl_theory.regression.closed.abel import INT64_MAX
from tests.references import iterate_gap

GAPS = st.floats(math.log(1e-3), math.log(1e6)).map(math.exp)


@given(st.integers(2, 3000), GAPS, st.integers(1, 20_000))
def test_position_is_that_of_plain_iteration(K: int, c: float, n: int) -> None:
    _, u = iterate_gap(K, c, lambda count, _: count == n)
    assert float(StepCounter(K, c).position(n)) == pytest.approx(
        u, rel=1e-11, abs=1e-12
    )


@given(st.integers(2, 3000), GAPS, st.integers(1, 20_000), st.floats(0.05, 0.95))
def test_count_is_that_of_plain_iteration(
    K: int, c: float, n: int, fraction: float
) -> None:
    _, before = iterate_gap(K, c, lambda count, _: count == n - 1)
    _, after = iterate_gap(K, c, lambda count, _: count == n)
    if after - before > 1e-9 * after:  # else the steps are not resolved in float64
        assert (
            StepCounter(K, c).steps_to(before + fraction * (after - before)).steps == n
        )


@pytest.mark.parametrize(("K", "c"), [(2, 1e-4), (20, 0.05), (500, 3.0), (2, 30.0)])
def test_a_million_steps_are_counted_exactly(K: int, c: float) -> None:
    n = 1_000_000
    _, u = iterate_gap(K, c, lambda count, _: count == n)
    counter = StepCounter(K, c)
    assert float(counter.position(n)) == pytest.approx(u, rel=1e-12)
    a = 1 / (1 + (K - 1) * math.exp(-u))
    assert counter.steps_to(u - 0.5 * c * a * (1 - a) ** 2).steps == n


@given(
    st.integers(2, 10**7), st.floats(-20.0, 20.0).map(math.exp), st.floats(0.0, 15.0)
)
def test_count_undoes_position_up_to_ten_to_the_fifteen(
    K: int, c: float, exponent: float
) -> None:
    n = int(10.0**exponent)
    counter = StepCounter(K, c)
    u = float(counter.position(n))
    ahead = float(counter.position(n + 1))
    if ahead - u > 1e-12 * u:
        count = counter.steps_to(u + 0.5 * (ahead - u))
        assert abs(count.steps - (n + 1)) <= math.ceil(count.error)


def test_first_polynomial_is_the_published_one() -> None:
    """−(g′ + a − (7/2)a² + 5a³ − (9/4)a⁴)/12 with g′ = a s²(s − 2a), expanded by hand."""
    published = [7 / 16, -1.0, 17 / 24, -1 / 6, 0.0]
    np.testing.assert_allclose(
        np.trim_zeros(abel_polynomials("a")[0], "f"), published, rtol=1e-15
    )


def test_the_two_forms_are_the_same_polynomials_but_for_a_constant() -> None:
    a = np.linspace(0.0, 1.0, 7)
    for in_a, in_s in zip(abel_polynomials("a"), abel_polynomials("s"), strict=True):
        difference = np.polyval(in_a, a) - np.polyval(in_s, 1.0 - a)
        np.testing.assert_allclose(difference, difference[0], atol=1e-10)


def test_steps_beyond_int64_are_said_to_be() -> None:
    assert StepCounter(20, 1e-30).steps_to(1.0).steps == INT64_MAX
    assert StepCounter(20, 1e-300).steps_to(1e-3).steps == INT64_MAX
    assert float(StepCounter(20, 1e-300).position(10**15)) == 0.0


def test_a_step_that_ends_beyond_float64_resolution_stays_there() -> None:
    counter = StepCounter(20, 1e60)
    assert counter.steps_to(1e3).steps == 1
    assert (
        counter.position(np.array([1, 10, 10**15])).tolist()
        == [float(counter.position(1))] * 3
    )


def test_counting_works_before_a_step_that_ends_beyond_float64_resolution() -> None:
    """A head of small steps, then one of length c/7 after which nothing moves."""
    counter = StepCounter(69_698, 1100.0)
    u = float(counter.position(10))
    _, plain = iterate_gap(69_698, 1100.0, lambda count, _: count == 10)
    assert u == pytest.approx(plain, rel=1e-12)
    assert counter.steps_to(0.999 * u).steps == 10


@pytest.mark.parametrize("u", [0.0, -1.0])
def test_the_start_is_step_zero(u: float) -> None:
    assert StepCounter(20, 0.1).steps_to(u).steps == 0


@pytest.mark.parametrize("n", [math.inf, 1e300, math.nan, -1])
def test_only_steps_that_are_counted_have_a_position(n: float) -> None:
    with pytest.raises(ValueError, match="must be numbers between 0 and "):
        StepCounter(20, 0.1).position(n)


def test_the_largest_number_of_steps_has_a_position() -> None:
    assert 20.0 < float(StepCounter(20, 0.1).position(INT64_MAX)) < 30.0
