r"""How well a loss curve agrees with trainings.

The curve is averaged over W windows of steps. Its means differ by r from the means of a
training, and have the standard errors :math:`\sigma`. A training that is random, such
as one from a random start, also scatters about its mean. The covariance of this scatter
is estimated from a few draws as :math:`F^\top F`; each row of F is the scaled deviation
of a draw from the mean of the draws. A part λ of the scatter is taken as independent
from window to window. So the covariance of r is

.. math:: C = \mathrm{diag}(\sigma^2 + \lambda\,\mathrm{diag}\,F^\top F)
    + (1 - \lambda)\,F^\top F .

A curve agrees with a training if it passes two tests. No window may differ by more
standard errors than the ``limit`` of the `Evidence`. And :math:`\chi^2 = r^\top C^{-1}
r` may not be larger than the value that a curve of this training exceeds in one of a
thousand cases. Twice this value is allowed if the standard errors come with the curve
and the training is not random: such errors leave out how far SGD strays from the exact
run.

Explanations are ordered by the score

.. math:: \chi^2 + \ln\det C - \ln\det\mathrm{diag}\,\sigma^2 + 2\,k + p ,

in which k is the number of fitted parameters and p the ``prior`` of the `Candidate`.
The third term is the same for all trainings. The best explanation has the lowest score.

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

# The probability with which a true explanation is rejected by its sum of squares. A
# smaller one would reject fewer true explanations, and accept more wrong ones.
REJECTED = 1e-3
# The part λ of the scatter from draw to draw that is taken as independent from window
# to window, because a few draws do not show every shape that a curve may have. It is a
# choice: with 0, a curve of a shape that no draw has would be rejected; with 1, the
# correlation between windows would be ignored.
INDEPENDENT_PART = 0.1
# Standard errors that come with a curve leave out how far SGD strays from the exact
# run. The sum of squares may then be larger by this factor, a cautious choice.
STRAY = 2.0
# z-scores are limited to this size, so that their squares stay finite. It is far above
# the limit of any test, so it changes no verdict.
LARGEST_Z = 1e9


class Candidate(NamedTuple):
    """A training that may explain a curve, before it is judged.

    Attributes
    ----------
    name, sentence, parameters : str, str, dict
        As in an `Explanation`.
    losses : ndarray, (T,)
        The losses of the training.
    fitted : int
        The number of parameters that are fitted to the curve.
    modes : ndarray, (D, W), or None
        The matrix F of a random training: scaled deviations of D draws from their mean.
        None if the training is not random.
    factor : float
        The losses of the curve divided by the losses of the training.
    prior : float
        A number that is added to the score. It is negative if other evidence supports
        the training.
    """

    name: str
    sentence: str
    parameters: dict[str, Any]
    losses: Array
    fitted: int
    modes: Array | None = None
    factor: float = 1.0
    prior: float = 0.0


class Verdict(NamedTuple):
    r"""How well a curve agrees with a training.

    Attributes
    ----------
    score : float
        The score, by which explanations are ordered; lower is better.
    misfit : float
        :math:`\chi^2` divided by the number of windows.
    fits : bool
        Whether the curve agrees with the training.
    """

    score: float
    misfit: float
    fits: bool


class Residual(NamedTuple):
    r"""Differences of a curve from a training.

    Attributes
    ----------
    z : ndarray, (W,)
        The differences in standard errors, after the best combination of the modes of
        the training has been subtracted.
    square : float
        :math:`\chi^2`, the sum of the squares of z and of the amplitudes of the modes
        in this combination.
    log_det_ratio : float
        :math:`\ln\det C - \ln\det\mathrm{diag}\,\sigma^2`, which grows with the scatter
        of the training. The second term is the same for all trainings.
    """

    z: Array
    square: float
    log_det_ratio: float


@dataclass(frozen=True)
class Evidence:
    """Means of a loss curve over W windows of its T steps, and their standard errors.

    Parameters
    ----------
    windows : Windows
        The windows.
    exact : ndarray, (T,)
        Exact losses of the run at the T steps.
    means, errors : ndarray, (W,)
        Means of the curve and their standard errors.
    limit : float
        Largest difference, in standard errors, that a window may have.
    freedom : float
        Degrees of freedom of the standard errors.
    rounding : float
        Relative rounding error of the losses.
    errors_of_curve : bool
        Whether the standard errors come with the curve, so that a factor of the curve
        multiplies them, too. Otherwise they come from runs of SGD.
    is_smooth : bool
        Whether successive losses differ by far less than their standard errors say, as
        they do if all are losses of the same prompts.
    shift : ndarray, (W,), or float
        The amount by which the noise of batches moves the mean losses of SGD from the
        exact ones.
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
        """Return the evidence of the curve with its losses multiplied by a factor."""
        errors = factor * self.errors if self.errors_of_curve else self.errors
        return replace(self, means=factor * self.means, errors=errors)

    def residual(self, expected: Array, modes: Array | None = None) -> Residual:
        r"""Compare the curve with the means of a training over the windows, (W,).

        A random training has the matrix F of ``modes``, (D, W). With the diagonal
        matrix :math:`S^2 = \mathrm{diag}(\sigma^2 + \lambda\,\mathrm{diag}\,F^\top F)`
        and :math:`A = \sqrt{1 - \lambda}\,F S^{-1}` the covariance is
        :math:`C = S(1 + A^\top A)S`. Then, with :math:`z = S^{-1} r` and the amplitudes
        :math:`a = (1 + AA^\top)^{-1} A z`,

        .. math:: r^\top C^{-1} r = |z - A^\top a|^2 + |a|^2, \qquad
            \det C = \det S^2 \det(1 + AA^\top) .
        """
        expected = expected + self.shift
        difference = self.means - expected
        if modes is None:
            # `z_score` divides by the standard errors plus a rounding error.
            z = _clipped(z_score(difference, self.errors, expected, self.rounding))
            return Residual(z, square=float(np.sum(z**2)), log_det_ratio=0.0)
        # A rounding error is added to the standard errors, as in `z_score`. So even if
        # the standard errors are zero, differences by rounding have z-scores of about
        # 1. The tiny number avoids a division by zero.
        rounding = self.rounding * np.abs(expected) + float(np.finfo(float).tiny)
        sigma = self.errors + rounding
        variance = np.sum(modes**2, axis=0)
        S = np.sqrt(sigma**2 + INDEPENDENT_PART * variance)
        A = math.sqrt(1.0 - INDEPENDENT_PART) * modes / S
        one_plus_gram = np.eye(len(modes)) + A @ A.T
        z = _clipped(difference / S)
        amplitudes = np.linalg.solve(one_plus_gram, A @ z)
        # As column vectors this is z - A^T a.
        unexplained_z = z - amplitudes @ A
        square = float(np.sum(unexplained_z**2) + np.sum(amplitudes**2))
        # ln det C - ln det diag(sigma^2) is ln det(S^2 / sigma^2) + ln det(1 + A A^T).
        log_det_ratio = 2.0 * float(np.sum(np.log(S / sigma)))
        _sign, log_det = np.linalg.slogdet(one_plus_gram)
        log_det_ratio += float(log_det)
        return Residual(unexplained_z, square=square, log_det_ratio=log_det_ratio)

    def score(self, expected: Array, modes: Array | None = None) -> float:
        """Return the score of a training without fitted parameters; lower is better.

        ``expected`` are the means of the training over windows, (W,), and ``modes`` is
        the matrix F of a random training.
        """
        residual = self.residual(expected, modes)
        return residual.square + residual.log_det_ratio

    def verdict(self, candidate: Candidate) -> Verdict:
        """Judge whether the curve agrees with a training, and how well."""
        from scipy.special import chdtri

        if candidate.factor != 1.0:
            # Divide the curve by the factor, and judge it without one.
            unscaled = self.scaled(1.0 / candidate.factor)
            return unscaled.verdict(candidate._replace(factor=1.0))
        expected = self.windows.means(candidate.losses)
        residual = self.residual(expected, candidate.modes)
        window_count = len(residual.z)
        # The sum of squares of `window_count` normal z-scores exceeds `normal_limit`
        # with the probability REJECTED. But these z-scores have Student's t
        # distribution, whose variance is 1 / (1 - 2 / freedom). So the limit is
        # multiplied by this variance.
        normal_limit = chdtri(window_count, REJECTED)
        largest_square = normal_limit / (1.0 - 2.0 / self.freedom)
        # Errors that come with the curve leave out how far SGD strays from the exact
        # run. A random training needs no factor for this, because its covariance
        # already contains a scatter from training to training.
        if self.errors_of_curve and candidate.modes is None:
            largest_square *= STRAY
        largest_z = float(np.abs(residual.z).max())
        # Comparisons with NaN are false, so a training with NaN does not fit.
        fits = bool(largest_z <= self.limit and residual.square <= largest_square)
        score = residual.square + residual.log_det_ratio + 2.0 * candidate.fitted
        score += candidate.prior
        return Verdict(score, misfit=residual.square / window_count, fits=fits)

    def score_of_losses(self, losses: Array) -> float:
        """Score of the losses, (T,), of a training that is not random.

        Without randomness the score is χ²: the sum over windows of the squared
        difference between the means of the curve and of the training, in standard
        errors.
        """
        return self.score(self.windows.means(losses))

    def weights(self) -> Array:
        """Inverse squares of the standard errors, (W,), for least squares."""
        rounding = self.rounding * np.abs(self.means)
        # The tiny number avoids a division by zero.
        tiny = float(np.finfo(float).tiny)
        return np.asarray(1.0 / np.maximum((self.errors + rounding) ** 2, tiny))


def _clipped(z: Array) -> Array:
    """Return z-scores, limited to LARGEST_Z in size."""
    return np.clip(z, -LARGEST_Z, LARGEST_Z)
