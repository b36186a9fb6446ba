"""Losses and gradients where scores are far apart, against sums over all prompts in 250 digits."""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import mpmath
import numpy as np
import pytest
from scipy.optimize import minimize

import icl_theory as icl
from icl_theory.regression.batches.score_batch import ScoreBatch
from icl_theory.tokens import ChainRisk, Chains, square
from tests.references import Array, compositions

DIGITS = 250


class Exact(NamedTuple):
    """Loss and its gradient in the scores, (U,), rounded once."""

    loss: float
    gradient: Array


def exactly(kinds: list[icl.Kind], target: Array, scores: Array) -> Exact:
    """Sum over the counts of all prompts, with softmax as it is defined."""
    with mpmath.workdps(DIGITS):
        errors = [
            [
                mpmath.mpf(float(v)) - float(y)
                for v, y in zip(row[:, 0], target, strict=True)
            ]
            for kind in kinds
            for row in kind.values
        ]
        spread = [mpmath.mpf(float(x)) for kind in kinds for x in np.ravel(kind.spread)]
        weight = [mpmath.exp(mpmath.mpf(float(score))) for score in scores]
        loss, gradient = mpmath.mpf(0), [mpmath.mpf(0)] * len(weight)
        for prompt in itertools.product(*(_counts(kind) for kind in kinds)):
            chance = mpmath.fprod(probability for probability, _ in prompt)
            n = [count for _, counts in prompt for count in counts]
            total = mpmath.fsum(k * w for k, w in zip(n, weight, strict=True))
            a = [k * w / total for k, w in zip(n, weight, strict=True)]
            mean = [
                mpmath.fsum(x * e[d] for x, e in zip(a, errors, strict=True))
                for d in range(len(target))
            ]
            pull = []
            for share, error, variance, k in zip(a, errors, spread, n, strict=True):
                noise = variance * share / k if k else 0
                pull.append(
                    mpmath.fsum(x * m for x, m in zip(error, mean, strict=True)) + noise
                )
            square = mpmath.fsum(x * p for x, p in zip(a, pull, strict=True))
            loss += chance * square / 2
            gradient = [
                g + chance * x * (p - square)
                for g, x, p in zip(gradient, a, pull, strict=True)
            ]
        return Exact(float(loss), np.array([float(g) for g in gradient]))


def _counts(kind: icl.Kind) -> list[tuple[Any, tuple[int, ...]]]:
    """Probability of each way to place the tokens of a kind on its nodes."""
    lengths = [kind.number]
    if isinstance(kind.number, icl.Lengths):  # uniform
        lengths = list(range(1, int(kind.number.most) + 1))
    result = []
    for length in lengths:
        for counts in compositions(length, len(kind.probs)):
            chance = mpmath.factorial(length) / len(lengths)
            for count, p in zip(counts, kind.probs, strict=True):
                chance *= mpmath.mpf(float(p)) ** count / mpmath.factorial(count)
            result.append((chance, counts))
    return result


def population(seed: int) -> float:
    """Largest relative error of a column of the gradient of a random regression problem."""
    rng = np.random.default_rng([seed, 77])
    K, N = int(rng.integers(2, 5)), int(rng.integers(1, 6))
    probs = np.maximum(rng.dirichlet(np.ones(K)), 1e-3)
    features = icl.Features(np.eye(K), probs / probs.sum())
    factor = rng.normal(size=(K, int(rng.integers(1, K + 1))))
    noise = float(rng.choice([0.0, 0.0, 0.5]))
    scores = rng.normal(size=(K, K)) * 10.0 ** rng.uniform(0.0, math.log10(350.0))
    risk = icl.PopulationRisk(
        features, icl.tasks.KernelTask(factor @ factor.T), N=N, noise=noise
    )
    gradient = risk.gradient(scores)
    worst = 0.0
    for k, p in enumerate(features.probs):
        kind = icl.Kind(N, features.probs, factor, noise**2)
        expected = p * exactly([kind], factor[k], scores[:, k]).gradient
        if np.linalg.norm(expected) > 1e-280:
            difference = np.linalg.norm(gradient[:, k] - expected)
            worst = max(worst, float(difference / np.linalg.norm(expected)))
    return worst


def problem(seed: int) -> tuple[list[icl.Kind], Array, Array]:
    """Return random kinds of few tokens, some with equal values, a target, and scores."""
    rng = np.random.default_rng([seed, 78])
    count, D = int(rng.integers(1, 4)), int(rng.integers(1, 3))
    shared = rng.normal(size=(2, D))
    kinds = []
    for k in range(count):
        U = int(rng.integers(1, 4 if count < 3 else 3))
        values = rng.normal(size=(U, D))
        if rng.random() < 0.4:
            values = shared[rng.integers(0, 2, U)]
        spread = rng.random(U) if rng.random() < 0.3 else np.zeros(U)
        N = int(rng.integers(1, 5 if count == 1 else 4))
        probs = np.maximum(rng.dirichlet(np.ones(U)), 1e-3)
        number = icl.Lengths.uniform(1, N) if k == 0 and rng.random() < 0.3 else N
        kinds.append(icl.Kind(number, probs / probs.sum(), values, spread))
    nodes = sum(len(kind.probs) for kind in kinds)
    scores = rng.normal(size=nodes) * 10.0 ** rng.uniform(0.0, math.log10(350.0))
    target = shared[0] if rng.random() < 0.5 else rng.normal(size=D)
    return kinds, target, scores


def tokens(seed: int) -> float:
    """Relative error of the gradient of a random problem; 0 if the gradient vanishes."""
    kinds, target, scores = problem(seed)
    expected = exactly(kinds, target, scores).gradient
    size = float(np.linalg.norm(expected))
    if size < 1e-280:
        return 0.0
    return (
        float(np.linalg.norm(icl.TokenRisk(kinds, target).gradient(scores) - expected))
        / size
    )


@pytest.mark.parametrize("gap", [5.0, 20.0, 30.0, 40.0, 100.0])
@pytest.mark.parametrize("noise", [0.0, 1e-3])
def test_a_gradient_between_levels_keeps_its_digits(gap: float, noise: float) -> None:
    """The wrong features have the larger scores, and only shares e^-gap of the attention change the loss."""
    features, variances = icl.Features.simplex(3, delta=1.0), np.array([1.0, 2.0, 3.0])
    risk = icl.PopulationRisk(
        features, icl.tasks.KernelTask(np.diag(variances)), N=5, noise=noise
    )
    scores = np.zeros((3, 3))
    scores[:, 0] = 0.0, gap, 2.0 * gap
    factor = np.diag(np.sqrt(variances))
    kind = icl.Kind(5, features.probs, factor, noise**2)
    expected = exactly([kind], factor[0], scores[:, 0]).gradient / 3.0
    found = risk.gradient(scores)[:, 0]
    assert np.linalg.norm(found - expected) < 1e-13 * np.linalg.norm(expected)


@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize("gap", [15.0, 40.0])
def test_groups_and_batches_keep_the_digits_of_each_query(
    gap: float, noise: float
) -> None:
    """Groups of one feature each, and two problems side by side, against sums over all prompts."""
    features, variances = icl.Features.simplex(3, delta=1.0), np.array([1.0, 2.0, 3.0])
    task, factor = icl.tasks.KernelTask(np.diag(variances)), np.diag(np.sqrt(variances))
    levels = gap * np.array([[0.0, 0.0, 1.0], [1.0, 1.5, 0.0], [2.0, 3.0, 2.2]])
    kind = icl.Kind(4, features.probs, factor, noise**2)
    expected = (
        np.column_stack(
            [exactly([kind], factor[k], levels[:, k]).gradient for k in range(3)]
        )
        / 3.0
    )
    size = np.linalg.norm(expected, axis=0)

    full = icl.PopulationRisk(features, task, 4, noise)
    assert np.all(
        np.linalg.norm(full.gradient(levels) - expected, axis=0) < 1e-10 * size
    )
    batch = ScoreBatch([full, full], np.ones(2))
    gradient = batch.columns(np.tile(levels, 2), np.arange(6))[0]
    assert np.all(np.linalg.norm(gradient[:, 3:] - expected, axis=0) < 1e-10 * size)

    groups = icl.SymmetricRisk.of(features, task, [0, 1, 2], 4, noise)
    # by query: the own feature first, then the others of its group, of which there are
    # none
    params = np.column_stack([np.diagonal(levels), levels.T])
    by_group = groups.gradient(params)
    for k in range(3):
        found = np.where(np.arange(3) == k, by_group[k, 0], by_group[k, 1:])
        assert np.linalg.norm(found - expected[:, k]) < 1e-10 * size[k]


@pytest.mark.parametrize("seeds", [range(8), range(8, 16)], ids=["first", "second"])
def test_columns_of_regression_are_exact_relative_to_themselves(seeds: range) -> None:
    assert max(population(seed) for seed in seeds) < 1e-10


@pytest.mark.parametrize("seeds", [range(20), range(20, 40)], ids=["first", "second"])
def test_gradients_of_tokens_are_exact_relative_to_themselves(seeds: range) -> None:
    assert max(tokens(seed) for seed in seeds) < 1e-10


@pytest.mark.slow
def test_columns_of_three_hundred_regression_problems() -> None:
    assert max(population(seed) for seed in range(100, 400)) < 1e-10


@pytest.mark.slow
def test_gradients_of_a_thousand_problems_of_tokens() -> None:
    assert max(tokens(seed) for seed in range(100, 1100)) < 1e-10


@pytest.mark.parametrize("seed", range(6))
def test_hessian_products_between_levels_are_differences_of_gradients(
    seed: int,
) -> None:
    """Of gradients that are compared with 250 digits above."""
    rng = np.random.default_rng([seed, 79])
    kinds = [
        icl.Kind(3, [0.5, 0.3, 0.2], rng.normal(size=3)),
        icl.Kind(1, [0.6, 0.4], rng.normal(size=2)),
    ]
    risk, direction = (
        icl.TokenRisk(kinds[: 1 + seed % 2]),
        rng.normal(size=5)[: 3 + 2 * (seed % 2)],
    )
    scores = np.array([0.0, 25.0, 50.0, 13.0, 38.0])[: len(direction)]
    h = 1e-4
    change = (
        risk.gradient(scores + h * direction) - risk.gradient(scores - h * direction)
    ) / (2.0 * h)
    product = risk.hessian_product(scores, direction)
    assert np.linalg.norm(product - change) < 1e-6 * np.linalg.norm(change)


def test_a_cancelling_gradient_near_a_minimum_is_no_sum_over_pairs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prompts cancel there, and the sum over pairs would be slow for nothing."""
    risk = icl.TokenRisk(icl.Kind(4, [0.2, 0.3, 0.5], [1.0, -1.0, 0.5]), target=0.4)
    found = minimize(
        risk.evaluate, np.zeros(3), jac=True, method="BFGS", options={"gtol": 1e-9}
    )
    loss, gradient = risk.evaluate(found.x)
    assert np.abs(gradient).max() < 1e-6 * loss
    called = []
    monkeypatch.setattr(
        square, "gradient_by_pairs", lambda *arguments: called.append(arguments)
    )
    risk.evaluate(found.x)
    assert not called


@pytest.mark.parametrize("gap", [100.0, 160.0, 200.0, 300.0, 340.0])
def test_losses_keep_their_digits_down_to_the_end_of_the_range(gap: float) -> None:
    kinds = [icl.Kind(1, [1.0], [0.0]), icl.Kind(1, [1.0], [1.0])]
    risk = icl.TokenRisk(kinds)
    scores = np.array([gap, 0.0])
    expected = exactly(kinds, np.zeros(1), scores)
    loss, gradient = risk.evaluate(scores)
    assert loss == pytest.approx(expected.loss, rel=1e-12)
    np.testing.assert_allclose(gradient, expected.gradient, rtol=1e-12)
    assert risk.error(scores) >= abs(loss - expected.loss)
    heads = icl.HeadsRisk(risk, 1)
    assert heads.loss([[1.0, *scores]]) == pytest.approx(expected.loss, rel=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_the_estimated_error_holds_for_the_smallest_losses(seed: int) -> None:
    """Also where a gap is cut, or a square underflows."""
    rng = np.random.default_rng([seed, 80])
    kinds = [
        icl.Kind(int(rng.integers(1, 3)), [0.5, 0.5], [0.0, 0.0]),
        icl.Kind(1, [1.0], [1e3]),
    ]
    gap = rng.uniform(280.0, 420.0)
    scores = np.array([gap, gap + rng.uniform(-5.0, 400.0), 0.0])
    risk = icl.TokenRisk(kinds)
    assert risk.error(scores) >= abs(
        risk.loss(scores) - exactly(kinds, np.zeros(1), scores).loss
    )


@pytest.mark.parametrize("size", [8e307, 1e308, 1.7e308])
def test_scores_whose_differences_overflow_are_those_of_far_apart_ones(
    size: float,
) -> None:
    """Attention goes to the largest score in each prompt as it does for scores of 10^6."""
    levels = np.array([1.0, -1.0, -0.999])
    risk = icl.TokenRisk(icl.Kind(3, [0.2, 0.5, 0.3], [1.0, 2.0, -1.0]), target=0.3)
    assert risk.loss(size * levels) == pytest.approx(risk.loss(1e6 * levels), rel=1e-13)
    assert risk.error(size * levels) < 1e-12
    np.testing.assert_allclose(
        risk.attention(size * levels), risk.attention(1e6 * levels), rtol=1e-12
    )
    two = icl.TokenRisk(icl.Kind(3, [0.4, 0.6], [1.0, 2.0]), target=0.3)
    heads = icl.HeadsRisk(two, 2)
    far, near = (np.array([[0.7, s, -s], [-0.3, -0.5, 0.5]]) for s in (size, 1e6))
    assert heads.loss(far) == pytest.approx(heads.loss(near), rel=1e-12)
    chain = ChainRisk(Chains([[0.9, 0.1], [0.3, 0.7]], window=2), 5)
    windows = np.array([[1.0, -1.0], [0.5, 1.0], [-1.0, 0.7], [-0.99, -0.9]])
    assert chain.loss(size * windows) == pytest.approx(
        chain.loss(1e6 * windows), rel=1e-12
    )


@pytest.mark.parametrize("shift", [0.0, 1e4, -1e6])
def test_the_estimated_error_does_not_depend_on_a_shift_of_all_scores(
    shift: float,
) -> None:
    risk = icl.TokenRisk(icl.Kind(3, [0.2, 0.8], [1.0, 2.0]))
    scores = np.array([1.0, -2.0])
    assert risk.error(scores + shift) == pytest.approx(risk.error(scores), rel=1e-6)


def test_a_hundred_kinds_are_one_kind_of_a_hundred_tokens() -> None:
    """Tokens that differ by position are kinds of their own; with equal laws they are one kind."""
    probs, values, scores = (
        np.array([0.3, 0.7]),
        np.array([1.0, -0.5]),
        np.array([0.4, -0.3]),
    )
    apart = icl.TokenRisk([icl.Kind(1, probs, values)] * 100, target=0.2)
    together = icl.TokenRisk(icl.Kind(100, probs, values), target=0.2)
    loss, gradient = apart.evaluate(np.tile(scores, 100))
    expected, slopes = together.evaluate(scores)
    assert loss == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(gradient.reshape(100, 2).sum(axis=0), slopes, rtol=1e-10)


def test_a_kind_that_never_occurs_with_weight_leaves_nothing_behind() -> None:
    """The integrand ends with the largest weight of a token that is always there."""
    kinds = [icl.Kind(1, [1.0], [0.0]), icl.Kind(1, [1.0], [1.0])]
    loss = icl.TokenRisk(kinds).loss([250.0, 0.0])
    assert loss == pytest.approx(0.5 * math.exp(-500.0), rel=1e-12)
