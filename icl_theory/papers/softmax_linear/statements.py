"""Softmax attention and its linear limit: rows, and what the paper says."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from icl_theory._validate import Array
from icl_theory.papers.softmax_linear.attention import GaussianAttention, weight_moments
from icl_theory.papers.softmax_linear.regression import HeadRisk
from icl_theory.statements.claim import OURS, Claim, Errors, identity, row
from icl_theory.statements.numbers import deviations, listed, power
from icl_theory.statements.paper import Claims, ModelEntry, Paper, Reading
from icl_theory.tokens.heads import GaussianHeadsRisk

SOURCE = "Boursier, Boyer 2025, {}"
# Standard deviations that a grid of tokens covers, and its spacing. A wider spacing is
# as exact if the variance of the scores is at most 1/4.
GRID_REACH = 8.5
GRID_STEP = 0.34
WIDE_STEP = 0.6


def random_attention(
    rng: np.random.Generator, d: int
) -> tuple[GaussianAttention, Array]:
    """Return an attention with random matrices, and a direction u of its scores."""
    factor = rng.normal(size=(d, d)) / math.sqrt(d)
    attention = GaussianAttention(
        factor @ factor.T, rng.normal(size=d), rng.normal(size=(2, d))
    )
    direction = rng.normal(size=d)
    variance = float(direction @ attention.covariance @ direction)
    # Scores of a variance below 1 need no finer grid.
    return attention, direction * math.sqrt(rng.uniform(0.05, 1.0) / variance)


def by_grid(
    attention: GaussianAttention, u: Array, N: int, step: float = GRID_STEP
) -> tuple[Array, float]:
    """Return mean output and mean squared error, by a sum over a grid of all tokens."""
    assert attention.mean is not None
    assert attention.value is not None
    d = len(attention.covariance)
    values, vectors = np.linalg.eigh(attention.covariance)
    factor = vectors * np.sqrt(np.maximum(values, 0.0))
    axis = np.arange(-GRID_REACH, GRID_REACH + step, step)
    normal = np.exp(-0.5 * axis**2)
    grids = np.meshgrid(*[axis] * (N * d), indexing="ij")
    weights = np.ones(grids[0].shape)
    for place in range(N * d):
        shape = [1] * (N * d)
        shape[place] = len(axis)
        weights = weights * normal.reshape(shape)
    weights /= weights.sum()
    tokens = np.stack([grid.ravel() for grid in grids], axis=1).reshape(-1, N, d)
    x = attention.mean + tokens @ factor.T
    attended = np.exp(x @ u)
    attended /= attended.sum(axis=1, keepdims=True)
    output = np.einsum("pn,pnd->pd", attended, x) @ attention.value.T
    distance = np.sum((output - attention.limit(u)) ** 2, axis=1)
    flat = weights.ravel()
    return flat @ output, float(flat @ distance)


@identity("softmax limit: error", OURS, 1e-10)
def error(quick: bool) -> Errors:
    """the mean output is V(m + (1 - S₂)Γu), and its mean squared distance from the
    limit S₂ tr VΓVᵀ + (S₂ - 6S₃ + 6S₂₂)|VΓu|²
    """
    rng = np.random.default_rng(0)
    problems = 20 if quick else 200
    sizes = ((1, 2), (1, 3), (2, 1))
    for problem in range(problems):
        d, N = sizes[problem % len(sizes)]
        attention, u = random_attention(rng, d)
        mean, distance = by_grid(attention, u, N)
        scale = np.abs(attention.limit(u)).max()
        yield np.abs(attention.mean_output(u, N) - mean).max() / scale
        yield np.array([attention.error(u, N)]), distance
    # Two tokens in two dimensions tell both terms apart, on a grid of four dimensions.
    planes = 1 if quick else 10
    for _ in range(planes):
        attention, u = random_attention(rng, 2)
        _, distance = by_grid(attention, 0.5 * u, 2, WIDE_STEP)
        yield np.array([attention.error(0.5 * u, 2)]), distance
    return (
        f"{problems} random Γ, m, V, u with (d, N) = {listed(sizes)}, and {planes} with"
        " (2, 2), by a grid of all tokens"
    )


def sampled_distances(
    attention: GaussianAttention,
    u: Array,
    N: int,
    prompts: int,
    rng: np.random.Generator,
) -> Array:
    """Squared distances of the output of sampled prompts from the limit, (prompts,)."""
    assert attention.mean is not None
    assert attention.value is not None
    x = rng.multivariate_normal(attention.mean, attention.covariance, (prompts, N))
    scores = x @ u
    attended = np.exp(scores - scores.max(axis=1, keepdims=True))
    attended /= attended.sum(axis=1, keepdims=True)
    output = np.einsum("pn,pnd->pd", attended, x) @ attention.value.T
    return np.asarray(np.sum((output - attention.limit(u)) ** 2, axis=1))


@row("softmax limit: samples", OURS, bound="4.5")
def samples(quick: bool) -> Claim:
    """sampled prompts have this mean squared distance from the limit"""
    rng = np.random.default_rng(1)
    prompts = 10_000 if quick else 100_000
    largest = 0.0
    sizes = ((3, 8), (5, 40))
    for d, N in sizes:
        attention, u = random_attention(rng, d)
        u = 1.5 * u
        sampled = sampled_distances(attention, u, N, prompts, rng)
        z = deviations(sampled, attention.error(u, N))
        largest = max(largest, float(z))
    return Claim.of(
        largest < 4.5,
        f"(d, N) = {listed(sizes)}, {prompts:,} prompts each",
        f"largest |z| {largest:.1f}",
    )


@row("softmax limit: one query", SOURCE.format("Lemma 2.1"), bound="-1")
def one_query(quick: bool) -> Claim:
    """for one query the output tends to V(m + Γu), with an error of order 1/N"""
    lengths = np.array([10**8, 10**10, 10**12])
    exponents = []
    for variance in (0.5, 2.0, 8.0):
        squares = [weight_moments(int(N), variance).squares for N in lengths]
        exponents.append(power(lengths, squares))
    return Claim.of(
        all(abs(exponent + 1.0) < 1e-2 for exponent in exponents),
        "N = 1e8, 1e10, 1e12; score variances v = 0.5, 2, 8",
        f"exponents of S₂ in N {listed(exponents, '.3f')}",
    )


@row("softmax limit: usable", OURS, bound="200 e^(2v) - 300 e^v + 100")
def usable(quick: bool) -> Claim:
    """the leading error e^v/N is right to 1 % from about 200 e^(2v) tokens on"""
    variances = (0.5, 1.0, 2.0, 4.0)
    needed = []
    expected = []
    for variance in variances:
        needed.append(_needed(variance, 0.01))
        growth = math.exp(variance)
        expected.append((2.0 * growth**2 - 3.0 * growth + 1.0) / 0.01)
    ratios = np.array(needed) / expected
    return Claim.of(
        bool((ratios > 0.5).all() and (ratios < 1.1).all()),
        f"least N with S₂ within 1 % of e^v/N; v = {listed(variances)}",
        f"N = {listed(needed, ',')}; to second order {listed(expected, ',.0f')}",
    )


def _needed(variance: float, allowed: float) -> int:
    """Return the least N at which S₂ is this close to its leading term."""
    low, high = 1, 10**9
    while high - low > 1:
        N = math.isqrt(low * high)
        N = min(max(N, low + 1), high - 1)
        share = N * weight_moments(N, variance).squares * math.exp(-variance)
        if abs(share - 1.0) < allowed:
            high = N
        else:
            low = N
    return high


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
    variances = (0.2, 0.8) if quick else (0.2, 1.0, 3.0)
    exponents = []
    for variance in variances:
        squares = []
        for N in lengths.tolist():
            risk = HeadRisk(1, N)
            squares.append(risk.means(math.sqrt(variance)).squares)
        exponents.append(power(lengths, squares))
    expected = [min(1.0, 2.0 / (1.0 + 2.0 * variance)) for variance in variances]
    distance = np.abs(np.array(exponents) + expected).max()
    return Claim.of(
        distance < (0.2 if quick else 0.05),
        f"score λ^½ z t with normal z and t, λ = {listed(variances)};"
        f" N = {listed(lengths, '.0e')}",
        f"exponents of E S₂ {listed(exponents, '.2f')}; expected"
        f" {listed(np.negative(expected), '.2f')}",
        "holds: slower than 1/N if λ > 1/2",
    )


@identity("softmax limit: regression", OURS, 1e-10)
def regression(quick: bool) -> Errors:
    """the risk of in-context regression follows from the same moments"""
    rng = np.random.default_rng(2)
    problems = 5 if quick else 200
    for _ in range(problems):
        d = int(rng.integers(1, 30))
        N = int(rng.integers(1, 200))
        noise = float(rng.uniform())
        risk = HeadRisk(d, N, noise)
        a = float(rng.uniform(0.05, 1.0)) / math.sqrt(d)
        b = float(rng.uniform(-1.0, 3.0))
        heads = GaussianHeadsRisk(d, N, noise, np.ones(2))
        expected, _ = heads.evaluate(np.array([b, a]))
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
    a = d**-0.25
    risks = [HeadRisk(d, N).risk(a, 1.0 / a) for N in lengths]
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
    outputs = []
    gains = []
    expected = []
    for d in dimensions:
        risk = HeadRisk(d, N)
        best = risk.minimum()
        outputs.append(best.b)
        gains.append(risk.risk(d**-0.25, d**0.25) / best.risk)
        expected.append(best_output_of_long_prompts(d))
    ratios = np.array(outputs) / expected
    return Claim.of(
        bool((np.abs(ratios - 1.0) < 0.01).all()) and min(gains) > 1.5,
        f"d = {listed(dimensions)}, N = 1e5, Σ = I, no noise",
        f"best b {listed(outputs, '.2f')}, for N → ∞ {listed(expected, '.2f')}; in the"
        f" limit training ends at {listed([d**0.25 for d in dimensions], '.2f')}, with"
        f" a risk {listed(gains, '.1f')} times larger",
    )


def best_output_of_long_prompts(d: int) -> float:
    """Return the best output weight for N → ∞ without noise.

    The square of the weight is 1/x. Here x is the smaller root of
    (d + 2)x² - (d + 4)x + 1 = 0.
    """
    root = math.sqrt((d + 4.0) ** 2 - 4.0 * (d + 2.0))
    return math.sqrt(0.5 * (d + 4.0 + root))


def flow(
    d: int, N: int, start: float, times: Array, accuracy: float = 1e-7
) -> tuple[Array, Array]:
    """Follow the gradient flow of A and b from A = start/√d I and b = start.

    Returns
    -------
    tuple of ndarray
        a and b at the times, (T, 2), and their exact risks, (T,).
    """
    from scipy.integrate import solve_ivp  # slow to load

    risk = GaussianHeadsRisk(d, N, 0.0, np.ones(2))

    def velocity(_time: float, state: Array) -> Array:
        a, b = state
        _, gradient = risk.evaluate(np.array([b, a]))
        # All d diagonal entries of A share the derivative by a.
        return np.array([-gradient[1] / d, -gradient[0]])

    begin = np.array([start / math.sqrt(d), start])
    # A flow along the valley ab = 1 is stiff. The coarse one is short.
    solution = solve_ivp(
        velocity,
        (0.0, float(times[-1])),
        begin,
        method="RK45" if accuracy > 1e-3 else "LSODA",
        t_eval=times,
        rtol=accuracy,
        atol=0.01 * accuracy,
    )
    states = solution.y.T
    risks = [risk.evaluate(np.array([b, a]))[0] for a, b in states]
    return states, np.array(risks)


@row("softmax limit: flow", SOURCE.format("Theorem 4.3"), bound="the risk at the limit")
def training_flow(quick: bool) -> Claim:
    """gradient flow on finite prompts ends at no larger risk than the end of training
    in the limit has there
    """
    d = 5
    lengths = (20,) if quick else (100, 1000)
    times = np.array([0.0, 1.0 if quick else 300.0])
    outputs = []
    ends = []
    limits = []
    for N in lengths:
        states, risks = flow(d, N, 0.5, times, 1e-2 if quick else 1e-7)
        outputs.append(float(states[-1, 1]))
        ends.append(float(risks[-1]))
        limits.append(HeadRisk(d, N).risk(d**-0.25, d**0.25))
    return Claim.of(
        all(end < limit for end, limit in zip(ends, limits, strict=True)),
        f"d = {d}, Σ = I, from α = 0.5 to time {times[-1]:.0f}, N = {listed(lengths)}",
        f"risks at the end {listed(ends, '.3f')}, at the end of the limit's flow"
        f" {listed(limits, '.3f')}; b ends at {listed(outputs, '.2f')} instead of"
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
