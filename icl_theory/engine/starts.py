"""Training from parameters of the user's choice.

`with_start` gives any risk another start. Only the closed forms of the risk are lost,
because they describe runs from the risk's own start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icl_theory._validate import (
    Array,
    argument_error,
    dimensions,
    instance,
    real_array,
    set_fields,
)
from icl_theory.engine.capabilities import (
    ColumnGradients,
    column_gradients_of,
    gradients_at,
    series_at,
)
from icl_theory.engine.pullback import Map, Pullback, SampledPullback
from icl_theory.engine.risk import Risk, WithStart
from icl_theory.engine.sampling import Trainer


def checked_start(start: ArrayLike, shape: tuple[int, ...]) -> Array:
    """Return a start as an array; refuse it unless it has the shape ``shape``.

    Raises
    ------
    ValueError
        The array has another shape, or an entry is not finite.
    """
    # The number of axes is not checked here: the check of the shape below includes it.
    array = real_array("start", start, dimensions(start))
    if array.shape != shape:
        raise argument_error("start", array.shape, f"of shape {shape}")
    return array


@overload
def with_start(risk: Trainer[Any], start: ArrayLike) -> Trainer[Any]: ...


@overload
def with_start(risk: Risk, start: ArrayLike) -> Risk: ...


def with_start(risk: Risk, start: ArrayLike) -> Risk:
    """Return the same risk with other parameters at step 0.

    Parameters
    ----------
    risk : Risk
        The risk.
    start : array_like
        Parameters, of the shape of ``risk.initial``.

    Returns
    -------
    Risk
        The risk as a `Pullback` by the identity, so that parameters have the same
        meaning as before. It is a `Trainer` if the risk is one.

    Raises
    ------
    ValueError
        The start has another shape, or an entry is not finite.

    Examples
    --------
    >>> import numpy as np, icl_theory as icl
    >>> from icl_theory.engine import with_start
    >>> risk = icl.PopulationRisk(icl.Features.simplex(3, 1.0), icl.tasks.Linear(2.0))
    >>> icl.descend(with_start(risk, np.eye(3)), eta=4.0, epsilon=1e-2).steps
    18
    """
    instance("risk", risk, Risk, "a Risk")  # type: ignore[type-abstract]
    start = checked_start(start, np.shape(risk.initial))
    started = _Started(risk, Identity(start))
    # A plain pullback lacks the methods of a trainer, such as `draw`.
    return SampledPullback(started) if isinstance(risk, Trainer) else started


@dataclass(frozen=True, eq=False)
class Identity(WithStart, Map):
    """The identity as a change of coordinates, with given parameters at step 0."""

    start: Array

    def __post_init__(self) -> None:
        # `real_array` takes the number of axes that an array must have. Any number is
        # allowed, so it gets the start's own number.
        set_fields(self, start=real_array("start", self.start, np.ndim(self.start)))

    def inward(self, params: Array) -> Array:
        """Return the parameters themselves."""
        return params

    def outward(self, params: Array, gradient: Array) -> Array:
        """Return the gradient itself."""
        return gradient

    def push(self, params: Array, direction: Array) -> Array:
        """Return the direction itself."""
        return direction

    def stretch(self, params: Array) -> float:
        """Return 1, the norm of the derivative of the identity."""
        return 1.0


@dataclass(frozen=True, eq=False)
class _Started(Pullback):
    """A risk with another start, whose ``map`` is the `Identity`.

    A general `Pullback` does not pass on, for example, the metric and the column
    gradients of its inner risk, because a change of coordinates does not keep them. The
    identity keeps them, so the methods below return what the inner risk returns.
    """

    @property
    def metric(self) -> float | Array:
        """Metric of the risk."""
        return self.risk.metric

    @property
    def column_gradients(self) -> ColumnGradients | None:
        """The risk's function that returns gradients of single columns, or None."""
        return column_gradients_of(self.risk)

    def gradients(self, states: Array) -> Array:
        """Gradients of the risk at n states, (n, ...)."""
        return gradients_at(self.risk, states)

    def series(
        self, states: Array, steps: NDArray[np.int64]
    ) -> tuple[Array, dict[str, Array]]:
        """Losses, (T,), and observations of the risk at T states, (T, ...)."""
        return series_at(self.risk, states, steps)

    def sharpness(self, params: ArrayLike) -> float:
        """Sharpness of the risk."""
        return self.risk.sharpness(params)

    def blocks(self, array: Array) -> Sequence[Array]:
        """Blocks of the risk."""
        return self.risk.blocks(array)
