"""Nodes for tokens x ~ N(0, I) whose scores are c x·x_q with a number c.

If the query x_q has the length r, the score of a token is c r X, with X the component
of the token along the query. `gaussian_queries` returns nodes in r, and for each of
them nodes in X.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from icl_theory._validate import Array
from icl_theory.memory import check_fits

# Step of `query_lengths` at which averages have about ten digits in few dimensions, and
# the number of dimensions above which the step falls as 1/√d. Both are measured; a
# smaller step gives more digits and takes more time.
USUAL_STEP = 0.12
FEW_DIMENSIONS = 8.0
# Largest step h for the component X. At this h the error e^(-2π²/h²) for the normal law
# is e^(-40).
LARGEST_STEP = 0.7


def normal(step: float, reach: float = 9.0) -> tuple[Array, Array]:
    """Return nodes and weights of the trapezoid rule for the standard normal law.

    The nodes extend to ``reach`` standard deviations. With the default, the density at
    the last node is e^(-40) times the largest density, which is below rounding.
    """
    end = math.ceil(reach / step)
    x = step * np.arange(-end, end + 1.0)
    weight = np.exp(-0.5 * x * x)
    return x, weight / weight.sum()


def usual_step(d: int) -> float:
    """Return a step of `query_lengths` at which averages have about ten digits.

    The inputs have ``d`` dimensions.
    """
    # In high dimensions d this is about half of the standard deviation 1/√(2d) of ln r,
    # so that the nodes resolve the law of ln r.
    return USUAL_STEP / math.sqrt(1.0 + d / FEW_DIMENSIONS)


def query_lengths(d: int, step: float) -> tuple[Array, Array]:
    r"""Return lengths r of queries in d dimensions, and their probabilities.

    Both arrays have an entry for each node of the trapezoid rule in a variable x with
    :math:`r = \exp(x - e^{-x})`. The nodes are at the multiples of ``step``, so that
    with half the step there is one more length between every two neighbours. The rule
    converges exponentially. (A rule with Gauss–Laguerre nodes in r²/2 would not. Let X
    be the component of a token along the query. The average over the tokens divides by
    a sum of weights e^(c r X). A sum of two of them has zeros at imaginary r, which are
    poles of the integrand, and they approach r = 0 as X grows.)
    """
    # The range of x covers all lengths whose probability is above rounding. At x = -5
    # the length is e^(-153). Lengths above √d + 12 have a probability below e^(-70). At
    # the length √d + 12, x exceeds ln r by e^(-x) < 0.2.
    shortest_x = -5.0
    longest_x = math.log(math.sqrt(d) + 12.0) + 0.2
    first = math.floor(shortest_x / step)
    last = math.ceil(longest_x / step)
    x = step * np.arange(first, last + 1.0)
    log_r = x - np.exp(-x)
    # The log of the density r^(d-1) exp(-r²/2) times dr/dx = r (1 + exp(-x)).
    log_weight = d * log_r - 0.5 * np.exp(2.0 * log_r) + np.log1p(np.exp(-x))
    weight = np.exp(log_weight - log_weight.max())
    return np.exp(log_r), weight / weight.sum()


class QueryNodes(NamedTuple):
    """The queries of one length, with U nodes for the tokens."""

    prob: float  # probability of the length
    r: float  # the length
    X: Array  # components of the nodes along the query, (U,)
    probs: Array  # probabilities of the nodes, (U,)


def gaussian_queries(
    d: int, N: int, largest: float, step: float | None = None, digits: float = 36.0
) -> list[QueryNodes]:
    r"""Return nodes for N tokens in d dimensions, for queries of each length.

    The nodes are fine enough for scores :math:`c r X` with \|c\| up to ``largest``. An
    average over X has a relative error of about e^(-digits), so these are digits to the
    base e: 36 of them are 16 decimal digits. For an improbable length the error may be
    larger, as only its product with the probability counts. A length that is less
    probable than e^(-digits) is left out. The error of the average over r depends on
    the ``step`` of `query_lengths`, by default `usual_step`.

    With a step h, the trapezoid rule in X has the error e^(-2π²/h²) for the normal law,
    and the error e^(-π²/(c r h)) for a factor e^(-s w) with the weight w = e^(c r X).
    The losses are integrals over s of means of such factors. The nodes extend so far
    that a prompt of N tokens hardly ever has a token beyond the last node. See
    docs/theory.md, "Gaussian inputs".
    """
    lengths, probs_of_lengths = query_lengths(
        d, usual_step(d) if step is None else step
    )
    queries: list[QueryNodes] = []
    for r, prob in zip(lengths.tolist(), probs_of_lengths.tolist(), strict=True):
        # The average for this length may have the relative error e^(-log_accuracy).
        # This error times the probability of the length is e^(-digits). A probability
        # that has underflowed to 0 is replaced by 1e-300, whose logarithm is finite.
        # The length is then left out, because log_accuracy is negative.
        log_accuracy = digits + math.log(max(prob, 1e-300))
        if log_accuracy < 0.0:
            continue
        # With this h and the largest c, the error e^(-π²/(c r h)) is at most
        # e^(-log_accuracy - 2), with a margin of 2 in the exponent.
        h = min(LARGEST_STEP, math.pi**2 / (largest * r * (log_accuracy + 2.0)))
        # About N exp(-reach²/2) of N tokens are beyond the reach. With this reach, the
        # number is e^(-log_accuracy - 6), with a margin of 6 in the exponent.
        reach = math.sqrt(2.0 * (math.log(N) + log_accuracy + 6.0))
        _check_memory(largest, r, h, reach)
        X, probs = normal(h, reach)
        queries.append(QueryNodes(prob, r, X, probs))
    return queries


def _check_memory(largest: float, r: float, h: float, reach: float) -> None:
    """Refuse scores whose nodes do not fit the memory.

    For queries of length ``r``, nodes in X have the step ``h`` and extend to ``reach``
    on both sides. The scores are c r X with c up to ``largest``.
    """
    nodes = 2.0 * math.ceil(reach / h) + 1.0
    # Eight numbers of 8 bytes for each node and each value of s. With a step of 0.2 in
    # ln s, about 50 values of s are enough for one weight. The logs of the weights span
    # a range of 2 ``largest`` r ``reach``, with 5 more values of s for each unit.
    values_of_s = 50.0 + 10.0 * largest * r * reach
    check_fits("scores", f"of size {largest:g}", 64.0 * nodes * values_of_s)


def next_power_of_two(size: float, least: float = 0.125) -> float:
    """Round a size up to a power of two, at least ``least``.

    The nodes that are fine enough for the rounded size serve all sizes below it.
    """
    return 2.0 ** math.ceil(math.log2(max(size, least)))
