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
from collections.abc import Callable
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
CHUNK = 2**21  # numbers in one temporary of the quadrature
FLOOR_WORK = 3e7  # numbers in all evaluations of a minimisation

Form = Callable[[Array, slice], tuple[Array, Array]]


class Moments(NamedTuple):
    """Of Q queries over C classes."""

    loss: Array  # (Q,)
    gradient: Array  # with respect to the scores of the classes, (C, Q)
    attention: Array  # expected, (C, Q)
    change: Array  # of the gradient in a direction, (C, Q); empty where none was given


def moments(
    log_w: Array, probs: Array, own: Array, N: float, form: Form, direction: Array | None = None
) -> Moments:
    """Integrate losses, gradients and attention of all queries, in blocks that bound the memory.

    Scores ``log_w`` are (C, Q), -inf for a class that never occurs; probabilities (C, 1) or (C, Q); ``own`` is the
    weight of a token counted twice, ``C_mm + σ²``, (C, Q). ``form`` takes z, (C, Q', J), which it may overwrite,
    and the block of queries, a slice; it returns ``z^T C z``, (Q', J), and ``C z``, (C, Q', J), for the matrices C
    of these queries. With a ``direction``, (C, Q), the gradients are differentiated along it.
    """
    there = np.isfinite(log_w)
    log_w = _capped(log_w)
    x, jacobian = _nodes(log_w, N)
    log_s = x - np.exp(-x) - math.log(N)
    size = max(1, CHUNK // (len(log_w) * len(x)))
    parts = []
    for start in range(0, log_w.shape[1], size):
        block = slice(start, start + size)
        masked = np.where(there[:, block], np.broadcast_to(probs, log_w.shape)[:, block], 0.0)
        absent = np.broadcast_to(probs, log_w.shape)[:, block].sum(axis=0) - masked.sum(axis=0)
        toward = None if direction is None else direction[:, block]
        parts.append(
            _block(log_w[:, block], masked, absent, own[:, block], N, log_s, jacobian, form, block, toward)
        )
    return Moments(*(np.concatenate(part, axis=-1) for part in zip(*parts, strict=True)))


def _block(
    log_w: Array,
    probs: Array,
    absent: Array,
    own: Array,
    N: float,
    log_s: Array,
    jacobian: Array,
    form: Form,
    block: slice,
    direction: Array | None,
) -> Moments:
    # (C, Q, J); e^-y is zero long before y = 700, and below that exp is slow
    if float(log_w.min(initial=0.0, where=probs > 0)) > -600.0:
        y = np.minimum(np.exp(np.maximum(log_w, -700.0))[:, :, None] * np.exp(np.minimum(log_s, 700.0)), 700.0)
    else:
        y = np.exp(np.minimum(log_s + log_w[:, :, None], math.log(700.0)))
    decay = np.exp(-y)
    near_one = np.einsum("mq,mqj->qj", probs, np.expm1(-y)) - absent[:, None]
    phi = np.einsum("mq,mqj->qj", probs, decay)
    first, second, third, *fourth = _weights(phi, near_one, jacobian, N, 3 if direction is None else 4)

    b = decay
    b *= y
    b *= probs[:, :, None]
    expected = np.einsum("qj,mqj->mq", first, b)
    double = b * y  # one token counted twice
    diagonal = np.einsum("mqj,mq->qj", double, own)
    pairs, product = form(b.copy(), block)
    loss = 0.5 * np.einsum("qj->q", second * pairs + first * diagonal)
    both = third * pairs + second * diagonal
    gradient = _balanced(
        2.0 * _integral(second, b - double, product),
        -np.einsum("qj,mqj->mq", both, b),
        own * np.einsum("qj,mqj->mq", first, 2.0 * double - double * y),
    )
    if direction is None:
        return Moments(loss, 0.5 * gradient, expected, np.zeros((0, len(loss))))

    v = direction[:, :, None]
    change_b = v * (b - double)
    change_phi = -np.einsum("mqj->qj", v * b)
    change_double = v * (2.0 * double - double * y)
    _, change_product = form(change_b.copy(), block)
    change_pairs = 2.0 * np.einsum("mqj,mqj->qj", product, change_b)
    change_diagonal = np.einsum("mqj,mq->qj", change_double, own)
    change_both = (
        change_phi * (fourth[0] * pairs + third * diagonal) + third * change_pairs + second * change_diagonal
    )
    change = 2.0 * (
        _integral(third * change_phi, b - double, product)
        + _integral(second, change_b - change_double, product)
        + _integral(second, b - double, change_product)
    )
    change -= np.einsum("qj,mqj->mq", change_both, b) + np.einsum("qj,mqj->mq", both, change_b)
    change += own * np.einsum("qj,mqj->mq", second * change_phi, 2.0 * double - double * y)
    change += own * np.einsum("qj,mqj->mq", first, (2.0 - y) * change_double - v * double * y)
    return Moments(loss, 0.5 * gradient, expected, 0.5 * change)


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
    x, jacobian = _nodes(log_w, N)
    y = np.exp(np.minimum(log_w + (x - np.exp(-x) - math.log(N)), math.log(LATEST)))
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

    rounds = int(np.clip(FLOOR_WORK / (target.size * len(_nodes(_capped(start), N)[0])), 2, 200))
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


def _nodes(log_w: Array, N: float) -> tuple[Array, Array]:
    """Nodes x and weights of the trapezoid rule for ∫ (...) ds/s with N s = exp(x - exp(-x)).

    The last node is where the slowest decay, exp(-s w_min), is complete.
    """
    lowest = -float(np.min(log_w, where=np.isfinite(log_w), initial=0.0))
    last = NODE_LAST + math.log(N) + lowest
    x: Array = NODE_FIRST + NODE_STEP * np.arange(float(int((last - NODE_FIRST) / NODE_STEP) + 1))
    return x, NODE_STEP * (1.0 + np.exp(-x))
