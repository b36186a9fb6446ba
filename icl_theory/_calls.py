"""Calls written down as the Python that makes them again; None where an argument cannot be written exactly.

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
    """Return the call of a sweep, of a family by its name."""
    return _call("icl.sweep", given, family, repr(family.name) if named else "")


def written_problem(problem: Any) -> str | None:
    """Return the call that simulates a problem."""
    family = type(problem)
    given = problem.arguments()
    made = _call(
        _known_as(family) or f"icl.list_families()[{family.name!r}]",
        {name: value for name, value in given.items() if (name, value) != family.goal},
        family,
    )
    return made and f"{made}.simulate()"


def _call(
    name: str | None, given: Mapping[str, Any], family: Any = None, first: str = ""
) -> str | None:
    """Return the text of a call without what are defaults of the family; what has no name has no call."""
    declared = {} if family is None else family.parameters()
    words = [first] if first else []
    for key in declared or given:
        default = declared[key].default if key in declared else ...
        if key in given and given[key] is not default:
            text = _written(given[key])
            if text is None:
                return None
            words += [f"{key}={text}"] if text != _written(default) else []
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
        fields = {
            field.name: getattr(value, field.name)
            for field in dataclasses.fields(value)
            if field.init
        }
        kind: Any = type(value)
        again = kind(**fields)
        exact = all(
            np.array_equal(getattr(again, key), field) for key, field in fields.items()
        )
        return _call(_known_as(kind), fields) if exact else None
    return (
        _numbers(value)
        if hasattr(value, "__array__") or isinstance(value, list | tuple | range)
        else None
    )


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
            if (spaced is np.linspace or min(ends) > 0) and np.array_equal(
                spaced(*ends, array.size), array
            ):
                return f"np.{spaced.__name__}({ends[0]!r}, {ends[1]!r}, {array.size})"
    return (
        str(array.tolist()).replace("inf", "math.inf") if array.size <= most else None
    )
