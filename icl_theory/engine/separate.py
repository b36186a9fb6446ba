"""Iterates are skipped column by column, where the loss is a sum of one term for each column of the parameters."""

from __future__ import annotations

import math
from collections.abc import Generator

import numpy as np

from icl_theory._validate import Array
from icl_theory.engine.columns import Index
from icl_theory.engine.fastforward import MARGIN, SHARE, Skipper, Steps, crossing
from icl_theory.engine.notes import Notes
from icl_theory.engine.rules import GradientDescent
from icl_theory.engine.shadow import Shadow
from icl_theory.engine.steps import Descent, Ended, Point, TooFast
from icl_theory.engine.strider import Strider
from icl_theory.engine.trajectory import Stop

BEGIN = 640  # steps before the first strides: they are too short to pay before
NODES, FEWER_NODES = 9, 8  # of strides of the run, and of its shadow
REACH = 2.5  # in x: columns are moved on by so much at once,
LARGE, SHORT = 2**18, 0.5  # or by less where there are more scores: a run says now and then how far it is
NUDGE = 2.0**-44  # of the scores: where the shadow starts beside the run
PRICE = 0.2  # gradients that the moves of few columns count as, at least


class Separate:
    """A run that skips iterates of each column by itself, and its shadow; with the duties of `Skipper`.

    Where a column takes single steps for long, or the shadow cannot follow, all columns go on together, as
    `Skipper` has them.

    Parameters
    ----------
    descent : Descent
        The map: gradient descent on a risk with `Risk.column_gradients`.
    tolerance : float
        Absolute, in scores.
    budget : int
        Gradients that may be evaluated altogether.

    Attributes
    ----------
    notes : Notes
        Comparisons of the run with its shadow.
    """

    def __init__(self, descent: Descent, tolerance: float, budget: int) -> None:
        self.descent, self.tolerance, self.notes = descent, tolerance, Notes()
        self._budget, self._owed, self._gradients = budget, 0.0, descent.risk.column_gradients
        self._run: Strider | None = None
        self._together: Skipper | None = None

    @staticmethod
    def serves(descent: Descent) -> bool:
        """Whether the columns of a map do not mix."""
        risk, plain = descent.risk, isinstance(descent.rule, GradientDescent)
        return plain and risk.column_gradients is not None and np.ndim(risk.metric) == 0

    @property
    def skipped(self) -> bool:
        """Whether any step was skipped."""
        together = self._together is not None and self._together.skipped
        return together or (self._run is not None and self._run.strode)

    def points(self, schedule: Steps, exact: int) -> Generator[Point, None, None]:
        """Yield every iterate up to step ``exact``, or `BEGIN`, then the scheduled ones."""
        descent = self.descent
        for point in descent.iterates(descent.risk.initial):
            yield point
            if point.step >= max(exact, BEGIN):
                break
        other = _nudged(point.params)
        self._run = run = self._strider(point.params, point.step)
        shadow = Shadow(run, FEWER_NODES, np.ascontiguousarray(other.T))
        try:
            while point.step < schedule[-1]:
                until = _until(point.step, schedule, other.size)
                stops = schedule[(schedule > point.step) & (schedule <= until)]
                run.advance(until, stops)
                for t, ours, theirs in zip(stops.tolist(), run.states(stops), shadow.follow(stops), strict=True):
                    point, other = descent.point(np.ascontiguousarray(ours.T), t), theirs.T
                    self._note(run.left + shadow.left, run.doubt, point, other)
                    yield point
        except TooFast:
            self._together = Skipper(descent, self.tolerance, self._budget, self.notes)
            gain = descent.risk.gain(point.params)
            self._together.left = gain * float((run.left + shadow.left).max())
            self._together.doubt = gain * run.doubt
            yield from self._together.points(schedule, 0, point, np.ascontiguousarray(other))

    def _strider(self, params: Array, t: int) -> Strider:
        tolerance = self.tolerance / self.descent.risk.gain(params)
        return Strider(self._moves, tolerance, SHARE, NODES, np.ascontiguousarray(params.T), t)

    def _moves(self, columns: Array, which: Index) -> Array:
        """Moves of columns, (n, m), in one step."""
        descent = self.descent
        self._owed += max(PRICE, len(which) / descent.risk.initial.shape[1])
        descent.evaluations, self._owed = descent.evaluations + int(self._owed), self._owed % 1.0
        if descent.evaluations > self._budget:
            raise Ended(Stop.WORK, work=self._budget)
        assert self._gradients is not None
        return np.ascontiguousarray(descent.move(self._gradients(columns.T, which)).T)

    def _note(self, left: Array, doubt: float, point: Point, other: Array) -> None:
        """Estimate the error at a point of the run from the shadow."""
        apart, size, pace = (
            float(np.abs(array).max(initial=0.0))
            for array in (MARGIN * (point.params - other), point.params, self.descent.move(point.gradient))
        )
        error = apart + 2.0**-50 * size + doubt + float(left.max())
        self.notes.add(point.step, self.descent.risk.gain(point.params) * error, apart, pace)

    def first_below(self, epsilon: float, above: Point, below: Point) -> Point:
        """First step with loss <= epsilon between two points: by bisection, then by strides that end there."""
        if self._together is not None:
            return self._together.first_below(epsilon, above, below)
        run = self._run
        if run is None or below.step - above.step == 1:
            return below

        def between(t: int) -> Array:
            return run.states(np.array([t]))[0].T

        return crossing(self.descent, between, lambda t: run.land(t).T, epsilon, above, below)

    def state(self, params: Array, begin: int, end: int) -> Array:
        """State at a later step."""
        run = self._strider(params, begin)
        try:
            run.advance(end, np.array([end]))
        except TooFast:
            return Skipper(self.descent, self.tolerance, self._budget).state(params, begin, end)
        return np.ascontiguousarray(run.y.T)


def _nudged(params: Array) -> Array:
    """Parameters moved by what rounding does in many steps: a shadow from there shows how an orbit enlarges it."""
    signs = np.where(np.arange(params.size) % 2, NUDGE, -NUDGE).reshape(params.shape)
    return np.asarray(params * (1.0 + signs))


def _until(t: int, schedule: Steps, size: int) -> int:
    """Scheduled time up to which all columns are moved on next."""
    reach = REACH if size <= LARGE else SHORT * math.sqrt(LARGE / size)
    ahead = schedule[schedule > t]
    within = ahead[np.log1p(ahead) <= math.log1p(t) + reach]
    return int(within[-1] if within.size else ahead[0])
