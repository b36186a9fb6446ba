r"""Finite prompts: expectations over multinomial counts as one-dimensional integrals.

With :math:`y_m = s w_m`, :math:`w_m = e^{S_m}`, :math:`\varphi = \sum_m p_m e^{-y_m}` and
:math:`b_m = p_m y_m e^{-y_m}`,

.. math:: E_n\Bigl[a^\top C a + \sigma^2\sum_m a_m^2/n_m\Bigr] = \int_0^\infty \Bigl[N(N-1)\varphi^{N-2}\,
    b^\top C b + N\varphi^{N-1}\sum_m b_m y_m (C_{mm} + \sigma^2)\Bigr]\,\frac{ds}{s}.

Classes of features that share a score enter as one, with their probabilities summed. See docs/theory.md, "Finite
prompts".
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.engine.progress import Work

LATEST = 300.0  # cap on s w: products of two e^(-s w) stay above the subnormal numbers, which are slow

Form = Callable[[NDArray[np.intp], Array, Array], Array]


class Nodes(NamedTuple):
    """The trapezoid rule: ln s and weights, (J,), and the number of nodes that each query needs, (Q,)."""

    log_s: Array
    weights: Array
    counts: NDArray[np.intp]


class Moments(NamedTuple):
    """Moments of Q queries over C classes."""

    loss: Array  # (Q,)
    gradient: Array  # with respect to the scores of the classes, (C, Q)
    attention: Array  # expected, (C, Q)
    change: Array  # of the gradient in a direction, (C, Q); empty without a direction


def moments(
    log_w: Array, probs: Array, own: Array, N: float, form: Form, direction: Array | None = None
) -> Moments:
    """Integrate losses, gradients and attention of all queries, in blocks that fit the processor's cache.

    Scores ``log_w`` are (C, Q), -inf for a class that never occurs; probabilities (C, 1) or (C, Q); ``own`` is the
    weight of a token counted twice, ``C_mm + σ²``, (C, Q). ``form(queries, z, out)`` takes q queries and z, (q, C,
    J); it returns ``z^T C z``, (q, J), for their matrices C and writes ``C z`` to ``out``. With a ``direction``,
    (C, Q), the gradients are differentiated along it.
    """
    there = np.isfinite(log_w)
    log_w = _capped(log_w)
    absent, probs = np.where(there, 0.0, probs).sum(axis=0), np.where(there, probs, 0.0)
    nodes = _nodes(log_w, N)
    parts, order = [], np.argsort(-nodes.counts, kind="stable")
    for queries in _alike(nodes.counts, order, len(log_w)):
        here = slice(0, nodes.counts[queries[0]])
        scores, p, twice = (array.T[queries] for array in (log_w, probs, own))
        toward = None if direction is None else direction.T[queries]
        log_s, jacobian = nodes.log_s[here], nodes.weights[here]
        parts.append(_block(scores, p, twice, absent[queries], N, log_s, jacobian, form, queries, toward))
    back = np.argsort(order)
    return Moments(*(np.concatenate(part)[back].T for part in zip(*parts, strict=True)))


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


class _Scratch(threading.local):
    """Memory of a thread that its blocks reuse: allocating it anew costs more than the arithmetic."""

    def __init__(self) -> None:
        self._held = np.empty(0)

    def arrays(self, count: int, shape: tuple[int, ...], most: int = 2**20) -> Array:
        """Return uninitialised arrays of a shape; up to ``most`` numbers (8 MiB) are kept for the next call."""
        size, held = count * math.prod(shape), self._held
        if len(held) < size:
            held = np.empty(size)
            if size <= most:
                self._held = held
        return held[:size].reshape(count, *shape)


_scratch = _Scratch()


def _block(
    log_w: Array,
    probs: Array,
    own: Array,
    absent: Array,
    N: float,
    log_s: Array,
    jacobian: Array,
    form: Form,
    queries: NDArray[np.intp],
    direction: Array | None,
) -> Moments:
    """Return the moments of some queries, one a row of each array."""
    shape = (*log_w.shape, len(log_s))
    y, b, double, single, twice, product, part, *more = _scratch.arrays(7 if direction is None else 10, shape)
    if log_s[-1] < 600.0:
        np.multiply(np.exp(log_w)[:, :, None], np.exp(log_s), out=y)
        np.minimum(y, LATEST, out=y)
    else:
        np.exp(np.minimum(np.add(log_w[:, :, None], log_s, out=y), math.log(LATEST), out=y), out=y)
    np.negative(y, out=b)
    phi = _weighted(probs, np.exp(b, out=part))
    early = b[:, :, : np.count_nonzero((phi > 0.5).any(axis=0))]  # φ falls along the nodes
    near_one = _weighted(probs, np.expm1(early, out=early)) - absent[:, None]
    first, second, third, *fourth = _weights(phi, near_one, jacobian, N, 3 if direction is None else 4)
    np.multiply(part, y, out=b)
    b *= probs[:, :, None]
    np.multiply(b, y, out=double)  # one token counted twice
    np.subtract(b, double, out=single)  # y ∂b/∂y
    np.subtract(2.0, y, out=twice)  # y ∂(double)/∂y
    twice *= double
    diagonal, pairs = _weighted(own, double), form(queries, b, product)
    loss = 0.5 * np.einsum("qj->q", second * pairs + first * diagonal)
    both = third * pairs + second * diagonal
    expected = _integral(first, b)
    gradient = _balanced(
        2.0 * _integral(second, np.multiply(single, product, out=part)),
        -_integral(both, b),
        own * _integral(first, twice),
    )
    if direction is None:
        return Moments(loss, 0.5 * gradient, expected, np.zeros((len(loss), 0)))

    change_b, change_double, change_product = more
    v = direction[:, :, None]
    np.multiply(v, single, out=change_b)
    np.multiply(v, twice, out=change_double)
    change_phi = -_weighted(direction, b)
    form(queries, change_b, change_product)
    change_pairs = 2.0 * np.einsum("qmj,qmj->qj", product, change_b)
    change_diagonal = _weighted(own, change_double)
    change_both = (
        change_phi * (fourth[0] * pairs + third * diagonal) + third * change_pairs + second * change_diagonal
    )
    change = _integral(third * change_phi, np.multiply(single, product, out=part))
    change += _integral(second, np.multiply(single, change_product, out=part))
    np.subtract(change_b, change_double, out=part)
    change += _integral(second, np.multiply(part, product, out=part))
    change *= 2.0
    change -= _integral(change_both, b) + _integral(both, change_b)
    change += own * _integral(second * change_phi, twice)
    np.multiply(v, double, out=part)
    part += change_double
    part *= y
    change += own * _integral(first, np.subtract(2.0 * change_double, part, out=part))
    return Moments(loss, 0.5 * gradient, expected, 0.5 * change)


def _weighted(weights: Array, array: Array) -> Array:
    """Sum over the classes, (q, J)."""
    return np.asarray(np.matmul(weights[:, None, :], array)[:, 0])


def _integral(weight: Array, array: Array) -> Array:
    """Sum over the nodes, (q, C)."""
    return np.asarray(np.matmul(array, weight[:, :, None])[:, :, 0])


def _weights(phi: Array, near_one: Array, jacobian: Array, N: float, count: int) -> list[Array]:
    """Weights ``N (N-1) ... (N-k+1) φ^(N-k)`` of the nodes, k = 1 ... count, from φ and φ - 1 at the first ones."""
    # φ^N needs ln φ to an absolute error far below 1/N, also where φ is nearly 1
    power = np.log(np.maximum(phi, 1e-300))
    early = power[..., : near_one.shape[-1]]
    np.copyto(early, np.log1p(np.maximum(near_one, -0.5)), where=near_one > -0.5)
    highest = int(min(N, count))
    power *= N - highest
    there = power > -700.0  # below that exp is slow
    weight = np.exp(np.maximum(power, -700.0, out=power), out=power)
    weight *= jacobian
    weight *= there
    weights = [np.zeros_like(phi) for _ in range(highest, count)]
    for k in range(highest, 0, -1):
        weights.insert(0, weight * math.prod(N - i for i in range(k)))
        weight *= phi
    return weights


def one_query(
    log_w: Array, probs: Array, own: Array, N: float, matrix: Array, curved: bool = False
) -> tuple[float, Array, Array, Array]:
    """Return loss, gradient, attention and Hessian (zeros unless ``curved``) of a query with error form ``matrix``.

    The other arguments are those of `moments`, (C,) each.
    """
    there = np.isfinite(log_w)
    log_w = _capped(log_w[:, None])
    log_s, jacobian, _ = _nodes(log_w, N)
    y = np.exp(np.minimum(log_w + log_s, math.log(LATEST)))
    absent, probs = float(probs[~there].sum()), np.where(there, probs, 0.0)
    near_one, decay = probs @ np.expm1(-y) - absent, np.exp(-y)
    first, second, third, fourth = _weights(probs @ decay, near_one, jacobian, N, 4)
    b = decay * y * probs[:, None]
    double = b * y
    single, twice = b - double, 2.0 * double - double * y  # y ∂b/∂y, and that of b y
    diagonal, product = own @ double, matrix @ b
    pairs, inner = (b * product).sum(axis=0), single * product
    both = third * pairs + second * diagonal
    terms = 2.0 * (inner @ second), -(b @ both), own * (twice @ first)
    gradient = 0.5 * _balanced(*(term[None] for term in terms))[0]
    loss, hessian = 0.5 * float(second @ pairs + first @ diagonal), np.zeros_like(matrix)
    if curved:
        crossed = (2.0 * inner * third + own[:, None] * twice * second) @ b.T
        hessian = matrix * ((single * second) @ single.T)
        hessian += 0.5 * (b * (fourth * pairs + third * diagonal)) @ b.T - 0.5 * (crossed + crossed.T)
        alone = 2.0 * ((single - twice) * product) @ second - single @ both
        alone += own * (((2.0 - y) * twice - y * double) @ first)
        hessian += np.diag(0.5 * alone)
    return loss, gradient, b @ first, hessian


def _balanced(*terms: Array) -> Array:
    """Sum the terms of a gradient, and correct each row so that its sum is exactly zero.

    A shift of all scores does not change a loss. The sum that rounding leaves would shift the scores step by step
    in the tail of a run; it is subtracted from the entries in which terms cancel.
    """
    gradient: Array = sum(terms[1:], start=terms[0])
    scale: Array = sum((np.abs(term) for term in terms), start=np.full(gradient.shape, 1e-300))
    return gradient - scale * (gradient.sum(axis=1) / scale.sum(axis=1))[:, None]


def presence(probs: Array, N: float) -> Array:
    """Probability ``1 - (1 - p)^N`` that a prompt contains a feature of probability p; 1 for N = ∞."""
    if math.isinf(N):
        return np.ones_like(probs)
    with np.errstate(divide="ignore"):
        return np.asarray(-np.expm1(N * np.log1p(-probs)))


def infima(
    finite: Callable[[Array], Moments], target: NDArray[np.bool_], N: float, noise: float, work: float = 3e7
) -> Array:
    """Infima of the losses over the scores, (Q,), approached from above, usually to 1e-6.

    ``finite`` takes scores and returns their `Moments`; ``target`` marks the query's own class, (C, Q). All
    evaluations together compute ``work`` numbers.

    Without noise a loss approaches its infimum as the target's score grows without bound, and prompts with the
    query's feature cost nothing. The loss of the prompts without it is minimised over the other scores. With noise
    the loss may have valleys at infinity slightly above its minimum, in which the search may end.
    """
    from scipy.optimize import minimize

    start: Array = np.where(target, math.log(len(target)) if noise > 0.0 else -np.inf, 0.0)
    scale = finite(start).loss
    weight = np.where(scale > 1e-200, scale, 1.0)
    best = scale.copy()
    free = np.isfinite(start)

    def objective(flat: Array) -> tuple[float, Array]:
        found = finite(np.where(free, flat.reshape(target.shape), -np.inf))
        shown.add()
        np.minimum(best, found.loss, out=best)
        return float(np.sum(found.loss / weight)), (found.gradient / weight).ravel()

    rounds = int(np.clip(work / (len(target) * _nodes(_capped(start), N).counts.sum()), 2, 200))
    options = {"ftol": 1e-15, "gtol": 1e-8, "maxiter": rounds, "maxfun": 2 * rounds, "maxcor": 20}
    first = np.where(free, start, 0.0)
    begins = (first, np.zeros_like(first)) if first.any() else (first,)  # with noise there are local minima
    with Work("", "evaluations for the floor") as shown:
        shown.update(0, 2 * rounds * len(begins))
        for begin in begins:
            minimize(objective, begin.ravel(), jac=True, method="L-BFGS-B", options=options)
    return best


def _capped(log_w: Array, most: float = 350.0) -> Array:
    """Scores relative to their largest, with gaps cut to ``most``, where the attention's square underflows."""
    log_w = log_w - log_w.max(axis=0)
    finite = np.isfinite(log_w)
    if np.all(log_w[finite] > -most):
        return log_w
    order = np.argsort(-log_w, axis=0)
    ranked = np.take_along_axis(log_w, order, axis=0)
    there = np.isfinite(ranked[1:])
    gaps = np.full(there.shape, np.inf)
    gaps[there] = np.minimum((ranked[:-1] - np.where(there, ranked[1:], 0.0))[there], most)
    capped = np.zeros_like(log_w)
    np.put_along_axis(capped, order, np.vstack([np.zeros(log_w.shape[1]), -np.cumsum(gaps, axis=0)]), axis=0)
    return capped


def _nodes(log_w: Array, N: float, step: float = 0.18, first: float = -4.0, last: float = 4.25) -> Nodes:
    """Nodes of the trapezoid rule in x for ∫ (...) ds/s with N s = exp(x - exp(-x)), which is exact to rounding.

    The last one is where the slowest decay, exp(-s w_min) for each of N tokens, is complete.
    """
    lowest = -np.min(log_w, axis=0, where=np.isfinite(log_w), initial=0.0)
    counts = ((last - first + lowest) / step).astype(np.intp) + 1
    x: Array = first + step * np.arange(float(counts.max(initial=1)))
    left = np.exp(-x)
    return Nodes(x - left - math.log(N), step * (1.0 + left), counts)
