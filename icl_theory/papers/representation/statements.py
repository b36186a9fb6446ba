"""The paper on regression over a fixed dictionary: rows of the audit, and what the paper says."""

from __future__ import annotations

import numpy as np

from icl_theory._validate import Array
from icl_theory.papers.representation.family import DictionaryRisk, Representation
from icl_theory.statements.claim import Claim, row
from icl_theory.statements.numbers import apart, decade, listed, span
from icl_theory.statements.paper import Claims, ModelEntry, Paper, Reading, Setting

SOURCE = "Yang, Huang, Liang, Chi 2024, {}"
TARGETS = (1e-4, 1e-6, 1e-8, 1e-10)
# softmax over the labels, an output weight for each head and token, noisy answers
PUBLISHED = Representation(sees="labelled", output="token", answers="labels")


def pace(problem: Representation) -> list[int]:
    """Steps from each target of the excess to the next."""
    run = problem.changed(above=TARGETS[-1]).simulate()
    ends = [
        run.first(lambda state, to=to: bool(state.loss <= run.floor + to)) or 0  # type: ignore[misc]
        for to in TARGETS
    ]
    return np.diff(ends).tolist()


@row("dictionary: linear convergence", SOURCE.format("Thm 1"), bound="1; 100 for 1/t")
def linear_convergence(quick: bool) -> Claim:
    """from output weights of zero and normal scores, with as many heads as labels, the
    excess falls by a factor in each step in the end
    """
    paces = [pace(PUBLISHED.changed(seed=seed)) for seed in range(2 if quick else 8)]
    ratios = [steps[2] / steps[1] for steps in paces]
    return Claim.of(
        max(ratios) < 1.5,
        f"K = 12, m = 8, N = H = 4, σ = 0.3, {len(paces)} starts; one learning rate",
        f"steps for the last factor 100 over those for the one before: {span(ratios, '.2f')}",
    )


def missed(problem: Representation) -> tuple[float, float, float]:
    """How far coefficients end from those of the theorem, with labels and without, and the loss.

    Ridge regression is in its primal form, which inverts an m x m matrix.
    """
    N = problem.N
    risk = problem.risk()
    found = risk.coefficients(problem.simulate().params)
    first = risk.Z[:, :N]
    gram = first @ first.T + problem.noise**2 * np.eye(problem.m)
    unlabelled = first.T @ np.linalg.solve(gram, risk.Z[:, N:])
    return apart(found[:, :N], np.eye(N)), apart(found[:, N:], unlabelled), risk.floor()


@row("dictionary: ridge regression", SOURCE.format("Thm 2"), bound="0; 0")
def ridge_regression(quick: bool) -> Claim:
    """attention ends with the given labels on the tokens that have one, and as ridge
    regression over the representations on all others, with the ridge mτ = σ²
    """
    lengths = (2, 4) if quick else (2, 4, 8, 11)
    problems = [PUBLISHED.changed(N=N, heads=N, above=1e-9) for N in lengths]
    labelled, unlabelled, losses = np.transpose(
        [missed(problem) for problem in problems]
    )
    return Claim.of(
        max(*labelled, *unlabelled) < 1e-3,
        f"K = 12, m = 8, σ = 0.3, N = {listed(lengths)} labels and heads",
        f"weights of labels off by at most {max(labelled):.0e} on tokens with labels,"
        f" {max(unlabelled):.0e} on the others; loss {listed(losses, '.4f')}",
    )


def split(coefficients: Array, risk: DictionaryRisk) -> Array:
    """Parameters of two heads that are these coefficients: one adds, the other subtracts."""
    parts = np.stack([np.maximum(coefficients, 0.0), np.maximum(-coefficients, 0.0)])
    # softmax has no zeros: what both heads have in common cancels
    parts += 1.0
    sums = parts.sum(axis=1)
    signs = np.array([[1.0], [-1.0]])
    return np.hstack([signs * sums, np.log(parts).reshape(2, -1)])


def constructed(problem: Representation) -> float:
    """How far the loss of two heads is above that of ridge regression, relative to it."""
    risk = problem.changed(heads=2).risk()
    return abs(risk.loss(split(risk.ridge, risk)) / risk.floor() - 1.0)


def above_ridge(problem: Representation, output: str) -> float:
    """How far the loss of a trained problem with other output weights is above ridge regression."""
    end = problem.changed(output=output).simulate().loss[-1]
    return float(end / problem.risk().floor() - 1.0)


@row("dictionary: labels alone", SOURCE.format("Eq. 8"), bound="0")
def labels_alone(quick: bool) -> Claim:
    """softmax over the tokens with labels reaches ridge regression if each head has an output
    weight for each token, as in the paper; with one output weight a head it cannot
    """
    problems = [
        PUBLISHED.changed(seed=seed, above=1e-8)
        for seed in ((0,) if quick else range(3))
    ]
    two = max(constructed(problem) for problem in problems)
    ends, above = [
        [above_ridge(problem, output) for problem in problems]
        for output in ("token", "head")
    ]
    return Claim.of(
        two < 1e-12 and max(ends) < 2e-7 and min(above) > 0.1,
        f"K = 12, m = 8, N = H = 4, σ = 0.3, {len(ends)} dictionaries",
        f"loss above that of ridge regression: weights of head and token {span(ends, '.1e')}"
        f" trained, within {decade(two)} with two heads by construction; one weight a head"
        f" {span(above, '.0%')} trained",
        "holds with an output weight for each head and token; not with one a head, which"
        " gives all queries one sum of weights",
    )


@row("dictionary: heads", SOURCE.format("Prop. 1, section 3.3"), bound="ridge")
def need_of_heads(quick: bool) -> Claim:
    """one head does not suffice, as the weights of a query have one sign; as many heads as
    labels do
    """
    one, two, four = [
        PUBLISHED.changed(heads=H, above=1e-8, max_steps=10**5).simulate()
        for H in (1, 2, 4)
    ]
    late = float(two.loss[-1] - two.floor)
    slowing = late / float(two.at(10**4).loss - two.floor)
    stalls = not two.converged and slowing > 0.5
    return Claim.of(
        one.floor > 1.2 * four.floor and four.converged and (stalls or two.converged),
        "K = 12, m = 8, N = 4, σ = 0.3",
        f"floor {one.floor:.4f} (weights of one sign, one head), {four.floor:.4f} (ridge);"
        f" above it by 1e-8 after {four.steps:,} steps (four heads); two heads are above it by"
        f" {late:.0e} after {two.t[-1]:,} steps, {slowing:.2f} of the excess after 10⁴",
        "holds; two heads could represent ridge regression, but descent stalls before"
        if stalls
        else "holds, loose: two heads suffice",
    )


DICTIONARY = Paper(
    "contextual-generalization",
    "In-Context Learning with Representations: Contextual Generalization of Trained Transformers",
    "Tong Yang, Yu Huang, Yingbin Liang, Yuejie Chi",
    2024,
    "arXiv:2408.10147",
    (
        Reading(
            "Convergence",
            "Descent converges linearly to the global minimum.",
            (linear_convergence,),
            reconstructed="the learning rate: the formulas for both rates were not legible in the copy that was"
            " read, and one rate is used for all parameters",
        ),
        Reading(
            "Ridge regression",
            "What is learnt gives back the labels of a prompt and is ridge regression over"
            " the representations elsewhere: it serves new tasks and tokens without labels.",
            (ridge_regression, labels_alone),
            figure="representation",
        ),
        Reading(
            "Heads",
            "Several heads are needed, and as many heads as labels suffice.",
            (need_of_heads,),
        ),
    ),
    "The model, the assumptions and the statements were compared with the paper's text."
    " Here tokens are orthonormal, so that each Q_h is a matrix of scores, and"
    " representations are drawn at random; σ² is the paper's mτ. Noise in the answers of"
    " tokens without labels adds a constant to the loss, which is left out.",
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
)
CLAIMS = Claims(papers=(DICTIONARY,))
