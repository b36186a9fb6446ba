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
from icl_theory.engine.progress import Display, Progress, duration
from icl_theory.engine.rules import rule_of
from icl_theory.engine.steps import UpdateMap
from icl_theory.regression.risks import prompts
from icl_theory.regression.risks.prompts import infima

LINEAR = icl.PopulationRisk(icl.Features.simplex(3, 1.0), icl.tasks.Linear(2.0))


@pytest.fixture
def terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A terminal in which everything is shown at once, and from which capsys reads."""
    monkeypatch.setattr(progress, "DISPLAY", Display(0.0))
    # pytest replaces the stream itself before the test begins.
    stream = type(sys.stderr)
    monkeypatch.setattr(stream, "isatty", lambda stream: stream is sys.stderr)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")  # so that rich takes it for one, too


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Search a floor in two rounds."""
    monkeypatch.setattr(prompts, "infima", partial(infima, work=1.0))


def spoken(capsys: pytest.CaptureFixture[str], words: str) -> str:
    """Wait until something was said, and return what was said up to then."""
    said = ""
    for _ in range(6000):
        said += capsys.readouterr().err
        if words in said:
            return said
        time.sleep(0.01)
    raise AssertionError(said)


def test_a_bar_in_a_terminal_that_disappears(
    terminal: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with Progress() as shown:
        shown.update(0, 2000)
        shown.update(500, 2000)
        assert "━" in spoken(capsys, "500 of 2,000 points")
    assert capsys.readouterr().err.endswith("\x1b[2K")


@pytest.mark.parametrize("delay", [0.0, 3600.0])
def test_nothing_for_what_is_quick_or_not_to_be_shown_or_where_there_is_no_terminal(
    delay: float,
    terminal: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for quiet, is_terminal in (
        (True, True),
        (False, False),
        *[(False, True)] * (delay > 0.0),
    ):
        monkeypatch.setattr(progress, "DISPLAY", Display(delay))
        monkeypatch.setattr(sys.stderr, "isatty", lambda said=is_terminal: said)
        with Progress(quiet=quiet) as display:
            display.update(0, 2000)
            with Progress("adding numbers"):
                display.update(2000, 2000)
                time.sleep(0.05)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("before", [1000, 1200])
def test_points_of_an_earlier_run_and_what_comes_before_the_first_count_are_no_part_of_the_speed(
    before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("icl_theory.engine.progress.time.monotonic", lambda: now[0])
    with Progress() as shown:
        now[0] = 100.0
        shown.update(before, 2000)
        now[0] = 101.0
        shown.update(1500, 2000)
        rate = 1500 - before
        assert shown.line() == f"1,500 of 2,000 points, {rate} points/s, 0:00:01 left"


def test_durations_are_in_hours_minutes_and_seconds() -> None:
    assert [duration(seconds) for seconds in (0.4, 61.0, 360_000.0)] == [
        "0:00:00",
        "0:01:01",
        "100:00:00",
    ]


RUN: dict[str, Any] = {
    "L": 2.0,
    "delta": 1.0,
    "eta": 2.0,
    "K": 4,
    "N": 40,
    "epsilon": 0.02,
}
LONG: dict[str, tuple[Callable[[], Any], str]] = {
    "a run": (lambda: icl.descend(LINEAR, 1.0, steps=50), "steps/s"),
    "a run of a family": (lambda: icl.simulate(**RUN), "steps/s"),
    "phases": (
        lambda: icl.regression.sampled_phases(icl.simulate(**RUN), runs=3, batch=256),
        "sampled steps/s",
    ),
    "samples": (
        lambda: icl.crosscheck(icl.simulate(**RUN), batch=8, steps=5),
        "samples/s",
    ),
    "a floor": (
        lambda: icl.PopulationRisk(
            icl.Features.simplex(14, 1.0), icl.tasks.RandomCosine(2.0), N=9
        ).floor(),
        "evaluations for the floor/s",
    ),
    "modes": (
        lambda: Blocks(UpdateMap(LINEAR, 1.0, rule_of("gd"))).modes(
            np.eye(3), np.zeros(3)
        ),
        "columns of the Hessian/s",
    ),
    "a minimum": (
        lambda: icl.largest_stable_eta(icl.ExchangeableRisk(20, 2.0, N=100, noise=1.0)),
        "steps/s",
    ),
    "draws": (
        lambda: icl.linear_attention.task_diversity(
            icl.LinearAttention(d=2), [1, 2], draws=3
        ),
        "draws/s",
    ),
    "prompts": (
        lambda: icl.linear_attention.ridge_loss(
            icl.linear_attention.PromptLaw([1.0], N=9), prompts=9
        ),
        "prompts/s",
    ),
    "batches": (
        lambda: icl.crosscheck(
            icl.LinearAttention(d=2, N=9).simulate(), batch=8, batches=4
        ),
        "batches/s",
    ),
}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", LONG)
def test_what_takes_long_says_how_far_it_is(name: str, heard: list[str]) -> None:
    compute, unit = LONG[name]
    compute()
    assert sum(unit in line for line in heard) > 1


def test_who_asks_for_silence_has_it(heard: list[str]) -> None:
    icl.descend(LINEAR, 1.0, steps=50, progress=False)
    icl.simulate(**RUN, callback=lambda step, loss: None)
    icl.sweep(**{**RUN, "L": [1.0, 2.0], "task": "linear"}, progress=False)
    assert not heard
    icl.descend(LINEAR, 1.0, steps=50, callback=lambda step, loss: None, progress=True)
    assert heard  # by who asks for both


def test_workers_and_what_is_drawn_on_by_another_program_are_left_alone(
    terminal: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What rich puts in the place of the stream says whose place it has."""
    with monkeypatch.context() as patch:
        patch.setattr("multiprocessing.parent_process", lambda: "another one")
        with Progress("adding numbers"):
            time.sleep(0.05)
    monkeypatch.setattr(progress, "DISPLAY", Display(0.0))
    monkeypatch.setattr(sys.stderr, "rich_proxied_file", sys.stderr, raising=False)
    with Progress("adding numbers"):
        time.sleep(0.05)
    assert capsys.readouterr().err == ""


def test_a_loss_that_is_not_known_is_left_out() -> None:
    with Progress("before the first step", "steps") as shown:
        assert shown.line() == "before the first step, 0:00:00"
        shown.update(7, loss=math.nan)
        assert re.fullmatch(r"7 steps, \S+ steps/s", shown.line())


def test_silence_is_for_what_is_done_within() -> None:
    with Progress("loading"), Progress("adding", quiet=True), Progress("multiplying"):
        assert [work.words for work in progress.DISPLAY.shown()] == ["loading"]
    assert progress.DISPLAY.shown() == []


def test_what_is_added_is_counted_towards_the_same_end() -> None:
    with Progress() as shown:
        shown.update(2, 2000)
        for count, done in ((3, 5), (1, 6)):
            shown.add(count)
            assert shown.line().startswith(f"{done} of 2,000 points, ")


def test_counting_yields_what_it_counts_and_says_of_how_many(heard: list[str]) -> None:
    assert [*progress.counted("abc", "letters")] == ["a", "b", "c"]
    assert [line.split(" letters")[0] for line in heard[:3]] == [
        "0 of 3",
        "1 of 3",
        "2 of 3",
    ]
    heard.clear()
    assert [*progress.counted(iter("ab"), "letters")] == ["a", "b"]
    assert [line.split(" letters")[0] for line in heard[:2]] == ["0", "1"]


def test_what_has_not_lasted_is_not_drawn_beside_what_has(
    terminal: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Progress("the whole") as whole, Progress() as part:
        part.update(1, 2)
        spoken(capsys, "the whole")
        monkeypatch.setattr(progress.DISPLAY, "delay", 1000.0)
        whole.start -= 2000.0
        progress.DISPLAY.live.refresh()
        assert (
            "1 of 2"
            not in spoken(capsys, "the whole, 0:33:2").split("the whole, 0:33:2")[-1]
        )
        part.start -= 2000.0
        progress.DISPLAY.live.refresh()
        spoken(capsys, "1 of 2")


def test_work_that_cannot_tell_how_far_it_is_says_what_it_is(heard: list[str]) -> None:
    with Progress("adding numbers"), Progress("multiplying them"):
        pass
    assert heard == ["multiplying them, 0:00:00", "adding numbers, 0:00:00"]


@pytest.mark.parametrize("family", [icl.Regression, icl.Recall, icl.LinearAttention])
@pytest.mark.parametrize("slow", ["risk", "rate"])
def test_problems_that_take_long_to_make_say_so_in_a_run_and_when_one_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
    heard: list[str],
    tmp_path: Path,
    family: Any,
    slow: str,
) -> None:
    given = {"L": 2.0, "delta": 1.0, "eta": 1.0} if family is icl.Regression else {}
    problem = family(**given, max_steps=3)
    problem.simulate().save(tmp_path / "run.npz")
    shown: list[str] = []
    plain = getattr(family, slow)

    def spied(self: Any) -> Any:
        shown.extend(work.line() for work in progress.DISPLAY.shown())
        return plain(self)

    monkeypatch.setattr(family, slow, spied)
    problem.simulate()
    assert "before the first step, 0:00:00" in shown
    if slow == "risk":
        icl.load(tmp_path / "run.npz")
        assert "making the problem of the run, 0:00:00" in shown


def test_in_a_terminal_all_that_is_done_is_drawn_and_what_is_printed_gets_where_it_was_to_go(
    terminal: None, capsys: pytest.CaptureFixture[str]
) -> None:
    with Progress("writing a[/b].csv") as work:
        spoken(capsys, "writing a[/b].csv, 0:00:0")
        sys.stdout.write("a result\n")
        assert capsys.readouterr().out == "a result\n"  # into a file, say
        with Progress() as shown:
            shown.update(1, 2)
            assert "writing" in spoken(capsys, "1 of 2 points")
        work.start -= 60.0
        spoken(capsys, "writing a[/b].csv, 0:01:0")
    assert capsys.readouterr().err.endswith("\x1b[2K")


class Closed(io.StringIO):
    def isatty(self) -> bool:
        return True

    def write(self, _: str) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("stream", [None, Closed()])
@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_work_is_done_where_nobody_can_be_told(
    terminal: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    stream: object,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, name, stream)
        with Progress() as shown:
            shown.update(1, 2)
            if name == "stdout":
                spoken(capsys, "1 of 2")
            else:
                time.sleep(0.05)
    assert progress.DISPLAY.live is None


def test_work_is_done_where_there_can_be_no_other_thread(
    terminal: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("threading.Thread.start", none)
    with Progress("adding numbers"):
        pass
    assert progress.DISPLAY.live is None


def test_a_loop_that_was_left_may_be_closed_in_another_display(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = progress.counted(range(3), "letters")
    assert next(loop) == 0
    monkeypatch.setattr(progress, "DISPLAY", Display(3600.0))
    loop.close()
    assert progress.DISPLAY.shown() == []
