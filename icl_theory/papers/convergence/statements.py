"""The paper on how softmax attention converges on linear functions: rows of the audit, and what the paper says."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import numpy as np

from icl_theory._validate import Array
from icl_theory.engine.trajectory import State, Trajectory
from icl_theory.regression import Features, GroupedRegression, Regression
from icl_theory.statements.claim import Claim, Errors, identity, row
from icl_theory.statements.numbers import listed, power, span
from icl_theory.statements.paper import Claims, ModelEntry, Paper, Reading, Setting
from icl_theory.statements.statement import OURS, Status

SOURCE = "Huang, Cheng, Liang 2023, {} (reconstructed)"


def imbalanced(K: int, epsilon: float, dominant: float = 0.5) -> GroupedRegression:
    """One dominant feature and K - 1 rare ones, w ~ (0, I), η = 1; runs end where a rare query has the loss ε."""
    shares = (dominant, 1.0 - dominant)
    above = shares[1] * epsilon
    return GroupedRegression(
        L=1.0,
        delta=math.sqrt(2.0),
        sizes=(1, K - 1),
        shares=shares,
        eta=1.0,
        above=above,
    )


@lru_cache(maxsize=64)
def trained(K: int, epsilon: float, dominant: float = 0.5) -> Trajectory:
    """The run of `imbalanced`."""
    return imbalanced(K, epsilon, dominant).simulate()


def balanced(K: int, epsilon: float) -> Regression:
    """K features that are equally frequent."""
    return Regression(L=1.0, delta=math.sqrt(2.0), K=K, eta=1.0, epsilon=epsilon)


def shares(run: Trajectory, state: State) -> Array:
    """Attention of a rare query on its own feature, the dominant one and all other rare ones."""
    return np.asarray(run.family.risk().attention(state.params)[1])


def first(run: Trajectory, conditions: Iterable[Callable[[State], Any]]) -> list[int]:
    """First steps at which conditions hold, -1 for those that never do."""
    steps = []
    for condition in conditions:
        step = run.first(condition)
        steps.append(-1 if step is None else step)
    return steps


@lru_cache(maxsize=32)
def phases(K: int, epsilon: float, dominant: float = 0.5) -> Array:
    """Ends of a rare query's phases: the dominant feature's score is -0.49 ln K; overtaken; own share ½; loss ε."""
    run = trained(K, epsilon, dominant)
    return np.array(
        first(
            run,
            (
                lambda state: state.params[1, 1] <= -0.49 * math.log(K),
                lambda state: shares(run, state)[1] <= shares(run, state)[0],
                lambda state: shares(run, state)[0] >= 0.5,
                lambda state: state.observed["loss_per_query"][1] <= epsilon,
            ),
        ),
        dtype=float,
    )


def loose(ratios: Array, by: str) -> str:
    """Return the verdict on a bound with a logarithm, from the ratios of what is measured to it without."""
    needless = abs(ratios[-1] - 1.0) < 0.1 and abs(ratios[-1] - 1.0) <= abs(
        ratios[0] - 1.0
    )
    return f"holds, loose: also without {by}" if needless else "holds"


@identity("linear functions: six numbers")
def reduced(quick: bool) -> Errors:
    """orthonormal features, f = wᵀx with w ~ (0, I), one trained matrix Q: three scores for each of two kinds of
    queries, or one number if features are balanced
    """
    K = 8
    steps = 100 if quick else 1000
    for dominant in (1.0 / K, 0.5, 0.8):
        probs = np.append(dominant, np.full(K - 1, (1.0 - dominant) / (K - 1)))
        features = Features.orthonormal(K, probs=probs)
        small = (
            balanced(K, 1e-9) if dominant == 1.0 / K else imbalanced(K, 1e-9, dominant)
        )
        full = balanced(K, 1e-9).changed(
            L=math.sqrt(K), task="linear", features=features, coordinates="embedding"
        )
        both = (
            each.changed(method="exact", above=1e-9, max_steps=steps).simulate()
            for each in (full, small)
        )
        yield tuple(run.loss for run in both)
    return f"K = {K}, p_1 = 1/8, 0.5, 0.8, {steps} steps"


@row(
    "linear functions: balanced",
    SOURCE.format("balanced features"),
    bound="K² ln K/η; K ln(K ε^-½)/(ηε)",
)
def even_features(quick: bool) -> Claim:
    """balanced features, two phases: the own feature has half of the attention within K² ln K/η steps, and the loss
    is ε after a further K ln(K ε^-½)/(ηε)
    """
    epsilon = 1e-6
    sizes = np.array([100, 1000, 10**4, 10**6])
    runs = [balanced(int(K), epsilon).simulate() for K in sizes]
    growth = (
        np.array([run.phases.I[1] for run in runs if run.phases])
        / sizes.astype(float) ** 2
    )
    late = (
        (np.array([run.steps for run in runs]) / sizes**2 - growth)
        * sizes**2
        * 4.0
        * epsilon
        / (sizes - 1.0)
    )
    return Claim.of(
        max(growth.max(), late.max()) < 1.2,
        f"K = {listed(sizes, ',')}, ε = {epsilon:g}",
        f"steps over K²/η: {listed(growth, '.4f')}; further steps over (K-1)/(4ηε): {listed(late, '.4f')}",
        loose(growth, "both logarithms"),
    )


@row(
    "linear functions: dominant first",
    SOURCE.format("dominant feature"),
    bound="ln(1/ε)/(ηε)",
)
def dominant_first(quick: bool) -> Claim:
    """the query of the dominant feature has the loss ε within ln(1/ε)/(ηε) steps, in one phase and whatever K;
    rare queries learn later
    """
    targets = np.array([1e-2, 1e-3, 1e-4])
    ratios = []
    own = 0.0
    for K in (1000, 10**4) if quick else (1000, 10**4, 10**6):
        run = trained(K, 1e-2)
        ends = first(
            run,
            [
                lambda state, e=e: state.observed["loss_per_query"][0] <= e  # type: ignore[misc]
                for e in targets
            ],
        )
        ratios.append(np.array(ends) * targets * 2.0)
        own = max(own, float(run.at(ends[-1]).attention[1]))
    return Claim.of(
        own < 0.01 and np.ptp(ratios, axis=0).max() < 0.02,
        f"p_1 = ½, K = 10³ to {K:,}, ε = {listed(targets, 'g')}",
        f"steps over 1/(2ηε): {listed(ratios[-1], '.3f')}, the same for all K within"
        f" {np.ptp(ratios, axis=0).max():.1e}; a rare query then has {own:.4f} of its attention on target at most",
        loose(ratios[-1], "the logarithm"),
    )


@row(
    "linear functions: Phase I",
    SOURCE.format("rare features, Phase I"),
    bound="K^1.98 ln K/η",
)
def falling(quick: bool) -> Claim:
    """the dominant feature's score of a rare query falls to -0.49 ln K within K^1.98 ln K/η steps"""
    sizes, chances = (
        ((1000, 10**4), (0.5,)) if quick else ((1000, 10**4, 10**6), (0.5, 0.8))
    )
    steps = np.array([[phases(K, 1e-2, p)[0] for K in sizes] for p in chances])
    ratios = [
        steps[i] / np.power(sizes, 1.98) * 2.0 * p**2 / (1.0 - p)
        for i, p in enumerate(chances)
    ]
    flat = float(trained(1000, 1e-2, 0.2).params[1, 1]) / math.log(1000)
    needed = 50.0 * math.log(0.5 * 4.0**2)
    return Claim.of(
        steps.min() > 0.0 and (np.diff(ratios) < 0.0).all(),
        f"K = {listed(sizes, ',')}, p_1 = {listed(chances)}",
        f"last exponent {power(sizes[-2:], steps[0, -2:]):.3f}; steps over (1 - p_1)K^1.98/(2p_1²η):"
        f" {'; '.join(listed(each, '.3f') for each in ratios)}; for p_1 = 0.2 and K = 1,000 the score ends at"
        f" {flat:.2f} ln K",
        f"{loose(ratios[0], 'the logarithm')}; for p_1 = 0.2, where K²/((1 - p_1)η) steps are too few, not before"
        f" K = e^{needed:.0f}",
    )


@row(
    "linear functions: Phases II, III",
    SOURCE.format("rare features, Phases II and III"),
    bound="K² ln K/η each",
)
def switching(quick: bool) -> Claim:
    """within a further K² ln K/η steps the own feature overtakes the dominant one, and after as many it has half of
    the attention
    """
    sizes, chances = (
        ((1000, 10**4), (0.5,)) if quick else ((1000, 10**4, 10**6), (0.5, 0.8))
    )
    ends = np.array([[phases(K, 1e-2, p) for K in sizes] for p in chances])
    square = np.square(sizes, dtype=float)
    whole = ends[:, :, 2] / square * (1.0 - np.array(chances))[:, None]
    last = ends[0, -1]
    return Claim.of(
        (np.diff(ends, axis=2) > 0.0).all() and whole.max() < 1.2,
        f"K = {listed(sizes, ',')}, p_1 = {listed(chances)}",
        f"p_1 = ½: overtaken at {listed(ends[0, :, 1] / square, '.4f')} K²/η, half at"
        f" {listed(ends[0, :, 2] / square, '.4f')} K²/η; Phase III alone"
        f" {(last[2] - last[1]) / sizes[-1] ** 1.5:.2f} K^1.5/η; half over K²/((1 - p_1)η) at the largest K:"
        f" {listed(whole[:, -1], '.4f')}",
        loose(whole[0], "the logarithm"),
    )


@row(
    "linear functions: Phase IV",
    SOURCE.format("rare features, Phase IV"),
    bound="K ln(K ε^-½)/(ηε)",
)
def converging(quick: bool) -> Claim:
    """a rare query has the loss ε after a further K ln(K ε^-½)/(ηε) steps"""
    sizes = (50,) if quick else (50, 1000, 10**5)
    targets = np.array([1e-3, 1e-5])
    ends = np.array([[phases(K, epsilon)[2:] for epsilon in targets] for K in sizes])
    large = np.array(sizes, dtype=float)[:, None]
    ratios = (
        (ends[:, :, 1] - ends[:, :, 0]) * 2.0 * targets * large / (large - 1.0) ** 2
    )
    return Claim.of(
        np.abs(ratios[:, -1] - 1.0).max() < 0.02,
        f"p_1 = ½, K = {listed(sizes, ',')}, ε = {listed(targets, 'g')}",
        f"steps over (K-1)²/(2ηKε): {'; '.join(listed(each, '.3f') for each in ratios)}",
        loose(ratios[-1], "the logarithm"),
    )


@row(
    "linear functions: four phases",
    SOURCE.format("rare features"),
    bound="in this order",
)
def four_phases(quick: bool) -> Claim:
    """a rare query goes through four phases: the dominant feature's share falls by half, the own one overtakes it
    and reaches ½, and the loss reaches ε
    """
    epsilon = 1e-4
    run = imbalanced(50, epsilon).changed(above=epsilon).simulate()
    ends = first(
        run,
        (
            lambda state: shares(run, state)[1] <= 0.25,
            lambda state: shares(run, state)[1] <= shares(run, state)[0],
            lambda state: shares(run, state)[0] >= 0.5,
            lambda state: state.loss <= epsilon,
        ),
    )
    own, dominant, others = np.transpose(
        [shares(run, run.at(max(end, 0))) for end in ends]
    )
    return Claim.of(
        ends[0] >= 0 and ends == sorted(ends) and others[:2].min() > 0.5,
        f"K = 50, p_1 = ½, mean loss ε = {epsilon:g}",
        f"ends at steps {listed(ends, ',')}; share of the own feature {listed(own, '.3f')}, of the dominant one"
        f" {listed(dominant, '.3f')}, of all others {listed(others, '.3f')}",
    )


@row("linear functions: small K", OURS, bound="2, 1, 0 for K = ∞")
def small_sizes(quick: bool) -> Claim:
    """steps grow like K² until a rare query's own feature overtakes, like K until it has 0.99 (where ε dominates),
    not at all until the dominant query has 0.75; tasks of unit norm, w ~ (0, I/K), take
    K times as many
    """
    sizes = (10, 40, 160) if quick else (10, 20, 40, 80, 160)
    ends = []
    for K in sizes:
        run = trained(K, 1e-5)
        ends.append(
            first(
                run,
                (
                    lambda state: shares(run, state)[1] <= shares(run, state)[0],  # noqa: B023
                    lambda state: state.attention[1] >= 0.99,
                    lambda state: state.attention[0] >= 0.75,
                ),
            )
        )
    unit = imbalanced(40, 1e-2).changed(L=40.0**-0.5, above=1e-5 / 40.0).simulate()
    ratio = (
        first(unit, [lambda state: state.attention[1] >= 0.99])[0]
        / ends[sizes.index(40)][1]
    )
    exponents = [power(sizes, each) for each in np.transpose(ends)]
    return Claim.of(
        np.abs(np.subtract(exponents, (2.0, 1.0, 0.0))).max() < 0.15
        and abs(ratio - 40.0) < 0.1,
        f"p_1 = ½, K = {sizes[0]} to {sizes[-1]}",
        f"exponents {listed(exponents, '.2f')}; with unit norm and K = 40 {ratio:.2f} times the steps",
    )


@row(
    "linear functions: concentration",
    SOURCE.format("attention"),
    Status.CERTIFIED,
    "½ to 1",
)
def concentration(quick: bool) -> Claim:
    """(1 - Attn_k)² is of the order of the loss of the query k: ½K/(K - 1) <= ℓ_k/(1 - Attn_k)² <= 1"""
    runs = [
        trained(K, 1e-2, dominant) for K, dominant in ((5, 0.5), (50, 0.9), (1000, 0.5))
    ]
    ratios = [
        run.observed["loss_per_query"] / (1.0 - run.attention) ** 2 for run in runs
    ]
    low = min(map(np.min, ratios))
    high = max(map(np.max, ratios))
    grid = f"{sum(map(np.size, ratios))} states of runs, K = 5 to 1,000, p_1 = ½, 0.9"
    return Claim.of(
        low >= 0.5 and high <= 1.0 + 1e-9, grid, f"ratio {low:.3f}..{high:.3f}"
    )


@row(
    "linear functions: irreducible loss",
    SOURCE.format("prompts"),
    Status.CERTIFIED,
    "½ to 1",
)
def irreducible(quick: bool) -> Claim:
    """prompts of N tokens: the infimum of the loss is of the order (1 - p_k)^N, the chance that the query's feature
    is missing; it is e^(-poly(K)) if N is a larger power of K than K
    """
    ratios = []
    base = imbalanced(2, 1e-2)
    for K in (5, 10, 50):
        for N in (K, 10 * K, K**2):
            rare = base.changed(sizes=(1, K - 1), N=N).risk()
            even = balanced(K, 1e-2).changed(N=N).risk()
            assert rare.levels is not None
            ratios += [
                rare.levels[1].lowest / (1.0 - 0.5 / (K - 1)) ** N,
                even.floor() / (1.0 - 1.0 / K) ** N,
            ]
    inside = min(ratios) >= 0.5 and max(ratios) <= 1.0
    return Claim.of(
        inside, "K = 5, 10, 50, N = K, 10K, K²", f"ratio {span(ratios, '.3f')}"
    )


@row("linear functions: short prompts", SOURCE.format("prompts"), bound="ε")
def short_prompts(quick: bool) -> Claim:
    """balanced and imbalanced features: training ends at a loss near zero (N of the order K is outside the
    hypotheses)
    """
    K = 10 if quick else 20
    epsilon = 1e-3
    lines = []
    ends = {}
    for times in (1, 5, 20):
        problems = balanced(K, epsilon), imbalanced(K, 1e-2).changed(epsilon=epsilon)
        ends[times] = [each.changed(N=times * K).simulate() for each in problems]
        lines.append(
            f"{listed([run.loss[-1] for run in ends[times]], '.2g')} (N = {times}K)"
        )
    reached = [
        times for times, runs in ends.items() if all(run.converged for run in runs)
    ]
    return Claim.of(
        reached == [20],
        f"K = {K}, ε = {epsilon:g}",
        f"last loss {'; '.join(lines)}",
        f"holds only for prompts of {reached[0]}K tokens among these"
        if reached
        else "",
    )


CONVERGENCE = Paper(
    "in-context-convergence",
    "In-Context Convergence of Transformers",
    "Yu Huang, Yuan Cheng, Yingbin Liang",
    2023,
    "arXiv:2310.05249",
    (
        Reading(
            "Balanced features",
            "Every feature has a chance of the order 1/K: the attention grows for"
            " K² ln K/η steps, and then converges.",
            (reduced, even_features),
            reconstructed="both times",
        ),
        Reading(
            "Dominant feature",
            "A feature with a chance of the order 1 is learnt first, and in one phase.",
            (dominant_first,),
            reconstructed="the time",
        ),
        Reading(
            "Rare features",
            "Queries of all other features, with chances of the order 1/K, go through four"
            " phases: the dominant feature loses its attention, the own one takes the lead, grows, converges.",
            (four_phases, small_sizes),
            figure="rare_features",
            reconstructed="where the phases end",
        ),
        Reading(
            "Phase I",
            "The score of the dominant feature falls, and the others hardly move.",
            (falling,),
            reconstructed="score and time",
        ),
        Reading(
            "Phases II and III",
            "The score of the own feature takes the lead, and its attention grows.",
            (switching,),
            reconstructed="both times, and that Phase III ends at the attention ½",
        ),
        Reading(
            "Phase IV",
            "The loss of a rare query converges.",
            (converging,),
            reconstructed="the time",
        ),
        Reading(
            "Attention",
            "At the end (1 - Attn)² of every query is of the order ε.",
            (concentration,),
            reconstructed="the constants, which are this package's and are attained",
        ),
        Reading(
            "Long prompts",
            "For prompts whose length is a large power of K the loss goes to nearly zero.",
            (irreducible, short_prompts),
            reconstructed="the order of the irreducible loss",
        ),
    ),
    "Read in its abstract and in the reviews of the conference. The bounds were written down by this package's"
    " authors as they remembered them, not from the text. Runs have η = 1, w ~ (0, I) and, where N is not named,"
    " infinitely long prompts.",
    setting=Setting(
        "regression?L=1&delta=1.41421356&K=100&t=10000",
        (
            "Features that are orthonormal and equally frequent, and linear "
            "functions with w ~ N(0, I): attention grows in Phase I, which takes "
            "about K²/η steps, and then the loss converges."
        ),
    ),
    credit="The stages of imbalanced features for linear tasks",
    entry=ModelEntry(
        data="orthonormal features, linear functions, one feature frequent",
        attention="one softmax head",
        trained="the matrix of keys and queries",
        command=(
            "icl-theory simulate --L 1 --delta 1.4142135623730951 --K 100 --eta 1"
        ),
    ),
)
CLAIMS = Claims(papers=(CONVERGENCE,))
