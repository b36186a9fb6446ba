"""Reports of runs and sweeps, with the command that made them, as one HTML file."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import math
import shlex
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from icl_theory._validate import argument_error, choice, instance
from icl_theory.engine.progress import Progress, counted
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families.plug_ins import left_out
from icl_theory.results.columns import (
    dimensions,
    has_values,
    lines,
    not_applicable,
    point_facts,
    steps_of,
    symbol,
)
from icl_theory.results.notebook import (
    facts,
    figure,
    page,
    paragraph,
    picture,
    section,
    table,
)
from icl_theory.results.notebook import text as escaped
from icl_theory.results.numbers import distinct_texts, number
from icl_theory.results.plots.runs import parameters_of, plot_run
from icl_theory.results.plots.sweeps import drawable, plot_sweep, thinned
from icl_theory.results.reading import computed, count, first_part, places_of
from icl_theory.results.representations import html
from icl_theory.results.tables import contents, phase_table
from icl_theory.results.transitions import notes_of, transitions_of
from icl_theory.statements.checks import check_bounds
from icl_theory.statements.statement import NotCoveredError
from icl_theory.sweeps.grid import FAILED, NOT_REACHED, PENDING, REACHED

if TYPE_CHECKING:
    import pandas as pd
    import xarray

# Arguments of a sweep that another part of the report shows.
SHOWN_ELSEWHERE = ("version", "model", "family")
# The words of the summary for the points with each status. Pending points have a
# sentence of their own.
STATUS_WORDS = {
    REACHED: "reached the target",
    NOT_REACHED: "did not reach it",
    FAILED: "failed",
    PENDING: "",
}
# The largest number of characters of a message in the report. A longer message, such as
# one that shows an array, would fill the table of the problems.
LONGEST_MESSAGE = 500
# The largest number of values of a parameter that the report lists: about a line.
MOST_VALUES = 8
# The largest number of rows of the table of a sweep in the report: a few pages. To see
# all rows, readers write the table to a file of its own.
MOST_ROWS = 200
# The largest number of figures. More would make the report long, and slow to write.
MOST_FIGURES = 6
# The largest number of points that are listed with their messages, about a screen.
MOST_PROBLEMS = 20
# The largest number of values that the caption of a figure names as not drawn. More
# would make the caption longer than a line or two.
MOST_NOT_DRAWN = 4


@Progress("writing the report")
def html_report(
    found: Trajectory | xarray.Dataset,
    *,
    over: str | None = None,
    source: str | None = None,
    date: datetime.date | None = None,
) -> str:
    """Return a report of a run or of a sweep: one HTML page that needs no network.

    Parameters
    ----------
    found : Trajectory or xarray.Dataset
        A run, or the dataset from `sweep` or `load_sweep`, finished or not.
    over : str, optional
        For a sweep: the parameter that varies fastest from row to row; the first
        dimension unless given.
    source : str, optional
        The file or folder from which ``found`` was read; the report names it.
    date : datetime.date, optional
        The date to be printed in the report. By default the report has no date, so that
        the same arguments give the same page.

    Returns
    -------
    str
        The page; docs/sweeps.md, "A report", describes its contents. Tables say how
        many rows they leave out. Theorems about the model are evaluated on a run, if
        it has its ``risk``, which a run from a file may lack.

    Examples
    --------
    >>> import icl_theory as icl
    >>> page = icl.html_report(icl.simulate(2.0, 1.0, 4.0))
    >>> page[:15], "icl.Regression(L=2.0, delta=1.0, eta=4.0).simulate()" in page
    ('<!DOCTYPE html>', True)
    """
    instance("source", source, (str, type(None)), "a text")
    instance("date", date, (datetime.date, type(None)), "a datetime.date")
    if isinstance(found, Trajectory):
        if over is not None:
            raise ValueError(f"over = {over!r}: a run has no swept parameter")
        title, body = _of_run(found)
        command = found.command
        version = found.version
    elif hasattr(found, "data_vars") and {"status", "message"} <= set(found.data_vars):
        title, body = _of_sweep(found, over, source)
        command = found.attrs.get("command")
        version = found.attrs.get("version")
    else:
        raise argument_error("found", found, "a run, or the dataset of a sweep")
    day = None if date is None else date.isoformat()
    return page(
        title,
        body,
        (command or "").splitlines(),
        version=version,
        source=source,
        date=day,
    )


def _of_run(run: Trajectory) -> tuple[str, list[str]]:
    """Return the title and the sections of the report of a run."""
    title = "Training run"
    values = ", ".join(f"{label.text} = {value}" for label, value in parameters_of(run))
    if values:
        title += f": {values}"
    caption = "Loss against the step"
    if "attention" in run.observed:
        caption = "Loss and attention against the step"
    if run.phases is not None:
        caption += ", phases shaded"
    return title, [
        section("Summary", facts(run.facts())),
        section("Figure", figure(picture(plot_run(run)), f"{caption}.")),
        section("Phases", _phases(run)),
        section("Theorems", _statements(run)),
        section("Saved steps", *_saved_steps(run)),
    ]


def _phases(run: Trajectory) -> str:
    """Return the table of the phases, or "" for a run without phases."""
    if run.phases is None:
        return ""
    present = run.phases.present()
    columns: dict[str, list[Any]] = {
        "phase": list(present),
        "first step": [first for first, _ in present.values()],
        "last step": [last for _, last in present.values()],
        "steps": [last - first for first, last in present.values()],
    }
    return table(columns)


def _statements(run: Trajectory) -> str:
    """Return the statements of the theory, checked on a run, as HTML.

    The result is empty if the run does not have its risk, or if no statement of its
    family covers the risk.
    """
    messages: list[str] = []
    # The family may be from another package. `left_out` turns an error in its code into
    # a message, so that the rest of the report is still written.
    with left_out("the check of the statements", messages):
        if run.risk is None:
            return ""
        # NotCoveredError is raised if no statement of the family covers the risk.
        with contextlib.suppress(NotCoveredError):
            return str(html(check_bounds(run)))
    return "".join(map(paragraph, messages))


def _saved_steps(run: Trajectory, most: int = 40) -> list[str]:
    """Return a table of at most ``most`` saved steps, evenly spaced among them.

    Sentences above the table say what it leaves out. By default the table fills about
    two screens.
    """
    # If few steps are saved, rounding may choose a step twice.
    chosen = np.unique(np.linspace(0, len(run.t) - 1, most).round().astype(int))
    columns: dict[str, Any] = {"step": run.t, "loss": run.loss}
    not_shown = []
    for name, values in run.observed.items():
        if values.ndim == 1:
            columns[name] = values
        elif name == "attention":
            # All axes after the first are queries, over which the mean is taken.
            columns["attention (mean)"] = values.reshape(len(run.t), -1).mean(axis=1)
        else:
            not_shown.append(name)
    sentences = []
    if len(chosen) < len(run.t):
        sentences.append(
            f"{len(chosen)} of {number(len(run.t))} saved steps, "
            "the first and the last among them."
        )
    if not_shown:
        names = ", ".join(not_shown)
        sentences.append(f"Left out, with several numbers a step: {names}.")
    rows = {name: list(values[chosen]) for name, values in columns.items()}
    return [*map(paragraph, sentences), table(rows)]


def _of_sweep(
    dataset: xarray.Dataset, over: str | None, source: str | None
) -> tuple[str, list[str]]:
    """Return the title and the sections of the report of a sweep."""
    names = dimensions(dataset)
    if over is not None:
        choice("over", over, names)
    counts = {status: count(dataset, status) for status in STATUS_WORDS}
    size = dataset["status"].size
    done_count = size - counts[PENDING]
    # The smallest block of the grid that has every computed point.
    block = computed(dataset)
    body = [section("Summary", paragraph(_summary(counts, size, source)))]
    if names and done_count:
        is_complete = done_count == size
        body += _swept(block, over or names[0], source, done_count, is_complete)
    elif done_count:
        body.append(section("Point", facts(point_facts(block))))
    body.append(
        _problems(block, {status: counts[status] for status in (FAILED, NOT_REACHED)})
    )
    body.append(section("Parameters", *_parameters(dataset)))
    if done_count:
        body.append(section("Quantities", table(_quantities(block))))
    family = dataset.attrs.get("title") or "a model"
    swept = ", ".join(symbol(dataset, name) for name in names)
    title = f"Sweep of {family} over {swept}" if names else f"One point of {family}"
    return title, body


def _summary(counts: dict[str, int], size: int, source: str | None) -> str:
    """Say how many of ``size`` points are computed, and how many have each status.

    ``counts`` has the number of points with each status. ``source`` is the store or the
    file of the sweep, if there is one.
    """
    missing = counts[PENDING]
    points_are = "point is" if size == 1 else "points are"
    text = f"{number(size - missing)} of {number(size)} {points_are} computed"
    parts = []
    for status, words in STATUS_WORDS.items():
        if words and counts[status]:
            parts.append(f"{number(counts[status])} {words}")
    text += f": {', '.join(parts)}." if parts else "."
    if missing:
        verb = "is" if missing == 1 else "are"
        text += f" {number(missing)} {verb} missing: the sweep is not complete."
        if source:
            text += " The same command with this store computes them."
    return text


def _swept(
    dataset: xarray.Dataset,
    over: str,
    source: str | None,
    done_count: int,
    is_complete: bool,
    most_columns: int = 14,
) -> list[str]:
    """Return the figures, the transitions and the first rows of the table of a sweep.

    ``source`` is the store or the file of the sweep, if there is one. ``done_count`` is
    the number of computed points, and ``is_complete`` says whether these are all
    points. The table has a column for every parameter and quantity. If these are more
    than ``most_columns`` columns, the table has only the columns that `phase_table` has
    by default.
    """
    part = first_part(dataset, over)
    rows = phase_table(part, over, every=True)
    if len(rows.columns) > most_columns:
        # The table would be wider than a page.
        rows = phase_table(part, over)
    # Leave out columns without a value: `number` writes a missing value as "".
    rows = rows[[name for name in rows.columns if any(map(number, rows[name]))]]
    command = f"icl_theory.phase_table(dataset, {over!r})"
    if source:
        command = shlex.join(
            ["icl-theory", "table", source, "--over", over, "--csv", "all.csv"]
        )
    transitions = _transitions(dataset, over)
    if transitions and not is_complete:
        transitions.insert(0, paragraph("Of the points that are computed so far:"))
    return [
        section("Figures", *_figures(dataset, over)),
        section("Transition", *transitions),
        section("Table", *_rows(rows, done_count, command)),
    ]


def _rows(
    rows: pd.DataFrame, total: int, command: str, most: int = MOST_ROWS
) -> list[str]:
    """Return a table of the first ``most`` rows.

    The whole table has ``total`` rows, of which ``rows`` may have only the first ones.
    If rows are left out, a sentence says how many, and names ``command``, which makes
    the whole table.
    """
    head = rows.head(most)
    omitted = total - len(head)
    if not omitted:
        return [table(dict(contents(head)))]
    text = (
        f"The first {len(head)} of {number(total)} rows; "
        f"{number(omitted)} are left out."
    )
    # The sentence has a tag, which `paragraph` would escape.
    code = f"<code>{escaped(command)}</code>"
    return [f"<p>{text} {code} has them all.</p>", table(dict(contents(head)))]


def _transitions(
    dataset: xarray.Dataset, over: str, most_sentences: int = 4
) -> list[str]:
    """Say where the regimes change along the parameter ``over``.

    Up to ``most_sentences`` transitions are sentences, and more are a table. If the
    theory has no transitions for the sweep, the result says why, or is empty.
    """
    transitions = transitions_of(dataset, over)
    if transitions is None:
        reason = not_applicable(dataset)
        return [paragraph(reason)] if reason else []
    if len(transitions) <= most_sentences:
        return [*map(paragraph, notes_of(transitions, dataset, over))]
    if transitions["measured"].isna().all():
        lines_along = f"{len(transitions):,} lines along {symbol(dataset, over)}"
        return [paragraph(f"None of the {lines_along} has a measured transition.")]
    command = f"icl_theory.transition_table(dataset, {over!r})"
    return _rows(transitions, len(transitions), command)


def _figures(dataset: xarray.Dataset, over: str, most: int = MOST_FIGURES) -> list[str]:
    """Return figures of the first ``most`` slices over one or two parameters.

    In a slice, ``over`` and the first other parameter vary, and all further parameters
    are fixed.
    """
    other_names = [name for name in dimensions(dataset) if name != over]
    axes = [over, *other_names[:1]]
    fixed = other_names[1:]
    # For each fixed parameter, the text of each of its values in captions.
    texts = {}
    for name in fixed:
        values = dataset[name].values.tolist()
        texts[name] = dict(zip(values, distinct_texts(values), strict=True))
    figures = []
    slices = [*itertools.islice(lines(dataset, *axes), most)]
    for fixed_values, part in counted(slices, "figures"):
        caption_end = ""
        for name, value in fixed_values.items():
            caption_end += f", {symbol(dataset, name)} = {texts[name][value]}"
        figures.append(_figure(part, over, axes, caption_end))
    omitted = math.prod(dataset.sizes[name] for name in fixed) - len(figures)
    if omitted:
        figures.append(
            paragraph(
                f"{number(omitted)} more slices have no figure here; "
                "icl_theory.plot_sweep draws a slice chosen with dataset.sel(...)."
            )
        )
    return figures


def _figure(part: xarray.Dataset, over: str, axes: list[str], caption_end: str) -> str:
    """Return the figure of a slice, or a sentence that says why there is none.

    ``axes`` are the names of the parameters on the axes, and ``over`` is the one on the
    horizontal axis. ``caption_end`` continues the caption with the values of the fixed
    parameters.
    """
    symbols = " and ".join(symbol(part, name) for name in axes)
    caption = f"Steps over {symbols}{caption_end}"
    not_drawn = []
    for name in axes:
        # Infinite and huge numbers have no place on an axis.
        is_drawable = drawable(part, name)
        not_drawn += [
            f"{symbol(part, name)} = {number(value)}"
            for value in part[name].values[~is_drawable]
        ]
        part = part.isel({name: is_drawable})
    steps = steps_of(part)
    if steps is None or not (part[steps].values > 0).any():
        return paragraph(
            f"{caption}: no figure, because no computed point took a step or more to "
            "its target."
        )
    # `plot_sweep` draws only every stride-th value of a parameter with many values.
    for name, stride in thinned(part).items():
        caption += f", one value of {symbol(part, name)} in {stride}"
    if not_drawn:
        caption += f", without {', '.join(not_drawn[:MOST_NOT_DRAWN])}"
    if len(not_drawn) > MOST_NOT_DRAWN:
        caption += f" and {len(not_drawn) - MOST_NOT_DRAWN} more"
    return figure(picture(plot_sweep(part, over)), f"{caption}.")


class _Problem(NamedTuple):
    """A point that failed or missed its target."""

    status: str
    indices: tuple[int, ...]  # the index of the point along each dimension of the grid


def _problems(
    dataset: xarray.Dataset, counts: dict[str, int], most: int = MOST_PROBLEMS
) -> str:
    """List at most ``most`` points with their messages, status by status.

    ``counts`` has the number of points with each of the statuses to list.
    """
    heading = "Points that failed or did not reach their target"
    problems: list[_Problem] = []
    for status, total in counts.items():
        # The indices of the points with this status, which are found one by one
        places = places_of(dataset["status"] == status)
        # Stop at the last point with this status: otherwise the search would go through
        # the rest of the grid, which may have millions of points.
        shown_count = min(total, most - len(problems))
        shown = itertools.islice(places, shown_count)
        problems += [_Problem(status, indices) for indices in shown]
    if not problems:
        return section(heading)
    columns: dict[str, list[Any]] = {}
    for i, dimension in enumerate(dataset["status"].dims):
        values = dataset[dimension].values
        columns[str(dimension)] = [values[problem.indices[i]] for problem in problems]
    columns["status"] = [problem.status for problem in problems]
    columns["message"] = [_message(dataset, problem.indices) for problem in problems]
    omitted = sum(counts.values()) - len(problems)
    note = paragraph(f"{number(omitted)} more are left out.") if omitted else ""
    return section(heading, table(columns), note)


def _message(dataset: xarray.Dataset, indices: tuple[int, ...]) -> str:
    """Return the beginning of the message of a point, which ``indices`` select."""
    message = str(dataset["message"][indices].values.item())
    return message[:LONGEST_MESSAGE]


def _parameters(dataset: xarray.Dataset) -> list[str]:
    """Return a table of the parameters, and a table of further arguments of the sweep.

    The second table is empty if no further argument was given.
    """
    names = [str(name) for name in dataset.coords]
    columns = {
        "parameter": names,
        "symbol": [dataset[name].attrs.get("symbol", "") for name in names],
        "values": [_values(dataset[name].values) for name in names],
    }
    arguments = json.loads(dataset.attrs.get("arguments", "{}"))
    # Another program may have written an attribute of this name into the dataset.
    if not isinstance(arguments, dict):
        arguments = {}
    further_arguments = {
        name: value
        for name, value in arguments.items()
        if name not in SHOWN_ELSEWHERE and value is not None
    }
    parameter_table = table(columns | _described(dataset, names))
    return [parameter_table, facts(further_arguments) if further_arguments else ""]


def _values(values: Any) -> str:
    """Return the values of a parameter; of many values, their number and their ends.

    ``values`` has no dimension if the parameter has a single fixed value.
    """
    if values.ndim and values.size > MOST_VALUES:
        return f"{values.size:,} from {number(values[0])} to {number(values[-1])}"
    return ", ".join(distinct_texts(np.atleast_1d(values).tolist()))


def _quantities(dataset: xarray.Dataset) -> dict[str, list[str]]:
    """Return the columns of a table of all quantities that have a value at some point.

    The quantity "message" is left out, because the report lists messages elsewhere.
    """
    names = [
        str(name)
        for name in dataset.data_vars
        if has_values(dataset[name]) and name != "message"
    ]
    columns = {"quantity": [symbol(dataset, name) for name in names], "name": names}
    return columns | _described(dataset, names)


def _described(dataset: xarray.Dataset, names: list[str]) -> dict[str, list[str]]:
    """Return the columns "unit" and "meaning" of parameters or quantities."""
    attribute_of = {"unit": "units", "meaning": "description"}
    return {
        heading: [dataset[name].attrs.get(attribute, "") for name in names]
        for heading, attribute in attribute_of.items()
    }
