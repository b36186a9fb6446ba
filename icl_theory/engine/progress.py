"""How far a run is, on standard error: a live line in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

SILENT = 0.5  # seconds before anything is shown
INTERVALS = (0.1, 5.0)  # seconds between two changes of a line in a terminal, and between two lines elsewhere


class StepProgress:
    """Show step, loss and speed of a run; a context manager that is a callback of `descend`.

    Parameters
    ----------
    callback : callable, optional
        Another callback, called as well.

    Examples
    --------
    >>> from icl_theory.engine.progress import StepProgress
    >>> with StepProgress() as shown:
    ...     shown(1, 0.5)
    """

    def __init__(self, callback: Callable[[int, float], None] | None = None) -> None:
        self._callback = callback
        self._start = time.monotonic()
        self._next = self._start + SILENT
        self._last = 0
        self._display: tuple[Progress, TaskID] | None = None

    def __enter__(self) -> StepProgress:
        return self

    def __call__(self, step: int, loss: float) -> None:
        """Take note of a step; a smaller one than the last begins another run."""
        if self._callback is not None:
            self._callback(step, loss)
        now = time.monotonic()
        if step < self._last:
            self._start = now
        self._last = step
        if now < self._next:
            return
        live = sys.stderr.isatty()
        self._next = now + INTERVALS[0 if live else 1]
        line = f"step {step:,}, loss {loss:.4g}, {step / max(now - self._start, 1e-9):,.3g} steps/s"
        if live:
            self._draw(line)
        else:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()

    def _draw(self, line: str) -> None:
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        if self._display is None:
            columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
            display = Progress(*columns, console=Console(stderr=True), transient=True)
            display.start()
            self._display = display, display.add_task(line, total=None)
        display, task = self._display
        display.update(task, description=line)

    def __exit__(self, *_: object) -> None:
        if self._display is not None:
            self._display[0].stop()
