"""Rows on the lemmas and Proposition 1, orders of magnitude, bounds with constants, and the irreducible loss."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.engine import Trajectory, descend
from icl_theory.papers.regression.statements import common
from icl_theory.papers.regression.statements.common import (
    EQUAL,
    PAPER,
    cross_ratios,
    random_cases,
    random_risk,
    random_scores,
)
from icl_theory.papers.regression.theorems import checks as bounds
from icl_theory.papers.regression.theorems import enumeration, orderwise
from icl_theory.papers.regression.theorems.concentration import (
    concentration_probability,
)
from icl_theory.papers.regression.theorems.enumeration import (
    differences,
    direct,
    functions_of,
    prompts,
)
from icl_theory.regression import (
    ExchangeableRisk,
    Features,
    PopulationRisk,
    crosscheck,
    tasks,
)
from icl_theory.regression.bounds import (
    after_phase_one,
    phase_one_bounds,
    worst_prediction,
)
from icl_theory.regression.simulate import simulate
from icl_theory.statements.claim import (
    Claim,
    Errors,
    Outcome,
    Row,
    identity,
    row,
)
from icl_theory.statements.numbers import apart, decade, listed, off
from icl_theory.statements.statement import OURS, Statement, Status

LAWS: tuple[Callable[[float], tasks.Task], ...] = (
    tasks.Exchangeable,
    tasks.Linear,
    tasks.RandomCosine,
    tasks.Quadratic,
    tasks.RandomFourier,
)


@identity("Lemma 1", "paper, Lemma 1 (exact form)")
def lemma_1_identity(quick: bool) -> Errors:
    """ℓ_k = ½ E[aᵀC^(k)a + σ² Σ a²/n]: integral = binomial sum"""
    lengths = (1, 2, 7, 100) if quick else (1, 2, 3, 7, 40, 100, 1000, 10**5)
    for K, N, u, noise in itertools.product(
        (2, 3, 8, 20), lengths, (0.0, 2.0, 15.0), (0.0, 0.5)
    ):
        reduced = ExchangeableRisk(K, 2.0, N, noise)
        full = PopulationRisk(
            Features.simplex(K, 1.0), tasks.Exchangeable(2.0), N, noise
        )
        yield full.loss(reduced.scores(u)), reduced.loss(np.asarray(u))
    return f"K = 2..20, N = 1..{lengths[-1]:,}, u = 0..15, σ = 0, 0.5"


@identity("Lemmas 1, 2, direct sums", "paper, Lemmas 1, 2 (exact form)")
def direct_sums(quick: bool) -> Errors:
    """loss, gradient and attention, also as runs record them, are those summed over all prompts and over functions
    of the law
    """
    problems = [
        *itertools.product(
            LAWS, (math.inf, 1, 4) if quick else (math.inf, 1, 2, 3, 6), (0.0, 0.5)
        )
    ]
    for seed, (law, N, noise) in enumerate(problems):
        K = 3 + seed % 3
        rng = np.random.default_rng(seed)
        features = Features.random(
            K, 3, 0.5, seed=seed, probs=rng.dirichlet(np.full(K, 4.0))
        )
        risk = PopulationRisk(features, law(1.5), N, noise)
        scores = random_scores(seed, K, 1.5)
        found = direct(risk, scores)
        seen = risk.observe(scores)
        size = risk.loss(scores)
        yield (risk.loss_per_query(scores), seen["loss_per_query"]), found.loss
        yield apart(risk.gradient(scores), risk.features.probs * found.slope) / size
        yield apart(risk.attention(scores), found.attention)
        yield apart(seen["attention"], np.diagonal(found.attention))
    grid = f"{len(problems)} problems: five families, random features and p, K = 3..5"
    return f"{grid}, N = 1..{4 if quick else 6}, inf, σ = 0, 0.5"


@row("Lemmas 1, 2 against samples", "paper, Lemmas 1, 2 (exact form)", Status.EXACT)
def lemma_1_samples(quick: bool) -> Claim:
    """sampled loss, gradient and SGD agree with the formulas"""
    less: dict[str, Any] = {
        "points": 1,
        "steps": 10,
        "precision": 0.03,
        "batches": 16,
        "runs": 6,
    }
    size = less if quick else {"points": 3, "steps": 20}
    risks = random_risk(1, 4, 12, 0.3), random_risk(2, 8, 40)
    checks = [
        check
        for risk in risks
        for check in crosscheck(risk, eta=2.0, batch=256, **size).checks
    ]
    worst = max(checks, key=lambda check: abs(check.z) / check.limit)
    grid = "random kernels and p, K = 4, 8, N = 12, 40"
    bound = f"{worst.limit:.1f}"
    return Claim.of(worst.passed, grid, f"largest |z| {abs(worst.z):.1f}", bound=bound)


@row(bounds.ENVELOPE, bound="certified constants, attained to 1e-5")
def lemma_1_envelope(quick: bool) -> Claim:
    """Check both bounds on random scores, and at attention that attains them."""
    inside = []
    wide = []
    nearest = [0.0]
    for seed, risk in random_cases(
        10 if quick else 60, range(3, 8), (math.inf, 5.0, 60.0)
    ):
        low = risk.task.nondegeneracy(risk.features)
        high = 2.0 * risk.task.variogram(risk.features).max(axis=0)
        scores = random_scores(seed, risk.features.K, (0.0, 1.0, 4.0)[seed % 3])
        inside.append(bounds.ENVELOPE.check(risk, scores).holds is True)
        wide.append(float((high / low).max()))
        nearest += (
            map(off, _extreme_ratios(risk), (low, high)) if math.isinf(risk.N) else []
        )
    return Claim.of(
        all(inside) and max(nearest) < 1e-5,
        f"{len(inside)} random kernels and p, K = 3..7, N = 5, 60, inf; N = inf:"
        " attention that attains the sides, by search",
        f"{'inside on all' if all(inside) else 'outside on some'}; sides attained to"
        f" {decade(max(nearest))}; envelope up to {max(wide):.3g} wide",
    )


def _extreme_ratios(risk: PopulationRisk) -> tuple[Array, Array]:
    """Least and largest 2ℓ_k/(1 - a_k)² over all scores for N = ∞, by searching the
    attention on the others.
    """
    from scipy.optimize import minimize

    K = risk.features.K
    log_p = np.log(risk.features.probs)

    def ratio(x: Array, k: int) -> float:
        scores = np.zeros((K, K))
        shares = np.maximum(x, 1e-12) / np.maximum(x, 1e-12).sum()
        scores[np.arange(K) != k, k] = np.log(shares)
        scores[:, k] -= log_p
        return 8.0 * float(risk.loss_per_query(scores)[k])  # a_k = ½

    given: dict[str, Any] = {
        "bounds": [(0.0, 1.0)] * (K - 1),
        "method": "SLSQP",
        "constraints": {"type": "eq", "fun": lambda x: x.sum() - 1.0},
        "options": {"ftol": 1e-14, "maxiter": 500},
    }
    least = [
        minimize(ratio, np.full(K - 1, 1.0 / (K - 1)), (k,), **given).fun
        for k in range(K)
    ]
    return np.array(least), np.array(
        [max(ratio(corner, k) for corner in np.eye(K - 1)) for k in range(K)]
    )


LOWER_BOUND = Statement(
    "Lemma 1, lower bound",
    PAPER.format("Lemma 1"),
    "L = Θ(L²Δ²) E(1 - Attn_k)² for every non-degenerate L-Lipschitz class",
    "order-wise",
    Status.ORDER,
)


@row(LOWER_BOUND, bound="Attn -> 1")
def _counterexample(quick: bool) -> Claim:
    law = tasks.Halfspace(2.0)
    epsilon = 1e-3 if quick else 1e-4
    run = simulate(2.0, 1.0, 40.0, K=6, task=tasks.Halfspace, epsilon=epsilon)
    assert isinstance(run.risk, PopulationRisk)
    features = run.risk.features
    found = direct(run.risk, run.params)
    constant = float(law.nondegeneracy(features).max())
    reached = float(np.diagonal(found.attention).max())
    loss = float(features.probs @ found.loss)
    values = functions_of(law, features)
    # of each function, from some other
    apart_by = np.abs(values[:, :, None] - values[:, None]).max(axis=2)
    condition = bool((apart_by >= law.L * features.gap).all())
    return Claim.of(
        run.converged
        and loss <= run.epsilon * 1.001
        and constant == 0.0
        and reached < 0.34
        and condition,
        "f = ±L on two halves of K = 6 features: the example of a public review of the"
        " paper (ICLR 2026, Reviewer 3)",
        f"loss {loss:.0e} with Attn <= {reached:.3f}, c_k = {constant:g}; max_m |f_m -"
        f" f_k| >= LΔ for all k: {'yes' if condition else 'no'}",
        f"fails: counterexample Halfspace, the reviewer's, where c_k = {constant:g}",
    )


def lemma_1_degenerate(quick: bool) -> Claim:
    """The counterexample to the lower bound of Lemma 1; should it not reproduce, the
    package has a bug.
    """
    claim = _counterexample(quick)
    return (
        claim
        if claim.outcome is Outcome.COUNTEREXAMPLE
        else dataclasses.replace(claim, status=Status.EXACT)
    )


@identity("Lemma 2", "paper, Lemma 2 (exact form)", 1e-9)
def lemma_2_identity(quick: bool) -> Errors:
    """α_k = p_k E[a_k R_k], β_mk = p_k E[a_m (R_k - r_m)] (with noise term)"""
    count = 6 if quick else 30
    for seed, risk in random_cases(
        count, range(2, 7), (math.inf, 1.0, 2.0, 9.0, 80.0), (0.0, 0.4)
    ):
        K = risk.features.K
        scores = random_scores(seed, K, 1.5)
        direction = random_scores(seed + 1000, K, 1.0)
        slope = float(np.sum(risk.gradient(scores) * direction))
        yield abs(slope - differences(risk.loss, scores, direction)) / risk.loss(scores)
    return f"{count} random kernels, N = 1..inf, sixth-order differences"


@row("Lemma 2, signs", "paper, Lemma 2", Status.CERTIFIED, "α >= 0")
def lemma_2_signs(quick: bool) -> Claim:
    """α_k >= 0; β_mk has either sign and is smaller"""
    cases = random_cases(20 if quick else 100, range(3, 8), (math.inf, 2.0, 4.0))
    least, errors, signs, at_zero = zip(
        *(_growth_of(risk, seed) for seed, risk in cases), strict=True
    )
    ratios = np.concatenate(at_zero)
    kernels = {
        "exchangeable tasks": np.ones(5),
        "the kernel diag(1, 1.3, 0.8)": np.array([1.0, 1.3, 0.8]),
    }
    most = {k: _cross_ratio_along(each, quick) for k, each in kernels.items()} | {
        "random kernels": ratios.max()
    }
    small, large = (
        " and ".join(k for k in most if (most[k] > 1.0) == above) or "none"
        for above in (False, True)
    )
    return Claim.of(
        min(least) >= -1e-14 and np.max(errors) < 1e-10,
        f"{len(least)} random kernels and scores, N = 2, 4, inf, against direct sums;"
        " sizes at S = 0, and along runs of exchangeable tasks (K = 5) and of the"
        " kernel diag(1, 1.3, 0.8)",
        f"least α {min(least):.0e} of the loss at S = 0; off the direct sums by"
        f" {decade(np.max(errors))}; β > 0 in {np.mean(np.concatenate(signs)):.0%};"
        f" |β| > α for {sum(ratios > 1)} of {len(ratios)} queries of random kernels;"
        " |β|/α at most"
        f" {', '.join(f'{ratio:.2g} ({name})' for name, ratio in most.items())}",
        f"holds for the signs; of these tasks |β| <= α holds for {small}, not for"
        f" {large}",
    )


def _growth_of(
    risk: PopulationRisk, seed: int
) -> tuple[float, float, NDArray[np.bool_], Array]:
    K = risk.features.K
    scores = random_scores(seed, K, 2.0)
    zero = np.zeros((K, K))
    growth = risk.growth(scores)
    size = risk.loss(zero)
    error = apart(growth, -risk.features.probs * direct(risk, scores).slope)
    least = float(np.diagonal(growth).min())
    return (
        least / size,
        error / size,
        growth[~np.eye(K, dtype=bool)] > 0,
        cross_ratios(risk, zero),
    )


def _cross_ratio_along(diagonal: Array, quick: bool) -> float:
    risk = PopulationRisk(
        Features.simplex(len(diagonal), 1.0), tasks.KernelTask(np.diag(diagonal))
    )
    run = descend(risk, 4.0, steps=300 if quick else 3000)
    return max(float(cross_ratios(risk, state).max()) for state in run.states)


@row(
    "Proposition 1",
    "paper, Prop. 1 (our constants)",
    Status.CERTIFIED,
    "1, attained to 1e-6; 1e-7",
)
def proposition_1(quick: bool) -> Claim:
    """1 - Attn_k <= √(2ℓ_k/c_k); |ŷ - f(v_k)| <= L Σ Attn_m |v_m - v_k| for every
    L-Lipschitz f; both attained
    """
    holds, reaches, errors, searched = zip(
        *map(_attained, range(4 if quick else 12)), strict=True
    )
    attained = (
        max(reaches) > 1.0 - 1e-6
        and min(errors) > 1.0 - 1e-6
        and np.max(searched) < 1e-7
    )
    return Claim.of(
        all(holds) and attained,
        f"{len(reaches) + len(errors)} checks: random features, four families; f = L|x"
        " - v_k| and 100 drawn L-Lipschitz f a run",
        f"measured/bound at most {max(reaches):.6f} and {np.max(errors):.6f}; the"
        f" second at least {min(errors):.6f}; the worst function by linear"
        f" programming: off the bound by {decade(max(searched))}",
    )


def _attained(seed: int) -> tuple[bool, float, float, float]:
    law = (tasks.RandomFourier, tasks.RandomCosine, tasks.Linear, tasks.Exchangeable)[
        seed % 4
    ]
    features = Features.random(5, 3, 0.5, seed=seed)
    run = simulate(
        1.5, 0.5, 2.0, features=features, task=law, epsilon=1e-2, max_steps=2000
    )
    first = bounds.ATTENTION.check(*bounds.class_scores(run))
    second = bounds.PREDICTION.check(run)
    reach, error = (each.measured / each.bound for each in (first, second))  # type: ignore[operator]
    return bool(first.holds and second.holds), reach, error, _worst_by_search(run)


def _worst_by_search(run: Trajectory) -> float:
    """How far the worst prediction of a linear programme is off L Σ a_m d_m, and off
    its function's.
    """
    if not isinstance(run.risk, PopulationRisk):
        return 0.0
    distances = run.risk.features.distances
    attention = run.risk.attention(run.params)
    worst = 0.0
    L = float(run.info["L"])
    for k in range(len(distances)):
        # the query's own first
        order = np.r_[k, np.delete(np.arange(len(distances)), k)]
        a = attention[order, k]
        between = distances[np.ix_(order, order)]
        error, function = worst_prediction(a, between, L)
        steepest = float(np.max(np.abs(function[:, None] - function) - L * between))
        worst = max(
            worst,
            apart(error, [L * float(a @ between[0]), float(a @ function)]) / error,
            steepest / L,
        )
    return worst


@row("unseen functions", PAPER.format("Prop. 1"), Status.CERTIFIED, "1")
def unseen_functions(quick: bool) -> Claim:
    """a function that training has never seen is predicted within L Σ Attn_m |v_m -
    v_k|, in the end exactly
    """
    L = 1.5
    risk = PopulationRisk(Features.random(7, 2, 0.6, seed=5), tasks.RandomCosine(1.5))
    values, left = _unseen_values(risk, L)
    run = descend(risk, 4.0, steps=10**4 if quick else 10**8, method="fast")
    distances = risk.features.distances
    bands = L * np.array(
        [np.sum(risk.attention(scores) * distances, axis=0) for scores in run.states]
    )
    errors = np.array(
        [
            np.abs(values @ direct(risk, scores).attention - values)
            for scores in run.states
        ]
    )
    worst = float(np.max(errors / bands[:, None]))
    first = float(errors[0].max())
    last = float(errors[-1].max())
    return Claim.of(
        worst <= 1.0 + EQUAL
        and left > 0.01
        and last < (0.3 if quick else 0.05) * first,
        f"trained on cosines, K = 7 features in the plane, {int(run.t[-1]):,} steps;"
        f" 40 drawn L-Lipschitz functions, at least {left:.0%} of each outside the"
        " training tasks' span",
        f"error at most {worst:.3f} of the band at {len(run.t)} saved steps; largest"
        f" error from {first:.2g} to {last:.1g}",
    )


def _unseen_values(risk: PopulationRisk, L: float) -> tuple[Array, float]:
    """Lipschitz functions, and the least share of one that is outside the span of the
    tasks and constants.
    """
    values = enumeration.lipschitz_values(
        risk.features.distances, L, np.random.default_rng(1), 40
    )
    basis = np.vstack(
        [functions_of(risk.task, risk.features), np.ones(risk.features.K)]
    )
    outside = values - values @ np.linalg.pinv(basis) @ basis
    return values, float(
        np.min(np.linalg.norm(outside, axis=1) / np.ptp(values, axis=1))
    )


@row(
    "Eq. 9, concentration",
    PAPER.format("Eq. 9"),
    Status.CERTIFIED,
    "union bound; 1e-12",
)
def concentration(quick: bool) -> Claim:
    """P(|n_m - p_m N| <= δN for all m) >= 1 - 2K exp(-2Nδ²)"""
    lengths = (50, 400) if quick else (50, 400, 3000, 20_000)
    gaps = []
    errors = []
    for N, K, delta in itertools.product(lengths, (2, 5, 20), (0.02, 0.05, 0.15)):
        exact = concentration_probability(N, K, delta)
        bound = 2.0 * K * math.exp(-2.0 * N * delta**2)
        gaps += (
            [bound / (1.0 - exact.value + exact.error)] if 1e-6 < bound < 1.0 else []
        )
    for N, K, delta in itertools.product((1, 7, 30), (2, 3), (0.05, 0.2, 0.4)):
        probability, _, counts = prompts(np.full(K, 1.0 / K), N, np.zeros(K))
        inside = (np.abs(counts - N / K) <= delta * N * (1.0 + 1e-12)).all(axis=1)
        errors.append(
            apart(concentration_probability(N, K, delta).value, probability @ inside)
        )
    return Claim.of(
        min(gaps) >= 1.0 and max(errors) <= 1e-12,
        f"{len(gaps)} of N = 50..20,000, K = 2..20, δ = 0.02..0.15 with a bound in (0,"
        " 1 - 1e-6)",
        f"exact failure probability at least {min(gaps):.2g} times below the bound;"
        f" off sums over all prompts, N <= 30, by {decade(max(errors))}",
        f"holds, loose by {min(gaps):.2g} at least",
    )


@row("loss on the event", PAPER.format("Eq. 9, Thms 1, 2"), Status.ORDER, "0; 1e-9")
def conditional_loss(quick: bool) -> Claim:
    """the loss falls to any ε on prompts in which every feature is about as frequent as
    expected
    """
    risk = PopulationRisk(Features.simplex(3, 1.0), tasks.Exchangeable(2.0), 12)
    delta = 0.25
    run = descend(risk, 4.0, steps=10**4 if quick else 10**7, method="fast")
    floor = risk.floor()
    found = [_conditional(risk, run.states[at], delta) for at in (0, -1)]
    (before, at_first, weight), (after, at_last, _) = found
    error = off([total for _, total, _ in found], run.loss[[0, -1]])
    return Claim.of(
        error <= EQUAL and after < 1e-2 * floor and at_last > 0.99 * floor,
        f"exchangeable, K = 3, N = 12, δ = {delta:g}, {int(run.t[-1]):,} steps; sums"
        " over all prompts",
        f"from {before:.3g} to {after:.1e} on the event (probability {weight:.3f}),"
        f" from {at_first:.3g} to {at_last:.1e} on all prompts, whose floor is"
        f" {floor:.1e}; off the risk by {decade(error)}",
        "holds on the event; on all prompts the floor of those without the query's"
        " feature remains",
    )


def _conditional(
    risk: PopulationRisk, scores: Array, delta: float
) -> tuple[float, float, float]:
    """Loss on the event and on all prompts, and the probability of the event, by sums
    over all prompts.
    """
    p = risk.features.probs
    functions = functions_of(risk.task, risk.features)
    total = 0.0
    kept = 0.0
    weight = 0.0
    for k in range(len(p)):
        probability, attention, counts = prompts(p, risk.N, scores[:, k])
        inside = (np.abs(counts - p * risk.N) <= delta * risk.N).all(axis=1)
        each = (
            probability
            * 0.5
            * p[k]
            * ((attention @ (functions - functions[:, [k]]).T) ** 2).sum(axis=1)
        )
        total = total + each.sum()
        kept = kept + each @ inside
        weight = weight + p[k] * float(probability @ inside)
    return kept / weight, total, weight


@identity("irreducible loss", OURS, 1e-9)
def noise_floor(quick: bool) -> Errors:
    """floor ½γ(1-1/K)^N q₀, with label noise the minimum over one number"""
    few = ((3, 4, 0.0), (3, 4, 0.5), (5, 30, 0.2))
    for K, N, noise in (
        few if quick else itertools.product((2, 3, 6), (1, 4, 60), (0.0, 0.5))
    ):
        full = PopulationRisk(
            Features.simplex(K, 1.0), tasks.Exchangeable(2.0), N, noise
        )
        yield full.floor(), ExchangeableRisk(K, 2.0, N, noise).floor()
    return "K = 2..6, N = 1..60 against minimisation over all scores"


@identity("N -> inf", OURS, 1e-4)
def lengths(quick: bool) -> Errors:
    """L_N(S) - L_∞(S) = O(1/N)"""
    count = 4 if quick else 12
    for seed, risk in random_cases(count, range(3, 6)):
        scores = random_scores(seed, risk.features.K, 1.0)
        K = risk.features.K
        short, long = (
            random_risk(seed, K, N).loss(scores) - risk.loss(scores)
            for N in (10**5, 10**6)
        )
        yield abs(math.log10(short / long) - 1.0)
    return f"{count} random kernels and scores, N = 10⁵, 10⁶: exponent against 1"


def order_statement(statement: orderwise.OrderStatement) -> Row:
    """Make the row of one of the paper's order-of-magnitude statements."""

    @row(statement)
    def order(quick: bool) -> Claim:
        found = orderwise.survey(statement)
        constants = orderwise.fitted_constants()[statement.name]
        upper = statement.upper_only
        largest = _moving(found.rise)
        sides = (
            f"<= {constants.highest:.2g}"
            if upper
            else "{:.2g}..{:.2g}".format(*constants)
        )
        measured = (
            f"measured/scale {found.low:.2g}..{found.high:.2g} over the phases, mean"
            f" {found.typical:.2g}; drift per decade:"
            f" {largest if upper else f'largest {largest}; smallest {_moving(found.fall)}'}"
        )
        for kind, limit, ratios in _limits(statement, found):
            measured += f"; {kind} at {limit.quantity} = {listed(limit.values, 'g')}: {listed(ratios, '.3g')}"
        words = verdict(statement, found)
        agrees = True
        if "cross terms" in statement.name:
            error = _cross_terms_over_growth()
            agrees = error <= EQUAL
            measured += f"; |β_mk|(K-1)/α_k off 1 by {decade(error)}, by direct sums"
            words += "; against the growth it holds: |β_mk| = α_k/(K-1)"
        return Claim.of(
            agrees,
            f"{found.runs} of {orderwise.DRAWS} runs (seed {orderwise.SEED}),"
            f" log-uniform in {orderwise.WHOLE}",
            measured,
            words,
            f"{sides} on the inner law, times {orderwise.BOUNDED:g}",
        )

    return order


def _limits(
    statement: orderwise.OrderStatement, found: orderwise.Survey
) -> list[tuple[str, orderwise.Limit, tuple[float, ...]]]:
    """Limits in which a side was measured, with the ratios there."""
    limits: list[tuple[str, orderwise.Limit, tuple[float, ...]]] = []
    if statement.rises is not None and found.rising:
        limits.append(("largest", statement.rises, found.rising))
    if statement.falls is not None and found.falling:
        limits.append(("least", statement.falls, found.falling))
    return limits


def _cross_terms_over_growth() -> float:
    """How far |β_mk|(K-1)/α_k is off 1 for exchangeable tasks, by sums over functions."""
    errors = []
    for K, gap in itertools.product((3, 5), (0.0, 1.0, 4.0)):
        reduced = ExchangeableRisk(K, 2.0)
        full = PopulationRisk(Features.simplex(K, 1.0), tasks.Exchangeable(2.0))
        growth = -direct(full, reduced.scores(gap)).slope
        alpha = np.diagonal(growth)
        others = np.abs(growth / alpha)[~np.eye(K, dtype=bool)]
        errors.append(apart(others * (K - 1.0), 1.0))
    return max(errors)


def verdict(statement: orderwise.OrderStatement, found: orderwise.Survey) -> str:
    """Say which sides of an order of magnitude hold over the law, and in which limit
    the others break.
    """
    below, above = orderwise.bounded_sides(statement, found.low, found.high)
    if statement.upper_only and above:
        loose = orderwise.fitted_constants()[statement.name].highest / found.low
        return (
            f"holds, loose by up to {loose:.2g}"
            if loose > 2.0 * orderwise.BOUNDED
            else "holds"
        )
    if above and below:
        return "holds"
    breaks = {
        kind: _breaking(limit, kind, ratios)
        for kind, limit, ratios in _limits(statement, found)
    }
    rising = breaks.get("largest")
    falling = breaks.get("least")
    if statement.upper_only:
        return (
            f"fails for {rising}"
            if rising
            else f"fails: counterexample {found.where[1]}"
        )
    if below and rising:
        return f"holds only as a lower bound; the upper one fails for {rising}"
    if below:
        return (
            f"holds only as a lower bound: the ratio rises to {found.high:.2g} at"
            f" {found.where[1]}"
        )
    if above and falling:
        return f"holds only as an upper bound; the lower one fails for {falling}"
    if above:
        return (
            f"holds only as an upper bound: the ratio falls to {found.low:.2g} at"
            f" {found.where[0]}"
        )
    if rising and falling:
        return f"fails for {falling}; as an upper bound it fails for {rising}"
    return f"fails: counterexample {found.where[0]} (ratio {found.low:.2g})"


def _breaking(limit: orderwise.Limit, kind: str, ratios: tuple[float, ...]) -> str:
    """Say in which limit a ratio leaves all bounds; nothing if it does not move that
    way at every value.
    """
    moves = np.diff(np.log(ratios)) * (1.0 if kind == "largest" else -1.0)
    if not (moves > 0.0).all():
        return ""
    first = limit.values[0]
    last = limit.values[-1]
    return (
        f"{limit.words}: the {kind} ratio is {ratios[0]:.3g} at {limit.quantity} ="
        f" {first:g}, {ratios[-1]:.3g} at {last:g}"
    )


def _moving(rates: dict[str, float]) -> str:
    return (
        ", ".join(
            f"{name} ×{rate:.2g}"
            for name, rate in rates.items()
            if not 0.87 < rate < 1.15
        )
        or "none"
    )


ORDERS: dict[str, Row] = {
    statement.name: order_statement(statement) for statement in orderwise.STATEMENTS
}


@row(bounds.PHASE_ONE, bound="1; the upper one attained to 5 %")
def phase_one_explicit(quick: bool) -> Claim:
    """By plain iteration; balls prove it on a box (docs/proved.md)."""
    sizes = (2, 3, 10, 1000) if quick else (2, 3, 4, 7, 10, 30, 100, 300, 1000)
    K, c = np.array([*itertools.product(sizes, (0.01, 1.0, 30.0, 1e3, 1e6))]).T
    counts = np.array(
        [common.iterated_steps(*case, (0.5,))[0] for case in zip(K, c, strict=True)]
    )
    lower, upper = phase_one_bounds(K, c)
    low = (counts[lower > 0] / lower[lower > 0]).min()
    high = (counts[upper > 0] / upper[upper > 0]).max()
    return Claim.of(
        low >= 1.0 - 1e-9
        and 1.0 + 1e-9 >= high > 0.95
        and not counts[upper == 0].any(),
        f"{len(K)} runs iterated, K = 2..{sizes[-1]}, c = ηγK/(K-1)² = 0.01..1e6",
        f"T₁ over the lower bound at least {low:.3f}, over the upper one at most"
        f" {high:.3f}",
    )


@row("Phase I, proved", OURS, Status.CERTIFIED, "all of the box")
@common.by_proof
def phase_one_proved(quick: bool) -> Claim:
    """[F(1/3) - F(1/K)]/c <= T₁ <= 3K²/(2ηγ) + ln(K/3) + 2 at every point of a box, cut
    until balls decide
    """
    from flint import arb

    from icl_theory.certified.closed import everywhere, phase_one_lies_between

    (features, decades), done = (4, 0.5) if quick else (50, 4.0), 0
    for K in range(2, features + 1):
        # c = ηL²Δ²K/(2(K - 1)²) at the smallest L
        least = K / (2 * arb(K - 1) ** 2) / arb(10) ** decades
        done += everywhere(
            partial(phase_one_lies_between, K), least, least * arb(100) ** decades
        )
    grid = f"K = 2..{features}, {decades:g} decades of L around 1, η = Δ = 1"
    return Claim.of(True, grid, f"proved on {done:,} pieces")


@row(bounds.THEOREM_2, bound="1, attained to 1 %")
def after_phase_one_explicit(quick: bool) -> Claim:
    """By plain iteration; balls prove it for all parameters (docs/proved.md)."""
    deficits = (0.245, 0.05) if quick else (0.45, 0.3, 0.245, 0.1, 0.05, 0.02)
    high, count = _over_bound((2, 3, 20, 100), (0.01, 3.0, 100.0, 1e6), deficits)
    return Claim.of(
        high <= 1.0 + 1e-9 and high > 0.99,
        f"{count} runs iterated, K = 2..100, c = 0.01..1e6, deficits"
        f" {min(deficits)}..{max(deficits)}",
        f"T - T₁ - 1 over (7/16)(K-1)/(ηε) at most {high:.4f}",
    )


@row(bounds.THEOREM_1, bound="1, attained to 1 %")
def theorem_1_explicit(quick: bool) -> Claim:
    """For targets that leave a deficit of order δ: Theorem 2 at ε = L²Δ²δ²/4, which is
    the deficit 0.245 here.
    """
    high, count = _over_bound((3, 20, 100), (0.01, 1.0, 100.0), (0.245,))
    return Claim.of(
        high <= 1.0 + 1e-9 and high > 0.99,
        f"{count} runs iterated with ε = L²Δ²δ²/4, K = 3..100, c = 0.01..100",
        f"T_f - T₁ - 1 over (7/4)(K-1)/(ηL²Δ²δ²) at most {high:.4f}",
    )


def _over_bound(*axes: tuple[float, ...]) -> tuple[float, int]:
    """Largest ``T - T₁ - 1`` over its bound for K, c and deficits (η and ε in units of
    γ), and number of runs.
    """
    K, c, deficit = np.array([*itertools.product(*axes)]).T
    first, last = np.transpose(
        [common.iterated_steps(K, c, (0.5, s)) for K, c, s in itertools.product(*axes)]
    )
    beyond = np.maximum(last - first, 1) - 1.0
    eta = c * (K - 1.0) ** 2 / K
    epsilon = 0.5 * K / (K - 1.0) * deficit**2
    return float(np.max(beyond / (after_phase_one(K, eta, epsilon) - 1.0))), len(K)
