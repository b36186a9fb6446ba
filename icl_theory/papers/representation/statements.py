"""The paper on regression over a fixed dictionary: its statements and their evidence.

The functions that are decorated with `row` are rows of the audit. `DICTIONARY` says
which statement of the paper each row tests.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from icl_theory._validate import Array
from icl_theory.papers.representation.family import DictionaryRisk, Representation
from icl_theory.statements.claim import Claim, row
from icl_theory.statements.numbers import apart, decade, listed, span
from icl_theory.statements.paper import Claims, ModelEntry, Paper, Reading, Setting

SOURCE = "Yang, Huang, Liang, Chi 2024, {}"
TARGETS = (1e-4, 1e-6, 1e-8, 1e-10)
# The paper's model: softmax over tokens with labels, an output weight for each head and
# token, and noisy answers.
PUBLISHED = Representation(sees="labelled", output="token", answers="labels")
# For quick runs, which skip steps from the beginning on.
SMALL = PUBLISHED.changed(K=5, m=3, method="fast")


def pace(problem: Representation) -> list[int]:
    """Return the number of steps from each target of the excess to the next."""
    run = problem.changed(above=TARGETS[-1]).simulate()
    hits = []
    for target in TARGETS:
        loss_at_hit = run.floor + target
        step = run.first(lambda state, least=loss_at_hit: bool(state.loss <= least))  # type: ignore[misc]
        hits.append(step or 0)
    return np.diff(hits).tolist()


@row("dictionary: linear convergence", SOURCE.format("Thm 1"), bound="1; 100 for 1/t")
def linear_convergence(quick: bool) -> Claim:
    """from output weights of zero and normal scores, with as many heads as labels, the
    excess falls by a factor in each step in the end
    """
    starts = 1 if quick else 8
    base = SMALL if quick else PUBLISHED
    ratios = []
    for seed in range(starts):
        _, second, third = pace(base.changed(seed=seed))
        ratios.append(third / second)
    return Claim.of(
        max(ratios) < 1.5,
        f"K = {base.K}, m = {base.m}, N = H = 4, σ = 0.3, {starts} starts; one learning"
        " rate",
        "steps for the last factor 100 over those for the one before:"
        f" {span(ratios, '.2f')}",
    )


class LearntErrors(NamedTuple):
    """Differences of learnt coefficients from the theorem's, and the least loss."""

    labelled: float
    unlabelled: float
    floor: float


def learnt_errors(problem: Representation) -> LearntErrors:
    """Compare the end of a run with the labels, and with ridge regression elsewhere.

    Ridge regression is in its primal form, which inverts an m x m matrix.
    """
    N = problem.N
    risk = problem.risk()
    coefficients = risk.coefficients(problem.simulate().params)
    Z_N = risk.Z[:, :N]
    gram = Z_N @ Z_N.T + problem.noise**2 * np.eye(problem.m)
    ridge = Z_N.T @ np.linalg.solve(gram, risk.Z[:, N:])
    return LearntErrors(
        labelled=apart(coefficients[:, :N], np.eye(N)),
        unlabelled=apart(coefficients[:, N:], ridge),
        floor=risk.floor(),
    )


@row("dictionary: ridge regression", SOURCE.format("Thm 2"), bound="0; 0")
def ridge_regression(quick: bool) -> Claim:
    """attention converges to the given labels on tokens that have one, and to ridge
    regression over the representations on all others, with the ridge mτ = σ²
    """
    lengths = (2, 3) if quick else (2, 4, 8, 11)
    base = SMALL if quick else PUBLISHED
    problems = [base.changed(N=N, heads=N, above=1e-9) for N in lengths]
    errors = [learnt_errors(problem) for problem in problems]
    labelled = max(error.labelled for error in errors)
    unlabelled = max(error.unlabelled for error in errors)
    losses = [error.floor for error in errors]
    return Claim.of(
        max(labelled, unlabelled) < 1e-3,
        f"K = {base.K}, m = {base.m}, σ = 0.3, N = {listed(lengths)} labels and heads",
        f"weights of labels off by at most {labelled:.0e} on tokens with labels,"
        f" {unlabelled:.0e} on the others; loss {listed(losses, '.4f')}",
    )


def split(coefficients: Array, risk: DictionaryRisk) -> Array:
    """Return parameters of two heads with these coefficients.

    One head adds the positive coefficients, and the other subtracts the negative ones.
    """
    positive = np.maximum(coefficients, 0.0)
    negative = np.maximum(-coefficients, 0.0)
    # Softmax has no zeros. A one that is added to both heads cancels.
    parts = np.stack([positive, negative]) + 1.0
    sums = parts.sum(axis=1)
    signs = np.array([[1.0], [-1.0]])
    return np.hstack([signs * sums, np.log(parts).reshape(2, -1)])


def excess_of_construction(problem: Representation) -> float:
    """Return the relative loss of two constructed heads above ridge regression."""
    risk = problem.changed(heads=2).risk()
    return abs(risk.loss(split(risk.ridge, risk)) / risk.floor() - 1.0)


def excess_of_training(problem: Representation, output: str) -> float:
    """Return the relative loss of a run with other output weights above the floor."""
    run = problem.changed(output=output).simulate()
    return float(run.loss[-1] / problem.risk().floor() - 1.0)


@row("dictionary: labels alone", SOURCE.format("Eq. 8"), bound="0")
def labels_alone(quick: bool) -> Claim:
    """softmax over the tokens with labels reaches ridge regression if each head has an
    output weight for each token, as in the paper; with one output weight a head it
    cannot
    """
    seeds = (0,) if quick else range(3)
    base = PUBLISHED.changed(above=1e-8, method="fast" if quick else "auto")
    problems = [base.changed(seed=seed) for seed in seeds]
    constructed = max(excess_of_construction(problem) for problem in problems)
    per_token = [excess_of_training(problem, "token") for problem in problems]
    per_head = [excess_of_training(problem, "head") for problem in problems]
    reaches_ridge = constructed < 1e-12 and max(per_token) < 2e-7
    return Claim.of(
        reaches_ridge and min(per_head) > 0.1,
        f"K = 12, m = 8, N = H = 4, σ = 0.3, {len(problems)} dictionaries",
        "loss above that of ridge regression: weights of head and token"
        f" {span(per_token, '.1e')} trained, within {decade(constructed)} with two"
        f" heads by construction; one weight a head {span(per_head, '.0%')} trained",
        "holds with an output weight for each head and token; not with one a head,"
        " which gives all queries one sum of weights",
    )


@row("dictionary: heads", SOURCE.format("Prop. 1, section 3.3"), bound="ridge")
def need_of_heads(quick: bool) -> Claim:
    """one head does not suffice, as the weights of a query have one sign; as many heads
    as labels do
    """
    base = PUBLISHED.changed(
        above=1e-8,
        max_steps=3 * 10**4 if quick else 10**5,
        method="fast" if quick else "auto",
    )
    single_floor = base.changed(heads=1).risk().floor()
    pair = base.changed(heads=2).simulate()
    four = base.changed(heads=4).simulate()
    late_excess = float(pair.loss[-1] - pair.floor)
    early_excess = float(pair.at(10**4).loss - pair.floor)
    slowing = late_excess / early_excess
    pair_stalls = not pair.converged and slowing > 0.5
    verdict = "holds, loose: two heads suffice"
    if pair_stalls:
        verdict = (
            "holds; two heads could represent ridge regression, but descent stalls"
            " before"
        )
    single_is_worse = single_floor > 1.2 * four.floor
    return Claim.of(
        single_is_worse and four.converged and (pair_stalls or pair.converged),
        "K = 12, m = 8, N = 4, σ = 0.3",
        f"floor {single_floor:.4f} (weights of one sign, one head), {four.floor:.4f}"
        f" (ridge); above it by 1e-8 after {four.steps:,} steps (four heads); two heads"
        f" are above it by {late_excess:.0e} after {pair.t[-1]:,} steps, {slowing:.2f}"
        " of the excess after 10⁴",
        verdict,
    )


class RidgeGap(NamedTuple):
    """How two ridges differ, with squared errors: means over tasks and all tokens."""

    gap: float
    learnt: float
    best: float


def ridge_gap(Z: Array, N: int, tau: float) -> RidgeGap:
    """Compare ridge regression with the learnt ridge mτ and with Nτ, of equation 25.

    ``Z``, (m, K), has the features of all tokens, the first N of which have labels, and
    these are given back without error. The gap is that of both predictions.
    """
    Z_N, rest = Z[:, :N], Z[:, N:]
    m, K = Z.shape
    gram = Z_N.T @ Z_N
    moments = gram + m * tau * np.eye(N)  # E yyᵀ, as E |λ|² = m
    cross = Z_N.T @ rest

    def weights(ridge: float) -> Array:
        return np.asarray(np.linalg.solve(gram + ridge * np.eye(N), cross))

    def error(B: Array) -> float:
        squares = np.sum(rest**2) - 2.0 * np.sum(B * cross) + np.sum(B * (moments @ B))
        return float(squares) / K

    learnt, best = weights(m * tau), weights(N * tau)
    apart_by = learnt - best
    gap = float(np.sum(apart_by * (moments @ apart_by))) / K
    return RidgeGap(gap, error(learnt), error(best))


@row(
    "dictionary: features and labels",
    SOURCE.format("section 3.2, Fig. 3"),
    bound="0 at N = m",
)
def features_and_labels(quick: bool) -> Claim:
    """the closer the number N of labels is to the number m of features, the closer the
    learnt prediction, with the ridge mτ, is to that with the ridge Nτ
    """
    draws = 2 if quick else 20
    m, K, tau = 100, 200, 0.01
    lengths = (50, 75, 90, 95, 100, 105, 110, 125, 150)
    rng = np.random.default_rng(0)
    dictionaries = rng.normal(size=(draws, m, K))
    results = np.array(
        [[ridge_gap(Z, N, tau) for N in lengths] for Z in dictionaries]
    ).mean(axis=0)
    gaps = results[:, 0]
    excess = results[:, 2] / results[:, 1] - 1.0
    middle = lengths.index(m)
    before, after = -np.diff(gaps[: middle + 1]), np.diff(gaps[middle:])
    # The last steps towards N = m, from both sides, and the first.
    near = np.append(before[1:], after[:-1])
    far = np.append(before[:1], after[-1:])
    return Claim.of(
        (near > 0.0).all() and gaps[middle] == 0.0 and (excess > -1e-12).all(),
        f"m = {m}, K = {K}, τ = {tau}, N = {listed(lengths)}, normal features, {draws}"
        " draws; means over tasks",
        f"‖ŷ* - ŷ_best‖²/K = {listed(gaps, '.1e')}; error with the ridge Nτ above that"
        f" with mτ by {listed(100.0 * excess, '.2g')} %",
        ("holds" if (far > 0.0).all() else "holds only for N near m")
        + "; in the mean over tasks the learnt ridge mτ is never the worse one, as"
        " labels have the noise mτ on average",
    )


DICTIONARY = Paper(
    "contextual-generalization",
    "In-Context Learning with Representations: Contextual Generalization of Trained"
    " Transformers",
    "Tong Yang, Yu Huang, Yingbin Liang, Yuejie Chi",
    2024,
    "arXiv:2408.10147",
    (
        Reading(
            "Convergence",
            "Descent converges linearly to the global minimum.",
            (linear_convergence,),
            reconstructed="the learning rate: of η_Q <= 1/L and η_w = γ²η_Q the"
            " formulas of L and γ were not legible in the copy that was read, and one"
            " rate is used for all parameters",
        ),
        Reading(
            "Ridge regression",
            "What is learnt gives back the labels of a prompt and is ridge regression"
            " over the representations elsewhere: it serves new tasks and tokens"
            " without labels.",
            (ridge_regression, labels_alone),
            figure="representation",
        ),
        Reading(
            "Heads",
            "Several heads are needed, and as many heads as labels suffice.",
            (need_of_heads,),
        ),
        Reading(
            "Features and labels",
            "The closer N is to m, the closer the learnt prediction is to the best"
            " possible one, which has the ridge Nτ.",
            (features_and_labels,),
        ),
    ),
    setting=Setting(
        "contextual-generalization?heads=4&t=1000~heads=1",
        (
            "Several heads end as ridge regression over the representations. One "
            "head, in grey dashes, cannot."
        ),
    ),
    credit="Softmax heads over a dictionary (`icl.Representation`)",
    entry=ModelEntry(
        data="a fixed dictionary, random coefficients",
        attention="several heads",
        trained="attention scores and output weights",
        command="icl-theory representation simulate",
    ),
    folder=Path(__file__).parent,
)
CLAIMS = Claims(papers=(DICTIONARY,))
