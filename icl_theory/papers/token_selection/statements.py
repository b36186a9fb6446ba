"""Papers on the tokens that softmax attention selects, and the evidence on them.

The functions that are decorated with `row` are rows of the audit. `MARGIN` says which
statement each row tests.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from icl_theory._validate import Array
from icl_theory.engine import Risk, Trajectory, descend
from icl_theory.papers.token_selection.family import TokenSelection, cosine, lead
from icl_theory.statements.claim import Claim, row
from icl_theory.statements.numbers import listed, minimum, span
from icl_theory.statements.paper import Claims, ModelEntry, Paper, Reading, Setting

FIRST = "Tarzanagh, Li, Zhang, Oymak 2023 (reconstructed)"
SECOND = "Tarzanagh, Li, Thrampoulidis, Oymak 2023 (reconstructed)"


def long_run(
    problem: TokenSelection, steps: float, start: Array | None = None
) -> Trajectory:
    """Return a run of many steps, most of which are skipped."""
    risk = problem.risk(start)
    return descend(risk, problem.rate(), steps=int(steps), method="fast")


def best_tokens_of(problem: TokenSelection) -> NDArray[np.intp]:
    """Return the token of the largest value of each input."""
    return np.asarray(problem.drawn.values.argmax(axis=1))


def selection(
    problems: Sequence[TokenSelection],
    steps: Sequence[float],
    column: str,
    least_cosine: float,
) -> Claim:
    """Return a claim on the tokens that runs select, and on their hard margin.

    The claim holds if all runs end with 1 in a column of the family, ``best`` or
    ``local``, and with a cosine with the hard-margin solution above ``least_cosine``.
    """
    counts: dict[str, list[int]] = {"best": [], "local": []}
    cosines = []
    for t in steps:
        measures = [problem.measure(long_run(problem, t)) for problem in problems]
        cosines.append([measure["cosine"] for measure in measures])
        for name, count in counts.items():
            count.append(sum(measure[name] == 1.0 for measure in measures))
    runs = len(problems)
    spans = ", ".join(span(of_runs, ".3f") for of_runs in cosines)
    return Claim.of(
        counts[column][-1] == runs and min(cosines[-1]) > least_cosine,
        f"n = 4, T = 5, d = {problems[0].d}, {runs} runs, {listed(steps, '.0e')} steps",
        f"the best tokens in {listed(counts['best'])} of {runs},"
        f" locally optimal ones in {listed(counts['local'])}; cosine {spans}",
    )


@row("token selection: best tokens", FIRST, bound="all; cosine -> 1")
def best_tokens(quick: bool) -> Claim:
    """where all other tokens have equal values, p turns from any start to the
    hard-margin solution of the best
    """
    seeds = range(1 if quick else 3)
    cases = itertools.product(seeds, (0.0, 2.0))
    problems = [
        TokenSelection(values="one", seed=seed, start=start) for seed, start in cases
    ]
    steps = 1e6 if quick else 1e12
    return selection(problems, [steps], "best", 0.9 if quick else 0.98)


@row("token selection: rate", FIRST, bound="a and w converge")
def rate(quick: bool) -> Claim:
    """p(t) = (ln t + a) p* + w with the hard-margin solution p*, a vector w orthogonal
    to it, and a and w that converge: the angle between p and p* falls like 1/ln t
    """
    times = (1e6, 1e9) if quick else (1e3, 1e6, 1e9, 1e12, 1e15)
    problem = TokenSelection(n=3, T=3, d=6, seed=1)
    p = np.stack([long_run(problem, t).params for t in times])
    p_star = np.asarray(problem.margin(problem.selected(p[-1])))
    coefficient = p @ p_star / (p_star @ p_star)
    remainder = p - coefficient[:, None] * p_star
    a = coefficient - np.log(times)
    w = np.linalg.norm(remainder, axis=1) / np.linalg.norm(p_star)
    drift = max(abs(a[-1] - a[-2]), abs(w[-1] - w[-2]))
    misalignment = [1.0 - cosine(p_t, p_star) for p_t in p]
    return Claim.of(
        drift < (5e-3 if quick else 1e-3),
        f"n = 3, T = 3, d = 6, {listed(times, '.0e')} steps",
        f"1 - cos {listed(misalignment, '.1e')}; a {listed(a, '.3f')};"
        f" |w|/|p*| {listed(w, '.3f')}",
    )


@row(
    "token selection: where runs end",
    FIRST,
    bound="all locally optimal after 1e14 steps",
)
def ends_of_runs(quick: bool) -> Claim:
    """p ends at locally optimal tokens, which need not be the best; other tokens are
    left, some only after 1e9 steps
    """
    cases = [(3, 0.0)]
    times = [1e6, 1e14]
    if not quick:
        cases = [(1, 0.0), (3, 0.0), (5, 0.0), (7, 0.0), (7, 2.0)]
        times = [1e6, 1e9, 1e14]
    problems = [TokenSelection(seed=seed, start=start) for seed, start in cases]
    return selection(problems, times, "local", 0.97)


def stays(problem: TokenSelection, selected: NDArray[np.intp]) -> bool:
    """Whether a run from far out at a hard-margin solution keeps its tokens."""
    solution = np.asarray(problem.margin(selected))
    run = long_run(problem, 1e12, 9.0 * solution)
    return bool((problem.selected(run.params) == selected).all())


@row("token selection: where runs stay", FIRST, bound="all; none")
def starts_at_solutions(quick: bool) -> Claim:
    """far out at a hard-margin solution a run stays with its tokens if they are locally
    optimal, else it leaves
    """
    seeds = (4,) if quick else (2, 4)
    choices = [*itertools.product(range(3), range(3))]
    if quick:
        choices = choices[6:8]  # a locally optimal choice and another one
    from_local: list[bool] = []
    from_rest: list[bool] = []
    for seed in seeds:
        problem = TokenSelection(n=2, T=3, d=4, seed=seed)
        for choice in choices:
            selected = np.array(choice)
            group = from_local if problem.is_local(selected) else from_rest
            group.append(stays(problem, selected))
    which = "some choices" if quick else "each choice"
    has_both = bool(from_local) and bool(from_rest)
    return Claim.of(
        has_both and all(from_local) and not any(from_rest),
        f"n = 2, T = 3, d = 4, {which} of tokens in {len(seeds)} draws,"
        " from 9p*, 1e12 steps",
        f"{sum(from_local)} of {len(from_local)} stay where tokens are locally"
        f" optimal, {sum(from_rest)} of {len(from_rest)} where not",
    )


@row("token selection: regularisation path", FIRST, bound="cosine -> 1")
def path(quick: bool) -> Claim:
    """the least loss over |p| <= R is found, as R grows, in the direction of the best
    tokens' hard margin
    """
    angle = np.linspace(0.0, 2.0 * math.pi, 1441)
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    cosines = []
    for seed in range(6 if quick else 12):
        problem = TokenSelection(n=2, T=3, d=2, seed=seed)
        solution = problem.margin(best_tokens_of(problem))
        if solution is None:
            continue
        risk = problem.risk()
        sphere = 300.0 * np.linalg.norm(solution) * circle
        excess = [risk.excess(p) for p in sphere]
        best_direction = circle[int(np.argmin(excess))]
        cosines.append(cosine(best_direction, solution))
    return Claim.of(
        min(cosines) > 0.999,
        f"n = 2, T = 3, d = 2, {len(cosines)} draws with a margin, R = 300|p*|,"
        " 1440 directions",
        f"cosine {span(cosines, '.5f')}",
    )


@row("token selection: W", SECOND, bound="cosine -> 1")
def one_matrix(quick: bool) -> Claim:
    """W, trained from zero, turns to the solution of least Frobenius norm"""
    seeds = range(1 if quick else 5)
    problems = [TokenSelection(trained="W", d=5, seed=seed) for seed in seeds]
    return selection(problems, [1e6, 1e12], "local", 0.98)


def decayed(risk: Risk, decay: float, factors: Array) -> Array:
    """Return the factors of least loss plus ½ decay times their squared norm.

    The minimum is searched for from some factors.
    """

    def penalised(factors: Array) -> tuple[float, Array]:
        loss, gradient = risk.evaluate(factors)
        penalty = 0.5 * decay * float(np.vdot(factors, factors))
        return loss + penalty, gradient + decay * factors

    return minimum(penalised, factors, gtol=1e-13)


def least_nuclear(rows: Array, factors: Array) -> Array:
    """Return the factors of the matrix of least nuclear norm with ⟨A, W⟩ >= 1.

    The nuclear norm of W is the least ½(|K|² + |Q|²) over its factors, W = KᵀQ.
    """

    def half_squared_norm(flat: Array) -> tuple[float, Array]:
        return 0.5 * float(flat @ flat), flat

    def margins(flat: Array) -> Array:
        keys, queries = flat.reshape(factors.shape)
        return np.tensordot(rows, keys.T @ queries) - 1.0

    result = minimize(
        half_squared_norm,
        factors.ravel(),
        jac=True,
        method="SLSQP",
        constraints={"type": "ineq", "fun": margins},
        options={"maxiter": 1000, "ftol": 1e-13},
    )
    return np.asarray(result.x.reshape(factors.shape))


@row("token selection: two factors", SECOND, bound="cosine with the nuclear one -> 1")
def two_factors(quick: bool) -> Claim:
    """with vanishing weight decay on W_K and W_Q their product turns to the solution of
    least nuclear norm
    """
    problem = TokenSelection(trained="KQ", start=1.0, eta=1.0, n=3, T=4, d=4, seed=2)
    risk = problem.risk()
    best = best_tokens_of(problem)
    decays = (1e-5, 1e-7) if quick else (1e-5, 1e-7, 1e-9)
    factors = risk.initial
    products = []
    for decay in decays:
        factors = decayed(risk, decay, factors)
        keys, queries = factors
        products.append(keys.T @ queries)
    keys, queries = least_nuclear(lead(problem.drawn.features, best), factors)
    nuclear_solution = keys.T @ queries
    frobenius_solution = np.asarray(problem.margin(best))
    nuclear = [cosine(W, nuclear_solution) for W in products]
    frobenius = [cosine(W, frobenius_solution) for W in products]
    return Claim.of(
        nuclear[-1] > max(nuclear[0], frobenius[-1], 0.98),
        f"n = 3, T = 4, d = 4, decay {listed(decays, '.0e')}",
        f"cosine with the least nuclear norm {listed(nuclear, '.3f')},"
        f" the least Frobenius norm {listed(frobenius, '.3f')}",
    )


# The second tokens of three inputs in the plane; the first token of each is 0. In the
# second example the token of the third input is no support vector of the labels.
TIGHT = np.array([[1.0, 1.0], [1.0, -1.0], [0.5, 1.0]])
SLACK = np.array([[1.0, 1.0], [1.0, -1.0], [0.5, 1.5]])
SIGNS = np.array([1.0, -1.0, 1.0])


def jointly_trained(tokens: Array, steps: int) -> tuple[Array, Array]:
    """Return p and v after normalised descent on both, as in the published code."""
    problem = TokenSelection(
        trained="pv",
        tokens=np.stack([np.zeros_like(tokens), tokens], axis=1),
        signs=SIGNS,
        start=[[0.0, -1.0], [-1.0, 0.0]],
        eta=0.1,
        rule="ngd-blocks",
        max_steps=steps,
        above=1e-250,
    )
    p, v = problem.simulate().params
    return p, v


def least_norm(rows: Array, margins: Array) -> Array:
    """Return the p of least norm with a product of at least a margin for each row."""
    result = minimize(
        lambda p: 0.5 * float(p @ p),
        np.ones(rows.shape[1]),
        jac=lambda p: p,
        method="SLSQP",
        constraints={"type": "ineq", "fun": lambda p: rows @ p - margins},
        options={"ftol": 1e-15},
    )
    return np.asarray(result.x)


@row(
    "token selection: joint training",
    FIRST,
    bound="cosines -> 1; in the second example with the relaxed margin",
)
def joint_training(quick: bool) -> Claim:
    """trained together, v turns to the separator of the selected tokens, and p to the
    hard margin in which only the support vectors of v need a margin of 1, all other
    inputs one of 0
    """
    steps = 300 if quick else 1000
    support = np.ones(3)
    head_cosines = []
    cosines = []
    other_cosines = []
    for tokens in (TIGHT, SLACK):
        p, v = jointly_trained(tokens, steps)
        separator = least_norm(SIGNS[:, None] * tokens, support)
        margins = SIGNS * (tokens @ separator)
        is_support = (margins < 1.0 + 1e-6).astype(float)
        head_cosines.append(cosine(v, separator))
        cosines.append(cosine(p, least_norm(tokens, is_support)))
        other_cosines.append(cosine(p, least_norm(tokens, support)))
    least = min(*head_cosines, *cosines)
    return Claim.of(
        least > 0.9995 and other_cosines[1] < 0.99,
        f"the published examples of three inputs, all support vectors or two of them;"
        f" {steps} normalised steps of both",
        f"cosine of v {listed(head_cosines, '.4f')}; of p {listed(cosines, '.4f')}, in"
        f" the second example {other_cosines[1]:.4f} with a margin for all inputs",
    )


def has_margin(d: int, seed: int) -> bool:
    """Whether a W gives a random choice of tokens a margin, in d dimensions."""
    choice = np.random.default_rng(seed).integers(0, 5, 4)
    return TokenSelection(trained="W", d=d, seed=seed).margin(choice) is not None


@row("token selection: dimensions", SECOND, bound="1 for d >= max(T - 1, n)")
def dimensions(quick: bool) -> Claim:
    """in d >= max(T - 1, n) dimensions there is a W that gives any choice of tokens a
    margin
    """
    draws = 20 if quick else 100
    shares = {}
    for d in range(1, 6):
        shares[d] = float(np.mean([has_margin(d, seed) for seed in range(draws)]))
    return Claim.of(
        shares[4] == shares[5] == 1.0 > shares[1],
        f"n = 4, T = 5, d = 1..5, {draws} draws of tokens and of a choice",
        f"share with a margin {listed(shares.values(), '.2f')}",
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
            "Gradient descent on p turns to the hard-margin solution that separates"
            " the best token of each input.",
            (best_tokens, rate),
            figure="hard_margin",
            reconstructed="The other tokens have equal values, and there is a margin.",
        ),
        Reading(
            "locally optimal tokens",
            "The selected tokens are locally optimal: all other tokens on their margin"
            " have smaller values.",
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
            "Training W is biased to the Frobenius norm, (K, Q) with vanishing weight"
            " decay to the nuclear norm (arXiv:2308.16898, Transformers as Support"
            " Vector Machines).",
            (one_matrix, two_factors, dimensions),
            reconstructed="The start at zero, the number of dimensions.",
        ),
        Reading(
            "joint training",
            "Trained together, v separates the selected tokens by their labels, and p"
            " selects them.",
            (joint_training,),
            reconstructed="The margin of inputs that are no support vectors.",
        ),
    ),
    setting=Setting(
        "max-margin-tokens?T=5&t=1000000",
        (
            "Each input comes to attend to one token, and p turns to the "
            "hard-margin solution of the selected ones, ever more slowly: there are"
            " 10¹² steps to play."
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
        trained="a query vector, or matrices of keys and queries, and the head",
        command="icl-theory token-selection simulate",
    ),
    folder=Path(__file__).parent,
)
CLAIMS = Claims(papers=(MARGIN,))
