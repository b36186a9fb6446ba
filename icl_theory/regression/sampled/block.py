r"""A whole transformer block, trained on sampled prompts.

The block has attention, a feed-forward layer, two layer norms and a linear read-out.
The forward and the backward pass are explicit formulas, layer by layer, for a batch of
prompts.

In the shapes below, B is the number of prompts of a batch, N the number of tokens of a
prompt, d the dimension of the inputs, K the number of features, and D = d + 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import Array, argument_error, instance, integer, set_fields
from icl_theory.engine.sampling import Trainer
from icl_theory.regression.sampled.layer import Prompts, attend
from icl_theory.regression.sampled.risk import SampledRisk

# This number is added to the variance in a layer norm, as in PyTorch, so that no vector
# is divided by zero.
NORM_STABILISER = 1e-5
# The second number of the seed of the initial parameters. It makes the parameters
# independent of the prompts of a `SampledRisk` with the same seed, whose second number
# is 0 for the prompts of the steps, 1 for fixed sets of prompts, and 2 for held-out
# prompts.
STREAM_OF_PARAMETERS = 3
# The largest number of hidden units. W_1 and W_2 together then take 16 MB for each of
# the D dimensions.
MOST_HIDDEN = 10**6


class Weights(NamedTuple):
    """The parameters of a block with H hidden units, in the order of the flat vector.

    The letters are defined in `BlockRisk`.
    """

    W_Q: Array  # (D, D)
    W_K: Array  # (D, D)
    W_V: Array  # (D, D)
    gain_1: Array  # (D,)
    shift_1: Array  # (D,)
    W_1: Array  # (H, D)
    c_1: Array  # (H,)
    W_2: Array  # (D, H)
    c_2: Array  # (D,)
    gain_2: Array  # (D,)
    shift_2: Array  # (D,)
    w: Array  # (D,)
    c: Array  # (1,)


@dataclass(frozen=True, eq=False)
class BlockRisk(Trainer[Prompts]):
    r"""Squared error of a transformer block on the prompts of a `SampledRisk`.

    A token is the pair :math:`z_i = (x_i, y_i)` of an input and its label, and the
    query is :math:`z_q = (x_q, 0)`. Both have D = d + 1 dimensions. The block computes
    the prediction :math:`\hat y` from

    .. math::
        a_i &= \mathrm{softmax}_i\bigl(z_i^\top W_K^\top W_Q z_q/\sqrt D\bigr), \\
        h &= \mathrm{LN}_1\bigl(z_q + W_V {\textstyle\sum_i} a_i z_i\bigr), \\
        g &= \mathrm{LN}_2\bigl(h + W_2\,\mathrm{relu}(W_1 h + c_1) + c_2\bigr), \qquad
        \hat y = w^\top g + c,

    where a layer norm subtracts the mean of a vector, divides by
    :math:`\sqrt{\mathrm{var} + 10^{-5}}`, and applies a gain and a shift to each
    coordinate. The query attends to the N tokens and not to itself. The loss is
    :math:`\tfrac12 E(\hat y - f(x_q))^2`. All layers are trained, as one flat vector in
    the order of `Weights`. At the start, the entries of the matrices and of the vector
    ``w`` are independent and normal, with the variance 1/(number of columns) for a
    matrix and 1/D for ``w``. The gains are 1, and all other parameters are 0. See
    docs/theory.md, "The block of Section 6".

    Parameters
    ----------
    data : SampledRisk
        The one-matrix model. In each step the block is trained on the prompts of this
        model.
    hidden : int
        Number H of hidden units of the feed-forward layer.
    seed : int
        Seed of the initial parameters. The seed of the prompts is part of ``data``.
    held_out : int
        Number of prompts for each query feature that `BlockRisk.observe` uses. No step
        trains on them.

    Examples
    --------
    >>> import icl_theory as icl
    >>> features = icl.Features.simplex(4, delta=2.0)
    >>> task = icl.tasks.Exchangeable(1.0)
    >>> data = icl.SampledRisk(features, task, N=30, batch=64, seed=0)
    >>> run = icl.descend(icl.regression.BlockRisk(data), eta=0.3, steps=1000)
    >>> bool(run.attention[0].mean() < 0.3 < 0.8 < run.attention[-1].mean())
    True
    """

    data: SampledRisk
    hidden: int = 32
    seed: int = 0
    held_out: int = 256

    def __post_init__(self) -> None:
        instance(
            "data",
            self.data,
            SampledRisk,
            "a SampledRisk, on whose prompts the block is trained",
        )
        set_fields(
            self,
            hidden=integer("hidden", self.hidden, minimum=1, maximum=MOST_HIDDEN),
            seed=integer("seed", self.seed, minimum=0),
            held_out=integer("held_out", self.held_out, minimum=1),
        )

    @property
    def stochastic(self) -> bool:
        """Whether the steps draw different prompts."""
        return self.data.stochastic

    @property
    def initial(self) -> Array:
        """The initial parameters, flat: see the docstring of the class."""
        # The second entry of the seed makes the parameters independent of the prompts:
        # NumPy extends seeds by zeros, so the first entry alone would be the same as
        # [seed, 0, 0], the seed of the first step's prompts.
        rng = np.random.default_rng([self.seed, STREAM_OF_PARAMETERS])
        weights = []
        for name, shape in self._shapes.items():
            # The matrices W_Q, ..., W_2 and the read-out w have random entries. Their
            # variance is 1 over the length of the last axis.
            if name.startswith(("W", "w")):
                weights.append(rng.normal(0.0, 1.0 / math.sqrt(shape[-1]), shape))
            elif name.startswith("gain"):
                weights.append(np.ones(shape))
            else:
                weights.append(np.zeros(shape))
        return _flat(weights)

    def unpack(self, params: ArrayLike) -> Weights:
        """Return the parameters of each layer, from the flat vector ``params``."""
        return self._weights(self._checked(params))

    def predict(self, params: ArrayLike, prompts: Prompts) -> tuple[Array, Array]:
        """Run the block on prompts.

        Parameters
        ----------
        params : array_like
            The parameters, as a flat vector.
        prompts : Prompts
            From ``data.prompts(step)`` or ``data.held_out(size)``.

        Returns
        -------
        attention : ndarray, (B, N)
            Weights on the tokens; they sum to 1.
        prediction : ndarray, (B,)
            The predicted answers, in label units.

        Raises
        ------
        ValueError
            The parameters are so large that predictions leave the range of float64.
        """
        instance("prompts", prompts, Prompts, "prompts of a SampledRisk")
        self._refuse_other_features(prompts)
        forward = self._forward(self.unpack(params), prompts)
        if not np.isfinite(forward.prediction).all():
            raise argument_error(
                "params",
                float(np.abs(params).max()),
                "numbers with finite predictions (largest shown)",
            )
        return forward.attention, forward.prediction

    def _refuse_other_features(self, prompts: Prompts) -> None:
        """Refuse prompts of other features.

        Their indices may exceed the number of features, or their vectors may have
        another dimension.
        """
        features = self.data.features
        largest_index = max(prompts.token.max(initial=0), prompts.query.max(initial=0))
        fits = largest_index < features.K
        # The vectors of the tokens, and the vectors of the queries
        for vectors in (prompts.key, prompts.asked):
            if vectors is not None and vectors.shape[-1] != features.d:
                fits = False
        if not fits:
            raise argument_error(
                "prompts", "prompts of other features", f"of {features}"
            )

    # In the base class ``batch`` is a field, and mypy refuses a property in its place.
    @property
    def batch(self) -> int:  # type: ignore[override]
        """Number of prompts in a step."""
        return self.data.batch

    def draw(self, rng: np.random.Generator, size: int) -> Prompts:
        """Draw prompts of the ``data``."""
        return self.data.draw(rng, size)

    def prompts(self, step: int = 0) -> Prompts:
        """Return the prompts that ``data`` draws in a step."""
        return self.data.prompts(step)

    @np.errstate(over="ignore", invalid="ignore")
    def losses_on(self, params: Array, prompts: Prompts) -> Array:
        """Loss of each of B prompts, (B,); infinite beyond the range of float64."""
        prediction = self._forward(self._weights(params), prompts).prediction
        losses = 0.5 * (prediction - prompts.answer) ** 2
        return np.where(np.isfinite(losses), losses, math.inf)

    @np.errstate(over="ignore", invalid="ignore")
    def evaluate_on(self, params: Array, prompts: Prompts) -> tuple[float, Array]:
        """Mean loss of some prompts and its gradient.

        If a number leaves the range of float64, the loss is infinite and the gradient
        zero.
        """
        forward = self._forward(self._weights(params), prompts)
        error = forward.prediction - prompts.answer
        loss = 0.5 * float(np.mean(error**2))
        # The derivative of the mean of ½ error² with respect to a prediction is
        # error/B.
        gradient = _flat(forward.back(error / len(error)))
        if not (math.isfinite(loss) and np.isfinite(gradient).all()):
            return math.inf, np.zeros_like(params)
        return loss, gradient

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Measure attention and losses on the held-out prompts.

        If a prediction leaves the range of float64, losses are infinite and attention
        is zero.

        Returns
        -------
        dict of ndarray
            ``attention``, (K,): mean attention on the query's own feature.
            ``attention_map``, (K, K): mean attention on feature m for query k, with
            columns that sum to 1. ``loss_per_query``, (K,): mean loss of each query.
            ``test_loss``, (): mean of these losses with the probabilities of the
            queries. ``attention_loss``, (): the same mean for the prediction ``sum_i
            a_i y_i``, which the one-matrix model would make from this attention.
        """
        features = self.data.features
        prompts = self._held_out
        forward = self._forward(self._weights(params), prompts)
        # These values stay if a prediction is not finite.
        attention_map = np.zeros((features.K, features.K))
        loss = np.full(features.K, math.inf)
        attention_loss = np.full(features.K, math.inf)
        if np.isfinite(forward.prediction).all():
            # Entry (m, k) of the map is the attention on all tokens of feature m, as a
            # mean over the prompts with the query k, whose number is ``held_out``.
            # `np.add.at` adds up entries that occur several times, unlike ``+=``.
            entries = (prompts.token, prompts.query[:, None])
            np.add.at(attention_map, entries, forward.attention / self.held_out)
            mean_label = np.sum(forward.attention * prompts.label, axis=1)
            loss = self._per_query(forward.prediction)
            attention_loss = self._per_query(mean_label)
        return {
            # A copy, because `np.diagonal` returns a read-only view.
            "attention": np.diagonal(attention_map).copy(),
            "attention_map": attention_map,
            "loss_per_query": loss,
            "test_loss": np.asarray(features.probs @ loss),
            "attention_loss": np.asarray(features.probs @ attention_loss),
        }

    def _per_query(self, prediction: Array) -> Array:
        """Return the loss of each query, over its held-out prompts, (K,)."""
        error = prediction - self._held_out.answer
        # The prompts are in the order of their queries, equally many for each.
        return 0.5 * np.mean(error.reshape(self.data.features.K, -1) ** 2, axis=1)

    @cached_property
    def _held_out(self) -> Prompts:
        """The prompts that no step trains on, equally many for each query."""
        return self.data.held_out(self.held_out)

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each weight, in the order of the parameters."""
        D = self.data.features.d + 1
        H = self.hidden
        # Most weights are vectors of D entries. So all get this shape first, and then
        # the shapes of the others are replaced.
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(Weights._fields, (D,))
        shapes |= dict.fromkeys(("W_Q", "W_K", "W_V"), (D, D))
        shapes |= {"W_1": (H, D), "c_1": (H,), "W_2": (D, H), "c": (1,)}
        return shapes

    def _weights(self, params: Array) -> Weights:
        """Split the flat parameters into the weights."""
        weights = {}
        end = 0
        for name, shape in self._shapes.items():
            begin = end
            end = begin + math.prod(shape)
            weights[name] = params[begin:end].reshape(shape)
        return Weights(**weights)

    @np.errstate(over="ignore", invalid="ignore")
    def _forward(self, weights: Weights, prompts: Prompts) -> _ForwardPass:
        """Run the block. Predictions may be infinite or NaN, and must be checked."""
        # Prompts have vectors of their own (``key`` of the tokens, and ``asked`` of the
        # queries) only with token noise.
        vectors = self.data.features.vectors
        x = vectors[prompts.token] if prompts.key is None else prompts.key
        x_q = vectors[prompts.query] if prompts.asked is None else prompts.asked
        return _ForwardPass(weights, x, prompts.label, x_q)


class _ForwardPass:
    """The block on a batch of prompts, with the values that its backward pass needs.

    The letters are defined in `BlockRisk`.

    Parameters
    ----------
    weights : Weights
        The parameters.
    x, y : ndarray, (B, N, d) and (B, N)
        The inputs and labels of the tokens.
    x_q : ndarray, (B, d)
        The queries.
    """

    def __init__(self, weights: Weights, x: Array, y: Array, x_q: Array) -> None:
        self.weights = weights
        # The tokens z_i, (B, N, D), and the query, (B, D)
        self.z = np.concatenate([x, y[:, :, None]], axis=2)
        self.z_q = np.concatenate([x_q, np.zeros((len(x_q), 1))], axis=1)
        self.root_D = math.sqrt(self.z.shape[2])
        # W_Kᵀ W_Q z_q for each prompt, (B, D)
        projected_query = self.z_q @ weights.W_Q.T @ weights.W_K
        # Matrix products of a batch, with one vector for each prompt: (B, N, D) times
        # (B, D, 1) for the scores, and (B, 1, N) times (B, N, D) for the mean token.
        scores = np.matmul(self.z, projected_query[:, :, None])[:, :, 0] / self.root_D
        # `attend` returns the softmax of the scores, which it overwrites, and the mean
        # label under the softmax, which is not needed.
        self.attention, _mean_label = attend(scores, y)
        self.mean_token = np.matmul(self.attention[:, None, :], self.z)[:, 0, :]
        self.norm_1 = _LayerNorm(
            self.z_q + self.mean_token @ weights.W_V.T, weights.gain_1, weights.shift_1
        )
        h = self.norm_1.output
        self.hidden_values = np.maximum(h @ weights.W_1.T + weights.c_1, 0.0)
        self.norm_2 = _LayerNorm(
            h + self.hidden_values @ weights.W_2.T + weights.c_2,
            weights.gain_2,
            weights.shift_2,
        )
        self.prediction = self.norm_2.output @ weights.w + weights.c

    def back(self, d_prediction: Array) -> Weights:
        """Return the gradient of the loss with respect to all weights.

        It follows from ``d_prediction``, (B,), the derivative of the loss with respect
        to the predictions. In general ``d_x`` is the derivative of the loss with
        respect to x.
        """
        weights = self.weights
        h = self.norm_1.output
        gradient_2 = self.norm_2.back(d_prediction[:, None] * weights.w)
        # The derivative with respect to the sum of h and the output of the feed-forward
        # layer
        d_residual = gradient_2.input
        # The slope of relu is 1 for active hidden units, and 0 for all others.
        d_hidden = np.where(self.hidden_values > 0.0, d_residual @ weights.W_2, 0.0)
        # h acts on this sum directly, and through the hidden units.
        gradient_1 = self.norm_1.back(d_residual + d_hidden @ weights.W_1)
        d_mean_token = gradient_1.input @ weights.W_V
        d_attention = np.matmul(self.z, d_mean_token[:, :, None])[:, :, 0]
        # A change ds of the scores s changes the attention a by
        # da_i = a_i (ds_i - Σ_j a_j ds_j). This map is symmetric, so it also turns the
        # derivative with respect to a into the derivative with respect to s.
        mean_d_attention = np.sum(self.attention * d_attention, axis=1, keepdims=True)
        d_score = self.attention * (d_attention - mean_d_attention)
        # The scores are z_i · (W_Kᵀ W_Q z_q)/√D: sum over the tokens of a prompt first,
        # then over the prompts.
        d_projected_query = (
            np.matmul(d_score[:, None, :], self.z)[:, 0, :] / self.root_D
        )
        return Weights(
            W_Q=weights.W_K @ (d_projected_query.T @ self.z_q),
            W_K=weights.W_Q @ (self.z_q.T @ d_projected_query),
            W_V=gradient_1.input.T @ self.mean_token,
            gain_1=gradient_1.gain,
            shift_1=gradient_1.shift,
            W_1=d_hidden.T @ h,
            c_1=d_hidden.sum(axis=0),
            W_2=d_residual.T @ self.hidden_values,
            c_2=d_residual.sum(axis=0),
            gain_2=gradient_2.gain,
            shift_2=gradient_2.shift,
            w=d_prediction @ self.norm_2.output,
            c=d_prediction.sum(keepdims=True),
        )


class _NormGradient(NamedTuple):
    """Derivatives of a loss with respect to a layer norm's input and parameters."""

    input: Array  # (B, D)
    gain: Array  # (D,)
    shift: Array  # (D,)


class _LayerNorm:
    """A layer norm, gain · (x - mean)/√(var + 10⁻⁵) + shift, of vectors x, (B, D)."""

    def __init__(self, x: Array, gain: Array, shift: Array) -> None:
        centred = x - x.mean(axis=1, keepdims=True)
        variance = np.mean(centred**2, axis=1, keepdims=True)
        self.gain = gain
        self.deviation = np.sqrt(variance + NORM_STABILISER)
        self.unit = centred / self.deviation
        self.output = gain * self.unit + shift

    def back(self, d_output: Array) -> _NormGradient:
        """Return the derivatives of a loss with respect to the input, gain and shift.

        ``d_output``, (B, D), is the derivative of the loss with respect to the output.
        """
        d_unit = d_output * self.gain
        # Let u = (x - mean)/deviation, which is ``unit``. A change dx of x changes u by
        # du = (dx - mean(dx) - u mean(u dx))/deviation. The matrix that turns dx into
        # du is symmetric, so it also turns d_unit into the derivative with respect to
        # x.
        along_unit = np.mean(d_unit * self.unit, axis=1, keepdims=True)
        projected = d_unit - d_unit.mean(axis=1, keepdims=True) - self.unit * along_unit
        return _NormGradient(
            input=projected / self.deviation,
            gain=np.sum(d_output * self.unit, axis=0),
            shift=d_output.sum(axis=0),
        )


def _flat(weights: list[Array] | Weights) -> Array:
    """Join the entries of all weights, or of their derivatives, in one vector."""
    return np.concatenate([weight.ravel() for weight in weights])
