"""Numbers of steps of the exchangeable class, and certified bounds on them, proved on whole boxes of parameters."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from flint import arb, ctx

from icl_theory.certified import balls, constants, counts
from icl_theory.certified.proof import Steps


def steps_of(L: float, eta: float, K: int, epsilon: float, bits: int = 160) -> Steps:
    """Enclose the number of steps to a loss, for Δ = 1."""
    with ctx.workprec(bits):
        gamma = arb(L) ** 2 / 2
        return counts.steps_to_loss(K, arb(eta) * gamma * K / arb(K - 1) ** 2, gamma, epsilon)


def not_later(K: int, low: arb, high: arb) -> bool:
    """The attention is 1/2 after 3K²/(2ηγ) + ln(K/3) + 2 steps at most."""
    bound = 3 * arb(K) ** 3 / (2 * arb(K - 1) ** 2 * high) + (arb(K) / 3).log() + 2
    return bool(counts.steps_to(K, low, arb(1) / 2).high <= bound)


def not_earlier(K: int, low: arb, high: arb) -> bool:
    """The attention is 1/2 after (F(1/3) - F(1/K))/c steps at least."""
    return bool(constants.flow(arb(2) / 3, K) / low <= counts.steps_to(K, high, arb(1) / 2).low)


def pieces(bound: Callable[[int, arb, arb], bool], decades: float, features: int) -> int:
    """Prove a bound for all L from 10^-decades/2 to 10^decades/2 and K = 2 ... features, with η = Δ = 1.

    Larger c take no more steps to attention 1/2 (docs/proved.md): the ends of an interval of c decide. Returned is
    the number of pieces, 0 where one of them is not proved.
    """
    total = 0
    for K in range(2, features + 1):

        def holds(x: arb, K: int = K) -> bool:  # x = ln L
            c = (2 * x).exp() * K / (2 * arb(K - 1) ** 2)
            with contextlib.suppress(ArithmeticError):
                return bound(K, c.lower(), c.upper())
            return False

        with ctx.workprec(96):
            half = arb(10).log() * decades / 2
            done, missed = balls.everywhere(holds, -half, half)
        if missed is not None:
            return 0
        total += done
    return total
