"""Gradient descent on any Risk: every step taken, most of them skipped, or gradient flow instead."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from icl_theory._validate import choice, flag, instance, integer, number, plain_numbers, refuse
from icl_theory.engine.interrupts import is_for_the_user, returns_runs
from icl_theory.engine.progress import StepProgress
from icl_theory.engine.recorder import SETTLED, Recorder
from icl_theory.engine.risk import ClosedForm, Risk
from icl_theory.engine.rules import Rule, rule_of
from icl_theory.engine.saddle import Saddle
from icl_theory.engine.skip import Skipper
from icl_theory.engine.steps import Descent, Ended, Point
from icl_theory.engine.trajectory import State, Stop, Trajectory, named, saved_steps

METHODS = ("auto", "closed", "exact", "fast", "flow")
MAX_STEPS = 10**15
TOLERANCE = 1e-7
VISIBLE = 1e-13  # of the floor: an excess below it is lost in rounding
ROUNDING = 2.0**-52
FAST_EVALUATIONS = 200_000
FLOW_TOLERANCE, FLOW_EVALUATIONS = 1e-10, 50_000
EXACT_STEPS = 10**9  # that anybody takes one by one
AUTO_STEPS = 4096  # steps that "auto" takes one by one before it skips
FLOOR_RTOL = 1e-3
NOTHING = np.zeros(0)
WALK = 10_000  # steps that are taken one by one beyond the last one of a run, or as many as it has

Callback = Callable[[int, float], None]


@returns_runs
def descend(
    risk: Risk,
    eta: float,
    *,
    epsilon: float | None = None,
    above: float | None = None,
    steps: int | None = None,
    rule: str | Rule = "gd",
    method: str = "exact",
    tolerance: float = TOLERANCE,
    give_up: bool | None = None,
    callback: Callback | None = None,
    progress: bool | None = None,
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
    epsilon : float, optional
        Target loss; 0 goes on until another reason to stop.
    above : float, optional
        Target excess of the loss over the floor of the risk, instead of ``epsilon``.
    steps : int, optional
        Largest number of steps; 10¹⁵ unless given. One of ``epsilon``, ``above`` and ``steps`` is needed.
    rule : {"gd", "ngd", "ngd-blocks"} or Rule
        Gradient descent, normalised gradient descent, the same for each block of the parameters, or a rule of one's
        own.
    method : {"exact", "auto", "closed", "fast", "flow"}
        "exact" takes every step. "closed" takes none, where the risk has a closed form. "fast" follows the curve
        through the iterates by polynomials in ln(1 + t), twice, and takes steps one by one where that does not
        pay; columns that do not mix have strides of their own. It evaluates at most 200 000 gradients.
        "auto" takes the closed form where there is one, and else 4096 steps one by one before it goes on like
        "fast"; it takes every step if the risk draws data or the rule changes from step to step.
        "flow" integrates :math:`\theta' = -\eta M^{-1}\nabla\mathcal L` with a tolerance of 1e-10,
        relative to :math:`d\theta/d\ln(1 + t)` where that is small: it is the limit of small steps, not the
        iteration.
    tolerance : float
        Absolute tolerance on the scores where steps are skipped; the run's ``states_error`` is an estimate from
        above, and where it exceeds the tolerance ``notes["accuracy"]`` says so.
    give_up : bool, optional
        Stop where ``epsilon`` seems out of reach: when the loss is within 0.1 % of a floor that is above it, or
        settles while steps are taken one by one (it fell by less than 1e-3 of itself and less than is missing, and
        its slope by half or more, or it did not fall at all, while the number of steps grew tenfold, to 10⁴ at
        least; or it fell by less than 1 % of what the slope promises, as where steps of constant length go round in
        a cycle). Whether the loss settles is not judged if the rule changes from step to step. True unless
        ``steps`` is given.
    callback : callable, optional
        Called with (step, loss) at the saved steps and every 4096th one, for progress displays.
    progress : bool, optional
        Show step, loss and speed on standard error once a run takes longer than a second, or never. The default
        is to show them unless there is a ``callback``. Workers show nothing.

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
    if not (callback is None or callable(callback)):
        raise refuse("callback", callback, "a function of a step and a loss")
    for name, given in (("give_up", give_up), ("progress", progress)):
        if given is not None:
            flag(name, given)
    if progress is not None or callback is None:
        with StepProgress(callback, progress) as shown:
            return descend(
                risk, eta, epsilon=epsilon, above=above, steps=steps, rule=rule, method=method, tolerance=tolerance,
                give_up=give_up, callback=shown,
            )  # fmt: skip
    if Risk not in type(risk).__mro__ and not isinstance(risk, Risk):  # the second alone takes long
        raise refuse("risk", risk, "a Risk (with initial, evaluate, metric, observe and floor)")
    start: Any = instance("initial", risk.initial, (np.ndarray, float), "an array")
    plain_numbers("initial", start, -math.inf)
    eta = number("eta", eta)
    if epsilon is None and above is None and steps is None:
        raise refuse("epsilon", None, "given, or above, or steps: without one of them a run has no end")
    if epsilon is not None and above is not None:
        raise refuse("above", above, f"left out where epsilon = {epsilon!r} is given: both are targets")
    last = MAX_STEPS if steps is None else integer("steps", steps, minimum=1)
    update = rule_of(rule)
    choice("method", method, METHODS)
    tolerance = number("tolerance", tolerance)
    alike = update.autonomous and not risk.stochastic  # steps say what later ones do
    if method == "auto" and not alike:
        method = "exact"
    if risk.stochastic and method != "exact":
        raise refuse("method", method, "'exact' for a risk that draws new data at every step")
    if not update.autonomous and method != "exact":
        raise refuse("method", method, f"'exact' for the rule {update.name!r}, which changes from step to step")
    give_up = (steps is None if give_up is None else give_up) and not risk.stochastic

    floor = risk.floor()
    target = _target(epsilon, above, floor)
    form = risk.closed_form(eta, update.name) if method in ("auto", "closed") else None
    if form is not None:
        return _closed(risk, form, Descent(risk, eta, update), target, floor, last, give_up)
    if method == "closed":
        raise refuse("method", method, "'auto', 'exact', 'fast' or 'flow' here: there is no closed form")
    recorder = Recorder(risk, last)
    descent = Descent(risk, eta, update)
    saddle = Saddle(descent)
    way = _way(descent, method, tolerance)
    if way is not None:
        points = way.points(recorder.schedule, AUTO_STEPS if method == "auto" else 0)
    else:
        points = descent.iterates(risk.initial)
    lowest = floor * (1.0 + FLOOR_RTOL) if give_up and target <= floor else -math.inf
    goal = -math.inf if risk.stochastic and target == 0 else target
    hit: int | None = None
    stop: Stop | None = None
    reason = ""
    beat = callback.beat if isinstance(callback, StepProgress) else None
    previous: Point | None = None
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            for point in points:
                if not math.isfinite(point.loss):
                    stop, reason = Stop.LOSS, Stop.LOSS.say(step=point.step)
                    break
                above_it, previous = previous, point
                if way is None:  # large gradients are not kept beside the next ones
                    above_it, previous = None, point._replace(gradient=NOTHING)
                if point.loss <= goal:
                    if way is not None and above_it is not None:
                        previous = way.first_below(target, above_it, point)
                    hit, stop = previous.step, Stop.REACHED
                elif point.loss <= lowest:
                    if way is not None and above_it is not None:
                        previous = way.first_below(lowest, above_it, point)
                    stop = Stop.FLOOR
                elif point.step >= last:
                    stop = Stop.STEPS
                elif point.step >= recorder.due:
                    slope = descent.slope(point.gradient)
                    recorder.save(point, slope)
                    # where steps are skipped there is time for the longest plateau
                    patient = way is not None and way.skipped
                    stalled = give_up and alike and not patient and recorder.has_stalled(target)
                    reachable = slope * (last - point.step) if alike else math.inf
                    stop = _standstill(point, reachable, stalled)
                    least, move = SETTLED * tolerance, descent.pace(point) / (point.step + 1)
                    if stop is None and way is not None and recorder.has_settled(least, move):
                        stop = Stop.SETTLED
                    ahead = last - point.step if way is not None else min(last - point.step, EXACT_STEPS)
                    if stop in (Stop.UNMOVED, Stop.SETTLED) and saddle.is_left(point, ahead):
                        stop = None
                if stop is not None:
                    break
                if callback is not None and (point.step % 4096 == 0 or point.step == recorder.saved[-1].step):
                    callback(point.step, point.loss)
                elif beat is not None:  # steps may be slow
                    beat(point.step, point.loss)
                del point
    except Ended as ended:
        stop, reason = ended.stop, str(ended)
    except KeyboardInterrupt:
        if previous is None or not is_for_the_user():
            raise
        stop = Stop.INTERRUPTED
    if previous is None:
        raise refuse("risk", risk, "finite in loss and gradient at its initial parameters")
    assert stop is not None
    point = previous  # noqa: F841 - and neither is the last gradient
    reason = reason or stop.say(step=previous.step, epsilon=target, floor=floor)
    recorder.save(previous)
    saved = recorder.saved
    with np.errstate(over="ignore", invalid="ignore"):
        points.close()  # compares the run with its shadow once more
    states = np.empty((len(saved), *np.shape(saved[0].params)))
    for i in range(len(saved)):  # what is large is held once
        states[i], saved[i] = saved[i].params, saved[i]._replace(params=NOTHING)
    skipped = way is not None and way.skipped and not way.flow
    error = way.error if way is not None and skipped else None
    run = Trajectory(
        t=np.array([point.step for point in saved], dtype=np.int64),
        loss=np.array([point.loss for point in saved]),
        states=states,
        observed={name: np.stack([point.observed[name] for point in saved]) for name in saved[0].observed},
        steps=hit,
        stop=stop,
        stop_reason=reason,
        floor=floor,
        method=method if method != "auto" else "fast" if skipped else "exact",
        rule=update.name,
        eta=eta,
        epsilon=target,
        error=None,
        states_error=error,
        risk=risk,
    )
    if error is not None and error > 1.01 * tolerance:
        run.notes["accuracy"] = (
            f"the estimated error of the scores, {error:.3g}, exceeds the tolerance {tolerance:g}"
        )
    attach(run, risk, tolerance, update)
    if way is not None and skipped and hit is not None:
        run.error = way.count_error(previous, target)
    return run


def _closed(
    risk: Risk, form: ClosedForm, descent: Descent, epsilon: float, floor: float, last: int, give_up: bool
) -> Trajectory:
    """Run in closed form."""
    lost = give_up and epsilon <= floor  # then stop where the loss is at the floor, as other methods do
    target = floor * (1.0 + FLOOR_RTOL) if lost else epsilon
    hit, error = form.first_below(target, last) if target > 0.0 else (None, 0.0)
    end = last if hit is None else hit
    steps = saved_steps(end, max(1, np.size(risk.initial))) if end else np.zeros(1, dtype=np.int64)

    def curves() -> dict[str, Any]:
        states = form.states(steps)
        loss, observed = risk.series(states, steps)
        return {"states": states, "loss": loss, "observed": named(observed)}

    stop = Stop.STEPS if hit is None else Stop.FLOOR if lost else Stop.REACHED
    run = Trajectory.later(
        curves, t=steps, steps=None if lost else hit, stop=stop,
        stop_reason=stop.say(step=end, epsilon=epsilon, floor=floor), floor=floor, method="closed",
        rule=descent.rule.name, eta=descent.eta, epsilon=epsilon, error=error,
    )  # fmt: skip
    attach(run, risk, rule=descent.rule, form=form)
    return run


def _target(epsilon: float | None, above: float | None, floor: float) -> float:
    """Return the target loss."""
    if above is None:
        return number("epsilon", 0.0 if epsilon is None else epsilon, zero=True)
    excess = number("above", above)
    if excess < VISIBLE * floor:
        raise refuse("above", above, f"at least {VISIBLE:g} of the floor {floor:.6g}, or it is lost in rounding")
    return floor + excess


def attach(
    run: Trajectory,
    risk: Risk,
    tolerance: float = TOLERANCE,
    rule: Rule | None = None,
    form: ClosedForm | None = None,
) -> None:
    """Tell a run what was trained, so that it can answer for any step."""
    run.risk = risk
    run.form = form or (risk.closed_form(run.eta, run.rule) if run.method == "closed" else None)
    if run.form is None:
        run.resume = _Resume(run, tolerance, rule_of(run.rule if rule is None else rule))
        return
    form = run.form

    def state(t: int) -> State:
        params = form.states(np.array([t]))[0]
        return State(t, params, risk.evaluate(params, t)[0], risk.observe(params, t))

    run.resume = state


def _way(descent: Descent, method: str, tolerance: float) -> Skipper | None:
    """How a method that does not take every step goes on."""
    if method == "exact":
        return None
    if method == "flow":
        return Skipper(descent, FLOW_TOLERANCE, FLOW_EVALUATIONS, flow=True)
    return Skipper(descent, tolerance, FAST_EVALUATIONS)


def _standstill(point: Point, reachable: float, stalled: bool) -> Stop | None:
    """Why it is no use to go on, if it is none; ``reachable`` is the decrease at the present slope."""
    if not np.isfinite(point.params).all():
        return Stop.PARAMETERS
    if reachable <= ROUNDING * abs(point.loss):
        return Stop.UNMOVED
    return Stop.ABOVE if stalled else None


class _Resume:
    """Finds the state at any step of a run by going on from the nearest one below it that is known."""

    def __init__(self, run: Trajectory, tolerance: float, rule: Rule) -> None:
        assert run.risk is not None
        self._risk, self._make = run.risk, (run.eta, rule)
        self._method, self._tolerance = run.method, tolerance
        self._last = int(run.t[-1])
        self._known = {int(t): params for t, params in zip(run.t, run.states, strict=True)}

    def __call__(self, t: int) -> State:
        descent = Descent(self._risk, *self._make)
        way = _way(descent, self._method, self._tolerance)
        start = max(known for known in self._known if known <= t)
        most = self._last + max(self._last, WALK)
        if way is None and t > most:
            raise refuse(
                "t", t, f"at most {most} here: a run in which every step is taken does not continue beyond that"
            )
        params = self._known[start]
        with np.errstate(over="ignore", invalid="ignore"):
            if t > start and way is not None:
                params = way.state(params, start, t)
            elif t > start:
                params = next(point.params for point in descent.iterates(params, start) if point.step == t)
        self._known[t] = params
        return State(t, params, descent.point(params, t).loss, self._risk.observe(params, t))
