"""Learning rates that change from step to step.

A `Schedule` returns a factor for each step. `Scheduled` is a rule whose learning rate
is multiplied by this factor.

The fields of a schedule usually come from the parameters ``decay_steps``,
``decay_factor`` and ``warmup`` of a problem. Errors about ``steps`` and ``decay``
therefore use the names of these parameters.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from icl_theory._validate import (
    Array,
    argument_error,
    dimensions,
    instance,
    integer,
    number,
    set_fields,
)
from icl_theory.engine.risk import Risk
from icl_theory.engine.rules.wrappers import Wrapper

# The default factor of StepLR and MultiStepLR in PyTorch.
DECAY_FACTOR = 0.1


@runtime_checkable
class Schedule(Protocol):
    """The factor on the learning rate in each step.

    Inherit from this class and define ``name`` and ``factor``. `Scheduled` also takes a
    function of the step number instead of a schedule.

    Attributes
    ----------
    name : str
        The name that runs show.
    horizon : int or None
        The step from which the rate is zero, and at which runs therefore end; None
        by default.
    """

    name: str
    horizon: ClassVar[int | None] = None

    def factor(self, t: int) -> float:
        """Return the factor in step t, a positive number. The first step is step 0."""
        ...


@dataclass(frozen=True)
class Constant(Schedule):
    """The factor 1 at every step."""

    name = "constant"

    def factor(self, t: int) -> float:
        """Return 1."""
        return 1.0


@dataclass(frozen=True)
class Cosine(Schedule):
    r"""The factor :math:`f + \tfrac12(1 - f)(1 + \cos(\pi t/T))`, half a cosine.

    The factor falls from 1 at step t = 0 to f at step T, and remains f. Up to step T
    and with the learning rate η this is
    ``torch.optim.lr_scheduler.CosineAnnealingLR(T_max=T, eta_min=f η)``; after step T
    the schedule of PyTorch rises again.

    Parameters
    ----------
    steps : int
        The step T.
    final : float
        The last factor f, from 0 to 1. With f = 0 a run ends at step T, because the
        rate is zero from this step on.
    """

    steps: int
    final: float = 0.0

    name = "cosine"

    def __post_init__(self) -> None:
        set_fields(self, steps=integer("decay_steps", self.steps, minimum=1))
        set_fields(self, final=number("final", self.final, zero=True, maximum=1.0))

    @property
    def horizon(self) -> int | None:  # type: ignore[override]
        """The step T if the final factor is 0, so that the rate is zero from T on.

        Otherwise it is None.
        """
        return self.steps if self.final == 0.0 else None

    def factor(self, t: int) -> float:
        """Return the factor in step t."""
        t = integer("t", t, minimum=0)
        half_cosine = 0.5 * (1.0 + math.cos(math.pi * min(t, self.steps) / self.steps))
        return self.final + (1.0 - self.final) * half_cosine


def _power(t: int, base: float, exponent: int) -> float:
    """Return ``base**exponent``, the factor in step t.

    The step is refused if the power is beyond the range of float64. This may happen if
    the base, the factor of a decay, is above 1.
    """
    try:
        return float(base**exponent)
    except OverflowError:
        raise argument_error(
            "t", t, f"a step with {base!r} ** {exponent} within the range of float64"
        ) from None


@dataclass(frozen=True)
class StepDecay(Schedule):
    r"""The factor :math:`f^{\lfloor t/s \rfloor}` in step t.

    So every s steps the factor is multiplied by f. This is
    ``torch.optim.lr_scheduler.StepLR``.

    Parameters
    ----------
    steps : int
        The number of steps s.
    decay : float
        The factor f.
    """

    steps: int
    decay: float = DECAY_FACTOR

    name = "step"

    def __post_init__(self) -> None:
        set_fields(self, steps=integer("decay_steps", self.steps, minimum=1))
        set_fields(self, decay=number("decay_factor", self.decay))

    def factor(self, t: int) -> float:
        """Return the factor in step t."""
        t = integer("t", t, minimum=0)
        return _power(t, self.decay, t // self.steps)


@dataclass(frozen=True)
class Piecewise(Schedule):
    """The factor f^n, in which n is the number of milestones reached so far.

    This is ``torch.optim.lr_scheduler.MultiStepLR``.

    Parameters
    ----------
    milestones : sequence of int
        Increasing steps. A milestone m counts as reached from step m on.
    decay : float
        The factor f.
    """

    milestones: tuple[int, ...]
    decay: float = DECAY_FACTOR

    name = "piecewise"

    def __post_init__(self) -> None:
        # Two of the checks below raise this error.
        error = argument_error(
            "milestones", self.milestones, "one or more increasing steps"
        )
        is_iterable = isinstance(self.milestones, Iterable)
        # A nested list or array of milestones is refused, too.
        if not is_iterable or dimensions(self.milestones) != 1:
            raise error
        steps = [integer("milestones", step, minimum=1) for step in self.milestones]
        is_increasing = all(earlier < later for earlier, later in pairwise(steps))
        if not steps or not is_increasing:
            raise error
        set_fields(self, milestones=tuple(steps))
        set_fields(self, decay=number("decay_factor", self.decay))

    def factor(self, t: int) -> float:
        """Return the factor in step t."""
        t = integer("t", t, minimum=0)
        # The number of milestones m with m <= t.
        reached_count = bisect.bisect_right(self.milestones, t)
        return _power(t, self.decay, reached_count)


@dataclass(frozen=True)
class InverseSqrt(Schedule):
    r"""The factor :math:`1/\sqrt{1 + t/s}` in step t.

    Parameters
    ----------
    steps : int
        The number of steps s; with 1 the factor is :math:`1/\sqrt{t + 1}`.
    """

    steps: int = 1

    name = "inverse-sqrt"

    def __post_init__(self) -> None:
        set_fields(self, steps=integer("decay_steps", self.steps, minimum=1))

    def factor(self, t: int) -> float:
        """Return the factor in step t."""
        return 1.0 / math.sqrt(1.0 + integer("t", t, minimum=0) / self.steps)


@dataclass(frozen=True)
class WarmUp(Schedule):
    r"""The factor :math:`(t + 1)/w` in step t < w, and then another schedule.

    In PyTorch this is a ``SequentialLR`` of ``LinearLR(start_factor=1/w,
    total_iters=w-1)`` and the other schedule. The default ``start_factor`` of PyTorch
    is 1/3 instead.

    Parameters
    ----------
    steps : int
        The number of steps w.
    after : Schedule
        The schedule that follows. Its step 0 is step w of the run.
    """

    steps: int
    after: Schedule = Constant()

    def __post_init__(self) -> None:
        set_fields(self, steps=integer("warmup", self.steps, minimum=1))
        instance("after", self.after, Schedule, "a Schedule")

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name of the schedule that follows, with the length of the warm-up."""
        return f"{self.after.name} after a warm-up of {self.steps:,} steps"

    @property
    def horizon(self) -> int | None:  # type: ignore[override]
        """The step of the run from which the rate is zero, or None.

        The horizon of the schedule that follows is counted from the end of the warm-up,
        so the length of the warm-up is added.
        """
        if self.after.horizon is None:
            return None
        return self.steps + self.after.horizon

    def factor(self, t: int) -> float:
        """Return the factor in step t."""
        t = integer("t", t, minimum=0)
        if t < self.steps:
            return (t + 1) / self.steps
        return self.after.factor(t - self.steps)


@dataclass(frozen=True)
class Function(Schedule):
    """A function of the step number as a schedule.

    Parameters
    ----------
    function : callable
        Takes a step and returns a factor.
    """

    function: Callable[[int], Any]

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name of the function."""
        # The name of an anonymous function in Python is "<lambda>". A callable object
        # may have no name.
        name = str(getattr(self.function, "__name__", "<unnamed>"))
        if name.startswith("<"):
            return "a schedule of your own"
        return f"schedule {name}"

    def factor(self, t: int) -> float:
        """Return the factor in step t, which `Scheduled` checks."""
        return self.function(t)


@dataclass(frozen=True)
class Scheduled(Wrapper):
    r"""A rule whose learning rate is :math:`\eta` times the factor of a schedule.

    A run by this rule takes every step, because the steps differ from each other. It is
    not ended early if it makes no progress, because the rate may rise again.

    Parameters
    ----------
    rule : Rule
        The wrapped rule.
    schedule : Schedule or callable
        The schedule, or a function that returns the factor in a step.

    Examples
    --------
    A rate that falls like 1/t:

    >>> import numpy as np, icl_theory as icl
    >>> from icl_theory.engine import GradientDescent, Scheduled
    >>> class Bowl(icl.Risk):
    ...     initial = np.ones(1)
    ...     def evaluate(self, params, step=0):
    ...         return 0.5 * float(params @ params), params
    >>> rule = Scheduled(GradientDescent(), lambda t: 1 / (t + 1))
    >>> icl.descend(Bowl(), 0.5, steps=3, rule=rule).params
    array([0.3125])
    """

    schedule: Schedule | Callable[[int], Any]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.schedule, Schedule):
            if not callable(self.schedule):
                raise argument_error(
                    "schedule",
                    self.schedule,
                    "a Schedule, or a function of the step number",
                )
            set_fields(self, schedule=Function(self.schedule))

    @property
    def name(self) -> str:  # type: ignore[override]
        """The names of the wrapped rule and of the schedule."""
        return f"{self.rule.name}, {self._schedule.name}"

    @property
    def may_stagnate(self) -> bool:  # type: ignore[override]
        """False, because the rate may rise again."""
        return False

    @property
    def horizon(self) -> int | None:  # type: ignore[override]
        """The step from which the rate is zero, or None if it never is."""
        return self._schedule.horizon

    @property
    def _schedule(self) -> Schedule:
        """The schedule, or the `Function` around a function that was given instead."""
        assert isinstance(self.schedule, Schedule)
        return self.schedule

    def step(
        self,
        risk: Risk,
        params: Array,
        gradient: Array,
        eta: float,
        memory: Array,
        t: int,
    ) -> tuple[Array, Array]:
        """Return the change of the parameters, and the memory of the wrapped rule."""
        return self.rule.step(risk, params, gradient, eta * self.factor(t), memory, t)

    def factor(self, t: int) -> float:
        """Return the factor of the schedule in step t.

        Raises
        ------
        ValueError
            The factor is not a positive number.
        """
        factor = self._schedule.factor(t)
        if np.ndim(factor) != 0:
            raise argument_error("schedule", factor, f"one number at step {t}")
        # `number` refuses a factor that is not finite and positive.
        return number(f"schedule at step {t}", factor)
