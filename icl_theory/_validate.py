"""Checks of arguments: every error names the argument, its value and what is allowed.

A check takes the name and the value of an argument. It returns the value, converted, or
raises the ValueError that `argument_error` builds; docstrings say "refuse" for this.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
T = TypeVar("T")

INT64_MAX = 2**63 - 1
# Every integer up to this one is a float64 number. Larger lengths and counts, which are
# used as floats, would be rounded.
EXACT = 2**53
# An error shows at most this many characters of a value, about a line.
SHOWN_CHARACTERS = 80


def argument_error(name: str, value: object, allowed: str) -> ValueError:
    """Build the error for an argument: its name, its value and what is allowed."""
    if isinstance(value, np.generic):
        # A number of NumPy is shown as 0.5 and not as np.float64(0.5).
        value = value.item()
    try:
        # The text of an array may have several lines, but an error has one.
        shown = " ".join(repr(value).split())
    except ValueError:
        # Python writes no integer of more than a few thousand digits.
        if isinstance(value, int):
            shown = f"an integer of {value.bit_length()} bits"
        else:
            shown = f"a {type(value).__name__} with an integer of thousands of digits"
    if len(shown) > SHOWN_CHARACTERS:
        shown = shown[: SHOWN_CHARACTERS - 3] + "..."
    # A name that a user gives may have several lines, too.
    name = " ".join(str(name).split())
    return ValueError(f"{name} = {shown}: must be {allowed}")


def instance(
    name: str, value: Any, kind: type[T] | tuple[type[T], ...], allowed: str
) -> T:
    """Return ``value`` if it is an instance of a class, or of one of several classes.

    Anything else is refused. In the error, ``allowed`` describes the allowed values,
    for example "a Risk".
    """
    if not isinstance(value, kind):
        raise argument_error(name, value, allowed)
    return value


def flag(name: str, value: Any) -> bool:
    """Return ``value`` as a bool if it is True or False, of Python or of NumPy."""
    return bool(instance(name, value, (bool, np.bool_), "True or False"))


def text(name: str, value: Any) -> str:
    """Return ``value`` if it is a text."""
    return instance(name, value, str, "a text")


def iterable(name: str, values: Any, allowed: str) -> Iterable[Any]:
    """Return ``values`` if they can be iterated over and are not a text.

    A text would yield its characters, which are not meant.
    """
    if isinstance(values, str | bytes) or not _is_iterable(values):
        raise argument_error(name, values, allowed)
    checked: Iterable[Any] = values
    return checked


def _is_iterable(values: Any) -> bool:
    """Whether values can be iterated over.

    An array without dimensions cannot, although it has the method ``__iter__``.
    """
    return isinstance(values, Iterable) and getattr(values, "ndim", 1) != 0


def generator(name: str, value: Any) -> np.random.Generator:
    """Return ``value`` if it draws random numbers."""
    return instance(name, value, np.random.Generator, "a numpy.random.Generator")


def mapping(name: str, value: Any, of_what: str) -> Mapping[str, Any]:
    """Return ``value`` if it is a mapping whose keys are texts.

    In the error, ``of_what`` describes the values of the mapping: for "numbers" the
    error asks for "numbers by name".
    """
    allowed = f"{of_what} by name"
    checked: Mapping[str, Any] = instance(name, value, Mapping, allowed)  # type: ignore[type-abstract]
    if not all(isinstance(key, str) for key in checked):
        raise argument_error(name, value, allowed)
    return checked


def sequence(name: str, values: Any, kind: type[T], allowed: str) -> list[T]:
    """Return values as a list if there is at least one, and all are of a class."""
    entries = [*values] if _is_iterable(values) else []
    if not entries or not all(isinstance(entry, kind) for entry in entries):
        raise argument_error(name, values, allowed)
    return entries


TIMES = (np.datetime64, np.timedelta64)
# Classes of values that `float` would convert, but that are not real numbers.
NO_NUMBERS = (str, bytes, bool, np.bool_, complex, np.complexfloating, *TIMES)
# The limit of most real arguments. Squares of products of a few such numbers stay
# within float64.
LARGEST = 1e40
# The largest number of features. It is generous: no larger number is of interest.
MOST_FEATURES = 10**9
# A matrix counts as symmetric if it differs from its transpose by at most this share of
# its largest entry. Rounding makes smaller differences, and a mistake a larger one.
SYMMETRY = 1e-12
# The sum of probabilities may differ from 1 by this much, as the sum of rounded
# decimals does.
ERROR_OF_SUM = 1e-6


def is_masked(value: Any) -> bool:
    """Whether some of the numbers in ``value`` are masked.

    The module of masked arrays is slow to load, and not loaded here. If nothing has
    loaded it, there are no masked arrays.
    """
    # `sys.modules` has no entry if the module is not loaded. While another thread loads
    # it, the module may not have the function yet.
    masked = getattr(sys.modules.get("numpy.ma"), "is_masked", None)
    if masked is None:
        return False
    if isinstance(value, list | tuple):
        # NumPy would join the arrays in a list and use the numbers that their masks
        # hide.
        return any(
            is_masked(entry)
            for entry in value
            if isinstance(entry, list | tuple | np.ndarray)
        )
    return bool(masked(value))


def _is_no_number(value: Any) -> bool:
    """Whether a value is known not to be a number, although `float` may convert it.

    `float` converts texts, for example, and in older versions of NumPy also arrays of
    one entry. Other values are left to `float`, which may refuse them.
    """
    # Most arguments are numbers of Python. (A bool has a class of its own.)
    if type(value) in (int, float):
        return False
    return (
        isinstance(value, NO_NUMBERS)
        or getattr(value, "ndim", 0) != 0
        or is_masked(value)
    )


def _finite(name: str, value: Any, allowed: str) -> float:
    """Return a value as a finite float, or refuse it."""
    # NaN stands for a value that is not a number, and is refused below.
    try:
        result = math.nan if _is_no_number(value) else float(value)
    except (TypeError, ValueError, OverflowError):
        result = math.nan
    if not math.isfinite(result):
        raise argument_error(name, value, allowed)
    return result


def number(
    name: str,
    value: Any,
    *,
    zero: bool = False,
    minimum: float = 0.0,
    maximum: float = math.inf,
) -> float:
    """Return a finite float from ``minimum`` to ``maximum``.

    It must be positive; if ``zero`` is True, it may also be zero.
    """
    allowed = "a finite number >= 0" if zero else "a finite number > 0"
    result = _finite(name, value, allowed)
    if result < 0 or (result == 0 and not zero):
        raise argument_error(name, value, allowed)
    if not minimum <= result <= maximum:
        raise argument_error(name, value, f"between {minimum:g} and {maximum:g}")
    return result


def below_one(name: str, value: Any) -> float:
    """Return a float in the interval [0, 1)."""
    allowed = "a number from 0 to below 1"
    result = _finite(name, value, allowed)
    if not 0.0 <= result < 1.0:
        raise argument_error(name, value, allowed)
    return result


def signed(name: str, value: Any, *, maximum: float = math.inf) -> float:
    """Return a finite float of either sign, at most ``maximum`` in size."""
    result = _finite(name, value, "a finite number")
    if abs(result) > maximum:
        raise argument_error(name, value, f"between {-maximum:g} and {maximum:g}")
    return result


def lipschitz(value: Any) -> float:
    """Return a Lipschitz constant whose square is within the range of float64."""
    return number("L", value, maximum=LARGEST)


def set_fields(instance: object, **values: object) -> None:
    """Set validated fields of a frozen dataclass, which forbids assignments."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)


def integer(name: str, value: Any, *, minimum: int, maximum: int = INT64_MAX) -> int:
    """Return an int between ``minimum`` and ``maximum``.

    A float without a fraction counts as an integer.
    """
    interval = f"an integer in [{minimum}, {maximum}]"
    # Users need not know the limit of int64 unless they exceed it.
    allowed = interval if maximum != INT64_MAX else f"an integer >= {minimum}"
    if _is_no_number(value):
        raise argument_error(name, value, allowed)
    try:
        result = int(value)
        has_no_fraction = result == value
    except (TypeError, ValueError, OverflowError):
        raise argument_error(name, value, allowed) from None
    if not has_no_fraction or result < minimum:
        raise argument_error(name, value, allowed)
    if result > maximum:
        raise argument_error(name, value, interval)
    return result


def dimensions(value: Any) -> int:
    """Return the number of dimensions of an array, of nested lists or of a number.

    It is 1 for a list with masked numbers, and 2 for lists of unequal lengths. It is 1
    for other iterables of which NumPy makes an array without dimensions, such as an
    iterator or a text. It is 0 for objects that NumPy cannot convert.
    """
    ndim = getattr(value, "ndim", None)
    if isinstance(ndim, int):  # the ndim of the class np.ndarray is not a number
        return ndim
    if isinstance(value, list | tuple) and is_masked(value):
        return 1  # NumPy would warn that masked numbers become NaN
    try:
        # NumPy turns an iterator or a text into an array without dimensions.
        least = 1 if hasattr(value, "__iter__") else 0
        return max(np.asarray(value).ndim, least)
    except ValueError:  # lists of unequal lengths
        return 2
    except TypeError:  # a dataset of xarray, for example
        return 0


def prompt_length(value: Any, name: str = "N") -> float:
    """Return a prompt length or sample size as a float.

    It must be an integer from 1 to 2**53, or ``math.inf``.
    """
    return whole_or_infinite(name, value, minimum=1)


def whole_or_infinite(
    name: str, value: Any, *, minimum: int, maximum: int = EXACT
) -> float:
    """Return an integer from ``minimum`` to ``maximum``, or ``math.inf``, as a float.

    Integers beyond 2**53 are refused, because not all of them are floats.
    """
    if isinstance(value, float | np.floating) and value == math.inf:
        return math.inf
    try:
        return float(integer(name, value, minimum=minimum, maximum=min(maximum, EXACT)))
    except ValueError as error:
        # Infinity is allowed, too.
        raise ValueError(f"{error}, or math.inf") from None


def prompt_lengths(value: ArrayLike) -> Array:
    """Return prompt lengths as a float64 array of the same shape.

    Each must be an integer from 1 to 2**53, or infinite.
    """
    lengths = plain_numbers("N", value, least=1.0)
    unrounded = np.asarray(value)
    # An integer beyond 2**53 is rounded as a float, so compare it as an integer.
    exact = unrounded if unrounded.dtype.kind in "iu" else lengths
    is_integer = (exact <= EXACT) & (lengths == np.floor(lengths))
    if not (is_integer | np.isinf(lengths)).all():
        raise argument_error("N", value, f"integers in [1, {EXACT}], or math.inf")
    return lengths


def choice(name: str, value: Any, allowed: Iterable[str]) -> str:
    """Return ``value`` if it is one of the ``allowed`` words."""
    words = tuple(allowed)
    if isinstance(value, str) and value in words:
        return value
    if words:
        options = "one of " + ", ".join(words)
    else:
        options = "left out: there is nothing to choose"
    raise argument_error(name, value, options)


def fraction(name: str, value: Any) -> float:
    """Return a number strictly between 0 and 1."""
    allowed = "a number strictly between 0 and 1"
    result = _finite(name, value, allowed)
    if not 0 < result < 1:
        raise argument_error(name, value, allowed)
    return result


def floats(value: Any) -> Array | None:
    """Return real numbers as an array of float64, or None for any other value.

    An array of float64 is returned itself, without a copy. Texts and dates do not count
    as numbers. Neither do masked numbers: NumPy would use the numbers under the mask.
    """
    # An array of the class ndarray itself has no mask.
    if type(value) is not np.ndarray and is_masked(value):
        return None
    try:
        array = np.asarray(value)
        # NumPy would read numbers from texts, and count the days of dates. The kinds
        # are str (U), bytes (S), timedelta (m) and datetime (M).
        has_texts_or_dates = array.dtype.kind in "USmM"
        # An array of objects may hold texts beside numbers.
        if array.dtype == object:
            texts_and_dates = (str, bytes, *TIMES)
            has_texts_or_dates = any(
                isinstance(entry, texts_and_dates) for entry in array.flat
            )
        if has_texts_or_dates or np.iscomplexobj(array):
            return None
        return np.asarray(array, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return None


def symmetric(name: str, value: object, matrix: Array, allowed: str) -> Array:
    """Return a matrix made exactly symmetric, or refuse it if it is not symmetric.

    A difference from the transpose of up to SYMMETRY times the largest entry counts as
    rounding. The result is the mean of the matrix and its transpose. ``value`` is the
    argument as the user has given it, which the error shows.
    """
    asymmetry = float(np.abs(matrix - matrix.T).max())
    if asymmetry > SYMMETRY * float(np.abs(matrix).max()):
        raise argument_error(
            name,
            value,
            f"{allowed} (it differs from its transpose by {asymmetry:.3g})",
        )
    return np.asarray(0.5 * (matrix + matrix.T))


def real_array(name: str, value: ArrayLike, ndim: int, most: float = math.inf) -> Array:
    """Return a copy of data as a finite float64 array of ``ndim`` dimensions.

    No number may exceed ``most`` in size.
    """
    limit = "" if math.isinf(most) else f" of numbers up to {most:g}"
    array = floats(value)
    if (
        array is None
        or array.ndim != ndim
        or not np.isfinite(array).all()
        or not (np.abs(array) <= most).all()
    ):
        dimension = f"{ndim} dimension{'s' if ndim != 1 else ''}"
        raise argument_error(
            name, value, f"a finite real array{limit} with {dimension}"
        )
    return np.array(array)


def plain_numbers(
    name: str, value: ArrayLike, least: float = 0.0, most: float = math.inf
) -> Array:
    """Return numbers from ``least`` to ``most`` as a float64 array of the same shape.

    Numbers may be infinite if the limits are infinite, but not NaN.
    """
    allowed = f"numbers between {least:g} and {most:g}"
    if math.isinf(least) and math.isinf(most):
        allowed = "numbers"
    # A bool, which `floats` would convert, is not a number either.
    array = None if isinstance(value, NO_NUMBERS) else floats(value)
    # Comparisons with NaN are false, so NaN is refused, too.
    if array is None or not ((array >= least) & (array <= most)).all():
        raise argument_error(name, value, allowed)
    return array


def indexed(values: Array, few: int = 32) -> tuple[Array, NDArray[np.intp]]:
    """Return the distinct values in order, and the index of each entry among them.

    If there are up to ``few`` distinct values, each of them is compared with all
    entries at once, which is then faster than a search for each entry. The default is a
    rough estimate of the number up to which the comparisons are faster. ``few`` may be
    at most 256.
    """
    distinct = np.unique(values)
    if distinct.size > few:
        return distinct, np.searchsorted(distinct, values)
    # The index of an entry is the number of distinct values below it. Integers of 8
    # bits are the fastest to count with; they hold numbers up to 255.
    index = np.zeros(values.shape, dtype=np.uint8)
    for value in distinct[:-1]:
        index += values > value
    return distinct, index.astype(np.intp)


def probabilities(name: str, value: ArrayLike, size: int) -> Array:
    """Return ``size`` positive probabilities, divided by their sum.

    The sum may differ from 1 by up to ERROR_OF_SUM, as the sum of rounded decimals
    does.
    """
    result = real_array(name, value, 1)
    error_of_sum = abs(result.sum() - 1.0)
    if result.size != size or (result <= 0).any() or error_of_sum > ERROR_OF_SUM:
        raise argument_error(
            name,
            value,
            f"{size} positive numbers that sum to 1 (these sum to {result.sum():.9g})",
        )
    return result / result.sum()


def distributions(name: str, value: ArrayLike, slack: float = ERROR_OF_SUM) -> Array:
    """Return rows of probabilities along the last axis, each divided by its sum.

    The sum of a row may differ from 1 by up to ``slack``.
    """
    # The array may have any number of axes, but at least one.
    ndim = max(np.asarray(value, dtype=object).ndim, 1)
    # The limit keeps the sums within float64.
    rows = real_array(name, value, ndim, most=LARGEST)
    total = rows.sum(axis=-1, keepdims=True)
    is_wrong = ((rows < 0.0) | (np.abs(total - 1.0) > slack)).any(axis=-1)
    if not rows.size or is_wrong.any():
        # The error shows the first wrong row, or the array if it is empty.
        row = rows[is_wrong][0] if rows.size else rows
        raise argument_error(
            name,
            row.tolist(),
            f"numbers >= 0 that sum to 1 in each row (these sum to {row.sum():.9g})",
        )
    return np.asarray(rows / total)
