"""Laws of prompts whose tokens are of few kinds, as tables of all counts.

The *counts* of a prompt are its numbers of tokens of each kind. `CountRisk` takes the
mean of a loss over a table of all counts. There are two laws. In `IndependentCounts`
the tokens are independent. In `TwoStateCounts` they are the pairs of successive symbols
in a Markov chain. See docs/theory.md, "Few kinds of tokens" and "Two states".

In the shapes below, A is the number of rows of the table, k the number of kinds, V the
number of labels and Z the number of tasks or chains.
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
from icl_theory.engine.sampling import prompts_to_draw
from icl_theory.memory import check_fits
from icl_theory.tokens.labels import log_poisson
from icl_theory.tokens.sampled import Indices, chosen, softmax

# Stands for the log of the probability 0. A count of 0 times this is 0, while 0 times
# -inf is NaN.
LOG_NEVER = -1e300
# For a probability p and its mean p̄ over tasks or chains, ln(p/p̄) is computed from the
# relative gap p/p̄ - 1 if the gap is above this. Nearer to -1, the sum 1 + gap has lost
# three digits or more, and ln p - ln p̄ is more exact. The limit is not sharp: near it
# both ways keep nearly all digits.
LOWEST_GAP = -0.999


class Table(NamedTuple):
    """All possible pairs of counts and a query, one pair in each row."""

    counts: Array  # number of tokens of each kind, (A, k)
    query: Indices  # number of the query, (A,)
    probability: Array  # joint probability of the counts and the query, (A,)
    # Probabilities of the labels, given the counts and the query, (A, V). This is the
    # Bayes-optimal prediction.
    truth: Array

    def mean(self, values: ArrayLike) -> Array:
        """Return the mean of ``values``, (A, ...), over the rows of the table.

        If the values are losses, this is the exact expected loss.
        """
        checked = plain_numbers("values", values, -math.inf)
        if checked.shape[:1] != self.probability.shape:
            raise argument_error(
                "values",
                checked.shape,
                f"with {len(self.probability)} rows, one for each row of the table",
            )
        return np.tensordot(self.probability, checked, 1)


class Drawn(NamedTuple):
    """A batch of B prompts of N tokens."""

    kind: Indices  # the kind of each token, (B, N)
    query: Indices  # the number of the query, (B,)
    target: Indices  # the right label, (B,)


class CountLaw(ABC):
    """A law of prompts whose tokens are of few kinds.

    Attention has a score for each kind and query.
    """

    # A token of kind κ stands for a random label. Row κ has the label's probabilities,
    # (k, V).
    values: Array
    # Number of queries.
    queries: int = 1

    @property
    @abstractmethod
    def table(self) -> Table:
        """All counts that may occur, with their probabilities."""

    @abstractmethod
    def draw(self, rng: np.random.Generator, size: int) -> Drawn:
        """Draw ``size`` prompts token by token."""


@dataclass(frozen=True, eq=False)
class IndependentCounts(CountLaw):
    r"""Counts of N tokens of k kinds; the tokens are independent given the task.

    The task z of a prompt is one of Z tasks, and has the probability w_z. Under this
    task, a token is of kind κ with the probability p_zκ. So the counts n have the law

    .. math:: P(n) = \sum_z w_z \frac{N!}{n_1! \cdots n_k!}
        \prod_\kappa p_{z\kappa}^{n_\kappa}

    Parameters
    ----------
    N : int
        Number of tokens.
    probs : array_like, (k,) or (Z, k)
        Probabilities of the kinds under each task.
    values : array_like, (k, V)
        A token stands for a random label. Row κ has the probabilities of this label for
        a token of kind κ.
    targets : array_like, (V,) or (Z, V)
        Probabilities of the right label under each task.
    weights : array_like, (Z,), optional
        Probabilities of the tasks. By default all tasks are equally probable.
    rare : float
        Counts with a smaller probability are left out of the table. The default is far
        below rounding.

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
        weights = _probabilities("weights", self.weights, Z)
        set_fields(
            self,
            N=integer("N", self.N, minimum=1, maximum=EXACT),
            rare=fraction("rare", self.rare),
        )
        set_fields(self, probs=probs, values=values, weights=weights)
        set_fields(self, targets=np.broadcast_to(targets, (Z, values.shape[1])))

    @cached_property
    def table(self) -> Table:
        """All counts whose probability is at least ``rare``."""
        assert self.weights is not None  # set by `__post_init__`
        # P(n) = multinomial probability under the mean law p̄
        #        times Σ_z w_z Π_κ (p_zκ/p̄_κ)^n_κ
        mean_law = self.weights @ self.probs
        counts = self._compositions()
        # Poisson numbers with a given sum are multinomial. `log_poisson` takes a number
        # and its mean.
        log_prob = log_poisson(counts, self.N * mean_law).sum(axis=1)
        log_prob -= log_poisson(self.N, self.N)
        log_ratio = counts @ _log_ratio(self.probs, mean_law).T
        # The softmax over the tasks is Bayes' formula for the probability of a task
        # given the counts. The log of its denominator is the log of the sum over z.
        prob_of_task, log_mixture = softmax(log_ratio + _log(self.weights))
        log_prob += log_mixture
        is_likely = log_prob >= math.log(self.rare)
        return Table(
            counts=counts[is_likely],
            query=np.zeros(is_likely.sum(), dtype=np.intp),
            probability=np.exp(log_prob[is_likely]),
            truth=prob_of_task[is_likely] @ self.targets,
        )

    def _compositions(self) -> Array:
        """Return the ways to share N tokens among the kinds, a row for each way.

        Counts are left out if the number of tokens of one of the kinds, other than the
        last, is rarer than ``rare`` by itself. The last kind gets all tokens that
        remain.
        """
        # `_likely_numbers` needs about a dozen arrays of N numbers, of 8 bytes each.
        check_fits("N", self.N, 100.0 * self.N)
        Z, k = self.probs.shape
        counts = np.zeros((1, 0))
        remaining = np.full(1, self.N)
        for probs_of_kind in self.probs.T[:-1]:
            lowest, highest = self._likely_numbers(probs_of_kind)
            # Each row is repeated, once for each number of tokens of this kind: from
            # ``lowest`` to ``highest``, but at most the number of tokens that remain.
            repeats = np.maximum(np.minimum(highest, remaining) - lowest + 1, 0)
            new_rows = float(repeats.sum(dtype=float))
            # An estimate, in bytes: a row has k counts in about 4 arrays, and Z numbers
            # in about 3 arrays of `table`.
            check_fits("N", self.N, 8.0 * new_rows * (4 * k + 3 * Z))
            # For each new row, the old row that it repeats, and the new row at which
            # the repetitions of this old row begin.
            old_row = np.repeat(np.arange(len(repeats)), repeats)
            first_new_row = np.repeat(np.cumsum(repeats) - repeats, repeats)
            tokens_of_kind = lowest + np.arange(len(old_row)) - first_new_row
            counts = np.column_stack([counts[old_row], tokens_of_kind])
            remaining = remaining[old_row] - tokens_of_kind
        return np.column_stack([counts, remaining])

    def _likely_numbers(self, probs: Array) -> tuple[int, int]:
        """Return the least and the largest likely number of tokens of a kind.

        A number outside this range is rarer than ``rare`` under every task. The kind
        has the probabilities ``probs`` under the tasks.
        """
        n = np.arange(self.N + 1.0)
        # The smallest likely number is found under the task in which the kind is least
        # probable, and the largest likely number under the task in which it is most
        # probable. So the other tasks need not be searched.
        extremes = np.array([[probs.min()], [probs.max()]])
        # The binomial law of n, as a ratio of Poisson probabilities, (2, N + 1).
        log_prob = log_poisson(n, self.N * extremes)
        log_prob = log_prob + log_poisson(self.N - n, self.N * (1.0 - extremes))
        log_prob = log_prob - log_poisson(self.N, self.N)
        likely = np.flatnonzero((log_prob >= math.log(self.rare)).any(axis=0))
        return int(likely[0]), int(likely[-1])

    def draw(self, rng: np.random.Generator, size: int) -> Drawn:
        """Draw the task of each of ``size`` prompts, its tokens, and its label."""
        # `prompts_to_draw` checks ``rng`` and ``size``, and that the prompts fit the
        # memory. An upper estimate: two numbers for each token and kind.
        size = prompts_to_draw(rng, size, 2.0 * self.N * len(self.values))
        task = rng.choice(len(self.probs), size, p=self.weights)
        cumulated_kinds = np.cumsum(self.probs, axis=1)[task]
        cumulated_labels = np.cumsum(self.targets, axis=1)[task]
        # Each uniform number falls into the interval of one kind, or of one label.
        kind = chosen(rng.random((size, self.N)), cumulated_kinds[:, None])
        query = np.zeros(size, dtype=np.intp)
        return Drawn(kind, query, chosen(rng.random(size), cumulated_labels))


def fair_labels(features: int, N: int, rare: float = 1e-30) -> IndependentCounts:
    r"""Return the law of in-context classification with fair labels.

    Each of K features has one of two labels, by a fair coin. Each of N tokens shows a
    random feature with its label. There are three kinds of tokens: tokens with the
    query's feature, which have the query's label; tokens of other features with the
    query's label; and tokens of other features with the opposite label. Label 0 is the
    label of the query. If j of the K - 1 other features have this label, the kinds have
    the probabilities 1/K, j/K and (K - 1 - j)/K. The number j is binomial. Let m tokens
    show other features, and let a of these tokens have the query's label. If this label
    counts as 1 and the opposite label as -1, the sum over the m tokens is D = 2a - m.
    The law of D for a given m is a sum of positive terms, in which nothing cancels:

    .. math:: P(D = 2a - m) = \sum_j 2^{1-K}\binom{K-1}{j}
        \binom{m}{a} \Bigl(\frac{j}{K-1}\Bigr)^a \Bigl(1 - \frac{j}{K-1}\Bigr)^{m-a}.

    Parameters
    ----------
    features : int
        K, at least 2.
    N : int
        Number of tokens.
    rare : float
        Counts with a smaller probability are left out of the table.

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
    # By Hoeffding's bound, j exceeds its mean by more than x with a probability of at
    # most exp(-2x²/(K - 1)). The probability that j falls below its mean by more than x
    # has the same bound. The square root is the x at which the bound equals ``rare``; 1
    # is a margin.
    reach = math.sqrt(0.5 * (K - 1) * -math.log(rare)) + 1.0
    # An upper estimate: 25 numbers of 8 bytes for each of 2 ``reach`` numbers j.
    check_fits("features", features, 400.0 * reach)
    mean = 0.5 * (K - 1)
    lowest = max(0, math.ceil(mean - reach))
    highest = min(K - 1, math.floor(mean + reach))
    j = np.arange(lowest, highest + 1.0)
    # The binomial law of j, as a ratio of Poisson probabilities.
    weights = np.exp(
        log_poisson(j, mean) + log_poisson(K - 1 - j, mean) - log_poisson(K - 1, K - 1)
    )
    # One task for each j. The kinds, and the labels that they stand for, are listed in
    # the docstring, in this order.
    probs = np.column_stack([np.ones(len(j)), j, K - 1 - j]) / K
    values = [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    return IndependentCounts(
        N,
        probs,
        values=np.array(values),
        targets=np.array([1.0, 0.0]),
        weights=weights / weights.sum(),
        rare=rare,
    )


@dataclass(frozen=True, eq=False)
class TwoStateCounts(CountLaw):
    r"""Counts of the windows of two symbols in T symbols of a two-state Markov chain.

    The tokens are the T - 1 windows (x_{i-1}, x_i), i = 2, ..., T, of the kinds 00, 01,
    10 and 11. A token stands for the second symbol of its window. The query is the last
    symbol x_T, and the right label is x_{T+1}. With ``first``, the symbol x_1 is also a
    token, of one of two more kinds, 0 and 1. Let n_s be the number of windows that
    begin with the symbol s, and c_s the number of these windows whose second symbol
    differs from s. The counts have the probability

    .. math:: P(x_1) \prod_{s = 0, 1} P(c_s \mid n_s) \times
        \begin{cases} 1 & x_T = s \text{ or } n_s = 0 \\
        c_s/n_s & \text{else,}\end{cases}

    where P(c | n) is beta-binomial if row s of the chain has a Beta prior, and binomial
    if the chain is given. If there are several chains, the probability is a mean over
    them. With the numbers n_01 and n_10 of windows 01 and 10, the first symbol is
    x_1 = x_T - n_01 + n_10.

    Parameters
    ----------
    T : int
        Number of symbols, at least 2. The table has about T² rows.
    concentration : array_like, () or (2, 2), optional
        Row s has the parameters of the Beta (Dirichlet) prior of row s of the chain,
        positive and finite. The default is 1, the uniform prior. Large parameters cost
        digits: the relative error of probabilities is about 1e-16 T ln(concentration).
    transitions : array_like, (2, 2) or (Z, 2, 2), optional
        The given chain, in place of a prior, or Z chains, one of which each sequence
        follows. Rows sum to 1.
    probs : array_like, (Z,), optional
        Probabilities of the chains. By default all chains are equally probable.
    start : float or "stationary"
        Probability that the first symbol is 1. With ``transitions`` it may be
        "stationary", for the stationary probability under each chain.
    first : bool
        Whether x_1 is a token.

    Raises
    ------
    ValueError
        An argument is out of range, or there are more counts than fit in memory; the
        message names it.

    Examples
    --------
    The entropy of the next symbol given the sequence, and the log loss of predicting ½
    for both symbols:

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

    queries = 2  # one for each value of the last symbol

    def __post_init__(self) -> None:
        set_fields(self, T=integer("T", self.T, minimum=2, maximum=EXACT))
        # A token stands for the second symbol of its window, or for x_1. The kinds 00,
        # 01, 10, 11 and 0, 1 stand for the symbols 0, 1, 0, 1 and 0, 1.
        kinds_of_symbol = 2 + flag("first", self.first)
        set_fields(self, values=np.tile(np.eye(2), (kinds_of_symbol, 1)))
        if self.transitions is None:
            self._check_prior()
            chains = 1
        else:
            self._check_chains()
            chains = len(self.transitions)
        self._check_start()
        # For each of about T² rows, about 30 numbers of 8 bytes, and 3 for each chain.
        check_fits("T", self.T, 8.0 * float(self.T) ** 2 * (30 + 3 * chains))

    def _check_prior(self) -> None:
        """Check the arguments of random chains, and set their concentrations."""
        if self.probs is not None:
            raise argument_error(
                "probs", self.probs, "left out unless transitions are given"
            )
        given = 1.0 if self.concentration is None else self.concentration
        concentration = real_array("concentration", given, dimensions(given), LARGEST)
        if concentration.shape not in ((), (2, 2)) or (concentration <= 0).any():
            raise argument_error(
                "concentration", given, "a positive number, or four of shape (2, 2)"
            )
        set_fields(self, concentration=np.broadcast_to(concentration, (2, 2)))

    def _check_chains(self) -> None:
        """Check the arguments of given chains, and set them as arrays."""
        if self.concentration is not None:
            raise argument_error(
                "concentration", self.concentration, "left out if transitions are given"
            )
        chains = distributions("transitions", self.transitions)  # type: ignore[arg-type]
        if chains.shape[-2:] != (2, 2) or chains.ndim not in (2, 3):
            raise argument_error(
                "transitions", chains.shape, "of shape (2, 2) or (Z, 2, 2)"
            )
        chains = chains.reshape(-1, 2, 2)
        probs = _probabilities("probs", self.probs, len(chains))
        if isinstance(self.start, str):
            choice("start", self.start, ("stationary",))
            # A chain that never changes its state has no unique stationary law.
            if (chains[:, 0, 1] + chains[:, 1, 0] == 0).any():
                raise argument_error(
                    "transitions",
                    self.transitions,
                    "chains that can change their state, if the start is stationary",
                )
        set_fields(self, transitions=chains, probs=probs)

    def _check_start(self) -> None:
        """Check the law of the first symbol.

        Only given chains have a stationary law. If ``start`` is a word and chains are
        given, `_check_chains` has already checked the word.
        """
        if not isinstance(self.start, str):
            start = number("start", self.start, zero=True, maximum=1.0)
            set_fields(self, start=start)
        elif self.transitions is None:
            raise argument_error(
                "start",
                self.start,
                "the probability of the symbol 1; stationary needs transitions",
            )

    @cached_property
    def table(self) -> Table:
        """All counts of positive probability."""
        sequences = _sequences(self.T)
        last = sequences.last
        counts = sequences.counts
        if self.transitions is None:
            log_prob, prob_of_1 = self._under_prior(sequences)
        else:
            log_prob, prob_of_1 = self._under_chains(sequences)
        probability = np.exp(log_prob)
        is_possible = probability > 0.0
        truth = np.column_stack([1.0 - prob_of_1, prob_of_1])
        if self.first:
            # There is one token of the kind of the first symbol, 0 or 1.
            first = sequences.first
            counts = np.column_stack([counts, first == 0, first == 1])
        return Table(
            counts=counts[is_possible],
            query=last[is_possible],
            probability=probability[is_possible],
            truth=truth[is_possible],
        )

    def _under_prior(self, sequences: _Sequences) -> tuple[Array, Array]:
        """Return log-probabilities of the counts, (A,), for random chains with a prior.

        Also return the probability of label 1 given the counts, (A,).
        """
        # Parameters of the prior: row s is for the windows that begin with s.
        alpha = np.asarray(self.concentration)
        counts = sequences.counts
        last = sequences.last
        # All chains have the same law of the first symbol, the only row of `_starts`.
        log_start = _log(self._starts())[0, sequences.first]
        windows_from_0 = counts[:, :2]  # 00 and 01
        windows_from_1 = counts[:, 2:]  # 10 and 11
        windows_to_1 = counts[:, 1::2]  # 01 and 11
        log_prob = (
            sequences.log_orders()
            + log_start
            + _log_beta_binomial(windows_from_0, alpha[0])
            + _log_beta_binomial(windows_from_1, alpha[1])
        )
        # Posterior means of the probability that 1 follows 0, and that 1 follows 1,
        # (A, 2). The last symbol selects one of them.
        prior_of_1 = alpha[:, 1]
        prob_of_1 = (windows_to_1 + prior_of_1) / (sequences.total + alpha.sum(axis=1))
        return log_prob, prob_of_1[np.arange(len(last)), last]

    def _under_chains(self, sequences: _Sequences) -> tuple[Array, Array]:
        """Return log-probabilities of the counts, (A,), for the given chains.

        Also return the probability of label 1 given the counts, (A,).
        """
        # `_check_chains` has set both fields.
        assert self.probs is not None
        assert self.transitions is not None
        chains = self.transitions
        counts = sequences.counts
        total = sequences.total
        # As in `IndependentCounts`, the law of the counts is the law under the mean
        # chain times a ratio of laws. The ratio is the law under a chain divided by the
        # law under the mean chain, averaged over the chains.
        mean_chain = np.tensordot(self.probs, chains, 1)
        # Mean numbers of the windows 00, 01, 10 and 11 under the mean chain, given how
        # many windows begin with 0 and how many with 1, (A, 4).
        mean_counts = np.repeat(total, 2, axis=1) * mean_chain.ravel()
        # Poisson numbers with a given sum are multinomial.
        log_multinomial = log_poisson(counts, mean_counts).sum(axis=1)
        log_multinomial -= log_poisson(total, total).sum(axis=1)
        log_ratio = _log_ratio(chains, mean_chain).reshape(-1, 4)
        log_start = _log(self._starts())[:, sequences.first].T
        log_terms = counts @ log_ratio.T + log_start + _log(self.probs)  # (A, Z)
        # The probability of each chain given the counts, (A, Z), and the log of the sum
        # over the chains, (A,).
        prob_of_chain, log_mixture = softmax(log_terms)
        log_prob = sequences.log_orders() + log_multinomial + log_mixture
        prob_of_1 = chains[:, sequences.last, 1]  # after the last symbol, (Z, A)
        return log_prob, np.einsum("az,za->a", prob_of_chain, prob_of_1)

    def _starts(self) -> Array:
        """Probabilities that the first symbol is 0 or 1 under each chain, (Z, 2).

        Random chains with a prior have one row for all of them.
        """
        if not isinstance(self.start, str):
            Z = 1 if self.transitions is None else len(self.transitions)
            return np.tile([1.0 - self.start, self.start], (Z, 1))
        # `_check_start` refuses a word without transitions.
        assert self.transitions is not None
        # The stationary probability of a state is proportional to the probability of
        # the change into this state from the other one.
        change_into_0 = self.transitions[:, 1, 0]
        change_into_1 = self.transitions[:, 0, 1]
        changes = np.stack([change_into_0, change_into_1], axis=1)
        return changes / changes.sum(axis=1, keepdims=True)

    def draw(self, rng: np.random.Generator, size: int) -> Drawn:
        """Draw ``size`` sequences: the chain of each, and its symbols one by one."""
        # `prompts_to_draw` checks ``rng`` and ``size``, and that the sequences fit the
        # memory. A sequence takes about 4 numbers for each symbol.
        size = prompts_to_draw(rng, size, numbers=4.0 * self.T)
        if self.transitions is None:
            alpha = np.asarray(self.concentration)
            # For each sequence and each symbol, the probability that 1 follows.
            prob_of_1 = rng.beta(alpha[:, 1], alpha[:, 0], (size, 2))
            chain = np.zeros(size, dtype=np.intp)
        else:
            chain = rng.choice(len(self.transitions), size, p=self.probs)
            prob_of_1 = self.transitions[chain, :, 1]
        sequence = np.arange(size)
        symbols = np.empty((size, self.T + 1), dtype=np.intp)
        symbols[:, 0] = rng.random(size) < self._starts()[chain, 1]
        for i, draws in enumerate(rng.random((self.T, size))):
            symbols[:, i + 1] = draws < prob_of_1[sequence, symbols[:, i]]
        # A window of the symbols a and b has the kind 2a + b.
        kind = 2 * symbols[:, : self.T - 1] + symbols[:, 1 : self.T]
        if self.first:
            # The kinds 4 and 5 are the first symbols 0 and 1.
            kind = np.column_stack([4 + symbols[:, 0], kind])
        # The query is the last of the T symbols, and the label follows it.
        return Drawn(kind, query=symbols[:, self.T - 1], target=symbols[:, self.T])


class _Sequences(NamedTuple):
    """The A classes of sequences of T symbols.

    All sequences of a class have the same counts of windows and the same last symbol,
    and therefore the same first symbol.
    """

    first: Indices  # first symbol, (A,)
    last: Indices  # last symbol, (A,)
    counts: Array  # windows 00, 01, 10, 11, (A, 4)

    @property
    def total(self) -> Array:
        """Numbers of windows that begin with 0 and with 1, (A, 2)."""
        counts = self.counts
        return np.column_stack(
            [counts[:, 0] + counts[:, 1], counts[:, 2] + counts[:, 3]]
        )

    def log_orders(self) -> Array:
        """Return the log of the share of possible orders among all orders, (A,).

        An order says which of the n_s windows that begin with the state s keep s, and
        which of them change it; c_s of them are changes. If the sequence does not end
        with s, the last of the n_s windows must be a change. This holds for a share
        c_s/n_s of all orders.
        """
        total = self.total
        kept_0 = self.counts[:, 0]
        kept_1 = self.counts[:, 3]
        changes = total - np.stack([kept_0, kept_1], axis=1)
        # For each state: whether the sequence was in it and ends in the other one.
        ends_in_other = (self.last[:, None] != [0, 1]) & (total > 0)
        log_shares = np.zeros(total.shape)
        np.log(changes / np.maximum(total, 1.0), out=log_shares, where=ends_in_other)
        return log_shares.sum(axis=1)


def _sequences(T: int) -> _Sequences:
    """Return all classes of sequences of T symbols."""
    # All combinations of first and last symbol, number of changes and windows 00.
    first, last, changes, n00 = np.indices((2, 2, T, T)).reshape(4, -1)
    # The number of changes is even exactly if the last symbol equals the first one.
    has_right_parity = changes % 2 == (first != last)
    # Of the T - 1 windows, those that are neither changes nor 00 are 11.
    is_consistent = has_right_parity & (changes + n00 <= T - 1)
    first = first[is_consistent]
    last = last[is_consistent]
    changes = changes[is_consistent]
    n00 = n00[is_consistent]
    # The changes are the windows 01 and 10, so n01 + n10 = changes. A change moves the
    # symbol up or down by 1, so n01 - n10 = last - first.
    n01 = (changes + last - first) // 2
    n10 = changes - n01
    n11 = T - 1 - changes - n00
    # A symbol that does not occur in the sequence cannot be kept in a window. Symbol 0
    # occurs if it is the last one or if the sequence leaves it by a window 01.
    occurs_0 = n01 + (last == 0) > 0
    occurs_1 = n10 + (last == 1) > 0
    is_possible = ((n00 == 0) | occurs_0) & ((n11 == 0) | occurs_1)
    counts = np.column_stack([n00, n01, n10, n11])[is_possible].astype(np.float64)
    return _Sequences(first[is_possible], last[is_possible], counts)


def _log_beta_binomial(pairs: Array, a: Array) -> Array:
    r"""Return the log of a beta-binomial probability for pairs (n_0, n_1), (A, 2).

    .. math:: \ln \binom{n}{n_0} \frac{B(a_0 + n_0, a_1 + n_1)}{B(a_0, a_1)}

    Here n is n_0 + n_1, B is the beta function, and :math:`a = (a_0, a_1)` are the
    parameters.

    Let g(n, a) be Γ(n + a)/(Γ(a) n!). The probability is then
    g(n_0, a_0) g(n_1, a_1)/g(n, a_0 + a_1). The log of g is a sum of logs of ratios
    (`log_rising`), so that no logs of large factorials cancel.
    """
    counts = pairs.astype(np.intp)  # integers, which are used as indices below
    n = counts.sum(axis=1)
    most = int(n.max(initial=0))
    log_g_0 = log_rising(a[0], most)[counts[:, 0]]
    log_g_1 = log_rising(a[1], most)[counts[:, 1]]
    return np.asarray(log_g_0 + log_g_1 - log_rising(a.sum(), most)[n])


def log_rising(a: float, most: int) -> Array:
    r"""Return :math:`\ln[\Gamma(n + a)/(\Gamma(a)\, n!)]` for n = 0 ... most."""
    # The ratio of the number for n to the number for n - 1 is (n - 1 + a)/n: a for
    # n = 1, and otherwise 1 + (a - 1)/n. So the logs are cumulated sums of the logs of
    # these ratios, beginning with ln 1 = 0 for n = 0.
    n = np.arange(2.0, most + 1.0)
    log_ratios = np.concatenate([[math.log(a)], np.log1p((a - 1.0) / n)])
    return np.concatenate([[0.0], np.cumsum(log_ratios)])


def _probabilities(name: str, value: ArrayLike | None, size: int) -> Array:
    """Return ``size`` probabilities of tasks or chains; by default all are equal."""
    if value is None:
        return np.full(size, 1.0 / size)
    probs = distributions(name, value)
    if probs.shape != (size,):
        raise argument_error(name, probs.shape, f"of shape ({size},)")
    return probs


def _log(p: Array) -> Array:
    """Return ln p, with the finite number `LOG_NEVER` for p = 0."""
    return np.log(p, out=np.full(np.shape(p), LOG_NEVER), where=np.asarray(p) > 0.0)


def _log_ratio(p: Array, mean: Array) -> Array:
    """Return ln(p/mean), with a small relative error even if p is close to the mean.

    The error matters because the logarithm is multiplied by large counts.
    """
    # If the mean is 0, then p is 0, or its task or chain has the weight 0. Any gap will
    # do in both cases.
    gap = np.divide(p - mean, mean, out=np.zeros(p.shape), where=mean > 0.0)
    is_near = gap > LOWEST_GAP
    # `LOG_NEVER` stands for ln 0, and is also selected below if p is zero.
    by_gap = np.log1p(gap, out=np.full(p.shape, LOG_NEVER), where=is_near & (p > 0.0))
    by_logs = _log(p) - _log(np.broadcast_to(mean, p.shape))
    return np.where(is_near | (p == 0.0), by_gap, by_logs)
