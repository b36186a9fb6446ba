"""Numbers of steps of the exchangeable map in balls: u ← u + c a s², with the Abel function of `closed.abel`.

What a step misses of it, r, is bounded by M (p/P)^7 with p = c a while a <= 1/3, and p = c s² beyond; where p is
larger, steps are taken one by one. See docs/proved.md, "Numbers of steps".
"""

from __future__ import annotations

import bisect
from typing import Any, NamedTuple

import numpy as np
from flint import arb, ctx

from icl_theory.certified.balls import around, balls
from icl_theory.certified.losses import moments_of
from icl_theory.certified.proof import Steps
from icl_theory.families.linear_attention.risks import MergedRisk
from icl_theory.families.regression.closed.polynomials import POLYNOMIALS

SMALL = 1.0 / 128.0  # p up to which B counts: 5e-10 of a step is in doubt, and some 1000 steps are single
RADIUS = 0.5  # of the circle, P
LARGEST = {"a": 0.8, "s": 20.0}  # M in head and tail, which scripts/proofs.py encloses
DROP = 0.2  # 1/p changes by more than this in a step, see docs/proved.md
LAST = 2**60  # steps of linear attention that are looked at
MOST = 10**6  # steps that are taken one by one where the sums leave several integers


class Map(NamedTuple):
    """The map of K features with a step constant c, in balls; gaps count from attention 1/2."""

    K: int
    c: arb

    @property
    def start(self) -> arb:
        """The gap at step 0."""
        return -arb(self.K - 1).log()

    def abel(self, u: arb, form: str) -> arb:
        """Return B(u) with the polynomials in a or in s, between which constants differ; s is small in the tail."""
        a, s = shares(u)
        total = (3 * u - 1 / a + 2 / s + 1 / (2 * s * s)) / self.c + (a * s * s).log() / 2
        for j, (coefficients, denominator) in enumerate(POLYNOMIALS[form], start=1):
            total += self.c**j * polynomial(coefficients, a if form == "a" else s) / denominator
        return total

    def steps_to(self, goal: arb) -> Steps:
        """Enclose the first step at which u is ``goal`` or above."""
        found = self._summed(goal)
        return found if found.low == found.high or found.high > MOST else self.iterated(goal)

    def iterated(self, goal: arb, u: arb | None = None, done: int = 0, tail: bool = False) -> Steps:
        """Take single steps, from ``u`` after some; with ``tail`` the last of them are summed where p is small."""
        here, low = self.start if u is None else u, None
        while not here >= goal:
            if not here.rad() < 1:
                raise ArithmeticError("the balls have become too wide to tell steps apart")
            a, s = shares(here)
            if low is None and not here < goal:
                low = done
            if tail and a > 0.33 and self.c * s * s < SMALL:
                found = _whole(self.abel(goal, "s") - self.abel(here, "s") + in_doubt("s", self.c))
                return Steps(done + found.low if low is None else low, done + found.high)
            here, done = here + self.c * a * s * s, done + 1
        return Steps(done if low is None else low, done)

    def _summed(self, goal: arb) -> Steps:
        """Count with B in the head and the tail of the run, and step by step between them."""
        if self.K <= 3 or not self.c < SMALL * self.K:
            return self.iterated(goal, tail=True)
        start, doubt = self.abel(self.start, "a"), in_doubt("a", self.c)
        least = 1 / arb(3) if self.c < 3 * SMALL else SMALL / self.c
        end = gap(1 - least).mid()
        if goal < end:
            return _whole(self.abel(goal, "a") - start + doubt)
        taken = _whole(self.abel(end, "a") - start).low - 2
        if taken <= 0:
            return self.iterated(goal, tail=True)
        aim = start + taken + doubt
        for _ in range(ctx.prec.bit_length()):  # Newton's method; B' is nearly 1/(c g)
            a, s = shares(end)
            end = (end + (aim - self.abel(end, "a")) * self.c * a * s * s).mid()
        apart = (aim - self.abel(end, "a")) * (2 * SMALL)  # B' is at least 1/(2p) where p <= 0.01
        if not abs(apart) < 0.1:
            raise ArithmeticError("the end of the head is not found")
        return self.iterated(goal, end + around(apart), taken, tail=True)


def gap(s: arb) -> arb:
    """Return the gap at which the attention is 1 - s."""
    return ((1 - s) / s).log()


def shares(u: arb) -> tuple[arb, arb]:
    """Attention a and s = 1 - a, each with w in it once, so that balls stay small."""
    w = (-u).exp()
    return 1 / (1 + w), 1 / (1 + 1 / w)


def steps_to(K: int, c: arb, deficit: arb) -> Steps:
    """Enclose the first step at which 1 - a is ``deficit`` or less."""
    if deficit >= 1 - 1 / arb(K):
        return Steps(0, 0)
    return Map(K, c).steps_to(gap(deficit))


def steps_to_loss(K: int, c: arb, gamma: arb, epsilon: float) -> Steps:
    """Enclose the first step at which the loss ½ γ K/(K-1) s² is ``epsilon`` or less."""
    with ctx.workprec(4 * ctx.prec + 512):  # products of doubles are exact
        if 2 * arb(epsilon) * K >= gamma * (K - 1):  # at step 0, s = (K - 1)/K
            return Steps(0, 0)
    return steps_to(K, c, (2 * arb(epsilon) * (K - 1) / (gamma * K)).sqrt())


def _whole(steps: arb) -> Steps:
    """Return the least whole numbers from 0 on that are not below the ends of a ball."""
    low, high = (end.max(arb(0)).ceil().unique_fmpz() for end in (steps.lower(), steps.upper()))
    if low is None or high is None:
        raise ArithmeticError("the steps are not counted")
    return Steps(int(low), int(high))


def polynomial(coefficients: Any, x: Any) -> Any:
    """Return a polynomial, lowest power first."""
    total = x * 0
    for coefficient in reversed(coefficients):
        total = total * x + int(coefficient)
    return total


def in_doubt(form: str, c: arb) -> arb:
    """Return a ball for the sum of r over all steps of a head or tail, from Σ (1/p + DROP k)^-7."""
    p = arb(SMALL).min(c)
    return around(LARGEST[form] * (p**7 + p**6 / (6 * arb(DROP))) / arb(RADIUS) ** 7)


def mode_steps(risk: MergedRisk, eta: float, epsilon: float, above: float | None) -> Steps:
    """Enclose the first step at which descent on the diagonal Γ has the loss ``epsilon``, or ``above`` the floor.

    The excess Σ ½ q m (γ - γ*)² of the modes shrinks by (1 - η q m)² in each step.
    """
    reach, tasks, query, second = moments_of(risk.law)
    seen = np.array([not each.is_zero() for each in second])
    best = np.where(seen, reach / np.where(seen, second, balls([1.0])), balls([0.0]))
    weight, shrink = query * second * (balls(risk.start) - best) ** 2 / 2, 1 - arb(eta) * query * second
    if any(not abs(each) <= 1 for each in shrink):
        raise ArithmeticError("the loss may rise")
    goal = arb(epsilon) - (query * (tasks - best * reach)).sum() / 2 if above is None else arb(above)

    def first(sure: bool) -> int:  # that is at the goal for certain, or perhaps
        def reached(n: int) -> bool:
            left = (weight * shrink ** (2 * n)).sum()
            return bool(left <= goal) if sure else not left > goal

        found = bisect.bisect_left(range(LAST), True, key=reached)
        if found == LAST:
            raise ArithmeticError("the goal is not reached")
        return found

    return Steps(first(False), first(True))
