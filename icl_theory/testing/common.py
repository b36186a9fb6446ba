"""What the checks share: comparisons whose errors say what was expected and what was found."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from icl_theory._validate import Array

T = TypeVar("T")


def expect(holds: Any, what: str, expected: object, found: object) -> None:
    """Raise an AssertionError that says what was expected and what was found, unless the condition holds."""
    if not holds:
        raise AssertionError(f"{what}: expected {expected}, found {_shown(found)}")


def attempt(
    what: str, function: Callable[..., T], /, *arguments: Any, **options: Any
) -> T:
    """Return the result of a call; any exception becomes an AssertionError."""
    try:
        return function(*arguments, **options)
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(
            f"{what}: expected no exception, found {type(error).__name__}: {error}"
        ) from error


def copied(value: T) -> T:
    """Return a copy by pickle, as workers get it."""
    copy: T = pickle.loads(pickle.dumps(value))
    return copy


def same(one: Any, two: Any) -> bool:
    """Whether two numbers, arrays or mappings of them have the same bits; NaN equals NaN."""
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(
            same(one[name], two[name]) for name in one
        )
    one = np.asarray(one)
    two = np.asarray(two)
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    return (
        one.tobytes() == two.tobytes()
        if one.dtype != object
        else bool(np.array_equal(one, two))
    )


def expect_same(wanted: Any, found: Any, what: str) -> None:
    """Raise an AssertionError that names the entry that differs most, unless all bits are the same."""
    if same(wanted, found):
        return
    if (
        isinstance(wanted, dict)
        and isinstance(found, dict)
        and wanted.keys() == found.keys()
    ):
        for name in wanted:
            expect_same(wanted[name], found[name], f"{name!r} in {what}")
    expect_near(wanted, found, np.asarray(0.0), what, "the same bits")


def expect_near(
    wanted: Any, found: Any, allowed: Array, what: str, sentence: str
) -> None:
    """Raise an AssertionError that names the entry that is off by most, unless all are within ``allowed``."""
    one = np.asarray(wanted)
    two = np.asarray(found)
    if one.shape != two.shape or not {one.dtype.kind, two.dtype.kind} <= {*"fiub"}:
        expect(False, what, f"{sentence}, {_shown(wanted)}", found)
    with np.errstate(all="ignore"):
        off = np.abs(two - one.astype(float)) - allowed
    if sentence != "the same bits" and not (off > 0).any() and not np.isnan(off).any():
        return
    place = np.unravel_index(
        int(np.argmax(np.where(np.isnan(off), np.inf, off))), one.shape
    )
    entry = f", entry {tuple(int(i) for i in place)}" if one.ndim else ""
    expect(
        False,
        what + entry,
        f"{sentence}, {one[place].item()!r}",
        repr(two[place].item()),
    )


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 300 else text[:297] + "..."
