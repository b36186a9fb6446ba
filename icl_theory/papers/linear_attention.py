"""Papers on linear attention: rows of the audit, open questions, and what each paper says."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from scipy.linalg import sqrtm
from scipy.optimize import least_squares

from icl_theory._validate import Array
from icl_theory.engine import Pullback, descend
from icl_theory.engine.statement import OURS, Status
from icl_theory.families.linear_attention import Heads, LinearAttention, MergedRisk, MixtureRisk, Pair, PromptLaw
from icl_theory.families.linear_attention.depth import LoopedRisk, best_layers
from icl_theory.families.linear_attention.diversity import (
    diversity_limit,
    pretrained,
    pretraining_limit,
    task_diversity,
)
from icl_theory.families.linear_attention.risks import balanced_flow
from icl_theory.families.linear_attention.shifts import shift_table
from icl_theory.papers import preconditioned_descent as layers
from icl_theory.papers.claim import Errors, Found, Series, identity, question, row
from icl_theory.papers.numbers import apart, decade, deviations, listed, losses, named, off, power
from icl_theory.papers.paper import Claims, Paper, Reading
from icl_theory.papers.preconditioned_descent import SKEWED

AHN, ZHANG = "Ahn, Cheng, Daneshmand, Sra 2023, {}", "Zhang, Frei, Bartlett 2024, {}"
STAIRS = "Zhang, Singh, Latham, Saxe 2025, {}"
PRIOR, QUERY = np.array(((1.5, -0.4), (-0.4, 0.6))), np.array(((0.4, 0.1), (0.1, 1.2)))
MIXED = np.array(((1.0, 0.3, 0.1), (0.3, 0.5, -0.1), (0.1, -0.1, 0.4)))


def skewed(N: int, noise: float) -> PromptLaw:
    """A law in two dimensions whose matrices do not commute."""
    return PromptLaw(SKEWED, PRIOR, QUERY, N, noise)


def prompt_moments(law: PromptLaw) -> tuple[Array, Array]:
    """E h hᵀ and E w hᵀ over all prompts of a Gauss–Hermite grid, which is exact: no formula of `PromptLaw`."""
    d, N = law.d, int(law.N)
    grid, weight = layers.hermite_grid([3] * (N * d) + [2] * (d + N))
    covariance, prior = (np.linalg.cholesky(matrix) for matrix in law.dense.moments[:2])
    tokens = grid[:, : N * d].reshape(-1, N, d) @ covariance.T
    task = grid[:, N * d : N * d + d] @ prior.T
    labels = np.einsum("nid,nd->ni", tokens, task) + law.noise * grid[:, N * d + d :]
    h = np.einsum("ni,nid->nd", labels, tokens) / N
    return (weight[:, None] * h).T @ h, (weight[:, None] * task).T @ h


@identity("linear attention: minimiser", f"{AHN.format('Thm 1')}; {ZHANG.format('convergence')}", 1e-12)
def population_loss(quick: bool) -> Errors:
    """L(Γ) = ½ tr Λq(ΓMΓᵀ - 2ΓΛW + W), M = (1 + 1/N)ΛWΛ + (tr ΛW + σ²)Λ/N; minimum at WΛM⁻¹, whatever Λq"""
    rng = np.random.default_rng(0)
    for law in (skewed(1, 0.5), skewed(2, 0.0), skewed(2, 0.8)):
        second, cross = prompt_moments(law)
        best = np.linalg.solve(second, cross.T).T
        yield np.abs(law.best - best).max() / np.abs(best).max()
        _, prior, query = law.moments
        for gamma in rng.normal(size=(5, 2, 2)):
            yield law.loss(gamma), 0.5 * np.sum(query * (gamma @ second @ gamma.T - 2.0 * gamma @ cross.T + prior))
    return "d = 2, N = 1, 2, σ = 0, 0.5, 0.8, matrices that do not commute; moments over all prompts of a grid"


@identity("linear attention: every mode", OURS, 1e-10)
def every_mode(quick: bool) -> Errors:
    """merged: u_aᵀ(Γ - Γ*)v_b shrinks by 1 - ηq_a m_b in each step; stable below η = 2/(q_max m_max)"""
    risk = MergedRisk(skewed(3, 0.4), np.random.default_rng(1).normal(size=(2, 2)))
    for rate in (0.3, 1.0, 1.9):
        eta = rate / float(risk.curvature.max())
        form, run = risk.closed_form(eta, "gd"), descend(risk, eta, steps=300 if quick else 3000)
        assert form is not None
        yield np.abs(form.states(run.t) - run.states).max() / np.abs(run.states).max()
    return "d = 2, matrices that do not commute; rates up to 1.9 of 2; single steps"


@identity("linear attention: one drop", STAIRS.format("merged keys and queries"), 1e-7)
def one_drop(quick: bool) -> Errors:
    """(v, A), isotropic, balanced: Γ = γI, γ = γ*/(1 + (γ*/γ₀ - 1)e^(-2√d λ²τ)): a plateau and one drop, at a
    rate free of N and σ
    """
    for d, N, noise in ((2, 5, 0.0), (8, 30, 0.7)):
        small = LinearAttention(d=d, N=N, noise=noise, coordinates="pair", start=1e-3, eta=0.01, above=1e-8)
        run = small.changed(method="flow").simulate()
        yield run.states[:, 0] * run.states[:, 1], balanced_flow(small.law(), 1e-3, 0.01 * run.t)
    return "d = 2, 8, N = 5, 30, σ = 0, 0.7, from 1e-3; the flow integrated to 1e-10"


@row("linear attention: small starts", ZHANG.format("convergence"), bound="1e-9")
def small_starts(quick: bool) -> Found:
    """(v, A) from a small balanced start converges to the minimum"""
    starts, base = (1e-2, 1e-4) if quick else (1e-1, 1e-2, 1e-4, 1e-6), LinearAttention(d=4, noise=0.5, above=1e-9)
    cases = itertools.product((0.0, 1.0), starts)
    ends = []
    for problem in (base.changed(decay=decay, start=start, coordinates="pair") for decay, start in cases):
        spectrum, N, gamma = problem.law().covariance, problem.N, problem.gamma(problem.simulate().params)
        least = 1.0 / ((1.0 + 1.0 / N) * spectrum + (spectrum.sum() + problem.noise**2) / N)
        ends.append(0.5 * float(np.sum(spectrum**2 / least * (gamma - least) ** 2)))
    return Found(
        max(ends) <= 1.01e-9,
        f"d = 4, λ_j = 1 and 1/j, σ = 0.5, {len(ends)} starts down to {starts[-1]:g}, stable rate",
        f"largest excess at the end {max(ends):.1e}, of Γ over ((1 + 1/N)Λ + (tr Λ + σ²)I/N)⁻¹",
    )


def aligned(d: int, size: float) -> Array:
    """Heads of which each is along an axis, with a value, a key and a query of one size."""
    return size * np.hstack([np.ones((d, 1)), np.eye(d), np.eye(d)])


def plateaus(quick: bool) -> tuple[Array, Array, Array]:
    """Starts, and the plateaus ηt of (v, A) and of aligned heads, for Λ = I in 2 dimensions."""
    starts, eta, found = np.geomspace(0.1, 2e-3 if quick else 1e-4, 5), 0.02, []
    base = LinearAttention(d=2, N=100, eta=eta, above=0.1)
    for start in starts.tolist():
        pair = base.changed(coordinates="pair", start=start, method="exact").simulate()
        # shorter steps would change nothing: the flow's time is what is measured
        heads = base.changed(coordinates="heads", heads=2, start=aligned(2, start), method="fast").simulate()
        found.append([eta * run.phases.plateau[1] for run in (pair, heads) if run.phases is not None])
    return starts, *np.array(found).T


@row("linear attention: plateau", STAIRS.format("small starts"), bound="1; 1")
def plateau_lengths(quick: bool) -> Found:
    """the plateau grows like ln(1/start)/(η‖ΛqWΛ‖) for (v, A)"""
    starts, pair, heads = plateaus(quick)
    slope = float(np.polyfit(np.log(1.0 / starts[1:]), pair[1:], 1)[0]) * math.sqrt(2.0)
    ratio = float(heads[-1] * starts[-1])
    return Found(
        off([slope, ratio], 1.0) < 0.03,
        f"Λ = I, d = 2, N = 100, starts 0.1 to {starts[-1]:g}",
        f"(v, A): slope in ln(1/start) {slope:.3f} of it; heads with separate keys and queries: {ratio:.3f} of"
        " 1/(ηλ² start)",
        "holds for (v, A); with separate keys and queries it grows like 1/start",
    )


@question("linear-attention-plateau", "1 / start", "plateau, ηt")
def which_plateau(quick: bool) -> tuple[str, list[Series]]:
    """Does the plateau grow like ln(1/start)?"""
    starts, *found = plateaus(quick)
    x, (pair, heads) = 1.0 / starts, found
    slow, fast = (power(x[-2:], each[-2:]) for each in found)
    merged = "Only with keys and queries merged" if slow < 0.3 < 0.9 < fast else "These runs do not decide it"
    return (
        f"{merged}: from start {starts[-2]:.2g} to {starts[-1]:.2g} it grows like start^-{slow:.2f} for (v, A),"
        f" ηt = ln(1/start)/√2 + const, and like start^-{fast:.2f} for heads with separate keys and queries,"
        " whose product of three small numbers leaves the saddle in a time 1/(ηλ² start) (Λ = I, d = 2, N = 100).",
        [Series("(v, A)", x, pair, points=True), Series("heads", x, heads, points=True),
         Series("ln(1/start)/√2", x, np.log(x) / math.sqrt(2.0)), Series("1/start", x, x)],
    )  # fmt: skip


@row("linear attention: staircase", STAIRS.format("separate keys and queries"), bound="flow; all")
def staircase(quick: bool) -> Found:
    """heads learn one direction of Λ after the other, the largest eigenvalue first; head j, alone along its
    direction, follows s' = λ(λ - ms³)s²
    """
    base = LinearAttention(d=3, decay=1.0, N=50, above=1e-4, method="exact", coordinates="heads", heads=3)
    alone, seeds = base.changed(eta=0.05, start=aligned(3, 0.02)), range(2 if quick else 8)
    law, times = alone.law(), []
    for spectrum, m, best in zip(law.covariance, law.second, law.best, strict=True):
        s = np.linspace(0.02, (0.5 * best) ** (1 / 3), 200_001)
        times.append(np.trapezoid(1.0 / (spectrum * (spectrum - m * s**3) * s**2), s))
    late = off(_half_times(alone), np.array(times) / alone.rate())
    orders = [(np.diff(_half_times(base.changed(start=0.02, seed=seed, eta=0.1))) >= 0.0).all() for seed in seeds]
    return Found(
        late < 0.01 and all(orders),
        f"d = H = 3, λ_j = 1/j, start 0.02, aligned, and random of {len(orders)} seeds; steps to half of Γ*_j",
        f"aligned: times off by at most {late:.1%}; random: {sum(orders)} of {len(orders)} in order",
    )


def _half_times(problem: LinearAttention) -> Array:
    run, half = problem.simulate(), 0.5 * problem.law().best
    passed = [run.first(lambda at, j=j: bool(at.observed["gamma"][j] >= half[j])) for j in range(len(half))]  # type: ignore[misc]
    return np.array([math.inf if step is None else step for step in passed])


@row("linear attention: shifts", ZHANG.format("distribution shifts"), Status.EXACT, "0")
def shifts(quick: bool) -> Found:
    """what is trained holds on other queries and tasks, and fails where the tokens or the length change"""
    base, j = LinearAttention(d=8, decay=1.0, N=20, noise=0.5), np.arange(1.0, 9.0)
    names = ("query", "covariate", "length", "noise", "task")
    changes: list[dict[str, Any]] = [{"query": j}, {"decay": 2.0}, {"N": 5}, {"noise": 2.0}, {"prior": 1.0 / j}]
    table = shift_table({"base": base, **{k: base.changed(**v) for k, v in zip(names, changes, strict=True)}})
    query, *others = shares = (table.excess[0] / table.floor)[1:].tolist()
    return Found(
        query < 1e-12 and min(others) > 1e-3,
        "d = 8, λ_j = 1/j -> j^-2, N = 20 -> 5, σ = 0.5 -> 2, W = I -> diag(1/j), Λq -> diag(j)",
        "excess, in shares of the least loss there: " + named(dict(zip(names, shares, strict=True)), ".1%"),
        "holds only for the query alone: other tasks cost as well, where their second moment is another",
    )


@row("linear attention: task diversity", "Raventós et al. 2023; Lu et al. 2024", bound="0.25, 0, 0")
def transition(quick: bool) -> Found:
    """trained on k tasks it memorises them below k ≈ d and learns in context above"""
    d, draws = (32, 4) if quick else (64, 10)
    worst, known, shares, kink = memorised(d, draws)
    learns = all(first > 10.0 and 1.0 < last < 1.1 for first, *_, last in known)
    keeps = all(first < 0.4 and 0.9 < last < 1.0 for first, *_, last in shares)
    return Found(
        worst < 0.1 and apart(kink, (0.25, 0.0, 0.0)) < 1e-3 and learns and keeps,
        f"d = {d}, N = 4d, 64d, σ = 0.5, k/d = 1/4..8; and the limit of long prompts",
        f"loss on new tasks over that on the k tasks {' and '.join(f'{x[0]:.0f} ... {x[-1]:.2f}' for x in known)}"
        " at k/d = 1/4 ... 8, loss on the k tasks over that of the layer for all tasks"
        f" {' and '.join(f'{share[0]:.2f} ... {share[-1]:.2f}' for share in shares)}; both off the limit d, k,"
        f" N -> ∞ by at most {worst:.0%}; N/d -> ∞: new loss/d {listed(kink, '.3f')} at k/d = 1/2, 1, 2",
        "holds: (1 - k/d)/2 below k = d in long prompts, a smooth crossover in short ones",
    )


def memorised(d: int, draws: int) -> tuple[float, list[Array], list[Array], Array]:
    """How far losses are off their limit, both ratios of the row on tasks, and new losses/d in long prompts."""
    worst, known, shares, ratios = 0.0, list[Array](), list[Array](), np.array([0.25, 0.5, 1.0, 2.0, 8.0])
    for N in (4 * d, 64 * d):
        problem, sizes = LinearAttention(d=d, N=N, noise=0.5), (ratios * d).astype(int).tolist()
        found = task_diversity(problem, sizes, draws=draws).mean()
        worst = max(worst, *map(off, found, diversity_limit(d, N, 0.5, ratios)))
        known.append(found.new / found.pretraining)
        shares.append(found.pretraining / problem.law().floor)
    return worst, known, shares, diversity_limit(d, 1e9, 0.0, np.array([0.5, 1.0, 2.0])).new / d


@row("linear attention: finitely many prompts", "Lu et al. 2024 (reconstructed)", bound="peak at n = d²")
def double_descent(quick: bool) -> Found:
    """trained to the end on n prompts, the loss on new tasks peaks at n = d², and is near its limit elsewhere"""
    d, draws, shares = (8, 10, (0.5, 1.0, 4.0)) if quick else (16, 20, (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0))
    counts, losses, limits = [round(share * d * d) for share in shares], [], []
    for tasks in (None, d // 2):
        problem = LinearAttention(d=d, N=4 * d, noise=0.5, tasks=tasks)
        found = [[problem.new_tasks().loss(pretrained(problem, n, seed)) for seed in range(draws)] for n in counts]
        losses.append(np.median(found, axis=1) / d)
        limits.append(pretraining_limit(problem, counts).new / d)
    apart_by = max(abs(losses[at][i] / limits[at][i] - 1.0) for at in (0, 1) for i in (shares.index(0.5), -1))
    return Found(
        all(counts[int(np.argmax(each))] == d * d for each in losses) and apart_by < (0.5 if quick else 0.2),
        f"d = {d}, N = 4d, σ = 0.5, all tasks and k = d/2, n/d² = {listed(shares, 'g')}, median of {draws}",
        f"new loss/d {listed(losses[0], '.2f')} and {listed(losses[1], '.2f')}; limit {listed(limits[0], '.2f')}"
        f" and {listed(limits[1], '.2f')}",
    )


def best_losses(N: int, depths: Iterable[int]) -> tuple[Array, Array]:
    """Least losses over d = 8 of layers in a loop and of layers of their own, for Λ = I without noise."""
    loop, own = np.transpose([(LoopedRisk(8, N, D).floor() / 8, best_layers(8, N, D).loss / 8) for D in depths])
    return loop, own


@row("linear attention: depth", f"{AHN.format('several layers')}; von Oswald et al. 2023", bound="falls")
def depth(quick: bool) -> Found:
    """each layer is a step of gradient descent on the prompt, and more layers reach a lower loss"""
    depths = (1, 2, 4, 8) if quick else (1, 2, 4, 8, 16)
    loop, own = best_losses(20, depths)
    models, count = {D: LinearAttention(d=8, N=20, depth=D) for D in depths[1:3]}, 10 if quick else 25
    sampled = [losses(each.sampled(4000, seed=D), LoopedRisk(8, 20, D).best, count) for D, each in models.items()]
    z = float(deviations(np.transpose(sampled) / 8, loop[1:3]).max())
    return Found(
        (np.diff(loop) < 0.0).all() and z < 5.0 and (own <= loop * (1 + 1e-12)).all(),
        f"Λ = I, d = 8, N = 20, D = {listed(depths)}; D = 2, 4 against sampled layers",
        f"best loss/d in a loop {listed(loop, '.3g')}; of layers of their own {listed(own, '.2g')}; largest |z|"
        f" {z:.1f}",
    )


@question("linear-attention-depth", "layers", "least loss / d")
def what_depth_buys(quick: bool) -> tuple[str, list[Series]]:
    """What does depth buy?"""
    depths = np.arange(1, 9 if quick else 17)
    found = {N: best_losses(N, depths.tolist()) for N in (20, 80)}
    words = "; ".join(f"N = {N}: {loop[0]:.3g} of one layer, {loop[-1]:.2g} of {depths[-1]} in a loop,"
                      f" {own[-1]:.1g} of {depths[-1]} layers of their own"
                      for N, (loop, own) in found.items())  # fmt: skip
    return words + (
        " (least loss/d, Λ = I, d = 8, no noise). A loop repeats one step of gradient descent; layers of their"
        " own are the best polynomial of their degree, as Chebyshev's method is."
    ), [Series(f"{('loop', 'own')[at]}, N = {N}", depths, each[at], points=not at)
        for at in (0, 1) for N, each in found.items()]  # fmt: skip


def split(law: PromptLaw) -> tuple[Array, Array, Array]:
    """Singular values of Λq^½Γ*M^½, and factors q, k (d, d) with Γ* = Σ qᵀk: the heads of the fixed points."""
    roots = [np.asarray(sqrtm(matrix)) for matrix in (law.dense.moments[2], law.dense.second)]
    best = law.dense.moments[1] @ law.dense.covariance @ np.linalg.inv(law.dense.second)
    U, sizes, V = np.linalg.svd(roots[0] @ best @ roots[1])
    return sizes, np.linalg.solve(roots[0], U * np.sqrt(sizes)).T, np.linalg.solve(roots[1], V.T * np.sqrt(sizes)).T


@identity("linear attention: fixed points", STAIRS.format("fixed points (exact form)"), 1e-10)
def fixed_points(quick: bool) -> Errors:
    """heads of rank one rest at 2^d matrices Γ, one a set S of directions, and at no others; the excess is
    ½Σ_{j∉S} σ_j²; for W = I, Λq = Λ the loss is ½[tr Λ - Σ_{j∈S} λ_j/(1 + (1 + (tr Λ + σ²)/λ_j)/N)]
    """
    spectrum = np.array([1.0, 0.5, 0.3])
    for law in (PromptLaw(spectrum, N=10, noise=0.5), PromptLaw(MIXED, MIXED @ MIXED, np.diag([0.4, 1.2, 1.0]), 5)):
        (sizes, queries, keys), merged = split(law), MergedRisk(law.dense, np.zeros((3, 3)))
        for chosen in itertools.product((0.0, 1.0), repeat=3):
            on = np.array(chosen)
            risk = Pullback(merged, Heads(np.column_stack([on, on[:, None] * keys, on[:, None] * queries]), 3))
            loss, gradient = risk.evaluate(risk.initial)
            yield np.abs(gradient).max()
            yield apart(loss - law.floor, 0.5 * float((1.0 - on) @ sizes**2))
            if law.diagonal:
                seen = spectrum / (1.0 + (1.0 + (spectrum.sum() + law.noise**2) / spectrum) / law.N)
                yield apart(loss, 0.5 * float(spectrum.sum() - on @ seen))
        yield from _rests(merged, sizes, 6 if quick else 20)
    return "d = 3, diagonal and not commuting, all subsets; and roots of the gradient found from random heads"


def _rests(merged: MergedRisk, sizes: Array, starts: int) -> list[float]:
    """How far excesses are off the nearest level where gradients of random heads have been made zero."""
    d, rng = len(sizes), np.random.default_rng(0)
    levels = np.array([0.5 * float(np.array(off) @ sizes**2) for off in itertools.product((0.0, 1.0), repeat=d)])
    found = []
    for _ in range(starts):
        risk = Pullback(merged, Heads(rng.normal(0.0, 0.6, (d, 1 + 2 * d)), d))
        root = least_squares(lambda x, risk=risk: risk.evaluate(x.reshape(d, -1))[1].ravel(), risk.initial.ravel(),
                             xtol=1e-15, ftol=1e-15, gtol=1e-15, max_nfev=300)  # fmt: skip
        if root.cost < 1e-24:  # other ends are minima of the gradient's norm, at which nothing rests
            found.append(float(np.abs(levels - merged.excess(risk.map.inward(root.x.reshape(d, -1)))).min()))
    return found or [math.inf]


@row("linear attention: levels", STAIRS.format("separate keys and queries"), bound="0")
def levels(quick: bool) -> Found:
    """from small starts the loss rests at one level after the other, ½Σ_{j>k} σ_j² above its floor"""
    found, starts = [], (0.03, 0.01) if quick else (0.03, 0.01, 0.003)
    base = LinearAttention(d=3, decay=1.0, N=20, coordinates="heads", heads=3, eta=0.1, above=1e-4, method="fast")
    for start in starts:
        run = base.changed(start=start).simulate()
        found.append(max(_off_level(run.t, run.observed["excess"], base.law().rank_excess(k), k) for k in range(3)))
    return Found(
        max(found) < 1e-3 and found[-1] < 0.1 * found[0],
        f"d = H = 3, λ_j = 1/j, N = 20, random heads of size {listed(starts)}",
        f"where it falls slowest near the levels the excess is off by at most {listed(found, '.0e')} of them",
    )


def _off_level(t: Any, excess: Array, level: float, k: int) -> float:
    near = np.flatnonzero(np.abs(np.log(excess[1:] / level)) < 0.2)
    slope = (excess[near] - excess[near + 1]) / (t[near + 1] - t[near])
    return abs(float(excess[near[np.argmin(slope)] + 1]) / level - 1.0)


@row("linear attention: few heads", STAIRS.format("low rank (exact form)"), bound="0")
def few_heads(quick: bool) -> Found:
    """H heads of rank R with HR < d learn HR directions: the excess ends at ½Σ_{j>HR} σ_j²"""
    shapes = ((1, 1), (2, 1)) if quick else ((1, 1), (2, 1), (1, 2), (3, 1))
    base = LinearAttention(d=4, decay=1.0, N=20, coordinates="heads", start=0.1, above=1e-9, method="fast")
    law, left = base.law(), split(base.law())[0] ** 2
    ends = [float(base.changed(heads=H, rank=R).simulate().loss[-1]) for H, R in shapes]
    error = apart(ends, [law.loss(law.best) + 0.5 * float(np.sum(left[H * R :])) for H, R in shapes])
    return Found(
        error < 2e-9,
        f"d = 4, λ_j = 1/j, N = 20, (H, R) = {listed(shapes)}, from 0.1",
        f"losses {listed(ends, '.5f')}, off by {decade(error)}; all matrices: {law.floor:.5f}",
    )


def exponential(d: int, N: float) -> tuple[MixtureRisk, Array, Array]:
    """Covariances with independent exponential eigenvalues, exactly: Gauss–Laguerre nodes; nodes and weights."""
    grid, probs = layers.product_grid(np.polynomial.laguerre.laggauss, [3] * d)
    return MixtureRisk([PromptLaw(spectrum, N=N) for spectrum in grid], probs), grid, probs


@row("linear attention: random covariances", ZHANG.format("random covariances (reconstructed)"), bound="1/3; 0")
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


@row("linear attention: length of the test", ZHANG.format("prediction error (reconstructed)"), bound="-2; 0; 1")
def length_of_test(quick: bool) -> Found:
    """trained at length N and tested at M the error is that of M = ∞, of order 1/N², plus one of order 1/M"""
    spectrum = 1.0 / np.arange(1.0, 9.0)
    lengths, tests = np.array([10**4, 10**5, 10**6]), [math.inf, 10, 1000, 10**5]
    trained = [PromptLaw(spectrum, N=N).best for N in lengths.tolist()]
    table = np.array([[PromptLaw(spectrum, N=M).loss(gamma) for M in tests] for gamma in trained])
    floor, rest = table[:, 0], (table[:, 1:] - table[:, :1]) * tests[1:]
    straight = off(rest, rest[:, :1])
    leading = 0.5 * float(np.sum((spectrum + spectrum.sum()) ** 2 / spectrum)) / lengths**2
    return Found(
        abs(power(lengths, floor) + 2.0) < 0.01 and straight < 1e-6 and off(floor[-1], leading[-1]) < 1e-3,
        f"d = 8, λ_j = 1/j, no noise; N = {lengths[0]}..{lengths[-1]}, M = 10, 1000, 10⁵ and ∞",
        f"at M = ∞ like N^{power(lengths, floor):.3f}, {floor[-1] / leading[-1]:.4f} of ½Σ(λ_j + tr Λ)²/(λ_jN²); M"
        f" times the rest is constant to {decade(straight)}",
        "holds: longer tests help until M is of the order N²; then only longer training prompts do",
    )


@identity("linear attention: other covariances", ZHANG.format("distribution shifts (reconstructed)"), 1e-10)
def other_covariances(quick: bool) -> Errors:
    """trained on long prompts of covariance Λ the layer has on those of Λ' the loss ½tr Λ'(Λ⁻¹Λ' - I)(Λ'Λ⁻¹ - I):
    as much as predicting 0 where Λ' = 2Λ, and more beyond
    """
    trained, double = LinearAttention(covariance=SKEWED, N=np.inf, above=1e-28), 2.0 * SKEWED
    gamma = trained.gamma(trained.simulate().params)
    for other in (SKEWED, double, 3.0 * SKEWED, np.diag([0.2, 1.5]), np.array(((0.4, -0.2), (-0.2, 2.0)))):
        law, missed = PromptLaw(other), np.linalg.solve(SKEWED, other) - np.eye(2)
        yield apart(law.loss(gamma), 0.5 * float(np.sum(other * (missed @ missed.T))))
    yield apart(PromptLaw(double).loss(gamma), PromptLaw(double).loss(np.zeros((2, 2))))
    return "d = 2, N = ∞, Γ at the end of a run; Λ' = Λ, 2Λ, 3Λ and two that do not commute with Λ"


NOTE = "The statements are in our words, for the layer of this package. The constants are derived here."
PAPERS = (
    Paper(
        "preconditioned-descent",
        "Transformers learn to implement preconditioned gradient descent for in-context learning",
        "Kwangjun Ahn, Xiang Cheng, Hadi Daneshmand, Suvrit Sra", 2023, "arXiv:2306.00297",
        (Reading("Theorem 1",
                 "The best layer is a step of gradient descent, preconditioned by the tokens, length and noise.",
                 (population_loss, layers.whole_layer)),
         Reading("several layers",
                 "Each layer is a step of gradient descent on the prompt, and more layers reach a lower loss.",
                 (depth,), question=what_depth_buys, figure="depth"),
         Reading("Σ⁻¹ layers",
                 "If tasks have the covariance Σ⁻¹, layers that descend with multiples of Σ⁻¹ are critical.",
                 (layers.inverse_layers,), reconstructed="that these layers are the best ones"),
         Reading("GD++",
                 "Layers with more freedom also change the tokens, so that the prompt is better conditioned.",
                 (layers.plus_plus,),
                 reconstructed="the layer, and its loss as a polynomial of the prompt's covariance")),
        NOTE + " The numbers of Theorems 3 and 4 are from memory.",
    ),
    Paper(
        "trained-linear-models", "Trained Transformers Learn Linear Models In-Context",
        "Ruiqi Zhang, Spencer Frei, Peter L. Bartlett", 2024, "arXiv:2306.09927",
        (Reading("convergence", "Gradient flow from a small balanced start converges to the best layer.",
                 (small_starts, every_mode)),
         Reading("distribution shifts",
                 "The trained layer works for other queries and tasks, and fails if the law of the tokens changes.",
                 (shifts, other_covariances), figure="shifts", reconstructed="what another covariance costs"),
         Reading("prediction error", "Tested on longer prompts than trained on, the layer keeps an error.",
                 (length_of_test,), reconstructed="the error, from our formula of the loss"),
         Reading("random covariances",
                 "Trained on prompts with random covariances, the layer keeps a large error even in long prompts.",
                 (random_covariances,), reconstructed="the matrix, by minimising the loss of the mixture")),
        NOTE,
    ),
    Paper(
        "linear-attention-dynamics", "Training Dynamics of In-Context Learning in Linear Attention",
        "Yedi Zhang, Aaditya K. Singh, Peter E. Latham, Andrew Saxe", 2025, "arXiv:2501.16265",
        (Reading("fixed points", "Heads with separate keys and queries have exponentially many fixed points.",
                 (fixed_points,), reconstructed="the matrices and the loss at each of them"),
         Reading("merged keys and queries", "From a small start the loss has one plateau and one abrupt drop.",
                 (one_drop, plateau_lengths), question=which_plateau),
         Reading("separate keys and queries",
                 "Heads go from saddle to saddle and learn one principal direction after another.",
                 (staircase, levels), figure="staircase"),
         Reading("low rank", "Heads of low rank learn as many principal directions as their ranks add up to.",
                 (few_heads,), reconstructed="the loss in the end")),
        NOTE,
    ),
    Paper(
        "task-diversity", "Asymptotic theory of in-context learning by linear attention",
        "Yue M. Lu, Mary I. Letey, Jacob A. Zavatone-Veth, Anindita Maiti, Cengiz Pehlevan", 2024,
        "arXiv:2405.11751",
        (Reading("transition in task diversity",
                 "With fewer tasks than dimensions the layer memorises them; with more it learns in context.",
                 (transition,), figure="task_diversity"),
         Reading("double descent", "The loss has a peak where pretraining prompts are as many as parameters.",
                 (double_descent,), reconstructed="Fits of the least norm, and the limit.")),
        NOTE + " The transition was observed by Raventós et al. 2023, arXiv:2306.15063.",
    ),
)  # fmt: skip
CLAIMS = Claims(questions=(which_plateau, what_depth_buys), papers=PAPERS)
