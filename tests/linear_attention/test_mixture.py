"""Prompts of several laws: loss over all prompts of grids, minimum, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.engine import Pullback
from icl_theory.linear_attention import Heads, MergedRisk, MixtureRisk, Pair, PromptLaw
from icl_theory.testing import check_risk
from tests.linear_attention import references

LAWS = [
    references.random_law(2, N, noise, seed)
    for seed, (N, noise) in enumerate([(1, 0.0), (2, 0.7), (1, 0.3)])
]
PROBS = (0.2, 0.5, 0.3)


def mixed(**given: Any) -> MixtureRisk:
    return MixtureRisk([PromptLaw(*law) for law in LAWS], PROBS, **given)


def test_loss_and_gradient_are_those_over_all_prompts() -> None:
    risk, rng = mixed(), np.random.default_rng(0)
    for gamma in rng.normal(size=(4, 2, 2)):
        parts = [references.merged(law, gamma) for law in LAWS]
        assert risk.loss(gamma) == pytest.approx(
            sum(p * each[0] for p, each in zip(PROBS, parts, strict=True))
        )
        wanted = sum(p * each[1] for p, each in zip(PROBS, parts, strict=True))
        np.testing.assert_allclose(risk.gradient(gamma), wanted, rtol=1e-11, atol=1e-12)
        assert risk.excess(gamma) == pytest.approx(
            risk.loss(gamma) - risk.floor(), rel=1e-9
        )
    best = sum(
        p * references.merged(law, risk.best)[1]
        for p, law in zip(PROBS, LAWS, strict=True)
    )
    assert np.abs(best).max() < 1e-12
    check_risk(mixed(start=[[0.3, 0.1], [-0.2, 0.5]]))


def test_losses_and_gradients_of_two_hundred_mixtures() -> None:
    """Of one law to three, with matrices that do not commute, in one dimension or two."""
    rng = np.random.default_rng(4)
    for seed in range(200):
        d, count = 1 + seed % 2, 1 + seed % 3
        laws = [
            references.random_law(d, 1 + (seed + at) % 2, 0.4 * at, 3 * seed + at)
            for at in range(count)
        ]
        probs, gamma = rng.dirichlet(np.ones(count)), rng.normal(size=(d, d))
        parts = [references.merged(law, gamma) for law in laws]
        risk = MixtureRisk(
            [PromptLaw(*law) for law in laws], probs, start=np.zeros((d, d))
        )
        loss = sum(p * each[0] for p, each in zip(probs, parts, strict=True))
        assert risk.loss(gamma) == pytest.approx(loss, rel=1e-10)
        wanted = sum(p * each[1] for p, each in zip(probs, parts, strict=True))
        np.testing.assert_allclose(
            risk.gradient(gamma), wanted, rtol=1e-10, atol=1e-10 * np.abs(wanted).max()
        )


def test_a_diagonal_mixture_is_that_of_matrices() -> None:
    laws = [
        PromptLaw([1.0, 0.2], N=4),
        PromptLaw([0.3, 0.9], prior=[1.0, 2.0], N=20, noise=0.5),
    ]
    few, all_entries = MixtureRisk(laws), MixtureRisk(laws, start=np.zeros((2, 2)))
    assert few.initial.shape == (2,)
    np.testing.assert_allclose(np.diag(few.best), all_entries.best, atol=1e-13)
    assert few.floor() == pytest.approx(all_entries.floor(), rel=1e-13)
    one = MixtureRisk(laws[:1])
    np.testing.assert_allclose(one.best, laws[0].best, rtol=1e-13)
    assert one.floor() == pytest.approx(laws[0].floor, rel=1e-13)
    check_risk(few)


@pytest.mark.parametrize("least", [1e-6, 1e-8, 1e-10])
def test_the_floor_of_long_prompts_keeps_its_digits(least: float) -> None:
    turn = np.linalg.qr([[1.0, 2.0, 3.0], [2.0, 1.0, 0.0], [0.0, 1.0, 1.0]])[0]
    covariance = turn @ np.diag([1.0, 0.5, least]) @ turn.T
    risk = MixtureRisk(
        [
            PromptLaw(covariance, query=np.eye(3)),
            PromptLaw(covariance, query=np.diag([1.0, 2.0, 3.0])),
        ]
    )
    assert risk.floor() < 1e-9


def test_eigenvalues_with_an_exponential_law_leave_a_third() -> None:
    """γ = E λ²/E λ³ = 1/3, and ½(E λ - 2γ E λ² + γ² E λ³) = ½(1 - 2/3)."""
    nodes, weights = np.polynomial.laguerre.laggauss(4)
    risk = MixtureRisk([PromptLaw([node]) for node in nodes], weights)
    assert risk.best == pytest.approx([1.0 / 3.0])
    assert risk.floor() == pytest.approx(1.0 / 6.0)


@pytest.mark.parametrize(
    "map_", [Pair(np.array([0.1, 0.1, 0.1]), (2,)), Heads(np.full((2, 5), 0.2), 2)]
)
def test_factors_are_trained_like_those_of_one_law(map_: Any) -> None:
    law = PromptLaw([1.0, 0.4], N=10)
    start = map_.inward(map_.initial)
    runs = [
        icl.descend(Pullback(risk, map_), 0.1, steps=20)
        for risk in (
            MixtureRisk([law, law], start=0.0 * start),
            MergedRisk(law, 0.0 * start),
        )
    ]
    np.testing.assert_allclose(runs[0].params, runs[1].params, rtol=1e-12)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"laws": []}, "laws = .*: must be one PromptLaw or more"),
        (
            {"laws": [PromptLaw([1.0]), PromptLaw([1.0, 1.0])]},
            "laws = .*: must be of one dimension",
        ),
        (
            {"laws": [PromptLaw([1.0])], "probs": [0.5]},
            "probs = .*: must be 1 positive numbers",
        ),
        (
            {"laws": [PromptLaw([1.0])], "start": [math.nan]},
            "start = .*: must be numbers",
        ),
        (
            {"laws": [PromptLaw(np.eye(2) + 0.1)], "start": [0.0, 0.0]},
            "start = .*: must be of shape",
        ),
    ],
)
def test_wrong_input_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        MixtureRisk(**given)
