"""Steps of the solver on x' = f(x, y) with known solutions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from icl_theory._validate import Array
from icl_theory.engine.solver import Step


def logistic(x: float, y: Array) -> Array:
    return np.asarray(y * (1.0 - y))


def solution(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))


def step(h: float, x: float = -1.0) -> Step:
    start = np.array([solution(x)])
    return Step(logistic, x, start, logistic(x, start), h)


def test_halving_the_stride_divides_the_error_of_a_step_by_about_two_to_the_ninth() -> None:
    errors = [abs(step(h).arrival[0] - solution(h - 1.0)) for h in (2.0, 1.0)]
    assert 2.0**8 < errors[0] / errors[1] < 2.0**11


@pytest.mark.parametrize("h", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("x", [-6.0, -2.0, 0.0])
def test_the_errors_of_a_step_and_within_it_are_below_their_estimates(h: float, x: float) -> None:
    one = step(h, x)
    rounding = 1e-16
    assert abs(one.arrival[0] - solution(x + h)) <= one.error + rounding
    for share in np.linspace(0.05, 0.95, 19).tolist():
        value, doubt = one.between(x + share * h)
        assert abs(value[0] - solution(x + share * h)) <= doubt + one.error + rounding


def test_the_error_is_that_of_the_entry_that_moves() -> None:
    """A mean square over a thousand entries would hide it."""
    start = np.zeros(1000)
    start[0] = solution(-1.0)
    many = Step(logistic, -1.0, start, logistic(-1.0, start), 2.0)
    assert many.error == pytest.approx(step(2.0).error, rel=1e-12)


def test_a_field_that_is_not_finite_asks_for_a_shorter_step() -> None:
    def broken(x: float, y: Array) -> Array:
        return np.full(1, math.nan)

    one = Step(broken, 0.0, np.zeros(1), np.zeros(1), 1.0)
    assert math.isnan(one.error)
    assert one.next_stride(1e-6) < 1.0
