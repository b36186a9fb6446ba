"""Layers that descend: the spectrum, the loss, the trainer and the matrices."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import chi2

import icl_theory as icl
from icl_theory.papers.descent_layers.family import DescentLayers
from icl_theory.papers.descent_layers.matrices import UnitMatrices
from icl_theory.papers.descent_layers.risk import LayersRisk
from icl_theory.papers.descent_layers.spectrum import mean_spectrum
from icl_theory.papers.linear_attention import PlusPlusRisk, best_layers, quadrature
from icl_theory.papers.linear_attention.depth import wishart_moments
from icl_theory.testing import check_family, check_risk


@pytest.mark.parametrize(
    ("d", "N", "degree"),
    [
        (5, 20, 26),
        pytest.param(5, 20, 80, marks=pytest.mark.slow),
        (3, 3, 26),
        (4, 2, 26),
        (40, 60, 26),
        (2, 5000, 26),
    ],
)
def test_the_spectrum_has_the_moments_of_the_wishart_matrix(
    d: int, N: int, degree: int
) -> None:
    nodes, weights, zeros = mean_spectrum(d, N, degree)
    assert zeros == d - min(d, N)
    for k, moment in enumerate(wishart_moments(d, N, degree)):
        if k in (1, 2, degree):
            assert weights @ nodes**k == pytest.approx(float(moment), rel=1e-12)


def test_one_dimension_has_the_chi_squared_law() -> None:
    nodes, weights, _ = mean_spectrum(1, 7, degree=4)
    for x in (0.2, 1.0, 3.0):
        below = nodes < x
        # the nearest node to x is within a panel of it
        assert weights[below].sum() == pytest.approx(chi2.cdf(7.0 * x, 7), abs=0.02)


@pytest.mark.parametrize(("d", "N", "degree"), [(5, 20, 13), (3, 3, 9), (2, 200, 8)])
def test_tiny_integrals_keep_their_digits(d: int, N: int, degree: int) -> None:
    """The best polynomial of the Gauss-Radau rule has its exact weight as integral."""
    rule = quadrature(d, N, degree)
    nodes, weights, _ = mean_spectrum(d, N, 2 * degree)
    residual = np.prod(1.0 - nodes / rule.nodes[1:, None], axis=0)
    assert weights @ residual**2 == pytest.approx(rule.weights[0], rel=1e-9)


def by_fractions(d: int, N: int, eta: list[Fraction], gamma: list[Fraction]) -> float:
    """The loss without noise as a polynomial in exact moments."""
    residual, eigenvalue = np.array([1]), np.array([0, 1])
    for value_step, token_step in zip(eta, [*gamma, Fraction(0)], strict=True):
        explained = -value_step * eigenvalue
        explained[0] += 1
        residual = np.convolve(residual, explained)
        kept = -token_step * eigenvalue
        kept[0] += 1
        eigenvalue = np.convolve(eigenvalue, np.convolve(kept, kept))
    square = np.convolve(residual, residual)
    return 0.5 * float(square @ np.array(wishart_moments(d, N, len(square) - 1)))


def test_the_loss_is_a_polynomial_in_exact_moments() -> None:
    rng = np.random.default_rng(5)
    for _ in range(40):
        d, N = int(rng.integers(1, 9)), int(rng.integers(1, 25))
        depth = int(rng.integers(1, 4))
        steps = [Fraction(int(n), 32) for n in rng.integers(-9, 60, 2 * depth - 1)]
        risk = LayersRisk(d, N, depth)
        at = [float(step) for step in steps]
        expected = by_fractions(d, N, steps[:depth], steps[depth:])
        assert risk.loss(at) == pytest.approx(expected, rel=1e-12)
        assert abs(risk.loss(at) - expected) <= risk.loss_error(at)


def test_the_gradient_is_the_derivative() -> None:
    check_risk(LayersRisk(5, 20, depth=3, noise=0.3, start=np.full(5, 0.2)))
    check_risk(LayersRisk(3, 2, depth=2, token_steps=False, start=[0.3, 0.1]))


def test_two_layers_are_the_polynomial_of_two_layers() -> None:
    params = [0.4, 1.1, 0.2]
    assert LayersRisk(8, 20, depth=2).loss(params) == pytest.approx(
        PlusPlusRisk(8, 20).loss(params), rel=1e-12
    )


def test_layers_that_leave_tokens_alone_reach_the_bound() -> None:
    layers = best_layers(5, 20, 3)
    risk = LayersRisk(5, 20, depth=3, token_steps=False)
    assert risk.loss(layers.lengths) == pytest.approx(layers.loss, rel=1e-10)
    assert layers.loss * (1.0 - 1e-8) < risk.floor() <= layers.loss


def test_the_bound_with_noise_is_the_least_of_a_single_layer() -> None:
    """One layer has the residual 1 - ηλ, every polynomial of degree one."""
    risk = LayersRisk(4, 9, depth=1, noise=0.7)
    best = icl.LinearAttention(d=4, N=9, noise=0.7).risk().floor()
    assert risk.floor() == pytest.approx(best, rel=1e-8)
    assert risk.floor() <= best


def test_infinite_prompts_are_solved_by_one_step() -> None:
    risk = LayersRisk(3, math.inf, depth=2)
    assert risk.loss([1.0, 0.0, 0.0]) == 0.0
    assert risk.floor() == 0.0


@pytest.mark.parametrize("token_steps", [True, False])
def test_explicit_layers_have_this_mean_loss_and_gradient(token_steps: bool) -> None:
    rng = np.random.default_rng(2)
    risk = LayersRisk(3, 8, depth=3, token_steps=token_steps, noise=0.4)
    params = 0.5 * rng.uniform(size=risk.size)
    trainer = risk.sampled(20_000, seed=1)
    losses = trainer.losses(params)
    error = losses.std() / math.sqrt(len(losses))
    assert abs(losses.mean() - risk.loss(params)) < 4.0 * error
    prompts = trainer.prompts(0)
    _, gradient = trainer.evaluate_on(params, prompts)
    for i, unit in enumerate(np.eye(risk.size)):
        ahead = trainer.losses_on(params + 1e-5 * unit, prompts).mean()
        behind = trainer.losses_on(params - 1e-5 * unit, prompts).mean()
        assert gradient[i] == pytest.approx((ahead - behind) / 2e-5, rel=1e-5)


def explicit(P: np.ndarray, Q: np.ndarray, trainer, prompts) -> float:
    """Mean loss of layers with whole matrices, Z ← Z + Z Q Zᵀ Z diag(P, 1)/N."""
    errors = []
    for tokens, labels, query, answer in zip(*prompts, strict=True):
        Z = np.column_stack([np.vstack([tokens, query]), np.append(labels, 0.0)])
        N, d = tokens.shape
        for key_query, value in zip(Q, [*P, np.zeros((d, d))], strict=True):
            scores = Z[:, :d] @ key_query @ Z[:N, :d].T / N
            moved = Z.copy()
            moved[:, :d] += scores @ Z[:N, :d] @ value
            moved[:, d] += scores @ Z[:N, d]
            Z = moved
        errors.append(Z[-1, d] + answer)
    return 0.5 * float(np.mean(np.square(errors)))


def test_multiples_of_the_unit_matrix_are_these_steps() -> None:
    """The published layers add to the labels, and their prediction has a minus sign."""
    d, depth = 3, 2
    multiples = np.array([-0.5, -0.7, 0.4])
    matrices = multiples[:, None, None] * np.eye(d)
    steps = UnitMatrices(matrices, depth).inward(matrices)
    risk = LayersRisk(d, 6, depth=depth)
    trainer = risk.sampled(50, seed=3)
    prompts = trainer.prompts(0)
    whole = explicit(matrices[depth:], matrices[:depth], trainer, prompts)
    assert trainer.losses_on(steps, prompts).mean() == pytest.approx(whole, rel=1e-12)


def test_training_the_matrices_is_training_every_entry() -> None:
    """An entry on the diagonal gets a share 1/d of the derivative by the multiple."""
    problem = DescentLayers(depth=2, coordinates="matrices", start=0.3, seed=4)
    check_risk(problem.risk())
    gradient = problem.risk().gradient(problem.risk().initial)
    off_diagonal = gradient[:, ~np.eye(problem.d, dtype=bool)]
    assert not off_diagonal.any()


def test_the_family_keeps_its_contract() -> None:
    problem = {"d": 2, "N": 5, "depth": 2, "eta": 0.02, "start": 0.1, "max_steps": 20}
    check_family(DescentLayers, rows=False, **problem)


def test_each_layer_gains_more_than_the_one_before() -> None:
    least = []
    for depth in (1, 2, 3):
        problem = DescentLayers(depth=depth)
        least.append(problem.layers().loss(problem.best_steps(starts=10)))
    ratios = [before / after for before, after in pairwise(least)]
    assert ratios[1] > ratios[0] > 10.0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"depth": 0}, "depth = 0: must be"),
        ({"depth": 7}, "depth = 7: must be"),
        ({"d": -1}, "d = -1: must be"),
        ({"N": 0}, "N = 0: must be"),
        ({"noise": -1.0}, "noise = -1.0: must be"),
        ({"start": [0.1]}, r"start = \(1,\): must be of shape \(5,\)"),
        ({"start": [math.nan] * 5}, "start"),
        ({"d": 300, "N": 400}, "d = 300: must be at most 200"),
    ],
)
def test_wrong_layers_are_refused(changes: dict[str, object], words: str) -> None:
    arguments = {"d": 5, "N": 20, "depth": 3} | changes
    with pytest.raises(ValueError, match=words):
        LayersRisk(**arguments)  # type: ignore[arg-type]


def test_infinite_prompts_cannot_be_sampled() -> None:
    with pytest.raises(ValueError, match="N = inf: must be finite"):
        LayersRisk(2, math.inf).sampled(4)
