"""Calls written as Python code, or None if an argument cannot be written exactly.

The texts need the modules ``math``, ``numpy as np`` and ``icl_theory as icl``.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

PACKAGE = "icl_theory"


def written_sweep(family: Any, given: Mapping[str, Any], named: bool) -> str | None:
    """Return the call of a sweep; if ``named``, it states the name of the family."""
    return _call("icl.sweep", given, family, repr(family.name) if named else "")


def written_problem(problem: Any) -> str | None:
    """Return the call that simulates a problem."""
    family = type(problem)
    arguments = {
        name: value
        for name, value in problem.arguments().items()
        if (name, value) != family.goal
    }
    constructor = _known_as(family) or f"icl.list_families()[{family.name!r}]"
    call = _call(constructor, arguments, family)
    return None if call is None else f"{call}.simulate()"


def _call(
    name: str | None, given: Mapping[str, Any], family: Any = None, first: str = ""
) -> str | None:
    """Return the text of a call, without arguments that are defaults of the family."""
    if name is None:
        return None
    declared = {} if family is None else family.parameters()
    arguments = [first] if first else []
    for key in declared or given:
        if key not in given:
            continue
        # An argument without a default is always written.
        default = declared[key].default if key in declared else ...
        if given[key] is default:
            continue
        text = _written(given[key])
        if text is None:
            return None
        if text != _written(default):
            arguments.append(f"{key}={text}")
    return f"{name}({', '.join(arguments)})"


def _written(value: Any) -> str | None:
    """Return a value as Python code, or None if that would not be exact."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return "math.inf" if value == math.inf else f"float('{value}')"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, type):
        return _known_as(value)
    if dataclasses.is_dataclass(value):
        return _written_dataclass(value)
    if hasattr(value, "__array__") or isinstance(value, list | tuple | range):
        return _numbers(value)
    return None


def _written_dataclass(value: Any) -> str | None:
    """Return the call that makes an object, if it makes the same one again."""
    kind: Any = type(value)
    arguments = {}
    for field in dataclasses.fields(value):
        if field.init:
            arguments[field.name] = getattr(value, field.name)
    again = kind(**arguments)
    for name, argument in arguments.items():
        if not np.array_equal(getattr(again, name), argument):
            return None
    return _call(_known_as(kind), arguments)


def _known_as(value: type) -> str | None:
    """Return the shortest name by which users reach a class of this package."""
    root, *folders = value.__module__.split(".")
    folders = folders[:-1]  # classes are public as attributes of their folders
    if root != PACKAGE:
        return None
    paths = [folders[:depth] for depth in range(len(folders) + 1)]
    if folders[:1] == ["papers"]:  # recall and linear attention also have short names
        paths[1:1] = [path[1:] for path in paths[2:]]
    for path in paths:
        module: Any = sys.modules[PACKAGE]
        for name in path:
            module = getattr(module, name, None)
        if getattr(module, value.__qualname__, None) is value:
            return ".".join(["icl", *path, value.__qualname__])
    return None


def _numbers(value: Any, most: int = 60) -> str | None:
    """Return numbers as a list of up to ``most``, or as a call that spaces them."""
    try:
        array = np.asarray(value)
    except ValueError:  # lists of unequal lengths, which the function itself refuses
        return None
    if array.dtype.kind not in "iuf":
        return None
    if array.ndim == 1 and array.size > 8 and np.isfinite(array).all():
        ends = float(array[0]), float(array[-1])
        for spaced in (np.geomspace, np.linspace):
            if spaced is np.geomspace and min(ends) <= 0:
                continue
            if np.array_equal(spaced(*ends, array.size), array):
                return f"np.{spaced.__name__}({ends[0]!r}, {ends[1]!r}, {array.size})"
    if array.size > most:
        return None
    return str(array.tolist()).replace("inf", "math.inf")
