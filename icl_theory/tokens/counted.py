r"""Softmax attention over few kinds of tokens, with any loss, as a finite sum.

Let a prompt have n_κ tokens of kind κ, and let the law of these counts be known. A
token of kind κ has the score s_κ and stands for the label v with probability v_κv.
Attention then predicts a function of the counts,

.. math:: o = \frac{\sum_\kappa n_\kappa e^{s_\kappa} v_\kappa}
    {\sum_\kappa n_\kappa e^{s_\kappa}},

so that the mean of any loss is a sum over a table of the counts, without an error. See
docs/theory.md, "Few kinds of tokens".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import (
    Array,
    argument_error,
    choice,
    dimensions,
    distributions,
    instance,
    number,
    real_array,
    set_fields,
)
from icl_theory.engine.risk import Risk
from icl_theory.tokens.counts import CountLaw, Table
from icl_theory.tokens.sampled import Pass, Sampled, softmax

LOSSES = ("log", "square", "logistic")
ROWS = 2**13  # rows of the table at a time, whose arrays stay in the cache


class Expected(NamedTuple):
    """Mean of a loss, and its excess over that of the Bayes-optimal prediction."""

    value: float
    excess: float


def mean_loss(table: Table, predicted: ArrayLike, loss: str = "log") -> Expected:
    r"""Mean loss of a prediction for each row of a table, exactly.

    .. math:: -\ln o_y \quad\text{(log)}, \qquad
        \tfrac12 |o - e_y|^2 \quad\text{(square)}

    Parameters
    ----------
    table : Table
        The counts.
    predicted : array_like, (A, V)
        Probabilities o of the labels, which sum to 1 to 1e-12.
    loss : {"log", "square"}
        The loss.

    Returns
    -------
    Expected
        Mean and excess. The log loss is infinite if a label that may occur has the
        probability 0.

    Raises
    ------
    ValueError
        The prediction has another shape or is no probability.
    """
    choice("loss", loss, LOSSES[:2])
    instance("table", table, Table, "a Table")
    o = real_array("predicted", predicted, dimensions(predicted))
    if o.shape != table.truth.shape:
        raise argument_error("predicted", o.shape, f"of shape {table.truth.shape}")
    o = distributions("predicted", o, 1e-12)
    with np.errstate(divide="ignore"):
        excess = float(table.mean(excess_loss(loss, np.log(o.T), o.T, table.truth.T)))
    return Expected(_floor(loss, table) + excess, excess)


@dataclass(frozen=True, eq=False)
class CountRisk(Risk):
    r"""The exact loss of softmax attention over tokens of few kinds.

    Parameters of the risk are the scores of the kinds for each query, (k, Q).

    .. math:: o = \frac{\sum_\kappa n_\kappa e^{s_{\kappa q}} v_\kappa + e^{s_{0q}} v_0}
        {\sum_\kappa n_\kappa e^{s_{\kappa q}} + e^{s_{0q}}}

    Parameters
    ----------
    law : CountLaw
        Law of the counts n, queries q and labels y.
    objective : {"log", "square", "logistic"}
        :math:`-\ln o_y`, :math:`\tfrac12 |o - e_y|^2`, or :math:`-\ln` of the softmax
        of ``scale`` times o at y.
    sink : array_like, (V,), optional
        Probabilities v₀ of the labels for one more token that each prompt has. Its
        scores are the last row. It plays the part of a prior: with v₀ the mean of a
        Beta prior attention can be Bayes-optimal.
    scale : float
        The factor of the logistic loss.

    Raises
    ------
    ValueError
        An argument is out of range. The log loss needs a sink if a label may occur that
        no token stands for: it would be infinite whatever the scores.

    References
    ----------
    docs/theory.md, "Few kinds of tokens".

    Examples
    --------
    An induction head on two states: attention on the windows that begin with the last
    symbol comes near the Bayes loss, and reaches it with a sink of weight 2:

    >>> import numpy as np
    >>> from icl_theory.tokens.counted import CountRisk
    >>> from icl_theory.tokens.counts import TwoStateCounts
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
    # the table of the law, with the sink as one more kind of one token
    table: Table = field(init=False, repr=False)
    # probabilities of the labels, (k, V), or (k + 1, V) with the sink
    values: Array = field(init=False, repr=False)
    least: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        instance(
            "law",
            self.law,
            CountLaw,
            "a law of counts, as IndependentCounts or TwoStateCounts",
        )
        choice("objective", self.objective, LOSSES)
        set_fields(self, scale=number("scale", self.scale))
        table = self.law.table
        values = self.law.values
        if self.sink is not None:
            sink = self._checked_sink(table)
            counts = np.column_stack([table.counts, np.ones(len(table.counts))])
            table = table._replace(counts=counts)
            values = np.vstack([values, sink])
        without_tokens = table.counts @ values == 0.0
        if self.objective == "log" and (without_tokens & (table.truth > 0.0)).any():
            raise argument_error(
                "sink",
                self.sink,
                "positive for each label: without tokens it has infinite log loss",
            )
        least = _floor(self.objective, table)
        set_fields(self, table=table, values=values, least=least)

    def _checked_sink(self, table: Table) -> Array:
        sink = distributions("sink", self.sink)  # type: ignore[arg-type]
        labels = table.truth.shape[1]
        if sink.shape != (labels,):
            raise argument_error(
                "sink", self.sink, f"{labels} probabilities, one for each label"
            )
        return sink

    @property
    def initial(self) -> Array:
        """Zero scores, (k, Q), or (k + 1, Q) with a sink."""
        return np.zeros((len(self.values), self.law.queries))

    @cached_property
    def _parts(self) -> list[_Rows]:
        """Rows of the table by query, in parts that stay in the cache."""
        table = self.table
        with np.errstate(divide="ignore"):
            log_counts = np.log(table.counts)
        parts = []
        for query in range(self.law.queries):
            rows = np.flatnonzero(table.query == query)
            for part in np.array_split(rows, 1 + len(rows) // ROWS):
                log_count = np.ascontiguousarray(log_counts[part].T)
                truth = np.ascontiguousarray(table.truth[part].T)
                parts.append(_Rows(query, table.probability[part], log_count, truth))
        return parts

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient in the scores, of their shape."""
        excess, gradient, _ = self._moments(params)
        return self.floor() + excess, gradient

    def floor(self) -> float:
        """Loss of the Bayes-optimal prediction."""
        return self.least

    def excess(self, params: ArrayLike) -> float:
        """Loss above the Bayes-optimal prediction's, without cancellation."""
        return self._moments(self._checked(params))[0]

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Excess over the floor, and the attention.

        ``attention`` is the mean attention of a query on all tokens of a kind, (k, Q).
        """
        excess, _, attention = self._moments(params)
        return {"excess": np.asarray(excess), "attention": attention}

    def sampled(self, batch: int, seed: int = 0) -> Sampled:
        """Return the same model on prompts that are drawn token by token.

        A step takes ``batch`` prompts. No formula is shared with the exact loss.
        """
        tokens = float(self.table.counts[0].sum())
        numbers = tokens * (6.0 + self.values.shape[1])
        return Sampled(self.initial, self._draw, batch, seed, numbers)

    def _moments(self, scores: Array) -> tuple[float, Array, Array]:
        """Excess, its gradient and the mean attention, (k, Q) both."""
        excess = 0.0
        gradient = np.zeros(scores.shape)
        attention = np.zeros(scores.shape)
        prob_query = np.zeros(scores.shape[1])
        with np.errstate(divide="ignore"):
            log_values = np.log(self.values).T[:, :, None]
        for query, p, log_counts, truth in self._parts:
            log_w = (log_counts + scores[:, query, None]) + log_values  # (V, k, n)
            log_o, share = _log_prediction(log_w)
            o = np.exp(log_o)
            loss, slope = self._loss(log_o, o, truth)
            excess += float(p @ loss)
            # d ln o_v / d score = share_v - Σ_u o_u share_u
            by_share = slope - o * slope.sum(axis=0)
            gradient[:, query] += np.einsum("vn,vkn->k", p * by_share, share)
            attention[:, query] += np.einsum("vn,vkn->k", p * o, share)
            prob_query[query] += p.sum()
        attention = attention / np.where(prob_query > 0.0, prob_query, 1.0)
        return excess, gradient, attention

    def _loss(self, log_o: Array, o: Array, truth: Array) -> tuple[Array, Array]:
        """Excess of each row, (n,), and its derivatives by ln o, (V, n)."""
        if self.objective == "log":
            return excess_loss("log", log_o, o, truth), -truth
        if self.objective == "square":
            return excess_loss("square", log_o, o, truth), (o - truth) * o
        log_q = self.scale * o
        log_q -= np.logaddexp.reduce(log_q, axis=0)
        q = np.exp(log_q)
        return excess_loss("log", log_q, q, truth), self.scale * o * (q - truth)

    def _draw(self, params: Array, rng: np.random.Generator, batch: int) -> Pass:
        prompts = self.law.draw(rng, batch)
        kind = prompts.kind
        if self.sink is not None:
            kind = np.column_stack([kind, np.full(len(kind), len(self.values) - 1)])
        place = kind * params.shape[1] + prompts.query[:, None]
        scores = params.ravel()[place]
        attention, log_total = softmax(scores)
        if self.objective == "log":
            # attention among what stands for the right label
            with np.errstate(divide="ignore"):
                log_right = np.log(self.values[kind, prompts.target[:, None]])
            attention_right, log_total_right = softmax(scores + log_right)
            return log_total - log_total_right, place, attention - attention_right
        v = self.values[kind]
        o = np.einsum("bn,bnv->bv", attention, v)
        target = np.eye(v.shape[2])[prompts.target]
        if self.objective == "square":
            losses = 0.5 * np.sum((o - target) ** 2, axis=1)
            by_o = o - target
        else:
            q, log_sum = softmax(self.scale * o)
            losses = log_sum - self.scale * o[np.arange(len(o)), prompts.target]
            by_o = self.scale * (q - target)
        # ∂o/∂(score of n) = a_n (v_n - o)
        along = np.einsum("bnv,bv->bn", v - o[:, None], by_o)
        return losses, place, attention * along


class _Rows(NamedTuple):
    """Some rows of a table of counts, all of one query."""

    query: int
    probability: Array  # (n,)
    log_counts: Array  # (k, n)
    truth: Array  # (V, n)


def _log_prediction(log_w: Array) -> tuple[Array, Array]:
    """Return ln o of the labels, (V, n), and shares of the kinds in each, (V, k, n).

    The logarithms ``log_w`` of the weights with which kinds stand for labels are
    (V, k, n).
    """
    top = log_w.max(axis=1, keepdims=True)
    top[np.isneginf(top)] = 0.0  # no token stands for the label
    share = np.exp(log_w - top)
    total = share.sum(axis=1)
    with np.errstate(divide="ignore"):
        log_o = top[:, 0] + np.log(total)
    share /= np.where(total > 0.0, total, 1.0)[:, None]
    log_o -= np.logaddexp.reduce(log_o, axis=0)
    return log_o, share


def excess_loss(loss: str, log_q: Array, q: Array, truth: Array) -> Array:
    """Mean loss of the prediction q given the truth t, above that of the truth itself.

    Labels are the first axis. With q = t e^d the log loss exceeds that of the truth by
    t (e^d - 1 - d) for each label, in which nothing cancels where d is small.
    """
    if loss == "square":
        return 0.5 * np.sum((q - truth) ** 2, axis=0)
    is_possible = truth > 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        d = np.where(is_possible, log_q - np.log(truth), 0.0)
    is_near = np.abs(d) < 0.1
    near = np.where(is_near, d, 0.0)
    inverse_factorials = [1.0 / math.factorial(k) for k in range(11, 1, -1)]
    series = truth * near**2 * np.polyval(inverse_factorials, near)
    direct = q - truth - truth * d
    return np.sum(np.where(is_near & is_possible, series, direct), axis=0)


def _floor(loss: str, table: Table) -> float:
    """Return the loss of the Bayes-optimal prediction."""
    from scipy.special import entr

    t = table.truth
    of_labels = 0.5 * t * (1.0 - t) if loss == "square" else entr(t)
    return float(table.mean(of_labels.sum(axis=1)))
