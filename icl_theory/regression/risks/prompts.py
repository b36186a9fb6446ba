"""Finite prompts: one query with its Hessian, the presence of a feature, and infima of the loss.

The integrals are those of `icl_theory.tokens.square`. Classes of features that
share a score enter as one, with their probabilities summed. See docs/theory.md, "Finite
prompts".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.engine.progress import Progress
from icl_theory.tokens.generating import TokenCount, log_mean
from icl_theory.tokens.quadrature import LOG_LATEST, capped, is_kept, trapezoid
from icl_theory.tokens.square import Moments
from icl_theory.tokens.tilted import balanced


class Seen(NamedTuple):
    """Loss, gradient and attention, (C,), and Hessian, (C, C), of one query."""

    loss: float
    gradient: Array
    attention: Array
    hessian: Array


def one_query(
    log_w: Array,
    probs: Array,
    own: Array,
    N: float,
    matrix: Array,
    curved: bool = False,
) -> Seen:
    """See a query with the error form ``matrix``; the Hessian is zero unless ``curved``.

    The other arguments are those of `moments`, (C,) each. The search for levels needs
    Hessians by the thousand, and this takes a third of the time of `moments` along each
    of the scores.
    """
    there = np.isfinite(log_w)
    log_w = capped(log_w[:, None])
    log_s, jacobian, _ = trapezoid(log_w, [TokenCount(N)])
    y = np.exp(np.minimum(log_w + log_s, LOG_LATEST))
    absent = float(probs[~there].sum())
    probs = np.where(there, probs, 0.0)
    near_one = probs @ np.expm1(-y) - absent
    decay = np.exp(-y) * is_kept(y)
    mean = probs @ decay
    log = log_mean(mean, near_one)
    first, second, third, fourth = (
        jacobian * each for each in TokenCount(N).derivatives(mean, log, 4)[1:]
    )
    b = decay * y * probs[:, None]
    double = b * y
    # y ∂b/∂y, and that of b y
    single = b - double
    twice = 2.0 * double - double * y
    diagonal = own @ double
    product = matrix @ b
    pairs = (b * product).sum(axis=0)
    inner = single * product
    both = third * pairs + second * diagonal
    terms = 2.0 * (inner @ second), -(b @ both), own * (twice @ first)
    gradient = 0.5 * balanced(*(term[None] for term in terms))[0]
    loss = 0.5 * float(second @ pairs + first @ diagonal)
    hessian = np.zeros_like(matrix)
    if curved:
        crossed = (2.0 * inner * third + own[:, None] * twice * second) @ b.T
        hessian = matrix * ((single * second) @ single.T)
        hessian += 0.5 * (b * (fourth * pairs + third * diagonal)) @ b.T - 0.5 * (
            crossed + crossed.T
        )
        alone = 2.0 * ((single - twice) * product) @ second - single @ both
        alone += own * (((2.0 - y) * twice - y * double) @ first)
        hessian += np.diag(0.5 * alone)
    return Seen(loss, gradient, b @ first, hessian)


def presence(probs: Array, N: float) -> Array:
    """Probability ``1 - (1 - p)^N`` that a prompt contains a feature of probability p; 1 for N = ∞."""
    if math.isinf(N):
        return np.ones_like(probs)
    with np.errstate(divide="ignore"):
        return np.asarray(-np.expm1(N * np.log1p(-probs)))


def infima(
    finite: Callable[[Array], Moments],
    target: NDArray[np.bool_],
    N: float,
    noise: float,
    work: float = 3e7,
) -> Array:
    """Infima of the losses over the scores, (Q,), approached from above, usually to 1e-6.

    ``finite`` takes scores and returns their `Moments`; ``target`` marks the query's
    own class, (C, Q). All evaluations together compute ``work`` numbers.

    Without noise a loss approaches its infimum as the target's score grows without
    bound, and prompts with the query's feature cost nothing. The loss of the prompts
    without it is minimised over the other scores. With noise the loss may have valleys
    at infinity slightly above its minimum, in which the search may end.
    """
    from scipy.optimize import minimize

    start: Array = np.where(
        target, math.log(len(target)) if noise > 0.0 else -np.inf, 0.0
    )
    scale = finite(start).loss
    weight = np.where(scale > 1e-200, scale, 1.0)
    best = scale.copy()
    free = np.isfinite(start)

    def objective(flat: Array) -> tuple[float, Array]:
        found = finite(np.where(free, flat.reshape(target.shape), -np.inf))
        shown.add()
        np.minimum(best, found.loss, out=best)
        return float(np.sum(found.loss / weight)), (found.gradient / weight).ravel()

    rounds = int(
        np.clip(
            work
            / (len(target) * trapezoid(capped(start), [TokenCount(N)]).needed.sum()),
            2,
            200,
        )
    )
    options = {
        "ftol": 1e-15,
        "gtol": 1e-8,
        "maxiter": rounds,
        "maxfun": 2 * rounds,
        "maxcor": 20,
    }
    first = np.where(free, start, 0.0)
    # with noise there are local minima
    begins = (first, np.zeros_like(first)) if first.any() else (first,)
    with Progress("", "evaluations for the floor") as shown:
        shown.update(0, 2 * rounds * len(begins))
        for begin in begins:
            minimize(
                objective, begin.ravel(), jac=True, method="L-BFGS-B", options=options
            )
    return best
