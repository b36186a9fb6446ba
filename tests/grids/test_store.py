"""Stores of sweeps: what a run keeps, what it goes on with, and whom it keeps out."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import numpy as np
import pandas as pd
import pytest

import icl_theory as icl
from icl_theory.sweeps import store
from icl_theory.sweeps.evaluate import evaluate
from icl_theory.sweeps.grid import REACHED, Axis, Column, Filled, Grid, Values, blank
from tests.grids.test_grid import equal
from tests.models import SQUARE, Squares, grid

ROOT = Path(__file__).parents[2]
ARGUMENTS = {"version": "1", "model": "squares", "seed": 0}


def run(
    path: Path, model: Squares | None = None, made: Grid | None = None, **arguments: Any
) -> Any:
    made = made or grid()
    with store.opened(path, made, SQUARE, {**ARGUMENTS, **arguments}) as kept:
        return evaluate(made, model or Squares(), storage=kept)


def done(path: Path) -> list[bool]:
    return [bool(each) for each in store.existing(path).done]


def read(
    path: Path, columns: tuple[Column, ...] = SQUARE, made: Grid | None = None
) -> Values:
    kept = store.existing(path)
    filled = Filled(columns, made or kept.manifest.grid)
    kept.fill(filled)
    return filled.values()


def part(path: Path, chunk: int) -> Path:
    [found] = path.glob(f"part-{chunk:06d}-*")
    return found


def test_chunks_of_an_interrupted_run_are_not_computed_again(tmp_path: Path) -> None:
    path = tmp_path / "a"
    assert run(path, Squares(interrupts=10.0)).interrupted
    again = run(path, Squares(fails=2.0))  # would fail, were it computed
    assert equal(again.values, evaluate(grid(), Squares()).values)
    assert equal(run(path, Squares(fails=15.0)).values, again.values)


def test_progress_of_a_run_that_goes_on_begins_with_what_is_kept(
    tmp_path: Path,
) -> None:
    """Whichever chunks are missing, the last and shorter one among them."""
    run(tmp_path / "a")
    sizes = grid().sizes.tolist()
    for missing in ([1], [len(sizes) - 1], [0, len(sizes) - 1]):
        for chunk in missing:
            part(tmp_path / "a", chunk).unlink()
        beat = Mock()
        with store.opened(tmp_path / "a", grid(), SQUARE, ARGUMENTS) as kept:
            evaluate(grid(), Squares(), storage=kept, progress=beat)
        points = [
            sum(sizes) - sum(sizes[chunk] for chunk in missing[i:])
            for i in range(len(missing) + 1)
        ]
        assert beat.call_args_list == [call(each, sum(sizes)) for each in points]


def test_a_store_of_many_chunks_says_how_far_it_is_read(
    tmp_path: Path, heard: list[str]
) -> None:
    run(tmp_path / "a")
    for use in (run, read):
        heard.clear()
        use(tmp_path / "a")
        said = "\n".join(heard)
        assert all(
            f"{done} of {grid().chunks} chunks of the store" in said
            for done in range(grid().chunks)
        )


@pytest.mark.parametrize("moment", range(2))
def test_an_interrupted_run_returns_what_it_has_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """Ctrl-C comes while a chunk is written: when it has got its name."""
    path, written = tmp_path / "a", iter(range(1000))
    real_replace = os.replace

    def replace(source: Path, target: Path) -> None:
        real_replace(source, target)
        if target.match("part-*") and next(written) == moment:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("os.replace", replace)
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # also where tests run in the background
    try:
        found = run(path)
    finally:
        signal.signal(signal.SIGINT, before)
    assert found.interrupted
    assert (found.values["status"] == REACHED).sum() == 2 * sum(done(path)) > 0


def test_what_is_kept_is_read_again_with_its_sweep(tmp_path: Path) -> None:
    expected = run(tmp_path / "a", Squares(fails=3.0))
    found = store.existing(tmp_path / "a")
    assert found.done.all()
    assert equal(read(tmp_path / "a"), expected.values)
    assert found.manifest.arguments == ARGUMENTS
    for axis, wanted in zip(found.manifest.grid.axes, grid().axes, strict=True):
        assert axis._replace(values=0) == wanted._replace(values=0)
        assert axis.values.dtype == wanted.values.dtype
        assert axis.values.tolist() == wanted.values.tolist()


class Words:
    """Lengths of words, over an axis of them, with every kind of column."""

    columns = (
        Column("length", "f8", "letters", "how long the word is", "ℓ", r"\ell"),
        Column("certain", "i1", "", "1 where it is"),
        Column("large", "i8", "", "a whole number that no float has"),
        Column("twice", "U20", "", "the word twice"),
    )

    def evaluate(self, points: Any) -> Values:
        values = blank(self.columns, len(points["word"]))
        values["length"][:] = np.char.str_len(points["word"]) * points["factor"]
        values["length"][points["factor"] == 3.0] = -0.0
        values["certain"][points["factor"] > 1.0] = 1
        values["large"][:] = 2**62 + 1
        values["twice"][:] = np.char.multiply(points["word"], 2)
        values["status"][:] = REACHED
        return values


WORDS = (
    Axis("language", np.array(["en"]), "", "a fixed word", False),
    Axis(
        "word",
        np.array(["relu", "söftmax", "", "linear"]),
        "",
        "a word",
        True,
        "w",
        r"\omega",
    ),
    Axis("factor", np.array([1.0, np.inf, 3.0, 2.0, 0.1]), "", "a number", True),
    Axis("count", np.array([3]), "", "a fixed whole number", False),
    Axis("whole", np.array([2**60 + 1, 5]), "", "whole numbers", True),
)


@pytest.mark.parametrize("chunk", [1, 2, 11, 1000])
def test_the_folder_is_a_table_that_pandas_reads(tmp_path: Path, chunk: int) -> None:
    made = Grid(WORDS, chunk)
    with store.opened(tmp_path / "a", made, Words.columns, ARGUMENTS) as kept:
        expected = evaluate(made, Words(), storage=kept).values
        table = pd.read_parquet(tmp_path / "a")  # also while a run has it
    assert equal(read(tmp_path / "a", Words.columns), expected)
    names = [axis.name for axis in WORDS]
    assert [*table.columns] == [
        *names,
        "length",
        "certain",
        "large",
        "twice",
        "status",
        "message",
    ]
    every = np.meshgrid(*(axis.values for axis in WORDS), indexing="ij")
    rows = pd.DataFrame(
        {name: values.ravel() for name, values in zip(names, every, strict=True)}
    )
    rows = rows.assign(
        **{name: expected[name] for name in table.columns if name not in names}
    )
    merged = table.sort_values(names, ignore_index=True).astype(rows.dtypes.to_dict())
    pd.testing.assert_frame_equal(merged, rows.sort_values(names, ignore_index=True))
    assert (
        np.signbit(table["length"]).sum() == (np.signbit(expected["length"])).sum() == 8
    )


def test_failed_points_are_kept_with_their_messages(tmp_path: Path) -> None:
    first = run(tmp_path / "a", Squares(fails=7.0))
    assert equal(run(tmp_path / "a").values, first.values)
    assert "another number" in first.values["message"][14]


def test_messages_of_any_text_are_kept_to_a_length(tmp_path: Path) -> None:
    class Talks(Squares):
        def evaluate(self, points: Any) -> Any:
            values = super().evaluate(points)
            values["message"][:] = ["\ud800 é" + "x" * int(10 * x) for x in points["x"]]
            return values

    found = run(tmp_path / "a", Talks(), grid(200)).values
    assert found["message"][2] == "\\ud800 é" + "x" * 10
    assert max(map(len, found["message"])) == 1000
    assert equal(read(tmp_path / "a"), found)


@pytest.mark.parametrize("damage", ["cut", "its last byte", "empty", "gone"])
def test_a_chunk_that_was_not_written_to_its_end_is_computed_again(
    tmp_path: Path, damage: str
) -> None:
    """As a power cut leaves it: the name of a part is on the disk, and the end of it is not."""
    path = tmp_path / "a"
    whole, file = run(path).values, part(path, 2)
    content = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(
            content[
                : {"cut": len(content) // 2, "its last byte": -1, "empty": 0}[damage]
            ]
        )
    assert np.flatnonzero(~np.array(done(path))).tolist() == [2]
    assert (read(path)["status"] == "pending").sum() == 2
    assert equal(run(path).values, whole)
    assert file.read_bytes() == content


@pytest.mark.parametrize(
    ("made", "arguments", "words"),
    [
        (grid(), {"version": "2"}, "version = '1' there, '2' here"),
        (grid(), {"seed": 5}, "seed = 0 there, 5 here"),
        (grid(), {"task": "linear"}, "task = None there, 'linear' here"),
        (
            grid(19),
            {},
            "x = 20 values from 0.0 to 19.0 there, 19 values from 0.0 to 18.0 here",
        ),
        (grid(20, 5), {}, "chunk = 3 there, 5 here"),
    ],
)
def test_a_store_of_other_arguments_is_refused_with_the_difference(
    tmp_path: Path, made: Grid, arguments: dict[str, Any], words: str
) -> None:
    run(tmp_path / "a")
    with pytest.raises(ValueError, match="one made by the same call") as refusal:
        run(tmp_path / "a", made=made, **arguments)
    assert words in str(refusal.value)


def test_the_order_of_arguments_does_not_matter(tmp_path: Path) -> None:
    run(tmp_path / "a", a=1, b=2)
    run(tmp_path / "a", b=2, a=1)


def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.mkdir()
    (path / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="a store made by a sweep"):
        run(path)
    assert (path / "thesis.txt").read_text() == "mine"
    assert [entry.name for entry in path.iterdir()] == ["thesis.txt"]
    with pytest.raises(ValueError, match="a store made by a sweep"):
        store.existing(tmp_path / "no")


def test_a_zarr_group_of_an_earlier_version_is_refused_by_a_sentence(
    tmp_path: Path,
) -> None:
    (tmp_path / "loss").mkdir()
    (tmp_path / "zarr.json").write_text("{}")
    for use in (store.existing, run):
        with pytest.raises(
            ValueError,
            match="was written by an earlier version of the package and cannot be read",
        ):
            use(tmp_path)


def test_the_second_of_two_runs_is_refused_in_a_process_and_between_two(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a"
    code = textwrap.dedent(
        f"""
        from tests.grids.test_store import run, Path
        try:
            run(Path({str(path)!r}))
        except ValueError as error:
            print(error)
        """
    )
    with store.opened(path, grid(), SQUARE, ARGUMENTS):
        with pytest.raises(ValueError, match="used by one run at a time"):
            run(path)
        other = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT
        )
        assert "used by one run at a time, and another has it open" in other.stdout, (
            other.stderr
        )
    assert not run(path).interrupted


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no process inherits files here")
def test_a_run_that_was_killed_keeps_nobody_out_while_a_forked_worker_lives(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a"
    code = textwrap.dedent(
        f"""
        import os, time
        from tests.grids.test_store import ARGUMENTS, SQUARE, grid, store
        with store.opened({str(path)!r}, grid(), SQUARE, ARGUMENTS):
            alive, told = os.pipe()
            if os.fork() == 0:
                print(os.getpid(), flush=True)
                os.write(told, b"x")
                time.sleep(600)
            os.read(alive, 1)
            os._exit(9)
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    worker = int(process.stdout.readline())
    process.stdout.close()
    assert process.wait() == 9
    try:
        assert not run(path).interrupted
    finally:
        os.kill(worker, 9)


def test_a_store_can_be_read_while_a_run_has_it(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with store.opened(path, grid(), SQUARE, ARGUMENTS) as kept:
        evaluate(grid(), Squares(interrupts=10.0), storage=kept)
        found = read(path)
    assert (found["status"] == REACHED).sum() == 2 * kept.done.sum() == 20
    assert found["square"][:3].tolist() == [0.0, 0.0, 1.0]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_disk_that_fails_is_one_line_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The write of some file fails half-way, as the file system would have it."""
    path = tmp_path / "a"
    real_replace = os.replace
    writes = iter(range(1000))

    def replace(source: Path, target: Path) -> None:
        if next(writes) >= 6:
            source.write_bytes(source.read_bytes()[:5])
            raise OSError(number, os.strerror(number))
        real_replace(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OSError, match="cannot be used: ") as failure:
        run(path)
    monkeypatch.undo()
    assert os.strerror(number) in str(failure.value)
    assert "\n" not in str(failure.value)
    assert ("the same call continues from them" in str(failure.value)) == (
        number != errno.EIO
    )
    assert sum(done(path)) >= 2
    assert equal(run(path).values, evaluate(grid(), Squares()).values)
    assert not list(path.glob(".passing*"))


def test_a_file_too_large_for_the_system_is_a_clear_error(tmp_path: Path) -> None:
    """The kernel itself refuses to write more than a few bytes a file."""
    code = textwrap.dedent(
        f"""
        import resource
        from tests.grids.test_store import run, Path, grid
        run(Path({str(tmp_path / "a")!r}), made=grid(200, 100))
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
        try:
            run(Path({str(tmp_path / "b")!r}), made=grid(200, 100))
        except OSError as error:
            print(error)
        """
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT
    )
    assert "b' cannot be used: File too large" in found.stdout, found.stderr


@pytest.mark.parametrize("parent", ["file", "/proc/no"])
def test_a_path_that_cannot_be_made_is_a_clear_error(
    tmp_path: Path, parent: str
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="cannot be used: "):
        run(tmp_path / parent / "a")


@pytest.mark.parametrize("library", ["pyarrow", "filelock"])
def test_a_library_is_asked_for_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ValueError, match=r"pip install 'filelock>=3.32' 'pyarrow>=17'"):
        run(tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_sizes_that_no_machine_has_are_refused() -> None:
    axes = tuple(Axis(name, np.arange(1e4), "", "", True) for name in "abc")
    with pytest.raises(
        ValueError, match="points = 1000000000000: must be in at most 131,072 chunks"
    ):
        evaluate(Grid(axes, 8), Squares())
    with pytest.raises(
        ValueError, match="points = 100000000000: must be smaller: this takes"
    ):
        evaluate(
            Grid((*axes[:2], Axis("c", np.arange(1e3), "", "", True)), 2**20), Squares()
        )
    with pytest.raises(ValueError, match="points = 10000000000000000"):
        Grid((*axes, axes[0], axes[0]), 8)


def test_a_store_without_the_columns_of_every_family_is_not_read_as_a_sweep(
    tmp_path: Path,
) -> None:
    run(tmp_path / "a", family="regression")
    with pytest.raises(
        ValueError, match="must be a sweep of a family, which has a column steps"
    ):
        icl.load_sweep(tmp_path / "a")
