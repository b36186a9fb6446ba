"""What sweeps measure of in-context regression.

Points of the exchangeable class with N = ∞ are computed in whole arrays, from one family's parameters or a million.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import INT64_MAX, Array, indexed
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families.family import Family
from icl_theory.families.regression.abel import StepCounter
from icl_theory.families.regression.certified import step_bounds_of
from icl_theory.families.regression.closed import closed_runs, step_constant
from icl_theory.families.regression.columns import THEOREMS
from icl_theory.families.regression.exchangeable import ExchangeableRisk, embedding_speed
from icl_theory.families.regression.orderwise import BOUNDED, STATEMENTS, check_order, fitted_constants, logarithm
from icl_theory.families.regression.phases import crossover, half_way, tail_start
from icl_theory.families.regression.population import PopulationRisk
from icl_theory.families.regression.stability import stable_rate
from icl_theory.families.regression.stacked import stacked
from icl_theory.families.regression.tails import resting_loss, tail_limit
from icl_theory.families.regression.together import MOST, Points, together
from icl_theory.grids.grid import MESSAGE, NOT_REACHED, REACHED, STATUS, Column, Values, blank, uniform

FARTHEST = 300.0  # gap u up to which steps are bounded
LONGEST_PROMPT = 10**5  # of points that are simulated together,
ONE_NUMBER, FEWEST = 2048, 2  # so many at a time: a second or two; over K x K scores at least,
SCORES = (3200, 25_600)  # or with so many scores in all: of finite prompts, and for N = ∞


class _Steps(NamedTuple):
    """Of exchangeable points: variogram, speed of the coordinates, learning rate, step constant, all sound."""

    gamma: Array
    speed: Array
    eta: Array
    c: Array
    in_range: NDArray[np.bool_]


def closed_mask(
    family: type[Family], points: Mapping[str, NDArray[Any]], common: Mapping[str, Any]
) -> NDArray[np.bool_]:
    """Which points have a closed form: exchangeable tasks with N = inf where nothing overflows."""
    P = _points(points, common)
    mask = np.isinf(P["N"]) & np.isin(P["method"], ("auto", "closed"))
    return mask & _plain(P, common) if "epsilon" in P else np.zeros_like(mask)


def joint_mask(
    family: type[Family], points: Mapping[str, NDArray[Any]], common: Mapping[str, Any]
) -> NDArray[np.bool_]:
    """Which points go together: those of one number, with finite N and up to 1e9 steps, and of K x K scores.

    Where every step is asked for none does.
    """
    P = _points(points, common)
    mask = (P["method"] == "auto") & ((P["N"] <= LONGEST_PROMPT) | np.isinf(P["N"]))
    if "imbalance" in points or common.get("imbalance") is not None:
        return np.zeros_like(mask)
    stacks = mask & (P["rule"] == "gd") & (P["coordinates"] == "class") & ~_alike(P, common)
    mask &= np.isfinite(P["N"]) & _plain(P, common)
    if mask.any():
        gamma, speed, eta, *_ = _steps(P)
        with np.errstate(over="ignore", divide="ignore"):
            learning = P["K"] * P["K"] / (eta * speed * gamma)
        mask &= np.minimum(learning, common["max_steps"]) <= MOST
    return np.asarray(mask | stacks)


def joint_size(family: type[Family], points: Mapping[str, NDArray[Any]], common: Mapping[str, Any]) -> int:
    """How many points are worth going together: over K x K scores each takes up to some hundredths of a second."""
    P = _points(points, common)
    if _alike(P, common).all():
        return ONE_NUMBER
    return max(FEWEST, SCORES[bool(np.isinf(P["N"]).all())] // int(P["K"].max()) ** 2)


def _alike(P: Mapping[str, Any], common: Mapping[str, Any]) -> NDArray[np.bool_]:
    """Which points have exchangeable tasks and uniform probabilities."""
    given = common.get("probs") is not None or common.get("features") is not None
    return np.broadcast_to((P["task"] == "exchangeable") & (not given), P["K"].shape)


def _plain(P: Mapping[str, Any], common: Mapping[str, Any]) -> NDArray[np.bool_]:
    """Which points are one number's descent, where nothing overflows."""
    mask = (P["coordinates"] != "factored") & (P["rule"] == "gd") & _alike(P, common)
    if mask.any():
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            mask &= _steps(P).in_range  # what is not, a simulation refuses, and says why
    return mask


def _points(points: Mapping[str, NDArray[Any]], common: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters by name, arrays and single values; a law of tasks that is an object is no word.

    Where the floor is zero, which it is for N = inf, a target excess is a target loss.
    """
    each: dict[str, Any] = {
        name: np.asarray(common[name]) for name in ("coordinates", "method", "rule") if name in common
    }
    law = common.get("task", "")
    each["task"] = np.asarray(law if isinstance(law, str) else "")
    goal = {"epsilon": points["above"]} if "above" in points else {}
    return {"eta": common.get("eta")} | each | goal | dict(points) | {"max_steps": common["max_steps"]}


def _steps(points: Mapping[str, Any]) -> _Steps:
    """Step constants of exchangeable points."""
    size, delta = points["L"] * points["delta"], points["delta"]
    fits = (size > 1e-140) & (size < 1e140)
    embedded = np.broadcast_to(points["coordinates"] == "embedding", delta.shape)
    fits &= ~embedded | ((delta > 1e-60) & (delta < 1e60))
    speed = np.ones(len(delta))
    if embedded.any():
        speed = np.where(embedded, each(embedding_speed, np.where(fits, delta, 1.0)), 1.0)
    size = np.where(fits, size, 1.0)
    gamma = 0.5 * (size * size)
    eta = points["eta"]
    if isinstance(eta, str):
        eta = stable_rate(gamma, points["K"], noise=points["noise"], N=points["N"], speed=speed)
    c = step_constant(eta, speed, gamma, points["K"])
    return _Steps(gamma, speed, eta, c, fits & (c < 1e300) & (gamma > 1e-290) & (gamma < 1e290))


def closed_values(family: type[Family], points: Mapping[str, NDArray[Any]], common: Mapping[str, Any]) -> Values:
    """Measure points in closed form; each result is that of one simulation."""
    P = _points(points, common)
    K, epsilon = P["K"], P["epsilon"]
    gamma, speed, eta, c, _ = _steps(P)
    tail = each(lambda value: tail_start(int(value)), K)
    found = closed_runs(StepCounter(K, np.maximum(c, 1e-300)), gamma, epsilon, common["max_steps"], tail)
    reached = (found.hit <= common["max_steps"]) & (found.hit < INT64_MAX)
    hidden = found.hit - found.error <= common["max_steps"]  # by rounding, perhaps
    fixed = {"method": "closed", "floor": 0.0, STATUS.name: REACHED}
    values = uniform(family.every_column(), len(K), fixed) | {
        "eta_used": eta, "steps": np.where(reached, found.hit, -1), "T_I": found.attends,
        "T_II": found.tails - found.attends, "T_III": found.last - found.tails, "last": found.last,
        "error": np.where(reached | hidden, found.error, 0.0), "loss": found.loss, "attention": found.attention,
        "tail_constant": (K - 1.0) / (4.0 * speed) / eta,
    }  # fmt: skip
    onset = exact_crossover(epsilon, 1.0, K, tail)
    values["regime"] = np.where(np.sqrt(2.0 * gamma) > onset, "sharp", "flat")
    values["tail_ratio"] = found.last * found.loss / values["tail_constant"]
    start = 0.5 * gamma * (K - 1.0) / K
    values["predicted_steps"] = leading_order(eta * speed, gamma, K, epsilon, start)
    values["L_star"] = onset / points["delta"]
    values["L_half"] = half_ways(epsilon, points["delta"], K)
    values["L_star_leading"] = np.sqrt(8.0 * epsilon) * K / np.sqrt(K - 1.0) / points["delta"]
    values |= _certified(found.last, K, c, found.gap)
    if "imbalance" in points:
        _theorems(values, P, eta)
    if not reached.all():
        values[STATUS.name] = np.where(reached, REACHED, NOT_REACHED).astype(STATUS.dtype)
        values[MESSAGE.name] = np.full(len(K), "", dtype=object)
        for i in np.flatnonzero(~reached):
            text = f"took all {found.last[i]} steps without reaching epsilon = {epsilon[i]:g}"
            values[MESSAGE.name][i] = text
    return values


def joint_values(
    family: type[Family], points: Mapping[str, NDArray[Any]], common: Mapping[str, Any]
) -> tuple[Values, NDArray[np.bool_]]:
    """Simulate points together; say which of them are done."""
    P, columns, most = _points(points, common), family.every_column(), common["max_steps"]
    size = len(P["K"])
    values, done = blank(columns, size), np.zeros(size, dtype=bool)

    def place(index: NDArray[np.intp], found: Values, sure: NDArray[np.bool_]) -> None:
        done[index] = sure
        for name, column in values.items():
            column[index] = found[name]

    alike = _alike(P, common)
    if alike.any():
        some = {name: value[alike] for name, value in points.items()}
        place(np.flatnonzero(alike), *_exchangeable(columns, some, common))
    rest = np.flatnonzero(~alike)
    problems = [
        family(**{**common, **{name: np.asarray(value[i]).item() for name, value in points.items()}}) for i in rest
    ]
    risks = [problem.risk() for problem in problems]
    # tasks by another name may be exchangeable, too
    one = [i for i, risk in enumerate(risks) if isinstance(risk, ExchangeableRisk) and math.isfinite(risk.N)]
    several = [i for i, risk in enumerate(risks) if isinstance(risk, PopulationRisk)]
    for which, measure in ((one, _reduced), (several, stacked)):
        if which:
            place(rest[which], *measure(columns, [problems[i] for i in which], [risks[i] for i in which], most))
    return values, done


def _exchangeable(
    columns: tuple[Column, ...], points: Mapping[str, NDArray[Any]], common: Mapping[str, Any]
) -> tuple[Values, NDArray[np.bool_]]:
    """Simulate points of one number each, from their parameters."""
    P = _points(points, common)
    gamma, speed, eta, *_ = _steps(P)
    goal = "epsilon" if "epsilon" in points else "above"
    made = Points(P["K"], P["N"], gamma, P["noise"] ** 2, eta * speed, P[goal], goal == "above")
    values, done = together(columns, made, speed, common["max_steps"])
    return values | {"eta_used": np.broadcast_to(eta, gamma.shape)}, done


def _reduced(
    columns: tuple[Column, ...], problems: Sequence[Any], risks: Sequence[Any], max_steps: int
) -> tuple[Values, NDArray[np.bool_]]:
    """Simulate points of one number each, from their risks."""
    K, N, gamma, noise, speed = (
        np.array([float(getattr(risk, name)) for risk in risks]) for name in ("K", "N", "gamma", "noise", "speed")
    )
    eta, above = np.array([problem.rate() for problem in problems]), problems[0].above is not None
    goal = np.array([problem.above if above else problem.epsilon for problem in problems])
    values, done = together(columns, Points(K, N, gamma, noise**2, eta * speed, goal, above), speed, max_steps)
    return values | {"eta_used": eta}, done


def _certified(last: NDArray[np.int64], K: Array, c: Array, gap: Array) -> Values:
    """Bounds on the last steps, and whether they hold, where they can be stated."""
    low, high = step_bounds_of(K, np.maximum(c, 1e-300), np.minimum(gap, FARTHEST))
    fits = (c >= 1e-290) & (gap <= FARTHEST) & np.isfinite(high)
    holds = (low <= last) & (last <= high)
    return {
        "steps_low": np.where(fits, low, np.nan), "steps_high": np.where(fits, high, np.nan),
        "certified": np.where(fits, holds, -1).astype(np.int8),
    }  # fmt: skip


def _theorems(values: Values, points: Mapping[str, Any], eta: Array) -> None:
    """Bounds on ``steps - T_I`` as in `orderwise.STATEMENTS`, here for arrays."""
    K, epsilon, imbalance = points["K"], points["epsilon"], points["imbalance"]
    size = points["L"] * points["delta"]
    log = logarithm(K, size, epsilon)
    scales = (log * K / (eta * size**2 * imbalance**2), K * log / (eta * epsilon))
    flat = size * imbalance <= 1.0
    constants = [fitted_constants()[name].highest for name in THEOREMS]
    after = np.maximum(values["steps"] - values["T_I"] - 1, 0).astype(np.float64)
    stated = (values["steps"] >= 0) & (values["T_I"] < values["last"])
    stated &= points["coordinates"] == "class"
    for i, (scale, regime, constant) in enumerate(zip(scales, (flat, ~flat), constants, strict=True), 1):
        bound = constant * scale
        applies = stated & regime & (scale > 1e-290) & np.isfinite(bound)
        values[f"theorem_{i}_bound"] = np.where(applies, bound, np.nan)
        values[f"theorem_{i}"] = np.where(applies, after <= BOUNDED * bound, -1).astype(np.int8)


def measured(problem: Any, run: Trajectory) -> dict[str, Any]:
    """Return the family's columns of one run."""
    tail = math.nan if run.risk is None else tail_limit(run.risk, run.eta)
    tail = math.nan if tail is None else tail
    rest = resting_loss(run.risk, run.floor)
    found: dict[str, Any] = {
        "regime": run.regime or "", "attention": float(np.mean(run.attention[-1])), "tail_constant": tail,
        "tail_ratio": int(run.t[-1]) * (float(run.loss[-1]) - rest) / tail,
    }  # fmt: skip
    risk = run.risk
    if isinstance(risk, ExchangeableRisk) and math.isinf(risk.N):
        found |= _predictions(run, risk)
    for i, name in enumerate(THEOREMS, 1):
        check = check_order(next(statement for statement in STATEMENTS if statement.name == name), run)
        if check.holds is not None:
            found |= {f"theorem_{i}_bound": check.bound, f"theorem_{i}": int(check.holds)}
    if problem.task == "exchangeable" and math.isinf(problem.N) and problem.features is None:
        found["L_star"] = crossover(run.epsilon, problem.delta, problem.K)
        found["L_half"] = half_ways(*(np.array([float(x)]) for x in (run.epsilon, problem.delta, problem.K)))[0]
        found["L_star_leading"] = crossover(run.epsilon, problem.delta, problem.K, leading_order=True)
    return found


def _predictions(run: Trajectory, risk: ExchangeableRisk) -> dict[str, Any]:
    """Leading order and certified bounds of an exchangeable run with N = ∞."""
    K, eta = (np.array([float(x)]) for x in (risk.K, run.eta * risk.speed))
    start, epsilon = np.array([run.loss[0]]), np.array([run.epsilon])
    found: dict[str, Any] = {"predicted_steps": leading_order(eta, risk.gamma, K, epsilon, start)[0]}
    if run.method != "flow":
        c = step_constant(run.eta, risk.speed, risk.gamma, K)
        gap = np.array([float(run.params)])
        found |= {name: value[0] for name, value in _certified(run.t[-1:], K, c, gap).items()}
    return found


def leading_order(eta: Array, gamma: float | Array, K: Array, epsilon: Array, start: Array) -> Array:
    """``K²/(ηγ) + (K-1)/(4ηε)``, and 0 where the loss is below ``epsilon`` from the start."""
    with np.errstate(over="ignore", divide="ignore"):
        steps = K * K / (eta * gamma) + (K - 1.0) / (4.0 * eta * epsilon)
    return np.where(start > epsilon, steps, 0.0)


def exact_crossover(epsilon: Array, delta: float | Array, K: Array, tail: Array) -> Array:
    """`crossover` for arrays, with the `tail_start` of each K."""
    return np.asarray(np.sqrt(4.0 * epsilon * (K - 1.0) / K) / tail / delta)


def half_ways(epsilon: Array, delta: Array, K: Array) -> Array:
    """`half_way` for arrays, NaN for K < 7, where the exponent does not pass."""
    unit = each(lambda value: half_way(1.0, 1.0, int(value)) if value >= 7 else math.nan, K)
    return np.asarray(np.sqrt(epsilon) * unit / delta)


def each(function: Callable[[float], float], values: Array) -> Array:
    """Evaluate a function of a number once for every value that occurs."""
    distinct, index = indexed(values)
    return np.array([function(value) for value in distinct.tolist()])[index]
