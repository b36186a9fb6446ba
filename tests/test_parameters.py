from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from icl_theory.cli.options import help_text
from icl_theory.families import Fraction, Number, Whole, find
from icl_theory.families.parameters import Kind

KINDS = {
    "positive": Number(),
    "not negative": Number(zero=True),
    "within": Number(minimum=0.5, maximum=2.0),
    "signed": Number(signed=True, maximum=2.0),
    "share": Fraction(),
    "whole": Whole(maximum=10),
    "whole or infinite": Whole(infinite=True, maximum=10),
    "word": Number(words=("auto",)),
}
VALUES = (-3.0, -1.0, 0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 11.0, 1e300, math.inf, -math.inf, math.nan)


def found(check: Any, *args: Any) -> Any:
    try:
        return [float(value) for value in check(*args)]
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_an_array_is_checked_as_its_values_are(kind: Kind) -> None:
    for first in VALUES:
        for second in VALUES:
            for third in (1.0, first):
                given = np.array([first, third, second])
                each = found(lambda values: [kind.check("x", value) for value in values], given)
                assert found(kind.check_all, "x", given) == each


def test_values_of_an_array_are_not_checked_one_by_one() -> None:
    asked: list[float] = []

    class Asked(Number):
        def value(self, name: str, value: Any) -> float:
            asked.append(value)
            return super().value(name, value)

    assert Asked().check_all("x", np.arange(1.0, 1001.0)).tolist() == list(range(1, 1001))
    assert asked == [1.0, 1000.0]


def test_help_says_what_is_required_and_other_defaults() -> None:
    known = find("regression").parameters()
    assert help_text(known["L"]).endswith(" [required].")
    assert help_text(known["K"]).endswith(" [20].")
    assert help_text(known["coordinates"]).endswith(" [class].")
    assert not help_text(known["imbalance"]).endswith("].")
