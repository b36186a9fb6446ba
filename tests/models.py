"""Small models for grids, importable by worker processes."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray

import icl_theory as icl
from icl_theory._validate import Array
from icl_theory.sweeps.grid import REACHED, Axis, Column, Grid, Values, blank

SQUARE = (
    Column("square", "f8", "m²", "x squared"),
    Column("whole", "i8", "", "x rounded"),
    Column("word", "U6", "", "even or odd"),
)


def grid(size: int = 20, chunk: int = 3) -> Grid:
    axes = (
        Axis("x", np.arange(float(size)), "m", "a length", True),
        Axis("y", np.array([0.5, 1.5]), "", "a factor", True),
        Axis("z", np.array([2.0]), "", "fixed", False),
    )
    return Grid(axes, chunk)


@dataclass(frozen=True)
class Squares:
    """x² y z; fails at some x, interrupts, dies or waits at others."""

    fails: float = -1.0
    interrupts: float = -1.0
    dies: float = -1.0
    pause: float = 0.0

    @property
    def columns(self) -> tuple[Column, ...]:
        return SQUARE

    def evaluate(self, points: Mapping[str, Array]) -> Values:
        x = points["x"]
        if (x == self.fails).any():
            raise ValueError(f"x = {self.fails}: must be another\nnumber")
        if (x == self.interrupts).any():
            raise KeyboardInterrupt
        if (x == self.dies).any():
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.pause)
        values = blank(self.columns, len(x))
        values["square"], values["whole"] = (
            x**2 * points["y"] * points["z"],
            np.round(x).astype(np.int64),
        )
        values["word"][:] = np.where(x % 2 == 0, "even", "odd")
        values["status"][:] = REACHED
        return values


@dataclass(frozen=True)
class Products:
    """A sum whose last bits depend on the number of BLAS threads, if anything does."""

    size: int = 700

    @property
    def columns(self) -> tuple[Column, ...]:
        return SQUARE[:1]

    def evaluate(self, points: Mapping[str, Array]) -> Values:
        values = blank(self.columns, len(points["x"]))
        for i, x in enumerate(points["x"]):
            matrix = np.random.default_rng(int(x)).normal(size=(self.size, self.size))
            values["square"][i] = np.sum(matrix @ matrix.T @ matrix)
        values["status"][:] = REACHED
        return values


@dataclass(frozen=True)
class Signs:
    """0 where x is even and -0 where it is odd, one word, and no whole number."""

    columns = SQUARE

    def evaluate(self, points: Mapping[str, Array]) -> Values:
        values = blank(self.columns, len(points["x"]))
        values["square"], values["word"][:] = (
            np.where(points["x"] % 2 == 0, 0.0, -0.0),
            "even",
        )
        values["status"][:] = REACHED
        return values


FINITE: dict[str, Any] = {
    "L": [2.0, 3.0, 2.5],
    "delta": 1.0,
    "eta": 2.0,
    "K": 3,
    "N": [40, math.inf],
    "epsilon": [0.01, 0.02],
    "noise": 0.0,
    "task": icl.tasks.RandomCosine,
}


def finite(executor: Executor | None = None, **changes: Any) -> xarray.Dataset:
    return icl.sweep(**{**FINITE, **changes}, executor=executor, progress=False)
