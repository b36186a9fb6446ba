"""Reports: what a run or a sweep found and the command that made it, as one HTML file that needs nothing else."""

from __future__ import annotations

import datetime
import itertools
import json
import math
import shlex
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from icl_theory._validate import choice, refuse
from icl_theory._version import __version__
from icl_theory.engine.progress import counted
from icl_theory.engine.trajectory import Trajectory
from icl_theory.grids.grid import FAILED, NOT_REACHED, PENDING, REACHED
from icl_theory.papers.checks import check_bounds
from icl_theory.results.columns import dimensions, has_values, lines, point_facts, steps_of, symbol
from icl_theory.results.notebook import picture, render
from icl_theory.results.numbers import number, told_apart
from icl_theory.results.plots.runs import parameters_of, plot_run
from icl_theory.results.plots.sweeps import drawable, plot_sweep, thinned
from icl_theory.results.reading import count, first_part, places_of, reading
from icl_theory.results.representations import html
from icl_theory.results.tables import contents, phase_table
from icl_theory.results.transitions import notes_of, transitions_of

if TYPE_CHECKING:
    import pandas as pd
    import xarray

MODULES = "import math, numpy as np, icl_theory as icl"
ELSEWHERE = ("version", "model", "family")  # arguments of a sweep that another part of the report shows


class Rows(NamedTuple):
    """The first rows of a table, how many they are and how many are left out, and the command for all of them."""

    columns: dict[str, list[Any]]
    shown: int
    left_out: int
    every: str


@reading("writing the report")
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
        Of a sweep: the parameter that varies fastest from row to row; the first dimension unless given.
    source : str, optional
        The file or folder it was read from; the report names it.
    date : datetime.date, optional
        When the report is made; left out unless given. The rest depends on ``found`` alone.

    Returns
    -------
    str
        The page: command, summary, figures and tables. Tables have at most some hundred rows, and say how many
        are left out. If there are theorems about the model, they are evaluated on a run that has its risk.

    Raises
    ------
    ValueError
        ``found`` is something else, or ``over`` is not a dimension.

    References
    ----------
    docs/sweeps.md, "A report".

    Examples
    --------
    >>> import icl_theory as icl
    >>> page = icl.html_report(icl.simulate(2.0, 1.0, 4.0))
    >>> page[:15], "icl.simulate(L=2.0, delta=1.0, eta=4.0)" in page
    ('<!DOCTYPE html>', True)
    """
    if not (source is None or isinstance(source, str)):
        raise refuse("source", source, "a text")
    if not (date is None or isinstance(date, datetime.date)):
        raise refuse("date", date, "a datetime.date")
    if isinstance(found, Trajectory):
        if over is not None:
            raise ValueError(f"over = {over!r}: a run has no swept parameter")
        template, parts = "run.html", _run_parts(found)
        command, version = found.command, found.version
    elif hasattr(found, "data_vars") and {"status", "message"} <= set(found.data_vars):
        template, parts = "sweep.html", _sweep_parts(found, over, source)
        command, version = found.attrs.get("command"), found.attrs.get("version")
    else:
        raise refuse("found", found, "a run, or the dataset of a sweep")
    commands = command.splitlines() if command else []
    modules = MODULES if any(line.startswith("icl.") for line in commands) else ""
    made = {"commands": commands, "modules": modules, "version": version, "package": __version__}
    return render(template, **parts, **made, source=source, date=date and date.isoformat())


def _run_parts(run: Trajectory) -> dict[str, Any]:
    values = ", ".join(f"{label.text} = {value}" for label, value in parameters_of(run))
    what = "Loss and attention against the step" if "attention" in run.observed else "Loss against the step"
    present = {} if run.phases is None else run.phases.present()
    phases = {
        "phase": list(present),
        "first step": [first for first, _ in present.values()],
        "last step": [last for _, last in present.values()],
        "steps": [last - first for first, last in present.values()],
    }
    return {
        "title": f"Training run{': ' if values else ''}{values}",
        "summary": run.facts(),
        "picture": picture(plot_run(run)),
        "caption": f"{what}{'' if run.phases is None else ', phases shaded'}.",
        "phases": {} if run.phases is None else phases,
        "statements": _statements(run),
        **_saved_steps(run),
    }


def _statements(run: Trajectory) -> str | None:
    """Return the statements of the theory evaluated on a run as HTML, if there are any and the run has its risk."""
    if run.risk is None:
        return None
    try:
        return str(html(check_bounds(run)))
    except ValueError:  # there are no statements about this risk
        return None


def _saved_steps(run: Trajectory, most: int = 40) -> dict[str, Any]:
    """Return losses and observations at ``most`` saved steps, evenly spaced: a table of two screens."""
    chosen = np.unique(np.linspace(0, len(run.t) - 1, most).round().astype(int))
    columns: dict[str, Any] = {"step": run.t, "loss": run.loss}
    left_out = []
    for name, values in run.observed.items():
        if values.ndim == 1:
            columns[name] = values
        elif name == "attention":
            columns["attention (mean)"] = values.reshape(len(run.t), -1).mean(axis=1)
        else:
            left_out.append(name)
    rows = {name: list(values[chosen]) for name, values in columns.items()}
    return {"steps": rows, "shown": len(chosen), "saved": len(run.t), "left_out": left_out}


def _sweep_parts(dataset: xarray.Dataset, over: str | None, source: str | None) -> dict[str, Any]:
    names = dimensions(dataset)
    if over is not None:
        choice("over", over, names)
    size, missing = dataset["status"].size, count(dataset, PENDING)
    done = size - missing
    family = dataset.attrs.get("title") or "a model"
    swept = ", ".join(symbol(dataset, name) for name in names)
    states = {"reached the target": REACHED, "did not reach it": NOT_REACHED, "failed": FAILED}
    counts = {words: count(dataset, state) for words, state in states.items()}
    found: dict[str, Any] = {
        "title": f"Sweep of {family} over {swept}" if names else f"One point of {family}",
        "points": size,
        "missing": missing,
        "counts": counts,
        "rows": None,
        "point": None if names or not done else point_facts(dataset),
        "quantities": _quantities(dataset) if done else None,
        **_problems(dataset, {FAILED: counts["failed"], NOT_REACHED: counts["did not reach it"]}),
        **_parameters(dataset),
    }
    return found | _swept(dataset, over or names[0], source, done) if done and names else found


def _swept(
    dataset: xarray.Dataset, over: str, source: str | None, done: int, most_columns: int = 14
) -> dict[str, Any]:
    """Return figures, transitions and the first rows of the table, with all quantities if ``most_columns`` do."""
    part = first_part(dataset, over)
    table = phase_table(part, over, every=True)
    if len(table.columns) > most_columns:  # wider than a page
        table = phase_table(part, over)
    table = table[[name for name in table.columns if any(map(number, table[name]))]]
    call = f"icl_theory.phase_table(dataset, {over!r})"
    every = shlex.join(["icl-theory", "table", source, "--over", over, "--csv", "all.csv"]) if source else call
    return _figures(dataset, over) | {"rows": _rows(table, done, every)} | _transitions(dataset, over)


def _rows(table: pd.DataFrame, count: int, every: str, most: int = 200) -> Rows:
    """Return the first ``most`` rows, as many as one scrolls through."""
    head = table.head(most)
    return Rows(contents(head), len(head), count - len(head), every)


def _transitions(dataset: xarray.Dataset, over: str, most_sentences: int = 4) -> dict[str, Any]:
    """Say where the regimes change: in a few sentences, or in a table if there would be more than a few."""
    table = transitions_of(dataset, over)
    if table is None or len(table) <= most_sentences:
        return {"notes": () if table is None else notes_of(table, dataset, over), "transitions": None}
    if table["measured"].isna().all():
        none = f"None of the {len(table):,} lines along {symbol(dataset, over)} has a measured transition."
        return {"notes": (none,), "transitions": None}
    every = f"icl_theory.transition_table(dataset, {over!r})"
    return {"notes": (), "transitions": _rows(table, len(table), every)}


def _figures(dataset: xarray.Dataset, over: str, most: int = 6) -> dict[str, Any]:
    """Return a figure for each of the first ``most`` slices over two parameters, and how many slices have none."""
    others = [name for name in dimensions(dataset) if name != over]
    axes, rest = [over, *others[:1]], others[1:]
    words = {name: _words(dataset, name) for name in rest}
    figures = []
    for point, part in counted([*itertools.islice(lines(dataset, *axes), most)], "figures"):
        place = "".join(f", {symbol(dataset, name)} = {words[name][value]}" for name, value in point.items())
        figures.append(_figure(part, over, axes, place))
    slices = math.prod(dataset.sizes[name] for name in rest)
    return {"figures": figures, "more_figures": slices - len(figures)}


def _figure(part: xarray.Dataset, over: str, axes: list[str], place: str) -> dict[str, str | None]:
    """Return a picture, or None if there is nothing to draw, and its caption."""
    what = f"Steps over {' and '.join(symbol(part, name) for name in axes)}{place}"
    outside = []
    for name in axes:
        fits = drawable(part, name)
        outside += [f"{symbol(part, name)} = {number(value)}" for value in part[name].values[~fits]]
        part = part.isel({name: fits})
    steps = steps_of(part)
    if steps is None or not (part[steps].values > 0).any():
        return {"picture": None, "caption": what}
    what += "".join(f", one value of {symbol(part, name)} in {every}" for name, every in thinned(part).items())
    left_out = ", ".join(outside[:4]) + (f" and {len(outside) - 4} more" if len(outside) > 4 else "")
    caption = f"{what}{', without ' if outside else ''}{left_out}."
    return {"picture": picture(plot_sweep(part, over)), "caption": caption}


def _words(dataset: xarray.Dataset, name: str) -> dict[Any, str]:
    values = dataset[name].values.tolist()
    return dict(zip(values, told_apart(values), strict=True))


def _problems(dataset: xarray.Dataset, counts: dict[str, int], most: int = 20) -> dict[str, Any]:
    """List ``most`` points that failed or did not reach their target, with their messages; failed ones first."""
    found: list[tuple[str, tuple[int, ...]]] = []
    for state, many in counts.items():
        places = places_of(dataset["status"] == state)
        found += [(state, place) for place in itertools.islice(places, min(many, most - len(found)))]
    columns: dict[str, list[Any]] = {
        str(name): [dataset[name].values[place[i]] for _, place in found]
        for i, name in enumerate(dataset["status"].dims)
    }
    columns["status"] = [state for state, _ in found]
    columns["message"] = [str(dataset["message"][place].values.item())[:500] for _, place in found]
    return {"problems": columns if found else None, "more_problems": sum(counts.values()) - len(found)}


def _parameters(dataset: xarray.Dataset) -> dict[str, Any]:
    names = [str(name) for name in dataset.coords]
    columns = {
        "parameter": names,
        "symbol": [dataset[name].attrs.get("symbol", "") for name in names],
        "values": [_values(dataset[name].values) for name in names],
    }
    given = json.loads(dataset.attrs.get("arguments", "{}"))
    others = given if isinstance(given, dict) else {}
    hidden = (*ELSEWHERE, *names)
    listed = {name: value for name, value in others.items() if name not in hidden and value is not None}
    return {"parameters": columns | _described(dataset, names), "arguments": listed}


def _values(values: Any) -> str:
    if values.ndim and values.size > 8:
        return f"{values.size:,} from {number(values[0])} to {number(values[-1])}"
    return ", ".join(told_apart(np.atleast_1d(values).tolist()))


def _quantities(dataset: xarray.Dataset) -> dict[str, list[str]]:
    """Describe the quantities that have a value anywhere."""
    names = [str(name) for name in dataset.data_vars if has_values(dataset[name]) and name != "message"]
    columns = {"quantity": [symbol(dataset, name) for name in names], "name": names}
    return columns | _described(dataset, names)


def _described(dataset: xarray.Dataset, names: list[str]) -> dict[str, list[str]]:
    attributes = [dataset[name].attrs for name in names]
    return {
        "unit": [each.get("units", "") for each in attributes],
        "meaning": [each.get("description", "") for each in attributes],
    }
