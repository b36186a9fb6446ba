"""Tasks with formulas: cosines, linear and quadratic functions, and two half-spaces.

Each family is a law of random functions with a Lipschitz constant L. It has formulas
for the kernel, the variogram and often a factor, and draws functions. The words kernel,
variogram and factor, and how to write a family of your own, are explained in
`icl_theory.regression.tasks.law`.

In the formulas x and x' are two features, κ is the kernel, and d is the dimension of
the features. The values of one function at all K features are an array (K,).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import (
    LARGEST,
    Array,
    argument_error,
    choice,
    integer,
    number,
    real_array,
    set_fields,
)
from icl_theory.memory import check_fits
from icl_theory.regression.features import Features
from icl_theory.regression.tasks.law import Function, LipschitzTask, OnSpace


@dataclass(frozen=True, eq=False)
class RandomCosine(OnSpace):
    r"""Cosines with a random phase, :math:`f(x) = A\cos(\omega^\top x + \phi)`.

    The phase φ is uniform. The kernel :math:`\kappa(x, x') =
    \tfrac{A^2}{2}\cos(\omega^\top(x - x'))` has rank two. See docs/theory.md,
    "Task families".

    Parameters
    ----------
    L : float
        Lipschitz constant ``A * |ω|``.
    scale : {"amplitude", "frequency"}
        Whether L is the amplitude (``|ω| = 1``, ``A = L``) or the frequency (``A = 1``,
        ``|ω| = L``). In the second case the variogram is at most 1 and does not always
        grow with L.
    direction : array_like, (d,), optional
        Direction of ω; by default (1, 2, ..., d), so that all vectors of a standard
        basis have different phases.

    Examples
    --------
    >>> import icl_theory as icl
    >>> features = icl.Features.orthonormal(3)
    >>> bool((icl.tasks.RandomCosine(2.0).nondegeneracy(features) > 0).all())
    True
    """

    scale: str = "amplitude"
    direction: ArrayLike | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("scale", self.scale, ("amplitude", "frequency"))
        if self.direction is not None:
            direction = real_array("direction", self.direction, 1)
            if not direction.any():
                raise argument_error(
                    "direction", self.direction, "a vector other than zero"
                )
            set_fields(self, direction=direction)

    @property
    def amplitude(self) -> float:
        """The amplitude A."""
        if self.scale == "amplitude":
            return self.L
        return 1.0

    def omega(self, d: int) -> Array:
        """Frequency vector in ``d`` dimensions, (d,)."""
        d = integer("d", d, minimum=1)
        if self.direction is None:
            direction = np.arange(1.0, d + 1.0)
        else:
            direction = np.asarray(self.direction, dtype=float)
        if direction.shape != (d,):
            raise argument_error(
                "direction",
                self.direction,
                f"a vector of length {d}, the dimension of the features",
            )
        # The largest entry becomes 1, because squares of very large or small entries
        # would overflow or underflow.
        direction = direction / np.abs(direction).max()
        unit = direction / np.linalg.norm(direction)
        # |ω| is 1 if L is the amplitude, and otherwise L.
        if self.scale == "amplitude":
            return np.asarray(unit)
        return np.asarray(unit * self.L)

    def kernel(self, features: Features) -> Array:
        """``A²/2 cos(ω·(x - x'))``."""
        return 0.5 * self.amplitude**2 * np.cos(self._phase_differences(features))

    def variogram(self, features: Features) -> Array:
        """``A² sin²(ω·(x - x')/2)``, which keeps its digits for close features."""
        return (self.amplitude * np.sin(0.5 * self._phase_differences(features))) ** 2

    def _phase_differences(self, features: Features) -> Array:
        """Differences of the phases ω·x of all pairs of features, (K, K)."""
        angle = features.vectors @ self.omega(features.d)
        return angle[:, None] - angle

    def factor(self, features: Features) -> Array:
        """Points on a circle of radius ``A/√2``, minus the first point, (K, 2).

        The squared distance of two of them is ``A² (1 - cos(ω·(x - x')))``, which is
        twice the variogram of their features.
        """
        angle = (features.vectors - features.vectors[0]) @ self.omega(features.d)
        # cos(angle) - 1 without cancellation. The first angle is 0, its point (1, 0).
        cosine_less_one = -2.0 * np.sin(0.5 * angle) ** 2
        points = np.stack([cosine_less_one, np.sin(angle)], axis=1)
        return self.amplitude / np.sqrt(2.0) * points

    def functions(
        self, features: Features, rng: np.random.Generator, size: int
    ) -> Function:
        """Draw ``size`` cosines, which differ in their phases only.

        The result maps points (size, n, d) to values (size, n).
        """
        phase = rng.uniform(0.0, 2.0 * np.pi, (size, 1))

        def cosines(points: Array) -> Array:
            return self.amplitude * np.cos(points @ self.omega(features.d) + phase)

        return cosines


@dataclass(frozen=True)
class RandomFourier(OnSpace):
    r"""Random Fourier features of a Gaussian kernel.

    The functions are :math:`f(x) = A\cos(\omega^\top x + \phi)` with :math:`\omega
    \sim N(0, I/\ell^2)`, uniform φ, and :math:`A = \sqrt2 L\ell`. The kernel is
    :math:`\kappa(x, x') = \tfrac{A^2}{2} e^{-\|x - x'\|^2/2\ell^2}`, so that the
    variogram tends to :math:`L^2\|x - x'\|^2/2` for features much closer than ℓ.

    Parameters
    ----------
    L : float
        Root mean square slope in any direction.
    length_scale : float
        ℓ, in the units of the features.
    """

    length_scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        set_fields(
            self,
            length_scale=number(
                "length_scale",
                self.length_scale,
                minimum=1.0 / LARGEST,
                maximum=LARGEST,
            ),
        )

    @property
    def amplitude(self) -> float:
        """The amplitude A."""
        return float(np.sqrt(2.0) * self.L * self.length_scale)

    def kernel(self, features: Features) -> Array:
        """``A²/2 exp(-|x - x'|²/2ℓ²)``."""
        return 0.5 * self.amplitude**2 * np.exp(self._exponent(features))

    def variogram(self, features: Features) -> Array:
        """``A²/2 (1 - exp(-|x - x'|²/2ℓ²))``, with all digits for close features."""
        return -0.5 * self.amplitude**2 * np.expm1(self._exponent(features))

    def _exponent(self, features: Features) -> Array:
        """``-|x - x'|²/2ℓ²``, the logarithm of the correlation of all pairs, (K, K)."""
        return np.asarray(-0.5 * (features.distances / self.length_scale) ** 2)

    def functions(
        self, features: Features, rng: np.random.Generator, size: int
    ) -> Function:
        """Draw ``size`` cosines, each with a random frequency and phase.

        The result maps points (size, n, d) to values (size, n).
        """
        # (size, d, 1), for matrix products with the points
        omega = rng.normal(0.0, 1.0 / self.length_scale, (size, features.d, 1))
        phase = rng.uniform(0.0, 2.0 * np.pi, (size, 1))

        def cosines(points: Array) -> Array:
            return self.amplitude * np.cos((points @ omega)[..., 0] + phase)

        return cosines


@dataclass(frozen=True)
class Linear(OnSpace):
    r"""Linear functions :math:`f(x) = w^\top x` with :math:`w \sim N(0, L^2 I/d)`.

    The kernel is :math:`\kappa(x, x') = L^2 x^\top x'/d`, and the root mean square
    Lipschitz constant is L.

    Parameters
    ----------
    L : float
        Root mean square norm of ``w``.
    """

    def kernel(self, features: Features) -> Array:
        """``L² x·x'/d``."""
        return self.L**2 / features.d * features.gram

    def variogram(self, features: Features) -> Array:
        """``L² |x - x'|²/2d``."""
        return 0.5 / features.d * (self.L * features.distances) ** 2

    def factor(self, features: Features) -> Array:
        """Vectors whose squared distances are twice the variogram, (K, d).

        They are ``L/√d`` times the features. The first feature is subtracted, which
        changes no distance.
        """
        return self.L / np.sqrt(features.d) * (features.vectors - features.vectors[0])

    def functions(
        self, features: Features, rng: np.random.Generator, size: int
    ) -> Function:
        """Draw ``size`` linear functions.

        The result maps points (size, n, d) to values (size, n).
        """
        # (size, d, 1), for matrix products with the points
        w = rng.normal(0.0, self.L / np.sqrt(features.d), (size, features.d, 1))

        def linear(points: Array) -> Array:
            return np.asarray((points @ w)[..., 0])

        return linear


def quadratics(
    rng: np.random.Generator, size: int, d: int, sigma_a: float, sigma_b: float
) -> Function:
    """Draw ``size`` polynomials x^T A x + b^T x in d variables, with normal A and b.

    The entries of A and b are independent, with mean zero and the standard deviations
    ``sigma_a`` and ``sigma_b``. The result maps points (size, n, d) to values (size,
    n).
    """
    # 8 bytes for each entry, and as much again for intermediate results
    check_fits("size", size, 16.0 * size * d**2)
    matrix = rng.normal(0.0, sigma_a, (size, d, d))
    vector = rng.normal(0.0, sigma_b, (size, d, 1))

    def polynomials(points: Array) -> Array:
        # x^T A x for each point x
        quadratic_part = np.sum((points @ matrix) * points, axis=-1)
        return np.asarray(quadratic_part + (points @ vector)[..., 0])

    return polynomials


@dataclass(frozen=True)
class Quadratic(OnSpace):
    r"""Random second-degree polynomials :math:`f(x) = x^\top A x + b^\top x`.

    The entries are independent, :math:`A_{ij} \sim N(0, \sigma_a^2)` and :math:`b_i
    \sim N(0, \sigma_b^2)` with :math:`\sigma_a = L/d` and :math:`\sigma_b = L/\sqrt d`,
    so that the Frobenius norm of A and the norm of b have root mean square L. The
    kernel is :math:`\kappa(x, x') = \sigma_a^2 (x^\top x')^2 + \sigma_b^2\, x^\top x'`.

    Parameters
    ----------
    L : float
        Root mean square norm of ``A`` and of ``b``.
    """

    def kernel(self, features: Features) -> Array:
        """``σ_a² (x·x')² + σ_b² x·x'``."""
        quadratic_part = (self.L / features.d * features.gram) ** 2
        linear_part = self.L**2 / features.d * features.gram
        return quadratic_part + linear_part

    def variogram(self, features: Features) -> Array:
        """``σ_a² (|m|²|δ|² + (m·δ)²) + σ_b² |δ|²/2``.

        For the features x and x', m = (x + x')/2 and δ = x - x'. Unlike differences of
        the kernel, this sum keeps the digits for close features.
        """
        squared_norms = np.diagonal(features.gram)
        distances = features.distances  # |δ|
        sum_of_squares = squared_norms[:, None] + squared_norms
        # |m|² = (|x|² + |x'|² + 2 x·x')/4 and m·δ = (|x|² - |x'|²)/2
        m_squared = 0.25 * (sum_of_squares + 2.0 * features.gram)
        m_dot_delta = 0.5 * (squared_norms[:, None] - squared_norms)
        sigma_a = self.L / features.d
        quadratic_part = sigma_a**2 * (m_squared * distances**2 + m_dot_delta**2)
        linear_part = 0.5 * self.L**2 / features.d * distances**2
        return quadratic_part + linear_part

    def functions(
        self, features: Features, rng: np.random.Generator, size: int
    ) -> Function:
        """Draw ``size`` polynomials.

        The result maps points (size, n, d) to values (size, n).
        """
        d = features.d
        return quadratics(rng, size, d, sigma_a=self.L / d, sigma_b=self.L / np.sqrt(d))


@dataclass(frozen=True)
class Halfspace(LipschitzTask):
    """The degenerate counterexample: f is L on one half of the features, else -L.

    The halves are the first and the second half of the list of features. For each
    function, chance decides which half has the value L. A public review of the
    regression paper (ICLR 2026, Reviewer 3) gives the example. Every function is
    non-degenerate Lipschitz in the paper's sense, but features of the same half have
    the same value. So the constant c_k of `Task.nondegeneracy` is 0 for each feature
    that shares its half with another one. The loss then tends to 0 although the
    attention on the query's feature does not tend to 1.

    Parameters
    ----------
    L : float
        Size of the values.
    """

    def factor(self, features: Features) -> Array:
        """``L`` on the first ceil(K/2) features, ``-L`` on the others, (K, 1).

        These are the values of one of the two functions. The other one has the opposite
        sign at all features, so its squared differences of values are the same.
        """
        in_first_half = np.arange(features.K) < (features.K + 1) // 2
        return np.where(in_first_half, self.L, -self.L)[:, None]

    def kernel(self, features: Features) -> Array:
        """``L²`` within a half, ``-L²`` between the halves."""
        signs = self.factor(features)
        return signs @ signs.T

    def sample(self, features: Features, rng: np.random.Generator, size: int) -> Array:
        """Draw the sign on the first half, and return the values, (size, K)."""
        sign = rng.choice([-1.0, 1.0], (size, 1))
        return sign * self.factor(features)[:, 0]
