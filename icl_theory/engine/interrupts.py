"""Ctrl-C: who gets a part of a run."""

from __future__ import annotations

import sys
from collections.abc import Callable
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
        if package == "icl_theory" and module != "__main__" and frame.f_code not in _RETURNING:
            return False
        frame = frame.f_back
    return True


def is_pressed(error: BaseException | None) -> bool:
    """Whether an error is Ctrl-C, of which a compiled module that is being loaded makes an ImportError."""
    return isinstance(error, KeyboardInterrupt) or (isinstance(error, ImportError) and is_pressed(error.__cause__))
