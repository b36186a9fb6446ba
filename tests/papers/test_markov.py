"""Numbers behind the pages on Markov chains: the exact reduction and the information of lags, by enumeration."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from icl_theory.engine import descend
from icl_theory.papers.induction_heads import statements as rows


def test_slopes_of_lags_are_those_of_all_sequences() -> None:
    """Loss of two layers with given attention on lags and match b, one sequence after the other."""
    chains, T, m = rows._chains("Dirichlet", 2), 4, 2

    def loss(first: np.ndarray, b: float) -> float:
        total = 0.0
        for P in chains:
            law = np.linalg.matrix_power(P, 200)[0]
            for symbols in itertools.product(range(3), repeat=T + m - 1):
                chance = law[symbols[0]] * np.prod(
                    [P[x, y] for x, y in itertools.pairwise(symbols)]
                )
                q = symbols[-1]
                score = [
                    sum(first[j] * (symbols[t - j] == q) for j in range(m))
                    for t in range(m - 1, T + m - 1)
                ]
                weight = np.exp(b * np.array(score))
                output = np.bincount(symbols[m - 1 :], weight, 3) / weight.sum()
                total += 0.5 * chance * np.sum((output - P[q]) ** 2) / len(chains)
        return total

    h = 1e-3
    slopes = [-(loss(unit, h) - loss(unit, -h)) / (2 * h) for unit in np.eye(m)]
    np.testing.assert_allclose(
        rows.signals(rows.on_chains(chains, m, T)), slopes, atol=1e-6
    )


@pytest.mark.parametrize("law", rows.LAWS)
def test_chains_have_the_laws_that_they_are_called_by(law: str) -> None:
    """Rows are a symbol's own for 0.6 in lazy ones, and evenly distributed for the rest."""
    chains, stay = rows._chains(law, 2000), 0.6 if law == "lazy" else 0.0
    np.testing.assert_allclose(chains.sum(axis=2), 1.0, rtol=1e-12)
    np.testing.assert_allclose(
        chains.mean(axis=0), stay * np.eye(3) + (1.0 - stay) / 3.0, atol=0.02
    )
    assert np.diagonal(chains, axis1=1, axis2=2).min() == pytest.approx(stay, abs=0.01)


def test_slopes_with_a_test_symbol_are_those_of_all_sequences() -> None:
    """Log loss of every sequence, with a sink that counts each symbol once more, by differences in b."""
    chains, T, lags, k = rows._chains("Dirichlet", 2), 4, 3, 3

    def loss(P: np.ndarray, lag: int, b: float) -> float:
        law, total = np.linalg.matrix_power(P, 200)[0], 0.0
        for symbols in itertools.product(range(k), repeat=T + lags - 1):
            chance = law[symbols[0]] * np.prod(
                [P[x, y] for x, y in itertools.pairwise(symbols)]
            )
            for query in range(k):
                weight = np.exp(
                    [
                        b * (symbols[t - lag] == query)
                        for t in range(lags - 1, T + lags - 1)
                    ]
                )
                output = np.bincount(symbols[lags - 1 :], weight, k) + 1.0
                total -= chance / k * P[query] @ np.log(output / output.sum())
        return float(total)

    h = 1e-4
    slopes = [
        [-(loss(P, lag, h) - loss(P, lag, -h)) / (2 * h) for P in chains]
        for lag in range(lags)
    ]
    np.testing.assert_allclose(rows.finite_slopes(chains, lags, T), slopes, atol=1e-7)


def test_slopes_of_endless_sequences_are_those_of_a_long_one_of_each_chain() -> None:
    """Counts of one sampled sequence of each chain, and the derivative of its loss written out."""
    chains, rng, size = (
        rows._chains("Dirichlet", 2, 2),
        np.random.default_rng(5),
        100_000,
    )
    for at, slopes in enumerate(rows.endless_slopes(chains, 3).T):
        P, draws, symbols = chains[at], rng.random(size), np.zeros(size, dtype=int)
        steps = np.cumsum(P, axis=1)
        for t in range(1, size):
            symbols[t] = (draws[t] > steps[symbols[t - 1]]).sum()
        share = np.bincount(symbols, minlength=3) / size
        for lag, slope in enumerate(slopes):
            joint = np.bincount(
                3 * symbols[: size - lag] + symbols[lag:], minlength=9
            ).reshape(3, 3) / (size - lag)
            moved = (joint - share[:, None] * share) / share
            assert float(np.sum(P * moved)) / 3.0 == pytest.approx(slope, abs=0.02)


def test_slopes_on_a_tree_are_those_of_all_its_sequences() -> None:
    """Log loss of the mean over all symbols of a tree, by differences in b."""
    chains, parents, k = rows._chains("Dirichlet", 2), (0, 0, 1, 0), 3
    n = len(parents)
    slopes = rows.tree_slopes(chains, parents)

    def loss(P: np.ndarray, j: int, i: int, b: float) -> float:
        law = np.linalg.matrix_power(P, 200)[0]
        total = 0.0
        for q in range(k):
            weight_of = np.zeros(k)
            for symbols in itertools.product(range(k), repeat=n):
                chance = law[symbols[0]]
                for child in range(1, n):
                    chance *= P[symbols[parents[child]], symbols[child]]
                weights = np.ones(n)
                weights[i] = np.exp(b * (symbols[j] == q))
                np.add.at(weight_of, list(symbols), chance * weights)
            predicted = weight_of / weight_of.sum()
            total -= P[q] @ np.log(predicted) / k
        return total

    h = 1e-4
    for j, i in itertools.product(range(n), repeat=2):
        for chain, P in enumerate(chains):
            slope = -(loss(P, j, i, h) - loss(P, j, i, -h)) / (2 * h)
            assert n * slope == pytest.approx(slopes[j, i, chain], abs=1e-7)


def test_a_query_of_the_sequence_does_not_have_the_information_as_its_slope(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the stationary query and its weight π_q the row on information fails."""

    def stationary(chains: np.ndarray, lags: int) -> np.ndarray:
        return rows._information(chains, lags)[0]

    monkeypatch.setattr(rows, "endless_slopes", stationary)
    assert rows.chi_squared(True).violated


def test_a_run_without_a_rest_has_no_plateau() -> None:
    """The reference: the loss at every single step of own descent on the exact gradient."""
    problem = rows.LOG.changed(T=20, sink=8.0, eta=2.0)
    level = problem.predictors["unigram"]
    found = {
        ratio: rows.speed_minimum(problem.changed(ratio=ratio))
        for ratio in (1000.0, 1.0, 0.01)
    }
    assert [point.rests_at(level) for point in found.values()] == [False, False, True]
    risk = problem.changed(ratio=1.0).risk()
    params, losses = risk.initial, []
    while not losses or losses[-1] > 0.5 * (level + problem.predictors["bigram"]):
        loss, gradient = risk.evaluate(params)
        losses.append(loss)
        params = params - 2.0 * gradient / risk.metric
    between = np.array(losses)[
        np.array(losses) < 0.5 * (problem.predictors["uniform"] + level)
    ]
    speed = -np.diff(between)
    sides = [
        min(speed[: at + 1].max(), speed[at:].max()) / speed[at]
        for at in range(len(speed))
    ]
    assert max(sides) < 1.5


@pytest.mark.parametrize("law", rows.LAWS)
def test_information_is_that_of_sampled_pairs(law: str) -> None:
    """Joint frequencies of long sequences of one chain."""
    chain, rng, size = rows._chains(law, 1, 3), np.random.default_rng(0), 60_000
    symbols = np.zeros((4, size), dtype=int)
    for _ in range(15):  # towards the stationary law
        symbols[0] = (
            rng.random(size)[:, None] > np.cumsum(chain[0][symbols[0]], axis=1)
        ).sum(axis=1)
    for t in range(1, 4):
        symbols[t] = (
            rng.random(size)[:, None] > np.cumsum(chain[0][symbols[t - 1]], axis=1)
        ).sum(axis=1)
    joint = [
        np.bincount(3 * symbols[0] + symbols[j], minlength=9).reshape(3, 3) / size
        for j in range(3)
    ]
    pairs = np.outer(joint[1].sum(axis=1), joint[1].sum(axis=0))
    plain, chi = np.squeeze(rows._information(chain, 3))
    np.testing.assert_allclose(
        [np.sum((each - pairs) * (joint[1] - pairs)) for each in joint],
        plain,
        atol=5e-3,
    )
    np.testing.assert_allclose(
        [np.sum((each - pairs) * (joint[1] - pairs) / pairs) for each in joint],
        chi,
        atol=4e-2,
    )
    assert chain[0].sum(axis=1) == pytest.approx(1.0)
    assert (law == "doubly stochastic") == np.allclose(chain[0].sum(axis=0), 1.0)


def test_the_reduction_has_its_gradient() -> None:
    for _, whole, exact in rows._settings():
        at = exact.initial + 0.5 * np.random.default_rng(3).normal(
            size=exact.initial.shape
        )
        slopes = [
            (exact.loss(at + h) - exact.loss(at - h)) / 2e-5
            for h in 1e-5 * np.eye(len(at))
        ]
        np.testing.assert_allclose(exact.gradient(at), slopes, atol=1e-9)
        assert whole.initial == pytest.approx(exact.initial)


@pytest.mark.parametrize(("xi", "trained"), [(6.0, False), (0.01, True)])
def test_reduced_circuits_have_their_gradient_and_their_time(
    xi: float, trained: bool
) -> None:
    """The flow to half of ln 2, integrated here from the loss alone."""

    def loss(params: Any) -> float:
        attends = 1.0 / (1.0 + 63.0 * np.exp(-params[0]))
        return float(
            np.log1p(np.exp(-params[2] / (1.0 + 63.0 * np.exp(-params[1] * attends))))
        )

    def downhill(_: float, params: Any) -> Any:
        ends = [(loss(params + h) - loss(params - h)) / 2e-5 for h in 1e-5 * np.eye(3)]
        return -np.array(ends) * [1.0, 1.0, trained]

    def reached(_: float, params: Any) -> float:
        return loss(params) - 0.5 * np.log(2.0)

    reached.terminal = True  # type: ignore[attr-defined]
    risk = rows.NestedLogits(64, np.array([0.0, 0.0, xi]), trained)
    at = np.array([0.7, 1.3, 2.0])
    assert risk.loss(at) == pytest.approx(loss(at), rel=1e-12)
    np.testing.assert_allclose(risk.gradient(at), -downhill(0.0, at), atol=1e-9)
    end = solve_ivp(
        downhill,
        (0.0, 1e5),
        risk.initial,
        method="LSODA",
        rtol=1e-6,
        atol=1e-9,
        events=reached,
    ).t[-1]
    assert descend(risk, 1.0, epsilon=0.5 * np.log(2.0), method="flow").t[
        -1
    ] == pytest.approx(end, rel=1e-2)
