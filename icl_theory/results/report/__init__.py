"""Reports: what a run or a sweep found and the command that made it, as one HTML file that needs nothing else."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from icl_theory._validate import refuse
from icl_theory._version import __version__
from icl_theory.engine.trajectory import Trajectory
from icl_theory.papers.checks import check_bounds
from icl_theory.results.display import html
from icl_theory.results.labels import parameters
from icl_theory.results.notebook import picture, render
from icl_theory.results.plots.runs import plot_run
from icl_theory.results.reading import reading
from icl_theory.results.report.sweep import sweep_contents

if TYPE_CHECKING:
    import xarray

MOST_SAVED = 40  # rows of a run's table
MODULES = "import math, numpy as np, icl_theory as icl"


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
        Of a sweep: the parameter whose values follow one another; the first dimension unless given.
    source : str, optional
        Where it was read from, to be named in the report.
    date : datetime.date, optional
        When the report is made; left out unless given. The rest depends on ``found`` alone.

    Returns
    -------
    str
        The page: command, summary, figures and tables. Tables have at most some hundred rows, and say how many
        are left out. The theorems are evaluated on a run that has its risk, not on one that was loaded from a file,
        where there are theorems on its model.

    Raises
    ------
    ValueError
        Something else, or ``over`` is no dimension.

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
            raise refuse("over", over, "left out for a run")
        template, contents = "run.html", _run_contents(found)
        command, version = found.command, found.version
    elif hasattr(found, "data_vars") and {"status", "message"} <= set(found.data_vars):
        template, contents = "sweep.html", sweep_contents(found, over, source)
        command, version = found.attrs.get("command"), found.attrs.get("version")
    else:
        raise refuse("found", found, "a run, or the dataset of a sweep")
    commands = command.splitlines() if command else []
    modules = MODULES if any(line.startswith("icl.") for line in commands) else ""
    made = {"commands": commands, "modules": modules, "version": version, "package": __version__}
    return render(template, **contents, **made, source=source, date=date and date.isoformat())


def _run_contents(run: Trajectory) -> dict[str, Any]:
    """Return the title of a run's report and what stands in its sections."""
    values = ", ".join(f"{label.text} = {value}" for label, value in parameters(run))
    what = "Loss and attention against the step" if "attention" in run.observed else "Loss against the step"
    return {
        "title": f"Training run{': ' if values else ''}{values}",
        "summary": run.facts(),
        "picture": picture(plot_run(run)),
        "caption": f"{what}{'' if run.phases is None else ', phases shaded'}.",
        "phases": _phases(run),
        "statements": _statements(run),
        **_saved_steps(run),
    }


def _phases(run: Trajectory) -> dict[str, list[Any]]:
    if run.phases is None:
        return {}
    present = run.phases.present()
    return {
        "phase": list(present),
        "first step": [first for first, _ in present.values()],
        "last step": [last for _, last in present.values()],
        "steps": [last - first for first, last in present.values()],
    }


def _statements(run: Trajectory) -> str | None:
    """Return, as HTML, the statements of the theory evaluated on a run that carries its risk, if any."""
    if run.risk is None:
        return None
    try:
        return str(html(check_bounds(run)))
    except ValueError:  # of a risk of which no statements speak
        return None


def _saved_steps(run: Trajectory) -> dict[str, Any]:
    chosen = np.unique(np.linspace(0, len(run.t) - 1, MOST_SAVED).round().astype(int))
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
