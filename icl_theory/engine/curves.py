"""A loss curve from elsewhere compared with the exact loss of a run.

`compare_with_run` averages both curves over windows of steps and tests each window.
Standard errors are given with the curve, or come from runs of SGD with the batches of
the training that made it. The outcome, a `CurveComparison`, says at which step the
curves part, and whether a learning rate that is off by a factor explains it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import nctdtrinc

from icl_theory._validate import LARGEST, Array, number
from icl_theory.engine.comparison import FOUND, Check, Comparison, limit_of, z_score
from icl_theory.engine.display import Plottable
from icl_theory.engine.loss_curve import LossCurve, Run, Steps
from icl_theory.engine.progress import counted
from icl_theory.engine.sgd_runs import sgd_losses

Interval = tuple[int, int]
Index = NDArray[np.intp]
# The number of windows. More windows locate a difference better, fewer find smaller
# differences.
WINDOWS = 24
# The largest number of points of a window that are compared. Their mean then scatters
# little, and each point more would need an exact loss.
POINTS_PER_WINDOW = 256
# While the loss is above this part of the first loss, nothing has been learnt.
UNLEARNT = 0.9
# The factors of time that a comparison tries.
FACTORS = np.geomspace(1 / 16, 16, 401)


@dataclass(frozen=True)
class CurveComparison(Comparison, Plottable):
    """Outcome of `Trajectory.compare`: two curves, and a check for each window.

    Attributes
    ----------
    checks : tuple of Check
        Means of both curves over each window, and the standard error of the sampled
        one.
    note : str
        Where the standard errors come from, and which learning rates the comparison
        can tell from that of the run.
    windows : tuple of (int, int)
        First and last step of each window.
    t, population, losses, errors : ndarray, (T,)
        Steps, the exact loss, the loss that was given, times ``scale``, and the
        standard error of a single one.
    pace : float or None
        If the curves part, a factor c from 1/16 to 16 with which loss(t) agrees with
        exact(c t), as in a training with c times the learning rate. None if there is
        no such factor.
    """

    windows: tuple[Interval, ...]
    t: Steps
    population: Array
    losses: Array
    errors: Array
    pace: float | None

    @property
    def leaves(self) -> Interval | None:
        """First and last step of the first window in which the curves differ."""
        for window, check in zip(self.windows, self.checks, strict=True):
            if not check.passed:
                return window
        return None

    @property
    def remarks(self) -> str:
        """Where the curve leaves the exact one, and where standard errors come from."""
        failed = [check for check in self.checks if not check.passed]
        if not failed:
            largest = max(abs(check.z) for check in self.checks)
            limit = self.checks[0].limit
            return (
                f"stays on the exact curve: at most {largest:.1f} standard errors off, "
                f"limit {limit:.1f}; {self.note}"
            )
        first = failed[0]
        side = "above" if first.z > 0 else "below"
        distance = f"{abs(first.z):.1f} standard errors {side} it"
        if self.pace is not None:
            distance += (
                f", and agrees with it at {self.pace:.2g} times the steps: are "
                f"learning rate or gradients {self.pace:.2g} times those of the run?"
            )
        return f"leaves the exact curve at {first.name}: {distance}; {self.note}"


def compare_with_run(
    run: Run,
    curve: LossCurve,
    batch: int | None,
    scale: float | None,
    runs: int,
    seed: int,
) -> CurveComparison:
    """Compare a curve with a run, see `Trajectory.compare`."""
    factor = 1.0 if scale is None else number("scale", scale, maximum=LARGEST)
    compared = _compared_points(curve.t)
    windows = Windows.of(curve.t[compared])
    t = windows.t
    losses = factor * curve.losses[compared]
    # before the exact losses, which take long, because it may refuse
    of_sgd = None if batch is None else sgd_losses(run, t, batch, runs, seed)
    exact = np.array([run.at(step).loss for step in counted(t.tolist(), "steps")])
    scatter: GivenErrors | SgdScatter
    if of_sgd is None:
        scatter = GivenErrors(factor * np.asarray(curve.errors)[compared])
        note = "standard errors as given, taken as independent"
    else:
        scatter = SgdScatter(of_sgd - exact)
        note = f"standard errors from {runs} runs of SGD with batches of {batch}"
    limit = limit_of(1.0 / len(windows.starts), scatter.freedom)
    expected = windows.means(exact)
    means = windows.means(losses)
    errors = scatter.of_means(windows)
    paces = _paces(run, exact, windows, scatter, limit)
    if scale is None:
        # a curve that lacks the factor 1/2 may come from a training at another pace
        halved_pace = paces.fit(0.5 * means) if paces.fit(means) is None else None
        _refuse_doubled(losses, exact, scatter, run.loss[0], halved_pace)
    checks = []
    for i, window in enumerate(windows.intervals()):
        z = z_score(means[i] - expected[i], errors[i], expected[i])
        checks.append(
            Check(
                _title(window),
                float(expected[i]),
                float(means[i]),
                float(errors[i]),
                float(z),
                float(limit),
            )
        )
    pace = None
    if all(check.passed for check in checks):
        note = f"{paces.power()}; {note}"
    else:
        pace = paces.fit(means)
    return CurveComparison(
        tuple(checks),
        note,
        windows.intervals(),
        t,
        exact,
        losses,
        scatter.of_losses(windows),
        pace,
    )


def _title(window: Interval) -> str:
    first, last = window
    return f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"


def _groups(t: Steps) -> list[Index]:
    """Split the indices of steps into windows of equal length in ln(t + 1)."""
    window = np.floor(WINDOWS * np.log1p(t) / np.log1p(t[-1] + 1.0))
    return np.split(np.arange(len(t)), np.flatnonzero(np.diff(window)) + 1)


def _compared_points(t: Steps) -> Index:
    """Choose at most `POINTS_PER_WINDOW` points of each window, evenly spaced."""
    chosen = []
    for group in _groups(t):
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
        return cls(t, np.array([group[0] for group in _groups(t)]))

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

    def first(self, count: int) -> GivenErrors:
        """Return the scatter of the first losses."""
        return GivenErrors(self.errors[:count])


class SgdScatter(NamedTuple):
    """Deviations of the losses of runs of SGD from the exact ones, (R, T)."""

    deviations: Array

    @property
    def freedom(self) -> float:
        """Degrees of freedom: one a run, because the exact mean is known."""
        return len(self.deviations)

    def of_means(self, windows: Windows) -> Array:
        """Standard errors of the means over windows, from the scatter of the runs."""
        return _root_mean_square(windows.means(self.deviations))

    def of_losses(self, windows: Windows) -> Array:
        """Standard errors of the single losses, the same for all steps of a window.

        A few runs tell the error at one step only roughly. All steps of a window
        together tell it better.
        """
        error = _root_mean_square(self.deviations)
        return np.asarray(
            np.sqrt(np.repeat(windows.means(error**2), windows.counts)),
        )

    def at_pace(self, windows: Windows, moved: Array) -> Array:
        """Standard errors of the means if the curve runs through the steps ``moved``.

        A loss at the step ``moved`` then scatters as the exact run does at that step.
        """
        error = self.of_losses(windows)
        moved_error = np.interp(np.log1p(moved), np.log1p(windows.t), error)
        before = np.maximum(windows.sums(error**2), 1e-300)
        ratio = windows.sums(moved_error**2) / before
        return np.asarray(self.of_means(windows) * np.sqrt(ratio))

    def first(self, count: int) -> SgdScatter:
        """Return the scatter of the first losses."""
        return SgdScatter(self.deviations[:, :count])


def _root_mean_square(deviations: Array) -> Array:
    return np.asarray(np.sqrt(np.mean(deviations**2, axis=0)))


class _Paces(NamedTuple):
    """Means over windows of t of the exact losses at c t, for C factors c.

    ``expected`` and their standard errors are (C, W); errors are infinite beyond the
    end of the run.
    """

    factors: Array
    expected: Array
    errors: Array
    limit: float
    freedom: float

    def fit(self, means: Array) -> float | None:
        """Return the factor at which the means of a curve agree, or None."""
        is_within_run = np.isfinite(self.errors)
        z = np.abs(z_score(means - self.expected, self.errors, self.expected))
        z = np.minimum(z, 1e9)
        misfit = np.sum(z**2, axis=1) / np.maximum(is_within_run.sum(axis=1), 1)
        # with less than half of the windows any curve might agree
        usable = is_within_run.mean(axis=1) >= 0.5
        best = int(np.argmin(np.where(usable, misfit, math.inf)))
        # Student's z-scores have the mean square 1 / (1 - 2 / freedom); curves of
        # another form have a larger one.
        largest_misfit = 1.5 / (1.0 - 2.0 / self.freedom)
        if misfit[best] < largest_misfit and z[best].max() <= self.limit:
            return float(self.factors[best])
        return None

    def power(self) -> str:
        """Say how much a learning rate must differ to be noticed nine times in ten."""
        unchanged = len(self.factors) // 2
        # SciPy's noncentral t has no infinite degrees of freedom
        freedom = min(self.freedom, 1e6)
        z_noticed = float(nctdtrinc(freedom, 1.0 - FOUND, self.limit))
        noticed_difference = z_noticed * self.errors[unchanged]
        difference = np.abs(self.expected - self.expected[unchanged])
        difference = np.where(np.isfinite(self.errors), difference, 0.0)
        is_noticed = (difference > noticed_difference).any(axis=1)
        slower = self.factors[:unchanged][is_noticed[:unchanged]]
        faster = self.factors[unchanged:][is_noticed[unchanged:]]
        nearest = [*slower[-1:], *faster[:1]]
        if not nearest:
            return "it cannot tell learning rates apart"
        # fewer digits make 1 of 1.01
        words = " or ".join(f"{factor:.3g}" for factor in nearest)
        return f"a learning rate {words} times that of the run would be noticed"


def _paces(
    run: Run,
    exact: Array,
    windows: Windows,
    scatter: GivenErrors | SgdScatter,
    limit: float,
) -> _Paces:
    """Return the exact curve at all `FACTORS` of time."""
    moved = np.outer(FACTORS, windows.t)
    steps, first_index = np.unique(np.append(run.t, windows.t), return_index=True)
    losses = np.append(run.loss, exact)[first_index]
    expected = windows.means(np.interp(np.log1p(moved), np.log1p(steps), losses))
    errors = scatter.at_pace(windows, moved)
    is_beyond = np.outer(FACTORS, windows.last_steps()) > steps[-1]
    errors = np.where(is_beyond, math.inf, errors)
    return _Paces(FACTORS, expected, errors, limit, scatter.freedom)


def _refuse_doubled(
    losses: Array,
    exact: Array,
    scatter: GivenErrors | SgdScatter,
    first_loss: float,
    halved_pace: float | None,
) -> None:
    """Refuse losses that lack the factor 1/2.

    They are twice the exact ones while nothing is learnt, or half of them agree with
    the run in all windows at some pace.
    """
    is_unlearnt = exact > UNLEARNT * first_loss
    count = int(np.argmin(np.append(is_unlearnt, False)))
    if count == 0:
        return
    ratio = float(losses[:count].sum() / exact[:count].sum())
    plateau = Windows(np.arange(count), np.zeros(1, dtype=np.intp))
    error_of_mean = scatter.first(count).of_means(plateau)[0]
    doubt = 4.0 * float(error_of_mean / exact[:count].mean())
    is_doubled = abs(ratio - 2.0) < max(2.0 * doubt, 0.05) and abs(ratio - 1.0) > doubt
    agrees_halved = halved_pace is not None and ratio > 1.5
    if not (is_doubled or agrees_halved):
        return
    at_pace = ""
    if halved_pace is not None:
        at_pace = f" (they then agree at {halved_pace:.2g} times the steps)"
    raise ValueError(
        f"losses: {ratio:.2f} times the exact ones while nothing is learnt; these have "
        f"a factor 1/2: scale = 0.5 gives it to yours{at_pace}, and scale = 1 compares "
        "them as they are. Training on losses without it doubles the gradients as "
        "well: then compare with a run of twice the learning rate"
    )
