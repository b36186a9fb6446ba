"""Declarations of a family: its parameters, their kinds of values, and its slots.

`parameter` declares a field of a family. The kind of the parameter says which values it
may have: it checks them, reads them from the command line, and tells sweeps and tables
whether they are numbers. A slot is an attribute or method that a family may override.
`LazySlot` declares a slot that is loaded when it is needed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from icl_theory import _validate
from icl_theory._names import nearest
from icl_theory._validate import (
    INT64_MAX,
    LARGEST,
    argument_error,
    integer,
    iterable,
    number,
)
from icl_theory.engine.trajectory import Label

# Stands for the unit of the family's loss, which a declaration does not know.
LOSS = "(units of the loss)"
# Takes the place of a default if a parameter has none and must be given.
REQUIRED = dataclasses.MISSING
# Names that no parameter may have: arguments of sweeps, options of commands and names
# of results.
RESERVED = (
    "as_json",
    "certify",
    "config",
    "context",
    "csv",
    "dask",
    "dry_run",
    "executor",
    "family",
    "given",
    "help",
    "json",
    "latex",
    "message",
    "over",
    "parquet",
    "plot",
    "progress",
    "quiet",
    "save",
    "status",
    "store",
    "table",
    "version",
    "workers",
)
# The unit of a Lipschitz constant.
LIPSCHITZ = "label units per feature unit"
# Endings of the files from which arrays are read.
ENDINGS = (".npy", ".npz", ".csv", ".txt")
# The values of the parameter ``loss``, see `loss_form`.
HALF = "half"
MSE = "mse"


# ---- arrays as text on the command line


def is_array_file(value: Any) -> bool:
    """Whether a value is the name of a file that holds an array."""
    return isinstance(value, str) and value.lower().endswith(ENDINGS)


def is_array_text(text: str) -> bool:
    """Whether a text can only be an array: the name of a file, or rows of a matrix.

    Semicolons separate rows. Numbers with only commas between them may also be several
    values for a sweep.
    """
    return is_array_file(text) or ";" in text


def parsed_array(name: str, text: str) -> Any:
    """Read an array that is given as text.

    Parameters
    ----------
    name : str
        The name of the parameter, for error messages.
    text : str
        The name of a file, numbers separated by commas, or rows separated by
        semicolons.

    Returns
    -------
    str, list of float or list of lists of float
        The name of the file, which is read later, when the value is checked; or the
        numbers of a vector, or the rows of a matrix.

    Raises
    ------
    ValueError
        The text is not an array.
    """
    if is_array_file(text):
        return text
    # A semicolon at the end makes a single row a matrix.
    texts_of_rows = text.strip().removesuffix(";").split(";")
    try:
        rows = [list(map(float, row.split(","))) for row in texts_of_rows]
    except ValueError:
        raise argument_error(
            name,
            text,
            f"a file ({', '.join(ENDINGS)}), numbers separated by commas, or rows of"
            " them separated by semicolons",
        ) from None
    return rows if ";" in text else rows[0]


# ---- kinds of values


def _checked_text(name: str, text: Any) -> str:
    """Return ``text`` if it and the ``name`` of its parameter are texts."""
    _validate.text("name", name)
    return _validate.text(name, text)


@dataclass(frozen=True)
class ParameterKind:
    """The values that a parameter may have.

    ``check`` returns a value if it is allowed, and refuses any other with a ValueError.
    `parse` reads a value from text. A kind of your own inherits from this class and
    defines `value`, and also `parse` if its values can be given on the command line.

    Parameters
    ----------
    words : tuple of str
        Words that are allowed in addition to the values that `value` accepts.
    optional : bool
        Whether None is allowed.
    """

    words: tuple[str, ...] = ()
    optional: bool = False

    text = False  # whether values can be given on the command line and in TOML files
    numeric = False  # whether all values that are not words are numbers
    whole = False  # whether all values that are not words are integers
    varied = True  # whether a sweep may vary the parameter, unless declared otherwise

    @property
    def arrays(self) -> bool:
        """Whether a value may be an array, given by itself or by the name of a file."""
        return False

    def is_array(self, value: Any) -> bool:
        """Whether a value is one array and not a list of values for a sweep.

        Such a value has two dimensions or more, or is a text that can only be an array.
        """
        if isinstance(value, str):
            return self.arrays and is_array_text(value)
        return self.arrays and _validate.dimensions(value) > 1

    def check(self, name: str, value: Any) -> Any:
        """Return a value if it is allowed, or refuse it; ``name`` is for errors."""
        if not isinstance(name, str):
            raise argument_error("name", name, "a text")
        if value is None and self.optional:
            return None
        if not isinstance(value, str) or not self.words:
            return self.value(name, value)
        if value in self.words:
            return value
        # The value is another text, perhaps a misspelt word.
        suggestion = nearest(value, self.words)
        if not self.numeric:
            raise argument_error(name, value, f"one of {self.allowed}{suggestion}")
        # `value` refuses a text with an error that says which numbers are allowed.
        try:
            return self.value(name, value)
        except ValueError as error:
            raise ValueError(f"{error}, or {self.allowed}{suggestion}") from None

    def value(self, name: str, value: Any) -> Any:
        """Return a value that is neither None nor one of the words, or refuse it.

        ``check`` calls this method after it has checked the name.
        """
        return value

    def plain(self, value: Any) -> Any:
        """Return an allowed value in the form in which runs are saved.

        The form consists of numbers, texts and nested tuples of these. ``check`` turns
        it into the value again.
        """
        return value

    def check_all(self, name: str, values: Iterable[Any]) -> Any:
        """Return the values if all are allowed, or refuse the first that is not."""
        return [
            self.check(name, value)
            for value in iterable(name, values, "a list of values")
        ]

    def parse(self, name: str, text: str) -> Any:
        """Return the value for which a text of the command line stands.

        The value is not checked: ``check`` may refuse it later.
        """
        return _checked_text(name, text)

    @property
    def allowed(self) -> str:
        """The words, for help texts and error messages."""
        return ", ".join(self.words)


def nested(array: _validate.Array) -> Any:
    """Return an array as nested tuples of numbers, which files of runs can hold."""
    return _tuples(array.tolist())


def _tuples(entries: Any) -> Any:
    """Return nested lists as nested tuples, and a number as it is."""
    if not isinstance(entries, list):
        return entries
    # tuple() alone converts an innermost list, without a call for each number.
    is_innermost = not entries or not isinstance(entries[0], list)
    return tuple(entries) if is_innermost else tuple(map(_tuples, entries))


@dataclass(frozen=True)
class Number(ParameterKind):
    """A positive, finite float between ``minimum`` and ``maximum``.

    Parameters
    ----------
    zero : bool
        Whether the number may also be zero.
    minimum, maximum : float
        The smallest and the largest number.
    signed : bool
        Whether the number may also be zero or negative; ``maximum`` then limits its
        absolute value.
    matrix : bool
        Whether the value may also be a matrix of such numbers, or the name of a file
        that holds one. ``check`` turns it into a tuple of rows.
    """

    zero: bool = False
    minimum: float = 0.0
    maximum: float = math.inf
    signed: bool = False
    matrix: bool = False

    text = True
    numeric = True

    @property
    def arrays(self) -> bool:
        """Whether a value may be a matrix."""
        return self.matrix

    def value(self, name: str, value: Any) -> Any:
        """Return the float or the rows of the matrix, or refuse the value."""
        if self.matrix and is_array_file(value):
            # Imported here because few problems read arrays from files.
            from icl_theory.families.array_files import read_array

            value = read_array(name, value, ndim=(2,))
        if self.matrix and not isinstance(value, str) and _validate.dimensions(value):
            return self._rows(name, value)
        if self.signed:
            return _validate.signed(name, value, maximum=self.maximum)
        return number(
            name, value, zero=self.zero, minimum=self.minimum, maximum=self.maximum
        )

    def _rows(self, name: str, matrix: Any) -> tuple[tuple[float, ...], ...]:
        """Return a matrix as a tuple of rows, or refuse the first wrong entry."""
        rows = _validate.real_array(name, matrix, ndim=2).tolist()
        return tuple(self._row(name, row) for row in rows)

    def _row(self, name: str, row: list[float]) -> tuple[float, ...]:
        """Return a row of a matrix as a tuple, or refuse the first wrong entry."""
        return tuple(self.value(name, entry) for entry in row)

    def check_all(self, name: str, values: Iterable[Any]) -> Any:
        """Return the values if all are allowed, or refuse the first that is not.

        A word is refused in a list, even if it is allowed as the only value. In an
        array of numbers, only the infinities and the smallest and the largest finite
        number are checked. (If the numbers must be integers, each number is checked to
        be one.) So a subclass that refuses a number between two allowed ones must
        override this method.
        """
        if isinstance(values, np.ndarray) and self._has_sound_extremes(name, values):
            has_integer_type = values.dtype.kind in "iu"
            # The result is a copy, which later changes of the argument do not affect.
            if self.whole and has_integer_type:
                # Integers stay integers: a float64 would round integers beyond 2**53.
                return values.copy()
            return values.astype(np.float64)
        value_list = [*iterable(name, values, "a list of values")]
        if self.words and any(isinstance(value, str) for value in value_list):
            raise argument_error(name, values, f"numbers, or {self.allowed} alone")
        # The inherited method checks one value after the other, and its error names the
        # first that is not allowed.
        return super().check_all(name, value_list)

    def _has_sound_extremes(self, name: str, values: np.ndarray[Any, Any]) -> bool:
        """Whether all numbers of an array are allowed, as its extremes show.

        The result is also False for an array that has to be checked number by number,
        such as one of masked numbers or of objects.
        """
        has_real_type = values.dtype.kind in "iuf"
        if not has_real_type or not values.size:
            return False
        if _validate.is_masked(values):
            return False
        if self.whole and not (values == np.floor(values)).all():
            return False
        # Infinity may be allowed although a large finite number is not.
        is_infinite = np.isinf(values)
        finite = values[~is_infinite]
        extremes = np.unique(values[is_infinite]).tolist()
        if finite.size:
            extremes += [finite.min(), finite.max()]
        try:
            for extreme in extremes:
                self.value(name, extreme)
        except ValueError:
            return False
        return True

    def parse(self, name: str, text: str) -> Any:
        """Return the number or the word for which a text stands.

        With ``matrix`` the text may also stand for an array, or name its file.
        """
        text = _checked_text(name, text)
        if text in self.words:
            return text
        if self.is_array(text):
            return parsed_array(name, text)
        try:
            return float(text)
        except ValueError:
            words = f", or {self.allowed}" if self.words else ""
            raise argument_error(name, text, f"a number{words}") from None


@dataclass(frozen=True)
class Fraction(Number):
    """A number between ``minimum`` and ``maximum``, and strictly between 0 and 1."""

    def value(self, name: str, value: Any) -> Any:
        """Return the float, or refuse the value."""
        fraction = _validate.fraction(name, value)
        # `Number` checks the minimum and the maximum.
        return super().value(name, fraction)


@dataclass(frozen=True)
class Whole(Number):
    """An integer between ``minimum`` and ``maximum``.

    With ``infinite`` it may also be ``math.inf``. Its finite values are then at most
    2**53, because they are kept as floats.
    """

    minimum: float = 1
    maximum: float = INT64_MAX
    infinite: bool = False

    whole = True

    def value(self, name: str, value: Any) -> float:
        """Return the number as an int, or as a float if infinity is allowed."""
        check = _validate.whole_or_infinite if self.infinite else integer
        return check(name, value, minimum=int(self.minimum), maximum=int(self.maximum))

    def parse(self, name: str, text: str) -> Any:
        """Return the integer for which a text such as "1e3" stands, or the word."""
        text = _checked_text(name, text)
        if text in self.words:
            return text
        # A float would round large integers, so it is only the second choice.
        with contextlib.suppress(ValueError):
            return int(text)
        try:
            parsed = float(text)
        except ValueError:
            infinity = ", or inf" if self.infinite else ""
            raise argument_error(name, text, f"an integer{infinity}") from None
        # Infinity and fractions stay floats, which ``check`` accepts or refuses.
        return int(parsed) if parsed.is_integer() else parsed


@dataclass(frozen=True)
class Word(ParameterKind):
    """One of the words given as ``words``."""

    text = True

    def value(self, name: str, value: Any) -> Any:
        """Refuse the value: ``check`` has already returned any allowed word."""
        raise argument_error(name, value, f"one of {self.allowed}")


@dataclass(frozen=True)
class Wholes(ParameterKind):
    """A tuple of one or more positive integers up to ``maximum``.

    On the command line the integers are separated by commas, as in ``1,19``.
    """

    maximum: float = INT64_MAX

    text = True
    varied = False

    def value(self, name: str, value: Any) -> tuple[int, ...]:
        """Return the integers as a tuple, even if a single integer is given."""
        try:
            entries = tuple(value)
        except TypeError:
            entries = (value,)
        if not entries:
            raise argument_error(name, value, "one or more integers")
        maximum = int(self.maximum)
        return tuple(
            integer(name, entry, minimum=1, maximum=maximum) for entry in entries
        )

    def parse(self, name: str, text: str) -> Any:
        """Return the integers for which a text such as "1,19" stands."""
        text = _checked_text(name, text)
        return [Whole().parse(name, part) for part in text.split(",")]


@dataclass(frozen=True)
class Probabilities(ParameterKind):
    """A tuple of positive floats that sum to 1.

    On the command line the floats are separated by commas, as in ``0.5,0.3,0.2``. Their
    sum may differ from 1 by up to 1e-6. The floats are kept as given, and the risk of
    the problem normalises them. If they were normalised twice, their last bits might
    change.
    """

    text = True
    varied = False

    def value(self, name: str, value: Any) -> tuple[float, ...]:
        """Return the numbers as floats, or refuse the value."""
        try:
            size = len(value)
        except TypeError:
            raise argument_error(
                name, value, "positive numbers that sum to 1"
            ) from None
        # This call refuses wrong values. Its result is normalised, and is therefore not
        # used.
        _validate.probabilities(name, value, size)
        return tuple(map(float, value))

    def parse(self, name: str, text: str) -> Any:
        """Return the numbers for which a text such as "0.5,0.5" stands, or the word."""
        text = _checked_text(name, text)
        if text in self.words:
            return text
        try:
            return [float(part) for part in text.split(",")]
        except ValueError:
            words = f", or {self.allowed}" if self.words else ""
            raise argument_error(
                name, text, f"numbers separated by commas{words}"
            ) from None


@dataclass(frozen=True)
class Object(ParameterKind):
    """A Python object, or one of the words.

    Parameters
    ----------
    checker : callable
        A function of the name and the value that returns the object or refuses the
        value. By default any object is allowed.
    unfold : callable, optional
        Only for an object that determines other parameters, as the task of recall does.
        The function gets the parameters of a sweep by name. It returns them without the
        object, but with the values that the object determines.
    """

    checker: Callable[[str, Any], Any] = lambda name, value: value
    unfold: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None

    @property
    def text(self) -> bool:  # type: ignore[override]
        """Whether the command line can give the value: it can give words only."""
        return bool(self.words)

    def value(self, name: str, value: Any) -> Any:
        """Return the object that the checker returns, or refuse the value."""
        return self.checker(name, value)


@dataclass(frozen=True)
class _WithArrays(ParameterKind):
    """Adds arrays to the values of another kind, which is the next base class.

    In ``class NumberOrArray(_WithArrays, Number)``, for example, the other kind is
    `Number`, and ``super()`` in the methods of this class means `Number`.

    Parameters
    ----------
    ndim : tuple of int
        The allowed numbers of dimensions; if it is empty, any number from 1 on.
    largest : float
        Largest absolute value of an entry.
    checker : callable, optional
        A function of the name and the array that returns an array or refuses it.
    """

    ndim: tuple[int, ...] = ()
    largest: float = LARGEST
    checker: Callable[[str, _validate.Array], _validate.Array] | None = None

    text = True

    @property
    def arrays(self) -> bool:
        """Whether a value may be an array."""
        return True

    def check(self, name: str, value: Any) -> Any:
        """Return a value if it is allowed, or refuse it; ``name`` is for errors."""
        # The inherited check would refuse the name of a file as a misspelt word.
        if is_array_file(value):
            return self.value(name, value)
        return super().check(name, value)

    def value(self, name: str, value: Any) -> Any:
        """Return an array as nested tuples, or a value of the other kind."""
        argument = value  # the array, or the name of its file
        if is_array_file(value):
            # Imported here because few problems read arrays from files.
            from icl_theory.families.array_files import read_array

            value = read_array(name, value, self.ndim)
            # Refuse an array without dimensions here, because it would pass the checks
            # below if ``ndim`` is empty.
            if value.ndim == 0:
                raise argument_error(
                    name, argument, "a file with an array, not with a single number"
                )
        elif isinstance(value, str) or _validate.dimensions(value) == 0:
            # A word or a number is a value of the other kind.
            return super().value(name, value)
        try:
            return nested(self._array(name, value))
        except ValueError as error:
            if argument is value:  # the array was not read from a file
                raise
            # The error shows the array, but not the file, so add the name of the file.
            raise ValueError(f"{error} (from {argument!r})") from None

    def _array(self, name: str, value: Any) -> _validate.Array:
        """Return the array as floats, or refuse its shape or one of its entries."""
        ndim = _validate.dimensions(value)
        if self.ndim and ndim not in self.ndim:
            allowed = " or ".join(map(str, self.ndim))
            raise argument_error(name, value, f"an array of {allowed} dimensions")
        array = _validate.real_array(name, value, ndim, most=self.largest)
        if not array.size:
            raise argument_error(name, array.shape, "an array with entries")
        return array if self.checker is None else self.checker(name, array)

    def parse(self, name: str, text: str) -> Any:
        """Return the array for which a text stands, or a value of the other kind."""
        text = _checked_text(name, text)
        if self.is_array(text) or "," in text:
            return parsed_array(name, text)
        # `parse` of the other kind reads a single number or a word.
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
        """Return the array as nested tuples, or refuse the value."""
        is_text_or_number = isinstance(value, str) or _validate.dimensions(value) == 0
        if is_text_or_number and not is_array_file(value):
            raise argument_error(name, value, "an array of numbers, or a file of one")
        return super().value(name, value)

    def parse(self, name: str, text: str) -> Any:
        """Return the array or the word for which a text stands."""
        text = _checked_text(name, text)
        if text in self.words:
            return text
        return parsed_array(name, text)


@dataclass(frozen=True)
class NumberOrArray(_WithArrays, Number):
    """A number as in `Number`, or an array of finite numbers of either sign."""


@dataclass(frozen=True)
class WholeOrArray(_WithArrays, Whole):
    """An integer as in `Whole`, or an array of finite numbers of either sign."""


@dataclass(frozen=True)
class WordOrArray(_WithArrays, Word):
    """One of some words, or an array of finite numbers."""


@dataclass(frozen=True)
class LossForm(Word):
    """The word "half" or "mse".

    It says whether the loss is half the mean squared error, or all of it.
    """

    words: tuple[str, ...] = (HALF, MSE)


class Parameter(NamedTuple):
    """A parameter of a family, as `parameter` declares it."""

    name: str
    default: Any  # may be REQUIRED
    kind: ParameterKind
    meaning: str
    symbol: str
    tex: str
    unit: str
    axis: bool  # whether a sweep may vary it

    @property
    def required(self) -> bool:
        """Whether the parameter has no default."""
        return self.default is REQUIRED

    def check(self, value: Any) -> Any:
        """Return a value if it is allowed, or refuse it.

        The error names the parameter.
        """
        return self.kind.check(self.name, value)

    def check_all(self, values: Iterable[Any]) -> Any:
        """Return the values, a list or an array, or refuse the first that is wrong."""
        return self.kind.check_all(self.name, values)

    def label(self, loss_unit: str) -> Label:
        """Return the label of the parameter for tables, plots and reports."""
        if not isinstance(loss_unit, str):
            raise argument_error("loss_unit", loss_unit, "a text")
        unit = loss_unit if self.unit == LOSS else self.unit
        symbol = self.symbol or self.name
        if self.tex:
            tex = self.tex
        elif len(symbol) == 1:
            tex = symbol
        else:
            # The name in upright letters.
            word = self.name.replace("_", r"\_")
            tex = rf"\mathrm{{{word}}}"
        return Label(symbol, tex, unit, self.meaning)


def parameter(
    default: Any = REQUIRED,
    *,
    kind: ParameterKind,
    meaning: str,
    symbol: str = "",
    tex: str = "",
    unit: str = "",
    axis: bool | None = None,
) -> Any:
    """Declare a field of a `Family` as a parameter.

    Parameters
    ----------
    default : object
        The default value; a parameter without a default must be given.
    kind : ParameterKind
        The values that the parameter may have: `Number`, `Whole`, `Fraction`, `Word`,
        `Wholes`, `Probabilities`, `Object`, or one of the kinds with arrays, `Numbers`,
        `NumberOrArray`, `WholeOrArray` and `WordOrArray`.
    meaning : str
        A description in a few words.
    symbol, tex : str
        The symbol as plain text, and as TeX without dollar signs. By default the symbol
        is the name of the parameter, and the TeX is the name in upright letters, or the
        symbol if this is a single letter.
    unit : str
        The unit; ``LOSS`` stands for the unit of the family's loss.
    axis : bool, optional
        Whether a sweep may vary the parameter. By default a sweep may vary numbers and
        words.

    Returns
    -------
    dataclasses.Field
        A field of a dataclass, whose value is given by keyword.

    References
    ----------
    docs/guide/your-own-family.md.
    """
    if axis is None:
        axis = kind.text and kind.varied
    # The family fills in the name, which only it knows.
    declared = Parameter(
        name="",
        default=default,
        kind=kind,
        meaning=meaning,
        symbol=symbol,
        tex=tex,
        unit=unit,
        axis=axis,
    )
    return dataclasses.field(
        default=default, kw_only=True, metadata={"parameter": declared}
    )


def unfolded(
    declared: Mapping[str, Parameter], values: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return a sweep's parameters, with objects replaced by the values they determine.

    See ``unfold`` of `Object`. Other parameters stay as they are.
    """
    for name, declaration in declared.items():
        kind = declaration.kind
        if name in values and isinstance(kind, Object) and kind.unfold is not None:
            values = kind.unfold(values)
    return values


# ---- parameters that several families share


def learning_rate(default: Any = REQUIRED) -> Any:
    """Declare η, the learning rate; the word "auto" is allowed."""
    return parameter(
        default,
        kind=Number(words=("auto",)),
        symbol="η",
        tex=r"\eta",
        meaning="learning rate",
    )


def lipschitz_constant(default: Any = REQUIRED, maximum: float = math.inf) -> Any:
    """Declare L, the Lipschitz constant of the tasks."""
    return parameter(
        default,
        kind=Number(maximum=maximum),
        symbol="L",
        unit=LIPSCHITZ,
        meaning="Lipschitz constant of the tasks",
    )


def feature_gap() -> Any:
    """Declare Δ, the distance between features."""
    return parameter(
        kind=Number(),
        symbol="Δ",
        tex=r"\Delta",
        unit="feature units",
        meaning="feature gap",
    )


def prompt_length() -> Any:
    """Declare N, the prompt length, which may be infinite and is so by default."""
    return parameter(
        math.inf,
        kind=Whole(infinite=True),
        symbol="N",
        tex="N",
        meaning="prompt length, or inf",
    )


def label_noise(default: float = 0.0, maximum: float = LARGEST) -> Any:
    """Declare σ, the standard deviation of the label noise."""
    return parameter(
        default,
        kind=Number(zero=True, maximum=maximum),
        symbol="σ",
        tex=r"\sigma",
        unit="label units",
        meaning="standard deviation of the label noise",
    )


def starting_parameters(ndim: tuple[int, ...] = ()) -> Any:
    """Declare ``start``, an array of the trained parameters at step 0, or None.

    With None, the default, the family chooses the start. An array has one of the
    numbers of dimensions in ``ndim``. If ``ndim`` is empty, it may have any number of
    dimensions from 1 on.
    """
    allowed = tuple(
        integer("ndim", entry, minimum=1)
        for entry in iterable("ndim", ndim, "a tuple of integers")
    )
    return parameter(
        None,
        kind=Numbers(optional=True, ndim=allowed),
        meaning="parameters at step 0, an array",
    )


def loss_form() -> Any:
    """Declare ``loss``: "half", or "mse" for the loss without the factor 1/2."""
    return parameter(
        HALF,
        kind=LossForm(),
        meaning="half the squared error, or all of it",
        axis=False,
    )


def is_mse(values: Mapping[str, Any]) -> bool:
    """Whether the parameters ``values`` ask for the loss without the factor 1/2."""
    return values.get("loss", HALF) == MSE


# ---- slots


class LazySlot:
    """A slot of a family that is loaded from another module when it is first used.

    For example, the theory of a family imports the family, so the module of the family
    cannot import the theory. Moreover, most commands need no theory and start faster
    without it.

    Parameters
    ----------
    place : str
        The place of the object, ``"package.module:NAME"``, as in an entry point.
    """

    def __init__(self, place: str) -> None:
        self.place = place

    def __get__(self, instance: object, owner: type) -> Any:
        """Return the object, for the class as well as for its instances."""
        module, name = self.place.split(":")
        loaded_module = importlib.import_module(module)
        return getattr(loaded_module, name)


class Panel(NamedTuple):
    """The panel of a family in the explorer.

    Attributes
    ----------
    folder : Path
        The folder of the scripts. The script ``panel.js`` exports the panel and may
        require the other scripts.
    scripts : tuple of str
        File names, with their endings.
    constants : callable
        A function without arguments that returns the constants by name, as values that
        JSON can hold. In the scripts, ``require("./constants")`` returns them. By
        default there are none.

    References
    ----------
    docs/explorer.md.
    """

    folder: Path
    scripts: tuple[str, ...] = ("panel.js",)
    constants: Callable[[], Mapping[str, Any]] = dict


class LazyMethod(LazySlot):
    """A method whose function is loaded when the method is first looked up.

    As an attribute of an object it is bound to the object, and as an attribute of a
    class to the class.
    """

    def __get__(self, instance: object, owner: type) -> Any:
        """Return the function with its first argument bound, like a bound method."""
        function = super().__get__(instance, owner)
        # ``instance`` is None if the class itself has been asked for its attribute.
        bound_to = owner if instance is None else instance
        return functools.partial(function, bound_to)
