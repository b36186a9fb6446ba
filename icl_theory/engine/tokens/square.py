r"""The mean square of a softmax average over independent tokens, exactly, as a one-dimensional integral.

Kind :math:`\kappa` has :math:`N_\kappa` tokens. Each of them is at node u with probability :math:`\pi_u`, and has
there the weight :math:`w_u = e^{\theta_u}` and the error :math:`e_u`. With :math:`y_u = s w_u`,
:math:`G_\kappa = \sum_u \pi_u e^{-y_u}`, :math:`b_u = \pi_u y_u e^{-y_u}` and
:math:`C_{uv} = E[e_u \cdot e_v]`,

.. math:: E\Bigl|\frac{\sum w e}{\sum w}\Bigr|^2 = \int_0^\infty \Bigl[\sum_{\kappa\lambda}
    \partial_{G_\kappa}\partial_{G_\lambda} P\; b_\kappa^\top C b_\lambda + \sum_\kappa \partial_{G_\kappa} P
    \sum_{u \in \kappa} b_u y_u E|e_u|^2\Bigr]\,\frac{ds}{s}, \qquad P = \prod_\kappa E\,G_\kappa^{N_\kappa}.

See docs/theory.md, "Tokens".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array

LATEST = 300.0  # cap on s w: products of two e^(-s w) stay above the subnormal numbers, which are slow
LEAST = -700.0  # of the logarithm of what is not zero: below it exp is slow
HIGHEST = 3  # derivatives of a product of generating functions

Form = Callable[[NDArray[np.intp], slice, Array, Array], object]
Derivative = Callable[..., Array]


class Count(NamedTuple):
    """How many tokens of a kind there are, and on which rows their nodes stand."""

    number: float  # N
    rows: slice = slice(None)
    each: bool = False  # average over prompts of 1, 2, ... N tokens, as training on all positions does

    def weights(self, mean: Array, log: Array, order: int, scale: Array | float = 1.0) -> list[Array]:
        r"""Return :math:`E[n (n-1) \cdots (n-k+1)\, G^{n-k}]`, scaled, for k = 0 ... order from G and ln G.

        For ``each``, the sum of powers is built by doubling, :math:`\sum_{n \le 2M} G^n = (1 + G^M)
        \sum_{n \le M} G^n`, in derivatives that are all positive, so that nothing cancels.
        """
        if not self.each:
            return _powers(mean, log, self.number, order, scale)
        total, reached = [np.zeros_like(log)] * (order + 1), 0
        for bit in f"{int(self.number):b}":
            doubled = _product(total, _powers(mean, log, reached, order))
            total, reached = [both + one for both, one in zip(doubled, total, strict=True)], 2 * reached
            if bit == "1":
                reached += 1
                more = _powers(mean, log, reached, order)
                total = [both + one for both, one in zip(total, more, strict=True)]
        return [each * (scale / self.number) for each in total]


def _powers(mean: Array, log: Array, n: float, order: int, scale: Array | float = 1.0) -> list[Array]:
    """Return G^n and its derivatives by G, scaled."""
    highest = int(min(n, order))
    power = log * (n - highest)
    there = power > LEAST
    power = np.exp(np.maximum(power, LEAST, out=power), out=power)
    power *= there
    power *= scale
    factors = [math.prod((n - j for j in range(k)), start=1.0) for k in range(order + 1)]
    powers = [np.zeros_like(log)] * (order - highest)
    for k in range(highest, 0, -1):
        powers.append(power * factors[k])
        power *= mean
    return [power, *reversed(powers)]


def _product(first: list[Array], second: list[Array]) -> list[Array]:
    """Derivatives of a product."""
    return [
        sum((math.comb(k, i) * first[i] * second[k - i] for i in range(k + 1)), start=np.zeros_like(first[0]))
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


def change_along(gradient: Callable[[Array], Array], at: Array, direction: Array) -> Array:
    """Differentiate a function of scores along a direction, by a step into the complex plane.

    The step is so short that its square is below rounding, and nothing is subtracted.
    """
    length = 1e20 * float(np.abs(direction).max(initial=0.0))
    return np.zeros_like(direction) if length == 0.0 else length * gradient(at + 1j * direction / length).imag


def moments(
    log_w: Array, probs: Array, own: Array, counts: Sequence[Count], form: Form, step: float = 0.2
) -> Moments:
    """Integrate losses, gradients and attention of all queries, in blocks that fit the processor's cache.

    Of the nodes are given the scores ``log_w``, (C, Q), -inf for one that never occurs; the ``probs``, (C, 1) or
    (C, Q), which sum to one over each kind; and the mean squared errors E|e|², ``own``, (C, Q).
    ``form(queries, rows, z, out)`` takes q queries, the rows of a kind and z, (q, R, J), on these rows, and writes
    ``C z`` to ``out``, (q, C, J), for the matrices C of the queries. The ``step`` in ln s is exact to rounding
    unless given. Scores are real, or have the imaginary parts of `change_along`.
    """
    turn = log_w.imag if np.iscomplexobj(log_w) else None
    log_w = log_w.real
    there = np.isfinite(log_w)
    log_w = capped(log_w)
    absent = [(probs[count.rows] * ~there[count.rows]).sum(axis=0) for count in counts]
    probs = probs * there
    nodes = _trimmed(trapezoid(log_w, counts, step), log_w, probs, counts)
    parts, order = [], np.argsort(-nodes.counts, kind="stable")
    for queries in _alike(nodes.counts, order, len(log_w)):
        here = slice(0, nodes.counts[queries[0]])
        scores, chances, squares = (array.T[queries] for array in (log_w, probs, own))
        gone = [each[queries, None] for each in absent]
        turned = None if turn is None else turn.T[queries, :, None]
        rule = nodes.log_s[here], nodes.weights[here]
        parts.append(_block(scores, turned, chances, squares, gone, counts, *rule, partial(form, queries)))
    back = np.argsort(order)
    joined = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
    return Moments(*(part[back].T for part in joined))


def rule_error(step: float) -> float:
    r"""Return what the relative error of the rule for 1/S² is below, :math:`6 |\Gamma(2 + 2\pi i/h)|` for a step h.

    The constant is measured. In each prompt the rule replaces 1/S² by a sum over its nodes, and a loss is a mean of
    squares over S². So it holds for the loss of any law of the tokens (docs/theory.md, "The error of the rule").
    """
    omega = 2.0 * math.pi / step
    return 6.0 * math.sqrt((1.0 + omega**2) * 2.0 * math.pi * omega) * math.exp(-0.5 * math.pi * omega)


def _trimmed(nodes: Nodes, log_w: Array, probs: Array, counts: Sequence[Count], every: int = 16) -> Nodes:
    """Leave out nodes at which the integrand vanishes in float64, seen at ``every`` few of them.

    In long prompts all tokens of large weight are gone long before those of the smallest weights, of which there
    may be none.
    """
    if len(nodes.log_s) < 8 * every or all(count.number < 64 for count in counts):
        return nodes
    some = nodes.log_s[::every]
    y = np.exp(np.minimum(log_w.T[:, :, None] + some, math.log(LATEST)))
    chances, power = probs.T, np.zeros((len(y), len(some)))
    np.exp(np.negative(y, out=y), out=y)
    for count in counts:
        if not count.each:
            mean = weighted(chances, y, count.rows)
            power += max(count.number - HIGHEST, 0.0) * np.log(np.clip(mean, 1e-300, 1.0))
    vanishing = power < LEAST
    first = np.where(vanishing.any(axis=1), every * vanishing.argmax(axis=1), len(nodes.log_s))
    needed = np.minimum(nodes.counts, first)
    return Nodes(nodes.log_s[: needed.max()], nodes.weights[: needed.max()], needed)


def _alike(
    counts: NDArray[np.intp], order: NDArray[np.intp], classes: int, chunk: int = 2**16
) -> Iterator[NDArray[np.intp]]:
    """Split queries, sorted by falling numbers of nodes, into blocks that use the largest number of each block.

    A block has up to ``chunk`` numbers in a temporary array, so that it stays in the cache, and spends at most an
    eighth of that on nodes that a query would not need.
    """
    sizes: list[int] = (classes * counts[order]).tolist()
    start, padded = 0, 0
    for i, size in enumerate(sizes):
        padded += sizes[start] - size
        if i > start and ((i + 1 - start) * sizes[start] > chunk or padded > chunk // 8):
            yield order[start:i]
            start, padded = i, 0
    yield order[start:]


def mixed(counts: Sequence[Count], means: Sequence[tuple[Array, Array]], jacobian: Array) -> Derivative:
    """Return mixed derivatives of the product of all generating functions, times the weights of the nodes.

    They are a function of the kinds by whose generating functions G the product is differentiated. Of each kind are
    given G and its logarithm, (q, J).
    """
    scales: list[Array | float] = [jacobian, *(1.0 for _ in counts[1:])]
    each = [count.weights(*mean, HIGHEST, scale) for count, mean, scale in zip(counts, means, scales, strict=True)]
    known: dict[tuple[int, ...], Array] = {}

    def weights(*kinds: int) -> Array:
        if len(each) == 1:
            return each[0][len(kinds)]
        orders = tuple(kinds.count(kind) for kind in range(len(each)))
        if orders not in known:
            first, *others = (powers[order] for powers, order in zip(each, orders, strict=True))
            known[orders] = math.prod(others, start=first)
        return known[orders]

    return weights


def summed(weights: Derivative, single: Sequence[Array], pairs: Sequence[Sequence[Array]], *more: int) -> Array:
    """Add up tokens counted twice and pairs of kinds, with all weights differentiated by further kinds."""
    kinds = range(len(single))
    terms = [weights(k, *more) * single[k] for k in kinds]
    terms += [weights(k, m, *more) * pairs[k][m] for k in kinds for m in kinds]
    return sum(terms[1:], start=terms[0])


def _block(
    log_w: Array, turn: Array | None, probs: Array, own: Array, absent: Sequence[Array],
    counts: Sequence[Count], log_s: Array, jacobian: Array, form: Callable[[slice, Array, Array], object],
) -> Moments:  # fmt: skip
    """Integrate some queries, one a row of each array; ``absent`` nodes of each kind never occur, (q, 1)."""
    kinds, shape = range(len(counts)), (*log_w.shape, len(log_s))
    y, decay, b, *more = np.empty((6 + len(kinds), *shape))
    if log_s[-1] < 600.0:
        np.multiply(np.exp(log_w)[:, :, None], np.exp(log_s), out=y)
        np.minimum(y, LATEST, out=y)
    else:
        np.exp(np.minimum(np.add(log_w[:, :, None], log_s, out=y), math.log(LATEST), out=y), out=y)
    np.negative(y, out=b)
    np.exp(b, out=decay)
    means = [generating(probs, decay, b, count.rows, absent[k]) for k, count in enumerate(counts)]
    if turn is not None:
        real, (y, decay, b, *more) = (y, decay), np.empty((6 + len(kinds), *shape), dtype=complex)
        y.real, decay.real = real
        np.multiply(turn, y.real, out=y.imag)
        np.multiply(-decay.real, y.imag, out=decay.imag)
        falls: list[Any] = [1j * weighted(probs, decay.imag, count.rows) for count in counts]
        means = [
            (value + fall, log + fall / np.maximum(value, 1e-300))
            for (value, log), fall in zip(means, falls, strict=True)
        ]
    weights = mixed(counts, means, jacobian)
    double, single, twice, *products = more
    np.multiply(decay, y, out=b)
    b *= probs[:, :, None]
    np.multiply(b, y, out=double)  # one token counted twice
    np.subtract(b, double, out=single)  # y ∂b/∂y
    np.subtract(2.0, y, out=twice)  # y ∂(double)/∂y
    twice *= double
    for count, product in zip(counts, products, strict=True):
        # a linear map: real and imaginary parts stand side by side
        form(count.rows, b[:, count.rows].view(np.float64), product.view(np.float64))
    pairs = [
        [np.einsum("qcj,qcj->qj", b[:, count.rows], product[:, count.rows]) for product in products]
        for count in counts
    ]
    for k in kinds:  # squares: rounding must not make them negative
        np.maximum(pairs[k][k], 0.0, out=pairs[k][k])
    twofold = [weighted(own, double, count.rows) for count in counts]
    loss = 0.5 * np.einsum("qj->q", summed(weights, twofold, pairs))
    attention, gradient = [], []
    for k, count in enumerate(counts):
        rows, here = count.rows, decay[:, count.rows]
        attention.append(integral(weights(k), b[:, rows]))
        each = [
            integral(weights(k, m), np.multiply(single[:, rows], products[m][:, rows], out=here)) for m in kinds
        ]
        drawn = 2.0 * sum(each[1:], start=each[0])
        kept = own[:, rows] * integral(weights(k), twice[:, rows])
        gradient.append((drawn, -integral(summed(weights, twofold, pairs, k), b[:, rows]), kept))
    joined = [np.concatenate(term, axis=1) for term in zip(*gradient, strict=True)]
    return Moments(loss, 0.5 * balanced(*joined), np.concatenate(attention, axis=1))


def generating(probs: Array, decay: Array, minus: Array, rows: slice, absent: Array) -> tuple[Array, Array]:
    """Return G of a kind, and ln G to an absolute error far below 1/N, also where G is nearly 1.

    ``decay`` is e^(-y), (q, C, J), and ``minus`` is -y, whose first columns are overwritten.
    """
    mean = weighted(probs, decay, rows)
    log: Array = np.log(np.maximum(mean, 1e-300))
    early = minus[:, rows, : np.count_nonzero((mean > 0.5).any(axis=0))]  # G falls along the nodes
    near_one = weighted(probs[:, rows], np.expm1(early, out=early)) - absent
    log[:, : near_one.shape[1]] = log_mean(mean[:, : near_one.shape[1]], near_one)
    return mean, log


def log_mean(mean: Array, near_one: Array) -> Array:
    """Return ln G from G and G - 1."""
    return np.where(near_one > -0.5, np.log1p(np.maximum(near_one, -0.5)), np.log(np.maximum(mean, 1e-300)))


def weighted(weights: Array, array: Array, rows: slice = slice(None)) -> Array:
    """Sum over the nodes of a kind, (q, J)."""
    return np.asarray(np.matmul(weights[:, None, rows], array[:, rows])[:, 0])


def integral(weight: Array, array: Array) -> Array:
    """Sum over the values of s, (q, R)."""
    return np.asarray(np.matmul(array, weight[:, :, None])[:, :, 0])


def balanced(*terms: Array) -> Array:
    """Sum the terms of a gradient, and correct each row so that its sum is exactly zero.

    A shift of all scores does not change a loss. The sum that rounding leaves would shift the scores step by step
    in the tail of a run; it is subtracted from the entries in which terms cancel.
    """
    gradient: Array = sum(terms[1:], start=terms[0])
    scale: Array = sum((np.abs(term) for term in terms[1:]), start=np.abs(terms[0]) + 1e-300)
    return gradient - scale * (gradient.sum(axis=1) / scale.sum(axis=1))[:, None]


def capped(log_w: Array, most: float = 350.0) -> Array:
    """Scores relative to their largest, with gaps cut to ``most``, where the attention's square underflows."""
    with np.errstate(over="ignore"):
        log_w = log_w - log_w.max(axis=0)
    if np.all((log_w > -most) | (log_w == -np.inf)):
        return log_w
    order = np.argsort(-log_w, axis=0)
    ranked = np.take_along_axis(log_w, order, axis=0)
    there = np.isfinite(ranked[1:])
    gaps = np.full(there.shape, np.inf)
    gaps[there] = np.minimum((ranked[:-1] - np.where(there, ranked[1:], 0.0))[there], most)
    found = np.zeros_like(log_w)
    np.put_along_axis(found, order, np.vstack([np.zeros(log_w.shape[1]), -np.cumsum(gaps, axis=0)]), axis=0)
    return found


def trapezoid(
    log_w: Array, counts: Sequence[Count], step: float = 0.2, first: float = -4.0, last: float = 4.25
) -> Nodes:
    """Nodes of the trapezoid rule in x for ∫ (...) ds/s with N s = exp(x - exp(-x)), which is exact to rounding.

    N is the largest number of tokens. The last node is where the slowest decay, exp(-s w_min) for each of the
    tokens of the shortest prompt, is complete.
    """
    N, fewest = sum(count.number for count in counts), sum(1 if count.each else count.number for count in counts)
    lowest = math.log(N / fewest) - np.min(log_w, axis=0, where=np.isfinite(log_w), initial=0.0)
    needed = ((last - first + lowest) / step).astype(np.intp) + 1
    x: Array = first + step * np.arange(float(needed.max(initial=1)))
    left = np.exp(-x)
    return Nodes(x - left - math.log(N), step * (1.0 + left), needed)
