"""The page on several softmax heads: the predictors that they are compared with, against samples of their own."""

from __future__ import annotations

import numpy as np
import pytest

from icl_theory.papers.debiased_descent import statements as evidence
from icl_theory.papers.debiased_descent.family import SoftmaxHeads
from icl_theory.papers.linear_attention import PromptLaw, ridge_loss


def sampled(d: int, N: int, noise: float, ridge: bool) -> tuple[float, float]:
    """Loss of ridge regression, or of the best step on centred tokens, on 20,000 prompts, and its error."""
    rng = np.random.default_rng(3)
    x, beta, query = (
        rng.normal(size=(20_000, N, d)),
        rng.normal(size=(20_000, d)),
        rng.normal(size=(20_000, d)),
    )
    y = np.einsum("bnd,bd->bn", x, beta) + noise * rng.normal(size=(20_000, N))
    if ridge:
        gram = x.swapaxes(1, 2) @ x + noise**2 * np.eye(d)
        found = np.linalg.solve(gram, np.einsum("bnd,bn->bd", x, y)[:, :, None])[
            :, :, 0
        ]
    else:
        found = np.einsum("bnd,bn->bd", x - x.mean(axis=1, keepdims=True), y) / (
            N + d + noise**2
        )
    losses = 0.5 * np.einsum("bd,bd->b", found - beta, query) ** 2
    return float(losses.mean()), float(losses.std() / np.sqrt(len(losses)))


@pytest.mark.parametrize(("d", "N", "noise"), [(3, 9, 0.5), (5, 12, 1.5)])
def test_predictors_have_the_losses_of_sampled_prompts(
    d: int, N: int, noise: float
) -> None:
    bayes = ridge_loss(PromptLaw(np.ones(d), N=N, noise=noise), 20_000).value
    for ridge, expected in ((False, evidence.debiased(d, N, noise)), (True, bayes)):
        mean, error = sampled(d, N, noise, ridge)
        assert abs(mean - expected) < 4.0 * error


def test_linear_attention_that_sums_is_lost_on_longer_prompts() -> None:
    """At N = 80 it answers twice what is best for 40 tokens: ½d((2γ - 1)² + 4γ²(d + 1 + σ²)/80)."""
    gamma = 40.0 / 46.01
    expected = 2.5 * ((2.0 * gamma - 1.0) ** 2 + 4.0 * gamma**2 * 6.01 / 80.0)
    assert evidence.linear_at_lengths((80,), sums=True)[0] == pytest.approx(
        expected, rel=1e-12
    )


def test_linear_attention_that_averages_is_never_lost() -> None:
    """At N = 80 it answers what is best for 40 tokens: ½d((γ - 1)² + γ²(d + 1 + σ²)/80)."""
    gamma = 40.0 / 46.01
    expected = 2.5 * ((gamma - 1.0) ** 2 + gamma**2 * 6.01 / 80.0)
    assert evidence.linear_at_lengths((80,), sums=False)[0] == pytest.approx(
        expected, rel=1e-12
    )


def test_a_pair_is_two_heads_whose_numbers_cancel() -> None:
    assert evidence.unpaired(np.array([0.7, -0.7, -2.0, 2.0])).tolist() == [0.0, 0.0]
    np.testing.assert_allclose(
        evidence.unpaired(np.array([-3.0, 1.0, 0.5, 0.2])), [0.5, 1.0]
    )


def test_interpolated_heads_have_the_exact_loss_and_gradient() -> None:
    """Within what 7 nodes leave, at points between the nodes; and the gradient by differences."""
    exact = SoftmaxHeads(heads=2, d=1, N=6).risk()
    heads = evidence.InterpolatedHeads.of(exact, 7, reach=0.5)
    for params in ([0.9, -0.8, 0.31, -0.27], [0.4, 0.5, 0.44, 0.13]):
        at = np.array(params)
        assert heads.loss(at) == pytest.approx(exact.loss(at), abs=1e-4)
        np.testing.assert_allclose(heads.gradient(at), exact.gradient(at), atol=1e-3)
        slopes = [
            (heads.loss(at + h) - heads.loss(at - h)) / 2e-6 for h in 1e-6 * np.eye(4)
        ]
        np.testing.assert_allclose(heads.gradient(at), slopes, atol=1e-8)


def test_signs_of_what_grows() -> None:
    assert evidence.equal_signs(np.array([0.1, -0.2, 0.1, 0.3]))
    assert evidence.equal_signs(np.array([-0.1, -0.4, 0.0, 0.3]))
    assert not evidence.equal_signs(np.array([0.1, -0.4, 0.0, 0.3]))


def test_two_starts_with_equal_signs_end_as_one_head_and_two_with_opposite_ones_as_a_pair() -> (
    None
):
    """Descent on sampled prompts of its own: few tokens, so that it is quick."""
    rng = np.random.default_rng(0)
    ends = []
    for start in ([0.1, 0.1, 0.1, 0.05], [0.1, -0.1, 0.1, -0.05]):
        mu, omega = np.split(np.array(start), 2)
        for _ in range(300):
            x, beta, query = (
                rng.normal(size=(400, 12, 3)),
                rng.normal(size=(400, 3)),
                rng.normal(size=(400, 3)),
            )
            y, s = np.einsum("bnd,bd->bn", x, beta), np.einsum("bnd,bd->bn", x, query)
            a = np.exp(omega[:, None, None] * s)
            a /= a.sum(axis=2, keepdims=True)
            o = np.einsum("hbn,bn->hb", a, y)
            missed = mu @ o - np.sum(beta * query, axis=1)
            turn = np.einsum("hbn,bn,bn->hb", a, y, s) - o * np.einsum(
                "hbn,bn->hb", a, s
            )
            mu, omega = (
                mu - 0.1 * np.mean(missed * o, axis=1),
                omega - 0.1 * mu * np.mean(missed * turn, axis=1),
            )
        ends.append(evidence.unpaired(np.append(mu, omega)))
    assert min(ends[0]) > 0.9
    assert max(ends[1]) < 0.2
