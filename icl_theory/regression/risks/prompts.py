"""Finite prompts: one query with its Hessian, presence of features, infima of losses.

`icl_theory.tokens.square` evaluates the integrals over prompts for many queries at
once. This module has the parts that only in-context regression needs. `one_query` also
computes the Hessian. `presence` is the probability that a prompt contains a feature.
`infima` minimises the losses if there are too many features to search for levels
(`icl_theory.regression.risks.floors`). Features with the same score are one class, with
the sum of their probabilities. See docs/theory.md, "Finite prompts".

In the shapes below, U is the number of classes, Q the number of queries and J the
number of values of s in the integral. A class has the score ln w with the weight w, and
the probability π. G is the mean of e^(-y) over a token, with y = s w, and P = G^N for
prompts of N tokens.
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

# The loss of a query is divided by its first value, unless this value is smaller: the
# quotient might overflow.
SMALLEST_SCALE = 1e-200
# The smallest and the largest number of rounds of the search for infima. Between these
# two the allowed work decides. More rounds find lower losses.
FEWEST_ROUNDS = 2
MOST_ROUNDS = 200
# The tolerances of this search on losses, relative to their initial values, and on
# gradients: the search ends only if a round no longer lowers the loss beyond rounding,
# or if the gradient is negligible. ``maxcor`` is the number of earlier rounds from
# which the curvature is estimated; SciPy's default is 10.
SEARCH_OPTIONS = {"ftol": 1e-15, "gtol": 1e-8, "maxcor": 20}


class QueryMoments(NamedTuple):
    """Loss, gradient and attention, (U,), and Hessian, (U, U), of one query."""

    loss: float
    gradient: Array
    attention: Array
    hessian: Array


class _Tokens(NamedTuple):
    """Factors of the integrand for tokens of the U classes of one query, (U, J) each.

    The operator D stands for y ∂/∂y, the derivative with respect to the score.
    """

    y: Array
    b: Array  # π y e^(-y)
    by: Array  # b y, for one token in both factors of the squared error
    D_b: Array  # b (1 - y)
    D_by: Array  # b y (2 - y)
    # (C b)_u, with the error form C
    field: Array
    # b^T C b and the sum of b y E|e|², (J,): the terms of two different tokens, and of
    # one token in both factors of the squared error
    pairs: Array
    twofold: Array
    # The first to fourth derivatives of P = G^N with respect to G, times the weights of
    # the rule, (J,)
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
        Scores of the classes, -inf for a class that never occurs.
    probs : ndarray, (U,)
        Probabilities of the classes.
    squared_errors : ndarray, (U,)
        Mean squared errors E|e|² of a token of each class, with the label noise.
    N : float
        Prompt length.
    error_form : ndarray, (U, U)
        Mean products of the errors of two tokens.
    curved : bool
        Whether to compute the Hessian, which is zero otherwise.

    Returns
    -------
    QueryMoments
        The loss and its derivatives with respect to the scores.
    """
    occurs = np.isfinite(log_w)
    absent = float(probs[~occurs].sum())
    probs = np.where(occurs, probs, 0.0)
    # (U, 1), with the largest score at 0
    log_w = capped(log_w[:, None])
    # The J nodes of the rule; their weights contain the factor 1/s of the integral.
    log_s, jacobian, _needed = trapezoid(log_w, [TokenCount(N)])
    # Larger y are cut, so that nothing overflows. `is_kept` makes their e^(-y) zero.
    y = np.exp(np.minimum(log_w + log_s, LOG_LARGEST_Y))
    # If G is nearly 1, ln G is computed from G - 1. The absolute error of ln G must be
    # far below 1/N, because G is raised to powers near N. In G - 1 = Σ π (e^(-y) - 1)
    # each class that never occurs has the term -π.
    G_minus_one = probs @ np.expm1(-y) - absent
    decay = np.exp(-y) * is_kept(y)
    G = probs @ decay
    log_G = log_mean(G, G_minus_one)
    # G^N itself is not needed.
    _power, *derivatives = TokenCount(N).derivatives(G, log_G, order=4)
    first, second, third, fourth = (jacobian * derivative for derivative in derivatives)
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
    # both terms of the integrand through b and through P.
    through_power = tokens.third * tokens.pairs + tokens.second * tokens.twofold
    terms = (
        2.0 * ((tokens.D_b * tokens.field) @ tokens.second),
        -(tokens.b @ through_power),
        squared_errors * (tokens.D_by @ tokens.first),
    )
    # `balanced` adds the terms. A shift of all scores does not change the loss, so the
    # entries of the gradient should sum to zero, and `balanced` subtracts what rounding
    # leaves of their sum. It takes a row for each query, and here there is one query.
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
    # or both through P = G^N, or one through b and the other through P.
    through_b = error_form * ((D_b * tokens.second) @ D_b.T)
    twice_through_power = tokens.fourth * tokens.pairs + tokens.third * tokens.twofold
    through_power = (b * twice_through_power) @ b.T
    once_through_b = 2.0 * (D_b * tokens.field) * tokens.third
    once_through_b += squared_errors[:, None] * D_by * tokens.second
    through_each = once_through_b @ b.T
    hessian = through_b
    hessian += 0.5 * through_power - 0.5 * (through_each + through_each.T)
    # If both scores are the same, the second derivatives of three factors are added: of
    # b, D²b = D b - D(b y); of P, D²P = -D b P' + b² P'', whose second term is part of
    # ``through_power``; and of b y, D²(b y) = (2 - y) D(b y) - y b y.
    once_through_power = tokens.third * tokens.pairs + tokens.second * tokens.twofold
    diagonal = 2.0 * ((D_b - D_by) * tokens.field) @ tokens.second
    diagonal -= D_b @ once_through_power
    diagonal += squared_errors * (((2.0 - y) * D_by - y * by) @ tokens.first)
    hessian += np.diag(0.5 * diagonal)
    return np.asarray(hessian)


def presence(probs: Array, N: float) -> Array:
    """Probability ``1 - (1 - p)^N`` that a prompt has a feature; 1 for N = ∞."""
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

    The results are not below the infima, and usually agree with them to 1e-6. Without
    noise, a loss approaches its infimum as the score of the target grows without bound.
    Prompts with the query's feature then have no loss, and the loss of all other
    prompts is minimised over the other scores. With noise the loss may have valleys at
    infinity slightly above its minimum, in which the search may end.

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
        Limit on the work of all evaluations, as a number of values of the integrand. A
        larger limit allows more rounds, which find lower losses and take longer.

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
    # has as much weight as U other classes together.
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
        # Return the sum of the relative losses and its gradient, and keep the lowest
        # loss of each query in `lowest`.
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
    target_ahead = np.where(is_free, start, 0.0)
    equal_scores = np.zeros_like(start)
    starts = [target_ahead]
    if target_ahead.any():
        # With noise there are local minima. So the search also starts from equal
        # scores.
        starts.append(equal_scores)
    with Progress(words="", unit="evaluations for the floor") as progress:
        progress.update(done=0, total=2 * rounds * len(starts))
        for scores in starts:
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

    ``start`` has the first scores, (U, Q).
    """
    # An evaluation computes the integrand for each class and each node of each query.
    # ``needed`` is the number of nodes of each query.
    nodes = trapezoid(capped(start), [TokenCount(N)]).needed.sum()
    affordable = work / (len(start) * nodes)
    return int(np.clip(affordable, FEWEST_ROUNDS, MOST_ROUNDS))
