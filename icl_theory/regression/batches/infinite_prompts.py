"""Columns of sweeps for N = ∞: whole arrays of points in closed form, or one run.

`closed_columns` computes the columns of P exchangeable points from the closed form of
their steps. `measured` computes the columns of the regression family for one run. If
the run is exchangeable with N = ∞, both functions use the same formulas.

A *point* is one problem of a sweep, with the Lipschitz constant L, the distance Δ
between any two of K features, the variogram γ = L²Δ²/2, the learning rate η and the
target loss ε. The gap u is the difference between the score of the query's own feature
and the other scores. A step of descent is u ← u + c a s², with the attention a on the
query's own feature, the deficit s = 1 - a and the step constant c = η γ K/(K - 1)². (In
embedding coordinates η is multiplied by a ``speed``.) The loss is ½ γ K/(K - 1) s².
Phase I ends at the attention ½, and Phase III, the tail, begins at the deficit of
`tail_start`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import INT64_MAX, Array
from icl_theory.engine.scope import DESCENT, DESCENT_OR_FLOW
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families.family import Family
from icl_theory.regression.batches.points import (
    ExchangeableDescent,
    SweepPoints,
    by_distinct_value,
)
from icl_theory.regression.bounds import step_bounds
from icl_theory.regression.closed.abel import StepCounter
from icl_theory.regression.closed.runs import (
    ClosedRuns,
    CountedRuns,
    closed_runs,
    leading_order,
    step_constant,
)
from icl_theory.regression.phases import half_way, tail_start
from icl_theory.regression.risks.exchangeable import ExchangeableRisk
from icl_theory.regression.tails import resting_loss, tail_limit
from icl_theory.sweeps.grid import Values

# Largest u for which the number of steps is bounded: the largest that `step_bounds`
# takes.
FARTHEST = 300.0
# The counter of steps refuses the step constant 0. So this constant replaces 0 and all
# smaller ones. With any of them, INT64_MAX steps move u by less than 1e-280.
SMALLEST_CONSTANT = 1e-300
# For smaller step constants the columns of bounds are empty, because the bounds of a
# constant that was replaced would be wrong. Any number above `SMALLEST_CONSTANT` would
# do.
SMALLEST_BOUNDED_CONSTANT = 1e-290
# Smallest number of features for which `half_way`, the column ``L_half``, is defined.
FEWEST_HALF_WAY = 7


def closed_columns(family: type[Family], points: SweepPoints) -> dict[str, Any]:
    """Compute the columns of exchangeable points with N = ∞, (P,) each.

    The results of a point are the same, to the bit, as in a simulation of this point
    alone.

    Parameters
    ----------
    family : type
        The regression family, whose ``theory_columns`` are computed too.
    points : SweepPoints
        P points with a target.
    """
    # The target may be None, but `icl_theory.regression.batches.dispatch` passes only
    # points with a target. The assertion tells mypy.
    assert points.target is not None
    K = points.K
    epsilon = points.target
    descent = points.descent()
    tail_deficit = by_distinct_value(lambda value: tail_start(int(value)), K)
    runs, theory = _counted(family, points, descent, tail_deficit)

    # INT64_MAX stands for a target that is never reached.
    is_reached = (runs.hit <= points.max_steps) & (runs.hit < INT64_MAX)
    # A count of steps may be too large by its error, so that a target with a count
    # above ``max_steps`` may still be reached.
    may_be_reached = runs.hit - runs.error <= points.max_steps
    # The limit of t times the loss
    tail_constant = (K - 1.0) / (4.0 * descent.speed) / descent.eta
    boundaries = _boundaries(epsilon, K, tail_deficit)
    # The regime is sharp for L > L*. √(2γ) is L Δ, and the boundary for Δ = 1 is L* Δ.
    is_sharp = np.sqrt(2.0 * descent.gamma) > boundaries["L_star"]
    # The loss at the deficit s = (K-1)/K of the start
    start_loss = 0.5 * descent.gamma * (K - 1.0) / K
    rate = descent.eta * descent.speed
    columns: dict[str, Any] = {
        "method": "closed",
        "floor": 0.0,
        "eta_used": descent.eta,
        "steps": np.where(is_reached, runs.hit, -1),
        "T_I": runs.attends,
        "T_II": runs.tails - runs.attends,
        "T_III": runs.last - runs.tails,
        "last": runs.last,
        "error": np.where(is_reached | may_be_reached, runs.error, 0.0),
        "loss": runs.loss,
        "attention": runs.attention,
        "tail_constant": tail_constant,
    }
    columns |= theory
    columns["regime"] = np.where(is_sharp, "sharp", "flat")
    columns["tail_ratio"] = runs.last * runs.loss / tail_constant
    columns["predicted_steps"] = leading_order(
        rate, descent.gamma, K, epsilon, start_loss
    )
    columns |= _per_delta(boundaries, points.delta)
    columns |= _certified(runs.last, K, descent.step_constant, runs.gap)
    return columns


def _counted(
    family: type[Family],
    points: SweepPoints,
    descent: ExchangeableDescent,
    tail_deficit: Array,
) -> tuple[ClosedRuns, dict[str, Any]]:
    """Return whole runs, and the columns of theory that need the counter of steps.

    ``tail_deficit`` has the deficits at which Phase III begins, (P,). The counter is
    not returned, because its single steps take much memory. Without an imbalance there
    are no columns of theory.
    """
    # `closed_columns` has asserted this already; mypy needs it in each function.
    assert points.target is not None
    constant = np.maximum(descent.step_constant, SMALLEST_CONSTANT)
    counter = StepCounter(points.K, constant)
    runs = closed_runs(
        counter, descent.gamma, points.target, points.max_steps, tail_deficit
    )
    # The family's columns about theorems, and the function that computes them for many
    # points at once
    theory = family.theory_columns
    if theory is None or theory.batch is None or points.imbalance is None:
        return runs, {}
    # INT64_MAX stands for a target that is never reached.
    is_reached = (runs.hit <= points.max_steps) & (runs.hit < INT64_MAX)
    counted = CountedRuns(
        size=points.L * points.delta,
        eta=descent.eta,
        K=points.K,
        epsilon=points.target,
        imbalance=points.imbalance,
        counter=counter,
        attends=runs.attends,
        steps=np.where(is_reached, runs.hit, INT64_MAX),
        in_class_coordinates=points.coordinates == "class",
    )
    return runs, theory.batch(counted)


def _certified(last: NDArray[np.int64], K: Array, c: Array, gap: Array) -> Values:
    """Bounds on the last step of each point, and whether they hold.

    ``c`` has the step constants, and ``gap`` the gaps u at the last steps, (P,) each.
    The column ``certified`` is 1 if the bounds hold, 0 if not, and -1 without bounds.
    """
    # Arguments out of range are moved to the ends of the range. The bounds of these
    # points are not used.
    constant = np.maximum(c, SMALLEST_CONSTANT)
    low, high = step_bounds(K, constant, np.minimum(gap, FARTHEST))
    is_bounded = (
        (c >= SMALLEST_BOUNDED_CONSTANT) & (gap <= FARTHEST) & np.isfinite(high)
    )
    holds = (low <= last) & (last <= high)
    return {
        "steps_low": np.where(is_bounded, low, np.nan),
        "steps_high": np.where(is_bounded, high, np.nan),
        "certified": np.where(is_bounded, holds, -1).astype(np.int8),
    }


def _boundaries(epsilon: Array, K: Array, tail_deficit: Array) -> Values:
    """Values of L between the regimes for Δ = 1, (P,) each.

    They are the values of `crossover` and `half_way`, and the leading order of the
    crossover. ``tail_deficit`` has the deficits at which Phase III begins.
    """

    # `half_way` at ε = Δ = 1, as a function of K; NaN if it is not defined
    def half_way_of_unit_target(features: float) -> float:
        if features < FEWEST_HALF_WAY:
            return math.nan
        return half_way(epsilon=1.0, delta=1.0, K=int(features))

    return {
        # The loss ¼ L² K/(K-1) s² is ε at the deficit s where the tail begins.
        "L_star": np.sqrt(4.0 * epsilon * (K - 1.0) / K) / tail_deficit,
        # All boundaries are proportional to √ε.
        "L_half": np.sqrt(epsilon) * by_distinct_value(half_way_of_unit_target, K),
        # At this L the tail takes as many steps, (K-1)/(4ηε), as Phase I, K²/(ηγ), to
        # leading order. Here γ = L²/2.
        "L_star_leading": np.sqrt(8.0 * epsilon) * K / np.sqrt(K - 1.0),
    }


def _per_delta(boundaries: Values, delta: Array | float) -> Values:
    """Turn the boundaries for Δ = 1 into the boundaries for Δ = ``delta``.

    A boundary is proportional to 1/Δ, because the loss depends on the product L Δ.
    """
    columns = {}
    for name, value in boundaries.items():
        columns[name] = value / delta
    return columns


def measured(problem: Any, run: Trajectory) -> dict[str, Any]:
    """Columns of the regression family for one run.

    Parameters
    ----------
    problem : Regression
        The problem.
    run : Trajectory
        A run of this problem.

    Returns
    -------
    dict of str to number or str
        The columns by name. A column that has no value for this run is missing.
    """
    # A run that was read from a file may have no risk.
    risk = run.risk
    limit = math.nan
    if risk is not None and DESCENT_OR_FLOW.applies(run):
        # t (loss - resting loss) tends to this limit. It is None if it is not known, or
        # is 0.
        known_limit = tail_limit(risk, run.eta)
        if known_limit is not None:
            limit = known_limit
    # The resting loss, to which the run tends, may be above the floor.
    excess = float(run.loss[-1]) - resting_loss(risk, run.floor)
    columns: dict[str, Any] = {
        "regime": run.regime or "",
        "attention": float(np.mean(run.attention[-1])),
        "tail_constant": limit,
        "tail_ratio": int(run.t[-1]) * excess / limit,
    }
    # ``theory`` is the scope of the theory, the training to which it applies.
    if not problem.theory.applies(run):
        return columns
    if isinstance(risk, ExchangeableRisk) and math.isinf(risk.N):
        columns |= _predictions(run, risk)
    is_exchangeable = problem.task == "exchangeable" and problem.features is None
    if is_exchangeable and math.isinf(problem.N):
        columns |= _boundaries_of(problem, run)
    return columns


def _predictions(run: Trajectory, risk: ExchangeableRisk) -> dict[str, Any]:
    """Leading order and certified bounds of an exchangeable run with N = ∞."""
    K = np.array([float(risk.K)])
    rate = np.array([float(run.eta * risk.speed)])
    epsilon = np.array([run.epsilon])
    start_loss = np.array([run.loss[0]])
    steps = leading_order(rate, risk.gamma, K, epsilon, start_loss)
    columns: dict[str, Any] = {"predicted_steps": steps[0]}
    # The bounds are for the iterates, and not for the flow.
    if DESCENT.applies(run):
        c = step_constant(run.eta, risk.speed, risk.gamma, K)
        gap = np.array([float(run.params)])
        columns |= _of_one_point(_certified(run.t[-1:], K, c, gap))
    return columns


def _boundaries_of(problem: Any, run: Trajectory) -> dict[str, Any]:
    """Boundaries of the regimes for one problem, whose run has a target."""
    epsilon = np.array([float(run.epsilon)])  # type: ignore[arg-type]
    K = np.array([float(problem.K)])
    tail_deficit = np.array([float(tail_start(problem.K))])
    boundaries = _boundaries(epsilon, K, tail_deficit)
    return _of_one_point(_per_delta(boundaries, problem.delta))


def _of_one_point(columns: Values) -> dict[str, Any]:
    """Turn columns that have one entry each into single values."""
    values = {}
    for name, column in columns.items():
        values[name] = column[0]
    return values
