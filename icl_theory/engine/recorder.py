"""The saved states of a run, and what they say of its end."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from icl_theory._validate import INT64_MAX, Array
from icl_theory.engine.risk import Risk
from icl_theory.engine.steps import Point
from icl_theory.engine.trajectory import named, saved_steps

STALL_AFTER = 10_000
SETTLED, SETTLED_AFTER = 0.1, 256  # in units of the tolerance; steps


class Saved(NamedTuple):
    """A saved iterate: step, loss, decrease of the loss a step, parameters and observations."""

    step: int
    loss: float
    slope: float
    params: Array
    observed: dict[str, Array]


class Recorder:
    """Keeps the states at the saved steps; each is added whole, so that an interrupt leaves no half of one."""

    def __init__(self, risk: Risk, last: int) -> None:
        self._risk = risk
        self.schedule = saved_steps(last, max(1, np.size(risk.initial)))
        self._index = 0
        self.saved: list[Saved] = []

    @property
    def due(self) -> int:
        """The next step to save."""
        return int(self.schedule[self._index]) if self._index < len(self.schedule) else INT64_MAX

    def save(self, point: Point, slope: float = 0.0) -> None:
        """Add a point, unless it is not beyond the last one, or out of the range of float64."""
        if self.saved and (point.step <= self.saved[-1].step or not np.isfinite(point.params).all()):
            return
        with np.errstate(over="ignore", invalid="ignore"):
            seen = self._risk.observe(point.params, point.step)
        observed = named(seen)
        if self.saved and not all(np.isfinite(value).all() for value in observed.values()):
            return
        self.saved.append(Saved(point.step, point.loss, slope, np.array(point.params), observed))
        while self.due <= point.step:
            self._index += 1

    def has_stalled(self, epsilon: float) -> bool:
        """Whether the last tenfold growth of the step number shows that the loss settles above ``epsilon``.

        Either the least loss has not moved beyond rounding, or it has moved by less than 1e-3 of itself, and by
        less than is missing, while the slope went down: on a plateau before learning the slope stays or goes up. Or
        it has moved by less than 1 % of what the slopes promise: the steps go round in a cycle.
        """
        last = self.saved[-1]
        if last.step < STALL_AFTER:
            return False
        earlier = [saved for saved in self.saved if saved.step <= last.step // 10]
        before, now = min(saved.loss for saved in earlier), min(saved.loss for saved in self.saved)
        small = before - now < min(1e-3 * abs(now), now - epsilon)
        settles = small and last.slope < 0.5 * earlier[-1].slope
        promised = min(last.slope, earlier[-1].slope) * (last.step - earlier[-1].step)
        return settles or (small and before - now < 0.01 * promised) or before - now <= 1e-13 * abs(before)

    def has_settled(self, least: float, move: float) -> bool:
        """Whether the scores moved by less than ``least`` while the step number doubled, and no faster than before.

        Nor may they ``move`` by more in one step: an oscillation comes back to where it was.

        A slow beginning moves twice as far with every doubling, a logarithm as far as before.
        """
        last = self.saved[-1]
        half, quarter = (self._by(last.step // share) for share in (2, 4))
        if quarter is None or half is None or last.step < SETTLED_AFTER or move > least:
            return False
        gain = self._risk.gain(last.params)
        before, now = (
            gain * float(np.abs(b.params - a.params).max(initial=0.0)) for a, b in ((quarter, half), (half, last))
        )
        return now <= min(least, 1.5 * before)

    def _by(self, step: int) -> Saved | None:
        """Return the last saved state up to a step."""
        return next((saved for saved in reversed(self.saved) if saved.step <= step), None)
