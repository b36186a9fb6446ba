"""Closed forms in balls: steps, bounds and constants that `certify` proves for a run.

A *ball* (``arb``) is a number with a bound on its error. A comparison of balls is True
only if it holds for all numbers in them.

For K exchangeable features and prompts of length N = ∞, a step of descent is the map
u ← u + c a s². Here the gap u = ln(a/s) is 0 at the attention a = 1/2 (elsewhere in the
package it is 0 at the start), and s = 1 - a is the attention deficit. With the learning
rate η, the variogram γ and the factor ``speed`` on η in other coordinates, c = η speed
γ K/(K - 1)². A run starts at a = 1/K. Its *head*, at its beginning, has a <= 1/3 and a
small p = c a. Its *tail*, at its end, has a > 0.33 and a small p = c s². In head and
tail an approximate Abel function B grows by 1 + r in each step, with a tiny r, and so
counts steps. Letters and proofs are as in docs/proved.md, "Numbers of steps".

`closed_forms` yields one `ClosedForm` for each quantity. Balls are computed at the
precision of the context in which a function is called.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from flint import arb, arb_poly, arb_series, ctx

from icl_theory._validate import argument_error
from icl_theory.certified.losses import balls, least, merged, second_moments
from icl_theory.engine.trajectory import Trajectory
from icl_theory.papers.linear_attention.risks import MergedRisk
from icl_theory.regression.closed.polynomials import POLYNOMIALS
from icl_theory.regression.family import Regression
from icl_theory.regression.phases import crossover, half_way
from icl_theory.regression.risks.exchangeable import ExchangeableRisk

# Largest p at which the Abel function B counts steps. The count is then in doubt by
# 5e-10 of a step at most, and up to some 1000 steps between head and tail have to be
# taken one by one. A smaller limit lessens the doubt and takes more steps.
SMALL = 1.0 / 128.0
# P, the radius of a circle in the complex plane of p. If M is the largest |r| on this
# circle, then |r| <= M (p/P)^7 at each p from 0 to P, because r has a zero of order
# seven at p = 0.
RADIUS = 0.5
# Bounds on M in the head, "a", and in the tail, "s"; scripts/proofs.py proves them.
LARGEST = {"a": 0.8, "s": 20.0}
DROP = 0.2  # 1/p changes by more than this in each step of head or tail
# The attention above which the tail may begin. The head ends at 1/3; balls around 1/3
# need some overlap of the two ranges.
TAIL_ATTENTION = 0.33
# Largest number of steps that are taken one by one if the bound on the sum of r leaves
# several integers possible. More steps would take too long.
MOST = 10**6
# Largest number of steps for which balls may leave open whether the goal is reached. If
# there are more, the precision is too low.
UNDECIDED = 1000
# Steps of linear attention are counted up to `LAST`. The count is found by bisection in
# ``range(LAST)``, and Python's len() of a range works only below 2^63.
LAST = 2**60
# Bits that hold products of a few doubles, of 53 bits each, exactly.
EXACT = 1024
# Largest prompt length for which the floor, the least loss, is enclosed. At this length
# the enclosure takes a second.
LONGEST_PROMPT = 1000


class ExchangeableParameters(NamedTuple):
    """The exact parameters of the exchangeable map."""

    gamma: arb  # γ = L²Δ²/2
    speed: arb  # the factor on η: 1, or Δ⁴/4 in embedding coordinates


class ClosedForm(NamedTuple):
    """A quantity with a closed form. All fields but ``enclose`` are as in `Proved`."""

    name: str
    enclose: Callable[[], Any]  # the ball or range, at the precision of the context
    basis: str  # what the proof rests on
    double: Any = None  # the value without proof; None if there is none
    stated: float = 0.0  # the error of ``double`` that the package states


class Leap(NamedTuple):
    """One or more steps of the map that are taken at once."""

    gap: arb  # u after these steps
    steps: int


def with_bits(enclose: Callable[[], Any], bits: int, spare: int = 32) -> Any:
    """Call ``enclose`` at a precision of ``bits + spare`` bits.

    The spare bits make up for the rounding of intermediate results.
    """
    with ctx.workprec(bits + spare):
        return enclose()


def exact_parameters(run: Trajectory) -> ExchangeableParameters | None:
    """Return γ and the speed exactly if a run was made from L and Δ, else None."""
    problem = run.family
    if not isinstance(problem, Regression):
        return None
    # The parameters follow from L and Δ only for an ExchangeableRisk without an
    # ``origin``: a risk with an ``origin`` takes γ from given features and tasks.
    if not isinstance(run.risk, ExchangeableRisk) or run.risk.origin is not None:
        return None
    L = arb(problem.L)
    delta = arb(problem.delta)
    with ctx.workprec(EXACT):
        gamma = (L * delta) ** 2 / 2
        is_embedding = problem.coordinates == "embedding"
        speed = delta**4 / 4 if is_embedding else arb(1)
    return ExchangeableParameters(gamma, speed)


def closed_forms(
    run: Trajectory, exact: ExchangeableParameters | None
) -> Iterator[ClosedForm]:
    """Yield the quantities of gradient descent that have a closed form.

    Parameters
    ----------
    run : Trajectory
        A run with its risk, by gradient descent or its flow.
    exact : ExchangeableParameters or None
        The exact parameters, if they are known (see `exact_parameters`).
    """
    risk = run.risk
    if isinstance(risk, MergedRisk):
        yield from _linear_attention_forms(run, risk)
    elif isinstance(risk, ExchangeableRisk):
        if math.isfinite(risk.N):
            yield from _finite_prompt_forms(run, risk, exact)
        else:
            yield from _infinite_prompt_forms(run, risk, exact)


def _linear_attention_forms(run: Trajectory, risk: MergedRisk) -> Iterator[ClosedForm]:
    """Yield the number of steps of descent from a diagonal start.

    There is no such number for a gradient flow, for a run without a target, and for a
    run that began at its target or did not reach it.
    """
    is_diagonal = risk.start.ndim == 1
    # ``run.steps`` is None if the target was not reached, and 0 if the run began at it.
    if is_diagonal and run.method != "flow" and run.epsilon > 0.0 and run.steps:
        # A run has no family if its risk was not made by a family.
        above = getattr(run.family, "above", None)
        yield ClosedForm(
            "steps",
            partial(mode_steps, risk, run.eta, run.epsilon, above),
            basis="the modes of Γ for the second moments, η and the target taken as"
            " exact",
            double=run.steps,
            stated=run.error or 0.0,
        )


def _finite_prompt_forms(
    run: Trajectory, risk: ExchangeableRisk, exact: ExchangeableParameters | None
) -> Iterator[ClosedForm]:
    """Yield the floor, for prompts that are not too long."""
    if risk.N <= LONGEST_PROMPT:
        gamma = arb(risk.gamma) if exact is None else exact.gamma
        yield ClosedForm(
            "floor",
            partial(least_loss, risk.K, gamma, int(risk.N), risk.noise),
            basis="the sum over the counts of one feature",
            double=run.floor,
        )


def _infinite_prompt_forms(
    run: Trajectory, risk: ExchangeableRisk, exact: ExchangeableParameters | None
) -> Iterator[ClosedForm]:
    """Yield the closed forms of a run with N = ∞."""
    K = risk.K
    epsilon = run.epsilon
    if exact is None:
        # The proofs then take the doubles of the risk as exact.
        gamma = arb(risk.gamma)
        speed = arb(risk.speed)
    else:
        gamma, speed = exact
    # The closed forms share these numbers, and each form is computed at its own
    # precision later. 1024 bits are more than a count of steps needs.
    with ctx.workprec(EXACT):
        c = run.eta * speed * gamma * K / arb(K - 1) ** 2
        # The deficit s at the loss ε = ½ γ K/(K-1) s², multiplied by √(2γ). This
        # product does not contain γ. The crossovers need such a form, because they are
        # values of L, on which γ depends.
        scaled_deficit = (4 * arb(epsilon) * (K - 1) / K).sqrt()
        # At step 0 the deficit is s = (K - 1)/K, and the loss ½ γ (K - 1)/K.
        starts_at_goal = 2 * arb(epsilon) * K >= gamma * (K - 1)

    yield ClosedForm(
        "tail constant",
        lambda: (K - 1) / (4 * speed),
        basis="docs/tail-laws.md, Theorem 1",
    )

    def steps_to_epsilon() -> range:
        if starts_at_goal:
            return range(1)  # 0 steps, the only possible number
        return steps_to(K, c, scaled_deficit / (2 * gamma).sqrt())

    # With γ = 0 the gradient is zero, and nothing moves.
    if run.method != "flow" and risk.gamma > 0.0:
        parameters = "γ" if exact is None else "L, Δ"
        basis = (
            f"the map u ← u + c a s² with exact {parameters}, η and ε, and a bounded"
            " sum"
        )
        if epsilon > 0.0:
            yield ClosedForm(
                "steps",
                steps_to_epsilon,
                basis,
                double=run.steps,
                stated=run.error or 0.0,
            )
        yield from _phase_ends(run, K, c, basis)
    if exact is not None and epsilon > 0.0:
        delta = run.family.delta  # type: ignore[union-attr]
        yield from _crossovers(epsilon, delta, K, scaled_deficit)


def _phase_ends(run: Trajectory, K: int, c: arb, basis: str) -> Iterator[ClosedForm]:
    """Yield the steps at which Phase I ends, at a = 1/2, and Phase III begins.

    Both steps are compared with the steps of the run.
    """
    # A phase that a run does not reach has no interval.
    phase_starts = {}  # the first step of each phase
    for name, interval in (run.phases or {}).items():
        phase_starts[name] = None if interval is None else interval[0]
    yield ClosedForm(
        "end of Phase I",
        lambda: steps_to(K, c, s=arb(1) / 2),
        basis,
        # Phase I ends at the step at which Phase II begins.
        double=phase_starts.get("II"),
    )
    yield ClosedForm(
        "start of Phase III",
        lambda: steps_to(K, c, s=deficit(K, power=0)),
        basis,
        double=phase_starts.get("III"),
    )


def _crossovers(
    epsilon: float, delta: float, K: int, scaled_deficit: arb
) -> Iterator[ClosedForm]:
    """Yield the crossovers L* and L½, values of L between the regimes.

    Both crossovers are compared with the formulas in float64.
    """
    basis = "the first change of sign in the equation of the flow time"
    # With γ = L²Δ²/2 the scaled deficit is s √(2γ) = s L Δ, so that L follows from s.
    yield ClosedForm(
        "L*",
        lambda: scaled_deficit / (deficit(K, power=0) * delta),
        basis,
        double=crossover(epsilon, delta, K),
    )
    # L½ is the L at which d ln T/d ln L = -1, with the time T that the flow takes to
    # the loss ε. With fewer than 7 features this slope is above -1 for every L.
    if K >= 7:
        yield ClosedForm(
            "L½",
            lambda: scaled_deficit / (deficit(K, power=2) * delta),
            basis,
            double=half_way(epsilon, delta, K),
        )


# ---- proofs on intervals


def everywhere(holds: Callable[[arb], bool], low: arb, high: arb) -> int:
    """Prove an inequality on an interval, which is halved until balls decide.

    Parameters
    ----------
    holds : callable
        Returns whether the inequality is proved for all numbers of a ball.
    low, high : arb
        Ends of the interval.

    Returns
    -------
    int
        Number of pieces into which the interval was divided.

    Raises
    ------
    ArithmeticError
        A piece is not proved and cannot be halved; the message names it.
    """
    if holds(low.union(high)):
        return 1
    middle = ((low + high) / 2).mid()
    # If the ends are neighbours at the precision of the context, no number lies between
    # them.
    if not low < middle < high:
        raise ArithmeticError(f"not proved at {low.union(high).str(10)}")
    return 1 + everywhere(holds, low, middle) + everywhere(holds, middle, high)


def zeros(function: Callable[[Any], Any], low: arb, high: arb) -> list[arb]:
    """Enclose all zeros of a function in an interval, in order.

    Parameters
    ----------
    function : callable
        A function of balls, and of power series of balls.
    low, high : arb
        Ends of the interval.

    Returns
    -------
    list of arb
        One ball around each zero; there is at least one zero.

    Raises
    ------
    ArithmeticError
        The function may have no zero in the interval, or one that is not simple.
    """
    intervals = []
    # A ValueError says that a sign is not known, or that a zero is not simple.
    with contextlib.suppress(ValueError):
        intervals = arb_series.find_roots(function, low, high)
    if not intervals:
        raise ArithmeticError(
            f"not proved at {low.union(high).str(10)}: zeros that are simple"
        )
    return [_refined_zero(function, start.union(end)) for start, end in intervals]


def _refined_zero(function: Callable[[Any], Any], zero: arb) -> arb:
    """Return the smallest interval around a simple zero that Newton's method gives.

    ``zero`` is an interval with exactly one zero, on which the slope has one sign.
    """
    radius_before = arb.pos_inf()
    # Near a simple zero a step of Newton's method at least halves the interval. If the
    # radius hardly shrinks, only rounding is left.
    while zero.rad() < 0.9 * radius_before:
        radius_before = zero.rad()
        middle = zero.mid()
        # With the interval Z = ``zero``, the function f of the power series Z + ε has
        # the coefficient f'(Z) of ε.
        slope = function(arb_series([zero, 1], prec=2))[1]
        # The zero lies in Z and, by the mean value theorem, in m - f(m)/f'(Z), with the
        # midpoint m of Z.
        zero = zero.intersection(middle - function(middle) / slope)
    return zero


# ---- the exchangeable map


def shares(u: arb) -> tuple[arb, arb]:
    """Return the attention a = 1/(1 + e^-u) and s = 1 - a at a gap u.

    Each formula contains w = e^-u only once. If a ball occurs twice in a formula, the
    result is wider than need be, because the two errors are taken as independent.
    """
    w = (-u).exp()
    return 1 / (1 + w), 1 / (1 + 1 / w)


def flow_time(a: arb, s: arb) -> arb:
    """Return F = 3 ln(a/s) - 1/a + 2/s + 1/(2 s²), with a + s = 1.

    Gradient flow, du/dt = c a s², takes the time (F₂ - F₁)/c between two attentions, at
    which F is F₁ and F₂.
    """
    return 3 * (a.log() - s.log()) - 1 / a + 2 / s + (1 / s) ** 2 / 2


def flow(s: arb, K: int) -> arb:
    """Return Φ(s) = F(1 - s) - F(1/K), with F of `flow_time`.

    Φ(s) is c times the time of the flow from the start, a = 1/K, to the deficit s.
    """
    return flow_time(1 - s, s) - flow_time(1 / arb(K), 1 - 1 / arb(K))


def abel(c: arb, form: str) -> Callable[[Any], Any]:
    """Return the approximate Abel function, B = F/c + ½ ln(a s²) + Σ_j c^j P_j.

    Parameters
    ----------
    c : arb
        The parameter of the map.
    form : {"a", "s"}
        The variable of the polynomials P_j: a for the head, where it is small, and s
        for the tail. The two functions B differ by a constant.
    """
    # Σ_j c^j P_j as one polynomial. P_j has integer numerators, lowest power first, and
    # one denominator.
    polynomial = arb_poly()
    for j, (numerators, denominator) in enumerate(POLYNOMIALS[form], start=1):
        polynomial = polynomial + arb_poly(numerators) * (c**j / denominator)
    coefficients = polynomial.coeffs()

    def B(u: Any) -> Any:
        a, s = shares(u)
        x = a if form == "a" else s
        # The powers are summed here, because flint evaluates a polynomial at a ball,
        # but not at a power series, which u may be.
        corrections: Any = 0
        for k, coefficient in enumerate(coefficients):
            corrections = corrections + coefficient * x**k
        return flow_time(a, s) / c + (a * s * s).log() / 2 + corrections

    return B


def in_doubt(form: str, c: arb, small: float = SMALL) -> arb:
    """Return a ball for the sum of r over all steps of a head ("a") or tail ("s").

    B grows by 1 + r in a step, and the size of r is at most M (p/P)^7, with P = RADIUS
    and M from LARGEST. As 1/p changes by DROP or more in each step, the sizes of r add
    up to at most Σ_k M (1/p + DROP k)^-7 / P^7 over k = 0, 1, ..., with the largest p
    of the head or tail. This is at most M (p^7 + p^6/(6 DROP)) / P^7.
    """
    # The largest p. As p is c a or c s², it is at most c, and a head or a tail has p up
    # to ``small``.
    p = arb(small).min(c)
    return arb(0, LARGEST[form] * (p**7 + p**6 / (6 * arb(DROP))) / arb(RADIUS) ** 7)


def steps_to(K: int, c: arb, s: arb, small: float = SMALL) -> range:
    """Enclose the first step at which the attention is 1 - s or more.

    Parameters
    ----------
    K : int
        Number of features.
    c : arb
        The parameter of the map.
    s : arb
        The attention deficit to be reached.
    small : float
        Steps with a larger p are taken one by one. If ``small`` is 0, all steps are
        taken one by one.

    Returns
    -------
    range
        The numbers of steps that are possible.

    Raises
    ------
    ArithmeticError
        The precision is too low.
    """
    # The gap of an attention a is ln(a/(1 - a)); the run starts at a = 1/K.
    u = -arb(K - 1).log()
    goal = (1 / s - 1).log()
    # The head ends where p = c a exceeds small, or a exceeds 1/3. If small is 0, this
    # gap is NaN. No comparison with NaN is True, so that there is no head.
    head_end = -(1 / (small / c).min(1 / arb(3)) - 1).log()
    # The limit of the sum of the radii of u and of the goal. Single steps make the
    # balls wider. If the sum exceeds a step at the goal, c a s², several integers stay
    # possible, and with still wider balls the goal might never be reached for certain.
    # So this step is the limit if all steps are single. If most steps are leapt over,
    # the limit is 1, a generous bound.
    widest = 1.0 if small else float((c * (1 - s) * s * s).upper())
    taken = 0
    undecided = 0
    # A comparison of balls holds only if it is proved, so that ``not u >= goal`` is not
    # the same as ``u < goal``.
    while not u >= goal:
        tells_steps_apart = u.rad() + goal.rad() < widest
        if not tells_steps_apart or undecided > UNDECIDED:
            raise ArithmeticError("the balls have become too wide to tell steps apart")
        if u < goal:
            leap = _leap_or_step(u, c, head_end, goal, small)
        else:
            # The balls overlap, so that the goal may have been reached: only single
            # steps can tell.
            undecided += 1
            leap = _single_step(u, c)
        u = leap.gap
        taken += leap.steps
    # The goal is reached for certain after ``taken`` steps, and not yet before the
    # undecided ones.
    possible = range(taken - undecided, taken + 1)
    is_one_number = possible[0] == taken
    if small and not is_one_number and taken <= MOST:
        # Single steps have no error but rounding. If even they fail, the interval is
        # the best that these bits give.
        with contextlib.suppress(ArithmeticError):
            return steps_to(K, c, s, small=0.0)
    return possible


def _single_step(u: arb, c: arb) -> Leap:
    """Take one step of the map, u ← u + c a s²."""
    a, s = shares(u)
    return Leap(u + c * a * s * s, 1)


def _leap_or_step(u: arb, c: arb, head_end: arb, goal: arb, small: float) -> Leap:
    """Take many steps at once within the head or the tail, and a single step elsewhere.

    The head ends at the gap ``head_end``. In the tail, a exceeds TAIL_ATTENTION and
    p = c s² is below ``small``.
    """
    leap = None
    # A leap stops about two steps before its end point, so the midpoint of a ball will
    # do as the end point.
    if u < head_end:
        leap = _leap(u, c, "a", goal.min(head_end).mid(), small)
    else:
        a, s = shares(u)
        if a > TAIL_ATTENTION and c * s * s < small:
            leap = _leap(u, c, "s", goal.mid(), small)
    return leap or _single_step(u, c)


def _leap(u: arb, c: arb, form: str, end: arb, small: float) -> Leap | None:
    """Take all but two or three of the steps to the gap ``end``, in a head or tail.

    ``form`` is "a" for the head and "s" for the tail. At ``end`` is the goal, or the
    end of the head. Return None if at most two steps are certain; they are then taken
    one by one.
    """
    B = abel(c, form)
    doubt = in_doubt(form, c, small)
    # The number of steps that certainly do not pass the end: B grows by 1 in each step,
    # up to the doubt. It is None if the balls are so wide that their lower end is not
    # finite.
    steps_to_end = (B(end) - B(u) + doubt).lower().floor().unique_fmpz()
    if steps_to_end is None:
        raise ArithmeticError("the steps are not counted")
    # Take two steps fewer, so that the iterate certainly lies before the end.
    steps = int(steps_to_end) - 2
    if steps <= 0:
        return None
    B_after = B(u) + steps + doubt
    a, s = shares(end)
    # The iterate lies two or three steps before the end, and a step is about c a s²
    # there. Eight such steps are generous.
    start = end - 8 * c * a * s * s
    # The iterate has the gap at which B is B_after. B increases, so there is one zero.
    (gap_after,) = zeros(lambda gap: B_after - B(gap), start, end)
    return Leap(gap_after, steps)


def phase_one_lies_between(K: int, c: arb) -> bool:
    """Whether both bounds on the end T of Phase I are proved for all c of a ball.

    The bounds are (F(1/3) - F(1/K))/c <= T <= 3K²/(2ηγ) + ln(K/3) + 2, with F of
    `flow_time`. A larger c never takes more steps (docs/proved.md), so the ends of the
    ball decide.
    """
    # Phase I ends at the deficit 1/2. It takes the fewest steps with the largest c.
    fewest = steps_to(K, c.upper(), s=arb(1) / 2)
    most = steps_to(K, c.lower(), s=arb(1) / 2)
    # The attention 1/3 has the deficit 2/3.
    lower_bound = flow(arb(2) / 3, K) / c.lower()
    # c = ηγ K/(K-1)², so that 3K²/(2ηγ) = 3K³/(2 (K-1)² c)
    upper_bound = 3 * arb(K) ** 3 / (2 * arb(K - 1) ** 2 * c.upper())
    upper_bound = upper_bound + (arb(K) / 3).log() + 2
    return bool(lower_bound <= fewest[0] and most[-1] <= upper_bound)


def deficit(K: int, power: int) -> arb:
    """Enclose the least s at which a^power s² Φ(s) is 1, with Φ of `flow`.

    The power 0 gives the deficit at L*, where Phase III begins. For two features there
    is no such s: Phase III begins at the start, where s = 1/2. The power 2 gives the
    deficit at L½, for K >= 7.
    """
    if K == 2 and power == 0:
        return arb(1) / 2
    # For all s below ``low``, s² Φ is less than
    # ½ + 2 s + 3 s² |ln s| + (K + 3 ln K) s², and this sum is below 0.62. A solution
    # needs s² Φ >= 1, so there is none.
    low = 1 / (16 * arb(K).sqrt()).upper()
    high = 1 - 1 / arb(K)  # the deficit at the start, where Φ = 0
    # The zeros are in order, so the least s is the first one.
    solutions = zeros(lambda s: 1 - (1 - s) ** power * s * s * flow(s, K), low, high)
    return solutions[0]


# ---- floors of finite prompts


class _CountTerm(NamedTuple):
    """The prompts with n tokens of the query's feature and M = N - n others."""

    probability: arb
    n: int
    M: int
    y: arb  # σ² + γ M q_n, as in `least_loss`


def least_loss(K: int, gamma: arb, N: int, noise: float) -> arb:
    r"""Enclose the least loss over the gap u for finite prompts.

    This loss is the floor of an `ExchangeableRisk`. Of the N tokens of a prompt, n show
    the query's feature; n has the binomial law with N trials of probability 1/K. σ is
    the ``noise``. With w = e^-u, M = N - n, T = n + M w and
    :math:`y = \sigma^2 + \gamma M q_n` the loss is
    :math:`\tfrac12 E[(M w^2 y + n \sigma^2) T^{-2}]`. Here :math:`\gamma q_n` is the
    mean squared error of the average of the M other tokens without noise, and
    :math:`M q_n = M + 1 + (M - 1)/(K - 1)`.

    Without noise the loss is least in the limit w = 0. With noise its derivative with
    respect to u is w times :math:`\psi(w) = E[n M T^{-3} (\sigma^2 - w y)]`. If γ > 0,
    this ψ is positive at w = 0 and negative for w >= 1. So the loss is least at a zero
    of ψ.
    """
    # The probability that a token shows the query's feature.
    own_prob = 1 / arb(K)
    variance = arb(noise) ** 2
    terms = []
    for n in range(N + 1):
        M = N - n
        probability = arb.bin_uiui(N, n) * own_prob**n * (1 - own_prob) ** M
        y = variance + gamma * (M + 1 + (M - 1) / arb(K - 1))
        terms.append(_CountTerm(probability, n, M, y))
    # Without a token of the query's feature the loss does not depend on w.
    absent, *present = terms

    def psi(w: Any) -> Any:
        total: Any = 0  # becomes a ball, or a power series if w is one
        for probability, n, M, y in present:
            slope = n * M * (1 / (n + M * w)) ** 3 * (variance - w * y)
            total = total + probability * slope
        return total

    def loss(w: arb) -> arb:
        total = arb(0)
        for probability, n, M, y in present:
            squares = (M * w * w * y + n * variance) / (n + M * w) ** 2
            total = total + probability * squares
        # The term n = 0 is M w² y/T² = y/N, because M = N and T = N w.
        return (absent.probability * absent.y / N + total) / 2

    # With N = 1 the only token has all attention, and the loss is the same for all w.
    is_least_inside = noise > 0.0 and N > 1
    candidates = zeros(psi, arb(0), arb(1)) if is_least_inside else [arb(0)]
    floor = loss(candidates[0])
    for w in candidates[1:]:
        floor = floor.min(loss(w))
    return floor


# ---- linear attention


def mode_steps(
    risk: MergedRisk, eta: float, epsilon: float, above: float | None
) -> range:
    """Enclose the number of steps that descent on a diagonal Γ takes to its target.

    The modes are the diagonal entries g of Γ, with the gradients q (m g - r). Here q, m
    and r are entries of Λ_q, M and ΛW (see `SecondMoments`). In each step the distance
    of a mode from its best value, g* = r/m, is multiplied by 1 - η q m. The target is
    the loss ``epsilon``, or the loss ``above`` over the floor if ``above`` is given.
    """
    moments = second_moments(risk.law)
    best = np.empty(len(moments.M), dtype=object)
    for mode, (r, m) in enumerate(zip(moments.Lambda_W, moments.M, strict=True)):
        # If m is 0, tokens have no component along the mode. The mode then never moves,
        # and every value is a best one.
        best[mode] = arb(0) if m.is_zero() else r / m
    distance = balls(risk.start) - best
    shrinkage = arb(eta) * moments.Lambda_q * moments.M  # η q m of each mode
    if not all(shrinkage_of_mode <= 2 for shrinkage_of_mode in shrinkage):
        raise argument_error(
            "eta",
            eta,
            "at most 2 over the largest curvature: beyond it the loss may rise",
        )
    # `merged` returns the loss and its gradient.
    floor, _gradient = merged(risk, best)
    goal = arb(epsilon) if above is None else floor + arb(above)

    def loss(n: int) -> arb:
        loss_after_n_steps, _gradient = merged(
            risk, best + (1 - shrinkage) ** n * distance
        )
        return loss_after_n_steps

    # The loss falls, because 0 <= η q m <= 2, so that bisection finds the steps. The
    # goal may be reached once the loss is not certainly above it, and is reached once
    # the loss is certainly not above it.
    first_possible = least(lambda n: not loss(n) > goal, LAST)
    first_certain = least(lambda n: bool(loss(n) <= goal), LAST)
    if first_certain == LAST:
        raise ArithmeticError("the goal is not reached")
    return range(first_possible, first_certain + 1)
