"""Windows of steps, and the standard errors of the means over them.

`Windows` groups the T steps of a loss curve into W windows. The standard errors of the
losses are given with the curve (`GivenErrors`), or come from the scatter of R runs of
SGD (`SgdScatter`). Either class also has the standard errors for curves at another
pace: at step t such a curve has the loss of the run at step c t, with a factor c.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.engine.loss_curve import Steps

Interval = tuple[int, int]
Index = NDArray[np.intp]
# The largest number of windows, apart from the window of step 0. More windows would
# locate a difference more exactly; with fewer windows smaller differences are found.
WINDOWS = 24
# The largest number of points of a window that are compared. The mean of this many
# points scatters little, and every further point would cost the computation of an exact
# loss.
POINTS_PER_WINDOW = 256
# The least variance by which a variance is divided, to avoid 0/0. It is near the
# smallest normal number of float64, 2e-308, and below any variance that matters.
TINY = 1e-300


def groups(t: Steps) -> list[Index]:
    """Split the indices of increasing steps into windows of equal length in ln(t + 1).

    Return the indices of each window. Step 0 is a window of its own. Windows without a
    step are left out.
    """
    # The number of the window of each step, from 0 to WINDOWS - 1. In the divisor one
    # is added to the last step, so that the last step does not get the number WINDOWS.
    window_numbers = np.floor(WINDOWS * np.log1p(t) / np.log1p(t[-1] + 1.0))
    # Step 0 is a window of its own: its loss tests the loss function, before any
    # update.
    window_numbers[t == 0] = -1.0
    # A window begins where the number changes.
    first_indices = np.flatnonzero(np.diff(window_numbers)) + 1
    return np.split(np.arange(len(t)), first_indices)


def compared_points(t: Steps) -> Index:
    """Return the indices of at most POINTS_PER_WINDOW steps of each window.

    They are evenly spaced among the indices of the window.
    """
    compared_indices = []
    for window_indices in groups(t):
        size = min(len(window_indices), POINTS_PER_WINDOW)
        positions = np.linspace(0, len(window_indices) - 1, size).astype(int)
        compared_indices.append(window_indices[np.unique(positions)])
    return np.concatenate(compared_indices)


class Windows(NamedTuple):
    """T steps in W consecutive windows.

    Attributes
    ----------
    t : ndarray of int64, (T,)
        The steps.
    starts : ndarray of int, (W,)
        The index of the first step of each window.
    """

    t: Steps
    starts: Index

    @classmethod
    def of(cls, t: Steps) -> Windows:
        """Return the steps ``t`` in the windows of `groups`."""
        return cls(t, np.array([group[0] for group in groups(t)]))

    @property
    def counts(self) -> Index:
        """Number of steps in each window, (W,)."""
        return np.diff(self.starts, append=len(self.t))

    def sums(self, values: Array) -> Array:
        """Sums over each window, (..., W), of values at the steps, (..., T)."""
        # `reduceat` sums from each start up to the next one, or to the end.
        return np.asarray(np.add.reduceat(values, self.starts, axis=-1))

    def means(self, values: Array) -> Array:
        """Means over each window, (..., W), of values at the steps, (..., T)."""
        return self.sums(values) / self.counts

    def last_steps(self) -> Steps:
        """Last step of each window, (W,)."""
        return self.t[self.starts + self.counts - 1]

    def intervals(self) -> tuple[Interval, ...]:
        """First and last step of each window."""
        firsts = self.t[self.starts].tolist()
        return tuple(zip(firsts, self.last_steps().tolist(), strict=True))


class GivenErrors(NamedTuple):
    """Standard errors of single losses, (T,), which are taken as independent."""

    errors: Array

    @property
    def freedom(self) -> float:
        """Degrees of freedom: infinite, because the given errors count as exact."""
        return math.inf

    def of_means(self, windows: Windows) -> Array:
        """Standard errors of the means over windows, (W,).

        The variance of a sum of independent losses is the sum of their variances.
        """
        return np.asarray(np.sqrt(windows.sums(self.errors**2)) / windows.counts)

    def of_losses(self, windows: Windows) -> Array:
        """Standard errors of the single losses, (T,)."""
        return self.errors

    def at_pace(self, windows: Windows, run_steps: Array) -> Array:
        """Standard errors of the means, (W,), which are the same at every pace.

        They were given with the curve and belong to its own steps, so the steps of the
        run, ``run_steps``, have no effect. `SgdScatter` uses them.
        """
        return self.of_means(windows)


class SgdScatter(NamedTuple):
    """The scatter of R runs of SGD.

    Attributes
    ----------
    deviations : ndarray, (R, T)
        The losses of each run minus the expected losses; `about_mean` also scales them.
    freedom : float
        The number of degrees of freedom of the standard errors.
    """

    deviations: Array
    freedom: float

    @classmethod
    def about(cls, losses: Array, exact: Array) -> SgdScatter:
        """Return the scatter of the losses of R runs, (R, T), about exact losses, (T,).

        There are R degrees of freedom, because no mean is estimated from the runs.
        """
        return cls(losses - exact, len(losses))

    @classmethod
    def about_mean(cls, losses: Array) -> SgdScatter:
        """Return the scatter of the losses of R runs, (R, T), about their own mean.

        Let s² be the sample variance of the runs, with R - 1 degrees of freedom.
        Another run differs from their mean with the variance s² (1 + 1/R). The
        deviations are scaled so that their mean square estimates this variance.
        """
        R = len(losses)
        # The mean square of the deviations is their sum of squares divided by R, but s²
        # is this sum divided by R - 1. So the variance s² (1 + 1/R) is the mean square
        # times R/(R - 1) (1 + 1/R) = (R + 1)/(R - 1).
        scale = math.sqrt((R + 1.0) / (R - 1.0))
        return cls(scale * (losses - losses.mean(axis=0)), R - 1)

    def of_means(self, windows: Windows) -> Array:
        """Standard errors of the means over windows, (W,).

        Each is the root mean square, over the runs, of the mean deviation of a run in
        the window. So the losses of a run at different steps need not be independent.
        """
        return root_mean_square(windows.means(self.deviations))

    def of_losses(self, windows: Windows) -> Array:
        """Standard errors of the single losses, (T,), equal for all steps of a window.

        From a few runs the error at one step is known only roughly. The mean square
        over all steps of a window is more accurate.
        """
        error = root_mean_square(self.deviations)
        window_variance = windows.means(error**2)
        return np.asarray(np.sqrt(np.repeat(window_variance, windows.counts)))

    def at_pace(self, windows: Windows, run_steps: Array) -> Array:
        """Standard errors of the means, (C, W), for curves at C other paces.

        At the T steps of the windows such a curve has the losses that the run has at
        the steps ``run_steps``, (C, T). Its losses scatter like the losses of the run
        at these steps. So the variance of a mean is multiplied by the ratio of two sums
        of variances over its window: at ``run_steps``, and at the steps of the window.
        """
        # The standard errors of single losses: (T,) at the steps of the windows, and
        # (C, T) at `run_steps`, by interpolation in ln(1 + t).
        error = self.of_losses(windows)
        run_error = np.interp(np.log1p(run_steps), np.log1p(windows.t), error)
        # Sums of variances over windows: (W,) and (C, W).
        variance_sum = np.maximum(windows.sums(error**2), TINY)
        run_variance_sum = windows.sums(run_error**2)
        ratio = run_variance_sum / variance_sum
        return np.asarray(self.of_means(windows) * np.sqrt(ratio))


def root_mean_square(deviations: Array) -> Array:
    """Root mean square, over R runs, of deviations at n steps or in n windows.

    The deviations are (R, n), and the result is (n,).
    """
    return np.asarray(np.sqrt(np.mean(deviations**2, axis=0)))
