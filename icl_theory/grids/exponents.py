"""Local exponents: by which power of a parameter steps grow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from icl_theory._validate import Array

if TYPE_CHECKING:
    import xarray


def local_exponent(steps: Array, values: Array, dimension: int) -> Array:
    r"""Local exponent :math:`d\ln T/d\ln x` by centred differences along a dimension, one-sided at its ends.

    Steps below 1 are missing, and so is the exponent where the difference needs them: NaN.
    """
    order = np.argsort(values)
    place, found = np.log(values[order]), np.empty(steps.shape)
    lines, slopes = (np.moveaxis(each, dimension, 0) for each in (steps, found))
    for part in _parts(lines):
        logs = np.where(lines[part] > 0, np.log(np.maximum(lines[part], 1).astype(np.float64)), np.nan)
        with np.errstate(divide="ignore", invalid="ignore"):
            slopes[part][order] = np.gradient(logs[order], place, axis=0)
    return found


def _parts(lines: Array, values: int = 2**15) -> Iterator[tuple[slice, ...]]:
    """Parts of some lines, each of them whole, with so few values that the next computation stays in the cache."""
    others = lines.shape[1] if lines.ndim > 1 else 1
    each = max(1, values * others // lines.size)
    yield from ((slice(None), slice(i, i + each))[: lines.ndim] for i in range(0, others, each))


def exponent_along(steps: xarray.DataArray, values: Array, name: str) -> Any:
    """Return `local_exponent` of labelled steps along a dimension, an array like theirs, in memory or not."""
    dimension = steps.dims.index(name)
    if steps.chunks is None:
        return local_exponent(steps.values, values, dimension)
    lines = steps.data.rechunk({dimension: -1})
    return lines.map_blocks(local_exponent, values, dimension, dtype=np.float64)
