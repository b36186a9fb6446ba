"""Losses and gradients of risks in balls: which queries a risk has, and how its parameters make their scores."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from flint import arb, ctx
from numpy.typing import NDArray

from icl_theory._validate import Array, refuse
from icl_theory.certified.balls import Balls, balls, product
from icl_theory.certified.integral import Query, moments
from icl_theory.engine.pullback import Embedding, Factored, Linear, Pullback
from icl_theory.engine.risk import Risk
from icl_theory.engine.tokens.risk import TokenRisk
from icl_theory.engine.tokens.square import Count
from icl_theory.families.linear_attention.law import PromptLaw
from icl_theory.families.linear_attention.risks import Heads, MergedRisk, Pair
from icl_theory.families.regression.risks.exchangeable import ExchangeableRisk
from icl_theory.families.regression.risks.population import PopulationRisk
from icl_theory.families.regression.risks.symmetric import SymmetricRisk

MAPS = (Embedding, Factored, Linear, Heads, Pair)  # whose sums and products are the same for balls
KNOWN = (TokenRisk, ExchangeableRisk, PopulationRisk, SymmetricRisk, MergedRisk)
RISKS = "a TokenRisk, a risk of regression with features, or of linear attention, also in other coordinates"


def enclosed(risk: Risk, params: Array, bits: int, gamma: arb | None = None) -> tuple[arb, Balls]:
    """Return the loss and its gradient, of the shape of ``params``, with about ``bits`` bits.

    ``gamma`` is the variogram of an `ExchangeableRisk`, where it is known better than as a double.
    """
    with np.errstate(all="ignore"):  # rough sizes decide how fine the quadrature is, not whether it is right
        loss, gradient = risk.evaluate(np.asarray(params))
    sizes = [size for size in (abs(loss), float(np.abs(gradient).max())) if 1e-200 < size < math.inf] or [1.0]
    lost = round(math.log2(max(sizes) / min(sizes)))  # bits of the smaller one; 16 of them are there to be lost
    with ctx.workprec(bits + max(0, lost - 16)):
        return _evaluated(risk, balls(params), 0.7 * bits - math.log2(min(sizes)), gamma)


def _evaluated(risk: Risk, params: Balls, digits: float, gamma: arb | None) -> tuple[arb, Balls]:
    if isinstance(risk, Pullback):
        if not isinstance(risk.map, MAPS):
            raise refuse("map", type(risk.map).__name__, "one of " + ", ".join(each.__name__ for each in MAPS))
        loss, inner = _evaluated(risk.risk, balls(risk.map.inward(params)), digits, gamma)
        return loss, balls(risk.map.outward(params, inner))
    if type(risk) not in KNOWN:  # a class that inherits from one of them may have another loss
        raise refuse("risk", type(risk).__name__, RISKS)
    if isinstance(risk, MergedRisk):
        return _merged(risk, params)
    found = []
    for query, share in _queries(risk, params, gamma):
        loss, slope = moments(query, digits)
        found.append((share * loss, slope * share))
    loss = sum((each for each, _ in found), start=arb(0))
    if isinstance(risk, ExchangeableRisk):
        return loss, found[0][1][0]  # with respect to the gap between the first score and the other one
    beside = 0 if isinstance(risk, SymmetricRisk) else 1  # the axis of the queries
    return loss, np.stack([slope for _, slope in found], axis=beside).reshape(params.shape)


def _queries(risk: Risk, params: Balls, gamma: arb | None) -> Iterator[tuple[Query, arb]]:
    """Yield the queries of a risk and their probabilities."""
    if isinstance(risk, TokenRisk):
        yield from _of_tokens(risk, params)
        return
    assert isinstance(risk, PopulationRisk | ExchangeableRisk | SymmetricRisk)
    counts, square = [] if math.isinf(risk.N) else [Count(risk.N)], arb(risk.noise) ** 2
    if isinstance(risk, PopulationRisk):
        variogram, probs = balls(risk._form.variogram), balls(risk.features.probs)
        for k, own in enumerate(variogram):
            form = own[:, None] + own - variogram
            yield Query(params[:, k], probs, form, 2 * own + square, counts), probs[k] / probs.sum()
    elif isinstance(risk, ExchangeableRisk):
        pairs, probs = balls([[0.0]]) + (arb(risk.gamma) if gamma is None else gamma), balls([1.0]) / risk.K
        scores = np.append(params, balls([0.0]))[None, :]
        yield from _of_groups(np.array([risk.K]), probs, pairs, square, counts, scores)
    else:
        sizes, pairs = risk.sizes.astype(int), balls(risk.variogram)
        yield from _of_groups(sizes, balls(risk.probs), pairs, square, counts, params)


def _of_tokens(risk: TokenRisk, params: Balls) -> Iterator[tuple[Query, arb]]:
    asked, probs = balls(risk.asked), balls(risk.probs)
    U, Q = len(probs), len(asked)

    def columns(values: Array) -> Balls:  # one for each query, of what may be given for all
        return balls(np.broadcast_to(values, (*values.shape[:-1], Q)))

    scores, own = params.reshape(U, Q), np.concatenate([columns(kind.spread) for kind in risk.kinds])
    if risk.second is None:
        errors = np.concatenate([columns(kind.values) for kind in risk.kinds]) - columns(risk.target)
        forms = [product(errors[:, :, q], errors[:, :, q].T) for q in range(Q)]
    else:
        forms = [*columns(np.reshape(risk.second, (U, U, -1))).transpose(2, 0, 1)]
    for q, form in enumerate(forms):
        yield Query(scores[:, q], probs, form, np.diagonal(form) + own[:, q], risk.counts), asked[q] / asked.sum()


def _of_groups(
    sizes: NDArray[np.int64], probs: Balls, pairs: Balls, noise: arb, counts: list[Count], scores: Balls
) -> Iterator[tuple[Query, arb]]:
    """Yield the queries of groups of exchangeable features, over their own feature and the groups."""
    G, total = len(sizes), (probs * sizes).sum()
    for g in range(G):
        members = sizes - (np.arange(G) == g)
        to_own, between = pairs[g], pairs.copy()
        for h in range(G):  # two tokens of a class may show the same feature
            between[h, h] = pairs[h, h] * (1 - arb(1) / int(max(members[h], 1)))
        form = balls(np.zeros((G + 1, G + 1)))
        form[1:, 1:] = to_own[:, None] + to_own - between
        own = np.append(balls([0.0]), 2 * to_own) + noise
        mass = np.append(probs[g : g + 1], probs * members) / total
        yield Query(scores[g], mass, form, own, counts), probs[g] * int(sizes[g]) / total


def _times(left: Balls, right: Balls) -> Balls:
    return left * right if left.ndim == 1 else product(left, right)


def _trace(matrix: Balls) -> arb:
    return matrix.sum() if matrix.ndim == 1 else np.trace(matrix)


def moments_of(law: PromptLaw) -> tuple[Balls, Balls, Balls, Balls]:
    """Return ΛW, W, Λ_q and M = ΛWΛ(1 + 1/N) + (tr ΛW + σ²)Λ/N: matrices, or their diagonals."""
    tokens, tasks, query = (balls(each) for each in law.moments)
    reach = _times(tokens, tasks)
    second = _times(reach, tokens)
    if math.isfinite(law.N):
        second = second + (second + (_trace(reach) + arb(law.noise) ** 2) * tokens) / int(law.N)
    return reach, tasks, query, second


def _merged(risk: MergedRisk, params: Balls) -> tuple[arb, Balls]:
    """Loss ½ tr Λq(ΓMΓᵀ - ΓΛW - WΛΓᵀ + W) and its gradient Λq(ΓM - WΛ), from the moments of the prompts."""
    reach, tasks, query, second = moments_of(risk.law if params.ndim == 1 else risk.law.dense)
    whole, drawn = _times(params, second), _times(params, reach)
    left = _times(whole, params.T) - drawn - drawn.T + tasks
    return _trace(_times(query, left)) / 2, _times(query, whole - reach.T)
