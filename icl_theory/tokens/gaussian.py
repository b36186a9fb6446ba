"""Nodes for tokens x ~ N(0, I) whose scores are c x·x_q with a number c.

Given the length r of a query, only the component X of a token along it matters for the
score c r X. `gaussian_queries` has nodes in X for queries of all lengths.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from icl_theory._validate import Array
from icl_theory.memory import check_fits


def normal(step: float, reach: float = 9.0) -> tuple[Array, Array]:
    """Return nodes and weights of the trapezoid rule for the normal law."""
    end = math.ceil(reach / step)
    x = step * np.arange(-end, end + 1.0)
    weight = np.exp(-0.5 * x * x)
    return x, weight / weight.sum()


def usual_step(d: int) -> float:
    """Return a step of `query_lengths` at which averages have some ten digits."""
    # ln r has a standard deviation of about 1/√(2d)
    return 0.12 / math.sqrt(1.0 + d / 8.0)


def query_lengths(d: int, step: float) -> tuple[Array, Array]:
    r"""Return lengths r of queries x ~ N(0, I), and their probabilities, (R,) both.

    They are the nodes of the trapezoid rule in x with :math:`r = \exp(x - e^{-x})`, at
    multiples of the ``step``: half the step adds a length between any two. The rule
    converges exponentially. (Gauss–Laguerre nodes in r²/2 do not: a sum of two weights
    e^(c r X) has zeros at imaginary r, as near to r = 0 as X is large.)
    """
    longest = math.sqrt(d) + 12.0
    first = math.floor(-5.0 / step)
    last = math.ceil((math.log(longest) + 0.2) / step)
    x = step * np.arange(first, last + 1.0)
    log_r = x - np.exp(-x)
    # the density r^(d-1) exp(-r²/2) times dr/dx = r (1 + exp(-x))
    log_weight = d * log_r - 0.5 * np.exp(2.0 * log_r) + np.log1p(np.exp(-x))
    weight = np.exp(log_weight - log_weight.max())
    return np.exp(log_r), weight / weight.sum()


class QueryNodes(NamedTuple):
    """Queries of one length, and the nodes of the tokens along them."""

    prob: float  # of the length
    r: float
    X: Array  # components of tokens along the query, (U,)
    probs: Array  # of the components, (U,)


def gaussian_queries(
    d: int, N: int, largest: float, step: float | None = None, digits: float = 36.0
) -> list[QueryNodes]:
    r"""Return nodes for N tokens in d dimensions, for queries of each length.

    They are fine enough for scores :math:`c r X` with \|c\| up to ``largest``. The
    error is about e^-digits of the whole, and that of `query_lengths` with the
    ``step``, which is `usual_step` by default. A rare length needs fewer digits by its
    weight, and is left out if it needs none.

    The trapezoid rule in X has the error e^(-2π²/h²) for the normal law, and
    e^(-π²/(c r h)) for the decay e^(-s w) of a weight e^(c r X). It ends where hardly
    one of N tokens lies. See docs/theory.md, "Gaussian inputs".
    """
    lengths, weights = query_lengths(d, usual_step(d) if step is None else step)
    queries: list[QueryNodes] = []
    for r, weight in zip(lengths.tolist(), weights.tolist(), strict=True):
        needed = digits + math.log(max(weight, 1e-300))
        if needed < 0.0:
            continue
        h = min(0.7, math.pi**2 / (largest * r * (needed + 2.0)))
        reach = math.sqrt(2.0 * (math.log(N) + needed + 6.0))
        _check_memory(largest, r, h, reach)
        X, probs = normal(h, reach)
        queries.append(QueryNodes(weight, r, X, probs))
    return queries


def _check_memory(largest: float, r: float, h: float, reach: float) -> None:
    nodes = 2.0 * math.ceil(reach / h) + 1.0
    # a node takes some arrays over values of s, which span the range of all weights
    values_of_s = 50.0 + 10.0 * largest * r * reach
    check_fits("scores", f"of size {largest:g}", 64.0 * nodes * values_of_s)


def reach_of(size: float, least: float = 0.125) -> float:
    """Round a size up to a power of two, so that many sizes share their nodes."""
    return 2.0 ** math.ceil(math.log2(max(size, least)))
