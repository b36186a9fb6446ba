r"""The iterates of gradient descent without visiting most of them, with an estimate of the error.

A run is integrated twice: once as well as the tolerance asks for, and once more with longer steps of the solver and
an expansion shorter by a term. The second run, the shadow, is less exact; what parts the two is the estimate. Where
iterates are taken one by one the shadow takes them too, so that it grows as errors grow. See docs/theory.md,
"Skipping ahead".
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.engine.collocation import FEWER
from icl_theory.engine.curvature import Curvature
from icl_theory.engine.interpolant import FIRST_STRIDE, Anchor, Interpolant, Segment
from icl_theory.engine.notes import Notes
from icl_theory.engine.steps import Descent, Ended, Point, TooFast

SLOW, STIFF = 256.0, 64.0  # steps in which moves change by less than e where a try pays: explicit, or implicit
BLOCK = 64  # steps taken one by one between two tries, doubled after each try that did not pay
EARLIEST = 1024  # steps before the first try: the solver's first step is too short to pay before
WAIT = 8  # at most, beyond that many: part of the steps so far that are taken one by one before the next try
PAYS = 0.8  # gradients that a try may cost for each iterate that it skips, at first
HOPELESS = 4.0  # gradients that a later step of the solver may cost for each iterate
FIRST = 0.2  # first step of the solver, in times in which the move changes by itself
PATIENCE = 500.0  # gradients that it may cost later, beyond those of the iterates that it skips
TRIAL = 2  # steps of the solver before it is used
SHARE, LOOSE = 0.02, 0.5  # of the tolerance for one step of the solver: of the run, of its shadow
LANDINGS = 8  # tries to find a step count without interpolation
MARGIN = 2.0  # the shadow may be nearer to the run than the truth is, by this factor

Steps = NDArray[np.int64]


class Skipper:
    """A run that skips iterates, and its shadow.

    Parameters
    ----------
    descent : Descent
        The map.
    tolerance : float
        Absolute, in scores.
    budget : int
        Gradients that may be evaluated altogether.
    notes : Notes, optional
        What is known of the run so far, where it was begun by other means.

    Attributes
    ----------
    notes : Notes
        Comparisons of the run with its shadow.
    doubt : float
        Part of the error that comes from interpolation between steps of the solver.
    left : float
        Part of it that the equations of implicit steps leave.
    skipped : bool
        Whether any step was skipped.
    """

    def __init__(self, descent: Descent, tolerance: float, budget: int, notes: Notes | None = None) -> None:
        self.descent, self.tolerance = descent, tolerance
        self._curvature = curvature = Curvature(descent)
        self.run = Interpolant(descent, True, tolerance, budget, share=SHARE, spare=1, curvature=curvature)
        self.run.pays = PAYS
        self.notes, self.doubt, self.left, self.skipped = notes or Notes(), 0.0, 0.0, False
        self._shadow = Interpolant(
            descent, True, tolerance, budget, LOOSE, 0, 1.6 * FIRST_STRIDE, curvature=curvature, stages=FEWER
        )
        self._other: Array | None = None  # the shadow where iterates are taken one by one

    def points(
        self, schedule: Steps, exact: int, start: Point | None = None, other: Array | None = None
    ) -> Generator[Point, None, None]:
        """Yield every iterate up to step ``exact`` and where skipping does not pay, else the scheduled ones.

        A run that was begun by other means goes on from the point ``start``, its shadow from the state ``other``.
        """
        begun, self._other = start is not None, other
        start = start or self.descent.point(self.descent.risk.initial, 0)
        next_try, pause = max(exact, EARLIEST), BLOCK
        iterates = self._one_by_one(start)
        if begun:
            next(iterates)
        while start.step < schedule[-1]:
            recent: deque[Array] = deque(maxlen=3)
            for point in iterates:
                yield point
                start = point
                recent.append(point.params)
                if point.step >= next_try and len(recent) == 3:
                    changing = _changing(*recent)
                    if changing * (STIFF if self._curvature.known else SLOW) <= 1.0:
                        break
                    next_try = point.step + BLOCK
            left, spent = start.step, self._spent
            with closing(self._scheduled(start, schedule, _stride(changing, start.step))) as scheduled:
                for point in scheduled:
                    yield point
                    start = point
            if start.step > left:
                iterates = self._one_by_one(start)
            pause = BLOCK if 2 * (start.step - left) > self._spent - spent else 2 * pause
            next_try = start.step + min(pause, max(EARLIEST, start.step // WAIT))

    def _one_by_one(self, start: Point) -> Iterator[Point]:
        """Yield iterates; the shadow goes along."""
        shadow = None if self._other is None else self.descent.iterates(self._other, start.step)
        before = start.params
        for point in self.descent.iterates(start.params, start.step):
            self.run.check_budget(2)
            if shadow is not None and self._other is not None:
                other = next(shadow).params
                pace = max(_largest(point.params - before), _largest(other - self._other))
                self._note(point.step, point.params, other, pace)
                before, self._other = point.params, other
            yield point

    def _scheduled(self, start: Point, schedule: Steps, stride: float) -> Generator[Point, None, None]:
        """Yield the points at the scheduled times after ``start``, as long as skipping works and pays.

        The shadow starts where the run starts, or where it was left; in the end it is brought to the last point.
        """
        descent, end = self.descent, int(schedule[-1])
        ahead = schedule[schedule > start.step]
        last, params = start.step, start.params
        shadow = self._shadow.segments(
            start.params if self._other is None else self._other, start.step, end, 1.6 * stride
        )
        shadows: deque[Segment] = deque()
        self.run.anchor = Anchor(start.step, start.params, 0.0)
        reached: Segment | None = None
        try:
            with suppress(TooFast):
                for segment in self._that_pay(self.run.segments(start.params, start.step, end, stride)):
                    self._follow(segment, shadow, shadows, end)
                    self.left += self.descent.risk.gain(params) * segment.left
                    within, ahead, reached = ahead[ahead <= segment.end], ahead[ahead > segment.end], segment
                    for t in within.tolist():
                        last, params = t, self._state(segment, t)
                        yield descent.point(params, t)
                        self.run.anchor = segment.anchor
                    while len(shadows) > 1 and shadows[0].end <= last:
                        shadows.popleft()
            if reached is not None and int(reached.end) > last:  # go on from where the solver is
                last = int(reached.end)
                params = self._state(reached, last)
                yield descent.point(params, last)
        finally:
            if last > start.step and shadows:
                self._settle(params, last, shadows)

    def _state(self, segment: Segment, t: int) -> Array:
        """State at a time within a step of the solver; what interpolation may be off by is noted."""
        params = segment.state(t)
        self.doubt = max(self.doubt, self.descent.risk.gain(params) * segment.doubt)
        self.skipped = True
        return params

    def _that_pay(self, segments: Iterator[Segment]) -> Iterator[Segment]:
        """Pass on the steps of the solver as long as they pay, and none where the first ones do not.

        Its cost includes the shadow's, with which an iterate costs two gradients. Modes of the map are worth their
        price for long.
        """
        spent, loss = self._spent, 0.0
        held: list[Segment] = []
        for number, segment in enumerate(segments):
            cost, steps = self._spent - spent, segment.end - segment.begin
            if number < TRIAL:
                if segment.cost > PAYS * steps:
                    return
                held.append(segment)
            else:
                loss = max(0.0, loss + cost - 2.0 * steps)
                if loss > PATIENCE or cost > HOPELESS * steps:
                    return
                held = [segment]
            if number >= TRIAL - 1:
                yield from held
            spent = self._spent

    @property
    def _spent(self) -> int:
        """Gradients so far, those for the modes left out."""
        return self.descent.evaluations - self._curvature.spent

    def _follow(self, segment: Segment, shadow: Iterator[Segment], shadows: deque[Segment], end: float) -> None:
        """Let the shadow go on beyond a segment of the run, and compare the two where its steps end."""
        if not shadows:
            shadows.append(next(shadow))
        while shadows[-1].end <= segment.end:
            t = shadows[-1].end
            self._note(t, segment.state(t), shadows[-1].state(t), max(segment.pace, shadows[-1].pace))
            if t == end:
                return
            shadows.append(next(shadow))
        if shadows[-1].implicit:  # which costs nothing, and shows what rests in one and not yet in the other
            pace = max(segment.pace, shadows[-1].pace)
            self._note(segment.end, segment.state(segment.end), shadows[-1].state(segment.end), pace)

    def _settle(self, params: Array, t: int, shadows: deque[Segment]) -> None:
        """Compare at the last point of the run, and keep the shadow there."""
        other = next(segment for segment in shadows if segment.end >= t)
        try:
            self._other = other.land(t)
        except Ended:
            return
        self._note(t, params, self._other, math.inf)

    def _note(self, t: float, params: Array, other: Array, pace: float) -> None:
        """Estimate the error at a time from the shadow, and from the pace of the faster one how late it is."""
        apart = MARGIN * _largest(params - other)
        seen = self.descent.risk.gain(params) * (apart + 2.0**-50 * _largest(params))
        self.notes.add(t, seen + self.doubt + self.left, apart, pace)

    def first_below(self, epsilon: float, above: Point, below: Point) -> Point:
        """First step with loss <= epsilon between two points."""
        return first_below(self.run, epsilon, above, below)

    def state(self, params: Array, begin: int, end: int) -> Array:
        """State at a later step, by steps of the solver as far as they go, and single ones between two tries."""
        pause = BLOCK
        while end > begin:
            left, reached = begin, None
            if end - begin > BLOCK:
                with suppress(TooFast):
                    for segment in self.run.segments(params, begin, end):
                        if segment.end == end:
                            return segment.state(end)
                        reached = segment
            if reached is not None and int(reached.end) > begin:
                begin, params = int(reached.end), reached.land(int(reached.end))
            pause = BLOCK if begin - left > pause else 2 * pause
            ahead = min(begin + pause, end)
            params = next(point.params for point in self.descent.iterates(params, begin) if point.step == ahead)
            begin = ahead
        return params


class Flow:
    """Gradient flow, with the duties of `Skipper`.

    Parameters
    ----------
    interpolant : Interpolant
        That follows the moves themselves.
    """

    skipped = False

    def __init__(self, interpolant: Interpolant) -> None:
        self._interpolant = interpolant

    def points(self, schedule: Steps, exact: int) -> Generator[Point, None, None]:
        """Yield the flow at the scheduled times."""
        descent = self._interpolant.descent
        yield descent.point(descent.risk.initial, 0)
        ahead = schedule[schedule > 0]
        for segment in self._interpolant.segments(descent.risk.initial, 0, int(schedule[-1])):
            within, ahead = ahead[ahead <= segment.end], ahead[ahead > segment.end]
            for t in within.tolist():
                yield descent.point(segment.state(t), t)

    def first_below(self, epsilon: float, above: Point, below: Point) -> Point:
        """First integer time with loss <= epsilon between two points."""
        return first_below(self._interpolant, epsilon, above, below)

    def state(self, params: Array, begin: int, end: int) -> Array:
        """State at a later time."""
        return [*self._interpolant.segments(params, begin, end)][-1].state(end)


def _largest(array: Array) -> float:
    return float(np.abs(array).max(initial=0.0))


def first_below(interpolant: Interpolant, epsilon: float, above: Point, below: Point) -> Point:
    """First integer time with loss <= epsilon between two points: by bisection, then without interpolation."""
    if below.step - above.step == 1:
        return below
    descent = interpolant.descent
    anchor = interpolant.anchor or Anchor(above.step, above.params, 0.0)
    try:
        segments = list(interpolant.segments(anchor.params, anchor.t, below.step, anchor.stride))
    except TooFast:
        exact = descent.iterates(above.params, above.step)
        return next(point for point in exact if point.loss <= epsilon or point.step == below.step)

    def land(t: int) -> Array:
        interpolant.check_budget(2)
        return _holding(segments, t).land(t)

    def between(t: int) -> Array:
        return _holding(segments, t).state(t)

    return crossing(descent, between, land if interpolant.skipping else None, epsilon, above, below)


def crossing(
    descent: Descent,
    between: Callable[[int], Array],
    land: Callable[[int], Array] | None,
    epsilon: float,
    above: Point,
    below: Point,
) -> Point:
    """First step with loss <= epsilon: by bisection of interpolated states, then by strides that end there.

    ``between`` interpolates the state at a time, ``land`` ends a stride at one. The times are those of Newton's
    iteration; the loss falls by hardly more in one step than in the one before it.
    """
    low, found = above.step, below
    while found.step - low > 1:
        middle = (low + found.step) // 2
        point = descent.point(between(middle), middle)
        if point.loss <= epsilon:
            found = point
        else:
            low = middle
    if land is None:
        return found
    t = found.step
    for _ in range(LANDINGS):
        before = descent.point(land(t - 1), t - 1)
        after = descent.point(before.params + descent.move(before.gradient), t)
        if before.loss > epsilon >= after.loss:
            return after
        decrease = before.loss - after.loss
        if not decrease > 0.0:
            break
        t = min(max(t + math.ceil((after.loss - epsilon) / decrease), above.step + 1), below.step)
    return found


def _holding(segments: list[Segment], t: int) -> Segment:
    """Return the step of the solver that a time belongs to."""
    return next(segment for segment in segments if t <= segment.end)


def _changing(first: Array, second: Array, third: Array) -> float:
    """By how much of itself the move changes from one step to the next."""
    move = second - first
    size = float(np.abs(move).max(initial=0.0))
    return float(np.abs(third - second - move).max(initial=0.0)) / size if size > 0.0 else 0.0


def _stride(changing: float, t: int) -> float:
    """Length in x of the first step of the solver, for moves that change by this share of themselves a step."""
    return min(FIRST_STRIDE, math.log1p(FIRST / (changing * (t + 1.0)))) if changing > 0.0 else FIRST_STRIDE
