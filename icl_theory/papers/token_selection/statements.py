"""Papers on the tokens that softmax attention selects, and the evidence on them.

The functions that are decorated with `row` are rows of the audit: their docstrings are
the statements, and ``quick`` asks for a smaller measurement. `MARGIN` says which
statement of the papers each row tests.

Tokens have scores that are linear in a vector p or a matrix W. Each of n inputs has T
tokens in d dimensions, and v is the head. For one selected token of each input, the
hard-margin solution p* has the least norm among all p with which the score of the
selected token exceeds all other scores of the input by at least 1.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from icl_theory._validate import Array
from icl_theory.engine import Risk, Trajectory, descend
from icl_theory.papers.token_selection.family import TokenSelection, cosine, lead
from icl_theory.statements.claim import Claim, row
from icl_theory.statements.numbers import listed, minimum, span
from icl_theory.statements.paper import Claims, ModelEntry, Paper, Reading, Setting

# The first paper is on p, and the second one on W and its factors.
FIRST = "Tarzanagh, Li, Zhang, Oymak 2023 (reconstructed)"
SECOND = "Tarzanagh, Li, Thrampoulidis, Oymak 2023 (reconstructed)"
# Some runs start at this multiple of a hard-margin solution p*. At 9p* a selected token
# has at least e⁹ = 8000 times the attention of any other one.
FAR_OUT = 9.0
# Radius of the disc on which `path` minimises the loss, divided by the norm of the
# hard-margin solution. The larger it is, the nearer the direction of the minimum is to
# its limit.
LARGE_RADIUS = 300.0


def long_run(
    problem: TokenSelection, steps: float, start: Array | None = None
) -> Trajectory:
    """Return a run of ``steps`` steps, most of which are skipped.

    The run starts at ``start``, or at the problem's own start if it is None.
    """
    risk = problem.risk(start)
    return descend(risk, problem.rate(), steps=int(steps), method="fast")


def best_tokens_of(problem: TokenSelection) -> NDArray[np.intp]:
    """Return the index of the token with the largest value for each input, (n,)."""
    return np.asarray(problem.drawn.values.argmax(axis=1))


def selection(
    problems: Sequence[TokenSelection],
    steps: Sequence[float],
    column: str,
    least_cosine: float,
) -> Claim:
    """Return a claim on the tokens that runs select, and on their hard margin.

    Each problem is run for each of the numbers of ``steps``, which are in increasing
    order. ``column``, "best" or "local", is a column of the family. The claim holds if
    each of the longest runs has the value 1 in this column, and a cosine with the
    hard-margin solution above ``least_cosine``.
    """
    # Each list has an entry for each number of steps. A count is the number of runs
    # with 1 in a column.
    counts: dict[str, list[int]] = {"best": [], "local": []}
    cosines: list[list[float]] = []
    for t in steps:
        columns_of_runs = [
            problem.measure(long_run(problem, t)) for problem in problems
        ]
        cosines.append([columns["cosine"] for columns in columns_of_runs])
        for name, counts_by_steps in counts.items():
            count = sum(columns[name] == 1.0 for columns in columns_of_runs)
            counts_by_steps.append(count)
    runs = len(problems)  # number of runs of each length
    first_problem = problems[0]  # all have the same n, T and d
    spans = ", ".join(span(cosines_at_t, ".3f") for cosines_at_t in cosines)
    longest_count = counts[column][-1]
    longest_cosines = cosines[-1]
    return Claim.of(
        longest_count == runs and min(longest_cosines) > least_cosine,
        f"n = {first_problem.n}, T = {first_problem.T}, d = {first_problem.d},"
        f" {runs} runs, {listed(steps, '.0e')} steps",
        f"the best tokens in {listed(counts['best'])} of {runs},"
        f" locally optimal ones in {listed(counts['local'])}; cosine {spans}",
    )


@row("token selection: best tokens", FIRST, bound="all; cosine -> 1")
def best_tokens(quick: bool) -> Claim:
    """if all tokens but the best one of an input have equal values, p turns from any
    start to the hard-margin solution of the best tokens
    """
    seeds = range(1 if quick else 3)
    starts = (0.0, 2.0)  # zero, and a random p of this standard deviation
    problems = [
        TokenSelection(values="one", seed=seed, start=start)
        for seed, start in itertools.product(seeds, starts)
    ]
    # The cosine differs from 1 by about 1/ln² t, see `rate`, so the bound is lower for
    # shorter runs. In the full audit the least cosine is 0.988.
    steps, least_cosine = (1e6, 0.9) if quick else (1e12, 0.98)
    return selection(problems, [steps], "best", least_cosine)


@row("token selection: rate", FIRST, bound="a and w converge")
def rate(quick: bool) -> Claim:
    """p(t) = (ln t + a) p* + w with the hard-margin solution p*, a vector w orthogonal
    to it, and a and w that converge: the angle between p and p* falls like 1/ln t
    """
    times = (1e6, 1e9) if quick else (1e3, 1e6, 1e9, 1e12, 1e15)
    problem = TokenSelection(n=3, T=3, d=6, seed=1)
    p = np.stack([long_run(problem, t).params for t in times])  # one row for each time
    last_p = p[-1]
    p_star = np.asarray(problem.margin(problem.selected(last_p)))
    # Split p into its projection on p*, which is (ln t + a) p*, and the remainder w.
    coefficient = p @ p_star / (p_star @ p_star)  # ln t + a at each time
    a = coefficient - np.log(times)
    w = p - coefficient[:, None] * p_star
    relative_norm = np.linalg.norm(w, axis=1) / np.linalg.norm(p_star)  # |w|/|p*|
    # a and w count as convergent if a and |w|/|p*| hardly move between the last two
    # times.
    drift = max(abs(a[-1] - a[-2]), abs(relative_norm[-1] - relative_norm[-2]))
    misalignment = [1.0 - cosine(p_t, p_star) for p_t in p]
    # From 1e6 to 1e9 steps, the times of a quick audit, a and |w|/|p*| move by 2e-3.
    # Later they move by less.
    return Claim.of(
        drift < (5e-3 if quick else 1e-3),
        f"n = {problem.n}, T = {problem.T}, d = {problem.d}, {listed(times, '.0e')}"
        " steps",
        f"1 - cos {listed(misalignment, '.1e')}; a {listed(a, '.3f')};"
        f" |w|/|p*| {listed(relative_norm, '.3f')}",
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
    seeds_and_starts = [(3, 0.0)]
    times = [1e14]
    if not quick:
        seeds_and_starts = [(1, 0.0), (3, 0.0), (5, 0.0), (7, 0.0), (7, 2.0)]
        times = [1e6, 1e9, 1e14]
    problems = [
        TokenSelection(seed=seed, start=start) for seed, start in seeds_and_starts
    ]
    # The least cosine after 1e14 steps is 0.978.
    return selection(problems, times, "local", least_cosine=0.97)


def stays(problem: TokenSelection, selected: NDArray[np.intp], steps: float) -> bool:
    """Whether a run keeps the selected tokens, one of each input.

    The run starts at `FAR_OUT` times the hard-margin solution of these tokens, which
    must have one.
    """
    solution = np.asarray(problem.margin(selected))
    run = long_run(problem, steps, start=FAR_OUT * solution)
    return bool((problem.selected(run.params) == selected).all())


@row("token selection: where runs stay", FIRST, bound="all; none")
def starts_at_solutions(quick: bool) -> Claim:
    """a run that starts on a hard-margin solution, far from zero, keeps its tokens if
    they are locally optimal, and otherwise leaves them
    """
    seeds = (4,) if quick else (2, 4)
    # Each choice has a hard-margin solution, as `stays` needs, because the features of
    # the n (T - 1) = 4 other tokens relative to the selected ones are independent in 4
    # dimensions. Runs are long, because some leave their tokens late.
    decades = 9 if quick else 12
    steps = 10.0**decades
    # Each choice is one of three tokens for each of two inputs.
    choices = [*itertools.product(range(3), range(3))]
    if quick:
        choices = [(2, 0), (2, 1)]  # one of the two is locally optimal
    stays_at_local: list[bool] = []
    stays_at_others: list[bool] = []
    for seed in seeds:
        problem = TokenSelection(n=2, T=3, d=4, seed=seed)
        for choice in choices:
            selected = np.array(choice)
            if problem.is_local(selected):
                stays_at_local.append(stays(problem, selected, steps))
            else:
                stays_at_others.append(stays(problem, selected, steps))
    which = "some choices" if quick else "each choice"
    has_both = bool(stays_at_local) and bool(stays_at_others)
    return Claim.of(
        has_both and all(stays_at_local) and not any(stays_at_others),
        f"n = 2, T = 3, d = 4, {which} of tokens in {len(seeds)} draws,"
        f" from 9p*, 1e{decades} steps",
        f"{sum(stays_at_local)} of {len(stays_at_local)} stay where tokens are locally"
        f" optimal, {sum(stays_at_others)} of {len(stays_at_others)} where not",
    )


@row("token selection: regularisation path", FIRST, bound="cosine -> 1")
def path(quick: bool) -> Claim:
    """as R grows, the minimum of the loss over |p| <= R turns to the direction of the
    hard-margin solution of the best tokens
    """
    # The directions are a quarter of a degree apart. The last one is the first one
    # again, so that there are 1440.
    angle = np.linspace(0.0, 2.0 * math.pi, 1441)
    directions = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    cosines = []
    for seed in range(6 if quick else 12):
        problem = TokenSelection(n=2, T=3, d=2, seed=seed)
        solution = problem.margin(best_tokens_of(problem))
        if solution is None:  # the statement is on best tokens that have a margin
            continue
        risk = problem.risk()
        # In the best directions the loss falls with the norm, so the minimum over the
        # disc is on its circle. So far out the loss differs from its floor by less than
        # rounding, and only the excess shows which direction is best.
        circle = LARGE_RADIUS * np.linalg.norm(solution) * directions
        excess = [risk.excess(p) for p in circle]
        best_direction = directions[int(np.argmin(excess))]
        cosines.append(cosine(best_direction, solution))
    return Claim.of(
        # The nearest direction is at most 1/8 of a degree away, a cosine of 0.999998.
        # The rest of the bound is for the finite radius. The least cosine is 0.99999.
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
    # The least cosine after 1e12 steps is 0.994.
    return selection(problems, [1e6, 1e12], "local", least_cosine=0.98)


def decayed(risk: Risk, decay: float, factors: Array) -> Array:
    """Return factors W_K and W_Q that minimise the loss with weight decay.

    Half of ``decay`` times the sum of the squared entries of both factors is added to
    the loss. The search starts at the given ``factors``, (2, rank, d).
    """

    def penalised(trial: Array) -> tuple[float, Array]:
        """Return the penalised loss, and its gradient."""
        loss, gradient = risk.evaluate(trial)
        penalty = 0.5 * decay * float(np.vdot(trial, trial))
        return loss + penalty, gradient + decay * trial

    # At the smallest decay, 1e-9, the gradient of the penalty is about 1e-9. The search
    # must end at a much smaller gradient.
    return minimum(penalised, factors, gtol=1e-13)


def least_nuclear(rows: Array, factors: Array) -> Array:
    r"""Return factors K and Q of the W of least nuclear norm with ⟨A, W⟩ >= 1.

    There is one such constraint for each matrix A of ``rows``. The nuclear norm of W is
    the least :math:`\frac12(|K|^2 + |Q|^2)` over its factors, :math:`W = K^\top Q`,
    with Frobenius norms of K and Q. So the search is over factors. It starts at
    ``factors``, (2, rank, d).
    """

    def half_squared_norm(flat: Array) -> tuple[float, Array]:
        """Return half the squared norm of ``flat``, and its gradient.

        ``flat`` has the entries of K and Q.
        """
        return 0.5 * float(flat @ flat), flat

    def margins(flat: Array) -> Array:
        """Return ⟨A, W⟩ - 1, which must not be negative, for each matrix A."""
        keys, queries = flat.reshape(factors.shape)
        return np.tensordot(rows, keys.T @ queries) - 1.0

    result = minimize(
        half_squared_norm,
        factors.ravel(),
        jac=True,
        method="SLSQP",
        constraints={"type": "ineq", "fun": margins},
        # A generous accuracy: the row shows three digits, and the search takes less
        # than a tenth of a second.
        options={"maxiter": 1000, "ftol": 1e-13},
    )
    return np.asarray(result.x.reshape(factors.shape))


@row("token selection: two factors", SECOND, bound="cosine with the nuclear one -> 1")
def two_factors(quick: bool) -> Claim:
    """as the weight decay of W_K and W_Q vanishes, their product turns to the solution
    of least nuclear norm
    """
    # The factors are found by a search, so the learning rate is not used. It is given
    # because "KQ" has no default.
    problem = TokenSelection(trained="KQ", start=1.0, eta=1.0, n=3, T=4, d=4, seed=2)
    risk = problem.risk()
    best_choice = best_tokens_of(problem)
    decays = (1e-5, 1e-7) if quick else (1e-5, 1e-7, 1e-9)
    factors = risk.initial
    products = []  # W = W_KᵀW_Q at the minimum with each decay
    # Each search starts at the minimum with the decay before it.
    for decay in decays:
        factors = decayed(risk, decay, factors)
        keys, queries = factors
        products.append(keys.T @ queries)
    # A matrix for each other token. Its inner product with W is the score of the best
    # token minus the score of this token.
    score_leads = lead(problem.drawn.features, best_choice)
    nuclear_keys, nuclear_queries = least_nuclear(score_leads, factors)
    nuclear_solution = nuclear_keys.T @ nuclear_queries
    frobenius_solution = np.asarray(problem.margin(best_choice))
    nuclear_cosines = [cosine(W, nuclear_solution) for W in products]
    frobenius_cosines = [cosine(W, frobenius_solution) for W in products]
    # At the smallest decay the product must be nearer to the nuclear solution than at
    # the largest decay, and nearer to it than to the Frobenius solution. The cosine of
    # the product is 0.990 with the smallest decay of a quick audit.
    least_allowed = max(nuclear_cosines[0], frobenius_cosines[-1], 0.98)
    return Claim.of(
        nuclear_cosines[-1] > least_allowed,
        f"n = {problem.n}, T = {problem.T}, d = {problem.d}, decay"
        f" {listed(decays, '.0e')}",
        f"cosine with the least nuclear norm {listed(nuclear_cosines, '.3f')},"
        f" the least Frobenius norm {listed(frobenius_cosines, '.3f')}",
    )


# Two published examples, each with three inputs of two tokens in the plane. The first
# token of each input is 0, and the rows of these arrays are the second tokens. The
# separator is the v of least norm with y v·x >= 1 for all of these tokens x, with the
# labels y. In the first example all three tokens are its support vectors; in the second
# example the third one is not.
ALL_SUPPORT = np.array([[1.0, 1.0], [1.0, -1.0], [0.5, 1.0]])
TWO_SUPPORT = np.array([[1.0, 1.0], [1.0, -1.0], [0.5, 1.5]])
# The labels of the inputs in both examples.
LABELS = np.array([1.0, -1.0, 1.0])


class _Trained(NamedTuple):
    """Trained parameters, (2,) each."""

    p: Array
    v: Array


def jointly_trained(tokens: Array, steps: int) -> _Trained:
    """Return p and v after normalised descent on both, as in the published code.

    Each of the three inputs has the token 0, and as its second token a row of
    ``tokens``, (3, 2). A step moves p and v by the length η each.
    """
    problem = TokenSelection(
        trained="pv",
        tokens=np.stack([np.zeros_like(tokens), tokens], axis=1),
        signs=LABELS,
        start=[[0.0, -1.0], [-1.0, 0.0]],  # p and v
        eta=0.1,
        rule="ngd-blocks",
        max_steps=steps,
        above=1e-250,  # never reached: all steps are taken
    )
    p, v = problem.simulate().params
    return _Trained(p, v)


def least_norm(rows: Array, margins: Array) -> Array:
    """Return the p of least norm with rows @ p >= margins."""
    # `hard_margin` is for margins of 1 alone. The small tolerance ``ftol`` leaves
    # errors that do not change the four digits that the row shows.
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
    hard margin in which only the support vectors of v need a margin of 1, and all other
    inputs a margin of 0
    """
    steps = 300 if quick else 1000
    # Each list has a cosine for each example: of v with the separator, of p with the
    # relaxed solution, in which only support vectors need the margin 1, and of p with
    # the strict solution, in which all inputs need it.
    v_cosines = []
    relaxed_cosines = []
    strict_cosines = []
    all_ones = np.ones(3)
    for tokens in (ALL_SUPPORT, TWO_SUPPORT):
        p, v = jointly_trained(tokens, steps)
        separator = least_norm(LABELS[:, None] * tokens, margins=all_ones)
        margins_of_separator = LABELS * (tokens @ separator)
        # Margins are 1 for support vectors, up to the error of the search, which 1e-6
        # allows for. The third input of the second example has the margin 1.5.
        is_support = margins_of_separator < 1.0 + 1e-6
        v_cosines.append(cosine(v, separator))
        # The other token of each input is 0, so that a token minus the other one is the
        # token itself.
        relaxed_solution = least_norm(tokens, margins=is_support.astype(float))
        strict_solution = least_norm(tokens, margins=all_ones)
        relaxed_cosines.append(cosine(p, relaxed_solution))
        strict_cosines.append(cosine(p, strict_solution))
    # The relaxed and the strict solution for p differ only in the second example.
    _, strict_cosine = strict_cosines
    least_cosine = min(*v_cosines, *relaxed_cosines)
    return Claim.of(
        # The cosines that tend to 1 are 1.0000, and the strict cosine is 0.981. The
        # bounds lie between these numbers.
        least_cosine > 0.9995 and strict_cosine < 0.99,
        f"the published examples of three inputs, all support vectors or two of them;"
        f" {steps} normalised steps of both",
        f"cosine of v {listed(v_cosines, '.4f')}; of p"
        f" {listed(relaxed_cosines, '.4f')}, in the second example {strict_cosine:.4f}"
        " with a margin for all inputs",
    )


def has_margin(d: int, seed: int) -> bool:
    """Whether some W, (d, d), gives a random choice of tokens a margin.

    The choice is one token of each input. The seed draws the tokens and the choice.
    """
    problem = TokenSelection(trained="W", d=d, seed=seed)
    choice = np.random.default_rng(seed).integers(0, problem.T, problem.n)
    return problem.margin(choice) is not None


@row("token selection: dimensions", SECOND, bound="1 for d >= max(T - 1, n)")
def dimensions(quick: bool) -> Claim:
    """in d >= max(T - 1, n) dimensions there is a W that gives any choice of tokens a
    margin
    """
    draws = 20 if quick else 100
    # Share of the draws with a margin, by the dimension d. As n = 4 and T = 5, the
    # statement says that d >= 4 suffices.
    shares = {}
    for d in range(1, 6):
        shares[d] = float(np.mean([has_margin(d, seed) for seed in range(draws)]))
    large_always_suffice = shares[4] == shares[5] == 1.0
    return Claim.of(
        large_always_suffice and shares[1] < 1.0,
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
        "For a matrix of keys and queries: Davoud Ataee Tarzanagh, Yingcong Li, "
        "Christos Thrampoulidis, Samet Oymak. *Transformers as Support Vector "
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
