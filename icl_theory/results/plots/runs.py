"""Figures of runs, of curves compared with exact ones, and of answered questions."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from icl_theory._validate import argument_error, instance, sequence
from icl_theory.engine.curves import CurveComparison
from icl_theory.engine.rules import Normalised
from icl_theory.engine.trajectory import Label, Trajectory
from icl_theory.results.numbers import number
from icl_theory.results.plots import style
from icl_theory.results.plots.style import (
    BLACK,
    BLUE,
    CYCLE,
    FIRST_STEP,
    ORANGE,
    RED,
    axes,
    level,
    new_figure,
    shade,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from icl_theory.statements.claim import Answer

# The value at which 0 is drawn on a logarithmic axis.
SMALLEST = float(np.finfo(float).tiny)
# Labels of at most this many characters fit into a legend of two columns.
SHORT_LABEL = 24
# A legend of more curves than this would cover them, so it stands below the figure.
MOST_IN_AXES = 3
# The number of characters in a line of a title that is as wide as the figure of an
# answer.
TITLE_WIDTH = 60


def parameters_of(run: Trajectory) -> list[tuple[Label, str]]:
    """Return the numbers that describe a run in a title, with their labels.

    A title has little room. So numbers that are zero or infinite are left out: most of
    them switch an effect off, such as zero noise or N = ∞. Numbers without a symbol in
    TeX are left out, too, unless no number has one.
    """
    numbers = {}
    for name, value in run.info.items():
        # Python counts True and False as integers.
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and value != 0 and math.isfinite(value):
            numbers[name] = value
    names = [name for name in numbers if _label(run, name).tex]
    if not names:
        names = list(numbers)
    return [(_label(run, name), number(numbers[name])) for name in names]


def _label(run: Trajectory, name: str) -> Label:
    """Return the label of a parameter of a run, or else a label with only its name."""
    return run.labels.get(name) or Label(text=name, tex="", unit="", meaning="")


def plot_run(run: Trajectory, ax: Axes | None = None) -> Axes:
    """Draw the loss of a run against the step, with the attention below it.

    Only the loss is drawn if ``ax`` is given, or if the run observes no attention.

    The axes of steps and of losses are logarithmic. For a run of normalised descent
    that has converged, the axis of steps is linear, because the loss falls
    exponentially. If the risk observes its ``excess`` over the floor, the excess is
    drawn instead of the loss.

    Returns the axes of the loss.
    """
    instance("run", run, Trajectory, "a Trajectory")
    with styled():
        if ax is not None:
            _draw_loss(run, axes("ax", ax))
            ax.set_xlabel("step")
            return ax
        return _side_by_side([run], width=3.4, heights=(2.6, 4.4))


def compare_runs(runs: Sequence[Trajectory]) -> Axes:
    """Draw several runs side by side with common axes.

    Each run has its loss, and the attention below it if all runs observe it.

    Returns the first axes of the figure.
    """
    runs = sequence("runs", runs, Trajectory, "one run or more, each a Trajectory")
    with styled():
        return _side_by_side(runs, width=3.2, heights=(2.4, 4.2))


def _side_by_side(
    runs: Sequence[Trajectory], width: float, heights: tuple[float, float]
) -> Axes:
    """Draw each run as a column, and return the first axes.

    A column has a row for the loss, and one for the attention if all runs observe it.
    ``width`` is the width of a column in inches. ``heights`` are two heights in inches:
    the height of a figure with one row, and the height of a figure with two rows.
    """
    have_attention = all("attention" in run.observed for run in runs)
    rows = 2 if have_attention else 1
    figure = new_figure(width * len(runs), heights[rows - 1])
    panels = figure.subplots(rows, len(runs), sharex="col", sharey="row", squeeze=False)
    for column, run in zip(panels.T, runs, strict=True):
        top = column[0]
        bottom = column[-1]
        _draw_loss(run, top)
        if have_attention:
            _draw_attention(run, bottom)
        bottom.set_xlabel("step")
        # The distance of 16 points leaves a line for the names of phases.
        top.set_title(_title(run, runs), fontsize=9, pad=16)
    # The first column has the labels of the rows.
    for ax in panels[:, 1:].ravel():
        ax.set_ylabel("")
    return panels[0, 0]  # type: ignore[no-any-return]


def plot_answer(answer: Answer, ax: Axes | None = None) -> Axes:
    """Draw the figure of an answer by `audit` or `answer`, and return its axes."""
    if not hasattr(answer, "series"):
        raise argument_error("answer", answer, "an answer of the audit")
    # A legend within the axes would cover the curves if they are many, or if the y axis
    # is linear. In these cases the legend stands below the axes, in two columns if all
    # labels are short. With a given ``ax`` it stands within the axes, because only a
    # new figure is made higher for a legend below them.
    would_cover = len(answer.series) > MOST_IN_AXES or answer.y_scale == "linear"
    is_below = ax is None and would_cover
    has_short_labels = all(len(series.label) <= SHORT_LABEL for series in answer.series)
    columns = 2 if has_short_labels else 1
    height = 3.2
    if is_below:
        # Inches for the frame of the legend and for each of its lines.
        height += 0.2 + 0.17 * math.ceil(len(answer.series) / columns)
    with styled():
        ax = new_figure(4.6, height).subplots() if ax is None else axes("ax", ax)
        for colour, series in zip(itertools.cycle(CYCLE), answer.series, strict=False):
            properties: dict[str, Any] = {}
            if series.points:
                properties = {"marker": "o", "markersize": 3.5, "linestyle": "none"}
            ax.plot(series.x, series.y, color=colour, label=series.label, **properties)
        ax.set(
            xscale=answer.x_scale,
            yscale=answer.y_scale,
            xlabel=answer.x,
            ylabel=answer.y,
        )
        ax.set_title(textwrap.fill(answer.question, TITLE_WIDTH), fontsize=9)
        if is_below:
            ax.figure.legend(fontsize=8, loc="outside lower center", ncols=columns)
        else:
            ax.legend(fontsize=8)
        return ax


def plot_comparison(found: CurveComparison, ax: Axes | None = None) -> Axes:
    """Draw a user's loss curve and the exact one, with a band of two standard errors.

    The band is around the reference: the exact curve or, if the mean of runs of SGD
    leaves it, this mean. A red line marks the step at which the user's curve leaves the
    reference. A dashed curve shows the explanation that fits best, if one was found.
    """
    instance(
        "found", found, CurveComparison, "a CurveComparison, as returned by run.compare"
    )
    with styled():
        ax = new_figure(4.6, 3.2).subplots() if ax is None else axes("ax", ax)
        t = np.maximum(found.t, FIRST_STEP)
        _draw_band(ax, t, found)
        curve = np.clip(found.losses, SMALLEST, style.LARGEST)
        ax.plot(t, curve, ".", color=BLUE, markersize=3, label="your curve")
        exact = np.clip(found.population, SMALLEST, style.LARGEST)
        ax.plot(t, exact, color=BLACK, label="exact")
        if found.leaves is not None:
            # ``leaves`` is the first interval of steps in which the curves differ.
            first_step, *_ = found.leaves
            ax.axvline(
                max(first_step, FIRST_STEP),
                color=RED,
                linestyle="--",
                label=f"leaves at {first_step:,}",
            )
        # The explanation that fits best is the first.
        best = found.explanations[0] if found.explanations else None
        if best is not None and best.losses is not None:
            explained = np.clip(best.losses, SMALLEST, style.LARGEST)
            label = f"explained: {best.name}"
            ax.plot(t, explained, "--", color=ORANGE, label=label)
        ax.set(xscale="log", yscale="log", xlabel="step", ylabel="loss")
        ax.legend(
            fontsize=8, loc="lower left", frameon=True, framealpha=1.0, edgecolor="none"
        )
        return ax


def _draw_band(ax: Axes, t: Any, found: CurveComparison) -> None:
    """Draw a band of two standard errors around the reference curve.

    ``found.reference`` is the curve with which the user's curve is compared, and
    ``found.errors`` are the standard errors of single losses of the user. ``t`` are the
    places of the steps on the axis.
    """
    reference = np.clip(found.reference, SMALLEST, style.LARGEST)
    half_width = 2.0 * found.errors
    # Where two standard errors exceed the loss, the lower edge of the band would have
    # no place on a logarithmic axis. So no edge is drawn below a tenth of the loss.
    low = np.clip(reference - half_width, 0.1 * reference, style.LARGEST)
    high = np.clip(reference + half_width, 0.1 * reference, style.LARGEST)
    ax.fill_between(
        t,
        low,
        high,
        color=BLACK,
        alpha=0.15,
        linewidth=0,
        label="± 2 standard errors",
    )


def _title(run: Trajectory, runs: Sequence[Trajectory]) -> str:
    """Return the title above a run, one of ``runs``.

    It names the numbers that `parameters_of` returns, the parameters of the run that
    are words and not the same in all runs, and the regime.
    """
    # Each pair has the text that is drawn, and a plain text. `_wrapped` takes the width
    # from the plain text, because TeX has more characters than it draws.
    numbers = []
    for label, value in parameters_of(run):
        symbol = style.mathematics(label.tex, label.text)
        numbers.append((f"{symbol} = {value}", label.text + value))
    words = []
    for name, value in run.info.items():
        if isinstance(value, str) and _differs(name, value, runs):
            words.append(f"{_label(run, name).text} = {value}")
    if run.regime:
        words.append(f"{run.regime} regime")
    lines = _wrapped(numbers)
    if words:
        # Words from a file may hold anything, even dollar signs.
        lines.append(style.escape(", ".join(words)))
    return "\n".join(lines)


def _differs(name: str, value: str, runs: Sequence[Trajectory]) -> bool:
    """Whether the parameter ``name`` has another value than ``value`` in any run."""
    return any(run.info.get(name) != value for run in runs)


def _wrapped(entries: Sequence[tuple[str, str]], width: int = 44) -> list[str]:
    """Wrap the entries of a title into lines of ``width`` characters.

    By default a line is as wide as a panel. Each entry is a pair. Its first text, a
    symbol and its value such as "$L$ = 2", is drawn. Its second text has symbol and
    value in plain characters without the equals sign, such as "L2".
    """
    lines: list[str] = []
    # No line has begun, so the first entry begins one.
    free_width = 0
    for tex, plain in entries:
        # An entry takes the characters of its plain text, three for the equals sign
        # with its spaces, and two for the comma and the space between entries.
        entry_width = len(plain) + 5
        if entry_width > free_width:
            lines.append(tex)
            free_width = width
        else:
            lines[-1] += f", {tex}"
        free_width -= entry_width
    return lines


def _draw_loss(run: Trajectory, ax: Axes) -> None:
    """Draw the loss, or its excess over the floor if the run has observed the excess.

    Horizontal lines mark the target, the floor, and the levels of the family, such as
    the losses of known predictors.
    """
    steps = _steps_on(run, ax)
    shade(run.phases, float(run.t[-1]), ax)
    # If the floor is zero, the excess is the loss itself.
    draws_excess = "excess" in run.observed and run.floor > 0
    if draws_excess:
        # The observed excess has all its digits; loss - floor would lack some of them.
        values = run.observed["excess"]
        subtracted = run.floor
        ylabel = "loss above floor"
        target_label = r"$\epsilon$ − floor"
    else:
        values = run.loss
        subtracted = 0.0
        ylabel = "loss"
        target_label = r"$\epsilon$"
    # Zero and huge values have no place on a logarithmic axis.
    drawn = np.clip(values, SMALLEST, style.LARGEST)
    ax.plot(steps, drawn, color=BLACK)
    ax.set(yscale="log", ylabel=ylabel)
    target = run.epsilon - subtracted
    if target > 0:
        level(ax, target, target_label, RED, "--")
    if run.floor > 0 and not draws_excess:
        level(ax, run.floor, "floor", "0.4", ":")
    levels = {} if run.family is None else run.family.levels()
    for name, loss in levels.items():
        # Levels are values of half the mean squared error. The factor is 2 if the loss
        # is the mean squared error, and otherwise 1.
        level(ax, run.family.loss_factor * loss - subtracted, name, "0.6", ":")
    if levels:
        # A margin at the top and the bottom keeps the names of levels within the axes.
        ax.margins(y=0.12)


def _draw_attention(run: Trajectory, ax: Axes) -> None:
    """Draw the attention on the target and the rest, 1 − attention, against the step.

    The two curves are means over the queries. A band shows the smallest and the largest
    attention of a query on its target.
    """
    steps = _steps_on(run, ax)
    shade(run.phases, float(run.t[-1]), ax, labels=False)
    # The attention of each query on its target: rows are steps, and columns queries.
    attention = run.attention.reshape(len(run.t), -1)
    mean = attention.mean(axis=1)
    if attention.shape[1] > 1:
        ax.fill_between(
            steps,
            attention.min(axis=1),
            attention.max(axis=1),
            color=BLUE,
            alpha=0.25,
            linewidth=0,
        )
    ax.plot(steps, mean, color=BLUE)
    # 1 - mean may round to zero, which a logarithmic axis cannot show.
    ax.plot(steps, np.maximum(1.0 - mean, SMALLEST), color=RED)
    ax.set(yscale="log", ylabel="attention")
    # The axis begins at half the smaller of two numbers. The first is the last value of
    # 1 - mean, but at most 0.1, so that the axis spans more than a decade. The second
    # is the smallest value of the mean. Zeros have no place on the axis: the first
    # number is at least 1e-300, and zeros of the mean do not count. At the top there is
    # a margin above 1.
    last_rest = float(np.clip(1.0 - mean[-1], 1e-300, 0.1))
    smallest_mean = float(mean.min(where=mean > 0.0, initial=1.0))
    ax.set_ylim(bottom=0.5 * min(last_rest, smallest_mean), top=2.5)
    _name_at_start(ax, "target", (steps[0], mean[0]), BLUE)
    _name_at_start(ax, "1 − target", (steps[0], 1.0 - mean[0]), RED)


def _name_at_start(ax: Axes, name: str, start: tuple[Any, Any], colour: str) -> None:
    """Write the name of a curve beside its first point, ``start``."""
    ax.annotate(name, start, xytext=(3, 3), textcoords="offset points", color=colour)


def _steps_on(run: Trajectory, ax: Axes) -> Any:
    """Set up the axis of steps, and return the places of the saved steps on it.

    On a logarithmic axis step 0 is drawn at 1/2.
    """
    # In normalised descent the loss falls exponentially with the step. Over a linear
    # axis of steps its logarithm is a straight line.
    if isinstance(run.trained_by, Normalised) and run.converged:
        scale = "linear"
        first = 0.0
    else:
        scale = "log"
        first = FIRST_STEP
    ax.set(xscale=scale, xlim=(first, max(2.0, float(run.t[-1]))))
    return np.maximum(run.t, first)
