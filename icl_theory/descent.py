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
FLOW_EVALUATIONS = 20_000

Callback = Callable[[int, float], None]


class _Point(NamedTuple):
    step: int
    params: Array
    loss: float
    gradient: Array


class _Recorder:
    """Keeps the states at the saved steps."""

    def __init__(self, risk: Risk, last: int) -> None:
        self._risk = risk
        self._schedule = saved_steps(last, max(1, np.size(risk.initial)))
        self._index = 0
        self.t: list[int] = []
        self.loss: list[float] = []
        self.states: list[Array] = []
        self.observed: dict[str, list[Array]] = {}

    @property
    def due(self) -> int:
        """The next step to save."""
        return int(self._schedule[self._index]) if self._index < len(self._schedule) else INT64_MAX

    def save(self, step: int, params: Array, loss: float) -> None:
        if self.t and self.t[-1] == step:
            return
        while self.due <= step:
            self._index += 1
        self.t.append(step)
        self.loss.append(loss)
        self.states.append(np.array(params))
        for name, value in self._risk.observe(params, step).items():
            self.observed.setdefault(name, []).append(np.asarray(value))


def descend(
    risk: Risk,
    eta: float,
    *,
    epsilon: float = 0.0,
    steps: int | None = None,
    rule: str = "gd",
    method: str = "exact",
    floor_rtol: float = 1e-12,
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
    floor_rtol : float
        Where the risk's floor makes ``epsilon`` unreachable, stop when the loss is within this relative
        distance of the floor.
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
    floor_rtol = number("floor_rtol", floor_rtol, zero=True)

    floor = risk.floor()
    recorder = _Recorder(risk, last)
    points = _iterates(risk, eta, rule) if method == "exact" else _flow_points(risk, eta, rule, last)
    lowest = floor * (1.0 + floor_rtol) if epsilon <= floor else -math.inf
    hit: int | None = None
    reason = ""
    previous: _Point | None = None
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            for point in points:
                if not math.isfinite(point.loss):
                    reason = f"diverged at step {point.step}: the parameters left the range of float64"
                    break
                if point.loss <= epsilon:
                    point = _first_below(risk, eta, rule, epsilon, previous, point) if method == "flow" else point
                    hit, reason = point.step, f"reached epsilon = {epsilon:g} at step {point.step}"
                elif point.loss <= lowest:
                    reason = f"stagnated at the floor {floor:.6g} > epsilon = {epsilon:g} by step {point.step}"
                elif point.step >= last:
                    reason = f"took all {last} steps without reaching epsilon = {epsilon:g}"
                elif point.step >= recorder.due:
                    if _is_still(risk, eta, rule, point, last):
                        reason = f"stagnated at step {point.step}: the remaining steps cannot change the loss"
                    recorder.save(point.step, point.params, point.loss)
                    if callback is not None:
                        callback(point.step, point.loss)
                elif callback is not None and point.step % 4096 == 0:
                    callback(point.step, point.loss)
                previous = point
                if reason:
                    break
            else:
                reason = f"used the {FLOW_EVALUATIONS} gradient evaluations that a flow may take"
    except KeyboardInterrupt:
        reason = "interrupted"
        if previous is None:
            raise
        reason = f"interrupted at step {previous.step}"
    if previous is None:
        raise refuse("risk", risk, "finite in loss and gradient at its initial parameters")
    recorder.save(previous.step, previous.params, previous.loss)
    run = Trajectory(
        t=np.array(recorder.t, dtype=np.int64),
        loss=np.array(recorder.loss),
        states=np.stack(recorder.states),
        observed={name: np.stack(values) for name, values in recorder.observed.items()},
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
    step = gradient / risk.metric
    if rule == "ngd":
        norm = math.sqrt(float(np.sum(gradient * step)))
        return step / norm if norm > 0 else step
    return step


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


def _is_still(risk: Risk, eta: float, rule: str, point: _Point, last: int) -> bool:
    """Whether all remaining steps at the present slope change the loss by less than its rounding error."""
    slope = float(np.sum(point.gradient * direction(risk, point.gradient, rule)))
    return eta * slope * (last - point.step) <= ROUNDING * abs(point.loss)


def _velocity(risk: Risk, eta: float, rule: str, shape: tuple[int, ...]) -> Callable[[float, Array], Array]:
    """Field of the flow in x = ln(1 + t), on flat arrays."""

    def field(x: float, flat: Array) -> Array:
        gradient = risk.gradient(flat.reshape(shape))
        return np.ravel(-eta * math.exp(x) * direction(risk, np.asarray(gradient), rule))

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
        solver.step()
        dense = solver.dense_output()
        end = last if solver.status == "finished" else int(math.expm1(solver.t))
        for t in [*schedule[(schedule > step) & (schedule < end)].tolist(), end]:
            if t > step:
                params = dense(math.log1p(t)).reshape(shape)
                yield _Point(t, params, *risk.evaluate(params))
        step = max(step, end)


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
