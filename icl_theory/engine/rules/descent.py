"""Gradient descent, plain and normalised: rules without memory.

A rule returns the change of the parameters in a step, and the memory after the step.
The memory of these rules is empty.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from icl_theory._validate import Array, argument_error
from icl_theory.engine.risk import Risk
from icl_theory.engine.rules.rule import NO_MEMORY, Rule


@dataclass(frozen=True)
class GradientDescent(Rule):
    r"""Gradient descent, :math:`\Delta = -\eta M^{-1}g`.

    Here Δ is the step, η the learning rate, g the gradient and M = `Risk.metric`.
    """

    name = "gd"
    skippable = True
    may_stagnate = True

    def step(
        self,
        risk: Risk,
        params: Array,
        gradient: Array,
        eta: float,
        memory: Array,
        t: int,
    ) -> tuple[Array, Array]:
        """Return the change of the parameters, and no memory."""
        return -eta * gradient / risk.metric, NO_MEMORY

    def jacobian(self, rates: Array, eta: float) -> Array:
        """Return the derivatives of steps as 1 x 1 matrices, (..., 1, 1).

        ``rates`` has the values of ηλ for eigenvalues λ of the Hessian. Along the
        eigenvector of λ, a change δ of the parameter changes the step by -ηλδ, so the
        derivative is -ηλ.
        """
        return np.asarray(-rates)[..., None, None]


@dataclass(frozen=True)
class Normalised(Rule):
    r"""Steps of length η, :math:`\Delta = -\eta M^{-1}g/\sqrt{g^\top M^{-1}g}`.

    Here Δ is the step, η the learning rate, g the gradient and M = `Risk.metric`. The
    length is :math:`\sqrt{\Delta^\top M\Delta}`.
    """

    name = "ngd"
    skippable = True
    may_stagnate = True

    def step(
        self,
        risk: Risk,
        params: Array,
        gradient: Array,
        eta: float,
        memory: Array,
        t: int,
    ) -> tuple[Array, Array]:
        """Return the change of the parameters, and no memory."""
        return _step_of_length(eta, gradient, risk.metric), NO_MEMORY


@dataclass(frozen=True)
class NormalisedBlocks(Rule):
    """Steps of length η in each block of the parameters (`Risk.blocks`).

    The step in a block is the step that `Normalised` takes on this block alone.
    """

    name = "ngd-blocks"
    skippable = True
    may_stagnate = True

    def step(
        self,
        risk: Risk,
        params: Array,
        gradient: Array,
        eta: float,
        memory: Array,
        t: int,
    ) -> tuple[Array, Array]:
        """Return the change of the parameters, and no memory."""
        # The gradient of a risk of one number may be a float, which cannot be split
        # into blocks.
        gradient = np.asarray(gradient)
        check_blocks(risk, gradient.shape)
        change = np.empty_like(gradient)
        metric = np.broadcast_to(np.asarray(risk.metric, dtype=float), gradient.shape)
        blocks = zip(
            risk.blocks(change), risk.blocks(gradient), risk.blocks(metric), strict=True
        )
        for change_block, gradient_block, metric_block in blocks:
            # The blocks are views, so this fills `change`.
            change_block[...] = _step_of_length(eta, gradient_block, metric_block)
        return change, NO_MEMORY


def check_blocks(risk: Risk, shape: tuple[int, ...]) -> None:
    """Refuse a risk whose blocks are copies, overlap, or leave entries out.

    An entry that no block covers would have no step. ``shape`` is the shape of the
    parameters.

    Raises
    ------
    ValueError
        `Risk.blocks` does not return views that hold each entry exactly once.
    """
    # The number of blocks that contain each entry.
    times_covered = np.zeros(shape)
    blocks = risk.blocks(times_covered)
    for block in blocks:
        block += 1  # changes times_covered only if the block is a view
    if (times_covered != 1).any():
        shapes = [np.shape(block) for block in blocks]
        raise argument_error(
            "blocks",
            shapes,
            f"views that together hold each entry of an array of shape {shape} once",
        )


def norm_in(metric: float | Array, gradient: Array) -> float:
    r"""Return the norm :math:`\sqrt{g^\top M^{-1}g}` of a gradient g.

    If the parameters θ are a reduction of more parameters S (`Risk.metric`), this is
    the norm of the gradient with respect to S.
    """
    largest = float(np.abs(gradient).max(initial=0.0))
    # If the largest entry is zero, infinite or NaN, so is the norm, and the entries
    # cannot be divided by the largest one.
    if not 0.0 < largest < math.inf:
        return largest
    # The squares of tiny entries would underflow to zero, and the squares of huge ones
    # overflow. So scale the largest entry to 1.
    scaled = gradient / largest
    return largest * math.sqrt(float(np.sum(scaled * (scaled / metric))))


def _step_of_length(eta: float, gradient: Array, metric: float | Array) -> Array:
    """Return the step of length ``eta`` down a gradient; 0 if the gradient is 0."""
    largest = float(np.abs(gradient).max(initial=0.0))
    # A gradient that is zero, infinite or NaN has no direction. The step is then zero,
    # infinite or NaN as well, and `engine.stops` decides whether the run ends.
    if not 0.0 < largest < math.inf:
        return -eta * gradient / metric
    # Scaled so that squares neither underflow nor overflow, as in `norm_in`. The scale
    # cancels in the quotient.
    scaled = gradient / largest
    direction = scaled / metric
    norm = math.sqrt(float(np.sum(scaled * direction)))
    return np.asarray(-eta * direction / norm)


# These rules, with their default settings, have a name on the command line.
NAMED = (GradientDescent(), Normalised(), NormalisedBlocks())
