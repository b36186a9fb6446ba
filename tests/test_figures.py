from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from icl_theory import figures
from icl_theory.cli import main

SCRIPTS = sorted((Path(__file__).parents[1] / "scripts" / "figures").glob("*.py"))


def stops_with(status: int, *arguments: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    assert stop.value.code == status


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_figure_is_drawn_quickly_by_its_command(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stops_with(0, "figures", path.stem, "--quick", "--out", str(tmp_path / "new" / "folder"))
    written = [tmp_path / "new" / "folder" / f"{path.stem}{ending}" for ending in (".pdf", ".png")]
    assert capsys.readouterr().out.split() == [str(path) for path in written]
    assert [path.read_bytes()[:4] for path in written] == [b"%PDF", b"\x89PNG"]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script_is_short_and_quick_parameters_are_parameters(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 80
    assert ast.get_docstring(ast.parse(text))
    assert figures.parameters(path.stem).keys() == figures.parameters(path.stem, quick=True).keys()


def test_script_is_a_command_of_its_own(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPTS[0].with_name("maps.py")), "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(tmp_path / "maps.pdf"), str(tmp_path / "maps.png")]


def test_figures_are_the_same_at_every_call(tmp_path: Path) -> None:
    first, second = (
        [path.read_bytes() for path in figures.write(figures.draw("maps", quick=True), tmp_path / name, "maps")]
        for name in ("a", "b")
    )
    assert first == second


def test_list_names_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    stops_with(0, "figures", "--list")
    shown = capsys.readouterr().out
    assert all(path.stem in shown for path in SCRIPTS)


def test_unknown_figure_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    stops_with(2, "figures", "figure9")
    message = capsys.readouterr().err
    assert "figure9" in message
    assert message.count("\n") == 1
    assert all(path.stem in message for path in SCRIPTS)


def test_unknown_parameter_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"parameter = 'Z': must be one of .*\bK\b"):
        figures.draw("maps", quick=True, Z=1)


def test_folder_in_place_of_which_there_is_a_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("")
    stops_with(2, "figures", "maps", "--quick", "--out", str(tmp_path / "taken"))
    assert "taken" in capsys.readouterr().err


def test_folder_without_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # the administrator may write everywhere
    with pytest.raises(ValueError, match="can be written to"):
        figures.check_folder(tmp_path)


def test_page_lists_the_parameters_of_every_figure() -> None:
    page = (Path(__file__).parents[1] / "docs" / "figures.md").read_text(encoding="utf-8")
    assert page.endswith(figures.parameter_table()), "replace the table by figures.parameter_table()"
