from __future__ import annotations

import datetime
import os
from pathlib import Path

import pytest

import icl_theory as icl
from icl_theory.sweeps.store import existing
from tests.pages import Page
from tests.test_cli import BASE, run_main
from tests.test_cli_sweep import QUICK

# twelve points in two chunks
SLOW = [
    "sweep",
    "--L",
    "1:2:log:12",
    "--delta",
    "1",
    "--eta",
    "2",
    "--K",
    "3",
    "--N",
    "20",
    "--epsilon",
    "0.1",
]


def report_of(capsys: pytest.CaptureFixture[str], path: Path, *options: str) -> Page:
    out = path.with_suffix(".html")
    assert run_main(capsys, "report", str(path), "--out", str(out), *options) == (
        0,
        "",
        "",
    )
    return Page(out.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "command", [BASE, ["recall", "simulate", "--V", "40"]], ids=["simulate", "recall"]
)
def test_a_saved_run_is_reported_with_the_command_as_typed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: list[str]
) -> None:
    path = tmp_path / "a run.npz"
    assert run_main(capsys, *command, "--save", str(path))[0] == 0
    page = report_of(capsys, path)
    assert f"icl-theory {' '.join(command)} --save '{path}'" in page.text
    assert dict(page.tables[0]) == icl.load(path).facts()
    assert (
        f"on {datetime.date.today().isoformat()} with icl-theory {icl.__version__}"
        in page.text
    )


@pytest.mark.usefixtures("no_figures")
def test_a_store_is_reported_with_the_command_as_typed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store = tmp_path / "a"
    assert run_main(capsys, *QUICK, "--K", "5,20", "--store", str(store))[0] == 0
    page = report_of(capsys, store)
    assert f"icl-theory {' '.join(QUICK)} --K 5,20 --store {store}" in page.text
    assert "26 of 26 points are computed" in page.text
    assert page.tables[page.about("regime")][0][:2] == ["K", "L"]
    assert report_of(capsys, store, "--over", "K").tables[page.about("regime")][0][
        :2
    ] == ["L", "K"]


@pytest.mark.usefixtures("no_figures")
def test_a_recall_sweep_is_reported_and_tabled(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store, csv = tmp_path / "a", str(tmp_path / "a.csv")
    command = [
        "recall",
        "sweep",
        "--triggers",
        "4,16",
        "--counts",
        "1",
        "--store",
        str(store),
        "--csv",
        csv,
    ]
    assert run_main(capsys, *command, "--quiet")[0] == 0
    page = report_of(capsys, store)
    assert f"icl-theory {' '.join(command)} --quiet" in page.text
    assert page.column(page.about("excess"), "T_ε") == ["44", "87"]
    status, out, err = run_main(
        capsys, "table", str(store), "--plot", str(tmp_path / "a.png")
    )
    assert (status, out, err) == (0, "", "")


@pytest.mark.usefixtures("no_figures")
def test_another_command_goes_on_with_the_store_and_both_are_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store = tmp_path / "a"
    first = [
        *SLOW,
        "--imbalance",
        "0.1",
        "--store",
        str(store),
        "--quiet",
    ]  # points one by one
    second = [*first, "--plot", str(tmp_path / "a.png")]
    assert run_main(capsys, *first)[0] == 0
    first_part, second_part = sorted(store.glob("part-*"))
    second_part.unlink()
    kept = first_part.stat().st_mtime_ns
    page = report_of(capsys, store)
    assert (
        "8 of 12 points are computed: 8 reached the target. 4 are missing" in page.text
    )
    assert "The same command with this store computes them." in page.text
    for command in (second, first, second):
        assert run_main(capsys, *command)[0] == 0
    assert first_part.stat().st_mtime_ns == kept
    assert existing(store).commands == [
        "icl-theory " + " ".join(command) for command in (first, second)
    ]
    page = report_of(capsys, store)
    assert "12 of 12 points are computed" in page.text
    assert "one after the other" in page.text


def test_an_empty_store_is_reported(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store = tmp_path / "a"
    assert run_main(capsys, *QUICK, "--store", str(store))[0] == 0
    for part in store.glob("part-*"):
        part.unlink()
    page = report_of(capsys, store)
    assert "0 of 13 points are computed. 13 are missing" in page.text
    assert not page.images


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize(
    ("found", "out", "words"),
    [
        (
            "missing.npz",
            "a.html",
            "must be a run written with --save, or a folder written with --store",
        ),
        ("folder", "a.html", "must be a store made by a sweep"),
        ("text.npz", "a.html", "must be a file written by Trajectory.save"),
        ("run.npz", "a.txt", "must be a file name ending in .html"),
        ("run.npz", "a", "must be a file name ending in .html"),
        ("run.html", "run.html", "other than the one that is read"),
        ("run.npz", "none/a.html", "must be in a folder that exists"),
        ("run.npz", "taken.html", "Is a directory"),
        ("run.npz", "/proc/a.html", "/proc/a.html: No such file or directory"),
    ],
)
def test_what_cannot_be_read_or_written_is_one_line_and_status_two(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, found: str, out: str, words: str
) -> None:
    for name in ("folder", "taken.html"):
        (tmp_path / name).mkdir()
    (tmp_path / "text.npz").write_text("text")
    for name in ("run.npz", "run.html"):
        icl.simulate(2.0, 1.0, 4.0).save(tmp_path / name)
    before = sorted(tmp_path.iterdir())
    status, printed, err = run_main(
        capsys, "report", str(tmp_path / found), "--out", str(tmp_path / out)
    )
    assert (status, printed, err.count("\n")) == (2, "", 1)
    assert words in err
    assert sorted(tmp_path.iterdir()) == before


def test_over_is_refused_for_a_run_and_out_is_needed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = str(tmp_path / "run.npz")
    icl.simulate(2.0, 1.0, 4.0).save(path)
    status, _, err = run_main(
        capsys, "report", path, "--out", str(tmp_path / "a.html"), "--over", "K"
    )
    assert (status, err) == (
        2,
        "icl-theory: over = 'K': a run has no swept parameter\n",
    )
    status, _, err = run_main(capsys, "report", path)
    assert (status, err.count("\n")) == (2, 1)
    assert "--out" in err


def full_disk(descriptor: int) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.usefixtures("no_figures")
def test_a_report_is_written_whole_or_not_at_all(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out = tmp_path / "run.npz", tmp_path / "a.html"
    icl.simulate(2.0, 1.0, 4.0).save(path)
    out.write_text("the old one")

    monkeypatch.setattr(os, "fsync", full_disk)
    status, _, err = run_main(capsys, "report", str(path), "--out", str(out))
    assert (status, err) == (2, f"icl-theory: {out}: No space left on device\n")
    assert out.read_text() == "the old one"
    assert sorted(os.listdir(tmp_path)) == ["a.html", "run.npz"]


def test_the_table_of_a_recall_sweep_is_written_whole_or_not_at_all(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    csv = tmp_path / "a.csv"
    csv.write_text("the old one")

    monkeypatch.setattr(os, "fsync", full_disk)
    assert (
        run_main(
            capsys,
            "recall",
            "sweep",
            "--triggers",
            "4",
            "--counts",
            "1",
            "--quiet",
            "--csv",
            str(csv),
        )[0]
        == 2
    )
    assert csv.read_text() == "the old one"
