"""Parameters that several families share, each declared once."""

from __future__ import annotations

import math
from typing import Any

from icl_theory._validate import LARGEST
from icl_theory.families.kinds import Number, Whole
from icl_theory.families.parameters import REQUIRED, parameter

LIPSCHITZ = "label units per feature unit"


def learning_rate(default: Any = REQUIRED) -> Any:
    """Declare η."""
    return parameter(default, kind=Number(words=("auto",)), symbol="η", tex=r"\eta", meaning="learning rate")


def lipschitz_constant() -> Any:
    """Declare L."""
    return parameter(kind=Number(), symbol="L", tex="L", unit=LIPSCHITZ, meaning="Lipschitz constant of the tasks")


def feature_gap() -> Any:
    """Declare Δ."""
    return parameter(kind=Number(), symbol="Δ", tex=r"\Delta", unit="feature units", meaning="feature gap")


def prompt_length() -> Any:
    """Declare N."""
    return parameter(math.inf, kind=Whole(infinite=True), symbol="N", tex="N", meaning="prompt length, or inf")


def label_noise() -> Any:
    """Declare σ."""
    return parameter(
        0.0,
        kind=Number(zero=True, maximum=LARGEST),
        symbol="σ",
        tex=r"\sigma",
        unit="label units",
        meaning="standard deviation of the label noise",
    )
