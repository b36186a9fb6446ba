"""Plug-ins: families, and slots of families, that papers and other packages add.

A slot is an attribute of a family that other code may fill, such as its claims. The
core has no list of plug-ins. A plug-in is a package whose folder has a file
``plug_in.toml``, whose keys are the fields of a `PlugIn`. Such packages are either
inside `icl_theory.papers` or named by an entry point.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import operator
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from icl_theory._validate import argument_error, choice, instance, mapping, signed, text
from icl_theory.engine.interrupts import deferred, is_pressed

if TYPE_CHECKING:
    from icl_theory.engine.trajectory import Trajectory
    from icl_theory.sweeps.grid import Column

PAPERS = "icl_theory.papers"  # the package with the folders of papers
GROUP = "icl_theory.papers"  # the group of entry points by which other packages plug in
FILE = "plug_in.toml"  # the file of a plug-in, in the folder of its package
SLOTS = ("claims", "explorer", "theory_columns")  # the slots that a plug-in may fill
# The slots of a family that several plug-ins may fill. The operator + joins the values
# that they give.
JOINED = ("claims", "theory_columns")


@dataclass(frozen=True)
class PlugIn:
    """The families and slots that a package adds to the core.

    The package is a folder of ``icl_theory.papers``, or another package with an entry
    point of the group ``icl_theory.papers``, whose value is the name of this package.
    The parameters are the keys of the file ``plug_in.toml`` in the folder of the
    package.

    Families and values of slots are given by their places in the format of an entry
    point, ``"package.module:NAME"``, so that reading a plug-in loads none of them.

    Parameters
    ----------
    families : mapping of str to str, optional
        Places of the families (subclasses of `icl_theory.Family`) by name.
    slots : mapping of str to mapping, optional
        For the name of each family that is defined elsewhere, a mapping of its slots.
        The keys are names of slots, ``claims``, ``explorer`` or ``theory_columns``, and
        the values are the places of the objects that fill them. Claims of several
        plug-ins on one family are joined, and so are theory columns.
    figures : Path, optional
        Folder of scripts, one for each figure. ``plug_in.toml`` gives it relative to
        its own folder.
    order : float
        Position in lists of families and papers: the lowest order comes first. Plug-ins
        of the same order are sorted by name.

    Raises
    ------
    ValueError
        A place is not of the form ``"package.module:NAME"``, a slot is unknown, the
        order is not a finite number, or families or slots are not given by name.

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
    # The default comes after the families of the core, which have the orders 0, 1, ...,
    # and leaves room for plug-ins before and after it.
    order: float = 100.0

    def __post_init__(self) -> None:
        # All places, by the name that the error about a wrong place shows. `mapping`
        # returns its second argument, or refuses it unless it is a mapping with texts
        # as keys.
        places = dict(mapping("families", self.families, "places"))
        slots_by_family = mapping("slots", self.slots, "slots of families")
        for family, slots in slots_by_family.items():
            for slot, place in mapping(family, slots, "places of slots").items():
                if slot not in SLOTS:
                    raise argument_error("slot", slot, f"one of {', '.join(SLOTS)}")
                places[f"{family}.{slot}"] = place
        for name, place in places.items():
            if not isinstance(place, str) or place.count(":") != 1:
                raise argument_error(name, place, 'a place like "package.module:NAME"')
        signed("order", self.order)


@dataclass(frozen=True)
class TheoryColumns:
    """Predictions of a theory at each point of a sweep, next to the measured columns.

    Parameters
    ----------
    columns : tuple of Column
        The columns.
    measure : callable
        A function of a run that returns the values of the columns by name. A column
        that is left out has no value, which tables show as NaN, -1 or the empty text.
    batch : callable, optional
        A function of the arrays of runs that a family computed together. It returns
        arrays of the columns by name. Each family defines which arrays it passes.
        Without this function, the points of a sweep are simulated one by one.
    """

    columns: tuple[Column, ...]
    measure: Callable[[Trajectory], Mapping[str, Any]]
    batch: Callable[[Any], Mapping[str, Any]] | None = None

    def __add__(self, other: TheoryColumns) -> TheoryColumns:
        """Join the columns of two plug-ins on one family.

        The result has a ``batch`` only if both have one.
        """

        def measure(run: Trajectory) -> dict[str, Any]:
            return {**self.measure(run), **other.measure(run)}

        own_batch = self.batch
        other_batch = other.batch
        if own_batch is None or other_batch is None:
            return TheoryColumns(self.columns + other.columns, measure)

        def batch(runs: Any) -> dict[str, Any]:
            return {**own_batch(runs), **other_batch(runs)}

        return TheoryColumns(self.columns + other.columns, measure, batch)


def load(place: str) -> Any:
    """Return the object at a place, ``"package.module:NAME"``."""
    module, name = place.split(":")
    # Ctrl-C is put off, because a compiled module cannot be imported again after Ctrl-C
    # has interrupted its import.
    with deferred():
        loaded = importlib.import_module(module)
    return getattr(loaded, name)


@contextlib.contextmanager
def left_out(part: str, messages: list[str]) -> Iterator[None]:
    """Catch an error in code of another package, append a message, and go on.

    The statements after ``with left_out(...)`` run whether or not there was an error.
    Only Ctrl-C is passed on.

    Parameters
    ----------
    part : str
        Words for the part that is left out if there is an error.
    messages : list of str
        The list to which the message of one line is appended.
    """
    # Catch `BaseException`, because some errors of asyncio and pytest do not derive
    # from `Exception`.
    try:
        yield
    except BaseException as error:
        if is_pressed(error):
            # `is_pressed` also recognises the ImportError into which a compiled module
            # turns Ctrl-C while it is loaded. Callers expect a KeyboardInterrupt in
            # both cases.
            raise KeyboardInterrupt from error
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        messages.append(f"{part} is left out: {reason}")


class Discovered(NamedTuple):
    """The plug-ins that Python finds."""

    plug_ins: tuple[PlugIn, ...]  # sorted by order, and then by name
    messages: tuple[str, ...]  # one for each plug-in that cannot be used


@cache
def discover() -> Discovered:
    """Read the files of all plug-ins, without importing the plug-ins."""
    by_order_and_name: dict[tuple[float, str], PlugIn] = {}
    messages: list[str] = []
    for name, package in _packages().items():
        with left_out(f"the plug-in {name} ({package})", messages):
            plug_in = read(folder_of(package))
            by_order_and_name[plug_in.order, name] = plug_in
    plug_ins = [by_order_and_name[key] for key in sorted(by_order_and_name)]
    return Discovered(tuple(plug_ins), tuple(messages))


def _packages() -> dict[str, str]:
    """Return the packages of plug-ins by name: first the papers, then all others."""
    packages: dict[str, str] = {}
    for paper in sorted(_folders_of_papers()):
        packages[paper] = f"{PAPERS}.{paper}"
    # Imported here because this import takes a tenth of the start-up time of a command.
    from importlib.metadata import entry_points

    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        packages[point.name] = point.value
    return packages


def _folders_of_papers() -> set[str]:
    """Return the names of the folders of `icl_theory.papers` that may be plug-ins.

    These folders have an ``__init__.py`` or a ``plug_in.toml``. The set is empty if the
    core is installed without the papers.
    """
    try:
        papers = importlib.import_module(PAPERS)
    except ModuleNotFoundError:
        return set()
    folders = set()
    for path in papers.__path__:
        # A folder with only one of the two files is refused later, with a message.
        for name in ("__init__.py", FILE):
            for file in Path(path).glob(f"*/{name}"):
                folders.add(file.parent.name)
    return folders


def folder_of(package: str) -> Path:
    """Return the folder of a package without importing the package.

    If the package is inside another one, the outer one is imported.
    """
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise ModuleNotFoundError(f"there is no package {package}")
    # A folder without __init__.py has no origin.
    if spec.origin is None:
        raise ModuleNotFoundError("its folder has no __init__.py")
    return Path(spec.origin).parent


def read(folder: Path) -> PlugIn:
    """Return the plug-in that the file ``plug_in.toml`` of a folder describes.

    Raises
    ------
    FileNotFoundError
        The folder has no such file.
    ValueError
        The file is not in the format TOML, or has a key or a value that is not allowed.
    """
    path = folder / FILE
    if not path.is_file():
        raise FileNotFoundError(f"its folder has no {FILE}")
    values = tomllib.loads(path.read_text(encoding="utf-8"))
    for key in values:
        choice("key", key, [field.name for field in fields(PlugIn)])
    if "figures" in values:
        # The file gives the folder of figures relative to its own.
        figures = folder / text("figures", values["figures"])
        if not figures.is_dir():
            raise argument_error("figures", values["figures"], "a folder")
        values["figures"] = figures
    return PlugIn(**values)


class Contributed:
    """A slot of a family that plug-ins fill.

    Its value comes from the plug-ins that fill the slot for the family. If no plug-in
    does, the value comes from the plug-ins that fill it for the nearest family from
    which this one inherits. If there are none either, the value is ``default``.
    """

    def __init__(self, slot: str, default: Any = None) -> None:
        self.slot = slot
        self.default = default

    def __get__(self, instance: object, owner: type) -> Any:
        for cls in owner.__mro__:
            # Look only at a name that the class itself defines. The loop comes to an
            # inherited name later, at the class that defines it.
            name = vars(cls).get("name")
            if not name:
                continue
            value = contributed(name, self.slot)
            if value is not None:
                return value
        return self.default


def contributed(family: str, slot: str) -> Any:
    """Return the value that plug-ins together give to a slot of a family, or None."""
    values = contributions(family, slot)
    if not values:
        return None
    if slot not in JOINED and len(values) > 1:
        raise argument_error(
            slot,
            f"given to {family} by {len(values)} plug-ins",
            "given by one plug-in: only claims and columns are joined",
        )
    # reduce() returns a single value as it is, so it also serves slots that are not
    # joined.
    return functools.reduce(operator.add, values)


def contributions(family: str, slot: str) -> tuple[Any, ...]:
    """Return the values that plug-ins give to a slot of a family.

    Theory columns that cannot be loaded are left out with a warning, because a sweep
    can be computed without them.
    """
    values: list[Any] = []
    plug_ins, _ = discover()
    for plug_in in plug_ins:
        slots = plug_in.slots.get(family, {})
        if slot not in slots:
            continue
        place = slots[slot]
        if slot != "theory_columns":
            values.append(load(place))
            continue
        columns, messages = _theory_columns(place)
        if columns is not None:
            values.append(columns)
        for message in messages:
            warnings.warn(message, stacklevel=2)
    return tuple(values)


class _LoadedColumns(NamedTuple):
    """The result of loading theory columns."""

    columns: TheoryColumns | None  # None if the columns cannot be loaded
    messages: tuple[str, ...]  # one, if the columns cannot be loaded


@cache
def _theory_columns(place: str) -> _LoadedColumns:
    """Load the theory columns at a place."""
    columns: TheoryColumns | None = None
    messages: list[str] = []
    with left_out(f"the theory columns at {place}", messages):
        columns = instance(place, load(place), TheoryColumns, "TheoryColumns")
    return _LoadedColumns(columns, tuple(messages))
