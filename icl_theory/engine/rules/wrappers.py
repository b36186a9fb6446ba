"""Rules around other rules.

They decay the weights (`Decayed`), clip the gradient (`Clipped`) or project the
parameters onto a ball or a sphere (`Projected`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from icl_theory._validate import Array, argument_error, choice, flag, number, set_fields
from icl_theory.engine.risk import Risk
from icl_theory.engine.rules.descent import check_blocks, norm_in
from icl_theory.engine.rules.rule import Rule

CLIP_GUARD = 1e-6  # PyTorch adds it to the norm by which it divides


@dataclass(frozen=True)
class Wrapper(Rule):
    """A rule that changes the input or the step of another, and shares its memory."""

    rule: Rule

    def __post_init__(self) -> None:
        if not isinstance(self.rule, Rule):
            raise argument_error("rule", self.rule, "an icl_theory.engine.Rule")

    @property
    def may_stagnate(self) -> bool:  # type: ignore[override]
        """The value of the wrapped rule."""
        return self.rule.may_stagnate

    @property
    def reducible(self) -> bool:  # type: ignore[override]
        """The value of the wrapped rule."""
        return self.rule.reducible

    @property
    def horizon(self) -> int | None:  # type: ignore[override]
        """The value of the wrapped rule."""
        return self.rule.horizon

    def init(self, risk: Risk, params: Array) -> Array:
        """Return the memory of the wrapped rule."""
        return self.rule.init(risk, params)


@dataclass(frozen=True)
class Decayed(Wrapper):
    r"""Decoupled weight decay: the step of a rule plus :math:`-\eta\lambda\theta`.

    Parameters
    ----------
    rule : Rule
        The rule.
    weight_decay : float
        λ.

    Examples
    --------
    >>> from icl_theory.engine import Decayed, GradientDescent
    >>> Decayed(GradientDescent(), 0.01).name
    'gd, decoupled decay 0.01'
    """

    weight_decay: float

    def __post_init__(self) -> None:
        super().__post_init__()
        set_fields(
            self, weight_decay=number("weight_decay", self.weight_decay, zero=True)
        )

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name of the wrapped rule, and the decay."""
        return f"{self.rule.name}, decoupled decay {self.weight_decay:g}"

    def step(
        self,
        risk: Risk,
        params: Array,
        gradient: Array,
        eta: float,
        memory: Array,
        t: int,
    ) -> tuple[Array, Array]:
        """Return the change of the parameters, and the memory of the wrapped rule."""
        change, memory = self.rule.step(risk, params, gradient, eta, memory, t)
        return change - eta * self.weight_decay * params, memory

    @property
    def skippable(self) -> bool:  # type: ignore[override]
        """The value of the wrapped rule."""
        return self.rule.skippable

    def memory_scale(self, eta: float) -> float:
        """The value of the wrapped rule."""
        return self.rule.memory_scale(eta)

    def jacobian(self, rates: Array, eta: float) -> Array | None:
        """The Jacobian of the wrapped rule, with the decay of the parameter."""
        inner = self.rule.jacobian(rates, eta)
        if inner is None:
            return None
        jacobian = np.array(inner)
        jacobian[..., 0, 0] -= eta * self.weight_decay
        return jacobian


@dataclass(frozen=True)
class Clipped(Wrapper):
    r"""A rule on clipped gradients, :math:`g\,\min(1, c/(|g| + 10^{-6}))`.

    No gradient is longer than c. It is ``torch.nn.utils.clip_grad_norm_``, whose 10⁻⁶
    it keeps. The norm of a gradient is :math:`\sqrt{g^\top M^{-1}g}`, the norm of the
    full gradient if parameters are reduced.

    Parameters
    ----------
    rule : Rule
        The rule.
    norm : float
        c.
    blocks : bool
        Whether each block of the parameters, see `Risk.blocks`, is shortened by its own
        norm.

    Examples
    --------
    >>> from icl_theory.engine import Adam, Clipped
    >>> Clipped(Adam(), 1.0).name
    'adam, clipped at 1'
    """

    norm: float
    blocks: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        set_fields(self, norm=number("norm", self.norm))
        set_fields(self, blocks=flag("blocks", self.blocks))

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name of the wrapped rule, and the largest norm."""
        name = f"{self.rule.name}, clipped at {self.norm:g}"
        return f"{name} in each block" if self.blocks else name

    def step(
        self,
        risk: Risk,
        params: Array,
        gradient: Array,
        eta: float,
        memory: Array,
        t: int,
    ) -> tuple[Array, Array]:
        """Return the change of the parameters, and the memory of the wrapped rule."""
        clipped = self.clipped(risk, gradient)
        return self.rule.step(risk, params, clipped, eta, memory, t)

    def clipped(self, risk: Risk, gradient: Array) -> Array:
        """Return the gradient, or its blocks, no longer than the largest norm.

        Like a step, it does not check its arguments.
        """
        if not self.blocks:
            return np.asarray(gradient * self._factor(norm_in(risk.metric, gradient)))
        gradient = np.asarray(gradient)
        check_blocks(risk, gradient.shape)
        clipped = np.array(gradient)
        metric = np.broadcast_to(np.asarray(risk.metric, dtype=float), gradient.shape)
        blocks = zip(risk.blocks(clipped), risk.blocks(metric), strict=True)
        for block, metric_block in blocks:
            # in place: the blocks are views
            block *= self._factor(norm_in(metric_block, block))
        return clipped

    def _factor(self, norm: float) -> float:
        return min(1.0, self.norm / (norm + CLIP_GUARD))


@dataclass(frozen=True)
class Projected(Wrapper):
    r"""The step of a rule, and then the nearest point of a ball or sphere.

    That point is :math:`\theta\,r/|\theta|`. The norm of parameters is
    :math:`\sqrt{\theta^\top M\theta}`, the norm of the full parameters if they are
    reduced. Parameters inside a ball stay where they are. Zero has no nearest point on
    a sphere, and stays zero.

    Parameters
    ----------
    rule : Rule
        The rule.
    radius : float
        r.
    onto : {"ball", "sphere"}
        The set in which the parameters are kept.

    Examples
    --------
    >>> from icl_theory.engine import GradientDescent, Projected
    >>> Projected(GradientDescent(), 1.0, "sphere").name
    'gd, projected onto a sphere of radius 1'
    """

    radius: float
    onto: str = "ball"

    def __post_init__(self) -> None:
        super().__post_init__()
        set_fields(self, radius=number("radius", self.radius))
        choice("onto", self.onto, ("ball", "sphere"))

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name of the wrapped rule, and the radius."""
        target = f"a {self.onto} of radius {self.radius:g}"
        return f"{self.rule.name}, projected onto {target}"

    def step(
        self,
        risk: Risk,
        params: Array,
        gradient: Array,
        eta: float,
        memory: Array,
        t: int,
    ) -> tuple[Array, Array]:
        """Return the change of the parameters, and the memory of the wrapped rule."""
        change, memory = self.rule.step(risk, params, gradient, eta, memory, t)
        moved = params + change
        length = math.sqrt(float(np.sum(risk.metric * np.square(moved))))
        is_inside_ball = self.onto == "ball" and length <= self.radius
        if is_inside_ball or length == 0.0:
            return change, memory
        projected = moved * (self.radius / length)
        return np.asarray(projected - params), memory
