"""Edelman et al.'s minimal model of an induction head, as a family of problems."""

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
    refuse_many,
    running_totals,
)

# Largest initial score: sums of a few of these are far from overflow.
LARGEST = 300.0
# All entries of W at step 0 in the authors' code.
COMMON = 0.01


class CountLevel(NamedTuple):
    """The best prediction softmax(s n) from some counts n of the next symbol."""

    strength: float  # s
    loss: float  # nats


@dataclass(frozen=True, eq=False)
class MinimalHeads(Family):
    r"""The minimal model of an induction head: linear attention into cross entropy.

    .. math:: f_s = \sum_l A_{s,s-l}\, e_{x_{s-l}}, \qquad
        z_t = \sum_{s \le t} (e_{x_t}^\top W f_s)\, e_{x_s}, \qquad
        W = bI + c\,11^\top

    The model predicts softmax(z_t) after t symbols of a random Markov chain. The scores
    v of the lags in A, and the matrix W are trained.

    Parameters
    ----------
    k : int
        Number of symbols (states of the chains).
    T : int
        Number of symbols before the last prediction.
    lags : int, optional
        Number m of lags 0, ..., m - 1 with scores of their own; by default all T.
    first : {"softmax", "linear"}
        "softmax": A has softmax weights of the scores v. "linear": A has the scores
        themselves.
    mask : {"causal", "none"}
        "causal": tokens of the first layer see no later tokens. "none": they see all
        tokens, and later ones have the score of lag 0, as in the authors' code. Then
        all predictions but the last one depend on the symbols that they predict.
    positions : {"all", "last"}
        Whether the loss is the mean over all predictions or the last one's loss.
    chains : {"dirichlet", "circulant"}
        "dirichlet": the rows are independent. "circulant": they are one row, shifted,
        so that all symbols are equally frequent and unigrams say nothing; this is for
        two and three symbols.
    concentration : float
        The rows have the Dirichlet law with this number for each symbol.
    sequences : int, optional
        Train on this number of drawn sequences, with the law of each next symbol as its
        label. By default the loss is a sum over all sequences, which is for short ones.
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
        "matrix", kind=Word(words=("matrix", "number")), meaning="what W is"
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

        The risk is made when it is needed: for long sequences its baselines take
        seconds.
        """
        if self.lags is not None and self.lags > self.T:
            raise argument_error("lags", self.lags, f"at most T = {self.T}")
        if self.second == "number" and self.common is not None:
            raise argument_error("common", self.common, "left out if W is a number")
        if self.is_circulant and self.k > 3:
            # With more symbols the law changes when symbols are renamed.
            raise argument_error("k", self.k, "2 or 3 for circulant chains")
        if self.scores is not None and len(self.scores) != self.lag_count:
            raise argument_error(
                "scores", self.scores, f"{self.lag_count} numbers, one for each lag"
            )
        if self.sequences is not None:
            # The sequences, and the products of all pairs of symbols in a pass.
            numbers = 4.0 * self.T * self.k * (self.k + 2.0)
            check_fits("sequences", self.sequences, 8.0 * self.sequences * numbers)
        else:
            refuse_many(self.k, self.T)

    @property
    def lag_count(self) -> int:
        """Number of lags with scores of their own."""
        return self.T if self.lags is None else self.lags

    @property
    def is_drawn(self) -> bool:
        """Whether the sequences are drawn, and not all sequences."""
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
        """The sequences of the loss."""
        if self.sequences is None:
            return Sequences.every(
                self.k, self.T, self.concentration, self.is_circulant
            )
        rng = np.random.default_rng([self.seed, 2])
        return Sequences.drawn(
            self.k,
            self.T,
            self.concentration,
            self.sequences,
            rng,
            self.is_circulant,
        )

    @cached_property
    def _risk(self) -> MinimalRisk:
        attention = LagAttention(
            self.T, self.lag_count, self.first == "softmax", self.mask == "causal"
        )
        scores = np.zeros(self.lag_count) if self.scores is None else self.scores
        second = [self.match]
        if self.second == "matrix":
            common = COMMON if self.common is None else self.common
            # W = bI + c 11^T has b + c on its diagonal and c elsewhere.
            second = [self.match + common, common]
        return MinimalRisk(
            attention,
            self.k,
            self.concentration,
            self.data,
            np.concatenate([scores, second]),
            self.ratio,
            self.last_only,
            self.predictors["Bayes"],
            self.is_circulant,
        )

    def risk(self) -> MinimalRisk:
        """Return the risk over v and W."""
        return self._risk

    @property
    def is_counted(self) -> bool:
        """Whether counts give the losses of the predictors.

        The losses are then means over all sequences, although training uses a sample.
        """
        return self.is_drawn and self.k <= 3 and not self.is_circulant

    @cached_property
    def predictors(self) -> dict[str, float]:
        """Losses of simple predictors of the next symbol, by name.

        The unigram predicts the frequencies of the symbols so far, and the bigram those
        of the symbols that followed the last one. Both add ``concentration`` to each
        count. "Bayes" is the least loss, that of the bigram if the rows are
        independent. If sequences are drawn, the losses are exact for two and three
        symbols and independent rows; else they are means over the drawn sequences.
        """
        if self.is_counted:
            exact = position_losses(self.k, self.T, self.concentration).by_name()
            chosen = slice(-1, None) if self.last_only else slice(None)
            losses = {name: float(np.mean(exact[name][chosen])) for name in exact}
            return {**losses, "Bayes": losses["bigram"]}
        return {
            "uniform": math.log(self.k),
            "unigram": self._share_loss(self._totals),
            "bigram": self._share_loss(self._rows),
            "Bayes": self._entropy,
        }

    def _share_loss(self, counts: Array) -> float:
        """Return the loss of the shares of counts with the concentration added."""
        weights = self.concentration + counts
        log_shares = np.log(weights / weights.sum(axis=2, keepdims=True))
        return self._mean(-np.sum(self._following * log_shares, axis=2))

    @property
    def _following(self) -> Array:
        """Law of the next symbol, (P, M, k)."""
        return self._at_positions(self.data.following)

    @property
    def _entropy(self) -> float:
        """Mean entropy of the law of the next symbol."""
        following = self._following
        return self._mean(-np.sum(following * np.log(following), axis=2))

    def _at_positions(self, array: Array) -> Array:
        """Select the positions of the loss."""
        return array[-1:] if self.last_only else array

    def _mean(self, losses: Array) -> float:
        """Return the mean of losses (P, M) over positions and sequences."""
        return float(losses.mean(axis=0) @ self.data.probability)

    @property
    def _totals(self) -> Array:
        """How often each symbol occurs so far, (P, M, k)."""
        totals = np.stack([*running_totals(self.data.symbols, self.k)])
        return self._at_positions(totals)

    @property
    def _rows(self) -> Array:
        """How often each symbol followed the last one so far, (P, M, k)."""
        # A first layer that attends to lag 1 alone, under a second one with b = 1.
        attention = LagAttention(self.T, 2, is_softmax=False, is_causal=True)
        head = EveryPosition(
            attention, self.data.symbols, self.k, np.array([0.0, 1.0]), 1.0, 0.0
        )
        return self._at_positions(head.logits)

    @cached_property
    def count_levels(self) -> dict[str, CountLevel]:
        """The best predictions of a second layer that counts, by name.

        The second layer adds up tokens and does not divide by their number, so that
        its logits are counts times a strength. "unigram" is the best multiple of the
        counts of all symbols so far, and "bigram" that of the symbols that followed the
        last one. The losses are means over the sequences of the problem.
        """
        return {
            "unigram": self._count_level(self._totals),
            "bigram": self._count_level(self._rows),
        }

    def _count_level(self, counts: Array) -> CountLevel:
        """Find the multiple of counts that is best as logits."""
        mean_count = np.sum(self._following * counts, axis=2)

        def loss(strength: float) -> float:
            log_total = logsumexp(strength * counts, axis=2)
            return self._mean(log_total - strength * mean_count)

        # The loss is convex in the strength.
        end = minimize_scalar(loss, bracket=(0.0, 1.0 / self.T), tol=1e-8)
        # The excess over the Bayes loss varies less between sequences than the loss.
        excess = float(end.fun) - self._entropy
        return CountLevel(float(end.x), self.predictors["Bayes"] + excess)

    def levels(self) -> Mapping[str, float]:
        """Return the losses to draw as lines."""
        counts = self.count_levels
        return {
            **self.predictors,
            "unigram counts": counts["unigram"].loss,
            "bigram counts": counts["bigram"].loss,
        }

    def average_error(self, params: ArrayLike) -> float:
        """Return the standard error of the loss if the sequences are drawn, else 0.

        The error is that of the mean excess over the Bayes loss. For more than three
        symbols the Bayes loss has an error, too, which is not included.
        """
        excesses = self.risk().excesses(params)
        if not self.is_drawn:
            return 0.0
        return float(np.std(excesses)) / math.sqrt(len(excesses))

    def outcome(self, params: ArrayLike) -> str:
        """Return what parameters have learnt.

        The answer is "unigram" if the second layer counts all tokens rather than
        matches. Otherwise it names the lag with the largest score: "induction" for lag
        1, or "lag 2", with "anti-" before it if the match is negative.
        """
        v, b, c = self.risk().split(self.risk()._checked(params))
        A = self.risk().attention.matrix(v)
        # Linear scores may be negative; the largest one counts.
        lag = int(np.argmax(np.abs(v) if self.first == "linear" else v))
        largest_share = float(A[-1, self.T - 1 - lag])
        if abs(b * largest_share) <= abs(c * A[-1].sum()):
            return "unigram"
        word = "induction" if lag == 1 else f"lag {lag}"
        return word if b * largest_share > 0.0 else f"anti-{word}"

    def describe(self, run: Trajectory) -> None:
        """Name the phases by the loss's plateaus, and say what was learnt."""
        counts = self.count_levels
        levels = Levels(math.log(self.k), counts["unigram"].loss, counts["bigram"].loss)
        run.phases = plateau_phases(run, levels)
        run.regime = self.outcome(run.params)
        _, b, c = self.risk().split(run.params)
        run.notes["second layer"] = f"b = {b:.4g}, c = {c:.4g}"
        run.notes["predictors"] = ", ".join(
            f"{name} {loss:.6g}" for name, loss in self.levels().items()
        )
        bigram = run.phases.present().get("bigram")
        if bigram is not None:
            run.notes["emergence"] = (
                f"the loss is halfway from unigram to bigram counts at step {bigram[0]}"
            )
        if self.is_drawn:
            run.notes["average"] = (
                f"{self.sequences} sequences stand for all; the last loss has the"
                f" standard error {self.average_error(run.params):.1g}"
            )

    def measure(self, run: Trajectory) -> dict[str, Any]:
        """Return the family's columns of a run."""
        phases = {} if run.phases is None else run.phases.present()
        _, b, c = self.risk().split(run.params)
        return {
            "emergence": phases["bigram"][0] if "bigram" in phases else -1,
            "outcome": self.outcome(run.params),
            "b": b,
            "c": c,
        }
