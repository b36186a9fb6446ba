"""Closed forms in balls: steps, bounds and constants of the exchangeable class, and steps of linear attention.

The exchangeable map is u ← u + c a s², where the gap u is 0 at attention 1/2. Letters and proofs are those of
docs/proved.md, "Numbers of steps".
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
from flint import arb, arb_poly, ctx

from icl_theory._validate import refuse
from icl_theory.certified.balls import around, balls, only_zero
from icl_theory.certified.certificate import Steps
from icl_theory.certified.losses import second_moments
from icl_theory.families.linear_attention.risks import MergedRisk
from icl_theory.families.regression.closed.polynomials import POLYNOMIALS

SMALL = 1.0 / 128.0  # p up to which B counts: 5e-10 of a step is in doubt, and some 1000 steps are single
RADIUS = 0.5  # of the circle, P
LARGEST = {"a": 0.8, "s": 20.0}  # M in head and tail, which scripts/proofs.py encloses
DROP = 0.2  # 1/p changes by more than this in a step, see docs/proved.md
MOST = 10**6  # steps that are taken one by one where the sums leave several integers
LAST = 2**60  # steps of linear attention that are looked at


def gap(s: arb) -> arb:
    """Return the gap at which the attention is 1 - s."""
    return (1 - s).log() - s.log()


def shares(u: arb) -> tuple[arb, arb]:
    """Attention a and s = 1 - a, each with w in it once, so that balls stay small."""
    w = (-u).exp()
    return 1 / (1 + w), 1 / (1 + 1 / w)


def flow_time(a: arb, s: arb) -> arb:
    """Return F, the time of gradient flow in units of 1/c."""
    return 3 * (a.log() - s.log()) - 1 / a + 2 / s + (1 / s) ** 2 / 2


def flow(s: arb, K: int) -> arb:
    """Return Φ(s) = F(1 - s) - F(1/K), the time to the attention deficit s."""
    return flow_time(1 - s, s) - flow_time(1 / arb(K), 1 - 1 / arb(K))


def abel(c: arb, form: str) -> Callable[[Any], Any]:
    """Return B with the polynomials in a or in s, between which constants differ; s is small in the tail."""
    terms = (arb_poly(each) * (c**j / over) for j, (each, over) in enumerate(POLYNOMIALS[form], start=1))
    highest_first = sum(terms, start=arb_poly()).coeffs()[::-1]

    def B(u: Any) -> Any:
        a, s = shares(u)
        small = a if form == "a" else s
        polynomial = reduce(lambda value, each: value * small + each, highest_first)
        return flow_time(a, s) / c + (a * s * s).log() / 2 + polynomial

    return B


def in_doubt(form: str, c: arb) -> arb:
    """Return a ball for the sum of r over all steps of a head or tail, from Σ (1/p + DROP k)^-7."""
    p = arb(SMALL).min(c)
    return around(LARGEST[form] * (p**7 + p**6 / (6 * arb(DROP))) / arb(RADIUS) ** 7)


def steps_to(K: int, c: arb, goal: arb, sums: bool = True) -> Steps:
    """Enclose the first step at which u is ``goal`` or above; without ``sums`` all steps are taken one by one."""
    here, done, low = -arb(K - 1).log(), 0, None
    while not here >= goal:
        if not here.rad() < 1:
            raise ArithmeticError("the balls have become too wide to tell steps apart")
        if low is None and not here < goal:
            low = done
        here, more = _ahead(here, c, goal, sums)
        done += more
    found = Steps(done if low is None else low, done)
    return steps_to(K, c, goal, sums=False) if sums and found.low < found.high <= MOST else found


def _ahead(u: arb, c: arb, goal: arb, sums: bool) -> tuple[arb, int]:
    """Return a later iterate and how many steps lead to it: most of those left in a head or tail, else one."""
    a, s = shares(u)
    next_one = u + c * a * s * s, 1
    if sums and a > 0.33 and c * s * s < SMALL:
        form, end = "s", goal.mid()
    elif sums and a < 1 / arb(3) and c * a < SMALL:
        form, end = "a", goal.min(gap(1 - (SMALL / c).min(1 / arb(3)))).mid()
    else:
        return next_one
    B, doubt = abel(c, form), in_doubt(form, c)
    many = (B(end) - B(u) + doubt).lower().floor().unique_fmpz()
    if many is None:
        raise ArithmeticError("the steps are not counted")
    if many <= 2:
        return next_one
    aim, (a, s) = B(u) + (many - 2) + doubt, shares(end)
    return only_zero(lambda u: aim - B(u), end - 8 * c * a * s * s, end), int(many) - 2


def steps_to_loss(K: int, c: arb, gamma: arb, epsilon: float) -> Steps:
    """Enclose the first step at which the loss ½ γ K/(K-1) s² is ``epsilon`` or less."""
    with ctx.workprec(512):  # products of doubles are exact
        if 2 * arb(epsilon) * K >= gamma * (K - 1):  # at step 0, s = (K - 1)/K
            return Steps(0, 0)
    return steps_to(K, c, gap((2 * arb(epsilon) * (K - 1) / (gamma * K)).sqrt()))


def phase_one_lies_between(K: int, c: arb) -> bool:
    """The attention is 1/2 after (F(1/3) - F(1/K))/c steps at least, and 3K²/(2ηγ) + ln(K/3) + 2 at most.

    Larger c take no more steps (docs/proved.md): the ends of a ball of them decide.
    """
    least, most = steps_to(K, c.upper(), arb(0)).low, steps_to(K, c.lower(), arb(0)).high
    bound = 3 * arb(K) ** 3 / (2 * arb(K - 1) ** 2 * c.upper()) + (arb(K) / 3).log() + 2
    return bool(flow(arb(2) / 3, K) / c.lower() <= least and most <= bound)


def deficit(K: int, power: int) -> arb:
    """Enclose the least s at which a^power s² Φ(s) is 1: at L* for the power 0, at L½, which K >= 7 have, for 2.

    Phase III begins at the first of these, which is 1/2 for two features.
    """

    def left(s: arb) -> arb:
        return 1 - (1 - s) ** power * s * s * flow(s, K)

    if K == 2 and power == 0:
        return arb(1) / 2
    # s² Φ < ½ + 2 s + 3 s² |ln s| + (K + 3) s² grows up to here, where it is below 0.62
    first = 1 / (16 * arb(K).sqrt()).upper()
    last = next(s for s in (first * arb(2) ** (arb(k) / 8) for k in range(1, 32)) if left(s) < 0)
    return only_zero(left, first, last.mid())


def least_loss(K: int, gamma: arb, N: int, noise: float) -> arb:
    r"""Enclose the least loss over the gap u for finite prompts, the floor of `ExchangeableRisk`.

    Without noise it is the limit at u = ∞. With noise and w = e^-u, M = N - n, T = n + M w the slope in u is w
    times :math:`\psi(w) = E[n M T^{-3} (\sigma^2 - w (\sigma^2 + \gamma M q_n))]`, negative for w >= 1. That ψ is
    positive below its root and negative up to 1 is proved by subdivision.
    """
    p, square, counts = 1 / arb(K), arb(noise) ** 2, np.arange(N + 1)
    chance = np.array([arb.bin_uiui(N, k) * p**k * (1 - p) ** (N - k) for k in counts.tolist()], dtype=object)
    q = 1 + 1 / arb(K - 1) + (1 - 1 / arb(K - 1)) / balls(np.maximum(N - counts, 1))
    missing = chance[0] * (gamma * q[0] + square / N) / 2  # of prompts without the feature
    n, M, chance, q = balls(counts[1:]), balls(N - counts[1:]), chance[1:], q[1:]

    terms = list(zip(chance * n * M, n, M, square + gamma * M * q, strict=True))

    def psi(w: Any) -> Any:
        return sum(x * (1 / (k + m * w)) ** 3 * (square - w * y) for x, k, m, y in terms)

    w = arb(noise > 0.0)  # without noise 0, and one token has all attention
    if noise > 0.0 and N > 1:
        w = only_zero(psi, arb(0), arb(1))
    found = gamma * (M * w) ** 2 * q + square * (n + M * w * w)
    return missing + (chance * found / (n + M * w) ** 2).sum() / 2


def mode_steps(risk: MergedRisk, eta: float, epsilon: float, above: float | None) -> Steps:
    """Enclose the first step at which descent on the diagonal Γ has the loss ``epsilon``, or ``above`` the floor.

    The excess Σ ½ q m (γ - γ*)² of the modes shrinks by (1 - η q m)² in each step.
    """
    reach, tasks, query, second = second_moments(risk.law)
    best = np.array([arb(0) if m.is_zero() else r / m for r, m in zip(reach, second, strict=True)])
    weight, rate = query * second * (balls(risk.start) - best) ** 2 / 2, arb(eta) * query * second
    if not all(each <= 2 for each in rate):
        raise refuse("eta", eta, "at most 2 over the largest curvature: beyond it the loss may rise")
    goal = arb(epsilon) - (query * (tasks - best * reach)).sum() / 2 if above is None else arb(above)

    def left(n: int) -> arb:  # of the excess
        return (weight * (1 - rate) ** (2 * n)).sum()

    low = bisect.bisect_left(range(LAST), True, key=lambda n: not left(n) > goal)
    high = bisect.bisect_left(range(LAST), True, key=lambda n: bool(left(n) <= goal))
    if high == LAST:
        raise ArithmeticError("the goal is not reached")
    return Steps(low, high)
