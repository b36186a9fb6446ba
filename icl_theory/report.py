"""Reports: what a run or a sweep found and the command that made it, as one HTML file that needs nothing else."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from icl_theory import markup
from icl_theory._validate import refuse
from icl_theory.trajectory import Trajectory

if TYPE_CHECKING:
    import xarray

MOST_SAVED = 40  # rows of a run's table
MODULES = "import math, numpy as np, icl_theory as icl"
UNKNOWN = "not known: nothing recorded it, or an argument was an object that cannot be written out"
NAMES = {
    "L": "L", "delta": "Δ", "eta": "η", "K": "K", "N": "N", "epsilon": "ε", "noise": "σ", "imbalance": "δ",
    "V": "V", "Q": "|Q|", "alpha": "α", "M": "M",
}  # fmt: skip


def html_report(
    found: Trajectory | xarray.Dataset,
    *,
    over: str | None = None,
    source: str | None = None,
    date: datetime.date | None = None,
) -> str:
    """Return a report of a run or of a sweep: one HTML page without anything that has to be fetched.

    Parameters
    ----------
    found : Trajectory or xarray.Dataset
        A run, or what `sweep`, `sweep_recall` or `load_sweep` returned, finished or not.
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
        are left out. The theorems are evaluated on a run of in-context regression that has its risk, not on one
        that was loaded from a file.

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
    if isinstance(found, Trajectory):
        if over is not None:
            raise refuse("over", over, "left out for a run")
        title, command, version, body = _run_title(found), found.command, found.version, _run(found)
    elif hasattr(found, "data_vars") and {"status", "message"} <= set(found.data_vars):
        from icl_theory.report_sweep import sweep_body, sweep_title

        title, body = sweep_title(found), sweep_body(found, over, source)
        command, version = found.attrs.get("command"), found.attrs.get("version")
    else:
        raise refuse("found", found, "a run, or the dataset of a sweep")
    return markup.page(title, "\n".join([_origin(command), *body, _footer(version, source, date)]))


def _origin(command: str | None) -> str:
    if not command:
        return f"<p>The command is {markup.text(UNKNOWN)}.</p>"
    lines = command.splitlines()
    made = "It was made by" if len(lines) == 1 else "It was made by, one after the other,"
    after = (
        f" (after <code>{markup.text(MODULES)}</code>)" if any(line.startswith("icl.") for line in lines) else ""
    )
    return f"<p>{made}{after}</p>\n<pre><code>{markup.text(command)}</code></pre>"


def _footer(version: str | None, source: str | None, date: datetime.date | None) -> str:
    from icl_theory import __version__

    words = [
        f"computed with icl-theory {version}" if version else "computed with a version that is not recorded",
        f"read from {source}" if source else "",
        f"report made {f'on {date.isoformat()} ' if date else ''}with icl-theory {__version__}",
    ]
    line = "; ".join(filter(None, words))
    return f"<footer><p>{markup.text(line[0].upper() + line[1:])}.</p></footer>"


def _run_title(run: Trajectory) -> str:
    values = ", ".join(
        f"{symbol} = {markup.number(run.info[name])}" for name, symbol in NAMES.items() if run.info.get(name)
    )
    return f"Training run{': ' if values else ''}{values}"


def _run(run: Trajectory) -> list[str]:
    caption = "Loss and attention against the step" if "attention" in run.observed else "Loss against the step"
    return [
        "<h2>Summary</h2>",
        markup.facts(run.facts()),
        "<h2>Figure</h2>",
        markup.figure(run.plot(), f"{caption}{'' if run.phases is None else ', phases shaded'}."),
        *_phases(run),
        *_bounds(run),
        "<h2>Saved steps</h2>",
        *_saved_steps(run),
    ]


def _phases(run: Trajectory) -> list[str]:
    if run.phases is None:
        return []
    present = run.phases.present()
    columns: dict[str, list[Any]] = {
        "phase": list(present),
        "first step": [first for first, _ in present.values()],
        "last step": [last for _, last in present.values()],
        "steps": [last - first for first, last in present.values()],
    }
    return ["<h2>Phases</h2>", markup.table(columns)]


def _bounds(run: Trajectory) -> list[str]:
    """Return the theorems held against a run that carries a regression risk, nothing for others."""
    from icl_theory.regression.bounds import check_bounds

    if run.risk is None:
        return []
    try:
        checks = check_bounds(run)
    except ValueError:  # of another model, of which no theorem speaks
        return []
    return ["<h2>Theorems</h2>", checks._repr_html_()]


def _saved_steps(run: Trajectory) -> list[str]:
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
    notes = []
    if len(chosen) < len(run.t):
        notes.append(f"{len(chosen)} of {len(run.t):,} saved steps, the first and the last among them.")
    if left_out:
        notes.append(f"Left out, with several numbers a step: {', '.join(left_out)}.")
    rows = markup.table({name: list(values[chosen]) for name, values in columns.items()})
    return [*(f"<p>{markup.text(note)}</p>" for note in notes), rows]
