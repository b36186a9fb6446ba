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
from icl_theory.engine.progress import CountProgress, StepProgress, duration, working
from icl_theory.engine.rules import rule_of
from icl_theory.engine.steps import Descent
from icl_theory.families.regression import population
from icl_theory.families.regression.prompts import infima

LINEAR = icl.PopulationRisk(icl.Features.simplex(3, 1.0), icl.tasks.Linear(2.0))


def test_plain_lines_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "SILENT", 0.0)
    monkeypatch.setattr(progress, "INTERVALS", (0.0, 0.0))
    with CountProgress() as shown:
        shown.update(0, 2000)
        shown.update(500, 2000)
        shown.update(2000, 2000)
    first, second = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"500 of 2,000 points, \S+ points/s, 0:00:\d\d left", first)
    assert second.startswith("2,000 of 2,000 points")


def test_a_bar_in_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "SILENT", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with CountProgress() as shown:
        shown.update(0, 2000)
        shown.update(500, 2000)
        shown.update(2000, 2000)
    written = capsys.readouterr().err
    assert "2000/2000" in written
    assert "points/s" in written
    assert "\x1b[2K" in written  # and gone


@pytest.mark.parametrize("shown", [True, False])
def test_nothing_for_what_is_quick_or_not_to_be_shown(
    shown: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not shown:
        monkeypatch.setattr(progress, "SILENT", 0.0)
    with CountProgress(shown) as display:
        display.update(0, 2000)
        display.update(2000, 2000)
    assert capsys.readouterr().err == ""


def test_points_of_an_earlier_run_do_not_count_for_the_speed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "SILENT", 0.0)
    with CountProgress() as shown:
        shown.update(1000, 2000)
        shown.update(1000, 2000)
    assert capsys.readouterr().err == "1,000 of 2,000 points, 0 points/s\n"


def test_what_comes_before_the_first_count_is_no_part_of_the_speed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "SILENT", 0.0)
    seconds = iter([0.0, 100.0, 101.0, 101.0])
    monkeypatch.setattr("icl_theory.engine.progress.time.monotonic", lambda: next(seconds))
    with CountProgress() as shown:
        shown.update(1000, 2000)
        shown.update(1500, 2000)
    assert capsys.readouterr().err == "1,500 of 2,000 points, 500 points/s, 0:00:01 left\n"


def test_durations_are_in_hours_minutes_and_seconds() -> None:
    assert [duration(seconds) for seconds in (0.4, 61.0, 360_000.0)] == ["0:00:00", "0:01:01", "100:00:00"]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Show what nobody asked for at once, and search a floor in two rounds."""
    monkeypatch.setattr(population, "infima", partial(infima, work=1.0))
    monkeypatch.setattr(progress, "PATIENT", 0.0)
    monkeypatch.setattr(progress, "SILENT", 0.0)
    monkeypatch.setattr(progress, "INTERVALS", (0.0, 0.0))


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
    icl.simulate(**RUN)
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("impatient")
def test_below_a_bar_there_are_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What draws on a terminal puts something in the place of the stream that says whose place it has."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "rich_proxied_file", sys.stderr, raising=False)
    icl.simulate(**RUN)
    assert capsys.readouterr().err.startswith("step 0, loss ")


@pytest.mark.usefixtures("impatient")
def test_a_loss_that_is_not_known_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    with StepProgress() as shown:
        shown.beat(7, math.nan)
    assert re.fullmatch(r"step 7, \S+ steps/s\n", capsys.readouterr().err)


def test_counting_yields_what_it_counts() -> None:
    assert [*progress.counted("abc", "letters")] == ["a", "b", "c"]


def spoken(capsys: pytest.CaptureFixture[str], words: str) -> str:
    """Wait until something was said, and return what was said up to then."""
    said = ""
    for _ in range(1000):
        said += capsys.readouterr().err
        if words in said:
            return said
        time.sleep(0.01)
    raise AssertionError(said)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Show everything at once, and again every hundredth of a second."""
    monkeypatch.setattr(progress, "PATIENT", 0.0)
    monkeypatch.setattr(progress, "SILENT", 0.0)
    monkeypatch.setattr(progress, "INTERVALS", (0.01, 0.01))


@pytest.mark.usefixtures("often")
def test_work_that_cannot_tell_how_far_it_is_says_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with working("adding numbers") as work:
        said = spoken(capsys, "\n")
        assert re.fullmatch(r"(adding numbers, 0:00:\d\d\n)+", said)
        with working("multiplying them"):
            spoken(capsys, "multiplying them, 0:00:")
        work.parts = 1234
        spoken(capsys, "adding numbers, 1,234 parts computed, 0:00:")
    capsys.readouterr()
    time.sleep(0.05)
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("family", [icl.Regression, icl.Recall, icl.LinearAttention])
@pytest.mark.parametrize("slow", ["risk", "rate"])
def test_problems_that_take_long_to_make_say_so_in_a_run_and_when_one_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, family: Any, slow: str
) -> None:
    given = {"L": 2.0, "delta": 1.0, "eta": 1.0} if family is icl.Regression else {}
    problem = family(**given, max_steps=3)
    problem.simulate().save(tmp_path / "run.npz")
    said: list[str] = []
    plain = getattr(family, slow)

    def waits(self: Any) -> Any:
        if not said:
            said.append(spoken(capsys, "making the problem"))
        return plain(self)

    monkeypatch.setattr(family, slow, waits)
    problem.simulate()
    assert said
    if slow == "risk":
        said.clear()
        icl.load(tmp_path / "run.npz")
        assert said


@pytest.mark.usefixtures("often")
def test_in_a_terminal_work_gives_way_to_what_can_tell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "PATIENT", 0.2)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with working("adding numbers"):
        spoken(capsys, "adding numbers")
        sys.stdout.write("a result\n")
        assert capsys.readouterr().out == "a result\n"  # where it was to go, into a file say
        with CountProgress() as shown:
            shown.update(0, 2)
            shown.update(1, 2)
            assert "adding" not in spoken(capsys, "1/2").rsplit("\x1b[2K")[-1]
            time.sleep(0.05)
            assert "adding" not in capsys.readouterr().err
        spoken(capsys, "adding numbers")
    assert capsys.readouterr().err.endswith("\x1b[2K")


@pytest.mark.usefixtures("often")
def test_in_a_terminal_words_are_as_they_stand_with_the_time_since_the_work_began(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with working("writing a[/b].csv") as work:
        work._start -= 60.0
        spoken(capsys, "writing a[/b].csv, 0:01:0")


class Closed(io.StringIO):
    def write(self, _: str) -> int:
        raise BrokenPipeError


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("stream", [None, Closed()])
@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_work_is_done_where_nobody_can_be_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, stream: object
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with monkeypatch.context() as patch:
        patch.setattr(sys, name, stream)
        with working("adding numbers"):
            time.sleep(0.05)
            with CountProgress() as shown:
                shown.update(0, 2)
                shown.update(1, 2)
    assert ("1/2" in capsys.readouterr().err) == (name == "stdout")


@pytest.mark.usefixtures("often")
def test_work_is_done_where_there_can_be_no_other_thread(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", none)
    with working("adding numbers"):
        time.sleep(0.05)
    assert capsys.readouterr().err == ""
