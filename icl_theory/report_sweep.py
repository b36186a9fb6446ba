"""The part of a report that shows a sweep: how complete it is, figures, tables, and the points that failed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from icl_theory import markup
from icl_theory._validate import choice
from icl_theory.grids.grid import FAILED, NOT_REACHED, PENDING, REACHED
from icl_theory.points import point_table
from icl_theory.report import NAMES
from icl_theory.tables import HEADINGS, transition_notes, transition_table

if TYPE_CHECKING:
    import pandas as pd
    import xarray

MOST_ROWS = 200
MOST_PROBLEMS = 20
MOST_NOTES = 4
MOST_FIGURES = 6
LARGEST_DRAWN = 1e100  # a value on an axis
MODELS = {"regression": "in-context regression", "recall": "in-context recall"}


def sweep_title(dataset: xarray.Dataset) -> str:
    """Return what was swept, in words."""
    model = MODELS.get(_arguments(dataset).get("model", ""), "a model")
    names = [NAMES.get(str(name), str(name)) for name in dataset.dims]
    return f"Sweep of {model} over {', '.join(names)}" if names else f"One point of {model}"


def sweep_body(dataset: xarray.Dataset, over: str | None, source: str | None) -> list[str]:
    """Return the sections of a sweep, finished or not."""
    names = [str(name) for name in dataset.dims]
    if over is not None:
        choice("over", over, names)
    status = dataset["status"].values
    done = int((status != PENDING).sum())
    body, explained = ["<h2>Summary</h2>", *_state(status, source)], []
    if done and names:
        over = over or names[0]
        body += ["<h2>Figures</h2>", *_figures(dataset, over), *_transitions(dataset, over, done < status.size)]
        table = point_table(dataset, over)
        table = table[[name for name in table.columns if any(map(markup.number, table[name]))]]
        body += ["<h2>Table</h2>", *_rows(table, _every_row(over, source))]
        explained = _quantities(dataset, over, [str(name) for name in table.columns])
    elif done:
        body += ["<h2>Point</h2>", markup.facts(_point(dataset))]
        explained = _quantities(dataset, None, [str(name) for name in dataset.data_vars])
    body += [*_problems(dataset), "<h2>Parameters</h2>", *_parameters(dataset)]
    return body + explained


def _arguments(dataset: xarray.Dataset) -> dict[str, Any]:
    found = json.loads(dataset.attrs.get("arguments", "{}"))
    return found if isinstance(found, dict) else {}


def _paragraph(words: str) -> str:
    return f"<p>{markup.text(words)}</p>"


def _state(status: Any, source: str | None) -> list[str]:
    missing = int((status == PENDING).sum())
    counts = {
        "reached the target": int((status == REACHED).sum()),
        "did not reach it": int((status == NOT_REACHED).sum()),
        "failed": int((status == FAILED).sum()),
    }
    said = ", ".join(f"{count:,} {words}" for words, count in counts.items() if count)
    plural = "point is" if status.size == 1 else "points are"
    lines = [f"{status.size - missing:,} of {status.size:,} {plural} computed{': ' if said else ''}{said}."]
    if missing:
        lines.append(f"{missing:,} {'is' if missing == 1 else 'are'} missing: the sweep is not complete.")
        if source:
            lines.append("The same command, given this store, goes on with them.")
    return [_paragraph(" ".join(lines))]


def _transitions(dataset: xarray.Dataset, over: str, incomplete: bool) -> list[str]:
    """Say where the regimes change: in sentences where they are few, else as a table."""
    notes = transition_notes(dataset, over)
    if not notes:
        return []
    lines = ["<h2>Transition</h2>"]
    if incomplete:
        lines.append(_paragraph("Of the points that are computed so far:"))
    if len(notes) <= MOST_NOTES:
        return [*lines, *map(_paragraph, notes)]
    table = transition_table(dataset, over)
    if table["measured"].isna().all():
        return [*lines, _paragraph(f"Of {len(table):,} lines along {over} none has a measured transition.")]
    return lines + _rows(table, f"icl_theory.transition_table(dataset, {over!r})")


def _figures(dataset: xarray.Dataset, over: str) -> Iterator[str]:
    """Yield a figure, one for each slice of a sweep over more than two parameters, or why there is none."""
    names = [str(name) for name in dataset.dims]
    shown = [over, *[name for name in names if name != over][:1]]
    rest = [name for name in names if name not in shown]
    slices = list(np.ndindex(*(dataset.sizes[name] for name in rest)))
    for index in slices[:MOST_FIGURES]:
        part = dataset.isel(dict(zip(rest, index, strict=True)))
        where = ", ".join(f"{NAMES.get(name, name)} = {markup.number(part[name].values)}" for name in rest)
        yield _figure(part, over, shown, where)
    if len(slices) > MOST_FIGURES:
        yield _paragraph(
            f"{len(slices) - MOST_FIGURES:,} more slices have no figure here; icl_theory.diagrams.plot_sweep draws"
            " any of them, chosen with dataset.sel(...)."
        )


def _figure(part: xarray.Dataset, over: str, shown: list[str], where: str) -> str:
    from icl_theory.diagrams import plot_sweep

    what = f"Steps over {' and '.join(NAMES.get(name, name) for name in shown)}{where and ', '}{where}"
    outside = []
    for name in shown:
        values = part[name].values.astype(float)
        drawable = np.isfinite(values) & (np.abs(values) <= LARGEST_DRAWN)
        outside += [f"{NAMES.get(name, name)} = {markup.number(value)}" for value in values[~drawable]]
        part = part.isel({name: drawable})
    if "steps" not in part or not (part["steps"].values > 0).any():
        return _paragraph(f"{what}: no figure, for no computed point reached its target in a step or more.")
    left_out = f", without {_some(outside)}" if outside else ""
    return markup.figure(plot_sweep(part, over), f"{what}{left_out}.")


def _some(words: list[str]) -> str:
    return ", ".join(words[:4]) + (f" and {len(words) - 4} more" if len(words) > 4 else "")


def _every_row(over: str, source: str | None) -> str:
    """Return the command, or the call, that gives the whole table."""
    if source is None:
        return f"icl_theory.points.point_table(dataset, {over!r})"
    return shlex.join(["icl-theory", "table", source, "--over", over, "--csv", "all.csv"])


def _rows(table: pd.DataFrame, every: str) -> list[str]:
    """Return the first rows of a table, and a sentence that names what gives every row."""
    head = table.head(MOST_ROWS)
    lines = [markup.table({str(name): list(head[name]) for name in table.columns})]
    if len(table) > MOST_ROWS:
        words = f"The first {MOST_ROWS} of {len(table):,} rows; {len(table) - MOST_ROWS:,} are left out."
        lines.insert(0, f"<p>{words} <code>{markup.text(every)}</code> has them all.</p>")
    return lines


def _problems(dataset: xarray.Dataset) -> list[str]:
    """List the points that failed, then those that did not reach their target, with their messages."""
    status, message = dataset["status"].values, dataset["message"].values
    places = [place for state in (FAILED, NOT_REACHED) for place in np.argwhere(status == state)]
    if not places:
        return []
    columns: dict[str, list[Any]] = {
        str(name): [dataset[name].values[place[i]] for place in places[:MOST_PROBLEMS]]
        for i, name in enumerate(dataset["status"].dims)
    }
    columns["status"] = [str(status[tuple(place)]) for place in places[:MOST_PROBLEMS]]
    columns["message"] = [str(message[tuple(place)])[:500] for place in places[:MOST_PROBLEMS]]
    lines = ["<h2>Points that failed or did not reach their target</h2>", markup.table(columns)]
    if len(places) > MOST_PROBLEMS:
        lines.append(_paragraph(f"{len(places) - MOST_PROBLEMS:,} more are left out."))
    return lines


def _parameters(dataset: xarray.Dataset) -> list[str]:
    names = [str(name) for name in dataset.coords]
    columns = {
        "parameter": names,
        "values": [_values(dataset[name].values) for name in names],
        "unit": [dataset[name].attrs.get("units", "") for name in names],
        "meaning": [dataset[name].attrs.get("description", "") for name in names],
    }
    hidden = ("version", "model") if _arguments(dataset).get("eta") == "auto" else ("version", "model", "eta")
    others = {
        name: value for name, value in _arguments(dataset).items() if name not in hidden and value is not None
    }
    return [markup.table(columns), *([markup.facts(others)] if others else [])]


def _values(values: Any) -> str:
    if values.ndim and values.size > 8:
        return f"{values.size:,} from {markup.number(values[0])} to {markup.number(values[-1])}"
    return ", ".join(markup.number(value) for value in np.atleast_1d(values))


def _quantities(dataset: xarray.Dataset, over: str | None, columns: list[str]) -> list[str]:
    """Say what the columns of a table are, which has some of them under other headings."""
    known = HEADINGS | {f"exponent_{over}": "exponent"} if over else {}
    headings = {str(name): known.get(str(name), str(name)) for name in dataset.data_vars}
    names = [name for name, heading in headings.items() if heading in columns]
    shown = {
        "quantity": [headings[name] for name in names],
        "unit": [dataset[name].attrs.get("units", "") for name in names],
        "meaning": [dataset[name].attrs.get("description", "") for name in names],
    }
    return ["<h2>Quantities</h2>", markup.table(shown)]


def _point(dataset: xarray.Dataset) -> dict[str, Any]:
    return {
        str(name): value.values
        for name, value in dataset.data_vars.items()
        if value.item() not in ("", -1) and value.item() == value.item()
    }
