r"""The flow through the iterates of gradient descent, and gradient flow, integrated in x = ln(1 + t).

The iterates :math:`\theta_{n+1} = \theta_n + h(\theta_n)` are interpolated by a flow whose field is
:math:`\ln(1 + \Delta)` applied to the sequence,

.. math:: \theta' = \Delta\theta - \tfrac12\Delta^2\theta + \tfrac13\Delta^3\theta - \ldots,

with the forward differences of a few iterates that start at :math:`\theta`. The first term alone is gradient flow.
See docs/theory.md, "Skipping ahead".
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from icl_theory._validate import Array
from icl_theory.engine.collocation import STAGES, Collocation, Slopes
from icl_theory.engine.curvature import Curvature
from icl_theory.engine.solver import Field, Step
from icl_theory.engine.stepping import Stepper
from icl_theory.engine.steps import Descent, Ended, TooFast
from icl_theory.engine.trajectory import Stop

START_ORDER, LOWEST_ORDER, HIGHEST_ORDER = 4, 2, 7
ROUNDING = 2.3e-14  # of the parameters: no step of the solver is asked for more
FIRST_STRIDE, LEAST_STRIDE = 0.05, 1e-13  # first and shortest step of the solver, in x
IMPLICIT_SHARE = 0.1  # of the tolerance, at most, for an implicit step
FASTER = 2.0  # at most: factor from one implicit step to the next
GROWTH = 1.25  # at most: factor from one step to the next where steps are taken to go on growing as they did
SHRINKS = 0.5  # at least: the same where they are taken to go on shrinking
PACE = 1.0  # what an error of the tolerance in x is in the parameters, in units of dθ/dx
OMITTED = 0.25  # of the tolerance: what the terms that are left out may amount to,
NOTHING = 0.003  # and where that need not be looked at
BETWEEN = 0.2  # of the tolerance: what the interpolation between steps may be off by


def _difference(order: int) -> Array:
    """Weights of the moves h_0, ..., h_(p-1) in the difference Δ^p θ = Δ^(p-1) h."""
    return np.array([(-1.0) ** (order - 1 - i) * math.comb(order - 1, i) for i in range(order)])


def _logarithm(order: int) -> Array:
    """Weights of the moves in Σ_j (-1)^(j+1) Δ^j θ / j, j = 1..p."""
    weights = np.zeros(order)
    for j in range(1, order + 1):
        weights[:j] += (-1.0) ** (j + 1) / j * DIFFERENCES[j]
    return weights


DIFFERENCES = {order: _difference(order) for order in range(1, HIGHEST_ORDER + 1)}
LOGARITHMS = {order: _logarithm(order) for order in range(1, HIGHEST_ORDER + 1)}


class Anchor(NamedTuple):
    """A time, the state that the solver found there, and the length in x of the step that it took."""

    t: float
    params: Array
    stride: float


class Segment:
    """One step of the solver between two times; gives the state at any time from the one to the other.

    Parameters
    ----------
    begin, end : float
        Times.
    step : Step
        The step, in ln(1 + t).
    limit : float
        What the interpolation may be off by; where it is more, a step that ends at the time gives the state.
    shape : tuple of int
        Of the states.

    Attributes
    ----------
    cost : int
        Gradients that the step took.
    doubt : float
        Estimated error of the interpolation that gave the last state.
    left : float
        What the solution of the step's equations leaves.
    """

    _landed: Step | Collocation | None

    def __init__(
        self, begin: float, end: float, step: Step | Collocation, limit: float, shape: tuple[int, ...], cost: int
    ) -> None:
        self.begin, self.end, self.cost = begin, end, cost
        self._step, self._limit, self._shape = step, limit, shape
        self.doubt, self.left, self._landed = 0.0, step.left, None
        self._halves: list[Step | Collocation] = []

    @property
    def pace(self) -> float:
        """Largest change of a parameter in one step of the map, by the field at either end."""
        step = self._step
        ends = ((step.slope, step.begin), (step.leaving, step.end))
        return max(float(np.abs(slope).max(initial=0.0)) * math.exp(-x) for slope, x in ends)

    @property
    def implicit(self) -> bool:
        """Whether it is a polynomial that is known between its ends."""
        return isinstance(self._step, Collocation)

    @property
    def anchor(self) -> Anchor:
        """From where this step can be taken again."""
        step = self._step
        return Anchor(self.begin, step.state.reshape(self._shape), step.end - step.begin)

    def state(self, t: float) -> Array:
        """State at a time within, by interpolation where that is good enough."""
        if t < self.end:
            x = math.log1p(t)
            value, self.doubt = self._step.between(x)
            if self.doubt > self._limit:
                value, self.doubt = self._half(x).between(x)
            if self.doubt <= self._limit:
                return value.reshape(self._shape)
        return self.land(t)

    def _half(self, x: float) -> Step | Collocation:
        """Half of the step, taken by itself: interpolation is better there by a factor of some 2⁷."""
        whole = self._step
        middle = 0.5 * (whole.begin + whole.end)
        if not self._halves:
            self._halves = [whole.again(whole.begin, whole.state, whole.slope, middle - whole.begin, middle)]
        first = self._halves[0]
        if x <= middle:
            return first
        if len(self._halves) == 1:
            self._halves.append(whole.again(middle, first.arrival, first.leaving, whole.end - middle, whole.end))
        return self._halves[1]

    def land(self, t: float) -> Array:
        """State at a time within, by a step of the solver that ends there."""
        x, start, self.doubt = math.log1p(t), self._step, 0.0
        if t >= self.end:
            return start.arrival.reshape(self._shape)
        if x <= start.begin:
            return start.state.reshape(self._shape)
        landed = self._landed
        if landed is None or landed.end > x:
            landed = start.again(start.begin, start.state, start.slope, x - start.begin, x)
        elif landed.end < x:
            landed = start.again(landed.end, landed.arrival, landed.leaving, x - landed.end, x)
        if not math.isfinite(landed.left):
            value, self.doubt = start.between(x)
            return value.reshape(self._shape)
        self._landed, self.doubt = landed, landed.left
        return landed.arrival.reshape(self._shape)


class Interpolant:
    """The flow through the iterates, or gradient flow, integrated in x = ln(1 + t).

    Parameters
    ----------
    descent : Descent
        The map.
    skipping : bool
        Interpolate the iterates; False integrates the moves themselves: gradient flow.
    tolerance : float
        Absolute, in scores. A flow takes it relative to the parameters as well.
    budget : int
        Gradients that may be evaluated altogether.
    share : float
        Part of the tolerance for one step of the solver.
    spare : int
        How many terms the expansion has more than the tolerance asks for.
    first_stride : float
        First step of the solver, in x.
    curvature : Curvature, optional
        Finds the modes of the map where the flow is stiff; one of its own unless given.
    stages : int
        Nodes of implicit steps.

    Attributes
    ----------
    anchor : Anchor or None
        The last one up to the last point of the run that was looked at.
    pays : float
        Gradients that the first step of the solver may cost for each iterate.
    """

    def __init__(
        self,
        descent: Descent,
        skipping: bool,
        tolerance: float,
        budget: int,
        share: float = 1.0,
        spare: int = 0,
        first_stride: float = FIRST_STRIDE,
        curvature: Curvature | None = None,
        stages: int = STAGES,
    ) -> None:
        self.descent, self.skipping, self.tolerance, self.budget = descent, skipping, tolerance, budget
        self.share, self.spare, self.first_stride = share, spare, first_stride
        self.order = START_ORDER if skipping else 1
        self._moves = np.zeros((HIGHEST_ORDER, descent.risk.initial.size))
        self._omitted = 0.0
        self.anchor: Anchor | None = None
        self.pays = math.inf
        self._stepper = Stepper(curvature or Curvature(descent), skipping, stages)

    def segments(self, params: Array, begin: float, end: float, stride: float = 0.0) -> Iterator[Segment]:
        """Integrate from ``params`` at time ``begin`` and yield every step of the solver.

        The first one is tried with ``stride``, in x, where one is given.

        Raises
        ------
        TooFast
            Where the expansion does not converge; the segments so far are good.
        Ended
            Where the budget is used up, or a flow cannot go on.
        """
        shape, bound = np.shape(params), math.log1p(end)
        x, state, stepper = math.log1p(begin), np.ravel(params), self._stepper
        stepper.start()
        self.order = START_ORDER if self.skipping else 1
        stride = stride or self.first_stride
        order, before, ideal, moves, implicit, first = 0, 0.0, 0.0, self._moving(shape), False, True
        while x < bound:
            if order != self.order:
                order = self.order
                field = self._field(shape, order)
                slope = field(x, state)
            self._omitted = 0.0
            last = x + stride >= bound
            h, stop = (bound - x, bound) if last else (stride, None)
            wanted = min(self.share, IMPLICIT_SHARE) * self._limit(state, slope, shape)
            spent = self._spent
            step = stepper.take(field, moves, order, x, state, slope, h, stop, wanted)
            cost = self._spent - spent
            if isinstance(step, Collocation) != implicit:
                implicit, before, ideal = not implicit, 0.0, 0.0
            share = min(self.share, IMPLICIT_SHARE) if implicit else self.share
            limit = max(self._limit(step.arrival, step.leaving, shape), step.noise / share)
            stride = step.next_stride(share * limit)
            if before:
                stride = min(stride, (FASTER if implicit else GROWTH) * before)
            before = stride
            if not step.error <= share * limit:
                if self.skipping and stride * math.exp(x) < 1.0:  # less than a step of the map
                    raise TooFast
                if first and cost > self.pays * stride * math.exp(x):
                    raise TooFast
                if stride < LEAST_STRIDE:
                    raise Ended(Stop.FLOW)
                continue
            if self.skipping and not implicit and not self._converges(limit):
                stride = step.end - x
                continue
            trend, ideal = stride / ideal if ideal else 1.0, stride
            if trend > 1.0:
                stride = max(stride, min(stride * trend, GROWTH * (step.end - x)))
            else:
                before = stride = stride * max(trend, SHRINKS)
            yield Segment(
                math.expm1(x), end if last else min(math.expm1(step.end), end), step, BETWEEN * limit, shape, cost
            )
            x, state, slope, first = step.end, step.arrival, step.leaving, False
            stepper.accept(step, order)

    @property
    def _spent(self) -> int:
        """Gradients so far, those for the modes left out."""
        return self.descent.evaluations - self._stepper.curvature.spent

    def check_budget(self, wanted: int) -> None:
        """Raise `Ended` where the run may not evaluate so many gradients more."""
        if self.descent.evaluations + wanted > self.budget:
            raise Ended(Stop.WORK, work=self.budget)

    def _limit(self, state: Array, slope: Array, shape: tuple[int, ...]) -> float:
        """Tolerance on the parameters, of which a step of the solver may take its share.

        A relative error of the time amounts to that times dθ/dx in θ: where dθ/dx is small, so is the limit.
        """
        if not np.isfinite(state).all():
            return 0.0
        size, pace = float(np.abs(state).max(initial=0.0)), float(np.abs(slope).max(initial=0.0))
        largest = self.tolerance / self.descent.risk.gain(state.reshape(shape))
        if not self.skipping:
            largest = max(largest, self.tolerance * size)
        least = ROUNDING / self.share * size
        return max(min(largest, max(PACE * self.tolerance * pace, least)), 1e-200)

    def _field(self, shape: tuple[int, ...], order: int) -> Field:
        """Field in x, on flat arrays; leaves the moves, and notes the largest omitted difference."""
        descent, moves = self.descent, self._moves

        def field(x: float, flat: Array) -> Array:
            self.check_budget(order)
            params = flat.reshape(shape)
            for j in range(order):
                move = descent.move(descent.point(params, 0).gradient)
                moves[j] = np.ravel(move)
                if j + 1 < order:
                    params = params + move
            slope: Array = math.exp(x) * (LOGARITHMS[order] @ moves[:order])
            if self.skipping and order > 1:
                self._omitted = max(self._omitted, self._size(self._judged(order)))
            return slope

        return field

    def _moving(self, shape: tuple[int, ...]) -> Slopes:
        """Field with one term at some times and states."""

        def slopes(places: Array, states: Array) -> Array:
            self.check_budget(len(states))
            moves = self.descent.moves(states.reshape(-1, *shape))
            return np.exp(places)[:, None] * moves.reshape(len(states), -1)

        return slopes

    def _size(self, order: int) -> float:
        """Largest entry of a difference of the last iterates, over order + 1."""
        return float(np.abs(DIFFERENCES[order] @ self._moves[:order]).max()) / (order + 1)

    def _converges(self, limit: float) -> bool:
        """Set the order for the next step; False if this one has to be repeated with more terms.

        The omitted terms begin with Δ^(p+1)θ/(p+1), a derivative: over time they amount to Δ^p θ/(p+1).
        """
        if self._omitted <= self._allowed(self.order) * limit:
            lower = self.order - 1
            if lower >= LOWEST_ORDER and self._size(self._judged(lower)) <= 0.3 * self._allowed(lower) * limit:
                self.order = lower
            return True
        if self.order == HIGHEST_ORDER:
            raise TooFast
        self.order += 1
        return False

    def _judged(self, order: int) -> int:
        """By which order an expansion with terms to spare is judged."""
        return max(order - self.spare, LOWEST_ORDER)

    def _allowed(self, order: int) -> float:
        """Share of the tolerance that the omitted terms may have: hardly any where no term is to spare."""
        return OMITTED if order - self.spare >= LOWEST_ORDER else NOTHING
