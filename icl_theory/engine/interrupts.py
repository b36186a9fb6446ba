"""Ctrl-C during a run, while modules are loaded, and when Python itself ignores it.

Ctrl-C ends a run. If the user requested the run itself, the part computed so far is
returned. If a function needs the run for a measurement, Ctrl-C also ends this function
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
# Not empty after a Ctrl-C that Python has ignored, see `none_swallowed`. A bool would
# not do: modules that import it would not see it change.
SWALLOWED: list[bool] = []


def returns_runs(function: F) -> F:
    """Mark a function as one that returns the run it computes to its caller.

    If Ctrl-C is pressed, such a function may return the part computed so far.
    """
    _RETURNING.add(function.__code__)
    return function


def is_for_the_user() -> bool:
    """Whether the run that is now computed is returned to the user.

    The run is returned to the user if all functions of the package that wait for it are
    marked by `returns_runs`. A function that is not marked computes something from the
    run, and would compute a wrong number from a part of the run.
    """
    # The functions that wait for the run are on the stack of calls. Go through the
    # stack, from the caller outwards.
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        package, _, module = str(frame.f_globals.get("__name__")).partition(".")
        # icl_theory.__main__ is the command line. It stands for the user, so it does
        # not count as a function of the package.
        is_ours = package == "icl_theory" and module != "__main__"
        if is_ours and frame.f_code not in _RETURNING:
            return False
        frame = frame.f_back
    return True


def is_pressed(error: BaseException | None) -> bool:
    """Whether an error is Ctrl-C, or an ImportError that Ctrl-C has caused.

    A compiled module that is being loaded turns Ctrl-C into an ImportError.
    """
    if isinstance(error, KeyboardInterrupt):
        return True
    return isinstance(error, ImportError) and is_pressed(error.__cause__)


class _Deferred:
    """A handler of Ctrl-C that does nothing but record the arguments of its calls.

    These arguments are passed to the usual handler later.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[int, FrameType | None]] = []

    def __call__(self, signal_number: int, frame: FrameType | None) -> None:
        self.calls.append((signal_number, frame))


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Put Ctrl-C off until the block ends.

    The block loads modules. Compiled modules cannot be loaded a second time: if Ctrl-C
    ends their first loading, NumPy or matplotlib stay unusable for as long as the
    process lives.
    """
    handler = signal.getsignal(signal.SIGINT)
    # Only the main thread receives signals and may set their handlers.
    in_main_thread = threading.current_thread() is threading.main_thread()
    # If the system handles the signal without a Python function, or ignores it, there
    # is no handler that could be replaced.
    is_handled = callable(handler)
    # An outer block may already have put Ctrl-C off. It then stays deferred until the
    # outer block ends.
    is_deferred_already = isinstance(handler, _Deferred)
    if not in_main_thread or not is_handled or is_deferred_already:
        yield
        return
    assert callable(handler)  # `is_handled` says so, but mypy does not see it
    stand_in = _Deferred()
    signal.signal(signal.SIGINT, stand_in)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        # However often Ctrl-C was pressed, it interrupts once.
        if stand_in.calls:
            handler(*stand_in.calls[0])


def loads(function: F) -> F:
    """Decorate a function that loads modules: put Ctrl-C off while it runs."""

    @functools.wraps(function)
    def with_deferred_interrupts(*arguments: Any, **named: Any) -> Any:
        with deferred():
            return function(*arguments, **named)

    return with_deferred_interrupts  # type: ignore[return-value]


def load_whole(*modules: str) -> None:
    """Load modules of other packages, if they are installed, with Ctrl-C put off."""
    not_loaded = [name for name in modules if name not in sys.modules]
    if not not_loaded:
        return
    with deferred():
        for name in not_loaded:
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module(name)


@contextlib.contextmanager
def none_swallowed() -> Iterator[None]:
    """Raise a Ctrl-C that Python has ignored in the block.

    If an error is raised in the callback of a weak reference or by ``__del__``, Python
    only passes it to ``sys.unraisablehook``, which prints it, and goes on. If this
    error is Ctrl-C, it is recorded in SWALLOWED. It is raised again when a `Progress`
    next begins, is updated or ends, or at the end of the block.
    """
    previous_hook = sys.unraisablehook

    def record_interrupts(unraisable: Any) -> None:
        # Python may call the hook with None in the place of the type.
        error_type = unraisable.exc_type
        if error_type is not None and issubclass(error_type, KeyboardInterrupt):
            SWALLOWED.append(True)
        else:
            previous_hook(unraisable)

    sys.unraisablehook = record_interrupts
    try:
        yield
        raise_swallowed()
    finally:
        sys.unraisablehook = previous_hook
        # If another error ends the block, it is raised, and Ctrl-C is forgotten.
        SWALLOWED.clear()


def raise_swallowed() -> None:
    """Raise Ctrl-C if Python has ignored one, see `none_swallowed`."""
    if SWALLOWED:
        SWALLOWED.clear()
        raise KeyboardInterrupt
