"""Changes of coordinates: a risk as a function of other parameters, mapped to its own.

A `Map` takes the trained parameters to those of a risk, and a `Pullback` is the risk as
a function of the trained ones. Pullbacks may be nested: `core_risk` is the risk inside
all of them. `in_coordinates` makes the usual ones for risks over scores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import (
    Array,
    argument_error,
    choice,
    instance,
    integer,
    number,
    real_array,
    sequence,
    set_fields,
)
from icl_theory.engine.capabilities import gain_at, gradients_at
from icl_theory.engine.risk import Risk, WithStart
from icl_theory.memory import check_fits

if TYPE_CHECKING:
    from scipy.sparse import csc_array

COORDINATES = ("class", "embedding", "factored")  # of class scores


@runtime_checkable
class Map(Protocol):
    r"""A map φ from the trained parameters θ to those of an inner risk.

    The gradient of :math:`\mathcal L(\phi(\theta))` is :math:`\phi'^\top g` for the
    inner gradient g, and its Hessian is :math:`\phi'^\top H \phi'` plus the derivative
    of :math:`\phi'^\top g` at a fixed g.
    """

    @property
    def initial(self) -> Array:
        """Parameters at step 0."""
        ...

    def inward(self, params: Array) -> Array:
        """Parameters φ(θ) of the inner risk."""
        ...

    def push(self, params: Array, direction: Array) -> Array:
        """Derivative ``φ' v`` of `inward` along a direction v.

        A linear map takes a direction like parameters.
        """
        return self.inward(direction)

    def outward(self, params: Array, gradient: Array) -> Array:
        """Transposed derivative ``φ'^T g``: the gradient in the trained parameters."""
        ...

    def bend(self, params: Array, direction: Array, gradient: Array) -> Array | float:
        """Derivative of `outward` along a direction, at a fixed inner gradient.

        It is 0 for an affine map.
        """
        return 0.0

    def stretch(self, params: Array) -> float:
        """Norm of the derivative of `inward`, or an upper bound."""
        ...

    def blocks(self, array: Array) -> Sequence[Array]:
        """Views of the matrices that a parameter array consists of."""
        return (array,)


@dataclass(frozen=True, eq=False)
class Embedding(Map):
    r"""The scores :math:`S = X Q Y^\top` of a matrix ``Q`` that starts at zero.

    The rows of X are the features. The rows of Y are the queries, by default the
    features.

    Gradient descent on ``Q`` moves the scores by
    :math:`S \leftarrow S - \eta\,\Gamma\,(\partial\mathcal L/\partial S)\,\Gamma`, with
    the Gram matrix :math:`\Gamma = XX^\top` (docs/theory.md, "Coordinates").

    Parameters
    ----------
    vectors : array_like, (K, d)
        The features, one in each row.
    queries : array_like, (Q, d), optional
        Vectors of the queries, if they are not the features.
    """

    vectors: Array
    queries: Array | None = None
    query_vectors: Array = field(init=False, repr=False)  # Y

    def __post_init__(self) -> None:
        vectors = real_array("vectors", self.vectors, 2)
        query_vectors = vectors
        if self.queries is not None:
            query_vectors = real_array("queries", self.queries, 2)
        if query_vectors.shape[1] != vectors.shape[1]:
            raise argument_error(
                "queries",
                query_vectors.shape,
                f"rows of {vectors.shape[1]} numbers, as in vectors",
            )
        set_fields(self, vectors=vectors, query_vectors=query_vectors)

    @property
    def initial(self) -> Array:
        """The zero matrix, (d, d)."""
        d = self.vectors.shape[1]
        return np.zeros((d, d))

    def inward(self, params: Array) -> Array:
        """Class scores ``X Q Y^T``, (K, Q)."""
        return self.vectors @ params @ self.query_vectors.T

    def outward(self, params: Array, gradient: Array) -> Array:
        """``X^T (dL/dS) Y``, (d, d)."""
        return self.vectors.T @ gradient @ self.query_vectors

    def stretch(self, params: Array) -> float:
        """Product of the largest singular values of X and Y."""
        return self._stretch

    @cached_property
    def _stretch(self) -> float:
        largest = float(np.linalg.norm(self.vectors, 2))
        if self.queries is None:
            return largest**2
        return largest * float(np.linalg.norm(self.query_vectors, 2))


@dataclass(frozen=True, eq=False)
class Linear(WithStart, Map):
    r"""Scores that are linear in the parameters, :math:`S = \sum_j M_j \theta_j`.

    Examples are a temperature and scores of positions.

    Parameters
    ----------
    matrix : array_like, (..., k)
        The derivatives of the scores; the last axes are those of the parameters, which
        may be a matrix.
    start : array_like, (k,)
        Where the parameters start.
    """

    matrix: Array
    start: Array

    def __post_init__(self) -> None:
        start_ndim = np.asarray(self.start, dtype=object).ndim
        start = real_array("start", self.start, max(start_ndim, 1))
        matrix_ndim = np.asarray(self.matrix, dtype=object).ndim
        matrix = real_array("matrix", self.matrix, max(matrix_ndim, start.ndim + 1))
        if matrix.shape[-start.ndim :] != start.shape:
            raise argument_error(
                "matrix",
                matrix.shape,
                f"finite, with last axes of {start.shape}, as start",
            )
        set_fields(self, matrix=matrix, start=start)

    def inward(self, params: Array) -> Array:
        """``M theta``, of the shape of the scores."""
        return np.tensordot(self.matrix, params, axes=params.ndim)

    def outward(self, params: Array, gradient: Array) -> Array:
        """``M^T (dL/dS)``, (k,)."""
        return np.tensordot(gradient, self.matrix, axes=gradient.ndim)

    def stretch(self, params: Array) -> float:
        """Largest singular value of M."""
        return self._stretch

    @cached_property
    def _stretch(self) -> float:
        return float(np.linalg.norm(self.matrix.reshape(-1, self.start.size), 2))


@dataclass(frozen=True, eq=False)
class Factored(WithStart, Map):
    r"""The matrix :math:`Q = W_K^\top W_Q` of two factors.

    Parameters
    ----------
    start : ndarray, (2, rank, d)
        Initial ``W_K`` and ``W_Q``.
    """

    start: Array

    def __post_init__(self) -> None:
        # products of two numbers up to this are finite
        start = real_array("start", self.start, 3, most=1e150)
        if start.shape[0] != 2 or not 1 <= start.shape[1] <= start.shape[2]:
            raise argument_error(
                "start", start.shape, "of shape (2, rank, d) with a rank from 1 to d"
            )
        set_fields(self, start=start)

    @classmethod
    def random(
        cls, d: int, rank: int | None = None, scale: float = 0.01, seed: int = 0
    ) -> Factored:
        """Start from normal entries with standard deviation ``scale / sqrt(rank)``."""
        d = integer("d", d, minimum=1)
        rank = d if rank is None else integer("rank", rank, minimum=1, maximum=d)
        scale = number("scale", scale, maximum=1e148)
        check_fits("d", d, 24.0 * rank * d)
        rng = np.random.default_rng(integer("seed", seed, minimum=0))
        return cls(rng.normal(0.0, scale / np.sqrt(rank), (2, rank, d)))

    def inward(self, params: Array) -> Array:
        """``Q = W_K^T W_Q``, (d, d)."""
        return params[0].T @ params[1]

    def push(self, params: Array, direction: Array) -> Array:
        """Change of ``Q``."""
        return direction[0].T @ params[1] + params[0].T @ direction[1]

    def outward(self, params: Array, gradient: Array) -> Array:
        """``(W_Q G^T, W_K G)`` for ``G = dL/dQ``, (2, rank, d)."""
        return np.stack([params[1] @ gradient.T, params[0] @ gradient])

    def bend(self, params: Array, direction: Array, gradient: Array) -> Array:
        """Change of ``(W_Q G^T, W_K G)`` with the factors."""
        return self.outward(direction, gradient)

    def stretch(self, params: Array) -> float:
        """Root of the sum of the squared largest singular values of the factors.

        Changes of both factors may add up.
        """
        key_norm = float(np.linalg.norm(params[0], 2))
        query_norm = float(np.linalg.norm(params[1], 2))
        return math.hypot(key_norm, query_norm)

    def blocks(self, array: Array) -> Sequence[Array]:
        """The two factors."""
        return tuple(array)


@dataclass(frozen=True, eq=False)
class Affine(Map):
    r"""Parameters :math:`b + M\theta` for a risk over vectors, from θ = 0.

    Parameters
    ----------
    base : ndarray, (n,)
        The vector b.
    columns : scipy.sparse.csc_array, (n, k)
        The matrix M.
    sizes : tuple of int
        Sizes of the blocks of θ, k in all.

    Examples
    --------
    A parabola in two numbers, the second held at 1:

    >>> import numpy as np, icl_theory as icl
    >>> from scipy.sparse import csc_array
    >>> from icl_theory.engine import Affine, Pullback
    >>> class Parabola(icl.Risk):
    ...     initial = np.zeros(2)
    ...     def evaluate(self, params, step=0):
    ...         return 0.5 * float(params @ params), params
    >>> first = Affine(np.array([0.0, 1.0]), csc_array([[1.0], [0.0]]), (1,))
    >>> Pullback(Parabola(), first).loss([3.0])
    5.0
    """

    base: Array
    columns: csc_array
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        from scipy.sparse import csc_array  # slow to load

        base = real_array("base", self.base, 1)
        numbers = sequence("sizes", self.sizes, int, "integers")
        sizes = tuple(integer("sizes", size, minimum=1) for size in numbers)
        shape = (base.size, sum(sizes))
        columns = instance(
            "columns", self.columns, csc_array, f"a csc_array of shape {shape}"
        )
        real_array("columns", columns.data, 1)
        if columns.shape != shape:
            raise argument_error("columns", columns.shape, f"of shape {shape}")
        set_fields(self, base=base, sizes=sizes)

    @property
    def initial(self) -> Array:
        """The zero vector, (k,)."""
        return np.zeros(sum(self.sizes))

    def inward(self, params: Array) -> Array:
        """``b + M theta``, (n,)."""
        return self.base + self.columns @ params

    def push(self, params: Array, direction: Array) -> Array:
        """``M v`` for a direction v."""
        return np.asarray(self.columns @ direction)

    def outward(self, params: Array, gradient: Array) -> Array:
        """``M^T g`` for an inner gradient g, (k,)."""
        return np.asarray(self.columns.T @ gradient)

    def stretch(self, params: Array) -> float:
        """Frobenius norm of M, an upper bound of its largest singular value."""
        return float(np.linalg.norm(self.columns.data))

    def blocks(self, array: Array) -> Sequence[Array]:
        """One view for each size."""
        return np.split(array, np.cumsum(self.sizes)[:-1])


@dataclass(frozen=True, eq=False)
class Pullback(Risk):
    r"""The risk :math:`\mathcal L(\phi(\theta))` of other parameters θ, for a map φ.

    See docs/theory.md, "Coordinates".

    Parameters
    ----------
    risk : Risk
        The inner risk.
    map : Map
        Takes θ to the parameters of the inner risk.

    Raises
    ------
    ValueError
        The map returns parameters of another shape.

    Examples
    --------
    >>> import numpy as np, icl_theory as icl
    >>> from icl_theory.engine import Embedding, Factored, Pullback
    >>> features = icl.Features.simplex(4, delta=1.0)
    >>> risk = icl.PopulationRisk(features, icl.tasks.Linear(2.0))
    >>> over_q = Pullback(risk, Embedding(features.vectors))
    >>> Pullback(over_q, Factored.random(4, rank=2)).initial.shape
    (2, 2, 4)
    """

    risk: Risk
    map: Map

    def __post_init__(self) -> None:
        instance("risk", self.risk, Risk, "a Risk")  # type: ignore[type-abstract]
        if not isinstance(self.map, Map):
            raise argument_error(
                "map",
                self.map,
                "a Map (with initial, inward, push, outward and stretch)",
            )
        shape = np.shape(self.risk.initial)
        try:
            mapped: Any = np.shape(self.map.inward(self.map.initial))
        except (ValueError, IndexError, TypeError, AttributeError) as error:
            mapped = str(error)
        if mapped != shape:
            raise argument_error(
                "map", mapped, f"one to parameters of the inner risk, of shape {shape}"
            )

    @property
    def stochastic(self) -> bool:
        """Whether the inner risk draws data."""
        return self.risk.stochastic

    @property
    def initial(self) -> Array:
        """Parameters at step 0 of the map."""
        return self.map.initial

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss, and its gradient pulled back."""
        loss, gradient = self.risk.evaluate(self.map.inward(params), step)
        return loss, self.map.outward(params, gradient)

    def gradients(self, states: Array) -> Array:
        """Gradients of the inner risk, pulled back."""
        inner_states = np.stack([self.map.inward(state) for state in states])
        inner_gradients = gradients_at(self.risk, inner_states)
        return np.stack(
            [
                self.map.outward(state, gradient)
                for state, gradient in zip(states, inner_gradients, strict=True)
            ]
        )

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Observations of the inner risk."""
        return self.risk.observe(self.map.inward(params), step)

    def excess(self, params: ArrayLike) -> float:
        """Excess of the inner risk."""
        return self.risk.excess(self.map.inward(self._checked(params)))

    def loss_error(self, params: ArrayLike) -> float:
        """Error of the loss of the inner risk."""
        return self.risk.loss_error(self.map.inward(self._checked(params)))

    def gain(self, params: Array) -> float:
        """Stretch of the map times the gain of the inner risk."""
        return self.map.stretch(params) * gain_at(self.risk, self.map.inward(params))

    def hessian_product(self, params: Array, direction: Array) -> Array:
        r"""``φ'^T H φ' v`` with the inner Hessian H, plus the bend of the map."""
        inner_params = self.map.inward(params)
        inner_direction = self.map.push(params, direction)
        inner_product = self.risk.hessian_product(inner_params, inner_direction)
        product = self.map.outward(params, inner_product)
        # an affine map does not bend, which saves a gradient
        if type(self.map).bend is Map.bend:
            return product
        inner_gradient = self.risk.evaluate(inner_params)[1]
        return product + self.map.bend(params, direction, inner_gradient)

    def floor(self) -> float:
        """Irreducible loss of the inner risk.

        It is a lower bound if the map does not reach all parameters of the inner risk.
        """
        return self.risk.floor()

    def blocks(self, array: Array) -> Sequence[Array]:
        """Blocks of the map."""
        return self.map.blocks(array)


def core_risk(risk: Risk | None) -> Any:
    """Return the risk inside all changes of coordinates, the risk itself if none."""
    while isinstance(risk, Pullback):
        risk = risk.risk
    return risk


def core_params(risk: Risk, params: Array) -> Array:
    """Return the parameters of the core risk at given parameters of the whole."""
    while isinstance(risk, Pullback):
        params = risk.map.inward(params)
        risk = risk.risk
    return params


def replace_core(risk: Risk, core: Risk) -> Risk:
    """Return the same changes of coordinates around another core risk."""
    if not isinstance(risk, Pullback):
        return core
    return replace(risk, risk=replace_core(risk.risk, core))


def in_coordinates(
    risk: Risk,
    coordinates: str,
    vectors: ArrayLike,
    *,
    queries: ArrayLike | None = None,
    rank: int | None = None,
    scale: float = 0.01,
    seed: int = 0,
    start: ArrayLike | None = None,
) -> Risk:
    """Wrap a risk over scores so that it is trained in other coordinates.

    Parameters
    ----------
    risk : Risk
        Its parameters are scores, (K, K) or, for Q queries, (K, Q); of any shape if
        "linear".
    coordinates : {"class", "embedding", "factored", "linear"}
        The scores themselves; the matrix ``Q`` of ``S = X Q Y^T``; its factors ``Q =
        W_K^T W_Q``; or the parameters of which the scores are linear functions.
    vectors : array_like, (K, d)
        The features, one in each row. If "linear": the derivatives of the scores, (...,
        k), by k parameters, or by those of a matrix, (..., k, l).
    queries : array_like, (Q, d), optional
        Vectors of the queries, if they are not the features ("embedding" and "factored"
        only).
    rank : int, optional
        Rows of ``W_K`` and ``W_Q`` ("factored" only); ``d`` by default.
    scale, seed : float, int
        Size and seed of the random start ("factored" only).
    start : array_like, (2, rank, d), (k,) or (k, l), optional
        Initial ``W_K`` and ``W_Q`` instead of random ones ("factored"), or parameters
        instead of zeros ("linear").

    Returns
    -------
    Risk
        The same loss over the new parameters.

    Raises
    ------
    ValueError
        The coordinates are unknown, the rank is out of range, or the vectors do not fit
        the risk.

    Examples
    --------
    >>> import icl_theory as icl
    >>> features = icl.Features.simplex(4, delta=1.0)
    >>> risk = icl.PopulationRisk(features, icl.tasks.Linear(2.0))
    >>> icl.in_coordinates(risk, "factored", features.vectors, rank=2).initial.shape
    (2, 2, 4)
    """
    choice("coordinates", coordinates, (*COORDINATES, "linear"))
    instance("risk", risk, Risk, "a Risk")  # type: ignore[type-abstract]
    if coordinates == "linear":
        return _linear(risk, vectors, start)
    embedding = _embedding(risk, vectors, queries)
    if coordinates == "class":
        return risk
    embedded = Pullback(risk, embedding)
    if coordinates == "embedding":
        return embedded
    d = embedding.vectors.shape[1]
    if start is None:
        factors = Factored.random(d, rank, scale, seed)
    else:
        factors = Factored(np.asarray(start))
    if factors.start.shape[2] != d:
        raise argument_error(
            "start",
            factors.start.shape,
            f"of shape (2, rank, {d}) with a rank from 1 to {d}",
        )
    return Pullback(embedded, factors)


def _linear(risk: Risk, vectors: ArrayLike, start: ArrayLike | None) -> Pullback:
    """Return a risk over parameters of which the scores are linear functions."""
    shape = np.shape(risk.initial)
    matrix = np.asarray(vectors, dtype=np.float64)
    first = np.zeros(matrix.shape[-1:]) if start is None else np.asarray(start)
    if matrix.shape[: matrix.ndim - first.ndim] != shape:
        raise argument_error(
            "vectors", matrix.shape, f"of shape ({', '.join(map(str, shape))}, k)"
        )
    return Pullback(risk, Linear(matrix, first))


def _embedding(risk: Risk, vectors: ArrayLike, queries: ArrayLike | None) -> Embedding:
    """Return an embedding that fits the scores of a risk."""
    shape = np.shape(risk.initial)
    query_vectors = None if queries is None else np.asarray(queries)
    embedding = Embedding(np.asarray(vectors), query_vectors)
    if len(shape) != 2 or (shape[0] != shape[1] and queries is None):
        raise argument_error(
            "risk",
            shape,
            "one whose parameters are a square matrix, unless queries are given",
        )
    _check_rows("vectors", embedding.vectors, shape[0])
    _check_rows("queries", embedding.query_vectors, shape[1])
    return embedding


def _check_rows(name: str, vectors: Array, size: int) -> None:
    if len(vectors) != size:
        raise argument_error(
            name, vectors.shape, f"an array with {size} rows, one for each feature"
        )
