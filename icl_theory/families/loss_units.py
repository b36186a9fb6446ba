r"""Losses with and without the factor 1/2.

The theory is written for the loss :math:`\tfrac12 E(\hat y - y)^2`, and all formulas of
this package have its factor 1/2. Many programs train on the mean squared error, which
is twice as large. A family that declares ``loss`` by `loss_form` can also train on the
mean squared error, which is twice its risk. For such a run, a theory is evaluated on
the same training with the loss of the theory (`Family.half`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from icl_theory.engine.scaled import ScaledRisk, ScaledSolution, scaled
from icl_theory.engine.scope import DESCENT_OR_FLOW
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families.parameters import HALF
from icl_theory.families.rule_parameters import within

if TYPE_CHECKING:
    from icl_theory.families.family import Family

# The mean squared error divided by the loss of the theory.
FACTOR = 2.0


def in_half_units(run: Trajectory, problem: Family, plain: bool) -> Trajectory:
    """Return a run on the mean squared error with its losses halved.

    The halved losses are the losses of the theory, ½ E(ŷ - y)².

    Parameters
    ----------
    run : Trajectory
        The run.
    problem : Family
        The same problem with the loss of the theory.
    plain : bool
        Whether the run is trained by plain descent. The rate that takes the same steps
        on half the loss is then twice as large.
    """
    # The risk of such a run is a wrapper, which multiplies the losses of the theory's
    # risk by 2. A solution in closed form has such a wrapper, too. Both are removed
    # here. Any other solution is kept, because its states do not depend on the unit. (A
    # run from a file may have neither risk nor solution.)
    risk = run.risk.risk if isinstance(run.risk, ScaledRisk) else None
    solution = run.solution
    if isinstance(solution, ScaledSolution):
        solution = solution.solution
    return dataclasses.replace(
        run,
        loss=run.loss / FACTOR,
        # `scaled` multiplies only the observations that are losses.
        observed=scaled(run.observed, 1.0 / FACTOR),
        floor=run.floor / FACTOR,
        epsilon=run.epsilon / FACTOR,
        # At twice the rate, plain descent takes the same steps on half the loss.
        eta=FACTOR * run.eta if plain else run.eta,
        risk=risk,
        solution=solution,
        family=problem,
        # `Family.describe` adds the notes of the problem with half the loss.
        notes={},
    )


def in_mse(family: type[Family], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of columns, with losses turned into mean squared errors.

    The argument ``values`` has the values by the names of the columns. Its losses have
    the factor 1/2.
    """
    columns_of_losses = {
        column.name
        for column in family.every_column()
        if column.unit == family.loss_unit
    }
    converted = {}
    for name, value in values.items():
        if name in columns_of_losses:
            # [()] turns an array without axes into a number.
            converted[name] = FACTOR * np.asarray(value)[()]
        else:
            converted[name] = value
    return converted


def batched_mse(
    family: type[Family], points: Mapping[str, NDArray[Any]], common: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """Compute points of a sweep on the mean squared error by `Family.batched`.

    The arguments are the same as for `Family.batched`. The result is None if
    `Family.batched` returns None, or if a point is trained neither by plain descent nor
    by its flow. Other training need not take the same steps on half the loss at twice
    the rate.
    """
    # `within` says for each point whether its training is in the scope.
    if not within(DESCENT_OR_FLOW, points, common).all():
        return None
    # The same points on half the loss: at twice the rate, with half the targets.
    half_points = dict(points)
    factors = {"eta": FACTOR, "epsilon": 1.0 / FACTOR, "above": 1.0 / FACTOR}
    for name, factor in factors.items():
        if name in points:
            half_points[name] = factor * points[name]
    columns = family.batched(half_points, {**common, "loss": HALF})
    if columns is None:
        return None
    values = in_mse(family, columns)
    # `in_mse` converts only losses. So the rate is still the rate for half the loss,
    # which is twice the rate for the mean squared error.
    if "eta_used" in values:
        values["eta_used"] = np.asarray(values["eta_used"]) / FACTOR
    return values
