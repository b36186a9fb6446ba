"""One step of descent: the map that every method iterates or skips over."""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

import numpy as np

from icl_theory._validate import Array, refuse
from icl_theory.engine.risk import Risk
from icl_theory.engine.rules import Rule
from icl_theory.engine.trajectory import Stop


class Ended(Exception):  # noqa: N818 - not an error of the caller's
    """A run cannot or may not go on."""

    def __init__(self, stop: Stop, **facts: float) -> None:
        super().__init__(stop.say(**facts))
        self.stop = stop


class TooFast(Exception):  # noqa: N818 - sends the run back to single steps
    """The flow through the iterates cannot be followed to the tolerance here."""


class Point(NamedTuple):
    """An iterate with its loss and gradient."""

    step: int
    params: Array
    loss: float
    gradient: Array


class Descent:
    """One step of an update rule.

    Parameters
    ----------
    risk : Risk
        What is trained.
    eta : float
        Learning rate.
    rule : Rule
        Update rule.

    Attributes
    ----------
    evaluations : int
        Gradients evaluated so far.
    """

    def __init__(self, risk: Risk, eta: float, rule: Rule) -> None:
        self.risk, self.eta, self.rule = risk, eta, rule
        self.evaluations = 0

    def point(self, params: Array, step: int) -> Point:
        """Loss and gradient at an iterate."""
        self.evaluations += 1
        loss, gradient = self.risk.evaluate(params, step)
        if np.shape(gradient) != np.shape(params):  # it would be broadcast, or broadcast the parameters
            raise refuse("gradient", np.shape(gradient), f"of the shape of the parameters, {np.shape(params)}")
        return Point(step, params, loss, gradient)

    def move(self, gradient: Array, step: int = 0) -> Array:
        """Change of the parameters in one step."""
        return self.rule.move(self.risk, gradient, self.eta, step)

    def moves(self, states: Array) -> Array:
        """Changes of some states, (n, ...), in one step."""
        self.evaluations += len(states)
        return np.stack([self.move(gradient) for gradient in self.risk.gradients(states)])

    def slope(self, gradient: Array) -> float:
        """Decrease of the loss in one step, to first order."""
        return -float(np.sum(gradient * self.move(gradient)))

    def pace(self, point: Point) -> float:
        """Largest change of a score while the number of steps grows by a factor e, at the present speed."""
        change = float(np.abs(self.move(point.gradient)).max(initial=0.0))
        return self.risk.gain(point.params) * change * (point.step + 1.0)

    def iterates(self, params: Array, step: int = 0) -> Generator[Point, None, None]:
        """Yield every iterate from ``params`` on; Kahan's compensated sum carries the rounding errors along."""
        carry = np.zeros_like(params)
        while True:
            point = self.point(params, step)
            yield point
            move = self.move(point.gradient, step)
            del point  # large parameters leave room for few arrays of their size
            carry = move - carry
            del move
            moved = params + carry
            params = np.subtract(moved, params) - carry
            params, carry = moved, params
            step += 1
