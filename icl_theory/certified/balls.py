"""Loss and gradient of softmax attention over tokens in balls, with a proved error of the quadrature.

The sums over the nodes are those of `icl_theory.engine.tokens.square`, for a rule whose error is known: see
docs/proved.md, "The integral over tokens".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache, reduce
from typing import Any, NamedTuple

import numpy as np
from flint import arb, arb_mat, arb_series, ctx
from numpy.typing import NDArray

from icl_theory._validate import refuse
from icl_theory.certified.boxes import around
from icl_theory.engine.tokens.square import Count

Balls = NDArray[Any]  # of arb
THETA = 1.5  # of the bound on the error of the rule


class Query(NamedTuple):
    """One query over U nodes: scores, probabilities, C, (U, U), and the mean squares of the errors, in balls.

    Prompts are infinite where ``counts`` is empty.
    """

    scores: Balls
    probs: Balls
    form: Balls
    own: Balls
    counts: Sequence[Count] = ()


def balls(values: Any) -> Balls:
    """Return an array of balls; doubles and integers are taken as they are, exactly."""
    given = np.asarray(values)
    return given if given.dtype == object else np.asarray(np.frompyfunc(arb, 1, 1)(given), dtype=object)


def product(left: Balls | arb_mat, right: Balls | arb_mat) -> Balls:
    """Return the product of two matrices, some ten times as fast as NumPy makes it."""
    one, two = _matrix(left), _matrix(right)
    found = np.empty((one.nrows(), two.ncols()), dtype=object)
    found.ravel()[:] = (one * two).entries()
    return found


def _matrix(values: Balls | arb_mat) -> arb_mat:
    return values if isinstance(values, arb_mat) else arb_mat(len(values), values.shape[1], values.ravel().tolist())


def moments(query: Query, digits: float = 87.0, widest: float = 2000.0) -> tuple[arb, Balls]:
    """Return the loss of a query and its gradient with respect to the scores, (U,).

    The error of the quadrature is about 2^-digits, in the units of the loss. Its nodes are the more, the more the
    scores differ, up to ``widest``.
    """
    middles = [float(score.mid()) for score in query.scores]
    apart, weight = max(middles) - min(middles), np.exp(query.scores - arb(max(middles)))
    if not query.counts:
        attention = query.probs * weight / (query.probs * weight).sum()
        pull = product(query.form, attention[:, None])[:, 0]
        squared = attention @ pull
        return squared / 2, attention * (pull - squared)
    if not apart <= widest:
        raise refuse("params", apart, f"scores up to {widest:g} apart (the largest difference is shown)")
    if sum(count.number for count in query.counts) == 1:  # one token has all attention
        return query.probs @ query.own / query.probs.sum() / 2, balls(np.zeros(len(weight)))
    return _finite(query, weight, digits)


def _finite(query: Query, weight: Balls, digits: float, block: int = 24) -> tuple[arb, Balls]:
    """Sum over nodes, ``block`` of them at a time, until what is left out is proved to be small."""
    counts = query.counts
    largest: arb = sum((_most(weight[count.rows]) * int(count.number) for count in counts), start=arb(0))
    probs = np.concatenate([query.probs[count.rows] / query.probs[count.rows].sum() for count in counts])
    size = _most(abs(np.append(query.form.ravel(), query.own)))
    small = max(8, math.ceil(digits + math.log2(max(float(size), 1e-300))))
    step, start, errors = _rule(small)
    nodes, gradient = _Nodes(query, probs, weight), balls(np.zeros(len(probs)))
    loss, rest = arb(0), arb(1)
    while not rest < arb(2) ** -small:
        t, jacobian = _some(step, start, block, ctx.prec)
        found = nodes.sums(t / largest, jacobian)
        loss, gradient, start = loss + found[0], gradient + found[1], start + step * block
        # the sum over all further nodes is at most 2^n times that for e^(-sS/2), at each prompt
        half = (probs * np.exp(-weight * (t[-1] / largest / 2)))[:, None]
        rest = math.prod((_powers(half[each.rows].sum(axis=0), each)[0][0] for each in counts), start=arb(1))
    two, three = (error + 2**n * (1 + error) * rest for n, error in zip((2, 3), errors, strict=True))
    return loss + around(size * two), gradient + around(size * (two + three))


def _most(values: Balls) -> arb:
    """Return a number that no entry exceeds."""
    return reduce(arb.max, values.ravel()).upper()


@lru_cache(maxsize=256)
def _some(step: float, start: float, block: int, prec: int) -> tuple[Balls, Balls]:
    """Return nodes t of the rule and their weights, with the precision of now."""
    x = balls(start + step * np.arange(block))
    left = np.exp(-x)
    return np.exp(x - left), (left + 1) * arb(step)


@lru_cache(maxsize=256)
def _rule(bits: int) -> tuple[float, float, tuple[arb, arb]]:
    """Return step, first node and proved errors of the rule for S^-2 and S^-3, both about 2^-bits."""
    wanted = bits * math.log(2.0)
    whole = math.log(2.0) + math.sin(THETA) - 4.0 * math.log(math.cos(THETA))
    step = math.floor(2.0**17 * math.pi * THETA / (wanted + whole)) / 2.0**16  # so that its multiples are exact
    first = -step * math.ceil(math.log(0.5 * wanted) / step)  # x - e^-x is below half the logarithm of the error
    theta, t = arb(THETA), (arb(first) - arb(-first).exp()).exp()
    apart = 2 * theta.sin().exp() / ((2 * arb.pi() * theta / arb(step)).exp() - 1)
    errors = [apart / theta.cos() ** (n + 1) + t**n / math.factorial(n) for n in (2, 3)]
    return step, first, (errors[0], errors[1])


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


class _Nodes:
    """The integrands of loss and gradient, where y = s w and b = π y e^-y: only s and e^-y depend on the node."""

    def __init__(self, query: Query, probs: Balls, weight: Balls) -> None:
        self.counts, self.weight, self.lead = query.counts, weight, probs * weight
        self.own = query.own * self.lead * weight
        whole = np.vstack([self.lead[:, None] * query.form * self.lead, probs, self.own])
        self.left = [_matrix(whole[:, count.rows]) for count in query.counts]
        members = np.zeros((len(query.counts), len(weight)))
        for row, count in zip(members, query.counts, strict=True):
            row[count.rows] = 1.0
        self.members = _matrix(members)

    def sums(self, s: Balls, jacobian: Balls) -> tuple[arb, Balls]:
        """Sum over some s with the weights of their nodes."""
        x, square, kinds = np.exp(-self.weight[:, None] * s), s * s * jacobian, range(len(self.counts))
        every = [_matrix(x[count.rows]) for count in self.counts]
        drawn = [product(left, each) for left, each in zip(self.left, every, strict=True)]
        pairs = [_matrix(x * each[:-2]) for each in drawn]
        crossed = [product(self.members, each) for each in pairs]
        orders = [_powers(each[-2], count) for each, count in zip(drawn, self.counts, strict=True)]

        def change(*kinds: int) -> Balls:  # of the product of all generating functions
            return math.prod((each[kinds.count(k)] for k, each in enumerate(orders)), start=square)

        def both(*more: int) -> Balls:
            two = sum(change(k, m, *more) * crossed[m][k] for k in kinds for m in kinds)
            return two + sum(change(k, *more) * drawn[k][-1] for k in kinds)

        parts = []
        for k, count in enumerate(self.counts):
            rows, one, two = count.rows, change(k), [change(k, m) for m in kinds]
            # -d/dy of b^T C b and of b y, times y: with b it is b (1 - y), with b y it is b y (2 - y)
            own = product(every[k], np.column_stack([s * both(k), 2 * one, s * one]))
            pair = np.sum([product(pairs[m], np.column_stack([two[m], s * two[m]])) for m in kinds], axis=0)[rows]
            part = self.own[rows] * (own[:, 1] - self.weight[rows] * own[:, 2]) - self.lead[rows] * own[:, 0]
            parts.append(part + 2 * (pair[:, 0] - self.weight[rows] * pair[:, 1]))
        return both().sum() / 2, np.concatenate(parts) / 2
