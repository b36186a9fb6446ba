"""Closed forms in balls: steps, bounds and constants of the exchangeable class, and steps of linear attention.

The exchangeable map is u ← u + c a s², where the gap u is 0 at attention 1/2. Letters
and proofs are those of docs/proved.md, "Numbers of steps".
"""

from __future__ import annotations

import contextlib
import math
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial, reduce
from typing import Any

import numpy as np
from flint import arb, arb_poly, arb_series, ctx

from icl_theory._validate import argument_error
from icl_theory.certified.losses import balls, merged, second_moments
from icl_theory.engine.trajectory import Trajectory
from icl_theory.papers.linear_attention.risks import MergedRisk
from icl_theory.regression.closed.polynomials import POLYNOMIALS
from icl_theory.regression.family import Regression
from icl_theory.regression.phases import crossover, half_way
from icl_theory.regression.risks.exchangeable import ExchangeableRisk

# p up to which B counts: 5e-10 of a step is in doubt, and some 1000 steps are single
SMALL = 1.0 / 128.0
RADIUS = 0.5  # of the circle, P
LARGEST = {"a": 0.8, "s": 20.0}  # M in head and tail, which scripts/proofs.py encloses
DROP = 0.2  # 1/p changes by more than this in a step, see docs/proved.md
MOST = 10**6  # steps that are taken one by one where the sums leave several integers
# steps at which balls do not tell whether the goal is reached: more bits are needed
UNDECIDED = 1000
LAST = 2**60  # steps of linear attention that are looked at
EXACT = 1024  # bits for products of doubles


def at(enclose: Callable[[], Any], bits: int, spare: int = 32) -> Any:
    """Return what is enclosed with some bits and a few to spare, for what rounding takes on the way."""
    with ctx.workprec(bits + spare):
        return enclose()


def given(run: Trajectory) -> tuple[arb, arb] | None:
    """Return γ = L²Δ²/2 and the speed, 1 or Δ⁴/4, exactly, where a run was made from L and Δ; else None."""
    if (
        not isinstance(run.family, Regression)
        or getattr(run.risk, "origin", 0) is not None
    ):
        return None
    L = arb(run.family.L)
    delta = arb(run.family.delta)
    with ctx.workprec(EXACT):
        return (
            L * delta
        ) ** 2 / 2, delta**4 / 4 if run.family.coordinates == "embedding" else arb(1)


def closed_forms(
    run: Trajectory, known: tuple[arb, arb] | None, longest: int = 1000
) -> Iterator[tuple[Any, ...]]:
    """Yield what makes a `Proved` of what gradient descent has in closed form, with a function for the ball."""
    risk = run.risk
    epsilon = run.epsilon
    stepped = run.method != "flow"
    said = run.steps, run.error or 0.0
    if (
        isinstance(risk, MergedRisk)
        and risk.start.ndim == 1
        and stepped
        and epsilon > 0.0
        and run.steps
    ):
        count = partial(
            mode_steps, risk, run.eta, epsilon, getattr(run.family, "above", None)
        )
        yield (
            "steps",
            count,
            "the modes of Γ for the second moments, η and the target as they are",
            *said,
        )
    if not isinstance(risk, ExchangeableRisk):
        return
    K, (gamma, speed) = risk.K, known or (arb(risk.gamma), arb(risk.speed))
    if math.isfinite(risk.N):
        if longest >= risk.N:  # whose floor takes a second
            basis = "the sum over the counts of one feature"
            yield (
                "floor",
                partial(least_loss, K, gamma, int(risk.N), risk.noise),
                basis,
                run.floor,
            )
        return
    with ctx.workprec(EXACT):
        c = run.eta * speed * gamma * K / arb(K - 1) ** 2
        root = (
            4 * arb(epsilon) * (K - 1) / K
        ).sqrt()  # s √(2γ) where the loss ½ γ K/(K-1) s² is ε
        at_once = 2 * arb(epsilon) * K >= gamma * (K - 1)  # at step 0, s = (K - 1)/K
    yield "tail constant", lambda: (K - 1) / (4 * speed), "docs/tail-laws.md, Theorem 1"
    if stepped and risk.gamma > 0.0:  # without γ nothing stepped
        basis = f"the map u ← u + c a s² for {'L, Δ' if known else 'γ'}, η and ε as they are, and a bounded sum"
        begun = {name: part and part[0] for name, part in (run.phases or {}).items()}
        if epsilon > 0.0:
            yield (
                "steps",
                lambda: (
                    range(1) if at_once else steps_to(K, c, root / (2 * gamma).sqrt())
                ),
                basis,
                *said,
            )
        yield (
            "end of Phase I",
            partial(steps_to, K, c, arb(1) / 2),
            basis,
            begun.get("II"),
        )
        yield (
            "start of Phase III",
            lambda: steps_to(K, c, deficit(K, 0)),
            basis,
            begun.get("III"),
        )
    if known and epsilon > 0.0:
        delta = run.family.delta
        basis = "a change of sign in the equation of the flow time, the first one"
        yield (
            "L*",
            lambda: root / (deficit(K, 0) * delta),
            basis,
            crossover(epsilon, delta, K),
        )
        if K >= 7:
            yield (
                "L½",
                lambda: root / (deficit(K, 2) * delta),
                basis,
                half_way(epsilon, delta, K),
            )


def everywhere(holds: Callable[[arb], bool], low: arb, high: arb) -> int:
    """Prove an inequality on an interval, which is halved where balls do not decide; return the number of pieces.

    `ArithmeticError` names a piece that is not proved and cannot be halved.
    """
    if holds(low.union(high)):
        return 1
    middle = ((low + high) / 2).mid()
    if not low < middle < high:
        raise ArithmeticError(f"not proved at {low.union(high).str(10)}")
    return 1 + everywhere(holds, low, middle) + everywhere(holds, middle, high)


def zeros(function: Callable[[Any], Any], low: arb, high: arb) -> list[arb]:
    """Enclose all zeros of a function of balls, and of power series of balls, in order; there is one at least."""
    found = []
    with contextlib.suppress(
        ValueError
    ):  # a sign is not known, or a zero is not simple
        found = [
            start.union(end)
            for start, end in arb_series.find_roots(function, low, high)
        ]
    if not found:
        raise ArithmeticError(
            f"not proved at {low.union(high).str(10)}: zeros that are simple"
        )
    for i, zero in enumerate(found):
        before = arb.pos_inf()
        while (
            zero.rad() < 0.9 * before
        ):  # Newton's method halves an interval unless only rounding is left
            before = zero.rad()
            middle = zero.mid()
            zero = zero.intersection(
                middle - function(middle) / function(arb_series([zero, 1], prec=2))[1]
            )
        found[i] = zero
    return found


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
    terms = (
        arb_poly(each) * (c**j / over)
        for j, (each, over) in enumerate(POLYNOMIALS[form], start=1)
    )
    coefficients = sum(terms, start=arb_poly()).coeffs()

    def B(u: Any) -> Any:
        a, s = shares(u)
        polynomial = sum(
            each * (a if form == "a" else s) ** k for k, each in enumerate(coefficients)
        )
        return flow_time(a, s) / c + (a * s * s).log() / 2 + polynomial

    return B


def in_doubt(form: str, c: arb, small: float = SMALL) -> arb:
    """Return a ball for the sum of r over all steps of a head or tail, from Σ (1/p + DROP k)^-7."""
    p = arb(small).min(c)
    return arb(0, LARGEST[form] * (p**7 + p**6 / (6 * arb(DROP))) / arb(RADIUS) ** 7)


def steps_to(K: int, c: arb, s: arb, small: float = SMALL) -> range:
    """Enclose the first step at which the attention is 1 - s or more; steps with p above ``small`` are single."""
    u = -arb(K - 1).log()
    goal = (1 / s - 1).log()
    done = 0
    undecided = 0
    head = -(
        1 / (small / c).min(1 / arb(3)) - 1
    ).log()  # the gap up to which p = c a is small, and a below 1/3
    # Balls only grow in single steps. Wider than a step at the goal they leave several
    # integers however many more
    # are taken, and where rounding exceeds the steps they would never reach the goal.
    widest = 1.0 if small else float((c * (1 - s) * s * s).upper())
    while not u >= goal:
        if not u.rad() + goal.rad() < widest or undecided > UNDECIDED:
            raise ArithmeticError("the balls have become too wide to tell steps apart")
        reached = not u < goal  # perhaps: these steps are single
        undecided += reached
        (a, left), ahead = shares(u), None
        if u < head and not reached:
            ahead = _ahead(u, c, "a", goal.min(head).mid(), small)
        elif a > 0.33 and c * left * left < small and not reached:
            ahead = _ahead(u, c, "s", goal.mid(), small)
        u, more = ahead or (u + c * a * left * left, 1)
        done += more
    found = range(done - undecided, done + 1)
    if small and found[0] < done <= MOST:
        with contextlib.suppress(
            ArithmeticError
        ):  # then the interval is the best that these bits give
            return steps_to(K, c, s, 0.0)
    return found


def _ahead(u: arb, c: arb, form: str, end: arb, small: float) -> tuple[arb, int] | None:
    """Return an iterate shortly before the end of a head or tail, and how many steps lead to it; None if few do."""
    B = abel(c, form)
    doubt = in_doubt(form, c, small)
    count = (B(end) - B(u) + doubt).lower().floor().unique_fmpz()
    if count is None:
        raise ArithmeticError("the steps are not counted")
    many = int(count) - 2
    aim, (a, s) = B(u) + many + doubt, shares(end)
    return (
        (zeros(lambda u: aim - B(u), end - 8 * c * a * s * s, end)[0], many)
        if many > 0
        else None
    )


def phase_one_lies_between(K: int, c: arb) -> bool:
    """The attention is 1/2 after (F(1/3) - F(1/K))/c steps at least, and 3K²/(2ηγ) + ln(K/3) + 2 at most.

    Larger c take no more steps (docs/proved.md): the ends of a ball of them decide.
    """
    least, most = (steps_to(K, each, arb(1) / 2) for each in (c.upper(), c.lower()))
    bound = 3 * arb(K) ** 3 / (2 * arb(K - 1) ** 2 * c.upper()) + (arb(K) / 3).log() + 2
    return bool(flow(arb(2) / 3, K) / c.lower() <= least[0] and most[-1] <= bound)


def deficit(K: int, power: int) -> arb:
    """Enclose the least s at which a^power s² Φ(s) is 1: at L* for the power 0, at L½, which K >= 7 have, for 2.

    Phase III begins at the first of these, which is 1/2 for two features.
    """
    if K == 2 and power == 0:
        return arb(1) / 2
    # s² Φ < ½ + 2 s + 3 s² |ln s| + (K + 3) s² is below 0.62 up to here
    first = 1 / (16 * arb(K).sqrt()).upper()
    return zeros(
        lambda s: 1 - (1 - s) ** power * s * s * flow(s, K), first, 1 - 1 / arb(K)
    )[0]


def least_loss(K: int, gamma: arb, N: int, noise: float) -> arb:
    r"""Enclose the least loss over the gap u for finite prompts, the floor of `ExchangeableRisk`.

    With w = e^-u, M = N - n, T = n + M w and :math:`y = \sigma^2 + \gamma M q_n` it is
    :math:`\tfrac12 E[(M w^2 y + n \sigma^2) T^{-2}]`. Without noise that is least in
    the limit w = 0. With noise its slope in u is w times :math:`\psi(w) = E[n M T^{-3}
    (\sigma^2 - w y)]`, negative for w >= 1 and positive at 0, so that the least loss is
    the least one at the zeros of ψ.
    """
    p = 1 / arb(K)
    square = arb(noise) ** 2
    (absent, _, _, alone), *terms = (
        (
            arb.bin_uiui(N, n) * p**n * (1 - p) ** M,
            n,
            M,
            square + gamma * (M + 1 + (M - 1) / arb(K - 1)),
        )
        for n, M in zip(range(N + 1), range(N, -1, -1), strict=True)
    )

    def psi(w: Any) -> Any:
        return sum(
            x * n * M * (1 / (n + M * w)) ** 3 * (square - w * y)
            for x, n, M, y in terms
        )

    def loss(w: arb) -> arb:
        present = sum(
            x * (M * w * w * y + n * square) / (n + M * w) ** 2 for x, n, M, y in terms
        )
        return (absent * alone / N + present) / 2

    # one token has all attention
    found = zeros(psi, arb(0), arb(1)) if noise > 0.0 and N > 1 else [arb(0)]
    return reduce(arb.min, map(loss, found))


def mode_steps(
    risk: MergedRisk, eta: float, epsilon: float, above: float | None
) -> range:
    """Enclose the first step at which descent on the diagonal Γ has the loss ``epsilon``, or ``above`` the floor.

    The modes γ - γ* shrink by 1 - η q m in each step.
    """
    reach, _, query, second = second_moments(risk.law)
    best = np.array(
        [arb(0) if m.is_zero() else r / m for r, m in zip(reach, second, strict=True)]
    )
    off = balls(risk.start) - best
    rate = arb(eta) * query * second
    if not all(each <= 2 for each in rate):
        raise argument_error(
            "eta",
            eta,
            "at most 2 over the largest curvature: beyond it the loss may rise",
        )
    goal = arb(epsilon) if above is None else merged(risk, best)[0] + arb(above)

    def loss(n: int) -> arb:
        return merged(risk, best + (1 - rate) ** n * off)[0]

    low = bisect_left(range(LAST), True, key=lambda n: not loss(n) > goal)
    high = bisect_left(range(LAST), True, key=lambda n: bool(loss(n) <= goal))
    if high == LAST:
        raise ArithmeticError("the goal is not reached")
    return range(low, high + 1)
