"""Edelman et al.'s minimal model of an induction head, as a family of problems.

`MinimalHeads` is the family, `MinimalRisk` its loss, and `Sequences` the data. The
parameters are the scores v of the lags, and b and c of the matrix W = bI + c 11ᵀ.

In the shapes below, M is the number of sequences, k the number of symbols, and P the
number of positions at which the next symbol is predicted: T, or 1 if only the last
prediction has a loss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

from icl_theory._validate import Array, argument_error
from icl_theory.engine import Trajectory
from icl_theory.families import (
    Column,
    Family,
    Number,
    Numbers,
    Whole,
    Word,
    parameter,
)
from icl_theory.families.parameters import learning_rate
from icl_theory.memory import check_fits
from icl_theory.papers.induction_heads.minimal_risk import (
    EveryPosition,
    LagAttention,
    MinimalRisk,
)
from icl_theory.papers.induction_heads.phases import Levels, plateau_phases
from icl_theory.papers.induction_heads.positions import position_losses
from icl_theory.papers.induction_heads.sequences import (
    Sequences,
    check_enumerable,
    running_totals,
)

# Largest initial score. exp() of the sum of two of these is within float64, which ends
# near e^709.
LARGEST = 300.0
# In the authors' code all entries of W have this value at step 0.
COMMON = 0.01
# A generator has the seed [seed, stream]. `InductionHeads` has the streams 0 and 1.
# With another stream, draws of both families are independent for the same seed.
STREAM_OF_SEQUENCES = 2


class CountLevel(NamedTuple):
    """The best prediction softmax(s n) of the next symbol, for given counts n."""

    strength: float  # the best s
    loss: float  # mean loss with the best s, nats


@dataclass(frozen=True, eq=False)
class MinimalHeads(Family):
    r"""The minimal model of an induction head: linear attention and cross entropy.

    .. math:: f_s = \sum_l A_{s,s-l}\, e_{x_{s-l}}, \qquad
        z_t = \sum_{s \le t} (e_{x_t}^\top W f_s)\, e_{x_s}, \qquad
        W = bI + c\,11^\top

    The model predicts softmax(z_t) after t symbols of a random Markov chain, with
    one-hot vectors :math:`e_x` of symbols x. The matrix W is trained, and so are the
    scores v of the lags, on which A depends.

    Parameters
    ----------
    k : int
        Number of symbols (states of the chains).
    T : int
        Number of symbols before the last prediction.
    lags : int, optional
        Number m of lags 0, ..., m - 1 with scores of their own; by default all T.
    first : {"softmax", "linear"}
        "softmax": rows of A are softmax weights of the scores v. "linear": they are the
        scores themselves.
    mask : {"causal", "none"}
        "causal": tokens of the first layer see no later tokens. "none": tokens see all
        tokens. Later tokens have the score of lag 0, as in the authors' code. Without
        the mask all predictions but the last one depend on the symbols that they
        predict, and these symbols themselves are the labels.
    positions : {"all", "last"}
        "all": the loss is the mean over all predictions. "last": it is the loss of the
        last prediction.
    chains : {"dirichlet", "circulant"}
        "dirichlet": the rows are independent. "circulant": all rows are shifts of one
        row, so that all symbols are equally frequent and unigrams say nothing.
        Circulant chains must have two or three symbols.
    concentration : float
        The rows have the Dirichlet law with this number for each symbol.
    sequences : int, optional
        Train on this number of drawn sequences, with the law of each next symbol as its
        label. By default the loss is a sum over all sequences of T symbols, which
        requires a small T.
    second : {"matrix", "number"}
        "matrix": all entries of W are trained. "number": W = bI with one number b;
        rules that scale each number by itself, such as Adam, need this and ``ratio=1``.
    match : float
        b at step 0.
    common : float, optional
        c at step 0, for a matrix; 0.01 by default.
    scores : array_like, (m,), optional
        v at step 0; zeros by default.
    ratio : float
        Learning rate of v, divided by the learning rate ``eta`` of W.
    seed : int
        Seed of the drawn sequences.
    eta, epsilon, above, rule, method, max_steps
        As for every `Family`.

    References
    ----------
    docs/theory/minimal-heads.md.

    Examples
    --------
    >>> import icl_theory as icl
    >>> run = icl.MinimalHeads(k=2, T=7, max_steps=200).simulate()
    >>> run.regime
    'induction'
    """

    name: ClassVar[str] = "minimal-heads"
    title: ClassVar[str] = "the minimal model of an induction head"
    goal: ClassVar[tuple[str, float] | None] = None
    loss_unit: ClassVar[str] = "nats"
    phase_names: ClassVar[tuple[str, ...]] = ("uniform", "unigram", "bigram")
    columns: ClassVar[tuple[Column, ...]] = (
        Column(
            "emergence",
            "i8",
            "steps",
            "first step with a loss halfway from unigram to bigram counts",
            "T_e",
            r"T_\mathrm{e}",
            "steps",
        ),
        Column("outcome", "U16", "", "what has been learnt at the end", role="word"),
        Column("b", "f8", "", "match at the end", "b", "b"),
        Column("c", "f8", "", "part of W that all entries share, at the end", "c", "c"),
    )

    eta: float | str = learning_rate(0.01)
    k: int = parameter(
        3, kind=Whole(minimum=2, maximum=100), meaning="number of symbols"
    )
    T: int = parameter(8, kind=Whole(minimum=2, maximum=10**4), meaning="length")
    lags: int | None = parameter(
        None,
        kind=Whole(minimum=2, maximum=10**4, optional=True),
        symbol="m",
        meaning="number of lags, by default T",
    )
    first: str = parameter(
        "softmax", kind=Word(words=("softmax", "linear")), meaning="first layer"
    )
    mask: str = parameter(
        "causal", kind=Word(words=("causal", "none")), meaning="mask of the first layer"
    )
    positions: str = parameter(
        "all", kind=Word(words=("all", "last")), meaning="predictions in the loss"
    )
    chains: str = parameter(
        "dirichlet",
        kind=Word(words=("dirichlet", "circulant")),
        meaning="law of the chains",
    )
    concentration: float = parameter(
        1.0,
        kind=Number(minimum=0.01, maximum=1e3),
        symbol="α",
        tex=r"\alpha",
        meaning="Dirichlet concentration",
    )
    sequences: int | None = parameter(
        None,
        kind=Whole(optional=True),
        symbol="M",
        meaning="drawn sequences; by default all",
    )
    second: str = parameter(
        "matrix",
        kind=Word(words=("matrix", "number")),
        meaning="whether W is a matrix or a number times I",
    )
    match: float = parameter(
        0.0,
        kind=Number(signed=True, maximum=LARGEST),
        tex="b_0",
        meaning="match b at step 0",
    )
    common: float | None = parameter(
        None,
        kind=Number(signed=True, optional=True, maximum=LARGEST),
        tex="c_0",
        meaning="part c of all entries of W at step 0; by default 0.01",
    )
    scores: Any = parameter(
        None,
        kind=Numbers(optional=True, ndim=(1,), largest=LARGEST),
        meaning="lag scores at step 0",
    )
    ratio: float = parameter(
        1000.0,
        kind=Number(minimum=1e-9, maximum=1e9),
        meaning="first layer's rate over eta",
    )
    seed: int = parameter(0, kind=Whole(minimum=0), meaning="seed of the sequences")
    max_steps: int = parameter(
        10**4, kind=Whole(), meaning="largest number of steps", axis=False
    )

    def validate(self) -> None:
        """Check the parameters against each other.

        The risk is not made here, but in `risk`, because its Bayes loss takes seconds
        for long sequences.
        """
        if self.lags is not None and self.lags > self.T:
            raise argument_error("lags", self.lags, f"at most T = {self.T}")
        if self.second == "number" and self.common is not None:
            raise argument_error("common", self.common, "left out if W is a number")
        if self.is_circulant and self.k > 3:
            # With more than three symbols the law of circulant chains changes when
            # symbols are renamed. Training would then not keep W = bI + c 11ᵀ, and one
            # sequence could not stand for all sequences with other names of symbols.
            raise argument_error("k", self.k, "2 or 3 for circulant chains")
        if self.scores is not None and len(self.scores) != self.lag_count:
            raise argument_error(
                "scores", self.scores, f"{self.lag_count} numbers, one for each lag"
            )
        if self.sequences is not None:
            # A generous estimate for one sequence: at each position an evaluation holds
            # the k² products of all pairs of symbols and a few vectors of k numbers.
            # The factor 4 is for copies of these arrays.
            numbers = 4.0 * self.T * self.k * (self.k + 2.0)
            check_fits("sequences", self.sequences, 8.0 * self.sequences * numbers)
        else:
            check_enumerable(self.k, self.T)

    @property
    def lag_count(self) -> int:
        """Number of lags with scores of their own."""
        return self.T if self.lags is None else self.lags

    @property
    def is_drawn(self) -> bool:
        """Whether the loss is a mean over drawn sequences instead of all sequences."""
        return self.sequences is not None

    @property
    def is_circulant(self) -> bool:
        """Whether the chains are circulant."""
        return self.chains == "circulant"

    @property
    def last_only(self) -> bool:
        """Whether only the last prediction has a loss."""
        return self.positions == "last"

    @cached_property
    def data(self) -> Sequences:
        """The sequences over which the loss is averaged."""
        if self.sequences is None:
            return Sequences.every(
                self.k, self.T, self.concentration, circulant=self.is_circulant
            )
        rng = np.random.default_rng([self.seed, STREAM_OF_SEQUENCES])
        return Sequences.drawn(
            self.k,
            self.T,
            self.concentration,
            count=self.sequences,
            rng=rng,
            circulant=self.is_circulant,
        )

    @cached_property
    def _risk(self) -> MinimalRisk:
        """The risk, which is made once, because its Bayes loss may take seconds."""
        attention = LagAttention(
            self.T,
            self.lag_count,
            is_softmax=self.first == "softmax",
            is_causal=self.mask == "causal",
        )
        scores = np.zeros(self.lag_count) if self.scores is None else self.scores
        second_layer = [self.match]
        if self.second == "matrix":
            common = COMMON if self.common is None else self.common
            # W = bI + c 11^T has b + c on its diagonal and c elsewhere.
            second_layer = [self.match + common, common]
        return MinimalRisk(
            attention=attention,
            k=self.k,
            concentration=self.concentration,
            sequences=self.data,
            start=np.concatenate([scores, second_layer]),
            ratio=self.ratio,
            last_only=self.last_only,
            bayes=self.predictors["Bayes"],
            circulant=self.is_circulant,
        )

    def risk(self) -> MinimalRisk:
        """Return the risk over v and W."""
        return self._risk

    @property
    def is_counted(self) -> bool:
        """Whether the losses of the predictors are computed from the law of counts.

        The losses of the predictors are then means over all sequences, although
        training uses drawn ones.
        """
        return self.is_drawn and self.k <= 3 and not self.is_circulant

    @cached_property
    def predictors(self) -> dict[str, float]:
        """The losses of simple predictors of the next symbol, by name.

        The unigram predicts the frequencies of the symbols so far. The bigram predicts
        the frequencies of the symbols that followed the last symbol. Both add
        ``concentration`` to each count. "Bayes" is the loss of the Bayes-optimal
        predictor, which is the bigram if the rows are independent.

        If sequences are drawn, the losses are exact for two and three symbols with
        independent rows. Otherwise they are means over the drawn sequences.
        """
        if self.is_counted:
            # The losses at all T positions, by name.
            exact = position_losses(self.k, self.T, self.concentration).by_name()
            losses = {
                name: float(np.mean(self._at_positions(at_all_positions)))
                for name, at_all_positions in exact.items()
            }
            return {**losses, "Bayes": losses["bigram"]}
        return {
            "uniform": math.log(self.k),
            "unigram": self._frequency_loss(self._totals),
            "bigram": self._frequency_loss(self._followers),
            "Bayes": self._entropy,
        }

    def _frequency_loss(self, counts: Array) -> float:
        """Return the loss of predicting symbols in proportion to counts.

        The concentration is added to each of the ``counts``, (P, M, k).
        """
        weights = self.concentration + counts
        log_shares = np.log(weights / weights.sum(axis=2, keepdims=True))
        return self._mean(-np.sum(self._following * log_shares, axis=2))

    @property
    def _following(self) -> Array:
        """Law of the next symbol at the P positions that have a loss, (P, M, k)."""
        return self._at_positions(self.data.following)

    @property
    def _entropy(self) -> float:
        """Mean entropy of the law of the next symbol, the Bayes-optimal loss."""
        following = self._following
        return self._mean(-np.sum(following * np.log(following), axis=2))

    def _at_positions(self, array: Array) -> Array:
        """Select the positions that have a loss in an array (T, ...)."""
        return array[-1:] if self.last_only else array

    def _mean(self, losses: Array) -> float:
        """Return the mean of losses (P, M) over positions and sequences."""
        return float(losses.mean(axis=0) @ self.data.probability)

    @property
    def _totals(self) -> Array:
        """How often each symbol has occurred before each prediction, (P, M, k)."""
        totals = np.stack([*running_totals(self.data.symbols, self.k)])
        return self._at_positions(totals)

    @property
    def _followers(self) -> Array:
        """How often each symbol has followed the last symbol so far, (P, M, k)."""
        # If the first layer attends to lag 1 alone, and W = I, the logits of the model
        # are these counts. With linear weights the scores v = (0, 1) are the attention.
        attention = LagAttention(self.T, lags=2, is_softmax=False, is_causal=True)
        lag_1_alone = np.array([0.0, 1.0])
        head = EveryPosition(
            attention, self.data.symbols, self.k, v=lag_1_alone, b=1.0, c=0.0
        )
        return self._at_positions(head.logits)

    @cached_property
    def count_levels(self) -> dict[str, CountLevel]:
        """The best predictions of a second layer that counts symbols, by name.

        The second layer adds up tokens and does not divide by their number, so that its
        logits are counts times a strength. "unigram" is the best prediction from the
        counts of all symbols so far. "bigram" is the best prediction from the counts of
        the symbols that followed the last symbol. The excess of each loss over the
        Bayes loss is a mean over the sequences of the problem.
        """
        return {
            "unigram": self._count_level(self._totals),
            "bigram": self._count_level(self._followers),
        }

    def _count_level(self, counts: Array) -> CountLevel:
        """Find the multiple of counts, (P, M, k), that is best as logits."""
        # The mean count of the next symbol at each position, (P, M).
        mean_count = np.sum(self._following * counts, axis=2)

        def loss(strength: float) -> float:
            # -ln softmax(z)_y = ln Σ exp(z) - z_y, averaged over the next symbol y
            log_total = logsumexp(strength * counts, axis=2)
            return self._mean(log_total - strength * mean_count)

        # The loss is convex in the strength, so the search finds its only minimum from
        # any bracket. 1/T is the scale of the strengths, because counts grow like T. An
        # error of the strength changes the least loss by the order of its square only.
        minimum = minimize_scalar(loss, bracket=(0.0, 1.0 / self.T), tol=1e-8)
        # The excess over the Bayes loss varies less between drawn sequences than the
        # loss itself does. So the excess is added to the Bayes loss of `predictors`,
        # which is exact for two and three symbols with independent rows.
        excess = float(minimum.fun) - self._entropy
        return CountLevel(float(minimum.x), self.predictors["Bayes"] + excess)

    def levels(self) -> Mapping[str, float]:
        """Return the losses to draw as lines, by name."""
        counts = self.count_levels
        return {
            **self.predictors,
            "unigram counts": counts["unigram"].loss,
            "bigram counts": counts["bigram"].loss,
        }

    def average_error(self, params: ArrayLike) -> float:
        """Return the standard error of the loss if the sequences are drawn, else 0.

        The result is the standard error of the mean excess over the Bayes loss. For
        more than three symbols, and for circulant chains, the Bayes loss is itself a
        mean over the drawn sequences. The error of this mean is not included.
        """
        # The call also checks ``params`` if the error is 0.
        excesses = self.risk().excesses(params)
        if not self.is_drawn:
            return 0.0
        return float(np.std(excesses)) / math.sqrt(len(excesses))

    def outcome(self, params: ArrayLike) -> str:
        """Return in a word what the model with these parameters has learnt.

        The word is "unigram" if the second layer counts all tokens rather than matches.
        Otherwise it names the lag with the largest score: "induction" for lag 1, or
        "lag 2" for another one. The word begins with "anti-" if the match is negative.
        """
        risk = self.risk()
        v, b, c = risk.split(risk._checked(params))
        # The attention of the last token on all T tokens. The last token has the index
        # T - 1, and sees lag l at the token T - 1 - l.
        attention_of_last = risk.attention.matrix(v)[-1]
        # Linear scores are the attention itself. They may be negative, so their
        # absolute values are compared.
        sizes = np.abs(v) if self.first == "linear" else v
        lag = int(np.argmax(sizes))
        attention_on_lag = float(attention_of_last[self.T - 1 - lag])
        # A token's score is the sum of two parts. It has the first part only if the
        # symbol at this lag equals the last symbol.
        part_of_match = b * attention_on_lag
        part_of_any_token = c * attention_of_last.sum()
        if abs(part_of_match) <= abs(part_of_any_token):
            return "unigram"
        word = "induction" if lag == 1 else f"lag {lag}"
        return word if part_of_match > 0.0 else f"anti-{word}"

    def describe(self, run: Trajectory) -> None:
        """Divide the run into phases by its loss, and note what was learnt."""
        counts = self.count_levels
        levels = Levels(math.log(self.k), counts["unigram"].loss, counts["bigram"].loss)
        run.phases = plateau_phases(run, levels)
        run.regime = self.outcome(run.params)
        _, b, c = self.risk().split(run.params)
        run.notes["second layer"] = f"b = {b:.4g}, c = {c:.4g}"
        run.notes["predictors"] = ", ".join(
            f"{name} {loss:.6g}" for name, loss in self.levels().items()
        )
        # The phases that the run has, as intervals (first step, last step).
        bigram = run.phases.present().get("bigram")
        if bigram is not None:
            emergence, _ = bigram
            run.notes["emergence"] = (
                f"the loss is halfway from unigram to bigram counts at step {emergence}"
            )
        if self.is_drawn:
            run.notes["average"] = (
                f"{self.sequences} sequences stand for all; the last loss has the"
                f" standard error {self.average_error(run.params):.1g}"
            )

    def measure(self, run: Trajectory) -> dict[str, Any]:
        """Return the family's columns of a run."""
        emergence = -1  # if the run has no bigram phase
        if run.phases is not None and "bigram" in run.phases.present():
            emergence, _ = run.phases.present()["bigram"]
        _, b, c = self.risk().split(run.params)
        return {
            "emergence": emergence,
            "outcome": self.outcome(run.params),
            "b": b,
            "c": c,
        }
