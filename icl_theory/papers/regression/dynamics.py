"""Rows on steps, flow, phases, regimes, coordinates and the tail."""

from __future__ import annotations

import itertools
import math

import numpy as np

from icl_theory._validate import Array
from icl_theory.engine.descent import descend
from icl_theory.engine.pullback import in_coordinates
from icl_theory.engine.statement import OURS, Status
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families.regression import tasks
from icl_theory.families.regression.closed.abel import StepCounter
from icl_theory.families.regression.closed.flow import flow_time
from icl_theory.families.regression.features import Features
from icl_theory.families.regression.phases import TAIL_RATIO, crossover, papers_regime, tail_start
from icl_theory.families.regression.risks.exchangeable import ExchangeableRisk
from icl_theory.families.regression.risks.population import PopulationRisk
from icl_theory.families.regression.simulate import simulate
from icl_theory.families.regression.theorems import checks as bounds
from icl_theory.families.regression.theorems.certified import step_bounds
from icl_theory.families.regression.theorems.enumeration import tails
from icl_theory.families.regression.theorems.orderwise import DRAWS, SEED, law_runs
from icl_theory.families.regression.theorems.tails import query_constants, tail_constant, tail_limits
from icl_theory.papers.claim import Errors, Found, decade, identity, listed, off, row, span
from icl_theory.papers.regression.common import PAPER, iterated_gaps, iterated_steps, random_cases


@row("steps in closed form", OURS, Status.EXACT, "0; 1e-10")
def closed_counts(quick: bool) -> Found:
    """⌈A(u₂) - A(u₁)⌉ is the number of gradient steps, to ε and to the end of each phase; A inverted gives the
    iterates
    """
    rng, steps = np.random.default_rng(7), 300 if quick else 3000
    draws = [10.0 ** rng.uniform((0.4, -1.5, -4.0), (2.5, 2.0, -0.5)) for _ in range(15 if quick else 60)]
    found = [counted for each in draws if (counted := _counted(int(each[0]), *each[1:].tolist())) is not None]
    counts, wrong, shifted = zip(*found, strict=True)
    some = np.unique(np.geomspace(1, steps, 40).astype(np.int64))
    cases = itertools.product((2, 5, 40, 300), (0.02, 0.3, 3.0, 100.0))
    error = max(off(StepCounter(*case).position(some), iterated_gaps(*case, steps)[some]) for case in cases)
    return Found(
        not (any(wrong) or any(shifted) or error > 1e-10),
        f"{len(counts)} random K, η, ε up to {max(counts):,} steps, by descent and by plain iteration;"
        f" iterates up to {steps:,} steps, K = 2..300, c = 0.02..100",
        f"{sum(wrong)} counts and the phases of {sum(shifted)} runs differ; iterates off by {decade(error)}",
    )


def _counted(K: int, eta: float, epsilon: float) -> tuple[int, bool, bool] | None:
    """Steps in closed form, and whether descent counts others and plain iteration other phases; None if long."""
    closed = simulate(math.sqrt(2.0), 1.0, eta, K=K, epsilon=epsilon)
    if closed.steps is None or closed.steps > 100_000:
        return None
    exact = simulate(math.sqrt(2.0), 1.0, eta, K=K, epsilon=epsilon, method="exact")
    deficits = (0.5, tail_start(K), math.sqrt(2.0 * epsilon * (K - 1.0) / K))
    ends = [iterated_steps(K, eta * K / (K - 1.0) ** 2, (deficit,))[0] for deficit in deficits]
    shifted = any(_ends(run) != [min(end, ends[2]) for end in ends] for run in (closed, exact))
    return closed.steps, exact.steps != closed.steps, shifted


def _ends(run: Trajectory) -> list[int]:
    """Where the phases of a run end that goes through all of them or ends before."""
    assert run.phases is not None
    return [part[1] if part is not None else int(run.t[-1]) for part in run.phases.values()]


@row(bounds.STEP_COUNT, bound="two-sided")
def step_counts(quick: bool) -> Found:
    """Along whole runs."""
    holds, widths, count = True, [], 0
    rates = (1e-3, 0.1, 3.0, 100.0) if quick else (1e-4, 1e-3, 0.1, 1.0, 3.0, 30.0, 1e3)
    for K, c in itertools.product((2, 3, 20, 1000), rates):
        gamma = c * (K - 1.0) ** 2 / K
        run = simulate(math.sqrt(2 * gamma), 1.0, 1.0, K=K, epsilon=gamma * 1e-9)
        for n, u in zip(run.t.tolist()[1:], run.states[1:], strict=True):
            low, high = step_bounds(K, c, float(u))
            holds, count = holds and low <= n <= high, count + 1
        widths.append((high - low) / n)
    widest = f"; interval at loss 1e-9 at most {max(widths):.1e} of n" if max(widths) < 1 else ""
    grid = f"{count} states, K = 2..1000, c = {rates[0]:g}..{rates[-1]:g}"
    return Found(holds, grid, "inside on all" + widest)


@identity(bounds.FLOW, allowed=1e-6)
def flow_solution(quick: bool) -> Errors:
    """SciPy's integration of the flow against F."""
    for K, eta in itertools.product((2, 5, 50) if quick else (2, 3, 5, 20, 50, 400), (0.1, 4.0)):
        run = descend(ExchangeableRisk(K, 2.0), eta, steps=10**7, method="flow")
        c = eta * 2.0 * K / (K - 1.0) ** 2
        for t, a in zip(run.t[40:].tolist(), run.attention[40:], strict=True):
            yield flow_time(float(a), K) / c, t
    return "K = 2..400, t up to 10⁷, DOP853"


@row("Phase I without a logarithm", bound="-> 1")
def phase_one(quick: bool) -> Found:
    """T_I = K²/(ηγ) (1 + O(ln K / K))"""
    values = {}
    for K in (10, 100, 1000, 10**4) if quick else (10, 100, 1000, 10**4, 10**5, 10**6):
        run = simulate(math.sqrt(2.0), 1.0, 0.01, K=K, epsilon=1e-3)
        assert run.phases is not None
        values[K] = run.phases.I[1] * 0.01 / K**2
    largest = max(abs(value - 1) * K / math.log(K) for K, value in values.items())
    shown = ", ".join(f"{value:.4f}" for value in values.values())
    return Found(largest < 6, f"K = 10..{max(values):,}", f"T_I ηγ/K² = {shown}; |·- 1| K/ln K <= {largest:.2f}")


@row("total time", bound="50 %; 1 %")
def total_time(quick: bool) -> Found:
    """T_ε ≈ K²/(ηγ) + (K-1)/(4ηε)"""
    targets = (10.0 ** np.linspace(-9, -1, 5 if quick else 17)).tolist()
    found = {K: [_times(K, epsilon) for epsilon in targets] for K in (20, 1000, 10**5)}
    rough, fine = np.max([np.max([each for each in pairs if each], axis=0) for pairs in found.values()], axis=0)
    shown = ", ".join(f"{max(each[0] for each in pairs if each):.0%} (K = {K:,})" for K, pairs in found.items())
    return Found(
        rough < 0.5 and fine < 0.01,
        "ε/γ = 1e-9..0.1, three K",
        f"off by up to {shown}; with all terms of F by up to {fine:.2%}",
        f"holds, loose by {rough:.0%}",
    )


def _times(K: int, epsilon: float) -> tuple[float, float] | None:
    """How far the rule, and all terms of F, are off a run's length; None for a run that ends where it begins."""
    run = simulate(math.sqrt(2.0), 1.0, 0.01, K=K, epsilon=epsilon)
    if not run.converged:
        return None
    flow = flow_time(1.0 - math.sqrt(2.0 * epsilon * (K - 1.0) / K), K) * (K - 1.0) ** 2 / (0.01 * K)
    rule, last = K**2 / 0.01 + (K - 1) / 0.04 / epsilon, float(run.t[-1])
    return off(rule, last), off(flow, last)


@row("regimes", bound="0; -> √2")
def regimes(quick: bool) -> Found:
    """t ε 4η/(K-1) < 2 at the step t that reaches ε exactly for L > L*; L*Δ = √(8εK²/(K-1)) (1 + √(2/K) + ...)"""
    cases = [*itertools.product((5, 20, 300), (1e-2, 1e-6), (0.5, 0.9, 1.1, 2.0))]
    tails = np.array([_tail_ratio(*case) for case in cases])
    wrong = int(sum((tails < 1.0) != [ratio > 1.0 for *_, ratio in cases]))
    shown = [crossover(1e-3, 1.0, K) / crossover(1e-3, 1.0, K, leading_order=True) for K in (20, 1000, 10**6)]
    orders = (np.array(shown) - 1.0) * np.sqrt([20, 1000, 10**6])
    return Found(
        not wrong and abs(orders[-1] / math.sqrt(2.0) - 1.0) < 0.05,
        f"{len(cases)} runs iterated at 0.5..2 L*, c = 0.1; K = 20, 10³, 10⁶",
        f"{wrong} disagree (nearest to 2: {np.abs(tails - 1.0).min():.0%}); exact/leading L* ="
        f" {listed(shown, '.3f')}; (that - 1) √K = {listed(orders, '.3f')}",
        f"holds; the leading order is off by {shown[0] - 1:.0%} at K = 20",
    )


def _tail_ratio(K: int, epsilon: float, ratio: float) -> float:
    """``t ε 4η/(K-1)`` over 2 at the step t that reaches ε, at a ratio of L to L*, by plain iteration."""
    gamma = 0.5 * (ratio * crossover(epsilon, 1.0, K)) ** 2
    (steps,) = iterated_steps(K, 0.1, (math.sqrt(2.0 * epsilon * (K - 1.0) / (K * gamma)),))
    return steps * epsilon * 4.0 * (0.1 * (K - 1.0) ** 2 / (K * gamma)) / (K - 1.0) / TAIL_RATIO


@row("regimes, paper's rule", PAPER.format("Thms 1, 2"), Status.ORDER, "100 %")
def papers_rule(quick: bool) -> Found:
    """the flat regime is L <= 1/(Δδ), the sharp one L > 1/(Δδ)"""
    runs, same, switched = law_runs(), 0, 0
    for size, imbalance, epsilon, K in np.transpose([runs.size, runs.imbalance, runs.epsilon, runs.K]).tolist():
        exact = "sharp" if size > crossover(epsilon, 1.0, int(K)) else "flat"
        same += papers_regime(size, 1.0, imbalance) == exact
        beside = [papers_regime(near / (0.7 * imbalance), 0.7, imbalance) for near in (1 - 1e-9, 1 + 1e-9)]
        switched += beside == ["flat", "sharp"]
    return Found(
        switched == DRAWS > same,
        f"{DRAWS} runs of the law (seed {SEED}), constant 1; against the exact crossover L*",
        f"same regime in {same / DRAWS:.0%}; changes at LΔδ = 1 in {switched} of {DRAWS}",
        f"holds only for {same / DRAWS:.0%} of these runs: the rule knows neither ε nor K",
    )


@row("monotone for every η", OURS, Status.CERTIFIED, "0")
def monotone(quick: bool) -> Found:
    """exchangeable, no noise: the loss never increases"""
    rises = []
    for K, eta, N in itertools.product((2, 20, 500), (1e-6, 1.0, 1e3, 1e9), (math.inf, 1.0, 40.0)):
        run = descend(ExchangeableRisk(K, 2.0, N), eta, steps=20 if quick else 60)
        rises.append(float(np.max(np.diff(run.loss), initial=0.0)) / run.loss[0])
    grid = f"{len(rises)} runs, η = 1e-6..1e9, N = 1, 40, inf"
    return Found(max(rises) <= 1e-13, grid, f"largest rise {max(rises):.0e} of the initial loss")


@identity("one dynamics")
def rescaling(quick: bool) -> Errors:
    """linear, Fourier, quadratic, Gaussian and finite exchangeable tasks: same run in time γ t"""
    K, steps = 6, 50 if quick else 300
    simplex, basis = Features.simplex(K, 0.5), Features.orthonormal(K, 0.5)
    laws: list[tuple[tasks.Task, Features]] = [
        (tasks.Linear(2.0), simplex), (tasks.RandomFourier(2.0), simplex), (tasks.Quadratic(2.0), basis),
        (tasks.KernelTask(np.eye(K) + 3.0), simplex),
        (tasks.FiniteTask(np.vstack([np.eye(K), -np.eye(K)])), simplex),
    ]  # fmt: skip
    standard = descend(ExchangeableRisk(K, 1.0), 1.0, steps=steps)
    for law, features in laws:
        gamma = float(law.variogram(features)[0, 1])
        yield descend(PopulationRisk(features, law), 1.0 / gamma, steps=steps).loss / gamma, standard.loss
    return f"five families, K = {K}, K x K scores"


@identity("embedding coordinates")
def embedding(quick: bool) -> Errors:
    """descent on Q is that on one number at the rate η Δ⁴/4"""
    T = 50 if quick else 200
    for gap in (0.5, 1.7):
        features = Features.simplex(5, gap)
        full = in_coordinates(PopulationRisk(features, tasks.Exchangeable(2.0)), "embedding", features.vectors)
        run = descend(full, 0.3, steps=T)
        reduced = simulate(2.0, gap, 0.3, K=5, coordinates="embedding", method="exact", epsilon=1e-9, max_steps=T)
        yield run.loss, [float(reduced.at(int(t)).loss) for t in run.t]
    return "simplex, K = 5, Δ = 0.5, 1.7"


@row("tail law, N = inf", bound="1; 1")
def tail_law(quick: bool) -> Found:
    """t L(t) -> (K-1)/(4η) and t ℓ_k(t) -> (K-1)/(4ηKp_k) for every non-degenerate task and every p"""
    risks = [risk for _, risk in random_cases(2 if quick else 8, range(3, 7))]
    values, each, steps = [], [], 10**8 if quick else 10**10
    for risk in [*risks, PopulationRisk(Features.orthonormal(4), tasks.RandomCosine(2.0))]:
        run, limits = descend(risk, 1.0, steps=steps, method="flow"), tail_limits(risk, 1.0)
        values.append(float(run.t[-1] * (run.loss[-1] - run.floor) * 4.0 / (risk.features.K - 1.0)))
        each += (run.t[-1] * run.observed["loss_per_query"][-1] / np.asarray(limits)).tolist()
    return Found(
        off(values, 1.0) < 0.02 and off(each, 1.0) < 0.05,
        f"{len(values)} random kernels and cosines, unequal p, t = {'10⁸' if quick else '10¹⁰'}",
        f"t L 4η/(K-1) = {span(values, '.4f')}; t ℓ_k over its limit {span(each, '.4f')}",
    )


@row("tail law, finite N", bound="1")
def tail_law_finite(quick: bool) -> Found:
    """η t p_k (ℓ_k - inf ℓ_k) tends to the squared norm of the smallest scores whose levels keep their margins"""
    ratios, shown, time = [], [], 1e7 if quick else 1e9
    for risk in (ExchangeableRisk(3, 2.0, 5), ExchangeableRisk(10, 2.0, 60)):
        run = descend(risk, 1.0, steps=10**8, method="flow")
        ratios.append(float(run.t[-1] * (run.loss[-1] - run.floor)) * 4.0 / (risk.K - 1.0))
    for limits, found in (
        tail_units(each, time) for each in (nested_example(), nested_example(0.7), line_example())
    ):
        ratios += [x / c if c else 1.0 + x for x, c in zip(found, limits, strict=True)]  # 0 where it falls faster
        shown.append(", ".join(f"{x:.2f} ({c:.4g})" for x, c in zip(found, limits, strict=True)))
    return Found(
        off(ratios, 1.0) < 0.01,
        "exchangeable K = 3, 10; three features of which one hides another, without noise and with; four on a line",
        f"t = {time:.0e}, over (K-1)/(4ηK), by query, computed in brackets: nested {shown[0]}; with noise"
        f" {shown[1]}; on a line {shown[2]}; all over their limits {span(ratios, '.4f')}",
    )


def tail_units(risk: PopulationRisk, time: float) -> tuple[Array, Array]:
    """Limits of ``t p_k (ℓ_k - inf ℓ_k)`` and its values at a time, over (K-1)/(4K)."""
    unit, limits = (risk.features.K - 1.0) / (4.0 * risk.features.K), query_constants(risk)
    assert limits is not None
    return limits / unit, tails(risk, time) / unit


@row("tail law, embeddings", bound="1")
def tail_law_embeddings(quick: bool) -> Found:
    """η t L -> min ‖Q‖² subject to (x_k - x_m)ᵀ Q x_k >= ½ for all k ≠ m, N = ∞"""
    steps = 10**10 if quick else 10**12
    ratios = [_embedded_ratio(_random_plane(seed), steps) for seed in range(3 if quick else 12)]
    known, held = [ratio for ratio in ratios if ratio is not None], _embedded_ratio(correlated_example(), steps)
    return Found(
        off(known, 1.0) < 0.01 and held is not None and held > 1.03,
        f"{len(ratios)} draws of random features, K, d = 3..5, of which {len(known)} can meet all margins; three"
        f" features with errors of negative correlation; t = {steps:.0e}",
        f"{span(known, '.4f')} of the minimum; with negative correlation {held:.4f}",
        "holds only where errors are not negatively correlated",
    )


def _random_plane(seed: int) -> PopulationRisk:
    """Independent values at random features with random probabilities."""
    rng = np.random.default_rng(seed)
    K, d = int(rng.integers(3, 6)), int(rng.integers(3, 6))
    return PopulationRisk(
        Features(rng.normal(size=(K, d)), rng.dirichlet(np.full(K, 4.0))), tasks.KernelTask(np.eye(K))
    )


def _embedded_ratio(risk: PopulationRisk, steps: int) -> float | None:
    """``η t L`` at the end of a flow on Q over the constant of the margins, None where these cannot all be met."""
    over_q = in_coordinates(risk, "embedding", risk.features.vectors)
    constant = tail_constant(over_q, proved=False)
    if constant is None:
        return None
    run = descend(over_q, 1.0, steps=steps, method="flow")
    return float(run.t[-1] * run.loss[-1]) / constant


def correlated_example() -> PopulationRisk:
    """Three features in the plane; a query's error at one of the others is undone by that at the third."""
    points = np.array([[-1.00699571, 1.6023286], [1.92172117, -0.01622114], [-0.93665946, -0.59087902]])
    values = np.array([[0.00617841, 0.3115922], [-0.86930945, -0.64843364], [2.18176492, 1.89007088]])
    return PopulationRisk(Features(points), tasks.KernelTask(values @ values.T))


def nested_example(noise: float = 0.0) -> PopulationRisk:
    """Three features; without the first, and without the third, the best answer is the second alone."""
    points = np.array([[0.0, 0.0], [1.0, 0.3], [3.0, 0.0]])
    return PopulationRisk(Features(points, [0.3, 0.3, 0.4]), tasks.KernelTask(points @ points.T), 4, noise)


def line_example() -> PopulationRisk:
    """Four features on a line; from either end the best answer is the next one, whichever are missing."""
    return PopulationRisk(Features([[0.0], [1.0], [2.2], [3.5]]), tasks.Linear(1.0), 3)
