"""The population risk over class scores, exactly: Lemma 1 and Lemma 2 for N = ∞ and for finite prompts.

For N = ∞ the attention is a softmax. For finite N the expectation over the counts of
the features is a one-dimensional integral per query, computed to rounding error by the
trapezoid rule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import (
    LARGEST,
    Array,
    instance,
    number,
    prompt_length,
    set_fields,
)
from icl_theory.engine.risk import ColumnGradients, Risk
from icl_theory.memory import check_fits
from icl_theory.regression.features import Features
from icl_theory.regression.risks.error_form import ErrorForm, at_nodes
from icl_theory.regression.risks.floors import Levels, single_features
from icl_theory.regression.risks.prompts import infima
from icl_theory.regression.tasks import Task
from icl_theory.tokens.generating import TokenCount
from icl_theory.tokens.square import Moments, change_along, moments

# share of its terms below which subtracting these for a gradient loses two digits or
# more
CANCELLED = 0.01


@dataclass(frozen=True, eq=False)
class PopulationRisk(Risk):
    r"""The exact population risk over class scores S, (K, K), column k for query k.

    With counts n, attention :math:`a_m = n_m e^{S_{mk}}/\sum_j n_j e^{S_{jk}}` and
    :math:`C^{(k)}_{mj} = E[(f_m - f_k)(f_j - f_k)]`,

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
        Standard deviation σ of the label noise, label units; it averages out for N = ∞.

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
        losses, gradient, _ = self._parts(params)
        return float(self.features.probs @ losses), gradient

    @property
    def column_gradients(self) -> ColumnGradients | None:
        """Gradients of p_k ℓ_k for single columns; None for finite N."""
        return (
            (lambda columns, which: self._infinite(columns, which)[1])
            if math.isinf(self.N)
            else None
        )

    def gradients(self, states: Array) -> Array:
        """Gradients at n matrices of scores, (n, K, K); for finite N all their queries are one batch."""
        if math.isinf(self.N):
            return super().gradients(states)
        found = self._moments(np.concatenate(states, axis=1)).gradient
        return self.features.probs * found.reshape(
            len(found), *states.shape[:2]
        ).swapaxes(0, 1)

    def loss_per_query(self, S: Array) -> Array:
        """Losses ℓ_k of the queries, (K,), squared label units."""
        return self._parts(self._checked(S))[0]

    def growth(self, S: Array) -> Array:
        r"""Lemma 2: the growth ``-∂L/∂S`` of the scores, α on the diagonal and β off it, (K, K).

        .. math:: \alpha_k = p_k E[a_k R_k], \quad \beta_{mk} = p_k E[a_m (R_k - r_m)], \quad
            R_k = a^\top C^{(k)} a, \quad r = C^{(k)} a
        """
        return -self.gradient(S)

    def attention(self, S: Array) -> Array:
        """Expected attention of the queries (columns, each sums to 1) on the features, (K, K)."""
        scores = self._checked(S)
        if math.isfinite(self.N):
            return self._moments(scores).attention
        weight, total = self._softmax(scores)
        return weight / total

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Expected target attention and loss of every query, (K,) each."""
        losses, _, attention = self._parts(params)
        return {"attention": attention, "loss_per_query": losses}

    def floor(self) -> float:
        """Irreducible loss: 0 for N = ∞, else the minimum over the scores, found query by query."""
        return float(self.features.probs @ self.floor_per_query())

    def floor_per_query(self) -> Array:
        r"""Infima of the losses :math:`\ell_k` as a search finds them, (K,).

        Losses come arbitrarily close to these values, so no infimum is above them; that
        none is below is not proved. Up to 12 features the search has about 2K starts
        for each query, and its result is exact to rounding. With more features it has
        one start (two with noise) and ends above the infimum, by at most 1 % for K <
        60. Descent from zero scores approaches the losses of `levels`, which may be
        higher.
        """
        K = self.features.K
        if math.isinf(self.N):
            return np.zeros(K)
        if self.levels is not None:
            return np.array([each.lowest for each in self.levels])
        return infima(self._moments, np.eye(K, dtype=bool), self.N, self.noise)

    @cached_property
    def nondegenerate(self) -> bool:
        """Whether all c_k are positive; False also for more than 200 features if the quick test does not decide."""
        K = self.features.K
        variogram = self.task.variogram(self.features)
        row = variogram.mean(axis=1)
        eigenvalues = np.linalg.eigvalsh(row[:, None] + row - variogram - row.mean())
        if eigenvalues[1] > 1e-10 * eigenvalues[-1]:  # definite on zero-sum vectors
            return True
        return K <= 200 and float(self.task.nondegeneracy(self.features).min()) > 0.0

    @cached_property
    def levels(self) -> tuple[Levels, ...] | None:
        """Levels of the features at the infima that descent from zero scores approaches; None if unknown."""
        if math.isinf(self.N):
            return None
        variogram, factor = self.task.unit_variogram(self.features)
        if self.noise > 0.0:
            variogram = factor * variogram
            factor = 1.0
        found = single_features(variogram, self.features.probs, self.N, self.noise)
        return found and tuple(
            each._replace(loss=factor * each.loss, lowest=factor * each.lowest)
            for each in found
        )

    def hessian_product(self, params: Array, direction: Array) -> Array:
        """Product of the Hessian with a direction, exactly, (K, K)."""
        return change_along(lambda scores: self._parts(scores)[1], params, direction)

    def _parts(self, scores: Array) -> tuple[Array, Array, Array]:
        """Losses ℓ_k of the queries, (K,), the gradient of their mean, (K, K), and target attention, (K,)."""
        if math.isinf(self.N):
            return self._infinite(scores)
        found = self._moments(scores)
        return (
            found.loss,
            self.features.probs * found.gradient,
            np.diagonal(found.attention).copy(),
        )

    def _close_gradient(self, a: Array, query: NDArray[np.intp]) -> Array:
        """``a_m (r_m - R)``, (K, Q), as ``a_m Σ_j a_j (r_m - r_j)``, for columns with dominant wrong features."""
        top = a.argmax(axis=0)
        columns = np.arange(len(query))
        others = a.copy()
        others[query, columns] = 0.0
        difference = self._form.against(top, others, query)  # r_m - r_top
        gradient = a * (difference - np.einsum("mk,mk->k", a, difference))
        length = np.sqrt(np.einsum("mk,mk->k", gradient, gradient))
        # the query's own r is zero, and rounding is relative to the others'
        alike = a * np.abs(difference[query, columns]) > length / CANCELLED
        difference = self._form.against(top, others, query, alike)
        return np.asarray(a * (difference - np.einsum("mk,mk->k", a, difference)))

    def _softmax(self, scores: Array) -> tuple[Array, Array]:
        """N = ∞: attention a_mq ∝ p_m e^S_mq as weights (K, Q), and their column sums (Q,)."""
        # the largest weight of a column is 1, so that no probability, however small,
        # makes the sum vanish
        weight = np.empty(scores.shape, scores.dtype)
        tilted = scores
        if not self.features.uniform:
            tilted = np.add(scores, np.log(self.features.probs)[:, None], out=weight)
        np.exp(np.subtract(tilted, tilted.max(axis=0), out=weight), out=weight)
        return weight, weight.sum(axis=0)

    def _infinite(
        self, scores: Array, query: NDArray[np.intp] | None = None
    ) -> tuple[Array, Array, Array]:
        """N = ∞, Lemma 2: losses R_k/2, (Q,), gradients p_k a_m (r_m - R_k), (K, Q), and target attention, (Q,)."""
        weight, total = self._softmax(scores)
        columns = np.arange(scores.shape[1])
        own = columns if query is None else query
        probs = self.features.probs[own]
        target = weight[own, columns]
        weight[own, columns] = 0.0
        scale = probs / total**2
        squared, gradient = self._form(weight, own, total, scale)
        gradient[own, columns] = -squared / total * target * scale  # r_k = 0
        # of columns with dominant wrong features, those with a gradient far below its
        # terms
        close = np.flatnonzero(target < CANCELLED)
        if close.size:
            length = np.sqrt(np.einsum("mk,mk->k", gradient, gradient))
            close = close[length[close] < CANCELLED * (squared / total * scale)[close]]
        if close.size:
            a = weight[:, close] / total[close]
            a[own[close], np.arange(len(close))] = target[close] / total[close]
            gradient[:, close] = probs[close] * self._close_gradient(a, own[close])
        return 0.5 * squared / total**2, gradient, target / total

    def _moments(self, scores: Array) -> Moments:
        """Moments for finite N of all queries; several score matrices may stand side by side."""
        own = 2.0 * self._form.variogram + self.noise**2
        own = np.concatenate([own] * (scores.shape[1] // len(scores)), axis=1)

        def form(
            queries: NDArray[np.intp], rows: slice, z: Array, product: Array
        ) -> None:
            at_nodes(
                self._form.variogram[None], self._form.factor[None], queries, z, product
            )

        spread = np.full(own.shape, self.noise**2) if self.noise > 0.0 else None
        return moments(
            scores,
            self.features.probs[:, None],
            own,
            [TokenCount(self.N)],
            form,
            spread=spread,
        )
