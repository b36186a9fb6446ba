"""Local exponents: by which power of a parameter steps grow."""

from __future__ import annotations

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
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where(steps > 0, np.log(np.maximum(steps, 1).astype(np.float64)), np.nan)
        sorted_logs = np.take(logs, order, axis=dimension)
        slopes = np.gradient(sorted_logs, np.log(values[order]), axis=dimension)
    return np.asarray(np.take(slopes, np.argsort(order), axis=dimension))


def exponent_along(steps: xarray.DataArray, values: Array, name: str) -> Any:
    """Return `local_exponent` of labelled steps along a dimension, an array like theirs, in memory or not."""
    dimension = steps.dims.index(name)
    if steps.chunks is None:
        return local_exponent(steps.values, values, dimension)
    lines = steps.data.rechunk({dimension: -1})
    return lines.map_blocks(local_exponent, values, dimension, dtype=np.float64)
