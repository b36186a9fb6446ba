r"""Prediction heads over the token that attention selects, and losses of margins.

An input is a set of tokens :math:`x_t` with a label y = ±1. Attention averages them to
:math:`\bar x = \sum_t a_tx_t`, and a head predicts :math:`f = v^\top\bar x`, or
:math:`f = v^\top\mathrm{ReLU}(V\bar x)` with a fixed matrix V. The loss is a function
of the margin :math:`yf`. `HeadRisk` trains the scores with a fixed head v, `JointRisk`
trains the scores and v.

In shapes, n is the number of inputs, B the number of inputs drawn from these, T the
number of tokens in an input, d the number of entries of a token, and h the number of
entries of the head. The letter m stands for margins.
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
    """A loss ℓ as a function of the margins m of n inputs, (n,).

    Attributes
    ----------
    value, slope : callable
        Functions of m that return ℓ(m) and ℓ'(m).
    rise : callable
        A function of m and δ that returns ℓ(m - δ) - ℓ(m). For a small δ it keeps the
        digits that the difference would lose. If m is the best margin of an input, δ is
        at least 0 except for the squared loss, with which margins may exceed the best
        one.
    """

    value: Callable[[Array], Array]
    slope: Callable[[Array], Array]
    rise: Callable[[Array, Array], Array]


def _sigmoid(x: Array) -> Array:
    """Return σ(x) = 1/(1 + e^-x)."""
    # logaddexp(0, -x) is ln(1 + e^-x). It does not overflow at a large negative x, as
    # e^-x would.
    return np.exp(-np.logaddexp(0.0, -x))


# The parts of each `MarginLoss`: ℓ(m), ℓ'(m) and ℓ(m - δ) - ℓ(m). They are functions
# with names of their own and not lambdas, so that a problem can be pickled.
def _logistic(m: Array) -> Array:
    return np.logaddexp(0.0, -m)


def _logistic_slope(m: Array) -> Array:
    return -_sigmoid(-m)


def _logistic_rise(m: Array, delta: Array) -> Array:
    # (1 + e^(δ-m))/(1 + e^-m) = 1 + (e^δ - 1) σ(-m)
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
    # ½(1 - m + δ)² - ½(1 - m)²
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
        # ½(1 - m)² is least at m = 1, or at the end of the interval nearest to 1.
        return np.clip(1.0, lowest, highest)
    # All other losses fall with the margin.
    return highest


class Inputs(NamedTuple):
    """B inputs of a problem of token selection.

    Attributes
    ----------
    rows : ndarray of int, (B,)
        The index of each drawn input among the n inputs of the problem.
    """

    rows: NDArray[np.intp]


def inputs_to_draw(rng: np.random.Generator, size: int, inputs: Array) -> Inputs:
    """Draw ``size`` of the n inputs of an array, (n, ...), with replacement."""
    # A pass over the drawn inputs holds about 6 arrays of their size at once: the drawn
    # inputs, their scores and attention, and differences and products.
    numbers_per_input = 6.0 * inputs[0].size
    # `prompts_to_draw` checks the size, and that so many numbers for each input fit in
    # memory.
    size = prompts_to_draw(rng, size, numbers_per_input)
    return Inputs(rng.integers(len(inputs), size=size))


class TokenAverages(NamedTuple):
    """The averages of the T tokens of n inputs, weighted by attention.

    Attributes
    ----------
    attention : ndarray, (n, T)
        The weights.
    relative : ndarray, (n, T, d)
        Each token minus the most attended token of its input.
    shift : ndarray, (n, d)
        The average minus the most attended token.
    mean : ndarray, (n, d)
        The average.
    """

    attention: Array
    relative: Array
    shift: Array
    mean: Array


def averaged(scores: Array, tokens: Array) -> TokenAverages:
    """Average the tokens of each input, with the softmax of its scores as weights."""
    attention, _ = softmax(scores)
    inputs = np.arange(len(tokens))
    most_attended = tokens[inputs, np.argmax(attention, axis=1)]
    # If one token has almost all attention, the average differs from this token by less
    # than rounding. Sums of differences from this token keep their digits, even if they
    # are small.
    relative = tokens - most_attended[:, None]
    shift = np.einsum("nt,ntd->nd", attention, relative)
    return TokenAverages(attention, relative, shift, most_attended + shift)


class _Pass(NamedTuple):
    """The losses of B inputs, and the gradients of their mean loss.

    Attributes
    ----------
    losses : ndarray, (B,)
        The loss of each input.
    score_gradient : ndarray, (B, T)
        The gradient with respect to the scores of these inputs. An input that was drawn
        twice has two rows, which must be added.
    head_gradient : ndarray, (h,)
        The gradient with respect to the head.
    """

    losses: Array
    score_gradient: Array
    head_gradient: Array


@dataclass(frozen=True, eq=False)
class _InputsAndHead(Samplable[Inputs]):
    """Inputs, labels and the head, which `HeadRisk` and `JointRisk` share."""

    tokens: Array  # (n, T, d)
    labels: Array  # (n,)
    head: Array  # v, (h,)
    layer: Array | None = None  # V, (h, d)
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
        """Draw the indices of ``size`` inputs, with replacement."""
        return inputs_to_draw(rng, size, self.tokens)

    @property
    def _every(self) -> Inputs:
        """All n inputs, each once."""
        return Inputs(np.arange(len(self.tokens)))

    def _of_all_inputs(self, score_gradient: Array, prompts: Inputs) -> Array:
        """Return the gradient with respect to all scores, (n, T).

        ``score_gradient``, (B, T), has the rows of some inputs. Rows of the same input
        are added, and inputs without a row have a gradient of zero.
        """
        gradient = np.zeros(self.tokens.shape[:2])
        # Unlike +=, this adds the rows of an input that occurs twice.
        np.add.at(gradient, prompts.rows, score_gradient)
        return gradient

    def _evaluate(self, scores: Array, head: Array, prompts: Inputs) -> _Pass:
        """Return the losses of B inputs, and the gradients of their mean.

        ``scores``, (n, T), has the scores of all inputs, and ``head``, (h,), is v. The
        formulas are in docs/theory/token-selection.md, "A trained head".
        """
        labels = self.labels[prompts.rows]
        averages = averaged(scores[prompts.rows], self.tokens[prompts.rows])
        hidden = self._hidden(averages.mean)  # (B, h)
        margin = labels * (hidden @ head)
        loss = MARGIN_LOSSES[self.margin_loss]
        # The derivative of the mean loss with respect to each output, y_i ℓ'(m_i)/B.
        output_gradient = labels * loss.slope(margin) / len(labels)
        # The gradient g of each output with respect to the average token x̄, (B, d).
        g = np.broadcast_to(head, hidden.shape)
        if self.layer is not None:
            g = (head * (hidden > 0.0)) @ self.layer
        # The output changes with score t by a_t g·(x_t - x̄). Both x_t and x̄ are taken
        # relative to the most attended token, so that small differences keep their
        # digits.
        along_g = np.einsum("bd,btd->bt", g, averages.relative)
        along_g -= np.sum(g * averages.shift, axis=1, keepdims=True)
        score_gradient = output_gradient[:, None] * averages.attention * along_g
        # The derivative of an output with respect to the head is its row of ``hidden``.
        head_gradient = output_gradient @ hidden
        return _Pass(loss.value(margin), score_gradient, head_gradient)

    def _hidden(self, vectors: Array) -> Array:
        """Return the numbers that the head multiplies: x, or ReLU(Vx), (..., h).

        The vectors x are along the last axis of ``vectors``, (..., d).
        """
        if self.layer is None:
            return vectors
        return np.maximum(vectors @ self.layer.T, 0.0)

    def values(self, head: Array) -> Array:
        """Return the value of each token, (n, T).

        This is the margin of its input if the token has all attention.
        """
        checked = real_array("head", head, 1)
        if checked.shape != self.head.shape:
            raise argument_error("head", checked.shape, f"of shape {self.head.shape}")
        return self._values(checked)

    def _values(self, head: Array) -> Array:
        """Return the values of the tokens, (n, T), with a checked head."""
        return np.asarray(self.labels[:, None] * (self._hidden(self.tokens) @ head))


@dataclass(frozen=True, eq=False)
class HeadRisk(_InputsAndHead):
    r"""Mean loss of n inputs with T tokens each and a fixed head.

    The parameters are the scores of all tokens, (n, T).

    Parameters
    ----------
    tokens : array_like, (n, T, d)
        The T tokens of each input.
    labels : array_like, (n,)
        The label of each input, 1 or -1.
    head : array_like, (h,)
        The head v; h = d without a layer.
    layer : array_like, (h, d), optional
        The matrix V before the ReLU. The entries of v must then be at least 0, which
        makes the output a convex function of the average token, as the floor needs.
    margin_loss : {"logistic", "exponential", "correlation", "squared"}
        The loss of the margin m: :math:`\ln(1 + e^{-m})`, :math:`e^{-m}`, :math:`-m` or
        :math:`\frac12(1 - m)^2`.

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
        """Mean loss of some inputs, and its gradient with respect to all scores."""
        on_inputs = self._evaluate(params, self.head, prompts)
        gradient = self._of_all_inputs(on_inputs.score_gradient, prompts)
        return float(on_inputs.losses.mean()), gradient

    def floor(self) -> float:
        """Return the least loss over all averages of the tokens of each input."""
        return self._floor

    @cached_property
    def _floor(self) -> float:
        """The floor, which takes n linear programs if there is a layer."""
        values = self._values(self.head)
        lowest = values.min(axis=1)
        highest = values.max(axis=1)
        if self.layer is not None:
            # The output is a convex function of the average token. So the output is
            # largest at a token, but may be least between tokens. The margin is the
            # output if y = 1, and minus the output if y = -1.
            least_outputs = self._least_outputs()
            is_positive = self.labels > 0.0
            lowest = np.where(is_positive, least_outputs, lowest)
            highest = np.where(is_positive, highest, -least_outputs)
        best_margins = best_margin(self.margin_loss, lowest, highest)
        return float(MARGIN_LOSSES[self.margin_loss].value(best_margins).mean())

    def _least_outputs(self) -> Array:
        """Return the least output of each input over all averages x̄ of its tokens.

        A linear program minimises v·u over the attention a and the hidden numbers u,
        with Σ_t a_t = 1, u >= V x̄ and all variables at least 0. The variables are a and
        then u. At the minimum u = ReLU(V x̄), as v >= 0.
        """
        from scipy.optimize import linprog  # slow to load

        assert self.layer is not None  # `_floor` calls this only if there is a layer
        h = len(self.head)
        n, T, _ = self.tokens.shape
        cost = np.concatenate([np.zeros(T), self.head])
        sum_of_attention = np.concatenate([np.ones(T), np.zeros(h)])[None]
        least_outputs = np.empty(n)
        for i, tokens in enumerate(self.tokens):
            # The product of this matrix with the variables is V x̄ - u.
            hidden_minus_u = np.concatenate([self.layer @ tokens.T, -np.eye(h)], axis=1)
            # The default bounds of linprog are that all variables are at least 0.
            program = linprog(
                cost,
                A_ub=hidden_minus_u,
                b_ub=np.zeros(h),
                A_eq=sum_of_attention,
                b_eq=np.ones(1),
            )
            least_outputs[i] = program.fun
        return least_outputs

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Attention of the inputs on their tokens, ``weights``, (n, T)."""
        return {"weights": softmax(params)[0]}


@dataclass(frozen=True, eq=False)
class JointRisk(_InputsAndHead):
    """Mean loss of n inputs with T tokens each, with a trained head.

    The parameters are one vector, (nT + h,): the nT scores, input after input, and then
    the head.

    Parameters
    ----------
    tokens, labels, layer, margin_loss
        As for `HeadRisk`, without "correlation", with which the loss would have no
        lower bound.
    head : array_like, (h,)
        The head at step 0. Its entries may be negative, even with a layer.
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
        """Zero scores, and the head, (nT + h,)."""
        n, T, _ = self.tokens.shape
        return np.concatenate([np.zeros(n * T), self.head])

    def _split(self, params: Array) -> tuple[Array, Array]:
        """Return scores, (n, T), and head, (h,)."""
        n, T, _ = self.tokens.shape
        return params[: n * T].reshape(n, T), params[n * T :]

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss, and its gradient with respect to the scores and the head."""
        return self.evaluate_on(params, self._every)

    def losses_on(self, params: Array, prompts: Inputs) -> Array:
        """Loss of each of B inputs, (B,)."""
        scores, head = self._split(params)
        return self._evaluate(scores, head, prompts).losses

    def evaluate_on(self, params: Array, prompts: Inputs) -> tuple[float, Array]:
        """Mean loss of some inputs, and its gradient with respect to all parameters."""
        scores, head = self._split(params)
        on_inputs = self._evaluate(scores, head, prompts)
        score_gradient = self._of_all_inputs(on_inputs.score_gradient, prompts)
        gradient = np.concatenate([score_gradient.ravel(), on_inputs.head_gradient])
        return float(on_inputs.losses.mean()), gradient

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Attention of the inputs on their tokens, ``weights``, (n, T)."""
        scores, _ = self._split(params)
        return {"weights": softmax(scores)[0]}


@dataclass(frozen=True, eq=False)
class WithHead(WithStart, Map):
    r"""The map from p or W, and the head v, to the parameters of a `JointRisk`.

    The scores are linear in p or W, and the map leaves the head, (d,), as it is.

    Parameters
    ----------
    start : ndarray, (k + 1, d)
        Parameters at step 0: p as one row, or W as d rows, and the head as the last
        row.
    features : ndarray, (n, T, d) or (n, T, d, d)
        Derivatives of the scores with respect to p or W.
    """

    start: Array
    features: Array

    def __post_init__(self) -> None:
        start = real_array("start", self.start, 2, most=LARGEST_ENTRY)
        features = np.asarray(self.features)
        d = features.shape[-1]
        k = int(np.prod(features.shape[2:])) // d  # number of rows: 1 for p, d for W
        shape = (k + 1, d)
        if start.shape != shape:
            raise argument_error("start", start.shape, f"of shape {shape}")
        set_fields(self, start=start, features=features)

    @cached_property
    def _matrix(self) -> Array:
        """The linear map from the entries of p or W to the scores, (nT, kd)."""
        n, T = self.features.shape[:2]
        return self.features.reshape(n * T, -1)

    def inward(self, params: Array) -> Array:
        """Return the scores of all tokens, and then the head, (nT + d,)."""
        p_or_W, head = self.blocks(params)
        return np.concatenate([self._matrix @ p_or_W.ravel(), head])

    def outward(self, params: Array, gradient: Array) -> Array:
        """Return the gradient with respect to p or W and the head.

        ``gradient``, (nT + d,), is the gradient with respect to the scores and the
        head.
        """
        number_of_scores = len(self._matrix)  # nT
        p_or_W_gradient = gradient[:number_of_scores] @ self._matrix
        head_gradient = gradient[number_of_scores:]
        flat_gradient = np.concatenate([p_or_W_gradient, head_gradient])
        return flat_gradient.reshape(params.shape)

    def stretch(self, params: Array) -> float:
        """Largest singular value of the map, the same for all ``params``."""
        return self._stretch

    @cached_property
    def _stretch(self) -> float:
        """Largest singular value of the map, which is linear."""
        # The map has two blocks, one for p or W and one for the head. The block of the
        # head is the identity, whose singular values are 1.
        return max(1.0, float(np.linalg.norm(self._matrix, 2)))

    def blocks(self, array: Array) -> Sequence[Array]:
        """Split an array of the parameters' shape into p or W, and the head."""
        return array[:-1], array[-1]
