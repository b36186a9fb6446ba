"""What the attributes of a sweep's dataset say of its parameters and quantities."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from icl_theory._validate import argument_error, choice

if TYPE_CHECKING:
    import xarray


def symbol(dataset: xarray.Dataset, name: str) -> str:
    """Return the symbol of a parameter or a quantity, or its name if it has none."""
    return str(dataset[name].attrs.get("symbol") or name)


def with_role(dataset: xarray.Dataset, *roles: str, **attributes: Any) -> list[str]:
    """Return the names of the quantities with one of these roles, role by role.

    The quantities must also have the values of all ``attributes``.
    """
    names = []
    for role in roles:
        quantities = dataset.filter_by_attrs(role=role, **attributes).data_vars
        names += [str(name) for name in quantities]
    return names


def steps_of(dataset: xarray.Dataset) -> str | None:
    """Return the name of the quantity that counts steps, or None if there is none."""
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
    """Yield each slice along the parameters ``kept``.

    Before each slice stand the values that the other parameters have in it, by name.
    """
    fixed = [name for name in dimensions(dataset) if name not in kept]
    for index in np.ndindex(*(dataset.sizes[name] for name in fixed)):
        line = dataset.isel(dict(zip(fixed, index, strict=True)))
        yield {name: line[name].item() for name in fixed}, line


def meanings(dataset: xarray.Dataset, names: Iterable[str]) -> tuple[str, ...]:
    """Explain the headings of a table that are symbols.

    The result is one note, which is to stand below the table, or nothing if there is
    nothing to explain.
    """
    sentences = []
    has_verdict = False
    for name in names:
        if name not in dataset.data_vars:
            continue
        attributes = dataset[name].attrs
        if attributes.get("role") == "verdict":
            has_verdict = True
            continue
        meaning = _meaning(attributes)
        if attributes.get("symbol") and attributes.get("role") and meaning:
            sentences.append(f"{attributes['symbol']}: {meaning}.")
    if has_verdict:
        sentences.append(
            "✓: the statement holds; ✗: it fails; blank: it does not apply."
        )
    reason = not_applicable(dataset)
    if reason:
        sentences.append(reason)
    return (" ".join(sentences),) if sentences else ()


def _meaning(attributes: dict[str, Any]) -> str:
    """Return the description of a quantity up to its first comma, or its definition."""
    definition = attributes.get("definition")
    if definition:
        return f"boundary, {definition}"
    return re.split("[,;]", str(attributes.get("description") or ""))[0]


def not_applicable(dataset: xarray.Dataset) -> str:
    """Return why the theory does not apply to all points of a sweep; "" if it does."""
    return str(dataset.attrs.get("not_applicable", ""))


def point_facts(dataset: xarray.Dataset) -> dict[str, Any]:
    """Return the quantities of a single point that have a value, by symbol."""
    return {
        symbol(dataset, str(name)): quantity.values
        for name, quantity in dataset.data_vars.items()
        if has_values(quantity)
    }


def has_values(values: xarray.DataArray) -> bool:
    """Return whether any value is present: not NaN, -1 or the empty text."""
    missing = {"i": -1, "U": "", "O": ""}.get(values.dtype.kind)
    empty = values.isnull() if values.dtype.kind == "f" else values.isin([missing])
    return not bool(empty.all())
