"""Open questions about in-context regression.

The docstring of a function that is decorated with ``question`` is the question. The
function returns the answer in words, and the curves of its figure.

Letters: K features v_m have the probabilities p_m. The smallest distance between two
features is Δ, called their gap. Functions f are L-Lipschitz, with f_m = f(v_m). The
argument of a family of tasks, as in ``tasks.Linear(2.0)``, is L. A prompt has N tokens,
with label noise of standard deviation σ. In the exchangeable class all pairs of
features have the same variogram γ = ½ E(f_m - f_j)², here L²Δ²/2. One number then
describes the scores: the gap u between the score of the query's own feature and the
other scores, which are all equal. The attention on the query's own feature is Attn.

The learning rate is η, and the loss at step t is L(t). A run ends at the loss ε after T
steps. Phase I ends at the step T₁, at Attn = ½; the tail is the last phase, in which
the loss falls like 1/t. The crossover L* divides the regimes: for L above L* a run
reaches ε only in the tail. T is then called T_s.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import icl_theory as icl
from icl_theory import regression
from icl_theory._validate import Array
from icl_theory.papers.regression.statements.common import (
    equivalent,
    plain_descent,
    rescaled,
    rise,
)
from icl_theory.papers.regression.statements.optimisers import optimisers
from icl_theory.papers.regression.theorems.orderwise import counted_runs
from icl_theory.regression import tasks
from icl_theory.statements.claim import Series, above, along, curves, question
from icl_theory.statements.numbers import apart, decade, off, power


@question("separation", "L", "steps to ε")
def separation(quick: bool) -> tuple[str, list[Series]]:
    """Is there a clear separation between the regimes?"""
    epsilon = 1e-6
    eta = 1e-2
    count = 101 if quick else 401
    # In words, the numbers of features for which T ~ L^-2 is reached, and the numbers
    # for which T becomes independent of L.
    reach_square = []
    reach_constant = []
    transitions = []
    series = []
    for K in (20, 1000):
        times = _times_by_size(K, epsilon, eta, count)
        # d ln T/d ln L for each L, by differences
        exponent = np.gradient(np.log(times.steps), np.log(times.lipschitz))
        # The answer says "to 5 %": the exponent comes within 0.1 of -2, or of 0. The
        # distance between -2 and 0 is 2.
        if exponent.min() < -1.9:
            reach_square.append(f"K = {K}")
        if abs(exponent[-1]) < 0.1:
            reach_constant.append(f"K = {K}")
        predicted = regression.crossover(epsilon, delta=1.0, K=K)
        transitions.append(_transition(K, times.lipschitz, exponent, predicted))
        series += _curves_of_time(K, times, epsilon, eta)
    return (
        "T ~ L^-2 is reached to 5 % for"
        f" {' and '.join(reach_square) or 'no K here'}, T independent of L for"
        f" {' and '.join(reach_constant) or 'no K here'} (ε = {epsilon:g})."
        f" {' '.join(transitions)}"
    ), series


class TimesBySize(NamedTuple):
    """Steps to ε for each of P Lipschitz constants."""

    lipschitz: Array  # (P,)
    steps: Array  # (P,)


def _curves_of_time(
    K: int, times: TimesBySize, epsilon: float, eta: float
) -> list[Series]:
    """Return the curves of the number of steps, and of its two leading terms.

    The terms are the time to learn to attend, K²/(ηγ), and the time of the tail,
    (K-1)/(4ηε). A term is drawn only where it is more than a tenth of the other one.
    Elsewhere it is far below the steps and would only take space in the figure.
    """
    # γ = ½L² for Δ = 1.
    attend = 2.0 * K**2 / (eta * times.lipschitz**2)
    tail = np.full(len(attend), (K - 1) / (4 * eta * epsilon))
    attend_is_visible = attend > 0.1 * tail
    tail_is_visible = tail > 0.1 * attend
    return [
        Series(f"K = {K}: exact", times.lipschitz, times.steps),
        Series(
            f"K = {K}: attending, K²/(ηγ)",
            times.lipschitz[attend_is_visible],
            attend[attend_is_visible],
        ),
        Series(
            f"K = {K}: tail, (K − 1)/(4ηε)",
            times.lipschitz[tail_is_visible],
            tail[tail_is_visible],
        ),
    ]


def _times_by_size(K: int, epsilon: float, eta: float, count: int) -> TimesBySize:
    """Count the steps to ε for ``count`` values of L, and Δ = 1.

    The values begin 5 % above the L with which the loss at the start is ε, and end at
    100 L*.
    """
    # The loss at the start, ¼L²(K-1)/K, is ε at this L.
    lowest = math.sqrt(4.0 * epsilon * K / (K - 1.0))
    highest = 100.0 * regression.crossover(epsilon, delta=1.0, K=K)
    lipschitz = np.geomspace(1.05 * lowest, highest, count)
    runs = counted_runs(
        size=lipschitz,  # LΔ
        eta=np.full(count, eta),
        K=np.full(count, float(K)),
        epsilon=np.full(count, epsilon),
        imbalance=np.ones(count),  # not used for the steps
    )
    return TimesBySize(lipschitz, runs.steps.astype(np.float64))


def _transition(K: int, lipschitz: Array, exponent: Array, predicted: float) -> str:
    """Describe how the exponent of T rises with L after its lowest value.

    ``exponent`` is d ln T/d ln L at each of the ``lipschitz`` constants L, and
    ``predicted`` is L*. For few features the exponent never comes near -2, and its
    lowest value may be above -1.8.
    """
    index_of_lowest = int(np.argmin(exponent))
    lipschitz = lipschitz[index_of_lowest:]
    exponent = exponent[index_of_lowest:]
    share = -exponent.min() / 2.0  # of the way from 0 to -2
    # Adding 0 turns -0.00 into 0.00.
    end = round(float(exponent[-1]), 2) + 0.0
    words = (
        f"For K = {K} the exponent comes down to {exponent.min():.2f}, {share:.0%} of"
        f" the way to -2, and rises to {end:.2f} at 100 L*"
    )

    # A tenth of the way from -2 to 0, half of it, and nine tenths.
    start = _first_lipschitz(exponent, -1.8, lipschitz)
    middle = _first_lipschitz(exponent, -1.0, lipschitz)
    stop = _first_lipschitz(exponent, -0.2, lipschitz)
    if start is not None and stop is not None:
        decades = math.log10(stop / start)
        words += f"; from -1.8 to -0.2 it takes {decades:.1f} decades of L"
    elif stop is not None:
        decades = math.log10(stop / lipschitz[0])
        words += (
            f"; it does not reach -1.8, and is -0.2 {decades:.1f} decades after its"
            " lowest"
        )
    if middle is not None:
        words += f". It is -1 at {middle / predicted:.2f} L*"
    return words + "."


def _first_lipschitz(exponent: Array, value: float, lipschitz: Array) -> float | None:
    """Return the smallest L whose exponent is at least ``value``.

    The exponents rise from their lowest one. The result is None if all exponents are
    below the value, or if even the lowest exponent is not below the value.
    """
    reached = np.flatnonzero(exponent >= value)
    if reached.size == 0:
        return None
    first = reached[0]
    return None if first == 0 else float(lipschitz[first])


@question("linear", "ηγ t (steps)", "loss / γ")
def linear(quick: bool) -> tuple[str, list[Series]]:
    """Does the linear case reduce to this?"""
    steps = 200 if quick else 2000
    # For each family, a law of tasks and six features, all pairs of which have the same
    # variogram
    families = equivalent(6)
    # Descent on the one number u with γ = 1. The runs on other tasks are rescaled to
    # γ = 1: `rescaled` trains at the rate 1/γ, and divides the losses by γ.
    standard = icl.descend(icl.ExchangeableRisk(6, gamma=1.0), eta=1.0, steps=steps)
    series = [along("one-number formula", standard, standard.loss)]
    errors = []
    for start, name in enumerate(("linear", "Fourier", "quadratic"), start=1):
        law, features = families[name]
        losses = rescaled(law, features, steps)
        errors.append(off(losses, standard.loss))
        # The curves coincide: draw different points of each, every ninth.
        drawn = slice(start, None, 9)
        series.append(Series(name, standard.t[drawn], losses[drawn], points=True))
    worst = max(errors)
    return (
        f"{'Yes' if worst < 1e-10 else 'No'}: loss/γ of linear, Fourier and quadratic"
        " tasks on the full scores differs from the one-number dynamics in time ηγt by"
        f" less than {decade(worst)} over {steps} steps."
    ), series


@question("tightness", "K (Phase I), or 1/ε (the tail)", "measured / bound")
def tightness(quick: bool) -> tuple[str, list[Series]]:
    """Are the bounds tight?"""
    points = 10 if quick else 30
    feature_counts = np.unique(np.logspace(math.log10(5), 5, points).astype(int))  # K
    phase_one = _phase_one_over_bounds(feature_counts)
    targets = np.logspace(-9, -2, points)
    tail = _tail_over_bounds(targets)

    phase_one_words = _moves(
        "T₁",
        bounds=("K² ln K/(ηL²Δ²)", "K²/(ηL²Δ²)"),
        ends=f"K = {feature_counts[0]} and {feature_counts[-1]:,}",
        with_log=phase_one.with_log,
        without_log=phase_one.without_log,
    )
    # Reversed, because the targets rise, and the words begin with the largest one.
    tail_words = _moves(
        "T_s - T₁",
        bounds=("K ln(K LΔ ε^-½)/(ηε)", "K/(ηε)"),
        ends="ε = 1e-2 and 1e-9",
        with_log=tail.with_log[::-1],
        without_log=tail.without_log[::-1],
    )
    return f"{phase_one_words} {tail_words}", [
        Series(
            "Phase I: T₁ over K² ln K / (ηL²Δ²)",
            feature_counts.astype(float),
            phase_one.with_log,
        ),
        Series("tail: Tₛ − T₁ over K ln(K LΔ/√ε) / (ηε)", 1.0 / targets, tail.with_log),
    ]


# The learning rate of all runs of ``tightness``. It is so small that descent follows
# the flow.
ETA_OF_TIGHTNESS = 0.01


class TimeOverBounds(NamedTuple):
    """A measured time, divided by the bound of a theorem, for each of P runs."""

    with_log: Array  # divided by the bound as stated, (P,)
    without_log: Array  # divided by the bound without its logarithm, (P,)


def _phase_one_over_bounds(feature_counts: NDArray[np.int64]) -> TimeOverBounds:
    """Return T₁ divided by K² ln K/(ηL²Δ²), and by K²/(ηL²Δ²), for each K."""
    eta = ETA_OF_TIGHTNESS
    L = math.sqrt(2.0)
    phase_one_steps = []
    for K in feature_counts:
        run = icl.simulate(L, delta=1.0, eta=eta, K=int(K), epsilon=1e-3)
        assert run.phases is not None  # runs of `simulate` have phases
        _, end_of_phase_one = run.phases.I
        phase_one_steps.append(end_of_phase_one)
    # L²Δ² = 2
    without_log = np.array(phase_one_steps) * eta * 2.0 / feature_counts**2
    with_log = without_log / np.log(feature_counts)
    return TimeOverBounds(with_log, without_log)


def _tail_over_bounds(targets: Array) -> TimeOverBounds:
    """Return T_s - T₁ divided by K ln(K LΔ ε^-½)/(ηε), and by K/(ηε), for each ε.

    The runs have K = 20, L = 2 and Δ = 1.
    """
    eta = ETA_OF_TIGHTNESS
    K = 20
    L = 2.0
    tail_steps = []
    for epsilon in targets:
        run = icl.simulate(L, delta=1.0, eta=eta, K=K, epsilon=float(epsilon))
        assert run.phases is not None  # runs of `simulate` have phases
        _, end_of_phase_one = run.phases.I
        tail_steps.append(float(run.t[-1]) - end_of_phase_one)
    without_log = np.array(tail_steps) * eta * targets / K
    with_log = without_log / np.log(K * L / np.sqrt(targets))
    return TimeOverBounds(with_log, without_log)


def _moves(
    time: str, bounds: tuple[str, str], ends: str, with_log: Array, without_log: Array
) -> str:
    """Say how the ratio of a time to a bound changes, with the logarithm and without.

    ``bounds`` names the bound with its logarithm, and then without it. ``ends`` names
    the range over which the ratios ``with_log`` and ``without_log`` are given. A ratio
    to the right bound tends to a constant. So the logarithm counts as not needed if,
    over the last half of the range, the ratio without it changes less than half as much
    as the ratio with it. The factor of a half is a choice: one of the two ratios is
    constant in the limit, and the other is not.
    """
    bound, bare_bound = bounds
    is_needed = _late_move(without_log) >= 0.5 * _late_move(with_log)
    return (
        f"{time} over {bound} goes from {with_log[0]:.2g} to {with_log[-1]:.2g}"
        f" between {ends}, {time} over {bare_bound} from {without_log[0]:.2g} to"
        f" {without_log[-1]:.2g}: the logarithm is"
        f" {'needed' if is_needed else 'not needed'}."
    )


def _late_move(ratio: Array) -> float:
    """Return the change of the logarithm of a ratio in the last half of its range."""
    middle = len(ratio) // 2
    return abs(math.log(ratio[-1] / ratio[middle]))


@question("learning-rate", "η λ_max / 2", "loss − minimum")
def learning_rate(quick: bool) -> tuple[str, list[Series]]:
    """Must the learning rate be bounded?"""
    rises = []
    for eta in (1.0, 1e3, 1e9):
        run = icl.descend(icl.ExchangeableRisk(20, gamma=2.0), eta, steps=40)
        rises.append(rise(run))
    largest = max(rises)
    with_noise, series = _at_limit(quick)
    return (
        # A rise up to 1e-12 is rounding: the losses are of the order 1.
        f"{'Not for' if largest <= 1e-12 else 'Even for'} exchangeable tasks without"
        f" noise: up to η = 1e9 the largest rise of the loss is {largest:.0e}."
        f" {with_noise}"
    ), series


def _at_limit(quick: bool) -> tuple[str, list[Series]]:
    """Descend with label noise, at rates around the stability limit of the minimum.

    One start is near the minimum, and one at zero scores. Return the answer in words,
    and curves of the excess of the loss over the minimum against the learning rate.
    """
    risk = icl.PopulationRisk(
        icl.Features.simplex(3, delta=1.0), tasks.Exchangeable(2.0), N=12, noise=1.0
    )
    stable = icl.largest_stable_eta(risk)
    # 2/λ_max, with the largest eigenvalue λ_max of the Hessian at the minimum
    limit = stable.eta
    minimum = stable.params
    least_loss = risk.loss(minimum)
    near_minimum = minimum + 1e-3 * np.random.default_rng(0).normal(size=minimum.shape)
    # Learning rates divided by the limit.
    factors = np.array([0.5, 0.8, 0.95, 0.98, 1.02, 1.05, 1.2, 1.5])
    steps = 2000
    if quick:
        factors = np.array([0.5, 0.95, 1.05, 1.5])
        steps = 120

    from_near = []
    from_zero = []
    for eta in (factors * limit).tolist():
        last_params = plain_descent(risk, near_minimum, eta, steps)
        from_near.append(risk.loss(last_params) - least_loss)
        from_zero.append(_height_at_end(risk, eta, steps) - least_loss)
    excess_from_near = np.array(from_near)
    excess_from_zero = np.array(from_zero)
    # Descent settles if the excess has fallen, and leaves the minimum if it has grown.
    settles = excess_from_near < risk.loss(near_minimum) - least_loss
    behaviour = []
    for factor, does_settle in zip(factors, settles, strict=True):
        behaviour.append(f"{factor:g} ({'settles' if does_settle else 'leaves'})")
    keeps = "keeps" if all(settles == (factors < 1.0)) else "does not keep"
    # A logarithmic axis has no place for 0, nor for the excess below 0 that rounding
    # may leave. 1e-17 is below any excess that is more than rounding.
    ordinates = {
        "started near the minimum": np.maximum(excess_from_near, 1e-17),
        "started from zero": np.maximum(excess_from_zero, 1e-17),
    }
    return (
        "With label noise (K = 3, N = 12, σ = 1) the minimum that descent finds has the"
        f" stability limit 2/λ_max = {limit:.4g}; descent started near it {keeps} to"
        f" that limit, at η over the limit = {', '.join(behaviour)}. Started from zero,"
        f" it ends {excess_from_zero[0]:.1e} above the minimum at {factors[0]:g} of the"
        f" limit, and {excess_from_zero[-1]:.1e} above it at {factors[-1]:g}."
    ), curves(factors, ordinates, points=True)


def _height_at_end(risk: icl.PopulationRisk, eta: float, steps: int) -> float:
    """Return the largest of the last five saved losses of descent from zero scores.

    If descent ends in an oscillation between few values, this is the highest of them.
    """
    last_losses = icl.descend(risk, eta, steps=steps).loss[-5:]
    return float(last_losses.max())


@question("unequal-features", "step", "1 − attention")
def unequal(quick: bool) -> tuple[str, list[Series]]:
    """What happens for features of unequal frequency?"""
    p = np.array([0.4, 0.2, 0.15, 0.1, 0.1, 0.05])
    if quick:
        p = np.array([0.4, 0.2, 0.2, 0.1, 0.1])
    K = len(p)
    risk = icl.PopulationRisk(
        icl.Features.simplex(K, delta=1.0, probs=p), tasks.Exchangeable(2.0)
    )
    run = icl.descend(risk, eta=2.0, epsilon=1e-3)
    half_steps = [_step_of_half(run, k) for k in range(K)]
    # The queries are in the order of their frequency, the most frequent one first.
    is_ordered = all(
        earlier <= later for earlier, later in itertools.pairwise(half_steps)
    )
    # A step 0 has no logarithm.
    exponent = power(p, np.maximum(half_steps, 1))

    # t L(t), divided by its limit (K-1)/(4η) in the tail law, for η = 2.
    over_limit = run.t * run.loss * 8.0 / (K - 1)
    # The quotients at a tenth of the last step, and at the last step.
    quotient_before = float(np.interp(run.t[-1] / 10.0, run.t, over_limit))
    last_quotient = float(over_limit[-1])
    approaches = abs(last_quotient - 1) < abs(quotient_before - 1)
    # The two most frequent queries, and the rarest.
    series = [
        along(f"p = {p[k]:g}", run, 1.0 - run.attention[:, k]) for k in (0, 1, K - 1)
    ]
    return (
        "Queries learn at different times,"
        f" {'frequent ones first' if is_ordered else 'not in the order of frequency'}:"
        f" Attn_k passes ½ at steps {half_steps} for p = {p.tolist()}, fitted by"
        f" p^{exponent:.1f}. t L(t) 4η/(K-1) goes from {quotient_before:.3f} to"
        f" {last_quotient:.3f} in the last decade of steps,"
        f" {'towards' if approaches else 'away from'} the 1 of the tail law."
    ), series


def _step_of_half(run: icl.Trajectory, k: int) -> int:
    """Return the first step at which query k has attention ½ or more on its feature.

    The run must go to a small loss, at which every query has more attention than this.
    """
    step = run.first(lambda state: bool(state.attention[k] >= 0.5))
    assert step is not None  # the small loss guarantees it
    return step


@question("large-L", "L", "steps to ε")
def large_lipschitz(quick: bool) -> tuple[str, list[Series]]:
    """What happens for L far above the threshold?"""
    K = 20
    epsilon = 1e-6
    lipschitz = np.logspace(-1, 3, 41 if quick else 161)
    fixed, shrinking = _steps_at_both_rates(lipschitz, K, epsilon)

    tail = (K - 1) / (4 * epsilon)  # the steps of the tail, (K-1)/(4ηε), at η = 1
    is_beyond = lipschitz > regression.crossover(epsilon, delta=1.0, K=K)
    first_beyond = int(np.argmax(is_beyond))  # the index of the first L beyond L*
    # From some L on the first steps are so long that they reach far into the tail. The
    # first steps count as an overshoot if they save more than half of the tail's steps.
    overshoots = is_beyond & (fixed < 0.5 * tail)
    overshoot_words = "nowhere on this grid"
    first_overshoot = len(lipschitz)
    if overshoots.any():
        first_overshoot = int(np.argmax(overshoots))
        overshoot_words = f"from L = {lipschitz[first_overshoot]:.3g} on"
    over_tail = fixed[first_beyond:first_overshoot] / tail
    # The exponent is fitted at L > 1, which is far above L*, about 0.02 here.
    is_large = lipschitz > 1.0
    exponent = power(lipschitz[is_large], shrinking[is_large])
    ordinates = {
        "η fixed": fixed,
        "η ~ 1/γ": shrinking,
        "(K − 1)/(4ηε)": np.full(len(fixed), tail),
    }
    return (
        f"At fixed η = 1 (Δ = 1, ε = {epsilon:g}) the time is {over_tail.min():.2f} to"
        f" {over_tail.max():.2f} times (K-1)/(4ηε) = {tail:.3g} from L* on;"
        f" {overshoot_words} the first steps overshoot and carry the loss below ε in"
        " less than half of it. If η must shrink like 1/γ, as for noisy or unequal"
        f" tasks, the time grows like L^{exponent:.2f} instead."
    ), curves(lipschitz, ordinates)


class StepsAtRates(NamedTuple):
    """Steps to ε for each of P Lipschitz constants, at the rates 1 and K/γ."""

    fixed: Array  # at the rate 1, (P,)
    shrinking: Array  # at the rate K/γ, (P,)


def _steps_at_both_rates(lipschitz: Array, K: int, epsilon: float) -> StepsAtRates:
    """Count the steps to ε at the rate 1 and at the rate K/γ, which is like 1/L².

    The runs have Δ = 1. A run that begins below ε counts one step, because a
    logarithmic axis has no 0.
    """
    fixed = []
    shrinking = []
    for L in lipschitz.tolist():
        at_fixed_rate = icl.simulate(L, delta=1.0, eta=1.0, K=K, epsilon=epsilon)
        fixed.append(at_fixed_rate.t[-1])
        eta = 2.0 * K / L**2  # K/γ, with γ = L²/2
        at_shrinking_rate = icl.simulate(L, delta=1.0, eta=eta, K=K, epsilon=epsilon)
        shrinking.append(at_shrinking_rate.t[-1])
    return StepsAtRates(
        fixed=np.maximum(np.array(fixed), 1.0),
        shrinking=np.maximum(np.array(shrinking), 1.0),
    )


@question("label-noise", "step", "loss − minimum")
def label_noise(quick: bool) -> tuple[str, list[Series]]:
    """What if the label noise does not vanish?"""
    steps = 3000 if quick else 30_000
    series = []
    final_gaps = []
    for noise in (0.1, 0.3, 1.0):
        risk = icl.ExchangeableRisk(10, gamma=2.0, N=60, noise=noise)
        run = icl.descend(risk, eta=2.0, steps=steps)
        # Step 0 has no place on a logarithmic axis.
        excess = run.loss[1:] - risk.floor()
        # Smaller differences of losses near 1 are rounding.
        series.append(above(1e-13, f"σ = {noise:g}", run.t[1:], excess))
        final_gaps.append(f"u = {float(run.params):.3g} (σ = {noise:g})")
    # With the largest noise the excess decays fastest. If the decay is exponential, the
    # excess halves as fast over the last ten points of the curve as over the ten points
    # before.
    curve_of_largest_noise = series[-1]
    late = _halving_time(curve_of_largest_noise, first=-11, last=-1)
    early = _halving_time(curve_of_largest_noise, first=-21, last=-11)
    # The word "exponentially" in the answer allows a difference of 10 %.
    is_exponential = abs(late / early - 1.0) < 0.1

    # N = ∞, without label noise and with it
    quiet = icl.descend(
        icl.ExchangeableRisk(10, gamma=2.0, noise=0.0), eta=2.0, steps=300
    )
    noisy = icl.descend(
        icl.ExchangeableRisk(10, gamma=2.0, noise=1.0), eta=2.0, steps=300
    )
    return (
        f"For N = inf the loss moves by {apart(noisy.loss, quiet.loss):.0e}: noise"
        " averages out. For finite prompts descent ends at a finite gap, here"
        f" {', '.join(final_gaps)} for K = 10, N = 60, exchangeable tasks. For σ = 1"
        f" the excess loss halves every {late:.3g} steps at the end and every"
        f" {early:.3g} before:"
        f" {'exponentially' if is_exponential else 'not at a steady rate'}."
    ), series


def _halving_time(curve: Series, first: int, last: int) -> float:
    """Return in how many steps a curve halves, on average between two of its points.

    ``first`` and ``last`` are the indices of the points.
    """
    logarithms = np.log2(curve.y)
    steps = curve.x[last] - curve.x[first]
    halvings = logarithms[first] - logarithms[last]
    return float(steps / halvings)


@question("factored", "step", "loss")
def factored(quick: bool) -> tuple[str, list[Series]]:
    """What changes with gradient descent on W_K, W_Q instead of Q?"""
    features = icl.Features.simplex(5, delta=1.5)
    epsilon = 0.02 if quick else 2e-3
    risk = icl.PopulationRisk(features, tasks.Exchangeable(2.0))
    models: dict[str, icl.Risk] = {
        "class scores": risk,
        "Q": icl.in_coordinates(risk, "embedding", features.vectors),
    }
    factor_names = []
    # W_K and W_Q start with random entries whose standard deviation is proportional to
    # the scale.
    for scale in (0.1, 0.01, 0.001):
        name = f"W_K, W_Q, start {scale:g}"
        factor_names.append(name)
        models[name] = icl.in_coordinates(
            risk, "factored", features.vectors, scale=scale, seed=1
        )
    runs = {
        name: icl.descend(model, eta=1.0, epsilon=epsilon)
        for name, model in models.items()
    }
    counts = ", ".join(f"{run.steps} ({name})" for name, run in runs.items())
    # Each start is a tenth of the one before, so that ln(1/start) grows by the same
    # amount each time. If the number of steps is linear in ln(1/start), both smaller
    # starts add the same delay. The answer allows the two delays to differ by a
    # quarter. A run that does not reach ε counts as 0 steps, and the delays then differ
    # by far more.
    factor_steps = [runs[name].steps or 0 for name in factor_names]
    first_delay, second_delay = np.diff(factor_steps).tolist()
    is_logarithmic = 0.8 < second_delay / max(first_delay, 1) < 1.25
    return (
        f"Steps to ε = {epsilon:g}: {counts}. The smaller the start of the factors, the"
        " longer the plateau before they grow: a tenth of the start costs"
        f" {first_delay} and then {second_delay} steps more,"
        f" {'like' if is_logarithmic else 'not like'} ln(1/start)."
    ), [along(name, run, run.loss) for name, run in runs.items()]


@question("finite-samples", "number of prompts M", "loss − population training")
def finite_samples(quick: bool) -> tuple[str, list[Series]]:
    """What if the model is trained on finitely many prompts?"""
    steps = 100 if quick else 200
    repeats = 4 if quick else 30
    set_sizes = np.array([30, 100, 300] if quick else [30, 100, 300, 1000])  # M
    # The mean excess of the population loss for each M.
    mean_excesses = []
    shown = []
    for M in set_sizes.tolist():
        excesses = _excesses_of_sets(M, repeats, steps)
        standard_error = excesses.std(ddof=1) / math.sqrt(repeats)
        mean_excesses.append(excesses.mean())
        shown.append(f"{excesses.mean():.1e} ± {standard_error:.0e} (M = {M})")
    # A mean may be negative by chance, and then has no logarithm. The number in its
    # place is so small that an absurd exponent would show that this has happened.
    exponent = power(set_sizes, np.maximum(mean_excesses, 1e-99))
    abscissas = set_sizes.astype(float)
    # A logarithmic axis has no place for a mean of 0 or less, hence the least ordinate.
    ordinates = np.maximum(mean_excesses, 1e-12)
    return (
        f"After {steps} steps on M fixed prompts the population loss exceeds that of"
        f" population training by {', '.join(shown)}, fitted by M^{exponent:.1f};"
        f" K = 4, N = 20, mean and standard error of {repeats} sets."
    ), [
        Series("excess population loss", abscissas, ordinates, points=True),
        Series("∝ 1/M", abscissas, mean_excesses[0] * set_sizes[0] / set_sizes),
    ]


def _excesses_of_sets(M: int, repeats: int, steps: int) -> Array:
    """Return an excess for each of ``repeats`` sets of M prompts, (repeats,).

    The excess is a difference of population losses: the loss after training on the set,
    minus the loss after as many steps of training on the population itself.
    """
    features = icl.Features.simplex(4, delta=1.0)
    law = tasks.Exchangeable(2.0)
    N = 20
    population = icl.PopulationRisk(features, law, N=N)

    def loss_after_training_on(risk: icl.Risk) -> float:
        """Return the population loss at the end of descent on a risk."""
        return population.loss(icl.descend(risk, eta=4.0, steps=steps).params)

    losses = []
    for seed in range(repeats):
        # A batch of the size of the set: every step has all M prompts.
        fixed_set = icl.SampledRisk(features, law, N, batch=M, seed=seed, dataset=M)
        losses.append(loss_after_training_on(fixed_set))
    return np.array(losses) - loss_after_training_on(population)


@question("fixed-set-tail", "step", "excess population loss")
def fixed_set_tail(quick: bool) -> tuple[str, list[Series]]:
    """When does the 1/t tail end on a fixed set of prompts?"""
    set_sizes = (300, 1000, 3000) if quick else (300, 1000, 3000, 10000)  # M
    sets = 2 if quick else 6
    steps = 200 if quick else 300
    # The target is out of reach, so that all runs take all steps. All runs are then
    # saved at the same steps, so that their losses can be averaged.
    base = icl.Regression(
        L=2.0, delta=1.0, eta=4.0, K=4, N=8, epsilon=1e-300, max_steps=steps
    )
    population_run = base.simulate()
    # The loss that training on the population approaches.
    resting = regression.tails.resting_loss(population_run.risk, population_run.floor)

    def population_tail(t: NDArray[np.int64]) -> Array:
        """Excess of population training over its resting loss at the steps t."""
        losses = [population_run.at(step).loss for step in t.tolist()]
        return np.array(losses) - resting

    series = [
        Series(
            "population training", population_run.t, population_tail(population_run.t)
        )
    ]
    # For each M: the step at which the excess is twice the excess of population
    # training, and the step from which the loss of the set is below the resting loss.
    ends = []
    crossings = []
    for M in set_sizes:
        means = _means_over_sets(base, M, sets)
        t = means.t
        excess = means.population_loss - resting
        ends.append(_first_step(t, excess > 2.0 * population_tail(t)))
        crossings.append(_first_step(t, means.set_loss < resting))
        # A logarithmic axis has no place for an excess of 0 or less.
        series.append(Series(f"M = {M}", t, np.maximum(excess, 1e-12)))
    ends_rise = sorted(ends) == ends and ends[0] < ends[-1]
    return (
        "The population loss leaves the tail of population training, so that its"
        f" excess is twice as large, at step {_steps_of_sets(ends, set_sizes, steps)}:"
        f" {'the later, the larger the set' if ends_rise else 'not in the order of M'}."
        " The loss of the set falls on, and is below the limit of the population loss"
        f" from step {_steps_of_sets(crossings, set_sizes, steps)} on. Softmax"
        f" attention, K = 4, N = 8, η = 4; means of {sets} sets."
    ), series


class MeansOverSets(NamedTuple):
    """Mean losses of training on several fixed sets of M prompts.

    Attributes
    ----------
    t : numpy.ndarray of int, (T,)
        The saved steps, which are the same for all sets.
    population_loss : numpy.ndarray, (T,)
        Loss on all prompts.
    set_loss : numpy.ndarray, (T,)
        Loss on the prompts of the set on which a run is trained.
    """

    t: NDArray[np.int64]
    population_loss: Array
    set_loss: Array


def _means_over_sets(base: icl.Regression, M: int, sets: int) -> MeansOverSets:
    """Train on ``sets`` fixed sets of M prompts, and average the losses."""
    runs = [
        base.changed(dataset=M, dataset_seed=seed, method="exact").simulate()
        for seed in range(sets)
    ]
    population_losses = [run.observed["population_loss"] for run in runs]
    return MeansOverSets(
        t=runs[0].t,
        population_loss=np.mean(population_losses, axis=0),
        set_loss=np.mean([run.loss for run in runs], axis=0),
    )


def _steps_of_sets(first_steps: list[int], set_sizes: Sequence[int], last: int) -> str:
    """Return steps in words, each with the number M of prompts of its set.

    A step after the last one is shown as "> last".
    """
    shown = []
    for step, M in zip(first_steps, set_sizes, strict=True):
        words = f"{step}" if step <= last else f"> {last}"
        shown.append(f"{words} (M = {M})")
    return ", ".join(shown)


def _first_step(t: NDArray[np.int64], is_true: NDArray[np.bool_]) -> int:
    """Return the first of the steps t at which a condition is true.

    If the condition is never true, the result is the step after the last one.
    """
    steps = t[is_true]
    return int(steps[0]) if steps.size else int(t[-1]) + 1


@question("degenerate", "step", "loss, 1 − attention")
def degenerate(quick: bool) -> tuple[str, list[Series]]:
    """Are there degenerate tasks that the condition does not exclude?"""
    K = 6
    steps = 300 if quick else 3000
    features = icl.Features.simplex(K, delta=1.0)
    # The value of a function is L on the first half of the features and -L on the
    # second, or the reverse.
    halves = tasks.Halfspace(1.0)
    half_run = icl.descend(icl.PopulationRisk(features, halves), eta=2.0, steps=steps)
    exchangeable = tasks.Exchangeable(1.0)
    exchangeable_run = icl.descend(
        icl.PopulationRisk(features, exchangeable), eta=2.0, steps=steps
    )

    # The condition: the value of a function at each feature differs from its value at
    # some other feature. The factor has the values of the function, up to its sign.
    values = halves.factor(features)  # (K, 1)
    differences = np.abs(values - values.T)  # (K, K)
    least_difference = float(differences.max(axis=1).min())
    meets_condition = least_difference >= 2.0 * halves.L
    # c_k is the least E(Σ_m x_m f_m - f_k)² over weights x_m >= 0 of the other features
    # with the sum 1. It is 0 for all k: f_k is also the value at the other features of
    # the same half.
    constant = float(halves.nondegeneracy(features).max())
    attention = float(half_run.attention[-1].max())
    learns = half_run.loss[-1] < 0.01 * half_run.loss[0]  # 1 %: clearly on its way to 0
    # Attention on the query's half alone is enough to learn: 2/K on each feature of the
    # half. A query attends to its own feature if this feature has more than 2/K.
    attends = attention > 2.0 / K
    is_degenerate = constant == 0.0 and learns and not attends and meets_condition
    # All queries are alike, so that the figure shows the first one.
    half_deficit = 1.0 - half_run.attention[:, 0]
    exchangeable_deficit = 1.0 - exchangeable_run.attention[:, 0]
    return (
        f"{'Yes' if is_degenerate else 'No'}: f = ±L on two fixed halves, the example"
        " of a public review (ICLR 2026, Reviewer 3). Every function is 2L/Δ-Lipschitz"
        " and differs at each feature from some other by at least"
        f" {least_difference / halves.L:g} L, yet c_k = {constant:g}: after {steps}"
        f" steps the loss is {half_run.loss[-1]:.1e} and Attn_k <= {attention:.3f},"
        f" 2/K being {2 / K:.3f}; an exchangeable task has"
        f" {exchangeable_run.attention[-1].max():.3f}."
    ), [
        along("halves: loss", half_run, half_run.loss),
        along("halves: 1 − attention", half_run, half_deficit),
        along("exchangeable: 1 − attention", exchangeable_run, exchangeable_deficit),
    ]


QUESTIONS = (
    linear,
    tightness,
    separation,
    learning_rate,
    unequal,
    large_lipschitz,
    label_noise,
    factored,
    finite_samples,
    fixed_set_tail,
    degenerate,
    optimisers,
)
