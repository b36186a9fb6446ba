"""Trainings that differ from a run, followed exactly at the steps of a loss curve.

`Trainings` returns the losses of another risk, rate or rule at the steps of a curve.
The other risks are a mean of several risks, a risk with another start, and the loss on
a fixed set of prompts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.engine.descent import descend
from icl_theory.engine.loss_curve import Run, Steps
from icl_theory.engine.risk import Risk
from icl_theory.engine.rules import Rule
from icl_theory.engine.sampling import Trainer
from icl_theory.engine.steps import UpdateMap
from icl_theory.engine.windows import Windows

# Trainings up to this step are followed one step at a time; later ones skip steps.
SINGLE_STEPS = 4096
# A rule whose steps cannot be skipped is followed up to this step.
LONGEST = 20_000
# An explanation is not tried if its trainings take more gradients than this, each
# counted as often as the square root of the number of parameters.
MOST_WORK = 100_000
# The number of points of a window at which losses are computed. Between them, losses
# are interpolated.
KNOTS_PER_WINDOW = 8


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
        self,
        trainings: int,
        risk: Risk | None = None,
        most: int = MOST_WORK,
        rule: Rule | None = None,
    ) -> None:
        """Refuse trainings without a closed form that take too many gradients.

        A ``rule`` other than that of the run takes every step.

        Raises
        ------
        TooLongError
            The trainings take too many gradients.
        """
        risk = self.risk if risk is None else risk
        trained_by = self.rule if rule is None else rule
        if risk is None or risk.closed_form(self.run.eta, trained_by) is not None:
            return
        steps = self.last if rule is not None else min(self.last, SINGLE_STEPS)
        gradients = trainings * steps
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
        # A fixed set has no symmetry that a reduction could use.
        on_fixed_set = getattr(self.run, "on_fixed_set", False)
        if self.run.family is not None and not on_fixed_set:
            risk = self.run.family.unreduced()
        if risk is None or not np.all(np.asarray(risk.metric) == 1.0):
            return None
        return risk

    def whole(self, name: str) -> int | None:
        """Return a parameter of the family if it is a finite integer, else None."""
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
