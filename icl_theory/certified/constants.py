"""Constants of the exchangeable case in balls: the tail start and L*, the half-way point, and the floor."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from flint import arb

from icl_theory.certified.balls import balls, everywhere, root
from icl_theory.families.regression.phases import half_way, tail_start


def flow(s: arb, K: int) -> arb:
    """Return Φ(s) = F(1 - s) - F(1/K), the time of gradient flow to the attention deficit s, in units of 1/c."""

    def time(s: arb) -> arb:
        return 3 * ((1 - s) / s).log() - 1 / (1 - s) + 2 / s + 1 / (2 * s * s)

    return time(s) - time(1 - 1 / arb(K))


def tail_deficit(K: int) -> arb:
    """Enclose s* of `tail_start`: s² Φ(s) is 1 there, and proved to be below 1 for all smaller s."""
    if K == 2:
        return arb(1) / 2
    first = arb(tail_start(K)) / 64
    # s² Φ < ½ + 2 s + 3 s² |ln s| + (K + 3) s², which grows up to here
    if not 2 * first - 3 * first**2 * first.log() + (K + 3) * first**2 < 0.5:
        raise ArithmeticError("a smaller root is not excluded")
    return _first(lambda s: s * s * flow(s, K), first, tail_start(K))


def half_deficit(K: int) -> arb:
    """Enclose the s of `half_way`: a² s² Φ(s) is 1 there, and proved to be below 1 from s* on."""
    near = math.sqrt(4.0 * (K - 1.0) / K) / half_way(1.0, 1.0, K)
    return _first(lambda s: ((1 - s) * s) ** 2 * flow(s, K), tail_deficit(K).lower(), near)


def _first(function: Callable[[arb], arb], low: arb, near: float) -> arb:
    """Enclose the first place from ``low`` on at which a function is 1; it is next to ``near``."""
    place, width = arb(near), arb(2) ** -30
    found = root(lambda s: function(s) - 1, place * (1 - width), place * (1 + width))
    _, missed = everywhere(lambda s: bool(function(s) < 1), low, found.lower())
    if missed is not None:
        raise ArithmeticError("a smaller root is not excluded")
    return found


def lipschitz(s: arb, epsilon: arb, delta: arb, K: int) -> arb:
    """Return the L at which the loss is ``epsilon`` at the attention deficit s: √(4ε(K-1)/K) / (sΔ)."""
    return (4 * epsilon * (K - 1) / K).sqrt() / (s * delta)


def least_loss(K: int, gamma: arb, N: int, noise: float) -> arb:
    r"""Enclose the least loss over the gap u for finite prompts, the floor of `ExchangeableRisk`.

    Without noise it is the limit at u = ∞. With noise and w = e^-u, M = N - n, T = n + M w the slope in u is w
    times :math:`\psi(w) = E[n M T^{-3} (\sigma^2 - w (\sigma^2 + \gamma M q_n))]`, negative for w >= 1. That ψ is
    positive below its root and negative up to 1 is proved by subdivision.
    """
    p, square, counts = 1 / arb(K), arb(noise) ** 2, np.arange(N + 1)
    chance = np.array([arb.bin_uiui(N, k) * p**k * (1 - p) ** (N - k) for k in counts.tolist()], dtype=object)
    n, M = balls(counts), balls(N - counts)
    q = 1 + 1 / arb(K - 1) + (1 - 1 / arb(K - 1)) / balls(np.maximum(N - counts, 1))
    if noise == 0.0:
        return gamma * chance[0] * q[0] / 2

    def psi(w: arb) -> arb:
        T = n[1:] + M[1:] * w
        return (chance[1:] * n[1:] * M[1:] / T**3 * (square - w * (square + gamma * M[1:] * q[1:]))).sum()

    def loss(w: arb) -> arb:
        T = n[1:] + M[1:] * w
        found = gamma * (M[1:] * w / T) ** 2 * q[1:] + square * (n[1:] + M[1:] * w * w) / T**2
        return ((chance[1:] * found).sum() + chance[0] * (gamma * q[0] + square / N)) / 2

    if N == 1:
        return loss(arb(1))  # one token has all attention
    best = root(psi, arb(0), arb(1))
    _, rising = everywhere(lambda w: bool(psi(w) > 0), arb(0), best.lower())
    _, falling = everywhere(lambda w: bool(psi(w) < 0), best.upper(), arb(1))
    if rising is not None or falling is not None:
        raise ArithmeticError("another minimum is not excluded")
    return loss(best)
