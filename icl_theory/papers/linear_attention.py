"""Papers on linear attention: rows of the audit, open questions, and what each paper says.

The docstring of a row is its statement.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np

from icl_theory._validate import Array
from icl_theory.engine.descent import descend
from icl_theory.engine.statement import OURS, Status
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families.linear_attention.depth import LoopedRisk, best_layers
from icl_theory.families.linear_attention.diversity import diversity_limit, task_diversity
from icl_theory.families.linear_attention.family import LinearAttention
from icl_theory.families.linear_attention.law import PromptLaw
from icl_theory.families.linear_attention.risks import MergedRisk, balanced_flow
from icl_theory.families.linear_attention.shifts import shift_table
from icl_theory.papers.claim import Errors, Found, Outcome, Series, identity, off, question, row
from icl_theory.papers.paper import Claims, Paper, Reading

AHN, ZHANG = "Ahn, Cheng, Daneshmand, Sra 2023, {}", "Zhang, Frei, Bartlett 2024, {}"
STAIRS = "Zhang, Singh, Latham, Saxe 2025, {}"
PRIOR, QUERY = ((1.5, -0.4), (-0.4, 0.6)), ((0.4, 0.1), (0.1, 1.2))


def skewed(N: int, noise: float) -> PromptLaw:
    """A law in two dimensions whose matrices do not commute."""
    return PromptLaw(np.array(((1.0, 0.3), (0.3, 0.5))), np.array(PRIOR), np.array(QUERY), N, noise)


def prompt_moments(law: PromptLaw) -> tuple[Array, Array]:
    """E h hᵀ and E w hᵀ over all prompts of a Gauss–Hermite grid, which is exact: no formula of `PromptLaw`."""
    d, N = law.d, int(law.N)
    rules = [np.polynomial.hermite_e.hermegauss(count) for count in [3] * (N * d) + [2] * (d + N)]
    grid = np.stack([each.ravel() for each in np.meshgrid(*(x for x, _ in rules), indexing="ij")], axis=1)
    weight = functools.reduce(np.multiply.outer, (w / w.sum() for _, w in rules)).ravel()
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
    ends, starts = [], (1e-2, 1e-4) if quick else (1e-1, 1e-2, 1e-4, 1e-6)
    for decay, start in itertools.product((0.0, 1.0), starts):
        problem = LinearAttention(d=4, decay=decay, noise=0.5, coordinates="pair", start=start, above=1e-9)
        spectrum, N, gamma = problem.law().covariance, problem.N, problem.gamma(problem.simulate().params)
        least = 1.0 / ((1.0 + 1.0 / N) * spectrum + (spectrum.sum() + 0.25) / N)  # the published minimum
        ends.append(0.5 * float(np.sum(spectrum**2 / least * (gamma - least) ** 2)))
    return Found(
        max(ends) <= 1.01e-9,
        f"d = 4, λ_j = 1 and 1/j, σ = 0.5, {len(ends)} starts down to {starts[-1]:g}, stable rate",
        f"largest excess at the end {max(ends):.1e}, of Γ over ((1 + 1/N)Λ + (tr Λ + σ²)I/N)⁻¹",
    )


def aligned(d: int, size: float) -> Array:
    """Heads of which each is along an axis, with a value, a key and a query of one size."""
    return size * np.hstack([np.ones((d, 1)), np.eye(d), np.eye(d)])


def plateau(run: Trajectory) -> int:
    """Length of the plateau of a run."""
    assert run.phases is not None
    return int(run.phases.plateau[1])


def plateaus(quick: bool) -> tuple[Array, Array, Array]:
    """Starts, and the plateaus ηt of (v, A) and of aligned heads, for Λ = I in 2 dimensions."""
    starts, eta, found = np.geomspace(0.1, 2e-3 if quick else 1e-4, 5), 0.02, []
    base = LinearAttention(d=2, N=100, eta=eta, above=0.1)
    for start in starts.tolist():
        pair = base.changed(coordinates="pair", start=start, method="exact").simulate()
        # shorter steps would change nothing: the flow's time is what is measured
        heads = base.changed(coordinates="heads", heads=2, start=aligned(2, start), method="fast").simulate()
        found.append([eta * plateau(run) for run in (pair, heads)])
    return starts, *np.array(found).T


@row("linear attention: plateau", STAIRS.format("small starts"), bound="1; 1")
def plateau_lengths(quick: bool) -> Found:
    """the plateau grows like ln(1/start)/(η‖ΛqWΛ‖) for (v, A)"""
    starts, pair, heads = plateaus(quick)
    slope = float(np.polyfit(np.log(1.0 / starts[1:]), pair[1:], 1)[0]) * math.sqrt(2.0)
    ratio = float(heads[-1] * starts[-1])
    return Found(
        abs(slope - 1.0) < 0.03 and abs(ratio - 1.0) < 0.03,
        f"Λ = I, d = 2, N = 100, starts 0.1 to {starts[-1]:g}",
        f"(v, A): slope in ln(1/start) {slope:.3f} of it; heads with separate keys and queries: {ratio:.3f} of"
        " 1/(ηλ² start)",
        " for (v, A); with separate keys and queries it grows like 1/start",
    )


@question("linear-attention-plateau", "1 / start", "plateau, ηt")
def which_plateau(quick: bool) -> tuple[str, list[Series]]:
    """Does the plateau grow like ln(1/start)?"""
    starts, pair, heads = plateaus(quick)
    x = 1.0 / starts
    slow, fast = (float(np.log(each[-1] / each[-2]) / np.log(x[-1] / x[-2])) for each in (pair, heads))
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
    d, size, eta, late = 3, 0.02, 0.05, 0.0
    base = LinearAttention(d=d, decay=1.0, N=50, eta=eta, above=1e-4, method="exact")
    problem = base.changed(coordinates="heads", heads=d)
    law, run = problem.law(), problem.changed(start=aligned(d, size)).simulate()
    for j, (spectrum, m, best) in enumerate(zip(law.covariance, law.second, law.best, strict=True)):
        x = np.linspace(size, (0.5 * best) ** (1 / 3), 200_001)
        slope = 1.0 / (spectrum * (spectrum - m * x**3) * x**2)
        time = float(np.sum(0.5 * (slope[1:] + slope[:-1]) * np.diff(x))) / eta
        late = max(late, abs(_half(run, j, best) / time - 1.0))
    orders = []
    for seed in range(2 if quick else 8):
        free = problem.changed(start=size, seed=seed, eta=0.1).simulate()
        halves = [_half(free, j, best) for j, best in enumerate(law.best)]
        orders.append(halves == sorted(halves))
    return Found(
        late < 0.01 and all(orders),
        f"d = H = 3, λ_j = 1/j, start {size:g}, aligned, and random of {len(orders)} seeds; steps to half of Γ*_j",
        f"aligned: times off by at most {late:.1%}; random: {sum(orders)} of {len(orders)} in order",
    )


def _half(run: Trajectory, j: int, best: float) -> float:
    found = run.first(lambda state: bool(state.observed["gamma"][j] >= 0.5 * best))
    return math.inf if found is None else float(found)


@row("linear attention: shifts", ZHANG.format("distribution shifts"), Status.EXACT, "0")
def shifts(quick: bool) -> Found:
    """what is trained holds on other queries and tasks, and fails where the tokens or the length change"""
    base = LinearAttention(d=8, decay=1.0, N=20, noise=0.5)
    changes: dict[str, dict[str, Any]] = {
        "query": {"query": np.arange(1.0, 9.0)}, "covariate": {"decay": 2.0}, "length": {"N": 5},
        "noise": {"noise": 2.0}, "task": {"prior": 1.0 / np.arange(1.0, 9.0)},
    }  # fmt: skip
    table = shift_table({"base": base} | {name: base.changed(**change) for name, change in changes.items()})
    share = dict(zip(table.names, (table.excess[0] / table.floor).tolist(), strict=True))
    return Found(
        share["query"] < 1e-12 and min(share[name] for name in changes if name != "query") > 1e-3,
        "d = 8, λ_j = 1/j -> j^-2, N = 20 -> 5, σ = 0.5 -> 2, W = I -> diag(1/j), Λq -> diag(j)",
        "excess, in shares of the least loss there: " + ", ".join(f"{name} {share[name]:.1%}" for name in changes),
        " for the query alone: other tasks cost as well, where their second moment is another",
        Outcome.ONLY,
    )


@row("linear attention: task diversity", "Raventós et al. 2023; Lu et al. 2024", bound="0.25, 0, 0")
def transition(quick: bool) -> Found:
    """trained on k tasks it memorises them below k ≈ d and learns in context above"""
    d, worst, known, ratios = 32 if quick else 64, 0.0, [], np.array([0.25, 0.5, 1.0, 2.0, 8.0])
    for long in (4, 64):
        problem, sizes = LinearAttention(d=d, N=long * d, noise=0.5), (ratios * d).astype(int).tolist()
        found = task_diversity(problem, sizes, draws=4 if quick else 10).mean()
        limit = diversity_limit(d, long * d, 0.5, ratios)
        worst = max(worst, *map(off, found, limit))
        known.append(found.new / found.pretraining)
    kink = diversity_limit(d, 1e9, 0.0, np.array([0.5, 1.0, 2.0])).new / d
    memorises = all(ratio[0] > 10.0 and 1.0 < ratio[-1] < 1.1 for ratio in known)
    return Found(
        worst < 0.1 and np.allclose(kink, [0.25, 0.0, 0.0], atol=1e-3) and memorises,
        f"d = {d}, N = 4d, 64d, σ = 0.5, k/d = 1/4..8; and the limit of long prompts",
        "loss on new tasks over that on the k tasks "
        + " and ".join(f"{ratio[0]:.0f} ... {ratio[-1]:.2f}" for ratio in known)
        + f" at k/d = 1/4 ... 8; both off the limit d, k, N -> ∞ by at most {worst:.0%}; N/d -> ∞: new loss/d"
        f" {kink[0]:.3f}, {kink[1]:.3f}, {kink[2]:.3f} at k/d = 1/2, 1, 2",
        ": (1 - k/d)/2 below k = d in long prompts, a smooth crossover in short ones",
    )


@row("linear attention: depth", f"{AHN.format('several layers')}; von Oswald et al. 2023", bound="falls")
def depth(quick: bool) -> Found:
    """each layer is a step of gradient descent on the prompt, and more layers reach a lower loss"""
    depths, errors = (1, 2, 4, 8) if quick else (1, 2, 4, 8, 16), []
    looped = [LoopedRisk(8, 20, each).floor() / 8 for each in depths]
    own = [best_layers(8, 20, each).loss / 8 for each in depths]
    for each, loss in zip(depths[1:3], looped[1:3], strict=True):
        trainer = LinearAttention(d=8, N=20, depth=each).sampled(4000, seed=each)
        losses = [trainer.evaluate(LoopedRisk(8, 20, each).best, n)[0] for n in range(10 if quick else 25)]
        errors.append(abs(np.mean(losses) / 8 - loss) / (np.std(losses, ddof=1) / 8 / math.sqrt(len(losses))))
    falls = all(b < a for a, b in itertools.pairwise(looped)) and max(errors) < 5.0
    return Found(
        falls and all(a <= b * (1 + 1e-12) for a, b in zip(own, looped, strict=True)),
        f"Λ = I, d = 8, N = 20, D = {', '.join(map(str, depths))}; D = 2, 4 against sampled layers",
        f"best loss/d in a loop {', '.join(f'{x:.3g}' for x in looped)}; of layers of their own"
        f" {', '.join(f'{x:.2g}' for x in own)}; largest |z| {max(errors):.1f}",
    )


@question("linear-attention-depth", "layers", "least loss / d")
def what_depth_buys(quick: bool) -> tuple[str, list[Series]]:
    """What does depth buy?"""
    depths, lengths = np.arange(1, 9 if quick else 17), (20, 80)
    looped = {N: np.array([LoopedRisk(8, N, D).floor() / 8 for D in depths.tolist()]) for N in lengths}
    own = {N: np.array([best_layers(8, N, D).loss / 8 for D in depths.tolist()]) for N in lengths}
    words = "; ".join(
        f"N = {N}: {looped[N][0]:.3g} of one layer, {looped[N][-1]:.2g} of {depths[-1]} in a loop,"
        f" {own[N][-1]:.1g} of {depths[-1]} layers of their own"
        for N in lengths
    )
    return words + (
        " (least loss/d, Λ = I, d = 8, no noise). A loop repeats one step of gradient descent; layers of their"
        " own are the best polynomial of their degree, as Chebyshev's method is."
    ), [
        Series(f"{name}, N = {N}", depths, losses, points=name == "loop")
        for name, found in (("loop", looped), ("own", own))
        for N, losses in found.items()
    ]


NOTE = "The statements are in our words, for the layer of this package. The constants are derived here."
PAPERS = (
    Paper(
        "preconditioned-descent",
        "Transformers learn to implement preconditioned gradient descent for in-context learning",
        "Kwangjun Ahn, Xiang Cheng, Hadi Daneshmand, Suvrit Sra", 2023, "arXiv:2306.00297",
        (Reading("Theorem 1",
                 "The best layer is a step of gradient descent, preconditioned by the tokens, length and noise.",
                 (population_loss,)),
         Reading("several layers",
                 "Each layer is a step of gradient descent on the prompt, and more layers reach a lower loss.",
                 (depth,), question="linear-attention-depth", figure="depth")),
        NOTE,
    ),
    Paper(
        "trained-linear-models",
        "Trained Transformers Learn Linear Models In-Context",
        "Ruiqi Zhang, Spencer Frei, Peter L. Bartlett", 2024, "arXiv:2306.09927",
        (Reading("convergence", "Gradient flow from a small balanced start converges to the best layer.",
                 (small_starts, every_mode)),
         Reading("distribution shifts",
                 "The trained layer works for other queries and tasks, and fails if the law of the tokens changes.",
                 (shifts,), figure="shifts")),
        NOTE,
    ),
    Paper(
        "linear-attention-dynamics",
        "Training Dynamics of In-Context Learning in Linear Attention",
        "Yedi Zhang, Aaditya K. Singh, Peter E. Latham, Andrew Saxe", 2025, "arXiv:2501.16265",
        (Reading("merged keys and queries", "From a small start the loss has one plateau and one abrupt drop.",
                 (one_drop, plateau_lengths), question="linear-attention-plateau"),
         Reading("separate keys and queries",
                 "Heads go from saddle to saddle and learn one principal direction after another.",
                 (staircase,), figure="staircase")),
        NOTE,
    ),
    Paper(
        "task-diversity",
        "Asymptotic theory of in-context learning by linear attention",
        "Yue M. Lu, Mary I. Letey, Jacob A. Zavatone-Veth, Anindita Maiti, Cengiz Pehlevan", 2024,
        "arXiv:2405.11751",
        (Reading("transition in task diversity",
                 "With fewer tasks than dimensions the layer memorises them; with more it learns in context.",
                 (transition,), figure="task_diversity"),),
        NOTE + " The transition was observed by Raventós et al. 2023, arXiv:2306.15063.",
    ),
)  # fmt: skip
CLAIMS = Claims(
    (population_loss, every_mode, one_drop, small_starts, plateau_lengths, staircase, shifts, transition, depth),
    {"linear-attention-plateau": which_plateau, "linear-attention-depth": what_depth_buys},
    PAPERS,
)
