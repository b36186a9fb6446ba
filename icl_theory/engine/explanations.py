"""Explanations of a loss curve that leaves the exact one.

Each explanation is a training that differs from the run in one respect: another rate,
another prompt length, another optimiser and so on. `explain` computes the losses of
these trainings, and returns the trainings with which the curve agrees, best first. It
leaves out explanations whose score exceeds the best score by more than 20.

`Trainings.losses` follows a training (`engine.trainings`). It returns the losses at the
T steps of the curve, (T,), or None if the training fails. `Trainings.check_work` raises
a TooLongError if a number of trainings would take too long.

`Evidence` judges a training (`engine.evidence`), by means over W windows of the steps.
Its score says how badly the curve agrees with the losses of the training; lower is
better. The scatter of a random training enters through its modes, (D, W): the scaled
deviations of D draws from their mean. A `Candidate` is a training that has not been
judged yet.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from icl_theory._validate import Array
from icl_theory.engine.evidence import Candidate, Evidence
from icl_theory.engine.loss_curve import Run
from icl_theory.engine.progress import counted
from icl_theory.engine.risk import Risk
from icl_theory.engine.rules import (
    Adam,
    GradientDescent,
    HeavyBall,
    Rule,
    Schedule,
    Scheduled,
    is_plain_descent,
)
from icl_theory.engine.rules.schedules import Cosine, StepDecay, WarmUp
from icl_theory.engine.sampling import trainer_of
from icl_theory.engine.scaled import scaled_like
from icl_theory.engine.trainings import (
    MOST_WORK,
    FixedSet,
    MeanRisk,
    StartedAt,
    TooLongError,
    Trainings,
)
from icl_theory.engine.windows import Windows

# The first six numbers balance the time of a search against what it can find.
#
# Seconds after which no further explanation is tried.
PATIENCE = 60.0
# The number of random starts, and of fixed sets, that are drawn. From D draws the
# scatter of trainings is known to a relative error of about 1/√(2 (D - 1)), here 30 %.
DRAWS = 6
# The size of the starts is fitted with this many of the draws. All draws would take
# longer, and the size is stated only roughly.
DRAWS_OF_FIT = 3
# The number of prompts of a drawn fixed set. The gap between the exact loss and the
# loss of such sets is scaled to sets of other sizes, to leading order in 1 / size. With
# fewer prompts the next order would matter, and with more prompts a training would take
# longer.
SET_SIZE = 256
# The largest number of positions for which the mean over positions is tried. A gradient
# of the mean over N positions takes as long as N gradients of the run.
MOST_POSITIONS = 64
# The largest number of parameters for which random starts are tried.
LARGEST_START = 10_000
# A score is -2 times a log-likelihood, so a difference of 2 is a factor e of the
# likelihood. The next five numbers are cautious choices: they weigh what the likelihood
# leaves out.
#
# A factor of the loss without a known reason adds this to the score.
UNKNOWN_FACTOR = 4.0
# A factor of the loss together with another change adds this to the score.
TWO_CHANGES = 6.0
# The score of a fixed set is lower by this if the curve is smooth: its successive
# losses scatter less than their standard errors, as losses of the same prompts do.
SMOOTHNESS = 20.0
# A number with a known reason, such as the factor 2 of the loss, is preferred to the
# fitted number if the score with the known number is higher by less than this.
REASON = 4.0
# Explanations are left out if their score is higher than the best score by more than
# this.
WORSE = 20.0
# A number is fitted by computing losses on a grid and interpolating between them. The
# grid is refined until the score of the computed losses exceeds the score of the
# interpolated ones by at most GOOD_ENOUGH, which is far below the differences of scores
# that decide between explanations. There are at most MOST_GRIDS grids.
MOST_GRIDS = 4
GOOD_ENOUGH = 0.5
# A finer grid has REFINED_POINTS numbers, with the best number so far in the middle.
# The first finer grid extends to each side by REFINEMENT times the spacing of the first
# grid, and each later one by REFINEMENT times as much as the one before.
REFINEMENT = 0.25
REFINED_POINTS = 5
# Between the numbers of the grid there may be several minima of the score. This many
# points for each number are a cautious choice to find the lowest one.
POINTS_EACH = 8
# The precision of the logarithm of a fitted number; the number is shown with three
# digits.
LOG_PRECISION = 1e-7
# The grids at which losses are computed first. The ends of a grid limit the numbers
# that can be found, and its spacing is fine enough for an interpolation in the
# logarithm.
#
# Factors of the learning rate, in units of the pace of the curve. The pace is the
# factor c with which the curve agrees best with the losses of the run at the steps c t.
RATE_FACTORS = np.geomspace(0.8, 1.25, 5)
# The number of paces that are compared. A pace takes no training, so this grid may be
# fine.
PACES = 65
# Prompt lengths, in units of the length of the run.
LENGTH_FACTORS = np.geomspace(0.25, 4.0, 9)
# Factors of the parameters at step 0.
START_FACTORS = np.geomspace(1 / 64, 256, 15)
# Standard deviations of random parameters at step 0.
START_DEVIATIONS = np.geomspace(0.1, 3.2, 6)
# Sizes of fixed sets, in units of the batch size. No batch is larger than its set, but
# the grid begins below 1 because the batch size is only estimated.
SET_FACTORS = np.geomspace(0.8, 32.0, 12)
# Factors of the loss with a known reason.
REASONS = {
    2.0: "as if the loss lacked its factor 1/2; scale = 0.5 corrects this",
    0.5: "as if the loss had a second factor 1/2; scale = 2 corrects this",
}
# The usual momentum.
MOMENTUM = 0.9
# The largest pace that is looked for; the smallest one is its inverse.
LARGEST_PACE = 16.0
# How schedules with a fitted number of steps are made, and described in words.
SCHEDULES: tuple[tuple[Callable[[int], Schedule], str], ...] = (
    (WarmUp, "warms up during about {:,} steps"),
    (partial(StepDecay, decay=0.5), "is halved about every {:,} steps"),
    (partial(StepDecay, decay=0.1), "is divided by 10 about every {:,} steps"),
)
# Number of steps of the shortest curve for which schedules are tried. In fewer steps
# one schedule can hardly be told from another.
SHORTEST_SCHEDULE = 16
# The number of steps of a schedule is fitted between SHORTEST_PART of the curve and the
# whole curve. The first grid has SCHEDULE_POINTS numbers. Neighbours differ by a factor
# of about 1.6, and losses are interpolated between them.
SHORTEST_PART = 1.0 / 32.0
SCHEDULE_POINTS = 8
# The fits of all schedules take about this many trainings: three schedules, each with
# a grid of SCHEDULE_POINTS and a few finer grids of REFINED_POINTS.
TRAININGS_OF_SCHEDULES = 60


@dataclass(frozen=True)
class Explanation:
    """A training that differs from the run, and with which a loss curve agrees.

    Attributes
    ----------
    name : str
        "rate", "factor", "prompt length", "momentum", "adam", "plain descent",
        "schedule", "start", "label noise", "fixed set", "after the update" or
        "positions"; two of them joined by "and" if the losses also have a factor.
    sentence : str
        The difference from the run, in words.
    parameters : dict
        The parameters of the run that would have to change, with their new values.
    misfit : float
        Mean square of the differences from the curve, in standard errors.
    losses : ndarray, (T,), or None
        The losses of this training at the steps of the comparison; None if no training
        explains all steps.
    """

    name: str
    sentence: str
    parameters: dict[str, Any]
    misfit: float
    losses: Array | None = field(default=None, repr=False, compare=False)

    def plain(self) -> dict[str, Any]:
        """Return name, sentence, parameters and misfit, for JSON."""
        return {
            "name": self.name,
            "sentence": self.sentence,
            "parameters": self.parameters,
            "misfit": self.misfit,
        }


class Explanations(NamedTuple):
    """The outcome of `explain`.

    Attributes
    ----------
    fitting : tuple of Explanation
        The explanations that fit, best first.
    untried : tuple of str
        The names of the explanations that were not tried, because they take too long.
    """

    fitting: tuple[Explanation, ...]
    untried: tuple[str, ...]


class Optimum(NamedTuple):
    """A fitted number.

    Attributes
    ----------
    number : float
        The number at which the curve agrees best with a training.
    losses : ndarray, (T,), or None
        The losses of this training; None if the training fails.
    """

    number: float
    losses: Array | None


def _best(
    evidence: Evidence,
    losses_at: Callable[[float], Array | None],
    grid: Sequence[float] | Array,
    modes_at: Callable[[float], Array] | None = None,
) -> Optimum:
    """Return the positive number at which a training agrees best with a curve.

    Parameters
    ----------
    evidence : Evidence
        The curve.
    losses_at : callable
        Takes the number, and returns the losses of the training, or None if it fails.
    grid : array_like
        Increasing numbers, at which the losses are computed first. Between them they
        are interpolated in the logarithm of the number. The grid becomes finer until
        the interpolation is good enough.
    modes_at : callable, optional
        Takes the number, and returns the modes of a random training (`Candidate`).
    """
    logs = np.log(np.asarray(grid, dtype=float))
    # The finer grids extend by this much to each side of the best number, times
    # REFINEMENT for each refinement.
    half_width = float(np.diff(logs).max())
    for _ in range(MOST_GRIDS):
        estimate = _best_interpolated(evidence, losses_at, logs, modes_at)
        number = math.exp(estimate.log)
        losses = losses_at(number)
        if losses is None:
            break
        # The interpolation is good enough if the computed losses have nearly the score
        # of the interpolated ones.
        modes = None if modes_at is None else modes_at(number)
        score = evidence.score(evidence.windows.means(losses), modes)
        if score <= estimate.score + GOOD_ENOUGH:
            break
        half_width *= REFINEMENT
        logs = estimate.log + half_width * np.linspace(-1.0, 1.0, REFINED_POINTS)
    return Optimum(number, losses)


class _Estimate(NamedTuple):
    """Logarithm of a number, and the score that the interpolated losses have there."""

    log: float
    score: float


def _best_interpolated(
    evidence: Evidence,
    losses_at: Callable[[float], Array | None],
    log_grid: Array,
    modes_at: Callable[[float], Array] | None = None,
) -> _Estimate:
    """Estimate the number at which a training agrees best with a curve.

    Return the logarithm of this number, and the score of the interpolated losses at
    this number. ``log_grid`` has the logarithms of the numbers at which losses are
    computed; ``losses_at`` and ``modes_at`` are as in ``_best``. If the training
    succeeds at fewer than two of these numbers, nothing can be interpolated, and the
    score is infinite.
    """
    from scipy.interpolate import PchipInterpolator

    # The logarithms at which the training does not fail, and its means over windows.
    logs = []
    means = []
    for log in log_grid:
        losses = losses_at(math.exp(log))
        if losses is not None:
            logs.append(log)
            means.append(evidence.windows.means(losses))
    if len(logs) < 2:
        only_log = logs[0] if logs else log_grid[0]
        return _Estimate(only_log, score=math.inf)
    means_at = PchipInterpolator(logs, np.array(means))

    def score(log: float) -> float:
        modes = None if modes_at is None else modes_at(math.exp(log))
        return evidence.score(means_at(log), modes)

    points = np.linspace(logs[0], logs[-1], POINTS_EACH * len(logs))
    return _lowest(score, points)


def _lowest(score: Callable[[float], float], logs: Array) -> _Estimate:
    """Return the logarithm with the lowest score, near the best of ``logs``.

    ``score`` takes a logarithm. The lowest score is returned, too.
    """
    from scipy.optimize import minimize_scalar

    scores = [score(log) for log in logs]
    best = int(np.argmin(scores))
    low = logs[max(best - 1, 0)]
    high = logs[min(best + 1, len(logs) - 1)]
    outcome = minimize_scalar(
        score,
        bounds=(low, high),
        method="bounded",
        options={"xatol": LOG_PRECISION},
    )
    # The search may end with a higher score than the best of the given logarithms, for
    # example if that logarithm is a bound, which the search never reaches.
    if outcome.fun <= scores[best]:
        return _Estimate(float(outcome.x), float(outcome.fun))
    return _Estimate(float(logs[best]), scores[best])


# ---- explanations, in the order in which they are tried
#
# Each of these functions yields the trainings with one change that may explain a curve.
# It yields none if the change is not possible in the run. It raises a TooLongError if
# the trainings would take too long.


def _rate(trainings: Trainings, evidence: Evidence) -> Iterator[Candidate]:
    """Yield a training at another learning rate.

    Another factor of the gradients gives the same training.
    """
    run = trainings.run
    # With a learning rate c times as large, training runs through nearly the same curve
    # at c times the pace. No training is needed to find the pace of the curve, and the
    # pace shows which rates to try.
    pace = _pace_of_curve(trainings, evidence)

    def losses_at_rate(factor: float) -> Array | None:
        return trainings.losses(eta=factor * run.eta)

    # A grid takes one training for each number, and its best number takes another one.
    # Another rate is the most common reason for a difference, so it may take ten times
    # as much work as other explanations.
    trainings.check_work(len(RATE_FACTORS) + 1, most=10 * MOST_WORK)
    grid = pace * RATE_FACTORS
    factor, losses = _best(evidence, losses_at_rate, grid)
    if losses is None:
        return
    yield Candidate(
        name="rate",
        sentence=(
            f"its learning rate, or its gradients, are {factor:.3g} times those of the "
            f"run (eta = {factor * run.eta:.3g})"
        ),
        parameters={"eta": factor * run.eta},
        losses=losses,
        fitted=1,
    )


def _pace_of_curve(trainings: Trainings, evidence: Evidence) -> float:
    """Return the factor c with which the curve agrees best with the run at steps c t.

    The losses of the run are interpolated in ln(1 + t).
    """
    run = trainings.run
    t = trainings.windows.t
    # The exact losses at the saved steps of the run and at the steps of the curve. A
    # step that is in both arrays is taken once.
    steps, first_index = np.unique(np.append(run.t, t), return_index=True)
    run_losses = np.append(run.loss, trainings.exact)[first_index]

    def losses_at_pace(pace: float) -> Array:
        return np.interp(np.log1p(pace * t), np.log1p(steps), run_losses)

    largest_log = math.log(LARGEST_PACE)
    log_paces = np.linspace(-largest_log, largest_log, PACES)
    return math.exp(_best_interpolated(evidence, losses_at_pace, log_paces).log)


def _factor(trainings: Trainings, evidence: Evidence) -> Iterator[Candidate]:
    """Yield the training of the run itself, with its losses times a factor.

    A factor with a known reason is preferred to the fitted one.
    """
    factor = _fitted_factor(trainings, evidence)
    # Only a positive factor makes sense. An overflow gives infinity or NaN, and the
    # comparison is false for NaN.
    if not 0.0 < factor < math.inf:
        return
    reason = ""
    # `scaled` divides the curve by the factor, and the run is compared with the result.
    score_of_fit = evidence.scaled(1.0 / factor).score_of_losses(trainings.exact)
    for common_factor, words in REASONS.items():
        unscaled = evidence.scaled(1.0 / common_factor)
        if unscaled.score_of_losses(trainings.exact) < score_of_fit + REASON:
            factor = common_factor
            reason = f", {words}"
    # The argument `scale` of `Trajectory.compare` multiplies the losses of the curve.
    yield Candidate(
        name="factor",
        sentence=f"its losses are {factor:.3g} times the exact ones{reason}",
        parameters={"scale": 1.0 / factor},
        losses=trainings.exact,
        fitted=0 if reason else 1,
        factor=factor,
        prior=0.0 if reason else UNKNOWN_FACTOR,
    )


def _fitted_factor(trainings: Trainings, evidence: Evidence) -> float:
    """Return the factor with which the exact losses agree best with the curve.

    It minimises the weighted sum of squared differences. With the weights w, the
    expected means x and the means y of the curve it is Σ w x y / Σ w x², and 0 if all
    expected means are 0.
    """
    weights = evidence.weights()
    # `shift` is the amount that the noise of batches adds to all mean losses.
    expected = evidence.windows.means(trainings.exact) + evidence.shift
    sum_of_squares = float(np.sum(weights * expected**2))
    if sum_of_squares == 0.0:
        return 0.0
    return float(np.sum(weights * expected * evidence.means)) / sum_of_squares


def _prompt_length(trainings: Trainings, evidence: Evidence) -> Iterator[Candidate]:
    """Yield trainings on prompts of another length.

    One token more and one less are tried first. If the curve agrees with neither, the
    length that agrees best is fitted.
    """
    # N is None if the prompts of the run have no length, or an infinite one.
    N = trainings.integer_parameter("N")
    if N is None:
        return

    # The losses at each length are kept, because the risks of some lengths take long to
    # make. The result is None if the family refuses the length.
    @cache
    def losses_at(length: int) -> Array | None:
        risk = trainings.changed(N=length)
        return None if risk is None else trainings.losses(risk)

    reasons = {
        N + 1: ", as if the query counted as a token",
        N - 1: ", as if that length included the query",
    }
    has_reason = False
    for length, reason in reasons.items():
        losses = losses_at(length) if length >= 1 else None
        if losses is None:
            continue
        candidate = _of_length(length, N, losses, fitted=0, reason=reason)
        has_reason = has_reason or evidence.verdict(candidate).fits
        yield candidate
    if not has_reason:
        yield from _fitted_length(trainings, evidence, N, losses_at)


def _fitted_length(
    trainings: Trainings,
    evidence: Evidence,
    N: int,
    losses_at: Callable[[int], Array | None],
) -> Iterator[Candidate]:
    """Yield the training on prompts of the length that agrees best.

    N is the length of the run. ``losses_at`` takes a length, and returns the losses of
    a training, or None if it fails.
    """
    lengths = np.unique(np.round(N * LENGTH_FACTORS).astype(int))
    grid = [length for length in lengths.tolist() if length >= 1]
    trainings.check_work(len(grid) + 1)
    # The exponential of the logarithm of a length may differ from the length by
    # rounding, so it is rounded to an integer.
    estimate = _best_interpolated(
        evidence, lambda length: losses_at(round(length)), np.log(grid)
    )
    length = round(math.exp(estimate.log))
    losses = losses_at(length)
    if losses is not None:
        yield _of_length(length, N, losses, fitted=1)


def _of_length(
    length: int, N: int, losses: Array, fitted: int, reason: str = ""
) -> Candidate:
    """Return the training on prompts of a ``length`` instead of N."""
    sentence = f"its prompts have the length N = {length}, not {N}{reason}"
    return Candidate(
        name="prompt length",
        sentence=sentence,
        parameters={"N": length},
        losses=losses,
        fitted=fitted,
    )


def _optimiser(trainings: Trainings, evidence: Evidence) -> Iterator[Candidate]:
    """Yield trainings by another rule at the same learning rate.

    If the run was trained by the heavy-ball rule, the other rule is plain descent. If
    it was trained by plain descent, the other rules are momentum and Adam. For a run by
    any other rule there is no such training.
    """
    rule_of_run = trainings.rule
    if isinstance(rule_of_run, HeavyBall):
        yield from _by_rule(
            trainings,
            GradientDescent(),
            name="plain descent",
            sentence="it is trained without the momentum of the run",
            parameters={"rule": "gd"},
        )
    if not is_plain_descent(rule_of_run):
        return
    yield from _by_rule(
        trainings,
        HeavyBall(MOMENTUM),
        name="momentum",
        sentence=f"it is trained with momentum {MOMENTUM:g} at the same learning rate",
        parameters={"rule": "heavy-ball", "momentum": MOMENTUM},
    )
    # Adam divides each entry of the gradient by its own size, so it trains all
    # parameters and not a reduction of them. `entries` returns the risk as a function
    # of all parameters, or None if it is not known.
    entries = trainings.entries()
    if entries is not None:
        yield from _by_rule(
            trainings,
            Adam(),
            name="adam",
            sentence="it is trained by Adam at the same learning rate",
            parameters={"rule": "adam"},
            risk=entries,
        )


def _by_rule(
    trainings: Trainings,
    rule: Rule,
    name: str,
    sentence: str,
    parameters: dict[str, Any],
    risk: Risk | None = None,
) -> Iterator[Candidate]:
    """Yield the training by a rule, on the risk of the run unless a risk is given.

    ``name``, ``sentence`` and ``parameters`` become fields of the `Candidate`.
    """
    losses = trainings.losses(risk, rule=rule)
    if losses is not None:
        yield Candidate(name, sentence, parameters, losses, fitted=0)


def _start(trainings: Trainings, evidence: Evidence) -> Iterator[Candidate]:
    """Yield a training whose parameters at step 0 are a multiple of the run's.

    If the run starts from zeros, the training starts from random parameters.
    """
    risk = trainings.risk
    if risk is None:
        return
    initial = np.asarray(risk.initial)
    if not initial.any():
        yield from _random_start(trainings, evidence)
        return

    def losses_from(factor: float) -> Array | None:
        return trainings.losses(StartedAt(risk, factor * initial))

    trainings.check_work(len(START_FACTORS) + 1)
    factor, losses = _best(evidence, losses_from, START_FACTORS)
    if losses is None:
        return
    # Some families have a parameter for the size of the start. Name its new value.
    start_of_run = getattr(trainings.run.family, "start", None)
    parameters: dict[str, Any] = {"start_scale": factor}
    new_value = ""
    if isinstance(start_of_run, float):
        parameters = {"start": factor * start_of_run}
        new_value = f" (start = {factor * start_of_run:.3g})"
    yield Candidate(
        name="start",
        sentence=(
            f"its parameters at step 0 are {factor:.3g} times those of the "
            f"run{new_value}"
        ),
        parameters=parameters,
        losses=losses,
        fitted=1,
    )


def _random_start(trainings: Trainings, evidence: Evidence) -> Iterator[Candidate]:
    """Yield a training from independent normal parameters instead of zeros.

    Their standard deviation is fitted with a few draws. More draws then show how such
    trainings scatter.
    """
    # The risk as a function of all parameters. The risk of the run may have a single
    # parameter in the place of several that stay equal if they start from zeros. From a
    # random start they differ.
    entries = trainings.entries()
    if entries is None or np.size(entries.initial) > LARGEST_START:
        return
    shape = np.shape(entries.initial)
    # The seed is fixed, so that the outcome is reproducible.
    rng = np.random.default_rng(0)
    standard_normals = [rng.normal(size=shape) for _ in range(DRAWS)]

    # Takes a standard deviation, and returns the mean losses of a few draws.
    def mean_losses(deviation: float) -> Array | None:
        starts = [deviation * normal for normal in standard_normals[:DRAWS_OF_FIT]]
        curves = _losses_from(trainings, entries, starts)
        return None if curves is None else np.mean(curves, axis=0)

    trainings.check_work(DRAWS_OF_FIT * len(START_DEVIATIONS) + DRAWS, entries)
    estimate = _best_interpolated(evidence, mean_losses, np.log(START_DEVIATIONS))
    deviation = math.exp(estimate.log)
    starts = [deviation * normal for normal in standard_normals]
    curves = _losses_from(trainings, entries, starts)
    if curves is None:
        return
    yield Candidate(
        name="start",
        sentence=(
            "its parameters at step 0 are random, with a standard deviation of roughly "
            f"{deviation:.1g}"
        ),
        parameters={"start_deviation": deviation},
        losses=np.mean(curves, axis=0),
        fitted=1,
        modes=_modes(trainings.windows, np.array(curves)),
    )


def _losses_from(
    trainings: Trainings, risk: Risk, starts: list[Array]
) -> list[Array] | None:
    """Return the losses of a training from each start, (T,); None if one fails."""
    curves = []
    for start in starts:
        losses = trainings.losses(StartedAt(risk, start))
        if losses is None:
            return None
        curves.append(losses)
    return curves


def _modes(windows: Windows, curves: Array) -> Array:
    """Return the modes of a random training, (D, W).

    ``curves`` are the losses of D draws, (D, T). The modes are the deviations of the
    means over windows from their mean over the draws. They are scaled so that the sum
    of their squares estimates the variance of another draw about this mean. This
    variance is s² (1 + 1/D), with the sample variance s², because the mean of D draws
    scatters, too.
    """
    means = windows.means(curves)
    D = len(curves)
    # s² is the sum of the squared deviations, divided by D - 1.
    scale = math.sqrt((1.0 + 1.0 / D) / (D - 1))
    return np.asarray(scale * (means - means.mean(axis=0)))


def _label_noise(trainings: Trainings, evidence: Evidence) -> Iterator[Candidate]:
    """Yield the training of the run itself, with a constant added to its losses.

    Noise of the standard deviation σ in the answers adds σ²/2 to the loss, which is
    half the squared error. The noise of the run's own labels is preferred to a fitted
    one.
    """
    family = trainings.run.family
    # A family without label noise may have a loss other than the squared one, to which
    # noise would not add a constant.
    if family is not None and not hasattr(family, "noise"):
        return
    weights = evidence.weights()
    # `shift` is the amount that the noise of batches adds to all mean losses.
    expected = evidence.windows.means(trainings.exact) + evidence.shift
    difference = evidence.means - expected
    # The weighted mean of the difference is the best constant, by least squares. Noise
    # adds a positive constant. The comparison is false for NaN, from an overflow.
    constant = float(np.sum(weights * difference) / np.sum(weights))
    if not 0.0 < constant < math.inf:
        return
    fitted = 1
    label_noise = getattr(family, "noise", 0.0)
    if isinstance(label_noise, int | float) and label_noise > 0.0:
        constant_of_labels = 0.5 * label_noise**2
        score_of_labels = evidence.score_of_losses(trainings.exact + constant_of_labels)
        score_of_fit = evidence.score_of_losses(trainings.exact + constant)
        if score_of_labels < score_of_fit + REASON:
            constant = constant_of_labels
            fitted = 0
    noise = math.sqrt(2.0 * constant)
    yield Candidate(
        name="label noise",
        sentence=(
            f"its losses are {constant:.3g} above the exact ones at all steps, as with "
            f"label noise {noise:.3g} in the answers"
        ),
        parameters={"answer_noise": noise},
        losses=trainings.exact + constant,
        fitted=fitted,
    )


def _fixed_set(trainings: Trainings, evidence: Evidence) -> Iterator[Candidate]:
    """Yield a training on a fixed set of prompts.

    To leading order in 1/M, the loss of a training on M prompts is on average below the
    exact loss by a gap that is proportional to 1/M, and scatters from set to set by an
    amount that is proportional to 1/√M. Trainings on sets of SET_SIZE prompts show the
    gap and the scatter.
    """
    sets = _sets(trainings)
    # The batch size, which tells which sizes of the set are likely. It is estimated, so
    # it need not be an integer.
    batch = _batch_of_curve(evidence, sets)
    if batch is None:
        return
    curves = _losses_on_sets(trainings, sets)
    if curves is None:
        return
    trainings_on_sets = _SetsOfSize(
        exact=trainings.exact,
        gap=trainings.exact - np.mean(curves, axis=0),
        modes=_modes(trainings.windows, np.array(curves)),
    )
    # Either each batch is the whole set, so that the set has the size of a batch, or
    # batches are drawn from a set whose size is fitted.
    is_smooth = evidence.is_smooth
    with_size_of_batch = _of_set(
        trainings_on_sets, batch, fitted=0, is_smooth=is_smooth
    )
    grid = batch * SET_FACTORS
    fitted_size = _best(
        evidence, trainings_on_sets.losses, grid, trainings_on_sets.scatter
    ).number
    with_fitted_size = _of_set(
        trainings_on_sets, fitted_size, fitted=1, is_smooth=is_smooth
    )
    yield min(
        with_size_of_batch,
        with_fitted_size,
        key=lambda training: evidence.verdict(training).score,
    )


def _batch_of_curve(evidence: Evidence, sets: list[FixedSet]) -> float | None:
    """Estimate the batch size B of a curve.

    The standard error of the loss of a batch is s/√B, with the standard deviation s of
    the losses of single prompts. The result is None if there is no set from which to
    learn s, or no standard error.
    """
    # `FixedSet.deviation` is the standard deviation at step 0, so it is compared with
    # the standard error of a single loss in the first window. `errors` has the standard
    # error of the mean of the window's n losses, which is smaller by the factor √n.
    first_error = evidence.errors[0] * math.sqrt(evidence.windows.counts[0])
    if not sets or first_error <= 0.0:
        return None
    deviation = np.mean([fixed_set.deviation for fixed_set in sets])
    return float(deviation / first_error) ** 2


class _SetsOfSize(NamedTuple):
    """Trainings on fixed sets of any size, to leading order in 1 / size.

    Attributes
    ----------
    exact : ndarray, (T,)
        The exact losses.
    gap : ndarray, (T,)
        The exact losses minus the mean losses of trainings on SET_SIZE prompts.
    modes : ndarray, (D, W)
        The modes of these trainings, see `_modes`.
    """

    exact: Array
    gap: Array
    modes: Array

    def losses(self, size: float) -> Array:
        """Return the mean losses of trainings on ``size`` prompts, (T,)."""
        return np.asarray(self.exact - SET_SIZE / size * self.gap)

    def scatter(self, size: float) -> Array:
        """Return the modes of trainings on ``size`` prompts, (D, W)."""
        return math.sqrt(SET_SIZE / size) * self.modes


def _of_set(
    trainings_on_sets: _SetsOfSize, size: float, fitted: int, is_smooth: bool
) -> Candidate:
    """Return the training on a set of ``size`` prompts.

    ``is_smooth`` tells whether the curve is smooth, which speaks for a fixed set.
    """
    reason = ""
    prior = 0.0
    if is_smooth:
        reason = " (successive losses scatter less than their standard errors)"
        prior = -SMOOTHNESS
    return Candidate(
        name="fixed set",
        sentence=(
            f"it is trained on a fixed set of about {_rounded(size):,} prompts{reason}"
        ),
        parameters={"dataset": _rounded(size)},
        losses=trainings_on_sets.losses(size),
        fitted=fitted,
        modes=trainings_on_sets.scatter(size),
        prior=prior,
    )


def _losses_on_sets(trainings: Trainings, sets: list[FixedSet]) -> list[Array] | None:
    """Return the losses of a training on each set, (T,); None if a training fails."""
    if sets:
        # All sets have as many prompts, so the work on the first one stands for all. A
        # gradient on SET_SIZE prompts may take longer than an exact one; the factor 4
        # for this is a cautious choice.
        trainings.check_work(4 * DRAWS, sets[0])
    curves = []
    for fixed_set in sets:
        losses = trainings.losses(fixed_set)
        if losses is None:
            return None
        curves.append(losses)
    return curves


def _sets(trainings: Trainings) -> list[FixedSet]:
    """Return DRAWS risks on fixed sets of SET_SIZE prompts.

    The list is empty if the risk of the run is unknown or cannot be sampled, or if the
    run itself is training on a fixed set.
    """
    run = trainings.run
    # ``trainings.risk`` is the risk of the run. For a run from a file, which has none,
    # it is the risk that the family makes.
    if getattr(run, "on_fixed_set", False) or trainings.risk is None:
        return []
    sets = []
    for seed in range(DRAWS):
        try:
            if run.family is None:
                trainer = trainer_of(trainings.risk, SET_SIZE, seed)
            else:
                # The run may train a multiple of the loss that the family samples.
                # `scaled_like` applies its factor, if ``run.risk`` has one.
                trainer = scaled_like(run.risk, run.family.sampled(SET_SIZE, seed))
        except ValueError:  # the risk cannot be sampled
            return []
        sets.append(FixedSet(trainer))
    return sets


def _rounded(size: float) -> int:
    """Round a number of prompts to two significant digits; below 100, to an integer."""
    unit = 10 ** max(int(math.log10(size)) - 1, 0)
    return round(size / unit) * unit


def _after_update(trainings: Trainings, evidence: Evidence) -> Iterator[Candidate]:
    """Yield the training of the run itself, with its losses shifted by one step.

    A program may record the loss after the update, which is the loss of the next step.
    Or it may count its steps from 1, so that each loss belongs to the step before.
    """
    # With a shift, `losses` returns the losses at the steps t + shift.
    next_losses = trainings.losses(shift=1)
    if next_losses is not None:
        yield Candidate(
            name="after the update",
            sentence=(
                "each loss is taken after the update of its step, so that the first "
                "loss is the loss of step 1"
            ),
            parameters={"steps": "+1"},
            losses=next_losses,
            fitted=0,
        )
    # The opposite shift has the same name, which is the key of this function. If the
    # curve has a step 0, its steps are not counted from 1.
    if trainings.windows.t[0] == 0:
        return
    previous_losses = trainings.losses(shift=-1)
    if previous_losses is not None:
        yield Candidate(
            name="after the update",
            sentence="its steps are counted from 1",
            parameters={"steps": "-1"},
            losses=previous_losses,
            fitted=0,
        )


def _positions(trainings: Trainings, evidence: Evidence) -> Iterator[Candidate]:
    """Yield a training on the mean loss over all positions of a prompt.

    The answer at position n depends on the first n tokens, so its loss is the loss of
    prompts of the length n.
    """
    N = trainings.integer_parameter("N")
    if N is None or not 2 <= N <= MOST_POSITIONS:
        return
    risks = []
    for length in range(1, N + 1):
        risk = trainings.changed(N=length)
        if risk is None:
            return
        risks.append(risk)
    mean_risk = MeanRisk(risks)
    # A gradient of the mean takes N gradients, as many as N trainings on one risk.
    trainings.check_work(N, mean_risk)
    losses = trainings.losses(mean_risk)
    if losses is not None:
        yield Candidate(
            name="positions",
            sentence=(
                f"its loss is the mean over the positions 1 to {N} of a prompt, each "
                "answered from the tokens up to it"
            ),
            parameters={"N": f"1 to {N}"},
            losses=losses,
            fitted=0,
        )


def _schedule(trainings: Trainings, evidence: Evidence) -> Iterator[Candidate]:
    """Yield trainings whose learning rate falls or warms up."""
    # The number of steps of the curve.
    end = trainings.last + 1
    # A run that has a schedule already is not given another one.
    if isinstance(trainings.rule, Scheduled) or end < SHORTEST_SCHEDULE:
        return
    cosine = Scheduled(trainings.rule, Cosine(end))
    # A training takes the same work by any schedule.
    trainings.check_work(TRAININGS_OF_SCHEDULES, rule=cosine)
    losses = trainings.losses(rule=cosine)
    if losses is not None:
        words = f"falls like a cosine, to zero at step {end:,}"
        yield _of_schedule(Cosine(end), words, losses, fitted=0)
    for make_schedule, words in SCHEDULES:
        yield from _fitted_schedule(trainings, evidence, make_schedule, words)


def _fitted_schedule(
    trainings: Trainings,
    evidence: Evidence,
    make_schedule: Callable[[int], Schedule],
    words: str,
) -> Iterator[Candidate]:
    """Yield a training by a schedule, whose number of steps is fitted.

    ``make_schedule`` takes the number of steps. ``words`` describes the schedule, with
    a place for this number.
    """

    def losses_with(steps: float) -> Array | None:
        rule = Scheduled(trainings.rule, make_schedule(round(steps)))
        return trainings.losses(rule=rule)

    end = trainings.last + 1
    # A warm-up of a single step would change nothing.
    shortest = max(2.0, SHORTEST_PART * end)
    grid = np.geomspace(shortest, end, SCHEDULE_POINTS)
    best = _best(evidence, losses_with, grid)
    if best.losses is not None:
        steps = round(best.number)
        schedule = make_schedule(steps)
        yield _of_schedule(schedule, words.format(steps), best.losses, fitted=1)


def _of_schedule(
    schedule: Schedule, words: str, losses: Array, fitted: int
) -> Candidate:
    """Return the training by a schedule, which ``words`` describes."""
    sentence = f"its learning rate {words}"
    return Candidate(
        name="schedule",
        sentence=sentence,
        parameters={"schedule": schedule.name},
        losses=losses,
        fitted=fitted,
    )


Explainer = Callable[[Trainings, Evidence], Iterator[Candidate]]
EXPLAINERS: Mapping[str, Explainer] = {
    "rate": _rate,
    "factor": _factor,
    "prompt length": _prompt_length,
    "optimiser": _optimiser,
    "start": _start,
    "label noise": _label_noise,
    "fixed set": _fixed_set,
    "after the update": _after_update,
    "positions": _positions,
}
# These are tried if nothing else fits: some schedule resembles nearly any change.
LAST_EXPLAINERS: Mapping[str, Explainer] = {"schedule": _schedule}


# Without standard errors a difference in units of rounding may overflow.
@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def explain(run: Run, rule: Rule, evidence: Evidence) -> Explanations:
    """Return the explanations that fit a curve, best first.

    Step 0, before any update, may show a factor 2 or 1/2 of the loss. If this factor
    alone does not explain the curve, the curve is divided by it, and all explanations
    are tried again. If nothing fits, there are two more attempts. If the mean loss of a
    window is below the floor of the run, a fixed set explains the curve. Otherwise
    schedules are tried.
    """
    trainings = Trainings(run, rule, evidence.windows, evidence.exact)
    search = _Search(trainings, deadline=time.monotonic() + PATIENCE)
    fitting = search.fitting(evidence)
    factor = _factor_at_start(evidence)
    has_factor = any(item.explanation.name == "factor" for item in fitting)
    if factor is not None and not has_factor:
        fitting += search.fitting_with_factor(evidence, factor)
    if not fitting:
        below_floor = _below_floor(run, evidence)
        if below_floor is not None:
            # It is the only explanation, so its score does not matter.
            fitting.append(_Scored(math.inf, below_floor))
    if not fitting:
        fitting = search.fitting(evidence, LAST_EXPLAINERS)
    fitting.sort(key=lambda item: item.score)
    # The list is sorted, so its first entry, if there is one, has the best score.
    worst_score = fitting[0].score + WORSE if fitting else math.inf
    ranked = [item.explanation for item in fitting if item.score <= worst_score]
    return Explanations(tuple(ranked), tuple(search.untried))


class _Scored(NamedTuple):
    """An explanation with its score; lower is better."""

    score: float
    explanation: Explanation


def _below_floor(run: Run, evidence: Evidence) -> Explanation | None:
    """Return an explanation if the curve falls below the floor of the run, else None.

    The floor is the least loss on the population. A smaller loss shows that other
    prompts were used.
    """
    # The tiny number avoids a division by zero.
    tiny = float(np.finfo(float).tiny)
    errors = evidence.errors + evidence.rounding * run.floor + tiny
    z_below_floor = (run.floor - evidence.means) / errors
    # No loss is below a floor of 0. NaN, from a number beyond float64, shows nothing:
    # comparisons with it are false.
    if not run.floor > 0.0 or not z_below_floor.max() > evidence.limit:
        return None
    # The set is not known, and no run on it can be compared with the curve. The misfit
    # is that of the run on the population.
    z_from_run = evidence.residual(evidence.windows.means(evidence.exact)).z
    return Explanation(
        name="fixed set",
        sentence=(
            f"its losses fall below the floor {run.floor:.3g}, which no parameters "
            "pass: it is trained on a fixed set of prompts, or on other prompts"
        ),
        parameters={},
        misfit=float(np.mean(z_from_run**2)),
    )


def _factor_at_start(evidence: Evidence) -> float | None:
    """Return a factor with a known reason that the loss at step 0 shows, or None.

    The curve must differ from the run at step 0, and agree with it there if divided by
    the factor.
    """
    if evidence.windows.t[0] != 0:
        return None
    expected = evidence.windows.means(evidence.exact)
    # Step 0 is a window of its own, the first one.
    if abs(evidence.residual(expected).z[0]) <= evidence.limit:
        return None
    for factor in REASONS:
        unscaled = evidence.scaled(1.0 / factor)
        if abs(unscaled.residual(expected).z[0]) <= evidence.limit:
            return factor
    return None


class _Search:
    """Tries explanations until a deadline, a time of the monotonic clock."""

    def __init__(self, trainings: Trainings, deadline: float) -> None:
        self.trainings = trainings
        self.deadline = deadline
        # A dict keeps each name once, in the order in which the names were added.
        self.untried: dict[str, None] = {}

    def candidates(
        self, evidence: Evidence, explainers: Mapping[str, Explainer]
    ) -> Iterator[Candidate]:
        """Yield the candidates of the explainers.

        The names of explainers that would take too long, or whose turn comes after the
        deadline, are kept in ``untried``.
        """
        # `counted` shows the progress.
        for name in counted(list(explainers), "explanations"):
            if time.monotonic() > self.deadline:
                self.untried[name] = None
                continue
            try:
                yield from explainers[name](self.trainings, evidence)
            except TooLongError:
                self.untried[name] = None

    def fitting(
        self, evidence: Evidence, explainers: Mapping[str, Explainer] = EXPLAINERS
    ) -> list[_Scored]:
        """Return the explanations that fit, with their scores."""
        fitting = []
        for candidate in self.candidates(evidence, explainers):
            verdict = evidence.verdict(candidate)
            if not verdict.fits:
                continue
            explanation = Explanation(
                name=candidate.name,
                sentence=candidate.sentence,
                parameters=candidate.parameters,
                misfit=verdict.misfit,
                losses=candidate.factor * candidate.losses,
            )
            fitting.append(_Scored(verdict.score, explanation))
        return fitting

    def fitting_with_factor(self, evidence: Evidence, factor: float) -> list[_Scored]:
        """Return explanations that combine a factor of the loss with another change.

        These are the explanations of the curve divided by the factor. If none fits,
        the result is an explanation of step 0 alone, by the factor.
        """
        words = f"at step 0 its loss is {factor:g} times the exact one, "
        words += REASONS[factor]
        unscaled = evidence.scaled(1.0 / factor)
        fitting = []
        for score, explanation in self.fitting(unscaled):
            # A second factor of the loss would only change the first one.
            if explanation.name == "factor":
                continue
            losses = explanation.losses
            combined = Explanation(
                name=f"factor and {explanation.name}",
                sentence=f"{words}; then {explanation.sentence}",
                parameters={"scale": 1.0 / factor, **explanation.parameters},
                misfit=explanation.misfit,
                losses=None if losses is None else factor * losses,
            )
            fitting.append(_Scored(score + TWO_CHANGES, combined))
        if fitting:
            return fitting
        expected = evidence.windows.means(evidence.exact)
        z = unscaled.residual(expected).z
        # Its score is infinite, so that any explanation that fits is better.
        of_step_0 = Explanation(
            name="factor",
            sentence=f"{words}; the later steps are not explained",
            parameters={"scale": 1.0 / factor},
            misfit=float(np.mean(z**2)),
        )
        return [_Scored(math.inf, of_step_0)]
