"""Windows of steps, and the standard errors of the means over them.

`Windows` groups the steps of a loss curve. `GivenErrors` and `SgdScatter` are the two
sources of standard errors: numbers that come with the curve, and runs of SGD.
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
# The number of windows. More windows locate a difference better, fewer find smaller
# differences.
WINDOWS = 24
# The largest number of points of a window that are compared. Their mean then scatters
# little, and each point more would need an exact loss.
POINTS_PER_WINDOW = 256


def groups(t: Steps) -> list[Index]:
    """Split the indices of steps into windows of equal length in ln(t + 1)."""
    window = np.floor(WINDOWS * np.log1p(t) / np.log1p(t[-1] + 1.0))
    # Step 0 is alone: its loss tests the loss itself, before any update.
    window[t == 0] = -1.0
    return np.split(np.arange(len(t)), np.flatnonzero(np.diff(window)) + 1)


def compared_points(t: Steps) -> Index:
    """Choose at most `POINTS_PER_WINDOW` points of each window, evenly spaced."""
    chosen = []
    for group in groups(t):
        size = min(len(group), POINTS_PER_WINDOW)
        positions = np.linspace(0, len(group) - 1, size).astype(int)
        chosen.append(group[np.unique(positions)])
    return np.concatenate(chosen)


class Windows(NamedTuple):
    """Steps in consecutive windows; ``starts`` are the indices at which these begin."""

    t: Steps
    starts: Index

    @classmethod
    def of(cls, t: Steps) -> Windows:
        """Return steps in windows of equal length in ln(t + 1)."""
        return cls(t, np.array([group[0] for group in groups(t)]))

    @property
    def counts(self) -> Index:
        """Number of steps in each window."""
        return np.diff(self.starts, append=len(self.t))

    def sums(self, values: Array) -> Array:
        """Sums over each window, (..., W), of values at the steps, (..., T)."""
        return np.asarray(np.add.reduceat(values, self.starts, axis=-1))

    def means(self, values: Array) -> Array:
        """Means over each window, (..., W), of values at the steps, (..., T)."""
        return self.sums(values) / self.counts

    def last_steps(self) -> Steps:
        """Last step of each window."""
        return self.t[self.starts + self.counts - 1]

    def intervals(self) -> tuple[Interval, ...]:
        """First and last step of each window."""
        firsts = self.t[self.starts].tolist()
        return tuple(zip(firsts, self.last_steps().tolist(), strict=True))


class GivenErrors(NamedTuple):
    """Standard errors of the single losses, (T,), taken as independent."""

    errors: Array

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the estimates."""
        return math.inf

    def of_means(self, windows: Windows) -> Array:
        """Standard errors of the means over windows."""
        return np.asarray(np.sqrt(windows.sums(self.errors**2)) / windows.counts)

    def of_losses(self, windows: Windows) -> Array:
        """Standard errors of the single losses."""
        return self.errors

    def at_pace(self, windows: Windows, moved: Array) -> Array:
        """Standard errors of the means if the curve runs through other steps."""
        return self.of_means(windows)


class SgdScatter(NamedTuple):
    """Deviations of the losses of runs of SGD from the expected ones, (R, T).

    ``freedom`` is the number of degrees of freedom.
    """

    deviations: Array
    freedom: float

    @classmethod
    def about(cls, losses: Array, exact: Array) -> SgdScatter:
        """Return the scatter of R runs, (R, T), about exact losses, (T,).

        There is a degree of freedom for each run, because the mean is known.
        """
        return cls(losses - exact, len(losses))

    @classmethod
    def about_mean(cls, losses: Array) -> SgdScatter:
        """Return the scatter of R runs, (R, T), about their own mean.

        Another run differs from this mean with the variance s² (1 + 1/R), and s² has
        R - 1 degrees of freedom.
        """
        R = len(losses)
        # The mean square of the deviations divides by R, and s² by R - 1. So the factor
        # is (1 + 1/R) R/(R - 1).
        wider = math.sqrt((R + 1.0) / (R - 1.0))
        return cls(wider * (losses - losses.mean(axis=0)), R - 1)

    def of_means(self, windows: Windows) -> Array:
        """Standard errors of the means over windows, from the scatter of the runs."""
        return root_mean_square(windows.means(self.deviations))

    def of_losses(self, windows: Windows) -> Array:
        """Standard errors of the single losses, the same for all steps of a window.

        A few runs tell the error at one step only roughly. All steps of a window
        together tell it better.
        """
        error = root_mean_square(self.deviations)
        return np.asarray(
            np.sqrt(np.repeat(windows.means(error**2), windows.counts)),
        )

    def at_pace(self, windows: Windows, moved: Array) -> Array:
        """Standard errors of the means if the curve runs through the steps ``moved``.

        A loss at the step ``moved`` then scatters as the exact run does at that step.
        """
        error = self.of_losses(windows)
        moved_error = np.interp(np.log1p(moved), np.log1p(windows.t), error)
        # The tiny number avoids 0/0.
        before = np.maximum(windows.sums(error**2), 1e-300)
        ratio = windows.sums(moved_error**2) / before
        return np.asarray(self.of_means(windows) * np.sqrt(ratio))


def root_mean_square(deviations: Array) -> Array:
    """Root mean square over R runs of deviations, (R, T); the result is (T,)."""
    return np.asarray(np.sqrt(np.mean(deviations**2, axis=0)))
