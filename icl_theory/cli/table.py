"""`icl-theory table`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from icl_theory.cli.outputs import (
    CsvFile,
    LatexFile,
    Outputs,
    Over,
    ParquetFile,
    TableFile,
    report_failures,
)
from icl_theory.cli.shared import PlotFile, Quiet, silent
from icl_theory.engine.progress import working
from icl_theory.grids.sweep import load_sweep
from icl_theory.results.reading import count


def table(
    store: Annotated[Path, typer.Argument(help="Folder written by --store.")],
    over: Over = None,
    table: TableFile = None,
    csv: CsvFile = None,
    latex: LatexFile = None,
    parquet: ParquetFile = None,
    plot: PlotFile = None,
    quiet: Quiet = False,
) -> int:
    """Make the tables and figures of a stored sweep again, also of one that is not finished."""
    with silent(quiet):
        with working("opening the store"):
            dataset = load_sweep(store)
            outputs = Outputs(table, csv, latex, parquet, plot)
            outputs.check(over, [str(name) for name in dataset.dims])
            pending = count(dataset, "pending")
        if pending == dataset["status"].size:
            print(f"icl-theory: {store} holds no points yet", file=sys.stderr)
            return 0
        if pending:
            print(f"icl-theory: {pending} of {dataset['status'].size} points are not computed yet", file=sys.stderr)
        outputs.write(dataset, over)
        outputs.show(dataset, over, dataset["status"].size - pending)
        return report_failures(dataset)
