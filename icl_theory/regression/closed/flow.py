r"""Gradient flow of the exchangeable case with N = ∞ in closed form.

Let u be the gap between the score of the target (the query's own feature) and the other
scores. Then a = 1/(1 + (K−1)e^{−u}) is the attention on the target, and s = 1 − a the
attention deficit. The flow from u = 0 has the velocity c a s² with a constant c, and
reaches a at the time t with ``c t = F(a) − F(1/K)``, with F of `flow_time`. See
docs/theory.md, "The exchangeable case".
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import MOST_FEATURES, Array, argument_error, integer, number


def attention_pair(u: float, K: int) -> tuple[float, float]:
    """Return ``a`` and ``1 - a`` at the gap u, both to full relative accuracy."""
    if u >= 0:
        w = (K - 1.0) * math.exp(-u)
        return 1.0 / (1.0 + w), w / (1.0 + w)
    # For negative u, exp(-u) might overflow.
    exp_u = math.exp(u)
    return exp_u / (exp_u + (K - 1.0)), (K - 1.0) / (exp_u + (K - 1.0))


def loss_curve(u: Array, gamma: float | Array, K: float | Array) -> tuple[Array, Array]:
    """Return losses ``½ γ K/(K-1) s²`` and target attentions ``a`` at gaps ``u`` >= 0.

    The arrays broadcast against each other.
    """
    w = (K - 1.0) * np.exp(-u)
    s = w / (1.0 + w)
    # `ExchangeableRisk.evaluate` multiplies the factors of the loss in the same order.
    return 0.5 * (gamma * s * (K / (K - 1.0))) * s, 1.0 / (1.0 + w)


def flow_time(a: float, K: int) -> float:
    r"""Time c·t in which gradient flow raises the target attention from 1/K to ``a``.

    .. math::
        c\,t = F(a) - F(1/K),\quad
        F(a) = -\frac1a + 3\ln\frac{a}{1-a} + \frac{2}{1-a} + \frac{1}{2(1-a)^2}

    Parameters
    ----------
    a : float
        Target attention, 1/K <= a < 1.
    K : int
        Number of features.

    Returns
    -------
    float
        The time c·t, a number of steps t times ``c = η γ K/(K-1)²``.

    Examples
    --------
    >>> import icl_theory as icl
    >>> round(icl.regression.flow_time(0.5, 20), 6)
    30.174037
    """
    K = integer("K", K, minimum=2, maximum=MOST_FEATURES)
    # A caller may have computed 1/K with a few roundings, so that it is a little too
    # small. It then counts as the start.
    if not 1.0 / K * (1.0 - 1e-15) <= number("a", a) < 1.0:
        raise argument_error("a", a, f"in [1/K, 1) = [{1.0 / K:.6g}, 1)")
    u = max(0.0, math.log(K - 1.0) + math.log(a) - math.log1p(-a))
    return float(flow_difference(np.zeros(()), np.asarray(u), K))


class Place(NamedTuple):
    """Gaps u >= 0 and the numbers w, a and s there. They are numbers or arrays."""

    u: Any  # gap between the score of the target and the other scores
    w: Any  # (K - 1) exp(-u)
    a: Any  # attention on the target, 1/(1 + w)
    s: Any  # 1 - a

    @classmethod
    def of(cls, u: Any, K: Any) -> Self:
        """Return the place of the gap u for K features."""
        return cls.weighted(u, (K - 1.0) * np.exp(-u))

    @classmethod
    def weighted(cls, u: Any, w: Any) -> Self:
        """Return the place with the given w."""
        total = 1.0 + w
        return cls(u, w, 1.0 / total, w / total)

    def at(self, index: NDArray[Any] | slice) -> Self:
        """Select some of the places."""
        u, w, a, s = self
        if isinstance(index, slice):
            return type(self)(u[index], w[index], a[index], s[index])
        # take() is faster than brackets.
        return type(self)(u.take(index), w.take(index), a.take(index), s.take(index))

    def small(self, form: str) -> Any:
        """Return the variable that is small: a early in a run (form "a"), s late."""
        return self.a if form == "a" else self.s

    def growth(self) -> Any:
        """Return ``g = a s²``."""
        return self.a * self.s * self.s

    def step(self, c: Any) -> Any:
        """Return the length of a step, ``c a s²``."""
        return c * self.a * self.s * self.s


def flow_difference(u1: Array, u2: Array, K: float | Array) -> Array:
    """Flow time ``F(a(u2)) - F(a(u1))`` from u1 to u2, in units of 1/c.

    A time beyond the range of float64 is returned as infinity.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        time = -flow_back(Place.of(u1, K), Place.of(u2, K), u1 - u2)
    # If the deficits of u1 and u2 underflow to 0, a quotient 0/0 is NaN.
    return np.where(np.isnan(time), np.inf, time)


def flow_to(deficit: float, K: int) -> float:
    """Flow time ``F(1 - s) - F(1/K)`` to an attention deficit s, in units of 1/c."""
    # The gap at this deficit, ln((K - 1) (1 - s)/s)
    u = math.log(K - 1.0) + math.log1p(-deficit) - math.log(deficit)
    return float(flow_difference(np.zeros(()), np.asarray(u), K))


def flow_back(first: Place, second: Place, u_difference: Any) -> Any:
    r"""``F(a1) - F(a2)`` as a sum of differences without cancellation.

    .. math::
        F(a_1) - F(a_2) = \frac{a_1 - a_2}{a_1 a_2} + 3 (u_1 - u_2)
        + \Bigl(2 + \frac{1}{2 s_1} + \frac{1}{2 s_2}\Bigr) \frac{a_1 - a_2}{s_1 s_2}

    Parameters
    ----------
    first, second : Place
        The places of u1 and u2.
    u_difference : array_like
        ``u1 - u2``.
    """
    # Arrays are changed in place, because writing a new array costs more than the
    # arithmetic. The difference a1 - a2 = a1 s2 - a2 s1 follows from the ratio of the
    # odds, a1/s1 = e^(u1 - u2) a2/s2.
    a_difference = np.expm1(u_difference) * (second.a * first.s)
    total = a_difference / (first.a * second.a)
    total += 3.0 * u_difference
    # In the last term the deficits divide one after the other, because their product
    # may underflow.
    last_term = 1.0 / first.s + 1.0 / second.s
    last_term *= 0.5
    last_term += 2.0
    a_difference /= first.s
    last_term *= a_difference
    last_term /= second.s
    total += last_term
    return total
