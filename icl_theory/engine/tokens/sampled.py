"""Softmax attention on sampled tokens: trainers that share no formula with the exact risks."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array, integer
from icl_theory.engine.risk import Risk
from icl_theory.memory import check_fits

if TYPE_CHECKING:
    from icl_theory.engine.tokens.risk import TokenRisk

Indices = NDArray[np.intp]


class Sampled(Risk):
    """Mean loss over ``batch`` prompts, drawn anew at each step: a function of the seed and the step."""

    def __init__(self, initial: Array, batch: int, seed: int, size: float) -> None:
        self._initial = initial
        self.batch, self.seed = integer("batch", batch, minimum=1), integer("seed", seed, minimum=0)
        check_fits("batch", batch, 8.0 * batch * size)  # numbers of a prompt

    @property
    def initial(self) -> Array:
        """The initial scores of the exact risk."""
        return self._initial

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
        gradient = np.bincount(place.ravel(), back.ravel(), params.size) / self.batch
        return float(losses.mean()), gradient.reshape(params.shape)

    @abstractmethod
    def _pass(self, params: Array, step: int) -> tuple[Array, Indices, Array]:
        """Losses, (B,), and for each token the place of its score and the derivative by it, (B, N)."""


def softmax(scores: Array) -> tuple[Array, Array]:
    """Return the softmax along the last axis, and the log of the sum it is divided by."""
    top = scores.max(axis=-1, keepdims=True)
    weight = np.exp(scores - top)
    total = weight.sum(axis=-1, keepdims=True)
    return weight / total, (top + np.log(total))[..., 0]


class Prompts(NamedTuple):
    """A batch of B prompts of N tokens, of which some may be missing."""

    node: Indices  # of each token, (B, N)
    noise: Array  # of each value around that of its node, (B, N)
    missing: NDArray[np.bool_]  # (B, N)
    query: Indices  # (B,)


class SampledTokens(Sampled):
    """Mean of ½|o - y|² over a batch of prompts, o the average of their values; made by `TokenRisk.sampled`."""

    def __init__(self, exact: TokenRisk, batch: int, seed: int) -> None:
        self._exact, errors = exact, exact.errors
        self._spread = np.sqrt(np.maximum(exact.own - np.einsum("qud,qud->uq", errors, errors), 0.0))
        tokens = sum(count.number for count in exact.counts)
        super().__init__(exact.initial, batch, seed, tokens * (6.0 + errors.shape[2]))

    def prompts(self, step: int = 0) -> Prompts:
        """Return the prompts of one step."""
        rng, asked = self.generator(step), self._exact.asked
        query = rng.choice(len(asked), self.batch, p=asked)
        nodes, missing = [], []
        for number, rows, each in self._exact.counts:
            probs, shape = self._exact.probs[rows], (self.batch, int(number))
            nodes.append(rows.start + rng.choice(len(probs), shape, p=probs))
            kept = rng.integers(1, int(number) + 1, self.batch) if each else np.full(self.batch, number)
            missing.append(np.arange(int(number)) >= kept[:, None])
        node = np.concatenate(nodes, axis=1)
        noise = self._spread[node, query[:, None] % self._spread.shape[1]] * rng.normal(size=node.shape)
        return Prompts(node, noise, np.concatenate(missing, axis=1), query)

    def _pass(self, params: Array, step: int) -> tuple[Array, Indices, Array]:
        prompts, errors = self.prompts(step), self._exact.errors
        place = prompts.node * len(self._exact.asked) + prompts.query[:, None]
        weight, _ = softmax(np.where(prompts.missing, -np.inf, params.ravel()[place]))
        values = errors[prompts.query[:, None] % len(errors), prompts.node]
        error, noise = np.einsum("bn,bnd->bd", weight, values), np.einsum("bn,bn->b", weight, prompts.noise)
        squared = np.einsum("bd,bd->b", error, error) + noise**2
        pull = np.einsum("bnd,bd->bn", values, error) + prompts.noise * noise[:, None] - squared[:, None]
        return 0.5 * squared, place, weight * pull
