"""Softmax attention on sampled tokens: a trainer that shares no formula with the exact risks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array, integer
from icl_theory.engine.risk import Risk
from icl_theory.memory import check_fits


class Prompts(NamedTuple):
    """A batch of B prompts of N tokens, of which some may be missing."""

    node: NDArray[np.intp]  # of each token, (B, N)
    noise: Array  # of each value around that of its node, (B, N)
    missing: NDArray[np.bool_]  # (B, N)
    query: NDArray[np.intp]  # (B,)


class SampledTokens(Risk):
    """Mean of ½|o - y|² over a batch of prompts, o the average of the values under softmax attention.

    Made by `TokenRisk.sampled`. The prompts of step t are a function of the seed and of t.
    """

    def __init__(
        self,
        laws: Sequence[tuple[float, Array, bool]],
        errors: Array,
        spread: Array,
        queries: Array,
        initial: Array,
        batch: int,
        seed: int,
    ) -> None:
        self._laws, self._errors, self._spread, self._queries = laws, errors, np.sqrt(spread), queries
        self._initial = initial
        self.batch, self.seed = integer("batch", batch, minimum=1), integer("seed", seed, minimum=0)
        tokens = sum(number for number, *_ in laws)
        check_fits("batch", batch, 8.0 * batch * tokens * (6.0 + errors.shape[2]))

    @property
    def initial(self) -> Array:
        """Zero scores."""
        return self._initial

    @property
    def stochastic(self) -> bool:
        """Steps draw different prompts."""
        return True

    def prompts(self, step: int = 0) -> Prompts:
        """Return the prompts of one step."""
        rng = np.random.default_rng([self.seed, integer("step", step, minimum=0)])
        query = rng.choice(len(self._queries), self.batch, p=self._queries)
        nodes, missing, first = [], [], 0
        for number, probs, each in self._laws:
            shape = self.batch, int(number)
            nodes.append(first + rng.choice(len(probs), shape, p=probs))
            kept = rng.integers(1, int(number) + 1, self.batch) if each else np.full(self.batch, number)
            missing.append(np.arange(int(number)) >= kept[:, None])
            first += len(probs)
        node = np.concatenate(nodes, axis=1)
        noise = self._spread[node, query[:, None] % self._spread.shape[1]] * rng.normal(size=node.shape)
        return Prompts(node, noise, np.concatenate(missing, axis=1), query)

    def losses(self, params: Array, step: int = 0) -> Array:
        """Return the losses of the step's prompts, (B,)."""
        return 0.5 * self._pass(params, self.prompts(step))[0]

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Mean loss of the step's prompts and its gradient, by the backward pass."""
        prompts = self.prompts(step)
        squared, weight, pull = self._pass(params, prompts)
        entry = prompts.node * len(self._queries) + prompts.query[:, None]
        gradient = np.bincount(entry.ravel(), (weight * pull).ravel(), params.size) / self.batch
        return 0.5 * float(squared.mean()), gradient.reshape(params.shape)

    def _pass(self, params: Array, prompts: Prompts) -> tuple[Array, Array, Array]:
        """Squared errors, (B,), attention and derivatives of half the squared errors by scores, over it, (B, N)."""
        scores = params.reshape(len(params), -1)[prompts.node, prompts.query[:, None]]
        scores = np.where(prompts.missing, -np.inf, scores)
        weight = np.exp(scores - scores.max(axis=1, keepdims=True))
        weight /= weight.sum(axis=1, keepdims=True)
        values = self._errors[prompts.query[:, None] % len(self._errors), prompts.node]
        error, noise = np.einsum("bn,bnd->bd", weight, values), np.einsum("bn,bn->b", weight, prompts.noise)
        squared = np.einsum("bd,bd->b", error, error) + noise**2
        pull = np.einsum("bnd,bd->bn", values, error) + prompts.noise * noise[:, None] - squared[:, None]
        return squared, weight, pull
