"""Figures of sweeps: curves along one parameter, phase diagrams over two.

The quantities of a sweep have roles, by which the figures choose them: "steps", the
number T of steps to the target; "phase", the length of a phase; "predicted", a
prediction for T; "exponent", the slope d ln T/d ln x along the parameter x that its
attribute ``of`` names; and "boundary", a value of one parameter that separates regimes
and depends on the others. The exponent may have two limits, at small and at large x. A
transition is the x at which the exponent is half-way between its limits.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array, choice
from icl_theory.engine.progress import Progress
from icl_theory.results.columns import dimensions, lines, steps_of, symbol, with_role
from icl_theory.results.numbers import distinct_texts
from icl_theory.results.plots import style
from icl_theory.results.plots.panels import CurveEnd, label_ends
from icl_theory.results.plots.style import (
    BLACK,
    BLUE,
    CYCLE,
    PHASE_COLOURS,
    RED,
    escape,
    new_figure,
    styled,
    whole_figure,
)
from icl_theory.results.transitions import (
    bars,
    limits_of,
    predicted_transition,
    transitions_of,
)
from icl_theory.sweeps.grid import FAILED, NOT_REACHED, PENDING

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes

# Properties of a marker that is only an outline.
HOLLOW: Any = {"markerfacecolor": "none"}
# A parameter has few values if it has at most this many. Few integers are drawn side by
# side, like words, and few values of a second parameter have a curve each. Otherwise
# values are places on an axis of numbers.
FEW = 5
# Lines of fewer points than this have a dot at each point, so that readers see how many
# there are.
FEW_POINTS = 20
# The colours and dashes of the vertical lines that mark boundaries, in turn.
BOUNDARY_LINES = ((RED, ":"), ("0.4", "-."), ("0.4", "--"))


class Mark(NamedTuple):
    """How a point that has no number of steps is drawn.

    A figure of curves shows the marker, and a phase diagram the colour.
    """

    marker: str
    colour: str


# Marks of points without steps. The key is the reason: no step was needed, or the
# status of the point.
NO_STEP = "no step"
MISSING = {
    NO_STEP: Mark("v", "0.88"),
    NOT_REACHED: Mark("^", "0.6"),
    FAILED: Mark("x", "#CC79A7"),
    # The point is not computed yet, so there is nothing to mark.
    PENDING: Mark("", "1"),
}


class PointSteps(NamedTuple):
    """The number of steps of each point of a sweep, as it is drawn."""

    values: Array  # NaN at points without a positive number of steps
    # For each reason in `MISSING`, the mask of the points without a number of steps for
    # this reason.
    missing: dict[str, NDArray[np.bool_]]


class Scale(NamedTuple):
    """Places of a parameter's values on an axis: logarithmic, linear, or words."""

    name: str  # the name of the parameter
    label: str
    places: Array  # one for each value; words are at 0, 1, ...
    kind: str  # "log", "linear" or "words"
    words: list[str]  # the values as texts; empty if the axis has numbers

    def apply(self, ax: Axes, axis: str) -> None:
        """Set up an axis, "x" or "y"."""
        ax.set(**{f"{axis}label": self.label})
        if self.kind == "words":
            ax.set(**{f"{axis}ticks": self.places, f"{axis}ticklabels": self.words})
            # Words need no tick marks.
            ax.tick_params(axis=axis, which="both", length=0)  # type: ignore[arg-type]
            ax.set(**{f"{axis}lim": (-0.5, len(self.places) - 0.5)})
        else:
            ax.set(**{f"{axis}scale": self.kind})

    def edges(self) -> Array:
        """Return the boundaries of cells around the places.

        They are half-way between neighbours on the drawn axis. There is one boundary
        more than there are values. The first and the last cell extend as far beyond
        their places as towards their neighbours.
        """
        places = np.log(self.places) if self.kind == "log" else self.places
        gaps = np.diff(places)
        if len(places) == 1:
            # A single cell has no neighbour. Its width is the absolute value of its
            # place, which is a logarithm on a logarithmic axis, or 1 if this is 0.
            gaps = np.array([abs(places[0]) or 1.0])
        before = places[0] - gaps[0]
        after = places[-1] + gaps[-1]
        extended = np.concatenate([[before], places, [after]])
        middles = 0.5 * (extended[:-1] + extended[1:])
        return np.exp(middles) if self.kind == "log" else middles


@Progress("drawing the figure")
def plot_sweep(dataset: xarray.Dataset, over: str | None = None) -> Axes:
    """Draw steps and exponents along one parameter, or a phase diagram over two.

    On the horizontal axis, words stand side by side, and so do up to five integers. A
    second parameter has a curve for each value, if it has up to five values, or up to
    ten with words on either axis. With more values, a phase diagram shows the steps as
    colours. If a parameter has more than 2000 values, only evenly spaced values are
    drawn.

    Parameters
    ----------
    dataset : xarray.Dataset
        From `sweep` or `load_sweep`, with one or two dimensions.
    over : str, optional
        The parameter on the horizontal axis; by default the first one whose values do
        not stand side by side.

    Returns
    -------
    matplotlib Axes
        The (first) axes of the figure.

    Raises
    ------
    ValueError
        No dimension, three or more (choose with ``dataset.sel(...)``), no steps, or an
        infinite value of a parameter with more than five values.

    Examples
    --------
    >>> import icl_theory as icl, numpy as np
    >>> L = np.geomspace(0.1, 10.0, 9)
    >>> dataset = icl.sweep(L=L, delta=1.0, eta=0.1, K=np.arange(5, 50, 5))
    >>> icl.plot_sweep(dataset).get_ylabel()
    '$K$'
    """
    names = dimensions(dataset)
    if len(names) not in (1, 2):
        raise ValueError(
            f"dataset: a figure has one parameter or two, not {names}; "
            "choose with dataset.sel"
        )
    if steps_of(dataset) is None:
        raise ValueError(
            "dataset: no variable has the role 'steps', so there is nothing to draw"
        )
    for name in names:
        # Only infinite values are refused here, so the limit on the size is lifted.
        if not drawable(dataset, name, largest=np.inf).all():
            raise ValueError(
                f"dataset: {name} is infinite; "
                "an axis of many values needs finite values"
            )
    numeric = [name for name in names if not _is_row_of_words(dataset, name)]
    if over is None:
        over = numeric[0] if numeric else names[0]
    over = choice("over", over, names)
    # A curve needs its points in the order of the axis.
    dataset = dataset.sortby(numeric)
    strides = thinned(dataset)
    dataset = dataset.isel(
        {name: slice(None, None, stride) for name, stride in strides.items()}
    )
    with styled():
        x = _scale(dataset, over)
        if len(names) == 1:
            return _draw_line(dataset, x)
        second = names[1] if over == names[0] else names[0]
        y = _scale(dataset, second)
        # A diagram suits numbers on both axes, so words get up to twice as many curves.
        has_words = "words" in (x.kind, y.kind)
        most_curves = 2 * FEW if has_words else FEW
        if dataset.sizes[second] <= most_curves:
            return _draw_curves(dataset, x, y)
        return _draw_diagram(dataset.transpose(second, over), x, y)


def thinned(dataset: xarray.Dataset, most: int = 2000) -> dict[str, int]:
    """Return the stride of the drawn values of each parameter with too many values.

    These are the parameters with more than ``most`` values. The default of ``most`` is
    about the width of a figure in pixels.
    """
    strides = {}
    for name in dimensions(dataset):
        size = dataset.sizes[name]
        if size > most:
            # size / most, rounded up so that at most ``most`` values remain.
            strides[name] = -(-size // most)
    return strides


def drawable(
    dataset: xarray.Dataset, name: str, largest: float = 1e100
) -> NDArray[np.bool_]:
    """Return whether each value of a parameter has a place on an axis, (values,).

    A number has a place if it is finite and at most ``largest`` in size, because labels
    of larger numbers are not legible. Words always have a place.
    """
    values = dataset[name].values
    if _is_row_of_words(dataset, name):
        return np.ones(len(values), dtype=bool)
    return np.asarray(np.isfinite(values) & (np.abs(values) <= largest))


def _is_row_of_words(dataset: xarray.Dataset, name: str) -> bool:
    """Whether an axis shows the values of a parameter side by side, like words.

    This holds for words, for up to FEW integers, and for up to FEW numbers of which one
    or more are infinite.
    """
    values = dataset[name].values
    if values.dtype.kind not in "iuf":
        return True
    if len(values) > FEW:
        return False
    # Infinity has no place on an axis of numbers, but it may stand beside a few numbers
    # that are drawn like words.
    return bool(values.dtype.kind in "iu" or not np.isfinite(values).all())


def _scale(dataset: xarray.Dataset, name: str) -> Scale:
    """Return how an axis shows the values of a parameter: as words or as numbers.

    The axis is logarithmic if the values are positive and span a factor of ten.
    """
    label = _symbol(dataset, name)
    values = dataset[name].values
    if _is_row_of_words(dataset, name):
        words = [escape(word) for word in distinct_texts(values.tolist())]
        return Scale(name, label, np.arange(float(len(values))), "words", words)
    places = values.astype(np.float64)
    spans_a_decade = places.min() > 0 and places.max() >= 10.0 * places.min()
    kind = "log" if spans_a_decade else "linear"
    return Scale(name, label, places, kind, [])


def _symbol(dataset: xarray.Dataset, name: str) -> str:
    """Return the symbol of a parameter or quantity as a figure shows it."""
    return style.mathematics(dataset[name].attrs.get("tex", ""), symbol(dataset, name))


def _steps(dataset: xarray.Dataset) -> PointSteps:
    """Return the steps of all points, and the reasons why points have none.

    In the dataset a point that did not reach its target has -1 steps.
    """
    steps = dataset[steps_of(dataset)].values
    status = dataset["status"].values
    missing = {}
    for reason in MISSING:
        if reason == NO_STEP:
            # The target holds at step 0, which has no place on a logarithmic axis.
            missing[reason] = steps == 0
        else:
            missing[reason] = (steps < 0) & (status == reason)
    positive = np.where(steps > 0, steps, np.nan).astype(np.float64)
    return PointSteps(positive, missing)


def _draw_line(dataset: xarray.Dataset, scale: Scale) -> Axes:
    """Draw the steps against one parameter, and their exponent if it is known.

    Return the axes of the steps.
    """
    panels = _panels(dataset, scale)
    top = panels[0]
    steps_label = _symbol(dataset, str(steps_of(dataset)))
    _plot_steps(top, dataset, scale, BLACK, steps_label)
    phases = with_role(dataset, "phase")
    for name, colour in zip(phases, itertools.cycle(PHASE_COLOURS)):
        properties = _line_properties(scale, "-", colour)
        _plot_quantity(top, dataset, scale, name, properties)
    # A prediction in words, such as the basin of a chain, cannot be drawn.
    predictions = [
        name
        for name in with_role(dataset, "predicted")
        if dataset[name].dtype.kind != "U"
    ]
    for name, colour in zip(predictions, itertools.cycle((RED, BLUE))):
        properties = _line_properties(scale, "--", colour)
        _plot_quantity(top, dataset, scale, name, properties)
    if len(panels) > 1:
        _plot_exponent(panels[1], dataset, scale, BLACK)
    # A boundary can be placed only on an axis of two or more numbers.
    if scale.kind != "words" and len(scale.places) > 1:
        _mark_boundaries(panels, dataset, scale)
    _legend(panels)
    return top


def _plot_quantity(
    ax: Axes,
    dataset: xarray.Dataset,
    scale: Scale,
    name: str,
    properties: dict[str, Any],
) -> None:
    """Draw a quantity that is compared with the steps, if any value is positive."""
    values = dataset[name].values.astype(np.float64)
    is_positive = values > 0
    if not is_positive.any():
        return
    label = _symbol(dataset, name)
    # Zeros and missing values have no place on a logarithmic axis.
    drawn = np.where(is_positive, values, np.nan)
    # The line is thinner than the line of the steps.
    ax.plot(scale.places, drawn, **(properties | {"linewidth": 1.1, "label": label}))


def _mark_boundaries(panels: list[Axes], dataset: xarray.Dataset, scale: Scale) -> None:
    """Draw each predicted boundary within the axes as a vertical line.

    `predicted_transition` returns the value at which the line of the sweep crosses the
    boundary, or NaN.
    """
    top = panels[0]
    low, high = top.get_xlim()
    boundaries = zip(_boundaries(dataset, scale), itertools.cycle(BOUNDARY_LINES))
    for (label, name), (colour, dash) in boundaries:
        value = predicted_transition(dataset, scale.name, name)
        if not low < value < high:
            continue
        top.axvline(value, color=colour, linestyle=dash, linewidth=1.0, label=label)
        # The line in the top panel is already the entry in the legend, so the lines in
        # the other panels have no label.
        for ax in panels[1:]:
            ax.axvline(value, color=colour, linestyle=dash, linewidth=1.0)


def _draw_curves(dataset: xarray.Dataset, scale: Scale, curves: Scale) -> Axes:
    """Draw a curve over ``scale`` for each value of the parameter of ``curves``.

    Each curve has its value as a label at its end. Return the axes of the steps.
    """
    panels = _panels(dataset, scale)
    top = panels[0]
    is_numeric = dataset[curves.name].dtype.kind in "iuf"
    values = distinct_texts(dataset[curves.name].values.tolist())
    ends = []
    for i, (value, colour) in enumerate(zip(values, itertools.cycle(CYCLE))):
        line = dataset.isel({curves.name: i})
        steps = _plot_steps(top, line, scale, colour)
        if len(panels) > 1:
            _plot_exponent(panels[1], line, scale, colour)
        drawn = steps[np.isfinite(steps)]
        if not drawn.size:
            continue
        label = f"{curves.label} = {value}" if is_numeric else escape(value)
        ends.append(CurveEnd(float(drawn[-1]), label, colour))
    # The rough height of the panel of steps in inches, in a figure of two panels and in
    # a figure of one
    height = 2.4 if len(panels) > 1 else 3.6
    label_ends(top, ends, height)
    _legend(panels)
    return top


def _panels(dataset: xarray.Dataset, scale: Scale) -> list[Axes]:
    """Return axes for the steps, and below them for the exponent if it is known.

    The axes belong to a new figure, and the two panels share the axis ``scale``.
    """
    exponent = _exponent(dataset, scale)
    rows = 1
    height = 3.6
    if exponent is not None and np.isfinite(dataset[exponent].values).any():
        rows = 2
        height = 5.6
    figure = new_figure(4.4, height)
    panels = figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]
    scale.apply(panels[-1], "x")
    panels[0].set(yscale="log", ylabel="steps")
    return list(panels)


def _exponent(dataset: xarray.Dataset, scale: Scale) -> str | None:
    """Return the name of the exponent along an axis; None if there is none to draw."""
    if scale.kind == "words":
        return None
    names = with_role(dataset, "exponent", of=scale.name)
    return names[0] if names else None


def _line_properties(scale: Scale, dash: str, colour: str) -> dict[str, Any]:
    """Return how values are drawn along an axis, as arguments of ``Axes.plot``.

    Over words they are marks, and over numbers they are a line. A line of few points
    has a mark at each point. ``dash`` is "-" for measured values and "--" for
    predictions.
    """
    if scale.kind != "words":
        marker = "." if len(scale.places) < FEW_POINTS else ""
        return {"linestyle": dash, "color": colour, "marker": marker}
    properties: dict[str, Any] = {"linestyle": "none", "color": colour}
    if dash == "-":
        return properties | {"marker": "o"}
    # A prediction is a hollow diamond, in which the measured point remains visible.
    return properties | {"marker": "D", "markersize": 9, **HOLLOW}


def _plot_steps(
    ax: Axes, line: xarray.Dataset, scale: Scale, colour: str, label: str | None = None
) -> Array:
    """Draw steps, and marks at the edges of the axes for points that have none.

    Return the steps, with NaN for a point that has none. ``label`` is the entry of the
    steps in the legend; without it they have no entry.
    """
    steps = _steps(line)
    properties = _line_properties(scale, "-", colour)
    ax.plot(scale.places, steps.values, **properties, label=label)
    for reason, mark in MISSING.items():
        is_missing = steps.missing[reason]
        if not mark.marker or not is_missing.any():
            continue
        places = scale.places[is_missing]
        # Zero steps are marked at the lower edge of the axes, below all other points.
        # A point that failed or did not reach its target is marked at the upper edge.
        edge = 0.0 if reason == NO_STEP else 1.0
        # By this transform x is a value, and y is a share of the height of the axes.
        ax.plot(
            places,
            np.full(len(places), edge),
            mark.marker,
            color=colour,
            **HOLLOW,
            markersize=5,
            transform=ax.get_xaxis_transform(),
            clip_on=False,
            label=reason,
        )
    return steps.values


def _plot_exponent(ax: Axes, line: xarray.Dataset, scale: Scale, colour: str) -> None:
    """Draw the exponent of the steps, its limits, and the point half-way between them.

    There must be an exponent along ``scale``.
    """
    name = str(_exponent(line, scale))
    ax.plot(scale.places, line[name].values, color=colour)
    steps_label = _symbol(line, str(steps_of(line)))
    ax.set_ylabel(rf"$d\,\ln$ {steps_label} $/\,d\,\ln$ {scale.label}")
    limits = limits_of(line, scale.name)
    if limits is None:
        return
    for value in limits:
        ax.axhline(value, color="0.6", linewidth=0.8)
    # The exponent may be far beyond its limits near the ends of the curve, if the
    # initial loss is close to the target there and the steps fall towards 0. So the
    # axis extends beyond each limit by only a quarter of the distance between them.
    middle = 0.5 * sum(limits)
    width = abs(limits[1] - limits[0])
    ax.set_ylim(middle - 0.75 * width, middle + 0.75 * width)
    _plot_half_way(ax, line, scale, middle, colour)


def _plot_half_way(
    ax: Axes, line: xarray.Dataset, scale: Scale, middle: float, colour: str
) -> None:
    """Mark where the exponent is half-way between its limits, measured and predicted.

    ``middle`` is the mean of the limits.
    """
    table = transitions_of(line, scale.name)
    if table is None:
        return
    # The table of one line has one row.
    transition = table.iloc[0]
    if np.isfinite(transition["measured"]):
        ax.errorbar(
            transition["measured"],
            middle,
            xerr=bars([transition["measured"]], [transition["error"]]),
            color=colour,
            marker="o",
            markersize=4,
            capsize=3,
            label=f"half-way in {scale.label}, measured",
        )
    # The column is missing if no theory predicts the half-way point.
    if np.isfinite(transition.get("predicted", np.nan)):
        ax.plot(
            transition["predicted"],
            middle,
            "D",
            color=colour,
            **HOLLOW,
            markersize=7,
            label=f"half-way in {scale.label}, predicted",
        )


def _boundaries(dataset: xarray.Dataset, over: Scale) -> list[tuple[str, str]]:
    """Return a pair for each boundary: its label in a legend, its name in the dataset.

    ``over`` is the axis along which the exponent is taken.
    """
    boundaries = []
    for name in with_role(dataset, "boundary"):
        attributes = dataset[name].attrs
        # The attribute ``half_way`` names the parameters along which the exponent is
        # half-way between its limits at this boundary.
        if over.name in attributes.get("half_way", ()):
            label = f"half-way in {over.label}, predicted"
        else:
            definition = attributes.get("definition") or symbol(dataset, name)
            label = escape(str(definition))
        boundaries.append((label, name))
    return boundaries


def _legend(panels: list[Axes], **properties: Any) -> None:
    """Explain the marks of all panels below the figure, not over the data.

    ``properties`` are further arguments of ``Figure.legend``.
    """
    handle_of: dict[str, Any] = {}
    for ax in panels:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            # A mark that several curves have is explained once.
            handle_of.setdefault(label, handle)
    if handle_of:
        properties |= {"loc": "outside lower center", "ncols": 2, "fontsize": 8}
        handles = list(handle_of.values())
        whole_figure(panels[0]).legend(handles, list(handle_of), **properties)


def _draw_diagram(dataset: xarray.Dataset, x: Scale, y: Scale) -> Axes:
    """Draw the logarithm of the steps as colours over two parameters.

    The dimensions of the dataset are the parameters of ``y`` and ``x``, in this order.
    """
    figure = new_figure(5.0, 4.2)
    ax = figure.subplots()
    steps = _steps(dataset)
    x_edges = x.edges()
    y_edges = y.edges()
    log_steps = np.ma.masked_invalid(np.log10(steps.values))
    mesh = ax.pcolormesh(x_edges, y_edges, log_steps, cmap="viridis", rasterized=True)
    if not log_steps.mask.all():
        figure.colorbar(mesh, ax=ax, label=_log_steps_label(dataset))
    x.apply(ax, "x")
    y.apply(ax, "y")
    _shade_missing(ax, steps, x_edges, y_edges)
    if x.kind != "words":
        _draw_transitions(ax, dataset, x, y)
    # Boundaries must not widen the axes.
    ax.set(xlim=x_edges[[0, -1]], ylim=y_edges[[0, -1]])
    # The boundaries are white, so the legend needs a dark ground.
    _legend([ax], frameon=True, facecolor="0.35", labelcolor="white")
    return ax


def _shade_missing(ax: Axes, steps: PointSteps, x_edges: Array, y_edges: Array) -> None:
    """Colour the cells of points without steps, with a colour for each reason.

    ``x_edges`` and ``y_edges`` are the boundaries of the cells along the axes. Each
    reason that occurs gets an entry in the legend.
    """
    import matplotlib as mpl

    for reason, mark in MISSING.items():
        is_missing = steps.missing[reason]
        if not is_missing.any():
            continue
        area = np.ma.masked_array(np.zeros(is_missing.shape), mask=~is_missing)
        colours = mpl.colors.ListedColormap([mark.colour])
        ax.pcolormesh(x_edges, y_edges, area, cmap=colours, rasterized=True)
        # Matplotlib gives meshes no entry in a legend, so draw an empty curve of square
        # markers, whose label appears there.
        ax.plot([], [], "s", color=mark.colour, label=reason)


def _log_steps_label(dataset: xarray.Dataset) -> str:
    """Return the label of the colours, the decimal logarithm of the steps."""
    name = str(steps_of(dataset))
    plain = f"log10 {symbol(dataset, name)}"
    tex = dataset[name].attrs.get("tex")
    log_tex = rf"\log_{{10}}\,{tex}" if tex else ""
    return style.mathematics(log_tex, plain)


def _draw_transitions(
    ax: Axes, dataset: xarray.Dataset, x: Scale, y: Scale, most: int = 40
) -> None:
    """Draw predicted boundaries as curves and measured transitions as points.

    At most ``most`` points are drawn, so that they can be told apart.
    """
    boundaries = _boundaries(dataset, x)
    for (label, name), dash in zip(boundaries, itertools.cycle(("-", "--", ":"))):
        boundary_x, boundary_y = _boundary(dataset, name, x, y)
        has_place = np.isfinite(boundary_x) & np.isfinite(boundary_y)
        # A curve needs two points.
        if has_place.sum() > 1:
            ax.plot(boundary_x, boundary_y, dash, color="white", label=label)
    # The number of lines along x, divided by ``most`` and rounded up, so that at most
    # ``most`` lines remain. Each line has at most one measured transition.
    stride = -(-len(y.places) // most)
    chosen = slice(None, None, stride)
    transitions = transitions_of(dataset.isel({y.name: chosen}), x.name)
    if transitions is not None and transitions["measured"].notna().any():
        measured = transitions["measured"]
        ax.errorbar(
            measured,
            y.places[chosen],
            xerr=bars(measured, transitions["error"]),
            color=RED,
            marker="o",
            markersize=3,
            linestyle="none",
            label=f"half-way in {x.label}, measured",
        )


def _boundary(
    dataset: xarray.Dataset, name: str, x: Scale, y: Scale
) -> tuple[Array, Array]:
    """Return a boundary as a curve, by the coordinates x and y of its points.

    A boundary that is given as a value of x for each y, or as a value of y for each x,
    is this curve. Otherwise the curve consists of the points at which the lines along x
    cross the boundary.
    """
    # The boundary is read into memory first. Otherwise threads of Dask would take the
    # maximum of each chunk, also of one that is all NaN, and NumPy's warnings about
    # that cannot be suppressed safely in threads.
    values = dataset[name].compute()
    # The boundary is a value of this parameter, which may be on the axis x, on the axis
    # y, or not swept.
    bounded = values.attrs["of"]
    if bounded in dataset.dims:
        largest = values.max(bounded)
        smallest = values.min(bounded)
        # If the boundary varies along the parameter of which it is a value, it is not
        # a function of the other parameter alone. A difference of 1e-9 is rounding.
        if np.allclose(largest, smallest, rtol=1e-9, atol=0.0, equal_nan=True):
            bounds = largest.values
            if bounded == x.name:
                return bounds, y.places
            return x.places, bounds
    # `lines` yields one line along x for each value of y, in their order.
    crossings = [
        predicted_transition(line, x.name, name) for _, line in lines(dataset, x.name)
    ]
    return np.array(crossings), y.places
