"""Sampled prompts drawn by their counts.

Loss and gradient have the same law as with the trainer, `SampledRisk`, which draws
prompts token by token, but cost much less.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import EXACT, LARGEST, Array, integer, number, set_fields
from icl_theory.engine.risk import Risk
from icl_theory.memory import blocks, check_fits
from icl_theory.regression.features import Features
from icl_theory.regression.tasks import Task


@dataclass(frozen=True, eq=False)
class CountedRisk(Risk):
    r"""Squared error of softmax attention on prompts that are drawn by their counts.

    For each feature m of K, a prompt has :math:`n_m` tokens with the sum :math:`y_m` of
    their labels. Attention over class scores S depends on these numbers only, so they
    are drawn directly. With :math:`e_{mk} = e^{S_{mk}}` for the query k,

    .. math:: Z_k = \sum_m n_m e_{mk}, \quad \hat y_k = \sum_m y_m e_{mk}/Z_k, \quad
        \ell = \tfrac12 \sum_k p_k (\hat y_k - f_k)^2, \quad
        \frac{\partial\ell}{\partial S_{mk}} = p_k (\hat y_k -
        f_k)\,\frac{e_{mk}}{Z_k}\,(y_m - n_m \hat y_k).

    If ``every_query`` is False, a prompt has one random query. The factor p_k is then 1
    for this query and 0 for all others, and losses and gradients have the same law as
    with `SampledRisk`. With all queries, as above, they have the same mean and a
    smaller variance. This class shares no formula with the population risk.

    The other parameters are as in `SampledRisk`. Scores of one query may differ by up
    to 600; beyond that, weights leave the range of float64. See docs/theory.md,
    "Population against samples".
    """

    features: Features
    task: Task
    N: int
    batch: int
    seed: int
    noise: float = 0.0
    every_query: bool = True

    stochastic = True  # the steps draw different prompts

    def __post_init__(self) -> None:
        set_fields(
            self,
            N=integer("N", self.N, minimum=1, maximum=EXACT),
            batch=integer("batch", self.batch, minimum=1),
        )
        set_fields(self, seed=integer("seed", self.seed, minimum=0))
        set_fields(self, noise=number("noise", self.noise, zero=True, maximum=LARGEST))
        # With one query for each prompt, the batch is drawn as a whole and not in
        # blocks. It takes six numbers of 8 bytes for each feature (and token) of a
        # prompt.
        if not self.every_query:
            numbers_per_prompt = self.features.K + (self.N if self._by_tokens else 0)
            check_fits("batch", self.batch, 48.0 * self.batch * numbers_per_prompt)

    @property
    def initial(self) -> Array:
        """Zero scores, (K, K)."""
        return np.zeros((self.features.K, self.features.K))

    @property
    def _by_tokens(self) -> bool:
        """Whether tokens are drawn one by one and counted.

        With up to 10 tokens for each feature that is faster than a multinomial law.
        """
        return self.features.uniform and self.N <= 10 * self.features.K

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Mean loss of the step's prompts and its gradient, (K, K)."""
        # The 3 keeps these numbers independent of the prompts of `SampledRisk`.
        rng = np.random.default_rng([self.seed, 3, step])
        weight = np.exp(params - params.max(axis=0))
        if not self.every_query:
            return self._with_one_query(weight, rng)
        loss = 0.0
        gradient = np.zeros_like(params)
        # Blocks keep a temporary array within 4 MiB.
        for rows in blocks(self.batch, self.features.K, 2**19):
            block_loss, block_gradient = self._block(
                weight, rng, rows.stop - rows.start
            )
            loss = loss + block_loss
            gradient = gradient + block_gradient
        return loss / self.batch, gradient * (self.features.probs / self.batch)

    def _block(
        self, weight: Array, rng: np.random.Generator, size: int
    ) -> tuple[float, Array]:
        """Sum the loss, and its gradient without the factor p_k, over new prompts."""
        values, counts, labels = self._prompts(rng, size)
        total = counts @ weight
        prediction = labels @ weight / total
        error = prediction - values
        back = error / total
        gradient = weight * (labels.T @ back - counts.T @ (prediction * back))
        squares = np.einsum("bk,bk->k", error, error)
        return 0.5 * float(self.features.probs @ squares), gradient

    def _with_one_query(
        self, weight: Array, rng: np.random.Generator
    ) -> tuple[float, Array]:
        """Mean loss and gradient with one query for each prompt."""
        # Prompts are exchangeable, so they may be sorted by their queries.
        query = np.sort(_tokens(self.features, rng, self.batch))
        values, counts, labels = self._prompts(rng, self.batch)
        rows = weight.T[query]
        total = np.einsum("bk,bk->b", counts, rows)
        prediction = np.einsum("bk,bk->b", labels, rows) / total
        error = prediction - values[np.arange(self.batch), query]
        # The slopes in the scores overwrite the labels, which saves a large array.
        slopes = labels
        slopes -= counts * prediction[:, None]
        slopes *= rows * (error / (total * self.batch))[:, None]
        # Sum over the prompts of each query, which stand next to each other.
        first_prompts = np.flatnonzero(np.diff(query, prepend=-1))
        gradient = np.zeros_like(weight)
        gradient[:, query[first_prompts]] = np.add.reduceat(slopes, first_prompts).T
        return 0.5 * float(np.mean(error**2)), gradient

    def _prompts(
        self, rng: np.random.Generator, size: int
    ) -> tuple[Array, Array, Array]:
        """Draw values of the tasks, counts n and sums y of labels, (size, K) each."""
        values = self.task.sample(self.features, rng, size)
        counts = self._counts(rng, size).astype(np.float64)
        labels = counts * values
        if self.noise:
            labels += self.noise * np.sqrt(counts) * rng.standard_normal(counts.shape)
        return values, counts, labels

    def _counts(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        K = self.features.K
        if not self._by_tokens:
            return rng.multinomial(self.N, self.features.probs, size)
        tokens = _tokens(self.features, rng, (size, self.N))
        # One bincount for all prompts: each has K cells of its own.
        cells = tokens + K * np.arange(size)[:, None]
        return np.bincount(cells.ravel(), minlength=size * K).reshape(size, K)


def _tokens(
    features: Features, rng: np.random.Generator, size: int | tuple[int, int]
) -> NDArray[np.integer[Any]]:
    if features.uniform:
        # small integers are drawn faster
        dtype = np.int16 if features.K < 2**15 else np.int64
        return rng.integers(features.K, size=size, dtype=dtype)
    edges = np.cumsum(features.probs)[:-1]
    return np.searchsorted(edges, rng.random(size), side="right")
