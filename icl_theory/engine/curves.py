"""A loss curve from elsewhere compared with the exact loss of a run.

`compare_with_run` averages the given curve and the exact one over windows of steps, and
tests each window. Standard errors are given with the curve, or come from runs of SGD
with the batch size of the training that made the curve. If the noise of these batches
moves the mean of the runs away from the exact curve, the given curve is compared with
this mean instead. The outcome, a `CurveComparison`, says at which step the curves part,
and which other trainings explain the curve (`engine.explanations`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import nctdtrinc

from icl_theory._validate import LARGEST, Array, number
from icl_theory.engine.comparison import (
    DETECTION_PROBABILITY,
    Check,
    Comparison,
    limit_of,
    z_score,
)
from icl_theory.engine.display import Plottable
from icl_theory.engine.evidence import LARGEST_Z, Evidence
from icl_theory.engine.explanations import Explanation, Explanations, explain
from icl_theory.engine.loss_curve import LossCurve, Run, Steps, rounding_of
from icl_theory.engine.progress import counted
from icl_theory.engine.sgd_runs import rule_of_run, sgd_losses
from icl_theory.engine.windows import (
    GivenErrors,
    Interval,
    SgdScatter,
    Windows,
    compared_points,
)

# The factors c of time that a comparison tries: the given loss at step t is compared
# with the exact loss at step c t. The factors are evenly spaced in the logarithm, so
# that the factor in the middle, with the index UNCHANGED, is 1 and neighbouring factors
# differ by 1.4 %.
FACTORS = np.geomspace(1 / 16, 16, 401)
UNCHANGED = len(FACTORS) // 2
# Losses are smooth if the sum of the squares of their successive differences is below
# SMOOTH times the sum that is expected of independent losses. The ratio of the two sums
# is about 1 for independent losses, and near 0 for losses of the same prompts. There
# must be at least FEWEST_PAIRS pairs of successive steps, because with fewer pairs the
# ratio may be small by chance.
SMOOTH = 0.25
FEWEST_PAIRS = 8
# The largest number of explanations whose sentences the remarks quote. Further ones are
# only named, which keeps the remarks short.
QUOTED_EXPLANATIONS = 3
# A curve agrees with the run at another pace if the mean square of its z-scores is
# below this many times the value that is expected if the two differ by chance alone.
# The number is a cautious choice: curves of another form have a larger mean square.
LARGEST_MISFIT = 1.5
# A pace is not considered if the run covers less than this part of the windows, because
# with few windows any curve might agree.
LEAST_COVERED = 0.5
# SciPy's noncentral t distribution does not take infinite degrees of freedom. With this
# many the distribution agrees with the normal one to about six digits.
MOST_FREEDOM = 1e6


@dataclass(frozen=True)
class CurveComparison(Comparison, Plottable):
    """Outcome of `Trajectory.compare`: two curves, and a check for each window.

    Attributes
    ----------
    checks : tuple of Check
        Means of both curves over each window, and the standard error of the mean of the
        given curve.
    note : str
        Where the standard errors come from. If the curves agree, the note also says how
        much a learning rate must differ from the run's for the comparison to notice it.
    windows : tuple of (int, int)
        First and last step of each window.
    t, population, losses, errors : ndarray, (T,)
        The steps, the exact losses, the given losses times ``scale``, and the standard
        errors of single given losses.
    sgd : ndarray, (T,), or None
        The mean loss of the runs of SGD, if this mean itself leaves the exact curve. It
        is then the reference of all checks.
    pace : float or None
        If the curves part, a factor c from 1/16 to 16 with which loss(t) agrees with
        exact(c t), as in a training with c times the learning rate. None if there is
        no such factor, or if the curves agree.
    explanations : tuple of Explanation
        If the curves part, the trainings with which the curve agrees, best first. Each
        has a ``name``, a ``sentence``, ``parameters``, a ``misfit`` and ``losses``.
    untried : tuple of str
        The names of explanations that were not tried, because they take too long.
    """

    windows: tuple[Interval, ...]
    t: Steps
    population: Array
    losses: Array
    errors: Array
    pace: float | None
    explanations: tuple[Explanation, ...] = ()
    untried: tuple[str, ...] = field(default=(), repr=False)
    sgd: Array | None = field(default=None, repr=False)

    @property
    def reference(self) -> Array:
        """The loss with which the curve is compared, (T,), usually the exact one."""
        return self.population if self.sgd is None else self.sgd

    @property
    def reference_title(self) -> str:
        """Title of the column of the reference."""
        return super().reference_title if self.sgd is None else "mean of SGD"

    @property
    def leaves(self) -> Interval | None:
        """First and last step of the first window in which the curves differ."""
        for window, check in zip(self.windows, self.checks, strict=True):
            if not check.passed:
                return window
        return None

    @property
    def remarks(self) -> str:
        """Where the curve leaves the reference, why, and where errors come from."""
        failed = [check for check in self.checks if not check.passed]
        if not failed:
            largest = max(abs(check.z) for check in self.checks)
            limit = self.checks[0].limit
            return (
                f"stays on {self._reference_curve}: at most {largest:.1f} standard "
                f"errors off, limit {limit:.1f}; {self.note}"
            )
        first = failed[0]
        side = "above" if first.z > 0 else "below"
        size = abs(first.z)
        # If the standard errors are zero, the difference is in units of rounding. It is
        # then huge, and would have too many digits before the point.
        shown_size = f"{size:.1f}" if size < 1e6 else f"{size:.1g}"
        distance = f"{shown_size} standard errors {side} it"
        if self.pace is not None:
            distance += f", and agrees with it at {self.pace:.2g} times the steps"
        return (
            f"leaves {self._reference_curve} at {first.name}: {distance}; "
            f"{self._diagnosis()}; {self.note}"
        )

    @property
    def _reference_curve(self) -> str:
        """The curve with which the given one is compared, in words."""
        return "the exact curve" if self.sgd is None else "the mean curve of SGD"

    def _diagnosis(self) -> str:
        """Say in words which explanations fit, and which were not tried."""
        if self.explanations:
            words = self._fitting_words()
        else:
            words = self._unexplained_words()
        if self.untried:
            words += f"; not tried, because it takes long: {', '.join(self.untried)}"
        return words

    def _fitting_words(self) -> str:
        """Say in words which explanations fit; there is at least one."""
        quoted = self.explanations[:QUOTED_EXPLANATIONS]
        sentences = [explanation.sentence for explanation in quoted]
        if len(self.explanations) == 1:
            return f"explained if {sentences[0]}"
        listed = "; or if ".join(sentences)
        further = self.explanations[QUOTED_EXPLANATIONS:]
        if further:
            listed += f"; or by {', '.join(item.name for item in further)}"
        return (
            f"explained if {listed}; the curve cannot tell these "
            f"{len(self.explanations)} explanations apart, the first fits best"
        )

    def _unexplained_words(self) -> str:
        """Say how an unexplained curve differs at its beginning and at its end."""
        observations = []
        start = self.checks[0]
        end = self.checks[-1]
        has_step_0 = self.windows[0] == (0, 0)
        if has_step_0 and start.passed:
            observations.append(
                "step 0 agrees, so the loss, the prompts and the start may be the "
                "same, and the training is not"
            )
        elif has_step_0:
            observations.append(
                "step 0 differs before any update, so the loss, the prompts or the "
                "start are not the same"
            )
        if not end.passed and end.population != 0.0:
            excess = end.sampled / end.population - 1.0
            side = "above" if excess > 0.0 else "below"
            observations.append(f"the end is {_percent(abs(excess))} {side}")
        words = "none of the changes that were tried explains the curve"
        if observations:
            words += f": {', and '.join(observations)}"
        return words


class _Curves(NamedTuple):
    """The given curve and the exact one, at the T compared steps.

    Attributes
    ----------
    windows : Windows
        The steps, in windows.
    exact, losses : ndarray, (T,)
        The exact losses and the given ones.
    rounding : float
        The relative rounding error of the given losses.
    shift : ndarray, (T,), or float
        The shift of the mean losses by the noise of batches. The exact losses plus the
        shift are the reference.
    """

    windows: Windows
    exact: Array
    losses: Array
    rounding: float
    shift: Array | float = 0.0

    def checks(self, scatter: GivenErrors | SgdScatter) -> tuple[Check, ...]:
        """Compare the given curve with the reference in each window.

        ``scatter`` has the standard errors of the given losses.
        """
        windows = self.windows
        # By chance, some window exceeds this limit in at most one of a thousand
        # comparisons.
        limit = limit_of(share=1.0 / len(windows.starts), freedom=scatter.freedom)
        expected = windows.means(self.exact + self.shift)
        means = windows.means(self.losses)
        errors = scatter.of_means(windows)
        # `z_score` adds rounding to the standard errors. If these are zero, the
        # difference is in units of rounding and may overflow.
        with np.errstate(over="ignore"):
            z = z_score(means - expected, errors, expected, self.rounding)
        checks = []
        for i, window in enumerate(windows.intervals()):
            check = Check(
                name=_title(window),
                population=float(expected[i]),
                sampled=float(means[i]),
                standard_error=float(errors[i]),
                z=float(z[i]),
                limit=limit,
            )
            checks.append(check)
        return tuple(checks)

    def shifted(self, shift: Array) -> _Curves:
        """Return the same curves, with the exact losses plus ``shift`` as reference."""
        return self._replace(shift=shift)


def compare_with_run(
    run: Run,
    curve: LossCurve,
    batch: int | None,
    scale: float | None,
    runs: int,
    seed: int,
) -> CurveComparison:
    """Compare a curve with a run, as `Trajectory.compare` describes.

    ``batch`` may be None only if the curve has standard errors.
    """
    loss_factor = 1.0 if scale is None else number("scale", scale, maximum=LARGEST)
    compared_indices = compared_points(curve.t)
    windows = Windows.of(curve.t[compared_indices])
    t = windows.t
    losses_of_sgd = None
    if curve.errors is None:
        assert batch is not None
        # The runs of SGD may raise an error, so they come before the exact losses,
        # which take long.
        losses_of_sgd = sgd_losses(run, t, batch, runs, seed)
    exact = np.array([run.at(step).loss for step in counted(t.tolist(), "steps")])
    curves = _Curves(
        windows=windows,
        exact=exact,
        losses=loss_factor * curve.losses[compared_indices],
        rounding=rounding_of(curve.losses),
    )
    if curve.errors is not None:
        single_errors = np.asarray(curve.errors)[compared_indices]
        given_errors = GivenErrors(loss_factor * single_errors)
        note = "standard errors as given, taken as independent"
        checks = curves.checks(given_errors)
        if batch is None or all(check.passed for check in checks):
            return _compared(run, curves, given_errors, note)
        # The given errors say how far a batch loss scatters, but not how far the
        # parameters of SGD stray from the exact run. Runs of SGD show both.
        losses_of_sgd = sgd_losses(run, t, batch, runs, seed)
    assert losses_of_sgd is not None
    note = f"standard errors from {runs} runs of SGD with batches of {batch}"
    return _compared_by_sgd(run, curves, losses_of_sgd, note)


def _compared_by_sgd(
    run: Run, curves: _Curves, losses_of_sgd: Array, note: str
) -> CurveComparison:
    """Compare the given curve, with standard errors from R runs of SGD.

    ``losses_of_sgd``, (R, T), are the losses of these runs. If their mean leaves the
    exact curve, the mean is the reference. ``note`` says where the standard errors come
    from.
    """
    largest_shift = _largest_shift(curves, losses_of_sgd)
    if largest_shift is None:
        scatter = SgdScatter.about(losses_of_sgd, curves.exact)
        return _compared(run, curves, scatter, note)
    curves = curves.shifted(losses_of_sgd.mean(axis=0) - curves.exact)
    note += f", whose mean itself leaves the exact curve, by {largest_shift}"
    return _compared(run, curves, SgdScatter.about_mean(losses_of_sgd), note)


def _largest_shift(curves: _Curves, losses_of_sgd: Array) -> str | None:
    """Say how far the mean of R runs of SGD, (R, T), is from the exact curve.

    The result names the window with the largest z-score. It is None if the mean agrees
    with the exact curve. The mean and the exact curve may differ because the parameters
    of SGD scatter: this changes the mean loss by about half the curvature times the
    variance of the parameters.
    """
    windows = curves.windows
    R = len(losses_of_sgd)
    means = windows.means(losses_of_sgd)
    expected = windows.means(curves.exact)
    errors = means.std(axis=0, ddof=1) / math.sqrt(R)
    z = z_score(means.mean(axis=0) - expected, errors, expected, curves.rounding)
    farthest = int(np.argmax(np.abs(z)))
    # By chance, some window exceeds this limit in at most one of a thousand
    # comparisons.
    if abs(z[farthest]) <= limit_of(share=1.0 / len(z), freedom=R - 1.0):
        return None
    excess = means[:, farthest].mean() / expected[farthest] - 1.0
    return f"{_percent(abs(excess))} at {_title(windows.intervals()[farthest])}"


def _compared(
    run: Run, curves: _Curves, scatter: GivenErrors | SgdScatter, note: str
) -> CurveComparison:
    """Compare the given curve with its reference.

    If they differ in a window, trainings that may explain the curve are followed.
    ``scatter`` has the standard errors of the given losses, and ``note`` says where
    they come from.
    """
    windows = curves.windows
    checks = curves.checks(scatter)
    # All windows have the same limit.
    limit = checks[0].limit
    means = windows.means(curves.losses)
    shift = windows.means(np.broadcast_to(curves.shift, curves.exact.shape))
    paces = _paces(run, curves, scatter, limit)
    pace = None
    explanations = Explanations(fitting=(), untried=())
    if all(check.passed for check in checks):
        note = f"{paces.power()}; {note}"
    else:
        # `paces` has exact losses, without the shift of the reference.
        pace = paces.fit(means - shift)
        evidence = _evidence(curves, scatter, means, shift, limit)
        explanations = explain(run, rule_of_run(run), evidence)
    return CurveComparison(
        checks=checks,
        note=note,
        windows=windows.intervals(),
        t=windows.t,
        population=curves.exact,
        losses=curves.losses,
        errors=scatter.of_losses(windows),
        pace=pace,
        explanations=explanations.fitting,
        untried=explanations.untried,
        # The shift is an array only if the mean of SGD leaves the exact curve.
        sgd=None if np.isscalar(curves.shift) else curves.exact + curves.shift,
    )


def _evidence(
    curves: _Curves,
    scatter: GivenErrors | SgdScatter,
    means: Array,
    shift: Array,
    limit: float,
) -> Evidence:
    """Return the evidence by which explanations of a curve are judged.

    ``means`` and ``shift``, (W,), are means over windows: of the given losses, and of
    the shift of `_Curves`. ``limit`` is the largest z-score that a window may have.
    """
    windows = curves.windows
    return Evidence(
        windows=windows,
        exact=curves.exact,
        means=means,
        errors=scatter.of_means(windows),
        limit=limit,
        freedom=scatter.freedom,
        rounding=curves.rounding,
        errors_of_curve=isinstance(scatter, GivenErrors),
        is_smooth=_is_smooth(curves, scatter.of_losses(windows)),
        shift=shift,
    )


def _is_smooth(curves: _Curves, errors: Array) -> bool:
    """Whether successive losses differ by far less than independent losses would.

    ``errors``, (T,), are the standard errors of the single losses.
    """
    is_successive = np.diff(curves.windows.t) == 1
    if np.count_nonzero(is_successive) < FEWEST_PAIRS:
        return False
    # The reference falls from step to step. It is subtracted, so that only noise
    # remains.
    differences = np.diff(curves.losses - curves.exact - curves.shift)[is_successive]
    # The variance of a difference of independent losses is the sum of their variances.
    variances = (errors[1:] ** 2 + errors[:-1] ** 2)[is_successive]
    return bool(np.sum(differences**2) < SMOOTH * np.sum(variances))


def _title(window: Interval) -> str:
    """Return the steps of a window in words."""
    first, last = window
    return f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"


def _percent(share: float) -> str:
    """Return a share in per cent, with two digits; from 10 % on as a whole number."""
    percent = 100.0 * share
    return f"{percent:.0f} %" if percent >= 10.0 else f"{percent:.2g} %"


class _Paces(NamedTuple):
    """The exact curve at C paces: at pace c, step t has the exact loss of step c t.

    Attributes
    ----------
    factors : ndarray, (C,)
        The factors c, which increase. The one in the middle is 1.
    expected : ndarray, (C, W)
        The exact losses at the steps c t, averaged over the windows of t.
    errors : ndarray, (C, W)
        Standard errors of the difference from a curve at this pace; infinite in windows
        whose last step c t is beyond the end of the run.
    limit, freedom, rounding : float
        The limit of a z-score, the degrees of freedom of the standard errors, and the
        relative rounding error of the losses.
    """

    factors: Array
    expected: Array
    errors: Array
    limit: float
    freedom: float
    rounding: float

    def fit(self, means: Array) -> float | None:
        """Return the factor at which the run agrees best with a curve, or None.

        ``means`` are the means over windows of the curve, (W,). The result is None if
        the run agrees with them at no factor.
        """
        is_within_run = np.isfinite(self.errors)
        difference = means - self.expected
        # A window beyond the run has an infinite error, so its z-score is 0. The bound
        # LARGEST_Z keeps the squares of z-scores finite.
        z = np.abs(z_score(difference, self.errors, self.expected, self.rounding))
        z = np.minimum(z, LARGEST_Z)
        # The mean square of z over the windows within the run, (C,). The bound 1 avoids
        # 0/0 if there is no such window.
        misfit = np.sum(z**2, axis=1) / np.maximum(is_within_run.sum(axis=1), 1)
        is_covered = is_within_run.mean(axis=1) >= LEAST_COVERED
        best = int(np.argmin(np.where(is_covered, misfit, math.inf)))
        # By chance alone z has Student's t distribution, whose variance is
        # 1 / (1 - 2 / freedom).
        largest_misfit = LARGEST_MISFIT / (1.0 - 2.0 / self.freedom)
        if misfit[best] < largest_misfit and z[best].max() <= self.limit:
            return float(self.factors[best])
        return None

    def is_noticed(self) -> NDArray[np.bool_]:
        """For each pace, whether a curve at this pace fails nine times in ten, (C,).

        A curve fails the comparison if its mean differs from the run's mean by more
        than the limit in at least one window.
        """
        # A difference of `z_noticed` standard errors exceeds the limit with the
        # DETECTION_PROBABILITY: its z-score has a noncentral t distribution.
        freedom = min(self.freedom, MOST_FREEDOM)
        z_noticed = float(nctdtrinc(freedom, 1.0 - DETECTION_PROBABILITY, self.limit))
        # Means and errors at the pace of the run, (W,); at all paces they are (C, W).
        run_means = self.expected[UNCHANGED]
        run_errors = self.errors[UNCHANGED]
        rounding = self.rounding * np.abs(run_means)
        noticed_difference = z_noticed * (run_errors + rounding)
        difference = np.abs(self.expected - run_means)
        # Windows beyond the end of the run, with infinite errors, do not count.
        difference = np.where(np.isfinite(self.errors), difference, 0.0)
        return np.asarray((difference > noticed_difference).any(axis=1))

    def power(self) -> str:
        """Say how much a learning rate must differ to be noticed nine times in ten."""
        is_noticed = self.is_noticed()
        slower = self.factors[:UNCHANGED][is_noticed[:UNCHANGED]]
        faster = self.factors[UNCHANGED:][is_noticed[UNCHANGED:]]
        words = []
        # The factors increase, so the ones next to 1 are the last of the slower and the
        # first of the faster ones.
        if slower.size:
            words.append(f"{_percent(1.0 - slower[-1])} lower")
        if faster.size:
            words.append(f"{_percent(faster[0] - 1.0)} higher")
        if not words:
            return "the comparison cannot tell learning rates apart"
        return f"the comparison would notice a learning rate {' or '.join(words)}"


def _paces(
    run: Run, curves: _Curves, scatter: GivenErrors | SgdScatter, limit: float
) -> _Paces:
    """Return the exact curve at all `FACTORS` of time."""
    windows = curves.windows
    # The steps c t of the run, (C, T): one row for each factor c.
    run_steps = np.outer(FACTORS, windows.t)
    # The exact loss is known at the saved steps of the run and at the compared steps; a
    # step that is in both arrays is taken once. Between these steps the loss is
    # interpolated in ln(1 + t).
    steps, first_index = np.unique(np.append(run.t, windows.t), return_index=True)
    losses = np.append(run.loss, curves.exact)[first_index]
    expected = windows.means(np.interp(np.log1p(run_steps), np.log1p(steps), losses))
    # The shape is (W,) instead of (C, W) if the errors are the same at all paces.
    errors = scatter.at_pace(windows, run_steps)
    is_beyond = np.outer(FACTORS, windows.last_steps()) > steps[-1]
    errors = np.where(is_beyond, math.inf, errors)
    return _Paces(
        factors=FACTORS,
        expected=expected,
        errors=errors,
        limit=limit,
        freedom=scatter.freedom,
        rounding=curves.rounding,
    )
