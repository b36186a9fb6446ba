"""What a parameter may be: numbers, integers, words, sequences and objects, with checks and their spelling as text.

A kind checks a value (`check`) and reads one from the command line (`parse`). Every refusal is a ValueError that
names the parameter, its value and what is allowed.
"""

from __future__ import annotations

import contextlib
import difflib
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from icl_theory._validate import (
    INT64_MAX,
    fraction,
    integer,
    is_masked,
    number,
    probabilities,
    refuse,
    signed,
    whole_or_infinite,
)

INFINITE = ("inf", "infinity")


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``" (did you mean ...?)"`` where a known word is like the one given, else nothing.

    Examples
    --------
    >>> from icl_theory.families.kinds import nearest
    >>> nearest("linaer", ["linear", "cosine"]), nearest("q", ["linear"])
    (' (did you mean linear?)', '')
    """
    names = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), names, n=1)
    return f" (did you mean {names[found[0]]}?)" if found else ""


@dataclass(frozen=True)
class Kind:
    """Any value that ``checker`` takes; only Python can give it unless a subclass reads text.

    Parameters
    ----------
    words : tuple of str
        Words that are allowed besides.
    optional : bool
        Whether None is allowed.
    """

    words: tuple[str, ...] = ()
    optional: bool = False

    text = False  # whether the command line and TOML can give it
    numeric = False  # whether its values are numbers, apart from words
    whole = False  # whether these are integers

    def check(self, name: str, value: Any) -> Any:
        """Return a sound value, or refuse it."""
        if value is None and self.optional:
            return None
        if not isinstance(value, str) or not self.words:
            return self.value(name, value)
        if value in self.words:
            return value
        if not self.numeric:
            raise refuse(name, value, f"one of {self.allowed}{nearest(value, self.words)}")
        try:
            return self.value(name, value)
        except ValueError as error:
            raise ValueError(f"{error}, or {self.allowed}{nearest(value, self.words)}") from None

    def value(self, name: str, value: Any) -> Any:
        """Check what is neither None nor one of the words."""
        return value

    def check_all(self, name: str, values: Iterable[Any]) -> Any:
        """Return sound values, or refuse the first that is not."""
        return [self.check(name, value) for value in values]

    def parse(self, name: str, text: str) -> Any:
        """Read a value from the command line; `check` comes after."""
        return text

    @property
    def allowed(self) -> str:
        """The words, for help texts."""
        return ", ".join(self.words)


@dataclass(frozen=True)
class Number(Kind):
    """A finite float, positive unless ``zero`` or ``signed``, between ``minimum`` and ``maximum``.

    A ``signed`` one is at most ``maximum`` in size.
    """

    zero: bool = False
    minimum: float = 0.0
    maximum: float = math.inf
    signed: bool = False

    text = True
    numeric = True

    def value(self, name: str, value: Any) -> float:
        """Return the float."""
        if self.signed:
            return signed(name, value, maximum=self.maximum)
        return number(name, value, zero=self.zero, minimum=self.minimum, maximum=self.maximum)

    def check_all(self, name: str, values: Iterable[Any]) -> Any:
        """Return sound values; of an array only the least and the largest are checked: all between them are sound.

        A subclass that refuses numbers in between, other than fractions, needs a method of its own.
        """
        if isinstance(values, np.ndarray) and values.size and values.dtype.kind in "iuf":
            alike = not is_masked(values) and (not self.whole or bool((values == np.floor(values)).all()))
            with contextlib.suppress(ValueError):
                if alike and all(math.isfinite(self.value(name, end)) for end in (values.min(), values.max())):
                    return values.astype(np.float64)
        listed = [*values]
        if self.words and any(isinstance(value, str) for value in listed):
            raise refuse(name, values, f"numbers, or {self.allowed} by itself")
        return super().check_all(name, listed)  # which names the value

    def parse(self, name: str, text: str) -> Any:
        """Read a number or one of the words."""
        if text in self.words:
            return text
        try:
            return float(text)
        except ValueError:
            raise refuse(name, text, "a number" + (f", or {self.allowed}" if self.words else "")) from None


@dataclass(frozen=True)
class Fraction(Number):
    """A number strictly between 0 and 1."""

    def value(self, name: str, value: Any) -> float:
        """Return the float."""
        return fraction(name, value)


@dataclass(frozen=True)
class Whole(Number):
    """An integer between ``minimum`` and ``maximum``; ``math.inf`` or one up to 2**53 where ``infinite``."""

    minimum: float = 1
    maximum: float = INT64_MAX
    infinite: bool = False

    whole = True

    def value(self, name: str, value: Any) -> float:
        """Return an int; a float where infinity is allowed."""
        check = whole_or_infinite if self.infinite else integer
        return check(name, value, minimum=int(self.minimum), maximum=int(self.maximum))

    def parse(self, name: str, text: str) -> Any:
        """Read an integer, also as 1e6."""
        if text in self.words:
            return text
        try:
            return int(text)
        except ValueError:
            pass
        try:
            found = float(text)
        except ValueError:
            raise refuse(name, text, "an integer" + (", or inf" if self.infinite else "")) from None
        return int(found) if found.is_integer() else found


@dataclass(frozen=True)
class Word(Kind):
    """One of some words."""

    text = True

    def value(self, name: str, value: Any) -> Any:
        """Refuse what is no text."""
        raise refuse(name, value, f"one of {self.allowed}")


@dataclass(frozen=True)
class Wholes(Kind):
    """One or more positive integers up to ``maximum``, as a tuple; ``1,19`` as text."""

    maximum: float = INT64_MAX

    text = True

    def value(self, name: str, value: Any) -> tuple[int, ...]:
        """Return the integers."""
        try:
            found = tuple(value)
        except TypeError:
            found = (value,)
        if not found:
            raise refuse(name, value, "one or more integers")
        return tuple(integer(name, each, minimum=1, maximum=int(self.maximum)) for each in found)

    def parse(self, name: str, text: str) -> Any:
        """Read integers separated by commas."""
        return [Whole().parse(name, part) for part in text.split(",")]


@dataclass(frozen=True)
class Probabilities(Kind):
    """Positive numbers that sum to 1, as a tuple of floats; ``0.5,0.3,0.2`` as text."""

    text = True

    def value(self, name: str, value: Any) -> tuple[float, ...]:
        """Return the numbers."""
        try:
            size = len(value)
        except TypeError:
            raise refuse(name, value, "positive numbers that sum to 1") from None
        return tuple(probabilities(name, value, size).tolist())

    def parse(self, name: str, text: str) -> Any:
        """Read numbers separated by commas."""
        try:
            return [float(part) for part in text.split(",")]
        except ValueError:
            raise refuse(name, text, "numbers separated by commas") from None


@dataclass(frozen=True)
class Object(Kind):
    """An object that ``checker`` makes or refuses, given by Python alone, or one of the words."""

    checker: Callable[[str, Any], Any] = lambda name, value: value

    @property
    def text(self) -> bool:  # type: ignore[override]
        """Whether there are words for some of them."""
        return bool(self.words)

    def value(self, name: str, value: Any) -> Any:
        """Return what the checker does."""
        return self.checker(name, value)
