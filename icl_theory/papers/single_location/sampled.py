"""Single-location regression on sampled prompts, in any number of dimensions.

This module shares no formula with the exact risks, so that samples and exact risks
check each other. In four dimensions the expectations of losses and gradients are the
exact losses and gradients. Stochastic descent needs all d dimensions: the noise of a
batch has a part in each of them, which lengthens k and v, or turns them if their
lengths are fixed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from icl_theory._validate import Array, integer
from icl_theory.engine.risk import WithStart
from icl_theory.engine.sampling import Trainer, prompts_per_run, prompts_to_draw
from icl_theory.memory import check_fits
from icl_theory.tokens.sampled import softmax

if TYPE_CHECKING:
    from icl_theory.papers.single_location.family import SingleLocation


class Prompts(NamedTuple):
    """B prompts of N tokens in D dimensions. The first two axes are k* and v*."""

    tokens: Array  # (B, N, D)
    label: Array  # of each prompt, (B,)
    scale: Array  # the factor λ of the scores, (B,)


class Attended(NamedTuple):
    """Weights of tokens in the B prompts of R runs, and derivatives of the output."""

    weight: Array  # f(k·x) of each token, (R, B, N)
    # Derivative of the output with respect to k·x of each token, (R, B, N).
    by_score: Array


class _Vectors(NamedTuple):
    """The parameters of R runs; without softmax k and v are unit vectors."""

    k_and_v: Array  # (R, 2, D)
    bias: Array  # of the score in the first position, 0 without softmax, (R,)


class LocationTrainer(WithStart, Trainer[Prompts]):
    r"""Squared error of :math:`\sum_i f(k^\top x_i)\,v^\top x_i` on fresh prompts.

    The first two axes are k* and v*.

    Parameters
    ----------
    problem : SingleLocation
        The law of the prompts, and the activation f.
    start : ndarray, (2, D) or (2D + 1,)
        Parameters at step 0, in D >= 2 dimensions. Without softmax these are vectors
        along k and v; with softmax, k, v and the bias of the first position.
    batch, seed : int
        Number of prompts in a step, and the seed.
    """

    def __init__(
        self, problem: SingleLocation, start: Array, batch: int, seed: int
    ) -> None:
        self.problem = problem
        self.start = start
        self.batch = integer("batch", batch, minimum=1)
        self.seed = integer("seed", seed, minimum=0)
        check_fits("batch", batch, 8.0 * batch * self._numbers)

    @property
    def _trains_directions(self) -> bool:
        """Whether only the directions of k and v matter, as they do without softmax."""
        return self.start.ndim == 2

    @property
    def dimension(self) -> int:
        """Number D of dimensions."""
        return self.start.size // 2

    @property
    def _numbers(self) -> float:
        """Generous bound on how many numbers a prompt takes in memory.

        It allows for three copies of N tokens, each token with its score, value, weight
        and derivative.
        """
        return 3.0 * self.problem.N * (self.dimension + 4.0)

    def blocks(self, array: Array) -> Sequence[Array]:
        """Return k and v, or with softmax all parameters as one block."""
        return (array[0], array[1]) if self._trains_directions else (array,)

    def draw(self, rng: np.random.Generator, size: int) -> Prompts:
        """Draw ``size`` prompts, whose scores have the factor λ of step 0."""
        # `prompts_to_draw` checks the size, and that the prompts fit in memory.
        size = prompts_to_draw(rng, size, self._numbers)
        p = self.problem
        rows = np.arange(size)
        tokens = rng.normal(size=(size, p.N, self.dimension))
        # The informative token is in the first position, or else in any other position
        # with equal probabilities.
        is_first = rng.random(size) < p.chance
        place = np.where(is_first, 0, rng.integers(1, p.N, size))
        # The mean of the informative token is along k*, axis 0, and its label is read
        # along v*, axis 1.
        tokens[rows, place] *= p.spread
        tokens[rows, place, 0] += math.sqrt(p.snr)
        label = tokens[rows, place, 1] + p.noise * rng.normal(size=size)
        return Prompts(tokens, label, np.full(size, p.scale))

    def prompts(self, step: int = 0) -> Prompts:
        """Return the B prompts of a step, with the factor of their scores."""
        scale = self.problem.scale_at(step)
        return super().prompts(step)._replace(scale=np.full(self.batch, scale))

    def losses_on(self, params: Array, prompts: Prompts) -> Array:
        """Loss of each of B prompts, (B,)."""
        vectors = self._vectors(params[None])  # of one run
        errors, _, _ = self._forward(vectors, prompts)
        return 0.5 * errors[0] ** 2

    def evaluate_on(self, params: Array, prompts: Prompts) -> tuple[float, Array]:
        """Mean loss of some prompts, and its gradient."""
        # `evaluate_runs` gets one run, and returns arrays with one entry.
        mean_losses, gradients = self.evaluate_runs(params[None], prompts)
        return float(mean_losses[0]), gradients[0]

    def evaluate_runs(self, params: Array, prompts: Prompts) -> tuple[Array, Array]:
        """Mean losses and gradients of R runs, (R,) and (R, ...).

        The prompts are those of the first run, then those of the second run, and so on.
        """
        vectors = self._vectors(params)
        errors, attended, tokens = self._forward(vectors, prompts)
        mean_losses = 0.5 * np.mean(errors**2, axis=1)

        # A name by_z is the derivative of the mean loss of a run with respect to z. The
        # mean is over the B prompts of the run.
        by_output = errors[:, :, None] / errors.shape[1]
        by_score = by_output * attended.by_score
        by_value = by_output * attended.weight
        # Scores are k·x and values v·x, so the tokens x are their derivatives.
        by_products = np.stack([by_score, by_value], axis=1)  # (R, 2, B, N)
        by_k_and_v = by_products.reshape(len(params), 2, -1) @ tokens  # (R, 2, D)
        if not self._trains_directions:
            by_bias = by_score[:, :, 0].sum(axis=1)
            flat = by_k_and_v.reshape(len(params), -1)
            return mean_losses, np.column_stack([flat, by_bias])
        # A change along a vector does not turn it, so this part of the derivatives is
        # removed.
        unit = vectors.k_and_v
        along = np.sum(by_k_and_v * unit, axis=2, keepdims=True)
        lengths = np.linalg.norm(params, axis=2, keepdims=True)
        return mean_losses, (by_k_and_v - along * unit) / lengths

    def _vectors(self, params: Array) -> _Vectors:
        """Return k, v and the bias of each run for the parameters of R runs, (R, ...).

        Without softmax only the directions of k and v matter, and the result has unit
        vectors.
        """
        R = len(params)
        if self._trains_directions:
            lengths = np.linalg.norm(params, axis=2, keepdims=True)
            return _Vectors(params / lengths, np.zeros(R))
        return _Vectors(params[:, :-1].reshape(R, 2, -1), params[:, -1])

    def _forward(
        self, vectors: _Vectors, prompts: Prompts
    ) -> tuple[Array, Attended, Array]:
        """Return errors, (R, B), attention, and the tokens of each run, (R, BN, D).

        An error is the output minus the label.
        """
        R = len(vectors.bias)
        B = prompts_per_run(prompts, R)
        N = prompts.tokens.shape[1]
        tokens = prompts.tokens.reshape(R, B * N, -1)
        products = tokens @ vectors.k_and_v.swapaxes(1, 2)  # k·x and v·x, (R, BN, 2)
        scores, values = np.moveaxis(products, 2, 0).reshape(2, R, B, N)
        scale = prompts.scale.reshape(R, B, 1)
        attended = self._attend(scores, values, vectors.bias, scale)
        output = np.sum(attended.weight * values, axis=2)
        return output - prompts.label.reshape(R, B), attended, tokens

    def _attend(
        self, scores: Array, values: Array, bias: Array, scale: Array
    ) -> Attended:
        """Return the weights of tokens, with the derivatives of the output.

        Scores k·x and values v·x are (R, B, N). Softmax uses the bias of each run,
        (R,); "erf" and "linear" use the factor of the scores of each prompt, (R, B, 1).
        """
        from scipy.special import erf  # slow to load

        p = self.problem
        if p.attention == "softmax":
            is_first_place = np.arange(p.N) == 0
            weight, _ = softmax(scores + bias[:, None, None] * is_first_place)
            output = np.sum(weight * values, axis=2, keepdims=True)
            return Attended(weight, weight * (values - output))
        scaled = scale * scores
        if p.attention == "erf":
            # The derivative of erf(λs) with respect to s.
            slope = scale * 2.0 / math.sqrt(math.pi) * np.exp(-(scaled**2))
            return Attended(erf(scaled), slope * values)
        return Attended(scaled, scale * values)
