"""Choose how the points of a sweep are computed, many of them at once.

A point is one problem of a sweep, with K features and prompts of N tokens. P is the
number of points. Tasks are exchangeable if all features are equally likely and the
values of a task at any two features have the same mean squared difference.

- Exchangeable tasks with N = ∞ have a closed form (`infinite_prompts`).
- Exchangeable tasks with finite prompts have one number as their state
  (`finite_prompts`).
- All other tasks have K x K scores as their state (`scores`).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array, integer
from icl_theory.engine.scope import DESCENT_OR_FLOW
from icl_theory.families.family import Family, check_points
from icl_theory.families.parameters import is_mse
from icl_theory.families.rule_parameters import within
from icl_theory.regression.batches.doubts import Mask
from icl_theory.regression.batches.finite_prompts import (
    MOST_COUNTED,
    Points,
    descend,
)
from icl_theory.regression.batches.infinite_prompts import closed_columns
from icl_theory.regression.batches.points import SweepPoints
from icl_theory.regression.batches.scores import score_batches
from icl_theory.regression.risks.exchangeable import ExchangeableRisk
from icl_theory.regression.risks.population import PopulationRisk
from icl_theory.sweeps.grid import Values, blank

# A problem, of the family `Regression`, and its risk.
Posed = tuple[Any, Any]


class _Ways(NamedTuple):
    """Masks of the points that are computed in each way, (P,) each.

    Points that no mask selects are simulated one by one.
    """

    in_closed_form: Mask
    as_one_number: Mask
    as_scores: Mask

    @property
    def any_way(self) -> Mask:
        """The points that are computed in any of these ways, (P,)."""
        return self.in_closed_form | self.as_one_number | self.as_scores


def batched(
    family: type[Family],
    points: Mapping[str, NDArray[Any]],
    common: Mapping[str, Any],
    longest: int = 10**5,
) -> Mapping[str, Any] | None:
    """Compute the points of a sweep that a batch can compute, many of them at once.

    All other points are left to simulations. Among these are points with a method, a
    rule or coordinates that no batch computes, points whose finite prompts have more
    than ``longest`` tokens, and points with an imbalance but no closed form. A point
    with invalid parameters is also left to a simulation, whose error message explains
    the reason.

    Parameters
    ----------
    family : type
        The regression family.
    points : mapping of str to ndarray, each (P,)
        The parameters that are numbers or words, with a value for each point.
    common : mapping
        All other parameters. If ``max_steps`` is 0, the result only says which points
        would be computed.
    longest : int
        Largest number of tokens of finite prompts. Points with longer prompts are
        simulated one by one, with the same results.

    Returns
    -------
    mapping of str to array_like, each (P,) or one value for all, or None
        The columns of the sweep. The loss of a point that is left to a simulation is
        NaN. The result is None if all points are left to simulations.
    """
    # `check_points` refuses arguments that no sweep would pass.
    check_points(family, points, common)
    # Runs with a given start, and runs whose loss lacks the factor 1/2, are always
    # simulated one by one.
    if common.get("start") is not None or is_mse(common):
        return None
    longest = integer("longest", longest, minimum=0)
    parameters = SweepPoints.of(points, common)
    # Whether each point is trained by gradient descent or by its flow.
    is_descent = within(DESCENT_OR_FLOW, points, common)
    ways = _ways(parameters, is_descent, longest)
    # If all points have a closed form, as in most sweeps, no table has to be filled
    # part by part.
    if ways.in_closed_form.all() and parameters.max_steps:
        return closed_columns(family, parameters)
    if not ways.any_way.any():
        return None
    if not parameters.max_steps:
        # The loss, 0 or NaN, says which points would be computed.
        return {
            "method": np.where(ways.in_closed_form, "closed", "fast"),
            "loss": np.where(ways.any_way, 0.0, np.nan),
        }
    return _columns(family, points, common, ways)


def _ways(parameters: SweepPoints, is_descent: Mask, longest: int) -> _Ways:
    """Choose the way in which each point is computed.

    ``is_descent`` says which points are trained by gradient descent or by its flow, and
    ``longest`` is the largest number of tokens of finite prompts.
    """
    is_exchangeable = parameters.is_exchangeable
    prompt_length = parameters.N
    is_infinite = np.isinf(prompt_length)
    is_auto = parameters.method == "auto"
    is_closed = np.isin(parameters.method, ("auto", "closed"))
    has_target = parameters.target is not None
    # The two ways without a closed form give only the results of the method "auto".
    # With an imbalance, a simulation adds columns that these two do not compute.
    may_be_batched = is_auto & (is_infinite | (prompt_length <= longest))
    may_be_batched &= parameters.imbalance is None

    # In factored coordinates training starts at random factors, so that one number does
    # not determine the state.
    is_one_number = (
        is_exchangeable & is_descent & (parameters.coordinates != "factored")
    )
    is_countable = np.ones(len(is_infinite), dtype=bool)
    if is_one_number.any():
        descent = parameters.descent()
        is_one_number &= descent.is_in_range
        # Phase I, in which a query comes to pay half of its attention to its own
        # feature, takes about K²/(ηγ) steps, infinitely many for γ = 0. In coordinates
        # other than the scores, η is multiplied by ``speed``. A run of more than
        # `MOST_COUNTED` steps would not be counted, so its point is not tried.
        with np.errstate(over="ignore", divide="ignore"):
            K_squared = parameters.K * parameters.K
            phase_1_steps = K_squared / (descent.eta * descent.speed * descent.gamma)
        is_countable = phase_1_steps <= MOST_COUNTED
    # The batches of `scores` train the scores themselves, the coordinates "class".
    is_class = parameters.coordinates == "class"
    return _Ways(
        in_closed_form=is_one_number & is_infinite & is_closed & has_target,
        as_one_number=is_one_number & ~is_infinite & may_be_batched & is_countable,
        as_scores=~is_exchangeable & is_descent & may_be_batched & is_class,
    )


def _columns(
    family: type[Family],
    points: Mapping[str, NDArray[Any]],
    common: Mapping[str, Any],
    ways: _Ways,
) -> Values:
    """Compute the columns of each point in the way that was chosen for it."""
    size = len(ways.as_scores)
    # At first all values are missing. A point whose loss is still NaN at the end is
    # left to a simulation.
    values: Values = blank(family.every_column(), size)
    # A run that misses its target has taken all steps that are allowed, unless the
    # columns below give another reason.
    values["stop"] = np.full(size, "STEPS", dtype="U9")

    def select(mask: Mask) -> SweepPoints:
        # Return the parameters of the points in the mask.
        selected = {name: value[mask] for name, value in points.items()}
        return SweepPoints.of(selected, common)

    def put(where: Mask | Sequence[int], columns: Mapping[str, Any]) -> None:
        # Write columns into `values` at the points that ``where`` selects, by a mask or
        # by indices.
        for name, column in columns.items():
            values[name][where] = column

    if ways.in_closed_form.any():
        closed = closed_columns(family, select(ways.in_closed_form))
        put(ways.in_closed_form, closed)
    if ways.as_one_number.any():
        put(ways.as_one_number, _one_number_columns(select(ways.as_one_number)))

    posed = _posed(family, points, common, ways.as_scores)
    # Problems whose state is one number, ``reduced``, and problems whose state is the
    # scores, ``full``. The keys are the indices of their points.
    reduced, full = _by_risk(posed)
    if reduced:
        pairs = list(reduced.values())
        put(list(reduced), _reduced_columns(pairs, common["max_steps"]))
    for indices, columns in score_batches(full, common["max_steps"]):
        put(indices, columns)
    return values


def _posed(
    family: type[Family],
    points: Mapping[str, NDArray[Any]],
    common: Mapping[str, Any],
    mask: Mask,
) -> dict[int, Posed]:
    """Return problem and risk of each point in ``mask``, with its index as the key.

    A point whose parameters are refused is left out.
    """
    posed: dict[int, Posed] = {}
    for i in np.flatnonzero(mask).tolist():
        # item() turns a number or a word of NumPy into one of Python.
        own_parameters = {name: value[i].item() for name, value in points.items()}
        # A refused problem is left to its simulation, whose error message says why.
        with contextlib.suppress(ValueError):
            problem: Any = family(**{**common, **own_parameters})
            posed[i] = problem, problem.risk()
    return posed


def _by_risk(posed: dict[int, Posed]) -> tuple[dict[int, Posed], dict[int, Posed]]:
    """Split problems into exchangeable ones and problems over K x K scores.

    The type of the risk decides, and not the name of the task: for some features, tasks
    with other names have an exchangeable risk, too. A problem with any other risk is
    left out, and is simulated.
    """
    reduced = {}
    full = {}
    for i, (problem, risk) in posed.items():
        if isinstance(risk, ExchangeableRisk) and math.isfinite(risk.N):
            reduced[i] = problem, risk
        elif isinstance(risk, PopulationRisk):
            full[i] = problem, risk
    return reduced, full


def _one_number_columns(points: SweepPoints) -> Mapping[str, Any]:
    """Columns of exchangeable points with finite prompts."""
    # The sweep gives a target for every point; the assertion tells mypy so.
    assert points.target is not None
    descent = points.descent()
    batch = Points(
        K=points.K,
        N=points.N,
        gamma=descent.gamma,
        noise_variance=points.noise**2,
        eta=descent.eta,
        speed=descent.speed,
        target=points.target,
        is_excess=points.is_excess,
    )
    return descend(batch, points.max_steps).columns()


def _reduced_columns(posed: Sequence[Posed], max_steps: int) -> Mapping[str, Any]:
    """Columns of problems whose risks are exchangeable, with finite prompts."""
    # Either all points of a sweep have a target loss, epsilon, or all have a target
    # excess, above.
    first_problem, _risk = posed[0]
    is_excess = first_problem.above is not None

    def of_risks(name: str) -> Array:
        return np.array([float(getattr(risk, name)) for _, risk in posed])

    rates = []
    targets = []
    for problem, _ in posed:
        rates.append(problem.rate())
        targets.append(problem.above if is_excess else problem.epsilon)
    batch = Points(
        K=of_risks("K"),
        N=of_risks("N"),
        gamma=of_risks("gamma"),
        noise_variance=of_risks("noise") ** 2,
        eta=np.array(rates),
        speed=of_risks("speed"),
        target=np.array(targets),
        is_excess=is_excess,
    )
    return descend(batch, max_steps).columns()
