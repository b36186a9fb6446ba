"""Whether a family keeps its promises to sweeps, tables, plots, reports and commands.

`check_family` checks one problem of the family, one function for each promise.
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
from icl_theory.families import Family, Number, Object, Parameter, Whole, Word, sound
from icl_theory.families.saved import loaded as load
from icl_theory.sweeps.grid import FAILED, MESSAGE, NOT_REACHED, REACHED, STATUS, blank
from icl_theory.sweeps.sweep import sweep
from icl_theory.testing.common import attempt, copied, expect, expect_same, same
from icl_theory.testing.risks import check_risk, evaluated
from icl_theory.testing.slots import check_claims, check_slots

ROLES = ("steps", "phase", "word", "verdict", "predicted", "boundary", "detail")


def check_family(
    family: type[Family], /, *, rows: bool = True, **parameters: Any
) -> Power | None:
    r"""Check that one problem of a family does everything that the package relies on.

    Parameters are declared, defaults are sound, and a value of a wrong type is a
    ValueError that names its parameter. The risk passes `check_risk` along a run and
    beside it. A run reaches its target or says why not, and has the same bits twice,
    and when it is saved and loaded. Each measured quantity has a column that can hold
    it. A sweep over two learning rates has the bits of two runs, or their integers and
    words if it is a batch. A closed form agrees with single steps, a trainer on samples
    with the risk. Every other slot gives what it should.

    Parameters
    ----------
    family : type
        The family.
    rows : bool
        Whether to measure the rows, answer the questions and make the comparison of the
        family, too, in their quick versions.
    **parameters
        Parameters of a small problem, which is simulated several times.

    Returns
    -------
    Power or None
        The common factors on all losses, or on all gradients, of a trainer on samples
        that would be found nine times in ten; None for a problem without such a
        trainer.

    Raises
    ------
    AssertionError
        Something is wrong; the message names the slot and says what was expected and
        what was found.

    Notes
    -----
    A closed form must have the number of single steps within the run's ``error``, and
    their states to :math:`10^{-9}` of the largest parameter, in the first 20,000 steps.

    The trainer's 64 batches of 1024 give mean losses and mean gradients along the exact
    gradient and a random direction, at both ends of the run. Each is compared with its
    exact value by Student's t with 63 degrees of freedom, at a limit that one in a
    thousand checks of sound trainers exceeds, all six comparisons together. The seed is
    fixed, so a check that passes once always passes. If the risk is a reduction of the
    trainer, the squared norm of the gradient at the beginning is compared instead, in
    the metric of each, from products of the gradients of two batches. A bias of 5.3
    standard errors is found nine times in ten: 2.1 % of a loss that scatters by as much
    as its mean. Losses of 16 times larger batches must scatter less than half as much.

    With plain gradient descent a stable rate must lower the loss in each of 200 steps,
    and must not exceed 2/sharpness at the end of the run.

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
    risk: Any = attempt("risk", problem.risk)
    expect(isinstance(risk, Risk), "risk", "a Risk", risk)
    # the order in which BLAS adds depends on its threads, and a sweep uses one
    with threadpool_limits(limits=1):
        run = attempt("simulate", _run, problem)
        check_risk(
            risk,
            points=[run.states[len(run.t) // 2], run.states[-1], _beside(risk.initial)],
        )
        attempt("columns", _columns, problem, run)
        attempt("slots", check_slots, problem, run)
        attempt("sweep", _sweep, problem, parameters)
        attempt("closed form", _closed_form, problem)
        attempt("saved run", _saved, problem, run)
        power = attempt("slot sampled", _sampled, problem, run)
        if rows:
            attempt("claims", check_claims, family, run)
        return power


def _beside(start: ArrayLike, deviation: float = 0.5) -> Array:
    """Return a random point at some standard deviation from the start."""
    return np.asarray(start) + deviation * np.random.default_rng(0).normal(
        size=np.shape(start)
    )


def _parameters(family: type[Family], given: Mapping[str, Any]) -> None:
    for name, declared in family.parameters().items():
        what = f"parameter {name} of {family.__name__}"
        expect(
            declared.meaning.strip(),
            f"meaning of {what}",
            "a few words",
            declared.meaning,
        )
        if not declared.required:
            value = attempt(f"default of {what}", declared.check, declared.default)
            again = declared.check(value)
            expect(
                value is again or value == again,
                f"{what}, checked twice",
                f"the same, {value!r}",
                again,
            )
        for wrong in _wrong(declared):
            what = f"{family.__name__}(..., {name}={wrong!r})"
            _refused(
                name,
                what,
                lambda name=name, wrong=wrong: family(**{**given, name: wrong}),  # type: ignore[misc]
            )


def _refused(name: str, what: str, make: Callable[[], object]) -> None:
    try:
        make()
    except ValueError as error:
        expect(name in str(error), what, f"a ValueError that names {name}", str(error))
    except Exception as error:
        raise AssertionError(
            f"{what}: expected a ValueError, found {type(error).__name__}: {error}"
        ) from error
    else:
        expect(False, what, f"a ValueError that names {name}", "none")


def _wrong(declared: Parameter) -> list[Any]:
    if isinstance(declared.kind, Number):
        return ["no number", math.nan, True, object()] + [0.5] * isinstance(
            declared.kind, Whole
        )
    if isinstance(declared.kind, Word):
        return ["no such word", 1.5, object()]
    return [object(), 1.5] if isinstance(declared.kind, Object) else [object()]


def _problem(problem: Family) -> None:
    family = type(problem)
    arguments = problem.arguments()
    again = attempt("changed() without changes", problem.changed)
    expect(
        _equal(arguments, again.arguments()),
        "parameters after changed()",
        arguments,
        again.arguments(),
    )
    copy = attempt("pickle, by which a problem is sent to workers", copied, problem)
    kept = copy.arguments()
    expect(
        arguments.keys() == kept.keys(),
        "parameters of a copy by pickle",
        arguments,
        kept,
    )
    both = f"{family.__name__} with epsilon and above"
    _refused(
        "above", both, lambda: family(**{**arguments, "epsilon": 1.0, "above": 1.0})
    )
    unknown = "no_such_parameter"
    _refused(
        unknown,
        f"{family.__name__} with {unknown}",
        lambda: family.refuse_unknown([unknown]),
    )


def _equal(one: Mapping[str, Any], two: Mapping[str, Any]) -> bool:
    return one.keys() == two.keys() and all(
        one[name] is two[name] or one[name] == two[name] for name in one
    )


def _run(problem: Family) -> Trajectory:
    run = attempt("simulate", problem.simulate)
    expect(np.isfinite(run.loss).all(), "losses of the run", "finite numbers", run.loss)
    expect(
        run.t[0] == 0 and (np.diff(run.t) > 0).all(),
        "saved steps",
        "0 and then more and more",
        run.t,
    )
    expect(
        run.stop_reason.strip(), "why the run stopped", "a sentence", run.stop_reason
    )
    if run.converged:
        limit = run.epsilon * (1.0 + (0.0 if run.method == "exact" else 1e-6))
        expect(
            run.loss[-1] <= limit,
            "loss at the target",
            f"at most {run.epsilon!r}",
            run.loss[-1],
        )
    unknown = run.info.keys() - problem.parameters().keys()
    expect(not unknown, "names in run.info", "parameters of the family", unknown)
    expect(
        run.info.keys() <= run.labels.keys(),
        "labels",
        f"one for each of {[*run.info]}",
        [*run.labels],
    )
    present = {} if run.phases is None else run.phases.present()
    expect(
        present.keys() <= set(problem.phase_names),
        "phases",
        f"among {problem.phase_names}",
        [*present],
    )
    ends = 0
    for name in (name for name in problem.phase_names if name in present):
        first, last = present[name]
        inside = 0 <= first <= last <= int(run.t[-1])
        expect(
            inside,
            f"phase {name}",
            f"an interval within 0 to {run.t[-1]}",
            (first, last),
        )
        expect(
            first >= ends,
            f"phase {name}",
            f"one that begins where those before it end, {ends}",
            (first, last),
        )
        ends = last
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


def _columns(problem: Family, run: Trajectory) -> None:
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
        if column.name not in measured:
            continue
        value = measured[column.name]
        what = f"column {column.name}, of dtype {column.dtype}"
        if column.dtype[0] == "f":
            expect(isinstance(value, int | float | np.number), what, "a number", value)
        elif column.dtype[0] == "i":
            expect(
                isinstance(value, int | np.integer) and not isinstance(value, bool),
                what,
                "an integer",
                value,
            )
        else:
            room = int(column.dtype[1:] or 10**9)
            expect(
                isinstance(value, str) and len(value) <= room,
                what,
                "a text that it can hold",
                value,
            )


def _sweep(problem: Family, parameters: Mapping[str, Any]) -> None:
    rates = [problem.rate(), 0.8 * problem.rate()]
    own_batches = inspect.getattr_static(type(problem), "batched")
    batches = own_batches is not inspect.getattr_static(Family, "batched")
    swept = {**parameters, "eta": rates}
    dataset = attempt("sweep", sweep, type(problem), progress=False, **swept)
    for i, rate in enumerate(rates):
        point = problem.changed(eta=rate)
        wanted = point.measured(point.simulate())
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
            stored = blank((column,), 1)[column.name]
            if column.name in wanted:
                stored[0] = wanted[column.name]
            what = f"column {column.name} of a sweep at eta = {rate!r}"
            agrees = same(np.array([value], dtype=column.dtype), stored)
            # A batch may compute floats by another scheme than a simulation.
            if batches and column.dtype == "f8" and wanted["method"] != "closed":
                is_near = bool(np.isclose(value, stored[0], rtol=1e-9, atol=0.0))
                agrees = agrees or column.name == "error" or is_near
            expect(agrees, what, f"that of a simulation, {stored[0]!r}", value)


def _closed_form(
    problem: Family, exact_steps: int = 20_000, tolerance: float = 1e-9
) -> None:
    """Compare a closed form with single steps.

    They are at most ``exact_steps``, which take a second or two.
    """
    risk = problem.risk()
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
        steps=min(max(last, 1) + 2, exact_steps),
    )
    within = exact.t[exact.t <= last]
    states = form.states(within)
    wanted = exact.states[: len(within)]
    distance = float(np.abs(states - wanted).max())
    scale = float(np.abs(wanted).max())
    wanted_words = f"those of single steps to {tolerance * scale:.1g}"
    expect(
        distance <= tolerance * scale,
        "states in closed form",
        wanted_words,
        f"{distance:.1g} off",
    )
    if last + 2 <= exact_steps:
        # the whole steps that the estimated error can amount to
        doubt = math.ceil(max(0.0, (closed.error or 0.0) - 0.1))
        agree = closed.steps == exact.steps or (
            closed.steps is not None
            and exact.steps is not None
            and abs(closed.steps - exact.steps) <= doubt
        )
        expect(
            agree,
            "steps in closed form",
            f"{exact.steps} (error {closed.error})",
            closed.steps,
        )


def _saved(problem: Family, run: Trajectory) -> None:
    attempt("the run as JSON", lambda: json.dumps(run.to_dict(), allow_nan=False))
    attempt("the run as a dataset", run.to_xarray)
    loaded = "a run that was saved and loaded"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.npz"
        attempt("save", run.save, path)
        again = attempt("load", load, path, lambda name: type(problem))
    for name in ("t", "loss", "states", "observed"):
        expect_same(getattr(run, name), getattr(again, name), f"{name} of {loaded}")
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
        after = getattr(again, name)
        expect(before == after, f"{name} of {loaded}", repr(before), repr(after))
    expect(
        run.facts() == again.facts(), f"summary of {loaded}", run.facts(), again.facts()
    )
    # With an object among the parameters, the file does not say what was trained.
    if problem.plain() is None:
        return
    expect(again.family is not None, f"problem of {loaded}", "the same", "none")
    arguments = problem.arguments()
    loaded_arguments = again.family.arguments()
    expect(
        _equal(arguments, loaded_arguments),
        f"problem of {loaded}",
        arguments,
        loaded_arguments,
    )
    saved_steps = set(run.t.tolist())
    t = 0
    while t in saved_steps:
        t += 1
    state = attempt(f"step {t} of a run", run.at, t)
    loaded_state = attempt(f"step {t} of {loaded}", again.at, t)
    expect_same(
        state.params, loaded_state.params, f"parameters at step {t} of {loaded}"
    )


def _sampled(
    problem: Family, run: Trajectory, batch: int = 1024, batches: int = 64
) -> Power | None:
    """Check the trainer on samples, if there is one, at both ends of a run.

    Losses and gradients are compared by Student's t.
    """
    try:
        few = problem.sampled(batch // 16, 0)
    except ValueError:  # there is no trainer, as for infinite prompts
        return None
    expect(isinstance(few, Risk), "sampled", "a Risk", few)
    check_risk(few)
    trainer = problem.sampled(batch, 0)
    again = problem.sampled(batch, 0)
    reseeded = problem.sampled(batch, 1)
    start = trainer.initial
    beside = _beside(start)
    places = {"the initial point": start, "a random point": beside}
    first = {where: evaluated(trainer, at, 0, where) for where, at in places.items()}
    for where, (loss, gradient) in first.items():
        expect_same(
            loss,
            again.evaluate(places[where])[0],
            f"loss at {where} of two trainers of one seed",
        )
        expect_same(
            gradient,
            again.evaluate(places[where])[1],
            f"gradient at {where} of two trainers of one seed",
        )
    if trainer.stochastic:
        is_same = True
        for where, at in places.items():
            loss, gradient = reseeded.evaluate(at)
            is_same &= same(first[where][0], loss) and same(first[where][1], gradient)
        expect(
            not is_same,
            "losses and gradients of trainers of two seeds",
            "different ones",
            "the same",
        )
        _scatter(few, trainer, beside, batches)
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
        of_quantity = [check for check in checks if quantity in check.name]
        return min(detectable(check, batches - 1) for check in of_quantity)

    return Power(smallest_error("loss"), smallest_error("gradient"))


def _scatter(few: Risk, many: Risk, params: Array, batches: int) -> None:
    """Check that losses of 16 times larger batches scatter less than half as much."""

    def scatter(risk: Risk) -> float:
        losses = [risk.evaluate(params, step)[0] for step in range(batches)]
        return float(np.std(losses))

    small = scatter(few)
    large = scatter(many)
    if small > 1e-12 * abs(many.evaluate(params)[0]):
        expect(
            large < small / 2.0,
            "scatter of the loss of large batches",
            f"about {small / 4.0:.2g}, a quarter of that of batches a sixteenth as"
            " large",
            large,
        )
