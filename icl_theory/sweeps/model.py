"""A family as a model on a grid.

The family computes as many points as it can as one batch. The others are simulated one
by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icl_theory.engine.trajectory import Stop
from icl_theory.families import Family
from icl_theory.families.fixed_set import has_fixed_set
from icl_theory.families.parameters import is_mse
from icl_theory.sweeps.evaluate import one_line
from icl_theory.sweeps.grid import (
    FAILED,
    MESSAGE,
    NOT_REACHED,
    REACHED,
    STATUS,
    Column,
    Values,
    blank,
    uniform,
)


@dataclass(frozen=True)
class FamilyModel:
    """A family on a grid.

    Parameters
    ----------
    family : type of Family
        The family that is simulated.
    common : mapping
        The parameters that all points share: those that are not axes of the grid.
    """

    family: type[Family]
    common: Mapping[str, Any]

    @property
    def columns(self) -> tuple[Column, ...]:
        """Columns measured at each point, besides status and message."""
        return self.family.every_column()

    def evaluate(self, points: Mapping[str, NDArray[Any]]) -> Values:
        """Measure points in one batch; simulate the points that a batch cannot have."""
        batch_values = self.batched(points)
        not_batched = np.flatnonzero(np.isnan(batch_values["loss"]))
        if not not_batched.size:
            return batch_values
        simulated = self.one_by_one(
            {name: parameter[not_batched] for name, parameter in points.items()}
        )
        values = {}
        for name, batch_column in batch_values.items():
            # The columns of a batch are read-only views of one value.
            column = np.array(batch_column)
            column[not_batched] = simulated[name]
            values[name] = column
        return values

    def batched(self, points: Mapping[str, NDArray[Any]], **common: Any) -> Values:
        """Compute points as one batch; the loss is NaN at points that need a run."""
        size = _size(points)
        with np.errstate(
            over="ignore", invalid="ignore", divide="ignore", under="ignore"
        ):
            computed = self._batch(points, {**self.common, **common})
        values = uniform(
            self.columns, size, {**computed, STATUS.name: REACHED, MESSAGE.name: ""}
        )
        is_computed = ~np.isnan(values["loss"])
        missed_target = is_computed & (values["steps"] < 0)
        if missed_target.any():
            stop = np.broadcast_to(computed.get("stop", "STEPS"), size)
            values[STATUS.name] = _statuses(missed_target)
            values[MESSAGE.name] = _messages(missed_target, stop, points, values)
        return values

    def _batch(
        self, points: Mapping[str, NDArray[Any]], common: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return the columns that the family computes in whole arrays, if it can."""
        if has_fixed_set({**common, **points}):
            return {}  # arrays of a family are for the population
        theory = self.family.theory_columns
        if theory is not None and theory.batch is None:
            return {}  # the columns of that theory need a run of each point
        if is_mse(common):
            # Imported here because few sweeps need it.
            from icl_theory.families.loss_units import batched_mse

            return batched_mse(self.family, points, common) or {}
        return self.family.batched(points, common) or {}

    def one_by_one(self, points: Mapping[str, NDArray[Any]]) -> Values:
        """Simulate each point alone; an error becomes the message of its point."""
        size = _size(points)
        values = blank(self.columns, size)
        for i in range(size):
            try:
                problem = self.problem(
                    {name: parameter[i] for name, parameter in points.items()}
                )
                run = problem.simulate()
                with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                    measured = problem.measured(run)
            except Exception as error:
                measured = {STATUS.name: FAILED, MESSAGE.name: one_line(error)}
            for name, value in measured.items():
                values[name][i] = value
        return values

    def problem(self, point: Mapping[str, Any], **changes: Any) -> Family:
        """Return the problem at a point."""
        parameters = dict(self.common)
        for name, value in point.items():
            parameters[name] = np.asarray(value).item()
        return self.family(**{**parameters, **changes})


def _size(points: Mapping[str, NDArray[Any]]) -> int:
    return len(next(iter(points.values())))


def _statuses(missed_target: NDArray[np.bool_]) -> NDArray[Any]:
    return np.where(missed_target, NOT_REACHED, REACHED).astype(STATUS.dtype)


def _messages(
    missed_target: NDArray[np.bool_],
    stop: NDArray[Any],
    points: Mapping[str, NDArray[Any]],
    values: Values,
) -> NDArray[Any]:
    """Say at each point that missed its target why its run stopped."""
    floor = values["floor"]
    if "epsilon" in points:
        target = points["epsilon"]
    else:
        target = floor + points.get("above", -np.inf)
    # A family without a target has neither parameter: its runs aim at a loss of zero.
    target = np.maximum(target, 0.0)
    messages = np.array(values[MESSAGE.name])
    for i in np.flatnonzero(missed_target):
        messages[i] = Stop[str(stop[i])].say(
            step=int(values["last"][i]), epsilon=target[i], floor=floor[i]
        )
    return messages
