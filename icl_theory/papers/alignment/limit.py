r"""The error of Letey et al. in the limit of many dimensions.

d, N and k grow in proportion, and the number n of pretraining prompts like :math:`d^2`.
The formulas are those of the authors' public code. The mean resolvents, which that code
samples, come here from their equation.
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

# Roots are found to this relative accuracy.
ROOT_ACCURACY = 1e-14


class Resolvent(NamedTuple):
    r"""The mean of :math:`(\hat C + \nu)^{-1}` over k tasks, and its derivative.

    :math:`\hat C = \frac1k\sum_j w_jw_j^\top`; all matrices have the axes of C.
    """

    F: Array  # eigenvalues of the mean resolvent, (d,)
    F_slope: Array  # its derivative with respect to ν, (d,)

    @property
    def M(self) -> float:
        """Normalised trace of the mean resolvent."""
        return float(self.F.mean())

    @property
    def M_slope(self) -> float:
        """Derivative of M with respect to ν."""
        return float(self.F_slope.mean())


def mean_resolvent(spectrum: Array, diversity: float, nu: float) -> Resolvent:
    r"""Return the mean resolvent of the covariance of k = κd normal tasks.

    :math:`F = (sC + \nu)^{-1}` with the root s in [0, 1] of :math:`s = 1 -
    \frac1{\kappa d}\mathrm{tr}\,sC(sC + \nu)^{-1}`, in the limit of large d
    (Silverstein 1995).
    """
    from scipy.optimize import brentq  # slow to load

    def gap(s: float) -> float:
        return s - 1.0 + float(np.mean(s * spectrum / (s * spectrum + nu))) / diversity

    s = 1.0
    if gap(1.0) > 0.0:
        s = brentq(gap, 0.0, 1.0, xtol=1e-300, rtol=ROOT_ACCURACY)
    F = 1.0 / (s * spectrum + nu)
    M = float(F.mean())
    coupled = float(np.mean(F**2 * spectrum)) / diversity
    M_slope = -(float(np.mean(F**2)) + M * coupled) / (1.0 + nu * coupled)
    s_slope = (M + nu * M_slope) / diversity
    return Resolvent(F, -(F**2) * (s_slope * spectrum + 1.0))


@dataclass(frozen=True, eq=False)
class AlignmentLimit:
    r"""The limit of the test error, :math:`e_s(c_{test}) + \langle C_{test}, K\rangle`.

    .. math:: K = qF + (q\tilde\lambda - \nu^2)F', \qquad
        e_s = \rho + \frac{c_{test} + \rho}\alpha
        \bigl[1 + (q - 2\nu)M + (q\tilde\lambda - \nu^2)M'\bigr]

    with the mean resolvent F at :math:`\nu = (c_{train} + \rho)/\alpha + \tilde\lambda`
    and :math:`\langle A, B\rangle = \frac1d\mathrm{tr}\,AB`, :math:`c =
    \frac1d\mathrm{tr}\,C`. The covariance of tasks is C in the units of the paper,
    whose tokens have the variance 1/d; with tokens of unit variance it is C/d.

    Parameters
    ----------
    pretraining : array_like, (d, d) or (d,)
        Covariance C_train of the pretraining tasks, or its diagonal.
    context, diversity, prompts : float
        The ratios α = N/d, κ = k/d and τ = n/d² of the lengths of prompts, pretraining
        tasks and pretraining prompts; positive. κ and τ may be math.inf, and τ is not
        1.
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
        """Eigenvalues of C_train, and its eigenvectors unless it is diagonal."""
        if self.pretraining.ndim == 1:
            return self.pretraining, None
        values, vectors = np.linalg.eigh(self.pretraining)
        return np.maximum(values, 0.0), vectors

    @property
    def _noise_ratio(self) -> float:
        """(c_train + ρ)/α, what the noise of a prompt adds to its covariance."""
        return (float(self._axes[0].mean()) + self.noise**2) / self.context

    def _resolvent(self, nu: float) -> Resolvent:
        return mean_resolvent(self._axes[0], self.diversity, nu)

    @cached_property
    def ridge(self) -> float:
        r"""The ridge :math:`\tilde\lambda` that too few prompts are worth; 0 if τ > 1.

        The ridge is the root of :math:`\tilde\lambda M(\nu) = 1 - \tau`.
        """
        from scipy.optimize import brentq  # slow to load

        if self.prompts > 1.0:
            return 0.0
        target = 1.0 - self.prompts
        base = self._noise_ratio

        def gap(log_ridge: float) -> float:
            ridge = math.exp(log_ridge)
            return ridge * self._resolvent(base + ridge).M - target

        highest = float(self._axes[0].max()) + base
        log_high = math.log(highest / self.prompts) + 1.0
        log_low = log_high - 1.0
        while gap(log_low) > 0.0:
            log_low -= 5.0
        return math.exp(brentq(gap, log_low, log_high, xtol=ROOT_ACCURACY))

    @property
    def nu(self) -> float:
        """The point ν at which the resolvent is taken."""
        return self._noise_ratio + self.ridge

    @cached_property
    def resolvent(self) -> Resolvent:
        """The mean resolvent at ν."""
        return self._resolvent(self.nu)

    @cached_property
    def variance(self) -> float:
        """q, the variance of the fit to n = τd² prompts; 0 for τ = ∞."""
        if math.isinf(self.prompts):
            return 0.0
        nu, ridge = self.nu, self.ridge
        M, slope = self.resolvent.M, self.resolvent.M_slope
        unlearnt = 1.0 - 2.0 * nu * M - nu**2 * slope
        target = self.noise**2 + nu - nu**2 * M - ridge * unlearnt
        freedom = 1.0 - 2.0 * ridge * M - ridge**2 * slope
        return target / (self.prompts - freedom)

    @cached_property
    def size(self) -> float:
        r"""The limit of :math:`\frac1d\|\Gamma\|_F^2`."""
        q, nu = self.variance, self.nu
        M, slope = self.resolvent.M, self.resolvent.M_slope
        return 1.0 + (q - 2.0 * nu) * M + (q * self.ridge - nu**2) * slope

    @cached_property
    def kernel(self) -> Array:
        """Eigenvalues of K in the axes of C_train, (d,)."""
        q = self.variance
        weight = q * self.ridge - self.nu**2
        return q * self.resolvent.F + weight * self.resolvent.F_slope

    def _traced(self, tasks: ArrayLike, eigenvalues: Array) -> tuple[float, float]:
        """Return ⟨C_test, A⟩ for a matrix A in the axes of C_train, and c_test."""
        C = moment("tasks", tasks, self.d)
        vectors = self._axes[1]
        if vectors is not None:
            full = np.diag(C) if C.ndim == 1 else C
            C = np.sum(vectors * (full @ vectors), axis=0)
        elif C.ndim == 2:
            C = np.diag(C)
        return float(np.mean(C * eigenvalues)), float(np.mean(C))

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
        return self._traced(tasks, self.kernel)[0]

    def error(self, tasks: ArrayLike) -> float:
        """Return the limit of the test error, with the noise of the query's label.

        Parameters
        ----------
        tasks : array_like, (d, d) or (d,)
            Covariance C_test of the test tasks, or its diagonal.

        Returns
        -------
        float, squared label units
        """
        misalignment, trace = self._traced(tasks, self.kernel)
        rho = self.noise**2
        return rho + (trace + rho) / self.context * self.size + misalignment


def _ratio(name: str, value: object) -> float:
    """Return a positive ratio, which may be infinite."""
    if isinstance(value, float) and value == math.inf:
        return math.inf
    return number(name, value)
