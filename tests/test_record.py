"""No answer has changed: see `tests.record`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.record import ANSWERS, Tolerance, changes, differences, files, plain

pytestmark = [pytest.mark.slow, pytest.mark.answers]


@pytest.mark.parametrize("name", files())
def test_answers_are_those_on_record(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert changes(name)[1] == []


def test_nothing_is_on_record_that_no_file_asks() -> None:
    assert {path.stem for path in ANSWERS.glob("*.json")} == {*files()}


ROUNDING = [
    (0.123456789, 0.123456789 * (1.0 + 1e-9)),
    (np.array([1.0, 3e-17]), np.array([1.0, -8e-16])),
    ([1.0, 0.0], [1.0, 1e-14]),
    ({"steps": 5, "error": 2e-9}, {"steps": 5, "error": 7e-9}),
    ("loss 0.0125 -> 0.013", "loss 0.0125 -> 0.012"),
    ("1.0,0.009860600272435807,5", "1.0,0.009860600272435805,5"),
    ("off by 2e-14; holds", "off by 1e-15; holds"),
    ("| 0        | 2e-301 |", "| 7.99e-33 | -2e-301 |"),
]
CHANGES = [
    (0.123456789, 0.123456789 * 1.0001),
    (np.array([1.0, 3e-9]), np.array([1.0, 4e-9])),
    ({"steps": 5, "error": 2e-9}, {"steps": 5, "error": 4e-8}),
    ({"steps": 5, "error": 2e-9}, {"steps": 5, "error": None}),
    ({"steps": 5}, {"steps": 6}),
    ("loss 0.0125", "loss 0.0123"),
    ("1.0,0.009860600272435807,5", "1.0,0.009860700272435807,5"),
    ("reached at step 62,445,524,608", "reached at step 62,445,524,609"),
    ("8 of 30 turn", "9 of 30 turn"),
    ("z = -0.40", "z = +0.40"),
    ("off by 2e-7; holds", "off by 1e-14; holds"),
    ("off by 2e-14; holds", "off by 2e-14; fails"),
]


@pytest.mark.parametrize(("kept", "found"), ROUNDING)
def test_rounding_is_no_change(kept: Any, found: Any) -> None:
    assert not [*differences(plain(found), plain(kept), Tolerance())]


@pytest.mark.parametrize(("kept", "found"), CHANGES)
def test_a_change_is_none_of_rounding(kept: Any, found: Any) -> None:
    assert [*differences(plain(found), plain(kept), Tolerance())]
