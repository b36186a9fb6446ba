"""`icl-theory sweep`, and `sweep` of every family."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Annotated, Any

import typer

from icl_theory._validate import integer, refuse
from icl_theory.cli.options import from_file, help_text, parse_axis, require, with_options
from icl_theory.cli.outputs import (
    CsvFile,
    LatexFile,
    Outputs,
    Over,
    ParquetFile,
    TableFile,
    report_failures,
)
from icl_theory.cli.shared import PlotFile, Quiet, print_json
from icl_theory.engine.progress import CountProgress
from icl_theory.families import Family
from icl_theory.grids.estimate import estimate
from icl_theory.grids.sweep import check_picklable, plan, run_with
from icl_theory.grids.workers import cluster, processes
from icl_theory.results.reading import count

OTHERS = {"over": str, **dict.fromkeys(Outputs._fields, str), "store": str, "workers": int, "dask": str}
SPELLING = "Numbers may be lists 1,2,5 or ranges 0.1:10:log:25 (or lin)."


def sweep_command(family: type[Family]) -> Callable[..., int]:
    """Return the command that sweeps a family."""

    def sweep(
        given: dict[str, str],
        context: typer.Context,
        config: Annotated[
            Path | None, typer.Option("--config", help="TOML file of these options; flags win.")
        ] = None,
        over: Over = None,
        table: TableFile = None,
        csv: CsvFile = None,
        latex: LatexFile = None,
        parquet: ParquetFile = None,
        plot: PlotFile = None,
        store: Annotated[
            Path | None, typer.Option("--store", help="Folder that keeps finished chunks, to go on from.")
        ] = None,
        workers: Annotated[int | None, typer.Option("--workers", help="Start this many processes.")] = None,
        dask: Annotated[str | None, typer.Option("--dask", help="Address of a running Dask scheduler.")] = None,
        as_json: Annotated[
            bool, typer.Option("--json", help="Print the dataset, or the estimate of --dry-run, as JSON.")
        ] = False,
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how much work it would be.")] = False,
        quiet: Quiet = False,
    ) -> int:
        flags = {
            "over": over, "table": table, "csv": csv, "latex": latex, "parquet": parquet, "plot": plot,
            "store": store, "workers": workers, "dask": dask,
        }  # fmt: skip
        settings: dict[str, Any] = {} if config is None else from_file(config, family, OTHERS)
        settings |= {name: value for name, value in flags.items() if value is not None}
        chosen = {name: settings.pop(name, None) for name in OTHERS}
        known = family.parameters()
        settings |= {name: parse_axis(known[name], text) for name, text in given.items()}
        with CountProgress(False if quiet else None):
            return _run(family, settings, chosen, dry_run, quiet, as_json, context.obj)

    sweep.__doc__ = (
        f"Simulate {family.title} over a grid of parameters, and make tables. {SPELLING} Status 3 if points failed."
    )
    return with_options(sweep, family, help_text)


def _run(
    family: type[Family],
    settings: dict[str, Any],
    chosen: dict[str, Any],
    dry_run: bool,
    quiet: bool,
    as_json: bool,
    command: str,
) -> int:
    outputs = Outputs(*(None if chosen[name] is None else Path(chosen[name]) for name in Outputs._fields))
    if chosen["workers"] is not None:
        integer("workers", chosen["workers"], minimum=1, maximum=10_000)
        if chosen["dask"] is not None:
            raise refuse("workers", chosen["workers"], "left out with --dask")
    require(family, settings)
    made = plan(family, settings)
    outputs.check(chosen["over"], [axis.name for axis in made.grid.axes if axis.swept])
    if dry_run:
        said = estimate(made, chosen["workers"] or 1)
        if as_json:
            print_json({"estimate": [*said]})
            return 0
        for line in said:
            print(line, flush=True)
        return 0
    with contextlib.ExitStack() as stack:
        executor: Executor | None = None
        if chosen["workers"] is not None:
            check_picklable(made.model)
            executor = stack.enter_context(processes(chosen["workers"]))
        elif chosen["dask"] is not None:
            executor = stack.enter_context(cluster(str(chosen["dask"])))
        dataset = run_with(*made, executor=executor, store=chosen["store"], progress=not quiet, command=command)
    done = dataset["status"].size - count(dataset, "pending")
    if done:
        outputs.write(dataset, chosen["over"])
    if as_json:
        print_json(dataset.to_dict())
    elif done:
        outputs.show(dataset, chosen["over"], done)
    status = report_failures(dataset)
    if not dataset.attrs["interrupted"]:
        return status
    how = (
        "the same command continues from there"
        if chosen["store"]
        else "with --store the same command could continue"
    )
    print(f"icl-theory: interrupted after {done} of {made.grid.size} points; {how}", file=sys.stderr)
    return 130
