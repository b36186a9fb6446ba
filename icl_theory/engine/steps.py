"""One step of training, which every method iterates or skips over; and runs whose iterates are found in order."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Generator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array, argument_error
from icl_theory.engine.capabilities import gain_at, gradients_at
from icl_theory.engine.risk import Risk, Solution
from icl_theory.engine.rules import NO_MEMORY, Rule
from icl_theory.engine.trajectory import Stop, saved_steps

NOTHING = np.zeros(0)
# the change of the parameters in a step, and the memory after it
Update = tuple[Array, Array]
# What rounding in all steps before may do to a loss, relative to it. Sums of steps are
# compensated, so that the
# errors of the gradients are left: 10 units at most in 12 exchangeable runs of up to
# 10^4 steps against 113 bits.
RUN_ROUNDING = 256.0 * 2.0**-52
Steps = NDArray[np.int64]


class Ended(Exception):  # noqa: N818
    """A run cannot or may not go on."""

    def __init__(self, stop: Stop, **facts: float) -> None:
        super().__init__(stop.say(**facts))
        self.stop = stop


class TooFast(Exception):  # noqa: N818
    """The flow through the iterates cannot be followed to the tolerance here."""


class TrainingState(NamedTuple):
    """All that the further course of a run depends on.

    Attributes
    ----------
    step : int
        Its number.
    params, memory : ndarray
        Parameters, and what the rule remembers.
    carry : ndarray
        What rounding has left out of the parameters so far: the compensation of Kahan's
        sum.
    """

    step: int
    params: Array
    memory: Array
    carry: Array


class Point:
    """An iterate with its loss and gradient; the step that leads from it is computed once, when it is first needed.

    Stopping rules look at that step before it is taken, and a rule may be called only
    once for each.
    """

    __slots__ = ("_update", "carry", "gradient", "loss", "memory", "params", "step")

    def __init__(
        self,
        step: int,
        params: Array,
        loss: float,
        gradient: Array,
        memory: Array = NO_MEMORY,
        carry: Array | None = None,
    ) -> None:
        self.step = step
        self.params = params
        self.loss = loss
        self.gradient = gradient
        self.memory = memory
        self.carry = carry
        self._update: Update | None = None

    @property
    def state(self) -> TrainingState:
        """The state of the run here."""
        carry = np.zeros_like(self.params) if self.carry is None else self.carry
        return TrainingState(self.step, self.params, self.memory, carry)

    def update(self, descent: Descent) -> Update:
        """Return the step from here."""
        if self._update is None:
            self._update = descent.update(self)
        return self._update

    def release(self) -> None:
        """Forget the gradient and the step from here, which may be large: the step has been taken."""
        self.gradient = NOTHING
        self._update = None


class Descent:
    """Training of a risk by a rule at a learning rate, one step at a time."""

    def __init__(self, risk: Risk, eta: float, rule: Rule) -> None:
        self.risk = risk
        self.eta = eta
        self.rule = rule
        self.evaluations = 0  # of gradients, so far
        self._is_checked = (
            False  # whether the rule has been seen to keep to its contract
        )

    @property
    def skippable(self) -> bool:
        """Whether some steps say what later ones do."""
        return self.rule.skippable and not self.risk.stochastic

    @property
    def may_stagnate(self) -> bool:
        """Whether a run that gets no further may be stopped."""
        return self.rule.may_stagnate and not self.risk.stochastic

    def start(self) -> TrainingState:
        """Return the state at step 0."""
        params = self.risk.initial
        memory = self.rule.init(self.risk, params)
        if not isinstance(memory, np.ndarray):
            raise argument_error(
                f"memory of the rule {self.rule.name!r}",
                memory,
                "an array, returned by its init",
            )
        return TrainingState(0, params, memory, np.zeros_like(params))

    def point(
        self,
        params: Array,
        step: int,
        memory: Array = NO_MEMORY,
        carry: Array | None = None,
    ) -> Point:
        """Loss and gradient at an iterate."""
        self.evaluations += 1
        loss, gradient = self.risk.evaluate(params, step)
        # np.shape of a number takes long
        same_shape = getattr(gradient, "shape", ()) == getattr(params, "shape", ())
        if not same_shape and np.shape(gradient) != np.shape(
            params
        ):  # one would be broadcast to the other
            raise argument_error(
                "gradient",
                np.shape(gradient),
                f"of the shape of the parameters, {np.shape(params)}",
            )
        return Point(step, params, loss, gradient, memory, carry)

    def point_at(self, state: TrainingState) -> Point:
        """Loss and gradient at a state."""
        return self.point(state.params, state.step, state.memory, state.carry)

    def into(self, state: TrainingState) -> TrainingState:
        """Return a state of the run as one of what is followed; ``WholeState`` follows something else."""
        return state

    def real(self, point: Point) -> Point:
        """Return an iterate of what is followed as one of the run."""
        return point

    def update(self, point: Point) -> Update:
        """Return the step from a point; `Point.update` remembers it."""
        if not self._is_checked:
            return self._checked_update(point)
        return self.rule.step(
            self.risk, point.params, point.gradient, self.eta, point.memory, point.step
        )

    def _checked_update(self, point: Point) -> Update:
        """Return the step from a point of a rule that has not been seen yet.

        Raises
        ------
        ValueError
            The rule returns something else than a change and a memory of the right
            shapes, or changes an argument.
        """
        rule = self.rule
        self._is_checked = True
        arguments = {
            "params": point.params,
            "gradient": np.asarray(point.gradient),
            "memory": point.memory,
        }
        before = {name: np.array(value) for name, value in arguments.items()}
        try:
            returned = rule.step(
                self.risk,
                point.params,
                arguments["gradient"],
                self.eta,
                point.memory,
                point.step,
            )
        except (ValueError, IndexError) as error:
            if type(rule).init is not Rule.init:
                raise
            # a step that uses a memory has been given the empty one of a rule that
            # defines no init
            raise ValueError(
                f"the rule {rule.name!r} defines no init, and its step fails without one: {error}"
            ) from error
        if not (isinstance(returned, tuple) and len(returned) == 2):
            allowed = "a pair of arrays: the change, and the memory"
            raise argument_error(f"step of the rule {rule.name!r}", returned, allowed)
        for name, expected, value in zip(
            ("change", "memory"), ("params", "memory"), returned, strict=True
        ):
            shape = before[expected].shape
            if np.shape(value) != shape:
                raise argument_error(
                    f"{name} of the rule {rule.name!r}",
                    np.shape(value),
                    f"of shape {shape}",
                )
        for name, value in before.items():
            if not np.array_equal(value, arguments[name], equal_nan=True):
                raise ValueError(
                    f"the rule {rule.name!r} changes its argument {name}: it must return new arrays"
                )
        return returned

    def moves(self, states: Array) -> Array:
        """Changes of some parameters, (n, ...), in one step of a rule without memory."""
        self.evaluations += len(states)
        gradients = gradients_at(self.risk, states)
        return np.stack(
            [self.change(*pair) for pair in zip(states, gradients, strict=True)]
        )

    def change(self, params: Array, gradient: Array) -> Array:
        """Change of parameters in one step of a rule without memory whose steps are all alike."""
        return self.rule.step(self.risk, params, gradient, self.eta, NO_MEMORY, 0)[0]

    def slope(self, point: Point) -> float:
        r"""Change of the loss in the step from a point, to first order: :math:`\sum_i |g_i \Delta_i|`.

        Signs are left out because a step with momentum may go up in some entries, and
        soon goes down in them again. For gradient descent it is the decrease.
        """
        return float(np.sum(np.abs(point.gradient * point.update(self)[0])))

    def pace(self, point: Point) -> float:
        """Largest change of a score in the step from a point."""
        return gain_at(self.risk, point.params) * float(
            np.abs(point.update(self)[0]).max(initial=0.0)
        )

    def iterates(self, state: TrainingState) -> Generator[Point, None, None]:
        """Yield every iterate from a state on; Kahan's compensated sum carries the rounding errors along.

        An iterate keeps its gradient until the next one is asked for.
        """
        step, params, memory, carry = state
        while True:
            point = self.point(params, step, memory, carry)
            yield point
            change, memory = point.update(self)
            # Kahan's sum: `carry` is how much more than `change` the rounded parameters
            # have moved
            point.release()  # large parameters leave room for few arrays of their size
            del point
            carry = change - carry
            del change
            moved = params + carry
            params = np.subtract(moved, params) - carry
            params, carry = moved, params
            step += 1


class Followed(Solution):
    """Iterates that are found in order, each from those before it; ``known`` are states of the run by step."""

    flow = False  # whether the steps are times of the flow
    skips = False  # whether steps may be skipped,
    skipped = False  # and whether any was
    error: float | None = (
        # of the scores so far, at worst; None where each step was taken, and of flows
        None
    )

    def __init__(
        self, descent: Descent, known: dict[int, TrainingState] | None = None
    ) -> None:
        self.descent = descent
        self._known = known or {}
        self.here: Point | None = (
            None  # the last point of `points`, or the one that `first_below` has found
        )
        self._before: tuple[int, float] | None = (
            None  # step and loss of the point before that
        )

    def points(self, schedule: Steps) -> Generator[Point, None, None]:
        """Yield points of the run from its beginning on, those of the schedule at least, until it has `Ended`."""
        for point in self._points(schedule):
            if not math.isfinite(point.loss):
                raise Ended(Stop.LOSS, step=point.step)
            if self.here is not None:
                self._before = self.here.step, self.here.loss
            self.here = point
            yield point
            del point

    def states(self, steps: Steps) -> Array:
        """Return the parameters at some steps, each followed from the nearest one below it that is known."""
        return np.stack([self.state(t).params for t in np.asarray(steps).tolist()])

    def first_below(self, epsilon: float, last: int) -> tuple[int | None, float | None]:
        """Return the first step with loss <= epsilon, which `here` is then; follow the run unless that is done."""
        here, before = self.here, self._before
        if (
            here is None
            or here.loss > epsilon
            or (before is not None and before[1] <= epsilon)
        ):
            self.here = self._before = None
            with np.errstate(over="ignore", invalid="ignore"):
                for point in self.points(
                    saved_steps(last, max(1, np.size(self.descent.risk.initial)))
                ):
                    if point.loss <= epsilon or point.step >= last:
                        break
        assert self.here is not None
        if self.here.loss > epsilon:
            return None, None
        step, error = self._first_below(epsilon)
        if step > last:
            return None, None
        tie = self._tie_error(epsilon)
        return step, error if tie is None else max(tie, error or 0.0)

    def _tie_error(self, epsilon: float) -> float | None:
        """Steps by which the count may be off because a loss is epsilon to rounding; None if none is."""
        here = self.here
        before = self._before
        risk = self.descent.risk
        assert here is not None
        if self.flow or risk.stochastic or not np.isfinite(here.params).all():
            return None
        rounding = risk.loss_error(here.params) + RUN_ROUNDING * abs(here.loss)
        if (
            before is None or before[0] != here.step - 1
        ):  # the first step, or one after steps that were skipped
            return 1.0 if epsilon - here.loss <= rounding else None
        decrease = before[1] - here.loss
        # the loss before may be larger by far, and its rounding with it
        rounding_before = rounding * max(
            1.0, abs(before[1]) / max(abs(here.loss), 1e-300)
        )
        if epsilon - here.loss <= rounding or before[1] - epsilon <= rounding_before:
            return 1.0 + (rounding / decrease if decrease > 0.0 else math.inf)
        return None

    def state(self, t: int) -> TrainingState:
        """Return the state at a step, which is followed from the nearest one below it that is known."""
        known = self._known
        if 0 not in known:
            known[0] = self.descent.start()
        start = max(step for step in known if step <= t)
        if start < t:
            try:
                with np.errstate(over="ignore", invalid="ignore"):
                    known[t] = self._later(known[start], t)
            except Ended as ended:
                allowed = f"a step that can be reached from step {start}: on the way the run {ended}"
                raise argument_error("t", t, allowed) from None
        return known[t]

    @abstractmethod
    def _points(self, schedule: Steps) -> Generator[Point, None, None]:
        """Yield points of the run, those of the schedule at least."""

    @abstractmethod
    def _first_below(self, epsilon: float) -> tuple[int, float | None]:
        """Find the first step with loss <= epsilon up to `here`, where the loss is that small, and its error."""

    @abstractmethod
    def _later(self, state: TrainingState, t: int) -> TrainingState:
        """Find the state at a step from an earlier one."""


class SingleSteps(Followed):
    """Every step is taken, at most ``beyond`` the last known one unless more led there: others take too long."""

    def __init__(
        self,
        descent: Descent,
        known: dict[int, TrainingState] | None = None,
        beyond: int = 10_000,
    ) -> None:
        super().__init__(descent, known)
        last = max(self._known, default=0)
        self._most = last + max(last, beyond)

    def _points(self, schedule: Steps) -> Generator[Point, None, None]:
        return self.descent.iterates(self.descent.start())

    def _first_below(self, epsilon: float) -> tuple[int, float | None]:
        assert self.here is not None
        return self.here.step, None

    def _later(self, state: TrainingState, t: int) -> TrainingState:
        horizon = self.descent.rule.horizon
        if horizon is not None and t > horizon:
            raise argument_error(
                "t",
                t,
                f"at most {horizon}: from there on the learning rate of this run is zero",
            )
        if t > self._most:
            allowed = f"at most {self._most} here: a run in which every step is taken does not continue beyond that"
            raise argument_error("t", t, allowed)
        return next(
            point.state for point in self.descent.iterates(state) if point.step == t
        )
