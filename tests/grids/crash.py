"""A sweep that is ended at its n-th file operation, for all or some n, and is gone on with; prints the last n.

Python tells of every file that is opened, renamed, made or removed, whoever does it,
before it happens. This is a process of its own, because forking one with threads is
unsafe.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from icl_theory.sweeps import store
from icl_theory.sweeps.evaluate import evaluate
from tests.grids.test_store import ARGUMENTS, equal, read
from tests.models import SQUARE, Squares, grid

SMALL = grid(4)
KILLED = 77


def sweep(path: Path, model: Squares | None = None) -> Any:
    with store.opened(
        path, SMALL, SQUARE, ARGUMENTS, command=f"sweep {path.name}"
    ) as kept:
        return evaluate(SMALL, model or Squares(), storage=kept)


def end_at(path: Path, last: int, torn: bool) -> None:
    """End this process after so many file operations within the store, before the next one.

    ``torn`` leaves rubbish in a file that is about to be written.
    """
    left = [last]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in (
            "open",
            "os.rename",
            "os.mkdir",
            "os.remove",
            "os.listdir",
            "os.scandir",
        ):
            return
        if left[0] < 0 or not str(arguments[0]).startswith(str(path)):
            return
        left[0] -= 1
        if left[0] < 0:
            if (
                torn
                and event == "open"
                and arguments[1] is not None
                and "w" in arguments[1]
            ):
                Path(arguments[0]).write_bytes(b'{"arg')
            os._exit(KILLED)

    sys.addaudithook(hook)


def status_of(act: Callable[[], None]) -> int:
    """Run something in a process of its own."""
    child = os.fork()
    if child == 0:
        try:
            act()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(folder: Path, torn: bool, apart: int) -> None:
    """End a sweep at each of its file operations, or some ``apart``, and go on with each."""
    sweep(folder / "first")  # loads what need not be loaded again and again
    expected = evaluate(SMALL, Squares()).values
    count = 0
    status = KILLED
    while status == KILLED:
        path = folder / str(count)

        def ended(path: Path = path, last: int = count) -> None:
            end_at(path, last, torn)
            sweep(path)

        def gone_on(path: Path = path) -> None:
            before = {part: part.stat().st_mtime_ns for part in path.glob("part-*")}
            assert equal(sweep(path).values, expected)
            assert equal(read(path), expected)
            assert {part: part.stat().st_mtime_ns for part in before} == before, (
                "chunks were computed again"
            )
            assert store.existing(path).commands == [f"sweep {path.name}"]
            assert not list(path.glob(".passing-*")), "leftovers"

        status = status_of(ended)
        assert status in (KILLED, 0), count
        assert status_of(gone_on) == 0, count
        count += apart
    print(count)


if __name__ == "__main__":
    main(Path(sys.argv[1]), "torn" in sys.argv[3:], int(sys.argv[2]))
