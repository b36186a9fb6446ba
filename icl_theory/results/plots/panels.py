"""Figures of arrays: panels of curves with labels at their ends, and attention maps.

A label has the colour of its curve. The places of labels depend on the limits of the
axes, so all curves are drawn before the first label.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from icl_theory._validate import (
    argument_error,
    instance,
    integer,
    number,
    real_array,
    sequence,
)
from icl_theory.results.plots.style import (
    CYCLE,
    FIRST_STEP,
    LARGEST,
    level,
    new_figure,
    shade,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

    from icl_theory.engine.trajectory import Phases

# The largest width and height of a panel or a map, in inches. At 200 dots per inch
# these are 20,000 pixels.
LARGEST_SIZE = 100
POINTS_PER_INCH = 72.0
# The height of the axes as a share of the height of a panel. Titles, ticks and labels
# take the rest. A rough share is enough, because it only spaces the labels of curves.
AXES_SHARE = 0.7
# Heights of the ends of curves, as shares of the axes, are compared after rounding to
# this many decimals. Any number from about 4 (less than a pixel) to 12 (more than
# rounding errors) would do.
HEIGHT_DECIMALS = 6


@dataclass(frozen=True, eq=False)
class Curve:
    """A curve and how it is drawn.

    Attributes
    ----------
    label : str
        The label, which is written at the end of the curve. It may be empty.
    x, y : array_like, (T,)
        The points of the curve. If y is not positive, a logarithmic y axis leaves the
        point out. If x is not positive, a logarithmic x axis shows the point at 1/2.
    low, high : array_like, (T,), optional
        The edges of a band around the curve.
    style : str
        A line style of matplotlib, or "o" for points.
    colour : str, optional
        The colour; by default the next one of the palette.
    """

    label: str
    x: ArrayLike
    y: ArrayLike
    low: ArrayLike | None = None
    high: ArrayLike | None = None
    style: str = "-"
    colour: str | None = None

    @classmethod
    def mean(
        cls,
        label: str,
        x: ArrayLike,
        runs: Sequence[Any],
        style: str = "-",
        colour: str | None = None,
    ) -> Curve:
        """Return the mean of two or more runs, with a band of two standard errors.

        A run is an array of the values at ``x``, (T,). The curve is as long as the
        shortest run.
        """
        # `sequence` checks only that there are runs; the next line checks that each run
        # is an array.
        checked_runs: list[Any] = sequence("runs", runs, object, "curves, (T,) each")
        curves = [real_array("runs", run, 1) for run in checked_runs]
        if len(curves) < 2:
            raise argument_error(
                "runs", len(curves), "two or more: a single run has no standard error"
            )
        length = min(map(len, curves))
        x = real_array("x", x, 1)[:length]
        # One run in each row
        values = np.array([curve[:length] for curve in curves])
        mean = values.mean(axis=0)
        standard_error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
        low = mean - 2.0 * standard_error
        high = mean + 2.0 * standard_error
        return cls(label, x, mean, low, high, style, colour)


@dataclass(frozen=True, eq=False)
class Panel:
    """Curves over common axes.

    Attributes
    ----------
    curves : sequence of Curve
        The curves. Curves without a colour take the colours of the palette in turn.
    x, y : str
        Labels of the axes.
    title : str
        The title above the panel.
    scales : tuple of str
        The scale of the x axis and the scale of the y axis, each "log" or "linear". On
        a logarithmic x axis, step 0 is drawn at 1/2.
    limits : tuple of float, optional
        The limits of the y axis.
    phases : Phases, optional
        The phases, which are shaded in the background.
    levels : dict of float
        The values of horizontal lines, by their labels.
    legend : bool
        Whether the labels stand in a legend beside the panel instead of at the ends of
        the curves. A legend suits many curves that end close to each other.
    note : str
        A note in the lower left corner, on the meaning of line styles and bands.
    """

    curves: Sequence[Curve]
    x: str
    y: str
    title: str = ""
    scales: tuple[str, str] = ("log", "log")
    limits: tuple[float, float] | None = None
    phases: Phases | None = None
    levels: Mapping[str, float] = field(default_factory=dict)
    legend: bool = False
    note: str = ""


def draw_panels(
    panels: Sequence[Panel], columns: int = 1, size: tuple[float, float] = (3.4, 2.4)
) -> Figure:
    """Draw panels row by row.

    Parameters
    ----------
    panels : sequence of Panel
        The panels, at least one.
    columns : int
        The number of panels in a row. Panels of a column share their x axis if it has
        the same label. Panels of a row share their y axis if it has the same label and
        scale.
    size : tuple of float
        Width and height of a panel in inches.

    Examples
    --------
    >>> import icl_theory as icl
    >>> from icl_theory.results.plots import Curve, Panel, draw_panels
    >>> run = icl.simulate(2.0, 1.0, 4.0)
    >>> curve = Curve("L = 2", run.t, run.loss)
    >>> figure = draw_panels([Panel([curve], "step", "loss", phases=run.phases)])
    >>> figure.axes[0].get_yscale()
    'log'
    """
    panels = sequence("panels", panels, Panel, "one Panel or more")
    columns = integer("columns", columns, minimum=1)
    inches = real_array("size", size, 1)
    if inches.shape != (2,) or not ((inches > 0.0) & (inches <= LARGEST_SIZE)).all():
        raise argument_error(
            "size", size, f"a width and a height in inches, up to {LARGEST_SIZE}"
        )
    width, height = inches.tolist()
    rows = math.ceil(len(panels) / columns)
    with styled():
        figure = new_figure(width * columns, height * rows, returned=True)
        grid = figure.subplots(rows, columns, squeeze=False)
        # The last row may have fewer panels than columns.
        for ax in grid.ravel()[len(panels) :]:
            ax.remove()
        for panel, ax in zip(panels, grid.ravel(), strict=False):
            _draw(panel, ax)
        _share(panels, grid, columns)
        # Labels come last, because their places depend on the limits of the axes, which
        # are final only now.
        for panel, ax in zip(panels, grid.ravel(), strict=False):
            _annotate(panel, ax, height)
    return figure


def draw_maps(
    rows: Mapping[str, Sequence[ArrayLike]], titles: Sequence[str], size: float = 1.3
) -> Figure:
    """Draw attention maps: a row of maps for each name, a column for each title.

    Parameters
    ----------
    rows : mapping of str to sequence of array_like, each (K, K)
        The maps of each row. A map of K features has the attention of query k (column)
        on feature m (row), in [0, 1].
    titles : sequence of str
        The titles of the columns, one for each map of a row.
    size : float
        Width and height of a map in inches.

    Examples
    --------
    >>> import numpy as np
    >>> from icl_theory.results.plots import draw_maps
    >>> maps = {"flat": [np.full((3, 3), 1 / 3), np.eye(3)]}
    >>> len(draw_maps(maps, ["start", "end"]).axes)
    3
    """
    from matplotlib.colors import PowerNorm

    instance("rows", rows, Mapping, "maps by the names of their rows")
    titles = sequence("titles", titles, str, "one text or more")
    lengths = {len(maps) for maps in rows.values()}
    if lengths != {len(titles)}:
        raise argument_error(
            "rows",
            rows,
            f"one or more, each with a map for each of the {len(titles)} titles",
        )
    size = number("size", size, maximum=LARGEST_SIZE)
    with styled():
        # Half an inch is for the names of the rows, and 0.35 inches are for the titles.
        width = 0.5 + size * len(titles)
        height = 0.35 + size * len(rows)
        figure = new_figure(width, height, returned=True)
        grid = figure.subplots(
            len(rows), len(titles), squeeze=False, sharex=True, sharey=True
        )
        for (name, maps), row_of_axes in zip(rows.items(), grid, strict=True):
            for attention, ax in zip(maps, row_of_axes, strict=True):
                # Darker means more attention, in print as well. The norm draws the
                # square root of the attention, so that 1/K, the uniform
                # attention, looks different from 0.
                image = ax.imshow(
                    np.asarray(attention), norm=PowerNorm(0.5, 0.0, 1.0), cmap="Greys"
                )
                ax.set(xticks=[], yticks=[])
                ax.spines[:].set_visible(True)
            row_of_axes[0].set_ylabel(f"{name}\nkey")
        for title, top, bottom in zip(titles, grid[0], grid[-1], strict=True):
            top.set_title(title, fontsize=9)
            bottom.set_xlabel("query")
        # All maps have the same colours, so the last image stands for all of them.
        figure.colorbar(
            image, ax=grid, label="attention", shrink=0.8, ticks=(0.0, 0.1, 0.5, 1.0)
        )
    return figure


def _draw(panel: Panel, ax: Axes) -> None:
    """Draw the curves of a panel, with bands between their low and high values."""
    x_scale, y_scale = panel.scales
    for curve, colour in zip(panel.curves, _colours(panel), strict=True):
        x = _drawable(curve.x, x_scale, instead_of_zero=FIRST_STEP)
        y = _drawable(curve.y, y_scale)
        properties: dict[str, Any] = {"linestyle": curve.style}
        if curve.style == "o":
            properties = {"linestyle": "none", "marker": "o", "markersize": 3.0}
        ax.plot(x, y, color=colour, label=curve.label, **properties)
        if curve.low is not None and curve.high is not None:
            low = _drawable(curve.low, y_scale)
            high = _drawable(curve.high, y_scale)
            ax.fill_between(x, low, high, color=colour, alpha=0.25, linewidth=0)
    ax.set(xscale=x_scale, yscale=y_scale, xlabel=panel.x, ylabel=panel.y)
    # Curves reach the right edge, where their labels stand.
    ax.margins(x=0.0)
    if panel.limits is not None:
        ax.set_ylim(panel.limits)


def _annotate(panel: Panel, ax: Axes, height: float) -> None:
    """Add phases, title, note, minor ticks, levels and labels of curves to a panel.

    Their places depend on the limits of the axes, which neighbouring panels may share.
    ``height`` is the height of the panel in inches.
    """
    last_steps = [
        float(np.nanmax(np.asarray(curve.x)))
        for curve in panel.curves
        if np.size(curve.x)
    ]
    # The last step only decides which phases are wide enough for their names. If no
    # curve has a point, any number will do.
    last = max(last_steps, default=1.0)
    # Panels without a title have no place for the names of phases.
    shade(panel.phases, last, ax, labels=bool(panel.title))
    # The names of phases stand between the panel and its title.
    title_pad = 6 if panel.phases is None else 16
    ax.set_title(panel.title, fontsize=9, pad=title_pad)
    ax.text(
        0.03,
        0.04,
        panel.note,
        transform=ax.transAxes,
        fontsize=7,
        color="0.3",
        va="bottom",
    )
    for axis, scale in zip((ax.xaxis, ax.yaxis), panel.scales, strict=True):
        if scale == "log":
            _thin_out_minor_ticks(axis)
    for label, value in panel.levels.items():
        level(ax, value, label, "0.4", ":")
    if panel.legend:
        ax.legend(
            loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8, handlelength=1.6
        )
    else:
        _label_curves(panel, ax, height)


def _thin_out_minor_ticks(axis: Axis) -> None:
    """Keep few minor ticks if fewer than two powers of ten are on the axis.

    The minor ticks that are kept are 2 and 5 times the powers of ten.
    """
    from matplotlib.ticker import LogLocator

    # An axis may be inverted, with its larger end first.
    low, high = sorted(axis.get_view_interval())
    visible = [tick for tick in axis.get_majorticklocs() if low <= tick <= high]
    if len(visible) < 2:
        # On such an axis matplotlib labels minor ticks. With all eight minor ticks of a
        # decade, the labels would overlap.
        axis.set_minor_locator(LogLocator(subs=(2.0, 5.0)))


def _label_curves(panel: Panel, ax: Axes, height: float, early: float = 0.85) -> None:
    """Label each curve to the right of the axes, or at its end.

    A curve that ends before the share ``early`` of the width is labelled at its end,
    because a label to the right of the axes would be too far from the curve. With a
    larger share, some labels at ends would not fit within the axes. ``height`` is the
    height of the panel in inches.
    """
    x_scale, y_scale = panel.scales
    bottom, top = sorted(ax.get_ylim())
    # This transform turns data into shares of the width and the height of the axes.
    data_to_axes = ax.transData + ax.transAxes.inverted()
    ends = []
    for curve, colour in zip(panel.curves, _colours(panel), strict=True):
        x = _drawable(curve.x, x_scale, instead_of_zero=FIRST_STEP)
        y = _drawable(curve.y, y_scale)
        # The limits may cut the curve before its last value.
        visible = np.flatnonzero(np.isfinite(y) & (y >= bottom) & (y <= top))
        if not curve.label or not len(visible):
            continue
        end_x = float(x[visible[-1]])
        end_y = float(y[visible[-1]])
        share_of_width, _ = data_to_axes.transform((end_x, end_y))
        if share_of_width < early:
            ax.annotate(
                curve.label,
                (end_x, end_y),
                (3, 0),
                textcoords="offset points",
                color=colour,
                fontsize=8,
                va="center",
            )
        else:
            ends.append(CurveEnd(end_y, curve.label, colour))
    label_ends(ax, ends, height)


def _colours(panel: Panel) -> list[str]:
    """Return the colour of each curve: its own, or else the next of the palette."""
    palette = itertools.cycle(CYCLE)
    return [curve.colour or next(palette) for curve in panel.curves]


def _drawable(values: ArrayLike, scale: str, instead_of_zero: float = math.nan) -> Any:
    """Return values as they are drawn on an axis.

    On a logarithmic axis, values are at most `LARGEST`, beyond which ticks would
    overflow. Values that are not positive become ``instead_of_zero``. By default they
    are NaN, which leaves a gap in the curve.
    """
    array = np.asarray(values, dtype=np.float64)
    if scale != "log":
        return array
    return np.where(array > 0.0, np.minimum(array, LARGEST), instead_of_zero)


class CurveEnd(NamedTuple):
    """The end of a curve, beside which its label is written."""

    y: float  # the last value of the curve that is drawn
    label: str
    colour: str


def label_ends(
    ax: Axes, ends: list[CurveEnd], height: float, spacing: float = 9.5
) -> None:
    """Write labels to the right of the axes, at the ends of curves.

    The labels are about ``spacing`` points apart or more, which is by default the
    height of a line of text of 8 points. ``height`` is the height of the panel in
    inches.
    """
    if not ends:
        return
    # This transform turns data into shares of the width and the height of the axes.
    data_to_axes = ax.transData + ax.transAxes.inverted()
    _, right = ax.get_xlim()
    # The height of the end of each curve, as a share of the height of the axes
    end_heights = []
    for end in ends:
        _, height_in_axes = data_to_axes.transform((right, end.y))
        end_heights.append(height_in_axes)
    # Curves that end at the same height, up to rounding, keep the order of the panel.
    order = np.argsort(np.round(end_heights, HEIGHT_DECIMALS), kind="stable")
    # The height of a line of text, as a share of the height of the axes.
    line_height = spacing / (POINTS_PER_INCH * AXES_SHARE * height)
    # If the labels were stacked from the bottom without gaps, label i would stand at
    # stack[i] = i line_height. Labels at the heights stack[i] + rise[i] do not overlap
    # if the rise never falls from one label to the next. So begin with the rise to the
    # end of each curve, and increase it where it would fall. Finally, limit all rises
    # to the largest rise with which the topmost label stays within the axes. (A curve
    # that ends outside the axes counts as ending at their edge.)
    stack = line_height * np.arange(len(order))
    rise = np.clip(np.array(end_heights)[order], 0.0, 1.0) - stack
    rise = np.maximum.accumulate(rise)
    rise = np.minimum(rise, 1.0 - stack[-1])
    label_heights = rise + stack
    for label_height, index in zip(label_heights, order, strict=True):
        end = ends[index]
        ax.annotate(
            end.label,
            (1.0, float(label_height)),
            xycoords="axes fraction",
            xytext=(3, 0),
            textcoords="offset points",
            color=end.colour,
            fontsize=8,
            va="center",
            annotation_clip=False,
        )


def _share(panels: Sequence[Panel], grid: Any, columns: int) -> None:
    """Let neighbouring panels share axes, so that a common label is written once.

    ``grid`` has the axes of the panels, row by row, in ``columns`` columns. A panel
    shares the x axis of the panel below it if their x axes have the same label. It
    shares the y axis of the panel to its left if their y axes have the same label and
    the same scale.
    """
    for index, panel in enumerate(panels):
        row, column = divmod(index, columns)
        ax = grid[row, column]
        index_below = index + columns
        if index_below < len(panels) and panels[index_below].x == panel.x:
            ax.sharex(grid[row + 1, column])
            ax.set_xlabel("")
            ax.tick_params(labelbottom=False)
        has_left_neighbour = column > 0
        if has_left_neighbour and _have_same_y_axis(panels[index - 1], panel):
            ax.sharey(grid[row, column - 1])
            ax.set_ylabel("")
            # sharey() takes the limits of the panel to the left. Make them cover the
            # curves of both panels, unless the limits are prescribed.
            ax.autoscale(enable=panel.limits is None, axis="y")


def _have_same_y_axis(first: Panel, second: Panel) -> bool:
    """Whether the y axes of two panels have the same label and scale."""
    _, first_y_scale = first.scales
    _, second_y_scale = second.scales
    return first.y == second.y and first_y_scale == second_y_scale
