"""Checks of arguments: every error names the argument, its value and what is allowed.

A check takes the name and the value of an argument and returns the value, converted, or
raises the ValueError that `argument_error` builds.
"""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
T = TypeVar("T")

INT64_MAX = 2**63 - 1
# Every integer up to here is a float64; lengths and counts are used as floats.
EXACT = 2**53


def argument_error(name: str, value: object, allowed: str) -> ValueError:
    """Build the error for an argument: its name, its value and what is allowed."""
    if isinstance(value, np.generic):
        value = value.item()
    try:
        shown = " ".join(repr(value).split())
    except ValueError:  # Python writes no integer of more than a few thousand digits
        shown = f"an integer of {int(value).bit_length()} bits"  # type: ignore[call-overload]
    if len(shown) > 80:
        shown = shown[:77] + "..."
    name = " ".join(str(name).split())
    return ValueError(f"{name} = {shown}: must be {allowed}")


def nearest(word: str, candidates: Iterable[str]) -> str:
    """Return " (did you mean ...?)" with the most similar word, or the empty text."""
    names: dict[str, list[str]] = {}
    for name in candidates:
        names.setdefault(name.lower(), []).append(name)
    similar = difflib.get_close_matches(word.lower(), names, n=1)
    if not similar:
        return ""
    # Names may differ in capitals alone, like a module and its class.
    spellings = names[similar[0]]
    best = difflib.get_close_matches(word, spellings, n=1, cutoff=0.0)[0]
    return f" (did you mean {best}?)"


def instance(
    name: str, value: Any, kind: type[T] | tuple[type[T], ...], allowed: str
) -> T:
    """Return ``value`` if it is of a class, or of one of several."""
    if not isinstance(value, kind):
        raise argument_error(name, value, allowed)
    return value


def flag(name: str, value: Any) -> bool:
    """Return ``value`` if it is True or False; arrays and words are neither."""
    return bool(instance(name, value, (bool, np.bool_), "True or False"))


def text(name: str, value: Any) -> str:
    """Return ``value`` if it is a text."""
    return instance(name, value, str, "a text")


def iterable(name: str, values: Any, allowed: str) -> Iterable[Any]:
    """Return ``values`` if they can be listed and are no single text."""
    if (
        not isinstance(values, Iterable)
        or isinstance(values, str | bytes)
        or getattr(values, "ndim", 1) == 0
    ):
        raise argument_error(name, values, allowed)
    return values


def generator(name: str, value: Any) -> np.random.Generator:
    """Return ``value`` if it draws random numbers."""
    return instance(name, value, np.random.Generator, "a numpy.random.Generator")


def mapping(name: str, value: Any, of_what: str) -> Mapping[str, Any]:
    """Return ``value`` if it is a mapping whose keys are texts."""
    allowed = f"{of_what} by name"
    checked: Mapping[str, Any] = instance(name, value, Mapping, allowed)  # type: ignore[type-abstract]
    if not all(isinstance(key, str) for key in checked):
        raise argument_error(name, value, allowed)
    return checked


def sequence(name: str, values: Any, kind: type[T], allowed: str) -> list[T]:
    """Return values as a list if there are some, all of a class."""
    is_series = isinstance(values, Iterable) and getattr(values, "ndim", 1) != 0
    entries = [*values] if is_series else []
    if not entries or not all(isinstance(entry, kind) for entry in entries):
        raise argument_error(name, values, allowed)
    return entries


TIMES = (np.datetime64, np.timedelta64)
NO_NUMBERS = (str, bytes, bool, np.bool_, complex, np.complexfloating, *TIMES)
LARGEST = 1e40  # squares of products of a few such numbers stay within float64
MOST_FEATURES = 10**9


def is_masked(value: Any) -> bool:
    """Whether some of the numbers are masked.

    The module of masked arrays is not loaded for this: whoever has one has loaded it.
    """
    # The function is missing while another thread loads the module.
    masked = getattr(sys.modules.get("numpy.ma"), "is_masked", None)
    if masked is None:
        return False
    if isinstance(value, list | tuple):
        # NumPy would join arrays in a list and take the numbers below their masks.
        return any(
            is_masked(entry)
            for entry in value
            if isinstance(entry, list | tuple | np.ndarray)
        )
    return bool(masked(value))


def _no_number(value: Any) -> bool:
    """Whether a value is no number, even if `float` converts it.

    Older versions of NumPy also convert arrays of one entry.
    """
    return (
        isinstance(value, NO_NUMBERS)
        or getattr(value, "ndim", 0) != 0
        or is_masked(value)
    )


def _finite(name: str, value: Any, allowed: str) -> float:
    """Return a value as a finite float, or refuse it."""
    try:
        result = math.nan if _no_number(value) else float(value)
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
    """Return a finite float within the limits, positive unless ``zero`` is allowed."""
    allowed = "a finite number >= 0" if zero else "a finite number > 0"
    result = _finite(name, value, allowed)
    if result < 0 or (result == 0 and not zero):
        raise argument_error(name, value, allowed)
    if not minimum <= result <= maximum:
        raise argument_error(name, value, f"between {minimum:g} and {maximum:g}")
    return result


def below_one(name: str, value: Any) -> float:
    """Return a float from 0 to below 1."""
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
    """Set validated fields of a frozen dataclass."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)


def integer(name: str, value: Any, *, minimum: int, maximum: int = INT64_MAX) -> int:
    """Return an int between ``minimum`` and ``maximum``.

    A float without a fraction counts as an integer.
    """
    interval = f"an integer in [{minimum}, {maximum}]"
    allowed = interval if maximum != INT64_MAX else f"an integer >= {minimum}"
    if _no_number(value):
        raise argument_error(name, value, allowed)
    try:
        result = int(value)
        exact = result == value
    except (TypeError, ValueError, OverflowError):
        raise argument_error(name, value, allowed) from None
    if not exact or result < minimum:
        raise argument_error(name, value, allowed)
    if result > maximum:
        raise argument_error(name, value, interval)
    return result


def dimensions(value: Any) -> int:
    """Return how many dimensions an array, nested lists, an iterator or a number has.

    Lists of unequal lengths have two, and what NumPy makes no array of has none.
    """
    ndim = getattr(value, "ndim", None)
    if isinstance(ndim, int):  # the ndim of a class of NumPy is no number
        return ndim
    if isinstance(value, list | tuple) and is_masked(value):
        return 1  # NumPy would warn of numbers below the mask, which become NaN
    try:
        return max(np.asarray(value).ndim, int(hasattr(value, "__iter__")))
    except ValueError:
        return 2
    except TypeError:  # a dataset of xarray, for example
        return 0


def prompt_length(value: Any, name: str = "N") -> float:
    """Return a prompt length or sample size as a float, an integer or ``math.inf``."""
    return whole_or_infinite(name, value, minimum=1)


def whole_or_infinite(
    name: str, value: Any, *, minimum: int, maximum: int = EXACT
) -> float:
    """Return an integer within the limits, up to 2**53, as a float; or ``math.inf``."""
    if isinstance(value, float | np.floating) and value == math.inf:
        return math.inf
    try:
        return float(integer(name, value, minimum=minimum, maximum=min(maximum, EXACT)))
    except ValueError as error:
        raise ValueError(f"{error}, or math.inf") from None


def prompt_lengths(value: ArrayLike) -> Array:
    """Return prompt lengths of any shape as float64: integers to 2**53, or infinite."""
    lengths = plain_numbers("N", value, 1.0)
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
    if not isinstance(value, str) or value not in words:
        options = "one of " + ", ".join(words)
        if not words:
            options = "left out: there is nothing to choose"
        raise argument_error(name, value, options)
    return value


def fraction(name: str, value: Any) -> float:
    """Return a number strictly between 0 and 1."""
    allowed = "a number strictly between 0 and 1"
    result = _finite(name, value, allowed)
    if not 0 < result < 1:
        raise argument_error(name, value, allowed)
    return result


def floats(value: Any) -> Array | None:
    """Return a value as an array of float64, or None if it holds no real numbers.

    An array of float64 is returned itself. Texts and dates are no numbers, and masked
    numbers count as none: NumPy would take the numbers below the mask.
    """
    if type(value) is not np.ndarray and is_masked(value):
        return None
    try:
        array = np.asarray(value)
        # NumPy would read numbers from texts, and count the days of dates.
        has_words = array.dtype.kind in "USmM"
        if array.dtype == object:
            wrong = (str, bytes, *TIMES)
            has_words = any(isinstance(entry, wrong) for entry in array.flat)
        if has_words or np.iscomplexobj(array):
            return None
        return np.asarray(array, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return None


def symmetric(name: str, value: object, matrix: Array, allowed: str) -> Array:
    """Return a symmetric matrix, or refuse one that differs from its transpose.

    Differences of up to 1e-12 of the largest entry are rounding, and are averaged.
    """
    asymmetry = float(np.abs(matrix - matrix.T).max())
    if asymmetry > 1e-12 * float(np.abs(matrix).max()):
        raise argument_error(
            name,
            value,
            f"{allowed} (it differs from its transpose by {asymmetry:.3g})",
        )
    return np.asarray(0.5 * (matrix + matrix.T))


def real_array(name: str, value: ArrayLike, ndim: int, most: float = math.inf) -> Array:
    """Return a copy of data as a finite float64 array of ``ndim`` dimensions."""
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
    """Return a float64 array of any shape, without NaN, between two limits."""
    limits = f" between {least:g} and {most:g}"
    if math.isinf(least) and math.isinf(most):
        limits = ""
    array = None if isinstance(value, NO_NUMBERS) else floats(value)
    if array is None or not ((array >= least) & (array <= most)).all():
        raise argument_error(name, value, "numbers" + limits)
    return array


def indexed(values: Array, few: int = 32) -> tuple[Array, NDArray[np.intp]]:
    """Return the distinct values in order, and the index of each entry among them.

    Up to ``few`` distinct values are looked for one by one, which is faster.
    """
    distinct = np.unique(values)
    if distinct.size > few:
        return distinct, np.searchsorted(distinct, values)
    index = np.zeros(values.shape, dtype=np.uint8)
    for value in distinct[:-1]:
        index += values > value
    return distinct, index.astype(np.intp)


def probabilities(name: str, value: ArrayLike, size: int) -> Array:
    """Return ``size`` positive probabilities, normalised; their sum is 1 to 1e-6."""
    result = real_array(name, value, 1)
    if result.size != size or (result <= 0).any() or abs(result.sum() - 1.0) > 1e-6:
        raise argument_error(
            name,
            value,
            f"{size} positive numbers that sum to 1 (these sum to {result.sum():.9g})",
        )
    return result / result.sum()


def distributions(name: str, value: ArrayLike, slack: float = 1e-6) -> Array:
    """Return rows of probabilities, normalised; each must sum to 1 to ``slack``."""
    ndim = max(np.asarray(value, dtype=object).ndim, 1)
    rows = real_array(name, value, ndim, LARGEST)
    total = rows.sum(axis=-1, keepdims=True)
    is_wrong = ((rows < 0.0) | (np.abs(total - 1.0) > slack)).any(axis=-1)
    if not rows.size or is_wrong.any():
        row = rows[is_wrong][0] if rows.size else rows
        raise argument_error(
            name,
            row.tolist(),
            f"numbers >= 0 that sum to 1 in each row (these sum to {row.sum():.9g})",
        )
    return np.asarray(rows / total)
