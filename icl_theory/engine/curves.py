"""A loss curve from elsewhere beside that of a run: where the two part, and by how many standard errors."""

from __future__ import annotations

import csv
import math
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import nctdtrinc

from icl_theory._validate import (
    EXACT,
    LARGEST,
    Array,
    argument_error,
    dimensions,
    floats,
    is_masked,
    number,
    real_array,
)
from icl_theory.engine.comparison import FOUND, Check, Comparison, limit_of, z_score
from icl_theory.engine.display import Drawn
from icl_theory.engine.progress import counted
from icl_theory.engine.rules import Rule, rule_of
from icl_theory.engine.steps import UpdateMap
from icl_theory.files import checked_path

Steps = NDArray[np.int64]
Interval = tuple[int, int]
LARGEST_FILE = 64 * 10**6  # bytes of a CSV file: a million rows and more
# steps, losses, and their standard errors where they are known
Curve = tuple[Steps, Array, Array | None]
COLUMNS = {
    "step": ("step", "steps", "t"),
    "loss": ("loss", "value"),
    "error": ("error", "standard_error"),
}


class Run(Protocol):
    """What is needed of a `Trajectory`."""

    t: Steps
    loss: Array
    eta: float
    rule: str
    trained_by: Rule | None
    risk: Any
    family: Any

    def at(self, step: int) -> Any:
        """Return the state at a step."""


@dataclass(frozen=True)
class CurveComparison(Comparison, Drawn):
    """Outcome of `Trajectory.compare`: the two curves, and a check for each window of steps.

    Attributes
    ----------
    checks : tuple of Check
        Means of both curves over each window, and the standard error of the sampled
        one.
    note : str
        Where the standard errors come from, and which learning rates can be told from
        that of the run.
    windows : tuple of (int, int)
        First and last step of each window.
    t, population, losses, errors : ndarray, (T,)
        Steps, the exact loss, the loss that was given, times ``scale``, and the
        standard error of a single one.
    pace : float or None
        Where the curves part: a factor c from 1/16 to 16 with which loss(t) agrees with
        exact(c t), as that of a training with c times the learning rate does; None if
        there is no such factor.
    """

    windows: tuple[Interval, ...]
    t: Steps
    population: Array
    losses: Array
    errors: Array
    pace: float | None

    @property
    def leaves(self) -> Interval | None:
        """First and last step of the first window in which the curves differ; None where they agree."""
        return next(
            (
                each
                for each, check in zip(self.windows, self.checks, strict=True)
                if not check.passed
            ),
            None,
        )

    @property
    def remarks(self) -> str:
        """Where the curve leaves the exact one, and where the standard errors come from."""
        first = next((check for check in self.checks if not check.passed), None)
        if first is None:
            far = max(abs(check.z) for check in self.checks)
            limit = self.checks[0].limit
            return f"stays on the exact curve: at most {far:.1f} standard errors off, limit {limit:.1f}; {self.note}"
        away = f"{abs(first.z):.1f} standard errors {'above' if first.z > 0 else 'below'} it"
        if self.pace is not None:
            away += f", and agrees with it at {self.pace:.2g} times the steps: are learning rate or gradients"
            away += f" {self.pace:.2g} times those of the run?"
        return f"leaves the exact curve at {first.name}: {away}; {self.note}"


def beside(
    run: Run, curve: Curve, batch: int | None, scale: float | None, runs: int, seed: int
) -> CurveComparison:
    """Compare a curve with a run, see `Trajectory.compare`."""
    factor = 1.0 if scale is None else number("scale", scale, maximum=LARGEST)
    starts, kept = _windows(curve[0])
    t = curve[0][kept]
    losses = factor * curve[1][kept]
    sampled = None if batch is None else _sampled(run, t, batch, runs, seed)
    exact = np.array([run.at(step).loss for step in counted(t.tolist(), "steps")])
    if sampled is None:
        noise = factor * np.asarray(curve[2])[kept]
        freedom = math.inf
        note = "standard errors as given, taken as independent"
    else:
        noise = sampled - exact
        freedom = runs
        note = f"standard errors from {runs} runs of SGD with batches of {batch}"
    limit = limit_of(1.0 / len(starts), freedom)
    counts = np.diff(starts, append=len(t))
    single = _spread(noise, np.arange(len(t)))
    if (
        sampled is not None
    ):  # a few runs say it roughly, and those of a window together better
        single = np.sqrt(np.repeat(np.add.reduceat(single**2, starts) / counts, counts))
    windows = tuple(
        (int(t[at]), int(t[at + count - 1]))
        for at, count in zip(starts, counts, strict=True)
    )
    expected, means = (
        np.add.reduceat(each, starts) / counts for each in (exact, losses)
    )
    errors = _spread(noise, starts)
    faster = _sped_up(
        run, t, exact, starts, errors, None if sampled is None else single
    )
    paces = _Paces(*faster, limit, freedom)
    if scale is None:
        pace = paces.fitted(0.5 * means) if paces.fitted(means) is None else None
        _refuse_twice(losses, exact, noise, run.loss[0], pace)
    checks = tuple(
        Check(
            f"step {first:,}" if first == last else f"steps {first:,} to {last:,}",
            *map(float, (e, mean, sd, z_score(mean - e, sd, e), limit)),
        )
        for (first, last), e, mean, sd in zip(
            windows, expected, means, errors, strict=True
        )
    )
    if passed := all(check.passed for check in checks):
        note = f"{paces.told()}; {note}"
    pace = None if passed else paces.fitted(means)
    return CurveComparison(checks, note, windows, t, exact, losses, single, pace)


class _Paces(NamedTuple):
    """Exact losses at c t, averaged over windows of t, and their standard errors: (C,) factors, (C, W) twice."""

    factors: Array
    expected: Array
    errors: Array  # infinite beyond the end of the run
    limit: float
    freedom: float

    def fitted(self, means: Array) -> float | None:
        """Return the factor with which the means of a curve agree, half of the windows being within the run."""
        inside = np.isfinite(self.errors)
        z = np.minimum(
            np.abs(z_score(means - self.expected, self.errors, self.expected)), 1e9
        )
        misfit = np.sum(z**2, axis=1) / np.maximum(inside.sum(axis=1), 1)
        best = int(np.argmin(np.where(inside.mean(axis=1) >= 0.5, misfit, math.inf)))
        # Student's z-scores have the mean square 1 / (1 - 2 / freedom); curves of
        # another form have a larger one
        agrees = (
            misfit[best] < 1.5 / (1.0 - 2.0 / self.freedom)
            and z[best].max() <= self.limit
        )
        return float(self.factors[best]) if agrees else None

    def told(self) -> str:
        """Say by how much a learning rate must differ to be found nine times in ten."""
        middle = len(self.factors) // 2
        far = (
            float(nctdtrinc(min(self.freedom, 1e6), 1.0 - FOUND, self.limit))
            * self.errors[middle]
        )
        away = np.where(
            np.isfinite(self.errors), np.abs(self.expected - self.expected[middle]), 0.0
        )
        found = (away > far).any(axis=1)
        ends = [
            *self.factors[:middle][found[:middle]][-1:],
            *self.factors[middle:][found[middle:]][:1],
        ]
        if not ends:
            return "it cannot tell learning rates apart"
        said = (f"{end:.3g}" for end in ends)  # fewer digits make 1 of 1.01
        return f"a learning rate {' or '.join(said)} times that of the run would be noticed"


def _sped_up(
    run: Run,
    t: Steps,
    exact: Array,
    starts: NDArray[np.intp],
    errors: Array,
    single: Array | None,
) -> tuple[Array, Array, Array]:
    """Return factors of time, and the means and standard errors of windows of the exact curve at such speeds."""
    factors, (known, at) = (
        np.geomspace(1 / 16, 16, 401),
        np.unique(np.append(run.t, t), return_index=True),
    )
    place = np.log1p(np.outer(factors, t))
    counts = np.diff(starts, append=len(t))
    losses = np.interp(place, np.log1p(known), np.append(run.loss, exact)[at])
    expected = np.add.reduceat(losses, starts, axis=1) / counts
    if single is not None:  # a loss scatters as at the step where the exact run has it
        there = np.add.reduceat(
            np.interp(place, np.log1p(t), single) ** 2, starts, axis=1
        )
        errors = errors * np.sqrt(
            there / np.maximum(np.add.reduceat(single**2, starts), 1e-300)
        )
    beyond = np.outer(factors, t[starts + counts - 1]) > known[-1]
    return factors, expected, np.where(beyond, math.inf, errors)


def curve_of(run: Run, losses: Any, steps: Any, errors: Any) -> Curve:
    """Return a checked curve from numbers, a CSV file, or a function of a state of the run."""
    found = None
    if isinstance(losses, str | os.PathLike):
        if steps is not None:
            raise argument_error(
                "steps", steps, "left out: they are a column of the file"
            )
        steps, losses, found = _read(losses)
    elif callable(losses) and not isinstance(losses, type):
        steps = run.t if steps is None else _increasing(steps)
        losses, found = _evaluated(run, losses, steps)
    if losses is None or (numbers := floats(losses)) is None:
        raise argument_error(
            "losses",
            losses,
            "numbers without a mask, a CSV file or a function of a state",
        )
    values = np.atleast_1d(numbers)
    if values.ndim > 1 or not values.size:
        raise argument_error("losses", losses, "a row of at least one number")
    t = _increasing(np.arange(len(values)) if steps is None else steps)
    if values.shape != t.shape:
        raise ValueError(f"losses: {values.size} numbers for {t.size} steps")
    for index in np.flatnonzero(~(np.abs(values) <= LARGEST))[:1]:
        allowed = f"a number up to {LARGEST:g}; it is the loss at step {t[index]}"
        raise argument_error(f"losses[{index}]", values[index], allowed)
    if errors is not None:
        found = real_array("errors", errors, dimensions(errors), LARGEST)
    if found is not None and (
        found.shape not in ((), t.shape) or not (found > 0.0).all()
    ):
        # in a file, or the scatter of single prompts
        given = found.tolist() if errors is None else errors
        raise argument_error(
            "errors", given, "positive, one number or one for each loss"
        )
    return t, values, None if found is None else np.broadcast_to(found, t.shape)


def _evaluated(run: Run, function: Any, steps: Steps) -> tuple[list[Any], Array | None]:
    """Return what a function of a state gives at some steps, and the standard errors if it gives several losses."""
    losses_at = []
    for step in counted(steps.tolist(), "steps"):
        losses = np.ravel(function(run.at(step)))
        if is_masked(losses) or not losses.size:
            raise argument_error(
                "losses", losses, f"a loss, or losses without a mask, at step {step}"
            )
        losses_at.append(losses)
    means = [losses.mean() for losses in losses_at]
    if any(losses.size == 1 for losses in losses_at):
        return means, None
    return means, np.array(
        [losses.std(ddof=1) / math.sqrt(losses.size) for losses in losses_at]
    )


def _increasing(steps: Any) -> Steps:
    found = real_array("steps", steps, 1, EXACT)
    if not found.size:
        raise argument_error("steps", steps, "at least one")
    for index in np.flatnonzero((found < 0.0) | (found != np.floor(found)))[:1]:
        raise argument_error(f"steps[{index}]", found[index], "an integer >= 0")
    for index in np.flatnonzero(np.diff(found) <= 0.0)[:1] + 1:
        raise argument_error(
            f"steps[{index}]",
            found[index],
            f"more than {found[index - 1]:g}, the step before",
        )
    return found.astype(np.int64)


def _read(path: str | os.PathLike[str]) -> tuple[Any, Any, Any]:
    """Read the columns step, loss and, where there is one, error of a CSV file; others are passed over."""
    target = checked_path(path, "losses")
    status = os.stat(target)
    if not stat.S_ISREG(status.st_mode):  # a device or a pipe may have no end
        raise argument_error("losses", str(path), "a plain CSV file")
    if status.st_size > LARGEST_FILE:
        size = f"this one has {status.st_size / 1e6:,.0f} MB"
        raise argument_error(
            "losses",
            str(path),
            f"a CSV file of at most {LARGEST_FILE / 1e6:,.0f} MB; {size}",
        )
    try:
        with open(target, newline="", encoding="utf-8-sig") as file:
            return _columns(path, (row for row in csv.reader(file) if row))
    except (UnicodeDecodeError, csv.Error) as error:
        raise argument_error("losses", str(path), f"a CSV file ({error})") from None


def _columns(
    path: str | os.PathLike[str], rows: Iterator[list[str]]
) -> tuple[Any, Any, Any]:
    """Return the steps, losses and errors in the rows of a CSV file, of which the first has the names."""
    header = next(rows, [])
    names = [name.strip().lower() for name in header]
    place = {
        what: names.index(word)
        for what, words in COLUMNS.items()
        for word in words
        if word in names
    }
    if not {"step", "loss"} <= place.keys():
        first = ",".join(header)[:60]
        raise argument_error(
            "losses",
            str(path),
            f"a CSV file with the header step,loss (its first line is {first!r})",
        )
    read: dict[str, list[float]] = {what: [] for what in place}
    for line, row in enumerate(rows, 2):
        for what, index in place.items():
            try:
                read[what].append(float(row[index]))
            except (ValueError, IndexError):
                raise argument_error(
                    "losses",
                    str(path),
                    f"a CSV file with a number as {what} in row {line}",
                ) from None
    return (
        read["step"],
        read["loss"],
        np.array(read["error"]) if "error" in read else None,
    )


def _windows(
    t: Steps, number_of: int = 24, most: int = 256
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return where windows of equal length in ln(t + 1) begin, and the indices of the points that are compared.

    More windows say better where curves part; fewer see smaller differences. A window
    keeps at most ``most`` of its points, evenly spaced: by then their scatter is small,
    and each needs an exact loss.
    """
    group = np.floor(number_of * np.log1p(t) / np.log1p(t[-1] + 1.0))
    parts = np.split(np.arange(len(t)), np.flatnonzero(np.diff(group)) + 1)
    kept = [
        part[np.unique(np.linspace(0, len(part) - 1, min(len(part), most)).astype(int))]
        for part in parts
    ]
    return np.cumsum([0, *map(len, kept[:-1])]), np.concatenate(kept)


def _sampled(
    run: Run, t: Steps, batch: int, runs: int, seed: int, most: int = 10**6
) -> Array:
    """Return the batch losses along runs of SGD, (runs, T); ``most`` steps of one take minutes."""
    source: Any = run.risk if run.family is None else run.family
    if t[-1] > most:
        raise argument_error(
            "steps", int(t[-1]), f"at most {most:,} with batch; give errors instead"
        )
    try:
        if not hasattr(source, "sampled"):
            raise argument_error("run", repr(run), "of a risk that can be sampled")
        trainers = [
            source.sampled(batch, int(each))
            for each in np.random.SeedSequence(seed).generate_state(runs)
        ]
    except ValueError as error:
        said = (
            str(error)
            if str(error).startswith("batch = ")
            else f"batch = {batch}: {error}"
        )
        raise ValueError(
            f"{said}; give errors, standard errors of the losses, instead"
        ) from None
    # the name alone would give the rule its default settings
    rule = run.trained_by or rule_of(
        run.rule if run.family is None else run.family.update()
    )
    index = {step: place for place, step in enumerate(t.tolist())}
    found = np.empty((runs, len(t)))
    for row, trainer in zip(found, counted(trainers, "runs of SGD"), strict=True):
        descent = UpdateMap(trainer, run.eta, rule)
        with np.errstate(over="ignore", invalid="ignore"):
            for point in descent.iterates(descent.start()):
                if point.step in index:
                    row[index[point.step]] = point.loss
                if point.step == t[-1]:
                    break
    if not np.isfinite(found).all():
        raise argument_error(
            "batch",
            batch,
            f"larger: of {runs} runs of SGD with such batches some diverge",
        )
    return found


def _spread(noise: Array, starts: NDArray[np.intp]) -> Array:
    """Standard errors of means over windows, from deviations of runs, (R, T), or errors of single losses, (T,)."""
    counts = np.diff(starts, append=noise.shape[-1])
    if noise.ndim == 1:
        return np.asarray(np.sqrt(np.add.reduceat(noise**2, starts)) / counts)
    return np.asarray(
        np.sqrt(np.mean((np.add.reduceat(noise, starts, axis=1) / counts) ** 2, axis=0))
    )


def _refuse_twice(
    losses: Array, exact: Array, noise: Array, first: float, pace: float | None
) -> None:
    """Refuse losses that are twice the exact ones while nothing is learnt, or in all windows at some pace."""
    early = slice(0, int(np.argmin(np.append(exact > 0.9 * first, False))))
    if not early.stop:
        return
    ratio = float(losses[early].sum() / exact[early].sum())
    doubt = 4.0 * float(
        _spread(noise[..., early], np.zeros(1, dtype=np.intp))[0] / exact[early].mean()
    )
    alike = abs(ratio - 2.0) < max(2.0 * doubt, 0.05) and abs(ratio - 1.0) > doubt
    if alike or (pace is not None and ratio > 1.5):
        again = (
            "" if pace is None else f" (they then agree at {pace:.2g} times the steps)"
        )
        raise ValueError(
            f"losses: {ratio:.2f} times the exact ones while nothing is learnt; these have a factor 1/2: "
            f"scale = 0.5 gives it to yours{again}, and scale = 1 compares them as they are. Training on losses "
            "without it doubles the gradients as well: then compare with a run of twice the learning rate"
        )
