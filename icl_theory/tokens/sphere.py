"""Softmax attention of one number over tokens on the unit sphere.

The law of the tasks is invariant under rotations. The score of a token x_i for the
query x is κ x_i·x, with a number κ. `sphere_tokens` returns nodes for the tokens and
the risk as a function of their scores. `SphereRisk` is the loss as a function of κ.
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
# A number below this share of k(1) counts as zero.
SMALL = 1e-14


def sphere_tokens(
    kernel: Kernel, d: int, N: int, noise: float = 0.0, nodes: int = 60
) -> tuple[Array, TokenRisk]:
    r"""Return nodes in the cosine c of a token and the query, and the risk over them.

    The nodes are Gauss–Jacobi nodes in :math:`c = x_i^\top x`, (U,); the parameters of
    the risk are their scores. Tasks have the ``kernel`` :math:`k(c) = E f(x_i)f(x)`,
    with the zonal expansion

    .. math:: k = \sum_l a_l P_l(c), \qquad P_l(1) = 1 .

    The value of a token has the coordinates :math:`\sqrt{a_l} P_l(c)`, and the target
    has the coordinates :math:`\sqrt{a_l}`. The variance of the value around these means
    is :math:`\sum_l a_l (1 - P_l(c)^2) + \sigma^2`, with the ``noise`` σ. All degrees
    l beyond half the number of nodes share one coordinate, whose covariance with the
    target is exact.
    """
    from scipy.special import roots_jacobi  # slow to load

    if not callable(kernel):
        raise argument_error("kernel", kernel, "a function of the cosine")
    c, weights = roots_jacobi(nodes, (d - 3.0) / 2.0, (d - 3.0) / 2.0)
    probs = weights / weights.sum()
    # P_0 is left out: an average reproduces a constant without an error.
    P = _zonal(c, d, nodes // 2)[1:]
    k = kernel(c)
    k_at_1 = float(kernel(np.ones(1))[0])
    a_0 = float(probs @ k)
    a = _coefficients(P, k, probs, k_at_1, a_0)
    used = a > 0.0
    root = np.sqrt(a[used])
    values = root * P[used].T
    # The part of the kernel in the degrees that share a coordinate.
    rest = k - a_0 - a @ P
    rest_at_1 = k_at_1 - a_0 - float(a.sum())
    if rest_at_1 > SMALL * k_at_1:
        values = np.column_stack([values, rest / math.sqrt(rest_at_1)])
        root = np.append(root, math.sqrt(rest_at_1))
    variance = k_at_1 - a_0 - np.sum(values**2, axis=1)
    spread = np.maximum(variance, 0.0) + noise**2
    return c, TokenRisk([Kind(N, probs, values, spread)], root)


def _zonal(c: Array, d: int, number: int) -> Array:
    """Return the zonal polynomials P_0, P_1, ... with P(1) = 1, (number, U)."""
    P = [np.ones_like(c), c]
    for n in range(1, number - 1):
        P.append(((2 * n + d - 2) * c * P[n] - n * P[n - 1]) / (n + d - 2))
    return np.array(P)


def _coefficients(P: Array, k: Array, probs: Array, k_at_1: float, a_0: float) -> Array:
    """Return the coefficients a_l of a kernel.

    A coefficient that is smaller than its rounding error is set to zero.
    """
    square = P**2 @ probs  # one over the number of harmonics of each degree
    a = np.divide(
        P @ (probs * k), square, out=np.zeros_like(square), where=square >= 1e-10
    )
    a[a <= 1e-15 * k_at_1] = 0.0
    rest = k_at_1 - a_0 - np.cumsum(a) + a  # at c = 1, of this degree and the further
    a[rest <= SMALL * k_at_1] = 0.0
    return a


@dataclass(frozen=True, eq=False)
class SphereRisk(Pullback):
    r"""The loss of κ, (1,), for scores :math:`\kappa x_i^\top x`.

    Its minimum ``least`` is at ``best``.
    """

    best: float
    least: float
    # Relative error of the least loss, from a comparison with twice as many nodes.
    error: float

    @classmethod
    def of_kernel(
        cls, kernel: Kernel, d: int, N: int, noise: float, start: float = 0.0
    ) -> SphereRisk:
        """Return the risk for a kernel, with the best κ.

        It has 60, 120 or 240 nodes: enough if twice as many change the least loss by a
        relative 1e-7 at most.
        """

        def over_kappa(nodes: int) -> Pullback:
            c, tokens = sphere_tokens(kernel, d, N, noise, nodes)
            return Pullback(tokens, Linear(c[:, None], np.array([start])))

        risk = over_kappa(60)
        if N == 1:  # attention has no choice
            return cls(risk.risk, risk.map, 0.0, risk.loss([0.0]), 0.0)
        for nodes in (60, 120, 240):
            # Up to this κ, the distance of the nodes is far below the width of the
            # attention.
            best = _best(risk, nodes**2 / 32.0)
            finer = over_kappa(2 * nodes)
            if best is not None:
                least = risk.loss([best])
                error = abs(least / finer.loss([best]) - 1.0)
                if error <= 1e-7 or nodes == 240:
                    return cls(risk.risk, risk.map, best, least, error)
            risk = finer
        largest = nodes**2 // 32
        raise argument_error(
            "N",
            N,
            f"smaller, unless there is more noise: the best κ is beyond {largest}",
        )

    def floor(self) -> float:
        """Return the least loss."""
        return self.least

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """κ itself."""
        return {"kappa": params[0]}


def _best(risk: Pullback, most: float) -> float | None:
    """Return the κ at which the loss begins to rise, None if it is above ``most``."""
    from scipy.optimize import brentq  # slow to load

    def slope(kappa: float) -> float:
        return float(risk.gradient([kappa])[0])

    kappa = 1.0 / 16.0
    while slope(kappa) <= 0.0:
        if kappa > most:
            return None
        kappa *= 2.0
    best = float(brentq(slope, 0.0, kappa, xtol=1e-14))
    return best if best <= most else None
