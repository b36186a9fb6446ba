"""Rows on what runs are made of: derivatives, reductions, skipped steps, laws of samples, stable rates."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from icl_theory._validate import Array
from icl_theory.engine.descent import descend
from icl_theory.engine.pullback import in_coordinates
from icl_theory.engine.risk import Risk
from icl_theory.engine.sharpness import largest_stable_eta
from icl_theory.engine.statement import OURS, Status
from icl_theory.families.regression import tasks
from icl_theory.families.regression.features import Features
from icl_theory.families.regression.risks.exchangeable import ExchangeableRisk
from icl_theory.families.regression.risks.gaussian import GaussianRisk, QuadraticLaw, SampledGaussianRisk
from icl_theory.families.regression.risks.population import PopulationRisk
from icl_theory.families.regression.risks.stability import curvature_bound, stable_rate
from icl_theory.families.regression.risks.symmetric import SymmetricRisk
from icl_theory.families.regression.sampled.counts import CountedRisk
from icl_theory.families.regression.sampled.risk import SampledRisk
from icl_theory.families.regression.theorems.enumeration import differences, direct
from icl_theory.papers.claim import Errors, Found, apart, decade, deviations, identity, row
from icl_theory.papers.regression.common import random_cases, random_risk, random_scores

LABELS = np.array([0, 1, 1, 1, 2, 2])  # groups of exchangeable features


def _grouped(N: float, noise: float) -> tuple[SymmetricRisk, PopulationRisk]:
    """Return six features in three groups, reduced and one by one."""
    root = np.random.default_rng(5).normal(size=(3, 3))
    kernel = (root @ root.T)[np.ix_(LABELS, LABELS)] + np.diag(np.array([0.5, 1.0, 2.0])[LABELS])
    probs = np.array([0.4, 0.12, 0.12])[LABELS]
    features, law = Features.simplex(6, 1.0, probs), tasks.KernelTask(kernel)
    return SymmetricRisk.of(features, law, LABELS, N, noise), PopulationRisk(features, law, N, noise)


def _risks() -> list[Risk]:
    """Return a risk of every kind, some of which draw the prompts that they are the mean over."""
    features, law = Features.random(4, 3, 0.7, seed=2, probs=[0.4, 0.3, 0.2, 0.1]), tasks.Quadratic(1.5)
    sampled, core = (features, law, 7, 40, 0), PopulationRisk(features, law)
    return [
        random_risk(0, 4),
        random_risk(1, 4, 5.0, 0.4),
        PopulationRisk(features, tasks.Linear(1.5)),
        _grouped(math.inf, 0.0)[0],
        _grouped(5.0, 0.4)[0],
        ExchangeableRisk(6, 2.0),
        ExchangeableRisk(6, 2.0, 5, 0.4),
        in_coordinates(core, "embedding", features.vectors),
        in_coordinates(core, "factored", features.vectors, rank=2, scale=1.0),
        GaussianRisk(QuadraticLaw(3, 0.7, 1.1)),
        SampledRisk(*sampled, noise=0.3),
        SampledRisk(*sampled, noise=0.3, token_noise=0.2),
        SampledGaussianRisk(QuadraticLaw(3, 0.7, 1.1), 7, 40, 0),
        CountedRisk(*sampled, noise=0.3),
        CountedRisk(*sampled, noise=0.3, every_query=False),
    ]


@identity("derivatives", OURS, 1e-8)
def derivatives(quick: bool) -> Errors:
    """gradients and Hessian products are the derivatives of losses and gradients"""
    risks, draws = _risks(), 1 if quick else 5
    for seed, risk in enumerate(risks):
        rng, shape = np.random.default_rng(seed), np.shape(risk.initial)
        for _ in range(draws):
            params, toward = risk.initial + rng.normal(size=shape), rng.normal(size=shape)
            yield from _slopes(risk, params, toward / np.linalg.norm(toward))
    grid = f"{len(risks)} risks of every kind, trainers at fixed prompts, {draws} random directions each"
    return f"{grid}, sixth-order differences"


def _slopes(risk: Risk, params: Array, toward: Array) -> Iterator[float]:
    """Errors of the gradient and of the Hessian in a direction."""
    gradient, slope = risk.gradient(params), differences(risk.loss, params, toward)
    yield abs(slope - float(np.sum(gradient * toward))) / float(np.linalg.norm(gradient))
    if not risk.stochastic:  # the others' Hessian products are differences themselves
        turned = differences(risk.gradient, params, toward)
        yield float(np.linalg.norm(risk.hessian_product(params, toward) - turned) / np.linalg.norm(turned))


@identity("reductions")
def reductions(quick: bool) -> Errors:
    """groups and the one number u have the loss, the attention and the step of all single scores"""
    cases = ((math.inf, 0.0), (5.0, 0.4)) if quick else ((math.inf, 0.0), (2.0, 0.0), (5.0, 0.4), (40.0, 0.4))
    for seed, (reduced, full, place) in enumerate(pair for case in cases for pair in _reduced(*case)):
        params = np.random.default_rng(seed).normal(size=np.shape(reduced.initial))
        scores, step = reduced.scores(params), -full.gradient(reduced.scores(params))
        yield reduced.loss(params), full.loss(scores)
        moved = reduced.scores(params - reduced.gradient(params) / reduced.metric) - scores
        yield apart(moved, step) / np.max(np.abs(step))
        yield np.atleast_1d(reduced.observe(params)["attention"])[place], np.diagonal(full.attention(scores))
    grid = f"{seed + 1} risks of six features: three groups of a random kernel with unequal p, and the exchangeable"
    return f"{grid} class; N = {'5' if quick else '2, 5, 40'}, inf, σ = 0, 0.4"


def _reduced(N: float, noise: float) -> list[tuple[Any, PopulationRisk, NDArray[Any]]]:
    """Risks reduced to groups and to one number, of single scores, and the places of features in the groups."""
    alone = PopulationRisk(Features.simplex(6, 1.0), tasks.Exchangeable(2.0), N, noise)
    return [(*_grouped(N, noise), LABELS), (ExchangeableRisk(6, 2.0, N, noise), alone, 0 * LABELS)]


@row("skipped steps", bound="1e-7; 0")
def skipped_steps(quick: bool) -> Found:
    """method="fast": the states of single steps to a tolerance of 1e-7, within the estimate; their counts"""
    risks: list[Risk] = [random_risk(3, 3), ExchangeableRisk(5, 2.0, 20, 0.3)]
    risks += [] if quick else [_grouped(math.inf, 0.0)[0], random_risk(4, 5)]
    steps = 3000 if quick else 8000
    errors, inside, wrong = zip(*(_skipped(risk, steps) for risk in risks), strict=True)
    return Found(
        max(errors) <= 1e-7 and all(inside) and not any(wrong),
        f"{len(errors)} risks, single features, groups and one number, η = 0.1, {steps:,} steps, every one taken",
        f"scores apart by less than {decade(max(errors))}, {'within' if all(inside) else 'beyond'} the"
        f" estimate; {sum(wrong)} of {len(errors)} counts differ",
    )


def _skipped(risk: Risk, steps: int) -> tuple[float, bool, bool]:
    """How far skipping is off single steps, whether its estimate covers that, and whether its count differs."""
    taken, skipped = (descend(risk, 0.1, steps=steps, method=method) for method in ("auto", "fast"))
    error, epsilon = apart(skipped.states, taken.states), float(taken.loss[-1] * 0.3 + taken.loss[0] * 0.7)
    one, two = (descend(risk, 0.1, epsilon=epsilon, steps=steps, method=m).steps for m in ("exact", "fast"))
    return error, skipped.states_error is not None and error <= skipped.states_error, one != two


@row("laws against samples", OURS, Status.EXACT)
def laws(quick: bool) -> Found:
    """½ E(f_m - f_j)² of every task family, from formulas and factors; tokens, queries and noise of the trainer"""
    size, laws, false_alarm = 10_000 if quick else 100_000, _laws(), 1e-3
    features = Features.random(4, 3, 0.8, seed=1, probs=[0.4, 0.3, 0.2, 0.1])
    found = [_pairs(law, features, np.random.default_rng(seed), size) for seed, law in enumerate(laws)]
    found += [_draws(places, size, seed) for seed, places in enumerate((Features(features.vectors), features))]
    z = np.concatenate(found)
    limit = -float(ndtri(0.5 * false_alarm / len(z)))
    return Found(
        z.max() <= limit,
        f"{len(laws)} laws, {size:,} functions each; {size:,} tokens of prompts with equal p and unequal, σ = 0.5",
        f"largest |z| of {len(z)} means {z.max():.1f}",
        bound=f"{limit:.1f} (a false alarm in one of {1 / false_alarm:,.0f} seeds)",
    )


def _laws() -> list[tasks.Task]:
    """Return a law of every kind."""
    root = np.random.default_rng(3).normal(size=(4, 4))
    return [
        tasks.Exchangeable(1.5), tasks.Linear(1.5), tasks.Quadratic(1.5), tasks.RandomCosine(1.5),
        tasks.RandomCosine(1.5, "frequency"), tasks.RandomFourier(1.5, 0.8), tasks.Halfspace(1.5),
        tasks.KernelTask(root @ root.T), tasks.FiniteTask(root, [0.4, 0.3, 0.2, 0.1]),
    ]  # fmt: skip


def _pairs(law: tasks.Task, features: Features, rng: np.random.Generator, size: int) -> Array:
    """Deviations of halved squares of differences from the variogram, and from the factor."""
    (rows, columns), values, factor = np.triu_indices(4, 1), law.sample(features, rng, size), law.factor(features)
    squares = 0.5 * (values[:, rows] - values[:, columns]) ** 2
    expected = law.variogram(features)[rows, columns], 0.5 * np.sum((factor[rows] - factor[columns]) ** 2, axis=1)
    return np.concatenate([deviations(squares, each) for each in expected])


def _draws(features: Features, size: int, seed: int) -> Array:
    """Deviations of the noise, tokens and queries of a trainer from their laws."""
    constant = tasks.FiniteTask(np.full((1, 4), 2.0))
    prompts = SampledRisk(features, constant, 10, size // 10, seed, noise=0.5, token_noise=0.0).prompts()
    noise = (prompts.label - 2.0).ravel()
    chosen = [(each[:, None] == np.arange(4)).astype(float) for each in (prompts.token.ravel(), prompts.query)]
    moments = deviations(np.column_stack([noise, noise**2]), np.array([0.0, 0.25]))
    return np.concatenate([moments, *(deviations(each, features.probs) for each in chosen)])


@row("stable learning rates", OURS, Status.CERTIFIED, "1, attained to 1e-8; 0")
def stable_rates(quick: bool) -> Found:
    """λ_max(∇²L) <= κ (max Γ + σ² [N < ∞])/K, attained by two features; descent at 1 over it never rises; at a
    minimum it stays for η < 2/λ_max, not beyond
    """
    attained, count = _largest_curvature() / float(curvature_bound(2.0, 2)), 6 if quick else 40
    cases = random_cases(count, range(3, 6), (math.inf, 4.0), (0.0, 0.0, 0.5, 0.5))
    closest, rises = np.max([_at_bound(risk, seed) for seed, risk in cases], axis=0)
    below, above = (_growth_at_minimum(share) for share in (0.98, 1.02))
    return Found(
        abs(attained - 1.0) < 1e-8 and closest <= 1.0 and rises <= 1e-13 and below < 1.0 < above,
        f"two features by search, with sums over functions; {count} random kernels, p, scores, N = 4, inf, σ = 0,"
        " 0.5; a minimum of three equidistant features, N = 6, σ = 0.5, plain iteration at 0.98 and 1.02 times"
        " 2/λ_max",
        f"two features: λ_max over the bound {attained:.9f}; random ones at most {closest:.2f}; largest rise"
        f" {rises:.0e} of the initial loss; the gradient {'shrinks' if below < 1 else 'grows'} at 0.98,"
        f" {'grows' if above > 1 else 'shrinks'} at 1.02",
    )


def _at_bound(risk: PopulationRisk, seed: int) -> tuple[float, float]:
    """Curvature at random scores over its bound, and the largest rise of the loss at the stable rate."""
    likely = 1.0 / float(risk.features.probs.max())  # in place of K
    gamma = float(risk.task.variogram(risk.features).max())
    bound = float(curvature_bound(gamma, likely, noise=risk.noise, N=risk.N))
    run = descend(risk, float(stable_rate(gamma, likely, noise=risk.noise, N=risk.N)), steps=30)
    rise = float(np.max(np.diff(run.loss), initial=0.0)) / float(run.loss[0])
    return risk.sharpness(random_scores(seed, risk.features.K, 1.0)) / bound, rise


def _largest_curvature() -> float:
    """Largest curvature of the loss of two features, γ = 2 and N = ∞, by search and with sums over functions."""
    from scipy.optimize import minimize_scalar

    risk = PopulationRisk(Features.simplex(2, 1.0), tasks.Exchangeable(2.0))

    def curvature(x: float) -> float:
        # ℓ_k depends on S_kk - S_mk alone: along (1, -1)/√2 the second derivative is 2 ℓ_k'', and p_k = ½
        return float(differences(lambda S: direct(risk, S).slope[0, 0], x * np.eye(2), np.eye(2)))

    found = minimize_scalar(lambda x: -curvature(x), bounds=(-3.0, 3.0), method="bounded", options={"xatol": 1e-6})
    return -float(found.fun)


def _growth_at_minimum(share: float) -> float:
    """Factor on the gradient after 300 plain steps near a minimum, at a share of the largest stable rate."""
    risk = PopulationRisk(Features.simplex(3, 1.0), tasks.Linear(2.0), 6, 0.5)
    found = largest_stable_eta(risk)
    params = found.params + 1e-7 * np.random.default_rng(0).normal(size=(3, 3))
    before = float(np.linalg.norm(risk.gradient(params)))
    for _ in range(300):
        params = params - share * found.eta * risk.gradient(params)
    return float(np.linalg.norm(risk.gradient(params))) / before
