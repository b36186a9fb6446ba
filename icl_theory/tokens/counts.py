"""Laws of the numbers of tokens of few kinds, as tables of all counts: what `CountRisk` takes the mean over.

`IndependentCounts` has those of independent tokens, `TwoStateCounts` those of the
windows of two symbols in a Markov chain. See docs/theory.md, "Few kinds of tokens" and
"Two states".
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import (
    EXACT,
    LARGEST,
    Array,
    argument_error,
    choice,
    dimensions,
    distributions,
    flag,
    fraction,
    integer,
    number,
    plain_numbers,
    real_array,
    set_fields,
)
from icl_theory.memory import check_fits
from icl_theory.tokens.labels import log_poisson
from icl_theory.tokens.sampled import Indices, chosen, prompts_to_draw, softmax

NEVER = -1e300  # log of the probability 0; times a count of 0 it is 0


class Table(NamedTuple):
    """All counts that may occur, one a row, with what is known of them."""

    counts: Array  # tokens of each kind, (A, k)
    query: Indices  # which query asks, (A,)
    probability: Array  # of counts and query together, (A,); they sum to 1
    # probabilities of the labels given counts and query: the Bayes-optimal prediction,
    # (A, V)
    truth: Array

    def mean(self, values: ArrayLike) -> Array:
        """Return the mean of numbers that each row has, (A, ...): the exact expectation of any loss."""
        rows = plain_numbers("values", values, -math.inf)
        if rows.shape[:1] != self.probability.shape:
            raise argument_error(
                "values",
                rows.shape,
                f"with {len(self.probability)} rows, one for each row of the table",
            )
        return np.tensordot(self.probability, rows, 1)


class Drawn(NamedTuple):
    """A batch of B prompts of N tokens."""

    kind: Indices  # (B, N)
    query: Indices  # (B,)
    target: Indices  # (B,)


class CountLaw(ABC):
    """A law of prompts whose tokens are of few kinds, with as many scores for each query."""

    # probabilities of the labels that a token of each kind stands for, (k, V)
    values: Array
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
        An argument is out of range, or there are more counts than fit in memory; the
        message names it.

    Examples
    --------
    >>> from icl_theory.tokens.counts import IndependentCounts
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
        probs = np.atleast_2d(distributions("probs", self.probs))
        targets = np.atleast_2d(distributions("targets", self.targets))
        values = distributions("values", self.values)
        Z, k = probs.shape
        if values.ndim != 2 or len(values) != k:
            raise argument_error(
                "values",
                values.shape,
                f"of shape (k, V) with k = {k}, one row for each kind",
            )
        if len(targets) not in (1, Z) or targets.shape[1] != values.shape[1]:
            raise argument_error(
                "targets",
                targets.shape,
                f"of shape (V,) or ({Z}, V) with V = {values.shape[1]}",
            )
        weights = _shares("weights", self.weights, Z)
        set_fields(
            self,
            N=integer("N", self.N, minimum=1, maximum=EXACT),
            rare=fraction("rare", self.rare),
        )
        set_fields(self, probs=probs, values=values, weights=weights)
        set_fields(self, targets=np.broadcast_to(targets, (Z, values.shape[1])))

    @cached_property
    def table(self) -> Table:
        """All counts of at least the probability ``rare``."""
        assert self.weights is not None
        probs, weights = self.probs, self.weights
        middle = weights @ probs
        counts = self._compositions()
        log = log_poisson(counts, self.N * middle).sum(axis=1) - log_poisson(
            self.N, self.N
        )
        task, mixed = softmax(counts @ _log_ratio(probs, middle).T + _log(weights))
        log += mixed
        often = log >= math.log(self.rare)
        query = np.zeros(often.sum(), dtype=np.intp)
        return Table(
            counts[often], query, np.exp(log[often]), task[often] @ self.targets
        )

    def _compositions(self) -> Array:
        """All ways to share N tokens among the kinds, with numbers that are probable for each kind by itself."""
        check_fits("N", self.N, 100.0 * self.N)
        n = np.arange(self.N + 1.0)
        counts = np.zeros((1, 0))
        left = np.full(1, self.N)
        whole = log_poisson(self.N, self.N)
        for p in self.probs.T[:-1]:
            ends = np.array([[p.min()], [p.max()]])
            log = (
                log_poisson(n, self.N * ends)
                + log_poisson(self.N - n, self.N * (1.0 - ends))
                - whole
            )
            likely = np.flatnonzero((log >= math.log(self.rare)).any(axis=0))
            first = int(likely[0])
            last = np.minimum(int(likely[-1]), left)
            sizes = np.maximum(last - first + 1, 0)
            rows = float(sizes.sum(dtype=float))
            check_fits(
                "N", self.N, 8.0 * rows * (4 * len(self.probs.T) + 3 * len(self.probs))
            )
            row = np.repeat(np.arange(len(sizes)), sizes)
            taken = (
                first + np.arange(len(row)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
            )
            counts = np.column_stack([counts[row], taken])
            left = left[row] - taken
        return np.column_stack([counts, left])

    def draw(self, rng: np.random.Generator, size: int) -> Drawn:
        """Draw the task of each prompt, its tokens, and its label."""
        size = prompts_to_draw(rng, size, 2.0 * self.N * len(self.values))
        task = rng.choice(len(self.probs), size, p=self.weights)
        kinds, labels = (
            np.cumsum(each, axis=1)[task] for each in (self.probs, self.targets)
        )
        kind = chosen(rng.random((size, self.N)), kinds[:, None])
        return Drawn(
            kind, np.zeros(size, dtype=np.intp), chosen(rng.random(size), labels)
        )


def fair_labels(features: int, N: int, rare: float = 1e-30) -> IndependentCounts:
    r"""Return the law of in-context classification: K features with fair labels, and N tokens of random features.

    Kinds are tokens with the query's feature, which have its label; others with the
    same label; and others with the other label. Label 0 is the right one. With j of the
    K - 1 other features sharing the label, tokens have the probabilities 1/K, j/K and
    (K - 1 - j)/K, and j is binomial. No term is negative, so that there is no
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

    >>> from icl_theory.tokens.counted import CountRisk
    >>> from icl_theory.tokens.counts import fair_labels
    >>> for N in (10, 40):
    ...     risk = CountRisk(fair_labels(5, N), "logistic", scale=8.0)
    ...     print(round(risk.loss([[2.0], [0.0], [0.0]]), 4))
    0.2729
    0.0383
    """
    K = integer("features", features, minimum=2, maximum=EXACT)
    rare = fraction("rare", rare)
    reach = math.sqrt(0.5 * (K - 1) * -math.log(rare)) + 1.0  # Hoeffding's bound
    check_fits("features", features, 400.0 * reach)
    j = np.arange(
        max(0, math.ceil(0.5 * (K - 1) - reach)),
        min(K - 1, math.floor(0.5 * (K - 1) + reach)) + 1.0,
    )
    half = 0.5 * (K - 1)
    weights = np.exp(
        log_poisson(j, half) + log_poisson(K - 1 - j, half) - log_poisson(K - 1, K - 1)
    )
    probs = np.column_stack([np.ones(len(j)), j, K - 1 - j]) / K
    values = [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    return IndependentCounts(
        N, probs, np.array(values), np.array([1.0, 0.0]), weights / weights.sum(), rare
    )


@dataclass(frozen=True, eq=False)
class TwoStateCounts(CountLaw):
    r"""Counts of the windows of two symbols in T symbols of a two-state Markov chain.

    There are T - 1 windows (x_{i-1}, x_i), i = 2, ..., T, of the kinds 00, 01, 10, 11.
    The query is the last symbol x_T, a token stands for the second symbol of its
    window, and the label is x_{T+1}. With ``first`` the symbol x_1 is a token, too, of
    one of two more kinds, 0 and 1. With n_s the windows that begin with s and c_s those
    of them that change, the counts have the probability

    .. math:: P(x_1) \prod_{s = 0, 1} P(c_s \mid n_s) \times \begin{cases} 1 & x_T = s \text{ or } n_s = 0 \\
        c_s/n_s & \text{else,}\end{cases}

    where P(c | n) is beta-binomial if row s has a Beta prior, and binomial for a known
    chain. The first symbol is x_1 = x_T - n_01 + n_10.

    Parameters
    ----------
    T : int
        Number of symbols, at least 2. The table has about T² rows.
    concentration : array_like, () or (2, 2), optional
        Row s is the Beta (Dirichlet) prior of row s of the chain, positive and finite.
        The default is 1, the uniform prior. Large ones cost digits: probabilities are
        off by about 1e-16 times T ln(concentration).
    transitions : array_like, (2, 2) or (Z, 2, 2), optional
        Instead of a prior: the chain, or a finite set of chains of which each sequence
        follows one. Rows sum to 1.
    probs : array_like, (Z,), optional
        Probabilities of the chains; equal ones by default.
    start : float or "stationary"
        Probability that the first symbol is 1, or the stationary one of each chain
        (with ``transitions`` only).
    first : bool
        Whether x_1 is a token.

    Raises
    ------
    ValueError
        An argument is out of range, or there are more counts than fit in memory; the
        message names it.

    Examples
    --------
    Entropy of the next symbol given the sequence, and the log loss of saying ½:

    >>> from icl_theory.tokens.counted import mean_loss
    >>> from icl_theory.tokens.counts import TwoStateCounts
    >>> table = TwoStateCounts(100).table
    >>> for predicted in (table.truth, 0.0 * table.truth + 0.5):
    ...     print(round(mean_loss(table, predicted, "log").value, 6))
    0.490184
    0.693147
    """

    T: int
    concentration: Array | float | None = None
    transitions: Array | None = None
    probs: Array | None = None
    start: float | str = 0.5
    first: bool = False

    queries = 2  # the last symbol

    def __post_init__(self) -> None:
        set_fields(self, T=integer("T", self.T, minimum=2, maximum=EXACT))
        # what a token stands for: the second symbol of its window, or x_1
        set_fields(self, values=np.tile(np.eye(2), (2 + flag("first", self.first), 1)))
        known = self.transitions is not None
        wanted = self.transitions
        without = "concentration" if known else "probs"
        if getattr(self, without) is not None:
            raise argument_error(
                without,
                getattr(self, without),
                f"left out {'with' if known else 'without'} transitions",
            )
        if known:
            chains = distributions("transitions", wanted)  # type: ignore[arg-type]
            if chains.shape[-2:] != (2, 2) or chains.ndim not in (2, 3):
                raise argument_error(
                    "transitions", chains.shape, "of shape (2, 2) or (Z, 2, 2)"
                )
            chains = chains.reshape(-1, 2, 2)
            set_fields(
                self,
                transitions=chains,
                probs=_shares("probs", self.probs, len(chains)),
            )
        else:
            given = 1.0 if self.concentration is None else self.concentration
            found = real_array("concentration", given, dimensions(given), LARGEST)
            if found.shape not in ((), (2, 2)) or (found <= 0).any():
                raise argument_error(
                    "concentration", given, "a positive number, or four of shape (2, 2)"
                )
            set_fields(self, concentration=np.broadcast_to(found, (2, 2)))
        if not isinstance(self.start, str):
            set_fields(self, start=number("start", self.start, zero=True, maximum=1.0))
        elif not known:
            raise argument_error(
                "start",
                self.start,
                "the probability of the symbol 1; stationary needs transitions",
            )
        elif (
            choice("start", self.start, ("stationary",))
            and (chains[:, 0, 1] + chains[:, 1, 0] == 0).any()
        ):
            raise argument_error(
                "transitions",
                wanted,
                "without a chain that never changes, if the start is stationary",
            )
        check_fits(
            "T",
            self.T,
            8.0 * float(self.T) ** 2 * (30 + 3 * (len(chains) if known else 1)),
        )

    @cached_property
    def table(self) -> Table:
        """All counts of positive probability."""
        first, last, counts = _windows(self.T)
        own = counts[:, [0, 3]]
        total = np.column_stack(
            [counts[:, 0] + counts[:, 1], counts[:, 2] + counts[:, 3]]
        )
        changes = total - own
        shares = np.zeros(total.shape)
        # of the orders in which a state is left and kept, those that end with leaving
        # it
        np.log(
            changes / np.maximum(total, 1.0),
            out=shares,
            where=(last[:, None] != [0, 1]) & (total > 0),
        )
        log = shares.sum(axis=1)
        starts = _log(self._starts())
        if self.transitions is None:
            a = np.asarray(self.concentration)
            log = (
                log
                + starts[0, first]
                + _beta_binomial(counts[:, :2], a[0])
                + _beta_binomial(counts[:, 2:], a[1])
            )
            ones = (counts[:, 1::2] + a[:, 1]) / (total + a.sum(axis=1))
            truth = ones[np.arange(len(last)), last]
        else:
            assert self.probs is not None
            chains, probs = self.transitions, self.probs
            middle = np.tensordot(probs, chains, 1)
            mean = np.repeat(total, 2, axis=1) * middle.ravel()
            log = log + (
                log_poisson(counts, mean).sum(axis=1)
                - log_poisson(total, total).sum(axis=1)
            )
            ratio = _log_ratio(chains, middle).reshape(-1, 4)
            chain, mixed = softmax(counts @ ratio.T + starts[:, first].T + _log(probs))
            log += mixed
            truth = np.einsum("az,za->a", chain, chains[:, last, 1])
        probability = np.exp(log)
        there = probability > 0.0
        both = np.column_stack([1.0 - truth, truth])
        if self.first:
            counts = np.column_stack([counts, first == 0, first == 1])
        return Table(counts[there], last[there], probability[there], both[there])

    def _starts(self) -> Array:
        """Probabilities of the first symbol, (Z, 2)."""
        if not isinstance(self.start, str):
            laws = 1 if self.transitions is None else len(self.transitions)
            return np.tile([1.0 - self.start, self.start], (laws, 1))
        assert self.transitions is not None
        leave = self.transitions[:, [1, 0], [0, 1]]
        return leave / leave.sum(axis=1, keepdims=True)

    def draw(self, rng: np.random.Generator, size: int) -> Drawn:
        """Draw a chain for each sequence, and its symbols one after the other."""
        size = prompts_to_draw(rng, size, 4.0 * self.T)
        if self.transitions is None:
            a = np.asarray(self.concentration)
            ones = rng.beta(a[:, 1], a[:, 0], (size, 2))
            chain = np.zeros(size, dtype=np.intp)
        else:
            chain = rng.choice(len(self.transitions), size, p=self.probs)
            ones = self.transitions[chain, :, 1]
        symbols = np.empty((size, self.T + 1), dtype=np.intp)
        symbols[:, 0] = rng.random(size) < self._starts()[chain, 1]
        for i, draws in enumerate(rng.random((self.T, size))):
            symbols[:, i + 1] = draws < ones[np.arange(size), symbols[:, i]]
        kind = 2 * symbols[:, : self.T - 1] + symbols[:, 1 : self.T]
        if self.first:
            kind = np.column_stack([4 + symbols[:, 0], kind])
        return Drawn(kind, symbols[:, self.T - 1], symbols[:, self.T])


def _windows(T: int) -> tuple[Indices, Indices, Array]:
    """First and last symbol, (A,), and counts of 00, 01, 10, 11, (A, 4), of all sequences of T symbols."""
    # first, last, changes of the symbol, and 00
    every = np.indices((2, 2, T, T)).reshape(4, -1)
    every = every[
        :, (every[2] % 2 == (every[0] != every[1])) & (every[2] + every[3] < T)
    ]
    first, last, changes, n00 = every
    n01 = (changes + last - first) // 2
    n10 = changes - n01
    n11 = T - 1 - changes - n00
    # a state that is never met keeps no symbol
    real = ((n00 == 0) | (n01 + (last == 0) > 0)) & (
        (n11 == 0) | (n10 + (last == 1) > 0)
    )
    return (
        first[real],
        last[real],
        np.column_stack([n00, n01, n10, n11])[real].astype(np.float64),
    )


def _beta_binomial(pairs: Array, a: Array) -> Array:
    r"""Log of :math:`\binom{n}{n_0} B(a_0 + n_0, a_1 + n_1)/B(a_0, a_1)` for pairs (n_0, n_1), (A, 2).

    It is a ratio of numbers Γ(n + a)/(Γ(a) n!), products of few factors, so that
    nothing large cancels.
    """
    i = np.arange(2.0, float(pairs.sum(axis=1).max(initial=0.0)) + 1.0)

    def rising(a: float) -> Array:
        return np.concatenate(
            [[0.0], np.cumsum(np.concatenate([[math.log(a)], np.log1p((a - 1.0) / i)]))]
        )

    n = pairs.astype(np.intp)
    return np.asarray(
        rising(a[0])[n[:, 0]] + rising(a[1])[n[:, 1]] - rising(a.sum())[n.sum(axis=1)]
    )


def _shares(name: str, value: ArrayLike | None, size: int) -> Array:
    """Return the probabilities of tasks or chains; equal ones by default."""
    found = np.full(size, 1.0 / size) if value is None else distributions(name, value)
    if found.shape != (size,):
        raise argument_error(name, found.shape, f"of shape ({size},)")
    return found


def _log(p: Array) -> Array:
    return np.log(p, out=np.full(np.shape(p), NEVER), where=np.asarray(p) > 0.0)


def _log_ratio(p: Array, middle: Array) -> Array:
    """Return ln(p/middle), accurate also where it is small, as it is multiplied by counts."""
    gap = np.divide(p - middle, middle, out=np.zeros(p.shape), where=middle > 0.0)
    near = gap > -0.999  # beyond, p itself is what is left of 1 + gap
    found = np.log1p(gap, out=np.full(p.shape, NEVER), where=near & (p > 0.0))
    return np.where(
        near | (p == 0.0), found, _log(p) - _log(np.broadcast_to(middle, p.shape))
    )
