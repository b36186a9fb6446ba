"""Infima of the losses of finite prompts, and the levels that features form there.

At an infimum at infinity the features of a query form levels, each infinitely far above
the next. A prompt is answered by those of its tokens that have the highest level.
Within a level, scores differ by finite amounts. `find_levels` searches for the levels
from equal scores, where descent starts; `levels_of` adds the lowest infimum that many
starts lead to. The caller says which features form a class, and `single_features` makes
each feature a class of its own. See docs/tail-laws.md, "Theorem 2: finite prompts".
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

# Classes of features up to which levels are searched; for more it takes too long.
MOST = 12
# Infima count as equal up to this relative difference.
EQUAL_INFIMA = 1e-7
# A query with a smaller loss is not searched: relative losses would overflow.
SMALLEST_LOSS = 1e-290
# A search that runs towards infinity leaves gaps of at least so many nats.
SMALLEST_GAP = 3.0
# Nats by which one class dominates the others at the first starts of a search.
DOMINANCE = 4.0


class Levels(NamedTuple):
    """The infimum of a query's loss that descent approaches, and the levels there.

    A search from equal scores finds them, and descent starts from equal scores too.
    Other infima may be lower.

    Attributes
    ----------
    loss : float
        The infimum.
    classes : tuple of ndarray
        Indices of the classes of each level, the highest level first.
    weights : tuple of ndarray
        Weights of a token of these classes, relative to the largest of their level.
    gaps : tuple of float
        Coefficients of ln t in the differences between the scores of a level and those
        of the next.
    lowest : float
        The lowest infimum that many starts lead to, at most ``loss``.
    """

    loss: float
    classes: tuple[NDArray[np.intp], ...]
    weights: tuple[Array, ...]
    gaps: tuple[float, ...]
    lowest: float = math.inf


def find_levels(query: Query) -> Levels | None:
    """Levels at the infimum that a search from equal scores approaches, if known.

    None if the infimum is of another kind, for which no tail law is known.
    """
    C = len(query.probs)
    no_class = np.zeros(C, dtype=bool)
    equal_scores = np.zeros(C)
    if query.N == 1 or C == 1:
        all_classes = LevelLoss(query, level=~no_class, above=no_class)
        return _on_top(all_classes, equal_scores, None)
    if query.noise > 0.0:
        return _search(query, no_class)
    # Without noise the query's own feature answers every prompt that has it, exactly.
    is_target = np.arange(C) == query.target
    target = LevelLoss(query, level=is_target, above=no_class)
    return _on_top(target, equal_scores, _search(query, is_target))


def _search(query: Query, above: Mask) -> Levels | None:
    """Levels at the infimum of the loss of the prompts without a token from above."""
    equal_scores = np.zeros(len(above))
    rest = LevelLoss(query, level=~above, above=above)
    if rest.level.sum() == 1 or rest.moments(equal_scores).loss < SMALLEST_LOSS:
        return _on_top(rest, equal_scores, None)
    best = _best_alone(query, above)
    if best is not None:
        is_best = np.arange(len(above)) == best
        top = LevelLoss(query, level=is_best, above=above)
        return _on_top(top, equal_scores, _search(query, above | is_best))
    starts = [equal_scores]
    if query.noise > 0.0 and not above[query.target]:
        # The loss may have two minima, one of them with the target far above.
        target_ahead = equal_scores.copy()
        target_ahead[query.target] = np.log(len(above))
        starts.append(target_ahead)
    ends = [rest.minimise(start) for start in starts]
    ends.sort(key=lambda scores: rest.moments(scores).loss)
    for scores in ends:
        levels = _levels_from(query, above, scores)
        if levels is not None:
            return levels
    return None


def _best_alone(query: Query, above: Mask) -> int | None:
    """The class that answers every prompt with it best alone, without noise, or None.

    No mixture with other classes improves it if C_bj >= C_bb for all of them.
    """
    if query.noise > 0.0:
        return None
    rest = ~above
    squares = np.diagonal(query.error_form)
    tolerance = ZERO_SHARE * query.squared_errors.max()
    best = int(np.argmin(np.where(rest, squares, np.inf)))
    if abs(query.squared_errors[best] - squares[best]) > tolerance:
        # Several features with different labels share the class.
        return None
    covariance = query.error_form[best]
    if (covariance[rest] - squares[best] < -tolerance).any():
        return None
    squared_distance = squares - 2.0 * covariance + squares[best]
    is_other = rest & (np.arange(len(rest)) != best)
    if (squared_distance[is_other] <= tolerance).any():
        # A class with the same labels may share the attention.
        return None
    return best


def _levels_from(query: Query, above: Mask, scores: Array) -> Levels | None:
    """Levels proposed by the gaps between the scores at which a search ended.

    The classes above a gap are a level if their minimum stays when the classes below
    are removed.
    """
    rest = ~above
    falling = np.argsort(np.where(rest, -scores, np.inf))[: rest.sum()]
    gaps = np.append(-np.diff(scores[falling]), np.inf)
    proposals: list[Levels] = []
    for last in np.flatnonzero(gaps > SMALLEST_GAP):
        level = np.zeros(len(above), dtype=bool)
        level[falling[: last + 1]] = True
        top = LevelLoss(query, level, above)
        minimum = top.nearest_minimum(scores)
        if minimum is None:
            continue
        lower = None
        if not level[rest].all():
            lower = _search(query, above | level)
        levels = _on_top(top, minimum, lower)
        if levels is not None:
            proposals.append(levels)
    return _lowest_of(proposals)


def _lowest_of(proposals: Sequence[Levels]) -> Levels | None:
    """The proposal with the lowest infimum; the first one if another is equal.

    Far out several levels look like one, so that proposals may be the same infimum. The
    first one has the fewest classes in its highest level.
    """
    if not proposals:
        return None
    first = proposals[0]
    lowest = min(proposals, key=lambda levels: levels.loss)
    if lowest.loss * (1.0 + EQUAL_INFIMA) < first.loss:
        return lowest
    return first


def _on_top(top: LevelLoss, scores: Array, lower: Levels | None) -> Levels | None:
    """Put a level at these scores on top of the lower ones.

    None if attention would flow to the next level, or if the lower levels are unknown.
    """
    moments = top.moments(scores)
    level_scores = scores[top.level]
    classes = np.flatnonzero(top.level)
    weights = np.exp(level_scores - level_scores.max())
    if (top.level | top.above).all():
        return Levels(moments.loss, (classes,), (weights,), ())
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
    """Coefficient of ln t in the gap between a level and the next, or None.

    It is 1 if the loss rises to first order in the weight of the next level, and ½ if
    it rises to second order. None if it falls, or if this cannot be decided.
    """
    query = top.query
    next_classes = lower.classes[0]
    next_weights = np.zeros(len(top.level))
    next_weights[next_classes] = lower.weights[0]
    change = float(moments.gradient @ next_weights)
    # The size of the terms that may cancel in the change: the odds of a token of the
    # next level against one of this level, times the cost of an error.
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
    # Without noise a single class at its minimum: the second order is the mean square
    # of what the next level adds to the error, unless its labels are the same.
    own = classes[0]
    squares = np.diagonal(query.error_form)
    squared_distance = squares - 2.0 * query.error_form[own] + squares[own]
    if squared_distance[next_classes].max() <= ZERO_SHARE * squares.max():
        return None
    return 0.5


def _lowest_infima(queries: Sequence[Query], infima: Array) -> Array:
    """The infima, (Q,), or lower ones if a search from many starts finds them."""
    lowest = infima.copy()
    classes = np.array([len(query.probs) for query in queries])
    for C in np.unique(classes):
        # The losses of queries with as many classes are minimised together.
        together = np.flatnonzero((classes == C) & (infima >= SMALLEST_LOSS))
        if together.size:
            batch = [queries[i] for i in together.tolist()]
            lowest[together] = _lowest_infima_together(batch, infima[together])
    return lowest


def _lowest_infima_together(queries: Sequence[Query], infima: Array) -> Array:
    """Search from many starts for queries with the same number of classes."""
    above = np.array([_answered_exactly(query) for query in queries])
    most_free = int((~above).sum(axis=1).max())
    if most_free < 2 or queries[0].N == 1:
        return infima
    starts = np.array([_starts(row) for row in above])
    losses, ends = minimise_from(starts, queries, above, infima, longest=DOMINANCE)
    lowest = infima.copy()
    for i, query in enumerate(queries):
        best = losses[i].argmin()
        if losses[i, best] >= infima[i] * (1.0 - EQUAL_INFIMA):
            continue
        rest = LevelLoss(query, level=~above[i], above=above[i])
        end = rest.minimise(ends[i, best])
        lowest[i] = min(infima[i], rest.moments(end).loss)
        levels = _levels_from(query, above[i], end)
        if levels is not None:
            lowest[i] = min(lowest[i], levels.loss)
    return lowest


def _answered_exactly(query: Query) -> Mask:
    """The class that is the first level without noise, and costs nothing."""
    is_target: Mask = np.arange(len(query.probs)) == query.target
    return is_target & (query.noise == 0.0)


def _starts(above: Mask) -> Array:
    """Starts for a search: each class dominant, and as many with normal scores."""
    free = np.flatnonzero(~above)
    dominant = np.zeros((len(free), len(above)))
    dominant[:, free] = DOMINANCE * np.eye(len(free))
    normal = np.zeros_like(dominant)
    rng = np.random.default_rng(0)
    normal[:, free] = DOMINANCE * rng.standard_normal((len(free), len(free)))
    return np.concatenate([dominant, normal])


def smallest_squared_norm(levels: Levels, members: Array) -> float:
    r"""Squared norm of the smallest scores with the gaps of these levels.

    .. math:: \lVert\hat s\rVert^2 = \sum_i |A_i| (h_i - \bar h)^2, \qquad
        h_i - h_{i+1} = \nu_i, \qquad \bar h = \tfrac1K \sum_i |A_i| h_i

    ``members`` is the number of features in each class, (C,).
    """
    heights = -np.cumsum([0.0, *levels.gaps])
    sizes = np.array([members[classes].sum() for classes in levels.classes])
    mean = sizes @ heights / sizes.sum()
    return float(sizes @ (heights - mean) ** 2)


def levels_of(queries: Iterable[Query], classes: int) -> tuple[Levels, ...] | None:
    """Levels of several queries, each with its lowest infimum.

    None for more than `MOST` classes, or if the levels of a query are unknown.
    """
    if classes > MOST:
        return None
    searched: list[Query] = []
    levels_of_queries: list[Levels] = []
    for query in queries:
        levels = find_levels(query)
        if levels is None:
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
    """Levels of every query, for K features with the given variogram, (K, K)."""
    if len(probs) > MOST:
        return None
    return _single_features(variogram.tobytes(), probs.tobytes(), N, noise)


# The search takes longer than most runs. Runs at other rates and targets share it.
@lru_cache(maxsize=1024)
def _single_features(
    variogram_bytes: bytes, probs_bytes: bytes, N: float, noise: float
) -> tuple[Levels, ...] | None:
    probs = np.frombuffer(probs_bytes)
    K = len(probs)
    variogram = np.frombuffer(variogram_bytes).reshape(K, K)
    queries = []
    for k in range(K):
        to_own = variogram[k]
        query = Query(
            error_form=to_own[:, None] + to_own - variogram,
            squared_errors=2.0 * to_own + noise**2,
            probs=probs,
            N=N,
            noise=noise,
            target=k,
        )
        queries.append(query)
    return levels_of(queries, K)
