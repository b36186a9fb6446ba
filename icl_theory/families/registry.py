"""Families by name: from the core, from the papers and from other packages.

`list_families` lists them, and `find` returns one of them. A family that cannot be used
is left out, and `broken` returns a message that says why.
"""

from __future__ import annotations

import operator
import re
import warnings
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from icl_theory._names import nearest
from icl_theory._validate import argument_error
from icl_theory.families.plug_ins import discover, left_out, load

if TYPE_CHECKING:
    from icl_theory.families.family import Family

# The group of entry points by which other packages add families.
GROUP = "icl_theory.families"
# The commands of the command line. The name of a family is also a command, so it must
# not be one of these.
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
    "completion",
)
DEFAULT = "regression"  # the name of the default family
# The families of the core. Papers and other packages add theirs.
CORE = {
    DEFAULT: "icl_theory.regression.family:Regression",
    "grouped-regression": "icl_theory.regression.variants:GroupedRegression",
    "gaussian-regression": "icl_theory.regression.variants:GaussianRegression",
}


def list_families() -> dict[str, type[Family]]:
    """Return all families by name, from the core, from papers and from other packages.

    A package adds a family by an entry point of the group ``icl_theory.families`` whose
    value is the class of the family, or by a `PlugIn`. A family that cannot be imported
    or used is left out with a warning of one line.

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
    for message in broken():
        warnings.warn(message, stacklevel=2)
    return families_known()


def families_known() -> dict[str, type[Family]]:
    """Return the families that can be used, without a warning about broken ones."""
    return _built_in().families | _installed().families


def default() -> type[Family]:
    """Return the default family."""
    return _of_the_core(DEFAULT)


def find(name: str) -> type[Family]:
    """Return the family that has the given name.

    The name may also be the name of a related family, which another family has in its
    slot ``commands``.
    """
    if not isinstance(name, str):
        raise argument_error("family", name, f"one of {', '.join(families_known())}")
    # A family of the core is found without loading all others.
    if name in CORE:
        return _of_the_core(name)
    families = families_known()
    if name in families:
        return families[name]
    related: dict[str, type[Family]] = {}
    commands_by_family, _ = filled_slots("commands")
    for commands in commands_by_family.values():
        # A slot that is no mapping of families is left out: `left_out` catches the
        # error, and appends a message to a list. This list is thrown away, because the
        # command line shows the message when it makes the commands of the family.
        with left_out("the slot commands", []):
            related |= {family.name: family for family in commands.values()}
    if name in related:
        return related[name]
    raise argument_error(
        "family", name, f"one of {', '.join(families)}{nearest(name, families)}"
    )


def broken() -> tuple[str, ...]:
    """Return a message of one line for each family or plug-in that cannot be used."""
    _, messages_of_plug_ins = discover()
    return messages_of_plug_ins + _built_in().messages + _installed().messages


class FilledSlots(NamedTuple):
    """The values of one slot, for all families."""

    values: dict[str, Any]  # by the name of the family
    messages: list[str]  # one for each family whose slot cannot be loaded


def filled_slots(slot: str) -> FilledSlots:
    """Return the value of a slot for each family that fills it.

    A slot that cannot be loaded is left out with a message.
    """
    values: dict[str, Any] = {}
    messages: list[str] = []
    for name, family in families_known().items():
        # `left_out` catches an error of its block, and appends a message.
        with left_out(f"the slot {slot} of the family {name}", messages):
            value = getattr(family, slot)
            if value is not None:
                values[name] = value
    return FilledSlots(values, messages)


def sound(cls: object) -> type[Family]:
    """Return a class if it is a family that can be used, or refuse it.

    A family needs a name, a title, its own `Family.risk`, and declared fields.
    """
    # Imported here so that code which loads no family need not load the module of
    # `Family`. For example, the audit of one row on the default family loads only the
    # claims.
    from icl_theory.families.family import Family

    if not (isinstance(cls, type) and issubclass(cls, Family)):
        raise argument_error("family", cls, "a subclass of icl_theory.Family")
    for attribute in ("name", "title"):
        value = getattr(cls, attribute)
        if not isinstance(value, str) or not value:
            raise argument_error(
                f"{cls.__name__}.{attribute}", value, "a text that is not empty"
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
    # `Family.parameters` refuses a field that is not declared, or whose name is used
    # for something else.
    cls.parameters()
    return cls


@cache
def _of_the_core(name: str) -> type[Family]:
    """Load a family of `CORE`."""
    return sound(load(CORE[name]))


class _Listed(NamedTuple):
    """The families that can be used, and messages about those that cannot."""

    families: dict[str, type[Family]]  # by the name of the family
    messages: tuple[str, ...]  # one for each family that cannot be used


@cache
def _built_in() -> _Listed:
    """List the families of the core and of plug-ins."""
    orders_and_families: list[tuple[float, type[Family]]] = []
    messages: list[str] = []
    taken_names = set(CORE)
    # The first family of the core has the order 0, the second one 1, and so on. The
    # default order of plug-ins is 100.
    for order, name in enumerate(CORE):
        orders_and_families.append((float(order), _of_the_core(name)))
    plug_ins, _ = discover()
    for plug_in in plug_ins:
        for name, place in plug_in.families.items():
            with left_out(f"the family {name} ({place})", messages):
                family = _unless_taken(sound(load(place)), taken_names)
                taken_names.add(family.name)
                orders_and_families.append((plug_in.order, family))
    # Sort by order alone. Families of the same order keep the sequence of their
    # plug-ins.
    orders_and_families.sort(key=operator.itemgetter(0))
    families = {family.name: family for _order, family in orders_and_families}
    return _Listed(families, tuple(messages))


@cache
def _installed() -> _Listed:
    """List the families that other packages name by entry points."""
    # Imported here because this import takes a tenth of the start-up time of a command.
    from importlib.metadata import entry_points

    families: dict[str, type[Family]] = {}
    messages: list[str] = []
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        with left_out(f"the family {point.name} ({point.value})", messages):
            taken_names = {*_built_in().families, *families}
            family = _unless_taken(sound(point.load()), taken_names)
            families[family.name] = family
    return _Listed(families, tuple(messages))


def _unless_taken(family: type[Family], taken_names: set[str]) -> type[Family]:
    """Return a family, or refuse it if its name is one of ``taken_names``."""
    if family.name in taken_names:
        raise argument_error(
            "name",
            family.name,
            "another name: there is already a family with this name",
        )
    return family
