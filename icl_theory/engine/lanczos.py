"""The largest eigenvalue of a matrix from its products with vectors."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from icl_theory._validate import Array


def largest_eigenvalue(
    hessian: Callable[[Array], Array], shape: tuple[int, ...], metric: float | Array, dense: int = 12
) -> tuple[float, Array]:
    """Largest eigenvalue of ``M^-1/2 H M^-1/2`` and its direction in the parameters, by Lanczos' method.

    Parameters
    ----------
    hessian : callable
        Product of the Hessian H with a direction, of the shape of the parameters.
    shape : tuple of int
        That shape.
    metric : float or ndarray
        The diagonal of M.
    dense : int
        Parameters up to which the matrix is written out, which is quicker then.

    Returns
    -------
    (float, ndarray)
        The eigenvalue, and ``M^-1/2 v`` for its unit eigenvector v, of that shape.

    Raises
    ------
    RuntimeError
        Where Lanczos' method does not converge.
    """
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    root = np.sqrt(np.broadcast_to(np.asarray(metric, dtype=float), shape))

    def product(flat: Array) -> Array:
        return np.ravel(hessian(np.reshape(flat, shape) / root) / root)

    size = math.prod(shape)
    if size <= dense:
        matrix = np.array([product(unit) for unit in np.eye(size)])
        values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    else:
        start = np.random.default_rng(0).normal(size=size)
        scale = float(np.abs(product(start)).max())
        if scale == 0.0:
            return 0.0, start.reshape(shape) / root
        operator = LinearOperator((size, size), matvec=lambda flat: product(flat) / scale, dtype=np.float64)
        try:
            values, vectors = eigsh(operator, k=1, which="LA", v0=start, tol=1e-10, maxiter=50 * size)
        except ArpackNoConvergence as error:
            raise RuntimeError("the largest eigenvalue of the Hessian did not converge") from error
        values = values * scale
    return float(values[-1]), vectors[:, -1].reshape(shape) / root
