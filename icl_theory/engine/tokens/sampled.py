"""Softmax attention on sampled tokens: trainers that share no formula with the exact risks."""

from __future__ import annotations

from abc import abstractmethod
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array, integer
from icl_theory.engine.risk import Risk
from icl_theory.memory import check_fits

Indices = NDArray[np.intp]
Exact = TypeVar("Exact", bound=Risk)


class Sampled(Risk, Generic[Exact]):
    """Mean loss over ``batch`` prompts, drawn anew at each step: a function of the seed and the step.

    The ``exact`` risk says how prompts are drawn, and ``size`` how many numbers one takes.
    """

    def __init__(self, exact: Exact, batch: int, seed: int, size: float) -> None:
        self.exact = exact
        self.batch, self.seed = integer("batch", batch, minimum=1), integer("seed", seed, minimum=0)
        check_fits("batch", batch, 8.0 * batch * size)

    @property
    def initial(self) -> Array:
        """The initial scores of the exact risk."""
        return self.exact.initial

    @property
    def stochastic(self) -> bool:
        """Steps draw different prompts."""
        return True

    def generator(self, step: int) -> np.random.Generator:
        """Return the random numbers of a step."""
        return np.random.default_rng([self.seed, integer("step", step, minimum=0)])

    def losses(self, params: Array, step: int = 0) -> Array:
        """Return the losses of the step's prompts, (B,)."""
        return self._pass(params, step)[0]

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Mean loss of the step's prompts and its gradient, by the backward pass."""
        losses, place, back = self._pass(params, step)
        places = np.broadcast_to(place, back.shape)
        gradient = np.bincount(places.ravel(), back.ravel(), params.size) / self.batch
        return float(losses.mean()), gradient.reshape(params.shape)

    @abstractmethod
    def _pass(self, params: Array, step: int) -> tuple[Array, Indices, Array]:
        """Losses, (B,), places of parameters and derivatives by them, alike in shape or broadcast: (B, N), say."""


def softmax(scores: Array) -> tuple[Array, Array]:
    """Return the softmax along the last axis, and the log of the sum it is divided by."""
    top = scores.max(axis=-1, keepdims=True)
    weight = np.exp(scores - top)
    total = weight.sum(axis=-1, keepdims=True)
    return weight / total, (top + np.log(total))[..., 0]


def chosen(draws: Array, cumulated: Array) -> Indices:
    """Indices of the intervals in which uniform numbers fall, of the shape of ``draws``."""
    return np.asarray((draws[..., None] >= cumulated[..., :-1]).sum(axis=-1), dtype=np.intp)
