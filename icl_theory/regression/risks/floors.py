"""The infima of the loss of finite prompts: features in levels, each infinitely far above the next.

A prompt is answered by those of its tokens that have the highest level; within a level
scores differ by finite amounts. See docs/tail-laws.md, "Finite prompts".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.regression.risks.prompts import Seen, one_query
from icl_theory.tokens.generating import TokenCount
from icl_theory.tokens.square import moments

# classes of features up to which levels are searched; for more it takes too long
MOST = 12
Mask = NDArray[np.bool_]


class Levels(NamedTuple):
    """The infimum that descent of one query's loss approaches, and its levels of classes, the highest first.

    A search that starts from equal scores finds it, as descent does; others may be
    lower.
    """

    loss: float
    classes: tuple[NDArray[np.intp], ...]
    # of tokens of these classes, relative to the largest of their level
    weights: tuple[Array, ...]
    gaps: tuple[
        float, ...
        # coefficients of ln t in the differences between the scores of a level and the
        # next
    ]
    lowest: float = math.inf  # infimum found from many starts, <= loss


class Query(NamedTuple):
    """One query over C classes of features, and the tolerances of its search."""

    matrix: Array  # error form of the query, (C, C)
    own: Array  # weight of a token counted twice, (C,)
    probs: Array  # of the classes, (C,)
    N: float
    noise: float
    target: int  # class of the query's own feature
    deep: float = 40.0  # nats that count as infinitely many: attention 1e-17
    # a first-order change of the loss counts as zero below this share of its terms
    zero: float = 1e-9
    alike: float = 1e-7  # relative difference up to which infima count as equal

    def seen(
        self, scores: Array, level: Mask, above: Mask, curved: bool = False
    ) -> Seen:
        """Moments over the prompts that have a token of the level and none from ``above``.

        Other tokens get no attention. The gradient for them is with respect to their
        weight, relative to the largest of the level. The Hessian is zero unless
        ``curved``.
        """
        below = ~(level | above)
        top = scores[level].max()
        log_w = np.where(
            above, -np.inf, np.where(below, scores[level].min() - self.deep, scores)
        )
        matrix = np.where(below[:, None] & below, 0.0, self.matrix)
        own = np.where(below, 0.0, self.own)
        found = one_query(log_w, self.probs, own, self.N, matrix, curved)
        weight = np.exp(np.maximum(np.where(below, log_w - top, 0.0), -650.0))
        return found._replace(gradient=found.gradient / weight)


def find_levels(query: Query) -> Levels | None:
    """Levels of the infimum that a search from equal scores finds, None if it is of no known kind."""
    none = np.zeros(len(query.probs), dtype=bool)
    if query.N == 1 or len(none) == 1:
        return _below(query, ~none, none, None, np.zeros(len(none)))
    if query.noise > 0.0:
        return _search(query, none)
    only = np.arange(len(none)) == query.target
    return _below(query, only, none, _search(query, only), np.zeros(len(none)))


def _search(query: Query, above: Mask) -> Levels | None:
    """Levels of the infimum over the prompts without a token from ``above``."""
    rest = ~above
    none = np.zeros(len(query.probs))
    if rest.sum() == 1 or query.seen(none, rest, above).loss < 1e-290:
        return _below(query, rest, above, None, none)
    if query.noise == 0.0:
        # a feature that no mixture with the others improves is the best answer of every
        # prompt that has it
        squares = np.diagonal(query.matrix)
        tolerance = query.zero * query.own.max()
        best = int(np.argmin(np.where(rest, squares, np.inf)))
        first = np.arange(len(rest)) == best
        gain = query.matrix[best] - squares[best]
        apart = squares - 2.0 * query.matrix[best] + squares[best]
        alone = abs(query.own[best] - squares[best]) <= tolerance
        if (
            alone
            and (gain >= -tolerance)[rest].all()
            and (apart > tolerance)[rest & ~first].all()
        ):
            return _below(query, first, above, _search(query, above | first), none)
    starts = [none]
    if query.noise > 0.0 and not above[query.target]:  # the loss may have two minima
        starts.append(
            np.where(np.arange(len(none)) == query.target, np.log(len(none)), none)
        )
    ends = [_descended(query, rest, above, start) for start in starts]
    for scores in sorted(ends, key=lambda end: query.seen(end, rest, above).loss):
        found = _levels_from(query, above, scores)
        if found is not None:
            return found
    return None


def _levels_from(
    query: Query, above: Mask, scores: Array, near: float = 3.0
) -> Levels | None:
    """Levels by gaps of these scores, at which a search that runs to infinity leaves at least ``near`` nats.

    The classes above a gap are a level if their minimum stays when the classes below
    are removed.
    """
    rest = ~above
    order = np.argsort(np.where(rest, -scores, np.inf))[: rest.sum()]
    drops = np.append(-np.diff(scores[order]), np.inf)
    found: list[Levels] = []
    for size in np.flatnonzero(drops > near):
        level = np.zeros(len(above), dtype=bool)
        level[order[: size + 1]] = True
        settled = _settled(query, level, above, scores)
        if settled is not None:
            further = None if level[rest].all() else _search(query, above | level)
            found += [
                each
                for each in [_below(query, level, above, further, settled)]
                if each is not None
            ]
    # far out several levels look like one: of equal infima take the first, which has
    # the fewest classes
    return min(
        found,
        key=lambda each: each.loss * (1.0 + (each is not found[0]) * query.alike),
        default=None,
    )


def _descended(query: Query, level: Mask, above: Mask, start: Array) -> Array:
    from scipy.optimize import minimize

    scale = query.seen(start, level, above).loss
    square = np.ix_(level, level)

    def placed(part: Array) -> Array:
        scores = start.copy()
        scores[level] = part
        return scores

    @lru_cache(maxsize=2)
    def seen(part: bytes) -> Seen:
        return query.seen(placed(np.frombuffer(part)), level, above, curved=True)

    found = minimize(
        lambda part: seen(part.tobytes()).loss / scale,
        start[level],
        jac=lambda part: seen(part.tobytes()).gradient[level] / scale,
        hess=lambda part: seen(part.tobytes()).hessian[square] / scale,
        method="trust-ncg",
        options={
            "gtol": 1e-9,
            "maxiter": 200,
            "initial_trust_radius": 2.0,
            "max_trust_radius": 50.0,
        },
    )
    return placed(found.x)


def _settled(
    query: Query, level: Mask, above: Mask, scores: Array, flat: float = 1e-12
) -> Array | None:
    """Minimum of the level's loss near these scores, by Newton's method, or None.

    Directions of a relative curvature below ``flat``, which rounding makes of zero, are
    left out.
    """
    start = scores
    scores = scores.copy()
    for _ in range(30):
        found = query.seen(scores, level, above, curved=True)
        values, vectors = np.linalg.eigh(found.hessian[np.ix_(level, level)])
        largest = max(float(np.abs(values).max()), found.loss)
        if values[0] < -query.zero * largest:
            return None
        keep = values > flat * largest
        step = vectors[:, keep] @ (
            (vectors[:, keep].T @ found.gradient[level]) / values[keep]
        )
        scores[level] -= step
        if np.abs(scores - start).max() > 5.0:
            return None
        if np.abs(step).max(initial=0.0) < 1e-9:
            return scores
    return None


def _below(
    query: Query, level: Mask, above: Mask, further: Levels | None, scores: Array
) -> Levels | None:
    """Put a level on top of the further ones; None if attention would flow to the next level."""
    found = query.seen(scores, level, above)
    classes = np.flatnonzero(level)
    loss = found.loss
    weights = np.exp(scores[level] - scores[level].max())
    if (level | above).all():
        return Levels(loss, (classes,), (weights,), ())
    if further is None:
        return None
    share = np.zeros(len(level))
    share[further.classes[0]] = further.weights[0]
    change = float(found.gradient @ share)
    # the size of its terms: the odds of a token of the next level against one of this,
    # times the cost of an error
    odds = float(query.probs @ share) / float(query.probs[level].sum())
    terms = (
        float(found.attention[level].sum())
        * odds
        * float(np.abs(query.matrix).max() + query.noise**2)
    )
    gap = 1.0
    if change <= query.zero * terms:
        own = classes[0]
        squares = np.diagonal(query.matrix)
        apart = (squares - 2.0 * query.matrix[own] + squares[own])[further.classes[0]]
        falls = change < -query.zero * terms
        same = apart.max() <= query.zero * squares.max()
        if query.noise > 0.0 or len(classes) > 1 or falls or same:
            return None
        gap = 0.5  # the loss rises in second order
    return Levels(
        loss + further.loss,
        (classes, *further.classes),
        (weights, *further.weights),
        (gap, *further.gaps),
    )


def _lowest(queries: Sequence[Query], known: Array, apart: float = 4.0) -> Array:
    """Infima of the losses from many starts, (Q,), those ``known`` if none leads lower.

    The starts are each class ``apart`` nats above the others, so that it dominates, and
    normal scores. A BFGS method minimises for all starts at once; an end below
    ``known`` is minimised further, and sorted into levels.
    """
    lowest = known.copy()
    for size in {len(query.probs) for query in queries}:
        some = [
            i
            for i, query in enumerate(queries)
            if len(query.probs) == size and known[i] >= 1e-290
        ]
        if not some:
            continue
        asked = [queries[i] for i in some]
        # without noise the query's own feature is the first level, and the loss is that
        # of prompts without it
        above = np.array(
            [
                (np.arange(size) == query.target) & (query.noise == 0.0)
                for query in asked
            ]
        )
        C = int((~above).sum(axis=-1).max(initial=0))
        if C < 2 or asked[0].N == 1:
            continue
        starts = np.zeros((len(some), 2 * C, size))
        for each, start in zip(above, starts, strict=True):
            start[:C, ~each] = apart * np.eye(C)
            start[C:, ~each] = apart * np.random.default_rng(0).standard_normal((C, C))
        losses, ends = _minimised(asked, above, starts, known[some], apart)
        for i, query, each, loss, scores in zip(
            some, asked, above, losses, ends, strict=True
        ):
            if loss.min() < known[i] * (1.0 - query.alike):
                end = _descended(query, ~each, each, scores[loss.argmin()])
                found = _levels_from(query, each, end)
                best = query.seen(end, ~each, each).loss
                lowest[i] = min(
                    known[i], best, math.inf if found is None else found.loss
                )
    return lowest


def _minimised(
    queries: Sequence[Query],
    above: Array,
    starts: Array,
    known: Array,
    longest: float,
    rounds: int = 60,
    slow: float = 1e-3,
) -> tuple[Array, Array]:
    """Losses near the minima that the starts of each query lead to, (Q, S), and the scores there, (Q, S, C).

    Losses are right to less than `Query.alike`. The best ends are minimised further, so
    that ``rounds`` need not be enough for all starts to converge. A start stops when
    its predicted decrease is below ``slow`` times its gap to the least loss that its
    query has so far.
    """
    matrices, owns, probs = (
        np.array([getattr(query, name) for query in queries])
        for name in ("matrix", "own", "probs")
    )
    shape = starts.shape[:2]
    scores = starts.reshape(-1, starts.shape[2])

    def seen(scores: Array, of: NDArray[np.intp]) -> tuple[Array, Array]:
        def form(some: NDArray[np.intp], rows: slice, z: Array, out: Array) -> None:
            np.matmul(matrices[of[some]], z, out=out)

        log_w = np.where(above[of], -np.inf, scores)
        count = TokenCount(queries[0].N)
        # the rule's error is 2e-8 of the loss
        found = moments(log_w.T, probs[of].T, owns[of].T, [count], form, step=0.4)
        return found.loss / known[of], np.where(
            above[of], 0.0, found.gradient.T / known[of, None]
        )

    unit = np.eye(scores.shape[1])
    length = np.ones(len(scores))
    on = np.arange(len(scores))
    of = on // shape[1]
    loss, slope = seen(scores, of)
    losses = loss.copy()
    ends = scores.copy()
    inverse = unit / np.maximum(np.abs(slope).max(axis=1), 1e-300)[:, None, None]
    for done in range(rounds):
        move = -np.einsum("sij,sj->si", inverse, slope)
        least = np.minimum(1.0, losses.reshape(shape).min(axis=1))
        missing = loss - least[of] * (1.0 - queries[0].alike)
        go = (-np.einsum("si,si->s", slope, move) > slow * missing) | (done < 5)
        if not go.any():
            break
        on = on[go]
        of = of[go]
        scores = scores[go]
        loss = loss[go]
        slope = slope[go]
        move = move[go]
        inverse = inverse[go]
        length = length[go]
        move *= (
            length
            * np.minimum(1.0, longest / np.maximum(np.abs(move).max(axis=1), 1e-300))
        )[:, None]
        ahead = scores + move
        ahead = np.maximum(ahead, ahead.max(axis=1, keepdims=True) - queries[0].deep)
        new, steeper = seen(ahead, of)
        falls = new <= loss + 1e-4 * np.einsum("si,si->s", slope, move)
        step = ahead - scores
        bend = steeper - slope
        curved = np.einsum("si,si->s", step, bend)
        fits = falls & (curved > 1e-12 * np.einsum("si,si->s", step, step))
        root = np.sqrt(np.where(fits, curved, 1.0))[:, None]
        step = step / root
        bend = bend / root
        turn = unit - step[:, :, None] * bend[:, None, :]
        updated = (
            turn @ inverse @ turn.swapaxes(1, 2) + step[:, :, None] * step[:, None, :]
        )
        inverse = np.where(fits[:, None, None], updated, inverse)
        length = np.where(falls, 1.0, 0.3 * length)
        scores = np.where(falls[:, None], ahead, scores)
        loss = np.where(falls, new, loss)
        slope = np.where(falls[:, None], steeper, slope)
        losses[on], ends[on] = loss, scores
    return losses.reshape(shape) * known[:, None], ends.reshape(starts.shape)


def on_levels(levels: Levels, members: Array) -> float:
    """Squared norm of the smallest scores with these gaps; ``members`` counts the features of each class."""
    heights = -np.cumsum([0.0, *levels.gaps])
    sizes = np.array([members[classes].sum() for classes in levels.classes])
    centred = heights - sizes @ heights / sizes.sum()
    return float(sizes @ centred**2)


def levels_of(queries: Iterable[Query], classes: int) -> tuple[Levels, ...] | None:
    """Levels of several queries; None for more than `MOST` classes, or if those of a query are unknown."""
    asked = list(queries) if classes <= MOST else []
    found = []
    for query in asked:
        each = find_levels(query)
        if each is None:
            return None
        found.append(each)
    lowest = _lowest(asked, np.array([each.loss for each in found])).tolist()
    return (
        tuple(
            each._replace(lowest=loss) for each, loss in zip(found, lowest, strict=True)
        )
        or None
    )


def single_features(
    variogram: Array, probs: Array, N: float, noise: float
) -> tuple[Levels, ...] | None:
    """Levels of every query, for K features with the given variogram, (K, K), and probabilities."""
    return (
        None
        if len(probs) > MOST
        else _single_features(variogram.tobytes(), probs.tobytes(), N, noise)
    )


@lru_cache(maxsize=1024)
def _single_features(
    variogram: bytes, probs: bytes, N: float, noise: float
) -> tuple[Levels, ...] | None:
    """Cache the search, which takes longer than most runs: runs at other rates and targets share it."""
    each = np.frombuffer(probs)
    form = np.frombuffer(variogram).reshape(len(each), len(each))

    def query(k: int) -> Query:
        matrix = form[k][:, None] + form[k] - form
        return Query(matrix, 2.0 * form[k] + noise**2, each, N, noise, k)

    return levels_of(map(query, range(len(each))), len(each))
