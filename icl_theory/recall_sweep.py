"""Sweeps of in-context recall, on the machinery of all sweeps."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._calls import written_call
from icl_theory._validate import Array, choice, integer, number, prompt_length, refuse
from icl_theory.grid import (
    MESSAGE,
    NOT_REACHED,
    REACHED,
    STATUS,
    Axis,
    Column,
    Grid,
    Values,
    axis_values,
    point_by_point,
)
from icl_theory.recall.points import RecallPoints
from icl_theory.recall.population import ATTENTION
from icl_theory.recall.simulate import LABELS

if TYPE_CHECKING:
    import xarray

CHUNK = 8  # points
CHECKS: dict[str, Callable[[Any], float]] = {
    "eta": lambda value: number("eta", value),
    "Q": lambda value: integer("Q", value, minimum=1),
    "V": lambda value: integer("V", value, minimum=3),
    "alpha": lambda value: number("alpha", value, zero=True, maximum=math.nextafter(1.0, 0.0)),
    "M": lambda value: prompt_length(value, "M"),
}


@dataclass(frozen=True)
class RecallModel:
    """In-context recall as a model that can be swept: what its points have in common."""

    common: RecallPoints
    attention: str

    @property
    def columns(self) -> tuple[Column, ...]:
        """What it gives per point."""
        return RecallPoints.columns

    def evaluate(self, points: Mapping[str, Array]) -> Values:
        """Train at every point; one that fails has a message."""

        def measure(**point: float) -> dict[str, Any]:
            columns = {name: np.array([value]) for name, value in point.items()}
            found = self.common.evaluate(columns | {"attention": np.array([self.attention])})
            row = {name: column[0] for name, column in found.items()}
            message = "" if row["steps"] >= 0 else f"ended at step {row['last']} above its target"
            return row | {STATUS.name: NOT_REACHED if message else REACHED, MESSAGE.name: message}

        return point_by_point(self.columns, points, measure)


def sweep_recall(
    *,
    eta: ArrayLike = 0.5,
    Q: ArrayLike = 4,
    V: ArrayLike = 50,
    alpha: ArrayLike = 0.0,
    M: ArrayLike = math.inf,
    attention: str = "linear",
    executor: Executor | None = None,
    workers: int | None = None,
    store: str | os.PathLike[str] | None = None,
    progress: bool = True,
    **common: Any,
) -> xarray.Dataset:
    r"""Train on in-context recall at every point of a grid of parameters.

    Parameters
    ----------
    eta, Q, V, alpha, M : float or sequence of float
        Learning rate, number of equally likely triggers, number of words, probability of noise and number of
        sentences trained on (``math.inf`` for the population). Sequences become dimensions, in this order.
    attention : {"linear", "relu", "softmax"}
        Attention weights of all points.
    executor, workers, store, progress
        As for `sweep`.
    **common
        What all points share: the fields of `icl_theory.recall.points.RecallPoints`.

    Returns
    -------
    xarray.Dataset
        Steps, last step, training loss, population excess over the Bayes risk and the Bayes risk, nats, with the
        local exponents of the steps in ``eta``, ``Q`` and ``V``.

    Raises
    ------
    ValueError
        An argument out of range, an empty sequence, duplicates, or a store of another sweep.

    References
    ----------
    docs/recall.md.

    Examples
    --------
    >>> import icl_theory as icl
    >>> icl.sweep_recall(Q=[4, 16], count=1, progress=False).steps.values.tolist()
    [44, 87]
    """
    command = written_call("icl.sweep_recall", sweep_recall, locals())
    from icl_theory.sweep import run_with

    made = plan_recall({"eta": eta, "Q": Q, "V": V, "alpha": alpha, "M": M}, attention, **common)
    return run_with(*made, executor=executor, workers=workers, store=store, progress=progress, command=command)


def plan_recall(
    axes: Mapping[str, ArrayLike], attention: str, **common: Any
) -> tuple[Grid, RecallModel, dict[str, Any]]:
    """Check the arguments and lay out the grid."""
    from icl_theory import __version__

    choice("attention", attention, ATTENTION)
    fields = RecallPoints.__dataclass_fields__
    for name in common:
        if name not in fields:
            raise refuse(name, common[name], "one of " + ", ".join(sorted([*axes, *fields, "attention"])))
    points = RecallPoints(**common)
    made = []
    for name, given in axes.items():
        values, swept = axis_values(name, given, CHECKS[name])
        label = LABELS[name]
        made.append(Axis(name, values, label.unit, label.meaning, swept, label.text, label.tex))
    arguments = {"version": __version__, "model": "recall", "attention": attention} | asdict(points)
    return Grid(tuple(made), CHUNK), RecallModel(points, attention), arguments
