r"""The loss of Edelman et al.'s minimal model of an induction head.

The first layer mixes the one-hot vectors e of the symbols so far. The weights A depend
on the distance between two positions, by trained scores v of the lags:

.. math:: f_s = \sum_{j} A_{sj} e_{x_j} .

The second layer has no softmax. The score of a token, :math:`e_{x_t}^\top W f_s`,
compares the last symbol with the token's mixture. The layer adds up the symbols of the
tokens, each weighted by the score of its token. The sum is the vector of logits of the
next symbol:

.. math:: z_t = \sum_{s \le t} (e_{x_t}^\top W f_s)\, e_{x_s}, \qquad
    \mathcal L = -E \ln \mathrm{softmax}(z_t)_{x_{t+1}} .

The law of the sequences does not change if symbols are renamed, so training keeps the
form :math:`W = bI + c\,11^\top`.

In the shapes below, M is the number of sequences, T their length, k the number of
symbols, m the number of lags, and P the number of predictions that have a loss: T, or 1
if only the last one has. A variable ``name_gradient`` holds the derivatives of the loss
with respect to ``name``.
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
        Whether each row of A is a softmax of scores. If not, it has the scores
        themselves.
    is_causal : bool
        Whether tokens see no later tokens. Otherwise all later tokens have the score of
        lag 0.
    """

    T: int
    lags: int
    is_softmax: bool
    is_causal: bool

    @cached_property
    def distance(self) -> NDArray[np.intp]:
        """The distance s - j from token j to token s, (T, T); row s is for token s."""
        positions = np.arange(self.T, dtype=np.intp)
        return np.asarray(positions[:, None] - positions)

    @cached_property
    def lag(self) -> NDArray[np.intp]:
        """The lag that determines the score of token j for token s, (T, T).

        Later tokens have the score of lag 0. Tokens beyond the last lag get the score
        of this lag, but are not visible.
        """
        return np.clip(self.distance, 0, self.lags - 1)

    @cached_property
    def is_visible(self) -> NDArray[np.bool_]:
        """Whether token s attends to token j, (T, T)."""
        has_lag = self.distance < self.lags
        if self.is_causal:
            return has_lag & (self.distance >= 0)
        return has_lag

    def matrix(self, v: Array) -> Array:
        """Return A, (T, T)."""
        scores = v[self.lag]  # (T, T)
        if self.is_softmax:
            weights, _ = softmax(np.where(self.is_visible, scores, -np.inf))
            return weights
        return np.where(self.is_visible, scores, 0.0)

    def v_gradient(self, A: Array, A_gradient: Array) -> Array:
        """Return the gradient with respect to v, (m,).

        ``A_gradient`` is the gradient with respect to A, (T, T).
        """
        if self.is_softmax:
            # A softmax a of scores u has da_j = a_j (du_j - Σ_i a_i du_i). The matrix
            # of this map is symmetric, so the map also turns gradients with respect to
            # a into gradients with respect to u. Tokens that are not visible have
            # a = 0.
            mean_gradient = np.sum(A * A_gradient, axis=1, keepdims=True)
            scores_gradient = A * (A_gradient - mean_gradient)
        else:
            scores_gradient = A_gradient * self.is_visible
        # All entries of A with the same lag have the score of this lag, so their
        # derivatives are added up.
        v_gradient = np.bincount(self.lag.ravel(), scores_gradient.ravel(), self.lags)
        return np.asarray(v_gradient, dtype=float)


class Labelled(NamedTuple):
    """Sequences that a trainer draws, with the next symbol at each position.

    Attributes
    ----------
    symbols : ndarray of int, (M, T)
        The sequences.
    labels : ndarray of int, (M, T)
        The symbol that follows each of these symbols.
    """

    symbols: Symbols
    labels: Symbols


class _Pass(NamedTuple):
    """The result of a forward and a backward pass."""

    losses: Array  # of each sequence, (M,)
    gradient: Array  # of the weighted mean loss, in the shape of the parameters


@dataclass(frozen=True, eq=False)
class MinimalRisk(WithStart, Samplable[Labelled]):
    """Loss of (v, W) of the minimal model on weighted sequences.

    The parameters are v and then either b, with W = bI, or two numbers for W: the value
    b + c of its diagonal entries, and the value c of all other entries. The metric
    weights these two numbers by the numbers of entries of W that have these values, k
    and k(k - 1). Descent in the two numbers then equals descent in all entries of W.

    Attributes
    ----------
    attention : LagAttention
        The first layer.
    k : int
        Number of symbols.
    concentration : float
        The Dirichlet parameter of the chains.
    sequences : Sequences
        The sequences, with their weights in the loss.
    start : ndarray, (m + 1,) or (m + 2,)
        Initial parameters.
    ratio : float
        Learning rate of the first layer, divided by the rate of the second one.
    last_only : bool
        Whether only the prediction after the last token has a loss. If not, the loss is
        the mean over the predictions after each token.
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
        """Metric of descent: 1/ratio for v, and 1 for b.

        If W is a matrix, its two numbers have the metric k and k(k - 1) instead of 1. W
        has k entries on its diagonal and k(k - 1) entries off it.
        """
        k = self.k
        second_layer = np.ones(1)
        if self.is_matrix:
            second_layer = np.array([float(k), k * (k - 1.0)])
        first_layer = np.full(self.attention.lags, 1.0 / self.ratio)
        return np.concatenate([first_layer, second_layer])

    @property
    def is_matrix(self) -> bool:
        """Whether all entries of W are trained, instead of b alone in W = bI."""
        return len(self.start) == self.attention.lags + 2

    def blocks(self, array: Array) -> Sequence[Array]:
        """Return views of the scores v and of the numbers of W."""
        return np.split(array, [self.attention.lags])

    @property
    def leaks(self) -> bool:
        """Whether predictions depend on the symbols that they predict.

        Without a causal mask the mixtures of the first layer contain later symbols.
        Only the last prediction is made after all symbols of the sequence.
        """
        return not (self.attention.is_causal or self.last_only)

    def floor(self) -> float:
        """Loss of the Bayes-optimal prediction; 0 if predictions see later symbols."""
        return 0.0 if self.leaks else self.bayes

    def excess(self, params: ArrayLike) -> float:
        """Loss above the floor."""
        params = self._checked(params)
        above_bayes = float(self._excess(params).losses @ self._weights)
        # The floor is 0 instead of the Bayes loss if predictions see later symbols.
        return self.bayes + above_bayes if self.leaks else above_bayes

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient."""
        losses, gradient = self._excess(params)
        return float(self.bayes + losses @ self._weights), gradient

    @property
    def _weights(self) -> Array:
        """Weights of the sequences in the loss, (M,)."""
        return self.sequences.probability

    def excesses(self, params: ArrayLike) -> Array:
        """Return the loss of each sequence above its Bayes loss, (M,)."""
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
        diagonal, off_diagonal = second.tolist()
        return v, diagonal - off_diagonal, off_diagonal

    def predictions(self, params: ArrayLike) -> Array:
        """Return the predicted probabilities of the next symbol, (P, M, k)."""
        layers = _layers(self, self.sequences.symbols, self._checked(params))
        predicted, _ = softmax(layers.logits)
        return predicted

    def _excess(self, params: Array) -> _Pass:
        """Return the losses of the sequences above their Bayes losses, and a gradient.

        The gradient belongs to the weighted mean of these losses over the sequences.
        """
        layers = _layers(self, self.sequences.symbols, params)
        losses, gradient = self._compare(layers, self._labels, self._weights)
        return _Pass(losses - self._bayes_losses, gradient)

    @cached_property
    def _labels(self) -> Array:
        """Labels with which predictions are compared, (P, M, k).

        The labels are the law of the next symbol. But if predictions depend on the next
        symbol itself, this symbol is the label. The last label is always the law,
        because the sequence does not contain the symbol that follows its last token.
        """
        following = self.sequences.following
        if self.last_only:
            return following[-1:]
        if not self.leaks:
            return following
        next_symbols = np.eye(self.k)[self.sequences.symbols[1:]]
        return np.concatenate([next_symbols, following[-1:]])

    @cached_property
    def _bayes_losses(self) -> Array:
        """Loss of the Bayes-optimal prediction on each sequence, (M,)."""
        P = len(self._labels)
        # The law of the next symbol is the Bayes-optimal prediction.
        log_bayes = np.log(self.sequences.following[-P:])
        return -np.sum(self._labels * log_bayes, axis=2).mean(axis=0)

    def _compare(self, layers: _Layers, labels: Array, weights: Array) -> _Pass:
        """Return the cross entropies of the sequences, and the gradient of their mean.

        ``labels`` are laws of the next symbol, (P, M, k). The cross entropy of a
        sequence is the mean over its predictions. The mean over the sequences has the
        ``weights``, (M,).
        """
        predicted, log_total = softmax(layers.logits)
        # -ln softmax(z)_y = ln Σ exp(z) - z_y, averaged over the next symbol y
        mean_logit = np.einsum("tmy,tmy->tm", labels, layers.logits)
        losses = (log_total - mean_logit).mean(axis=0)
        logits_gradient = predicted - labels
        logits_gradient *= weights[:, None] / len(labels)
        v_gradient, b_gradient, c_gradient = layers.gradient(logits_gradient)
        second_layer = [b_gradient]
        if self.is_matrix:
            # b = diagonal - off_diagonal and c = off_diagonal, see `split`
            second_layer = [b_gradient, c_gradient - b_gradient]
        return _Pass(losses, np.concatenate([v_gradient, second_layer]))

    def draw(self, rng: np.random.Generator, size: int) -> Labelled:
        """Draw sequences of T symbols, with the symbol that follows each symbol."""
        T = self.attention.T
        # A sequence has its symbols and, at each position, the counts and the law of
        # the next symbol: about 3 arrays of k + 2 numbers. The estimate serves to
        # refuse a size that does not fit in memory.
        size = prompts_to_draw(rng, size, numbers=3.0 * (T + 1) * (self.k + 2))
        # Symbol T + 1 is the label of the last token.
        drawn = Sequences.drawn(
            self.k,
            T + 1,
            self.concentration,
            count=size,
            rng=rng,
            circulant=self.circulant,
        )
        symbols = np.ascontiguousarray(drawn.symbols.T)
        return Labelled(symbols[:, :T], symbols[:, 1:])

    def losses_on(self, params: Array, prompts: Labelled) -> Array:
        """Loss of each drawn sequence, (M,)."""
        return self._on(params, prompts).losses

    def evaluate_on(self, params: Array, prompts: Labelled) -> tuple[float, Array]:
        """Mean loss of some sequences, and its gradient."""
        losses, gradient = self._on(params, prompts)
        return float(losses.mean()), gradient

    def _on(self, params: Array, prompts: Labelled) -> _Pass:
        """Return the losses of drawn sequences, and the gradient of their mean."""
        labels = prompts.labels.T  # (T, M), as in `Sequences`
        if self.last_only:
            labels = labels[-1:]
        one_hot_labels = np.eye(self.k)[labels]  # (P, M, k)
        count = len(prompts.symbols)
        layers = _layers(self, prompts.symbols.T, params)
        return self._compare(layers, one_hot_labels, np.full(count, 1.0 / count))


def _layers(risk: MinimalRisk, symbols: Symbols, params: Array) -> _Layers:
    """Return the forward pass of sequences, ``symbols`` (T, M), through both layers."""
    v, b, c = risk.split(params)
    class_of_pass = LastPosition if risk.last_only else EveryPosition
    return class_of_pass(risk.attention, symbols, risk.k, v, b, c)


class _Layers(ABC):
    """A forward pass through both layers, and its gradient.

    The first layer has the mixtures f_s = Σ_j A_sj e(x_j), with the masses Σ_j A_sj.
    The second layer compares these mixtures with the query, the last symbol q. Token s
    adds its score,

        b (entry q of f_s) + c (mass of f_s),

    to the logit of its own symbol x_s. In the subscripts of the einsums, s or t is a
    position, m a sequence, q a query, and y the symbol of a logit.

    Parameters
    ----------
    attention : LagAttention
        The first layer.
    symbols : ndarray of int, (T, M)
        The sequences, one in each column.
    k : int
        Number of symbols.
    v, b, c : ndarray (m,), float, float
        Scores of the lags, and the numbers of W = bI + c 11ᵀ.

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
        # The sum of each mixture's entries, (T,), which is 1 for a softmax.
        self.mass = self.A.sum(axis=1)
        self.one_hot = np.eye(k)[symbols]  # (T, M, k)
        self.forward()

    @abstractmethod
    def forward(self) -> None:
        """Compute the logits."""

    @abstractmethod
    def gradient(self, logits_gradient: Array) -> tuple[Array, float, float]:
        """Return the derivatives of the loss with respect to v, (m,), b and c.

        The argument has the derivatives with respect to the logits, (P, M, k).
        """


class LastPosition(_Layers):
    """The pass for the prediction after the last token only."""

    def forward(self) -> None:
        """Compute the logits, (1, M, k)."""
        # Whether each symbol equals the last one, (T, M).
        self.equals_last = (self.symbols == self.symbols[-1]).astype(float)
        # The entry of each mixture for the last symbol, (T, M). No other entry matters.
        self.share = self.A @ self.equals_last
        scores = self.b * self.share + self.c * self.mass[:, None]
        self.logits = np.einsum("sm,smy->my", scores, self.one_hot)[None]

    def gradient(self, logits_gradient: Array) -> tuple[Array, float, float]:
        """Return the derivatives of the loss with respect to v, (m,), b and c."""
        # The score of token s is a term of the logit of its symbol only, so it has the
        # derivative of this logit, (T, M).
        sequence_indices = np.arange(self.symbols.shape[1])
        scores_gradient = logits_gradient[0][sequence_indices, self.symbols]
        # The derivatives with respect to c·mass of each token, (T,). All sequences
        # share the masses, so their derivatives are added up.
        summed_gradient = scores_gradient.sum(axis=1)
        A_gradient = self.b * scores_gradient @ self.equals_last.T
        # Each entry of row s of A is a term of the mass of token s.
        A_gradient = A_gradient + self.c * summed_gradient[:, None]
        return (
            self.attention.v_gradient(self.A, A_gradient),
            float(np.sum(scores_gradient * self.share)),
            float(summed_gradient @ self.mass),
        )


class EveryPosition(_Layers):
    r"""The pass for the predictions after each token.

    The second layer is linear, so it needs no score for each pair of a token and a
    query: its sums over tokens so far are running sums of :math:`f_s e_{x_s}^\top`.
    """

    def forward(self) -> None:
        """Compute the logits, (T, M, k)."""
        T, count, k = self.one_hot.shape
        flat = self.one_hot.reshape(T, count * k)
        mixtures = (self.A @ flat).reshape(T, count, k)
        # The matrices f_s e(x_s)ᵀ, and then their running sums, (T, M, k, k).
        pairs = np.einsum("smq,smy->smqy", mixtures, self.one_hot)
        np.cumsum(pairs, axis=0, out=pairs)  # in place: this is the largest array
        # The factors of b and c in the logits, (T, M, k). The query at each position is
        # its symbol.
        self.matches = _at_symbols(pairs, self.symbols)
        masses = self.mass[:, None, None] * self.one_hot
        self.totals = np.cumsum(masses, axis=0)
        self.logits = self.b * self.matches + self.c * self.totals

    def gradient(self, logits_gradient: Array) -> tuple[Array, float, float]:
        """Return the derivatives of the loss with respect to v, (m,), b and c."""
        T, count, k = self.one_hot.shape
        # Token s contributes to the logits at position s and at all later positions t.
        later_sums = _sums_from_the_end(logits_gradient)
        # The derivatives with respect to c·mass of each token, (T,).
        summed_gradient = _at_symbols(later_sums, self.symbols).sum(axis=1)
        # The derivatives with respect to b f_s, (T, M, k): the query at t selects an
        # entry q of the mixture, and the symbol of token s selects the logit y.
        pairs = np.einsum("tmq,tmy->tmyq", self.one_hot, logits_gradient)
        mixtures_gradient = _at_symbols(_sums_from_the_end(pairs), self.symbols)
        flat = self.one_hot.reshape(T, count * k)
        A_gradient = self.b * mixtures_gradient.reshape(T, count * k) @ flat.T
        # Each entry of row s of A is a term of the mass of token s.
        A_gradient += self.c * summed_gradient[:, None]
        return (
            self.attention.v_gradient(self.A, A_gradient),
            float(np.sum(logits_gradient * self.matches)),
            float(np.sum(logits_gradient * self.totals)),
        )


def _sums_from_the_end(array: Array) -> Array:
    """Return at each position the sum over it and all later positions, (T, ...)."""
    return np.cumsum(array[::-1], axis=0)[::-1]


def _at_symbols(array: Array, symbols: Symbols) -> Array:
    """Return the entries of an array for each token's symbol, (T, M, ...).

    The array is (T, M, k, ...). ``symbols``, (T, M), selects along its third axis.
    """
    positions = np.arange(len(symbols))[:, None]
    sequence_indices = np.arange(symbols.shape[1])
    return np.asarray(array[positions, sequence_indices, symbols])
