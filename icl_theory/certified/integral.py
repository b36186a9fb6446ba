"""Loss and gradient of softmax attention over tokens in balls, with a proved error of the quadrature.

The sums over the nodes are those of `icl_theory.engine.tokens.square`, for a rule whose error is known: see
docs/proved.md, "The integral over tokens".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache, reduce
from typing import NamedTuple

import numpy as np
from flint import arb, arb_series, ctx
from scipy.optimize import brentq

from icl_theory._validate import refuse
from icl_theory.certified.balls import Balls, around, balls, product
from icl_theory.engine.tokens.square import Count

THETA = 1.5  # of the bound on the error of the rule
NATS = 8.0  # ln E e^σ, which sets the unit of S: the larger, the fewer nodes, but the closer to each other


class Query(NamedTuple):
    """One query over U nodes: scores, probabilities, C, (U, U), and the mean squares of the errors, in balls.

    Prompts are infinite where ``counts`` is empty.
    """

    scores: Balls
    probs: Balls
    form: Balls
    own: Balls
    counts: Sequence[Count] = ()


def moments(query: Query, digits: float = 87.0, widest: float = 2000.0) -> tuple[arb, Balls]:
    """Return the loss of a query and its gradient with respect to the scores, (U,).

    The error of the quadrature is about 2^-digits, in the units of the loss. Its nodes are the more, the more the
    scores differ, up to ``widest``.
    """
    there = np.array([not each.is_zero() for each in query.probs])
    middles = np.array([float(score.mid()) for score in query.scores])[there]
    apart, top = np.ptp(middles), arb(middles.max())
    scores = query.scores.copy()
    scores[~there] = top
    weight = np.exp(scores - top)
    if not query.counts:
        attention = query.probs * weight / (query.probs * weight).sum()
        pull = product(query.form, attention[:, None])[:, 0]
        squared = attention @ pull
        return squared / 2, attention * (pull - squared)
    if not apart <= widest:
        raise refuse("params", apart, f"scores up to {widest:g} apart (the largest difference is shown)")
    if sum(count.number for count in query.counts) == 1:  # one token has all attention
        return query.probs @ query.own / query.probs.sum() / 2, balls(np.zeros(len(weight)))
    probs = np.concatenate([query.probs[each.rows] / query.probs[each.rows].sum() for each in query.counts])
    size: arb = reduce(arb.max, [*abs(query.form).flat, *abs(query.own)]).upper()
    small = max(8, math.ceil(digits + math.log2(max(float(size), 1e-300))))
    unit = arb(_unit(weight, probs, query.counts))

    def mean(s: arb) -> arb:  # of e^(s σ) over prompts
        each = (probs * np.exp(weight * (unit * s)))[:, None]
        factors = (_powers(each[count.rows].sum(axis=0), count)[0][0] for count in query.counts)
        return math.prod(factors, start=arb(1))

    number, rest, shift = 48, arb(1), arb(1) / 16
    while not rest < arb(2) ** -small:  # what the nodes leave out
        number += 8
        t, jacobian, errors = _rule(small, number, ctx.prec)
        rest = mean(shift - (1 - shift) * t[-1]) / shift**3
    loss, gradient = _sums(query, probs, weight, t * unit, jacobian)
    two, three = (mean(arb(1)) * error + (1 + error) * rest for error in errors)
    return loss + around(size * two), gradient + around(size * (two + three))


def _unit(weight: Balls, probs: Balls, counts: Sequence[Count]) -> float:
    """Return σ/S, with ln E e^σ about ``NATS``, if doubles are right."""
    w, p = (np.array([float(each.mid()) for each in array]) for array in (weight, probs))
    parts = [(int(count.number), w[count.rows], p[count.rows]) for count in counts]

    def above(log_s: float) -> float:
        s = math.exp(log_s)
        return sum(n * (s * w.max() + math.log(p @ np.exp(s * (w - w.max())))) for n, w, p in parts) - NATS

    # S is between 0 and the number of tokens, and Jensen's inequality holds
    low, high = (math.log(NATS / sum(n * most(w, p) for n, w, p in parts)) for most in (lambda w, p: 1.0, np.dot))
    return math.exp(brentq(above, low - 1.0, high + 1.0, xtol=0.01))


@lru_cache(maxsize=256)
def _rule(bits: int, number: int, prec: int) -> tuple[Balls, Balls, list[arb]]:
    """Return nodes t, weights, and the errors for S^-2 and S^-3, all but E e^σ: that times them is about 2^-bits.

    They have the precision of now, ``prec``.
    """
    wanted = bits * math.log(2.0) + NATS
    step = 2.0 * math.pi * THETA / (wanted + math.log(2.0) - 4.0 * math.log(math.cos(THETA)))
    step = math.floor(2.0**16 * step) / 2.0**16  # so that its multiples are exact
    first = -math.ceil(math.log(0.5 * wanted) / step)  # x - e^-x is below half the logarithm of the error
    x = balls(step * np.arange(first, first + number))
    left, theta = np.exp(-x), arb(THETA)
    t, apart = np.exp(x - left), 2 / ((2 * arb.pi() * theta / arb(step)).exp() - 1)
    return t, (left + 1) * arb(step), [apart / theta.cos() ** (n + 1) + t[0] ** n for n in (2, 3)]


def _powers(mean: Balls, count: Count, order: int = 3) -> list[Balls]:
    """Return E[n (n - 1) ... (n - k + 1) G^(n - k)] for k = 0 ... order: n is the number, or all up to it."""
    n = int(count.number)
    if not count.each:
        return [math.perm(n, k) * mean ** max(n - k, 0) for k in range(order + 1)]
    power = np.frompyfunc(lambda mean: arb_series([mean, 1], prec=order + 1), 1, 1)(mean)  # G + ε
    total, reached = power * 0, 0
    for bit in f"{n:b}":  # Σ_{n <= 2M} = (1 + G^M) Σ_{n <= M}
        total, reached = total + total * power**reached, 2 * reached
        if bit == "1":
            reached += 1
            total = total + power**reached
    total = total / n
    return [np.frompyfunc(lambda each, k=k: each[k] * math.factorial(k), 1, 1)(total) for k in range(order + 1)]


def _sums(query: Query, probs: Balls, weight: Balls, s: Balls, jacobian: Balls) -> tuple[arb, Balls]:
    """Sum the integrands over some s, where y = s w and b = π y e^-y: only s and e^-y depend on the node."""
    rows, kinds = [count.rows for count in query.counts], range(len(query.counts))
    x, lead, square = np.exp(-weight[:, None] * s), probs * weight, s * s * jacobian
    squares = query.own * lead * weight
    left = np.vstack([lead[:, None] * query.form * lead, probs, squares])
    drawn = [product(left[:, each], x[each]) for each in rows]
    pairs = [x * each[:-2] for each in drawn]
    crossed = [[pair[each].sum(axis=0) for each in rows] for pair in pairs]
    orders = [_powers(each[-2], count) for each, count in zip(drawn, query.counts, strict=True)]

    def change(*kinds: int) -> Balls:  # of the product of all generating functions
        return math.prod((each[kinds.count(k)] for k, each in enumerate(orders)), start=square)

    def both(*more: int) -> Balls:
        two = sum(change(k, m, *more) * crossed[m][k] for k in kinds for m in kinds)
        return two + sum(change(k, *more) * drawn[k][-1] for k in kinds)

    gradient = []
    for k, here in enumerate(rows):
        one, two, w = change(k), [change(k, m) for m in kinds], weight[here]
        # -d/dy of b^T C b and of b y, times y: with b it is b (1 - y), with b y it is b y (2 - y)
        own = product(x[here], np.column_stack([s * both(k), 2 * one, s * one]))
        pair = np.sum([product(pairs[m][here], np.column_stack([two[m], s * two[m]])) for m in kinds], axis=0)
        part = squares[here] * (own[:, 1] - w * own[:, 2]) - lead[here] * own[:, 0]
        gradient.append(part / 2 + pair[:, 0] - w * pair[:, 1])
    return both().sum() / 2, np.concatenate(gradient)
