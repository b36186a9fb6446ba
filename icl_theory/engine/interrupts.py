"""The one rule for Ctrl-C: a run returns what it has; within `whole_runs` there are no half runs, and it raises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_WHOLE: ContextVar[bool] = ContextVar("whole", default=False)


@contextmanager
def whole_runs() -> Iterator[None]:
    """Let Ctrl-C end the block: runs in it raise KeyboardInterrupt instead of returning what they have.

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
