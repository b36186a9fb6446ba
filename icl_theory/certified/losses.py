"""Losses and gradients in balls, by a rule with a proved error.

`enclosed` takes a risk and its parameters. For a risk in other coordinates, the chain
rule leads to the risk inside (``_in_coordinates``). Linear attention has a closed form
(`merged`). Any other risk becomes a list of queries (``_of_tokens``,
``_of_features``), and `moments` integrates the loss of each query.

A *ball* is a number with a bound on its error, and stands for all numbers within the
bound. A comparison of balls is True only if it holds for all numbers in them.

With finite prompts a loss is the mean of ‖T‖²/(2 S²) over prompts. Here S is the sum of
the weights e^score of the tokens of a prompt, and T the sum of their errors, value
minus target, times these weights. A gradient also has means of quotients by S³. Both
come from

    S^-n = 1/(Γ(n) S̄^n) ∫ (1 + e^-x) t^n e^(-σ t) dx,  t = e^(x - e^-x),  σ = S/S̄,

for any number S̄ > 0, with the gamma function Γ(n). The trapezoid rule in x with the
step h has an error that is proved (docs/proved.md, "The integral over tokens"). The
bound on the error has three parts. The first is for the discretisation, and contains a
number θ. The second is for the nodes that are left out on the left. The third is for
the nodes that are left out on the right, beyond t = t1, and contains a number δ. The
mean E e^σ is over prompts.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from flint import arb, arb_mat, arb_series, ctx
from numpy.typing import NDArray

from icl_theory._validate import Array, argument_error
from icl_theory.engine.pullback import (
    Embedding,
    Factored,
    Linear,
    Pullback,
    core_risk,
)
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

Balls = NDArray[Any]  # arrays of arb, the balls of flint
# Changes of coordinates that consist of sums and products. Their code takes arrays of
# balls as it takes arrays of doubles.
MAPS = (Embedding, Factored, Identity, Linear, Heads, Pair)
RISKS = (
    "a TokenRisk, a risk of regression with features, or of linear attention, "
    "also in other coordinates"
)
# The largest difference of two scores that is allowed. The number of nodes of the
# quadrature grows with the difference.
WIDEST = 2000.0
# θ of the bound on the discretisation. θ may be any number below π/2. At 60 to 250
# bits, the step that this θ allows is within 1 % of the largest that any θ allows.
THETA = 1.5
# S̄ is chosen so that E e^σ is at most e^NATS. With a larger value S̄ is smaller, so that
# the rule needs fewer nodes on the right, but its errors grow by the factor E e^σ.
NATS = 1.0
# 1/δ of the bound on the nodes on the right. With a larger value the bound decays
# almost as fast as the nodes themselves, but begins at δ^-3.
SHIFT = 16
# Bits that rounding may take from the smaller of loss and gradient. If it takes more,
# the precision is raised.
BITS_TO_LOSE = 16
# Share of the bits that the quadrature has to reach. The quadrature cannot reach all
# bits, because rounding loses some of them. The share is a cautious choice.
QUADRATURE_SHARE = 0.7
# Bits by which the quadrature exceeds the bits that it is asked for, because its error
# is a sum of several parts. A cautious choice: each further bit costs some nodes.
SPARE_BITS = 6
# The quadrature has at least this many bits, even if an error larger than the loss is
# allowed: the formula for its step, in `_rule`, holds for small errors.
FEWEST_BITS = 8
# Losses and gradients up to this size count as zero when the precision is chosen. The
# ratio of two larger sizes does not overflow.
SMALLEST_SIZE = 1e-200
# If all entries of the error forms are zero, this number stands for the largest one,
# because zero has no logarithm.
TINY = 1e-300


class Query(NamedTuple):
    """A query with the U nodes of its tokens, as `moments` takes them.

    A node is one of finitely many outcomes of a token; its tokens have the same score.
    """

    share: arb  # its probability, up to a factor common to all queries
    # (U,): where the scores of the nodes stand in the flattened scores of the risk
    score_indices: NDArray[np.intp]
    probs: Balls  # of the nodes, (U,), up to a factor for each kind of tokens
    form: Balls  # C, the mean products of the errors of two tokens, (U, U)
    squared_errors: Balls  # E|e|², the mean squared error of a token, (U,)
    counts: Sequence[TokenCount]  # one for each kind; empty if prompts are infinite


def balls(values: Any) -> Balls:
    """Return an array of balls; doubles and integers are taken as they are, exactly."""
    return np.asarray(np.frompyfunc(arb, 1, 1)(values), dtype=object)


def product(left: Balls, right: Balls) -> Balls:
    """Return the product of two matrices, or of two diagonals given as vectors.

    flint multiplies matrices of balls some ten times as fast as NumPy.
    """
    if left.ndim == 1:
        return left * right
    entries = (_flint_matrix(left) * _flint_matrix(right)).entries()
    return np.reshape(np.array(entries, dtype=object), (len(left), right.shape[1]))


def _flint_matrix(matrix: Balls) -> arb_mat:
    """Return a NumPy matrix of balls as a matrix of flint."""
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
        The variogram of an `ExchangeableRisk`, if it is known more exactly than as a
        double.

    Returns
    -------
    loss : arb
        The loss.
    gradient : ndarray of arb
        The gradient, of the shape of ``params``.
    """
    # These rough sizes, from doubles, decide how fine the quadrature is, not whether it
    # is right. So an overflow needs no warning.
    with np.errstate(all="ignore"):
        loss, gradient = risk.evaluate(np.asarray(params))
    sizes = [abs(loss), float(np.abs(gradient).max())]
    # A size that is zero, nearly zero or not finite says nothing about precision.
    sizes = [size for size in sizes if SMALLEST_SIZE < size < math.inf]
    if not sizes:
        sizes = [1.0]
    # Loss and gradient have similar absolute errors, so the smaller one has fewer
    # correct bits than the larger one, by this number.
    lost_bits = round(math.log2(max(sizes) / min(sizes)))
    # The quadrature takes an absolute error 2^-error_bits, which is to be the smaller
    # size times 2^(-QUADRATURE_SHARE bits).
    error_bits = QUADRATURE_SHARE * bits - math.log2(min(sizes))
    with ctx.workprec(bits + max(0, lost_bits - BITS_TO_LOSE)):
        return _evaluated(risk, balls(params), error_bits, gamma)


def basis(risk: Risk, is_exact: bool) -> str:
    """Say what the proofs of losses and gradients rest on.

    ``is_exact`` says that the parameters L and Δ are known, and not only the rounded
    numbers of the risk.
    """
    if is_exact:
        numbers = "parameters L and Δ and the doubles of the state"
    else:
        numbers = "doubles of the risk and of the state"
    core = core_risk(risk)  # the risk inside all changes of coordinates
    # Prompts of finite length need the integral over tokens, except in linear
    # attention, whose loss is a function of second moments. A TokenRisk has no N, and
    # its prompts are always finite: any finite default marks them as such.
    has_finite_prompts = math.isfinite(getattr(core, "N", 0.0))
    if has_finite_prompts and not isinstance(core, MergedRisk):
        method = "sums in balls with the proved error of their rule"
    else:
        method = "closed formulas in balls"
    return f"the {numbers}, taken as exact, and {method}"


def _evaluated(
    risk: Risk, params: Balls, error_bits: float, gamma: arb | None
) -> tuple[arb, Balls]:
    """Return loss and gradient at the precision of the context.

    A quadrature, if there is one, has an error of about 2^-error_bits.
    """
    if isinstance(risk, Pullback):
        return _in_coordinates(risk, params, error_bits, gamma)
    # Types are compared exactly here and below, and not by isinstance: a subclass may
    # have another loss.
    if type(risk) is MergedRisk:
        return merged(risk, params)
    queries = _of_tokens(risk) if type(risk) is TokenRisk else _of_features(risk, gamma)
    # The parameters are scores, which np.append flattens. The last score, 0, belongs to
    # no parameter. An ExchangeableRisk needs it: its only parameter is the score of the
    # query's feature, and all other features have the score 0.
    scores = np.append(params, balls([0.0]))
    total_share = arb(0)
    loss = arb(0)
    gradient = 0 * scores
    for query in queries:
        query_loss, query_gradient = moments(
            scores[query.score_indices],
            error_bits,
            query.probs,
            query.form,
            query.squared_errors,
            query.counts,
        )
        total_share = total_share + query.share
        loss = loss + query.share * query_loss
        # The indices of one query are distinct, so += adds each entry.
        gradient[query.score_indices] += query.share * query_gradient
    gradient = (gradient[:-1] / total_share).reshape(params.shape)
    # [()] turns an array without axes into a number.
    return loss / total_share, gradient[()]


def _in_coordinates(
    risk: Pullback, params: Balls, error_bits: float, gamma: arb | None
) -> tuple[arb, Balls]:
    """Return loss and gradient of a risk in other coordinates, by the chain rule."""
    if not isinstance(risk.map, MAPS):
        names = ", ".join(allowed.__name__ for allowed in MAPS)
        raise argument_error("map", type(risk.map).__name__, f"one of {names}")
    # `inward` gives the parameters of the inner risk, and `outward` applies the
    # transposed derivative of the map to the gradient with respect to them.
    inner_params = balls(risk.map.inward(params))
    loss, inner_gradient = _evaluated(risk.risk, inner_params, error_bits, gamma)
    return loss, balls(risk.map.outward(params, inner_gradient))


# ---- the queries of a risk


def _of_tokens(risk: TokenRisk) -> Iterator[Query]:
    """Yield the queries of a risk over tokens, with U nodes of all kinds together.

    ``risk.asked`` has the probabilities of the Q queries. The error of a token is its
    value minus the target. ``risk.second``, if given, has the mean products of the
    errors of two nodes in place of values.
    """
    # The numbers of tokens of kinds that grow together depend on each other, so that
    # their generating function is not a product, as `moments` assumes.
    if risk.grow_together:
        raise argument_error("kinds", risk.kinds, "kinds that do not grow together")
    U, Q = risk.mean_square.shape
    probs = balls(risk.probs)
    for q, share in enumerate(balls(risk.asked)):
        if risk.second is None:
            # (U, D): the coordinates of the mean error at each node
            values = [_of_query(kind.values, q) for kind in risk.kinds]
            errors = np.concatenate(values) - _of_query(risk.target, q)
            form = product(errors, errors.T)
        else:
            # The last axis, of queries, may be missing.
            form = _of_query(np.reshape(risk.second, (U, U, -1)), q)
        # The variances of values around the mean values of their nodes. The square of
        # one token's error contains them; the product of two tokens' errors does not.
        spreads = [_of_query(kind.spread, q) for kind in risk.kinds]
        yield Query(
            share=share,
            # column q of the scores, (U, Q), which are flattened row by row
            score_indices=np.arange(U) * Q + q,
            probs=probs,
            form=form,
            squared_errors=np.diagonal(form) + np.concatenate(spreads),
            counts=risk.counts,
        )


def _of_query(values: Array, q: int) -> Balls:
    """Return the entries of query q, as balls.

    The last axis has an entry for each query, or a single entry for all of them.
    """
    # With a single entry the remainder is 0 for every q.
    return balls(values[..., q % values.shape[-1]])


def _of_features(risk: Any, gamma: arb | None) -> Iterator[Query]:
    """Yield the queries of a risk over features.

    The nodes are the query's feature, then the groups of other features. A group may be
    a single feature, and all features may be one group.
    """
    score_indices, sizes, variogram = _groups_of(risk, gamma)
    counts = [] if math.isinf(risk.N) else [TokenCount(risk.N)]
    groups = np.arange(len(sizes))
    # The probability of each feature of a group, up to a factor. An ExchangeableRisk
    # has no ``probs``: it has one group, whose features have equal probabilities.
    probs = balls(getattr(risk, "probs", [1.0]))
    for g in groups:
        # The number of features of each node. The query's feature, node 0, is missing
        # among the others of its group, which may then be empty.
        n_features = np.append(1.0, sizes - (groups == g))
        present = np.flatnonzero(n_features)
        group_of_node = np.append(g, groups)[present]
        members = balls(n_features[present])
        # The probability that tokens of two nodes show different features: two tokens
        # of one node show the same feature with probability 1/members.
        differs = 1 - np.diag(1 / members)
        # Γ, the mean variogram of the features of two tokens. Node 0 is the query's
        # feature k, so that C_mj = Γ_mk + Γ_kj - Γ_mj, and E|e_m|² = 2 Γ_mk + σ².
        mean_variogram = variogram[np.ix_(group_of_node, group_of_node)] * differs
        from_query = mean_variogram[0]
        form = from_query[:, None] + from_query - mean_variogram
        squared_errors = 2 * from_query + arb(risk.noise) ** 2
        yield Query(
            share=probs[g] * int(sizes[g]),
            score_indices=score_indices[g][present],
            probs=probs[group_of_node] * members,
            form=form,
            squared_errors=squared_errors,
            counts=counts,
        )


class _Groups(NamedTuple):
    """The groups of features of a risk."""

    # Row g, (G + 1,), is for a query of group g. The row says where the scores for this
    # query stand in the flattened scores of the risk: first the score of the query's
    # feature, then the scores of the G groups.
    score_indices: Any
    sizes: Array  # features in each group, (G,)
    variogram: Balls  # between features of two groups, (G, G)


def _groups_of(risk: Any, gamma: arb | None) -> _Groups:
    """Return the groups of a risk.

    If ``gamma`` is given, it replaces the variogram of an `ExchangeableRisk`, which is
    a rounded double.
    """
    indices = np.arange(risk.initial.size).reshape(risk.initial.shape)
    if type(risk) is PopulationRisk:
        # Each feature is a group. Entry (m, k) is the score of feature m for query k.
        with_own = np.column_stack([indices.diagonal(), indices.T])
        return _Groups(with_own, np.ones(len(indices)), balls(risk._form.variogram))
    if type(risk) is SymmetricRisk:
        # The parameters of this risk, (G, G + 1), have the order of ``score_indices``.
        return _Groups(indices, risk.sizes, balls(risk.variogram))
    if type(risk) is ExchangeableRisk:
        variogram = balls([[risk.gamma if gamma is None else gamma]])
        # Score 0 is the gap u, of the query's feature. Score 1 is the constant 0 that
        # `_evaluated` appends, of all others.
        return _Groups(np.array([[0, 1]]), np.array([risk.K]), variogram)
    raise argument_error("risk", type(risk).__name__, RISKS)


# ---- the integral over tokens


def moments(
    scores: Balls,
    error_bits: float,
    probs: Balls,
    form: Balls,
    squared_errors: Balls,
    counts: Sequence[TokenCount],
) -> tuple[arb, Balls]:
    """Return the loss of a query, and its gradient in the scores of the U nodes, (U,).

    Parameters
    ----------
    scores : ndarray of arb, (U,)
        Scores of the nodes.
    error_bits : float
        The error of the quadrature is about 2^-error_bits, in the units of the loss.
    probs, form, squared_errors, counts
        As in `Query`.
    """
    middles = np.array([float(score.mid()) for score in scores])
    # Only ratios of weights matter, so the largest weight is made about 1.
    weight = np.exp(scores - arb(middles.max()))
    if not counts:
        return _infinite_prompts(weight, probs, form)
    # From here on the probabilities of each kind add up to 1.
    probs_by_kind = [probs[count.rows] / probs[count.rows].sum() for count in counts]
    probs = np.concatenate(probs_by_kind)
    score_range = np.ptp(middles)
    # Scores beyond float64 may give the difference ∞ - ∞ = NaN, for which every
    # comparison is False. The negation refuses it, too.
    if not score_range <= WIDEST:
        raise argument_error(
            "params",
            score_range,
            f"scores up to {WIDEST:g} apart (the largest difference is shown)",
        )
    if sum(count.number for count in counts) == 1:
        # The only token has all attention, whatever its score.
        return np.dot(probs, squared_errors) / 2, 0 * scores

    return _by_quadrature(
        score_range, weight, error_bits, probs, form, squared_errors, counts
    )


def _by_quadrature(
    score_range: float,
    weight: Balls,
    error_bits: float,
    probs: Balls,
    form: Balls,
    squared_errors: Balls,
    counts: Sequence[TokenCount],
) -> tuple[arb, Balls]:
    """Return loss and gradient of finite prompts, by the rule with a proved error.

    ``weight`` has the weights e^score of the nodes, scaled so that the largest is about
    1, and ``score_range`` is the largest difference of two scores. The probabilities
    ``probs`` of each kind add up to 1. The other arguments are as in `moments`.
    """
    largest = max(abs(entry).upper() for entry in (*form.flat, *squared_errors))
    # Errors of the rule are relative to the largest entry.
    relative_error_bits = error_bits + math.log2(max(float(largest), TINY))
    bits = max(FEWEST_BITS, math.ceil(relative_error_bits)) + SPARE_BITS
    total_weight = _TotalWeight(probs, weight, counts)
    inverse_scale = _inverse_scale(total_weight)  # 1/S̄
    log2_t1 = _log2_of_last_node(total_weight, inverse_scale, bits, score_range)
    rule = _rule(bits, log_t1=log2_t1 * math.log(2.0))
    s = rule.t * inverse_scale  # t/S̄, so that σ t = s S
    loss, gradient = _sums(
        probs, weight, form, squared_errors, counts, s, rule.jacobian
    )
    # The errors of the rule must be multiplied by E e^σ. The nodes beyond t1 are
    # missing; their share is relative to the sum over all nodes, which may exceed the
    # integral by the error of the rule.
    mean_growth = total_weight.mean_exponential(-inverse_scale)
    missing_share = _right_nodes(total_weight, inverse_scale, log2_t1)
    # The relative errors of the means with S^-2 and with S^-3
    error_2, error_3 = (
        mean_growth * error + (1 + error) * missing_share for error in rule.errors
    )
    # A loss is at most half of the ``largest`` entry, and each of the two terms of its
    # gradient, with S^-2 and S^-3, is at most this entry. Without the factor 1/2 the
    # bound on the error of the loss is simpler, and twice as large as need be.
    loss_error = arb(0, largest * error_2)
    gradient_error = arb(0, largest * (error_2 + error_3))
    return loss + loss_error, gradient + gradient_error


def _infinite_prompts(weight: Balls, probs: Balls, form: Balls) -> tuple[arb, Balls]:
    """Return the loss ½ aᵀCa of the attention a, and its gradient a (Ca - aᵀCa)."""
    a = probs * weight / (probs @ weight)
    Ca = product(form, a[:, None])[:, 0]
    aCa = a @ Ca
    return aCa / 2, a * (Ca - aCa)


class _TotalWeight(NamedTuple):
    """The law of S, the sum of the weights of the tokens of a prompt."""

    probs: Balls  # of the nodes of each kind, (U,)
    weight: Balls  # of the nodes, (U,)
    counts: Sequence[TokenCount]

    def mean_exponential(self, s: arb) -> arb:
        """The mean of e^(-s S) over prompts: a product of generating functions."""
        # (U, 1): `_powers` takes a value of G for each s, and there is one s here.
        mass = (self.probs * np.exp(-s * self.weight))[:, None]
        mean = arb(1)
        for count in self.counts:
            G = mass[count.rows].sum(axis=0)
            (mean_power,) = _powers(G, count, order=0)  # E G^n, (1,)
            mean = mean * mean_power[0]
        return mean


def least(holds: Callable[[int], bool], end: int) -> int:
    """Return the least k in 0 ... ``end`` - 1 for which a condition holds, or ``end``.

    A condition that holds for some k must hold for all larger k, too.
    """
    # The values of the condition are sorted: False comes before True. Bisection finds
    # the first True.
    return bisect_left(range(end), True, key=holds)


def _inverse_scale(total_weight: _TotalWeight) -> arb:
    """Return 1/S̄ for the least S̄ of 1, 2, 4, ... with E e^σ < e^NATS, σ = S/S̄."""

    def is_large_enough(k: int) -> bool:
        mean_growth = total_weight.mean_exponential(-(arb(2) ** -k))
        return bool(mean_growth < arb(NATS).exp())

    # The end is generous: weights are at most 1, so that S̄ is hardly larger than the
    # number of tokens.
    return arb(2) ** -least(is_large_enough, end=64)


def _right_nodes(total_weight: _TotalWeight, inverse_scale: arb, log2_t1: int) -> arb:
    """Bound the shares of the nodes with t > t1 in the means with S^-2 and with S^-3.

    The bound for S^-n is δ^-n E e^(δσ - (1 - δ) σ t1), with σ = S/S̄ and 1/S̄ the
    ``inverse_scale``. As δ < 1, the bound for n = 3 holds for n = 2, too. The function
    ``_by_quadrature`` multiplies the bound by (1 + error), with the error of the rule.
    """
    delta = arb(1) / SHIFT
    decay = inverse_scale * ((1 - delta) * arb(2) ** log2_t1 - delta)
    return total_weight.mean_exponential(decay) / delta**3


def _log2_of_last_node(
    total_weight: _TotalWeight, inverse_scale: arb, bits: int, score_range: float
) -> int:
    """Return the least k for which the nodes t > 2^k are negligible.

    Negligible nodes add less than 2^-8 of the error of the rule, which is 2^-bits.
    Eight bits more cost few nodes, because the bound decays exponentially with
    t1 = 2^k.
    """

    def is_negligible(k: int) -> bool:
        share = _right_nodes(total_weight, inverse_scale, k)
        return bool(share < arb(2) ** -(bits + 8))

    # The end is generous: the lightest token has the weight e^-score_range, and t = 2^k
    # then exceeds the inverse of this weight by a factor of 2^64.
    return least(is_negligible, end=64 + math.ceil(score_range / math.log(2.0)))


class _Rule(NamedTuple):
    """The trapezoid rule for S^-2 and S^-3."""

    t: Balls  # nodes
    jacobian: Balls  # weights, (1 + e^-x) times the step
    # For S^-2 and for S^-3: the sum of the errors of the discretisation and of the
    # nodes on the left, which must be multiplied by E e^σ.
    errors: list[arb]


def _rule(bits: int, log_t1: float) -> _Rule:
    """Return a rule whose errors, times E e^σ, are about 2^-bits.

    The nodes t of the rule go up to e^log_t1 at least.
    """
    # -ln of the error 2^-bits / E e^σ that is to be reached, with E e^σ <= e^NATS
    nats = bits * math.log(2.0) + NATS
    # The step h follows from 2 / (cos^4 θ e^(2πθ/h)) = e^-nats, the error of the
    # discretisation for S^-3.
    exponent = nats + math.log(2.0) - 4.0 * math.log(math.cos(THETA))
    step = 2.0 * math.pi * THETA / exponent
    # The nodes on the left of x add at most t² e^σ, relative to S^-2. The factor t² is
    # below e^-nats if ln t = x - e^-x <= -nats/2, and so at x = -ln(nats/2), where e^-x
    # alone is nats/2.
    first = -math.ceil(math.log(0.5 * nats) / step)
    # At the last x, ln t = x - e^-x must be at least log_t1, as it is at x = log_t1 +
    # e^-log_t1. This x is rounded as a double, so one node more than needed is taken.
    # (The end of a range is not part of it.)
    end = math.ceil((log_t1 + math.exp(-log_t1)) / step) + 2
    x = balls(np.arange(first, end)) * arb(step)
    exp_minus_x = np.exp(-x)
    t = np.exp(x - exp_minus_x)
    jacobian = (exp_minus_x + 1) * arb(step)
    # The bound on the discretisation, 2/(cos^(n+1) θ (e^(2πθ/h) - 1))
    theta = arb(THETA)
    aliasing = 2 / ((2 * arb.pi() * theta / arb(step)).exp() - 1)
    errors = []
    for n in (2, 3):
        discretisation = aliasing / theta.cos() ** (n + 1)
        left_nodes = t[0] ** n
        errors.append(discretisation + left_nodes)
    return _Rule(t, jacobian, errors)


def _powers(mean: Balls, count: TokenCount, order: int = 3) -> Balls:
    """Return E[n (n - 1) ... (n - k + 1) G^(n - k)] for k = 0 ... ``order``.

    These are the derivatives of E G^n, for a fixed number n of tokens or a uniform law.
    ``mean`` has J values of G, (J,), and the result the shape (order + 1, J).
    """
    # In the power series (G + ε)^n, the coefficient of ε^k is the k-th derivative of
    # G^n, divided by k!.
    as_series = np.frompyfunc(lambda G: arb_series([G, 1], prec=order + 1), 1, 1)
    G_plus_eps = as_series(mean)
    if count.law is None:
        mean_power = G_plus_eps ** int(count.number)
    elif isinstance(count.law, UniformLengths):
        # The mean of G^n over n = first ... last, from sums that begin with n = 1
        first = count.law.least
        last = int(count.law.most)
        up_to_last = _sum_of_powers(G_plus_eps, last)
        before_first = _sum_of_powers(G_plus_eps, max(first, 1) - 1)
        mean_power = up_to_last - before_first
        if first == 0:
            # G^0, which the sums leave out
            mean_power = mean_power + 1
        mean_power = mean_power / (last - first + 1)
    else:
        raise argument_error("number", count.law, "an integer or Lengths.uniform")
    derivatives = np.empty((order + 1, len(mean_power)), dtype=object)
    for k in range(order + 1):
        for index, series in enumerate(mean_power):
            derivatives[k, index] = series[k] * math.factorial(k)
    return derivatives


def _sum_of_powers(G: Balls, n: int) -> Balls:
    """Return the sum of G^m for 1 <= m <= n, by halving n.

    The sum for n = 2M is (1 + G^M) times the sum for n = M.
    """
    if n == 0:
        return G * 0
    half = _sum_of_powers(G, n // 2)
    last = G**n if n % 2 else 0  # for an odd n = 2M + 1, the power that is left
    return half + half * G ** (n // 2) + last


class _ProductOfPowers:
    """The product P of the generating functions E G^n of all kinds, differentiated.

    Every result is multiplied by the Jacobian of the rule at its J nodes.
    """

    def __init__(self, derivatives: list[Balls], jacobian: Balls) -> None:
        self._derivatives = derivatives  # of each kind, by their order, (orders, J)
        self._jacobian = jacobian

    def derivative(self, variables: tuple[int, ...]) -> Balls:
        """Return P differentiated with respect to the G of some kinds, (J,).

        A kind may stand among ``variables`` several times.
        """
        result = self._jacobian
        for k, derivatives in enumerate(self._derivatives):
            result = result * derivatives[variables.count(k)]
        return result


class _Term(NamedTuple):
    """A term of the integrand, before it is summed over the nodes of a kind."""

    # The kinds with respect to whose G the product P is differentiated: a pair, or one.
    kinds: tuple[int, ...]
    # For the nodes of the first of these kinds, at each of J values of s, (nodes, J)
    entries: Balls

    @property
    def total(self) -> Balls:
        """The term at each value of s, (J,)."""
        return self.entries.sum(axis=0)


def _sums(
    probs: Balls,
    weight: Balls,
    form: Balls,
    squared_errors: Balls,
    counts: Sequence[TokenCount],
    s: Balls,
    jacobian: Balls,
) -> tuple[arb, Balls]:
    """Sum the integrand of the loss, and of its gradient, over the J nodes s of a rule.

    A node of the tokens has the weight w and the probability π. Let y = s w and
    b = π y e^-y. Let G = Σ π e^-y for each kind of tokens, and P be the product of the
    generating functions E G^n of all kinds. The integrand of twice the loss is the sum
    of (∂_κ ∂_λ P) b_κ C b_λ over pairs of kinds (κ, λ), for two different tokens, and
    of (∂_κ P) b y E|e|² over kinds κ, for one token with itself. Here ∂_κ is the
    derivative with respect to the G of a kind, C the ``form`` and E|e|² the
    ``squared_errors``. See docs/theory/tokens.md.
    """
    rows = [count.rows for count in counts]
    y = weight[:, None] * s
    mass = probs[:, None] * np.exp(-y)
    b = y * mass
    derivatives = []
    for kind_rows, count in zip(rows, counts, strict=True):
        derivatives.append(_powers(mass[kind_rows].sum(axis=0), count))
    P = _ProductOfPowers(derivatives, jacobian)
    terms = _terms(b, y, form, squared_errors, rows)
    totals = [term.total for term in terms]

    twice_loss = arb(0)
    for term, total in zip(terms, totals, strict=True):
        twice_loss = twice_loss + (P.derivative(term.kinds) * total).sum()

    # The derivative with respect to a score of kind k has two parts, of which half is
    # taken, because the terms add up to twice the loss. First, dG_k = -b changes P.
    gradient = 0 * weight
    for k, nodes in enumerate(rows):
        derivative_in_G = 0 * jacobian
        for term, total in zip(terms, totals, strict=True):
            derivative = P.derivative((*term.kinds, k)) * total
            derivative_in_G = derivative_in_G + derivative
        gradient[nodes] -= product(b[nodes], derivative_in_G[:, None])[:, 0] / 2
    # Second, the entries of the terms change.
    _add_changes_of_entries(gradient, terms, P, weight, s, rows)
    return twice_loss / 2, gradient


def _add_changes_of_entries(
    gradient: Balls,
    terms: list[_Term],
    P: _ProductOfPowers,
    weight: Balls,
    s: Balls,
    rows: list[slice],
) -> None:
    """Add the derivatives of the terms' entries in the scores to ``gradient``.

    With respect to the score of its node, y has the derivative y. So b has the
    derivative b (1 - y), and b y has b y (2 - y). A pair (κ, λ) of kinds occurs twice,
    in both orders, so b C b gives 2 (1 - y) b C b for a node of its first kind. Half of
    these factors are 1 - y for a pair and 1 - y/2 for a single kind: 1 - y times half
    the number of kinds.
    """
    for term in terms:
        factor = P.derivative(term.kinds)
        # One product of matrices sums the entries and, as y = w s, the entries times s.
        factors = np.stack([factor, factor * s], axis=1)
        sum_of_entries, sum_with_s = product(term.entries, factors).T
        nodes = rows[term.kinds[0]]
        sum_with_y = weight[nodes] * sum_with_s
        gradient[nodes] += sum_of_entries - sum_with_y * len(term.kinds) / 2


def _terms(
    b: Balls, y: Balls, form: Balls, squared_errors: Balls, rows: list[slice]
) -> list[_Term]:
    """Return the terms b_κ C b_λ and b y E|e|² of the integrand, see ``_sums``."""
    kinds = range(len(rows))
    terms = []
    for k in kinds:
        for m in kinds:
            C_b = product(form[rows[k], rows[m]], b[rows[m]])
            terms.append(_Term((k, m), b[rows[k]] * C_b))
    for k in kinds:
        squares = b[rows[k]] * y[rows[k]] * squared_errors[rows[k], None]
        terms.append(_Term((k,), squares))
    return terms


# ---- linear attention


def merged(risk: MergedRisk, params: Balls) -> tuple[arb, Balls]:
    """Return loss and gradient of merged linear attention from second moments.

    The parameters are the matrix Γ. The loss is ½ tr Λ_q((ΓM - 2WΛ)Γᵀ + W), and its
    gradient Λ_q(ΓM - WΛ). Here Λ is the covariance of the tokens, W the second moment
    of the tasks, Λ_q the second moment of the query, and M as in `SecondMoments`. The
    loss contains ΓΛW and its transpose WΛΓᵀ; their traces with the symmetric Λ_q are
    equal, hence the factor 2. A vector of parameters is the diagonal of Γ, and all
    matrices are then diagonals.
    """
    # ``dense`` is the same law with matrices in place of diagonals.
    law = risk.law if params.ndim == 1 else risk.law.dense
    moments_of_law = second_moments(law)
    W_Lambda = moments_of_law.Lambda_W.T
    slope = product(params, moments_of_law.M) - W_Lambda  # ΓM - WΛ
    error = product(slope - W_Lambda, params.T) + moments_of_law.W
    loss = (moments_of_law.Lambda_q * error).sum() / 2
    return loss, product(moments_of_law.Lambda_q, slope)


class SecondMoments(NamedTuple):
    """Second moments of prompts of linear attention, as matrices or as diagonals."""

    Lambda_W: Balls  # ΛW, the covariance of the tokens times the moment of the tasks
    W: Balls  # second moment of the tasks
    Lambda_q: Balls  # second moment of the query
    M: Balls  # ΛWΛ (1 + 1/N) + (tr ΛW + σ²) Λ/N


def second_moments(law: PromptLaw) -> SecondMoments:
    """Return the moments that loss and gradient of merged linear attention need."""
    Lambda, W, Lambda_q = (balls(moment) for moment in law.moments)
    Lambda_W = product(Lambda, W)
    limit_of_M = product(Lambda_W, Lambda)  # ΛWΛ, the limit of M for N = ∞
    # The sum of the products of entries of Λ and Wᵀ is tr ΛW, also for diagonals.
    label_variance = (Lambda * W.T).sum() + arb(law.noise) ** 2  # tr ΛW + σ²
    scatter_of_token = limit_of_M + label_variance * Lambda
    M = limit_of_M + scatter_of_token / arb(law.N)
    return SecondMoments(Lambda_W, W, Lambda_q, M)
