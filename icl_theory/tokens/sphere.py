"""Tokens on the unit sphere: softmax attention of one number, for tasks that prefer no direction."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from icl_theory._validate import Array, argument_error
from icl_theory.engine.pullback import Linear, Pullback
from icl_theory.tokens.risk import Kind, TokenRisk

Kernel = Callable[[Array], Array]


def sphere_tokens(
    kernel: Kernel, d: int, N: int, noise: float = 0.0, nodes: int = 60
) -> tuple[Array, TokenRisk]:
    r"""Return Gauss–Jacobi nodes in :math:`c = x_i^\top x`, (U,), and the risk over their scores.

    Tasks have the ``kernel`` :math:`k(c) = E f(x_i)f(x)`. With its zonal expansion
    :math:`k = \sum_l a_l P_l`, :math:`P_l(1) = 1`, the coordinates of a token's value
    are :math:`\sqrt{a_l} P_l(c)`, those of the target :math:`\sqrt{a_l}`, and the
    variance of the value around them is :math:`\sum_l a_l (1 - P_l(c)^2) + \sigma^2`.
    The degrees beyond half the number of nodes share one coordinate, whose covariance
    with the target is exact.
    """
    from scipy.special import roots_jacobi  # slow to load

    if not callable(kernel):
        raise argument_error("kernel", kernel, "a function of the cosine")
    c, weights = roots_jacobi(nodes, (d - 3.0) / 2.0, (d - 3.0) / 2.0)
    # P_0, P_1
    probs = weights / weights.sum()
    zonal = [np.ones_like(c), c]
    for n in range(1, nodes // 2 - 1):
        zonal.append(((2 * n + d - 2) * c * zonal[n] - n * zonal[n - 1]) / (n + d - 2))
    P = np.array(zonal[1:])
    k = kernel(c)
    size = float(kernel(np.ones(1))[0])
    mean = float(probs @ k)
    share = P**2 @ probs  # one over the number of harmonics of each degree
    a = np.divide(
        P @ (probs * k), share, out=np.zeros_like(share), where=share >= 1e-10
    )
    a[a <= 1e-15 * size] = 0.0
    a[size - mean - np.cumsum(a) + a <= 1e-14 * size] = (
        0.0  # rounding is larger than these coefficients
    )
    root = np.sqrt(a[a > 0.0])
    left = k - mean - a @ P
    at_one = size - mean - float(a.sum())
    values = root * P[a > 0.0].T
    if at_one > 1e-14 * size:
        values = np.column_stack([values, left / math.sqrt(at_one)])
        root = np.append(root, math.sqrt(at_one))
    spread = np.maximum(size - mean - np.sum(values**2, axis=1), 0.0) + noise**2
    return c, TokenRisk([Kind(N, probs, values, spread)], root)


@dataclass(frozen=True, eq=False)
class SphereRisk(Pullback):
    r"""The loss of κ, (1,), for scores :math:`\kappa x_i^\top x`, with its minimum ``least`` at ``best``."""

    best: float
    least: float
    error: float  # of the least loss, relative, by twice as many nodes

    @classmethod
    def made(
        cls, kernel: Kernel, d: int, N: int, noise: float, start: float = 0.0
    ) -> SphereRisk:
        """Find the best κ, with 60 to 240 nodes: until twice as many change the least loss by at most 1e-7."""

        def over_kappa(nodes: int) -> Pullback:
            c, tokens = sphere_tokens(kernel, d, N, noise, nodes)
            return Pullback(tokens, Linear(c[:, None], np.array([start])))

        risk = over_kappa(60)
        if N == 1:  # attention has no choice
            return cls(risk.risk, risk.map, 0.0, risk.loss([0.0]), 0.0)
        for nodes in (60, 120, 240):
            # far closer than the window of κ
            best = _best(risk, nodes**2 / 32.0)
            finer = over_kappa(2 * nodes)
            if best is not None:
                least = risk.loss([best])
                error = abs(least / finer.loss([best]) - 1.0)
                if error <= 1e-7 or nodes == 240:
                    return cls(risk.risk, risk.map, best, least, error)
            risk = finer
        raise argument_error(
            "N", N, f"less, or noise more: the best κ is beyond {nodes**2 // 32}"
        )

    def floor(self) -> float:
        """Return the least loss."""
        return self.least

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """κ itself."""
        return {"kappa": params[0]}


def _best(risk: Pullback, most: float) -> float | None:
    """Return the κ at which the loss begins to rise, None if that is beyond ``most``."""
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
