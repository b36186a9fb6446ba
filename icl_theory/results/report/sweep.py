"""What stands in the report of a sweep: how complete it is, figures, tables, and the points that failed."""

from __future__ import annotations

import itertools
import json
import math
import shlex
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from icl_theory._validate import choice
from icl_theory.engine.progress import counted
from icl_theory.grids.grid import FAILED, NOT_REACHED, PENDING, REACHED
from icl_theory.results.columns import dimensions, lines, steps_of, symbol
from icl_theory.results.notebook import picture
from icl_theory.results.numbers import number, told_apart
from icl_theory.results.plots.sweeps import drawable, plot_sweep, thinned
from icl_theory.results.reading import count, first_part, places_of
from icl_theory.results.tables import contents, has_values, phase_table, point_facts
from icl_theory.results.transitions import notes_of, transitions_of

if TYPE_CHECKING:
    import pandas as pd
    import xarray

MOST_ROWS = 200
MOST_COLUMNS = 14  # with which a table also has the quantities that describe no phases
MOST_PROBLEMS = 20
MOST_NOTES = 4
MOST_FIGURES = 6
HIDDEN = ("version", "model", "family")  # arguments that stand elsewhere in the report


class Figure(NamedTuple):
    """A figure, or None where there is nothing to be drawn, and what it shows."""

    picture: str | None
    caption: str


class Rows(NamedTuple):
    """The first rows of a table, how many there are and are left out, and what gives every row."""

    columns: dict[str, list[Any]]
    shown: int
    left_out: int
    every: str


def sweep_contents(dataset: xarray.Dataset, over: str | None, source: str | None) -> dict[str, Any]:
    """Return the title of a sweep's report and what stands in its sections, finished or not."""
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


def _swept(dataset: xarray.Dataset, over: str, source: str | None, done: int) -> dict[str, Any]:
    """Return figures, transitions and the first rows of the table of a sweep that has points."""
    part = first_part(dataset, over)
    table = phase_table(part, over, every=True)
    if len(table.columns) > MOST_COLUMNS:
        table = phase_table(part, over)
    table = table[[name for name in table.columns if any(map(number, table[name]))]]
    call = f"icl_theory.phase_table(dataset, {over!r})"
    every = shlex.join(["icl-theory", "table", source, "--over", over, "--csv", "all.csv"]) if source else call
    figures, more = _figures(dataset, over)
    return {
        "figures": figures,
        "more_figures": more,
        "rows": _rows(table, done, every),
        **_transitions(dataset, over),
    }


def _rows(table: pd.DataFrame, count: int, every: str) -> Rows:
    head = table.head(MOST_ROWS)
    return Rows(contents(head), len(head), count - len(head), every)


def _transitions(dataset: xarray.Dataset, over: str) -> dict[str, Any]:
    """Say where the regimes change: in sentences where they are few, else as a table."""
    table = transitions_of(dataset, over)
    if table is None or len(table) <= MOST_NOTES:
        return {"notes": () if table is None else notes_of(table, dataset, over), "transitions": None}
    if table["measured"].isna().all():
        none = f"Of {len(table):,} lines along {symbol(dataset, over)} none has a measured transition."
        return {"notes": (none,), "transitions": None}
    every = f"icl_theory.transition_table(dataset, {over!r})"
    return {"notes": (), "transitions": _rows(table, len(table), every)}


def _figures(dataset: xarray.Dataset, over: str) -> tuple[list[Figure], int]:
    """Return a figure for each slice of a sweep over two parameters, and how many more slices there are."""
    others = [name for name in dimensions(dataset) if name != over]
    shown, rest = [over, *others[:1]], others[1:]
    words = {name: _words(dataset, name) for name in rest}
    figures = []
    for point, part in counted([*itertools.islice(lines(dataset, *shown), MOST_FIGURES)], "figures"):
        place = "".join(f", {symbol(dataset, name)} = {words[name][value]}" for name, value in point.items())
        figures.append(_figure(part, over, shown, place))
    return figures, math.prod(dataset.sizes[name] for name in rest) - len(figures)


def _figure(part: xarray.Dataset, over: str, shown: list[str], place: str) -> Figure:
    what = f"Steps over {' and '.join(symbol(part, name) for name in shown)}{place}"
    outside = []
    for name in shown:
        fits = drawable(part, name)
        outside += [f"{symbol(part, name)} = {number(value)}" for value in part[name].values[~fits]]
        part = part.isel({name: fits})
    steps = steps_of(part)
    if steps is None or not (part[steps].values > 0).any():
        return Figure(None, what)
    steps_over = (f", one value of {symbol(part, name)} in {every}" for name, every in thinned(part).items())
    what += "".join(steps_over)
    left_out = ", ".join(outside[:4]) + (f" and {len(outside) - 4} more" if len(outside) > 4 else "")
    return Figure(picture(plot_sweep(part, over)), f"{what}{', without ' if outside else ''}{left_out}.")


def _words(dataset: xarray.Dataset, name: str) -> dict[Any, str]:
    """Return how each value of a parameter is written, different ones differently."""
    values = dataset[name].values.tolist()
    return dict(zip(values, told_apart(values), strict=True))


def _problems(dataset: xarray.Dataset, counts: dict[str, int]) -> dict[str, Any]:
    """List the points that failed, then those that did not reach their target, with their messages."""
    found: list[tuple[str, tuple[int, ...]]] = []
    for state, many in counts.items():
        places = places_of(dataset["status"] == state)
        found += [(state, place) for place in itertools.islice(places, min(many, MOST_PROBLEMS - len(found)))]
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
    shown = {name: value for name, value in others.items() if name not in (*HIDDEN, *names) and value is not None}
    return {"parameters": columns | _described(dataset, names), "arguments": shown}


def _values(values: Any) -> str:
    if values.ndim and values.size > 8:
        return f"{values.size:,} from {number(values[0])} to {number(values[-1])}"
    return ", ".join(told_apart(np.atleast_1d(values).tolist()))


def _quantities(dataset: xarray.Dataset) -> dict[str, list[str]]:
    """Say what the quantities are that have a value anywhere."""
    names = [str(name) for name in dataset.data_vars if has_values(dataset[name]) and name != "message"]
    shown = {"quantity": [symbol(dataset, name) for name in names], "name": names}
    return shown | _described(dataset, names)


def _described(dataset: xarray.Dataset, names: list[str]) -> dict[str, list[str]]:
    """Return the columns of units and meanings of parameters or quantities."""
    attributes = [dataset[name].attrs for name in names]
    return {
        "unit": [each.get("units", "") for each in attributes],
        "meaning": [each.get("description", "") for each in attributes],
    }
