"""Gaussian match-and-copy: losses, gradients, margins and trainers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from icl_theory.papers.match_copy.direct import direct_loss
from icl_theory.papers.match_copy.family import MatchCopy
from icl_theory.papers.match_copy.risk import (
    CopyRisk,
    CopySampleRisk,
    draw_prompts,
    losses_of_scores,
    scores_of,
)
from icl_theory.testing import check_family, check_risk

Array = np.ndarray


def check_random_problems(seed: int, problems: int) -> None:
    """Compare losses with quadrature over the scores; every fifth ρ is 1."""
    rng = np.random.default_rng(seed)
    for problem in range(problems):
        N = 3 if problem % 20 == 0 else 2
        d = int(rng.integers(1, 9))
        correlation = 1.0 if problem % 5 == 0 else float(rng.uniform(0.1, 1.0))
        # The sum over three scores takes time with the third power of ω.
        omega = float(rng.uniform(-0.3, 0.3 if N == 3 else 1.0))
        risk = CopyRisk(d, N, correlation)
        expected = direct_loss(omega, d, N, correlation)
        loss = risk.loss([omega])
        assert loss == pytest.approx(expected, rel=1e-10)
        assert abs(loss - expected) <= risk.loss_error([omega])


def test_random_problems_have_the_loss_of_direct_quadrature() -> None:
    check_random_problems(seed=0, problems=4)


@pytest.mark.slow
def test_200_random_problems_have_the_loss_of_direct_quadrature() -> None:
    check_random_problems(seed=1, problems=200)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("d", "N", "correlation", "omega"), [(8, 8, 0.8, 0.7), (3, 20, 1.0, 1.5)]
)
def test_a_million_prompts_have_this_mean_loss(
    d: int, N: int, correlation: float, omega: float
) -> None:
    """Prompts with drawn values, whose loss is summed from keys, query and values."""
    risk = CopyRisk(d, N, correlation)
    rng = np.random.default_rng(0)
    parts = []
    for _ in range(20):
        prompts = draw_prompts(rng, 50_000, d, N, correlation)
        scores = omega * np.einsum("bnd,bd->bn", prompts.keys, prompts.query)
        weight = np.exp(scores - scores.max(axis=1, keepdims=True))
        weight /= weight.sum(axis=1, keepdims=True)
        answer = np.einsum("bn,bnd->bd", weight, prompts.values)
        copied = prompts.values[np.arange(len(weight)), prompts.match]
        parts.append(0.5 * np.mean((answer - copied) ** 2, axis=1))
    losses = np.concatenate(parts)
    error = losses.std() / math.sqrt(len(losses))
    assert abs(losses.mean() - risk.loss([omega])) < 4.0 * error


def test_half_the_step_changes_the_loss_by_less_than_the_stated_error() -> None:
    for d, correlation in ((1, 0.5), (200, 1.0)):
        risk = CopyRisk(d, 4, correlation)
        assert risk.error([0.2]) < risk.loss_error([0.2])


def test_the_first_gradient_is_the_correlation() -> None:
    risk = CopyRisk(5, 7, 0.3)
    assert risk.gradient([0.0]) == pytest.approx([-0.3 * 5 * 6 / 49], rel=1e-12)
    assert risk.loss([0.0]) == pytest.approx(3.0 / 7.0, rel=1e-13)


def test_the_derivative_by_omega_is_one() -> None:
    risk = CopyRisk(3, 4, 0.7)
    difference = (risk.loss([0.3 + 1e-4]) - risk.loss([0.3 - 1e-4])) / 2e-4
    assert risk.gradient([0.3]) == pytest.approx([difference], rel=1e-6)


@pytest.mark.slow
def test_the_risk_over_omega_keeps_its_contract() -> None:
    check_risk(CopyRisk(3, 4, 0.7, np.array([0.5])), points=[[-0.2]])


def test_the_gradient_by_a_matrix_is_one() -> None:
    rng = np.random.default_rng(2)
    for values in ("separate", "next"):
        prompts = draw_prompts(rng, 6, 3, 4, 0.7, values)
        check_risk(CopySampleRisk(prompts, rng.normal(size=(3, 3))))


def test_the_trainer_has_the_gradient_of_the_mean() -> None:
    risk = CopyRisk(3, 4, 0.7)
    trainer = risk.sampled(20_000, seed=0)
    at = np.array([0.6])
    prompts = trainer.prompts(0)
    loss, gradient = trainer.evaluate_on(at, prompts)
    ahead = trainer.losses_on(at + 1e-4, prompts).mean()
    behind = trainer.losses_on(at - 1e-4, prompts).mean()
    assert gradient[0] == pytest.approx((ahead - behind) / 2e-4, rel=1e-6)
    losses = trainer.losses(at)
    error = losses.std() / math.sqrt(len(losses))
    assert abs(loss - risk.loss(at)) < 4.0 * error


def test_a_sample_has_the_loss_of_explicit_loops() -> None:
    rng = np.random.default_rng(3)
    prompts = draw_prompts(rng, 5, 3, 4, 0.9, "next")
    W = rng.normal(size=(3, 3))
    losses, _ = losses_of_scores(scores_of(W, prompts), prompts)
    for i, (keys, values, query, match) in enumerate(zip(*prompts, strict=True)):
        weights = [math.exp(key @ W @ query) for key in keys]
        answer = sum(w * v for w, v in zip(weights, values, strict=True))
        error = answer / sum(weights) - values[match]
        assert losses[i] == pytest.approx(error @ error / 6.0, rel=1e-12)


def test_next_values_are_the_following_keys() -> None:
    prompts = draw_prompts(np.random.default_rng(4), 3, 2, 5, 0.9, "next")
    assert (prompts.values[:, :-1] == prompts.keys[:, 1:]).all()


def test_queries_have_the_correlation_with_their_match() -> None:
    prompts = draw_prompts(np.random.default_rng(5), 40_000, 2, 3, 0.6)
    match = prompts.keys[np.arange(40_000), prompts.match]
    products = np.einsum("bd,be->bde", match, prompts.query).reshape(-1, 4)
    error = products.std(axis=0) / math.sqrt(len(products))
    expected = 0.6 * np.eye(2).ravel()
    assert (np.abs(products.mean(axis=0) - expected) < 4.5 * error).all()


def test_leads_are_those_of_the_scores() -> None:
    rng = np.random.default_rng(6)
    prompts = draw_prompts(rng, 2, 3, 4, 0.6)
    W = rng.normal(size=(3, 3))
    leads = np.einsum("rde,de->r", CopySampleRisk(prompts).leads(), W)
    scores = scores_of(W, prompts)
    expected = []
    for row, match in zip(scores, prompts.match, strict=True):
        expected.extend(row[match] - np.delete(row, match))
    assert leads == pytest.approx(np.array(expected), rel=1e-12)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"correlation": 0.0}, "correlation.*> 0"),
        ({"correlation": 1.5}, "correlation.*at most 1"),
        ({"N": 1}, "N.*>= 2"),
        ({"d": 0}, "d.*>= 1"),
        ({"start": [0.0, 1.0]}, r"start.*\(1,\)"),
    ],
)
def test_wrong_risks_are_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        CopyRisk(**{"d": 3, "N": 4, "correlation": 0.5, **changes})  # type: ignore[arg-type]


def test_wrong_samples_are_refused() -> None:
    rng = np.random.default_rng(7)
    with pytest.raises(ValueError, match=r"values.*separate.*next"):
        draw_prompts(rng, 2, 3, 4, 0.5, "other")
    prompts = draw_prompts(rng, 2, 3, 4, 0.5)
    with pytest.raises(ValueError, match=r"start.*\(3, 3\)"):
        CopySampleRisk(prompts, np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"N.*2 or 3"):
        direct_loss(0.1, 3, 4, 0.5)


def test_the_family_keeps_its_contract() -> None:
    problem = {"d": 3, "N": 3, "max_steps": 20}
    check_family(MatchCopy, rows=False, prompts=5, **problem)


def test_any_rule_trains_a_sample_and_all_prompts() -> None:
    for rule in ("adam", "ngd", "gd"):
        sample = MatchCopy(d=3, N=3, prompts=5, eta=0.1, epsilon=0.25, rule=rule)
        assert sample.simulate().loss[-1] <= 0.25
    everything = MatchCopy(
        d=1, N=2, correlation=0.3, prompts=math.inf, eta=0.5, epsilon=0.248
    )
    run = everything.simulate()
    assert run.loss[-1] <= 0.248
    assert everything.measure(run) == {"omega": run.params[0]}


def test_the_best_omega_has_no_slope() -> None:
    risk = CopyRisk(1, 2, 0.3)
    assert abs(risk.gradient([risk.best])[0]) < 1e-6
    assert risk.floor() < risk.loss([risk.best + 0.01])
    assert risk.floor() < risk.loss([risk.best - 0.01])


def test_the_largest_margin_is_one() -> None:
    problem = MatchCopy(d=4, N=3, prompts=6)
    largest = problem.largest_margin
    assert largest is not None
    risk = problem.risk()
    assert isinstance(risk, CopySampleRisk)
    leads = np.sum(risk.leads() * largest, axis=(1, 2))
    assert leads.min() == pytest.approx(1.0, abs=1e-9)
    # A hundred prompts in two dimensions cannot be separated.
    assert MatchCopy(d=2, N=3, prompts=100).largest_margin is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"correlation": 0.0}, "correlation.*> 0"),
        ({"correlation": 1.1}, r"correlation.*1"),
        ({"N": 1}, "N.*2"),
        ({"prompts": 0}, "prompts.*1"),
        ({"prompts": math.inf, "values": "next"}, "values.*'separate'"),
        ({"values": "other"}, "values.*separate.*next"),
        ({"prompts": 10**6}, "prompts.*at most 1e7"),
        ({"start": [0.0, 1.0]}, r"start.*\(8, 8\)"),
        ({"prompts": math.inf, "start": np.zeros((2, 2))}, r"start.*\(1,\)"),
    ],
)
def test_wrong_families_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        MatchCopy(**changes)


def test_all_prompts_have_no_margin() -> None:
    with pytest.raises(ValueError, match=r"prompts.*finite"):
        _ = MatchCopy(prompts=math.inf).largest_margin


@pytest.mark.slow
def test_all_prompts_keep_the_contract() -> None:
    problem = {"d": 2, "N": 2, "correlation": 0.5, "max_steps": 10}
    check_family(MatchCopy, rows=False, prompts=math.inf, eta=0.2, **problem)


@pytest.mark.slow
def test_three_keys_have_the_ties_of_the_tail() -> None:
    """The coefficient of 1/ω is the density of all ties, extrapolated from two ω."""
    d, correlation = 4, 0.8
    x, weight = np.polynomial.legendre.leggauss(200)
    lengths = 5.5 * (x + 1.0)
    probs = weight * np.exp((d - 1) * np.log(lengths) - lengths**2 / 2)
    probs /= probs.sum()
    z = np.linspace(-9.0, 9.0, 2001)
    spread = math.sqrt(1.0 - correlation**2)
    wrong = ties = 0.0
    for r, prob in zip(lengths, probs, strict=True):
        step = r * (z[1] - z[0])
        match = norm(correlation * r**2, spread * r)
        density = norm.pdf(z) / r
        below = norm.cdf(z)
        at_match = match.pdf(r * z)
        wrong += prob * (1.0 - np.sum(at_match * below**2) * step)
        with_match = np.sum(2.0 * at_match * density * below)
        of_wrong = np.sum(density**2 * match.cdf(r * z))
        ties += prob * (with_match + of_wrong) * step
    risk = CopyRisk(d, 3, correlation)
    at_4, at_8 = (omega * (wrong - risk.loss([omega])) for omega in (4.0, 8.0))
    assert 2.0 * at_8 - at_4 == pytest.approx(ties, rel=0.02)
