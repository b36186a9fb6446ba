"""Softmax attention on sampled tokens.

`Sampled` is a risk over prompts that are drawn anew at each step. It shares no formula
with the exact risks, which are tested against it. The functions at the end of the
module are shared by all samplers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array, instance, integer
from icl_theory.engine.risk import Risk, WithStart
from icl_theory.memory import check_fits

Indices = NDArray[np.intp]
# The losses of prompts, the places (in the flat array) of the parameters on which they
# depend, and the derivatives by these parameters.
Pass = tuple[Array, Indices, Array]
Draw = Callable[[Array, np.random.Generator, int], Pass]
Observe = Callable[[Array, np.random.Generator, int], dict[str, Array]]


class Sampled(WithStart, Risk):
    """Mean loss over prompts that are drawn anew at each step.

    The prompts are a function of the seed and the step.

    Parameters
    ----------
    start : ndarray
        Parameters at step 0.
    draw : callable
        A function of the parameters, a random generator and the number B of prompts. It
        returns the losses of the prompts, (B,), places in the flat array of parameters,
        and the derivatives of the losses by the parameters at these places. Places are
        broadcast to the shape of the derivatives, for example (B, N).
    batch, seed : int
        Number of prompts in a step, and the seed.
    numbers : float
        How many numbers (of 8 bytes) a prompt takes in memory.
    observation : callable, optional
        A function of the same arguments as ``draw`` that returns the observations.
    """

    stochastic = True  # the steps draw different prompts

    def __init__(
        self,
        start: Array,
        draw: Draw,
        batch: int,
        seed: int,
        numbers: float,
        observation: Observe | None = None,
    ) -> None:
        self.start = start
        self.draw = draw
        self.observation = observation
        self.batch = integer("batch", batch, minimum=1)
        self.seed = integer("seed", seed, minimum=0)
        check_fits("batch", batch, 8.0 * batch * numbers)

    def generator(self, step: int) -> np.random.Generator:
        """Return the generator of the random numbers of a step."""
        return np.random.default_rng([self.seed, integer("step", step, minimum=0)])

    def losses(self, params: Array, step: int = 0) -> Array:
        """Return the losses of the step's prompts, (B,)."""
        losses, _, _ = self.draw(params, self.generator(step), self.batch)
        return losses

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Mean loss of the step's prompts and its gradient, by the backward pass."""
        losses, place, slopes = self.draw(params, self.generator(step), self.batch)
        places = np.broadcast_to(place, slopes.shape)
        summed = np.bincount(places.ravel(), slopes.ravel(), params.size)
        gradient = summed / self.batch
        return float(losses.mean()), gradient.reshape(params.shape)

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Observations of the step's prompts."""
        if self.observation is None:
            return {}
        return self.observation(params, self.generator(step), self.batch)


def prompts_to_draw(rng: np.random.Generator, size: int, numbers: float) -> int:
    """Check the arguments of a method ``draw``, and return the number of prompts.

    A prompt takes ``numbers`` numbers of 8 bytes in memory.
    """
    instance("rng", rng, np.random.Generator, "a numpy.random.Generator")
    size = integer("size", size, minimum=1)
    check_fits("size", size, 8.0 * size * numbers)
    return size


def softmax(scores: Array) -> tuple[Array, Array]:
    """Return the softmax along the last axis, and the log of its denominator."""
    top = scores.max(axis=-1, keepdims=True)
    weight = np.exp(scores - top)
    total = weight.sum(axis=-1, keepdims=True)
    return weight / total, (top + np.log(total))[..., 0]


def chosen(draws: Array, cumulated: Array) -> Indices:
    """Return the index of the interval in which each uniform number falls.

    The result has the shape of ``draws``. The last axis of ``cumulated`` has the upper
    ends of the intervals.
    """
    is_beyond = draws[..., None] >= cumulated[..., :-1]
    return np.asarray(is_beyond.sum(axis=-1), dtype=np.intp)
