"""Which steps go through the flow: explicit ones, or implicit ones where it is stiff."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from icl_theory._validate import Array
from icl_theory.engine.collocation import EASY, Collocation
from icl_theory.engine.curvature import Curvature
from icl_theory.engine.solver import Field, Step
from icl_theory.engine.steps import TooFast

STIFF, SOFT = (
    3.0,
    1.5,
)  # turnovers of the fastest mode in a step: explicit steps stand less, implicit ones want more
TURNING = 20.0  # fewer turnovers, and yet modes that turn too fast for Newton's method: explicit steps do as well
AGAIN = 0.7  # in x: modes that are older are found again where the solver is chosen
UNSTABLE = 1.9  # η times the curvature: a mode that hardly contracts, or grows, is not at rest


class Stepper:
    """Takes one step after the other, explicit or implicit.

    Parameters
    ----------
    curvature : Curvature
        Finds the modes of the map.
    skipping : bool
        Whether iterates are skipped: the map itself must contract the modes that are taken to be at rest.
    stages : int
        Nodes of implicit steps.
    """

    def __init__(self, curvature: Curvature, skipping: bool, stages: int) -> None:
        self.curvature, self.skipping, self.stages = curvature, skipping, stages
        self.stiff = False
        self._before: Collocation | None = None
        self._looked, self._turned = -math.inf, False

    def start(self) -> None:
        """Forget the step before."""
        self._before = None

    def take(
        self,
        field: Field,
        order: int,
        x: float,
        y: Array,
        slope: Array,
        h: float,
        end: float | None,
        tolerance: float,
    ) -> Step | Collocation:
        """Try a step, the field of which has so many terms."""
        if not self.stiff:
            step = Step(field, x, y, slope, h, end)
            enough = STIFF if self.curvature.modes is None else SOFT + 0.5
            if not (step.stiffness > enough and self.curvature.known and x > self._looked + AGAIN):
                return step
            self._looked = x
            self._turned = self.stiff = self._find(x, y) and self._turnovers(order, x, h) > enough
            if not self.stiff:
                return step
        elif (self.curvature.wasted > self.curvature.cost or x > self.curvature.found + 3.0) and not self._find(
            x, y
        ):
            raise TooFast
        modes = self.curvature.modes
        assert modes is not None
        growth = partial(modes.growth, order)
        implicit = Collocation(field, modes, growth, x, y, h, end, tolerance, self._before, self.stages)
        self.curvature.wasted += max(0, implicit.iterations - EASY) * self.stages * order
        if not implicit.left < math.inf:
            if self.curvature.found < x:
                self.curvature.wasted += self.curvature.cost
            elif self._turnovers(order, x, h) < TURNING:
                self.stiff, self._looked = False, x
        return implicit

    def turns_implicit(self) -> bool:
        """Whether the next step is the first implicit one; asked once."""
        turned, self._turned = self._turned, False
        return turned

    def accept(self, step: Step | Collocation, order: int) -> None:
        """Go on from a step; look whether the modes are those of a map that contracts, and whether it is stiff.

        Raises
        ------
        TooFast
            Where the map does not contract its fastest mode.
        """
        if isinstance(step, Collocation):
            self._before = step
            if self.skipping and self.curvature.fastest(step.arrival) > UNSTABLE:
                self.stiff = False
                raise TooFast
            if self._turnovers(order, step.begin, step.end - step.begin) < SOFT:
                self.stiff, self._before, self._looked = False, None, step.end

    def _find(self, x: float, y: Array) -> bool:
        """Find the modes; whether implicit steps may be taken."""
        modes = self.curvature.find(x, y)
        self.stiff = modes is not None and not (self.skipping and modes.rates[-1] > UNSTABLE)
        return self.stiff

    def _turnovers(self, order: int, x: float, h: float) -> float:
        modes = self.curvature.modes
        return 0.0 if modes is None else h * float(np.abs(modes.growth(order, np.array([x])).min()))
