"""Gaussian match-and-copy: rows of the audit, and what the paper says.

The functions that are decorated with `row` or `identity` are rows of the audit: their
docstrings are the statements, and ``quick`` asks for a smaller measurement.
`MATCH_COPY` says which statement of the paper each row tests.

A prompt has N keys in d dimensions, and a query that has the correlation ρ with one of
them, its match. Attention has the matrix W, or W = ωI. The lead is the score of the
match minus the score of another key.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import ndtr

from icl_theory._validate import Array
from icl_theory.papers.match_copy.direct import direct_loss
from icl_theory.papers.match_copy.family import MatchCopy
from icl_theory.papers.match_copy.risk import (
    CopyPrompts,
    CopyRisk,
    draw_prompts,
    losses_of_scores,
)
from icl_theory.statements.claim import OURS, Claim, Errors, identity, row
from icl_theory.statements.numbers import deviations, listed
from icl_theory.statements.paper import Claims, ModelEntry, Paper, Reading

# We have read only the abstract and summaries of the paper. The model of attention is
# our reconstruction.
RETOLD = "Gonon, Cordonnier, Boumal 2026, {} (reconstructed)"
ABSTRACT = RETOLD.format("abstract")
# The attention of a prompt is said to end on a wrong key if the match has less
# attention than this.
LEAST_ON_MATCH = 0.5
# The largest distance of a mean of samples from its expectation, in standard errors. A
# normal z exceeds it in one of 150,000 draws.
LARGEST_Z = 4.5
# In the row `condition` a loss up to this size is taken as vanishing. If the attention
# of one prompt is on a wrong key, the loss stays far above this size.
VANISHING_LOSS = 1e-6


@identity("match and copy: loss", OURS, 1e-10)
def loss(quick: bool) -> Errors:
    """the loss over all prompts is an integral over the length of the query of the loss
    of two kinds of tokens
    """
    rng = np.random.default_rng(0)
    problems = 8 if quick else 200
    for index in range(problems):
        # Three keys take long, so that they are one problem in 20. One problem in five
        # has the limit ρ = 1.
        N = 3 if index % 20 == 19 else 2
        d = int(rng.integers(1, 9))
        correlation = 1.0 if index % 5 == 0 else float(rng.uniform(0.1, 1.0))
        # ω is small, because the quadrature takes more nodes for larger ω, and its time
        # grows with the third power of the number of nodes for three keys.
        omega = float(rng.uniform(0.0, 0.6))
        exact = CopyRisk(d, N, correlation).loss([omega])
        expected = direct_loss(omega, d, N, correlation)
        yield np.array([exact]), np.array([expected])
    # A quick audit ends before the first problem with three keys.
    keys = "2" if quick else "2 and 3"
    return f"{problems} random problems, N = {keys}, d < 9, by quadrature over scores"


@row("match and copy: samples", OURS, bound="4.5")
def samples(quick: bool) -> Claim:
    """the mean loss of attention on sampled keys, queries and values is the exact
    loss
    """
    settings = ((8, 8, 0.8, 0.7), (3, 20, 1.0, 0.5))  # d, N, ρ and ω
    prompts = 20_000 if quick else 1_000_000
    batch = 20_000  # prompts that are held in memory at once
    rng = np.random.default_rng(1)
    largest_z = 0.0
    for d, N, correlation, omega in settings:
        losses_by_batch = []
        for _ in range(prompts // batch):
            sampled = draw_prompts(rng, batch, d, N, correlation)
            losses_by_batch.append(losses_at(omega, sampled))
        expected = CopyRisk(d, N, correlation).loss([omega])
        # The distance of the mean from the exact loss, in standard errors.
        z = deviations(np.concatenate(losses_by_batch), expected)
        largest_z = max(largest_z, float(z))
    return Claim.of(
        largest_z < LARGEST_Z,
        f"(d, N, ρ, ω) = {listed(settings)}; {prompts:,} prompts each",
        f"largest |z| {largest_z:.1f}",
    )


def losses_at(omega: float, prompts: CopyPrompts) -> Array:
    """Return the loss of each prompt for W = ωI, (B,)."""
    products = np.einsum("bnd,bd->bn", prompts.keys, prompts.query)
    losses, _ = losses_of_scores(omega * products, prompts)
    return losses


@identity("match and copy: first gradient", RETOLD.format("signal"), 1e-10)
def first_gradient(quick: bool) -> Errors:
    """at W = 0 the only signal is the second moment of the query and its match: the
    derivative of the loss with respect to ω is -ρd(N - 1)/N²
    """
    rng = np.random.default_rng(2)
    problems = 5 if quick else 40
    for _ in range(problems):
        d, N = (int(size) for size in rng.integers(2, 30, 2))
        correlation = float(rng.uniform(0.1, 1.0))
        slope = CopyRisk(d, N, correlation).gradient([0.0])
        predicted = np.array([-correlation * d * (N - 1) / N**2])
        yield slope, predicted
    return f"{problems} random problems, d and N below 30"


@row("match and copy: margin", ABSTRACT, bound="0.01")
def margin(quick: bool) -> Claim:
    """gradient descent on fixed prompts that reaches a vanishing loss makes W diverge
    in the direction of the largest margin
    """
    d, N, prompts = (4, 4, 8) if quick else (8, 4, 20)
    seeds = 1 if quick else 10
    # Values of 1 - cosine at the end of a short and of a long run, for each seed. The
    # cosine is the cosine of W with the matrix of the largest margin.
    early: list[float] = []
    late: list[float] = []
    for seed in range(seeds):
        problem = MatchCopy(d=d, N=N, prompts=prompts, seed=seed, method="flow")
        # One run ends at the loss 1e-4, and a longer one at 1e-12.
        for epsilon, distances in ((1e-4, early), (1e-12, late)):
            run = problem.changed(epsilon=epsilon).simulate()
            distances.append(1.0 - problem.measure(run)["cosine"])
    comes_nearer = bool((np.array(late) < np.array(early)).all())
    # The bound is loose: at the loss 1e-12, 1 - cosine is 0.005 at most.
    return Claim.of(
        comes_nearer and max(late) < 0.01,
        f"d = {d}, N = {N}, ρ = 0.8, {prompts} prompts, {seeds} seeds; gradient flow"
        " from W = 0",
        f"1 - cosine with the largest margin at most {max(early):.2g} at the loss 1e-4,"
        f" {max(late):.1g} at 1e-12",
    )


@row("match and copy: growth", RETOLD.format("growth"), bound="0.02")
def growth(quick: bool) -> Claim:
    """the norm of W grows like the logarithm of time, with the slope |W*|/2 of the
    matrix W* of margin 1
    """
    d, N, prompts = (4, 4, 8) if quick else (8, 4, 20)
    seeds = 1 if quick else 10
    ratios = []
    for seed in range(seeds):
        problem = MatchCopy(d=d, N=N, prompts=prompts, seed=seed, method="flow")
        ratios.append(_slope_over_predicted(problem))
    # The slope tends to the predicted one. Between the losses 1e-8 and 1e-12 it differs
    # by 0.7 % at most.
    as_predicted = bool(np.abs(np.array(ratios) - 1.0).max() < 0.02)
    return Claim.of(
        as_predicted,
        f"d = {d}, N = {N}, ρ = 0.8, {prompts} prompts, {seeds} seeds; gradient flow"
        " between the losses 1e-8 and 1e-12",
        f"slope over |W*|/2 from {min(ratios):.3f} to {max(ratios):.3f}",
    )


def _slope_over_predicted(problem: MatchCopy) -> float:
    """Return the slope of ‖W‖ in ln t between two losses, divided by ‖W*‖/2."""
    largest_margin = problem.largest_margin  # W*
    # `largest_margin` would be None if no W had a margin on the drawn prompts.
    assert largest_margin is not None
    early_run = problem.changed(epsilon=1e-8).simulate()
    late_run = problem.changed(epsilon=1e-12).simulate()
    early_norm = float(np.linalg.norm(early_run.params))
    late_norm = float(np.linalg.norm(late_run.params))
    time_ratio = float(late_run.t[-1]) / float(early_run.t[-1])
    slope = (late_norm - early_norm) / math.log(time_ratio)
    return slope / (0.5 * float(np.linalg.norm(largest_margin)))


@row("match and copy: condition", OURS, bound="> 0 on wrong keys")
def condition(quick: bool) -> Claim:
    """a vanishing loss has to be assumed: it is not enough that some W has a margin"""
    d, N, prompts = (2, 3, 5) if quick else (8, 4, 100)
    seeds = 2 if quick else 10
    # Each sample is a set of prompts. ``separable`` counts those for which some W has a
    # margin. Among these, ``vanishing`` counts those whose loss vanishes, and ``stuck``
    # those in which the attention of some prompt ends on a wrong key.
    separable = 0
    vanishing = 0
    stuck = 0
    for seed in range(seeds):
        problem = MatchCopy(
            d=d,
            N=N,
            prompts=prompts,
            seed=seed,
            method="flow",
            epsilon=VANISHING_LOSS,
            max_steps=10**10,  # the largest time of the flow
        )
        if problem.largest_margin is None:  # the row is about samples with a margin
            continue
        separable += 1
        run = problem.simulate()
        attention = run.observed["attention_on_match"][-1]
        if run.loss[-1] <= VANISHING_LOSS:
            vanishing += 1
        elif attention.min() < LEAST_ON_MATCH:
            stuck += 1
    return Claim.of(
        stuck > 0,
        f"d = {d}, N = {N}, ρ = 0.8, {prompts} prompts, {seeds} seeds; gradient flow"
        " from W = 0, up to the time 1e10",
        f"{separable} samples have a margin; the loss falls below 1e-6 in {vanishing}"
        f" of them, and attention ends on a wrong key of some prompt in {stuck}",
    )


@row("match and copy: finite", OURS, bound="0.05")
def finite(quick: bool) -> Claim:
    """over all prompts the loss is least at a finite ω: for large ω it is P - (1 -
    π²ρ/(6(2 - ρ²)ω)) p/ω, with the probability P of a wrong key and the density p of a
    tie
    """
    settings = ((4, 0.8),) if quick else ((4, 0.8), (8, 0.5), (4, 1.0))  # d and ρ
    omega = 3.0 if quick else 8.0
    departures = []
    best_omegas = []
    for d, correlation in settings:
        risk = CopyRisk(d, N=2, correlation=correlation)
        lead = lead_of_two(d, correlation)
        # ω(P - loss)/p is 1 minus this number over ω, plus smaller terms; see
        # docs/theory/match-copy.md.
        next_term = math.pi**2 * correlation / (6.0 * (2.0 - correlation**2))
        measured = omega * (lead.wrong - risk.loss([omega])) / lead.tie
        departures.append(measured - (1.0 - next_term / omega))
        best_omegas.append(best_of_two(d, correlation))
    # The bound is loose: at ω = 8 the departures are 0.01 at most.
    follows_expansion = float(np.abs(departures).max()) < 0.05
    return Claim.of(
        follows_expansion,
        f"N = 2, (d, ρ) = {listed(settings)}; ω = {omega:g}",
        f"ω(P - loss)/p departs by {listed(departures, '.3f')}; the best ω is"
        f" {listed(best_omegas, '.2f')}",
    )


def best_of_two(d: int, correlation: float) -> float:
    """Return the ω below 8 at which two keys have the least loss.

    In the settings of `finite` the best ω is at most 2.
    """

    def loss_at(omega: float) -> float:
        """Return the loss of two keys for W = ωI."""
        return direct_loss(omega, d, 2, correlation)

    options = {"xatol": 1e-4}  # the row prints two decimals
    result = minimize_scalar(
        loss_at, bounds=(0.0, 8.0), method="bounded", options=options
    )
    return float(result.x)


class _Lead(NamedTuple):
    """Law of the lead at ω = 1, for two keys: the match and one other."""

    wrong: float  # probability that the lead is negative
    tie: float  # density of the lead at 0


def lead_of_two(d: int, correlation: float) -> _Lead:
    """Return the probability of a negative lead, and its density at 0, by quadrature.

    Given the length r of the query, the lead at ω = 1 is normal with the mean ρr² and
    the variance (2 - ρ²) r².
    """
    # The length of a normal vector has the density r^(d-1) e^(-r²/2), up to a factor.
    # Longer vectors than √d + 9 have a probability below rounding. The number of nodes
    # is generous.
    x, weight = np.polynomial.legendre.leggauss(400)
    r = 0.5 * (math.sqrt(d) + 9.0) * (x + 1.0)
    probs = weight * np.exp((d - 1.0) * np.log(r) - 0.5 * r**2)
    probs /= probs.sum()
    spread = r * math.sqrt(2.0 - correlation**2)
    mean = correlation * r**2
    # Given the length, the normal density at 0, and the probability of a negative lead.
    # ndtr is the distribution function of a standard normal variable.
    tie = np.exp(-0.5 * (mean / spread) ** 2) / (math.sqrt(2.0 * math.pi) * spread)
    wrong = ndtr(-mean / spread)
    return _Lead(wrong=float(probs @ wrong), tie=float(probs @ tie))


@row("match and copy: next tokens", OURS, bound="3 %")
def next_tokens(quick: bool) -> Claim:
    """values that are the next tokens, as in the paper's sequences, change the loss
    over all prompts little
    """
    settings = ((4, 4), (16, 16))  # d and N
    correlation = 0.8
    omega = 0.4
    prompts = 20_000 if quick else 400_000
    batch = 20_000  # prompts that are held in memory at once
    changes = []  # per cent of the loss with independent values
    standard_errors = []
    rng = np.random.default_rng(3)
    for d, N in settings:
        expected = CopyRisk(d, N, correlation).loss([omega])
        losses_by_batch = []
        for _ in range(prompts // batch):
            sampled = draw_prompts(rng, batch, d, N, correlation, "next")
            losses_by_batch.append(losses_at(omega, sampled))
        losses = np.concatenate(losses_by_batch)
        changes.append(100.0 * (losses.mean() / expected - 1.0))
        standard_errors.append(100.0 * losses.std() / expected / math.sqrt(len(losses)))
    # "Little": by less than 3 %.
    changes_are_small = bool(np.abs(changes).max() < 3.0)
    return Claim.of(
        changes_are_small,
        f"(d, N) = {listed(settings)}; ρ = {correlation}, ω = {omega}; {prompts:,}"
        " sampled prompts each",
        f"the loss changes by {listed(changes, '.1f')} %, with standard errors of"
        f" {listed(standard_errors, '.1f')} %",
    )


MATCH_COPY = Paper(
    "match-copy",
    "Gaussian Match-and-Copy: A Minimalist Benchmark for Studying Transformer"
    " Induction",
    "Antoine Gonon, Alexandre Cordonnier, Nicolas Boumal",
    2026,
    "arXiv:2602.07562",
    (
        Reading(
            "signal",
            "The task isolates retrieval through second-order correlations.",
            (first_gradient, loss, samples, next_tokens),
            reconstructed="the attention, with values given beside their keys",
        ),
        Reading(
            "max-margin alignment",
            "In an implicit-bias regime gradient descent makes the parameters diverge,"
            " and their direction aligns with the max-margin separator.",
            (margin, growth),
            figure="copy_margin",
            reconstructed="the model and the margin, from the abstract and a summary",
        ),
        Reading(
            "vanishing loss",
            "Alignment is proved for trajectories that reach a vanishing empirical"
            " loss, under technical conditions.",
            (condition, finite),
            reconstructed="the condition that is tested, from the abstract",
        ),
    ),
    credit="Retrieval by softmax attention on Gaussian match-and-copy",
    entry=ModelEntry(
        data="normal keys, a query correlated with one of them",
        attention="one softmax head",
        trained="the merged matrix, or a multiple of the identity",
        command="icl-theory match-copy simulate --method flow",
    ),
    folder=Path(__file__).parent,
)
CLAIMS = Claims(papers=(MATCH_COPY,))
