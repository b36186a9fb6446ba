r"""The loss of Edelman et al.'s minimal model of an induction head.

Both layers attend, and the second one does so without a softmax. The first layer mixes
the symbols so far by their distance, with trained scores v of the lags,

.. math:: f_s = \sum_{j} A_{sj} e_{x_j} .

The second layer compares the last symbol with these mixtures, and adds up the symbols
of the tokens. The sum is the vector of logits of the next symbol:

.. math:: z_t = \sum_{s \le t} (e_{x_t}^\top W f_s)\, e_{x_s}, \qquad
    \mathcal L = -E \ln \mathrm{softmax}(z_t)_{x_{t+1}} .

The law of the sequences is the same for all names of the symbols, so training leaves W
symmetric under renaming: :math:`W = bI + c\,11^\top`. In the shapes below, M is the
number of sequences.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icl_theory._validate import Array
from icl_theory.engine.risk import WithStart
from icl_theory.engine.sampling import Samplable, prompts_to_draw
from icl_theory.papers.induction_heads.sequences import Sequences, Symbols
from icl_theory.tokens.sampled import softmax


@dataclass(frozen=True)
class LagAttention:
    """Attention of the first layer, a matrix A, as a function of the scores v.

    Attributes
    ----------
    T, lags : int
        Number of tokens, and number m of the lags 0, ..., m - 1 that have scores.
    is_softmax : bool
        Whether each row of A is a softmax of scores, or the scores themselves.
    is_causal : bool
        Whether tokens see no later ones. If not, all later ones have the score of
        lag 0.
    """

    T: int
    lags: int
    is_softmax: bool
    is_causal: bool

    @cached_property
    def distance(self) -> NDArray[np.intp]:
        """How many places token j is before token s, (T, T)."""
        places = np.arange(self.T, dtype=np.intp)
        return np.asarray(places[:, None] - places)

    @cached_property
    def lag(self) -> NDArray[np.intp]:
        """The lag whose score token s gives to token j, (T, T)."""
        return np.clip(self.distance, 0, self.lags - 1)

    @cached_property
    def is_visible(self) -> NDArray[np.bool_]:
        """Whether token s attends to token j, (T, T)."""
        is_near = self.distance < self.lags
        return is_near & (self.distance >= 0) if self.is_causal else is_near

    def matrix(self, v: Array) -> Array:
        """Return A, (T, T)."""
        scores = v[self.lag]
        if self.is_softmax:
            return softmax(np.where(self.is_visible, scores, -np.inf))[0]
        return np.where(self.is_visible, scores, 0.0)

    def by_scores(self, A: Array, by_A: Array) -> Array:
        """Return the gradient in v, (m,), from the gradient in A."""
        by_entry = by_A * self.is_visible
        if self.is_softmax:
            by_entry = A * (by_A - np.sum(A * by_A, axis=1, keepdims=True))
        by_lag = np.bincount(self.lag.ravel(), by_entry.ravel(), self.lags)
        return np.asarray(by_lag, dtype=float)


class Labelled(NamedTuple):
    """Sequences with their next symbols, as a trainer draws them.

    Attributes
    ----------
    symbols : ndarray of int, (M, T)
    labels : ndarray of int, (M, T)
        The symbol after each of them.
    """

    symbols: Symbols
    labels: Symbols


class _Pass(NamedTuple):
    """Losses of sequences, (M,), with the gradient of their weighted mean."""

    losses: Array
    gradient: Array


@dataclass(frozen=True, eq=False)
class MinimalRisk(WithStart, Samplable[Labelled]):
    """Loss of (v, W) of the minimal model on weighted sequences.

    The parameters are v, and b with W = bI, or the entries of W on the diagonal and
    beside it. All diagonal entries stand for one number, and so do all others; the
    metric counts them, so that descent is that of the whole matrix.

    Attributes
    ----------
    attention : LagAttention
        The first layer.
    k : int
        Number of symbols.
    concentration : float
        The Dirichlet parameter of the chains.
    sequences : Sequences
        The sequences.
    start : ndarray, (m + 1,) or (m + 2,)
        Initial parameters.
    ratio : float
        Learning rate of the first layer, divided by the rate of the second one.
    last_only : bool
        Whether the loss is that of the symbol after the last token, or the mean over
        the symbols after each token.
    bayes : float
        Loss of the Bayes-optimal prediction, nats.
    circulant : bool
        Whether the chains are circulant.
    """

    attention: LagAttention
    k: int
    concentration: float
    sequences: Sequences
    start: Array
    ratio: float
    last_only: bool
    bayes: float
    circulant: bool = False

    @property
    def metric(self) -> Array:
        """Number of the entries of W with the same value; 1/ratio for v."""
        k = self.k
        second = np.array([float(k), k * (k - 1.0)])
        if not self.is_matrix:
            second = np.ones(1)
        first = np.full(self.attention.lags, 1.0 / self.ratio)
        return np.concatenate([first, second])

    @property
    def is_matrix(self) -> bool:
        """Whether the entries of W beside the diagonal are trained."""
        return len(self.start) == self.attention.lags + 2

    def blocks(self, array: Array) -> Sequence[Array]:
        """The first layer and the second one."""
        return np.split(array, [self.attention.lags])

    @property
    def leaks(self) -> bool:
        """Whether predictions depend on the symbols that they predict.

        Without a mask the mixtures of the first layer have later symbols in them.
        """
        return not (self.attention.is_causal or self.last_only)

    def floor(self) -> float:
        """Loss of the Bayes-optimal prediction; 0 if predictions see later symbols."""
        return 0.0 if self.leaks else self.bayes

    def excess(self, params: ArrayLike) -> float:
        """Loss above the floor."""
        params = self._checked(params)
        excess = float(self._excess(params).losses @ self._weights)
        return self.bayes + excess if self.leaks else excess

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient."""
        losses, gradient = self._excess(params)
        return float(self.bayes + losses @ self._weights), gradient

    @property
    def _weights(self) -> Array:
        return self.sequences.probability

    def excesses(self, params: ArrayLike) -> Array:
        """Loss of each sequence above that of the Bayes-optimal prediction, (M,)."""
        return self._excess(self._checked(params)).losses

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Scores of the lags, and b and c of W."""
        v, b, c = self.split(params)
        return {"lag_scores": v, "match": np.asarray(b), "common": np.asarray(c)}

    def split(self, params: Array) -> tuple[Array, float, float]:
        """Return v, b and c with W = bI + c 11ᵀ."""
        v, second = np.split(params, [self.attention.lags])
        if not self.is_matrix:
            return v, float(second[0]), 0.0
        diagonal, beside = second.tolist()
        return v, diagonal - beside, beside

    def predictions(self, params: ArrayLike) -> Array:
        """Return the probabilities of the next symbol, (T, M, k), or (1, M, k)."""
        layers = _layers(self, self.sequences.symbols, self._checked(params))
        return softmax(layers.logits)[0]

    def _excess(self, params: Array) -> _Pass:
        """Return losses of the sequences above the Bayes loss, and a mean gradient."""
        layers = _layers(self, self.sequences.symbols, params)
        costs = self._compare(layers, self._labels, self._weights)
        return _Pass(costs.losses - self._bayes_losses, costs.gradient)

    @cached_property
    def _labels(self) -> Array:
        """Law of the next symbol, (P, M, k).

        If predictions depend on the next symbol itself, it is their label. Only the
        last label is then a law, because the sequence does not contain its symbol.
        """
        following = self.sequences.following
        if self.last_only:
            return following[-1:]
        if not self.leaks:
            return following
        return np.concatenate(
            [np.eye(self.k)[self.sequences.symbols[1:]], following[-1:]]
        )

    @cached_property
    def _bayes_losses(self) -> Array:
        """Loss of the Bayes-optimal prediction on each sequence, (M,)."""
        log_best = np.log(self.sequences.following[-len(self._labels) :])
        return -np.sum(self._labels * log_best, axis=2).mean(axis=0)

    def _compare(self, layers: _Layers, following: Array, weights: Array) -> _Pass:
        """Return the cross entropies of predictions with laws of the next symbol."""
        predicted, log_total = softmax(layers.logits)
        mean_logit = np.einsum("tmy,tmy->tm", following, layers.logits)
        losses = (log_total - mean_logit).mean(axis=0)
        by_logits = predicted - following
        by_logits *= weights[:, None] / len(following)
        by_v, by_b, by_c = layers.gradient(by_logits)
        second = [by_b]
        if self.is_matrix:
            second = [by_b, by_c - by_b]
        return _Pass(losses, np.concatenate([by_v, second]))

    def draw(self, rng: np.random.Generator, size: int) -> Labelled:
        """Draw sequences with their next symbols."""
        T = self.attention.T
        size = prompts_to_draw(rng, size, numbers=3.0 * (T + 1) * (self.k + 2))
        drawn = Sequences.drawn(
            self.k, T + 1, self.concentration, size, rng, self.circulant
        )
        symbols = np.ascontiguousarray(drawn.symbols.T)
        return Labelled(symbols[:, :T], symbols[:, 1:])

    def losses_on(self, params: Array, prompts: Labelled) -> Array:
        """Loss of each of B sequences, (B,)."""
        return self._on(params, prompts).losses

    def evaluate_on(self, params: Array, prompts: Labelled) -> tuple[float, Array]:
        """Mean loss of some sequences, and its gradient."""
        losses, gradient = self._on(params, prompts)
        return float(losses.mean()), gradient

    def _on(self, params: Array, prompts: Labelled) -> _Pass:
        """Return the losses of given sequences, and the gradient of their mean."""
        labels = prompts.labels.T
        if self.last_only:
            labels = labels[-1:]
        following = np.eye(self.k)[labels]
        count = len(prompts.symbols)
        layers = _layers(self, prompts.symbols.T, params)
        return self._compare(layers, following, np.full(count, 1.0 / count))


def _layers(risk: MinimalRisk, symbols: Symbols, params: Array) -> _Layers:
    """Return the forward pass of the parameters."""
    v, b, c = risk.split(params)
    kind = LastPosition if risk.last_only else EveryPosition
    return kind(risk.attention, symbols, risk.k, v, b, c)


class _Layers(ABC):
    """A forward pass through both layers, and its gradient.

    The names ``by_A``, ``by_scores`` ... are derivatives of the loss with respect to A,
    the scores and so on. With the mixtures f_s = Σ_r A_sr e(x_r) of the first layer and
    their masses Σ_r A_sr, a token s has the score

        b (entry of f_s at the query) + c (mass of f_s)

    in the logit of its own symbol x_s.

    Attributes
    ----------
    logits : ndarray, (P, M, k)
        Logits of the next symbol at P positions.
    """

    logits: Array

    def __init__(
        self,
        attention: LagAttention,
        symbols: Symbols,
        k: int,
        v: Array,
        b: float,
        c: float,
    ) -> None:
        self.attention = attention
        self.symbols = symbols
        self.b = b
        self.c = c
        self.A = attention.matrix(v)
        # The sum of a mixture's entries, which is 1 for a softmax.
        self.mass = self.A.sum(axis=1)
        self.one_hot = np.eye(k)[symbols]
        self.forward()

    @abstractmethod
    def forward(self) -> None:
        """Compute the logits."""

    @abstractmethod
    def gradient(self, by_logits: Array) -> tuple[Array, float, float]:
        """Return the derivatives of the loss with respect to v, (m,), b and c.

        The argument has its derivatives with respect to the logits, (P, M, k).
        """


class LastPosition(_Layers):
    """The pass for the symbol after the last token."""

    def forward(self) -> None:
        """Compute the logits, (1, M, k)."""
        # Only the share of the last symbol in each mixture matters, (T, M).
        self.equals_last = (self.symbols == self.symbols[-1]).astype(float)
        self.share = self.A @ self.equals_last
        scores = self.b * self.share + self.c * self.mass[:, None]
        self.logits = np.einsum("sm,smy->my", scores, self.one_hot)[None]

    def gradient(self, by_logits: Array) -> tuple[Array, float, float]:
        """Return the derivatives of the loss with respect to v, (m,), b and c."""
        # The score of token s is a term of the logit of its symbol only, (T, M).
        columns = np.arange(self.symbols.shape[1])
        by_scores = by_logits[0][columns, self.symbols]
        by_mass = by_scores.sum(axis=1)
        by_A = self.b * by_scores @ self.equals_last.T + self.c * by_mass[:, None]
        return (
            self.attention.by_scores(self.A, by_A),
            float(np.sum(by_scores * self.share)),
            float(by_mass @ self.mass),
        )


class EveryPosition(_Layers):
    r"""The pass for the symbols after each token.

    A linear second layer needs no scores of pairs of tokens: sums over earlier tokens
    are running sums of :math:`f_s e_{x_s}^\top`.
    """

    def forward(self) -> None:
        """Compute the logits, (T, M, k)."""
        T, count, k = self.one_hot.shape
        flat = self.one_hot.reshape(T, count * k)
        mixtures = (self.A @ flat).reshape(T, count, k)
        pairs = np.einsum("smq,smy->smqy", mixtures, self.one_hot)
        np.cumsum(pairs, axis=0, out=pairs)
        self.matches = _row(pairs, self.symbols)
        masses = self.mass[:, None, None] * self.one_hot
        self.totals = np.cumsum(masses, axis=0)
        self.logits = self.b * self.matches + self.c * self.totals

    def gradient(self, by_logits: Array) -> tuple[Array, float, float]:
        """Return the derivatives of the loss with respect to v, (m,), b and c."""
        T, count, k = self.one_hot.shape
        # Token s contributes to the logits at position s and at all later positions t.
        later = np.cumsum(by_logits[::-1], axis=0)[::-1]
        by_mass = _row(later, self.symbols).sum(axis=1)
        # With respect to f_s: the query at t selects an entry q of the mixture, and the
        # symbol of token s selects the logit y.
        pairs = np.einsum("tmq,tmy->tmyq", self.one_hot, by_logits)
        by_mixtures = _row(np.cumsum(pairs[::-1], axis=0)[::-1], self.symbols)
        flat = self.one_hot.reshape(T, count * k)
        by_A = self.b * by_mixtures.reshape(T, count * k) @ flat.T
        by_A += self.c * by_mass[:, None]
        return (
            self.attention.by_scores(self.A, by_A),
            float(np.sum(by_logits * self.matches)),
            float(np.sum(by_logits * self.totals)),
        )


def _row(array: Array, symbols: Symbols) -> Array:
    """Select the row of each token's symbol from an array (T, M, k, ...)."""
    places = np.arange(len(symbols))[:, None]
    return np.asarray(array[places, np.arange(symbols.shape[1]), symbols])
