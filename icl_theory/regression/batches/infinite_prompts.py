"""What sweeps measure of in-context regression.

Points of the exchangeable class with N = ∞ are computed in whole arrays, from one
family's parameters or a million.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import INT64_MAX, Array, indexed, integer
from icl_theory.engine.scope import DESCENT, DESCENT_OR_FLOW
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families.family import Family, check_points
from icl_theory.families.rule_parameters import within
from icl_theory.regression.batches.finite_prompts import (
    MOST,
    Points,
    batch_columns,
)
from icl_theory.regression.batches.scores import score_batches
from icl_theory.regression.bounds import step_bounds
from icl_theory.regression.closed.abel import StepCounter
from icl_theory.regression.closed.runs import (
    CountedRuns,
    closed_runs,
    leading_order,
    step_constant,
)
from icl_theory.regression.phases import half_way, tail_start
from icl_theory.regression.risks.exchangeable import (
    ExchangeableRisk,
    embedding_speed,
)
from icl_theory.regression.risks.population import PopulationRisk
from icl_theory.regression.risks.stability import stable_rate
from icl_theory.regression.tails import resting_loss, tail_limit
from icl_theory.sweeps.grid import Values, blank

FARTHEST = 300.0  # gap u up to which steps are bounded


def batched(
    family: type[Family],
    points: Mapping[str, NDArray[Any]],
    common: Mapping[str, Any],
    longest: int = 10**5,
) -> Mapping[str, Any] | None:
    """Compute exchangeable points with N = inf in closed form; simulate others of one number, and of K x K scores.

    Points that need no whole array are those of other methods, rules and coordinates,
    those that a simulation refuses, and of the others those with an imbalance or
    prompts of more than ``longest`` tokens.
    """
    check_points(family, points, common)
    longest = integer("longest", longest, minimum=0)
    P = _points(points, common)
    alike = _alike(P, common)
    gd = within(DESCENT_OR_FLOW, points, common)
    infinite = np.isinf(P["N"])
    plain = alike & gd & (P["coordinates"] != "factored")
    if plain.any():
        gamma, speed, eta, _, in_range = _steps(P)
        plain &= in_range  # what is not, a simulation refuses, and says why
    closed = (
        plain & infinite & np.isin(P["method"], ("auto", "closed")) & ("epsilon" in P)
    )
    if closed.all() and common["max_steps"]:
        return _closed(family, P)
    stepped = (
        (P["method"] == "auto")
        & (infinite | (P["N"] <= longest))
        & (P.get("imbalance") is None)
    )
    one = plain & ~infinite & stepped
    if one.any():
        with np.errstate(over="ignore", divide="ignore"):
            one &= P["K"] * P["K"] / (eta * speed * gamma) <= MOST
    scores = ~alike & gd & stepped & (P["coordinates"] == "class")
    some = closed | one | scores
    if not some.any():
        return None
    if not common["max_steps"]:
        return {
            "method": np.where(closed, "closed", "fast"),
            "loss": np.where(some, 0.0, np.nan),
        }
    values: Values = blank(family.every_column(), len(P["K"])) | {
        "stop": np.full(len(P["K"]), "STEPS", dtype="U9")
    }
    for which, columns in _found(family, points, common, closed, one, scores):
        for name, column in columns.items():
            values[name][which] = column
    return values


def _found(
    family: type[Family],
    points: Mapping[str, NDArray[Any]],
    common: Mapping[str, Any],
    closed: NDArray[np.bool_],
    one: NDArray[np.bool_],
    scores: NDArray[np.bool_],
) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    """Some points at a time, and their columns: in closed form, of one number each, and over K x K scores."""
    in_closed_form = functools.partial(_closed, family)
    for which, measure in ((closed, in_closed_form), (one, _exchangeable)):
        if which.any():
            yield (
                which,
                measure(
                    _points(
                        {name: value[which] for name, value in points.items()}, common
                    )
                ),
            )
    posed: dict[int, tuple[Any, Any]] = {}
    for i in np.flatnonzero(scores).tolist():
        with contextlib.suppress(ValueError):  # a simulation says why
            problem: Any = family(
                **{
                    **common,
                    **{name: value[i].item() for name, value in points.items()},
                }
            )
            posed[i] = problem, problem.risk()
    # tasks by another name may be exchangeable, too
    alike = [
        i
        for i, (_, risk) in posed.items()
        if isinstance(risk, ExchangeableRisk) and math.isfinite(risk.N)
    ]
    if alike:
        yield alike, _reduced([posed[i] for i in alike], common["max_steps"])
    others = {
        i: pair for i, pair in posed.items() if isinstance(pair[1], PopulationRisk)
    }
    yield from score_batches(others, common["max_steps"])


def _alike(P: Mapping[str, Any], common: Mapping[str, Any]) -> NDArray[np.bool_]:
    """Which points have exchangeable tasks and uniform probabilities."""
    given = common.get("probs") is not None or common.get("features") is not None
    return np.broadcast_to((P["task"] == "exchangeable") & (not given), P["K"].shape)


def _points(
    points: Mapping[str, NDArray[Any]], common: Mapping[str, Any]
) -> dict[str, Any]:
    """Parameters by name, arrays and single values; a law of tasks that is an object is no word.

    Where the floor is zero, which it is for N = inf, a target excess is a target loss.
    """
    each: dict[str, Any] = {
        name: common[name]
        for name in ("coordinates", "method", "rule", "eta", "imbalance")
        if name in common
    }
    law = common.get("task", "")
    each["task"] = law if isinstance(law, str) else ""
    goal = {"epsilon": points["above"]} if "above" in points else {}
    return each | goal | dict(points) | {"max_steps": common["max_steps"]}


def _steps(
    points: Mapping[str, Any],
) -> tuple[Array, Array, Array, Array, NDArray[np.bool_]]:
    """Of exchangeable points: variogram, speed of the coordinates, learning rate, step constant; and which fit."""
    size = points["L"] * points["delta"]
    delta = points["delta"]
    fits = (size > 1e-140) & (size < 1e140)
    embedded = np.broadcast_to(
        np.equal(points["coordinates"], "embedding"), delta.shape
    )
    fits &= ~embedded | ((delta > 1e-60) & (delta < 1e60))
    speed = np.ones(len(delta))
    if embedded.any():
        speed = np.where(
            embedded, each(embedding_speed, np.where(fits, delta, 1.0)), 1.0
        )
    size = np.where(fits, size, 1.0)
    gamma = 0.5 * (size * size)
    eta = points["eta"]
    if isinstance(eta, str):
        eta = stable_rate(
            gamma, points["K"], noise=points["noise"], N=points["N"], speed=speed
        )
    c = step_constant(eta, speed, gamma, points["K"])
    return (
        gamma,
        speed,
        eta,
        c,
        fits & (c < 1e300) & (gamma > 1e-290) & (gamma < 1e290),
    )


def _closed(family: type[Family], P: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of points in closed form; each result is that of one simulation."""
    K = P["K"]
    epsilon = P["epsilon"]
    gamma, speed, eta, c, _ = _steps(P)
    most = P["max_steps"]
    tail = each(lambda value: tail_start(int(value)), K)
    counter = StepCounter(K, np.maximum(c, 1e-300))
    found = closed_runs(counter, gamma, epsilon, most, tail)
    reached = (found.hit <= most) & (found.hit < INT64_MAX)
    hidden = found.hit - found.error <= most  # by rounding, perhaps
    values: dict[str, Any] = {
        "method": "closed",
        "floor": 0.0,
        "eta_used": eta,
        "steps": np.where(reached, found.hit, -1),
        "T_I": found.attends,
        "T_II": found.tails - found.attends,
        "T_III": found.last - found.tails,
        "last": found.last,
        "error": np.where(reached | hidden, found.error, 0.0),
        "loss": found.loss,
        "attention": found.attention,
        "tail_constant": (K - 1.0) / (4.0 * speed) / eta,
    }
    theory = family.theory_columns
    if (
        theory is not None
        and theory.batch is not None
        and P.get("imbalance") is not None
    ):
        runs = CountedRuns(
            size=P["L"] * P["delta"],
            eta=eta,
            K=K,
            epsilon=epsilon,
            imbalance=P["imbalance"],
            counter=counter,
            attends=found.attends,
            steps=np.where(reached, found.hit, INT64_MAX),
            in_class_coordinates=P["coordinates"] == "class",
        )
        values |= theory.batch(runs)
        del runs
    del counter  # its single steps take much memory
    boundaries = _boundaries(epsilon, K, tail)
    values["regime"] = np.where(
        np.sqrt(2.0 * gamma) > boundaries["L_star"], "sharp", "flat"
    )
    values["tail_ratio"] = found.last * found.loss / values["tail_constant"]
    start = 0.5 * gamma * (K - 1.0) / K
    values["predicted_steps"] = leading_order(eta * speed, gamma, K, epsilon, start)
    values |= {name: value / P["delta"] for name, value in boundaries.items()}
    values |= _certified(found.last, K, c, found.gap)
    return values


def _exchangeable(P: Mapping[str, Any]) -> Mapping[str, Any]:
    """Columns of points of one number each, from their parameters."""
    gamma, speed, eta, *_ = _steps(P)
    made = Points(
        P["K"], P["N"], gamma, P["noise"] ** 2, eta, speed, P["epsilon"], "above" in P
    )
    return batch_columns(made, P["max_steps"])


def _reduced(
    posed: Sequence[tuple[Any, ExchangeableRisk]], max_steps: int
) -> Mapping[str, Any]:
    """Columns of points of one number each, from their problems and risks."""
    K, N, gamma, noise, speed = (
        np.array([float(getattr(risk, name)) for _, risk in posed])
        for name in ("K", "N", "gamma", "noise", "speed")
    )
    eta = np.array([problem.rate() for problem, _ in posed])
    above = posed[0][0].above is not None
    goal = np.array(
        [problem.above if above else problem.epsilon for problem, _ in posed]
    )
    return batch_columns(
        Points(K, N, gamma, noise**2, eta, speed, goal, above), max_steps
    )


def _certified(last: NDArray[np.int64], K: Array, c: Array, gap: Array) -> Values:
    """Bounds on the last steps, and whether they hold, where they can be stated."""
    low, high = step_bounds(K, np.maximum(c, 1e-300), np.minimum(gap, FARTHEST))
    fits = (c >= 1e-290) & (gap <= FARTHEST) & np.isfinite(high)
    holds = (low <= last) & (last <= high)
    return {
        "steps_low": np.where(fits, low, np.nan),
        "steps_high": np.where(fits, high, np.nan),
        "certified": np.where(fits, holds, -1).astype(np.int8),
    }


def measured(problem: Any, run: Trajectory) -> dict[str, Any]:
    """Return the family's columns of one run."""
    tail = math.nan
    if run.risk is not None and DESCENT_OR_FLOW.applies(run):
        tail = tail_limit(run.risk, run.eta) or math.nan
    rest = resting_loss(run.risk, run.floor)
    found: dict[str, Any] = {
        "regime": run.regime or "",
        "attention": float(np.mean(run.attention[-1])),
        "tail_constant": tail,
        "tail_ratio": int(run.t[-1]) * (float(run.loss[-1]) - rest) / tail,
    }
    risk = run.risk
    if (
        isinstance(risk, ExchangeableRisk)
        and math.isinf(risk.N)
        and problem.theory.applies(run)
    ):
        found |= _predictions(run, risk)
    exchangeable = problem.task == "exchangeable" and problem.features is None
    if exchangeable and math.isinf(problem.N) and problem.theory.applies(run):
        numbers = (
            np.array([float(x)])
            for x in (run.epsilon, problem.K, tail_start(problem.K))
        )
        found |= {
            name: value[0] / problem.delta
            for name, value in _boundaries(*numbers).items()
        }
    return found


def _predictions(run: Trajectory, risk: ExchangeableRisk) -> dict[str, Any]:
    """Leading order and certified bounds of an exchangeable run with N = ∞."""
    K, eta = (np.array([float(x)]) for x in (risk.K, run.eta * risk.speed))
    start = np.array([run.loss[0]])
    epsilon = np.array([run.epsilon])
    found: dict[str, Any] = {
        "predicted_steps": leading_order(eta, risk.gamma, K, epsilon, start)[0]
    }
    if DESCENT.applies(run):
        c = step_constant(run.eta, risk.speed, risk.gamma, K)
        gap = np.array([float(run.params)])
        found |= {
            name: value[0] for name, value in _certified(run.t[-1:], K, c, gap).items()
        }
    return found


def _boundaries(epsilon: Array, K: Array, tail: Array) -> Values:
    """`crossover` in both forms and `half_way` for Δ = 1; the latter is NaN for K < 7: no exponent is half-way."""
    unit = each(
        lambda value: half_way(1.0, 1.0, int(value)) if value >= 7 else math.nan, K
    )
    return {
        "L_star": np.sqrt(4.0 * epsilon * (K - 1.0) / K) / tail,
        "L_half": np.sqrt(epsilon) * unit,
        "L_star_leading": np.sqrt(8.0 * epsilon) * K / np.sqrt(K - 1.0),
    }


def each(function: Callable[[float], float], values: Array) -> Array:
    """Evaluate a function of a number once for every value that occurs."""
    distinct, index = indexed(values)
    return np.array([function(value) for value in distinct.tolist()])[index]
