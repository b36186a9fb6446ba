"""Comparisons that all checks use, and the AssertionErrors that they raise.

Each error says what was checked (``subject``), what was expected and what was found.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from icl_theory._validate import Array

T = TypeVar("T")
# The largest number of characters of a value in an error, about four lines. A whole
# array would hide the rest of the message.
LONGEST_VALUE = 300
# The kinds of NumPy's dtypes that are numbers or truth values: floats, signed and
# unsigned integers, and booleans.
NUMERIC_KINDS = {"f", "i", "u", "b"}


def expect(holds: Any, subject: str, expected: object, actual: object) -> None:
    """Raise an AssertionError unless the condition holds.

    The error names ``subject``, and says that ``expected`` was expected and that
    ``actual`` was found.
    """
    if not holds:
        raise AssertionError(f"{subject}: expected {expected}, found {_shown(actual)}")


def attempt(
    subject: str, function: Callable[..., T], /, *arguments: Any, **options: Any
) -> T:
    """Return the result of a call; any exception becomes an AssertionError.

    ``subject`` says in the error what was called. The function gets ``arguments`` and
    ``options``. The slash allows options that are called "subject" or "function".
    """
    try:
        return function(*arguments, **options)
    except AssertionError:
        # A check within the call has already said what is wrong.
        raise
    except Exception as error:
        raise AssertionError(
            f"{subject}: expected no exception, found {type(error).__name__}: {error}"
        ) from error


def copied(value: T) -> T:
    """Return a copy made by pickle, which is what worker processes get."""
    copy: T = pickle.loads(pickle.dumps(value))
    return copy


def same(first: Any, second: Any) -> bool:
    """Whether two numbers, arrays or mappings of them have the same bits.

    They must have the same shape and dtype. NaN equals NaN, unlike with ``==``.
    """
    if isinstance(first, dict) and isinstance(second, dict):
        if first.keys() != second.keys():
            return False
        return all(same(value, second[name]) for name, value in first.items())
    first_array = np.asarray(first)
    second_array = np.asarray(second)
    if first_array.shape != second_array.shape:
        return False
    if first_array.dtype != second_array.dtype:
        return False
    if first_array.dtype == object:
        # An array of objects holds their addresses, so its bytes say nothing about
        # whether the objects are equal.
        return bool(np.array_equal(first_array, second_array))
    return first_array.tobytes() == second_array.tobytes()


def expect_same(expected: Any, actual: Any, subject: str) -> None:
    """Check that two numbers, arrays or mappings of them have the same bits.

    The AssertionError names the first array of a mapping that differs, and in it the
    entry that differs most.
    """
    if same(expected, actual):
        return
    are_mappings = isinstance(expected, dict) and isinstance(actual, dict)
    if are_mappings and expected.keys() == actual.keys():
        # The first entry that differs raises the error.
        for name, value in expected.items():
            expect_same(value, actual[name], f"{name!r} in {subject}")
    # `_difference` raises its own error for different shapes, and for anything but
    # numbers.
    difference = _difference(expected, actual, subject, "the same bits")
    # An entry that is NaN in both does not differ, although their difference is NaN.
    is_nan_in_both = np.isnan(expected) & np.isnan(actual)
    difference = np.where(is_nan_in_both, 0.0, difference)
    # Numbers may be equal although their bits differ, for example 0.0 and -0.0. So fail
    # even if the largest difference is 0.
    _fail_at_worst(expected, actual, difference, subject, "the same bits")


def expect_near(
    expected: Any, actual: Any, allowed: Array, subject: str, sentence: str
) -> None:
    """Check that all entries of two arrays differ by at most ``allowed``.

    The AssertionError says that ``sentence`` was expected, and names the entry whose
    difference exceeds ``allowed`` by the largest amount. A difference that is NaN is an
    error, too.
    """
    difference = _difference(expected, actual, subject, sentence)
    # If the difference and the allowed difference are both infinite, the excess is NaN,
    # and NumPy would warn. The error below says more than this warning.
    with np.errstate(all="ignore"):
        excess = np.asarray(difference - allowed)
    if (excess > 0).any() or np.isnan(excess).any():
        _fail_at_worst(expected, actual, excess, subject, sentence)


def _difference(expected: Any, actual: Any, subject: str, sentence: str) -> Array:
    """Return the absolute differences of two arrays.

    Arrays of different shapes, or of anything but numbers, raise an AssertionError,
    which says that ``sentence`` was expected.
    """
    expected_array = np.asarray(expected)
    actual_array = np.asarray(actual)
    kinds = {expected_array.dtype.kind, actual_array.dtype.kind}
    if expected_array.shape != actual_array.shape or not kinds <= NUMERIC_KINDS:
        expect(False, subject, f"{sentence}, {_shown(expected)}", actual)
    # Truth values cannot be subtracted, and unsigned integers would wrap around, so one
    # array becomes floats. NumPy then converts the other.
    with np.errstate(all="ignore"):
        return np.asarray(np.abs(actual_array - expected_array.astype(float)))


def _fail_at_worst(
    expected: Any, actual: Any, excess: Array, subject: str, sentence: str
) -> None:
    """Raise an AssertionError that names the entry of the largest ``excess``.

    ``excess`` says for each entry how far the difference of ``actual`` and ``expected``
    exceeds the allowed difference. The three arrays have the same shape. The error says
    that ``sentence`` was expected.
    """
    expected_array = np.asarray(expected)
    actual_array = np.asarray(actual)
    # NaN counts as worse than any finite number.
    worst = int(np.argmax(np.where(np.isnan(excess), np.inf, excess)))
    index = np.unravel_index(worst, expected_array.shape)
    # A number, which has no axes, has no entry to name.
    entry = ""
    if expected_array.ndim:
        entry = f", entry {tuple(int(i) for i in index)}"
    expect(
        False,
        subject + entry,
        f"{sentence}, {expected_array[index].item()!r}",
        repr(actual_array[index].item()),
    )


def _shown(value: object) -> str:
    """Return a value as text of at most ``LONGEST_VALUE`` characters."""
    text = value if isinstance(value, str) else repr(value)
    if len(text) <= LONGEST_VALUE:
        return text
    return text[: LONGEST_VALUE - len("...")] + "..."
