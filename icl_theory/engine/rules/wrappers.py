"""Update rules that wrap another update rule.

`Decayed` adds a decay of the weights, `Clipped` clips the gradient, and `Projected`
projects the parameters onto a ball or a sphere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from icl_theory._validate import Array, argument_error, choice, flag, number, set_fields
from icl_theory.engine.risk import Risk
from icl_theory.engine.rules.descent import check_blocks, norm_in
from icl_theory.engine.rules.rule import Rule

# PyTorch adds this number to the norm of a gradient, to avoid a division by zero.
CLIP_GUARD = 1e-6


@dataclass(frozen=True)
class Wrapper(Rule):
    """A rule that changes the input or the step of a wrapped rule.

    Its memory is the memory of the wrapped rule. Its steps cannot be skipped, unless a
    subclass overrides ``skippable``.

    Parameters
    ----------
    rule : Rule
        The wrapped rule.
    """

    rule: Rule

    def __post_init__(self) -> None:
        if not isinstance(self.rule, Rule):
            raise argument_error("rule", self.rule, "an icl_theory.engine.Rule")

    @property
    def may_stagnate(self) -> bool:  # type: ignore[override]
        """Whether the wrapped rule may stagnate."""
        return self.rule.may_stagnate

    @property
    def reducible(self) -> bool:  # type: ignore[override]
        """Whether the wrapped rule commutes with reductions."""
        return self.rule.reducible

    @property
    def horizon(self) -> int | None:  # type: ignore[override]
        """The horizon of the wrapped rule."""
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
        The wrapped rule, which makes the rest of the step.
    weight_decay : float
        The decay λ; η is the learning rate, and θ are the parameters.

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
        """Whether steps of the wrapped rule may be skipped."""
        return self.rule.skippable

    def memory_scale(self, eta: float) -> float:
        """The scale of the memory of the wrapped rule."""
        return self.rule.memory_scale(eta)

    def jacobian(self, rates: Array, eta: float) -> Array | None:
        """The Jacobian of the wrapped rule, plus the derivative of the decay.

        The decay changes the parameter θ by -ηλθ, which has the derivative -ηλ. The
        parameter is the first number that a step changes, so -ηλ is added in the first
        row and column. The result is None if the wrapped rule has no known Jacobian.
        """
        inner = self.rule.jacobian(rates, eta)
        if inner is None:
            return None
        # A copy, because the wrapped rule may keep its array.
        jacobian = np.array(inner)
        jacobian[..., 0, 0] -= eta * self.weight_decay
        return jacobian


@dataclass(frozen=True)
class Clipped(Wrapper):
    r"""A rule that gets clipped gradients, :math:`g\,\min(1, c/(|g| + 10^{-6}))`.

    The norm of a clipped gradient is at most c. The formula, with the number that
    avoids a division by zero, is the one in ``torch.nn.utils.clip_grad_norm_``. The
    norm is :math:`|g| = \sqrt{g^\top M^{-1}g}` with M = `Risk.metric`. If the
    parameters θ are a reduction of more parameters S, this norm equals the norm of the
    gradient with respect to S.

    Parameters
    ----------
    rule : Rule
        The wrapped rule.
    norm : float
        The largest norm c.
    blocks : bool
        Whether each block of the gradient is clipped by its own norm; see
        `Risk.blocks`.

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
        """Return the clipped gradient.

        The blocks of the risk are checked if the gradient is split into them.
        """
        if not self.blocks:
            # `norm_in` returns the norm of the gradient in the metric.
            return np.asarray(gradient * self._factor(norm_in(risk.metric, gradient)))
        gradient = np.asarray(gradient)
        check_blocks(risk, gradient.shape)
        clipped = np.array(gradient)
        metric = np.broadcast_to(np.asarray(risk.metric, dtype=float), gradient.shape)
        blocks = zip(risk.blocks(clipped), risk.blocks(metric), strict=True)
        for block, metric_block in blocks:
            # The blocks are views, so this changes `clipped`.
            block *= self._factor(norm_in(metric_block, block))
        return clipped

    def _factor(self, norm: float) -> float:
        """Return the number by which a gradient of this norm is multiplied."""
        return min(1.0, self.norm / (norm + CLIP_GUARD))


@dataclass(frozen=True)
class Projected(Wrapper):
    r"""A rule whose steps are projected: each ends in a ball or on a sphere.

    After each step the parameters θ are replaced by the nearest point
    :math:`\theta\,r/|\theta|`, unless they are inside the ball. Zero has no nearest
    point on a sphere, and stays zero. The norm is :math:`|\theta| = \sqrt{\theta^\top
    M\theta}` with M = `Risk.metric`. If θ is a reduction of more parameters S, this
    norm equals the norm of S.

    Parameters
    ----------
    rule : Rule
        The wrapped rule.
    radius : float
        The radius r.
    onto : {"ball", "sphere"}
        The set in which the parameters are kept.
    blocks : bool
        Whether each block of the parameters is kept in a ball or on a sphere of its
        own; see `Risk.blocks`.

    Examples
    --------
    >>> from icl_theory.engine import GradientDescent, Projected
    >>> Projected(GradientDescent(), 1.0, "sphere").name
    'gd, projected onto a sphere of radius 1'
    """

    radius: float
    onto: str = "ball"
    blocks: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        set_fields(self, radius=number("radius", self.radius))
        choice("onto", self.onto, ("ball", "sphere"))
        set_fields(self, blocks=flag("blocks", self.blocks))

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name of the wrapped rule, and the radius."""
        target = f"a {self.onto} of radius {self.radius:g}"
        name = f"{self.rule.name}, projected onto {target}"
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
        change, memory = self.rule.step(risk, params, gradient, eta, memory, t)
        new_params = np.asarray(params + change)
        factors = self._factors(risk, new_params)
        # If the factor is 1, the change is returned as it is, because
        # factors * new_params - params would lose the digits of a small change.
        is_not_projected = np.equal(factors, 1.0)
        projected_change = factors * new_params - params
        return np.where(is_not_projected, change, projected_change), memory

    def _factors(self, risk: Risk, params: Array) -> Array:
        """Return the number by which each parameter is multiplied, see `_factor`.

        If ``blocks`` is True, the parameters of a block have a common factor.
        """
        factors = np.ones_like(params)
        if not self.blocks:
            factors[...] = self._factor(params, risk.metric)
            return factors
        check_blocks(risk, params.shape)
        metric = np.broadcast_to(np.asarray(risk.metric, dtype=float), params.shape)
        blocks = zip(
            risk.blocks(factors), risk.blocks(params), risk.blocks(metric), strict=True
        )
        for factors_block, params_block, metric_block in blocks:
            # The blocks are views, so this fills `factors`.
            factors_block[...] = self._factor(params_block, metric_block)
        return factors

    def _factor(self, params: Array, metric: float | Array) -> float:
        """Return radius/norm of the parameters, or 1 inside the ball or at zero."""
        largest = float(np.abs(params).max(initial=0.0))
        # Squares of huge entries would overflow, and those of tiny ones underflow. So
        # the entries are divided by a power of 2, which is exact.
        _, exponent = math.frexp(largest)
        scaled = np.ldexp(params, -exponent)
        scaled_length = math.sqrt(float(np.sum(metric * np.square(scaled))))
        # Beyond the range of float64 the length is infinite.
        with np.errstate(over="ignore"):
            length = float(np.ldexp(scaled_length, exponent))
        is_inside_ball = self.onto == "ball" and length <= self.radius
        if is_inside_ball or length == 0.0:
            return 1.0
        factor = self.radius / length
        # Parameters so small that the factor overflows stay as they are, like zero.
        return factor if math.isfinite(factor) else 1.0
