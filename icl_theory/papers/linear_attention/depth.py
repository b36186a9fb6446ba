r"""Several layers: each is a step of gradient descent on the prompt's least squares; GD++ changes the tokens, too.

The population loss is a polynomial in the trained lengths, whose coefficients are
moments of a real Wishart matrix. These are integers over powers of N, and give a
quadrature with positive weights that integrates such polynomials: the loss is then a
sum of squares without cancellation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np

from icl_theory._validate import (
    EXACT,
    LARGEST,
    Array,
    integer,
    number,
    prompt_length,
    real_array,
    set_fields,
)
from icl_theory.papers.linear_attention.law import shaped
from icl_theory.papers.linear_attention.risks import BestKnown

# layers: the number of products of traces, and the work, grow like exp(π √(4 depth/3))
DEEPEST = 16


def wishart_moments(d: int, N: int, most: int) -> tuple[Fraction, ...]:
    r"""Moments :math:`E\,\mathrm{tr}\,\hat\Sigma^k` of :math:`\hat\Sigma = \frac1N\sum x_ix_i^\top`, exactly.

    See docs/linear-attention-theory.md, "Wishart moments".

    Parameters
    ----------
    d, N : int
        Dimension, and number of standard normal vectors.
    most : int
        Largest k, at most 32.

    Returns
    -------
    tuple of Fraction, for k = 0 to ``most``

    Examples
    --------
    >>> from icl_theory.papers.linear_attention.depth import wishart_moments
    >>> wishart_moments(2, 4, 2)  # d, d, d(N + d + 1)/N
    (Fraction(2, 1), Fraction(2, 1), Fraction(7, 2))
    """
    most = integer("most", most, minimum=0, maximum=2 * DEEPEST)
    return _moments(
        integer("d", d, minimum=1), integer("N", N, minimum=1, maximum=EXACT), most
    )


@cache
def _moments(d: int, N: int, most: int) -> tuple[Fraction, ...]:
    @cache
    def product(powers: tuple[int, ...]) -> int:
        """Return E Π tr (N Σ̂)^k for sorted powers k, by Gaussian integration by parts in the largest."""
        if not powers:
            return 1
        *others, k = powers

        def expected(*new: int, without: int = -1) -> int:
            every = [each for i, each in enumerate(others) if i != without] + [
                each for each in new if each
            ]
            return d ** new.count(0) * product(tuple(sorted(every)))

        found = (N + k - 1) * expected(k - 1) + sum(
            expected(j + 1, k - 2 - j) for j in range(k - 1)
        )
        return found + sum(
            2 * m * expected(k + m - 1, without=i) for i, m in enumerate(others)
        )

    return (Fraction(d), *(Fraction(product((k,)), N**k) for k in range(1, most + 1)))


class Quadrature(NamedTuple):
    """Nodes and weights for the mean spectrum of Σ̂; the first node is 0."""

    nodes: Array
    weights: Array


def quadrature(d: int, N: float, depth: int) -> Quadrature:
    r"""Quadrature with :math:`\sum_i w_i p(x_i) = E\,\mathrm{tr}\,p(\hat\Sigma)` for polynomials of degree 2·depth.

    The Gauss–Radau rule with a node at 0, by Chebyshev's algorithm in fractions from
    the exact moments. See docs/linear-attention-theory.md, "Loops".

    Parameters
    ----------
    d, N : int
        Dimension, and pairs in a prompt (or math.inf).
    depth : int
        Half the degree, at most 16; the rule has one node more.

    Returns
    -------
    Quadrature
        With positive weights whose sum is d.

    Examples
    --------
    >>> from icl_theory.papers.linear_attention.depth import quadrature
    >>> rule = quadrature(2, 4, 1)
    >>> rule.nodes.round(6).tolist(), float((rule.weights * rule.nodes**2).sum().round(6))
    ([0.0, 1.75], 3.5)
    """
    depth = integer("depth", depth, minimum=1, maximum=DEEPEST)
    return _quadrature(integer("d", d, minimum=1), prompt_length(N), depth)


@cache
def _quadrature(d: int, N: float, depth: int) -> Quadrature:
    if math.isinf(N):
        return Quadrature(np.array([0.0, 1.0]), np.array([0.0, float(d)]))
    # Chebyshev's algorithm loses digits at every step: these have all
    row = list(_moments(d, int(N), 2 * depth))
    older = [Fraction(0)] * len(row)
    alpha = [row[1] / row[0]]
    beta = [Fraction(0)]
    norms = [row[0]]
    # of the monic orthogonal polynomials of degrees -1, 0, ... at 0
    values = [
        Fraction(0),
        Fraction(1),
    ]
    for k in range(1, depth + 1):
        values.append(-alpha[-1] * values[-1] - beta[-1] * values[-2])
        new = [
            row[i + 1] - alpha[-1] * row[i] - beta[-1] * older[i + 1]
            for i in range(1, len(row) - 1)
        ]
        beta.append(new[0] / row[0])
        norms.append(new[0])
        if k < depth:
            alpha.append(new[1] / new[0] - row[1] / row[0])
        older, row = row, new
    alpha.append(-beta[-1] * values[-2] / values[-1])  # puts a node at 0
    at_zero = float(1 / sum(p * p / h for p, h in zip(values[1:], norms, strict=True)))
    off = np.sqrt([float(each) for each in beta[1:]])
    matrix = (
        np.diag([float(each) for each in alpha]) + np.diag(off, 1) + np.diag(off, -1)
    )
    nodes, vectors = np.linalg.eigh(matrix)
    nodes[0], weights = 0.0, d * vectors[0] ** 2
    weights[0] = at_zero
    return Quadrature(nodes, weights)


@dataclass(frozen=True, eq=False)
class LoopedRisk(BestKnown):
    r"""The risk of D layers of linear attention in a loop, for isotropic tokens and tasks, over one number γ.

    Each layer is a step of length γ/D on the prompt's least squares, so that without
    noise :math:`\mathcal L = \tfrac12 E\,\mathrm{tr}(I - \tfrac\gamma
    D\hat\Sigma)^{2D}`; with noise
    :math:`\tfrac{\sigma^2}{2N}E\,\mathrm{tr}\,\hat\Sigma^{-1}[I - (I - \tfrac\gamma
    D\hat\Sigma)^D]^2` is added.

    See docs/linear-attention-theory.md, "Loops".

    Parameters
    ----------
    d, N : int
        Dimension, and pairs in a prompt (or math.inf).
    depth : int
        Number D of layers, at most 16.
    noise, start : float
        Standard deviation of the label noise, and γ at step 0.

    Examples
    --------
    >>> import icl_theory as icl
    >>> [round(icl.linear_attention.LoopedRisk(8, 20, depth).floor(), 4) for depth in (1, 2, 4, 8)]
    [1.2414, 0.668, 0.3005, 0.1164]
    """

    d: int
    N: float
    depth: int
    noise: float = 0.0
    start: float = 0.0

    def __post_init__(self) -> None:
        set_fields(self, d=integer("d", self.d, minimum=1), N=prompt_length(self.N))
        set_fields(self, depth=integer("depth", self.depth, minimum=1, maximum=DEEPEST))
        set_fields(self, noise=number("noise", self.noise, zero=True, maximum=LARGEST))
        set_fields(self, start=float(real_array("start", self.start, 0, LARGEST)))

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its derivative."""
        (x, w), D, power = (
            quadrature(self.d, self.N, self.depth),
            self.depth,
            self.noise**2 / self.N,
        )
        left = 1.0 - params[0] / D * x
        done = 1.0 - left**D
        loss = 0.5 * np.sum(w * left ** (2 * D))
        slope = -np.sum(w * x * left ** (2 * D - 1))
        if power:
            loss += (
                0.5
                * power
                * np.sum(
                    np.divide(w * done**2, x, out=np.zeros_like(done), where=x > 0.0)
                )
            )
            slope += power * np.sum(w * (x > 0.0) * done * left ** (D - 1))
        return float(loss.real), np.array([slope])

    def hessian_product(self, params: Array, direction: Array) -> Array:
        """Second derivative times a number, from the derivative of this polynomial beside the real axis."""
        beside: Any = params + 1e-100j
        return np.asarray(self.evaluate(beside)[1].imag * 1e100 * direction)

    @cached_property
    def best(self) -> Array:
        """The best γ, (1,): the least of the minima from 0 up to a γ with a larger loss than 0."""
        high = 1.0
        start = self.evaluate(np.zeros(1))[0]
        while self.evaluate(np.array([high]))[0] <= start:
            high *= 2.0
        grid = np.linspace(0.0, high, 2000)  # there may be several minima
        i = max(
            int(np.argmin([self.evaluate(np.array([each]))[0] for each in grid])), 1
        )
        low = float(grid[i - 1])
        high = float(grid[i + 1])
        for _ in range(100):  # the derivative goes from negative to positive
            middle = 0.5 * (low + high)
            low, high = (
                (middle, high)
                if self.evaluate(np.array([middle]))[1][0] < 0.0
                else (low, middle)
            )
        return np.array([0.5 * (low + high)])

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Loss above the floor, and γ, (1,)."""
        return super().observe(params) | {"gamma": params}

    def stable_rate(self) -> float:
        """Return one over the largest curvature between the start and the best γ."""
        between = np.linspace(self.start, float(self.best[0]), 101)
        return 1.0 / max(
            float(self.hessian_product(np.array([each]), np.ones(1))[0])
            for each in between
        )


class Layers(NamedTuple):
    """The best layers with lengths of their own."""

    lengths: Array  # of the steps, (D,), largest first
    loss: float


def best_layers(d: int, N: float, depth: int) -> Layers:
    r"""Return the best layers if each has a length of its own, without label noise.

    The loss is :math:`\tfrac12 E\,\mathrm{tr}\,p(\hat\Sigma)^2` with :math:`p(x) =
    \prod_l(1 - s_lx)`. Its least value among all polynomials of degree D with p(0) = 1
    is half the Christoffel number of the mean spectrum at 0, the weight of the
    Gauss–Radau rule there. Then p vanishes at the D other nodes: :math:`s_l = 1/x_l`.
    See docs/linear-attention-theory.md, "Layers of their own".

    Parameters
    ----------
    d, N, depth
        As for `LoopedRisk`.

    Returns
    -------
    Layers

    Examples
    --------
    >>> import icl_theory as icl
    >>> found = icl.linear_attention.best_layers(8, 20, 2)
    >>> found.lengths.round(3).tolist(), round(found.loss, 4)
    ([1.218, 0.453], 0.5152)
    """
    rule = quadrature(d, N, depth)
    depth = int(depth)
    return Layers(
        np.pad(1.0 / rule.nodes[1:], (0, depth + 1 - len(rule.nodes))),
        0.5 * float(rule.weights[0]),
    )


@dataclass(frozen=True, eq=False)
class PlusPlusRisk(BestKnown):
    r"""The risk of two layers of which the first changes the tokens, too, over :math:`(a_1, a_2, b)`.

    Both layers descend on the prompt's least squares, by :math:`a_1` and :math:`a_2`;
    between them each token x becomes :math:`x - b\hat\Sigma x`. For isotropic tokens
    and tasks without noise

    .. math:: \mathcal L = \tfrac12E\,\mathrm{tr}\bigl[(I - a_1\hat\Sigma)(I - a_2\hat\Sigma')\bigr]^2, \qquad
        \hat\Sigma' = (I - b\hat\Sigma)^2\hat\Sigma,

    the mean of a polynomial of degree 8, by `quadrature`. See
    docs/linear-attention-theory.md, "GD++".

    Parameters
    ----------
    d, N : int
        Dimension, and pairs in a prompt (or math.inf).
    start : sequence of float
        The parameters at step 0, up to 1e40.

    References
    ----------
    Ahn, Cheng, Daneshmand, Sra 2023; von Oswald et al. 2023, who name the algorithm.

    Examples
    --------
    Two layers are nearly as good as four that leave the tokens alone:

    >>> import icl_theory as icl
    >>> two = icl.linear_attention.PlusPlusRisk(8, 20).floor()
    >>> round(two, 4), [round(icl.linear_attention.best_layers(8, 20, D).loss, 4) for D in (2, 4)]
    (0.1269, [0.5152, 0.1269])
    """

    d: int
    N: float
    start: Sequence[float] | Array = (0.0, 0.0, 0.0)

    def __post_init__(self) -> None:
        set_fields(self, d=integer("d", self.d, minimum=1), N=prompt_length(self.N))
        set_fields(self, start=shaped("start", self.start, (3,)))

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        """Loss and its gradient."""
        (x, w), (a, c, b) = quadrature(self.d, self.N, 4), params
        kept = 1.0 - b * x
        first = 1.0 - a * x
        second = 1.0 - c * x * kept**2
        slopes = np.stack(
            [-x * second, -x * kept**2 * first, 2.0 * c * x**2 * kept * first]
        )
        return 0.5 * float(w @ (first * second) ** 2), np.asarray(
            slopes @ (w * first * second)
        )

    @cached_property
    def best(self) -> Array:
        """The best parameters found from starts at which 1/a and 1/b are nodes of the spectrum, (3,)."""
        from scipy.optimize import minimize

        (x, w), found = quadrature(self.d, self.N, 4), []
        # of the best polynomial of degree 4
        scale = 1.0 / float(w[0]) if w[0] > 0.0 else 1.0
        for a, b in itertools.product(1.0 / x[1:], repeat=2):
            # at b itself a node is not seen
            left = w * (1.0 - a * x) ** 2
            change = x * (1.0 - 0.9 * b * x) ** 2
            start = [
                a,
                float(left @ change) / max(float(left @ change**2), 1e-300),
                0.9 * b,
            ]
            with np.errstate(
                over="ignore", invalid="ignore"
            ):  # in steps that are not taken
                found.append(
                    minimize(
                        lambda each: tuple(
                            scale * part for part in self.evaluate(each)
                        ),
                        start,
                        jac=True,
                        method="BFGS",
                        options={"gtol": 1e-9},
                    )
                )
        return np.asarray(min(found, key=lambda each: float(each.fun)).x)
