"""The polynomials of the Abel function of the exchangeable map, in integers over common denominators."""

from __future__ import annotations

import math

import numpy as np
from numpy.polynomial.polynomial import polyadd, polyder, polymul
from numpy.typing import NDArray

from icl_theory._validate import choice

TERMS = 6  # polynomials of the expansion, so that the error is of order (c g)^6
Coefficients = NDArray[np.object_]  # integers of any size, lowest power first


def abel_polynomials(form: str) -> tuple[tuple[float, ...], ...]:
    r"""Coefficients, highest power first, of the polynomials :math:`P_j` in the Abel function.

    .. math:: A(u) = \frac{F(a)}{c} + \tfrac12\ln g + \sum_{j\ge1} c^j P_j, \qquad A(u + c\,g) = A(u) + 1

    Expanding the equation in c and writing :math:`D = a(1-a)\,d/da` for d/du, the order
    :math:`c^{j+1}` reads :math:`g\,DP_j = -\sum_{i\ge2} \frac{g^i}{i!} D^i A_{j+1-i}`
    with :math:`A_{-1} = F` and :math:`A_0 = \tfrac12\ln g`. Every :math:`P_j` is a
    polynomial, found here exactly.

    See docs/theory.md, "Steps in closed form".

    Parameters
    ----------
    form : {"a", "s"}
        Polynomials in a, or in s = 1 - a; without constant term, which cancels in
        differences of A.

    Returns
    -------
    tuple of tuple of float
        One polynomial for each j = 1, 2, ...
    """
    choice("form", form, ("a", "s"))
    return tuple(
        tuple(x / denominator for x in reversed(polynomial))
        for polynomial, denominator in POLYNOMIALS[form]
    )


def _reflected(polynomial: list[int]) -> list[int]:
    """Turn a polynomial in a into one in s = 1 - a, without its constant term."""
    reflected = _whole(0)
    power = _whole(1)
    for coefficient in polynomial:
        reflected = polyadd(reflected, coefficient * power)
        power = polymul(power, _whole(1, -1))
    return [0, *reflected[1:]]


def _abel_polynomials() -> list[tuple[list[int], int]]:
    """Polynomials in a, each with the common denominator of its coefficients."""
    log_slope = _whole(1, -3)  # g'/g = s - 2a
    flow = [_whole(1)]  # the derivatives of F, times g
    for _ in range(TERMS + 1):
        flow.append(polyadd(_slope(flow[-1]), -polymul(log_slope, flow[-1])))
    powers = [_whole(1)]
    for _ in range(TERMS + 1):
        powers.append(polymul(powers[-1], _whole(0, 1, -2, 1)))  # of g
    # entry i of an order: the (i+1)-th derivative
    orders = [flow, _derivatives(log_slope)]
    denominators = [1, 2]
    result = []
    for j in range(1, TERMS + 1):
        terms = range(2, j + 3)
        shared = math.lcm(*(math.factorial(i) * denominators[j + 2 - i] for i in terms))
        slope = _whole(0)
        for i in terms:
            term = polymul(
                powers[i - 1 if i < j + 2 else i - 2], orders[j + 2 - i][i - 1]
            )
            slope = polyadd(
                slope, -shared // (math.factorial(i) * denominators[j + 2 - i]) * term
            )
        orders.append(_derivatives(slope))
        denominators.append(shared)
        whole = math.lcm(*range(1, len(slope)))
        polynomial = [0]
        quotient = 0
        for power_of_a, coefficient in enumerate(
            slope[1:-1], start=1
        ):  # slope / (a (1 - a)), integrated
            quotient += coefficient
            polynomial.append(quotient * (whole // power_of_a))
        result.append((polynomial, shared * whole))
    return result


def _derivatives(first: Coefficients) -> list[Coefficients]:
    chain = [first]
    for _ in range(TERMS):
        chain.append(_slope(chain[-1]))
    return chain


def _slope(p: Coefficients) -> Coefficients:
    """``a (1 - a) dp/da``."""
    return polymul(_whole(0, 1, -1), polyder(p))


def _whole(*coefficients: int) -> Coefficients:
    return np.array(coefficients, dtype=object)


_FOUND = _abel_polynomials()
# whole coefficients, lowest power first, with their common denominators
POLYNOMIALS = {
    "a": _FOUND,
    "s": [(_reflected(polynomial), denominator) for polynomial, denominator in _FOUND],
}
# coefficients of Q_j = P_j / x^(power j), highest power first; P_j starts with a^j, or
# s^(2j)
QUOTIENTS = {
    form: tuple(
        polynomial[: -power * j]
        for j, polynomial in enumerate(abel_polynomials(form), start=1)
    )
    for form, power in (("a", 1), ("s", 2))
}
