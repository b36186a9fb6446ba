"""Softmax attention over tokens on the unit sphere, with one trained number κ.

The law of the tasks is invariant under rotations. The score of a token x_i for the
query x is κ x_i·x. `sphere_tokens` returns nodes for the tokens and the risk as a
function of their scores. `SphereRisk` is the loss as a function of κ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from icl_theory._validate import Array, argument_error
from icl_theory.engine.pullback import Linear, Pullback
from icl_theory.tokens.risk import Kind, TokenRisk

Kernel = Callable[[Array], Array]
# The part of the kernel in the degrees l, l + 1, ... is treated as zero if its value at
# c = 1 is below this share of k(1). This part is then no larger than rounding error.
SMALL = 1e-14
# A single coefficient below this share of k(1) is rounding error.
ROUNDING = 1e-15
# A coefficient is divided by the mean square of P_l. If the mean square is below this,
# the division magnifies rounding errors too much, and the coefficient is set to zero.
# The limit is a cautious choice.
LEAST_MEAN_SQUARE = 1e-10
# Numbers of nodes that are tried one after another. A number is enough if twice as many
# nodes change the least loss by at most the relative amount LARGEST_CHANGE.
NUMBERS_OF_NODES = (60, 120, 240)
LARGEST_CHANGE = 1e-7
# The search for the best κ begins at this κ and doubles it.
FIRST_KAPPA = 1.0 / 16.0
# Absolute error of the best κ at which its search ends, near rounding error.
ERROR_OF_KAPPA = 1e-14


def sphere_tokens(
    kernel: Kernel, d: int, N: int, noise: float = 0.0, nodes: int = 60
) -> tuple[Array, TokenRisk]:
    r"""Return nodes in the cosine c of a token and the query, and the risk over them.

    The tokens are uniform on the unit sphere in d dimensions. The nodes are
    Gauss–Jacobi nodes in :math:`c = x_i^\top x`, (U,), and the parameters of the risk
    are the scores of the nodes. A prompt has N tokens. A task is a random function f on
    the sphere. It has the ``kernel`` :math:`k(c) = E f(x_i)f(x)`, with an expansion in
    the zonal (Gegenbauer) polynomials of degree l,

    .. math:: k = \sum_l a_l P_l(c), \qquad P_l(1) = 1 .

    The value of a token has the coordinates :math:`\sqrt{a_l} P_l(c)`, and the target
    has the coordinates :math:`\sqrt{a_l}`. The variance of the value around these means
    is :math:`\sum_l a_l (1 - P_l(c)^2) + \sigma^2`, with the ``noise`` σ. All degrees
    l from half the number of nodes on share one coordinate, whose covariance with the
    target is exact.
    """
    from scipy.special import roots_jacobi  # slow to load

    if not callable(kernel):
        raise argument_error("kernel", kernel, "a function of the cosine")
    # The cosine of a uniform point on the sphere has the density (1 - c²)^((d-3)/2).
    exponent = (d - 3.0) / 2.0
    c, weights = roots_jacobi(nodes, exponent, exponent)
    probs = weights / weights.sum()
    # P_0 is left out: an average reproduces a constant without an error. A rule of n
    # nodes is exact for polynomials of degrees below 2n. So it is exact for products of
    # P_l, with l < n/2, and parts of the kernel up to the degree 3n/2.
    P = _zonal(c, d, nodes // 2)[1:]
    k = kernel(c)
    k_at_1 = float(kernel(np.ones(1))[0])
    a_0 = float(probs @ k)
    a = _coefficients(P, k, probs, k_at_1, a_0)
    is_used = a > 0.0
    target = np.sqrt(a[is_used])
    values = target * P[is_used].T
    # The part r(c) of the kernel in the degrees that share a coordinate. In this
    # coordinate the value is r(c)/√r(1) and the target √r(1), with the product r(c).
    rest = k - a_0 - a @ P  # at the nodes, (U,)
    rest_at_1 = k_at_1 - a_0 - float(a.sum())
    if rest_at_1 > SMALL * k_at_1:
        values = np.column_stack([values, rest / math.sqrt(rest_at_1)])
        target = np.append(target, math.sqrt(rest_at_1))
    # Without P_0, a value has the mean square k(1) - a_0. Rounding may make the
    # variance negative.
    variance = k_at_1 - a_0 - np.sum(values**2, axis=1)
    spread = np.maximum(variance, 0.0) + noise**2
    kind = Kind(N, probs, values=values, spread=spread)
    return c, TokenRisk([kind], target=target)


def _zonal(c: Array, d: int, number: int) -> Array:
    """Return the first zonal polynomials P_0, P_1, ... at the nodes c, (number, U).

    They are normalised to P(1) = 1.
    """
    P = [np.ones_like(c), c]
    # (n + d - 2) P_{n+1} = (2n + d - 2) c P_n - n P_{n-1}, Gegenbauer's recurrence.
    for n in range(1, number - 1):
        P.append(((2 * n + d - 2) * c * P[n] - n * P[n - 1]) / (n + d - 2))
    return np.array(P)


def _coefficients(P: Array, k: Array, probs: Array, k_at_1: float, a_0: float) -> Array:
    """Return the coefficients a_l = E[P_l k]/E[P_l²] of a kernel for l = 1, 2, ...

    ``P`` and ``k`` have the values of the polynomials, (l, U), and of the kernel, (U,),
    at nodes with the probabilities ``probs``; ``k_at_1`` is k(1), and a_0 the mean of
    the kernel. A coefficient that is smaller than its rounding error is set to zero.
    """
    mean_square = P**2 @ probs  # one over the number of harmonics of each degree
    a = np.divide(
        P @ (probs * k),
        mean_square,
        out=np.zeros_like(mean_square),
        where=mean_square >= LEAST_MEAN_SQUARE,
    )
    a[a <= ROUNDING * k_at_1] = 0.0
    # The part of k(1) in this degree and all further ones.
    rest_at_1 = k_at_1 - a_0 - np.cumsum(a) + a
    a[rest_at_1 <= SMALL * k_at_1] = 0.0
    return a


@dataclass(frozen=True, eq=False)
class SphereRisk(Pullback):
    r"""The loss of κ, (1,), for scores :math:`\kappa x_i^\top x`.

    The loss is least at κ = ``best``.
    """

    best: float  # the best κ
    least: float  # the loss at the best κ
    # Relative error of the least loss, from a comparison with twice as many nodes.
    error: float

    @classmethod
    def of_kernel(
        cls, kernel: Kernel, d: int, N: int, noise: float, start: float = 0.0
    ) -> SphereRisk:
        """Return the risk for a kernel, with the best κ.

        The risk has 60 nodes if twice as many nodes change the least loss by at most
        1e-7 of itself. Otherwise it has 120 nodes if these pass the same test, or else
        240. Training starts at κ = ``start``.
        """

        def over_kappa(nodes: int) -> Pullback:
            """Return the loss as a function of κ, with this number of nodes."""
            c, tokens = sphere_tokens(kernel, d, N, noise, nodes)
            return Pullback(tokens, Linear(c[:, None], np.array([start])))

        risk = over_kappa(NUMBERS_OF_NODES[0])
        if N == 1:
            # The only token gets all attention, so the loss does not depend on κ.
            return cls(risk.risk, risk.map, best=0.0, least=risk.loss([0.0]), error=0.0)
        for nodes in NUMBERS_OF_NODES:
            # Near c = 1 the nodes are about 5/nodes² apart, and the attention has the
            # width 1/κ. Up to this κ, the width is at least six times the distance.
            largest = nodes**2 / 32.0
            best = _best(risk, largest)  # None if it is beyond ``largest``
            finer = over_kappa(2 * nodes)
            if best is not None:
                least = risk.loss([best])
                error = abs(least / finer.loss([best]) - 1.0)
                if error <= LARGEST_CHANGE or nodes == NUMBERS_OF_NODES[-1]:
                    return cls(risk.risk, risk.map, best, least, error)
            risk = finer
        raise argument_error(
            "N",
            N,
            f"smaller, unless there is more noise: the best κ is beyond {largest:.0f}",
        )

    def floor(self) -> float:
        """Return the least loss."""
        return self.least

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Return κ itself."""
        return {"kappa": params[0]}


def _best(risk: Pullback, largest: float) -> float | None:
    """Return the κ at which the loss begins to rise.

    If this κ is above ``largest``, return None. The loss falls at κ = 0, which is
    therefore the lower end of the search.
    """
    from scipy.optimize import brentq  # slow to load

    def slope(kappa: float) -> float:
        return float(risk.gradient([kappa])[0])

    kappa = FIRST_KAPPA
    while slope(kappa) <= 0.0:
        if kappa > largest:
            return None
        kappa *= 2.0
    best = float(brentq(slope, 0.0, kappa, xtol=ERROR_OF_KAPPA))
    return best if best <= largest else None
