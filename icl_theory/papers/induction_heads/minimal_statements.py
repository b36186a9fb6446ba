"""Rows of the audit on the minimal model of an induction head.

The functions that are decorated with `row` are rows of the audit: their docstrings are
the statements, and ``quick`` asks for a smaller measurement. They return ``Claim.of``:
whether the measurements are as expected, the cases, and the measured numbers in words.

The model is `MinimalHeads`, on sequences of T symbols, each one of k. Its first layer
mixes symbols with weights that depend on scores v, one for each lag. The second layer
compares the last symbol with the mixtures by W = bI + c 11ᵀ, and counts the symbol of
each token in proportion to the score of its mixture. ``ratio`` is the learning rate of
the first layer divided by the rate η of the second one. Times are ηt, with the step t.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from icl_theory._validate import Array
from icl_theory.engine import descend
from icl_theory.papers.induction_heads.minimal import MinimalHeads
from icl_theory.papers.induction_heads.phases import Levels, halfway
from icl_theory.papers.induction_heads.plateaus import (
    SLOWDOWN_OF_PLATEAU,
    SpeedMinimum,
    deepest_minimum,
)
from icl_theory.papers.induction_heads.positions import position_losses
from icl_theory.papers.induction_heads.sequences import Sequences, running_totals
from icl_theory.statements.claim import Claim, row
from icl_theory.statements.numbers import deviations, listed, power

MINIMAL = "Edelman et al. 2024, {} (reconstructed)"
# The setting of the authors: the rates of both layers, and (by default) 0.01 in all
# entries of W. The number of drawn sequences is our choice.
AUTHORS = MinimalHeads(k=3, T=100, sequences=200, eta=5e-4, ratio=2000.0)
# A short problem with larger steps, for rows with many runs.
SHORT = MinimalHeads(k=3, T=15, sequences=100, eta=0.01, ratio=10.0)
# The problem of quick audits.
QUICK = SHORT.changed(T=12, sequences=60, eta=0.15)
# A run stops after this number of steps if it has not reached the loss it aims at.
MAX_STEPS = 20000
# A mean of samples must be within this number of standard errors of its expectation.
# A normal |z| exceeds 4 in one of 16,000 draws.
LARGEST_Z = 4.0


def count_levels(problem: MinimalHeads) -> Levels:
    """Return the least losses of predictions whose logits are multiples of counts.

    The second layer of the model counts symbols, so the loss has its plateaus at these
    levels.
    """
    counts = problem.count_levels
    return Levels(
        uniform=math.log(problem.k),
        unigram=counts["unigram"].loss,
        bigram=counts["bigram"].loss,
    )


def speed_minimum(problem: MinimalHeads) -> SpeedMinimum:
    """Train, and find where the loss falls most slowly near the loss of unigram counts.

    The run ends at the loss halfway from unigram to bigram counts. The result has the
    loss at this slowest point and the length of the slow stretch in ηt. Its methods
    `rests_at` and `starts_at_rest` test whether the stretch is a plateau.
    """
    return deepest_minimum(problem.risk(), problem.rate(), count_levels(problem))


def emergence_time(problem: MinimalHeads) -> float:
    """Return the time ηt at which the loss is halfway from unigram to bigram counts.

    The time is infinite if the loss does not come so far in 20000 steps.
    """
    levels = count_levels(problem)
    run = descend(
        problem.risk(),
        problem.rate(),
        epsilon=halfway(levels.unigram, levels.bigram),
        steps=MAX_STEPS,
        progress=False,
    )
    # `steps` is the first step with this loss, or None.
    return math.inf if run.steps is None else run.steps * problem.rate()


@row("minimal heads: baselines", bound="|z| < 4")
def baselines(quick: bool) -> Claim:
    """the expected losses of the unigram and the bigram at all positions follow from
    the law of the counts of symbols that followed the last symbol; means over drawn
    sequences agree with them
    """
    T, count = (20, 2_000) if quick else (100, 20_000)
    # The losses at all T positions, by name.
    exact = position_losses(k=3, T=T, concentration=1.0).by_name()
    rng = np.random.default_rng(seed=17)
    sequences = Sequences.drawn(k=3, T=T, concentration=1.0, count=count, rng=rng)
    # How often each symbol has occurred before each prediction, (T, count, 3).
    totals = np.stack([*running_totals(sequences.symbols, k=3)])
    # The unigram adds 1 to the count of each of the three symbols.
    unigram = (1.0 + totals) / (3.0 + totals.sum(axis=2, keepdims=True))
    # The bigram predicts the law of the next symbol, averaged over the chains.
    bigram = sequences.following
    z_scores = []
    for name, predicted in (("unigram", unigram), ("bigram", bigram)):
        # Mean loss of each sequence over its positions, (count,).
        losses = -np.sum(sequences.following * np.log(predicted), axis=2).mean(axis=0)
        # The distance of the mean of the losses from the exact one, in standard errors.
        z_scores.append(float(deviations(losses, exact[name].mean())))
    mean_losses = listed([exact[name].mean() for name in exact], ".4f")
    last_losses = listed([exact[name][-1] for name in exact], ".4f")
    return Claim.of(
        max(z_scores) < LARGEST_Z,
        f"k = 3, Dirichlet(1) rows, T = {T}; {count:,} sequences",
        f"uniform, unigram and bigram predictions: {mean_losses} nats over all"
        f" positions, {last_losses} at the last one; |z| up to {max(z_scores):.1f}",
    )


@row("minimal heads: first signal", MINIMAL.format("two steps"), bound="0")
def first_signal(quick: bool) -> Claim:
    """if all entries of W are equal, the second layer has a gradient and the first one
    has none, for any scores of its lags
    """
    rng = np.random.default_rng(seed=3)
    T = 6 if quick else 8
    largest_of_first = []
    smallest_of_second = []
    for mask in ("causal", "none"):
        # All entries of W are 0.2, because b is 0 by default.
        problem = MinimalHeads(
            k=3, T=T, mask=mask, common=0.2, scores=rng.normal(size=T)
        )
        risk = problem.risk()
        first_layer, second_layer = risk.blocks(risk.gradient(risk.initial))
        largest_of_first.append(np.abs(first_layer).max())
        smallest_of_second.append(np.abs(second_layer).min())
    # Rounding is below 1e-14, and the derivatives with respect to W are 2e-3 or more.
    has_no_first_signal = max(largest_of_first) < 1e-14
    has_second_signal = min(smallest_of_second) > 1e-3
    return Claim.of(
        has_no_first_signal and has_second_signal,
        f"k = 3, T = {T}, all sequences, random scores, both masks",
        f"derivatives of the first layer below 1e-14, of W above"
        f" {min(smallest_of_second):.1g}",
    )


def lag_signals(problem: MinimalHeads) -> Array:
    """Return minus the initial gradient with respect to the scores of the lags, (m,).

    Each number says how fast the score of a lag grows at step 0.
    """
    risk = problem.risk()
    first_layer, _ = risk.blocks(risk.gradient(risk.initial))
    return -first_layer


@row(
    "minimal heads: odd lags",
    MINIMAL.format("even and odd lags"),
    bound="odd above even",
)
def odd_lags(quick: bool) -> Claim:
    """once the second layer matches, the first odd lags have larger signals than both
    of their even neighbours, and lag 1 has the largest one
    """
    odd = np.array([1, 3] if quick else [1, 3, 5])
    base = AUTHORS.changed(match=0.05, common=0.0, sequences=4000)
    if quick:
        base = base.changed(T=20, sequences=2000)
    is_expected = []  # for each k
    phrases = []
    for k in (2, 3):
        signals = 1e4 * lag_signals(base.changed(k=k))  # in units of 1e-4 nats
        above_before = signals[odd] - signals[odd - 1]
        above_after = signals[odd] - signals[odd + 1]
        above_both = np.minimum(above_before, above_after)
        is_expected.append(signals.argmax() == 1 and (above_both > 0.0).all())
        phrases.append(f"k = {k}: {listed(signals[:6], '.1f')}")
    return Claim.of(
        all(is_expected),
        f"T = {base.T}, b = 0.05, c = 0, equal scores;"
        f" {base.sequences} drawn sequences",
        f"signals of lags 0 to 5, in 1e-4 nats, {'; '.join(phrases)}",
    )


@row(
    "minimal heads: plateaus",
    MINIMAL.format("phases of the minimal model"),
    bound="one rest",
)
def minimal_plateaus(quick: bool) -> Claim:
    """with the authors' rates the loss falls at once, rests at what counts of all
    symbols predict, and ends at what counts of the followers predict, above the bigram
    """
    problem = QUICK if quick else AUTHORS
    problem = problem.changed(max_steps=480 if quick else 2000)
    levels = count_levels(problem)
    minimum = speed_minimum(problem)
    run = problem.simulate()
    # Standard error of the loss, from the drawn sequences.
    error = problem.average_error(run.params)
    last_loss = float(run.loss[-1])
    # "At once": with half of the largest speed or more.
    falls_at_once = minimum.start_speed > 0.5
    # The loss ends 0.001 above the loss of the best multiple of the counts of
    # followers, and the bigram's loss is 0.05 below both of these losses. Any limit
    # between 0.001 and 0.05 would do.
    ends_at_counts = abs(last_loss - levels.bigram) < 0.01
    return Claim.of(
        falls_at_once and minimum.rests_at(levels.unigram) and ends_at_counts,
        f"k = 3, T = {problem.T}, W = 0.01, η = {problem.rate():g}, ratio"
        f" {problem.ratio:g}, {problem.sequences} drawn sequences",
        f"speed at step 0 {minimum.start_speed:.2f} of the largest; least at the loss"
        f" {minimum.loss:.4f} (unigram counts {levels.unigram:.4f}),"
        f" {minimum.slowdown:.1f} times less than on both sides; at the end"
        f" {last_loss:.4f} ± {error:.4f} (bigram counts {levels.bigram:.4f}, bigram"
        f" {problem.predictors['bigram']:.4f})",
    )


@row("minimal heads: counts as logits", bound="above the bigram's loss")
def counts_as_logits(quick: bool) -> Claim:
    """no multiple of the counts of followers, taken as logits, has the loss of the
    bigram, because nothing divides by the number of matches
    """
    T = 20 if quick else 100
    losses = position_losses(k=3, T=T, concentration=1.0)
    unigram = losses.unigram
    bigram = losses.bigram
    # The losses of the best multiples of the counts. One multiple is the best for the
    # last position, and the other one for the mean over all positions.
    _, last_loss = losses.best_logits(positions=range(T, T + 1))
    _, mean_loss = losses.best_logits()
    # By how much a multiple is better than the unigram, divided by how much the bigram
    # is better than the unigram.
    last_share = (unigram[-1] - last_loss) / (unigram[-1] - bigram[-1])
    mean_share = (unigram.mean() - mean_loss) / (unigram.mean() - bigram.mean())
    # Both losses exceed the bigram's by 0.04 or more, and are exact up to rounding. Any
    # limit between rounding errors and 0.04 would do.
    is_above_bigram = mean_loss > bigram.mean() + 1e-3 and last_loss > bigram[-1] + 1e-3
    return Claim.of(
        is_above_bigram,
        f"k = 3, T = {T}, exact",
        f"best multiple {mean_loss:.4f} nats over all positions, {last_loss:.4f} at the"
        f" last one; of the gain from unigram to bigram this is"
        f" {100.0 * mean_share:.0f} % and {100.0 * last_share:.0f} %",
    )


@row("minimal heads: rates", MINIMAL.format("coupling of the layers"), bound="-1")
def rates(quick: bool) -> Claim:
    """if the first layer is slow, the time at the unigram's plateau is inversely
    proportional to its rate, as with two softmax layers
    """
    ratios = np.array([3.0, 10.0] if quick else [0.3, 1.0, 10.0, 100.0])
    base = QUICK if quick else SHORT.changed(eta=0.03)
    lengths = [
        speed_minimum(base.changed(ratio=ratio)).length for ratio in ratios.tolist()
    ]
    # Exponents b of the law length ~ ratio^b, from two ratios each.
    slow_exponent = power(ratios[:2], lengths[:2])
    fast_exponent = power(ratios[-2:], lengths[-2:])
    # The law holds for small ratios: between the two smallest ones the exponent is
    # -0.97. The quick audit has larger ratios, and the exponent -0.83.
    allowed = 0.5 if quick else 0.15
    return Claim.of(
        abs(slow_exponent + 1.0) < allowed,
        f"k = 3, T = {base.T}, {base.sequences} drawn sequences, ratios"
        f" {listed(ratios, 'g')}",
        f"ηt {listed(lengths, '.1f')}; exponent {slow_exponent:.2f} at the slow end,"
        f" {fast_exponent:.2f} at the fast one",
        "holds only for slow first layers",
    )


@row("minimal heads: linear first layer", bound="at most 0.1; none")
def linear_first_layer(quick: bool) -> Claim:
    """if the first layer is linear, too, and both start small, the loss rests at
    uniform predictions, and passes the unigram's without a plateau
    """
    base = QUICK if quick else SHORT.changed(T=30)
    # v = 0 by default, and W = 0.01 I.
    linear = base.changed(first="linear", second="number", match=0.01)
    ratios = np.array([1.0, 10.0] if quick else [1.0, 10.0, 100.0])
    minima = [speed_minimum(linear.changed(ratio=ratio)) for ratio in ratios.tolist()]
    start_speeds = [minimum.start_speed for minimum in minima]
    rests_at_first = all(minimum.starts_at_rest() for minimum in minima)
    slowdowns = [minimum.slowdown for minimum in minima]
    exponent = power(ratios, [minimum.length for minimum in minima])
    return Claim.of(
        rests_at_first and max(slowdowns) < SLOWDOWN_OF_PLATEAU,
        f"k = 3, T = {linear.T}, v = 0, W = 0.01 I, ratios {listed(ratios, 'g')}",
        f"speed at step 0 {listed(start_speeds, '.1g')} of the largest; at the unigram"
        f" at most {max(slowdowns):.1f} times less than on both sides; from the first"
        f" to the second half-way point ηt has the exponent {exponent:.2f} in the"
        " ratio",
    )


class EmergenceTimes(NamedTuple):
    """Times ηt at which the head emerges, at one ratio of the rates."""

    dirichlet: float  # for chains with independent rows
    circulant: float  # for chains whose unigrams say nothing

    def are_earlier_if_circulant(self) -> bool:
        """Whether the head emerges earlier on circulant chains, by a fifth or more.

        The comparison is with chains whose rows are independent. The fifth is a choice:
        smaller differences may come from the drawn sequences.
        """
        return self.circulant < 0.8 * self.dirichlet


@row(
    "minimal heads: useless unigrams",
    MINIMAL.format("simplicity bias"),
    bound="faster",
)
def minimal_useless_unigrams(quick: bool) -> Claim:
    """where unigrams say nothing (circulant chains) the head is learnt faster, if the
    first layer is slow
    """
    base = QUICK if quick else SHORT.changed(T=30, eta=5e-3)
    times = []
    ratios = [3.0, 1000.0] if quick else [20.0, 2000.0]
    for ratio in ratios:
        problem = base.changed(ratio=ratio)
        dirichlet = emergence_time(problem)
        circulant = emergence_time(problem.changed(chains="circulant"))
        times.append(EmergenceTimes(dirichlet, circulant))
    slow_first_layer, fast_first_layer = times
    verdict = "holds"
    if not fast_first_layer.are_earlier_if_circulant():
        verdict = "holds only for slow first layers"
    return Claim.of(
        slow_first_layer.are_earlier_if_circulant(),
        f"k = 3, T = {base.T}, {base.sequences} drawn sequences, independent rows and"
        f" circulant chains, ratios {listed(ratios, 'g')}",
        f"half of the way from unigram to bigram counts at ηt"
        f" {listed(slow_first_layer, '.2g')} with the slow first layer, and"
        f" {listed(fast_first_layer, '.2g')} with the fast one",
        verdict,
    )


@row("minimal heads: the published mask", bound="later")
def published_mask(quick: bool) -> Claim:
    """without a mask in the first layer, as in the authors' code, the head is learnt
    later
    """
    base = QUICK.changed(T=20, sequences=100) if quick else AUTHORS
    masked_time = emergence_time(base)
    unmasked_time = emergence_time(base.changed(mask="none"))
    return Claim.of(
        masked_time < unmasked_time,
        f"k = 3, T = {base.T}, η = {base.rate():g}, ratio {base.ratio:g},"
        f" {base.sequences} drawn sequences",
        f"half of the way from unigram to bigram counts at step"
        f" {masked_time / base.rate():.0f} with the mask,"
        f" {unmasked_time / base.rate():.0f} without it",
    )
