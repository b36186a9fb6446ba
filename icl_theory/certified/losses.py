"""Losses and gradients in balls, by a rule with a proved error.

`enclosed` takes a risk and its parameters. Coordinates are undone by the chain rule
(`_evaluated`), every other risk becomes a list of queries (`_of_tokens`,
`_of_features`), and `moments` integrates each of them. Letters and proofs are those of
docs/proved.md, "The integral over tokens".
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from flint import arb, arb_mat, arb_series, ctx
from numpy.typing import NDArray

from icl_theory._validate import Array, argument_error
from icl_theory.engine.pullback import Embedding, Factored, Linear, Pullback
from icl_theory.engine.risk import Risk
from icl_theory.engine.starts import Identity
from icl_theory.papers.linear_attention.law import PromptLaw
from icl_theory.papers.linear_attention.risks import Heads, MergedRisk, Pair
from icl_theory.regression.risks.exchangeable import ExchangeableRisk
from icl_theory.regression.risks.population import PopulationRisk
from icl_theory.regression.risks.symmetric import SymmetricRisk
from icl_theory.tokens.generating import TokenCount
from icl_theory.tokens.lengths import UniformLengths
from icl_theory.tokens.risk import TokenRisk

Balls = NDArray[Any]  # of arb
# Maps that consist of sums and products, which balls can stand for.
MAPS = (Embedding, Factored, Identity, Linear, Heads, Pair)
RISKS = (
    "a TokenRisk, a risk of regression with features, or of linear attention, "
    "also in other coordinates"
)
WIDEST = 2000.0  # largest difference of scores: the number of nodes grows with it
THETA = 1.5  # θ of the bound on the discretisation
NATS = 1.0  # E e^σ is at most e^NATS
SHIFT = 16  # 1/δ of the bound on the nodes on the right


class Query(NamedTuple):
    """A query with the nodes of its tokens, as `moments` takes them."""

    share: arb  # its probability, up to a factor that all queries share
    places: NDArray[np.intp]  # of the nodes' scores among all scores, (U,)
    probs: Balls  # of the nodes, (U,), up to a factor for each kind of tokens
    form: Balls  # C, the mean products of errors, (U, U)
    own: Balls  # the mean squares of errors, (U,)
    counts: Sequence[TokenCount]  # empty if prompts are infinite


def balls(values: Any) -> Balls:
    """Return an array of balls; doubles and integers are taken as they are, exactly."""
    return np.asarray(np.frompyfunc(arb, 1, 1)(values), dtype=object)


def product(left: Balls, right: Balls) -> Balls:
    """Return the product of two matrices, or of two diagonals.

    flint multiplies matrices of balls some ten times as fast as NumPy.
    """
    if left.ndim == 1:
        return left * right
    flat = (_flint_matrix(left) * _flint_matrix(right)).entries()
    return np.reshape(np.array(flat, dtype=object), (len(left), right.shape[1]))


def _flint_matrix(matrix: Balls) -> arb_mat:
    return arb_mat(len(matrix), matrix.shape[1], matrix.ravel().tolist())


def enclosed(
    risk: Risk, params: Array, bits: int, gamma: arb | None = None
) -> tuple[arb, Balls]:
    """Enclose the loss and its gradient with about ``bits`` bits.

    Parameters
    ----------
    risk : Risk
        The risk.
    params : ndarray
        Its parameters, which are taken as exact.
    bits : int
        Relative precision of the loss, and of the largest entry of the gradient.
    gamma : arb, optional
        The variogram of an `ExchangeableRisk`, if it is known better than as a double.

    Returns
    -------
    loss : arb
        The loss.
    gradient : ndarray of arb
        The gradient, of the shape of ``params``.
    """
    # These rough sizes decide how fine the quadrature is, not whether it is right.
    with np.errstate(all="ignore"):
        loss, gradient = risk.evaluate(np.asarray(params))
    sizes = [abs(loss), float(np.abs(gradient).max())]
    sizes = [size for size in sizes if 1e-200 < size < math.inf]
    if not sizes:
        sizes = [1.0]
    # The smaller of loss and gradient has so many bits less than the larger. Only what
    # exceeds 16 bits is made up for by a higher precision.
    lost = round(math.log2(max(sizes) / min(sizes)))
    # Rounding loses some of the bits, so the quadrature is made for 0.7 of them.
    digits = 0.7 * bits - math.log2(min(sizes))
    with ctx.workprec(bits + max(0, lost - 16)):
        return _evaluated(risk, balls(params), digits, gamma)


def _evaluated(
    risk: Risk, params: Balls, digits: float, gamma: arb | None
) -> tuple[arb, Balls]:
    """Return loss and gradient at the precision of the context."""
    if isinstance(risk, Pullback):
        return _in_coordinates(risk, params, digits, gamma)
    # isinstance would not do here and below: a subclass may have another loss.
    if type(risk) is MergedRisk:
        return merged(risk, params)
    queries = _of_tokens(risk) if type(risk) is TokenRisk else _of_features(risk, gamma)
    # The last score belongs to no parameter: an ExchangeableRisk trains the gap between
    # the query's feature and the others, whose scores are 0.
    scores = np.append(params, balls([0.0]))
    total_share = arb(0)
    loss = arb(0)
    gradient = 0 * scores
    for query in queries:
        query_loss, slope = moments(
            scores[query.places],
            digits,
            query.probs,
            query.form,
            query.own,
            query.counts,
        )
        total_share = total_share + query.share
        loss = loss + query.share * query_loss
        gradient[query.places] += query.share * slope
    gradient = (gradient[:-1] / total_share).reshape(params.shape)
    # [()] makes a number of an array without axes
    return loss / total_share, gradient[()]


def _in_coordinates(
    risk: Pullback, params: Balls, digits: float, gamma: arb | None
) -> tuple[arb, Balls]:
    """Return loss and gradient of a risk in other coordinates, by the chain rule."""
    if not isinstance(risk.map, MAPS):
        names = ", ".join(allowed.__name__ for allowed in MAPS)
        raise argument_error("map", type(risk.map).__name__, f"one of {names}")
    inner_params = balls(risk.map.inward(params))
    loss, inner_gradient = _evaluated(risk.risk, inner_params, digits, gamma)
    return loss, balls(risk.map.outward(params, inner_gradient))


# ---- the queries of a risk


def _of_tokens(risk: TokenRisk) -> Iterator[Query]:
    """Yield the queries of a risk over tokens."""
    if risk.grow_together:
        raise argument_error("kinds", risk.kinds, "kinds that do not grow together")
    U, Q = risk.own.shape
    probs = balls(risk.probs)
    for q, share in enumerate(balls(risk.asked)):
        if risk.second is None:
            values = [_of_query(kind.values, q) for kind in risk.kinds]
            errors = np.concatenate(values) - _of_query(risk.target, q)
            form = product(errors, errors.T)
        else:
            form = _of_query(np.reshape(risk.second, (U, U, -1)), q)
        spreads = [_of_query(kind.spread, q) for kind in risk.kinds]
        own = np.diagonal(form) + np.concatenate(spreads)
        yield Query(share, np.arange(U) * Q + q, probs, form, own, risk.counts)


def _of_query(values: Array, q: int) -> Balls:
    """Return the entries of query q, as balls.

    The last axis has an entry for each query, or one for all of them.
    """
    return balls(values[..., q % values.shape[-1]])


def _of_features(risk: Any, gamma: arb | None) -> Iterator[Query]:
    """Yield the queries of a risk over features.

    The nodes are the query's feature, then the groups of other features: one group for
    each feature, or one for all of them.
    """
    places, sizes, variogram = _groups_of(risk, gamma)
    counts = [] if math.isinf(risk.N) else [TokenCount(risk.N)]
    groups = np.arange(len(sizes))
    probs = balls(getattr(risk, "probs", [1.0]))
    for g in groups:
        # The query's feature is missing among the others of its group, which may then
        # be empty.
        members = np.append(1.0, sizes - (groups == g))
        present = np.flatnonzero(members)
        group_of_node = np.append(g, groups)[present]
        members = balls(members[present])
        # Two tokens of a group show the same feature with probability 1/members.
        differs = 1 - np.diag(1 / members)
        pairs = variogram[np.ix_(group_of_node, group_of_node)] * differs
        form = pairs[0][:, None] + pairs[0] - pairs
        own = 2 * pairs[0] + arb(risk.noise) ** 2
        yield Query(
            share=probs[g] * int(sizes[g]),
            places=places[g][present],
            probs=probs[group_of_node] * members,
            form=form,
            own=own,
            counts=counts,
        )


class _Groups(NamedTuple):
    """The groups of features of a risk."""

    places: Any  # of the scores of group g: the query's feature, then the G groups
    sizes: Array  # features in each group, (G,)
    variogram: Balls  # between features of two groups, (G, G)


def _groups_of(risk: Any, gamma: arb | None) -> _Groups:
    """Return the groups of a risk. An exchangeable one may have its exact ``gamma``."""
    places = np.arange(risk.initial.size).reshape(risk.initial.shape)
    if type(risk) is PopulationRisk:
        with_own = np.column_stack([places.diagonal(), places.T])
        return _Groups(with_own, np.ones(len(places)), balls(risk._form.variogram))
    if type(risk) is SymmetricRisk:
        return _Groups(places, risk.sizes, balls(risk.variogram))
    if type(risk) is ExchangeableRisk:
        variogram = balls([[risk.gamma if gamma is None else gamma]])
        return _Groups(np.array([[0, 1]]), np.array([risk.K]), variogram)
    raise argument_error("risk", type(risk).__name__, RISKS)


# ---- the integral over tokens


def moments(
    scores: Balls,
    digits: float,
    probs: Balls,
    form: Balls,
    own: Balls,
    counts: Sequence[TokenCount],
) -> tuple[arb, Balls]:
    """Return the loss of a query over U nodes and its gradient in their scores, (U,).

    Parameters
    ----------
    scores : ndarray of arb, (U,)
        Scores of the nodes.
    digits : float
        The error of the quadrature is about 2^-digits, in the units of the loss.
    probs, form, own, counts
        As in `Query`.
    """
    middles = np.array([float(score.mid()) for score in scores])
    weight = np.exp(scores - arb(middles.max()))
    if not counts:
        return _infinite_prompts(weight, probs, form)
    per_kind = [probs[count.rows] / probs[count.rows].sum() for count in counts]
    probs = np.concatenate(per_kind)
    score_range = np.ptp(middles)
    # written so that NaN is refused, too
    if not score_range <= WIDEST:
        raise argument_error(
            "params",
            score_range,
            f"scores up to {WIDEST:g} apart (the largest difference is shown)",
        )
    if sum(count.number for count in counts) == 1:
        # The only token has all attention, whatever its score.
        return np.dot(probs, own) / 2, 0 * scores

    def mean_exponential(s: arb) -> arb:
        """E e^(-s S) over prompts: a product of generating functions."""
        mass = (probs * np.exp(-s * weight))[:, None]
        mean = arb(1)
        for count in counts:
            mean = mean * _powers(mass[count.rows].sum(axis=0), count, 0)[0][0]
        return mean

    delta = arb(1) / SHIFT

    def right_nodes(k: int) -> arb:
        """Bound the contribution of the nodes with t > 2^k, for the powers 2 and 3."""
        return mean_exponential(unit * ((1 - delta) * arb(2) ** k - delta)) / delta**3

    largest = max(abs(entry).upper() for entry in (*form.flat, *own))
    # The last six bits are spare.
    bits = max(8, math.ceil(digits + math.log2(max(float(largest), 1e-300)))) + 6
    # 1 over the least power of 2, S̄, with E e^(S/S̄) < e
    exponent = bisect_left(
        range(64),
        True,
        key=lambda k: bool(mean_exponential(-(arb(2) ** -k)) < arb(NATS).exp()),
    )
    unit = arb(2) ** -exponent
    # The least power of 2 beyond which the nodes are negligible: they add less than a
    # 256th of the error of the rule.
    farthest = bisect_left(
        range(64 + math.ceil(score_range / math.log(2.0))),
        True,
        key=lambda k: bool(right_nodes(k) < arb(2) ** -(bits + 8)),
    )
    t, jacobian, errors = _rule(bits, farthest * math.log(2.0))
    loss, gradient = _sums(probs, weight, form, own, counts, t * unit, jacobian)
    mean_growth = mean_exponential(-unit)
    right = right_nodes(farthest)
    error_2, error_3 = (mean_growth * error + (1 + error) * right for error in errors)
    # A loss is at most half of the largest entry C of the forms, and each of the two
    # terms of its gradient, with S^-2 and S^-3, at most C.
    loss_error = arb(0, largest * error_2)
    gradient_error = arb(0, largest * (error_2 + error_3))
    return loss + loss_error, gradient + gradient_error


def _infinite_prompts(weight: Balls, probs: Balls, form: Balls) -> tuple[arb, Balls]:
    """Return the loss ½ aᵀCa of the attention a, and its gradient a (Ca - aᵀCa)."""
    attention = probs * weight / (probs @ weight)
    pull = product(form, attention[:, None])[:, 0]
    square = attention @ pull
    return square / 2, attention * (pull - square)


def _rule(bits: int, far: float) -> tuple[Balls, Balls, list[arb]]:
    """Return the trapezoid rule for S^-2 and S^-3.

    Parameters
    ----------
    bits : int
        The errors, times E e^σ, are some 2^-bits.
    far : float
        The nodes t go up to e^far at least.

    Returns
    -------
    t : ndarray of arb
        Nodes.
    jacobian : ndarray of arb
        Weights, (1 + e^-x) times the step.
    errors : list of arb
        For S^-2 and for S^-3: the errors of the discretisation and of the nodes on the
        left.
    """
    wanted = bits * math.log(2.0) + NATS
    room = wanted + math.log(2.0) - 4.0 * math.log(math.cos(THETA))
    step = 2.0 * math.pi * THETA / room
    # The first x is so far left that x - e^-x is below half the logarithm of the error.
    first = -math.ceil(math.log(0.5 * wanted) / step)
    # Doubles computed the last one, so one node more than needed is taken.
    beyond = math.ceil((far + math.exp(-far)) / step) + 2
    x = balls(np.arange(first, beyond)) * arb(step)
    falling = np.exp(-x)
    t = np.exp(x - falling)
    jacobian = (falling + 1) * arb(step)
    theta = arb(THETA)
    alias = 2 / ((2 * arb.pi() * theta / arb(step)).exp() - 1)
    errors = []
    for n in (2, 3):
        discretisation = alias / theta.cos() ** (n + 1)
        left_nodes = t[0] ** n
        errors.append(discretisation + left_nodes)
    return t, jacobian, errors


def _powers(mean: Balls, count: TokenCount, order: int = 3) -> Balls:
    """Return E[n (n - 1) ... (n - k + 1) G^(n - k)] for k = 0 ... ``order``.

    These are the derivatives of E G^n, for a fixed number n of tokens or a uniform law.
    """
    # The coefficients of (G + ε)^n are the derivatives over k!.
    series = np.frompyfunc(lambda G: arb_series([G, 1], prec=order + 1), 1, 1)
    power = series(mean)

    def sum_of_powers(n: int) -> Balls:
        """Sum of G^m for 1 <= m <= n, by Σ_{m <= 2M} = (1 + G^M) Σ_{m <= M}."""
        if n == 0:
            return power * 0
        half = sum_of_powers(n // 2)
        last = power**n if n % 2 else 0
        return half + half * power ** (n // 2) + last

    if count.law is None:
        total = power ** int(count.number)
    elif isinstance(count.law, UniformLengths):
        first = count.law.least
        last = int(count.law.most)
        total = sum_of_powers(last) - sum_of_powers(max(first, 1) - 1)
        if first == 0:
            total = total + 1
        total = total / (last - first + 1)
    else:
        raise argument_error("number", count.law, "an integer or Lengths.uniform")
    derivatives = np.empty((order + 1, len(total)), dtype=object)
    for k in range(order + 1):
        for place, entry in enumerate(total):
            derivatives[k, place] = entry[k] * math.factorial(k)
    return derivatives


class _Term(NamedTuple):
    """A term of the integrand, before it is summed over its nodes."""

    kinds: tuple[int, ...]  # whose generating functions are differentiated
    entries: Balls  # for the nodes of the first of them, at each s, (nodes, S)

    @property
    def total(self) -> Balls:
        return self.entries.sum(axis=0)


def _sums(
    probs: Balls,
    weight: Balls,
    form: Balls,
    own: Balls,
    counts: Sequence[TokenCount],
    s: Balls,
    jacobian: Balls,
) -> tuple[arb, Balls]:
    """Sum the integrand of the loss, and of its gradient, over the nodes s of a rule.

    With y = s w, b = π y e^-y, G = Σ π e^-y for each kind of tokens, and P the product
    of the generating functions E G^n, the integrand of twice the loss is the sum of
    ∂_κ ∂_λ P b_κ C b_λ over pairs of kinds and of ∂_κ P b y E|e|² over kinds.
    """
    rows = [count.rows for count in counts]
    kinds = range(len(counts))
    y = weight[:, None] * s
    mass = probs[:, None] * np.exp(-y)
    b = y * mass
    derivatives = []
    for kind_rows, count in zip(rows, counts, strict=True):
        derivatives.append(_powers(mass[kind_rows].sum(axis=0), count))

    def derivative_of_product(variables: tuple[int, ...]) -> Balls:
        """P differentiated by the G of some kinds, times the Jacobian."""
        result = jacobian
        for k in kinds:
            result = result * derivatives[k][variables.count(k)]
        return result

    terms = []
    for k in kinds:
        for m in kinds:
            pull = product(form[rows[k], rows[m]], b[rows[m]])
            terms.append(_Term((k, m), b[rows[k]] * pull))
    for k in kinds:
        squares = b[rows[k]] * y[rows[k]] * own[rows[k], None]
        terms.append(_Term((k,), squares))
    totals = [term.total for term in terms]

    twice_loss = arb(0)
    for term, total in zip(terms, totals, strict=True):
        twice_loss = twice_loss + (derivative_of_product(term.kinds) * total).sum()

    # The derivative in a score turns G into -b, b into b (1 - y), and b y into
    # b y (2 - y).
    gradient = 0 * weight
    for k in kinds:
        by_G = 0 * jacobian
        for term, total in zip(terms, totals, strict=True):
            by_G = by_G + derivative_of_product((*term.kinds, k)) * total
        gradient[rows[k]] -= product(b[rows[k]], by_G[:, None])[:, 0] / 2
    for term in terms:
        change = derivative_of_product(term.kinds)
        columns = np.stack([change, change * s], axis=1)
        direct, with_s = product(term.entries, columns).T
        nodes = rows[term.kinds[0]]
        gradient[nodes] += direct - weight[nodes] * with_s * len(term.kinds) / 2
    return twice_loss / 2, gradient


# ---- linear attention


def merged(risk: MergedRisk, params: Balls) -> tuple[arb, Balls]:
    """Return loss and gradient of merged linear attention from second moments.

    The loss is ½ tr Λ_q((ΓM - 2WΛ)Γᵀ + W), and its gradient Λ_q(ΓM - WΛ). Both ΓΛW and
    its transpose WΛΓᵀ stand in the loss; their traces with the symmetric Λ_q are equal.
    A vector of parameters is the diagonal of Γ, and all matrices are diagonals then.
    """
    law = risk.law if params.ndim == 1 else risk.law.dense
    tokens_tasks, tasks, query, M = second_moments(law)
    slope = product(params, M) - tokens_tasks.T
    form = product(slope - tokens_tasks.T, params.T) + tasks
    return (query * form).sum() / 2, product(query, slope)


def second_moments(law: PromptLaw) -> tuple[Balls, Balls, Balls, Balls]:
    """Return ΛW, W, Λ_q and M = ΛWΛ(1 + 1/N) + (tr ΛW + σ²)Λ/N, or their diagonals."""
    tokens, tasks, query = (balls(moment) for moment in law.moments)
    tokens_tasks = product(tokens, tasks)
    infinite = product(tokens_tasks, tokens)
    label_variance = (tokens * tasks.T).sum() + arb(law.noise) ** 2
    scatter = infinite + label_variance * tokens
    return tokens_tasks, tasks, query, infinite + scatter / arb(law.N)
