"""How far a long computation is, on standard error: a live bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

SILENT = 1.0  # seconds before anything is shown
INTERVAL = 10.0  # seconds between two plain lines


class PointProgress:
    """Points done, points per second and time left; a context manager whose `update` takes note.

    Parameters
    ----------
    shown : bool
        Show anything at all.

    Examples
    --------
    >>> from icl_theory.grids.progress import PointProgress
    >>> with PointProgress(shown=True) as progress:
    ...     progress.update(0, 2)
    ...     progress.update(1, 2)
    """

    def __init__(self, shown: bool = True) -> None:
        self._shown = shown
        self._start = time.monotonic()
        self._next = self._start + SILENT
        self._before: int | None = None
        self._display: tuple[Progress, TaskID] | None = None

    def __enter__(self) -> PointProgress:
        return self

    def update(self, done: int, total: int) -> None:
        """Take note of the points done; the first call says how many were done before."""
        if self._before is None:
            self._before = done
            return
        now = time.monotonic()
        if not self._shown or (now < self._next and not (self._display and done == total)):
            return
        rate = (done - self._before) / max(now - self._start, 1e-9)
        if self._display is not None or sys.stderr.isatty():  # while a bar is drawn, rich stands in for the stream
            self._draw(done, total, rate)
            self._next = now + 0.1
        else:
            left = f", {duration((total - done) / rate)} left" if rate > 0 else ""
            sys.stderr.write(f"{done:,} of {total:,} points, {rate:,.3g} points/s{left}\n")
            sys.stderr.flush()
            self._next = now + INTERVAL

    def _draw(self, done: int, total: int, rate: float) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        if self._display is None:
            columns = (
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]} points/s"),
                TimeRemainingColumn(),
            )
            display = Progress(*columns, console=Console(stderr=True), transient=True)
            display.start()
            self._display = display, display.add_task("", total=total, rate="")
        display, task = self._display
        display.update(task, completed=done, rate=f"{rate:,.3g}")

    def __exit__(self, *_: object) -> None:
        if self._display is not None:
            self._display[0].stop()


def duration(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
