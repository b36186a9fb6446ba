"""Gradient descent on any `Risk`.

`descend` trains a risk by one of five methods: it takes every step ("exact"), skips
most of them with an estimate of the error ("fast"), evaluates a closed form ("closed"),
follows gradient flow ("flow"), or chooses among the first three ("auto"). The iterates
come from `icl_theory.engine.steps` and `icl_theory.engine.skip`,
`icl_theory.engine.stops` ends the run, and a `Trajectory` holds its saved states.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
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
from icl_theory.engine.capabilities import series_at
from icl_theory.engine.interrupts import is_for_the_user, returns_runs
from icl_theory.engine.progress import Progress
from icl_theory.engine.risk import Risk, Solution
from icl_theory.engine.rules import NO_MEMORY, Rule, refuse_reduced, rule_of
from icl_theory.engine.steps import (
    Ended,
    Iterates,
    Point,
    SingleSteps,
    TrainingState,
    UpdateMap,
)
from icl_theory.engine.stops import Goal, StopRules
from icl_theory.engine.trajectory import Stop, Trajectory, named, saved_steps

# The methods of `descend`.
METHODS = ("auto", "closed", "exact", "fast", "flow")
# The largest number of steps of a run, unless given. It is below 2^53, so float64 holds
# every step number exactly.
MAX_STEPS = 10**15
# The tolerance on the scores, unless given. An error of this size in the scores changes
# no softmax probability by more than 1e-7. A smaller tolerance takes more gradients.
TOLERANCE = 1e-7
# An excess over the floor that is less than this part of the floor is lost in rounding.
# This part is 450 rounding units of 2^-52, because a loss is a sum of many rounded
# terms.
VISIBLE = 1e-13
# The number of steps that "auto" takes one by one before it skips. For a model with 25
# parameters this many steps take about 0.3 s, and a run that ends within them has no
# error of skipping. A larger number would delay all longer runs.
AUTO_STEPS = 4096
# If every step is taken, a callback is called at least once in this many steps, so that
# a display also moves between two saved steps that are far apart.
CALLBACK_STEPS = 4096
# The tolerance of a flow. It is a thousandth of the usual tolerance, and yet a flow
# takes fewer gradients than a run that skips steps, because the flow is smooth.
FLOW_TOLERANCE = 1e-10
# The largest number of gradients that a flow may take. It limits the time of a run that
# needs very short strides. Such a run ends with the reason `Stop.WORK`.
FLOW_BUDGET = 50_000
# A note is made if the estimated error exceeds this many times the tolerance. A smaller
# excess is not worth a note, because the error is an estimate.
STATED_EXCESS = 1.01

# Takes a step number and the loss at this step.
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

    By default (rule "gd") the iteration is :math:`\theta \leftarrow \theta - \eta\,
    M^{-1}\nabla\mathcal L(\theta)`, with the parameters θ, the loss :math:`\mathcal L`
    and the metric :math:`M` of the risk's coordinates. The rule "ngd" divides the
    gradient by its norm :math:`\sqrt{\nabla\mathcal L^\top M^{-1} \nabla\mathcal L}`.
    The sum of the steps is compensated, so that a million small steps lose no digits.

    Parameters
    ----------
    risk : Risk
        The model to train.
    eta : float
        Learning rate.
    epsilon : float, optional
        Target loss. With 0 the run continues until there is another reason to stop.
    above : float, optional
        Target excess of the loss over the floor of the risk, its irreducible loss;
        instead of ``epsilon``.
    steps : int, optional
        Largest number of steps; 10¹⁵ by default. One of ``epsilon``, ``above`` and
        ``steps`` must be given.
    rule : str or Rule
        The update rule. A name stands for a rule with its default settings: "gd" for
        gradient descent, "ngd" for normalised gradient descent, "ngd-blocks" for
        normalised descent in which each block of the gradient is normalised alone,
        "heavy-ball" and "nesterov" for descent with momentum, "adam" and "adamw".
        Otherwise give a rule of `icl_theory.engine` with settings of your choice, a
        rule around a rule (`Scheduled`, `Clipped`, `Decayed`, `Projected`), or a `Rule`
        of your own.
    method : {"exact", "auto", "closed", "fast", "flow"}
        "exact" takes every step. "closed" evaluates a closed form, if the risk has one.
        "fast" skips most steps and evaluates at most 200 000 gradients. "auto" uses
        the closed form if there is one; otherwise it takes 4096 steps one by one and
        then goes on like "fast", or takes every step if the risk draws data, if its
        loss changes from step to step, or if the rule's steps cannot be skipped. "flow"
        does not follow the iteration but its limit of small steps,
        :math:`\theta' = -\eta M^{-1}\nabla\mathcal L`. The tolerance of a flow is
        1e-10, relative to :math:`d\theta/d\ln(1 + t)` if this derivative is small.
    tolerance : float
        Absolute tolerance on the scores if steps are skipped. The scores are the
        parameters, or functions of them such as attention scores. ``states_error`` of
        the run is an estimated upper bound of their error. If it exceeds the tolerance
        by more than 1 %, ``notes["accuracy"]`` says so.
    give_up : bool, optional
        Whether to stop if ``epsilon`` seems out of reach: if the loss is within 0.1 %
        of a floor that is not below ``epsilon``, or if the loss settles while steps are
        taken one by one. From step 10⁴ on, the least loss so far is compared with the
        least loss up to a tenth of the step number. The loss has settled in three
        cases. First, it did not fall. Second, it fell by less than 1e-3 of itself and
        by less than its distance from ``epsilon``, and its slope fell by half or more.
        Third, it fell as little as in the second case, and by less than 1 % of the
        decrease that its slope predicts, as when steps of constant length go round in a
        cycle. A loss that has settled does not stop a run whose rule may take larger
        steps later. True by default, unless ``steps`` is given.
    callback : callable, optional
        Called with (step, loss) at the saved steps and at each multiple of 4096 steps
        that is not skipped, for progress displays.
    progress : bool, optional
        Whether to show step, loss and speed once a run has lasted a second. By default
        they are shown unless there is a ``callback``.

    Returns
    -------
    Trajectory
        The run up to the step at which it stopped. ``stop_reason`` says why: it reached
        ``epsilon``, ``steps`` or the floor, its loss cannot change any more, or Ctrl-C
        was pressed, for example.

    Raises
    ------
    ValueError
        An argument is out of range; the message names it.

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
    _check_options(callback, give_up=give_up, progress=progress)
    _check_risk(risk)
    eta = number("eta", eta)
    rule = rule_of(rule)
    # Adam, for example, cannot train one parameter that stands for several.
    if not rule.reducible:
        refuse_reduced(risk, rule)
    last = _last_step(epsilon, above, steps)
    # From the horizon of a rule on, its learning rate is zero.
    if rule.horizon is not None:
        last = min(last, rule.horizon)
    choice("method", method, METHODS)
    tolerance = number("tolerance", tolerance)
    if give_up is None:
        give_up = steps is None
    if progress is None:
        progress = callback is None
    with Progress("before the first step", "steps", quiet=not progress) as display:
        # A closed form skips steps, so the rule must allow it.
        if method in ("auto", "closed") and rule.skippable:
            solution = risk.closed_form(eta, rule)
            if solution is not None:
                goal = _goal(risk, epsilon, above, last, give_up)
                hit: int | None = None
                # The run ends at the loss `aim.loss`: the target, or a loss near the
                # floor if the target is not above the floor. This loss is 0 if neither
                # can end the run. Then there is no computed step count, and no error.
                error: float | None = 0.0
                if goal.aim.loss > 0.0:
                    hit, error = solution.first_below(goal.aim.loss, goal.last)
                return _closed_run(risk, eta, rule, solution, goal, hit, error)
        descent = UpdateMap(risk, eta, rule)
        method = _method(descent, method)
        # If a risk draws data, a single loss does not show whether the loss settles.
        goal = _goal(risk, epsilon, above, last, give_up and not risk.stochastic)
        iterates = follow(descent, method, tolerance)
        return _followed_run(iterates, goal, method, tolerance, display, callback)


def _check_options(callback: Callback | None, **flags: bool | None) -> None:
    """Refuse a callback that cannot be called, and flags that are not bools or None."""
    if callback is not None and not callable(callback):
        raise argument_error("callback", callback, "a function of a step and a loss")
    for name, value in flags.items():
        if value is not None:
            flag(name, value)


def _check_risk(risk: Risk) -> None:
    """Refuse an object unless it is a risk whose initial parameters are an array."""
    # isinstance() is slow for a protocol, and most risks inherit from `Risk`. So look
    # at the base classes first.
    if Risk not in type(risk).__mro__ and not isinstance(risk, Risk):
        raise argument_error(
            "risk", risk, "a Risk (with initial, evaluate, metric, observe and floor)"
        )
    # A single parameter may be a float.
    start: Any = instance("initial", risk.initial, (np.ndarray, float), "an array")
    # The parameters may be any numbers, even infinite, except NaN.
    plain_numbers("initial", start, least=-math.inf)


def _last_step(epsilon: float | None, above: float | None, steps: int | None) -> int:
    """Return the largest number of steps of a run; refuse a run without an end.

    A run with both targets, ``epsilon`` and ``above``, is refused, too.
    """
    if epsilon is None and above is None and steps is None:
        raise ValueError(
            "epsilon = None: give epsilon, above or steps; otherwise the run has no end"
        )
    if epsilon is not None and above is not None:
        # The text of an array may have several lines, but an error has one.
        shown = " ".join(repr(epsilon).split())
        raise argument_error(
            "above",
            above,
            f"left out if epsilon = {shown} is given: both are targets",
        )
    return MAX_STEPS if steps is None else integer("steps", steps, minimum=1)


def _method(descent: UpdateMap, method: str) -> str:
    """Return the method of a run without a closed form.

    For "auto" the result is "exact" if steps cannot be skipped. A method that cannot
    follow the rule and the risk is refused.
    """
    if descent.skippable:
        if method == "closed":
            raise argument_error(
                "method",
                method,
                "'auto', 'exact', 'fast' or 'flow' here: there is no closed form",
            )
        if method == "flow" and descent.start().memory.size:
            raise argument_error(
                "method",
                method,
                f"'exact', 'fast' or 'auto' for the rule {descent.rule.name!r}, "
                "because a step that depends on a memory has no flow of the parameters "
                "as its limit",
            )
        return method
    if method in ("exact", "auto"):
        return "exact"
    if descent.risk.stochastic:
        raise argument_error(
            "method", method, "'exact' for a risk that draws new data at every step"
        )
    if descent.risk.scheduled:
        raise argument_error(
            "method",
            method,
            "'exact' or 'auto' for a loss that changes from step to step",
        )
    raise argument_error(
        "method",
        method,
        f"'exact' or 'auto' for the rule {descent.rule.name!r}, whose steps cannot be "
        "skipped and have no closed form: each one must be taken",
    )


def _goal(
    risk: Risk, epsilon: float | None, above: float | None, last: int, give_up: bool
) -> Goal:
    """Return the goal of a run; its target is ``epsilon``, or the floor + ``above``."""
    floor = risk.floor()
    target = _target(epsilon, above, floor)
    return Goal(epsilon=target, floor=floor, last=last, give_up=give_up)


def _target(epsilon: float | None, above: float | None, floor: float) -> float:
    """Return the target loss: ``epsilon``, or the floor plus ``above``.

    It is 0 if neither is given.
    """
    if above is None:
        target = 0.0 if epsilon is None else epsilon
        return number("epsilon", target, zero=True)
    excess = number("above", above)
    # An excess below this part of the floor is lost in the rounding of the losses.
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
    saved_states: dict[int, TrainingState] | None = None,
) -> Iterates:
    """Return the iterates of a run without a closed form; none is computed yet.

    ``saved_states`` are known states of the run, by step. The state at a step is
    computed from the nearest of these states before the step.
    """
    if method == "exact":
        return SingleSteps(descent, saved_states)
    # Imported here because neither closed forms nor single steps need it.
    from icl_theory.engine.skip import Skipper

    if method == "flow":
        return Skipper(
            descent, FLOW_TOLERANCE, saved_states, budget=FLOW_BUDGET, flow=True
        )
    # The number of steps that are taken one by one before the run skips.
    exact_steps = AUTO_STEPS if method == "auto" else 0
    return Skipper(descent, tolerance, saved_states, exact=exact_steps)


@dataclass(frozen=True)
class _Curves:
    """A function without arguments that computes the curves of a run in closed form.

    It is a class because instances can be pickled. A function that is defined within
    another function cannot be pickled, and neither could a run that holds it.
    """

    solution: Solution
    risk: Risk
    steps: NDArray[np.int64]

    def __call__(self) -> dict[str, Any]:
        """Return the states, losses and observations at the steps, by name."""
        states = self.solution.states(self.steps)
        loss, observed = series_at(self.risk, states, self.steps)
        return {"states": states, "loss": loss, "observed": named(observed)}


def _closed_run(
    risk: Risk,
    eta: float,
    rule: Rule,
    solution: Solution,
    goal: Goal,
    hit: int | None,
    error: float | None,
) -> Trajectory:
    """Return a run in closed form, whose curves are computed at their first use.

    ``hit`` is the first step at the target, or near the floor if the target is not
    above the floor; None if there is no such step. ``error`` is the estimated error of
    this step.
    """
    if hit is None:
        end = goal.last
        stop = Stop.STEPS
    else:
        end = hit
        stop = goal.aim.stop
    # A run that ends at step 0 has this step alone.
    steps = np.zeros(1, dtype=np.int64)
    if end > 0:
        # Fewer steps are saved of a run with many parameters. A risk without parameters
        # is treated as one with a single number.
        steps = saved_steps(end, max(1, np.size(risk.initial)))
    return Trajectory.later(
        _Curves(solution, risk, steps),
        t=steps,
        steps=hit if stop is Stop.REACHED else None,
        stop=stop,
        stop_reason=goal.say(stop, end),
        floor=goal.floor,
        method="closed",
        rule=rule.name,
        trained_by=rule,
        eta=eta,
        epsilon=goal.epsilon,
        error=error,
        risk=risk,
        solution=solution,
    )


class _End(NamedTuple):
    """The end of a run.

    Attributes
    ----------
    stop : Stop
        Why the run ended.
    reason : str
        Why the run ended, in words.
    steps : int or None
        The first step at the target; None if the target was not reached.
    error : float or None
        The estimated error of ``steps``.
    """

    stop: Stop
    reason: str
    steps: int | None = None
    error: float | None = None


@returns_runs
def _followed_run(
    iterates: Iterates,
    goal: Goal,
    method: str,
    tolerance: float,
    display: Progress,
    callback: Callback | None,
) -> Trajectory:
    """Follow the iterates until the run ends, and return the run.

    If Ctrl-C is pressed, return the part that has been computed.
    """
    descent = iterates.update_map
    stop_rules = StopRules(goal, iterates, tolerance)
    end = _follow_to_end(iterates, goal, stop_rules, display, callback)
    # A run has no point if its loss at step 0 is not finite.
    if iterates.last_point is None:
        raise argument_error(
            "risk",
            descent.risk,
            "a risk whose loss and gradient are finite at its initial parameters",
        )
    # The last point is saved, too, unless it is not finite.
    stop_rules.recorder.save(iterates.last_point)
    if method == "auto":
        # A run states the method that was used.
        method = "fast" if iterates.skipped else "exact"
    run = _ended_run(iterates, goal, stop_rules, end, method)
    if iterates.error is not None and iterates.error > STATED_EXCESS * tolerance:
        run.notes["accuracy"] = (
            f"the estimated error of the scores, {iterates.error:.3g}, exceeds the "
            f"tolerance {tolerance:g}"
        )
    # From now on the run can compute the state at any step.
    attach(run, descent.risk, tolerance, descent.rule)
    return run


def _ended_run(
    iterates: Iterates, goal: Goal, stop_rules: StopRules, end: _End, method: str
) -> Trajectory:
    """Return the saved states of a run that has ended, as a `Trajectory`.

    The states are moved out of the recorder of ``stop_rules``, which must not be used
    afterwards.
    """
    descent = iterates.update_map
    return Trajectory(
        **stop_rules.recorder.curves(),
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
        states_error=iterates.error,
        risk=descent.risk,
    )


@returns_runs
def _follow_to_end(
    iterates: Iterates,
    goal: Goal,
    stop_rules: StopRules,
    display: Progress,
    callback: Callback | None,
) -> _End:
    """Follow the iterates until the run ends.

    It ends when one of ``stop_rules`` says so, when its iterates cannot continue
    (`Ended`), or when Ctrl-C is pressed.
    """
    points = iterates.points(stop_rules.recorder.schedule)
    hit: int | None = None
    error: float | None = None
    try:
        # A run that leaves float64 ends with a reason, so no warning is needed.
        with np.errstate(over="ignore", invalid="ignore"):
            stop = _first_stop(points, stop_rules, display, callback)
            if stop is Stop.REACHED:
                hit, error = iterates.first_below(goal.epsilon, goal.last)
            elif stop is Stop.FLOOR:
                # This call moves `last_point` to the first point at the floor.
                iterates.first_below(goal.aim.loss, goal.last)
    except Ended as ended:
        return _End(ended.stop, reason=str(ended))
    except KeyboardInterrupt:
        # A part of a run is of use only to the user. A function that measures the run
        # would return a wrong number.
        if iterates.last_point is None or not is_for_the_user():
            raise
        stop = Stop.INTERRUPTED
    finally:
        # End the generator of the points now, and so free its arrays.
        points.close()
    assert iterates.last_point is not None
    reason = goal.say(stop, iterates.last_point.step)
    if stop is not Stop.REACHED:
        return _End(stop, reason)
    return _End(stop, reason, steps=hit, error=error)


def _first_stop(
    points: Iterator[Point],
    stop_rules: StopRules,
    display: Progress,
    callback: Callback | None,
) -> Stop:
    """Go through the points of a run until a rule ends it, and return the reason."""
    for point in points:
        stop = stop_rules.stop(point)
        if stop is not None:
            return stop
        display.update(point.step, loss=point.loss)
        if callback is not None:
            # `stop_rules` has saved the point if its step was scheduled.
            is_saved = point.step == stop_rules.recorder.saved[-1].step
            if is_saved or point.step % CALLBACK_STEPS == 0:
                callback(point.step, point.loss)
        # Parameters may be large, so this point is freed before the next one is made.
        del point
    raise AssertionError("the points of a run go on until it is stopped")


def attach(
    run: Trajectory, risk: Risk, tolerance: float = TOLERANCE, rule: Rule | None = None
) -> None:
    """Attach a `Solution` to a run, by which the run computes the state at any step.

    Parameters
    ----------
    run : Trajectory
        The run. Its attributes ``risk``, ``trained_by`` and ``solution`` are set.
    risk : Risk
        The risk that the run has trained.
    tolerance : float
        The tolerance on the scores if steps are skipped.
    rule : Rule, optional
        The update rule. By default it is the rule that the run names, with its default
        settings.
    """
    run.trained_by = rule_of(run.rule if rule is None else rule)
    run.risk = risk
    if run.method == "closed":
        run.solution = risk.closed_form(run.eta, run.trained_by)
        return
    descent = UpdateMap(risk, run.eta, run.trained_by)
    run.solution = follow(descent, run.method, tolerance, _saved_states(run))


def _saved_states(run: Trajectory) -> dict[int, TrainingState]:
    """Return the saved states of a run, by step.

    The run can continue from each of them. A memory that the run lacks is taken to be
    empty, and a carry (the rounding error of the parameters) that it lacks to be zero.
    """
    states = {}
    for i, step in enumerate(run.t.tolist()):
        params = run.states[i]
        memory = NO_MEMORY if run.memory is None else run.memory[i]
        carry = np.zeros_like(params) if run.carry is None else run.carry[i]
        states[step] = TrainingState(step, params, memory, carry)
    return states
