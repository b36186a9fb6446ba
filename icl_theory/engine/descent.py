"""Gradient descent on any Risk: every step taken, most of them skipped, or gradient flow instead."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import (
    argument_error,
    choice,
    flag,
    instance,
    integer,
    number,
    plain_numbers,
)
from icl_theory.engine.interrupts import is_for_the_user, returns_runs
from icl_theory.engine.progress import Progress
from icl_theory.engine.risk import Risk, Solution
from icl_theory.engine.rules import NO_MEMORY, Rule, refuse_reduced, rule_of
from icl_theory.engine.steps import (
    Ended,
    Iterates,
    SingleSteps,
    TrainingState,
    UpdateMap,
)
from icl_theory.engine.stops import Goal, StopRules
from icl_theory.engine.trajectory import Stop, Trajectory, named, saved_steps

METHODS = ("auto", "closed", "exact", "fast", "flow")
MAX_STEPS = 10**15
TOLERANCE = 1e-7
VISIBLE = 1e-13  # of the floor: an excess below it is lost in rounding
AUTO_STEPS = 4096  # steps that "auto" takes one by one before it skips

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

    The iteration is :math:`\theta \leftarrow \theta - \eta\, M^{-1}\nabla\mathcal
    L(\theta)` with the metric :math:`M` of the risk's coordinates ("gd"), or the same
    with the gradient divided by its norm :math:`\sqrt{\nabla\mathcal L^\top M^{-1}
    \nabla\mathcal L}` ("ngd"). Sums are compensated, so that a million small steps lose
    no digits.

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
        Largest number of steps; 10¹⁵ unless given. One of ``epsilon``, ``above`` and
        ``steps`` is needed.
    rule : {"gd", "ngd", "ngd-blocks", "heavy-ball", "nesterov", "adam", "adamw"} or Rule
        Gradient descent; normalised gradient descent, whole or for each block of the
        parameters; a rule with momentum; Adam or AdamW, all with their default
        settings. Or a rule of `icl_theory.engine` with settings of your choice, a rule
        around a rule (`Scheduled`, `Clipped`, `Decayed`, `Projected`), or a `Rule` of
        your own.
    method : {"exact", "auto", "closed", "fast", "flow"}
        "exact" takes every step. "closed" takes none, where the risk has a closed form.
        "fast" skips most, with at most 200 000 gradients. "auto" takes the closed form
        where there is one, and else 4096 steps one by one before it goes on like
        "fast"; it takes every step if the risk draws data or the rule cannot be
        followed by skipping. "flow" integrates :math:`\theta' = -\eta
        M^{-1}\nabla\mathcal L` with a tolerance of 1e-10, relative to
        :math:`d\theta/d\ln(1 + t)` where that is small: it is the limit of small steps,
        not the iteration.
    tolerance : float
        Absolute tolerance on the scores where steps are skipped; the run's
        ``states_error`` is an estimate from above, and where it exceeds the tolerance
        ``notes["accuracy"]`` says so.
    give_up : bool, optional
        Stop where ``epsilon`` seems out of reach: when the loss is within 0.1 % of a
        floor that is above it, or settles while steps are taken one by one (it fell by
        less than 1e-3 of itself and less than is missing, and its slope by half or
        more, or it did not fall at all, while the number of steps grew tenfold, to 10⁴
        at least; or it fell by less than 1 % of what the slope promises, as where steps
        of constant length go round in a cycle). Whether the loss settles is not judged
        if the rule may take larger steps later. True unless ``steps`` is given.
    callback : callable, optional
        Called with (step, loss) at the saved steps and every 4096th one, for progress
        displays.
    progress : bool, optional
        Show step, loss and speed once a run takes longer than a second, or never; by
        default unless there is a ``callback``.

    Returns
    -------
    Trajectory
        Stops at ``epsilon``, at ``steps``, at the floor, where the loss cannot change
        any more, or on Ctrl-C with what it has; ``stop_reason`` says which.

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
        raise argument_error("callback", callback, "a function of a step and a loss")
    for name, given in (("give_up", give_up), ("progress", progress)):
        if given is not None:
            flag(name, given)
    _check_risk(risk)
    descent = UpdateMap(risk, number("eta", eta), rule_of(rule))
    refuse_reduced(risk, descent.rule)
    last = _last(epsilon, above, steps)
    if descent.rule.horizon is not None:
        last = min(last, descent.rule.horizon)
    method = _method(descent, method)
    tolerance = number("tolerance", tolerance)
    give_up = (steps is None if give_up is None else give_up) and not risk.stochastic
    quiet = callback is not None if progress is None else not progress
    with Progress("before the first step", "steps", quiet) as shown:
        floor = risk.floor()
        goal = Goal(_target(epsilon, above, floor), floor, last, give_up)
        form = (
            risk.closed_form(descent.eta, descent.rule)
            if method in ("auto", "closed")
            else None
        )
        if form is not None:
            return _closed(form, descent, goal)
        if method == "closed":
            raise argument_error(
                "method",
                method,
                "'auto', 'exact', 'fast' or 'flow' here: there is no closed form",
            )
        return _followed(
            follow(descent, method, tolerance), goal, method, tolerance, shown, callback
        )


def _check_risk(risk: Risk) -> None:
    if Risk not in type(risk).__mro__ and not isinstance(
        risk, Risk
    ):  # the second alone takes long
        raise argument_error(
            "risk", risk, "a Risk (with initial, evaluate, metric, observe and floor)"
        )
    start: Any = instance("initial", risk.initial, (np.ndarray, float), "an array")
    plain_numbers("initial", start, -math.inf)


def _last(epsilon: float | None, above: float | None, steps: int | None) -> int:
    """Return the largest number of steps of a run that has an end."""
    if epsilon is None and above is None and steps is None:
        raise argument_error(
            "epsilon",
            None,
            "given, or above, or steps: without one of them a run has no end",
        )
    if epsilon is not None and above is not None:
        raise argument_error(
            "above",
            above,
            f"left out where epsilon = {epsilon!r} is given: both are targets",
        )
    return MAX_STEPS if steps is None else integer("steps", steps, minimum=1)


def _method(descent: UpdateMap, method: str) -> str:
    """Return a method that can follow the rule and the risk."""
    choice("method", method, METHODS)
    if method == "flow" and descent.skippable and descent.start().memory.size:
        reason = "because a step that depends on a memory has no flow of the parameters as its limit"
        raise argument_error(
            "method",
            method,
            f"'exact', 'fast' or 'auto' for the rule {descent.rule.name!r}, {reason}",
        )
    if method == "exact" or descent.skippable:
        return method
    if method == "auto":
        return "exact"
    if descent.risk.stochastic:
        raise argument_error(
            "method", method, "'exact' for a risk that draws new data at every step"
        )
    reason = (
        "whose steps cannot be skipped and have no closed form: each one must be taken"
    )
    raise argument_error(
        "method",
        method,
        f"'exact' or 'auto' for the rule {descent.rule.name!r}, {reason}",
    )


def _target(epsilon: float | None, above: float | None, floor: float) -> float:
    """Return the target loss."""
    if above is None:
        return number("epsilon", 0.0 if epsilon is None else epsilon, zero=True)
    excess = number("above", above)
    if excess < VISIBLE * floor:
        raise argument_error(
            "above",
            above,
            f"at least {VISIBLE:g} of the floor {floor:.6g}, or it is lost in rounding",
        )
    return floor + excess


def follow(
    descent: UpdateMap,
    method: str,
    tolerance: float,
    known: dict[int, TrainingState] | None = None,
) -> Iterates:
    """Choose how iterates are found where there is no closed form: one by one, by skipping, or along the flow.

    ``known`` are states of the run that are known already.
    """
    if method == "exact":
        return SingleSteps(descent, known)
    from icl_theory.engine.skip import (
        Skipper,
    )  # closed forms and single steps need none of it

    if (
        method == "flow"
        # is smooth, and followed to a thousandth of the usual tolerance by fewer
        # gradients
    ):
        return Skipper(descent, 1e-10, known, budget=50_000, flow=True)
    return Skipper(
        descent, tolerance, known, exact=AUTO_STEPS if method == "auto" else 0
    )


@dataclass(frozen=True)
class _Curves:
    """The curves of a run in closed form, computed when it is called.

    It is a class and no function within another one, so that such a run can be pickled.
    """

    form: Solution
    risk: Risk
    steps: NDArray[np.int64]

    def __call__(self) -> dict[str, Any]:
        states = self.form.states(self.steps)
        loss, observed = self.risk.series(states, self.steps)
        return {"states": states, "loss": loss, "observed": named(observed)}


def _closed(form: Solution, descent: UpdateMap, goal: Goal) -> Trajectory:
    """Run in closed form, whose curves are computed when they are first asked for."""
    risk, (level, reached) = descent.risk, goal.aim
    hit, error = form.first_below(level, goal.last) if level > 0.0 else (None, 0.0)
    end = goal.last if hit is None else hit
    steps = (
        saved_steps(end, max(1, np.size(risk.initial)))
        if end
        else np.zeros(1, dtype=np.int64)
    )
    curves = _Curves(form, risk, steps)
    stop = Stop.STEPS if hit is None else reached
    return Trajectory.later(
        curves,
        t=steps,
        steps=hit if stop is Stop.REACHED else None,
        stop=stop,
        stop_reason=goal.say(stop, end),
        floor=goal.floor,
        method="closed",
        rule=descent.rule.name,
        trained_by=descent.rule,
        eta=descent.eta,
        epsilon=goal.epsilon,
        error=error,
        risk=risk,
        solution=form,
    )


class _End(NamedTuple):
    """Why a run ended, in words as well; the step that reached the target, if any, and its error."""

    stop: Stop
    reason: str
    steps: int | None = None
    error: float | None = None


@returns_runs
def _followed(
    solution: Iterates,
    goal: Goal,
    method: str,
    tolerance: float,
    shown: Progress,
    callback: Callback | None,
) -> Trajectory:
    """Follow a run to its end, and return what was saved of it."""
    descent = solution.update_map
    rules = StopRules(goal, solution, tolerance)
    end = _follow(solution, goal, rules, shown, callback)
    if solution.last_point is None:
        raise argument_error(
            "risk",
            descent.risk,
            "finite in loss and gradient at its initial parameters",
        )
    rules.recorder.save(solution.last_point)
    if method == "auto":
        method = "fast" if solution.skipped else "exact"
    run = Trajectory(
        **rules.recorder.curves(),
        steps=end.steps,
        stop=end.stop,
        stop_reason=end.reason,
        floor=goal.floor,
        method=method,
        rule=descent.rule.name,
        trained_by=descent.rule,
        eta=descent.eta,
        epsilon=goal.epsilon,
        error=end.error,
        states_error=solution.error,
        risk=descent.risk,
    )
    if solution.error is not None and solution.error > 1.01 * tolerance:
        error = f"the estimated error of the scores, {solution.error:.3g},"
        run.notes["accuracy"] = f"{error} exceeds the tolerance {tolerance:g}"
    attach(run, descent.risk, tolerance, descent.rule)
    return run


@returns_runs
def _follow(
    solution: Iterates,
    goal: Goal,
    rules: StopRules,
    shown: Progress,
    callback: Callback | None,
) -> _End:
    """Follow a run until one of the rules ends it, it can be followed no further, or Ctrl-C is pressed."""
    recorder = rules.recorder
    points = solution.points(recorder.schedule)
    stop: Stop | None = None
    hit, error = None, None
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            for point in points:
                stop = rules.stop(point)
                if stop is not None:
                    break
                shown.update(point.step, loss=point.loss)
                if callback is not None and (
                    point.step % 4096 == 0 or point.step == recorder.saved[-1].step
                ):
                    callback(point.step, point.loss)
                del point
            if stop in (Stop.REACHED, Stop.FLOOR):
                hit, error = solution.first_below(
                    goal.aim[0] if stop is Stop.FLOOR else goal.epsilon, goal.last
                )
    except Ended as ended:
        return _End(ended.stop, str(ended))
    except KeyboardInterrupt:
        if solution.last_point is None or not is_for_the_user():
            raise
        stop = Stop.INTERRUPTED
    finally:
        points.close()
    assert stop is not None
    assert solution.last_point is not None
    reason = goal.say(stop, solution.last_point.step)
    return (
        _End(stop, reason, hit, error) if stop is Stop.REACHED else _End(stop, reason)
    )


def attach(
    run: Trajectory, risk: Risk, tolerance: float = TOLERANCE, rule: Rule | None = None
) -> None:
    """Tell a run what was trained, so that it can answer for any step."""
    run.trained_by = rule_of(run.rule if rule is None else rule)
    descent = UpdateMap(risk, run.eta, run.trained_by)
    run.risk = risk
    if run.method == "closed":
        run.solution = risk.closed_form(run.eta, run.trained_by)
        return
    run.solution = follow(descent, run.method, tolerance, _saved_states(run))


def _saved_states(run: Trajectory) -> dict[int, TrainingState]:
    """Return the states from which a run can go on, by step."""
    states = {}
    for i, t in enumerate(run.t.tolist()):
        params = run.states[i]
        memory = NO_MEMORY if run.memory is None else run.memory[i]
        carry = np.zeros_like(params) if run.carry is None else run.carry[i]
        states[t] = TrainingState(t, params, memory, carry)
    return states
