"""How many sentences are needed: against all multinomial counts, fractions, draws and training itself."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

import icl_theory as icl
from tests.references import compositions

RecallTask, Counts = icl.recall.RecallTask, icl.recall.Counts


def task_with(probs: list[float], alpha: float = 0.0) -> icl.recall.RecallTask:
    return RecallTask(
        30, len(probs), 3, probs=probs, alpha=alpha, counts=Counts.fixed(1)
    )


def by_counts(probs: list[float], M: int, mass: float) -> float:
    """Probability that the triggers that M sentences lack have more than some mass, count by count."""
    total = 0.0
    for counts in compositions(M, len(probs)):
        chance = math.factorial(M) * math.prod(
            p**k / math.factorial(k) for p, k in zip(probs, counts, strict=True)
        )
        total += chance * (
            sum(p for p, k in zip(probs, counts, strict=True) if not k) > mass
        )
    return total


@pytest.mark.parametrize("M", [1, 4, 9])
@pytest.mark.parametrize("mass", [0.0, 0.15, 0.3, 0.55])
def test_missing_triggers_are_those_of_all_counts(M: int, mass: float) -> None:
    probs = [0.5, 0.25, 0.15, 0.1]
    expected = by_counts(probs, M, mass + 1e-9)
    assert icl.recall.missing_probability(task_with(probs), M, mass) == pytest.approx(
        expected, rel=1e-12
    )


@pytest.mark.parametrize("apart", [1e-8, -1e-8, 0.0])
def test_sums_of_probabilities_are_told_apart(apart: float) -> None:
    """Of three triggers two are as likely as the mass allowed, up to the eighth digit."""
    probs, M, mass = [0.5, 0.25 + apart, 0.25 - apart], 4, 0.25
    expected = by_counts(probs, M, mass + 2e-9)
    assert icl.recall.missing_probability(task_with(probs), M, mass) == pytest.approx(
        expected, rel=1e-12
    )


def test_one_sentence_is_enough_where_nothing_can_be_missing() -> None:
    assert icl.recall.sentences_needed(task_with([1.0]), 0.1, 0.01) == 1
    assert (
        icl.recall.sentences_needed(task_with([0.5, 0.5]), 10.0, 0.01) == 1
    )  # more than a trigger can cost
    assert icl.recall.sentences_needed(task_with([0.5, 0.5]), 0.1, 0.5) == 2


@pytest.mark.parametrize("M", [7, 60, 64, 65, 400, 2000])
@pytest.mark.parametrize("lost", [1, 2, 5, 7])
def test_small_probabilities_keep_their_digits(M: int, lost: int) -> None:
    """Of nine triggers at least some are missing: the sum over those that occur, in fractions, down to 1e-300."""
    Q, total = 9, Fraction(0)
    for seen in range(1, Q - lost + 1):
        onto = sum(
            (-1) ** k * math.comb(seen, k) * (seen - k) ** M for k in range(seen + 1)
        )
        total += math.comb(Q, seen) * Fraction(onto, Q**M)
    found = icl.recall.missing_probability(task_with([1 / Q] * Q), M, (lost - 0.5) / Q)
    if total < 1e-290:
        assert found < 1e-289
    else:
        assert found == pytest.approx(float(total), rel=1e-10, abs=0.0)


@pytest.mark.parametrize("M", [1, 3, 20, 64, 65, 90])
@pytest.mark.parametrize("likely", [0.6, 0.97, 0.999])
def test_a_trigger_that_is_nearly_always_there_is_missing_as_often_as_the_others_are_all(
    M: int, likely: float
) -> None:
    probs = [likely, 0.7 * (1.0 - likely), 0.3 * (1.0 - likely)]
    found = icl.recall.missing_probability(task_with(probs), M, 0.5)
    assert found == pytest.approx((1.0 - likely) ** M, rel=1e-10, abs=0.0)
    some = 1.0 - sum(
        math.factorial(M)
        * math.prod(
            p**k / math.factorial(k) for p, k in zip(probs, counts, strict=True)
        )
        for counts in compositions(M, 3)
        if all(counts)
    )
    if M <= 20:
        assert icl.recall.missing_probability(
            task_with(probs), M, 0.0
        ) == pytest.approx(some, rel=1e-12)


def test_a_million_sentences_are_counted_at_once() -> None:
    probs = [0.9, 0.1 - 3e-5, 2e-5, 1e-5]
    found = icl.recall.missing_probability(task_with(probs), 10**6, 1.5e-5)
    assert found == pytest.approx((1 - 2e-5) ** 10**6, rel=1e-8, abs=0.0)


@pytest.mark.parametrize("epsilon", [0.02, 0.5, 1.5])
def test_with_noise_too_the_probability_is_that_of_all_data_sets(
    epsilon: float,
) -> None:
    probs, M, alpha = [0.6, 0.3, 0.1], 12, 0.3
    task = task_with(probs, alpha)
    entropy = -alpha * math.log(alpha) - (1 - alpha) * math.log(1 - alpha)
    expected = 0.0
    for k, counts in itertools.product(range(M + 1), compositions(M, 3)):
        chance = math.comb(M, k) * alpha**k * (1 - alpha) ** (M - k) * math.factorial(M)
        chance *= math.prod(
            p**n / math.factorial(n) for p, n in zip(probs, counts, strict=True)
        )
        share = min(max(k, 0.5), M - 0.5)
        gamma = math.log(share / (M - share))
        costs = [
            math.log(others + math.exp(gamma)) - alpha * gamma - entropy
            for others in (1.0, 29.0)
        ]
        excess = sum(p * costs[n == 0] for p, n in zip(probs, counts, strict=True))
        expected += chance * (excess > epsilon)
    assert icl.recall.failure_probability(task, M, epsilon) == pytest.approx(
        expected, rel=1e-10
    )


@pytest.mark.parametrize("alpha", [0.0, 0.3])
def test_training_on_data_sets_fails_as_often(alpha: float) -> None:
    probs, M, epsilon, sets = [0.6, 0.3, 0.1], 15, 0.25, 200
    task = task_with(probs, alpha)
    failed = 0
    for seed in range(sets):
        run = icl.recall.simulate(task=task, M=M, seed=seed, eta=2.0, above=1e-6)
        assert run.converged
        failed += float(run.notes["population"].split()[0]) > epsilon
    p = icl.recall.failure_probability(task, M, epsilon)
    assert 0.1 < p < 0.9
    assert abs(failed - sets * p) < 4.0 * math.sqrt(sets * p * (1 - p))


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.5])
def test_bound_is_above_the_probability_and_the_inverse_inverts(alpha: float) -> None:
    task = task_with([0.5, 0.3, 0.2], alpha)
    for epsilon, delta in ((0.05, 0.1), (0.02, 1e-3)):
        M = icl.recall.sentences_needed(task, epsilon, delta)
        chances = [
            icl.recall.failure_probability(task, size, epsilon) for size in (M - 1, M)
        ]
        assert chances[0] > delta >= chances[1]
        for size in (M // 2, M, 3 * M):
            exact, bound = (
                f(task, size, epsilon)
                for f in (icl.recall.failure_probability, icl.recall.failure_bound)
            )
            assert exact <= bound * (1 + 1e-9)


def test_wrong_input_is_named() -> None:
    task = task_with([0.5, 0.5])
    for call, words in (
        (lambda: icl.recall.missing_probability(task, 0, 0.1), "M = 0"),
        (lambda: icl.recall.failure_probability(task, 5, 0.0), "epsilon = 0.0"),
        (lambda: icl.recall.sentences_needed(task, 0.1, 1.0), "delta = 1.0"),
        (
            lambda: icl.recall.sentences_needed(task_with([1.0], 0.2), 1e-9, 0.1),
            "epsilon = 1e-09",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    many = RecallTask(200, 40, 3, probs=np.arange(1, 41) / 820, counts=Counts.fixed(1))
    assert 0.0 < icl.recall.missing_probability(many, 100, 0.02) < 1.0
