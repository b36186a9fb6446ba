"""Local exponents: the power of a parameter with which the steps to the target grow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from icl_theory._validate import Array

if TYPE_CHECKING:
    import xarray


def local_exponent(steps: Array, values: Array, dimension: int) -> Array:
    r"""Return the local exponent :math:`d\ln T/d\ln x` along a dimension.

    T are the steps and x is the parameter. The exponent is computed by centred
    differences, which are one-sided at the ends. It is NaN if its difference needs a
    number of steps that is zero or missing (a missing one is written as -1).

    Parameters
    ----------
    steps : ndarray
        The steps T at the points of a grid.
    values : ndarray of shape (n,)
        The values x of the parameter along the dimension, in any order.
    dimension : int
        The dimension of ``steps`` along which the parameter varies; it has length n.

    Returns
    -------
    ndarray
        The exponents, in the shape of ``steps``.
    """
    # A centred difference needs the next smaller and the next larger value of x.
    order = np.argsort(values)
    log_steps = np.log(np.where(steps > 0, steps, np.nan)).take(order, dimension)
    with np.errstate(divide="ignore", invalid="ignore"):
        slopes = np.gradient(log_steps, np.log(values[order]), axis=dimension)
    # The argsort of a permutation is its inverse, which restores the given order.
    original_order = np.argsort(order)
    return np.asarray(slopes.take(original_order, dimension))


def exponent_along(steps: xarray.DataArray, values: Array, name: str) -> Any:
    """Return `local_exponent` of labelled steps along the dimension ``name``.

    The result is a NumPy array, or a Dask array if ``steps`` holds a Dask array.
    """
    dimension = steps.dims.index(name)
    if steps.chunks is None:
        return local_exponent(steps.values, values, dimension)
    # A difference may need values of two neighbouring chunks, so make each chunk span
    # the whole dimension. In Dask, the length -1 means the whole dimension.
    rechunked = steps.data.rechunk({dimension: -1})
    return rechunked.map_blocks(local_exponent, values, dimension, dtype=np.float64)
