"""Rows and answers that take little time say what docs/audit.md and tests/data/smaller.json have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from remake import printed

import icl_theory as icl
from icl_theory.statements.audit import rows
from tests.smaller import NAMES, said
from tests.test_pages import differs

NUMBERS = {claim.name: number for number, claim in enumerate(printed()[0], start=1)}


# They take a third of the time of all rows and answers, half a second and more each.
LONGER = {
    "Lemma 1",
    "Phase I cross terms",
    "Phase II growth to ε",
    "finite-samples",
    "recall-exponent",
    "recall-roles",
    "single location: softmax",
    "step count, proved",
}


def quick_ones(names: Iterable[str]) -> list[Any]:
    """Mark the longer ones as slow."""
    return [
        pytest.param(name, marks=pytest.mark.slow) if name in LONGER else name
        for name in names
    ]


@pytest.mark.parametrize("name", quick_ones([*NAMES["whole"], *NAMES["rows"]]))
def test_a_row_says_what_is_written(name: str) -> None:
    number = NUMBERS[name]
    written = NAMES["rows"].get(name)
    if name in NAMES["whole"]:
        written = printed()[0][number - 1].cells()
    cells = rows()[number - 1](name not in NAMES["whole"]).cells()
    assert [differs(*pair) for pair in zip(written, cells, strict=True)] == [""] * len(
        cells
    )


@pytest.mark.parametrize("name", quick_ones(NAMES["answers"]))
def test_an_answer_says_what_is_written_and_its_curves_end_there(name: str) -> None:
    found = said(icl.answer(name, quick=True))
    assert [
        differs(*pair) for pair in zip(NAMES["answers"][name], found, strict=True)
    ] == [""] * len(found)
