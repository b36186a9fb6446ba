"""Runs for measurements and figures: an interrupt ends them instead of giving them half a run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from icl_theory.engine.trajectory import Trajectory


class _Interrupt(BaseException):
    pass


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C end the whole block: runs return what they have on KeyboardInterrupt, and do not see this one."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise _Interrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    except _Interrupt:
        raise KeyboardInterrupt from None
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def whole(run: Trajectory) -> Trajectory:
    """Return the run, but raise KeyboardInterrupt where it was interrupted."""
    if run.interrupted:
        raise KeyboardInterrupt
    return run
