"""Checks of arguments: every refusal names the argument, its value and what is allowed."""

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
# up to it every integer is a float64 of its own; lengths and counts are used as such
EXACT = 2**53


def argument_error(name: str, value: object, allowed: str) -> ValueError:
    """Build the error for an argument: its name, its value and what is allowed."""
    try:
        shown = " ".join(
            repr(value.item() if isinstance(value, np.generic) else value).split()
        )
    except ValueError:  # Python writes no integer of more than a few thousand digits
        shown = f"an integer of {int(value).bit_length()} bits"  # type: ignore[call-overload]
    name = " ".join(str(name).split())
    return ValueError(
        f"{name} = {shown if len(shown) <= 80 else shown[:77] + '...'}: must be {allowed}"
    )


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
    found = (
        [*values]
        if isinstance(values, Iterable) and getattr(values, "ndim", 1) != 0
        else []
    )
    if not found or not all(isinstance(each, kind) for each in found):
        raise argument_error(name, values, allowed)
    return found


TIMES = (np.datetime64, np.timedelta64)
NO_NUMBERS = (str, bytes, bool, np.bool_, complex, np.complexfloating, *TIMES)
LARGEST = 1e40  # squares of products of a few such numbers stay within float64
MOST_FEATURES = 10**9


def is_masked(value: Any) -> bool:
    """Whether some of the numbers are masked, without loading the module: it is loaded where there is one."""
    # not there while another thread loads it
    masked = getattr(sys.modules.get("numpy.ma"), "is_masked", None)
    if masked is None:
        return False
    if isinstance(value, list | tuple):
        # NumPy makes one array of several, and would take what is below their masks
        return any(
            is_masked(entry)
            for entry in value
            if isinstance(entry, list | tuple | np.ndarray)
        )
    return bool(masked(value))


def _no_number(value: Any) -> bool:
    """Whether a value is no number, though Python would make one of it; older versions of NumPy do of an array."""
    return (
        isinstance(value, NO_NUMBERS)
        or getattr(value, "ndim", 0) != 0
        or is_masked(value)
    )


def _finite(name: str, value: Any, allowed: str) -> float:
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
    """Return a finite float that is positive, or non-negative where ``zero`` is allowed, within the limits."""
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
    """Return an int between ``minimum`` and ``maximum``; a float with no fraction counts as one."""
    allowed = (
        f"an integer >= {minimum}"
        if maximum == INT64_MAX
        else f"an integer in [{minimum}, {maximum}]"
    )
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
        raise argument_error(name, value, f"an integer in [{minimum}, {maximum}]")
    return result


def dimensions(value: Any) -> int:
    """Return how many dimensions an array, nested lists (2 if of unequal lengths), an iterator or a number have."""
    found = getattr(value, "ndim", None)
    if isinstance(found, int):  # classes of NumPy have one that is no number
        return found
    if isinstance(value, list | tuple) and is_masked(value):
        return 1  # of what is below the mask NumPy makes NaN, with a warning
    try:
        return max(np.asarray(value).ndim, int(hasattr(value, "__iter__")))
    except ValueError:
        return 2


def prompt_length(value: Any, name: str = "N") -> float:
    """Return a prompt length or sample size: ``math.inf``, or an integer from 1 to 2**53 (as a float)."""
    return whole_or_infinite(name, value, minimum=1)


def whole_or_infinite(
    name: str, value: Any, *, minimum: int, maximum: int = EXACT
) -> float:
    """Return ``math.inf``, or an integer within the limits and up to 2**53, as a float."""
    if isinstance(value, float | np.floating) and value == math.inf:
        return math.inf
    try:
        return float(integer(name, value, minimum=minimum, maximum=min(maximum, EXACT)))
    except ValueError as error:
        raise ValueError(f"{error}, or math.inf") from None


def prompt_lengths(value: ArrayLike) -> Array:
    """Return prompt lengths of any shape as float64: integers from 1 to 2**53, or infinite."""
    found = plain_numbers("N", value, 1.0)
    given = np.asarray(value)
    # an integer beyond 2**53 is rounded as a float
    exact = given if given.dtype.kind in "iu" else found
    if not (((exact <= EXACT) & (found == np.floor(found))) | np.isinf(found)).all():
        raise argument_error("N", value, f"integers in [1, {EXACT}], or math.inf")
    return found


def choice(name: str, value: Any, allowed: Iterable[str]) -> str:
    """Return ``value`` if it is one of the ``allowed`` words."""
    words = tuple(allowed)
    if not isinstance(value, str) or value not in words:
        raise argument_error(
            name,
            value,
            "one of " + ", ".join(words)
            if words
            else "left out: there is nothing to choose",
        )
    return value


def fraction(name: str, value: Any) -> float:
    """Return a number strictly between 0 and 1."""
    result = _finite(name, value, allowed := "a number strictly between 0 and 1")
    if not 0 < result < 1:
        raise argument_error(name, value, allowed)
    return result


def floats(value: Any) -> Array | None:
    """Return a value as an array of float64, the same one if it is one; None if it holds no real numbers.

    Texts and dates are none. Masked numbers count as none: NumPy would take what is
    below the mask.
    """
    if type(value) is not np.ndarray and is_masked(value):
        return None
    try:
        array = np.asarray(value)
        # NumPy reads numbers from texts, and counts the days of dates
        words = array.dtype.kind in "USmM"
        if array.dtype == object:
            words = any(isinstance(entry, (str, bytes, *TIMES)) for entry in array.flat)
        return (
            None
            if words or np.iscomplexobj(array)
            else np.asarray(array, dtype=np.float64)
        )
    except (TypeError, ValueError, OverflowError):
        return None


def real_array(name: str, value: ArrayLike, ndim: int, most: float = math.inf) -> Array:
    """Return a finite float64 array with ``ndim`` dimensions, as a copy of the caller's data."""
    limit = "" if math.isinf(most) else f" of numbers up to {most:g}"
    found = floats(value)
    if (
        found is None
        or found.ndim != ndim
        or not np.isfinite(found).all()
        or not (np.abs(found) <= most).all()
    ):
        dimension = f"{ndim} dimension{'s' if ndim != 1 else ''}"
        raise argument_error(
            name, value, f"a finite real array{limit} with {dimension}"
        )
    return np.array(found)


def plain_numbers(
    name: str, value: ArrayLike, least: float = 0.0, most: float = math.inf
) -> Array:
    """Return a float64 array of any shape, without NaN, between two limits."""
    limits = (
        ""
        if math.isinf(least) and math.isinf(most)
        else f" between {least:g} and {most:g}"
    )
    found = None if isinstance(value, NO_NUMBERS) else floats(value)
    if found is None or not ((found >= least) & (found <= most)).all():
        raise argument_error(name, value, "numbers" + limits)
    return found


def indexed(values: Array, few: int = 32) -> tuple[Array, NDArray[np.intp]]:
    """Return the values that occur, in order, and the index of each; ``few`` are found faster one by one."""
    distinct = np.unique(values)
    if distinct.size > few:
        return distinct, np.searchsorted(distinct, values)
    index = np.zeros(values.shape, dtype=np.uint8)
    for value in distinct[:-1]:  # several times as fast
        index += values > value
    return distinct, index.astype(np.intp)


def probabilities(name: str, value: ArrayLike, size: int) -> Array:
    """Return positive probabilities of the given length that sum to 1 (to 1e-6, then normalised)."""
    result = real_array(name, value, 1)
    if result.size != size or (result <= 0).any() or abs(result.sum() - 1.0) > 1e-6:
        raise argument_error(
            name,
            value,
            f"{size} positive numbers that sum to 1 (these sum to {result.sum():.9g})",
        )
    return result / result.sum()


def distributions(name: str, value: ArrayLike, slack: float = 1e-6) -> Array:
    """Return probabilities, of which each row sums to 1 (to ``slack``, then normalised)."""
    found = real_array(
        name, value, max(np.asarray(value, dtype=object).ndim, 1), LARGEST
    )
    total = found.sum(axis=-1, keepdims=True)
    wrong = ((found < 0.0) | (np.abs(total - 1.0) > slack)).any(axis=-1)
    if not found.size or wrong.any():
        row = found[wrong][0] if found.size else found
        raise argument_error(
            name,
            row.tolist(),
            f"numbers >= 0 that sum to 1 in each row (these sum to {row.sum():.9g})",
        )
    return np.asarray(found / total)
