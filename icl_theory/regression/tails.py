r"""The tail of a run: the limit of η t (L - L_∞), with the loss L at step t.

Here η is the learning rate and L_∞ the loss that the run approaches. A *margin* is a
lower bound on the difference of two scores. The limit is the squared norm of the
smallest scores that respect all margins of the problem. `tail_constant` returns this
limit for a whole risk, and `query_constants` returns it for each query over class
scores. Runs are compared with the limits of t times the excess of the loss:
`tail_limit` is the limit for a whole risk, and `tail_limits` are the limits for its
queries. `resting_loss` and `infima_of` return the losses that a run and its queries
approach. See docs/tail-laws.md for the theorems and their proofs.

K is the number of features, ℓ_k the loss of query k and p_k the probability of feature
k. The *class scores* are one score for each feature and query, (K, K). With finite
prompts the features of a query may form *levels*: the scores of a level are infinitely
far above the scores of the next one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from icl_theory._validate import Array, flag
from icl_theory.engine.pullback import Embedding, Pullback
from icl_theory.engine.risk import Risk
from icl_theory.regression.risks.exchangeable import ExchangeableRisk
from icl_theory.regression.risks.floors import Levels, smallest_squared_norm
from icl_theory.regression.risks.population import PopulationRisk
from icl_theory.regression.risks.symmetric import SymmetricRisk

# If there are more margins than this, the constant is not computed: the search for the
# smallest matrix would take too long. The limit is exceeded from K = 33 features on.
MOST_MARGINS = 1000
# The margin for N = ∞, the same for every pair of features. It is ½ because the loss
# falls like e^(-2d) with the difference d of the scores, and like 1/t with the step t.
# So d grows like ½ ln t.
MARGIN = 0.5
# A difference of scores counts as equal to its margin if it exceeds the margin by at
# most TIGHT. This number is far above the rounding errors of the scores, and far below
# the margins. It is also the relative tolerance on the signs of the error form.
TIGHT = 1e-6
# Inequalities count as contradictory if the last entry of the residual in
# `smallest_above` is below this. Without rounding, this entry is zero for contradictory
# inequalities, and positive for all others.
ZERO_RESIDUAL = 1e-10
# The largest number of iterations of the non-negative least squares for each
# inequality: ten times SciPy's default. It is a limit only, and costs nothing if fewer
# are needed.
MOST_ITERATIONS_EACH = 30


def tail_constant(risk: Risk, *, proved: bool = True) -> float | None:
    r"""Constant of the tail law: the limit of η t times the excess of the loss.

    Near its infimum, the loss is the infimum plus a sum of exponentials of differences
    of scores. Descent drifts in the direction in which all exponentials fall fastest,

    .. math:: \eta\,t\,(\mathcal L(t) - \mathcal L_\infty) \to
        \lVert\hat s\rVert^2, \qquad \hat s = \arg\min \lVert s\rVert^2
        \text{ subject to the margins of the problem.}

    For N = ∞ the margins are :math:`s_{kk} - s_{mk} \ge \tfrac12` for every query k and
    every other feature m. Over class scores the constant is then (K-1)/4. For the
    matrix Q of embedding coordinates the margins are :math:`(x_k - x_m)^\top Q x_k \ge
    \tfrac12`. For finite prompts the features of each query form levels, and the
    margins are the gaps between them (see ``icl_theory.regression.risks.floors``).

    See docs/tail-laws.md, Theorems 1 to 3.

    Parameters
    ----------
    risk : Risk
        A population risk of in-context regression, over class scores or in embedding
        coordinates.
    proved : bool
        Whether to return the constant only if the limit is proved. In embedding
        coordinates with N = ∞ the proof needs a condition: if in ŝ the score of a wrong
        feature is below the score of the right one by more than ½, the error of the
        wrong feature must not be negatively correlated with the error of another
        feature. With False this condition is not tested; most runs tend to the
        constant, but not all.

    Returns
    -------
    float or None
        The constant, in squared units of the scores. It is 0 if the excess falls faster
        than 1/t because all scores stay finite, as with label noise and exchangeable
        tasks. It is None if no law is known: for degenerate tasks with N = ∞, factored
        coordinates, embeddings with contradictory margins, embeddings of dependent
        features with finite prompts, embeddings of more than 32 features, and more than
        12 features with finite prompts.

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
        # With noise the loss has its minimum at finite scores. With N = 1 the only
        # token has all attention, so that no score ever changes.
        all_scores_stay_finite = math.isfinite(risk.N) and (
            risk.noise > 0.0 or risk.N == 1
        )
        if all_scores_stay_finite:
            return 0.0
        # (K - 1)/4 for class scores, divided by ``speed``, the factor with which the
        # learning rate acts on the scores
        return (risk.K - 1.0) / (4.0 * risk.speed)
    if (
        isinstance(risk, Pullback)
        and isinstance(risk.risk, PopulationRisk)
        and isinstance(risk.map, Embedding)
    ):
        return _embedded(risk.risk, risk.map.vectors, proved)
    constants = query_constants(risk)
    if constants is None:
        return None
    # The sum over all queries. A group has one query for each of its features.
    if isinstance(risk, SymmetricRisk):
        return float(risk.sizes @ constants)
    return float(constants.sum())


def query_constants(risk: Risk) -> Array | None:
    """Limits of η t p_k (ℓ_k - inf ℓ_k) over class scores, or None if they are unknown.

    Here ℓ_k is the loss of query k and p_k its probability. There is a limit for each
    query of a `PopulationRisk`, or for one query of each group of a `SymmetricRisk`.
    """
    # The number of features in each class, with a column for each query. A class of a
    # `PopulationRisk` is a single feature.
    if isinstance(risk, PopulationRisk):
        members = np.ones((risk.features.K, risk.features.K))
    elif isinstance(risk, SymmetricRisk):
        members = risk.members
    else:
        return None
    if math.isinf(risk.N):
        if not risk.nondegenerate:
            return None
        # In the smallest scores of a query, the score of its own feature is
        # (K - 1)/(2K), and all others are -1/(2K). Their squares sum to (K - 1)/(4K).
        # The classes of a query together have all K features.
        K = float(members[:, 0].sum())
        return np.full(members.shape[1], (K - 1.0) / (4.0 * K))
    if risk.levels is None:
        return None
    constants = []
    for levels, members_of_query in zip(risk.levels, members.T, strict=True):
        # The search for levels leaves out empty classes.
        nonempty = members_of_query[members_of_query > 0]
        constants.append(smallest_squared_norm(levels, nonempty))
    return np.array(constants)


def tail_limits(risk: Risk, eta: float) -> Array | None:
    """Limits of t (ℓ_k - inf ℓ_k) over class scores, or None if they are unknown.

    Here ℓ_k is the loss of query k. There is a limit for each query, or for one query
    of each group of a `SymmetricRisk`.
    """
    constants = query_constants(risk)
    if constants is None:
        return None
    # Risks with constants have ``probs``: the p_k of each query, or of a query of each
    # group.
    return np.asarray(constants / (eta * risk.probs))  # type: ignore[attr-defined]


def infima_of(risk: Risk) -> Array:
    """Infima of the queries' losses ℓ_k that descent from zero scores approaches.

    The risk must be one that has `tail_limits`.
    """
    assert isinstance(risk, PopulationRisk | SymmetricRisk)
    if risk.levels:
        return np.array([levels.loss for levels in risk.levels])
    # With infinite prompts there are no levels, and all infima are 0. The parameters
    # have an axis of K queries, or a row for each group.
    return np.zeros(len(risk.initial))


def resting_loss(risk: Risk | None, floor: float) -> float:
    """Return the loss that descent from zero scores approaches.

    Usually it is the ``floor``, which is the lowest infimum that is known. It is larger
    if descent approaches another infimum.
    """
    # The risk over scores, without a change of coordinates
    score_risk = risk
    if isinstance(risk, Pullback):
        score_risk = risk.risk
    # The probability of each query, or the probability that the query belongs to each
    # group
    if isinstance(score_risk, PopulationRisk):
        query_probs = score_risk.features.probs
    elif isinstance(score_risk, SymmetricRisk):
        query_probs = score_risk.sizes * score_risk.probs
    else:
        return floor
    if not score_risk.levels:
        return floor
    # ``loss`` is the infimum that descent approaches, and ``lowest`` the lowest infimum
    # that is known.
    excess = [levels.loss - levels.lowest for levels in score_risk.levels]
    return floor + float(query_probs @ np.array(excess))


def tail_limit(risk: Risk, eta: float) -> float | None:
    """Limit of t (loss - `resting_loss`), or None.

    It is None if no limit is known, and also if the limit is 0 because the loss falls
    faster than 1/t.
    """
    constant = tail_constant(risk, proved=False)
    if constant is None or constant == 0.0:
        return None
    return constant / eta


class _Pair(NamedTuple):
    """The indices of a query and of a wrong feature, which is not the query's own."""

    query: int
    wrong: int


def _embedded(risk: PopulationRisk, vectors: Array, proved: bool) -> float | None:
    """Constant for descent on the matrix Q of scores ``X Q X^T``, or None if unknown.

    ``vectors``, (K, d), are the rows of X.
    """
    K = len(vectors)
    if K * (K - 1) > MOST_MARGINS:
        return None
    # With the largest entry as unit, squares of the features do not underflow.
    scale = float(np.abs(vectors).max())
    x = vectors / scale
    # All ordered pairs of two different features
    pairs = [_Pair(*pair) for pair in itertools.permutations(range(K), 2)]
    rows = np.array([_margin(x, query=k, first=k, second=m) for k, m in pairs])
    if math.isinf(risk.N):
        smallest = _smallest_for_infinite_prompts(risk, pairs, rows, proved)
    elif risk.levels is None or np.linalg.matrix_rank(rows) < len(rows):
        # The proof needs margins that can be chosen independently.
        smallest = None
    else:
        smallest = _smallest_for_levels(risk.levels, x)
    if smallest is None:
        return None
    # Scores are x^T Q x. Features that are larger by the factor ``scale`` need a Q that
    # is smaller by its square, and the squared norm has the fourth power.
    return float(smallest @ smallest) / scale**4


def _margin(x: Array, query: int, first: int, second: int) -> Array:
    """Return the vector v with ``v · Q = (x_first - x_second)^T Q x_query``, (d²,).

    The scalar product of v with Q, written as a vector, is the difference of the scores
    of two features.
    """
    return np.outer(x[first] - x[second], x[query]).ravel()


def _smallest_for_infinite_prompts(
    risk: PopulationRisk, pairs: Sequence[_Pair], rows: Array, proved: bool
) -> Array | None:
    """Return the smallest matrix Q whose scores respect all margins, (d²,).

    The result is None if there is no such matrix. It is also None if ``proved`` is True
    and the tail law is not proved for the matrix. ``rows`` has the vector of
    ``_margin`` for each pair.
    """
    if not risk.nondegenerate:
        return None
    smallest = smallest_above(rows, np.full(len(rows), MARGIN))
    if smallest is None:
        return None
    if proved and not _is_proved(risk, pairs, rows @ smallest):
        return None
    return smallest


def _smallest_for_levels(levels_of_queries: Sequence[Levels], x: Array) -> Array | None:
    """Return the smallest Q with at least the gaps between all levels, (d²,).

    The scores of a query are equal within each of its levels. The result is None if
    there is no such matrix.
    """
    rows: list[Array] = []
    gaps: list[float] = []
    rows_within_levels: list[Array] = []
    for query, levels in enumerate(levels_of_queries):
        # ``levels.gaps`` has one entry for each two successive levels, and
        # ``levels.classes`` the features of each level, the highest first.
        gaps += levels.gaps
        # Any feature of a level stands for all of them.
        for upper, lower in itertools.pairwise(levels.classes):
            rows.append(_margin(x, query, upper[0], lower[0]))
        for first, *more in levels.classes:
            rows_within_levels += [_margin(x, query, first, other) for other in more]
    return smallest_above(np.array(rows), np.array(gaps), np.array(rows_within_levels))


def _is_proved(
    risk: PopulationRisk, pairs: Sequence[_Pair], margins: Array, tight: float = TIGHT
) -> bool:
    """Whether Theorem 3 of docs/tail-laws.md covers these differences of scores.

    ``margins`` has the difference for each pair. The theorem covers them if no wrong
    feature whose difference exceeds ½ has a negative entry in its row of the error
    form. A negative entry is a negative correlation with the error of another feature.
    """
    variogram = risk.task.variogram(risk.features)
    tolerance = tight * variogram.max()
    for (query, wrong), margin in zip(pairs, margins, strict=True):
        if margin <= MARGIN + tight:
            continue
        # C_mj = Γ_mk + Γ_kj - Γ_mj for the query k, the wrong feature m, and all
        # features j. The entry j = k is 0 and is left out: k has no error.
        error_form_row = variogram[wrong, query] + variogram[query] - variogram[wrong]
        if np.delete(error_form_row, query).min() < -tolerance:
            return False
    return True


def smallest_above(
    rows: Array, least: Array, zero: Array | None = None
) -> Array | None:
    r"""Return the smallest s with ``rows @ s >= least`` and ``zero @ s = 0``, if any.

    The n inequalities are given by ``rows``, (n, d), and ``least``, (n,). The equations
    ``zero`` have a row for each of them, and d columns.

    Without equations this is the least distance programme of Lawson and Hanson. Let
    :math:`E = (\text{rows}, \text{least})^\top`, and let u minimise :math:`\lVert
    e_{d+1} - Eu\rVert` over :math:`u \ge 0`. With the residual :math:`r = e_{d+1} - Eu`
    the solution is :math:`-r_{1..d}/r_{d+1}`.
    """
    # SciPy is slow to load, and few runs need it.
    from scipy.linalg import null_space
    from scipy.optimize import nnls

    # Without inequalities zero is the smallest solution.
    if not len(rows):
        return np.zeros(rows.shape[-1])
    # Solutions of zero @ s = 0 are combinations of the columns of this basis, which are
    # orthonormal. So the smallest s has the smallest coefficients.
    basis = np.eye(rows.shape[1])
    if zero is not None and len(zero):
        basis = null_space(zero)
    rows_in_basis = rows @ basis
    E = np.vstack([rows_in_basis.T, least])
    target = np.append(np.zeros(len(E) - 1), 1.0)
    weights, _residual_norm = nnls(E, target, maxiter=MOST_ITERATIONS_EACH * len(rows))
    # The last entry of the residual is zero if the inequalities contradict each other.
    last_residual = 1.0 - float(least @ weights)
    if last_residual < ZERO_RESIDUAL:
        return None
    # The solution meets the active inequalities with equality. Solving these equations
    # gives more digits than the residual does.
    active = weights > 0
    solution = np.linalg.lstsq(rows_in_basis[active], least[active])[0]
    return np.asarray(basis @ solution)
