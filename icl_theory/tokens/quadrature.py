r"""The trapezoid rule for integrals over s, and the range of scores that it covers.

The integrals of softmax averages (see `icl_theory.tokens.square`) are over ln s. Their
integrands decay like :math:`e^{-s S}`, with S the sum of the weights w of the tokens of
a prompt. `trapezoid` returns the nodes, the values of s. `trimmed` removes the last
nodes if the integrand vanishes there, and `rule_error` bounds the error. See
docs/theory.md, "Tokens" and "The error of the rule".

In the shapes below, J is the number of nodes, U the number of different tokens, and Q
the number of queries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.tokens.generating import (
    HIGHEST,
    SMALLEST,
    TokenCount,
    weighted,
)
from icl_theory.tokens.lengths import LOG_ZERO

# If s w is at least this, e^(-s w) counts as zero. The integral of a prompt with a
# token of weight w loses a part e^(-300) by this. A product of two larger factors e^(-s
# w) is above the range of subnormal numbers, which are slow.
LATEST = 300.0
LOG_LATEST = math.log(LATEST)
# The largest gap between neighbouring scores. Beyond it the attention underflows, and
# with it the gradient.
FARTHEST = 690.0
# Error of the loss, relative to the squared errors of the tokens, that comes from gaps
# cut by `capped` and from underflow. This is for a prompt of one token; it grows with
# the square of the number of tokens.
UNSEEN = 1e-288


class Nodes(NamedTuple):
    """The trapezoid rule: ln s and weights, (J,), and how many each query needs."""

    log_s: Array
    weights: Array
    needed: NDArray[np.intp]  # (Q,)

    def first(self, number: int) -> Nodes:
        """Return the rule of the first nodes."""
        return Nodes(self.log_s[:number], self.weights[:number], self.needed)


def trapezoid(
    log_w: Array,
    counts: Sequence[TokenCount],
    step: float = 0.2,
    first: float = -4.0,
    last: float = 4.25,
) -> Nodes:
    r"""Return nodes for :math:`\int \ldots\, ds/s`. By default it is exact to rounding.

    .. math:: N s = \exp(x - e^{-x}), \qquad \frac{ds}{s} = (1 + e^{-x})\, dx

    with equidistant x, from ``first`` on, and N the largest number of tokens. At the
    last node the slowest decay is complete: the factor :math:`e^{-s w_{\min}}` of every
    token of the shortest prompt. The scores ``log_w`` are (U, Q), and the largest score
    of each query is 0.
    """
    N = 0.0
    shortest = 0.0
    for count in counts:
        N += count.number
        shortest += count.least
    lowest_score = np.min(log_w, axis=0, where=np.isfinite(log_w), initial=0.0)
    beyond = math.log(N / shortest) - lowest_score
    needed = ((last - first + beyond) / step).astype(np.intp) + 1
    x: Array = first + step * np.arange(float(needed.max(initial=1)))
    tail = np.exp(-x)
    return Nodes(x - tail - math.log(N), step * (1.0 + tail), needed)


def trimmed(
    nodes: Nodes,
    log_w: Array,
    probs: Array,
    counts: Sequence[TokenCount],
    stride: int = 16,
) -> Nodes:
    """Leave out the last nodes if the integrand vanishes there in float64.

    A long prompt almost always has tokens of large weight, and their factors e^(-s w)
    vanish long before the factors of tokens of small weight. Only every ``stride``-th
    node is tested.
    """
    J = len(nodes.log_s)
    if 8 * stride > J or all(count.least < 64 for count in counts):
        return nodes
    log_s = nodes.log_s[::stride]
    y = np.exp(np.minimum(log_w.T[:, :, None] + log_s, LOG_LATEST))
    decay = np.exp(np.negative(y, out=y), out=y)
    log_product = np.zeros((len(decay), len(log_s)))
    for count in counts:
        # E G^n decays at least as fast as the power of the least number of tokens.
        if count.least > HIGHEST:
            mean = weighted(probs.T, decay, count.rows)
            log = np.log(np.clip(mean, SMALLEST, 1.0))
            log_product += (count.least - HIGHEST) * log
    vanishes = log_product < LOG_ZERO
    first = stride * vanishes.argmax(axis=1)
    first_vanishing = np.where(vanishes.any(axis=1), first, J)
    needed = np.minimum(nodes.needed, first_vanishing)
    return nodes.first(needed.max())._replace(needed=needed)


def rule_error(step: float) -> float:
    r"""Bound the relative error of the rule for 1/S² with a given step h.

    .. math:: 6\,|\Gamma(2 + 2\pi i/h)|

    The constant 6 is measured. In each prompt the rule replaces 1/S² by a sum over its
    nodes. A loss is a mean of a square divided by S², so the bound holds for the loss
    under any law of the tokens (docs/theory.md, "The error of the rule").
    """
    omega = 2.0 * math.pi / step
    # |Γ(2 + iω)|² = (1 + ω²) πω / sinh πω
    root = math.sqrt((1.0 + omega**2) * 2.0 * math.pi * omega)
    return 6.0 * root * math.exp(-0.5 * math.pi * omega)


def is_kept(y: Array) -> NDArray[np.bool_]:
    """Whether e^(-y) counts: it is zero from `LATEST` on."""
    # A y that was cut at `LOG_LATEST` is `LATEST` only to rounding.
    return np.asarray(y < LATEST * (1.0 - 1e-12))


def capped(log_w: Array, most: float = 350.0) -> Array:
    """Return scores minus the largest one of their column, (U, Q).

    A gap between two neighbouring scores of a column is cut to ``most`` if it is
    larger. The square of the attention underflows at such gaps.
    """
    with np.errstate(over="ignore"):
        relative = log_w - log_w.max(axis=0)
    if np.all((relative > -most) | (log_w == -np.inf)):
        return relative
    order = np.argsort(-log_w, axis=0)
    ranked = np.take_along_axis(log_w, order, axis=0)
    is_finite = np.isfinite(ranked[1:])
    # Gaps are differences of neighbouring scores. Differences from the largest score
    # might overflow.
    with np.errstate(over="ignore"):
        differences = ranked[:-1] - np.where(is_finite, ranked[1:], 0.0)
    gaps = np.full(is_finite.shape, np.inf)
    gaps[is_finite] = np.minimum(differences[is_finite], most)
    falling = np.vstack([np.zeros(log_w.shape[1]), -np.cumsum(gaps, axis=0)])
    result = np.zeros_like(log_w)
    np.put_along_axis(result, order, falling, axis=0)
    return result
