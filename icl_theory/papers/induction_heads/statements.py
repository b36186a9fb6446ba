"""Papers on two layers: how induction heads form, and how the first layer finds the parent of a symbol."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.engine import Risk, descend, in_coordinates
from icl_theory.engine.pullback import core_risk
from icl_theory.engine.risk import WithStart
from icl_theory.papers.induction_heads.family import InductionHeads, dirichlet_points
from icl_theory.statements.claim import (
    Claim,
    Errors,
    Series,
    curves,
    identity,
    question,
    row,
)
from icl_theory.statements.numbers import (
    apart,
    deviations,
    listed,
    losses,
    named,
    power,
    span,
)
from icl_theory.statements.paper import Claims, ModelEntry, Paper, Reading, Setting
from icl_theory.tokens import Chains, TwoLayerTransformer, mean_loss

EDELMAN = "Edelman et al. 2024, {} (reconstructed)"
NICHANI = "Nichani et al. 2024, {} (reconstructed)"
LOG = InductionHeads(objective="log", sink=0.0, eta=0.5)
LAWS = ("doubly stochastic", "Dirichlet", "lazy", "sparse")


def emergence(
    problem: InductionHeads, levels: tuple[str, str] = ("unigram", "bigram")
) -> float:
    """ηt at which the loss is halfway between two predictors, infinite if it does not come so far."""
    middle = 0.5 * sum(problem.predictors[name] for name in levels)
    run = descend(
        problem.risk(), problem.rate(), epsilon=middle, steps=20000, progress=False
    )
    return math.inf if run.steps is None else run.steps * problem.rate()


def signals(problem: InductionHeads) -> Array:
    """J_l, how steeply the loss falls with b at b = 0 if the first layer attends to lag l alone, (m,)."""
    risk = problem.changed(match=0.0).risk()
    m = problem.lags
    return -np.array(
        [
            risk.gradient(np.append(alone, risk.initial[m:]))[m]
            for alone in 80.0 * np.eye(m)
        ]
    )


def on_chains(transitions: Array, lags: int, T: int, **given: Any) -> InductionHeads:
    """Return the model on given chains, stationary from the start, where T tokens see all lags."""
    edges: dict[str, Any] = {
        "edge": "complete",
        "start": "stationary",
        "transitions": transitions,
    }
    return InductionHeads(
        k=transitions.shape[1], lags=lags, T=T + lags - 1, **edges, **given
    )


class Slowest(NamedTuple):
    """Where the loss falls most slowly on its way from one half-way point to the next."""

    length: float  # ηt between the half-way points
    loss: float  # at the minimum of the speed
    # how much faster it is on both sides, at least; 1 without a minimum inside
    slowdown: float
    start: float  # speed at step 0 over the largest one

    def rests_at(self, level: float) -> bool:
        """Whether the minimum is a plateau: a third slower than both sides, near the level."""
        return self.slowdown > 1.5 and abs(self.loss - level) < 0.02


def slowest(problem: InductionHeads) -> Slowest:
    """Follow a run to half of the way from unigram to bigram, and find its slowest point.

    The speed of the loss along the flow is the squared norm of its gradient in the
    metric.
    """
    risk = problem.risk()
    levels = problem.predictors
    enters = 0.5 * (levels["uniform"] + levels["unigram"])
    leaves = 0.5 * (levels["unigram"] + levels["bigram"])
    run = descend(risk, problem.rate(), epsilon=leaves, steps=20000, progress=False)
    speed = np.array(
        [np.sum(risk.gradient(params) ** 2 / risk.metric) for params in run.states]
    )
    between = np.flatnonzero(run.loss <= enters)
    inside = speed[between]
    losses = run.loss[between]
    before = np.maximum.accumulate(inside)
    after = np.maximum.accumulate(inside[::-1])[::-1]
    slowdown = np.minimum(before, after) / inside
    at = int(slowdown.argmax())
    length = float(problem.rate() * (run.t[-1] - run.t[between[0]]))
    return Slowest(
        length, float(losses[at]), float(slowdown[at]), float(speed[0] / speed.max())
    )


@row(
    "induction heads: plateaus",
    EDELMAN.format("phases"),
    bound="at most 0.1; unigram; none",
)
def three_phases(quick: bool) -> Claim:
    """from small weights the loss rests at that of uniform predictions first, then at the
    unigram's, where its speed has a minimum, and ends at the bigram's, if the first
    layer is slow; with equal rates it does not rest at the unigram's
    """
    slow = LOG.changed(sink=8.0, ratio=0.003, eta=2.0, max_steps=20000)
    slow = slow.changed(T=20, ratio=0.01) if quick else slow
    rest = slowest(slow)
    equal = slowest(slow.changed(ratio=1.0))
    run = slow.simulate()
    levels = slow.predictors
    left = float(run.loss[-1]) - levels["bigram"]
    unigram = levels["unigram"]
    is_slow_at_first = rest.start < 0.1
    phases = is_slow_at_first and rest.rests_at(unigram) and not equal.rests_at(unigram)
    return Claim.of(
        phases and run.regime == "induction" and left < 0.01,
        f"k = 2, Beta(1, 1), T = {slow.T}, log loss, c = 8 and b = 0.01 at first, ratio {slow.ratio} and 1",
        f"speed at step 0 {rest.start:.0e} of the largest; between the half-way points it is least"
        f" at the loss {rest.loss:.4f} (unigram {unigram:.4f}), {rest.slowdown:.1f} times"
        f" less than on both sides, with equal rates {equal.slowdown:.1f}; at the end {left:.3f}"
        " above the bigram",
    )


@row(
    "induction heads: useless unigrams",
    EDELMAN.format("simplicity bias"),
    bound="faster",
)
def useless_unigrams(quick: bool) -> Claim:
    """where unigrams say nothing (doubly stochastic chains) the bigram is learnt faster"""
    p = (np.arange(32) + 0.5) / 32
    chains = np.stack([1.0 - p, p, p, 1.0 - p], axis=1).reshape(-1, 2, 2)
    problem = LOG.changed(T=30 if quick else 100)
    times = [emergence(each) for each in (problem, problem.changed(transitions=chains))]
    return Claim.of(
        times[1] < times[0],
        f"k = 2, T = {problem.T}, log loss; both rows uniform, or 32 chains with p = P₀₁ = P₁₀",
        f"half of the way from unigram to bigram at ηt = {times[0]:.0f}, and {times[1]:.0f}",
    )


@identity(
    "induction heads: alignment", EDELMAN.format("alignment of layers"), allowed=1e-5
)
def alignment(quick: bool) -> Errors:
    """the first layer learns as far as the second one has: for small b, ∂L/∂a_l = -bα_l(J_l - Σ α_j J_j)"""
    rng = np.random.default_rng(1)
    b = 1e-6
    for k, m in ((2, 2), (2, 3), (3, 2)):
        P = rng.dirichlet(np.ones(k), (4, k))
        a = rng.normal(size=m)
        problem = InductionHeads(
            k=k, lags=m, T=20, transitions=P, edge="complete", scores=a, match=b
        )
        alpha = np.exp(a) / np.exp(a).sum()
        J = signals(problem)
        expected = -b * alpha * (J - alpha @ J)
        found = problem.risk().gradient(problem.risk().initial)[:m]
        yield np.abs(found - expected).max() / np.abs(expected).max()
    return (
        "k = 2, 3, m = 2, 3, T = 20, four chains, random scores of the lags, b = 1e-6"
    )


@row(
    "induction heads: chi-squared",
    NICHANI.format("gradient of the first layer"),
    bound="like 1/T",
)
def long_sequences(quick: bool) -> Claim:
    """for long sequences and the log loss J_1 is E Σ π_q² χ²(P_q‖π), the information of the parent"""
    P, probs = dirichlet_points(np.ones((2, 2)), 1600)
    pi = P[:, [1, 0], [0, 1]] / (P[:, 0, 1] + P[:, 1, 0])[:, None]
    limit = float(
        probs
        @ np.sum(pi**2 * np.sum((P - pi[:, None]) ** 2 / pi[:, None], axis=2), axis=1)
    )
    lengths = np.array([25, 50] if quick else [50, 100, 200])
    problem = LOG.changed(start="stationary", points=144, sink=-30.0)
    gaps = [limit - signals(problem.changed(T=T))[1] for T in lengths.tolist()]
    return Claim.of(
        min(gaps) > 0.0 and abs(power(lengths[-2:], gaps[-2:]) + 1.0) < 0.1,
        f"k = 2, Beta(1, 1), T = {listed(lengths)}, stationary start, no sink; a quadrature rule over P",
        f"{limit:.5f}, less {listed(gaps, '.5f')}",
    )


@row("induction heads: short sequences", bound="a higher loss")
def short_sequences(quick: bool) -> Claim:
    """in short sequences b falls from 0, and descent ends at anti-induction, with a higher loss"""
    lengths = (6,) if quick else (4, 5, 6, 7)
    each = InductionHeads(eta=20.0, max_steps=400, method="exact")
    antis, heads = (
        [each.changed(T=T, match=b).simulate() for T in lengths] for b in (0.0, 1.0)
    )
    high, low = (np.array([run.loss[-1] for run in runs]) for runs in (antis, heads))
    ends = [{run.regime for run in runs} for runs in (antis, heads)]
    return Claim.of(
        ends == [{"anti-lag 0"}, {"induction"}] and (high > low).all(),
        f"k = 2, Beta(1, 1), square loss, two lags, T = {listed(lengths)}, from b = 0 and from b = 1",
        f"{antis[0].regime} with {listed(high, '.4f')}; {heads[0].regime} with {listed(low, '.4f')}",
    )


RANGES: dict[
    str, tuple[list[Any], list[Any]]
] = {  # of what emergence depends on, the shorter ones first
    "T": ([20, 30, 45], [12, 15, 20, 30, 50, 100, 200]),
    "concentration": ([0.3, 1.0, 3.0], [0.03, 0.1, 0.3, 1.0, 3.0, 5.0, 8.0]),
    "match": ([0.01, 0.1, 1.0], [1e-3, 1e-2, 0.1, 0.3, 1.0, 2.0]),
    "ratio": ([0.1, 1.0, 10.0], [0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0]),
    "k": ([2, 3], [2, 3, 4]),
    "k (other points)": ([2, 3], [2, 3, 4]),
}


@question("induction-emergence", "parameter, over its least value", "emergence, ηt")
def which_exponents(quick: bool) -> tuple[str, list[Series]]:
    """How does the time of emergence depend on T, k, the concentration, the first b, and the ratio of the rates?"""
    log = LOG.changed(T=30) if quick else LOG
    # for more than two symbols
    square = InductionHeads(T=16 if quick else 24, points=16 if quick else 32, eta=8.0)
    lines = []
    words = []
    ends = dict[str, tuple[float, float]]()
    for label, (few, many) in RANGES.items():
        name = label.split()[0]
        values = few if quick else many
        base = square.changed(seed=int(label != "k")) if name == "k" else log
        times = np.array([emergence(base.changed(**{name: value})) for value in values])
        lines.append(Series(label, np.array(values) / values[0], times))
        ends[label] = first, last = (
            power(values[:2], times[:2]),
            power(values[-2:], times[-2:]),
        )
        words.append(
            f"{label} {first:+.2f} at {values[0]:g} to {last:+.2f} at {values[-1]:g}"
        )
    return (
        f"Local exponents of ηt, two lags, log loss: {'; '.join(words)} (k: square loss, Sobol"
        f" points).{_unsettled(ends)}{_small_match(ends, log)}"
    ), lines


def _unsettled(ends: dict[str, tuple[float, float]]) -> str:
    """Say where two sets of points disagree on the sign of an exponent."""
    signs = np.sign([ends["k"][1], ends["k (other points)"][1]])
    return (
        " For k two sets of points differ: the sign is not known."
        if signs.prod() < 0.0
        else ""
    )


def _small_match(ends: dict[str, tuple[float, float]], log: InductionHeads) -> str:
    """Say how fast a small b grows, if its size hardly changes when the head emerges."""
    if max(abs(ends["T"][1]), abs(ends["match"][0])) >= 0.1:
        return ""
    problem = log.changed(match=1e-3)
    run = descend(
        problem.risk(), problem.rate(), steps=3, method="exact", progress=False
    )
    rates = np.diff(run.states[:, problem.lags]) / problem.rate()
    return (
        " Long sequences and small b change little: from 0.001 b grows by"
        f" {listed(rates, '.3f')} per unit of ηt in the first steps."
    )


class Plateaus(NamedTuple):
    """Unigram plateaus at one T, by the ratio of the rates."""

    T: int
    ratios: Array
    rests: NDArray[np.bool_]  # whether there is one
    lengths: Array  # of those that there are

    @classmethod
    def of(cls, T: int, ratios: Array) -> Plateaus:
        """Follow a run for each ratio."""
        problems = [
            LOG.changed(T=T, sink=6.0, eta=2.0, ratio=ratio)
            for ratio in ratios.tolist()
        ]
        points = [slowest(problem) for problem in problems]
        level = problems[0].predictors["unigram"]
        rests = np.array([point.rests_at(level) for point in points], dtype=bool)
        return cls(
            T, ratios, rests, np.array([point.length for point in points])[rests]
        )

    @property
    def exponent(self) -> float:
        """Of the length in the ratio, from the two slowest first layers; NaN for fewer."""
        if len(self.lengths) < 2:
            return math.nan
        return power(self.ratios[self.rests][-2:], self.lengths[-2:])

    def words(self) -> str:
        """Say which ratios have a plateau, and how long it is."""
        if len(self.lengths) < 2:
            return f"T = {self.T}: {len(self.lengths)} of {len(self.ratios)}"
        without = (
            ""
            if self.rests.all()
            else f", none at {listed(self.ratios[~self.rests], '.2g')}"
        )
        return (
            f"T = {self.T}: {self.lengths[0]:.0f} to {self.lengths[-1]:.0f} at ratio"
            f" {listed(self.ratios[self.rests], '.2g')}{without}, exponent {self.exponent:+.2f}"
        )


@question("induction-plateau", "1 / ratio", "unigram plateau, ηt")
def which_plateau(quick: bool) -> tuple[str, list[Series]]:
    """How long is the unigram plateau?"""
    ratios = np.array([1.0, 0.01, 0.005]) if quick else np.geomspace(1.0, 1e-3, 7)
    found = [Plateaus.of(T, ratios) for T in ((20,) if quick else (20, 50, 100))]
    law = max(abs(each.exponent + 1.0) for each in found) < 0.15
    return (
        "A run counts that slows down at the unigram's loss, by a third on both sides; it is timed"
        f" between half-way points. After a uniform plateau (c = 6 at first), ratio {ratios[0]:g}"
        f" to {ratios[-1]:g}, with the exponent in the ratio at its end:"
        f" {'; '.join(each.words() for each in found)}."
        + law
        * " The first layer sets the length."
    ), [
        Series(f"T = {each.T}", 1.0 / ratios[each.rests], each.lengths)
        for each in found
    ]


def pretrained(T: int, chains: int, seed: int) -> tuple[str, list[float]]:
    """Where 100 steps on chains lead; excesses over the unigram's: of end and head, there and
    anew, and by heart.
    """
    new = LOG.changed(T=T)
    few = new.changed(chains=chains, seed=seed)
    every = new.risk()
    risk = few.risk()
    starts = (few, few.changed(match=3.0, scores=(0.0, 3.0)))
    end, head = (
        descend(each.risk(), 4.0, steps=100, progress=False).params for each in starts
    )
    # the Bayes-optimal prediction for the chains that are trained on, which has to know
    # them by heart
    table, own = (core_risk(each).law.table for each in (every, risk))
    excesses = [each.excess(params) for each in (risk, every) for params in (end, head)]
    unit = new.predictors["unigram"] - new.predictors["Bayes"]
    return few.outcome(end), [
        each / unit for each in (*excesses, mean_loss(table, own.truth).excess)
    ]


def continued(T: int, seeds: int, quick: bool) -> str:
    """Say how runs on few chains change if they go on."""
    sizes, steps = ((1,), 500) if quick else ((1, 2), 3000)
    new = LOG.changed(T=T)
    risk = new.risk()
    unit = new.predictors["unigram"] - new.predictors["Bayes"]
    early = []
    late = []
    moved = 0
    for chains in sizes:
        ends = np.empty((2, seeds))
        for seed in range(seeds):
            few = new.changed(chains=chains, seed=seed)
            run = descend(few.risk(), 4.0, steps=100, progress=False)
            further = descend(
                few.risk(), 4.0, steps=steps, method="flow", progress=False
            )
            ends[:, seed] = (
                risk.excess(run.params) / unit,
                risk.excess(further.params) / unit,
            )
            moved += few.outcome(run.params) != few.outcome(further.params)
        early.append(float(np.median(ends[0])))
        late.append(float(np.median(ends[1])))
    return (
        f"That is not the end for few chains: under the flow to ηt = {4 * steps:,} the median excess"
        f" of {seeds} draws goes from {listed(early, '.2f')} to {listed(late, '.2f')} for"
        f" {listed(sizes)} chains, and {moved} of {seeds * len(sizes)} end as another kind."
    )


def _by_heart(own: Array, head: Array, new: Array, last: Any) -> str:
    return (
        "The Bayes-optimal prediction for these chains knows them by heart: in pretraining it is"
        f" better than the head by {listed(own, '.2f')}. On new chains it has {listed(new, '.2f')},"
        f" and the head {listed(head, '.2f')}: from {last} chains on it is better there, too."
    )


@question("induction-diversity", "chains", "excess on new chains, over the unigram's")
def how_many_chains(quick: bool) -> tuple[str, list[Series]]:
    """From how many chains on does the head generalise to new ones?"""
    sizes, seeds, T = (
        ([1, 4, 16], 3, 20) if quick else ([1, 2, 4, 8, 16, 32, 64], 10, 50)
    )
    found = [pretrained(T, chains, seed) for chains in sizes for seed in range(seeds)]
    ends, excesses = (
        np.reshape(each, (len(sizes), seeds, -1)) for each in zip(*found, strict=True)
    )
    learnt = ends[..., 0] == "induction"
    lower = excesses[..., 0] < excesses[..., 1]
    _, own, end, head, new = np.median(excesses, axis=1).T
    first, last = (
        next(iter(np.extract(on, sizes)), "no number of")
        for on in (end < 0.5, new < head)
    )
    return (
        f"From {first} chains on, in the median of {seeds} draws, after 100 steps of η = 4."
        f" {continued(T, seeds, quick)} Chains {listed(sizes)}: {listed(learnt.sum(axis=1))} induction heads,"
        f" median excess on new chains {listed(end, '.2f')} of the unigram's. Runs without a head are then at"
        f" {', '.join(sorted({*ends[~learnt].flat}))}; in {listed((lower & ~learnt).sum(axis=1))} draws their"
        " loss in pretraining is below that of a head that is trained on the same chains."
        f" {_by_heart(own, head, new, last)}"
    ), curves(
        np.array(sizes, dtype=float), {"descent": end, "head": head, "by heart": new}
    )


def basin(T: int, starts: list[float], parts: int) -> tuple[dict[float, str], float]:
    """Where descent ends from each b tried, and the b from which it ends at a head, to a part of a starts' gap."""
    ends: dict[float, str] = {}

    def learns(b: float) -> bool:
        problem = InductionHeads(T=T, match=b)
        ends[b] = problem.outcome(
            descend(problem.risk(), 20.0, steps=200, progress=False).params
        )
        return ends[b] == "induction"

    first = [learns(b) for b in starts].index(True)
    fine = np.linspace(starts[first - 1], starts[first], parts + 1).tolist()
    return ends, fine[1 + bisect_left(fine[1:-1], True, key=learns)]


@question("induction-basins", "T", "b at step 0", "linear", "linear")
def which_basin(quick: bool) -> tuple[str, list[Series]]:
    """From which initial b does descent end at an induction head?"""
    lengths, count, parts = (
        ([4, 9], 5, 8) if quick else ([4, 5, 6, 7, 8, 9, 12, 16], 11, 16)
    )
    found, above = zip(
        *(basin(T, np.linspace(-1.0, 1.0, count).tolist(), parts) for T in lengths),
        strict=True,
    )
    ends = [
        (T, b, end)
        for T, tried in zip(lengths, found, strict=True)
        for b, end in tried.items()
    ]
    others = sorted({end for *_, end in ends} - {"induction"})
    parted = all(
        (b >= above[lengths.index(T)]) == (end == "induction") for T, b, end in ends
    )
    groups = {
        kind: np.transpose([(T, b) for T, b, end in ends if end == kind])
        for kind in ("induction", *others)
    }
    return (
        f"Two lags, square loss, uniform first layer, T = {listed(lengths)}: from b above"
        f" {listed(above, '.2f')}. Below, it ends at {', '.join(others)}; of {len(ends)} starts"
        f" between -1 and 1 {'none is' if parted else 'some are'} on the other side."
    ), [
        *(Series(kind, x, y, points=True) for kind, (x, y) in groups.items()),
        Series("boundary", np.array(lengths, dtype=float), np.array(above)),
    ]


def _chains(law: str, count: int, seed: int = 0) -> Array:
    """Draw chains of three states: mixtures of permutations, Dirichlet rows, lazy or sparse ones."""
    rng = np.random.default_rng(seed)
    if law == "sparse":
        return _dirichlet_chains(0.5, count, seed)
    if law == "doubly stochastic":
        permutations = np.eye(3)[list(itertools.permutations(range(3)))]
        return np.einsum("cp,pxy->cxy", rng.dirichlet(np.ones(6), count), permutations)
    rows = rng.dirichlet(np.ones(3), (count, 3))
    return rows if law == "Dirichlet" else 0.6 * np.eye(3) + 0.4 * rows


def _dirichlet_chains(alpha: float, count: int, seed: int = 0) -> Array:
    """Draw chains of three states with independent Dirichlet rows."""
    return np.random.default_rng(seed).dirichlet(np.full(3, alpha), (count, 3))


def _information(chains: Array, lags: int) -> tuple[Array, Array]:
    """Σ (J_j - ππ)(J_1 - ππ) with the joint laws J_j of symbols j apart, and the same over ππ, (lags, C) each.

    At j = 1 the latter is χ².
    """
    law = Chains(chains).start[:, :, None]
    pairs = law * law.swapaxes(1, 2)
    joint = np.stack(
        [law * np.linalg.matrix_power(chains, j) - pairs for j in range(lags)]
    )
    products = joint * joint[1]
    return products.sum(axis=(2, 3)), (products / pairs).sum(axis=(2, 3))


def endless_slopes(chains: Array, lags: int) -> Array:
    """How steeply the loss of endless sequences falls with the attention on each lag, (lags, C).

    The log loss, with a test symbol q that is uniform and independent of the sequence.
    If the first layer attends to lag j alone, the second one has the weight e^b for the
    tokens whose symbol j before is q: it predicts y with (π_y + (e^b - 1) J_qy)/(1 +
    (e^b - 1) π_q). The slope is the derivative of the loss in b at 0, by a complex
    step, which loses no digits.
    """
    k = chains.shape[1]
    law = Chains(chains).start
    step = 1e-30
    extra = np.exp(1j * step) - 1.0
    slopes = []
    for j in range(lags):
        joint = law[:, :, None] * np.linalg.matrix_power(chains, j)
        predicted = (law[:, None, :] + extra * joint) / (1.0 + extra * law[:, :, None])
        losses = -np.sum(chains * np.log(predicted), axis=(1, 2)) / k
        slopes.append(-losses.imag / step)
    return np.array(slopes)


def finite_slopes(chains: Array, lags: int, T: int) -> Array:
    """The slopes of `endless_slopes` for sequences of T symbols from the stationary law, (lags, C).

    A sink counts each symbol once more, or the log loss were infinite. With n_y symbols
    y, and N_qy of them after q with the lag j, the slope is the mean of N_qy/(n_y + 1)
    less that of N_q/(T + k). 1/(n + 1) is the integral of z^n from 0 to 1, by a Gauss
    rule that is exact.
    """
    count, k = chains.shape[:2]
    law = Chains(chains).start
    nodes, weights = np.polynomial.legendre.leggauss(T // 2 + 1)
    z = 0.5 * (1.0 + nodes)
    weights = 0.5 * weights
    unweighted = np.broadcast_to(chains[:, None], (count, len(z), k, k))
    mean = np.zeros((lags, count))
    for y in range(k):
        # each symbol y of the sequence has the factor z
        moves = unweighted * np.where(np.arange(k) == y, z[:, None], 1.0)[:, None, :]
        behind = np.ones((T + 1, count, len(z), k))
        for t in range(T - 1, 0, -1):
            behind[t] = np.einsum("czqx,czx->czq", moves, behind[t + 1])
        stationary = np.broadcast_to(law[:, None], (count, len(z), k))
        # symbols at 1 - lags to 0 are seen by the first layer, and not counted
        ahead = [stationary] * lags
        for t in range(1, T + 1):
            ahead = [*ahead[1:], np.einsum("czq,czqx->czx", ahead[-1], moves)]
            rest = np.zeros((count, len(z), k))
            rest[..., y] = behind[t][..., y]
            for j in range(lags):
                mean[j] += np.einsum(
                    "czq,czq,cq,z->c", ahead[-1 - j], rest, chains[:, :, y], weights
                )
                rest = np.einsum(
                    "czqx,czx->czq", moves if t - j >= 1 else unweighted, rest
                )
    return mean / k - T / ((T + k) * k)


@row(
    "first layer: gradient",
    NICHANI.format("gradient"),
    bound="half the error at twice T",
)
def first_gradient(quick: bool) -> Claim:
    """log loss, a test symbol that is uniform and independent of the sequence, as in the authors'
    code: at uniform attention the slope by the attention on lag j tends to
    Σ (J_j - ππ)(J_1 - ππ)/(kππ) in long sequences, with the joint laws J_j of symbols j
    apart
    """
    T = 32 if quick else 64
    lags = 3
    errors = []
    ratios = []
    for law in LAWS[:3]:
        chains = _chains(law, 8)
        limit = _information(chains, lags)[1].mean(axis=1) / 3.0
        short, long = [
            finite_slopes(chains, lags, size).mean(axis=1) for size in (T, 2 * T)
        ]
        errors.append(apart(2.0 * long - short, limit) / limit.max())
        ratios.append(apart(short, limit) / apart(long, limit))
    return Claim.of(
        max(errors) < (0.2 if quick else 0.05)
        and 1.5 < min(ratios) <= max(ratios) < 2.5,
        f"{', '.join(LAWS[:3])}: 8 chains of 3 states of each law, lags 0 to 2, T = {T}, {2 * T}; a sink"
        " counts each symbol once more",
        f"extrapolated from both T: off by {span(errors, '.1%')} of the largest; error falls by"
        f" {span(ratios, '.2f')}",
    )


@row("first layer: chi-squared information", NICHANI.format("gradient"), bound="1; all")
def chi_squared(quick: bool) -> Claim:
    """in endless sequences k times the slope of lag 1 is the χ² information of a symbol on its
    parent, for every law of chains, and no later lag has a larger slope
    """
    ratios = []
    wins = []
    for law in LAWS:
        chains = _chains(law, 200)
        slopes = endless_slopes(chains, 5)
        ratios.append(3.0 * slopes[1] / _information(chains, 2)[1][1])
        wins.append(int(np.sum(slopes[1] >= slopes[2:].max(axis=0))))
    return Claim.of(
        apart(ratios, 1.0) < 1e-9 and min(wins) == 200,
        f"200 chains of 3 states of each law: {', '.join(LAWS)}; lags 1 to 4; log loss, uniform test symbol",
        f"ratio {np.min(ratios):.6f}..{np.max(ratios):.6f}; lag 1 is ahead of lags 2 to 4 in"
        f" {sum(wins)} of {200 * len(LAWS)}",
    )


@row("first layer: the parent wins", NICHANI.format("argmax"), bound="lag 1")
def argmax(quick: bool) -> Claim:
    """averaged over chains whose rows are independent with a Dirichlet law the slope of the
    parent, lag 1, is the largest of all, that of the symbol itself, lag 0, included
    """
    means = []
    own = 0
    for alpha in (1.0, 0.5):
        chains = _dirichlet_chains(alpha, 2_000 if quick else 10_000)
        slopes = endless_slopes(chains, 4)
        means.append(slopes.mean(axis=1))
        sets = slopes[:, :800].reshape(4, 200, 4).mean(axis=2)
        own += int(np.sum(sets.argmax(axis=0) == 0))
    return Claim.of(
        all(int(mean.argmax()) == 1 for mean in means),
        f"{len(chains):,} chains of 3 states, rows Dirichlet(1) and (½); log loss, uniform test symbol",
        f"mean slopes of lags 0 to 3 {'; '.join(listed(mean, '.3f') for mean in means)}; lag 0 has the"
        f" largest one in {own} of 400 sets of only four chains",
    )


@row(
    "first layer first",
    NICHANI.format("training in stages"),
    bound="the loss of joint training",
)
def stages(quick: bool) -> Claim:
    """training the lags at a small match b and then b learns the induction head if b > 0; if b < 0 the first stage
    takes lag 0 and the second cannot mend it, while both trained together do
    """
    square = InductionHeads(T=25, edge="complete", eta=10.0, ratio=20.0)
    log = InductionHeads(
        T=50, objective="log", sink=math.log(2.0), eta=10.0, ratio=10.0
    )
    steps = (200, 300) if quick else (1500, 500)
    said = []
    holds = []
    for problem, b in ((square, 0.1), (log, 0.1), (square, -0.1)):
        alone = problem.changed(match=b, stage=steps[0], max_steps=sum(steps))
        runs = alone.simulate(), alone.changed(stage=0, ratio=1.0).simulate()
        share, (apart, joint) = (
            runs[0].observed["first"][-1, 1],
            (run.loss[-1] - run.floor for run in runs),
        )
        holds.append(
            share > 0.95 and apart < 2.0 * joint
            if b > 0.0
            else share < 0.05 and apart > 10.0 * joint
        )
        said.append(
            f"{problem.objective}, b = {b}: {share:.3f} on lag 1; {apart:.5f} and {joint:.5f}"
        )
    return Claim.of(
        all(holds),
        f"two states, uniform rows, lags 0 and 1; square loss, T = 25, and log loss, T = 50; steps {listed(steps)}",
        f"above the Bayes loss in stages and together: {'; '.join(said)}",
        "holds only for b > 0",
    )


def _settings() -> Iterable[tuple[str, TwoLayerTransformer, Risk]]:
    """Yield transformers that train (r, b), and their exact losses; a sink is held at 0."""
    rng = np.random.default_rng(1)
    for k, m, objective in ((3, 2, "square"), (2, 3, "square"), (2, 2, "log")):
        T = 8 * m
        sink = 0.0 if objective == "log" else None
        P = rng.dirichlet(np.ones(k), (8, k))
        start = np.append(np.zeros(m), 1.0)
        risk = on_chains(P, m, T, objective=objective, sink=sink).risk()
        risk = replace(risk, added=0.0, least=risk.risk.floor())
        whole = TwoLayerTransformer(
            Chains(P, window=m), T, 128, 3, start, objective=objective, sink=sink
        )
        exact = in_coordinates(
            risk, "linear", np.eye(len(risk.initial), m + 1), start=start
        )
        yield f"{k} states, {m} lags, {objective}", whole, exact


@row("two layers: the reduction", bound="|z| < 4")
def reduction(quick: bool) -> Claim:
    """a whole transformer on samples, trained in the reduction's numbers, has the exact loss at each saved step"""
    worst = []
    ends = []
    names = []
    for name, whole, exact in _settings():
        run, wanted = (
            descend(each, 4.0, steps=20 if quick else 200) for each in (whole, exact)
        )
        states = enumerate(run.states[:: 6 if quick else 3], start=1)
        found = [
            deviations(losses(whole, state, 30, 1000 * i), exact.loss(state))
            for i, state in states
        ]
        worst.append(float(np.max(found)))
        ends.append(float(np.abs(run.params - wanted.params).max()))
        names.append(f"{name}, {len(found)} steps")
    return Claim.of(
        max(worst) < 4.0,
        "; ".join(names),
        f"|z| up to {listed(worst, '.1f')}; at the end off exact descent by {listed(ends, '.2f')} in (r, b)",
    )


def departure(
    name: str, reduced: TwoLayerTransformer, exact: Risk, steps: int
) -> tuple[str, list[Series], int]:
    """When the full transformer departs from the reduced one: a sentence, two curves, the step (-1: never)."""
    whole = replace(reduced, trained="all", batch=256)
    floor = exact.floor()
    run, wanted = (descend(each, 0.5, steps=steps) for each in (whole, exact))
    kept = np.unique(np.linspace(0, len(run.t) - 1, 20).astype(int))
    t = run.t[kept]
    found = np.array([losses(whole, run.states[i], 10, 1000).mean() for i in kept])
    curve = np.interp(t, wanted.t, wanted.loss)
    share = wanted.loss[0] - floor
    off = np.abs(found - curve) > 0.1 * np.ptp(wanted.loss)
    at = int(np.argmax(off)) if off.any() else -1
    step = int(t[at]) if off.any() else -1
    first, last = (whole.outside(run.states[i]) for i in (kept[at], -1))
    return (
        (
            f"{name}: {'' if off.any() else 'not '}off by a tenth of what the reduction learns at step {t[at]},"
            f" with the distances {named(first, '.2f')}; at step {steps} {named(last, '.2f')}, and the loss"
            f" {found[-1]:.4f} instead of {curve[-1]:.4f}."
        ),
        [
            Series(f"{name}, reduction", wanted.t + 1, (wanted.loss - floor) / share),
            Series(
                f"{name}, all matrices", t + 1, (found - floor) / share, points=True
            ),
        ],
        step,
    )


@question("whole-transformer", "steps t", "loss above the least, share of the first")
def leaving(quick: bool) -> tuple[str, Iterable[Series]]:
    """Which matrix of a two-layer transformer leaves the reduced model, when, and how far?"""
    steps = 30 if quick else 400
    said, series, times = zip(
        *(departure(*each, steps) for each in _settings()), strict=True
    )
    late = [time for time in times if time >= 0]
    many = "All" if len(late) == len(said) else f"{len(late)} of {len(said)}"
    return (
        f"{many} have left it at step {max(late, default=steps)}. {' '.join(said)}",
        itertools.chain(*series),
    )


@dataclass(frozen=True, eq=False)
class NestedLogits(WithStart, Risk):
    """A reduced induction head, (α, β, ξ): each of three logits needs the one before.

    The first layer finds the parent among N by α, the second one its copy by β times
    that, and the output names one of two labels by ξ times that.
    """

    N: int
    start: Array
    trained: bool  # ξ

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Log loss and its gradient."""
        alpha, beta, xi = params
        first = 1.0 / (1.0 + (self.N - 1.0) * np.exp(-alpha))
        second = 1.0 / (1.0 + (self.N - 1.0) * np.exp(-beta * first))
        slope = -1.0 / (1.0 + np.exp(xi * second))
        pull = slope * xi * second * (1.0 - second)
        gradient = [
            pull * beta * first * (1.0 - first),
            pull * first,
            self.trained * slope * second,
        ]
        return float(np.log1p(np.exp(-xi * second))), np.array(gradient)


@row(
    "reduced induction head",
    "Reddy 2312.03002, Musat et al. 2511.01033 (reconstructed)",
    bound="2",
)
def circuits(quick: bool) -> Claim:
    """in a reduced model of three nested logits the loss falls abruptly after a plateau, which grows with the
    square of the context if the size of the output is given; if that is trained from
    0.01, with the power 3/2
    """
    lengths = (256, 1024) if quick else (1024, 4096)
    exponents = []
    drops = []
    for xi, trained in ((6.0, False), (0.01, True)):
        risks = [NestedLogits(N, np.array([0.0, 0.0, xi]), trained) for N in lengths]
        half = [
            descend(risk, 1.0, epsilon=0.5 * np.log(2.0), method="flow").t[-1]
            for risk in risks
        ]
        exponents.append(power(lengths, half))
        drops.append(
            1.0
            - descend(risks[-1], 1.0, epsilon=0.9 * np.log(2.0), method="flow").t[-1]
            / half[-1]
        )
    return Claim.of(
        abs(exponents[0] - 2.0) < 0.02
        and abs(exponents[1] - 1.5) < 0.02
        and drops[0] < 0.05,
        f"reduced: N = {listed(lengths)}, from α = β = 0, flow until half of the loss is gone",
        f"exponent {exponents[0]:.3f}, with trained output {exponents[1]:.3f}; from 90 to 50 % of ln 2 it takes"
        f" {drops[0]:.0e} and {drops[1]:.0e} of the time",
        "holds only for a given output",
    )


HEADS = Paper(
    "statistical-induction-heads",
    "The Evolution of Statistical Induction Heads: In-Context Learning Markov Chains",
    "Benjamin L. Edelman, Ezra Edelman, Surbhi Goel, Eran Malach, Nikolaos Tsilivis",
    2024,
    "arXiv:2402.11004",
    (
        Reading(
            "Phases",
            "Predictions are uniform first, then unigrams of the context, then bigrams.",
            (three_phases,),
            which_plateau,
            reconstructed="The rates, and the sink behind uniform predictions, are ours.",
        ),
        Reading(
            "Simplicity bias",
            "The unigram solution delays the bigram one: without it the head is learnt faster.",
            (useless_unigrams,),
            which_exponents,
            reconstructed="Times are compared; no rate is claimed.",
        ),
        Reading(
            "Alignment",
            "The first layer learns as far as the second layer has come to its weights.",
            (alignment,),
            reconstructed="The formula is that of two softmax layers for small b.",
        ),
        Reading(
            "Parents",
            "Nichani, Damian, Lee (arXiv:2402.14735): the first layer's gradient is the information of"
            " tokens on each other, largest for the parent.",
            (long_sequences,),
            reconstructed="The constant is that of two softmax layers on a chain.",
        ),
        Reading(
            "Short sequences",
            "Where descent ends otherwise; for three lags see docs/theory/induction-heads.md.",
            (short_sequences,),
            which_basin,
        ),
        Reading(
            "Task diversity",
            "How many chains it takes, and what it is worth to know them by heart.",
            question=how_many_chains,
        ),
    ),
    "Both papers were read in their abstracts and summaries, and the first one's code as well."
    " The authors' minimal model has linear attention in both layers, whose output is the logits"
    " of a cross entropy. Here both layers are softmax attention, and the second one mixes the"
    " symbols themselves into a prediction.",
    setting=Setting(
        "induction-heads?objective=log&ratio=0.1&t=100",
        (
            "The three phases: predictions are uniform first, then those of the "
            "unigram, and in the end nearly those of the bigram."
        ),
    ),
    credit="Induction heads (`icl.InductionHeads`)",
    entry=ModelEntry(
        data="random Markov chains",
        attention="two softmax layers",
        trained="scores of lags, and a match",
        command="icl-theory induction-heads simulate",
    ),
)
CAUSAL_STRUCTURE = Paper(
    "causal-structure",
    "How Transformers Learn Causal Structure with Gradient Descent",
    "Eshaan Nichani, Alex Damian, Jason D. Lee",
    2024,
    "arXiv:2402.14735",
    (
        Reading(
            "Gradient of the first layer",
            "At uniform attention the gradient holds the χ² information between symbols; the parent's is largest.",
            (first_gradient, chi_squared, argmax),
            reconstructed="The formula, here for layers with relative positions on Markov chains,"
            " and its limit. Log loss and the uniform test symbol are those of the authors' code.",
        ),
        Reading(
            "Training in stages",
            "The first layer learns the parent, then the second one the match: an induction head.",
            (stages, reduction),
            question=leaving,
            reconstructed="The stages, here with a fixed small match b in the first one.",
        ),
        Reading(
            "Reduced circuits",
            "Reduced models of an induction head: nested logits and an abrupt drop (Reddy, arXiv:2312.03002); time"
            " that grows with the square of the context (Musat et al., arXiv:2511.01033).",
            (circuits,),
            reconstructed="The model. The abstracts of both papers were read; their data are not in it.",
        ),
    ),
    "Abstract, summaries and the authors' code were read, the text was not. Trees and several"
    " parents are left out. Training in stages and the whole transformer have this package's"
    " model, whose query is the last symbol of the sequence. The whole transformer trains on eight"
    " chains, and may learn these chains rather than a better induction head.",
    setting=Setting(
        "induction-heads?T=50&eta=0.2&ratio=100&match=0.3&sink=0&t=20",
        (
            "The two stages: a fast first layer turns to the parent of a symbol, "
            "here the symbol before, while the match hardly moves. Then the match "
            "grows, and there is an induction head."
        ),
    ),
    credit=(
        "Two layers on Markov chains, trained in stages; the gradient of "
        "the first layer, and the information of the parent"
    ),
    related=(
        "Reduced models of an induction head: Gautam Reddy. *The "
        "mechanistic basis of data dependence and abrupt learning in an "
        "in-context classification task*. 2023. "
        "[arXiv:2312.03002](https://arxiv.org/abs/2312.03002); and Tiberiu "
        "Musat, Tiago Pimentel, Lorenzo Noci, Alessandro Stolfo, Mrinmaya "
        "Sachan, Thomas Hofmann. *On the Emergence of Induction Heads for "
        "In-Context Learning*. 2025. "
        "[arXiv:2511.01033](https://arxiv.org/abs/2511.01033)."
    ),
    entry=ModelEntry(
        data="random Markov chains",
        attention="two softmax layers, also whole",
        trained="the first layer, then the second one",
        command="icl-theory induction-heads simulate --k 3 --T 16 --stage 2",
    ),
)
CLAIMS = Claims(
    papers=(HEADS,),
    questions=(
        which_exponents,
        which_plateau,
        how_many_chains,
        which_basin,
    ),
)
