"""The loss of two or three keys by direct quadrature, independent of `CopyRisk`."""

from __future__ import annotations

import math

import numpy as np

from icl_theory._validate import Array, argument_error
from icl_theory.tokens.gaussian import normal

# The normal law is integrated up to this many standard deviations.
REACH = 8.5


def direct_loss(omega: float, d: int, N: int, correlation: float) -> float:
    r"""Return the loss of W = ωI by quadrature over the scores themselves.

    The length of the query has a Gauss–Legendre rule. Given it, the gap between the two
    scores of N = 2 is one normal variable, and the scores of N = 3 are three.

    Raises
    ------
    ValueError
        N is not 2 or 3.

    Examples
    --------
    >>> from icl_theory.papers.match_copy.direct import direct_loss
    >>> round(direct_loss(0.0, d=3, N=2, correlation=0.5), 12)
    0.25
    """
    if N not in (2, 3):
        raise argument_error("N", N, "2 or 3")
    lengths, probs = _lengths(d)
    loss = 0.0
    for r, prob in zip(lengths.tolist(), probs.tolist(), strict=True):
        scale = abs(omega) * r
        if N == 2:
            loss += prob * _two_keys(omega, r, correlation)
        else:
            x, weight = normal(_step(scale), REACH)
            along = correlation * r + math.sqrt(1.0 - correlation**2) * x
            loss += prob * _three_keys(omega * r * along, omega * r * x, weight)
    return loss


def _lengths(d: int, nodes: int = 120) -> tuple[Array, Array]:
    """Return nodes in the length of a normal vector, and probabilities."""
    x, weight = np.polynomial.legendre.leggauss(nodes)
    # Longer vectors than √d + 9 have a probability below rounding.
    r = 0.5 * (math.sqrt(d) + 9.0) * (x + 1.0)
    density = np.exp((d - 1.0) * np.log(r) - 0.5 * r**2)
    probs = weight * density
    probs /= probs.sum()
    is_likely = probs > 1e-17
    return r[is_likely], probs[is_likely]


def _step(scale: float) -> float:
    """Return a step at which 1/(1 + exp(scale x)) is integrated to rounding."""
    # The nearest pole is at the distance π/scale from the real axis.
    return min(0.25, math.pi**2 / (32.0 * max(scale, 1e-3)))


def _two_keys(omega: float, r: float, correlation: float) -> float:
    """Return the loss of two keys for queries of the length r."""
    spread = omega * r * math.sqrt(2.0 - correlation**2)
    x, weight = normal(_step(abs(spread)), REACH)
    gap = omega * correlation * r**2 + spread * x
    missed = np.exp(-np.logaddexp(0.0, gap))
    return float(weight @ missed**2)


def _three_keys(match: Array, other: Array, weight: Array) -> float:
    """Return the loss of three keys, whose scores are nodes of normal variables."""
    behind = np.exp(other[:, None] - match)
    first = behind[:, None]
    second = behind[None]
    square = (first**2 + second**2 + first * second) / (1.0 + first + second) ** 2
    return float(np.einsum("ijk,i,j,k->", square, weight, weight, weight))
