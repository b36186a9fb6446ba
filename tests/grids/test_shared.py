"""Chunks that an executor computes, and the run that keeps them in its store."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from icl_theory.sweeps import store
from icl_theory.sweeps.evaluate import evaluate
from icl_theory.sweeps.grid import once
from tests.grids.test_grid import equal
from tests.grids.test_store import ARGUMENTS, done, read, run
from tests.models import SQUARE, Squares, grid


@pytest.fixture(scope="module")
def pool() -> Iterator[Executor]:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as processes:
        yield processes


def test_the_files_are_those_that_the_run_writes(
    tmp_path: Path, pool: Executor
) -> None:
    run(tmp_path / "one")
    with store.opened(tmp_path / "two", grid(), SQUARE, ARGUMENTS) as kept:
        evaluate(grid(), Squares(), executor=pool, storage=kept)
    one, two = (
        {
            file.relative_to(path): file.read_bytes()
            for file in path.rglob("*")
            if file.is_file()
        }
        for path in (tmp_path / "one", tmp_path / "two")
    )
    assert one == two


class Losing(Executor):
    """Computes at once, but loses some chunks: the error is the executor's own, not that of a point."""

    def __init__(self, lost: set[int]) -> None:
        self.lost = lost

    def submit(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Future[Any]:
        future: Future[Any] = Future()
        if args[0] in self.lost:
            future.set_exception(OSError("the answer was lost on its way"))
        else:
            future.set_result(fn(*args, **kwargs))
        return future


def test_what_an_executor_loses_is_not_kept_and_the_next_call_computes_it(
    tmp_path: Path,
) -> None:
    """Points that fail of themselves are kept as failed, those that were never computed are not."""
    expected, lost = evaluate(grid(), Squares(fails=3.0)).values, {0, 2}
    with store.opened(tmp_path, grid(), SQUARE, ARGUMENTS) as kept:
        found = evaluate(
            grid(), Squares(fails=3.0), executor=Losing(lost), storage=kept
        ).values
    for chunk in range(grid().chunks):
        where = grid().indices_of(chunk)
        if chunk in lost:
            assert set(found["status"][where]) == {"failed"}
            assert "lost on its way" in found["message"][where[0]]
        else:
            assert equal(
                {name: each[where] for name, each in found.items()},
                {name: each[where] for name, each in expected.items()},
            )
    assert [chunk for chunk, there in enumerate(done(tmp_path)) if not there] == sorted(
        lost
    )
    with store.opened(tmp_path, grid(), SQUARE, ARGUMENTS) as kept:
        again = evaluate(grid(), Squares(fails=3.0), storage=kept).values
    assert equal(again, expected)
    assert equal(read(tmp_path), expected)


def test_a_full_disk_is_said_and_the_chunk_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "full")

    found = Squares().evaluate(grid().points_of(2))
    values = {name: once(column) for name, column in found.items()}
    with store.opened(tmp_path / "a", grid(), SQUARE, ARGUMENTS) as kept:
        with monkeypatch.context() as patch:
            patch.setattr("pyarrow.parquet.write_table", full)
            with pytest.raises(
                OSError, match=r"No space left on device; its chunks are safe"
            ):
                kept.write(2, values)
        kept.write(2, values)
    assert [i for i, there in enumerate(done(tmp_path / "a")) if there] == [2]


def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    run(path)
    (path / ".passing-0123").write_bytes(b"half")
    assert np.isfinite(read(path)["square"]).all()
    assert not run(path).interrupted
    assert sorted(each.name for each in path.iterdir() if each.name[0] == ".") == [
        ".lock"
    ]
