"""The page on the convergence of softmax attention: phases of a rare query, and what its verdicts depend on."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.papers.convergence import statements as evidence
from icl_theory.regression.risks.exchangeable import ExchangeableRisk
from icl_theory.regression.risks.symmetric import SymmetricRisk


def iterated(K: int, p: float, epsilon: float) -> list[int]:
    """Ends of the phases by plain steps on the scores of single features, with η = 1 and w ~ (0, I)."""
    chance = np.array(
        [(1.0 - p) / (K - 1), p, *[(1.0 - p) / (K - 1)] * (K - 2)]
    )  # own, dominant, others
    scores, error, ends, step = np.zeros(K), np.eye(K)[0], [0, 0, 0, 0], 0
    while not ends[3]:
        attention = chance * np.exp(scores)
        attention /= attention.sum()
        short = attention - error
        own, dominant = attention[:2]
        reached = (
            scores[1] <= -0.49 * np.log(K),
            dominant <= own,
            own >= 0.5,
            0.5 * short @ short <= epsilon,
        )
        ends = [end or step * bool(now) for end, now in zip(ends, reached, strict=True)]
        scores = scores - chance[0] * attention * (short - attention @ short)
        step += 1
    return ends


def test_losses_of_two_hundred_matrices_are_sums_over_all_prompts() -> None:
    """f = wᵀx with w ~ (0, I) on orthonormal features: ½|a - e_k|² for attention a, averaged over all prompts."""
    rng = np.random.default_rng(6)
    for at in range(200):
        K, N = 2 + at % 3, 1 + at % 4
        features = icl.Features.orthonormal(K, probs=rng.dirichlet(np.ones(K)))
        problem = icl.Regression(
            L=math.sqrt(K),
            delta=math.sqrt(2.0),
            K=K,
            N=N,
            eta=1.0,
            task="linear",
            features=features,
            coordinates="embedding",
        )
        Q, expected = rng.normal(size=(K, K)) * 10.0 ** rng.uniform(-1.0, 0.7), 0.0
        scores = (
            features.vectors @ Q @ features.vectors.T
        )  # of each feature, one query a column
        for prompt in itertools.product(range(K), repeat=N):
            chance, count = (
                np.prod(features.probs[[*prompt]]),
                np.bincount(prompt, minlength=K),
            )
            weight = count[:, None] * np.exp(scores)
            short = weight / weight.sum(axis=0) - np.eye(K)
            expected += 0.5 * chance * float(features.probs @ np.sum(short**2, axis=0))
        assert problem.risk().loss(Q) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(("K", "p"), [(12, 0.6), (5, 0.8)])
def test_phases_are_those_of_plain_steps_on_single_features(K: int, p: float) -> None:
    assert [*evidence.phases(K, 0.02, p)] == iterated(K, p, 0.02)


def test_a_logarithm_is_needless_only_where_the_ratio_without_it_tends_to_one() -> None:
    assert (
        evidence.loose(np.array([1.2, 1.01]), "the logarithm")
        == "holds, loose: also without the logarithm"
    )
    assert evidence.loose(np.array([1.2, 1.4]), "the logarithm") == "holds"
    assert evidence.loose(np.array([1.0, 1.05]), "the logarithm") == "holds"


def test_the_size_from_which_on_phase_one_would_end_is_where_its_two_times_meet() -> (
    None
):
    """(1 - p)K^1.98/(2p²η) steps need K²/((1 - p)η) of them, which pass first, up to that K."""
    said = evidence.falling(True).verdict
    log_size, p = float(said.split("K = e^")[1]), 0.2

    def ahead(log_K: float) -> float:
        return (
            math.log((1.0 - p) / (2.0 * p**2))
            + 1.98 * log_K
            - (2.0 * log_K - math.log(1.0 - p))
        )

    assert ahead(log_size - 0.5) > 0.0 > ahead(log_size + 0.5)


def test_floors_that_forget_the_missing_feature_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = ExchangeableRisk.floor
    monkeypatch.setattr(ExchangeableRisk, "floor", lambda self: 0.5 * right(self))
    assert evidence.irreducible(True).violated


def test_attention_on_a_wrong_class_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SymmetricRisk, "metric", property(lambda self: np.ones((2, 3))))
    assert evidence.reduced(True).violated
