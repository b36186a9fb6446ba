"""The table of models: it has the papers that are measured, their statements, and commands that work."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest

from icl_theory import explorer
from icl_theory.results.reproduction import papers
from tests.test_cli import run_main

PAGE = Path(__file__).parents[2] / "docs" / "find-your-model.md"


class Line(NamedTuple):
    """A row of the table."""

    data: str
    attention: str
    trained: str
    statements: list[str]
    page: str
    command: str
    panel: str


def lines() -> list[Line]:
    found = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| ") and not line.startswith("| data "):
            data, attention, trained, statements, page, command, panel = (
                each.strip() for each in line.split("|")[1:-1]
            )
            found.append(
                Line(
                    data,
                    attention,
                    trained,
                    statements.split("; "),
                    page,
                    command,
                    panel,
                )
            )
    return found


def test_every_paper_has_a_row_and_every_row_a_paper() -> None:
    named = [
        re.fullmatch(r"\[(\S+)\]\(papers/(\S+)\.md\)", line.page) for line in lines()
    ]
    pages = [match.groups() for match in named if match]
    assert all(name == target for name, target in pages)
    with_entry = [name for name, paper in papers().items() if paper.entry is not None]
    assert sorted(name for name, _ in pages) == sorted(with_entry)
    assert len(pages) == len(lines())


@pytest.mark.parametrize("line", lines(), ids=lambda line: line.page)
def test_statements_are_those_of_the_page_and_have_rows(line: Line) -> None:
    readings = {
        reading.name: reading
        for reading in papers()[re.findall(r"\[(.*?)\]", line.page)[0]].readings
    }
    assert line.statements
    for statement in set(line.statements) - {"…"}:
        assert readings[statement].rows, statement
    assert all((line.data, line.attention, line.trained))


@pytest.mark.parametrize("line", lines(), ids=lambda line: line.page)
def test_commands_are_accepted(line: Line, capsys: pytest.CaptureFixture[str]) -> None:
    """Steps are cut short, so that a run may miss its target."""
    program, *words = shlex.split(line.command.strip("`"))
    status, out, _ = run_main(capsys, *words, "--max-steps", "3")
    assert program == "icl-theory"
    assert status in (0, 1)
    assert "loss" in out


def test_panels_are_on_the_page_of_the_explorer() -> None:
    page = explorer.page()
    for line in lines():
        if line.panel != "–":
            name = re.fullmatch(
                r'<a href="_static/explorer\.html#([\w-]+)">.*</a>', line.panel
            )
            assert name, line.panel
            assert f'"{name[1]}"' in page
