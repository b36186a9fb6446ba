"""One call from vocabulary, triggers and learning rate to a training run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._calls import written_call
from icl_theory._validate import INT64_MAX, choice, integer, number, refuse
from icl_theory.descent import FLOOR_RTOL, MAX_STEPS, RULES, Callback, descend
from icl_theory.recall.bounds import cycle_excess, decay_rate, stall
from icl_theory.recall.counts import Counts
from icl_theory.recall.population import RecallRisk
from icl_theory.recall.task import RecallTask
from icl_theory.trajectory import State, Trajectory, saved_steps

METHODS = ("auto", "closed", "exact", "fast", "flow")
DEFAULTS: dict[str, Any] = {"V": 50, "triggers": 4, "outputs": 8}
VISIBLE = 1e-13
LARGEST_RATE = 2.0  # beyond which unequal triggers overshoot


def simulate(
    V: int | None = None,
    triggers: int | None = None,
    outputs: int | None = None,
    eta: float = 0.5,
    *,
    attention: str = "linear",
    alpha: float | None = None,
    probs: ArrayLike | None = None,
    counts: Counts | ArrayLike | None = None,
    H: int | None = None,
    task: RecallTask | None = None,
    gamma: float | None = None,
    M: int | None = None,
    seed: int = 0,
    rule: str = "ngd",
    epsilon: float | None = None,
    above: float = 1e-3,
    method: str = "auto",
    max_steps: int = MAX_STEPS,
    callback: Callback | None = None,
) -> Trajectory:
    r"""Train a reparameterised transformer on in-context recall by exact (normalised) gradient descent.

    Parameters
    ----------
    V, triggers, outputs : int
        Number of words, of triggers and of outputs; 50, 4 and 8 unless given.
    eta : float
        Learning rate.
    attention : {"linear", "relu", "softmax"}
        Attention weights; softmax is taken in the limit of long contexts.
    alpha : float
        Probability that the next word is noise, in [0, 1); 0 unless given.
    probs : array_like, (triggers,), optional
        Probabilities of the triggers; uniform unless given.
    counts : Counts or array_like, optional
        Law of the number of times that the output follows the trigger; that of random sentences unless given.
    H : int
        Words of a sentence; 33 unless given.
    task : RecallTask, optional
        The task, instead of ``V, triggers, outputs, alpha, probs, counts, H``.
    gamma : float, optional
        Hold the log-odds of noise there instead of training them (``task.best_gamma`` is best).
    M : int, optional
        Train on the empirical risk of M sentences instead of the population risk.
    seed : int
        Seed of these sentences.
    rule : {"ngd", "gd"}
        Normalised or plain gradient descent.
    epsilon : float, optional
        Target loss, nats; ``above`` the floor unless given. (The floor is the Bayes risk, unless ``gamma`` or ``M``
        put it elsewhere.)
    above : float
        Target excess of the loss over its floor, nats, where ``epsilon`` is not given.
    method : {"auto", "closed", "exact", "flow"}
        "closed" needs normalised descent on λ alone, with all triggers alike: then λ = ηt/√Q, whatever the loss.
        "exact" takes every step, "flow" integrates the limit of small ones, "auto" takes "closed" where it can.
    max_steps : int
        Largest number of steps. A run also ends where the loss no longer falls (see `icl_theory.descend`).
    callback : callable, optional
        Called with (step, loss) now and then during a run that takes its steps.

    Returns
    -------
    Trajectory
        Parameters ``(lambda_1 .. lambda_Q, [v], [gamma])``, with one λ where all triggers are alike;
        ``observed["excess"]`` is the excess over the Bayes risk (of the M sentences, where M is given).

    Raises
    ------
    ValueError
        An argument out of range or in contradiction with another, named in the message.

    References
    ----------
    docs/theory.md, "In-context recall".

    Examples
    --------
    >>> import icl_theory as icl
    >>> run = icl.recall.simulate(eta=0.5, counts=icl.recall.Counts.fixed(1))
    >>> run.steps, run.method
    (44, 'closed')
    >>> icl.recall.simulate(eta=0.5, counts=icl.recall.Counts.fixed(1), method="exact").steps
    44
    """
    command = written_call("icl.recall.simulate", simulate, locals())
    eta, max_steps = number("eta", eta), integer("max_steps", max_steps, minimum=1)
    choice("rule", rule, RULES)
    choice("method", method, METHODS)
    given = {
        "V": V, "triggers": triggers, "outputs": outputs, "alpha": alpha, "probs": probs, "counts": counts, "H": H,
    }  # fmt: skip
    task = _task(task, {name: value for name, value in given.items() if value is not None})
    data = None
    if M is not None:
        rng = np.random.default_rng(integer("seed", seed, minimum=0))
        data = task.sentences(rng, integer("M", M, minimum=1))
    risk = RecallRisk(task, attention, gamma, tied=task.alike and data is None, data=data)
    floor = risk.floor()
    if epsilon is None and number("above", above) < VISIBLE * floor:
        raise refuse("above", above, f"at least {VISIBLE:g} of the floor {floor:.6g}, or it is lost in rounding")
    target = floor + above if epsilon is None else number("epsilon", epsilon, minimum=1e-300)
    closed = rule == "ngd" and risk.tied and len(risk.initial) == 1
    if method == "closed" and not closed:
        raise refuse(
            "method",
            method,
            "'auto', 'exact' or 'flow' here; a closed form exists for normalised descent on the population risk"
            " where all triggers are alike and λ alone is trained (linear or ReLU, gamma held or alpha = 0)",
        )
    if closed and method in ("auto", "closed"):
        run = _closed(risk, eta, target, max_steps)
    else:
        run = descend(
            risk, eta, epsilon=target, steps=max_steps, rule=rule, method=method, give_up=True, callback=callback,
        )  # fmt: skip
    run.notes["bayes risk"] = f"{task.bayes_risk:.6g}"
    if data is not None:
        excess = RecallRisk(task, attention, gamma).excess(run.params)
        run.notes["population"] = f"{excess:.6g} above the Bayes risk in the end"
    elif rule == "ngd":
        run.notes |= _in_the_end(risk, eta)
    run.info = {
        "V": task.V, "Q": task.Q, "outputs": len(task.outputs), "eta": eta, "attention": attention,
        "alpha": task.alpha, "probs": None if task.uniform else task.probs.tolist(), "H": task.H, "gamma": gamma,
        "M": M, "seed": None if M is None else seed, "epsilon": target, "rule": rule,
    }  # fmt: skip
    run.command = command
    return run


def _in_the_end(risk: RecallRisk, eta: float) -> dict[str, str]:
    """Say how normalised descent ends, as far as it is known: at a linear rate, or in a cycle."""
    task = risk.task
    if risk.noisy and risk.gamma is None:
        lasting = cycle_excess(task.alpha, eta)
        if abs(stall(task.alpha, eta) - lasting) > 0.1 * lasting:
            return {"cycle": "constant steps in γ: the excess does not tend to 0"}
        return {"cycle": f"constant steps in γ: the excess stays near α(1-α)η²/8 = {stall(task.alpha, eta):.3g}"}
    rate = decay_rate(task, eta, risk.attention)
    if rate >= LARGEST_RATE and not risk.tied:
        return {
            "rate": f"triggers overshoot in turn: the loss falls more slowly than exp(-{rate:.4g} t) in the end"
        }
    above = risk.floor() - task.bayes_risk
    floor = "" if above <= VISIBLE else f" over a floor {above:.3g} above the Bayes risk"
    return {"rate": f"the excess{floor} falls like exp(-{rate:.4g} t) in the end"}


def _task(task: RecallTask | None, given: dict[str, Any]) -> RecallTask:
    if task is None:
        return RecallTask(**(DEFAULTS | given))
    if not isinstance(task, RecallTask):
        raise refuse("task", task, "a RecallTask")
    for name, value in given.items():
        raise refuse(name, value, "left out where a task is given: it carries its own")
    return task


def _closed(risk: RecallRisk, eta: float, epsilon: float, max_steps: int) -> Trajectory:
    """Normalised descent on one number: it moves by η/√Q at every step."""
    step = eta / math.sqrt(risk.task.Q)

    def state(t: int) -> State:
        params = np.array([step * t])
        return State(t, params, risk.evaluate(params)[0], risk.observe(params))

    floor = risk.floor()
    lost = epsilon <= floor  # then stop where `descend` does
    hit = _first_below(lambda t: state(t).loss <= (floor * (1.0 + FLOOR_RTOL) if lost else epsilon))
    last = max_steps if hit is None else min(hit, max_steps)
    reached = hit == last and not lost
    steps = saved_steps(last, 1) if last else np.zeros(1, dtype=np.int64)
    states = [state(int(t)) for t in steps]
    reason = (
        f"reached epsilon = {epsilon:g} at step {hit}"
        if reached
        else f"stagnated at the floor {floor:.6g} > epsilon = {epsilon:g} by step {hit}"
        if hit == last
        else f"took all {last} steps without reaching epsilon = {epsilon:g}"
    )
    return Trajectory(
        t=steps,
        loss=np.array([s.loss for s in states]),
        states=np.stack([s.params for s in states]),
        observed={name: np.stack([s.observed[name] for s in states]) for name in states[0].observed},
        steps=hit if reached else None,
        stop_reason=reason,
        floor=floor,
        method="closed",
        rule="ngd",
        eta=eta,
        epsilon=epsilon,
        error=0.0,
        risk=risk,
        resume=state,
    )


def _first_below(reached: Callable[[int], bool]) -> int | None:
    """First step at which a condition holds that holds from then on; None if not within the range of int64."""
    if reached(0):
        return 0
    low, high = 0, 1
    while not reached(high):
        if high > INT64_MAX // 2:
            return None
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high
