"""Induction heads: two layers of attention on random Markov chains.

`InductionHeads` is the family; it trains on the exact loss. `TwoLayers` maps its
parameters to the scores of the second layer, and `InductionRisk` is the loss of these
parameters. `dirichlet_points` makes a finite number of chains that approximate a
continuous law.

A sequence has T symbols, each one of k. The parameters are (a, B, c). The first layer
has the attention α = softmax(a), with a score in a for each of m lags. The matrix B, or
B = bI with a number b, compares the output of this layer with the last symbol. The
number c is the score of a sink, an extra token in front of the sequence, if there is
one.

The loss is an inner risk of the scores of the second layer: `CountRisk` sums over
counts of pairs of symbols, and `ChainRisk` follows windows of m symbols, chain by
chain. Both have *kinds* of tokens, and a sink is a kind of its own. For `CountRisk` the
tokens of a kind have the same symbol and the same predecessor (or, for three states,
predecessors that all differ from the last symbol). They have the same scores, one for
each value of the last symbol. For `ChainRisk` the tokens of a kind see the same number
of lags, and their scores also depend on the window.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

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

# Largest initial score. exp() of the sum of two of these is within float64, which ends
# near e^709.
LARGEST = 300.0
# The symbol that a token sees at a lag that reaches back beyond the beginning of the
# sequence. The one-hot vector of this symbol is zero.
PAD = -1
# A random generator has the seed [seed, stream], so that different draws of one problem
# are independent.
STREAM_OF_CHAINS = 0
STREAM_OF_POINTS = 1
# Smaller coordinates of Sobol points are raised to this number. They may be 0, and the
# quantile at 0 would make an entry of a chain 0.
SMALLEST_QUANTILE = 2.0**-60
# `ChainRisk` computes the loss as an integral over a variable s. This is the distance
# between the nodes of the integral, in x with ln s = x - e^(-x) up to a constant. The
# error of the integral is then below rounding.
STEP = 0.2
# This coarser distance halves the number of nodes. The integral then has an error of
# 1.8e-8 of the loss, which is less than the error of Sobol points.
LONG_STEP = 0.4
# `average_error` compares the Sobol points with this number of other scramblings.
SCRAMBLINGS = 8
# A loss in `levels` is drawn as a line if it is more than this many times the floor.
LOWEST_LEVEL = 1.01
# A score that hides a token from attention: its weight e^-100 is far below rounding.
HIDDEN = -100.0


def dirichlet_points(prior: Array, count: int, seed: int = 0) -> tuple[Array, Array]:
    """Return chains that approximate the law of all chains with Dirichlet rows.

    For two states the chains are the product of two Gauss–Jacobi rules, for P₀₁ and for
    P₁₀, with √count nodes each. For more states they are ``count`` scrambled Sobol
    points.

    Parameters
    ----------
    prior : ndarray, (k, k)
        Row s has the Dirichlet parameters of row s of the chains.
    count : int
        Number of chains C. For two states it is rounded down to a square.
    seed : int
        Seed of the scrambling of Sobol points.

    Returns
    -------
    chains : ndarray, (C, k, k)
    probs : ndarray, (C,)
        Their probabilities.
    """
    if len(prior) == 2:
        return _two_state_points(prior, math.isqrt(count))
    return _sobol_points(prior, count, seed)


def _two_state_points(prior: Array, node_count: int) -> tuple[Array, Array]:
    """Return the product of a Gauss rule for p = P₀₁ and one for q = P₁₀."""
    from scipy.special import roots_jacobi  # slow to load

    # P₀₁ has the density p^(prior₀₁ - 1) (1 - p)^(prior₀₀ - 1), which is the weight of
    # a Gauss–Jacobi rule in x = 2p - 1. The function takes the exponents of 1 - x and
    # of 1 + x, in this order. The rule in y = 2q - 1 for P₁₀ is analogous.
    x, x_weights = roots_jacobi(node_count, prior[0, 0] - 1.0, prior[0, 1] - 1.0)
    y, y_weights = roots_jacobi(node_count, prior[1, 1] - 1.0, prior[1, 0] - 1.0)
    p_grid, q_grid = np.meshgrid(0.5 * (1.0 + x), 0.5 * (1.0 + y))
    p = p_grid.ravel()
    q = q_grid.ravel()
    chains = np.stack([1.0 - p, p, q, 1.0 - q], axis=1).reshape(-1, 2, 2)
    # The grids and this product have a row for each y (or q), and a column for each x
    # (or p).
    probs = np.outer(y_weights, x_weights).ravel()
    # The weights of a Gauss–Jacobi rule sum to the integral of its weight function, not
    # to 1.
    return chains, probs / probs.sum()


def _sobol_points(prior: Array, count: int, seed: int) -> tuple[Array, Array]:
    """Map Sobol points to chains with Dirichlet rows, all with the same probability.

    The entries of a row are broken off a stick of length 1, one after the other. The
    share of entry j in the remaining stick has a beta law, and the shares are
    independent.
    """
    from scipy.special import betaincinv  # slow to load
    from scipy.stats import qmc

    k = len(prior)
    rng = np.random.default_rng([seed, STREAM_OF_POINTS])
    # A row has k - 1 free entries.
    sobol = qmc.Sobol(k * (k - 1), seed=rng)
    uniform = sobol.random(count).reshape(-1, k, k - 1)
    remainder = np.ones(uniform.shape[:2])  # lengths of the sticks, (C, k)
    columns = []  # each item has one column of all chains, (C, k)
    for j in range(k - 1):
        u = uniform[:, :, j]
        alpha = prior[:, j]
        later_alpha = prior[:, j + 1 :].sum(axis=1)
        # The share that breaks off is the u-quantile of the beta law with the
        # parameters ``alpha`` and ``later_alpha``. The share that remains is computed
        # as the (1 - u)-quantile of the mirrored law, because 1 - broken_share would
        # lose the digits of a small remainder.
        broken_quantile = np.maximum(u, SMALLEST_QUANTILE)
        kept_quantile = np.maximum(1.0 - u, SMALLEST_QUANTILE)
        broken_share = betaincinv(alpha, later_alpha, broken_quantile)
        kept_share = betaincinv(later_alpha, alpha, kept_quantile)
        columns.append(remainder * broken_share)
        remainder = remainder * kept_share
    columns.append(remainder)
    return np.stack(columns, axis=2), np.full(count, 1.0 / count)


@dataclass(frozen=True, eq=False)
class TwoLayers(WithStart, Map):
    r"""Scores of the second layer, as a function of the parameters (a, B, c).

    .. math:: \alpha_{rl} \propto e^{a_l}, \qquad f_r = \sum_l \alpha_{rl} X_{rl},
        \qquad S = f B

    Token r sees the symbol :math:`X_{rl}` at lag l, one of m lags. Its score is
    :math:`S_{rq}` if the last symbol of the sequence is q. The sink sees a symbol of
    its own, and the row of B for this symbol has c in each column.

    Attributes
    ----------
    symbols : ndarray, (..., m, k + 1)
        X, one-hot vectors of the k symbols and, last, of the sink's own symbol. The
        axes before the lags run over the tokens. Vectors are zero at lags that reach
        back beyond the beginning of the sequence.
    start : ndarray
        Initial (a, B, c). a has m numbers. B has k² numbers if ``matrix``; otherwise it
        is the number b, for B = bI. c is one number, and is missing if there is no
        sink.
    matrix : bool
        Whether all entries of B are parameters.
    queries : int, optional
        Scores are computed for the first ``queries`` values of the last symbol. By
        default scores are computed for all k values.
    """

    symbols: Array
    start: Array
    matrix: bool
    queries: int | None = None

    def split(self, params: Array) -> tuple[Array, Array]:
        """Return a, (m,), and B with a row of c below it, (k + 1, k).

        Without a sink the last row is zero, and no token sees the symbol of this row.
        """
        m = self.symbols.shape[-2]
        k = self.symbols.shape[-1] - 1
        match_size = k**2 if self.matrix else 1
        # Slices are used, because `numpy.split` takes several times as long.
        a = params[:m]
        b = params[m : m + match_size]
        c = params[m + match_size :]
        B = b.reshape(k, k) if self.matrix else b[0] * np.eye(k)
        # Without a sink c is empty, and its sum is 0.
        return a, np.vstack([B, np.full(k, c.sum())])

    def blocks(self, array: Array) -> Sequence[Array]:
        """Return views of the parameters of the first layer and of the second one."""
        return np.split(array, [self.symbols.shape[-2]])

    def lag_attention(self, a: Array) -> Array:
        """Return the attention of the first layer on each token's lags, (..., m)."""
        # Lags that a token does not see get no attention.
        weights, _ = softmax(np.where(self._is_visible, a, -np.inf))
        return weights

    @cached_property
    def _is_visible(self) -> NDArray[np.bool_]:
        """Whether a token sees a symbol at each lag, (..., m).

        The vector of a lag at which the token sees no symbol is zero.
        """
        return np.asarray(self.symbols.any(axis=-1))

    def features(self, alpha: Array) -> Array:
        """Return the outputs f of the first layer, (..., k + 1)."""
        return np.asarray(np.einsum("...l,...lx->...x", alpha, self.symbols))

    def inward(self, params: Array) -> Array:
        """Return the scores of the second layer, (..., k)."""
        a, B = self.split(params)
        alpha = self.lag_attention(a)
        return self.features(alpha) @ self._scored_columns(B)

    def push(self, params: Array, direction: Array) -> Array:
        """Return the derivative of the scores along a direction in (a, B, c)."""
        a, B = self.split(params)
        da, dB = self.split(direction)
        alpha = self.lag_attention(a)
        dalpha = _softmax_derivative(alpha, da)
        change = self.features(dalpha) @ self._scored_columns(B)
        return change + self.features(alpha) @ self._scored_columns(dB)

    def _scored_columns(self, B: Array) -> Array:
        """Return the columns of B for the queries, the last symbols of sequences.

        Only the first ``queries`` symbols have scores.
        """
        return B[:, : self.queries]

    def outward(self, params: Array, gradient: Array) -> Array:
        """Return the gradient with respect to (a, B, c).

        ``gradient`` is the gradient with respect to the scores, (..., k).
        """
        a, B = self.split(params)
        m = len(a)
        k = len(B) - 1
        alpha = self.lag_attention(a)
        features_gradient = gradient @ self._scored_columns(B).T
        alpha_gradient = np.einsum("...x,...lx->...l", features_gradient, self.symbols)
        a_gradients = _softmax_derivative(alpha, alpha_gradient)
        a_gradient = a_gradients.reshape(-1, m).sum(axis=0)
        features = self.features(alpha).reshape(-1, k + 1)
        B_gradient = features.T @ gradient.reshape(-1, gradient.shape[-1])
        # b is each entry of the diagonal of B. This diagonal leaves out the last row of
        # the gradient, which belongs to c.
        match_gradient = np.array([np.trace(B_gradient)])
        if self.matrix:
            match_gradient = B_gradient[:-1].ravel()
        # c is each entry of the row of B for the sink's own symbol.
        sink_gradient = B_gradient[-1].sum()
        gradients = np.concatenate([a_gradient, match_gradient, [sink_gradient]])
        # Without a sink the parameters end before the score c.
        return gradients[: len(params)]

    def stretch(self, params: Array) -> float:
        """Return the spectral norm of the derivative of the scores."""
        units = np.eye(len(params))
        # The rows of the transposed Jacobian matrix. Its norm is the norm of the
        # Jacobian matrix.
        derivatives = [self.push(params, unit).ravel() for unit in units]
        return float(np.linalg.norm(derivatives, 2))


def _softmax_derivative(alpha: Array, change: Array) -> Array:
    """Return the change of softmax weights α if their scores change.

    This linear map is its own transpose, so it also maps a gradient with respect to α
    to the gradient with respect to the scores.
    """
    mean_change = (alpha * change).sum(axis=-1, keepdims=True)
    return np.asarray(alpha * (change - mean_change))


@dataclass(frozen=True, eq=False)
class InductionRisk(Pullback):
    """Loss of (a, B, c): an inner risk of the scores, plus a constant.

    Attributes
    ----------
    risk : CountRisk or ChainRisk
        The inner risk.
    map : TwoLayers
        The map from (a, B, c) to the scores.
    last_probs : ndarray, (k,) or (1,)
        Probabilities of the last symbol of a sequence. If symbols are renamed so that
        the last one is always called 0, there is only one probability.
    ratio : float
        Learning rate of the first layer, divided by the rate of the second one.
    added : float
        Loss that the randomness of the next symbol adds to the inner risk. It is 0 if
        the inner risk already includes this loss.
    least : float
        The lower bound of the loss that `floor` returns.
    """

    map: TwoLayers
    last_probs: Array
    ratio: float
    added: float
    least: float

    @property
    def metric(self) -> Array:
        """Metric of descent: 1/ratio for the first layer, and 1 for the second one."""
        lag_count = self.map.symbols.shape[-2]
        is_first_layer = np.arange(len(self.initial)) < lag_count
        return np.where(is_first_layer, 1.0 / self.ratio, 1.0)

    def offset(self) -> float:
        """Return the loss that the next symbol adds to the inner risk."""
        return self.added

    def floor(self) -> float:
        """Return the loss of the Bayes-optimal prediction, or a lower bound of it.

        The Bayes-optimal loss is known for two states, and for three states if the loss
        is a sum over counts. Otherwise the bound is the loss of a prediction that knows
        the chain.
        """
        return self.least

    # `Pullback` takes the excess and the Hessian from the inner risk. This class takes
    # both from `Risk` instead. The excess is then relative to the result of `floor`,
    # which differs from the floor of the inner risk. Hessian products are computed from
    # gradients of the whole risk, because the Hessian of the inner risk lacks the
    # curvature of the first layer's softmax.
    excess = Risk.excess
    hessian_product = Risk.hessian_product

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Return the attention of both layers, and the match.

        ``first`` is the attention of the first layer on the lags, (m,), and ``match``
        is the matrix B, or the number b. If the inner risk observes its attention,
        there are two more entries, or three with a sink. ``second`` is the expected
        attention of the second layer on all tokens of each kind, given the last symbol,
        (..., k). ``attention`` is the expected attention on all tokens whose
        predecessor equals the last symbol. ``sink`` is the expected attention on the
        sink.
        """
        a, B = self.map.split(params)
        # The last row of B has the sink's score, and is no part of the match.
        match = B[:-1] if self.map.matrix else B[0, 0]
        first, _ = softmax(a)
        observed = {"first": first, "match": np.asarray(match)}
        inner = self.risk.observe(self.map.inward(params), step)
        if "attention" not in inner:
            return observed
        second = inner["attention"]
        # The symbols at lag 1, as one-hot vectors: column q is 1 if the predecessor of
        # the token is q, and the last column is 1 for the sink. A renamed last symbol
        # is always 0.
        predecessor = self.map.symbols[..., 1, :]
        is_equal = predecessor[..., : len(self.last_probs)]
        is_sink = predecessor[..., -1:]
        # The expected attention times the probability of the last symbol, (..., k). The
        # sum over the last symbol is the expected attention.
        weighted_attention = self.last_probs * second
        observed["second"] = second
        observed["attention"] = np.asarray(np.sum(weighted_attention * is_equal))
        if is_sink.any():
            observed["sink"] = np.asarray(np.sum(weighted_attention * is_sink))
        return observed


@dataclass(frozen=True)
class Staged(Wrapper):
    """Train the first layer alone for some steps, and then the second one alone."""

    steps: int  # number of steps of the first layer

    name = "staged"
    # A run must not stop because its parameters do not move: while the first layer is
    # at rest, the second one has yet to be trained.
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
        """Return the change of the parameters, and the memory of the wrapped rule.

        ``t`` is the number of steps taken before. ``risk`` has two blocks of
        parameters, one for each layer.
        """
        staged_gradient = np.array(gradient)
        # The blocks are views. Zeros that are written to a block are therefore written
        # to the gradient.
        first_layer, second_layer = risk.blocks(staged_gradient)
        frozen = second_layer if t < self.steps else first_layer
        frozen[...] = 0.0
        return self.rule.step(risk, params, staged_gradient, eta, memory, t)


def _optional_array(ndim: int) -> Numbers:
    """Return the kind of a parameter: an array of this dimension, which may be absent.

    An absent parameter is None.
    """
    return Numbers(optional=True, ndim=(ndim,), largest=LARGEST)


@dataclass(frozen=True, eq=False)
class InductionHeads(Family):
    r"""Two layers of attention on random Markov chains, which learn an induction head.

    .. math:: \alpha = \mathrm{softmax}(a), \qquad
        f_t = \sum_{l < m} \alpha_l e_{x_{t-l}}, \qquad
        o = \sum_t \mathrm{softmax}_t(f_t^\top B e_{x_T})\thinspace e_{x_t}

    The output o predicts the next symbol :math:`x_{T+1}`, one of k, and :math:`e_x` is
    the one-hot vector of a symbol x. The lag scores a, the match B, and the score c of
    a sink are trained.

    Parameters
    ----------
    k : int
        Number of symbols (states of the chains).
    T : int
        Number of symbols in a sequence.
    lags : int
        Number m of lags 0, ..., m - 1 that the first layer attends to.
    edge : {"causal", "complete"}
        "causal": the second layer attends to all T tokens. The first m - 1 of them see
        only the lags that do not reach back beyond the beginning of the sequence.
        "complete": it attends to the T - m + 1 tokens that see all m lags.
    concentration : float or array_like, (k, k)
        Each row of a chain has the Dirichlet law with this number for each symbol. If a
        matrix is given, its row s has the parameters of the law of row s of a chain.
        For two symbols these are two Beta laws.
    chains : int, optional
        Train on this number of chains, which are drawn from the law. By default the
        loss is averaged over the law.
    transitions : array_like, (C, k, k), optional
        Train on these chains.
    points : int
        Number of chains that approximate the law if the average over the law has no
        closed form. There is a closed form for two states, two lags, and any start but
        "stationary". For k > 2 the number must be a power of two.
    start : {"uniform", "stationary"} or array_like, (k,)
        Law of the first symbol.
    objective : {"square", "log"}
        "square": :math:`\tfrac12|o - e_y|^2`, with the next symbol y. "log":
        :math:`-\ln o_y`. The log loss is known for two lags and two states, and needs a
        sink: without one :math:`o_y` is 0 if no token has the symbol y. The log loss is
        also known for three states, if B is a number, the edge is causal, the first
        symbol is uniform, and all entries of the chains have one concentration.
    second : {"number", "matrix"}
        "number": B = bI with one number b. "matrix": all entries of B are trained.
    match : float or array_like, (k, k)
        b at step 0. If all entries of B are trained, it may also be B at step 0.
    scores : array_like, (m,), optional
        a at step 0. By default all scores are zero, so that the first layer attends to
        all lags equally.
    sink : float, optional
        Initial score c of the sink, a token in front of the sequence. Its value is 1/k
        for each symbol. By default there is no sink. If c is large, predictions are
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
        Column(
            "new_loss",
            "f8",
            "",
            "loss on new chains at the end, if it trains on a finite number of chains",
        ),
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
    transitions: Any = parameter(None, kind=_optional_array(3), meaning="given chains")
    points: int = parameter(
        64,
        kind=Whole(minimum=4, maximum=2**20),
        meaning="chains that approximate the law",
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
        "number",
        kind=Word(words=("number", "matrix")),
        meaning="whether the match is a number or a matrix",
    )
    match: Any = parameter(
        0.01,
        kind=Number(signed=True, maximum=LARGEST, matrix=True),
        tex="b_0",
        meaning="match strength at step 0",
    )
    scores: Any = parameter(
        None, kind=_optional_array(1), meaning="lag scores at step 0"
    )
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
        # Making the risk checks more, for example the memory.
        self.risk()

    def _check_log_loss(self) -> None:
        """Raise an error if the log loss of this problem is not known."""
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
        first_law = self.first_law
        has_uniform_start = first_law is not None and bool(np.ptp(first_law) == 0.0)
        has_one_concentration = np.ndim(self.concentration) == 0
        is_whole_law = self.finite_chains is None
        return is_whole_law and has_uniform_start and has_one_concentration

    def _check_sizes(self) -> None:
        """Raise an error if T is too short, or the windows do not fit in memory."""
        k = self.k
        m = self.lags
        # `ChainRisk` needs m tokens at least. With complete edges it has only the
        # tokens that see all lags. Causal edges, with T tokens, have the same limit.
        tokens_with_all_lags = self.T - m + 1
        if tokens_with_all_lags < m:
            raise argument_error("T", self.T, f"at least 2 lags - 1 = {2 * m - 1}")
        # `_window_symbols` has up to m + 1 kinds of tokens, k^m windows, m lags, and
        # one number of 8 bytes for each of k + 1 < 2k symbols.
        check_fits("lags", m, 16.0 * m * (m + 1) * k ** (m + 1.0))

    def _check_chains(self) -> None:
        """Raise an error if chains are given twice, or an array has a wrong shape."""
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
                raise argument_error(
                    "chains", self.chains, "left out if transitions are given"
                )

    def _check_start(self) -> None:
        """Raise an error if start, scores, match or the number of points do not fit."""
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
        """Raise an error if ``match`` is a matrix, but a number is trained.

        A matrix whose shape is not (k, k) is also an error.
        """
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
    def is_counted(self) -> bool:
        """Whether the loss is a sum over counts of pairs of successive symbols.

        Otherwise the loss is computed from windows of symbols, chain by chain.
        """
        return self.lags == 2 and (self.k == 2 or self._is_renamed)

    @property
    def _is_renamed(self) -> bool:
        """Whether the last symbol is called 0 in each sequence; see ``_counts``."""
        return self.k == 3 and self.objective == "log"

    @property
    def is_approximate(self) -> bool:
        """Whether a finite number of chains approximates a continuous law."""
        has_closed_form = self.is_counted and self.first_law is not None
        return self.finite_chains is None and not has_closed_form

    @cached_property
    def finite_chains(self) -> Array | None:
        """The given or drawn chains that are trained on, (C, k, k).

        The value is None if training averages over the whole law of chains.
        """
        if self.transitions is not None:
            return np.array(self.transitions)
        if self.chains is None:
            return None
        # A generous bound, in bytes: the chains and two copies of them.
        check_fits("chains", self.chains, 24.0 * self.chains * self.k**2)
        rng = np.random.default_rng([self.seed, STREAM_OF_CHAINS])
        drawn = np.empty((self.chains, self.k, self.k))
        for chain in drawn:  # a view, which is filled row by row
            for state, row_concentration in enumerate(self.prior):
                chain[state] = rng.dirichlet(row_concentration)
        return drawn

    @property
    def first_law(self) -> Array | None:
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
        """Return the chains of the average and their probabilities.

        They are (C, k, k) and (C,).
        """
        if self.finite_chains is None:
            return dirichlet_points(self.prior, self.points, self.seed)
        count = len(self.finite_chains)
        return self.finite_chains, np.full(count, 1.0 / count)

    @cached_property
    def _risk(self) -> InductionRisk:
        """The risk, which is made once, in `validate`."""
        return self._count_risk() if self.is_counted else self._chain_risk()

    def _layers(self) -> TwoLayers:
        """Return the map from the parameters to the scores of the second layer."""
        scores = np.zeros(self.lags) if self.scores is None else self.scores
        is_matrix = self.second == "matrix"
        match = np.array([self.match])
        if is_matrix:
            matrix = np.array(self.match)
            # A number b stands for the matrix bI.
            if matrix.ndim == 0:
                matrix = matrix * np.eye(self.k)
            match = matrix.ravel()
        sink = [] if self.sink is None else [self.sink]
        start = np.concatenate([scores, match, sink])
        # The tokens are in the order of the inner risk: `CountRisk` or `ChainRisk`.
        if self._is_renamed:
            # The last symbol is always called 0, so scores have one column.
            return TwoLayers(self._renamed_symbols(), start, is_matrix, queries=1)
        if self.is_counted:
            return TwoLayers(self._counted_symbols(), start, is_matrix)
        return TwoLayers(self._window_symbols(), start, is_matrix)

    def _sink_value(self) -> Array | None:
        """Return the value of the sink, 1/k for each symbol; None without a sink."""
        return None if self.sink is None else np.full(self.k, 1.0 / self.k)

    def _count_risk(self) -> InductionRisk:
        """Return the risk as a sum over the counts of pairs of successive symbols."""
        counts = self._counts()
        inner = CountRisk(counts, self.objective, self._sink_value())
        table = counts.table
        # One-hot vectors of the last symbol, one for each row of the table of counts.
        # Their mean has the probabilities of the last symbol.
        is_last = table.query[:, None] == np.arange(counts.queries)
        return InductionRisk(
            inner,
            self._layers(),
            last_probs=table.mean(is_last),
            ratio=self.ratio,
            added=0.0,  # the inner risk includes the noise of the next symbol
            least=inner.floor(),
        )

    def _counts(self) -> CountLaw:
        """Return the law of the counts of pairs.

        For three states, symbols are renamed in each sequence so that the last one is
        0. This does not change the law of the chains.
        """
        if self._is_renamed:
            # `validate` requires causal edges, so the first symbol is also a token.
            return ThreeStateCounts(self.T, float(self.concentration), first=True)
        first_law = self.first_law
        # `TwoStateCounts` takes "stationary", or the probability that the first symbol
        # is 1.
        start = "stationary" if first_law is None else float(first_law[1])
        # With causal edges the second layer also attends to the first symbol.
        is_causal = self.edge == "causal"
        # For a given law of the first symbol, the average over the law of chains has a
        # closed form.
        if self.finite_chains is None and first_law is not None:
            return TwoStateCounts(
                self.T, concentration=self.prior, start=start, first=is_causal
            )
        chains, probs = self.law()
        return TwoStateCounts(
            self.T, transitions=chains, probs=probs, start=start, first=is_causal
        )

    def _chain_risk(self) -> InductionRisk:
        """Return the risk that follows windows of symbols, chain by chain."""
        k = self.k
        m = self.lags
        # Four arrays of 8-byte numbers, with k + 1 sums for each combination of a
        # position, a window and a last symbol. `ChainRisk` checks this memory, too, but
        # its error would not name T.
        check_fits("T", self.T, 32.0 * self.T * k ** (m + 1.0) * (k + 1))
        # The number of tokens to which the second layer attends.
        length = self.T if self.edge == "causal" else self.T - m + 1
        chains = self._chains_of_windows()
        has_sobol_points = self.is_approximate and k > 2
        layers = self._layers()
        # One score for each kind of token, window and last symbol, (n, k**m, k).
        shape_of_scores = (*layers.symbols.shape[:-2], k)
        inner = ChainRisk(
            chains,
            length,
            np.zeros(shape_of_scores),
            sink=self._sink_value(),
            step=LONG_STEP if has_sobol_points else STEP,
        )
        # The inner risk compares predictions with P_q, the law of the next symbol after
        # the last symbol q. So ½ E[1 - ‖P_q‖²], the loss by the randomness of the next
        # symbol, is added.
        added = chains.irreducible(length)
        # Only a prediction that knows the chain reaches the loss ``added``. The least
        # loss of predictions that do not know it is larger, and is computed for two
        # states.
        least = self._pairs().risk().floor() if k == 2 else added
        return InductionRisk(
            inner,
            layers,
            # `last` returns joint probabilities of the chain and the last symbol.
            last_probs=chains.last(length).sum(axis=0),
            ratio=self.ratio,
            added=added,
            least=least,
        )

    def _chains_of_windows(self) -> Chains:
        """Return the law of the sequences, as chains of windows of m symbols."""
        k = self.k
        m = self.lags
        transitions, probs = self.law()
        # With complete edges the first window has the first m symbols of the sequence,
        # and ``start`` is the law of the oldest symbol in this window. None stands for
        # the stationary law of each chain.
        start = self.first_law
        if self.edge == "causal" and start is not None:
            # The first window holds the first symbol of the sequence and m - 1 symbols
            # before it. No token sees these earlier symbols, so their law does not
            # matter, and a uniform one is used. The first symbol is the newest one of
            # the window, and so the last digit of the window's number in base k.
            start = np.tile(start, k ** (m - 1)) / k ** (m - 1)
        return Chains(transitions, m, probs=probs, start=start)

    def _visible_lags(self) -> list[int]:
        """Return how many lags each kind of token sees.

        The sink, if there is one, is the first kind, and sees none. Then come the
        tokens near the beginning of a causal sequence, and then all other tokens.
        """
        visible = [] if self.sink is None else [0]
        if self.edge == "causal":
            visible.extend(range(1, self.lags))
        visible.append(self.lags)
        return visible

    def _window_indices(self, visible: int) -> Array:
        """Return the symbols that a token sees at each lag in each window, (k**m, m).

        The token sees the symbols at the first ``visible`` lags, and `PAD` at all other
        lags. The sink, for which no lag is visible, sees its own symbol k at each lag.
        """
        lags = np.arange(self.lags)
        # The symbol at lag l is digit l of a window's number in base k. Digit 0 is the
        # last one.
        windows = np.arange(self.k**self.lags)[:, None] // self.k**lags % self.k
        symbol_elsewhere = self.k if visible == 0 else PAD
        return np.where(lags < visible, windows, symbol_elsewhere)

    def _one_hot(self, indices: Array) -> Array:
        """Return one-hot vectors, (..., k + 1), which are zero for `PAD`.

        The last entry stands for the sink's own symbol.
        """
        return np.asarray(indices[..., None] == np.arange(self.k + 1), dtype=float)

    def _window_symbols(self) -> Array:
        """Return X for each kind of token and each window, (n, k**m, m, k + 1)."""
        kinds = [self._window_indices(visible) for visible in self._visible_lags()]
        return self._one_hot(np.stack(kinds))

    def _counted_symbols(self) -> Array:
        """Return X of all R different tokens, (R, m, k + 1).

        There are two lags and two states. The tokens have the order of the kinds of
        `TwoStateCounts`: pairs of symbols, then first symbols. The sink is last.
        """

        def distinct(visible: int) -> Array:
            """Return the symbols of the different tokens that see ``visible`` lags."""
            # The visible lags are the lowest digits of a window's number, so that the
            # tokens repeat after k**visible windows.
            return self._window_indices(visible)[: self.k**visible]

        kinds = [distinct(visible) for visible in reversed(self._visible_lags())]
        return self._one_hot(np.concatenate(kinds))

    def _renamed_symbols(self) -> Array:
        """Return X of nine kinds of `ThreeStateCounts` and the sink, (10, m, k + 1).

        There are two lags and three states.
        """
        # Three kinds, the tokens 0, 1 and 2, have a predecessor that equals the last
        # symbol, which is called 0. Three kinds have another predecessor, 1 or 2. These
        # two predecessors lead to the same score, so 1 stands for both. Three kinds are
        # the first symbol of the sequence, which has no predecessor.
        symbol = np.tile(np.arange(3), 3)
        predecessor = np.repeat([0, 1, PAD], 3)
        indices = np.column_stack([symbol, predecessor])
        sink = [self.k, self.k]
        return self._one_hot(np.vstack([indices, sink]))

    def _pairs(self) -> InductionHeads:
        """Return a problem for the same chains with a model of two lags and a sink.

        With suitable scores this model is the unigram or the bigram. Only losses of the
        problem are used, so its initial parameters and its training do not matter.
        Their values here fit every problem.
        """
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
        """Return the rule, which trains in stages if ``stage`` is not 0."""
        rule = rule_of(super().update())
        return Staged(rule, self.stage) if self.stage else rule

    @cached_property
    def predictors(self) -> dict[str, float]:
        """The losses of simple predictors of the next symbol, by name.

        The unigram predicts the frequencies of the symbols in the sequence so far. The
        bigram predicts the frequencies of the symbols that followed the last symbol.
        Both add ``concentration``, or its mean, to the count of each symbol. "Bayes" is
        the loss of the Bayes-optimal predictor, if it is known.
        """
        if self._is_renamed:
            # For three states the log losses are sums over the counts of pairs, and
            # need no model. `validate` requires chains with one concentration and a
            # uniform first symbol. For such chains the bigram is Bayes-optimal.
            losses = ThreeStateCounts(self.T, float(self.concentration)).predictors()
            return {**losses, "Bayes": losses["bigram"]}
        # Unigram and bigram are heads whose first layer attends to the previous token.
        # The two heads differ in the scores of tokens whose predecessor is not the last
        # symbol: the unigram counts these tokens like all others, and the bigram does
        # not count them.
        pairs = self._pairs().risk()
        losses = {
            "uniform": self._uniform_loss(),
            "unigram": self._pair_loss(pairs, score_if_unequal=0.0),
            "bigram": self._pair_loss(pairs, score_if_unequal=HIDDEN),
        }
        if self.k == 2:
            # For two states the risk is a sum over the counts of pairs, which say all
            # that a sequence says about its chain. So the floor of the risk is the
            # Bayes loss.
            losses["Bayes"] = pairs.floor()
        elif self._is_bigram_optimal:
            losses["Bayes"] = losses["bigram"]
        return losses

    @property
    def _is_bigram_optimal(self) -> bool:
        """Whether the bigram is Bayes-optimal.

        This is so for independent Dirichlet rows with one concentration, if the law of
        the first symbol is given. A stationary first symbol would say something about
        the rows.
        """
        has_one_concentration = np.ndim(self.concentration) == 0
        has_given_start = self.first_law is not None
        is_whole_law = self.finite_chains is None
        return is_whole_law and has_given_start and has_one_concentration

    def predictors_in_nats(self) -> dict[str, float]:
        """Return the log losses of the `predictors`, even if the objective is square.

        The losses do not depend on the number of lags. The losses are known for two
        states, and for three states if all entries of the chains have one concentration
        and the first symbol is uniform.

        Examples
        --------
        >>> import icl_theory as icl
        >>> losses = icl.InductionHeads(k=3, T=20).predictors_in_nats()
        >>> {name: round(loss, 4) for name, loss in losses.items()}
        {'uniform': 1.0986, 'unigram': 1.0189, 'bigram': 0.9129, 'Bayes': 0.9129}
        """
        if self.k == 3 and self._is_exchangeable:
            # Sums over counts of pairs; the bigram is Bayes-optimal for such chains.
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
        """Return the loss of the prediction 1/k for each symbol."""
        if self.objective == "log":
            return math.log(self.k)
        # ½|o - e_y|² = ½(|o|² - 2 o_y + 1) with o = 1/k
        return 0.5 * (1.0 - 1.0 / self.k)

    def _pair_loss(self, risk: InductionRisk, score_if_unequal: float) -> float:
        """Return the loss of a head that scores tokens by their predecessors.

        ``risk`` is the risk of ``_pairs``. The score is 0 if the predecessor equals the
        last symbol, and ``score_if_unequal`` otherwise. The sink has the score that
        adds the mean concentration to the count of each symbol.
        """
        # The sink's value is 1/k for each symbol, so exp(score) = k · concentration.
        sink_score = math.log(self.k * self.prior.mean())
        predecessor = risk.map.symbols[..., 1, :]  # one-hot vectors, (..., k + 1)
        is_sink = predecessor[..., -1:]
        is_equal = predecessor[..., :-1]
        token_scores = np.where(is_equal, 0.0, score_if_unequal)
        scores = np.where(is_sink, sink_score, token_scores)
        return risk.risk.loss(scores) + risk.added

    def levels(self) -> Mapping[str, float]:
        """Return the losses to draw as lines: those more than 1 % above the floor."""
        lowest = LOWEST_LEVEL * self.risk().floor()
        return {name: loss for name, loss in self.predictors.items() if loss > lowest}

    def average_error(self, params: ArrayLike) -> float:
        """Estimate the error of the loss if finitely many chains approximate the law.

        For two states the estimate is twice the difference from the loss with four
        times as many chains. For more states it is the difference from the mean loss of
        eight independent scramblings, plus three standard errors of this mean. Both
        estimates include the error of the integral over s in `ChainRisk`. For more than
        two states this error is up to 1.8e-8 of the inner loss. If the average over the
        chains is exact, the error is 0.
        """
        risk = self.risk()
        params = risk._checked(params)
        if not self.is_approximate:
            return 0.0
        loss = risk.loss(params)
        # An allowance for rounding, about 50 times the precision of float64.
        numerical_error = 1e-14 * loss
        if isinstance(risk.risk, ChainRisk):
            numerical_error += risk.risk.error(risk.map.inward(params))
        if self.k == 2:
            # With four times as many points, each of the two Gauss rules has twice as
            # many nodes. If twice as many nodes at least halve the error of the loss,
            # this error is at most twice the difference of the losses.
            finer_loss = self.changed(points=4 * self.points).risk().loss(params)
            return 2.0 * abs(finer_loss - loss) + numerical_error
        other_seeds = range(self.seed + 1, self.seed + 1 + SCRAMBLINGS)
        other_problems = [self.changed(seed=seed) for seed in other_seeds]
        other_losses = [problem.risk().loss(params) for problem in other_problems]
        deviation = float(np.std(other_losses, ddof=1))
        three_standard_errors = 3.0 * deviation / math.sqrt(SCRAMBLINGS)
        distance = abs(float(np.mean(other_losses)) - loss)
        return distance + three_standard_errors + numerical_error

    def outcome(self, params: ArrayLike) -> str:
        """Return in a word what the model with these parameters has learnt.

        The word names the lag with the largest score: "induction" for lag 1, and for
        another lag its number, as in "lag 2". The word begins with "anti-" unless the
        match is positive.
        """
        params = self.risk()._checked(params)
        lag_scores = params[: self.lags]
        lag = int(np.argmax(lag_scores))
        word = "induction" if lag == 1 else f"lag {lag}"
        return word if self._strength(params) > 0.0 else f"anti-{word}"

    def _strength(self, params: Array) -> float:
        """Return the mean of B's diagonal, less the mean of its other entries.

        The result is b if B = bI.
        """
        _, B_and_sink = self.risk().map.split(params)
        B = B_and_sink[:-1]
        k = self.k
        sum_of_diagonal = np.trace(B)
        sum_of_others = B.sum() - sum_of_diagonal
        # The means are sum_of_diagonal/k and sum_of_others/(k (k - 1)).
        return float((sum_of_diagonal - sum_of_others / (k - 1)) / k)

    def describe(self, run: Trajectory) -> None:
        """Divide the run into phases by its loss, and note what was learnt."""
        run.phases = self._phases(run)
        run.regime = self.outcome(run.params)
        last_attention = run.observed["first"][-1]  # of the first layer, on each lag
        shares = ", ".join(f"{share:.3g}" for share in last_attention)
        run.notes["learnt"] = (
            f"{run.regime}: the first layer attends to lags 0, 1, ... by {shares}"
        )
        # The phases that the run has, as intervals (first step, last step).
        bigram = run.phases.present().get("bigram")
        if bigram is not None:
            emergence, _ = bigram
            run.notes["emergence"] = (
                f"the loss is halfway from unigram to bigram at step {emergence}"
            )
        run.notes["match"] = f"b = {self._strength(run.params):.4g}"
        run.notes["predictors"] = ", ".join(
            f"{name} {loss:.6g}" for name, loss in self.predictors.items()
        )
        if self.is_approximate:
            error = self.average_error(run.params)
            run.notes["average"] = (
                f"{self.points} chains stand for all; the last loss is off by up to"
                f" {error:.1g}"
            )

    def _phases(self, run: Trajectory) -> Phases:
        """Return the phases; each ends when the loss is halfway to the next level."""
        losses = self.predictors
        levels = Levels(losses["uniform"], losses["unigram"], losses["bigram"])
        return plateau_phases(run, levels)

    def measure(self, run: Trajectory) -> dict[str, Any]:
        """Return the family's columns of a run."""
        emergence = -1  # if the run has no bigram phase
        if run.phases is not None and "bigram" in run.phases.present():
            emergence, _ = run.phases.present()["bigram"]
        last_attention = run.observed["first"][-1]
        values = {
            # The keys are the names of `columns`.
            "emergence": emergence,
            "outcome": self.outcome(run.params),
            "b": self._strength(run.params),
            "lag_share": float(last_attention[1]),
        }
        if self.finite_chains is not None:
            # The loss on new chains is the mean over all chains of the law.
            all_chains = self.changed(chains=None, transitions=None)
            values["new_loss"] = all_chains.risk().loss(run.params)
        return values
