"""Gradient descent on any Risk: every step taken, or the gradient flow through SciPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from icl_theory._validate import INT64_MAX, Array, choice, integer, number, refuse
from icl_theory.risk import Risk
from icl_theory.trajectory import State, Trajectory, saved_steps

RULES = ("gd", "ngd")
METHODS = ("exact", "flow")
MAX_STEPS = 10**15
ROUNDING = 2.0**-52
FLOW_TOLERANCE = 1e-10
FLOW_EVALUATIONS = 10_000
FLOOR_RTOL = 1e-3
STALL_AFTER = 10_000

Callback = Callable[[int, float], None]


class _FlowEnded(Exception):  # noqa: N818 - not an error of the caller's
    """The solver of a flow cannot or may not go on; the message says why."""


class _Point(NamedTuple):
    step: int
    params: Array
    loss: float
    gradient: Array


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
        self._schedule = saved_steps(last, max(1, np.size(risk.initial)))
        self._index = 0
        self.saved: list[_Saved] = []

    @property
    def due(self) -> int:
        """The next step to save."""
        return int(self._schedule[self._index]) if self._index < len(self._schedule) else INT64_MAX

    def save(self, point: _Point, slope: float = 0.0) -> None:
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


def descend(
    risk: Risk,
    eta: float,
    *,
    epsilon: float = 0.0,
    steps: int | None = None,
    rule: str = "gd",
    method: str = "exact",
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
    method : {"exact", "flow"}
        "exact" takes every step. "flow" integrates :math:`\dot\theta = -\eta M^{-1}\nabla\mathcal L` with
        SciPy's DOP853 in ln(1 + t) to a relative tolerance of 1e-10: it is the limit of small steps, not the
        iteration.
    give_up : bool, optional
        Stop where ``epsilon`` seems out of reach: when the loss is within 0.1 % of a floor that is above it, or
        settles (it fell by less than 1e-3 of itself and less than is missing, and its slope by half or more, or it
        did not fall at all, while the number of steps grew tenfold, to 10⁴ at least; or it fell by less than 1 % of
        what the slope promises, as where steps of constant length go round in a cycle). True unless ``steps`` is
        given.
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
    if risk.stochastic and method == "flow":
        raise refuse("method", method, "'exact' for a risk that draws its data at every step")
    give_up = (steps is None if give_up is None else give_up) and not risk.stochastic

    floor = risk.floor()
    recorder = _Recorder(risk, last)
    points = _iterates(risk, eta, rule) if method == "exact" else _flow_points(risk, eta, rule, last)
    lowest = floor * (1.0 + FLOOR_RTOL) if give_up and epsilon <= floor else -math.inf
    target = -math.inf if risk.stochastic and epsilon == 0 else epsilon
    hit: int | None = None
    reason = ""
    previous: _Point | None = None
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            for point in points:
                if not math.isfinite(point.loss):
                    reason = f"diverged at step {point.step}: the loss left the range of float64"
                    break
                above, previous = previous, point
                if point.loss <= target:
                    if method == "flow":
                        previous = _first_below(risk, eta, rule, epsilon, above, point)
                    hit, reason = previous.step, f"reached epsilon = {epsilon:g} at step {previous.step}"
                elif point.loss <= lowest:
                    reason = f"stagnated at the floor {floor:.6g} > epsilon = {epsilon:g} by step {point.step}"
                elif point.step >= last:
                    reason = f"took all {last} steps without reaching epsilon = {epsilon:g}"
                elif point.step >= recorder.due:
                    slope = eta * float(np.sum(point.gradient * direction(risk, point.gradient, rule)))
                    recorder.save(point, slope)
                    reason = _standstill(
                        risk, point, slope * (last - point.step), give_up and recorder.has_stalled(epsilon)
                    )
                if reason:
                    break
                if callback is not None and (point.step % 4096 == 0 or point.step == recorder.saved[-1].step):
                    callback(point.step, point.loss)
    except _FlowEnded as ended:
        reason = str(ended)
    except KeyboardInterrupt:
        if previous is None:
            raise
        reason = f"interrupted at step {previous.step}"
    if previous is None:
        raise refuse("risk", risk, "finite in loss and gradient at its initial parameters")
    recorder.save(previous)
    saved = recorder.saved
    run = Trajectory(
        t=np.array([point.step for point in saved], dtype=np.int64),
        loss=np.array([point.loss for point in saved]),
        states=np.stack([point.params for point in saved]),
        observed={name: np.stack([point.observed[name] for point in saved]) for name in saved[0].observed},
        steps=hit,
        stop_reason=reason,
        floor=floor,
        method=method,
        rule=rule,
        eta=eta,
        epsilon=epsilon,
        risk=risk,
    )
    run.resume = _Resume(risk, run)
    return run


def direction(risk: Risk, gradient: Array, rule: str) -> Array:
    """Return ``M^-1 grad`` ("gd"), divided by the gradient's norm in the metric ("ngd")."""
    if rule == "ngd" and (largest := float(np.max(np.abs(gradient)))) > 0 and math.isfinite(largest):
        gradient = gradient / largest  # squares of tiny gradients would be zero
        step = gradient / risk.metric
        return step / math.sqrt(float(np.sum(gradient * step)))
    return gradient / risk.metric


def _iterates(risk: Risk, eta: float, rule: str, params: Array | None = None, step: int = 0) -> Iterator[_Point]:
    """Yield every iterate from ``params`` on; Kahan's compensated sum carries the rounding errors along."""
    params = risk.initial if params is None else params
    carry = np.zeros_like(params)
    while True:
        loss, gradient = risk.evaluate(params, step)
        yield _Point(step, params, loss, gradient)
        move = -eta * direction(risk, gradient, rule) - carry
        moved = params + move
        carry = (moved - params) - move
        params = moved
        step += 1


def _standstill(risk: Risk, point: _Point, reachable: float, stalled: bool) -> str:
    """Why it is no use to go on, if it is none; ``reachable`` is the decrease at the present slope."""
    if not np.isfinite(point.params).all():
        return f"diverged at step {point.step}: the parameters left the range of float64"
    if not risk.stochastic and reachable <= ROUNDING * abs(point.loss):
        return f"stagnated at step {point.step}: the remaining steps cannot change the loss"
    return f"stagnated at step {point.step}: the loss settles above epsilon" if stalled else ""


def _velocity(risk: Risk, eta: float, rule: str, shape: tuple[int, ...]) -> Callable[[float, Array], Array]:
    """Field of the flow in x = ln(1 + t), on flat arrays."""

    def field(x: float, flat: Array) -> Array:
        gradient = np.asarray(risk.evaluate(flat.reshape(shape))[1])
        slope = np.ravel(-eta * math.exp(x) * direction(risk, gradient, rule))
        if not np.isfinite(slope).all():  # the solver would halve its step for ever
            raise _FlowEnded("diverged: the gradient left the range of float64")
        return slope

    return field


def _flow_points(risk: Risk, eta: float, rule: str, last: int) -> Iterator[_Point]:
    """Yield the flow at integer times: each saved step, and the last one before each solver step's end."""
    from scipy.integrate import DOP853

    shape = np.shape(risk.initial)
    start = np.ravel(risk.initial)
    yield _Point(0, risk.initial, *risk.evaluate(risk.initial))
    solver = DOP853(
        _velocity(risk, eta, rule, shape),
        0.0,
        start,
        math.log1p(last),
        rtol=FLOW_TOLERANCE,
        atol=FLOW_TOLERANCE,
    )
    schedule = saved_steps(last, max(1, start.size))
    step = 0
    while solver.status == "running" and solver.nfev < FLOW_EVALUATIONS:
        message = solver.step()
        if solver.status == "failed":
            raise _FlowEnded(f"the solver failed: {message}")
        dense = solver.dense_output()
        end = last if solver.status == "finished" else int(math.expm1(solver.t))
        for t in [*schedule[(schedule > step) & (schedule < end)].tolist(), end]:
            if t > step:
                params = dense(math.log1p(t)).reshape(shape)
                yield _Point(t, params, *risk.evaluate(params))
        step = max(step, end)
    if solver.status == "running":
        raise _FlowEnded(f"used the {FLOW_EVALUATIONS} gradient evaluations that a flow may take")


def _first_below(risk: Risk, eta: float, rule: str, epsilon: float, above: _Point | None, below: _Point) -> _Point:
    """Bisect for the first integer time of the flow with loss <= epsilon, between two points of it."""
    if above is None:
        return below
    while below.step - above.step > 1:
        middle = (above.step + below.step) // 2
        params = _flow_to(risk, eta, rule, above.params, above.step, middle)
        point = _Point(middle, params, *risk.evaluate(params))
        above, below = (above, point) if point.loss <= epsilon else (point, below)
    return below


def _flow_to(risk: Risk, eta: float, rule: str, params: Array, start: int, end: int) -> Array:
    from scipy.integrate import solve_ivp

    shape = np.shape(params)
    interval = (math.log1p(start), math.log1p(end))
    solution = solve_ivp(
        _velocity(risk, eta, rule, shape),
        interval,
        np.ravel(params),
        method="DOP853",
        rtol=FLOW_TOLERANCE,
        atol=FLOW_TOLERANCE,
    )
    return np.asarray(solution.y[:, -1]).reshape(shape)


class _Resume:
    """Finds the state at any step of a run by going on from the nearest one below it that is known."""

    def __init__(self, risk: Risk, run: Trajectory) -> None:
        self._risk, self._eta, self._rule, self._method = risk, run.eta, run.rule, run.method
        self._known = {int(t): params for t, params in zip(run.t, run.states, strict=True)}

    def __call__(self, t: int) -> State:
        risk = self._risk
        start = max(known for known in self._known if known <= t)
        params = self._known[start]
        if self._method == "flow":
            params = _flow_to(risk, self._eta, self._rule, params, start, t) if t > start else params
        else:
            params = next(p.params for p in _iterates(risk, self._eta, self._rule, params, start) if p.step == t)
        self._known[t] = params
        return State(t, params, risk.evaluate(params, t)[0], risk.observe(params, t))
