"""Papers on linear attention: rows of the audit, open questions, and what each paper says."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
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

AHN = "Ahn, Cheng, Daneshmand, Sra 2023, {}"
ZHANG = "Zhang, Frei, Bartlett 2024, {}"
STAIRS = "Zhang, Singh, Latham, Saxe 2025, {}"
PRIOR = np.array(((1.5, -0.4), (-0.4, 0.6)))
QUERY = np.array(((0.4, 0.1), (0.1, 1.2)))
MIXED = np.array(((1.0, 0.3, 0.1), (0.3, 0.5, -0.1), (0.1, -0.1, 0.4)))


def skewed(N: int, noise: float) -> PromptLaw:
    """A law in two dimensions whose matrices do not commute."""
    return PromptLaw(SKEWED, PRIOR, QUERY, N, noise)


def prompt_moments(law: PromptLaw) -> tuple[Array, Array]:
    """Return E h hᵀ and E w hᵀ over all prompts of a Gauss–Hermite grid.

    The grid is exact, and uses no formula of `PromptLaw`.
    """
    d = law.d
    N = int(law.N)
    grid, weight = layers.hermite_grid([3] * (N * d) + [2] * (d + N))
    covariance, prior = (np.linalg.cholesky(matrix) for matrix in law.dense.moments[:2])
    tokens = grid[:, : N * d].reshape(-1, N, d) @ covariance.T
    task = grid[:, N * d : N * d + d] @ prior.T
    labels = np.einsum("nid,nd->ni", tokens, task) + law.noise * grid[:, N * d + d :]
    h = np.einsum("ni,nid->nd", labels, tokens) / N
    return (weight[:, None] * h).T @ h, (weight[:, None] * task).T @ h


@identity(
    "linear attention: minimiser",
    f"{AHN.format('Thm 1')}; {ZHANG.format('convergence')}",
    1e-12,
)
def population_loss(quick: bool) -> Errors:
    """L(Γ) = ½ tr Λq(ΓMΓᵀ - 2ΓΛW + W), M = (1 + 1/N)ΛWΛ + (tr ΛW + σ²)Λ/N; minimum at WΛM⁻¹, whatever Λq"""
    rng = np.random.default_rng(0)
    for law in (skewed(1, 0.5), skewed(2, 0.0), skewed(2, 0.8)):
        second, cross = prompt_moments(law)
        best = np.linalg.solve(second, cross.T).T
        yield np.abs(law.best - best).max() / np.abs(best).max()
        _, prior, query = law.moments
        for gamma in rng.normal(size=(5, 2, 2)):
            errors = gamma @ second @ gamma.T - 2.0 * gamma @ cross.T + prior
            yield law.loss(gamma), 0.5 * np.sum(query * errors)
    return "d = 2, N = 1, 2, σ = 0, 0.5, 0.8, matrices that do not commute; moments over all prompts of a grid"


@identity("linear attention: every mode", OURS, 1e-10)
def every_mode(quick: bool) -> Errors:
    """merged: u_aᵀ(Γ - Γ*)v_b shrinks by 1 - ηq_a m_b in each step; stable below η = 2/(q_max m_max)"""
    risk = MergedRisk(skewed(3, 0.4), np.random.default_rng(1).normal(size=(2, 2)))
    for rate in (0.3, 1.0, 1.9):
        eta = rate / float(risk.curvature.max())
        form = risk.closed_form(eta, "gd")
        run = descend(risk, eta, steps=300 if quick else 3000)
        assert form is not None
        yield np.abs(form.states(run.t) - run.states).max() / np.abs(run.states).max()
    return "d = 2, matrices that do not commute; rates up to 1.9 of 2; single steps"


def published_drop(d: int, N: int, start: float, time: Array) -> Array:
    """Return σ(t) of equation 10 of Zhang, Singh, Latham, Saxe 2025, for Λ = I without noise."""
    growth = np.exp(2.0 * math.sqrt(d) * time)
    return growth / ((1.0 + (1.0 + d) / N) * (growth - 1.0) + math.sqrt(d) / start**2)


@identity("linear attention: one drop", STAIRS.format("Eq. 10"), 1e-7)
def one_drop(quick: bool) -> Errors:
    """(v, A), isotropic, balanced, from a layer of the norm w: Γ = σ(t)I with σ(t) = e^(2√d t)/
    [(1 + (1 + d)/N)(e^(2√d t) - 1) + √d/w²]; with noise and any λ, Γ = γI with
    γ = γ*/(1 + (γ*/γ₀ - 1)e^(-2√d λ²t)): a plateau and one drop, at a rate free of N
    and σ
    """
    for d, N, noise in ((2, 5, 0.0), (4, 31, 0.0), (8, 30, 0.7)):
        small = LinearAttention(
            d=d, N=N, noise=noise, coordinates="pair", start=1e-3, eta=0.01, above=1e-8
        )
        run = small.changed(method="flow").simulate()
        gamma = run.states[:, 0] * run.states[:, 1]
        yield gamma, balanced_flow(small.law(), 1e-3, 0.01 * run.t)
        if noise == 0.0:
            time = np.asarray(0.01 * run.t, dtype=float)
            yield gamma, published_drop(d, N, 1e-3, time)
    return "d = 2, 4, 8, N = 5, 31, 30, σ = 0, 0, 0.7, from 1e-3; the flow integrated to 1e-10"


@identity("linear attention: limits", ZHANG.format("Thm 4.1"), 1e-4)
def limits(quick: bool) -> Errors:
    """gradient flow from v = s, A = sΘΘᵀ with ‖ΘΘᵀ‖ = 1, ΘΘᵀΛ ≠ 0 and s²√d‖Γ_Λ‖ < 2 converges
    to v = (tr Γ_Λ⁻²)^¼, A = Γ_Λ⁻¹/v with Γ_Λ = (1 + 1/N)Λ + (tr Λ/N)I
    """
    rng = np.random.default_rng(4)
    for covariance, N in ((SKEWED, 3), (MIXED, 10)):
        d = len(covariance)
        gamma = (1.0 + 1.0 / N) * covariance + np.trace(covariance) / N * np.eye(d)
        inverse = np.linalg.inv(gamma)
        value = float(np.sum(inverse**2)) ** 0.25
        largest = math.sqrt(2.0 / (math.sqrt(d) * np.linalg.norm(gamma, 2)))
        for size in (0.01 * largest, 0.99 * largest):
            theta = rng.normal(size=(d, d))
            theta @= theta.T
            start = size * np.append(1.0, theta / np.linalg.norm(theta))
            merged = MergedRisk(PromptLaw(covariance, N=N), np.zeros((d, d)))
            risk = Pullback(merged, Pair(start, (d, d)))
            run = descend(
                risk, 1.0, epsilon=risk.floor() + 1e-13, method="flow", progress=False
            )
            yield run.params, np.append(value, inverse / value)
    return "d = 2, 3, covariances with correlation, N = 3, 10, s = 0.01, 0.99 of the largest; random Θ"


@row("linear attention: small starts", bound="1e-9")
def small_starts(quick: bool) -> Claim:
    """(v, A) from a small balanced start converges to the minimum under descent and with noise, too"""
    starts = (1e-2, 1e-4) if quick else (1e-1, 1e-2, 1e-4, 1e-6)
    base = LinearAttention(d=4, noise=0.5, above=1e-9)
    ends = []
    for decay, start in itertools.product((0.0, 1.0), starts):
        problem = base.changed(decay=decay, start=start, coordinates="pair")
        spectrum = problem.law().covariance
        N = problem.N
        gamma = problem.gamma(problem.simulate().params)
        label_variance = spectrum.sum() + problem.noise**2
        best = 1.0 / ((1.0 + 1.0 / N) * spectrum + label_variance / N)
        ends.append(0.5 * float(np.sum(spectrum**2 / best * (gamma - best) ** 2)))
    return Claim.of(
        max(ends) <= 1.01e-9,
        f"d = 4, λ_j = 1 and 1/j, σ = 0.5, {len(ends)} starts down to {starts[-1]:g}, stable rate",
        f"largest excess at the end {max(ends):.1e}, of Γ over ((1 + 1/N)Λ + (tr Λ + σ²)I/N)⁻¹",
    )


def aligned(d: int, size: float) -> Array:
    """Return heads, one along each axis, with value, key and query of one size."""
    return size * np.hstack([np.ones((d, 1)), np.eye(d), np.eye(d)])


@cache
def plateaus(quick: bool) -> tuple[Array, Array, Array]:
    """Starts, and the plateaus ηt of (v, A) and of aligned heads, for Λ = I in 2 dimensions."""
    starts = np.geomspace(0.1, 2e-3 if quick else 1e-4, 3 if quick else 5)
    eta = 0.02
    pair_plateaus = []
    heads_plateaus = []
    base = LinearAttention(d=2, N=100, eta=eta, above=0.1)
    for start in starts.tolist():
        pair = base.changed(coordinates="pair", start=start, method="exact")
        pair_plateaus.append(eta * _plateau_end(pair))
        # Shorter steps would change nothing: the flow's time is what is measured.
        heads = base.changed(
            coordinates="heads", heads=2, start=aligned(2, start), method="fast"
        )
        heads_plateaus.append(eta * _plateau_end(heads))
    return starts, np.array(pair_plateaus), np.array(heads_plateaus)


def _plateau_end(problem: LinearAttention) -> int:
    """Return the step at which the plateau of a run ends."""
    phases = problem.simulate().phases
    assert phases is not None
    _, end = phases.plateau
    return int(end)


@row("linear attention: plateau", STAIRS.format("section 3.3"), bound="1; 1")
def plateau_lengths(quick: bool) -> Claim:
    """the plateau grows like ln(1/start)/(η‖ΛqWΛ‖) for (v, A)"""
    starts, pair, heads = plateaus(quick)
    slope = float(np.polyfit(np.log(1.0 / starts[1:]), pair[1:], 1)[0]) * math.sqrt(2.0)
    ratio = float(heads[-1] * starts[-1])
    return Claim.of(
        off([slope, ratio], 1.0) < 0.03,
        f"Λ = I, d = 2, N = 100, starts 0.1 to {starts[-1]:g}",
        f"(v, A): slope in ln(1/start) {slope:.3f} of it; heads with separate keys and queries: {ratio:.3f} of"
        " 1/(ηλ² start)",
        "holds for (v, A); with separate keys and queries it grows like 1/start",
    )


@question("linear-attention-plateau", "1 / start", "plateau, ηt")
def which_plateau(quick: bool) -> tuple[str, list[Series]]:
    """Does the plateau grow like ln(1/start)?"""
    starts, pair, heads = plateaus(quick)
    x = 1.0 / starts
    slow = power(x[-2:], pair[-2:])
    fast = power(x[-2:], heads[-2:])
    merged = "These runs do not decide it"
    if slow < 0.3 < 0.9 < fast:
        merged = "Only with keys and queries merged"
    return (
        f"{merged}: from start {starts[-2]:.2g} to {starts[-1]:.2g} it grows like"
        f" start^-{slow:.2f} for (v, A), ηt = ln(1/start)/√2 + const, and like"
        f" start^-{fast:.2f} for heads with separate keys and queries, whose product of"
        " three small numbers leaves the saddle in a time 1/(ηλ² start) (Λ = I, d = 2,"
        " N = 100).",
        [
            Series("(v, A)", x, pair, points=True),
            Series("heads", x, heads, points=True),
            Series("ln(1/start)/√2", x, np.log(x) / math.sqrt(2.0)),
            Series("1/start", x, x),
        ],
    )


@row("linear attention: staircase", STAIRS.format("Eqs. 20, 21"), bound="flow; all")
def staircase(quick: bool) -> Claim:
    """heads learn one direction of Λ after the other, the largest eigenvalue first; head j, alone along its
    direction, follows s' = λ(λ - ms³)s²
    """
    # The plateaus are as long as 1/start.
    start = 0.04 if quick else 0.02
    base = LinearAttention(
        d=3, decay=1.0, N=50, above=1e-4, method="exact", coordinates="heads", heads=3
    )
    alone = base.changed(eta=0.05, start=aligned(3, start))
    law = alone.law()
    times = []
    for eigenvalue, m, best in zip(law.covariance, law.second, law.best, strict=True):
        s = np.linspace(start, (0.5 * best) ** (1 / 3), 200_001)
        speed = eigenvalue * (eigenvalue - m * s**3) * s**2
        times.append(np.trapezoid(1.0 / speed, s))
    late = off(_half_times(alone), np.array(times) / alone.rate())
    seeds = range(2 if quick else 8)
    ordered = 0
    for seed in seeds:
        random = base.changed(start=start, seed=seed, eta=0.1)
        ordered += bool((np.diff(_half_times(random)) >= 0.0).all())
    return Claim.of(
        late < 0.01 and ordered == len(seeds),
        f"d = H = 3, λ_j = 1/j, start {start:g}, aligned, and random of {len(seeds)} seeds;"
        " steps to half of Γ*_j",
        f"aligned: times off by at most {late:.1%}; random: {ordered} of {len(seeds)}"
        " in order",
    )


def _half_times(problem: LinearAttention) -> Array:
    """Return the steps at which entries of Γ are half of the best ones, or infinity."""
    run = problem.simulate()
    times = []
    for j, half in enumerate(0.5 * problem.law().best):
        step = _first_step(run, j, half)
        times.append(math.inf if step is None else step)
    return np.array(times)


def _first_step(run: Trajectory, j: int, least: float) -> int | None:
    """Return the first step at which direction j has a value; None if none has."""
    return run.first(lambda state: bool(state.observed["gamma"][j] >= least))


class Shift(NamedTuple):
    """A change of the law of the prompts."""

    word: str  # the paper's word for it
    parameters: dict[str, Any]


SHIFTED = {
    "queries": Shift("query", {"query": np.arange(1.0, 9.0)}),
    "W": Shift("task", {"prior": 1.0 / np.arange(1.0, 9.0)}),
    "noise": Shift("task", {"noise": 2.0}),
    "covariance": Shift("covariate", {"decay": 2.0}),
}


def shifted(lengths: Iterable[int]) -> dict[str, Array]:
    """Return the excess over the least loss, as shares of it, by shift and length."""
    shares = []
    for N in lengths:
        base = LinearAttention(d=8, decay=1.0, N=N, noise=0.5)
        problems = {"base": base}
        for name, shift in SHIFTED.items():
            problems[name] = base.changed(**shift.parameters)
        table = shift_table(problems)
        shares.append((table.excess[0] / table.floor)[1:])
    return dict(zip(SHIFTED, np.transpose(shares), strict=True))


@row("linear attention: shifts", ZHANG.format("section 4.2"), Status.EXACT, "-> 0; not")
def shifts(quick: bool) -> Claim:
    """shifts of the task and of the query are tolerated in long prompts, shifts of the tokens'
    covariance are not
    """
    lengths = (20, 2000, 200_000)
    shares = shifted(lengths)
    holds = True
    words = []
    for name, values in shares.items():
        word = SHIFTED[name].word
        if word != "covariate":
            falls = bool((np.diff(values) <= 1e-12).all())
            holds = holds and values[-1] < 1e-3 and falls
        # An excess of the query alone is rounding.
        percent = 100.0 * np.where(values < 1e-12, 0.0, values)
        words.append(f"{word} ({name}) {listed(percent, '.3g')} %")
    return Claim.of(
        holds and shares["queries"].max() < 1e-12 and min(shares["covariance"]) > 0.1,
        f"d = 8, λ_j = 1/j -> j^-2, σ = 0.5 -> 2, W = I -> diag(1/j), Λq -> diag(j); N = {listed(lengths, ',')}",
        f"excess over the least loss, in shares of it: {'; '.join(words)}",
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
    learns = all(ratio[0] > 10.0 and 1.0 < ratio[-1] < 1.1 for ratio in new_ratios)
    keeps = all(share[0] < 0.4 and 0.9 < share[-1] < 1.0 for share in shares)
    new_words = " and ".join(f"{x[0]:.0f} ... {x[-1]:.2f}" for x in new_ratios)
    share_words = " and ".join(f"{x[0]:.2f} ... {x[-1]:.2f}" for x in shares)
    follows = limit_error < 0.1 and apart(kink, (0.25, 0.0, 0.0)) < 1e-3
    return Claim.of(
        follows and learns and keeps,
        f"d = {d}, N = 4d, 64d, σ = 0.5, k/d = 1/4..8; and the limit of long prompts",
        f"loss on new tasks over that on the k tasks {new_words} at k/d = 1/4 ... 8,"
        " loss on the k tasks over that of the layer for all tasks"
        f" {share_words}; both off the limit d, k, N -> ∞ by at most"
        f" {limit_error:.0%}; N/d -> ∞: new loss/d {listed(kink, '.3f')} at k/d ="
        " 1/2, 1, 2",
        "holds: (1 - k/d)/2 below k = d in long prompts, a smooth crossover in short"
        " ones",
    )


class Memorised(NamedTuple):
    """Losses of the best matrix for k tasks; lists have an entry for each N."""

    limit_error: float  # largest relative distance from the limit of many dimensions
    new_ratios: list[Array]  # loss on new tasks over the loss on the k tasks
    shares: list[Array]  # loss on the k tasks over the least loss for all tasks
    kink: Array  # loss on new tasks over d, in long prompts


def memorised(d: int, draws: int) -> Memorised:
    """Measure the losses of the best matrix for numbers of tasks around d."""
    limit_error = 0.0
    new_ratios = list[Array]()
    shares = list[Array]()
    ratios = np.array([0.25, 0.5, 1.0, 2.0, 8.0])
    sizes = (ratios * d).astype(int).tolist()
    for N in (4 * d, 64 * d):
        problem = LinearAttention(d=d, N=N, noise=0.5)
        means = task_diversity(problem, sizes, draws=draws).mean()
        limit = diversity_limit(d, N, 0.5, ratios)
        limit_error = max(
            limit_error,
            off(means.pretraining, limit.pretraining),
            off(means.new, limit.new),
        )
        new_ratios.append(means.new / means.pretraining)
        shares.append(means.pretraining / problem.law().floor)
    long_prompts = diversity_limit(d, 1e9, 0.0, np.array([0.5, 1.0, 2.0]))
    return Memorised(limit_error, new_ratios, shares, long_prompts.new / d)


@row(
    "linear attention: finitely many prompts",
    "Lu et al. 2024 (reconstructed)",
    bound="peak at n = d²",
)
def double_descent(quick: bool) -> Claim:
    """trained to the end on n prompts, the loss on new tasks peaks at n = d², and is near its limit elsewhere"""
    d = 8 if quick else 16
    draws = 10 if quick else 20
    shares = [0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0]
    if quick:
        shares = [0.5, 1.0, 4.0]
    counts = [round(share * d * d) for share in shares]
    losses = []
    limits = []
    for tasks in (None, d // 2):
        problem = LinearAttention(d=d, N=4 * d, noise=0.5, tasks=tasks)
        losses.append([_median_loss(problem, n, draws) / d for n in counts])
        limits.append(pretraining_limit(problem, counts).new / d)
    half = shares.index(0.5)
    quotients = np.array(losses) / limits
    distance = apart(quotients[:, [half, -1]], 1.0)
    peaks = [counts[int(np.argmax(of_tasks))] for of_tasks in losses]
    return Claim.of(
        peaks == [d * d, d * d] and distance < (0.5 if quick else 0.2),
        f"d = {d}, N = 4d, σ = 0.5, all tasks and k = d/2, n/d² ="
        f" {listed(shares, 'g')}, median of {draws}",
        f"new loss/d {listed(losses[0], '.2f')} and {listed(losses[1], '.2f')}; limit"
        f" {listed(limits[0], '.2f')} and {listed(limits[1], '.2f')}",
    )


def _median_loss(problem: LinearAttention, prompts: int, draws: int) -> float:
    """Return the median loss on new tasks after pretraining on some prompts."""
    new = problem.new_tasks()
    losses = [new.loss(pretrained(problem, prompts, seed)) for seed in range(draws)]
    return float(np.median(losses))


def best_losses(N: int, depths: Iterable[int]) -> tuple[Array, Array]:
    """Least losses over d = 8 of layers in a loop and of layers of their own, for Λ = I without noise."""
    loop = []
    own = []
    for D in depths:
        loop.append(LoopedRisk(8, N, D).floor() / 8)
        own.append(best_layers(8, N, D).loss / 8)
    return np.array(loop), np.array(own)


@row(
    "linear attention: depth",
    f"{AHN.format('several layers')}; von Oswald et al. 2023",
    bound="falls",
)
def depth(quick: bool) -> Claim:
    """each layer is a step of gradient descent on the prompt, and more layers reach a lower loss"""
    depths = (1, 2, 4, 8) if quick else (1, 2, 4, 8, 16)
    loop, own = best_losses(20, depths)
    count = 10 if quick else 25
    sampled = []
    for D in depths[1:3]:
        trainer = LinearAttention(d=8, N=20, depth=D).sampled(4000, seed=D)
        sampled.append(losses(trainer, LoopedRisk(8, 20, D).best, count))
    z = float(deviations(np.transpose(sampled) / 8, loop[1:3]).max())
    return Claim.of(
        (np.diff(loop) < 0.0).all() and z < 5.0 and (own <= loop * (1 + 1e-12)).all(),
        f"Λ = I, d = 8, N = 20, D = {listed(depths)}; D = 2, 4 against sampled layers",
        f"best loss/d in a loop {listed(loop, '.3g')}; of layers of their own {listed(own, '.2g')}; largest |z|"
        f" {z:.1f}",
    )


@question("linear-attention-depth", "layers", "least loss / d")
def what_depth_buys(quick: bool) -> tuple[str, list[Series]]:
    """What does depth buy?"""
    depths = np.arange(1, 9 if quick else 17)
    curves = {N: best_losses(N, depths.tolist()) for N in (20, 80)}
    words = []
    loops = []
    own_layers = []
    for N, (loop, own) in curves.items():
        words.append(
            f"N = {N}: {loop[0]:.3g} of one layer, {loop[-1]:.2g} of {depths[-1]} in a"
            f" loop, {own[-1]:.1g} of {depths[-1]} layers of their own"
        )
        loops.append(Series(f"loop, N = {N}", depths, loop, points=True))
        own_layers.append(Series(f"own, N = {N}", depths, own, points=False))
    answer = (
        f"{'; '.join(words)} (least loss/d, Λ = I, d = 8, no noise). A loop repeats one"
        " step of gradient descent; layers of their own are the best polynomial of"
        " their degree, as Chebyshev's method is."
    )
    return answer, loops + own_layers


def split(law: PromptLaw) -> tuple[Array, Array, Array]:
    """Singular values of Λq^½Γ*M^½, and factors q, k (d, d) with Γ* = Σ qᵀk: the heads of the fixed points."""
    covariance, prior, query = law.dense.moments
    second = law.dense.second
    query_root = np.asarray(sqrtm(query))
    second_root = np.asarray(sqrtm(second))
    best = prior @ covariance @ np.linalg.inv(second)
    U, sizes, V = np.linalg.svd(query_root @ best @ second_root)
    queries = np.linalg.solve(query_root, U * np.sqrt(sizes)).T
    keys = np.linalg.solve(second_root, V.T * np.sqrt(sizes)).T
    return sizes, queries, keys


@identity("linear attention: fixed points", STAIRS.format("Eqs. 15 to 19"), 1e-10)
def fixed_points(quick: bool) -> Errors:
    """the fixed points of heads of rank one are exactly 2^d matrices Γ, one for each set S of
    directions; the excess is ½Σ_{j∉S} σ_j²; for W = I, Λq = Λ they are
    Σ_{j∈S} λ_j⁻¹(1 + (1 + (tr Λ + σ²)/λ_j)/N)⁻¹e_je_jᵀ with the loss
    ½[tr Λ - Σ_{j∈S} λ_j/(1 + (1 + (tr Λ + σ²)/λ_j)/N)]
    """
    spectrum = np.array([1.0, 0.5, 0.3])
    for law in (
        PromptLaw(spectrum, N=10, noise=0.5),
        PromptLaw(MIXED, MIXED @ MIXED, np.diag([0.4, 1.2, 1.0]), 5),
    ):
        sizes, queries, keys = split(law)
        merged = MergedRisk(law.dense, np.zeros((3, 3)))
        for subset in itertools.product((0.0, 1.0), repeat=3):
            on = np.array(subset)
            heads = np.column_stack([on, on[:, None] * keys, on[:, None] * queries])
            risk = Pullback(merged, Heads(heads, 3))
            loss, gradient = risk.evaluate(risk.initial)
            yield np.abs(gradient).max()
            yield apart(loss - law.floor, 0.5 * float((1.0 - on) @ sizes**2))
            if law.diagonal:
                label_variance = spectrum.sum() + law.noise**2
                learnt = 1.0 / (1.0 + (1.0 + label_variance / spectrum) / law.N)
                gamma = risk.map.inward(risk.initial)
                yield apart(gamma, np.diag(on * learnt / spectrum))
                level = 0.5 * float(spectrum.sum() - on @ (spectrum * learnt))
                yield apart(loss, level)
        yield from _distances_of_rests(merged, sizes, 6 if quick else 20)
    return (
        "d = 3, diagonal and not commuting, all subsets; and roots of the gradient found"
        " from random heads"
    )


def _distances_of_rests(merged: MergedRisk, sizes: Array, starts: int) -> list[float]:
    """Distances of excesses from the nearest level, at roots of the gradient of heads.

    The search for the roots starts at random heads.
    """
    d = len(sizes)
    rng = np.random.default_rng(0)
    subsets = itertools.product((0.0, 1.0), repeat=d)
    levels = np.array([0.5 * float(np.array(on) @ sizes**2) for on in subsets])
    distances = []
    for _ in range(starts):
        heads = rng.normal(0.0, 0.6, (d, 1 + 2 * d))
        end = _root_of_gradient(Pullback(merged, Heads(heads, d)))
        if end is not None:
            distances.append(float(np.abs(levels - merged.excess(end)).min()))
    return distances or [math.inf]


def _root_of_gradient(risk: Pullback) -> Array | None:
    """Γ at a root of the gradient; None if the search ends at another point."""
    shape = risk.initial.shape

    def flat_gradient(flat: Array) -> Array:
        return risk.evaluate(flat.reshape(shape))[1].ravel()

    root = least_squares(
        flat_gradient,
        risk.initial.ravel(),
        xtol=1e-15,
        ftol=1e-15,
        gtol=1e-15,
        max_nfev=300,
    )
    # Other ends are minima of the gradient's norm, at which no descent rests.
    if root.cost >= 1e-24:
        return None
    return np.asarray(risk.map.inward(root.x.reshape(shape)))


@row("linear attention: merged fixed points", STAIRS.format("Eq. 9"), bound="0; 0")
def merged_fixed_points(quick: bool) -> Claim:
    """at the fixed points of heads with merged keys and queries Γ is zero or the best one"""
    law = PromptLaw(MIXED, MIXED @ MIXED, np.diag([0.4, 1.2, 1.0]), 5).dense
    merged = MergedRisk(law, np.zeros((3, 3)))
    rng = np.random.default_rng(0)
    starts = 6 if quick else 20
    distances = []
    for _ in range(starts):
        heads = MergedHeads(rng.normal(0.0, 0.6, (3, 10)), 3)
        end = _root_of_gradient(Pullback(merged, heads))
        if end is not None:
            distances.append(min(np.abs(end).max(), apart(end, law.best)))
    # With values of zero only the values have a gradient, ⟨G, A_h⟩.
    G = merged.evaluate(np.zeros((3, 3)))[1].ravel()
    entries = rng.normal(size=(3, 9))
    entries -= np.multiply.outer(entries @ G / (G @ G), G)
    heads = MergedHeads(np.column_stack([np.zeros(3), entries]), 3)
    slope = np.abs(Pullback(merged, heads).evaluate(heads.start)[1]).max()
    return Claim.of(
        max(distances, default=math.inf) < 1e-6 and slope < 1e-12,
        f"d = H = 3, matrices that do not commute; roots of the gradient found from {starts} random heads, and heads"
        " with values of zero",
        # Rounding decides from which starts the search finds a root, so the number of roots is not printed.
        f"roots off by at most {decade(max(distances, default=math.inf))}; slopes at values of zero with A_h"
        f" orthogonal to the gradient of Γ below {decade(slope)}",
        "holds for Γ; among the parameters with Γ = 0 all values of zero with A_h orthogonal to the gradient of Γ are"
        " fixed, where equation 9a has the origin alone",
    )


@row("linear attention: levels", STAIRS.format("Eq. 19"), bound="0")
def levels(quick: bool) -> Claim:
    """from small starts the loss rests at one level after the other, ½Σ_{j>k} σ_j² above its floor"""
    distances = []
    starts = (0.03, 0.01) if quick else (0.03, 0.01, 0.003)
    base = LinearAttention(
        d=3,
        decay=1.0,
        N=20,
        coordinates="heads",
        heads=3,
        eta=0.1,
        above=1e-4,
        method="fast",
    )
    for start in starts:
        run = base.changed(start=start).simulate()
        excess = run.observed["excess"]
        of_levels = [
            _distance_from_level(run.t, excess, base.law().rank_excess(k))
            for k in range(3)
        ]
        distances.append(max(of_levels))
    return Claim.of(
        max(distances) < 1e-3 and distances[-1] < 0.1 * distances[0],
        f"d = H = 3, λ_j = 1/j, N = 20, random heads of size {listed(starts)}",
        f"where it falls slowest near the levels the excess is off by at most {listed(distances, '.0e')} of them",
    )


def _distance_from_level(t: Any, excess: Array, level: float) -> float:
    """The relative distance from a level where the excess falls slowest near it."""
    slowest = _slowest_near_level(t, excess, level)
    return abs(float(excess[slowest]) / level - 1.0)


def _slowest_near_level(t: Any, excess: Array, level: float) -> int:
    """Return the saved state near a level at which the excess falls slowest."""
    near = np.flatnonzero(np.abs(np.log(excess[1:] / level)) < 0.2)
    slopes = (excess[near] - excess[near + 1]) / (t[near + 1] - t[near])
    return int(near[np.argmin(slopes)]) + 1


@row("linear attention: early stopping", STAIRS.format("section 4"), bound="-> 0")
def early_stopping(quick: bool) -> Claim:
    """stopped while m directions are learnt, the layer predicts as regression on the
    first m principal components does
    """
    lengths = (30, 300) if quick else (30, 300, 3000)
    start = 0.03 if quick else 1e-3
    base = LinearAttention(
        d=3,
        decay=1.0,
        coordinates="heads",
        heads=3,
        eta=0.1,
        start=start,
        above=1e-4,
        method="fast",
    )
    gaps = np.array([_gaps_to_component_regression(base, N) for N in lengths])
    worst = gaps.max(axis=1)
    exponent = power(lengths, worst)
    return Claim.of(
        exponent < -0.9,
        f"d = H = 3, λ_j = 1/j, N = {listed(lengths)}, heads from {start:g}, stopped where"
        " the loss falls slowest; mean squared gap between both predictions over the"
        " mean square of the regression's",
        f"largest gap of m = 1, 2 {listed(worst, '.2g')}, like N^{exponent:.2f}",
        "holds for long prompts; in short ones the layer shrinks the components",
    )


def _gaps_to_component_regression(base: LinearAttention, N: int) -> list[float]:
    """Return the gaps for one and two learnt directions, for prompts of N pairs.

    A gap is the mean squared difference of two predictions xᵀΓh, relative to the mean
    square of the second. Regression on the first m principal components has the
    matrix Γ with 1/λ_j for j <= m, and zeros.
    """
    problem = base.changed(N=N)
    law = problem.law()
    run = problem.simulate()
    excess = run.observed["excess"]
    gaps = []
    for m in (1, 2):
        stop = _slowest_near_level(run.t, excess, law.rank_excess(m))
        is_component = np.arange(law.d) < m
        regression = np.diag(np.where(is_component, 1.0 / law.covariance, 0.0))
        difference = problem.gamma(run.states[stop]) - regression
        # E (xᵀDh)² = Σ λ_i D_ij² M_j for a matrix D.
        weights = np.multiply.outer(law.covariance, law.second)
        square_gap = np.sum(weights * difference**2)
        gaps.append(float(square_gap / np.sum(weights * regression**2)))
    return gaps


def times_at_levels(problem: LinearAttention, start: float) -> Array:
    """Return ηt that the loss spends near the level of m learnt directions, (d,).

    The loss is near a level if it is within a tenth of the distance to the next level
    above or below. The first level, m = 0, has no level above it.
    """
    law = problem.law()
    levels = np.array([law.rank_excess(m) for m in range(law.d + 1)])
    run = problem.changed(start=start, above=0.5 * levels[-2], method="flow").simulate()
    falls = -np.diff(levels)
    lower = levels[:-1] - 0.1 * falls
    upper = levels[1:-1] + 0.1 * falls[:-1]

    def time_of(excess: Array) -> Array:
        # np.interp needs increasing abscissae, and the excess falls.
        return np.interp(-np.log(excess), -np.log(run.observed["excess"]), run.t)

    return problem.rate() * (time_of(lower) - np.append(0.0, time_of(upper)))


# The starts of the program beside the paper lie between them.
RANK_STARTS = (0.002, 0.0005)
QUICK_RANK_STARTS = (0.01, 0.005)


def rests_of_rank(d: int, rank: int, starts: tuple[float, float], seeds: int) -> Array:
    """Return `times_at_levels` for both starts, medians over random heads, (2, d).

    Eigenvalues and number of heads are those of the program beside the paper.
    """
    eigenvalues = np.arange(d, 0.0, -1.0)
    heads = LinearAttention(
        covariance=eigenvalues / eigenvalues.sum(),
        N=31,
        coordinates="heads",
        heads=d + 1,
        rank=rank,
    )
    medians = []
    for start in starts:
        times = [
            times_at_levels(heads.changed(seed=seed), start) for seed in range(seeds)
        ]
        medians.append(np.median(times, axis=0))
    return np.array(medians)


@row("linear attention: rank of heads", STAIRS.format("section 5"), bound="1; 0")
def rank_of_heads(quick: bool) -> Claim:
    """heads of rank R have conspicuous plateaus only at levels of m directions with m
    divisible by R: the time there grows like 1/start, and at the levels between it is
    brief
    """
    cases = ((4, 2),) if quick else ((8, 2), (8, 4))
    seeds = 1 if quick else 5
    starts = QUICK_RANK_STARTS if quick else RANK_STARTS
    words = []
    plateau_growth = list[float]()
    time_between = list[float]()
    for d, rank in cases:
        early, late = rests_of_rank(d, rank, starts, seeds)
        for m in range(d):
            if m % rank == 0:
                plateau_growth.append(power(starts, (early[m], late[m])))
            else:
                # This level is between two plateaus. Divide the time at it by the time
                # on the plateau before.
                time_between.append(late[m] / late[m - m % rank])
        words.append(f"R = {rank}: {listed(late, '.0f')}")
    return Claim.of(
        max(plateau_growth) < -0.75 and max(time_between) < 0.15,
        f"d = {d}, λ_j = ({d + 1} - j)/{d * (d + 1) // 2}, {d + 1} heads, N = 31, {seeds} random starts of size"
        f" {listed(starts)}, medians",
        f"ηt within a tenth of the level of m = 0, 1, ... from {starts[1]}: {'; '.join(words)}; at"
        f" multiples of R like start^{min(plateau_growth):.1f}..{max(plateau_growth):.1f}, between at most {max(time_between):.2f} of the"
        " plateau before",
    )


def exponential(d: int, N: float) -> tuple[MixtureRisk, Array, Array]:
    """The risk for independent exponential eigenvalues, with nodes and weights.

    Sums over the Gauss–Laguerre nodes are exact.
    """
    grid, probs = layers.product_grid(np.polynomial.laguerre.laggauss, [3] * d)
    laws = [PromptLaw(spectrum, N=N) for spectrum in grid]
    return MixtureRisk(laws, probs), grid, probs


def published_mixture(N: float, grid: Array, probs: Array) -> Array:
    """Return the diagonal of (E Γ_ΛΛ²)⁻¹E Λ² of theorem 4.5 of Zhang, Frei, Bartlett 2024."""
    slopes = (1.0 + 1.0 / N) * grid + grid.sum(axis=1, keepdims=True) / N
    return np.asarray((probs @ grid**2) / (probs @ (slopes * grid**2)))


def balanced_pair(gamma: Array) -> Array:
    """Return (v, A) with vA = Γ, and v and A of one norm."""
    value = math.sqrt(float(np.linalg.norm(gamma)))
    return np.append(value, gamma / value)


@row("linear attention: random covariances", ZHANG.format("Thm 4.5"), bound="0; 1/3")
def random_covariances(quick: bool) -> Claim:
    """trained on random covariances, (v, A) converges to v = ‖C‖^½, A = C/v with
    C = (E Γ_ΛΛ²)⁻¹E Λ², Γ_Λ = (1 + 1/N)Λ + (tr Λ/N)I, and its error stays, however long
    the prompts: with exponential eigenvalues a third of the answer is predicted in the
    mean
    """
    remaining = []
    gaps = []
    answered = []
    for d, N in ((1, np.inf), (2, 10)):
        risk, grid, probs = exponential(d, N)
        best = published_mixture(N, grid, probs)
        pair = Pullback(risk, Pair(np.append(0.1, np.full(d, 0.1 / np.sqrt(d))), (d,)))
        run = descend(pair, eta=0.05, epsilon=risk.floor() + 1e-9)
        gaps += [apart(risk.best, best), apart(run.params, balanced_pair(best))]
        remaining.append(risk.floor() / risk.loss(np.zeros(d)))
        answered.append(float(np.max(probs @ (grid * best))))
    return Claim.of(
        max(gaps) < 1e-4
        and apart([remaining[0], answered[0]], 1.0 / 3.0) < 1e-12
        and remaining[1] > 1.0 / 3.0,
        "independent exponential eigenvalues; d = 1, N = inf, and d = 2, N = 10; (v, A) from 0.1",
        f"(v, A) at the end off by {decade(max(gaps))}; the loss keeps {listed(remaining, '.3f')} of its"
        f" value at Γ = 0; share of the answer in the mean {listed(answered, '.3f')}",
    )


def published_error(
    law: PromptLaw, N: int, M: int, moments: tuple[Array, Array, float]
) -> float:
    """Return the right side of equation 4.6 of Zhang, Frei, Bartlett 2024.

    The moments are E xy, the covariance of xy, and the error of the best linear
    prediction.
    """
    covariance = law.dense.moments[0]
    product, spread, least = moments
    trace = float(np.trace(covariance))
    inverse = np.linalg.inv((1.0 + 1.0 / N) * covariance + trace / N * np.eye(law.d))
    a = np.linalg.solve(covariance, product)
    squared = inverse @ inverse

    def squared_norm(k: int) -> float:
        # Λ commutes with Γ: the order of the factors is free.
        return float(a @ squared @ np.linalg.matrix_power(covariance, k) @ a)

    by_training = (
        squared_norm(3) + 2.0 * trace * squared_norm(2) + trace**2 * squared_norm(1)
    )
    by_test = float(np.trace(spread @ squared @ covariance))
    return least + by_test / M + by_training / N**2


def cubic_prompts(law: PromptLaw, M: int) -> tuple[Array, Array, Array]:
    """All tokens (n, M, d), their labels (n, M) and weights: y is linear and cubic, with noise ±½."""
    grid, weight = layers.hermite_grid([5] * (M * law.d) + [2] * M)
    covariance = law.dense.moments[0]
    normal = grid[:, : M * law.d].reshape(-1, M, law.d)
    x = normal @ np.linalg.cholesky(covariance).T
    noise = 0.5 * grid[:, M * law.d :]
    labels = x @ np.array([0.7, -0.3]) + 0.2 * x[:, :, 0] ** 3 + noise
    return x, labels, weight


@identity("linear attention: other labels", ZHANG.format("Thm 4.2"), 1e-10)
def other_labels(quick: bool) -> Errors:
    """trained at length N and tested at length M on any labels, also nonlinear ones, the error is
    that of the best linear prediction + tr(ΣΓ⁻²Λ)/M + [‖a‖²_{Γ⁻²Λ³} + 2tr Λ‖a‖²_{Γ⁻²Λ²}
    + (tr Λ)²‖a‖²_{Γ⁻²Λ}]/N², with a = Λ⁻¹E xy, Σ = Cov xy and Γ = (1 + 1/N)Λ + (tr
    Λ/N)I
    """
    for N, M in ((3, 1), (20, 2)):
        law = PromptLaw(SKEWED, N=N)
        # Prompts of one pair are the law of a pair.
        tokens, labels, weight = cubic_prompts(law, 1)
        x = tokens[:, 0]
        y = labels[:, 0]
        product = x * y[:, None]
        mean = weight @ product
        spread = (weight[:, None] * (product - mean)).T @ (product - mean)
        least = float(weight @ y**2 - mean @ np.linalg.solve(SKEWED, mean))
        tokens, labels, weights = cubic_prompts(law, M)
        h = law.best @ np.einsum("nid,ni->dn", tokens, labels) / M
        # The query and its label are independent of the prompt.
        error = float(
            np.einsum("dn,de,en,n->", h, SKEWED, h, weights)
            - 2.0 * mean @ h @ weights
            + weight @ y**2
        )
        yield error, published_error(law, N, M, (mean, spread, least))
    return (
        "d = 2, a covariance with correlation, (N, M) = (3, 1), (20, 2), cubic labels with"
        " noise; all prompts of a grid"
    )


def published_bound(spectrum: Array, N: int, epsilon: float) -> tuple[int, float]:
    """Return the least M and the bound on the error in corollary 4.3 of Zhang, Frei, Bartlett 2024.

    M is the length of test prompts, at which the finite M costs at most ``epsilon``.
    """
    d = len(spectrum)
    trace = float(spectrum.sum())
    kappa = float(spectrum.max() / spectrum.min())
    training_term = (1.0 + 2.0 * d + d**2 * kappa) * trace / N**2
    return math.ceil((d + 1.0) * trace / epsilon), epsilon + training_term


@row("linear attention: bound on the error", ZHANG.format("Cor 4.3"), bound="1")
def bound_on_error(quick: bool) -> Claim:
    """trained at length N and tested at M >= (d + 1)tr Λ/ε without noise, the mean squared error is
    at most ε + (1 + 2d + d²κ)tr Λ/N², κ the condition number of Λ
    """
    ratios = []
    for d, decay in itertools.product((1, 2, 8), (0.0, 1.0, 2.0)):
        spectrum = np.arange(1.0, d + 1.0) ** -decay
        for N, epsilon in itertools.product((1, 10, 1000), (1.0, 0.1, 1e-3, 1e-6)):
            M, bound = published_bound(spectrum, N, epsilon)
            layer = PromptLaw(spectrum, N=N).best
            error = 2.0 * PromptLaw(spectrum, N=M).loss(layer)
            ratios.append(error / bound)
    return Claim.of(
        max(ratios) <= 1.0,
        "d = 1, 2, 8, λ_j = 1, 1/j, j^-2, N = 1, 10, 1000, ε = 1, 0.1, 1e-3, 1e-6; the least M",
        f"error over the bound {min(ratios):.1g}..{max(ratios):.4f}",
        "holds",
    )


@row(
    "linear attention: length of the test",
    ZHANG.format("Thm 4.2 (our constants)"),
    bound="-2; 0; 1",
)
def length_of_test(quick: bool) -> Claim:
    """trained at length N and tested at M the error is that of M = ∞, of order 1/N², plus one of order 1/M"""
    spectrum = 1.0 / np.arange(1.0, 9.0)
    lengths = np.array([10**4, 10**5, 10**6])
    tests = [math.inf, 10, 1000, 10**5]
    trained = [PromptLaw(spectrum, N=N).best for N in lengths.tolist()]
    table = np.array(
        [[PromptLaw(spectrum, N=M).loss(gamma) for M in tests] for gamma in trained]
    )
    floor = table[:, 0]
    rest = (table[:, 1:] - table[:, :1]) * tests[1:]
    straight = off(rest, rest[:, :1])
    leading = (
        0.5 * float(np.sum((spectrum + spectrum.sum()) ** 2 / spectrum)) / lengths**2
    )
    return Claim.of(
        abs(power(lengths, floor) + 2.0) < 0.01
        and straight < 1e-6
        and off(floor[-1], leading[-1]) < 1e-3,
        f"d = 8, λ_j = 1/j, no noise; N = {lengths[0]}..{lengths[-1]}, M = 10, 1000, 10⁵ and ∞",
        f"at M = ∞ like N^{power(lengths, floor):.3f}, {floor[-1] / leading[-1]:.4f} of ½Σ(λ_j + tr Λ)²/(λ_jN²); M"
        f" times the rest is constant to {decade(straight)}",
        "holds: longer tests help until M is of the order N²; then only longer training prompts do",
    )


@identity(
    "linear attention: other covariances",
    ZHANG.format("section 4.2 (exact form)"),
    1e-10,
)
def other_covariances(quick: bool) -> Errors:
    """trained on long prompts of covariance Λ the layer has on those of Λ' the loss ½tr Λ'(Λ⁻¹Λ' - I)(Λ'Λ⁻¹ - I):
    as much as predicting 0 where Λ' = 2Λ, and more beyond
    """
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
        missed = np.linalg.solve(SKEWED, covariance) - np.eye(2)
        loss = 0.5 * float(np.sum(covariance * (missed @ missed.T)))
        yield apart(law.loss(gamma), loss)
    yield apart(PromptLaw(double).loss(gamma), PromptLaw(double).loss(np.zeros((2, 2))))
    return "d = 2, N = ∞, Γ at the end of a run; Λ' = Λ, 2Λ, 3Λ and two that do not commute with Λ"


PAPERS = (
    Paper(
        "preconditioned-descent",
        "Transformers learn to implement preconditioned gradient descent for in-context learning",
        "Kwangjun Ahn, Xiang Cheng, Hadi Daneshmand, Suvrit Sra",
        2023,
        "arXiv:2306.00297",
        (
            Reading(
                "Theorem 1",
                "The best layer is a step of gradient descent; its preconditioner depends on the covariance of the"
                " inputs and on the length.",
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
                "For isotropic data the best two layers with symmetric matrices may be taken diagonal.",
                (layers.two_layers,),
            ),
            Reading(
                "Theorem 3",
                "If tasks have the covariance Σ⁻¹, the gradient comes arbitrarily close to zero among layers that"
                " descend with multiples of Σ⁻¹. In experiments training finds such layers.",
                (layers.inverse_layers,),
            ),
            Reading(
                "Theorem 4",
                "The same of layers that also change the inputs, with B a multiple of I: GD++ if Σ = I.",
                (layers.plus_plus,),
            ),
            Reading(
                "Theorem 5",
                "With ReLU scores, isotropic data and zeros as the last row of Q the best layer has the form that it"
                " has in linear attention.",
                (layers.relu_attention,),
            ),
        ),
        setting=Setting(
            "linear-attention?decay=2&test_decay=2&t=1000000000",
            (
                "Each direction of Γ comes to its best value, largest eigenvalue first: "
                "one step of descent with a preconditioner, as in Theorem 1. Along "
                "small eigenvalues, of which the prompt says little, it stays far below "
                "the 1/λ of least squares."
            ),
        ),
        credit="The best layer of linear attention, and several",
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
                "Gradient flow from a small balanced start converges to the best layer.",
                (limits, small_starts, every_mode),
            ),
            Reading(
                "Theorem 4.2",
                "Tested on other labels and at another length than trained on, the layer's error exceeds that of the"
                " best linear prediction by terms of the orders 1/N² and 1/M.",
                (other_labels, length_of_test),
                reconstructed="that longer tests help until M is of the order N²",
            ),
            Reading(
                "Corollary 4.3",
                "On linear labels the mean squared error is at most ε + (1 + 2d + d²κ)tr Λ/N² if M >= (d + 1)tr Λ/ε.",
                (bound_on_error,),
            ),
            Reading(
                "distribution shifts",
                "In long prompts the trained layer works for other tasks and queries; it fails if the covariance"
                " of the tokens changes.",
                (shifts, other_covariances),
                figure="shifts",
                reconstructed="what another covariance costs",
            ),
            Reading(
                "Theorem 4.5",
                "Trained on prompts with random diagonal covariances, the layer becomes the best one, which keeps a"
                " large error even in long prompts.",
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
        credit="Its convergence, and distribution shifts",
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
                "The layer with merged keys and queries has two fixed points, heads with separate ones have"
                " exponentially many.",
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
                "Heads go from saddle to saddle and learn one principal direction after another.",
                (staircase, levels),
                figure="staircase",
            ),
            Reading(
                "rank of keys and queries",
                "Heads of rank R have conspicuous plateaus only at the levels of 0, R, 2R, ... directions.",
                (rank_of_heads,),
            ),
            Reading(
                "Early stopping",
                "A layer whose training is stopped early does regression on the first principal components.",
                (early_stopping,),
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
        credit="One drop and staircases",
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
        "Yue M. Lu, Mary I. Letey, Jacob A. Zavatone-Veth, Anindita Maiti, Cengiz Pehlevan",
        2024,
        "arXiv:2405.11751",
        (
            Reading(
                "transition in task diversity",
                "The layer memorises few pretraining tasks; with many it learns in context.",
                (transition,),
                figure="task_diversity",
            ),
            Reading(
                "double descent",
                "The loss has a double descent as the number of pretraining prompts grows.",
                (double_descent,),
                reconstructed="Fits of the least norm, the place of the peak, and the limit.",
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
            "Observed by Allan Raventós, Mansheej Paul, Feng Chen, Surya "
            "Ganguli. *Pretraining task diversity and the emergence of non-"
            "Bayesian in-context learning for regression*. 2023. "
            "[arXiv:2306.15063](https://arxiv.org/abs/2306.15063)."
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
