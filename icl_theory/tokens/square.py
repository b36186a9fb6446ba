r"""The mean square of a softmax average over independent tokens, exactly, as a one-dimensional integral.

Kind :math:`\kappa` has :math:`N_\kappa` tokens. Each of them is at node u with
probability :math:`\pi_u`, and has there the weight :math:`w_u = e^{\theta_u}` and the
error :math:`e_u`. With :math:`y_u = s w_u`, :math:`G_\kappa = \sum_u \pi_u e^{-y_u}`,
:math:`b_u = \pi_u y_u e^{-y_u}` and :math:`C_{uv} = E[e_u \cdot e_v]`,

.. math:: E\Bigl|\frac{\sum w e}{\sum w}\Bigr|^2 = \int_0^\infty
\Bigl[\sum_{\kappa\lambda}
    \partial_{G_\kappa}\partial_{G_\lambda} P\; b_\kappa^\top C b_\lambda + \sum_\kappa \partial_{G_\kappa} P
    \sum_{u \in \kappa} b_u y_u E|e_u|^2\Bigr]\,\frac{ds}{s}, \qquad P = \prod_\kappa E\,G_\kappa^{N_\kappa}.

See docs/theory.md, "Tokens".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.engine.progress import counted
from icl_theory.memory import check_fits

# e^(-s w) counts up to here. Every prompt with a token of weight w loses e^(-300) of
# itself,
# and products of two e^(-s w) stay above the subnormal numbers, which are slow.
LATEST = 300.0
LOG_LATEST = math.log(LATEST)
# of neighbouring scores: beyond, the attention that a gradient is made of underflows
FARTHEST = 690.0
LEAST = -700.0  # of the logarithm of what is not zero: below it exp is slow
HIGHEST = 3  # derivatives of a product of generating functions
# Of the square of the errors: what a gap between scores that `capped` cuts, or
# underflow,
# can change in a loss for a prompt of one token. It grows with the square of the
# length.
UNSEEN = 1e-288
CANCELLED = 1e-4  # share of its terms below which a gradient has lost four digits
MOST_PAIRED = 2000  # nodes up to which gradients are summed over pairs of them

Form = Callable[[NDArray[np.intp], slice, Array, Array], object]
Derivative = Callable[..., Array]


LONG = 3e8  # numbers in an integral that takes seconds


class Count(NamedTuple):
    """How many tokens of a kind there are, and on which rows their nodes stand."""

    number: float  # N
    rows: slice = slice(None)
    # average over prompts of 1, 2, ... N tokens, as training on all positions does
    each: bool = False

    def weights(
        self, mean: Array, log: Array, order: int, scale: Array | float = 1.0
    ) -> list[Array]:
        r"""Return :math:`E[n (n-1) \cdots (n-k+1)\, G^{n-k}]`, scaled, for k = 0 ... order from G and ln G.

        For ``each``, the sum of powers is built by doubling, :math:`\sum_{n \le 2M} G^n
        = (1 + G^M) \sum_{n \le M} G^n`, in derivatives that are all positive, so that
        nothing cancels.
        """
        if not self.each:
            return _powers(mean, log, self.number, order, scale)
        total = [np.zeros_like(log)] * (order + 1)
        reached = 0
        for bit in f"{int(self.number):b}":
            doubled = _product(total, _powers(mean, log, reached, order))
            total = [both + one for both, one in zip(doubled, total, strict=True)]
            reached = 2 * reached
            if bit == "1":
                reached += 1
                more = _powers(mean, log, reached, order)
                total = [both + one for both, one in zip(total, more, strict=True)]
        return [each * (scale / self.number) for each in total]


def _powers(
    mean: Array, log: Array, n: float, order: int, scale: Array | float = 1.0
) -> list[Array]:
    """Return G^n and its derivatives by G, scaled."""
    highest = int(min(n, order))
    power = log * (n - highest)
    there = power > LEAST
    power = np.exp(np.maximum(power, LEAST, out=power), out=power)
    power *= there
    power *= scale
    factors = [
        math.prod((n - j for j in range(k)), start=1.0) for k in range(order + 1)
    ]
    powers = [np.zeros_like(log)] * (order - highest)
    for k in range(highest, 0, -1):
        powers.append(power * factors[k])
        power *= mean
    return [power, *reversed(powers)]


def _product(first: list[Array], second: list[Array]) -> list[Array]:
    """Derivatives of a product."""
    return [
        sum(
            (math.comb(k, i) * first[i] * second[k - i] for i in range(k + 1)),
            start=np.zeros_like(first[0]),
        )
        for k in range(len(first))
    ]


class Nodes(NamedTuple):
    """The trapezoid rule: ln s and weights, (J,), and the number of nodes that each query needs, (Q,)."""

    log_s: Array
    weights: Array
    counts: NDArray[np.intp]


class Moments(NamedTuple):
    """Half mean squares of Q queries over C nodes; complex for complex scores."""

    loss: Array  # (Q,)
    gradient: Array  # with respect to the scores of the nodes, (C, Q)
    attention: Array  # expected, (C, Q)


def change_along(
    gradient: Callable[[Array], Array], at: Array, direction: Array
) -> Array:
    """Differentiate a function of scores along a direction, by a step into the complex plane.

    The step is so short that its square is below rounding, and nothing is subtracted.
    """
    length = 1e20 * float(np.abs(direction).max(initial=0.0))
    return (
        np.zeros_like(direction)
        if length == 0.0
        else length * gradient(at + 1j * direction / length).imag
    )


def moments(
    log_w: Array,
    probs: Array,
    own: Array,
    counts: Sequence[Count],
    form: Form,
    step: float = 0.2,
    spread: Array | None = None,
) -> Moments:
    """Integrate losses, gradients and attention of all queries, in blocks that fit the processor's cache.

    Of the nodes are given the scores ``log_w``, (C, Q), -inf for one that never occurs;
    the ``probs``, (C, 1) or (C, Q), which sum to one over each kind; and the mean
    squared errors E|e|², ``own``, (C, Q). ``form(queries, rows, z, out)`` takes q
    queries, the rows of a kind and z, (q, R, J), on these rows, and writes ``C z`` to
    ``out``, (q, C, J), for the matrices C of the queries. The ``step`` in ln s is exact
    to rounding unless given. ``spread``, (C, Q), is the part of ``own`` that is not in
    C, if there is one: without it, noisy gradients between separated scores lose
    digits. Scores are real, or have the imaginary parts of `change_along`.
    """
    turn = log_w.imag if np.iscomplexobj(log_w) else None
    log_w = log_w.real
    there = np.isfinite(log_w)
    log_w = capped(log_w, FARTHEST)
    absent = [(probs[count.rows] * ~there[count.rows]).sum(axis=0) for count in counts]
    probs = probs * there
    nodes = _trimmed(trapezoid(log_w, counts, step), log_w, probs, counts)
    parts = []
    order = np.argsort(-nodes.counts, kind="stable")
    blocks: Iterable[NDArray[np.intp]] = _alike(nodes.counts, order, len(log_w))
    if len(log_w) * float(nodes.counts.sum()) > LONG:
        # one evaluation at far-apart scores may take minutes: it says how far it is
        blocks = counted([*blocks], "blocks of queries")
    for queries in blocks:
        here = slice(0, nodes.counts[queries[0]])
        scores, chances, squares = (array.T[queries] for array in (log_w, probs, own))
        gone = [each[queries, None] for each in absent]
        turned = None if turn is None else turn.T[queries, :, None]
        rule = nodes.log_s[here], nodes.weights[here]
        numbers = len(queries) * len(log_w) * len(rule[0]) * (7 if turn is None else 16)
        check_fits(
            "params",
            f"scores that need {len(rule[0]):,} nodes for {len(log_w):,} tokens",
            8.0 * numbers,
        )
        noise = None if spread is None else spread.T[queries]
        parts.append(
            _block(
                scores,
                turned,
                chances,
                squares,
                noise,
                gone,
                counts,
                *rule,
                form,
                queries,
            )
        )
    back = np.argsort(order)
    joined = (
        parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
    )
    return Moments(*(part[back].T for part in joined))


def rule_error(step: float) -> float:
    r"""Return what the relative error of the rule for 1/S² is below, :math:`6 |\Gamma(2 + 2\pi i/h)|` for a step h.

    The constant is measured. In each prompt the rule replaces 1/S² by a sum over its
    nodes, and a loss is a mean of squares over S². So it holds for the loss of any law
    of the tokens (docs/theory.md, "The error of the rule").
    """
    omega = 2.0 * math.pi / step
    return (
        6.0
        * math.sqrt((1.0 + omega**2) * 2.0 * math.pi * omega)
        * math.exp(-0.5 * math.pi * omega)
    )


def _trimmed(
    nodes: Nodes, log_w: Array, probs: Array, counts: Sequence[Count], every: int = 16
) -> Nodes:
    """Leave out nodes at which the integrand vanishes in float64, seen at ``every`` few of them.

    In long prompts all tokens of large weight are gone long before those of the
    smallest weights, of which there may be none.
    """
    if len(nodes.log_s) < 8 * every or all(count.number < 64 for count in counts):
        return nodes
    some = nodes.log_s[::every]
    y = np.exp(np.minimum(log_w.T[:, :, None] + some, LOG_LATEST))
    chances = probs.T
    power = np.zeros((len(y), len(some)))
    np.exp(np.negative(y, out=y), out=y)
    for count in counts:
        if not count.each:
            mean = weighted(chances, y, count.rows)
            power += max(count.number - HIGHEST, 0.0) * np.log(
                np.clip(mean, 1e-300, 1.0)
            )
    vanishing = power < LEAST
    first = np.where(
        vanishing.any(axis=1), every * vanishing.argmax(axis=1), len(nodes.log_s)
    )
    needed = np.minimum(nodes.counts, first)
    return Nodes(nodes.log_s[: needed.max()], nodes.weights[: needed.max()], needed)


def _alike(
    counts: NDArray[np.intp], order: NDArray[np.intp], classes: int, chunk: int = 2**16
) -> Iterator[NDArray[np.intp]]:
    """Split queries, sorted by falling numbers of nodes, into blocks that use the largest number of each block.

    A block has up to ``chunk`` numbers in a temporary array, so that it stays in the
    cache, and spends at most an eighth of that on nodes that a query would not need.
    """
    sizes: list[int] = (classes * counts[order]).tolist()
    start, padded = 0, 0
    for i, size in enumerate(sizes):
        padded += sizes[start] - size
        if i > start and (
            (i + 1 - start) * sizes[start] > chunk or padded > chunk // 8
        ):
            yield order[start:i]
            start, padded = i, 0
    yield order[start:]


def mixed(
    counts: Sequence[Count], means: Sequence[tuple[Array, Array]], jacobian: Array
) -> Derivative:
    """Return mixed derivatives of the product of all generating functions, times the weights of the nodes.

    They are a function of the kinds by whose generating functions G the product is
    differentiated. Of each kind are given G and its logarithm, (q, J).
    """
    scales: list[Array | float] = [jacobian, *(1.0 for _ in counts[1:])]
    each = [
        count.weights(*mean, HIGHEST, scale)
        for count, mean, scale in zip(counts, means, scales, strict=True)
    ]
    known: dict[tuple[int, ...], Array] = {}

    def weights(*kinds: int) -> Array:
        if len(each) == 1:
            return each[0][len(kinds)]
        orders = tuple(kinds.count(kind) for kind in range(len(each)))
        if orders not in known:
            first, *others = (
                powers[order] for powers, order in zip(each, orders, strict=True)
            )
            known[orders] = math.prod(others, start=first)
        return known[orders]

    return weights


def summed(
    weights: Derivative,
    single: Sequence[Array],
    pairs: Sequence[Sequence[Array]],
    *more: int,
) -> Array:
    """Add up tokens counted twice and pairs of kinds, with all weights differentiated by further kinds."""
    kinds = range(len(single))
    terms = [weights(k, *more) * single[k] for k in kinds]
    terms += [weights(k, m, *more) * pairs[k][m] for k in kinds for m in kinds]
    return sum(terms[1:], start=terms[0])


class Tilted(NamedTuple):
    """Tokens under the integral, for q queries: y and b with the axes (q, C, J).

    With several kinds b is divided by the G of its kind, which makes it the mean of y
    over tokens with the probabilities that e^(-y) gives them. ``orders`` has for each
    kind k the moments E n(n-1)... of its number of tokens of the orders 1 to 3, times
    the product P of all generating functions and the weights of the rule, (q, J);
    ``numbers`` has the first two moments alone.
    """

    y: Array
    b: Array
    orders: list[list[Array]]
    numbers: list[tuple[Array, Array]]

    def of(self, queries: slice) -> Tilted:
        """Return those of some queries."""
        orders = [[order[queries] for order in of_kind] for of_kind in self.orders]
        numbers = [(one[queries], two[queries]) for one, two in self.numbers]
        return Tilted(self.y[queries], self.b[queries], orders, numbers)


def _tilted(
    y: Array,
    b: Array,
    counts: Sequence[Count],
    means: Sequence[tuple[Array, Array]],
    jacobian: Array,
) -> Tilted:
    """Return the tokens under the integral; ``b`` is overwritten if there are several kinds."""
    if len(counts) == 1:
        orders = counts[0].weights(*means[0], HIGHEST, jacobian)[1:]
        return Tilted(y, b, [orders], [])
    log_product = np.zeros_like(means[0][1])
    numbers: list[list[Array]] = []
    for count, (mean, log) in zip(counts, means, strict=True):
        inverse = np.divide(1.0, mean, out=np.zeros_like(mean), where=mean != 0.0)
        b[:, count.rows] *= inverse[:, None]
        if count.each:
            whole, *derivatives = count.weights(mean, log, HIGHEST)
            scale = np.divide(1.0, whole, out=np.zeros_like(mean), where=whole != 0.0)
            moments_of_number: list[Array] = []
            for derivative in derivatives:
                scale = scale * mean
                moments_of_number.append(scale * derivative)
            log_product = log_product + np.log(np.where(whole != 0.0, whole, 1e-300))
        else:
            N = float(count.number)
            falling = (N, N * (N - 1.0), N * (N - 1.0) * (N - 2.0))
            moments_of_number = [np.full(mean.shape, value) for value in falling]
            log_product = log_product + N * log
        numbers.append(moments_of_number)
    product: Array = np.exp(np.maximum(log_product.real, LEAST))
    if np.iscomplexobj(y):
        product = product * np.exp(1j * log_product.imag)
    is_normal = log_product.real > LEAST
    for mean, _ in means:
        is_normal &= mean != 0.0
    product *= is_normal * jacobian
    orders_of_kinds = [[product * moment for moment in of_kind] for of_kind in numbers]
    return Tilted(
        y, b, orders_of_kinds, [(of_kind[0], of_kind[1]) for of_kind in numbers]
    )


def _block(
    log_w: Array,
    turn: Array | None,
    probs: Array,
    own: Array,
    spread: Array | None,
    absent: Sequence[Array],
    counts: Sequence[Count],
    log_s: Array,
    jacobian: Array,
    form: Form,
    queries: NDArray[np.intp],
) -> Moments:
    """Integrate some queries, one a row of each array; ``absent`` nodes of each kind never occur, (q, 1)."""
    shape = (*log_w.shape, len(log_s))
    y, decay, b, *more = np.empty((7, *shape))
    if log_s[-1] < 600.0:
        np.multiply(np.exp(log_w)[:, :, None], np.exp(log_s), out=y)
        np.minimum(y, LATEST, out=y)
    else:
        np.exp(
            np.minimum(np.add(log_w[:, :, None], log_s, out=y), LOG_LATEST, out=y),
            out=y,
        )
    np.exp(np.negative(y, out=b), out=decay)
    means = [
        generating(probs, decay, b, count.rows, absent[k])
        for k, count in enumerate(counts)
    ]
    if any(mean[:, -1].min() < 1e-60 for mean, _ in means):
        # e^(-300) would keep a G from zero. Elsewhere it is far below G, and stays.
        decay *= is_kept(y)
        np.negative(y, out=b)
        means = [
            generating(probs, decay, b, count.rows, absent[k])
            for k, count in enumerate(counts)
        ]
    if turn is not None:
        real, (y, decay, b, *more) = (y, decay), np.empty((7, *shape), dtype=complex)
        y.real, decay.real = real
        np.multiply(turn, y.real, out=y.imag)
        np.multiply(-decay.real, y.imag, out=decay.imag)
        falls: list[Any] = [
            1j * weighted(probs, decay.imag, count.rows) for count in counts
        ]
        means = [
            (value + fall, log + fall / np.maximum(value, 1e-300))
            for (value, log), fall in zip(means, falls, strict=True)
        ]
    double, single, twice, inner = more
    np.multiply(decay, y, out=b)
    b *= probs[:, :, None]
    tokens = _tilted(y, b, counts, means, jacobian)
    np.multiply(b, y, out=double)  # one token counted twice
    np.subtract(b, double, out=single)  # y ∂b/∂y
    np.subtract(2.0, y, out=twice)  # y ∂(double)/∂y
    twice *= double
    outer = None if len(counts) == 1 else np.zeros_like(b)
    _fields(tokens, counts, partial(form, queries), inner, outer)
    pairs = []
    crossed = []
    twofold = []
    for count in counts:
        rows = count.rows
        # squares: rounding must not make them negative
        pairs.append(
            np.maximum(np.einsum("qcj,qcj->qj", b[:, rows], inner[:, rows]), 0.0)
        )
        twofold.append(weighted(own, double, rows))
        if outer is not None:
            crossed.append(np.einsum("qcj,qcj->qj", b[:, rows], outer[:, rows]))
    falls = _falls(tokens, pairs, crossed, twofold)
    attention = []
    gradient = []
    for k, count in enumerate(counts):
        rows, (first, second, _) = count.rows, tokens.orders[k]
        attention.append(integral(first, b[:, rows]))
        drawn = integral(
            second, np.multiply(single[:, rows], inner[:, rows], out=decay[:, rows])
        )
        if outer is not None:
            drawn += integral(first, np.multiply(single[:, rows], outer[:, rows]))
        kept = own[:, rows] * integral(first, twice[:, rows])
        gradient.append((2.0 * drawn, -integral(falls[k + 1], b[:, rows]), kept))
    joined = [np.concatenate(term, axis=1) for term in zip(*gradient, strict=True)]
    slopes, terms = _balanced(*joined)
    result = Moments(
        0.5 * np.einsum("qj->q", falls[0]),
        0.5 * slopes,
        np.concatenate(attention, axis=1),
    )
    # the loss too, as a term may itself be an integral that cancels
    lost = np.abs(slopes.real).sum(axis=1) < CANCELLED * (terms + result.loss.real)
    if lost.any() and shape[1] <= MOST_PAIRED:
        # a quick test, which is enough late in most runs
        lost &= (
            _variance(tokens, result, own, spread, double, counts)
            < 0.06 * result.loss.real
        )
        for q in np.flatnonzero(lost):
            one = slice(q, q + 1)
            form_of_one = partial(form, queries[one])
            if _is_separated(
                log_w[q], result.attention[q].real, own[q], counts, form_of_one
            ):
                result.gradient[q] = _by_pairs(
                    tokens.of(one), own[q], counts, form_of_one
                )
    return result


def _fields(
    tokens: Tilted,
    counts: Sequence[Count],
    form: Callable[[slice, Array, Array], object],
    inner: Array,
    outer: Array | None,
    reference: NDArray[np.intp] | None = None,
) -> None:
    """Write to ``inner`` C b of the own kind, and to ``outer`` that of all tokens of other kinds.

    At each node of the rule the field at a ``reference``, (q, J), is subtracted, if one
    is given: errors then count from that of the reference.
    """
    product = inner if outer is None else np.empty_like(inner)
    for k, count in enumerate(counts):
        rows = count.rows
        # a linear map: real and imaginary parts stand side by side
        drawn = np.ascontiguousarray(tokens.b[:, rows])
        form(rows, drawn.view(np.float64), product.view(np.float64))
        if reference is not None:
            product -= np.take_along_axis(product, reference[:, None], axis=1)
        if outer is None:
            continue
        inner[:, rows] = product[:, rows]
        number, _ = tokens.numbers[k]
        product *= number[:, None]
        outer[:, : rows.start] += product[:, : rows.start]
        outer[:, rows.stop :] += product[:, rows.stop :]


def _falls(
    tokens: Tilted,
    pairs: Sequence[Array],
    crossed: Sequence[Array],
    twofold: Sequence[Array],
) -> list[Array]:
    """Return the integrand of twice the loss, and for each kind that with one more token drawn from it.

    Squares of the own kind, products with other kinds and tokens counted twice are
    given for each kind, (q, J). Each kind is taken out of the whole, so that the work
    grows with the number of kinds and not with that of their triples.
    """
    if not crossed:
        first, second, third = tokens.orders[0]
        return [
            second * pairs[0] + first * twofold[0],
            third * pairs[0] + second * twofold[0],
        ]
    whole: Array = np.zeros_like(pairs[0])
    for (first, second, _), pair, cross, twice in zip(
        tokens.orders, pairs, crossed, twofold, strict=True
    ):
        whole = whole + second * pair + first * (cross + twice)
    falls = [whole]
    for k, (first, second, third) in enumerate(tokens.orders):
        number, _ = tokens.numbers[k]
        fall = number * whole + (third - number * second) * pairs[k]
        falls.append(fall + (second - number * first) * (2.0 * crossed[k] + twofold[k]))
    return falls


def _variance(
    tokens: Tilted,
    result: Moments,
    own: Array,
    spread: Array | None,
    double: Array,
    counts: Sequence[Count],
) -> Array:
    r"""Return :math:`E[\sum_u a_u |e_u|^2 - |\bar e|^2]` of each query, (q,).

    It is small if the tokens that share the attention of a prompt have the same error.
    """
    variance = (
        np.einsum("qc,qc->q", result.attention.real, own) - 2.0 * result.loss.real
    )
    if spread is None:
        return np.asarray(variance)
    # of the spread: its share in the first term, and E Σ a_i² of it, which is in the
    # loss
    for (first, _, _), count in zip(tokens.orders, counts, strict=True):
        squares = integral(first.real, double[:, count.rows].real)
        variance -= np.einsum(
            "qc,qc->q",
            result.attention.real[:, count.rows] - squares,
            spread[:, count.rows],
        )
    return np.asarray(variance)


def _is_separated(
    log_w: Array,
    attention: Array,
    own: Array,
    counts: Sequence[Count],
    form: Callable[[slice, Array, Array], object],
    most: int = 64,
) -> bool:
    r"""Whether hardly two nodes with different errors share the attention of a prompt, for one query.

    Attention on both of two nodes is at most the smaller mean of each, and at most N
    times the ratio of their weights. If it is not small, the gradient is small because
    prompts cancel, as near a minimum, and a sum over pairs would not be better.
    """
    which = np.argsort(-attention, kind="stable")[:most]
    which = which[attention[which] > 0.0]
    if len(which) < 2:
        return False
    which = which[np.argsort(-log_w[which], kind="stable")]
    # C between these nodes, by falling weight
    unit = np.zeros((1, len(attention), len(which)))
    unit[0, which, np.arange(len(which))] = 1.0
    product = np.empty_like(unit)
    form(slice(0, len(attention)), unit, product)
    C = product[0, which]
    square = np.maximum(np.diagonal(C), 0.0)
    distance = np.sqrt(np.maximum(square[:, None] + square - 2.0 * C, 0.0))
    size = np.sqrt(square)
    spread = np.maximum(own[which] - square, 0.0)

    # of a pair, the heavier node first: row u, column v > u
    N = sum(count.number for count in counts)
    gap = np.minimum(np.abs(log_w[which, None] - log_w[which]), -LEAST)
    ratio = np.minimum(N * np.exp(-gap), 1.0)
    share = np.minimum(np.minimum(attention[which, None], attention[which]), ratio)
    change = (
        distance * (size[:, None] + ratio * size) + spread[:, None] + ratio * spread
    )
    for count in counts:
        if count.number == 1:  # one token is not at two nodes
            inside = np.isin(which, np.arange(len(attention))[count.rows])
            share[np.ix_(inside, inside)] = 0.0
    shared = np.sum(np.triu(share * change, 1))
    return bool(shared < 0.01 * (attention @ own))


def _by_pairs(
    tokens: Tilted,
    own: Array,
    counts: Sequence[Count],
    form: Callable[[slice, Array, Array], object],
) -> Array:
    r"""Return the gradient of one query as a sum over pairs of nodes, (C,), so that no large terms cancel.

    .. math:: \partial_{\theta_u} \tfrac12 E|\bar e|^2
        = E \sum_v a_u a_v (e_u - e_v) \cdot \bar e, \qquad \bar e = \sum_v a_v e_v

    A pair contributes to two entries, with opposite signs. Where one node has nearly
    all the attention, every pair is small, whereas :math:`a_u e_u \cdot \bar e` is not.
    """
    # the rest may be above the gradient
    tokens = tokens._replace(b=tokens.b * is_kept(tokens.y.real))
    y = tokens.y[0]
    b = tokens.b[0]
    C = len(own)
    first = np.empty_like(b)  # orders of the own kind, for each node
    second = np.empty_like(b)
    third = np.empty_like(b)
    for count, of_kind in zip(counts, tokens.orders, strict=True):
        first[count.rows], second[count.rows], third[count.rows] = (
            order[0] for order in of_kind
        )
    reference = np.argmax((first * b).real, axis=0)[None]
    inner = np.empty_like(tokens.b)
    outer = np.zeros_like(tokens.b) if len(counts) > 1 else None
    _fields(tokens, counts, form, inner, outer, reference)
    by_field, by_square = np.empty((2, C, C), dtype=b.dtype)
    if outer is not None:
        alone = b * (first * outer[0] + second * inner[0])
        product = np.empty_like(tokens.b)
    for k, count in enumerate(counts):
        rows = count.rows
        if outer is not None:
            number, square = (moment[0] for moment in tokens.numbers[k])
            drawn = number * b[rows]
            form(
                rows,
                np.ascontiguousarray(tokens.b[:, rows]).view(np.float64),
                product.view(np.float64),
            )
            product -= np.take_along_axis(product, reference[:, None], axis=1)
            # one token of kind k is the second of the pair, and not in the field
            ratio = np.divide(
                square, number, out=np.zeros_like(number), where=number != 0.0
            )
            field = alone - (number - ratio) * (first * b * product[0])
            by_field[:, rows] = field @ drawn.T
            by_square[:, rows] = (first * b) @ (drawn * y[rows]).T
            inside = third[rows] * inner[0, rows] + second[rows] * outer[0, rows]
        else:
            inside = third * inner[0]
        by_field[rows, rows] = (b[rows] * inside) @ b[rows].T
        by_square[rows, rows] = (second[rows] * b[rows]) @ (b[rows] * y[rows]).T

    unit = np.eye(C)[None]
    matrix = np.empty((1, C, C))
    form(slice(0, C), unit, matrix)
    size = np.diagonal(matrix[0])
    spread = own - size
    spread = np.where(spread > 1e-13 * own, spread, 0.0)  # the rest is rounding
    change = (size - matrix[0]) + spread  # E|e_v|² - E e_u·e_v
    kept = by_square * change
    pairs = 0.5 * ((by_field - by_field.T) + (kept.T - kept))
    gradient = pairs.sum(axis=1)
    scale = np.abs(pairs).sum(axis=1) + 1e-300
    return np.asarray(gradient - scale * (gradient.sum() / scale.sum()))


def is_kept(y: Array) -> NDArray[np.bool_]:
    """Whether e^(-y) counts: it is zero from `LATEST` on."""
    return np.asarray(y < LATEST * (1.0 - 1e-12))


def generating(
    probs: Array, decay: Array, minus: Array, rows: slice, absent: Array
) -> tuple[Array, Array]:
    """Return G of a kind, and ln G to an absolute error far below 1/N, also where G is nearly 1.

    ``decay`` is e^(-y), (q, C, J), and ``minus`` is -y, whose first columns are
    overwritten.
    """
    mean = weighted(probs, decay, rows)
    log: Array = np.log(np.maximum(mean, 1e-300))
    # G falls along the nodes
    early = minus[:, rows, : np.count_nonzero((mean > 0.5).any(axis=0))]
    near_one = weighted(probs[:, rows], np.expm1(early, out=early)) - absent
    log[:, : near_one.shape[1]] = log_mean(mean[:, : near_one.shape[1]], near_one)
    return mean, log


def log_mean(mean: Array, near_one: Array) -> Array:
    """Return ln G from G and G - 1."""
    return np.where(
        near_one > -0.5,
        np.log1p(np.maximum(near_one, -0.5)),
        np.log(np.maximum(mean, 1e-300)),
    )


def weighted(weights: Array, array: Array, rows: slice = slice(None)) -> Array:
    """Sum over the nodes of a kind, (q, J)."""
    return np.asarray(np.matmul(weights[:, None, rows], array[:, rows])[:, 0])


def integral(weight: Array, array: Array) -> Array:
    """Sum over the values of s, (q, R)."""
    return np.asarray(np.matmul(array, weight[:, :, None])[:, :, 0])


def balanced(*terms: Array) -> Array:
    """Sum the terms of a gradient, and correct each row so that its sum is exactly zero.

    A shift of all scores does not change a loss. The sum that rounding leaves would
    shift the scores step by step in the tail of a run; it is subtracted from the
    entries in which terms cancel.
    """
    return _balanced(*terms)[0]


def _balanced(*terms: Array) -> tuple[Array, Array]:
    """Return the gradient, and the sum of the sizes of all terms of each row."""
    gradient: Array = sum(terms[1:], start=terms[0])
    scale: Array = sum(
        (np.abs(term) for term in terms[1:]), start=np.abs(terms[0]) + 1e-300
    )
    whole: Array = scale.sum(axis=1)
    return gradient - scale * (gradient.sum(axis=1) / whole)[:, None], whole


def capped(log_w: Array, most: float = 350.0) -> Array:
    """Scores relative to their largest, with gaps cut to ``most``, where the attention's square underflows."""
    with np.errstate(over="ignore"):
        relative = log_w - log_w.max(axis=0)
    if np.all((relative > -most) | (log_w == -np.inf)):
        return relative
    order = np.argsort(-log_w, axis=0)
    ranked = np.take_along_axis(log_w, order, axis=0)
    is_finite = np.isfinite(ranked[1:])
    gaps = np.full(is_finite.shape, np.inf)
    # of the scores as they are given: differences from the largest may overflow alike
    with np.errstate(over="ignore"):
        differences = ranked[:-1] - np.where(is_finite, ranked[1:], 0.0)
    gaps[is_finite] = np.minimum(differences[is_finite], most)
    result = np.zeros_like(log_w)
    sums = np.vstack([np.zeros(log_w.shape[1]), -np.cumsum(gaps, axis=0)])
    np.put_along_axis(result, order, sums, axis=0)
    return result


def trapezoid(
    log_w: Array,
    counts: Sequence[Count],
    step: float = 0.2,
    first: float = -4.0,
    last: float = 4.25,
) -> Nodes:
    """Nodes of the trapezoid rule in x for ∫ (...) ds/s with N s = exp(x - exp(-x)), which is exact to rounding.

    N is the largest number of tokens. The last node is where the slowest decay, exp(-s
    w_min) for each of the tokens of the shortest prompt, is complete.
    """
    N = sum(count.number for count in counts)
    fewest = sum(1 if count.each else count.number for count in counts)
    lowest = math.log(N / fewest) - np.min(
        log_w, axis=0, where=np.isfinite(log_w), initial=0.0
    )
    needed = ((last - first + lowest) / step).astype(np.intp) + 1
    x: Array = first + step * np.arange(float(needed.max(initial=1)))
    left = np.exp(-x)
    return Nodes(x - left - math.log(N), step * (1.0 + left), needed)
