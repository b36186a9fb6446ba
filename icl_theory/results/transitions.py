"""Transitions: where the exponent d ln T/d ln x changes from one limit to another.

T is the number of steps to the target, and x a swept parameter. `transition_table`
measures the points half-way between the limits, and puts the predictions of the theory
beside them. It also has a column for each other boundary between regimes, whose heading
is the definition of the boundary.
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


# Larger errors of a logarithm are replaced by this value. At 709.8, exp() overflows.
LARGEST_LOG_ERROR = 700.0
# Points of a grid whose logarithms differ by less are thinned out. T is an integer, and
# between near points a jump of T by one is a steep slope. A smaller value would mistake
# such jumps for transitions also at larger T; a larger one would find a transition in a
# fine grid less exactly.
SPACING = 0.02


class Transition(NamedTuple):
    """The value at which an exponent is half-way between two limits, and its error."""

    measured: float
    error: float


def limits_of(dataset: xarray.Dataset, over: str) -> tuple[float, float] | None:
    """Return the limits of d ln T/d ln x at small and at large values of x = ``over``.

    The result is None if there are none, or if the dataset has no steps T.
    """
    limits = dataset[over].attrs.get("limits")
    if limits is None or steps_of(dataset) is None:
        return None
    return float(limits[0]), float(limits[1])


def bars(measured: Any, error: Any) -> Array:
    """Return the lengths of error bars, (2, ...), below and above positive points.

    A bar reaches up to measured + error. On a logarithmic scale its lower half is as
    long as its upper half.
    """
    point = np.asarray(measured, dtype=np.float64)
    above = np.asarray(error, dtype=np.float64)
    # A point that was not measured is NaN, and its bar then is NaN, too.
    with np.errstate(invalid="ignore"):
        # The lower end is point / (1 + above/point), so the part of the bar below the
        # point has the length
        # point - point / (1 + above/point) = above / (1 + above/point).
        below = above / (1.0 + above / point)
    return np.array([below, above])


@Progress("looking for transitions")
def transition_table(dataset: xarray.Dataset, over: str | None = None) -> pd.DataFrame:
    """Return where the regimes change along a parameter, measured and predicted.

    The measured point is where the local exponent d ln T/d ln x, of the number of steps
    T and the parameter x, is half-way from its limit at small x to its limit at large
    x. For L in in-context regression at a fixed learning rate these limits are -2 and
    0. The error of the point combines the difference between linear and cubic
    interpolation, the difference from the result with every other point of the grid,
    and the rounding of steps to integers. It is an error of the logarithm: the point
    lies between ``measured / (1 + error / measured)`` and ``measured + error``. Points
    within 2 % of each other are thinned out: a small number of steps jumps by one
    between near points, and such a jump would look like the transition.

    Parameters
    ----------
    dataset : xarray.Dataset
        From `sweep` or `load_sweep`.
    over : str, optional
        A parameter whose exponent has two limits; the first dimension unless given.

    Returns
    -------
    pandas.DataFrame
        A row for each combination of the other parameters. The columns are these
        parameters; ``measured`` and ``error`` (NaN if the exponent does not reach the
        half-way point); ``predicted``, the half-way point of the theory, if there is
        one; and other boundaries, each named by its definition. Points, errors and
        boundaries are in units of the parameter ``over``.

    Raises
    ------
    ValueError
        ``over`` is not a dimension of the dataset, or its exponent does not have two
        limits.

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
    # Without its status, the dataset would not count as the dataset of a sweep.
    quantities = dataset[[steps, "status", *boundaries]]
    # ``fixed_values`` are the values of the other parameters on a line.
    for fixed_values, line in _lines(quantities, over):
        x = line[over].values.astype(np.float64)
        half_way_point = transition(line[steps].values, x, limits)
        row = {**fixed_values, **half_way_point._asdict()}
        for name in boundaries:
            heading = _heading(line[name], over)
            row[heading] = predicted_transition(line, over, name)
        rows.append(row)
    return pd.DataFrame(rows)


def _no_limits(dataset: xarray.Dataset, over: str) -> ValueError:
    """Return the error for a parameter whose exponent does not have two limits."""
    names = [name for name in dimensions(dataset) if limits_of(dataset, name)]
    allowed = "a swept parameter whose exponent has two limits"
    allowed += f" ({', '.join(names) or 'here none'})"
    # rstrip() removes the full stop at the end of the reason. If the reason is empty,
    # it removes the full stop and the space after it.
    allowed += f". {not_applicable(dataset)}".rstrip(". ")
    return argument_error("over", over, allowed)


def _lines(
    dataset: xarray.Dataset, over: str
) -> Iterator[tuple[dict[str, Any], xarray.Dataset]]:
    """Yield each line of a dataset along a parameter, as `columns.lines` does.

    A line is yielded as a pair: the values of all other parameters by name, and the
    part of the dataset with these values. The dataset is read part by part, unless a
    line is longer than a part.
    """
    # If a line is longer than SLAB, a part would contain only a piece of it.
    if dataset.sizes[over] > SLAB:
        yield from lines(dataset, over)
        return
    # The display of progress ends when the generator is closed.
    with contextlib.closing(slabs(dataset, over)) as parts:
        for part in parts:
            yield from lines(part, over)


def _heading(boundary: xarray.DataArray, over: str) -> str:
    """Return the heading of the column of a boundary.

    It is "predicted" for a half-way point of the exponent along ``over``. Any other
    boundary is named by its definition.
    """
    if over in boundary.attrs.get("half_way", ()):
        return "predicted"
    return str(boundary.attrs.get("definition") or boundary.name)


def transition(steps: Array, values: Array, limits: tuple[float, float]) -> Transition:
    """Find where the exponent of the steps is half-way from one limit to the other.

    ``steps`` are the numbers of steps at the ``values`` of the parameter, and
    ``limits`` the limits of the exponent at small and at large values. Measured point
    and error are both NaN if the exponent does not reach the half-way point.
    """
    no_transition = Transition(math.nan, math.nan)
    order = np.argsort(values)
    # A value that is not positive has no finite logarithm, and so no finite exponent.
    with np.errstate(divide="ignore", invalid="ignore"):
        chosen = order[_thinned(np.log(values[order]))]
    x = values[chosen]
    T = steps[chosen]
    if len(x) < 2 or limits[0] == limits[1]:
        return no_transition
    passages = _passages(_scaled_exponent(x, T, limits))
    candidates = [_transition_at(x, T, limits, i) for i in passages]
    # If T is only a few steps, one step more or less makes the exponent jump past the
    # half-way point. Such a candidate has a large error, so take the one with the
    # smallest error.
    return min(candidates, key=_relative_error, default=no_transition)


def _relative_error(candidate: Transition) -> float:
    """Return the error of a transition as a share of its value."""
    return candidate.error / candidate.measured


def _thinned(log_x: Array, spacing: float = SPACING) -> list[int]:
    """Return indices of increasing logarithms that are ``spacing`` or more apart.

    The first is always chosen, and then each that is far enough from the last chosen
    one. `SPACING` says why nearer points are left out.
    """
    chosen = [0] if log_x.size else []
    for i in range(1, log_x.size):
        if log_x[i] - log_x[chosen[-1]] >= spacing:
            chosen.append(i)
    return chosen


def _transition_at(
    values: Array, T: Array, limits: tuple[float, float], i: int
) -> Transition:
    """Return the transition between points i and i + 1, with its error.

    The points are sorted by ``values``, and ``T`` has their numbers of steps.
    """
    log_x = np.log(values)
    scaled_exponent = _scaled_exponent(values, T, limits)
    linear = _linear_crossing(log_x, scaled_exponent, i)
    spline = _spline_crossing(log_x, scaled_exponent, linear)
    interpolation_error = abs(spline - linear)
    # The error of centred differences is quadratic in the spacing. With only every
    # other point it is four times as large. So the two results differ by three times
    # the error of the result with all points.
    discretisation_errors = []
    for every_other in (slice(0, None, 2), slice(1, None, 2)):
        nearest = _nearest_crossing(values[every_other], T[every_other], limits, linear)
        if nearest is not None:
            discretisation_errors.append(abs(nearest - linear) / 3.0)
    width = float(log_x[i + 1] - log_x[i])
    # If neither half of the points has a crossing, the distance between the points i
    # and i + 1 is taken as the error.
    discretisation_error = max(discretisation_errors, default=width)
    # The change of d ln T/d ln x from point i to point i + 1. The two limits of the
    # scaled exponent are 1 apart.
    rise = (scaled_exponent[i + 1] - scaled_exponent[i]) * abs(limits[1] - limits[0])
    # The rounding of T to an integer moves ln T by up to 0.5/T, and d ln T/d ln x by
    # 0.5/T/width. The crossing moves by this change of d ln T/d ln x, divided by its
    # slope, rise/width. The width cancels.
    rounding_error = 0.5 / float(min(T[i], T[i + 1])) / rise
    # All three errors are errors of ln x.
    log_error = interpolation_error + discretisation_error + rounding_error
    log_error = min(log_error, LARGEST_LOG_ERROR)
    measured = math.exp(spline)
    # measured + error = measured * exp(log_error)
    return Transition(measured, measured * math.expm1(log_error))


def _nearest_crossing(
    values: Array, T: Array, limits: tuple[float, float], near: float
) -> float | None:
    """Return the logarithm of the half-way point that is nearest to ``near``.

    ``near`` is a logarithm, too. The result is None if there is no half-way point.
    """
    # Two points have a single slope, which crosses nothing.
    if len(values) <= 2:
        return None
    log_x = np.log(values)
    scaled_exponent = _scaled_exponent(values, T, limits)
    passages = _passages(scaled_exponent)
    crossings = [_linear_crossing(log_x, scaled_exponent, i) for i in passages]
    return min(crossings, key=lambda crossing: abs(crossing - near), default=None)


def _scaled_exponent(values: Array, T: Array, limits: tuple[float, float]) -> Array:
    """Return the exponent on a scale from 0 at the first limit to 1 at the second.

    This scaled exponent is 1/2 at the half-way point.
    """
    first, second = limits
    # The slope of ln T against ln x along the only axis of T, by centred differences.
    exponent = local_exponent(T, values, 0)
    return np.asarray((exponent - first) / (second - first))


def _passages(scaled_exponent: Array) -> list[int]:
    """Return each i such that the scaled exponent rises past 1/2 between i and i + 1.

    Downward crossings are ignored: they occur where the initial loss is close to the
    target.
    """
    # The exponent is NaN beside a missing number of steps, and no comparison with NaN
    # is true.
    with np.errstate(invalid="ignore"):
        rises = (scaled_exponent[:-1] < 0.5) & (scaled_exponent[1:] >= 0.5)
    return [int(i) for i in np.flatnonzero(rises)]


def _linear_crossing(log_x: Array, scaled_exponent: Array, i: int) -> float:
    """Return the ln x at which the scaled exponent is 1/2 between points i and i + 1.

    The interpolation is linear in ln x.
    """
    share = (0.5 - scaled_exponent[i]) / (scaled_exponent[i + 1] - scaled_exponent[i])
    return float(log_x[i] + share * (log_x[i + 1] - log_x[i]))


def _spline_crossing(log_x: Array, scaled_exponent: Array, near: float) -> float:
    """Return the ln x nearest to ``near`` at which a spline is 1/2.

    The spline, cubic in ln x, goes through the finite values of the scaled exponent.
    The result is ``near`` itself if the spline is nowhere 1/2, or if there are fewer
    than the four points that a cubic needs.
    """
    from scipy.interpolate import CubicSpline

    is_finite = np.isfinite(scaled_exponent)
    if is_finite.sum() < 4:
        return near
    spline = CubicSpline(log_x[is_finite], scaled_exponent[is_finite] - 0.5)
    roots = spline.roots(extrapolate=False)
    if not roots.size:
        return near
    return float(roots[np.argmin(np.abs(roots - near))])


def predicted_transition(line: xarray.Dataset, over: str, boundary: str) -> float:
    """Return the value of ``over`` at which a line of a sweep crosses a boundary.

    A boundary is a value of one parameter, which its attribute ``of`` names, and is a
    function of the other parameters. Between two points of the line, the ratio of the
    parameter to the boundary is taken to be a power law in ``over``. If the ratio is
    one power law all along the line, this law is also used beyond the points. The
    result is NaN if the line does not cross the boundary.
    """
    bounded = line[boundary].attrs["of"]
    # Zeros and missing values make the result NaN below.
    with np.errstate(divide="ignore", invalid="ignore"):
        log_x = np.log(line[over].values.astype(np.float64))
        # The parameter may be constant along the line.
        parameter = np.broadcast_to(line[bounded].values, log_x.shape)
        log_ratio = np.log(parameter / line[boundary].values)
    order = np.argsort(log_x)
    log_x = log_x[order]
    log_ratio = log_ratio[order]
    if not np.isfinite([log_x, log_ratio]).all() or len(log_x) < 2:
        return math.nan
    slopes = np.diff(log_ratio) / np.diff(log_x)
    # The line crosses the boundary where the logarithm of the ratio changes its sign.
    crossings = np.flatnonzero(log_ratio[:-1] * log_ratio[1:] <= 0)
    if crossings.size:
        i = int(crossings[0])
    else:
        # The slopes of a power law are equal up to rounding, for which this tolerance
        # is generous.
        tolerance = 1e-6 * np.abs(slopes).max()
        if np.ptp(slopes) > tolerance:
            return math.nan
        i = 0
    # A constant ratio crosses nothing.
    if not slopes[i]:
        return math.nan
    # The value of x at which the power law through point i,
    # log_ratio[i] + slopes[i] (ln x - log_x[i]), is zero.
    return math.exp(log_x[i] - log_ratio[i] / slopes[i])


def transition_notes(
    dataset: xarray.Dataset, over: str | None = None
) -> tuple[str, ...]:
    """Return a sentence for each row of `transition_table`.

    There is no sentence if the exponent has no limits, or if there are fewer than four
    values of the parameter.
    """
    over = dimension(dataset, over)
    table = transitions_of(dataset, over)
    return () if table is None else notes_of(table, dataset, over)


def transitions_of(
    dataset: xarray.Dataset, over: str, fewest: int = 4
) -> pd.DataFrame | None:
    """Return `transition_table` of a sweep, if there is one.

    The result is None if the exponent has no limits, or if there are fewer than
    ``fewest`` values of the parameter: the estimate of the error needs a cubic through
    the points.
    """
    if limits_of(dataset, over) is None or dataset.sizes[over] < fewest:
        return None
    return transition_table(dataset, over)


def notes_of(
    table: pd.DataFrame, dataset: xarray.Dataset, over: str
) -> tuple[str, ...]:
    """Return a sentence for each row of a table of transitions."""
    sentences = []
    other_parameters = [name for name in dimensions(dataset) if name != over]
    for row in table.to_dict("records"):
        condition = ", ".join(
            f"{symbol(dataset, name)} = {number(row[name])}"
            for name in other_parameters
        )
        transitions = {
            heading: x for heading, x in row.items() if heading not in other_parameters
        }
        sentence = _sentence(symbol(dataset, over), transitions)
        if condition:
            sentences.append(f"{condition}: {sentence}.")
        else:
            sentences.append(f"{sentence[0].upper()}{sentence[1:]}.")
    return tuple(sentences)


def _uncertainty(measured: float, error: float, small: float = 0.1) -> str:
    """Return an error in words, to be appended to the measured value.

    An error up to the share ``small`` of the measured value is written as a difference,
    and a larger one as a factor.
    """
    if error <= small * measured:
        return f" ± {number(error, 1)}"
    # An error of the logarithm, as `transition` estimates it, is a factor of the value:
    # the upper end, measured + error, divided by measured.
    return f", to within a factor of {number(1.0 + error / measured, 2)}"


def _sentence(name: str, row: dict[str, Any]) -> str:
    """Say where the transition and other boundaries lie.

    ``name`` is the symbol of the parameter, and ``row`` is a row of `transition_table`
    without the values of the other parameters.
    """
    measured = row["measured"]
    predicted = row.get("predicted", math.nan)
    if math.isnan(measured):
        words = f"no transition in this range of {name}"
    else:
        words = f"measured half-way point {name} = {number(measured)}"
        words += _uncertainty(measured, row["error"])
    if not math.isnan(predicted):
        words += f", predicted {number(predicted)}"
    # All other columns are boundaries, which are named by their definitions.
    boundaries = [
        f"{number(x)} ({definition})"
        for definition, x in row.items()
        if definition not in ("measured", "error", "predicted") and not math.isnan(x)
    ]
    if boundaries:
        words += f"; other boundaries: {', '.join(boundaries)}"
    return words
