"""A loss times a number.

Many programs train on the mean squared error, which is twice the loss of this package.
A `ScaledRisk` is a loss times a number c. Plain descent on it at the rate η takes the
same steps as descent on the inner loss at the rate ηc. For some other rules, such as
Adam or clipping, no change of the rate has the effect of c. Therefore `ScaledRisk`
multiplies the loss and its gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icl_theory._validate import Array, instance, number, set_fields
from icl_theory.engine.around import AroundRisk, AroundTrainer
from icl_theory.engine.capabilities import (
    ColumnGradients,
    column_gradients_of,
    gain_at,
    gradients_at,
    series_at,
)
from icl_theory.engine.risk import Risk, Solution
from icl_theory.engine.rules import Rule, is_plain_descent
from icl_theory.engine.sampling import Trainer, trainer_of

# The largest number by which a loss may be multiplied. Any limit that keeps losses
# within float64 would do; this one also refuses mistakes, such as a step number in the
# place of a factor.
MOST_FACTOR = 1e6


def is_loss(name: str) -> bool:
    """Whether an observation has the unit of the loss, judged by its name."""
    return name.endswith(("excess", "loss"))


def scaled(observed: dict[str, Array], factor: float) -> dict[str, Array]:
    """Return observations by name, with losses and excesses multiplied by a factor."""
    return {
        name: factor * values if is_loss(name) else values
        for name, values in observed.items()
    }


@dataclass(frozen=True)
class ScaledSolution:
    """The iterates of plain descent on a scaled risk, at the rate η.

    Attributes
    ----------
    solution : Solution
        The iterates of plain descent on the inner risk at the rate ηc. They equal the
        iterates on the scaled risk.
    factor : float
        The number c by which the loss of the inner risk is multiplied.
    """

    solution: Solution
    factor: float

    def states(self, steps: NDArray[np.int64]) -> Array:
        """Parameters at T given steps, (T, ...)."""
        return self.solution.states(steps)

    def first_below(self, epsilon: float, last: int) -> tuple[int | None, float | None]:
        """Return the first step with loss <= epsilon, and its estimated error.

        At this step the loss of the inner risk is at most epsilon divided by the
        factor. `Solution.first_below` says when the step or the error is None.
        """
        return self.solution.first_below(epsilon / self.factor, last)


@dataclass(frozen=True, eq=False)
class ScaledRisk(AroundRisk):
    r"""The risk :math:`c\,\mathcal L` for a risk :math:`\mathcal L`.

    The loss, its gradient, floor, excess and error are multiplied by c. So are all
    observations whose names end with ``loss`` or ``excess``.

    Parameters
    ----------
    risk : Risk
        The inner risk.
    factor : float
        The number c > 0. With 2, half the mean squared error becomes the mean squared
        error.

    Examples
    --------
    >>> import icl_theory as icl
    >>> from icl_theory.engine import ScaledRisk
    >>> risk = icl.ExchangeableRisk(20, gamma=2.0)
    >>> mse = icl.descend(ScaledRisk(risk, 2.0), eta=2.0, epsilon=2e-3, method="closed")
    >>> mse.steps == icl.descend(risk, eta=4.0, epsilon=1e-3, method="closed").steps
    True
    """

    risk: Risk
    factor: float

    def __post_init__(self) -> None:
        instance("risk", self.risk, Risk, "a Risk")  # type: ignore[type-abstract]
        set_fields(self, factor=number("factor", self.factor, maximum=MOST_FACTOR))

    @property
    def initial(self) -> Array:
        """Parameters of the inner risk at step 0."""
        return self.risk.initial

    @property
    def metric(self) -> float | Array:
        """Metric of the inner risk."""
        return self.risk.metric

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and gradient, times c."""
        loss, gradient = self.risk.evaluate(params, step)
        return self.factor * loss, self.factor * gradient

    def excess(self, params: ArrayLike) -> float:
        """Excess, times c."""
        return self.factor * self.risk.excess(params)

    def loss_error(self, params: ArrayLike) -> float:
        """Error of the loss, times c."""
        return self.factor * self.risk.loss_error(params)

    def blocks(self, array: Array) -> Sequence[Array]:
        """Blocks of the inner risk."""
        return self.risk.blocks(array)

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Observations of the inner risk; losses and excesses are multiplied by c."""
        return scaled(self.risk.observe(params, step), self.factor)

    def floor(self) -> float:
        """Irreducible loss, times c."""
        return self.factor * self.risk.floor()

    def closed_form(self, eta: float, rule: str | Rule) -> Solution | None:
        """Return the iterates of descent on the inner risk at the rate cη, or None.

        The result is None unless the rule is plain descent and the inner risk has a
        closed form.
        """
        if not is_plain_descent(rule):
            return None
        inner_solution = self.risk.closed_form(self.factor * eta, rule)
        if inner_solution is None:
            return None
        return ScaledSolution(inner_solution, self.factor)

    def hessian_product(self, params: Array, direction: Array) -> Array:
        """Product of the Hessian with a direction, times c."""
        return self.factor * self.risk.hessian_product(params, direction)

    def sharpness(self, params: ArrayLike) -> float:
        """Sharpness, times c."""
        return self.factor * self.risk.sharpness(params)

    def gain(self, params: Array) -> float:
        """Change of the scores per unit change of the parameters, as in the inner risk.

        The factor c changes the loss, but not the scores.
        """
        return gain_at(self.risk, params)

    def gradients(self, states: Array) -> Array:
        """Gradients at n states, (n, ...), times c."""
        return self.factor * gradients_at(self.risk, states)

    @property
    def column_gradients(self) -> ColumnGradients | None:
        """A function that returns gradients of single columns, times c.

        It is None if the inner risk has no such function.
        """
        inner_gradients = column_gradients_of(self.risk)
        if inner_gradients is None:
            return None
        return lambda columns, indices: self.factor * inner_gradients(columns, indices)

    def series(
        self, states: Array, steps: NDArray[np.int64]
    ) -> tuple[Array, dict[str, Array]]:
        """Losses at T states, (T,), times c, and observations as in `observe`."""
        losses, observed = series_at(self.risk, states, steps)
        return self.factor * losses, scaled(observed, self.factor)

    def sampled(self, batch: int, seed: int = 0) -> ScaledTrainer:
        """Return the trainer of the inner risk on sampled prompts, with losses times c.

        A step of this trainer has ``batch`` prompts.
        """
        return ScaledTrainer(trainer_of(self.risk, batch, seed), self.factor)


class ScaledTrainer(ScaledRisk, AroundTrainer):
    """A trainer whose losses and gradients are multiplied by a number c.

    Parameters
    ----------
    risk : Trainer
        The inner trainer, which draws the prompts.
    factor : float
        The number c.
    """

    risk: Trainer[Any]

    def __post_init__(self) -> None:
        # The inherited check would allow any risk.
        instance("risk", self.risk, Trainer, "a Trainer")
        super().__post_init__()

    def cheaper(self) -> ScaledTrainer:
        """Return a trainer of the same law whose prompts cost less to draw.

        It is the inner trainer's cheaper version, with losses times c.
        """
        return ScaledTrainer(self.risk.cheaper(), self.factor)

    def losses_on(self, params: Array, prompts: Any) -> Array:
        """Loss of each of B prompts, times c, (B,)."""
        return self.factor * self.risk.losses_on(params, prompts)

    def evaluate_on(self, params: Array, prompts: Any) -> tuple[float, Array]:
        """Mean loss of given prompts, and its gradient, times c."""
        loss, gradient = self.risk.evaluate_on(params, prompts)
        return self.factor * loss, self.factor * gradient

    def evaluate_runs(self, params: Array, prompts: Any) -> tuple[Array, Array]:
        """Mean losses, (R,), and gradients, (R, ...), of R runs, times c."""
        losses, gradients = self.risk.evaluate_runs(params, prompts)
        return self.factor * losses, self.factor * gradients


def scaled_like(risk: Risk | None, trainer: Trainer[Any]) -> Trainer[Any]:
    """Return a trainer with the factor of a risk.

    If ``risk`` is a `ScaledRisk`, the losses of the result are multiplied by its
    factor. Otherwise the trainer is returned as it is.
    """
    if isinstance(risk, ScaledRisk):
        return ScaledTrainer(trainer, risk.factor)
    return trainer
