"""Stores that claim far more points than they have: what is pending is skipped, and not looked at one by one."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray
from dask.callbacks import Callback

import icl_theory as icl
from icl_theory.families.registry import find
from icl_theory.results import reading
from icl_theory.results.tables import write_table
from icl_theory.sweeps import store
from icl_theory.sweeps import sweep as sweeps
from icl_theory.sweeps.evaluate import attempt
from icl_theory.sweeps.grid import MESSAGE, STATUS, once
from icl_theory.sweeps.manifest import Manifest
from tests.test_cli import run_main


def claimed(path: Path, done: tuple[int, ...], **axes: Any) -> Path:
    """Make a store of a sweep of which some chunks are done."""
    made = sweeps.plan(find("regression"), {"delta": 1.0, **axes})
    manifest = Manifest(
        made.grid, (*made.model.columns, STATUS, MESSAGE), made.arguments
    )
    path.mkdir()
    (path / store.MANIFEST).write_bytes(manifest.written([]))
    kept = store.existing(path)
    for chunk in done:
        values = attempt(made.model, made.grid.points_of(chunk))
        kept.write(chunk, {name: once(column) for name, column in values.items()})
    return path


HUGE: dict[str, Any] = {
    "L": 1.0 + np.arange(1e4),
    "eta": 1e-5 * (1.0 + np.arange(1e4)),
    "K": [5, 20],
}


@pytest.fixture
def blocks() -> Iterator[list[tuple[int, ...]]]:
    """The indices of the chunks that Dask computes, of any array."""
    read: list[tuple[int, ...]] = []

    def note(key: Any, graph: Any, state: Any) -> None:
        # The key of a chunk has its name and its indices; other tasks have a name.
        if isinstance(key, tuple):
            read.append(key[1:])

    with Callback(pretask=note):
        yield read


def test_millions_of_points_that_are_pending_cost_nothing(
    tmp_path: Path, blocks: list[tuple[int, ...]]
) -> None:
    path = claimed(tmp_path / "a", (), **HUGE)
    assert sum(file.stat().st_size for file in path.iterdir()) < 2e6
    dataset = icl.load_sweep(path)
    tracemalloc.start()
    assert reading.count(dataset, "pending") == dataset["status"].size == 2 * 10**8
    assert reading.count(dataset, "failed") == 0
    assert len(icl.phase_table(dataset)) == 0
    assert "0 of 200,000,000 points are computed" in icl.html_report(dataset)
    write_table(dataset, tmp_path / "a.csv")
    assert tracemalloc.get_traced_memory()[1] < 2e8
    tracemalloc.stop()
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 1
    assert not blocks


def test_a_command_on_them_says_that_there_are_none(
    tmp_path: Path, blocks: list[tuple[int, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    path = claimed(tmp_path / "a", (), **HUGE)
    status, _, err = run_main(capsys, "table", str(path))
    assert (status, err) == (0, f"icl-theory: {path} holds no points yet\n")
    assert not blocks


@pytest.mark.slow
def test_one_chunk_of_thousands_is_read_alone(
    tmp_path: Path, blocks: list[tuple[int, ...]]
) -> None:
    path = claimed(tmp_path / "a", (7,), **HUGE)
    dataset = icl.load_sweep(path)
    assert len(icl.phase_table(dataset)) == 60_000
    assert "60,000 of 200,000,000 points are computed" in icl.html_report(dataset)
    # There are thousands of chunks of each column. The tasks are about the one that is
    # done, and its neighbours.
    assert len(blocks) < 300


SMALL: dict[str, Any] = {
    "L": [0.5, 1.0, 1.5, 2.0],
    "eta": [0.1, 0.4],
    "K": [5, 20],
}
AXES: dict[str, dict[str, Any]] = {
    "rising": SMALL,
    "falling": SMALL | {"L": SMALL["L"][::-1]},
    "in no order": SMALL | {"L": [1.5, 0.5, 2.0, 1.0]},
}


def datasets(
    path: Path, done: tuple[int, ...], axes: dict[str, Any]
) -> tuple[xarray.Dataset, xarray.Dataset]:
    """The same store read lazily, and read at once."""
    claimed(path, done, **axes)
    with pytest.MonkeyPatch.context() as patch:
        whole = icl.load_sweep(path)
        patch.setattr(sweeps, "is_large", lambda *_: True)
        return icl.load_sweep(path), whole


@pytest.mark.parametrize(
    ("order", "done"),
    [
        ("rising", ()),
        ("rising", (2, 7)),
        ("falling", (2, 7)),
        ("in no order", (2, 7)),
        ("in no order", tuple(range(8))),
    ],
    ids=str,
)
def test_tables_and_counts_of_a_part_are_those_of_the_whole(
    order: str, done: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeps, "CLOSED_CHUNK", 2)
    lazy, whole = datasets(tmp_path / "a", done, AXES[order])
    for status in ("pending", "reached", "not reached", "failed"):
        assert reading.count(lazy, status) == int((whole["status"] == status).sum())
    block = reading.computed(lazy).compute(scheduler="synchronous")
    assert int(
        block["status"].isin(["reached", "not reached", "failed"]).sum()
    ) == 2 * len(done)
    assert block.identical(whole.sel({name: block[name].values for name in block.dims}))
    for over in ("L", "K"):
        table = icl.phase_table(lazy, over, every=True)
        expected = rows(whole, over)
        assert len(table) == len(expected) == 2 * len(done)
        assert table[over].tolist() == expected[over].tolist()
        if done:
            assert table["T_ε"].tolist() == expected["steps"].tolist()


def rows(dataset: xarray.Dataset, over: str) -> pd.DataFrame:
    """The computed points of a dataset, of which ``over`` varies fastest."""
    order = [*(name for name in dataset.dims if name != over), over]
    frame = dataset[["status", "steps"]].to_dataframe(dim_order=order).reset_index()
    return frame[frame["status"] != "pending"]


def test_a_table_that_does_not_fit_is_refused_by_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two chunks at the ends of a store span all of it."""
    path = claimed(tmp_path / "a", (0, 3333), **HUGE)
    dataset = icl.load_sweep(path)
    monkeypatch.setattr("icl_theory.memory.free", lambda: 8e9)
    with pytest.raises(
        ValueError,
        match=r"points = 200000000: must be smaller: this takes \S+ GB of memory",
    ):
        icl.phase_table(dataset)


def test_a_part_of_one_value_takes_little_more_memory_than_what_is_held(
    tmp_path: Path,
) -> None:
    """A file of some kilobytes that holds a hundred thousand messages of a thousand characters."""
    axes = {"L": 1.0 + np.arange(300.0), "eta": 1e-3 * (1.0 + np.arange(300.0))}
    path = claimed(tmp_path / "a", (), **axes)
    kept = store.existing(path)
    columns = kept.manifest.columns
    for chunk in range(kept.manifest.grid.chunks):
        values = {column.name: np.zeros(1, dtype=column.dtype) for column in columns}
        values |= {
            "status": np.array(["failed"]),
            "message": np.array(["x" * 1000], dtype=object),
        }
        for column in columns:
            if column.dtype[0] == "O" and column.name != "message":
                values[column.name] = np.array([""], dtype=object)
        kept.write(chunk, values)
    held = icl.load_sweep(path).nbytes
    assert sum(file.stat().st_size for file in path.glob("part-*")) < 0.1 * held
    tracemalloc.start()
    icl.load_sweep(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.5 * held + 5e6
