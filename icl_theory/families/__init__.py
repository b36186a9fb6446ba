"""Families: what can be studied, found by name; other packages add theirs by installing them."""

from __future__ import annotations

import re
import warnings
from functools import cache
from typing import Any

from icl_theory._validate import argument_error
from icl_theory.families.family import Family
from icl_theory.families.parameters import (
    LOSS,
    Fraction,
    LazySlot,
    Number,
    Object,
    Panel,
    Parameter,
    ParameterKind,
    Probabilities,
    Whole,
    Wholes,
    Word,
    nearest,
    parameter,
)
from icl_theory.families.plug_ins import PlugIn, left_out, load, plug_ins
from icl_theory.families.rule_parameters import RuleParameters, update_rule
from icl_theory.sweeps.grid import Column

GROUP = "icl_theory.families"
COMMANDS = (
    "simulate",
    "sweep",
    "compare",
    "table",
    "report",
    "audit",
    "figures",
    "explore",
    "reproduce",
)
# The families of the core; the first is the default. Papers and other packages add theirs.
CORE = {
    "regression": "icl_theory.regression.family:Regression",
    "grouped-regression": "icl_theory.regression.variants:GroupedRegression",
    "gaussian-regression": "icl_theory.regression.variants:GaussianRegression",
}

__all__ = [
    "LOSS",
    "Column",
    "Family",
    "Fraction",
    "LazySlot",
    "Number",
    "Object",
    "Panel",
    "Parameter",
    "ParameterKind",
    "PlugIn",
    "Probabilities",
    "RuleParameters",
    "Whole",
    "Wholes",
    "Word",
    "list_families",
    "parameter",
    "update_rule",
]


def __dir__() -> list[str]:
    return sorted(__all__)


def list_families() -> dict[str, type[Family]]:
    """Return every family by name: those of the core, of the papers, of other packages.

    A package adds a family by an entry point of the group ``icl_theory.families`` whose
    value is the class, or by a `PlugIn`. A class that cannot be imported, or is not
    sound, is left out with a warning of one line.

    Returns
    -------
    dict of str to type
        Subclasses of `Family`.

    Examples
    --------
    >>> import icl_theory as icl
    >>> list(icl.list_families())[:2]
    ['regression', 'recall']
    """
    for line in broken():
        warnings.warn(line, stacklevel=2)
    return families_known()


def families_known() -> dict[str, type[Family]]:
    """Return the families that can be used, without warnings about others; see `broken`."""
    return _own()[0] | _installed()[0]


def default() -> type[Family]:
    """Return the default family."""
    return _of_the_core(next(iter(CORE)))


def find(name: str) -> type[Family]:
    """Return the family with a name, or the problem of a family that has its own command."""
    if not isinstance(name, str):
        raise argument_error("family", name, f"one of {', '.join(families_known())}")
    if name in CORE:  # which needs no other family to be looked at
        return _of_the_core(name)
    known = families_known()
    if name in known:
        return known[name]
    problems: dict[str, type[Family]] = {}
    for commands in asked("commands")[0].values():
        with left_out("the slot commands", []):
            problems |= {problem.name: problem for problem in commands.values()}
    if name in problems:
        return problems[name]
    raise argument_error(
        "family", name, f"one of {', '.join(known)}{nearest(name, known)}"
    )


def broken() -> tuple[str, ...]:
    """Return a line for each family or plug-in that cannot be used."""
    return plug_ins()[1] + _own()[1] + _installed()[1]


def asked(slot: str) -> tuple[dict[str, Any], list[str]]:
    """Return what the families have in a slot, by their names, and a line for each in which it cannot be loaded."""
    found: dict[str, Any] = {}
    lines: list[str] = []
    for name, family in families_known().items():
        with left_out(f"the slot {slot} of the family {name}", lines):
            value = getattr(family, slot)
            if value is not None:
                found[name] = value
    return found, lines


def sound(cls: object) -> type[Family]:
    """Return a class if it is a family that can be used: a name, a title, `Family.risk` and declared fields."""
    if not (isinstance(cls, type) and issubclass(cls, Family)):
        raise argument_error("family", cls, "a subclass of icl_theory.Family")
    for attribute in ("name", "title"):
        if not (isinstance(getattr(cls, attribute), str) and getattr(cls, attribute)):
            raise argument_error(
                f"{cls.__name__}.{attribute}",
                getattr(cls, attribute),
                "a text that is not empty",
            )
    if not re.fullmatch(r"[a-z][a-z0-9-]*", cls.name) or cls.name in COMMANDS:
        raise argument_error(
            f"{cls.__name__}.name",
            cls.name,
            "small letters, digits and dashes, and none of " + ", ".join(COMMANDS),
        )
    if cls.risk is Family.risk:
        raise argument_error(
            f"{cls.__name__}.risk", None, "a method that returns the risk to be trained"
        )
    cls.parameters()
    return cls


@cache
def _of_the_core(name: str) -> type[Family]:
    return sound(load(CORE[name]))


@cache
def _own() -> tuple[dict[str, type[Family]], tuple[str, ...]]:
    """Return the families of the core and of plug-ins, and a line for each that cannot be used."""
    ordered: list[tuple[float, type[Family]]] = []
    lines: list[str] = []
    names = set(CORE)
    for order, name in enumerate(CORE):
        ordered.append((float(order), _of_the_core(name)))
    for plug_in in plug_ins()[0]:
        for name, place in plug_in.families.items():
            with left_out(f"the family {name} ({place})", lines):
                family = _new(sound(load(place)), names)
                names.add(family.name)
                ordered.append((plug_in.order, family))
    ordered.sort(key=lambda entry: entry[0])  # equal ones stay as they were found
    return {family.name: family for _, family in ordered}, tuple(lines)


@cache
def _installed() -> tuple[dict[str, type[Family]], tuple[str, ...]]:
    """Return the families of other packages, and a line for each that cannot be used."""
    # takes a tenth of the start of a command
    from importlib.metadata import entry_points

    known: dict[str, type[Family]] = {}
    lines: list[str] = []
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        with left_out(f"the family {point.name} ({point.value})", lines):
            family = _new(sound(point.load()), {*_own()[0], *known})
            known[family.name] = family
    return known, tuple(lines)


def _new(family: type[Family], taken: set[str]) -> type[Family]:
    if family.name in taken:
        raise argument_error(
            "name", family.name, "another name: a family of this name is known already"
        )
    return family
