"""Families: what can be studied, found by name; other packages add theirs by installing them."""

from __future__ import annotations

import contextlib
import importlib
import re
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

import lazy_loader

from icl_theory._validate import refuse
from icl_theory.engine.interrupts import deferred, is_pressed, loads
from icl_theory.families.family import Family
from icl_theory.families.parameters import (
    LOSS,
    Fraction,
    Kind,
    Later,
    Number,
    Object,
    Panel,
    Parameter,
    Probabilities,
    Whole,
    Wholes,
    Word,
    nearest,
    parameter,
)
from icl_theory.families.rule_parameters import RuleParameters, update_rule
from icl_theory.grids.grid import Column

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
# by name, so that each is loaded when it is first used; the first is the default
BUILT_IN = {
    "regression": "icl_theory.families.regression.family:Regression",
    "recall": "icl_theory.families.recall.family:Recall",
    "grouped-regression": "icl_theory.families.regression.variants:GroupedRegression",
    "gaussian-regression": "icl_theory.families.regression.variants:GaussianRegression",
    "linear-attention": "icl_theory.families.linear_attention.family:LinearAttention",
    "sphere": "icl_theory.families.sphere:Sphere",
    "softmax-heads": "icl_theory.families.softmax_heads:SoftmaxHeads",
    "fixed-chain": "icl_theory.families.fixed_chain:FixedChain",
    "single-location": "icl_theory.families.single_location:SingleLocation",
    "token-selection": "icl_theory.families.token_selection:TokenSelection",
    "induction-heads": "icl_theory.families.induction_heads:InductionHeads",
    "representation": "icl_theory.families.representation:Representation",
}

# and so are their folders
__getattr__, _, _ = lazy_loader.attach(
    __name__, sorted({place.split(".")[2] for place in BUILT_IN.values()})
)
__getattr__ = loads(__getattr__)

__all__ = [
    "LOSS",
    "Column",
    "Family",
    "Fraction",
    "Kind",
    "Later",
    "Number",
    "Object",
    "Panel",
    "Parameter",
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
    """Return every family by name: those of this package, then those of other installed packages.

    A package adds a family by an entry point of the group ``icl_theory.families`` whose
    value is the class. A class that cannot be imported, or is not sound, is left out
    with a warning of one line.

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
    return {name: _built_in(name) for name in BUILT_IN} | _installed()[0]


def default() -> type[Family]:
    """Return the default family."""
    return _built_in(next(iter(BUILT_IN)))


def find(name: str) -> type[Family]:
    """Return the family with a name, or the problem of a family that has its own command."""
    if not isinstance(name, str):
        raise refuse("family", name, f"one of {', '.join(families_known())}")
    if name in BUILT_IN:
        return _built_in(name)
    known = families_known()
    others: dict[str, type[Family]] = {}
    for commands in asked("commands")[0].values():
        with left_out("the slot commands", []):
            others |= {each.name: each for each in commands.values()}
    if name in others:
        return others[name]
    if name not in known:
        raise refuse("family", name, f"one of {', '.join(known)}{nearest(name, known)}")
    return known[name]


def broken() -> tuple[str, ...]:
    """Return a line for each installed family that cannot be used."""
    return _installed()[1]


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


@contextlib.contextmanager
def left_out(what: str, lines: list[str]) -> Iterator[None]:
    """Turn what goes wrong with something that another package brings into a line; all else goes on.

    Only Ctrl-C is passed on. Errors of other kinds need not be an `Exception`: those of
    asyncio and pytest are not.
    """
    try:
        yield
    except BaseException as error:
        if is_pressed(error):
            raise KeyboardInterrupt from error
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        lines.append(f"{what} is left out: {reason}")


def sound(cls: object) -> type[Family]:
    """Return a class if it is a family that can be used: a name, a title, `Family.risk` and declared fields."""
    if not (isinstance(cls, type) and issubclass(cls, Family)):
        raise refuse("family", cls, "a subclass of icl_theory.Family")
    for attribute in ("name", "title"):
        if not (isinstance(getattr(cls, attribute), str) and getattr(cls, attribute)):
            raise refuse(
                f"{cls.__name__}.{attribute}",
                getattr(cls, attribute),
                "a text that is not empty",
            )
    if not re.fullmatch(r"[a-z][a-z0-9-]*", cls.name) or cls.name in COMMANDS:
        raise refuse(
            f"{cls.__name__}.name",
            cls.name,
            "small letters, digits and dashes, and none of " + ", ".join(COMMANDS),
        )
    if cls.risk is Family.risk:
        raise refuse(
            f"{cls.__name__}.risk", None, "a method that returns the risk to be trained"
        )
    cls.parameters()
    return cls


@cache
def _built_in(name: str) -> type[Family]:
    module, attribute = BUILT_IN[name].split(":")
    with deferred():
        loaded = importlib.import_module(module)
    return sound(getattr(loaded, attribute))


@cache
def _installed() -> tuple[dict[str, type[Family]], tuple[str, ...]]:
    """Return the families of other packages by name, and a line for each that cannot be used."""
    from importlib.metadata import (
        entry_points,
    )  # takes a tenth of the start of a command

    known: dict[str, type[Family]] = {}
    lines: list[str] = []
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        with left_out(f"the family {point.name} ({point.value})", lines):
            cls = sound(point.load())
            if cls.name in BUILT_IN or cls.name in known:
                raise refuse(
                    "name",
                    cls.name,
                    "another name: a family of this name is known already",
                )
            known[cls.name] = cls
    return known, tuple(lines)
