"""Gradient descent on any Risk: every step taken, most of them skipped, or gradient flow instead."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from icl_theory._validate import INT64_MAX, Array, choice, integer, number, refuse
from icl_theory.fastforward import FLOW_TOLERANCE, Interpolant, flow, skip
from icl_theory.risk import Risk
from icl_theory.steps import Descent, Ended, Point
from icl_theory.trajectory import State, Trajectory, saved_steps

RULES = ("gd", "ngd")
METHODS = ("exact", "fast", "auto", "flow")
MAX_STEPS = 10**15
ROUNDING = 2.0**-52
FAST_EVALUATIONS = 200_000
FLOW_EVALUATIONS = 10_000
AUTO_STEPS = 4096  # steps that "auto" takes one by one before it skips
FLOOR_RTOL = 1e-3
STALL_AFTER = 10_000
SETTLED, SETTLED_AFTER = 0.1, 256  # in units of the tolerance; steps

Callback = Callable[[int, float], None]


class _Saved(NamedTuple):
    step: int
    loss: float
    slope: float
    params: Array
    observed: dict[str, Array]


class _Recorder:
    """Keeps the states at the saved steps; each is added whole, so that an interrupt leaves no half of one."""

    def __init__(self, risk: Risk, last: int) -> None:
        self._risk = risk
        self.schedule = saved_steps(last, max(1, np.size(risk.initial)))
        self._index = 0
        self.saved: list[_Saved] = []

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
        observed = {name: np.asarray(value) for name, value in seen.items()}
        if self.saved and not all(np.isfinite(value).all() for value in observed.values()):
            return
        self.saved.append(_Saved(point.step, point.loss, slope, np.array(point.params), observed))
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

    def _by(self, step: int) -> _Saved | None:
        """Return the last saved state up to a step."""
        return next((saved for saved in reversed(self.saved) if saved.step <= step), None)


def descend(
    risk: Risk,
    eta: float,
    *,
    epsilon: float = 0.0,
    steps: int | None = None,
    rule: str = "gd",
    method: str = "exact",
    tolerance: float = 1e-7,
    give_up: bool | None = None,
    callback: Callback | None = None,
) -> Trajectory:
    r"""Train a risk from its initial parameters.

    The iteration is :math:`\theta \leftarrow \theta - \eta\, M^{-1}\nabla\mathcal L(\theta)` with the metric
    :math:`M` of the risk's coordinates ("gd"), or the same with the gradient divided by its norm
    :math:`\sqrt{\nabla\mathcal L^\top M^{-1} \nabla\mathcal L}` ("ngd"). Sums are compensated, so that a
    million small steps lose no digits.

    Parameters
    ----------
    risk : Risk
        What to train.
    eta : float
        Learning rate.
    epsilon : float
        Target loss; 0 goes on until another reason to stop.
    steps : int, optional
        Largest number of steps; 10¹⁵ unless given.
    rule : {"gd", "ngd"}
        Gradient descent or normalised gradient descent.
    method : {"exact", "fast", "auto", "flow"}
        "exact" takes every step. "fast" integrates the flow that interpolates the iterates with SciPy's DOP853 in
        ln(1 + t), and takes steps one by one where the expansion of its field does not converge or does not pay;
        it evaluates at most 200 000 gradients. "auto" takes 4096 steps one by one and goes on like "fast".
        "flow" integrates :math:`\theta' = -\eta M^{-1}\nabla\mathcal L` to a relative tolerance of 1e-10: it
        is the limit of small steps, not the iteration.
    tolerance : float
        Absolute tolerance on the scores where steps are skipped; the run's ``states_error`` is the estimate.
    give_up : bool, optional
        Stop where ``epsilon`` seems out of reach: when the loss is within 0.1 % of a floor that is above it, or
        settles while steps are taken one by one (it fell by less than 1e-3 of itself and less than is missing, and
        its slope by half or more, or it did not fall at all, while the number of steps grew tenfold, to 10⁴ at
        least; or it fell by less than 1 % of what the slope promises, as where steps of constant length go round in
        a cycle). True unless ``steps`` is given.
    callback : callable, optional
        Called with (step, loss) at the saved steps and every 4096th one, for progress displays.

    Returns
    -------
    Trajectory
        Stops at ``epsilon``, at ``steps``, at the floor, where the loss cannot change any more, or on Ctrl-C
        with what it has; ``stop_reason`` says which.

    Raises
    ------
    ValueError
        An argument out of range, named in the message.

    References
    ----------
    docs/theory.md, "Gradient descent and gradient flow".

    Examples
    --------
    >>> import icl_theory as icl
    >>> features = icl.Features.simplex(5, delta=1.0)
    >>> risk = icl.PopulationRisk(features, icl.tasks.Linear(3.0))
    >>> run = icl.descend(risk, eta=4.0, epsilon=1e-2)
    >>> run.stop_reason
    'reached epsilon = 0.01 at step 47'
    """
    if not isinstance(risk, Risk):
        raise refuse("risk", risk, "a Risk (with initial, evaluate, metric, observe and floor)")
    eta = number("eta", eta)
    epsilon = number("epsilon", epsilon, zero=True)
    last = MAX_STEPS if steps is None else integer("steps", steps, minimum=1)
    choice("rule", rule, RULES)
    choice("method", method, METHODS)
    tolerance = number("tolerance", tolerance)
    if risk.stochastic and method != "exact":
        raise refuse("method", method, "'exact' for a risk that draws its data at every step")
    give_up = (steps is None if give_up is None else give_up) and not risk.stochastic

    floor = risk.floor()
    recorder = _Recorder(risk, last)
    descent = Descent(risk, eta, rule)
    interpolant = _interpolant(descent, method, tolerance)
    if interpolant is None:
        points = descent.iterates(risk.initial)
    elif method == "flow":
        points = flow(interpolant, recorder.schedule)
    else:
        points = skip(interpolant, recorder.schedule, AUTO_STEPS if method == "auto" else 0)
    lowest = floor * (1.0 + FLOOR_RTOL) if give_up and epsilon <= floor else -math.inf
    target = -math.inf if risk.stochastic and epsilon == 0 else epsilon
    hit: int | None = None
    reason = ""
    previous: Point | None = None
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            for point in points:
                if not math.isfinite(point.loss):
                    reason = f"diverged at step {point.step}: the loss left the range of float64"
                    break
                above, previous = previous, point
                if point.loss <= target:
                    if interpolant is not None and above is not None:
                        previous = interpolant.first_below(epsilon, above, point)
                    hit, reason = previous.step, f"reached epsilon = {epsilon:g} at step {previous.step}"
                elif point.loss <= lowest:
                    reason = f"stagnated at the floor {floor:.6g} > epsilon = {epsilon:g} by step {point.step}"
                elif point.step >= last:
                    reason = f"took all {last} steps without reaching epsilon = {epsilon:g}"
                elif point.step >= recorder.due:
                    slope = descent.slope(point.gradient)
                    recorder.save(point, slope)
                    # where steps are skipped there is time for the longest plateau
                    patient = interpolant is not None and interpolant.skipped
                    stalled = give_up and not patient and recorder.has_stalled(epsilon)
                    reason = _standstill(risk, point, slope * (last - point.step), stalled)
                    if (
                        not reason
                        and interpolant is not None
                        and recorder.has_settled(SETTLED * tolerance, descent.pace(point) / (point.step + 1))
                    ):
                        reason = f"stagnated at step {point.step}: the scores settled to within the tolerance"
                if reason:
                    break
                if callback is not None and (point.step % 4096 == 0 or point.step == recorder.saved[-1].step):
                    callback(point.step, point.loss)
    except Ended as ended:
        reason = str(ended)
    except KeyboardInterrupt:
        if previous is None:
            raise
        reason = f"interrupted at step {previous.step}"
    if previous is None:
        raise refuse("risk", risk, "finite in loss and gradient at its initial parameters")
    recorder.save(previous)
    saved = recorder.saved
    skipped = interpolant is not None and interpolant.skipped
    error = interpolant.worst if interpolant is not None and skipped else None
    run = Trajectory(
        t=np.array([point.step for point in saved], dtype=np.int64),
        loss=np.array([point.loss for point in saved]),
        states=np.stack([point.params for point in saved]),
        observed={name: np.stack([point.observed[name] for point in saved]) for name in saved[0].observed},
        steps=hit,
        stop_reason=reason,
        floor=floor,
        method="exact" if method == "auto" and not skipped else "fast" if method == "auto" else method,
        rule=rule,
        eta=eta,
        epsilon=epsilon,
        error=_steps_in(descent, previous, interpolant.error) if interpolant and skipped and hit else None,
        states_error=error,
        risk=risk,
    )
    if error is not None and error > 1.01 * tolerance:
        run.notes["accuracy"] = (
            f"the estimated error of the scores, {error:.3g}, exceeds the tolerance {tolerance:g}"
        )
    run.resume = _Resume(run, tolerance)
    return run


def _interpolant(descent: Descent, method: str, tolerance: float) -> Interpolant | None:
    """What a method that does not take every step integrates."""
    if method == "exact":
        return None
    if method == "flow":
        return Interpolant(descent, False, FLOW_TOLERANCE, FLOW_EVALUATIONS)
    return Interpolant(descent, True, tolerance, FAST_EVALUATIONS)


def _steps_in(descent: Descent, point: Point, error: float) -> float:
    """Number of steps in which the scores move by ``error``."""
    pace = descent.pace(point) / (point.step + 1)
    return error / pace if pace > error * 2.0**-53 else 2.0**53


def _standstill(risk: Risk, point: Point, reachable: float, stalled: bool) -> str:
    """Why it is no use to go on, if it is none; ``reachable`` is the decrease at the present slope."""
    if not np.isfinite(point.params).all():
        return f"diverged at step {point.step}: the parameters left the range of float64"
    if not risk.stochastic and reachable <= ROUNDING * abs(point.loss):
        return f"stagnated at step {point.step}: the remaining steps cannot change the loss"
    return f"stagnated at step {point.step}: the loss settles above epsilon" if stalled else ""


class _Resume:
    """Finds the state at any step of a run by going on from the nearest one below it that is known."""

    def __init__(self, run: Trajectory, tolerance: float) -> None:
        assert run.risk is not None
        self._risk, self._make = run.risk, (run.eta, run.rule)
        self._method, self._tolerance = run.method, tolerance
        self._known = {int(t): params for t, params in zip(run.t, run.states, strict=True)}

    def __call__(self, t: int) -> State:
        descent = Descent(self._risk, *self._make)
        interpolant = _interpolant(descent, self._method, self._tolerance)
        start = max(known for known in self._known if known <= t)
        params = self._known[start]
        if t > start and interpolant is not None:
            params = interpolant.state(params, start, t)
        elif t > start:
            params = next(point.params for point in descent.iterates(params, start) if point.step == t)
        self._known[t] = params
        return State(t, params, descent.point(params, t).loss, self._risk.observe(params, t))
