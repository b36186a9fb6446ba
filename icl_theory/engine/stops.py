"""Why a run ends: its goal, the saved states that show whether it still moves, and every rule in its order."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from icl_theory._validate import INT64_MAX, Array
from icl_theory.engine.risk import Risk
from icl_theory.engine.rules import NO_MEMORY
from icl_theory.engine.steps import NOTHING, Iterates, Point, UpdateMap
from icl_theory.engine.trajectory import Stop, named, saved_steps

FLOOR_RTOL = 1e-3  # of the floor: a loss so near to it will not reach a target below it
STALL_AFTER = 10_000  # steps
SETTLED = 0.1  # in units of the tolerance


class Goal(NamedTuple):
    """Where a run is to end: target loss, floor of the risk, largest number of steps; whether it may give up."""

    epsilon: float
    floor: float
    last: int
    give_up: bool

    @property
    def aim(self) -> tuple[float, Stop]:
        """The loss that ends the run, and why: the target, or what is as good as the floor where that is above."""
        if self.give_up and self.epsilon <= self.floor:
            return self.floor * (1.0 + FLOOR_RTOL), Stop.FLOOR
        return self.epsilon, Stop.REACHED

    def say(self, stop: Stop, step: int) -> str:
        """Return in words why the run ended at a step."""
        return stop.say(step=step, epsilon=self.epsilon, floor=self.floor)


class Saved(NamedTuple):
    """A saved iterate: step, loss, decrease of the loss a step, state and observations."""

    step: int
    loss: float
    slope: float
    params: Array
    observed: dict[str, Array]
    memory: Array = NO_MEMORY
    carry: Array | None = None


class Recorder:
    """Keeps the states at the saved steps; each is added whole, so that an interrupt leaves no half of one."""

    def __init__(self, risk: Risk, last: int) -> None:
        self._risk = risk
        self.schedule = saved_steps(last, max(1, np.size(risk.initial)))
        self.due, self._later = 0, iter(self.schedule.tolist())
        self.saved: list[Saved] = []

    def save(self, point: Point, slope: float = 0.0) -> None:
        """Add a point, unless it is not beyond the last one, or out of the range of float64."""
        if self.saved and (
            point.step <= self.saved[-1].step or not np.isfinite(point.params).all()
        ):
            return
        with np.errstate(over="ignore", invalid="ignore"):
            seen = self._risk.observe(point.params, point.step)
        observed = named(seen)
        if self.saved and not all(
            np.isfinite(value).all() for value in observed.values()
        ):
            return
        self.saved.append(
            Saved(
                point.step,
                point.loss,
                slope,
                np.array(point.params),
                observed,
                np.array(point.memory),
                None if point.carry is None else np.array(point.carry),
            )
        )
        self.due = next((step for step in self._later if step > point.step), INT64_MAX)

    def curves(self) -> dict[str, Any]:
        """Return what is saved as arrays, by the names that runs have for them; the states are moved."""
        saved = self.saved
        found: dict[str, Any] = {
            "t": np.array([point.step for point in saved], dtype=np.int64),
            "loss": np.array([point.loss for point in saved]),
            "observed": {
                name: np.stack([point.observed[name] for point in saved])
                for name in saved[0].observed
            },
        }
        # what is large is held once: each array is made when the one before it has been
        # moved
        shape = (len(saved), *np.shape(saved[0].params))
        states = np.empty(shape)
        for i in range(len(saved)):
            states[i] = saved[i].params
            saved[i] = saved[i]._replace(params=NOTHING)
        # points that were reached by skipping have nothing to carry
        carry = np.zeros(shape)
        for i in range(len(saved)):
            rounding = saved[i].carry
            if rounding is not None:
                carry[i] = rounding
                saved[i] = saved[i]._replace(carry=None)
        memory = np.stack([point.memory for point in saved])
        return found | {"states": states, "memory": memory, "carry": carry}

    def has_stalled(self, epsilon: float) -> bool:
        """Whether the last tenfold growth of the step number shows that the loss settles above ``epsilon``.

        Either the least loss has not moved beyond rounding, or it has moved by less
        than 1e-3 of itself, and by less than is missing, while the slope went down: on
        a plateau before learning the slope stays or goes up. Or it has moved by less
        than 1 % of what the slopes promise: the steps go round in a cycle.
        """
        last = self.saved[-1]
        if last.step < STALL_AFTER:
            return False
        earlier = [saved for saved in self.saved if saved.step <= last.step // 10]
        before = min(saved.loss for saved in earlier)
        now = min(saved.loss for saved in self.saved)
        small = before - now < min(1e-3 * abs(now), now - epsilon)
        settles = small and last.slope < 0.5 * earlier[-1].slope
        promised = min(last.slope, earlier[-1].slope) * (last.step - earlier[-1].step)
        return (
            settles
            or (small and before - now < 0.01 * promised)
            or before - now <= 1e-13 * abs(before)
        )

    def has_settled(self, least: float, move: float, after: int = 256) -> bool:
        """Whether the scores moved by less than ``least`` while the step number doubled, and no faster than before.

        Nor may they ``move`` by more in one step: an oscillation comes back to where it
        was. A slow beginning moves twice as far with every doubling, a logarithm as far
        as before. Up to step ``after`` too little is known.
        """
        last = self.saved[-1]
        if last.step < after or move > least:
            return False
        half, quarter = (
            [saved for saved in self.saved if saved.step <= last.step // n][-1]
            for n in (2, 4)
        )
        gain = self._risk.gain(last.params)
        before, now = (
            gain * float(np.abs(b.params - a.params).max(initial=0.0))
            for a, b in ((quarter, half), (half, last))
        )
        return now <= min(least, 1.5 * before)


class StopRules:
    """Every rule by which a run ends itself, in the order in which they are asked.

    Others are not rules: the iterates leave the range of float64 or the budget
    (`Ended`), or Ctrl-C. Where steps are skipped, scores may be off by the
    ``tolerance``; ``patience`` steps can be taken one by one.
    """

    def __init__(
        self, goal: Goal, run: Iterates, tolerance: float, patience: int = 10**9
    ) -> None:
        self._goal = goal
        self._run = run
        self._descent = run.update_map
        self._tolerance = tolerance
        risk = run.update_map.risk
        self.recorder = Recorder(risk, goal.last)
        level, stop = goal.aim
        self._lowest = level if stop is Stop.FLOOR else -math.inf
        self._target = (
            -math.inf if risk.stochastic and goal.epsilon == 0 else goal.epsilon
        )
        self._last = goal.last
        self._may_stagnate = run.update_map.may_stagnate
        self._longest = math.inf if run.skips else patience
        self._saddle = Saddle(run.update_map)

    def stop(self, point: Point) -> Stop | None:
        """Return why the run ends at a point, or None; save the point where that is due."""
        if point.loss <= self._target:
            return Stop.REACHED
        if point.loss <= self._lowest:
            return Stop.FLOOR
        if point.step >= self._last:
            return Stop.STEPS
        return self._rest(point) if point.step >= self.recorder.due else None

    def _rest(self, point: Point) -> Stop | None:
        """Save a point, and return the reason to stop there, or None."""
        slope = self._descent.slope(point)
        ahead = self._last - point.step
        self.recorder.save(point, slope)
        if not np.isfinite(point.params).all():
            return Stop.PARAMETERS
        # where steps are skipped there is time for any plateau
        judged = self._goal.give_up and self._may_stagnate and not self._run.skipped
        if self._may_stagnate and slope * ahead <= 2.0**-52 * abs(
            point.loss
        ):  # which is lost in rounding
            found = Stop.UNMOVED
        elif judged and self.recorder.has_stalled(self._goal.epsilon):
            return Stop.ABOVE
        elif self._run.skips and self.recorder.has_settled(
            SETTLED * self._tolerance, self._descent.pace(point)
        ):
            found = Stop.SETTLED
        else:
            return None
        return None if self._saddle.is_left(point, min(ahead, self._longest)) else found


class Saddle:
    """Asks the Hessian, where all of its modes can be found, whether a direction grows."""

    def __init__(self, descent: UpdateMap) -> None:
        self._descent = descent
        self._asked = 0
        self._rate = -1.0

    def is_left(
        self, point: Point, steps: float, growth: float = 0.1, noise: float = 1e-11
    ) -> bool:
        """Whether some direction grows by ``growth`` e-folds within ``steps`` steps.

        A tenth of an e-fold is enough, because growth near a degenerate saddle becomes
        faster and faster. Rates below ``noise`` times the largest curvature are
        rounding, and count as zero. The Hessian is asked again once the number of steps
        has doubled.
        """
        from icl_theory.engine.blocks import Blocks  # few runs stand still

        blocks = Blocks(self._descent)
        if (
            not blocks.can_find_modes or not point.params.any()
        ):  # what rests at zero is moved by rounding alone
            return False
        if self._rate < 0.0 or point.step >= 2 * self._asked:
            rows = blocks.rows(point.params)
            modes = blocks.modes(rows, np.zeros(len(rows)))
            least, most = (
                (0.0, 0.0)
                if modes is None
                else (-modes.rates.min(), abs(modes.rates.max()))
            )
            self._asked = point.step
            self._rate = float(least) if least > noise * most else 0.0
        return self._rate * steps > growth
