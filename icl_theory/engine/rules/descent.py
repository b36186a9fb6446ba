"""Gradient descent, plain and normalised: rules without memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from icl_theory._validate import Array, argument_error
from icl_theory.engine.risk import Risk
from icl_theory.engine.rules.rule import NO_MEMORY, Rule


@dataclass(frozen=True)
class GradientDescent(Rule):
    r"""Gradient descent, :math:`\Delta = -\eta M^{-1}g` in a metric M."""

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
        """Return minus the rate, (..., 1, 1)."""
        return np.asarray(-rates)[..., None, None]


@dataclass(frozen=True)
class Normalised(Rule):
    r"""Steps of length η, :math:`\Delta = -\eta M^{-1}g/\sqrt{g^\top M^{-1}g}`."""

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
    """Steps of length η for each block of the parameters, see `Risk.blocks`."""

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
        # a risk of one number may return a float, which has no blocks
        gradient = np.asarray(gradient)
        check_blocks(risk, gradient.shape)
        change = np.empty_like(gradient)
        metric = np.broadcast_to(np.asarray(risk.metric, dtype=float), gradient.shape)
        blocks = zip(
            risk.blocks(change), risk.blocks(gradient), risk.blocks(metric), strict=True
        )
        for change_block, gradient_block, metric_block in blocks:
            # the blocks are views, so that this fills the change
            change_block[...] = _step_of_length(eta, gradient_block, metric_block)
        return change, NO_MEMORY


def check_blocks(risk: Risk, shape: tuple[int, ...]) -> None:
    """Refuse blocks that are copies, overlap, or leave entries out.

    The step in an entry that no block covers would not be defined.

    Raises
    ------
    ValueError
        `Risk.blocks` returns such blocks.
    """
    times_covered = np.zeros(shape)
    blocks = risk.blocks(times_covered)
    for block in blocks:
        block += 1  # in place if it is a view
    if (times_covered != 1).any():
        shapes = [np.shape(block) for block in blocks]
        raise argument_error(
            "blocks",
            shapes,
            f"views that together hold each entry of an array of shape {shape} once",
        )


def norm_in(metric: float | Array, gradient: Array) -> float:
    r"""Return the norm :math:`\sqrt{g^\top M^{-1}g}` of a gradient g.

    For a reduced gradient it is the norm of the full one.
    """
    largest = float(np.abs(gradient).max(initial=0.0))
    if not 0.0 < largest < math.inf:
        return largest
    # squares of tiny gradients would be zero
    scaled = gradient / largest
    return largest * math.sqrt(float(np.sum(scaled * (scaled / metric))))


def _step_of_length(eta: float, gradient: Array, metric: float | Array) -> Array:
    """Return the step of length ``eta`` down a gradient, 0 if that is 0."""
    largest = float(np.abs(gradient).max(initial=0.0))
    if not 0.0 < largest < math.inf:
        return -eta * gradient / metric
    # squares of tiny gradients would be zero
    scaled = gradient / largest
    direction = scaled / metric
    norm = math.sqrt(float(np.sum(scaled * direction)))
    return np.asarray(-eta * direction / norm)


# With their default settings, these have a name on the command line.
NAMED = (GradientDescent(), Normalised(), NormalisedBlocks())
