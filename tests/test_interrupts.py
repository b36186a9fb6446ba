"""Ctrl-C, pressed once at given moments in whatever measures with runs: it ends, or its numbers are the same."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from matplotlib.figure import Figure

import icl_theory as icl
from icl_theory import figures
from icl_theory.cli import main, pages
from icl_theory.engine.interrupts import deferred, load_whole, loads, none_swallowed
from icl_theory.engine.stops import Recorder
from icl_theory.families.registry import COMMANDS, families_known
from icl_theory.papers.recall.training import observe
from icl_theory.papers.regression.statements.dynamics import closed_counts
from icl_theory.results import reproduction
from icl_theory.results.reproduction import reproduce
from icl_theory.statements.audit import rows
from icl_theory.statements.paper import Paper, Reading
from tests.pages import write_prose

SMALL: dict[str, Any] = {"K": 4, "epsilon": 1e-2, "method": "exact"}


TRAINED = icl.LinearAttention(d=2, N=10, eta=1e-3, max_steps=30, method="exact")
COUNTS = Reading("counts", "", (closed_counts,), figure="disc")
PAPER = Paper("theirs", "T", "A", 2025, "x", (COUNTS,))
PROBLEM = icl.Regression(L=2.0, delta=1.0, eta=4.0, **SMALL)


def swept(**more: Any) -> Any:
    return icl.sweep(L=2.0, delta=1.0, eta=[2.0, 4.0], **SMALL, progress=False, **more)


def observed() -> list[list[float]]:
    found = observe([icl.recall.Training(max_steps=5)])
    return [values.tolist() for values in found[0].values.values()]


RUN = PROBLEM.simulate()
MEASURING: dict[str, Callable[[], Any]] = {
    "reproduce": lambda: reproduce("theirs", quick=True).to_markdown(),
    "audit": lambda: icl.audit(
        claim=rows().index(closed_counts) + 1, quick=True
    ).to_markdown(),
    "answer": lambda: icl.answer("degenerate", quick=True).answer,
    "check_bounds": lambda: list(icl.check_bounds(RUN)),
    "crosscheck": lambda: icl.crosscheck(
        RUN, N=20, precision=0.5, batch=32, batches=3, points=1, steps=10, runs=3
    ).to_markdown(),
    "sampled_phases": lambda: icl.regression.sampled_phases(
        RUN, N=40, runs=3, batch=64
    ).to_markdown(),
    "shift_table": lambda: icl.linear_attention.shift_table(
        {"": TRAINED}, "descent"
    ).to_markdown(),
    "observe": observed,
    "largest_stable_eta": lambda: (
        icl.largest_stable_eta(icl.ExchangeableRisk(20, 2.0, N=100, noise=1.0)).eta
    ),
}


class Pressed:
    """Presses Ctrl-C at one of the moments at which a run has saved a state, or a gradient was evaluated."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.at = 0, -1
        for owner, name in ((Recorder, "save"), (icl.ExchangeableRisk, "evaluate")):
            monkeypatch.setattr(owner, name, self._watched(getattr(owner, name)))

    def _watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **named: Any) -> Any:
            found = function(*arguments, **named)
            self.count += 1
            if self.count == self.at:
                signal.raise_signal(signal.SIGINT)
            return found

        return watched

    def during(self, function: Callable[[], Any], at: int) -> Any:
        self.count, self.at = 0, at
        return function()


@pytest.fixture
def with_prose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A paper with prose and a figure."""
    paper = write_prose(tmp_path / "prose", PAPER, ["holds"])
    monkeypatch.setattr(reproduction, "papers", lambda: {"theirs": paper})
    monkeypatch.setattr(figures, "available", lambda: {"disc": "A disc."})
    monkeypatch.setattr(figures, "draw", lambda name, quick: Figure((0.1, 0.1)))


@pytest.mark.parametrize("name", MEASURING)
def test_what_measures_with_runs_ends_or_measures_the_same(
    name: str, with_prose: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pressed = Pressed(monkeypatch)
    whole = pressed.during(MEASURING[name], -1)
    moments = pressed.count
    if name != "check_bounds":
        assert moments > 3
    for at in {2, moments // 2, moments - 1} & {*range(moments)}:
        try:
            found = pressed.during(MEASURING[name], at)
        except KeyboardInterrupt:
            continue
        assert found == whole, at


@pytest.mark.parametrize(
    "asked",
    [
        lambda: icl.simulate(2.0, 1.0, 4.0, **SMALL),
        lambda: PROBLEM.simulate(),
        lambda: icl.descend(icl.ExchangeableRisk(4, 2.0), 1.0, epsilon=1e-2),
        lambda: icl.regression.compare_coordinates(2.0, 1.0, 4.0, **SMALL)["class"],
        lambda: icl.recall.simulate(method="exact"),
    ],
)
def test_who_asks_for_a_run_gets_the_part_that_is_done(
    asked: Callable[[], icl.Trajectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    pressed = Pressed(monkeypatch)
    assert pressed.during(asked, 4).interrupted


def test_points_of_an_interrupted_sweep_are_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that are there, and those that the next call adds."""
    pressed = Pressed(monkeypatch)
    whole = pressed.during(swept, -1)
    for at in (2, pressed.count // 2, pressed.count - 1):
        found = pressed.during(swept, at)
        done = found["status"].values != "pending"
        assert (found["steps"].values[done] == whole["steps"].values[done]).all()


@pytest.mark.parametrize("at", [2, 40])
def test_an_interrupted_page_is_not_written(
    at: int, with_prose: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "pages"
    line = ["reproduce", "theirs", "--quick", "--out", str(folder)]
    with pytest.raises(SystemExit) as ended:
        Pressed(monkeypatch).during(lambda: main(line), at)
    assert ended.value.code == 130
    assert not list(folder.glob("*"))


LINES = {
    "simulate": ["--L", "2", "--delta", "1", "--eta", "4"],
    "sweep": ["--L", "2", "--delta", "1", "--eta", "4"],
    "compare": ["run.npz", "curve.csv"],
    "table": ["here"],
    "report": ["here", "--out", "page.html"],
    "audit": ["--claim", "5"],
    "completion": ["bash"],
    "explore": ["--out", "page.html"],
    "reproduce": ["nonlinear-regression", "--out", "pages"],
    **{f"{family} simulate": [] for family in families_known()},
    **{f"{family} sweep": [] for family in families_known()},
}


@pytest.mark.parametrize("command", {**dict.fromkeys(COMMANDS), **LINES})
def test_every_command_says_that_it_was_interrupted(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Ctrl-C is pressed where the function of the command begins."""
    monkeypatch.chdir(tmp_path)  # a command that is not interrupted writes a file
    *_, name = command.split()

    def press(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if (
            event == "call"
            and code.co_name == name
            and Path(code.co_filename).parent.name in ("cli", "explorer")
        ):
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)

    sys.setprofile(press)
    try:
        with pytest.raises(SystemExit) as ended:
            main([*command.split(), *LINES.get(command, [])])
    finally:
        sys.setprofile(None)
    assert ended.value.code == 130
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize("inner", [deferred, none_swallowed])
def test_ctrl_c_waits_until_a_block_ends(inner: Callable[[], Any]) -> None:
    steps = []
    before = signal.getsignal(signal.SIGINT)

    def pressed() -> None:
        with deferred():
            with inner():
                signal.raise_signal(signal.SIGINT)
                steps.append("inner")
            steps.append("outer")

    with pytest.raises(KeyboardInterrupt):
        pressed()
    assert steps == ["inner", "outer"]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_handler_of_the_users_own_is_called_when_the_block_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: calls.append(number))
    try:
        with deferred():
            signal.raise_signal(signal.SIGINT)
            assert not calls
        assert calls == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
def test_a_process_that_handles_no_ctrl_c_goes_on_to_do_so(handler: Any) -> None:
    before = signal.signal(signal.SIGINT, handler)
    try:
        with deferred():
            assert signal.getsignal(signal.SIGINT) == handler
        assert signal.getsignal(signal.SIGINT) == handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_may_load_modules() -> None:
    values: list[Any] = []
    thread = threading.Thread(target=lambda: values.append(loads(lambda: "loaded")()))
    thread.start()
    thread.join()
    assert values == ["loaded"]


def test_a_module_is_loaded_whole_although_ctrl_c_is_pressed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pressed_half_way.py").write_text(
        "import signal\nsignal.raise_signal(2)\nwhole = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        load_whole("pressed_half_way", "no_such_module_anywhere")
    assert sys.modules["pressed_half_way"].whole
    load_whole("pressed_half_way")
    with pytest.raises(KeyboardInterrupt):
        importlib.reload(sys.modules["pressed_half_way"])


class Dying:
    """Ctrl-C is pressed when it is deleted, where Python ignores every error."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("at_the_end", [False, True])
def test_ctrl_c_that_python_ignores_ends_a_command(
    at_the_end: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    RUN.save(tmp_path / "run.npz")

    def html_report(*_: Any, **__: Any) -> str:
        Dying()
        if not at_the_end:
            icl.simulate(2.0, 1.0, 4.0, **SMALL)  # says how far it is, and notices
            raise AssertionError("it went on")
        return "a page"

    monkeypatch.setattr(pages, "html_report", html_report)
    line = ["report", str(tmp_path / "run.npz"), "--out", str(tmp_path / "page.html")]
    with pytest.raises(SystemExit) as ended:
        main(line)
    assert ended.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert not (tmp_path / "page.html").exists()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no process is copied here")
def test_ctrl_c_leaves_no_module_half_loaded() -> None:
    line = [sys.executable, "-m", "tests.presses", "4"]
    done = subprocess.run(
        line, capture_output=True, text=True, cwd=Path(__file__).parents[1]
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 wrong" in done.stdout
