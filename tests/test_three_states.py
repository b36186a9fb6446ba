"""Log losses on chains of three states, against all sequences and drawn ones."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from scipy.special import gammaln

import icl_theory as icl
from icl_theory.testing import check_risk
from icl_theory.tokens import CountRisk, ThreeStateCounts
from tests.references import Array


def sequences(T: int, alpha: float) -> Iterator[tuple[tuple[int, ...], float, Array]]:
    """Yield all sequences, their probabilities, and the law of the next symbol."""
    for x in itertools.product(range(3), repeat=T):
        n = np.zeros((3, 3))
        for before, after in itertools.pairwise(x):
            n[before, after] += 1
        log = -math.log(3.0)
        for row in n:
            log += gammaln(3 * alpha) - gammaln(3 * alpha + row.sum())
            log += float(np.sum(gammaln(alpha + row) - gammaln(alpha)))
        following = (alpha + n[x[-1]]) / (3 * alpha + n[x[-1]].sum())
        yield x, math.exp(log), following


def renamed(x: tuple[int, ...]) -> dict[int, int]:
    """Return the new names: the last symbol, then the others by their frequency."""
    others = [symbol for symbol in range(3) if symbol != x[-1]]
    others.sort(key=lambda symbol: (-x.count(symbol), symbol))
    return {x[-1]: 0, others[0]: 1, others[1]: 2}


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(("T", "alpha"), [(2, 1.0), (3, 0.6), (5, 2.5), (6, 0.3)])
def test_the_table_has_all_sequences(T: int, alpha: float, first: bool) -> None:
    expected: Counter[tuple[int, ...]] = Counter()
    entropy = 0.0
    for x, probability, following in sequences(T, alpha):
        name = renamed(x)
        counts = [0] * (9 if first else 6)
        counts[(6 if first else 3) + name[x[0]]] += 1
        for before, after in itertools.pairwise(x):
            counts[name[after] + (0 if before == x[-1] else 3)] += 1
        expected[tuple(counts)] += probability  # type: ignore[assignment]
        entropy -= probability * float(following @ np.log(following))
    law = ThreeStateCounts(T, alpha, first)
    table = law.table
    rows = [tuple(row) for row in table.counts.astype(int).tolist()]
    assert len(rows) == len(set(rows)) or first  # a start of 1 or 2 may be a tie
    merged: Counter[tuple[int, ...]] = Counter()
    for row, probability in zip(rows, table.probability.tolist(), strict=True):
        merged[row] += probability  # type: ignore[assignment]
    likely = {row for row, probability in merged.items() if probability > 1e-17}
    assert likely == set(expected)
    for row in likely:
        assert merged[row] == pytest.approx(expected[row], rel=1e-12)
    assert law.predictors()["bigram"] == pytest.approx(entropy, rel=1e-13)


@pytest.mark.parametrize("T", [13, 40])
def test_probabilities_of_longer_sequences_sum_to_one(T: int) -> None:
    total = sum(part.probability.sum() for part in ThreeStateCounts(T, 0.5).parts())
    assert total == pytest.approx(1.0, rel=1e-13)


def test_the_head_has_the_loss_of_its_definition() -> None:
    """Two layers written out, over all sequences of six symbols."""
    T, alpha = 6, 0.7
    a, b, c = np.array([0.4, 1.1]), 1.7, 0.8
    problem = icl.InductionHeads(
        k=3, T=T, concentration=alpha, objective="log", sink=c, match=b, scores=a
    )
    lags = np.exp(a) / np.exp(a).sum()
    expected = 0.0
    for x, probability, following in sequences(T, alpha):
        weights = [math.exp(c)]
        values = [np.full(3, 1.0 / 3.0)]
        for t, symbol in enumerate(x):
            feature = np.eye(3)[symbol]
            if t > 0:
                feature = lags[0] * feature + lags[1] * np.eye(3)[x[t - 1]]
            weights.append(math.exp(b * feature[x[-1]]))
            values.append(np.eye(3)[symbol])
        output = np.average(values, axis=0, weights=weights)
        expected -= probability * float(following @ np.log(output))
    risk = problem.risk()
    assert risk.loss(risk.initial) == pytest.approx(expected, rel=1e-12)
    check_risk(risk)


def test_a_head_trains_through_the_levels_of_the_predictors() -> None:
    problem = icl.InductionHeads(
        k=3, T=10, objective="log", sink=5.0, ratio=0.1, max_steps=400
    )
    run = problem.simulate()
    assert run.regime == "induction"
    levels = problem.predictors
    assert levels["Bayes"] == levels["bigram"] == pytest.approx(problem.risk().floor())
    assert list(run.phases.present()) == ["uniform", "unigram", "bigram"]
    assert run.observed["attention"][-1] > 10.0 * run.observed["attention"][0]


@pytest.mark.parametrize(("name", "hidden"), [("unigram", 0.0), ("bigram", -100.0)])
def test_predictors_are_attention_with_given_scores(name: str, hidden: float) -> None:
    """A sink of the weight 3α adds α to each count; hidden tokens have no weight."""
    law = ThreeStateCounts(12, 0.6)
    risk = CountRisk(law, "log", sink=np.full(3, 1.0 / 3.0))
    scores = [0.0, 0.0, 0.0, hidden, hidden, hidden, math.log(1.8)]
    loss = risk.loss(np.array(scores)[:, None])
    assert loss == pytest.approx(law.predictors()[name], rel=1e-12)


def test_drawn_sequences_have_the_loss_and_gradient_on_average() -> None:
    risk = CountRisk(ThreeStateCounts(9, 0.6, first=True), sink=[0.2, 0.3, 0.5])
    scores = np.random.default_rng(1).normal(size=risk.initial.shape)
    exact = risk.evaluate(scores)
    trainer = risk.sampled(2000, seed=4)
    draws = [trainer.evaluate(scores, step) for step in range(20)]
    numbers = np.array([[loss, *slope.ravel()] for loss, slope in draws])
    error = numbers.std(axis=0, ddof=1) / math.sqrt(len(numbers))
    z = (numbers.mean(axis=0) - [exact[0], *exact[1].ravel()]) / error
    assert np.abs(z).max() < 4.5


def drawn_predictors(T: int, size: int) -> Array:
    """Return z of the two predictors on sequences that are drawn symbol by symbol."""
    rng = np.random.default_rng(7)
    chains = rng.dirichlet(np.ones(3), (size, 3))
    cumulated = np.cumsum(chains, axis=2)
    every = np.arange(size)
    counts = np.zeros((size, 3, 3))
    symbol = rng.integers(0, 3, size)
    totals = np.eye(3)[symbol]
    for _ in range(T - 1):
        before = symbol
        draws = rng.random(size)[:, None]
        symbol = (draws > cumulated[every, before, :-1]).sum(axis=1)
        counts[every, before, symbol] += 1.0
        totals[every, symbol] += 1.0
    following = chains[every, symbol]
    rows = counts[every, symbol]
    unigram = -np.log((1.0 + totals) / (3.0 + T))
    bigram = -np.log((1.0 + rows) / (3.0 + rows.sum(axis=1, keepdims=True)))
    levels = ThreeStateCounts(T).predictors()
    z = []
    for name, losses in (("unigram", unigram), ("bigram", bigram)):
        mean = (following * losses).sum(axis=1)
        z.append((mean.mean() - levels[name]) / (mean.std() / math.sqrt(size)))
    return np.array(z)


def test_predictors_are_those_of_drawn_sequences() -> None:
    assert np.abs(drawn_predictors(30, 10_000)).max() < 4.0


@pytest.mark.slow
def test_predictors_of_a_hundred_symbols_are_those_of_drawn_sequences() -> None:
    assert np.abs(drawn_predictors(100, 200_000)).max() < 4.0


def test_two_states_have_the_predictors_of_their_log_loss() -> None:
    given = icl.InductionHeads(k=2, T=15, objective="log", sink=1.0).predictors
    assert icl.InductionHeads(k=2, T=15, lags=3).predictors_in_nats() == given


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ThreeStateCounts(1), "^T = 1: must be an integer in"),
        (lambda: ThreeStateCounts(10**6), "^T = 1000000: must be smaller"),
        (lambda: ThreeStateCounts(9, 0.0), "^concentration = 0"),
        (lambda: ThreeStateCounts(9, first=1), "^first = 1"),  # type: ignore[arg-type]
        (lambda: icl.InductionHeads(k=4, T=9).predictors_in_nats(), "^k = 4"),
        (
            lambda: icl.InductionHeads(
                k=3, T=9, start="stationary"
            ).predictors_in_nats(),
            "^k = 3: must be 2; or 3 with a uniform start",
        ),
        (
            lambda: icl.InductionHeads(
                k=3, T=9, objective="log", sink=0.0, second="matrix"
            ),
            "^objective = 'log': must be 'square' for k = 3 unless",
        ),
        (
            lambda: icl.InductionHeads(
                k=3, T=9, objective="log", sink=0.0, chains=4, seed=1
            ),
            "^objective = 'log': must be 'square' for k = 3 unless",
        ),
        (
            lambda: icl.InductionHeads(
                k=3, T=9, objective="log", sink=0.0, edge="complete"
            ),
            "^edge = 'complete': must be 'causal'",
        ),
    ],
)
def test_laws_without_a_closed_form_are_named(
    call: Callable[[], Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        call()
