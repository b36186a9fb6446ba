"""Comparisons of the checks; their errors say what was expected and what was found."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from icl_theory._validate import Array

T = TypeVar("T")


def expect(holds: Any, what: str, expected: object, found: object) -> None:
    """Raise an AssertionError unless the condition holds.

    It says what was expected and what was found.
    """
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
    """Whether two numbers, arrays or mappings of them have the same bits.

    NaN equals NaN.
    """
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(
            same(one[name], two[name]) for name in one
        )
    first = np.asarray(one)
    second = np.asarray(two)
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if first.dtype == object:
        return bool(np.array_equal(first, second))
    return first.tobytes() == second.tobytes()


def expect_same(wanted: Any, found: Any, what: str) -> None:
    """Raise an AssertionError that names the entry that differs most.

    If all bits are the same there is none.
    """
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
    """Raise an AssertionError that names the entry that is off by most.

    If all entries are within ``allowed`` there is none.
    """
    expected = np.asarray(wanted)
    actual = np.asarray(found)
    are_numbers = {expected.dtype.kind, actual.dtype.kind} <= {*"fiub"}
    if expected.shape != actual.shape or not are_numbers:
        expect(False, what, f"{sentence}, {_shown(wanted)}", found)
    with np.errstate(all="ignore"):
        excess = np.abs(actual - expected.astype(float)) - allowed
    # Bits may differ although the numbers are equal, as those of 0.0 and -0.0 do.
    must_differ = sentence == "the same bits"
    if not must_differ and not (excess > 0).any() and not np.isnan(excess).any():
        return
    worst = int(np.argmax(np.where(np.isnan(excess), np.inf, excess)))
    index = np.unravel_index(worst, expected.shape)
    entry = f", entry {tuple(int(i) for i in index)}" if expected.ndim else ""
    expect(
        False,
        what + entry,
        f"{sentence}, {expected[index].item()!r}",
        repr(actual[index].item()),
    )


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 300 else text[:297] + "..."
