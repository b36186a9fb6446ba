"""Papers on two layers of attention: rows of the audit, questions, and pages.

The papers say how induction heads form, and how the first layer finds the parent of a
symbol. `HEADS` and `CAUSAL_STRUCTURE`, at the end, hold their statements.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.engine import Risk, descend, in_coordinates
from icl_theory.engine.pullback import core_risk
from icl_theory.engine.risk import WithStart
from icl_theory.papers.induction_heads.family import InductionHeads, dirichlet_points
from icl_theory.papers.induction_heads.minimal_statements import (
    baselines,
    counts_as_logits,
    first_signal,
    linear_first_layer,
    minimal_plateaus,
    minimal_useless_unigrams,
    odd_lags,
    published_mask,
    rates,
)
from icl_theory.papers.induction_heads.phases import Levels
from icl_theory.papers.induction_heads.plateaus import SpeedMinimum, deepest_minimum
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
    """Return ηt at which the loss is halfway between two predictors, or infinity.

    The time is infinite if the loss does not come so far in 20000 steps.
    """
    middle = 0.5 * sum(problem.predictors[name] for name in levels)
    run = descend(
        problem.risk(), problem.rate(), epsilon=middle, steps=20000, progress=False
    )
    return math.inf if run.steps is None else run.steps * problem.rate()


def signals(problem: InductionHeads) -> Array:
    """Return how steeply the loss falls with b at b = 0, for each lag, (m,).

    The signal J_l is the slope if the first layer attends to lag l alone.
    """
    risk = problem.changed(match=0.0).risk()
    m = problem.lags
    second_layer = risk.initial[m:]
    slopes = []
    # Scores of 80 leave all other lags no attention in float64.
    for scores in 80.0 * np.eye(m):
        gradient = risk.gradient(np.append(scores, second_layer))
        slopes.append(gradient[m])
    return -np.array(slopes)


def on_chains(
    transitions: Array, lags: int, T: int, **parameters: Any
) -> InductionHeads:
    """Return the model on these chains, stationary, with T tokens that see all lags."""
    return InductionHeads(
        k=transitions.shape[1],
        lags=lags,
        T=T + lags - 1,
        edge="complete",
        start="stationary",
        transitions=transitions,
        **parameters,
    )


def speed_minimum(problem: InductionHeads) -> SpeedMinimum:
    """Follow a run halfway from unigram to bigram; see `deepest_minimum`."""
    losses = problem.predictors
    levels = Levels(losses["uniform"], losses["unigram"], losses["bigram"])
    return deepest_minimum(problem.risk(), problem.rate(), levels)


@row(
    "induction heads: plateaus",
    EDELMAN.format("phases"),
    bound="at most 0.1; unigram; none",
)
def three_phases(quick: bool) -> Claim:
    """from small weights the loss rests at that of uniform predictions first, then at
    the unigram's, where its speed has a minimum, and ends at the bigram's, if the first
    layer is slow; with equal rates it does not rest at the unigram's
    """
    slow = LOG.changed(sink=8.0, ratio=0.003, eta=2.0, max_steps=20000)
    longer_steps = ""
    if quick:
        longer_steps = ", η = 8"
        slow = slow.changed(T=15, ratio=0.01, eta=8.0, max_steps=2000, method="fast")
    rest = speed_minimum(slow)
    equal = speed_minimum(slow.changed(ratio=1.0))
    run = slow.simulate()
    levels = slow.predictors
    unigram = levels["unigram"]
    excess = float(run.loss[-1]) - levels["bigram"]
    is_slow_at_first = rest.start_speed < 0.1
    phases = is_slow_at_first and rest.rests_at(unigram) and not equal.rests_at(unigram)
    return Claim.of(
        phases and run.regime == "induction" and excess < 0.01,
        f"k = 2, Beta(1, 1), T = {slow.T}, log loss, c = 8 and b = 0.01 at first, ratio"
        f" {slow.ratio} and 1{longer_steps}",
        f"speed at step 0 {rest.start_speed:.0e} of the largest; between the half-way"
        f" points it is least at the loss {rest.loss:.4f} (unigram {unigram:.4f}),"
        f" {rest.slowdown:.1f} times less than on both sides, with equal rates"
        f" {equal.slowdown:.1f}; at the end {excess:.3f} above the bigram",
    )


@row(
    "induction heads: useless unigrams",
    EDELMAN.format("simplicity bias"),
    bound="faster",
)
def useless_unigrams(quick: bool) -> Claim:
    """where unigrams say nothing (doubly stochastic chains) the bigram is learnt
    faster
    """
    p = (np.arange(32) + 0.5) / 32
    chains = np.stack([1.0 - p, p, p, 1.0 - p], axis=1).reshape(-1, 2, 2)
    problem = LOG.changed(T=30 if quick else 100)
    uniform_time = emergence(problem)
    useless_time = emergence(problem.changed(transitions=chains))
    return Claim.of(
        useless_time < uniform_time,
        f"k = 2, T = {problem.T}, log loss; both rows uniform, or 32 chains with"
        " p = P₀₁ = P₁₀",
        f"half of the way from unigram to bigram at ηt = {uniform_time:.0f}, and"
        f" {useless_time:.0f}",
    )


@identity(
    "induction heads: alignment", EDELMAN.format("alignment of layers"), allowed=1e-5
)
def alignment(quick: bool) -> Errors:
    """the first layer learns as far as the second one has: for small b, ∂L/∂a_l =
    -bα_l(J_l - Σ α_j J_j)
    """
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
        risk = problem.risk()
        by_scores = risk.gradient(risk.initial)[:m]
        yield np.abs(by_scores - expected).max() / np.abs(expected).max()
    return (
        "k = 2, 3, m = 2, 3, T = 20, four chains, random scores of the lags, b = 1e-6"
    )


@row(
    "induction heads: chi-squared",
    NICHANI.format("gradient of the first layer"),
    bound="like 1/T",
)
def long_sequences(quick: bool) -> Claim:
    """for long sequences and the log loss J_1 is E Σ π_q² χ²(P_q‖π), the information of
    the parent
    """
    P, probs = dirichlet_points(np.ones((2, 2)), 1600)
    pi = P[:, [1, 0], [0, 1]] / (P[:, 0, 1] + P[:, 1, 0])[:, None]
    chi_squared_rows = np.sum((P - pi[:, None]) ** 2 / pi[:, None], axis=2)
    limit = float(probs @ np.sum(pi**2 * chi_squared_rows, axis=1))
    lengths = np.array([25, 50] if quick else [50, 100, 200])
    problem = LOG.changed(start="stationary", points=144, sink=-30.0)
    gaps = [limit - signals(problem.changed(T=T))[1] for T in lengths.tolist()]
    exponent = power(lengths[-2:], gaps[-2:])
    return Claim.of(
        min(gaps) > 0.0 and abs(exponent + 1.0) < 0.1,
        f"k = 2, Beta(1, 1), T = {listed(lengths)}, stationary start, no sink; a"
        " quadrature rule over P",
        f"{limit:.5f}, less {listed(gaps, '.5f')}",
    )


@row("induction heads: short sequences", bound="a higher loss")
def short_sequences(quick: bool) -> Claim:
    """in short sequences b falls from 0, and descent ends at anti-induction, with a
    higher loss
    """
    lengths = (6,) if quick else (4, 5, 6, 7)
    base = InductionHeads(eta=20.0, max_steps=400, method="exact")
    from_zero = [base.changed(T=T, match=0.0).simulate() for T in lengths]
    from_one = [base.changed(T=T, match=1.0).simulate() for T in lengths]
    high = np.array([run.loss[-1] for run in from_zero])
    low = np.array([run.loss[-1] for run in from_one])
    zero_ends = {run.regime for run in from_zero}
    one_ends = {run.regime for run in from_one}
    ends_differ = zero_ends == {"anti-lag 0"} and one_ends == {"induction"}
    return Claim.of(
        ends_differ and (high > low).all(),
        f"k = 2, Beta(1, 1), square loss, two lags, T = {listed(lengths)}, from b = 0"
        " and from b = 1",
        f"{from_zero[0].regime} with {listed(high, '.4f')}; {from_one[0].regime} with"
        f" {listed(low, '.4f')}",
    )


class Range(NamedTuple):
    """Values of a parameter on which emergence may depend."""

    quick: list[Any]
    full: list[Any]


RANGES = {
    "T": Range([20, 30, 45], [12, 15, 20, 30, 50, 100, 200]),
    "concentration": Range([0.3, 1.0], [0.03, 0.1, 0.3, 1.0, 3.0, 5.0, 8.0]),
    "match": Range([0.01, 0.1, 1.0], [1e-3, 1e-2, 0.1, 0.3, 1.0, 2.0]),
    "ratio": Range([1.0, 10.0], [0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0]),
    "k": Range([2, 3], [2, 3, 4]),
    "k (other points)": Range([2, 3], [2, 3, 4]),
}


class Exponents(NamedTuple):
    """Local exponents of the emergence time at both ends of a range."""

    first: float
    last: float


@question("induction-emergence", "parameter, over its least value", "emergence, ηt")
def which_exponents(quick: bool) -> tuple[str, list[Series]]:
    """How does the time of emergence depend on T, k, the concentration, the first b,
    and the ratio of the rates?
    """
    log = LOG.changed(T=30) if quick else LOG
    # The log loss is not known for more than two symbols.
    square = InductionHeads(T=12 if quick else 24, points=8 if quick else 32, eta=8.0)
    lines = []
    words = []
    exponents: dict[str, Exponents] = {}
    for label, ranges in RANGES.items():
        name = label.split()[0]
        values = ranges.quick if quick else ranges.full
        # A second seed of the points shows by how much the points matter.
        base = square.changed(seed=int(label != "k")) if name == "k" else log
        problems = [base.changed(**{name: value}) for value in values]
        times = np.array([emergence(problem) for problem in problems])
        lines.append(Series(label, np.array(values) / values[0], times))
        first = power(values[:2], times[:2])
        last = power(values[-2:], times[-2:])
        exponents[label] = Exponents(first, last)
        words.append(
            f"{label} {first:+.2f} at {values[0]:g} to {last:+.2f} at {values[-1]:g}"
        )
    sentence = (
        f"Local exponents of ηt, two lags, log loss: {'; '.join(words)} (k: square"
        f" loss, Sobol points).{_unknown_sign(exponents)}{_small_match(exponents, log)}"
    )
    return sentence, lines


def _unknown_sign(exponents: dict[str, Exponents]) -> str:
    """Say that two seeds of the Sobol points give the exponent of k opposite signs.

    The exponent is the one at the end of the range of k. The text is empty if the signs
    agree.
    """
    signs = np.sign([exponents["k"].last, exponents["k (other points)"].last])
    if signs.prod() >= 0.0:
        return ""
    return " For k, two seeds of the points give opposite signs: the sign is not known."


def _small_match(exponents: dict[str, Exponents], log: InductionHeads) -> str:
    """Say how fast a small b grows, if T and b hardly matter for emergence.

    If they matter, the text is empty.
    """
    if max(abs(exponents["T"].last), abs(exponents["match"].first)) >= 0.1:
        return ""
    problem = log.changed(match=1e-3)
    run = descend(
        problem.risk(), problem.rate(), steps=3, method="exact", progress=False
    )
    b = run.states[:, problem.lags]
    rates = np.diff(b) / problem.rate()
    return (
        " Long sequences and small b change little: from 0.001 b grows by"
        f" {listed(rates, '.3f')} per unit of ηt in the first steps."
    )


class Plateaus(NamedTuple):
    """Unigram plateaus at one T, by the ratio of the rates."""

    T: int
    ratios: Array  # rate of the first layer over that of the second, falling, (R,)
    rests: NDArray[np.bool_]  # whether a ratio has a plateau, (R,)
    lengths: Array  # ηt of the plateaus that exist

    @classmethod
    def of(cls, T: int, ratios: Array, eta: float) -> Plateaus:
        """Follow a run for each ratio."""
        problems = [
            LOG.changed(T=T, sink=6.0, eta=eta, ratio=ratio)
            for ratio in ratios.tolist()
        ]
        points = [speed_minimum(problem) for problem in problems]
        level = problems[0].predictors["unigram"]
        rests = np.array([point.rests_at(level) for point in points], dtype=bool)
        lengths = np.array([point.length for point in points])
        return cls(T, ratios, rests, lengths[rests])

    @property
    def exponent(self) -> float:
        """Exponent of the length in the ratio; NaN for fewer than two plateaus.

        The exponent is computed from the last two plateaus. They have the smallest
        ratios, and so the slowest first layers.
        """
        if len(self.lengths) < 2:
            return math.nan
        return power(self.ratios[self.rests][-2:], self.lengths[-2:])

    def words(self) -> str:
        """Say which ratios have a plateau, and how long it is."""
        if len(self.lengths) < 2:
            return f"T = {self.T}: {len(self.lengths)} of {len(self.ratios)}"
        without = ""
        if not self.rests.all():
            without = f", none at {listed(self.ratios[~self.rests], '.2g')}"
        return (
            f"T = {self.T}: {self.lengths[0]:.0f} to {self.lengths[-1]:.0f} at ratio"
            f" {listed(self.ratios[self.rests], '.2g')}{without}, exponent"
            f" {self.exponent:+.2f}"
        )


@question("induction-plateau", "1 / ratio", "unigram plateau, ηt")
def which_plateau(quick: bool) -> tuple[str, list[Series]]:
    """How long is the unigram plateau?"""
    ratios = np.array([1.0, 0.01, 0.005]) if quick else np.geomspace(1.0, 1e-3, 7)
    lengths = (12,) if quick else (20, 50, 100)
    # Lengths are in ηt: longer steps change them little.
    eta = 8.0 if quick else 2.0
    plateaus = [Plateaus.of(T, ratios, eta) for T in lengths]
    deviation = max(abs(plateau.exponent + 1.0) for plateau in plateaus)
    law = " The first layer sets the length." if deviation < 0.15 else ""
    words = "; ".join(plateau.words() for plateau in plateaus)
    sentence = (
        "A run counts that slows down at the unigram's loss, by a third on both sides;"
        " it is timed between half-way points. After a uniform plateau (c = 6 at"
        " first),"
        f" ratio {ratios[0]:g} to {ratios[-1]:g}{' and η = 8' if quick else ''}, with"
        f" the exponent in the ratio at its end: {words}.{law}"
    )
    return sentence, [
        Series(f"T = {plateau.T}", 1.0 / ratios[plateau.rests], plateau.lengths)
        for plateau in plateaus
    ]


class Pretrained(NamedTuple):
    """The end of 100 steps on some chains, in units of the unigram's excess.

    "Head" is the end of 100 steps on the same chains from a strong induction head.
    """

    outcome: str
    end_loss: float  # excess in pretraining
    head_loss: float
    end_new: float  # excess on new chains
    head_new: float
    by_heart_new: float  # of the Bayes-optimal prediction for the chains trained on


def pretrained(T: int, chains: int, seed: int) -> Pretrained:
    """Train 100 steps on some chains, and measure the excess there and on new ones."""
    new = LOG.changed(T=T)
    few = new.changed(chains=chains, seed=seed)
    strong_head = few.changed(match=3.0, scores=(0.0, 3.0))
    end = descend(few.risk(), 4.0, steps=100, progress=False).params
    head = descend(strong_head.risk(), 4.0, steps=100, progress=False).params
    new_risk = new.risk()
    few_risk = few.risk()
    # The Bayes-optimal prediction for the chains that are trained on has to know them
    # by heart.
    by_heart = core_risk(few_risk).law.table.truth
    by_heart_excess = mean_loss(core_risk(new_risk).law.table, by_heart).excess
    unit = new.predictors["unigram"] - new.predictors["Bayes"]
    return Pretrained(
        outcome=few.outcome(end),
        end_loss=few_risk.excess(end) / unit,
        head_loss=few_risk.excess(head) / unit,
        end_new=new_risk.excess(end) / unit,
        head_new=new_risk.excess(head) / unit,
        by_heart_new=by_heart_excess / unit,
    )


def continued(T: int, seeds: int, quick: bool) -> str:
    """Say how runs on few chains change if they go on."""
    sizes = (1,) if quick else (1, 2)
    steps = 200 if quick else 3000
    new = LOG.changed(T=T)
    risk = new.risk()
    unit = new.predictors["unigram"] - new.predictors["Bayes"]
    early = []
    late = []
    moved = 0
    for chains in sizes:
        early_excess = np.empty(seeds)
        late_excess = np.empty(seeds)
        for seed in range(seeds):
            few = new.changed(chains=chains, seed=seed)
            run = descend(few.risk(), 4.0, steps=100, progress=False)
            further = descend(
                few.risk(), 4.0, steps=steps, method="flow", progress=False
            )
            early_excess[seed] = risk.excess(run.params) / unit
            late_excess[seed] = risk.excess(further.params) / unit
            moved += few.outcome(run.params) != few.outcome(further.params)
        early.append(float(np.median(early_excess)))
        late.append(float(np.median(late_excess)))
    return (
        f"That is not the end for few chains: under the flow to ηt = {4 * steps:,} the"
        f" median excess of {seeds} draws goes from {listed(early, '.2f')} to"
        f" {listed(late, '.2f')} for {listed(sizes)} chains, and {moved} of"
        f" {seeds * len(sizes)} end as another kind."
    )


def _by_heart(own: Array, head: Array, new: Array, last: Any) -> str:
    return (
        "The Bayes-optimal prediction for these chains memorises them: in"
        f" pretraining it is better than the head by {listed(own, '.2f')}. On new"
        f" chains it has {listed(new, '.2f')}, and the head {listed(head, '.2f')}: from"
        f" {last} chains on it is better there, too."
    )


def _first_size(sizes: list[int], is_reached: NDArray[np.bool_]) -> Any:
    """Return the first size at which a goal is reached, in words if there is none."""
    for size, reached in zip(sizes, is_reached, strict=True):
        if reached:
            return size
    return "no number of"


@question("induction-diversity", "chains", "excess on new chains, over the unigram's")
def how_many_chains(quick: bool) -> tuple[str, list[Series]]:
    """From how many chains on does the head generalise to new ones?"""
    sizes = [1, 4, 16] if quick else [1, 2, 4, 8, 16, 32, 64]
    seeds = 2 if quick else 10
    T = 12 if quick else 50
    shape = (len(sizes), seeds)
    runs = [pretrained(T, chains, seed) for chains in sizes for seed in range(seeds)]
    outcomes = np.reshape([run.outcome for run in runs], shape)
    end_loss = np.reshape([run.end_loss for run in runs], shape)
    head_loss = np.reshape([run.head_loss for run in runs], shape)
    end_new = np.reshape([run.end_new for run in runs], shape)
    head_new = np.reshape([run.head_new for run in runs], shape)
    by_heart_new = np.reshape([run.by_heart_new for run in runs], shape)

    has_head = outcomes == "induction"
    heads = has_head.sum(axis=1)
    is_lower = end_loss < head_loss
    lower_without_head = (is_lower & ~has_head).sum(axis=1)
    own = np.median(head_loss, axis=1)
    end = np.median(end_new, axis=1)
    head = np.median(head_new, axis=1)
    new = np.median(by_heart_new, axis=1)
    first = _first_size(sizes, end < 0.5)
    last = _first_size(sizes, new < head)
    other_ends = ", ".join(sorted(set(outcomes[~has_head].tolist())))
    sentence = (
        f"From {first} chains on, in the median of {seeds} draws, after 100 steps of"
        f" η = 4. {continued(T, seeds, quick)} Chains {listed(sizes)}: {listed(heads)}"
        f" induction heads, median excess on new chains {listed(end, '.2f')} of the"
        f" unigram's. Runs without a head are then at {other_ends}; in"
        f" {listed(lower_without_head)} draws their loss in pretraining is below that"
        " of a head that is trained on the same chains."
        f" {_by_heart(own, head, new, last)}"
    )
    abscissae = np.array(sizes, dtype=float)
    return sentence, curves(abscissae, {"descent": end, "head": head, "by heart": new})


class Basin(NamedTuple):
    """Ends of descent by the b at step 0, for one T."""

    T: int
    ends: dict[float, str]
    boundary: float  # b from which descent ends at an induction head

    def is_parted(self) -> bool:
        """Whether exactly the starts above the boundary end at an induction head."""
        return all(
            (b >= self.boundary) == (end == "induction") for b, end in self.ends.items()
        )


def basin(T: int, starts: list[float], parts: int) -> Basin:
    """Find the boundary by bisection, to a part of the distance between starts."""
    ends: dict[float, str] = {}

    def learns(b: float) -> bool:
        problem = InductionHeads(T=T, match=b)
        run = descend(problem.risk(), 20.0, steps=200, progress=False)
        ends[b] = problem.outcome(run.params)
        return ends[b] == "induction"

    first = [learns(b) for b in starts].index(True)
    fine = np.linspace(starts[first - 1], starts[first], parts + 1).tolist()
    boundary = fine[1 + bisect_left(fine[1:-1], True, key=learns)]
    return Basin(T, ends, boundary)


@question("induction-basins", "T", "b at step 0", "linear", "linear")
def which_basin(quick: bool) -> tuple[str, list[Series]]:
    """From which initial b does descent end at an induction head?"""
    lengths = [4, 9] if quick else [4, 5, 6, 7, 8, 9, 12, 16]
    count = 5 if quick else 11
    parts = 4 if quick else 16
    starts = np.linspace(-1.0, 1.0, count).tolist()
    basins = [basin(T, starts, parts) for T in lengths]
    boundaries = [basin.boundary for basin in basins]
    points: dict[str, list[tuple[int, float]]] = {"induction": []}
    for T, ends, _ in basins:
        for b, end in ends.items():
            points.setdefault(end, []).append((T, b))
    number = sum(len(kind) for kind in points.values())
    other_ends = sorted(set(points) - {"induction"})
    are_parted = all(basin.is_parted() for basin in basins)
    sentence = (
        f"Two lags, square loss, uniform first layer, T = {listed(lengths)}: from b"
        f" above {listed(boundaries, '.2f')}. Below, it ends at"
        f" {', '.join(other_ends)}; of {number} starts between -1 and 1"
        f" {'none is' if are_parted else 'some are'} on the other side."
    )
    series = []
    for end in ("induction", *other_ends):
        x, y = np.transpose(points[end])
        series.append(Series(end, x, y, points=True))
    x = np.array(lengths, dtype=float)
    series.append(Series("boundary", x, np.array(boundaries)))
    return sentence, series


def _chains(law: str, count: int, seed: int = 0) -> Array:
    """Draw chains of three states from one of `LAWS`.

    The chains are mixtures of permutations, or have Dirichlet rows, which are uniform,
    lazy or sparse.
    """
    if law == "sparse":
        return _dirichlet_chains(0.5, count, seed)
    rng = np.random.default_rng(seed)
    if law == "doubly stochastic":
        permutations = np.eye(3)[list(itertools.permutations(range(3)))]
        return np.einsum("cp,pxy->cxy", rng.dirichlet(np.ones(6), count), permutations)
    rows = rng.dirichlet(np.ones(3), (count, 3))
    if law == "Dirichlet":
        return rows
    return 0.6 * np.eye(3) + 0.4 * rows


def _dirichlet_chains(alpha: float, count: int, seed: int = 0) -> Array:
    """Draw chains of three states with independent Dirichlet rows."""
    return np.random.default_rng(seed).dirichlet(np.full(3, alpha), (count, 3))


def _information(chains: Array, lags: int) -> tuple[Array, Array]:
    """Return Σ (J_j - ππ)(J_1 - ππ), and the same sum of terms over ππ, (lags, C) each.

    J_j is the joint law of symbols j apart. At j = 1 the latter sum is χ².
    """
    law = Chains(chains).start[:, :, None]
    pairs = law * law.swapaxes(1, 2)
    joint = np.stack(
        [law * np.linalg.matrix_power(chains, j) - pairs for j in range(lags)]
    )
    products = joint * joint[1]
    return products.sum(axis=(2, 3)), (products / pairs).sum(axis=(2, 3))


def endless_slopes(chains: Array, lags: int) -> Array:
    r"""Return the slopes of the loss at zero attention, for endless sequences.

    The loss is the log loss for a test symbol q that is uniform and independent of the
    sequence. The first layer attends to lag j alone. A token then has the weight
    :math:`e^b` in the second layer if its symbol j steps earlier is q, and the weight 1
    if not. With the stationary probabilities π and the joint probability :math:`J_{qy}`
    of q and y at the lag j, the head predicts y with the probability

    .. math:: \frac{\pi_y + (e^b - 1)\,J_{qy}}{1 + (e^b - 1)\,\pi_q} .

    The slope is minus the derivative of the loss by b at b = 0.

    Parameters
    ----------
    chains : ndarray, (C, k, k)
        Transition matrices of C chains.
    lags : int
        Number of lags.

    Returns
    -------
    ndarray, (lags, C)
    """
    k = chains.shape[1]
    law = Chains(chains).start
    # A complex step: the imaginary part over the step is the derivative, without a
    # difference in which digits cancel.
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
    """Return `endless_slopes` for T symbols from the stationary law, (lags, C).

    A sink counts each symbol once more, or else the log loss would be infinite. With
    n_y symbols y, and N_qy of them after q with the lag j, the slope is the mean of
    N_qy/(n_y + 1) less that of N_q/(T + k). 1/(n + 1) is the integral of z^n from 0 to
    1, by a Gauss rule that is exact.
    """
    count, k = chains.shape[:2]
    law = Chains(chains).start
    nodes, weights = np.polynomial.legendre.leggauss(T // 2 + 1)
    z = 0.5 * (1.0 + nodes)
    weights = 0.5 * weights
    unweighted = np.broadcast_to(chains[:, None], (count, len(z), k, k))
    stationary = np.broadcast_to(law[:, None], (count, len(z), k))
    mean = np.zeros((lags, count))
    for y in range(k):
        # Each symbol y of the sequence has the factor z.
        factors = np.where(np.arange(k) == y, z[:, None], 1.0)
        moves = unweighted * factors[:, None, :]
        # Sums over the symbols after t, given the symbol at t.
        behind = np.ones((T + 1, count, len(z), k))
        for t in range(T - 1, 0, -1):
            behind[t] = np.einsum("czqx,czx->czq", moves, behind[t + 1])
        # Sums over the symbols before t. The first layer sees the symbols at 1 - lags
        # to 0, which are not counted.
        ahead = [stationary] * lags
        for t in range(1, T + 1):
            ahead = [*ahead[1:], np.einsum("czq,czqx->czx", ahead[-1], moves)]
            # From the symbol y at t go back to the symbol j steps before.
            rest = np.zeros((count, len(z), k))
            rest[..., y] = behind[t][..., y]
            for j in range(lags):
                mean[j] += np.einsum(
                    "czq,czq,cq,z->c", ahead[-1 - j], rest, chains[:, :, y], weights
                )
                is_counted = t - j >= 1
                step = moves if is_counted else unweighted
                rest = np.einsum("czqx,czx->czq", step, rest)
    return mean / k - T / ((T + k) * k)


@row(
    "first layer: gradient",
    NICHANI.format("gradient"),
    bound="half the error at twice T",
)
def first_gradient(quick: bool) -> Claim:
    """log loss, a test symbol that is uniform and independent of the sequence, as in
    the authors' code: at uniform attention the slope by the attention on lag j tends to
    Σ (J_j - ππ)(J_1 - ππ)/(kππ) in long sequences, with the joint laws J_j of symbols j
    apart
    """
    T = 32 if quick else 64
    lags = 3
    errors = []
    ratios = []
    for law in LAWS[:3]:
        chains = _chains(law, 8)
        _, chi_squared_sums = _information(chains, lags)
        limit = chi_squared_sums.mean(axis=1) / 3.0
        short = finite_slopes(chains, lags, T).mean(axis=1)
        long = finite_slopes(chains, lags, 2 * T).mean(axis=1)
        # The error falls like 1/T, so that this combination cancels it.
        extrapolated = 2.0 * long - short
        errors.append(apart(extrapolated, limit) / limit.max())
        ratios.append(apart(short, limit) / apart(long, limit))
    allowed = 0.2 if quick else 0.05
    error_halves = 1.5 < min(ratios) <= max(ratios) < 2.5
    return Claim.of(
        max(errors) < allowed and error_halves,
        f"{', '.join(LAWS[:3])}: 8 chains of 3 states of each law, lags 0 to 2,"
        f" T = {T}, {2 * T}; a sink counts each symbol once more",
        f"extrapolated from both T: off by {span(errors, '.1%')} of the largest; error"
        f" falls by {span(ratios, '.2f')}",
    )


@row("first layer: chi-squared information", NICHANI.format("gradient"), bound="1; all")
def chi_squared(quick: bool) -> Claim:
    """in endless sequences k times the slope of lag 1 is the χ² information of a symbol
    on its parent, for every law of chains, and no later lag has a larger slope
    """
    ratios = []
    wins = []
    for law in LAWS:
        chains = _chains(law, 200)
        slopes = endless_slopes(chains, 5)
        _, chi_squared_sums = _information(chains, 2)
        ratios.append(3.0 * slopes[1] / chi_squared_sums[1])
        wins.append(int(np.sum(slopes[1] >= slopes[2:].max(axis=0))))
    return Claim.of(
        apart(ratios, 1.0) < 1e-9 and min(wins) == 200,
        f"200 chains of 3 states of each law: {', '.join(LAWS)}; lags 1 to 4; log loss,"
        " uniform test symbol",
        f"ratio {np.min(ratios):.6f}..{np.max(ratios):.6f}; lag 1 is ahead of lags 2 to"
        f" 4 in {sum(wins)} of {200 * len(LAWS)}",
    )


@row("first layer: the parent wins", NICHANI.format("argmax"), bound="lag 1")
def argmax(quick: bool) -> Claim:
    """averaged over chains whose rows are independent with a Dirichlet law the slope of
    the parent, lag 1, is the largest of all, that of the symbol itself, lag 0, included
    """
    means = []
    lag_0_wins = 0
    for alpha in (1.0, 0.5):
        chains = _dirichlet_chains(alpha, 1_000 if quick else 10_000)
        slopes = endless_slopes(chains, 4)
        means.append(slopes.mean(axis=1))
        sets = slopes[:, :800].reshape(4, 200, 4).mean(axis=2)
        lag_0_wins += int(np.sum(sets.argmax(axis=0) == 0))
    listed_means = "; ".join(listed(mean, ".3f") for mean in means)
    return Claim.of(
        all(int(mean.argmax()) == 1 for mean in means),
        f"{len(chains):,} chains of 3 states, rows Dirichlet(1) and (½); log loss,"
        " uniform test symbol",
        f"mean slopes of lags 0 to 3 {listed_means}; lag 0 has the largest one in"
        f" {lag_0_wins} of 400 sets of only four chains",
    )


@row(
    "first layer first",
    NICHANI.format("training in stages"),
    bound="the loss of joint training",
)
def stages(quick: bool) -> Claim:
    """training the lags at a small match b and then b learns the induction head if b >
    0; if b < 0 the first stage takes lag 0 and the second cannot mend it, while both
    trained together do
    """
    square = InductionHeads(T=25, edge="complete", eta=10.0, ratio=20.0)
    log = InductionHeads(
        T=20 if quick else 50,
        objective="log",
        sink=math.log(2.0),
        eta=10.0,
        ratio=10.0,
    )
    steps = (100, 200) if quick else (1500, 500)
    words = []
    is_expected = []
    for problem, b in ((square, 0.1), (log, 0.1), (square, -0.1)):
        in_stages = problem.changed(match=b, stage=steps[0], max_steps=sum(steps))
        staged_run = in_stages.simulate()
        joint_run = in_stages.changed(stage=0, ratio=1.0).simulate()
        share = staged_run.observed["first"][-1, 1]
        staged = staged_run.loss[-1] - staged_run.floor
        joint = joint_run.loss[-1] - joint_run.floor
        if b > 0.0:
            is_expected.append(share > 0.95 and staged < 2.0 * joint)
        else:
            is_expected.append(share < 0.05 and staged > 10.0 * joint)
        words.append(
            f"{problem.objective}, b = {b}: {share:.3f} on lag 1; {staged:.5f} and"
            f" {joint:.5f}"
        )
    return Claim.of(
        all(is_expected),
        f"two states, uniform rows, lags 0 and 1; square loss, T = {square.T}, and log"
        f" loss, T = {log.T}; steps {listed(steps)}",
        f"above the Bayes loss in stages and together: {'; '.join(words)}",
        "holds only for b > 0",
    )


class TransformerPair(NamedTuple):
    """A transformer that trains (r, b) on samples, and the exact loss of (r, b)."""

    name: str
    sampled: TwoLayerTransformer
    exact: Risk


def _settings() -> Iterable[TransformerPair]:
    """Yield transformers with their exact losses; the score of a sink stays 0."""
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
        yield TransformerPair(f"{k} states, {m} lags, {objective}", whole, exact)


@row("two layers: the reduction", bound="|z| < 4")
def reduction(quick: bool) -> Claim:
    """a whole transformer on samples, trained in the reduction's numbers, has the exact
    loss at each saved step
    """
    largest = []
    distances = []
    names = []
    steps = 12 if quick else 200
    stride = 4 if quick else 3
    for name, sampled, exact in _settings():
        run = descend(sampled, 4.0, steps=steps)
        exact_run = descend(exact, 4.0, steps=steps)
        z_scores = []
        for i, state in enumerate(run.states[::stride], start=1):
            samples = losses(sampled, state, 10 if quick else 30, 1000 * i)
            z_scores.append(deviations(samples, exact.loss(state)))
        largest.append(float(np.max(z_scores)))
        distances.append(float(np.abs(run.params - exact_run.params).max()))
        names.append(f"{name}, {len(z_scores)} steps")
    return Claim.of(
        max(largest) < 4.0,
        "; ".join(names),
        f"|z| up to {listed(largest, '.1f')}; at the end off exact descent by"
        f" {listed(distances, '.2f')} in (r, b)",
    )


class Departure(NamedTuple):
    """When the full transformer departs from the reduced one."""

    sentence: str
    series: list[Series]
    step: int | None  # None if it does not depart


def departure(
    pair: TransformerPair, steps: int, states: int, batches: int
) -> Departure:
    """Train the full transformer, and compare its loss with that of the reduction.

    The loss at some states is the mean over batches of prompts.
    """
    name = pair.name
    floor = pair.exact.floor()
    full = replace(pair.sampled, trained="all", batch=256)
    run = descend(full, 0.5, steps=steps)
    exact_run = descend(pair.exact, 0.5, steps=steps)
    saved = np.unique(np.linspace(0, len(run.t) - 1, states).astype(int))
    t = run.t[saved]
    full_loss = np.array(
        [losses(full, run.states[i], batches, 1000).mean() for i in saved]
    )
    reduced_loss = np.interp(t, exact_run.t, exact_run.loss)
    initial_excess = exact_run.loss[0] - floor
    is_off = np.abs(full_loss - reduced_loss) > 0.1 * np.ptp(exact_run.loss)
    departs = bool(is_off.any())
    # Without a departure the sentence is on the last step.
    shown = int(np.argmax(is_off)) if departs else -1
    shown_distances = full.outside(run.states[saved[shown]])
    last_distances = full.outside(run.states[-1])
    sentence = (
        f"{name}: {'' if departs else 'not '}off by a tenth of what the reduction"
        f" learns at step {t[shown]}, with the distances"
        f" {named(shown_distances, '.2f')}; at step {steps}"
        f" {named(last_distances, '.2f')}, and the loss {full_loss[-1]:.4f} instead of"
        f" {reduced_loss[-1]:.4f}."
    )
    reduced_share = (exact_run.loss - floor) / initial_excess
    full_share = (full_loss - floor) / initial_excess
    # Axes of steps are logarithmic, so that both curves begin at step 1.
    series = [
        Series(f"{name}, reduction", exact_run.t + 1, reduced_share),
        Series(f"{name}, all matrices", t + 1, full_share, points=True),
    ]
    return Departure(sentence, series, int(t[shown]) if departs else None)


@question("whole-transformer", "steps t", "loss above the least, share of the first")
def leaving(quick: bool) -> tuple[str, Iterable[Series]]:
    """Which matrix of a two-layer transformer leaves the reduced model, when, and how
    far?
    """
    steps, states, batches = (30, 6, 4) if quick else (400, 20, 10)
    departures = [departure(pair, steps, states, batches) for pair in _settings()]
    sentences = " ".join(departure.sentence for departure in departures)
    times = [departure.step for departure in departures if departure.step is not None]
    many = (
        "All" if len(times) == len(departures) else f"{len(times)} of {len(departures)}"
    )
    return (
        f"{many} have left it at step {max(times, default=steps)}. {sentences}",
        itertools.chain.from_iterable(departure.series for departure in departures),
    )


@dataclass(frozen=True, eq=False)
class NestedLogits(WithStart, Risk):
    """A reduced induction head, (α, β, ξ): each of three logits needs the one before.

    The first layer finds the parent among N by α. The second layer finds the copy by β
    times the share of the first, and the output names one of two labels by ξ times the
    share of the second.
    """

    N: int
    start: Array
    trained: bool  # whether ξ is

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Log loss and its gradient."""
        alpha, beta, xi = params
        # Attention of the first layer on the parent, and of the second on its copy.
        first = 1.0 / (1.0 + (self.N - 1.0) * np.exp(-alpha))
        second = 1.0 / (1.0 + (self.N - 1.0) * np.exp(-beta * first))
        by_output = -1.0 / (1.0 + np.exp(xi * second))
        by_second_logit = by_output * xi * second * (1.0 - second)
        by_alpha = by_second_logit * beta * first * (1.0 - first)
        by_beta = by_second_logit * first
        by_xi = self.trained * by_output * second
        loss = float(np.log1p(np.exp(-xi * second)))
        return loss, np.array([by_alpha, by_beta, by_xi])


@row(
    "reduced induction head",
    "Reddy 2312.03002, Musat et al. 2511.01033 (reconstructed)",
    bound="2",
)
def circuits(quick: bool) -> Claim:
    """in a reduced model of three nested logits the loss falls abruptly after a
    plateau, which grows with the square of the context if the size of the output is
    given; if that is trained from 0.01, with the power 3/2
    """
    lengths = (256, 1024) if quick else (1024, 4096)

    def time_to(share: float, risk: Risk) -> float:
        """Return the time at which this share of the initial loss ln 2 remains."""
        level = share * np.log(2.0)
        return float(descend(risk, 1.0, epsilon=level, method="flow").t[-1])

    exponents = []
    drops = []
    for xi, trained in ((6.0, False), (0.01, True)):
        start = np.array([0.0, 0.0, xi])
        risks = [NestedLogits(N, start, trained) for N in lengths]
        half_times = [time_to(0.5, risk) for risk in risks]
        exponents.append(power(lengths, half_times))
        drops.append(1.0 - time_to(0.9, risks[-1]) / half_times[-1])
    fixed, free = exponents
    has_exponents = abs(fixed - 2.0) < 0.02 and abs(free - 1.5) < 0.02
    return Claim.of(
        has_exponents and drops[0] < 0.05,
        f"reduced: N = {listed(lengths)}, from α = β = 0, flow until half of the loss"
        " is gone",
        f"exponent {fixed:.3f}, with trained output {free:.3f}; from 90 to 50 % of ln 2"
        f" it takes {drops[0]:.0e} and {drops[1]:.0e} of the time",
        "holds only for a fixed output weight",
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
            "Predictions are uniform first, then unigrams of the context, then"
            " bigrams.",
            (three_phases,),
            which_plateau,
            reconstructed="The rates, and the sink behind uniform predictions, are"
            " ours.",
        ),
        Reading(
            "Simplicity bias",
            "The unigram solution delays the bigram one: without it the head is learnt"
            " faster.",
            (useless_unigrams,),
            which_exponents,
            reconstructed="Times are compared; no rate is claimed.",
        ),
        Reading(
            "Alignment",
            "The first layer learns as far as the second layer has come to its"
            " weights.",
            (alignment,),
            reconstructed="The formula is that of two softmax layers for small b.",
        ),
        Reading(
            "Parents",
            "Nichani, Damian, Lee (arXiv:2402.14735): the first layer's gradient is the"
            " information of"
            " tokens on each other, largest for the parent.",
            (long_sequences,),
            reconstructed="The constant is that of two softmax layers on a chain.",
        ),
        Reading(
            "Short sequences",
            "In short sequences descent can end elsewhere. For three lags see"
            " docs/theory/induction-heads.md.",
            (short_sequences,),
            which_basin,
        ),
        Reading(
            "Baselines",
            "Predictions by uniform, unigram and bigram counts, with one added to each"
            " count, are the levels of the loss.",
            (baselines,),
        ),
        Reading(
            "Minimal model, phases",
            "A model with linear attention into cross entropy goes through the phases,"
            " too.",
            (minimal_plateaus, counts_as_logits),
            figure="minimal_heads",
            reconstructed="The model and its rates are those of the authors' code; its"
            " mask is applied here. The statement is from their summary.",
        ),
        Reading(
            "Minimal model, first steps",
            "At first there is a signal for the second layer and none for the first,"
            " and then odd lags have larger signals than even ones.",
            (first_signal, odd_lags),
            reconstructed="Both are stated in words in the authors' summary.",
        ),
        Reading(
            "Minimal model, rates",
            "The coupling of both layers makes plateaus, and their lengths depend on"
            " the rates.",
            (rates, linear_first_layer, published_mask),
            reconstructed="The exponents are ours.",
        ),
        Reading(
            "Minimal model, simplicity bias",
            "Without useful unigrams the minimal model learns the head faster.",
            (minimal_useless_unigrams,),
            reconstructed="Times are compared; no rate is claimed.",
        ),
        Reading(
            "Task diversity",
            "How many chains training needs before the head generalises, and what"
            " memorising them gains.",
            question=how_many_chains,
        ),
    ),
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
    folder=Path(__file__).parent,
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
            "At uniform attention the gradient holds the χ² information between"
            " symbols; the parent's is largest.",
            (first_gradient, chi_squared, argmax),
            reconstructed="The formula, here for layers with relative positions on"
            " Markov chains,"
            " and its limit. Log loss and the uniform test symbol are those of the"
            " authors' code.",
        ),
        Reading(
            "Training in stages",
            "The first layer learns the parent, then the second one the match: an"
            " induction head.",
            (stages, reduction),
            question=leaving,
            reconstructed="The stages, here with a fixed small match b in the first"
            " one.",
        ),
        Reading(
            "Reduced circuits",
            "Reduced models of an induction head: nested logits and an abrupt drop"
            " (Reddy, arXiv:2312.03002); time"
            " that grows with the square of the context (Musat et al.,"
            " arXiv:2511.01033).",
            (circuits,),
            reconstructed="The model. The abstracts of both papers were read; their"
            " data are not in it.",
        ),
    ),
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
    folder=Path(__file__).parent,
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
