"""Whether a family keeps its promises to sweeps, tables, plots, reports and commands.

`check_family` checks one problem of the family, that is one choice of its parameters.
Each promise has a function here or, if it concerns an optional slot, in `slots`. A slot
is an attribute or method of `Family` that a family may define. `attempt` turns an
exception of a call into an AssertionError, and `expect` raises one unless a condition
holds.
"""

from __future__ import annotations

import inspect
import json
import math
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from threadpoolctl import threadpool_limits

from icl_theory._validate import Array
from icl_theory.engine.comparison import Power, compare, detectable
from icl_theory.engine.descent import descend
from icl_theory.engine.risk import Risk
from icl_theory.engine.rules import rule_of
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families import Family, Number, Object, Parameter, Whole, Word
from icl_theory.families.registry import sound
from icl_theory.families.saved import loaded as load
from icl_theory.sweeps.grid import (
    FAILED,
    MESSAGE,
    NOT_REACHED,
    REACHED,
    STATUS,
    Column,
    blank,
)
from icl_theory.sweeps.sweep import sweep
from icl_theory.testing.common import attempt, copied, expect, expect_same, same
from icl_theory.testing.risks import check_risk, evaluated
from icl_theory.testing.slots import check_claims, check_slots

# The roles that a column of a sweep may have. Tables and figures choose columns by
# their roles, so a column of any other role would never be shown.
ROLES = ("steps", "phase", "word", "verdict", "predicted", "boundary", "set", "detail")
# A run that skips steps or has a closed form finds its target only to the accuracy of
# the method. Its last loss may exceed the target by this share of the target. The value
# is not derived: the errors of all families of the package are below it.
TARGET_TOLERANCE = 1e-6
# A batch computes many points of a sweep together, and may add floats in another order
# than a simulation. The results of a batch and of a simulation may have this relative
# difference, which is far above rounding and far below the error of a wrong formula.
BATCH_TOLERANCE = 1e-9
# The second of the two learning rates in a sweep, as a share of the first. Any share
# below 1 would do, but a smaller one makes the second run longer.
SECOND_RATE = 0.8
# A count of steps must be exact if its estimated error, in steps, is at most this. With
# a smaller limit more wrong counts would pass. With a larger limit more sound counts
# would fail, because their error changes the rounding to an integer.
CERTAIN_ERROR = 0.1
# The number of prompts in a large batch, divided by the number in a small one. The mean
# losses of large batches should scatter less by the factor 4, the square root of this.
BATCH_RATIO = 16
# Losses that scatter by less than this share of themselves differ by rounding only.
ROUNDING_SCATTER = 1e-12


def check_family(
    family: type[Family], /, *, rows: bool = True, **parameters: Any
) -> Power | None:
    r"""Check that one problem of a family does everything that the package relies on.

    Parameters are declared, defaults are sound, and a value of a wrong type raises a
    ValueError that names its parameter. The risk passes `check_risk` along a run and
    beside it. A run reaches its target or says why not. It has the same bits when it is
    repeated, and when it is saved and loaded. Each measured quantity has a column that
    can hold it. A sweep over two learning rates has the bits of two runs. If the family
    computes points together (`Family.batched`), floats need to agree only to
    :math:`10^{-9}`. A closed form agrees with single steps, and a trainer on samples
    agrees with the risk. Every other slot gives what the reference of `Family` says.

    Parameters
    ----------
    family : type
        The family.
    rows : bool
        Whether to check the claims, too: measure the rows, answer the questions and
        make the comparison of the slot ``claims``, in their quick versions.
    **parameters
        Parameters of a small problem, which is simulated several times.

    Returns
    -------
    Power or None
        The errors of a trainer on samples that this check finds nine times in ten: a
        common factor on all losses, and one on all gradients. None for a problem
        without such a trainer, and for training on a fixed set of prompts.

    Raises
    ------
    AssertionError
        Something is wrong; the message names the slot and says what was expected and
        what was found.

    Notes
    -----
    A closed form is compared with up to 20,000 single steps. Its number of steps to the
    target must agree within the run's ``error`` less 0.1, rounded up, and its states to
    :math:`10^{-9}` of the largest parameter.

    The trainer's 64 batches of 1024 prompts give mean losses, and mean gradients along
    the exact gradient and a random direction, at both ends of the run. Each is compared
    with its exact value by Student's t with 63 degrees of freedom. The limit is such
    that at most one in a thousand sound trainers fails any of these six comparisons.
    The seed is fixed, so a check that passes once always passes. A bias of 5.3 standard
    errors is found nine times in ten. If the losses of prompts have a standard
    deviation as large as their mean, that is 2.1 % of the mean, for the 65,536 prompts
    in all. The mean losses of batches of 1024 must scatter less than half as much as
    the mean losses of batches that are 16 times smaller.

    If the risk is a reduction, with fewer parameters than the trainer, risk and trainer
    are compared only at their initial parameters: by the loss, and by the squared norm
    of the gradient. Each norm is taken in the metric of its own parameters. The
    trainer's squared norm is computed from products of the gradients of two batches.

    The learning rate of `Family.stable_rate` must not raise the loss in any of 200
    steps of plain gradient descent, and must not exceed 2/sharpness at the end of the
    run.

    Examples
    --------
    >>> import icl_theory as icl
    >>> from icl_theory.testing import check_family
    >>> problem = {"L": 2.0, "delta": 1.0, "eta": 4.0, "K": 4, "N": 20, "above": 1e-2}
    >>> power = check_family(icl.Regression, **problem, rows=False)
    >>> power.loss < 0.1
    True
    >>> check_family(icl.Recall, counts=0)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    AssertionError: the problem: ..., found ValueError: counts = 0: must be an ...
    """
    attempt("the family", sound, family)
    problem = attempt("the problem", family, **parameters)
    attempt("parameters", _parameters, family, parameters)
    attempt("parameters", _problem, problem)
    risk: Any = attempt("risk", problem.trained_risk)
    expect(isinstance(risk, Risk), "risk", "a Risk", risk)
    # The order in which BLAS adds depends on the number of its threads. A sweep uses
    # one, so a run must use one, too, to have the same bits.
    with threadpool_limits(limits=1):
        run = attempt("simulate", _run, problem)
        middle = run.states[len(run.t) // 2]
        end = run.states[-1]
        check_risk(risk, points=[middle, end, _beside(risk.initial)])
        attempt("columns", _columns, problem, run)
        # Slots are about half the mean squared error. `Family.half` is the same
        # training with this loss.
        half = problem.half
        half_run = run if half is problem else attempt("simulate", half.simulate)
        attempt("slots", check_slots, half, half_run)
        attempt("sweep", _sweep, problem, parameters)
        attempt("closed form", _closed_form, half)
        attempt("saved run", _saved, problem, run)
        power = attempt("slot sampled", _sampled, problem, run)
        if rows:
            attempt("claims", check_claims, family, half_run)
        return power


def _beside(start: ArrayLike, deviation: float = 0.5) -> Array:
    """Return the start plus normal numbers with the standard deviation ``deviation``.

    The default is the spread of random points in `check_risk`.
    """
    # The seed is fixed, so that a check has the same outcome each time.
    rng = np.random.default_rng(0)
    return np.asarray(start) + deviation * rng.normal(size=np.shape(start))


def _parameters(family: type[Family], arguments: Mapping[str, Any]) -> None:
    """Check each parameter's default, and that it refuses values of wrong types.

    ``arguments`` are the parameters of a sound problem. `Parameter.check` returns the
    value in the form in which a problem keeps it.
    """
    for name, declared in family.parameters().items():
        subject = f"parameter {name} of {family.__name__}"
        expect(
            declared.meaning.strip(),
            f"meaning of {subject}",
            "a few words",
            declared.meaning,
        )
        if not declared.required:
            value = attempt(f"default of {subject}", declared.check, declared.default)
            # A checked value must pass the check unchanged, because copying a problem
            # checks its values once more.
            checked_again = declared.check(value)
            # Identity comes first: the equality of arrays has no single truth value.
            expect(
                value is checked_again or value == checked_again,
                f"{subject}, checked twice",
                f"the same, {value!r}",
                checked_again,
            )
        for wrong in _wrong_values(declared):
            subject = f"{family.__name__}(..., {name}={wrong!r})"
            _refused(name, subject, family, **{**arguments, name: wrong})


def _refused(
    name: str,
    subject: str,
    function: Callable[..., object],
    /,
    *args: Any,
    **arguments: Any,
) -> None:
    """Check that a call raises a ValueError that names the parameter ``name``.

    The slash allows arguments of any names in the call, such as ``name``.
    """
    try:
        function(*args, **arguments)
    except ValueError as error:
        expect(
            name in str(error), subject, f"a ValueError that names {name}", str(error)
        )
    except Exception as error:
        raise AssertionError(
            f"{subject}: expected a ValueError, found {type(error).__name__}: {error}"
        ) from error
    else:
        expect(False, subject, f"a ValueError that names {name}", "none")


def _wrong_values(declared: Parameter) -> list[Any]:
    """Return values that a parameter of this kind must refuse."""
    wrong = _wrong_scalars(declared)
    if declared.kind.arrays:
        # Such a parameter takes an array, here with the one entry NaN, or the name of a
        # file with an array.
        wrong += [[[math.nan]], "no such file.npy"]
    return wrong


def _wrong_scalars(declared: Parameter) -> list[Any]:
    """Return single values that a parameter of this kind must refuse."""
    # True is wrong for a number, although Python counts it as the integer 1.
    if isinstance(declared.kind, Whole):
        return ["no number", math.nan, True, object(), 0.5]
    if isinstance(declared.kind, Number):
        return ["no number", math.nan, True, object()]
    if isinstance(declared.kind, Word):
        return ["no such word", 1.5, object()]
    if isinstance(declared.kind, Object):
        return [object(), 1.5]
    return [object()]


def _problem(problem: Family) -> None:
    """Check copies of a problem, and that two targets and unknown names are refused."""
    family = type(problem)
    arguments = problem.arguments()
    unchanged = attempt("changed() without changes", problem.changed)
    expect(
        _equal(arguments, unchanged.arguments()),
        "parameters after changed()",
        arguments,
        unchanged.arguments(),
    )
    copy = attempt("pickle, by which a problem is sent to workers", copied, problem)
    copied_arguments = copy.arguments()
    # Only the names are compared: an object among the values need not equal its copy.
    expect(
        arguments.keys() == copied_arguments.keys(),
        "parameters of a copy by pickle",
        arguments,
        copied_arguments,
    )
    # A target is a loss, ``epsilon``, or an excess of the loss over its floor,
    # ``above``.
    two_targets = {**arguments, "epsilon": 1.0, "above": 1.0}
    subject = f"{family.__name__} with epsilon and above"
    _refused("above", subject, family, **two_targets)
    unknown = "no_such_parameter"
    subject = f"{family.__name__} with {unknown}"
    _refused(unknown, subject, family.refuse_unknown, [unknown])


def _equal(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Return whether two mappings have equal values under equal names."""
    if first.keys() != second.keys():
        return False
    # Families of this package have no arrays among their arguments, because parameters
    # of arrays become nested tuples. Another family may keep NaN, which does not equal
    # itself, or an array, which == compares entry by entry. So identity is tested
    # first. For two different arrays of several entries, all() raises a ValueError, and
    # then the check fails as it should.
    return all(
        value is second[name] or value == second[name] for name, value in first.items()
    )


def _run(problem: Family) -> Trajectory:
    """Return a run; check its attributes, and that a second run has the same bits."""
    run = attempt("simulate", problem.simulate)
    _steps_and_losses(run)
    _information(problem, run)
    _phases(problem, run)
    expect(
        run.regime is None or isinstance(run.regime, str),
        "regime",
        "a word or None",
        run.regime,
    )
    again = attempt("simulate", problem.simulate)
    for name in ("t", "loss", "states", "observed", "steps"):
        expect_same(
            getattr(run, name),
            getattr(again, name),
            f"{name} of the run, simulated twice",
        )
    return run


def _steps_and_losses(run: Trajectory) -> None:
    """Check the saved steps, their losses, and the loss at the target.

    ``run.epsilon`` is the target, whether it was given as such or above the floor.
    """
    expect(np.isfinite(run.loss).all(), "losses of the run", "finite numbers", run.loss)
    expect(
        run.t[0] == 0 and (np.diff(run.t) > 0).all(),
        "saved steps",
        "increasing ones that begin with 0",
        run.t,
    )
    expect(
        run.stop_reason.strip(), "why the run stopped", "a sentence", run.stop_reason
    )
    if run.converged:
        # Skipping and closed forms find the target to their accuracy.
        tolerance = 0.0 if run.method == "exact" else TARGET_TOLERANCE
        limit = run.epsilon * (1.0 + tolerance)
        expect(
            run.loss[-1] <= limit,
            "loss at the target",
            f"at most {run.epsilon!r}",
            run.loss[-1],
        )


def _information(problem: Family, run: Trajectory) -> None:
    """Check that the names in ``run.info`` are parameters, and have labels."""
    unknown = run.info.keys() - problem.parameters().keys()
    expect(not unknown, "names in run.info", "parameters of the family", unknown)
    expect(
        run.info.keys() <= run.labels.keys(),
        "labels",
        f"one for each of {[*run.info]}",
        [*run.labels],
    )


def _phases(problem: Family, run: Trajectory) -> None:
    """Check that phases are declared, within the run, and in their order.

    ``phases.present()`` has the first and the last step of each phase by its name.
    """
    present = {} if run.phases is None else run.phases.present()
    expect(
        present.keys() <= set(problem.phase_names),
        "phases",
        f"among {problem.phase_names}",
        [*present],
    )
    # A phase begins where the previous one ends, or later.
    end_of_previous = 0
    for name in problem.phase_names:
        if name not in present:
            continue
        first, last = present[name]
        inside = 0 <= first <= last <= int(run.t[-1])
        expect(
            inside,
            f"phase {name}",
            f"an interval within 0 to {run.t[-1]}",
            (first, last),
        )
        expect(
            first >= end_of_previous,
            f"phase {name}",
            f"one that begins where those before it end, {end_of_previous}",
            (first, last),
        )
        end_of_previous = last


def _columns(problem: Family, run: Trajectory) -> None:
    """Check the declared columns, and that they can hold the measured values.

    `Family.measured` returns a value for each column, and also the status and the
    message that every sweep has for a point.
    """
    columns = problem.every_column()
    names = [column.name for column in columns]
    expect(len(set(names)) == len(names), "names of columns", "each once", names)
    measured: Any = attempt("measure", problem.measured, run)
    unknown = sorted(measured.keys() - {*names, STATUS.name, MESSAGE.name})
    expect(
        not unknown,
        "columns that are measured",
        "those declared",
        f"also {', '.join(unknown)}",
    )
    status = measured[STATUS.name]
    expect(
        status in (REACHED, NOT_REACHED),
        "status",
        f"{REACHED!r} or {NOT_REACHED!r}",
        status,
    )
    for column in columns:
        expect(
            column.description,
            f"description of column {column.name}",
            "a few words",
            column.description,
        )
        expect(
            column.role in ROLES,
            f"role of column {column.name}",
            f"one of {', '.join(ROLES)}",
            column.role,
        )
        # A column that only other problems of the family use has no value.
        if column.name in measured:
            _value(column, measured[column.name])


def _value(column: Column, value: Any) -> None:
    """Check that a column can hold a measured value."""
    subject = f"column {column.name}, of dtype {column.dtype}"
    # The dtype is a letter and a size, such as "f8", "i8" or "U12"; "O" is a text of
    # any length.
    kind = column.dtype[0]
    size = column.dtype[1:]
    if kind == "f":
        expect(isinstance(value, int | float | np.number), subject, "a number", value)
    elif kind == "i":
        # Python counts True and False as integers.
        is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
        expect(is_integer, subject, "an integer", value)
    else:
        longest = int(size) if size else math.inf
        fits = isinstance(value, str) and len(value) <= longest
        expect(fits, subject, "a text that it can hold", value)


def _sweep(problem: Family, parameters: Mapping[str, Any]) -> None:
    """Compare a sweep over two learning rates with two simulations.

    The problem was made from ``parameters``.
    """
    rates = [problem.rate(), SECOND_RATE * problem.rate()]
    # Each access to a class method makes a new object, so compare the definitions.
    batched = inspect.getattr_static(type(problem), "batched")
    has_batches = batched is not inspect.getattr_static(Family, "batched")
    swept = {**parameters, "eta": rates}
    dataset = attempt("sweep", sweep, type(problem), progress=False, **swept)
    for i, rate in enumerate(rates):
        point = problem.changed(eta=rate)
        simulated = point.measured(point.simulate())
        status = str(dataset[STATUS.name].values[i])
        message = str(dataset[MESSAGE.name].values[i])
        expect(
            status != FAILED,
            f"sweep at eta = {rate!r}",
            "a point that does not fail",
            message,
        )
        for column in (*problem.every_column(), STATUS, MESSAGE):
            value = dataset[column.name].values[i]
            # The column stores a missing value for this point, unless the simulation
            # measured a value. The dtype of the column may round a measured value.
            stored = blank((column,), 1)[column.name]
            if column.name in simulated:
                stored[0] = simulated[column.name]
            subject = f"column {column.name} of a sweep at eta = {rate!r}"
            agrees = same(np.array([value], dtype=column.dtype), stored)
            # A family that computes points together may step by another scheme than a
            # simulation. A point in closed form takes no steps, so the sweep must have
            # the bits of the simulation, as in columns of integers and texts.
            if has_batches and column.dtype == "f8" and simulated["method"] != "closed":
                is_near = bool(
                    np.isclose(value, stored[0], rtol=BATCH_TOLERANCE, atol=0.0)
                )
                # The estimated error of the count of steps depends on the scheme.
                agrees = agrees or column.name == "error" or is_near
            expect(agrees, subject, f"that of a simulation, {stored[0]!r}", value)


def _closed_form(
    problem: Family, exact_steps: int = 20_000, tolerance: float = 1e-9
) -> None:
    """Compare a closed form with at most ``exact_steps`` single steps.

    By default the steps take a second or two. States may differ by ``tolerance`` times
    the largest parameter: far more than the rounding of so many steps, and far less
    than the error of a wrong formula.
    """
    risk = problem.trained_risk()
    rate = problem.rate()
    rule = attempt("slot update", problem.update)
    form = attempt("closed_form", risk.closed_form, rate, rule_of(rule))
    if form is None:
        return
    goal: dict[str, Any] = {"epsilon": problem.epsilon, "above": problem.above}
    closed = descend(risk, rate, **goal, rule=rule, method="closed")
    last = int(closed.t[-1])
    exact = descend(
        risk,
        rate,
        **goal,
        rule=rule,
        method="exact",
        # Take two more steps than the closed form, whose count may be too small by one
        # or two.
        steps=min(last + 2, exact_steps),
    )
    # The exact run may have gone beyond the last step of the closed form.
    common_steps = exact.t[exact.t <= last]
    closed_states = form.states(common_steps)
    exact_states = exact.states[: len(common_steps)]
    distance = float(np.abs(closed_states - exact_states).max())
    scale = float(np.abs(exact_states).max())
    expect(
        distance <= tolerance * scale,
        "states in closed form",
        f"those of single steps to {tolerance * scale:.1g}",
        f"{distance:.1g} off",
    )
    # The single steps are cut at ``exact_steps``, so a number of steps to the target
    # beyond this limit cannot be compared.
    if last + 2 <= exact_steps:
        _same_count(closed, exact)


def _same_count(closed: Trajectory, exact: Trajectory) -> None:
    """Compare the number of steps to the target in closed form with the exact one."""
    # ``error`` is None if the count has no error. Otherwise the count may be off by the
    # error minus `CERTAIN_ERROR`, rounded up. So with a small error it must be exact.
    estimated_error = closed.error or 0.0
    allowed = math.ceil(max(0.0, estimated_error - CERTAIN_ERROR))
    if closed.steps is None or exact.steps is None:
        # A count of None means that the run ended above its target.
        agrees = closed.steps == exact.steps
    else:
        agrees = abs(closed.steps - exact.steps) <= allowed
    expect(
        agrees,
        "steps in closed form",
        f"{exact.steps} (error {closed.error})",
        closed.steps,
    )


def _saved(problem: Family, run: Trajectory) -> None:
    """Check that a run is the same after it was saved and loaded."""
    attempt("the run as JSON", lambda: json.dumps(run.to_dict(), allow_nan=False))
    attempt("the run as a dataset", run.to_xarray)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.npz"
        attempt("save", run.save, path)
        # A file has the name of the family, and `load` asks this function for the
        # family. So the family need not be registered under its name yet.
        loaded_run = attempt("load", load, path, lambda name: type(problem))
    _same_run(run, loaded_run)
    # `plain` is None if a parameter is an object that a file cannot hold. Then the file
    # does not say what was trained.
    if problem.plain() is not None:
        _same_problem(problem, run, loaded_run)


def _same_run(run: Trajectory, loaded_run: Trajectory) -> None:
    """Compare a run with the same run after it was saved and loaded."""
    loaded = "a run that was saved and loaded"
    for name in ("t", "loss", "states", "observed"):
        expect_same(
            getattr(run, name), getattr(loaded_run, name), f"{name} of {loaded}"
        )
    for name in (
        "steps",
        "stop_reason",
        "phases",
        "regime",
        "notes",
        "error",
        "epsilon",
        "eta",
    ):
        before = getattr(run, name)
        after = getattr(loaded_run, name)
        expect(before == after, f"{name} of {loaded}", repr(before), repr(after))
    facts = run.facts()
    loaded_facts = loaded_run.facts()
    expect(facts == loaded_facts, f"summary of {loaded}", facts, loaded_facts)


def _same_problem(problem: Family, run: Trajectory, loaded_run: Trajectory) -> None:
    """Check that a loaded run knows its problem, and can compute further steps."""
    loaded = "a run that was saved and loaded"
    expect(loaded_run.family is not None, f"problem of {loaded}", "the same", "none")
    arguments = problem.arguments()
    loaded_arguments = loaded_run.family.arguments()
    expect(
        _equal(arguments, loaded_arguments),
        f"problem of {loaded}",
        arguments,
        loaded_arguments,
    )
    # For a step that is not saved, `at` computes the state again from the problem.
    # Compare the first such step.
    saved_steps = set(run.t.tolist())
    t = 0
    while t in saved_steps:
        t += 1
    state = attempt(f"step {t} of a run", run.at, t)
    loaded_state = attempt(f"step {t} of {loaded}", loaded_run.at, t)
    expect_same(
        state.params, loaded_state.params, f"parameters at step {t} of {loaded}"
    )


def _sampled(
    problem: Family, run: Trajectory, batch: int = 1024, batches: int = 64
) -> Power | None:
    """Check the trainer on samples, if there is one, at both ends of a run.

    Losses and gradients of ``batches`` batches of ``batch`` prompts are compared by
    Student's t with the loss and the gradient of the risk.
    """
    # The run minimises the loss of a fixed set of prompts, but a trainer draws new
    # prompts. To check the trainer, check the same problem without a fixed set.
    if problem.on_fixed_set:
        return None
    try:
        small_batch_trainer = problem.sampled(batch // BATCH_RATIO, 0)
    except ValueError:
        # The problem has no trainer, for instance because its prompts are infinitely
        # long.
        return None
    expect(
        isinstance(small_batch_trainer, Risk), "sampled", "a Risk", small_batch_trainer
    )
    check_risk(small_batch_trainer)
    trainer = problem.sampled(batch, 0)
    random_point = _beside(trainer.initial)
    _seeds(problem, trainer, random_point, batch)
    if trainer.stochastic:
        _scatter(small_batch_trainer, trainer, random_point, batches)
    points = {
        "the beginning": np.array(problem.risk().initial),
        "the end": run.states[-1],
    }
    checks = compare(problem.risk(), trainer, points, batches)
    for check in checks:
        expected = (
            f"{check.population:.6g} within {check.limit:.2f} standard errors of"
            f" {check.standard_error:.2g}"
        )
        expect(check.passed, f"sampled {check.name}", expected, f"{check.sampled:.6g}")

    def smallest_error(quantity: str) -> float:
        """Return the smallest relative error that some check of a quantity finds.

        ``quantity`` is a word in the names of its checks, "loss" or "gradient".
        """
        of_quantity = [check for check in checks if quantity in check.name]
        # Student's t of a mean over batches has one degree of freedom less than there
        # are batches.
        return min(detectable(check, batches - 1) for check in of_quantity)

    return Power(smallest_error("loss"), smallest_error("gradient"))


def _seeds(problem: Family, trainer: Risk, random_point: Array, batch: int) -> None:
    """Check that two trainers agree to the bit if, and only if, their seeds are equal.

    ``trainer`` is ``problem.sampled(batch, 0)``.
    """
    same_seed = problem.sampled(batch, 0)
    other_seed = problem.sampled(batch, 1)
    places = {"the initial point": trainer.initial, "a random point": random_point}
    for where, params in places.items():
        loss, gradient = evaluated(trainer, params, 0, where)
        loss_again, gradient_again = same_seed.evaluate(params)
        of_one_seed = f"at {where} of two trainers of one seed"
        expect_same(loss, loss_again, f"loss {of_one_seed}")
        expect_same(gradient, gradient_again, f"gradient {of_one_seed}")
    if trainer.stochastic:
        # It is enough that the trainers differ at one of the two points, because all
        # data may have the same loss at the initial point.
        expect(
            any(_differ(trainer, other_seed, params) for params in places.values()),
            "losses and gradients of trainers of two seeds",
            "different ones",
            "the same",
        )


def _differ(first: Risk, second: Risk, params: Array) -> bool:
    """Return whether two risks have different losses or gradients at a point."""
    loss, gradient = first.evaluate(params)
    second_loss, second_gradient = second.evaluate(params)
    return not (same(loss, second_loss) and same(gradient, second_gradient))


def _scatter(small: Risk, large: Risk, params: Array, batches: int) -> None:
    """Check that losses of 16 times larger batches scatter less than half as much.

    The trainers ``small`` and ``large`` draw batches; those of ``large`` have
    ``BATCH_RATIO`` times as many prompts, so the expected ratio of the standard
    deviations is 1/4. The limit is 1/2, because each standard deviation is only
    estimated, from ``batches`` losses.
    """

    def scatter(trainer: Risk) -> float:
        """Return the standard deviation of the losses of a trainer's batches."""
        losses = []
        for step in range(batches):
            loss, _ = trainer.evaluate(params, step)
            losses.append(loss)
        return float(np.std(losses))

    small_batch_scatter = scatter(small)
    large_batch_scatter = scatter(large)
    loss, _ = large.evaluate(params)
    # If all losses are the same up to rounding, there is no ratio to check.
    if small_batch_scatter > ROUNDING_SCATTER * abs(loss):
        expect(
            large_batch_scatter < small_batch_scatter / 2.0,
            "scatter of the loss of large batches",
            f"about {small_batch_scatter / 4.0:.2g}, a quarter of that of batches a"
            " sixteenth as large",
            large_batch_scatter,
        )
