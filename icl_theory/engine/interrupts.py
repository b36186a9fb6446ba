"""Ctrl-C: who gets a part of a run, what it must not cut in half, and where Python would ignore it."""

from __future__ import annotations

import contextlib
import functools
import importlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
_RETURNING: set[CodeType] = set()


def returns_runs(function: F) -> F:
    """Mark a function that returns the runs that it gets: after Ctrl-C they may be parts of one."""
    _RETURNING.add(function.__code__)
    return function


def is_for_the_user() -> bool:
    """Whether every function of the package that waits for a run returns it: none measures with a part of it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        package, _, module = str(frame.f_globals.get("__name__")).partition(".")
        if (
            package == "icl_theory"
            and module != "__main__"
            and frame.f_code not in _RETURNING
        ):
            return False
        frame = frame.f_back
    return True


def is_pressed(error: BaseException | None) -> bool:
    """Whether an error is Ctrl-C, of which a compiled module that is being loaded makes an ImportError."""
    return isinstance(error, KeyboardInterrupt) or (
        isinstance(error, ImportError) and is_pressed(error.__cause__)
    )


class _Deferred:
    """Stands for the handler of Ctrl-C, and keeps what it is called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, FrameType | None]] = []

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.calls.append((number, frame))


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Put Ctrl-C off until the block ends.

    Wrap the loading of modules in it. Compiled modules cannot be loaded a second time:
    if Ctrl-C ends their first loading, NumPy or matplotlib stay unusable for as long as
    the process lives.
    """
    handler = signal.getsignal(signal.SIGINT)
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or not callable(handler) or isinstance(handler, _Deferred):
        yield
        return
    waiting = _Deferred()
    signal.signal(signal.SIGINT, waiting)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if waiting.calls:
            handler(*waiting.calls[0])


def loads(function: F) -> F:
    """Have a function that loads modules put Ctrl-C off until it returns."""

    @functools.wraps(function)
    def whole(*arguments: Any, **named: Any) -> Any:
        with deferred():
            return function(*arguments, **named)

    return whole  # type: ignore[return-value]


def load_whole(*modules: str) -> None:
    """Load modules of other packages, with Ctrl-C put off; those that are not installed are passed over."""
    missing = [name for name in modules if name not in sys.modules]
    if not missing:
        return
    with deferred():
        for name in missing:
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module(name)


SWALLOWED: list[bool] = []  # not empty after Ctrl-C that Python has ignored


@contextlib.contextmanager
def none_swallowed() -> Iterator[None]:
    """Raise Ctrl-C at the next chance, and at the end of the block, where Python has ignored it.

    Python prints an error that is raised in the callback of a weak reference or by
    ``__del__``, and goes on.
    """
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if unraisable.exc_type is not None and issubclass(
            unraisable.exc_type, KeyboardInterrupt
        ):
            SWALLOWED.append(True)
        else:
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
        raise_swallowed()
    finally:
        sys.unraisablehook = before
        SWALLOWED.clear()


def raise_swallowed() -> None:
    """Raise Ctrl-C if Python has ignored it, see `none_swallowed`."""
    if SWALLOWED:
        SWALLOWED.clear()
        raise KeyboardInterrupt
