"""A paper on convergence and shifts of linear attention: rows on random covariances, lengths, other covariances."""

from __future__ import annotations

import numpy as np

from icl_theory._validate import Array
from icl_theory.engine import Pullback, descend
from icl_theory.families.linear_attention import LinearAttention, MixtureRisk, Pair, PromptLaw
from icl_theory.papers.claim import Errors, Found, identity, row
from icl_theory.papers.numbers import apart, decade, listed, off, power
from icl_theory.papers.preconditioned_descent import product_grid

ZHANG = "Zhang, Frei, Bartlett 2024, {} (reconstructed)"


def exponential(d: int, N: float) -> tuple[MixtureRisk, Array, Array]:
    """Covariances with independent exponential eigenvalues, exactly: Gauss–Laguerre nodes; nodes and weights."""
    grid, probs = product_grid(np.polynomial.laguerre.laggauss, [3] * d)
    return MixtureRisk([PromptLaw(spectrum, N=N) for spectrum in grid], probs), grid, probs


@row("linear attention: random covariances", ZHANG.format("random covariances"), bound="1/3; 0")
def random_covariances(quick: bool) -> Found:
    """trained on random covariances, (v, A) converges to E Λ²(E Γ_ΛΛ²)⁻¹, Γ_Λ = (1 + 1/N)Λ + (tr Λ/N)I, and its
    error stays, however long the prompts
    """
    left, gaps = [], []
    for d, N in ((1, np.inf), (2, 10)):
        risk, grid, probs = exponential(d, N)
        slopes = (1.0 + 1.0 / N) * grid + grid.sum(axis=1, keepdims=True) / N
        best = (probs @ grid**2) / (probs @ (slopes * grid**2))
        pair = Pullback(risk, Pair(np.append(0.1, np.full(d, 0.1 / np.sqrt(d))), (d,)))
        run = descend(pair, eta=0.05, epsilon=risk.floor() + 1e-9)
        gaps += [apart(risk.best, best), apart(pair.map.inward(run.params), best)]
        left.append(risk.floor() / risk.loss(np.zeros(d)))
    return Found(
        max(gaps) < 1e-4 and abs(left[0] - 1.0 / 3.0) < 1e-12 and left[1] > 1.0 / 3.0,
        "independent exponential eigenvalues; d = 1, N = inf, and d = 2, N = 10; (v, A) from 0.1",
        f"Γ at the end off by {decade(max(gaps))}; the loss keeps {listed(left, '.3f')} of what it was at Γ = 0",
    )


@row("linear attention: length of the test", ZHANG.format("prediction error"), bound="-2; 0; 1")
def length_of_test(quick: bool) -> Found:
    """trained at length N and tested at M the error is that of M = ∞, of order 1/N², plus one of order 1/M"""
    spectrum = 1.0 / np.arange(1.0, 9.0)
    lengths, trained = np.array([10**4, 10**5, 10**6]), []
    for N in lengths.tolist():
        gamma = PromptLaw(spectrum, N=N).best
        endless, *finite = (PromptLaw(spectrum, N=M).loss(gamma) for M in (np.inf, 10, 1000, 10**5))
        rest = np.array(finite) - endless
        trained.append((endless, off(rest * [10, 1000, 10**5], rest[0] * 10)))
    floor, straight = np.array(trained).T
    leading = 0.5 * float(np.sum((spectrum + spectrum.sum()) ** 2 / spectrum)) / lengths**2
    return Found(
        abs(power(lengths, floor) + 2.0) < 0.01 and max(straight) < 1e-6 and off(floor[-1], leading[-1]) < 1e-3,
        f"d = 8, λ_j = 1/j, no noise; N = {lengths[0]}..{lengths[-1]}, M = 10, 1000, 10⁵ and ∞",
        f"at M = ∞ like N^{power(lengths, floor):.3f}, {floor[-1] / leading[-1]:.4f} of ½Σ(λ_j + tr Λ)²/(λ_jN²); M"
        f" times the rest is constant to {decade(max(straight))}",
        "holds: longer tests help until M is of the order N²; then only longer training prompts do",
    )


@identity("linear attention: other covariances", ZHANG.format("distribution shifts"), 1e-10)
def other_covariances(quick: bool) -> Errors:
    """trained on long prompts of covariance Λ the layer has on those of Λ' the loss ½tr Λ'(Λ⁻¹Λ' - I)(Λ'Λ⁻¹ - I):
    as much as predicting 0 where Λ' = 2Λ, and more beyond
    """
    base = np.array(((1.0, 0.3), (0.3, 0.5)))
    trained = LinearAttention(covariance=base, N=np.inf, above=1e-28)
    gamma = trained.gamma(trained.simulate().params)
    for other in (base, 2.0 * base, 3.0 * base, np.diag([0.2, 1.5]), np.array(((0.4, -0.2), (-0.2, 2.0)))):
        law, missed = PromptLaw(other), np.linalg.solve(base, other) - np.eye(2)
        yield apart(law.loss(gamma), 0.5 * float(np.sum(other * (missed @ missed.T))))
    zero = PromptLaw(2.0 * base).loss(np.zeros((2, 2)))
    yield apart(PromptLaw(2.0 * base).loss(gamma), zero)
    return "d = 2, N = ∞, Γ at the end of a run; Λ' = Λ, 2Λ, 3Λ and two that do not commute with Λ"
