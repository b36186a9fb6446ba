"""What both checks share: sentences that say what was expected and what was found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")


def expect(holds: Any, what: str, expected: object, found: object) -> None:
    """Raise an AssertionError that says what was expected of something, and what was found, unless it holds."""
    if not holds:
        raise AssertionError(f"{what}: expected {expected}, found {_shown(found)}")


def attempt(what: str, function: Callable[[], T]) -> T:
    """Return what a function does; its exception becomes an AssertionError."""
    try:
        return function()
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"{what}: expected no exception, found {type(error).__name__}: {error}") from error


def same(one: Any, two: Any) -> bool:
    """Whether two numbers, arrays or mappings of them have the same bits; NaN is like NaN."""
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(same(one[name], two[name]) for name in one)
    one, two = np.asarray(one), np.asarray(two)
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    return one.tobytes() == two.tobytes() if one.dtype != object else bool(np.array_equal(one, two))


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 300 else text[:297] + "..."
