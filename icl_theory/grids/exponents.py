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

    Parameters
    ----------
    steps : ndarray
        Numbers of steps; those below 1 are missing.
    values : ndarray, (n,)
        The parameter x along ``dimension``, in any order.
    dimension : int
        Index of the dimension.

    Returns
    -------
    ndarray
        Of the shape of ``steps``; NaN where a value is missing that the difference needs.

    Examples
    --------
    >>> import numpy as np
    >>> from icl_theory.grids.exponents import local_exponent
    >>> local_exponent(np.array([100, 25, 4]), np.array([1.0, 2.0, 5.0]), 0).round(6).tolist()
    [-2.0, -2.0, -2.0]
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
