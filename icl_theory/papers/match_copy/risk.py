r"""The losses of softmax attention on Gaussian match-and-copy.

A prompt has N keys :math:`k_t \sim N(0, I)` in d dimensions, each with a value
:math:`v_t` in D dimensions, and a query :math:`q = \rho k_m + \sqrt{1 - \rho^2}\,z`,
:math:`z \sim N(0, I)`, that is correlated with the key at a hidden position m, its
match. Attention with the scores :math:`k_t^\top Wq` should return :math:`v_m`. The
attention a is the softmax of the scores, and the loss for each coordinate of the values
is

.. math:: \mathcal L = \tfrac1{2D} E\,\Bigl|\sum_t a_t v_t - v_m\Bigr|^2 .

`CopyRisk` is the loss over all prompts for W = ωI, and `CopySampleRisk` the mean over
fixed prompts for any W. In shapes, B is a number of prompts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import (
    Array,
    argument_error,
    choice,
    integer,
    number,
    real_array,
    set_fields,
)
from icl_theory.engine.risk import Risk, WithStart
from icl_theory.engine.sampling import Samplable
from icl_theory.memory import check_fits
from icl_theory.tokens.gaussian import gaussian_queries, usual_step
from icl_theory.tokens.risk import Kind, TokenRisk
from icl_theory.tokens.sampled import Indices, Pass, Sampled, first_places, softmax

VALUES = ("separate", "next")  # how values are drawn, see `draw_prompts`
# The relative error of the rule for the average over the length of the query, at its
# usual step. With half the step no loss in the tests changes by a larger share.
RULE_ERROR = 1e-10
# Averages over the component X of a key along the query have a relative error near
# e^-DIGITS, and lengths of the query with a probability below e^-DIGITS are left out.
DIGITS = 36.0
# Nodes are shared by all |ω| up to a bound. Bounds are the powers of this factor times
# the least bound. The factor is small, because the time of an evaluation grows with the
# square of the bound. The least bound already needs only few nodes, so that a smaller
# one would save little.
BOUND_FACTOR = 2.0**0.25
LEAST_BOUND = 0.125
# The best ω is sought between these two. The loss falls at ω = 0, so that the lower end
# may be any number that is nearly 0. Beyond the upper end an evaluation takes long.
LOWEST_OMEGA = 1e-6
HIGHEST_OMEGA = 16.0
# The first ω at which the search asks whether the loss rises.
FIRST_OMEGA = 2.0**-4


class CopyPrompts(NamedTuple):
    """B prompts of match-and-copy."""

    keys: Array  # (B, N, d)
    values: Array  # (B, N, D)
    query: Array  # (B, d)
    match: Indices  # position of the key that the query matches, (B,)


def draw_prompts(
    rng: np.random.Generator,
    size: int,
    d: int,
    N: int,
    correlation: float,
    values: str = "separate",
) -> CopyPrompts:
    """Draw prompts of Gaussian match-and-copy.

    Parameters
    ----------
    rng : numpy.random.Generator
        Source of randomness.
    size, d, N : int
        Number of prompts, dimension, and number of keys in a prompt.
    correlation : float
        The correlation ρ of the query with the key that it matches, 0 < ρ <= 1.
    values : {"separate", "next"}
        "separate": values are independent of the keys. "next": the value of a key is
        the next token in a sequence of N + 1 tokens, the first N of which are the keys.

    Returns
    -------
    CopyPrompts
        Values have the dimension of the keys.
    """
    choice("values", values, VALUES)
    tokens = rng.normal(size=(size, N + 1, d))
    keys = tokens[:, :-1]
    # The next tokens, with the last token as the value of the last key.
    drawn_values = tokens[:, 1:]
    if values == "separate":
        drawn_values = rng.normal(size=(size, N, d))
    match = rng.integers(0, N, size)
    noise = math.sqrt(1.0 - correlation**2) * rng.normal(size=(size, d))
    query = correlation * keys[np.arange(size), match] + noise
    return CopyPrompts(keys, drawn_values, query, match)


@dataclass(frozen=True, eq=False)
class CopyRisk(WithStart, Risk):
    r"""The loss over all prompts of attention with W = ωI and separate values.

    .. math:: \mathcal L(\omega) = \tfrac12 E\Bigl[(1 - a_m)^2 +
        \sum_{t \ne m} a_t^2\Bigr]

    Here :math:`a_m` is the attention on the match, and :math:`a_t` on another key. For
    a query of length r the scores are :math:`\omega r(\rho r + \sqrt{1 - \rho^2}\,X_m)`
    of the match and :math:`\omega r X_t` of another key, with independent standard
    normal :math:`X_m` and :math:`X_t`. Given r the loss is a one-dimensional integral,
    which `TokenRisk` computes, and the whole loss is the average of these losses over
    r.

    Parameters
    ----------
    d, N : int
        Dimension, and number of keys in a prompt, at least 2.
    correlation : float
        The correlation ρ, 0 < ρ <= 1.
    start : array_like, (1,)
        ω at step 0.

    References
    ----------
    docs/theory/match-copy.md.

    Examples
    --------
    >>> from icl_theory.papers.match_copy.risk import CopyRisk
    >>> risk = CopyRisk(d=8, N=4, correlation=0.9)
    >>> round(risk.loss([0.0]), 12)
    0.375
    """

    d: int
    N: int
    correlation: float
    start: Array = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        start = np.zeros(1) if self.start is None else self.start
        set_fields(
            self,
            d=integer("d", self.d, minimum=1),
            N=integer("N", self.N, minimum=2),
            correlation=checked_correlation(self.correlation),
            start=checked_omega(start),
        )

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its derivative with respect to ω, (1,)."""
        omega = float(params[0])
        return self._mean(omega, usual_step(self.d))

    def _mean(self, omega: float, step: float) -> tuple[float, Array]:
        """Return the loss and its derivative with respect to ω, (1,).

        ``step`` is the step of the rule for the average over the length of the query.
        """
        loss = 0.0
        slope = 0.0
        for query in self._queries(_shared_bound(omega), step):
            # The loss of queries of this length, and its gradient with respect to the
            # scores.
            loss_of_length, gradient = query.tokens.evaluate(omega * query.scores)
            loss += query.prob * loss_of_length
            slope += query.prob * float(gradient @ query.scores)
        return loss, np.array([slope])

    def loss_error(self, params: ArrayLike) -> float:
        """Estimate the error of the loss.

        The error has two parts: one from the rule for the length of the query, and one
        from the lengths that are left out.
        """
        return RULE_ERROR * self.loss(params) + math.exp(-DIGITS)

    def error(self, params: ArrayLike) -> float:
        """Return the change of the loss if the step of the rule is halved.

        The rule computes the average over the length of the query.
        """
        omega = float(self._checked(params)[0])
        half_step = 0.5 * usual_step(self.d)
        finer_loss, _ = self._mean(omega, half_step)
        return abs(finer_loss - self.loss(params))

    # The cache helps because many steps of a run use the same nodes. It has one entry
    # for each risk and set of nodes, and keeps the risks of its last eight entries
    # alive.
    @lru_cache(maxsize=8)  # noqa: B019
    def _queries(self, largest: float, step: float) -> tuple[_Query, ...]:
        """Return the queries of each length in the rule for the average over lengths.

        The rule has the step ``step``. The nodes in X are fine enough for ω up to
        ``largest`` in size.
        """
        rho = self.correlation
        queries = []
        # Each item is a length r of the query with its probability, and the nodes X of
        # a normal component with their probabilities.
        lengths = gaussian_queries(self.d, self.N, largest, step, DIGITS)
        for prob, r, X, probs in lengths:
            # The error v_t - v_m of a key that is not the match has two parts. All of
            # these errors share the part -v_m. It is represented by a mean of 1, which
            # has the same mean square. The part v_t has the variance 1 and is
            # independent for each key. The match has no error. A `TokenRisk` is half
            # the mean square of the average of the errors, weighted by attention.
            ones = np.ones_like(X)
            match = Kind(1, probs, np.zeros_like(X))
            others = Kind(self.N - 1, probs, values=ones, spread=ones)
            # The match has this component along the query, and another key has the
            # component X.
            match_component = rho * r + math.sqrt(1.0 - rho**2) * X
            scores = r * np.concatenate([match_component, X])
            queries.append(_Query(prob, scores, TokenRisk([match, others])))
        return tuple(queries)

    @cached_property
    def best(self) -> float:
        """The ω with the least loss, at most `HIGHEST_OMEGA`."""
        from scipy.optimize import brentq  # slow to load

        def slope(omega: float) -> float:
            """Return the derivative of the loss with respect to ω."""
            _, gradient = self.evaluate(np.array([omega]))
            return float(gradient[0])

        # Increase ω by factors of √2 until the loss rises: the best ω is then between
        # the last two.
        low = LOWEST_OMEGA
        high = FIRST_OMEGA
        while slope(high) < 0.0:
            if high >= HIGHEST_OMEGA:
                return HIGHEST_OMEGA
            low = high
            high *= math.sqrt(2.0)
        # The loss is stationary at the best ω, so that an error of 1e-7 in ω changes it
        # by the order of 1e-14 only.
        return float(brentq(slope, low, high, xtol=1e-7))

    def floor(self) -> float:
        """Return the least loss over ω."""
        loss, _ = self.evaluate(np.array([self.best]))
        return loss

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """The factor ω, (1,)."""
        return {"omega": params}

    def sampled(self, batch: int, seed: int = 0) -> Sampled[CopyPrompts]:
        """Return the trainer on prompts that are drawn anew at each step."""
        # An estimate for the check of memory: keys and values, and as many intermediate
        # results.
        numbers_per_prompt = 4.0 * self.N * self.d
        return Sampled(
            self.start,
            self._draw,
            self._losses_on,
            batch,
            seed,
            numbers_per_prompt,
        )

    def _draw(self, rng: np.random.Generator, size: int) -> CopyPrompts:
        """Draw ``size`` prompts with separate values."""
        return draw_prompts(rng, size, self.d, self.N, self.correlation)

    def _losses_on(self, params: Array, prompts: CopyPrompts) -> Pass:
        """Return the losses on the prompts of R runs, and their derivatives.

        ``params``, (R, 1), has ω of each run. The prompts are in the order of the runs,
        equally many for each. The result has the form that `Sampled` needs.
        """
        runs = len(params)
        size = len(prompts.query)
        omega = np.repeat(params[:, 0], size // runs)  # of each prompt
        products = np.einsum("bnd,bd->bn", prompts.keys, prompts.query)
        losses, score_gradient = losses_of_scores(omega[:, None] * products, prompts)
        slopes = np.sum(score_gradient * products, axis=1, keepdims=True)
        # The loss of a prompt depends on one parameter, the ω of its run. The indices
        # of these ω among the parameters of all runs are the `first_places`.
        return Pass(losses, first_places(params, size), slopes)


def _shared_bound(omega: float) -> float:
    """Round |ω| up to the next bound, which many ω share."""
    ratio = max(abs(omega) / LEAST_BOUND, 1.0)
    return LEAST_BOUND * BOUND_FACTOR ** math.ceil(math.log(ratio, BOUND_FACTOR))


class _Query(NamedTuple):
    """The queries of one length."""

    prob: float  # probability of the length
    # Scores at ω = 1 at all U nodes X: of the match, and then of another key, (2U,).
    scores: Array
    tokens: TokenRisk  # the loss as a function of these scores


def losses_of_scores(scores: Array, prompts: CopyPrompts) -> tuple[Array, Array]:
    """Return the losses of B prompts, (..., B), and their gradients, (..., B, N).

    The gradients are with respect to the scores, (..., B, N).
    """
    return _losses_of_values(scores, _relative_values(prompts))


def _relative_values(prompts: CopyPrompts) -> Array:
    """Return the values minus the value of the match, v_n - v_m, (B, N, D)."""
    value_of_match = prompts.values[np.arange(len(prompts.values)), prompts.match]
    return np.asarray(prompts.values - value_of_match[:, None])


def _losses_of_values(scores: Array, relative: Array) -> tuple[Array, Array]:
    """Return the losses of prompts, (..., B), and their gradients, (..., B, N).

    The scores are (..., B, N), and ``relative`` has the `_relative_values`, (B, N, D).
    """
    D = relative.shape[2]
    attention, _ = softmax(scores)
    # The error Σ a_n v_n - v_m is computed as Σ a_n (v_n - v_m), which keeps its digits
    # if nearly all attention is on the match.
    error = np.einsum("...bn,bnd->...bd", attention, relative)
    # The loss is |error|²/(2D), and the error has the derivative
    # a_n (v_n - v_m - error) with respect to score n.
    projected = np.einsum("bnd,...bd->...bn", relative, error)
    square = np.sum(error**2, axis=-1)
    score_gradient = attention * (projected - square[..., None]) / D
    return 0.5 * square / D, score_gradient


@dataclass(frozen=True, eq=False)
class CopySampleRisk(WithStart, Samplable[CopyPrompts]):
    r"""The mean loss over B fixed prompts of attention with any matrix W.

    .. math:: \mathcal L(W) = \frac1B\sum_i \tfrac1{2D}
        \Bigl|\sum_t a_{it}v_{it} - v_{im}\Bigr|^2

    In prompt i, key t has the attention :math:`a_{it}` and the value :math:`v_{it}` in
    D dimensions, and m is the match.

    Parameters
    ----------
    prompts : CopyPrompts
        Keys, values, queries and matches.
    start : array_like, (d, d), optional
        W at step 0, by default 0.

    References
    ----------
    docs/theory/match-copy.md.
    """

    prompts: CopyPrompts
    start: Array = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        d = self.prompts.keys.shape[2]
        start = np.zeros((d, d)) if self.start is None else self.start
        start = real_array("start", start, 2)
        if start.shape != (d, d):
            raise argument_error("start", start.shape, f"of shape ({d}, {d})")
        set_fields(self, start=start)

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient with respect to W, (d, d)."""
        losses, gradient = self._losses_and_gradient(
            params, self.prompts, self._relative
        )
        return float(losses.mean()), gradient

    def gradients(self, states: Array) -> Array:
        """Gradients at n matrices W, (n, d, d)."""
        _, gradients = self._losses_and_gradient(states, self.prompts, self._relative)
        return gradients

    @cached_property
    def _relative(self) -> Array:
        """The `_relative_values` of the fixed prompts, (B, N, D)."""
        return _relative_values(self.prompts)

    def draw(self, rng: np.random.Generator, size: int) -> CopyPrompts:
        """Draw ``size`` of the fixed prompts, with replacement."""
        indices = rng.integers(0, len(self.prompts.query), size)
        # the size of the drawn keys, in bytes
        check_fits("batch", size, 8.0 * size * self.prompts.keys[0].size)
        keys, values, query, match = self.prompts
        return CopyPrompts(
            keys[indices], values[indices], query[indices], match[indices]
        )

    def losses_on(self, params: Array, prompts: CopyPrompts) -> Array:
        """Loss of each of B prompts, (B,)."""
        losses, _ = losses_of_scores(scores_of(params, prompts), prompts)
        return losses

    def evaluate_on(self, params: Array, prompts: CopyPrompts) -> tuple[float, Array]:
        """Mean loss of given prompts, and its gradient with respect to W, (d, d)."""
        relative = _relative_values(prompts)
        losses, gradient = self._losses_and_gradient(params, prompts, relative)
        return float(losses.mean()), gradient

    def _losses_and_gradient(
        self, params: Array, prompts: CopyPrompts, relative: Array
    ) -> tuple[Array, Array]:
        """Return the losses of B prompts, (..., B), and the gradient of their mean.

        ``params`` and the gradient are (..., d, d), and ``relative`` has the
        `_relative_values` of the prompts.
        """
        scores = scores_of(params, prompts)
        losses, score_gradient = _losses_of_values(scores, relative)
        # The score kᵀWq has the gradient k qᵀ with respect to W. The sum over keys is
        # taken first, so that one matrix product sums over the prompts.
        key_sum = np.einsum("...bn,bnd->...bd", score_gradient, prompts.keys)
        gradient = key_sum.swapaxes(-1, -2) @ prompts.query / len(prompts.query)
        return losses, gradient

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Attention of each prompt on its match, (B,)."""
        attention, _ = softmax(scores_of(params, self.prompts))
        prompt = np.arange(len(attention))
        return {"attention_on_match": attention[prompt, self.prompts.match]}

    def leads(self) -> Array:
        r"""Return :math:`(k_m - k_t)q^\top` for all t ≠ m, (B (N - 1), d, d).

        The inner product of W with such a matrix is :math:`(k_m - k_t)^\top Wq`, by
        which the score of the match exceeds the score of t.
        """
        keys, _, query, match = self.prompts
        B, N, _ = keys.shape
        # k_m - k_t for all t, (B, N, d). For t = m it is 0, which is dropped below.
        difference = keys[np.arange(B), match][:, None] - keys
        is_other = np.arange(N) != match[:, None]
        outer_products = difference[:, :, :, None] * query[:, None, None, :]
        return np.asarray(outer_products[is_other])


def scores_of(W: Array, prompts: CopyPrompts) -> Array:
    """Return the scores kᵀWq of all keys, (..., B, N), for matrices W, (..., d, d)."""
    Wq = prompts.query @ W.swapaxes(-1, -2)
    return np.asarray(np.einsum("bnd,...bd->...bn", prompts.keys, Wq))


def checked_correlation(value: float) -> float:
    """Return a correlation ρ as a float, or refuse it unless 0 < ρ <= 1."""
    correlation = number("correlation", value)
    if not 0.0 < correlation <= 1.0:
        raise argument_error("correlation", value, "above 0, and at most 1")
    return correlation


def checked_omega(value: ArrayLike) -> Array:
    """Return an array that holds ω alone, (1,), or refuse any other value."""
    start = real_array("start", value, 1)
    if start.shape != (1,):
        raise argument_error("start", start.shape, "of shape (1,)")
    return start
