"""Local exponents: by which power of a parameter steps grow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from icl_theory._validate import Array

if TYPE_CHECKING:
    import xarray


def local_exponent(steps: Array, values: Array, dimension: int) -> Array:
    r"""Local exponent :math:`d\ln T/d\ln x` along a dimension.

    It is computed by centred differences, one-sided at the ends. Steps below 1 are
    missing; the exponent is NaN wherever the difference needs them.
    """
    order = np.argsort(values)
    logs = np.log(np.where(steps > 0, steps, np.nan)).take(order, dimension)
    with np.errstate(divide="ignore", invalid="ignore"):
        slopes = np.gradient(logs, np.log(values[order]), axis=dimension)
    return np.asarray(slopes.take(np.argsort(order), dimension))


def exponent_along(steps: xarray.DataArray, values: Array, name: str) -> Any:
    """Return `local_exponent` of labelled steps, in memory or lazy as they are."""
    dimension = steps.dims.index(name)
    if steps.chunks is None:
        return local_exponent(steps.values, values, dimension)
    lines = steps.data.rechunk({dimension: -1})
    return lines.map_blocks(local_exponent, values, dimension, dtype=np.float64)
