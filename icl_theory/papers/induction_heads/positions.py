r"""Exact log losses of counting predictors at every position.

Let the rows of a chain of two or three symbols have the Dirichlet law with one
parameter α, and let the first symbol be uniform. At position t the bigram predictor
needs the counts n of the symbols that followed the last symbol. Their law is

.. math:: P_t(n) = \rho(n)\, Q(n_1, \dots, n_{k-1};\, t - 1 - r), \qquad
    r = \sum_y n_y,

with the probability ρ of a row of these counts, and a factor Q that does not depend on
how often the last symbol followed itself. One table of `ThreeStateCounts`, that of the
longest sequence, therefore gives the law at all positions.

The unigram predictor gives the symbols up to position t + 1 a joint probability that
depends only on how often each of them occurs. So the sum of its losses up to t is a
mean over the number of occurrences of one symbol, which follows from the laws
:math:`P_\tau`: the symbol 0 occurs more than n times among the first t if, for some
:math:`\tau \le t`, it is the symbol at position τ and has occurred n times before. See
docs/theory/minimal-heads.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import gammaln, logsumexp

from icl_theory._validate import (
    EXACT,
    LARGEST,
    Array,
    argument_error,
    integer,
    number,
    set_fields,
)
from icl_theory.memory import check_fits
from icl_theory.tokens import ThreeStateCounts


@dataclass(frozen=True, eq=False)
class RowLaw:
    """Law of the counts of the symbols that followed the last symbol.

    Attributes
    ----------
    counts : ndarray, (R, k)
        The number n_y of times that y followed; the last symbol is called 0.
    probability : ndarray, (R,)
        The probabilities, which sum to 1.
    """

    counts: Array
    probability: Array
    concentration: float

    @property
    def following(self) -> Array:
        """Law of the next symbol, (R, k)."""
        k = self.counts.shape[1]
        visits = self.counts.sum(axis=1, keepdims=True)
        a = self.concentration
        return np.asarray((a + self.counts) / (k * a + visits))

    def bigram_loss(self) -> float:
        """Loss of the bigram predictor, the least one, in nats."""
        law = self.following
        return -float(self.probability @ np.sum(law * np.log(law), axis=1))

    def loss_of_logits(self, b: float) -> float:
        """Loss of the prediction softmax(b n), in nats."""
        logits = b * self.counts
        mean_logit = np.sum(self.following * logits, axis=1)
        return float(self.probability @ (logsumexp(logits, axis=1) - mean_logit))

    def mean_visits(self) -> float:
        """How often the last symbol has occurred before, on average."""
        return float(self.probability @ self.counts.sum(axis=1))


@dataclass(frozen=True, eq=False)
class PositionLosses:
    """Log losses of three predictors at the positions 1, ..., T, in nats.

    Position t is the prediction of the symbol after the first t. The unigram and the
    bigram add α to each count. The bigram is the Bayes-optimal prediction.

    Parameters
    ----------
    k : int
        Number of symbols, 2 or 3.
    T : int
        Number of positions. Three symbols take a table of about T⁴/150 rows.
    concentration : float
        The Dirichlet parameter α.

    Raises
    ------
    ValueError
        An argument is out of range, or the counts do not fit in memory; the message
        says how much they would take.

    Examples
    --------
    Means over all positions, the loss that training scripts print:

    >>> from icl_theory.papers.induction_heads.positions import PositionLosses
    >>> for name, losses in PositionLosses(3, 30).by_name().items():
    ...     print(f"{name} {losses.mean():.6f}")
    uniform 1.098612
    unigram 1.040813
    bigram 0.948479
    """

    k: int
    T: int
    concentration: float = 1.0

    def __post_init__(self) -> None:
        k = integer("k", self.k, minimum=2)
        T = integer("T", self.T, minimum=1, maximum=EXACT)
        alpha = number("concentration", self.concentration, maximum=LARGEST)
        set_fields(self, k=k, T=T, concentration=alpha)
        if k > 3:
            raise argument_error(
                "k",
                k,
                "2 or 3: the counts of the last symbol's row and of all symbols would"
                f" take about {_table_bytes(k, T):.1g} bytes",
            )
        # The factor Q, the law of a position, and temporary copies of both.
        check_fits("T", T, 8.0 * 6.0 * float(T) ** k)

    def row_law(self, t: int) -> RowLaw:
        """Return the law of the last symbol's row after t symbols."""
        t = integer("t", t, minimum=1, maximum=self.T)
        counts = _rows_of_counts(self.k, t - 1)
        others = counts[:, 1:]
        places = (t - 1 - counts.sum(axis=1), *others.T)
        probability = self._row_probability(counts) * self._environment[places]
        is_possible = probability > 0.0
        return RowLaw(
            counts[is_possible].astype(float),
            probability[is_possible],
            self.concentration,
        )

    def by_name(self) -> dict[str, Array]:
        """Return the losses of each predictor at all positions, (T,)."""
        return {
            "uniform": np.full(self.T, math.log(self.k)),
            "unigram": self.unigram,
            "bigram": self.bigram,
        }

    @cached_property
    def bigram(self) -> Array:
        """Losses of the bigram, (T,)."""
        losses = [self.row_law(t).bigram_loss() for t in range(1, self.T + 1)]
        return np.array(losses)

    @cached_property
    def unigram(self) -> Array:
        """Losses of the unigram, (T,): differences of their sums."""
        k = self.k
        a = self.concentration
        lengths = np.arange(1, self.T + 2)
        n = np.arange(self.T + 2)
        log_rising = gammaln(a + n) - gammaln(a)
        log_rising_of_sum = gammaln(k * a + lengths) - gammaln(k * a)
        sums = log_rising_of_sum - k * (self.occurrences @ log_rising)
        return np.diff(sums)

    @cached_property
    def occurrences(self) -> Array:
        """Law of how often one symbol occurs, (T + 1, T + 2).

        Row t - 1 is that of the first t symbols, t = 1, ..., T + 1.
        """
        size = self.T + 1
        # Probability that symbol 0 is at position t after n earlier occurrences.
        visits = np.zeros((size, size))
        longer = _longer(self)
        for t in range(1, size + 1):
            law = longer.row_law(t)
            earlier = law.counts.sum(axis=1).astype(int)
            visits[t - 1] = np.bincount(earlier, law.probability, size) / self.k
        # The symbol occurs more than n times if one of these happens by position t.
        more_than = np.cumsum(visits, axis=0)
        at_least = np.column_stack([np.ones(size), more_than])
        return -np.diff(np.column_stack([at_least, np.zeros(size)]), axis=1)

    def best_logits(self, positions: range | None = None) -> tuple[float, float]:
        """Return the best b of the prediction softmax(b n), and its mean loss.

        n are the counts of the symbols that followed the last one. No minimal model
        whose second layer counts these symbols exactly has a smaller loss: it adds
        matches, and does not divide by their number.

        Parameters
        ----------
        positions : range, optional
            The positions over which losses are averaged; by default all.
        """
        chosen = range(1, self.T + 1) if positions is None else positions
        laws = [self.row_law(t) for t in chosen]

        def mean_loss(b: float) -> float:
            return float(np.mean([law.loss_of_logits(b) for law in laws]))

        # The loss is convex in b.
        minimum = minimize_scalar(mean_loss, bracket=(0.0, 0.1), tol=1e-9)
        return float(minimum.x), float(minimum.fun)

    def _row_probability(self, counts: Array) -> Array:
        """Probability ρ of a row of counts, in any order."""
        k = self.k
        a = self.concentration
        total = counts.sum(axis=1)
        log_each = gammaln(a + counts) - gammaln(a) - gammaln(counts + 1.0)
        log_all = gammaln(k * a + total) - gammaln(k * a) - gammaln(total + 1.0)
        return np.asarray(np.exp(log_each.sum(axis=1) - log_all))

    @cached_property
    def _environment(self) -> Array:
        """The factor Q by the number of other symbols, and by n₁, ..., (T, ..., T)."""
        if self.k == 2:
            return _one_other_state(self.T, self.concentration)
        return self._two_other_states()

    def _two_other_states(self) -> Array:
        """Return Q from the counts of the longest sequence.

        In this sequence the last symbol follows itself as often as its row leaves room
        for. This covers all n₁, n₂ and all numbers of other symbols that fit.
        """
        T = self.T
        factor = np.zeros((T, T, T))
        if T == 1:
            factor[0, 0, 0] = 1.0
            return factor
        for part in ThreeStateCounts(T, self.concentration).parts():
            own = part.counts[:, :3].astype(int)
            # The first symbol is no pair, so rows have one count less than symbols.
            others = T - 1 - own.sum(axis=1)
            ratio = 0.5 * part.probability / self._row_probability(own)
            # Its names 1 and 2 go by frequency. Both orders are equally likely.
            np.add.at(factor, (others, own[:, 1], own[:, 2]), ratio)
            np.add.at(factor, (others, own[:, 2], own[:, 1]), ratio)
        return factor


@lru_cache(maxsize=8)
def position_losses(k: int, T: int, concentration: float) -> PositionLosses:
    """Return the losses, made once for each law."""
    return PositionLosses(k, T, concentration)


def _longer(losses: PositionLosses) -> PositionLosses:
    """Return the losses of one position more."""
    return position_losses(losses.k, losses.T + 1, losses.concentration)


def _rows_of_counts(k: int, largest: int) -> Array:
    """Return all k counts with a sum of at most ``largest``, (R, k)."""
    counts = np.indices((largest + 1,) * k).reshape(k, -1).T
    return np.asarray(counts[counts.sum(axis=1) <= largest])


def _one_other_state(T: int, a: float) -> Array:
    """Return the factor Q of two symbols, by the occurrences of 1, and by n₁.

    The sequence ends with 0, so each stay in state 1 ends. There are n₁ stays, and one
    more if the first symbol is 1.
    """
    m, n = np.indices((T, T))
    factor = np.zeros((T, T))
    for first in (0, 1):
        stays = n + first
        is_possible = np.where(m == 0, stays == 0, (stays >= 1) & (stays <= m))
        length = m[is_possible]
        leaves = stays[is_possible]
        remains = length - leaves
        # The last symbol of the last stay leaves; the other leaves are anywhere.
        log_ways = gammaln(np.maximum(length, 1)) - gammaln(remains + 1.0)
        log_ways -= gammaln(np.maximum(leaves, 1))
        log_mean = gammaln(a + leaves) + gammaln(a + remains) - 2.0 * gammaln(a)
        log_mean -= gammaln(2.0 * a + length) - gammaln(2.0 * a)
        factor[is_possible] += np.exp(log_ways + log_mean)
    # The last symbol has one of two names, and the first one is uniform.
    return 2.0 * 0.5 * factor


def _table_bytes(k: int, T: int) -> float:
    """Return the memory of counts of a row and of all symbols, 2k numbers each."""
    log_rows = gammaln(T + 2.0 * k - 2.0) - gammaln(2.0 * k - 1.0) - gammaln(float(T))
    log_bytes = log_rows + math.log(8.0 * 2.0 * k)
    return math.exp(min(log_bytes, 700.0))
