"""The exact population risk over class scores, for infinite and for finite prompts.

`PopulationRisk` has the loss and the gradient of Lemmas 1 and 2 of the paper. The
*class scores* S are a (K, K) matrix: entry (m, k) is the score of feature m for the
query k. For prompts of infinite length N the attention is a softmax. For finite N the
expectation over the counts of the features in a prompt is a one-dimensional integral
for each query, which the trapezoid rule gives to rounding error. The method `floor`
returns the least loss that can be approached, and the attribute `levels` describes the
scores that approach it.

Everywhere p_k is the probability of feature k, ℓ_k the loss of the query k, and C the
matrix C^(k) of the query in question: the mean products of the errors of two tokens. In
the shapes below, K is the number of features and Q the number of queries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import (
    LARGEST,
    Array,
    argument_error,
    instance,
    number,
    prompt_length,
    set_fields,
)
from icl_theory.engine.capabilities import ColumnGradients, gradients_one_by_one
from icl_theory.engine.last_result import LastResult
from icl_theory.engine.risk import Risk
from icl_theory.memory import check_fits
from icl_theory.regression.features import Features
from icl_theory.regression.risks.error_form import ErrorForm, at_nodes
from icl_theory.regression.tasks import Task
from icl_theory.tokens.generating import TokenCount
from icl_theory.tokens.square import Moments, change_along, moments

if TYPE_CHECKING:
    from icl_theory.regression.risks.floors import Levels
    from icl_theory.regression.sampled.counts import CountedRisk

# A gradient smaller than this share of its terms has lost two digits or more. Queries
# whose own feature has more than this share of the largest weight are not tested: the
# gradient's entry at this feature alone is then above this share of the terms.
CANCELLED = 0.01
# A smaller eigenvalue, relative to the largest one, may be a rounding error of zero.
ZERO_EIGENVALUE = 1e-10
# The largest K for which non-degeneracy constants are computed to answer whether they
# are positive. Each of the K constants takes a least-squares problem in K unknowns.
MOST_NONDEGENERACY = 200

# For N = ∞, several matrices are evaluated together if they have at most this many
# scores altogether. With more scores, the overhead of a call for each matrix is small
# beside the evaluation.
MOST_TOGETHER = 2**17


class QueryLosses(NamedTuple):
    """Results for Q queries."""

    losses: Array  # ℓ_k, (Q,)
    # The gradient of Σ p_k ℓ_k with respect to the scores has a column for each query,
    # (K, Q).
    gradient: Array
    target_attention: Array  # attention on the query's own feature, (Q,)


@dataclass(frozen=True, eq=False)
class PopulationRisk(Risk):
    r"""The exact population risk over class scores S, (K, K), column k for query k.

    If a prompt has :math:`n_m` tokens of feature m, the attention on this feature is
    :math:`a_m = n_m e^{S_{mk}}/\sum_j n_j e^{S_{jk}}`. With the values :math:`f_m` of
    the task and :math:`C^{(k)}_{mj} = E[(f_m - f_k)(f_j - f_k)]` the risk is

    .. math:: \mathcal L = \sum_k p_k \ell_k, \qquad
        \ell_k = \tfrac12 E_n\Bigl[a^\top C^{(k)} a + \sigma^2 \sum_m a_m^2/n_m\Bigr].

    See docs/theory.md, "Lemma 1, exactly", "Lemma 2, exactly", "Finite prompts".

    Parameters
    ----------
    features : Features
        Features and their probabilities.
    task : Task
        Law of the task functions.
    N : int or math.inf
        Prompt length.
    noise : float
        Standard deviation σ of the label noise, label units. For N = ∞ noise averages
        out.

    Raises
    ------
    ValueError
        N or noise is out of range, or the task does not fit the number of features.

    Examples
    --------
    >>> import icl_theory as icl, numpy as np
    >>> features = icl.Features.simplex(20, delta=1.0)
    >>> risk = icl.PopulationRisk(features, icl.tasks.Exchangeable(2.0))
    >>> round(risk.loss(np.zeros((20, 20))), 12)
    0.95
    """

    features: Features
    task: Task
    N: float = math.inf
    noise: float = 0.0
    _form: ErrorForm = field(init=False, repr=False)

    def __post_init__(self) -> None:
        instance("features", self.features, Features, "a Features object")
        instance("task", self.task, Task, "a Task (see icl_theory.tasks)")  # type: ignore[type-abstract]
        # A run needs about eight (K, K) arrays of 8-byte numbers.
        check_fits("K", self.features.K, 8.0 * 8 * self.features.K**2)
        noise = number("noise", self.noise, zero=True, maximum=LARGEST)
        set_fields(
            self,
            N=prompt_length(self.N),
            noise=noise,
            _form=ErrorForm(self.task, self.features),
        )

    @property
    def probs(self) -> Array:
        """Probabilities of the features, (K,)."""
        return self.features.probs

    @property
    def initial(self) -> Array:
        """Zero scores, (K, K)."""
        return np.zeros((self.features.K, self.features.K))

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient with respect to S, (K, K)."""
        losses, gradient, _attention = self._evaluated(params)
        return float(self.features.probs @ losses), gradient

    def sampled(self, batch: int, seed: int = 0) -> CountedRisk:
        """Return the trainer on sampled prompts, which are drawn by their counts.

        Raises
        ------
        ValueError
            N is infinite, or an argument is out of range.
        """
        # Loaded here, because most runs are not sampled.
        from icl_theory.regression.sampled.counts import CountedRisk

        if math.isinf(self.N):
            raise argument_error(
                "N", self.N, "finite: infinite prompts cannot be sampled"
            )
        # Each prompt has one query, as in training.
        return CountedRisk(
            self.features,
            self.task,
            int(self.N),
            batch,
            seed,
            self.noise,
            every_query=False,
        )

    @property
    def column_gradients(self) -> ColumnGradients | None:
        """A function that returns the gradients of p_k ℓ_k for some columns of S.

        The function takes n columns, (K, n), and their queries, (n,). For finite N the
        property is None.
        """
        if math.isfinite(self.N):
            return None

        def gradients(columns: Array, query: NDArray[np.intp]) -> Array:
            return self._infinite(columns, query).gradient

        return gradients

    def gradients(self, states: Array) -> Array:
        """Gradients at n matrices of scores, (n, K, K).

        All queries of all matrices are evaluated as one batch, except that for N = ∞
        large matrices are evaluated one by one.
        """
        n, K, _ = states.shape
        side_by_side = np.concatenate(states, axis=1)  # (K, n K)
        if math.isinf(self.N):
            if states.size > MOST_TOGETHER:
                return gradients_one_by_one(self, states)
            queries = np.tile(np.arange(K), n)
            gradient = self._infinite(side_by_side, queries).gradient
            return gradient.reshape(K, n, K).swapaxes(0, 1)
        # The gradients of the losses ℓ_k, with the axes (feature, matrix, query)
        gradient = self._moments(side_by_side).gradient.reshape(K, n, K)
        return self.features.probs * gradient.swapaxes(0, 1)

    def loss_per_query(self, S: Array) -> Array:
        """Losses ℓ_k of the queries, (K,), squared label units."""
        return self._evaluated(self._checked(S)).losses

    def growth(self, S: Array) -> Array:
        r"""Return the growth ``-∂L/∂S`` of the scores (Lemma 2), (K, K).

        Without label noise or for N = ∞, it is α on the diagonal and β off the diagonal
        (with noise and finite N there are further terms),

        .. math:: \alpha_k = p_k E[a_k R_k], \quad
            \beta_{mk} = p_k E[a_m (R_k - r_m)], \quad
            R_k = a^\top C^{(k)} a, \quad r = C^{(k)} a .
        """
        return -self.gradient(S)

    def attention(self, S: Array) -> Array:
        """Expected attention on the features, (K, K).

        Column k is for query k, and sums to 1.
        """
        scores = self._checked(S)
        if math.isfinite(self.N):
            return self._moments(scores).attention
        weight, total = self._softmax(scores)
        return weight / total

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Expected target attention and loss of every query, (K,) each."""
        losses, _gradient, attention = self._evaluated(params)
        return {"attention": attention, "loss_per_query": losses}

    def floor(self) -> float:
        """Irreducible loss: 0 for N = ∞, else the infimum over the scores.

        The infimum is searched query by query (`floor_per_query`).
        """
        return float(self.features.probs @ self.floor_per_query())

    def floor_per_query(self) -> Array:
        r"""Infima of the losses :math:`\ell_k` as a search finds them, (K,).

        Losses come arbitrarily close to these values, so that the true infima are not
        larger. It is not proved that the true infima are not smaller. Up to 12 features
        the search has about 2K starts for each query, and computes the infimum that it
        finds to rounding. With more features it has one start (two with noise) and ends
        above the infimum: usually by less than 1 %, but for a query with a small
        infimum by up to about as much as the infimum itself. Descent from zero scores
        approaches the losses of `levels`, which may be larger than these infima.
        """
        K = self.features.K
        if math.isinf(self.N):
            return np.zeros(K)
        if self.levels is not None:
            # ``lowest`` is the infimum that the search from many starts has found.
            return np.array([levels.lowest for levels in self.levels])
        # Loaded here, because a loss and its gradient do not need it.
        from icl_theory.regression.risks.prompts import infima

        is_own_feature = np.eye(K, dtype=bool)  # rows are features, columns queries
        return infima(self._moments, is_own_feature, self.N, self.noise)

    @cached_property
    def nondegenerate(self) -> bool:
        """Whether all non-degeneracy constants (see `Task.nondegeneracy`) are positive.

        For more than MOST_NONDEGENERACY features only a quick test is made. The result
        is then also False if this test does not decide.
        """
        K = self.features.K
        variogram = self.task.variogram(self.features)
        # The covariance of the values minus their mean over the features
        row_means = variogram.mean(axis=1)
        centred = row_means[:, None] + row_means - variogram - row_means.mean()
        eigenvalues = np.linalg.eigvalsh(centred)
        # The lowest eigenvalue is 0, for the constant vector. If the next one is
        # positive, this covariance is definite on vectors that sum to zero. Then no
        # mixture of features has the values of another feature.
        if eigenvalues[1] > ZERO_EIGENVALUE * eigenvalues[-1]:
            return True
        if K > MOST_NONDEGENERACY:
            return False
        return float(self.task.nondegeneracy(self.features).min()) > 0.0

    @cached_property
    def levels(self) -> tuple[Levels, ...] | None:
        """Levels of the features at the infima that descent approaches, if known.

        Descent starts from zero scores. The result has an entry for each query. It is
        None for N = ∞, and if the levels are unknown. The first access searches for the
        levels, which may take seconds.
        """
        if math.isinf(self.N):
            return None
        # Loaded here, because a loss and its gradient do not need it.
        from icl_theory.regression.risks.floors import single_features

        # `unit_variogram` returns the variogram at L = 1 and the factor L², or the
        # variogram itself and 1 for a task without L. Without noise the losses are
        # proportional to the variogram. So tasks that differ only in L share one
        # search, whose result `single_features` keeps in a cache. Noise has no factor
        # L², so with noise the search takes the variogram itself.
        variogram, factor = self.task.unit_variogram(self.features)
        if self.noise > 0.0:
            variogram = factor * variogram
            factor = 1.0
        levels_of_queries = single_features(
            variogram, self.features.probs, self.N, self.noise
        )
        if levels_of_queries is None:
            return None
        return tuple(
            levels._replace(loss=factor * levels.loss, lowest=factor * levels.lowest)
            for levels in levels_of_queries
        )

    def hessian_product(self, params: Array, direction: Array) -> Array:
        """Product of the Hessian with a direction, exactly, (K, K)."""

        def gradient(scores: Array) -> Array:
            return self._evaluated(scores).gradient

        # `change_along` differentiates the gradient by a complex step, so that scores
        # and results may be complex in all methods below.
        return change_along(gradient, params, direction)

    def _evaluated(self, scores: Array) -> QueryLosses:
        """Losses of all queries, the gradient of the risk, and target attention."""
        if math.isinf(self.N):
            return self._infinite(scores)
        moments_of_queries = self._last_moments.of(self._moments, scores)
        return QueryLosses(
            # Copies, because the last moments are kept and must not change.
            losses=moments_of_queries.loss.copy(),
            gradient=self.features.probs * moments_of_queries.gradient,
            target_attention=np.diagonal(moments_of_queries.attention).copy(),
        )

    @cached_property
    def _last_moments(self) -> LastResult[Moments]:
        """The last moments of all queries for finite N, which take long to compute."""
        return LastResult()

    def _softmax(self, scores: Array) -> tuple[Array, Array]:
        """Return weights ∝ p_m e^S_mq, (K, Q), and the sums of columns, (Q,); N = ∞.

        The attention is a weight divided by the sum of its column. Weights are scaled
        such that the largest weight of a column is 1. So the sum does not vanish,
        however small the probabilities are.
        """
        # One array holds all intermediate results, which saves time and memory.
        weight = np.empty(scores.shape, scores.dtype)
        # Equal probabilities would only shift all logarithms.
        log_weight = scores
        if not self.features.uniform:
            log_probs = np.log(self.features.probs)[:, None]
            log_weight = np.add(scores, log_probs, out=weight)
        # For small arrays, `reduce` is faster than the methods `max` and `sum`.
        largest = np.maximum.reduce(log_weight, axis=0)
        np.exp(np.subtract(log_weight, largest, out=weight), out=weight)
        return weight, np.add.reduce(weight, axis=0)

    def _infinite(
        self, scores: Array, query: NDArray[np.intp] | None = None
    ) -> QueryLosses:
        """Evaluate Lemma 2 for N = ∞.

        Column j of the scores is for the query ``query[j]``; by default there is one
        column for each of the K queries. The losses are R_k/2, and the gradients are
        p_k a_m (r_m - R_k), in the notation of `growth`.
        """
        weight, total = self._softmax(scores)
        columns = np.arange(scores.shape[1])
        if query is None:
            query = columns
        probs = self.features.probs[query]
        # The query's own feature k has no error, so r_k = 0, and it is left out of the
        # sums over the wrong features.
        target_weight = weight[query, columns]
        weight[query, columns] = 0.0
        # The form returns z^T C z and (C z - z^T C z/total) z scale for the weights z.
        # With the attention a = z/total, the first is total² R_k, and the second is
        # p_k a_m (r_m - R_k) for this scale.
        scale = probs / total**2
        squared, gradient = self._form(weight, query, total, scale)
        # a^T C z, which is total R_k
        mean = squared / total
        gradient[query, columns] = -mean * target_weight * scale
        cancelled = self._cancelled(gradient, target_weight, mean, scale)
        if cancelled.size:
            # Compute these columns again, by the slower method. It needs the attention
            # on all features, so the query's own feature is put back.
            queries = query[cancelled]
            a = weight[:, cancelled] / total[cancelled]
            target_attention = target_weight[cancelled] / total[cancelled]
            a[queries, np.arange(len(cancelled))] = target_attention
            accurate = self._gradient_of_differences(a, queries)
            gradient[:, cancelled] = probs[cancelled] * accurate
        return QueryLosses(
            losses=0.5 * squared / total**2,
            gradient=gradient,
            target_attention=target_weight / total,
        )

    def _cancelled(
        self, gradient: Array, target_weight: Array, mean: Array, scale: Array
    ) -> NDArray[np.intp]:
        """Return the columns whose gradient, (K, Q), has lost digits by cancellation.

        If a wrong feature m has nearly all attention, r_m and R_k may be nearly equal.
        The gradient is then far below its terms, which have the size ``mean`` times
        ``scale``, (Q,). ``target_weight``, (Q,), is relative to the largest weight of a
        column.
        """
        # The quick test comes first: it mostly leaves no column, and then the norms of
        # the gradient's columns need not be computed.
        cancelled = np.flatnonzero(target_weight < CANCELLED)
        if cancelled.size:
            length = np.sqrt(np.einsum("mk,mk->k", gradient, gradient))
            terms = mean * scale
            is_small = length[cancelled] < CANCELLED * terms[cancelled]
            cancelled = cancelled[is_small]
        return cancelled

    def _gradient_of_differences(self, a: Array, query: NDArray[np.intp]) -> Array:
        """Return ``a_m (r_m - R)`` as ``a_m Σ_j a_j (r_m - r_j)``, (K, Q).

        R and r are defined in `growth`. The sum of differences keeps its digits if a
        wrong feature has nearly all attention. The attention ``a`` is (K, Q), and
        ``query``, (Q,), has the feature of each query.
        """
        top = a.argmax(axis=0)  # the feature with the most attention
        columns = np.arange(len(query))
        wrong = a.copy()
        wrong[query, columns] = 0.0
        # r_m - r_top, from which r_m - r_j follows as a difference
        difference = self._form.against(top, wrong, query)
        gradient = a * (difference - np.einsum("mk,mk->k", a, difference))
        length = np.sqrt(np.einsum("mk,mk->k", gradient, gradient))
        # An entry of `difference` is subtracted from terms as large as r_top. This size
        # is read off at the query's own feature: r is zero there, so the entry is
        # -r_top.
        size_of_terms = np.abs(difference[query, columns])
        # If a_m times the size exceeds 1/CANCELLED times the gradient, entry m has lost
        # two digits or more. With the mask of these entries, (K, Q), `against` computes
        # them with more digits: it subtracts rows of C before it sums over features.
        needs_digits = a * size_of_terms > length / CANCELLED
        difference = self._form.against(top, wrong, query, needs_digits=needs_digits)
        return np.asarray(a * (difference - np.einsum("mk,mk->k", a, difference)))

    def _moments(self, scores: Array) -> Moments:
        """Moments of all queries for finite N, from the scores of n matrices, (K, n K).

        The matrices stand side by side.
        """
        variogram = self._form.variogram
        n_matrices = scores.shape[1] // len(scores)
        # The mean squared error 2 Γ_mk + σ² of a token of feature m for query k
        squared_errors = 2.0 * variogram + self.noise**2
        squared_errors = np.concatenate([squared_errors] * n_matrices, axis=1)

        # `moments` calls this function to write the products C z of some queries to
        # ``product``. The slice ``rows`` selects the features that one kind of token
        # may show. Here there is only one kind, so it selects all features and is not
        # used.
        def form(
            queries: NDArray[np.intp], rows: slice, z: Array, product: Array
        ) -> None:
            # Variogram and factor of a single problem
            at_nodes(variogram[None], self._form.factor[None], queries, z, product)

        # The part of the squared errors that two tokens of one feature do not share is
        # the variance of the noise.
        noise_alone = None
        if self.noise > 0.0:
            noise_alone = np.full(squared_errors.shape, self.noise**2)
        return moments(
            scores,
            self.features.probs[:, None],
            squared_errors,
            TokenCount(self.N),
            form,
            spread=noise_alone,
        )
