"""What the dataset of a sweep says about its parameters and quantities: symbols, units, roles."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from icl_theory._validate import argument_error, choice

if TYPE_CHECKING:
    import xarray


def symbol(dataset: xarray.Dataset, name: str) -> str:
    """Return the symbol of a parameter or a quantity as text, or its name if it has none."""
    return str(dataset[name].attrs.get("symbol") or name)


def with_role(dataset: xarray.Dataset, *roles: str, **attributes: Any) -> list[str]:
    """Return the names of the quantities with one of these roles, role by role, and with these other attributes."""
    every = [
        dataset.filter_by_attrs(role=role, **attributes).data_vars for role in roles
    ]
    return [str(name) for names in every for name in names]


def steps_of(dataset: xarray.Dataset) -> str | None:
    """Return the name of the quantity that counts steps."""
    return next(iter(with_role(dataset, "steps")), None)


def dimensions(dataset: xarray.Dataset) -> list[str]:
    """Return the names of the swept parameters."""
    if not hasattr(dataset, "data_vars") or "status" not in dataset.data_vars:
        raise argument_error("dataset", dataset, "the dataset of a sweep")
    return [str(name) for name in dataset.dims]


def dimension(dataset: xarray.Dataset, over: str | None) -> str:
    """Return the swept parameter called ``over``, or the first one."""
    names = dimensions(dataset)
    if not names:
        raise argument_error(
            "over", over, "a swept parameter; this sweep has a single point"
        )
    return names[0] if over is None else choice("over", over, names)


def lines(
    dataset: xarray.Dataset, *kept: str
) -> Iterator[tuple[dict[str, Any], xarray.Dataset]]:
    """Yield each slice of a sweep along the parameters ``kept``, with the values of the others."""
    others = [name for name in dimensions(dataset) if name not in kept]
    for index in np.ndindex(*(dataset.sizes[name] for name in others)):
        line = dataset.isel(dict(zip(others, index, strict=True)))
        yield {name: line[name].item() for name in others}, line


def meanings(dataset: xarray.Dataset, names: Iterable[str]) -> tuple[str, ...]:
    """Explain the columns of a table whose headings are symbols, in a sentence or two for below it."""
    quantities = [dataset[name].attrs for name in names if name in dataset.data_vars]
    told = [
        each
        for each in quantities
        if each.get("symbol") and each.get("role") not in ("verdict", None)
    ]
    # what a description says before its first comma; boundaries have a shorter
    # definition
    words = [re.split("[,;]", str(each.get("description") or ""))[0] for each in told]
    words = [
        f"boundary, {each['definition']}" if each.get("definition") else word
        for each, word in zip(told, words, strict=True)
    ]
    said = [
        f"{each['symbol']}: {word}."
        for each, word in zip(told, words, strict=True)
        if word
    ]
    if any(each.get("role") == "verdict" for each in quantities):
        said.append("✓: the statement holds; ✗: it fails; blank: it does not apply.")
    if reason := not_applicable(dataset):
        said.append(reason)
    return (" ".join(said),) if said else ()


def not_applicable(dataset: xarray.Dataset) -> str:
    """Return in a sentence why theory is not shown beside points of a sweep; empty if it is beside all of them."""
    return str(dataset.attrs.get("not_applicable", ""))


def point_facts(dataset: xarray.Dataset) -> dict[str, Any]:
    """Return the quantities of a single point that have a value, by symbol."""
    return {
        symbol(dataset, str(name)): x.values
        for name, x in dataset.data_vars.items()
        if has_values(x)
    }


def has_values(values: xarray.DataArray) -> bool:
    """Return whether any value is present: not NaN, -1 or the empty text."""
    missing = {"i": -1, "U": "", "O": ""}.get(values.dtype.kind)
    empty = values.isnull() if values.dtype.kind == "f" else values.isin([missing])
    return not bool(empty.all())
