"""The audit's rows on linear attention, each with the paper that its statement is from, and the open questions.

A row is a function of whether the grid is to be small; `ROWS` lists them in the order of the table.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable

import numpy as np

from icl_theory._validate import Array
from icl_theory.claims.claim import Answer, Claim, Outcome, Series, Status, exact_row, judged
from icl_theory.engine.descent import descend
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families.linear_attention.depth import LoopedRisk, best_layers
from icl_theory.families.linear_attention.diversity import diversity_limit, task_diversity
from icl_theory.families.linear_attention.family import LinearAttention
from icl_theory.families.linear_attention.law import PromptLaw
from icl_theory.families.linear_attention.risks import MergedRisk, balanced_flow
from icl_theory.families.linear_attention.shifts import shift_table

OURS = "this package"
AHN, ZHANG = "Ahn, Cheng, Daneshmand, Sra 2023, {}", "Zhang, Frei, Bartlett 2024, {}"
STAIRS = "Zhang, Singh, Latham, Saxe 2025, {}"
COVARIANCE = ((1.0, 0.3), (0.3, 0.5))
PRIOR, QUERY = ((1.5, -0.4), (-0.4, 0.6)), ((0.4, 0.1), (0.1, 1.2))


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


def population_loss(quick: bool) -> Claim:
    """The loss of any matrix, and its minimiser, from every prompt of a grid."""
    error, rng = 0.0, np.random.default_rng(0)
    for N, noise in ((1, 0.5), (2, 0.0), (2, 0.8)):
        law = PromptLaw(np.array(COVARIANCE), np.array(PRIOR), np.array(QUERY), N, noise)
        second, cross = prompt_moments(law)
        best = np.linalg.solve(second, cross.T).T
        error = max(error, float(np.abs(law.best - best).max() / np.abs(best).max()))
        for gamma in rng.normal(size=(5, 2, 2)):
            _, prior, query = law.moments
            loss = 0.5 * float(np.sum(query * (gamma @ second @ gamma.T - 2.0 * gamma @ cross.T + prior)))
            error = max(error, abs(law.loss(gamma) / loss - 1.0))
    return exact_row(
        "linear attention: minimiser",
        f"{AHN.format('Thm 1')}; {ZHANG.format('convergence')}",
        "L(Γ) = ½ tr Λq(ΓMΓᵀ - 2ΓΛW + W), M = (1 + 1/N)ΛWΛ + (tr ΛW + σ²)Λ/N; minimum at WΛM⁻¹, whatever Λq",
        "d = 2, N = 1, 2, σ = 0, 0.5, 0.8, matrices that do not commute; moments over all prompts of a grid",
        error,
        1e-12,
    )


def every_mode(quick: bool) -> Claim:
    """Descent on the merged matrix, step by step."""
    law, error = PromptLaw(np.array(COVARIANCE), np.array(PRIOR), np.array(QUERY), 3, 0.4), 0.0
    risk = MergedRisk(law, np.random.default_rng(1).normal(size=(2, 2)))
    for rate in (0.3, 1.0, 1.9):
        eta = rate / float(risk.curvature.max())
        form = risk.closed_form(eta, "gd")
        run = descend(risk, eta, steps=300 if quick else 3000)
        assert form is not None
        error = max(error, float(np.abs(form.states(run.t) - run.states).max() / np.abs(run.states).max()))
    return exact_row(
        "linear attention: every mode",
        OURS,
        "merged: u_aᵀ(Γ - Γ*)v_b shrinks by 1 - ηq_a m_b in each step; stable below η = 2/(q_max m_max)",
        "d = 2, matrices that do not commute; rates up to 1.9 of 2; single steps",
        error,
        1e-10,
    )


def one_drop(quick: bool) -> Claim:
    """The balanced flow of (v, A)."""
    error = 0.0
    for d, N, noise in ((2, 5, 0.0), (8, 30, 0.7)):
        problem = LinearAttention(
            d=d, N=N, noise=noise, coordinates="pair", start=1e-3, eta=0.01, above=1e-8, method="flow"
        )
        run = problem.simulate()
        predicted = balanced_flow(problem.law(), 1e-3, 0.01 * run.t)
        error = max(error, float(np.max(np.abs(run.states[:, 0] * run.states[:, 1] / predicted - 1.0))))
    return exact_row(
        "linear attention: one drop",
        STAIRS.format("merged keys and queries"),
        "(v, A), isotropic, balanced: Γ = γI, γ = γ*/(1 + (γ*/γ₀ - 1)e^(-2√d λ²τ)): a plateau and one drop, at a"
        " rate free of N and σ",
        "d = 2, 8, N = 5, 30, σ = 0, 0.7, from 1e-3; the flow integrated to 1e-10",
        error,
        1e-7,
    )


def small_starts(quick: bool) -> Claim:
    """Convergence to the minimum from small starts."""
    worst, runs = 0.0, 0
    for decay in (0.0, 1.0):
        for start in (1e-2, 1e-4) if quick else (1e-1, 1e-2, 1e-4, 1e-6):
            problem = LinearAttention(d=4, decay=decay, noise=0.5, coordinates="pair", start=start, above=1e-9)
            run = problem.simulate()
            spectrum, N, gamma = problem.law().covariance, problem.N, problem.gamma(run.params)
            least = 1.0 / ((1.0 + 1.0 / N) * spectrum + (spectrum.sum() + 0.25) / N)  # the published minimum
            off = 0.5 * float(np.sum(spectrum**2 / least * (gamma - least) ** 2))
            worst, runs = max(worst, off), runs + 1
    return Claim(
        "linear attention: small starts",
        ZHANG.format("convergence"),
        "(v, A) from a small balanced start converges to the minimum",
        Status.MEASURED,
        f"d = 4, λ_j = 1 and 1/j, σ = 0.5, {runs} starts down to {start:g}, stable rate",
        f"largest excess at the end {worst:.1e}, of Γ over ((1 + 1/N)Λ + (tr Λ + σ²)I/N)⁻¹",
        "1e-9",
        judged(worst <= 1.01e-9),
    )


def aligned(d: int, size: float) -> Array:
    """Heads of which each is along an axis, with a value, a key and a query of one size."""
    start = np.zeros((d, 1 + 2 * d))
    start[:, 0] = size
    for j in range(d):
        start[j, 1 + j] = start[j, 1 + d + j] = size
    return start


def plateau(run: Trajectory) -> int:
    """Length of the plateau of a run."""
    assert run.phases is not None
    return int(run.phases.plateau[1])


def plateaus(quick: bool) -> tuple[Array, Array, Array]:
    """Starts, and the plateaus ηt of (v, A) and of aligned heads, for Λ = I in 2 dimensions."""
    starts, eta = np.geomspace(0.1, 2e-3 if quick else 1e-4, 5), 0.02
    found = []
    for start in starts.tolist():
        pair = LinearAttention(d=2, N=100, coordinates="pair", start=start, eta=eta, above=0.1, method="exact")
        array = aligned(2, start)
        # shorter steps would change nothing: the flow's time is what is measured
        heads = LinearAttention(
            d=2, N=100, coordinates="heads", heads=2, start=array, eta=eta, above=0.1, method="fast"
        )
        found.append([eta * plateau(problem.simulate()) for problem in (pair, heads)])
    return starts, *np.array(found).T


def plateau_lengths(quick: bool) -> Claim:
    """How the plateau grows as the start shrinks."""
    starts, pair, heads = plateaus(quick)
    slope = float(np.polyfit(np.log(1.0 / starts[1:]), pair[1:], 1)[0]) * math.sqrt(2.0)
    ratio = float(heads[-1] * starts[-1])
    good = abs(slope - 1.0) < 0.03 and abs(ratio - 1.0) < 0.03
    return Claim(
        "linear attention: plateau",
        STAIRS.format("small starts"),
        "the plateau grows like ln(1/start)/(η‖ΛqWΛ‖) for (v, A)",
        Status.MEASURED,
        f"Λ = I, d = 2, N = 100, starts 0.1 to {starts[-1]:g}",
        f"(v, A): slope in ln(1/start) {slope:.3f} of it; heads with separate keys and queries: {ratio:.3f} of"
        " 1/(ηλ² start)",
        "1; 1",
        judged(good, words=" for (v, A); with separate keys and queries it grows like 1/start"),
    )


def staircase(quick: bool) -> Claim:
    """Order and times of the directions that heads learn."""
    d, size, eta = 3, 0.02, 0.05
    problem = LinearAttention(
        d=d, decay=1.0, N=50, coordinates="heads", heads=d, eta=eta, above=1e-4, method="exact"
    )
    law, late = problem.law(), 0.0
    run = problem.changed(start=aligned(d, size)).simulate()
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
    return Claim(
        "linear attention: staircase",
        STAIRS.format("separate keys and queries"),
        "heads learn one direction of Λ after the other, the largest eigenvalue first; head j, alone along its"
        " direction, follows s' = λ(λ - ms³)s²",
        Status.MEASURED,
        f"d = H = 3, λ_j = 1/j, start {size:g}, aligned, and random of {len(orders)} seeds; steps to half of Γ*_j",
        f"aligned: times off by at most {late:.1%}; random: {sum(orders)} of {len(orders)} in order",
        "flow; all",
        judged(late < 0.01 and all(orders)),
    )


def _half(run: Trajectory, j: int, best: float) -> float:
    found = run.first(lambda state: bool(state.observed["gamma"][j] >= 0.5 * best))
    return math.inf if found is None else float(found)


def shifts(quick: bool) -> Claim:
    """What shifts cost."""
    base = LinearAttention(d=8, decay=1.0, N=20, noise=0.5)
    laws = {
        "base": base, "query": base.changed(query=np.arange(1.0, 9.0)), "covariate": base.changed(decay=2.0),
        "length": base.changed(N=5), "noise": base.changed(noise=2.0),
        "task": base.changed(prior=1.0 / np.arange(1.0, 9.0)),
    }  # fmt: skip
    table = shift_table(laws)
    share = dict(zip(table.names, (table.excess[0] / table.floor).tolist(), strict=True))
    good = share["query"] < 1e-12 and min(share[name] for name in laws if name not in ("base", "query")) > 1e-3
    said = ", ".join(f"{name} {share[name]:.1%}" for name in laws if name != "base")
    return Claim(
        "linear attention: shifts",
        ZHANG.format("distribution shifts"),
        "what is trained holds on other queries and tasks, and fails where the tokens or the length change",
        Status.EXACT,
        "d = 8, λ_j = 1/j -> j^-2, N = 20 -> 5, σ = 0.5 -> 2, W = I -> diag(1/j), Λq -> diag(j)",
        f"excess, in shares of the least loss there: {said}",
        "0",
        judged(
            good,
            Outcome.ONLY,
            " for the query alone: other tasks cost as well, where their second moment is another",
        ),
    )


def transition(quick: bool) -> Claim:
    """Where memorising becomes learning in context."""
    d, worst, known = 32 if quick else 64, 0.0, []
    ratios = np.array([0.25, 0.5, 1.0, 2.0, 8.0])
    for long in (4, 64):
        problem = LinearAttention(d=d, N=long * d, noise=0.5)
        found = task_diversity(problem, [int(ratio * d) for ratio in ratios], draws=4 if quick else 10).mean()
        limit = diversity_limit(d, long * d, 0.5, ratios)
        worst = max(worst, *(float(np.max(np.abs(a / b - 1.0))) for a, b in zip(found, limit, strict=True)))
        known.append(found.new / found.pretraining)
    kink = diversity_limit(d, 1e9, 0.0, np.array([0.5, 1.0, 2.0])).new / d
    good = worst < 0.1 and np.allclose(kink, [0.25, 0.0, 0.0], atol=1e-3)
    good = good and all(ratio[0] > 10.0 and 1.0 < ratio[-1] < 1.1 for ratio in known)
    return Claim(
        "linear attention: task diversity",
        "Raventós et al. 2023; Lu et al. 2024",
        "trained on k tasks it memorises them below k ≈ d and learns in context above",
        Status.MEASURED,
        f"d = {d}, N = 4d, 64d, σ = 0.5, k/d = 1/4..8; and the limit of long prompts",
        "loss on new tasks over that on the k tasks "
        + " and ".join(f"{ratio[0]:.0f} ... {ratio[-1]:.2f}" for ratio in known)
        + f" at k/d = 1/4 ... 8; both off the limit d, k, N -> ∞ by at most {worst:.0%}; N/d -> ∞: new loss/d"
        f" {kink[0]:.3f}, {kink[1]:.3f}, {kink[2]:.3f} at k/d = 1/2, 1, 2",
        "0.25, 0, 0",
        judged(good, words=": (1 - k/d)/2 below k = d in long prompts, a smooth crossover in short ones"),
    )


def depth(quick: bool) -> Claim:
    """What layers in a loop gain."""
    depths = (1, 2, 4, 8) if quick else (1, 2, 4, 8, 16)
    looped = [LoopedRisk(8, 20, each).floor() / 8 for each in depths]
    own = [best_layers(8, 20, each).loss / 8 for each in depths]
    errors = []
    for each, loss in zip(depths[:3], looped, strict=False):
        risk = LoopedRisk(8, 20, each)
        trainer = LinearAttention(d=8, N=20, depth=each).sampled(4000, seed=each) if each > 1 else None
        if trainer is not None:
            losses = [trainer.evaluate(risk.best, step)[0] for step in range(10 if quick else 25)]
            errors.append(abs(np.mean(losses) / 8 - loss) / (np.std(losses, ddof=1) / 8 / math.sqrt(len(losses))))
    falls = all(b < a for a, b in itertools.pairwise(looped)) and max(errors) < 5.0
    return Claim(
        "linear attention: depth",
        f"{AHN.format('several layers')}; von Oswald et al. 2023",
        "each layer is a step of gradient descent on the prompt, and more layers reach a lower loss",
        Status.MEASURED,
        f"Λ = I, d = 8, N = 20, D = {', '.join(map(str, depths))}; D = 2, 4 against sampled layers",
        f"best loss/d in a loop {', '.join(f'{x:.3g}' for x in looped)}; of layers of their own"
        f" {', '.join(f'{x:.2g}' for x in own)}; largest |z| {max(errors):.1f}",
        "falls",
        judged(bool(falls) and all(a <= b * (1 + 1e-12) for a, b in zip(own, looped, strict=True))),
    )


def which_plateau(quick: bool) -> Answer:
    """How long the plateau is."""
    starts, pair, heads = plateaus(quick)
    x = 1.0 / starts
    growth = [float(np.log(each[-1] / each[-2]) / np.log(x[-1] / x[-2])) for each in (pair, heads)]
    return Answer(
        "linear-attention-plateau",
        "Does the plateau grow like ln(1/start)?",
        (
            "Only with keys and queries merged"
            if growth[0] < 0.3 < 0.9 < growth[1]
            else "These runs do not decide it"
        )
        + f": from start {starts[-2]:.2g} to {starts[-1]:.2g} it grows like start^-{growth[0]:.2f} for (v, A),"
        f" ηt = ln(1/start)/√2 + const, and like start^-{growth[1]:.2f} for heads with separate keys and queries,"
        " whose product of three small numbers leaves the saddle in a time 1/(ηλ² start) (Λ = I, d = 2, N = 100).",
        (
            Series("(v, A)", x, pair, points=True),
            Series("heads", x, heads, points=True),
            Series("ln(1/start)/√2", x, np.log(x) / math.sqrt(2.0)),
            Series("1/start", x, x),
        ),
        "1 / start",
        "plateau, ηt",
    )


def what_depth_buys(quick: bool) -> Answer:
    """What depth buys."""
    depths, lengths = np.arange(1, 9 if quick else 17), (20, 80)
    looped = {N: np.array([LoopedRisk(8, N, D).floor() / 8 for D in depths.tolist()]) for N in lengths}
    own = {N: np.array([best_layers(8, N, D).loss / 8 for D in depths.tolist()]) for N in lengths}
    last = int(depths[-1])
    return Answer(
        "linear-attention-depth",
        "What does depth buy?",
        "; ".join(
            f"N = {N}: {looped[N][0]:.3g} of one layer, {looped[N][-1]:.2g} of {last} in a loop,"
            f" {own[N][-1]:.1g} of {last} layers of their own"
            for N in looped
        )
        + " (least loss/d, Λ = I, d = 8, no noise). A loop repeats one step of gradient descent; layers of their"
        " own are the best polynomial of their degree, as Chebyshev's method is.",
        tuple(
            Series(f"{name}, N = {N}", depths, losses, points=name == "loop")
            for name, found in (("loop", looped), ("own", own))
            for N, losses in found.items()
        ),
        "layers",
        "least loss / d",
    )


Row = Callable[[bool], Claim]
ROWS: tuple[Row, ...] = (
    population_loss,
    every_mode,
    one_drop,
    small_starts,
    plateau_lengths,
    staircase,
    shifts,
    transition,
    depth,
)
QUESTIONS = {"linear-attention-plateau": which_plateau, "linear-attention-depth": what_depth_buys}
