"""Induction heads: two layers of attention on random Markov chains.

`InductionHeads` is the family; it trains on the exact loss. `TwoLayers` maps its
parameters to the scores of the second layer, and `InductionRisk` is the loss of these
parameters. `dirichlet_points` makes chains that stand for a continuous law of chains.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import Array, argument_error, probabilities
from icl_theory.engine import Map, Phases, Pullback, Risk, Trajectory
from icl_theory.engine.risk import WithStart
from icl_theory.engine.rules import Rule, Wrapper, rule_of
from icl_theory.families import (
    Column,
    Family,
    LazySlot,
    Number,
    Numbers,
    Panel,
    Probabilities,
    Whole,
    Word,
    parameter,
)
from icl_theory.families.parameters import learning_rate
from icl_theory.memory import check_fits
from icl_theory.papers.induction_heads.phases import Levels, plateau_phases
from icl_theory.tokens import (
    ChainRisk,
    Chains,
    CountRisk,
    ThreeStateCounts,
    TwoStateCounts,
)
from icl_theory.tokens.counts import CountLaw
from icl_theory.tokens.sampled import softmax

# Largest initial score: sums of a few of these are far from overflow.
LARGEST = 300.0
# In place of a symbol before the sequence begins; its one-hot vector is zero.
PAD = -1


def dirichlet_points(prior: Array, count: int, seed: int = 0) -> tuple[Array, Array]:
    """Return chains that stand for all chains with Dirichlet rows.

    Two states have the product of two Gauss–Jacobi rules with √count nodes each. More
    states have ``count`` scrambled Sobol points.

    Parameters
    ----------
    prior : ndarray, (k, k)
        Row s has the Dirichlet parameters of row s of the chains.
    count : int
        Number of chains C; for two states the next smaller square.
    seed : int
        Seed of the scrambling.

    Returns
    -------
    chains : ndarray, (C, k, k)
    probs : ndarray, (C,)
        Their probabilities.
    """
    if len(prior) == 2:
        return _two_state_points(prior, math.isqrt(count))
    return _sobol_points(prior, count, seed)


def _two_state_points(prior: Array, nodes: int) -> tuple[Array, Array]:
    """Return the product of a Gauss rule for P₀₁ and one for P₁₀."""
    from scipy.special import roots_jacobi  # slow to load

    x, x_weights = roots_jacobi(nodes, prior[0, 0] - 1.0, prior[0, 1] - 1.0)
    y, y_weights = roots_jacobi(nodes, prior[1, 1] - 1.0, prior[1, 0] - 1.0)
    p, q = np.meshgrid(0.5 * (1.0 + x), 0.5 * (1.0 + y))
    p = p.ravel()
    q = q.ravel()
    chains = np.stack([1.0 - p, p, q, 1.0 - q], axis=1).reshape(-1, 2, 2)
    probs = np.outer(y_weights, x_weights).ravel()
    return chains, probs / probs.sum()


def _sobol_points(prior: Array, count: int, seed: int) -> tuple[Array, Array]:
    """Break each row off a stick by independent beta variables."""
    from scipy.special import betaincinv  # slow to load
    from scipy.stats import qmc

    k = len(prior)
    rng = np.random.default_rng([seed, 1])
    sobol = qmc.Sobol(k * (k - 1), seed=rng)
    uniform = sobol.random(count).reshape(-1, k, k - 1)
    remainder = np.ones(uniform.shape[:2])
    columns = []
    for j in range(k - 1):
        u = uniform[:, :, j]
        shape = prior[:, j]
        later_shapes = prior[:, j + 1 :].sum(axis=1)
        # The part that breaks off and the part that remains both come from a quantile,
        # because 1 - x would lose the digits of a small remainder.
        share = betaincinv(shape, later_shapes, np.maximum(u, 2.0**-60))
        kept = betaincinv(later_shapes, shape, np.maximum(1.0 - u, 2.0**-60))
        columns.append(remainder * share)
        remainder = remainder * kept
    columns.append(remainder)
    return np.stack(columns, axis=2), np.full(count, 1.0 / count)


@dataclass(frozen=True, eq=False)
class TwoLayers(WithStart, Map):
    r"""Scores of the second layer, as a function of the parameters (a, B, c).

    .. math:: \alpha_{rl} \propto e^{a_l}, \qquad f_r = \sum_l \alpha_{rl} X_{rl},
        \qquad S = f B

    Tokens r see the symbols :math:`X_{rl}` at lags l. The sink sees a symbol of its
    own, whose row of B is c in each column.

    Attributes
    ----------
    symbols : ndarray, (..., m, k + 1)
        X, one-hot. The last symbol is the sink's. Vectors are zero at lags that reach
        behind the beginning of the sequence.
    start : ndarray
        Initial (a, B, c): m numbers; b with B = bI, or k² numbers; one number if there
        is a sink.
    matrix : bool
        Whether B is any matrix.
    queries : int, optional
        Number of last symbols that have scores; by default all of them have.
    """

    symbols: Array
    start: Array
    matrix: bool
    queries: int | None = None

    def split(self, params: Array) -> tuple[Array, Array]:
        """Return a, (m,), and B with a row of c below it, (k + 1, k).

        Without a sink no token sees the last row.
        """
        m = self.symbols.shape[-2]
        k = self.symbols.shape[-1] - 1
        match_size = k**2 if self.matrix else 1
        a, b, c = np.split(params, [m, m + match_size])
        B = b.reshape(k, k) if self.matrix else b[0] * np.eye(k)
        return a, np.vstack([B, np.full(k, c.sum())])

    def blocks(self, array: Array) -> Sequence[Array]:
        """The first layer and the second one."""
        return np.split(array, [self.symbols.shape[-2]])

    def lag_attention(self, a: Array) -> Array:
        """Attention of the first layer on the lags of each token, (..., m)."""
        is_visible = self.symbols.any(axis=-1)
        return softmax(np.where(is_visible, a, -np.inf))[0]

    def features(self, alpha: Array) -> Array:
        """Return f, (..., k + 1)."""
        return np.asarray(np.einsum("...l,...lx->...x", alpha, self.symbols))

    def inward(self, params: Array) -> Array:
        """Scores of the inner risk, (..., k)."""
        a, B = self.split(params)
        alpha = self.lag_attention(a)
        return self.features(alpha) @ self._asked(B)

    def push(self, params: Array, direction: Array) -> Array:
        """Derivative of the scores along a direction."""
        a, B = self.split(params)
        da, dB = self.split(direction)
        alpha = self.lag_attention(a)
        dalpha = _softmax_derivative(alpha, da)
        change = self.features(dalpha) @ self._asked(B)
        return change + self.features(alpha) @ self._asked(dB)

    def _asked(self, B: Array) -> Array:
        """Return the columns of the last symbols that have scores."""
        return B[:, : self.queries]

    def outward(self, params: Array, gradient: Array) -> Array:
        """Gradient in (a, B, c)."""
        a, B = self.split(params)
        m = len(a)
        k = len(B) - 1
        alpha = self.lag_attention(a)
        by_features = gradient @ self._asked(B).T
        by_alpha = np.einsum("...x,...lx->...l", by_features, self.symbols)
        by_a = _softmax_derivative(alpha, by_alpha).reshape(-1, m).sum(axis=0)
        features = self.features(alpha).reshape(-1, k + 1)
        by_B = features.T @ gradient.reshape(-1, gradient.shape[-1])
        by_match = by_B[:-1].ravel() if self.matrix else [np.trace(by_B)]
        by_sink = by_B[-1].sum()
        # Without a sink the parameters end before its score.
        return np.concatenate([by_a, by_match, [by_sink]])[: len(params)]

    def stretch(self, params: Array) -> float:
        """Norm of the derivative of the scores."""
        units = np.eye(len(params))
        derivatives = [self.push(params, unit).ravel() for unit in units]
        return float(np.linalg.norm(derivatives, 2))


def _softmax_derivative(alpha: Array, change: Array) -> Array:
    """Change of each row's softmax with its scores; the map is its own transpose."""
    mean_change = (alpha * change).sum(axis=-1, keepdims=True)
    return np.asarray(alpha * (change - mean_change))


@dataclass(frozen=True, eq=False)
class InductionRisk(Pullback):
    """Loss of (a, B, c): an inner risk of scores, plus the noise of the next symbol.

    Attributes
    ----------
    map : TwoLayers
        From (a, B, c) to the scores.
    last_probs : ndarray, (k,)
        Probabilities of the last symbol of a sequence.
    ratio : float
        Learning rate of the first layer, divided by the rate of the second one.
    added : float
        Loss that the next symbol adds to the inner risk.
    least : float
        The floor.
    """

    map: TwoLayers
    last_probs: Array
    ratio: float
    added: float
    least: float

    @property
    def metric(self) -> Array:
        """1/ratio for the first layer, and 1 for the second one."""
        is_first_layer = np.arange(len(self.initial)) < self.map.symbols.shape[-2]
        return np.where(is_first_layer, 1.0 / self.ratio, 1.0)

    def offset(self) -> float:
        """Return the loss that the next symbol adds."""
        return self.added

    def floor(self) -> float:
        """Loss of the Bayes-optimal prediction, or of one that knows the chain.

        The former is known for two states only.
        """
        return self.least

    # A pullback takes both of these from the inner risk. Its floor is another one, and
    # its Hessian lacks the curvature of the first layer's softmax.
    excess = Risk.excess
    hessian_product = Risk.hessian_product

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Attention of both layers, if the inner risk observes its own.

        ``first`` is the attention of the first layer on the lags, (m,), and ``second``
        that of the second layer on tokens, (..., k), expected given the last symbol.
        ``attention`` is the expected share of the tokens that follow an equal of the
        last symbol, ``sink`` the share of the sink, and ``match`` the matrix B, or b.
        """
        a, B = self.map.split(params)
        k = len(self.last_probs)
        first, _ = softmax(a)
        match = B[:k] if self.map.matrix else B[0, 0]
        observed = {"first": first, "match": np.asarray(match)}
        inner = self.risk.observe(self.map.inward(params), step)
        if "attention" not in inner:
            return observed
        second = inner["attention"]
        lag_1 = self.map.symbols[..., 1, :]
        is_equal = lag_1[..., :k]
        is_sink = lag_1[..., -1:]
        probs = self.last_probs * second
        observed["second"] = second
        observed["attention"] = np.asarray(np.sum(probs * is_equal))
        if is_sink.any():
            observed["sink"] = np.asarray(np.sum(probs * is_sink))
        return observed


@dataclass(frozen=True)
class Staged(Wrapper):
    """The first layer alone for some steps, and then the second one alone."""

    steps: int

    name = "staged"
    # While the first layer is at rest, the second one may not have moved yet.
    may_stagnate = False

    def step(
        self,
        risk: Risk,
        params: Array,
        gradient: Array,
        eta: float,
        memory: Array,
        t: int,
    ) -> tuple[Array, Array]:
        """Return the change of the parameters, and the memory of the wrapped rule."""
        staged_gradient = np.array(gradient)
        first, second = risk.blocks(staged_gradient)
        frozen = second if t < self.steps else first
        frozen[...] = 0.0
        return self.rule.step(risk, params, staged_gradient, eta, memory, t)


def _array(ndim: int) -> Numbers:
    """Declare an array or None."""
    return Numbers(optional=True, ndim=(ndim,), largest=LARGEST)


@dataclass(frozen=True, eq=False)
class InductionHeads(Family):
    r"""Two layers of attention on random Markov chains, which learn an induction head.

    .. math:: \alpha = \mathrm{softmax}(a), \qquad
        f_t = \sum_{l < m} \alpha_l e_{x_{t-l}}, \qquad
        o = \sum_t \mathrm{softmax}_t(f_t^\top B e_{x_T})\thinspace e_{x_t}

    The output o predicts the next symbol :math:`x_{T+1}`, one of k. The lag scores a,
    the match B, and the score c of a sink are trained.

    Parameters
    ----------
    k : int
        Number of symbols (states of the chains).
    T : int
        Number of symbols in a sequence.
    lags : int
        Number m of lags 0, ..., m - 1 that the first layer attends to.
    edge : {"causal", "complete"}
        "causal": the second layer attends to all T tokens, the first m - 1 of which see
        as many lags as there are symbols. "complete": it attends to the T - m + 1
        tokens that see all m lags.
    concentration : float or array_like, (k, k)
        Each row of a chain has the Dirichlet law with this number for each symbol. Row
        s of a matrix has the parameters for row s of a chain; for two symbols these are
        two Beta laws.
    chains : int, optional
        Train on this number of chains, drawn from the law; by default on the law.
    transitions : array_like, (C, k, k), optional
        Train on these chains.
    points : int
        Number of chains that stand for the law if there is no closed form. There is one
        for two states, two lags, and a given start. A power of two for k > 2.
    start : {"uniform", "stationary"} or array_like, (k,)
        Law of the first symbol.
    objective : {"square", "log"}
        :math:`\tfrac12|o - e_y|^2` or :math:`-\ln o_y`, with the next symbol y. The log
        loss is known for two lags and two states, and needs a sink. It is also known
        for three states, if B is a number, the edge is causal, the first symbol is
        uniform, and all entries of the chains have one concentration.
    second : {"number", "matrix"}
        B = bI with one number b, or any matrix B.
    match : float or array_like, (k, k)
        b at step 0, or B if any matrix is trained.
    scores : array_like, (m,), optional
        a at step 0; zeros by default, so that the first layer attends to all lags
        equally.
    sink : float, optional
        Score c at step 0 of a token in front of the sequence, whose value is 1/k for
        each symbol. By default there is no such token. If c is large, predictions are
        uniform in the beginning.
    ratio : float
        Learning rate of the first layer, divided by the rate ``eta`` of the second.
    stage : int
        Train the first layer alone for this number of steps, and then the second one
        alone; 0 trains both together.
    seed : int
        Seed of the chains and points.
    eta, epsilon, above, rule, method, max_steps
        As for every `Family`; the rule "ngd-blocks" takes steps of length eta in the
        second layer, and of length eta sqrt(ratio) in the first one.

    References
    ----------
    docs/theory/induction-heads.md.

    Examples
    --------
    >>> import icl_theory as icl
    >>> problem = icl.InductionHeads(T=50, objective="log", sink=6.0, max_steps=200)
    >>> run = problem.simulate()
    >>> run.regime
    'induction'
    """

    name: ClassVar[str] = "induction-heads"
    title: ClassVar[str] = "two layers of attention on Markov chains"
    claims = LazySlot("icl_theory.papers.induction_heads.statements:CLAIMS")
    explorer = Panel(
        Path(__file__).parent / "panel", ("closed.js", "picture.js", "panel.js")
    )
    goal: ClassVar[tuple[str, float] | None] = None
    loss_unit: ClassVar[str] = "squared probabilities, or nats"
    phase_names: ClassVar[tuple[str, ...]] = ("uniform", "unigram", "bigram")
    columns: ClassVar[tuple[Column, ...]] = (
        Column(
            "emergence",
            "i8",
            "steps",
            "first step with a loss halfway from unigram to bigram",
            "T_e",
            r"T_\mathrm{e}",
            "steps",
        ),
        Column("outcome", "U16", "", "what has been learnt at the end", role="word"),
        Column(
            "b",
            "f8",
            "",
            "match strength at the end, of B the diagonal above the rest",
            "b",
            "b",
        ),
        Column(
            "lag_share",
            "f8",
            "",
            "attention of the first layer on lag 1 at the end",
            "α_1",
            r"\alpha_1",
        ),
        Column("new_loss", "f8", "", "loss on new chains at the end, if few are given"),
    )

    eta: float | str = learning_rate(1.0)
    k: int = parameter(
        2, kind=Whole(minimum=2, maximum=100), meaning="number of symbols"
    )
    T: int = parameter(50, kind=Whole(minimum=2, maximum=10**6), meaning="length")
    lags: int = parameter(
        2, kind=Whole(minimum=2, maximum=20), symbol="m", meaning="number of lags"
    )
    edge: str = parameter(
        "causal",
        kind=Word(words=("causal", "complete")),
        meaning="tokens that are attended to",
    )
    concentration: Any = parameter(
        1.0,
        kind=Number(minimum=0.01, maximum=1e6, matrix=True),
        symbol="α",
        tex=r"\alpha",
        meaning="Dirichlet concentration",
    )
    chains: int | None = parameter(
        None,
        kind=Whole(optional=True),
        symbol="C",
        meaning="chains that are trained on; by default all",
    )
    transitions: Any = parameter(None, kind=_array(3), meaning="given chains")
    points: int = parameter(
        64, kind=Whole(minimum=4, maximum=2**20), meaning="chains that stand for all"
    )
    start: Any = parameter(
        "uniform",
        kind=Probabilities(words=("uniform", "stationary")),
        meaning="first symbol",
        axis=False,
    )
    objective: str = parameter(
        "square", kind=Word(words=("square", "log")), meaning="loss of a prediction"
    )
    second: str = parameter(
        "number", kind=Word(words=("number", "matrix")), meaning="what the match is"
    )
    match: Any = parameter(
        0.01,
        kind=Number(signed=True, maximum=LARGEST, matrix=True),
        tex="b_0",
        meaning="match strength at step 0",
    )
    scores: Any = parameter(None, kind=_array(1), meaning="lag scores at step 0")
    sink: float | None = parameter(
        None,
        kind=Number(signed=True, optional=True, maximum=LARGEST),
        tex="c_0",
        meaning="sink's score at step 0",
    )
    ratio: float = parameter(
        1.0,
        kind=Number(minimum=1e-9, maximum=1e9),
        meaning="first layer's rate over eta",
    )
    stage: int = parameter(
        0,
        kind=Whole(minimum=0),
        meaning="steps of the first layer alone, before the second",
    )
    seed: int = parameter(
        0, kind=Whole(minimum=0), meaning="seed of the chains and points"
    )
    max_steps: int = parameter(
        10**5, kind=Whole(), meaning="largest number of steps", axis=False
    )

    def validate(self) -> None:
        """Check the parameters against each other, and make the risk."""
        self._check_sizes()
        self._check_chains()
        self._check_start()
        if self.objective == "log":
            self._check_log_loss()
        self.risk()

    def _check_log_loss(self) -> None:
        """Refuse the log loss of problems for which it is not known."""
        if self.k > 3 or self.lags != 2 or self.sink is None:
            raise argument_error(
                "objective",
                self.objective,
                "'square' unless k = 2 or 3, lags = 2, and a sink is given",
            )
        if self.k == 2:
            return
        if not self._is_exchangeable or self.second != "number":
            raise argument_error(
                "objective",
                self.objective,
                "'square' for k = 3 unless the match is a number, the start is uniform,"
                " and the chains have one concentration and are not given",
            )
        if self.edge != "causal":
            raise argument_error(
                "edge", self.edge, "'causal' for the log loss of k = 3"
            )

    @property
    def _is_exchangeable(self) -> bool:
        """Whether the law of sequences stays the same if symbols are renamed."""
        is_uniform = self.first is not None and bool(np.ptp(self.first) == 0.0)
        return self.few is None and is_uniform and np.ndim(self.concentration) == 0

    def _check_sizes(self) -> None:
        k = self.k
        m = self.lags
        if self.T - 2 * m + 1 < 0:
            raise argument_error("T", self.T, f"at least 2 lags - 1 = {2 * m - 1}")
        check_fits("lags", m, 16.0 * m * (m + 1) * k ** (m + 1.0))

    def _check_chains(self) -> None:
        k = self.k
        if np.shape(self.concentration) not in ((), (k, k)):
            raise argument_error(
                "concentration",
                self.concentration,
                f"a positive number, or {k} rows of {k} of them",
            )
        if self.transitions is not None:
            shape = np.shape(self.transitions)
            if shape[1:] != (k, k):
                raise argument_error("transitions", shape, f"of shape (C, {k}, {k})")
            if self.chains is not None:
                raise argument_error("chains", self.chains, "left out with transitions")

    def _check_start(self) -> None:
        k = self.k
        if not isinstance(self.start, str) and len(self.start) != k:
            raise argument_error(
                "start",
                self.start,
                f"uniform, stationary, or {k} positive numbers that sum to 1",
            )
        if self.scores is not None and len(self.scores) != self.lags:
            raise argument_error(
                "scores", self.scores, f"{self.lags} numbers, one for each lag"
            )
        self._check_match()
        # Sobol points are balanced for powers of two only.
        is_power_of_two = self.points & (self.points - 1) == 0
        if k > 2 and not is_power_of_two:
            raise argument_error(
                "points", self.points, "a power of two for more than two symbols"
            )

    def _check_match(self) -> None:
        """Refuse a matrix of another shape, or if a number is trained."""
        shape = np.shape(self.match)
        if not shape:
            return
        if self.second != "matrix":
            raise argument_error("match", shape, "a number unless second = 'matrix'")
        if shape != (self.k, self.k):
            raise argument_error(
                "match", shape, f"a number, or of shape {(self.k, self.k)}"
            )

    @property
    def counted(self) -> bool:
        """Whether counts of pairs are enough."""
        return self.lags == 2 and (self.k == 2 or self._is_renamed)

    @property
    def _is_renamed(self) -> bool:
        """Whether symbols have names relative to the last one, which is 0."""
        return self.k == 3 and self.objective == "log"

    @property
    def approximate(self) -> bool:
        """Whether some chains stand for a continuous law."""
        return self.few is None and (self.first is None or not self.counted)

    @cached_property
    def few(self) -> Array | None:
        """Chains that are trained on, given or drawn, (C, k, k); None if all are."""
        if self.transitions is not None:
            return np.array(self.transitions)
        if self.chains is None:
            return None
        check_fits("chains", self.chains, 24.0 * self.chains * self.k**2)
        rng = np.random.default_rng([self.seed, 0])
        drawn = np.empty((self.chains, self.k, self.k))
        for chain in drawn:
            for state, concentration in enumerate(self.prior):
                chain[state] = rng.dirichlet(concentration)
        return drawn

    @property
    def first(self) -> Array | None:
        """Law of the first symbol, (k,); None if it is stationary for each chain."""
        if self.start == "stationary":
            return None
        if self.start == "uniform":
            return np.full(self.k, 1.0 / self.k)
        return probabilities("start", self.start, self.k)

    @property
    def prior(self) -> Array:
        """Parameters of the Dirichlet laws of the rows, (k, k)."""
        return np.broadcast_to(np.asarray(self.concentration), (self.k, self.k))

    def law(self) -> tuple[Array, Array]:
        """Return the averaged chains, (C, k, k), and their probabilities, (C,)."""
        if self.few is None:
            return dirichlet_points(self.prior, self.points, self.seed)
        return self.few, np.full(len(self.few), 1.0 / len(self.few))

    @cached_property
    def _risk(self) -> InductionRisk:
        return self._count_risk() if self.counted else self._chain_risk()

    def _layers(self) -> TwoLayers:
        """Return the map from the parameters to the scores of the second layer."""
        scores = np.zeros(self.lags) if self.scores is None else self.scores
        is_matrix = self.second == "matrix"
        match = np.array([self.match])
        if is_matrix:
            match = np.array(self.match)
            # A number b stands for the matrix bI.
            match = (match if match.ndim else match * np.eye(self.k)).ravel()
        sink = [] if self.sink is None else [self.sink]
        start = np.concatenate([scores, match, sink])
        if self._is_renamed:
            return TwoLayers(self._renamed_symbols(), start, is_matrix, queries=1)
        symbols = self._counted_symbols() if self.counted else self._window_symbols()
        return TwoLayers(symbols, start, is_matrix)

    def _sink_value(self) -> Array | None:
        return None if self.sink is None else np.full(self.k, 1.0 / self.k)

    def _count_risk(self) -> InductionRisk:
        """Return the risk in which the counts of pairs are enough."""
        counts = self._counts()
        inner = CountRisk(counts, self.objective, self._sink_value())
        table = counts.table
        last_probs = table.mean(table.query[:, None] == np.arange(counts.queries))
        # The counts' risk includes the noise of the next symbol.
        added = 0.0
        least = inner.floor()
        return InductionRisk(
            inner, self._layers(), last_probs, self.ratio, added, least
        )

    def _counts(self) -> CountLaw:
        """Return the law of the counts of pairs."""
        if self._is_renamed:
            return ThreeStateCounts(self.T, float(self.concentration), first=True)
        first = self.first
        start = "stationary" if first is None else float(first[1])
        causal = self.edge == "causal"
        # The average over the law of chains has a closed form for a known start.
        if self.few is None and first is not None:
            return TwoStateCounts(self.T, self.prior, None, None, start, causal)
        return TwoStateCounts(self.T, None, *self.law(), start, causal)

    def _chain_risk(self) -> InductionRisk:
        """Return the risk that follows windows of symbols, chain by chain."""
        k = self.k
        m = self.lags
        causal = self.edge == "causal"
        check_fits("T", self.T, 32.0 * self.T * k ** (m + 1.0) * (k + 1))
        transitions, probs = self.law()
        length = self.T if causal else self.T - m + 1
        first = self.first
        if causal and first is not None:
            # No token sees the symbols before the first one. A window holds them all
            # the same, so they are uniform.
            first = np.tile(first, k ** (m - 1)) / k ** (m - 1)
        chains = Chains(transitions, m, probs=probs, start=first)
        # With the long step the rule has an error of 1.8e-8 of the loss, which is less
        # than the error of the quasi-random points.
        step = 0.4 if self.approximate and k > 2 else 0.2
        layers = self._layers()
        zero_scores = np.zeros((*layers.symbols.shape[:-2], k))
        sink = self._sink_value()
        inner = ChainRisk(chains, length, zero_scores, sink=sink, step=step)
        last_probs = chains.last(length).sum(axis=0)
        added = chains.irreducible(length)
        least = self._pairs().risk().floor() if k == 2 else added
        return InductionRisk(inner, layers, last_probs, self.ratio, added, least)

    def _visible_lags(self) -> list[int]:
        """Return how many lags each kind of token sees, beginning with the sink: 0."""
        visible = [] if self.sink is None else [0]
        if self.edge == "causal":
            visible.extend(range(1, self.lags))
        visible.append(self.lags)
        return visible

    def _window_indices(self, visible: int) -> Array:
        """Return the symbols at each lag in each window, (k**m, m), as seen by a token.

        A token sees the first lags only; the sink sees its own symbol, which is k.
        """
        lags = np.arange(self.lags)
        windows = np.arange(self.k**self.lags)[:, None] // self.k**lags % self.k
        invisible = self.k if visible == 0 else PAD
        return np.where(lags < visible, windows, invisible)

    def _one_hot(self, indices: Array) -> Array:
        """Return one-hot vectors, (..., k + 1), which are zero for `PAD`.

        The last entry stands for the sink's own symbol.
        """
        return np.asarray(indices[..., None] == np.arange(self.k + 1), dtype=float)

    def _window_symbols(self) -> Array:
        """Return X by kind of token and window, (n, k**m, m, k + 1)."""
        kinds = [self._window_indices(visible) for visible in self._visible_lags()]
        return self._one_hot(np.stack(kinds))

    def _counted_symbols(self) -> Array:
        """Return X with each token once, (R, m, k + 1), the sink last, as counts do."""

        def distinct(visible: int) -> Array:
            # The first lags are the lowest digits of a window's number, so that tokens
            # with this number of lags repeat after k**visible windows.
            return self._window_indices(visible)[: self.k**visible]

        kinds = [distinct(visible) for visible in reversed(self._visible_lags())]
        return self._one_hot(np.concatenate(kinds))

    def _renamed_symbols(self) -> Array:
        """Return X of the kinds of `ThreeStateCounts`, and of the sink."""
        names = np.arange(3)
        # A token that follows another symbol than the last one sees any of these at lag
        # 1: all of them have the same score.
        lag_1 = np.repeat([0, 1, PAD], 3)
        indices = np.column_stack([np.tile(names, 3), lag_1])
        return self._one_hot(np.vstack([indices, [self.k, self.k]]))

    def _pairs(self) -> InductionHeads:
        """Return the same law with a sink and a model that sees symbols and pairs."""
        return self.changed(
            lags=2,
            edge="causal",
            sink=0.0,
            second="number",
            match=0.01,
            scores=None,
            stage=0,
            method="auto",
        )

    def risk(self) -> InductionRisk:
        """Return the risk over lag scores, match and sink."""
        return self._risk

    def update(self) -> str | Rule:
        """Return the rule, in stages if there are some."""
        rule = rule_of(super().update())
        return Staged(rule, self.stage) if self.stage else rule

    @cached_property
    def predictors(self) -> dict[str, float]:
        """Losses of simple predictors of the next symbol, by name.

        The unigram predicts the frequencies of the symbols in the sequence so far. The
        bigram predicts the frequencies of the symbols that followed the last symbol.
        Both add ``concentration``, or its mean, to the count of each symbol. "Bayes" is
        the least loss, if it is known.
        """
        if self._is_renamed:
            losses = ThreeStateCounts(self.T, float(self.concentration)).predictors()
            return {**losses, "Bayes": losses["bigram"]}
        # Unigram and bigram are induction heads whose first layer attends to the
        # previous token. They differ in the scores of tokens whose predecessor is not
        # the last symbol: the unigram counts these tokens like all others, the bigram
        # does not count them.
        pairs = self._pairs().risk()
        hidden = -100.0
        losses = {
            "uniform": self._uniform_loss(),
            "unigram": self._pair_loss(pairs, 0.0),
            "bigram": self._pair_loss(pairs, hidden),
        }
        # Independent rows with one concentration make the bigram Bayes-optimal.
        is_symmetric = np.ndim(self.concentration) == 0
        if self.k == 2:
            losses["Bayes"] = pairs.floor()
        elif self.few is None and self.first is not None and is_symmetric:
            losses["Bayes"] = losses["bigram"]
        return losses

    def predictors_in_nats(self) -> dict[str, float]:
        """Return the log losses of the `predictors`, whatever the objective is.

        The losses do not depend on the number of lags. They are known for two states,
        and for three states if all entries of the chains have one concentration and the
        first symbol is uniform.

        Examples
        --------
        >>> import icl_theory as icl
        >>> losses = icl.InductionHeads(k=3, T=20).predictors_in_nats()
        >>> {name: round(loss, 4) for name, loss in losses.items()}
        {'uniform': 1.0986, 'unigram': 1.0189, 'bigram': 0.9129, 'Bayes': 0.9129}
        """
        if self.k == 3 and self._is_exchangeable:
            losses = ThreeStateCounts(self.T, float(self.concentration)).predictors()
            return {**losses, "Bayes": losses["bigram"]}
        if self.k != 2:
            raise argument_error(
                "k",
                self.k,
                "2; or 3 with a uniform start, one concentration, and no given chains",
            )
        return self._pairs().changed(objective="log").predictors

    def _uniform_loss(self) -> float:
        if self.objective == "log":
            return math.log(self.k)
        return 0.5 * (1.0 - 1.0 / self.k)

    def _pair_loss(self, risk: InductionRisk, unequal: float) -> float:
        """Return the loss of a head that scores tokens by their predecessors.

        The score is 0 if the predecessor equals the last symbol, and ``unequal`` if
        not. The sink has the score that adds the prior counts.
        """
        prior = math.log(self.k * self.prior.mean())
        lag_1 = risk.map.symbols[..., 1, :]
        is_sink = lag_1[..., -1:]
        is_equal = lag_1[..., :-1]
        scores = np.where(is_sink, prior, np.where(is_equal, 0.0, unequal))
        return risk.risk.loss(scores) + risk.added

    def levels(self) -> Mapping[str, float]:
        """Return the losses to draw as lines: those more than 1 % above the floor."""
        visible = 1.01 * self.risk().floor()
        return {name: loss for name, loss in self.predictors.items() if loss > visible}

    def average_error(self, params: ArrayLike) -> float:
        """Return an error estimate of the loss if some chains stand for their law.

        Two states: twice the difference to four times as many nodes. More: the
        difference to the mean of eight independent scramblings, plus three of its
        standard errors. Both include the error of the integral over s, which is up to
        1.8e-8 of the inner loss for more than two states. If no chains stand for the
        law, the error is 0.
        """
        risk = self.risk()
        params = risk._checked(params)
        if not self.approximate:
            return 0.0
        loss = risk.loss(params)
        integral = 1e-14 * loss
        if isinstance(risk.risk, ChainRisk):
            integral += risk.risk.error(risk.map.inward(params))
        if self.k == 2:
            finer = self.changed(points=4 * self.points).risk().loss(params)
            return 2.0 * abs(finer - loss) + integral
        other_seeds = range(self.seed + 1, self.seed + 9)
        scramblings = [self.changed(seed=seed) for seed in other_seeds]
        scrambled = [problem.risk().loss(params) for problem in scramblings]
        scatter = 3.0 * float(np.std(scrambled, ddof=1)) / math.sqrt(8.0)
        return abs(float(np.mean(scrambled)) - loss) + scatter + integral

    def outcome(self, params: ArrayLike) -> str:
        """Return what parameters have learnt.

        The answer is "induction", or "lag 2" for another lag, with "anti-" before it if
        the match is negative.
        """
        params = self.risk()._checked(params)
        lag = int(np.argmax(params[: self.lags]))
        word = "induction" if lag == 1 else f"lag {lag}"
        return word if self._strength(params) > 0.0 else f"anti-{word}"

    def _strength(self, params: Array) -> float:
        """Return the mean of B's diagonal above the mean of its other entries."""
        _, B_and_sink = self.risk().map.split(params)
        B = B_and_sink[:-1]
        k = self.k
        trace = np.trace(B)
        return float((trace - (B.sum() - trace) / (k - 1)) / k)

    def describe(self, run: Trajectory) -> None:
        """Name the phases by the loss's plateau, and say what was learnt."""
        run.phases = self._phases(run)
        run.regime = self.outcome(run.params)
        shares = ", ".join(f"{share:.3g}" for share in run.observed["first"][-1])
        run.notes["learnt"] = (
            f"{run.regime}: the first layer attends to lags 0, 1, ... by {shares}"
        )
        bigram = run.phases.present().get("bigram")
        if bigram is not None:
            run.notes["emergence"] = (
                f"the loss is halfway from unigram to bigram at step {bigram[0]}"
            )
        run.notes["match"] = f"b = {self._strength(run.params):.4g}"
        run.notes["predictors"] = ", ".join(
            f"{name} {loss:.6g}" for name, loss in self.predictors.items()
        )
        if self.approximate:
            error = self.average_error(run.params)
            run.notes["average"] = (
                f"{self.points} chains stand for all; the last loss is off by up to"
                f" {error:.1g}"
            )

    def _phases(self, run: Trajectory) -> Phases:
        """Return the phases; one ends when the loss is halfway to the next level."""
        losses = self.predictors
        levels = Levels(losses["uniform"], losses["unigram"], losses["bigram"])
        return plateau_phases(run, levels)

    def measure(self, run: Trajectory) -> dict[str, Any]:
        """Return the family's columns of a run."""
        phases = {} if run.phases is None else run.phases.present()
        emergence = phases["bigram"][0] if "bigram" in phases else -1
        values = {
            "emergence": emergence,
            "outcome": self.outcome(run.params),
            "b": self._strength(run.params),
            "lag_share": float(run.observed["first"][-1, 1]),
        }
        if self.few is not None:
            all_chains = self.changed(chains=None, transitions=None)
            values["new_loss"] = all_chains.risk().loss(run.params)
        return values
