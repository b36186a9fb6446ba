from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from icl_theory import store
from icl_theory.grid import Grid, evaluate
from tests.models import SQUARE, Squares, grid
from tests.test_grid import equal

ARGUMENTS = {"version": "1", "model": "squares", "seed": 0}


def run(path: Path, model: Squares | None = None, made: Grid | None = None, **arguments: Any) -> Any:
    made = made or grid()
    with store.opened(path, made, SQUARE, {**ARGUMENTS, **arguments}) as kept:
        return evaluate(made, model or Squares(), storage=kept)


def test_chunks_of_an_interrupted_run_are_not_computed_again(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    assert run(path, Squares(interrupts=10.0)).interrupted
    again = run(path, Squares(fails=2.0))  # would fail, were it computed
    assert equal(again.values, evaluate(grid(), Squares()).values)
    assert equal(run(path, Squares(fails=15.0)).values, again.values)


def test_failed_points_are_kept_with_their_messages(tmp_path: Path) -> None:
    first = run(tmp_path / "a.zarr", Squares(fails=7.0))
    assert equal(run(tmp_path / "a.zarr").values, first.values)
    assert "another number" in first.values["message"][14]


@pytest.mark.parametrize("table", ["real", "whole", "text"])
@pytest.mark.parametrize("damage", ["cut", "gone", "altered"])
def test_a_damaged_chunk_is_computed_again(tmp_path: Path, table: str, damage: str) -> None:
    path = tmp_path / "a.zarr"
    whole = run(path).values
    [file] = path.glob(f"{table}/c/2/0")
    content = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        changed = content[: len(content) // 2] if damage == "cut" else bytes(reversed(content))
        file.write_bytes(changed)
    with store.opened(path, grid(), SQUARE, ARGUMENTS) as kept:
        assert np.flatnonzero(~kept.done).tolist() == [2]
    assert equal(run(path).values, whole)


@pytest.mark.parametrize(
    ("made", "arguments", "words"),
    [
        (grid(), {"version": "2"}, "version = '1' there, '2' here"),
        (grid(), {"seed": 5}, "seed = 0 there, 5 here"),
        (grid(), {"task": "linear"}, "task = None there, 'linear' here"),
        (grid(19), {}, "x = 20 values from 0.0 to 19.0 there, 19 values from 0.0 to 18.0 here"),
        (grid(20, 5), {}, "chunk = 3 there, 5 here"),
    ],
)
def test_a_store_of_other_arguments_is_refused_with_the_difference(
    tmp_path: Path, made: Grid, arguments: dict[str, Any], words: str
) -> None:
    run(tmp_path / "a.zarr")
    with pytest.raises(ValueError, match="one made by the same call") as refusal:
        run(tmp_path / "a.zarr", made=made, **arguments)
    assert words in str(refusal.value)


def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    path.mkdir()
    (path / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="a store made by a sweep"):
        run(path)
    assert (path / "thesis.txt").read_text() == "mine"
    with pytest.raises(ValueError, match=r"ending in \.zarr"):
        run(tmp_path / "a")
    with pytest.raises(ValueError, match="a store made by a sweep"):
        store.read_manifest(tmp_path / "no.zarr")


def test_a_store_cut_down_at_any_file_of_its_making_is_made_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    with store.opened(path, grid(), SQUARE, ARGUMENTS):
        pass
    for name in ("done", "text", "whole", "real"):  # in the reverse of the order of their making
        (path / name / "zarr.json").unlink()
        (path / name).rmdir()
        with store.opened(path, grid(), SQUARE, ARGUMENTS) as kept:
            assert not kept.done.any()
    assert not run(path).interrupted


def test_the_second_of_two_runs_is_refused_in_a_process_and_between_two(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    code = textwrap.dedent(
        f"""
        from tests.test_store import run, Path
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
            [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[1]
        )
        assert "used by one run at a time, and another has it open" in other.stdout, other.stderr
    assert not run(path).interrupted


def test_a_store_can_be_read_while_a_run_has_it(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    with store.opened(path, grid(), SQUARE, ARGUMENTS) as kept:
        evaluate(grid(), Squares(interrupts=10.0), storage=kept)
        found = store.reader(path, grid(), SQUARE)
        assert found.done.tolist() == kept.done.tolist()
        assert found.read(0)["square"].tolist() == [0.0, 0.0, 1.0]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_is_one_line_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The write of some file fails half-way, as the file system would have it."""
    path = tmp_path / "a.zarr"
    real_replace = Path.replace
    writes = iter(range(1000))

    def replace(self: Path, target: Path) -> Path:
        if next(writes) >= 18:
            self.write_bytes(self.read_bytes()[:5])
            raise OSError(number, os.strerror(number))
        return real_replace(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(OSError, match="cannot be used: ") as failure:
        run(path)
    monkeypatch.undo()
    assert os.strerror(number) in str(failure.value)
    assert "\n" not in str(failure.value)
    with store.opened(path, grid(), SQUARE, ARGUMENTS) as kept:
        done = int(kept.done.sum())
    assert done >= 2
    assert equal(run(path).values, evaluate(grid(), Squares()).values)


def test_a_file_too_large_for_the_system_is_a_clear_error(tmp_path: Path) -> None:
    """The kernel itself refuses to write more than a few bytes a file."""
    code = textwrap.dedent(
        f"""
        import resource
        from tests.test_store import run, Path, grid
        run(Path({str(tmp_path / "a.zarr")!r}), made=grid(200, 100))
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
        try:
            run(Path({str(tmp_path / "b.zarr")!r}), made=grid(200, 100))
        except OSError as error:
            print(error)
        """
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[1]
    )
    assert "b.zarr' cannot be used: File too large" in found.stdout, found.stderr


@pytest.mark.parametrize("parent", ["file", "/proc/no"])
def test_a_path_that_cannot_be_made_is_a_clear_error(tmp_path: Path, parent: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="cannot be used: "):
        run(tmp_path / parent / "a.zarr")


def test_zarr_is_asked_for_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(ValueError, match=r"pip install 'icl-theory\[distributed\]'"):
        run(tmp_path / "a.zarr")
    assert not (tmp_path / "a.zarr").exists()
