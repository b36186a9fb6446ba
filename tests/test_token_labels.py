"""The mean log loss against many labels with random counts, against sums over all counts."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest

from icl_theory.tokens.labels import log_poisson, mean_log_loss
from tests.references import compositions


def over_all_counts(
    n: int, labels: int, silent: int, beta: float, top: float, rest: float
) -> Any:
    """Mean of ln(1 + (T + C)e^-D) and its derivatives by D, β and ln C."""
    words, terms = labels + silent, []
    for counts in compositions(n, words) if words else [()]:
        weight = (
            math.factorial(n) / math.prod(math.factorial(k) for k in counts) / words**n
        )
        loud = counts[:labels]
        T, slope = (
            sum(math.exp(beta * k) for k in loud),
            sum(k * math.exp(beta * k) for k in loud),
        )
        whole = math.exp(top) + T + rest
        parts = (
            math.log1p((T + rest) * math.exp(-top)),
            -(T + rest) / whole,
            slope / whole,
            rest / whole,
        )
        terms.append(weight * np.array(parts))
    return np.sum(terms, axis=0)


@pytest.mark.parametrize(
    ("n", "labels", "silent", "beta", "top", "log_rest"),
    [
        (6, 3, 0, 0.7, [1.0, 3.0], 0.5),
        (6, 2, 2, 3.0, [9.0, -3.0], 2.0),
        (7, 4, 0, -0.7, [1.0, 40.0], -2.0),
        (0, 4, 0, 1.0, [1.0, 300.0], -2.0),
        (8, 0, 1, 9.0, [30.0, 90.0], 0.0),
        (8, 2, 3, 40.0, [100.0, 0.0], 0.0),
        (5, 3, 0, 130.0, [590.0, 0.0], 0.0),
        (6, 3, 0, 0.7, [1.0, 30.0], -math.inf),
        (0, 0, 0, 0.7, [1.0, 30.0], 1.0),
    ],
)
def test_the_integral_is_the_mean_over_all_counts(
    n: int, labels: int, silent: int, beta: float, top: list[float], log_rest: float
) -> None:
    """Relative to the value, also where that is 1e-130."""
    found = np.array(
        mean_log_loss(top, beta, log_rest, np.full(len(top), n), labels, silent)
    )
    for index, D in enumerate(top):
        expected = over_all_counts(n, labels, silent, beta, D, math.exp(log_rest))
        np.testing.assert_allclose(found[:3, index], expected[:3], rtol=1e-12)
        assert found[3, index] == pytest.approx(expected[3], rel=1e-9, abs=1e-14)


def test_many_labels_together_fall_long_before_one_of_them() -> None:
    """A million labels without a token: the loss is ln(1 + P e^-D), with breaks 600 apart."""
    D, P = np.array([300.0, -300.0]), 10**6
    found = mean_log_loss(D, 1.0, -math.inf, [0, 0], P)
    expected = [P * math.exp(-300.0), 300.0 + math.log(P)]
    np.testing.assert_allclose(found.value, expected, rtol=1e-12)
    np.testing.assert_allclose(found.by_top, [-expected[0], -1.0], rtol=1e-12)


def test_numbers_of_tokens_may_differ() -> None:
    tokens = [0, 3, 7]
    found = mean_log_loss([2.0] * 3, 0.4, 0.1, tokens, 3, 1)
    expected = [over_all_counts(n, 3, 1, 0.4, 2.0, math.exp(0.1)) for n in tokens]
    np.testing.assert_allclose(np.array(found).T, expected, rtol=1e-12, atol=1e-15)


def test_a_thousand_tokens_on_two_labels_are_a_binomial_sum() -> None:
    n, D, beta = 1000, 10.0, 0.03
    with mpmath.workdps(30):
        rise = [mpmath.exp(beta * k - D) for k in range(n + 1)]
        chance = [mpmath.mpf(math.comb(n, k)) / 2**n for k in range(n + 1)]
        exact = mpmath.fsum(
            p * mpmath.log1p(x + y)
            for p, x, y in zip(chance, rise, rise[::-1], strict=True)
        )
    assert mean_log_loss([D], beta, -math.inf, [n], 2).value[0] == pytest.approx(
        float(exact), rel=1e-12
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"top": [math.nan]}, "top = [nan]: must be"),
        ({"top": [1e14]}, "top = [100000000000000.0]: must be"),
        ({"beta": math.inf}, "beta = inf: must be"),
        (
            {"beta": 1e13},
            "beta = 10000000000000.0: must be between -2.5e+12 and 2.5e+12",
        ),
        ({"log_rest": math.inf}, "log_rest = inf: must be"),
        ({"tokens": [1.5]}, "tokens = [1.5]: must be integers"),
        ({"tokens": [4, 4]}, "tokens = [4, 4]: must be integers"),
        ({"tokens": [-1]}, "tokens = [-1]: must be"),
        ({"tokens": [10**12]}, "tokens = 1000000000000: must be smaller"),
        ({"labels": -1}, "labels = -1: must be"),
        ({"labels": 0}, "labels = 0: must be at least 1"),
        ({"density": 0.0}, "density = 0.0: must be"),
    ],
)
def test_wrong_input_is_named(change: dict[str, Any], words: str) -> None:
    given = {
        "top": [1.0],
        "beta": 0.5,
        "log_rest": 0.0,
        "tokens": [4],
        "labels": 3,
    } | change
    with pytest.raises(ValueError) as error:  # noqa: PT011
        mean_log_loss(**given)
    assert words in str(error.value)


@pytest.mark.parametrize(("n", "labels"), [(70, 100), (7, 1000), (3, 10), (0, 5)])
def test_a_shared_density_is_right_or_refused(n: int, labels: int) -> None:
    """Against the density of n itself, over seven orders of magnitude."""
    expected = np.array(mean_log_loss([1.0], 0.5, 0.0, [n], labels))
    refused = 0
    for density in max(n, 1) / labels * np.geomspace(1e-3, 1e4, 57):
        try:
            found = np.array(
                mean_log_loss([1.0], 0.5, 0.0, [n], labels, density=density)
            )
        except ValueError:
            refused += 1
            continue
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-11)
    assert 0 < refused < 57


def test_one_improbable_number_of_tokens_is_enough_to_refuse_a_density() -> None:
    with pytest.raises(
        ValueError,
        match=r"density = 0\.5: must be nearer to tokens/labels: 70 tokens on 40 labels",
    ):
        mean_log_loss([1.0, 1.0], 0.5, 0.0, [20, 70], 40, density=0.5)


def test_poisson_probabilities_keep_their_digits() -> None:
    k, mean = (
        np.array([0, 1, 15, 16, 900, 1000, 1100, 2000]),
        np.array([[0.3], [20.0], [1000.0]]),
    )
    with mpmath.workdps(40):
        exact = [
            [
                float(n * mpmath.log(mpmath.mpf(m)) - m - mpmath.loggamma(n + 1))
                for n in k.tolist()
            ]
            for m in mean[:, 0].tolist()
        ]
    np.testing.assert_allclose(log_poisson(k, mean), exact, rtol=2e-15, atol=1e-13)
