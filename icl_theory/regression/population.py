"""The population risk over class scores, exactly: Lemma 1 and Lemma 2 for N = ∞ and for finite prompts.

For N = ∞ the attention is a softmax. For finite N the expectation over the counts of the features is a
one-dimensional integral per query, computed to rounding error by the trapezoid rule.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import LARGEST, Array, number, prompt_length, refuse, store
from icl_theory.regression.features import Features
from icl_theory.regression.tasks import Task
from icl_theory.risk import Risk

# Trapezoid rule in x with N s = exp(x - exp(-x)); see docs/theory.md, "Finite prompts".
NODE_STEP = 0.125
NODE_FIRST = -4.0
NODE_LAST = 4.25
GAP_CAP = 350.0  # a score gap beyond which the lower attention's square is below the range of float64
CHUNK = 2**21  # numbers in one temporary of the quadrature
FLOOR_WORK = 3e7  # numbers in all evaluations of a minimisation
FEW = 3
CACHED = 2**15  # numbers in a block of rows


class _ErrorForm:
    """The quadratic forms C^(k), k = 1..K, applied without forming them.

    ``C^(k)_mj = Γ_mk + Γ_kj - Γ_mj = (φ_m - φ_k)·(φ_j - φ_k)``. The variogram Γ costs one (K, K) product; the
    factor Φ, used where the task has a formula for one of rank up to K/2, costs two with a (K, r) matrix. Up to
    rank FEW the differences of the factors are formed before their mean, in r passes over z: that keeps the digits
    of a loss to which features equal to the query's, or close to it, contribute little.
    """

    def __init__(self, task: Task, features: Features) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            self.variogram = np.ascontiguousarray(task.variogram(features))
            if not (np.isfinite(self.variogram).all() and self.variogram.max() < 1e250):
                raise refuse("task", task, "finite in its mean squared differences, and below 1e250")
            low_rank = type(task).factor is not Task.factor
            self.factor = np.ascontiguousarray(task.factor(features)) if low_rank else np.zeros((features.K, 0))
        self.use_factor = low_rank and 2 * self.factor.shape[1] <= features.K

    def __call__(
        self, z: Array, query: NDArray[np.intp] | None = None, times: tuple[Array, Array] | None = None
    ) -> tuple[Array, Array]:
        """``(z^T C z, C z)`` for every column of z, (K, Q), whose own row ``z[query]`` must be zero.

        Without ``query``, column k belongs to query k. With ``times = (mass, scale)``, two rows (Q,), the second
        result is ``(C z - z^T C z / mass) z scale`` instead, made in the same pass.
        """
        columns = np.arange(z.shape[1])
        own = columns if query is None else query
        total = z.sum(axis=0)
        if self.use_factor:
            error = self._mean_difference(z, own, total)
            product = self.factor @ error
            squared = np.einsum("rq,rq->q", error, error)
            shift = -product[own, columns]
        else:
            product = self.variogram @ z
            shift = product[own, columns].copy()
            # Σ_m z_m (Γ_mk Σz + (Γz)_k - (Γz)_m); rounding must not make it negative
            squared = np.maximum(2.0 * total * shift - np.einsum("mq,mq->q", z, product), 0.0)
        if times is not None:
            shift = shift - squared / times[0]
        blocks = _blocks(*z.shape)
        buffer = np.empty((0 if self.use_factor else blocks[0].stop, z.shape[1]))
        for rows in blocks:
            part = product[rows]
            if not self.use_factor:
                to_own = self.variogram[rows] if query is None else self.variogram[rows][:, query]
                np.subtract(np.multiply(to_own, total, out=buffer[: len(part)]), part, out=part)
            part += shift
            if times is not None:
                part *= z[rows]
                part *= times[1]
        return squared, product

    def _mean_difference(self, z: Array, own: NDArray[np.intp], total: Array) -> Array:
        """``Σ_m z_m (φ_m - φ_k)``, (r, Q)."""
        if self.factor.shape[1] > FEW:
            error = self.factor.T @ z
            error -= self.factor[own].T * total
            return error
        error = np.zeros((self.factor.shape[1], z.shape[1]))
        for rows in _blocks(*z.shape):
            for axis, column in enumerate(self.factor.T):
                error[axis] += np.einsum("mq,mq->q", z[rows], column[rows, None] - column[own])
        return error


def _blocks(rows: int, columns: int) -> list[slice]:
    """Split a matrix into blocks of rows that stay in the processor's cache through several passes."""
    size = max(1, CACHED // columns)
    return [slice(start, start + size) for start in range(0, rows, size)]


class _Moments(NamedTuple):
    """Of some queries: losses ℓ_k (Q,), gradients p_k ∂ℓ_k/∂S_mk (K, Q), expected attention (K, Q)."""

    loss: Array
    gradient: Array
    attention: Array


@dataclass(frozen=True, eq=False)
class PopulationRisk(Risk):
    r"""The exact population risk over class scores S, (K, K), column k for query k.

    With counts n, attention :math:`a_m = n_m e^{S_{mk}}/\sum_j n_j e^{S_{jk}}` and
    :math:`C^{(k)}_{mj} = E[(f_m - f_k)(f_j - f_k)]`,

    .. math:: \mathcal L = \sum_k p_k \ell_k, \qquad
        \ell_k = \tfrac12 E_n\Big[a^\top C^{(k)} a + \sigma^2 \sum_m a_m^2/n_m\Big].

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
        An N or noise out of range, or a task of another size than the features.

    References
    ----------
    docs/theory.md, "Lemma 1, exactly", "Lemma 2, exactly", "Finite prompts".

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

    def __post_init__(self) -> None:
        if not isinstance(self.features, Features):
            raise refuse("features", self.features, "a Features object")
        if not isinstance(self.task, Task):
            raise refuse("task", self.task, "a Task (see icl_theory.tasks)")
        noise = number("noise", self.noise, zero=True, maximum=LARGEST)
        store(self, N=prompt_length(self.N), noise=noise, _form=_ErrorForm(self.task, self.features))
        store(self, _scratch=threading.local())

    def __reduce__(self) -> tuple[object, ...]:
        """Copy and pickle by the arguments: the scratch array belongs to a thread."""
        return type(self), (self.features, self.task, self.N, self.noise)

    @property
    def initial(self) -> Array:
        """Zero scores, (K, K)."""
        return np.zeros((self.features.K, self.features.K))

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient with respect to S, (K, K)."""
        if math.isinf(self.N):
            losses, gradient = self._infinite(params)
        else:
            losses, gradient, _ = self._finite_all(params)
        return float(self.features.probs @ losses), gradient

    def loss_per_query(self, S: Array) -> Array:
        """Losses ℓ_k of the queries, (K,), squared label units."""
        scores = self._checked(S)
        return self._infinite(scores)[0] if math.isinf(self.N) else self._finite_all(scores).loss

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
            return self._finite_all(scores).attention
        weight, total = self._softmax(scores)
        return weight / total

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Expected target attention and loss of every query, (K,) each."""
        if math.isfinite(self.N):
            losses, _, attention = self._finite_all(params)
            return {"attention": np.diagonal(attention).copy(), "loss_per_query": losses}
        weight, total = self._softmax(params)
        return {"attention": np.diagonal(weight) / total, "loss_per_query": self._infinite(params)[0]}

    def floor(self) -> float:
        """Irreducible loss: 0 for N = ∞, else the minimum over the scores, found query by query."""
        if math.isinf(self.N):
            return 0.0
        return float(self.features.probs @ self.floor_per_query())

    def floor_per_query(self) -> Array:
        """Infima of the ℓ_k, (K,), found from above: to 1e-6, or to 1 % where further scores go to infinity.

        The work is bounded, so that for K >= 60 or so the minimisation ends before it has converged.

        Without noise ℓ_k approaches its infimum as S_kk grows without bound and prompts with the query's feature
        cost nothing; what is left, the loss of those without it, has an infimum over the other scores.
        """
        from scipy.optimize import minimize

        K = self.features.K
        if math.isinf(self.N):
            return np.zeros(K)
        present = np.ones((K, K), dtype=bool) if self.noise > 0.0 else ~np.eye(K, dtype=bool)
        start = math.log(K) * np.eye(K) if self.noise > 0.0 else np.zeros((K, K))
        scale = self._finite_all(start, present).loss
        weight = self.features.probs * np.where(scale > 1e-200, scale, 1.0)
        best = scale.copy()

        def objective(flat: Array) -> tuple[float, Array]:
            losses, gradient, _ = self._finite_all(flat.reshape(K, K), present)
            np.minimum(best, losses, out=best)
            return float(np.sum(self.features.probs / weight * losses)), (gradient / weight).ravel()

        nodes = len(_nodes(_capped(start), self.N)[0])
        rounds = int(np.clip(FLOOR_WORK / (K * K * nodes), 2, 200))
        options = {"ftol": 1e-15, "gtol": 1e-8, "maxiter": rounds, "maxfun": 2 * rounds, "maxcor": 20}
        minimize(objective, start.ravel(), jac=True, method="L-BFGS-B", options=options)
        return best

    def _softmax(self, scores: Array) -> tuple[Array, Array]:
        """Attention for N = ∞, a_mk ∝ p_m e^S_mk, as unnormalised weights (K, K) and their column sums (K,).

        The weights are this thread's scratch array, overwritten by the next call.
        """
        # the largest weight of a column is 1, so that no probability, however small, makes the sum vanish
        tilted = scores if self.features.uniform else scores + np.log(self.features.probs)[:, None]
        top = tilted.max(axis=0)
        scratch: threading.local = self._scratch  # type: ignore[attr-defined]
        if not hasattr(scratch, "weight"):
            scratch.weight = np.empty_like(scores)
        weight, total = scratch.weight, np.zeros(len(scores))
        for rows in _blocks(*scores.shape):
            part = weight[rows]
            np.subtract(tilted[rows], top, out=part)
            np.exp(part, out=part)
            total += part.sum(axis=0)
        return weight, total

    def _infinite(self, scores: Array) -> tuple[Array, Array]:
        """N = ∞: losses R_k/2, (K,), and the gradient p_k a_m (r_m - R_k), (K, K), with R and r of Lemma 2."""
        form: _ErrorForm = self._form  # type: ignore[attr-defined]
        weight, total = self._softmax(scores)
        target = np.diagonal(weight).copy()
        np.fill_diagonal(weight, 0.0)
        scale = self.features.probs / total**2
        squared, gradient = form(weight, times=(total, scale))
        np.fill_diagonal(gradient, -squared / total * target * scale)  # r_k = 0
        return 0.5 * squared / total**2, gradient

    def _finite_all(self, scores: Array, present: NDArray[np.bool_] | None = None) -> _Moments:
        """All queries, in blocks that bound the memory of the quadrature."""
        K = self.features.K
        query = np.arange(K)
        log_w = _capped(scores if present is None else np.where(present, scores, -np.inf))
        block = max(1, CHUNK // (K * len(_nodes(log_w, self.N)[0])))
        parts = [self._finite(log_w[:, i : i + block], query[i : i + block]) for i in range(0, K, block)]
        return _Moments(
            np.concatenate([part.loss for part in parts]),
            np.concatenate([part.gradient for part in parts], axis=1),
            np.concatenate([part.attention for part in parts], axis=1),
        )

    def _finite(self, log_w: Array, query: NDArray[np.intp]) -> _Moments:
        r"""Finite N, by the integral over s of the counts' generating function.

        With y_m = s w_m, w_m = e^{S_mk}, and φ = Σ p_m e^{-y_m}, b_m = p_m y_m e^{-y_m}, the expectation of
        Σ a_m a_j C_mj over multinomial counts is ∫ [N(N-1) φ^{N-2} b·Cb + N φ^{N-1} Σ p_m y_m² e^{-y_m} C_mm] ds/s.
        A weight of zero stands for a feature that never occurs in the prompt.
        """
        form: _ErrorForm = self._form  # type: ignore[attr-defined]
        N, K, Q = self.N, len(log_w), len(query)
        there = np.isfinite(log_w)
        probs = np.where(there, self.features.probs[:, None], 0.0)[:, None, :]
        x, jacobian = _nodes(log_w, N)
        # (K, J, Q), s in units of 1/N; e^-y is zero long before y = e^300
        log_y = (x - np.exp(-x) - math.log(N))[None, :, None] + np.where(there, log_w, -1e4)[:, None, :]
        y = np.exp(np.minimum(log_y, 300.0))
        mass = probs * np.exp(-y)
        # φ^N needs ln φ to an absolute error far below 1/N, also where φ is nearly 1
        absent = np.where(there, 0.0, self.features.probs[:, None]).sum(axis=0)
        near_one = np.sum(probs * np.expm1(-y), axis=0) - absent
        log_phi = np.where(
            near_one > -0.5,
            np.log1p(np.maximum(near_one, -0.5)),
            np.log(np.maximum(mass.sum(axis=0), 1e-300)),
        )  # (J, Q)
        first = jacobian[:, None] * N * np.exp((N - 1.0) * log_phi)
        second = jacobian[:, None] * (N * (N - 1.0)) * np.exp((N - 2.0) * log_phi)
        third = jacobian[:, None] * (N * (N - 1.0) * (N - 2.0)) * np.exp((N - 3.0) * log_phi) if N > 2 else 0.0

        b = mass * y
        expected = np.einsum("jq,mjq->mq", first, b)
        alone = b * y  # one token counted twice
        own = 2.0 * form.variogram[:, query] + self.noise**2  # C_mm + σ²
        diagonal = np.einsum("mjq,mq->jq", alone, own)
        z = b.copy()
        z[query, :, np.arange(Q)] = 0.0
        pairs, product = form(z.reshape(K, -1), np.tile(query, len(x)))
        pairs, product = pairs.reshape(-1, Q), product.reshape(K, -1, Q)

        loss = 0.5 * np.sum(second * pairs + first * diagonal, axis=0)
        gradient = 2.0 * np.einsum("jq,mjq,mjq->mq", second, (1.0 - y) * b, product)
        gradient -= np.einsum("jq,mjq->mq", third * pairs + second * diagonal, b)
        gradient += own * np.einsum("jq,mjq->mq", first, alone * (2.0 - y))
        return _Moments(loss, 0.5 * self.features.probs[query] * gradient, expected)


def _capped(log_w: Array) -> Array:
    """Scores relative to their largest, with gaps between neighbours cut to GAP_CAP: the same attention."""
    log_w = log_w - log_w.max(axis=0)
    finite = np.isfinite(log_w)
    if np.all(log_w[finite] > -GAP_CAP):
        return log_w
    order = np.argsort(-log_w, axis=0)
    ranked = np.take_along_axis(log_w, order, axis=0)
    there = np.isfinite(ranked[1:])
    gaps = np.full(there.shape, np.inf)
    gaps[there] = np.minimum((ranked[:-1] - np.where(there, ranked[1:], 0.0))[there], GAP_CAP)
    capped = np.zeros_like(log_w)
    np.put_along_axis(capped, order, np.vstack([np.zeros(log_w.shape[1]), -np.cumsum(gaps, axis=0)]), axis=0)
    return capped


def _nodes(log_w: Array, N: float) -> tuple[Array, Array]:
    """Nodes x and weights of the trapezoid rule for ∫ (...) ds/s with N s = exp(x - exp(-x)).

    The last node is where the slowest decay, exp(-s w_min), is complete.
    """
    lowest = -float(np.min(log_w, where=np.isfinite(log_w), initial=0.0))
    last = NODE_LAST + math.log(N) + lowest
    x: Array = NODE_FIRST + NODE_STEP * np.arange(float(int((last - NODE_FIRST) / NODE_STEP) + 1))
    return x, NODE_STEP * (1.0 + np.exp(-x))
