"""What a check of a statement returns, whatever its two sides are."""

from __future__ import annotations

import math
from typing import Any

import pytest

from icl_theory.statements.statement import BoundCheck, Status, require, stated


@stated("Lemma 0", "a paper", "two-sided", Status.EXACT)
def SAID(sides: BoundCheck | str) -> BoundCheck:
    """The measured side is within
    the bound.
    """
    require(not isinstance(sides, str), str(sides))
    assert isinstance(sides, BoundCheck)
    return sides


def test_a_check_says_what_was_stated_and_found() -> None:
    found = SAID.check(BoundCheck.of(1.0, (0.5, 2.0), False, 1.5, "a remark"))
    assert found[:4] == (
        "Lemma 0",
        "a paper",
        "The measured side is within the bound.",
        "two-sided",
    )
    assert found[4:] == (1.0, (0.5, 2.0), False, 1.5, "a remark")
    assert SAID.status is Status.EXACT


def test_a_statement_whose_hypotheses_fail_has_a_reason_and_no_figures() -> None:
    assert SAID.check("no noise")[3:] == (
        "two-sided",
        None,
        None,
        None,
        None,
        "no noise",
    )


@pytest.mark.parametrize("wrong", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("place", range(4))
def test_sides_out_of_range_decide_nothing(wrong: float, place: int) -> None:
    sides: list[Any] = [(1.0, 2.0), (1.0, (0.5, 2.0)), (1.0, (0.5, 2.0)), (1.0, 2.0)]
    measured, bound = sides[place]
    given = [
        (wrong, bound),
        (measured, (wrong, 2.0)),
        (measured, (0.5, wrong)),
        (measured, wrong),
    ][place]
    assert SAID.check(BoundCheck.of(*given, True, 1.0))[4:] == (
        None,
        None,
        None,
        None,
        "beyond the range of float64",
    )
    # the slack alone may be out of range, as where one of two sides is zero
    kept = SAID.check(BoundCheck.of(measured, bound, True, wrong))
    assert kept[4:] == (measured, bound, True, None, "")
