"""Losses of attention over counted tokens, against sums over all prompts and sequences token by token."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest

import icl_theory as icl
from icl_theory.testing import check_risk
from icl_theory.tokens.counted import LOSSES, CountRisk, mean_loss
from icl_theory.tokens.counts import (
    IndependentCounts,
    TwoStateCounts,
    fair_labels,
)
from tests.references import Array, all_sequences, attention_losses, slopes

FAIR = [[0.5, 0.5], [0.5, 0.5]]
SMALL = (12, pytest.param(200, marks=pytest.mark.slow))


def agree(risk: CountRisk, scores: Array, over_all: Callable[[Array], float]) -> None:
    loss, gradient = risk.evaluate(scores)
    assert loss == pytest.approx(over_all(scores), rel=1e-12)
    np.testing.assert_allclose(
        gradient, slopes(over_all, scores, 1e-3), rtol=1e-10, atol=1e-10
    )


def two_state_law(
    rng: np.random.Generator, T: int
) -> tuple[TwoStateCounts, Array, Array]:
    """A random law, all its sequences with the next symbol, and their probabilities."""
    start: Any = float(rng.random())
    if rng.random() < 0.5:
        concentration = rng.gamma(1.0, 1.5, size=(2, 2)) + 0.05
        return TwoStateCounts(T, concentration, start=start), *all_sequences(
            T, start, concentration
        )
    Z = int(rng.integers(1, 4))
    chains, probs = rng.dirichlet([1.0, 1.0], size=(Z, 2)), rng.dirichlet(np.ones(Z))
    start = "stationary" if rng.random() < 0.5 else start
    found = all_sequences(T, start, chains=chains, probs=probs)
    return TwoStateCounts(T, transitions=chains, probs=probs, start=start), *found


@pytest.mark.parametrize("problems", SMALL)
def test_two_state_losses_are_means_over_all_sequences(problems: int) -> None:
    rng = np.random.default_rng(0)
    for i in range(problems):
        T, objective = int(rng.integers(2, 9)), LOSSES[i % 3]
        law, x, chance = two_state_law(rng, T)
        sink = rng.dirichlet([1.0, 1.0]) if objective == "log" or i % 2 else None
        kinds = 2 * x[:, : T - 1] + x[:, 1:T]
        if i % 4 > 1:
            law, kinds = replace(law, first=True), np.column_stack([4 + x[:, 0], kinds])
        risk = CountRisk(law, objective, sink=sink, scale=rng.uniform(0.5, 6.0))
        prompts = kinds, x[:, T - 1], x[:, T]

        def over_all(
            scores: Array,
            risk: CountRisk = risk,
            prompts: Any = prompts,
            chance: Array = chance,
        ) -> float:
            options = (risk.law.values, scores, risk.sink, risk.objective, risk.scale)
            return float(chance @ attention_losses(*prompts, *options))

        agree(
            risk, rng.choice([1.0, 4.0]) * rng.normal(size=risk.initial.shape), over_all
        )


@pytest.mark.parametrize("problems", SMALL)
def test_losses_of_independent_tokens_are_means_over_all_prompts(problems: int) -> None:
    rng = np.random.default_rng(1)
    for i in range(problems):
        k, V, Z, objective = *rng.integers([1, 2, 1], [5, 4, 4]).tolist(), LOSSES[i % 3]
        N = int(rng.integers(1, 9 if k < 3 else 6))
        probs, values, targets, weights = (
            rng.dirichlet(np.ones(last), size=rows)
            for last, rows in ((k, Z), (V, k), (V, Z), (Z, None))
        )
        sink = rng.dirichlet(np.ones(V)) if i % 2 else None
        risk = CountRisk(
            IndependentCounts(N, probs, values, targets, weights),
            objective,
            sink,
            rng.uniform(0.5, 6.0),
        )
        kinds = np.array(list(itertools.product(range(k), repeat=N)))
        labels = np.einsum(
            "z,zav,zy->ay",
            weights,
            np.prod(probs[:, kinds], axis=2)[..., None],
            targets,
        )

        def over_all(
            scores: Array,
            risk: CountRisk = risk,
            kinds: Any = kinds,
            labels: Array = labels,
        ) -> float:
            options = (risk.law.values, scores, risk.sink, risk.objective, risk.scale)
            one = np.zeros(len(kinds), dtype=int)
            each = [
                attention_losses(kinds, one, one + y, *options)
                for y in range(labels.shape[1])
            ]
            return float(np.sum(labels * np.transpose(each)))

        agree(
            risk, rng.choice([1.0, 4.0]) * rng.normal(size=risk.initial.shape), over_all
        )


@pytest.mark.parametrize("problems", SMALL)
def test_fair_labels_are_means_over_all_features_and_labels(problems: int) -> None:
    rng = np.random.default_rng(2)
    for i in range(problems):
        K, N, objective = *rng.integers([2, 1], [5, 6]).tolist(), LOSSES[i % 3]
        features = np.array(list(itertools.product(range(K), repeat=N)))
        labels = np.array(list(itertools.product((1, -1), repeat=K)))
        same = labels[:, features] == labels[:, :1, None]  # the query has feature 0
        kinds = np.where(features == 0, 0, np.where(same, 1, 2)).reshape(-1, N)
        risk = CountRisk(
            fair_labels(K, N),
            objective,
            [0.5, 0.5] if objective == "log" else None,
            3.0,
        )

        def over_all(
            scores: Array, risk: CountRisk = risk, kinds: Any = kinds
        ) -> float:
            zero = np.zeros(len(kinds), dtype=int)
            options = (risk.law.values, scores, risk.sink, risk.objective, risk.scale)
            return float(attention_losses(kinds, zero, zero, *options).mean())

        agree(risk, rng.normal(size=risk.initial.shape), over_all)


def test_sums_of_fair_labels_are_exact_fractions() -> None:
    """Sums over m tokens of the other features, one feature after the other."""
    K, N = 7, 12
    ways = {0: {0: Fraction(1)}}  # tokens so far: their sum: ways, over m!
    for _ in range(K - 1):
        found: dict[int, dict[int, Fraction]] = {}
        for m, sums in ways.items():
            for n in range(N + 1 - m):
                for label in (1, -1):
                    for d, w in sums.items():
                        row = found.setdefault(m + n, {})
                        row[d + label * n] = row.get(
                            d + label * n, Fraction(0)
                        ) + w / 2 / math.factorial(n)
        ways = found
    table = fair_labels(K, N).table
    for counts, p in zip(
        table.counts.astype(int).tolist(), table.probability.tolist(), strict=True
    ):
        own, m = counts[0], N - counts[0]
        chance = math.comb(N, own) * Fraction(1, K) ** own * Fraction(K - 1, K) ** m
        exact = (
            chance
            * ways[m][counts[1] - counts[2]]
            * math.factorial(m)
            / Fraction(K - 1) ** m
        )
        assert p == pytest.approx(float(exact), rel=1e-13)


def generating(m: int, others: int, angles: Array) -> Array:
    """E e^(iθD) of the sum of m labels of ``others`` features, from the generating function on a circle."""
    radius, points = m / others, m + 128
    z = radius * np.exp(2j * np.pi / points * np.arange(points))
    one = 0.5 * (
        np.exp(z * np.exp(1j * angles)[:, None] - radius)
        + np.exp(z * np.exp(-1j * angles)[:, None] - radius)
    )
    log_size = m * math.log(m) - m - math.lgamma(m + 1)
    return (
        ((one**others) @ np.exp(-2j * np.pi * m / points * np.arange(points))).real
        / points
        / math.exp(log_size)
    )


@pytest.mark.parametrize(
    ("K", "N"), [(30, 40), pytest.param(1000, 1000, marks=pytest.mark.slow)]
)
def test_fair_labels_agree_with_a_fourier_transform(K: int, N: int) -> None:
    risk = CountRisk(fair_labels(K, N), "logistic", scale=4.0)
    table, total = risk.law.table, 0.0
    for own in np.unique(table.counts[:, 0])[:-1]:
        m, rows = N - int(own), table.counts[:, 0] == own
        chance = math.exp(
            math.lgamma(N + 1)
            - math.lgamma(own + 1)
            - math.lgamma(m + 1)
            - own * math.log(K)
            + m * math.log1p(-1 / K)
        )
        angles = np.pi * np.arange(m + 1) / (m + 1)  # D has the parity of m
        both = np.cos(np.outer(np.arange(-m, m + 1, 2), angles)) @ generating(
            m, K - 1, angles
        )
        sums = np.arange(-m, m + 1, 2)
        laws = chance * both / (m + 1)
        found = dict(
            zip(
                table.counts[rows, 1] - table.counts[rows, 2],
                table.probability[rows],
                strict=True,
            )
        )
        np.testing.assert_allclose(
            [found.get(d, 0.0) for d in sums], laws, rtol=0, atol=1e-12
        )
        o = (own * math.exp(3.0) + sums) / (own * math.exp(3.0) + m)
        total += float(laws @ np.log1p(np.exp(-4.0 * o)))
    assert risk.loss([[3.0], [0.0], [0.0]]) == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("size", [200, pytest.param(1000, marks=pytest.mark.slow)])
def test_improbable_sums_of_fair_labels_keep_their_digits(size: int) -> None:
    K = N = size
    table = fair_labels(K, N).table
    for own, same in ((1, N // 2), (0, N * 2 // 5), (9, N * 3 // 5)):
        (row,) = np.flatnonzero((table.counts[:, :2] == (own, same)).all(axis=1))
        with mpmath.workdps(40):
            ways = math.factorial(N) // math.prod(
                math.factorial(n) for n in (own, same, N - own - same)
            )
            terms = [
                math.comb(K - 1, j) * j**same * (K - 1 - j) ** (N - own - same)
                for j in range(K)
            ]
            exact = float(mpmath.mpf(ways * sum(terms)) / K**N / 2 ** (K - 1))
        assert table.probability[row] == pytest.approx(exact, rel=2e-13)


@pytest.mark.parametrize("size", [300.0, -300.0])
def test_digits_survive_scores_of_hundreds(size: float) -> None:
    rng = np.random.default_rng(3)
    T, concentration = 5, np.array([[0.7, 2.0], [1.0, 0.4]])
    scores = np.where(rng.random((5, 2)) < 0.5, size, -size) + rng.normal(size=(5, 2))
    risk = CountRisk(
        TwoStateCounts(T, concentration, start=0.3), "log", sink=[0.6, 0.4]
    )
    x, chance = all_sequences(T, 0.3, concentration)
    with mpmath.workdps(700):
        total = mpmath.mpf(0)
        for row, p in zip(x.tolist(), chance.tolist(), strict=True):
            weight = [
                mpmath.exp(mpmath.mpf(scores[2 * a + b, row[T - 1]]))
                for a, b in itertools.pairwise(row[:T])
            ]
            sink = mpmath.exp(mpmath.mpf(scores[4, row[T - 1]]))
            right = mpmath.fsum(
                w for w, b in zip(weight, row[1:T], strict=True) if b == row[T]
            )
            right += sink * (0.4 if row[T] else 0.6)
            total -= p * mpmath.log(right / (mpmath.fsum(weight) + sink))
    assert risk.loss(scores) == pytest.approx(float(total), rel=1e-12)


def test_scores_of_any_size_give_numbers() -> None:
    law = TwoStateCounts(4)
    for size in (1e50, -1e50, 1e200):
        scores = size * np.array(
            [[1.0, 2.0], [-1.0, 0.5], [0.0, 1.0], [2.0, -1.0], [0.3, 0.3]]
        )
        for objective in LOSSES:
            risk = CountRisk(law, objective, sink=[0.5, 0.5])
            for loss, gradient in (
                risk.evaluate(scores),
                risk.sampled(20).evaluate(scores),
            ):
                assert math.isfinite(loss)
                assert np.isfinite(gradient).all()
    assert CountRisk(law, "log", sink=[0.5, 0.5]).loss(scores) > 1e199


def test_probabilities_of_long_sequences_keep_their_digits() -> None:
    """Of one count of each last symbol, against factorials and gamma functions with fifty digits."""
    T, a = 400, np.array([[0.3, 2.5], [40.0, 1.0]])
    chains = np.array([[[0.9, 0.1], [0.35, 0.65]], [[0.6, 0.4], [0.5, 0.5]]])
    prior, known = (
        TwoStateCounts(T, a, start=0.5).table,
        TwoStateCounts(T, transitions=chains, start=0.5).table,
    )
    for counts, last in (
        ((200, 60, 60, 79), 1),
        ((100, 101, 100, 98), 1),
        ((300, 10, 11, 78), 0),
    ):
        n00, n01, n10, n11 = counts
        runs = n01 + (last == 0), n10 + (last == 1)
        ways = math.comb(n00 + runs[0] - 1, runs[0] - 1) * math.comb(
            n11 + runs[1] - 1, runs[1] - 1
        )
        with mpmath.workdps(50):
            betas = [
                mpmath.beta(a[s, 0] + x, a[s, 1] + y) / mpmath.beta(a[s, 0], a[s, 1])
                for s, (x, y) in enumerate(((n00, n01), (n10, n11)))
            ]
            powers = [
                mpmath.fprod(
                    mpmath.mpf(float(p)) ** n
                    for p, n in zip(chain.ravel(), counts, strict=True)
                )
                for chain in chains
            ]
            exact = (
                float(ways * betas[0] * betas[1] / 2),
                float(ways * mpmath.fsum(powers) / 4),
            )
        for table, expected in zip((prior, known), exact, strict=True):
            (row,) = np.flatnonzero(
                (table.counts == counts).all(axis=1) & (table.query == last)
            )
            assert table.probability[row] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("T", [2, 3, 30])
def test_probabilities_sum_to_one(T: int) -> None:
    rng = np.random.default_rng(4)
    for law in (
        TwoStateCounts(T, 0.2),
        TwoStateCounts(T, transitions=rng.dirichlet([1, 1], 2), start="stationary"),
    ):
        assert law.table.mean(np.ones(len(law.table.query))) == pytest.approx(
            1.0, rel=1e-14
        )


@pytest.mark.parametrize("rare", [1e-30, 1e-8, 1e-3])
def test_counts_are_kept_that_are_as_probable_as_asked_for(rare: float) -> None:
    n, probs, weights = np.arange(61), np.array([0.2, 0.5]), np.array([0.9, 0.1])
    law = IndependentCounts(
        60, np.column_stack([probs, 1.0 - probs]), np.eye(2), [0.5, 0.5], weights, rare
    )
    ways = np.array([float(math.comb(60, k)) for k in n])
    chance = weights @ (ways * probs[:, None] ** n * (1.0 - probs[:, None]) ** (60 - n))
    np.testing.assert_array_equal(law.table.counts[:, 0], n[chance >= rare])
    np.testing.assert_allclose(
        law.table.probability, chance[chance >= rare], rtol=1e-11
    )
    fair = fair_labels(9, 30, rare).table
    assert fair.probability.min() >= rare * (1.0 - 1e-12)
    every = fair_labels(9, 30).table.probability
    assert len(fair.counts) == np.count_nonzero(every >= rare) <= len(every)


@pytest.mark.parametrize("first", [False, True])
def test_counts_and_the_truth_are_those_of_all_sequences(first: bool) -> None:
    T, a = 6, np.array([[0.5, 1.5], [2.0, 0.8]])
    law = TwoStateCounts(T, a, start=0.4, first=first)
    x, chance = all_sequences(T, 0.4, a)
    windows = 2 * x[:, : T - 1] + x[:, 1:T]
    counts = np.stack([(windows == kind).sum(axis=1) for kind in range(4)], axis=1)
    if first:  # a token as well, of one of two more kinds
        counts = np.column_stack([counts, x[:, 0] == 0, x[:, 0] == 1]).astype(int)
    keys = np.column_stack([law.table.counts, law.table.query]).astype(int).tolist()
    rows = {tuple(key): i for i, key in enumerate(keys)}
    place = np.array(
        [
            rows[(*n, q)]
            for n, q in zip(counts.tolist(), x[:, T - 1].tolist(), strict=True)
        ]
    )
    np.testing.assert_allclose(
        np.bincount(place, chance), law.table.probability, rtol=1e-13
    )
    bayes = np.bincount(place, chance * x[:, T]) / np.bincount(place, chance)
    np.testing.assert_allclose(law.table.truth[:, 1], bayes, rtol=1e-13)


def bigram(law: TwoStateCounts, c: float) -> Array:
    """Shares of the symbols that followed the last one, with c more of each; ½ where there are none."""
    pairs = (
        law.table.counts.reshape(-1, 2, 2)[
            np.arange(len(law.table.query)), law.table.query
        ]
        + c
    )
    pairs[pairs.sum(axis=1) == 0.0] = 1.0
    return pairs / pairs.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("loss", LOSSES[:2])
def test_mean_loss_of_any_predictor(loss: str) -> None:
    T, c = 7, 0.7
    law = TwoStateCounts(T, [[0.5, 1.5], [2.0, 0.8]])
    x, chance = all_sequences(T, 0.5, np.array([[0.5, 1.5], [2.0, 0.8]]))
    windows, last = 2 * x[:, : T - 1] + x[:, 1:T], x[:, T - 1, None]
    ones, all_of = (
        (windows == 2 * last + 1).sum(axis=1),
        (windows // 2 == last).sum(axis=1),
    )
    o = (ones + c) / (all_of + 2 * c)
    right = np.where(x[:, T] == 1, o, 1 - o)
    found = mean_loss(law.table, bigram(law, c), loss)
    assert found.value == pytest.approx(
        chance @ (-np.log(right) if loss == "log" else (1 - right) ** 2), rel=1e-12
    )
    least = mean_loss(law.table, law.table.truth, loss)
    assert least.excess == 0.0
    assert found.excess == pytest.approx(found.value - least.value, rel=1e-12)


def test_log_loss_of_what_was_called_impossible_is_infinite() -> None:
    law = TwoStateCounts(5)
    found = mean_loss(law.table, bigram(law, 0.0), "log")
    assert found.value == found.excess == math.inf
    assert math.isfinite(mean_loss(law.table, bigram(law, 0.0), "square").value)
    never = TwoStateCounts(5, transitions=[[1.0, 0.0], [0.5, 0.5]], start=0.0).table
    assert (
        mean_loss(never, np.tile([1.0, 0.0], (len(never.query), 1)), "log").value == 0.0
    )


@pytest.mark.parametrize("objective", LOSSES)
def test_excess_is_the_divergence_from_the_truth(objective: str) -> None:
    """Where attention is nearly Bayes-optimal: excesses of 1e-20, with the square of the distance."""
    risk = CountRisk(TwoStateCounts(9), objective, sink=[0.5, 0.5], scale=1.0)
    if objective == "logistic":
        assert risk.floor() < risk.loss(risk.initial)
        return
    match = np.array([[0.0, -1.0], [0.0, -1.0], [-1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]])
    sink = np.array([[0.0]] * 4 + [[math.log(2.0)]])
    near, nearer = (risk.excess(b * match + sink) for b in (20.0, 22.0))
    assert 1e-20 < near < 1e-17
    assert near / nearer == pytest.approx(math.exp(4.0), rel=1e-6)
    assert risk.loss(20.0 * match + sink) == pytest.approx(risk.floor(), rel=1e-14)


@pytest.mark.parametrize("objective", LOSSES)
@pytest.mark.parametrize(
    "law", [TwoStateCounts(6), fair_labels(4, 5)], ids=["chain", "labels"]
)
def test_a_count_risk_keeps_the_promises_of_a_risk(law: Any, objective: str) -> None:
    check_risk(CountRisk(law, objective, sink=[0.5, 0.5], scale=2.0))
    check_risk(
        CountRisk(law, objective, sink=[0.5, 0.5], scale=2.0).sampled(50, seed=1)
    )


@pytest.mark.parametrize("objective", LOSSES)
@pytest.mark.parametrize(
    "law",
    [
        TwoStateCounts(12, [[0.5, 1.0], [2.0, 0.7]], start=0.2),
        TwoStateCounts(
            12,
            transitions=[[[0.9, 0.1], [0.2, 0.8]], [[0.3, 0.7], [0.6, 0.4]]],
            start="stationary",
        ),
        fair_labels(5, 9),
        IndependentCounts(
            6,
            [[0.2, 0.5, 0.3], [0.6, 0.3, 0.1]],
            [[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]],
            [0.3, 0.7],
        ),
    ],
    ids=["prior", "chains", "labels", "tasks"],
)
def test_sampled_prompts_have_the_loss_of_the_counts(law: Any, objective: str) -> None:
    risk = CountRisk(law, objective, sink=[0.5, 0.5], scale=3.0)
    scores = np.random.default_rng(0).normal(size=risk.initial.shape)
    sampled = risk.sampled(20_000, seed=5)
    losses = sampled.losses(scores)
    error = losses.std(ddof=1) / math.sqrt(len(losses))
    assert abs(losses.mean() - risk.loss(scores)) < 4.0 * error
    found = np.array([risk.sampled(2000, seed=s).gradient(scores) for s in range(10)])
    z = (
        (found.mean(axis=0) - risk.gradient(scores))
        * math.sqrt(10)
        / np.maximum(found.std(axis=0, ddof=1), 1e-300)
    )
    assert (np.abs(z) < 6.0).all()
    assert np.array_equal(
        sampled.losses(scores, 3), risk.sampled(20_000, seed=5).losses(scores, 3)
    )
    assert not np.array_equal(sampled.losses(scores, 3), sampled.losses(scores, 4))


def test_attention_is_a_mean_over_prompts() -> None:
    law = TwoStateCounts(9, transitions=[[0.9, 0.1], [0.3, 0.7]])
    seen = CountRisk(law, "square", sink=[0.5, 0.5]).observe(np.zeros((5, 2)))
    np.testing.assert_allclose(seen["attention"].sum(axis=0), 1.0, rtol=1e-13)
    np.testing.assert_allclose(seen["attention"][4], 1 / 9, rtol=1e-13)


def test_descent_finds_the_induction_head() -> None:
    """From equal scores to those that match the last symbol."""
    risk = CountRisk(TwoStateCounts(8), "log", sink=[0.5, 0.5])
    run = icl.descend(risk, eta=8.0, epsilon=risk.floor() + 1e-3, steps=1000)
    assert run.stop.name == "REACHED"
    scores = run.states[-1]
    assert (scores[:2, 0] > scores[2:4, 0] + 1.5).all()
    assert (scores[2:4, 1] > scores[:2, 1] + 1.5).all()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TwoStateCounts(1), "T = 1: must be an integer in [2,"),
        (lambda: TwoStateCounts(10**6), "T = 1000000: must be smaller"),
        (
            lambda: TwoStateCounts(5, 0.0),
            "concentration = 0.0: must be a positive number",
        ),
        (
            lambda: TwoStateCounts(5, math.inf),
            "concentration = inf: must be a finite real",
        ),
        (
            lambda: TwoStateCounts(5, [1.0, 2.0]),
            "concentration = [1.0, 2.0]: must be a positive number, or four",
        ),
        (
            lambda: TwoStateCounts(5, start="stationary"),
            "start = 'stationary': must be the probability",
        ),
        (lambda: TwoStateCounts(5, start=1.5), "start = 1.5: must be between 0 and 1"),
        (lambda: TwoStateCounts(5, probs=[1.0]), "probs = [1.0]: must be left out"),
        (
            lambda: TwoStateCounts(5, 1.0, [[0.5, 0.5], [0.5, 0.5]]),
            "concentration = 1.0: must be left out",
        ),
        (
            lambda: TwoStateCounts(5, transitions=[[0.5, 0.4], [0.5, 0.5]]),
            "sum to 1 in each row",
        ),
        (
            lambda: TwoStateCounts(5, transitions=[[1.5, -0.5], [0.5, 0.5]]),
            "must be numbers >= 0",
        ),
        (
            lambda: TwoStateCounts(5, transitions=np.eye(3)[None]),
            "transitions = (1, 3, 3): must be of shape",
        ),
        (
            lambda: TwoStateCounts(5, transitions=np.eye(2), start="stationary"),
            "must be chains that can change",
        ),
        (
            lambda: TwoStateCounts(5, transitions=np.eye(2), start="x"),
            "start = 'x': must be one of stationary",
        ),
        (
            lambda: TwoStateCounts(5, transitions=np.eye(2), probs=[0.5, 0.5]),
            "probs = (2,): must be of shape (1,)",
        ),
        (lambda: IndependentCounts(0, [1.0], [[1.0]], [1.0]), "N = 0: must be"),
        (
            lambda: IndependentCounts(10**12, [1.0], [[1.0]], [1.0]).table,
            "N = 1000000000000: must be smaller",
        ),
        (
            lambda: IndependentCounts(3, [0.5, 0.4], np.eye(2), [0.5, 0.5]),
            "probs = [0.5, 0.4]: must be",
        ),
        (
            lambda: IndependentCounts(3, [0.5, 0.5], np.eye(3), [0.5, 0.5]),
            "values = (3, 3): must be of shape",
        ),
        (
            lambda: IndependentCounts(3, [0.5, 0.5], np.eye(2), [1.0]),
            "targets = (1, 1): must be of shape",
        ),
        (
            lambda: IndependentCounts(3, [0.5, 0.5], np.eye(2), [1.0, 0.0], [0.5, 0.5]),
            "weights = (2,)",
        ),
        (
            lambda: IndependentCounts(3, [0.5, 0.5], np.eye(2), [1.0, 0.0], rare=0.0),
            "rare = 0.0",
        ),
        (lambda: fair_labels(1, 5), "features = 1: must be"),
        (lambda: CountRisk(3), "law = 3: must be"),
        (
            lambda: CountRisk(TwoStateCounts(5), "hinge"),
            "objective = 'hinge': must be one of",
        ),
        (
            lambda: CountRisk(TwoStateCounts(5), "log"),
            "sink = None: must be positive for every label",
        ),
        (lambda: CountRisk(TwoStateCounts(5), "log", [1.0, 0.0]), "sink = "),
        (
            lambda: CountRisk(TwoStateCounts(5), "log", [0.5, 0.25, 0.25]),
            "must be 2 probabilities",
        ),
        (lambda: CountRisk(TwoStateCounts(5), "logistic", scale=0.0), "scale = 0.0"),
        (
            lambda: CountRisk(TwoStateCounts(5), "square").loss([[math.nan] * 2] * 4),
            "params = ",
        ),
        (lambda: CountRisk(TwoStateCounts(5), "square").loss([0.0]), "params = "),
        (lambda: CountRisk(TwoStateCounts(5), "square").sampled(0), "batch = 0"),
        (
            lambda: CountRisk(TwoStateCounts(5), "square").sampled(10**12),
            "batch = 1000000000000: must be smaller",
        ),
        (
            lambda: mean_loss(TwoStateCounts(5).table, [0.5]),
            "predicted = (1,): must be of shape (22, 2)",
        ),
        (
            lambda: mean_loss(TwoStateCounts(2).table, [FAIR[0]] * 3 + [[0.5, 1.5]]),
            "numbers >= 0 that sum to 1",
        ),
        (
            lambda: mean_loss(TwoStateCounts(2).table, [FAIR[0]] * 4, "logistic"),
            "loss = 'logistic': must be",
        ),
        # one of several alone is wrong, to either side
        (
            lambda: TwoStateCounts(5, [[1.0, 2.0], [0.0, 1.0]]),
            "concentration = [[1.0, 2.0], [0.0, 1.0]]: must be",
        ),
        (
            lambda: TwoStateCounts(5, transitions=[FAIR, [[0.5, 0.5], [0.6, 0.5]]]),
            "sum to 1 in each row",
        ),
        (
            lambda: TwoStateCounts(
                5, transitions=[FAIR, np.eye(2)], start="stationary"
            ),
            "chains that can change",
        ),
        (
            lambda: TwoStateCounts(5, transitions=[FAIR, FAIR], probs=[0.5, 0.6]),
            "probs = ",
        ),
        (
            lambda: IndependentCounts(3, FAIR, [[1.0, 0.0], [0.5, 0.4]], [0.5, 0.5]),
            "values = ",
        ),
        (
            lambda: IndependentCounts(3, FAIR, np.eye(2), [[0.5, 0.5], [0.5, 0.6]]),
            "targets = ",
        ),
        (
            lambda: CountRisk(IndependentCounts(3, FAIR, [[1.0, 0.0]] * 2, [0.9, 0.1])),
            "sink = None: must be",
        ),
        (
            lambda: mean_loss(TwoStateCounts(2).table, [FAIR[0]] * 3 + [[0.5, 0.4]]),
            "numbers >= 0 that sum to 1",
        ),
        (
            lambda: mean_loss(TwoStateCounts(2).table, [FAIR[0]] * 3 + [[0.5, 0.6]]),
            "numbers >= 0 that sum to 1",
        ),
        (
            lambda: mean_loss(TwoStateCounts(2).table, [FAIR[0]] * 3 + [[-0.1, 1.1]]),
            "numbers >= 0 that sum to 1",
        ),
        (
            lambda: mean_loss(
                TwoStateCounts(2).table, [FAIR[0]] * 3 + [[0.5, 0.5 + 4e-12]]
            ),
            "that sum to 1",
        ),
        (
            lambda: mean_loss(
                TwoStateCounts(2).table, [FAIR[0]] * 3 + [[0.5, 0.5 - 4e-12]]
            ),
            "that sum to 1",
        ),
    ],
)
def test_wrong_input_is_named(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        make()
    assert words in str(error.value)


def test_chains_that_hardly_ever_change_keep_their_digits() -> None:
    """P(0, 1, 1) of two chains, one with a probability far below the resolution of the mean."""
    tiny = 1e-200
    chains = np.array([[[1.0 - tiny, tiny], [0.5, 0.5]], [[1.0, 0.0], [0.0, 1.0]]])
    table = TwoStateCounts(
        3, transitions=np.concatenate([chains, [[[0.5, 0.5], [0.5, 0.5]]]]), start=0.0
    ).table
    assert table.probability.sum() == pytest.approx(1.0, rel=1e-14)
    alone = TwoStateCounts(3, transitions=chains, probs=[0.5, 0.5], start=0.0).table
    row = (alone.counts == [0.0, 1.0, 0.0, 1.0]).all(axis=1)
    assert math.log(alone.probability[row][0]) == pytest.approx(
        math.log(0.25 * tiny), rel=1e-14
    )
