"""No answer has changed: see `tests.answers`."""

from __future__ import annotations

import pytest

from tests.answers import RECORDS, compare, modules, sections

pytestmark = [pytest.mark.slow, pytest.mark.answers]
SECTIONS = sections()


@pytest.mark.parametrize("section", SECTIONS)
def test_answers_are_those_on_record(section: str) -> None:
    assert not compare(section, SECTIONS[section])


def test_nothing_is_on_record_that_no_module_asks() -> None:
    assert {path.stem for path in RECORDS.glob("*.json")} == {*modules()}
