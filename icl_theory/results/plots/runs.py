"""Figures of runs and of answered questions."""

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


def parameters_of(run: Trajectory) -> list[tuple[Label, str]]:
    """Return the numbers that describe a run, with their labels.

    Numbers that are zero or infinite are left out, and so are numbers without a symbol
    if others have one.
    """
    numbers = {
        name: value
        for name, value in run.info.items()
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and value != 0
        and math.isfinite(value)
    }
    with_symbol = [name for name in numbers if _label(run, name).tex]
    return [
        (_label(run, name), number(numbers[name])) for name in with_symbol or numbers
    ]


def _label(run: Trajectory, name: str) -> Label:
    return run.labels.get(name) or Label(name, "", "", "")


def plot_run(run: Trajectory, ax: Axes | None = None) -> Axes:
    """Draw the loss of a run against the step, with the attention below it.

    If ``ax`` is given, only the loss is drawn.

    Both axes are logarithmic, but normalised descent that converged, which is
    exponential, has a linear axis of steps. If the risk observes its ``excess`` over
    the floor, that is drawn instead of the loss.

    Returns the axes of the loss.
    """
    instance("run", run, Trajectory, "a Trajectory")
    with styled():
        if ax is not None:
            _draw_loss(run, axes("ax", ax))
            ax.set_xlabel("step")
            return ax
        return _side_by_side([run], 3.4, (2.6, 4.4))


def compare_runs(runs: Sequence[Trajectory]) -> Axes:
    """Draw several runs side by side with common axes.

    Each run has its loss, and the attention below it if all runs observe it.

    Returns the first axes of the figure.
    """
    runs = sequence("runs", runs, Trajectory, "one run or more, each a Trajectory")
    with styled():
        return _side_by_side(runs, 3.2, (2.4, 4.2))


def _side_by_side(
    runs: Sequence[Trajectory], width: float, heights: tuple[float, float]
) -> Axes:
    rows = 2 if all("attention" in run.observed for run in runs) else 1
    figure = new_figure(width * len(runs), heights[rows - 1])
    panels = figure.subplots(rows, len(runs), sharex="col", sharey="row", squeeze=False)
    for column, run in zip(panels.T, runs, strict=True):
        _draw_loss(run, column[0])
        if rows == 2:
            _draw_attention(run, column[1])
        column[-1].set_xlabel("step")
        column[0].set_title(_title(run, runs), fontsize=9, pad=16)
    for ax in panels[:, 1:].ravel():
        ax.set_ylabel("")
    return panels[0, 0]  # type: ignore[no-any-return]


def plot_answer(answer: Answer, ax: Axes | None = None) -> Axes:
    """Draw the figure of an answer by `audit` or `answer`, and return its axes."""
    if not hasattr(answer, "series"):
        raise argument_error("answer", answer, "an answer of the audit")
    # a legend of many lines, or on a map, would lie on what is drawn: it goes below, in
    # columns if there is room
    columns = 2 if all(len(series.label) <= 24 for series in answer.series) else 1
    below = ax is None and (len(answer.series) > 3 or answer.y_scale == "linear")
    height = 3.2 + below * (0.2 + 0.17 * math.ceil(len(answer.series) / columns))
    with styled():
        ax = new_figure(4.6, height).subplots() if ax is None else axes("ax", ax)
        for colour, series in zip(itertools.cycle(CYCLE), answer.series, strict=False):
            look: Any = (
                {"marker": "o", "markersize": 3.5, "linestyle": "none"}
                if series.points
                else {}
            )
            ax.plot(series.x, series.y, color=colour, label=series.label, **look)
        ax.set(
            xscale=answer.x_scale,
            yscale=answer.y_scale,
            xlabel=answer.x,
            ylabel=answer.y,
        )
        ax.set_title(textwrap.fill(answer.question, 60), fontsize=9)
        if below:
            ax.figure.legend(fontsize=8, loc="outside lower center", ncols=columns)
        else:
            ax.legend(fontsize=8)
        return ax


def plot_comparison(found: CurveComparison, ax: Axes | None = None) -> Axes:
    """Draw a curve over the exact one, with a band of two standard errors.

    It is red from the step at which they part.
    """
    instance("found", found, CurveComparison, "what run.compare returns")
    with styled():
        ax = new_figure(4.6, 3.2).subplots() if ax is None else axes("ax", ax)
        t = np.maximum(found.t, 0.5)
        tiny = float(np.finfo(float).tiny)
        exact, curve = (
            np.clip(each, tiny, style.LARGEST)
            for each in (found.population, found.losses)
        )
        low, high = (
            np.clip(exact + side * found.errors, 0.1 * exact, style.LARGEST)
            for side in (-2.0, 2.0)
        )
        ax.fill_between(
            t,
            low,
            high,
            color=BLACK,
            alpha=0.15,
            linewidth=0,
            label="± 2 standard errors",
        )
        ax.plot(t, curve, ".", color=BLUE, markersize=3, label="your curve")
        ax.plot(t, exact, color=BLACK, label="exact")
        if found.leaves is not None:
            ax.axvline(
                max(found.leaves[0], 0.5),
                color=RED,
                linestyle="--",
                label=f"leaves at {found.leaves[0]:,}",
            )
        ax.set(xscale="log", yscale="log", xlabel="step", ylabel="loss")
        ax.legend(
            fontsize=8, loc="lower left", frameon=True, framealpha=1.0, edgecolor="none"
        )
        return ax


def _title(run: Trajectory, among: Sequence[Trajectory]) -> str:
    """Name the parameters, the regime, and the words that tell a run from others."""
    values = [
        (f"{style.mathematics(each.tex, each.text)} = {value}", each.text + value)
        for each, value in parameters_of(run)
    ]
    words = [
        f"{_label(run, name).text} = {value}"
        for name, value in run.info.items()
        if isinstance(value, str)
        and any(other.info.get(name) != value for other in among)
    ]
    words += [f"{run.regime} regime"] if run.regime else []
    plain = style.escape(", ".join(words))  # words from a file may hold anything
    return "\n".join(filter(None, [*_wrapped(values), plain]))


def _wrapped(words: Sequence[tuple[str, str]], width: int = 44) -> list[str]:
    """Wrap words into lines of ``width`` characters, as wide as a panel.

    The plain text of each word counts.
    """
    lines: list[str] = []
    room = 0
    for word, plain in words:
        if len(plain) + 5 > room:
            lines = [*lines, word]
            room = width
        else:
            lines[-1] += f", {word}"
        room -= len(plain) + 5
    return lines


def _draw_loss(run: Trajectory, ax: Axes) -> None:
    steps = _steps_on(run, ax)
    shade(run.phases, float(run.t[-1]), ax)
    above = "excess" in run.observed and run.floor > 0
    positive = np.clip(
        run.observed["excess"] if above else run.loss,
        np.finfo(float).tiny,
        style.LARGEST,
    )
    ax.plot(steps, positive, color=BLACK)
    ax.set(yscale="log", ylabel="loss above floor" if above else "loss")
    target = run.epsilon - run.floor if above else run.epsilon
    if target > 0:
        level(ax, target, r"$\epsilon$ − floor" if above else r"$\epsilon$", RED, "--")
    if run.floor > 0 and not above:
        level(ax, run.floor, "floor", "0.4", ":")
    levels = {} if run.family is None else run.family.levels()
    for name, loss in levels.items():
        level(ax, loss - run.floor if above else loss, name, "0.6", ":")
    if levels:
        ax.margins(y=0.12)  # room for their names


def _draw_attention(run: Trajectory, ax: Axes) -> None:
    steps = _steps_on(run, ax)
    shade(run.phases, float(run.t[-1]), ax, labels=False)
    series = run.attention.reshape(len(run.t), -1)
    target = series.mean(axis=1)
    if series.shape[1] > 1:
        ax.fill_between(
            steps,
            series.min(axis=1),
            series.max(axis=1),
            color=BLUE,
            alpha=0.25,
            linewidth=0,
        )
    ax.plot(steps, target, color=BLUE)
    ax.plot(steps, np.maximum(1.0 - target, np.finfo(float).tiny), color=RED)
    ax.set(yscale="log", ylabel="attention")
    low = float(np.clip(1.0 - target[-1], 1e-300, 0.1))
    ax.set_ylim(
        bottom=0.5 * min(low, float(target.min(where=target > 0.0, initial=1.0))),
        top=2.5,
    )
    for name, first, colour in (
        ("target", target[0], BLUE),
        ("1 − target", 1.0 - target[0], RED),
    ):
        ax.annotate(
            name,
            (steps[0], first),
            xytext=(3, 3),
            textcoords="offset points",
            color=colour,
        )


def _steps_on(run: Trajectory, ax: Axes) -> Any:
    """Set up the axis of steps, and return their places.

    On a logarithmic axis step 0 is drawn at 1/2.
    """
    linear = isinstance(run.trained_by, Normalised) and run.converged
    first = 0.0 if linear else 0.5
    ax.set(
        xscale="linear" if linear else "log", xlim=(first, max(2.0, float(run.t[-1])))
    )
    return np.maximum(run.t, first)
