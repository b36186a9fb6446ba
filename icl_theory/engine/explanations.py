"""Explanations of a loss curve that leaves the exact one.

Each explanation is a training that differs from the run in one respect: another rate,
another prompt length, another optimiser and so on. `explain` follows these trainings
exactly (`engine.trainings`) and returns those with which the curve agrees
(`engine.evidence`), best first. Those are left out that are worse than the best one by
a score of more than 20.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from icl_theory._validate import Array
from icl_theory.engine.evidence import Candidate, Evidence
from icl_theory.engine.loss_curve import Run
from icl_theory.engine.progress import counted
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

# Seconds after which no further explanation is tried.
PATIENCE = 60.0
# Number of draws of random starts and of fixed sets.
DRAWS = 6
# Number of these draws that are used to find the size of a start that agrees best.
DRAWS_OF_FIT = 3
# Prompts of the fixed sets that show how the gap grows.
SET_SIZE = 256
# The largest number of risks of which a mean over positions consists.
MOST_POSITIONS = 64
# The largest number of parameters of a random start.
LARGEST_START = 10_000
# What a factor of the loss without a known reason adds to the score.
UNKNOWN_FACTOR = 4.0
# What a second change adds to the score.
TWO_CHANGES = 6.0
# What a smooth curve takes off the score of a fixed set.
SMOOTHNESS = 20.0
# A number with a reason is preferred to a fitted one if its score is higher by less
# than this.
REASON = 4.0
# Explanations are left out if their score is higher than the best one by more than
# this.
WORSE = 20.0
# Grids of fitted numbers are refined up to MOST_GRIDS times. They are fine enough if
# the score exceeds the score of interpolated losses by less than GOOD_ENOUGH.
MOST_GRIDS = 4
GOOD_ENOUGH = 0.5
# Factors of the loss with a known reason.
REASONS = {
    2.0: "as without the factor 1/2; scale = 0.5 undoes it",
    0.5: "as with a second factor 1/2; scale = 2 undoes it",
}
MOMENTUM = 0.9
# Schedules with a fitted number of steps, in words.
SCHEDULES: tuple[tuple[Callable[[int], Schedule], str], ...] = (
    (WarmUp, "warms up during about {:,} steps"),
    (partial(StepDecay, decay=0.5), "is halved about every {:,} steps"),
    (partial(StepDecay, decay=0.1), "is divided by 10 about every {:,} steps"),
)
# Number of steps of the shortest curve for which schedules are tried.
SHORTEST_SCHEDULE = 16


@dataclass(frozen=True)
class Explanation:
    """A training other than that of the run, with which a loss curve agrees.

    Attributes
    ----------
    name : str
        "rate", "factor", "prompt length", "momentum", "adam", "plain descent",
        "schedule", "start", "label noise", "fixed set", "after the update" or
        "positions"; two of them joined by "and" if the losses also have a factor.
    sentence : str
        The difference from the run, in words.
    parameters : dict
        What would have to change in the run, by name.
    misfit : float
        Mean square of the differences from the curve, in standard errors.
    losses : ndarray, (T,), or None
        The losses of this training at the steps of the comparison.
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
    """The explanations that fit, best first, and the names of those not tried."""

    fitting: tuple[Explanation, ...]
    untried: tuple[str, ...]


class Optimum(NamedTuple):
    """A number, and the losses of the training that it belongs to; None if it fails."""

    number: float
    losses: Array | None


def _best(
    evidence: Evidence,
    losses_at: Callable[[float], Array | None],
    grid: Sequence[float] | Array,
    modes_at: Callable[[float], Array] | None = None,
) -> Optimum:
    """Return the positive number at which losses agree best with a curve.

    The losses are computed at the numbers of a grid, and interpolated between these in
    the logarithm. The grid becomes finer until the interpolation is good enough.
    ``modes_at`` returns how the losses scatter.
    """
    logs = np.log(np.asarray(grid, dtype=float))
    width = float(np.diff(logs).max())
    for _ in range(MOST_GRIDS):
        estimate = _best_between(evidence, losses_at, logs, modes_at)
        number = math.exp(estimate.log)
        losses = losses_at(number)
        if losses is None:
            break
        modes = None if modes_at is None else modes_at(number)
        score = evidence.score(evidence.windows.means(losses), modes)
        if score <= estimate.score + GOOD_ENOUGH:
            break
        width /= 4.0
        logs = estimate.log + width * np.linspace(-1.0, 1.0, 5)
    return Optimum(number, losses)


class _Estimate(NamedTuple):
    """Logarithm of a number, and the score that the interpolated losses have there."""

    log: float
    score: float


def _best_between(
    evidence: Evidence,
    losses_at: Callable[[float], Array | None],
    grid: Array,
    modes_at: Callable[[float], Array] | None,
) -> _Estimate:
    """Return the number at which interpolated losses agree best.

    ``grid`` has logarithms. If fewer than two of its numbers have losses, nothing can
    be interpolated, and the score is infinite.
    """
    from scipy.interpolate import PchipInterpolator
    from scipy.optimize import minimize_scalar

    logs = []
    means = []
    for log in grid:
        losses = losses_at(math.exp(log))
        if losses is not None:
            logs.append(log)
            means.append(evidence.windows.means(losses))
    if len(logs) < 2:
        return _Estimate(logs[0] if logs else grid[0], math.inf)
    mean_at = PchipInterpolator(logs, np.array(means))

    def score(log: float) -> float:
        modes = None if modes_at is None else modes_at(math.exp(log))
        return evidence.score(mean_at(log), modes)

    # Between the numbers of the grid there may be several minima.
    fine = np.linspace(logs[0], logs[-1], 8 * len(logs))
    scores = [score(log) for log in fine]
    best = int(np.argmin(scores))
    low = fine[max(best - 1, 0)]
    high = fine[min(best + 1, len(fine) - 1)]
    outcome = minimize_scalar(
        score, bounds=(low, high), method="bounded", options={"xatol": 1e-7}
    )
    if outcome.fun <= scores[best]:
        return _Estimate(float(outcome.x), float(outcome.fun))
    return _Estimate(float(fine[best]), scores[best])


# ---- explanations, in the order in which they are tried


def _rate(trainings: Trainings, evidence: Evidence) -> Iterator[Candidate]:
    """Another learning rate, or another factor of the gradients."""
    run = trainings.run

    def stretched(factor: float) -> Array:
        """Return the exact losses at ``factor`` times the steps, roughly."""
        t = trainings.windows.t
        steps, first = np.unique(np.append(run.t, t), return_index=True)
        losses = np.append(run.loss, trainings.exact)[first]
        return np.interp(np.log1p(factor * t), np.log1p(steps), losses)

    def followed(factor: float) -> Array | None:
        return trainings.losses(eta=factor * run.eta)

    # A curve at another rate is nearly one at another pace. That one costs nothing, and
    # shows where to look.
    paces = np.linspace(-math.log(16.0), math.log(16.0), 65)
    pace = math.exp(_best_between(evidence, stretched, paces, None).log)
    # The commonest reason may take longer than others.
    trainings.check_work(6, most=10 * MOST_WORK)
    grid = pace * np.geomspace(0.8, 1.25, 5)
    factor, losses = _best(evidence, followed, grid)
    if losses is None:
        return
    yield Candidate(
        "rate",
        f"its learning rate, or its gradients, are {factor:.3g} times those of the run "
        f"(eta = {factor * run.eta:.3g})",
        {"eta": factor * run.eta},
        losses,
        1,
    )


def _factor(trainings: Trainings, evidence: Evidence) -> Iterator[Candidate]:
    """Another factor of the loss."""
    factor = _fitted_factor(trainings, evidence)
    # Written so that NaN is refused, too.
    if not 0.0 < factor < math.inf:
        return
    reason = ""
    fitted = evidence.scaled(1.0 / factor).misfit(trainings.exact)
    for common_factor, words in REASONS.items():
        misfit = evidence.scaled(1.0 / common_factor).misfit(trainings.exact)
        if misfit < fitted + REASON:
            factor = common_factor
            reason = f", {words}"
    yield Candidate(
        "factor",
        f"its losses are {factor:.3g} times the exact ones{reason}",
        {"scale": 1.0 / factor},
        trainings.exact,
        0 if reason else 1,
        factor=factor,
        prior=0.0 if reason else UNKNOWN_FACTOR,
    )


def _fitted_factor(trainings: Trainings, evidence: Evidence) -> float:
    """Return the factor of the exact losses that agrees best, by least squares."""
    weights = evidence.weights()
    expected = evidence.windows.means(trainings.exact) + evidence.shift
    square = float(np.sum(weights * expected**2))
    if square == 0.0:
        return 0.0
    return float(np.sum(weights * expected * evidence.means)) / square


def _prompt_length(trainings: Trainings, evidence: Evidence) -> Iterator[Candidate]:
    """One token more or less, and other lengths if neither agrees."""
    N = trainings.whole("N")
    if N is None:
        return
    # Risks of other lengths are made once, because some take long to make.
    losses_by_length: dict[int, Array | None] = {}

    def losses_at(length: int) -> Array | None:
        if length not in losses_by_length:
            risk = trainings.changed(N=length)
            losses = None if risk is None else trainings.losses(risk)
            losses_by_length[length] = losses
        return losses_by_length[length]

    reasons = {
        N + 1: ", as if the query counted as a token",
        N - 1: ", as if that length included the query",
    }
    agree = False
    for length, reason in reasons.items():
        losses = losses_at(length) if length >= 1 else None
        if losses is None:
            continue
        candidate = _of_length(length, N, losses, 0, reason)
        agree = agree or evidence.verdict(candidate).fits
        yield candidate
    if agree:
        return
    lengths = np.unique(np.round(N * np.geomspace(0.25, 4.0, 9)).astype(int))
    grid = [length for length in lengths.tolist() if length >= 1]
    trainings.check_work(len(grid) + 1)
    estimate = _best_between(
        evidence, lambda value: losses_at(round(value)), np.log(grid), None
    )
    length = round(math.exp(estimate.log))
    losses = losses_at(length)
    if losses is not None:
        yield _of_length(length, N, losses, 1)


def _of_length(
    length: int, N: int, losses: Array, fitted: int, reason: str = ""
) -> Candidate:
    sentence = f"its prompts have the length N = {length}, not {N}{reason}"
    return Candidate("prompt length", sentence, {"N": length}, losses, fitted)


def _optimiser(trainings: Trainings, evidence: Evidence) -> Iterator[Candidate]:
    """Momentum, Adam or neither, at the same learning rate."""
    own = trainings.rule
    if isinstance(own, HeavyBall):
        losses = trainings.losses(rule=GradientDescent())
        if losses is not None:
            yield Candidate(
                "plain descent",
                "it is trained without the momentum of the run",
                {"rule": "gd"},
                losses,
                0,
            )
    if not is_plain_descent(own):
        return
    losses = trainings.losses(rule=HeavyBall(MOMENTUM))
    if losses is not None:
        yield Candidate(
            "momentum",
            f"it is trained with momentum {MOMENTUM:g} at the same learning rate",
            {"rule": "heavy-ball", "momentum": MOMENTUM},
            losses,
            0,
        )
    entries = trainings.entries()
    losses = None if entries is None else trainings.losses(entries, rule=Adam())
    if losses is not None:
        yield Candidate(
            "adam",
            "it is trained by Adam at the same learning rate",
            {"rule": "adam"},
            losses,
            0,
        )


def _start(trainings: Trainings, evidence: Evidence) -> Iterator[Candidate]:
    """Another size of the parameters at step 0."""
    risk = trainings.risk
    if risk is None:
        return
    initial = np.asarray(risk.initial)
    if not initial.any():
        yield from _random_start(trainings, evidence)
        return

    def scaled(factor: float) -> Array | None:
        return trainings.losses(StartedAt(risk, factor * initial))

    trainings.check_work(16)
    factor, losses = _best(evidence, scaled, np.geomspace(1 / 64, 256, 15))
    if losses is None:
        return
    own = getattr(trainings.run.family, "start", None)
    parameters: dict[str, Any] = {"start_scale": factor}
    now = ""
    if isinstance(own, float):
        parameters = {"start": factor * own}
        now = f" (start = {factor * own:.3g})"
    yield Candidate(
        "start",
        f"its parameters at step 0 are {factor:.3g} times those of the run{now}",
        parameters,
        losses,
        1,
    )


def _random_start(trainings: Trainings, evidence: Evidence) -> Iterator[Candidate]:
    """Independent normal parameters instead of zeros."""
    entries = trainings.entries()
    if entries is None or np.size(entries.initial) > LARGEST_START:
        return
    shape = np.shape(entries.initial)
    rng = np.random.default_rng(0)
    directions = [rng.normal(size=shape) for _ in range(DRAWS)]

    def drawn(deviation: float, direction: Array) -> Array | None:
        return trainings.losses(StartedAt(entries, deviation * direction))

    def mean(deviation: float) -> Array | None:
        curves = []
        for direction in directions[:DRAWS_OF_FIT]:
            losses = drawn(deviation, direction)
            if losses is None:
                return None
            curves.append(losses)
        return np.mean(curves, axis=0)

    grid = np.geomspace(0.1, 3.2, 6)
    trainings.check_work(DRAWS_OF_FIT * len(grid) + DRAWS, entries)
    estimate = _best_between(evidence, mean, np.log(grid), None)
    deviation = math.exp(estimate.log)
    curves = []
    for direction in directions:
        losses = drawn(deviation, direction)
        if losses is None:
            return
        curves.append(losses)
    yield Candidate(
        "start",
        "its parameters at step 0 are random, with a standard deviation of roughly "
        f"{deviation:.1g}",
        {"start_deviation": deviation},
        np.mean(curves, axis=0),
        1,
        _modes(trainings.windows, np.array(curves)),
    )


def _modes(windows: Windows, curves: Array) -> Array:
    """Deviations of the means over windows from their mean over D curves, (D, W).

    They are scaled so that the sum of their squares estimates the variance of a curve
    about this mean.
    """
    means = windows.means(curves)
    count = len(curves)
    # The mean of the curves scatters, too.
    scale = math.sqrt((1.0 + 1.0 / count) / (count - 1))
    return np.asarray(scale * (means - means.mean(axis=0)))


def _label_noise(trainings: Trainings, evidence: Evidence) -> Iterator[Candidate]:
    """A constant, which is half the variance of noise in the answers."""
    family = trainings.run.family
    if family is not None and not hasattr(family, "noise"):
        return
    weights = evidence.weights()
    expected = evidence.windows.means(trainings.exact) + evidence.shift
    difference = evidence.means - expected
    constant = float(np.sum(weights * difference) / np.sum(weights))
    if not 0.0 < constant < math.inf:
        return
    fitted = 1
    own = getattr(family, "noise", 0.0)
    if isinstance(own, int | float) and own > 0.0:
        at_own = evidence.misfit(trainings.exact + 0.5 * own**2)
        if at_own < evidence.misfit(trainings.exact + constant) + REASON:
            constant = 0.5 * own**2
            fitted = 0
    noise = math.sqrt(2.0 * constant)
    yield Candidate(
        "label noise",
        f"its losses are {constant:.3g} above the exact ones at all steps, as with "
        f"label noise {noise:.3g} in the answers",
        {"answer_noise": noise},
        trainings.exact + constant,
        fitted,
    )


def _fixed_set(trainings: Trainings, evidence: Evidence) -> Iterator[Candidate]:
    """The same prompts again and again."""
    sets = _sets(trainings)
    # Standard errors of a batch say how many prompts it has, and the set has as many or
    # more.
    first_error = evidence.errors[0] * math.sqrt(evidence.windows.counts[0])
    if not sets or first_error <= 0.0:
        return
    deviation = np.mean([fixed_set.deviation for fixed_set in sets])
    batch = float(deviation / first_error) ** 2
    curves = []
    for fixed_set in sets:
        trainings.check_work(4 * DRAWS, fixed_set)
        losses = trainings.losses(fixed_set)
        if losses is None:
            return
        curves.append(losses)
    # To leading order, the gap between the exact loss and that of M prompts is
    # proportional to 1/M, and its scatter from set to set to 1/√M.
    gap = trainings.exact - np.mean(curves, axis=0)
    modes = _modes(trainings.windows, np.array(curves))

    def losses_at(size: float) -> Array:
        return np.asarray(trainings.exact - SET_SIZE / size * gap)

    def modes_at(size: float) -> Array:
        return math.sqrt(SET_SIZE / size) * modes

    reason = ""
    prior = 0.0
    if evidence.is_smooth:
        reason = " (successive losses scatter less than their standard errors)"
        prior = -SMOOTHNESS

    def candidate(size: float, fitted: int) -> Candidate:
        return Candidate(
            "fixed set",
            f"it is trained on a fixed set of about {_rounded(size):,} prompts{reason}",
            {"dataset": _rounded(size)},
            losses_at(size),
            fitted,
            modes_at(size),
            prior=prior,
        )

    whole = candidate(batch, 0)
    grid = batch * np.geomspace(0.8, 32.0, 12)
    part = candidate(_best(evidence, losses_at, grid, modes_at).number, 1)
    yield min(whole, part, key=lambda item: evidence.verdict(item).score)


def _sets(trainings: Trainings) -> list[FixedSet]:
    """Return fixed sets of prompts, none without a sampler."""
    run = trainings.run
    if getattr(run, "on_fixed_set", False) or trainings.risk is None:
        return []
    sets = []
    for seed in range(DRAWS):
        try:
            if run.family is None:
                trainer = trainer_of(trainings.risk, SET_SIZE, seed)
            else:
                trainer = scaled_like(run.risk, run.family.sampled(SET_SIZE, seed))
        except ValueError:
            return []
        sets.append(FixedSet(trainer))
    return sets


def _rounded(size: float) -> int:
    """Round to two digits."""
    digits = 10 ** max(int(math.log10(size)) - 1, 0)
    return round(size / digits) * digits


def _after_update(trainings: Trainings, evidence: Evidence) -> Iterator[Candidate]:
    """Losses that belong to the step before or after."""
    later = trainings.losses(shift=1)
    if later is not None:
        yield Candidate(
            "after the update",
            "each loss is taken after the update of its step, so that the first one "
            "is that of step 1",
            {"steps": "+1"},
            later,
            0,
        )
    if trainings.windows.t[0] == 0:
        return
    earlier = trainings.losses(shift=-1)
    if earlier is not None:
        yield Candidate(
            "after the update",
            "its steps are counted from 1",
            {"steps": "-1"},
            earlier,
            0,
        )


def _positions(trainings: Trainings, evidence: Evidence) -> Iterator[Candidate]:
    """The mean of the loss over all positions of a prompt."""
    N = trainings.whole("N")
    if N is None or not 2 <= N <= MOST_POSITIONS:
        return
    risks = []
    for length in range(1, N + 1):
        risk = trainings.changed(N=length)
        if risk is None:
            return
        risks.append(risk)
    mean = MeanRisk(risks)
    trainings.check_work(N, mean)
    losses = trainings.losses(mean)
    if losses is not None:
        yield Candidate(
            "positions",
            f"its loss is the mean over the positions 1 to {N} of a prompt, each "
            "answered from the tokens up to it",
            {"N": f"1 to {N}"},
            losses,
            0,
        )


def _schedule(trainings: Trainings, evidence: Evidence) -> Iterator[Candidate]:
    """A learning rate that falls or warms up."""
    end = trainings.last + 1
    if isinstance(trainings.rule, Scheduled) or end < SHORTEST_SCHEDULE:
        return
    cosine = Scheduled(trainings.rule, Cosine(end))
    # The fits of all schedules take some 60 trainings.
    trainings.check_work(60, rule=cosine)
    losses = trainings.losses(rule=cosine)
    if losses is not None:
        words = f"falls like a cosine, to zero at step {end:,}"
        yield _of_schedule(Cosine(end), words, losses, 0)
    for make, words in SCHEDULES:
        yield from _of_steps(trainings, evidence, make, words)


def _of_steps(
    trainings: Trainings,
    evidence: Evidence,
    make: Callable[[int], Schedule],
    words: str,
) -> Iterator[Candidate]:
    """Yield a schedule with the number of steps that agrees best."""

    def followed(steps: float) -> Array | None:
        rule = Scheduled(trainings.rule, make(round(steps)))
        return trainings.losses(rule=rule)

    end = trainings.last + 1
    best = _best(evidence, followed, np.geomspace(max(2.0, end / 32.0), end, 8))
    if best.losses is not None:
        steps = round(best.number)
        yield _of_schedule(make(steps), words.format(steps), best.losses, 1)


def _of_schedule(
    schedule: Schedule, words: str, losses: Array, fitted: int
) -> Candidate:
    sentence = f"its learning rate {words}"
    return Candidate("schedule", sentence, {"schedule": schedule.name}, losses, fitted)


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

    If step 0, before any update, shows a factor 2 or 1/2 of the loss, which does not
    explain the curve alone, the explanations of the scaled curve are tried as well. If
    nothing fits, a loss below the floor of the run is a sign of a fixed set, and
    otherwise schedules are tried.
    """
    trainings = Trainings(run, rule, evidence.windows, evidence.exact)
    search = _Search(trainings, time.monotonic() + PATIENCE)
    fitting = search.fitting(evidence)
    factor = _factor_at_start(evidence)
    has_factor = any(explanation.name == "factor" for _, explanation in fitting)
    if factor is not None and not has_factor:
        fitting += search.fitting_with_factor(evidence, factor)
    below = _below_floor(run, evidence)
    if below is not None and not fitting:
        fitting.append((math.inf, below))
    if not fitting:
        fitting = search.fitting(evidence, LAST_EXPLAINERS)
    fitting.sort(key=lambda pair: pair[0])
    ranked = tuple(
        explanation for score, explanation in fitting if score <= fitting[0][0] + WORSE
    )
    return Explanations(ranked, tuple(search.untried))


def _below_floor(run: Run, evidence: Evidence) -> Explanation | None:
    """Return the explanation of losses that no parameters reach on the population."""
    # The tiny number avoids a division by zero.
    tiny = float(np.finfo(float).tiny)
    errors = evidence.errors + evidence.rounding * run.floor + tiny
    misses = (run.floor - evidence.means) / errors
    if not run.floor > 0.0 or not misses.max() > evidence.limit:
        return None
    z = evidence.residual(evidence.windows.means(evidence.exact)).z
    return Explanation(
        "fixed set",
        f"its losses fall below the floor {run.floor:.3g}, which no parameters pass: "
        "it is trained on a fixed set of prompts, or on other prompts",
        {},
        float(np.mean(z**2)),
    )


def _factor_at_start(evidence: Evidence) -> float | None:
    """Return the known factor of the loss that step 0 shows, or None."""
    if evidence.windows.t[0] != 0:
        return None
    expected = evidence.windows.means(evidence.exact)
    if abs(evidence.residual(expected).z[0]) <= evidence.limit:
        return None
    for factor in REASONS:
        scaled = evidence.scaled(1.0 / factor)
        if abs(scaled.residual(expected).z[0]) <= evidence.limit:
            return factor
    return None


class _Search:
    """Tries explanations until its time is over."""

    def __init__(self, trainings: Trainings, deadline: float) -> None:
        self.trainings = trainings
        self.deadline = deadline
        # The keys of a dict keep each name once, in order.
        self.untried: dict[str, None] = {}

    def candidates(
        self, evidence: Evidence, explainers: Mapping[str, Explainer]
    ) -> Iterator[Candidate]:
        """Yield what the explainers offer, and note those that take too long."""
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
    ) -> list[tuple[float, Explanation]]:
        """Return the explanations that fit, with their scores."""
        fitting = []
        for candidate in self.candidates(evidence, explainers):
            verdict = evidence.verdict(candidate)
            if not verdict.fits:
                continue
            explanation = Explanation(
                candidate.name,
                candidate.sentence,
                candidate.parameters,
                verdict.misfit,
                candidate.factor * candidate.losses,
            )
            fitting.append((verdict.score, explanation))
        return fitting

    def fitting_with_factor(
        self, evidence: Evidence, factor: float
    ) -> list[tuple[float, Explanation]]:
        """Return the explanations of a curve that has a factor, too.

        If none fits, the factor at step 0 remains.
        """
        words = f"at step 0 its loss is {factor:g} times the exact one, "
        words += REASONS[factor]
        fitting = []
        for score, explanation in self.fitting(evidence.scaled(1.0 / factor)):
            if explanation.name == "factor":
                continue
            combined = Explanation(
                f"factor and {explanation.name}",
                f"{words}; then {explanation.sentence}",
                {"scale": 1.0 / factor, **explanation.parameters},
                explanation.misfit,
                None if explanation.losses is None else factor * explanation.losses,
            )
            fitting.append((score + TWO_CHANGES, combined))
        if fitting:
            return fitting
        expected = evidence.windows.means(evidence.exact)
        z = evidence.scaled(1.0 / factor).residual(expected).z
        partial = Explanation(
            "factor",
            f"{words}; the later steps are not explained",
            {"scale": 1.0 / factor},
            float(np.mean(z**2)),
        )
        return [(math.inf, partial)]
