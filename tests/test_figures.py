from __future__ import annotations

import ast
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import remake
from PIL import Image, ImageSequence

import icl_theory as icl
from icl_theory import figures
from icl_theory.cli import main

PACKAGE = Path(icl.__file__).parent
SCRIPTS = sorted(PACKAGE.glob("papers/*/figures/*.py"))


def stops_with(status: int, *arguments: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    assert stop.value.code == status


def test_command_and_script_write_the_same_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script is a command of its own; files do not differ between two calls and processes."""
    folder = tmp_path / "new" / "folder"
    stops_with(0, "figures", "model", "--quick", "--out", str(folder))
    written = [folder / "model.pdf", folder / "model.png"]
    assert capsys.readouterr().out.split() == [str(path) for path in written]
    command = [
        sys.executable,
        str(PACKAGE / "papers" / "regression" / "figures" / "model.py"),
        "--quick",
        "--out",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    by_script = [tmp_path / "model.pdf", tmp_path / "model.png"]
    assert done.stdout.split() == [str(path) for path in by_script]
    found = [path.read_bytes() for path in written]
    assert [file[:4] for file in found] == [b"%PDF", b"\x89PNG"]
    assert found == [path.read_bytes() for path in by_script]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_has_a_title_and_quick_parameters_are_parameters(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text))
    assert (
        figures.parameters(path.stem).keys()
        == figures.parameters(path.stem, quick=True).keys()
    )


def test_list_names_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    stops_with(0, "figures", "--list")
    shown = capsys.readouterr().out
    assert all(path.stem in shown for path in SCRIPTS)
    stops_with(0, "figures", "model", "maps", "--list")
    some = [
        line.split(maxsplit=1)
        for line in capsys.readouterr().out.splitlines()
        if line.strip()
    ]
    assert [name for name, _ in some] == ["model", "maps"]
    assert all(words.strip() == figures.available()[name] for name, words in some)


def test_unknown_figure_is_refused_with_the_known_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stops_with(2, "figures", "figure9")
    message = capsys.readouterr().err
    assert "figure9" in message
    assert message.count("\n") == 1
    assert all(path.stem in message for path in SCRIPTS)


def test_unknown_parameter_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"parameter = 'Z': must be one of .*\bK\b"):
        figures.draw("maps", quick=True, Z=1)


def test_folder_in_place_of_which_there_is_a_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("taken").write_text("")
    stops_with(2, "figures", "maps", "--quick", "--out", "taken")
    assert "taken" in capsys.readouterr().err


def test_folder_without_permission_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        os, "access", lambda path, mode: False
    )  # the administrator may write everywhere
    with pytest.raises(ValueError, match="can be written to"):
        figures.check_folder(tmp_path)


def test_page_lists_the_parameters_of_every_figure() -> None:
    page = (Path(__file__).parents[1] / "docs" / "figures.md").read_text(
        encoding="utf-8"
    )
    assert page == remake.with_parameters(page), (
        "python scripts/remake.py replaces the table"
    )


@pytest.mark.parametrize(
    ("figure", "changes", "message"),
    [
        ("figure1", {"K": 0}, r"K = 0: must be an integer >= 1"),
        ("figure1", {"K": "ten"}, r"K = 'ten': must be an integer >= 1"),
        (
            "figure1",
            {"runs": 1, "K": 2, "epsilon": 0.1},
            r"runs = 1: must be two or more",
        ),
        ("noise", {"L": None}, r"L = None: must be a finite number"),
        ("noise", {"noises": 1.0}, r"noises = 1\.0: must be one or more numbers"),
        (
            "noise",
            {"noises": (0.0, float("nan"))},
            r"noises = nan: must be a finite number",
        ),
        ("maps", {"steps": ()}, r"steps = \(\): must be one or more numbers"),
        (
            "phase_diagram",
            {"epsilon": (0, 1)},
            r"epsilon = 0: must be a finite number > 0",
        ),
        (
            "phase_diagram",
            {"L": (1.0, 2.0, 3.0)},
            r"L = \(1\.0, 2\.0, 3\.0\): must be 2 numbers",
        ),
    ],
)
def test_value_of_the_wrong_kind_is_refused_by_name(
    figure: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        figures.draw(figure, quick=True, **changes)


@pytest.mark.parametrize(
    ("figure", "changes"),
    [
        ("frequencies", {"eta": 1e9}),  # ends before the tail law begins
        ("figure1", {"N": 1, "K": 3}),  # nothing to learn: the exact run ends at once
        ("figure4", {"flat": (1e3,)}),  # sampled runs diverge, each at its own step
        ("figure4", {"curved": 1.0}),  # on a saddle from the start: never half way
    ],
    ids=str,
)
def test_figure_is_drawn_where_runs_end_early(
    figure: str, changes: dict[str, Any]
) -> None:
    assert figures.draw(figure, quick=True, **changes).axes


def interrupted_run() -> Callable[..., icl.Trajectory]:
    """Return a figure's function that is interrupted in the middle of a run."""
    return lambda: icl.simulate(
        2.0,
        1.0,
        4.0,
        method="exact",
        callback=lambda *_: signal.raise_signal(signal.SIGINT),
    )


def test_run_by_itself_survives_the_interrupt() -> None:
    assert interrupted_run()().stop_reason.startswith("interrupted")


def test_interrupt_ends_all_figures_and_draws_none_of_half_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipes = {"maps": interrupted_run(), "tail": interrupted_run()}
    monkeypatch.setattr(figures, "recipes", lambda: (recipes, []))
    stops_with(130, "figures", "maps", "tail", "--out", str(tmp_path))
    assert not list(tmp_path.iterdir())
    assert "interrupted at maps" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_animation_is_of_the_maps_at_steps_far_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its first frame is the first map, and the next ones differ from it; --animate knows no other figure."""
    gif, *_ = figures.animate(tmp_path, quick=True, frames=3)
    with Image.open(gif) as moving:
        frames = [
            np.asarray(frame.convert("L"), dtype=float)
            for frame in ImageSequence.Iterator(moving)
        ]
    assert len(frames) == 3
    assert all(
        np.abs(after - before).max() > 100
        for before, after in itertools.pairwise(frames)
    )
    stops_with(2, "figures", "--animate", "tail", "--out", str(tmp_path))
    assert capsys.readouterr().err.endswith("figure = 'tail': must be one of maps\n")


@pytest.mark.slow
@pytest.mark.parametrize("name", figures.available())
def test_every_figure_is_drawn_in_short(name: str) -> None:
    assert figures.draw(name, quick=True).axes
