"""Softmax attention on sampled tokens: trainers that share no formula with the exact risks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array, instance, integer
from icl_theory.engine.risk import Risk, WithStart
from icl_theory.memory import check_fits

Indices = NDArray[np.intp]
# losses, places of parameters, and derivatives by them
Pass = tuple[Array, Indices, Array]


class Sampled(WithStart, Risk):
    """Mean loss over ``batch`` prompts, drawn anew at each step: a function of the seed and the step.

    A function ``draw`` of parameters, random numbers and the number B of prompts
    returns their losses, (B,), places of parameters and derivatives by them, alike in
    shape or broadcast: (B, N), say. ``seen`` is a function of the same that returns
    what is observed, and ``size`` how many numbers a prompt takes.
    """

    stochastic = True  # the steps draw different prompts

    def __init__(
        self,
        start: Array,
        draw: Callable[[Array, np.random.Generator, int], Pass],
        batch: int,
        seed: int,
        size: float,
        seen: Callable[[Array, np.random.Generator, int], dict[str, Array]]
        | None = None,
    ) -> None:
        self.start = start
        self.draw = draw
        self.seen = seen
        self.batch = integer("batch", batch, minimum=1)
        self.seed = integer("seed", seed, minimum=0)
        check_fits("batch", batch, 8.0 * batch * size)

    def generator(self, step: int) -> np.random.Generator:
        """Return the random numbers of a step."""
        return np.random.default_rng([self.seed, integer("step", step, minimum=0)])

    def losses(self, params: Array, step: int = 0) -> Array:
        """Return the losses of the step's prompts, (B,)."""
        return self.draw(params, self.generator(step), self.batch)[0]

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Mean loss of the step's prompts and its gradient, by the backward pass."""
        losses, place, back = self.draw(params, self.generator(step), self.batch)
        places = np.broadcast_to(place, back.shape)
        gradient = np.bincount(places.ravel(), back.ravel(), params.size) / self.batch
        return float(losses.mean()), gradient.reshape(params.shape)

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """What is observed of the step's prompts."""
        return (
            {}
            if self.seen is None
            else self.seen(params, self.generator(step), self.batch)
        )


def prompts_to_draw(rng: np.random.Generator, size: int, numbers: float) -> int:
    """Check the arguments of ``draw``; a prompt takes so many ``numbers``. Return the number of prompts."""
    instance("rng", rng, np.random.Generator, "a numpy.random.Generator")
    size = integer("size", size, minimum=1)
    check_fits("size", size, 8.0 * size * numbers)
    return size


def softmax(scores: Array) -> tuple[Array, Array]:
    """Return the softmax along the last axis, and the log of the sum it is divided by."""
    top = scores.max(axis=-1, keepdims=True)
    weight = np.exp(scores - top)
    total = weight.sum(axis=-1, keepdims=True)
    return weight / total, (top + np.log(total))[..., 0]


def chosen(draws: Array, cumulated: Array) -> Indices:
    """Indices of the intervals in which uniform numbers fall, of the shape of ``draws``."""
    return np.asarray(
        (draws[..., None] >= cumulated[..., :-1]).sum(axis=-1), dtype=np.intp
    )
