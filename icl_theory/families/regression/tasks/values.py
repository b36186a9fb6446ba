"""Laws given by the values at the features alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import Array, real_array, refuse
from icl_theory.families.regression.features import Features
from icl_theory.families.regression.tasks.law import Task


class KernelTask(Task):
    """Normal values with any covariance matrix.

    Parameters
    ----------
    matrix : array_like, (K, K)
        Symmetric and positive semi-definite, both to a relative 1e-10.

    Raises
    ------
    ValueError
        A matrix that is not.
    """

    def __init__(self, matrix: ArrayLike) -> None:
        kernel = real_array("matrix", matrix, 2)
        size = np.abs(kernel).max(initial=0.0)
        square = kernel.shape[0] == kernel.shape[1] and kernel.shape[0] >= 2
        if not square or np.abs(kernel - kernel.T).max() > 1e-10 * size:
            raise refuse("matrix", matrix, "a symmetric (K, K) matrix, K >= 2")
        self.matrix = 0.5 * (kernel + kernel.T)
        eigenvalues, vectors = np.linalg.eigh(self.matrix)
        if eigenvalues[0] < -1e-10 * size:
            raise refuse(
                "matrix", matrix, f"positive semi-definite (its lowest eigenvalue is {eigenvalues[0]:.3g})"
            )
        self._root = vectors * np.sqrt(np.maximum(eigenvalues, 0.0))

    def kernel(self, features: Features) -> Array:
        """Return the matrix."""
        if len(self.matrix) != features.K:
            raise refuse("matrix", self.matrix.shape, f"of shape ({features.K}, {features.K}), one row a feature")
        return self.matrix

    def sample(self, features: Features, rng: np.random.Generator, size: int) -> Array:
        """Draw normal values with this covariance, (size, K)."""
        return rng.normal(size=(size, len(self.kernel(features)))) @ self._root.T

    def __repr__(self) -> str:
        return f"KernelTask(K={len(self.matrix)})"


class FiniteTask(Task):
    """A finite list of functions, each given by its values at the features and a weight.

    Parameters
    ----------
    values : array_like, (M, K)
        One function a row.
    weights : array_like, (M,), optional
        Probabilities of the functions; equal unless given.
    """

    def __init__(self, values: ArrayLike, weights: ArrayLike | None = None) -> None:
        self.values = real_array("values", values, 2)
        rows = len(self.values)
        if rows < 1 or self.values.shape[1] < 2:
            raise refuse("values", self.values.shape, "an array of shape (M, K) with M >= 1, K >= 2")
        given = np.full(rows, 1.0 / rows) if weights is None else real_array("weights", weights, 1)
        if given.shape != (rows,) or (given < 0).any() or abs(given.sum() - 1.0) > 1e-9:
            raise refuse("weights", weights, f"{rows} numbers >= 0 that sum to 1, one a function")
        self.weights = given / given.sum()

    def factor(self, features: Features) -> Array:
        """Values relative to the first feature's, weighted, (K, M); classical scaling where M > K."""
        if self.values.shape[1] != features.K:
            raise refuse("values", self.values.shape, f"of shape (M, {features.K}), one column a feature")
        weighted = np.sqrt(self.weights)[:, None] * (self.values - self.values[:, :1])
        return weighted.T if len(self.values) <= features.K else np.asarray(np.linalg.qr(weighted, mode="r")).T

    def variogram(self, features: Features) -> Array:
        """Half the weighted mean squared differences."""
        factor = self.factor(features)
        return np.asarray([0.5 * np.sum((factor - row) ** 2, axis=1) for row in factor])

    def kernel(self, features: Features) -> Array:
        """Weighted second moments of the values."""
        self.factor(features)
        return (self.values.T * self.weights) @ self.values

    def sample(self, features: Features, rng: np.random.Generator, size: int) -> Array:
        """Draw functions from the list, (size, K)."""
        self.factor(features)
        return self.values[rng.choice(len(self.values), size=size, p=self.weights)]

    def __repr__(self) -> str:
        return f"FiniteTask(M={self.values.shape[0]}, K={self.values.shape[1]})"
