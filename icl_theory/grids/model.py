"""A family as a model on a grid: points in closed form, points that are simulated together, and the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icl_theory.families import Family
from icl_theory.grids.evaluate import point_by_point
from icl_theory.grids.grid import Column, Values, blank

PROBED, LONG = 200, 1.0  # steps, or seconds, after which it is estimated how long a point takes


class _Enough(Exception):  # noqa: N818 - not an error
    """Enough steps were taken to estimate the others."""


@dataclass(frozen=True)
class FamilyModel:
    """A family as a model that is evaluated on a grid.

    Attributes
    ----------
    family : type
        The family.
    common : dict
        Parameters that are no numbers or words on the grid.
    """

    family: type[Family]
    common: Mapping[str, Any]

    @property
    def columns(self) -> tuple[Column, ...]:
        """What is measured."""
        return self.family.every_column()

    def closed(self, points: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
        """Say which points are computed in whole arrays."""
        return self.family.closed_mask(points, self.common)

    def evaluate(self, points: Mapping[str, NDArray[Any]]) -> Values:
        """Measure some points."""
        closed = self.closed(points)
        if closed.all():
            return self._closed(points)
        values, left = blank(self.columns, len(closed)), ~closed

        def place(part: NDArray[np.bool_], measure: Callable[[Mapping[str, NDArray[Any]]], Any]) -> None:
            index = np.flatnonzero(part)
            if not index.size:
                return
            found, done = measure({name: value[index] for name, value in points.items()})
            left[index[done]] = False
            for name, column in values.items():
                column[index[done]] = found[name][done]

        place(closed, lambda some: (self._closed(some), slice(None)))
        place(left & self.joint(points), self.together)
        place(left, lambda some: (self.one_by_one(some), slice(None)))
        return values

    def joint(self, points: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
        """Say which points may be simulated together."""
        return self.family.joint_mask(points, self.common)

    def joint_size(self, points: Mapping[str, NDArray[Any]]) -> int:
        """Return how many of them at a time."""
        return self.family.joint_size(points, self.common)

    def together(self, points: Mapping[str, NDArray[Any]]) -> tuple[Values, NDArray[np.bool_]]:
        """Simulate such points together; say which of them are done."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore"):
            return self.family.joint_values(points, self.common)

    def _closed(self, points: Mapping[str, NDArray[Any]]) -> Values:
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            return self.family.closed_values(points, self.common)

    def one_by_one(self, points: Mapping[str, NDArray[Any]]) -> Values:
        """Simulate each of some points alone."""

        def measure(**point: Any) -> Mapping[str, Any]:
            problem = self.problem(point)
            run = problem.simulate()
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                return problem.measured(run)

        return point_by_point(self.columns, points, measure)

    def problem(self, point: Mapping[str, Any], **changes: Any) -> Family:
        """Return the problem at a point."""
        return self.family(
            **{**self.common, **{name: np.asarray(value).item() for name, value in point.items()}, **changes}
        )

    def seconds(self, point: Mapping[str, NDArray[Any]]) -> float:
        """Estimate how long a point takes, from its first steps and the family's guess of their number."""
        problem = self.problem(point, max_steps=min(PROBED, self.common["max_steps"]))
        start = time.perf_counter()
        taken, over = 0, False

        def watch(step: int, loss: float) -> None:
            nonlocal taken
            taken = step
            if step and time.perf_counter() - start > LONG:
                raise _Enough

        try:
            run = problem.simulate(callback=watch)
            taken, over = int(run.t[-1]), run.converged or run.t[-1] < problem.max_steps
        except _Enough:
            pass
        spent, expected = time.perf_counter() - start, problem.expected_steps()
        if over:
            return spent
        return spent * max(1.0, min(expected or PROBED, self.common["max_steps"]) / taken)
