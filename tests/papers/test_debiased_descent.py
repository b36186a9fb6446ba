"""The page on several softmax heads: the predictors that they are compared with, against samples of their own."""

from __future__ import annotations

import numpy as np
import pytest

from icl_theory.families.linear_attention import PromptLaw, ridge_loss
from icl_theory.papers import debiased_descent as evidence


def sampled(d: int, N: int, noise: float, ridge: bool) -> tuple[float, float]:
    """Loss of ridge regression, or of the best step on centred tokens, on 20,000 prompts, and its error."""
    rng = np.random.default_rng(3)
    x, beta, query = rng.normal(size=(20_000, N, d)), rng.normal(size=(20_000, d)), rng.normal(size=(20_000, d))
    y = np.einsum("bnd,bd->bn", x, beta) + noise * rng.normal(size=(20_000, N))
    if ridge:
        gram = x.swapaxes(1, 2) @ x + noise**2 * np.eye(d)
        found = np.linalg.solve(gram, np.einsum("bnd,bn->bd", x, y)[:, :, None])[:, :, 0]
    else:
        found = np.einsum("bnd,bn->bd", x - x.mean(axis=1, keepdims=True), y) / (N + d + noise**2)
    losses = 0.5 * np.einsum("bd,bd->b", found - beta, query) ** 2
    return float(losses.mean()), float(losses.std() / np.sqrt(len(losses)))


@pytest.mark.parametrize(("d", "N", "noise"), [(3, 9, 0.5), (5, 12, 1.5)])
def test_predictors_have_the_losses_of_sampled_prompts(d: int, N: int, noise: float) -> None:
    bayes = ridge_loss(PromptLaw(np.ones(d), N=N, noise=noise), 20_000).value
    for ridge, expected in ((False, evidence.debiased(d, N, noise)), (True, bayes)):
        mean, error = sampled(d, N, noise, ridge)
        assert abs(mean - expected) < 4.0 * error


def test_linear_attention_that_sums_is_lost_on_longer_prompts() -> None:
    """At N = 80 it answers twice what is best for 40 tokens: ½d((2γ - 1)² + 4γ²(d + 1 + σ²)/80)."""
    gamma = 40.0 / 46.01
    expected = 2.5 * ((2.0 * gamma - 1.0) ** 2 + 4.0 * gamma**2 * 6.01 / 80.0)
    assert evidence.lost("sum", (80,))[0] == pytest.approx(expected, rel=1e-12)


def test_linear_attention_that_averages_is_never_lost() -> None:
    """At N = 80 it answers what is best for 40 tokens: ½d((γ - 1)² + γ²(d + 1 + σ²)/80)."""
    gamma = 40.0 / 46.01
    expected = 2.5 * ((gamma - 1.0) ** 2 + gamma**2 * 6.01 / 80.0)
    assert evidence.lost("mean", (80,))[0] == pytest.approx(expected, rel=1e-12)


def test_a_pair_is_two_heads_whose_numbers_cancel() -> None:
    assert evidence.unpaired(np.array([0.7, -0.7, -2.0, 2.0])).tolist() == [0.0, 0.0]
    np.testing.assert_allclose(evidence.unpaired(np.array([-3.0, 1.0, 0.5, 0.2])), [0.5, 1.0])
