"""Whether an update rule keeps its promises to the engine.

A step must depend on its arguments alone. `check_rule` trains by a plain loop over
`Rule.step`, repeats the steps of this loop in another order, and compares the loop with
a run of the engine. `Rule.init` returns the memory, such as a velocity, before the
first step. `Rule.step` returns the change of the parameters and the memory for the next
step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from icl_theory._validate import Array, argument_error, integer, number
from icl_theory.engine.descent import descend
from icl_theory.engine.risk import Risk
from icl_theory.engine.rules import Rule, is_rule, refuse_reduced
from icl_theory.testing.common import attempt, copied, expect, expect_near, expect_same

# The number of steps for which a run of reduced parameters, each of which stands for
# several equal ones, is compared with a run of all parameters. A wrong rule differs
# within a step or two, so a few are enough.
REDUCED_STEPS = 12

# The largest difference between the changes in a run of reduced parameters and in a run
# of all parameters, divided by 1 plus the size of a change. The two runs add numbers in
# different orders. Rounding is far smaller, and a rule that does not commute with
# reductions differs by far more.
REDUCED = 1e-9

# The largest learning rate in the comparison of these two runs, even if ``eta`` is
# larger. Gradient descent on `GroupedBowl` stays finite at the rate 0.5 but not at 1,
# and momentum makes larger steps.
REDUCED_RATE = 0.1

# The largest difference between the parameters that the loop and the engine reach in a
# short run, divided by 1 plus the size of a parameter. The loop adds changes plainly,
# and the engine adds them with a compensation of rounding errors.
SUM = 1e-12

# The step numbers t with which a step of a skippable rule is repeated: the first step,
# any other early step, and a late one. A schedule or a bias correction would differ
# between them.
STEP_NUMBERS = (0, 7, 10**6)

# How many steps of the run are repeated with the numbers `STEP_NUMBERS`. The first step
# starts with an empty or zero memory, and the later ones with the memory of a step.
RENUMBERED_STEPS = 3


class QuarticBowl(Risk):
    r"""The risk :math:`\sum_i a_i(\tfrac12 x_i^2 + \tfrac14 x_i^4)`, to try rules on.

    Its gradients change along the run and differ from entry to entry, so that a rule
    that mixes up steps or entries is found.
    """

    widths = np.array([[0.2, 0.5], [1.0, 0.05]])  # the factors a_i

    @property
    def initial(self) -> Array:
        """Numbers of both signs, shape (2, 2)."""
        return np.array([[1.0, -0.7], [0.3, 1.5]])

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and gradient."""
        loss = float(np.sum(self.widths * (0.5 * params**2 + 0.25 * params**4)))
        return loss, self.widths * (params + params**3)


class GroupedBowl(Risk):
    r"""A bowl in four numbers; the first three stay equal in training.

    They start at the same value and have the same factor. If ``reduced``, the
    parameters are two numbers. The first of them stands for the three equal numbers:
    its gradient is the sum of their gradients, and its entry of the metric is 3.
    """

    widths = np.array([0.5, 0.5, 0.5, 2.0])  # factors as in `QuarticBowl`
    counts = np.array([3.0, 1.0])  # how many numbers each reduced parameter stands for
    # For each of the four numbers, the index of the reduced parameter that stands for
    # it.
    groups = np.array([0, 0, 0, 1])
    # For each reduced parameter, the index of the first number that it stands for.
    first_of_group = np.array([0, 3])

    def __init__(self, *, reduced: bool) -> None:
        self.reduced = reduced

    @property
    def initial(self) -> Array:
        """The initial parameters: the same point in full and in reduced coordinates."""
        return np.array([1.0, -0.7] if self.reduced else [1.0, 1.0, 1.0, -0.7])

    @property
    def metric(self) -> float | Array:
        """How many of the four numbers each parameter stands for."""
        return self.counts if self.reduced else 1.0

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and gradient."""
        full = params[self.groups] if self.reduced else params
        loss = float(np.sum(self.widths * (0.5 * full**2 + 0.25 * full**4)))
        gradient = self.widths * (full + full**3)
        if self.reduced:
            # The gradients within a group are equal, so their sum is the first of them
            # times their number.
            gradient = gradient[self.first_of_group] * self.counts
        return loss, gradient


class RuleState(NamedTuple):
    """Step number t of a run: its arguments, its change and the memory after it."""

    params: Array
    gradient: Array
    memory: Array
    t: int
    change: Array
    memory_after: Array


def check_rule(
    rule: Rule,
    *,
    risk: Risk | None = None,
    eta: float = 0.1,
    steps: int = 60,
    seed: int = 0,
) -> None:
    """Check that an update rule does everything that the engine relies on.

    Memory and changes are finite float64 arrays of the right shapes. A step changes
    none of its arguments. A step that is repeated, in any order and also by a copy of
    the rule by pickle, returns the same bits as the first time. So a rule fails if it
    keeps something in itself instead of in the memory that it returns. If the rule says
    that runs may skip steps (``Rule.skippable``), its steps do not depend on the step
    number. Training by the engine gives the parameters of a loop over `Rule.step` at
    every step, and `Trajectory.at` returns the same bits as an uninterrupted run. If
    the rule says that it commutes with reductions (``Rule.reducible``), one number that
    stands for three equal numbers changes as each of them would. This property is tried
    on a bowl, and only if no ``risk`` is given.

    Parameters
    ----------
    rule : Rule
        The rule.
    risk : Risk, optional
        The risk that the rule trains; by default a bowl of four numbers.
    eta : float
        Learning rate. It must be so small that the run stays finite.
    steps : int
        Number of steps of the run, at least 10. A rule with a ``horizon`` takes no more
        steps than its horizon.
    seed : int
        Seed of the order in which steps are repeated.

    Raises
    ------
    AssertionError
        Something is wrong; the message says what was expected and what was found.
    ValueError
        An argument is out of range, or the object is not a Rule.

    Examples
    --------
    >>> import numpy as np, icl_theory as icl
    >>> from icl_theory.engine import HeavyBall, Rule
    >>> from icl_theory.testing import check_rule
    >>> check_rule(HeavyBall(0.8))
    >>> class Forgetful(Rule):
    ...     name, velocity = "forgetful", 0.0
    ...     def step(self, risk, params, gradient, eta, memory, t):
    ...         self.velocity = 0.9 * self.velocity + gradient
    ...         return -eta * self.velocity, memory
    >>> check_rule(Forgetful())  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    AssertionError: change in step ..., repeated, entry ...: expected ...
    """
    if not is_rule(rule):
        raise argument_error(
            "rule",
            rule,
            "a Rule (inherit from icl_theory.engine.Rule; define name and step)",
        )
    eta = number("eta", eta)
    # A shorter run would hardly test whether the order of steps matters.
    steps = integer("steps", steps, minimum=10)
    rng = np.random.default_rng(integer("seed", seed, minimum=0))
    uses_bowls = risk is None
    risk = QuarticBowl() if risk is None else risk
    # Refuse a risk that is a reduction if the rule does not commute with reductions.
    refuse_reduced(risk, rule)
    expect(isinstance(rule.name, str) and rule.name, "name", "a text", rule.name)
    if rule.horizon is not None:
        # The horizon is the step from which the learning rate is zero. The engine ends
        # a run there.
        steps = min(steps, rule.horizon)
    # `_step` raises an error for numbers that are not finite, so NumPy need not warn.
    with np.errstate(over="ignore", invalid="ignore"):
        states = _loop(rule, risk, eta, steps)
    shuffled = [states[i] for i in rng.permutation(len(states))]
    _repeat(rule, risk, eta, shuffled)
    pickled = attempt("copy of the rule by pickle", copied, rule)
    _repeat(pickled, risk, eta, states)
    if rule.skippable:
        _independent_of_time(rule, risk, eta, states)
    _as_trained(rule, risk, eta, states)
    if uses_bowls and rule.reducible:
        _commutes_with_reductions(
            rule, min(eta, REDUCED_RATE), min(steps, REDUCED_STEPS)
        )


def _commutes_with_reductions(rule: Rule, eta: float, steps: int) -> None:
    """Compare training of reduced parameters with training of all parameters.

    A reduced parameter stands for equal numbers, and must change as each of them does.
    """
    full = _loop(rule, GroupedBowl(reduced=False), eta, steps)
    reduced = _loop(rule, GroupedBowl(reduced=True), eta, steps)
    for state, reduced_state in zip(full, reduced, strict=True):
        expected = state.change[GroupedBowl.first_of_group]
        expect_near(
            expected,
            reduced_state.change,
            REDUCED * (1.0 + np.abs(expected)),
            f"change of reduced parameters in step {state.t} (divide gradients by"
            " risk.metric, or set reducible = False)",
            "that of all parameters",
        )


def _loop(rule: Rule, risk: Risk, eta: float, steps: int) -> list[RuleState]:
    """Train by a plain loop, and return the arguments and results of each step."""
    params = np.array(risk.initial, dtype=float)
    memory: Any = attempt("init", rule.init, risk, params)
    expect(
        isinstance(memory, np.ndarray) and memory.dtype == float,
        "init",
        "an array of float64",
        memory,
    )
    states: list[RuleState] = []
    for t in range(steps):
        _, raw_gradient = risk.evaluate(params, t)
        gradient = np.asarray(raw_gradient, dtype=float)
        change, memory_after = _step(rule, risk, eta, params, gradient, memory, t)
        states.append(RuleState(params, gradient, memory, t, change, memory_after))
        params = params + change
        memory = memory_after
    return states


def _step(
    rule: Rule,
    risk: Risk,
    eta: float,
    params: Array,
    gradient: Array,
    memory: Array,
    t: int,
) -> tuple[Array, Array]:
    """Take a step, and return the change of the parameters and the next memory.

    Both results must be finite float64 arrays of the right shapes, and the step must
    not have changed its arguments. The risk and the step number t are passed on to the
    rule.
    """
    arguments = {"params": params, "gradient": gradient, "memory": memory}
    before = {name: value.copy() for name, value in arguments.items()}
    returned: Any = attempt(
        f"step {t}", rule.step, risk, params, gradient, eta, memory, t
    )
    expect(
        isinstance(returned, tuple) and len(returned) == 2,
        f"step {t}",
        "a change and a memory",
        returned,
    )
    for name, value in before.items():
        expect_same(value, arguments[name], f"argument {name} after step {t}")
    change, memory_after = map(np.asarray, returned)
    _finite(change, params.shape, f"change in step {t}")
    _finite(memory_after, memory.shape, f"memory in step {t}")
    return change, memory_after


def _finite(value: Array, shape: tuple[int, ...], subject: str) -> None:
    """Check that a result of a step is a finite float64 array of the given shape."""
    expect(value.shape == shape, subject, f"an array of shape {shape}", value.shape)
    expect(value.dtype == float, subject, "float64", value.dtype)
    expect(np.isfinite(value).all(), subject, "finite numbers", value)


def _repeat(rule: Rule, risk: Risk, eta: float, states: list[RuleState]) -> None:
    """Repeat the steps in ``states``: each must return what it returned the first time.

    The changes and memories must agree in every bit.
    """
    for state in states:
        change, memory_after = _step(
            rule, risk, eta, state.params, state.gradient, state.memory, state.t
        )
        expect_same(state.change, change, f"change in step {state.t}, repeated")
        expect_same(
            state.memory_after,
            memory_after,
            f"memory after step {state.t}, repeated",
        )


def _independent_of_time(
    rule: Rule, risk: Risk, eta: float, states: list[RuleState]
) -> None:
    """Check that a rule whose runs may skip steps ignores the step number.

    The memory of such a rule must be empty or have the shape of the parameters. A rule
    with a memory must have a Jacobian, from which skipping computes many steps at once.
    """
    memory = states[0].memory
    shape = states[0].params.shape
    if memory.size:
        expect(
            memory.shape == shape,
            "memory of a skippable rule",
            f"an array of shape {shape}",
            memory.shape,
        )
        # The Jacobian of a step along an eigenvector of the Hessian is a 2 × 2 matrix,
        # for the parameter and its memory. The method takes an array of rates, which
        # are products of the learning rate and an eigenvalue. Here the only rate is 0.
        rates = np.zeros(1)
        jacobian: Any = attempt("jacobian", rule.jacobian, rates, eta)
        expect(
            np.shape(jacobian) == (1, 2, 2),
            "jacobian of a skippable rule",
            "an array of shape (1, 2, 2)",
            jacobian,
        )
    for state in states[:RENUMBERED_STEPS]:
        for t in STEP_NUMBERS:
            change, memory_after = rule.step(
                risk, state.params, state.gradient, eta, state.memory, t
            )
            subject = f"of a skippable rule in step {state.t}, asked for as step {t}"
            expect_same(state.change, change, f"change {subject}")
            expect_same(state.memory_after, memory_after, f"memory {subject}")


def _as_trained(rule: Rule, risk: Risk, eta: float, states: list[RuleState]) -> None:
    """Compare the engine's run with the loop, and with shorter runs of the engine.

    The run saves only some of its steps, and ``run.at(t)`` continues from a saved step
    to step t. The result must have the same bits as a run that ends at step t.
    """
    last = len(states)
    # With ``give_up=False`` the run takes all steps, even if its loss has settled.
    run: Any = attempt(
        "training", descend, risk, eta, steps=last, rule=rule, give_up=False
    )
    for state in states:
        trained = attempt(f"state at step {state.t}", run.at, state.t).params
        allowed = SUM * (1.0 + np.abs(state.params))
        expect_near(
            state.params,
            trained,
            allowed,
            f"parameters at step {state.t}",
            "the parameters of a loop over step",
        )
    for t in range(1, last + 1):
        shorter = descend(risk, eta, steps=t, rule=rule, give_up=False)
        expect_same(
            shorter.params,
            run.at(t).params,
            f"parameters at step {t}, taken up from a saved step",
        )
