"""Rows and answers that take little time say what docs/audit.md and tests/data/smaller.json have, and are short."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import icl_theory as icl
from icl_theory.papers.audit import rows
from tests.smaller import NAMES, said
from tests.test_pages import differs, printed

NUMBERS = {claim[0]: number for number, claim in enumerate(printed()[0], start=1)}


@pytest.mark.parametrize("name", [*NAMES["whole"], *NAMES["rows"]])
def test_a_row_says_what_is_written(name: str) -> None:
    number = NUMBERS[name]
    written = printed()[0][number - 1] if name in NAMES["whole"] else NAMES["rows"][name]
    cells = rows()[number - 1](name not in NAMES["whole"]).cells()
    assert [differs(*pair) for pair in zip(written, cells, strict=True)] == [""] * len(cells)


@pytest.mark.parametrize("name", NAMES["answers"])
def test_an_answer_says_what_is_written_and_its_curves_end_there(name: str) -> None:
    found = said(icl.answer(name, quick=True))
    assert [differs(*pair) for pair in zip(NAMES["answers"][name], found, strict=True)] == [""] * len(found)


def lines_of_rows(path: Path) -> dict[str, int]:
    """Lines of code of the rows and questions of a file, without docstring and comments."""
    source, found = path.read_text(encoding="utf-8"), {}
    for function in ast.walk(ast.parse(source)):
        marks = {ast.unparse(getattr(each, "func", each)) for each in getattr(function, "decorator_list", ())}
        if isinstance(function, ast.FunctionDef) and marks & {"row", "identity", "question"}:
            lines = source.splitlines()[function.body[1].lineno - 1 : function.end_lineno]
            found[function.name] = sum(bool(line.strip()) and not line.strip().startswith("#") for line in lines)
    return found


def test_a_row_or_question_has_fifteen_lines_at_most() -> None:
    paths = (Path(icl.__file__).parent / "papers").rglob("*.py")
    rows = {f"{path.name}:{name}": lines for path in paths for name, lines in lines_of_rows(path).items()}
    assert len(rows) > 150
    assert {name: lines for name, lines in rows.items() if lines > 15} == {}
