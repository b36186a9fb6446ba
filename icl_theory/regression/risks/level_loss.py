"""The loss of one query in the prompts of one level, and its minimum.

The loss of a query may have an infimum that it approaches as scores diverge. The
features then form levels, each infinitely far above the next (see
`icl_theory.regression.risks.floors`). `LevelLoss` is the loss of the prompts that one
level answers: the prompts with a token of this level and without a token of a level
above it.

In the shapes below, C is the number of classes of features. All features of a class
have the same score, and e^score is the weight of each of their tokens.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.regression.risks.prompts import QueryMoments, one_query

Mask = NDArray[np.bool_]

# A gap between scores that counts as infinite. The lower score then has the share e^-40
# of the attention, which is below rounding.
INFINITE_GAP = 40.0
# If Newton's method moves a score by more than this, it has left the minimum near its
# start. A change by 5 multiplies a weight by 150, which is no small correction of a
# search that has ended.
FARTHEST_MINIMUM = 5.0
# Newton's method has converged if no score moves by more than this. It converges
# quadratically, so that the error of the scores is then at the rounding unit.
SMALLEST_MOVE = 1e-9
# A direction is flat if its curvature, relative to the largest one, is not above this:
# such a curvature may be due to rounding.
FLAT = 1e-12
# The largest number of iterations of Newton's method. Near a minimum it takes a
# handful.
MOST_NEWTON_ITERATIONS = 30
# The trust-region descent over a level divides the loss by its first value. It ends if
# the gradient of this quotient is below ``gtol``, or after ``maxiter`` iterations. The
# radii of the region are distances of scores. They affect only the number of
# evaluations, unless the loss has several minima.
TRUST_REGION = {
    "gtol": 1e-9,
    "maxiter": 200,
    "initial_trust_radius": 2.0,
    "max_trust_radius": 50.0,
}
# A first-order change of the loss counts as zero if it is below this share of its
# terms, and a negative curvature if it is below this share of the largest one in size.
ZERO_SHARE = 1e-9
# The logarithm of the smallest weight that a gradient is divided by. The weight is
# 1e-282, so that the quotient stays within float64 for gradients up to 1e25.
LOG_SMALLEST_WEIGHT = -650.0


class Query(NamedTuple):
    """One query over C classes of features.

    The error of a token is its label minus the value at the query.
    """

    error_form: Array  # mean products of the errors of two tokens, (C, C)
    squared_errors: Array  # mean squared error of a token, with noise, (C,)
    probs: Array  # probabilities of the classes, (C,)
    N: float  # prompt length
    noise: float  # standard deviation of the label noise
    target: int  # class of the query's own feature


class LevelLoss(NamedTuple):
    """The loss of a query in the prompts with a token of ``level`` and none ``above``.

    All other classes are infinitely far below the level, and get no attention in these
    prompts.
    """

    query: Query
    level: Mask  # (C,)
    above: Mask  # (C,)

    def moments(self, scores: Array, curved: bool = False) -> QueryMoments:
        """Return the loss and its derivatives; the Hessian is zero unless ``curved``.

        Derivatives are with respect to the scores. For a class below the level, the
        gradient has the derivative with respect to the weight of the class, relative to
        the largest weight of the level.
        """
        query = self.query
        below = ~(self.level | self.above)
        highest = scores[self.level].max()
        lowest = scores[self.level].min()
        # A class below gets a weight that is negligible, but not 0: the derivative with
        # respect to the weight is computed from the derivative with respect to the
        # score, the logarithm of the weight.
        log_w = np.where(below, lowest - INFINITE_GAP, scores)
        # The prompts have no token of the classes above.
        log_w = np.where(self.above, -np.inf, log_w)
        # Terms with two tokens below the level are left out. In prompts with a token of
        # the level they are of second order in the weights of the classes below, and
        # the derivative is needed at weight zero only. Prompts with no token of the
        # level have only such terms, and are answered by lower levels.
        error_form = np.where(below[:, None] & below, 0.0, query.error_form)
        squared_errors = np.where(below, 0.0, query.squared_errors)
        moments = one_query(
            log_w, query.probs, squared_errors, query.N, error_form, curved=curved
        )
        # ∂/∂w = ∂/∂(ln w) / w for the classes below. All others are divided by 1.
        log_weight = np.where(below, log_w - highest, 0.0)
        weight = np.exp(np.maximum(log_weight, LOG_SMALLEST_WEIGHT))
        return moments._replace(gradient=moments.gradient / weight)

    def minimise(self, start: Array) -> Array:
        """Return the scores at the end of a trust-region descent over the level.

        If the loss has no minimum, the scores run towards infinity, and the descent
        stops at large scores.
        """
        # SciPy's optimisers are loaded here, because most runs do not need them.
        from scipy.optimize import minimize

        # The loss is divided by its first value, so that ``gtol`` is relative.
        scale = self.moments(start).loss
        level_block = np.ix_(self.level, self.level)

        # The scores of all C classes, from the scores of the level's classes alone
        def with_level(level_scores: Array) -> Array:
            scores = start.copy()
            scores[self.level] = level_scores
            return scores

        # SciPy asks for the loss, the gradient and the Hessian of a point one by one.
        # They are computed together, and kept for the two latest points. The keys of a
        # cache must be hashable, so a point is given as the bytes of its scores.
        @lru_cache(maxsize=2)
        def moments_of(score_bytes: bytes) -> QueryMoments:
            return self.moments(with_level(np.frombuffer(score_bytes)), curved=True)

        def loss(level_scores: Array) -> float:
            return moments_of(level_scores.tobytes()).loss / scale

        def gradient(level_scores: Array) -> Array:
            return moments_of(level_scores.tobytes()).gradient[self.level] / scale

        def hessian(level_scores: Array) -> Array:
            return moments_of(level_scores.tobytes()).hessian[level_block] / scale

        result = minimize(
            loss,
            start[self.level],
            jac=gradient,
            hess=hessian,
            method="trust-ncg",
            options=TRUST_REGION,
        )
        return with_level(result.x)

    def nearest_minimum(self, start: Array) -> Array | None:
        """Return the scores at a minimum near the start, found by Newton's method.

        Return None if there is no such minimum. Scores do not move along directions in
        which the loss is flat.
        """
        scores = start.copy()
        level_block = np.ix_(self.level, self.level)
        for _ in range(MOST_NEWTON_ITERATIONS):
            moments = self.moments(scores, curved=True)
            gradient = moments.gradient[self.level]
            # Curvatures are ascending; directions are columns.
            curvatures, directions = np.linalg.eigh(moments.hessian[level_block])
            # If all curvatures are smaller than the loss, as on a plateau, the loss
            # takes the place of the largest one: usually second derivatives with
            # respect to scores are of the size of the loss.
            largest = max(float(np.abs(curvatures).max()), moments.loss)
            if curvatures[0] < -ZERO_SHARE * largest:
                # The loss curves downwards along a direction, so this is no minimum.
                return None
            is_curved = curvatures > FLAT * largest
            directions = directions[:, is_curved]
            step = directions @ ((directions.T @ gradient) / curvatures[is_curved])
            scores[self.level] -= step
            # Farther away, Newton's method may find a minimum that is not near.
            if np.abs(scores - start).max() > FARTHEST_MINIMUM:
                return None
            if np.abs(step).max(initial=0.0) < SMALLEST_MOVE:
                return scores
        # Newton's method has not converged.
        return None
