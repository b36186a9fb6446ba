r"""The error of Letey et al. in the limit of many dimensions.

The dimension d, the length N of prompts and the number k of pretraining tasks grow in
proportion, and the number n of pretraining prompts grows like :math:`d^2`. The ratios
are α = N/d, κ = k/d and τ = n/d². Tasks have the covariance C, and ρ is the variance of
the label noise. The formulas are from the authors' public code. That code samples the
mean of a resolvent (``Resolvent``), which this module computes from the solution of an
equation. See docs/theory/alignment.md, "The limit of many dimensions".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import Array, argument_error, number, set_fields
from icl_theory.papers.linear_attention.law import moment

# Roots are found to this relative accuracy, which is near the rounding of float64.
ROOT_ACCURACY = 1e-14


class Resolvent(NamedTuple):
    r"""The mean of :math:`(\hat C + \nu)^{-1}` over draws of k tasks, and its slope.

    Here :math:`\hat C = \frac1k\sum_j w_jw_j^\top` for tasks of the covariance C. The
    mean and its slope are diagonal in the axes of C.
    """

    F: Array  # eigenvalues of the mean resolvent, (d,)
    F_slope: Array  # their derivatives with respect to ν, (d,)

    @property
    def M(self) -> float:
        """Normalised trace of the mean resolvent."""
        return float(self.F.mean())

    @property
    def M_slope(self) -> float:
        """Derivative of M with respect to ν."""
        return float(self.F_slope.mean())


def mean_resolvent(spectrum: Array, diversity: float, nu: float) -> Resolvent:
    r"""Return the mean resolvent of the sample covariance of k = κd normal tasks.

    In the limit of large d it is :math:`F = (sC + \nu)^{-1}` (Silverstein 1995). Here s
    is the root in [0, 1] of :math:`s = 1 - \frac1{\kappa d}\mathrm{tr}\,sC(sC +
    \nu)^{-1}`. The derivatives are in docs/theory/alignment.md.

    Parameters
    ----------
    spectrum : ndarray, (d,)
        Eigenvalues of C.
    diversity, nu : float
        The ratio κ = k/d, and ν.
    """
    from scipy.optimize import brentq  # slow to load

    def s_minus_right_side(s: float) -> float:
        """Return the difference of both sides of the equation, increasing in s."""
        return s - 1.0 + float(np.mean(s * spectrum / (s * spectrum + nu))) / diversity

    # At s = 1 the difference is 0 if κ = ∞ or C = 0, and s is 1. Otherwise it is
    # positive there, and negative at s = 0.
    s = 1.0
    if s_minus_right_side(1.0) > 0.0:
        # As s may be tiny, only its relative accuracy counts. With this tiny xtol,
        # rtol alone ends the search.
        s = brentq(s_minus_right_side, 0.0, 1.0, xtol=1e-300, rtol=ROOT_ACCURACY)
    F = 1.0 / (s * spectrum + nu)
    M = float(F.mean())
    # Derivatives with respect to ν, with t = tr FCF/d:
    # M' = -(tr F²/d + M t/κ)/(1 + ν t/κ)
    t_over_kappa = float(np.mean(F**2 * spectrum)) / diversity
    M_slope = -(float(np.mean(F**2)) + M * t_over_kappa) / (1.0 + nu * t_over_kappa)
    # s = 1 - (1 - νM)/κ, which is the equation of s in terms of M.
    s_slope = (M + nu * M_slope) / diversity
    # F' = -F (s'C + I) F
    F_slope = -(F**2) * (s_slope * spectrum + 1.0)
    return Resolvent(F, F_slope)


@dataclass(frozen=True, eq=False)
class AlignmentLimit:
    r"""The limit of the test error, :math:`e_s(c_{test}) + \langle C_{test}, K\rangle`.

    .. math:: K = qF + (q\tilde\lambda - \nu^2)F', \qquad
        e_s = \rho + \frac{c_{test} + \rho}\alpha
        \bigl[1 + (q - 2\nu)M + (q\tilde\lambda - \nu^2)M'\bigr]

    Here F is the mean resolvent at :math:`\nu = (c_{train} + \rho)/\alpha +
    \tilde\lambda`, and M is its normalised trace. The number :math:`\tilde\lambda` is
    the property `ridge`, and q is the property `variance`. Primes are derivatives with
    respect to ν. Further :math:`\langle A, B\rangle = \frac1d\mathrm{tr}\,AB` and
    :math:`c = \frac1d\mathrm{tr}\,C`. The covariance of tasks is C in the units of the
    paper, whose tokens have the variance 1/d; with tokens of unit variance it is C/d.

    Parameters
    ----------
    pretraining : array_like, (d, d) or (d,)
        Covariance C_train of the pretraining tasks, or its diagonal.
    context, diversity, prompts : float
        The ratios α = N/d, κ = k/d and τ = n/d², all positive. There are k pretraining
        tasks and n pretraining prompts of N pairs. κ and τ may be math.inf, and τ is
        not 1.
    noise : float
        Standard deviation √ρ of the label noise, label units.

    Raises
    ------
    ValueError
        An argument is not allowed; the message names it.

    References
    ----------
    Letey, Zavatone-Veth, Lu, Pehlevan 2026, and their public code.

    Examples
    --------
    >>> from icl_theory.papers.alignment.limit import AlignmentLimit
    >>> limit = AlignmentLimit([2.0, 0.1], context=10.0, diversity=5.0, noise=0.1)
    >>> [round(limit.error(tasks), 3) for tasks in ([2.0, 0.0], [0.0, 2.0])]
    [0.071, 0.378]
    """

    pretraining: Array
    context: float
    diversity: float = math.inf
    prompts: float = math.inf
    noise: float = 0.0

    def __post_init__(self) -> None:
        set_fields(
            self,
            context=number("context", self.context),
            diversity=_ratio("diversity", self.diversity),
            prompts=_ratio("prompts", self.prompts),
            pretraining=moment("pretraining", self.pretraining),
            noise=number("noise", self.noise, zero=True),
        )
        if self.prompts == 1.0:
            raise argument_error(
                "prompts", self.prompts, "below or above 1: the error is infinite at 1"
            )

    @property
    def d(self) -> int:
        """Dimension of the covariances."""
        return len(self.pretraining)

    @cached_property
    def _axes(self) -> tuple[Array, Array | None]:
        """Eigenvalues of C_train, (d,), and its eigenvectors in columns, (d, d).

        Instead of the eigenvectors there is None if C_train is given as a diagonal.
        """
        if self.pretraining.ndim == 1:
            return self.pretraining, None
        values, vectors = np.linalg.eigh(self.pretraining)
        # Rounding may have made an eigenvalue of zero negative.
        return np.maximum(values, 0.0), vectors

    @property
    def _spectrum(self) -> Array:
        """Eigenvalues of C_train, (d,)."""
        eigenvalues, _ = self._axes
        return eigenvalues

    @property
    def _nu_without_ridge(self) -> float:
        """The part (c_train + ρ)/α of ν, which prompts of finite length cause."""
        return (float(self._spectrum.mean()) + self.noise**2) / self.context

    def _resolvent(self, nu: float) -> Resolvent:
        """Return the mean resolvent of the pretraining tasks at ν."""
        return mean_resolvent(self._spectrum, self.diversity, nu)

    @cached_property
    def ridge(self) -> float:
        r"""The effective ridge :math:`\tilde\lambda` of a fit to too few prompts.

        If there are more prompts than entries of Γ (τ > 1), the ridge is 0. Otherwise
        it is the root of :math:`\tilde\lambda M(\nu) = 1 - \tau`.
        """
        from scipy.optimize import brentq  # slow to load

        if self.prompts > 1.0:
            return 0.0
        target = 1.0 - self.prompts
        nu_without_ridge = self._nu_without_ridge

        def gap(log_ridge: float) -> float:
            """Return λ̃M(ν) - (1 - τ) for the ridge λ̃, which is zero at the root."""
            ridge = math.exp(log_ridge)
            return ridge * self._resolvent(nu_without_ridge + ridge).M - target

        # All eigenvalues of C_train are at most c_max, so F >= 1/(c_max + ν), and the
        # root is at most (1 - τ)/τ times the sum c_max + (c_train + ρ)/α. The upper end
        # of the search is e/(1 - τ) times this bound, to be safe.
        c_max_plus_nu = float(self._spectrum.max()) + nu_without_ridge
        log_high = math.log(c_max_plus_nu / self.prompts) + 1.0
        # The gap increases with the ridge, and is negative for tiny ridges. The lower
        # end of the search is such a ridge, which is sought downwards by a factor e^5
        # at a time; any factor would do.
        log_low = log_high - 1.0
        while gap(log_low) > 0.0:
            log_low -= 5.0
        # An absolute accuracy of the logarithm is a relative accuracy of the ridge.
        return math.exp(brentq(gap, log_low, log_high, xtol=ROOT_ACCURACY))

    @property
    def nu(self) -> float:
        """The point ν at which the resolvent is taken."""
        return self._nu_without_ridge + self.ridge

    @cached_property
    def resolvent(self) -> Resolvent:
        """The mean resolvent at ν."""
        return self._resolvent(self.nu)

    @cached_property
    def variance(self) -> float:
        r"""The variance q of the fit to n = τd² prompts; 0 for τ = ∞.

        .. math:: q = \frac{\rho + \nu - \nu^2M
            - \tilde\lambda(1 - 2\nu M - \nu^2M')}
            {\tau - (1 - 2\tilde\lambda M - \tilde\lambda^2M')}
        """
        if math.isinf(self.prompts):
            return 0.0
        nu = self.nu
        ridge = self.ridge
        M = self.resolvent.M
        M_slope = self.resolvent.M_slope
        ridge_factor = 1.0 - 2.0 * nu * M - nu**2 * M_slope
        numerator = self.noise**2 + nu - nu**2 * M - ridge * ridge_factor
        degrees_of_freedom = 1.0 - 2.0 * ridge * M - ridge**2 * M_slope
        return numerator / (self.prompts - degrees_of_freedom)

    @cached_property
    def size(self) -> float:
        r"""The limit of :math:`\frac1d\|\Gamma\|_F^2`, the square bracket in e_s.

        Here e_s is the scalar part of the error in the formula of the class.
        """
        q = self.variance
        nu = self.nu
        M = self.resolvent.M
        M_slope = self.resolvent.M_slope
        return 1.0 + (q - 2.0 * nu) * M + (q * self.ridge - nu**2) * M_slope

    @cached_property
    def kernel(self) -> Array:
        """Eigenvalues of K in the axes of C_train, (d,)."""
        q = self.variance
        # K = qF + (qλ̃ - ν²)F'
        F_slope_factor = q * self.ridge - self.nu**2
        return q * self.resolvent.F + F_slope_factor * self.resolvent.F_slope

    def _diagonal(self, tasks: ArrayLike) -> Array:
        """Return the diagonal of C_test in the axes of C_train, (d,).

        K is diagonal in these axes, so that ⟨C_test, K⟩ depends on no other entries.
        The argument ``tasks`` is C_test or its diagonal.
        """
        C_test = moment("tasks", tasks, self.d)
        _, eigenvectors = self._axes
        if eigenvectors is not None:
            matrix = np.diag(C_test) if C_test.ndim == 1 else C_test
            # vᵀ C_test v for each eigenvector v of C_train, a column
            return np.asarray(np.sum(eigenvectors * (matrix @ eigenvectors), axis=0))
        # C_train is diagonal, so its axes are the coordinate axes.
        if C_test.ndim == 2:
            return np.diag(C_test)
        return C_test

    def misalignment(self, tasks: ArrayLike) -> float:
        """Return ⟨C_test, K⟩, the part of the error that depends on the axes of C_test.

        Parameters
        ----------
        tasks : array_like, (d, d) or (d,)
            Covariance C_test of the test tasks, or its diagonal.

        Returns
        -------
        float, squared label units
        """
        return float(np.mean(self._diagonal(tasks) * self.kernel))

    def error(self, tasks: ArrayLike) -> float:
        """Return the limit of the mean squared error for the query's noisy label.

        Parameters
        ----------
        tasks : array_like, (d, d) or (d,)
            Covariance C_test of the test tasks, or its diagonal.

        Returns
        -------
        float, squared label units
        """
        diagonal = self._diagonal(tasks)
        misalignment = float(np.mean(diagonal * self.kernel))
        c_test = float(np.mean(diagonal))
        rho = self.noise**2
        return rho + (c_test + rho) / self.context * self.size + misalignment


def _ratio(name: str, value: object) -> float:
    """Return a positive ratio, which may be infinite; ``name`` is for errors."""
    if isinstance(value, float) and value == math.inf:
        return math.inf
    return number(name, value)
