"""Single-location regression on sampled prompts, in any number of dimensions.

This module shares no formula with the exact risks, so that samples and exact risks
check each other. In four dimensions the means of the sampled losses and gradients are
the exact losses and gradients. Stochastic descent needs all d dimensions of the
problem: the noise of a batch has a part in each of them, which lengthens k and v, or
turns them if their lengths are fixed.

Of the D dimensions of a trainer, the axes 0 and 1 are k* and v*: the direction of the
mean of the informative token, and the direction in which its label is read.
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
    """B prompts of N tokens in D dimensions."""

    tokens: Array  # (B, N, D); the coordinates 0 and 1 are along k* and v*
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
    r"""The loss of the prediction :math:`\sum_i f(k^\top x_i)\,v^\top x_i` of a label.

    The loss is half the squared error, as a mean over prompts that are drawn anew at
    each step. The activation f is "erf", "linear", or a softmax over all tokens i.

    Parameters
    ----------
    problem : SingleLocation
        The law of the prompts, and the activation f.
    start : ndarray, (2, D) or (2D + 1,)
        Parameters at step 0, in D >= 2 dimensions, of which the axes 0 and 1 are k* and
        v*. Without softmax the parameters are vectors along k and v; with softmax, k, v
        and the bias of the first position.
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
        prompt = np.arange(size)  # indices of the prompts
        tokens = rng.normal(size=(size, p.N, self.dimension))
        # The informative token is in the first position, or else in any other position
        # with equal probabilities.
        is_first = rng.random(size) < p.chance
        position = np.where(is_first, 0, rng.integers(1, p.N, size))
        # The mean of the informative token is along k*, axis 0, and its label is read
        # along v*, axis 1.
        tokens[prompt, position] *= p.spread
        tokens[prompt, position, 0] += math.sqrt(p.snr)
        label = tokens[prompt, position, 1] + p.noise * rng.normal(size=size)
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
        """Mean loss of given prompts, and its gradient."""
        # `evaluate_runs` gets one run, and returns arrays with one entry.
        mean_losses, gradients = self.evaluate_runs(params[None], prompts)
        return float(mean_losses[0]), gradients[0]

    def evaluate_runs(self, params: Array, prompts: Prompts) -> tuple[Array, Array]:
        """Mean losses and gradients of R runs, (R,) and (R, ...).

        The prompts are in the order of the runs, B prompts for each.
        """
        vectors = self._vectors(params)
        errors, attended, tokens = self._forward(vectors, prompts)
        mean_losses = 0.5 * np.mean(errors**2, axis=1)

        # A local name by_z is the derivative of the mean loss of a run with respect to
        # z. The mean is over the B prompts of the run. (``attended.by_score`` is the
        # derivative of the output, not of the loss.)
        by_output = errors[:, :, None] / errors.shape[1]
        by_score = by_output * attended.by_score
        by_value = by_output * attended.weight
        # Scores are k·x and values v·x, so the tokens x are their derivatives.
        by_products = np.stack([by_score, by_value], axis=1)  # (R, 2, B, N)
        by_k_and_v = by_products.reshape(len(params), 2, -1) @ tokens  # (R, 2, D)
        if not self._trains_directions:
            # The bias is added to the score of the first token of each prompt.
            by_bias = by_score[:, :, 0].sum(axis=1)
            flat = by_k_and_v.reshape(len(params), -1)
            return mean_losses, np.column_stack([flat, by_bias])
        # A change along a vector does not turn it, so this part of the derivatives is
        # removed. The same change turns a longer vector less, so the rest is divided by
        # the length.
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
        # A row of parameters has k, v and last the bias.
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
            is_first_position = np.arange(p.N) == 0
            # `softmax` also returns the logarithms of its denominators.
            weight, _ = softmax(scores + bias[:, None, None] * is_first_position)
            output = np.sum(weight * values, axis=2, keepdims=True)
            # With the weights a and the values V, the derivative of the output
            # Σ_j a_j V_j with respect to score i is a_i (V_i - output).
            return Attended(weight, weight * (values - output))
        scaled = scale * scores
        if p.attention == "erf":
            # The derivative of erf(λs) with respect to s.
            slope = scale * 2.0 / math.sqrt(math.pi) * np.exp(-(scaled**2))
            return Attended(erf(scaled), slope * values)
        return Attended(scaled, scale * values)
