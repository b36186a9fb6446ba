"""Depth on any covariance: rows of the audit, and what the paper says.

The functions that are decorated with `row` or `identity` are rows of the audit: their
docstrings are the statements, and ``quick`` asks for a smaller measurement. An identity
yields pairs of a measured and an expected number or array. `DEPTH` says which statement
of the paper each row tests.

Tokens have the covariance Σ with the eigenvalues λ_j, and tasks the second moment Ω
with the eigenvalues ω_j, in d dimensions. Prompts have N pairs with label noise of the
standard deviation σ. L layers (the depth is L) share the matrix Γ, whose eigenvalues
are called gamma. A word is a product of sample covariances and powers of fixed
matrices; the loss needs the mean traces of words.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.linalg import expm
from scipy.optimize import minimize_scalar

from icl_theory._validate import Array
from icl_theory.papers.depth_covariance.enumeration import enumerated_loss
from icl_theory.papers.depth_covariance.family import DepthCovariance
from icl_theory.papers.depth_covariance.limit import limit_loss
from icl_theory.papers.depth_covariance.risk import DepthRisk, SymmetricRisk
from icl_theory.statements.claim import OURS, Claim, Errors, identity, row
from icl_theory.statements.numbers import deviations, listed, power
from icl_theory.statements.paper import Claims, ModelEntry, Paper, Reading

BORDELON = "Bordelon, Letey, Pehlevan 2025, {}"
# Citation for results whose formulas we know only from a summary of the paper. We have
# derived these formulas ourselves.
RETOLD = "Bordelon, Letey, Pehlevan 2025, {} (reconstructed)"
# (d, N, depth) with so few entries of the tokens that all prompts can be enumerated.
SMALL = ((1, 2, 4), (2, 1, 4), (1, 3, 3), (3, 1, 3), (2, 2, 2), (4, 1, 2))
# The dimension of the networks in the paper's first figure.
TRAINED_DIMENSION = 32
# Step of central difference quotients of the enumerated loss. Their error is about the
# square of the step.
DIFFERENCE = 1e-4


def random_moment(rng: np.random.Generator, d: int) -> Array:
    """Draw a random second moment, (d, d), with eigenvalues of at least 0.2.

    The bound is arbitrary. It keeps the matrix far from singular ones.
    """
    root = rng.normal(size=(d, d))
    return np.asarray(root @ root.T / d + 0.2 * np.eye(d))


@identity("depth covariance: loss", OURS, 1e-10)
def loss(quick: bool) -> Errors:
    """the loss is a polynomial in traces, with coefficients from the mean traces of
    words
    """
    rng = np.random.default_rng(seed=0)
    problem_count = 18 if quick else 200
    for index in range(problem_count):
        d, N, depth = SMALL[index % len(SMALL)]
        covariance = random_moment(rng, d)
        prior = random_moment(rng, d)
        gamma = rng.normal(size=(d, d))
        # Γ is made symmetric. Its size is in proportion to the depth L, because each
        # layer applies Γ/L.
        gamma = depth * (gamma + gamma.T) / 4.0
        expected = enumerated_loss(gamma, covariance, prior, N, depth, noise=0.5)
        risk = SymmetricRisk(covariance, N, depth, prior, noise=0.5)
        yield np.array([risk.loss(gamma)]), expected
    return (
        f"{problem_count} random problems, Γ, Σ and Ω do not commute, σ = 0.5, by"
        " explicit layers on all prompts of a Gauss rule"
    )


@row("depth covariance: samples", OURS, bound="4.5")
def samples(quick: bool) -> Claim:
    """the mean loss of explicit layers on sampled prompts is the exact loss"""
    prompts = 5_000 if quick else 100_000
    batches = 1 if quick else 4
    depths = (2, 3)
    largest_z = 0.0
    for depth in depths:
        for coordinates in ("eigenvalues", "multiple"):
            problem = DepthCovariance(depth=depth, coordinates=coordinates, noise=0.3)
            risk = problem.risk()
            assert isinstance(risk, DepthRisk)
            # An arbitrary Γ between zero and the best one.
            params = np.full(risk.size, 0.6 * depth)
            trainer = risk.sampled(prompts, seed=depth)
            losses = [trainer.losses(params, step) for step in range(batches)]
            # The distance of the mean of the samples from the loss, in standard errors.
            z = deviations(np.concatenate(losses), risk.loss(params))
            largest_z = max(largest_z, float(z))
    return Claim.of(
        # Four means that are normal exceed 4.5 standard errors in one of 37 000 audits.
        largest_z < 4.5,
        f"d = 5, λ_j = 1/j, N = 20, σ = 0.3; {listed(depths)} layers; Σ fixed and"
        f" rotated, {prompts * batches:,} prompts each",
        f"largest |z| {largest_z:.1f}",
    )


@identity("depth covariance: limit", OURS, 1e-9)
def limit(quick: bool) -> Errors:
    """the leading terms of the moments are contour integrals of a two-point equivalent
    of the resolvents
    """
    rng = np.random.default_rng(seed=1)
    problem_count = 5 if quick else 60
    deepest = 5 if quick else 6
    for index in range(problem_count):
        depth = 1 + index % deepest
        d, N = (int(size) for size in rng.integers(2, 40, 2))
        covariance, prior = rng.uniform(0.2, 2.0, (2, d))
        # Γ has a size in proportion to the depth, as in `loss`.
        gamma = depth * rng.uniform(0.0, 1.0, d)
        leading = DepthRisk(covariance, N, depth, prior, noise=0.5, leading=True)
        expected = limit_loss(gamma, covariance, N, depth, prior, noise=0.5)
        yield np.array([leading.loss(gamma)]), expected
    return (
        f"{problem_count} random problems, d < 40, N < 40, 1 to {deepest} layers,"
        " σ = 0.5"
    )


@row("depth covariance: preserved", RETOLD.format("Results 4 and 6"), bound="1e-7")
def preserved(quick: bool) -> Claim:
    """from a multiple of I, gradient flow keeps Γ diagonal in the eigenbasis of Σ, if
    Σ and Ω commute
    """
    covariance = np.diag([1.0, 0.4])
    prior = np.diag([0.7, 1.5])
    gamma = np.diag([1.1, 2.3])
    N = 2
    depths = (1, 2) if quick else (1, 2, 3)
    largest_ratio = 0.0
    for depth in depths:

        def loss_at(matrix: Array, depth: int = depth) -> float:
            """Return the loss of layers with a matrix Γ that need not be symmetric."""
            return enumerated_loss(matrix, covariance, prior, N, depth, noise=0.3)

        slopes = np.empty((2, 2))  # the derivatives with respect to the entries of Γ
        for i, j in np.ndindex(2, 2):
            change = np.zeros((2, 2))
            change[i, j] = DIFFERENCE
            difference = loss_at(gamma + change) - loss_at(gamma - change)
            slopes[i, j] = difference / (2.0 * DIFFERENCE)
        off_diagonal = max(abs(slopes[0, 1]), abs(slopes[1, 0]))
        least_on_diagonal = float(np.abs(np.diag(slopes)).min())
        largest_ratio = max(largest_ratio, off_diagonal / least_on_diagonal)
    return Claim.of(
        # A derivative is a difference of losses over 2e-4. So the rounding of the loss
        # makes a derivative uncertain by about 1e-12 of the loss. The bound is
        # cautious.
        largest_ratio < 1e-7,
        f"d = 2, N = 2, σ = 0.3; {listed(depths)} layers; derivatives by all four"
        " entries of Γ, by enumeration",
        "largest derivative off the diagonal, relative to the least one on it,"
        " below 1e-7",
    )


@identity("depth covariance: decoupled flow", RETOLD.format("Result 4"), 1e-9)
def decoupled_flow(quick: bool) -> Errors:
    """with infinite prompts the eigenvalues of Γ follow gradient flow one by one, in
    closed form
    """
    depths = (1, 2, 3) if quick else range(1, 7)
    d = 4
    for depth in depths:
        problem = DepthCovariance(
            d=d,
            decay=1.0,
            N=math.inf,
            depth=depth,
            source=1.0,
            eta=1.0,
            method="flow",
            epsilon=0.05,
        )
        run = problem.simulate()
        spectrum, tasks = problem.spectra
        # ``remaining`` is the share u = 1 - γλ/L that is not yet learnt in each
        # direction; see docs/theory/depth-covariance.md, "Infinite prompts". As η = 1,
        # steps are times.
        rates = tasks * spectrum**3
        times = run.t[:, None]
        if depth == 1:
            remaining = np.exp(-rates * times)
        else:
            order = 2 * depth - 2
            remaining = (1.0 + order / depth * rates * times) ** (-1.0 / order)
        expected = depth / spectrum * (1.0 - remaining)
        # At step 0 the eigenvalues and ``expected`` are zero, and have no relative
        # difference.
        is_later = run.t > 0
        yield run.observed["eigenvalues"][is_later], expected[is_later]
    return f"d = {d}, λ_j = 1/j, β = 1; {listed(depths)} layers; along the flow"


@row("depth covariance: isotropic", BORDELON.format("Figure 1c"), bound="0.02")
def isotropic(quick: bool) -> Claim:
    """for isotropic data the final loss of trained layers is well predicted by L steps
    of descent of the best length, on the Marchenko–Pastur law
    """
    d = TRAINED_DIMENSION
    depths = (1, 2, 4) if quick else (1, 2, 4, 6)
    ratios = (0.5, 1.0, 4.0)
    differences = []
    percentages = []
    for depth in depths:
        for ratio in ratios:
            N = int(ratio * d)
            exact = least_error(d, N, depth)
            asymptotic = least_error(d, N, depth, leading=True)
            differences.append(exact - asymptotic)
            percentages.append(100.0 * (exact / asymptotic - 1.0))
    largest = float(np.abs(differences).max())
    # One layer has the limit 1/(1 + N/d).
    one_layer = least_error(d, N=d, depth=1, leading=True)
    return Claim.of(
        # "Well predicted" is taken as 2 % of the error before training.
        largest < 0.02 and math.isclose(one_layer, 0.5, rel_tol=1e-9),
        f"d = {d}; N/d = {listed(ratios)}; {listed(depths)} layers; no noise; mean"
        " squared error per dimension, which is 1 before training",
        f"the exact least error is above the limit by up to {largest:.3f}, or"
        f" {max(percentages):.0f} %; one layer at N = d has {one_layer:.3f} in the"
        " limit",
    )


def least_error(d: int, N: float, depth: int, leading: bool = False) -> float:
    """Return the least mean squared error per dimension of Γ = γI on isotropic data.

    If ``leading`` is True, it is the error in the limit of d and N in proportion.
    """
    problem = DepthCovariance(
        d=d,
        covariance=np.ones(d),
        N=N,
        depth=depth,
        coordinates="multiple",
        terms="leading" if leading else "all",
    )
    # The loss is half the mean squared error.
    return 2.0 / d * problem.risk().loss(problem.best())


@row("depth covariance: long prompts", RETOLD.format("Results 2 and 3"), bound="0.05")
def long_prompts(quick: bool) -> Claim:
    """for a fixed covariance the least loss vanishes for long prompts at every depth:
    a single layer is enough
    """
    depths = (1, 2, 3)
    lengths = (1_000, 2_000) if quick else (1_000, 2_000, 4_000)
    power_law_exponents = [exponent_in_length(1.0, depth, lengths) for depth in depths]
    isotropic_exponents = [exponent_in_length(0.0, depth, lengths) for depth in depths]
    # The exponent of L layers is expected to be -L.
    differences = np.array([power_law_exponents, isotropic_exponents]) + depths
    return Claim.of(
        # The exponents are -L for N -> ∞. At these N they differ from -L by up to 0.02.
        bool(np.abs(differences).max() < 0.05),
        f"d = 5, Ω = I, no noise, N = {listed(lengths)}; λ_j = 1/j, and λ_j = 1",
        f"the least loss of {listed(depths)} layers falls like N to the power"
        f" {listed(power_law_exponents, '.2f')}, and"
        f" {listed(isotropic_exponents, '.2f')} for λ_j = 1",
        "holds: the loss tends to zero at each depth, but each layer adds a power of N",
    )


def exponent_in_length(decay: float, depth: int, lengths: tuple[int, ...]) -> float:
    """Return the exponent b of the law N^b of the least loss, for λ_j = j^-decay.

    The exponent is fitted to the least losses at the prompt lengths N in ``lengths``.
    """
    least_losses = []
    for N in lengths:
        problem = DepthCovariance(decay=decay, N=N, depth=depth)
        least_losses.append(problem.risk().loss(problem.best()))
    return power(lengths, least_losses)


@row("depth covariance: other covariance", RETOLD.format("Result 5"), bound="grows")
def other_covariance(quick: bool) -> Claim:
    """layers that were trained on one covariance fail on a rotated one, and deeper
    layers fail more
    """
    # One angle below and one above about 0.84, at which I - Σ⁻¹Σ′ has an eigenvalue of
    # -1. Here Σ′ is the rotated covariance.
    small_angle = 0.3
    large_angle = 1.0
    depths = tuple(range(1, 4 if quick else 7))
    covariance = np.diag(np.arange(1.0, 6.0) ** -1.0)
    # Each layer applies Γ/L. With infinite prompts of the covariance Σ the loss is zero
    # at Γ = LΣ⁻¹, and training ends there. On prompts of the covariance Σ′ these layers
    # leave the part (I - Σ⁻¹Σ′)^L of a task unexplained.
    inverse = np.linalg.inv(covariance)

    def errors_at(angle: float) -> list[float]:
        """Return the mean squared error at each depth, which is twice the loss."""
        covariance_of_prompts = rotated_covariance(covariance, angle)
        errors = []
        for depth in depths:
            risk = SymmetricRisk(covariance_of_prompts, math.inf, depth)
            trained_gamma = depth * inverse
            errors.append(2.0 * risk.loss(trained_gamma))
        return errors

    small_errors = errors_at(small_angle)
    large_errors = errors_at(large_angle)
    falls_at_small = bool((np.diff(small_errors) < 0.0).all())
    grows_at_large = bool((np.diff(large_errors) > 0.0).all())
    return Claim.of(
        falls_at_small and grows_at_large,
        f"d = 5, λ_j = 1/j, Γ = LΣ⁻¹, infinite prompts; {listed(depths)} layers; angles"
        f" {small_angle}, {large_angle}",
        f"mean squared error at angle {small_angle}: {listed(small_errors, '.2g')}; at"
        f" angle {large_angle}: {listed(large_errors, '.2g')}",
        "holds only for rotations so large that I − Σ⁻¹Σ′ has an eigenvalue below -1:"
        " for smaller ones depth reduces the loss",
    )


def rotated_covariance(covariance: Array, angle: float) -> Array:
    """Rotate a covariance by exp(angle S), with a fixed S.

    S is a random antisymmetric matrix of spectral norm 1, drawn with the seed 0. The
    exponential of such a matrix is a rotation.
    """
    rng = np.random.default_rng(seed=0)
    generator = rng.normal(size=covariance.shape)
    generator = 0.5 * (generator - generator.T)
    rotation = expm(angle * generator / np.linalg.norm(generator, 2))
    return np.asarray(rotation @ covariance @ rotation.T)


@row("depth covariance: rotated", RETOLD.format("Results 6 and 8"), bound="0.1")
def rotated(quick: bool) -> Claim:
    """if each prompt has a rotated covariance, the least loss falls with depth even for
    infinite prompts, like L to the power -β
    """
    # (ν, β) of the laws λ_j = j^-ν and ω_j λ_j = j^-(1 + βν).
    laws = ((1.0, 1.0), (1.5, 0.5), (2.0, 1.5))
    depths = (64, 128, 256)
    d = 10**4 if quick else 10**6
    exponents = []
    best_gammas = []  # for the largest depth L, in units of L/λ_1
    for decay, source in laws:
        minima = [least_of_rotated(d, decay, source, depth) for depth in depths]
        exponents.append(power(depths, [minimum.loss for minimum in minima]))
        best_gammas.append(minima[-1].gamma / depths[-1])  # λ_1 = 1
    sources = np.array([source for _, source in laws])
    return Claim.of(
        # The exponent is -β for L -> ∞ and d -> ∞. It differs from -β by up to 0.04 in
        # a full audit, and by up to 0.07 in a quick one.
        bool(np.abs(np.array(exponents) + sources).max() < 0.1),
        f"d = {d:,}; (ν, β) = {listed(laws)}; {depths[0]} to {depths[-1]} layers,"
        " N = ∞",
        f"exponents {listed(exponents, '.2f')}; the best γ is"
        f" {listed(best_gammas, '.2f')} times L/λ_1",
    )


class LeastOfMultiples(NamedTuple):
    """The least loss of layers with Γ = γI, and the γ that has it."""

    loss: float
    gamma: float


def least_of_rotated(
    d: int, decay: float, source: float, depth: int
) -> LeastOfMultiples:
    """Search for the best γ for infinite prompts, at any depth.

    The loss is ½ Σ_j ω_j λ_j (1 - γ λ_j/L)^(2L) with λ_j = j^-decay and ω_j λ_j =
    j^-(1 + source · decay).
    """
    ranks = np.arange(1.0, d + 1.0)
    spectrum = ranks**-decay
    weights = ranks ** (-1.0 - source * decay)  # ω_j λ_j
    per_layer = spectrum / depth

    def loss_at(gamma: float) -> float:
        """Return the loss of layers with Γ = γI."""
        return 0.5 * float(weights @ (1.0 - gamma * per_layer) ** (2 * depth))

    # For γ beyond 2L/λ_1 = 2L, the largest eigenvalue makes the layers diverge. The
    # loss is stationary at the best γ, so an error of 1e-6 in γ is negligible.
    result = minimize_scalar(
        loss_at, bounds=(0.0, 2.0 * depth), method="bounded", options={"xatol": 1e-6}
    )
    return LeastOfMultiples(loss=float(result.fun), gamma=float(result.x))


@row("depth covariance: finite size", OURS, bound="-1.1..-0.9")
def finite_size(quick: bool) -> Claim:
    """the relative distance of the exact loss from its limit falls like one over the
    size
    """
    sizes = (50, 100, 200)
    depths = (1, 2, 3)
    deepest = 5 if quick else 6
    exponents = []
    for depth in depths:
        departures = [departure(np.linspace(0.5, 1.5, d), depth) for d in sizes]
        exponents.append(power(sizes, departures))
    small_spectrum = np.arange(1.0, 11.0) ** -1.0
    percentages = [100.0 * departure(small_spectrum, depth) for depth in depths]
    ratio = 1.0 + departure(small_spectrum, deepest)
    are_in_range = all(-1.1 < exponent < -0.9 for exponent in exponents)
    return Claim.of(
        # Many layers on a small, uneven spectrum show how far the limit may fail: with
        # six layers the ratio is 27.
        are_in_range and ratio > 2.0,
        f"N = d, the Γ that is best in the limit; λ from 1/2 to 3/2 at d ="
        f" {listed(sizes)}; λ_j = 1/j at d = 10; {listed(depths)} and {deepest} layers",
        f"exponents {listed(exponents, '.2f')}; at d = 10 the exact loss is"
        f" {listed(percentages, '.0f')} % above the limit, and with {deepest} layers"
        f" {ratio:.1f} times the limit",
    )


def departure(spectrum: Array, depth: int) -> float:
    """Return the exact loss divided by its limit, minus 1, for N = d.

    Both losses are those of the Γ that is best in the limit. ``spectrum``, (d,), has
    the eigenvalues of the covariance.
    """
    leading = DepthCovariance(
        covariance=spectrum, N=len(spectrum), depth=depth, terms="leading"
    )
    best = leading.best()
    exact = leading.changed(terms="all").risk().loss(best)
    return exact / leading.risk().loss(best) - 1.0


DEPTH = Paper(
    "depth-covariance",
    "Theory of Scaling Laws for In-Context Regression: Depth, Width, Context and Time",
    "Blake Bordelon, Mary I. Letey, Cengiz Pehlevan",
    2025,
    "arXiv:2510.01098",
    (
        Reading(
            "Figure 1c",
            "For isotropic data the final loss is that of L steps of descent of the"
            " best length; depth helps when prompts are short.",
            (isotropic,),
            figure="context_depth",
        ),
        Reading(
            "Results 2 and 3",
            "For isotropic data, and for a fixed covariance, depth is not needed in"
            " long prompts.",
            (long_prompts,),
            reconstructed="the statement, from a summary",
        ),
        Reading(
            "Result 4",
            "If Σ and Ω commute, gradient flow moves the eigenvalues of Γ one by one.",
            (decoupled_flow, preserved),
            reconstructed="the equation, from a summary",
        ),
        Reading(
            "Result 5",
            "Layers that were trained on a fixed covariance are brittle.",
            (other_covariance,),
            figure="other_covariance",
            reconstructed="the formula, from a summary",
        ),
        Reading(
            "Results 6 and 8",
            "If covariances are rotated at random, Γ stays a multiple of I, and depth"
            " helps even for infinite prompts.",
            (rotated,),
            figure="rotated_depth",
            reconstructed="the power of the depth, from a summary",
        ),
        Reading(
            "asymptotic loss",
            "The loss for dimensions and prompts in proportion, by a two-point"
            " deterministic equivalent.",
            (limit, loss, samples, finite_size),
            figure="finite_size",
            reconstructed="the equivalent, for Wishart matrices",
        ),
    ),
    credit="Depth, width and context of linear attention on structured covariances",
    entry=ModelEntry(
        data="normal inputs of any covariance, linear functions",
        attention="linear, up to six tied layers",
        trained="the matrix Γ that all layers share",
        command="icl-theory depth-covariance simulate --depth 3",
    ),
    folder=Path(__file__).parent,
)
CLAIMS = Claims(papers=(DEPTH,))
