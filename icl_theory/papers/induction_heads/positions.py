r"""Exact log losses of counting predictors at every position.

Let the rows of a chain of k = 2 or 3 symbols have the Dirichlet law with one parameter
α, and let the first symbol be uniform. At position t, after t symbols, the bigram
predictor needs the counts n of the symbols that followed the last symbol, which is
called 0. Their law is

.. math:: P_t(n) = \rho(n)\, Q(n_1, \dots, n_{k-1};\, t - 1 - r), \qquad
    r = \sum_y n_y,

with the probability ρ(n) that r followers of a symbol have these counts, and a factor Q
from the pairs that begin with other symbols. The number of times that the last symbol
followed itself, n₀, occurs in Q only through r. Therefore the table of
`ThreeStateCounts` for the longest sequence gives the law for k = 3 at all positions.
For k = 2 there is a formula.

The unigram predictor gives the symbols up to position t + 1 a joint probability that
depends only on how often each of them occurs. By symmetry the sum of its expected
losses up to t is a mean over the number of occurrences of one symbol, which may be
called 0. The law of this number follows from the laws :math:`P_\tau`. The symbol 0
occurs more than n times among the first t if and only if it is the symbol at some
position :math:`\tau \le t`, and has occurred exactly n times before τ.

See docs/theory/minimal-heads.md, "Losses at all positions".
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
        Each of R rows has possible counts: column y has the number n_y of times that y
        followed the last symbol, which is called 0.
    probability : ndarray, (R,)
        Probabilities of the rows of ``counts``; they sum to 1.
    concentration : float
        The Dirichlet parameter α.
    """

    counts: Array
    probability: Array
    concentration: float

    @property
    def following(self) -> Array:
        """Law (α + n_y)/(kα + Σ n) of the next symbol y for each row of counts, (R, k).

        It is the mean of the Dirichlet law of the chain's row, given the counts.
        """
        k = self.counts.shape[1]
        visits = self.counts.sum(axis=1, keepdims=True)
        alpha = self.concentration
        return np.asarray((alpha + self.counts) / (k * alpha + visits))

    def bigram_loss(self) -> float:
        """Return the loss of the bigram predictor, nats.

        The bigram is the Bayes-optimal predictor, so its loss is the mean entropy of
        the law of the next symbol.
        """
        law = self.following
        return -float(self.probability @ np.sum(law * np.log(law), axis=1))

    def loss_of_logits(self, b: float) -> float:
        """Return the loss of the prediction softmax(b n) for the counts n, nats."""
        logits = b * self.counts
        # -ln softmax(z)_y = ln Σ exp(z) - z_y, averaged over the next symbol y
        mean_logit = np.sum(self.following * logits, axis=1)
        return float(self.probability @ (logsumexp(logits, axis=1) - mean_logit))


@dataclass(frozen=True, eq=False)
class PositionLosses:
    """Log losses of three predictors at the positions 1, ..., T, nats.

    The predictors are uniform, unigram and bigram. At position t they predict the
    symbol after the first t symbols. The unigram counts all t symbols, and the bigram
    those that followed the last symbol. Both add α to each count. The bigram is the
    Bayes-optimal predictor.

    Parameters
    ----------
    k : int
        Number of symbols, 2 or 3.
    T : int
        Number of positions. For three symbols the counts fill a table of about T⁴/150
        rows.
    concentration : float
        The Dirichlet parameter α.

    Raises
    ------
    ValueError
        An argument is out of range, or the counts do not fit in memory. The message
        then says how much memory the counts would take.

    Examples
    --------
    Mean losses over all positions, which training scripts print:

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
        # Six arrays of T^k numbers, 8 bytes each: the factor Q, (T, ..., T), the law of
        # a position, which is as large, and copies of both.
        check_fits("T", T, 8.0 * 6.0 * float(T) ** k)

    def row_law(self, t: int) -> RowLaw:
        """Return the law P_t(n) of the counts of the last symbol's followers.

        The sequence has t symbols. The law leaves out counts that cannot occur.
        """
        t = integer("t", t, minimum=1, maximum=self.T)
        # Each symbol but the first follows another one, so t symbols have t - 1 pairs.
        # The counts are the pairs that begin with the last symbol: at most t - 1.
        counts = _rows_of_counts(self.k, t - 1)
        counts_of_others = counts[:, 1:]  # n₁, ..., n_{k-1}
        pairs_of_other_rows = t - 1 - counts.sum(axis=1)
        # Q(n₁, ..., n_{k-1}; t - 1 - r); the last argument is the first index.
        Q = self._table_of_Q[(pairs_of_other_rows, *counts_of_others.T)]
        probability = self._row_probability(counts) * Q
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
        """Losses of the unigram, (T,).

        Position 0 is the prediction of the first symbol. The losses at the positions
        0, ..., t have the sum

            ln (kα)_{t+1} - k E ln (α)_{N(t+1)},

        with the rising factorials (a)_n = Γ(a + n)/Γ(a), and the number N(t) of
        occurrences of one symbol among the first t. A loss is the difference of two
        successive sums.
        """
        k = self.k
        alpha = self.concentration
        lengths = np.arange(1, self.T + 2)  # t + 1 for t = 0, ..., T
        n = np.arange(self.T + 2)  # numbers of occurrences
        log_rising = gammaln(alpha + n) - gammaln(alpha)
        log_rising_of_sum = gammaln(k * alpha + lengths) - gammaln(k * alpha)
        # Row t of `occurrences` has the law of N(t + 1).
        sums = log_rising_of_sum - k * (self.occurrences @ log_rising)
        return np.diff(sums)

    @cached_property
    def occurrences(self) -> Array:
        """Law of how often one symbol occurs among the first t, (T + 1, T + 2).

        Row t - 1 has the probabilities of 0, ..., T + 1 occurrences, for t = 1, ...,
        T + 1.
        """
        size = self.T + 1
        # In row t - 1 and column n: the probability that the symbol 0 is at position t,
        # after n earlier occurrences.
        visit_probabilities = np.zeros((size, size))
        # The law of the last position, T + 1, needs the table of a longer sequence.
        longer = _with_one_more_position(self)
        for t in range(1, size + 1):
            law = longer.row_law(t)
            # Each earlier occurrence of the last symbol has a follower.
            earlier = law.counts.sum(axis=1).astype(int)
            # ``law`` is conditional on the last symbol, which is 0 with the probability
            # 1/k.
            earlier_probabilities = np.bincount(earlier, law.probability, size)
            visit_probabilities[t - 1] = earlier_probabilities / self.k
        # The symbol occurs more than n times among the first t if and only if its visit
        # after n occurrences is at one of these positions. It can be at only one of
        # them, so the probabilities add up.
        more_than = np.cumsum(visit_probabilities, axis=0)
        # P(N >= 0) = 1, P(N >= n) = P(N > n - 1), and P(N >= T + 2) = 0. The result is
        # P(N = n) = P(N >= n) - P(N >= n + 1).
        at_least = np.column_stack([np.ones(size), more_than, np.zeros(size)])
        return -np.diff(at_least, axis=1)

    def best_logits(self, positions: range | None = None) -> tuple[float, float]:
        """Return the best b of the prediction softmax(b n), and its mean loss in nats.

        Here n are the counts of the symbols that followed the last symbol. The second
        layer of the minimal model adds up matches, and does not divide by their number.
        If the logits of the model are multiples of these counts, the loss of the model
        is at least the returned loss.

        Parameters
        ----------
        positions : range, optional
            The positions over which losses are averaged; by default all.
        """
        if positions is None:
            positions = range(1, self.T + 1)
        laws = [self.row_law(t) for t in positions]

        def mean_loss(b: float) -> float:
            return float(np.mean([law.loss_of_logits(b) for law in laws]))

        # The loss is convex in b, so the search finds its only minimum from any
        # bracket. An error of b changes the least loss by the order of its square only.
        minimum = minimize_scalar(mean_loss, bracket=(0.0, 0.1), tol=1e-9)
        return float(minimum.x), float(minimum.fun)

    def _row_probability(self, counts: Array) -> Array:
        """Return the probability ρ of each row of counts, (R,).

        ρ is the probability that Σ n followers of a symbol, in any order, have the
        counts n: Π_y g_α(n_y) / g_kα(Σ n) with g_a(n) = Γ(a + n)/(Γ(a) n!). ``counts``
        is (R, k).
        """
        k = self.k
        alpha = self.concentration
        total = counts.sum(axis=1)
        log_g = gammaln(alpha + counts) - gammaln(alpha) - gammaln(counts + 1.0)
        log_g_total = (
            gammaln(k * alpha + total) - gammaln(k * alpha) - gammaln(total + 1.0)
        )
        return np.asarray(np.exp(log_g.sum(axis=1) - log_g_total))

    @cached_property
    def _table_of_Q(self) -> Array:
        """The factor Q at all its arguments, (T, ..., T), with k axes.

        The first index is the last argument of Q, t - 1 - r: the number of pairs that
        begin with a symbol other than the last one. The other indices are n₁, ...,
        n_{k-1}.
        """
        if self.k == 2:
            return _one_other_state(self.T, self.concentration)
        return self._two_other_states()

    def _two_other_states(self) -> Array:
        """Return Q for three symbols, from the counts of the longest sequence.

        Q depends only on its arguments n₁, n₂ and m = t - 1 - r. Let their sum be at
        most T - 1. Then sequences of T symbols in which the last symbol followed itself
        n₀ = T - 1 - n₁ - n₂ - m times have these arguments. So the table of sequences
        of T symbols gives Q at all arguments.
        """
        T = self.T
        factor = np.zeros((T, T, T))
        if T == 1:
            # A single symbol has no pairs. `ThreeStateCounts` needs two symbols.
            factor[0, 0, 0] = 1.0
            return factor
        # Each part of the table has counts of tokens by kind, and the joint probability
        # of these counts.
        for part in ThreeStateCounts(T, self.concentration).parts():
            # The first three kinds are the tokens 0, 1 and 2 whose predecessor equals
            # the last symbol.
            counts = part.counts[:, :3].astype(int)
            _, n1, n2 = counts.T
            # T symbols have T - 1 pairs.
            pairs_of_other_rows = T - 1 - counts.sum(axis=1)
            # The last symbol is called 0. Of the other two, the table calls the more
            # frequent one 1. In Q the more frequent one is 1 or 2, each with the
            # probability ½.
            half_of_Q = 0.5 * part.probability / self._row_probability(counts)
            # Several rows of the table may have the same arguments of Q. `np.add.at`
            # adds up all of them.
            np.add.at(factor, (pairs_of_other_rows, n1, n2), half_of_Q)
            np.add.at(factor, (pairs_of_other_rows, n2, n1), half_of_Q)
        return factor


@lru_cache(maxsize=8)
def position_losses(k: int, T: int, concentration: float) -> PositionLosses:
    """Return the losses at T positions; the last eight results are kept.

    The arguments are the ones of `PositionLosses`, whose tables take long to compute.
    """
    return PositionLosses(k, T, concentration)


def _with_one_more_position(losses: PositionLosses) -> PositionLosses:
    """Return the losses for the same law and T + 1 positions."""
    return position_losses(losses.k, losses.T + 1, losses.concentration)


def _rows_of_counts(k: int, largest_sum: int) -> Array:
    """Return all rows of k counts whose sum is at most ``largest_sum``, (R, k)."""
    counts = np.indices((largest_sum + 1,) * k).reshape(k, -1).T
    return np.asarray(counts[counts.sum(axis=1) <= largest_sum])


def _one_other_state(T: int, a: float) -> Array:
    """Return the factor Q of two symbols, (T, T), for the Dirichlet parameter a.

    The indices are the number m of symbols 1, and n₁, the number of pairs (0, 1). A
    stay in state 1 begins with such a pair, or with the first symbol. So there are n₁
    stays, and one more if the first symbol is 1. The sequence ends with 0, so each stay
    ends.
    """
    m, n1 = np.indices((T, T))
    factor = np.zeros((T, T))
    for first_symbol in (0, 1):
        stays = n1 + first_symbol
        # A stay has one symbol or more, and without symbols 1 there is no stay.
        is_possible = np.where(m == 0, stays == 0, (stays >= 1) & (stays <= m))
        # Of the m symbols 1, the last one of each stay is followed by 0, and all others
        # are followed by 1: ``before_0`` and ``before_1`` are their numbers.
        symbols = m[is_possible]
        before_0 = stays[is_possible]
        before_1 = symbols - before_0
        # The last symbol 1 is followed by 0. The other ``before_0`` - 1 symbols 1 that
        # are followed by 0 can be any of the ``symbols`` - 1 symbols 1 before the last.
        # There are (symbols - 1)!/(before_1! (before_0 - 1)!) ways to choose them.
        # Without symbols 1 there is one way, and the maxima make all factorials 0! = 1.
        log_ways = gammaln(np.maximum(symbols, 1)) - gammaln(before_1 + 1.0)
        log_ways -= gammaln(np.maximum(before_0, 1))
        # The mean of P₁₀^before_0 P₁₁^before_1 under the Dirichlet law of row 1 is a
        # quotient of beta functions.
        log_mean = gammaln(a + before_0) + gammaln(a + before_1) - 2.0 * gammaln(a)
        log_mean -= gammaln(2.0 * a + symbols) - gammaln(2.0 * a)
        factor[is_possible] += np.exp(log_ways + log_mean)
    # The factor ½ is the probability of the first symbol. The factor 2 is there because
    # the last symbol may also be 1. By symmetry sequences that end with 0 and with 1
    # have the same probability.
    return 2.0 * 0.5 * factor


def _table_bytes(k: int, T: int) -> float:
    """Return the bytes of a table of the counts of followers and of all symbols.

    Each row of the table has 2k counts: k counts of the followers of the last symbol,
    and k counts of the symbols in the sequence. The two sets of counts are not
    independent: there are about as many rows as ways to divide T - 1 pairs into 2k - 1
    parts.
    """
    # The number of these ways is (T + 2k - 3)!/((2k - 2)! (T - 1)!).
    log_rows = gammaln(T + 2.0 * k - 2.0) - gammaln(2.0 * k - 1.0) - gammaln(float(T))
    log_bytes = log_rows + math.log(8.0 * 2.0 * k)
    # The limit keeps exp() within float64, which ends near e^709.
    return math.exp(min(log_bytes, 700.0))
