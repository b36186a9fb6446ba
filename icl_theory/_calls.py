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


def written_call(name: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> str | None:
    """Return the text of a call, with those arguments that are not the defaults; results need no callback."""
    parameters = _parameters(function)
    defaults = {key: each.default for key, each in parameters.items() if key != "callback"}
    more = next((key for key, each in parameters.items() if each.kind is each.VAR_KEYWORD), None)
    given = {key: arguments[key] for key in defaults if key != more}
    return _call(name, given | (arguments[more] if more else {}), defaults)


_parameters = functools.cache(lambda function: inspect.signature(function).parameters)


def written_sweep(family: Any, given: Mapping[str, Any], named: bool) -> str | None:
    """Return the call of a sweep, of a family by its name."""
    return _of_family("icl.sweep", family, given, repr(family.name) if named else "")


def written_problem(problem: Any) -> str | None:
    """Return the call that simulates a problem."""
    family = type(problem)
    name = _known_as(family) or f"icl.list_families()[{family.name!r}]"
    made = _of_family(name, family, problem.arguments())
    return made and f"{made}.simulate()"


def _of_family(name: str, family: Any, given: Mapping[str, Any], first: str = "") -> str | None:
    defaults = {key: each.default for key, each in family.parameters().items()}
    return _call(name, {key: given[key] for key in defaults if key in given}, defaults, first)


def _call(name: str | None, given: Mapping[str, Any], defaults: Mapping[str, Any], first: str = "") -> str | None:
    """Return the text of a call; a class that is known by no name has none."""
    words = [first] if first else []
    for key, value in given.items():
        if key not in defaults or value is not defaults[key]:
            text = _written(value)
            if text is None:
                return None
            if key not in defaults or type(value) is not type(defaults[key]) or text != _written(defaults[key]):
                words.append(f"{key}={text}")
    return name and f"{name}({', '.join(words)})"


def _written(value: Any) -> str | None:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')" if value != math.inf else "math.inf"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, type):
        return _known_as(value)
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        kind: Any = type(value)
        again = kind(**fields)
        exact = all(np.array_equal(getattr(again, key), field) for key, field in fields.items())
        return _call(_known_as(kind), fields, {}) if exact else None
    return _numbers(value) if hasattr(value, "__array__") or isinstance(value, list | tuple | range) else None


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
