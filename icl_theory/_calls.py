"""Calls written down as the Python that makes them again; None where an argument cannot be written exactly.

The texts need the modules ``math``, ``numpy as np`` and ``icl_theory as icl``.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

FAMILIES = "icl_theory.families."  # whose folders are attributes of the package: icl.regression
LEFT_OUT = ("callback", "executor", "workers", "store", "progress")  # what results do not depend on


class _NotPlainError(Exception):
    """An argument of which only its maker knows how it was made."""


def written_call(name: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> str | None:
    """Return the text of a call, with those arguments that are not the defaults."""
    given: dict[str, Any] = {}
    for key, parameter in _parameters(function).items():
        if parameter.kind is parameter.VAR_KEYWORD:
            given |= arguments[key]
        elif key not in LEFT_OUT and not _is_default(arguments[key], parameter.default):
            given[key] = arguments[key]
    return _call(name, given)


@functools.cache
def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


def written_sweep(family: Any, given: Mapping[str, Any], named: bool) -> str | None:
    """Return the call of a sweep, of a family by its name."""
    return _call("icl.sweep", _changed(family, given), repr(family.name) if named else "")


def written_problem(problem: Any) -> str | None:
    """Return the call that simulates a problem."""
    family = type(problem)
    name = _known_as(family) or f"icl.list_families()[{family.name!r}]"
    made = _call(name, _changed(family, problem.arguments()))
    return made and f"{made}.simulate()"


def _call(name: str | None, given: Mapping[str, Any], first: str = "") -> str | None:
    """Return the text of a call; a class that is known by no name has none."""
    try:
        words = [f"{key}={_written(value)}" for key, value in given.items()]
    except _NotPlainError:
        return None
    return name and f"{name}({', '.join([first, *words] if first else words)})"


def _changed(family: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    known = family.parameters().items()
    return {key: given[key] for key, each in known if key in given and not _is_default(given[key], each.default)}


def _is_default(value: Any, default: Any) -> bool:
    plain = isinstance(value, bool | int | float | str) and type(value) is type(default)
    return value is default or (plain and bool(value == default))


def _written(value: Any) -> str:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')" if value != math.inf else "math.inf"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    text = None
    if isinstance(value, type):
        text = _known_as(value)
    elif dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        kind: Any = type(value)
        again = kind(**fields)
        if all(np.array_equal(getattr(again, key), field) for key, field in fields.items()):
            text = _call(_known_as(kind), fields)
    elif hasattr(value, "__array__") or isinstance(value, list | tuple | range):
        text = _numbers(value)
    if text is None:
        raise _NotPlainError
    return text


def _known_as(value: type) -> str | None:
    """Return the name by which a class of a family is known to users."""
    parts = value.__module__.removeprefix(FAMILIES).split(".") if value.__module__.startswith(FAMILIES) else []
    for length in reversed(range(1, len(parts))):
        if getattr(sys.modules[FAMILIES + ".".join(parts[:length])], value.__qualname__, None) is value:
            return ".".join(["icl", *parts[:length], value.__qualname__])
    return None


def _numbers(value: Any, most: int = 60) -> str | None:
    """Return numbers as a list of up to ``most``, or as what spaces more than a few of them."""
    try:
        array = np.asarray(value)
    except ValueError:  # lists of unequal lengths, which the function itself refuses
        return None
    if array.dtype.kind not in "iuf":
        return None
    if array.ndim == 1 and array.size > 8 and np.isfinite(array).all():
        ends = float(array[0]), float(array[-1])
        for spaced in (np.geomspace, np.linspace):
            if (spaced is np.linspace or min(ends) > 0) and np.array_equal(spaced(*ends, array.size), array):
                return f"np.{spaced.__name__}({ends[0]!r}, {ends[1]!r}, {array.size})"
    return str(array.tolist()).replace("inf", "math.inf") if array.size <= most else None
