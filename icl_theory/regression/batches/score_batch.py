"""K x K scores of many points side by side, as the columns of one risk.

A point is one problem of a sweep. Its loss is a sum over its K queries, and the loss of
query k depends on column k of the scores alone. So the columns of P points can make up
one array, (K, P K), in which no column affects another one. Descent on a `ScoreBatch`
takes the steps of all points at once.

Γ is the variogram of a point, Γ_mk = ½ E(f_m - f_k)² for the values f of its task, p_k
the probability of feature k, and σ² the variance of the label noise. The *error form*
of query k is the matrix C_mj = E (f_m - f_k)(f_j - f_k). A *factor* of Γ has rows φ_m
with Γ_mj = ½ ‖φ_m - φ_j‖².
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.engine.capabilities import ColumnGradients
from icl_theory.engine.risk import Risk
from icl_theory.regression.batches.doubts import Index
from icl_theory.regression.risks.error_form import at_nodes
from icl_theory.regression.risks.population import PopulationRisk
from icl_theory.regression.risks.prompts import presence
from icl_theory.tokens.generating import TokenCount
from icl_theory.tokens.square import moments


class Columns(NamedTuple):
    """Results for n columns."""

    gradient: Array  # times the learning rate of the point, (K, n)
    loss: Array  # the part that the column adds to the loss of its point, (n,)
    attention: Array  # on the query's own feature, (n,)


class Observation(NamedTuple):
    """Results for n points."""

    loss: Array  # (n,)
    attention: Array  # of each query on its own feature, (n, K)
    # Gradient times learning rate, which a step subtracts, (n, K²): for each point the
    # columns of its scores, one after the other.
    move: Array


class ScoreBatch(Risk):
    """The risk of P points with the same K and N, a function of their scores, (K, P K).

    The gradient of each column is multiplied by the learning rate of its point, so that
    descent with the rate 1 takes the steps of all points.

    Parameters
    ----------
    risks : sequence of PopulationRisk
        P risks that `fit_together`.
    eta : ndarray, (P,)
        Learning rates.
    """

    def __init__(self, risks: Sequence[PopulationRisk], eta: Array) -> None:
        self.K = risks[0].features.K
        self.N = risks[0].N
        self.count = len(risks)
        # The point and the query of each column, (P K,).
        self.point, self.query = np.divmod(np.arange(self.count * self.K), self.K)
        self.probs = np.array([risk.features.probs for risk in risks])  # (P, K)
        self._query_probs = self.probs.ravel()  # p_k of each column

        # With infinite prompts, the loss of each point is a multiple of the first
        # point's loss, because `fit_together` demands variograms that are multiples of
        # each other.
        self._first = risks[0]
        largest = np.array([_largest_variogram(risk) for risk in risks])
        self._scale = largest / largest[0]

        # With finite prompts, each point has error forms of its own, which follow from
        # its variogram, or from the factor of the variogram if that has any columns.
        # For query k, a token of feature m has the mean squared error 2 Γ_mk + σ².
        self._variograms = np.array([risk._form.variogram for risk in risks])
        self._factors = np.array([risk._form.factor for risk in risks])
        noise_variance = np.array([risk.noise**2 for risk in risks])
        squared_errors = 2.0 * self._variograms + noise_variance[:, None, None]
        # From (P, feature, query) to a column for each point and query, (K, P K)
        self._squared_errors = squared_errors[self.point, :, self.query].T
        # The probabilities of all features, again as columns, (K, P K)
        self._probs_of_column = self.probs[self.point].T
        self._noise_variance: Array | None = None
        if noise_variance.any():
            self._noise_variance = noise_variance[self.point]

        # The factor on the gradient of each column. For finite N it contains the
        # probability of the query. For N = ∞ the gradients that are multiplied by it
        # contain this probability already.
        if math.isfinite(self.N):
            self._rate = (eta[:, None] * self.probs).ravel()
        else:
            self._rate = (eta * self._scale)[self.point]

    @property
    def initial(self) -> Array:
        """Zero scores."""
        return np.zeros((self.K, self.point.size))

    def columns_of(self, points: Index) -> Index:
        """Indices of the columns of some points, (n K,)."""
        first_column = points[:, None] * self.K
        return np.asarray((first_column + np.arange(self.K)).ravel())

    def columns(self, scores: Array, which: Index) -> Columns:
        """Return the gradients, losses and attentions of some columns.

        Parameters
        ----------
        scores : ndarray, (K, n)
            Scores of n columns.
        which : ndarray, (n,)
            The indices of these columns.
        """
        if math.isinf(self.N):
            return self._infinite_columns(scores, which)
        return self._finite_columns(scores, which)

    def _infinite_columns(self, scores: Array, which: Index) -> Columns:
        """Evaluate columns for N = ∞."""
        # The losses ℓ_k of the first point, and the gradients of p_k ℓ_k
        losses, gradient, attention = self._first._infinite(scores, self.query[which])
        weight = self._query_probs * self._scale[self.point]
        return Columns(
            gradient=self._rate[which] * gradient,
            loss=weight[which] * losses,
            attention=attention,
        )

    def _finite_columns(self, scores: Array, which: Index) -> Columns:
        """Evaluate columns for finite prompts."""

        # `moments` calls this function to write the products C z of some columns to
        # ``product``. The slice ``rows`` selects the values of one kind of token. There
        # is only one kind, whose values are the K features, so ``rows`` is not used.
        # The index of a column is also the number that `at_nodes` gives to its query.
        def error_form(
            queries: NDArray[np.intp], rows: slice, z: Array, product: Array
        ) -> None:
            at_nodes(self._variograms, self._factors, which[queries], z, product)

        squared_errors = self._squared_errors[:, which]
        # The part of the squared errors that comes from noise alone
        spread = None
        if self._noise_variance is not None:
            spread = np.broadcast_to(self._noise_variance[which], squared_errors.shape)
        result = moments(
            scores,
            self._probs_of_column[:, which],
            squared_errors,
            TokenCount(self.N),
            error_form,
            spread=spread,
        )
        return Columns(
            gradient=self._rate[which] * result.gradient,
            loss=self._query_probs[which] * result.loss,
            attention=result.attention[self.query[which], np.arange(which.size)],
        )

    def observation(self, rows: Array, points: Index) -> Observation:
        """Evaluate some points, whose columns are given as ``rows``, (n K, K).

        Each row is one column of scores, and a point has K rows that follow each other.
        """
        columns = self.columns(np.ascontiguousarray(rows.T), self.columns_of(points))
        shape = len(points), self.K
        return Observation(
            loss=columns.loss.reshape(shape).sum(axis=1),
            attention=columns.attention.reshape(shape),
            move=columns.gradient.T.reshape(len(points), -1),
        )

    def shares(self, attention: Array, points: Index) -> Array:
        """Attention divided by the largest attention that a query can have, (n, K).

        The divisor is the probability that a prompt contains the query's feature.
        """
        return np.asarray(attention / presence(self.probs[points], self.N))

    @property
    def column_gradients(self) -> ColumnGradients:
        """Gradients of single columns, times their learning rates."""
        return lambda columns, which: self.columns(columns, which).gradient

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Return the gradient of all columns, times the learning rates, and no loss.

        The points have losses of their own, which `observation` returns. Instead of a
        loss, the number 0 is returned.
        """
        return 0.0, self.columns(params, np.arange(self.point.size)).gradient


def fit_together(
    first: PopulationRisk, second: PopulationRisk, tolerance: float = 1e-14
) -> bool:
    """Whether two points may be in one batch.

    They must have the same K and N. With finite prompts the factors of both variograms
    must have the same shape. With infinite prompts the probabilities of both must be
    equal, and one variogram must be a multiple of the other, up to the relative
    ``tolerance`` for rounding.
    """
    if (first.features.K, first.N) != (second.features.K, second.N):
        return False
    if math.isfinite(first.N):
        # Factors of the same shape make up one array.
        return first._form.factor.shape == second._form.factor.shape
    if not np.array_equal(first.features.probs, second.features.probs):
        return False
    first_largest = _largest_variogram(first)
    second_largest = _largest_variogram(second)
    # If the first variogram is zero, all its multiples are zero.
    scale = 0.0
    if first_largest > 0.0:
        scale = second_largest / first_largest
    multiple = scale * first._form.variogram
    difference = np.abs(second._form.variogram - multiple).max()
    return bool(difference <= tolerance * second_largest)


def _largest_variogram(risk: PopulationRisk) -> float:
    """Return the largest entry of the variogram."""
    return float(risk._form.variogram.max())
