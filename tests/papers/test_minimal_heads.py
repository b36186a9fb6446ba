"""The minimal model of an induction head, and log losses at all positions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from icl_theory.papers.induction_heads.minimal import MinimalHeads
from icl_theory.papers.induction_heads.minimal_risk import MinimalRisk
from icl_theory.papers.induction_heads.positions import PositionLosses
from icl_theory.papers.induction_heads.sequences import Sequences
from icl_theory.testing import check_family, check_risk
from tests.references import Array


def following(x: tuple[int, ...], k: int, alpha: float, circulant: bool) -> Array:
    """Return the law of the next symbol, with counts made anew."""
    counts = np.full(k, alpha)
    for before, after in itertools.pairwise(x):
        if circulant:
            counts[(x[-1] + after - before) % k] += 1.0
        elif before == x[-1]:
            counts[after] += 1.0
    return counts / counts.sum()


def probability(x: tuple[int, ...], k: int, alpha: float, circulant: bool) -> float:
    """Return the probability of a sequence, symbol by symbol."""
    p = 1.0 / k
    for t in range(1, len(x)):
        p *= float(following(x[:t], k, alpha, circulant)[x[t]])
    return p


def written_out(problem: MinimalHeads, params: Array, x: tuple[int, ...]) -> Array:
    """Return the logits at all positions of a sequence, layer by layer, (T, k)."""
    k = problem.k
    T = problem.T
    m = problem.lag_count
    v = params[:m]
    W = params[m] * np.eye(k)
    if problem.second == "matrix":
        W = np.full((k, k), params[m + 1])
        np.fill_diagonal(W, params[m])
    mixtures = []
    for s in range(T):
        weights = {}
        for j in range(T):
            lag = s - j
            if lag < 0 and problem.mask == "none":
                lag = 0
            if 0 <= lag < m:
                score = v[lag]
                weights[j] = math.exp(score) if problem.first == "softmax" else score
        total = sum(weights.values()) if problem.first == "softmax" else 1.0
        mixture = np.zeros(k)
        for j, weight in weights.items():
            mixture[x[j]] += weight / total
        mixtures.append(mixture)
    logits = np.zeros((T, k))
    for t in range(T):
        for s in range(t + 1):
            logits[t, x[s]] += W[x[t]] @ mixtures[s]
    return logits


def loss_of_definition(problem: MinimalHeads, params: Array) -> float:
    """Return the loss over all sequences, one by one."""
    k = problem.k
    T = problem.T
    circulant = problem.is_circulant
    alpha = problem.concentration
    total = 0.0
    # The label after the last token is one symbol more.
    for x in itertools.product(range(k), repeat=T + 1):
        logits = written_out(problem, params, x[:T])
        positions = range(T) if problem.positions == "all" else [T - 1]
        log_totals = np.log(np.exp(logits).sum(axis=1))
        losses = [log_totals[t] - logits[t, x[t + 1]] for t in positions]
        total += probability(x, k, alpha, circulant) * float(np.mean(losses))
    return total


def random_problem(rng: np.random.Generator) -> MinimalHeads:
    """Return a problem with at most 125 labelled sequences."""
    k, T = [(2, 3), (2, 4), (2, 5), (3, 2), (3, 3), (4, 2), (5, 2)][rng.integers(7)]
    lags = int(rng.integers(2, T + 1))
    second = "matrix" if rng.random() < 0.6 else "number"
    return MinimalHeads(
        k=k,
        T=T,
        lags=lags,
        first=str(rng.choice(["softmax", "linear"])),
        mask=str(rng.choice(["causal", "none"])),
        positions=str(rng.choice(["all", "last"])),
        chains="circulant" if k <= 3 and rng.random() < 0.3 else "dirichlet",
        concentration=float(rng.uniform(0.2, 3.0)),
        match=float(rng.normal()),
        second=second,
        common=float(rng.normal()) if second == "matrix" else None,
        scores=rng.normal(size=lags),
    )


# 200 problems, of which the quick suite takes 40.
@pytest.mark.parametrize(
    "seeds",
    [range(40), pytest.param(range(40, 200), marks=pytest.mark.slow)],
    ids=["few", "many"],
)
def test_random_problems_have_the_loss_of_their_definition(seeds: range) -> None:
    for seed in seeds:
        problem = random_problem(np.random.default_rng(seed))
        risk = problem.risk()
        expected = loss_of_definition(problem, risk.initial)
        assert risk.loss(risk.initial) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("seed", range(4))
def test_risks_keep_their_contract(seed: int) -> None:
    risk = random_problem(np.random.default_rng(1000 + seed)).risk()
    check_risk(risk)


def test_the_family_keeps_its_contract() -> None:
    check_family(MinimalHeads, k=2, T=3, eta=0.05, max_steps=6)


def test_descent_of_all_entries_of_a_matrix_keeps_two_numbers() -> None:
    """The metric turns descent in b and c into descent of all k² entries of W."""
    k, T, eta = 3, 4, 0.3
    problem = MinimalHeads(k=k, T=T, eta=eta, match=0.2, common=0.1, ratio=1.0)
    risk = problem.risk()

    def loss(v: Array, W: Array) -> float:
        total = 0.0
        for x in itertools.product(range(k), repeat=T):
            e = np.eye(k)[list(x)]
            scores = np.where(np.tri(T) > 0, v[np.maximum(risk.attention.lag, 0)], -99)
            A = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
            logits = np.tril(e @ W @ (A @ e).T) @ e
            for t in range(T):
                law = following(x[: t + 1], k, 1.0, circulant=False)
                cost = np.log(np.exp(logits[t]).sum()) - law @ logits[t]
                total += probability(x, k, 1.0, circulant=False) * float(cost) / T
        return total

    v = np.linspace(0.3, -0.2, T)
    W = np.full((k, k), 0.1) + 0.2 * np.eye(k)
    slopes = np.zeros((k, k))
    h = 1e-5
    for i, j in itertools.product(range(k), repeat=2):
        step = np.zeros((k, k))
        step[i, j] = h
        slopes[i, j] = (loss(v, W + step) - loss(v, W - step)) / (2.0 * h)
    params = np.concatenate([v, [0.3, 0.1]])
    reduced = risk.gradient(params)[-2:] / risk.metric[-2:]
    assert slopes.diagonal() == pytest.approx(reduced[0], abs=1e-8)
    assert slopes[~np.eye(k, dtype=bool)] == pytest.approx(reduced[1], abs=1e-8)


@pytest.mark.parametrize("circulant", [False, True])
@pytest.mark.parametrize(("k", "T", "alpha"), [(2, 6, 0.7), (3, 5, 1.0), (3, 2, 2.0)])
def test_named_sequences_stand_for_all(
    k: int, T: int, alpha: float, circulant: bool
) -> None:
    sequences = Sequences.every(k, T, alpha, circulant)
    assert sequences.probability.sum() == pytest.approx(1.0, rel=1e-14)
    expected: dict[tuple[int, ...], float] = {}
    for x in itertools.product(range(k), repeat=T):
        names: dict[int, int] = {}
        named = tuple(names.setdefault(symbol, len(names)) for symbol in x)
        expected.setdefault(named, 0.0)
        expected[named] += probability(x, k, alpha, circulant)
    columns = [tuple(column) for column in sequences.symbols.T.tolist()]
    assert dict(
        zip(columns, sequences.probability.tolist(), strict=True)
    ) == pytest.approx(expected, rel=1e-12)


def by_definition(k: int, T: int, alpha: float) -> tuple[Array, Array]:
    """Return the losses of unigram and bigram at all positions, over all sequences."""
    unigram = np.zeros(T)
    bigram = np.zeros(T)
    for x in itertools.product(range(k), repeat=T):
        p = probability(x, k, alpha, circulant=False)
        for t in range(1, T + 1):
            law = following(x[:t], k, alpha, circulant=False)
            shares = alpha + np.bincount(x[:t], minlength=k)
            unigram[t - 1] -= p * float(law @ np.log(shares / shares.sum()))
            bigram[t - 1] -= p * float(law @ np.log(law))
    return unigram, bigram


@pytest.mark.parametrize(
    ("k", "T", "alpha"),
    [(2, 1, 1.0), (2, 8, 0.4), (3, 1, 1.0), (3, 2, 0.5), (3, 6, 1.0), (3, 5, 2.5)],
)
def test_losses_at_all_positions_are_means_over_all_sequences(
    k: int, T: int, alpha: float
) -> None:
    unigram, bigram = by_definition(k, T, alpha)
    losses = PositionLosses(k, T, alpha)
    assert losses.unigram == pytest.approx(unigram, abs=1e-12)
    assert losses.bigram == pytest.approx(bigram, abs=1e-12)


def test_the_last_losses_are_those_of_the_counts() -> None:
    """The table of the last position has the unigram by another formula."""
    from icl_theory.tokens import ThreeStateCounts

    expected = ThreeStateCounts(20, 0.6).predictors()
    losses = PositionLosses(3, 20, 0.6)
    assert losses.unigram[-1] == pytest.approx(expected["unigram"], abs=1e-12)
    assert losses.bigram[-1] == pytest.approx(expected["bigram"], abs=1e-12)


@pytest.mark.parametrize("k", [2, 3])
def test_laws_of_rows_and_occurrences_sum_to_one(k: int) -> None:
    losses = PositionLosses(k, 25)
    for t in range(1, 26):
        assert losses.row_law(t).probability.sum() == pytest.approx(1.0, rel=1e-12)
    assert losses.occurrences.sum(axis=1) == pytest.approx(1.0, rel=1e-12)
    # One of the k symbols is at each position.
    mean = losses.occurrences @ np.arange(27)
    assert mean == pytest.approx(np.arange(1, 27) / k, rel=1e-10)


@pytest.mark.parametrize("positions", ["all", "last"])
def test_the_best_counts_are_those_of_all_sequences(positions: str) -> None:
    problem = MinimalHeads(k=3, T=6, positions=positions)
    level = problem.count_levels["bigram"]
    chosen = range(6, 7) if positions == "last" else None
    b, loss = PositionLosses(3, 6).best_logits(chosen)
    assert level.strength == pytest.approx(b, rel=1e-4)
    assert level.loss == pytest.approx(loss, rel=1e-10)
    # A head with all attention on lag 1 has these logits.
    scores = np.array([-60.0, 60.0, *np.full(4, -60.0)])
    risk = problem.changed(second="number").risk()
    head = risk.loss(np.append(scores, b))
    # The first token has no lag 1: it attends to itself.
    assert head == pytest.approx(loss, abs=0.2)
    linear = problem.changed(second="number", first="linear").risk()
    assert linear.loss(np.append(np.eye(6)[1], b)) == pytest.approx(loss, rel=1e-12)


def deviation(problem: MinimalHeads, size: int, scale: float) -> Array:
    """Return z of loss and gradient on drawn, labelled sequences."""
    rng = np.random.default_rng(5)
    risk = problem.risk()
    params = risk.initial + scale * rng.normal(size=risk.initial.shape)
    exact = risk.evaluate(params)
    trainer = risk.sampled(size // 20, seed=3)
    batches = [trainer.evaluate(params, step) for step in range(20)]
    numbers = np.array([[loss, *gradient] for loss, gradient in batches])
    error = numbers.std(axis=0, ddof=1) / math.sqrt(20.0)
    return (numbers.mean(axis=0) - [exact[0], *exact[1]]) / error


@pytest.mark.parametrize(
    ("chains", "mask"),
    [("dirichlet", "causal"), ("circulant", "causal"), ("dirichlet", "none")],
)
def test_drawn_sequences_have_the_exact_loss_and_gradient(
    chains: str, mask: str
) -> None:
    problem = MinimalHeads(k=3, T=6, chains=chains, mask=mask, concentration=0.7)
    assert np.abs(deviation(problem, 20_000, 0.3)).max() < 4.5


@pytest.mark.slow
def test_a_million_drawn_sequences_have_the_exact_loss() -> None:
    problem = MinimalHeads(k=3, T=8, match=0.5, common=0.1)
    assert abs(deviation(problem, 1_000_000, 0.1)[0]) < 4.0


def chains_drawn(k: int, T: int, size: int) -> tuple[Array, Array]:
    """Draw chains, and sequences from them symbol by symbol; return z of both losses.

    The chains are drawn here, unlike in the package, which draws from Pólya's urn.
    """
    rng = np.random.default_rng(11)
    cumulated = np.cumsum(rng.dirichlet(np.ones(k), (size, k)), axis=2)
    each = np.arange(size)
    pairs = np.ones((size, k, k))
    totals = np.ones((size, k))
    symbol = rng.integers(0, k, size)
    unigram = np.zeros(size)
    bigram = np.zeros(size)
    for _ in range(T):
        totals[each, symbol] += 1.0
        draws = rng.random(size)[:, None]
        following_symbol = (draws > cumulated[each, symbol, :-1]).sum(axis=1)
        row = pairs[each, symbol]
        bigram -= np.log(row[each, following_symbol] / row.sum(axis=1))
        unigram -= np.log(totals[each, following_symbol] / totals.sum(axis=1))
        pairs[each, symbol, following_symbol] += 1.0
        symbol = following_symbol
    exact = PositionLosses(k, T)
    z = []
    for losses, expected in ((unigram, exact.unigram), (bigram, exact.bigram)):
        error = losses.std() / math.sqrt(size) / T
        z.append((losses.mean() / T - expected.mean()) / error)
    return np.array(z), exact.bigram


@pytest.mark.parametrize("k", [2, 3])
def test_means_over_positions_are_those_of_drawn_chains(k: int) -> None:
    z, _ = chains_drawn(k, 30, 10_000)
    assert np.abs(z).max() < 4.0


@pytest.mark.slow
def test_means_over_a_hundred_positions_are_those_of_drawn_chains() -> None:
    z, bigram = chains_drawn(3, 100, 50_000)
    assert np.abs(z).max() < 4.0
    # More symbols help, so that the losses fall from position to position.
    assert (np.diff(bigram) < 0.0).all()


def test_drawn_sequences_stand_for_all_within_their_error() -> None:
    every = MinimalHeads(k=3, T=7, match=0.3)
    drawn = every.changed(sequences=4000)
    risk = every.risk()
    error = drawn.average_error(risk.initial)
    assert 0.0 < error < 1e-3
    difference = drawn.risk().loss(risk.initial) - risk.loss(risk.initial)
    assert abs(difference) < 4.0 * error
    assert every.average_error(risk.initial) == 0.0
    assert drawn.predictors == pytest.approx(every.predictors, abs=1e-12)


def test_the_first_layer_has_no_signal_before_the_second_one() -> None:
    """A softmax adds up to one, so equal entries of W see no scores of lags."""
    for mask in ("causal", "none"):
        problem = MinimalHeads(k=3, T=6, mask=mask, match=0.0, common=0.3)
        risk = problem.changed(scores=np.linspace(-1.0, 1.0, 6)).risk()
        gradient = risk.gradient(risk.initial)
        assert np.abs(gradient[:6]).max() < 1e-15
        assert np.abs(gradient[6:]).min() > 1e-3


def test_a_run_goes_from_unigrams_to_an_induction_head() -> None:
    problem = MinimalHeads(k=3, T=8, sequences=100, eta=0.05, max_steps=400)
    run = problem.simulate()
    assert run.regime == "induction"
    assert run.phases is not None
    assert list(run.phases.present()) == ["uniform", "unigram", "bigram"]
    assert run.observed["lag_scores"][-1].argmax() == 1
    assert run.loss[-1] > problem.predictors["bigram"]
    assert "standard error" in run.notes["average"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: MinimalHeads(k=1), "^k = 1"),
        (lambda: MinimalHeads(T=1), "^T = 1"),
        (lambda: MinimalHeads(T=100), "^T = 100: must be smaller unless sequences"),
        (lambda: MinimalHeads(T=10**4), r"would take about 10\^4\d{3} GB"),
        (lambda: MinimalHeads(T=5, lags=6), "^lags = 6: must be at most T = 5"),
        (lambda: MinimalHeads(T=5, scores=[0.0, 1.0]), "^scores"),
        (lambda: MinimalHeads(T=5, k=4, chains="circulant"), "^k = 4"),
        (lambda: MinimalHeads(T=100, sequences=10**9), "^sequences = 1000000000"),
        (lambda: MinimalHeads(T=5, second="number", common=0.1), "^common = 0.1"),
        (lambda: MinimalHeads(T=5, first="relu"), "^first = 'relu'"),
        (lambda: PositionLosses(4, 100), "^k = 4: must be 2 or 3: the counts"),
        (lambda: PositionLosses(3, 10**5), "^T = 100000: must be smaller"),
        (lambda: PositionLosses(3, 0), "^T = 0"),
        (lambda: PositionLosses(3, 5, 0.0), "^concentration = 0"),
        (lambda: PositionLosses(3, 5).row_law(6), "^t = 6"),
    ],
)
def test_wrong_values_are_named(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("rule", ["gd", "adam", "nesterov"])
def test_rules_train_the_head(rule: str) -> None:
    problem = MinimalHeads(
        k=2, T=6, second="number", match=0.1, ratio=1.0, rule=rule, eta=0.1
    )
    run = problem.changed(max_steps=60).simulate()
    assert run.loss[-1] < run.loss[0]


def test_parts_of_the_risk_are_named() -> None:
    risk = MinimalHeads(k=2, T=4).risk()
    assert isinstance(risk, MinimalRisk)
    first, second = risk.blocks(risk.initial)
    assert first.shape == (4,)
    assert second.shape == (2,)
    probabilities = risk.predictions(risk.initial)
    assert probabilities.sum(axis=2) == pytest.approx(1.0, rel=1e-14)
