"""Workers that write the chunks they compute into the store of the run, which makes them count."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from icl_theory.grids import store
from icl_theory.grids.evaluate import Chunk, evaluate
from icl_theory.grids.grid import Values, once
from tests.grids.test_grid import equal
from tests.grids.test_store import ARGUMENTS, done, part, read, run
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
    def chunks(self) -> list[Chunk]:
        return [future.result() for future in self.futures]


def squares(chunk: int) -> Values:
    lengths = grid().lengths(chunk)
    found = Squares().evaluate(grid().points_of(chunk))
    return {name: once(column, lengths) for name, column in found.items()}


def test_workers_write_what_they_compute_and_send_what_is_held(tmp_path: Path, pool: Executor) -> None:
    expected = evaluate(grid(), Squares(fails=3.0)).values
    for hold in (True, False):
        path, watched = tmp_path / f"{hold}", Watched(pool)
        with store.opened(path, grid(), SQUARE, ARGUMENTS) as kept:
            found = evaluate(grid(), Squares(fails=3.0), executor=watched, storage=kept, hold=hold)
        assert all(chunk.part is not None and bool(chunk.values) == hold for chunk in watched.chunks)
        assert equal(found.values, expected) if hold else not found.values
        assert equal(read(path), expected)


def test_the_files_are_those_that_the_run_writes(tmp_path: Path, pool: Executor) -> None:
    run(tmp_path / "one")
    with store.opened(tmp_path / "two", grid(), SQUARE, ARGUMENTS) as kept:
        evaluate(grid(), Squares(), executor=pool, storage=kept)
    one, two = (
        {file.relative_to(path): file.read_bytes() for file in path.rglob("*") if file.is_file()}
        for path in (tmp_path / "one", tmp_path / "two")
    )
    assert one == two


class Losing(Executor):
    """Computes at once, but loses some chunks: the error is the executor's own, not that of a point."""

    def __init__(self, lost: set[int]) -> None:
        self.lost = lost

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if args[0] in self.lost:
            future.set_exception(OSError("the answer was lost on its way"))
        else:
            future.set_result(fn(*args, **kwargs))
        return future


def test_what_an_executor_loses_is_not_kept_and_the_next_call_computes_it(tmp_path: Path) -> None:
    """Points that fail of themselves are kept as failed, those that were never computed are not."""
    expected, lost = evaluate(grid(), Squares(fails=3.0)).values, {0, 2}
    with store.opened(tmp_path, grid(), SQUARE, ARGUMENTS) as kept:
        found = evaluate(grid(), Squares(fails=3.0), executor=Losing(lost), storage=kept).values
    for chunk in range(grid().chunks):
        where = grid().where(chunk)
        if chunk in lost:
            assert set(found["status"][where]) == {"failed"}
            assert "lost on its way" in found["message"][where[0]]
        else:
            assert equal({name: each[where] for name, each in found.items()},
                         {name: each[where] for name, each in expected.items()})  # fmt: skip
    assert [chunk for chunk, there in enumerate(done(tmp_path)) if not there] == sorted(lost)
    with store.opened(tmp_path, grid(), SQUARE, ARGUMENTS) as kept:
        again = evaluate(grid(), Squares(fails=3.0), storage=kept).values
    assert equal(again, expected)
    assert equal(read(tmp_path), expected)


def test_a_chunk_counts_from_its_name_on(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with store.opened(path, grid(), SQUARE, ARGUMENTS) as kept:
        kept.share.put_from_worker(0, squares(0))
        kept.write(1, {}, kept.share.put_from_worker(1, squares(1)))
    assert done(path)[:3] == [False, True, False]
    assert equal(run(path).values, evaluate(grid(), Squares()).values)


def test_a_worker_of_a_run_that_has_ended_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with store.opened(path, grid(), SQUARE, ARGUMENTS) as kept:
        old = kept.share
    before = sorted(path.iterdir())
    assert old.put_from_worker(0, squares(0)) is None
    with store.opened(path, grid(), SQUARE, ARGUMENTS) as kept:
        assert old.put_from_worker(0, squares(0)) is None
        assert kept.share.put_from_worker(0, squares(0)) is not None
    assert sorted(path.iterdir()) == before


def test_a_worker_that_is_late_takes_no_chunk_from_the_run_after_its_own(tmp_path: Path) -> None:
    """Its run was killed; it looked whose the store is before the next run had it, and writes after that."""
    path = tmp_path / "a"
    with store.opened(path, grid(), SQUARE, ARGUMENTS) as kept:
        late = kept.share
    expected = run(path).values
    assert late.put(0, squares(0)).name == part(path, 0).name
    assert all(done(path))
    assert equal(read(path), expected)


def test_a_worker_that_does_not_see_the_store_sends_what_it_computed(tmp_path: Path) -> None:
    with store.opened(tmp_path / "a", grid(), SQUARE, ARGUMENTS) as kept:
        for elsewhere in (tmp_path, tmp_path / "no"):
            assert replace(kept.share, path=elsewhere).put_from_worker(0, squares(0)) is None
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_where_a_worker_cannot_write_the_run_does_or_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    with store.opened(tmp_path / "a", grid(), SQUARE, ARGUMENTS) as kept:
        with monkeypatch.context() as patch:
            patch.setattr("pyarrow.parquet.write_table", full)
            assert kept.share.put_from_worker(2, squares(2)) is None
            with pytest.raises(OSError, match=r"No space left on device; what it had is safe"):
                kept.write(2, squares(2))
        kept.write(2, squares(2))
    assert [i for i, there in enumerate(done(tmp_path / "a")) if there] == [2]


def test_what_killed_workers_left_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    run(path)
    (path / ".passing-0123").write_bytes(b"half")
    assert np.isfinite(read(path)["square"]).all()
    assert not run(path).interrupted
    assert sorted(each.name for each in path.iterdir() if each.name[0] == ".") == [".lock"]
