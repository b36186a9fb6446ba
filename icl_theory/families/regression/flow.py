r"""Gradient flow of the exchangeable case for N = ∞: the attention, the loss, and the time in closed form.

With a = 1/(1 + (K−1)e^{−u}) and s = 1 − a, ``c t = F(a) − F(1/K)``; see docs/theory.md, "The exchangeable case".
"""

from __future__ import annotations

import math

import numpy as np

from icl_theory._validate import MOST_FEATURES, Array, integer, number, refuse


def attention_pair(u: float, K: int) -> tuple[float, float]:
    """``(a, 1 - a)``, both to full relative accuracy for every u."""
    if u >= 0:
        w = (K - 1.0) * math.exp(-u)
        return 1.0 / (1.0 + w), w / (1.0 + w)
    e = math.exp(u)
    return e / (e + (K - 1.0)), (K - 1.0) / (e + (K - 1.0))


def loss_curve(u: Array, gamma: float | Array, K: float | Array) -> tuple[Array, Array]:
    """Losses ``½ γ K/(K-1) s²`` and target attentions ``a`` for N = ∞, elementwise."""
    w = (K - 1.0) * np.exp(-u)
    missed = w / (1.0 + w)
    return 0.5 * (gamma * missed * (K / (K - 1.0))) * missed, 1.0 / (1.0 + w)


def flow_time(a: float, K: int) -> float:
    r"""Time c·t in which gradient flow raises the target attention from 1/K to ``a``.

    .. math:: c\,t = F(a) - F(1/K),\quad F(a) = -\frac1a + 3\ln\frac{a}{1-a} + \frac{2}{1-a} + \frac{1}{2(1-a)^2}

    Parameters
    ----------
    a : float
        Target attention, 1/K <= a < 1.
    K : int
        Number of features.

    Returns
    -------
    float
        In units of 1/c, ``c = η γ K/(K-1)²`` per step.

    Examples
    --------
    >>> import icl_theory as icl
    >>> round(icl.regression.flow_time(0.5, 20), 6)
    30.174037
    """
    K = integer("K", K, minimum=2, maximum=MOST_FEATURES)
    if not 1.0 / K * (1.0 - 1e-15) <= number("a", a) < 1.0:
        raise refuse("a", a, f"in [1/K, 1) = [{1.0 / K:.6g}, 1)")
    u = max(0.0, math.log(K - 1.0) + math.log(a) - math.log1p(-a))
    return float(flow_difference(np.zeros(()), np.asarray(u), K))


def flow_difference(u1: Array, u2: Array, K: float | Array) -> Array:
    """``F(a(u2)) - F(a(u1))`` as a sum of exact differences."""
    w1, w2 = (K - 1.0) * np.exp(-u1), (K - 1.0) * np.exp(-u2)
    a1, a2, s1, s2 = 1.0 / (1.0 + w1), 1.0 / (1.0 + w2), w1 / (1.0 + w1), w2 / (1.0 + w2)
    d = -a2 * s1 * np.expm1(u1 - u2)
    return d / (a1 * a2) + 3.0 * (u2 - u1) + (2.0 + 0.5 * (1.0 / s1 + 1.0 / s2)) * (d / s1) / s2
