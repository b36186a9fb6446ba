"""Induction heads: the exact loss against all sequences one by one, and what the family says of its runs."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.papers.induction_heads.family import dirichlet_points
from icl_theory.testing import check_family
from icl_theory.tokens import ChainRisk

Array = np.ndarray[Any, np.dtype[Any]]
RNG = np.random.default_rng(7)
TWO = RNG.dirichlet([0.8, 0.8], (2, 2))
THREE = RNG.dirichlet([0.8] * 3, (2, 3))
BETAS = ((0.4, 2.5), (1.7, 0.9))
ROWS = ((0.5, 1.5, 3.0), (2.0, 0.7, 1.0), (1.2, 0.9, 0.6))


def every(k: int, T: int) -> Array:
    """All sequences of T symbols, (k**T, T)."""
    return np.indices((k,) * T).reshape(T, -1).T


def stationary(P: Array) -> Array:
    return np.linalg.matrix_power(P, 4096)[..., 0, :]


def of_chains(P: Array, probs: Array, first: Array, x: Array) -> Array:
    """Probabilities of sequences and next symbols, (n, k), given chains and laws of their first symbols."""
    chance = probs[:, None] * first[:, x[:, 0]]
    for before, after in zip(x.T, x.T[1:], strict=False):
        chance = chance * P[:, before, after]
    return np.asarray(np.einsum("cn,cny->ny", chance, P[:, x[:, -1]]))


def of_rows(c: Any, k: int, x: Array) -> Array:
    """The same for Dirichlet rows and a uniform start: pairs as often as they were seen, and c times more."""
    found = np.empty((len(x), k))
    for y in range(k):
        counts, chance = (
            np.tile(np.zeros((k, k)) + c, (len(x), 1, 1)),
            np.full(len(x), 1.0 / k),
        )
        rows = np.arange(len(x))
        for before, after in zip(x.T, [*x.T[1:], np.full(len(x), y)], strict=True):
            chance = (
                chance * counts[rows, before, after] / counts[rows, before].sum(axis=1)
            )
            counts[rows, before, after] += 1.0
        found[:, y] = chance
    return found


def attended(problem: icl.InductionHeads, params: Array) -> tuple[Array, Array, Array]:
    """Attention of all sequences, softmax upon softmax, sink first; values, and what follows the last symbol."""
    k, m, T = problem.k, problem.lags, problem.T
    x, eye = every(k, T), np.eye(k)
    a, rest = params[:m], params[m:]
    size = k * k if problem.second == "matrix" else 1
    B = rest[:size].reshape(k, k) if size > 1 else rest[0] * eye
    query, weights, values, follows = eye[x[:, -1]], [], [], []
    if problem.sink is not None:
        weights.append(np.full(len(x), np.exp(rest[-1])))
        values.append(np.full((len(x), k), 1.0 / k))
        follows.append(np.zeros(len(x)))
    for t in range(0 if problem.edge == "causal" else m - 1, T):
        lags = range(min(t + 1, m))
        total = sum(np.exp(a[lag]) for lag in lags)
        f = sum(np.exp(a[lag]) / total * eye[x[:, t - lag]] for lag in lags)
        weights.append(np.exp(np.einsum("nx,xy,ny->n", f, B, query)))
        values.append(eye[x[:, t]])
        follows.append((x[:, t - 1] == x[:, -1]) * (t > 0.0))
    w = np.stack(weights, axis=1)
    return (
        w / w.sum(axis=1, keepdims=True),
        np.stack(values, axis=1),
        np.stack(follows, axis=1),
    )


def enumerated(problem: icl.InductionHeads, joint: Array, params: Array) -> Any:
    """The mean loss over all sequences."""
    attention, values, _ = attended(problem, params)
    o, eye = np.einsum("nt,ntx->nx", attention, values), np.eye(problem.k)
    if problem.objective == "log":
        return -np.sum(joint * np.log(o))
    return 0.5 * np.sum(joint * np.sum((o[:, None] - eye) ** 2, axis=2))


def joint_law(problem: icl.InductionHeads) -> Array:
    x, k = every(problem.k, problem.T), problem.k
    if problem.transitions is None:
        return of_rows(problem.concentration, k, x)
    P = np.array(problem.transitions)
    given = np.full(k, 1.0 / k) if problem.start == "uniform" else problem.start
    first = (
        stationary(P) if problem.start == "stationary" else np.tile(given, (len(P), 1))
    )
    return of_chains(P, np.full(len(P), 1.0 / len(P)), first, x)


CASES: dict[str, dict[str, Any]] = {
    "log, beta rows": {"T": 7, "objective": "log", "sink": 0.3, "concentration": 0.7},
    "log, two betas": {"T": 7, "objective": "log", "sink": 0.3, "concentration": BETAS},
    "square, two betas": {
        "T": 8,
        "concentration": BETAS,
        "edge": "complete",
        "second": "matrix",
    },
    "log, two chains": {
        "T": 8,
        "objective": "log",
        "sink": -1.0,
        "transitions": TWO,
        "start": "stationary",
    },
    "log, complete, matrix": {
        "T": 6,
        "objective": "log",
        "sink": 0.5,
        "edge": "complete",
        "second": "matrix",
    },
    "square, beta rows": {"T": 8, "concentration": 2.5},
    "square, complete": {
        "T": 7,
        "edge": "complete",
        "sink": 0.1,
        "transitions": TWO,
        "start": (0.3, 0.7),
    },
    "three lags": {"T": 8, "lags": 3, "transitions": TWO, "sink": 1.0},
    "three lags, complete": {
        "T": 8,
        "lags": 3,
        "transitions": TWO,
        "edge": "complete",
        "start": "stationary",
    },
    "three symbols": {
        "T": 6,
        "k": 3,
        "transitions": THREE,
        "second": "matrix",
        "start": (0.2, 0.5, 0.3),
    },
    "three symbols, complete": {
        "T": 6,
        "k": 3,
        "transitions": THREE,
        "edge": "complete",
        "sink": 0.4,
    },
    "three of each": {
        "T": 6,
        "k": 3,
        "lags": 3,
        "transitions": THREE,
        "sink": 0.4,
        "start": "stationary",
    },
}


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_are_those_of_all_sequences(name: str) -> None:
    problem = icl.InductionHeads(**CASES[name])
    joint, risk, rng = joint_law(problem), problem.risk(), np.random.default_rng(3)
    assert joint.sum() == pytest.approx(1.0, rel=1e-13)
    for spread in (0.5, 2.0):
        params = spread * rng.normal(size=risk.initial.shape)
        assert risk.loss(params) == pytest.approx(
            enumerated(problem, joint, params), rel=1e-12
        )
        slopes = [
            enumerated(problem, joint, params + 1e-40j * unit).imag / 1e-40
            for unit in np.eye(len(params))
        ]
        np.testing.assert_allclose(
            risk.gradient(params), slopes, rtol=1e-11, atol=1e-13
        )


@pytest.mark.parametrize("name", CASES)
def test_observed_attention_is_that_of_all_sequences(name: str) -> None:
    problem = icl.InductionHeads(**CASES[name])
    joint, risk, m = joint_law(problem), problem.risk(), problem.lags
    params = np.random.default_rng(5).normal(size=risk.initial.shape)
    (attention, _, follows), found = attended(problem, params), risk.observe(params)
    chance, eye = (
        joint.sum(axis=1),
        np.eye(problem.k)[every(problem.k, problem.T)[:, -1]],
    )
    np.testing.assert_allclose(
        found["first"], np.exp(params[:m]) / np.exp(params[:m]).sum(), rtol=1e-13
    )
    assert found["attention"] == pytest.approx(
        chance @ np.sum(attention * follows, axis=1), rel=1e-11
    )
    second = found["second"].reshape(-1, problem.k)
    np.testing.assert_allclose(chance @ eye @ second.sum(axis=0), 1.0, rtol=1e-11)
    if problem.sink is not None:
        assert found["sink"] == pytest.approx(chance @ attention[:, 0], rel=1e-11)
        given = (chance * attention[:, 0]) @ eye / (chance @ eye)
        sink = (
            found["second"][-1]
            if problem.is_counted
            else found["second"][0].sum(axis=0)
        )
        np.testing.assert_allclose(sink, given, rtol=1e-11)
    last = params[m:-1] if problem.sink is not None else params[m:]
    np.testing.assert_array_equal(np.ravel(found["match"]), last)
    # how far the scores of the second layer move with the parameters
    ends = [
        [risk.map.inward(params + sign * 1e-6 * unit).ravel() for sign in (1, -1)]
        for unit in np.eye(len(params))
    ]
    moves = np.array([(one - two) / 2e-6 for one, two in ends])
    assert risk.map.stretch(params) == pytest.approx(np.linalg.norm(moves, 2), rel=1e-8)


@pytest.mark.parametrize(
    "given",
    [
        {"k": 3, "T": 5, "points": 8},
        {"T": 6, "chains": 2},
        {"k": 3, "T": 5, "chains": 2},
    ],
)
def test_other_seeds_are_other_chains(given: dict[str, Any]) -> None:
    at = np.array([0.3, -0.2, 1.5])
    losses = [
        icl.InductionHeads(seed=seed, **given).risk().loss(at) for seed in (0, 1, 2, 0)
    ]
    assert len({round(loss, 9) for loss in losses}) == 3
    assert losses[0] == losses[3]


def test_the_error_of_quasi_random_points_is_that_of_eight_other_scramblings() -> None:
    problem, at = (
        icl.InductionHeads(k=3, T=4, points=8, seed=4),
        np.array([0.3, -0.2, 1.5]),
    )
    others = [problem.changed(seed=seed).risk().loss(at) for seed in range(5, 13)]
    off = abs(sum(others) / 8.0 - problem.risk().loss(at))
    scatter = (sum((x - sum(others) / 8.0) ** 2 for x in others) / 7.0 / 8.0) ** 0.5
    assert problem.average_error(at) == pytest.approx(off + 3.0 * scatter, rel=1e-5)
    assert icl.InductionHeads(T=6).average_error(at) == 0.0


@pytest.mark.parametrize(
    ("given", "known"),
    [
        ({}, True),
        ({"concentration": 0.5}, True),
        ({"start": "stationary"}, False),
        ({"chains": 4}, False),
        ({"concentration": ROWS}, False),
        ({"transitions": THREE}, False),
        ({"start": (0.2, 0.3, 0.5)}, True),
    ],
)
def test_the_bayes_loss_of_three_symbols_is_known_where_counting_is_optimal(
    given: dict[str, Any], known: bool
) -> None:
    """Counts of pairs then say all: not where the first symbol does, or where rows or chains differ."""
    found = icl.InductionHeads(k=3, T=5, points=8, **given).predictors
    assert ("Bayes" in found) == known
    assert (
        found.get("Bayes", found["bigram"])
        == found["bigram"]
        < found["uniform"]
        == pytest.approx(1.0 / 3.0)
    )


@pytest.mark.parametrize("ratio", [0.25, 1.0, 4.0, 100.0])
def test_normalised_steps_of_the_layers_have_the_lengths_that_the_page_says(
    ratio: float,
) -> None:
    problem = icl.InductionHeads(
        T=8, eta=0.01, rule="ngd-blocks", ratio=ratio, max_steps=1, match=0.3
    )
    change = problem.simulate().params - problem.risk().initial
    assert np.linalg.norm(change[:2]) == pytest.approx(
        0.01 * math.sqrt(ratio), rel=1e-9
    )
    assert np.linalg.norm(change[2:]) == pytest.approx(0.01, rel=1e-9)


@pytest.mark.parametrize("sink", [30.0, 60.0])
def test_the_error_of_an_average_contains_that_of_its_integral(sink: float) -> None:
    """All attention is on the sink: each prediction is uniform, and loses (1 - 1/k)/2 whatever the chains are."""
    problem = icl.InductionHeads(k=3, T=12, sink=sink, points=8)
    params = problem.risk().initial
    assert (
        abs(problem.risk().loss(params) - 1.0 / 3.0)
        <= problem.average_error(params)
        < 1e-8
    )


def test_the_long_steps_of_an_average_are_within_its_error() -> None:
    problem = icl.InductionHeads(k=3, T=12, match=0.0, points=8)
    risk, params = problem.risk(), problem.risk().initial
    scores, chains = risk.map.inward(params), risk.risk.chains
    exact = ChainRisk(chains, 12, scores).loss(scores)
    others = [problem.changed(seed=1 + i).risk().loss(params) for i in range(8)]
    loss = risk.loss(params)
    by_chains = abs(np.mean(others) - loss) + 3.0 * np.std(others, ddof=1) / np.sqrt(
        8.0
    )
    off = abs(risk.risk.loss(scores) - exact)
    assert off > 1e-9 * exact
    assert problem.average_error(params) - by_chains > off


@pytest.mark.parametrize(
    ("k", "lags", "c"),
    [(2, 3, 0.4), (2, 3, BETAS), (3, 2, 1.0), (3, 2, ROWS)],
)
def test_averages_over_all_chains_are_within_the_stated_error(
    k: int, lags: int, c: Any
) -> None:
    problem = icl.InductionHeads(
        k=k, lags=lags, T=5, concentration=c, sink=0.0, points=16 if k == 2 else 64
    )
    joint, largest = of_rows(c, k, every(k, 5)), 0.0
    for params in np.random.default_rng(1).normal(
        size=(3, len(problem.risk().initial))
    ):
        off = abs(problem.risk().loss(params) - enumerated(problem, joint, params))
        stated = problem.average_error(params)
        assert off <= stated
        largest = max(largest, off / stated)
    assert (
        k == 2 or largest > 0.02
    )  # not fifty times too large everywhere; two states are exact here


def test_a_stationary_start_of_beta_rows_is_within_the_stated_error() -> None:
    problem = icl.InductionHeads(T=5, start="stationary", sink=0.0)
    z, weight = np.polynomial.legendre.leggauss(120)
    p, q = (each.ravel() for each in np.meshgrid(0.5 + 0.5 * z, 0.5 + 0.5 * z))
    P = np.stack([1.0 - p, p, q, 1.0 - q], axis=1).reshape(-1, 2, 2)
    first = np.stack([q, p], axis=1) / (p + q)[:, None]
    joint = of_chains(P, 0.25 * np.outer(weight, weight).ravel(), first, every(2, 5))
    params = np.array([0.1, 1.0, 2.0, 0.3])
    off = abs(problem.risk().loss(params) - enumerated(problem, joint, params))
    assert off <= problem.average_error(params) < 1e-4


@pytest.mark.parametrize(("k", "objective"), [(2, "square"), (2, "log"), (3, "square")])
def test_known_predictions_have_the_losses_of_counting(k: int, objective: str) -> None:
    c, T = 0.6, 6
    problem = icl.InductionHeads(
        k=k, T=T, concentration=c, objective=objective, sink=0.0, points=1024
    )
    x, eye = every(k, T), np.eye(k)
    joint = of_rows(c, k, x)
    unigram = c + eye[x].sum(axis=1)
    bigram = c + np.einsum("nt,ntx->nx", x[:, :-1] == x[:, -1:], eye[x[:, 1:]])
    for name, shares in (("unigram", unigram), ("bigram", bigram), ("Bayes", joint)):
        o = shares / shares.sum(axis=1, keepdims=True)
        each = (
            -np.log(o)
            if objective == "log"
            else 0.5 * np.sum((o[:, None] - eye) ** 2, axis=2)
        )
        expected = np.sum(joint * each)
        assert problem.predictors[name] == pytest.approx(
            expected, rel=1e-12 if k == 2 else 1e-3
        )


def test_points_are_a_law_of_dirichlet_rows() -> None:
    """Means m = c/Σc and second moments m(c + 1)/(Σc + 1), and rows are independent."""
    for c in (
        np.full((2, 2), 0.5),
        np.full((3, 3), 0.5),
        np.full((4, 4), 2.0),
        np.array(BETAS),
        np.array(ROWS),
    ):
        P, probs = dirichlet_points(c, 1024, seed=2)
        total = c.sum(axis=1, keepdims=True)
        mean = c / total
        np.testing.assert_allclose(P.sum(axis=2), 1.0, rtol=1e-14)
        np.testing.assert_allclose(np.tensordot(probs, P, 1), mean, atol=2e-4)
        np.testing.assert_allclose(
            np.tensordot(probs, P**2, 1), mean * (c + 1.0) / (total + 1.0), atol=5e-4
        )
        np.testing.assert_allclose(
            (probs * P[:, 0, 0]) @ P[:, 1], mean[0, 0] * mean[1], atol=5e-4
        )


def test_few_chains_are_drawn_with_the_parameters_of_their_rows() -> None:
    drawn, _ = icl.InductionHeads(k=3, concentration=ROWS, chains=4000).law()
    c = np.array(ROWS)
    np.testing.assert_allclose(
        drawn.mean(axis=0), c / c.sum(axis=1, keepdims=True), atol=0.02
    )


def test_a_matrix_of_concentrations_has_the_loss_of_counting_as_its_floor() -> None:
    """For two symbols the Bayes-optimal prediction counts as much more of each pair as its prior says."""
    problem = icl.InductionHeads(T=6, objective="log", sink=0.0, concentration=BETAS)
    joint = of_rows(np.array(BETAS), 2, every(2, 6))
    o = joint / joint.sum(axis=1, keepdims=True)
    assert problem.predictors["Bayes"] == pytest.approx(
        -np.sum(joint * np.log(o)), rel=1e-12
    )
    assert problem.predictors["bigram"] > problem.predictors["Bayes"] + 1e-3
    assert "Bayes" not in icl.InductionHeads(k=3, T=6, concentration=ROWS).predictors


@pytest.mark.parametrize(
    ("scores", "match", "outcome"),
    [
        ((0.3, 1.2, -0.5), 0.7, "induction"),
        ((0.3, 1.2, -0.5), -0.7, "anti-induction"),
        ((0.3, 0.1, 0.5), 0.2, "lag 2"),
        ((2.0, 1.0, 0.5), -0.2, "anti-lag 0"),
    ],
)
def test_what_was_learnt_is_the_lag_of_most_attention_and_the_sign_of_the_match(
    scores: tuple[float, ...], match: float, outcome: str
) -> None:
    problem = icl.InductionHeads(
        T=6,
        lags=3,
        transitions=TWO,
        points=4,
        scores=scores,
        match=match,
        second="matrix",
        eta=1e-12,
        max_steps=1,
    )
    run = problem.simulate()
    found, share = problem.measure(run), np.exp(scores) / np.exp(scores).sum()
    assert (found["outcome"], run.regime) == (outcome, outcome)
    assert found["b"] == pytest.approx(match, rel=1e-9)
    assert found["lag_share"] == pytest.approx(share[1], rel=1e-9)
    shares = ", ".join(f"{each:.3g}" for each in share)
    assert (
        run.notes["learnt"]
        == f"{outcome}: the first layer attends to lags 0, 1, ... by {shares}"
    )
    assert run.notes["match"] == f"b = {match:.4g}"


@pytest.mark.parametrize(
    ("given", "names"),
    [({}, {"uniform", "unigram"}), ({"concentration": BETAS}, {"bigram"})],
)
def test_levels_are_the_predictions_that_are_worse_than_the_floor(
    given: dict[str, Any], names: set[str]
) -> None:
    """The bigram is the Bayes-optimal prediction where all concentrations are one."""
    problem = icl.InductionHeads(T=20, objective="log", sink=0.0, **given)
    levels = problem.levels()
    assert levels == {
        name: problem.predictors[name] for name in {"uniform", "unigram"} | names
    }


def test_a_run_leaves_both_plateaus_at_the_steps_that_it_says() -> None:
    problem = icl.InductionHeads(
        T=40, objective="log", sink=8.0, eta=2.0, max_steps=200
    )
    run, known, risk, losses = (
        problem.simulate(),
        problem.predictors,
        problem.risk(),
        list[float](),
    )
    params = risk.initial
    for _ in range(200):
        loss, gradient = risk.evaluate(params)
        losses, params = [*losses, loss], params - 2.0 * gradient
    ends = [
        int(np.argmax(np.array(losses) <= 0.5 * (known[high] + known[low])))
        for high, low in (("uniform", "unigram"), ("unigram", "bigram"))
    ]
    assert 0 < ends[0] < ends[1]
    assert run.phases == {
        "uniform": (0, ends[0]),
        "unigram": tuple(ends),
        "bigram": (ends[1], 200),
    }
    assert run.regime == "induction"
    assert problem.measure(run)["emergence"] == ends[1]
    assert run.notes["emergence"].endswith(f"at step {ends[1]}")
    np.testing.assert_allclose(run.observed["first"][0], [0.5, 0.5])
    assert run.observed["attention"][-1] > 0.85
    assert set(problem.levels()) <= {text.get_text() for text in run.plot().texts}


@pytest.mark.parametrize("T", [10, 20])
def test_phases_of_few_chains_follow_one_another(T: int) -> None:
    """Unigrams of two chains may be worse than nothing."""
    problem = icl.InductionHeads(T=T, objective="log", sink=3.0, chains=2, max_steps=60)
    run, known = problem.simulate(), problem.predictors
    assert run.phases is not None
    spans = [span for span in run.phases.values() if span is not None]
    assert (spans[0][0], spans[-1][1]) == (0, 60)
    assert all(before[1] == after[0] for before, after in itertools.pairwise(spans))
    assert ("uniform" in run.phases.present()) == (
        run.loss[0] > 0.5 * (known["uniform"] + known["unigram"])
    )


def test_where_unigrams_are_worse_than_nothing_there_is_no_uniform_phase() -> None:
    """Of chains with uniform stationary laws, however large the first loss is."""
    chains = [[[1.0 - p, p], [p, 1.0 - p]] for p in (0.2, 0.7)]
    problem = icl.InductionHeads(
        T=8, objective="log", sink=0.0, transitions=chains, match=-4.0, max_steps=4
    )
    run, known = problem.simulate(), problem.predictors
    assert run.loss[0] > known["unigram"] > known["uniform"] > known["bigram"]
    assert run.phases == {"uniform": None, "unigram": (0, 4), "bigram": None}


@pytest.mark.parametrize(
    ("given", "few", "approximate"),
    [
        ({}, False, False),
        ({"start": "stationary", "points": 4}, False, True),
        ({"chains": 2}, True, False),
    ],
)
def test_only_few_chains_have_new_ones_and_only_averages_an_error(
    given: dict[str, Any], few: bool, approximate: bool
) -> None:
    problem = icl.InductionHeads(T=6, max_steps=1, **given)
    run = problem.simulate()
    assert ("new_loss" in problem.measure(run)) == few
    assert ("average" in run.notes) == approximate
    said = dict(each.split() for each in run.notes["predictors"].split(", "))
    assert {name: float(loss) for name, loss in said.items()} == pytest.approx(
        problem.predictors, rel=1e-5
    )


def test_fast_runs_are_those_of_single_steps() -> None:
    problem = icl.InductionHeads(
        T=30, objective="log", sink=5.0, eta=4.0, ratio=0.5, max_steps=250
    )
    fast, exact = (
        problem.changed(method=method).simulate() for method in ("fast", "exact")
    )
    assert fast.states_error is not None
    np.testing.assert_allclose(
        fast.params, exact.params, atol=max(fast.states_error, 1e-9)
    )


def test_layers_have_rates_stages_and_lengths_of_their_own() -> None:
    base = icl.InductionHeads(
        T=12, match=0.5, eta=0.1, sink=1.0, max_steps=4, method="exact"
    )
    gradient = base.risk().gradient(base.risk().initial)
    step = base.changed(ratio=3.0).simulate().at(1).params - base.risk().initial
    np.testing.assert_allclose(step, -0.1 * gradient * [3.0, 3.0, 1.0, 1.0], rtol=1e-12)
    lengths = (
        base.changed(rule="ngd-blocks").simulate().at(1).params - base.risk().initial
    )
    np.testing.assert_allclose(
        [np.linalg.norm(lengths[:2]), np.linalg.norm(lengths[2:])], 0.1, rtol=1e-12
    )
    staged = base.changed(stage=2).simulate()
    moved = [
        np.abs(
            np.diff(
                np.split(staged.states[first : first + 3], [2], axis=1)[layer], axis=0
            )
        ).max()
        for first, layer in ((0, 1), (2, 0), (0, 0), (2, 1))
    ]
    assert moved[:2] == [0.0, 0.0]
    assert min(moved[2:]) > 1e-4


def test_few_chains_are_trained_on_and_new_ones_measured() -> None:
    problem = icl.InductionHeads(T=12, chains=3, seed=5, max_steps=20, eta=5.0)
    run = problem.simulate()
    drawn = np.random.default_rng([5, 0]).dirichlet([1.0, 1.0], (3, 2))
    np.testing.assert_array_equal(problem.law()[0], drawn)
    given = icl.InductionHeads(T=12, transitions=drawn)
    assert given.risk().loss(run.params) == pytest.approx(run.loss[-1], rel=1e-13)
    assert problem.measure(run)["new_loss"] == icl.InductionHeads(T=12).risk().loss(
        run.params
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("T", "outcome", "b", "loss"), [(24, "anti-lag 2", -0.87, 0.1962)]
)
def test_short_sequences_end_at_a_negative_match(
    T: int, outcome: str, b: float, loss: float
) -> None:
    """22 tokens that see all of three lags, or 24."""
    problem = icl.InductionHeads(
        T=T,
        lags=3,
        edge="complete",
        start="stationary",
        eta=10.0,
        max_steps=400,
        method="exact",
    )
    run = problem.simulate()
    assert run.regime == outcome
    assert problem.measure(run)["b"] == pytest.approx(b, abs=0.06)
    assert run.loss[-1] == pytest.approx(loss, abs=1e-4)


@pytest.mark.parametrize(
    "given",
    [
        {"T": 9, "objective": "log", "sink": 1.0, "eta": 2.0},
        pytest.param(
            {"T": 6, "k": 3, "transitions": THREE[:1], "second": "matrix", "sink": 0.0},
            marks=pytest.mark.slow,
        ),
        {"T": 5, "lags": 3, "points": 4, "stage": 3, "eta": 2.0},
        {"T": 6, "concentration": BETAS, "sink": 0.5},
    ],
)
def test_family(given: dict[str, Any]) -> None:
    check_family(icl.InductionHeads, rows=False, max_steps=6, **given)


def test_the_match_of_a_matrix_is_its_diagonal_above_the_other_entries() -> None:
    problem = icl.InductionHeads(
        T=6, k=3, transitions=THREE[:1], second="matrix", sink=0.0
    )
    B, start = (
        np.array([[5.0, 1.0, 2.0], [3.0, 7.0, 6.0], [4.0, 8.0, 9.0]]),
        problem.risk().initial,
    )
    params = np.concatenate([start[:2], B.ravel(), start[11:]])
    assert problem._strength(params) == pytest.approx(21.0 / 3.0 - 24.0 / 6.0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"T": 4, "lags": 3}, "T = 4: must be at least 2 lags - 1 = 5"),
        (
            {"transitions": [np.eye(2)], "start": "stationary"},
            "transitions = .*chains that can change their state",
        ),
        (
            {"transitions": [np.eye(3)], "k": 3, "start": "stationary"},
            "transitions = .*must be irreducible unless",
        ),
        ({"transitions": [[[0.5, 0.4], [0.5, 0.5]]]}, "transitions = .*sum to 1"),
        ({"transitions": TWO, "chains": 2}, "chains = 2: must be left out"),
        ({"chains": 0}, "chains = 0: must be"),
        (
            {"transitions": THREE},
            r"transitions = \(2, 3, 3\): must be of shape \(C, 2, 2\)",
        ),
        ({"concentration": 0.0}, "concentration = 0.0: must be"),
        ({"concentration": math.inf}, "concentration = inf: must be"),
        (
            {"concentration": ((1.0, 0.0), (1.0, 2.0))},
            "concentration = 0.0: must be a finite number > 0",
        ),
        (
            {"concentration": "uniform"},
            "concentration = 'uniform': must be a finite number > 0",
        ),
        (
            {"concentration": [1.0, 2.0]},
            "concentration = .*must be a finite real array with 2 dimensions",
        ),
        (
            {"concentration": ROWS},
            "concentration = .*must be a positive number, or 2 rows of 2 of them",
        ),
        ({"start": (0.7, 0.7)}, r"start = .*2 positive numbers that sum to 1"),
        (
            {"start": (0.2, 0.3, 0.5)},
            "start = .*uniform, stationary, or 2 positive numbers",
        ),
        ({"start": "first"}, "start = 'first': must be one of uniform, stationary"),
        ({"ratio": 1e300}, "ratio = 1e[+]300: must be"),
        ({"eta": math.inf}, "eta = inf: must be"),
        ({"match": 1e9}, "match = 1000000000.0: must be"),
        (
            {"objective": "log"},
            "objective = 'log': must be 'square' unless k = 2 or 3, lags = 2, and a sink is given",
        ),
        (
            {"objective": "log", "sink": 0.0, "lags": 3},
            "objective = 'log': must be 'square' unless",
        ),
        (
            {"objective": "log", "sink": 0.0, "k": 4},
            "objective = 'log': must be 'square' unless",
        ),
        ({"scores": [0.0]}, r"scores = .*must be 2 numbers, one for each lag"),
        ({"k": 3, "points": 60}, "points = 60: must be a power of two"),
        ({"k": 50, "lags": 9}, "lags = 9: must be smaller: this takes"),
        ({"k": 90, "T": 10**6}, "T = 1000000: must be smaller: this takes"),
    ],
)
def test_bad_input(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        icl.InductionHeads(**given)


def test_rates_that_overflow_end_a_run_in_words() -> None:
    run = icl.InductionHeads(
        T=10, eta=1e308, ratio=1e9, objective="log", sink=1.0, max_steps=9
    ).simulate()
    assert "diverged" in run.stop_reason
    assert np.isfinite(run.loss).all()
