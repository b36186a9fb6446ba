"""Layers that learn to descend: rows of the audit, and what the paper says.

The functions that are decorated with `row` or `identity` are rows of the audit: their
docstrings are the statements, and ``quick`` asks for a smaller measurement. `row` takes
functions that return ``Claim.of``: whether the measurements are as expected, the cases,
and the measured numbers in words. `identity` takes functions that yield pairs of arrays
that should be equal, measured and expected, and return the cases. `LAYERS` says which
statement of the papers each row tests.

Prompts have N tokens in d dimensions. Layer ℓ takes a value step η_ℓ, a step of descent
on the prompt's least squares. If layers move the tokens, layer ℓ also changes them by a
token step γ_ℓ. Losses are half the mean squared error.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from pathlib import Path

import numpy as np

from icl_theory.papers.descent_layers.family import DescentLayers
from icl_theory.papers.descent_layers.risk import LayersRisk
from icl_theory.papers.linear_attention.depth import wishart_moments
from icl_theory.statements.claim import OURS, Claim, Errors, identity, row
from icl_theory.statements.numbers import deviations, listed
from icl_theory.statements.paper import Claims, ModelEntry, Paper, Reading

OSWALD = "von Oswald et al. 2023, {}"
AHN_CODE = "Ahn, Cheng, Daneshmand, Sra 2023, public notebook"
# Least and largest mean squared error, on batches of 4,000 prompts, that the notebook
# prints at steps 9,000 to 9,900 of its first training.
LEAST_PRINTED = 0.0010
LARGEST_PRINTED = 0.0028
# Denominator of the random steps of `loss`, which computes with fractions. It is a
# power of two, so that the steps are exact in float64, too.
DENOMINATOR = 64
# Factor of steps that are a quarter too long.
TOO_LONG = 1.25


def loss_by_moments(
    d: int, N: int, value_steps: list[Fraction], token_steps: list[Fraction]
) -> float:
    """Return the loss from exact moments of the Wishart matrix S, in fractions.

    The computation does not use the density that the risk integrates. S = XᵀX/N, where
    X has N rows of d standard normal numbers. There is no noise, and the loss is half
    the mean of tr r(S)². The residual is r(λ) = Π_ℓ (1 - η_ℓ λ_ℓ) with λ_1 = λ and
    λ_(ℓ+1) = λ_ℓ (1 - γ_ℓ λ_ℓ)². The lists have a step η_ℓ and a step γ_ℓ for each
    layer.
    """
    # The residual of the layers so far, and λ_ℓ, as polynomials in the eigenvalue λ of
    # the prompt's covariance. The lists have the coefficients of λ^0, λ^1, ...
    residual = [Fraction(1)]
    eigenvalue = [Fraction(0), Fraction(1)]
    for value_step, token_step in zip(value_steps, token_steps, strict=True):
        residual = _product(residual, _one_minus(value_step, eigenvalue))
        token_factor = _one_minus(token_step, eigenvalue)
        square = _product(token_factor, token_factor)
        eigenvalue = _product(eigenvalue, square)
    squared_residual = _product(residual, residual)
    # The means of tr S^n for n = 0, ..., the degree of the squared residual.
    moments = wishart_moments(d, N, len(squared_residual) - 1)
    mean_square = Fraction(0)
    for coefficient, moment in zip(squared_residual, moments, strict=True):
        mean_square += coefficient * moment
    return 0.5 * float(mean_square)


def _product(first: list[Fraction], second: list[Fraction]) -> list[Fraction]:
    """Return the coefficients of the product of two polynomials."""
    product = [Fraction(0)] * (len(first) + len(second) - 1)
    for i, a in enumerate(first):
        for j, b in enumerate(second):
            product[i + j] += a * b
    return product


def _one_minus(step: Fraction, eigenvalue: list[Fraction]) -> list[Fraction]:
    """Return the coefficients of 1 - step * eigenvalue, a polynomial as well."""
    polynomial = [-step * coefficient for coefficient in eigenvalue]
    polynomial[0] += 1
    return polynomial


@identity("descent layers: loss", OURS, 1e-11)
def loss(quick: bool) -> Errors:
    """the loss is an integral of the squared residual over the mean spectrum"""
    rng = np.random.default_rng(seed=0)
    problem_count = 20 if quick else 200
    for _ in range(problem_count):
        d = int(rng.integers(1, 8))
        N = int(rng.integers(1, 30))
        depth = int(rng.integers(1, 4))
        # Steps from -0.3 to 1.9: good ones, and some that are negative or too long.
        numerators = rng.integers(-20, 120, 2 * depth - 1)
        steps = [Fraction(int(n), DENOMINATOR) for n in numerators]
        value_steps = steps[:depth]
        # No layer reads the tokens that the last one would change, so the last layer
        # has no token step.
        token_steps = [*steps[depth:], Fraction(0)]
        expected = loss_by_moments(d, N, value_steps, token_steps)
        risk = LayersRisk(d, N, depth)
        yield np.array([risk.loss([float(step) for step in steps])]), expected
    return (
        f"{problem_count} random problems, d < 8, N < 30, up to 3 layers, by exact"
        " moments"
    )


@row("descent layers: samples", OURS, bound="4.5")
def samples(quick: bool) -> Claim:
    """the mean loss of explicit layers on sampled prompts is the exact loss"""
    rng = np.random.default_rng(seed=1)
    sizes = ((2, 6, 2), (3, 10, 3)) if quick else ((2, 6, 2), (3, 10, 3), (5, 20, 4))
    prompt_count = 10_000 if quick else 100_000
    largest_z = 0.0
    for d, N, depth in sizes:
        problem = DescentLayers(d=d, N=N, depth=depth, noise=0.3)
        risk = problem.layers()
        # Arbitrary short steps. With long steps, rare prompts would dominate the loss
        # (see `rare_prompts`).
        params = 0.4 * rng.uniform(size=risk.size)
        trainer = risk.sampled(prompt_count, seed=0)
        sampled = trainer.losses(params)  # one for each prompt
        # The distance of the mean of the samples from the loss, in standard errors.
        z = deviations(sampled, risk.loss(params))
        largest_z = max(largest_z, float(z))
    return Claim.of(
        # Means that are normal exceed 4.5 standard errors in 7 of a million cases.
        largest_z < 4.5,
        f"(d, N, layers) = {listed(sizes)}, σ = 0.3, {prompt_count:,} prompts each",
        f"largest |z| {largest_z:.1f}",
    )


@row("descent layers: curvature", OSWALD.format("abstract"), bound="a ratio below ½")
def curvature(quick: bool) -> Claim:
    """several trained layers surpass plain gradient descent, by a correction of its
    curvature
    """
    depths = (2, 3) if quick else (2, 3, 4)
    plain_errors = [least_error_of_fixed_tokens(depth) for depth in depths]
    moving_errors = [least_error(depth, quick) for depth in depths]
    ratios = np.array(moving_errors) / np.array(plain_errors)
    return Claim.of(
        bool((ratios < 0.5).all()),
        f"d = 5, N = 20, no noise, {listed(depths)} layers; best steps of each kind",
        f"mean squared error {listed(moving_errors, '.2g')} if layers move the tokens,"
        f" and {listed(plain_errors, '.2g')} if not",
    )


def least_error_of_fixed_tokens(depth: int) -> float:
    """Return the least mean squared error of layers that leave the tokens alone.

    Without noise these layers reach the lower bound ``LayersRisk.floor``.
    """
    # The loss is half the mean squared error.
    return 2.0 * DescentLayers(depth=depth, tokens="fixed").layers().floor()


@lru_cache(maxsize=16)
def least_error(depth: int, quick: bool) -> float:
    """Return the least mean squared error found for layers that move the tokens.

    Several rows share the search, which takes seconds; hence the cache.
    """
    problem = DescentLayers(depth=depth)
    best_steps = problem.best_steps(starts=20 if quick else 100)
    return 2.0 * problem.layers().loss(best_steps)


@row("descent layers: each layer", OURS, bound="the bound, below each of them")
def each_layer(quick: bool) -> Claim:
    """each layer that moves the tokens gains more digits than the one before; no layers
    beat the best polynomial of their degree
    """
    depths = range(1, 4 if quick else 6)
    least = np.array([least_error(depth, quick) for depth in depths])
    bounds = np.array(
        [2.0 * DescentLayers(depth=depth).layers().floor() for depth in depths]
    )
    # The factors by which the second layer and each later one lower the error.
    gains = least[:-1] / least[1:]
    gains_grow = (np.diff(gains) > 0.0).all()
    return Claim.of(
        bool(gains_grow and (least >= bounds).all()),
        f"d = 5, N = 20, no noise, 1 to {depths[-1]} layers",
        f"least mean squared error found {listed(least, '.2g')}; of all polynomials of"
        f" the degree {listed(bounds, '.2g')}",
    )


@row("descent layers: three trained", AHN_CODE, bound="0.0010..0.0028, printed")
def three_trained(quick: bool) -> Claim:
    """three layers that are trained with Adam on d = 5, N = 20 reach a mean squared
    error of 0.0010 to 0.0028 (the last 1,000 steps of the notebook's first training)
    """
    # A quick audit takes fewer and longer steps. The error of a quick audit also ends
    # in the printed range, although it still falls a little.
    steps, eta = (2_500, 0.003) if quick else (9_900, 0.001)
    last_errors = []
    for seed in range(1 if quick else 3):
        problem = DescentLayers(
            eta=eta,
            depth=3,
            coordinates="matrices",
            rule="adam",
            beta2=0.9,
            start=1e-4,
            seed=seed,
            epsilon=1e-9,  # never reached, so runs end at the last step
            max_steps=steps,
        )
        last_errors.append(2.0 * float(problem.simulate().loss[-1]))
    least = least_error(3, quick)
    in_printed_range = (
        min(last_errors) > LEAST_PRINTED and max(last_errors) < LARGEST_PRINTED
    )
    return Claim.of(
        in_printed_range and least < min(last_errors),
        f"P and Q of all layers multiples of I near zero, Adam with η = {eta}, β ="
        f" (0.9, 0.9), exact loss, {steps:,} steps",
        f"{listed(last_errors, '.5f')}; the least that is found over all steps"
        f" {least:.5f}",
        "holds: the exact training ends in the printed range, at a minimum that is not"
        " the lowest",
    )


@row("descent layers: rare prompts", OURS, bound="a ratio below ½")
def rare_prompts(quick: bool) -> Claim:
    """at steps that are a quarter too long, rare prompts make up nearly all of the
    loss, and samples do not show them
    """
    problem = DescentLayers(depth=4)
    risk = problem.layers()
    long_steps = TOO_LONG * problem.best_steps(starts=5 if quick else 60)
    exact_loss = risk.loss(long_steps)
    trainer = risk.sampled(10_000 if quick else 100_000, seed=0)
    sampled_loss = trainer.losses(long_steps).mean()
    # The division gives the best steps again, up to rounding.
    least_loss = risk.loss(long_steps / TOO_LONG)
    return Claim.of(
        # If the loss of the samples is less than half of the exact loss, prompts that
        # were not sampled cause most of the exact loss. In a measurement the samples
        # had 5e-12 of it.
        float(sampled_loss) < 0.5 * exact_loss,
        "d = 5, N = 20, four layers at 1.25 times their best steps,"
        f" {trainer.batch:,} sampled prompts",
        f"sampled mean over the exact one {sampled_loss / exact_loss:.1e}, exact loss"
        f" over that at the best steps {exact_loss / least_loss:.0e}",
    )


LAYERS = Paper(
    "descent-layers",
    "Transformers learn in-context by gradient descent",
    "Johannes von Oswald, Eyvind Niklasson, Ettore Randazzo, João Sacramento, Alexander"
    " Mordvintsev, Andrey Zhmoginov, Max Vladymyrov",
    2023,
    "arXiv:2212.07677",
    (
        Reading(
            "curvature correction",
            "Trained transformers surpass plain gradient descent by an iterative"
            " correction of the curvature.",
            (curvature, each_layer),
            figure="layers",
        ),
        Reading(
            "three trained layers",
            "Ahn et al. train three layers with Adam; their notebook prints the loss.",
            (three_trained, loss, samples, rare_prompts),
        ),
    ),
    credit="Layers as steps of descent, and GD++",
    entry=ModelEntry(
        data="isotropic normal inputs, linear functions",
        attention="linear, up to six layers",
        trained="a value step and a token step for each layer",
        command="icl-theory descent-layers simulate --depth 3",
    ),
    folder=Path(__file__).parent,
)
CLAIMS = Claims(papers=(LAYERS,))
