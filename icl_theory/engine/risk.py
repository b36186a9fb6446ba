"""What can be trained: the Risk protocol.

A Risk is an initial parameter array, a loss with its gradient, the metric of its
coordinates and what to observe on the way. The engine (`icl_theory.engine.descent`)
knows nothing else about a model.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icl_theory._validate import Array, argument_error, real_array

if TYPE_CHECKING:
    from icl_theory.engine.rules import Rule

# relative; losses that are sums of terms of one sign lose a few units
LOSS_ROUNDING = 64.0 * 2.0**-52


class Solution(Protocol):
    """The iterates of a training run by their numbers: in closed form, see `Risk.closed_form`, or followed."""

    def states(self, steps: NDArray[np.int64]) -> Array:
        """Return the parameters at some steps, (T, ...)."""
        ...

    def first_below(self, epsilon: float, last: int) -> tuple[int | None, float | None]:
        """Return the first step with loss <= epsilon, None where it is beyond ``last``, and its estimated error.

        The error is None for the times of a flow, and if every step is taken and no
        loss is epsilon to rounding.
        """
        ...


@runtime_checkable
class Risk(Protocol):
    """Something to be trained: inherit from it and define ``initial`` and ``evaluate``; the rest has defaults.

    Gradient descent on a Risk is ``params <- params - eta * gradient / metric``.

    `loss`, `gradient`, `excess` and `sharpness` check the parameters they are given.
    All other methods are what the engine calls with states of its own, float64 arrays
    of the shape of ``initial``; they check nothing, because a check costs as much as
    many a loss.

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
        return self._within(params, 0)

    def gradient(self, params: ArrayLike) -> Array:
        """Gradient of the loss at ``params``, of the same shape."""
        return self._within(params, 1)

    def _within(self, params: ArrayLike, part: int) -> Any:
        """Return a part of what is evaluated at parameters, which may be infinite; NaN is refused."""
        with np.errstate(over="ignore", invalid="ignore"):
            found = self.evaluate(self._checked(params))[part]
        if np.isnan(found).any():
            raise argument_error(
                "params",
                params,
                "less extreme: the result is beyond the range of float64",
            )
        return found

    def _checked(self, params: ArrayLike) -> Array:
        shape = np.shape(self.initial)
        array = real_array("params", params, len(shape))
        if array.shape != shape:
            raise argument_error("params", array.shape, f"of shape {shape}")
        return array

    def excess(self, params: ArrayLike) -> float:
        """Loss above the floor, or above a lower bound; a risk that can keep its digits where it is small does."""
        return self.loss(params) - self.floor()

    def loss_error(self, params: ArrayLike) -> float:
        """Estimate of the error of the loss, from above: rounding, in proportion to the loss.

        Override it if the loss is a difference of larger numbers, or an integral.
        """
        return LOSS_ROUNDING * abs(self.loss(params))

    def blocks(self, array: Array) -> Sequence[Array]:
        """Views of the parts of an array like ``initial`` that some update rules normalise one by one."""
        return (array,)

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Quantities to record along a run, by name, unchecked; ``attention`` is the one that plots know."""
        return {}

    def floor(self) -> float:
        """Irreducible loss: no parameters give less."""
        return 0.0

    def closed_form(self, eta: float, rule: str | Rule) -> Solution | None:
        """Return the iterates in closed form for a learning rate and an update rule, or None.

        The engine gives the rule itself; `icl_theory.engine.is_plain_descent` asks
        whether it is gradient descent.
        """
        return None

    def hessian_product(self, params: Array, direction: Array) -> Array:
        """Product of the Hessian with a direction, unchecked: a central difference unless a risk knows better."""
        length = float(np.abs(direction).max(initial=0.0))
        if length == 0.0:
            return np.zeros_like(direction)
        h = 6e-6 * max(1.0, float(np.abs(params).max(initial=0.0))) / length
        ahead = self.evaluate(params + h * direction)[1]
        behind = self.evaluate(params - h * direction)[1]
        return (ahead - behind) / (2.0 * h)

    def sharpness(self, params: ArrayLike) -> float:
        r"""Largest eigenvalue of the Hessian in the metric of the coordinates, :math:`M^{-1/2}HM^{-1/2}`.

        Gradient descent near a minimum is stable for :math:`\eta < 2/\lambda_{\max}`.
        See docs/theory.md, "Sharpness".

        Parameters
        ----------
        params : array_like
            Of the shape of ``initial``.

        Returns
        -------
        float
            Squared label units per squared unit of the scores; negative where the loss
            is concave.

        Raises
        ------
        ValueError
            Where the Hessian is beyond the range of float64.

        Examples
        --------
        >>> import icl_theory as icl, numpy as np
        >>> risk = icl.PopulationRisk(icl.Features.simplex(5, 1.0), icl.tasks.Linear(2.0), N=20, noise=1.0)
        >>> 2.0 / risk.sharpness(np.eye(5)) > 4.0
        True
        """
        at = self._checked(params)

        def product(direction: Array) -> Array:
            with np.errstate(over="ignore", invalid="ignore"):
                found = self.hessian_product(at, direction)
            if not np.isfinite(found).all():
                raise argument_error(
                    "params",
                    params,
                    "less extreme: the Hessian is beyond the range of float64",
                )
            return found

        return largest_eigenvalue(product, at.shape, self.metric)[0]


class WithStart:
    """A risk or a map with a field ``start``, the parameters at step 0."""

    start: Array

    @property
    def initial(self) -> Array:
        """Parameters at step 0."""
        return self.start


def largest_eigenvalue(
    hessian: Callable[[Array], Array],
    shape: tuple[int, ...],
    metric: float | Array,
    dense: int = 12,
) -> tuple[float, Array]:
    """Return the largest eigenvalue of ``M^-1/2 H M^-1/2``, and ``M^-1/2 v`` for its unit eigenvector v.

    It is found by Lanczos' method from products of H with a direction of a ``shape``,
    or from the matrix, which is quicker up to a ``dense`` size; ``metric`` is the
    diagonal of M. A RuntimeError says that it did not converge.
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
        operator = LinearOperator(
            (size, size), matvec=lambda flat: product(flat) / scale, dtype=np.float64
        )
        try:
            values, vectors = eigsh(
                operator, k=1, which="LA", v0=start, tol=1e-10, maxiter=50 * size
            )
        except ArpackNoConvergence as error:
            raise RuntimeError(
                "the largest eigenvalue of the Hessian did not converge"
            ) from error
        values = values * scale
    return float(values[-1]), vectors[:, -1].reshape(shape) / root
