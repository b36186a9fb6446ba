from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.cli import main
from icl_theory.cli.shared import print_json
from icl_theory.engine.progress import Progress
from icl_theory.explorer import command
from icl_theory.families.registry import families_known
from tests.processes import PATIENCE, start

BASE = ["simulate", "--L", "2", "--delta", "1", "--eta", "4"]


def run_main(
    capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    captured = capsys.readouterr()
    return int(stop.value.code or 0), captured.out, captured.err


def test_summary_says_what_simulate_found(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run_main(capsys, *BASE, "--K", "20", "--epsilon", "1e-4")
    run = icl.simulate(2.0, 1.0, 4.0, epsilon=1e-4)
    assert (status, err) == (0, "")
    assert f"reached epsilon = 0.0001 at step {run.steps}" in out
    assert "sharp" in out
    assert max(map(len, out.splitlines())) <= 80


def test_json_is_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run_main(
        capsys, *BASE, "--json", "--N", "20", "--noise", "0.1", "--task", "linear"
    )
    run = icl.simulate(2.0, 1.0, 4.0, N=20, noise=0.1, task=icl.tasks.Linear)
    assert status == 1  # noise: the target is below the floor
    printed = json.loads(out)
    assert printed["loss"] == run.loss.tolist()
    assert printed["info"]["N"] == 20


def test_figure_and_run_are_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    status, _, _ = run_main(
        capsys,
        *BASE,
        "--plot",
        str(tmp_path / "a.svg"),
        "--save",
        str(tmp_path / "a.npz"),
    )
    assert status == 0
    assert (tmp_path / "a.svg").stat().st_size > 1000
    assert icl.load(tmp_path / "a.npz").steps == icl.simulate(2.0, 1.0, 4.0).steps


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--L", "x"], "L = 'x': must be a number"),
        (["--L", "-1"], "L = -1.0: must be a finite number > 0"),
        (["--delta", "nan"], "delta = nan"),
        (["--eta", "inf"], "eta = inf"),
        (["--epsilon", "0"], "epsilon = 0.0"),
        (
            ["--L", "1,2"],
            "L = '1,2': simulate takes one value; sweep takes lists and ranges",
        ),
        (
            ["--L", "1:2:log:3"],
            "L = '1:2:log:3': simulate takes one value; sweep takes lists and ranges",
        ),
        (["--K", "1"], "K = 1: must be an integer in [2, 1000000000]"),
        (["--K", "2.5"], "K = 2.5: must be an integer"),
        (["--N", "0"], "N = 0"),
        (["--N", "many"], "N = 'many': must be an integer, or inf"),
        (["--noise", "-1"], "noise = -1.0"),
        (["--coordinates", "polar"], "coordinates = 'polar'"),
        (["--method", "magic"], "method = 'magic'"),
        (["--coordinates", "all", "--save", "a.npz"], "save = 'a.npz'"),
        (["--method", "closed", "--N", "7"], "method = 'closed'"),
        (["--task", "cubic"], "cubic"),
        (["--max-steps", "0"], "max_steps = 0"),
        (["--plot", "/no/such/folder/a.png"], "in a folder that exists"),
        (["--plot", "a.xyz"], "plot = 'a.xyz'"),
        (["--bogus"], "--bogus"),
        (["--noise", "1e200", "--N", "5"], "noise = 1e+200"),
        (["--task", "fourier", "--L", "1e200"], "L = 1e+200"),
        (["--task", "linear", "--K", "200000"], "K = 200000"),
        (
            ["--L", "1e-12", "--delta", "1e100", "--coordinates", "embedding"],
            "delta = 1e+100",
        ),
        (["--K", "1000000000000000"], "K = 1000000000000000"),
        (
            ["--coordinates", "al"],
            "must be one of class, embedding, factored, all (did you mean all?)",
        ),
        (["--l", "3"], "No such option: --l "),
    ],
)
def test_wrong_input_is_one_line_and_status_two(
    capsys: pytest.CaptureFixture[str], extra: list[str], words: str
) -> None:
    status, out, err = run_main(capsys, *BASE, *extra)
    assert status == 2
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("icl-theory: ")
    assert words in err


def test_missing_option_and_unknown_command_are_wrong_input(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for arguments in (["simulate", "--L", "2"], ["train"]):
        status, _, err = run_main(capsys, *arguments)
        assert (status, err.count("\n")) == (2, 1)


def test_all_coordinates_are_shown_side_by_side(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    line = [*BASE, "--K", "4", "--epsilon", "1e-2", "--coordinates", "all"]
    status, out, err = run_main(capsys, *line, "--plot", str(tmp_path / "a.png"))
    runs = icl.regression.compare_coordinates(2.0, 1.0, 4.0, K=4, epsilon=1e-2)
    assert (status, "Error" in err) == (0, False)
    assert out.split()[:3] == list(runs)
    assert max(map(len, out.splitlines())) <= 80
    assert (tmp_path / "a.png").stat().st_size > 1000
    printed = json.loads(run_main(capsys, *line, "--json")[1])
    assert {name: run["steps"] for name, run in printed.items()} == {
        name: run.steps for name, run in runs.items()
    }


def test_one_interrupt_ends_the_runs_in_all_coordinates(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed(*_: object, **more: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Progress, "update", pressed)
    line = [
        *BASE,
        "--K",
        "4",
        "--epsilon",
        "1e-2",
        "--method",
        "exact",
        "--coordinates",
        "all",
    ]
    status, out, _ = run_main(capsys, *line)
    assert (status, out.count("interrupted at step")) == (130, 1)
    runs = icl.regression.compare_coordinates(
        2.0, 1.0, 4.0, K=4, epsilon=1e-2, method="exact", callback=pressed
    )
    assert [run.interrupted for run in runs.values()] == [True]


@pytest.mark.parametrize(
    ("library", "compiled"),
    [("typer", False), ("typer", True), ("matplotlib", False), ("pyarrow", True)],
)
def test_interrupt_while_libraries_are_loaded_is_a_line(
    library: str, compiled: bool, tmp_path: Path
) -> None:
    """Those of the command line or of a command; compiled modules make an ImportError of it."""
    code = (
        "import builtins, signal, sys\n"
        "real = builtins.__import__\n"
        "def press(name, *rest):\n"
        f"    if name.partition('.')[0] == '{library}':\n"
        "        try: signal.raise_signal(signal.SIGINT)\n"
        "        except KeyboardInterrupt as pressed:\n"
        f"            if {compiled}: raise ImportError('initialization failed') from pressed\n"
        "            raise\n"
        "    return real(name, *rest)\n"
        "builtins.__import__ = press\n"
        "from icl_theory.__main__ import main\n"
        "main()\n"
    )
    line = {
        "typer": ["simulate", "--help"],
        "matplotlib": [*BASE, "--plot", "a.png"],
        "pyarrow": ["sweep", *BASE[1:], "--K", "4,5", "--parquet", "a.parquet"],
    }[library]
    ended = subprocess.run(
        [sys.executable, "-c", code, *line],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stderr) == (130, "interrupted\n")


def test_a_terminal_without_greek_letters_shows_the_rest() -> None:
    line = ["sweep", "--L", "1,2", "--delta", "1", "--eta", "1", "--epsilon", "1e-3"]
    ended = subprocess.run(
        [sys.executable, "-m", "icl_theory", *line],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "latin-1"},
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert b"regime" in ended.stdout


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(capsys, "--version")[:2] == (0, icl.__version__ + "\n")
    status, out, _ = run_main(capsys, "simulate", "--help")
    assert status == 0
    assert "--epsilon" in out


def test_the_help_has_a_panel_for_the_rule_and_one_for_a_fixed_training_set(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, out, _ = run_main(capsys, "simulate", "--help")
    # The words of each panel, by its heading, which follows the corner of its frame.
    panels = dict(re.findall(r"╭─ ([\w ]+) ─+╮\n(.*?)╰", out, flags=re.DOTALL))
    assert {"Update rule", "Fixed training set"} <= set(panels)
    for heading, options in panels.items():
        assert ("--beta2" in options) == (heading == "Update rule")
        assert ("--dataset " in options) == (heading == "Fixed training set")
        assert ("--delta" in options) <= (heading == "Options")


def test_interrupt_keeps_what_is_done(tmp_path: Path) -> None:
    path, (screen, terminal) = tmp_path / "run.npz", os.openpty()
    # at this learning rate it goes on for hours
    process = start(
        *BASE,
        "--eta",
        "1e-3",
        "--N",
        "100",
        "--epsilon",
        "0.0063",
        "--save",
        str(path),
        "--task",
        "linear",
        "--method",
        "exact",
        "--coordinates",
        "factored",
        stderr=terminal,
    )
    said = b""
    while b" steps, loss " not in said:
        said += os.read(screen, 4096)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert "interrupted at step" in out
    assert icl.load(path).stop_reason.startswith("interrupted at step")


def test_an_epsilon_below_the_lowest_loss_names_the_option_that_sets_another_target(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, _, err = run_main(
        capsys, *BASE, "--K", "5", "--N", "10", "--epsilon", "1e-4"
    )
    assert status == 1
    assert "--above" in err
    assert (
        "--above"
        not in run_main(capsys, *BASE, "--K", "5", "--N", "10", "--above", "1e-2")[2]
    )


@pytest.mark.parametrize(("steps", "expected"), [("1", 1), ("60", 1), ("100000", 0)])
def test_runs_side_by_side_fail_if_one_of_them_does(
    capsys: pytest.CaptureFixture[str], steps: str, expected: int
) -> None:
    """In coordinates of their own they take different numbers of steps; after 60 some have arrived."""
    line = [
        *BASE,
        "--K",
        "4",
        "--epsilon",
        "1e-2",
        "--coordinates",
        "all",
        "--max-steps",
        steps,
    ]
    runs = icl.regression.compare_coordinates(
        2.0, 1.0, 4.0, K=4, epsilon=1e-2, max_steps=int(steps)
    )
    arrived = [run.converged for run in runs.values()]
    assert all(arrived) == (expected == 0)
    assert any(arrived) == (steps != "1")
    assert run_main(capsys, *line)[0] == expected


class Parabola(icl.Risk):
    initial = np.array([2.0])

    def evaluate(self, params: Any, step: int = 0) -> tuple[float, Any]:
        return 0.5 * float(params @ params), params


@pytest.mark.parametrize(
    ("eta", "goal", "expected"),
    [
        (0.1, {}, 0),
        (0.1, {"epsilon": 1e-9}, 1),
        (0.1, {"epsilon": 1.0}, 0),
        (1e9, {}, 1),
    ],
)
def test_a_run_without_a_target_fails_only_where_it_is_lost(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    eta: float,
    goal: Any,
    expected: int,
) -> None:
    """With one, it fails also where its steps do not get there."""
    run = icl.descend(Parabola(), eta, steps=40, **goal)
    monkeypatch.setattr(icl.Recall, "simulate", lambda problem: run)
    assert run_main(capsys, "recall", "simulate")[0] == expected


def test_json_has_null_for_missing_numbers_and_words_for_infinite_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """At any depth, of either sign; all others come back as they are."""
    inf, nan = float("inf"), float("nan")
    print_json(
        {
            "a": [1, nan, [inf, -inf]],
            "b": {"c": -inf, "d": 0.1},
            "e": True,
            "f": None,
            "g": "x",
            "h": Path("y"),
        }
    )
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    expected = {
        "a": [1, None, ["inf", "-inf"]],
        "b": {"c": "-inf", "d": 0.1},
        "e": True,
        "f": None,
        "g": "x",
        "h": "y",
    }
    assert found == expected


def test_examples_of_the_help_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that take seconds; sweeps are only planned."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    icl.simulate(2.0, 1.0, 4.0).save("run.npz")
    for words in ("simulate", "sweep", "recall sweep", "sphere sweep", "report"):
        with pytest.raises(SystemExit):
            main([*words.split(), "--help"])
        [line] = re.findall(r"Example: icl-theory (.*\S)", capsys.readouterr().out)
        assert line.startswith(words)
        with pytest.raises(SystemExit) as ended:
            main([*line.split(), *(["--dry-run"] if "sweep" in words else [])])
        assert ended.value.code == 0, line
    assert Path("run.html").exists()


@pytest.mark.parametrize("kind", ["missing", "a folder", "a missing folder"])
def test_a_config_that_cannot_be_read_is_a_sentence(
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    path = {
        "missing": Path("no.toml"),
        "a folder": Path(),
        "a missing folder": Path("a") / "b",
    }[kind]
    status, out, err = run_main(capsys, *BASE, "--config", str(path))
    assert (status, out) == (2, "")
    assert err.startswith(
        f"icl-theory: config = {str(path)!r}: must be a TOML file that can be read ("
    )
    assert "Errno" not in err


def test_an_unknown_key_of_a_config_is_a_sentence_with_the_nearest_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.toml").write_text("nois = 3\n")
    status, _, err = run_main(capsys, *BASE, "--config", str(tmp_path / "c.toml"))
    assert status == 2
    assert err.startswith(
        "icl-theory: config: there is no option 'nois' (did you mean noise?); the options are "
    )


@pytest.mark.skipif(os.name != "posix", reason="links and permissions are others there")
def test_the_explorer_is_written_to_a_private_folder_and_follows_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Links to a file of the user's under every name that an earlier call has used."""
    monkeypatch.setattr(command, "page", lambda: "a page")
    shared, mine = tmp_path / "shared", tmp_path / "notes.txt"
    shared.mkdir()
    mine.write_text("mine")
    monkeypatch.setattr("tempfile.tempdir", str(shared))
    (shared / "icl-theory-explorer.html").symlink_to(mine)
    places = set()
    for _ in range(3):
        status, out, _ = run_main(capsys, "explore", "--no-browser")
        written = Path(out.strip())
        assert (status, written.read_text()) == (0, "a page")
        assert written.parent.parent == shared
        assert not written.is_symlink()
        assert written.parent.stat().st_mode & 0o077 == 0
        places.add(written)
        written.unlink()
        written.parent.rmdir()
        written.parent.symlink_to(tmp_path)
        (tmp_path / written.name).unlink(missing_ok=True)
        (tmp_path / written.name).symlink_to(mine)
    assert len(places) == 3
    assert mine.read_text() == "mine"


NEEDED = {
    "regression": ["--L", "1", "--delta", "1", "--eta", "1"],
    "grouped-regression": ["--L", "1", "--delta", "1"],
    "gaussian-regression": ["--L", "1"],
}
WITHOUT_TARGET = ("induction-heads", "minimal-heads", "single-location")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow) if name == "softmax-heads" else name
        for name in families_known()
    ],
)
def test_statuses_of_every_family_are_those_that_its_help_states(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """A run with a target fails if it does not get there, and one without a target does not fail."""
    line = [name, "simulate", *NEEDED.get(name, ())]
    shown = " ".join(run_main(capsys, name, "simulate", "--help")[1].split())
    assert (
        "exit status is 1 if a target is set and not reached, or if the run diverges, and 0 otherwise"
        in shown
    )
    missed = run_main(capsys, *line, "--epsilon", "1e-300", "--max-steps", "1")
    assert missed[0] == 1, missed
    reached = run_main(capsys, *line, "--epsilon", "1e3", "--max-steps", "1")
    assert reached[0] == 0, reached
    # Most families have a target of their own if none is given: it is printed, and
    # missed after one step.
    status, out, _ = run_main(capsys, *line, "--max-steps", "1")
    stopped = next(text for text in out.splitlines() if text.startswith("stopped"))
    has_target, reached_it = (
        not stopped.rstrip().endswith("epsilon = 0"),
        "reached" in stopped,
    )
    assert status == (1 if has_target and not reached_it else 0), out
    assert has_target == (name not in WITHOUT_TARGET)
