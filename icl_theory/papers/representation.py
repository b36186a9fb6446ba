"""The paper on regression over a fixed dictionary: rows of the audit, and what the paper says."""

from __future__ import annotations

import itertools

import numpy as np

from icl_theory.families.representation import Representation
from icl_theory.papers.claim import Found, row
from icl_theory.papers.numbers import listed, span
from icl_theory.papers.paper import Claims, Paper, Reading

SOURCE = "Yang, Huang, Liang, Chi 2024, {} (reconstructed)"
TARGETS = (1e-4, 1e-6, 1e-8, 1e-10)


def pace(problem: Representation) -> list[int]:
    """Steps from each target of the excess to the next."""
    run = problem.changed(above=TARGETS[-1]).simulate()
    ends = [run.first(lambda state, to=to: bool(state.loss <= run.floor + to)) or 0 for to in TARGETS]  # type: ignore[misc]
    return np.diff(ends).tolist()


@row("dictionary: linear convergence", SOURCE.format("convergence"), bound="1; 100 for 1/t")
def linear_convergence(quick: bool) -> Found:
    """with as many heads as labels, or two, the excess falls by a factor in each step in the end"""
    cases = [*itertools.product((2, 4), (0, 1) if quick else range(4))]
    paces = [pace(Representation(heads=heads, seed=seed)) for heads, seed in cases]
    return Found(
        max(each[2] / each[1] for each in paces) < 1.5,
        f"K = 12, m = 8, N = 4, σ = 0.3, {len(cases)} starts with two heads and four",
        f"steps for the last factor 100 over those for the one before: {span((p[2] / p[1] for p in paces), '.2f')}",
    )


@row("dictionary: ridge regression", SOURCE.format("ridge regression"), bound="ridge")
def ridge_regression(quick: bool) -> Found:
    """attention ends as ridge regression over representations, also for tokens whose labels no prompt has, and
    fewer labels than dimensions
    """
    lengths, off, gaps = (2, 4) if quick else (2, 4, 8, 11), [], []
    for N in lengths:
        problem = Representation(N=N, heads=N, above=1e-9)
        run, risk = problem.simulate(), problem.risk()
        first = risk.Z[:, :N]
        unseen = first.T @ np.linalg.solve(first @ first.T + problem.noise**2 * np.eye(problem.m), risk.Z[:, N:])
        off.append(float(np.abs(risk.coefficients(run.params)[:, N:] - unseen).max()))
        gaps.append(risk.floor())
    return Found(
        max(off) < 1e-3 and gaps == sorted(gaps, reverse=True),
        f"K = 12, m = 8, σ = 0.3, N = {listed(lengths)} labels and heads",
        f"weights of labels off by {max(off):.0e}; loss {listed(gaps, '.4f')}",
    )


@row("dictionary: heads", SOURCE.format("heads"), bound="ridge")
def need_of_heads(quick: bool) -> Found:
    """one head does not suffice, as its weights have one sign; as many heads as labels do"""
    runs = [Representation(heads=heads, above=1e-8, max_steps=10**5).simulate() for heads in (1, 2, 4)]
    one = [float(runs[0].at(t).loss - runs[0].floor) for t in (10**4, 10**5)]
    return Found(
        runs[0].floor > 1.2 * runs[1].floor and all(run.converged for run in runs[1:]) and one[1] < 0.3 * one[0],
        "K = 12, m = 8, N = 4, σ = 0.3",
        f"floor {runs[0].floor:.4f} (non-negative weights, one head), {runs[1].floor:.4f} (ridge); above it by 1e-8"
        f" after {runs[1].steps:,} steps (two heads), {runs[2].steps:,} (four); one head is above its floor by"
        f" {one[0]:.0e} after 10⁴ steps, {one[1]:.0e} after 10⁵",
        "holds, loose: two heads suffice for ridge regression of four labels",
    )


@row("dictionary: labels alone", SOURCE.format("ridge regression"), bound="ridge")
def labels_alone(quick: bool) -> Found:
    """if softmax runs over tokens with labels alone, attention still ends as ridge regression"""
    problems = [Representation(sees="labelled", seed=seed, above=1e-8) for seed in ((0,) if quick else range(3))]
    ends = [float(problem.simulate().loss[-1]) for problem in problems]
    ridge = [problem.changed(sees="all").risk().floor() for problem in problems]
    floors = [problem.risk().floor() for problem in problems]
    above = span((end / least - 1.0 for end, least in zip(ends, ridge, strict=True)), ".0%")
    return Found(
        np.abs(np.subtract(ends, floors)).max() < 2e-8 and min(floors) > 1.1 * max(ridge[:1]),
        f"K = 12, m = 8, N = H = 4, σ = 0.3, {len(ends)} dictionaries",
        f"loss {listed(ends, '.4f')}, ridge {listed(ridge, '.4f')}: {above} more",
        "holds only where softmax sees other tokens, too: else weights have one sum for all queries",
    )


DICTIONARY = Paper(
    "contextual-generalization",
    "In-Context Learning with Representations: Contextual Generalization of Trained Transformers",
    "Tong Yang, Yu Huang, Yingbin Liang, Yuejie Chi", 2024, "arXiv:2408.10147",
    (
        Reading("Convergence", "Descent converges linearly to the global minimum.", (linear_convergence,),
                reconstructed="the number of heads that is asked for, that of labels"),
        Reading("Ridge regression", "What is learnt is ridge regression over the representations: it serves new"
                " tasks and tokens without labels.", (ridge_regression, labels_alone), figure="representation",
                reconstructed="which tokens softmax runs over"),
        Reading("Heads", "Several heads are needed.", (need_of_heads,), reconstructed="why, and how many"),
    ),
    "Read in its abstract and in summaries. Tokens are orthonormal, representations are drawn at random.",
)  # fmt: skip
CLAIMS = Claims(papers=(DICTIONARY,))
