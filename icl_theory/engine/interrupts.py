"""The one rule for Ctrl-C: a run returns what it has; within `whole_runs` there are no half runs, and it raises."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType

_WHOLE: ContextVar[bool] = ContextVar("whole", default=False)


@contextmanager
def whole_runs() -> Iterator[None]:
    """Let Ctrl-C end the block: runs in it raise KeyboardInterrupt instead of returning a part of a run.

    Measurements, figures and points of a sweep are made of whole runs.
    """
    token = _WHOLE.set(True)
    try:
        yield
    finally:
        _WHOLE.reset(token)


def halves_kept() -> bool:
    """Whether an interrupted run is to be returned."""
    return not _WHOLE.get()


@contextmanager
def whole_block() -> Iterator[None]:
    """Put Ctrl-C off to the end of the block, for two things that must be done both or not at all.

    A second Ctrl-C is not put off: whoever presses it again does not want to wait. Threads besides the main one
    are never interrupted, and there the block is as any other.

    Examples
    --------
    >>> import signal
    >>> from icl_theory.engine.interrupts import whole_block
    >>> done = []
    >>> try:
    ...     with whole_block():
    ...         signal.raise_signal(signal.SIGINT)
    ...         done.append("both")
    ... except KeyboardInterrupt:
    ...     done.append("then interrupted")
    >>> done
    ['both', 'then interrupted']
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    pressed: list[tuple[int, FrameType | None]] = []

    def note(number: int, frame: FrameType | None) -> None:
        pressed.append((number, frame))
        if len(pressed) > 1:
            before(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if len(pressed) == 1:
        before(*pressed[0])
