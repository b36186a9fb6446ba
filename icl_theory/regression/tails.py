r"""The tail of a run: η t (L - L_∞) tends to the squared norm of the smallest scores with certain margins.

See docs/tail-laws.md for the theorems and their proofs.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from icl_theory._validate import Array, flag
from icl_theory.engine.pullback import Embedding, Pullback
from icl_theory.engine.risk import Risk
from icl_theory.regression.risks.exchangeable import ExchangeableRisk
from icl_theory.regression.risks.floors import smallest_squared_norm
from icl_theory.regression.risks.population import PopulationRisk
from icl_theory.regression.risks.symmetric import SymmetricRisk


def tail_constant(risk: Risk, *, proved: bool = True) -> float | None:
    r"""Limit of :math:`\eta\,t\,(\mathcal L - \mathcal L_\infty)`, the constant of the tail law.

    Near its infimum the loss exceeds it by a sum of exponentials of differences of
    scores. Descent drifts in the direction in which all of them fall fastest,

    .. math:: \eta\,t\,(\mathcal L(t) - \mathcal L_\infty) \to \lVert\hat s\rVert^2, \qquad
        \hat s = \arg\min \lVert s\rVert^2 \text{ subject to the margins of the
        problem.}

    For N = ∞ these are :math:`s_{kk} - s_{mk} \ge \tfrac12` for every query k and every
    other feature m, and over class scores the constant is (K-1)/4. For the matrix Q of
    embedding coordinates they are :math:`(x_k - x_m)^\top Q x_k \ge \tfrac12`. For
    finite prompts the features of each query form levels.

    See docs/tail-laws.md, Theorems 1 to 3.

    Parameters
    ----------
    risk : Risk
        A population risk of in-context regression, over class scores or in embedding
        coordinates.
    proved : bool
        In embedding coordinates with N = ∞ the limit is proved if the error of a wrong
        feature whose margin exceeds ½ is not negatively correlated with that of
        another. With False the constant of the margins is returned in other cases too:
        most runs tend to it, but not all.

    Returns
    -------
    float or None
        In squared units of the scores. 0 if the excess falls faster than 1/t, because
        all scores stay finite, as with label noise and exchangeable tasks. None if no
        law is known: for degenerate tasks with N = ∞, factored coordinates, embeddings
        with contradictory margins, embeddings of dependent features with finite
        prompts, and more than 12 features with finite prompts.

    Examples
    --------
    >>> import icl_theory as icl
    >>> line = icl.Features([[0.0], [1.0], [2.2], [3.5]])
    >>> risk = icl.PopulationRisk(line, icl.tasks.Linear(1.0), N=3)
    >>> round(icl.regression.tail_constant(risk), 6)
    7.75
    """
    flag("proved", proved)
    if isinstance(risk, ExchangeableRisk):
        finite = math.isfinite(risk.N) and (risk.noise > 0.0 or risk.N == 1)
        return 0.0 if finite else (risk.K - 1.0) / (4.0 * risk.speed)
    if (
        isinstance(risk, Pullback)
        and isinstance(risk.risk, PopulationRisk)
        and isinstance(risk.map, Embedding)
    ):
        return _embedded(risk.risk, risk.map.vectors, proved)
    each = query_constants(risk)
    if each is None or not isinstance(risk, SymmetricRisk):
        return None if each is None else float(each.sum())
    return float(risk.sizes @ each)


def query_constants(risk: Risk) -> Array | None:
    """Limits of η t p_k (ℓ_k - inf ℓ_k) over class scores for each query or group; None if unknown."""
    if not isinstance(risk, PopulationRisk | SymmetricRisk):
        return None
    members = (
        risk.members
        if isinstance(risk, SymmetricRisk)
        else np.ones((risk.features.K, risk.features.K))
    )
    if math.isinf(risk.N):
        K = float(members[:, 0].sum())
        return (
            np.full(members.shape[1], (K - 1.0) / (4.0 * K))
            if risk.nondegenerate
            else None
        )
    if risk.levels is None:
        return None
    return np.array(
        [
            smallest_squared_norm(levels, column[column > 0])
            for levels, column in zip(risk.levels, members.T, strict=True)
        ]
    )


def tail_limits(risk: Risk, eta: float) -> Array | None:
    """Limits of t (ℓ_k - inf ℓ_k) over class scores for each query or group; None if unknown."""
    each = query_constants(risk)
    return None if each is None else np.asarray(each / (eta * risk.probs))  # type: ignore[attr-defined]


def infima_of(risk: Risk) -> Array:
    """Infima of the ℓ_k that descent from zero scores approaches, for risks with `tail_limits`."""
    assert isinstance(risk, PopulationRisk | SymmetricRisk)
    return (
        np.array([levels.loss for levels in risk.levels])
        if risk.levels
        else np.zeros(len(risk.initial))
    )


def resting_loss(risk: Risk | None, floor: float) -> float:
    """Loss that descent from zero scores approaches: the floor, or more if that is an infimum elsewhere."""
    whole = risk.risk if isinstance(risk, Pullback) else risk
    if not isinstance(whole, PopulationRisk | SymmetricRisk) or not whole.levels:
        return floor
    sizes = (
        whole.sizes * whole.probs
        if isinstance(whole, SymmetricRisk)
        else whole.features.probs
    )
    return floor + float(
        sizes @ np.array([levels.loss - levels.lowest for levels in whole.levels])
    )


def tail_limit(risk: Risk, eta: float) -> float | None:
    """Limit of t (loss - `resting_loss`), None if no law is known or the excess falls faster."""
    constant = tail_constant(risk, proved=False)
    return constant / eta if constant else None


def _embedded(
    risk: PopulationRisk, vectors: Array, proved: bool, most: int = 1000
) -> float | None:
    """Constant over the matrix Q of the scores ``X Q X^T``; more than ``most`` margins take too long (None)."""
    K = len(vectors)
    scale = float(np.abs(vectors).max())
    if most < K * (K - 1):
        return None
    x = vectors / scale

    def between(k: int, first: int, second: int) -> Array:
        return np.outer(x[first] - x[second], x[k]).ravel()

    others = [(k, m) for k in range(K) for m in range(K) if m != k]
    every = np.array([between(k, k, m) for k, m in others])
    if math.isinf(risk.N):
        smallest = (
            smallest_above(every, np.full(len(every), 0.5))
            if risk.nondegenerate
            else None
        )
        if smallest is None or (
            proved and not _monotone(risk, others, every @ smallest)
        ):
            return None
    else:
        if risk.levels is None or np.linalg.matrix_rank(every) < len(every):
            return None
        gaps: list[Array] = []
        least: list[float] = []
        level: list[Array] = []
        for k, levels in enumerate(risk.levels):
            gaps += [
                between(k, upper[0], lower[0])
                for upper, lower in itertools.pairwise(levels.classes)
            ]
            least += levels.gaps
            level += [
                between(k, first, m)
                for first, *others in levels.classes
                for m in others
            ]
        smallest = smallest_above(np.array(gaps), np.array(least), np.array(level))
        if smallest is None:
            return None
    return float(smallest @ smallest) / scale**4


def _monotone(
    risk: PopulationRisk,
    others: list[tuple[int, int]],
    margins: Array,
    tight: float = 1e-6,
) -> bool:
    """Whether no wrong feature above its least margin (to ``tight``) has a negative entry in its error form."""
    form = risk.task.variogram(risk.features)
    rows = (np.delete(form[m, k] + form[k] - form[m], k) for k, m in others)
    return all(
        margin <= 0.5 + tight or row.min() >= -tight * form.max()
        for margin, row in zip(margins, rows, strict=True)
    )


def smallest_above(
    rows: Array, least: Array, zero: Array | None = None
) -> Array | None:
    r"""Return the smallest s with ``rows @ s >= least`` and ``zero @ s = 0``, or None.

    Lawson and Hanson's least distance programme: with :math:`E = (\text{rows},
    \text{least})^\top` and the residual r of :math:`\min_{u \ge 0} \lVert Eu -
    e_{d+1}\rVert`, the solution is :math:`-r_{1..d}/r_{d+1}`.
    """
    from scipy.linalg import null_space
    from scipy.optimize import nnls

    if not len(rows):
        return np.zeros(1)
    basis = np.eye(rows.shape[1]) if zero is None or not len(zero) else null_space(zero)
    inside = rows @ basis
    matrix = np.vstack([inside.T, least])
    target = np.append(np.zeros(len(matrix) - 1), 1.0)
    weights, _ = nnls(matrix, target, maxiter=30 * len(rows))
    if 1.0 - float(least @ weights) < 1e-10:
        return None
    active = weights > 0
    return np.asarray(basis @ np.linalg.lstsq(inside[active], least[active])[0])
