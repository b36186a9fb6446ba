r"""Explanations of a loss curve that leaves the exact one.

Each explanation is a training that differs from the run in one respect: another rate,
another prompt length, another optimiser and so on. `explain` follows these trainings
exactly and returns those with which the curve agrees, best first.

The W means of a curve over windows of steps differ by r from those of a training, and
have the standard errors :math:`\sigma`. A training that is random, such as one from a
random start, also scatters about its mean: its covariance is estimated from a few
draws, whose deviations are the rows of F, and

.. math:: C = \mathrm{diag}(\sigma^2 + \lambda\,\mathrm{diag}\,F^\top F)
    + (1 - \lambda)\,F^\top F .

A curve agrees with a training if no window is beyond the limit of the comparison, and
:math:`\chi^2 = r^\top C^{-1} r` is not larger than it is once in a thousand times for a
curve of that training. It may be twice as large if the standard errors come with the
curve, because they leave out how far SGD strays, and F is zero. Explanations are in
the order of

.. math:: \chi^2 + \ln\det C + 2\,k ,

where k is the number of fitted parameters. Those are left out that are worse than the
best one by more than 20.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.engine.comparison import z_score
from icl_theory.engine.descent import descend
from icl_theory.engine.loss_curve import Run, Steps
from icl_theory.engine.progress import counted
from icl_theory.engine.risk import Risk
from icl_theory.engine.rules import (
    Adam,
    GradientDescent,
    HeavyBall,
    Rule,
    is_plain_descent,
)
from icl_theory.engine.sampling import Trainer, trainer_of
from icl_theory.engine.steps import UpdateMap
from icl_theory.engine.windows import Windows

# A true explanation is rejected by its sum of squares once in a thousand times.
REJECTED = 1e-3
# Trainings up to this step are followed one step at a time; later ones skip steps.
SINGLE_STEPS = 4096
# A rule whose steps cannot be skipped is followed up to this step.
LONGEST = 20_000
# An explanation is not tried if its trainings take more gradients than this, each
# counted as often as the square root of the number of parameters.
MOST_WORK = 100_000
# Losses are computed at so many points of a window, and interpolated between these.
KNOTS_PER_WINDOW = 8
# No further explanation is tried after so many seconds.
PATIENCE = 60.0
# Random starts and fixed sets are drawn so many times.
DRAWS = 6
# A few of them show which size of a start agrees best.
DRAWS_OF_FIT = 3
# The part λ of the scatter from draw to draw that is taken as independent from window
# to window, because a few draws do not show every shape that a curve may have.
DIAGONAL = 0.1
# Prompts of the fixed sets that show how the gap grows.
SET_SIZE = 256
# The largest number of risks of which a mean over positions consists.
MOST_POSITIONS = 64
# The largest number of parameters of a random start.
LARGEST_START = 10_000
# What a factor of the loss without a known reason adds to the score, and what a smooth
# curve takes off that of a fixed set.
UNKNOWN_FACTOR = 4.0
# What a second change adds to the score.
TWO_CHANGES = 6.0
SMOOTHNESS = 20.0
# Standard errors that come with a curve leave out how far SGD strays. The sum of
# squares may be larger by this factor.
STRAY = 2.0
# Explanations whose score is higher than the best one by more than this are told apart.
TOLD_APART = 20.0
# Grids of fitted numbers become finer so many times, until the score is higher than
# that of interpolated losses by less than this.
MOST_GRIDS = 4
GOOD_ENOUGH = 0.5
# Factors of the loss with a known reason.
REASONS = {
    2.0: "as without the factor 1/2; scale = 0.5 undoes it",
    0.5: "as with a second factor 1/2; scale = 2 undoes it",
}
MOMENTUM = 0.9


@dataclass(frozen=True)
class Explanation:
    """A training other than that of the run, with which a loss curve agrees.

    Attributes
    ----------
    name : str
        "rate", "factor", "prompt length", "momentum", "adam", "plain descent", "start",
        "label noise", "fixed set", "after the update" or "positions"; two of them
        joined by "and" if the losses also have a factor.
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


class Candidate(NamedTuple):
    """A training that may explain a curve, before it is judged."""

    name: str
    sentence: str
    parameters: dict[str, Any]
    losses: Array  # (T,)
    fitted: int  # number of fitted parameters
    modes: Array | None = None  # how the means over windows scatter, (D, W)
    factor: float = 1.0  # of the curve, over the losses of the training
    prior: float = 0.0  # added to the score; negative if other evidence supports it


class Verdict(NamedTuple):
    """How well a curve agrees with a training."""

    score: float
    misfit: float
    fits: bool


class Residual(NamedTuple):
    """Differences of a curve from a training.

    ``z``, (W,), are those that the modes of the training do not take up, in standard
    errors; ``square`` is the sum of their squares plus that of the modes' amplitudes,
    and ``widening`` the logarithm of the determinant of all covariances over that of
    the curve's own.
    """

    z: Array
    square: float
    widening: float


@dataclass(frozen=True)
class Evidence:
    """Means of a loss curve over W windows of its T steps, and their standard errors.

    Parameters
    ----------
    windows : Windows
        The windows.
    exact : ndarray, (T,)
        Losses of the run.
    means, errors : ndarray, (W,)
        Means of the curve and their standard errors.
    limit : float
        Largest difference in standard errors.
    freedom : float
        Degrees of freedom of the standard errors.
    rounding : float
        Relative rounding error of the losses.
    errors_of_curve : bool
        Whether the standard errors belong to the curve, and have its factor. Otherwise
        they belong to the run.
    is_smooth : bool
        Whether successive losses differ by far less than their standard errors say, as
        they do if all belong to the same prompts.
    """

    windows: Windows
    exact: Array
    means: Array
    errors: Array
    limit: float
    freedom: float
    rounding: float
    errors_of_curve: bool
    is_smooth: bool

    def scaled(self, factor: float) -> Evidence:
        """Return the evidence of the curve times a factor."""
        errors = factor * self.errors if self.errors_of_curve else self.errors
        return replace(self, means=factor * self.means, errors=errors)

    def residual(self, expected: Array, modes: Array | None = None) -> Residual:
        """Compare the curve with W means of a training, whose draws deviate by modes.

        The curve's own covariance is diagonal. The modes add a matrix of low rank, so
        that its inverse follows from a system of D equations.
        """
        difference = self.means - expected
        if modes is None:
            z = _clipped(z_score(difference, self.errors, expected, self.rounding))
            return Residual(z, float(np.sum(z**2)), 0.0)
        rounding = self.rounding * np.abs(expected) + float(np.finfo(float).tiny)
        own = self.errors + rounding
        variance = np.sum(modes**2, axis=0)
        wider = np.sqrt(own**2 + DIAGONAL * variance)
        scaled_modes = math.sqrt(1.0 - DIAGONAL) * modes / wider
        matrix = np.eye(len(modes)) + scaled_modes @ scaled_modes.T
        z = _clipped(difference / wider)
        amplitudes = np.linalg.solve(matrix, scaled_modes @ z)
        rest = z - amplitudes @ scaled_modes
        square = float(np.sum(rest**2) + np.sum(amplitudes**2))
        widening = 2.0 * float(np.sum(np.log(wider / own)))
        widening += float(np.linalg.slogdet(matrix)[1])
        return Residual(rest, square, widening)

    def score(self, expected: Array, modes: Array | None = None) -> float:
        """Return the sum of squares plus the term of the modes; less is better."""
        residual = self.residual(expected, modes)
        return residual.square + residual.widening

    def verdict(self, candidate: Candidate) -> Verdict:
        """Judge whether the curve agrees with a training, and how well."""
        from scipy.special import chdtri

        if candidate.factor != 1.0:
            unscaled = self.scaled(1.0 / candidate.factor)
            return unscaled.verdict(candidate._replace(factor=1.0))
        expected = self.windows.means(candidate.losses)
        residual = self.residual(expected, candidate.modes)
        count = len(residual.z)
        # Student's z-scores have the mean square 1 / (1 - 2 / freedom).
        largest = chdtri(count, REJECTED) / (1.0 - 2.0 / self.freedom)
        # The modes of a random training leave room for SGD already.
        if self.errors_of_curve and candidate.modes is None:
            largest *= STRAY
        largest_z = float(np.abs(residual.z).max())
        fits = bool(largest_z <= self.limit and residual.square <= largest)
        # Comparisons with NaN are false, so a training without a score does not fit.
        score = residual.square + residual.widening + 2.0 * candidate.fitted
        score += candidate.prior
        return Verdict(score, residual.square / count, fits)

    def misfit(self, losses: Array) -> float:
        """Sum of squares of the differences from losses, (T,)."""
        return self.score(self.windows.means(losses))

    def weights(self) -> Array:
        """Inverse squares of the standard errors, (W,)."""
        rounding = self.rounding * np.abs(self.means)
        tiny = float(np.finfo(float).tiny)
        return np.asarray(1.0 / np.maximum((self.errors + rounding) ** 2, tiny))


def _clipped(z: Array) -> Array:
    return np.clip(z, -1e9, 1e9)


# ---- trainings


class MeanRisk(Risk):
    """The mean of several risks over the same parameters."""

    def __init__(self, risks: Sequence[Risk]) -> None:
        self.risks = risks

    @property
    def initial(self) -> Array:
        """Parameters at step 0."""
        return self.risks[0].initial

    @property
    def metric(self) -> float | Array:
        """Metric of the coordinates."""
        return self.risks[0].metric

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Mean loss and mean gradient."""
        loss = 0.0
        gradient = np.zeros_like(params)
        for risk in self.risks:
            part, slope = risk.evaluate(params, step)
            loss += part
            gradient = gradient + slope
        return loss / len(self.risks), gradient / len(self.risks)


class StartedAt(Risk):
    """A risk with another start."""

    def __init__(self, risk: Risk, start: Array) -> None:
        self.risk = risk
        self.start = start

    @property
    def initial(self) -> Array:
        """Parameters at step 0."""
        return self.start

    @property
    def metric(self) -> float | Array:
        """Metric of the coordinates."""
        return self.risk.metric

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and gradient of the risk."""
        return self.risk.evaluate(params, step)


class FixedSet(Risk):
    """The loss on the prompts that a trainer draws in step 0, at every step."""

    def __init__(self, trainer: Trainer[Any]) -> None:
        self.trainer = trainer
        self.prompts = trainer.prompts(0)

    @property
    def initial(self) -> Array:
        """Parameters at step 0."""
        return self.trainer.initial

    @property
    def metric(self) -> float | Array:
        """Metric of the coordinates."""
        return self.trainer.metric

    @property
    def deviation(self) -> float:
        """Standard deviation of the losses of single prompts at step 0."""
        return float(np.std(self.trainer.losses_on(self.initial, self.prompts)))

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and gradient on the set."""
        return self.trainer.evaluate_on(params, self.prompts)


class TooLongError(Exception):
    """An explanation would take too long."""


class Trainings:
    """Trainings that differ from a run, followed exactly at the steps of a curve.

    Parameters
    ----------
    run : Run
        The run.
    rule : Rule
        Its update rule.
    windows : Windows
        The steps of the curve.
    exact : ndarray, (T,)
        Losses of the run at these steps.
    """

    def __init__(self, run: Run, rule: Rule, windows: Windows, exact: Array) -> None:
        self.run = run
        self.rule = rule
        self.windows = windows
        self.exact = exact
        self.knots = _knots(windows)
        self.risk: Risk | None = run.risk
        if self.risk is None and run.family is not None:
            self.risk = run.family.trained_risk()

    @property
    def last(self) -> int:
        """Last step of the curve."""
        return int(self.windows.t[-1])

    def losses(
        self,
        risk: Risk | None = None,
        eta: float | None = None,
        rule: Rule | None = None,
        shift: int = 0,
    ) -> Array | None:
        """Return the losses of a training at T steps, plus a ``shift``, (T,).

        Risk, learning rate and rule are those of the run unless given. The result is
        None if the training diverges, or if the rule cannot train the risk.

        Raises
        ------
        TooLongError
            The rule takes every step, and the curve has too many.
        """
        risk = self.risk if risk is None else risk
        if risk is None:
            return None
        eta = self.run.eta if eta is None else eta
        rule = self.rule if rule is None else rule
        steps = np.maximum(self.windows.t[self.knots] + shift, 0)
        try:
            at_knots = _losses_at(risk, eta, rule, steps)
        except ValueError:
            return None
        if not np.isfinite(at_knots).all():
            return None
        return self._between(at_knots)

    def check_work(
        self, trainings: int, risk: Risk | None = None, most: int = MOST_WORK
    ) -> None:
        """Refuse trainings without a closed form that take too many gradients.

        Raises
        ------
        TooLongError
            They do.
        """
        risk = self.risk if risk is None else risk
        if risk is None or risk.closed_form(self.run.eta, self.rule) is not None:
            return
        gradients = trainings * min(self.last, SINGLE_STEPS)
        if gradients * math.sqrt(np.size(risk.initial)) > most:
            raise TooLongError

    def _between(self, at_knots: Array) -> Array:
        """Interpolate the losses of a training between the knots."""
        if len(self.knots) == len(self.exact):
            return at_knots
        from scipy.interpolate import PchipInterpolator

        # The ratio to the losses of the run is smoother than the losses themselves.
        tiny = float(np.finfo(float).tiny)
        ratio = at_knots / np.maximum(self.exact[self.knots], tiny)
        position = np.log1p(self.windows.t.astype(float))
        smooth = PchipInterpolator(position[self.knots], ratio)
        return np.asarray(self.exact * smooth(position))

    def changed(self, **parameters: Any) -> Risk | None:
        """Return the risk of the family with other parameters; None if it has none."""
        family = self.run.family
        if family is None or not parameters.keys() <= family.parameters().keys():
            return None
        try:
            risk: Risk = family.changed(**parameters).trained_risk()
        except ValueError:
            return None
        return risk

    def entries(self) -> Risk | None:
        """Return the risk over the parameters themselves, not over a reduction."""
        risk = self.risk
        if self.run.family is not None:
            risk = self.run.family.unreduced()
        if risk is None or not np.all(np.asarray(risk.metric) == 1.0):
            return None
        return risk

    def whole(self, name: str) -> int | None:
        """Return a finite integer among the parameters of the family."""
        value = getattr(self.run.family, name, None)
        if not isinstance(value, int | float) or not math.isfinite(value):
            return None
        return int(value) if value == int(value) else None


def _knots(windows: Windows) -> NDArray[np.intp]:
    """Choose at most `KNOTS_PER_WINDOW` indices of each window, with both ends."""
    chosen = []
    for start, count in zip(windows.starts, windows.counts, strict=True):
        size = min(count, KNOTS_PER_WINDOW)
        positions = np.linspace(start, start + count - 1, size).astype(np.intp)
        chosen.append(np.unique(positions))
    return np.concatenate(chosen)


@np.errstate(over="ignore", invalid="ignore")
def _losses_at(risk: Risk, eta: float, rule: Rule, steps: Steps) -> Array:
    """Return the losses of a training at some steps."""
    solution = risk.closed_form(eta, rule)
    last = int(steps[-1])
    descent = UpdateMap(risk, eta, rule)
    if solution is None and last > SINGLE_STEPS:
        if not descent.skippable:
            if last > LONGEST:
                raise TooLongError
            return _step_by_step(descent, steps)
        run = descend(
            risk,
            eta,
            steps=last,
            rule=rule,
            method="auto",
            progress=False,
        )
        # A run that stopped early, because nothing changes any more, is followed on.
        solution = run.solution
    if solution is None:
        return _step_by_step(descent, steps)
    states = solution.states(np.asarray(steps))
    return np.array([risk.evaluate(params)[0] for params in states])


def _step_by_step(descent: UpdateMap, steps: Steps) -> Array:
    """Train step by step, and return the losses at some steps."""
    losses_by_step: dict[int, float] = {}
    wanted = set(steps.tolist())
    for point in descent.iterates(descent.start()):
        if point.step in wanted:
            losses_by_step[point.step] = point.loss
        if point.step == steps[-1] or not math.isfinite(point.loss):
            break
    return np.array([losses_by_step.get(step, math.inf) for step in steps.tolist()])


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
    for known, words in REASONS.items():
        # a known factor that fits as well as the fitted one is the factor
        at_known = evidence.scaled(1.0 / known).misfit(trainings.exact)
        at_fitted = evidence.scaled(1.0 / factor).misfit(trainings.exact)
        if at_known < at_fitted + 4.0:
            factor = known
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
    expected = evidence.windows.means(trainings.exact)
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
    difference = evidence.means - evidence.windows.means(trainings.exact)
    constant = float(np.sum(weights * difference) / np.sum(weights))
    if not 0.0 < constant < math.inf:
        return
    fitted = 1
    own = getattr(family, "noise", 0.0)
    if isinstance(own, int | float) and own > 0.0:
        at_own = evidence.misfit(trainings.exact + 0.5 * own**2)
        if at_own < evidence.misfit(trainings.exact + constant) + 4.0:
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
                trainer = run.family.sampled(SET_SIZE, seed)
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


# Without standard errors a difference in units of rounding may overflow.
@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def explain(run: Run, rule: Rule, evidence: Evidence) -> Explanations:
    """Return the explanations that fit a curve, best first.

    If step 0, before any update, shows a factor 2 or 1/2 of the loss, which does not
    explain the curve alone, the explanations of the scaled curve are tried as well.
    """
    trainings = Trainings(run, rule, evidence.windows, evidence.exact)
    search = _Search(trainings, time.monotonic() + PATIENCE)
    fitting = search.fitting(evidence)
    factor = _factor_at_start(evidence)
    has_factor = any(explanation.name == "factor" for _, explanation in fitting)
    if factor is not None and not has_factor:
        fitting += search.fitting_with_factor(evidence, factor)
    fitting.sort(key=lambda pair: pair[0])
    ranked = tuple(
        explanation
        for score, explanation in fitting
        if score <= fitting[0][0] + TOLD_APART
    )
    return Explanations(ranked, tuple(search.untried))


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
        self.untried: dict[str, None] = {}

    def candidates(self, evidence: Evidence) -> Iterator[Candidate]:
        for name in counted(list(EXPLAINERS), "explanations"):
            if time.monotonic() > self.deadline:
                self.untried[name] = None
                continue
            try:
                yield from EXPLAINERS[name](self.trainings, evidence)
            except TooLongError:
                self.untried[name] = None

    def fitting(self, evidence: Evidence) -> list[tuple[float, Explanation]]:
        """Return the explanations that fit, with their scores."""
        fitting = []
        for candidate in self.candidates(evidence):
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
