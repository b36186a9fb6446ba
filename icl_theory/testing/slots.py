"""Whether the optional slots of a family hold what the rest of the package expects.

`check_family` calls `check_slots` and `check_claims`. Each slot has a function here.
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
from icl_theory.engine.rules import rule_of
from icl_theory.engine.scope import DESCENT
from icl_theory.engine.steps import UpdateMap
from icl_theory.engine.trajectory import Stop, Trajectory
from icl_theory.families import Family, LazySlot, Panel, sound
from icl_theory.figures import title
from icl_theory.results.prose import read_prose
from icl_theory.statements.claim import Answer, BoundChecks, Claim
from icl_theory.statements.paper import Claims, Reading
from icl_theory.sweeps.grid import blank
from icl_theory.testing.common import attempt, expect

# the names of papers and commands
NAME = re.compile(r"[a-z][a-z0-9-]*")
# Rounding may raise a loss by this share of it from one step to the next.
LOSS_ROUNDING = 1e-12
# Stands for a sharpness that is zero or negative, so that 2/sharpness is huge.
TINY = 1e-300


def check_slots(problem: Family, run: Trajectory) -> None:
    """Check every slot of a family that takes no long measurement."""
    family = type(problem)
    _lazy_slots(family)
    _expected_steps(problem)
    # Levels are losses that the figure of a run draws as reference lines.
    for name, loss in attempt("slot levels", problem.levels).items():
        expect(np.isfinite(loss), f"level {name}", "a finite loss", loss)
    _limits(problem)
    _stable_rate(problem, run)
    _arrays(problem)
    _update(problem, run)
    if family.claims is not None:
        _claims(family.claims, run)
    _figures(family.figures)
    _explorer(family.explorer)
    _commands(family.commands)


def check_claims(family: type[Family], run: Trajectory) -> None:
    """Measure the rows of a family, answer its questions and make its comparison.

    All are made in their quick versions.
    """
    claims = Claims() if family.claims is None else family.claims
    for row in claims.rows:
        subject = f"row {getattr(row, '__name__', row)}"
        claim: Any = attempt(subject, row, True)
        expect(isinstance(claim, Claim), subject, "a Claim", claim)
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
    """Load the slots that are only loaded when they are used."""
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
    """Check the limits of the exponents d ln T/d ln x, with T steps to the target.

    Each must belong to a parameter x, and be a pair of numbers: the exponents at small
    and at large x.
    """
    family = type(problem)
    arguments = problem.arguments()
    # A sweep gives `Family.limits` only the parameters whose values are words.
    words = {name: value for name, value in arguments.items() if isinstance(value, str)}
    for name, pair in attempt("slot limits", family.limits, words).items():
        expect(name in family.parameters(), "names of limits", "parameters", name)
        is_pair = len(pair) == 2 and np.isfinite(pair).all()
        expect(is_pair, f"limits of {name}", "two numbers", pair)


def _stable_rate(
    problem: Family, run: Trajectory, steps: int = 200, rounding: float = 1e-6
) -> None:
    """Check that the stable rate lowers the loss in each of ``steps`` steps.

    At the end of ``run`` the rate must also be at most 2/sharpness, because descent is
    unstable beyond that. It may exceed this by a share ``rounding``, because a
    sharpness may be found by iteration.
    """
    try:
        rate = problem.stable_rate()
    except ValueError as error:
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
    subject = f"loss of descent at the stable rate {rate:.6g}"
    # The promise concerns plain gradient descent on an exact loss.
    if risk.stochastic or not DESCENT.applies(problem):
        return
    descent = descend(risk, rate, steps=steps)
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
    sharpness = risk.sharpness(run.params)
    largest_rate = 2.0 / max(sharpness, TINY)
    limit = f"at most {largest_rate:.6g}, 2/sharpness at the end of the run"
    # A negative sharpness allows every rate.
    expect(rate * sharpness <= 2.0 * (1.0 + rounding), "stable_rate", limit, rate)


def _arrays(problem: Family) -> None:
    """Check the arrays of two equal points, if the family computes points together.

    The slot ``batched`` gets the parameters of some points as arrays, and returns the
    columns of a sweep as arrays.
    """
    # Sweeps do not ask a family for arrays of points with a fixed set of prompts.
    if problem.on_fixed_set:
        return
    family = type(problem)
    points = {}
    common = {}
    for name, declared in family.parameters().items():
        value = problem.rate() if name == "eta" else getattr(problem, name)
        if declared.axis and isinstance(value, int | float):
            points[name] = np.array([value, value])
        else:
            common[name] = value
    with np.errstate(all="ignore"):
        # With 0 as ``max_steps`` a sweep asks which points can be batched.
        without_steps = common | {"max_steps": 0}
        attempt("slot batched", family.batched, points, without_steps)
        batch: Any = attempt("slot batched", family.batched, points, common)
    # The result is None if the family makes no arrays for these points.
    if batch is not None:
        _batch(family, batch)


def _batch(family: type[Family], batch: Any) -> None:
    """Check the names and shapes of the arrays of two points."""
    expect(
        isinstance(batch, Mapping), "slot batched", "a dict of arrays, or None", batch
    )
    unknown = sorted(batch.keys() - {"stop", *blank(family.every_column(), 0)})
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
    for name in np.unique(batch.get("stop", "STEPS")).tolist():
        expect(
            name in Stop.__members__,
            "stop of slot batched",
            f"one of {', '.join(Stop.__members__)}",
            name,
        )


def _update(problem: Family, run: Trajectory) -> None:
    """Check that the rule of the problem is the rule of its run, and makes a step."""
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
    descent = UpdateMap(problem.trained_risk(), run.eta, rule)
    start: Any = attempt("init of the slot update", descent.start)
    point = descent.point(start.params, 0, start.memory)
    attempt("step of the slot update", point.update, descent)


def _claims(claims: Claims, run: Trajectory) -> None:
    """Check the claims by their statements about a run, their questions and papers."""
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
    """Check that each figure is a script, or a function that needs no argument."""
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
    """Check the papers of some claims, with their readings and prose."""
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
    """Check the rows and the question of a reading. Messages end with the origin."""
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
        "one of those of the Claims",
        reading.question,
    )


def _commands(commands: Any) -> None:
    """Check the names of commands, and that their families are sound."""
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
    """Check the scripts and the constants of a panel of the explorer."""
    if panel is None:
        return
    expect(isinstance(panel, Panel), "slot explorer", "a Panel or None", panel)
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
