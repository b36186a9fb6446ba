"""Training on a fixed set of prompts: its parameters and its measured columns.

Every `Family` inherits from `FixedSetParameters`. A problem with a ``dataset`` is
trained on this number of prompts, which are drawn once. Its runs have the exact
population loss in addition to the training loss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from icl_theory.engine.trajectory import Trajectory
from icl_theory.families.parameters import Whole, parameter
from icl_theory.sweeps.grid import Column

# The names of the parameters of a fixed set.
SET_PARAMETERS = ("dataset", "dataset_seed", "dataset_batch")


@dataclass(frozen=True, eq=False)
class FixedSetParameters:
    """The parameters of every `Family` that describe a fixed set of prompts.

    Parameters
    ----------
    dataset : int, optional
        Number M of prompts that are drawn once and then trained on. If it is left out
        or ``math.inf``, training is on the population loss.
    dataset_seed : int, optional
        Seed of these prompts and of their batches; 0 by default.
    dataset_batch : int, optional
        Number of prompts in a step of SGD, drawn from the set without replacement; by
        default every step takes the whole set.
    """

    dataset: float | None = parameter(
        None,
        kind=Whole(optional=True, infinite=True),
        symbol="M",
        tex="M",
        meaning="prompts in a fixed training set, or inf",
    )
    dataset_seed: int | None = parameter(
        None,
        kind=Whole(optional=True, minimum=0),
        meaning="seed of the fixed training set",
    )
    dataset_batch: int | None = parameter(
        None,
        kind=Whole(optional=True),
        meaning="prompts in a step, from the fixed training set",
    )


def has_fixed_set(parameters: Mapping[str, Any]) -> bool:
    """Whether any point of a sweep is trained on a fixed set.

    Parameters
    ----------
    parameters : mapping
        The parameters of the points, numbers or arrays, by name.
    """
    values = parameters.get("dataset")
    if values is None:
        return False
    # An infinite number of prompts stands for the population.
    return bool(np.isfinite(np.asarray(values, dtype=float)).any())


def set_columns(unit: str) -> tuple[Column, ...]:
    """Return the columns of sweeps that compare training with the population.

    ``unit`` is the unit of the loss. Without a fixed set the columns have no values.
    """
    return (
        Column(
            "population_loss",
            "f8",
            unit,
            "population loss at the end of training on a fixed set",
            symbol="population_loss",
            role="set",
        ),
        Column(
            "test_gap",
            "f8",
            unit,
            "population loss minus loss of the fixed set, at the end",
            symbol="test_gap",
            role="set",
        ),
        Column(
            "best_loss",
            "f8",
            unit,
            "least population loss of all saved steps on a fixed set",
            symbol="best_loss",
            role="set",
        ),
        Column(
            "best_step",
            "i8",
            "steps",
            "saved step with the least population loss on a fixed set",
            symbol="best_step",
            role="set",
        ),
    )


# The values of the columns of `set_columns` for a run that is not on a fixed set. NaN
# and -1 stand for no value.
WITHOUT_SET = {
    "population_loss": math.nan,
    "test_gap": math.nan,
    "best_loss": math.nan,
    "best_step": -1,
}


def measured_on_set(run: Trajectory) -> dict[str, Any]:
    """Return the values of `set_columns` for a run on a fixed set.

    Such a run observes the population loss at each saved step.
    """
    population_loss = run.observed["population_loss"]
    # With batches, `run.loss` has the loss of the batch of each step, and the run also
    # observes the loss of the whole set. Otherwise `run.loss` is the loss of the set.
    set_loss = run.observed.get("set_loss", run.loss)
    best_index = int(np.argmin(population_loss))
    return {
        "population_loss": float(population_loss[-1]),
        "test_gap": float(population_loss[-1] - set_loss[-1]),
        "best_loss": float(population_loss[best_index]),
        "best_step": int(run.t[best_index]),
    }


def note_on_set(run: Trajectory, M: float) -> str:
    """Return a text with the number M of prompts, and losses of a run on these prompts.

    The losses are the last and the least population loss.
    """
    values = measured_on_set(run)
    return (
        f"{M:.0f} prompts; population loss {values['population_loss']:.6g} at the end, "
        f"least {values['best_loss']:.6g} at step {values['best_step']}"
    )
