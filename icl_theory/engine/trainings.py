"""Trainings that differ from a run, and their losses at the steps of a loss curve.

If a loss curve from elsewhere differs from a run, such a training may explain it
(`engine.explanations`). `Trainings.losses` returns the losses of a training with
another risk, learning rate or rule at the steps of the curve. The module also defines
three such risks: the mean of several risks, a risk with another start, and the loss on
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
from icl_theory.engine.scaled import ScaledRisk
from icl_theory.engine.steps import UpdateMap
from icl_theory.engine.windows import Windows

# Trainings up to this step are followed one step at a time; longer trainings skip
# steps. This many steps of a small model take less than a second.
SINGLE_STEPS = 4096
# A training whose steps cannot be skipped is given up if it must go beyond this step.
# With a larger number longer curves could be explained, but the search would take
# longer.
LONGEST = 20_000
# An explanation is not tried if its trainings take more work than this. The work is the
# number of gradients, and a gradient with respect to n parameters counts as sqrt(n), a
# rough measure of its time. With 25 parameters the limit is 20,000 gradients.
MOST_WORK = 100_000
# Losses are computed at no more than this many steps of a window, the knots, and
# interpolated between them. There are at most 25 windows, and so at most 200 knots.
KNOTS_PER_WINDOW = 8


class MeanRisk(Risk):
    """The mean of several risks over the same parameters.

    All of them have the start and the metric of the first one.
    """

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
        total_loss = 0.0
        total_gradient = np.zeros_like(params)
        for risk in self.risks:
            loss, gradient = risk.evaluate(params, step)
            total_loss += loss
            total_gradient = total_gradient + gradient
        count = len(self.risks)
        return total_loss / count, total_gradient / count


class StartedAt(Risk):
    """The losses, gradients and metric of a risk, with another start.

    Trainings need no more. `engine.with_start` keeps the other methods of a risk, too.
    """

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
        """Loss and gradient of the risk, which do not depend on its start."""
        return self.risk.evaluate(params, step)


class FixedSet(Risk):
    """The loss on a fixed set: the prompts that a trainer draws in step 0."""

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
        """Standard deviation of the losses of single prompts at step 0.

        It is computed at each use.
        """
        return float(np.std(self.trainer.losses_on(self.initial, self.prompts)))

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Mean loss of the set and its gradient; the same at all steps."""
        return self.trainer.evaluate_on(params, self.prompts)


class TooLongError(Exception):
    """The trainings of an explanation would take too long."""


class Trainings:
    """Trainings that differ from a run, and their losses at the steps of a curve.

    The losses are computed at some of the steps, the knots, and interpolated at the
    others.

    Parameters
    ----------
    run : Run
        The run.
    rule : Rule
        The update rule of the run.
    windows : Windows
        The T steps of the curve, in windows.
    exact : ndarray, (T,)
        Losses of the run at these steps.
    """

    def __init__(self, run: Run, rule: Rule, windows: Windows, exact: Array) -> None:
        self.run = run
        self.rule = rule
        self.windows = windows
        self.exact = exact
        self.knots = _knots(windows)
        # A run from a file may have no risk, but name the family that makes it.
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
        """Return the losses of a training, (T,), at the T steps of the curve.

        If ``shift`` is not 0, the losses are computed at the steps t + shift instead,
        or at step 0 if t + shift is negative. By default the training has the risk, the
        learning rate and the rule of the run. The result is None if the risk is
        unknown, if the training diverges, or if the rule cannot train the risk.

        Raises
        ------
        TooLongError
            Every step must be taken, and the curve has too many steps.
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
            # The rule cannot train the risk, or a run that skips steps ended before the
            # last step, for example because it diverges.
            return None
        if not np.isfinite(at_knots).all():  # the training diverges
            return None
        return self._interpolated(at_knots)

    def check_work(
        self,
        trainings: int,
        risk: Risk | None = None,
        most: int = MOST_WORK,
        rule: Rule | None = None,
    ) -> None:
        """Raise an error if trainings would take more work than ``most``.

        Call this before the trainings.

        Parameters
        ----------
        trainings : int
            Number of trainings.
        risk, rule : Risk, Rule, optional
            The risk and the rule of the trainings; by default the run's. The steps of a
            given rule are taken not to be skippable, as with a schedule.
        most : int
            The largest allowed work, in the unit of MOST_WORK.

        Raises
        ------
        TooLongError
            The trainings would take more work.
        """
        risk = self.risk if risk is None else risk
        trained_by = self.rule if rule is None else rule
        # Without a risk there is no training, and a closed form takes no gradients.
        if risk is None or risk.closed_form(self.run.eta, trained_by) is not None:
            return
        # Every step takes one gradient. By the rule of the run, long trainings usually
        # skip steps. They are taken to need no more gradients than SINGLE_STEPS steps.
        gradients_each = self.last
        if rule is None:
            gradients_each = min(self.last, SINGLE_STEPS)
        gradient_count = trainings * gradients_each
        if gradient_count * math.sqrt(np.size(risk.initial)) > most:
            raise TooLongError

    def _interpolated(self, at_knots: Array) -> Array:
        """Return losses at all steps, (T,), from the losses at the knots."""
        # If all steps are knots, there is nothing to interpolate.
        if len(self.knots) == len(self.exact):
            return at_knots
        from scipy.interpolate import PchipInterpolator

        # The ratio to the losses of the run is smoother than the losses themselves. The
        # tiny number avoids a division by zero.
        tiny = float(np.finfo(float).tiny)
        ratio_at_knots = at_knots / np.maximum(self.exact[self.knots], tiny)
        # The windows, and so roughly the knots, are evenly spaced in x = ln(1 + t).
        # Between two knots a PCHIP curve stays between their values.
        x = np.log1p(self.windows.t.astype(float))
        ratio = PchipInterpolator(x[self.knots], ratio_at_knots)
        return np.asarray(self.exact * ratio(x))

    def changed(self, **parameters: Any) -> Risk | None:
        """Return the risk of the family with other values of some parameters.

        The result is None if the run has no family, or if the family lacks one of these
        parameters or refuses a value.
        """
        family = self.run.family
        if family is None or not parameters.keys() <= family.parameters().keys():
            return None
        try:
            risk: Risk = family.changed(**parameters).trained_risk()
        except ValueError:  # the family refuses the values
            return None
        return risk

    def entries(self) -> Risk | None:
        """Return the risk of the run as a function of all parameters.

        The risk of the run itself may be a reduction, whose parameters stand for
        several equal ones. The result is None if the unreduced risk is not known.
        """
        risk = self.risk
        # A fixed set has no symmetry that a reduction could use, so its risk has all
        # parameters already.
        on_fixed_set = getattr(self.run, "on_fixed_set", False)
        if self.run.family is not None and not on_fixed_set:
            risk = self.run.family.unreduced()
            # The risk of a run with loss="mse" is twice the risk of its family.
            if risk is not None and isinstance(self.risk, ScaledRisk):
                risk = ScaledRisk(risk, self.risk.factor)
        # The metric of a reduction is not 1: it counts the parameters that each
        # parameter of the reduction stands for.
        if risk is None or not np.all(np.asarray(risk.metric) == 1.0):
            return None
        return risk

    def integer_parameter(self, name: str) -> int | None:
        """Return a parameter of the family if it is a finite integer, else None."""
        value = getattr(self.run.family, name, None)
        if not isinstance(value, int | float) or not math.isfinite(value):
            return None
        return int(value) if value == int(value) else None


def _knots(windows: Windows) -> NDArray[np.intp]:
    """Return the indices of at most KNOTS_PER_WINDOW steps of each window.

    They include the first and the last step of the window.
    """
    knots = []
    for start, count in zip(windows.starts, windows.counts, strict=True):
        size = min(count, KNOTS_PER_WINDOW)
        indices = np.linspace(start, start + count - 1, size).astype(np.intp)
        knots.append(np.unique(indices))
    return np.concatenate(knots)


# The losses show that a training has diverged, so no warning is needed.
@np.errstate(over="ignore", invalid="ignore")
def _losses_at(risk: Risk, eta: float, rule: Rule, steps: Steps) -> Array:
    """Return the losses of a training at given steps.

    They are computed in the fastest way: from a closed form, step by step if the
    training is short, or else by skipping steps. A longer training whose steps cannot
    be skipped is also followed step by step, up to LONGEST.

    Raises
    ------
    TooLongError
        Every step must be taken, and there are too many.
    """
    descent = UpdateMap(risk, eta, rule)
    last = int(steps[-1])
    solution = risk.closed_form(eta, rule)
    if solution is None:
        if last <= SINGLE_STEPS:
            return _step_by_step(descent, steps)
        if not descent.skippable:
            if last > LONGEST:
                raise TooLongError
            return _step_by_step(descent, steps)
        run = descend(risk, eta, steps=last, rule=rule, method="auto", progress=False)
        # The run may have stopped before the last step, because nothing changed any
        # more. Its solution, which every run of `descend` has, also computes later
        # states. If the run diverged, `states` raises a ValueError.
        solution = run.solution
        assert solution is not None
    states = solution.states(np.asarray(steps))
    losses = []
    for params in states:
        loss, _gradient = risk.evaluate(params)
        losses.append(loss)
    return np.array(losses)


def _step_by_step(descent: UpdateMap, steps: Steps) -> Array:
    """Train step by step, and return the losses at given steps.

    If the training diverges, the losses from then on are not finite.
    """
    losses_by_step = dict.fromkeys(steps.tolist(), math.inf)
    for point in descent.iterates(descent.start()):
        if point.step in losses_by_step:
            losses_by_step[point.step] = point.loss
        if point.step == steps[-1] or not math.isfinite(point.loss):
            break
    return np.array([losses_by_step[step] for step in steps.tolist()])
