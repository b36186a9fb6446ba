"""The polynomials of the Abel function of the exchangeable map, exactly.

The map is u ← u + c g(u) with g = a (1 - a)², where a = 1/(1 + (K - 1)e^{-u}) is the
attention at a gap u of the scores. Its Abel function A grows by 1 in each step.
`POLYNOMIALS` has the polynomials of A as integer coefficients over common denominators.
They are computed once, when this module is loaded. `QUOTIENTS` are the polynomials
divided by powers of their variable, which `abel_function.series` evaluates.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.polynomial.polynomial import polyadd, polyder, polymul
from numpy.typing import NDArray

from icl_theory._validate import choice

# Number of polynomials: the error of the expansion is of order (c g)^7.
TERMS = 6
# Integers of any size, lowest power first.
Coefficients = NDArray[np.object_]


def abel_polynomials(form: str) -> tuple[tuple[float, ...], ...]:
    r"""Coefficients of the polynomials :math:`P_j` in the Abel function.

    .. math::
        A(u) = \frac{F(a)}{c} + \tfrac12\ln g + \sum_{j\ge1} c^j P_j,
        \qquad A(u + c\,g) = A(u) + 1

    Here :math:`g = a(1-a)^2`, and F is the flow time, for which :math:`g\,DF = 1`. The
    second equation is expanded in c, with :math:`D = a(1-a)\,d/da` for d/du. Its order
    :math:`c^{j+1}` is :math:`g\,DP_j = -\sum_{i\ge2} \frac{g^i}{i!} D^i
    A_{j+1-i}` with :math:`A_{-1} = F` and :math:`A_0 = \tfrac12\ln g`. Every
    :math:`P_j` is a polynomial, and its coefficients are computed exactly.

    See docs/theory.md, "Steps in closed form".

    Parameters
    ----------
    form : {"a", "s"}
        Whether to return polynomials in a, or in s = 1 - a. A constant term would
        cancel in differences of A, and is left out.

    Returns
    -------
    tuple of tuple of float
        One polynomial for each j = 1, 2, ..., highest power first.
    """
    choice("form", form, ("a", "s"))
    polynomials = []
    for coefficients, denominator in POLYNOMIALS[form]:
        highest_first = reversed(coefficients)
        polynomials.append(tuple(x / denominator for x in highest_first))
    return tuple(polynomials)


class _Order(NamedTuple):
    """Derivatives of one A_k, times a denominator; D^i A_k stands at index i - 1.

    For A_{-1} = F they are g D^i F, because the D^i F are not polynomials.
    """

    derivatives: list[Coefficients]
    denominator: int


# A polynomial with integer coefficients, lowest power first, and their common
# denominator.
_Fraction = tuple[list[int], int]


def _abel_polynomials() -> list[_Fraction]:
    """Find the polynomials in a, order by order."""
    g = _whole(0, 1, -2, 1)  # a (1 - a)²
    # g⁰ to g^(TERMS + 1)
    powers_of_g = [_whole(1)]
    for _ in range(TERMS + 1):
        powers_of_g.append(polymul(powers_of_g[-1], g))

    # D ln g = s - 2a = 1 - 3a, which is twice D A_0 with A_0 = ½ ln g.
    log_slope = _whole(1, -3)
    # A_k stands at index k + 1: A_{-1} = F, A_0, and then A_j = P_j.
    orders = [
        _Order(_flow_derivatives(log_slope), 1),
        _Order(_derivatives(log_slope), 2),
    ]
    polynomials = []
    for j in range(1, TERMS + 1):
        slope, denominator = _slope_of_order(j, orders, powers_of_g)
        orders.append(_Order(_derivatives(slope), denominator))
        coefficients, factor = _integrated(slope)
        polynomials.append((coefficients, denominator * factor))
    return polynomials


def _slope_of_order(
    j: int, orders: list[_Order], powers_of_g: list[Coefficients]
) -> tuple[Coefficients, int]:
    """``D P_j = -Σ_{i>=2} g^(i-1)/i! D^i A_{j+1-i}`` and its denominator.

    ``orders[k + 1]`` has the derivatives of A_k. The sum over i ends at j + 2, with the
    derivatives of A_{-1} = F.
    """
    denominators = [
        math.factorial(i) * orders[j + 2 - i].denominator for i in range(2, j + 3)
    ]
    shared = math.lcm(*denominators)

    slope = _whole(0)
    for i, denominator in enumerate(denominators, start=2):
        derivative = orders[j + 2 - i].derivatives[i - 1]
        # The last term has a derivative of A_{-1} = F, which already has a factor g.
        power = i - 2 if i == j + 2 else i - 1
        term = polymul(powers_of_g[power], derivative)
        # -1/denominator is this integer over the shared denominator.
        slope = polyadd(slope, -shared // denominator * term)
    return slope, shared


def _integrated(slope: Coefficients) -> _Fraction:
    """The integral of ``slope / (a (1 - a))`` over a, without constant term.

    It is the polynomial P with D P = ``slope``, because D = a (1 - a) d/da.
    """
    # Integration divides the coefficients by their powers.
    shared = math.lcm(*range(1, len(slope)))
    polynomial = [0]
    # The slope has the factor a (1 - a). Division by a drops its constant term, which
    # is 0. Division by 1 - a turns coefficients into their partial sums. The last
    # coefficient is left out, because the last sum, the total, is 0.
    quotient = 0
    for power, coefficient in enumerate(slope[1:-1], start=1):
        quotient += coefficient
        polynomial.append(quotient * (shared // power))
    return polynomial, shared


def _flow_derivatives(log_slope: Coefficients) -> list[Coefficients]:
    """``g D^i F`` for i = 1, 2, ..., from ``g DF = 1``.

    ``log_slope`` is D ln g.
    """
    chain = [_whole(1)]
    for _ in range(TERMS + 1):
        # g D(f/g) = Df - f D ln g
        chain.append(polyadd(_slope(chain[-1]), -polymul(log_slope, chain[-1])))
    return chain


def _derivatives(first: Coefficients) -> list[Coefficients]:
    """Return a polynomial and its first `TERMS` derivatives with respect to u."""
    chain = [first]
    for _ in range(TERMS):
        chain.append(_slope(chain[-1]))
    return chain


def _slope(p: Coefficients) -> Coefficients:
    """``Dp = a (1 - a) dp/da``, the derivative of a polynomial with respect to u."""
    return polymul(_whole(0, 1, -1), polyder(p))


def _whole(*coefficients: int) -> Coefficients:
    """Return a polynomial with exact integer coefficients, lowest power first."""
    return np.array(coefficients, dtype=object)


def _reflected(polynomial: list[int]) -> list[int]:
    """Turn a polynomial in a into one in s = 1 - a, without its constant term."""
    reflected = _whole(0)
    power_of_a = _whole(1)  # (1 - s)^k
    for coefficient in polynomial:
        reflected = polyadd(reflected, coefficient * power_of_a)
        power_of_a = polymul(power_of_a, _whole(1, -1))
    return [0, *reflected[1:]]


def _quotients(form: str, lowest: int) -> tuple[tuple[float, ...], ...]:
    """Return ``Q_j = P_j / x^(lowest j)``, highest power first, with x = a or x = s.

    There is one Q_j for each j.
    """
    quotients = []
    for j, polynomial in enumerate(abel_polynomials(form), start=1):
        # P_j has no powers below x^(lowest j): the last coefficients are zero.
        quotients.append(polynomial[: -lowest * j])
    return tuple(quotients)


_IN_A = _abel_polynomials()
_IN_S = [(_reflected(polynomial), denominator) for polynomial, denominator in _IN_A]
POLYNOMIALS = {"a": _IN_A, "s": _IN_S}
# P_j starts with a^j, or with s^(2j).
QUOTIENTS = {"a": _quotients("a", lowest=1), "s": _quotients("s", lowest=2)}
