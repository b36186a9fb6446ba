"""Transitions: where the exponent d ln T/d ln x changes from one limit to another.

`transition_table` measures the points half-way between the limits, and puts the
predictions of the theory beside them. Boundaries that are defined in another way are
named by their definition.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from icl_theory._validate import Array, argument_error
from icl_theory.engine.progress import Progress
from icl_theory.results.columns import (
    dimension,
    dimensions,
    lines,
    not_applicable,
    steps_of,
    symbol,
    with_role,
)
from icl_theory.results.numbers import number
from icl_theory.results.reading import SLAB, slabs
from icl_theory.sweeps.exponents import local_exponent

if TYPE_CHECKING:
    import pandas as pd
    import xarray


class Transition(NamedTuple):
    """The value at which an exponent is half-way between two limits, and its error."""

    measured: float
    error: float


def limits_of(dataset: xarray.Dataset, over: str) -> tuple[float, float] | None:
    """Return the limits of the exponent at small and at large values, or None."""
    limits = dataset[over].attrs.get("limits")
    if limits is None or steps_of(dataset) is None:
        return None
    return float(limits[0]), float(limits[1])


def bars(measured: Any, error: Any) -> Array:
    """Return the lengths of error bars, (2, ...), below and above positive points.

    The error is one of the logarithm: as far below the point as above it on a
    logarithmic scale.
    """
    point = np.asarray(measured, dtype=np.float64)
    above = np.asarray(error, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        below = above / (1.0 + above / point)
    return np.array([below, above])


@Progress("looking for transitions")
def transition_table(dataset: xarray.Dataset, over: str | None = None) -> pd.DataFrame:
    """Return where the regimes change along a parameter, measured and predicted.

    The measured point is where the local exponent is half-way from its limit at small
    values of the parameter to its limit at large ones. For L in in-context regression
    at a fixed learning rate these limits are -2 and 0. The error of the point combines
    the difference between linear and cubic interpolation, the difference from the
    result with every other point of the grid, and the rounding of steps to integers. It
    is an error of the logarithm: the point lies between
    ``measured / (1 + error / measured)`` and ``measured + error``. Points within 2 % of
    each other are thinned out: where there are few steps, their number jumps, and a
    jump between near points would look like the transition.

    Parameters
    ----------
    dataset : xarray.Dataset
        From `sweep` or `load_sweep`.
    over : str, optional
        A parameter whose exponent has two limits; the first dimension unless given.

    Returns
    -------
    pandas.DataFrame
        Other parameters; ``measured`` and ``error`` (NaN if the exponent does not get
        there); ``predicted``, the half-way point of the theory, if there is one; and
        boundaries with other definitions, named by these. All are in units of the
        parameter.

    Examples
    --------
    >>> import icl_theory as icl, numpy as np
    >>> L = np.geomspace(0.03, 30.0, 61)
    >>> dataset = icl.sweep(L=L, delta=1.0, eta=0.01, epsilon=1e-4)
    >>> columns = ["measured", "error", "predicted", "exact onset of the tail"]
    >>> icl.transition_table(dataset)[columns].round(4).values.tolist()
    [[0.1429, 0.0002, 0.143, 0.1991]]
    """
    import pandas as pd

    over = dimension(dataset, over)
    limits = limits_of(dataset, over)
    steps = steps_of(dataset)
    if limits is None or steps is None:
        raise _no_limits(dataset, over)
    boundaries = with_role(dataset, "boundary")
    rows = []
    for point, line in _lines(dataset[[steps, "status", *boundaries]], over):
        x = line[over].values.astype(np.float64)
        measured = transition(line[steps].values, x, limits)
        row = {**point, **measured._asdict()}
        for name in boundaries:
            heading = _heading(line[name], over)
            row[heading] = predicted_transition(line, over, name)
        rows.append(row)
    return pd.DataFrame(rows)


def _no_limits(dataset: xarray.Dataset, over: str) -> ValueError:
    """Return the error for a parameter whose exponent has no two limits."""
    allowed = [name for name in dimensions(dataset) if limits_of(dataset, name)]
    wanted = "a swept parameter whose exponent has two limits"
    wanted += f" ({', '.join(allowed) or 'here none'})"
    wanted += f". {not_applicable(dataset)}".rstrip(". ")
    return argument_error("over", over, wanted)


def _lines(
    dataset: xarray.Dataset, over: str
) -> Iterator[tuple[dict[str, Any], xarray.Dataset]]:
    """Yield the lines along a parameter.

    The dataset is read part by part, unless a line is longer than a part.
    """
    if dataset.sizes[over] > SLAB:
        yield from lines(dataset, over)
        return
    with contextlib.closing(slabs(dataset, over)) as parts:
        for part in parts:
            yield from lines(part, over)


def _heading(boundary: xarray.DataArray, over: str) -> str:
    """Return "predicted" for a half-way point of the exponent, else the definition."""
    if over in boundary.attrs.get("half_way", ()):
        return "predicted"
    return str(boundary.attrs.get("definition") or boundary.name)


def transition(steps: Array, values: Array, limits: tuple[float, float]) -> Transition:
    """Find where the exponent of the steps is half-way from one limit to the other.

    The result is NaN, with the error NaN, if the exponent does not get there.
    """
    nowhere = Transition(math.nan, math.nan)
    order = np.argsort(values)
    with np.errstate(divide="ignore", invalid="ignore"):
        order = order[_thinned(np.log(values[order]))]
    x = values[order]
    T = steps[order]
    if len(x) < 2 or limits[0] == limits[1]:
        return nowhere
    passages = _passages(_progress(x, T, limits))
    candidates = [_refined(x, T, limits, i) for i in passages]
    # Where T is a few steps, one step more or less makes the exponent jump. The
    # transition is therefore the passage with the smallest relative error.
    return min(candidates, key=_relative_error, default=nowhere)


def _relative_error(candidate: Transition) -> float:
    return candidate.error / candidate.measured


def _thinned(x: Array, spacing: float = 0.02) -> list[int]:
    """Return the indices of increasing values that are at least ``spacing`` apart.

    Between near points a jump of the number of steps would be a steep slope.
    """
    kept = [0] if x.size else []
    for i in range(1, x.size):
        if x[i] - x[kept[-1]] >= spacing:
            kept.append(i)
    return kept


def _refined(
    values: Array, T: Array, limits: tuple[float, float], i: int
) -> Transition:
    """Return the transition between points i and i + 1, with its error."""
    x = np.log(values)
    progress = _progress(values, T, limits)
    linear = _crossing(x, progress, i)
    spline = _smooth(x, progress, linear)
    interpolation = abs(spline - linear)
    # The error of centred differences is quadratic in the spacing. With every other
    # point it is four times as large, and the two results differ by three times the
    # error.
    differences = []
    for every_other in (slice(0, None, 2), slice(1, None, 2)):
        nearest = _nearest_crossing(values[every_other], T[every_other], limits, linear)
        if nearest is not None:
            differences.append(abs(nearest - linear) / 3.0)
    width = float(x[i + 1] - x[i])
    # If neither half of the points has a crossing, the spacing bounds the error.
    discretisation = max(differences, default=width)
    rise = (progress[i + 1] - progress[i]) * abs(limits[1] - limits[0])
    # Rounding moves ln T by up to 0.5/T, the exponent by 0.5/T/width, and the crossing
    # by this over the slope of the exponent, which is rise/width. The width cancels.
    rounding = 0.5 / float(min(T[i], T[i + 1])) / rise
    # These are errors of the logarithm. The limit keeps exp() finite.
    error = min(interpolation + discretisation + rounding, 700.0)
    measured = math.exp(spline)
    return Transition(measured, measured * math.expm1(error))


def _nearest_crossing(
    values: Array, T: Array, limits: tuple[float, float], near: float
) -> float | None:
    """Return the logarithm of the half-way point nearest to another one, if any."""
    if len(values) <= 2:
        return None
    x = np.log(values)
    progress = _progress(values, T, limits)
    crossings = [_crossing(x, progress, i) for i in _passages(progress)]
    return min(crossings, key=lambda crossing: abs(crossing - near), default=None)


def _progress(values: Array, T: Array, limits: tuple[float, float]) -> Array:
    """Return the exponent on a scale from 0 at the first limit to 1 at the second."""
    first, second = limits
    exponent = local_exponent(T, values, 0)
    return np.asarray((exponent - first) / (second - first))


def _passages(progress: Array) -> list[int]:
    """Return the indices of values after which the exponent rises past half-way.

    Downward crossings are ignored: the initial loss is close to the target there.
    """
    with np.errstate(invalid="ignore"):
        rises = (progress[:-1] < 0.5) & (progress[1:] >= 0.5)
    return [int(i) for i in np.flatnonzero(rises)]


def _crossing(x: Array, progress: Array, i: int) -> float:
    """Return the half-way point between x[i] and x[i + 1] by linear interpolation."""
    share = (0.5 - progress[i]) / (progress[i + 1] - progress[i])
    return float(x[i] + share * (x[i + 1] - x[i]))


def _smooth(x: Array, progress: Array, near: float) -> float:
    """Return the half-way point of a cubic spline nearest to another estimate."""
    from scipy.interpolate import CubicSpline

    is_finite = np.isfinite(progress)
    if is_finite.sum() < 4:
        return near
    spline = CubicSpline(x[is_finite], progress[is_finite] - 0.5)
    roots = spline.roots(extrapolate=False)
    if not roots.size:
        return near
    return float(roots[np.argmin(np.abs(roots - near))])


def predicted_transition(line: xarray.Dataset, over: str, boundary: str) -> float:
    """Return where one line of a sweep crosses a boundary, or NaN.

    Beyond its points, the line and the boundary are continued by a power law.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        x = np.log(line[over].values.astype(np.float64))
        value = np.broadcast_to(line[line[boundary].attrs["of"]].values, x.shape)
        excess = np.log(value / line[boundary].values)
    order = np.argsort(x)
    x = x[order]
    excess = excess[order]
    if not np.isfinite([x, excess]).all() or len(x) < 2:
        return math.nan
    slopes = np.diff(excess) / np.diff(x)
    crossings = np.flatnonzero(excess[:-1] * excess[1:] <= 0)
    if not crossings.size and np.ptp(slopes) > 1e-6 * np.abs(slopes).max():
        # Without a power law, nothing can be extrapolated beyond the grid.
        return math.nan
    first = int(crossings[0]) if crossings.size else 0
    if not slopes[first]:
        return math.nan
    return math.exp(x[first] - excess[first] / slopes[first])


def transition_notes(
    dataset: xarray.Dataset, over: str | None = None
) -> tuple[str, ...]:
    """Return the transitions of a sweep, a sentence each; none if it has no limits."""
    over = dimension(dataset, over)
    table = transitions_of(dataset, over)
    return () if table is None else notes_of(table, dataset, over)


def transitions_of(
    dataset: xarray.Dataset, over: str, fewest: int = 4
) -> pd.DataFrame | None:
    """Return `transition_table`, or None without limits or with too few points."""
    if limits_of(dataset, over) is None or dataset.sizes[over] < fewest:
        return None
    return transition_table(dataset, over)


def notes_of(
    table: pd.DataFrame, dataset: xarray.Dataset, over: str
) -> tuple[str, ...]:
    """Return the rows of a table of transitions, a sentence each."""
    sentences = []
    fixed = [name for name in dimensions(dataset) if name != over]
    for row in table.to_dict("records"):
        place = ", ".join(
            f"{symbol(dataset, name)} = {number(row.pop(name))}" for name in fixed
        )
        sentence = _sentence(symbol(dataset, over), row)
        if place:
            sentences.append(f"{place}: {sentence}.")
        else:
            sentences.append(f"{sentence[0].upper()}{sentence[1:]}.")
    return tuple(sentences)


def _uncertainty(measured: float, error: float, small: float = 0.1) -> str:
    """Return an error in words: a small one as a difference, others as a factor."""
    if error <= small * measured:
        return f" ± {number(error, 1)}"
    # `transition` estimates the error of the logarithm, which is a factor of the value.
    return f", to within a factor of {number(1.0 + error / measured, 2)}"


def _sentence(name: str, row: dict[str, Any]) -> str:
    """Say where the transition and other boundaries lie, and empty the row."""
    measured = row.pop("measured")
    error = row.pop("error")
    predicted = row.pop("predicted", math.nan)
    words = f"no transition in this range of {name}"
    if not math.isnan(measured):
        words = f"measured half-way point {name} = {number(measured)}"
        words += _uncertainty(measured, error)
    if not math.isnan(predicted):
        words += f", predicted {number(predicted)}"
    # The boundaries with other definitions remain in the row.
    boundaries = [
        f"{number(x)} ({definition})"
        for definition, x in row.items()
        if not math.isnan(x)
    ]
    if boundaries:
        words += f"; other boundaries: {', '.join(boundaries)}"
    return words
