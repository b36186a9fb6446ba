"""Rules with momentum: descent with a velocity, a weighted sum of past gradients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from icl_theory._validate import Array, below_one, number, set_fields
from icl_theory.engine.risk import Risk
from icl_theory.engine.rules.rule import Rule

# The default momentum.
MOMENTUM = 0.9


@dataclass(frozen=True)
class Velocity(Rule):
    r"""The base of `HeavyBall` and `Nesterov`, whose memory is a velocity v.

    The velocity has the shape of the parameters.

    Parameters
    ----------
    momentum : float
        β, from 0 to below 1.
    weight_decay : float
        The factor λ of the penalty :math:`\tfrac\lambda2\theta^\top M\theta` with M =
        `Risk.metric`. The gradient of the penalty is added to the gradient of the loss.
    """

    momentum: float = MOMENTUM
    weight_decay: float = 0.0

    may_stagnate = True

    def __post_init__(self) -> None:
        set_fields(self, momentum=below_one("momentum", self.momentum))
        set_fields(
            self, weight_decay=number("weight_decay", self.weight_decay, zero=True)
        )

    def init(self, risk: Risk, params: Array) -> Array:
        """Return the velocity at step 0, which is zero."""
        return np.zeros_like(params)

    def uphill(self, risk: Risk, params: Array, gradient: Array) -> Array:
        r"""Return the direction :math:`d = M^{-1}g + \lambda\theta`.

        Here g is the gradient of the loss, M = `Risk.metric`, and θ the parameters. The
        loss with its penalty increases along d, so a step goes against it.
        """
        direction = np.asarray(gradient / risk.metric)
        if self.weight_decay:
            direction = direction + self.weight_decay * params
        return direction


@dataclass(frozen=True)
class HeavyBall(Velocity):
    r"""Heavy ball: :math:`v \leftarrow \beta v + d,\ \Delta = -\eta v`.

    Here v is the velocity, Δ the step, η the learning rate, and :math:`d = M^{-1}g +
    \lambda\theta` the direction of ``Velocity.uphill``. This is
    ``torch.optim.SGD(momentum=β, weight_decay=λ)``, except that β is 0.9 by default.
    PyTorch's default is 0, which is gradient descent.

    Parameters
    ----------
    momentum : float
        The momentum β, from 0 to below 1.
    weight_decay : float
        The decay λ.

    References
    ----------
    B. T. Polyak, "Some methods of speeding up the convergence of iteration methods",
    1964. docs/theory/rules.md.

    Examples
    --------
    >>> import icl_theory as icl
    >>> from icl_theory.engine import HeavyBall
    >>> risk = icl.ExchangeableRisk(20, gamma=2.0, N=50)
    >>> plain = icl.descend(risk, 1.0, above=1e-3).steps
    >>> plain, icl.descend(risk, 1.0, above=1e-3, rule=HeavyBall(0.9)).steps
    (6010, 543)
    """

    name = "heavy-ball"
    skippable = True

    def step(
        self,
        risk: Risk,
        params: Array,
        gradient: Array,
        eta: float,
        memory: Array,
        t: int,
    ) -> tuple[Array, Array]:
        """Return the change of the parameters, and the velocity."""
        velocity = self.momentum * memory + self.uphill(risk, params, gradient)
        return -eta * velocity, velocity

    def memory_scale(self, eta: float) -> float:
        """Return the total distance that a velocity of 1 moves the parameters.

        The move is η in the step that computes the velocity, and η β, η β² and so on in
        later steps. The sum is η / (1 - β).
        """
        return eta / (1.0 - self.momentum)

    def jacobian(self, rates: Array, eta: float) -> Array:
        """Return the derivatives of the changes of parameter and velocity, (..., 2, 2).

        Along an eigenvector of the Hessian with the eigenvalue κ, let h = η (κ + λ);
        ``rates`` has the values of η κ. Up to constants, the parameter θ changes by
        -η β v - h θ, and the velocity v by (β - 1) v + h θ / η. The first row has the
        derivatives of the change of θ with respect to θ and v, and the second row has
        the derivatives of the change of v.
        """
        h = np.asarray(rates) + eta * self.weight_decay
        jacobian = np.empty((*h.shape, 2, 2))
        jacobian[..., 0, 0] = -h
        jacobian[..., 0, 1] = -eta * self.momentum
        jacobian[..., 1, 0] = h / eta
        jacobian[..., 1, 1] = self.momentum - 1.0
        return jacobian


@dataclass(frozen=True)
class Nesterov(Velocity):
    r"""Nesterov: :math:`v \leftarrow \beta v + d,\ \Delta = -\eta(d + \beta v)`.

    Here v is the velocity, Δ the step, η the learning rate, and :math:`d = M^{-1}g +
    \lambda\theta` the direction of ``Velocity.uphill``. This is
    ``torch.optim.SGD(nesterov=True, momentum=β, weight_decay=λ)``. The method is
    usually written with two sequences of parameters. Here θ is the sequence at which
    the gradient is taken; it is one step of the velocity ahead of the other sequence.

    Parameters
    ----------
    momentum : float
        The momentum β, from 0 to below 1.
    weight_decay : float
        The decay λ.

    References
    ----------
    Y. Nesterov, "A method of solving a convex programming problem with convergence rate
    O(1/k²)", 1983. docs/theory/rules.md.
    """

    name = "nesterov"

    def step(
        self,
        risk: Risk,
        params: Array,
        gradient: Array,
        eta: float,
        memory: Array,
        t: int,
    ) -> tuple[Array, Array]:
        """Return the change of the parameters, and the velocity."""
        uphill = self.uphill(risk, params, gradient)
        velocity = self.momentum * memory + uphill
        return -eta * (uphill + self.momentum * velocity), velocity


# These rules, with their default settings, have a name on the command line.
NAMED = (HeavyBall(), Nesterov())
