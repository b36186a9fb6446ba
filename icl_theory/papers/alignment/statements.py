"""Pretraining and test tasks of different covariance: rows, and what the paper says."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path

import numpy as np

from icl_theory._validate import Array
from icl_theory.papers.alignment.kernel import error_kernel
from icl_theory.papers.alignment.limit import AlignmentLimit
from icl_theory.papers.alignment.pretraining import Pretraining
from icl_theory.papers.linear_attention.law import PromptLaw, root
from icl_theory.statements.claim import OURS, Claim, Errors, identity, row
from icl_theory.statements.numbers import deviations, listed, named, power
from icl_theory.statements.paper import Claims, ModelEntry, Paper, Reading

CODE = "Letey et al. 2026, public code"
README = "Letey et al. 2026, {} by the README of the code"
ABSTRACT = "Letey et al. 2026, abstract"
# Errors that the authors' simulation of d = 80, α = τ = 80, ρ = 0.01 printed, by κ. The
# tests are C_train ∝ diag(1 … d), I, and power laws against and along C_train.
PRINTED = {
    0.2: (0.8357405547, 0.8879074852, 0.9365451357, 0.8471620521),
    1.0: (0.0659035927, 0.1113123716, 0.1914214520, 0.0852687905),
    1.6: (0.0256684575, 0.0374095488, 0.0658261707, 0.0313124336),
    2.2: (0.0236197360, 0.0309950631, 0.0502753942, 0.0272446454),
}
# Three nodes are exact for polynomials of degree 5.
NODES = math.sqrt(3.0) * np.array([-1.0, 0.0, 1.0])
WEIGHTS = np.array([1.0, 4.0, 1.0]) / 6.0


def power_law(d: int, exponent: float) -> Array:
    """Eigenvalues j^-p, with the mean 1."""
    eigenvalues = np.arange(1.0, d + 1.0) ** -exponent
    return np.asarray(eigenvalues / eigenvalues.mean())


def error_by_quadrature(gamma: Array, law: PromptLaw) -> float:
    """Return the mean squared error of a layer, by a sum over all nodes of a prompt.

    The error is a polynomial of degree at most 4 in each normal number. It shares
    nothing with the kernel.
    """
    covariance, prior, query_covariance = law.dense.moments
    d, N = law.d, int(law.N)
    numbers = 2 * d + N * (d + 1)
    nodes = np.array(list(product(NODES, repeat=numbers)))
    weights = np.prod(np.array(list(product(WEIGHTS, repeat=numbers))), axis=1)
    task, query, tokens, noise = np.split(nodes, [d, 2 * d, 2 * d + N * d], axis=1)
    w = task @ root(prior)
    x = query @ root(query_covariance)
    X = tokens.reshape(-1, N, d) @ root(covariance)
    y = np.einsum("pnd,pd->pn", X, w) + law.noise * noise
    means = np.column_stack([np.einsum("pn,pnd->pd", y, X), np.sum(y**2, axis=1)]) / N
    prediction = np.sum(x * (means @ gamma.T), axis=1)
    squares = (prediction - np.sum(x * w, axis=1)) ** 2
    return float(weights @ squares) + law.noise**2


def random_covariance(rng: np.random.Generator, d: int) -> Array:
    """A random covariance, (d, d)."""
    factor = rng.normal(size=(d, d + 1))
    return np.asarray(factor @ factor.T / d)


@identity("task alignment: kernel", OURS, 1e-10)
def kernel(quick: bool) -> Errors:
    """the error is affine in the covariance of the test tasks, but for a quadratic term
    of the column of squares
    """
    rng = np.random.default_rng(0)
    problems = 20 if quick else 200
    # A sum over 3^(2d + N(d + 1)) nodes.
    sizes = ((1, 1), (1, 3), (2, 1)) if quick else ((1, 1), (1, 3), (2, 1), (2, 2))
    for problem in range(problems):
        d, N = sizes[problem % len(sizes)]
        tasks = random_covariance(rng, d)
        law = PromptLaw(
            random_covariance(rng, d),
            tasks,
            random_covariance(rng, d),
            N=N,
            noise=float(rng.uniform()),
        )
        gamma = rng.normal(size=(d, d + 1))
        exact = error_kernel(gamma, law).error(tasks)
        yield np.array([exact]), error_by_quadrature(gamma, law)
    return (
        f"{problems} random layers and laws, (d, N) = {listed(sizes)}, by quadrature"
        " over all numbers of a prompt"
    )


def sampled_errors(
    gamma: Array, law: PromptLaw, prompts: int, rng: np.random.Generator
) -> Array:
    """Squared errors of a layer on sampled prompts, (prompts,)."""
    covariance, prior, query_covariance = law.dense.moments
    d, N = law.d, int(law.N)
    w = rng.normal(size=(prompts, d)) @ root(prior)
    x = rng.normal(size=(prompts, d)) @ root(query_covariance)
    X = rng.normal(size=(prompts, N, d)) @ root(covariance)
    y = np.einsum("pnd,pd->pn", X, w) + law.noise * rng.normal(size=(prompts, N))
    h = np.einsum("pn,pnd->pd", y, X) / N
    s = np.mean(y**2, axis=1)
    prediction = np.sum(x * np.column_stack([h, s]).dot(gamma.T), axis=1)
    answer = np.sum(x * w, axis=1) + law.noise * rng.normal(size=prompts)
    return np.asarray((prediction - answer) ** 2)


@row("task alignment: samples", OURS, bound="4.5")
def samples(quick: bool) -> Claim:
    """sampled prompts have this mean error"""
    rng = np.random.default_rng(1)
    prompts = 10_000 if quick else 200_000
    sizes = ((3, 8), (6, 12))
    largest = 0.0
    for d, N in sizes:
        tasks = random_covariance(rng, d) / d
        law = PromptLaw(random_covariance(rng, d), tasks, N=N, noise=0.3)
        best = law.dense.best
        gamma = np.column_stack([best, 0.1 * rng.normal(size=d)])
        sampled = sampled_errors(gamma, law, prompts, rng)
        z = deviations(sampled, error_kernel(gamma, law).error(tasks))
        largest = max(largest, float(z))
    return Claim.of(
        largest < 4.5,
        f"(d, N) = {listed(sizes)}, {prompts:,} prompts each",
        f"largest |z| {largest:.1f}",
    )


def departures(
    sizes: tuple[int, ...], draws: int, prompts: float, squares: bool
) -> tuple[Array, Array]:
    """Mean exact errors relative to the limit, minus 1, and their standard errors.

    Tasks have a power law of exponent 1, and α = κ = 2. Tests are on the same
    covariance.
    """
    excess = np.empty(len(sizes))
    standard_error = np.empty(len(sizes))
    for i, d in enumerate(sizes):
        spectrum = power_law(d, 1.0)
        problem = Pretraining(spectrum, 2 * d, 2 * d, prompts * d**2, 0.1, squares)
        errors = problem.errors([spectrum], draws)[:, 0]
        limit = problem.limit().error(spectrum)
        excess[i] = errors.mean() / limit - 1.0
        standard_error[i] = errors.std(ddof=1) / math.sqrt(draws) / limit
    return excess, standard_error


@row("task alignment: limit", CODE, bound="to zero")
def limit(quick: bool) -> Claim:
    """the error tends to the formula for many dimensions, if all prompts of k tasks
    are used for pretraining
    """
    sizes = (5, 10, 20) if quick else (5, 10, 20, 40, 80)
    excess, _ = departures(sizes, 100 if quick else 1000, math.inf, False)
    exponent = power(np.array(sizes), excess)
    return Claim.of(
        bool((np.diff(excess) < 0.0).all() and -1.1 < exponent < -0.6),
        f"d = {listed(sizes)}, N = k = 2d, C_train = C_test = diag(1/j), σ = 0.1",
        f"the mean error is above the limit by {listed(100.0 * excess, '.1f')} %, an"
        f" exponent of {exponent:.2f}",
        "holds: with a relative departure of the order 1/d",
    )


@row("task alignment: limit of prompts", CODE, bound="to zero")
def limit_of_prompts(quick: bool) -> Claim:
    """the error tends to the formula for many dimensions, with n = 4d² prompts and the
    column of squares
    """
    sizes = (4, 6, 9) if quick else (6, 9, 13, 19)
    excess, _ = departures(sizes, 25 if quick else 100, 4.0, True)
    plain, _ = departures(sizes, 25 if quick else 100, 4.0, False)
    return Claim.of(
        bool((excess[0] > excess[-1] > 0.0) and (plain < excess).all()),
        f"d = {listed(sizes)}, N = k = 2d, n = 4d², C_train = C_test = diag(1/j),"
        " σ = 0.1",
        f"the mean error is above the limit by {listed(100.0 * excess, '.0f')} %, and"
        f" without the column by {listed(100.0 * plain, '.0f')} %",
        "holds: but far from the limit at these sizes",
    )


@row("task alignment: printed", CODE, bound="3 %, and 7 % for the limit")
def printed(quick: bool) -> Claim:
    """the authors' simulation for d = 80 has the errors of a layer of this size, and is
    not yet at the limit
    """
    d = 80
    spectrum = np.arange(1.0, d + 1.0)
    spectrum /= spectrum.mean()
    against = power_law(d, 0.5)
    tests = [spectrum, np.ones(d), against, against[::-1]]
    diversities = (0.2, 1.0) if quick else tuple(PRINTED)
    from_exact = np.empty(len(diversities))
    from_limit = np.empty(len(diversities))
    for i, diversity in enumerate(diversities):
        shown = np.array(PRINTED[diversity])
        tasks = round(diversity * d)
        problem = Pretraining(spectrum, 80 * d, tasks, noise=0.1, squares=True)
        exact = problem.errors(tests, 10 if quick else 100).mean(axis=0)
        all_prompts = problem.limit()
        some_prompts = AlignmentLimit(spectrum, 80.0, diversity, 80.0, 0.1)
        # 512,000 prompts are too many to fit here. The limit says what they change.
        asymptotic = np.array([some_prompts.error(test) for test in tests])
        exact *= asymptotic / [all_prompts.error(test) for test in tests]
        from_exact[i] = np.abs(exact / shown - 1.0).max()
        from_limit[i] = np.abs(asymptotic / shown - 1.0).max()
    return Claim.of(
        from_exact.max() < 0.03 and from_limit.max() > 0.07,
        f"κ = {listed(diversities)}, four test covariances, α = τ = 80",
        f"printed errors are up to {100.0 * from_exact.max():.1f} % from the model, and"
        f" up to {100.0 * from_limit.max():.1f} % from the limit",
    )


@row("task alignment: column", OURS, bound="exponent about -1")
def column(quick: bool) -> Claim:
    """the column of squares learns the mean of the k pretraining tasks, and adds an
    error of order 1/k on new ones
    """
    d = 20
    spectrum = power_law(d, 1.0)
    counts = np.array([100, 400, 1600])
    added = np.empty(len(counts))
    for i, tasks in enumerate(counts.tolist()):
        errors = []
        for squares in (False, True):
            problem = Pretraining(spectrum, 2 * d, tasks, noise=0.1, squares=squares)
            # Both layers see the same tasks.
            errors.append(problem.errors([spectrum], 30 if quick else 300).mean())
        added[i] = errors[1] - errors[0]
    exponent = power(counts, added)
    return Claim.of(
        -1.4 < exponent < -0.9,
        f"d = {d}, N = 2d, n = ∞, C_train = C_test = diag(1/j), k = {listed(counts)}",
        f"added error {listed(added, '.1e')}, an exponent of {exponent:.2f}",
    )


@row("task alignment: one direction", OURS, bound="0.744 printed")
def one_direction(quick: bool) -> Claim:
    """tests along one direction have a larger error than the second moments of the
    limit give
    """
    d = 80
    spectrum = np.arange(1.0, d + 1.0)
    spectrum /= spectrum.mean()
    test = np.concatenate([np.zeros(d - 1), [float(d)]])
    problem = Pretraining(spectrum, 80 * d, 16, noise=0.1, squares=True)
    exact = []
    by_limit = []
    for seed in range(20 if quick else 200):
        gamma = problem.fit(seed)
        exact.append(problem.kernel(gamma).error(test / d))
        by_limit.append(_error_by_limit_moments(gamma, test, problem))
    return Claim.of(
        np.mean(exact) > 1.05 * np.mean(by_limit),
        "d = 80, α = 80, k = 16, C_train ∝ diag(1 … d), n = ∞, tests along the last"
        " axis",
        f"mean error {np.mean(exact):.2f}, by the second moments of the limit"
        f" {np.mean(by_limit):.2f}",
    )


def _error_by_limit_moments(gamma: Array, test: Array, problem: Pretraining) -> float:
    """Return the error with the moments of the features that the authors' code has."""
    matrix, squares = gamma[:, :-1], gamma[:, -1]
    variance = float(test.mean()) + problem.noise**2
    noise = variance * problem.d / problem.N
    learnt = np.sum(matrix**2 * (test + noise)) - 2.0 * np.trace(matrix * test)
    by_column = variance**2 * (squares @ squares)
    return float(variance + learnt / problem.d + by_column)


@row("task alignment: measure", README.format("Figure 2"), bound="largest for K")
def measure(quick: bool) -> Claim:
    """no other measure of alignment orders the errors as well as ⟨C_test, K⟩"""
    d = 12
    spectrum = power_law(d, 1.0)
    rng = np.random.default_rng(4)
    tests = []
    for _ in range(30):
        weights = rng.exponential(size=d) ** 2
        tests.append(weights / weights.mean())
    problem = Pretraining(spectrum, 2 * d, 6, 4 * d**2, 0.1)
    errors = problem.errors(tests, 30 if quick else 300).mean(axis=0)
    limits = problem.limit()
    correlations = {
        "⟨C_test, K⟩": _rank_correlation(
            [limits.misalignment(test) for test in tests], errors
        ),
        "⟨C_test, C_train⟩": _rank_correlation(
            [-float(test @ spectrum) for test in tests], errors
        ),
        "⟨C_test, C_train⁻¹⟩": _rank_correlation(
            [float(test @ (1.0 / spectrum)) for test in tests], errors
        ),
        "largest eigenvalue of C_test": _rank_correlation(
            [float(test.max()) for test in tests], errors
        ),
    }
    best, *others = correlations.values()
    return Claim.of(
        best > max(others) and best > 0.95,
        f"d = {d}, N = 2d, k = 6, n = 4d², C_train = diag(1/j), 30 random C_test of one"
        " trace",
        f"rank correlations with the exact mean error {named(correlations, '.3f')}",
    )


def _rank_correlation(measures: list[float], errors: Array) -> float:
    """Spearman's correlation."""
    ranks = np.argsort(np.argsort(np.array([measures, errors])))
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


@row("task alignment: steeper pretraining", README.format("Figure 4"), bound="above 1")
def steeper(quick: bool) -> Claim:
    """with few pretraining tasks, pretraining on another covariance than that of the
    tests is better
    """
    d = 20
    test = power_law(d, 1.0)
    exponents = np.linspace(0.0, 3.0, 7 if quick else 13)
    draws = 40 if quick else 400
    best = []
    gain = []
    for tasks in (6, 20, 80, math.inf):
        errors = []
        for exponent in exponents:
            spectrum = power_law(d, exponent)
            problem = Pretraining(spectrum, 2 * d, tasks, noise=0.1)
            count = 1 if math.isinf(tasks) else draws
            errors.append(problem.errors([test], count).mean())
        matched = errors[int(np.argmin(np.abs(exponents - 1.0)))]
        best.append(float(exponents[int(np.argmin(errors))]))
        gain.append(1.0 - min(errors) / matched)
    return Claim.of(
        best[0] > 1.9 and best[-1] == 1.0 and np.all(np.diff(best) <= 0.0),
        "d = 20, N = 2d, n = ∞, C_test = diag(1/j), C_train = diag(j^-p), k = 6, 20,"
        " 80, ∞",
        f"least error at p = {listed(best, '.2f')}; the error falls by"
        f" {listed(np.multiply(100.0, gain), '.1f')} % from p = 1",
    )


@row("task alignment: diversity", ABSTRACT, bound="both directions")
def diversity(quick: bool) -> Claim:
    """more pretraining tasks improve or harm the error, depending on the alignment"""
    d = 10
    spectrum = power_law(d, 1.5)
    tests = [spectrum, spectrum[::-1]]
    counts = (1, 3, 10, 40, 400)
    draws = 25 if quick else 500
    means = np.empty((len(counts), len(tests)))
    for i, tasks in enumerate(counts):
        problem = Pretraining(spectrum, 2 * d, tasks, 2 * d**2, 0.1)
        means[i] = problem.errors(tests, draws).mean(axis=0)
    same, reverse = means.T
    return Claim.of(
        same[-1] < 0.8 * same[0] and reverse.max() > 1.1 * reverse[0],
        f"d = 10, N = 2d, n = 2d², C_train = diag(j^-1.5), k = {listed(counts)}",
        f"tests on C_train {listed(same, '.2f')}; on its reverse"
        f" {listed(reverse, '.2f')}",
    )


@row("task alignment: rank", README.format("Figure 6"), bound="1 - k/r")
def rank(quick: bool) -> Claim:
    """tasks of rank r need k ≥ r pretraining tasks, fewer than the dimension"""
    d, r = 12, 6
    spectrum = np.concatenate([np.full(r, d / r), np.zeros(d - r)])
    counts = (1, 3, 5, 6, 12)
    draws = 20 if quick else 100
    errors = np.empty(len(counts))
    for i, tasks in enumerate(counts):
        problem = Pretraining(spectrum, 10**9, tasks)
        errors[i] = problem.errors([spectrum], draws).mean()
    expected = np.maximum(1.0 - np.array(counts) / r, 0.0)
    largest = np.abs(errors - expected).max()
    return Claim.of(
        largest < 1e-3,
        f"d = {d}, r = {r}, N = 1e9, no noise, k = {listed(counts)}, {draws} draws",
        f"mean errors {listed(errors, '.3f')}",
    )


ALIGNMENT = Paper(
    "task-alignment",
    "Pretrain–Test Task Alignment Governs Generalization in In-Context Learning",
    "Mary I. Letey, Jacob A. Zavatone-Veth, Yue M. Lu, Cengiz Pehlevan",
    2026,
    "arXiv:2509.26551",
    (
        Reading(
            "error in many dimensions",
            "The test error is a scalar plus ⟨C_test, K⟩, with a formula for both.",
            (limit, limit_of_prompts, printed, column, one_direction, kernel, samples),
            figure="task-alignment",
        ),
        Reading(
            "measure of alignment",
            "⟨C_test, K⟩ predicts the error better than other measures.",
            (measure,),
        ),
        Reading(
            "misaligned pretraining",
            "With few pretraining tasks, less alignment can improve the error.",
            (steeper,),
        ),
        Reading(
            "task diversity",
            "More pretraining tasks improve or harm the error.",
            (diversity,),
        ),
        Reading(
            "transition with the rank",
            "The number of tasks at which learning sets in is the rank of C_train.",
            (rank,),
        ),
    ),
    credit="Pretraining and test tasks of different covariance",
    entry=ModelEntry(
        data="isotropic normal inputs, linear functions of two covariances",
        attention="linear",
        trained="one matrix, on k tasks and n prompts",
        command="icl-theory linear-attention simulate --tasks 8 --noise 0.1",
    ),
    folder=Path(__file__).parent,
)
CLAIMS = Claims(papers=(ALIGNMENT,))
