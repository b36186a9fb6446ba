"""The largest eigenvalue of a matrix from its products with vectors."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from icl_theory._validate import Array


def largest_eigenvalue(
    hessian: Callable[[Array], Array], shape: tuple[int, ...], metric: float | Array, dense: int = 12
) -> tuple[float, Array]:
    """Return the largest eigenvalue of ``M^-1/2 H M^-1/2``, and ``M^-1/2 v`` for its unit eigenvector v.

    It is found by Lanczos' method from products of H with a direction of a ``shape``, or from the matrix, which is
    quicker up to a ``dense`` size; ``metric`` is the diagonal of M. A RuntimeError says that it did not converge.
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
