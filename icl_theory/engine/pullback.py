"""Changes of coordinates: a risk as a function of other parameters.

A risk is a loss as a function of its own parameters. To train other parameters θ, a
`Map` φ turns θ into the parameters of the risk, and the `Pullback` is the risk as a
function of θ. The risk is then called the inner risk. Pullbacks may be nested:
`core_risk` returns the risk inside all of them. `in_coordinates` makes the usual
pullbacks of a risk whose parameters are attention scores: a matrix S with a row for
each of K features and a column for each query.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, overload, runtime_checkable

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
from icl_theory.engine.around import AroundRisk, AroundTrainer
from icl_theory.engine.capabilities import gain_at, gradients_at
from icl_theory.engine.risk import Risk, WithStart
from icl_theory.engine.sampling import Trainer, trainer_of
from icl_theory.memory import check_fits

if TYPE_CHECKING:
    from scipy.sparse import csc_array

# The product of two numbers up to this limit is finite.
LARGEST_FACTOR = 1e150
# The largest standard deviation of random factors. Normal numbers stay below 100
# standard deviations, and so below LARGEST_FACTOR.
LARGEST_SCALE = 1e148
# The coordinates of a risk whose parameters are a matrix of attention scores.
COORDINATES = ("class", "embedding", "factored")


@runtime_checkable
class Map(Protocol):
    r"""A map φ from the trained parameters θ to the parameters of an inner risk.

    Let :math:`\mathcal L` be the loss of the inner risk, g its gradient and H its
    Hessian at φ(θ), and φ' the derivative of φ at θ. The gradient of
    :math:`\mathcal L(\phi(\theta))` with respect to θ is :math:`\phi'^\top g`. The
    Hessian with respect to θ is :math:`\phi'^\top H \phi'` plus the derivative of
    :math:`\phi'^\top g` at a fixed g.
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

        The default is right for a linear map, whose derivative is the map itself.
        """
        return self.inward(direction)

    def outward(self, params: Array, gradient: Array) -> Array:
        """Transposed derivative ``φ'^T g``: the gradient in the trained parameters."""
        ...

    def bend(self, params: Array, direction: Array, gradient: Array) -> Array | float:
        """Derivative of `outward` along a direction, at a fixed inner gradient.

        The default is right for an affine map: ``φ'`` is constant, so this is 0.
        """
        return 0.0

    def stretch(self, params: Array) -> float:
        """Spectral norm of the derivative of `inward`, or an upper bound of it."""
        ...

    def blocks(self, array: Array) -> Sequence[Array]:
        """Views of the matrices that make up a parameter array."""
        return (array,)


@dataclass(frozen=True, eq=False)
class Embedding(Map):
    r"""The scores :math:`S = X Q Y^\top` of a matrix ``Q`` that starts at zero.

    The rows of X, ``vectors``, are K features, each a vector of d numbers. The rows of
    Y, ``query_vectors``, are the vectors of the queries; by default Y = X.

    If Y = X, a step of gradient descent on ``Q`` changes the scores by
    :math:`-\eta\,\Gamma\,(\partial\mathcal L/\partial S)\,\Gamma` with the Gram matrix
    :math:`\Gamma = XX^\top` (docs/theory.md, "Coordinates").

    Parameters
    ----------
    vectors : array_like, (K, d)
        The features, one in each row.
    queries : array_like, (number of queries, d), optional
        The vectors of the queries, one in each row; the features by default.
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
        """Scores ``X Q Y^T``, (K, number of queries)."""
        return self.vectors @ params @ self.query_vectors.T

    def outward(self, params: Array, gradient: Array) -> Array:
        """``X^T (dL/dS) Y``, (d, d)."""
        return self.vectors.T @ gradient @ self.query_vectors

    def stretch(self, params: Array) -> float:
        """Product of the largest singular values of X and Y."""
        return self._stretch

    @cached_property
    def _stretch(self) -> float:
        """The result of `stretch`, which is the same at all parameters."""
        # For a matrix, norm(…, 2) is the largest singular value.
        largest = float(np.linalg.norm(self.vectors, 2))
        if self.queries is None:
            return largest**2
        return largest * float(np.linalg.norm(self.query_vectors, 2))


@dataclass(frozen=True, eq=False)
class Linear(WithStart, Map):
    r"""Scores that are linear in the parameters, :math:`S = \sum_j M_j \theta_j`.

    Here :math:`M_j` has the derivatives of all scores with respect to the parameter
    :math:`\theta_j`. Examples of such parameters are a temperature, and scores of
    positions.

    Parameters
    ----------
    matrix : array_like, shape of the scores + shape of ``start``
        M, the derivatives of the scores with respect to the parameters: the arrays
        :math:`M_j`, with j along the last axes.
    start : array_like, (k,) or any other shape
        The parameters at step 0.
    """

    matrix: Array
    start: Array

    def __post_init__(self) -> None:
        # `real_array` takes the number of axes that an array must have. Here any number
        # from 1 on is allowed, so the array's own number of axes is passed. An array of
        # objects can hold any argument; `real_array` refuses everything but numbers.
        start_ndim = np.asarray(self.start, dtype=object).ndim
        start = real_array("start", self.start, max(start_ndim, 1))
        matrix_ndim = np.asarray(self.matrix, dtype=object).ndim
        # There is at least one axis of the scores, before the axes of the parameters.
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
        scores = self._flat_matrix @ params.ravel()
        return scores.reshape(self.matrix.shape[: -self.start.ndim])

    def outward(self, params: Array, gradient: Array) -> Array:
        """``M^T (dL/dS)``, of the shape of the parameters."""
        return (gradient.ravel() @ self._flat_matrix).reshape(self.start.shape)

    def stretch(self, params: Array) -> float:
        """Largest singular value of M."""
        return self._stretch

    @cached_property
    def _flat_matrix(self) -> Array:
        """M with one axis for all scores and one for all parameters."""
        return self.matrix.reshape(-1, self.start.size)

    @cached_property
    def _stretch(self) -> float:
        """The result of `stretch`, which is the same at all parameters."""
        # For a matrix, norm(…, 2) is the largest singular value.
        return float(np.linalg.norm(self._flat_matrix, 2))


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
        start = real_array("start", self.start, 3, most=LARGEST_FACTOR)
        if start.shape[0] != 2 or not 1 <= start.shape[1] <= start.shape[2]:
            raise argument_error(
                "start", start.shape, "of shape (2, rank, d) with a rank from 1 to d"
            )
        set_fields(self, start=start)

    @classmethod
    def random(
        cls, d: int, rank: int | None = None, scale: float = 0.01, seed: int = 0
    ) -> Factored:
        """Return a map that starts from random ``W_K`` and ``W_Q``, (rank, d) each.

        Their entries are independent and normal, with the standard deviation
        ``scale / sqrt(rank)``. The rank is ``d`` by default.
        """
        d = integer("d", d, minimum=1)
        rank = d if rank is None else integer("rank", rank, minimum=1, maximum=d)
        # The product of two entries must stay within float64.
        scale = number("scale", scale, maximum=LARGEST_SCALE)
        # The two factors themselves take 16 * rank * d bytes. The factor 24 is a rough
        # allowance for copies.
        check_fits("d", d, 24.0 * rank * d)
        rng = np.random.default_rng(integer("seed", seed, minimum=0))
        return cls(rng.normal(0.0, scale / np.sqrt(rank), (2, rank, d)))

    def inward(self, params: Array) -> Array:
        """``Q = W_K^T W_Q``, (d, d)."""
        return params[0].T @ params[1]

    def push(self, params: Array, direction: Array) -> Array:
        """Change of ``Q`` along a direction, which holds changes of both factors."""
        return direction[0].T @ params[1] + params[0].T @ direction[1]

    def outward(self, params: Array, gradient: Array) -> Array:
        """``(W_Q G^T, W_K G)`` for ``G = dL/dQ``, (2, rank, d)."""
        return np.stack([params[1] @ gradient.T, params[0] @ gradient])

    def bend(self, params: Array, direction: Array, gradient: Array) -> Array:
        """Change of ``(W_Q G^T, W_K G)`` along a direction, at a fixed G.

        The change is `outward` at the direction, because `outward` is linear in the
        factors.
        """
        return self.outward(direction, gradient)

    def stretch(self, params: Array) -> float:
        """Upper bound √(k² + q²), with the largest singular values k, q of W_K and W_Q.

        A change of norm 1 may change both factors: W_K by a change of norm a and W_Q by
        one of norm b, with a² + b² = 1. Then Q changes by at most a q + b k, which is
        at most the bound.
        """
        key_norm = float(np.linalg.norm(params[0], 2))
        query_norm = float(np.linalg.norm(params[1], 2))
        return math.hypot(key_norm, query_norm)

    def blocks(self, array: Array) -> Sequence[Array]:
        """The two factors."""
        return tuple(array)


@dataclass(frozen=True, eq=False)
class Affine(Map):
    r"""The vector :math:`b + M\theta`, in which θ starts at zero.

    Parameters
    ----------
    base : ndarray, (n,)
        The vector b.
    columns : scipy.sparse.csc_array, (n, k)
        The matrix M.
    sizes : tuple of int
        The sizes of the blocks of θ, whose sum is k.

    Examples
    --------
    A parabola in two numbers, of which the second is held at 1:

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
        given_sizes = sequence("sizes", self.sizes, int, "integers")
        sizes = tuple(integer("sizes", size, minimum=1) for size in given_sizes)
        shape = (base.size, sum(sizes))
        columns = instance(
            "columns", self.columns, csc_array, f"a csc_array of shape {shape}"
        )
        # Refuses entries that are not finite numbers.
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
        # `data` has the entries of M that are not zero.
        return float(np.linalg.norm(self.columns.data))

    def blocks(self, array: Array) -> Sequence[Array]:
        """Views of the consecutive parts of θ that have the given ``sizes``."""
        # np.split takes the indices at which a part begins, without the first index 0.
        # So the last sum, the size of θ, is left out.
        return np.split(array, np.cumsum(self.sizes)[:-1])


@dataclass(frozen=True, eq=False)
class Pullback(AroundRisk):
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
        The map does not return parameters of the inner risk's shape.

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
                "an engine.Map, which defines initial, inward, outward and stretch",
            )
        shape = np.shape(self.risk.initial)
        # If the map fails, the error below shows its message in the place of a shape.
        try:
            outcome: Any = np.shape(self.map.inward(self.map.initial))
        except (ValueError, IndexError, TypeError, AttributeError) as error:
            outcome = str(error)
        if outcome != shape:
            raise argument_error(
                "map",
                outcome,
                f"a map whose results have the inner parameters' shape {shape}",
            )

    @property
    def initial(self) -> Array:
        """Parameters of the map at step 0."""
        return self.map.initial

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss, and its gradient with respect to the trained parameters θ."""
        loss, gradient = self.risk.evaluate(self.map.inward(params), step)
        return loss + self.offset(), self.map.outward(params, gradient)

    def offset(self) -> float:
        """Return a constant that is added to the loss of the inner risk.

        It is 0 unless a subclass overrides this method.
        """
        return 0.0

    def gradients(self, states: Array) -> Array:
        """Gradients at n states, (n, ...), from the gradients of the inner risk."""
        inner_states = np.stack([self.map.inward(state) for state in states])
        inner_gradients = gradients_at(self.risk, inner_states)
        return np.stack(
            [
                self.map.outward(state, gradient)
                for state, gradient in zip(states, inner_gradients, strict=True)
            ]
        )

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Observations of the inner risk at φ(θ)."""
        return self.risk.observe(self.map.inward(params), step)

    def excess(self, params: ArrayLike) -> float:
        """Excess of the inner risk at φ(θ)."""
        return self.risk.excess(self.map.inward(self._checked(params)))

    def loss_error(self, params: ArrayLike) -> float:
        """Estimated error of the loss of the inner risk; infinite if φ(θ) overflows."""
        inner_params = self.map.inward(self._checked(params))
        # A risk refuses parameters that are not finite.
        if not np.isfinite(inner_params).all():
            return math.inf
        return self.risk.loss_error(inner_params)

    def gain(self, params: Array) -> float:
        """Stretch of the map times the gain of the inner risk.

        The product is an upper bound of the norm of the derivative of the scores, by
        the chain rule.
        """
        return self.map.stretch(params) * gain_at(self.risk, self.map.inward(params))

    def hessian_product(self, params: Array, direction: Array) -> Array:
        r"""``φ'^T H φ' v`` for a direction v, plus the bend of the map along v.

        H is the Hessian of the inner risk, and φ' the derivative of the map.
        """
        inner_params = self.map.inward(params)
        inner_direction = self.map.push(params, direction)
        inner_product = self.risk.hessian_product(inner_params, inner_direction)
        product = self.map.outward(params, inner_product)
        # A map that does not override `Map.bend` is affine. Its bend is zero, so the
        # gradient of the inner risk is not needed.
        if type(self.map).bend is Map.bend:
            return product
        _loss, inner_gradient = self.risk.evaluate(inner_params)
        return product + self.map.bend(params, direction, inner_gradient)

    def sampled(self, batch: int, seed: int = 0) -> Trainer[Any]:
        """Return the trainer of the inner risk on sampled prompts, pulled back.

        Raises
        ------
        ValueError
            The inner risk cannot be sampled, or an argument is out of range.
        """
        trainer = trainer_of(self.risk, batch, seed)
        return SampledPullback(replace(self, risk=trainer))

    def floor(self) -> float:
        """Irreducible loss of the inner risk.

        If the map does not reach all parameters of the inner risk, this is a lower
        bound of the irreducible loss.
        """
        return self.risk.floor()

    def blocks(self, array: Array) -> Sequence[Array]:
        """Blocks of the map."""
        return self.map.blocks(array)


class SampledPullback(Pullback, AroundTrainer):
    """A trainer that is the pullback of another trainer.

    Parameters
    ----------
    pullback : Pullback
        The pullback, whose inner risk is a `Trainer`. It may be an instance of a
        subclass. The metric, offset and observations of the subclass are then kept,
        because the methods below call the methods of the pullback.
    """

    pullback: Pullback
    risk: Trainer[Any]

    def __init__(self, pullback: Pullback) -> None:
        instance("pullback", pullback, Pullback, "a Pullback")
        trainer = instance("risk", pullback.risk, Trainer, "a Trainer")
        # The fields of a frozen dataclass cannot be assigned in the usual way.
        set_fields(self, pullback=pullback, risk=trainer, map=pullback.map)

    @property
    def metric(self) -> float | Array:
        """Metric of the pullback."""
        return self.pullback.metric

    def cheaper(self) -> SampledPullback:
        """Return the pullback of the cheaper inner trainer."""
        return SampledPullback(replace(self.pullback, risk=self.risk.cheaper()))

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Mean loss of the step's prompts, and its gradient."""
        return self.pullback.evaluate(params, step)

    def losses_on(self, params: Array, prompts: Any) -> Array:
        """Loss of each of B prompts, (B,)."""
        losses = self.risk.losses_on(self.map.inward(params), prompts)
        # `offset` is the constant that a subclass adds to the loss.
        return losses + self.pullback.offset()

    def evaluate_on(self, params: Array, prompts: Any) -> tuple[float, Array]:
        """Mean loss of given prompts, and its gradient in the trained parameters."""
        loss, gradient = self.risk.evaluate_on(self.map.inward(params), prompts)
        return loss + self.pullback.offset(), self.map.outward(params, gradient)

    def evaluate_runs(self, params: Array, prompts: Any) -> tuple[Array, Array]:
        """Mean losses and gradients of R runs, (R,) and (R, ...)."""
        inner_params = np.stack([self.map.inward(run_params) for run_params in params])
        losses, inner_gradients = self.risk.evaluate_runs(inner_params, prompts)
        gradients = [
            self.map.outward(run_params, gradient)
            for run_params, gradient in zip(params, inner_gradients, strict=True)
        ]
        return losses + self.pullback.offset(), np.stack(gradients)

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Observations of the pullback."""
        return self.pullback.observe(params, step)

    def excess(self, params: ArrayLike) -> float:
        """Excess of the pullback."""
        return self.pullback.excess(params)

    def hessian_product(self, params: Array, direction: Array) -> Array:
        """Product of the Hessian of the pullback with a direction."""
        return self.pullback.hessian_product(params, direction)

    def floor(self) -> float:
        """Floor of the pullback."""
        return self.pullback.floor()

    def blocks(self, array: Array) -> Sequence[Array]:
        """Blocks of the pullback."""
        return self.pullback.blocks(array)


def pulled_back(risk: Risk, change: Map) -> Pullback:
    """Return a risk as a function of the parameters that the map ``change`` takes.

    If the risk is a trainer, the result is a trainer, too.
    """
    return _as_trainer(Pullback(risk, change))


def _as_trainer(pullback: Pullback) -> Pullback:
    """Return a pullback, turned into a trainer if its inner risk is a trainer."""
    if isinstance(pullback.risk, Trainer):
        return SampledPullback(pullback)
    return pullback


def core_risk(risk: Risk | None) -> Any:
    """Return the risk inside all changes of coordinates.

    A risk without a change of coordinates, or None, is returned as it is.
    """
    while isinstance(risk, Pullback):
        risk = risk.risk
    return risk


def core_params(risk: Risk, params: Array) -> Array:
    """Map parameters of a risk to the parameters of its core risk."""
    while isinstance(risk, Pullback):
        params = risk.map.inward(params)
        risk = risk.risk
    return params


@overload
def replace_core(risk: Risk, core: Trainer[Any]) -> Trainer[Any]: ...


@overload
def replace_core(risk: Risk, core: Risk) -> Risk: ...


def replace_core(risk: Risk, core: Risk) -> Risk:
    """Return the risk ``core`` within all changes of coordinates of ``risk``."""
    if not isinstance(risk, Pullback):
        return core
    # `replace` calls the constructor with the fields of the class, which a
    # SampledPullback does not take. `_as_trainer` makes a SampledPullback again if the
    # core is a trainer.
    if isinstance(risk, SampledPullback):
        return replace_core(risk.pullback, core)
    return _as_trainer(replace(risk, risk=replace_core(risk.risk, core)))


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
        A risk whose parameters are scores: one row for each of K features, and one
        column for each query. By default the queries are the features. For "linear" the
        scores may have any shape.
    coordinates : {"class", "embedding", "factored", "linear"}
        The trained parameters: the scores S themselves ("class"); the matrix ``Q`` in
        ``S = X Q Y^T``, with the features X and the queries Y ("embedding"); its
        factors in ``Q = W_K^T W_Q`` ("factored"); or parameters of which the scores are
        linear functions ("linear").
    vectors : array_like, (K, d)
        The features, one in each row. For "linear" these are the derivatives of the
        scores with respect to the parameters, of the shape of the scores followed by
        the shape of the parameters.
    queries : array_like, (number of queries, d), optional
        The vectors of the queries, if they are not the features ("embedding" and
        "factored" only).
    rank : int, optional
        The number of rows of ``W_K`` and ``W_Q`` ("factored" only); ``d`` by default.
    scale, seed : float, int
        The entries of the random start have the standard deviation ``scale /
        sqrt(rank)`` and are drawn with ``seed`` ("factored" only).
    start : array_like, optional
        The initial ``W_K`` and ``W_Q``, (2, rank, d), instead of random ones
        ("factored"); or the initial parameters, instead of zeros ("linear").

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
    # The vectors are checked in all coordinates, also in "class", which needs none.
    embedding = _embedding(risk, vectors, queries)
    if coordinates == "class":
        return risk
    embedded = pulled_back(risk, embedding)
    if coordinates == "embedding":
        return embedded
    # The coordinates are "factored": the matrix Q of the embedding has two factors.
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
    return pulled_back(embedded, factors)


def _linear(risk: Risk, vectors: ArrayLike, start: ArrayLike | None) -> Pullback:
    """Return a risk over parameters of which the scores are linear functions.

    ``vectors`` are the derivatives of the scores with respect to the parameters.
    """
    score_shape = np.shape(risk.initial)
    matrix = np.asarray(vectors, dtype=np.float64)
    # Without a start the parameters are a vector of k zeros. The last axis of the
    # matrix has the length k.
    initial = np.zeros(matrix.shape[-1:]) if start is None else np.asarray(start)
    # The axes of the scores come first, and then the axes of the parameters.
    if matrix.shape[: matrix.ndim - initial.ndim] != score_shape:
        allowed = f"of shape ({', '.join(map(str, score_shape))}, k)"
        raise argument_error("vectors", matrix.shape, allowed)
    return pulled_back(risk, Linear(matrix, initial))


def _embedding(risk: Risk, vectors: ArrayLike, queries: ArrayLike | None) -> Embedding:
    """Return the embedding for a risk whose parameters are a matrix of scores.

    Raises
    ------
    ValueError
        The risk's parameters are not a matrix of scores, or there is not one vector for
        each row of scores and one query for each column.
    """
    given_queries = None if queries is None else np.asarray(queries)
    embedding = Embedding(np.asarray(vectors), given_queries)
    shape = np.shape(risk.initial)
    is_matrix = len(shape) == 2
    # Without queries the features are the queries, so the matrix must be square.
    if not is_matrix or (queries is None and shape[0] != shape[1]):
        raise argument_error(
            "risk",
            shape,
            "a risk whose parameters are a matrix of scores, which is square unless"
            " queries are given",
        )
    feature_count, query_count = shape
    _check_row_count("vectors", embedding.vectors, feature_count)
    _check_row_count("queries", embedding.query_vectors, query_count)
    return embedding


def _check_row_count(name: str, vectors: Array, count: int) -> None:
    """Refuse an array of vectors unless it has ``count`` rows."""
    if len(vectors) != count:
        raise argument_error(
            name,
            vectors.shape,
            f"an array with {count} rows, one for each feature or query",
        )
