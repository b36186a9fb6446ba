"""Tasks: laws of random functions f, in closed form and as samples.

A task is given by the law of the values f_m of f at the K features m. The loss depends
only on differences of values. So besides the *kernel* E[f_m f_j] a task has a
*variogram* Γ_mj = ½ E(f_m − f_j)², which loses no digits to cancellation if there is a
formula for it. It may also have a *factor* Φ, (K, r) with a small rank r, whose rows
φ_m satisfy E(f_m − f_j)² = ‖φ_m − φ_j‖². `Task` is the base class. `LipschitzTask` and
`OnSpace` are the bases of the families in `icl_theory.regression.tasks.functions`. The
families of this module (`Exchangeable`, `KernelTask` and `FiniteTask`) define the
values of a function at the features alone.
"""

from __future__ import annotations

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

# ``size`` functions on the space, as one callable: it maps n points for each function,
# (size, n, d), to values, (size, n).
Function = Callable[[Array], Array]

# Methods of a task whose arguments are checked, also in families that users write.
# The methods that draw functions take a generator and a size besides the features.
DRAWING_METHODS = ("sample", "functions")
OTHER_METHODS = ("kernel", "variogram", "factor", "nondegeneracy", "gamma")

# The relative rounding error of a value, or of a sum of squared differences of values,
# with a wide margin: 450 times the machine epsilon.
ENTRY_ROUNDING = 1e-13
# The covariance that a user gives may differ from a symmetric and positive
# semi-definite matrix by this, relative to its largest entry. This tolerance allows for
# matrices that were computed in float64 or written with ten digits.
MATRIX_ROUNDING = 1e-10
# The sum of the weights of a `FiniteTask` may differ from 1 by this. The weights are
# divided by their sum.
SUM_ROUNDING = 1e-9
# The product of two numbers below this is finite.
LARGEST_FACTOR = 1e150
# The range of γ = L²Δ²/2 (`exchangeable_gamma`). At both ends it leaves 18 orders of
# magnitude of float64 for products with K, the probabilities and the learning rate.
SMALLEST_GAMMA = 1e-290
LARGEST_GAMMA = 1e290


def _checked_draw(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method of a task that draws functions, so that it refuses wrong arguments.

    It also refuses a ``size`` that does not fit into memory.
    """

    @wraps(method)
    def checked(
        self: Task, features: Features, rng: np.random.Generator, size: int
    ) -> Any:
        instance("features", features, Features, "a Features object")
        rng = generator("rng", rng)
        size = integer("size", size, minimum=0)
        # Roughly three numbers of 8 bytes for each of the K values and d coefficients
        # of a function
        check_fits("size", size, 24.0 * size * (features.K + features.d))
        return method(self, features, rng, size)

    return checked


def _checked(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method of a task that draws nothing, so that it refuses wrong features."""

    @wraps(method)
    def checked(self: Task, features: Features, *args: Any, **kwargs: Any) -> Any:
        instance("features", features, Features, "a Features object")
        return method(self, features, *args, **kwargs)

    return checked


class Task(ABC):
    """The law of random functions, given by their values at the features.

    To add a family, inherit and define `kernel` and `sample`. Override `variogram` and
    `factor` if there is a formula that is more accurate or faster than the general one.
    Every method refuses features that are not a `Features` object.
    """

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Let the methods of every family check their arguments."""
        super().__init_subclass__(**arguments)
        # Only methods that the class itself defines are wrapped. Inherited ones check
        # their arguments already.
        defined = vars(cls)
        for name in DRAWING_METHODS:
            if callable(defined.get(name)):
                setattr(cls, name, _checked_draw(defined[name]))
        for name in OTHER_METHODS:
            if callable(defined.get(name)):
                setattr(cls, name, _checked(defined[name]))

    @abstractmethod
    def kernel(self, features: Features) -> Array:
        """Second moments ``E[f_m f_j]``, (K, K), squared label units."""

    @abstractmethod
    def sample(self, features: Features, rng: np.random.Generator, size: int) -> Array:
        """Values of ``size`` independent functions at the features, (size, K)."""

    def variogram(self, features: Features) -> Array:
        """Half the mean squared differences ``E(f_m - f_j)^2 / 2``, (K, K)."""
        kernel = self.kernel(features)
        diagonal = np.diagonal(kernel)
        # Γ_mj = ½ (κ_mm + κ_jj) - κ_mj, with the entries κ_mj of the kernel. Rounding
        # may make an entry negative, or an entry on the diagonal nonzero.
        variogram = np.maximum(0.5 * (diagonal[:, None] + diagonal) - kernel, 0.0)
        np.fill_diagonal(variogram, 0.0)
        return variogram

    def unit_variogram(self, features: Features) -> tuple[Array, float]:
        """Return the variogram at L = 1, and L², if their product is the variogram.

        Otherwise return the variogram itself, and 1. Tasks that differ only in L get
        the same unit variogram, to the bit, so that they share results that are cached
        for it.
        """
        variogram = self.variogram(features)
        # Only a dataclass can be copied with another L. Whether the variogram is really
        # proportional to L² is tested, because a user may have written the task.
        L = getattr(self, "L", None)
        if L is not None and is_dataclass(self):
            unit = replace(self, L=1.0).variogram(features)
            if np.allclose(variogram, L * L * unit, rtol=ENTRY_ROUNDING, atol=0.0):
                return unit, L * L
        return variogram, 1.0

    def factor(self, features: Features) -> Array:
        """Vectors φ_m with ``E(f_m - f_j)^2 = |φ_m - φ_j|^2``, (K, r), r <= K."""
        return factor_of(self.variogram(features))

    def functions(
        self, features: Features, rng: np.random.Generator, size: int
    ) -> Function:
        """Draw ``size`` functions on the whole space.

        The result is one callable for all of them. It maps n points for each function,
        (size, n, d), to values, (size, n). If the family is defined at the features
        alone, the value at a point is the value at the nearest feature.
        """
        # SciPy is slow to load, and few tasks need it.
        from scipy.spatial import KDTree

        values = self.sample(features, rng, size)
        tree = KDTree(features.vectors)

        def value_at_nearest(points: Array) -> Array:
            # The index of the feature that is nearest to each point, (size, n)
            _distance, feature = tree.query(points)
            return np.take_along_axis(values, feature, axis=1)

        return value_at_nearest

    def nondegeneracy(self, features: Features) -> Array:
        r"""Non-degeneracy constants of all queries, one for each query's feature k.

        .. math:: c_k = \min\{x^\top C^{(k)} x : x \ge 0,\
            {\textstyle\sum_{m\ne k} x_m = 1}\},
            \quad C^{(k)}_{mj} = E[(f_m - f_k)(f_j - f_k)]

        With ``E(f_m - f_j)^2 = |φ_m - φ_j|^2`` the constant is the squared distance
        from ``φ_k`` to the convex hull of the other vectors. Non-negative least squares
        finds this distance by an active-set method in finitely many steps. See
        docs/theory.md, "Lemma 1, exactly".

        Returns
        -------
        ndarray, (K,)
            Squared label units; zero for a query at whose feature every function has
            the same value as a mixture of its values at the other features.

        Examples
        --------
        >>> import icl_theory as icl
        >>> features = icl.Features.simplex(4, delta=1.0)
        >>> icl.tasks.Halfspace(1.0).nondegeneracy(features)
        array([0., 0., 0., 0.])
        """
        # SciPy is slow to load, and most runs do not need it.
        from scipy.optimize import nnls

        factor = self.factor(features)
        constants = np.zeros(features.K)
        for k in range(features.K):
            # φ_m - φ_k for all other features m
            edges = np.delete(factor, k, axis=0) - factor[k]
            # If all functions are constant, the factor has no columns.
            scale = np.abs(edges).max(initial=0.0)
            if scale == 0:
                # A function has the same value at all features: the distance is zero.
                continue
            # All rows but the last ask for a mixture of edges that is zero. The last
            # row asks for weights that sum to one. The least squares solution, divided
            # by its sum, gives the point of the hull that is nearest to φ_k: weights
            # with the sum w at a point of the hull at the distance δ from φ_k (in units
            # of scale) have the squared residual w²δ² + (w - 1)², whose minimum over w
            # grows with δ. At the minimum w is positive.
            rows = np.vstack([edges.T / scale, np.ones(features.K - 1)])
            target = np.append(np.zeros(len(rows) - 1), 1.0)
            weights, _residual = nnls(rows, target)
            # The vector from φ_k to this point
            to_hull = (weights / weights.sum()) @ edges
            squared_distance = float(to_hull @ to_hull)
            # Each coordinate may have a rounding error of ENTRY_ROUNDING · scale.
            rounding = (ENTRY_ROUNDING * scale) ** 2 * len(rows)
            if squared_distance > rounding:
                constants[k] = squared_distance
        return constants


def variogram_of(features: Features, task: Task) -> Array:
    """Return the variogram of a task; refuse a task that does not fit the features."""
    instance("features", features, Features, "a Features object")
    instance("task", task, Task, "a Task (see icl_theory.tasks)")  # type: ignore[type-abstract]
    return task.variogram(features)


def factor_of(variogram: Array) -> Array:
    """Vectors φ_m with ``|φ_m - φ_j|^2 / 2 = variogram``, to a relative 1e-8, (K, r).

    They are found by classical multidimensional scaling. Their accuracy is the square
    root of the rounding unit, because an eigenvalue that rounding changes enters by its
    square root.
    """
    # The inner products of vectors φ_m with mean zero are Γ_m + Γ_j - Γ_mj - Γ, with
    # the mean Γ_m of row m of the variogram and the mean Γ of all its entries.
    row_means = variogram.mean(axis=1)
    inner_products = row_means[:, None] + row_means - variogram - row_means.mean()
    eigenvalues, vectors = np.linalg.eigh(inner_products)
    # Eigenvalues below this may be rounding errors of zero. `eigh` returns the
    # eigenvalues in ascending order, so the last one is the largest.
    rounding = len(variogram) * np.finfo(float).eps * max(eigenvalues[-1], 0.0)
    is_positive = eigenvalues > rounding
    return np.asarray(vectors[:, is_positive] * np.sqrt(eigenvalues[is_positive]))


@dataclass(frozen=True, eq=False)
class LipschitzTask(Task):
    """Base of the families with a Lipschitz constant L.

    L bounds the slopes of every function, or the root mean squares of the slopes.
    """

    L: float

    def __post_init__(self) -> None:
        set_fields(self, L=lipschitz(self.L))


class OnSpace(LipschitzTask):
    """Base of the families of functions that are defined on the whole space."""

    @abstractmethod
    def functions(
        self, features: Features, rng: np.random.Generator, size: int
    ) -> Function:
        """Draw ``size`` functions on the whole space."""

    def sample(self, features: Features, rng: np.random.Generator, size: int) -> Array:
        """Values of ``size`` independent functions at the features, (size, K)."""
        # All functions have the same points, which are repeated without a copy.
        points = np.broadcast_to(features.vectors, (size, *features.vectors.shape))
        return self.functions(features, rng, size)(points)


@dataclass(frozen=True)
class Exchangeable(LipschitzTask):
    r"""Independent normal values at the features.

    Every pair of features has :math:`E(f_m - f_k)^2 = L^2\Delta^2`, with the smallest
    distance Δ of two features, and the kernel is :math:`\gamma I` with
    :math:`\gamma = L^2\Delta^2/2`. The functions are L-Lipschitz in mean square, with
    equality at the distance Δ. (For K > 2 no law of functions that are all L-Lipschitz
    has this mean square for every pair. Such laws reach about half of this mean square,
    which changes numbers of steps by a factor 2 and nothing else.) See docs/theory.md,
    "The exchangeable case".

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
        """Variogram ``γ = L^2 Δ^2 / 2`` of every pair; Δ is ``features.gap``."""
        return exchangeable_gamma(self.L, features.gap)

    def kernel(self, features: Features) -> Array:
        """Second moments ``γ I``, (K, K)."""
        return self.gamma(features) * np.eye(features.K)

    def factor(self, features: Features) -> Array:
        """Vectors ``φ_m``, the rows of ``√γ I``, (K, K)."""
        return float(np.sqrt(self.gamma(features))) * np.eye(features.K)

    def sample(self, features: Features, rng: np.random.Generator, size: int) -> Array:
        """Independent N(0, γ) values, (size, K)."""
        return rng.normal(0.0, np.sqrt(self.gamma(features)), (size, features.K))


def exchangeable_gamma(L: float, delta: float) -> float:
    """Return ``L^2 delta^2 / 2``; refuse a result close to the limits of float64."""
    product = number("L", L) * number("delta", delta)
    # The square of a larger product might overflow. Infinity stands for it, and is
    # refused below.
    gamma = np.inf
    if product < LARGEST_FACTOR:
        # This is a product, because the power product**2 may be rounded differently
        # from the squares in an array of NumPy.
        gamma = 0.5 * (product * product)
    if not SMALLEST_GAMMA < gamma < LARGEST_GAMMA:
        # The message gives a smaller range, in round numbers.
        raise argument_error(
            "L", L, f"a number with 1e-140 < L*delta < 1e140 (delta = {delta!r})"
        )
    return float(gamma)


class KernelTask(Task):
    """Normal values with any covariance matrix.

    Parameters
    ----------
    matrix : array_like, (K, K)
        The covariance, which must be symmetric and positive semi-definite, both to a
        relative 1e-10.

    Raises
    ------
    ValueError
        The matrix is not symmetric and positive semi-definite.
    """

    def __init__(self, matrix: ArrayLike) -> None:
        kernel = real_array("matrix", matrix, 2)
        # An empty matrix, which is refused below, has no largest entry.
        largest = np.abs(kernel).max(initial=0.0)
        is_square = kernel.shape[0] == kernel.shape[1] and kernel.shape[0] >= 2
        if not is_square or np.abs(kernel - kernel.T).max() > MATRIX_ROUNDING * largest:
            raise argument_error("matrix", matrix, "a symmetric (K, K) matrix, K >= 2")
        self.matrix = 0.5 * (kernel + kernel.T)
        # A task must not change: risks keep what they have computed from it.
        self.matrix.flags.writeable = False
        eigenvalues, vectors = np.linalg.eigh(self.matrix)
        if eigenvalues[0] < -MATRIX_ROUNDING * largest:
            raise argument_error(
                "matrix",
                matrix,
                f"positive semi-definite (lowest eigenvalue: {eigenvalues[0]:.3g})",
            )
        # A root R with R Rᵀ = matrix. Eigenvalues below zero are rounding errors.
        self._root = vectors * np.sqrt(np.maximum(eigenvalues, 0.0))

    def kernel(self, features: Features) -> Array:
        """Return the covariance matrix, (K, K); refuse features if it does not fit."""
        if len(self.matrix) != features.K:
            raise argument_error(
                "matrix",
                self.matrix.shape,
                f"of shape ({features.K}, {features.K}), one row for each feature",
            )
        return self.matrix

    def sample(self, features: Features, rng: np.random.Generator, size: int) -> Array:
        """Draw normal values with this covariance, (size, K)."""
        # `kernel` refuses features if the matrix does not have a row for each of them.
        K = len(self.kernel(features))
        return rng.normal(size=(size, K)) @ self._root.T

    def __repr__(self) -> str:
        return f"KernelTask(K={len(self.matrix)})"


class FiniteTask(Task):
    """A task that is drawn from a finite list of M functions.

    Parameters
    ----------
    values : array_like, (M, K)
        One function in each row: its values at the K features.
    weights : array_like, (M,), optional
        Probabilities of the functions; equal by default.
    """

    def __init__(self, values: ArrayLike, weights: ArrayLike | None = None) -> None:
        self.values = real_array("values", values, 2)
        M = len(self.values)
        if M < 1 or self.values.shape[1] < 2:
            raise argument_error(
                "values",
                self.values.shape,
                "an array of shape (M, K) with M >= 1, K >= 2",
            )
        if weights is None:
            probs = np.full(M, 1.0 / M)
        else:
            probs = real_array("weights", weights, 1)
        is_normalised = abs(probs.sum() - 1.0) <= SUM_ROUNDING
        if probs.shape != (M,) or (probs < 0).any() or not is_normalised:
            raise argument_error(
                "weights",
                weights,
                f"{M} numbers >= 0 that sum to 1, one for each function",
            )
        self.weights = probs / probs.sum()
        # A task must not change: risks keep what they have computed from it.
        self.values.flags.writeable = False
        self.weights.flags.writeable = False

    def factor(self, features: Features) -> Array:
        """Return vectors φ_m with an entry √weight · (f_m - f_1) for each function f.

        f_m is the value at feature m, and f_1 the value at the first feature. The
        vectors are the rows of the result, (K, M). If there are more functions than
        features, the vectors are rotated into K dimensions, which changes no distance,
        and the result is (K, K).
        """
        self._check_fits(features)
        # Subtracting f_1 changes no distance, and gives exact zeros for constant
        # functions.
        relative = self.values - self.values[:, :1]
        weighted = np.sqrt(self.weights)[:, None] * relative
        if len(self.values) <= features.K:
            return weighted.T
        # In weighted = Q R the columns of Q are orthonormal, so the columns of R have
        # the same distances as the columns of weighted.
        return np.asarray(np.linalg.qr(weighted, mode="r")).T

    def variogram(self, features: Features) -> Array:
        """Half the weighted mean squared differences of values, (K, K)."""
        # Γ_mj = ½ ‖φ_m - φ_j‖², row by row
        factor = self.factor(features)
        rows = [0.5 * np.sum((factor - phi) ** 2, axis=1) for phi in factor]
        return np.asarray(rows)

    def kernel(self, features: Features) -> Array:
        """Weighted second moments of the values, (K, K)."""
        self._check_fits(features)
        return (self.values.T * self.weights) @ self.values

    def sample(self, features: Features, rng: np.random.Generator, size: int) -> Array:
        """Values of ``size`` functions that are drawn from the list, (size, K)."""
        self._check_fits(features)
        return self.values[rng.choice(len(self.values), size=size, p=self.weights)]

    def _check_fits(self, features: Features) -> None:
        """Refuse features if the functions do not have one value for each of them."""
        if self.values.shape[1] != features.K:
            raise argument_error(
                "values",
                self.values.shape,
                f"of shape (M, {features.K}), one column for each feature",
            )

    def __repr__(self) -> str:
        return f"FiniteTask(M={self.values.shape[0]}, K={self.values.shape[1]})"
