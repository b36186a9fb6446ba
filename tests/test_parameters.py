from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from icl_theory import Regression
from icl_theory.cli.options import help_text
from icl_theory.families import (
    Fraction,
    Number,
    Object,
    Probabilities,
    Whole,
    Wholes,
    Word,
    parameter,
)
from icl_theory.families.fixed_set import SET_PARAMETERS
from icl_theory.families.parameters import ParameterKind
from icl_theory.families.registry import find
from icl_theory.families.rule_parameters import RULE_PARAMETERS

KINDS = {
    "positive": Number(),
    "not negative": Number(zero=True),
    "within": Number(minimum=0.5, maximum=2.0),
    "signed": Number(signed=True, maximum=2.0),
    "share": Fraction(),
    "share within": Fraction(minimum=0.3, maximum=0.6),
    "whole": Whole(maximum=10),
    "whole or infinite": Whole(infinite=True, maximum=10),
    "word": Number(words=("auto",)),
}
VALUES = (
    -3.0,
    -1.0,
    0.0,
    0.25,
    0.5,
    1.0,
    1.5,
    2.0,
    3.0,
    11.0,
    1e300,
    math.inf,
    -math.inf,
    math.nan,
)


def found(check: Any, *args: Any) -> Any:
    try:
        return [float(value) for value in check(*args)]
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_an_array_is_checked_as_its_values_are(kind: ParameterKind) -> None:
    for first in VALUES:
        for second in VALUES:
            for third in (1.0, first):
                given = np.array([first, third, second])
                each = found(
                    lambda values: [kind.check("x", value) for value in values], given
                )
                assert found(kind.check_all, "x", given) == each


@pytest.mark.parametrize("kind", [Number(), Whole()])
def test_an_array_becomes_numbers_of_its_own(kind: ParameterKind) -> None:
    for given in (
        np.array([1, 2, 3]),
        np.array([1.0, 2.0, 3.0], dtype=np.float32),
        np.array([1.0, 2.0, 3.0]),
    ):
        kept = kind.check_all("x", given)
        given[0] = 7
        stays_whole = isinstance(kind, Whole) and given.dtype.kind == "i"
        assert kept.dtype == (given.dtype if stays_whole else np.float64)
        assert kept.tolist() == [1, 2, 3]


def test_values_of_an_array_are_not_checked_one_by_one() -> None:
    asked: list[float] = []

    class Asked(Number):
        def value(self, name: str, value: Any) -> float:
            asked.append(value)
            return super().value(name, value)

    assert Asked().check_all("x", np.arange(1.0, 1001.0)).tolist() == list(
        range(1, 1001)
    )
    assert asked == [1.0, 1000.0]


def test_infinity_does_not_hide_a_number_that_is_too_large() -> None:
    kind = Whole(infinite=True)
    lengths = np.array([3.0, math.inf, math.inf])
    assert kind.check_all("N", lengths).tolist() == [3.0, math.inf, math.inf]
    for wrong in (2.0**60, math.nan, -math.inf, 0.5, 0.0):
        with pytest.raises(ValueError, match=r"N = .*: must be an integer in"):
            kind.check_all("N", np.array([3.0, wrong, math.inf]))


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Number(), "1e-3", 1e-3),
        (Number(words=("auto",)), "auto", "auto"),
        (Number(), "-2", -2.0),
        (Whole(), "1e3", 1000),
        (Whole(), "12", 12),
        (Whole(infinite=True), "inf", math.inf),
        (Whole(), "0.5", 0.5),
        (Whole(words=("all",)), "all", "all"),
        (Wholes(), "1,1e2", [1, 100]),
        (Word(words=("a",)), "b", "b"),
        (Probabilities(), "0.25,0.75", [0.25, 0.75]),
        (Probabilities(words=("even",)), "even", "even"),
    ],
)
def test_texts_of_the_command_line_are_read(
    kind: ParameterKind, text: str, value: Any
) -> None:
    found = kind.parse("x", text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("kind", "text", "allowed"),
    [
        (Number(), "1,5", "a number"),
        (Number(words=("auto",)), "none", "a number, or auto"),
        (Whole(), "ten", "an integer"),
        (Whole(infinite=True), "all", "an integer, or inf"),
        (Wholes(), "1;2", "an integer"),
        (Probabilities(), "half", "numbers separated by commas"),
        (
            Probabilities(words=("even", "odd")),
            "half",
            "numbers separated by commas, or even, odd",
        ),
    ],
)
def test_texts_that_are_no_values_are_refused_in_words(
    kind: ParameterKind, text: str, allowed: str
) -> None:
    with pytest.raises(ValueError, match=rf"^x = '{text}': must be {allowed}$"):
        kind.parse("x", text)


MATRIX = Number(minimum=0.5, maximum=2.0, matrix=True)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (
            Number(words=("auto",)),
            "atuo",
            r"x = 'atuo': must be a .* > 0, or auto \(did you mean auto\?\)",
        ),
        (
            Number(words=("auto", "best")),
            "zzz",
            "x = 'zzz': must be a finite number > 0, or auto, best",
        ),
        (
            Word(words=("gd", "ngd")),
            "Ngd",
            r"x = 'Ngd': must be one of gd, ngd \(did you mean ngd\?\)",
        ),
        (Word(words=("gd", "ngd")), 3, "x = 3: must be one of gd, ngd"),
        (Wholes(maximum=9), (3, 10), "x = 10: must be an integer .* 9"),
        (Wholes(), (), "x = .*: must be one or more"),
        (Wholes(), (1, 0), "x = 0: must be"),
        (Probabilities(), 0.5, "x = 0.5: must be positive numbers that sum"),
        (Probabilities(), (0.5, 0.6), "x = "),
        (Number(), None, "x = None: must be"),
        (MATRIX, [[1.0, 3.0], [1.0, 1.0]], "x = 3.0: must be"),
        (MATRIX, [[1.0, 1.0], [0.25, 1.0]], "x = 0.25: must be"),
        (MATRIX, 3.0, "x = 3.0: must be"),
        (MATRIX, [1.0, 2.0], "x = "),
        (Fraction(maximum=0.5), 0.75, "x = 0.75: must be between 0 and 0.5"),
        (
            Fraction(maximum=0.5),
            1.0,
            "x = 1.0: must be a number strictly between 0 and 1",
        ),
    ],
)
def test_values_that_are_not_allowed_are_refused_in_words(
    kind: ParameterKind, value: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=rf"^{message}"):
        kind.check("x", value)


def test_values_that_are_allowed_are_kept() -> None:
    assert Number(optional=True).check("x", None) is None
    assert MATRIX.check("x", np.array([[1, 2], [0.5, 1]])) == ((1.0, 2.0), (0.5, 1.0))
    assert Wholes(maximum=9).check("x", 9) == (9,)
    assert Wholes().check("x", np.array([2, 3])) == (2, 3)
    assert Probabilities(words=("even",)).check("x", np.array([0.5, 0.5])) == (0.5, 0.5)


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (
            Number(),
            np.ma.masked_array([1.0, 2.0, 3.0], mask=[False, True, False]),
            "x = .*masked",
        ),
        (Whole(), np.array([1.0, 2.5, 3.0]), "x = 2.5: must be an integer"),
        (
            Number(words=("auto",)),
            [1.0, "auto"],
            "x = .*: must be numbers, or auto alone",
        ),
        (Number(), [1.0, "two"], "x = 'two': must be"),
        (Word(words=("a", "b")), ["a", "c"], "x = 'c': must be"),
    ],
)
def test_the_wrong_value_of_an_axis_is_named(
    kind: ParameterKind, values: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=rf"^{message}"):
        kind.check_all("x", values)


LEAST = 5e-324  # above 0
LIMITS: dict[str, dict[str, tuple[float, float]]] = {
    "sphere": {
        "d": (2, 1000),
        "N": (1, 10**15),
        "L": (LEAST, 1e15),
        "noise": (0.0, 1e15),
        "start": (0.0, 1e3),
    },
    "softmax-heads": {
        "d": (1, 1000),
        "N": (1, 10**9),
        "noise": (0.0, 1e15),
        "heads": (1, 8),
        "start": (LEAST, 10.0),
    },
    "fixed-chain": {
        "p": (LEAST, 1.0 - 2.0**-53),
        "q": (LEAST, 1.0 - 2.0**-53),
        "e": (LEAST, 1e3),
        "w": (-1e3, 1e3),
        "readout": (-1e3, 1e3),
    },
    "single-location": {
        "N": (2, 10**9),
        "snr": (0.0, 1e4),
        "spread": (LEAST, 100.0),
        "noise": (0.0, 1e15),
        "scale": (LEAST, 10.0),
        "scale_decay": (0.0, 1.0),
        "first": (LEAST, 1.0 - 2.0**-53),
        "d": (4, 10**6),
    },
    "token-selection": {
        "n": (1, 100),
        "T": (2, 100),
        "d": (1, 100),
        "start": (0.0, 1e3),
    },
    "induction-heads": {
        "k": (2, 100),
        "T": (2, 10**6),
        "lags": (2, 20),
        "concentration": (0.01, 1e6),
        "points": (4, 2**20),
        "match": (-300.0, 300.0),
        "sink": (-300.0, 300.0),
        "ratio": (1e-9, 1e9),
    },
    "representation": {
        "K": (2, 500),
        "m": (1, 500),
        "N": (1, 500),
        "heads": (1, 64),
        "noise": (0.0, 1e6),
        "start": (LEAST, 10.0),
    },
}


@pytest.mark.parametrize("name", LIMITS)
def test_numbers_of_a_family_have_these_limits(name: str) -> None:
    declared = find(name).parameters()
    for key, ends in LIMITS[name].items():
        kind = declared[key].kind
        for end, side in zip(ends, (-1, 1), strict=True):
            assert kind.check(key, end) == end
            with pytest.raises(ValueError, match=rf"^{key} = "):
                kind.check(
                    key,
                    end + side
                    if isinstance(end, int)
                    else math.nextafter(end, side * math.inf),
                )
    free = {
        "eta",
        "epsilon",
        "above",
        "max_steps",
        "seed",
        "chains",
        "stage",
        *RULE_PARAMETERS,
        *SET_PARAMETERS,
    }
    numeric = {key for key, each in declared.items() if each.kind.numeric}
    assert numeric - free == LIMITS[name].keys() - free


def test_help_says_what_is_required_and_other_defaults() -> None:
    known = find("regression").parameters()
    assert help_text(known["L"]).endswith(" [required].")
    assert help_text(known["K"]).endswith(" [20].")
    assert help_text(known["coordinates"]).endswith(" [class].")
    assert not help_text(known["imbalance"]).endswith("].")
    groups = find("grouped-regression").parameters()
    for name, spelt in (("sizes", "1,19"), ("shares", "0.5,0.5")):  # which can be typed
        assert help_text(groups[name]).endswith(f" [{spelt}].")
        assert tuple(groups[name].kind.parse(name, spelt)) == groups[name].default


@pytest.mark.parametrize(
    ("kind", "varied"),
    [
        (Number(), True),
        (Whole(), True),
        (Fraction(), True),
        (Word(words=("a",)), True),
        (Wholes(), False),
        (Probabilities(words=("uniform",)), False),
        (Object(), False),
    ],
)
def test_unless_it_says_otherwise_a_sweep_varies_numbers_and_words_only(
    kind: ParameterKind, varied: bool
) -> None:
    """Several integers, or probabilities, are one value."""
    assert parameter(kind=kind, meaning="x").metadata["parameter"].axis == varied
    assert (
        parameter(kind=kind, meaning="x", axis=not varied).metadata["parameter"].axis
        != varied
    )


def test_a_name_with_an_underscore_is_whole_in_tex() -> None:
    assert Regression.labels()["max_steps"].tex == r"\mathrm{max\_steps}"
