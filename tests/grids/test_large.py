"""Sweeps larger than memory: kept on the disk, and read from it a part at a time."""

from __future__ import annotations

import contextlib
import pickle
import re
import sys
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask.array
import numpy as np
import pandas as pd
import pytest
import xarray
from dask.callbacks import Callback

import icl_theory as icl
from icl_theory.families.registry import find
from icl_theory.results import reading
from icl_theory.results.tables import write_table
from icl_theory.sweeps.estimate import estimate
from icl_theory.sweeps.sweep import plan
from tests.grids.test_store import part
from tests.test_cli import run_main

GIVEN: dict[str, Any] = {
    "L": np.geomspace(0.1, 10.0, 150),
    "K": [5, 20],
    "delta": 1.0,
    "eta": np.geomspace(0.1, 1, 150),
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with next to no memory, and chunks that are small beside the sweeps."""
    monkeypatch.setattr("icl_theory.sweeps.grid.free", lambda: 1e4)
    monkeypatch.setattr("icl_theory.sweeps.sweep.CLOSED_CHUNK", 2**14)


def kept(path: Path, **given: Any) -> Any:
    return icl.sweep(**GIVEN | given, epsilon=1e-3, store=path, progress=False)


@pytest.mark.usefixtures("small")
def test_a_sweep_that_does_not_fit_stays_in_its_store_and_is_the_same(
    tmp_path: Path,
) -> None:
    found = kept(tmp_path / "a")
    expected = icl.sweep(**GIVEN, epsilon=1e-3, progress=False)
    assert all(
        isinstance(variable.data, dask.array.Array)
        for variable in found.data_vars.values()
    )
    assert found.steps.data.npartitions > 1
    assert found.compute().identical(
        expected.assign_attrs(command=found.attrs["command"])
    )
    again = icl.load_sweep(tmp_path / "a")
    assert isinstance(again.steps.data, dask.array.Array)
    assert again.compute().identical(found.compute())


@pytest.mark.usefixtures("small")
def test_its_points_are_never_in_memory_together(tmp_path: Path) -> None:
    """Four times the points take the same memory, where every chunk has points of all kinds."""
    peaks = []
    for count in (100, 400):
        tracemalloc.start()
        kept(tmp_path / f"{count}", L=np.geomspace(1.0, 1.1, count))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_its_tables_are_written_part_by_part(
    tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = kept(tmp_path / "a", L=[0.5, 1.0, 2.0], eta=[0.1, 1.0])
    write_table(found.compute(), tmp_path / f"whole.{ending}", "L")
    monkeypatch.setattr(reading, "SLAB", 3)
    write_table(found, tmp_path / f"parts.{ending}", "L")
    read = pd.read_csv if ending == "csv" else pd.read_parquet
    whole, parts = (read(tmp_path / f"{name}.{ending}") for name in ("whole", "parts"))
    assert len(whole) == 12
    pd.testing.assert_frame_equal(whole, parts)


@pytest.mark.usefixtures("small")
def test_no_part_of_a_table_is_larger_than_the_limit_whatever_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = kept(tmp_path / "a", L=[0.5, 1.0], eta=[0.1, 0.5, 2.0])
    monkeypatch.setattr(reading, "SLAB", 2)
    for over in ("L", "K", "eta"):
        parts = [*reading.slabs(found, over)]
        assert max(part["steps"].size for part in parts) <= 2
        assert sum(part["steps"].size for part in parts) == found["steps"].size


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_its_commands_print_tables_figures_and_failures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = kept(tmp_path / "a", L=[0.5, 1.0, 1e160])
    assert reading.count(found, "failed") == 300
    plot = tmp_path / "a.png"
    status, _, said = run_main(
        capsys, "table", str(tmp_path / "a"), "--csv", str(tmp_path / "a.csv")
    )
    assert (status, "300 of 900 points failed; the first: L = 1e+160" in said) == (
        3,
        True,
    )
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 901
    kept(tmp_path / "b", K=20, L=[0.5, 1.0], eta=[0.1, 1.0])
    assert run_main(capsys, "table", str(tmp_path / "b"), "--plot", str(plot))[0] == 0
    assert plot.stat().st_size > 10_000


@pytest.mark.usefixtures("small")
def test_an_unfinished_one_says_which_points_are_pending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = kept(tmp_path / "a").compute()
    part(tmp_path / "a", 0).unlink()
    found = icl.load_sweep(tmp_path / "a")
    pending = reading.count(found, "pending")
    assert 0 < pending < whole.steps.size
    assert found.attrs["interrupted"] == 1
    assert kept(tmp_path / "a").compute().identical(whole)


@pytest.mark.usefixtures("small")
def test_exponents_of_the_computed_points_are_had_without_the_pending_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four of seventeen tiles are computed: fewer than half of the tasks of all are done."""
    monkeypatch.setattr("icl_theory.sweeps.sweep.CLOSED_CHUNK", 2**9)
    kept(tmp_path / "a", L=np.geomspace(0.1, 10.0, 100), eta=np.geomspace(0.1, 1, 40))
    for chunk in range(4, 17):
        part(tmp_path / "a", chunk).unlink()
    found = icl.load_sweep(tmp_path / "a")
    block = reading.computed(found)
    values, tasks = [], []
    for dataset in (block, found):
        done: list[Any] = []
        with Callback(pretask=lambda key, *_, done=done: done.append(key)):
            values.append(dataset.exponent_L[: block.sizes["L"]].values)
        tasks.append(len(done))
    assert 0 < 2 * tasks[0] < tasks[1]
    np.testing.assert_array_equal(*values)


def test_a_dry_run_says_how_much_memory_there_must_be(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = ["sweep", "--delta", "1", "--eta", "1", "--K", "20", "--dry-run", "--L"]
    assert (
        "of memory for the results"
        in run_main(capsys, *line, "1:2:log:10")[1].splitlines()[-1]
    )
    axes = {"L": np.geomspace(1.0, 2.0, 10**5), "noise": np.linspace(0.0, 1.0, 10**5)}
    made = plan(find("regression"), {"delta": 1.0, "eta": 1.0, **axes})
    *_, said = estimate(made, budget=0.05)
    assert " TB of memory for the results, " in said
    assert said.endswith(": too much; use --store, which keeps them on the disk")


@pytest.mark.slow
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("work", "words"),
    [
        (lambda found, path: icl.phase_table(found), "making the table"),
        (lambda found, path: icl.plot_sweep(found.isel(K=0)), "drawing the figure"),
        (lambda found, path: write_table(found, path / "a.csv"), r"writing \S+a\.csv"),
        (lambda found, path: write_table(found, path / "a.md"), r"writing \S+a\.md"),
        (lambda found, path: icl.transition_table(found), "looking for transitions"),
        (lambda found, path: icl.html_report(found), "writing the report"),
    ],
)
def test_whoever_waits_for_it_to_be_read_hears_what_is_done(
    tmp_path: Path, heard: list[str], work: Any, words: str
) -> None:
    found = kept(tmp_path / "a")
    heard.clear()
    work(found, tmp_path)
    assert re.fullmatch(words + r", 0:0\d:\d\d", heard[-1]), heard[-1]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "work", [write_table, lambda found, _: icl.transition_table(found)]
)
def test_whoever_waits_for_it_to_be_read_hears_how_far_it_is(
    tmp_path: Path,
    heard: list[str],
    work: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = kept(
        tmp_path / "a", L=np.geomspace(0.1, 10.0, 4), eta=np.geomspace(0.1, 1.0, 50)
    )
    monkeypatch.setattr(reading, "SLAB", 200)
    monkeypatch.setattr(reading, "BLOCK", 1)
    work(found, tmp_path / "a.csv")
    assert [line for line in heard if re.match(r"[1-9][\d,]* of [\d,]+ points, ", line)]


@pytest.mark.usefixtures("small")
def test_it_is_read_where_its_parts_are_sent_to(tmp_path: Path) -> None:
    found = kept(tmp_path / "a")
    there = pickle.loads(pickle.dumps(found.steps.data)).compute(
        scheduler="threads", num_workers=4
    )
    assert np.array_equal(there, found.steps.values)


@pytest.mark.usefixtures("small")
def test_dask_is_asked_for_before_anything_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "dask", None)
    with pytest.raises(
        ValueError, match=r"pip install 'filelock>=3.32' 'pyarrow>=17' 'dask"
    ):
        kept(tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_its_report_lists_points_that_failed(tmp_path: Path) -> None:
    found = kept(tmp_path / "a", L=[0.5, 1.0, 1e160], eta=[0.1, 1.0])
    assert icl.html_report(found) == icl.html_report(found.compute())
    assert "L = 1e+160" in icl.html_report(found)


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_its_report_reads_it_part_by_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No quantity of all points is ever in memory: what is computed is one part, or one number."""
    found = kept(
        tmp_path / "a",
        L=[0.5, 1.0, 1e160],
        K=[5, 20, 50],
        eta=np.geomspace(1e-3, 1.0, 110),
    )
    expected = icl.html_report(found)
    monkeypatch.setattr(reading, "SLAB", 250)
    monkeypatch.setattr(reading, "BLOCK", 1)
    real, sizes = xarray.Variable.values.fget, []

    def values(variable: xarray.Variable) -> Any:
        sizes.append(variable.size if dask.is_dask_collection(variable.data) else 0)
        return real(variable)

    monkeypatch.setattr(xarray.Variable, "values", property(values))
    assert icl.html_report(found) == expected
    assert max(sizes) == 3 * 110 < found.steps.size  # in a figure for a value of K


@pytest.mark.usefixtures("small")
def test_where_a_condition_holds_is_found_part_by_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    holds = np.random.default_rng(0).random((7, 5, 3)) < 0.3
    for points in (1, 4, 40, 1000):
        monkeypatch.setattr(reading, "SLAB", points)
        found = [*reading.places_of(xarray.DataArray(holds, dims=("x", "y", "z")))]
        assert found == [tuple(place) for place in np.argwhere(holds)]
    assert [*reading.places_of(xarray.DataArray(True))] == [()]


@pytest.mark.usefixtures("small")
def test_the_first_part_may_be_far_from_the_first_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = kept(tmp_path / "a", L=[0.5, 1.0, 1e160], K=[5], eta=[0.1, 1.0])
    monkeypatch.setattr(reading, "SLAB", 1)
    monkeypatch.setattr(reading, "BLOCK", 1)
    assert reading.first_part(found, "eta").L.item() == 0.5
    found = found.assign(status=found.status.where(found.L == 1e160, "pending"))
    assert reading.first_part(found, "eta").L.item() == 1e160


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_tables_are_quiet_where_a_sweep_is(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    heard: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("icl_theory.sweeps.sweep.CLOSED_CHUNK", 2**10)
    line = [
        "sweep",
        "--L",
        "0.1:1:log:40",
        "--K",
        "5,20",
        "--delta",
        "1",
        "--eta",
        "0.1:1:lin:40",
    ]
    line += ["--store", str(tmp_path / "a"), "--csv", str(tmp_path / "a.csv")]
    for words in (
        line,
        ["table", str(tmp_path / "a")],
        ["report", str(tmp_path / "a"), "--out", f"{tmp_path}/a.html"],
    ):
        assert run_main(capsys, *words, "--quiet")[2] == ""
        assert not heard
    run_main(capsys, *words)
    assert "writing the report, " in heard[-1]


@pytest.mark.usefixtures("small")
def test_no_warning_depends_on_the_order_in_which_threads_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads undo each other's filters of warnings, so that in the worst order there are none."""
    found = kept(tmp_path / "a", L=[0.1, 0.3, 1.0], K=20, eta=np.geomspace(0.1, 1.0, 4))
    unfiltered = SimpleNamespace(
        catch_warnings=contextlib.nullcontext, filterwarnings=lambda *_: None
    )
    monkeypatch.setattr("dask.array.reductions.warnings", unfiltered)
    icl.plot_sweep(found)
    icl.phase_table(found)
    icl.transition_table(found)
    icl.html_report(found)


def test_rows_that_are_left_out_are_those_of_computed_points(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icl_theory.sweeps.sweep.CLOSED_CHUNK", 100)
    kept(
        tmp_path / "a",
        L=np.geomspace(0.1, 10.0, 10),
        K=20,
        eta=np.geomspace(0.1, 1.0, 100),
    )
    part(tmp_path / "a", 0).unlink()
    status, shown, said = run_main(capsys, "table", str(tmp_path / "a"))
    assert (status, said) == (
        0,
        "icl-theory: 100 of 1000 points are not computed yet\n",
    )
    assert "... and 840 rows more" in shown
