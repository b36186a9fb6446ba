"""Python code of the calls that compute a sweep or simulate a problem.

A user who runs the code gets the same numbers again. The functions of this module
return None if an argument cannot be written exactly. The code needs the imports
``math``, ``numpy as np`` and ``icl_theory as icl``.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

PACKAGE = "icl_theory"
# A longer array is written only if `np.geomspace` or `np.linspace` gives exactly its
# numbers. The limit only keeps the code readable.
MOST_NUMBERS = 60
# An array of up to this many numbers is written as a list even if its numbers are
# spaced evenly, because the list is easy to read.
SHORT_LIST = 8


def written_sweep(family: Any, given: Mapping[str, Any], named: bool) -> str | None:
    """Return the call of a sweep of a family with the arguments ``given``.

    If ``named``, the first argument of the call is the name of the family. The default
    family needs no name.
    """
    first = repr(family.name) if named else ""
    return _call("icl.sweep", given, family, first)


def written_problem(problem: Any) -> str | None:
    """Return the call that simulates a problem."""
    family = type(problem)
    arguments = problem.arguments()
    # The goal of a family, ("epsilon", value) or ("above", value), is the target that a
    # problem has unless another is given. So the call need not state it.
    if family.goal is not None:
        target, value = family.goal
        if target in arguments and arguments[target] == value:
            del arguments[target]
    # A family without a public name, for example of another package, is found by name.
    constructor = _public_name(family) or f"icl.list_families()[{family.name!r}]"
    call = _call(constructor, arguments, family)
    return None if call is None else f"{call}.simulate()"


def _call(
    name: str | None, given: Mapping[str, Any], family: Any = None, first: str = ""
) -> str | None:
    """Return the text of a call, without arguments that are defaults of the family.

    Parameters
    ----------
    name : str, optional
        The called function or class. If it has no name, the result is None.
    given : dict
        The keyword arguments.
    family : type, optional
        The family that declares the arguments. They are written in the order in which
        it declares them.
    first : str
        The text of a positional argument before the keyword arguments, if any.
    """
    if name is None:
        return None
    # The parameters of the family by name, in the order of their declaration.
    declared = {} if family is None else family.parameters()
    arguments = [first] if first else []
    # Without a family the arguments keep their order.
    for key in declared or given:
        if key not in given:
            continue
        # `...` equals no argument, so an argument without a default is always written.
        default = declared[key].default if key in declared else ...
        # Most arguments that equal their default are the same object as the default.
        # They are recognised without being written.
        if given[key] is default:
            continue
        text = _written(given[key])
        if text is None:
            return None
        # An argument that equals its default may be another object, for example a copy
        # of an array. The texts of the two are then equal.
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
        return _public_name(value)
    if dataclasses.is_dataclass(value):
        return _written_dataclass(value)
    if hasattr(value, "__array__") or isinstance(value, list | tuple | range):
        return _numbers(value)
    return None


def _written_dataclass(value: Any) -> str | None:
    """Return the call that makes a dataclass object.

    The result is None if the call would make an object with other values, for example
    because its class normalises the arguments.
    """
    cls: Any = type(value)
    arguments = {}
    for field in dataclasses.fields(value):
        # The class computes the fields that are not arguments.
        if field.init:
            arguments[field.name] = getattr(value, field.name)
    rebuilt = cls(**arguments)
    for name, argument in arguments.items():
        if not np.array_equal(getattr(rebuilt, name), argument):
            return None
    return _call(_public_name(cls), arguments)


def _public_name(value: type) -> str | None:
    """Return the shortest name by which users reach a class of this package.

    The result is None for a class of another package, and for one that is not public.
    """
    root, *inner = value.__module__.split(".")
    if root != PACKAGE:
        return None
    # The last name is the name of the file. Classes are public as attributes of the
    # folders above the file, so try these folders, the outermost first.
    folders = inner[:-1]
    paths = [folders[:depth] for depth in range(len(folders) + 1)]
    if folders[:1] == ["papers"]:
        # icl.recall and icl.linear_attention are short names of folders in icl.papers.
        # Try names without "papers" first; most of them do not exist.
        package, papers, *within_papers = paths
        short_paths = [path[1:] for path in within_papers]
        paths = [package, *short_paths, papers, *within_papers]
    for path in paths:
        module: Any = sys.modules[PACKAGE]
        for name in path:
            module = getattr(module, name, None)
        if getattr(module, value.__qualname__, None) is value:
            return ".".join(["icl", *path, value.__qualname__])
    return None


def _numbers(value: Any) -> str | None:
    """Return numbers as a list, or as a call of NumPy that gives exactly these numbers.

    The result is None for more than MOST_NUMBERS numbers that no such call gives, and
    for entries that are not real numbers.
    """
    try:
        array = np.asarray(value)
    except ValueError:  # NumPy makes no array of lists of unequal lengths
        return None
    is_real = array.dtype.kind in "iuf"  # signed or unsigned integers, or floats
    if not is_real:
        return None
    if array.ndim == 1 and array.size > SHORT_LIST and np.isfinite(array).all():
        first = float(array[0])
        last = float(array[-1])
        for spaced in (np.geomspace, np.linspace):
            # geomspace needs two ends of one sign, other than 0. Two negative ends are
            # rare, and not tried.
            if spaced is np.geomspace and min(first, last) <= 0:
                continue
            if np.array_equal(spaced(first, last, array.size), array):
                return f"np.{spaced.__name__}({first!r}, {last!r}, {array.size})"
    if array.size > MOST_NUMBERS:
        return None
    # Python writes infinity as "inf", which is not code.
    return str(array.tolist()).replace("inf", "math.inf")
