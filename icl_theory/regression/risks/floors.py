"""Infima of the losses of finite prompts, and the levels that features form there.

For finite prompts, the loss of a query often has no minimum, but only an infimum that
it approaches as scores diverge. The features then form *levels*: the scores of a level
are infinitely far above the scores of the next, and within a level they differ by
finite amounts. The prediction for a prompt depends only on the tokens whose features
are in the highest level that occurs in the prompt. `find_levels` searches for the
levels from equal scores, from which descent starts, too. `levels_of` also searches from
many other starts, and adds the lowest infimum that it finds.

The features may be grouped into classes with equal scores. `single_features` makes each
feature a class of its own. See docs/tail-laws.md, "Theorem 2: finite prompts".

In the shapes below, C is the number of classes, Q the number of queries and S the
number of starts. With indices, C_ij is an entry of the error form of a query: the mean
product of the errors of two tokens of the classes i and j.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.regression.risks.level_loss import (
    ZERO_SHARE,
    LevelLoss,
    Mask,
    Query,
)
from icl_theory.regression.risks.many_starts import minimise_from
from icl_theory.regression.risks.prompts import QueryMoments

# Largest number of features, or of groups of features, for which levels are searched.
# With more of them there are more starts, each of which costs more.
MOST_CLASSES = 12
# Two infima count as equal if their relative difference is below this number. The
# number is above the error of a search, which ends at a gradient of 1e-9, relative to
# the loss.
EQUAL_INFIMA = 1e-7
# A query with a smaller loss is not searched: quotients of losses would overflow.
SMALLEST_LOSS = 1e-290
# If a search runs towards infinity, it ends with gaps of at least this size between the
# scores of two levels, in nats (units of ln). With a smaller number more levels would
# be proposed, each of which costs a test.
SMALLEST_GAP = 3.0
# At half of the starts of a search from many starts, the score of one class is this
# much larger than all other scores, in nats: its weight is 55 times as large. At the
# other half the scores have this standard deviation. A larger number would start where
# gradients nearly vanish. This number also limits the change of a score in a round.
DOMINANCE = 4.0


class Levels(NamedTuple):
    """The infimum of a query's loss that descent approaches, and the levels there.

    Descent starts from equal scores, so this infimum is the one that a search from
    equal scores finds. Other infima may be lower.

    Attributes
    ----------
    loss : float
        The infimum.
    classes : tuple of ndarray
        Indices of the classes of each level, the highest level first.
    weights : tuple of ndarray
        For each level, the weights of a token of each class, relative to the largest
        weight in the level.
    gaps : tuple of float
        The difference between the scores of a level and of the next one grows like a
        coefficient times ln t, with the number t of steps. These are the coefficients.
    lowest : float
        The lowest infimum that a search from many starts finds, at most ``loss``. It is
        infinite until `levels_of` has made this search.
    """

    loss: float
    classes: tuple[NDArray[np.intp], ...]
    weights: tuple[Array, ...]
    gaps: tuple[float, ...]
    lowest: float = math.inf


def find_levels(query: Query) -> Levels | None:
    """Return the levels at the infimum that a search from equal scores approaches.

    Return None if no levels are found there. No tail law is known then.
    """
    C = len(query.probs)
    no_class = np.zeros(C, dtype=bool)
    equal_scores = np.zeros(C)
    if query.N == 1 or C == 1:
        # The loss does not depend on the scores.
        all_classes = LevelLoss(query, level=~no_class, above=no_class)
        return _on_top(all_classes, equal_scores, lower=None)
    if query.noise > 0.0:
        return _search(query, no_class)
    # Without noise, a prompt that contains the query's own feature is best answered by
    # this feature alone, without an error. So this feature is the first level.
    is_target = np.arange(C) == query.target
    target = LevelLoss(query, level=is_target, above=no_class)
    return _on_top(target, equal_scores, _search(query, is_target))


def _search(query: Query, above: Mask) -> Levels | None:
    """Return the levels below the classes ``above``; None if they are unknown.

    They are the levels for prompts without a token of the classes ``above``.
    """
    equal_scores = np.zeros(len(above))
    remaining = LevelLoss(query, level=~above, above=above)
    # A single class, or classes without any loss, are the lowest level.
    is_single = remaining.level.sum() == 1
    if is_single or remaining.moments(equal_scores).loss < SMALLEST_LOSS:
        return _on_top(remaining, equal_scores, lower=None)
    best = _best_alone(query, above)
    if best is not None:
        is_best = np.arange(len(above)) == best
        top = LevelLoss(query, level=is_best, above=above)
        return _on_top(top, equal_scores, _search(query, above | is_best))
    starts = [equal_scores]
    if query.noise > 0.0 and not above[query.target]:
        # The loss may have two minima. At one of them the score of the target, the
        # query's own class, is far above all others. So one start gives the target as
        # much weight as C classes with the score 0 have together.
        target_ahead = equal_scores.copy()
        target_ahead[query.target] = np.log(len(above))
        starts.append(target_ahead)
    ends = [remaining.minimise(start) for start in starts]
    # Of the ends at which levels are found, the one with the least loss counts.
    ends.sort(key=lambda scores: remaining.moments(scores).loss)
    for scores in ends:
        levels = _levels_from(query, above, scores)
        if levels is not None:
            return levels
    return None


def _best_alone(query: Query, above: Mask) -> int | None:
    """Return the class that should get the next level alone, far above the others.

    The classes in ``above`` have higher levels already.

    Without noise, a prompt that contains this class b is answered best by b alone. No
    mixture with other classes j is better, because the error form has C_bj >= C_bb for
    all j. Return None if there is no such class, or if there is noise: a mixture of
    tokens averages the noise, and may be better.
    """
    if query.noise > 0.0:
        return None
    is_free = ~above
    mean_squares = np.diagonal(query.error_form)  # C_jj
    tolerance = ZERO_SHARE * query.squared_errors.max()
    # C_bj >= C_bb for all j is possible only for the least C_bb.
    best = int(np.argmin(np.where(is_free, mean_squares, np.inf)))
    # C_bb is the mean product of the errors of two tokens. The squared error is the
    # mean product of the error of one token with itself.
    if abs(query.squared_errors[best] - mean_squares[best]) > tolerance:
        # The features of the class have different labels.
        return None
    mean_products = query.error_form[best]  # C_bj
    if (mean_products[is_free] - mean_squares[best] < -tolerance).any():
        return None
    label_distances = _mean_squared_differences(query, best)
    is_other = is_free & (np.arange(len(above)) != best)
    if (label_distances[is_other] <= tolerance).any():
        # Another class has the same labels, and may have a part of the attention.
        return None
    return best


def _mean_squared_differences(query: Query, own: int) -> Array:
    """Return C_jj - 2 C_jb + C_bb for the class b = ``own`` and all classes j, (C,).

    This is the mean squared difference of the errors of tokens of j and of b.
    """
    mean_squares = np.diagonal(query.error_form)
    return mean_squares - 2.0 * query.error_form[own] + mean_squares[own]


def _levels_from(query: Query, above: Mask, scores: Array) -> Levels | None:
    """Return the levels that the scores at the end of a search suggest.

    Between two levels there must be a large gap of the scores. The classes above such a
    gap are a level if they still have a minimum near these scores when the classes
    below the gap are removed. The result is None if no gap separates such a level from
    lower ones that are known.
    """
    is_free = ~above
    # The free classes by falling scores, and the gap below each of them. There is
    # nothing below the last one, which counts as an infinite gap.
    ranked = np.argsort(np.where(is_free, -scores, np.inf))[: is_free.sum()]
    gaps_below = np.append(-np.diff(scores[ranked]), np.inf)
    proposals: list[Levels] = []
    for rank in np.flatnonzero(gaps_below > SMALLEST_GAP):
        # The level ends with the class of this rank, which has a large gap below it.
        level = np.zeros(len(above), dtype=bool)
        level[ranked[: rank + 1]] = True
        top = LevelLoss(query, level, above)
        minimum = top.nearest_minimum(scores)
        if minimum is None:
            continue
        lower = None
        if not level[is_free].all():
            lower = _search(query, above | level)
        levels = _on_top(top, minimum, lower)
        if levels is not None:
            proposals.append(levels)
    return _lowest_of(proposals)


def _lowest_of(proposals: Sequence[Levels]) -> Levels | None:
    """Return the first proposal, unless another one has a lower infimum.

    If scores are large, several levels look like a single one. So several proposals may
    describe the same infimum. The first proposal has the fewest classes in its highest
    level, and is preferred. Return None if there are no proposals.
    """
    if not proposals:
        return None
    first = proposals[0]
    lowest = min(proposals, key=lambda levels: levels.loss)
    if lowest.loss * (1.0 + EQUAL_INFIMA) < first.loss:
        return lowest
    return first


def _on_top(top: LevelLoss, scores: Array, lower: Levels | None) -> Levels | None:
    """Put the level ``top``, at these scores, above the ``lower`` levels.

    Return None if descent would move attention from this level to the next one, or if
    the lower levels are unknown.
    """
    moments = top.moments(scores)
    level_scores = scores[top.level]
    classes = np.flatnonzero(top.level)
    weights = np.exp(level_scores - level_scores.max())
    if (top.level | top.above).all():
        # This is the lowest level.
        return Levels(moments.loss, (classes,), (weights,), gaps=())
    if lower is None:
        return None
    gap = _gap_coefficient(top, moments, lower)
    if gap is None:
        return None
    return Levels(
        loss=moments.loss + lower.loss,
        classes=(classes, *lower.classes),
        weights=(weights, *lower.weights),
        gaps=(gap, *lower.gaps),
    )


def _gap_coefficient(
    top: LevelLoss, moments: QueryMoments, lower: Levels
) -> float | None:
    """Return the coefficient of ln t in the gap between a level and the next one.

    It depends on how the loss changes if the next level gets a small weight. It is 1 if
    the loss rises to first order in this weight, and ½ if it rises to second order. The
    result is None if the loss falls, or if this cannot be decided.
    """
    query = top.query
    next_classes, *_ = lower.classes
    weights_of_classes, *_ = lower.weights
    next_weights = np.zeros(len(top.level))
    next_weights[next_classes] = weights_of_classes
    # For a class below the level, the gradient is with respect to its weight.
    change = float(moments.gradient @ next_weights)
    # The size of the terms that may cancel in the change: the attention on this level,
    # times the odds of a token of the next level against one of this level, times the
    # cost of an error.
    attention = float(moments.attention[top.level].sum())
    next_probability = float(query.probs @ next_weights)
    odds = next_probability / float(query.probs[top.level].sum())
    error = float(np.abs(query.error_form).max() + query.noise**2)
    tolerance = ZERO_SHARE * (attention * odds * error)
    if change > tolerance:
        return 1.0
    if change < -tolerance:
        return None
    classes = np.flatnonzero(top.level)
    if query.noise > 0.0 or len(classes) > 1:
        return None
    # The change of first order vanishes. There is no noise, and this level is a single
    # class. The change of second order is then the mean square of the error that the
    # next level adds. It vanishes if both levels have the same labels.
    (own,) = classes.tolist()
    label_distances = _mean_squared_differences(query, own)
    largest_square = np.diagonal(query.error_form).max()
    if label_distances[next_classes].max() <= ZERO_SHARE * largest_square:
        return None
    return 0.5


def _lowest_infima(queries: Sequence[Query], infima: Array) -> Array:
    """Search from many starts for infima that are lower than the given ones, (Q,).

    Return the lower infima, (Q,). A query for which the search finds no lower infimum
    keeps the given one.
    """
    lowest = infima.copy()
    class_counts = np.array([len(query.probs) for query in queries])
    for C in np.unique(class_counts):
        # Queries with equal numbers of classes are searched together.
        members = np.flatnonzero((class_counts == C) & (infima >= SMALLEST_LOSS))
        if members.size:
            batch = [queries[i] for i in members.tolist()]
            lowest[members] = _lowest_infima_of_batch(batch, infima[members])
    return lowest


def _lowest_infima_of_batch(queries: Sequence[Query], infima: Array) -> Array:
    """Search for lower infima of several queries with equally many classes."""
    # The loss of a prompt with a class that answers exactly is 0, so only prompts
    # without such a class matter to the search.
    above = np.array([_answered_exactly(query) for query in queries])
    most_free = int((~above).sum(axis=1).max())
    if most_free < 2 or queries[0].N == 1:
        # The losses do not depend on the scores.
        return infima
    # All queries have equally many starts, because either all have noise or none has.
    starts = np.array([_starts(row) for row in above])
    losses, ends = minimise_from(starts, queries, above, infima, longest=DOMINANCE)
    lowest = infima.copy()
    for i, query in enumerate(queries):
        best = losses[i].argmin()
        if losses[i, best] >= infima[i] * (1.0 - EQUAL_INFIMA):
            continue
        # The ends of `minimise_from` are rough, so the best one is minimised further.
        free = LevelLoss(query, level=~above[i], above=above[i])
        end = free.minimise(ends[i, best])
        lowest[i] = min(infima[i], free.moments(end).loss)
        # If scores diverge, the infimum of the levels is below the loss at the end.
        levels = _levels_from(query, above[i], end)
        if levels is not None:
            lowest[i] = min(lowest[i], levels.loss)
    return lowest


def _answered_exactly(query: Query) -> Mask:
    """Return the mask, (C,), of the classes that answer a prompt without an error.

    Without noise only the query's own class does so; with noise no class does.
    """
    is_target: Mask = np.arange(len(query.probs)) == query.target
    return is_target & (query.noise == 0.0)


def _starts(above: Mask) -> Array:
    """Return starts, (S, C), for a search over the classes that are not in ``above``.

    In the first half, each of these classes in turn has the largest score. In the other
    half all scores are normal, with fixed random numbers, so that results can be
    reproduced.
    """
    free = np.flatnonzero(~above)
    dominant = np.zeros((len(free), len(above)))
    dominant[:, free] = DOMINANCE * np.eye(len(free))
    normal = np.zeros_like(dominant)
    rng = np.random.default_rng(0)
    normal[:, free] = DOMINANCE * rng.standard_normal((len(free), len(free)))
    return np.concatenate([dominant, normal])


def smallest_squared_norm(levels: Levels, members: Array) -> float:
    r"""Squared norm of the smallest scores that have the gaps of ``levels``.

    .. math:: \lVert\hat s\rVert^2 = \sum_i |A_i| (h_i - \bar h)^2, \qquad
        h_i - h_{i+1} = \nu_i, \qquad \bar h = \tfrac1K \sum_i |A_i| h_i

    Here :math:`h_i` is the score of level i and :math:`|A_i|` the number of its
    features. The :math:`\nu_i` are the gaps, and K is the number of all features.
    ``members`` has the number of features in each class, (C,).
    """
    heights = -np.cumsum([0.0, *levels.gaps])
    sizes = np.array([members[classes].sum() for classes in levels.classes])
    mean = sizes @ heights / sizes.sum()
    return float(sizes @ (heights - mean) ** 2)


def levels_of(queries: Iterable[Query], classes: int) -> tuple[Levels, ...] | None:
    """Return the levels of several queries, each with its lowest infimum.

    ``classes`` is the number of features or of groups. Return None if it is above
    `MOST_CLASSES`, or if the levels of any query are unknown.
    """
    if classes > MOST_CLASSES:
        return None
    searched: list[Query] = []
    levels_of_queries: list[Levels] = []
    for query in queries:
        levels = find_levels(query)
        if levels is None:
            # The law of a whole run needs the levels of all queries.
            return None
        searched.append(query)
        levels_of_queries.append(levels)
    infima = np.array([levels.loss for levels in levels_of_queries])
    lowest = _lowest_infima(searched, infima).tolist()
    pairs = zip(levels_of_queries, lowest, strict=True)
    return tuple(levels._replace(lowest=loss) for levels, loss in pairs)


def single_features(
    variogram: Array, probs: Array, N: float, noise: float
) -> tuple[Levels, ...] | None:
    """Return the levels of every query, for K features with a variogram, (K, K).

    Return None if they are unknown.
    """
    if len(probs) > MOST_CLASSES:
        return None
    return _single_features(variogram.tobytes(), probs.tobytes(), N, noise)


# Cached, because the search takes longer than most runs, and its result is the same for
# all learning rates and targets.
@lru_cache(maxsize=1024)
def _single_features(
    variogram_bytes: bytes, probs_bytes: bytes, N: float, noise: float
) -> tuple[Levels, ...] | None:
    """Do what `single_features` does. Bytes can be keys of a cache; arrays cannot."""
    # `frombuffer` reads float64, the type of both arrays.
    probs = np.frombuffer(probs_bytes)
    K = len(probs)
    variogram = np.frombuffer(variogram_bytes).reshape(K, K)
    queries = []
    for k in range(K):
        to_own = variogram[k]
        query = Query(
            # C_mj = Γ_mk + Γ_kj - Γ_mj, with C_mm = 2 Γ_mk. A squared error has the
            # variance of the noise in addition.
            error_form=to_own[:, None] + to_own - variogram,
            squared_errors=2.0 * to_own + noise**2,
            probs=probs,
            N=N,
            noise=noise,
            target=k,
        )
        queries.append(query)
    return levels_of(queries, K)
