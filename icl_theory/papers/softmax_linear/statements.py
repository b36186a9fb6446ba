"""Softmax attention and its linear limit: rows, and what the paper says.

The functions that are decorated with `row` or `identity` are rows of the audit: their
docstrings are the statements, and ``quick`` asks for a smaller measurement.
`SOFTMAX_LIMIT` says which statement of the paper each row tests.

Attention averages N normal tokens of the mean m and the covariance Γ in d dimensions,
with the value matrix V. The weights p are the softmax of scores uᵀx of the variance v,
and S₂ = E Σp², S₃ = E Σp³, S₂₂ = E (Σp²)². For N → ∞ the output tends to V(m + Γu). The
head of in-context regression has the scores a xᵀΣ⁻¹x_i for the query x, and the output
weight b. Tokens x_i and queries have the covariance Σ.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from icl_theory._validate import Array
from icl_theory.papers.softmax_linear.attention import GaussianAttention, weight_moments
from icl_theory.papers.softmax_linear.regression import LENGTH_NODES, HeadRisk
from icl_theory.statements.claim import OURS, Claim, Errors, identity, row
from icl_theory.statements.numbers import deviations, listed, power
from icl_theory.statements.paper import Claims, ModelEntry, Paper, Reading
from icl_theory.tokens.heads import GaussianHeadsRisk

SOURCE = "Boursier, Boyer 2025, {}"
# A grid of tokens covers this number of standard deviations of each normal number on
# either side. The normal density beyond is below 1e-16.
GRID_REACH = 8.5
# Spacing of the grid, in standard deviations. The wide spacing is equally exact if the
# variance of the scores is at most 1/4, and keeps a grid of four axes small enough.
GRID_STEP = 0.34
WIDE_STEP = 0.6
# Number of nodes of the integral over the lengths of queries in a quick audit, whose
# risks are exact to 1 %. A full audit has `LENGTH_NODES`.
QUICK_NODES = 14
# Largest distance of a sampled mean from its expectation, in standard errors. Chance
# exceeds it in 7 of a million cases.
MOST_STANDARD_ERRORS = 4.5


def nodes_of_lengths(quick: bool) -> int:
    """Return the number of nodes of the integral over the lengths of queries."""
    return QUICK_NODES if quick else LENGTH_NODES


def random_attention(
    rng: np.random.Generator, d: int
) -> tuple[GaussianAttention, Array]:
    """Return an attention with random matrices, and a vector u of score weights.

    The variance of the scores uᵀx is random, and at most 1.
    """
    factor = rng.normal(size=(d, d)) / math.sqrt(d)
    attention = GaussianAttention(
        covariance=factor @ factor.T,
        mean=rng.normal(size=d),
        value=rng.normal(size=(2, d)),
    )
    u = rng.normal(size=d)
    variance = float(u @ attention.covariance @ u)
    # At variances above 1 the grid of `by_grid` would have to be finer, because weights
    # then vary more from node to node.
    wanted_variance = rng.uniform(0.05, 1.0)
    return attention, u * math.sqrt(wanted_variance / variance)


class _Grid(NamedTuple):
    """A grid of n points for independent standard normal numbers, one for each axis."""

    points: Array  # (n, axes)
    probabilities: Array  # (n,)


def _normal_grid(axes: int, step: float) -> _Grid:
    """Return a grid whose nodes have the spacing ``step`` along each of the axes."""
    nodes = np.arange(-GRID_REACH, GRID_REACH + step, step)
    density = np.exp(-0.5 * nodes**2)
    nodes_of_axes = [nodes] * axes
    coordinates = np.meshgrid(*nodes_of_axes, indexing="ij")
    probabilities = np.ones(coordinates[0].shape)
    for axis in range(axes):
        # The density along this axis, as an array of length 1 along all other axes.
        shape = [1] * axes
        shape[axis] = len(nodes)
        probabilities = probabilities * density.reshape(shape)
    probabilities /= probabilities.sum()
    points = np.stack([coordinate.ravel() for coordinate in coordinates], axis=1)
    return _Grid(points, probabilities.ravel())


class OutputMeans(NamedTuple):
    """Means over all prompts of N tokens."""

    output: Array  # mean output, (e,)
    squared_distance: float  # of the output from its limit


def by_grid(
    attention: GaussianAttention, u: Array, N: int, step: float = GRID_STEP
) -> OutputMeans:
    """Return the means of an attention as sums over a grid of all tokens.

    The only formula of `GaussianAttention` that is used is its limit.
    """
    # The constructor has set both defaults.
    assert attention.mean is not None
    assert attention.value is not None
    d = len(attention.covariance)
    # Γ = factor factorᵀ. Rounding may have made an eigenvalue of zero negative.
    eigenvalues, eigenvectors = np.linalg.eigh(attention.covariance)
    factor = eigenvectors * np.sqrt(np.maximum(eigenvalues, 0.0))
    # A point of the grid is a prompt: d standard normal numbers for each of N tokens.
    points, probabilities = _normal_grid(N * d, step)
    x = attention.mean + points.reshape(-1, N, d) @ factor.T
    weights = np.exp(x @ u)  # (points, N)
    weights /= weights.sum(axis=1, keepdims=True)
    output = np.einsum("pn,pnd->pd", weights, x) @ attention.value.T
    squared_distance = np.sum((output - attention.limit(u)) ** 2, axis=1)
    return OutputMeans(
        output=probabilities @ output,
        squared_distance=float(probabilities @ squared_distance),
    )


@identity("softmax limit: error", OURS, 1e-10)
def error(quick: bool) -> Errors:
    """the mean output is V(m + (1 - S₂)Γu), and the mean squared distance of the output
    from its limit is S₂ tr VΓVᵀ + (S₂ - 6S₃ + 6S₂₂)|VΓu|²
    """
    rng = np.random.default_rng(0)
    problems = 6 if quick else 200
    # Pairs (d, N). A grid has N d axes. With these sizes it has three axes at most.
    sizes = ((1, 2), (1, 3), (2, 1))
    for problem in range(problems):
        d, N = sizes[problem % len(sizes)]
        attention, u = random_attention(rng, d)
        mean, squared_distance = by_grid(attention, u, N)
        scale = np.abs(attention.limit(u)).max()
        # A single number is a relative error, and a pair is a formula with its
        # reference.
        yield np.abs(attention.mean_output(u, N) - mean).max() / scale
        yield np.array([attention.error(u, N)]), squared_distance
    # In one dimension both terms of the error are multiples of one number, and for one
    # token the moments are all 1. Two tokens in two dimensions tell the terms apart, on
    # a grid with four axes. With half of u the variance is at most 1/4, so that the
    # wide spacing is exact.
    planar_problems = 1 if quick else 10
    for _ in range(planar_problems):
        attention, u = random_attention(rng, 2)
        half_u = 0.5 * u
        _, squared_distance = by_grid(attention, half_u, N=2, step=WIDE_STEP)
        yield np.array([attention.error(half_u, N=2)]), squared_distance
    return (
        f"{problems} random Γ, m, V, u with (d, N) = {listed(sizes)}, and"
        f" {planar_problems} with (2, 2), by a grid of all tokens"
    )


def sampled_distances(
    attention: GaussianAttention,
    u: Array,
    N: int,
    prompts: int,
    rng: np.random.Generator,
) -> Array:
    """Return the squared distance of the output from the limit for sampled prompts.

    The result has an entry for each prompt, (prompts,).
    """
    # The constructor has set both defaults.
    assert attention.mean is not None
    assert attention.value is not None
    x = rng.multivariate_normal(attention.mean, attention.covariance, (prompts, N))
    scores = x @ u
    # The largest score of a prompt is subtracted, so that no exponential overflows.
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    output = np.einsum("pn,pnd->pd", weights, x) @ attention.value.T
    return np.asarray(np.sum((output - attention.limit(u)) ** 2, axis=1))


@row("softmax limit: samples", OURS, bound="4.5")
def samples(quick: bool) -> Claim:
    """on sampled prompts the mean squared distance of the output from its limit is the
    exact one
    """
    rng = np.random.default_rng(1)
    prompts = 10_000 if quick else 100_000
    largest_z = 0.0
    sizes = ((3, 8), (5, 40))
    for d, N in sizes:
        attention, direction = random_attention(rng, d)
        # Samples need no grid, so the variance of the scores may be larger than 1. Here
        # the variance is up to 1.5².
        u = 1.5 * direction
        squared_distances = sampled_distances(attention, u, N, prompts, rng)
        # The distance of the mean of the samples from the exact mean, in standard
        # errors.
        z = deviations(squared_distances, attention.error(u, N))
        largest_z = max(largest_z, float(z))
    return Claim.of(
        largest_z < MOST_STANDARD_ERRORS,
        f"(d, N) = {listed(sizes)}, {prompts:,} prompts each",
        f"largest |z| {largest_z:.1f}",
    )


@row("softmax limit: one query", SOURCE.format("Lemma 2.1"), bound="-1")
def one_query(quick: bool) -> Claim:
    """for one query the output tends to V(m + Γu), with an error of order 1/N"""
    # Prompts are long, because at v = 8 the next order is still 2e^(2v)/N = 18 % of S₂
    # for the shortest of them.
    lengths = np.array([10**8, 10**10, 10**12])
    exponents = []
    # The mean squared error is of the order of S₂ (see `error`), so S₂ and the error
    # have the same exponent.
    for variance in (0.5, 2.0, 8.0):
        squares = [weight_moments(int(N), variance).squares for N in lengths]
        exponents.append(power(lengths, squares))
    return Claim.of(
        # The exponent is furthest from -1 for v = 8, where it is -0.995.
        all(abs(exponent + 1.0) < 1e-2 for exponent in exponents),
        "N = 1e8, 1e10, 1e12; score variances v = 0.5, 2, 8",
        f"exponents of S₂ in N {listed(exponents, '.3f')}",
    )


@row("softmax limit: usable", OURS, bound="200 e^(2v) - 300 e^v + 100")
def usable(quick: bool) -> Claim:
    """the leading error e^v/N is right to 1 % from about 200 e^(2v) tokens on"""
    variances = (0.5, 1.0, 2.0, 4.0)
    allowed = 0.01
    needed_tokens = []
    expected_tokens = []
    for variance in variances:
        needed_tokens.append(_tokens_needed(variance, allowed))
        # S₂ = e^v/N [1 - (2e^(2v) - 3e^v + 1)/N + ...], see
        # docs/theory/softmax-limit.md.
        exp_v = math.exp(variance)
        expected_tokens.append((2.0 * exp_v**2 - 3.0 * exp_v + 1.0) / allowed)
    ratios = np.array(needed_tokens) / expected_tokens
    # The orders of 1/N that are left out in ``expected_tokens`` matter most for large
    # v, where the ratio is 0.84. Both bounds are cautious.
    return Claim.of(
        bool((ratios > 0.5).all() and (ratios < 1.1).all()),
        f"least N with S₂ within 1 % of e^v/N; v = {listed(variances)}",
        f"N = {listed(needed_tokens, ',')}; to second order"
        f" {listed(expected_tokens, ',.0f')}",
    )


def _tokens_needed(variance: float, allowed: float) -> int:
    """Return the least N at which S₂ is near its leading term e^v/N.

    The relative difference must be below ``allowed``. The search bisects ln N between 1
    token, which is not enough, and a billion tokens, which are enough for all variances
    of `usable`.
    """
    not_enough = 1
    enough = 10**9
    while enough - not_enough > 1:
        middle = math.isqrt(not_enough * enough)
        # N is strictly between both ends, so that the interval shrinks and the loop
        # ends.
        N = min(max(middle, not_enough + 1), enough - 1)
        ratio = N * weight_moments(N, variance).squares * math.exp(-variance)
        if abs(ratio - 1.0) < allowed:
            enough = N
        else:
            not_enough = N
    return enough


@row(
    "softmax limit: mean over queries",
    SOURCE.format("Proposition 3.1 (exact form)"),
    bound="-min(1, 2/(1 + 2λ))",
)
def over_queries(quick: bool) -> Claim:
    """the mean error over queries is a power of N, whose exponent falls with the
    variance of the scores
    """
    lengths = np.array([10**3, 10**4] if quick else [10**10, 10**12, 10**14])
    lambdas = (0.2, 0.8) if quick else (0.2, 1.0, 3.0)
    # In one dimension, with a = λ^½ and Σ = 1, the score of a token t for the query z
    # is λ^½ z t, and has the variance v = λz².
    exponents = []
    for lambda_ in lambdas:
        # The error for a query is of the order of its S₂, so the mean of S₂ over
        # queries has the exponent of the mean error.
        mean_squares = []
        for N in lengths.tolist():
            risk = HeadRisk(1, N, nodes=nodes_of_lengths(quick))
            mean_squares.append(risk.means(math.sqrt(lambda_)).squares)
        exponents.append(power(lengths, mean_squares))
    expected = [-min(1.0, 2.0 / (1.0 + 2.0 * lambda_)) for lambda_ in lambdas]
    largest_gap = np.abs(np.array(exponents) - expected).max()
    # The expected exponent is for N → ∞. The exponents of the short prompts of a quick
    # audit are far from it, so that the bound is wider.
    return Claim.of(
        largest_gap < (0.2 if quick else 0.05),
        f"score λ^½ z t with normal z and t, λ = {listed(lambdas)};"
        f" N = {listed(lengths, '.0e')}",
        f"exponents of E S₂ {listed(exponents, '.2f')}; expected"
        f" {listed(expected, '.2f')}",
        "holds: slower than 1/N if λ > 1/2",
    )


@identity("softmax limit: regression", OURS, 1e-10)
def regression(quick: bool) -> Errors:
    """the risk of in-context regression follows from the moments S₂, S₃ and S₂₂ of the
    weights
    """
    rng = np.random.default_rng(2)
    problems = 5 if quick else 200
    for _ in range(problems):
        d = int(rng.integers(1, 30))
        N = int(rng.integers(1, 200))
        noise = float(rng.uniform())
        risk = HeadRisk(d, N, noise)
        # The whitened query has a length r with E r² = d, so that the variance a²r² of
        # the scores has a mean of up to 1.
        a = float(rng.uniform(0.05, 1.0)) / math.sqrt(d)
        b = float(rng.uniform(-1.0, 3.0))  # any output weight
        # The parameters of one head are (b, a). The start of the risk is not used.
        heads = GaussianHeadsRisk(d, N, noise, start=np.ones(2))
        expected, _ = heads.evaluate(np.array([b, a]))
        # `HeadRisk` uses the formula in the moments, `GaussianHeadsRisk` does not.
        yield np.array([risk.risk(a, b)]), expected
    return (
        f"{problems} random d < 30, N < 200, σ, a, b, by the softmax heads of this"
        " package"
    )


@row("softmax limit: end of training", SOURCE.format("Theorem 5.1"), bound="to zero")
def end_of_training(quick: bool) -> Claim:
    """at the end of training in the limit, the risk of finite prompts tends to zero"""
    d = 5
    lengths = (100, 10**4, 10**6) if quick else (100, 10**3, 10**4, 10**5, 10**6)
    # Training in the limit ends at b = 1/a = d^¼ (Theorem 5.1).
    a = d**-0.25
    risks = []
    for N in lengths:
        risk = HeadRisk(d, N, nodes=nodes_of_lengths(quick))
        risks.append(risk.risk(a, 1.0 / a))
    # "To zero" is taken as less than 1/500 of d/2, the risk before training.
    return Claim.of(
        bool((np.diff(risks) < 0.0).all() and risks[-1] < 1e-3 * d),
        f"d = {d}, Σ = I, b = 1/a = d^(1/4), N = {listed(lengths, ',')}",
        f"risks {listed(risks, '.2g')}; before training {d / 2:.1f}",
    )


@row("softmax limit: minimum", OURS, bound="b² = 1/x")
def minimum(quick: bool) -> Claim:
    """the best head for long prompts has a larger output weight than the end of
    training in the limit, and a smaller risk
    """
    N = 10**5
    dimensions = (5,) if quick else (5, 20)
    best_outputs = []
    expected_outputs = []
    limit_outputs = []
    risk_ratios = []
    for d in dimensions:
        risk = HeadRisk(d, N, nodes=nodes_of_lengths(quick))
        best = risk.minimum()
        best_outputs.append(best.b)
        expected_outputs.append(best_output_of_long_prompts(d))
        # Training in the limit ends at b = 1/a = d^¼ (Theorem 5.1).
        limit_output = d**0.25
        limit_outputs.append(limit_output)
        risk_ratios.append(risk.risk(d**-0.25, limit_output) / best.risk)
    output_ratios = np.array(best_outputs) / expected_outputs
    # N = 1e5 is near N → ∞: the best outputs agree to three digits.
    are_as_expected = bool((np.abs(output_ratios - 1.0) < 0.01).all())
    are_larger = bool(np.all(np.array(best_outputs) > limit_outputs))
    # "A smaller risk" is taken as smaller by a third or more, a ratio above 1.5; the
    # least ratio is 6.3.
    risks_are_smaller = min(risk_ratios) > 1.5
    return Claim.of(
        are_as_expected and are_larger and risks_are_smaller,
        f"d = {listed(dimensions)}, N = 1e5, Σ = I, no noise",
        f"best b {listed(best_outputs, '.2f')}, for N → ∞"
        f" {listed(expected_outputs, '.2f')}; in the"
        f" limit training ends at {listed(limit_outputs, '.2f')}, with"
        f" a risk {listed(risk_ratios, '.1f')} times larger",
    )


def best_output_of_long_prompts(d: int) -> float:
    """Return the best output weight for N → ∞ without noise.

    The square of the weight is z = 1/x with the smaller root x of
    (d + 2)x² - (d + 4)x + 1 = 0. So z is the larger root of
    z² - (d + 4)z + (d + 2) = 0. See docs/theory/softmax-limit.md.
    """
    root_of_discriminant = math.sqrt((d + 4.0) ** 2 - 4.0 * (d + 2.0))
    return math.sqrt(0.5 * (d + 4.0 + root_of_discriminant))


class FlowEnd(NamedTuple):
    """The end of a gradient flow of one softmax head with A = aI."""

    b: float  # output weight
    risk: float  # exact risk


def flow_end(d: int, N: int, start: float, time: float, is_coarse: bool) -> FlowEnd:
    """Follow the gradient flow of A and b for Σ = I from A = start/√d I and b = start.

    The start is balanced: the Frobenius norm of A is b. The flow ends at the time
    ``time``. A coarse flow is for short times, and has an error of up to 1 %.
    """
    from scipy.integrate import solve_ivp  # slow to load

    # The parameters of one head are (b, a). The start of the risk is not used.
    risk = GaussianHeadsRisk(d, N, noise=0.0, start=np.ones(2))

    def velocity(_time: float, state: Array) -> Array:
        """Return the derivatives of a and b with respect to time."""
        a, b = state
        _, (b_gradient, a_gradient) = risk.evaluate(np.array([b, a]))
        # The derivative with respect to a is the sum of the derivatives with respect to
        # the d diagonal entries of A. These are equal, and the flow moves each entry by
        # its own derivative.
        return np.array([-a_gradient / d, -b_gradient])

    accuracy = 1e-2 if is_coarse else 1e-7
    solution = solve_ivp(
        velocity,
        (0.0, time),
        np.array([start / math.sqrt(d), start]),
        # A flow along the valley ab = 1 is stiff, and LSODA is made for stiff
        # equations. A short flow does not reach the valley, so RK45 is good enough.
        method="RK45" if is_coarse else "LSODA",
        t_eval=[time],
        # Both a and b stay above 0.1, so that the relative accuracy decides.
        rtol=accuracy,
        atol=0.01 * accuracy,
        # For a short time one step is often accurate enough, so the first step that is
        # tried is the whole time.
        first_step=time if is_coarse else None,
    )
    a, b = solution.y[:, -1]
    loss, _ = risk.evaluate(np.array([b, a]))
    return FlowEnd(float(b), float(loss))


@row("softmax limit: flow", SOURCE.format("Theorem 4.3"), bound="the risk at the limit")
def training_flow(quick: bool) -> Claim:
    """gradient flow on finite prompts ends at no larger risk than training in the
    limit, if both ends are tested on these prompts
    """
    d = 5
    lengths = (20,) if quick else (100, 1000)
    time = 1.0 if quick else 300.0
    outputs = []
    end_risks = []
    limit_risks = []  # at the end of the limit's flow
    for N in lengths:
        end = flow_end(d, N, start=0.5, time=time, is_coarse=quick)
        outputs.append(end.b)
        end_risks.append(end.risk)
        # The flow of the limit ends at b = 1/a = d^¼ (Theorem 5.1).
        risk = HeadRisk(d, N, nodes=nodes_of_lengths(quick))
        limit_risks.append(risk.risk(d**-0.25, d**0.25))
    is_smaller = np.array(end_risks) < limit_risks
    return Claim.of(
        bool(is_smaller.all()),
        f"d = {d}, Σ = I, from α = 0.5 to time {time:.0f}, N = {listed(lengths)}",
        f"risks at the end {listed(end_risks, '.3f')}, at the end of the limit's flow"
        f" {listed(limit_risks, '.3f')}; b ends at {listed(outputs, '.2f')} instead of"
        f" {d**0.25:.2f}",
    )


SOFTMAX_LIMIT = Paper(
    "softmax-linear",
    "Softmax as Linear Attention in the Large-Prompt Regime: a Measure-based"
    " Perspective",
    "Etienne Boursier, Claire Boyer",
    2025,
    "arXiv:2512.11784",
    (
        Reading(
            "Lemma 2.1",
            "Over infinitely many Gaussian tokens softmax attention is the linear map"
            " V(m + ΓKᵀQz).",
            (one_query, error, samples, usable),
            figure="softmax-limit",
        ),
        Reading(
            "Proposition 3.1",
            "The mean squared error is at most a power of the prompt length, with an"
            " exponent like 1/σ².",
            (over_queries,),
            reconstructed="the exponent, which the paper bounds with unnamed constants",
        ),
        Reading(
            "Theorem 4.3",
            "Training on long prompts ends at nearly the risk of the limit.",
            (training_flow,),
        ),
        Reading(
            "Theorem 5.1",
            "In-context regression reaches the Bayes risk as prompts grow.",
            (end_of_training, regression, minimum),
        ),
    ),
    credit="Softmax attention over long Gaussian prompts",
    entry=ModelEntry(
        data="normal tokens of any covariance; linear functions",
        attention="one softmax head",
        trained="the scale of the scores and an output weight",
        command="icl-theory softmax-heads simulate --heads 1",
    ),
    folder=Path(__file__).parent,
)
CLAIMS = Claims(papers=(SOFTMAX_LIMIT,))
