"""Sampled prompts that are drawn by their counts: how many tokens show each feature.

Loss and gradient cost much less than with the trainer `SampledRisk`, which draws
prompts token by token. With both trainers their means are the same, and with one query
for each prompt their laws are, too.

In the shapes below, K is the number of features, B the number of prompts of all runs
together, and R the number of runs that are evaluated at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import (
    EXACT,
    LARGEST,
    Array,
    argument_error,
    instance,
    integer,
    number,
    set_fields,
)
from icl_theory.engine.sampling import (
    Trainer,
    drawn_at_once,
    joined,
    prompts_per_run,
    prompts_to_draw,
)
from icl_theory.memory import blocks, check_fits
from icl_theory.regression.features import Features
from icl_theory.regression.tasks import Task
from icl_theory.tokens.multinomial import multinomial

# Up to this number of tokens for each feature, tokens are drawn one by one. For more
# tokens, single draws take longer than a multinomial draw, whose time depends on the
# number of features alone.
FEW_TOKENS = 10
# Largest number of entries of an array of a block of prompts, which then takes 4 MiB.
BLOCK = 2**19


@dataclass(frozen=True, eq=False)
class CountedRisk(Trainer["CountedPrompts"]):
    r"""Squared error of softmax attention on prompts that are drawn by their counts.

    A prompt has :math:`n_m` tokens of each feature m, with the sum :math:`y_m` of their
    labels. Tokens of one feature have the same score, :math:`S_{mk}` for the query k,
    so the prediction depends on these numbers only, and they are drawn directly. With
    :math:`e_{mk} = e^{S_{mk}}`, the value :math:`f_k` of the task at feature k and the
    probability :math:`p_k` of this query,

    .. math:: Z_k = \sum_m n_m e_{mk}, \quad \hat y_k = \sum_m y_m e_{mk}/Z_k, \quad
        \ell = \tfrac12 \sum_k p_k (\hat y_k - f_k)^2, \quad
        \frac{\partial\ell}{\partial S_{mk}} = p_k (\hat y_k -
        f_k)\,\frac{e_{mk}}{Z_k}\,(y_m - n_m \hat y_k).

    If ``every_query`` is False, a prompt has one random query. The factor p_k is then 1
    for this query and 0 for all others, and losses and gradients have the same law as
    with `SampledRisk`. With all queries, as in the formulas, they have the same mean
    and a smaller variance. This class shares no formula with the population risk.

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

    # A part of the seed of each step. It makes the prompts independent of the prompts
    # of `SampledRisk`, whose seeds have 0, 1 or 2 in its place.
    stream = (3,)

    def __post_init__(self) -> None:
        set_fields(
            self,
            N=integer("N", self.N, minimum=1, maximum=EXACT),
            batch=integer("batch", self.batch, minimum=1),
        )
        set_fields(self, seed=integer("seed", self.seed, minimum=0))
        set_fields(self, noise=number("noise", self.noise, zero=True, maximum=LARGEST))
        # With one query for each prompt, the batch is drawn as a whole and not in
        # blocks.
        if not self.every_query:
            check_fits("batch", self.batch, 8.0 * self.batch * self._numbers_per_prompt)

    @property
    def initial(self) -> Array:
        """Zero scores, (K, K)."""
        return np.zeros((self.features.K, self.features.K))

    @property
    def _by_tokens(self) -> bool:
        """Whether tokens are drawn one by one and counted.

        If features are equally likely, and there are few tokens for each of them, that
        is faster than drawing the counts from a multinomial law.
        """
        return self.features.uniform and self.N <= FEW_TOKENS * self.features.K

    @property
    def _numbers_per_prompt(self) -> float:
        """How many numbers of 8 bytes are in memory while a prompt is drawn.

        A rough bound: six arrays with an entry for each feature, and for each token if
        tokens are drawn one by one.
        """
        entries = self.features.K
        if self._by_tokens:
            entries += self.N
        return 6.0 * entries

    def draw(self, rng: np.random.Generator, size: int) -> CountedPrompts:
        """Draw prompts, sorted by their queries if each has a single one."""
        # `prompts_to_draw` refuses arguments that are out of range or need too much
        # memory.
        size = prompts_to_draw(rng, size, self._numbers_per_prompt)
        if self.every_query:
            return joined(list(self._drawn_in_blocks(rng, size)))
        # The evaluation needs the prompts of one query next to each other. Prompts are
        # exchangeable, so they may be sorted by their queries.
        query = np.sort(_draw_features(self.features, rng, size))
        values, counts, labels = self._prompts(rng, size)
        return CountedPrompts(counts, labels, values[np.arange(size), query], query)

    def draw_runs(self, rng: np.random.Generator, runs: int) -> list[CountedPrompts]:
        """Draw the prompts of several runs at once.

        If each prompt has a single query, the prompts of a run are sorted by their
        queries. Return a list with one entry, the prompts of all runs, run after run.
        """
        if self.every_query:
            return drawn_at_once(self, rng, runs)
        # Queries are sorted within each run, as in `draw`.
        queries_of_runs = _draw_features(self.features, rng, (runs, self.batch))
        query = np.sort(queries_of_runs, axis=1).ravel()
        size = len(query)
        values = self.task.sample(self.features, rng, size)
        # `multinomial` is faster than NumPy's method for many prompts. Its counts have
        # the same law as in `draw`, but other values for the same generator. Counts are
        # floats, because they are multiplied by weights.
        counts = multinomial(rng, self.N, self.features.probs, size).astype(np.float64)
        labels = self._labels(rng, values, counts)
        return [CountedPrompts(counts, labels, values[np.arange(size), query], query)]

    def _drawn_in_blocks(
        self, rng: np.random.Generator, size: int
    ) -> Iterator[CountedPrompts]:
        """Yield prompts with all K queries, in blocks with arrays of up to 4 MiB."""
        for rows in blocks(size, self.features.K, BLOCK):
            values, counts, labels = self._prompts(rng, rows.stop - rows.start)
            yield CountedPrompts(counts, labels, values, None)

    def check_given(self, prompts: CountedPrompts) -> None:
        """Refuse given prompts that do not have N tokens.

        Parameters
        ----------
        prompts : CountedPrompts
            Prompts that a user gives.
        """
        instance("prompts", prompts, CountedPrompts, "prompts of this trainer")
        lengths = np.sum(prompts.counts, axis=1)
        if (lengths != self.N).any() or (prompts.counts < 0).any():
            raise argument_error(
                "counts of the prompts",
                prompts.counts,
                f"numbers >= 0 that sum to N = {self.N} for each prompt",
            )

    def losses_on(self, params: Array, prompts: CountedPrompts) -> Array:
        """Loss of each of B prompts, (B,)."""
        # A common factor of a query's weights cancels. The largest weight becomes 1, so
        # that nothing overflows.
        weight = np.exp(params - params.max(axis=0))
        if prompts.query is None:
            prediction = (prompts.labels @ weight) / (prompts.counts @ weight)
            return 0.5 * (prediction - prompts.answer) ** 2 @ self.features.probs
        # The weights of a single run, (1, K, K)
        forward = _forward(weight[None], prompts, prompts.query)
        return 0.5 * forward.error**2

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Mean loss of the step's prompts and its gradient, (K, K)."""
        if not self.every_query:
            return self.evaluate_on(params, self.prompts(step))
        # The prompts of a step are drawn and used block by block, so that a large batch
        # takes little memory.
        loss = 0.0
        gradient = np.zeros_like(params)
        for block in self._drawn_in_blocks(self.generator(step), self.batch):
            # Sums over the prompts of a single run, for the scores (1, K, K)
            (block_loss,), (block_gradient,) = self._sums_of_every_query(
                params[None], block
            )
            loss += float(block_loss)
            gradient += block_gradient
        return loss / self.batch, gradient / self.batch

    def evaluate_on(
        self, params: Array, prompts: CountedPrompts
    ) -> tuple[float, Array]:
        """Mean loss of some prompts and its gradient, (K, K)."""
        (loss,), (gradient,) = self.evaluate_runs(params[None], prompts)
        return float(loss), gradient

    def evaluate_runs(
        self, params: Array, prompts: CountedPrompts
    ) -> tuple[Array, Array]:
        """Mean losses and gradients of R runs, (R,) and (R, K, K)."""
        size = prompts_per_run(prompts, len(params))
        if prompts.query is None:
            losses, gradients = self._sums_of_every_query(params, prompts)
            return losses / size, gradients / size
        return self._means_of_one_query(params, prompts, prompts.query)

    def _sums_of_every_query(
        self, params: Array, prompts: CountedPrompts
    ) -> tuple[Array, Array]:
        """Sums of losses, (R,), and gradients, (R, K, K), over the prompts of R runs.

        Every prompt has all K queries. The letters are those of the docstring of the
        class.
        """
        R, K, _ = params.shape
        # A common factor of a query's weights cancels. The largest weight becomes 1, so
        # that nothing overflows.
        e = np.exp(params - params.max(axis=1, keepdims=True))
        n = prompts.counts.reshape(R, -1, K)
        y = prompts.labels.reshape(R, -1, K)
        Z = n @ e
        prediction = y @ e / Z
        error = prediction - prompts.answer.reshape(R, -1, K)
        # The gradient p e (error/Z) (y - n · prediction) is summed over prompts as two
        # matrix products. The factors p and e are the same for all prompts of a run.
        error_over_Z = error / Z
        sum_with_y = y.swapaxes(1, 2) @ error_over_Z
        sum_with_n = n.swapaxes(1, 2) @ (prediction * error_over_Z)
        squares = np.einsum("rbk,rbk->rk", error, error)
        losses = 0.5 * squares @ self.features.probs
        return losses, e * (sum_with_y - sum_with_n) * self.features.probs

    def _means_of_one_query(
        self, params: Array, prompts: CountedPrompts, query: NDArray[np.integer[Any]]
    ) -> tuple[Array, Array]:
        """Mean losses and gradients of each run if every prompt has one query.

        The prompts come run after run, with equally many for each run.
        """
        R, K, _ = params.shape
        size = len(query) // R
        # As in `losses_on`, the largest weight of each query becomes 1.
        weight = np.exp(params - params.max(axis=1, keepdims=True))
        forward = _forward(weight, prompts, query)
        prediction = forward.prediction[:, None]
        # The derivatives ∂ℓ/∂S_mk of each prompt for its query k, (B, K), as in the
        # docstring of the class with p_k = 1. The factors are in another order, and the
        # division by ``size`` makes a sum over the prompts of a run their mean.
        slopes = prompts.counts * prediction
        np.subtract(prompts.labels, slopes, out=slopes)
        slopes *= forward.weight * (forward.error / (forward.total * size))[:, None]
        gradient = _sums_of_columns(slopes, forward.column, R * K)
        losses = 0.5 * np.mean(forward.error.reshape(R, size) ** 2, axis=1)
        # Row K r + k of the sums is column k of the gradient of run r.
        return losses, gradient.reshape(R, K, K).swapaxes(1, 2)

    def _prompts(
        self, rng: np.random.Generator, size: int
    ) -> tuple[Array, Array, Array]:
        """Draw values of the tasks, counts n and sums y of labels, (size, K) each."""
        values = self.task.sample(self.features, rng, size)
        counts = self._counts(rng, size).astype(np.float64)
        return values, counts, self._labels(rng, values, counts)

    def _labels(self, rng: np.random.Generator, values: Array, counts: Array) -> Array:
        """Draw sums of labels, (size, K)."""
        labels = counts * values
        # The noise of n labels adds up to a normal number of variance n noise².
        if self.noise:
            labels += self.noise * np.sqrt(counts) * rng.standard_normal(counts.shape)
        return labels

    def _counts(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        """Draw the number of tokens of each feature in each prompt, (size, K)."""
        K = self.features.K
        if not self._by_tokens:
            return rng.multinomial(self.N, self.features.probs, size)
        tokens = _draw_features(self.features, rng, (size, self.N))
        # One bincount for all prompts: prompt b has the cells K b, ..., K b + K - 1.
        cells = tokens + K * np.arange(size)[:, None]
        return np.bincount(cells.ravel(), minlength=size * K).reshape(size, K)


class CountedPrompts(NamedTuple):
    """B prompts by their counts."""

    counts: Array  # n, number of tokens of each feature, (B, K)
    labels: Array  # y, sum of their labels, (B, K)
    answer: Array  # value at the query, (B,), or at all features as queries, (B, K)
    query: NDArray[np.integer[Any]] | None  # feature, (B,), or None for all queries


class _Forward(NamedTuple):
    """Predictions on B prompts of R runs, with one query each."""

    # K r + k for a prompt of run r with query k, (B,). It is the number of the column
    # of scores that the prompt uses, among the columns of all runs.
    column: NDArray[np.intp]
    weight: Array  # e of each feature for the prompt's query, (B, K)
    total: Array  # Z, (B,)
    prediction: Array  # (B,)
    error: Array  # prediction - answer, (B,)


def _forward(
    weight: Array, prompts: CountedPrompts, query: NDArray[np.integer[Any]]
) -> _Forward:
    """Predict the answers of the prompts of R runs, with one query for each prompt.

    The ``weight`` is e in the docstring of `CountedRisk`, (R, K, K), up to a factor for
    each query. The prompts come run after run, with equally many for each run.
    """
    R, K, _ = weight.shape
    column = np.repeat(K * np.arange(R), len(query) // R) + query
    # Column k of the weights of run r becomes row K r + k.
    weight_of_prompt = weight.swapaxes(1, 2).reshape(R * K, K)[column]
    total = np.einsum("bk,bk->b", prompts.counts, weight_of_prompt)
    prediction = np.einsum("bk,bk->b", prompts.labels, weight_of_prompt) / total
    return _Forward(
        column, weight_of_prompt, total, prediction, prediction - prompts.answer
    )


def _sums_of_columns(slopes: Array, column: NDArray[np.intp], n_columns: int) -> Array:
    """Sum the ``slopes``, (B, K), of prompts with equal ``column``, (n_columns, K).

    The numbers in ``column``, (B,), are explained in ``_Forward``.
    """
    # Drawn prompts are sorted by their columns, so that prompts of one column stand
    # next to each other; given prompts may have any order. Column numbers are at least
    # 0, so with -1 in front there is also an increase at the first prompt.
    increases = np.diff(column, prepend=-1)
    if (increases < 0).any():
        order = np.argsort(column, kind="stable")
        column = column[order]
        slopes = slopes[order]
        increases = np.diff(column, prepend=-1)
    # The first prompt of each column that occurs
    first_prompts = np.flatnonzero(increases)
    sums = np.zeros((n_columns, slopes.shape[1]))
    # `reduceat` sums the rows from one of these prompts up to the next.
    sums[column[first_prompts]] = np.add.reduceat(slopes, first_prompts)
    return sums


def _draw_features(
    features: Features, rng: np.random.Generator, size: int | tuple[int, int]
) -> NDArray[np.integer[Any]]:
    """Draw indices of features with their probabilities."""
    if features.uniform:
        # Small integers are drawn faster. An int16 is below 2^15.
        dtype = np.int16 if features.K < 2**15 else np.int64
        return rng.integers(features.K, size=size, dtype=dtype)
    # Feature m has the interval from the sum of the probabilities before it to the sum
    # that includes its own. The last interval has no upper edge, because rounding may
    # leave the sum of all probabilities below 1.
    upper_edges = np.cumsum(features.probs)[:-1]
    return np.searchsorted(upper_edges, rng.random(size), side="right")
