"""Losses and gradients in balls, by a rule with a proved error: docs/proved.md, "The integral over tokens"."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from flint import arb, arb_mat, arb_series, ctx
from numpy.typing import NDArray

from icl_theory._validate import Array, argument_error
from icl_theory.engine.pullback import Embedding, Factored, Linear, Pullback
from icl_theory.engine.risk import Risk
from icl_theory.papers.linear_attention.law import PromptLaw
from icl_theory.papers.linear_attention.risks import Heads, MergedRisk, Pair
from icl_theory.regression.risks.exchangeable import ExchangeableRisk
from icl_theory.regression.risks.population import PopulationRisk
from icl_theory.regression.risks.symmetric import SymmetricRisk
from icl_theory.tokens.generating import TokenCount
from icl_theory.tokens.risk import TokenRisk

Balls = NDArray[Any]  # of arb
# whose sums and products are the same for balls
MAPS = (
    Embedding,
    Factored,
    Linear,
    Heads,
    Pair,
)
RISKS = "a TokenRisk, a risk of regression with features, or of linear attention, also in other coordinates"
WIDEST = 2000.0  # difference of scores: the larger, the more nodes
THETA = 1.5  # of the bound on the error of the rule
NATS = 1.0  # E e^σ is at most e^NATS
# share up to a factor, places of scores, what `moments` takes after the digits
Query = tuple[Any, ...]


def balls(values: Any) -> Balls:
    """Return an array of balls; doubles and integers are taken as they are, exactly."""
    return np.asarray(np.frompyfunc(arb, 1, 1)(values), dtype=object)


def product(left: Balls, right: Balls) -> Balls:
    """Return the product of two matrices, some ten times as fast as NumPy makes it, or of two diagonals."""
    if left.ndim == 1:
        return left * right
    one, two = (
        arb_mat(len(each), each.shape[1], each.ravel().tolist())
        for each in (left, right)
    )
    return np.reshape(
        np.array((one * two).entries(), dtype=object), (len(left), right.shape[1])
    )


def enclosed(
    risk: Risk, params: Array, bits: int, gamma: arb | None = None
) -> tuple[arb, Balls]:
    """Return the loss and its gradient, of the shape of ``params``, with about ``bits`` bits.

    ``gamma`` is the variogram of an `ExchangeableRisk`, where it is known better than
    as a double.
    """
    with np.errstate(
        all="ignore"
    ):  # rough sizes decide how fine the quadrature is, not whether it is right
        loss, gradient = risk.evaluate(np.asarray(params))
    sizes = [
        size
        for size in (abs(loss), float(np.abs(gradient).max()))
        if 1e-200 < size < math.inf
    ] or [1.0]
    # bits of the smaller one; 16 of them are there to be lost
    lost = round(math.log2(max(sizes) / min(sizes)))
    with ctx.workprec(bits + max(0, lost - 16)):
        return _evaluated(
            risk, balls(params), 0.7 * bits - math.log2(min(sizes)), gamma
        )


def _evaluated(
    risk: Risk, params: Balls, digits: float, gamma: arb | None
) -> tuple[arb, Balls]:
    if isinstance(risk, Pullback):
        if not isinstance(risk.map, MAPS):
            raise argument_error(
                "map",
                type(risk.map).__name__,
                "one of " + ", ".join(each.__name__ for each in MAPS),
            )
        loss, inner = _evaluated(
            risk.risk, balls(risk.map.inward(params)), digits, gamma
        )
        return loss, balls(risk.map.outward(params, inner))
    if (
        type(risk) is MergedRisk
    ):  # a class that inherits from one of these may have another loss
        return merged(risk, params)
    queries = _of_tokens(risk) if type(risk) is TokenRisk else _of_features(risk, gamma)
    # in which features other than that of an ExchangeableRisk have 0
    scores = np.append(params, balls([0.0]))
    whole = arb(0)
    total = arb(0)
    slopes = 0 * scores
    for share, where, query in queries:
        loss, slope = moments(scores[where], digits, *query)
        whole = whole + share
        total = total + share * loss
        slopes[where] += share * slope
    return total / whole, (slopes[:-1] / whole).reshape(params.shape)[()]


def _of_tokens(risk: TokenRisk) -> Iterator[Query]:
    probs, (U, Q) = balls(risk.probs), risk.own.shape

    def of(q: int, values: Array) -> Balls:  # what may be given once for all queries
        return balls(values[..., q % values.shape[-1]])

    for q, share in enumerate(balls(risk.asked)):
        if risk.second is None:
            errors = np.concatenate([of(q, kind.values) for kind in risk.kinds]) - of(
                q, risk.target
            )
            form = product(errors, errors.T)
        else:
            form = of(q, np.reshape(risk.second, (U, U, -1)))
        own = np.diagonal(form) + np.concatenate(
            [of(q, kind.spread) for kind in risk.kinds]
        )
        yield share, np.arange(U) * Q + q, (probs, form, own, risk.counts)


def _of_features(risk: Any, gamma: arb | None) -> Iterator[Query]:
    """Nodes: the query's feature, then the groups of other features (one group a feature, or one for all)."""
    places: Any = np.arange(risk.initial.size).reshape(risk.initial.shape)
    if type(risk) is PopulationRisk:
        places = np.column_stack([places.diagonal(), places.T])
        sizes = np.ones(len(places))
        pairs = risk._form.variogram
    elif type(risk) is SymmetricRisk:
        sizes, pairs = risk.sizes, risk.variogram
    elif type(risk) is ExchangeableRisk:
        places = np.array([[0, 1]])
        sizes = np.array([risk.K])
        pairs = balls([[risk.gamma if gamma is None else gamma]])
    else:
        raise argument_error("risk", type(risk).__name__, RISKS)
    counts = [] if math.isinf(risk.N) else [TokenCount(risk.N)]
    groups = np.arange(len(sizes))
    probs = balls(getattr(risk, "probs", [1.0]))
    pairs = balls(pairs)
    for g in groups:
        members = np.append(1.0, sizes - (groups == g))
        there = np.flatnonzero(members)
        nodes = np.append(g, groups)[there]
        members = balls(members[there])
        # two tokens of a group may show the same feature
        between = pairs[np.ix_(nodes, nodes)] * (1 - np.diag(1 / members))
        form = between[0][:, None] + between[0] - between
        own = 2 * between[0] + arb(risk.noise) ** 2
        yield (
            probs[g] * int(sizes[g]),
            places[g][there],
            (probs[nodes] * members, form, own, counts),
        )


def moments(
    scores: Balls,
    digits: float,
    probs: Balls,
    form: Balls,
    own: Balls,
    counts: Sequence[TokenCount],
) -> tuple[arb, Balls]:
    """Return the loss of a query over U nodes and its gradient with respect to their scores, (U,).

    Of the nodes are given the scores, the probabilities, C, (U, U), and the mean
    squares of the errors. Prompts are infinite where ``counts`` is empty. The error of
    the quadrature is about 2^-digits, in the units of the loss.
    """
    middles = np.array([float(score.mid()) for score in scores])
    weight = np.exp(scores - arb(middles.max()))
    if not counts:
        attention = probs * weight / (probs @ weight)
        pull = product(form, attention[:, None])[:, 0]
        squared = attention @ pull
        return squared / 2, attention * (pull - squared)
    probs = np.concatenate(
        [probs[count.rows] / probs[count.rows].sum() for count in counts]
    )
    if not (apart := np.ptp(middles)) <= WIDEST:
        raise argument_error(
            "params",
            apart,
            f"scores up to {WIDEST:g} apart (the largest difference is shown)",
        )
    if sum(count.number for count in counts) == 1:  # one token has all attention
        return np.dot(probs, own) / 2, 0 * scores

    def mean(s: arb) -> arb:  # of e^(-s S) over prompts
        each = (probs * np.exp(-s * weight))[:, None]
        factors = (
            _powers(each[count.rows].sum(axis=0), count, 0)[0][0] for count in counts
        )
        return math.prod(factors, start=arb(1))

    def rest(k: int) -> arb:  # what nodes beyond 2^k leave out
        return mean(unit * ((1 - shift) * arb(2) ** k - shift)) / shift**3

    size = max(abs(each).upper() for each in (*form.flat, *own))
    shift = arb(1) / 16
    # a few to spare
    small = max(8, math.ceil(digits + math.log2(max(float(size), 1e-300)))) + 6
    unit = arb(2) ** -bisect_left(
        range(64), True, key=lambda k: bool(mean(-(arb(2) ** -k)) < arb(NATS).exp())
    )
    powers = range(64 + math.ceil(apart / math.log(2.0)))
    far = bisect_left(
        powers, True, key=lambda k: bool(rest(k) < arb(2) ** -(small + 8))
    )
    t, jacobian, errors = _rule(small, far * math.log(2.0))
    loss, gradient = _sums(probs, weight, form, own, counts, t * unit, jacobian)
    grown = mean(-unit)
    left = rest(far)
    two, three = (grown * error + (1 + error) * left for error in errors)
    return loss + arb(0, size * two), gradient + arb(0, size * (two + three))


def _rule(bits: int, far: float) -> tuple[Balls, Balls, list[arb]]:
    """Return nodes t up to e^far at least, weights, and errors for S^-2 and S^-3: times E e^σ some 2^-bits."""
    wanted = bits * math.log(2.0) + NATS
    step = (
        2.0
        * math.pi
        * THETA
        / (wanted + math.log(2.0) - 4.0 * math.log(math.cos(THETA)))
    )
    # x - e^-x is below half the logarithm of the error
    first = -math.ceil(math.log(0.5 * wanted) / step)
    # one node more than needed, for these are doubles
    beyond = math.ceil((far + math.exp(-far)) / step) + 2
    x = balls(np.arange(first, beyond)) * arb(step)
    left = np.exp(-x)
    theta = arb(THETA)
    t = np.exp(x - left)
    apart = 2 / ((2 * arb.pi() * theta / arb(step)).exp() - 1)
    return (
        t,
        (left + 1) * arb(step),
        [apart / theta.cos() ** (n + 1) + t[0] ** n for n in (2, 3)],
    )


def _powers(mean: Balls, count: TokenCount, order: int = 3) -> Balls:
    """Return E[n (n - 1) ... (n - k + 1) G^(n - k)] for k = 0 ... order: n is the number, or all up to it."""
    # G + ε
    power = np.frompyfunc(lambda mean: arb_series([mean, 1], prec=order + 1), 1, 1)(
        mean
    )

    def summed(n: int) -> Balls:  # Σ_{n <= 2M} = (1 + G^M) Σ_{n <= M}
        half = summed(n // 2) if n > 1 else power * 0
        return half + half * power ** (n // 2) + (power**n if n % 2 else 0)

    n = int(count.number)
    total = summed(n) / n if count.each else power**n
    return np.array(
        [[each[k] * math.factorial(k) for each in total] for k in range(order + 1)]
    )


def _sums(
    probs: Balls,
    weight: Balls,
    form: Balls,
    own: Balls,
    counts: Sequence[TokenCount],
    s: Balls,
    jacobian: Balls,
) -> tuple[arb, Balls]:
    """Sum over some s the terms b C b of two kinds, and b y E|e|^2 of one, where y = s w and b = π y e^-y."""
    rows = [count.rows for count in counts]
    kinds = range(len(counts))
    y = weight[:, None] * s
    mass = probs[:, None] * np.exp(-y)
    b = y * mass
    orders = [
        _powers(mass[each].sum(axis=0), count)
        for each, count in zip(rows, counts, strict=True)
    ]
    pairs = [
        ((k, m), b[rows[k]] * product(form[rows[k], rows[m]], b[rows[m]]))
        for k in kinds
        for m in kinds
    ]
    terms = [
        *pairs,
        *(((k,), b[each] * y[each] * own[each, None]) for k, each in enumerate(rows)),
    ]
    totals = [(of, array.sum(axis=0)) for of, array in terms]

    def change(
        of: tuple[int, ...],
    ) -> Balls:  # of the product of all generating functions
        return math.prod(
            (each[of.count(k)] for k, each in enumerate(orders)), start=jacobian
        )

    gradient = 0 * weight
    for k, here in enumerate(
        rows
    ):  # the slope in a score turns b into b (1 - y), b y into b y (2 - y), G into -b
        falls = sum(change((*of, k)) * total for of, total in totals)
        gradient[here] -= product(b[here], falls[:, None])[:, 0] / 2
    for of, array in terms:
        rises, falls = product(array, np.stack([change(of), change(of) * s], axis=1)).T
        gradient[rows[of[0]]] += rises - weight[rows[of[0]]] * falls * len(of) / 2
    return sum((change(of) * total).sum() for of, total in totals) / 2, gradient


def merged(risk: MergedRisk, params: Balls) -> tuple[arb, Balls]:
    """Loss ½ tr Λq(ΓMΓᵀ - ΓΛW - WΛΓᵀ + W) and its gradient Λq(ΓM - WΛ), from the moments of the prompts."""
    reach, tasks, query, second = second_moments(
        risk.law if params.ndim == 1 else risk.law.dense
    )
    slope = product(params, second) - reach.T
    return (query * (product(slope - reach.T, params.T) + tasks)).sum() / 2, product(
        query, slope
    )


def second_moments(law: PromptLaw) -> tuple[Balls, Balls, Balls, Balls]:
    """Return ΛW, W, Λ_q and M = ΛWΛ(1 + 1/N) + (tr ΛW + σ²)Λ/N: matrices, or their diagonals."""
    tokens, tasks, query = (balls(each) for each in law.moments)
    reach = product(tokens, tasks)
    second = product(reach, tokens)
    scatter = second + ((tokens * tasks.T).sum() + arb(law.noise) ** 2) * tokens
    return reach, tasks, query, second + scatter / arb(law.N)
