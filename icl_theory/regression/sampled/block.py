r"""A whole transformer block on sampled prompts: attention, feed-forward layer, layer norms, linear read-out.

The backward pass is written out, layer by layer, for a batch of prompts at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import Array, argument_error, instance, integer, set_fields
from icl_theory.engine.risk import Risk
from icl_theory.regression.sampled.layer import Prompts, attend
from icl_theory.regression.sampled.risk import SampledRisk


class Weights(NamedTuple):
    """The parameters of a block, in the order of the flat vector; D = d + 1, H hidden units."""

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
class BlockRisk(Risk):
    r"""Squared error of a transformer block on the prompts of a `SampledRisk`.

    Tokens are the pairs :math:`z_i = (x_i, y_i)`, the query is :math:`z_q = (x_q, 0)`,
    in D = d + 1 dimensions:

    .. math::
        a_i &= \mathrm{softmax}_i\bigl(z_i^\top W_K^\top W_Q z_q/\sqrt D\bigr), \\
        h &= \mathrm{LN}_1\bigl(z_q + W_V {\textstyle\sum_i} a_i z_i\bigr), \\
        g &= \mathrm{LN}_2\bigl(h + W_2\,\mathrm{relu}(W_1 h + c_1) + c_2\bigr), \qquad
        \hat y = w^\top g + c,

    where a layer norm subtracts the mean of a vector, divides by
    :math:`\sqrt{\mathrm{var} + 10^{-5}}`, and applies a gain and a shift to each
    coordinate. The query attends to the N tokens and not to itself. The loss is
    :math:`\tfrac12 E(\hat y - f(x_q))^2`. All layers are trained, as one flat vector in
    the order of `Weights`. Initially the entries of the matrices and of ``w`` are
    independent and normal, of variance 1/(number of inputs); the gains are 1, and all
    else is 0. See docs/theory.md, "The block of Section 6".

    Parameters
    ----------
    data : SampledRisk
        The one-matrix model whose prompts, step by step, the block is trained on.
    hidden : int
        Units H of the feed-forward layer.
    seed : int
        Seed of the initial parameters; ``data`` has the seed of the prompts.
    held_out : int
        Prompts for each query feature on which `BlockRisk.observe` measures; no step
        trains on them.

    Examples
    --------
    >>> import icl_theory as icl
    >>> features = icl.Features.simplex(4, delta=2.0)
    >>> data = icl.SampledRisk(features, icl.tasks.Exchangeable(1.0), N=30, batch=64, seed=0)
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
            self, hidden=integer("hidden", self.hidden, minimum=1, maximum=10**6)
        )
        set_fields(self, seed=integer("seed", self.seed, minimum=0))
        set_fields(self, held_out=integer("held_out", self.held_out, minimum=1))

    @property
    def stochastic(self) -> bool:
        """Whether the steps draw different prompts."""
        return self.data.stochastic

    @property
    def initial(self) -> Array:
        """Random matrices and read-out, gains of 1, zeros elsewhere, flat."""
        # [seed] alone is [seed, 0, 0], the prompts of the first step
        rng = np.random.default_rng([self.seed, 3])
        parts = []
        for name, shape in self._shapes.items():
            if name[0] in "Ww":
                parts.append(rng.normal(0.0, 1.0 / math.sqrt(shape[-1]), shape))
            else:
                parts.append(np.full(shape, 1.0 if name.startswith("gain") else 0.0))
        return _flat(parts)

    def unpack(self, params: ArrayLike) -> Weights:
        """Return the layers of a flat parameter vector, by name."""
        return self._layers(self._checked(params))

    def predict(self, params: ArrayLike, prompts: Prompts) -> tuple[Array, Array]:
        """Run the block on prompts.

        Parameters
        ----------
        params : array_like
            Parameters, flat.
        prompts : Prompts
            From ``data.prompts(step)`` or ``data.held_out(size)``.

        Returns
        -------
        attention : ndarray, (B, N)
            Weights on the tokens; they sum to 1.
        prediction : ndarray, (B,)
            In label units.

        Raises
        ------
        ValueError
            The parameters are so large that predictions leave the range of float64.
        """
        instance("prompts", prompts, Prompts, "prompts of a SampledRisk")
        features = self.data.features
        known = prompts.token.max(initial=0) < features.K > prompts.query.max(initial=0)
        vectors = (each for each in (prompts.key, prompts.asked) if each is not None)
        if not (known and all(each.shape[-1] == features.d for each in vectors)):
            raise argument_error("prompts", "those of other features", f"of {features}")
        weight, prediction, _ = self._forward(self.unpack(params), prompts)
        if not np.isfinite(prediction).all():
            raise argument_error(
                "params",
                float(np.abs(params).max()),
                "numbers with finite predictions (largest shown)",
            )
        return weight, prediction

    @np.errstate(over="ignore", invalid="ignore")
    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Mean loss of the step's prompts and its gradient; beyond the range of float64 infinite and zero."""
        prompts = self.data.prompts(step)
        _, prediction, back = self._forward(self._layers(params), prompts)
        error = prediction - prompts.answer
        loss = 0.5 * float(np.mean(error**2))
        gradient = _flat(back(error / len(error)))
        if not (math.isfinite(loss) and np.isfinite(gradient).all()):
            return math.inf, np.zeros_like(params)
        return loss, gradient

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Measure on the held-out prompts; beyond the range of float64 losses are infinite and attention is zero.

        Returns
        -------
        dict of ndarray
            ``attention`` (K,), the mean on the query's feature; ``attention_map`` (K,
            K), the mean on feature m for query k, columns sum to 1; ``loss_per_query``
            (K,); ``test_loss`` (), their mean weighted with the probabilities;
            ``attention_loss`` (), the same for the prediction ``sum_i a_i y_i``, which
            the one-matrix model makes from this attention.
        """
        features, prompts = self.data.features, self._held_out
        weight, prediction, _ = self._forward(self._layers(params), prompts)
        share = np.zeros((features.K, features.K))
        loss = bare = np.full(features.K, math.inf)
        if np.isfinite(prediction).all():
            np.add.at(
                share, (prompts.token, prompts.query[:, None]), weight / self.held_out
            )
            loss = self._per_query(prediction)
            bare = self._per_query(np.sum(weight * prompts.label, axis=1))
        return {
            "attention": np.diagonal(share).copy(),
            "attention_map": share,
            "loss_per_query": loss,
            "test_loss": np.asarray(features.probs @ loss),
            "attention_loss": np.asarray(features.probs @ bare),
        }

    def _per_query(self, prediction: Array) -> Array:
        error = prediction - self._held_out.answer
        return 0.5 * np.mean(error.reshape(self.data.features.K, -1) ** 2, axis=1)

    @cached_property
    def _held_out(self) -> Prompts:
        return self.data.held_out(self.held_out)

    @cached_property
    def _shapes(self) -> dict[str, tuple[int, ...]]:
        D = self.data.features.d + 1
        H = self.hidden
        wide = {"W_1": (H, D), "c_1": (H,), "W_2": (D, H), "c": (1,)}
        square = dict.fromkeys(("W_Q", "W_K", "W_V"), (D, D))
        return {name: (square | wide).get(name, (D,)) for name in Weights._fields}

    def _layers(self, params: Array) -> Weights:
        sizes = [math.prod(shape) for shape in self._shapes.values()]
        parts = np.split(params, np.cumsum(sizes)[:-1])
        return Weights(
            *(
                part.reshape(shape)
                for part, shape in zip(parts, self._shapes.values(), strict=True)
            )
        )

    @np.errstate(over="ignore", invalid="ignore")
    def _forward(
        self, m: Weights, prompts: Prompts
    ) -> tuple[Array, Array, Callable[[Array], Weights]]:
        """Attention, (B, N), predictions, (B,), and what makes gradients of a loss from its derivative by these.

        Callers have to check that the predictions are finite.
        """
        vectors = self.data.features.vectors
        key = vectors[prompts.token] if prompts.key is None else prompts.key
        x = vectors[prompts.query] if prompts.asked is None else prompts.asked
        token = np.concatenate([key, prompts.label[:, :, None]], axis=2)
        asked = np.concatenate([x, np.zeros((len(x), 1))], axis=1)
        scores = np.matmul(token, (asked @ m.W_Q.T @ m.W_K)[:, :, None])[
            :, :, 0
        ] / math.sqrt(token.shape[2])
        weight, _ = attend(scores, prompts.label)
        mixed = np.matmul(weight[:, None, :], token)[:, 0, :]
        first, back_1 = _norm(asked + mixed @ m.W_V.T, m.gain_1, m.shift_1)
        hidden = np.maximum(first @ m.W_1.T + m.c_1, 0.0)
        second, back_2 = _norm(first + hidden @ m.W_2.T + m.c_2, m.gain_2, m.shift_2)

        def back(error: Array) -> Weights:
            by_second, gain_2, shift_2 = back_2(error[:, None] * m.w)
            by_hidden = np.where(hidden > 0.0, by_second @ m.W_2, 0.0)
            by_first, gain_1, shift_1 = back_1(by_second + by_hidden @ m.W_1)
            by_weight = np.matmul(token, (by_first @ m.W_V)[:, :, None])[:, :, 0]
            by_score = weight * (
                by_weight - np.sum(weight * by_weight, axis=1, keepdims=True)
            )
            # the scores are token · (asked W_Qᵀ W_K)/√D: sum over the tokens of a
            # prompt, then over the prompts
            pulled = np.matmul(by_score[:, None, :], token)[:, 0, :] / math.sqrt(
                token.shape[2]
            )
            attention = (
                m.W_K @ (pulled.T @ asked),
                m.W_Q @ (asked.T @ pulled),
                by_first.T @ mixed,
            )
            rectifier = (
                by_hidden.T @ first,
                by_hidden.sum(axis=0),
                by_second.T @ hidden,
                by_second.sum(axis=0),
            )
            read_out = error @ second, error.sum(keepdims=True)
            return Weights(
                *attention, gain_1, shift_1, *rectifier, gain_2, shift_2, *read_out
            )

        return weight, second @ m.w + m.c, back


def _norm(
    x: Array, gain: Array, shift: Array
) -> tuple[Array, Callable[[Array], tuple[Array, Array, Array]]]:
    """Layer norm, and what makes derivatives by its input, gain and shift from that by its output."""
    centred = x - x.mean(axis=1, keepdims=True)
    deviation = np.sqrt(np.mean(centred**2, axis=1, keepdims=True) + 1e-5)
    unit = centred / deviation

    def back(by_out: Array) -> tuple[Array, Array, Array]:
        by_unit = by_out * gain
        along = np.mean(by_unit * unit, axis=1, keepdims=True)
        by_input = (
            by_unit - by_unit.mean(axis=1, keepdims=True) - unit * along
        ) / deviation
        return by_input, np.sum(by_out * unit, axis=0), by_out.sum(axis=0)

    return gain * unit + shift, back


def _flat(parts: list[Array] | Weights) -> Array:
    return np.concatenate([part.ravel() for part in parts])
