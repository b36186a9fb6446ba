from __future__ import annotations

import io
import math
import re
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.engine import progress
from icl_theory.engine.blocks import Blocks
from icl_theory.engine.progress import CountProgress, Screen, StepProgress, duration, working
from icl_theory.engine.rules import rule_of
from icl_theory.engine.steps import Descent
from icl_theory.families.regression.risks import population
from icl_theory.families.regression.risks.prompts import infima

LINEAR = icl.PopulationRisk(icl.Features.simplex(3, 1.0), icl.tasks.Linear(2.0))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Show everything at once, and whenever there is something new; search a floor in two rounds."""
    monkeypatch.setattr(population, "infima", partial(infima, work=1.0))
    monkeypatch.setattr(progress, "SCREEN", Screen(0.0, 0.0))


def in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """To be called in a test, whose standard error is another one than that of its fixtures."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")


def spoken(capsys: pytest.CaptureFixture[str], words: str) -> str:
    """Wait until something was said, and return what was said up to then."""
    said = ""
    for _ in range(6000):
        said += capsys.readouterr().err
        if words in said:
            return said
        time.sleep(0.01)
    raise AssertionError(said)


@pytest.mark.usefixtures("impatient")
def test_plain_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with CountProgress() as shown:
        shown.update(0, 2000)
        capsys.readouterr()
        shown.update(500, 2000)
        assert re.match(r"500 of 2,000 points, \S+ points/s, 0:00:\d\d left\n", capsys.readouterr().err)
        shown.update(2000, 2000)
        assert capsys.readouterr().err.startswith("2,000 of 2,000 points")


@pytest.mark.usefixtures("impatient")
def test_a_bar_in_a_terminal_that_disappears(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    in_a_terminal(monkeypatch)
    with CountProgress() as shown:
        shown.update(0, 2000)
        shown.update(500, 2000)
        written = spoken(capsys, "500 of 2,000 points")
        assert "━" in written
    assert capsys.readouterr().err.endswith("\x1b[2K")


@pytest.mark.parametrize("shown", [True, False])
def test_nothing_for_what_is_quick_or_not_to_be_shown(
    shown: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "SCREEN", Screen(3600.0) if shown else Screen(0.0, 0.0))
    with CountProgress(shown) as display:
        display.update(0, 2000)
        with working("adding numbers"):
            display.update(2000, 2000)
    assert capsys.readouterr().err == ""


def test_a_file_gets_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "SCREEN", Screen(0.0, 3600.0))
    with CountProgress() as display:
        for done in range(100):
            display.update(done, 100)
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_closed_run_opens_no_display_and_starts_one_thread_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SCREEN", Screen(3600.0))
    before = threading.active_count()
    for _ in range(5):
        icl.simulate(2.0, 1.0, 4.0)
    assert threading.active_count() <= before + 1


@pytest.mark.parametrize("before", [1000, 1200])
def test_points_of_an_earlier_run_and_what_comes_before_the_first_count_are_no_part_of_the_speed(
    before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([0.0, 100.0, 101.0, 101.0])
    monkeypatch.setattr("icl_theory.engine.progress.time.monotonic", lambda: next(now))
    shown = CountProgress()
    shown.update(before, 2000)
    shown.update(1500, 2000)
    rate = 1500 - before
    assert shown.line() == f"1,500 of 2,000 points, {rate} points/s, 0:00:01 left"


def test_durations_are_in_hours_minutes_and_seconds() -> None:
    assert [duration(seconds) for seconds in (0.4, 61.0, 360_000.0)] == ["0:00:00", "0:01:01", "100:00:00"]


RUN: dict[str, Any] = {"L": 2.0, "delta": 1.0, "eta": 2.0, "K": 4, "N": 40, "epsilon": 0.02}
LONG: dict[str, tuple[Callable[[], Any], str]] = {
    "a run": (lambda: icl.descend(LINEAR, 1.0, steps=50), "steps/s"),
    "a run of a family": (lambda: icl.simulate(**RUN), "steps/s"),
    "phases": (lambda: icl.regression.sampled_phases(icl.simulate(**RUN), runs=3, batch=256), "sampled steps/s"),
    "samples": (lambda: icl.crosscheck(icl.simulate(**RUN), batch=8, steps=5), "samples/s"),
    "a floor": (
        lambda: icl.PopulationRisk(icl.Features.simplex(14, 1.0), icl.tasks.RandomCosine(2.0), N=9).floor(),
        "evaluations for the floor/s",
    ),
    "modes": (
        lambda: Blocks(Descent(LINEAR, 1.0, rule_of("gd"))).modes(np.eye(3), np.zeros(3)),
        "columns of the Hessian/s",
    ),
    "a minimum": (lambda: icl.largest_stable_eta(icl.ExchangeableRisk(20, 2.0, N=100, noise=1.0)), "steps/s"),
    "draws": (
        lambda: icl.linear_attention.task_diversity(icl.LinearAttention(d=2), [1, 2], draws=3), "draws/s"
    ),
    "prompts": (
        lambda: icl.linear_attention.ridge_loss(icl.linear_attention.PromptLaw([1.0], N=9), prompts=9), "prompts/s"
    ),
    "batches": (
        lambda: icl.crosscheck(icl.LinearAttention(d=2, N=9).simulate(), batch=8, batches=4), "batches/s"
    ),
}  # fmt: skip


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("name", LONG)
def test_what_takes_long_says_how_far_it_is(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    compute, unit = LONG[name]
    compute()
    lines = capsys.readouterr().err.splitlines()
    assert sum(unit in line for line in lines) > 1


@pytest.mark.usefixtures("impatient")
def test_who_asks_for_silence_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    icl.descend(LINEAR, 1.0, steps=50, progress=False)
    icl.simulate(**RUN, callback=lambda step, loss: None)
    icl.sweep(**{**RUN, "L": [1.0, 2.0], "task": "linear"}, progress=False)
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("impatient")
def test_workers_are_silent(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("multiprocessing.parent_process", lambda: "another one")
    icl.descend(LINEAR, 1.0, steps=50, progress=True)
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("impatient")
def test_above_what_another_program_draws_there_are_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What rich puts in the place of the stream says whose place it has."""
    in_a_terminal(monkeypatch)
    monkeypatch.setattr(sys.stderr, "rich_proxied_file", sys.stderr, raising=False)
    with StepProgress() as shown:
        shown(7, 0.5)
    assert re.search(r"^7 steps, loss 0.5, \S+ steps/s$", capsys.readouterr().err, re.MULTILINE)


def test_a_loss_that_is_not_known_is_left_out() -> None:
    shown = StepProgress()
    assert shown.line() == "before the first step, 0:00:00"
    shown(0, 0.5)
    shown.beat(7, math.nan)
    assert re.fullmatch(r"7 steps, \S+ steps/s", shown.line())


def test_counting_yields_what_it_counts() -> None:
    assert [*progress.counted("abc", "letters")] == ["a", "b", "c"]


@pytest.mark.usefixtures("impatient")
def test_work_that_cannot_tell_how_far_it_is_says_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with working("adding numbers") as work:
        assert re.match(r"adding numbers, 0:00:\d\d\n", spoken(capsys, "\n"))
        with working("multiplying them"):
            assert re.search(r"adding numbers, \S+: multiplying them, \S+\n", spoken(capsys, "multiplying them, "))
        work.words = "a[/b].csv"
        spoken(capsys, "\na[/b].csv, 0:00:")
    capsys.readouterr()
    progress.SCREEN.show()
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("family", [icl.Regression, icl.Recall, icl.LinearAttention])
@pytest.mark.parametrize("slow", ["risk", "rate"])
def test_problems_that_take_long_to_make_say_so_in_a_run_and_when_one_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, family: Any, slow: str
) -> None:
    given = {"L": 2.0, "delta": 1.0, "eta": 1.0} if family is icl.Regression else {}
    problem = family(**given, max_steps=3)
    problem.simulate().save(tmp_path / "run.npz")
    words = "before the first step"
    said: list[str] = []
    plain = getattr(family, slow)

    def waits(self: Any) -> Any:
        if not said:
            said.append(spoken(capsys, words))
        return plain(self)

    monkeypatch.setattr(family, slow, waits)
    problem.simulate()
    assert said
    if slow == "risk":
        said, words = [], "making the problem of the run"
        icl.load(tmp_path / "run.npz")
        assert said


@pytest.mark.usefixtures("impatient")
def test_in_a_terminal_all_that_is_done_is_drawn_and_what_is_printed_gets_where_it_was_to_go(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    in_a_terminal(monkeypatch)
    with working("writing a[/b].csv") as work:
        spoken(capsys, "writing a[/b].csv, 0:00:0")
        sys.stdout.write("a result\n")
        assert capsys.readouterr().out == "a result\n"  # into a file, say
        with CountProgress() as shown:
            shown.update(0, 2)
            shown.update(1, 2)
            assert "writing" in spoken(capsys, "1 of 2 points")
        work.start -= 60.0
        spoken(capsys, "writing a[/b].csv, 0:01:0")
    assert capsys.readouterr().err.endswith("\x1b[2K")


class Closed(io.StringIO):
    def write(self, _: str) -> int:
        raise BrokenPipeError


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("stream", [None, Closed()])
@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_work_is_done_where_nobody_can_be_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, stream: object
) -> None:
    in_a_terminal(monkeypatch)
    said = ""
    with monkeypatch.context() as patch:
        patch.setattr(sys, name, stream)
        with CountProgress() as shown:
            shown.update(0, 2)
            shown.update(1, 2)
            if name == "stdout":
                said = spoken(capsys, "1 of 2")
    assert (said + capsys.readouterr().err != "") == (name == "stdout")


@pytest.mark.usefixtures("impatient")
def test_work_is_done_where_there_can_be_no_other_thread(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", none)
    with working("adding numbers"):
        pass
    assert capsys.readouterr().err == ""
