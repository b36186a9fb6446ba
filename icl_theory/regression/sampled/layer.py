"""The common part of trainers on sampled prompts.

`PromptRisk` has the batches, the softmax over tokens and its backward pass. A trainer
inherits from it, and defines how prompts are drawn.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import (
    EXACT,
    Array,
    argument_error,
    generator,
    instance,
    integer,
    set_fields,
)
from icl_theory.engine.sampling import Trainer, selected
from icl_theory.memory import blocks, check_fits

# A batch is split into parts whose arrays over tokens, (B, N), have at most this many
# numbers, which take 8 MiB. The system allocates larger arrays anew in each step, which
# takes longer than the arithmetic.
NUMBERS_IN_PART = 2**20
# A rough estimate of the memory for each token of a drawn prompt: five arrays with a
# number of 8 bytes for each token.
BYTES_PER_TOKEN = 40.0


class Prompts(NamedTuple):
    """A batch of B prompts of N tokens, given as features, as vectors, or as both."""

    token: NDArray[np.intp]  # feature indices, (B, N), or (B, 0) without features
    query: NDArray[np.intp]  # feature of the query, (B,), or (B, 0) without features
    label: Array  # labels of the tokens, with noise, (B, N)
    answer: Array  # value at the query, (B,)
    key: Array | None  # vectors of the tokens, (B, N, d); None without vectors
    asked: Array | None  # vectors of the queries, (B, d); None without vectors


def attend(scores: Array, label: Array) -> tuple[Array, Array]:
    """Return the softmax of the scores, (B, N), and the mean label under it, (B,).

    The softmax overwrites the scores.
    """
    # The largest score becomes 0, so that exp does not overflow.
    scores -= scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=1, keepdims=True)
    return scores, np.einsum("bn,bn->b", scores, label)


def bilinear_scores(
    Q: Array, token_vectors: Array, query_vectors: Array, most: float = 1e150
) -> Array:
    """Return the scores ``x_i^T Q x_q``, (B, N).

    Parameters
    ----------
    Q : ndarray, (d, d)
        The trained matrix.
    token_vectors : ndarray, (B, N, d)
        Vectors x_i of the tokens.
    query_vectors : ndarray, (B, d)
        Vectors x_q of the queries.
    most : float
        If the absolute value of an entry of Q is larger, Q is scaled down until its
        largest entry has this size. Then nothing overflows, and scores are still so far
        apart that one token has all attention.
    """
    largest = float(np.abs(Q).max())
    if largest > most:
        Q = Q / largest * most
    projected_queries = query_vectors @ Q.T
    return np.matmul(token_vectors, projected_queries[:, :, None])[:, :, 0]


class PromptRisk(Trainer[Prompts]):
    r"""Mean of :math:`\tfrac12(\hat y - f(x_q))^2` over a batch of sampled prompts.

    The prediction :math:`\hat y` is the mean label under softmax attention, and
    :math:`f(x_q)` is the value of the task at the query. The prompts of step t are a
    function of (seed, t). A trainer inherits from this class, has the fields below, and
    defines ``_draw``, which draws new prompts. If the prompts have vectors, the
    parameters are the matrix Q, otherwise the class scores, one for each feature and
    query.
    """

    N: int
    batch: int
    seed: int
    dataset: int | None
    # The second number of a generator's seed. Random numbers come from three
    # independent streams: 0 for the steps, 1 for the data set, and 2 for held-out
    # prompts.
    stream = (0,)

    @abstractmethod
    def _draw(self, rng: np.random.Generator, size: int) -> Prompts:
        """Draw ``size`` new prompts, whether or not there is a data set."""

    def draw(self, rng: np.random.Generator, size: int) -> Prompts:
        """Draw prompts, from the data set without replacement if there is one.

        If the data set has fewer than ``size`` prompts, all of them are returned.
        """
        generator("rng", rng)
        size = integer("size", size, minimum=1)
        check_fits("size", size, self._bytes(size))
        # The data set, or None. `_prepare` sets it in a way that mypy does not see.
        fixed: Prompts | None = self._fixed  # type: ignore[attr-defined]
        if fixed is None:
            return self._draw(rng, size)
        if size >= len(fixed.answer):
            return fixed
        return selected(fixed, rng.choice(len(fixed.answer), size, replace=False))

    def check_given(self, prompts: Prompts) -> None:
        """Refuse given prompts that do not have N tokens.

        Parameters
        ----------
        prompts : Prompts
            Prompts that a user gives.
        """
        instance("prompts", prompts, Prompts, "prompts of this trainer")
        shape = np.shape(prompts.label)
        if shape[1] != self.N:
            raise argument_error(
                "label of the prompts", shape, f"of shape (B, {self.N}), with N tokens"
            )

    def _attended(self, params: Array, prompts: Prompts) -> tuple[Array, Array]:
        """Return the attention, (B, N), and the predictions, (B,), of some prompts."""
        token_vectors = prompts.key
        query_vectors = prompts.asked
        if token_vectors is not None and query_vectors is not None:
            # The parameters are the matrix Q.
            scores = bilinear_scores(params, token_vectors, query_vectors)
        else:
            # The score of a token is the entry (token, query) of the class scores. The
            # indices have the shapes (B, 1) and (B, N).
            scores = params.T[prompts.query[:, None], prompts.token]
        # `attend` overwrites the scores, which are a new array.
        return attend(scores, prompts.label)

    def _prepare(self) -> None:
        """Check the fields, and draw the data set if there is one.

        Subclasses are frozen dataclasses, and call this after they have checked the
        fields that `_draw` uses.
        """
        set_fields(
            self,
            N=integer("N", self.N, minimum=1, maximum=EXACT),
            batch=integer("batch", self.batch, minimum=1),
        )
        set_fields(self, seed=integer("seed", self.seed, minimum=0))
        fixed = None
        if self.dataset is not None:
            size = integer("dataset", self.dataset, minimum=1)
            check_fits("dataset", size, self._bytes(size))
            stream_of_data_set = 1
            rng = np.random.default_rng([self.seed, stream_of_data_set])
            fixed = self._draw(rng, size)
            # `draw` may return the data set itself, which a user must not change.
            for array in fixed:
                if array is not None:
                    array.flags.writeable = False
        check_fits("N", self.N, self._bytes(self.batch))
        set_fields(self, _fixed=fixed)

    def _bytes(self, size: int) -> float:
        """Return a rough estimate of the memory that ``size`` drawn prompts need."""
        return BYTES_PER_TOKEN * size * self.N

    @property
    def stochastic(self) -> bool:
        """Whether the steps draw different prompts."""
        fixed: Prompts | None = self._fixed  # type: ignore[attr-defined]
        return fixed is None or self.batch < len(fixed.answer)

    def parts(self, prompts: Prompts) -> Iterator[Prompts]:
        """Split a batch; a part has at most NUMBERS_IN_PART tokens, or one prompt."""
        instance("prompts", prompts, Prompts, "prompts of this trainer")
        parts = blocks(len(prompts.answer), self.N, NUMBERS_IN_PART)
        if len(parts) == 1:
            # The whole batch, without a copy
            return iter([prompts])
        return (selected(prompts, rows) for rows in parts)

    def losses_on(self, params: Array, prompts: Prompts) -> Array:
        """Loss of each of B prompts, (B,)."""
        errors = []
        for part in self.parts(prompts):
            _attention, prediction = self._attended(params, part)
            errors.append(prediction - part.answer)
        return 0.5 * np.concatenate(errors) ** 2

    def evaluate_on(self, params: Array, prompts: Prompts) -> tuple[float, Array]:
        """Mean loss of some prompts and its gradient, by the backward pass."""
        errors = []
        # A zero without axes; the first sum gives it the shape of the parameters.
        gradient = np.zeros(())
        for part in self.parts(prompts):
            weight, prediction = self._attended(params, part)
            error = prediction - part.answer
            # With the attention weight_i on token i,
            # d(½ error²)/d(score_i) = error · weight_i · (label_i − prediction). The
            # loss is a mean, hence the division by the number of prompts. The array has
            # an entry for each token, so it is multiplied in place to save memory.
            d_scores = part.label - prediction[:, None]
            d_scores *= weight
            d_scores *= (error / len(prompts.answer))[:, None]
            gradient = gradient + _backward(params, d_scores, part)
            errors.append(error)
        loss = 0.5 * float(np.mean(np.concatenate(errors) ** 2))
        return loss, gradient


def _backward(params: Array, d_scores: Array, prompts: Prompts) -> Array:
    """Return the gradient with respect to the parameters.

    It follows from ``d_scores``, (B, N), the gradient with respect to the scores.
    """
    token_vectors = prompts.key
    query_vectors = prompts.asked
    if token_vectors is not None and query_vectors is not None:
        # The scores are x_i^T Q x_q, so the gradient is the sum of d_scores x_i x_q^T,
        # first over the tokens of a prompt (axis n), then over the prompts (axis b).
        return np.einsum("bn,bnd->bd", d_scores, token_vectors).T @ query_vectors
    # The score of a token is the entry (token, query) of the (K, K) class scores. The
    # ``d_scores`` of all tokens with the same entry are summed. Entries are numbered
    # row by row, as in the array that `reshape` returns.
    entry = prompts.token * len(params) + prompts.query[:, None]
    sums = np.bincount(entry.ravel(), d_scores.ravel(), params.size)
    return np.asarray(sums, dtype=np.float64).reshape(params.shape)
