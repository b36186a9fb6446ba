"""Plug-ins: families, and slots of families, that papers and other packages add.

Nothing in the core lists them. Each folder of `icl_theory.papers` has a module
``plug_in`` with a `PlugIn`, and an installed package names its own by an entry point.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import operator
import pkgutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from icl_theory._validate import argument_error, instance, mapping
from icl_theory.engine.interrupts import deferred, is_pressed
from icl_theory.engine.trajectory import Trajectory
from icl_theory.sweeps.grid import Column

PAPERS = "icl_theory.papers"
GROUP = "icl_theory.papers"
SLOTS = ("claims", "explorer", "theory_columns")
JOINED = ("claims", "theory_columns")  # slots that several plug-ins may fill


@dataclass(frozen=True)
class PlugIn:
    """The families and slots that a folder of papers, or another package, adds.

    Every value is a place, ``"package.module:NAME"`` as an entry point is written, so
    that reading a plug-in loads nothing else.

    Parameters
    ----------
    families : mapping of str to str, optional
        Places of the families (subclasses of `icl_theory.Family`) by name.
    slots : mapping of str to mapping, optional
        For families that are defined elsewhere, by name: places of the values of their
        slots ``claims``, ``explorer`` and ``theory_columns``. Claims of several
        plug-ins on one family are joined.
    figures : Path, optional
        Folder of scripts, one for each figure.
    order : float
        Position in lists of families and papers; plug-ins of the same order are sorted
        by name.

    Raises
    ------
    ValueError
        A place that is not written as above, or an unknown slot.

    References
    ----------
    docs/contributing.md.

    Examples
    --------
    >>> from icl_theory.families.plug_ins import PlugIn
    >>> PlugIn(slots={"regression": {"claims": "my_package.claims:CLAIMS"}}).order
    100.0
    """

    families: Mapping[str, str] = field(default_factory=dict)
    slots: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    figures: Path | None = None
    order: float = 100.0

    def __post_init__(self) -> None:
        places = dict(mapping("families", self.families, "places by name"))
        for family, slots in mapping("slots", self.slots, "slots by family").items():
            for slot, place in mapping(family, slots, "places by slot").items():
                if slot not in SLOTS:
                    raise argument_error("slot", slot, f"one of {', '.join(SLOTS)}")
                places[f"{family}.{slot}"] = place
        for name, place in places.items():
            if not isinstance(place, str) or place.count(":") != 1:
                raise argument_error(name, place, 'a place like "package.module:NAME"')


@dataclass(frozen=True)
class TheoryColumns:
    """Predictions of a theory at each point of a sweep, next to the measured columns.

    Parameters
    ----------
    columns : tuple of Column
        The columns.
    measure : callable
        Takes a run and returns the values of the columns by name. A column that is
        left out has no value: NaN, -1 or the empty text.
    batch : callable, optional
        Takes the arrays of runs that a family computed together, and returns arrays of
        the columns by name. Each family defines which arrays it passes. Without it, the
        points of a sweep are simulated one by one.
    """

    columns: tuple[Column, ...]
    measure: Callable[[Trajectory], Mapping[str, Any]]
    batch: Callable[[Any], Mapping[str, Any]] | None = None

    def __add__(self, other: TheoryColumns) -> TheoryColumns:
        """Join the columns of two plug-ins on one family."""

        def measure(run: Trajectory) -> dict[str, Any]:
            return {**self.measure(run), **other.measure(run)}

        first, second = self.batch, other.batch
        if first is None or second is None:
            return TheoryColumns(self.columns + other.columns, measure)

        def batch(runs: Any) -> dict[str, Any]:
            return {**first(runs), **second(runs)}

        return TheoryColumns(self.columns + other.columns, measure, batch)


def load(place: str) -> Any:
    """Return the object at a place, ``"package.module:NAME"``."""
    module, name = place.split(":")
    with deferred():
        loaded = importlib.import_module(module)
    return getattr(loaded, name)


@contextlib.contextmanager
def left_out(what: str, lines: list[str]) -> Iterator[None]:
    """Turn an error in code of another package into a line, and go on.

    Only Ctrl-C is passed on. Other errors need not be an `Exception`: some errors of
    asyncio and pytest are not.

    Parameters
    ----------
    what : str
        The thing that is left out.
    lines : list of str
        The list to which the line is appended.
    """
    try:
        yield
    except BaseException as error:
        if is_pressed(error):
            raise KeyboardInterrupt from error
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        lines.append(f"{what} is left out: {reason}")


@cache
def discover() -> tuple[tuple[PlugIn, ...], tuple[str, ...]]:
    """Return the plug-ins by order and name, and a message for each broken one."""
    ordered: list[tuple[float, str, PlugIn]] = []
    lines = _folders_left_out()
    for name, place in _places().items():
        with left_out(f"the plug-in {name} ({place})", lines):
            plug_in = instance(name, load(place), PlugIn, "a PlugIn")
            ordered.append((plug_in.order, name, plug_in))
    ordered.sort(key=operator.itemgetter(0, 1))
    return tuple(plug_in for _, _, plug_in in ordered), tuple(lines)


def _places() -> dict[str, str]:
    """Return the places of plug-ins by name: folders of this package, then others."""
    places: dict[str, str] = {}
    folders = [item.name for item in pkgutil.iter_modules(_folders_of_papers())]
    for folder in sorted(folders):
        places[folder] = f"{PAPERS}.{folder}.plug_in:PLUG_IN"
    # This import takes a tenth of the start of a command.
    from importlib.metadata import entry_points

    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        places[point.name] = point.value
    return places


def _folders_left_out() -> list[str]:
    """Return a line for each folder with a plug-in that Python sees as no package."""
    return [
        f"the plug-in {path.parent.name} is left out: its folder has no __init__.py"
        for folder in _folders_of_papers()
        for path in sorted(Path(folder).glob("*/plug_in.py"))
        if not path.with_name("__init__.py").exists()
    ]


def _folders_of_papers() -> list[str]:
    """Return the places of `icl_theory.papers`.

    The core can be installed without the papers, and then there are none.
    """
    try:
        papers = importlib.import_module(PAPERS)
    except ModuleNotFoundError:
        return []
    return [*papers.__path__]


class Contributed:
    """A slot of a family that plug-ins fill.

    A plug-in names the family, or a family from which it inherits.
    """

    def __init__(self, slot: str, default: Any = None) -> None:
        self.slot = slot
        self.default = default

    def __get__(self, instance: object, owner: type) -> Any:
        for cls in owner.__mro__:
            name = vars(cls).get("name")
            values = contributions(name, self.slot) if name else ()
            if self.slot not in JOINED and len(values) > 1:
                raise argument_error(
                    self.slot,
                    f"given to {name} by {len(values)} plug-ins",
                    "given by one plug-in: only claims and columns are joined",
                )
            if values:
                return functools.reduce(operator.add, values)
        return self.default


def contributions(family: str, slot: str) -> tuple[Any, ...]:
    """Return the values that plug-ins give to a slot of a family.

    Theory columns that cannot be loaded are left out with a warning, because a sweep
    can be computed without them.
    """
    values = []
    for plug_in in discover()[0]:
        slots = plug_in.slots.get(family, {})
        if slot not in slots:
            continue
        if slot != "theory_columns":
            values.append(load(slots[slot]))
            continue
        columns, lines = _theory_columns(slots[slot])
        values.extend(columns)
        for line in lines:
            warnings.warn(line, stacklevel=2)
    return tuple(values)


@cache
def _theory_columns(place: str) -> tuple[tuple[TheoryColumns, ...], tuple[str, ...]]:
    """Return the columns at a place, or none and a line that says why."""
    columns = []
    lines: list[str] = []
    with left_out(f"the theory columns at {place}", lines):
        columns.append(instance(place, load(place), TheoryColumns, "TheoryColumns"))
    return tuple(columns), tuple(lines)
