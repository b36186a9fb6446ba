"""Training by a rule with a memory as a map of the whole state, so that its steps can be skipped like any other's.

The array that is followed holds the parameters and the memory, one above the other. The
memory is multiplied by a power of two that brings it to the size of the parameters, so
that one tolerance is right for both.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any

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
from icl_theory.engine.rules import NO_MEMORY
from icl_theory.engine.steps import Descent, Point, TrainingState, Update


class StateRisk(Risk):
    """A risk as a function of the whole state, of which it looks at the parameters alone."""

    def __init__(self, risk: Risk, memory: Array, scale: float) -> None:
        self.risk = risk
        self.scale = scale
        self.shape = np.shape(risk.initial)
        self._start = self.joined(risk.initial, memory)

    @property
    def initial(self) -> Array:
        """Parameters and memory at step 0."""
        return self._start

    @property
    def metric(self) -> float | Array:
        """That of the parameters."""
        return self.risk.metric

    def joined(self, params: Array, memory: Array) -> Array:
        """Return the whole state, (2, ...) for numbers and (2K, ...) for arrays of K rows."""
        if not self.shape:
            return np.array([params, self.scale * memory])
        return np.concatenate([params, self.scale * memory])

    def split(self, state: Array) -> tuple[Array, Array]:
        """Return parameters and memory, views of a state where that is possible."""
        if not self.shape:
            return np.asarray(state[0]), np.asarray(state[1] / self.scale)
        rows = self.shape[0]
        return state[:rows], state[rows:] / self.scale

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss, and gradient in the whole state: it is zero in the memory."""
        loss, gradient = self.risk.evaluate(self.split(params)[0], step)
        return loss, self.joined(gradient, np.zeros_like(gradient))

    def gain(self, params: Array) -> float:
        """That of the parameters; the memory is of their size."""
        return gain_at(self.risk, self.split(params)[0])

    @property
    def column_gradients(self) -> ColumnGradients | None:
        """Gradients of single columns, each below its parameters' and zero in the memory."""
        gradients = column_gradients_of(self.risk)
        if gradients is None:
            return None
        rows = self.shape[0]

        def padded(columns: Array, which: NDArray[np.intp]) -> Array:
            gradient = gradients(columns[:rows], which)
            return np.concatenate([gradient, np.zeros_like(gradient)])

        return padded


class StatePoint(Point):
    """An iterate of the whole state; ``real`` is the same as an iterate of the parameters, if it was one."""

    __slots__ = ("real",)

    real: Point | None


class WholeState(Descent):
    """Training by a rule with a memory of the shape of the parameters, as a map of the whole state."""

    risk: StateRisk

    def __init__(self, descent: Descent) -> None:
        self.inner = Descent(descent.risk, descent.eta, descent.rule)
        start = self.inner.start()
        shape = np.shape(start.params)
        if start.memory.shape != shape:
            allowed = (
                f"of the shape of the parameters, {shape}, or skippable must be False"
            )
            raise argument_error(
                f"memory of the skippable rule {descent.rule.name!r}",
                start.memory.shape,
                allowed,
            )
        if descent.rule.jacobian(np.zeros(1), descent.eta) is None:
            # a stride is longer than a memory lasts: without Newton's method its
            # equations have no quick solution
            allowed = "derivatives of a step with a memory, or skippable must be False"
            raise argument_error(
                f"jacobian of the skippable rule {descent.rule.name!r}", None, allowed
            )
        # a power of two, so that scaling rounds nothing
        memory_scale = number(
            f"memory_scale of the rule {descent.rule.name!r}",
            descent.rule.memory_scale(descent.eta),
        )
        scale = 2.0 ** round(math.log2(memory_scale))
        super().__init__(
            StateRisk(descent.risk, start.memory, scale), descent.eta, descent.rule
        )

    @property
    def evaluations(self) -> int:  # type: ignore[override]
        """Number of gradients so far."""
        return self.inner.evaluations

    @evaluations.setter
    def evaluations(self, count: int) -> None:
        if hasattr(self, "inner"):
            self.inner.evaluations = count

    def start(self) -> TrainingState:
        """Return the whole state at step 0."""
        return self.into(self.inner.start())

    def into(self, state: TrainingState) -> TrainingState:
        """Return a state as one whole array without a memory."""
        whole = self.risk.joined(state.params, state.memory)
        # single steps compensate the rounding of the parameters alone, so the memory
        # has nothing to carry
        carry = self.risk.joined(state.carry, np.zeros_like(state.carry))
        return TrainingState(state.step, whole, NO_MEMORY, carry)

    def out_of(self, state: TrainingState) -> TrainingState:
        """Return a whole state as parameters and memory."""
        params, memory = self.risk.split(state.params)
        return TrainingState(
            state.step,
            np.array(params),
            memory,
            np.array(self.risk.split(state.carry)[0]),
        )

    def real(self, point: Point) -> Point:
        """Return an iterate of the parameters."""
        if isinstance(point, StatePoint) and point.real is not None:
            return point.real
        state = self.out_of(point.state)
        gradient = self.risk.split(point.gradient)[0]
        return Point(
            point.step, state.params, point.loss, gradient, state.memory, state.carry
        )

    def update(self, point: Point) -> Update:
        """Return the step of the whole state from a point."""
        return self.change(point.params, point.gradient), NO_MEMORY

    def change(self, params: Array, gradient: Array) -> Array:
        """Change of whole states, or of columns of them, in one step."""
        rows = len(params) // 2
        if self.risk.shape:
            parts = params[:rows], params[rows:] / self.risk.scale, gradient[:rows]
        else:
            parts = params[0], params[1] / self.risk.scale, gradient[0]
        own_params, memory, own_gradient = parts
        # step 0 stands for all: a skippable rule does not look at the number of the
        # step
        change, memory_after = self.rule.step(
            self.risk.risk, own_params, own_gradient, self.eta, memory, 0
        )
        # a rule returns the change of the parameters but the memory itself
        return self.risk.joined(change, memory_after - memory)

    def moves(self, states: Array) -> Array:
        """Changes of some whole states, (n, ...), in one step."""
        self.evaluations += len(states)
        params = np.stack([self.risk.split(state)[0] for state in states])
        gradients = gradients_at(self.risk.risk, params)
        padded = (
            self.risk.joined(gradient, np.zeros_like(gradient))
            for gradient in gradients
        )
        return np.stack(
            [
                self.change(state, gradient)
                for state, gradient in zip(states, padded, strict=True)
            ]
        )

    def iterates(self, state: TrainingState) -> Generator[Point, None, None]:
        """Yield every iterate from a state on, with the bits that single steps have."""
        for real in self.inner.iterates(self.out_of(state)):
            whole = self.into(real.state)
            gradient = self.risk.joined(real.gradient, np.zeros_like(real.gradient))
            point = StatePoint(
                real.step, whole.params, real.loss, gradient, NO_MEMORY, whole.carry
            )
            point.real = real
            yield point


def whole_state(descent: Descent) -> Descent:
    """Return training as a map of one array: of the parameters, or of the whole state if the rule has a memory."""
    memory: Any = descent.rule.init(descent.risk, descent.risk.initial)
    return descent if memory.size == 0 else WholeState(descent)
