"""Where the exponent d ln T/d ln x changes from one limit to another: measured and predicted.

The measured point is half-way between the limits. A boundary with another definition is
named by its definition.
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
    """The value at which an exponent is half-way between two limits, with an estimate of the error."""

    measured: float
    error: float


def limits_of(dataset: xarray.Dataset, over: str) -> tuple[float, float] | None:
    """Return the limits of the exponent at small and at large values of a parameter, or None."""
    given = dataset[over].attrs.get("limits")
    return (
        None
        if given is None or steps_of(dataset) is None
        else (float(given[0]), float(given[1]))
    )


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
    """Return the points at which the regimes change along a parameter, measured and predicted.

    The measured point is where the local exponent is half-way from its limit at small
    values of the parameter to its limit at large ones: -2 and 0 for L in in-context
    regression at a fixed learning rate. Its error combines the difference between
    linear and cubic interpolation, the difference from every other point of the grid,
    and the rounding of steps to integers. It is an error of the logarithm: the point
    lies between ``measured / (1 + error / measured)`` and ``measured + error``. Points
    within 2 % of each other are thinned out: the number of steps jumps where single
    steps are large, and a jump between near points would look like the transition.

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
    >>> found = icl.sweep(L=np.geomspace(0.03, 30.0, 61), delta=1.0, eta=0.01, epsilon=1e-4)
    >>> icl.transition_table(found).round(4).to_dict("records")  # doctest: +ELLIPSIS
    [{'measured': 0.1429, 'error': 0.0002, 'predicted': 0.143, 'exact onset of the tail': 0.1991, ...}]
    """
    import pandas as pd

    over = dimension(dataset, over)
    limits = limits_of(dataset, over)
    steps = steps_of(dataset)
    if limits is None or steps is None:
        known = (
            ", ".join(name for name in dimensions(dataset) if limits_of(dataset, name))
            or "here none"
        )
        reason = f". {not_applicable(dataset)}".rstrip(". ") if limits is None else ""
        raise argument_error(
            "over",
            over,
            f"a swept parameter whose exponent has two limits ({known}){reason}",
        )
    boundaries = with_role(dataset, "boundary")
    rows = []
    for point, line in _lines(dataset[[steps, "status", *boundaries]], over):
        x = line[over].values.astype(np.float64)
        found = transition(line[steps].values, x, limits)
        predictions = {
            _heading(line[name], over): predicted_transition(line, over, name)
            for name in boundaries
        }
        rows.append({**point, **found._asdict(), **predictions})
    return pd.DataFrame(rows)


def _lines(
    dataset: xarray.Dataset, over: str
) -> Iterator[tuple[dict[str, Any], xarray.Dataset]]:
    """Yield the lines along a parameter, read part by part unless one line is more than a part."""
    whole = dataset.sizes[over] > SLAB
    with (
        contextlib.nullcontext([dataset])
        if whole
        else contextlib.closing(slabs(dataset, over)) as parts
    ):
        yield from (found for part in parts for found in lines(part, over))


def _heading(boundary: xarray.DataArray, over: str) -> str:
    """Return the heading of a boundary: "predicted" if it is the half-way point of the same exponent."""
    alike = over in boundary.attrs.get("half_way", ())
    return (
        "predicted" if alike else str(boundary.attrs.get("definition") or boundary.name)
    )


def transition(steps: Array, values: Array, limits: tuple[float, float]) -> Transition:
    """Find where the exponent is half-way from one limit to the other, from steps at values of a parameter."""
    order = np.argsort(values)
    with np.errstate(divide="ignore", invalid="ignore"):
        order = order[_apart(np.log(values[order]))]
    x = values[order]
    count = steps[order]
    passages = (
        _passages(_progress(x, count, limits))
        if len(x) > 1 and limits[0] != limits[1]
        else []
    )
    candidates = [_refined(x, count, limits, i) for i in passages]
    # the exponent also jumps where single steps are large: the transition is the best
    # resolved passage
    return min(
        candidates,
        key=lambda found: found.error / found.measured,
        default=Transition(math.nan, math.nan),
    )


def _apart(x: Array, spacing: float = 0.02) -> list[int]:
    """Return indices of increasing values at least ``spacing`` apart: a jump is only blurred between far points."""
    kept = [0] if x.size else []
    for i in range(1, x.size):
        if x[i] - x[kept[-1]] >= spacing:
            kept.append(i)
    return kept


def _refined(
    values: Array, count: Array, limits: tuple[float, float], i: int
) -> Transition:
    x = np.log(values)
    progress = _progress(values, count, limits)
    linear = _crossing(x, progress, i)
    spline = _smooth(x, progress, linear)
    # the error of centred differences is quadratic in the spacing: four times as large
    # on every other point
    spread = []
    for half in (slice(0, None, 2), slice(1, None, 2)):
        wide = (
            _progress(values[half], count[half], limits)
            if len(x[half]) > 2
            else np.zeros(0)
        )
        places = [_crossing(x[half], wide, j) for j in _passages(wide)]
        spread += [min(abs(place - linear) for place in places) / 3.0] if places else []
    width = x[i + 1] - x[i]
    rise = (progress[i + 1] - progress[i]) * abs(limits[1] - limits[0])
    rounding = 0.5 / float(min(count[i], count[i + 1])) / rise
    error = abs(spline - linear) + max(spread, default=float(width)) + rounding
    return Transition(
        math.exp(spline), math.exp(spline) * math.expm1(min(error, 700.0))
    )


def _progress(values: Array, count: Array, limits: tuple[float, float]) -> Array:
    """Return the exponent on a scale from 0 at the first limit to 1 at the second."""
    return np.asarray(
        (local_exponent(count, values, 0) - limits[0]) / (limits[1] - limits[0])
    )


def _passages(progress: Array) -> list[int]:
    """Return the indices of values after which the exponent rises past half-way.

    Downward crossings are ignored: the initial loss is close to the target there.
    """
    with np.errstate(invalid="ignore"):
        return [
            int(i)
            for i in np.flatnonzero((progress[:-1] < 0.5) & (progress[1:] >= 0.5))
        ]


def _crossing(x: Array, progress: Array, i: int) -> float:
    return float(
        x[i] + (0.5 - progress[i]) / (progress[i + 1] - progress[i]) * (x[i + 1] - x[i])
    )


def _smooth(x: Array, progress: Array, near: float) -> float:
    """Return the half-way point of a cubic spline nearest to another estimate."""
    from scipy.interpolate import CubicSpline

    good = np.isfinite(progress)
    if good.sum() < 4:
        return near
    roots = CubicSpline(x[good], progress[good] - 0.5).roots(extrapolate=False)
    return float(roots[np.argmin(np.abs(roots - near))]) if roots.size else near


def predicted_transition(line: xarray.Dataset, over: str, boundary: str) -> float:
    """Return the value of a parameter at which one line of a sweep crosses a boundary, or NaN.

    Beyond the points of the line the boundary is continued by a power law.
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
    sign = np.flatnonzero(excess[:-1] * excess[1:] <= 0)
    first = int(sign[0]) if sign.size else 0
    if not sign.size and np.ptp(slopes) > 1e-6 * np.abs(slopes).max():
        return math.nan  # no power law: it cannot be extrapolated beyond the grid
    return (
        math.exp(x[first] - excess[first] / slopes[first])
        if slopes[first]
        else math.nan
    )


def transition_notes(
    dataset: xarray.Dataset, over: str | None = None
) -> tuple[str, ...]:
    """Return the transitions of a sweep, a sentence each, for below its table; none where theory does not apply."""
    table = transitions_of(dataset, over := dimension(dataset, over))
    return () if table is None else notes_of(table, dataset, over)


def transitions_of(
    dataset: xarray.Dataset, over: str, fewest: int = 4
) -> pd.DataFrame | None:
    """Return `transition_table`, or None without limits or with fewer points than show a change."""
    if limits_of(dataset, over) is None or dataset.sizes[over] < fewest:
        return None
    return transition_table(dataset, over)


def notes_of(
    table: pd.DataFrame, dataset: xarray.Dataset, over: str
) -> tuple[str, ...]:
    """Return the rows of a table of transitions, a sentence each."""
    sentences = []
    for row in table.to_dict("records"):
        others = [name for name in dimensions(dataset) if name != over]
        place = ", ".join(
            f"{symbol(dataset, name)} = {number(row.pop(name))}" for name in others
        )
        found = _sentence(symbol(dataset, over), row)
        sentences.append(
            f"{place}: {found}." if place else found[0].upper() + found[1:] + "."
        )
    return tuple(sentences)


def _uncertainty(measured: float, error: float, small: float = 0.1) -> str:
    """Return an error in words: one that is not small is a factor, since the point is positive."""
    if error <= small * measured:
        return f" ± {number(error, 1)}"
    # transition() adds up errors of the logarithm and returns what they add to the
    # value
    return f", to within a factor of {number(1.0 + error / measured, 2)}"


def _sentence(name: str, row: dict[str, Any]) -> str:
    measured = row.pop("measured")
    error = row.pop("error")
    predicted = row.pop("predicted", math.nan)
    words = f"no transition in this range of {name}"
    if not math.isnan(measured):
        words = f"measured half-way point {name} = {number(measured)}{_uncertainty(measured, error)}"
    if not math.isnan(predicted):
        words += f", predicted {number(predicted)}"
    elsewhere = ", ".join(
        f"{number(x)} ({definition})"
        for definition, x in row.items()
        if not math.isnan(x)
    )
    return f"{words}; other boundaries: {elsewhere}" if elsewhere else words
