"""A family as a model that a sweep evaluates at the points of a grid.

The family computes as many points as it can in one batch, which is a computation with
whole arrays. All other points are simulated one by one.
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
        The parameters that are not axes of the grid, so that all points share them.
    """

    family: type[Family]
    common: Mapping[str, Any]

    @property
    def columns(self) -> tuple[Column, ...]:
        """Columns measured at each point, besides status and message."""
        return self.family.every_column()

    def evaluate(self, points: Mapping[str, NDArray[Any]]) -> Values:
        """Return every column of P points, (P,) each.

        Points that cannot be computed in the batch are simulated one by one.
        """
        batch_values = self.batched(points)
        # `batched` leaves the loss NaN at a point that it cannot compute.
        not_batched = np.flatnonzero(np.isnan(batch_values["loss"]))
        if not not_batched.size:
            return batch_values
        simulated = self.one_by_one(
            {name: parameter[not_batched] for name, parameter in points.items()}
        )
        values = {}
        for name, batch_column in batch_values.items():
            # A column of a batch may be a read-only view of one value.
            column = np.array(batch_column)
            column[not_batched] = simulated[name]
            values[name] = column
        return values

    def batched(self, points: Mapping[str, NDArray[Any]], **common: Any) -> Values:
        """Return every column of P points, (P,) each, computed in one batch.

        Points that must be simulated one by one have the loss NaN. ``common`` replaces
        parameters that all points share.
        """
        size = _size(points)
        # A point whose loss is NaN is simulated by itself, so NumPy need not warn.
        with np.errstate(
            over="ignore", invalid="ignore", divide="ignore", under="ignore"
        ):
            computed = self._batch(points, {**self.common, **common})
        # `uniform` repeats a single value for all points. A column that the family has
        # not computed gets its missing value, which is NaN for the loss.
        values = uniform(
            self.columns, size, {**computed, STATUS.name: REACHED, MESSAGE.name: ""}
        )
        is_computed = ~np.isnan(values["loss"])
        # The column "steps" has -1 at a point that does not reach its target.
        missed_target = is_computed & (values["steps"] < 0)
        if missed_target.any():
            # If the family does not say why the runs stopped, they have taken all
            # steps that are allowed.
            stop = np.broadcast_to(computed.get("stop", Stop.STEPS.name), size)
            values[STATUS.name] = _statuses(missed_target)
            values[MESSAGE.name] = _messages(missed_target, stop, points, values)
        return values

    def _batch(
        self, points: Mapping[str, NDArray[Any]], common: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return the columns that the family computes in one batch.

        The result is empty if the family can compute none of these points in a batch.
        """
        if has_fixed_set({**common, **points}):
            # In a batch, families compute training on the population loss only.
            return {}
        theory = self.family.theory_columns
        if theory is not None and theory.batch is None:
            # The columns of this theory need a run at each point.
            return {}
        if is_mse(common):
            # Imported here because few sweeps need it.
            from icl_theory.families.loss_units import batched_mse

            return batched_mse(self.family, points, common) or {}
        return self.family.batched(points, common) or {}

    def one_by_one(self, points: Mapping[str, NDArray[Any]]) -> Values:
        """Return every column of P points, (P,) each, from a simulation of each point.

        If the simulation of a point raises an error, the point has the status "failed",
        and the text of the error is its message.
        """
        size = _size(points)
        # At first every value is missing. At a point that fails, only its status and
        # its message are set.
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
        """Return the problem at a point, an instance of the family.

        ``changes`` replace some of its parameters.
        """
        parameters = dict(self.common)
        for name, value in point.items():
            # item() turns a number or a word of NumPy into one of Python.
            parameters[name] = np.asarray(value).item()
        return self.family(**{**parameters, **changes})


def _size(points: Mapping[str, NDArray[Any]]) -> int:
    """Return the number P of points, from parameters of shape (P,)."""
    return len(next(iter(points.values())))


def _statuses(missed_target: NDArray[np.bool_]) -> NDArray[Any]:
    """Return the status of each point of a batch: reached or not reached."""
    return np.where(missed_target, NOT_REACHED, REACHED).astype(STATUS.dtype)


def _messages(
    missed_target: NDArray[np.bool_],
    stop: NDArray[Any],
    points: Mapping[str, NDArray[Any]],
    values: Values,
) -> NDArray[Any]:
    """Return the message of each point of a batch.

    The message of a point that missed its target says why its run stopped. ``stop`` has
    the name of a `Stop` for each point.
    """
    floor = values["floor"]
    if "epsilon" in points:
        target = points["epsilon"]
    elif "above" in points:
        target = floor + points["above"]
    else:
        # There is no target: even a single value of ``epsilon`` or ``above`` would be
        # an axis of the grid, and so be in ``points``. A simulation then has the target
        # 0, to which -inf is raised below.
        target = floor - np.inf
    # No loss is negative, so the lowest target is a loss of 0.
    target = np.maximum(target, 0.0)
    messages = np.array(values[MESSAGE.name])
    for i in np.flatnonzero(missed_target):
        messages[i] = Stop[str(stop[i])].say(
            step=int(values["last"][i]), epsilon=target[i], floor=floor[i]
        )
    return messages
