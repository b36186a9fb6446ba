from __future__ import annotations

import re
import sys

import pytest

from icl_theory.grids import progress
from icl_theory.grids.progress import PointProgress, duration


def test_plain_lines_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "SILENT", 0.0)
    monkeypatch.setattr(progress, "INTERVAL", 0.0)
    with PointProgress() as shown:
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
    with PointProgress() as shown:
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
    with PointProgress(shown) as display:
        display.update(0, 2000)
        display.update(2000, 2000)
    assert capsys.readouterr().err == ""


def test_points_of_an_earlier_run_do_not_count_for_the_speed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "SILENT", 0.0)
    with PointProgress() as shown:
        shown.update(1000, 2000)
        shown.update(1000, 2000)
    assert capsys.readouterr().err == "1,000 of 2,000 points, 0 points/s\n"


def test_durations_are_in_hours_minutes_and_seconds() -> None:
    assert [duration(seconds) for seconds in (0.4, 61.0, 360_000.0)] == ["0:00:00", "0:01:01", "100:00:00"]
