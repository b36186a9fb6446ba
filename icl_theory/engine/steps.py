"""One step of training as a map, and runs whose iterates are computed in order.

`UpdateMap` is one step of an update rule on a risk at a learning rate. Its iterates are
the states of a training run. `Iterates` is a run whose points (iterates with loss and
gradient) are computed in order. `SingleSteps` is the run that takes every step; runs
that skip steps are in `icl_theory.engine.skip`.
"""

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
from icl_theory.engine.rules import NO_MEMORY, Rule, is_plain_descent
from icl_theory.engine.trajectory import Stop, saved_steps

# Stands for an array that has been freed.
NOTHING = np.zeros(0)
# The change of the parameters in a step, and the memory after the step.
Update = tuple[Array, Array]
# The relative error of a loss that rounding in all earlier steps may cause. Sums of
# steps are compensated, so only the rounding of gradients matters. In 12 runs of up to
# 10^4 steps, compared with arithmetic of 113 bits, rounding changed the loss by at most
# 10 units in the last place. The 256 units leave a margin.
RUN_ROUNDING = 256.0 * 2.0**-52
# Step numbers.
Steps = NDArray[np.int64]
# A run in which every step is taken may be continued by this many steps, or by as many
# as it has taken if these are more. The limit keeps a request for one state from taking
# far longer than the run itself.
STEPS_BEYOND = 10_000
# Avoids a division by zero, and is below every loss that matters.
TINY = 1e-300


class Ended(Exception):  # noqa: N818
    """A run cannot continue, or has used its budget; ``stop`` says why.

    ``facts`` are the numbers in the sentence of ``stop``, by name.
    """

    def __init__(self, stop: Stop, **facts: float) -> None:
        super().__init__(stop.say(**facts))
        self.stop = stop


class TooFast(Exception):  # noqa: N818
    """Skipping would cost more gradients than single steps, or miss an oscillation."""


class TrainingState(NamedTuple):
    """The state that determines the further course of a run.

    Attributes
    ----------
    step : int
        The number t of steps that led to this state.
    params, memory : ndarray
        The parameters, and the memory of the rule.
    carry : ndarray
        The compensation of Kahan's sum: the amount by which rounding has made the
        parameters too large.
    """

    step: int
    params: Array
    memory: Array
    carry: Array


class Point:
    """An iterate of a run, with its loss and gradient.

    ``memory`` and ``carry`` are as in a ``TrainingState``: the memory of the rule, and
    the amount by which rounding has made the parameters too large. A carry of None
    stands for zero. `update` computes the next step once and remembers it. Stopping
    rules need the next step before it is taken, but an update rule may be called only
    once for each step.
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
        """The state of the run at this point."""
        carry = self.carry
        if carry is None:
            carry = np.zeros_like(self.params)
        return TrainingState(self.step, self.params, self.memory, carry)

    def update(self, update_map: UpdateMap) -> Update:
        """Return the change of the parameters in the next step, and the next memory."""
        if self._update is None:
            self._update = update_map.update(self)
        return self._update

    def release(self) -> None:
        """Free the gradient and the remembered step, once the step is taken."""
        self.gradient = NOTHING
        self._update = None


class UpdateMap:
    r"""One step of training, :math:`(\theta_t, m_t) \mapsto (\theta_{t+1}, m_{t+1})`.

    The parameters θ and the memory m of the update rule change by

    .. math::
        (\Delta, m_{t+1}) = \mathrm{step}(\theta_t, g_t, m_t, t), \qquad
        \theta_{t+1} = \theta_t + \Delta, \qquad
        g_t = \nabla\mathcal L(\theta_t).

    Parameters
    ----------
    risk : Risk
        The risk, whose loss is :math:`\mathcal L`.
    eta : float
        The learning rate.
    rule : Rule
        The update rule, which defines the function step.

    Attributes
    ----------
    evaluations : int
        Number of gradients computed so far.
    """

    def __init__(self, risk: Risk, eta: float, rule: Rule) -> None:
        self.risk = risk
        self.eta = eta
        self.rule = rule
        self.evaluations = 0
        # Whether a step has already checked that the rule keeps its contract.
        self._is_rule_checked = False

    @property
    def skippable(self) -> bool:
        """Whether steps may be skipped, because they depend only on the state."""
        return self.rule.skippable and not self._depends_on_step

    @property
    def may_stagnate(self) -> bool:
        """Whether a run that makes no more progress may be stopped."""
        return self.rule.may_stagnate and not self._depends_on_step

    @property
    def _depends_on_step(self) -> bool:
        """Whether the gradient depends on the step as well as on the parameters."""
        return self.risk.stochastic or self.risk.scheduled

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
        """Return the iterate with these parameters, with its loss and gradient.

        The gradient is counted. ``memory`` and ``carry`` are as in ``TrainingState``.
        """
        self.evaluations += 1
        loss, gradient = self.risk.evaluate(params, step)
        # NumPy would broadcast a gradient of another shape without an error. The check
        # runs at every step, so it calls the slow np.shape only if the attributes
        # differ.
        same_shape = getattr(gradient, "shape", ()) == getattr(params, "shape", ())
        if not same_shape and np.shape(gradient) != np.shape(params):
            raise argument_error(
                "gradient",
                np.shape(gradient),
                f"of the shape of the parameters, {np.shape(params)}",
            )
        return Point(step, params, loss, gradient, memory=memory, carry=carry)

    def point_at(self, state: TrainingState) -> Point:
        """Return the iterate at a state, with its loss and gradient."""
        return self.point(state.params, state.step, state.memory, state.carry)

    def from_run_state(self, state: TrainingState) -> TrainingState:
        """Return a state of the run as a state of this map.

        For this map both are the same. A ``WholeStateMap`` overrides this method,
        because its states hold the parameters and the memory in one array.
        """
        return state

    def to_run_point(self, point: Point) -> Point:
        """Return an iterate of this map as an iterate of the run.

        The iterates of this map are those of the run, unless a ``WholeStateMap``
        overrides this method.
        """
        return point

    def update(self, point: Point) -> Update:
        """Compute the change of the parameters and the next memory from a point.

        Callers use `Point.update` instead, which remembers the result.
        """
        # Only the first step is checked: a check of every step would take too long.
        if not self._is_rule_checked:
            return self._checked_update(point)
        return self.rule.step(
            self.risk, point.params, point.gradient, self.eta, point.memory, point.step
        )

    def _checked_update(self, point: Point) -> Update:
        """Return the first step of a rule, and check that the rule keeps its contract.

        Raises
        ------
        ValueError
            The rule does not return a change and a memory of the right shapes, or it
            changes an argument.
        """
        self._is_rule_checked = True
        # The gradient with respect to a single number may be a float.
        arguments = {
            "params": point.params,
            "gradient": np.asarray(point.gradient),
            "memory": point.memory,
        }
        # The copies show later whether the rule has changed an argument in place.
        copies = {name: np.array(value) for name, value in arguments.items()}
        update = self._first_step(point, arguments["gradient"])
        self._check_shapes(update, copies["params"].shape, copies["memory"].shape)
        for name, copy in copies.items():
            # NaN equals NaN in this comparison: it does not show a change.
            if not np.array_equal(copy, arguments[name], equal_nan=True):
                raise ValueError(
                    f"the rule {self.rule.name!r} changes its argument {name}: "
                    "it must return new arrays"
                )
        return update

    def _first_step(self, point: Point, gradient: Array) -> Update:
        """Return the first step of a rule, or explain its error if it lacks `init`."""
        rule = self.rule
        try:
            return rule.step(
                self.risk, point.params, gradient, self.eta, point.memory, point.step
            )
        except (ValueError, IndexError) as error:
            if type(rule).init is not Rule.init:
                raise
            # The rule defines no `init`, so its memory is empty. If its step uses a
            # memory, it fails with an error that would not tell why.
            raise ValueError(
                f"the rule {rule.name!r} defines no init, "
                f"and its step fails without one: {error}"
            ) from error

    def _check_shapes(
        self,
        update: object,
        params_shape: tuple[int, ...],
        memory_shape: tuple[int, ...],
    ) -> None:
        """Refuse an update unless it is a change and a memory of these shapes.

        A change of another shape would be broadcast without an error.
        """
        rule_name = self.rule.name
        if not (isinstance(update, tuple) and len(update) == 2):
            allowed = "a pair of arrays: the change, and the memory"
            raise argument_error(f"step of the rule {rule_name!r}", update, allowed)
        change, memory = update
        for name, value, shape in (
            ("change", change, params_shape),
            ("memory", memory, memory_shape),
        ):
            if np.shape(value) != shape:
                raise argument_error(
                    f"{name} of the rule {rule_name!r}",
                    np.shape(value),
                    f"of shape {shape}",
                )

    def moves(self, states: Array) -> Array:
        """Changes of n parameter arrays, (n, ...), by a rule without memory."""
        self.evaluations += len(states)
        gradients = gradients_at(self.risk, states)
        if is_plain_descent(self.rule):
            # A step of plain descent changes each number by itself, so one call of the
            # rule takes this step from all states.
            return self.change(states, gradients)
        changes = [
            self.change(params, gradient)
            for params, gradient in zip(states, gradients, strict=True)
        ]
        return np.stack(changes)

    def change(self, params: Array, gradient: Array) -> Array:
        """Change of the parameters in one step of a rule without memory or schedule."""
        # Such a step does not depend on its number, so step 0 stands for all steps.
        change, _memory = self.rule.step(
            self.risk, params, gradient, self.eta, NO_MEMORY, 0
        )
        return change

    def slope(self, point: Point) -> float:
        r"""Size of the change of the loss in a step, to first order.

        It is :math:`\sum_i |g_i \Delta_i|`, with the gradient g and the change Δ of the
        parameters. For gradient descent the slope is the decrease of the loss to first
        order. With momentum some entries of the parameters may move uphill for a short
        time. Because of the absolute values their terms do not cancel the terms of the
        other entries.
        """
        change, _memory = point.update(self)
        return float(np.sum(np.abs(point.gradient * change)))

    def pace(self, point: Point) -> float:
        """Largest change of a score in the step from a point, to first order."""
        change, _memory = point.update(self)
        largest_change = float(np.abs(change).max(initial=0.0))
        return gain_at(self.risk, point.params) * largest_change

    def iterates(self, state: TrainingState) -> Generator[Point, None, None]:
        """Yield every iterate from a state on.

        The parameters are a compensated sum of all changes, by Kahan's method. An
        iterate loses its gradient when the next iterate is requested.
        """
        step, params, memory, carry = state
        while True:
            point = self.point(params, step, memory, carry)
            yield point
            change, memory = point.update(self)
            # The computer may have room for only a few arrays of the size of the
            # parameters, so each is freed as soon as it is not needed any more.
            point.release()
            del point
            # In Kahan's sum `carry` is the amount by which rounding has made the
            # parameters too large, so the next change is reduced by it.
            compensated = change - carry
            del change, carry
            new_params = params + compensated
            # The rounded change that was made, minus the intended change.
            carry = np.subtract(new_params, params) - compensated
            del compensated
            params = new_params
            step += 1


class Iterates(Solution):
    """A run whose points are computed in order, each from the points before it.

    A subclass defines three methods: ``_points`` yields the points, ``_first_below``
    locates the first step below a loss, and ``_later`` computes a state from an earlier
    state.

    Parameters
    ----------
    update_map : UpdateMap
        One step of the run.
    known_states : dict of int to TrainingState, optional
        States of the run that are known already, by step.

    Attributes
    ----------
    flow : bool
        Whether the run is a gradient flow, whose steps are times.
    skips : bool
        Whether the run may skip steps.
    skipped : bool
        Whether the run has skipped a step.
    error : float or None
        The largest estimated error of a score so far. It is None for a flow, and for a
        run that has taken every step.
    last_point : Point or None
        The last point that `points` has yielded, or the point at the step that
        `first_below` has returned.
    """

    flow = False
    skips = False
    skipped = False
    error: float | None = None

    def __init__(
        self,
        update_map: UpdateMap,
        known_states: dict[int, TrainingState] | None = None,
    ) -> None:
        self.update_map = update_map
        self._states = known_states or {}
        self.last_point: Point | None = None
        # Step and loss of the point that was yielded before the last one.
        self._previous: _StepLoss | None = None
        # The smallest loss of all points before the last one
        self._smallest_earlier_loss = math.inf

    def points(self, schedule: Steps) -> Generator[Point, None, None]:
        """Yield points of the run from step 0 on, in the order of their steps.

        The points include all steps of the schedule. `Ended` is raised if the run
        cannot continue.
        """
        for point in self._points(schedule):
            if not math.isfinite(point.loss):
                raise Ended(Stop.LOSS, step=point.step)
            if self.last_point is not None:
                self._previous = _StepLoss(self.last_point.step, self.last_point.loss)
                self._smallest_earlier_loss = min(
                    self._smallest_earlier_loss, self.last_point.loss
                )
            self.last_point = point
            yield point
            # Free the point, which may be large, before the next one is computed.
            del point

    def states(self, steps: Steps) -> Array:
        """Return the parameters at T steps, (T, ...).

        Each state is computed from the nearest known state at or before its step.
        """
        return np.stack([self.state(t).params for t in np.asarray(steps).tolist()])

    def first_below(self, epsilon: float, last: int) -> tuple[int | None, float | None]:
        """Return the first step with loss <= epsilon, up to ``last``, and its error.

        Both are None if there is no such step. The error is also None for a flow, and
        if every step was taken and rounding does not matter (``_tie_error``). The run
        is computed again unless the loss is at most epsilon at ``last_point`` and
        larger at all points before. Afterwards ``last_point`` is the point at the
        returned step.
        """
        if not self._ends_at_first_below(epsilon):
            self._run_until(epsilon, last)
        assert self.last_point is not None
        if self.last_point.loss > epsilon:
            return None, None
        # A subclass may find a skipped step between the last two points.
        step, error = self._first_below(epsilon)
        if step > last:
            return None, None
        tie_error = self._tie_error(epsilon)
        if tie_error is not None:
            error = tie_error if error is None else max(tie_error, error)
        return step, error

    def _ends_at_first_below(self, epsilon: float) -> bool:
        """Whether loss <= epsilon at the last point, but at no point before."""
        if self.last_point is None or self.last_point.loss > epsilon:
            return False
        return self._smallest_earlier_loss > epsilon

    def _run_until(self, epsilon: float, last: int) -> None:
        """Compute the run again, until a point has loss <= epsilon or step >= last."""
        self.last_point = None
        self._previous = None
        self._smallest_earlier_loss = math.inf
        # The schedule is made as in `Recorder`: a risk without parameters is treated as
        # one with a single number.
        size = max(1, np.size(self.update_map.risk.initial))
        # A run that leaves float64 ends with `Ended`, so no warning is needed.
        with np.errstate(over="ignore", invalid="ignore"):
            for point in self.points(saved_steps(last, size)):
                if point.loss <= epsilon or point.step >= last:
                    break

    def _tie_error(self, epsilon: float) -> float | None:
        """Error of the first step below epsilon, or None if rounding does not matter.

        In a tie, rounding decides which step is the first: the loss at ``last_point``,
        or at the step before, equals epsilon up to rounding. The true step may then be
        the next or the previous one, or farther away by the number of steps in which
        the loss falls by its rounding error.
        """
        point = self.last_point
        assert point is not None
        risk = self.update_map.risk
        # The steps of a flow are times, which are not counted. The losses of sampled
        # batches scatter by far more than their rounding errors. If the loss is
        # scheduled, `loss_error` knows only its error at step 0.
        if self.flow or self.update_map._depends_on_step:
            return None
        # `Risk.loss_error` refuses parameters that are not finite.
        if not np.isfinite(point.params).all():
            return None
        rounding = risk.loss_error(point.params) + RUN_ROUNDING * abs(point.loss)
        is_tie = epsilon - point.loss <= rounding
        previous = self._previous
        # No step precedes step 0, and after a skipped step the loss one step earlier is
        # unknown. If there is a tie at the last point, the true step may still be the
        # next one.
        if previous is None or previous.step != point.step - 1:
            return 1.0 if is_tie else None
        # The loss one step earlier may be far larger, and then its rounding error is
        # larger by the same factor.
        loss_ratio = max(1.0, abs(previous.loss) / max(abs(point.loss), TINY))
        is_tie_before = previous.loss - epsilon <= rounding * loss_ratio
        if not (is_tie or is_tie_before):
            return None
        decrease = previous.loss - point.loss
        if decrease > 0.0:
            return 1.0 + rounding / decrease
        # The loss does not fall, so nothing is known about the error of the step.
        return math.inf

    def state(self, t: int) -> TrainingState:
        """Return the state at step t, computed from the nearest known state before it.

        The state is kept and is known from then on. A step that the run cannot reach is
        refused.
        """
        states = self._states
        if 0 not in states:
            states[0] = self.update_map.start()
        nearest = max(step for step in states if step <= t)
        if nearest < t:
            try:
                # A run that leaves float64 ends with `Ended`, so no warning is needed.
                with np.errstate(over="ignore", invalid="ignore"):
                    states[t] = self._later(states[nearest], t)
            except Ended as ended:
                allowed = (
                    f"a step that can be reached from step {nearest}: "
                    f"on the way the run {ended}"
                )
                raise argument_error("t", t, allowed) from None
        return states[t]

    @abstractmethod
    def _points(self, schedule: Steps) -> Generator[Point, None, None]:
        """Yield points of the run, which include all steps of the schedule."""

    @abstractmethod
    def _first_below(self, epsilon: float) -> tuple[int, float | None]:
        """Return the first step with loss <= epsilon, and its error.

        The loss at ``last_point`` is at most epsilon.
        """

    @abstractmethod
    def _later(self, state: TrainingState, t: int) -> TrainingState:
        """Compute the state at step t from an earlier one."""


class _StepLoss(NamedTuple):
    """The number of a step, and the loss at this step."""

    step: int
    loss: float


class SingleSteps(Iterates):
    """A run in which every step is taken.

    Parameters
    ----------
    update_map : UpdateMap
        One step of the run.
    known_states : dict of int to TrainingState, optional
        States of the run that are known already, by step.
    """

    def __init__(
        self,
        update_map: UpdateMap,
        known_states: dict[int, TrainingState] | None = None,
    ) -> None:
        super().__init__(update_map, known_states)
        last_known = max(self._states, default=0)
        # The last step whose state may be computed, see STEPS_BEYOND.
        self._last_allowed = last_known + max(last_known, STEPS_BEYOND)

    def _points(self, schedule: Steps) -> Generator[Point, None, None]:
        """Yield all points of the run, among them the scheduled ones."""
        return self.update_map.iterates(self.update_map.start())

    def _first_below(self, epsilon: float) -> tuple[int, float | None]:
        """Return the step of the last point, and None: such a count has no error.

        No step is skipped, so the last point is the first one with loss <= epsilon.
        """
        assert self.last_point is not None
        return self.last_point.step, None

    def _later(self, state: TrainingState, t: int) -> TrainingState:
        """Compute the state at step t from an earlier one, step by step.

        Two kinds of steps are refused: steps that would take too long, and steps beyond
        the rule's horizon, from which on its learning rate is zero.
        """
        horizon = self.update_map.rule.horizon
        if horizon is not None and t > horizon:
            allowed = (
                f"at most {horizon}: "
                "from there on the learning rate of this run is zero"
            )
            raise argument_error("t", t, allowed)
        if t > self._last_allowed:
            allowed = (
                f"at most {self._last_allowed} here: "
                "a run in which every step is taken does not continue beyond that"
            )
            raise argument_error("t", t, allowed)
        iterates = self.update_map.iterates(state)
        return next(point.state for point in iterates if point.step == t)
