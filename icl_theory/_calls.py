"""Calls written down as the Python that makes them again, where their arguments can be written."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

MOST_NUMBERS = 60  # of a sequence that is written out
SPACINGS: dict[str, Callable[..., Any]] = {"geomspace": np.geomspace, "linspace": np.linspace}
FAMILIES = "icl_theory.families."  # whose folders are attributes of the package: icl.regression
# what results do not depend on
LEFT_OUT = ("callback", "executor", "workers", "store", "progress")


class _NotPlainError(Exception):
    """An argument of which only its maker knows how it was made."""


def written_call(name: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> str | None:
    """Return the text of a call, with those arguments that are not the defaults.

    None where an argument is an object that cannot be written exactly. The text needs the modules ``math``,
    ``numpy as np`` and ``icl_theory as icl``.

    Examples
    --------
    >>> import numpy as np
    >>> from icl_theory._calls import written_call
    >>> def f(x, y=2.0, **others): ...
    >>> written_call("f", f, {"x": np.geomspace(1.0, 100.0, 30), "y": 2.0, "others": {"z": "a"}})
    "f(x=np.geomspace(1.0, 100.0, 30), z='a')"
    >>> written_call("f", f, {"x": object(), "others": {}}) is None
    True
    """
    words = []
    try:
        for key, parameter in _parameters(function).items():
            if parameter.kind is parameter.VAR_KEYWORD:
                words += [f"{other}={_written(value)}" for other, value in arguments[key].items()]
            elif key not in LEFT_OUT and not _is_default(arguments[key], parameter.default):
                words.append(f"{key}={_written(arguments[key])}")
    except _NotPlainError:
        return None
    return f"{name}({', '.join(words)})"


@functools.cache
def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


def written_sweep(family: Any, given: Mapping[str, Any], named: bool) -> str | None:
    """Return the call of a sweep, of a family by its name; None where a parameter cannot be written exactly."""
    try:
        words = [f"{name}={_written(value)}" for name, value in _changed(family, given)]
    except _NotPlainError:
        return None
    return f"icl.sweep({', '.join([repr(family.name), *words] if named else words)})"


def written_problem(problem: Any) -> str | None:
    """Return the call that simulates a problem; None where a parameter cannot be written exactly."""
    family = type(problem)
    try:
        words = [f"{name}={_written(value)}" for name, value in _changed(family, problem.arguments())]
        with contextlib.suppress(_NotPlainError):
            return f"{_written_class(family)}({', '.join(words)}).simulate()"
    except _NotPlainError:
        return None
    return f"icl.list_families()[{family.name!r}]({', '.join(words)}).simulate()"


def _changed(family: Any, given: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Parameters that are not the defaults."""
    return [
        (name, given[name])
        for name, declared in family.parameters().items()
        if name in given and not _is_default(given[name], declared.default)
    ]


def _is_default(value: Any, default: Any) -> bool:
    plain = isinstance(value, bool | int | float | str) and type(value) is type(default)
    return value is default or (plain and bool(value == default))


def _written(value: Any) -> str:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else f"math.{value}"
    if value is None or isinstance(value, bool | int | str):
        return repr(value)
    if isinstance(value, type):
        return _written_class(value)
    if dataclasses.is_dataclass(value):
        return _written_object(value)
    if hasattr(value, "__array__") or isinstance(value, list | tuple | range):
        return _written_numbers(value)
    raise _NotPlainError


def _written_class(value: type) -> str:
    """Return the name by which a class of a family is known to users."""
    parts = value.__module__.removeprefix(FAMILIES).split(".")
    while parts and value.__module__.startswith(FAMILIES):
        parts.pop()
        if parts and getattr(sys.modules[FAMILIES + ".".join(parts)], value.__qualname__, None) is value:
            return ".".join(["icl", *parts, value.__qualname__])
    raise _NotPlainError


def _written_object(value: Any) -> str:
    """Return the call of a class, if that makes the same object."""
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
    again = type(value)(**fields)
    if not all(np.array_equal(getattr(again, name), field) for name, field in fields.items()):
        raise _NotPlainError
    words = ", ".join(f"{name}={_written(field)}" for name, field in fields.items())
    return f"{_written(type(value))}({words})"


def _written_numbers(value: Any) -> str:
    try:
        array = np.asarray(value)
    except ValueError:  # lists of unequal lengths, which the function itself refuses
        raise _NotPlainError from None
    if array.dtype.kind not in "iuf":
        raise _NotPlainError
    if array.ndim == 1 and array.size > 8 and np.isfinite(array).all():
        for name, spaced in SPACINGS.items():
            first, last = float(array[0]), float(array[-1])
            if name == "geomspace" and not (first > 0 and last > 0):
                continue
            with np.errstate(all="ignore"):
                same = np.array_equal(spaced(first, last, array.size), array)
            if same:
                return f"np.{name}({first!r}, {last!r}, {array.size})"
    if array.size > MOST_NUMBERS:
        raise _NotPlainError
    return str(array.tolist()).replace("inf", "math.inf")
