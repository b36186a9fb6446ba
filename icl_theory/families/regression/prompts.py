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
from icl_theory.engine.progress import CountProgress

# Trapezoid rule in x with N s = exp(x - exp(-x))
NODE_STEP = 0.18
NODE_FIRST = -4.0
NODE_LAST = 4.25
GAP_CAP = 350.0  # a score gap beyond which the lower attention's square is below the range of float64
LATEST = 300.0  # s w from which e^(-s w) counts as none: products of two are no subnormal numbers, which are slow
CHUNK = 2**16  # numbers in one temporary of the quadrature
FLOOR_WORK = 3e7  # numbers in all evaluations of a minimisation

Form = Callable[[Array, NDArray[np.intp], Array], tuple[Array, Array]]


class Nodes(NamedTuple):
    """Of the trapezoid rule: ln s and weights, (J,), and how many of them each query needs, (Q,)."""

    log_s: Array
    weights: Array
    counts: NDArray[np.intp]


class Moments(NamedTuple):
    """Of Q queries over C classes."""

    loss: Array  # (Q,)
    gradient: Array  # with respect to the scores of the classes, (C, Q)
    attention: Array  # expected, (C, Q)
    change: Array  # of the gradient in a direction, (C, Q); empty where none was given


def moments(
    log_w: Array, probs: Array, own: Array, N: float, form: Form, direction: Array | None = None
) -> Moments:
    """Integrate losses, gradients and attention of all queries, in blocks that stay in the processor's cache.

    Scores ``log_w`` are (C, Q), -inf for a class that never occurs; probabilities (C, 1) or (C, Q); ``own`` is the
    weight of a token counted twice, ``C_mm + σ²``, (C, Q). ``form`` takes z, (C, n), which it may overwrite, and the
    query of each of its columns, (n,), in ascending order; it returns ``z^T C z``, (n,), and ``C z``, (C, n), for the
    matrices C of these queries. With a ``direction``, (C, Q), the gradients are differentiated along it.
    """
    there = np.isfinite(log_w)
    log_w = _capped(log_w)
    absent = np.zeros(log_w.shape[1])
    if not there.all():
        given = np.broadcast_to(probs, log_w.shape)
        probs = np.where(there, given, 0.0)
        absent = given.sum(axis=0) - probs.sum(axis=0)
    nodes = _nodes(log_w, N)
    parts = []
    for block in _in_cache(len(log_w) * nodes.counts):
        toward = None if direction is None else direction[:, block]
        own_probs = probs if probs.shape[1] == 1 else probs[:, block]
        parts.append(
            _block(log_w[:, block], own_probs, absent[block], own[:, block], N, nodes, form, block, toward)
        )
    return Moments(*(np.concatenate(part, axis=-1) for part in zip(*parts, strict=True)))


def _in_cache(sizes: NDArray[np.intp]) -> Iterator[slice]:
    """Split queries into blocks whose sizes sum to CHUNK at most, or of one query."""
    ends = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        before = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + CHUNK, side="right")))
        yield slice(start, stop)
        start = stop


class _Columns:
    """The nodes of a block of queries side by side, those of one query after those of the other."""

    def __init__(self, counts: NDArray[np.intp]) -> None:
        self.starts = np.cumsum(counts) - counts
        self.query = np.repeat(np.arange(len(counts)), counts)
        self.place = np.arange(len(self.query)) - self.starts[self.query]

    def arrays(self, count: int, classes: int) -> Array:
        """So many arrays of a row for each class, (count, C, n), with what was left in them."""
        size = count * classes * len(self.query)
        flat = _scratch.held
        if len(flat) < size:
            flat = np.empty(size)
            if size <= 16 * CHUNK:
                _scratch.held = flat
        return flat[:size].reshape(count, classes, -1)

    def spread(self, array: Array, to: Array) -> Array:
        """Values of each query, (C, Q), in all of its columns; what has one column stays as it is."""
        return array if array.shape[1] == 1 else np.take(array, self.query, axis=1, out=to, mode="clip")

    def total(self, weight: Array, array: Array, by: Array) -> Array:
        """Sum over the columns of each query, (C, Q), by way of another array."""
        return np.add.reduceat(np.multiply(weight, array, out=by), self.starts, axis=1)


class _Scratch(threading.local):
    """Memory of a thread that one block uses after the other: to get it anew costs more than the arithmetic."""

    def __init__(self) -> None:
        self.held = np.empty(0)


_scratch = _Scratch()


def _block(
    log_w: Array,
    probs: Array,
    absent: Array,
    own: Array,
    N: float,
    nodes: Nodes,
    form: Form,
    block: slice,
    direction: Array | None,
) -> Moments:
    columns = _Columns(nodes.counts[block])
    place, starts, query = columns.place, columns.starts, columns.query + block.start
    y, b, double, single, twice, product, part, *more = columns.arrays(7 if direction is None else 11, len(log_w))
    each = columns.spread(probs, product)
    if float(log_w.min(initial=0.0, where=probs > 0)) > -600.0:
        np.multiply(columns.spread(np.exp(log_w), y), np.exp(nodes.log_s[place]), out=y)
    else:
        np.exp(np.minimum(nodes.log_s[place] + columns.spread(log_w, y), math.log(700.0)), out=y)
    np.negative(y, out=b)
    near_one = _mean(each, np.expm1(b, out=part)) - absent[columns.query]
    phi = _mean(each, np.exp(b, out=b))
    first, second, third, *fourth = _weights(
        phi, near_one, nodes.weights[place], N, 3 if direction is None else 4
    )
    b *= y
    b *= each
    np.multiply(b, y, out=double)  # one token counted twice
    np.subtract(b, double, out=single)  # y ∂b/∂y
    np.subtract(2.0, y, out=twice)  # and that of double
    twice *= double
    diagonal = np.einsum("mj,mj->j", double, columns.spread(own, part))
    np.copyto(part, b)
    pairs, product = form(part, query, product)
    loss = 0.5 * np.add.reduceat(second * pairs + first * diagonal, starts)
    both = third * pairs + second * diagonal
    expected = columns.total(first, b, part)
    gradient = _balanced(
        2.0 * columns.total(second, np.multiply(single, product, out=part), part),
        -columns.total(both, b, part),
        own * columns.total(first, twice, part),
    )
    if direction is None:
        return Moments(loss, 0.5 * gradient, expected, np.zeros((0, len(loss))))

    v, change_b, change_double, change_product = more
    v = columns.spread(direction, v)
    np.multiply(v, single, out=change_b)
    np.multiply(v, twice, out=change_double)
    change_phi = -np.einsum("mj,mj->j", v, b)
    np.copyto(part, change_b)
    _, change_product = form(part, query, change_product)
    change_pairs = 2.0 * np.einsum("mj,mj->j", product, change_b)
    change_diagonal = np.einsum("mj,mj->j", change_double, columns.spread(own, part))
    change_both = (
        change_phi * (fourth[0] * pairs + third * diagonal) + third * change_pairs + second * change_diagonal
    )
    change = columns.total(third * change_phi, np.multiply(single, product, out=part), part)
    change += columns.total(second, np.multiply(single, change_product, out=part), part)
    np.subtract(change_b, change_double, out=part)
    change += columns.total(second, np.multiply(part, product, out=part), part)
    change *= 2.0
    change -= columns.total(change_both, b, part) + columns.total(both, change_b, part)
    change += own * columns.total(second * change_phi, twice, part)
    np.multiply(v, double, out=part)
    part += change_double
    part *= y
    change += own * columns.total(first, np.subtract(2.0 * change_double, part, out=part), part)
    return Moments(loss, 0.5 * gradient, expected, 0.5 * change)


def _mean(probs: Array, array: Array) -> Array:
    """Mean over the classes, (n,)."""
    return probs[:, 0] @ array if probs.shape[1] == 1 else np.asarray(np.einsum("mj,mj->j", probs, array))


def _weights(phi: Array, near_one: Array, jacobian: Array, N: float, count: int) -> list[Array]:
    """Weights ``N (N-1) ... (N-k+1) φ^(N-k)`` of the nodes, k = 1 ... count, from φ and φ - 1."""
    # φ^N needs ln φ to an absolute error far below 1/N, also where φ is nearly 1
    small = np.log(np.maximum(phi, 1e-300))
    log_phi = np.where(near_one > -0.5, np.log1p(np.maximum(near_one, -0.5)), small)
    return [
        jacobian * math.prod(N - i for i in range(k)) * np.exp((N - k) * log_phi) if k <= N else np.zeros_like(phi)
        for k in range(1, count + 1)
    ]


def one_query(
    log_w: Array, probs: Array, own: Array, N: float, matrix: Array, curved: bool = False
) -> tuple[float, Array, Array, Array]:
    """Return `moments` of a single query by products of matrices.

    Parameters
    ----------
    log_w, probs, own : ndarray, (C,)
        As in `moments`.
    N : float
        Prompt length.
    matrix : ndarray, (C, C)
        The error form of the query.
    curved : bool
        Whether to find the Hessian too.

    Returns
    -------
    tuple
        Loss, gradient and expected attention, (C,), and the Hessian, (C, C), zero unless asked for.
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
    gradient = 0.5 * _balanced(*(term[:, None] for term in terms))[:, 0]
    loss, hessian = 0.5 * float(second @ pairs + first @ diagonal), np.zeros_like(matrix)
    if curved:
        crossed = (2.0 * inner * third + own[:, None] * twice * second) @ b.T
        hessian = matrix * ((single * second) @ single.T)
        hessian += 0.5 * (b * (fourth * pairs + third * diagonal)) @ b.T - 0.5 * (crossed + crossed.T)
        alone = 2.0 * ((single - twice) * product) @ second - single @ both
        alone += own * (((2.0 - y) * twice - y * double) @ first)
        hessian += np.diag(0.5 * alone)
    return loss, gradient, b @ first, hessian


def _integral(weight: Array, left: Array, right: Array) -> Array:
    return np.einsum("qj,mqj,mqj->mq", weight, left, right)


def _balanced(*terms: Array) -> Array:
    """Sum the terms of a gradient; each column is left with the sum zero that it has.

    A loss does not notice a shift of its column. What rounding leaves in the sum is taken from the entries in which
    terms cancel: in the tail of a run it would shift the scores, step by step.
    """
    gradient: Array = sum(terms[1:], start=terms[0])
    scale: Array = sum((np.abs(term) for term in terms), start=np.full(gradient.shape[1], 1e-300))
    return gradient - scale * (gradient.sum(axis=0) / scale.sum(axis=0))


def presence(probs: Array, N: float) -> Array:
    """Probability ``1 - (1 - p)^N`` that a prompt contains a feature of probability p; 1 for N = ∞."""
    if math.isinf(N):
        return np.ones_like(probs)
    with np.errstate(divide="ignore"):
        return np.asarray(-np.expm1(N * np.log1p(-probs)))


def infima(finite: Callable[[Array], Moments], target: NDArray[np.bool_], N: float, noise: float) -> Array:
    """Infima of the losses over the scores, (Q,), found from above by bounded work, as a rule to 1e-6.

    With noise the loss may have valleys at infinity besides its minimum, a little above it, where the search ends.

    Without noise a loss approaches its infimum as the target's score grows without bound and prompts with the
    query's feature cost nothing; what is left, the loss of those without it, has an infimum over the other scores.
    ``finite`` takes scores and returns their `Moments`; ``target`` says which class is the query's own, (C, Q).
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

    rounds = int(np.clip(FLOOR_WORK / (len(target) * _nodes(_capped(start), N).counts.sum()), 2, 200))
    options = {"ftol": 1e-15, "gtol": 1e-8, "maxiter": rounds, "maxfun": 2 * rounds, "maxcor": 20}
    first = np.where(free, start, 0.0)
    begins = (first, np.zeros_like(first)) if first.any() else (first,)  # with noise there are local minima
    with CountProgress(None, "evaluations for the floor") as shown:
        shown.update(0, 2 * rounds * len(begins))
        for begin in begins:
            minimize(objective, begin.ravel(), jac=True, method="L-BFGS-B", options=options)
    return best


def _capped(log_w: Array) -> Array:
    """Scores relative to their largest, with gaps between neighbours cut to GAP_CAP: the same attention."""
    log_w = log_w - log_w.max(axis=0)
    finite = np.isfinite(log_w)
    if np.all(log_w[finite] > -GAP_CAP):
        return log_w
    order = np.argsort(-log_w, axis=0)
    ranked = np.take_along_axis(log_w, order, axis=0)
    there = np.isfinite(ranked[1:])
    gaps = np.full(there.shape, np.inf)
    gaps[there] = np.minimum((ranked[:-1] - np.where(there, ranked[1:], 0.0))[there], GAP_CAP)
    capped = np.zeros_like(log_w)
    np.put_along_axis(capped, order, np.vstack([np.zeros(log_w.shape[1]), -np.cumsum(gaps, axis=0)]), axis=0)
    return capped


def _nodes(log_w: Array, N: float) -> Nodes:
    """Nodes of the trapezoid rule for ∫ (...) ds/s with N s = exp(x - exp(-x)).

    The last one is where the slowest decay, exp(-s w_min) for each of N tokens, is complete.
    """
    lowest = -np.min(log_w, axis=0, where=np.isfinite(log_w), initial=0.0)
    counts = ((NODE_LAST - NODE_FIRST + lowest) / NODE_STEP).astype(np.intp) + 1
    x: Array = NODE_FIRST + NODE_STEP * np.arange(float(counts.max(initial=1)))
    left = np.exp(-x)
    return Nodes(x - left - math.log(N), NODE_STEP * (1.0 + left), counts)
