"""Papers on the tokens that softmax attention selects: rows of the audit, and what the papers say."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from scipy.optimize import minimize

from icl_theory._validate import Array
from icl_theory.engine import Risk, Trajectory, descend
from icl_theory.papers.token_selection.family import TokenSelection, cosine, lead
from icl_theory.statements.claim import Claim, row
from icl_theory.statements.numbers import listed, minimum, span
from icl_theory.statements.paper import Claims, ModelEntry, Paper, Reading, Setting

FIRST = "Tarzanagh, Li, Zhang, Oymak 2023 (reconstructed)"
SECOND = "Tarzanagh, Li, Thrampoulidis, Oymak 2023 (reconstructed)"


def after(
    problem: TokenSelection, steps: float, start: Array | None = None
) -> Trajectory:
    """Return a run of many steps, of which most are skipped."""
    return descend(problem.risk(start), problem.rate(), steps=int(steps), method="fast")


def ends(
    problems: Sequence[TokenSelection], steps: Sequence[float], kind: str, least: float
) -> Claim:
    """Whether runs end at the ``best`` tokens or at ``local`` optima, and near the hard margin of these."""
    found = [
        [problem.measure(after(problem, t)) for problem in problems] for t in steps
    ]
    cosines = [[each["cosine"] for each in at] for at in found]
    best, local = (
        [sum(each[name] == 1.0 for each in at) for at in found]
        for name in ("best", "local")
    )
    return Claim.of(
        {"best": best, "local": local}[kind][-1] == len(problems)
        and min(cosines[-1]) > least,
        f"n = 4, T = 5, d = {problems[0].d}, {len(problems)} runs, {listed(steps, '.0e')} steps",
        f"the best tokens in {listed(best)} of {len(problems)}, locally optimal ones in {listed(local)}; cosine "
        + ", ".join(span(each, ".3f") for each in cosines),
    )


@row("token selection: best tokens", FIRST, bound="all; cosine -> 1")
def best_tokens(quick: bool) -> Claim:
    """where all other tokens have equal values, p turns from any start to the hard-margin solution of the best"""
    starts = itertools.product(range(1 if quick else 3), (0.0, 2.0))
    problems = [
        TokenSelection(values="one", seed=seed, start=size) for seed, size in starts
    ]
    return ends(problems, [1e6 if quick else 1e12], "best", 0.9 if quick else 0.98)


@row("token selection: rate", FIRST, bound="a and w converge")
def rate(quick: bool) -> Claim:
    """p(t) = (ln t + a) p* + w with the hard-margin solution p* and w beside it: the angle falls like 1/ln t"""
    times = (1e6, 1e9) if quick else (1e3, 1e6, 1e9, 1e12, 1e15)
    problem = TokenSelection(n=3, T=3, d=6, seed=1)
    p = np.stack([after(problem, t).params for t in times])
    best = np.asarray(problem.margin(problem.selected(p[-1])))
    along = p @ best / (best @ best)
    lost = [1.0 - cosine(each, best) for each in p]
    a = along - np.log(times)
    w = np.linalg.norm(p - along[:, None] * best, axis=1) / np.linalg.norm(best)
    drift = max(abs(a[-1] - a[-2]), abs(w[-1] - w[-2]))
    return Claim.of(
        drift < (5e-3 if quick else 1e-3),
        f"n = 3, T = 3, d = 6, {listed(times, '.0e')} steps",
        f"1 - cos {listed(lost, '.1e')}; a {listed(a, '.3f')}; |w|/|p*| {listed(w, '.3f')}",
    )


@row(
    "token selection: where runs end",
    FIRST,
    bound="all locally optimal after 1e14 steps",
)
def ends_of_runs(quick: bool) -> Claim:
    """p ends at locally optimal tokens, which need not be the best; others are left, after 1e9 steps and more"""
    starts = (
        ((5, 0.0),) if quick else ((1, 0.0), (3, 0.0), (5, 0.0), (7, 0.0), (7, 2.0))
    )
    return ends(
        [TokenSelection(seed=seed, start=start) for seed, start in starts],
        [1e6, 1e9, 1e14],
        "local",
        0.97,
    )


@row("token selection: where runs stay", FIRST, bound="all; none")
def starts_at_solutions(quick: bool) -> Claim:
    """far out at a hard-margin solution a run stays with its tokens if they are locally optimal, else it leaves"""
    stays: dict[bool, list[bool]] = {True: [], False: []}
    for seed, *chosen in itertools.product(
        (4,) if quick else (2, 4), range(3), range(3)
    ):
        problem = TokenSelection(n=2, T=3, d=4, seed=seed)
        selected = np.array(chosen)
        run = after(problem, 1e12, 9.0 * np.asarray(problem.margin(selected)))
        stays[problem.is_local(selected)].append(
            bool((problem.selected(run.params) == selected).all())
        )
    shares = {local: f"{sum(each)} of {len(each)}" for local, each in stays.items()}
    return Claim.of(
        all(stays[True]) and not any(stays[False]) and all(stays.values()),
        f"n = 2, T = 3, d = 4, each choice of tokens in {1 if quick else 2} draws, from 9p*, 1e12 steps",
        f"{shares[True]} stay where tokens are locally optimal, {shares[False]} where not",
    )


@row("token selection: regularisation path", FIRST, bound="cosine -> 1")
def path(quick: bool) -> Claim:
    """the least loss over |p| <= R is found, as R grows, in the direction of the best tokens' hard margin"""
    angle = np.linspace(0.0, 2.0 * math.pi, 1441)
    cosines = []
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    for problem in (
        TokenSelection(n=2, T=3, d=2, seed=seed) for seed in range(6 if quick else 12)
    ):
        solution = problem.margin(problem.drawn[1].argmax(axis=1))
        if solution is not None:
            excess = [
                problem.risk().excess(p)
                for p in 300.0 * np.linalg.norm(solution) * circle
            ]
            cosines.append(cosine(circle[int(np.argmin(excess))], solution))
    where = f"n = 2, T = 3, d = 2, {len(cosines)} draws with a margin, R = 300|p*|, 1440 directions"
    return Claim.of(min(cosines) > 0.999, where, f"cosine {span(cosines, '.5f')}")


@row("token selection: W", SECOND, bound="cosine -> 1")
def one_matrix(quick: bool) -> Claim:
    """W, trained from zero, turns to the solution of least Frobenius norm"""
    problems = [
        TokenSelection(trained="W", d=5, seed=seed)
        for seed in ((0,) if quick else (0, 1, 3, 4))
    ]
    return ends(problems, [1e6, 1e12], "local", 0.98)


def decayed(risk: Risk, decay: float, factors: Array) -> Array:
    """Return the factors of least loss plus ½ decay times their squared norm, beside others."""

    def total(factors: Array) -> tuple[float, Array]:
        loss, gradient = risk.evaluate(factors)
        return loss + 0.5 * decay * float(
            np.vdot(factors, factors)
        ), gradient + decay * factors

    return minimum(total, factors, gtol=1e-13)


def least_nuclear(rows: Array, factors: Array) -> Array:
    """Return the factors of the matrix of least nuclear norm with ⟨A, W⟩ >= 1: those of least squared norm."""

    def margins(flat: Array) -> Array:
        keys, asks = flat.reshape(factors.shape)
        return np.tensordot(rows, keys.T @ asks) - 1.0

    found = minimize(
        lambda flat: (0.5 * float(flat @ flat), flat),
        factors.ravel(),
        jac=True,
        method="SLSQP",
        constraints={"type": "ineq", "fun": margins},
        options={"maxiter": 1000, "ftol": 1e-13},
    )
    return np.asarray(found.x.reshape(factors.shape))


@row("token selection: two factors", SECOND, bound="cosine with the nuclear one -> 1")
def two_factors(quick: bool) -> Claim:
    """with vanishing weight decay on W_K and W_Q their product turns to the solution of least nuclear norm"""
    problem = TokenSelection(trained="KQ", start=1.0, eta=1.0, n=3, T=4, d=4, seed=2)
    decays = (1e-5, 1e-7, 1e-9)
    best = problem.drawn[1].argmax(axis=1)
    at = problem.risk().initial
    products = []
    for decay in decays[: 2 if quick else 3]:
        at = decayed(problem.risk(), decay, at)
        products.append(at[0].T @ at[1])
    keys, asks = least_nuclear(lead(problem.drawn[0], best), at)
    near, far = (
        [cosine(W, other) for W in products]
        for other in (keys.T @ asks, np.asarray(problem.margin(best)))
    )
    return Claim.of(
        near[-1] > max(near[0], far[-1], 0.98),
        f"n = 3, T = 4, d = 4, decay {listed(decays[: len(near)], '.0e')}",
        f"cosine with the least nuclear norm {listed(near, '.3f')}, the least Frobenius norm {listed(far, '.3f')}",
    )


@row("token selection: dimensions", SECOND, bound="1 for d >= max(T - 1, n)")
def dimensions(quick: bool) -> Claim:
    """in d >= max(T - 1, n) dimensions there is a W that gives any choice of tokens a margin"""
    shares = {}
    draws = range(20 if quick else 100)
    for d in range(1, 6):
        found = [
            TokenSelection(trained="W", d=d, seed=seed).margin(
                np.random.default_rng(seed).integers(0, 5, 4)
            )
            for seed in draws
        ]
        shares[d] = float(np.mean([each is not None for each in found]))
    return Claim.of(
        shares[4] == shares[5] == 1.0 > shares[1],
        f"n = 4, T = 5, d = 1..5, {len(draws)} draws of tokens and of a choice",
        "share with a margin " + listed(shares.values(), ".2f"),
    )


MARGIN = Paper(
    "max-margin-tokens",
    "Max-Margin Token Selection in Attention Mechanism",
    "Davoud Ataee Tarzanagh, Yingcong Li, Xuechen Zhang, Samet Oymak",
    2023,
    "arXiv:2306.13596",
    (
        Reading(
            "global convergence",
            "Gradient descent on p turns to the hard-margin solution that separates the best token of each input.",
            (best_tokens, rate),
            reconstructed="The other tokens have equal values, and there is a margin.",
        ),
        Reading(
            "locally optimal tokens",
            "The tokens are locally optimal: all others on their margin have smaller values.",
            (ends_of_runs, starts_at_solutions),
            reconstructed="The definition, and how far out a run starts.",
        ),
        Reading(
            "regularisation path",
            "The minimum over a ball turns to the best tokens as the ball grows.",
            (path,),
            reconstructed="There is a margin.",
        ),
        Reading(
            "one matrix and two",
            "Training W is biased to the Frobenius norm, (K, Q) with vanishing weight decay to the nuclear norm"
            " (arXiv:2308.16898, Transformers as Support Vector Machines).",
            (one_matrix, two_factors, dimensions),
            reconstructed="The start at zero, the number of dimensions.",
        ),
    ),
    "Both papers were read in their abstracts and in their published code, whose hard-margin problems, for p and"
    " for W in both norms, are ours. Not measured: joint training of the value vector v, and nonlinear heads.",
    setting=Setting(
        "max-margin-tokens?T=5&t=1000000",
        (
            "Each input comes to attend to one token, and p turns to the "
            "hard-margin solution of the selected ones, ever more slowly: there are 10¹² "
            "steps to play."
        ),
    ),
    credit="Token selection (`icl.TokenSelection`)",
    related=(
        "For matrices: Davoud Ataee Tarzanagh, Yingcong Li, Christos "
        "Thrampoulidis, Samet Oymak. *Transformers as Support Vector "
        "Machines*. 2023. "
        "[arXiv:2308.16898](https://arxiv.org/abs/2308.16898)."
    ),
    entry=ModelEntry(
        data="fixed tokens with labels",
        attention="one softmax head",
        trained="a query vector, or matrices of keys and queries",
        command="icl-theory token-selection simulate",
    ),
)
CLAIMS = Claims(papers=(MARGIN,))
