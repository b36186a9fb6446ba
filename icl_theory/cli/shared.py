"""Shared parts of the commands: options, checks of files, printed facts and JSON."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from icl_theory._validate import argument_error
from icl_theory.cli import completion
from icl_theory.engine.progress import Progress

# The exit status of a command that Ctrl-C has ended, by convention: 128 plus the number
# of the signal, which is 2.
INTERRUPTED = 130
# The endings that the file of a figure may have.
FORMATS = (".png", ".pdf", ".svg")
# Options that several commands have.
Over = Annotated[
    str | None,
    typer.Option(
        "--over",
        help="Swept parameter that varies fastest from row to row; by default the"
        " first.",
        autocompletion=completion.swept,
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
PlotFile = Annotated[
    Path | None, typer.Option("--plot", help="Write the figure (png, pdf or svg).")
]


def check_targets(plot: Path | None, **others: Path | None) -> None:
    """Refuse files that cannot be written; commands call this before they compute.

    Each argument has the name of an option. Its value is the file that the option
    names, or None if the option is not given. The name of the file ``plot`` must also
    end in one of the FORMATS.
    """
    for name, path in {"plot": plot, **others}.items():
        if path is not None and not path.absolute().parent.is_dir():
            raise argument_error(name, str(path), "in a folder that exists")
    if plot is not None and plot.suffix.lower() not in FORMATS:
        raise argument_error(
            "plot", str(plot), "a file name ending in " + ", ".join(FORMATS)
        )


def say_left_out(messages: Iterable[str]) -> None:
    """Print messages about parts that were left out, on standard error and sorted.

    Sorting makes the output repeatable: some callers have the messages in a set.
    """
    for message in sorted(messages):
        print(f"icl-theory: {message}", file=sys.stderr)


def print_facts(facts: Mapping[str, str]) -> None:
    """Print names and values as a table of two columns."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    # A long value is broken over several lines, and no part of it is left out.
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name, value)
    Console(highlight=False).print(table)


def print_rows(rows: Iterable[Iterable[str]], *headings: str) -> None:
    """Print rows as a table, with headings if any are given."""
    table = Table(*headings, box=box.SIMPLE, pad_edge=False, show_header=bool(headings))
    for row in rows:
        table.add_row(*row)
    Console(highlight=False).print(table)


@Progress("making JSON")
def print_json(value: Any) -> None:
    """Print a value as a JSON document; NaN is null, and infinite numbers are texts."""
    # ``default=str``: a value of a type that JSON does not have becomes a text.
    print(json.dumps(_strict(value), allow_nan=False, default=str))


def _strict(value: Any) -> Any:
    """Return a copy of a value for strict JSON, which has no NaN and no infinity.

    NaN becomes None, and infinite numbers become texts.
    """
    if isinstance(value, dict):
        return {name: _strict(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_strict(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value
