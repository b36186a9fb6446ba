"""The parameters and quantities of a sweep, read from the attributes of its dataset.

The dimensions of the dataset are the swept parameters, and its variables are the
quantities. The attribute ``role`` of a quantity says how tables and figures use it:
"steps" (the steps T to the target), "phase" (the length of a phase), "word" (a text),
"verdict" (whether a statement holds), "predicted" (a prediction), "boundary" (a value
of a parameter that separates regimes), "set" (for training on a fixed set of prompts),
"exponent" (the slope of ln T along a parameter), "status" (whether the point is
computed and reached its target) or "detail" (anything else).
"""

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
    """Return the names of the quantities with one of the roles, in the order of roles.

    If there are ``attributes``, a quantity must also have each of these attributes with
    the given value.
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
    # A dataset without a status is not from a sweep, because a sweep has a status at
    # each point.
    if not hasattr(dataset, "data_vars") or "status" not in dataset.data_vars:
        raise argument_error("dataset", dataset, "the dataset of a sweep")
    return [str(name) for name in dataset.dims]


def dimension(dataset: xarray.Dataset, over: str | None) -> str:
    """Return the swept parameter called ``over``; the first one if ``over`` is None."""
    names = dimensions(dataset)
    if not names:
        raise argument_error(
            "over", over, "a swept parameter; this sweep has a single point"
        )
    return names[0] if over is None else choice("over", over, names)


def lines(
    dataset: xarray.Dataset, *kept: str
) -> Iterator[tuple[dict[str, Any], xarray.Dataset]]:
    """Yield each slice of a dataset in which only the parameters ``kept`` vary.

    A slice is yielded as a pair: the values of all other parameters by name, and the
    part of the dataset with these values.
    """
    fixed = [name for name in dimensions(dataset) if name not in kept]
    sizes = [dataset.sizes[name] for name in fixed]
    # Each tuple has an index for each fixed parameter.
    for indices in np.ndindex(*sizes):
        part = dataset.isel(dict(zip(fixed, indices, strict=True)))
        fixed_values = {name: part[name].item() for name in fixed}
        yield fixed_values, part


def meanings(dataset: xarray.Dataset, names: Iterable[str]) -> tuple[str, ...]:
    """Explain the headings of a table that are symbols, and the signs of verdicts.

    ``names`` are the quantities in the columns of the table; names of parameters are
    ignored. The result is a tuple with a single note to print below the table, or an
    empty tuple if there is nothing to explain. If the theory does not apply to all
    points, the note also says why.
    """
    sentences = []
    has_verdict = False
    for name in names:
        if name not in dataset.data_vars:
            continue
        attributes = dataset[name].attrs
        if attributes.get("role") == "verdict":
            # One sentence below explains the signs in all columns of verdicts.
            has_verdict = True
            continue
        meaning = _meaning(attributes)
        # Without a symbol, the heading is the name of the quantity.
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
    """Return the definition of a quantity or, if it has none, its description.

    Only boundaries have a definition. A description is cut at its first comma or
    semicolon, because details would make the note below a table too long.
    """
    definition = attributes.get("definition")
    if definition:
        return f"boundary, {definition}"
    description = str(attributes.get("description") or "")
    beginning, *_ = re.split("[,;]", description)
    return beginning


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
    """Whether any value is present.

    A missing value is NaN among floats, -1 among integers, which have no NaN, and the
    empty text among texts. Values of other types are never missing.
    """
    if values.dtype.kind == "f":
        is_missing = values.isnull()
    else:
        # For other types this is None, which no value equals.
        missing_value = {"i": -1, "U": "", "O": ""}.get(values.dtype.kind)
        is_missing = values.isin([missing_value])
    return not bool(is_missing.all())
