"""What the dataset of a sweep says of its parameters and quantities: symbols, units, roles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from icl_theory._validate import choice, refuse
from icl_theory.results.numbers import number

if TYPE_CHECKING:
    import xarray

# what else than numbers stands in tables, and its TeX
SIGNS = {"✓": r"$\checkmark$", "✗": r"$\times$", "∞": r"$\infty$", "−": "$-$", "±": r"$\pm$"}
ESCAPES = str.maketrans({sign: rf"\{sign}" for sign in "&%$#_{}"} | SIGNS | {"\\": r"\textbackslash{}"})


def symbol(dataset: xarray.Dataset, name: str) -> str:
    """Return the symbol of a parameter or a quantity as text, its name where it has none."""
    return str(dataset[name].attrs.get("symbol") or name)


def tex(dataset: xarray.Dataset, name: str) -> str:
    """Return the symbol in TeX, for LaTeX."""
    given = dataset[name].attrs.get("tex")
    return f"${given}$" if given else escaped(symbol(dataset, name))


def escaped(text: str) -> str:
    """Return any text for LaTeX."""
    return text.translate(ESCAPES)


def with_role(dataset: xarray.Dataset, *roles: str) -> list[str]:
    """Return the names of the quantities that play one of some roles, role by role."""
    names = [str(name) for name in dataset.data_vars]
    return [name for role in roles for name in names if dataset[name].attrs.get("role") == role]


def steps_of(dataset: xarray.Dataset) -> str | None:
    """Return the name of the quantity that counts steps."""
    return next(iter(with_role(dataset, "steps")), None)


def dimensions(dataset: xarray.Dataset) -> list[str]:
    """Return the names of the swept parameters."""
    if not hasattr(dataset, "data_vars") or "status" not in dataset.data_vars:
        raise refuse("dataset", dataset, "the dataset of a sweep")
    return [str(name) for name in dataset.dims]


def dimension(dataset: xarray.Dataset, over: str | None) -> str:
    """Return the swept parameter that was asked for, or the first."""
    names = dimensions(dataset)
    if not names:
        raise refuse("over", over, "a swept parameter; this sweep has a single point")
    return names[0] if over is None else choice("over", over, names)


def lines(dataset: xarray.Dataset, *kept: str) -> Iterator[tuple[dict[str, Any], xarray.Dataset]]:
    """Yield the lines of a sweep along a parameter, or its slices along some, with the values of the others."""
    others = [name for name in dimensions(dataset) if name not in kept]
    for index in np.ndindex(*(dataset.sizes[name] for name in others)):
        line = dataset.isel(dict(zip(others, index, strict=True)))
        yield {name: line[name].item() for name in others}, line


def where(dataset: xarray.Dataset, values: dict[str, Any]) -> str:
    """Return the values of some parameters in words."""
    return ", ".join(f"{symbol(dataset, name)} = {number(value)}" for name, value in values.items())
