r"""Prediction heads over the token that attention selects, and losses of margins.

An input is a set of tokens :math:`x_t` with a label y = ±1. Attention averages them to
:math:`\bar x = \sum_t a_tx_t`, and a head predicts :math:`f = v^\top\bar x`, or
:math:`f = v^\top\mathrm{ReLU}(V\bar x)` with a fixed matrix V. The loss is a function
of the margin :math:`yf`. `HeadRisk` trains the scores with a fixed head, `JointRisk`
trains both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array, argument_error, choice, real_array, set_fields
from icl_theory.engine.pullback import Map
from icl_theory.engine.risk import WithStart
from icl_theory.engine.sampling import Samplable, prompts_to_draw
from icl_theory.tokens.sampled import softmax

# Tokens, heads and matrices up to this size have finite products.
LARGEST_ENTRY = 1e50


class MarginLoss(NamedTuple):
    """A loss as a function of the margin m, (n,)."""

    value: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    # The loss at a margin m - δ, less the loss at m, for δ >= 0.
    rise: Callable[[Array, Array], Array]


def _sigmoid(x: Array) -> Array:
    return np.exp(-np.logaddexp(0.0, -x))


# The parts of a `MarginLoss` are ordinary functions, so that a problem can be pickled.
def _logistic(m: Array) -> Array:
    return np.logaddexp(0.0, -m)


def _logistic_slope(m: Array) -> Array:
    return -_sigmoid(-m)


def _logistic_rise(m: Array, delta: Array) -> Array:
    return np.log1p(np.expm1(delta) * _sigmoid(-m))


def _exponential(m: Array) -> Array:
    return np.exp(-m)


def _exponential_slope(m: Array) -> Array:
    return -np.exp(-m)


def _exponential_rise(m: Array, delta: Array) -> Array:
    return np.exp(-m) * np.expm1(delta)


def _correlation(m: Array) -> Array:
    return -m


def _correlation_slope(m: Array) -> Array:
    return np.full_like(m, -1.0)


def _correlation_rise(m: Array, delta: Array) -> Array:
    return delta


def _squared(m: Array) -> Array:
    return 0.5 * np.square(1.0 - m)


def _squared_slope(m: Array) -> Array:
    return m - 1.0


def _squared_rise(m: Array, delta: Array) -> Array:
    return delta * (1.0 - m + 0.5 * delta)


# ln(1 + e^-m), e^-m, -m and ½(1 - m)², which is ½(y - f)² for the label y = ±1.
MARGIN_LOSSES = {
    "logistic": MarginLoss(_logistic, _logistic_slope, _logistic_rise),
    "exponential": MarginLoss(_exponential, _exponential_slope, _exponential_rise),
    "correlation": MarginLoss(_correlation, _correlation_slope, _correlation_rise),
    "squared": MarginLoss(_squared, _squared_slope, _squared_rise),
}


def best_margin(margin_loss: str, lowest: Array, highest: Array) -> Array:
    """Return the margins of least loss in the intervals from lowest to highest."""
    if margin_loss == "squared":
        return np.clip(1.0, lowest, highest)
    return highest


class Inputs(NamedTuple):
    """B inputs of a problem of token selection."""

    rows: NDArray[np.intp]  # of each among the n inputs, (B,)


def inputs_to_draw(rng: np.random.Generator, size: int, inputs: Array) -> Inputs:
    """Draw inputs of an array, (n, ...), with replacement."""
    numbers = 6.0 * inputs[0].size
    size = prompts_to_draw(rng, size, numbers)
    return Inputs(rng.integers(len(inputs), size=size))


class Selection(NamedTuple):
    """The token averages of n inputs with T tokens."""

    attention: Array  # (n, T)
    relative: Array  # tokens relative to the most attended one, (n, T, d)
    shift: Array  # the average of these, (n, d)
    mean: Array  # the average of the tokens, (n, d)


def attended(scores: Array, tokens: Array) -> Selection:
    """Average tokens with the softmax of scores as weights."""
    attention, _ = softmax(scores)
    rows = np.arange(len(tokens))
    base = tokens[rows, np.argmax(attention, axis=1)]
    # If one token has almost all attention, the average differs from it by less than
    # rounding. Relative to that token, small sums keep their digits.
    relative = tokens - base[:, None]
    shift = np.einsum("nt,ntd->nd", attention, relative)
    return Selection(attention, relative, shift, base + shift)


class _Pass(NamedTuple):
    """The losses of some inputs, and the gradients of their mean."""

    losses: Array  # (B,)
    by_scores: Array  # gradient for each of these inputs, (B, T)
    by_head: Array  # gradient, (m,)


@dataclass(frozen=True, eq=False)
class _WithHead(Samplable[Inputs]):
    """Inputs, labels and the form of the head, which both risks share."""

    tokens: Array  # (n, T, d)
    labels: Array  # (n,)
    head: Array
    layer: Array | None = None
    margin_loss: str = "logistic"

    def __post_init__(self) -> None:
        tokens = real_array("tokens", self.tokens, 3, most=LARGEST_ENTRY)
        if not tokens.size:
            raise argument_error(
                "tokens", tokens.shape, "at least one input with at least one token"
            )
        n, _, d = tokens.shape
        labels = real_array("labels", self.labels, 1)
        if labels.shape != (n,) or not np.isin(labels, (-1.0, 1.0)).all():
            raise argument_error("labels", self.labels, f"{n} numbers 1 or -1")
        head = real_array("head", self.head, 1, most=LARGEST_ENTRY)
        if self.layer is not None:
            layer = real_array("layer", self.layer, 2, most=LARGEST_ENTRY)
            if layer.shape != (len(head), d):
                raise argument_error(
                    "layer", layer.shape, f"of shape ({len(head)}, {d})"
                )
            set_fields(self, layer=layer)
        elif head.shape != (d,):
            raise argument_error("head", head.shape, f"of shape ({d},)")
        choice("margin_loss", self.margin_loss, tuple(MARGIN_LOSSES))
        set_fields(self, tokens=tokens, labels=labels, head=head)

    def draw(self, rng: np.random.Generator, size: int) -> Inputs:
        """Draw inputs with replacement."""
        return inputs_to_draw(rng, size, self.tokens)

    @property
    def _every(self) -> Inputs:
        """All inputs, each once."""
        return Inputs(np.arange(len(self.tokens)))

    def _scattered(self, by_scores: Array, prompts: Inputs) -> Array:
        """Return the gradient with respect to all scores, (n, T), from some inputs."""
        gradient = np.zeros(self.tokens.shape[:2])
        np.add.at(gradient, prompts.rows, by_scores)
        return gradient

    def _evaluate(self, scores: Array, head: Array, prompts: Inputs) -> _Pass:
        """Return losses, and gradients of their mean, at scores and a head."""
        labels = self.labels[prompts.rows]
        selection = attended(scores[prompts.rows], self.tokens[prompts.rows])
        hidden = self._hidden(selection.mean)
        margin = labels * (hidden @ head)
        loss = MARGIN_LOSSES[self.margin_loss]
        by_output = labels * loss.slope(margin) / len(labels)
        # The derivative of each output with respect to the average token.
        by_mean = np.broadcast_to(head, hidden.shape)
        if self.layer is not None:
            by_mean = (head * (hidden > 0.0)) @ self.layer
        # The output changes with score t by a_t by_mean·(x_t - x̄). Both x_t and x̄ are
        # taken relative to the most attended token, so that small differences keep
        # their digits.
        by_difference = np.einsum("nd,ntd->nt", by_mean, selection.relative)
        by_difference -= np.sum(by_mean * selection.shift, axis=1, keepdims=True)
        by_scores = by_output[:, None] * selection.attention * by_difference
        return _Pass(loss.value(margin), by_scores, by_output @ hidden)

    def _hidden(self, vectors: Array) -> Array:
        """Return the features that a head weighs, (..., m)."""
        if self.layer is None:
            return vectors
        return np.maximum(vectors @ self.layer.T, 0.0)

    def values(self, head: Array) -> Array:
        """Margins with all attention on one token, (n, T)."""
        checked = real_array("head", head, 1)
        if checked.shape != self.head.shape:
            raise argument_error("head", checked.shape, f"of shape {self.head.shape}")
        return self._values(checked)

    def _values(self, head: Array) -> Array:
        """Return margins with all attention on one token, (n, T)."""
        return np.asarray(self.labels[:, None] * (self._hidden(self.tokens) @ head))


@dataclass(frozen=True, eq=False)
class HeadRisk(_WithHead):
    r"""Mean loss of n inputs with T tokens each and a fixed head, over scores, (n, T).

    Parameters
    ----------
    tokens : array_like, (n, T, d)
    labels : array_like, (n,)
        1 or -1.
    head : array_like, (m,)
        The head v; m = d without a layer.
    layer : array_like, (m, d), optional
        The matrix V before the ReLU. The entries of v must then be at least 0.
    margin_loss : {"logistic", "exponential", "correlation", "squared"}
        :math:`\ln(1 + e^{-m})`, :math:`e^{-m}`, :math:`-m` or :math:`\frac12(1 - m)^2`.

    References
    ----------
    docs/theory/token-selection.md.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layer is not None and self.head.min(initial=0.0) < 0.0:
            raise argument_error("head", self.head, "of numbers >= 0 with a layer")

    @property
    def initial(self) -> Array:
        """Zero scores, (n, T)."""
        return np.zeros(self.tokens.shape[:2])

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss, and its gradient with respect to the scores."""
        return self.evaluate_on(params, self._every)

    def losses_on(self, params: Array, prompts: Inputs) -> Array:
        """Loss of each of B inputs, (B,)."""
        return self._evaluate(params, self.head, prompts).losses

    def evaluate_on(self, params: Array, prompts: Inputs) -> tuple[float, Array]:
        """Mean loss of some inputs, and its gradient."""
        losses, by_scores, _ = self._evaluate(params, self.head, prompts)
        return float(losses.mean()), self._scattered(by_scores, prompts)

    def floor(self) -> float:
        """Return the least loss over all averages of the tokens of each input."""
        return self._floor

    @cached_property
    def _floor(self) -> float:
        values = self._values(self.head)
        lowest = values.min(axis=1)
        highest = values.max(axis=1)
        if self.layer is not None:
            # The head is a convex function of the average token. Its largest output is
            # at a token, but its least output may be between them.
            least_outputs = self._least_outputs()
            is_positive = self.labels > 0.0
            lowest = np.where(is_positive, least_outputs, lowest)
            highest = np.where(is_positive, highest, -least_outputs)
        best = best_margin(self.margin_loss, lowest, highest)
        return float(MARGIN_LOSSES[self.margin_loss].value(best).mean())

    def _least_outputs(self) -> Array:
        """Return the least output of each input, by linear programs.

        The variables are the attention a and the hidden numbers u, of which the
        program minimises v·u with u >= V x̄ and u >= 0.
        """
        from scipy.optimize import linprog  # slow to load

        assert self.layer is not None
        m = len(self.head)
        n, T, _ = self.tokens.shape
        cost = np.concatenate([np.zeros(T), self.head])
        total = np.concatenate([np.ones(T), np.zeros(m)])[None]
        least = np.empty(n)
        for i, tokens in enumerate(self.tokens):
            rows = np.concatenate([self.layer @ tokens.T, -np.eye(m)], axis=1)
            program = linprog(cost, rows, np.zeros(m), total, np.ones(1))
            least[i] = program.fun
        return least

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Attention of the inputs on their tokens, ``weights``, (n, T)."""
        return {"weights": softmax(params)[0]}


@dataclass(frozen=True, eq=False)
class JointRisk(_WithHead):
    """Mean loss of n inputs with T tokens each, over all scores and the head.

    The parameters are a vector of the n T scores, input after input, and of the head.

    Parameters
    ----------
    tokens, labels, layer, margin_loss
        As for `HeadRisk`; with "correlation" the loss has no lower bound.
    head : array_like, (m,)
        The head at step 0.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.margin_loss == "correlation":
            raise argument_error(
                "margin_loss",
                self.margin_loss,
                "another one if the head is trained: it has no lower bound then",
            )

    @property
    def initial(self) -> Array:
        """Zero scores, and the head, (nT + m,)."""
        n, T, _ = self.tokens.shape
        return np.concatenate([np.zeros(n * T), self.head])

    def _split(self, params: Array) -> tuple[Array, Array]:
        """Return scores, (n, T), and head, (m,)."""
        n, T, _ = self.tokens.shape
        return params[: n * T].reshape(n, T), params[n * T :]

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss, and its gradient with respect to the scores and the head."""
        return self.evaluate_on(params, self._every)

    def losses_on(self, params: Array, prompts: Inputs) -> Array:
        """Loss of each of B inputs, (B,)."""
        return self._evaluate(*self._split(params), prompts).losses

    def evaluate_on(self, params: Array, prompts: Inputs) -> tuple[float, Array]:
        """Mean loss of some inputs, and its gradient."""
        losses, by_scores, by_head = self._evaluate(*self._split(params), prompts)
        gradient = self._scattered(by_scores, prompts)
        return float(losses.mean()), np.concatenate([gradient.ravel(), by_head])

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Attention of the inputs on their tokens, ``weights``, (n, T)."""
        scores, _ = self._split(params)
        return {"weights": softmax(scores)[0]}


@dataclass(frozen=True, eq=False)
class WithHead(WithStart, Map):
    r"""The scores that are linear in p or W, and the head, as one vector.

    Parameters
    ----------
    start : ndarray, (k + 1, d)
        Parameters at step 0: p as one row, or W as d rows; and the head as the last.
    features : ndarray, (n, T, d) or (n, T, d, d)
        Derivatives of the scores by p or W.
    """

    start: Array
    features: Array

    def __post_init__(self) -> None:
        start = real_array("start", self.start, 2, most=LARGEST_ENTRY)
        features = np.asarray(self.features)
        d = features.shape[-1]
        shape = (int(np.prod(features.shape[2:])) // d + 1, d)
        if start.shape != shape:
            raise argument_error("start", start.shape, f"of shape {shape}")
        set_fields(self, start=start, features=features)

    @cached_property
    def _matrix(self) -> Array:
        """The linear map from p or W to the scores, (nT, number of entries)."""
        n, T = self.features.shape[:2]
        return self.features.reshape(n * T, -1)

    def inward(self, params: Array) -> Array:
        """Return scores and head."""
        return np.concatenate([self._matrix @ params[:-1].ravel(), params[-1]])

    def outward(self, params: Array, gradient: Array) -> Array:
        """Return the gradient by p or W, and by the head."""
        scores = len(self._matrix)
        by_attention = gradient[:scores] @ self._matrix
        return np.concatenate([by_attention, gradient[scores:]]).reshape(params.shape)

    def stretch(self, params: Array) -> float:
        """Largest singular value of the map."""
        return self._stretch

    @cached_property
    def _stretch(self) -> float:
        return max(1.0, float(np.linalg.norm(self._matrix, 2)))

    def blocks(self, array: Array) -> Sequence[Array]:
        """p or W, and the head."""
        return array[:-1], array[-1]
