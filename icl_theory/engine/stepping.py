"""Which steps go through the flow: explicit ones, or implicit ones where it is stiff."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from icl_theory._validate import Array
from icl_theory.engine.collocation import EASY, Collocation, Slopes
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
        self._again = False
        self._looked, self._paid = -math.inf, 0

    def start(self) -> None:
        """Forget the step before."""
        self._before, self._again = None, True

    def _may_look(self, x: float) -> bool:
        """Whether modes were looked for long ago, or have cost less than the steps since."""
        spent = self.curvature.descent.evaluations - self._paid
        return self.curvature.known and (
            x - self._looked > AGAIN or (x > self._looked and spent > self.curvature.cost)
        )

    def _is_stale(self, x: float) -> bool:
        """Whether to find the modes again: they are old, no longer good, or the run was elsewhere since."""
        curvature, again = self.curvature, self._again and self.curvature.found != x
        self._again = False
        return again or curvature.wasted > curvature.cost or x > curvature.found + 3.0

    def take(
        self,
        field: Field,
        moves: Slopes,
        order: int,
        x: float,
        y: Array,
        slope: Array,
        h: float,
        end: float | None,
        tolerance: float,
    ) -> Step | Collocation:
        """Try a step, the field of which has so many terms; ``moves`` has one, at many states."""
        if not self.stiff:
            step = Step(field, x, y, slope, h, end)
            enough = STIFF if self.curvature.modes is None else SOFT + 0.5
            if not (step.stiffness > enough and self._may_look(x)):
                return step
            self._looked = x
            self.stiff = self._find(x, y) and self._turnovers(order, x, h) > enough
            self._paid = self.curvature.descent.evaluations
            if not self.stiff:
                return step
        elif self._is_stale(x) and not self._find(x, y):
            raise TooFast
        modes = self.curvature.modes
        assert modes is not None
        growth = partial(modes.growth, 1)
        implicit = Collocation(
            moves, modes, growth, x, y, h, end, tolerance, self._before, self.stages, self.skipping
        )
        self.curvature.wasted += max(0, implicit.iterations - EASY) * self.stages
        if implicit.left < math.inf:
            self._before = implicit  # a rejected step, too, says where the next one goes
        elif self.curvature.found < x:
            self.curvature.wasted += self.curvature.cost
        elif self._turnovers(order, x, h) < TURNING:
            self._leave(x)
        return implicit

    def accept(self, step: Step | Collocation, order: int) -> None:
        """Go on from a step; look whether the modes are those of a map that contracts, and whether it is stiff.

        Raises
        ------
        TooFast
            Where the map does not contract its fastest mode.
        """
        if isinstance(step, Collocation):
            if self.skipping and self.curvature.fastest(step.arrival) > UNSTABLE:
                self.stiff = False
                raise TooFast
            if self._turnovers(order, step.begin, step.end - step.begin) < SOFT:
                self._before = None
                self._leave(step.end)

    def _leave(self, x: float) -> None:
        """Go back to explicit steps for a while."""
        self.stiff, self._looked, self._paid = False, x, self.curvature.descent.evaluations

    def _find(self, x: float, y: Array) -> bool:
        """Find the modes; whether implicit steps may be taken."""
        self._again, curvature = False, self.curvature
        modes = curvature.modes if curvature.found == x else curvature.find(x, y)
        self.stiff = modes is not None and not (self.skipping and modes.rates[-1] > UNSTABLE)
        return self.stiff

    def _turnovers(self, order: int, x: float, h: float) -> float:
        modes = self.curvature.modes
        return 0.0 if modes is None else h * float(np.abs(modes.growth(order, np.array([x])).min()))
