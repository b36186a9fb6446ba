"""Small families for the record: computed as batches, one by one, or refusing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

import icl_theory as icl
from icl_theory.families import (
    Column,
    Family,
    Fraction,
    Number,
    Object,
    Probabilities,
    Whole,
    Wholes,
    Word,
    parameter,
)

EXTRA = (
    Column("rest", "f8", "m", "what is left, a length", "r", r"\rho", "predicted"),
    Column("kind", "U6", "", "odd or even", "", "", "word", (("table", 1),)),
    Column("note", "O", "", "a text", "n", "", "detail", (("table", 1),)),
    Column("holds", "i1", "", "whether it is small", "small", "", "verdict"),
    Column(
        "edge",
        "f8",
        "m",
        "an edge; of width",
        "w*",
        "w^*",
        "boundary",
        (("of", "width"), ("definition", "edge of width")),
    ),
)


class Parabola(icl.Risk):
    """Half of the squares of x less 1 and of y less 2, times a width."""

    initial = np.array([2.0, 0.5])

    def __init__(self, width: float = 1.0, floor: float = 0.0) -> None:
        self.width, self.least = width, floor

    def evaluate(self, params: Any, step: int = 0) -> tuple[float, Any]:
        apart, weights = (
            np.asarray(params) - [1.0, 2.0],
            self.width * np.array([1.0, 0.3]),
        )
        return self.least + 0.5 * float(weights @ apart**2), weights * apart

    def floor(self) -> float:
        return self.least


@dataclass(frozen=True, eq=False)
class Bowl(Family):
    """A parabola, one by one; it fails at a width of 3."""

    name, title, goal = "bowl", "a parabola in $ & %", ("epsilon", 1e-2)
    loss_unit = "squared metres"
    phase_names = ("fast", "slow")
    columns = EXTRA
    width: float = parameter(
        1.0, kind=Number(maximum=50.0), symbol="w", unit="m", meaning="width of it"
    )
    shape: str = parameter(
        "round", kind=Word(words=("round", "flat")), meaning="its shape"
    )
    sizes: Any = parameter((1, 2), kind=Wholes(maximum=9), meaning="sizes")
    weights: Any = parameter(
        None, kind=Probabilities(optional=True), meaning="weights", axis=False
    )
    made: Any = parameter(None, kind=Object(optional=True), meaning="an object")
    share: float = parameter(
        0.5, kind=Fraction(), meaning="a share of λ", unit="of all", tex="s_h"
    )
    count: int = parameter(
        3, kind=Whole(minimum=2, maximum=99), symbol="C", meaning="a count of things"
    )
    tilt: float = parameter(
        0.0,
        kind=Number(signed=True, maximum=8.0),
        symbol="φ",
        tex=r"\varphi",
        meaning="its tilt",
    )

    def risk(self) -> icl.Risk:
        if self.width == 3.0:
            raise RuntimeError("there is no\n  parabola of width 3")
        return Parabola(self.width, 0.02 if self.shape == "flat" else 0.0)

    def stable_rate(self) -> float:
        return 1.0 / self.width

    def validate(self) -> None:
        if self.width > 40.0 and self.shape == "flat":
            raise ValueError(
                f"width = {self.width}: must be at most 40 where shape is flat"
            )

    def describe(self, run: Any) -> None:
        last, half = int(run.t[-1]), run.first(lambda state: state.loss <= 0.5)
        at = last if half is None else half
        run.phases = icl.engine.Phases(fast=(0, at), slow=(at, last))
        run.regime = "wide" if self.width > 2 else "narrow"

    def measure(self, run: Any) -> dict[str, Any]:
        small = {"holds": int(self.width < 2)} if self.width < 9 else {}
        return {
            "rest": self.width / 7,
            "kind": "odd" if self.count % 2 else "even",
            "note": self.regime_of(run),
            "edge": 2.0,
            **small,
        }

    @staticmethod
    def regime_of(run: Any) -> str:
        return str(run.regime)

    def levels(self) -> dict[str, float]:
        return {"plain $": 0.3, "none": 0.7}

    def expected_steps(self) -> float:
        return 40.0 / self.width

    @classmethod
    def limits(cls, arguments: Any) -> dict[str, tuple[float, float]]:
        return {"width": (-1.0, 0.0)} if arguments.get("shape") != "flat" else {}


@dataclass(frozen=True, eq=False)
class Dish(Bowl):
    """Computed as a batch, but for every width above 5."""

    name, title = "dish", "a dish"

    @classmethod
    def batched(cls, points: Any, common: Any) -> Any:
        width, eta = points["width"], points["eta"]
        steps = np.ceil(3.0 / (eta * width)).astype(int)
        most = common["max_steps"]
        found = {
            "eta_used": eta,
            "steps": np.where(steps > most, -1, steps),
            "last": np.minimum(steps, most),
            "loss": np.where(width > 5.0, math.nan, 0.01 * width),
            "method": "fast",
            "error": 0.5 * steps,
            "floor": 0.001 * width,
            "T_fast": steps // 3,
            "kind": "even",
            "holds": 1,
        }
        return found | (
            {"stop": np.where(width > 2.0, "FLOOR", "UNMOVED")}
            if "share" not in points
            else {}
        )


@dataclass(frozen=True, eq=False)
class Plain(Family):
    """No target, no rule for its rate, and nothing beside the loss."""

    name, title, goal = "plain", "a plain parabola", None
    width: float = parameter(
        kind=Number(words=("auto", "wide")), symbol="w", meaning="width"
    )

    def risk(self) -> icl.Risk:
        return Parabola(2.0 if isinstance(self.width, str) else self.width)
