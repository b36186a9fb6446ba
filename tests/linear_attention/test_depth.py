"""Layers in a loop: exact moments, the quadrature, and the loss against densities and sampled prompts."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest

import icl_theory as icl
from icl_theory.papers.linear_attention import (
    LoopedRisk,
    best_layers,
    quadrature,
    wishart_moments,
)
from icl_theory.testing import check_family, check_risk


def spectra(d: int, N: int, size: int, seed: int) -> Any:
    """Eigenvalues of Σ̂ of sampled prompts, (size, d)."""
    tokens = np.random.default_rng(seed).normal(size=(size, N, d))
    return np.linalg.eigvalsh(tokens.transpose(0, 2, 1) @ tokens / N)


def loss_of(eigenvalues: Any, gamma: float, depth: int, noise: float, N: int) -> Any:
    """Loss given the prompts' eigenvalues, layer after layer: e ← (1 - sx)e and n ← (1 - sx)n + s."""
    s = gamma / depth
    error, carried = np.ones_like(eigenvalues), np.zeros_like(eigenvalues)
    for _ in range(depth):
        error, carried = (
            error * (1.0 - s * eigenvalues),
            carried * (1.0 - s * eigenvalues) + s,
        )
    return 0.5 * np.sum(error**2 + noise**2 / N * eigenvalues * carried**2, axis=-1)


def test_moments_are_the_published_polynomials() -> None:
    for d, N in ((1, 1), (3, 2), (8, 20)):
        found = wishart_moments(d, N, 3)
        third = d * N * (d**2 + N**2 + 3 * d * N + 3 * d + 3 * N + 4)
        assert found[2:] == (Fraction(d * (N + d + 1), N), Fraction(third, N**3))


def test_moments_in_one_dimension_are_those_of_the_chi_squared_law() -> None:
    N = 7
    wanted = [Fraction(math.prod(N + 2 * i for i in range(k)), N**k) for k in range(33)]
    assert list(wishart_moments(1, N, 32)) == wanted


def trace_products(
    d: int, N: int, powers: tuple[int, ...], values: dict[tuple[int, ...], int]
) -> int:
    """E of the product of tr S^k, by Gaussian integration by parts; powers are sorted."""
    zeros = powers.count(0)
    positive = powers[zeros:]
    if positive not in values:
        *smaller, k = positive
        total = (N + k - 1) * trace_products(d, N, up(*smaller, k - 1), values)
        for j in range(k - 1):
            total += trace_products(d, N, up(*smaller, j + 1, k - 2 - j), values)
        for i, m in enumerate(smaller):
            rest = (*smaller[:i], *smaller[i + 1 :])
            total += 2 * m * trace_products(d, N, up(*rest, k + m - 1), values)
        values[positive] = total
    return d**zeros * values[positive]


def up(*powers: int) -> tuple[int, ...]:
    return tuple(sorted(powers))


@pytest.mark.parametrize(("d", "N"), [(2, 4), (5, 20), (3, 3), (7, 2), (1, 6)])
def test_moments_are_those_of_integration_by_parts(d: int, N: int) -> None:
    values: dict[tuple[int, ...], int] = {(): 1}
    for k, moment in enumerate(wishart_moments(d, N, 14)):
        assert moment * N**k == trace_products(d, N, (k,), values)


def test_moments_in_two_dimensions_are_integrals_of_the_joint_density() -> None:
    """Density of the eigenvalues of a 2 x 2 Wishart matrix with N = 5, to order 32."""
    N, found = 5, wishart_moments(2, 5, 32)
    with mpmath.workdps(30):
        # (xy)^((N-3)/2) e^(-(x+y)/2) (x - y), x > y; in s = x + y and p = xy = s²(1 -
        # u²)/4 it is a product
        for k in (1, 4, 17, 32):

            def integrand(u: Any, k: int = k) -> Any:
                return (
                    (1 - u * u) ** mpmath.mpf((N - 3) / 2)
                    * u
                    * ((1 + u) ** k + (1 - u) ** k)
                )

            ratio = mpmath.quad(integrand, [0, 1]) / mpmath.quad(
                lambda u: integrand(u, 0) / 2, [0, 1]
            )
            # s has the density s^(N-1) e^(-s/2), and the trace of the k-th power is
            # (s/2)^k ((1+u)^k + (1-u)^k)
            scale = (
                mpmath.gamma(N + k)
                / mpmath.gamma(N)
                * mpmath.mpf(2) ** k
                / mpmath.mpf(2) ** k
                / N**k
            )
            exact = ratio * scale
            assert (
                abs(mpmath.mpf(found[k].numerator) / found[k].denominator / exact - 1)
                < 1e-20
            )


@pytest.mark.parametrize(
    ("d", "N", "depth"),
    [(8, 20, 16), (8, 3, 5), (1, 1, 16), (100, 7, 10), (2, 10**6, 16)],
)
def test_quadrature_has_the_moments_and_positive_weights(
    d: int, N: int, depth: int
) -> None:
    nodes, weights = quadrature(d, N, depth)
    assert nodes[0] == 0.0
    assert (np.diff(nodes) > 0.0).all()
    assert (weights > 0.0).all()
    for k, moment in enumerate(wishart_moments(d, N, 2 * depth)):
        assert float(weights @ nodes**k) == pytest.approx(float(moment), rel=1e-11)


def test_one_layer_is_the_merged_matrix() -> None:
    law = icl.LinearAttention(d=5, N=7, noise=0.4).law()
    looped = LoopedRisk(5, 7, 1, 0.4)
    assert looped.floor() == pytest.approx(law.floor, rel=1e-13)
    for gamma in (-0.3, 0.0, 1.7):
        assert looped.loss([gamma]) == pytest.approx(
            law.loss(np.full(5, gamma)), rel=1e-12
        )


@pytest.mark.parametrize("noise", [0.0, 0.7])
def test_loss_of_sixteen_layers_is_that_of_sampled_prompts(noise: float) -> None:
    """10^5 prompts, d = 8, N = 20, at half of the best γ; beyond, rare prompts decide, see the next test."""
    risk = LoopedRisk(8, 20, 16, noise)
    gamma = 0.5 * float(risk.best[0])
    losses = loss_of(spectra(8, 20, 100_000, seed=1), gamma, 16, noise, 20)
    assert abs(losses.mean() - risk.loss([gamma])) < 4.0 * losses.std() / math.sqrt(
        len(losses)
    )


@pytest.mark.slow
def test_loss_of_the_best_length_is_that_of_prompts_drawn_where_it_arises() -> None:
    """Importance sampling: half of the prompts stretched by √c along a random direction.

    E_u exp(uᵀBu) = Σ_n h_n(B)/(d/2)_n over the unit sphere, with Π(1 - tb_i)^(-1/2) = Σ
    h_n t^n.
    """
    d, N, depth, c, size = 8, 20, 16, 2.5, 40_000
    risk = LoopedRisk(d, N, depth)
    gamma = float(risk.best[0])
    rng = np.random.default_rng(2)
    tokens, along = rng.normal(size=(size, N, d)), rng.normal(size=(size, d))
    along /= np.linalg.norm(along, axis=1, keepdims=True)
    along[::2] = 0.0  # every other prompt is left as it is
    tokens += (
        (math.sqrt(c) - 1.0)
        * np.einsum("bnd,bd->bn", tokens, along)[:, :, None]
        * along[:, None]
    )
    x = np.linalg.eigvalsh(tokens.transpose(0, 2, 1) @ tokens / N)
    b = 0.5 * (1.0 - 1.0 / c) * N * x
    largest = b[:, -1]
    powers, h, series, scale = [], [np.ones(size)], np.ones(size), np.ones(size)
    for n in range(1, 241):  # h is that of b / largest, and scale is largestⁿ/(d/2)_n
        powers.append(np.sum((b / largest[:, None]) ** n, axis=1))
        h.append(sum(p * h[-j] for j, p in enumerate(powers, 1)) / (2 * n))
        scale *= largest / (0.5 * d + n - 1)
        series += h[n] * scale
    weights = 2.0 / (1.0 + c ** (-0.5 * N) * series)
    assert weights.mean() == pytest.approx(
        1.0, abs=4.0 * weights.std() / math.sqrt(size)
    )
    losses = weights * loss_of(x, gamma, depth, 0.0, N)
    assert abs(losses.mean() - risk.floor()) < 4.0 * losses.std() / math.sqrt(size)
    assert losses.std() / math.sqrt(size) < 0.015 * risk.floor()
    plain = loss_of(spectra(d, N, 100_000, seed=1), gamma, depth, 0.0, N)
    assert risk.floor() - plain.mean() > 10.0 * plain.std() / math.sqrt(
        len(plain)
    )  # what 10^5 prompts miss


def test_best_layers_are_a_stationary_point_and_better_than_a_loop() -> None:
    for depth in (1, 2, 5):
        nodes, weights = quadrature(4, 9, depth)
        found = best_layers(4, 9, depth)

        def loss(lengths: Any, x: Any = nodes, w: Any = weights) -> float:
            return 0.5 * float(w @ np.prod(1.0 - np.outer(lengths, x), axis=0) ** 2)

        assert loss(found.lengths) == pytest.approx(found.loss, rel=1e-12)
        looped = LoopedRisk(4, 9, depth).floor()
        assert found.loss <= looped * (1.0 + 1e-12)
        assert (found.loss < 0.9 * looped) == (depth > 1)
        for shift in 1e-3 * np.random.default_rng(depth).normal(size=(20, depth)):
            assert loss(found.lengths + shift) > found.loss


def test_risk_and_its_trainer_are_sound() -> None:
    check_risk(LoopedRisk(4, 3, 5, noise=0.7, start=0.1))
    check_risk(LoopedRisk(5, math.inf, 3, start=0.1))
    check_family(icl.LinearAttention, rows=False, d=4, N=10, depth=3, noise=0.3)


def test_loud_noise_leaves_a_short_step() -> None:
    """One layer by its formula, and more than one to first order in γ, where they are the same step."""
    best = 1.0 / (21 / 20 + (8 + 1e6) / 20)
    for depth in (1, 2, 16):
        assert LoopedRisk(8, 20, depth, 1e3).best[0] == pytest.approx(best, rel=1e-3)
    assert LoopedRisk(8, 20, 1, 1e3).best[0] == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize(
    ("d", "N", "depth"),
    [(8, 20, 2), (8, 20, 16), (8, 10**4, 6), (2, 10**6, 3), (1, 3, 5)],
)
def test_losses_of_layers_of_their_own_keep_their_digits(
    d: int, N: int, depth: int
) -> None:
    """The least E tr p(Σ̂)² with p(0) = 1 is one over the first entry of the inverse of the matrix of moments."""
    moments = wishart_moments(d, N, 2 * depth)
    with mpmath.workdps(200):
        first = [mpmath.mpf(each.numerator) / each.denominator for each in moments]
        hankel = mpmath.matrix(
            [[first[i + j] for j in range(depth + 1)] for i in range(depth + 1)]
        )
        unit = mpmath.matrix([1] + [0] * depth)
        least = float(1 / mpmath.lu_solve(hankel, unit)[0] / 2)
    assert best_layers(d, N, depth).loss == pytest.approx(least, rel=1e-12, abs=0.0)


def test_infinite_prompts_are_learnt_by_one_layer_of_its_own() -> None:
    assert best_layers(8, math.inf, 3).loss == 0.0
    assert LoopedRisk(8, math.inf, 3).floor() == pytest.approx(0.0, abs=1e-30)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"depth": 17}, r"depth = 17: must be an integer in \[1, 16\]"),
        ({"depth": 2, "decay": 1.0}, r"decay = 1\.0: must be 0\.0 for several layers"),
        ({"depth": 2, "tasks": 3}, r"tasks = 3: must be None for several layers"),
        (
            {"depth": 2, "coordinates": "pair"},
            r"coordinates = 'pair': must be 'merged' for several layers",
        ),
        (
            {"depth": 2, "covariance": [1.0, 1.0]},
            r"covariance = .*must be None for several layers",
        ),
        (
            {"depth": 2, "d": 2, "prior": [1.0, 1.0]},
            r"prior = .*must be None for several layers",
        ),
        (
            {"depth": 2, "d": 2, "query": [2.0, 1.0]},
            r"query = .*must be None for several layers",
        ),
        ({"depth": 2, "start": [1.0] * 8}, r"start = .*a number for several layers"),
    ],
)
def test_depth_that_cannot_be_is_refused(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        icl.LinearAttention(**arguments)


def test_the_sampled_loop_of_a_problem_has_its_noise() -> None:
    problem, gamma = icl.LinearAttention(d=3, N=4, depth=2, noise=1.5), np.array([0.8])
    trainer = problem.sampled(1000, seed=1)
    losses = np.array([trainer.evaluate(gamma, step)[0] for step in range(20)])
    error = losses.std(ddof=1) / math.sqrt(20)
    assert abs(losses.mean() - problem.risk().loss(gamma)) < 4.0 * error
    assert losses.mean() > LoopedRisk(3, 4, 2).loss(gamma) + 5.0 * error


@pytest.mark.parametrize(
    ("start", "depth", "named"),
    [([0.01], math.nan, "depth"), ([0.01], 0, "depth"), ([0.01, 1.0], 2, "start")],
)
def test_a_loop_that_cannot_be_sampled_is_refused(
    start: list[float], depth: Any, named: str
) -> None:
    law = icl.linear_attention.PromptLaw([1.0, 0.5], N=10)
    with pytest.raises(ValueError, match=f"^{named} = "):
        icl.linear_attention.SampledLoop(law, np.array(start), 8, depth=depth)


@pytest.mark.parametrize(("N", "depth"), [(20, 1), (20, 4), (math.inf, 3)])
def test_lengths_of_the_best_layers_are_in_their_order(N: float, depth: int) -> None:
    """The largest first; layers that are not needed have none."""
    lengths = icl.linear_attention.best_layers(8, N, depth).lengths
    assert lengths.shape == (depth,)
    assert np.all(np.diff(lengths) <= 0)
    assert np.all(lengths >= 0)
    if math.isinf(N):
        np.testing.assert_allclose(lengths, [1.0, 0.0, 0.0], atol=1e-12)
