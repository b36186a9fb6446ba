"""How far a run is, on standard error, where its caller asked for it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

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
        self._live = sys.stderr.isatty()
        self._width = 0

    def __enter__(self) -> StepProgress:
        return self

    def __call__(self, step: int, loss: float) -> None:
        """Take note of a step."""
        if self._callback is not None:
            self._callback(step, loss)
        now = time.monotonic()
        if now >= self._next:
            self._next = now + INTERVALS[0 if self._live else 1]
            line = f"step {step:,}, loss {loss:.4g}, {step / (now - self._start):,.3g} steps/s"
            self._write(f"\r{line:<{self._width}}" if self._live else f"{line}\n")
            self._width = max(self._width, len(line))

    def __exit__(self, *reason: object) -> None:
        if self._live and self._width:
            self._write(f"\r{'':{self._width}}\r")

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
