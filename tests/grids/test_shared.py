"""Workers that write the chunks they compute into the store of the run, which makes them count."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from icl_theory.grids import store
from icl_theory.grids.chunks import Share
from icl_theory.grids.disk import Folder
from icl_theory.grids.evaluate import Part, evaluate
from icl_theory.grids.grid import Values
from tests.grids.test_grid import equal
from tests.grids.test_store import ARGUMENTS, done, run
from tests.models import SQUARE, Squares, grid


@pytest.fixture(scope="module")
def pool() -> Iterator[Executor]:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as processes:
        yield processes


class Watched(Executor):
    """Processes, and what they return."""

    def __init__(self, pool: Executor) -> None:
        self.pool = pool
        self.futures: list[Future[Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.futures.append(self.pool.submit(fn, *args, **kwargs))
        return self.futures[-1]

    @property
    def parts(self) -> list[Part]:
        return [part for future in self.futures for part in future.result()]


def squares(chunk: int) -> Values:
    return Squares().evaluate(grid().points_of(chunk))


def shared(kept: store.Store) -> Share:
    assert kept.share is not None
    return kept.share


def test_workers_write_what_they_compute_and_send_what_is_held(tmp_path: Path, pool: Executor) -> None:
    expected = evaluate(grid(), Squares(fails=3.0)).values
    for hold in (True, False):
        path, watched = tmp_path / f"{hold}.zarr", Watched(pool)
        with store.opened(path, grid(), SQUARE, ARGUMENTS) as kept:
            found = evaluate(grid(), Squares(fails=3.0), executor=watched, storage=kept, hold=hold)
        assert all(part.rows is not None and bool(part.values) == hold for part in watched.parts)
        assert equal(found.values, expected) if hold else not found.values
        assert equal(store.read(path).values, expected)


def test_the_files_are_those_that_the_run_writes(tmp_path: Path, pool: Executor) -> None:
    run(tmp_path / "one.zarr")
    with store.opened(tmp_path / "two.zarr", grid(), SQUARE, ARGUMENTS) as kept:
        evaluate(grid(), Squares(), executor=pool, storage=kept)
    one, two = (
        {file.relative_to(path): file.read_bytes() for file in path.rglob("*") if file.is_file()}
        for path in (tmp_path / "one.zarr", tmp_path / "two.zarr")
    )
    assert one == two


def test_a_chunk_counts_from_its_mark_on(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    with store.opened(path, grid(), SQUARE, ARGUMENTS) as kept:
        shared(kept).put(0, squares(0))
        rows = shared(kept).put(1, squares(1))
        kept.write(1, {}, rows)
    assert done(path)[:3] == [False, True, False]
    assert equal(run(path).values, evaluate(grid(), Squares()).values)


def test_a_worker_of_a_run_that_has_ended_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    with store.opened(path, grid(), SQUARE, ARGUMENTS) as kept:
        old = shared(kept)
    before = sorted(path.rglob("*"))
    assert old.put(0, squares(0)) is None
    with store.opened(path, grid(), SQUARE, ARGUMENTS) as kept:
        assert old.put(0, squares(0)) is None
        assert not (path / "square/c.0").exists()
        assert shared(kept).put(0, squares(0)) is not None
    assert {*before} < {*path.rglob("*")}


def test_a_worker_that_is_late_takes_no_chunk_from_the_run_after_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run was killed; it looked whose the store is before the next run had it, and writes after that."""
    path = tmp_path / "a.zarr"
    with store.opened(path, grid(), SQUARE, ARGUMENTS) as kept:
        late = shared(kept)
    expected = run(path).values
    monkeypatch.setattr(Folder, "is_of_run", lambda folder: True)
    assert late.put(0, squares(0)) is not None
    assert all(done(path))
    assert equal(store.read(path).values, expected)


@pytest.mark.parametrize("where", ["elsewhere.zarr", "link.zarr/_sweep/mark"])
def test_a_worker_that_does_not_see_the_store_sends_what_it_computed(tmp_path: Path, where: str) -> None:
    path = tmp_path / "a.zarr"
    (tmp_path / "link.zarr/_sweep").mkdir(parents=True)
    (tmp_path / "link.zarr/_sweep/mark").symlink_to(path / "_sweep/mark")
    with store.opened(path, grid(), SQUARE, ARGUMENTS) as kept:
        assert shared(kept)._replace(path=str(tmp_path / where.split("/")[0])).put(0, squares(0)) is None
    assert not (tmp_path / "link.zarr/square").exists()


def test_where_a_worker_cannot_write_the_run_does_or_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, written = Folder.write, 0

    def write(folder: Folder, name: str, content: bytes, *, durable: bool = False) -> None:
        nonlocal written
        written += name.startswith("whole/")
        if name.startswith("whole/") and written > 2:
            raise OSError(errno.ENOSPC, "full")
        real(folder, name, content, durable=durable)

    path = tmp_path / "a.zarr"
    with store.opened(path, grid(), SQUARE, ARGUMENTS) as kept:
        monkeypatch.setattr(Folder, "write", write)
        assert shared(kept).put(1, squares(1)) is not None
        assert shared(kept).put(0, squares(0)) is not None
        assert shared(kept).put(2, squares(2)) is None
        with pytest.raises(OSError, match="No space left"):
            kept.write(2, squares(2))
        monkeypatch.setattr(Folder, "write", real)
        kept.write(2, squares(2))
    assert [i for i, there in enumerate(done(path)) if there] == [2]


def test_a_store_in_which_the_run_cannot_leave_its_word_is_written_by_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Folder.write

    def write(folder: Folder, name: str, content: bytes, *, durable: bool = False) -> None:
        if name.endswith("/run"):
            raise OSError(errno.ENOSPC, "full")
        real(folder, name, content, durable=durable)

    monkeypatch.setattr(Folder, "write", write)
    with store.opened(tmp_path / "a.zarr", grid(), SQUARE, ARGUMENTS) as kept:
        assert shared(kept).put(0, squares(0)) is None
        kept.write(0, squares(0))
    assert done(tmp_path / "a.zarr")[0]


def test_what_killed_workers_left_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    run(path)
    left = path / "_sweep/mark/partial.0123"
    left.write_bytes(b"half")
    assert all(done(path))
    assert not left.exists()
    assert np.isfinite(store.read(path).values["square"]).all()
