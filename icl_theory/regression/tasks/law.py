"""Task families: the law of f at the features, in closed form and as samples.

Only differences of values matter to the loss, so besides the kernel each family gives
its *variogram* Γ_mj = ½ E(f_m − f_j)² (without cancellation if the formula allows) and,
if its rank is low, a *factor* Φ with E(f_m − f_j)² = ‖φ_m − φ_j‖².
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass, replace
from functools import wraps
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import (
    Array,
    argument_error,
    generator,
    instance,
    integer,
    lipschitz,
    number,
    real_array,
    set_fields,
)
from icl_theory.memory import check_fits
from icl_theory.regression.features import Features

Function = Callable[[Array], Array]


def _of_features(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method of a task: refuse what it does not take, and draws that do not fit into memory."""
    signature = inspect.signature(method)
    draws = {"rng", "size"} <= signature.parameters.keys()

    @wraps(method)
    def checked(self: Task, features: Features, *others: Any, **named: Any) -> Any:
        instance("features", features, Features, "a Features object")
        if not draws:
            return method(self, features, *others, **named)
        arguments = signature.bind(self, features, *others, **named).arguments
        rng = generator("rng", arguments["rng"])
        size = integer("size", arguments["size"], minimum=0)  # number of functions
        check_fits("size", size, 24.0 * size * (features.K + features.d))
        return method(self, features, rng, size)

    return checked


class Task(ABC):
    """A law of task functions, known through their values at the features.

    To add a family, inherit and define `kernel` and `sample`; override `variogram` and
    `factor` if a formula beats the general one. Every method refuses anything but
    `Features`.
    """

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        for name in (
            "kernel",
            "sample",
            "variogram",
            "factor",
            "functions",
            "nondegeneracy",
            "gamma",
        ):
            if callable(method := vars(cls).get(name)):
                setattr(cls, name, _of_features(method))

    @abstractmethod
    def kernel(self, features: Features) -> Array:
        """Second moments ``E[f_m f_j]``, (K, K), squared label units."""

    @abstractmethod
    def sample(self, features: Features, rng: np.random.Generator, size: int) -> Array:
        """Draw the values at the features of ``size`` independent functions, (size, K)."""

    def variogram(self, features: Features) -> Array:
        """Half the mean squared differences ``E(f_m - f_j)^2 / 2``, (K, K), zero on the diagonal."""
        kernel = self.kernel(features)
        diagonal = np.diagonal(kernel)
        result = np.maximum(0.5 * (diagonal[:, None] + diagonal) - kernel, 0.0)
        np.fill_diagonal(result, 0.0)
        return result

    def unit_variogram(self, features: Features) -> tuple[Array, float]:
        """Return the variogram at L = 1 and L² if the variogram is their product, else the variogram and 1.

        Tasks that differ only in L then share the first result to the bit, and whatever
        is cached for it.
        """
        found = self.variogram(features)
        L = getattr(self, "L", None)
        if L is not None and is_dataclass(self):
            unit = replace(self, L=1.0).variogram(features)
            if np.allclose(found, L * L * unit, rtol=1e-13, atol=0.0):
                return unit, L * L
        return found, 1.0

    def factor(self, features: Features) -> Array:
        """Vectors with the task's mean squared differences as squared distances, (K, r), r <= K."""
        return factor_of(self.variogram(features))

    def functions(
        self, features: Features, rng: np.random.Generator, size: int
    ) -> Function:
        """Draw ``size`` functions on the whole space, as one map from points (size, n, d) to values (size, n).

        A family that is defined at the features alone gives every point the value of
        the nearest feature.
        """
        from scipy.spatial import KDTree  # slow to load

        values = self.sample(features, rng, size)
        tree = KDTree(features.vectors)

        def nearest(points: Array) -> Array:
            return np.take_along_axis(values, tree.query(points)[1], axis=1)

        return nearest

    def nondegeneracy(self, features: Features) -> Array:
        r"""Non-degeneracy constants of all queries.

        .. math:: c_k = \min\{x^\top C^{(k)} x : x \ge 0,\ {\textstyle\sum_{m\ne k} x_m = 1}\},
            \quad C^{(k)}_{mj} = E[(f_m - f_k)(f_j - f_k)]

        With ``E(f_m - f_j)^2 = |φ_m - φ_j|^2`` this is the squared distance from
        ``φ_k`` to the convex hull of the others, which non-negative least squares finds
        by an active-set method in finitely many steps. See docs/theory.md, "Lemma 1,
        exactly".

        Returns
        -------
        ndarray, (K,)
            Squared label units; zero for a query whose feature the task cannot tell
            from a mixture of others.

        Examples
        --------
        >>> import icl_theory as icl
        >>> features = icl.Features.simplex(4, delta=1.0)
        >>> icl.tasks.Halfspace(1.0).nondegeneracy(features)
        array([0., 0., 0., 0.])
        """
        from scipy.optimize import nnls

        factor = self.factor(features)
        result = np.zeros(features.K)
        for k in range(features.K):
            edges = np.delete(factor, k, axis=0) - factor[k]
            scale = np.abs(edges).max()
            if scale == 0:
                continue
            rows = np.vstack([edges.T / scale, np.ones(features.K - 1)])
            weights, _ = nnls(rows, np.append(np.zeros(len(rows) - 1), 1.0))
            point = (weights / weights.sum()) @ edges
            squared = float(point @ point)
            result[k] = squared if squared > (1e-13 * scale) ** 2 * len(rows) else 0.0
        return result


def variogram_of(features: Features, task: Task) -> Array:
    """Return the variogram of a task; refuse anything but a task that fits the features."""
    instance("features", features, Features, "a Features object")
    return instance("task", task, Task, "a Task (see icl_theory.tasks)").variogram(
        features
    )  # type: ignore[type-abstract]


def factor_of(variogram: Array) -> Array:
    """Vectors φ_m whose half squared distances are ``variogram``, by classical scaling, to 1e-8 of the largest."""
    row = variogram.mean(axis=1)
    centred = row[:, None] + row - variogram - row.mean()
    eigenvalues, vectors = np.linalg.eigh(centred)
    keep = eigenvalues > len(row) * np.finfo(float).eps * max(eigenvalues[-1], 0.0)
    return np.asarray(vectors[:, keep] * np.sqrt(eigenvalues[keep]))


@dataclass(frozen=True, eq=False)
class LipschitzTask(Task):
    """Families of functions with a Lipschitz constant L, sure or in mean square."""

    L: float

    def __post_init__(self) -> None:
        set_fields(self, L=lipschitz(self.L))


class OnSpace(LipschitzTask):
    """Families of functions on the whole space, whose values at the features are sampled from them."""

    @abstractmethod
    def functions(
        self, features: Features, rng: np.random.Generator, size: int
    ) -> Function:
        """Draw ``size`` functions on the whole space."""

    def sample(self, features: Features, rng: np.random.Generator, size: int) -> Array:
        """Draw the values at the features of ``size`` independent functions, (size, K)."""
        points = np.broadcast_to(features.vectors, (size, *features.vectors.shape))
        return self.functions(features, rng, size)(points)


@dataclass(frozen=True)
class Exchangeable(LipschitzTask):
    r"""Independent normal values with :math:`E(f_m - f_k)^2 = L^2\Delta^2` for every pair.

    The kernel is :math:`\gamma I` with :math:`\gamma = L^2\Delta^2/2`: the class that
    is L-Lipschitz in mean square and saturates that bound at the gap. (For K > 2 no law
    of *surely* L-Lipschitz functions does: they reach about half of it, which changes
    times by a factor 2 and nothing else.) See docs/theory.md, "The exchangeable case".

    Parameters
    ----------
    L : float
        Lipschitz constant in mean square.

    Examples
    --------
    >>> import icl_theory as icl
    >>> icl.tasks.Exchangeable(2.0).kernel(icl.Features.simplex(2, delta=1.0)).round(12)
    array([[2., 0.],
           [0., 2.]])
    """

    def gamma(self, features: Features) -> float:
        """Variogram of every pair, ``L^2 gap^2 / 2``."""
        return exchangeable_gamma(self.L, features.gap)

    def kernel(self, features: Features) -> Array:
        """``γ I``."""
        return self.gamma(features) * np.eye(features.K)

    def factor(self, features: Features) -> Array:
        """``√γ I``."""
        return float(np.sqrt(self.gamma(features))) * np.eye(features.K)

    def sample(self, features: Features, rng: np.random.Generator, size: int) -> Array:
        """Independent N(0, γ) values, (size, K)."""
        return rng.normal(0.0, np.sqrt(self.gamma(features)), (size, features.K))


def exchangeable_gamma(L: float, delta: float) -> float:
    """Return ``L^2 delta^2 / 2``, and refuse numbers out of the range of float64."""
    product = number("L", L) * number("delta", delta)
    # not a power: NumPy rounds those its own way
    gamma = 0.5 * (product * product) if product < 1e150 else np.inf
    if not 1e-290 < gamma < 1e290:
        raise argument_error(
            "L", L, f"a number with 1e-140 < L*delta < 1e140 (delta = {delta!r})"
        )
    return float(gamma)


class KernelTask(Task):
    """Normal values with any covariance matrix.

    Parameters
    ----------
    matrix : array_like, (K, K)
        Symmetric and positive semi-definite, both to a relative 1e-10.

    Raises
    ------
    ValueError
        The matrix is not symmetric and positive semi-definite.
    """

    def __init__(self, matrix: ArrayLike) -> None:
        kernel = real_array("matrix", matrix, 2)
        size = np.abs(kernel).max(initial=0.0)
        square = kernel.shape[0] == kernel.shape[1] and kernel.shape[0] >= 2
        if not square or np.abs(kernel - kernel.T).max() > 1e-10 * size:
            raise argument_error("matrix", matrix, "a symmetric (K, K) matrix, K >= 2")
        self.matrix = 0.5 * (kernel + kernel.T)
        self.matrix.flags.writeable = False
        eigenvalues, vectors = np.linalg.eigh(self.matrix)
        if eigenvalues[0] < -1e-10 * size:
            raise argument_error(
                "matrix",
                matrix,
                f"positive semi-definite (lowest eigenvalue: {eigenvalues[0]:.3g})",
            )
        self._root = vectors * np.sqrt(np.maximum(eigenvalues, 0.0))

    def kernel(self, features: Features) -> Array:
        """Return the matrix."""
        if len(self.matrix) != features.K:
            raise argument_error(
                "matrix",
                self.matrix.shape,
                f"of shape ({features.K}, {features.K}), one row for each feature",
            )
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
        One function in each row.
    weights : array_like, (M,), optional
        Probabilities of the functions; equal by default.
    """

    def __init__(self, values: ArrayLike, weights: ArrayLike | None = None) -> None:
        self.values = real_array("values", values, 2)
        rows = len(self.values)
        if rows < 1 or self.values.shape[1] < 2:
            raise argument_error(
                "values",
                self.values.shape,
                "an array of shape (M, K) with M >= 1, K >= 2",
            )
        given = (
            np.full(rows, 1.0 / rows)
            if weights is None
            else real_array("weights", weights, 1)
        )
        if given.shape != (rows,) or (given < 0).any() or abs(given.sum() - 1.0) > 1e-9:
            raise argument_error(
                "weights",
                weights,
                f"{rows} numbers >= 0 that sum to 1, one for each function",
            )
        self.weights = given / given.sum()
        self.values.flags.writeable = self.weights.flags.writeable = False

    def factor(self, features: Features) -> Array:
        """Values relative to the first feature's, weighted, (K, M); classical scaling where M > K."""
        if self.values.shape[1] != features.K:
            raise argument_error(
                "values",
                self.values.shape,
                f"of shape (M, {features.K}), one column for each feature",
            )
        weighted = np.sqrt(self.weights)[:, None] * (self.values - self.values[:, :1])
        return (
            weighted.T
            if len(self.values) <= features.K
            else np.asarray(np.linalg.qr(weighted, mode="r")).T
        )

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
