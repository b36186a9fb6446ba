r"""The trapezoid rule for integrals over s, and the range of scores that it covers.

The integrals of softmax averages (see `icl_theory.tokens.square`) are over ln s. A
token has the weight w, the exponential of its score. The integrands decay like
:math:`e^{-s S}`, with S the sum of the weights of the tokens of a prompt. `trapezoid`
returns the nodes, the values of s. `trimmed` removes the last nodes if the integrand
vanishes there, and `rule_error` bounds the error. See docs/theory.md, "Tokens" and "The
error of the rule".

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

# If y = s w is at least this, e^(-y) is treated as zero. The integral of a prompt with
# a token of weight w thereby loses a share e^(-300). The factors e^(-y) that are kept
# are larger than e^(-300), so a product of two of them is not a subnormal number.
# (Arithmetic with subnormal numbers is slow.)
LARGEST_Y = 300.0
LOG_LARGEST_Y = math.log(LARGEST_Y)
# The largest gap between neighbouring scores. Beyond this gap the attention underflows,
# and the gradient with it.
FARTHEST = 690.0
# Error of the loss that comes from gaps cut by `capped` and from underflow, divided by
# the largest squared error of a token. The value is for a prompt of one token, and the
# error grows with the square of the number of tokens.
UNSEEN = 1e-288
# `trimmed` looks for nodes to leave out only if it would test at least FEWEST_TESTED
# nodes, and if every prompt has at least LONG_PROMPT tokens of one kind. In other cases
# it could save little time; both limits are rough.
FEWEST_TESTED = 8
LONG_PROMPT = 64
# Largest step of a rule whose error is estimated: the constant of `rule_error` was
# measured up to this step.
LARGEST_STEP = 0.6


class Nodes(NamedTuple):
    """The nodes and weights of the trapezoid rule."""

    log_s: Array  # ln s at the nodes, ascending, (J,)
    weights: Array  # (J,)
    needed: NDArray[np.intp]  # how many of the first nodes each query needs, (Q,)

    def first(self, number: int) -> Nodes:
        """Return the rule of the first ``number`` nodes."""
        return Nodes(self.log_s[:number], self.weights[:number], self.needed)


def trapezoid(
    log_w: Array,
    counts: Sequence[TokenCount],
    step: float = 0.2,
    first: float = -4.0,
    last: float = 4.25,
) -> Nodes:
    r"""Return nodes for an integral over ds/s, by default exact to rounding.

    .. math:: N s = \exp(x - e^{-x}), \qquad \frac{ds}{s} = (1 + e^{-x})\, dx

    with equidistant x, and N the largest number of tokens. At the first node x is
    ``first``; with the default, s is below :math:`e^{-58}/N` there. At the last node
    the slowest decay is complete. The slowest decay is the one of the shortest prompt,
    if all its n tokens have the smallest weight; :math:`n s w_{\min}` is then about e
    to the power ``last``. With the default this power is 70, and the decay e^(-70) is
    below rounding. The scores ``log_w`` are (U, Q), and the largest score of each query
    is 0. The numbers of tokens of all kinds, ``counts``, give N and n.
    """
    N = 0.0
    shortest = 0.0
    for count in counts:
        N += count.number
        shortest += count.least
    # Scores of -inf belong to tokens that never occur.
    lowest_score = np.min(log_w, axis=0, where=np.isfinite(log_w), initial=0.0)
    # x - ``last`` at the last node, where ln s = ``last`` - ln n - ln w_min.
    x_beyond_last = math.log(N / shortest) - lowest_score
    needed = ((last - first + x_beyond_last) / step).astype(np.intp) + 1
    # The rule has a node even if there are no queries.
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
    node is tested: with a longer stride, the test is faster but leaves out fewer nodes.
    Rules of few nodes and prompts of few tokens are not tested. The scores ``log_w``
    and the probabilities ``probs`` are (U, Q).
    """
    J = len(nodes.log_s)
    is_short_rule = FEWEST_TESTED * stride > J
    if is_short_rule or all(count.least < LONG_PROMPT for count in counts):
        return nodes
    log_s = nodes.log_s[::stride]
    y = np.exp(np.minimum(log_w.T[:, :, None] + log_s, LOG_LARGEST_Y))
    decay = np.exp(np.negative(y, out=y), out=y)  # (Q, U, tested nodes)
    log_product = np.zeros((len(decay), len(log_s)))
    for count in counts:
        # E G^n and its derivatives up to the order `HIGHEST` decay at least as fast as
        # G^(n - `HIGHEST`) for the least number n of tokens.
        if count.least > HIGHEST:
            mean = weighted(probs.T, decay, count.rows)
            # Rounding may raise G above 1, and underflow may make it 0.
            log = np.log(np.clip(mean, SMALLEST, 1.0))
            log_product += (count.least - HIGHEST) * log
    vanishes = log_product < LOG_ZERO
    # The number of the first node at which the integrand of a query vanishes, or J.
    first_if_any = stride * vanishes.argmax(axis=1)
    first_vanishing = np.where(vanishes.any(axis=1), first_if_any, J)
    needed = np.minimum(nodes.needed, first_vanishing)
    return nodes.first(needed.max())._replace(needed=needed)


def rule_error(step: float) -> float:
    r"""Bound the relative error of the rule for 1/S² with a given step h.

    .. math:: 6\,|\Gamma(2 + 2\pi i/h)|

    Poisson's summation formula has the constant 2 for a rule in ln s. The substitution
    that shortens the left tail multiplies the error by at most 2.7, as measured for
    steps up to ``LARGEST_STEP``; the constant 6 allows a factor 3 for this. In each
    prompt the rule replaces 1/S² by a sum over its nodes. A loss is a mean of a square
    divided by S², so the bound holds for the loss under any law of the tokens
    (docs/theory.md, "The error of the rule").
    """
    omega = 2.0 * math.pi / step
    # |Γ(2 + iω)|² = (1 + ω²) πω / sinh πω, and sinh πω is e^(πω)/2 to rounding.
    root = math.sqrt((1.0 + omega**2) * 2.0 * math.pi * omega)
    return 6.0 * root * math.exp(-0.5 * math.pi * omega)


def is_kept(y: Array) -> NDArray[np.bool_]:
    """Whether e^(-y) is kept: it is treated as zero from y = `LARGEST_Y` on."""
    # A y whose logarithm was cut at `LOG_LARGEST_Y` is `LARGEST_Y` only to rounding.
    return np.asarray(y < LARGEST_Y * (1.0 - 1e-12))


def capped(log_w: Array, largest_gap: float = 350.0) -> Array:
    """Return scores minus the largest one of their column, (U, Q).

    A gap between two neighbouring scores of a column is cut to ``largest_gap`` if it is
    larger. With the default, the square of the attention beyond such a gap is below
    e^(-700). A score of -inf stays -inf.
    """
    # The difference of two huge scores may overflow to -inf. The gap between the two
    # scores is then cut below.
    with np.errstate(over="ignore"):
        relative = log_w - log_w.max(axis=0)
    # If all scores are within ``largest_gap`` of the largest one, no gap is too large.
    if np.all((relative > -largest_gap) | (log_w == -np.inf)):
        return relative
    order = np.argsort(-log_w, axis=0)  # scores from the largest to the smallest
    falling = np.take_along_axis(log_w, order, axis=0)
    is_finite = np.isfinite(falling[1:])
    # Gaps are computed from neighbouring scores, because differences from the largest
    # score may overflow. A single gap that overflows to inf is cut like a large one.
    with np.errstate(over="ignore"):
        differences = falling[:-1] - np.where(is_finite, falling[1:], 0.0)
    gaps = np.full(is_finite.shape, np.inf)
    gaps[is_finite] = np.minimum(differences[is_finite], largest_gap)
    capped_scores = np.vstack([np.zeros(log_w.shape[1]), -np.cumsum(gaps, axis=0)])
    # Undo the sorting.
    result = np.zeros_like(log_w)
    np.put_along_axis(result, order, capped_scores, axis=0)
    return result
