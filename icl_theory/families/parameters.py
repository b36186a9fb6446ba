"""How a family declares its parameters and its slots."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Iterable
from typing import Any, NamedTuple

from icl_theory.engine.trajectory import Label
from icl_theory.families.kinds import Kind

LOSS = "(units of the loss)"  # stands for the family's own
REQUIRED = dataclasses.MISSING
RESERVED = (  # arguments of sweeps, options of commands, names in results
    "as_json", "config", "context", "csv", "dask", "dry_run", "executor", "family", "given", "help", "json",
    "latex", "message", "over", "parquet", "plot", "progress", "quiet", "save", "status", "store", "table",
    "version", "workers",
)  # fmt: skip


class Parameter(NamedTuple):
    """A parameter of a family: its name, default (``REQUIRED`` if there is none), kind, meaning, symbol and unit.

    ``axis`` says whether a sweep may vary it.
    """

    name: str
    default: Any
    kind: Kind
    meaning: str
    symbol: str
    tex: str
    unit: str
    axis: bool

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is REQUIRED

    def check(self, value: Any) -> Any:
        """Return a sound value, or refuse it by name."""
        return self.kind.check(self.name, value)

    def check_all(self, values: Iterable[Any]) -> Any:
        """Return sound values, a list or an array, or refuse one by name."""
        return self.kind.check_all(self.name, values)

    def label(self, loss_unit: str) -> Label:
        """Return what tables, plots and reports call it."""
        unit = loss_unit if self.unit == LOSS else self.unit
        return Label(self.symbol or self.name, self.tex or rf"\mathrm{{{self.name}}}", unit, self.meaning)


def parameter(
    default: Any = REQUIRED,
    *,
    kind: Kind,
    meaning: str,
    symbol: str = "",
    tex: str = "",
    unit: str = "",
    axis: bool | None = None,
) -> Any:
    """Declare a field of a `Family` as a parameter.

    Parameters
    ----------
    default : object
        Its value unless given; a parameter without one has to be given.
    kind : Kind
        What it may be: `Number`, `Whole`, `Fraction`, `Word`, `Probabilities` or `Object`.
    meaning : str
        What it is, in a few words.
    symbol, tex : str
        Its symbol as plain text and as TeX without dollars; its name unless given.
    unit : str
        Its unit; ``LOSS`` stands for the unit of the family's loss.
    axis : bool, optional
        Whether a sweep may vary it. Numbers and words may unless said otherwise.

    Returns
    -------
    dataclasses.Field
        The field, which takes its value by keyword.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import numpy as np, icl_theory as icl
    >>> from icl_theory.families import Family, Number, parameter
    >>> @dataclass(frozen=True, eq=False)
    ... class Bowl(Family):
    ...     name, title = "bowl", "a parabola"
    ...     width: float = parameter(1.0, kind=Number(), symbol="w", meaning="width of the parabola")
    ...     def risk(self):
    ...         width = self.width
    ...         class Parabola(icl.Risk):
    ...             initial = np.array([2.0])
    ...             def evaluate(self, params, step=0):
    ...                 return 0.5 * float(params @ params) / width**2, params / width**2
    ...         return Parabola()
    >>> Bowl(width=2.0, eta=1.0, epsilon=1e-3).simulate().steps
    11
    """
    declared = Parameter("", default, kind, meaning, symbol, tex, unit, kind.text if axis is None else axis)
    return dataclasses.field(default=default, kw_only=True, metadata={"parameter": declared})


class Later:
    """A slot of a family whose value is a name in a module that is loaded when the slot is first used.

    What the theory says of a family stands on its runs, and so comes after the family; and a command that asks for
    none of it need not load it.

    Parameters
    ----------
    place : str
        ``"package.module:NAME"``, as an entry point is written.

    Examples
    --------
    >>> from icl_theory.families.parameters import Later
    >>> class Circle:
    ...     pi = Later("math:pi")
    >>> Circle.pi
    3.141592653589793
    """

    def __init__(self, place: str) -> None:
        self.place = place

    def __get__(self, instance: object, owner: type) -> Any:
        module, name = self.place.split(":")
        return getattr(importlib.import_module(module), name)


class LaterMethod(Later):
    """A method whose function is loaded when it is first called: of an object, or of a class that calls it."""

    def __get__(self, instance: object, owner: type) -> Any:
        return functools.partial(super().__get__(instance, owner), owner if instance is None else instance)
