"""Softmax attention over Markov chains, against all sequences one by one and against counts."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import mpmath
import numpy as np
import pytest

import icl_theory as icl
from icl_theory.engine import Map, Pullback
from icl_theory.testing import check_risk
from icl_theory.tokens.chain import ChainRisk, Chains
from tests.engine.chains import (
    Problem,
    all_sequences,
    counted_loss,
    enumerated_attention,
    enumerated_loss,
    enumerated_slope,
    mp_enumerated,
)

Array = np.ndarray[Any, np.dtype[np.float64]]
TWO = np.array([[0.9, 0.1], [0.3, 0.7]])


def problem(seed: int, longest: int = 8) -> Problem:
    """Draw chains, a start, and scores of a random size, some by position."""
    rng = np.random.default_rng(seed)
    k, m, C = rng.integers(2, 4), rng.integers(1, 4), rng.integers(1, 4)
    T = int(rng.integers(max(m, 2), longest + 1))
    P, probs, spread = (
        rng.dirichlet(np.full(k, 0.7), (C, k)),
        rng.dirichlet(np.ones(C)),
        rng.choice([0.5, 3.0, 10.0]),
    )
    chains = Chains(
        P,
        m,
        probs=probs,
        start=rng.dirichlet(np.ones(k**m)) if rng.random() < 0.5 else None,
    )
    scores = spread * rng.normal(size=(T, k**m, k) if rng.random() < 0.3 else (k**m, k))
    return Problem(chains.transitions, chains.probs, chains.start, m, T, scores)


class Found(NamedTuple):
    """What a risk says of its own scores."""

    loss: float
    gradient: Array
    attention: Array
    error: float


def found_by(risk: ChainRisk) -> Found:
    at = risk.initial
    return Found(risk.loss(at), risk.gradient(at), risk.attention(at), risk.error(at))


def moments(case: Problem, step: float = 0.2) -> Found:
    return found_by(ChainRisk(case.chains, case.length, case.scores, step=step))


def off(found: Array, expected: Array) -> float:
    return float(np.abs(found - expected).max())


def check(case: Problem, seed: int) -> None:
    found, every = moments(case), all_sequences(case)
    loss = enumerated_loss(case, every, case.scores.astype(np.longdouble))
    assert abs(found.loss - loss) <= min(found.error, 1e-12 * loss)
    assert found.error <= 1e-12 * loss
    assert off(found.attention, enumerated_attention(case, every)) < 1e-13
    for direction in np.random.default_rng(seed).normal(size=(3, *case.scores.shape)):
        slope = enumerated_slope(case, every, direction)
        assert (
            abs(np.sum(found.gradient * direction) - slope)
            < 1e-13 * np.abs(found.gradient).max() + 1e-15 * loss
        )


@pytest.mark.parametrize("seed", range(36))
def test_loss_gradient_and_attention_are_those_of_all_sequences(seed: int) -> None:
    check(problem(seed, longest=5), seed)


@pytest.mark.parametrize("places", [1, 2, 4])
@pytest.mark.parametrize("sink", [None, np.array([0.2, 0.3, 0.5])])
def test_the_last_place_stands_for_all_that_follow_and_a_sink_for_a_token_in_front(
    places: int, sink: Array | None
) -> None:
    """Sequence by sequence, with softmax as it is written."""
    rng, k, m, T = np.random.default_rng(places), 3, 2, 4
    P, probs = rng.dirichlet(np.ones(k), (2, k)), np.array([0.3, 0.7])
    chains, front = Chains(P, m, probs=probs), int(sink is not None)
    scores = 2.0 * rng.normal(size=(places + front, k**m, k))
    every = all_sequences(Problem(P, probs, chains.start, m, T, np.empty(0)))

    def loss(scores: Any) -> Any:
        total = 0.0
        for x, windows, chance in zip(
            every.symbols, every.windows, every.probability.T, strict=True
        ):
            at = [(min(t + front, len(scores) - 1), w) for t, w in enumerate(windows)]
            at, values = (
                ([(0, windows[0])] if front else []) + at,
                [*([] if sink is None else [sink])],
            )
            values += [np.eye(k)[symbol] for symbol in x[m - 1 :]]
            weight = np.array([np.exp(scores[place, w, x[-1]]) for place, w in at])
            o = weight @ np.array(values) / weight.sum()
            total = total + sum(
                c * 0.5 * np.sum((o - P[i, x[-1]]) ** 2) for i, c in enumerate(chance)
            )
        return total

    risk = ChainRisk(chains, T, scores, sink=sink)
    value, gradient = risk.evaluate(scores)
    assert value == pytest.approx(float(loss(scores)), rel=1e-12)
    direction = rng.normal(size=scores.shape)
    assert np.sum(gradient * direction) == pytest.approx(
        complex(loss(scores + 1e-40j * direction)).imag / 1e-40
    )
    np.testing.assert_allclose(
        risk.observe(scores)["attention"].sum(axis=(0, 1)), 1.0, rtol=1e-12
    )
    drawn = [risk.sampled(2000, 1).evaluate(scores, step) for step in range(20)]
    means, slopes = (
        np.array([each for each, _ in drawn]),
        np.array([np.sum(g * direction) for _, g in drawn]),
    )
    for found, exact in ((means, value), (slopes, np.sum(gradient * direction))):
        assert abs(found.mean() - exact) < 4.0 * found.std(ddof=1) / np.sqrt(20.0)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 200, 40))
def test_loss_gradient_and_attention_are_those_of_all_sequences_up_to_eight(
    first: int,
) -> None:
    for seed in range(first, first + 40):
        check(problem(1000 + seed), seed)


def test_positions_and_windows_may_be_hidden_by_scores_far_apart() -> None:
    """Scores of ±300, and gaps beyond 1e6: only the order of what is left matters."""
    rng = np.random.default_rng(3)
    P = rng.dirichlet(np.ones(2), 2)[None]
    for size, m in itertools.product((300.0, 2e6), (1, 2)):
        scores = rng.choice([-size, 0.0, size], (2**m, 2)) + rng.normal(size=(2**m, 2))
        case = Problem(P, np.ones(1), Chains(P, m).start, m, 6, scores)
        loss, gradient = mp_enumerated(case)
        found = moments(case)
        assert abs(found.loss - float(loss)) <= min(found.error, 1e-13 * loss)
        for (w, q), slope in gradient.items():
            assert found.gradient[w, q] == pytest.approx(
                float(slope), rel=1e-11, abs=1e-15 * float(loss)
            )


@pytest.mark.parametrize("gap", [20.0, 35.0, 150.0, 300.0])
def test_tiny_losses_keep_their_digits(gap: float) -> None:
    """After a symbol of a cycle comes the symbol that attention finds, up to e^-gap: losses down to 1e-260."""
    P = np.roll(np.eye(3), 1, axis=1)[None]
    start = np.array([[0.5, 0.25, 0.25]])
    scores = gap * np.roll(np.eye(3), 1, axis=0) + 0.1 * np.arange(9.0).reshape(3, 3)
    case = Problem(P, np.ones(1), start, 1, 5, scores)
    loss, gradient = mp_enumerated(case)
    found = moments(case)
    assert found.loss < 20.0 * np.exp(-2.0 * gap)
    assert abs(found.loss - float(loss)) <= min(found.error, 1e-13 * loss)
    assert found.error < 1e-12 * loss
    for (w, q), slope in gradient.items():
        assert found.gradient[w, q] == pytest.approx(float(slope), rel=2e-13)


def test_long_sequences_of_two_states_by_their_counts() -> None:
    """More chains than are carried at once, a hundred positions."""
    rng = np.random.default_rng(4)
    P, probs = rng.dirichlet(np.ones(2), (24, 2)), rng.dirichlet(np.ones(24))
    scores = 2.0 * rng.normal(size=(4, 2))
    case = Problem(P, probs, np.empty(0), 2, 100, scores)
    found = found_by(ChainRisk(Chains(P, 2, probs=probs), 100, scores))
    assert abs(found.loss - counted_loss(case)) < 1e-13 * found.loss
    assert found.error < 1e-11 * found.loss


@pytest.mark.parametrize("step", [0.3, 0.6])
def test_error_of_coarse_steps_is_bounded_from_above(step: float) -> None:
    ratios = []
    for seed in range(60):
        case = problem(seed, longest=4)
        every, found = all_sequences(case), moments(case, step)
        error = abs(
            found.loss - enumerated_loss(case, every, case.scores.astype(np.longdouble))
        )
        assert error <= found.error
        ratios.append(float(found.error / error))
    assert np.median(ratios) < 100.0


@pytest.mark.parametrize("step", [0.2, 0.25, 0.3, 0.4, 0.5, 0.6])
def test_rule_for_a_squared_reciprocal_has_the_stated_error(step: float) -> None:
    """A sequence whose positions are all alike has a loss of |e_x - P_q|²/2, found by the sum for one Z."""
    bound = 6.0 * abs(mpmath.gamma(2 + 2j * mpmath.pi / step)) + 4e-15
    for depth in np.concatenate([np.linspace(0.0, 3.0, 61), [5.0, 8.3, 20.2]]):
        x = -3.5 + step * np.arange((8.0 + depth) / step)
        t = x - np.exp(-x) - depth
        total = step * float(np.sum((1.0 + np.exp(-x)) * np.exp(2.0 * t - np.exp(t))))
        assert abs(total - 1.0) <= bound


def test_what_the_next_symbol_adds_is_its_variance() -> None:
    case = problem(7, longest=4)
    every, chains = all_sequences(case), case.chains
    q = every.symbols[:, -1]
    spread = [1.0 - (P[q] ** 2).sum(axis=1) for P in case.transitions]
    expected = 0.5 * sum(
        p @ each for p, each in zip(every.probability, spread, strict=True)
    )
    assert chains.irreducible(case.length) == pytest.approx(float(expected), rel=1e-13)


def test_stationary_law_keeps_its_small_entries() -> None:
    """Two groups of states that are hardly ever left, one of them far less often than the other."""
    P = np.array([[0.5, 0.5, 0.0], [0.5, 0.5 - 1e-14, 1e-14], [0.0, 1e-3, 0.999]])
    with mpmath.workdps(60):
        a, b = (
            mpmath.mpf(P[1, 2]) / mpmath.mpf(P[2, 1]),
            mpmath.mpf(P[1, 0]) / mpmath.mpf(P[0, 1]),
        )
        law = [b / (1 + b + a), 1 / (1 + b + a), a / (1 + b + a)]
    np.testing.assert_allclose(Chains(P).start[0], [float(p) for p in law], rtol=1e-14)


def test_unreached_symbols_count_nothing_from_a_given_start() -> None:
    P = np.array([[0.5, 0.5, 0.0], [0.25, 0.75, 0.0], [0.0, 0.5, 0.5]])
    start = np.array([0.5, 0.5, 0.0])
    found = found_by(ChainRisk(Chains(P, start=start), 5, np.arange(9.0).reshape(3, 3)))
    inner = found_by(
        ChainRisk(
            Chains(P[:2, :2], start=start[:2]), 5, np.arange(9.0).reshape(3, 3)[:2, :2]
        )
    )
    assert found.loss == pytest.approx(inner.loss, rel=1e-14)
    assert not found.gradient[:, 2].any()
    assert not found.attention[:, 2].any()
    assert not found.attention[2].any()


def test_a_law_of_the_oldest_symbol_is_one_of_windows() -> None:
    found = Chains(TWO, 3, start=[0.2, 0.8]).start.reshape(2, 2, 2)
    for x, y, z in itertools.product(range(2), repeat=3):
        assert found[x, y, z] == pytest.approx(
            [0.2, 0.8][x] * TWO[x, y] * TWO[y, z], rel=1e-15
        )


class Lags(Map):
    """Two softmax layers: the first attends to the symbols of the window, the second to what it found, times b."""

    initial = np.array([0.3, -0.4, 1.5])

    def __init__(self, k: int) -> None:
        self.match = np.array(
            [
                [[float(a == q), float(b == q)] for q in range(k)]
                for a in range(k)
                for b in range(k)
            ]
        )

    def inward(self, params: Array) -> Array:
        return params[2] * self.match @ self._first(params)

    def _first(self, params: Array) -> Array:
        weight = np.exp(params[:2] - params[:2].max())
        return weight / weight.sum()

    def push(self, params: Array, direction: Array) -> Array:
        return np.tensordot(self._slopes(params), direction, 1)

    def outward(self, params: Array, gradient: Array) -> Array:
        return np.einsum("wqi,wq->i", self._slopes(params), gradient)

    def stretch(self, params: Array) -> float:
        return float(np.linalg.norm(self._slopes(params)))

    def bend(self, params: Array, direction: Array, gradient: Array) -> Array:
        h = 1e-6
        ahead, behind = (
            self.outward(params + sign * h * direction, gradient)
            for sign in (1.0, -1.0)
        )
        return (ahead - behind) / (2.0 * h)

    def _slopes(self, params: Array) -> Array:
        a, found = self._first(params), self.match @ self._first(params)
        layers = [params[2] * a[i] * (self.match[:, :, i] - found) for i in range(2)]
        return np.stack([*layers, found], axis=2)


def test_two_softmax_layers_are_a_function_of_the_window() -> None:
    """Position by position: the first layer averages one-hot symbols, the second compares them with the last."""
    k, T = 3, 5
    P = np.random.default_rng(5).dirichlet(np.ones(k), k)
    chains = Chains(P, 2)
    risk = Pullback(ChainRisk(chains, T), Lags(k))
    check_risk(risk)
    every = all_sequences(
        Problem(chains.transitions, chains.probs, chains.start, 2, T, np.empty(0))
    )
    one_hot = np.eye(k)[every.symbols]
    lag, strength = (
        np.exp(Lags.initial[:2]) / np.exp(Lags.initial[:2]).sum(),
        Lags.initial[2],
    )
    keys = lag[0] * one_hot[:, :-1] + lag[1] * one_hot[:, 1:]
    weight = np.exp(strength * np.einsum("ntk,nk->nt", keys, one_hot[:, -1]))
    output = np.einsum(
        "nt,ntk->nk", weight / weight.sum(axis=1, keepdims=True), one_hot[:, 1:]
    )
    error = ((output - P[every.symbols[:, -1]]) ** 2).sum(axis=1)
    assert risk.loss(Lags.initial) == pytest.approx(
        float(every.probability[0] @ error) / 2, rel=1e-13
    )


RISKS: dict[str, Callable[[], icl.Risk]] = {
    "one chain": lambda: ChainRisk(Chains(TWO, 2), 7),
    "two chains": lambda: ChainRisk(Chains([TWO, TWO[::-1]], 1, probs=[0.3, 0.7]), 7),
    "by position": lambda: ChainRisk(Chains(TWO, 2), 4, np.zeros((4, 4, 2))),
    "sampled": lambda: ChainRisk(Chains(TWO, 2), 7).sampled(16, 0),
    "sampled by position": lambda: ChainRisk(
        Chains(TWO, 2), 4, np.zeros((4, 4, 2))
    ).sampled(16, 0),
    "matrix": lambda: icl.in_coordinates(
        ChainRisk(Chains(TWO), 6), "factored", np.eye(2), rank=1
    ),
}


@pytest.mark.parametrize("name", RISKS)
def test_risks_keep_their_promises(name: str) -> None:
    check_risk(RISKS[name]())


@pytest.mark.parametrize("positions", [False, True])
def test_drawn_sequences_agree_with_the_integral(positions: bool) -> None:
    """Loss, slopes and attention within five standard errors, from batches of 500."""
    rng = np.random.default_rng(6)
    scores = 2.0 * rng.normal(size=(8, 9, 3) if positions else (9, 3))
    risk = ChainRisk(
        Chains(rng.dirichlet(np.ones(3), (2, 3)), 2, probs=[0.2, 0.8]), 8, scores
    )
    sampled = risk.sampled(500, seed=1)
    direction = rng.normal(size=scores.shape)
    loss, gradient = risk.evaluate(scores)
    exact = np.array(
        [
            loss,
            np.sum(gradient * direction),
            *risk.observe(scores)["attention"].sum(axis=0).ravel()[:3],
        ]
    )
    drawn = []
    for step in range(100):
        found = sampled.evaluate(scores, step)
        attention = sampled.observe(scores, step)["attention"].sum(axis=0).ravel()[:3]
        drawn.append([found[0], np.sum(found[1] * direction), *attention])
    spread = np.std(drawn, axis=0) / 10.0 + 1e-14
    assert np.abs((np.mean(drawn, axis=0) - exact) / spread).max() < 5.0
    # The attention of the sequences with each last symbol adds up to 1.
    attention = sampled.observe(scores, 0)["attention"].reshape(-1, 3)
    np.testing.assert_allclose(attention.sum(axis=0), 1.0, rtol=1e-12)


def test_training_finds_the_symbol_that_followed_the_last_one() -> None:
    """Over chains that are all different, positions whose predecessor is the last symbol get the attention."""
    P = np.random.default_rng(8).dirichlet(np.ones(2), (12, 2))
    risk = ChainRisk(Chains(P, 2), 16)
    run = icl.descend(risk, eta=40.0, steps=40)
    assert risk.loss(run.params) < 0.5 * risk.loss(risk.initial)
    attention = risk.observe(run.params)["attention"]
    assert attention[0, 0] + attention[1, 0] > 0.8
    assert attention[2, 1] + attention[3, 1] > 0.8


WRONG: list[tuple[str, Callable[[], object]]] = [
    (
        r"transitions = \[0.9, 0.2\]: must be numbers >= 0 that sum to 1",
        lambda: Chains([[0.9, 0.2], [0.5, 0.5]]),
    ),
    (
        r"transitions = \[1.5, -0.5\]: must be numbers >= 0",
        lambda: Chains([[1.5, -0.5], [0.5, 0.5]]),
    ),
    (r"transitions = .*: must be of shape \(k, k\)", lambda: Chains([[1.0]])),
    (
        r"transitions = .*: must be of shape \(k, k\)",
        lambda: Chains(np.full((2, 3), 1 / 3)),
    ),
    (
        r"transitions = .*: must be a finite real array",
        lambda: Chains([[np.nan, 1.0], [0.5, 0.5]]),
    ),
    (
        r"irreducible unless start is given \(state 1 cannot be reached from state 0, or state 0 cannot be reached from state 1\)",
        lambda: Chains(np.eye(2)),
    ),
    (
        r"transitions = .*: must be irreducible",
        lambda: Chains([TWO, [[0.5, 0.5], [0.0, 1.0]]]),
    ),
    (
        r"transitions = .*: must be a finite real array of numbers up to",
        lambda: Chains(np.full((2, 2), 1e308)),
    ),
    (
        r"transitions = .*all stationary probabilities are within float64",
        lambda: Chains([[0.5, 0.5], [1e-310, 1.0]]),
    ),
    (r"window = 0: must be an integer >= 1", lambda: Chains(TWO, 0)),
    (r"window = 60: must be smaller: this takes", lambda: Chains(TWO, 60)),
    (r"window = 1000000000000: must be smaller", lambda: Chains(TWO, 10**12)),
    (r"probs = .*: must be 1 positive numbers", lambda: Chains(TWO, probs=[0.5, 0.5])),
    (
        r"start = \[0.5, 0.6\]: must be numbers >= 0 that sum to 1",
        lambda: Chains(TWO, start=[0.5, 0.6]),
    ),
    (
        r"start = \(3,\): must be of shape \(4,\) or \(1, 4\)",
        lambda: Chains(TWO, 2, start=[0.2, 0.3, 0.5]),
    ),
    (r"chains = 3: must be Chains", lambda: ChainRisk(3, 4)),  # type: ignore[arg-type]
    (r"length = 1: must be an integer >= 2", lambda: ChainRisk(Chains(TWO, 2), 1)),
    (
        r"length = 10+: must be smaller: this takes",
        lambda: ChainRisk(Chains(TWO, 2), 10**12),
    ),
    (
        r"scores = \(2, 2\): must be of shape \(4, 2\)",
        lambda: ChainRisk(Chains(TWO, 2), 4, np.zeros((2, 2))),
    ),
    (
        r"scores = .*: must be a finite real array",
        lambda: ChainRisk(Chains(TWO), 4, [[np.inf, 0.0], [0.0, 0.0]]),
    ),
    (
        r"step = 1.0: must be between 0 and 0.6",
        lambda: ChainRisk(Chains(TWO), 4, step=1.0),
    ),
    (
        r"batch = 0: must be an integer >= 1",
        lambda: ChainRisk(Chains(TWO), 4).sampled(0, 0),
    ),
    (
        r"params = .*: must be of shape \(2, 2\)",
        lambda: ChainRisk(Chains(TWO), 4).loss(np.zeros((4, 2))),
    ),
]


@pytest.mark.parametrize(
    ("message", "call"), WRONG, ids=[str(i) for i in range(len(WRONG))]
)
def test_wrong_arguments_are_named(message: str, call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_scores_of_any_finite_size_have_a_loss() -> None:
    scores = 1e308 * np.array([[1.0, -1.0], [-1.0, 1.0], [0.5, 0.0], [-1.0, 0.0]])
    found = found_by(ChainRisk(Chains(TWO, 2), 5, scores))
    assert np.isfinite(found.gradient).all()
    assert 0.0 < found.loss < 1.0
    assert off(found.attention.sum(axis=0), np.ones(2)) < 1e-13
