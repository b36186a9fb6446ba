"""Finite prompts: one query with its Hessian, presence of features, infima of losses.

`icl_theory.tokens.square` evaluates the integrals over prompts for many queries at
once. This module has the parts that only in-context regression needs. `one_query` also
computes the Hessian. `presence` is the probability that a prompt contains a feature.
`infima` minimises the losses of queries whose levels are unknown: a *level* is a set of
features whose scores stay at finite distances as the loss approaches its infimum, and
`icl_theory.regression.risks.floors` searches for levels if there are at most 12
features, or 12 groups of exchangeable features. Features with the same score are one
class, with the sum of their probabilities. See docs/theory.md, "Finite prompts".

In the shapes below, U is the number of classes, Q the number of queries and J the
number of values of s in the integral. A class has the score ln w with the weight w, and
the probability π. G is the mean of e^(-y) over the classes of a token, with y = s w,
and P = G^N for prompts of N tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.engine.progress import Progress
from icl_theory.tokens.generating import TokenCount, log_mean
from icl_theory.tokens.quadrature import LOG_LARGEST_Y, capped, is_kept, trapezoid
from icl_theory.tokens.square import Moments
from icl_theory.tokens.tilted import balanced

# The search for infima divides the loss of a query by its initial value, unless the
# initial value is below this number: the quotient might overflow.
SMALLEST_SCALE = 1e-200
# The smallest and the largest number of rounds of this search. Between these two the
# allowed work decides. More rounds find lower losses.
FEWEST_ROUNDS = 2
MOST_ROUNDS = 200
# The tolerances of this search on losses, relative to their initial values, and on
# gradients: the search ends before its last round only if a round no longer lowers the
# loss beyond rounding, or if the gradient is negligible. ``maxcor`` is the number of
# earlier rounds from which the curvature is estimated; SciPy's default is 10.
SEARCH_OPTIONS = {"ftol": 1e-15, "gtol": 1e-8, "maxcor": 20}


class QueryMoments(NamedTuple):
    """The loss of one query, and its derivatives with respect to the scores."""

    loss: float
    gradient: Array  # (U,)
    attention: Array  # expected attention on each class, (U,)
    hessian: Array  # (U, U)


class _Tokens(NamedTuple):
    """Factors of the integrand for tokens of the U classes of one query.

    Arrays without another shape are (U, J). The operator D stands for y ∂/∂y, the
    derivative with respect to the score.
    """

    y: Array
    b: Array  # π y e^(-y)
    by: Array  # b y, for one token in both factors of the squared error
    D_b: Array  # b (1 - y)
    D_by: Array  # b y (2 - y)
    field: Array  # C b, with the error form C
    # b^T C b and the sum of b y E|e|², (J,): the terms of two different tokens, and of
    # one token in both factors of the squared error
    pairs: Array
    twofold: Array
    # The first to fourth derivatives of P = G^N with respect to G, times the weights of
    # the trapezoid rule for the integral, (J,)
    first: Array
    second: Array
    third: Array
    fourth: Array


def one_query(
    log_w: Array,
    probs: Array,
    squared_errors: Array,
    N: float,
    error_form: Array,
    curved: bool = False,
) -> QueryMoments:
    r"""Evaluate the loss of one query, its gradient, its attention and its Hessian.

    With :math:`y = s w`, :math:`b = \pi y e^{-y}`, the error form C, and
    :math:`P = G^N` with primes for its derivatives with respect to G,

    .. math:: \ell = \tfrac12 \int_0^\infty \Bigl[P'' b^\top C b
        + P' \sum_u b_u y_u E|e_u|^2\Bigr] \frac{ds}{s}, \qquad
        G = \sum_u \pi_u e^{-y_u}.

    The search for levels needs Hessians by the thousand. This function takes a third of
    the time that derivatives of `icl_theory.tokens.square.moments` along each of the
    scores would take.

    Parameters
    ----------
    log_w : ndarray, (U,)
        Scores of the classes. A score of -inf says that prompts with a token of this
        class do not count: they have no share in the loss.
    probs : ndarray, (U,)
        Probabilities of all classes, which sum to one.
    squared_errors : ndarray, (U,)
        Mean squared errors E|e|² of a token of each class, with the label noise.
    N : float
        Prompt length.
    error_form : ndarray, (U, U)
        Mean products of the errors of two tokens, C in the formula.
    curved : bool
        Whether to compute the Hessian, which is zero otherwise.

    Returns
    -------
    QueryMoments
        The loss, its derivatives with respect to the scores, and the attention.
    """
    # Only prompts without the classes of score -inf count. So these classes have no
    # term in G, and G^N contains the probability of such prompts.
    occurs = np.isfinite(log_w)
    absent = float(probs[~occurs].sum())
    probs = np.where(occurs, probs, 0.0)
    # One column, (U, 1), shifted so that the largest score is 0
    log_w = capped(log_w[:, None])
    # The J nodes of the trapezoid rule. The weights contain the factor 1/s of the
    # integral.
    log_s, weights, _needed = trapezoid(log_w, [TokenCount(N)])
    # Large y are cut, so that nothing overflows. `is_kept` makes their e^(-y) zero.
    y = np.exp(np.minimum(log_w + log_s, LOG_LARGEST_Y))
    # If G is nearly 1, ln G is computed from G - 1. The absolute error of ln G must be
    # far below 1/N, because G is raised to powers near N. In G - 1 = Σ π (e^(-y) - 1)
    # each class with the score -inf has the term -π.
    G_minus_one = probs @ np.expm1(-y) - absent
    decay = np.exp(-y) * is_kept(y)
    G = probs @ decay
    log_G = log_mean(G, G_minus_one)
    # G^N itself is not needed.
    _power, *derivatives = TokenCount(N).derivatives(G, log_G, order=4)
    first, second, third, fourth = (weights * derivative for derivative in derivatives)
    b = decay * y * probs[:, None]
    by = b * y
    field = error_form @ b
    tokens = _Tokens(
        y=y,
        b=b,
        by=by,
        D_b=b - by,
        D_by=2.0 * by - by * y,
        field=field,
        pairs=(b * field).sum(axis=0),
        twofold=squared_errors @ by,
        first=first,
        second=second,
        third=third,
        fourth=fourth,
    )
    if curved:
        hessian = _hessian(tokens, squared_errors, error_form)
    else:
        hessian = np.zeros_like(error_form)
    return QueryMoments(
        loss=0.5 * float(second @ tokens.pairs + first @ tokens.twofold),
        gradient=_gradient(tokens, squared_errors),
        attention=b @ first,
        hessian=hessian,
    )


def _gradient(tokens: _Tokens, squared_errors: Array) -> Array:
    """Return the gradient with respect to the scores, (U,)."""
    # The derivative of P with respect to a score is D P = -b P'. So a score changes
    # both terms of the integrand through b and through P. ``slope_in_G`` is the
    # derivative of the integrand with respect to G at constant b.
    slope_in_G = tokens.third * tokens.pairs + tokens.second * tokens.twofold
    terms = (
        2.0 * ((tokens.D_b * tokens.field) @ tokens.second),
        -(tokens.b @ slope_in_G),
        squared_errors * (tokens.D_by @ tokens.first),
    )
    # `balanced` adds the terms. A shift of all scores does not change the loss, so the
    # entries of the gradient should sum to zero. Rounding leaves a small sum, which
    # `balanced` subtracts. It takes a row for each query, and here there is one query.
    (twice_gradient,) = balanced(*(term[None] for term in terms))
    return np.asarray(0.5 * twice_gradient)


def _hessian(tokens: _Tokens, squared_errors: Array, error_form: Array) -> Array:
    """Return the second derivatives with respect to the scores, (U, U)."""
    y = tokens.y
    b = tokens.b
    by = tokens.by
    D_b = tokens.D_b
    D_by = tokens.D_by
    # Derivatives with respect to the scores of two classes: both scores act through b,
    # or both through P = G^N, or one through b and the other through P. Each score that
    # acts through P has the factor -b. ``slope_in_G`` and ``curvature_in_G`` are the
    # derivatives of the integrand with respect to G at constant b.
    both_through_b = error_form * ((D_b * tokens.second) @ D_b.T)
    curvature_in_G = tokens.fourth * tokens.pairs + tokens.third * tokens.twofold
    both_through_P = (b * curvature_in_G) @ b.T
    first_through_b = 2.0 * (D_b * tokens.field) * tokens.third
    first_through_b += squared_errors[:, None] * D_by * tokens.second
    minus_mixed = first_through_b @ b.T
    hessian = both_through_b
    hessian += 0.5 * both_through_P - 0.5 * (minus_mixed + minus_mixed.T)
    # If both scores are the same, the second derivatives of three factors are added: of
    # b, D²b = D b - D(b y); of P, D²P = -D b P' + b² P'', whose second term is part of
    # ``both_through_P``; and of b y, D²(b y) = (2 - y) D(b y) - y b y.
    slope_in_G = tokens.third * tokens.pairs + tokens.second * tokens.twofold
    diagonal = 2.0 * ((D_b - D_by) * tokens.field) @ tokens.second
    diagonal -= D_b @ slope_in_G
    diagonal += squared_errors * (((2.0 - y) * D_by - y * by) @ tokens.first)
    hessian += np.diag(0.5 * diagonal)
    return np.asarray(hessian)


def presence(probs: Array, N: float) -> Array:
    """Probability that a prompt of N tokens has a given feature; 1 for N = ∞.

    It is ``1 - (1 - p)^N`` for each probability p in ``probs``.
    """
    if math.isinf(N):
        return np.ones_like(probs)
    # For p = 1 the logarithm is -∞, and the result is 1.
    with np.errstate(divide="ignore"):
        return np.asarray(-np.expm1(N * np.log1p(-probs)))


def infima(
    evaluate: Callable[[Array], Moments],
    target: NDArray[np.bool_],
    N: float,
    noise: float,
    work: float = 3e7,
) -> Array:
    """Search for the infima of losses over the scores.

    The results are not below the infima. For up to 6 features and 20 tokens, they
    exceeded the infima by at most 5e-5, relatively, in comparisons with the search for
    levels. With more features and longer prompts, the search may end far above an
    infimum that is very small: 86 % above it for one query of 12 features of unequal
    probability, with N = 100 and without noise.

    Without noise, a loss approaches its infimum as the score of the target grows
    without bound. Prompts with the query's feature then have no loss, and the loss of
    all other prompts is minimised over the other scores. With noise, the loss may also
    fall towards a limit as scores diverge. The search may end near such a limit, which
    is slightly above the minimum.

    Parameters
    ----------
    evaluate : callable
        Takes scores, (U, Q), and returns their `Moments`.
    target : ndarray of bool, (U, Q)
        Marks the class of each query's own feature.
    N : float
        Prompt length.
    noise : float
        Standard deviation of the label noise.
    work : float
        How many values of the integrand the rounds from one start may compute, if each
        round takes one evaluation. A larger number allows more rounds, up to
        MOST_ROUNDS, which find lower losses and take longer.

    Returns
    -------
    ndarray, (Q,)
        The lowest loss of each query that the search has found.
    """
    # SciPy's optimisers are loaded here, because most runs do not need them.
    from scipy.optimize import minimize

    # Without noise the target's score should be +∞. Prompts with the target then have
    # no loss, and only the loss of all other prompts remains. The same loss remains if
    # the target never occurs, which is what a score of -∞ says to ``evaluate``. So the
    # search sets this score to -∞, and keeps it. With noise the target starts ahead: it
    # has as much weight as U other classes together, whose scores are 0.
    target_score = -np.inf
    if noise > 0.0:
        target_score = math.log(len(target))
    start: Array = np.where(target, target_score, 0.0)
    is_free = np.isfinite(start)
    initial_loss = evaluate(start).loss
    # All queries are minimised together, as the sum of their losses. Each loss is
    # divided by its initial value, so that all queries have the same weight.
    scale = np.where(initial_loss > SMALLEST_SCALE, initial_loss, 1.0)
    lowest = initial_loss.copy()

    def relative_loss(flat: Array) -> tuple[float, Array]:
        # Return the sum of the relative losses and its gradient. Keep the lowest loss
        # of each query in ``lowest``, and count the evaluation in ``progress``.
        scores = np.where(is_free, flat.reshape(target.shape), -np.inf)
        moments = evaluate(scores)
        progress.add()
        # A query may have its lowest loss at scores at which the sum is not the lowest.
        np.minimum(lowest, moments.loss, out=lowest)
        gradient = moments.gradient / scale
        return float(np.sum(moments.loss / scale)), gradient.ravel()

    rounds = _affordable_rounds(start, N, work)
    # A round takes one evaluation, or a few if its first step was too long.
    options = {**SEARCH_OPTIONS, "maxiter": rounds, "maxfun": 2 * rounds}
    # `minimize` takes finite numbers only. The zeros at scores that are not free are
    # never used: ``relative_loss`` puts -inf in their place.
    target_ahead = np.where(is_free, start, 0.0)
    starts = [target_ahead]
    # Without noise, all free scores start at 0, and this is the only start. With noise
    # there are local minima, so the search also starts from equal scores.
    if target_ahead.any():
        equal_scores = np.zeros_like(start)
        starts.append(equal_scores)
    with Progress(words="", unit="evaluations for the floor") as progress:
        progress.update(done=0, total=2 * rounds * len(starts))
        for scores in starts:
            # The result is in ``lowest``, so the returned scores are not needed.
            minimize(
                relative_loss,
                scores.ravel(),
                jac=True,
                method="L-BFGS-B",
                options=options,
            )
    return np.asarray(lowest)


def _affordable_rounds(start: Array, N: float, work: float) -> int:
    """Return how many rounds of the search for infima the ``work`` allows.

    ``start`` has the scores at which the search starts, (U, Q).
    """
    # An evaluation computes the integrand for each class at each node (value of s) of
    # each query. ``needed`` has the number of nodes of each query.
    nodes = trapezoid(capped(start), [TokenCount(N)]).needed.sum()
    affordable = work / (len(start) * nodes)
    return int(np.clip(affordable, FEWEST_ROUNDS, MOST_ROUNDS))
