"""Ctrl-C during a run, while modules are loaded, and if Python ignores it.

Ctrl-C ends a run. If the user requested the run itself, the part computed so far is
returned; if a function needs the run for a measurement, Ctrl-C ends that function, too
(`returns_runs`). Ctrl-C is deferred while modules are loaded (`deferred`), and raised
again if Python has ignored it (`none_swallowed`).
"""

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
# The code objects of the functions that `returns_runs` has marked.
_RETURNING: set[CodeType] = set()
# Not empty after a Ctrl-C that Python has ignored.
SWALLOWED: list[bool] = []


def returns_runs(function: F) -> F:
    """Mark a function that returns its runs, which may be parts of one after Ctrl-C."""
    _RETURNING.add(function.__code__)
    return function


def is_for_the_user() -> bool:
    """Whether every function of the package that waits for a run returns it.

    If one of them measures with the run, a part of the run would give a wrong number.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        package, _, module = str(frame.f_globals.get("__name__")).partition(".")
        # icl_theory.__main__ is the command line, which the user has started
        is_ours = package == "icl_theory" and module != "__main__"
        if is_ours and frame.f_code not in _RETURNING:
            return False
        frame = frame.f_back
    return True


def is_pressed(error: BaseException | None) -> bool:
    """Whether an error is Ctrl-C.

    A compiled module that is being loaded turns it into an ImportError.
    """
    if isinstance(error, KeyboardInterrupt):
        return True
    return isinstance(error, ImportError) and is_pressed(error.__cause__)


class _Deferred:
    """Takes the place of the handler of Ctrl-C, and keeps the calls of it."""

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
    # only the main thread receives signals and may set their handlers
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or not callable(handler) or isinstance(handler, _Deferred):
        yield
        return
    stand_in = _Deferred()
    signal.signal(signal.SIGINT, stand_in)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if stand_in.calls:
            handler(*stand_in.calls[0])


def loads(function: F) -> F:
    """Put Ctrl-C off while a function runs that loads modules."""

    @functools.wraps(function)
    def undisturbed(*arguments: Any, **named: Any) -> Any:
        with deferred():
            return function(*arguments, **named)

    return undisturbed  # type: ignore[return-value]


def load_whole(*modules: str) -> None:
    """Load modules of other packages with Ctrl-C put off, those that are installed."""
    missing = [name for name in modules if name not in sys.modules]
    if not missing:
        return
    with deferred():
        for name in missing:
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module(name)


@contextlib.contextmanager
def none_swallowed() -> Iterator[None]:
    """Raise a Ctrl-C that Python has ignored, at the end of the block at the latest.

    Python prints an error that is raised in the callback of a weak reference or by
    ``__del__``, and goes on.
    """
    default_hook = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        error = unraisable.exc_type
        if error is not None and issubclass(error, KeyboardInterrupt):
            SWALLOWED.append(True)
        else:
            default_hook(unraisable)

    sys.unraisablehook = hook
    try:
        yield
        raise_swallowed()
    finally:
        sys.unraisablehook = default_hook
        SWALLOWED.clear()


def raise_swallowed() -> None:
    """Raise Ctrl-C if Python has ignored it, see `none_swallowed`."""
    if SWALLOWED:
        SWALLOWED.clear()
        raise KeyboardInterrupt
