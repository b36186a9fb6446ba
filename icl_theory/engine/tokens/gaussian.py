"""Tokens x ~ N(0, I) with scores x·x_q times a number: nodes along the query, for queries of every length."""

from __future__ import annotations

import math

import numpy as np

from icl_theory._validate import Array
from icl_theory.memory import check_fits


def normal(step: float, reach: float = 9.0) -> tuple[Array, Array]:
    """Return nodes and weights of the trapezoid rule for the normal law."""
    end = math.ceil(reach / step)
    x = step * np.arange(-end, end + 1.0)
    weight = np.exp(-0.5 * x * x)
    return x, weight / weight.sum()


def gaussian_queries(
    d: int, N: int, largest: float, radii: int = 64, digits: float = 30.0
) -> list[tuple[float, float, Array, Array]]:
    r"""Return nodes for N tokens in d dimensions, fine enough for scores :math:`c r X`, \|c\| up to ``largest``.

    For queries of each length r: its probability, r, the components X of tokens along them, and the probabilities
    of these, (U,) both.

    The error is about e^-digits of the whole; a rare length needs fewer digits by its weight, and is left out if
    none. Lengths are at Gauss–Laguerre nodes of r²/2. The trapezoid rule in X has the error e^(-2π²/h²) for the
    normal law, and e^(-π²/(c r h)) for the decay e^(-s w) of a weight e^(c r X). It ends where hardly one of N
    tokens is found.

    See docs/theory.md, "Gaussian inputs".
    """
    from scipy.special import roots_genlaguerre  # slow to load

    half, weights = roots_genlaguerre(radii, 0.5 * d - 1.0)
    weights, queries = weights / weights.sum(), list[tuple[float, float, Array, Array]]()
    for r, weight in zip(np.sqrt(2.0 * half).tolist(), weights.tolist(), strict=True):
        needed = digits + math.log(max(weight, 1e-300))
        if needed < 0.0:
            continue
        h = min(0.7, math.pi**2 / (largest * r * (needed + 2.0)))
        reach = math.sqrt(2.0 * (math.log(N) + needed + 6.0))
        # a node takes some arrays over values of s, which span all weights
        nodes = 2.0 * math.ceil(reach / h) + 1.0
        check_fits("scores", f"of size {largest:g}", 64.0 * nodes * (50.0 + 10.0 * largest * r * reach))
        queries.append((weight, r, *normal(h, reach)))
    return queries


def reach_of(size: float, least: float = 0.125) -> float:
    """Round a size up to a power of two, so that nodes made for it serve others."""
    return 2.0 ** math.ceil(math.log2(max(size, least)))
