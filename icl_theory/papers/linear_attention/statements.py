"""Papers on linear attention: rows, open questions, and what each paper says.

Letters, unless a function explains a paper's own: a prompt has N pairs of a token x,
with the covariance Λ of eigenvalues λ_j, and a label wᵀx with noise of standard
deviation σ. The task w has the second moment W, and the query of the prompt Λq. The
mean of label times token is h, with the second moment M. A layer predicts xᵀΓh for the
query x, and Γ* is the best matrix Γ. The number v and the matrix A are factors of
Γ = vA, and heads have Γ = Σ v_h Q_hᵀK_h, with values v, keys K and queries Q. The
learning rate is η, and the time of gradient flow is ηt after t steps.

The docstring of a row is the statement that it tests. A function that is decorated with
``row`` returns ``Claim.of``: whether the measurements are as expected, the cases, the
measured numbers in words, and the verdict. A function that is decorated with
``identity`` yields errors, or pairs of values whose relative difference is the error,
and returns the cases. With ``quick`` there are fewer and smaller cases. The measure
``off`` is the largest relative difference of two arrays, and ``apart`` the largest
absolute one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import sqrtm
from scipy.optimize import least_squares

from icl_theory._validate import Array
from icl_theory.engine import Pullback, Trajectory, descend
from icl_theory.papers.linear_attention import (
    Heads,
    LinearAttention,
    MergedHeads,
    MergedRisk,
    MixtureRisk,
    Pair,
    PromptLaw,
    fixed_set_questions,
)
from icl_theory.papers.linear_attention import preconditioned_descent as layers
from icl_theory.papers.linear_attention.depth import LoopedRisk, best_layers
from icl_theory.papers.linear_attention.diversity import (
    diversity_limit,
    pretrained,
    pretraining_limit,
    task_diversity,
)
from icl_theory.papers.linear_attention.preconditioned_descent import SKEWED
from icl_theory.papers.linear_attention.risks import balanced_flow
from icl_theory.papers.linear_attention.shifts import shift_table
from icl_theory.papers.linear_attention.softmax_drops import softmax_drops
from icl_theory.statements.claim import Claim, Errors, Series, identity, question, row
from icl_theory.statements.numbers import (
    apart,
    decade,
    deviations,
    listed,
    losses,
    off,
    power,
)
from icl_theory.statements.paper import Claims, ModelEntry, Paper, Reading, Setting
from icl_theory.statements.statement import OURS, Status

# Citations; the braces take the theorem or section.
AHN = "Ahn, Cheng, Daneshmand, Sra 2023, {}"
ZHANG = "Zhang, Frei, Bartlett 2024, {}"
STAIRS = "Zhang, Singh, Latham, Saxe 2025, {}"
# Arbitrary second moments of tasks and queries in two dimensions. They do not commute
# with each other, or with the covariance SKEWED of the tokens.
PRIOR = np.array(((1.5, -0.4), (-0.4, 0.6)))
QUERY = np.array(((0.4, 0.1), (0.1, 1.2)))
# Standard deviation of the entries of random heads, at which searches for roots of the
# gradient start. Searches from any size of the order 1 would do.
HEAD_SIZE = 0.6
# An arbitrary covariance in three dimensions, without zeros.
MIXED = np.array(((1.0, 0.3, 0.1), (0.3, 0.5, -0.1), (0.1, -0.1, 0.4)))


def skewed(N: int, noise: float) -> PromptLaw:
    """Return a law in two dimensions whose matrices Λ, W and Λq do not commute."""
    return PromptLaw(SKEWED, PRIOR, QUERY, N, noise)


def mixed_law() -> PromptLaw:
    """Return a law in three dimensions whose Λq does not commute with Λ and W."""
    query = np.diag([0.4, 1.2, 1.0])
    return PromptLaw(MIXED, prior=MIXED @ MIXED, query=query, N=5)


class PromptMoments(NamedTuple):
    """Second moments of the mean h of the labelled tokens, (d, d) each."""

    second: Array  # E h hᵀ
    cross: Array  # E w hᵀ, with the task w


def prompt_moments(law: PromptLaw) -> PromptMoments:
    """Return the second moments of h, as sums over a Gauss–Hermite grid of prompts.

    The sums are the exact means over normal prompts, and no formula of `PromptLaw` is
    used.
    """
    d = law.d
    N = int(law.N)
    # h hᵀ has the degree 4 in each entry of a token, and 2 in each entry of the task
    # and in each noise. Three nodes are exact to degree 5, and two to degree 3.
    grid, weight = layers.hermite_grid([3] * (N * d) + [2] * (d + N))
    normal_tokens, normal_task, normal_noise = np.split(
        grid, [N * d, N * d + d], axis=1
    )
    # Λ and W as matrices. Λq does not matter for h.
    covariance, prior, _ = law.dense.moments
    # With Λ = LLᵀ and normal z, Lz has the law of a token. Tasks are made likewise.
    token_factor = np.linalg.cholesky(covariance)
    task_factor = np.linalg.cholesky(prior)
    tokens = normal_tokens.reshape(-1, N, d) @ token_factor.T
    task = normal_task @ task_factor.T
    # In the subscripts n is the prompt of the grid, i its pair, and d the entry.
    labels = np.einsum("nid,nd->ni", tokens, task) + law.noise * normal_noise
    h = np.einsum("ni,nid->nd", labels, tokens) / N
    return PromptMoments(
        second=(weight[:, None] * h).T @ h,
        cross=(weight[:, None] * task).T @ h,
    )


@identity(
    "linear attention: minimiser",
    f"{AHN.format('Thm 1')}; {ZHANG.format('convergence')}",
    1e-12,
)
def population_loss(quick: bool) -> Errors:
    """L(Γ) = ½ tr Λq(ΓMΓᵀ - 2ΓΛW + W), M = (1 + 1/N)ΛWΛ + (tr ΛW + σ²)Λ/N; minimum at
    WΛM⁻¹, whatever Λq
    """
    rng = np.random.default_rng(0)
    for law in (skewed(N=1, noise=0.5), skewed(N=2, noise=0.0), skewed(N=2, noise=0.8)):
        second, cross = prompt_moments(law)
        # The minimum is where the gradient Λq(Γ E hhᵀ - E whᵀ) vanishes.
        best = np.linalg.solve(second, cross.T).T
        yield np.abs(law.best - best).max() / np.abs(best).max()
        _, prior, query = law.moments  # W and Λq
        # The formula of the loss is compared at five random matrices Γ.
        for gamma in rng.normal(size=(5, 2, 2)):
            # ``errors`` is E (Γh - w)(Γh - w)ᵀ plus an antisymmetric matrix, which
            # drops out of the sum with the symmetric Λq.
            errors = gamma @ second @ gamma.T - 2.0 * gamma @ cross.T + prior
            yield law.loss(gamma), 0.5 * np.sum(query * errors)
    return (
        "d = 2, N = 1, 2, σ = 0, 0.5, 0.8, matrices that do not commute; moments over"
        " all prompts of a grid"
    )


@identity("linear attention: every mode", OURS, 1e-10)
def every_mode(quick: bool) -> Errors:
    """merged: u_aᵀ(Γ - Γ*)v_b shrinks by 1 - ηq_a m_b in each step; stable below
    η = 2/(q_max m_max)
    """
    risk = MergedRisk(
        skewed(N=3, noise=0.4), np.random.default_rng(1).normal(size=(2, 2))
    )
    largest_curvature = float(risk.curvature.max())
    # Descent diverges if the learning rate is above 2 over the largest curvature.
    for relative_rate in (0.3, 1.0, 1.9):
        eta = relative_rate / largest_curvature
        closed_form = risk.closed_form(eta, rule="gd")
        assert closed_form is not None  # it is None only at rates that diverge
        run = descend(risk, eta, steps=300 if quick else 3000)
        # The closed form multiplies each mode by a power of its factor. The run takes
        # single steps with gradients.
        largest_gap = np.abs(closed_form.states(run.t) - run.states).max()
        yield largest_gap / np.abs(run.states).max()
    return "d = 2, matrices that do not commute; rates up to 1.9 of 2; single steps"


def published_drop(d: int, N: int, start: float, time: Array) -> Array:
    """Return the number σ in Γ = σI, by equation 10 of Zhang, Singh, Latham, Saxe 2025.

    It is σ(t) = e^(2√d t)/[(1 + (1 + d)/N)(e^(2√d t) - 1) + √d/w²]. This σ is the
    paper's, and not the label noise: the equation is for Λ = I without noise. ``start``
    is the norm w of v and of A at time 0, and ``time`` is the paper's t, here ηt.
    """
    growth = np.exp(2.0 * math.sqrt(d) * time)
    return growth / ((1.0 + (1.0 + d) / N) * (growth - 1.0) + math.sqrt(d) / start**2)


@identity("linear attention: one drop", STAIRS.format("Eq. 10"), 1e-7)
def one_drop(quick: bool) -> Errors:
    """(v, A), isotropic, balanced, from a layer of the norm w: Γ = σ(t)I with σ(t) =
    e^(2√d t)/ [(1 + (1 + d)/N)(e^(2√d t) - 1) + √d/w²]; with noise and any λ, Γ = γI
    with γ = γ*/(1 + (γ*/γ₀ - 1)e^(-2√d λ²t)): a plateau and one drop, at a rate free of
    N and σ
    """
    start = 1e-3  # the norm both of v and of A, which are therefore balanced
    eta = 0.01  # only the unit of the time: gradient flow depends on ηt alone
    for d, N, noise in ((2, 5, 0.0), (4, 31, 0.0), (8, 30, 0.7)):
        problem = LinearAttention(
            d=d,
            N=N,
            noise=noise,
            coordinates="pair",
            start=start,
            eta=eta,
            above=1e-8,
            method="flow",
        )
        run = problem.simulate()
        # A state is v and the diagonal of A. The entries of the diagonal are equal, so
        # the first is enough: Γ = v A.
        gamma = run.states[:, 0] * run.states[:, 1]
        time = np.asarray(eta * run.t, dtype=float)
        yield gamma, balanced_flow(problem.law(), start, time)
        # The published formula has no noise.
        if noise == 0.0:
            yield gamma, published_drop(d, N, start, time)
    return (
        "d = 2, 4, 8, N = 5, 31, 30, σ = 0, 0, 0.7, from 1e-3; the flow integrated to"
        " 1e-10"
    )


@identity("linear attention: limits", ZHANG.format("Thm 4.1"), 1e-4)
def limits(quick: bool) -> Errors:
    """gradient flow from v = s, A = sΘΘᵀ with ‖ΘΘᵀ‖ = 1, ΘΘᵀΛ ≠ 0 and s²√d‖Γ_Λ‖ < 2
    converges to v = (tr Γ_Λ⁻²)^¼, A = Γ_Λ⁻¹/v with Γ_Λ = (1 + 1/N)Λ + (tr Λ/N)I
    """
    rng = np.random.default_rng(4)
    cases = ((SKEWED, 3),) if quick else ((SKEWED, 3), (MIXED, 10))
    for covariance, N in cases:
        d = len(covariance)
        gamma_of_covariance = (1.0 + 1.0 / N) * covariance  # the theorem's Γ_Λ
        gamma_of_covariance += np.trace(covariance) / N * np.eye(d)
        # The best matrix of a layer is the inverse of Γ_Λ.
        inverse = np.linalg.inv(gamma_of_covariance)
        v_at_end = float(np.sum(inverse**2)) ** 0.25
        spectral_norm = np.linalg.norm(gamma_of_covariance, 2)
        # For s below this number, s²√d‖Γ_Λ‖ is below 2.
        largest_s = math.sqrt(2.0 / (math.sqrt(d) * spectral_norm))
        for s in (0.01 * largest_s, 0.99 * largest_s):
            theta = rng.normal(size=(d, d))
            square = theta @ theta.T  # ΘΘᵀ
            # v, and the entries of A.
            start = s * np.append(1.0, square / np.linalg.norm(square))
            # The zeros are not used: the pullback starts at the pair (v, A).
            merged = MergedRisk(PromptLaw(covariance, N=N), np.zeros((d, d)))
            risk = Pullback(merged, Pair(start, (d, d)))
            # At 1e-13 above the floor, parameters are off their limits by less than
            # 1e-5, and this row allows 1e-4.
            run = descend(
                risk,
                eta=1.0,  # only the unit of the time
                epsilon=risk.floor() + 1e-13,
                method="flow",
                progress=False,
            )
            yield run.params, np.append(v_at_end, inverse / v_at_end)
    dimensions = listed(len(covariance) for covariance, _ in cases)
    lengths = listed(N for _, N in cases)
    return (
        f"d = {dimensions}, covariances with correlation, N = {lengths}, s = 0.01, 0.99"
        " of the largest; random Θ"
    )


@row("linear attention: small starts", bound="1e-9")
def small_starts(quick: bool) -> Claim:
    """(v, A) from a small balanced start converges to the minimum, also under descent
    and with label noise
    """
    starts = (1e-2, 1e-4) if quick else (1e-1, 1e-2, 1e-4, 1e-6)
    target = 1e-9
    base = LinearAttention(d=4, noise=0.5, above=target)
    excesses = []
    for decay, start in itertools.product((0.0, 1.0), starts):
        problem = base.changed(decay=decay, start=start, coordinates="pair")
        spectrum = problem.law().covariance
        N = problem.N
        gamma = problem.gamma(problem.simulate().params)  # the diagonal of Γ, γ_j, (4,)
        # The excess is computed here without formulas of the risk. It is half the sum
        # of λ_j m_j (γ_j - γ*_j)², with the eigenvalues m_j = λ_j/γ*_j of M.
        label_variance = spectrum.sum() + problem.noise**2
        best = 1.0 / ((1.0 + 1.0 / N) * spectrum + label_variance / N)
        excess = 0.5 * float(np.sum(spectrum**2 / best * (gamma - best) ** 2))
        excesses.append(excess)
    return Claim.of(
        # The run ends when its own loss is at the target. The 1 % is a generous
        # allowance for the rounding of that loss.
        max(excesses) <= 1.01 * target,
        f"d = 4, λ_j = 1 and 1/j, σ = 0.5, {len(excesses)} starts down to"
        f" {starts[-1]:g}, stable rate",
        f"largest excess at the end {max(excesses):.1e}, of Γ over ((1 + 1/N)Λ +"
        " (tr Λ + σ²)I/N)⁻¹",
    )


def aligned(d: int, size: float) -> Array:
    """Return one head along each axis, (d, 1 + 2d).

    A row has the value, the key and the query of a head, each of the norm ``size``.
    """
    return size * np.hstack([np.ones((d, 1)), np.eye(d), np.eye(d)])


class Plateaus(NamedTuple):
    """Lengths of plateaus in the time ηt of gradient flow, for n sizes of the start."""

    starts: Array  # sizes of the parameters at step 0, in falling order, (n,)
    pair: Array  # lengths for (v, A), (n,)
    # Lengths for heads with separate keys and queries, aligned with the axes, (n,).
    heads: Array


# The cache lets the row `plateau_lengths` and the question `which_plateau` share the
# runs.
@cache
def plateaus(quick: bool) -> Plateaus:
    """Measure the lengths of plateaus for Λ = I in two dimensions.

    The lengths are compared with those of gradient flow, in its time ηt. Any η will do
    if it is so small that descent follows the flow on the plateau, where parameters
    move slowly.
    """
    starts = np.geomspace(0.1, 2e-3 if quick else 1e-4, 3 if quick else 5)
    pair_eta = 0.02
    heads_eta = 0.1 if quick else 0.02
    pair_plateaus = []
    heads_plateaus = []
    # A plateau ends when the excess has fallen to 0.9 of its initial value. This value
    # is near 1 in these problems, and an excess falls fast after the plateau: a run
    # ends shortly after its plateau, at an excess of 0.1.
    base = LinearAttention(d=2, N=100, above=0.1)
    for start in starts.tolist():
        # The plateau of (v, A) grows like ln(1/start). It has only hundreds of steps,
        # so that single steps ("exact") are cheap.
        pair = base.changed(
            coordinates="pair", start=start, eta=pair_eta, method="exact"
        )
        pair_plateaus.append(pair_eta * _plateau_end(pair))
        # The plateau of heads has up to half a million steps, most of which "fast"
        # skips.
        heads = base.changed(
            coordinates="heads",
            heads=2,
            start=aligned(2, start),
            eta=heads_eta,
            method="fast",
        )
        heads_plateaus.append(heads_eta * _plateau_end(heads))
    return Plateaus(starts, np.array(pair_plateaus), np.array(heads_plateaus))


def _plateau_end(problem: LinearAttention) -> int:
    """Return the step at which the plateau of a run ends."""
    phases = problem.simulate().phases
    assert phases is not None  # runs of this family always have phases
    _, end = phases.plateau
    return int(end)


@row("linear attention: plateau", STAIRS.format("section 3.3"), bound="1; 1")
def plateau_lengths(quick: bool) -> Claim:
    """the plateau grows like ln(1/start)/(η‖ΛqWΛ‖) for (v, A)"""
    starts, pair, heads = plateaus(quick)
    # The statement is for small starts, so the largest start is left out. The slope of
    # the plateau in ln(1/start) should be 1/‖ΛqWΛ‖, and this norm is √2 for Λ = I in two
    # dimensions.
    slope, _ = np.polyfit(np.log(1.0 / starts[1:]), pair[1:], 1)
    relative_slope = float(slope) * math.sqrt(2.0)
    # For λ = 1 the plateau of heads should have the length 1/start in the time ηt. This
    # ratio should then be 1.
    ratio = float(heads[-1] * starts[-1])
    return Claim.of(
        # In the full audit the two numbers are 1.015 and 1.000.
        off([relative_slope, ratio], 1.0) < 0.03,
        f"Λ = I, d = 2, N = 100, starts 0.1 to {starts[-1]:g}",
        f"(v, A): slope in ln(1/start) {relative_slope:.3f} of it; heads with separate"
        f" keys and queries: {ratio:.3f} of 1/(ηλ² start)",
        "holds for (v, A); with separate keys and queries it grows like 1/start",
    )


@question("linear-attention-plateau", "1 / start", "plateau, ηt")
def which_plateau(quick: bool) -> tuple[str, list[Series]]:
    """Does the plateau grow like ln(1/start)?"""
    starts, pair, heads = plateaus(quick)
    inverse_starts = 1.0 / starts
    # Between the last two starts ln(1/start) grows like a small power of 1/start, with
    # an exponent near 1/ln(1/start) ~ 0.1, and 1/start itself has the exponent 1. The
    # bounds are between these exponents.
    pair_exponent = power(inverse_starts[-2:], pair[-2:])
    heads_exponent = power(inverse_starts[-2:], heads[-2:])
    conclusion = "These runs do not decide it"
    if pair_exponent < 0.3 and heads_exponent > 0.9:
        conclusion = "Only with keys and queries merged"
    return (
        f"{conclusion}: from start {starts[-2]:.2g} to {starts[-1]:.2g} it grows like"
        f" start^-{pair_exponent:.2f} for (v, A), ηt = ln(1/start)/√2 + const, and like"
        f" start^-{heads_exponent:.2f} for heads with separate keys and queries, whose"
        " product of three small numbers leaves the saddle in a time 1/(ηλ² start)"
        " (Λ = I, d = 2, N = 100).",
        [
            Series("(v, A)", inverse_starts, pair, points=True),
            Series("heads", inverse_starts, heads, points=True),
            Series(
                "ln(1/start)/√2",
                inverse_starts,
                np.log(inverse_starts) / math.sqrt(2.0),
            ),
            Series("1/start", inverse_starts, inverse_starts),
        ],
    )


@row("linear attention: staircase", STAIRS.format("Eqs. 20, 21"), bound="flow; all")
def staircase(quick: bool) -> Claim:
    """heads learn one direction of Λ after the other, the largest eigenvalue first;
    head j, alone along its direction, follows s' = λ(λ - ms³)s²
    """
    # A smaller start follows the formula more closely, but its plateaus have a length
    # of about 1/start.
    start = 0.05 if quick else 0.02
    base = LinearAttention(
        d=3, decay=1.0, N=50, above=1e-4, method="exact", coordinates="heads", heads=3
    )
    # Each head is alone along its axis, which is an eigenvector of Λ.
    alone = base.changed(eta=0.05, start=aligned(3, start))
    law = alone.law()
    expected_times = []
    for eigenvalue, m, best in zip(law.covariance, law.second, law.best, strict=True):
        # Along direction j, Γ_j = s³ for a head whose value, key and query have the
        # size s. The time until Γ_j is half of Γ*_j is the integral of ds/s'. The
        # number of points is generous for a smooth integrand.
        s = np.linspace(start, (0.5 * best) ** (1 / 3), 200_001)
        speed = eigenvalue * (eigenvalue - m * s**3) * s**2
        expected_times.append(np.trapezoid(1.0 / speed, s))
    # A time ηt over the learning rate η is a number of steps.
    expected_steps = np.array(expected_times) / alone.rate()
    largest_error = off(_half_times(alone), expected_steps)
    seeds = range(2 if quick else 8)
    number_in_order = 0
    for seed in seeds:
        # For random heads only the order of the times matters, so η may be larger.
        random_heads = base.changed(start=start, seed=seed, eta=0.2 if quick else 0.1)
        is_in_order = bool((np.diff(_half_times(random_heads)) >= 0.0).all())
        if is_in_order:
            number_in_order += 1
    return Claim.of(
        # Descent with this η is less than 1 % slower than the flow.
        largest_error < 0.01 and number_in_order == len(seeds),
        f"d = H = 3, λ_j = 1/j, start {start:g}, aligned, and random of"
        f" {len(seeds)} seeds; steps to half of Γ*_j",
        f"aligned: times off by at most {largest_error:.1%}; random:"
        f" {number_in_order} of {len(seeds)} in order",
    )


def _half_times(problem: LinearAttention) -> Array:
    """Return the steps at which Γ_j, a diagonal entry of Γ, reaches half of Γ*_j.

    A step is infinite if Γ_j stays below this half.
    """
    run = problem.simulate()
    steps = []
    for j, half in enumerate(0.5 * problem.law().best):
        step = _first_step(run, j, half)
        steps.append(math.inf if step is None else step)
    return np.array(steps)


def _first_step(run: Trajectory, j: int, least: float) -> int | None:
    """Return the first step at which Γ_j is at least ``least``; None if it never is."""
    return run.first(lambda state: bool(state.observed["gamma"][j] >= least))


class Shift(NamedTuple):
    """A change of the law of the prompts after training."""

    kind: str  # the paper's word: a shift of the query, the task or the covariates
    parameters: dict[str, Any]  # the changed parameters of `LinearAttention`


# Shifts of the law of training, in d = 8 dimensions. Each changes the law in one
# respect, after which it is named. Second moments are given by their diagonals.
SHIFTED = {
    "queries": Shift("query", {"query": np.arange(1.0, 9.0)}),
    "W": Shift("task", {"prior": 1.0 / np.arange(1.0, 9.0)}),
    "noise": Shift("task", {"noise": 2.0}),
    "covariance": Shift("covariate", {"decay": 2.0}),
}


def shifted(lengths: Iterable[int]) -> dict[str, Array]:
    """Return the excess after each shift, divided by the least loss.

    The best matrix of the law of training is tested on the shifted law. Each array has
    an entry for each length of prompts.
    """
    shares = []  # a row for each length N, with a share for each shift
    for N in lengths:
        base = LinearAttention(d=8, decay=1.0, N=N, noise=0.5)
        problems = {"base": base}
        for name, shift in SHIFTED.items():
            problems[name] = base.changed(**shift.parameters)
        table = shift_table(problems)
        # The first row is for training on the base. The first entry, for tests on the
        # base itself, is zero and is left out.
        trained_on_base = table.excess[0] / table.floor
        shares.append(trained_on_base[1:])
    return dict(zip(SHIFTED, np.transpose(shares), strict=True))


@row("linear attention: shifts", ZHANG.format("section 4.2"), Status.EXACT, "-> 0; not")
def shifts(quick: bool) -> Claim:
    """shifts of the task and of the query are tolerated in long prompts, shifts of the
    tokens' covariance are not
    """
    lengths = (20, 2000, 200_000)
    # Shares below this one are rounding errors. After a shift of the query alone, the
    # excess is exactly zero.
    rounding = 1e-12
    shares = shifted(lengths)
    are_tolerated = True
    phrases = []
    for name, shares_of_lengths in shares.items():
        kind = SHIFTED[name].kind
        if kind != "covariate":
            is_falling = bool((np.diff(shares_of_lengths) <= rounding).all())
            # In long prompts a share falls like 1/N or faster. At the largest N it is
            # at most 1.1e-4.
            is_small = shares_of_lengths[-1] < 1e-3
            are_tolerated = are_tolerated and is_small and is_falling
        percent = 100.0 * np.where(shares_of_lengths < rounding, 0.0, shares_of_lengths)
        phrases.append(f"{kind} ({name}) {listed(percent, '.3g')} %")
    query_is_free = shares["queries"].max() < rounding
    # A tenth of the least loss is far above the tolerated shares in the longest prompts.
    covariance_matters = min(shares["covariance"]) > 0.1
    return Claim.of(
        are_tolerated and query_is_free and covariance_matters,
        "d = 8, λ_j = 1/j -> j^-2, σ = 0.5 -> 2, W = I -> diag(1/j), Λq -> diag(j);"
        f" N = {listed(lengths, ',')}",
        f"excess over the least loss, in shares of it: {'; '.join(phrases)}",
    )


@row(
    "linear attention: task diversity",
    "Raventós et al. 2023; Lu et al. 2024",
    bound="0.25, 0, 0",
)
def transition(quick: bool) -> Claim:
    """trained on k tasks it memorises them below k ≈ d and learns in context above"""
    d, draws = (32, 4) if quick else (64, 10)
    limit_error, new_ratios, shares, kink = memorised(d, draws)
    # The bounds are cautious. At d = 64 the ratios are 13 or more for few tasks, and at
    # most 1.06 for many. The shares are at most 0.30 for few tasks, and at least 0.97
    # for many.
    learns = all(
        ratio.few_tasks > 10.0 and 1.0 < ratio.many_tasks < 1.1 for ratio in new_ratios
    )
    memorises = all(
        share.few_tasks < 0.4 and 0.9 < share.many_tasks < 1.0 for share in shares
    )
    new_phrase = " and ".join(
        f"{ratio.few_tasks:.0f} ... {ratio.many_tasks:.2f}" for ratio in new_ratios
    )
    share_phrase = " and ".join(
        f"{share.few_tasks:.2f} ... {share.many_tasks:.2f}" for share in shares
    )
    # In long prompts the new loss/d is (1 - k/d)/2 for k < d, and 0 for larger k.
    has_kink = apart(kink, (0.25, 0.0, 0.0)) < 1e-3
    return Claim.of(
        # At d = 64 the losses are off their limit by up to 5.5 %, and in fewer
        # dimensions by more.
        limit_error < 0.1 and has_kink and learns and memorises,
        f"d = {d}, N = 4d, 64d, σ = 0.5, k/d = 1/4..8; and the limit of long prompts",
        f"loss on new tasks over that on the k tasks {new_phrase} at k/d = 1/4 ... 8,"
        " loss on the k tasks over that of the layer for all tasks"
        f" {share_phrase}; both off the limit d, k, N -> ∞ by at most"
        f" {limit_error:.0%}; N/d -> ∞: new loss/d {listed(kink, '.3f')} at k/d ="
        " 1/2, 1, 2",
        "holds: (1 - k/d)/2 below k = d in long prompts, a smooth crossover in short"
        " ones",
    )


class FewAndMany(NamedTuple):
    """A quotient of two losses after training on few tasks and on many."""

    few_tasks: float  # k = d/4
    many_tasks: float  # k = 8d


class Memorised(NamedTuple):
    """Losses of the best matrix for k tasks; lists have an entry for each N."""

    limit_error: float  # largest relative distance from the limit of many dimensions
    new_ratios: list[FewAndMany]  # loss on new tasks over the loss on the k tasks
    shares: list[FewAndMany]  # loss on the k tasks over the least loss for all tasks
    kink: Array  # loss on new tasks over d, in long prompts, at k/d = 1/2, 1, 2


def memorised(d: int, draws: int) -> Memorised:
    """Measure the losses of the best matrix for k = d/4 to 8d tasks.

    ``draws`` is the number of draws of the tasks, over which losses are averaged.
    """
    limit_error = 0.0
    new_ratios = list[FewAndMany]()
    shares = list[FewAndMany]()
    ratios = np.array([0.25, 0.5, 1.0, 2.0, 8.0])  # k/d
    task_counts = (ratios * d).astype(int).tolist()  # k
    noise = 0.5
    for N in (4 * d, 64 * d):
        problem = LinearAttention(d=d, N=N, noise=noise)
        means = task_diversity(problem, task_counts, draws=draws).mean()
        limit = diversity_limit(d, N, noise, ratios)
        limit_error = max(
            limit_error,
            off(means.pretraining, limit.pretraining),
            off(means.new, limit.new),
        )
        new_ratio = means.new / means.pretraining
        new_ratios.append(FewAndMany(new_ratio[0], new_ratio[-1]))
        share = means.pretraining / problem.law().floor
        shares.append(FewAndMany(share[0], share[-1]))
    # Prompts of 1e9 pairs stand for the limit of long prompts.
    kink_ratios = np.array([0.5, 1.0, 2.0])
    long_prompts = diversity_limit(d, N=1e9, noise=0.0, ratio=kink_ratios)
    return Memorised(limit_error, new_ratios, shares, long_prompts.new / d)


@row(
    "linear attention: finitely many prompts",
    "Lu et al. 2024 (reconstructed)",
    bound="peak at n = d²",
)
def double_descent(quick: bool) -> Claim:
    """trained to the end on n prompts, the loss on new tasks peaks at n = d², and is
    near its limit elsewhere
    """
    d = 8 if quick else 16
    draws = 10 if quick else 20
    relative_counts = [0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0]  # n/d²
    if quick:
        relative_counts = [0.5, 1.0, 4.0]
    counts = [round(relative * d * d) for relative in relative_counts]  # n
    median_losses = []
    limit_losses = []
    # Training on all tasks (None), and on k = d/2 tasks.
    for tasks in (None, d // 2):
        problem = LinearAttention(d=d, N=4 * d, noise=0.5, tasks=tasks)
        median_losses.append([_median_loss(problem, n, draws) / d for n in counts])
        limit_losses.append(pretraining_limit(problem, counts).new / d)
    # At the peak n = d² the limit is infinite. "Elsewhere" is tested at n = d²/2 and at
    # the largest n. In few dimensions, as in a quick audit, losses are farther from the
    # limit, and the bound is wider.
    half = relative_counts.index(0.5)
    loss_ratios = np.array(median_losses) / limit_losses
    distance = apart(loss_ratios[:, [half, -1]], 1.0)
    peaks = [counts[int(np.argmax(losses_of_n))] for losses_of_n in median_losses]
    on_all_tasks, on_few_tasks = median_losses
    limit_on_all_tasks, limit_on_few_tasks = limit_losses
    return Claim.of(
        peaks == [d * d, d * d] and distance < (0.5 if quick else 0.2),
        f"d = {d}, N = 4d, σ = 0.5, all tasks and k = d/2, n/d² ="
        f" {listed(relative_counts, 'g')}, median of {draws}",
        f"new loss/d {listed(on_all_tasks, '.2f')} and {listed(on_few_tasks, '.2f')};"
        f" limit {listed(limit_on_all_tasks, '.2f')} and"
        f" {listed(limit_on_few_tasks, '.2f')}",
    )


def _median_loss(problem: LinearAttention, prompts: int, draws: int) -> float:
    """Return the median loss on new tasks after fits to ``prompts`` prompts.

    The median is over ``draws`` draws of these prompts.
    """
    new_law = problem.new_tasks()
    new_losses = []
    for seed in range(draws):
        gamma = pretrained(problem, prompts, seed)
        new_losses.append(new_law.loss(gamma))
    return float(np.median(new_losses))


class BestLosses(NamedTuple):
    """Least losses of D layers, divided by the dimension, with an entry for each D.

    Each layer is a step of gradient descent on the prompt, with a trained length.
    """

    loop: Array  # losses of layers in a loop, which share one step length
    own: Array  # losses of layers that each have a step length of their own


def best_losses(N: int, depths: Iterable[int]) -> BestLosses:
    """Return least losses of D layers for Λ = I in d = 8 dimensions, without noise."""
    d = 8
    loop = []
    own = []
    for D in depths:
        loop.append(LoopedRisk(d, N, D).floor() / d)
        own.append(best_layers(d, N, D).loss / d)
    return BestLosses(np.array(loop), np.array(own))


@row(
    "linear attention: depth",
    f"{AHN.format('several layers')}; von Oswald et al. 2023",
    bound="falls",
)
def depth(quick: bool) -> Claim:
    """each layer is a step of gradient descent on the prompt, and more layers reach a
    lower loss
    """
    depths = (1, 2, 4, 8) if quick else (1, 2, 4, 8, 16)
    loop, own = best_losses(N=20, depths=depths)
    batches = 10 if quick else 25
    # Losses of deeper loops have rare, large values, so that means over batches are not
    # normal. The test by standard errors below needs normal means.
    sampled_depths = (2, 4)
    sampled = []
    for D in sampled_depths:
        problem = LinearAttention(d=8, N=20, depth=D)
        trainer = problem.sampled(1600 if quick else 4000, seed=D)
        # The losses of the best layers on each batch of prompts.
        sampled.append(losses(trainer, LoopedRisk(d=8, N=20, depth=D).best, batches))
    sampled_per_dimension = np.transpose(sampled) / 8  # (batches, 2)
    expected = [loop[depths.index(D)] for D in sampled_depths]
    # Distances of the means over batches from the expected losses, in standard errors.
    z = float(deviations(sampled_per_dimension, expected).max())
    is_falling = bool((np.diff(loop) < 0.0).all())
    # For a single layer both losses are the same, up to rounding.
    is_own_lower = bool((own <= loop * (1 + 1e-12)).all())
    return Claim.of(
        # A normal mean is almost never 5 standard errors off.
        is_falling and z < 5.0 and is_own_lower,
        f"Λ = I, d = 8, N = 20, D = {listed(depths)}; D = 2, 4 against sampled layers",
        f"best loss/d in a loop {listed(loop, '.3g')}; of layers of their own"
        f" {listed(own, '.2g')}; largest |z| {z:.1f}",
    )


@question("linear-attention-depth", "layers", "least loss / d")
def what_depth_buys(quick: bool) -> tuple[str, list[Series]]:
    """What does depth buy?"""
    depths = np.arange(1, 9 if quick else 17)
    phrases = []
    loops = []
    own_layers = []
    for N in (20, 80):
        loop, own = best_losses(N, depths.tolist())
        phrases.append(
            f"N = {N}: {loop[0]:.3g} of one layer, {loop[-1]:.2g} of {depths[-1]} in a"
            f" loop, {own[-1]:.1g} of {depths[-1]} layers of their own"
        )
        loops.append(Series(f"loop, N = {N}", depths, loop, points=True))
        own_layers.append(Series(f"own, N = {N}", depths, own, points=False))
    answer = (
        f"{'; '.join(phrases)} (least loss/d, Λ = I, d = 8, no noise). A loop repeats"
        " one step of gradient descent; layers of their own are the best polynomial of"
        " their degree, as Chebyshev's method is."
    )
    return answer, loops + own_layers


class Directions(NamedTuple):
    """The directions of fixed points: T = Λq^½Γ*M^½ is the sum of σ_j u_j v_jᵀ.

    At a fixed point one head is along each direction of a set S. Its key and query are
    rows of ``keys`` and ``queries``. See docs/linear-attention-theory.md, "Heads".
    """

    sigma: Array  # the singular values σ_j of T, in falling order, (d,)
    queries: Array  # rows √σ_j u_jᵀ Λq^-½, (d, d)
    keys: Array  # rows √σ_j v_jᵀ M^-½, (d, d); Γ* is queriesᵀ keys


def directions(law: PromptLaw) -> Directions:
    """Return the directions of a law, without formulas of the risk."""
    covariance, prior, query = law.dense.moments  # Λ, W and Λq, (d, d) each
    second = law.dense.second  # M, (d, d)
    query_root = np.asarray(sqrtm(query))
    second_root = np.asarray(sqrtm(second))
    best = prior @ covariance @ np.linalg.inv(second)
    U, sigma, V_transposed = np.linalg.svd(query_root @ best @ second_root)
    queries = np.linalg.solve(query_root, U * np.sqrt(sigma)).T
    keys = np.linalg.solve(second_root, V_transposed.T * np.sqrt(sigma)).T
    return Directions(sigma, queries, keys)


@identity(
    "linear attention: separate fixed points", STAIRS.format("Eqs. 15 to 19"), 1e-10
)
def fixed_points(quick: bool) -> Errors:
    """the fixed points of heads of rank one are exactly 2^d matrices Γ, one for each
    set S of directions; the excess is ½Σ_{j∉S} σ_j²; for W = I, Λq = Λ they are
    Σ_{j∈S} λ_j⁻¹(1 + (1 + (tr Λ + σ²)/λ_j)/N)⁻¹e_je_jᵀ with the loss
    ½[tr Λ - Σ_{j∈S} λ_j/(1 + (1 + (tr Λ + σ²)/λ_j)/N)]
    """
    spectrum = np.array([1.0, 0.5, 0.3])
    for law in (PromptLaw(spectrum, N=10, noise=0.5), mixed_law()):
        sigma, queries, keys = directions(law)
        # The zeros are not used: a pullback starts at the given heads.
        merged = MergedRisk(law.dense, np.zeros((3, 3)))
        for in_subset in _subsets(3):
            # A row is the value, the key and the query of a head. Heads of the
            # directions outside of the subset are zero.
            used_keys = in_subset[:, None] * keys
            used_queries = in_subset[:, None] * queries
            heads = np.column_stack([in_subset, used_keys, used_queries])
            risk = Pullback(merged, Heads(heads, 3))
            loss, gradient = risk.evaluate(risk.initial)
            # At a fixed point the gradient is zero.
            yield np.abs(gradient).max()
            yield apart(loss - law.floor, 0.5 * float((1.0 - in_subset) @ sigma**2))
            if law.diagonal:
                # The published formulas, for W = I and Λq = Λ.
                label_variance = spectrum.sum() + law.noise**2
                # In a learnt direction Γ is 1/λ_j times this factor below 1.
                shrinkage = 1.0 / (1.0 + (1.0 + label_variance / spectrum) / law.N)
                gamma = risk.map.inward(risk.initial)
                yield apart(gamma, np.diag(in_subset * shrinkage / spectrum))
                explained = in_subset @ (spectrum * shrinkage)
                yield apart(loss, 0.5 * float(spectrum.sum() - explained))
        yield from _distances_from_levels(merged, sigma, 3 if quick else 20)
    return (
        "d = 3, diagonal and not commuting, all subsets; and roots of the gradient"
        " found from random heads"
    )


def _subsets(d: int) -> Iterator[Array]:
    """Yield the indicators of all subsets of d directions, (d,), of zeros and ones."""
    for indicator in itertools.product((0.0, 1.0), repeat=d):
        yield np.array(indicator)


def _distances_from_levels(
    merged: MergedRisk, sigma: Array, starts: int
) -> list[float]:
    """Find roots of the gradient from random heads, and compare them with the levels.

    ``starts`` is the number of searches. The levels are the excesses ½Σ_{j∈S} σ_j² for
    all sets S of directions that are not learnt. Return the distance of the excess of
    each root from the nearest level, or infinity if no search finds a root.
    """
    d = len(sigma)
    rng = np.random.default_rng(0)
    level_excesses = np.array(
        [0.5 * float(indicator @ sigma**2) for indicator in _subsets(d)]
    )
    distances = []
    for _ in range(starts):
        heads = rng.normal(0.0, HEAD_SIZE, (d, 1 + 2 * d))
        gamma = _root_of_gradient(Pullback(merged, Heads(heads, d)))
        if gamma is not None:
            gaps = np.abs(level_excesses - merged.excess(gamma))
            distances.append(float(gaps.min()))
    # Without any root the row has tested nothing, and must fail.
    return distances or [math.inf]


def _root_of_gradient(risk: Pullback) -> Array | None:
    """Return Γ at a root of the gradient, or None if the search ends elsewhere.

    The search begins at the initial parameters of the risk.
    """
    shape = risk.initial.shape

    def flat_gradient(flat: Array) -> Array:
        """Return the gradient as a vector, for parameters as a vector."""
        _, gradient = risk.evaluate(flat.reshape(shape))
        return gradient.ravel()

    # With these tolerances the search goes on until rounding stops it. A root takes
    # tens of evaluations, so that 300 are enough.
    root = least_squares(
        flat_gradient,
        risk.initial.ravel(),
        xtol=1e-15,
        ftol=1e-15,
        gtol=1e-15,
        max_nfev=300,
    )
    # The cost is half the squared norm of the gradient. A cost above 1e-24 means a norm
    # above 1e-12, which is more than rounding. Such an end is a minimum of the norm, at
    # which descent does not rest.
    if root.cost >= 1e-24:
        return None
    return np.asarray(risk.map.inward(root.x.reshape(shape)))


@row("linear attention: merged fixed points", STAIRS.format("Eq. 9"), bound="0; 0")
def merged_fixed_points(quick: bool) -> Claim:
    """at the fixed points of heads with merged keys and queries Γ is zero or minimises
    the loss
    """
    law = mixed_law().dense
    # The zeros are not used: a pullback starts at the given heads.
    merged = MergedRisk(law, np.zeros((3, 3)))
    rng = np.random.default_rng(0)
    starts = 3 if quick else 20
    distances = []
    for _ in range(starts):
        # A row is a value v_h and the nine entries of a matrix A_h: Γ = Σ v_h A_h.
        heads = MergedHeads(rng.normal(0.0, HEAD_SIZE, (3, 10)), 3)
        gamma = _root_of_gradient(Pullback(merged, heads))
        if gamma is not None:
            # The distance from zero or from the best Γ, whichever is nearer.
            distances.append(min(np.abs(gamma).max(), apart(gamma, law.best)))
    # If all values are zero, so is Γ, and only the values have a gradient, ⟨G, A_h⟩
    # with the gradient G with respect to Γ. If the component along G is removed from
    # random A_h, the gradient of the values vanishes, too.
    _, gradient_at_zero = merged.evaluate(np.zeros((3, 3)))
    G = gradient_at_zero.ravel()
    A = rng.normal(size=(3, 9))
    A -= np.multiply.outer(A @ G / (G @ G), G)
    heads = MergedHeads(np.column_stack([np.zeros(3), A]), 3)
    _, gradient = Pullback(merged, heads).evaluate(heads.start)
    largest_slope = np.abs(gradient).max()
    return Claim.of(
        # Without any root the row has tested nothing, and fails. In the full audit
        # roots are off by 1e-13.
        max(distances, default=math.inf) < 1e-6 and largest_slope < 1e-12,
        "d = H = 3, matrices that do not commute; roots of the gradient found from"
        f" {starts} random heads, and heads with values of zero",
        # Rounding decides which starts lead to a root, so their number is not printed.
        f"roots off by at most {decade(max(distances, default=math.inf))}; slopes at"
        " values of zero with A_h orthogonal to the gradient of Γ below"
        f" {decade(largest_slope)}",
        "holds only for Γ, not for the list of parameters; with Γ = 0 and all values"
        " zero, every A_h orthogonal to the gradient of Γ gives a fixed point, and"
        " equation 9a lists the origin alone",
    )


@row("linear attention: levels", STAIRS.format("Eq. 19"), bound="0")
def levels(quick: bool) -> Claim:
    """from small starts the loss rests in turn at levels ½Σ_{j>k} σ_j² above its floor,
    with k = 0, 1, 2 learnt directions
    """
    distances = []
    # Sizes of the random heads at step 0, in falling order.
    starts = (0.04, 0.015) if quick else (0.03, 0.01, 0.003)
    base = LinearAttention(
        d=3,
        decay=1.0,
        N=20,
        coordinates="heads",
        heads=3,
        eta=0.2 if quick else 0.1,
        above=1e-4,
        method="fast",
    )
    for start in starts:
        run = base.changed(start=start).simulate()
        excess = run.observed["excess"]
        # `rank_excess` is the level with k learnt directions, ½Σ_{j>k} σ_j².
        level_distances = [
            _distance_from_level(run.t, excess, base.law().rank_excess(k))
            for k in range(3)
        ]
        distances.append(max(level_distances))
    # The smaller the start, the nearer the loss comes to the levels.
    return Claim.of(
        # In the full audit the distances are 2e-4 or less, and fall to 1e-7.
        max(distances) < 1e-3 and distances[-1] < 0.1 * distances[0],
        f"d = H = 3, λ_j = 1/j, N = 20, random heads of size {listed(starts)}",
        "where it falls slowest near the levels the excess is off by at most"
        f" {listed(distances, '.0e')} of them",
    )


def _distance_from_level(t: Any, excess: Array, level: float) -> float:
    """Return the relative distance between a level and the slowest excess near it.

    The slowest excess is the one that falls most slowly. ``t`` has the steps of the
    saved states, and ``excess`` their losses above the floor.
    """
    slowest = _slowest_near_level(t, excess, level)
    return abs(float(excess[slowest]) / level - 1.0)


def _slowest_near_level(t: Any, excess: Array, level: float) -> int:
    """Among the states near a level, find the one with the slowest fall of the excess.

    Return the index of this state. An excess is near a level if the two differ by at
    most about 20 %. In the rows that use this function, neighbouring levels differ by a
    factor of more than 2, so that a state is near one level only.
    """
    # Fall i goes from state i to state i + 1, and state i + 1 must be near the level.
    falls = np.flatnonzero(np.abs(np.log(excess[1:] / level)) < 0.2)
    rates = (excess[falls] - excess[falls + 1]) / (t[falls + 1] - t[falls])
    return int(falls[np.argmin(rates)]) + 1


@row("linear attention: early stopping", STAIRS.format("section 4"), bound="-> 0")
def early_stopping(quick: bool) -> Claim:
    """stopped on the plateau with m learnt directions, the layer predicts like
    regression on the first m principal components
    """
    lengths = (30, 300) if quick else (30, 300, 3000)
    start = 0.05 if quick else 1e-3
    base = LinearAttention(
        d=3,
        decay=1.0,
        coordinates="heads",
        heads=3,
        eta=0.2 if quick else 0.1,
        start=start,
        above=1e-4,
        method="fast",
    )
    gaps = np.array([_gaps_to_component_regression(base, N) for N in lengths])
    largest_gaps = gaps.max(axis=1)
    exponent = power(lengths, largest_gaps)
    # The predictions differ by terms of the order 1/N, so that the gap, a mean square,
    # falls like N^-2. The larger start of a quick audit adds to the gap, and the bound
    # on the exponent allows for this.
    return Claim.of(
        exponent < -0.9,
        f"d = H = 3, λ_j = 1/j, N = {listed(lengths)}, heads from {start:g}, stopped"
        " where the loss falls slowest; mean squared gap between both predictions over"
        " the mean square of the regression's",
        f"largest gap of m = 1, 2 {listed(largest_gaps, '.2g')}, like N^{exponent:.2f}",
        "holds; the shorter the prompts, the more the layer shrinks the components",
    )


def _gaps_to_component_regression(base: LinearAttention, N: int) -> list[float]:
    """Return the gaps for one and two learnt directions, for prompts of N pairs.

    A gap is the mean squared difference between the predictions xᵀΓh of the layer and
    of the regression, divided by the mean square of the regression's prediction.
    Regression on the first m principal components has the diagonal matrix Γ with the
    entries 1/λ_j for j <= m, and 0 for j > m.
    """
    problem = base.changed(N=N)
    law = problem.law()
    run = problem.simulate()
    excess = run.observed["excess"]
    gaps = []
    for m in (1, 2):
        # Training stops on the plateau with m learnt directions, where the loss falls
        # slowest.
        stop = _slowest_near_level(run.t, excess, law.rank_excess(m))
        is_component = np.arange(law.d) < m
        regression = np.diag(np.where(is_component, 1.0 / law.covariance, 0.0))
        difference = problem.gamma(run.states[stop]) - regression
        # E (xᵀDh)² = Σ λ_i D_ij² M_j for a matrix D, as Λ and M are diagonal here.
        weights = np.multiply.outer(law.covariance, law.second)
        square_gap = np.sum(weights * difference**2)
        gaps.append(float(square_gap / np.sum(weights * regression**2)))
    return gaps


def times_at_levels(problem: LinearAttention, start: float) -> Array:
    """Return the time ηt that the loss spends near each level, (d,).

    The level m is the excess with m learnt directions, for m = 0 to d - 1. The loss is
    near this level if it is within a tenth of the distance to the next level, above or
    below it. The level m = 0 has no level above it, and the time there begins with the
    run.
    """
    law = problem.law()
    # The last level, m = d, is the floor.
    level_excesses = np.array([law.rank_excess(m) for m in range(law.d + 1)])
    # The run may end as soon as it has left the last plateau, which is at the level
    # m = d - 1. Half of this level will do. The run needs no phases, so that `descend`
    # is enough, without `simulate`.
    run = descend(
        problem.changed(start=start).risk(),
        problem.rate(),
        above=0.5 * level_excesses[-2],
        method="flow",
    )
    distances = -np.diff(level_excesses)
    # The excesses between which the loss is near each level. The level m = 0 has no
    # upper end.
    lower_ends = level_excesses[:-1] - 0.1 * distances
    upper_ends = level_excesses[1:-1] + 0.1 * distances[:-1]

    def time_of(excess: Array) -> Array:
        """Return the times at which the run has these excesses, by interpolation."""
        # np.interp needs increasing abscissae, and the excess falls; hence the sign.
        return np.interp(-np.log(excess), -np.log(run.observed["excess"]), run.t)

    entry_times = np.append(0.0, time_of(upper_ends))
    # `time_of` returns times in steps. The factor η turns them into ηt.
    return problem.rate() * (time_of(lower_ends) - entry_times)


# Sizes of random heads at step 0, the larger first. The program that is published with
# the paper starts at a size between 0.002 and 0.0005. A quick audit takes larger
# starts, from which plateaus are shorter.
RANK_STARTS = (0.002, 0.0005)
QUICK_RANK_STARTS = (0.05, 0.025)


def rests_of_rank(d: int, rank: int, starts: tuple[float, float], seeds: int) -> Array:
    """Return the times of `times_at_levels` for two starts, (2, d).

    The times are medians over ``seeds`` draws of random heads. The eigenvalues and the
    number of heads are those of the program that is published with the paper.
    """
    eigenvalues = np.arange(d, 0.0, -1.0)
    problem = LinearAttention(
        covariance=eigenvalues / eigenvalues.sum(),
        N=31,
        coordinates="heads",
        heads=d + 1,
        rank=rank,
    )
    medians = []
    for start in starts:
        times = [
            times_at_levels(problem.changed(seed=seed), start) for seed in range(seeds)
        ]
        medians.append(np.median(times, axis=0))
    return np.array(medians)


@row("linear attention: rank of heads", STAIRS.format("section 5"), bound="1; 0")
def rank_of_heads(quick: bool) -> Claim:
    """heads of rank R have conspicuous plateaus only at levels of m directions with m
    divisible by R: the time there grows like 1/start, and at the levels between it is
    brief
    """
    d = 3 if quick else 8
    ranks = (2,) if quick else (2, 4)
    seeds = 1 if quick else 5
    starts = QUICK_RANK_STARTS if quick else RANK_STARTS
    phrases = []
    plateau_exponents = list[float]()
    times_between = list[float]()
    for rank in ranks:
        from_large_start, from_small_start = rests_of_rank(d, rank, starts, seeds)
        for m in range(d):
            # How many directions the head that is learning has learnt already.
            directions_of_head = m % rank
            if directions_of_head == 0:
                # This level is a plateau. The time on it is compared between the two
                # starts.
                times = (from_large_start[m], from_small_start[m])
                plateau_exponents.append(power(starts, times))
            else:
                # This level is between two plateaus. Divide the time at this level by
                # the time on the plateau before it.
                plateau = from_small_start[m - directions_of_head]
                times_between.append(from_small_start[m] / plateau)
        phrases.append(f"R = {rank}: {listed(from_small_start, '.0f')}")
    largest_exponent = max(plateau_exponents)
    # Cautious bounds on a growth like 1/start, and on "brief". In the full audit the
    # exponents are -0.8 or less, and the time at a level between plateaus is at most
    # 0.03 of the time on the plateau before.
    return Claim.of(
        largest_exponent < -0.75 and max(times_between) < 0.15,
        f"d = {d}, λ_j = ({d + 1} - j)/{d * (d + 1) // 2}, {d + 1} heads, N = 31,"
        f" {seeds} random starts of size {listed(starts)}, medians",
        f"ηt within a tenth of the level of m = 0, 1, ... from {starts[1]}:"
        f" {'; '.join(phrases)}; at multiples of R like"
        f" start^{min(plateau_exponents):.1f}..{largest_exponent:.1f}, between at most"
        f" {max(times_between):.2f} of the plateau before",
    )


@identity(
    "linear attention: cubic features",
    STAIRS.format("Eqs. 6, 7, 12, 13"),
    1e-12,
)
def cubic_features(quick: bool) -> Errors:
    """on the features z = vec(hxᵀ) of a prompt, the layer is a linear network:
    W₂W₁z with merged keys and queries, Σ v_i q_iᵀK_i z with separate ones of rank one,
    where K_i is a convolution with the key as kernel
    """
    rng = np.random.default_rng(0)
    d = 3
    H = 4
    N = 10
    tokens = rng.normal(size=(N, d))
    labels = rng.normal(size=N)
    query = rng.normal(size=d)
    h = labels @ tokens / N
    # vec stacks columns, and column j of h xᵀ is h x_j.
    features = np.concatenate([h * x for x in query])
    values = rng.normal(size=H)

    # Merged: the rows of W₁ are the vectors vec(U_i), and W₂ holds the values.
    matrices = rng.normal(size=(H, d, d))
    first_layer = np.array([matrix.T.ravel() for matrix in matrices])
    yield (
        np.array([attention_output(tokens, labels, query, values, matrices)]),
        np.array([values @ first_layer @ features]),
    )

    # Separate: U_i = k_i q_iᵀ. Row j of K_i has the key in the columns that multiply the
    # part h x_j of z, and zeros elsewhere.
    keys = rng.normal(size=(H, d))
    queries = rng.normal(size=(H, d))
    network = 0.0
    for value, key, query_weights in zip(values, keys, queries, strict=True):
        convolution = np.kron(np.eye(d), key)
        network += value * query_weights @ convolution @ features
    matrices = keys[:, :, None] * queries[:, None, :]
    yield (
        np.array([attention_output(tokens, labels, query, values, matrices)]),
        np.array([network]),
    )
    return (
        f"d = {d}, H = {H}, N = {N}, random weights; the layer as a product of matrices"
    )


def attention_output(
    tokens: Array, labels: Array, query: Array, values: Array, matrices: Array
) -> float:
    """Return the last entry of Σ W_V X Xᵀ W_KQ X / N for linear heads.

    The prompt X has a column (x_n, y_n) for each pair, and last the column (x, 0) of
    the query. ``values`` are the numbers v_i in the lower right corner of W_V, and
    ``matrices`` the blocks U_i of W_KQ. All other entries are zero.
    """
    N, d = tokens.shape
    prompt = np.zeros((d + 1, N + 1))
    prompt[:d, :N] = tokens.T
    prompt[d, :N] = labels
    prompt[:d, N] = query
    output = np.zeros((d + 1, N + 1))
    for value, matrix in zip(values, matrices, strict=True):
        value_matrix = np.zeros((d + 1, d + 1))
        value_matrix[d, d] = value
        key_query_matrix = np.zeros((d + 1, d + 1))
        key_query_matrix[:d, :d] = matrix
        output += value_matrix @ prompt @ prompt.T @ key_query_matrix @ prompt / N
    return float(output[d, N])


class SpectrumMixture(NamedTuple):
    """Prompts with random eigenvalues of Λ, as a mixture of n laws."""

    risk: MixtureRisk  # the mean loss over the laws, for a diagonal Γ
    grid: Array  # eigenvalues of each law, (n, d)
    probs: Array  # probabilities of the laws, (n,)


def exponential_spectra(d: int, N: float) -> SpectrumMixture:
    """Return the mixture for independent exponential eigenvalues of Λ.

    The laws of the mixture are the nodes of a Gauss–Laguerre grid, over which sums are
    exact.
    """
    # The gradient contains polynomials of degree 3 in each eigenvalue. Three nodes are
    # exact to degree 5.
    grid, probs = layers.product_grid(np.polynomial.laguerre.laggauss, [3] * d)
    laws = [PromptLaw(spectrum, N=N) for spectrum in grid]
    return SpectrumMixture(MixtureRisk(laws, probs), grid, probs)


def published_mixture(N: float, grid: Array, probs: Array) -> Array:
    """Return the diagonal of the matrix C of theorem 4.5 of Zhang, Frei, Bartlett 2024.

    The matrix is C = (E Γ_ΛΛ²)⁻¹E Λ² with Γ_Λ = (1 + 1/N)Λ + (tr Λ/N)I. The means are
    over a grid of eigenvalues, (n, d), with probabilities, (n,).
    """
    # The diagonals of Γ_Λ, (n, d).
    gamma = (1.0 + 1.0 / N) * grid + grid.sum(axis=1, keepdims=True) / N
    return np.asarray((probs @ grid**2) / (probs @ (gamma * grid**2)))


def balanced_pair(gamma: Array) -> Array:
    """Return (v, A) with vA = Γ and v = ‖A‖, for a diagonal or a matrix Γ."""
    value = math.sqrt(float(np.linalg.norm(gamma)))
    return np.append(value, gamma / value)


@row("linear attention: random covariances", ZHANG.format("Thm 4.5"), bound="0; 1/3")
def random_covariances(quick: bool) -> Claim:
    """trained on random covariances, (v, A) converges to v = ‖C‖^½, A = C/v with C = (E
    Γ_ΛΛ²)⁻¹E Λ², Γ_Λ = (1 + 1/N)Λ + (tr Λ/N)I, and its error stays, however long the
    prompts: with exponential eigenvalues the layer predicts on average a third of the
    answer
    """
    gaps = []
    remaining_shares = []
    answered_shares = []
    for d, N in ((1, np.inf), (2, 10)):
        risk, grid, probs = exponential_spectra(d, N)
        best = published_mixture(N, grid, probs)
        # A balanced start: v = ‖A‖ = 0.1.
        start = np.append(0.1, np.full(d, 0.1 / np.sqrt(d)))
        pair = Pullback(risk, Pair(start, (d,)))
        # At 1e-9 above the floor, parameters are off the minimum by about the root of
        # this excess, 3e-5. This distance is below the bound 1e-4 on the gaps.
        run = descend(pair, eta=0.05, epsilon=risk.floor() + 1e-9)
        gaps += [apart(risk.best, best), apart(run.params, balanced_pair(best))]
        remaining_shares.append(risk.floor() / risk.loss(np.zeros(d)))
        # In long prompts the mean prediction along direction j is λ_j γ_j times the
        # answer. The largest share of all directions is kept.
        answered_shares.append(float(np.max(probs @ (grid * best))))
    # In the limit of long prompts both shares are exactly a third.
    remaining_of_infinite, remaining_of_finite = remaining_shares
    answered_of_infinite, _ = answered_shares
    thirds = [remaining_of_infinite, answered_of_infinite]
    return Claim.of(
        max(gaps) < 1e-4
        and apart(thirds, 1.0 / 3.0) < 1e-12
        and remaining_of_finite > 1.0 / 3.0,
        "independent exponential eigenvalues; d = 1, N = inf, and d = 2, N = 10;"
        " (v, A) from 0.1",
        f"(v, A) at the end off by {decade(max(gaps))}; the loss keeps"
        f" {listed(remaining_shares, '.3f')} of its value at Γ = 0; share of the answer"
        f" in the mean {listed(answered_shares, '.3f')}",
    )


class PairMoments(NamedTuple):
    """Moments of the law of a token x and its label y."""

    mean: Array  # E xy, (d,)
    covariance: Array  # covariance of xy, (d, d)
    least_error: float  # mean squared error of the best linear prediction of y from x


def published_error(law: PromptLaw, N: int, M: int, moments: PairMoments) -> float:
    """Return the mean squared error by equation 4.6 of Zhang, Frei, Bartlett 2024.

    The layer is trained on prompts of N pairs and tested on prompts of M pairs. The
    formula stands in the statement of `other_labels`.
    """
    covariance, _, _ = law.dense.moments
    trace = float(np.trace(covariance))
    # Γ⁻¹ with the Γ = (1 + 1/N)Λ + (tr Λ/N)I of the theorem.
    inverse = np.linalg.inv((1.0 + 1.0 / N) * covariance + trace / N * np.eye(law.d))
    # The coefficients of the best linear prediction of y, Λ⁻¹E xy.
    a = np.linalg.solve(covariance, moments.mean)
    inverse_square = inverse @ inverse  # Γ⁻²

    def squared_norm(k: int) -> float:
        """‖a‖² in the metric Γ⁻²Λ^k, whose factors commute."""
        return float(a @ inverse_square @ np.linalg.matrix_power(covariance, k) @ a)

    training_term = (
        squared_norm(3) + 2.0 * trace * squared_norm(2) + trace**2 * squared_norm(1)
    )
    test_term = float(np.trace(moments.covariance @ inverse_square @ covariance))
    return moments.least_error + test_term / M + training_term / N**2


class GridPrompts(NamedTuple):
    """All n prompts of a grid, each of M pairs in d dimensions."""

    tokens: Array  # (n, M, d)
    labels: Array  # (n, M)
    probs: Array  # probabilities of the prompts, (n,)


def cubic_prompts(law: PromptLaw, M: int) -> GridPrompts:
    """Return prompts whose labels are a cubic function of the tokens, with noise ±½.

    The function is an arbitrary one for tokens in two dimensions.
    """
    # As y is cubic in x, squares of xy have the degree 8 in a token, for which five
    # nodes are exact. The noise of a label has two nodes, which are ±1.
    grid, weight = layers.hermite_grid([5] * (M * law.d) + [2] * M)
    covariance, _, _ = law.dense.moments
    normal = grid[:, : M * law.d].reshape(-1, M, law.d)
    x = normal @ np.linalg.cholesky(covariance).T
    noise = 0.5 * grid[:, M * law.d :]
    labels = x @ np.array([0.7, -0.3]) + 0.2 * x[:, :, 0] ** 3 + noise
    return GridPrompts(x, labels, weight)


@identity("linear attention: other labels", ZHANG.format("Thm 4.2"), 1e-10)
def other_labels(quick: bool) -> Errors:
    """trained at length N and tested at length M on any labels, also nonlinear ones,
    the error is that of the best linear prediction + tr(ΣΓ⁻²Λ)/M + [‖a‖²_{Γ⁻²Λ³} +
    2tr Λ‖a‖²_{Γ⁻²Λ²} + (tr Λ)²‖a‖²_{Γ⁻²Λ}]/N², with a = Λ⁻¹E xy, Σ = Cov xy and
    Γ = (1 + 1/N)Λ + (tr Λ/N)I
    """
    for N, M in ((3, 1), (20, 2)):
        law = PromptLaw(SKEWED, N=N)
        # Prompts of one pair have the law of a pair (x, y). The query and its label have
        # the same law.
        tokens, labels, pair_weights = cubic_prompts(law, 1)
        x = tokens[:, 0]
        y = labels[:, 0]
        product = x * y[:, None]
        mean = pair_weights @ product
        deviation = product - mean
        covariance = (pair_weights[:, None] * deviation).T @ deviation  # Cov xy
        mean_y_square = pair_weights @ y**2
        # The least mean squared error is E y² - (E xy)ᵀΛ⁻¹E xy.
        least_error = float(mean_y_square - mean @ np.linalg.solve(SKEWED, mean))
        # The layer predicts xᵀĝ for the query x, with a column ĝ = Γ⁻¹h for each of the
        # n prompts, (d, n). Its best matrix is the inverse of the theorem's Γ.
        tokens, labels, weights = cubic_prompts(law, M)
        estimate = law.best @ np.einsum("nid,ni->dn", tokens, labels) / M
        # E (xᵀĝ - y)²: the query and its label are independent of the prompt.
        error = float(
            np.einsum("dn,de,en,n->", estimate, SKEWED, estimate, weights)
            - 2.0 * mean @ estimate @ weights
            + mean_y_square
        )
        moments = PairMoments(mean, covariance, least_error)
        yield error, published_error(law, N, M, moments)
    return (
        "d = 2, a covariance with correlation, (N, M) = (3, 1), (20, 2), cubic labels"
        " with noise; all prompts of a grid"
    )


class ErrorBound(NamedTuple):
    """A bound on the mean squared error, and the prompts for which it holds."""

    test_length: int  # the least length M of test prompts
    error: float  # the bound


def published_bound(spectrum: Array, N: int, epsilon: float) -> ErrorBound:
    """Return the bound of corollary 4.3 of Zhang, Frei, Bartlett 2024.

    The layer is trained on prompts of N pairs. If test prompts have at least the length
    ``test_length``, the error is at most ε + (1 + 2d + d²κ) tr Λ/N². The second term is
    a bound on the error in infinitely long test prompts. ``spectrum`` has the
    eigenvalues of Λ, (d,).
    """
    d = len(spectrum)
    trace = float(spectrum.sum())
    kappa = float(spectrum.max() / spectrum.min())  # condition number of Λ
    training_term = (1.0 + 2.0 * d + d**2 * kappa) * trace / N**2
    return ErrorBound(
        test_length=math.ceil((d + 1.0) * trace / epsilon),
        error=epsilon + training_term,
    )


@row("linear attention: bound on the error", ZHANG.format("Cor 4.3"), bound="1")
def bound_on_error(quick: bool) -> Claim:
    """trained at length N and tested at M >= (d + 1)tr Λ/ε without noise, the mean
    squared error is at most ε + (1 + 2d + d²κ)tr Λ/N², κ the condition number of Λ
    """
    ratios = []
    for d, decay in itertools.product((1, 2, 8), (0.0, 1.0, 2.0)):
        spectrum = np.arange(1.0, d + 1.0) ** -decay
        for N, epsilon in itertools.product((1, 10, 1000), (1.0, 0.1, 1e-3, 1e-6)):
            M, bound = published_bound(spectrum, N, epsilon)
            trained_gamma = PromptLaw(spectrum, N=N).best
            # A loss is half of the mean squared error.
            error = 2.0 * PromptLaw(spectrum, N=M).loss(trained_gamma)
            ratios.append(error / bound)
    return Claim.of(
        max(ratios) <= 1.0,
        "d = 1, 2, 8, λ_j = 1, 1/j, j^-2, N = 1, 10, 1000, ε = 1, 0.1, 1e-3, 1e-6; the"
        " least M",
        f"error over the bound {min(ratios):.1g}..{max(ratios):.4f}",
        "holds",
    )


@row(
    "linear attention: length of the test",
    ZHANG.format("Thm 4.2 (our constants)"),
    bound="-2; 0; 1",
)
def length_of_test(quick: bool) -> Claim:
    """trained at length N and tested at M, the error is the error at M = ∞, of order
    1/N², plus a part of order 1/M
    """
    spectrum = 1.0 / np.arange(1.0, 9.0)
    lengths = np.array([10**4, 10**5, 10**6])
    finite_tests = [10, 1000, 10**5]
    infinite_losses = []
    scaled_test_parts = []
    for N in lengths.tolist():
        gamma = PromptLaw(spectrum, N=N).best
        infinite_loss = PromptLaw(spectrum, N=math.inf).loss(gamma)
        infinite_losses.append(infinite_loss)
        # M times the part of the loss that finite test prompts add.
        scaled_test_parts.append(
            [
                (PromptLaw(spectrum, N=M).loss(gamma) - infinite_loss) * M
                for M in finite_tests
            ]
        )
    test_parts = np.array(scaled_test_parts)  # a row for each N, a column for each M
    # If test parts are of order 1/M, M times these parts does not depend on M.
    unevenness = off(test_parts, test_parts[:, :1])
    exponent = power(lengths, infinite_losses)
    # The leading order in 1/N of the loss at M = ∞.
    leading = (
        0.5 * float(np.sum((spectrum + spectrum.sum()) ** 2 / spectrum)) / lengths**2
    )
    longest_loss = infinite_losses[-1]
    longest_leading = leading[-1]
    # Corrections to the leading order are of the relative order d/N, which is below
    # 1e-3 at all these lengths.
    return Claim.of(
        abs(exponent + 2.0) < 0.01
        and unevenness < 1e-6
        and off(longest_loss, longest_leading) < 1e-3,
        f"d = 8, λ_j = 1/j, no noise; N = {lengths[0]}..{lengths[-1]}, M = 10, 1000,"
        " 10⁵ and ∞",
        f"at M = ∞ like N^{exponent:.3f}, {longest_loss / longest_leading:.4f} of"
        f" ½Σ(λ_j + tr Λ)²/(λ_jN²); M times the rest is constant to"
        f" {decade(unevenness)}",
        "holds: longer tests help until M is of the order N²; then only longer training"
        " prompts do",
    )


@identity(
    "linear attention: other covariances",
    ZHANG.format("section 4.2 (exact form)"),
    1e-10,
)
def other_covariances(quick: bool) -> Errors:
    """trained on long prompts of covariance Λ, the layer has on prompts of covariance
    Λ' the loss ½tr Λ'(Λ⁻¹Λ' - I)(Λ'Λ⁻¹ - I): that of predicting 0 if Λ' = 2Λ, and more
    beyond
    """
    # At N = ∞ the floor is zero. A loss of 1e-28 is an error of Γ near 1e-14.
    trained = LinearAttention(covariance=SKEWED, N=np.inf, above=1e-28)
    double = 2.0 * SKEWED
    gamma = trained.gamma(trained.simulate().params)
    tests = (
        SKEWED,
        double,
        3.0 * SKEWED,
        np.diag([0.2, 1.5]),
        np.array(((0.4, -0.2), (-0.2, 2.0))),
    )
    for covariance in tests:
        law = PromptLaw(covariance)
        bias = np.linalg.solve(SKEWED, covariance) - np.eye(2)  # Λ⁻¹Λ' - I
        loss = 0.5 * float(np.sum(covariance * (bias @ bias.T)))
        yield apart(law.loss(gamma), loss)
    # For Λ' = 2Λ the loss is as large as that of predicting 0.
    loss_of_zero = PromptLaw(double).loss(np.zeros((2, 2)))
    yield apart(PromptLaw(double).loss(gamma), loss_of_zero)
    return (
        "d = 2, N = ∞, Γ at the end of a run; Λ' = Λ, 2Λ, 3Λ and two that do not"
        " commute with Λ"
    )


PAPERS = (
    Paper(
        "preconditioned-descent",
        "Transformers learn to implement preconditioned gradient descent for in-context"
        " learning",
        "Kwangjun Ahn, Xiang Cheng, Hadi Daneshmand, Suvrit Sra",
        2023,
        "arXiv:2306.00297",
        (
            Reading(
                "Theorem 1",
                "The best layer is a step of gradient descent; its preconditioner"
                " depends on the covariance of the inputs and on the length.",
                (population_loss, layers.whole_layer),
            ),
            Reading(
                "several layers",
                "Each layer is a step of gradient descent on the prompt (Lemma 1).",
                (depth,),
                reconstructed="that more layers reach a lower loss",
                question=what_depth_buys,
                figure="depth",
            ),
            Reading(
                "Theorem 2",
                "For isotropic data the best two layers with symmetric matrices may be"
                " taken diagonal.",
                (layers.two_layers,),
            ),
            Reading(
                "Theorem 3",
                "If tasks have the covariance Σ⁻¹, the gradient comes arbitrarily close"
                " to zero among layers that descend with multiples of Σ⁻¹. In"
                " experiments training finds such layers.",
                (layers.inverse_layers,),
            ),
            Reading(
                "Theorem 4",
                "The same of layers that also change the inputs, with B a multiple of"
                " I: GD++ if Σ = I.",
                (layers.plus_plus,),
            ),
            Reading(
                "Theorem 5",
                "With ReLU scores, isotropic data and zeros as the last row of Q the"
                " best layer has the form that it has in linear attention.",
                (layers.relu_attention,),
            ),
        ),
        setting=Setting(
            "linear-attention?decay=2&test_decay=2&t=1000000000",
            (
                "Each direction of Γ comes to its best value, largest eigenvalue first:"
                " one step of descent with a preconditioner, as in Theorem 1. Along"
                " small eigenvalues, of which the prompt says little, it stays far below"
                " the 1/λ of least squares."
            ),
        ),
        credit="The best single layer of linear attention, and the best several layers",
        entry=ModelEntry(
            data="normal inputs, linear functions",
            attention="linear, one layer or several",
            trained="all matrices, layer by layer",
            command="icl-theory linear-attention simulate --depth 4",
        ),
        folder=Path(__file__).parent,
    ),
    Paper(
        "trained-linear-models",
        "Trained Transformers Learn Linear Models In-Context",
        "Ruiqi Zhang, Spencer Frei, Peter L. Bartlett",
        2024,
        "arXiv:2306.09927",
        (
            Reading(
                "Theorem 4.1",
                "Gradient flow from a small balanced start converges to the best"
                " layer.",
                (limits, small_starts, every_mode),
            ),
            Reading(
                "Theorem 4.2",
                "Tested on other labels and at another length than trained on, the"
                " layer's error exceeds that of the best linear prediction by terms of"
                " the orders 1/N² and 1/M.",
                (other_labels, length_of_test),
                reconstructed="that longer tests help until M is of the order N²",
            ),
            Reading(
                "Corollary 4.3",
                "On linear labels the mean squared error is at most ε + (1 + 2d +"
                " d²κ)tr Λ/N² if M >= (d + 1)tr Λ/ε.",
                (bound_on_error,),
            ),
            Reading(
                "distribution shifts",
                "In long prompts the trained layer works for other tasks and queries;"
                " it fails if the covariance of the tokens changes.",
                (shifts, other_covariances),
                figure="shifts",
                reconstructed="what another covariance costs",
            ),
            Reading(
                "Theorem 4.5",
                "Trained on prompts with random diagonal covariances, the layer becomes"
                " the best one, which keeps a large error even in long prompts.",
                (random_covariances,),
            ),
        ),
        setting=Setting(
            "linear-attention?noise=0&test_noise=0&test_decay=0&t=20000",
            (
                "The trained layer fails if the law of the tokens changes: tested on "
                "isotropic tokens its loss ends above the one it began with."
            ),
        ),
        credit="Convergence to the best layer of linear attention, and distribution shifts",
        entry=ModelEntry(
            data="normal inputs, linear functions; random covariances",
            attention="linear, one layer",
            trained="a value and a matrix",
            command="icl-theory linear-attention simulate --coordinates pair",
        ),
        folder=Path(__file__).parent,
    ),
    Paper(
        "linear-attention-dynamics",
        "Training Dynamics of In-Context Learning in Linear Attention",
        "Yedi Zhang, Aaditya K. Singh, Peter E. Latham, Andrew Saxe",
        2025,
        "arXiv:2501.16265",
        (
            Reading(
                "fixed points",
                "The layer with merged keys and queries has two fixed points, heads"
                " with separate ones have exponentially many.",
                (fixed_points, merged_fixed_points),
            ),
            Reading(
                "merged keys and queries",
                "From a small start the loss has one plateau and one abrupt drop.",
                (one_drop, plateau_lengths),
                question=which_plateau,
            ),
            Reading(
                "separate keys and queries",
                "Heads go from saddle to saddle and learn one principal direction after"
                " another.",
                (staircase, levels),
                figure="staircase",
            ),
            Reading(
                "rank of keys and queries",
                "Heads of rank R have conspicuous plateaus only at the levels of 0, R,"
                " 2R, ... directions.",
                (rank_of_heads,),
            ),
            Reading(
                "Early stopping",
                "A layer whose training is stopped early does regression on the first"
                " principal components.",
                (early_stopping,),
            ),
            Reading(
                "Softmax attention",
                "The loss of softmax attention has a single drop, too, with merged keys"
                " and queries, and several with separate ones.",
                (softmax_drops,),
            ),
            Reading(
                "Cubic features",
                "The layer is a linear network on cubic features of a prompt: with two"
                " fully connected layers for merged keys and queries, with three"
                " convolutional ones for separate ones of rank one.",
                (cubic_features,),
            ),
        ),
        setting=Setting(
            "linear-attention?decay=0&test_decay=0&t=100",
            (
                "Tokens alike in all directions. As a product of small factors "
                "(dashed), as keys and queries merged in one matrix are, the model "
                "waits on a plateau, then its loss drops once."
            ),
        ),
        credit="One drop and staircases of the loss in linear attention",
        entry=ModelEntry(
            data="normal inputs, linear functions",
            attention="linear, several heads",
            trained="keys and queries, merged or separate",
            command=(
                "icl-theory linear-attention simulate --coordinates heads --heads 3"
                " --d 3 --decay 1"
            ),
        ),
        folder=Path(__file__).parent,
    ),
    Paper(
        "task-diversity",
        "Asymptotic theory of in-context learning by linear attention",
        "Yue M. Lu, Mary I. Letey, Jacob A. Zavatone-Veth, Anindita Maiti, Cengiz"
        " Pehlevan",
        2024,
        "arXiv:2405.11751",
        (
            Reading(
                "transition in task diversity",
                "The layer memorises few pretraining tasks; with many it learns in"
                " context.",
                (transition,),
                figure="task_diversity",
            ),
            Reading(
                "double descent",
                "The loss has a double descent as the number of pretraining prompts"
                " grows.",
                (double_descent,),
                reconstructed=(
                    "Fits of the least norm, the place of the peak, and the limit."
                ),
            ),
        ),
        setting=Setting(
            "task-diversity?tasks=8&t=10000",
            (
                "Trained on a quarter as many tasks as dimensions the layer memorises "
                "them: on new tasks its loss stays many times that on its own."
            ),
        ),
        credit="Task diversity",
        related=(
            "Observed by Allan Raventós, Mansheej Paul, Feng Chen, Surya Ganguli."
            " *Pretraining task diversity and the emergence of non-Bayesian in-context"
            " learning for regression*. 2023."
            " [arXiv:2306.15063](https://arxiv.org/abs/2306.15063)."
        ),
        entry=ModelEntry(
            data="normal inputs, a few linear functions",
            attention="linear, one layer",
            trained="the merged matrix",
            command="icl-theory linear-attention simulate --tasks 4 --noise 0.5",
        ),
        folder=Path(__file__).parent,
    ),
)
CLAIMS = Claims(
    questions=(
        which_plateau,
        what_depth_buys,
        fixed_set_questions.gap,
        fixed_set_questions.early_stopping,
    ),
    papers=PAPERS,
)
