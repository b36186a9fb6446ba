"""Reports: what a run or a sweep found and the command that made it, as one HTML file that needs nothing else."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import math
import shlex
from typing import TYPE_CHECKING, Any

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
from icl_theory.results.numbers import number, told_apart
from icl_theory.results.plots.runs import parameters_of, plot_run
from icl_theory.results.plots.sweeps import drawable, plot_sweep, thinned
from icl_theory.results.reading import computed, count, first_part, places_of
from icl_theory.results.representations import html
from icl_theory.results.tables import contents, phase_table
from icl_theory.results.transitions import notes_of, transitions_of
from icl_theory.statements.checks import check_bounds
from icl_theory.sweeps.grid import FAILED, NOT_REACHED, PENDING, REACHED

if TYPE_CHECKING:
    import pandas as pd
    import xarray

# arguments of a sweep that another part of the report shows
ELSEWHERE = (
    "version",
    "model",
    "family",
)


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
        A run, or what `sweep` or `load_sweep` returned, finished or not.
    over : str, optional
        Of a sweep: the parameter that varies fastest from row to row; the first
        dimension unless given.
    source : str, optional
        The file or folder it was read from; the report names it.
    date : datetime.date, optional
        When the report is made; left out unless given. The rest depends on ``found``
        alone.

    Returns
    -------
    str
        The page, docs/sweeps.md, "A report". Tables say how many rows they leave out;
        theorems about the model are evaluated on a run that has its risk.

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
        command, version = found.command, found.version
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
    values = ", ".join(f"{label.text} = {value}" for label, value in parameters_of(run))
    what = (
        "Loss and attention against the step"
        if "attention" in run.observed
        else "Loss against the step"
    )
    present = {} if run.phases is None else run.phases.present()
    phases: dict[str, list[Any]] = {
        "phase": list(present),
        "first step": [first for first, _ in present.values()],
        "last step": [last for _, last in present.values()],
        "steps": [last - first for first, last in present.values()],
    }
    drawn = figure(
        picture(plot_run(run)),
        f"{what}{'' if run.phases is None else ', phases shaded'}.",
    )
    return f"Training run{': ' if values else ''}{values}", [
        section("Summary", facts(run.facts())),
        section("Figure", drawn),
        section("Phases", "" if run.phases is None else table(phases)),
        section("Theorems", _statements(run)),
        section("Saved steps", *_saved_steps(run)),
    ]


def _statements(run: Trajectory) -> str:
    """Return the statements of the theory evaluated on a run, if there are any and the run has its risk."""
    lines: list[str] = []
    with (
        left_out("the check of the statements", lines),
        contextlib.suppress(ValueError),
    ):  # there may be none
        return "" if run.risk is None else str(html(check_bounds(run)))
    return "".join(map(paragraph, lines))


def _saved_steps(run: Trajectory, most: int = 40) -> list[str]:
    """Return losses and observations at ``most`` saved steps, evenly spaced: a table of two screens."""
    chosen = np.unique(np.linspace(0, len(run.t) - 1, most).round().astype(int))
    columns: dict[str, Any] = {"step": run.t, "loss": run.loss}
    several = []
    for name, values in run.observed.items():
        if values.ndim == 1:
            columns[name] = values
        elif name == "attention":
            columns["attention (mean)"] = values.reshape(len(run.t), -1).mean(axis=1)
        else:
            several.append(name)
    said = []
    if len(chosen) < len(run.t):
        said.append(
            f"{len(chosen)} of {number(len(run.t))} saved steps, the first and the last among them."
        )
    if several:
        said.append(f"Left out, with several numbers a step: {', '.join(several)}.")
    return [
        *map(paragraph, said),
        table({name: list(values[chosen]) for name, values in columns.items()}),
    ]


def _of_sweep(
    dataset: xarray.Dataset, over: str | None, source: str | None
) -> tuple[str, list[str]]:
    names = dimensions(dataset)
    if over is not None:
        choice("over", over, names)
    size = dataset["status"].size
    missing = count(dataset, PENDING)
    family = dataset.attrs.get("title") or "a model"
    swept = ", ".join(symbol(dataset, name) for name in names)
    states = {
        "reached the target": REACHED,
        "did not reach it": NOT_REACHED,
        "failed": FAILED,
    }
    counts = {state: count(dataset, state) for state in states.values()}
    said = f"{number(size - missing)} of {number(size)} {'point is' if size == 1 else 'points are'} computed"
    parts = ", ".join(
        f"{number(counts[state])} {words}"
        for words, state in states.items()
        if counts[state]
    )
    said += f": {parts}." if parts else "."
    if missing:
        said += f" {number(missing)} {'is' if missing == 1 else 'are'} missing: the sweep is not complete."
        said += " The same command with this store computes them." if source else ""
    body = [section("Summary", paragraph(said))]
    whole = dataset
    dataset = computed(dataset)
    if names and missing < size:
        body += _swept(
            dataset, over or names[0], source, size - missing, complete=not missing
        )
    elif missing < size:
        body.append(section("Point", facts(point_facts(dataset))))
    body.append(
        _problems(dataset, {state: counts[state] for state in (FAILED, NOT_REACHED)})
    )
    body.append(section("Parameters", *_parameters(whole)))
    if missing < size:
        body.append(section("Quantities", table(_quantities(dataset))))
    return (
        f"Sweep of {family} over {swept}" if names else f"One point of {family}",
        body,
    )


def _swept(
    dataset: xarray.Dataset,
    over: str,
    source: str | None,
    done: int,
    complete: bool,
    most_columns: int = 14,
) -> list[str]:
    """Return figures, transitions and the first rows of the table, with all quantities if ``most_columns`` do."""
    part = first_part(dataset, over)
    found = phase_table(part, over, every=True)
    if len(found.columns) > most_columns:  # wider than a page
        found = phase_table(part, over)
    found = found[[name for name in found.columns if any(map(number, found[name]))]]
    call = f"icl_theory.phase_table(dataset, {over!r})"
    every = (
        shlex.join(["icl-theory", "table", source, "--over", over, "--csv", "all.csv"])
        if source
        else call
    )
    transitions = _transitions(dataset, over)
    if transitions and not complete:
        transitions.insert(0, paragraph("Of the points that are computed so far:"))
    return [
        section("Figures", *_figures(dataset, over)),
        section("Transition", *transitions),
        section("Table", *_rows(found, done, every)),
    ]


def _rows(found: pd.DataFrame, count: int, every: str, most: int = 200) -> list[str]:
    """Return the first ``most`` rows, as many as one scrolls through, and what makes all of them."""
    head = found.head(most)
    left = count - len(head)
    said = (
        f"The first {len(head)} of {number(count)} rows; {number(left)} are left out."
    )
    more = f"<p>{said} <code>{escaped(every)}</code> has them all.</p>" if left else ""
    return [more, table(dict(contents(head)))]


def _transitions(
    dataset: xarray.Dataset, over: str, most_sentences: int = 4
) -> list[str]:
    """Say where the regimes change: in a few sentences, or in a table if there would be more than a few."""
    found = transitions_of(dataset, over)
    if found is None and (reason := not_applicable(dataset)):
        return [paragraph(reason)]
    if found is None or len(found) <= most_sentences:
        return (
            [] if found is None else [*map(paragraph, notes_of(found, dataset, over))]
        )
    if found["measured"].isna().all():
        said = f"None of the {len(found):,} lines along {symbol(dataset, over)} has a measured transition."
        return [paragraph(said)]
    return _rows(found, len(found), f"icl_theory.transition_table(dataset, {over!r})")


def _figures(dataset: xarray.Dataset, over: str, most: int = 6) -> list[str]:
    """Return a figure for each of the first ``most`` slices over two parameters, and say how many have none."""
    others = [name for name in dimensions(dataset) if name != over]
    axes = [over, *others[:1]]
    rest = others[1:]
    values = {name: dataset[name].values.tolist() for name in rest}
    words = {
        name: dict(zip(each, told_apart(each), strict=True))
        for name, each in values.items()
    }
    figures = []
    for point, part in counted(
        [*itertools.islice(lines(dataset, *axes), most)], "figures"
    ):
        place = "".join(
            f", {symbol(dataset, name)} = {words[name][value]}"
            for name, value in point.items()
        )
        figures.append(_figure(part, over, axes, place))
    more = math.prod(dataset.sizes[name] for name in rest) - len(figures)
    draw = "icl_theory.plot_sweep draws a slice chosen with dataset.sel(...)."
    said = (
        [paragraph(f"{number(more)} more slices have no figure here; {draw}")]
        if more
        else []
    )
    return figures + said


def _figure(part: xarray.Dataset, over: str, axes: list[str], place: str) -> str:
    what = f"Steps over {' and '.join(symbol(part, name) for name in axes)}{place}"
    outside = []
    for name in axes:
        fits = drawable(part, name)
        outside += [
            f"{symbol(part, name)} = {number(value)}"
            for value in part[name].values[~fits]
        ]
        part = part.isel({name: fits})
    steps = steps_of(part)
    if steps is None or not (part[steps].values > 0).any():
        return paragraph(
            f"{what}: no figure, because no computed point took a step or more to its target."
        )
    what += "".join(
        f", one value of {symbol(part, name)} in {every}"
        for name, every in thinned(part).items()
    )
    without = ", ".join(outside[:4]) + (
        f" and {len(outside) - 4} more" if len(outside) > 4 else ""
    )
    return figure(
        picture(plot_sweep(part, over)),
        f"{what}{', without ' if outside else ''}{without}.",
    )


def _problems(dataset: xarray.Dataset, counts: dict[str, int], most: int = 20) -> str:
    """List ``most`` points that failed or did not reach their target, with their messages; failed ones first."""
    found: list[tuple[str, tuple[int, ...]]] = []
    for state, many in counts.items():
        places = places_of(dataset["status"] == state)
        found += [
            (state, place)
            for place in itertools.islice(places, min(many, most - len(found)))
        ]
    names = [str(name) for name in dataset["status"].dims]
    columns = {
        name: [dataset[name].values[place[i]] for _, place in found]
        for i, name in enumerate(names)
    }
    columns["status"] = [state for state, _ in found]
    columns["message"] = [
        str(dataset["message"][place].values.item())[:500] for _, place in found
    ]
    more = sum(counts.values()) - len(found)
    said = paragraph(f"{number(more)} more are left out.") if more else ""
    return section(
        "Points that failed or did not reach their target",
        *([table(columns), said] if found else []),
    )


def _parameters(dataset: xarray.Dataset) -> list[str]:
    names = [str(name) for name in dataset.coords]
    columns = {
        "parameter": names,
        "symbol": [dataset[name].attrs.get("symbol", "") for name in names],
        "values": [_values(dataset[name].values) for name in names],
    }
    given = json.loads(dataset.attrs.get("arguments", "{}"))
    others = given.items() if isinstance(given, dict) else ()
    listed = {
        name: value
        for name, value in others
        if name not in ELSEWHERE and value is not None
    }
    return [
        table(columns | _described(dataset, names)),
        facts(listed) if listed else "",
    ]


def _values(values: Any) -> str:
    if values.ndim and values.size > 8:
        return f"{values.size:,} from {number(values[0])} to {number(values[-1])}"
    return ", ".join(told_apart(np.atleast_1d(values).tolist()))


def _quantities(dataset: xarray.Dataset) -> dict[str, list[str]]:
    """Describe the quantities that have a value anywhere."""
    names = [
        str(name)
        for name in dataset.data_vars
        if has_values(dataset[name]) and name != "message"
    ]
    columns = {"quantity": [symbol(dataset, name) for name in names], "name": names}
    return columns | _described(dataset, names)


def _described(dataset: xarray.Dataset, names: list[str]) -> dict[str, list[str]]:
    said = {"unit": "units", "meaning": "description"}
    return {
        word: [dataset[name].attrs.get(key, "") for name in names]
        for word, key in said.items()
    }
