"""Figures of runs and of answered questions."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from icl_theory._validate import instance, refuse, sequence
from icl_theory.engine.trajectory import Trajectory
from icl_theory.results.labels import label, parameters
from icl_theory.results.plots.style import (
    BLACK,
    BLUE,
    CYCLE,
    LARGEST,
    RED,
    axes,
    escape,
    level,
    mathematics,
    new_figure,
    shade,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from icl_theory.papers.claim import Answer

WIDEST = 44  # characters of a line of a title


def plot_run(run: Trajectory, ax: Axes | None = None) -> Axes:
    """Draw the loss (and, on a figure of its own, the attention) of a run against the step.

    Both axes are logarithmic, except that normalised descent that converged, which does so exponentially, is drawn
    over linear steps. Where the risk observes its ``excess`` over the floor, that is what is drawn.

    Parameters
    ----------
    run : Trajectory
        The run.
    ax : matplotlib Axes, optional
        Axes for the loss alone.

    Returns
    -------
    matplotlib Axes
        The axes of the loss.
    """
    instance("run", run, Trajectory, "a Trajectory")
    with styled():
        if ax is not None:
            _draw_loss(run, axes("ax", ax))
            ax.set_xlabel("step")
            return ax
        with_attention = "attention" in run.observed
        figure = new_figure(3.4, 4.4 if with_attention else 2.6)
        panels = figure.subplots(2 if with_attention else 1, 1, sharex=True, squeeze=False)[:, 0]
        _draw_loss(run, panels[0])
        if with_attention:
            _draw_attention(run, panels[1])
        panels[-1].set_xlabel("step")
        panels[0].set_title(_title(run), fontsize=9, pad=16)
        return panels[0]  # type: ignore[no-any-return]


def compare_runs(runs: Sequence[Trajectory]) -> Axes:
    """Draw several runs side by side with common axes: the loss, and below it the attention where all have it.

    Parameters
    ----------
    runs : sequence of Trajectory
        At least one.

    Returns
    -------
    matplotlib Axes
        The first axes of the figure.
    """
    runs = sequence("runs", runs, Trajectory, "one run or more, each a Trajectory")
    with styled():
        rows = 2 if all("attention" in run.observed for run in runs) else 1
        figure = new_figure(3.2 * len(runs), 4.2 if rows == 2 else 2.4)
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
    """Draw the figure of an answered question.

    Parameters
    ----------
    answer : Answer
        From `icl_theory.audit` or `icl_theory.answer`.
    ax : matplotlib Axes, optional
        Axes to draw into.

    Returns
    -------
    matplotlib Axes
        The axes of the figure.
    """
    if not hasattr(answer, "series"):
        raise refuse("answer", answer, "an answer of the audit")
    with styled():
        ax = new_figure(4.6, 3.2).subplots() if ax is None else axes("ax", ax)
        for colour, series in zip(itertools.cycle(CYCLE), answer.series, strict=False):
            style = {"marker": "o", "markersize": 3.5, "linestyle": "none"} if series.points else {}
            ax.plot(series.x, series.y, color=colour, label=series.label, **style)  # type: ignore[arg-type]
        ax.set_xscale(answer.x_scale)
        ax.set_yscale("log")
        ax.set_xlabel(answer.x)
        ax.set_ylabel(answer.y)
        ax.set_title(textwrap.fill(answer.question, 60), fontsize=9)
        ax.legend(fontsize=8)
        return ax


def _title(run: Trajectory, among: Sequence[Trajectory] = ()) -> str:
    """Name the parameters, the regime, and the words by which a run differs from others."""
    values = [
        (f"{mathematics(each.tex, each.text)} = {value}", each.text + value) for each, value in parameters(run)
    ]
    differing = [
        f"{label(run, name).text} = {value}"
        for name, value in run.info.items()
        if isinstance(value, str) and any(other.info.get(name) != value for other in among)
    ]
    words = [*differing, f"{run.regime} regime" if run.regime else ""]
    plain = escape(", ".join(filter(None, words)))  # of a file, whose text may be anything
    return "\n".join(filter(None, [*_wrapped(values), plain]))


def _wrapped(words: Sequence[tuple[str, str]]) -> list[str]:
    """Put words in lines, from each word and the text by which its width is judged."""
    lines: list[str] = []
    room = 0
    for word, shown in words:
        if len(shown) + 5 > room:
            lines, room = [*lines, word], WIDEST
        else:
            lines[-1] += f", {word}"
        room -= len(shown) + 5
    return lines


def _draw_loss(run: Trajectory, ax: Axes) -> None:
    _scale_steps(run, ax)
    shade(run.phases, float(run.t[-1]), ax)
    above = "excess" in run.observed and run.floor > 0
    positive = np.clip(run.observed["excess"] if above else run.loss, np.finfo(float).tiny, LARGEST)
    ax.plot(_x(run), positive, color=BLACK)
    ax.set_yscale("log")
    ax.set_ylabel("loss above floor" if above else "loss")
    target = run.epsilon - run.floor if above else run.epsilon
    if target > 0:
        level(ax, target, r"$\epsilon$ − floor" if above else r"$\epsilon$", RED, "--")
    if run.floor > 0 and not above:
        level(ax, run.floor, "floor", "0.4", ":")


def _draw_attention(run: Trajectory, ax: Axes) -> None:
    _scale_steps(run, ax)
    shade(run.phases, float(run.t[-1]), ax, labels=False)
    series = run.attention.reshape(len(run.t), -1)
    target = series.mean(axis=1)
    if series.shape[1] > 1:
        ax.fill_between(_x(run), series.min(axis=1), series.max(axis=1), color=BLUE, alpha=0.25, linewidth=0)
    ax.plot(_x(run), target, color=BLUE)
    ax.plot(_x(run), np.maximum(1.0 - target, np.finfo(float).tiny), color=RED)
    ax.set_yscale("log")
    ax.set_ylabel("attention")
    low = float(np.clip(1.0 - target[-1], 1e-300, 0.1))
    ax.set_ylim(bottom=0.5 * min(low, float(target.min(where=target > 0.0, initial=1.0))), top=2.5)
    start = _x(run)[0]
    ax.annotate("target", (start, target[0]), xytext=(3, 3), textcoords="offset points", color=BLUE)
    ax.annotate("1 − target", (start, 1.0 - target[0]), xytext=(3, 3), textcoords="offset points", color=RED)


def _x(run: Trajectory) -> Any:
    """Steps; on a logarithmic axis the start is drawn at step 1/2."""
    return run.t if _is_exponential(run) else np.maximum(run.t, 0.5)


def _is_exponential(run: Trajectory) -> bool:
    return run.rule == "ngd" and run.converged


def _scale_steps(run: Trajectory, ax: Axes) -> None:
    linear = _is_exponential(run)
    ax.set_xscale("linear" if linear else "log")
    ax.set_xlim(0.0 if linear else 0.5, max(2.0, float(run.t[-1])))
