r"""One softmax attention over N Gaussian tokens, exactly.

The output :math:`T_N = \sum_i p_ix_i` with :math:`p_i \propto e^{u^\top x_i}` tends to
:math:`m + \Gamma u`, which is affine in u, for tokens with the mean m and the
covariance Γ. The mean of the output and its mean squared distance from this limit
follow from three numbers of the weights: the means of :math:`\sum p^2`, :math:`\sum
p^3` and :math:`(\sum p^2)^2`. These means depend only on N and on the variance
:math:`v = u^\top\Gamma u` of the scores. Each of the three means is an integral over a
variable s. Its integrand contains means over a score t, :math:`\varphi_k(s) =
E\,e^{kt - se^t}`. See docs/theory/softmax-limit.md.
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

# Largest variance v of the scores. It is a cautious choice: e^(2v), the largest power
# in docs/theory/softmax-limit.md, is then below 1e261, within the range of float64.
LARGEST_VARIANCE = 300.0
# Largest number of tokens in a prompt. A float64 holds every whole number up to it.
LONGEST = 10**15
# Spacing h of the nodes of both trapezoid rules, one over the scores t and one over
# ln s. The errors fall like e^(-π²/h), because the integrands are analytic in a strip
# of the width π around the real axis. With this h the errors are below 1e-12 of a
# moment.
STEP = 0.25
# Largest spacing of the nodes in t, in standard deviations of the scores. This spacing
# is finer than necessary: twice this spacing has the same error, and three times this
# spacing has a relative error of up to 2e-10.
NORMAL_STEP = 0.3
# Scores are cut off where their normal density has fallen to e^(-½ · 80) / N³ =
# 4e-18 / N³ of its maximum.
TAIL_EXPONENT = 80.0
# The integral over ln s starts where s e^t <= e^-20 / N for all scores t. The part of
# the integral that is left out is of the order e^-40, relative to a moment.
LOWEST_EXPONENT = -20.0
# The integral ends where s e^t >= e^5 for all scores t, so that φ_0 <= exp(-e^5) =
# 4e-65.
HIGHEST_EXPONENT = 5.0
# exp(-e^10) is zero in float64. If the exponent ln s + t of s e^t is above 10, it is
# cut to 10, because powers of s e^t would overflow.
VANISHING_EXPONENT = 10.0
# Zero has no logarithm, so φ_0 below this number is raised to it.
SMALLEST = 1e-300
# Relative rounding error of a moment. It is generous: 16 times the spacing of float64.
ROUNDING = 2.0**-48
# Largest number of pairs (s, t) that are held in memory at once, 4 MB an array. Smaller
# blocks take more calls, and larger ones do not fit into the cache of the processor.
BLOCK = 2**19
# A negative eigenvalue of Γ up to this size is taken for rounding in its computation.
# The size is relative to d times the largest entry; it is generous.
COVARIANCE_ROUNDING = 1e-12


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
        Estimated relative error: the largest one of the three moments' errors.
    """

    squares: float
    cubes: float
    squares_twice: float
    error: float

    @property
    def spread(self) -> float:
        r"""The factor :math:`S_2 - 6S_3 + 6S_{22}` of :math:`|V\Gamma u|^2`.

        The product is a term of `GaussianAttention.error`.
        """
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
    coarse = moments_at(N, v, spacing_factor=1.0)
    fine = moments_at(N, v, spacing_factor=0.5)
    ratios = np.array(
        [
            coarse.squares / fine.squares,
            coarse.cubes / fine.cubes,
            coarse.squares_twice / fine.squares_twice,
        ]
    )
    # The ratios give the error of the coarse rule. It also bounds the error of the fine
    # rule, which is about the square of the coarse rule's error.
    error = float(np.abs(ratios - 1.0).max()) + ROUNDING
    return fine._replace(error=error)


def moments_at(N: int, v: float, spacing_factor: float = 1.0) -> WeightMoments:
    """Return the moments of `weight_moments` for arguments that were checked.

    The error of the result is not estimated, and its ``error`` is 0. All spacings of
    nodes are multiplied by ``spacing_factor``.
    """
    # One token has the weight 1, and scores that are all equal give the weights 1/N.
    if N == 1:
        return WeightMoments(1.0, 1.0, 1.0, error=0.0)
    if v == 0.0:
        return WeightMoments(1.0 / N, 1.0 / N**2, 1.0 / N**2, error=0.0)
    squares, cubes, squares_twice = _integrals(N, v, spacing_factor).tolist()
    return WeightMoments(squares, cubes, squares_twice, error=0.0)


def _integrals(N: int, v: float, spacing_factor: float) -> Array:
    """Return S_2, S_3 and S_22 by two trapezoid rules, (3,)."""
    deviation = math.sqrt(v)
    # Scores beyond ``highest`` in size have a probability below 1e-18 / N³. This is
    # negligible, because no moment is below 1 / N².
    highest = deviation * math.sqrt(TAIL_EXPONENT + 6.0 * math.log(N))
    t_step = spacing_factor * min(STEP, NORMAL_STEP * deviation)
    t = np.arange(-highest, highest, t_step)
    # Probabilities of the nodes in t: the normal density times the spacing.
    t_probs = t_step / deviation * np.exp(-0.5 * (t / deviation) ** 2)
    t_probs /= math.sqrt(2.0 * math.pi)
    log_s_step = STEP * spacing_factor
    lowest_log_s = -highest + LOWEST_EXPONENT - math.log(N)
    log_s = np.arange(lowest_log_s, highest + HIGHEST_EXPONENT, log_s_step)
    total = np.zeros(3)
    # Each block is a slice of the nodes in ln s, with at most BLOCK pairs (s, t).
    for block in blocks(log_s.size, t.size, BLOCK):
        total += _integrands(N, log_s[block], t, t_probs).sum(axis=1)
    return log_s_step * total


def _integrands(N: int, log_s: Array, t: Array, t_probs: Array) -> Array:
    """Return the integrands of S_2, S_3 and S_22 over ln s at S nodes, (3, S).

    They have one more factor s than the integrands over s in `weight_moments`, because
    ds = s d ln s. ``t_probs``, (T,), has the probabilities of the T scores t.
    """
    # ln(s e^t) for each pair of a node in ln s and a score t, (S, T).
    exponent = np.minimum(log_s[:, None] + t, VANISHING_EXPONENT)
    s_e_t = np.exp(exponent)
    decay = np.exp(-s_e_t)
    log_phi0 = _log_phi0(s_e_t, decay, t_probs)
    all_but_one = np.exp((N - 1) * log_phi0)  # φ_0^(N - 1)
    all_but_two = np.exp((N - 2) * log_phi0)  # φ_0^(N - 2)
    # In a long prompt both powers underflow to zero for most s. Each term of the
    # integrands has one of them as a factor, and is then zero.
    is_positive = all_but_two > 0.0
    s_e_t = s_e_t[is_positive]
    all_but_one = all_but_one[is_positive]
    all_but_two = all_but_two[is_positive]
    # s^k φ_k, the mean of (s e^t)^k exp(-s e^t) over t, (S,) each. Each power is the
    # one before it times s e^t, because NumPy computes cubes by a slow general power.
    power_times_decay = s_e_t**2 * decay[is_positive]
    s2_phi2 = power_times_decay @ t_probs
    power_times_decay *= s_e_t
    s3_phi3 = power_times_decay @ t_probs
    power_times_decay *= s_e_t
    s4_phi4 = power_times_decay @ t_probs
    integrands = np.zeros((3, log_s.size))
    integrands[:, is_positive] = [
        N * s2_phi2 * all_but_one,
        N * s3_phi3 * all_but_one / 2.0,
        N * (s4_phi4 * all_but_one + (N - 1) * s2_phi2**2 * all_but_two) / 6.0,
    ]
    return integrands


def _log_phi0(s_e_t: Array, decay: Array, t_probs: Array) -> Array:
    """Return ln φ_0 at S nodes s, (S,), from s e^t and exp(-s e^t), (S, T) each.

    For small s, φ_0 is so near 1 that it has lost the digits of 1 - φ_0. Then ln φ_0 is
    computed as log1p(-(1 - φ_0)), with 1 - φ_0 as the mean of 1 - exp(-s e^t) over t.
    Otherwise it is computed as log(φ_0). Both forms are exact to rounding at φ_0 = ½,
    where one replaces the other.
    """
    phi0 = np.maximum(decay @ t_probs, SMALLEST)
    log_phi0 = np.log(phi0)
    is_near_one = phi0 > 0.5
    one_minus_phi0 = -np.expm1(-s_e_t[is_near_one]) @ t_probs
    log_phi0[is_near_one] = np.log1p(-one_minus_phi0)
    return log_phi0


class _LinearOutput(NamedTuple):
    """The parts of the output for infinitely many tokens, and the score variance."""

    constant: Array  # V m, (e,)
    shift: Array  # V Γ u, (e,)
    score_variance: float  # v = uᵀΓu


@dataclass(frozen=True, eq=False)
class GaussianAttention:
    r"""Softmax attention of a query over N normal tokens of any covariance.

    For the query z, the matrices K of keys and Q of queries, and the tokens
    :math:`x_i \sim \mathcal N(m, \Gamma)`, the output is

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
        # `symmetric` refuses a matrix that is not symmetric up to rounding, and removes
        # the rounding.
        covariance = symmetric("covariance", self.covariance, covariance, allowed)
        least = float(np.linalg.eigvalsh(covariance)[0])
        if least < -COVARIANCE_ROUNDING * d * scale:
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

    def _linear_output(self, u: ArrayLike) -> _LinearOutput:
        """Return V m, V Γ u and the variance of the scores.

        Refuse a vector u with a score variance above `LARGEST_VARIANCE`.
        """
        # The constructor has set both defaults.
        assert self.mean is not None
        assert self.value is not None
        checked_u = _of_shape("u", u, (len(self.covariance),))
        covariance_u = self.covariance @ checked_u
        # Rounding may make a variance of zero negative.
        variance = max(float(checked_u @ covariance_u), 0.0)
        if variance > LARGEST_VARIANCE:
            raise argument_error(
                "u",
                u,
                f"of a score variance up to {LARGEST_VARIANCE:g}"
                f" (it is {variance:.3g})",
            )
        return _LinearOutput(
            constant=self.value @ self.mean,
            shift=self.value @ covariance_u,
            score_variance=variance,
        )

    def limit(self, u: ArrayLike) -> Array:
        r"""Return the output for infinitely many tokens, :math:`V(m + \Gamma u)`."""
        output = self._linear_output(u)
        return np.asarray(output.constant + output.shift)

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
        output = self._linear_output(u)
        squares = weight_moments(N, output.score_variance).squares
        return np.asarray(output.constant + (1.0 - squares) * output.shift)

    def error(self, u: ArrayLike, N: int) -> float:
        r"""Return the mean squared distance of the output from its limit.

        The limit is :math:`T_\infty = V(m + \Gamma u)`, and

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
        _, shift, variance = self._linear_output(u)
        moments = weight_moments(N, variance)
        shift_square = float(shift @ shift)
        return self._value_variance * moments.squares + moments.spread * shift_square

    def leading_error(self, u: ArrayLike, N: int) -> float:
        r"""Return the leading term of `error` for long prompts.

        It is :math:`\frac{e^v}N(\mathrm{tr}\,V\Gamma V^\top + |V\Gamma u|^2)` with the
        score variance :math:`v = u^\top\Gamma u`.
        """
        _, shift, variance = self._linear_output(u)
        N = integer("N", N, minimum=1, maximum=LONGEST)
        shift_square = float(shift @ shift)
        return math.exp(variance) / N * (self._value_variance + shift_square)

    @property
    def _value_variance(self) -> float:
        """The variance of the value Vx of one token x, summed over entries: tr VΓVᵀ."""
        assert self.value is not None  # the constructor has set the default
        return float(np.sum(self.value * (self.value @ self.covariance)))


def _of_shape(name: str, value: ArrayLike, shape: tuple[int, ...]) -> Array:
    """Return a copy of an array of numbers, which must have this shape."""
    array = plain_numbers(name, value, -LARGEST, LARGEST)
    if array.shape != shape:
        raise argument_error(name, array.shape, f"of shape {shape}")
    return array.copy()
