from __future__ import annotations

import contextlib
import io
import json
import random
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import icl_theory as icl
from icl_theory.cli import main, options
from icl_theory.families import list_families
from icl_theory.families.registry import find
from icl_theory.regression import half_way
from tests.processes import go_on, start, until
from tests.test_cli import run_main

QUICK = [
    "sweep",
    "--L",
    "0.03:3:log:13",
    "--delta",
    "1",
    "--eta",
    "0.1",
    "--epsilon",
    "1e-4",
]
# forty-eight points in six chunks, a second
SLOW = [
    "sweep",
    "--L",
    "1:2:log:12",
    "--delta",
    "1",
    "--eta",
    "2",
    "--K",
    "3,4",
    "--N",
    "20,30",
    "--epsilon",
    "0.02",
    "--imbalance",
    "0.1",
    "--method",
    "exact",
]
# as many points again, so that a run can be killed again and again
SLOWER = ["1:2:log:24" if word == "1:2:log:12" else word for word in SLOW]


def parse_axis(name: str, text: str) -> Any:
    return options.parse_axis(find("regression").parameters()[name], text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2", 2.0),
        (" 0.5 ", 0.5),
        ("inf", float("inf")),
        ("5,20,100", [5.0, 20.0, 100.0]),
        ("1:100:log:3", [1.0, 10.0, 100.0]),
        ("0:1:lin:3", [0.0, 0.5, 1.0]),
        ("3:1:lin:3", [3.0, 2.0, 1.0]),
        ("1:2:log:2", [1.0, 2.0]),
    ],
)
def test_numbers_lists_and_ranges_are_read(
    text: str, expected: float | list[float]
) -> None:
    np.testing.assert_allclose(parse_axis("L", text), expected)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "1,,2",
        "1:2",
        "1:2:log",
        "1:2:cube:3",
        "1:2:log:x",
        "1:2:log:1",
        "1:2:log:2.5",
        "0:1:log:3",
        "-1:1:log:3",
        "1:-1:log:3",
        "1:0:log:3",
        "1:inf:log:3",
        "1:1:lin:3",
        "1:2:log:3:4",
        "nan:1:lin:2",
        "auto",
        "1:2:lin:999999999",
    ],
)
def test_malformed_parameters_are_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match=f"^L = {re.escape(repr(text))}: must be "):
        parse_axis("L", text)


def test_ranges_of_integers_are_rounded_and_may_not_repeat() -> None:
    assert np.asarray(parse_axis("K", "5:500:log:5")).tolist() == [
        5.0,
        16.0,
        50.0,
        158.0,
        500.0,
    ]
    with pytest.raises(
        ValueError, match="at most 4 values, because rounded to integers"
    ):
        parse_axis("K", "2:5:log:20")
    assert parse_axis("eta", "auto") == "auto"
    assert parse_axis("L", "2,") == [2.0]


def test_tables_and_figure_are_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    endings = {
        "table": ".md",
        "csv": ".csv",
        "latex": ".tex",
        "parquet": ".parquet",
        "plot": ".svg",
    }
    files = {name: str(tmp_path / f"a{ending}") for name, ending in endings.items()}
    options = [word for name, path in files.items() for word in (f"--{name}", path)]
    options += ["--workers", "1"]
    status, out, err = run_main(capsys, *QUICK, *options)
    assert (status, err) == (0, "")
    assert re.fullmatch(
        r"Measured half-way point L = 0\.14\S+ ± \S+, predicted 0\.143; other boundaries: 0\.1991 "
        r"\(exact onset of the tail\), 0\.1298 \(leading order in K\)\.\n",
        out,
    )
    table = pd.read_csv(files["csv"])
    found = icl.sweep(
        np.geomspace(0.03, 3.0, 13), 1.0, 0.1, epsilon=1e-4, progress=False
    )
    assert table["steps"].tolist() == found.steps.values.tolist()
    assert (
        pd.read_parquet(files["parquet"])["steps"].tolist()
        == found.steps.values.tolist()
    )
    for path in files.values():
        assert Path(path).stat().st_size > 500
    assert out.strip() in Path(files["table"]).read_text(encoding="utf-8")


def test_a_table_is_printed_that_fits_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, out, err = run_main(capsys, *QUICK, "--K", "5,20", "--imbalance", "0.1")
    assert (status, err) == (0, "")
    assert max(map(len, out.splitlines()[:-2])) <= 80
    assert out.splitlines()[1].split()[:4] == ["K", "L", "regime", "T_I"]
    assert half_way(1e-4, 1.0, 20) == pytest.approx(0.143, abs=1e-3)
    status, out, _ = run_main(capsys, "sweep", "--L", "2", "--delta", "1", "--eta", "4")
    assert (status, "sharp" in out) == (0, True)


def test_stable_rate_and_tasks(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = str(tmp_path / "a.csv")
    options = [
        "--eta",
        "auto",
        "--K",
        "4",
        "--task",
        "linear",
        "--epsilon",
        "0.01",
        "--csv",
        path,
    ]
    status, _, err = run_main(capsys, "sweep", "--L", "1,2", "--delta", "1", *options)
    assert (status, err) == (0, "")
    steps = pd.read_csv(path)["steps"].tolist()
    expected = icl.sweep(
        [1.0, 2.0],
        1.0,
        "auto",
        K=4,
        task=icl.tasks.Linear,
        epsilon=0.01,
        progress=False,
    )
    assert steps == expected.steps.values.tolist()


def test_options_come_from_a_file_and_flags_win(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "sweep.toml"
    config.write_text(
        'L = "0.1:10:log:3"\ndelta = 1\neta = [0.1, "2"]\nK = 5\nepsilon = 1e-4\nmax-steps = 1000000\n'
    )
    path = tmp_path / "a.csv"
    status, _, err = run_main(
        capsys, "sweep", "--config", str(config), "--K", "7", "--csv", str(path)
    )
    assert (status, err) == (0, "")
    table = pd.read_csv(path)
    assert table["L"].tolist() == [0.1, 1.0, 10.0] * 2
    assert table["eta"].tolist() == [0.1] * 3 + [2.0] * 3
    expected = icl.simulate(1.0, 1.0, 2.0, K=7, epsilon=1e-4).steps
    assert table["steps"][4] == expected
    config.write_text("L = [2.0]\ndelta = 1\neta = 4\njson = true\n")
    status, out, err = run_main(capsys, "sweep", "--config", str(config))
    assert (status, err, json.loads(out)["dims"]) == (0, "", {"L": 1})
    for text, words in (
        ("L = ", "a TOML file"),
        ("lipschitz = 3", "no option 'lipschitz'"),
        ("L = [[1]]", "L = "),
        ("K = " + 5000 * "1", "at most 4300 digits"),
    ):
        config.write_text(text)
        status, _, err = run_main(
            capsys, "sweep", "--config", str(config), "--delta", "1", "--eta", "1"
        )
        assert (status, err.count("\n")) == (2, 1)
        assert words in err


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (
            ["--L", "0:3:log:4"],
            "L = '0:3:log:4': must be a range between positive numbers",
        ),
        (["--K", "5,5"], "without duplicates (5 occurs twice)"),
        (["--K", "2.5"], "K = 2.5"),
        (["--epsilon", "-1"], "epsilon = -1.0"),
        (["--eta", "fast"], "or auto"),
        (["--eta", "auto", "--coordinates", "factored"], "eta = 'auto'"),
        (["--task", "cubic"], "cubic"),
        (["--over", "K"], "over = 'K': must be one of L"),
        (["--table", "a.txt"], "table = 'a.txt': must be a file name ending in .md"),
        (
            ["--csv", "/no/such/a.csv"],
            "csv = '/no/such/a.csv': must be in a folder that exists",
        ),
        (["--plot", "a.png", "--K", "5,6", "--N", "5,6"], "with 3 swept parameters"),
        (["--store", "/proc/a"], "cannot be used"),
        (["--workers", "0"], "workers = 0"),
        (["--workers", "2", "--dask", "x"], "--workers or --dask, not both"),
        (
            ["--dask", "nowhere"],
            "dask = 'nowhere': must be the address of a running scheduler",
        ),
        (["--config", "/no/such.toml"], "No such file"),
    ],
)
def test_wrong_input_is_one_line_and_status_two(
    capsys: pytest.CaptureFixture[str], extra: list[str], words: str
) -> None:
    status, out, err = run_main(capsys, *QUICK, *extra)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("icl-theory: ")
    assert words in err


def test_all_required_parameters_that_are_missing_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, _, err = run_main(capsys, "sweep", "--L", "1", "--delta", "1")
    place = "or in the file of --config\n"
    assert (status, err) == (
        2,
        f"icl-theory: --eta (a number or auto): give it as an option {place}",
    )
    for name, family in list_families().items():
        needed = [
            each for each, declared in family.parameters().items() if declared.required
        ]
        status, _, err = run_main(capsys, name, "simulate") if needed else (2, "", "\n")
        assert status == 2
        assert err.count("\n") == 1
        assert all(f"--{each}" in err for each in needed)


@pytest.mark.parametrize(
    ("L", "words"),
    [("1,1e200", "1 of 2 points failed"), ("1e200", "1 of 1 point failed")],
)
def test_points_are_counted_in_plain_english(
    L: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in run_main(capsys, "sweep", "--L", L, "--delta", "1", "--eta", "1")[2]


def test_failed_points_are_counted_and_are_status_three(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "a.csv"
    status, _, err = run_main(
        capsys,
        "sweep",
        "--L",
        "1,1e200,1e201",
        "--delta",
        "1",
        "--eta",
        "1",
        "--csv",
        str(path),
    )
    assert status == 3
    assert err.startswith(
        "icl-theory: 2 of 3 points failed; the first: L = 1e+200: must be"
    )
    assert pd.read_csv(path)["status"].tolist() == ["reached", "failed", "failed"]


def test_dry_run_says_how_much_work_it_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    status, out, _ = run_main(
        capsys, *SLOW, "--dry-run", "--workers", "2", "--store", str(tmp_path / "a")
    )
    lines = out.splitlines()
    assert status == 0
    assert lines[0] == "48 points in 6 chunks, 0 in batches and 48 one by one"
    assert re.fullmatch(r"about (0:\d\d:\d\d|[\d.]+ s) on 2 workers", lines[1])
    assert not list(tmp_path.iterdir())


def table_of(command: list[str], folder: Path) -> str:
    """The table of a sweep that nothing interrupts."""
    path = folder / "whole.csv"
    said = io.StringIO()
    with pytest.raises(SystemExit) as ended, contextlib.redirect_stderr(said):
        main([*command, "--quiet", "--csv", str(path)])
    assert (ended.value.code, said.getvalue()) == (0, "")
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> str:
    return table_of(SLOW, tmp_path_factory.mktemp("whole"))


@pytest.mark.slow
def test_a_run_that_is_killed_again_and_again_goes_on(tmp_path: Path) -> None:
    """Here with workers; tests/grids/crash.py ends one process at each of its file operations."""
    store, path = tmp_path / "a", tmp_path / "a.csv"
    command = [*SLOWER, "--store", str(store), "--csv", str(path), "--workers", "2"]
    rng = random.Random(2)
    done = [0]
    for _ in range(4):
        process = start(*command)
        until(lambda: _stored(store) > done[-1] or process.poll() is not None)  # noqa: B023
        time.sleep(rng.uniform(0.0, 0.3))  # at any moment of the next chunk
        process.kill()
        process.communicate()
        if store.exists():
            done.append(_stored(store))
    assert sorted(done) == done, "chunks were lost"
    assert done[-1] > 0
    process = start(*command)
    err = go_on(process)
    assert process.returncode == 0, err
    assert path.read_text(encoding="utf-8") == table_of(SLOWER, tmp_path)


def _stored(store: Path) -> int:
    return sum(1 for _ in store.glob("part-*"))


@pytest.mark.parametrize(
    "workers",
    [
        pytest.param([], id="alone"),
        pytest.param(["--workers", "2"], id="two workers", marks=pytest.mark.slow),
    ],
)
def test_an_interrupt_keeps_what_is_done_and_says_how_to_go_on(
    tmp_path: Path,
    uninterrupted: str,
    workers: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    store, path = tmp_path / "a", tmp_path / "a.csv"
    command = [*SLOW, "--store", str(store), "--csv", str(path), *workers]
    process = start(*command, paused=True)
    err = go_on(process, interrupted=True)
    assert process.returncode == 130, err
    last = err.splitlines()[-1]
    found = re.fullmatch(
        r"icl-theory: interrupted after (\d+) of 48 points; the same command continues the sweep",
        last,
    )
    assert found, err
    assert "Traceback" not in err
    assert len(pd.read_csv(path)) == int(found[1]) > 0
    assert run_main(capsys, *command)[0] == 0
    assert path.read_text(encoding="utf-8") == uninterrupted


def test_the_second_run_on_a_store_is_refused_and_the_first_goes_on(
    tmp_path: Path, uninterrupted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store, path = tmp_path / "a", tmp_path / "a.csv"
    command = [*SLOW, "--store", str(store)]
    process = start(*command, "--csv", str(path), paused=True)
    status, _, err = run_main(capsys, *command)
    assert (status, err.count("\n")) == (2, 1)
    assert "used by one run at a time, and another has it open" in err
    go_on(process)
    assert process.returncode == 0
    assert path.read_text(encoding="utf-8") == uninterrupted


def test_table_makes_tables_of_a_store_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store, one, two = (str(tmp_path / name) for name in ("a", "one.md", "two.md"))
    assert (
        run_main(capsys, *QUICK, "--K", "5,20", "--store", store, "--table", one)[0]
        == 0
    )
    status, out, err = run_main(
        capsys, "table", store, "--table", two, "--plot", str(tmp_path / "a.png")
    )
    assert (status, err) == (0, "")
    assert Path(one).read_text() == Path(two).read_text()
    assert out.count("\n") == 2
    assert (tmp_path / "a.png").stat().st_size > 1000
    status, out, _ = run_main(capsys, "table", store, "--over", "K")
    assert status == 0
    assert out.splitlines()[1].split()[:2] == ["L", "K"]
    for part in Path(store).glob("part-*"):
        part.unlink()
    status, _, err = run_main(capsys, "table", store)
    assert (status, err) == (0, f"icl-theory: {store} holds no points yet\n")
    status, _, err = run_main(capsys, "table", str(tmp_path / "none"))
    assert (status, err.count("\n")) == (2, 1)
    assert "must be a store made by a sweep" in err


def test_points_without_steps_are_blank_in_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, out, _ = run_main(
        capsys, "sweep", "--L", "1,1e200", "--delta", "1", "--eta", "1"
    )
    assert status == 3
    assert out.splitlines()[4].split() == ["1e+200", "failed"]


ONE_EACH = ["sweep", "--L", "1,2", "--delta", "1", "--eta", "1", "--epsilon", "0.01"]
DIVERGING = [
    "recall",
    "train",
    "--model",
    "full",
    "--attention",
    "softmax",
    "--eta",
    "1e308",
    "--max-steps",
    "9",
]


@pytest.mark.parametrize(
    "command",
    [
        ONE_EACH,
        [*ONE_EACH, "--dry-run"],
        [*ONE_EACH, "--csv", "a.csv"],
        [*ONE_EACH, "--L", "1"],
        [*ONE_EACH, "--L", "1e200,1e201"],
        ["linear-attention", "sweep", "--d", "2,3", "--dry-run"],
        ["simulate", *ONE_EACH[3:], "--L", "2"],
        ["simulate", *ONE_EACH[3:], "--L", "2", "--eta", "1e9"],
        [
            "simulate",
            "--L",
            "2",
            "--delta",
            "1",
            "--eta",
            "1",
            "--K",
            "3",
            "--coordinates",
            "all",
        ],
        DIVERGING,
    ],
)
def test_json_is_one_document_without_nan(
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    monkeypatch.chdir(tmp_path)
    status, out, _ = run_main(capsys, *command, "--json")
    assert status in (0, 1, 3)
    assert isinstance(json.loads(out, parse_constant=refuse), dict)
    assert ("--csv" in command) == Path("a.csv").exists()


def test_a_swept_parameter_cannot_be_chosen_where_there_is_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, _, err = run_main(capsys, *ONE_EACH, "--L", "1", "--over", "heads")
    assert (status, err) == (
        2,
        "icl-theory: over = 'heads': must be left out: there is nothing to choose\n",
    )


def test_json_has_null_where_a_number_is_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = [
        "sweep",
        "--L",
        "0.1,1,1e160",
        "--K",
        "2,20",
        "--delta",
        "1",
        "--eta",
        "1",
        "--json",
        "--quiet",
    ]
    status, out, said = run_main(capsys, *line)
    found = json.loads(out, parse_constant=pytest.fail)
    assert (status, "2 of 6 points failed" in said) == (3, True)
    assert found["coords"]["N"]["data"] == "inf"
    assert found["data_vars"]["L_half"]["data"][0][0] is None
    assert (
        found["data_vars"]["steps"]["data"]
        == icl.sweep(
            L=[0.1, 1.0, 1e160], K=[2, 20], delta=1.0, eta=1.0, progress=False
        )["steps"].values.tolist()
    )


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("command", ["table", "report", "sweep"])
def test_commands_name_the_foreign_files_of_a_store(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = str(tmp_path / "a")
    line = ["sweep", "--L", "1,2", "--delta", "1", "--eta", "0.1", "--store", store]
    assert run_main(capsys, *line)[0] == 0
    (tmp_path / "a" / "Thumbs.db").touch()
    out = str(tmp_path / "page.html")
    lines = {
        "table": ["table", store],
        "report": ["report", store, "--out", out],
        "sweep": line,
    }
    status, _, err = run_main(capsys, *lines[command])
    assert status == 0
    assert (
        err
        == f"icl-theory: store {store!r}: ignored 'Thumbs.db', which no sweep has written\n"
    )
    assert (
        icl.load_sweep(store).attrs["notes"] == err.removeprefix("icl-theory: ").strip()
    )


def test_columns_that_are_constant_make_room_for_those_that_vary(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their values are told below the table, so that nothing but the predictions is lost at 80 columns."""
    line = [
        "sweep",
        "--L",
        "0.05,0.2,1,5",
        "--delta",
        "1",
        "--eta",
        "0.1",
        "--K",
        "20",
        "--epsilon",
        "1e-4",
    ]
    texts = {}
    for width in (80, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        texts[width] = " ".join(run_main(capsys, *line)[1].split())
    found = icl.sweep(
        [0.05, 0.2, 1.0, 5.0], 1.0, 0.1, K=20, epsilon=1e-4, progress=False
    )
    assert f"L* = {float(found.L_star[0]):.4g}" in texts[80]
    assert "The same in all rows: " in texts[80]
    assert "The same" not in texts[200]
    assert "No room" not in texts[200]
    rows, _, constants = texts[80].partition("The same in all rows: ")
    for heading in ("L½", "L*"):
        assert heading not in rows
        assert heading in constants
