"""Whether the optional slots of a family hold what the rest of the package expects.

A slot is an attribute or method of `Family` that a family may define. `check_family`
calls `check_slots` and `check_claims`, which call a function for each slot. `attempt`
turns an exception of a call into an AssertionError, and `expect` raises one unless a
condition holds.
"""

from __future__ import annotations

import inspect
import json
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from icl_theory.engine.comparison import CrossCheck
from icl_theory.engine.descent import descend
from icl_theory.engine.risk import Risk
from icl_theory.engine.rules import rule_of
from icl_theory.engine.scope import DESCENT
from icl_theory.engine.steps import UpdateMap
from icl_theory.engine.trajectory import Stop, Trajectory
from icl_theory.families import Family, LazySlot, Panel
from icl_theory.families.registry import sound
from icl_theory.figures import title
from icl_theory.results.prose import read_prose
from icl_theory.statements.claim import Answer, BoundChecks, Claim
from icl_theory.statements.paper import Claims, Reading
from icl_theory.sweeps.grid import blank
from icl_theory.testing.common import attempt, expect

# The names of papers and commands. People type them in a shell, where other characters
# would need quotes.
NAME = re.compile(r"[a-z][a-z0-9-]*")
# A loss may rise by this share of itself from one step to the next. Rounding is smaller
# than this share, and an unstable learning rate soon makes the loss rise by more.
LOSS_ROUNDING = 1e-12
# A sharpness that is zero or negative is replaced by this number in 2/sharpness, which
# then is huge but finite.
TINY = 1e-300


def check_slots(problem: Family, run: Trajectory) -> None:
    """Check the optional slots of a family that need no long measurement.

    ``run`` is a run of ``problem``. If the loss of the problem is a squared error, it
    must have the factor 1/2, because the slots state losses and learning rates for the
    loss with this factor.
    """
    family = type(problem)
    _lazy_slots(family)
    _expected_steps(problem)
    # Levels are losses that the figure of a run draws as reference lines.
    for name, loss in attempt("slot levels", problem.levels).items():
        expect(np.isfinite(loss), f"level {name}", "a finite loss", loss)
    _limits(problem)
    _stable_rate(problem, run)
    _batched(problem)
    _update(problem, run)
    if family.claims is not None:
        _claims(family.claims, run)
    _figures(family.figures)
    _explorer(family.explorer)
    _commands(family.commands)


def check_claims(family: type[Family], run: Trajectory) -> None:
    """Measure the rows of a family, answer its questions and make its comparison.

    A row or a question is a function of the flag ``quick``. With True, it measures a
    small grid. The comparison gets ``run``, a run of the family.
    """
    claims = Claims() if family.claims is None else family.claims
    for row in claims.rows:
        subject = f"row {getattr(row, '__name__', row)}"
        claim: Any = attempt(subject, row, True)
        expect(isinstance(claim, Claim), subject, "a Claim", claim)
        # Making the cells for the table computes the verdict, which may raise an error.
        attempt(subject, claim.cells)
    for name, question in claims.questions:
        answer: Any = attempt(f"question {name}", question, True)
        expect(isinstance(answer, Answer), f"question {name}", "an Answer", answer)
        for series in answer.series:
            x_shape = np.shape(series.x)
            y_shape = np.shape(series.y)
            subject = f"curve {series.label!r} of {name}"
            expect(x_shape == y_shape, subject, f"as many y as x, {x_shape}", y_shape)
    compare = claims.compare
    if compare is not None:
        compared: Any = attempt("compare of the slot claims", compare, run)
        expect(
            isinstance(compared, CrossCheck),
            "compare of the slot claims",
            "a CrossCheck",
            compared,
        )


def _lazy_slots(family: type[Family]) -> None:
    """Load the slots that are loaded at their first use, to find those that fail.

    A `LazySlot` names the place of its value, ``"package.module:NAME"``. A plain
    attribute access loads it, and raises an error if nothing is there.
    """
    # A slot may be defined by a base class of the family.
    for cls in family.__mro__:
        for name, value in vars(cls).items():
            if isinstance(value, LazySlot):
                subject = f"slot {name}, loaded from {value.place}"
                attempt(subject, getattr, family, name)


def _expected_steps(problem: Family) -> None:
    """Check the family's rough number of steps to the target: None or a number."""
    steps: Any = attempt("slot expected_steps", problem.expected_steps)
    is_number_of_steps = steps is None or steps >= 0
    expect(is_number_of_steps, "expected_steps", "None or a number >= 0", steps)


def _limits(problem: Family) -> None:
    """Check the slot ``limits``, a pair of numbers for each of some parameters x.

    The two numbers are the limits of the exponent d ln T/d ln x at small and at large
    x, with T steps to the target.
    """
    family = type(problem)
    arguments = problem.arguments()
    # The limits may depend only on parameters whose values are words: the other
    # parameters may vary in a sweep.
    words = {name: value for name, value in arguments.items() if isinstance(value, str)}
    for name, pair in attempt("slot limits", family.limits, words).items():
        expect(name in family.parameters(), "names of limits", "parameters", name)
        is_pair = len(pair) == 2 and np.isfinite(pair).all()
        expect(is_pair, f"limits of {name}", "two numbers", pair)


def _stable_rate(problem: Family, run: Trajectory, rounding: float = 1e-6) -> None:
    """Check the stable learning rate, if the problem has one.

    No step of gradient descent at this rate may raise the loss. At the end of ``run``
    the rate must also be at most 2/sharpness, because descent is unstable at larger
    rates. An excess of up to the share ``rounding`` is allowed, because a sharpness may
    be found by iteration.
    """
    try:
        rate = problem.stable_rate()
    except ValueError as error:
        # A family without a stable rate raises this error for the parameter eta.
        expect(
            "eta" in str(error),
            "why there is no stable learning rate",
            "a sentence that names eta",
            str(error),
        )
        return
    expect(
        isinstance(rate, float | int) and math.isfinite(rate) and rate > 0,
        "stable_rate",
        "a number > 0",
        rate,
    )
    risk = problem.risk()
    # A stable rate is a promise for plain gradient descent on an exact loss.
    if risk.stochastic or not DESCENT.applies(problem):
        return
    _loss_falls(risk, rate)
    sharpness = risk.sharpness(run.params)
    largest_rate = 2.0 / max(sharpness, TINY)
    limit = f"at most {largest_rate:.6g}, 2/sharpness at the end of the run"
    # A negative sharpness allows every rate.
    expect(rate * sharpness <= 2.0 * (1.0 + rounding), "stable_rate", limit, rate)


def _loss_falls(risk: Risk, rate: float, steps: int = 200) -> None:
    """Check that no step of descent at a learning rate raises the loss."""
    subject = f"loss of descent at the stable rate {rate:.6g}"
    descent = descend(risk, rate, steps=steps)
    # The run must not end because its loss or its parameters are no longer finite.
    expect(
        descent.stop not in (Stop.LOSS, Stop.PARAMETERS),
        subject,
        "finite",
        descent.stop_reason,
    )
    losses = descent.loss
    rises = np.flatnonzero(np.diff(losses) > LOSS_ROUNDING * np.abs(losses[:-1]))
    if rises.size:
        before = int(rises[0])
        expect(
            False,
            f"{subject} at step {int(descent.t[before + 1])}",
            f"at most {losses[before]!r}",
            losses[before + 1],
        )


def _batched(problem: Family) -> None:
    """Check the slot ``batched`` with two equal points.

    The slot computes several points of a sweep together: it gets their parameters as
    arrays, and returns the columns of the sweep as arrays.
    """
    # Sweeps do not call the slot for training on a fixed set of prompts.
    if problem.on_fixed_set:
        return
    family = type(problem)
    points = {}
    common = {}
    for name, declared in family.parameters().items():
        # ``eta`` may be the word "auto", but the slot gets the number.
        value = problem.rate() if name == "eta" else getattr(problem, name)
        # A parameter may be swept if its ``axis`` is True.
        if declared.axis and isinstance(value, int | float):
            points[name] = np.array([value, value])
        else:
            common[name] = value
    # A sweep ignores NumPy's warnings, too: NaN in a result marks a point that is
    # simulated by itself.
    with np.errstate(all="ignore"):
        # With 0 as ``max_steps`` a sweep asks which points can be batched.
        without_steps = common | {"max_steps": 0}
        attempt("slot batched", family.batched, points, without_steps)
        batch: Any = attempt("slot batched", family.batched, points, common)
    # The result is None if the family makes no arrays for these points.
    if batch is not None:
        _check_batch(family, batch)


def _check_batch(family: type[Family], batch: Any) -> None:
    """Check the names and shapes of the arrays of two points.

    The names are columns of a sweep, and "stop" for the `Stop` at which each run ended.
    """
    expect(
        isinstance(batch, Mapping), "slot batched", "a dict of arrays, or None", batch
    )
    # `blank` has a key for each column, also for the status and the message.
    allowed_names = {"stop", *blank(family.every_column(), 0)}
    unknown = sorted(batch.keys() - allowed_names)
    expect(
        not unknown,
        "names that slot batched gives",
        "columns, and stop",
        ", ".join(unknown),
    )
    for name in ("steps", "last", "loss", "floor"):
        expect(
            name in batch,
            "columns of slot batched",
            f"{name} among them",
            sorted(batch),
        )
    for name, values in batch.items():
        shape = np.shape(values)
        expect(
            shape in ((), (2,)),
            f"{name} of slot batched",
            "a value for each of two points, or one",
            shape,
        )
    # Without "stop", all runs that missed their target took the largest number of
    # steps.
    for name in np.unique(batch.get("stop", "STEPS")).tolist():
        expect(
            name in Stop.__members__,
            "stop of slot batched",
            f"one of {', '.join(Stop.__members__)}",
            name,
        )


def _update(problem: Family, run: Trajectory) -> None:
    """Check that the rule of the problem is the rule of its run, and takes a step."""
    update: Any = attempt("slot update", problem.update)
    rule = attempt("slot update", rule_of, update)
    # A family with its own ``simulate`` may train by a rule of its own.
    has_own_training = type(problem).simulate is not Family.simulate
    expect(
        rule.name == run.rule or has_own_training,
        "rule of the run",
        f"that of the slot update, {rule.name}",
        run.rule,
    )
    update_map = UpdateMap(problem.trained_risk(), run.eta, rule)
    start: Any = attempt("init of the slot update", update_map.start)
    point = update_map.point(start.params, 0, start.memory)
    # The map raises an error if the rule returns a change or a memory of another shape.
    attempt("step of the slot update", point.update, update_map)


def _claims(claims: Claims, run: Trajectory) -> None:
    """Check the claims: statements on a run, the names of questions, and the papers.

    Rows and questions, which measure for longer, are left to `check_claims`.
    """
    expect(isinstance(claims, Claims), "slot claims", "a Claims or None", claims)
    check = claims.check
    # Statements on the population may refuse a run on a fixed set.
    if check is not None and not run.on_fixed_set:
        checks: Any = attempt("check of the slot claims", check, run)
        expect(
            isinstance(checks, BoundChecks),
            "check of the slot claims",
            "BoundChecks",
            checks,
        )
    for name, _ in claims.questions:
        expect(
            re.fullmatch(r"[\w-]+", str(name)),
            "names of questions",
            "letters, digits and dashes",
            name,
        )
    _papers(claims)


def _figures(figures: Any) -> None:
    """Check that each figure has a title, and is a script or needs no argument.

    The title is the first line of the docstring of the script or function, or its name.
    """
    expect(
        isinstance(figures, Mapping),
        "slot figures",
        "a dict of scripts or functions",
        figures,
    )
    for name, recipe in figures.items():
        subject = f"figure {name} of the slot figures"
        attempt(subject, title, recipe)
        if callable(recipe):
            arguments = inspect.signature(recipe).parameters.values()
            # The default of a parameter without one is the object ``empty``.
            required = [
                argument.name
                for argument in arguments
                if argument.default is argument.empty
            ]
            expect(
                not required,
                subject,
                "a default for each parameter",
                f"none for {', '.join(required)}",
            )


def _papers(claims: Claims) -> None:
    """Check the papers of the claims, with their readings and prose.

    A reading is a statement of a paper as the package reads it.
    """
    for paper in claims.papers:
        subject = f"paper {paper.name}"
        expect(
            NAME.fullmatch(paper.name),
            "names of papers",
            "small letters, digits and dashes",
            paper.name,
        )
        attempt(f"reference of {subject}", getattr, paper, "reference")
        expect(
            isinstance(paper.readings, tuple | list),
            f"readings of {subject}",
            "a tuple",
            paper.readings,
        )
        for reading in paper.readings:
            expect(
                isinstance(reading, Reading),
                f"readings of {subject}",
                "Readings",
                reading,
            )
            _reading(reading, claims, f"of {reading.name} in {subject}")
        if paper.folder is not None:
            attempt(f"prose of {subject}", read_prose, paper)


def _reading(reading: Reading, claims: Claims, origin: str) -> None:
    """Check the rows and the question of a reading, a statement of a paper.

    ``origin`` ends the messages with the name of the statement and its paper.
    """
    rows = reading.rows
    expect(isinstance(rows, tuple | list), f"rows {origin}", "a tuple", rows)
    expect(
        all(map(callable, rows)),
        f"rows {origin}",
        "functions that return a Claim",
        rows,
    )
    expect(
        reading.question is None or reading.question in claims.questions,
        f"question {origin}",
        "one of the questions of the Claims",
        reading.question,
    )


def _commands(commands: Any) -> None:
    """Check the slot ``commands``: names, and related families that are sound."""
    expect(
        isinstance(commands, Mapping), "slot commands", "a dict of families", commands
    )
    for name, family in commands.items():
        expect(
            NAME.fullmatch(str(name)),
            "names of commands",
            "small letters, digits and dashes",
            name,
        )
        attempt(f"command {name}", sound, family)


def _explorer(panel: Panel | None) -> None:
    """Check the scripts and the constants of a panel of the explorer.

    The explorer is a web page. Its scripts are files in the folder of the panel, and
    its constants are passed to them as JSON.
    """
    if panel is None:
        return
    expect(isinstance(panel, Panel), "slot explorer", "a Panel or None", panel)
    # The page requires the module of each panel by this name.
    expect(
        "panel.js" in panel.scripts,
        "scripts of the explorer",
        "panel.js among them",
        panel.scripts,
    )
    for script in panel.scripts:
        attempt(f"script {script} of the explorer", (panel.folder / script).read_text)
    attempt(
        "constants of the explorer, as JSON",
        lambda: json.dumps(panel.constants(), allow_nan=False),
    )
