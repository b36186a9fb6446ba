r"""One softmax attention over N Gaussian tokens, exactly.

The output :math:`T_N = \sum_i p_ix_i` with :math:`p \propto e^{u^\top x_i}` tends to
the linear map :math:`m + \Gamma u`. Its mean and its mean squared error need three
numbers of the weights: the means of :math:`\sum p^2`, :math:`\sum p^3` and :math:`(\sum
p^2)^2`. These means depend on N and on the variance :math:`v = u^\top\Gamma u` of the
scores alone. See docs/theory/softmax-limit.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import (
    LARGEST,
    Array,
    argument_error,
    integer,
    number,
    plain_numbers,
    real_array,
    set_fields,
    symmetric,
)
from icl_theory.memory import blocks

# exp(v) of scores of this variance is near the largest number of float64.
LARGEST_VARIANCE = 300.0
LONGEST = 10**15
# Spacing of the nodes of the trapezoid rules, in scores and in ln s. The errors fall
# exponentially, because the integrands are analytic in a strip of the width π around
# the real axis.
STEP = 0.25
# Largest spacing of the scores, in standard deviations.
NORMAL_STEP = 0.3
# exp(-exp(5)) is 3e-65.
HIGHEST_EXPONENT = 5.0
# Least mean whose logarithm is taken.
SMALLEST = 1e-300
# Relative rounding of a moment.
ROUNDING = 2.0**-48
# Numbers of nodes that are held at once.
BLOCK = 2**19


class WeightMoments(NamedTuple):
    r"""Means of powers of the softmax weights of N tokens.

    Attributes
    ----------
    squares : float
        :math:`S_2 = E\sum_i p_i^2`, the inverse of the effective number of tokens.
    cubes : float
        :math:`S_3 = E\sum_i p_i^3`.
    squares_twice : float
        :math:`S_{22} = E(\sum_i p_i^2)^2`.
    error : float
        Estimated error of each, relative.
    """

    squares: float
    cubes: float
    squares_twice: float
    error: float

    @property
    def spread(self) -> float:
        r""":math:`S_2 - 6S_3 + 6S_{22}`, which multiplies :math:`|V\Gamma u|^2`."""
        return self.squares - 6.0 * self.cubes + 6.0 * self.squares_twice


def weight_moments(N: int, variance: float) -> WeightMoments:
    r"""Return the moments of the weights of N tokens with independent normal scores.

    With :math:`\varphi_k(s) = E\,e^{kt - se^t}` for a score :math:`t \sim \mathcal N(0,
    v)`,

    .. math:: S_2 = N\int s\,\varphi_2\varphi_0^{N-1}ds, \qquad
        S_3 = N\int \tfrac{s^2}2\varphi_3\varphi_0^{N-1}ds, \qquad
        S_{22} = N\int \tfrac{s^3}6\bigl[\varphi_4\varphi_0
        + (N-1)\varphi_2^2\bigr]\varphi_0^{N-2}ds .

    Parameters
    ----------
    N : int
        Number of tokens, up to 1e15.
    variance : float
        Variance v of the scores, up to 300.

    Returns
    -------
    WeightMoments

    Raises
    ------
    ValueError
        An argument is out of range; the message names it.

    Examples
    --------
    >>> from icl_theory.papers.softmax_linear.attention import weight_moments
    >>> weight_moments(1, 2.0).squares
    1.0
    >>> round(1000 * weight_moments(1000, 1.0).squares / 2.718281828, 3)
    0.993
    """
    N = integer("N", N, minimum=1, maximum=LONGEST)
    v = number("variance", variance, zero=True, maximum=LARGEST_VARIANCE)
    coarse = moments_at(N, v, 1.0)
    fine = moments_at(N, v, 0.5)
    ratios = np.array(coarse[:3]) / np.array(fine[:3])
    error = float(np.abs(ratios - 1.0).max()) + ROUNDING
    return fine._replace(error=error)


def moments_at(N: int, v: float, refine: float = 1.0) -> WeightMoments:
    """Return the moments without an estimate of their error, or checks.

    ``refine`` multiplies the spacing of all nodes.
    """
    if N == 1:
        return WeightMoments(1.0, 1.0, 1.0, 0.0)
    if v == 0.0:
        return WeightMoments(1.0 / N, 1.0 / N**2, 1.0 / N**2, 0.0)
    squares, cubes, squares_twice = _integrals(N, v, refine).tolist()
    return WeightMoments(squares, cubes, squares_twice, 0.0)


def _integrals(N: int, v: float, refine: float) -> Array:
    """Return S_2, S_3 and S_22 by two trapezoid rules."""
    deviation = math.sqrt(v)
    # Scores beyond this have a probability of 1e-17 / N³. No moment is below 1 / N².
    highest = deviation * math.sqrt(80.0 + 6.0 * math.log(N))
    step = refine * min(STEP, NORMAL_STEP * deviation)
    t = np.arange(-highest, highest, step)
    normal = step / deviation * np.exp(-0.5 * (t / deviation) ** 2)
    normal /= math.sqrt(2.0 * math.pi)
    # Below, s e^t is at most e^-20 / N for all tokens; above, φ_0 vanishes.
    log_s = np.arange(
        -highest - 20.0 - math.log(N), highest + HIGHEST_EXPONENT, STEP * refine
    )
    total = np.zeros(3)
    for part in blocks(log_s.size, t.size, BLOCK):
        total += _integrands(N, log_s[part], t, normal).sum(axis=1)
    return STEP * refine * total


def _integrands(N: int, log_s: Array, t: Array, normal: Array) -> Array:
    """Return the integrands by ln s, (3, S)."""
    # Nothing is left of e^{-s e^t} at the exponent that is cut here.
    exponent = np.minimum(log_s[:, None] + t, 10.0)
    scaled = np.exp(exponent)
    decay = np.exp(-scaled)
    second = (scaled**2 * decay) @ normal
    third = (scaled**3 * decay) @ normal
    fourth = (scaled**4 * decay) @ normal
    # ln φ_0, without the cancellation of 1 - φ_0 where few tokens are cut off
    missing = -np.expm1(-scaled) @ normal
    mean = np.maximum(decay @ normal, SMALLEST)
    log_mean = np.where(
        missing < 0.5, np.log1p(-np.minimum(missing, 0.5)), np.log(mean)
    )
    all_but_one = np.exp((N - 1) * log_mean)
    all_but_two = np.exp((N - 2) * log_mean)
    return np.array(
        [
            N * second * all_but_one,
            N * third * all_but_one / 2.0,
            N * (fourth * all_but_one + (N - 1) * second**2 * all_but_two) / 6.0,
        ]
    )


@dataclass(frozen=True, eq=False)
class GaussianAttention:
    r"""Softmax attention of a query over N normal tokens of any covariance.

    With :math:`x_i \sim \mathcal N(m, \Gamma)`,

    .. math:: T_N(z) = V\sum_i p_ix_i, \qquad p_i \propto e^{u^\top x_i}, \qquad
        u = K^\top Qz

    Parameters
    ----------
    covariance : array_like, (d, d)
        Covariance Γ of the tokens: symmetric, without negative eigenvalues.
    mean : array_like, (d,), optional
        Mean m of the tokens; by default 0.
    value : array_like, (e, d), optional
        Value matrix V; by default I.

    Raises
    ------
    ValueError
        An argument is not allowed; the message names it.

    References
    ----------
    docs/theory/softmax-limit.md. Boursier, Boyer 2025, Lemma 2.1 has the limit.

    Examples
    --------
    >>> import numpy as np
    >>> from icl_theory.papers.softmax_linear.attention import GaussianAttention
    >>> attention = GaussianAttention([[2.0, 0.5], [0.5, 1.0]])
    >>> u = np.array([0.5, 0.0])
    >>> attention.limit(u).round(3)
    array([1.  , 0.25])
    >>> attention.mean_output(u, N=10).round(3)
    array([0.852, 0.213])
    >>> [round(attention.error(u, N), 4) for N in (10, 1000)]
    [0.5549, 0.0067]
    """

    covariance: Array
    mean: Array | None = None
    value: Array | None = None

    def __post_init__(self) -> None:
        covariance = real_array("covariance", self.covariance, 2, LARGEST)
        d = len(covariance)
        allowed = "a symmetric matrix, (d, d), without negative eigenvalues"
        if d == 0 or covariance.shape != (d, d):
            raise argument_error("covariance", covariance.shape, allowed)
        scale = float(np.abs(covariance).max())
        covariance = symmetric("covariance", self.covariance, covariance, allowed)
        least = float(np.linalg.eigvalsh(covariance)[0])
        if least < -1e-12 * d * scale:
            raise argument_error(
                "covariance",
                self.covariance,
                f"{allowed} (the least is {least:.3g})",
            )
        mean = np.zeros(d)
        if self.mean is not None:
            mean = _of_shape("mean", self.mean, (d,))
        value = np.eye(d)
        if self.value is not None:
            value = real_array("value", self.value, 2, LARGEST)
            if value.shape[1] != d:
                raise argument_error("value", value.shape, f"of shape (e, {d})")
        set_fields(self, covariance=covariance, mean=mean, value=value)

    def _parts(self, u: ArrayLike) -> tuple[Array, Array, float]:
        """Return Vm, VΓu and the variance of the scores."""
        assert self.mean is not None
        assert self.value is not None
        direction = _of_shape("u", u, (len(self.covariance),))
        moved = self.covariance @ direction
        variance = max(float(direction @ moved), 0.0)
        if variance > LARGEST_VARIANCE:
            raise argument_error(
                "u",
                u,
                f"of a score variance up to {LARGEST_VARIANCE:g}"
                f" (it is {variance:.3g})",
            )
        return self.value @ self.mean, self.value @ moved, variance

    def limit(self, u: ArrayLike) -> Array:
        r"""Return the output for infinitely many tokens, :math:`V(m + \Gamma u)`."""
        base, slope, _ = self._parts(u)
        return np.asarray(base + slope)

    def mean_output(self, u: ArrayLike, N: int) -> Array:
        r"""Return the mean output of N tokens, :math:`V(m + (1 - S_2)\Gamma u)`.

        Parameters
        ----------
        u : array_like, (d,)
            :math:`K^\top Qz`.
        N : int
            Number of tokens.

        Returns
        -------
        ndarray, (e,)
        """
        base, slope, variance = self._parts(u)
        squares = weight_moments(N, variance).squares
        return np.asarray(base + (1.0 - squares) * slope)

    def error(self, u: ArrayLike, N: int) -> float:
        r"""Return the mean squared distance of the output from its limit.

        .. math:: E|T_N - T_\infty|^2 = S_2\,\mathrm{tr}\,V\Gamma V^\top
            + (S_2 - 6S_3 + 6S_{22})\,|V\Gamma u|^2

        Parameters
        ----------
        u : array_like, (d,)
            :math:`K^\top Qz`.
        N : int
            Number of tokens.

        Returns
        -------
        float
        """
        _, slope, variance = self._parts(u)
        moments = weight_moments(N, variance)
        return self._total * moments.squares + moments.spread * float(slope @ slope)

    def leading_error(self, u: ArrayLike, N: int) -> float:
        r"""Return the error for long prompts, :math:`\frac{e^v}N(\mathrm{tr}\,V\Gamma
        V^\top + |V\Gamma u|^2)`.
        """
        _, slope, variance = self._parts(u)
        N = integer("N", N, minimum=1, maximum=LONGEST)
        return math.exp(variance) / N * (self._total + float(slope @ slope))

    @property
    def _total(self) -> float:
        """The trace of VΓVᵀ."""
        assert self.value is not None
        return float(np.sum(self.value * (self.value @ self.covariance)))


def _of_shape(name: str, value: ArrayLike, shape: tuple[int, ...]) -> Array:
    array = plain_numbers(name, value, -LARGEST, LARGEST)
    if array.shape != shape:
        raise argument_error(name, array.shape, f"of shape {shape}")
    return array.copy()
