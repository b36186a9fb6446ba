r"""Gradient flow of the exchangeable case for N = ∞: the attention, the loss, and the time in closed form.

With a = 1/(1 + (K−1)e^{−u}) and s = 1 − a, ``c t = F(a) − F(1/K)``; see docs/theory.md,
"The exchangeable case".
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import MOST_FEATURES, Array, argument_error, integer, number


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
        raise argument_error("a", a, f"in [1/K, 1) = [{1.0 / K:.6g}, 1)")
    u = max(0.0, math.log(K - 1.0) + math.log(a) - math.log1p(-a))
    return float(flow_difference(np.zeros(()), np.asarray(u), K))


class Place(NamedTuple):
    """Gaps u >= 0 of the scores, with w = (K - 1) exp(-u), the attention a, and s = 1 - a."""

    u: Any
    w: Any
    a: Any
    s: Any

    @classmethod
    def of(cls, u: Any, K: Any) -> Self:
        """Return the place of u among K features."""
        w = (K - 1.0) * np.exp(-u)
        whole = 1.0 + w
        return cls(u, w, 1.0 / whole, w / whole)

    @classmethod
    def weighted(cls, u: Any, w: Any) -> Self:
        """Return the place of u from its w."""
        whole = 1.0 + w
        return cls(u, w, 1.0 / whole, w / whole)

    def at(self, index: NDArray[Any] | slice) -> Self:
        """Select some of the places."""
        u, w, a, s = self
        if isinstance(index, slice):
            return type(self)(u[index], w[index], a[index], s[index])
        # faster
        return type(self)(u.take(index), w.take(index), a.take(index), s.take(index))

    def small(self, form: str) -> Any:
        """Return a for the form "a", which is small in the head of a run, else s, which is small in the tail."""
        return self.a if form == "a" else self.s

    def growth(self) -> Any:
        """Return ``a s²``."""
        return self.a * self.s * self.s

    def step(self, c: Any) -> Any:
        """Return the length of a step, ``c a s²``."""
        return c * self.a * self.s * self.s


def flow_difference(u1: Array, u2: Array, K: float | Array) -> Array:
    """Flow time ``F(a(u2)) - F(a(u1))`` in units of 1/c, infinite beyond the range of float64."""
    with np.errstate(over="ignore", invalid="ignore"):
        time = -flow_back(Place.of(u1, K), Place.of(u2, K), u1 - u2)
    return np.where(np.isnan(time), np.inf, time)


def flow_to(deficit: float, K: int) -> float:
    """Flow time ``F(1 - s) - F(1/K)`` from equal scores to an attention deficit s, in units of 1/c."""
    u = math.log(K - 1.0) + math.log1p(-deficit) - math.log(deficit)
    return float(flow_difference(np.zeros(()), np.asarray(u), K))


def flow_back(one: Place, two: Place, back: Any) -> Any:
    """``F(a(u1)) - F(a(u2))`` as a sum of differences without cancellation; ``back`` is u1 - u2."""
    rise = np.expm1(back) * (two.a * one.s)  # a(u1) - a(u2)
    total = rise / (one.a * two.a)
    total += 3.0 * back
    far = 1.0 / one.s + 1.0 / two.s
    far *= 0.5
    far += 2.0
    rise /= one.s
    far *= rise
    far /= two.s
    total += far
    return total
