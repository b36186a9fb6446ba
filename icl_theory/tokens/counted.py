r"""Softmax attention over few kinds of tokens, with any loss, as a finite sum.

Let a prompt have n_κ tokens of kind κ, and let the law of these counts be known. A
token of kind κ has the score s_κ and stands for a random label; the vector v_κ has the
probabilities of this label. The prediction o of attention, a vector of probabilities of
the labels, is then a function of the counts,

.. math:: o = \frac{\sum_\kappa n_\kappa e^{s_\kappa} v_\kappa}
    {\sum_\kappa n_\kappa e^{s_\kappa}}.

So the mean of any loss of o is a finite sum over a table of all counts, and is exact.
See docs/theory.md, "Few kinds of tokens".

In the shapes below, A is the number of rows of the table, or of a block of its rows, k
the number of kinds, Q the number of queries and V the number of labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
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
from icl_theory.tokens.counts import CountLaw, Drawn, Table
from icl_theory.tokens.sampled import Pass, Sampled, first_places, softmax

LOSSES = ("log", "square", "logistic")
# If the logs of all weights are within this range, the weights themselves are summed.
# With a wider range a sum of small weights might underflow. float64 still represents
# e^(-700), so 500 leaves a margin.
WIDEST = 500.0
# Number of rows of the table that are evaluated at a time: their arrays stay in the
# processor's cache.
ROWS = 2**13
# How many numbers of 8 bytes a drawn token takes, in addition to one for each label.
NUMBERS_OF_TOKEN = 6.0
# If |d| is below this, `excess_loss` evaluates e^d - 1 - d by its series. The omitted
# terms are then below rounding.
LARGEST_D_OF_SERIES = 0.1
# The sum of the probabilities of a prediction may differ from 1 by this much, which is
# rounding. A larger difference would change the excess loss.
ERROR_OF_PREDICTION = 1e-12
# The coefficients 1/11!, ..., 1/2! of d^9, ..., d^0 in the series of (e^d - 1 - d)/d².
# `np.polyval` takes them in this order.
INVERSE_FACTORIALS = [1.0 / math.factorial(k) for k in range(11, 1, -1)]


class Expected(NamedTuple):
    """Mean of a loss, and its excess over the loss of the Bayes-optimal prediction."""

    value: float
    excess: float


def mean_loss(table: Table, predicted: ArrayLike, loss: str = "log") -> Expected:
    r"""Return the exact mean loss of predictions, one for each row of a table.

    The loss of a prediction o for the right label y, with the unit vector :math:`e_y`,
    is

    .. math:: -\ln o_y \quad\text{(log)}, \qquad
        \tfrac12 |o - e_y|^2 \quad\text{(square)} .

    Parameters
    ----------
    table : Table
        All counts, with their probabilities and the probabilities of the right label.
    predicted : array_like, (A, V)
        Probabilities o of the labels. They must sum to 1 to within 1e-12.
    loss : {"log", "square"}
        The loss.

    Returns
    -------
    Expected
        The mean and the excess. The log loss is infinite if the prediction gives the
        probability 0 to a label that may occur.

    Raises
    ------
    ValueError
        The prediction has a wrong shape, or its rows are not probabilities.
    """
    choice("loss", loss, ("log", "square"))
    instance("table", table, Table, "a Table")
    o = real_array("predicted", predicted, dimensions(predicted))
    if o.shape != table.truth.shape:
        raise argument_error("predicted", o.shape, f"of shape {table.truth.shape}")
    o = distributions("predicted", o, ERROR_OF_PREDICTION)
    # The log of a predicted 0 is -inf, and may make the loss infinite. `excess_loss`
    # takes arrays whose first axis is the label.
    with np.errstate(divide="ignore"):
        log_o = np.log(o.T)
        excess_of_rows = excess_loss(loss, log_o, o.T, table.truth.T)
    excess = float(table.mean(excess_of_rows))
    return Expected(_floor(loss, table) + excess, excess)


@dataclass(frozen=True, eq=False)
class CountRisk(Risk):
    r"""The exact loss of softmax attention over tokens of few kinds.

    Parameters of the risk are the scores of the kinds for each query, (k, Q).

    .. math:: o = \frac{\sum_\kappa n_\kappa e^{s_{\kappa q}} v_\kappa + e^{s_{0q}} v_0}
        {\sum_\kappa n_\kappa e^{s_{\kappa q}} + e^{s_{0q}}}

    The prediction o is for the query q. The terms with the index 0 belong to the
    ``sink``, if there is one.

    Parameters
    ----------
    law : CountLaw
        Law of the counts n, queries q and right labels y.
    objective : {"log", "square", "logistic"}
        The loss for the label y: :math:`-\ln o_y`, :math:`\tfrac12 |o - e_y|^2` with
        the unit vector :math:`e_y`, or
        :math:`-\ln \mathrm{softmax}(\texttt{scale}\, o)_y`.
    sink : array_like, (V,), optional
        Probabilities v₀ of the labels for one more token, which every prompt has. The
        scores s₀ of this token are the last row of the parameters. The token acts as a
        prior: if v₀ is the mean of a Beta prior, attention can be Bayes-optimal.
    scale : float
        The factor of the logistic loss.

    Raises
    ------
    ValueError
        An argument is out of range. The log loss needs a sink if a label may occur in a
        prompt without any token that stands for it. For such a label the loss would be
        infinite, whatever the scores are.

    References
    ----------
    docs/theory.md, "Few kinds of tokens".

    Examples
    --------
    An induction head on two states, with a sink of weight 2. Its loss approaches the
    Bayes loss as attention concentrates on the windows that begin with the last symbol:

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
    # The table of the law. The sink is one more kind, with one token in every prompt.
    table: Table = field(init=False, repr=False)
    # Probabilities of the labels for each kind, (k, V), or (k + 1, V) with the sink.
    values: Array = field(init=False, repr=False)
    # Loss of the Bayes-optimal prediction.
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
            # The sink is one more kind, with one token in every prompt.
            sink = self._checked_sink(table)
            counts = np.column_stack([table.counts, np.ones(len(table.counts))])
            table = table._replace(counts=counts)
            values = np.vstack([values, sink])
        # For each row and label, (A, V): whether no token of the prompt stands for the
        # label, and whether the label may be right.
        is_unsupported = table.counts @ values == 0.0
        is_possible = table.truth > 0.0
        if self.objective == "log" and (is_unsupported & is_possible).any():
            raise argument_error(
                "sink",
                self.sink,
                "positive for every label: a label that no token stands for has "
                "infinite log loss",
            )
        least = _floor(self.objective, table)
        set_fields(self, table=table, values=values, least=least)

    def _checked_sink(self, table: Table) -> Array:
        """Return the sink's probabilities of the labels, or refuse the sink."""
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
    def _row_blocks(self) -> list[_Rows]:
        """Rows of the table, sorted by query, in blocks that fit the cache."""
        table = self.table
        blocks = []
        for query in range(self.law.queries):
            rows = np.flatnonzero(table.query == query)
            for block in np.array_split(rows, 1 + len(rows) // ROWS):
                counts = np.ascontiguousarray(table.counts[block].T)
                truth = np.ascontiguousarray(table.truth[block].T)
                blocks.append(_Rows(query, table.probability[block], counts, truth))
        return blocks

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient with respect to the scores, of their shape."""
        # The excess is summed separately, because it may be much smaller than the
        # floor.
        excess = 0.0
        gradient = np.zeros(params.shape)
        for rows, prediction in self._predictions(params):
            p = rows.probability
            excess_of_rows, slope = self._excess_and_slopes(prediction, rows.truth)
            excess += float(p @ excess_of_rows)
            # `_Prediction` defines the share of a kind in a label. For one kind,
            # ∂ln o_v/∂score = share_v - Σ_u o_u share_u with labels u and v, so the
            # loss has the derivative Σ_v share_v (slope_v - o_v Σ_u slope_u).
            factor_of_share = slope - prediction.o * slope.sum(axis=0)
            gradient[:, rows.query] += prediction.shared(p * factor_of_share)
        return self.floor() + excess, gradient

    def floor(self) -> float:
        """Loss of the Bayes-optimal prediction."""
        return self.least

    def excess(self, params: ArrayLike) -> float:
        """Loss minus the loss of the Bayes-optimal prediction, without cancellation."""
        excess = 0.0
        for rows, prediction in self._predictions(self._checked(params)):
            excess_of_rows, _ = self._excess_and_slopes(prediction, rows.truth)
            excess += float(rows.probability @ excess_of_rows)
        return excess

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Excess and attention.

        ``excess`` is the loss above the floor, and ``attention`` the mean attention of
        each query on all tokens of each kind, (k, Q).
        """
        excess = 0.0
        attention = np.zeros(params.shape)
        prob_query = np.zeros(params.shape[1])
        for rows, prediction in self._predictions(params):
            p = rows.probability
            excess_of_rows, _ = self._excess_and_slopes(prediction, rows.truth)
            excess += float(p @ excess_of_rows)
            # The attention on a kind is Σ_v o_v times the share of the kind in the
            # label v. `shared` sums these products over labels and rows; all rows of a
            # block have one query.
            attention[:, rows.query] += prediction.shared(p * prediction.o)
            prob_query[rows.query] += p.sum()
        # Divide to get the mean given the query. If a query never occurs, its attention
        # stays 0.
        attention = attention / np.where(prob_query > 0.0, prob_query, 1.0)
        return {"excess": np.asarray(excess), "attention": attention}

    def sampled(self, batch: int, seed: int = 0) -> Sampled[Drawn]:
        """Return the same model on prompts that are drawn token by token.

        A step takes ``batch`` prompts. The sampled loss shares no formula with the
        exact loss.
        """
        # All prompts have as many tokens as the first row of the table, the sink
        # included.
        tokens = float(self.table.counts[0].sum())
        numbers = tokens * (NUMBERS_OF_TOKEN + self.values.shape[1])
        return Sampled(
            self.initial, self.law.draw, self._losses_on, batch, seed, numbers
        )

    def _predictions(self, scores: Array) -> Iterator[tuple[_Rows, _Prediction]]:
        """Yield the blocks of the table, with the predictions for their rows."""
        for rows in self._row_blocks:
            log_w = scores[:, rows.query, None] + self._log_values  # (k, V)
            yield rows, _prediction(rows.counts, log_w)

    @cached_property
    def _log_values(self) -> Array:
        """Logarithms of the values, (k, V), with -inf for a value of 0."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.values))

    def _excess_and_slopes(
        self, prediction: _Prediction, truth: Array
    ) -> tuple[Array, Array]:
        """Return the excess of A rows, (A,), and its derivatives, (V, A).

        The derivatives are with respect to the logarithms of the predicted
        probabilities o of the labels.
        """
        o = prediction.o
        # The loss -Σ t ln o, with the true probabilities t of the labels (``truth``),
        # has the derivatives -t with respect to ln o.
        if self.objective == "log":
            return excess_loss("log", prediction.log_o, o, truth), -truth
        # For the other losses, the derivatives with respect to o get the factor o.
        if self.objective == "square":
            return excess_loss("square", prediction.log_o, o, truth), (o - truth) * o
        # The logistic loss is the log loss of the softmax q of the scaled o.
        log_q = self.scale * o
        log_q -= np.logaddexp.reduce(log_q, axis=0)
        q = np.exp(log_q)
        return excess_loss("log", log_q, q, truth), self.scale * o * (q - truth)

    def _losses_on(self, params: Array, prompts: Drawn) -> Pass:
        """Return losses and derivatives on B prompts of R runs, see `Sampled`.

        The scores ``params`` are (R, k, Q), or (R, k + 1, Q) with a sink. All runs have
        the same number of prompts, in the order of the runs. A prompt has N tokens.
        """
        kind = prompts.kind
        if self.sink is not None:
            # The sink is the last kind, and is the last token of every prompt.
            kind = np.column_stack([kind, np.full(len(kind), len(self.values) - 1)])
        # `first_places` returns where the scores of each prompt's run begin in the flat
        # array of scores. In a run, the scores have the axes (kind, query).
        place_in_run = kind * params.shape[-1] + prompts.query[:, None]
        place = first_places(params, len(kind)) + place_in_run  # (B, N)
        scores = params.ravel()[place]
        # `softmax` also returns the log of its denominator, the sum of all weights.
        attention, log_total = softmax(scores)
        if self.objective == "log":
            # A token gives the right label y the part v_y of its weight. The loss is
            # the log of the sum of all weights minus the log of the sum of these parts,
            # and the derivatives of both logs are softmax attentions.
            with np.errstate(divide="ignore"):
                log_prob_right = np.log(self.values[kind, prompts.target[:, None]])
            attention_right, log_total_right = softmax(scores + log_prob_right)
            return Pass(
                losses=log_total - log_total_right,
                places=place,
                slopes=attention - attention_right,
            )
        v = self.values[kind]  # (B, N, V)
        o = np.einsum("bn,bnv->bv", attention, v)
        target = np.eye(v.shape[2])[prompts.target]
        if self.objective == "square":
            losses = 0.5 * np.sum((o - target) ** 2, axis=1)
            gradient_o = o - target
        else:
            q, log_sum = softmax(self.scale * o)
            losses = log_sum - self.scale * o[np.arange(len(o)), prompts.target]
            gradient_o = self.scale * (q - target)
        # ∂o/∂(score of token n) = a_n (v_n - o), with the attention a_n
        slope_over_attention = np.einsum("bnv,bv->bn", v - o[:, None], gradient_o)
        return Pass(losses, place, slopes=attention * slope_over_attention)


class _Rows(NamedTuple):
    """A block of A rows of a table of counts, all of one query."""

    query: int
    probability: Array  # (A,)
    counts: Array  # (k, A)
    truth: Array  # true probabilities of the labels, (V, A)


class _Prediction(NamedTuple):
    """The prediction of attention in A rows of a table.

    A kind κ gives label v the mass n_κ e^(s_κ) v_κv, with the letters defined at the
    head of the module. Its share in the label is its part of the mass that all kinds
    give this label.
    """

    o: Array  # predicted probabilities of the labels, (V, A)
    log_o: Array  # their logarithms, (V, A)
    # Takes values, (V, A), and returns for each kind the sum of its shares times the
    # values over all labels and rows, (k,).
    shared: Callable[[Array], Array]


def _prediction(counts: Array, log_w: Array) -> _Prediction:
    """Return the prediction for counts, (k, A), and the logs of weights, (k, V).

    One token of a kind has a weight for each label: e^score times the label's
    probability.
    """
    top = log_w.max()
    # A weight of 0, whose log is -inf, cannot underflow.
    lowest = np.min(log_w, where=np.isfinite(log_w), initial=top)
    if lowest > top - WIDEST:
        # A factor common to all weights does not change the prediction.
        return _prediction_by_sums(counts, np.exp(log_w - top))
    return _prediction_by_logs(counts, log_w)


def _prediction_by_sums(counts: Array, weights: Array) -> _Prediction:
    """Return the prediction for counts, (k, A), and ``weights``, (k, V).

    The weights must be so near each other in size that no sum of them underflows.
    """
    mass = weights.T @ counts  # the mass that all kinds give each label, (V, A)
    # A label for which no token stands has the logarithm -inf.
    with np.errstate(divide="ignore"):
        log_o = np.log(mass / mass.sum(axis=0))

    def shared(values: Array) -> Array:
        # The share of kind κ in label v is counts_κ weights_κv/mass_v.
        per_mass = np.divide(values, mass, out=np.zeros_like(mass), where=mass > 0.0)
        return np.einsum("kv,kv->k", counts @ per_mass.T, weights)

    return _Prediction(np.exp(log_o), log_o, shared)


def _prediction_by_logs(counts: Array, log_w: Array) -> _Prediction:
    """Return the prediction for counts, (k, A), from logs of weights, (k, V).

    This is slower than `_prediction_by_sums`, but nothing underflows.
    """
    with np.errstate(divide="ignore"):
        log_counts = np.log(counts)
    log_mass = log_counts + log_w.T[:, :, None]  # (V, k, A)
    # The largest mass of each label is factored out, so that not all terms underflow.
    top = log_mass.max(axis=1, keepdims=True)
    top[np.isneginf(top)] = 0.0  # no token stands for the label
    share = np.exp(log_mass - top)
    total = share.sum(axis=1)
    with np.errstate(divide="ignore"):
        log_o = top[:, 0] + np.log(total)
    share /= np.where(total > 0.0, total, 1.0)[:, None]
    # Divide by the mass of all labels.
    log_o -= np.logaddexp.reduce(log_o, axis=0)

    def shared(values: Array) -> Array:
        return np.einsum("va,vka->k", values, share)

    return _Prediction(np.exp(log_o), log_o, shared)


def excess_loss(objective: str, log_q: Array, q: Array, truth: Array) -> Array:
    """Return the loss of a prediction q minus the least loss of any prediction.

    The loss is a mean over labels drawn from their true probabilities t, ``truth``, and
    is least for the prediction t. The ``objective`` is "log" or "square". The first
    axis of all arrays runs over the labels.

    With q = t e^d, the excess of the log loss is the sum of t (e^d - 1 - d) over the
    labels, because q and t both sum to 1. For small d the bracket is evaluated by its
    series, in which nothing cancels.
    """
    if objective == "square":
        return 0.5 * np.sum((q - truth) ** 2, axis=0)
    is_possible = truth > 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        d = np.where(is_possible, log_q - np.log(truth), 0.0)
    uses_series = is_possible & (np.abs(d) < LARGEST_D_OF_SERIES)
    # t (e^d - 1 - d) with t e^d = q. A label with t = 0 adds q.
    excess = np.asarray(q - truth - truth * d)
    small_d = d[uses_series]
    series = np.polyval(INVERSE_FACTORIALS, small_d)
    excess[uses_series] = truth[uses_series] * small_d**2 * series
    return np.sum(excess, axis=0)


def _floor(objective: str, table: Table) -> float:
    """Return the loss of the Bayes-optimal prediction, ``table.truth``."""
    from scipy.special import entr  # entr(t) = -t ln t; slow to load

    t = table.truth
    # ½ E|t - e_y|² = ½ (1 - |t|²) = ½ Σ t (1 - t), and -E ln t_y = -Σ t ln t.
    terms = 0.5 * t * (1.0 - t) if objective == "square" else entr(t)
    return float(table.mean(terms.sum(axis=1)))
