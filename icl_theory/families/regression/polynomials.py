"""The polynomials of the Abel function of the exchangeable map, in exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache

TERMS = 6
Coefficients = list[Fraction]


@cache
def quotients(form: str) -> tuple[tuple[float, ...], ...]:
    """Coefficients of ``Q_j = P_j / x^(power j)``, highest power first."""
    power = 1 if form == "a" else 2  # P_j starts with a^j, or s^(2j)
    return tuple(polynomial[: -power * j] for j, polynomial in enumerate(abel_polynomials(form), start=1))


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
