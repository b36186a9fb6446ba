"""Rows and answers that take little time say what docs/audit.md and tests/data/smaller.json have."""

from __future__ import annotations

import pytest
from remake import printed

import icl_theory as icl
from icl_theory.statements.audit import rows
from tests.smaller import NAMES, said
from tests.test_pages import differs

NUMBERS = {claim.name: number for number, claim in enumerate(printed()[0], start=1)}


@pytest.mark.parametrize("name", [*NAMES["whole"], *NAMES["rows"]])
def test_a_row_says_what_is_written(name: str) -> None:
    number = NUMBERS[name]
    written = NAMES["rows"].get(name)
    if name in NAMES["whole"]:
        written = printed()[0][number - 1].cells()
    cells = rows()[number - 1](name not in NAMES["whole"]).cells()
    assert [differs(*pair) for pair in zip(written, cells, strict=True)] == [""] * len(
        cells
    )


@pytest.mark.parametrize("name", NAMES["answers"])
def test_an_answer_says_what_is_written_and_its_curves_end_there(name: str) -> None:
    found = said(icl.answer(name, quick=True))
    assert [
        differs(*pair) for pair in zip(NAMES["answers"][name], found, strict=True)
    ] == [""] * len(found)
