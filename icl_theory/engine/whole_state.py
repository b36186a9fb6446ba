"""Training with a memory as a map of one array, so that its steps can be skipped.

The whole state of a run is one array: the parameters and, below them, the memory of the
update rule. The whole state determines the next step, as the parameters alone do for a
rule without memory. In the whole state the memory is multiplied by a scale: about the
total change of the parameters that a memory of size 1 causes. So the same tolerance
suits the parameters and the scaled memory. In shapes, K is the length of the first axis
of the parameters.
"""

from __future__ import annotations

import math
from collections.abc import Generator

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array, argument_error, number
from icl_theory.engine.capabilities import (
    ColumnGradients,
    column_gradients_of,
    gain_at,
    gradients_at,
)
from icl_theory.engine.risk import Risk
from icl_theory.engine.rules import NO_MEMORY, Rule
from icl_theory.engine.steps import Point, TrainingState, Update, UpdateMap


class StateRisk(Risk):
    """A risk of the parameters as a function of the whole state.

    Its loss does not depend on the memory in the whole state.

    Parameters
    ----------
    risk : Risk
        The risk of the parameters.
    memory : ndarray
        The memory at step 0.
    scale : float
        The factor by which the memory is multiplied in the whole state.
    """

    def __init__(self, risk: Risk, memory: Array, scale: float) -> None:
        self.risk = risk
        self.scale = scale
        # The shape of the parameters; () if they are a single number.
        self.shape = np.shape(risk.initial)
        self._initial = self.join(risk.initial, memory)

    @property
    def initial(self) -> Array:
        """Parameters and memory at step 0."""
        return self._initial

    @property
    def metric(self) -> float | Array:
        """The metric of the parameters."""
        return self.risk.metric

    def join(self, params: Array, memory: Array) -> Array:
        """Return the whole state of parameters and memory.

        It has the shape (2,) for two numbers, and (2K, ...) for two arrays (K, ...).
        The memory is multiplied by the scale. Gradients and changes of parameters and
        memory are joined in the same way.
        """
        if not self.shape:
            return np.array([params, self.scale * memory])
        return np.concatenate([params, self.scale * memory])

    def split(self, state: Array) -> tuple[Array, Array]:
        """Return the parameters and the memory of a whole state.

        The parameters are a view of the state, unless they are a single number.
        """
        if not self.shape:
            return np.asarray(state[0]), np.asarray(state[1] / self.scale)
        K = self.shape[0]
        return state[:K], state[K:] / self.scale

    def params_of(self, state: Array) -> Array:
        """Return the part of the parameters in an array shaped like a whole state."""
        if not self.shape:
            return np.asarray(state[0])
        return state[: self.shape[0]]

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss, and its gradient with respect to the whole state, ``params``.

        The gradient is zero for the memory.
        """
        loss, gradient = self.risk.evaluate(self.params_of(params), step)
        return loss, self.join(gradient, np.zeros_like(gradient))

    def gain(self, params: Array) -> float:
        """The change of the scores per unit change of the whole state, ``params``.

        It is taken to be the gain of the parameters: an error of the scaled memory
        causes an error of the parameters of the same size.
        """
        return gain_at(self.risk, self.params_of(params))

    @property
    def column_gradients(self) -> ColumnGradients | None:
        """A function that returns gradients of single columns of the state, or None.

        The gradients are zero for the memory. The result is None if the risk of the
        parameters has no such function.
        """
        gradients = column_gradients_of(self.risk)
        if gradients is None:
            return None
        K = self.shape[0]

        # Takes n columns of the state, (2K, n), and their indices, (n,).
        def state_gradients(columns: Array, indices: NDArray[np.intp]) -> Array:
            gradient = gradients(columns[:K], indices)
            return np.concatenate([gradient, np.zeros_like(gradient)])

        return state_gradients


class StatePoint(Point):
    """An iterate of the whole state.

    Its attribute ``run_point`` is the same iterate of the run, with parameters and
    memory in two arrays.
    """

    __slots__ = ("run_point",)

    run_point: Point


class WholeStateMap(UpdateMap):
    """One step of the whole state, for a rule whose memory has the parameters' shape.

    Its states hold the parameters and the memory in one array, and have an empty
    memory of their own.

    Parameters
    ----------
    update_map : UpdateMap
        One step of the run.

    Raises
    ------
    ValueError
        The memory has another shape than the parameters, or the ``memory_scale`` of the
        rule is not a positive number, or the rule has no ``jacobian``.
    """

    risk: StateRisk

    def __init__(self, update_map: UpdateMap) -> None:
        rule = update_map.rule
        eta = update_map.eta
        # A new map of the run, because the count of gradients of this whole-state map
        # is kept in it, and begins at zero.
        self.run_map = UpdateMap(update_map.risk, eta, rule)
        start = self.run_map.start()
        _check_skippable(rule, eta, start)
        memory_scale = number(
            f"memory_scale of the rule {rule.name!r}", rule.memory_scale(eta)
        )
        # The scale is a power of two, because multiplication by it rounds nothing.
        scale = 2.0 ** round(math.log2(memory_scale))
        state_risk = StateRisk(update_map.risk, start.memory, scale)
        super().__init__(state_risk, eta, rule)

    @property
    def evaluations(self) -> int:  # type: ignore[override]
        """Number of gradients computed so far, by this map and the map of the run."""
        return self.run_map.evaluations

    @evaluations.setter
    def evaluations(self, count: int) -> None:
        self.run_map.evaluations = count

    def start(self) -> TrainingState:
        """Return the whole state at step 0."""
        return self.from_run_state(self.run_map.start())

    def from_run_state(self, state: TrainingState) -> TrainingState:
        """Return a state of the run as a whole state: one array, without a memory."""
        whole = self.risk.join(state.params, state.memory)
        # Single steps compensate the rounding of the parameters alone, so the memory
        # has no carry.
        carry = self.risk.join(state.carry, np.zeros_like(state.carry))
        return TrainingState(state.step, whole, NO_MEMORY, carry)

    def to_run_state(self, state: TrainingState) -> TrainingState:
        """Return a whole state as a state of the run: parameters and memory."""
        params, memory = self.risk.split(state.params)
        carry = self.risk.params_of(state.carry)
        # `split` and `params_of` return views, which would keep the whole state alive.
        return TrainingState(state.step, np.array(params), memory, np.array(carry))

    def to_run_point(self, point: Point) -> Point:
        """Return an iterate of the whole state as an iterate of the run."""
        # A single step was computed as a point of the run. Other points come from
        # skipping, and are converted.
        if isinstance(point, StatePoint):
            return point.run_point
        state = self.to_run_state(point.state)
        gradient = self.risk.params_of(point.gradient)
        return Point(
            point.step, state.params, point.loss, gradient, state.memory, state.carry
        )

    def update(self, point: Point) -> Update:
        """Return the change of the whole state in the step from a point.

        The memory is part of the state, so the memory that is returned is empty.
        """
        return self.change(point.params, point.gradient), NO_MEMORY

    def change(self, params: Array, gradient: Array) -> Array:
        """Change of a whole state, or of some of its columns, in one step.

        ``params`` is the whole state, (2K, ...), or columns of it, and ``gradient`` the
        gradient with respect to it.
        """
        if self.risk.shape:
            # The whole state and any columns of it have 2K rows.
            K = len(params) // 2
            run_params = params[:K]
            memory = params[K:] / self.risk.scale
            run_gradient = gradient[:K]
        else:
            # The parameter of the run is a single number, and so is its memory.
            run_params = params[0]
            memory = params[1] / self.risk.scale
            run_gradient = gradient[0]
        # A step by a skippable rule does not depend on its number, so step 0 stands for
        # all steps. The inner `risk` is the risk of the parameters.
        change, next_memory = self.rule.step(
            self.risk.risk, run_params, run_gradient, self.eta, memory, 0
        )
        # A rule returns the change of the parameters, but the new value of the memory.
        return self.risk.join(change, next_memory - memory)

    def moves(self, states: Array) -> Array:
        """Changes of n whole states, (n, ...), in one step."""
        self.evaluations += len(states)
        params = np.stack([self.risk.params_of(state) for state in states])
        gradients = gradients_at(self.risk.risk, params)
        changes = []
        for state, gradient in zip(states, gradients, strict=True):
            state_gradient = self.risk.join(gradient, np.zeros_like(gradient))
            changes.append(self.change(state, state_gradient))
        return np.stack(changes)

    def iterates(self, state: TrainingState) -> Generator[Point, None, None]:
        """Yield every iterate from a whole state on, with the same bits as the run.

        The steps are taken by ``run_map``. If `change` were added to the whole state
        instead, rounding would alter the memory.
        """
        for run_point in self.run_map.iterates(self.to_run_state(state)):
            whole = self.from_run_state(run_point.state)
            gradient = self.risk.join(
                run_point.gradient, np.zeros_like(run_point.gradient)
            )
            point = StatePoint(
                run_point.step,
                whole.params,
                run_point.loss,
                gradient,
                memory=NO_MEMORY,
                carry=whole.carry,
            )
            # `to_run_point` returns this iterate, which has the bits of the run.
            point.run_point = run_point
            yield point


def _check_skippable(rule: Rule, eta: float, start: TrainingState) -> None:
    """Refuse a rule without ``jacobian``, or with a memory of another shape.

    The memory must have the shape of the parameters. ``start``, the state of the run at
    step 0, holds both.
    """
    shape = np.shape(start.params)
    if start.memory.shape != shape:
        raise argument_error(
            f"memory of the skippable rule {rule.name!r}",
            start.memory.shape,
            f"of the shape of the parameters, {shape}, or skippable must be False",
        )
    # `jacobian` takes η times eigenvalues of the Hessian. Any of them shows whether the
    # rule defines it, so take a single 0.
    if rule.jacobian(np.zeros(1), eta) is None:
        # A memory decays within a stride, an interval of steps that are skipped
        # together by solving equations. Without Newton's method, which needs the
        # derivatives, these equations would take many iterations.
        raise argument_error(
            f"jacobian of the skippable rule {rule.name!r}",
            None,
            "derivatives of a step with a memory, or skippable must be False",
        )


def skippable_map(update_map: UpdateMap) -> UpdateMap:
    """Return a step of training as a map of a single array, so that it can be skipped.

    The array is the whole state if the rule has a memory, and otherwise the parameters.
    """
    memory = update_map.rule.init(update_map.risk, update_map.risk.initial)
    if memory.size == 0:
        return update_map
    return WholeStateMap(update_map)
