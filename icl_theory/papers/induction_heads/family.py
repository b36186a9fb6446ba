"""Induction heads: two layers of attention on Markov chains, trained on the exact loss, as a family."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import Array, argument_error, probabilities, real_array
from icl_theory.engine import Map, Phases, Pullback, Risk, Trajectory
from icl_theory.engine.risk import WithStart
from icl_theory.engine.rules import Rule, Wrapper, rule_of
from icl_theory.families import (
    Column,
    Family,
    LazySlot,
    Number,
    Object,
    Panel,
    Probabilities,
    Whole,
    Word,
    parameter,
)
from icl_theory.families.parameters import learning_rate, nested
from icl_theory.memory import check_fits
from icl_theory.tokens import ChainRisk, Chains, CountRisk, TwoStateCounts
from icl_theory.tokens.sampled import softmax

LARGEST = 300.0  # initial score: what overflows in sums of a few is far


def dirichlet_points(prior: Array, count: int, seed: int = 0) -> tuple[Array, Array]:
    """Return chains that stand for those with Dirichlet rows, (C, k, k), and their probabilities, (C,).

    Row s of ``prior``, (k, k), has the parameters of row s of the chains. Two states
    have the products of two Gauss–Jacobi rules of √count nodes. More have ``count``
    scrambled Sobol points: a row is broken off a stick by independent beta variables.
    """
    from scipy.special import betaincinv, roots_jacobi  # slow to load
    from scipy.stats import qmc

    k = len(prior)
    if k == 2:
        rules = [
            roots_jacobi(math.isqrt(count), a - 1.0, b - 1.0)
            for a, b in (prior[0], prior[1, ::-1])
        ]
        first, second = (
            each.ravel() for each in np.meshgrid(*(0.5 * (1.0 + x) for x, _ in rules))
        )
        probs = np.outer(rules[1][1], rules[0][1]).ravel()
        return np.stack([1.0 - first, first, second, 1.0 - second], axis=1).reshape(
            -1, 2, 2
        ), probs / probs.sum()
    rng = np.random.default_rng([seed, 1])
    points = qmc.Sobol(k * (k - 1), seed=rng).random(count).reshape(-1, k, k - 1)
    left = np.ones(points.shape[:2])
    rows = []
    for j, u in enumerate(np.moveaxis(points, 2, 0)):
        own = prior[:, j]
        others = prior[:, j + 1 :].sum(axis=1)
        rows.append(left * betaincinv(own, others, np.maximum(u, 2.0**-60)))
        left = left * betaincinv(others, own, np.maximum(1.0 - u, 2.0**-60))
    return np.stack([*rows, left], axis=2), np.full(count, 1.0 / count)


@dataclass(frozen=True, eq=False)
class TwoLayers(WithStart, Map):
    r"""Scores of the second layer, from those of the first one over lags, a match, and perhaps a sink.

    .. math:: S = f B, \qquad f_r = \sum_l \alpha_{rl} X_{rl}, \qquad \alpha_{rl} \propto e^{a_l}

    for tokens r that see the symbols :math:`X_{rl}` at lags l. The sink sees a symbol
    of its own, with c in its row of B.
    """

    # X, one-hot, the sink's symbol last, and zero where the sequence has not begun,
    # (..., m, k + 1)
    seen: Array
    # initial (a, B, c): m numbers; b with B = bI, or k² numbers; one number if there is
    # a sink
    start: Array
    matrix: bool  # whether B is any matrix

    def split(self, params: Array) -> tuple[Array, Array]:
        """Return a, (m,), and B with a row of c below it, (k + 1, k); without a sink no token sees this row."""
        m = self.seen.shape[-2]
        k = self.seen.shape[-1] - 1
        a, b, c = np.split(params, [m, m + (k**2 if self.matrix else 1)])
        return a, np.vstack(
            [b.reshape(k, k) if self.matrix else b[0] * np.eye(k), np.full(k, c.sum())]
        )

    def blocks(self, array: Array) -> Sequence[Array]:
        """The first layer and the second one."""
        return np.split(array, [self.seen.shape[-2]])

    def first(self, a: Array) -> Array:
        """Attention of the first layer on the lags of each token, (..., m)."""
        return softmax(np.where(self.seen.any(axis=-1), a, -np.inf))[0]

    def found(self, alpha: Array) -> Array:
        """Return f, (..., k + 1)."""
        return np.asarray(np.einsum("...l,...lx->...x", alpha, self.seen))

    def inward(self, params: Array) -> Array:
        """Scores of the inner risk, (..., k)."""
        a, B = self.split(params)
        return self.found(self.first(a)) @ B

    def push(self, params: Array, direction: Array) -> Array:
        """Derivative of the scores along a direction."""
        (a, B), (da, dB) = self.split(params), self.split(direction)
        alpha = self.first(a)
        return self.found(_drift(alpha, da)) @ B + self.found(alpha) @ dB

    def outward(self, params: Array, gradient: Array) -> Array:
        """Gradient in (a, B, c)."""
        a, B = self.split(params)
        alpha = self.first(a)
        pull = _drift(alpha, np.einsum("...x,...lx->...l", gradient @ B.T, self.seen))
        slope = self.found(alpha).reshape(-1, len(B)).T @ gradient.reshape(
            -1, len(B) - 1
        )
        match = slope[:-1].ravel() if self.matrix else [np.trace(slope)]
        return np.concatenate(
            [pull.reshape(-1, len(a)).sum(axis=0), match, [slope[-1].sum()]]
        )[: len(params)]

    def stretch(self, params: Array) -> float:
        """Norm of the derivative of the scores."""
        return float(
            np.linalg.norm(
                [self.push(params, unit).ravel() for unit in np.eye(len(params))], 2
            )
        )


def _drift(alpha: Array, change: Array) -> Array:
    """Change of a softmax with its scores, for each row: its own transpose."""
    return np.asarray(alpha * (change - (alpha * change).sum(axis=-1, keepdims=True)))


@dataclass(frozen=True, eq=False)
class InductionRisk(Pullback):
    """The loss of (a, B, c): that of an inner risk over scores, and what the next symbol adds to it."""

    map: TwoLayers
    often: Array  # how often sequences end in each symbol, (k,)
    ratio: float
    added: float
    least: float

    @property
    def metric(self) -> Array:
        """1/ratio for the first layer: its learning rate is ratio times that of the second one."""
        return np.where(
            np.arange(len(self.initial)) < self.map.seen.shape[-2],
            1.0 / self.ratio,
            1.0,
        )

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and gradient."""
        loss, gradient = super().evaluate(params, step)
        return loss + self.added, gradient

    def floor(self) -> float:
        """Loss of the Bayes-optimal prediction for two states; for more, that of knowing the chain."""
        return self.least

    excess = Risk.excess  # the floor is not that of the inner risk
    # a difference of gradients, as the first layer bends the scores
    hessian_product = Risk.hessian_product

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Attention of both layers, where the inner risk knows its own.

        ``first`` is that of the first one on the lags, (m,); ``second`` that of the
        second one on tokens, (..., k), expected given the last symbol. ``attention`` is
        the expected share of the tokens that follow an equal of the last symbol,
        ``sink`` that of the sink, and ``match`` the matrix B, or b.
        """
        (a, B), k = self.map.split(params), len(self.often)
        found = {"first": softmax(a)[0], "match": B[:k] if self.map.matrix else B[0, 0]}
        known = self.risk.observe(self.map.inward(params), step)
        if "attention" in known:
            found["second"], lag_1 = known["attention"], self.map.seen[..., 1, :]
            found["attention"] = np.sum(self.often * found["second"] * lag_1[..., :k])
            if lag_1[..., k].any():
                found["sink"] = np.sum(self.often * found["second"] * lag_1[..., k:])
        return {name: np.asarray(value) for name, value in found.items()}


@dataclass(frozen=True)
class Staged(Wrapper):
    """The first layer alone for some steps, and then the second one alone."""

    steps: int

    name = "staged"
    may_stagnate = (
        False  # the second layer has not moved yet while the first one may be at rest
    )

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
        kept = np.array(gradient)
        first, second = risk.blocks(kept)
        frozen = second if t < self.steps else first
        frozen[...] = 0.0
        return self.rule.step(risk, params, kept, eta, memory, t)


def _array(ndim: int) -> Object:
    """An array or None; of an array nested tuples are kept."""
    return Object(
        optional=True,
        checker=lambda name, value: nested(real_array(name, value, ndim, LARGEST)),
    )


@dataclass(frozen=True, eq=False)
class InductionHeads(Family):
    r"""Two layers of attention on random Markov chains: how an induction head is learnt.

    .. math:: \alpha = \mathrm{softmax}(a), \qquad f_t = \sum_{l < m} \alpha_l e_{x_{t-l}}, \qquad
        o = \sum_t \mathrm{softmax}_t(f_t^\top B e_{x_T})\thinspace e_{x_t}

    predicts the symbol :math:`x_{T+1}` of k. Lag scores a, match B, and the score c of
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
        "causal": the second layer attends to all T tokens, the first m - 1 of which see
        as many lags as there are symbols. "complete": it attends to the T - m + 1
        tokens that see all m lags.
    concentration : float or array_like, (k, k)
        Each row of a chain has the Dirichlet law with this number for each symbol. A
        matrix has the parameters of each row of a chain in a row: for two symbols those
        of two Beta laws.
    chains : int, optional
        Train on so many chains drawn from that law; by default on all of it.
    transitions : array_like, (C, k, k), optional
        Train on these chains.
    points : int
        Chains that stand for the law where there is no closed form: everywhere but for
        two states, two lags, and a given start. A power of two for k > 2.
    start : {"uniform", "stationary"} or array_like, (k,)
        Law of the first symbol.
    objective : {"square", "log"}
        :math:`\tfrac12|o - e_y|^2` or :math:`-\ln o_y`, y the next symbol. The log loss
        is known for two states and two lags, and needs a sink.
    second : {"number", "matrix"}
        B = bI with one number b, or any matrix B.
    match : float
        b at step 0.
    scores : array_like, (m,), optional
        a at step 0; zeros by default, so that the first layer attends to all lags
        alike.
    sink : float, optional
        Score c at step 0 of a token in front of the sequence, whose value is 1/k for
        each symbol; without one by default. With a large c predictions are uniform in
        the beginning.
    ratio : float
        Learning rate of the first layer over that of the second one, ``eta``.
    stage : int
        Train the first layer alone for so many steps, and then the second one alone; 0
        trains both together.
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
    >>> run = icl.InductionHeads(T=50, objective="log", sink=6.0, max_steps=200).simulate()
    >>> run.regime
    'induction'
    """

    name: ClassVar[str] = "induction-heads"
    title: ClassVar[str] = "two layers of attention on Markov chains"
    claims = LazySlot("icl_theory.papers.induction_heads.statements:CLAIMS")
    explorer = Panel(Path(__file__).parent / "panel", ("closed.js", "panel.js"))
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
    match: float = parameter(
        0.01,
        kind=Number(signed=True, maximum=LARGEST),
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
        k, m = self.k, self.lags
        if self.T - 2 * m + 1 < 0:
            raise argument_error("T", self.T, f"at least 2 lags - 1 = {2 * m - 1}")
        check_fits("lags", m, 16.0 * m * (m + 1) * k ** (m + 1.0))
        if np.shape(self.concentration) not in ((), (k, k)):
            raise argument_error(
                "concentration",
                self.concentration,
                f"a positive number, or {k} rows of {k} of them",
            )
        if self.transitions is not None and np.shape(self.transitions)[1:] != (k, k):
            raise argument_error(
                "transitions", np.shape(self.transitions), f"of shape (C, {k}, {k})"
            )
        if self.transitions is not None and self.chains is not None:
            raise argument_error("chains", self.chains, "left out with transitions")
        if not isinstance(self.start, str) and len(self.start) != k:
            raise argument_error(
                "start",
                self.start,
                f"uniform, stationary, or {k} positive numbers that sum to 1",
            )
        if self.scores is not None and len(self.scores) != m:
            raise argument_error(
                "scores", self.scores, f"{m} numbers, one for each lag"
            )
        if k > 2 and self.points & (self.points - 1):
            raise argument_error(
                "points", self.points, "a power of two for more than two symbols"
            )
        if self.objective == "log" and not (self.counted and self.sink is not None):
            raise argument_error(
                "objective",
                self.objective,
                "'square' unless k = 2, lags = 2, and a sink is given",
            )
        self.risk()

    @property
    def counted(self) -> bool:
        """Whether counts of pairs are enough."""
        return self.k == 2 and self.lags == 2

    @property
    def approximate(self) -> bool:
        """Whether some chains stand for a continuous law."""
        return self.few is None and (self.first is None or not self.counted)

    @cached_property
    def few(self) -> Array | None:
        """Chains that are trained on, given or drawn, (C, k, k); None if all are."""
        if self.chains is None:
            return None if self.transitions is None else np.array(self.transitions)
        check_fits("chains", self.chains, 24.0 * self.chains * self.k**2)
        rng = np.random.default_rng([self.seed, 0])
        return np.array(
            [[rng.dirichlet(row) for row in self.prior] for _ in range(self.chains)]
        )

    @property
    def first(self) -> Array | None:
        """Law of the first symbol, (k,), unless it is the stationary one of each chain."""
        if self.start == "stationary":
            return None
        k = self.k
        return (
            np.full(k, 1.0 / k)
            if self.start == "uniform"
            else probabilities("start", self.start, k)
        )

    @property
    def prior(self) -> Array:
        """Parameters of the Dirichlet laws of the rows, (k, k)."""
        return np.broadcast_to(np.asarray(self.concentration), (self.k, self.k))

    def law(self) -> tuple[Array, Array]:
        """Return the chains that are averaged over, (C, k, k), and their probabilities, (C,)."""
        if self.few is None:
            return dirichlet_points(self.prior, self.points, self.seed)
        return self.few, np.full(len(self.few), 1.0 / len(self.few))

    @cached_property
    def _risk(self) -> InductionRisk:
        k = self.k
        m = self.lags
        causal = self.edge == "causal"
        second = (
            (self.match * np.eye(k)).ravel()
            if self.second == "matrix"
            else [self.match]
        )
        last = [] if self.sink is None else [self.sink]
        start = np.concatenate(
            [np.zeros(m) if self.scores is None else self.scores, second, last]
        )
        value = np.full(k, 1.0 / k) if last else None
        seen = self._seen()
        first = self.first
        inner: Risk
        if self.counted:
            closed = self.few is None and first is not None
            law: tuple[Any, Any, Any] = (
                (self.prior, None, None) if closed else (None, *self.law())
            )
            counts = TwoStateCounts(
                self.T, *law, "stationary" if first is None else float(first[1]), causal
            )
            inner = CountRisk(counts, self.objective, value)
            often = counts.table.mean(counts.table.query[:, None] == np.arange(2))
            added = 0.0
            least = inner.floor()
        else:
            check_fits("T", self.T, 32.0 * self.T * k ** (m + 1.0) * (k + 1))
            (P, probs), length = self.law(), self.T if causal else self.T - m + 1
            if (
                causal and first is not None
            ):  # what comes before the first symbol is not seen
                first = np.tile(first, k ** (m - 1)) / k ** (m - 1)
            chains = Chains(P, m, probs=probs, start=first)
            # quasi-random points are off by more than the rule with long steps is,
            # 1.8e-8 of the loss
            step = 0.4 if self.approximate and k > 2 else 0.2
            inner = ChainRisk(
                chains, length, np.zeros((*seen.shape[:-2], k)), sink=value, step=step
            )
            often = chains.last(length).sum(axis=0)
            added = chains.irreducible(length)
            least = self._pairs().risk().floor() if k == 2 else added
        layers = TwoLayers(seen, start, self.second == "matrix")
        return InductionRisk(inner, layers, often, self.ratio, added, least)

    def _seen(self) -> Array:
        """Return the symbols that tokens see, by place and window, (n, k**m, m, k + 1).

        The sink has the first place, and tokens that see all lags the last one. Counts
        have each token once, (R, m, k + 1), in the opposite order.
        """
        k = self.k
        m = self.lags
        lags = np.arange(self.lags)
        windows = np.arange(k**m)[:, None] // k**lags % k
        sees = [
            *([] if self.sink is None else [0]),
            *(range(1, m) if self.edge == "causal" else []),
            m,
        ]
        places = [
            np.where(lags < symbols, windows, -1 if symbols else k) for symbols in sees
        ]
        each_once = [
            place[: k**symbols] for symbols, place in zip(sees, places, strict=True)
        ]
        tokens = np.concatenate(each_once[::-1]) if self.counted else np.stack(places)
        return np.asarray(tokens[..., None] == np.arange(k + 1), dtype=float)

    def _pairs(self) -> InductionHeads:
        """Return the same law with the model in which counts of symbols and of pairs are seen, and a sink."""
        return self.changed(
            lags=2,
            edge="causal",
            sink=0.0,
            second="number",
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
        """Losses of known predictions, by name.

        The unigram's and the bigram's are shares of the symbols so far, and of those
        that followed the last symbol, with ``concentration`` more of each symbol, or
        its mean. "Bayes" is the least loss, if it is known.
        """
        k = self.k
        risk = self._pairs().risk()
        prior = math.log(k * self.prior.mean())
        lag_1 = risk.map.seen[..., 1, :]
        found = {
            "uniform": math.log(k) if self.objective == "log" else 0.5 * (1.0 - 1.0 / k)
        }
        # score of a token that a predictor leaves out, unless there is no other
        hidden = -100.0
        for name, others in (("unigram", 0.0), ("bigram", hidden)):
            scores = np.where(
                lag_1[..., k:], prior, np.where(lag_1[..., :k], 0.0, others)
            )
            found[name] = risk.risk.loss(scores) + risk.added
        if k == 2:
            return found | {"Bayes": risk.floor()}
        counting = (
            self.few is None
            and self.first is not None
            and np.ndim(self.concentration) == 0
        )
        return found | ({"Bayes": found["bigram"]} if counting else {})

    def levels(self) -> Mapping[str, float]:
        """Return the losses that are drawn as lines beside the floor, where they can be told from it."""
        floor = self.risk().floor()
        return {
            name: loss for name, loss in self.predictors.items() if loss > 1.01 * floor
        }

    def average_error(self, params: ArrayLike) -> float:
        """Return by how much a loss may be off that of the law itself, for which some chains stand; 0 for none.

        Two states: twice the difference to four times as many nodes. More: the
        difference to the mean of eight independent scramblings, and three of its
        standard errors. The error of the integral over s is in it, which is up to
        1.8e-8 of the inner loss for more than two states.
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
        scrambled = [
            self.changed(seed=self.seed + 1 + i).risk().loss(params) for i in range(8)
        ]
        scatter = 3.0 * float(np.std(scrambled, ddof=1)) / math.sqrt(8.0)
        return abs(float(np.mean(scrambled)) - loss) + scatter + integral

    def outcome(self, params: ArrayLike) -> str:
        """Say what parameters have learnt: "induction", another lag, or "anti-" if the match is negative."""
        params = self.risk()._checked(params)
        lag = int(np.argmax(params[: self.lags]))
        word = "induction" if lag == 1 else f"lag {lag}"
        return word if self._strength(params) > 0.0 else f"anti-{word}"

    def _strength(self, params: Array) -> float:
        """Return the diagonal of B above the rest of it."""
        B = self.risk().map.split(params)[1][:-1]
        k = self.k
        return float((np.trace(B) - (B.sum() - np.trace(B)) / (k - 1)) / k)

    def describe(self, run: Trajectory) -> None:
        """Name the phases by the plateau that the loss is on, and say what was learnt."""
        known = self.predictors
        last = int(run.t[-1])

        def left(high: str, low: str) -> int | None:
            middle = 0.5 * (known[high] + known[low])
            return run.first(lambda state: bool(state.loss <= middle))

        # of few chains unigrams may say nothing
        unigram = (
            left("uniform", "unigram") if known["unigram"] < known["uniform"] else 0
        )
        bigram = (
            left("unigram", "bigram")
            if unigram is not None and known["bigram"] < known["unigram"]
            else None
        )
        run.phases = Phases(
            uniform=None if unigram == 0 else (0, last if unigram is None else unigram),
            unigram=None
            if unigram in (None, bigram)
            else (unigram, last if bigram is None else bigram),
            bigram=None if bigram is None else (bigram, last),
        )
        run.regime = self.outcome(run.params)
        first = ", ".join(f"{share:.3g}" for share in run.observed["first"][-1])
        run.notes["learnt"] = (
            f"{run.regime}: the first layer attends to lags 0, 1, ... by {first}"
        )
        if bigram is not None:
            run.notes["emergence"] = (
                f"the loss is halfway from unigram to bigram at step {bigram}"
            )
        run.notes["match"] = f"b = {self._strength(run.params):.4g}"
        run.notes["predictors"] = ", ".join(
            f"{name} {loss:.6g}" for name, loss in known.items()
        )
        if self.approximate:
            error = self.average_error(run.params)
            run.notes["average"] = (
                f"{self.points} chains stand for all; the last loss is off by up to {error:.1g}"
            )

    def measure(self, run: Trajectory) -> dict[str, Any]:
        """Return the family's columns of a run."""
        present = {} if run.phases is None else run.phases.present()
        found = {
            "emergence": present["bigram"][0] if "bigram" in present else -1,
            "outcome": self.outcome(run.params),
            "b": self._strength(run.params),
            "lag_share": float(run.observed["first"][-1, 1]),
        }
        if self.few is not None:
            found["new_loss"] = (
                self.changed(chains=None, transitions=None).risk().loss(run.params)
            )
        return found
