"""What can be trained: the Risk protocol, and changes of coordinates as Risks around Risks.

A Risk is an initial parameter array, a loss with its gradient, the metric of its coordinates and what to
observe on the way. The engine (`icl_theory.engine.descent`) knows nothing else about a model.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icl_theory._validate import Array, choice, instance, integer, number, real_array, refuse, store

COORDINATES = ("class", "embedding", "factored")


class ClosedForm(Protocol):
    """The iterates of descent on a risk without taking steps, see `Risk.closed_form`."""

    def states(self, steps: NDArray[np.int64]) -> Array:
        """Return the parameters at some steps, (T, ...)."""
        ...

    def first_below(self, epsilon: float, last: int) -> tuple[int | None, float]:
        """Return the first step with loss <= epsilon, None where it is beyond ``last``, and its estimated error."""
        ...


@runtime_checkable
class Risk(Protocol):
    """A trainable objective; inherit from it, give ``initial`` and ``evaluate``, and the rest has defaults.

    Gradient descent on a Risk is ``params <- params - eta * gradient / metric``.

    Examples
    --------
    A model in six lines, and its training run:

    >>> import numpy as np, icl_theory as icl
    >>> class Parabola(icl.Risk):
    ...     initial = np.array([2.0])
    ...     def evaluate(self, params, step=0):
    ...         return 0.5 * float(params @ params), params
    >>> icl.descend(Parabola(), eta=0.5, epsilon=1e-6).steps
    11
    """

    @property
    @abstractmethod
    def initial(self) -> Array:
        """Parameters at step 0, an array of any shape."""
        ...

    @abstractmethod
    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and gradient at ``params``, unchecked; only risks that draw data at each step look at ``step``.

        The engine calls it at every step; `loss` and `gradient` check their argument.
        """
        ...

    @property
    def metric(self) -> float | Array:
        """Diagonal metric of the coordinates (1 unless they are a reduction of larger ones)."""
        return 1.0

    @property
    def stochastic(self) -> bool:
        """Whether ``evaluate`` draws data, so that losses of single steps decide nothing."""
        return False

    def loss(self, params: ArrayLike) -> float:
        """Loss at ``params``, which must be finite and of the shape of ``initial``."""
        return self.evaluate(self._checked(params))[0]

    def gradient(self, params: ArrayLike) -> Array:
        """Gradient of the loss at ``params``, of the same shape."""
        return self.evaluate(self._checked(params))[1]

    def _checked(self, params: ArrayLike) -> Array:
        shape = np.shape(self.initial)
        array = real_array("params", params, len(shape))
        if array.shape != shape:
            raise refuse("params", array.shape, f"of shape {shape}")
        return array

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Quantities to record along a run, by name; ``attention`` is the one that plots know."""
        return {}

    def floor(self) -> float:
        """Irreducible loss: no parameters give less."""
        return 0.0

    def closed_form(self, eta: float, rule: str) -> ClosedForm | None:
        """Return the iterates in closed form for a learning rate and an update rule, None where there is none."""
        return None

    def series(self, states: Array, steps: NDArray[np.int64]) -> tuple[Array, dict[str, Array]]:
        """Return losses, (T,), and observations, (T, ...) each, at many states, (T, ...)."""
        losses = np.array([self.evaluate(state, int(t))[0] for state, t in zip(states, steps, strict=True)])
        seen = [self.observe(state, int(t)) for state, t in zip(states, steps, strict=True)]
        return losses, {name: np.stack([np.asarray(each[name]) for each in seen]) for name in seen[0]}

    def gain(self, params: Array) -> float:
        """Norm of the change of the scores per unit change of the parameters: 1 where the parameters are scores."""
        return 1.0

    def hessian_product(self, params: Array, direction: Array) -> Array:
        """Product of the Hessian with a direction, by a central difference unless a risk knows better."""
        length = float(np.abs(direction).max(initial=0.0))
        if length == 0.0:
            return np.zeros_like(direction)
        h = 6e-6 * max(1.0, float(np.abs(params).max(initial=0.0))) / length
        ahead, behind = self.evaluate(params + h * direction)[1], self.evaluate(params - h * direction)[1]
        return (ahead - behind) / (2.0 * h)

    def sharpness(self, params: ArrayLike) -> float:
        r"""Largest eigenvalue of the Hessian in the metric of the coordinates, :math:`M^{-1/2}HM^{-1/2}`.

        Gradient descent near a minimum is stable for :math:`\eta < 2/\lambda_{\max}`.

        Parameters
        ----------
        params : array_like
            Of the shape of ``initial``.

        Returns
        -------
        float
            Squared label units per squared unit of the scores; negative where the loss is concave.

        References
        ----------
        docs/theory.md, "Sharpness".

        Examples
        --------
        >>> import icl_theory as icl, numpy as np
        >>> risk = icl.PopulationRisk(icl.Features.simplex(5, 1.0), icl.tasks.Linear(2.0), N=20, noise=1.0)
        >>> 2.0 / risk.sharpness(np.eye(5)) > 4.0
        True
        """
        from icl_theory.engine.sharpness import largest_eigenvalue

        return largest_eigenvalue(self, self._checked(params))[0]


@dataclass(frozen=True, eq=False)
class Embedding(Risk):
    r"""The risk over ``Q`` of a model whose scores are :math:`S = X Q X^\top`.

    Gradient descent on ``Q`` moves the scores by
    :math:`S \leftarrow S - \eta\,\Gamma\,(\partial\mathcal L/\partial S)\,\Gamma`, with the Gram matrix
    :math:`\Gamma = XX^\top`.

    Parameters
    ----------
    risk : Risk
        The risk over class scores, (K, K).
    vectors : array_like, (K, d)
        The features, one a row.

    References
    ----------
    docs/theory.md, "Coordinates".
    """

    risk: Risk
    vectors: Array

    def __post_init__(self) -> None:
        vectors = real_array("vectors", self.vectors, 2)
        size = _square(self.risk)
        if len(vectors) != size:
            raise refuse("vectors", vectors.shape, f"an array with {size} rows, one a feature")
        store(self, vectors=vectors)

    @property
    def stochastic(self) -> bool:
        """Whether the inner risk draws data."""
        return self.risk.stochastic

    @property
    def initial(self) -> Array:
        """The zero matrix, (d, d)."""
        d = self.vectors.shape[1]
        return np.zeros((d, d))

    def inward(self, params: Array) -> Array:
        """Parameters of the inner risk: class scores ``X Q X^T``, (K, K)."""
        return self.vectors @ params @ self.vectors.T

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss, and its gradient ``X^T (dL/dS) X`` with respect to ``Q``, (d, d)."""
        loss, gradient = self.risk.evaluate(self.inward(params), step)
        return loss, self.vectors.T @ gradient @ self.vectors

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """What the inner risk observes at these scores."""
        return self.risk.observe(self.inward(params), step)

    def gain(self, params: Array) -> float:
        """Squared largest singular value of the features, times the inner gain."""
        return self._stretch * self.risk.gain(self.inward(params))

    def hessian_product(self, params: Array, direction: Array) -> Array:
        """``X^T (H[X V X^T]) X`` for a direction V, with the Hessian H of the inner risk."""
        inner = self.risk.hessian_product(self.inward(params), self.inward(direction))
        return self.vectors.T @ inner @ self.vectors

    @cached_property
    def _stretch(self) -> float:
        return float(np.linalg.norm(self.vectors, 2)) ** 2

    def floor(self) -> float:
        """Irreducible loss of the inner risk (a lower bound where the features are dependent)."""
        return self.risk.floor()


@dataclass(frozen=True, eq=False)
class Factored(Risk):
    r"""The risk over ``(W_K, W_Q)`` of a model with :math:`Q = W_K^\top W_Q`.

    Parameters
    ----------
    risk : Risk
        The risk over the square matrix ``Q``, (d, d).
    start : ndarray, (2, rank, d)
        Initial ``W_K`` and ``W_Q``.
    """

    risk: Risk
    start: Array

    def __post_init__(self) -> None:
        start = real_array("start", self.start, 3)
        d = _square(self.risk)
        if start.shape[0] != 2 or start.shape[2] != d or not 1 <= start.shape[1] <= d:
            raise refuse("start", start.shape, f"of shape (2, rank, {d}) with a rank from 1 to {d}")
        store(self, start=start)

    @property
    def stochastic(self) -> bool:
        """Whether the inner risk draws data."""
        return self.risk.stochastic

    @classmethod
    def random(cls, risk: Risk, rank: int | None = None, scale: float = 0.01, seed: int = 0) -> Factored:
        """Start from independent normal entries with standard deviation ``scale / sqrt(rank)``."""
        d = _square(risk)
        rank = d if rank is None else integer("rank", rank, minimum=1, maximum=d)
        scale = number("scale", scale)
        rng = np.random.default_rng(integer("seed", seed, minimum=0))
        return cls(risk, rng.normal(0.0, scale / np.sqrt(rank), (2, rank, d)))

    @property
    def initial(self) -> Array:
        """Initial factors, (2, rank, d)."""
        return self.start

    def inward(self, params: Array) -> Array:
        """Parameters of the inner risk: ``Q = W_K^T W_Q``, (d, d)."""
        return params[0].T @ params[1]

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss, and its gradients ``(W_Q G^T, W_K G)`` for ``G = dL/dQ``, (2, rank, d)."""
        loss, gradient = self.risk.evaluate(self.inward(params), step)
        return loss, np.stack([params[1] @ gradient.T, params[0] @ gradient])

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """What the inner risk observes at this ``Q``."""
        return self.risk.observe(self.inward(params), step)

    def gain(self, params: Array) -> float:
        """Largest singular value of one factor for a change of the other, times the inner gain."""
        stretch = max(float(np.linalg.norm(factor, 2)) for factor in params)
        return stretch * self.risk.gain(self.inward(params))

    def hessian_product(self, params: Array, direction: Array) -> Array:
        """Change of ``(W_Q G^T, W_K G)``, G = dL/dQ, in a direction."""
        inside = self.inward(params)
        toward = direction[0].T @ params[1] + params[0].T @ direction[1]
        gradient = self.risk.evaluate(inside)[1]
        change = self.risk.hessian_product(inside, toward)
        return np.stack(
            [
                direction[1] @ gradient.T + params[1] @ change.T,
                direction[0] @ gradient + params[0] @ change,
            ]
        )

    def floor(self) -> float:
        """Irreducible loss of the inner risk (a lower bound where ``rank`` limits ``Q``)."""
        return self.risk.floor()


def _square(risk: Risk) -> int:
    """Return K of a risk over (K, K) parameters, and refuse others."""
    shape = np.shape(instance("risk", risk, Risk, "a Risk").initial)  # type: ignore[type-abstract]
    if len(shape) != 2 or shape[0] != shape[1]:
        raise refuse("risk", shape, "one whose parameters are a square matrix")
    return int(shape[0])


def in_coordinates(
    risk: Risk,
    coordinates: str,
    vectors: ArrayLike,
    *,
    rank: int | None = None,
    scale: float = 0.01,
    seed: int = 0,
    start: ArrayLike | None = None,
) -> Risk:
    """Wrap a risk over class scores so that it is trained in other coordinates.

    Parameters
    ----------
    risk : Risk
        Its parameters are the class scores, (K, K).
    coordinates : {"class", "embedding", "factored"}
        The scores themselves, the matrix ``Q`` of ``S = X Q X^T``, or its factors ``Q = W_K^T W_Q``.
    vectors : array_like, (K, d)
        The features, one a row.
    rank : int, optional
        Rows of ``W_K`` and ``W_Q`` ("factored" only); ``d`` unless given.
    scale, seed : float, int
        Size and seed of the random start ("factored" only).
    start : array_like, (2, rank, d), optional
        Initial ``W_K`` and ``W_Q`` instead of random ones ("factored" only).

    Returns
    -------
    Risk
        The same loss over the new parameters.

    Raises
    ------
    ValueError
        Unknown coordinates, a rank out of range, or vectors that do not fit the risk.

    Examples
    --------
    >>> import icl_theory as icl
    >>> features = icl.Features.simplex(4, delta=1.0)
    >>> risk = icl.PopulationRisk(features, icl.tasks.Linear(2.0))
    >>> icl.in_coordinates(risk, "factored", features.vectors, rank=2).initial.shape
    (2, 2, 4)
    """
    choice("coordinates", coordinates, COORDINATES)
    embedded = Embedding(risk, np.asarray(vectors))
    if coordinates == "class":
        return risk
    if coordinates == "embedding":
        return embedded
    return Factored.random(embedded, rank, scale, seed) if start is None else Factored(embedded, np.asarray(start))
