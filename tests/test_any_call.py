"""Calls drawn by lot over ten decades of each argument: a run that is returned answers every question about it."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

import icl_theory as icl

METHODS = ("auto", "fast", "flow", "exact", "closed")


def drawn(rng: np.random.Generator) -> dict[str, Any]:
    """Arguments of a call of `simulate`; problems in which queries differ are small, because they take long."""
    arguments: dict[str, Any] = {
        "L": decades(rng),
        "delta": decades(rng),
        "K": int(rng.integers(2, 51)),
    }
    scale = (arguments["L"] * arguments["delta"]) ** 2
    # Most of these learning rates, relative to the scale of the loss, lead to runs of
    # many decades.
    arguments["eta"] = (
        decades(rng, -9.0, 1.0) / scale if rng.random() < 0.7 else decades(rng)
    )
    arguments["N"] = (
        math.inf if rng.random() < 0.3 else int(10.0 ** rng.uniform(0.0, 3.0))
    )
    arguments["coordinates"] = str(rng.choice(["class", "embedding"]))
    arguments["method"] = str(rng.choice(METHODS, p=[0.5, 0.25, 0.1, 0.1, 0.05]))
    target = rng.random()
    if target < 0.5:
        arguments["epsilon"] = decades(rng, -10.0, 0.0) * scale
    elif target < 0.8:
        arguments["above"] = decades(rng, -10.0, 0.0) * scale
    else:
        arguments["epsilon"] = 0.0
    if rng.random() < 0.4:
        arguments["max_steps"] = int(10.0 ** rng.uniform(0.0, 15.0))
    if arguments["method"] == "exact":
        arguments["max_steps"] = int(10.0 ** rng.uniform(0.0, 3.0))
    if rng.random() < 0.2:
        arguments["noise"] = decades(rng) * math.sqrt(scale)
    if rng.random() < 0.1:
        arguments["K"] = int(rng.integers(2, 5))
        arguments["max_steps"] = int(10.0 ** rng.uniform(0.0, 6.0))
        if math.isfinite(arguments["N"]):
            arguments["N"] = min(arguments["N"], 30)
        if rng.random() < 0.5:
            arguments["task"] = str(
                rng.choice(["linear", "cosine", "quadratic", "halfspace"])
            )
        else:
            arguments["probs"] = rng.dirichlet(np.full(arguments["K"], 2.0)).tolist()
    return arguments


def decades(rng: np.random.Generator, low: float = -5.0, high: float = 5.0) -> float:
    return float(10.0 ** rng.uniform(low, high))


def question(run: icl.Trajectory, rng: np.random.Generator, report: bool) -> None:
    """Ask a run for all that it can tell; nothing may raise, and nothing may be NaN."""
    assert str(run)
    assert run.summary()
    json.dumps(run.to_dict(), allow_nan=False)
    assert np.isfinite(run.loss).all()
    assert np.isfinite(run.states).all()
    assert run.states_error is None or math.isfinite(run.states_error)
    assert run.phases is None or run.phases.I is not None
    last = int(run.t[-1])
    saved = int(run.t[rng.integers(len(run.t))])
    between = int(math.expm1(rng.uniform(0.0, math.log1p(last))))
    # Of the last two, the second is followed from the first, which ln(1 + t) does not
    # tell from it in a long run.
    for t in (between, between + 4, saved + 1, saved + 5, last - 12, last - 4):
        assert math.isfinite(run.at(min(max(t, 0), last)).loss)
    if report:
        icl.check_bounds(run)
        assert icl.html_report(run)


def check(seed: int, number: int) -> str:
    """Draw a call and say what came of it: "run" or "refused"."""
    rng = np.random.default_rng([seed, number])
    arguments = drawn(rng)
    try:
        run = icl.simulate(**arguments)
    except ValueError as error:
        message = str(error)
    else:
        message = ""
    if message:
        named = message.split(" = ")[0].split(":")[0]
        assert named in arguments, f"{arguments}: {message}"
        return "refused"
    question(run, rng, report=number % 25 == 0)
    return "run"


@pytest.mark.slow
def test_a_run_that_is_returned_answers_every_question() -> None:
    outcomes = [check(27, number) for number in range(150)]
    assert outcomes.count("run") > 90
