"""Optional capabilities of a risk, beyond its contract.

A capability is a method or a property of one of the protocols below. If a risk has it,
the engine saves computations, or estimates errors better. A risk only needs to define
the method or property, and need not inherit from the protocol. The engine calls the
functions of this module, which use `Risk.evaluate` and `Risk.observe` if a risk lacks a
capability. Neither the functions nor the methods check their arguments.

The scores are the numbers to which the tolerance of a run applies: the parameters
themselves, or functions of them such as attention scores. In shapes, T is a number of
steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.engine.risk import Risk

# The type of `HasColumnGradients.column_gradients`.
ColumnGradients = Callable[[Array, NDArray[np.intp]], Array]
# The type of `HasSeries.series`.
Series = Callable[[Array, NDArray[np.int64]], tuple[Array, dict[str, Array]]]


class HasGain(Protocol):
    """A risk whose parameters are not the scores themselves."""

    def gain(self, params: Array) -> float:
        """Norm of the change of the scores per unit change of the parameters.

        The error of the scores is at most the error of the parameters times the gain.
        """
        ...


class HasGradients(Protocol):
    """A risk that computes gradients at several states faster than one by one."""

    def gradients(self, states: Array) -> Array:
        """Gradients at n states, (n, ...)."""
        ...


class HasColumnGradients(Protocol):
    """A risk whose loss is a sum of one term for each column of the parameters."""

    @property
    def column_gradients(self) -> ColumnGradients | None:
        """A function that returns gradients of single columns, or None.

        The result is None if the loss is not a sum of one term for each column. The
        function takes n columns of m numbers, (m, n), and their indices among the
        columns of the parameters, (n,). It returns the gradients with respect to these
        columns, (m, n). An index may occur several times, each time with other values
        of the same column. With this function ``method="fast"`` skips steps of each
        column independently.
        """
        ...


class HasSeries(Protocol):
    """A risk that computes losses and observations faster than state by state."""

    def series(
        self, states: Array, steps: NDArray[np.int64]
    ) -> tuple[Array, dict[str, Array]]:
        """Losses, (T,), and observations by name, (T, ...) each.

        ``states``, (T, ...), are the parameters at the step numbers ``steps``, (T,).
        """
        ...


# The functions below look an attribute up instead of calling isinstance(), which takes
# 14 µs for a protocol. The gradient of a small risk takes as long.


def gain_at(risk: Risk, params: Array) -> float:
    """Norm of the change of the scores per unit change of the parameters.

    It is 1 for a risk without the method `gain`, whose parameters are taken to be the
    scores.
    """
    gain: Callable[[Array], float] | None = getattr(risk, "gain", None)
    return 1.0 if gain is None else gain(params)


def gradients_at(risk: Risk, states: Array) -> Array:
    """Gradients at n states, (n, ...).

    They come from one call of the risk's ``gradients`` if it has this method, and
    otherwise from one call of `Risk.evaluate` for each state.
    """
    gradients: Callable[[Array], Array] | None = getattr(risk, "gradients", None)
    if gradients is None:
        return gradients_one_by_one(risk, states)
    return gradients(states)


def gradients_one_by_one(risk: Risk, states: Array) -> Array:
    """Gradients at n states, (n, ...), from one call of `Risk.evaluate` for each."""
    gradients = []
    for state in states:
        _loss, gradient = risk.evaluate(state)
        gradients.append(gradient)
    return np.stack(gradients)


def column_gradients_of(risk: Risk) -> ColumnGradients | None:
    """Gradients of single columns, or None if the loss is not a sum over columns."""
    gradients: ColumnGradients | None = getattr(risk, "column_gradients", None)
    return gradients


def series_at(
    risk: Risk, states: Array, steps: NDArray[np.int64]
) -> tuple[Array, dict[str, Array]]:
    """Losses, (T,), and observations by name, at T states, (T, ...).

    They come from one call of the risk's ``series`` if it has this method, and
    otherwise from ``series_one_by_one``. ``steps``, (T,), are the step numbers.
    """
    series: Series | None = getattr(risk, "series", None)
    if series is None:
        return series_one_by_one(risk, states, steps)
    return series(states, steps)


def series_one_by_one(
    risk: Risk, states: Array, steps: NDArray[np.int64]
) -> tuple[Array, dict[str, Array]]:
    """Losses, (T,), and observations by name, at T states, (T, ...).

    For each state, `Risk.evaluate` and `Risk.observe` are called once.
    """
    losses = []
    observations = []
    for state, step in zip(states, steps.tolist(), strict=True):
        loss, _gradient = risk.evaluate(state, step)
        losses.append(loss)
        observations.append(risk.observe(state, step))
    observations_by_name = {}
    # The observations have the same names at all states.
    for name in observations[0]:
        values = [np.asarray(observation[name]) for observation in observations]
        observations_by_name[name] = np.stack(values)
    return np.array(losses), observations_by_name
