"""What a sweep measures at each point of a grid of in-context regressions.

Points of the exchangeable class with N = ∞ are computed in whole arrays, all others by `simulate`, one by one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import INT64_MAX, Array
from icl_theory.grid import MESSAGE, NOT_REACHED, REACHED, STATUS, Column, Values, blank, point_by_point
from icl_theory.regression.abel import StepCounter
from icl_theory.regression.certified import step_bounds_of
from icl_theory.regression.closed import closed_runs, step_constant
from icl_theory.regression.exchangeable import ExchangeableRisk
from icl_theory.regression.features import Features
from icl_theory.regression.orderwise import BOUNDED, STATEMENTS, check_order
from icl_theory.regression.phases import crossover, half_way, tail_start
from icl_theory.regression.reduction import embedding_speed
from icl_theory.regression.simulate import simulate, tail_limit
from icl_theory.regression.stability import stable_rate
from icl_theory.regression.tasks import Task, exchangeable_gamma
from icl_theory.trajectory import Trajectory

THEOREMS = ("Theorem 1", "Theorem 2")
LIPSCHITZ = "label units per feature unit"
HELD = "1 holds, 0 fails, -1 where its hypotheses do"

COLUMNS = (
    Column("eta_used", "f8", "", "learning rate η", "η", r"\eta"),
    Column(
        "steps", "i8", "steps", "first step with loss <= epsilon; -1 where it was not reached", "T_ε",
        r"T_\varepsilon", "steps",
    ),
    *(
        Column(f"T_{name}", "i8", "steps", f"length of Phase {name}, {until}", f"T_{name}",
               rf"T_{{\mathrm{{{name}}}}}", "phase", (("phase", name),))
        for name, until in (
            ("I", "until the attention of the slowest query is 1/2"),
            ("II", "0 where the run ends before"),
            ("III", "the tail, 0 where the run ends before"),
        )
    ),
    Column("last", "i8", "steps", "step at which the run ended: T_I + T_II + T_III"),
    Column(
        "regime", "U6", "", '"flat" or "sharp"; empty where it is not defined', role="word", extra=(("table", 1),),
    ),
    Column("method", "U8", "", "how the steps were computed", role="word"),
    Column("error", "f8", "steps", "estimated error of steps; 0 where each was taken, NaN where unknown"),
    Column("loss", "f8", "squared label units", "loss at the end"),
    Column("attention", "f8", "", "target attention at the end, mean over queries"),
    Column("floor", "f8", "squared label units", "irreducible loss"),
    Column("tail_constant", "f8", "squared label units", "limit of t (loss - floor), where it is known"),
    Column("tail_ratio", "f8", "", "t (loss - floor) at the end, over tail_constant"),
    Column(
        "predicted_steps", "f8", "steps", "leading order K²/(ηγ) + (K-1)/(4ηε), exchangeable with N = inf",
        "predicted T_ε", r"\mathrm{predicted}\ T_\varepsilon", "predicted",
    ),
    Column(
        "L_half", "f8", LIPSCHITZ, "L at which the exponents of T in L, Δ and ε are half-way between their limits,"
        " for gradient flow with K >= 7 features, exchangeable with N = inf",
        "L½", "L_{1/2}", "boundary",
        (("of", "L"), ("definition", "half-way in L"), ("half_way", ("L", "delta", "epsilon"))),
    ),
    Column(
        "L_star", "f8", LIPSCHITZ, "predicted crossover L*, exact, for the exchangeable class with N = inf", "L*",
        "L^*", "boundary", (("of", "L"), ("definition", "exact onset of the tail")),
    ),
    Column(
        "L_star_leading", "f8", LIPSCHITZ, "the same at leading order in K", "leading-order L*",
        r"\mathrm{leading\ order}\ L^*", "boundary", (("of", "L"), ("definition", "leading order in K")),
    ),
    Column("steps_low", "f8", "steps", "certified lower bound on last, exchangeable with N = inf"),
    Column("steps_high", "f8", "steps", "certified upper bound on last"),
    Column("certified", "i1", "", f"whether last lies between the two: {HELD}", role="verdict"),
    *(
        column
        for i in (1, 2)
        for column in (
            Column(f"theorem_{i}_bound", "f8", "steps", f"Theorem {i}'s bound on steps - T_I, its constant fitted"),
            Column(
                f"theorem_{i}", "i1", "", f"whether it bounds steps - T_I up to a factor {BOUNDED:g}: {HELD}",
                f"Thm {i}", role="verdict",
            ),
        )
    ),
)  # fmt: skip


def exponent_limits(auto_eta: bool, coordinates: str) -> dict[str, tuple[float, float]]:
    """Return the limits of d ln T/d ln x at small and at large x.

    At one end learning to attend decides, at the other the tail. A learning rate that is held adds nothing; the
    stable one is K/(L²Δ²) over the speed of the coordinates, Δ⁴/4 in those of embeddings.
    """
    if auto_eta:
        return {"L": (0.0, 2.0), "delta": (0.0, 2.0), "K": (0.0, 1.0), "epsilon": (-1.0, 0.0)}
    gap = (-6.0, -4.0) if coordinates == "embedding" else (-2.0, 0.0)
    return {"L": (-2.0, 0.0), "delta": gap, "K": (1.0, 2.0), "epsilon": (-1.0, 0.0)}


class _Steps(NamedTuple):
    """Of exchangeable points: variogram, speed of the coordinates, learning rate, step constant, all sound."""

    gamma: Array
    speed: Array
    eta: Array
    c: Array
    in_range: NDArray[np.bool_]


@dataclass(frozen=True)
class RegressionModel:
    """In-context regression over the axes L, delta, eta, K, N, epsilon, noise and, where given, imbalance.

    Attributes
    ----------
    task, coordinates, method, max_steps
        As in `simulate`.
    auto_eta : bool
        Take the learning rate of `stable_rate` at each point instead of an axis.
    constants : tuple of float
        Fitted constants of Theorems 1 and 2, see `fitted_constants`.
    """

    task: Task | Callable[[float], Task] | None
    coordinates: str
    method: str
    max_steps: int
    auto_eta: bool
    constants: tuple[float, float]

    @property
    def columns(self) -> tuple[Column, ...]:
        """What is measured."""
        return COLUMNS

    def is_closed(self, N: Array) -> NDArray[np.bool_]:
        """Which points have a closed form that is computed in whole arrays."""
        suits = self.task is None and self.coordinates != "factored" and self.method in ("auto", "closed")
        return np.isinf(N) & suits

    def evaluate(self, points: Mapping[str, Array]) -> Values:
        """Measure some points."""
        size = len(points["K"])
        values = blank(COLUMNS, size)
        closed = self.is_closed(points["N"])
        if closed.any():
            with np.errstate(over="ignore", invalid="ignore"):
                closed &= self._steps(points).in_range  # what is not, `simulate` refuses, and says why
        for part, measure in ((closed, self._closed), (~closed, self._each)):
            index = np.flatnonzero(part)
            if index.size:
                with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                    found = measure({name: value[index] for name, value in points.items()})
                for name, column in values.items():
                    column[index] = found[name]
        return values

    def rate(self, point: Mapping[str, Any], variogram: Any, speed: Any) -> Any:
        """Return the learning rate of a point, or of many."""
        if not self.auto_eta:
            return point["eta"]
        return stable_rate(variogram, point["K"], noise=point["noise"], N=point["N"], speed=speed)

    def _steps(self, points: Mapping[str, Array]) -> _Steps:
        """Return the step constants of exchangeable points."""
        size, delta = points["L"] * points["delta"], points["delta"]
        speed = np.ones(len(delta))
        fits = (size > 1e-140) & (size < 1e140)
        if self.coordinates == "embedding":
            fits &= (delta > 1e-60) & (delta < 1e60)
            speed = each(embedding_speed, np.where(fits, delta, 1.0))
        size = np.where(fits, size, 1.0)
        gamma = 0.5 * (size * size)
        eta = self.rate(points, gamma, speed)
        c = step_constant(eta, speed, gamma, points["K"])
        return _Steps(gamma, speed, eta, c, fits & (c < 1e300) & (gamma > 1e-290) & (gamma < 1e290))

    def seconds(self, point: Mapping[str, float], steps: int = 200) -> float:
        """Estimate how long a point takes if all its steps are taken, from the first few and the leading order."""
        few = replace(self, max_steps=min(steps, self.max_steps))
        start = time.perf_counter()
        found = few.evaluate({name: np.array([value]) for name, value in point.items()})
        spent = time.perf_counter() - start
        taken = int(found["last"][0])
        if found[STATUS.name][0] != NOT_REACHED or taken < few.max_steps:
            return spent
        K, eta, epsilon = (np.array([value]) for value in (point["K"], found["eta_used"][0], point["epsilon"]))
        speed = embedding_speed(point["delta"]) if self.coordinates == "embedding" else 1.0
        gamma = 0.5 * (point["L"] * point["delta"]) ** 2
        expected = leading_order(eta * speed, gamma, K, epsilon, np.array([math.inf]))[0]
        return spent * max(1.0, min(expected, self.max_steps) / taken)

    def _each(self, points: Mapping[str, Array]) -> Values:
        def measure(**point: float) -> Mapping[str, Any]:
            return self._measured(point)

        return point_by_point(COLUMNS, points, measure)

    def _measured(self, point: Mapping[str, float]) -> Mapping[str, Any]:
        L, delta, K, N = float(point["L"]), float(point["delta"]), int(point["K"]), point["N"]
        imbalance = point.get("imbalance")
        eta = point.get("eta", 1.0)
        if self.auto_eta:
            speed = embedding_speed(delta) if self.coordinates == "embedding" else 1.0
            law = self.task if self.task is None or isinstance(self.task, Task) else self.task(L)
            pairs = exchangeable_gamma(L, delta) if law is None else law.variogram(Features.simplex(K, delta)).max()
            eta = self.rate(point, pairs, speed)
        run = simulate(
            L, delta, float(eta), K=K, N=math.inf if math.isinf(N) else int(N), epsilon=float(point["epsilon"]),
            noise=float(point["noise"]), task=self.task, coordinates=self.coordinates, method=self.method,
            max_steps=self.max_steps, imbalance=None if imbalance is None else float(imbalance),
        )  # fmt: skip
        if run.stop_reason.startswith("interrupted"):
            raise KeyboardInterrupt
        return measured(run)

    def _closed(self, points: Mapping[str, Array]) -> Values:
        """Measure points in closed form; each result is the one of `measured` on the run of `simulate`."""
        K, epsilon = points["K"], points["epsilon"]
        values = blank(COLUMNS, len(K))
        gamma, speed, eta, c, _ = self._steps(points)
        counter = StepCounter(K, np.maximum(c, 1e-300))
        tail = each(lambda value: tail_start(int(value)), K)
        found = closed_runs(counter, gamma, epsilon, self.max_steps, tail)
        reached = (found.hit <= self.max_steps) & (found.hit < INT64_MAX)
        values |= {
            "eta_used": eta, "steps": np.where(reached, found.hit, -1), "T_I": found.attends,
            "T_II": found.tails - found.attends, "T_III": found.last - found.tails, "last": found.last,
            "error": np.where(reached, found.error, 0.0), "loss": found.loss, "attention": found.attention,
            "floor": np.zeros(len(K)), "tail_constant": (K - 1.0) / (4.0 * eta * speed),
        }  # fmt: skip
        values["method"][:] = "closed"
        values["regime"] = np.where(np.sqrt(2.0 * gamma) > exact_crossover(epsilon, 1.0, K, tail), "sharp", "flat")
        values["tail_ratio"] = found.last * found.loss / values["tail_constant"]
        start = 0.5 * gamma * (K - 1.0) / K
        values["predicted_steps"] = leading_order(eta * speed, gamma, K, epsilon, start)
        values["L_star"] = exact_crossover(epsilon, points["delta"], K, tail)
        values["L_half"] = half_ways(epsilon, points["delta"], K)
        values["L_star_leading"] = np.sqrt(8.0 * epsilon) * K / np.sqrt(K - 1.0) / points["delta"]
        self._certify(values, K, c, found.gap)
        if "imbalance" in points and self.coordinates == "class":
            self._theorems(values, points, eta)
        values[STATUS.name][:] = np.where(reached, REACHED, NOT_REACHED)
        for i in np.flatnonzero(~reached):
            values[MESSAGE.name][i] = f"took all {found.last[i]} steps without reaching epsilon = {epsilon[i]:g}"
        return values

    @staticmethod
    def _certify(values: Values, K: Array, c: Array, gap: Array) -> None:
        fits = (c >= 1e-290) & (gap <= 300.0)
        low, high = step_bounds_of(K, c, np.minimum(gap, 300.0))
        fits &= np.isfinite(high)
        values["steps_low"], values["steps_high"] = np.where(fits, low, np.nan), np.where(fits, high, np.nan)
        holds = (low <= values["last"]) & (values["last"] <= high)
        values["certified"] = np.where(fits, holds, -1).astype(np.int8)

    def _theorems(self, values: Values, points: Mapping[str, Array], eta: Array) -> None:
        """Bounds on ``steps - T_I`` as in `orderwise.STATEMENTS`, here for arrays."""
        K, epsilon, imbalance = points["K"], points["epsilon"], points["imbalance"]
        size = points["L"] * points["delta"]
        logarithm = np.log(K / np.sqrt(epsilon))
        scales = (logarithm * K / (eta * size**2 * imbalance**2), K * logarithm / (eta * epsilon))
        flat = size * imbalance <= 1.0
        after = (values["steps"] - values["T_I"]).astype(np.float64)
        stated = (values["steps"] >= 0) & (values["T_I"] < values["last"]) & (epsilon <= 1.0)
        for i, (scale, regime, constant) in enumerate(zip(scales, (flat, ~flat), self.constants, strict=True), 1):
            bound = constant * scale
            applies = stated & regime & (np.minimum(after, bound) > 1e-290)
            values[f"theorem_{i}_bound"] = np.where(applies, bound, np.nan)
            values[f"theorem_{i}"] = np.where(applies, after <= BOUNDED * bound, -1).astype(np.int8)


def measured(run: Trajectory) -> dict[str, Any]:
    """Return the columns of one run of `simulate`.

    Examples
    --------
    >>> import icl_theory as icl
    >>> from icl_theory.regression.points import measured
    >>> found = measured(icl.simulate(2.0, 1.0, 4.0, epsilon=1e-4))
    >>> found["steps"], found["regime"], int(found["certified"])
    (12423, 'sharp', 1)
    """
    last, info, phases = int(run.t[-1]), run.info, run.phases
    assert phases is not None
    lengths = [0 if part is None else part[1] - part[0] for part in phases]
    tail = math.nan if run.risk is None else tail_limit(run.risk, run.eta)
    tail = math.nan if tail is None else tail
    found: dict[str, Any] = {
        "eta_used": run.eta, "steps": -1 if run.steps is None else run.steps,
        "T_I": lengths[0], "T_II": lengths[1], "T_III": lengths[2], "last": last,
        "regime": run.regime or "", "method": run.method,
        "error": run.error if run.error is not None else 0.0 if run.method == "exact" else math.nan,
        "loss": float(run.loss[-1]), "attention": float(np.mean(run.attention[-1])), "floor": run.floor,
        "tail_constant": tail, "tail_ratio": last * (float(run.loss[-1]) - run.floor) / tail,
        STATUS.name: REACHED if run.converged else NOT_REACHED,
        MESSAGE.name: "" if run.converged else run.stop_reason,
    }  # fmt: skip
    risk = run.risk
    if isinstance(risk, ExchangeableRisk) and math.isinf(risk.N):
        found |= _predictions(run, risk)
    for i, name in enumerate(THEOREMS, 1):
        check = check_order(next(statement for statement in STATEMENTS if statement.name == name), run)
        if check.holds is not None:
            found |= {f"theorem_{i}_bound": check.bound, f"theorem_{i}": int(check.holds)}
    if info["task"] is None and math.isinf(info["N"]) and info["features"] is None:
        found["L_star"] = crossover(run.epsilon, info["delta"], info["K"])
        found["L_star_leading"] = crossover(run.epsilon, info["delta"], info["K"], leading_order=True)
        found["L_half"] = half_ways(*(np.array([float(x)]) for x in (run.epsilon, info["delta"], info["K"])))[0]
    return found


def _predictions(run: Trajectory, risk: ExchangeableRisk) -> dict[str, Any]:
    """Leading order and certified bounds of an exchangeable run with N = ∞."""
    K, eta = (np.array([float(x)]) for x in (risk.K, run.eta * risk.speed))
    start, epsilon = np.array([run.loss[0]]), np.array([run.epsilon])
    found: dict[str, Any] = {"predicted_steps": leading_order(eta, risk.gamma, K, epsilon, start)[0]}
    if run.method != "flow":
        c = step_constant(run.eta, risk.speed, risk.gamma, K)
        values = {"last": run.t[-1:]}
        RegressionModel._certify(values, K, c, np.array([float(run.params)]))
        found |= {name: values[name][0] for name in ("steps_low", "steps_high", "certified")}
    return found


def leading_order(eta: Array, gamma: float | Array, K: Array, epsilon: Array, start: Array) -> Array:
    """``K²/(ηγ) + (K-1)/(4ηε)``, and 0 where the loss is below ``epsilon`` from the start."""
    with np.errstate(over="ignore"):
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
    distinct, index = np.unique(values, return_inverse=True)
    return np.array([function(value) for value in distinct.tolist()])[index]
