r"""The iterates of gradient descent without visiting them, and gradient flow.

The iterates :math:`\theta_{n+1} = \theta_n + h(\theta_n)` are interpolated by a flow whose field is
:math:`\ln(1 + \Delta)` applied to the sequence,

.. math:: \theta' = \Delta\theta - \tfrac12\Delta^2\theta + \tfrac13\Delta^3\theta - \ldots,

with the forward differences of a few iterates that start at :math:`\theta`. SciPy integrates it in ln(1 + t). The
first term alone is gradient flow. See docs/theory.md, "Skipping ahead".
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.steps import Descent, Ended, Point

FLOW_TOLERANCE = 1e-10
START_ORDER, LOWEST_ORDER, HIGHEST_ORDER = 3, 2, 6
SLOW = 256.0  # steps in which the moves must change by less than a factor e for skipping to be worth a try
BLOCK = 64  # steps taken one by one between two tries, doubled after each try that did not pay
LEAST_RTOL = 2.3e-14  # SciPy's
SHARE = 0.01  # of the tolerance for one step of the solver: the states between may be fifty times worse
FIRST_STRIDE = 0.05  # first step of the solver, in x

Dense = Callable[[float], Array]
Steps = NDArray[np.int64]


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


class TooFast(Exception):  # noqa: N818 - sends the run back to single steps
    """The expansion does not converge to the tolerance here."""


class Segment(NamedTuple):
    """One step of the solver between two times; ``dense()`` makes the interpolation, a function of the time."""

    begin: float
    end: float
    dense: Callable[[], Dense]


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

    Attributes
    ----------
    error, worst : float
        Estimated error of the scores, now and at worst: of the solver, the largest neglected difference, rounding,
        and what a transition makes of the errors before it.
    skipped : bool
        Whether any step was skipped.
    """

    def __init__(self, descent: Descent, skipping: bool, tolerance: float, budget: int) -> None:
        self.descent, self.skipping, self.tolerance, self.budget = descent, skipping, tolerance, budget
        self.order = START_ORDER if skipping else 1
        self.error, self.worst, self.skipped = 0.0, 0.0, False
        self._moves = np.zeros((HIGHEST_ORDER, descent.risk.initial.size))
        self._neglected, self._pace, self._shift = 0.0, 1.0, 0.0

    def _limit(self, gain: float, state: Array) -> float:
        """Tolerance on the parameters for the solver's next step.

        A relative error of the time amounts to that times dθ/dx in θ: where dθ/dx is small, so is the limit.
        """
        if not self.skipping:
            return self.tolerance / gain
        least = 1e-5 * gain * float(np.abs(state).max(initial=0.0))
        return SHARE * self.tolerance / gain * min(1.0, max(least, 0.1 * gain * self._pace, 1e-200))

    def segments(self, params: Array, begin: float, end: float) -> Iterator[Segment]:
        """Integrate from ``params`` at time ``begin`` and yield every step of the solver.

        Raises
        ------
        TooFast
            Where the expansion does not converge; the segments so far are good.
        Ended
            Where the budget is used up, or a flow cannot go on.
        """
        from scipy.integrate import DOP853

        shape = np.shape(params)
        x, state, stride = math.log1p(begin), np.ravel(params), FIRST_STRIDE
        while x < math.log1p(end):
            gain = self.descent.risk.gain(state.reshape(shape))
            solver = DOP853(
                self._field(shape),
                x,
                state,
                math.log1p(end),
                rtol=LEAST_RTOL if self.skipping else self.tolerance,
                atol=self._limit(gain, state),
                first_step=min(stride, math.log1p(end) - x) if self.skipping else None,
            )
            while solver.status == "running":
                self._neglected = 0.0
                message = solver.step()
                if solver.status == "failed":
                    raise TooFast(message) if self.skipping else Ended(f"the solver failed: {message}")
                if self.skipping:
                    gain = self.descent.risk.gain(solver.y.reshape(shape))
                    solver.atol = self._limit(gain, solver.y)
                    if not self._converges(gain, solver.y):
                        stride = solver.t - x
                        break
                    self._note_error(gain, solver.y)
                arrival = end if solver.status == "finished" else min(math.expm1(solver.t), end)
                yield Segment(math.expm1(x), arrival, _dense(solver, shape))
                x, state = solver.t, solver.y

    def state(self, params: Array, begin: int, end: int) -> Array:
        """State at a later step."""
        if end - begin > BLOCK or not self.skipping:
            try:
                for segment in self.segments(params, begin, end):
                    if segment.end == end:
                        return segment.dense()(end)
            except TooFast:
                pass
        return next(point.params for point in self.descent.iterates(params, begin) if point.step == end)

    def first_below(self, epsilon: float, above: Point, below: Point) -> Point:
        """First integer time with loss <= epsilon between two points of the run, by bisection."""
        if below.step - above.step == 1:
            return below
        try:
            segments = self.segments(above.params, above.step, below.step)
            pieces = [(segment.end, segment.dense()) for segment in segments]
        except TooFast:
            exact = self.descent.iterates(above.params, above.step)
            return next(point for point in exact if point.loss <= epsilon or point.step == below.step)
        low, high = above.step, below
        while high.step - low > 1:
            middle = (low + high.step) // 2
            params = next(dense for end, dense in pieces if middle <= end)(middle)
            point = self.descent.point(params, middle)
            if point.loss <= epsilon:
                high = point
            else:
                low = middle
        return high

    def check_budget(self, wanted: int) -> None:
        """Raise `Ended` where the run may not evaluate so many gradients more."""
        if self.descent.evaluations + wanted > self.budget:
            raise Ended(f"used the {self.budget:,} gradient evaluations that such a run may take")

    def _field(self, shape: tuple[int, ...]) -> Callable[[float, Array], Array]:
        """Field in x, on flat arrays; leaves the moves, and notes the largest last difference."""
        descent, moves = self.descent, self._moves

        def field(x: float, flat: Array) -> Array:
            order = self.order
            self.check_budget(order)
            params = flat.reshape(shape)
            for j in range(order):
                move = descent.move(descent.point(params, 0).gradient)
                moves[j] = np.ravel(move)
                if j + 1 < order:
                    params = params + move
            used = moves[:order]
            slope: Array = math.exp(x) * (LOGARITHMS[order] @ used)
            if not np.isfinite(slope).all():  # the solver would halve its step for ever
                if self.skipping:
                    raise TooFast
                raise Ended("diverged: the gradient left the range of float64")
            if self.skipping:
                self._pace = float(np.abs(slope).max())
                self._neglected = max(self._neglected, self._size(order))
            return slope

        return field

    def _size(self, order: int) -> float:
        """Largest entry of a difference of the last iterates, over order + 1."""
        return float(np.abs(DIFFERENCES[order] @ self._moves[:order]).max()) / (order + 1)

    def _converges(self, gain: float, state: Array) -> bool:
        """Set the order for the next step; False if this one has to be repeated with more terms.

        The neglected terms begin with Δ^(p+1)θ/(p+1), a derivative: over time they amount to Δ^p θ/(p+1).
        """
        limit = 0.25 / SHARE * self._limit(gain, state)
        if self._neglected <= limit:
            if self.order > LOWEST_ORDER and self._size(self.order - 1) <= 0.3 * limit:
                self.order -= 1
            return True
        if self.order == HIGHEST_ORDER:
            raise TooFast
        self.order += 1
        return False

    def _note_error(self, gain: float, state: Array) -> None:
        """Estimate the error after a step: of this step, or of an earlier one as a shift in x, whichever is larger.

        A run that is late by δ in x is wrong by δ dθ/dx: small on a plateau, and more in the transition after it.
        """
        rounding = 2.0**-50 * float(np.abs(state).max(initial=0.0))
        pace = gain * self._pace
        here = gain * (0.75 / SHARE * self._limit(gain, state) + self._neglected + rounding)
        self._shift = max(self._shift, here / pace if pace > here else 1.0)
        self.error = max(here, self._shift * pace)
        self.worst = max(self.worst, self.error)


def _dense(solver: Any, shape: tuple[int, ...]) -> Callable[[], Dense]:
    """Interpolation over the solver's last step, made when it is asked for, as a function of the time."""

    def make() -> Dense:
        output = solver.dense_output()
        return lambda t: np.asarray(output(math.log1p(t))).reshape(shape)

    return make


def flow(interpolant: Interpolant, schedule: Steps) -> Iterator[Point]:
    """Yield gradient flow at the scheduled times."""
    start = interpolant.descent.point(interpolant.descent.risk.initial, 0)
    yield start
    yield from _scheduled(interpolant, start, schedule, must_pay=False)


def skip(interpolant: Interpolant, schedule: Steps, exact: int) -> Iterator[Point]:
    """Yield every iterate up to step ``exact`` and where skipping does not pay, elsewhere the scheduled ones."""
    descent = interpolant.descent
    start = descent.point(descent.risk.initial, 0)
    next_try, pause = max(exact, BLOCK), BLOCK
    while start.step < schedule[-1]:
        recent: deque[Array] = deque(maxlen=3)
        for point in descent.iterates(start.params, start.step):
            interpolant.check_budget(1)
            yield point
            start = point
            recent.append(point.params)
            if point.step >= next_try and len(recent) == 3:
                if _is_slow(*recent):
                    break
                next_try = point.step + BLOCK
        try:
            for point in _scheduled(interpolant, start, schedule, must_pay=True):
                interpolant.skipped = True
                yield point
                start = point
        except TooFast:
            pass
        next_try, pause = start.step + pause, 2 * pause


def _scheduled(interpolant: Interpolant, start: Point, schedule: Steps, must_pay: bool) -> Iterator[Point]:
    """Yield the points of an integrated run at the scheduled times after ``start``.

    A step of the solver pays if it covers more steps than it costs gradients; two in a row that do not are the end
    where ``must_pay``.
    """
    descent = interpolant.descent
    ahead = schedule[schedule > start.step]
    spent, losses = descent.evaluations, 0
    for segment in interpolant.segments(start.params, start.step, int(schedule[-1])):
        within, ahead = ahead[ahead <= segment.end], ahead[ahead > segment.end]
        if within.size:
            dense = segment.dense()
            for t in within.tolist():
                yield descent.point(dense(t), t)
        losses = losses + 1 if segment.end - segment.begin < descent.evaluations - spent else 0
        if must_pay and losses == 2:
            return
        spent = descent.evaluations


def _is_slow(first: Array, second: Array, third: Array) -> bool:
    """Whether the move changes by little from one step to the next."""
    move = second - first
    return bool(SLOW * np.abs(third - second - move).max() <= np.abs(move).max())
