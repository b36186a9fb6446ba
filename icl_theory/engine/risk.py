"""The contract of a model that can be trained: a `Risk`.

A risk is an initial parameter array and a loss with its gradient; everything else has a
default. The engine (`icl_theory.engine.descent`) knows nothing else about a model.
`icl_theory.engine.capabilities` lists optional methods beyond the contract.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icl_theory._validate import Array, argument_error, real_array

if TYPE_CHECKING:
    from icl_theory.engine.rules import Rule

# The relative rounding error of a loss that is a sum of positive terms: 64 rounding
# units of 2^-52. This is a cautious choice, because without cancellation only a few
# roundings matter.
LOSS_ROUNDING = 64.0 * 2.0**-52
# The step of a central difference, relative to the parameters: the cube root of the
# rounding unit 2^-52. Rounding and the third derivative then contribute about equally
# to the error.
DIFFERENCE_STEP = 6e-6
# For up to this many parameters the Hessian is computed as a matrix. With n parameters
# this takes n products with unit vectors, and up to n = 20 Lanczos' method (ARPACK)
# takes at least as many. Any number up to 20 would do.
LARGEST_DENSE = 12


class Solution(Protocol):
    """The iterates of a training run, by their step numbers.

    They are known in closed form (`Risk.closed_form`) or computed in order.
    """

    def states(self, steps: NDArray[np.int64]) -> Array:
        """Return the parameters at given steps, (T, ...)."""
        ...

    def first_below(self, epsilon: float, last: int) -> tuple[int | None, float | None]:
        """Return the first step with loss <= epsilon, and its estimated error.

        The step is None if it is beyond ``last``. The error is None for a flow, whose
        steps are times. It is also None if the step is certain: if every step is taken,
        and the losses at this step and at the step before differ from epsilon by more
        than rounding.
        """
        ...


@runtime_checkable
class Risk(Protocol):
    """A model to be trained: inherit from it and define ``initial`` and ``evaluate``.

    Gradient descent on a risk is ``params <- params - eta * gradient / metric``.

    `loss`, `gradient`, `excess`, `loss_error` and `sharpness` check the parameters that
    they are given. The engine calls the other methods with states of its own, which are
    float64 arrays of the shape of ``initial``. These methods check nothing, because a
    check takes as long as the loss of a small model.

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
        """Loss and gradient at ``params``.

        The engine calls this method at every step. The result depends on ``step`` only
        if the risk draws data at each step or is `scheduled`.
        """
        ...

    @property
    def metric(self) -> float | Array:
        """Diagonal of the metric M of the coordinates.

        It is 1, unless the parameters θ are a reduction of more parameters S = Bθ, with
        a constant matrix B. Then M = BᵀB (docs/theory.md, "Gradient descent and
        gradient flow").
        """
        return 1.0

    @property
    def stochastic(self) -> bool:
        """Whether ``evaluate`` draws data, so that its losses scatter.

        A single loss then does not end a run, unless the run has a target loss.
        """
        return False

    @property
    def scheduled(self) -> bool:
        """Whether the exact loss itself changes from step to step.

        Then no step can be skipped. `loss`, `gradient` and the methods that use them
        return the values of step 0.
        """
        return False

    def loss(self, params: ArrayLike) -> float:
        """Loss at ``params``, which must be finite and of the shape of ``initial``."""
        # An infinite loss is returned, and NaN is refused, without a warning.
        with np.errstate(over="ignore", invalid="ignore"):
            loss, _gradient = self.evaluate(self._checked(params))
        refuse_nan(loss, params)
        return loss

    def gradient(self, params: ArrayLike) -> Array:
        """Gradient of the loss at ``params``, of the same shape."""
        # Infinite entries are returned, and NaN is refused, without a warning.
        with np.errstate(over="ignore", invalid="ignore"):
            _loss, gradient = self.evaluate(self._checked(params))
        refuse_nan(gradient, params)
        return gradient

    def _checked(self, params: ArrayLike) -> Array:
        """Return parameters as an array of float64.

        Refuse them if they are not finite or not of the shape of ``initial``.
        """
        shape = np.shape(self.initial)
        array = real_array("params", params, len(shape))
        if array.shape != shape:
            raise argument_error("params", array.shape, f"of shape {shape}")
        return array

    def excess(self, params: ArrayLike) -> float:
        """Loss minus the floor.

        Override this method if a small excess can be computed without cancellation.
        """
        return self.loss(params) - self.floor()

    def loss_error(self, params: ArrayLike) -> float:
        """Estimate of the error of the loss, rather too large than too small.

        By default this is a rounding error in proportion to the loss. Override this
        method if the loss is a difference of larger numbers, or an integral.
        """
        return LOSS_ROUNDING * abs(self.loss(params))

    def blocks(self, array: Array) -> Sequence[Array]:
        """Views of the blocks of an array of the shape of ``initial``.

        Some update rules normalise the gradient of each block by its own norm.
        """
        return (array,)

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Quantities to record along a run, by name.

        Plots draw the quantity named ``attention``.
        """
        return {}

    def floor(self) -> float:
        """Irreducible loss, or a lower bound of it."""
        return 0.0

    def closed_form(self, eta: float, rule: str | Rule) -> Solution | None:
        """Return the iterates of training by a rule in closed form.

        The result is None if they have no closed form, as by default. A risk that draws
        data or is `scheduled` must not have one: it would describe another training.

        A risk that overrides this method calls `icl_theory.engine.is_plain_descent` to
        learn whether the rule is gradient descent.
        """
        return None

    def hessian_product(self, params: Array, direction: Array) -> Array:
        """Product of the Hessian with a direction, by a central difference.

        Override this method if the product has a formula.
        """
        largest_entry = float(np.abs(direction).max(initial=0.0))
        if largest_entry == 0.0:
            return np.zeros_like(direction)
        # The parameters change by up to DIFFERENCE_STEP times the size of the largest
        # one, or by up to DIFFERENCE_STEP itself if this size is below 1.
        scale = max(1.0, float(np.abs(params).max(initial=0.0)))
        h = DIFFERENCE_STEP * scale / largest_entry
        _loss, gradient_ahead = self.evaluate(params + h * direction)
        _loss, gradient_behind = self.evaluate(params - h * direction)
        return (gradient_ahead - gradient_behind) / (2.0 * h)

    def sharpness(self, params: ArrayLike) -> float:
        r"""Largest eigenvalue of :math:`M^{-1/2}HM^{-1/2}`.

        H is the Hessian of the loss at ``params``, and M the metric. Near a minimum
        with the sharpness λ, gradient descent is stable for :math:`\eta < 2/\lambda`.
        See docs/theory.md, "Sharpness".

        Parameters
        ----------
        params : array_like
            Parameters, of the shape of ``initial``.

        Returns
        -------
        float
            The eigenvalue, in units of the loss per squared unit of the parameters;
            negative if the loss is concave at ``params``.

        Raises
        ------
        ValueError
            The Hessian is beyond the range of float64.

        Examples
        --------
        >>> import icl_theory as icl, numpy as np
        >>> features = icl.Features.simplex(5, 1.0)
        >>> risk = icl.PopulationRisk(features, icl.tasks.Linear(2.0), N=20, noise=1.0)
        >>> 2.0 / risk.sharpness(np.eye(5)) > 4.0
        True
        """
        checked = self._checked(params)

        def finite_product(direction: Array) -> Array:
            """Multiply the Hessian with a direction; refuse infinities and NaN."""
            with np.errstate(over="ignore", invalid="ignore"):
                product = self.hessian_product(checked, direction)
            if not np.isfinite(product).all():
                raise argument_error(
                    "params",
                    params,
                    "less extreme: the Hessian is beyond the range of float64",
                )
            return product

        return largest_eigenvalue(finite_product, checked.shape, self.metric).value


def refuse_nan(result: float | Array, params: ArrayLike) -> None:
    """Refuse parameters whose result contains NaN; infinite results are allowed."""
    if np.isnan(result).any():
        raise argument_error(
            "params",
            params,
            "less extreme: the result is beyond the range of float64",
        )


class WithStart:
    """A risk or a map with a field ``start``, the parameters at step 0."""

    start: Array

    @property
    def initial(self) -> Array:
        """Parameters at step 0."""
        return self.start


class Eigenpair(NamedTuple):
    """An eigenvalue of ``M^-1/2 H M^-1/2``, and a direction in the parameters.

    Here H is the Hessian and M the metric. The direction is ``M^-1/2 v`` with the
    eigenvector v of norm 1. If H is zero, v may be any vector.
    """

    value: float
    direction: Array


def largest_eigenvalue(
    hessian: Callable[[Array], Array],
    shape: tuple[int, ...],
    metric: float | Array,
) -> Eigenpair:
    """Return the largest eigenvalue of ``M^-1/2 H M^-1/2``, with its direction.

    ``hessian`` multiplies the Hessian H with a direction, an array of the ``shape`` of
    the parameters, and ``metric`` is the diagonal of the metric M. For up to
    LARGEST_DENSE parameters the matrix itself is computed. For more parameters Lanczos'
    method is used, which needs only products of the matrix with vectors.

    Raises
    ------
    RuntimeError
        Lanczos' method does not converge.
    """
    root_metric = np.sqrt(np.broadcast_to(np.asarray(metric, dtype=float), shape))

    def product(flat: Array) -> Array:
        """Multiply ``M^-1/2 H M^-1/2`` with a vector of all parameters."""
        direction = np.reshape(flat, shape) / root_metric
        return np.ravel(hessian(direction) / root_metric)

    size = math.prod(shape)
    if size <= LARGEST_DENSE:
        # The product with unit vector i is column i. It becomes row i here, which is
        # the same, because the matrix is symmetric.
        matrix = np.array([product(unit) for unit in np.eye(size)])
        # Rounding makes the computed matrix slightly asymmetric, so take its mean with
        # its transpose. `eigh` returns the eigenvalues in increasing order.
        values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
        value = float(values[-1])
        vector = vectors[:, -1]
    else:
        value, vector = _lanczos(product, size)
    return Eigenpair(value, vector.reshape(shape) / root_metric)


def _lanczos(product: Callable[[Array], Array], size: int) -> tuple[float, Array]:
    """Return the largest eigenvalue of a symmetric matrix, and its eigenvector.

    ``product`` multiplies the matrix with a vector of ``size`` numbers.
    """
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    # A random vector has a component along every eigenvector. Its seed is fixed, so
    # that results are reproducible.
    start = np.random.default_rng(0).normal(size=size)
    # The tolerance of ARPACK is absolute for tiny eigenvalues. So divide the matrix by
    # a number of about the size of its eigenvalues.
    scale = float(np.abs(product(start)).max())
    # If the matrix is zero, any vector is an eigenvector.
    if scale == 0.0:
        return 0.0, start
    operator = LinearOperator(
        (size, size), matvec=lambda flat: product(flat) / scale, dtype=np.float64
    )
    try:
        # "LA" stands for the largest eigenvalue with its sign. The tolerance is about
        # the relative error of a product by differences, 2^(-52 · 2/3) = 4e-11. The
        # limit on the iterations only prevents an endless search.
        values, vectors = eigsh(
            operator, k=1, which="LA", v0=start, tol=1e-10, maxiter=50 * size
        )
    except ArpackNoConvergence as error:
        raise RuntimeError(
            "the largest eigenvalue of the Hessian did not converge"
        ) from error
    return float(values[-1] * scale), vectors[:, -1]
