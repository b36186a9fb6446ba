"""A family as a model on a grid: points that it computes as a batch, and the others, one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icl_theory.engine.trajectory import Stop
from icl_theory.families import Family
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
    """A family on a grid; ``common`` are the parameters that are no numbers or words on it."""

    family: type[Family]
    common: Mapping[str, Any]

    @property
    def columns(self) -> tuple[Column, ...]:
        """What is measured."""
        return self.family.every_column()

    def evaluate(self, points: Mapping[str, NDArray[Any]]) -> Values:
        """Measure some points."""
        values = self.batched(points)
        left = np.flatnonzero(np.isnan(values["loss"]))
        if left.size:
            simulated = self.one_by_one(
                {name: value[left] for name, value in points.items()}
            )
            values = {name: np.array(column) for name, column in values.items()}
            for name, column in values.items():
                column[left] = simulated[name]
        return values

    def batched(self, points: Mapping[str, NDArray[Any]], **common: Any) -> Values:
        """Return what the family computes of some points in whole arrays; the others have NaN as their loss."""
        size = len(next(iter(points.values())))
        with np.errstate(
            over="ignore", invalid="ignore", divide="ignore", under="ignore"
        ):
            found = self.family.batched(points, {**self.common, **common}) or {}
        values = uniform(
            self.columns, size, {**found, STATUS.name: REACHED, MESSAGE.name: ""}
        )
        missed = (values["steps"] < 0) & ~np.isnan(values["loss"])
        if missed.any():
            values[STATUS.name] = np.where(missed, NOT_REACHED, REACHED).astype(
                STATUS.dtype
            )
            values[MESSAGE.name] = np.array(values[MESSAGE.name])
            stop = np.broadcast_to(found.get("stop", "STEPS"), size)
            goal = (
                points["epsilon"]
                if "epsilon" in points
                else values["floor"] + points.get("above", -np.inf)
            )
            goal = np.maximum(goal, 0.0)  # without a target it is zero
            for i in np.flatnonzero(missed):
                facts = {
                    "step": int(values["last"][i]),
                    "epsilon": goal[i],
                    "floor": values["floor"][i],
                }
                values[MESSAGE.name][i] = Stop[str(stop[i])].say(**facts)
        return values

    def one_by_one(self, points: Mapping[str, NDArray[Any]]) -> Values:
        """Simulate each of some points alone; where that fails, the point does."""
        size = len(next(iter(points.values())))
        values = blank(self.columns, size)
        for i in range(size):
            try:
                problem = self.problem(
                    {name: value[i] for name, value in points.items()}
                )
                run = problem.simulate()
                with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                    found = problem.measured(run)
            except Exception as error:
                found = {STATUS.name: FAILED, MESSAGE.name: one_line(error)}
            for name, value in found.items():
                values[name][i] = value
        return values

    def problem(self, point: Mapping[str, Any], **changes: Any) -> Family:
        """Return the problem at a point."""
        return self.family(
            **{
                **self.common,
                **{name: np.asarray(value).item() for name, value in point.items()},
                **changes,
            }
        )
