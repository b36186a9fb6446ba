"""Rules around other rules: decoupled weight decay, clipped gradients, and steps back onto a ball or sphere."""

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
    """A rule that changes what goes into another one, or what comes out of it; the memory is the other one's."""

    rule: Rule

    def __post_init__(self) -> None:
        if not isinstance(self.rule, Rule):
            raise argument_error("rule", self.rule, "an icl_theory.engine.Rule")

    @property
    def may_stagnate(self) -> bool:  # type: ignore[override]
        """That of the wrapped rule."""
        return self.rule.may_stagnate

    @property
    def reducible(self) -> bool:  # type: ignore[override]
        """That of the wrapped rule."""
        return self.rule.reducible

    @property
    def horizon(self) -> int | None:  # type: ignore[override]
        """That of the wrapped rule."""
        return self.rule.horizon

    def init(self, risk: Risk, params: Array) -> Array:
        """Return the memory of the wrapped rule."""
        return self.rule.init(risk, params)


@dataclass(frozen=True)
class Decayed(Wrapper):
    r"""Decoupled weight decay: the step of a rule, and :math:`-\eta\lambda\theta` besides.

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
        """The wrapped rule's, and the decay."""
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
        """That of the wrapped rule."""
        return self.rule.skippable

    def memory_scale(self, eta: float) -> float:
        """That of the wrapped rule."""
        return self.rule.memory_scale(eta)

    def jacobian(self, rates: Array, eta: float) -> Array | None:
        """That of the wrapped rule, and the decay of the parameter."""
        inner = self.rule.jacobian(rates, eta)
        if inner is None:
            return None
        decayed = np.array(inner)
        decayed[..., 0, 0] -= eta * self.weight_decay
        return decayed


@dataclass(frozen=True)
class Clipped(Wrapper):
    r"""Gradients shortened to a largest norm c before a rule sees them: :math:`g\,\min(1, c/(|g| + 10^{-6}))`.

    It is ``torch.nn.utils.clip_grad_norm_``, whose 10⁻⁶ it keeps. The norm of a
    gradient is :math:`\sqrt{g^\top M^{-1}g}`, that of the full gradient where
    parameters are reduced.

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
        """The wrapped rule's, and the largest norm."""
        which = " in each block" if self.blocks else ""
        return f"{self.rule.name}, clipped at {self.norm:g}{which}"

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
        return self.rule.step(
            risk, params, self.clipped(risk, gradient), eta, memory, t
        )

    def clipped(self, risk: Risk, gradient: Array) -> Array:
        """Return the gradient, or its blocks, no longer than the largest norm; unchecked, like a step."""
        if not self.blocks:
            return np.asarray(gradient * self._factor(norm_in(risk.metric, gradient)))
        gradient = np.asarray(gradient)
        check_blocks(risk, gradient.shape)
        shortened = np.array(gradient)
        metric = np.broadcast_to(np.asarray(risk.metric, dtype=float), gradient.shape)
        for block, block_metric in zip(
            risk.blocks(shortened), risk.blocks(metric), strict=True
        ):
            block *= self._factor(norm_in(block_metric, block))
        return shortened

    def _factor(self, norm: float) -> float:
        return min(1.0, self.norm / (norm + CLIP_GUARD))


@dataclass(frozen=True)
class Projected(Wrapper):
    r"""The step of a rule, and then the nearest point of a ball or sphere.

    That point is :math:`\theta\,r/|\theta|`. The norm of parameters is
    :math:`\sqrt{\theta^\top M\theta}`, that of the full parameters where they are
    reduced. On a ball, parameters within it stay where they are; from zero there is no
    nearest point of a sphere, and zero stays zero.

    Parameters
    ----------
    rule : Rule
        The rule.
    radius : float
        r.
    onto : {"ball", "sphere"}
        Where the parameters are kept.

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
        """The wrapped rule's, and the radius."""
        return (
            f"{self.rule.name}, projected onto a {self.onto} of radius {self.radius:g}"
        )

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
        stays = length <= self.radius if self.onto == "ball" else length == 0.0
        if stays:
            return change, memory
        return np.asarray(moved * (self.radius / length) - params), memory
