"""Papers on two layers of attention: rows of the audit, questions, and pages.

The papers say how induction heads form, and how the first layer finds the parent of a
symbol. `HEADS` and `CAUSAL_STRUCTURE`, at the end, hold their statements. Functions
that are decorated with `row`, `identity` or `question` test these: their docstrings are
the statements or questions, and ``quick`` asks for a smaller measurement. With
`identity` the function yields errors, and returns the measured cases in words.

The model is `InductionHeads`. A sequence has T symbols, each one of k. The first layer
attends to the lags 0, ..., m - 1 of a token with the weights α = softmax(a). The second
layer gives the token the score b × (attention on lags at which the symbol equals the
last symbol q). The sink, a token in front of the sequence, has the score c. Its value
is 1/k for each symbol. With c = ln k its weight is k, which adds one to the count of
each symbol, if a token of score 0 counts as one. A risk has the parameters (a, b), or
(a, b, c) with a sink. P is a matrix of transition probabilities, and π its
stationary law. Lag 1, the symbol before, is the parent.

Rates are compared in the time ηt, the learning rate times the number of steps. The
predictors (uniform, unigram, bigram, "Bayes") are those of `InductionHeads.predictors`,
which gives their losses by name.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.engine import Risk, Trajectory, descend, in_coordinates
from icl_theory.engine.pullback import core_risk
from icl_theory.engine.risk import WithStart
from icl_theory.papers.induction_heads.family import InductionHeads, dirichlet_points
from icl_theory.papers.induction_heads.minimal_statements import (
    LARGEST_Z,
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
from icl_theory.papers.induction_heads.phases import Levels, halfway
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
# The log loss of two states, on which most rows are measured. It needs a sink: without
# one the predicted probability of a symbol may be 0. The rate eta is a choice.
LOG = InductionHeads(objective="log", sink=0.0, eta=0.5)
# Laws of chains of three states, see `_chains`.
LAWS = ("doubly stochastic", "Dirichlet", "lazy", "sparse")
# A run stops after this number of steps if it has not reached the loss it aims at.
MAX_STEPS = 20000
# With this score a lag has all attention of the first layer in float64, if the other
# lags have the score 0: e^-80 is below rounding.
SCORE_OF_ALL_ATTENTION = 80.0


def emergence(problem: InductionHeads) -> float:
    """Return the time ηt at which the bigram emerges, or infinity.

    At this time the loss is halfway from the unigram's to the bigram's. The time is
    infinite if the loss does not come so far in 20000 steps.
    """
    run = descend(
        problem.risk(),
        problem.rate(),
        epsilon=halfway(problem.predictors["unigram"], problem.predictors["bigram"]),
        steps=MAX_STEPS,
        progress=False,
    )
    # `steps` is the first step with this loss, or None.
    return math.inf if run.steps is None else run.steps * problem.rate()


def signals(problem: InductionHeads) -> Array:
    """Return how steeply the loss falls with b at b = 0, for each lag, (m,).

    Entry l is called the signal J_l of lag l. It is minus the derivative of the loss
    with respect to b if the first layer attends to lag l alone.
    """
    risk = problem.changed(match=0.0).risk()
    m = problem.lags
    second_layer = risk.initial[m:]  # b = 0, and c if there is a sink
    slopes = []
    for scores in SCORE_OF_ALL_ATTENTION * np.eye(m):
        gradient = risk.gradient(np.append(scores, second_layer))
        # b is the first parameter after the m scores.
        slopes.append(gradient[m])
    return -np.array(slopes)


def on_chains(
    transitions: Array, lags: int, T: int, **parameters: Any
) -> InductionHeads:
    """Return the model for chains with a stationary start.

    ``transitions`` are the matrices of C chains, (C, k, k). The second layer attends to
    T tokens, each of which sees all ``lags``. ``parameters`` are other parameters of
    `InductionHeads`.
    """
    return InductionHeads(
        k=transitions.shape[1],
        lags=lags,
        # With complete edges the second layer leaves out the first lags - 1 tokens.
        T=T + lags - 1,
        edge="complete",
        start="stationary",
        transitions=transitions,
        **parameters,
    )


def speed_minimum(problem: InductionHeads) -> SpeedMinimum:
    """Train, and find where the loss falls most slowly near the unigram's loss.

    The run ends at the loss halfway from the unigram's to the bigram's. The result has
    a loss, a length in ηt, and the tests `rests_at` and `starts_at_rest` of a plateau.
    """
    predictors = problem.predictors
    levels = Levels(
        uniform=predictors["uniform"],
        unigram=predictors["unigram"],
        bigram=predictors["bigram"],
    )
    return deepest_minimum(problem.risk(), problem.rate(), levels)


@row(
    "induction heads: plateaus",
    EDELMAN.format("phases"),
    bound="at most 0.1; unigram; none",
)
def three_phases(quick: bool) -> Claim:
    """from small weights the loss rests first at the loss of uniform predictions, and
    then at the unigram's, where it falls most slowly, and ends at the bigram's, if the
    first layer is slow; with equal rates it does not rest at the unigram's
    """
    # With c = 8 nearly all attention is on the sink at first, so that predictions are
    # uniform. ``ratio`` is the rate of the first layer over the rate of the second one.
    slow_first_layer = LOG.changed(sink=8.0, ratio=0.003, eta=2.0, max_steps=MAX_STEPS)
    rate_in_words = ""
    if quick:
        rate_in_words = ", η = 8"
        slow_first_layer = slow_first_layer.changed(
            T=15, ratio=0.01, eta=8.0, max_steps=1200
        )
    minimum = speed_minimum(slow_first_layer)
    minimum_of_equal_rates = speed_minimum(slow_first_layer.changed(ratio=1.0))
    run = slow_first_layer.simulate()
    unigram = slow_first_layer.predictors["unigram"]
    excess = float(run.loss[-1]) - slow_first_layer.predictors["bigram"]
    rests_at_unigram = minimum.rests_at(unigram)
    equal_rates_rest = minimum_of_equal_rates.rests_at(unigram)
    has_phases = minimum.starts_at_rest() and rests_at_unigram and not equal_rates_rest
    # At the end the loss is 0.004 above the bigram's loss. The unigram's loss is 0.07
    # above the bigram's.
    ends_at_bigram = run.regime == "induction" and excess < 0.01
    return Claim.of(
        has_phases and ends_at_bigram,
        f"k = 2, Beta(1, 1), T = {slow_first_layer.T}, log loss, c = 8 and b = 0.01 at"
        f" first, ratio {slow_first_layer.ratio} and 1{rate_in_words}",
        f"speed at step 0 {minimum.start_speed:.0e} of the largest; between the"
        f" half-way points it is least at the loss {minimum.loss:.4f} (unigram"
        f" {unigram:.4f}), {minimum.slowdown:.1f} times less than on both sides, with"
        f" equal rates {minimum_of_equal_rates.slowdown:.1f}; at the end {excess:.3f}"
        " above the bigram",
    )


@row(
    "induction heads: useless unigrams",
    EDELMAN.format("simplicity bias"),
    bound="faster",
)
def useless_unigrams(quick: bool) -> Claim:
    """if unigrams say nothing (doubly stochastic chains), the bigram is learnt faster
    than on other chains
    """
    # A doubly stochastic chain of two states changes the symbol with a probability p
    # that does not depend on the symbol. These 32 values of p, midpoints of equal cells
    # in (0, 1), stand for a uniform p. The chains of ``problem`` also have uniform
    # rows, but independent ones.
    p = (np.arange(32) + 0.5) / 32
    doubly_stochastic = np.stack([1.0 - p, p, p, 1.0 - p], axis=1).reshape(-1, 2, 2)
    problem = LOG.changed(T=30 if quick else 100)
    time = emergence(problem)
    time_without_unigrams = emergence(problem.changed(transitions=doubly_stochastic))
    return Claim.of(
        time_without_unigrams < time,
        f"k = 2, T = {problem.T}, log loss; both rows uniform, or 32 chains with"
        " p = P₀₁ = P₁₀",
        f"half of the way from unigram to bigram at ηt = {time:.0f}, and"
        f" {time_without_unigrams:.0f}",
    )


@identity(
    "induction heads: alignment", EDELMAN.format("alignment of layers"), allowed=1e-5
)
def alignment(quick: bool) -> Errors:
    """the first layer learns at a speed in proportion to b: for small b, ∂L/∂a_l =
    -bα_l(J_l - Σ α_j J_j), with J_l = -∂L/∂b at b = 0 for a first layer that attends to
    lag l alone
    """
    rng = np.random.default_rng(seed=1)
    b = 1e-6  # the formula has a relative error of this order
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
        scores_gradient = risk.gradient(risk.initial)[:m]
        yield np.abs(scores_gradient - expected).max() / np.abs(expected).max()
    return (
        "k = 2, 3, m = 2, 3, T = 20, four chains, random scores of the lags, b = 1e-6"
    )


@row(
    "induction heads: chi-squared",
    NICHANI.format("gradient of the first layer"),
    bound="like 1/T",
)
def long_sequences(quick: bool) -> Claim:
    """in long sequences J_1 of the log loss tends to E Σ π_q² χ²(P_q‖π), the
    information of a symbol on its parent
    """
    # C = 1600 chains with their probabilities: (C, 2, 2) and (C,)
    P, probs = dirichlet_points(np.ones((2, 2)), count=1600)
    # The stationary law of two states is proportional to (P₁₀, P₀₁).
    pi = P[:, [1, 0], [0, 1]] / (P[:, 0, 1] + P[:, 1, 0])[:, None]  # (C, 2)
    # χ²(P_q‖π) = Σ_y (P_qy - π_y)²/π_y for each chain and row q, (C, 2)
    chi_squared_rows = np.sum((P - pi[:, None]) ** 2 / pi[:, None], axis=2)
    limit = float(probs @ np.sum(pi**2 * chi_squared_rows, axis=1))
    lengths = np.array([25, 50] if quick else [50, 100, 200])
    # The log loss needs a sink. With the score -30 the sink's share of the attention is
    # below e^-30, or 1e-13. With 12² chains the signals have an error of 1.5e-5.
    problem = LOG.changed(start="stationary", points=144, sink=-30.0)
    gaps = []  # by how much the signals J_1 are below the limit
    for T in lengths.tolist():
        _, signal_of_lag_1 = signals(problem.changed(T=T))
        gaps.append(limit - signal_of_lag_1)
    exponent = power(lengths[-2:], gaps[-2:])
    # The gaps fall like 1/T as T grows. At the largest two lengths the exponent differs
    # from -1 by 3 %; the tolerance of 10 % is loose.
    falls_like_inverse_length = abs(exponent + 1.0) < 0.1
    return Claim.of(
        min(gaps) > 0.0 and falls_like_inverse_length,
        f"k = 2, Beta(1, 1), T = {listed(lengths)}, stationary start, no sink; a"
        " quadrature rule over P",
        f"{limit:.5f}, less {listed(gaps, '.5f')}",
    )


@row("induction heads: short sequences", bound="a higher loss")
def short_sequences(quick: bool) -> Claim:
    """in short sequences b falls from 0, and descent ends at anti-lag 0, with a
    higher loss than from b = 1
    """
    lengths = (6,) if quick else (4, 5, 6, 7)
    # The rate is a choice: large, so that 400 steps bring a run near its limit.
    base = InductionHeads(eta=20.0, max_steps=400, method="exact")
    runs_from_0 = [base.changed(T=T, match=0.0).simulate() for T in lengths]
    runs_from_1 = [base.changed(T=T, match=1.0).simulate() for T in lengths]
    losses_from_0 = np.array([run.loss[-1] for run in runs_from_0])
    losses_from_1 = np.array([run.loss[-1] for run in runs_from_1])
    # The regime is what a run has learnt: "anti-lag 0" means that b is negative and
    # that lag 0 has the largest score.
    ends_from_0 = {run.regime for run in runs_from_0}
    ends_from_1 = {run.regime for run in runs_from_1}
    ends_differ = ends_from_0 == {"anti-lag 0"} and ends_from_1 == {"induction"}
    return Claim.of(
        ends_differ and (losses_from_0 > losses_from_1).all(),
        f"k = 2, Beta(1, 1), square loss, two lags, T = {listed(lengths)}, from b = 0"
        " and from b = 1",
        f"{runs_from_0[0].regime} with {listed(losses_from_0, '.4f')};"
        f" {runs_from_1[0].regime} with {listed(losses_from_1, '.4f')}",
    )


class Range(NamedTuple):
    """Values of a parameter on which emergence may depend."""

    label: str
    parameter: str  # its name in `InductionHeads`
    quick: list[Any]  # its values in the quick audit
    full: list[Any]  # its values in the full audit
    # Seed of the Sobol points, the chains that approximate the law of all chains.
    seed: int = 0


RANGES = (
    Range("T", "T", [20, 45], [12, 15, 20, 30, 50, 100, 200]),
    Range(
        "concentration",
        "concentration",
        [0.3, 1.0],
        [0.03, 0.1, 0.3, 1.0, 3.0, 5.0, 8.0],
    ),
    Range("match", "match", [0.01, 1.0], [1e-3, 1e-2, 0.1, 0.3, 1.0, 2.0]),
    Range("ratio", "ratio", [1.0, 10.0], [0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0]),
    Range("k", "k", [2, 3], [2, 3, 4]),
    # A second seed shows by how much the result for k depends on the Sobol points.
    Range("k (other points)", "k", [2, 3], [2, 3, 4], seed=1),
)


class Exponents(NamedTuple):
    """Local exponents of the emergence time, as a power of the varied parameter."""

    first: float  # from the first two values of the parameter
    last: float  # from the last two values of the parameter


@question("induction-emergence", "parameter, over its least value", "emergence, ηt")
def which_exponents(quick: bool) -> tuple[str, list[Series]]:
    """How does the time of emergence depend on T, k, the concentration, the first b,
    and the ratio of the rates?
    """
    # Times are in ηt, so that longer steps change them little.
    log_problem = LOG.changed(T=30, eta=1.0) if quick else LOG
    # The log loss is known for two and three symbols alone, so k is varied with the
    # square loss.
    square_problem = InductionHeads(
        T=12 if quick else 24, points=8 if quick else 32, eta=8.0
    )
    series = []
    phrases = []
    exponents: dict[str, Exponents] = {}
    for varied in RANGES:
        values = varied.quick if quick else varied.full
        base = log_problem
        if varied.parameter == "k":
            base = square_problem.changed(seed=varied.seed)
        problems = [base.changed(**{varied.parameter: value}) for value in values]
        times = np.array([emergence(problem) for problem in problems])
        series.append(Series(varied.label, np.array(values) / values[0], times))
        first = power(values[:2], times[:2])
        last = power(values[-2:], times[-2:])
        exponents[varied.label] = Exponents(first, last)
        phrases.append(
            f"{varied.label} {first:+.2f} at {values[0]:g} to {last:+.2f} at"
            f" {values[-1]:g}"
        )
    sentence = (
        f"Local exponents of ηt, two lags, log loss: {'; '.join(phrases)} (k: square"
        f" loss, Sobol points).{_unknown_sign(exponents)}"
        f"{_small_match(exponents, log_problem)}"
    )
    return sentence, series


def _unknown_sign(exponents: dict[str, Exponents]) -> str:
    """Say so if two seeds of the Sobol points give the exponent of k opposite signs.

    The exponent is taken at the end of the range of k. If both seeds give this exponent
    the same sign, the text is empty.
    """
    signs = np.sign([exponents["k"].last, exponents["k (other points)"].last])
    are_opposite = signs.prod() < 0.0
    if not are_opposite:
        return ""
    return " For k, two seeds of the points give opposite signs: the sign is not known."


def _small_match(exponents: dict[str, Exponents], log_problem: InductionHeads) -> str:
    """Say how fast a small b grows, if long T and small b hardly matter for emergence.

    If they matter, the text is empty.
    """
    exponent_of_long_T = abs(exponents["T"].last)
    exponent_of_small_b = abs(exponents["match"].first)
    # "Little" in the text: the size of the exponent is below 0.1, so that a factor 2 in
    # the parameter changes the time by less than 8 %.
    if max(exponent_of_long_T, exponent_of_small_b) >= 0.1:
        return ""
    problem = log_problem.changed(match=1e-3)
    run = descend(
        problem.risk(), problem.rate(), steps=3, method="exact", progress=False
    )
    # A run of three steps saves all its states. b comes after the scores of the lags.
    b = run.states[:, problem.lags]
    rates_of_b = np.diff(b) / problem.rate()
    return (
        " Long sequences and small b change little: from 0.001 b grows by"
        f" {listed(rates_of_b, '.3f')} per unit of ηt in the first steps."
    )


class Plateaus(NamedTuple):
    """Unigram plateaus of sequences of T symbols, for R ratios of the rates."""

    T: int
    # Rates of the first layer, divided by the rate of the second one, (R,). They are
    # sorted, with the largest first.
    ratios: Array
    has_plateau: NDArray[np.bool_]  # whether the run of a ratio has a plateau, (R,)
    lengths: Array  # durations ηt of the plateaus, for the ratios that have one

    @classmethod
    def of(cls, T: int, ratios: Array, eta: float) -> Plateaus:
        """Follow a run for each ratio."""
        # With c = 6 at first, most of the attention is on the sink, so that a uniform
        # plateau comes before the unigram plateau.
        problems = [
            LOG.changed(T=T, sink=6.0, eta=eta, ratio=ratio)
            for ratio in ratios.tolist()
        ]
        minima = [speed_minimum(problem) for problem in problems]
        # The unigram's loss does not depend on training, so it is the same level for
        # all ratios.
        level = problems[0].predictors["unigram"]
        has_plateau = np.array([minimum.rests_at(level) for minimum in minima])
        lengths = np.array([minimum.length for minimum in minima])
        return cls(T, ratios, has_plateau, lengths[has_plateau])

    @property
    def ratios_with_plateau(self) -> Array:
        """The ratios whose runs have a plateau."""
        return self.ratios[self.has_plateau]

    @property
    def exponent(self) -> float:
        """Exponent of the length as a power of the ratio.

        The exponent is computed from the last two plateaus, which have the smallest
        ratios, and so the slowest first layers. It is NaN if there are fewer than two
        plateaus.
        """
        if len(self.lengths) < 2:
            return math.nan
        return power(self.ratios_with_plateau[-2:], self.lengths[-2:])

    def words(self) -> str:
        """Say which ratios have a plateau, and how long the plateaus are.

        With fewer than two plateaus, say only how many there are.
        """
        if len(self.lengths) < 2:
            return f"T = {self.T}: {len(self.lengths)} of {len(self.ratios)}"
        exceptions = ""
        if not self.has_plateau.all():
            exceptions = f", none at {listed(self.ratios[~self.has_plateau], '.2g')}"
        return (
            f"T = {self.T}: {self.lengths[0]:.0f} to {self.lengths[-1]:.0f} at ratio"
            f" {listed(self.ratios_with_plateau, '.2g')}{exceptions}, exponent"
            f" {self.exponent:+.2f}"
        )


@question("induction-plateau", "1 / ratio", "unigram plateau, ηt")
def which_plateau(quick: bool) -> tuple[str, list[Series]]:
    """How long is the unigram plateau?"""
    ratios = np.array([1.0, 0.01, 0.005]) if quick else np.geomspace(1.0, 1e-3, 7)
    sequence_lengths = (12,) if quick else (20, 50, 100)
    # The durations of plateaus are in ηt, so that longer steps change them little.
    eta = 8.0 if quick else 2.0
    rate_in_words = " and η = 8" if quick else ""
    plateaus = [Plateaus.of(T, ratios, eta) for T in sequence_lengths]
    # If the first layer sets the duration of a plateau, this duration is inversely
    # proportional to the rate of the layer. An exponent within 0.15 of -1 counts as
    # inverse proportionality. With fewer than two plateaus the exponent is NaN, and the
    # comparison is false.
    first_layer_sets_it = all(abs(of_T.exponent + 1.0) < 0.15 for of_T in plateaus)
    conclusion = " The first layer sets the length." if first_layer_sets_it else ""
    phrases = "; ".join(of_T.words() for of_T in plateaus)
    sentence = (
        "A plateau is a slowdown at the unigram's loss, by a third or more on both"
        " sides; its length is the time between the half-way points. After a uniform"
        " plateau (c = 6 at first),"
        f" ratio {ratios[0]:g} to {ratios[-1]:g}{rate_in_words}, and the exponent of"
        f" the length in the ratio, at the smallest ratios: {phrases}.{conclusion}"
    )
    return sentence, [
        Series(f"T = {of_T.T}", 1.0 / of_T.ratios_with_plateau, of_T.lengths)
        for of_T in plateaus
    ]


class Pretrained(NamedTuple):
    """What a run on some chains has learnt, and excess losses of three predictions.

    Two of them are models after 100 steps on these chains, and the third one is the
    Bayes-optimal prediction for these chains. Names end in the chains on which the loss
    is measured: "own" are the chains that were trained on, and "new" is the whole law
    of chains. An excess is a loss above the Bayes loss of the chains on which the loss
    is measured. Its unit is the excess of the unigram on the whole law.
    """

    outcome: str  # what the run has learnt, in a word
    # Excess of the model at the end of the run.
    end_own: float
    end_new: float
    # Excess of a model that was trained on the same chains, but was a strong induction
    # head at step 0.
    head_own: float
    head_new: float
    # Excess of the Bayes-optimal prediction for the chains that were trained on. On
    # these chains it has none.
    by_heart_new: float


# Learning rate and number of steps of pretraining. Both are choices.
PRETRAINING_RATE = 4.0
PRETRAINING_STEPS = 100


def unigram_excess(problem: InductionHeads) -> float:
    """Return the loss of the unigram above the Bayes loss."""
    return problem.predictors["unigram"] - problem.predictors["Bayes"]


def pretrained_params(problem: InductionHeads) -> Array:
    """Return the parameters after 100 steps of gradient descent at the rate 4."""
    run = descend(
        problem.risk(), PRETRAINING_RATE, steps=PRETRAINING_STEPS, progress=False
    )
    return run.params


def pretrained(T: int, chains: int, seed: int) -> Pretrained:
    """Train on a number of chains, and measure losses on them and on all chains."""
    all_chains = LOG.changed(T=T)
    own_chains = all_chains.changed(chains=chains, seed=seed)
    strong_head = own_chains.changed(match=3.0, scores=(0.0, 3.0))
    end_params = pretrained_params(own_chains)
    head_params = pretrained_params(strong_head)
    new_risk = all_chains.risk()
    own_risk = own_chains.risk()
    # The Bayes-optimal prediction for the chains that are trained on has to know these
    # chains by heart. The core of the risk has a table with a row for each possible set
    # of counts of pairs of symbols in a sequence. The array ``truth`` of the table has
    # the laws of the next symbol, given these counts.
    by_heart = core_risk(own_risk).law.table.truth
    # The table for the whole law has the same counts in the same rows.
    by_heart_excess = mean_loss(core_risk(new_risk).law.table, by_heart).excess
    unit = unigram_excess(all_chains)
    return Pretrained(
        outcome=own_chains.outcome(end_params),
        end_own=own_risk.excess(end_params) / unit,
        end_new=new_risk.excess(end_params) / unit,
        head_own=own_risk.excess(head_params) / unit,
        head_new=new_risk.excess(head_params) / unit,
        by_heart_new=by_heart_excess / unit,
    )


class Continued(NamedTuple):
    """Excess losses of models that were trained on a few chains, for two durations.

    The excesses are measured on the whole law of chains. The unit is the excess of the
    unigram. Medians are over the draws of chains.
    """

    early: float  # median after 100 steps of descent
    late: float  # median at the end of a longer gradient flow
    changed_outcomes: int  # number of draws whose early and late outcomes differ


def continued(T: int, chains: int, seeds: int, steps: int) -> Continued:
    """Compare 100 steps of descent on some chains with a longer gradient flow.

    The flow has the same start, and ends at the time ηt of ``steps`` steps of descent.
    The chains are drawn once for each of a number of ``seeds``.
    """
    all_chains = LOG.changed(T=T)
    new_risk = all_chains.risk()
    unit = unigram_excess(all_chains)
    early = np.empty(seeds)
    late = np.empty(seeds)
    changed_outcomes = 0
    for seed in range(seeds):
        own_chains = all_chains.changed(chains=chains, seed=seed)
        early_params = pretrained_params(own_chains)
        flow = descend(
            own_chains.risk(),
            PRETRAINING_RATE,
            steps=steps,
            method="flow",
            progress=False,
        )
        late_params = flow.params
        early[seed] = new_risk.excess(early_params) / unit
        late[seed] = new_risk.excess(late_params) / unit
        if own_chains.outcome(early_params) != own_chains.outcome(late_params):
            changed_outcomes += 1
    return Continued(float(np.median(early)), float(np.median(late)), changed_outcomes)


def _continued_words(T: int, quick: bool) -> str:
    """Say how runs on few chains change if they go on beyond 100 steps.

    In the quick audit the flow ends at the time of 100 steps.
    """
    seeds = 1 if quick else 10
    sizes = (1,) if quick else (1, 2)  # numbers of chains
    steps = 100 if quick else 3000
    time = round(PRETRAINING_RATE * steps)
    results = [continued(T, chains, seeds, steps) for chains in sizes]
    early = listed([result.early for result in results], ".2f")
    late = listed([result.late for result in results], ".2f")
    changed_outcomes = sum(result.changed_outcomes for result in results)
    return (
        f"That is not the end for few chains: under the flow to ηt = {time:,} the"
        f" median excess of {seeds} draws goes from {early} to {late} for"
        f" {listed(sizes)} chains, and {changed_outcomes} of {seeds * len(sizes)} end"
        " as another kind."
    )


def _first_size(sizes: list[int], is_reached: NDArray[np.bool_]) -> str:
    """Return the first number of chains at which a goal is reached.

    If it is reached at none of ``sizes``, return "no number of". The word "chains"
    follows the result in the answer of `how_many_chains`.
    """
    for size, reached in zip(sizes, is_reached, strict=True):
        if reached:
            return str(size)
    return "no number of"


class _Outcomes(NamedTuple):
    """What the runs on each number of chains have learnt; arrays are (sizes,)."""

    heads: NDArray[np.intp]  # number of runs with an induction head
    # Number of runs without a head that have a lower loss on their own chains than a
    # head that was trained on the same chains.
    below_without_head: NDArray[np.intp]
    other_ends: list[str]  # what runs without a head have learnt, in words


def _count_outcomes(
    words: NDArray[np.str_], end_own: Array, head_own: Array
) -> _Outcomes:
    """Count the runs with a head, and the runs without one that beat a head.

    The arguments are (sizes, seeds): what each run has learnt, in a word, and the
    losses of `Pretrained`.
    """
    has_head = words == "induction"
    is_below_head = end_own < head_own
    return _Outcomes(
        heads=has_head.sum(axis=1),
        below_without_head=(is_below_head & ~has_head).sum(axis=1),
        other_ends=sorted(set(words[~has_head].tolist())),
    )


@question("induction-diversity", "chains", "excess on new chains, over the unigram's")
def how_many_chains(quick: bool) -> tuple[str, list[Series]]:
    """From how many chains on does the head generalise to new ones?"""
    sizes = [1, 16] if quick else [1, 2, 4, 8, 16, 32, 64]  # numbers of chains
    seeds = 2 if quick else 10
    T = 10 if quick else 50
    runs = [pretrained(T, chains, seed) for chains in sizes for seed in range(seeds)]

    def by_size(run_values: list[Any]) -> NDArray[Any]:
        """Return the values of all runs with a row for each size, (sizes, seeds)."""
        return np.reshape(run_values, (len(sizes), seeds))

    def medians(run_values: list[float]) -> Array:
        """Return medians over the seeds, (sizes,)."""
        return np.asarray(np.median(by_size(run_values), axis=1))

    learnt = _count_outcomes(
        by_size([run.outcome for run in runs]),
        end_own=by_size([run.end_own for run in runs]),
        head_own=by_size([run.head_own for run in runs]),
    )
    # The Bayes-optimal prediction has no excess on its own chains, so the head's excess
    # on these chains is also the advantage of this prediction over the head.
    head_own_median = medians([run.head_own for run in runs])
    end_new = medians([run.end_new for run in runs])
    head_new = medians([run.head_new for run in runs])
    by_heart_new = medians([run.by_heart_new for run in runs])

    # A model with less than half of the unigram's excess on new chains generalises.
    generalising_size = _first_size(sizes, end_new < 0.5)
    by_heart_size = _first_size(sizes, by_heart_new < head_new)
    sentence = (
        f"From {generalising_size} chains on, in the median of {seeds} draws, after 100"
        f" steps of η = 4. {_continued_words(T, quick)} Chains {listed(sizes)}:"
        f" {listed(learnt.heads)} induction heads, median excess on new chains"
        f" {listed(end_new, '.2f')} of the unigram's. Runs without a head are then at"
        f" {', '.join(learnt.other_ends)}; in {listed(learnt.below_without_head)} draws"
        " their loss in"
        " pretraining is below that of a head that is trained on the same chains. The"
        " Bayes-optimal prediction for these chains memorises them: in pretraining it"
        f" is better than the head by {listed(head_own_median, '.2f')}. On new chains"
        f" it has {listed(by_heart_new, '.2f')}, and the head"
        f" {listed(head_new, '.2f')}: from {by_heart_size} chains on it is better"
        " there, too."
    )
    ordinates = {"descent": end_new, "head": head_new, "by heart": by_heart_new}
    return sentence, curves(np.array(sizes, dtype=float), ordinates)


class Basin(NamedTuple):
    """What descent learns for one T, as it depends on b at step 0."""

    T: int
    ends: dict[float, str]  # by b at step 0: what the run has learnt, in a word
    boundary: float  # least b at step 0 from which descent ends at an induction head

    def is_separated(self) -> bool:
        """Whether exactly the starts from the boundary on end at an induction head."""
        return all(
            (b >= self.boundary) == (end == "induction") for b, end in self.ends.items()
        )


def basin(T: int, starts: list[float], parts: int, steps: int) -> Basin:
    """Find the least b at step 0 from which descent learns an induction head.

    ``starts`` are coarse values of b in rising order. From the first of them descent
    must not learn the head. The interval in which the outcome changes is divided into
    ``parts``, and the boundary is the upper end of one of these.
    """
    ends: dict[float, str] = {}

    def learns_head(b: float) -> bool:
        """Descend from this b, note what is learnt, and say whether it is the head."""
        problem = InductionHeads(T=T, match=b)
        # The rate is a choice: large, so that a run comes far in these steps.
        run = descend(problem.risk(), eta=20.0, steps=steps, progress=False)
        ends[b] = problem.outcome(run.params)
        return ends[b] == "induction"

    learns_from_start = [learns_head(b) for b in starts]
    first_index = learns_from_start.index(True)
    last_without_head = starts[first_index - 1]
    first_with_head = starts[first_index]
    points = np.linspace(last_without_head, first_with_head, parts + 1)
    # The first point is ``last_without_head``, from which a run has been made.
    _, *fine_starts = points.tolist()
    return Basin(T, ends, boundary=_first_true(learns_head, fine_starts))


def _first_true(test: Callable[[float], bool], values: list[float]) -> float:
    """Return the first value that passes a test, by bisection.

    The last value must pass. If a value passes, all values after it are taken to pass.
    """
    low = 0
    high = len(values) - 1
    while low < high:
        middle = (low + high) // 2
        if test(values[middle]):
            high = middle
        else:
            low = middle + 1
    return values[low]


@question("induction-basins", "T", "b at step 0", "linear", "linear")
def which_basin(quick: bool) -> tuple[str, list[Series]]:
    """From which initial b does descent end at an induction head?"""
    lengths = [4, 9] if quick else [4, 5, 6, 7, 8, 9, 12, 16]
    start_count = 5 if quick else 11
    parts = 2 if quick else 16
    steps = 100 if quick else 200
    starts = np.linspace(-1.0, 1.0, start_count).tolist()
    basins = [basin(T, starts, parts, steps) for T in lengths]
    boundaries = [of_T.boundary for of_T in basins]
    # The points (T, b) of the figure, by what their runs have learnt.
    points: dict[str, list[tuple[int, float]]] = {"induction": []}
    for of_T in basins:
        for b, end in of_T.ends.items():
            points.setdefault(end, []).append((of_T.T, b))
    run_count = sum(len(of_T.ends) for of_T in basins)
    other_ends = sorted(set(points) - {"induction"})
    are_separated = all(of_T.is_separated() for of_T in basins)
    # The exceptions are starts below the boundary that learn the head, and starts above
    # it that do not.
    exceptions = "none is" if are_separated else "some are"
    sentence = (
        f"Two lags, square loss, uniform first layer, T = {listed(lengths)}: from b"
        f" above {listed(boundaries, '.2f')}. Below, it ends at"
        f" {', '.join(other_ends)}; of {run_count} starts between -1 and 1"
        f" {exceptions} on the other side."
    )
    series = []
    for end in ("induction", *other_ends):
        T_of_points, b_of_points = np.transpose(points[end])
        series.append(Series(end, T_of_points, b_of_points, points=True))
    series.append(
        Series("boundary", np.array(lengths, dtype=float), np.array(boundaries))
    )
    return sentence, series


def _chains(law: str, count: int, seed: int = 0) -> Array:
    """Draw chains of three states from one of `LAWS`, (count, 3, 3).

    "doubly stochastic" chains are random mixtures of the six permutations. The rows of
    "Dirichlet" chains have the uniform law, and the rows of "sparse" chains have the
    Dirichlet law with the concentration ½. "lazy" chains stay in their state with the
    probability 0.6, and otherwise take a step of a Dirichlet chain.
    """
    if law == "sparse":
        return _dirichlet_chains(0.5, count, seed)
    rng = np.random.default_rng(seed)
    if law == "doubly stochastic":
        permutations = np.eye(3)[list(itertools.permutations(range(3)))]  # (6, 3, 3)
        weights = rng.dirichlet(np.ones(6), count)
        return np.einsum("cp,pxy->cxy", weights, permutations)
    rows = rng.dirichlet(np.ones(3), (count, 3))
    if law == "Dirichlet":
        return rows
    return 0.6 * np.eye(3) + 0.4 * rows


def _dirichlet_chains(alpha: float, count: int, seed: int = 0) -> Array:
    """Draw chains of three states with independent Dirichlet rows, (count, 3, 3)."""
    return np.random.default_rng(seed).dirichlet(np.full(3, alpha), (count, 3))


class Information(NamedTuple):
    """Information of a symbol on the symbol j steps later, for each lag j and chain.

    J_j is the joint law of two symbols that are j steps apart (and not a signal, as in
    `signals`), and ππ is the product of their laws. The sums are over all pairs (q, y)
    of symbols. There are C chains.
    """

    products: Array  # Σ (J_j - ππ)(J_1 - ππ), (lags, C)
    # Σ (J_j - ππ)(J_1 - ππ)/ππ, (lags, C). For j = 1 it is the χ² information.
    chi_squared: Array


def _information(chains: Array, lags: int) -> Information:
    """Return the information of the lags 0, ..., lags - 1 under stationary chains.

    ``chains`` are transition matrices, (C, k, k). ``lags`` is at least 2, because all
    products are with lag 1.
    """
    pi = Chains(chains).start[:, :, None]  # the stationary laws, (C, k, 1)
    independent = pi * pi.swapaxes(1, 2)  # ππ, (C, k, k)
    # J_j - ππ, (lags, C, k, k): the joint law is J_j = π_q (P^j)_qy.
    differences = np.stack(
        [pi * np.linalg.matrix_power(chains, j) - independent for j in range(lags)]
    )
    products = differences * differences[1]
    return Information(
        products=products.sum(axis=(2, 3)),
        chi_squared=(products / independent).sum(axis=(2, 3)),
    )


def endless_slopes(chains: Array, lags: int) -> Array:
    r"""Return how steeply the loss falls with b at b = 0, for endless sequences.

    The loss is the log loss for a test symbol q that is uniform and independent of the
    sequence. The first layer attends to lag j alone. A token then has the weight
    :math:`e^b` in the second layer if its symbol j steps earlier is q, and the weight 1
    if not. With the stationary probabilities π and the joint probability :math:`J_{qy}`
    of q and y at the lag j, the head predicts y with the probability

    .. math:: \frac{\pi_y + (e^b - 1)\,J_{qy}}{1 + (e^b - 1)\,\pi_q} .

    The slope is minus the derivative of the loss with respect to b at b = 0. The
    statements call it the gain of lag j.

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
    pi = Chains(chains).start  # the stationary laws, (C, k)
    # The derivative is taken by a complex step: it is the imaginary part of the loss at
    # b = i·step, divided by the step. No digits cancel in a difference, so that the
    # step may be so small that its square vanishes beside 1.
    step = 1e-30
    extra_weight = np.exp(1j * step) - 1.0  # e^b - 1
    slopes = []
    for j in range(lags):
        # Arrays have the axes (C, q, y).
        joint = pi[:, :, None] * np.linalg.matrix_power(chains, j)
        weighted = pi[:, None, :] + extra_weight * joint
        total_weight = 1.0 + extra_weight * pi[:, :, None]
        predicted = weighted / total_weight
        # Σ_q Σ_y P_qy (-ln predicted_qy)/k: the next symbol y follows q in the chain.
        loss_of_chain = -np.sum(chains * np.log(predicted), axis=(1, 2)) / k
        slopes.append(-loss_of_chain.imag / step)
    return np.array(slopes)


def finite_slopes(chains: Array, lags: int, T: int) -> Array:
    """Return the slopes of `endless_slopes` for sequences of T symbols, (lags, C).

    The first symbol has the stationary law. A sink token adds one count of each symbol:
    without it the predicted probability of a symbol that the sequence lacks would be 0,
    and the log loss infinite. Let the sequence have n_y symbols y, and let q be the
    symbol j steps before N_qy of them. The transition probabilities are P, and the test
    symbol is q. The slope of lag j is then

        Σ_y P_qy E[N_qy/(n_y + 1)] - E[N_q]/(T + k),  N_q = Σ_y N_qy.

    The slope is averaged over q, which is uniform. As each of the T symbols has one
    symbol j steps before it, Σ_q N_q = T.
    """
    chain_count, k = chains.shape[:2]
    sum_over_queries = np.zeros((lags, chain_count))
    for y in range(k):
        for part_of_position in _parts_of_positions(chains, lags, T, y):
            sum_over_queries += part_of_position
    return sum_over_queries / k - T / ((T + k) * k)


def _parts_of_positions(chains: Array, lags: int, T: int, y: int) -> Iterator[Array]:
    """Yield the part of each position t in Σ_q P_qy E[N_qy/(n_y + 1)], (lags, C).

    This is the sum in `finite_slopes` for one symbol y. N_qy counts the positions t of
    y with q at t - j. The part of position t is a mean over the sequences in which y is
    at t, and is summed over q. The number 1/(n_y + 1) is the integral of z^(n_y) for z
    from 0 to 1. A Gauss rule gives it exactly for all n_y <= T. So each symbol y of the
    sequence has the factor z, and the mean is a product of sums over the symbols before
    and after the position t. The sums have an entry for each chain, node z and symbol,
    in the axes c, z and q (or x, the symbol after q) of the einsums.
    """
    chain_count, k = chains.shape[:2]
    # With T // 2 + 1 nodes the rule is exact up to the degree 2 (T // 2) + 1, which is
    # T or more.
    nodes, node_weights = np.polynomial.legendre.leggauss(T // 2 + 1)
    # Map the rule from the interval [-1, 1] to [0, 1].
    z = 0.5 * (1.0 + nodes)
    weights = 0.5 * node_weights
    pi = Chains(chains).start  # the stationary laws, (C, k)
    # Transitions to symbols outside of the sequence, which have no factor, and to
    # symbols of the sequence, which n_y counts, with their factors; (C, nodes, k, k).
    to_uncounted = np.broadcast_to(chains[:, None], (chain_count, len(z), k, k))
    factors = np.where(np.arange(k) == y, z[:, None], 1.0)
    to_counted = to_uncounted * factors[:, None, :]
    sum_after = _sums_after(to_counted, T)
    # sums_before[-1 - j]: sums over the symbols before position t - j, for each symbol
    # at t - j. The factor of this symbol is included. The first layer also sees symbols
    # at the position 0 and before, which are not in the sequence and have no factor.
    stationary = np.broadcast_to(pi[:, None], (chain_count, len(z), k))
    sums_before = [stationary] * lags
    for t in range(1, T + 1):
        next_sum = np.einsum("czq,czqx->czx", sums_before[-1], to_counted)
        sums_before = [*sums_before[1:], next_sum]
        # The symbol at t is y. Go back from position t to the symbol q at t - j. The
        # array ``sum_from`` has the sums over the symbols after t - j, given q.
        sum_from = np.zeros((chain_count, len(z), k))
        sum_from[..., y] = sum_after[t][..., y]
        terms = np.empty((lags, chain_count))
        for j in range(lags):
            terms[j] = np.einsum(
                "czq,czq,cq,z->c",
                sums_before[-1 - j],
                sum_from,
                chains[:, :, y],  # P_qy
                weights,
            )
            # Take the transition from t - j - 1 to t - j. The transition has the factor
            # of the symbol at t - j only if this symbol is in the sequence.
            is_in_sequence = t - j >= 1
            transitions = to_counted if is_in_sequence else to_uncounted
            sum_from = np.einsum("czqx,czx->czq", transitions, sum_from)
        yield terms


def _sums_after(to_counted: Array, T: int) -> Array:
    """Return the sums over the symbols after each position, given the symbol at it.

    ``to_counted`` has the transitions with their factors, (C, nodes, k, k). The result
    is (T + 1, C, nodes, k), with entry t for position t. Entry T is 1, because no
    symbols follow position T. Entry 0 is not used.
    """
    sum_after = np.ones((T + 1, *to_counted.shape[:3]))
    for t in range(T - 1, 0, -1):
        sum_after[t] = np.einsum("czqx,czx->czq", to_counted, sum_after[t + 1])
    return sum_after


@row(
    "first layer: gradient",
    NICHANI.format("gradient"),
    bound="half the error at twice T",
)
def first_gradient(quick: bool) -> Claim:
    """log loss, a test symbol that is uniform and independent of the sequence, as in
    the authors' code: the gain of lag j, -∂²L/∂b∂a_j at b = 0 with the attention
    a_j on lag j, tends to Σ (J_j - ππ)(J_1 - ππ)/(kππ) in long sequences, with the
    joint laws J_j of two symbols that are j steps apart
    """
    T = 32 if quick else 64
    lags = 3
    errors = []
    ratios = []
    # Sparse chains need longer sequences: with T = 64 and 128 the extrapolation is off
    # by 18 %.
    for law in LAWS[:3]:
        chains = _chains(law, 8)
        limit = _information(chains, lags).chi_squared.mean(axis=1) / 3.0  # k = 3
        short = finite_slopes(chains, lags, T).mean(axis=1)
        long = finite_slopes(chains, lags, 2 * T).mean(axis=1)
        # The error falls like 1/T, so that this combination cancels it.
        extrapolated = 2.0 * long - short
        errors.append(apart(extrapolated, limit) / limit.max())
        ratios.append(apart(short, limit) / apart(long, limit))
    # Quick sequences are half as long, and the error that is left after extrapolation
    # falls like 1/T²: it is 2 % at T = 64. All limits are loose.
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
    """in endless sequences k times the gain of lag 1 is the χ² information of a symbol
    on its parent, for every law of chains, and no later lag has a larger gain
    """
    ratios = []
    wins = []  # number of chains of each law for which no later lag has a larger slope
    for law in LAWS:
        chains = _chains(law, 200)
        slopes = endless_slopes(chains, lags=5)
        information = _information(chains, lags=2).chi_squared[1]
        slope_of_parent = slopes[1]
        ratios.append(3.0 * slope_of_parent / information)  # k = 3
        wins.append(int(np.sum(slope_of_parent >= slopes[2:].max(axis=0))))
    # Only rounding errors may separate the ratios from 1.
    return Claim.of(
        apart(ratios, 1.0) < 1e-9 and min(wins) == 200,
        f"200 chains of 3 states of each law: {', '.join(LAWS)}; lags 1 to 4; log loss,"
        " uniform test symbol",
        f"ratio {np.min(ratios):.6f}..{np.max(ratios):.6f}; lag 1 is ahead of lags 2 to"
        f" 4 in {sum(wins)} of {200 * len(LAWS)}",
    )


def tree_joints(chains: Array, parents: Sequence[int]) -> Array:
    """Return the joint laws of all pairs of symbols of a tree, (n, n, C, k, k).

    The symbol at the root, position 0, has the stationary law. Every other symbol is
    drawn by the chain from the symbol at its parent. Entry (j, i) is the joint law of
    the symbols at the positions j and i.

    Parameters
    ----------
    chains : ndarray, (C, k, k)
        Transition matrices of C chains.
    parents : sequence of int, (n,)
        The parent of each position, which is an earlier position. The entry for the
        root is ignored.
    """
    n = len(parents)
    k = chains.shape[1]
    pi = Chains(chains).start  # the stationary laws, (C, k)
    joints = np.empty((n, n, *chains.shape))
    for i in range(n):
        joints[i, i] = pi[:, :, None] * np.eye(k)
        for j in range(i):
            # Go from the symbol at j to the symbol at the parent of i, and from there
            # take one step to i.
            joints[j, i] = joints[j, parents[i]] @ chains
            joints[i, j] = joints[j, i].swapaxes(1, 2)
    return joints


def tree_slopes(chains: Array, parents: Sequence[int]) -> Array:
    """Return how steeply the loss of endless sequences falls with b, (n, n, C).

    A sequence consists of independent copies of the tree, which has n positions. Entry
    (j, i) is n times the slope if position i of each copy attends to position j in the
    first layer, and all other positions attend to none. In all other respects the slope
    is defined as in `endless_slopes`. With the joint law J of the symbols at j and i,
    the entry is Σ (J - ππ)(J_1 - ππ)/(kππ), a sum over all pairs of symbols. J_1 is the
    joint law of a symbol and its parent.
    """
    k = chains.shape[1]
    pi = Chains(chains).start  # the stationary laws, (C, k)
    independent = pi[:, :, None] * pi[:, None, :]  # ππ, (C, k, k)
    parent_difference = pi[:, :, None] * chains - independent  # J_1 - ππ
    differences = tree_joints(chains, parents) - independent  # J - ππ
    terms = differences * parent_difference / independent
    return np.asarray(np.sum(terms, axis=(3, 4)) / k)


@row("first layer: trees", NICHANI.format("gradient"), bound="all")
def trees(quick: bool) -> Claim:
    """in random trees the parent of a symbol has the largest gain of all symbols before
    it: Σ (J - ππ)(J_1 - ππ)/(kππ), with the joint law J of both symbols, and J_1 of a
    symbol and its parent
    """
    positions = 8
    tree_count = 2 if quick else 50
    rng = np.random.default_rng(0)
    chains = np.concatenate([_chains(name, 20) for name in LAWS])
    wins = 0
    cases = 0
    for _ in range(tree_count):
        parents = [0, *(int(rng.integers(i)) for i in range(1, positions))]
        slopes = tree_slopes(chains, parents)
        # Position 1 has only its parent before it.
        for i in range(2, positions):
            rivals = [j for j in range(i) if j != parents[i]]
            parent_is_ahead = slopes[parents[i], i] > slopes[rivals, i].max(axis=0)
            wins += int(parent_is_ahead.sum())
            cases += parent_is_ahead.size
    return Claim.of(
        wins == cases,
        f"{tree_count} trees of {positions} symbols, each parent uniform among the"
        f" positions before; {len(chains)} chains of 3 states of the laws"
        f" {', '.join(LAWS)}",
        f"the parent is ahead in {wins:,} of {cases:,} cases",
    )


@row("first layer: parent against lag 0", NICHANI.format("argmax"), bound="lag 1")
def argmax(quick: bool) -> Claim:
    """averaged over chains whose rows are independent with a Dirichlet law, the gain of
    the parent, lag 1, is the largest of all, including the gain of the symbol itself,
    lag 0
    """
    means = []
    lag_0_wins = 0
    for alpha in (1.0, 0.5):
        chains = _dirichlet_chains(alpha, 1_000 if quick else 10_000)
        slopes = endless_slopes(chains, lags=4)
        means.append(slopes.mean(axis=1))
        # The first 800 chains also make 200 sets of four chains.
        slopes_by_set = slopes[:, :800].reshape(4, 200, 4)  # (lags, sets, chains)
        means_of_sets = slopes_by_set.mean(axis=2)  # (lags, sets)
        lag_0_wins += int(np.sum(means_of_sets.argmax(axis=0) == 0))
    listed_means = "; ".join(listed(mean, ".3f") for mean in means)
    return Claim.of(
        all(int(mean.argmax()) == 1 for mean in means),
        f"{len(chains):,} chains of 3 states, rows Dirichlet(1) and (½); log loss,"
        " uniform test symbol",
        f"mean gains of lags 0 to 3 {listed_means}; lag 0 has the largest one in"
        f" {lag_0_wins} of 400 sets of only four chains",
        "holds only on average over chains with Dirichlet rows, on some of which lag 0"
        " wins",
    )


@row(
    "first layer first",
    NICHANI.format("training in stages"),
    bound="the loss of joint training",
)
def stages(quick: bool) -> Claim:
    """training in two stages, the lags at a small match b and then b, learns the
    induction head if b > 0; if b < 0 the first stage chooses lag 0, and the second
    cannot correct this, but training both together learns the head
    """
    # The rates are choices.
    square_problem = InductionHeads(T=25, edge="complete", eta=10.0, ratio=20.0)
    log_problem = InductionHeads(
        T=20 if quick else 50,
        objective="log",
        sink=math.log(2.0),  # adds one to the count of each of the two symbols
        eta=10.0,
        ratio=10.0,
    )
    first_steps, second_steps = (60, 60) if quick else (1500, 500)
    phrases = []
    is_expected = []
    cases = ((square_problem, 0.1), (log_problem, 0.1), (square_problem, -0.1))
    for problem, b in cases:
        staged_problem = problem.changed(
            match=b, stage=first_steps, max_steps=first_steps + second_steps
        )
        ends = _ends_of_stages(staged_problem)
        is_expected.append(
            ends.have_learnt_head() if b > 0.0 else ends.have_taken_lag_0()
        )
        phrases.append(f"{problem.objective}, b = {b}: {ends.in_words()}")
    return Claim.of(
        all(is_expected),
        "two states, uniform rows, lags 0 and 1; square loss, T ="
        f" {square_problem.T}, and log loss, T = {log_problem.T}; steps"
        f" {first_steps}, {second_steps}",
        f"above the Bayes loss in stages and together: {'; '.join(phrases)}",
        "holds only for b > 0",
    )


class _EndsOfStages(NamedTuple):
    """Ends of training in stages, and of training of both layers together."""

    share_of_lag_1: float  # attention of the first layer, trained in stages
    staged_excess: float  # loss above the Bayes loss
    joint_excess: float

    def have_learnt_head(self) -> bool:
        """Whether the stages end at the induction head.

        At the head nearly all attention is on lag 1, and the excess is less than twice
        the excess of joint training. In the full audit it is at most 1.3 times this
        excess, and in the quick one at most 1.5 times.
        """
        is_near_joint = self.staged_excess < 2.0 * self.joint_excess
        return self.share_of_lag_1 > 0.95 and is_near_joint

    def have_taken_lag_0(self) -> bool:
        """Whether the stages end at lag 0, far above the loss of joint training.

        At lag 0 nearly no attention is on lag 1, and the excess is more than ten times
        the excess of joint training. In the audit it is 14 times this excess or more.
        """
        is_far_above_joint = self.staged_excess > 10.0 * self.joint_excess
        return self.share_of_lag_1 < 0.05 and is_far_above_joint

    def in_words(self) -> str:
        """Return the attention on lag 1, and both excesses."""
        return (
            f"{self.share_of_lag_1:.3f} on lag 1;"
            f" {self.staged_excess:.5f} and {self.joint_excess:.5f}"
        )


def _ends_of_stages(staged_problem: InductionHeads) -> _EndsOfStages:
    """Train in stages, and train both layers together for as many steps.

    Joint training has equal rates for both layers.
    """
    staged_run = staged_problem.simulate()
    joint_run = staged_problem.changed(stage=0, ratio=1.0).simulate()
    attention_on_lags = staged_run.observed["first"][-1]
    return _EndsOfStages(
        share_of_lag_1=float(attention_on_lags[1]),
        staged_excess=staged_run.loss[-1] - staged_run.floor,
        joint_excess=joint_run.loss[-1] - joint_run.floor,
    )


class TransformerPair(NamedTuple):
    """A transformer that trains (r, b) on samples, and the exact loss of (r, b).

    r are the m scores of the lags (a in `InductionHeads`), and b is the match.
    """

    name: str
    sampled: TwoLayerTransformer
    exact: Risk


def _settings() -> Iterable[TransformerPair]:
    """Yield transformers with their exact losses, on eight random chains each.

    A sink, which the log loss needs, keeps the score 0.
    """
    rng = np.random.default_rng(seed=1)
    for k, m, objective in ((3, 2, "square"), (2, 3, "square"), (2, 2, "log")):
        T = 8 * m  # positions
        sink = 0.0 if objective == "log" else None
        P = rng.dirichlet(np.ones(k), (8, k))
        start = np.append(np.zeros(m), 1.0)  # r = 0, b = 1
        sampled = TwoLayerTransformer(
            chains=Chains(P, window=m),
            length=T,
            batch=128,
            seed=3,
            start=start,
            objective=objective,
            sink=sink,
        )
        risk = on_chains(P, m, T, objective=objective, sink=sink).risk()
        # The loss of the transformer is relative to the law of the next symbol, so it
        # does not include the noise of this symbol, which ``added`` accounts for.
        risk = replace(risk, added=0.0, least=risk.risk.floor())
        # Only the first m + 1 parameters (r, b) are trained, and not the sink's score.
        r_and_b = np.eye(len(risk.initial), m + 1)
        exact = in_coordinates(risk, "linear", r_and_b, start=start)
        yield TransformerPair(f"{k} states, {m} lags, {objective}", sampled, exact)


@row("two layers: the reduction", bound="|z| < 4")
def reduction(quick: bool) -> Claim:
    """a whole transformer on samples, of which only the numbers (r, b) are trained, has
    the exact loss at each saved step
    """
    largest_z = []
    distances = []
    settings = []
    steps = 8 if quick else 200
    stride = 4 if quick else 3  # every stride-th saved state is compared
    batches = 8 if quick else 30  # batches that give the mean loss of a state
    eta = 4.0  # a choice
    for name, sampled, exact in _settings():
        run = descend(sampled, eta, steps=steps)
        exact_run = descend(exact, eta, steps=steps)
        z_scores = []
        for i, state in enumerate(run.states[::stride], start=1):
            # The batches of state i have the numbers from 1000 i on. The run and the
            # other states use batches with other numbers, so that all batches are
            # independent.
            samples = losses(sampled, state, batches, first=1000 * i)
            # The distance of the mean of the samples from the exact loss, in standard
            # errors.
            z_scores.append(deviations(samples, exact.loss(state)))
        largest_z.append(float(np.max(z_scores)))
        distances.append(float(np.abs(run.params - exact_run.params).max()))
        settings.append(f"{name}, {len(z_scores)} steps")
    return Claim.of(
        max(largest_z) < LARGEST_Z,
        "; ".join(settings),
        f"|z| up to {listed(largest_z, '.1f')}; at the end off exact descent by"
        f" {listed(distances, '.2f')} in (r, b)",
    )


class Departure(NamedTuple):
    """When the full transformer departs from the reduced one."""

    sentence: str  # says when it departs, and how far
    series: list[Series]  # the losses of both transformers
    step: int | None  # step of the departure; None if it does not depart


def departure(
    pair: TransformerPair, steps: int, states: int, batches: int
) -> Departure:
    """Train the full transformer, and compare its loss with the reduction's loss.

    The loss of the full transformer is a mean over a number of ``batches`` of prompts,
    at a number of ``states`` of the run. The full transformer departs at the first of
    these states at which the two losses differ by more than a tenth of the fall of the
    reduction's loss in the whole run.
    """
    name = pair.name
    floor = pair.exact.floor()
    # The number of prompts in a batch and the rate are choices.
    full = replace(pair.sampled, trained="all", batch=256)
    eta = 0.5
    run = descend(full, eta, steps=steps)
    exact_run = descend(pair.exact, eta, steps=steps)
    # Indices of the compared states, evenly spaced among the states of the run.
    indices = np.unique(np.linspace(0, len(run.t) - 1, states).astype(int))
    t = run.t[indices]
    # The batch of step n is a function of n. Training ends before step 1000, so the
    # batches from 1000 on are new to the transformer.
    full_loss = np.array(
        [losses(full, run.states[i], batches, first=1000).mean() for i in indices]
    )
    reduced_loss = np.interp(t, exact_run.t, exact_run.loss)
    fall = float(np.ptp(exact_run.loss))
    departure_index = _first_departure(full_loss - reduced_loss, fall)
    # The sentence is about the first departure. If there is none, it is about the last
    # step.
    shown = -1 if departure_index is None else departure_index
    negation = "not " if departure_index is None else ""
    # `outside` gives, by name, the distance of each matrix from the reduction.
    shown_distances = full.outside(run.states[indices[shown]])
    last_distances = full.outside(run.states[-1])
    sentence = (
        f"{name}: {negation}off by a tenth of what the reduction"
        f" learns at step {t[shown]}, with the distances"
        f" {named(shown_distances, '.2f')}; at step {steps}"
        f" {named(last_distances, '.2f')}, and the loss {full_loss[-1]:.4f} instead of"
        f" {reduced_loss[-1]:.4f}."
    )
    initial_excess = exact_run.loss[0] - floor
    reduced_share = (exact_run.loss - floor) / initial_excess
    full_share = (full_loss - floor) / initial_excess
    # The axis of steps is logarithmic, so both curves begin at 1 instead of 0.
    series = [
        Series(f"{name}, reduction", exact_run.t + 1, reduced_share),
        Series(f"{name}, all matrices", t + 1, full_share, points=True),
    ]
    departure_step = None if departure_index is None else int(t[departure_index])
    return Departure(sentence, series, departure_step)


def _first_departure(differences: Array, fall: float) -> int | None:
    """Return the first index at which losses differ by more than a tenth of ``fall``.

    The result is None if they never do. The tenth is a choice.
    """
    is_off = np.abs(differences) > 0.1 * fall
    return int(np.argmax(is_off)) if is_off.any() else None


@question("whole-transformer", "steps t", "loss above the least, share of the first")
def leaving(quick: bool) -> tuple[str, Iterable[Series]]:
    """Which matrix of a two-layer transformer leaves the reduced model, when, and how
    far?
    """
    steps, states, batches = (14, 4, 8) if quick else (400, 20, 10)
    departures = [
        departure(pair, steps=steps, states=states, batches=batches)
        for pair in _settings()
    ]
    sentences = " ".join(of_pair.sentence for of_pair in departures)
    departure_steps = [
        of_pair.step for of_pair in departures if of_pair.step is not None
    ]
    how_many = f"{len(departure_steps)} of {len(departures)}"
    # The step of the last departure; the last step of the runs if none departs.
    last_departure = max(departure_steps, default=steps)
    return (
        f"{how_many} transformers have left it at step {last_departure}. {sentences}",
        itertools.chain.from_iterable(of_pair.series for of_pair in departures),
    )


@dataclass(frozen=True, eq=False)
class NestedLogits(WithStart, Risk):
    """A reduced induction head with the parameters (α, β, ξ) of three nested logits.

    The first layer attends to the parent among N symbols, with the logit α and the
    attention p. The second layer attends to the copy of the parent, with the logit βp
    and the attention s. The output is one of two labels, with the logit ξs:

        p = 1/(1 + (N - 1) e^-α),  s = 1/(1 + (N - 1) e^-βp),  loss = ln(1 + e^-ξs).
    """

    N: int
    start: Array
    trained: bool  # whether ξ is trained, or fixed

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Log loss and its gradient."""
        alpha, beta, xi = params
        p = 1.0 / (1.0 + (self.N - 1.0) * np.exp(-alpha))
        s = 1.0 / (1.0 + (self.N - 1.0) * np.exp(-beta * p))
        # Derivatives of the loss with respect to the logits ξs and βp, and then with
        # respect to α, β and ξ. The derivative of p with respect to its logit α is p
        # (1 - p). The derivative of s with respect to its logit βp is s (1 - s).
        output_slope = -1.0 / (1.0 + np.exp(xi * s))
        second_slope = output_slope * xi * s * (1.0 - s)
        alpha_slope = second_slope * beta * p * (1.0 - p)
        beta_slope = second_slope * p
        xi_slope = output_slope * s if self.trained else 0.0
        loss = float(np.log1p(np.exp(-xi * s)))
        return loss, np.array([alpha_slope, beta_slope, xi_slope])


@row(
    "reduced induction head",
    "Reddy 2312.03002, Musat et al. 2511.01033 (reconstructed)",
    bound="2",
)
def circuits(quick: bool) -> Claim:
    """in a reduced model of three nested logits the loss falls abruptly after a
    plateau, which grows with the square of the context if the size of the output is
    given; if the size is trained from 0.01, the plateau grows with the power 3/2
    """
    lengths = (128, 512) if quick else (1024, 4096)
    fixed = _growth_and_drop(lengths, xi=6.0, trained=False)
    trained = _growth_and_drop(lengths, xi=0.01, trained=True)
    # With the lengths of the full audit both exponents are off their expected values by
    # less than 0.005.
    is_square = abs(fixed.exponent - 2.0) < 0.02
    is_three_halves = abs(trained.exponent - 1.5) < 0.02
    # "Abruptly": the drop takes less than 5 % of the time. The measured share is far
    # smaller.
    is_abrupt = fixed.drop < 0.05
    return Claim.of(
        is_square and is_three_halves and is_abrupt,
        f"reduced: N = {listed(lengths)}, from α = β = 0, flow until half of the loss"
        " is gone",
        f"exponent {fixed.exponent:.3f}, with trained output {trained.exponent:.3f};"
        f" from 90 to 50 % of ln 2 it takes {fixed.drop:.0e} and {trained.drop:.0e} of"
        " the time",
        "holds only for a fixed size of the output",
    )


class _GrowthAndDrop(NamedTuple):
    """How long the flow of `NestedLogits` takes until half of the loss is gone."""

    exponent: float  # of this time as a power of N
    # The time from 90 to 50 % of the initial loss, as a share of the time until 50 %,
    # for the larger N.
    drop: float


def _growth_and_drop(
    lengths: tuple[int, int], xi: float, trained: bool
) -> _GrowthAndDrop:
    """Follow the flow from α = β = 0 and this ξ, for two numbers N of symbols."""
    start = np.array([0.0, 0.0, xi])
    short, long = (NestedLogits(N, start, trained) for N in lengths)
    short_half_time = float(_run_to(0.5, short).t[-1])
    # For the larger N, go to 90 % of the loss, and from there to 50 %.
    long_plateau = _run_to(0.9, long)
    long_drop = _run_to(0.5, replace(long, start=long_plateau.params))
    long_half_time = float(long_plateau.t[-1] + long_drop.t[-1])
    return _GrowthAndDrop(
        exponent=power(lengths, (short_half_time, long_half_time)),
        drop=float(long_drop.t[-1]) / long_half_time,
    )


def _run_to(share: float, risk: Risk) -> Trajectory:
    """Follow the flow until this share of the initial loss, nearly ln 2, remains.

    The rate is 1, so that the steps ``t`` of the run are times.
    """
    return descend(risk, eta=1.0, epsilon=share * np.log(2.0), method="flow")


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
            "Trees",
            "If each symbol has one parent, at any earlier position, the first layer"
            " learns the tree of parents.",
            (trees,),
            reconstructed="The formula, which is that of chains with the joint laws of"
            " two symbols of a tree. Only the first gradient is tested.",
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
