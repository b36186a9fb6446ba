from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icl_theory.papers.regression import concentration_probability, smallest_imbalance
from icl_theory.papers.regression.theorems import concentration
from tests.references import compositions


def enumerated(N: int, p: list[float], imbalance: float) -> float:
    total = 0.0
    for counts in compositions(N, len(p)):
        if all(
            abs(n - q * N) <= imbalance * N + 1e-9
            for n, q in zip(counts, p, strict=True)
        ):
            terms = [
                n * math.log(q) - math.lgamma(n + 1)
                for n, q in zip(counts, p, strict=True)
            ]
            total += math.exp(math.lgamma(N + 1) + sum(terms))
    return total


@given(
    st.integers(1, 14),
    st.integers(2, 4),
    st.floats(0.01, 0.99),
    st.integers(0, 2**32 - 1),
)
def test_probability_is_the_sum_over_all_counts(
    N: int, K: int, imbalance: float, seed: int
) -> None:
    p = np.random.default_rng(seed).dirichlet(np.ones(K)).tolist()
    found = concentration_probability(N, p, imbalance)
    assert found.value == pytest.approx(enumerated(N, p, imbalance), abs=1e-12)


@pytest.mark.parametrize("K", [3, 5, 7])
@pytest.mark.parametrize("N", range(1, 8))
def test_equal_probabilities_have_the_sum_over_all_counts(N: int, K: int) -> None:
    """Their counts are added by doubling, also if every count must be at least 1."""
    for imbalance in (0.5 / 3.0, 0.2, 0.34, 0.8):
        found = concentration_probability(N, K, imbalance)
        expected = enumerated(N, [1.0 / K] * K, imbalance)
        assert found.value == pytest.approx(expected, abs=1e-12)


def test_five_counts_of_at_least_one_do_not_sum_to_three() -> None:
    assert concentration_probability(3, 5, 0.5 / 3.0).value == 0.0


@pytest.mark.parametrize(
    ("N", "K", "imbalance"), [(500, 6, 0.05), (3000, 20, 0.02), (40_000, 4, 0.01)]
)
def test_transform_agrees_with_direct_sums_within_its_error(
    N: int, K: int, imbalance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct = concentration_probability(N, K, imbalance)
    monkeypatch.setattr(concentration, "DIRECT_WORK", 0.0)
    transformed = concentration_probability(N, K, imbalance)
    assert transformed.error > direct.error
    assert abs(direct.value - transformed.value) <= direct.error + transformed.error


@pytest.mark.parametrize("direct", [0.0, 2e8])
def test_the_error_of_a_sum_has_those_of_both_parts(
    direct: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors planted in two laws come out of their convolution, and within the error that it states."""
    monkeypatch.setattr(concentration, "DIRECT_WORK", direct)
    rng = np.random.default_rng(1)
    laws = rng.dirichlet(np.ones(40), size=2)
    signs = np.where(rng.random((2, 40)) < 0.9, 1.0, -1.0)
    right = np.convolve(*laws)
    for sizes in ((1e-5, 0.0), (0.0, 1e-5), (1e-4, 3e-5), (0.0, 0.0)):
        parts = [
            concentration.CountLaw(law + error * sign, 0, error)
            for law, error, sign in zip(laws, sizes, signs, strict=True)
        ]
        found = concentration.add_laws(parts[0], parts[1], 200)
        expected = right[found.offset : found.offset + len(found.probabilities)]
        off = np.abs(found.probabilities - expected).max()
        assert 0.5 * max(sizes) * laws.max() <= off <= 1.1 * found.error + 1e-16
        assert found.error <= 1.2 * sum(sizes) + 1e-14


def test_probability_agrees_with_sampled_prompts() -> None:
    rng = np.random.default_rng(0)
    counts = rng.multinomial(200, np.full(5, 0.2), size=200_000)
    sampled = np.mean(np.all(np.abs(counts - 40.0) <= 0.06 * 200 + 1e-9, axis=1))
    found = concentration_probability(200, 5, 0.06).value
    assert abs(sampled - found) < 4 * math.sqrt(found * (1 - found) / 200_000)


def test_an_empty_box_has_no_probability() -> None:
    assert concentration_probability(1, 2, 0.4).value == 0.0
    assert concentration_probability(5, [0.1, 0.9], 0.05).value == 0.0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: concentration_probability(0, 4, 0.1), "N = 0"),
        (lambda: concentration_probability(10, 1, 0.1), "probs = 1"),
        (lambda: concentration_probability(10, [1.0], 0.1), "probs = "),
        (lambda: concentration_probability(10, [0.7, 0.7], 0.1), "probs = "),
        (lambda: concentration_probability(10, 4, 0.0), "imbalance = 0.0"),
        (lambda: concentration_probability(10, 4, 1.0), "imbalance = 1.0"),
        (lambda: smallest_imbalance(10, 4, 1.0), "confidence = 1.0"),
    ],
)
def test_refuses_wrong_arguments(call: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()  # type: ignore[operator]


@pytest.mark.parametrize("N", [30, 300])
def test_the_error_of_a_probability_has_those_of_its_sums(
    monkeypatch: pytest.MonkeyPatch, N: int
) -> None:
    """An error planted in each sum moves the probability by no more than it states, and by as much in size."""
    add_laws = concentration.add_laws
    planted = 1e-9
    right = concentration_probability(N, 4, 0.1)

    def wrong(
        one: concentration.CountLaw, other: concentration.CountLaw, most: int
    ) -> concentration.CountLaw:
        found = add_laws(one, other, most)
        return found._replace(
            probabilities=found.probabilities + planted, error=found.error + planted
        )

    monkeypatch.setattr(concentration, "add_laws", wrong)
    found = concentration_probability(N, 4, 0.1)
    off = abs(found.value - right.value)
    assert off <= found.error + right.error
    assert off >= 0.1 * found.error
