r"""Steps of the exchangeable map in closed form, at a cost that does not depend on their number.

The map u ← u + c g(u), g = a s², has an Abel function A(u + c g(u)) = A(u) + 1, so that the number of steps from
u₁ to u₂ is A(u₂) − A(u₁). Its expansion in powers of c g is used where c g is small; the few dozen steps where it
is not are taken one by one.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import INT64_MAX, Array
from icl_theory.regression.exchangeable import attention_pair, flow_difference

TERMS = 6
SMALL_STEP = 1.0 / 32.0
ROUNDING = 2.0**-52
Coefficients = list[Fraction]


class Count(NamedTuple):
    """A number of steps, an estimate of its absolute error before rounding up, and what that leaves possible."""

    steps: int
    error: float
    earliest: int
    latest: int

    @classmethod
    def of(cls, offset: int, count: float, error: float) -> Count:
        """Round ``offset + count`` up."""
        earliest, latest = math.ceil(max(count - error, 0.0)), math.ceil(count + error)
        return cls(offset + math.ceil(count), error, offset + earliest, offset + latest)


NEVER = Count(INT64_MAX, 0.0, INT64_MAX, INT64_MAX)


class StepCounter:
    r"""Iterates of ``u <- u + c a s²`` from u = 0, by number and by position.

    Parameters
    ----------
    K : int
        Number of features.
    c : float
        Step constant ``η γ K/(K-1)²``.

    References
    ----------
    docs/theory.md, "Steps in closed form".

    Examples
    --------
    >>> from icl_theory.regression.abel import StepCounter
    >>> counter = StepCounter(20, c=0.443)
    >>> counter.steps_to(counter.position(10**12)).steps - 10**12 in (0, 1)
    True
    """

    def __init__(self, K: int, c: float) -> None:
        self.K, self.c = K, c
        self._series = {form: _scaled_series(c, form) for form in ("a", "s")}
        # Three stretches: a head with small c·g (step 0 on), single steps, a tail with small c·g.
        first = 0
        u = 0.0
        peak = 4.0 / 27.0  # of a s², at a = 1/3
        if c * peak > SMALL_STEP:
            if c * self._growth(0.0) <= SMALL_STEP and K > 3:
                first = int(self._abel(0.0, np.asarray(self._head_end()), "a"))
                u = float(self._invert(np.asarray(float(first)), 0.0, "a")) if first else 0.0
            single, error = [u], ROUNDING * u
            while c * self._growth(u) > SMALL_STEP or attention_pair(u, K)[0] < 1.0 / 3.0:
                a, s = attention_pair(u, K)
                error = error * abs(1.0 + c * a * s * s * (s - 2.0 * a)) + ROUNDING * (u + 5.0 * c * a * s * s)
                u += c * a * s * s
                single.append(u)
        else:
            single, error = [0.0], 0.0
        # what the rounding errors of the single steps amount to, in steps of the tail
        growth = c * self._growth(u)
        self._carried = error / growth if growth > 0 else math.inf
        self._first, self._single = first, np.array(single)
        # Beyond this the remaining 2^63 steps cannot move u in float64.
        self._frozen = c * self._growth(u) * INT64_MAX <= ROUNDING * max(u, 1.0)

    def position(self, n: int | NDArray[np.int64]) -> Array:
        """The iterate u after ``n`` steps (an array of integers, or one)."""
        steps = np.asarray(n, dtype=np.float64)
        result = np.zeros(steps.shape)
        last = self._first + len(self._single) - 1
        head, tail = steps < self._first, steps > last
        if head.any():
            result[head] = self._invert(steps[head], 0.0, "a")
        if tail.any():
            start = float(self._single[-1])
            result[tail] = start if self._frozen else self._invert(steps[tail] - last, start, "s")
        single = ~head & ~tail
        result[single] = self._single[(steps[single] - self._first).astype(np.int64)]
        return result

    def steps_to(self, u: float | Array) -> Count:
        """Number of steps until the iterate is at or above ``u``; INT64_MAX where it is not reached by then."""
        u = float(u)
        if u <= 0:
            return Count.of(0, 0.0, 0.0)
        if u <= self._single[-1]:
            if u > self._single[0] or self._first == 0:
                return Count.of(self._first + int(np.searchsorted(self._single, u)), 0.0, 0.0)
            offset, start, form = 0, 0.0, "a"
        else:
            offset, start, form = self._first + len(self._single) - 1, float(self._single[-1]), "s"
        count = math.inf
        if not (self._frozen and form == "s"):
            with np.errstate(over="ignore", invalid="ignore"):  # beyond any number of steps
                count = float(self._abel(start, np.asarray(u), form))
        if not count < INT64_MAX - offset:
            return NEVER
        a, s = attention_pair(u, self.K)
        # rounding of the sum, of u and of the loss that u was computed from, and the first term left out
        error = ROUNDING * (count + (u + 1.0 / a) / (self.c * a * s * s)) + SMALL_STEP**TERMS
        # and of the single steps
        error += self._carried if form == "s" else 0.0
        return Count.of(offset, count, min(error, 1e18))

    def _growth(self, u: float) -> float:
        a, s = attention_pair(u, self.K)
        return a * s * s

    def _head_end(self) -> float:
        """The u at which c·g first equals SMALL_STEP, by fixed-point iteration on a = SMALL_STEP/(c s²)."""
        a = SMALL_STEP / self.c
        for _ in range(60):
            a = SMALL_STEP / (self.c * (1.0 - a) ** 2)
        return math.log(self.K - 1.0) + math.log(a) - math.log1p(-a)

    def _abel(self, u1: float, u2: Array, form: str) -> Array:
        """``A(u2) - A(u1)``; polynomials in a for a head, in s for a tail, where each is small."""
        K, c = self.K, self.c
        a1, s1 = attention_pair(u1, K)
        w1, w2 = (K - 1.0) * math.exp(-u1), (K - 1.0) * np.exp(-u2)
        a2, s2 = 1.0 / (1.0 + w2), w2 / (1.0 + w2)
        logarithm = 2.0 * (u1 - u2) - 3.0 * np.log1p((w2 - w1) / (1.0 + w1))
        total = 0.5 * logarithm + flow_difference(np.asarray(u1), u2, K) / c
        coefficients, scale = self._series[form]
        x1, x2 = (a1, a2) if form == "a" else (s1, s2)
        return np.asarray(total + np.polyval(coefficients, x2 / scale) - np.polyval(coefficients, x1 / scale))

    def _invert(self, steps: Array, u1: float, form: str) -> Array:
        """Solve ``A(u) - A(u1) = steps`` by Newton's method from an interpolated start."""
        top = float(steps.max())
        span = 1.0
        with np.errstate(over="ignore", invalid="ignore"):
            if form == "a":
                span = self._head_end() - u1
            else:
                while float(self._abel(u1, np.asarray(u1 + span), form)) < top:
                    span *= 2.0
            grid = u1 + np.linspace(0.0, span, 16 + int(16 * span))
            table = np.log1p(np.minimum(self._abel(u1, grid, form), 1e300))
        u = np.interp(np.log1p(steps), table, grid)
        for _ in range(5):
            a = 1.0 / (1.0 + (self.K - 1.0) * np.exp(-u))
            s = (self.K - 1.0) * np.exp(-u) * a
            slope = 1.0 / (self.c * a * s * s) + 0.5 * (s - 2.0 * a)
            u = np.maximum(u - (self._abel(u1, u, form) - steps) / slope, u1)
        return np.asarray(u)


def _scaled_series(c: float, form: str) -> tuple[Array, float]:
    """Coefficients of ``Σ_j c^j P_j`` in the scaled variable x/scale, and the scale: none overflows."""
    power = 1 if form == "a" else 2  # P_j starts with a^j, or s^(2j)
    scale = min(1.0, c ** (-1.0 / power))
    total = np.zeros(4 * TERMS + 2)
    for j, polynomial in enumerate(abel_polynomials(form), start=1):
        exponents = np.arange(len(polynomial))[::-1]
        excess = exponents - power * j
        factor = (c * scale**power) ** j * scale ** np.maximum(excess, 0)
        total[len(total) - len(polynomial) :] += np.where(excess >= 0, factor * polynomial, 0.0)
    return total, scale


@cache
def abel_polynomials(form: str) -> tuple[tuple[float, ...], ...]:
    r"""Coefficients, highest power first, of the polynomials :math:`P_j` in the Abel function.

    .. math:: A(u) = \frac{F(a)}{c} + \tfrac12\ln g + \sum_{j\ge1} c^j P_j, \qquad A(u + c\,g) = A(u) + 1

    Expanding the equation in c and writing :math:`D = a(1-a)\,d/da` for d/du, the order :math:`c^{j+1}` reads
    :math:`g\,DP_j = -\sum_{i\ge2} \frac{g^i}{i!} D^i A_{j+1-i}` with :math:`A_{-1} = F` and
    :math:`A_0 = \tfrac12\ln g`. Every :math:`P_j` is a polynomial, found here in rational arithmetic.

    Parameters
    ----------
    form : {"a", "s"}
        Polynomials in a, or in s = 1 - a; both without constant term, which no difference of A needs.

    Returns
    -------
    tuple of tuple of float
        One polynomial an entry, j = 1, 2, ...

    References
    ----------
    docs/theory.md, "Steps in closed form".
    """
    g = [Fraction(0), Fraction(1), Fraction(-2), Fraction(1)]
    log_slope = [Fraction(1), Fraction(-3)]  # g'/g = s - 2a
    flow = [[Fraction(1)]]  # the derivatives of F, times g
    for _ in range(TERMS + 1):
        flow.append(_plus(_slope(flow[-1]), [-x for x in _times(log_slope, flow[-1])]))
    orders = [flow, _derivatives([x / 2 for x in log_slope])]  # entry i: the (i+1)-th derivative
    result = []
    for j in range(1, TERMS + 1):
        slope = [Fraction(0)]
        for i in range(2, j + 3):
            power = [Fraction(-1, math.factorial(i))]
            for _ in range(i - 1 if i < j + 2 else i - 2):
                power = _times(power, g)
            slope = _plus(slope, _times(power, orders[j + 2 - i][i - 1]))
        orders.append(_derivatives(slope))
        polynomial, quotient = [Fraction(0)], Fraction(0)
        for power_of_a, coefficient in enumerate(slope[1:-1], start=1):  # slope / (a (1 - a)), integrated
            quotient += coefficient
            polynomial.append(quotient / power_of_a)
        if form == "s":
            reflected, power = [Fraction(0)], [Fraction(1)]
            for coefficient in polynomial:
                reflected = _plus(reflected, [coefficient * x for x in power])
                power = _times(power, [Fraction(1), Fraction(-1)])
            polynomial = [Fraction(0), *reflected[1:]]
        result.append(tuple(float(x) for x in reversed(polynomial)))
    return tuple(result)


def _derivatives(first: Coefficients) -> list[Coefficients]:
    chain = [first]
    for _ in range(TERMS):
        chain.append(_slope(chain[-1]))
    return chain


def _slope(p: Coefficients) -> Coefficients:
    """``a (1 - a) dp/da``."""
    return _times([Fraction(0), Fraction(1), Fraction(-1)], [i * p[i] for i in range(1, len(p))] or [Fraction(0)])


def _times(p: Coefficients, q: Coefficients) -> Coefficients:
    result = [Fraction(0)] * (len(p) + len(q) - 1)
    for i, x in enumerate(p):
        for j, y in enumerate(q):
            result[i + j] += x * y
    return result


def _plus(p: Coefficients, q: Coefficients) -> Coefficients:
    size = max(len(p), len(q))
    p, q = p + [Fraction(0)] * (size - len(p)), q + [Fraction(0)] * (size - len(q))
    return [x + y for x, y in zip(p, q, strict=True)]
