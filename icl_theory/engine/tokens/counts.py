r"""Softmax attention over few kinds of tokens whose counts have a known law: any loss, exactly, as a finite sum.

Let a prompt have n_κ tokens of kind κ. A token of kind κ has the score s_κ and stands for the label v with
probability v_κv. Attention then predicts a function of the counts,

    o = Σ_κ n_κ e^(s_κ) v_κ / Σ_κ n_κ e^(s_κ),

so that the mean of any loss is a sum over the counts. `IndependentCounts` lists those of independent tokens,
`TwoStateCounts` those of the windows of two symbols in a Markov chain; see docs/theory.md, "Few kinds of tokens".
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icl_theory._validate import (
    EXACT,
    LARGEST,
    Array,
    choice,
    fraction,
    instance,
    integer,
    number,
    real_array,
    refuse,
    store,
)
from icl_theory.engine.risk import Risk
from icl_theory.engine.tokens.labels import log_poisson
from icl_theory.memory import check_fits

Words = NDArray[np.intp]
LOSSES = ("log", "square", "logistic")
BLOCK = 2**13  # rows at a time, whose arrays stay in the cache
NEVER = -1e300  # log of the probability 0; times a count of 0 it is 0


class Table(NamedTuple):
    """All counts that may occur, one a row, with what is known of them."""

    counts: Array  # tokens of each kind, (A, k)
    query: Words  # which query asks, (A,)
    log_probability: Array  # of counts and query together, (A,)
    truth: Array  # probabilities of the labels given counts and query: the Bayes-optimal prediction, (A, V)

    @property
    def probability(self) -> Array:
        """Probabilities of the rows, which sum to 1, (A,)."""
        return np.exp(self.log_probability)

    def mean(self, values: ArrayLike) -> Array:
        """Return the mean of numbers that each row has, (A, ...): the exact expectation of any loss."""
        return np.tensordot(self.probability, np.asarray(values, dtype=np.float64), 1)


class Drawn(NamedTuple):
    """A batch of B prompts of N tokens."""

    kind: Words  # (B, N)
    query: Words  # (B,)
    target: Words  # (B,)


class CountLaw(ABC):
    """A law of prompts whose tokens are of few kinds, with as many scores for each query."""

    values: Array  # probabilities of the labels that a token of each kind stands for, (k, V)
    queries: int = 1

    @property
    @abstractmethod
    def table(self) -> Table:
        """All counts that may occur."""

    @abstractmethod
    def draw(self, rng: np.random.Generator, size: int) -> Drawn:
        """Draw prompts token by token."""


@dataclass(frozen=True, eq=False)
class IndependentCounts(CountLaw):
    r"""Counts of N independent tokens of k kinds, given which of Z tasks is at hand.

    .. math:: P(n) = \sum_z w_z \frac{N!}{n_1! \cdots n_k!} \prod_\kappa p_{z\kappa}^{n_\kappa}

    Parameters
    ----------
    N : int
        Number of tokens.
    probs : array_like, (k,) or (Z, k)
        Probabilities of the kinds under each task.
    values : array_like, (k, V)
        Probabilities of the labels that a token of each kind stands for.
    targets : array_like, (V,) or (Z, V)
        Probabilities of the right label under each task.
    weights : array_like, (Z,), optional
        Probabilities of the tasks; equal ones by default.
    rare : float
        Counts that are less probable are left out.

    Raises
    ------
    ValueError
        An argument is out of range, or there are more counts than fit in memory; the message names it.

    Examples
    --------
    >>> from icl_theory.engine.tokens.counts import IndependentCounts
    >>> law = IndependentCounts(2, [0.5, 0.5], [[1, 0], [0, 1]], [0.5, 0.5])
    >>> law.table.counts.astype(int).tolist(), law.table.probability.round(12).tolist()
    ([[0, 2], [1, 1], [2, 0]], [0.25, 0.5, 0.25])
    """

    N: int
    probs: Array
    values: Array
    targets: Array
    weights: Array | None = None
    rare: float = 1e-30

    def __post_init__(self) -> None:
        probs = np.atleast_2d(_laws("probs", self.probs))
        targets, values = np.atleast_2d(_laws("targets", self.targets)), _laws("values", self.values)
        Z, k = probs.shape
        if values.ndim != 2 or len(values) != k:
            raise refuse("values", values.shape, f"of shape (k, V) with k = {k}, one row for each kind")
        if len(targets) not in (1, Z) or targets.shape[1] != values.shape[1]:
            raise refuse("targets", targets.shape, f"of shape (V,) or ({Z}, V) with V = {values.shape[1]}")
        weights = np.full(Z, 1.0 / Z) if self.weights is None else _laws("weights", self.weights)
        if weights.shape != (Z,):
            raise refuse("weights", weights.shape, f"of shape ({Z},), one for each task")
        store(self, N=integer("N", self.N, minimum=1, maximum=EXACT), rare=fraction("rare", self.rare))
        store(self, probs=probs, values=values, weights=weights)
        store(self, targets=np.broadcast_to(targets, (Z, values.shape[1])))

    @cached_property
    def table(self) -> Table:
        """All counts of at least the probability ``rare``."""
        assert self.weights is not None
        probs, weights = self.probs, self.weights
        middle = weights @ probs
        counts = self._compositions()
        log = log_poisson(counts, self.N * middle).sum(axis=1) - log_poisson(self.N, self.N)
        log, task = _mixed(log, counts @ _log_ratio(probs, middle).T + _log(weights))
        often = log >= math.log(self.rare)
        return Table(counts[often], np.zeros(often.sum(), dtype=np.intp), log[often], task[often] @ self.targets)

    def _compositions(self) -> Array:
        """All ways to share N tokens among the kinds, with numbers that are probable for each kind by itself."""
        check_fits("N", self.N, 100.0 * self.N)
        n = np.arange(self.N + 1.0)
        counts, left = np.zeros((1, 0)), np.full(1, self.N)
        whole = log_poisson(self.N, self.N)
        for p in self.probs.T[:-1]:
            ends = np.array([[p.min()], [p.max()]])
            log = log_poisson(n, self.N * ends) + log_poisson(self.N - n, self.N * (1.0 - ends)) - whole
            likely = np.flatnonzero((log >= math.log(self.rare)).any(axis=0))
            first, last = int(likely[0]), np.minimum(int(likely[-1]), left)
            sizes = np.maximum(last - first + 1, 0)
            check_fits(
                "N", self.N, 8.0 * float(sizes.sum(dtype=float)) * (4 * self.probs.shape[1] + 3 * len(self.probs))
            )
            row = np.repeat(np.arange(len(sizes)), sizes)
            taken = first + np.arange(len(row)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            counts, left = np.column_stack([counts[row], taken]), left[row] - taken
        return np.column_stack([counts, left])

    def draw(self, rng: np.random.Generator, size: int) -> Drawn:
        """Draw the task of each prompt, its tokens, and its label."""
        task = rng.choice(len(self.probs), size, p=self.weights)
        kinds, labels = (np.cumsum(each, axis=1)[task] for each in (self.probs, self.targets))
        kind = _chosen(rng.random((size, self.N)), kinds[:, None])
        return Drawn(kind, np.zeros(size, dtype=np.intp), _chosen(rng.random(size), labels))


def fair_labels(features: int, N: int, rare: float = 1e-30) -> IndependentCounts:
    r"""Return the law of in-context classification: K features with fair labels, and N tokens of random features.

    Kinds are tokens with the query's feature, which have its label; others with the same label; and others with the
    other label. Label 0 is the right one. With j of the K - 1 other features sharing the label, tokens have the
    probabilities 1/K, j/K and (K - 1 - j)/K, and j is binomial. No term is negative, so that there is no
    cancellation: the sum of the labels of m other tokens, each ±1, is

    .. math:: P(D = 2a - m) = \sum_j 2^{1-K}\binom{K-1}{j}
        \binom{m}{a} \Bigl(\frac{j}{K-1}\Bigr)^a \Bigl(1 - \frac{j}{K-1}\Bigr)^{m-a}.

    Parameters
    ----------
    features : int
        K, at least 2.
    N : int
        Number of tokens.
    rare : float
        Counts that are less probable are left out.

    Examples
    --------
    Attention on the query's own feature is worth more in longer prompts:

    >>> from icl_theory.engine.tokens.counts import CountRisk, fair_labels
    >>> for N in (10, 40):
    ...     risk = CountRisk(fair_labels(5, N), "logistic", scale=8.0)
    ...     print(round(risk.loss([[2.0], [0.0], [0.0]]), 4))
    0.2729
    0.0383
    """
    K, rare = integer("features", features, minimum=2, maximum=EXACT), fraction("rare", rare)
    reach = math.sqrt(0.5 * (K - 1) * -math.log(rare)) + 1.0  # Hoeffding's bound
    check_fits("features", features, 400.0 * reach)
    j = np.arange(max(0, math.ceil(0.5 * (K - 1) - reach)), min(K - 1, math.floor(0.5 * (K - 1) + reach)) + 1.0)
    weights = np.exp(
        log_poisson(j, 0.5 * (K - 1)) + log_poisson(K - 1 - j, 0.5 * (K - 1)) - log_poisson(K - 1, K - 1)
    )
    probs = np.column_stack([np.ones(len(j)), j, K - 1 - j]) / K
    values = [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    return IndependentCounts(N, probs, np.array(values), np.array([1.0, 0.0]), weights / weights.sum(), rare)


@dataclass(frozen=True, eq=False)
class TwoStateCounts(CountLaw):
    r"""Counts of the windows of two symbols in T symbols of a two-state Markov chain.

    There are T - 1 windows (x_{i-1}, x_i), i = 2, ..., T, of the kinds 00, 01, 10, 11. The query is the last symbol
    x_T, a token stands for the second symbol of its window, and the label is x_{T+1}. With n_s the windows that
    begin with s and c_s those of them that change, the counts have the probability

    .. math:: P(x_1) \prod_{s = 0, 1} P(c_s \mid n_s) \times \begin{cases} 1 & x_T = s \text{ or } n_s = 0 \\
        c_s/n_s & \text{else,}\end{cases}

    where P(c | n) is beta-binomial if row s has a Beta prior, and binomial for a known chain.

    Parameters
    ----------
    T : int
        Number of symbols, at least 2. The table has about T² rows.
    concentration : array_like, () or (2, 2), optional
        Row s is the Beta (Dirichlet) prior of row s of the chain, positive and finite. The default is 1, the
        uniform prior.
    transitions : array_like, (2, 2) or (Z, 2, 2), optional
        Instead of a prior: the chain, or a finite set of chains of which each sequence follows one. Rows sum to 1.
    probs : array_like, (Z,), optional
        Probabilities of the chains; equal ones by default.
    start : float or "stationary"
        Probability that the first symbol is 1, or the stationary one of each chain (with ``transitions`` only).

    Raises
    ------
    ValueError
        An argument is out of range, or there are more counts than fit in memory; the message names it.

    Examples
    --------
    Entropy of the next symbol given the sequence, and the log loss of counting what followed the last symbol:

    >>> from icl_theory.engine.tokens.counts import TwoStateCounts, mean_loss
    >>> law = TwoStateCounts(100)
    >>> for predicted in (law.table.truth[:, 1], law.bigram(0.5), law.unigram(0.5)):
    ...     print(round(mean_loss(law.table, predicted, "log").value, 6))
    0.490184
    0.490533
    0.568779
    """

    T: int
    concentration: Array | float | None = None
    transitions: Array | None = None
    probs: Array | None = None
    start: float | str = 0.5

    queries = 2  # the last symbol
    values = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])  # the second symbol of each window

    def __post_init__(self) -> None:
        store(self, T=integer("T", self.T, minimum=2, maximum=EXACT))
        if self.transitions is None:
            self._check_prior()
        else:
            self._check_chains()
        Z = 1 if self.transitions is None else len(self.transitions)
        check_fits("T", self.T, 8.0 * float(self.T) ** 2 * (30 + 3 * Z))

    def _check_prior(self) -> None:
        if self.probs is not None:
            raise refuse("probs", self.probs, "left out without transitions")
        given = 1.0 if self.concentration is None else self.concentration
        found = real_array("concentration", given, np.ndim(given), LARGEST)
        if found.shape not in ((), (2, 2)) or (found <= 0).any():
            raise refuse("concentration", given, "a positive number, or four of shape (2, 2)")
        if isinstance(self.start, str):
            raise refuse("start", self.start, "the probability of the symbol 1; stationary needs transitions")
        store(self, concentration=np.broadcast_to(found, (2, 2)), start=self._given_start())

    def _check_chains(self) -> None:
        if self.concentration is not None:
            raise refuse("concentration", self.concentration, "left out with transitions")
        assert self.transitions is not None
        chains = _laws("transitions", self.transitions)
        if chains.shape[-2:] != (2, 2) or chains.ndim not in (2, 3):
            raise refuse("transitions", chains.shape, "of shape (2, 2) or (Z, 2, 2)")
        chains = chains.reshape(-1, 2, 2)
        probs = np.full(len(chains), 1.0 / len(chains)) if self.probs is None else _laws("probs", self.probs)
        if probs.shape != (len(chains),):
            raise refuse("probs", probs.shape, f"of shape ({len(chains)},), one for each chain")
        store(self, transitions=chains, probs=probs)
        if not isinstance(self.start, str):
            store(self, start=self._given_start())
        elif choice("start", self.start, ("stationary",)) and (chains[:, 0, 1] + chains[:, 1, 0] == 0).any():
            raise refuse(
                "transitions", "a chain that keeps its first symbol", "irreducible with start = 'stationary'"
            )

    def _given_start(self) -> float:
        return number("start", self.start, zero=True, maximum=1.0)

    @cached_property
    def table(self) -> Table:
        """All counts of positive probability."""
        first, last, counts = _windows(self.T)
        own, total = counts[:, [0, 3]], np.column_stack([counts[:, 0] + counts[:, 1], counts[:, 2] + counts[:, 3]])
        changes, shares = total - own, np.zeros(total.shape)
        # of the orders in which a state is left and kept, those that end with leaving it
        np.log(changes / np.maximum(total, 1.0), out=shares, where=(last[:, None] != [0, 1]) & (total > 0))
        log = shares.sum(axis=1)
        starts = _log(self._starts())
        if self.transitions is None:
            a = np.asarray(self.concentration)
            log = log + starts[0, first] + _beta_binomial(counts[:, :2], a[0]) + _beta_binomial(counts[:, 2:], a[1])
            ones = (counts[:, 1::2] + a[:, 1]) / (total + a.sum(axis=1))
            truth = ones[np.arange(len(last)), last]
        else:
            assert self.probs is not None
            chains, probs = self.transitions, self.probs
            middle = np.tensordot(probs, chains, 1)
            mean = np.repeat(total, 2, axis=1) * middle.ravel()
            log = log + (log_poisson(counts, mean).sum(axis=1) - log_poisson(total, total).sum(axis=1))
            ratio = _log_ratio(chains, middle).reshape(-1, 4)
            log, chain = _mixed(log, counts @ ratio.T + starts[:, first].T + _log(probs))
            truth = np.einsum("az,za->a", chain, chains[:, last, 1])
        there = np.exp(log) > 0.0
        both = np.column_stack([1.0 - truth, truth])
        return Table(counts[there], last[there], log[there], both[there])

    def _starts(self) -> Array:
        """Probabilities of the first symbol, (Z, 2)."""
        if not isinstance(self.start, str):
            Z = 1 if self.transitions is None else len(self.transitions)
            return np.tile([1.0 - self.start, self.start], (Z, 1))
        assert self.transitions is not None
        leave = self.transitions[:, [1, 0], [0, 1]]
        return leave / leave.sum(axis=1, keepdims=True)

    def unigram(self, smoothing: float = 1.0) -> Array:
        """Return (n₁ + c)/(T + 2c), n₁ the number of ones among the T symbols: a prediction of 1 for each row."""
        c, counts = number("smoothing", smoothing, zero=True), self.table.counts
        ones = counts[:, 1] + counts[:, 3] + (self.table.query - counts[:, 1] + counts[:, 2])  # x_1 at the end
        return np.asarray((ones + c) / (self.T + 2.0 * c))

    def bigram(self, smoothing: float = 1.0) -> Array:
        """Return (n_q1 + c)/(n_q + 2c), counts of what followed the last symbol q: a prediction of 1 for each row.

        It is Bayes-optimal if c is the concentration. Without smoothing it is ½ if q is new.
        """
        c = number("smoothing", smoothing, zero=True)
        pairs = self.table.counts.reshape(-1, 2, 2)[np.arange(len(self.table.query)), self.table.query]
        found = np.full(len(pairs), 0.5)
        np.divide(pairs[:, 1] + c, pairs.sum(axis=1) + 2.0 * c, out=found, where=pairs.sum(axis=1) + c > 0.0)
        return found

    def draw(self, rng: np.random.Generator, size: int) -> Drawn:
        """Draw a chain for each sequence, and its symbols one after the other."""
        if self.transitions is None:
            a = np.asarray(self.concentration)
            ones, chain = rng.beta(a[:, 1], a[:, 0], (size, 2)), np.zeros(size, dtype=np.intp)
        else:
            chain = rng.choice(len(self.transitions), size, p=self.probs)
            ones = self.transitions[chain, :, 1]
        symbols = np.empty((size, self.T + 1), dtype=np.intp)
        symbols[:, 0] = rng.random(size) < self._starts()[chain, 1]
        for i, draws in enumerate(rng.random((self.T, size))):
            symbols[:, i + 1] = draws < ones[np.arange(size), symbols[:, i]]
        kind = 2 * symbols[:, : self.T - 1] + symbols[:, 1 : self.T]
        return Drawn(kind, symbols[:, self.T - 1], symbols[:, self.T])


def _windows(T: int) -> tuple[Words, Words, Array]:
    """First and last symbol, (A,), and counts of 00, 01, 10, 11, (A, 4), of all sequences of T symbols."""
    parts = []
    for first, last in ((0, 0), (0, 1), (1, 0), (1, 1)):
        changes = np.arange(first != last, T, 2)  # of the symbol, in a sequence
        up = (changes + last - first) // 2
        kept = T - 1 - changes
        row = np.repeat(np.arange(len(changes)), kept + 1)
        n00 = np.arange(len(row)) - np.repeat(np.cumsum(kept + 1) - kept - 1, kept + 1)
        n01, n10, n11 = up[row], (changes - up)[row], kept[row] - n00
        # a state that is never met keeps no symbol
        real = ((n00 == 0) | (n01 + (last == 0) > 0)) & ((n11 == 0) | (n10 + (last == 1) > 0))
        rows = np.column_stack([n00, n01, n10, n11])[real]
        parts.append((np.full(len(rows), first), np.full(len(rows), last), rows))
    symbols, last_symbols, counts = (np.concatenate(part) for part in zip(*parts, strict=True))
    return symbols, last_symbols, counts.astype(np.float64)


def _beta_binomial(pairs: Array, a: Array) -> Array:
    r"""Log of :math:`\binom{n}{n_0} B(a_0 + n_0, a_1 + n_1)/B(a_0, a_1)` for pairs (n_0, n_1), (A, 2).

    It is a ratio of numbers Γ(n + a)/(Γ(a) n!), products of few factors, so that nothing large cancels.
    """
    i = np.arange(2.0, float(pairs.sum(axis=1).max(initial=0.0)) + 1.0)

    def rising(a: float) -> Array:
        return np.concatenate([[0.0], np.cumsum(np.concatenate([[math.log(a)], np.log1p((a - 1.0) / i)]))])

    n = pairs.astype(np.intp)
    return np.asarray(rising(a[0])[n[:, 0]] + rising(a[1])[n[:, 1]] - rising(a.sum())[n.sum(axis=1)])


class Expected(NamedTuple):
    """Mean of a loss, what it exceeds that of the Bayes-optimal prediction by, and derivatives of the mean."""

    value: float
    excess: float
    slopes: Array


def mean_loss(table: Table, predicted: ArrayLike, loss: str = "log") -> Expected:
    r"""Mean loss of a prediction for each row of a table, exactly.

    .. math:: -\ln o_y \quad\text{(log)}, \qquad \tfrac12 |o - e_y|^2 \quad\text{(square)}

    Parameters
    ----------
    table : Table
        The counts.
    predicted : array_like, (A, V) or (A,)
        Probabilities o of the labels; of label 1 if there are two.
    loss : {"log", "square"}
        The loss.

    Returns
    -------
    Expected
        Mean and excess, and the derivatives of the mean with respect to ``predicted``, of its shape: their product
        with the derivatives of the prediction is the gradient, ``slopes @ jacobian``. The log loss is infinite
        where a label has the probability 0 that may occur.

    Raises
    ------
    ValueError
        The prediction has another shape or is no probability.
    """
    choice("loss", loss, LOSSES[:2])
    A, V = table.truth.shape
    given = real_array("predicted", predicted, np.ndim(predicted))
    pair = given.shape == (A,) and V == 2
    both = np.column_stack([1.0 - given, given]) if pair else given
    if both.shape != (A, V):
        raise refuse("predicted", given.shape, f"of shape ({A}, {V})" + (f" or ({A},)" if V == 2 else ""))
    if (both < 0.0).any() or (np.abs(both.sum(axis=1) - 1.0) > 1e-6).any():
        raise refuse("predicted", predicted, "probabilities")
    p = table.probability
    with np.errstate(divide="ignore"):
        logs = np.log(both)
    excess = float(p @ _excess(loss, logs.T, both.T, table.truth.T))
    if loss == "log":
        with np.errstate(divide="ignore"):
            slopes = np.divide(-table.truth, both, out=np.zeros_like(both), where=table.truth > 0.0)
    else:
        slopes = both - table.truth
    slopes *= p[:, None]
    return Expected(_floor(loss, table) + excess, excess, slopes[:, 1] - slopes[:, 0] if pair else slopes)


@dataclass(frozen=True, eq=False)
class CountRisk(Risk):
    r"""The exact loss of softmax attention over tokens of few kinds, a function of their scores, (k, Q).

    .. math:: o = \frac{\sum_\kappa n_\kappa e^{s_{\kappa q}} v_\kappa + e^{s_{0q}} v_0}
        {\sum_\kappa n_\kappa e^{s_{\kappa q}} + e^{s_{0q}}}

    Parameters
    ----------
    law : CountLaw
        Law of the counts n, queries q and labels y.
    objective : {"log", "square", "logistic"}
        :math:`-\ln o_y`, :math:`\tfrac12 |o - e_y|^2`, or :math:`-\ln` of the softmax of ``scale`` times o at y.
    sink : array_like, (V,), optional
        Probabilities v₀ of the labels for a further token that is always there, whose scores are the last row. It
        plays the part of a prior: with v₀ the mean of a Beta prior attention can be Bayes-optimal.
    scale : float
        The factor of the logistic loss.

    Raises
    ------
    ValueError
        An argument is out of range. The log loss without a sink is, if a label may occur that no token stands for:
        it is infinite whatever the scores.

    References
    ----------
    docs/theory.md, "Few kinds of tokens".

    Examples
    --------
    An induction head on two states: attention on the windows that begin with the last symbol comes near the Bayes
    loss, and reaches it with a sink of weight 2:

    >>> import numpy as np
    >>> from icl_theory.engine.tokens.counts import CountRisk, TwoStateCounts
    >>> risk = CountRisk(TwoStateCounts(100), "log", sink=[0.5, 0.5])
    >>> match = np.array([[0, -1], [0, -1], [-1, 0], [-1, 0]])
    >>> for b in (0.0, 3.0, 12.0):
    ...     print(f"{risk.excess(np.vstack([b * match, 2 * [np.log(2.0)]])):.2g}")
    0.078
    0.002
    6.3e-11
    """

    law: CountLaw
    objective: str = "log"
    sink: ArrayLike | None = None
    scale: float = 1.0

    def __post_init__(self) -> None:
        instance("law", self.law, CountLaw, "a law of counts, as IndependentCounts or TwoStateCounts")
        choice("objective", self.objective, LOSSES)
        store(self, scale=number("scale", self.scale))
        table, seen = self.law.table, self.law.table.counts @ self.law.values
        if self.sink is not None:
            sink = _laws("sink", self.sink)
            if sink.shape != table.truth.shape[1:]:
                raise refuse("sink", self.sink, f"{table.truth.shape[1]} probabilities, one for each label")
            store(self, sink=sink)
            seen = seen + sink
        if self.objective == "log" and ((seen == 0.0) & (table.truth > 0.0)).any():
            raise refuse(
                "sink", self.sink, "positive for each label: what no token stands for has infinite log loss"
            )
        check_fits("law", "its table", 8.0 * table.counts.size * 3)

    @property
    def initial(self) -> Array:
        """Zero scores, (k, Q), or (k + 1, Q) with a sink."""
        return np.zeros((len(self._log_values), self.law.queries))

    @cached_property
    def _log_values(self) -> Array:
        """Logarithms of what tokens stand for, (k, V), -inf for 0."""
        values = self.law.values if self.sink is None else np.vstack([self.law.values, self.sink])
        with np.errstate(divide="ignore"):
            return np.log(values)

    @cached_property
    def _parts(self) -> list[_Part]:
        """The rows of the table by query, in parts that stay in the cache."""
        table, found = self.law.table, []
        with np.errstate(divide="ignore"):
            log_counts = np.log(table.counts)
        if self.sink is not None:
            log_counts = np.column_stack([log_counts, np.zeros(len(log_counts))])
        for query in range(self.law.queries):
            rows = np.flatnonzero(table.query == query)
            for some in np.array_split(rows, 1 + len(rows) // BLOCK):
                each = (log_counts[some].T, table.truth[some].T)
                found.append(_Part(query, table.probability[some], *map(np.ascontiguousarray, each)))
        return found

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient in the scores, of their shape."""
        found = self._moments(params)
        return self.floor() + found.excess, found.gradient

    def floor(self) -> float:
        """Loss of the Bayes-optimal prediction."""
        return self._floor

    @cached_property
    def _floor(self) -> float:
        return _floor(self.objective, self.law.table)

    def excess(self, params: ArrayLike) -> float:
        """Loss above the Bayes-optimal prediction's, without cancellation."""
        return self._moments(self._checked(params)).excess

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Excess over the floor, and each query's mean attention on all tokens of a kind, (k, Q)."""
        found = self._moments(params)
        return {"excess": np.asarray(found.excess), "attention": found.attention}

    def sampled(self, batch: int, seed: int = 0) -> SampledCounts:
        """Return the same model on prompts drawn token by token, ``batch`` at a step, which shares no formula."""
        return SampledCounts(self, batch, seed)

    def _moments(self, scores: Array) -> _Moments:
        excess, gradient, attention = 0.0, np.zeros(scores.shape), np.zeros(scores.shape)
        asked = np.zeros(scores.shape[1])
        log_values = self._log_values.T[:, :, None]
        for query, p, log_counts, truth in self._parts:
            log_w = (log_counts + scores[:, query, None]) + log_values  # (V, k, n)
            top = np.maximum(log_w.max(axis=1, keepdims=True), -LARGEST)
            weight = np.exp(log_w - top)  # of the kinds for each label
            total = weight.sum(axis=1)
            with np.errstate(divide="ignore"):
                log_o = top[:, 0] + np.log(total)
            weight /= np.where(total > 0.0, total, 1.0)[:, None]
            log_o -= np.logaddexp.reduce(log_o, axis=0)
            o = np.exp(log_o)
            lost, slope = self._loss(log_o, o, truth)
            excess += float(p @ lost)
            # d ln o_v / d score = weight_v - Σ_u o_u weight_u
            gradient[:, query] += np.einsum("vn,vkn->k", p * (slope - o * slope.sum(axis=0)), weight)
            attention[:, query] += np.einsum("vn,vkn->k", p * o, weight)
            asked[query] += p.sum()
        return _Moments(excess, gradient, attention / np.where(asked > 0.0, asked, 1.0))

    def _loss(self, log_o: Array, o: Array, truth: Array) -> tuple[Array, Array]:
        """Excess of each row, (n,), and its derivatives by ln o, (V, n)."""
        if self.objective == "log":
            return _excess("log", log_o, o, truth), -truth
        if self.objective == "square":
            return _excess("square", log_o, o, truth), (o - truth) * o
        log_q = self.scale * o
        log_q -= np.logaddexp.reduce(log_q, axis=0)
        q = np.exp(log_q)
        return _excess("log", log_q, q, truth), self.scale * o * (q - truth)


class _Part(NamedTuple):
    query: int
    probability: Array  # (n,)
    log_counts: Array  # (k, n)
    truth: Array  # (V, n)


class _Moments(NamedTuple):
    excess: float
    gradient: Array  # (k, Q)
    attention: Array  # (k, Q)


class SampledCounts(Risk):
    """Mean loss of softmax attention over a drawn batch; those of a step are a function of seed and step."""

    def __init__(self, exact: CountRisk, batch: int, seed: int = 0) -> None:
        self.exact = exact
        self.batch, self.seed = integer("batch", batch, minimum=1), integer("seed", seed, minimum=0)
        tokens = float(exact.law.table.counts[0].sum()) + 1.0
        check_fits("batch", batch, 8.0 * batch * tokens * (6.0 + exact.law.values.shape[1]))

    @property
    def initial(self) -> Array:
        """Zero scores, as the exact risk has them."""
        return self.exact.initial

    @property
    def stochastic(self) -> bool:
        """Steps draw different prompts."""
        return True

    def prompts(self, step: int = 0) -> Drawn:
        """Return the prompts of one step."""
        rng = np.random.default_rng([self.seed, integer("step", step, minimum=0)])
        return self.exact.law.draw(rng, self.batch)

    def losses(self, params: Array, step: int = 0) -> Array:
        """Return the losses of the step's prompts, (B,)."""
        return self._pass(params, self.prompts(step))[0]

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Mean loss of the step's prompts and its gradient, by the backward pass."""
        losses, place, back = self._pass(params, self.prompts(step))
        gradient = np.bincount(place.ravel(), weights=back.ravel(), minlength=params.size) / self.batch
        return float(losses.mean()), gradient.reshape(params.shape)

    def _pass(self, params: Array, prompts: Drawn) -> tuple[Array, Words, Array]:
        """Losses, (B,), and for each token the place of its score and the derivative by it, (B, N)."""
        exact, kind, values = self.exact, prompts.kind, self.exact.law.values
        if exact.sink is not None:
            kind = np.column_stack([kind, np.full(len(kind), len(values))])
            values = np.vstack([values, exact.sink])
        place = kind * params.shape[1] + prompts.query[:, None]
        scores = params.ravel()[place]
        weight = np.exp(scores - scores.max(axis=1, keepdims=True))
        weight /= weight.sum(axis=1, keepdims=True)
        v, rows = values[kind], np.arange(len(kind))
        o = np.einsum("bn,bnv->bv", weight, v)
        right = np.zeros(o.shape)
        right[rows, prompts.target] = 1.0
        if exact.objective == "square":
            losses, slope = 0.5 * np.sum((o - right) ** 2, axis=1), o - right
        elif exact.objective == "log":
            losses, slope = -np.log(o[rows, prompts.target]), -right / np.where(right > 0.0, o, 1.0)
        else:
            logits = exact.scale * o
            q = np.exp(logits - logits.max(axis=1, keepdims=True))
            q /= q.sum(axis=1, keepdims=True)
            losses, slope = -np.log(q[rows, prompts.target]), exact.scale * (q - right)
        back = weight * (np.einsum("bnv,bv->bn", v, slope) - np.einsum("bv,bv->b", o, slope)[:, None])
        return losses, place, back


def _excess(loss: str, log_q: Array, q: Array, truth: Array) -> Array:
    """Mean loss of the prediction q given the truth, above that of the truth itself; labels are the first axis.

    With q = t e^d the log loss has t (e^d - 1 - d) on top for each label: nothing cancels where d is small.
    """
    if loss == "square":
        return 0.5 * np.sum((q - truth) ** 2, axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        d = np.where(truth > 0.0, log_q - np.log(truth), 0.0)
    near = np.abs(d) < 0.1
    small = np.where(near, d, 0.0)
    series = truth * small**2 * np.polyval([1.0 / math.factorial(k) for k in range(11, 1, -1)], small)
    return np.sum(np.where(near & (truth > 0.0), series, q - truth - truth * d), axis=0)


def _floor(loss: str, table: Table) -> float:
    from scipy.special import entr

    t = table.truth
    return float(table.mean((0.5 * t * (1.0 - t) if loss == "square" else entr(t)).sum(axis=1)))


def _mixed(log: Array, given: Array) -> tuple[Array, Array]:
    """Log-probability of rows, (A,), and what they say of the tasks, (A, Z), from log-ratios to a middle law."""
    top = given.max(axis=1)
    share = np.exp(given - top[:, None])
    total = share.sum(axis=1)
    return log + top + np.log(total), share / total[:, None]


def _laws(name: str, value: ArrayLike, slack: float = 1e-6) -> Array:
    """Return probabilities, of which each row sums to 1 (to ``slack``, then normalised)."""
    found = real_array(name, value, max(np.ndim(value), 1))  # type: ignore[arg-type]
    total = found.sum(axis=-1, keepdims=True)
    if not found.size or (found < 0.0).any() or (np.abs(total - 1.0) > slack).any():
        raise refuse(name, value, "probabilities >= 0 that sum to 1" + " in each row" * (found.ndim > 1))
    return np.asarray(found / total)


def _log(p: Array) -> Array:
    return np.log(p, out=np.full(np.shape(p), NEVER), where=np.asarray(p) > 0.0)


def _log_ratio(p: Array, middle: Array) -> Array:
    """Return ln(p/middle), accurate also where it is small, as it is multiplied by counts."""
    gap = np.divide(p - middle, middle, out=np.zeros(p.shape), where=middle > 0.0)
    return np.log1p(gap, out=np.full(p.shape, NEVER), where=p > 0.0)


def _chosen(draws: Array, cumulated: Array) -> Words:
    """Indices of the intervals in which uniform numbers fall, of the shape of ``draws``."""
    return np.asarray((draws[..., None] >= cumulated[..., :-1]).sum(axis=-1), dtype=np.intp)
