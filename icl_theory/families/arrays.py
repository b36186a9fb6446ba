"""Kinds of parameters whose values may be arrays.

An array is given in Python, or as the name of a file (`icl_theory.families.array_files`
). A problem keeps it as nested tuples of numbers, which saved runs and stores can hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from icl_theory._validate import LARGEST, Array, argument_error, dimensions, real_array
from icl_theory._validate import text as checked_text
from icl_theory.families.array_files import (
    ENDINGS,
    is_array_file,
    parsed_array,
    read_array,
)
from icl_theory.families.parameters import (
    Number,
    ParameterKind,
    Whole,
    Word,
    nested,
    parameter,
)


@dataclass(frozen=True)
class _WithArrays(ParameterKind):
    """Adds arrays to the values of another kind, from which a class inherits, too.

    Parameters
    ----------
    ndim : tuple of int
        The allowed numbers of dimensions; all from 1 on if it is empty.
    largest : float
        Largest size of an entry.
    checker : callable, optional
        Takes the name and the array, and returns an array or refuses it.
    """

    ndim: tuple[int, ...] = ()
    largest: float = LARGEST
    checker: Callable[[str, Array], Array] | None = None

    text = True

    @property
    def arrays(self) -> bool:
        """Whether a value may be an array."""
        return True

    def check(self, name: str, value: Any) -> Any:
        """Return an allowed value, or refuse it with an error that names it."""
        # A file is no misspelt word.
        if is_array_file(value):
            return self.value(name, value)
        return super().check(name, value)

    def value(self, name: str, value: Any) -> Any:
        """Return an array as nested tuples, and any other value as the other kind."""
        shown = value
        if is_array_file(value):
            value = read_array(name, value, self.ndim)
            # An array of a file has dimensions, but the checks below name the file.
            if value.ndim == 0:
                raise argument_error(name, shown, "a file of an array, not of a number")
        elif isinstance(value, str) or dimensions(value) == 0:
            return super().value(name, value)
        try:
            return nested(self._array(name, value))
        except ValueError as error:
            if shown is value:
                raise
            raise ValueError(f"{error} (from {shown!r})") from None

    def _array(self, name: str, value: Any) -> Array:
        ndim = dimensions(value)
        if self.ndim and ndim not in self.ndim:
            allowed = " or ".join(map(str, self.ndim))
            raise argument_error(name, value, f"an array of {allowed} dimensions")
        array = real_array(name, value, ndim, self.largest)
        if not array.size:
            raise argument_error(name, array.shape, "an array with entries")
        return array if self.checker is None else self.checker(name, array)

    def parse(self, name: str, text: str) -> Any:
        """Read the text of an array, or of another value."""
        text = checked_text(checked_text("name", name), text)
        if self.is_array(text) or "," in text:
            return parsed_array(name, text)
        try:
            return super().parse(name, text)
        except ValueError as error:
            endings = ", ".join(ENDINGS)
            raise ValueError(f"{error}, or a file of an array ({endings})") from None


@dataclass(frozen=True)
class Numbers(_WithArrays):
    """An array of finite numbers."""

    varied = False

    def value(self, name: str, value: Any) -> Any:
        """Return the array as nested tuples."""
        if not is_array_file(value) and (
            isinstance(value, str) or dimensions(value) == 0
        ):
            raise argument_error(name, value, "an array of numbers, or a file of one")
        return super().value(name, value)

    def parse(self, name: str, text: str) -> Any:
        """Read the text of an array."""
        text = checked_text(checked_text("name", name), text)
        return text if text in self.words else parsed_array(name, text)


@dataclass(frozen=True)
class NumberOrArray(_WithArrays, Number):
    """A number, or an array of finite numbers of either sign."""


@dataclass(frozen=True)
class WholeOrArray(_WithArrays, Whole):
    """An integer, or an array of finite numbers of either sign."""


@dataclass(frozen=True)
class WordOrArray(_WithArrays, Word):
    """One of some words, or an array of finite numbers."""


def starting_parameters(ndim: tuple[int, ...] = ()) -> Any:
    """Declare ``start``, the parameters at step 0 as an array."""
    return parameter(
        None,
        kind=Numbers(optional=True, ndim=ndim),
        meaning="parameters at step 0, an array",
    )
