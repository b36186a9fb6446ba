r"""How well a loss curve agrees with trainings.

The curve is averaged over W windows of steps. Its means differ by r from the means of a
training, and have the standard errors :math:`\sigma`. A training that is random, such
as one from a random start, also scatters about its mean: its covariance is estimated
from a few draws, whose deviations are the rows of F, and

.. math:: C = \mathrm{diag}(\sigma^2 + \lambda\,\mathrm{diag}\,F^\top F)
    + (1 - \lambda)\,F^\top F .

A curve agrees with a training if no window is beyond the limit of the comparison, and
:math:`\chi^2 = r^\top C^{-1} r` is not larger than it is once in a thousand times for a
curve of that training. It may be twice as large if the standard errors come with the
curve, because they leave out how far SGD strays, and F is zero. Explanations are in
the order of

.. math:: \chi^2 + \ln\det C + 2\,k ,

where k is the number of fitted parameters.

The noise of small batches may move the mean loss of SGD away from the exact loss. This
shift is estimated for the run, and added to the losses of all trainings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from icl_theory._validate import Array
from icl_theory.engine.comparison import z_score
from icl_theory.engine.windows import Windows

# A true explanation is rejected by its sum of squares once in a thousand times.
REJECTED = 1e-3
# The part λ of the scatter from draw to draw that is taken as independent from window
# to window, because a few draws do not show every shape that a curve may have.
DIAGONAL = 0.1
# Standard errors that come with a curve leave out how far SGD strays. The sum of
# squares may be larger by this factor.
STRAY = 2.0


class Candidate(NamedTuple):
    """A training that may explain a curve, before it is judged."""

    name: str
    sentence: str
    parameters: dict[str, Any]
    losses: Array  # (T,)
    fitted: int  # number of fitted parameters
    modes: Array | None = None  # how the means over windows scatter, (D, W)
    factor: float = 1.0  # of the curve, over the losses of the training
    prior: float = 0.0  # added to the score; negative if other evidence supports it


class Verdict(NamedTuple):
    """How well a curve agrees with a training."""

    score: float
    misfit: float
    fits: bool


class Residual(NamedTuple):
    r"""Differences of a curve from a training.

    Attributes
    ----------
    z : ndarray, (W,)
        The differences that remain after the modes of the training are fitted, in
        standard errors.
    square : float
        :math:`\chi^2`, the sum of the squares of z and of the modes' amplitudes.
    widening : float
        :math:`\ln\det C - \ln\det\mathrm{diag}\,\sigma^2`, which grows with the scatter
        of the training.
    """

    z: Array
    square: float
    widening: float


@dataclass(frozen=True)
class Evidence:
    """Means of a loss curve over W windows of its T steps, and their standard errors.

    Parameters
    ----------
    windows : Windows
        The windows.
    exact : ndarray, (T,)
        Losses of the run.
    means, errors : ndarray, (W,)
        Means of the curve and their standard errors.
    limit : float
        Largest difference in standard errors.
    freedom : float
        Degrees of freedom of the standard errors.
    rounding : float
        Relative rounding error of the losses.
    errors_of_curve : bool
        Whether the standard errors belong to the curve, and have its factor. Otherwise
        they belong to the run.
    is_smooth : bool
        Whether successive losses differ by far less than their standard errors say, as
        they do if all belong to the same prompts.
    shift : ndarray, (W,), or float
        What the noise of batches adds to the exact means.
    """

    windows: Windows
    exact: Array
    means: Array
    errors: Array
    limit: float
    freedom: float
    rounding: float
    errors_of_curve: bool
    is_smooth: bool
    shift: Array | float = 0.0

    def scaled(self, factor: float) -> Evidence:
        """Return the evidence of the curve times a factor."""
        errors = factor * self.errors if self.errors_of_curve else self.errors
        return replace(self, means=factor * self.means, errors=errors)

    def residual(self, expected: Array, modes: Array | None = None) -> Residual:
        """Compare the curve with W means of a training, (W,).

        If the training is random, its D draws deviate from the means by ``modes``,
        (D, W). They add a matrix of rank D to the diagonal covariance of the curve.
        The inverse of the sum follows from a system of D equations.
        """
        expected = expected + self.shift
        difference = self.means - expected
        if modes is None:
            z = _clipped(z_score(difference, self.errors, expected, self.rounding))
            return Residual(z, float(np.sum(z**2)), 0.0)
        # The tiny number avoids a division by zero.
        rounding = self.rounding * np.abs(expected) + float(np.finfo(float).tiny)
        own = self.errors + rounding
        variance = np.sum(modes**2, axis=0)
        wider = np.sqrt(own**2 + DIAGONAL * variance)
        scaled_modes = math.sqrt(1.0 - DIAGONAL) * modes / wider
        matrix = np.eye(len(modes)) + scaled_modes @ scaled_modes.T
        z = _clipped(difference / wider)
        amplitudes = np.linalg.solve(matrix, scaled_modes @ z)
        rest = z - amplitudes @ scaled_modes
        square = float(np.sum(rest**2) + np.sum(amplitudes**2))
        widening = 2.0 * float(np.sum(np.log(wider / own)))
        widening += float(np.linalg.slogdet(matrix)[1])
        return Residual(rest, square, widening)

    def score(self, expected: Array, modes: Array | None = None) -> float:
        """Return the sum of squares plus the term of the modes; less is better."""
        residual = self.residual(expected, modes)
        return residual.square + residual.widening

    def verdict(self, candidate: Candidate) -> Verdict:
        """Judge whether the curve agrees with a training, and how well."""
        from scipy.special import chdtri

        if candidate.factor != 1.0:
            unscaled = self.scaled(1.0 / candidate.factor)
            return unscaled.verdict(candidate._replace(factor=1.0))
        expected = self.windows.means(candidate.losses)
        residual = self.residual(expected, candidate.modes)
        count = len(residual.z)
        # Student's z-scores have the mean square 1 / (1 - 2 / freedom).
        largest = chdtri(count, REJECTED) / (1.0 - 2.0 / self.freedom)
        # The modes of a random training leave room for SGD already.
        if self.errors_of_curve and candidate.modes is None:
            largest *= STRAY
        largest_z = float(np.abs(residual.z).max())
        fits = bool(largest_z <= self.limit and residual.square <= largest)
        # Comparisons with NaN are false, so a training without a score does not fit.
        score = residual.square + residual.widening + 2.0 * candidate.fitted
        score += candidate.prior
        return Verdict(score, residual.square / count, fits)

    def misfit(self, losses: Array) -> float:
        """Sum of squares of the differences from losses, (T,)."""
        return self.score(self.windows.means(losses))

    def weights(self) -> Array:
        """Inverse squares of the standard errors, (W,)."""
        rounding = self.rounding * np.abs(self.means)
        tiny = float(np.finfo(float).tiny)
        return np.asarray(1.0 / np.maximum((self.errors + rounding) ** 2, tiny))


def _clipped(z: Array) -> Array:
    """Return z-scores, limited in size so that their squares stay finite."""
    return np.clip(z, -1e9, 1e9)
